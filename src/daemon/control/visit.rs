//! A session client for the duration of one call: it attaches, sends a command, waits for the answer and
//! detaches. The control API handles prompts, choices and titles this way, like those of an editor.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::fault::Fault;
use super::params::Environment;
use crate::Daemon;
use crate::attachments::fresh_client;
use epitome_session::registry::Overrides;
use epitome_session::{
    Answer, AskId, Attachment, ClientId, Opening, Out, Outlet, Replay, SessionCommand, SessionError, Ticket,
};
use epitome_thread::{Change, Content, SessionId};

/// Interval for checking whether a client that could answer a question still follows the session. A follower
/// that leaves does not notify waiting calls.
const ASKED_LOOK: Duration = Duration::from_secs(1);

/// First ticket of this process's control clients, out of the range used by editors.
static NEXT_TICKET: AtomicU64 = AtomicU64::new(1 << 48);

/// Reserves this many tickets, unique within the process, and returns the first.
pub fn fresh_tickets(count: u64) -> Ticket {
    Ticket(NEXT_TICKET.fetch_add(count, Ordering::Relaxed))
}

/// Client-specific settings of a visit.
#[derive(Default)]
pub struct Luggage {
    /// Defaults to the environment of this process.
    pub environment: Option<Environment>,
    pub overrides: Overrides,
}

/// A temporary client attached to a session; dropping it detaches.
pub struct Visit {
    daemon: Arc<Daemon>,
    pub session: SessionId,
    client: ClientId,
    tray: Arc<Tray>,
}

impl Visit {
    /// Attaches to an existing session.
    pub async fn to(daemon: &Arc<Daemon>, session: SessionId, luggage: Luggage) -> Result<Visit, Fault> {
        let (client, tray, ticket) = (fresh_client(), Arc::new(Tray::default()), fresh_tickets(1));
        // An existing session keeps its own directory; the one in an opening applies only to new sessions.
        let opening = opening(client, tray.clone(), PathBuf::new(), luggage);
        let visit = Visit { daemon: daemon.clone(), session: session.clone(), client, tray };
        visit.daemon.sessions.attach(ticket, session, opening, Replay::Nothing);
        visit.entered(ticket).await
    }

    /// Creates a session and attaches to it.
    pub async fn to_new(daemon: &Arc<Daemon>, cwd: PathBuf, luggage: Luggage) -> Result<Visit, Fault> {
        let (client, tray, ticket) = (fresh_client(), Arc::new(Tray::default()), fresh_tickets(1));
        let session = daemon.sessions.create(ticket, opening(client, tray.clone(), cwd, luggage));
        Visit { daemon: daemon.clone(), session, client, tray }.entered(ticket).await
    }

    async fn entered(self, ticket: Ticket) -> Result<Visit, Fault> {
        self.answer(ticket).await?;
        // Until the recipes are known, `/name` would be taken for plain text.
        self.tray.until(|state| state.knows_commands.then_some(())).await;
        Ok(self)
    }

    /// Sends a command and waits for its answer. Questions that arrive meanwhile are left to other clients;
    /// if there are none, they are declined.
    pub async fn ask(
        &self,
        command: impl FnOnce(Ticket, ClientId) -> SessionCommand,
    ) -> Result<Answer, Fault> {
        let ticket = fresh_tickets(1);
        self.daemon.sessions.send(&self.session, command(ticket, self.client))?;
        let mut answer = std::pin::pin!(self.answer(ticket));
        loop {
            tokio::select! {
                answer = &mut answer => return Ok(answer?),
                () = self.questions() => self.say_absent(),
            }
        }
    }

    /// Sends a prompt and waits for the end of its turn.
    pub async fn prompt(&self, content: Vec<Content>) -> Result<(Answer, Option<String>), Fault> {
        let turn = self.ask(|ticket, client| SessionCommand::Prompt { ticket, client, content });
        let mut turn = std::pin::pin!(turn);
        let mut stop = self.daemon.stop.subscribe();
        let mut stopping = false;
        let answer = loop {
            tokio::select! {
                () = super::wire::stopped(&mut stop), if !stopping => {
                    stopping = true;
                    // If the session is gone, its turn has ended.
                    drop(self.daemon.sessions.send(&self.session, SessionCommand::Cancel));
                }
                answer = &mut turn => break answer?,
            }
        };
        let said = std::mem::take(&mut self.tray.state().said);
        Ok((answer, said))
    }

    async fn answer(&self, ticket: Ticket) -> Result<Answer, SessionError> {
        self.tray
            .until(|state| {
                let at = state.answers.iter().position(|(answered, _)| *answered == ticket)?;
                Some(state.answers.swap_remove(at).1)
            })
            .await
    }

    /// Completes when there is a new question, and periodically while one is open.
    async fn questions(&self) {
        self.tray.until(|state| (!state.asks.is_empty()).then_some(())).await;
        let is_new = self.tray.until(|state| state.new_ask.then(|| state.new_ask = false));
        // A timeout is fine: it triggers the periodic check.
        drop(tokio::time::timeout(ASKED_LOOK, is_new).await);
    }

    /// Reports that this client can't answer the open questions. Does nothing while the session has a
    /// follower, which is not a client but may still answer.
    fn say_absent(&self) {
        if self.daemon.control.is_followed(&self.session) {
            return;
        }
        let client = self.client;
        for ask in std::mem::take(&mut self.tray.state().asks) {
            // If the session is gone, its questions are withdrawn.
            drop(self.daemon.sessions.send(&self.session, SessionCommand::Absent { ask, client }));
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // If the session is gone, there is nothing to detach from.
        let client = self.client;
        drop(self.daemon.sessions.send(&self.session, SessionCommand::Detach { client }));
    }
}

fn opening(client: ClientId, tray: Arc<Tray>, cwd: PathBuf, luggage: Luggage) -> Opening {
    Opening {
        attachment: Attachment { client, outlet: tray },
        cwd,
        directories: Vec::new(),
        mcp_servers: Vec::new(),
        environment: luggage.environment.unwrap_or_else(Environment::of_this_process).shared(),
        overrides: Arc::new(luggage.overrides),
    }
}

/// The little that a visit keeps of a session's events.
#[derive(Default)]
struct Tray {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// At most one for each ticket in use.
    answers: Vec<(Ticket, Result<Answer, SessionError>)>,
    knows_commands: bool,
    /// Open questions; a session asks only a few at once.
    asks: Vec<AskId>,
    new_ask: bool,
    /// The text of the newest reply.
    said: Option<String>,
}

impl Tray {
    async fn until<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            // Registered before the check, so that a notification in between is not missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = look(&mut self.state()) {
                return found;
            }
            changed.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outlet for Tray {
    fn put(&self, _: &SessionId, out: Out) {
        let mut state = self.state();
        match out {
            Out::Answer { ticket, answer } => state.answers.push((ticket, answer)),
            Out::Commands(_) => state.knows_commands = true,
            Out::Ask { ask, .. } => {
                state.asks.push(ask);
                state.new_ask = true;
            }
            Out::Withdrawn { ask } => state.asks.retain(|open| *open != ask),
            Out::Entry { entry, replay: false, .. } => match &entry.change {
                Change::Replied { message, .. } => {
                    let text = message.text();
                    state.said = (!text.is_empty()).then_some(text).or(state.said.take());
                }
                _ => return,
            },
            Out::Entry { replay: true, .. }
            | Out::Text { .. }
            | Out::CallStarted { .. }
            | Out::CallProgress { .. }
            | Out::CallFinished { .. }
            | Out::CallsSeen { .. }
            | Out::Subagent(_)
            | Out::Compaction { .. }
            | Out::Usage(_)
            | Out::Options(_)
            | Out::Question { .. }
            | Out::QuestionDone { .. }
            | Out::Wish { .. }
            | Out::Notice { .. } => return,
        }
        drop(state);
        self.changed.notify_waiters();
    }
}
