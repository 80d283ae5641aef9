//! Running children of a session: agents that the model starts, callbacks and recipes. Their permission prompts are
//! sent to this session's clients, and the answers back; clients that show agents get their streams (`shown`).
//!
//! Calls of a child are not in the parent's log. A client that was shown a permission prompt is sent the call's
//! outcome; nothing of it is replayed.

mod shown;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, watch};

use super::child::ChildLog;
use super::child::news::{ChildNews, NewsReceiver, NewsSender, news};
use super::client_list::ClientList;
use super::{
    AskId, ClientId, PermissionRequest, SessionCommand, SessionEvent, Subagent, SubagentState, Ticket,
    UserDecision,
};
use epitome_recipe::agents::AgentCatalog;
use epitome_thread::{CallId, Mode, OutcomeStatus, SessionId, ToolOutcome};
use epitome_tools::task::TaskRequest;
use shown::ShownAgent;
pub(super) use shown::{lost_agent, numbered_call};

/// The ticket of an option that a session passes on to its children; its answer is ignored.
const PASSED_ON: Ticket = Ticket(2);

/// A running agent, by the call that started it.
pub(super) struct RunningAgent {
    pub request: TaskRequest,
    /// Its entries so far.
    pub child_log: Arc<ChildLog>,
}

/// A session's children; see the module.
pub(super) struct Subagents {
    session: SessionId,
    /// The channel for news of children; each gets a sender.
    news: (NewsSender, NewsReceiver),
    calls: Vec<ChildCall>,
    at_work: Vec<RunningChild>,
    /// Running agents, at any depth, for clients that show them; each follows the one that started it.
    shown: Vec<ShownAgent>,
    /// The agents offered to the model, once their files were read.
    definitions: Arc<AgentCatalog>,
    /// Limits how many agents run at a time.
    slots: Arc<Semaphore>,
    /// The mode that was chosen last.
    modes: watch::Sender<Mode>,
    /// The number of agents that the running turn has started, and those that are running, by their calls.
    started: u32,
    running: BTreeMap<CallId, RunningAgent>,
}

struct RunningChild {
    session: SessionId,
    commands: mpsc::WeakSender<SessionCommand>,
    /// Whether changes of the session's mode apply to it.
    follows_mode: bool,
}

impl RunningChild {
    /// Passes a new mode on.
    fn set_mode(&self, mode: Mode) {
        if self.follows_mode
            && let Some(commands) = self.commands.upgrade()
        {
            let (client, mode) = (ClientId(0), mode.id().to_owned());
            // A child handles commands quickly; one that is stuck asks for no permission either.
            drop(commands.try_send(SessionCommand::SetMode { ticket: PASSED_ON, client, mode }));
        }
    }
}

/// A child's call about which this session's user was asked, until its outcome is known.
struct ChildCall {
    child: SessionId,
    call: CallId,
    open: Option<ChildPermission>,
}

/// An open permission prompt of a child.
struct ChildPermission {
    /// The prompt's id in this session.
    ask: AskId,
    /// The prompt's id in the child.
    theirs: AskId,
    permission: Arc<PermissionRequest>,
    answers: mpsc::WeakSender<SessionCommand>,
}

impl ChildPermission {
    /// Passes a decision on. A child that has ended needs none, and its channel has room for one answer per prompt.
    fn answer(&self, decision: UserDecision) {
        if let Some(answers) = self.answers.upgrade() {
            drop(answers.try_send(SessionCommand::Decide { ask: self.theirs, decision }));
        }
    }
}

impl Subagents {
    /// `slots`: how many agents may run at a time.
    pub fn new(session: SessionId, slots: u32) -> Subagents {
        Subagents {
            session,
            news: news(),
            calls: Vec::new(),
            at_work: Vec::new(),
            shown: Vec::new(),
            definitions: Arc::default(),
            slots: Arc::new(Semaphore::new(usize::try_from(slots).unwrap_or(usize::MAX))),
            modes: watch::Sender::new(Mode::default()),
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

    /// Modes chosen from now on, for an agent that waits for others to end.
    pub fn modes(&self) -> watch::Receiver<Mode> {
        self.modes.subscribe()
    }

    pub fn slots(&self) -> Arc<Semaphore> {
        self.slots.clone()
    }

    /// Adds a running agent; returns its number in the turn, from 1.
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

    /// The sender for a child's news.
    pub fn sender(&self) -> NewsSender {
        self.news.0.clone()
    }

    pub async fn next(&mut self) -> Option<ChildNews> {
        self.news.1.recv().await
    }

    /// The next news, if it has already arrived.
    pub fn next_now(&mut self) -> Option<ChildNews> {
        self.news.1.try_recv()
    }

    /// Handles news of a child. `mode` is the session's. The session has already taken the parts for the log.
    pub fn handle_event(&mut self, news: ChildNews, mode: Mode, clients: &ClientList) {
        match news {
            ChildNews::Asked { child, ask: theirs, permission, answers } => {
                let ask = AskId::fresh();
                let open = ChildPermission { ask, theirs, permission: permission.clone(), answers };
                if clients.is_empty() {
                    return open.answer(UserDecision::Absent);
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
            ChildNews::Allowed { .. } | ChildNews::Spent { .. } => {}
            ChildNews::Began { child, commands, mode: began_in, follows_mode, about } => {
                let running = RunningChild { session: child.clone(), commands, follows_mode };
                // Since its call began, it may have waited for others to end.
                if began_in != mode {
                    running.set_mode(mode);
                }
                self.at_work.push(running);
                if let Some(about) = about {
                    let began =
                        Subagent { session: child, about: Some(about), state: SubagentState::Running };
                    self.show_stream(self.session.clone(), SessionEvent::Subagent(began), clients);
                }
            }
            ChildNews::Streamed { session, out } => self.show_stream(session, out, clients),
            ChildNews::Ended { child, end } => {
                self.at_work.retain(|known| known.session != child);
                self.end_calls(|call| call.child == child, clients);
                self.show_state(&child, SubagentState::Ended(end), clients);
            }
        }
    }

    /// Passes a new mode on to the children that run or wait.
    pub fn set_mode(&self, mode: Mode) {
        self.modes.send_replace(mode);
        self.at_work.iter().for_each(|child| child.set_mode(mode));
    }

    /// Cancels one agent, at any depth below this session. Returns whether it has begun.
    pub fn cancel(&self, agent: SessionId) -> bool {
        let (mut through, mut command) = (agent.clone(), SessionCommand::Cancel);
        // The chain of agents is at most as long as the list of those shown.
        for _ in 0..=self.shown.len() {
            let direct = self.at_work.iter().find(|child| child.session == through);
            if let Some(commands) = direct.and_then(|child| child.commands.upgrade()) {
                // A full queue must not lose a cancel.
                tokio::spawn(async move { commands.send(command).await });
                return true;
            }
            let Some(above) = self.shown_above(&through) else { return false };
            (through, command) = (above, SessionCommand::CancelAgent { agent: agent.clone() });
        }
        false
    }

    // ── Permission prompts ─────────────────────────────────────────────────────────────────────

    /// Whether a child's call that has caused a permission prompt has no outcome yet.
    pub fn have_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    fn child_permissions(&self) -> impl Iterator<Item = &ChildPermission> {
        self.calls.iter().filter_map(|call| call.open.as_ref())
    }

    /// The open permission prompts, for a client that attaches later.
    pub fn permission_events(&self) -> impl Iterator<Item = SessionEvent> {
        self.child_permissions()
            .map(|open| SessionEvent::Ask { ask: open.ask, permission: open.permission.clone() })
    }

    /// The ids of the open permission prompts in this session.
    pub fn open_asks(&self) -> impl Iterator<Item = AskId> {
        self.child_permissions().map(|open| open.ask)
    }

    /// Passes a decision on to the child that asked; returns `false` if none did. The prompt is withdrawn when the
    /// child has handled the decision.
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
