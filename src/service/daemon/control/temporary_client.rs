//! A session client for the duration of one call: it attaches, sends a command, waits for the answer and
//! detaches. The control API handles commands and choices this way, like those of an editor.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::fault::{Fault, FaultKind};
use super::params::EnvironmentObject;
use super::queue::{ClientQueue, QueuedEvent};
use crate::Daemon;
use crate::attachments::fresh_client;
use epitome_session::event_queue::QueueLimits;
use epitome_session::port::SessionPort as _;
use epitome_session::{
    AskId, Attachment, ClientId, Opening, Replay, SessionAnswer, SessionCommand, SessionError, SessionEvent,
    Ticket,
};
use epitome_thread::{Change, Content, SessionId};

/// A temporary client reads all events immediately, and uses neither streamed text nor notices. This many unread
/// events mean that it is stuck, and its call fails.
const LIMITS: QueueLimits = QueueLimits { items: 16 * 1024, bytes: 0, notices: 0, ..QueueLimits::NONE };

/// First ticket of this process's control clients, out of the range used by editors.
static NEXT_TICKET: AtomicU64 = AtomicU64::new(1 << 48);

/// A ticket that nothing else in this process has.
fn fresh_ticket() -> Ticket {
    Ticket(NEXT_TICKET.fetch_add(1, Ordering::Relaxed))
}

/// A temporary client attached to a session; dropping it detaches.
pub struct TemporaryClient {
    daemon: Arc<Daemon>,
    pub session: SessionId,
    client: ClientId,
    queue: Arc<ClientQueue>,
    knows_commands: bool,
    /// Open questions; a session asks only a few at once.
    asks: Vec<AskId>,
    /// The text of the newest reply.
    reply: Option<String>,
}

impl TemporaryClient {
    /// Attaches to a session. The environment defaults to that of this process.
    pub async fn to(
        daemon: &Arc<Daemon>,
        session: SessionId,
        environment: Option<EnvironmentObject>,
    ) -> Result<TemporaryClient, Fault> {
        let (client, queue, ticket) = (fresh_client(), Arc::new(ClientQueue::new(LIMITS)), fresh_ticket());
        let opening = Opening {
            attachment: Attachment { client, outlet: queue.clone() },
            // The session keeps its own; the one in an opening applies only to new sessions.
            cwd: PathBuf::new(),
            directories: Vec::new(),
            mcp_servers: Vec::new(),
            environment: environment.unwrap_or_else(EnvironmentObject::current).shared(),
            overrides: Arc::default(),
            instructions: None,
            choices: Vec::new(),
        };
        daemon.sessions.attach(ticket, session.clone(), opening, Replay::Nothing);
        let mut visit = TemporaryClient {
            session,
            daemon: daemon.clone(),
            client,
            queue,
            knows_commands: false,
            asks: Vec::new(),
            reply: None,
        };
        let mut is_attached = false;
        // Until the recipes are known, `/name` would be taken for plain text.
        while !is_attached || !visit.knows_commands {
            if let Some(answer) = visit.next_answer(ticket).await? {
                answer?;
                is_attached = true;
            }
        }
        Ok(visit)
    }

    /// Sends a command and waits for its answer. Questions that arrive in the meantime are left to other clients; if
    /// there are none, they are declined.
    pub async fn ask(
        &mut self,
        command: impl FnOnce(Ticket, ClientId) -> SessionCommand,
    ) -> Result<SessionAnswer, Fault> {
        let ticket = fresh_ticket();
        self.daemon.sessions.send(&self.session, command(ticket, self.client))?;
        loop {
            if let Some(answer) = self.next_answer(ticket).await? {
                return Ok(answer?);
            }
            self.report_absent();
        }
    }

    /// Sends a command and waits for the end of its turn.
    pub async fn prompt(&mut self, content: Vec<Content>) -> Result<(SessionAnswer, Option<String>), Fault> {
        let (daemon, session) = (self.daemon.clone(), self.session.clone());
        let mut stop = daemon.stop.subscribe();
        let answer = {
            let turn =
                self.ask(|ticket, client| SessionCommand::Prompt { ticket, client, content, key: None });
            let mut turn = std::pin::pin!(turn);
            tokio::select! {
                () = super::wire::stopped(&mut stop) => {
                    // If the session has ended, so has its turn.
                    drop(daemon.sessions.send(&session, SessionCommand::Cancel));
                    turn.await?
                }
                answer = &mut turn => answer?,
            }
        };
        Ok((answer, self.reply.take()))
    }

    /// Waits for the next event and records it. Returns the answer to this ticket.
    async fn next_answer(
        &mut self,
        ticket: Ticket,
    ) -> Result<Option<Result<SessionAnswer, SessionError>>, Fault> {
        let QueuedEvent::Item(out) = self.queue.next().await else {
            return Err(Fault::new(FaultKind::Internal, "events of the session were lost"));
        };
        match out {
            SessionEvent::Answer { ticket: answered, answer } if answered == ticket => {
                return Ok(Some(answer));
            }
            SessionEvent::Commands(_) => self.knows_commands = true,
            SessionEvent::Ask { ask, .. } => self.asks.push(ask),
            SessionEvent::Withdrawn { ask } => self.asks.retain(|open| *open != ask),
            SessionEvent::Entry { entry, replay: false, .. } => {
                if let Change::Replied { message, .. } = &entry.change {
                    let text = message.text();
                    self.reply = (!text.is_empty()).then_some(text).or(self.reply.take());
                }
            }
            SessionEvent::Entry { replay: true, .. }
            | SessionEvent::Answer { .. }
            | SessionEvent::Text { .. }
            | SessionEvent::CallStarted { .. }
            | SessionEvent::CallProgress { .. }
            | SessionEvent::CallFinished { .. }
            | SessionEvent::Seen(_)
            | SessionEvent::Subagent(_)
            | SessionEvent::Compaction { .. }
            | SessionEvent::Usage(_)
            | SessionEvent::Options(_)
            | SessionEvent::Question { .. }
            | SessionEvent::QuestionDone { .. }
            | SessionEvent::EditorRequest { .. }
            | SessionEvent::State(_)
            | SessionEvent::Inserted { .. }
            | SessionEvent::TerminalEnded { .. }
            | SessionEvent::Notice { .. } => {}
        }
        Ok(None)
    }

    /// Reports that this client can't answer the open questions.
    fn report_absent(&mut self) {
        let client = self.client;
        for ask in self.asks.drain(..) {
            // If the session is gone, its questions are withdrawn.
            drop(self.daemon.sessions.send(&self.session, SessionCommand::Absent { ask, client }));
        }
    }
}

impl Drop for TemporaryClient {
    fn drop(&mut self) {
        // If the session is gone, there is nothing to detach from.
        let client = self.client;
        drop(self.daemon.sessions.send(&self.session, SessionCommand::Detach { client }));
    }
}
