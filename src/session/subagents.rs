//! Children of a session at work: agents that the model hands work to, callbacks and recipes. Their questions go to this
//! session's clients, and the answers back; clients that show agents get their streams (`shown`).
//!
//! Calls of a child are not in the parent's log. A client that a card was shown to is told of the call's
//! outcome; nothing of it is replayed.

mod shown;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

use super::child::{self, ChildNews, NewsReceiver, NewsSender};
use super::client_list::ClientList;
use super::tasks::RunningAgent;
use super::{AskId, ClientId, PermissionRequest, SessionCommand, SessionEvent, Ticket, UserDecision};
use epitome_recipe::agents::AgentCatalog;
use epitome_thread::{CallId, Mode, ModelName, OutcomeStatus, Rule, SessionId, ToolOutcome, Usage};
use shown::ShownAgent;
pub(super) use shown::{agent_id, call_with_place, lost_agent};

/// The ticket of a choice that a session passes on to its children; nobody waits for its answer.
const PASSED_ON: Ticket = Ticket(2);

/// See the module.
pub(super) struct Subagents {
    session: SessionId,
    /// What children of this session have to say; each gets a sender.
    news: (NewsSender, NewsReceiver),
    calls: Vec<ChildCall>,
    at_work: Vec<RunningChild>,
    /// Agents at work, at any depth, for clients that show them; each behind who started it.
    shown: Vec<ShownAgent>,
    /// The agents offered to the model, once their files were read.
    definitions: Arc<AgentCatalog>,
    /// As many as may work at a time.
    slots: Arc<Semaphore>,
    /// Agents that the running turn has started, and those of them that are at work, by their calls.
    started: u32,
    running: BTreeMap<CallId, RunningAgent>,
}

/// A child at work.
struct RunningChild {
    session: SessionId,
    commands: mpsc::WeakSender<SessionCommand>,
    /// Whether it takes the modes that are chosen meanwhile.
    follows_mode: bool,
}

/// A call of a child that this session's user was asked about, until it has its outcome.
struct ChildCall {
    child: SessionId,
    call: CallId,
    open: Option<ChildPermission>,
}

/// An open card of a child.
struct ChildPermission {
    /// The id that this session's clients know.
    ask: AskId,
    /// The id that the child knows.
    theirs: AskId,
    permission: Arc<PermissionRequest>,
    answers: mpsc::WeakSender<SessionCommand>,
}

impl ChildPermission {
    /// Passes a decision on. A child that is gone needs none, and its channel has room for one answer to
    /// each card.
    fn answer(&self, decision: UserDecision) {
        if let Some(answers) = self.answers.upgrade() {
            drop(answers.try_send(SessionCommand::Decide { ask: self.theirs, decision }));
        }
    }
}

/// What a child's news want of the session's log.
pub(super) enum LogRecord {
    /// The user said "always" to a child. It holds already.
    Allowed(Rule),
    /// A model call was paid for; with whose it was.
    Spent(ModelName, Usage, String),
}

impl Subagents {
    /// `slots`: how many agents may work at a time.
    pub fn new(session: SessionId, slots: u32) -> Subagents {
        Subagents {
            session,
            news: child::news(),
            calls: Vec::new(),
            at_work: Vec::new(),
            shown: Vec::new(),
            definitions: Arc::default(),
            slots: Arc::new(Semaphore::new(usize::try_from(slots).unwrap_or(usize::MAX))),
            started: 0,
            running: BTreeMap::new(),
        }
    }

    pub fn definitions(&self) -> &AgentCatalog {
        &self.definitions
    }

    pub fn define(&mut self, agents: AgentCatalog) {
        self.definitions = Arc::new(agents);
    }

    pub fn slots(&self) -> Arc<Semaphore> {
        self.slots.clone()
    }

    /// Counts an agent of the turn; returns which one it is, from 1.
    pub fn start(&mut self, call: &CallId, agent: RunningAgent) -> u32 {
        self.running.insert(call.clone(), agent);
        self.started += 1;
        self.started
    }

    /// The agent of this call has ended.
    pub fn ended(&mut self, call: &CallId) {
        self.running.remove(call);
    }

    pub fn take_running(&mut self) -> BTreeMap<CallId, RunningAgent> {
        std::mem::take(&mut self.running)
    }

    pub fn end_turn(&mut self) {
        self.started = 0;
        self.running.clear();
    }

    // ── News ───────────────────────────────────────────────────────────────────────────────────

    /// Where a child says what it has to say.
    pub fn sender(&self) -> NewsSender {
        self.news.0.clone()
    }

    /// The next news of a child.
    pub async fn next(&mut self) -> Option<ChildNews> {
        self.news.1.recv().await
    }

    /// The next news, if there is one by now.
    pub fn next_now(&mut self) -> Option<ChildNews> {
        self.news.1.try_recv()
    }

    /// Takes news of a child in. Returns what belongs into the log.
    pub fn handle_event(&mut self, news: ChildNews, clients: &ClientList) -> Option<LogRecord> {
        match news {
            ChildNews::Asked { child, ask: theirs, permission, answers } => {
                let ask = AskId::fresh();
                let open = ChildPermission { ask, theirs, permission: permission.clone(), answers };
                if clients.is_empty() {
                    open.answer(UserDecision::Absent);
                    return None;
                }
                let call = permission.call.clone();
                self.calls.push(ChildCall { child: child.clone(), call, open: Some(open) });
                self.show_waiting(&child, clients);
                clients.announce(&SessionEvent::Ask { ask, permission });
            }
            ChildNews::Settled { child, ask } => {
                let settled = self
                    .calls
                    .iter_mut()
                    .filter(|call| call.child == child)
                    .find_map(|call| call.open.take_if(|open| open.theirs == ask));
                if let Some(open) = settled {
                    clients.announce(&SessionEvent::Withdrawn { ask: open.ask });
                    self.show_waiting(&child, clients);
                }
            }
            ChildNews::Finished { child, outcome } => {
                self.calls.retain(|call| call.child != child || call.call != outcome.call);
                clients.announce(&SessionEvent::CallFinished { outcome });
            }
            ChildNews::Allowed { rule } => return Some(LogRecord::Allowed(rule)),
            ChildNews::Spent { model, usage, by } => return Some(LogRecord::Spent(model, usage, by)),
            ChildNews::Began { child, commands, follows_mode, about } => {
                self.at_work.push(RunningChild { session: child.clone(), commands, follows_mode });
                if let Some(about) = about {
                    self.show_begun(child, about, clients);
                }
            }
            ChildNews::Streamed { session, out } => self.show_stream(session, out, clients),
            ChildNews::Ended { child, end } => {
                self.at_work.retain(|known| known.session != child);
                self.end_calls(|call| call.child == child, clients);
                self.show_end(&child, end, clients);
            }
        }
        None
    }

    /// Passes a new mode on to the children that are at work.
    pub fn set_mode(&self, mode: Mode) {
        for child in self.at_work.iter().filter(|child| child.follows_mode) {
            if let Some(commands) = child.commands.upgrade() {
                let (client, mode) = (ClientId(0), mode.id().to_owned());
                // It takes its commands as fast as they come; one that is stuck is asked about nothing either.
                drop(commands.try_send(SessionCommand::SetMode { ticket: PASSED_ON, client, mode }));
            }
        }
    }

    /// Cancels one agent, wherever below this session it works.
    pub fn cancel(&self, agent: SessionId) {
        let (mut through, mut command) = (agent.clone(), SessionCommand::Cancel);
        // Of those below one another there are at most as many as are shown.
        for _ in 0..=self.shown.len() {
            let direct = self.at_work.iter().find(|child| child.session == through);
            if let Some(commands) = direct.and_then(|child| child.commands.upgrade()) {
                // A cancel must not get lost because of what stands before it.
                tokio::spawn(async move { commands.send(command).await });
                return;
            }
            let Some(above) = self.shown_above(&through) else { return };
            (through, command) = (above, SessionCommand::CancelAgent { agent: agent.clone() });
        }
    }

    // ── Cards ──────────────────────────────────────────────────────────────────────────────────

    /// Whether a call of a child waits for its outcome, of which a card was shown.
    pub fn have_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    fn child_permissions(&self) -> impl Iterator<Item = &ChildPermission> {
        self.calls.iter().filter_map(|call| call.open.as_ref())
    }

    /// The open cards, for a client that comes later.
    pub fn permission_events(&self) -> impl Iterator<Item = SessionEvent> {
        self.child_permissions()
            .map(|open| SessionEvent::Ask { ask: open.ask, permission: open.permission.clone() })
    }

    /// The open cards, by the ids that this session's clients know.
    pub fn open_asks(&self) -> impl Iterator<Item = AskId> {
        self.child_permissions().map(|open| open.ask)
    }

    /// Passes a decision on to the child that asked; `false` if none did. The card is withdrawn when the
    /// child has taken it.
    pub fn decided(&self, ask: AskId, decision: &UserDecision) -> bool {
        let Some(open) = self.child_permissions().find(|open| open.ask == ask) else { return false };
        open.answer(decision.clone());
        true
    }

    /// Withdraws all permission requests, because the session ends.
    pub fn end_all_calls(&mut self, clients: &ClientList) {
        self.end_calls(|_| true, clients);
    }

    /// Withdraws the permission requests of ended children, and ends their calls for the clients that saw them.
    fn end_calls(&mut self, is_gone: impl Fn(&ChildCall) -> bool, clients: &ClientList) {
        for ChildCall { call, open, .. } in self.calls.extract_if(.., |call| is_gone(call)) {
            if let Some(open) = open {
                clients.announce(&SessionEvent::Withdrawn { ask: open.ask });
            }
            let text = "The agent that made this call was stopped.";
            let outcome = Arc::new(ToolOutcome::text(call, OutcomeStatus::Interrupted, text));
            clients.announce(&SessionEvent::CallFinished { outcome });
        }
    }
}
