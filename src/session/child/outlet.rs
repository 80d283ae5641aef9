//! A child's only outlet: it keeps what came of the child, and passes on to the parent what a user must
//! be asked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, mpsc, oneshot};

use super::news::{ChildNews, NewsSender};
use super::{ChildAgent, ChildOrder};
use crate::{
    AskId, AskedByAgent, EventSink, PermissionRequest, SessionAnswer, SessionCommand, SessionError,
    SessionEvent, Ticket, UserDecision,
};
use epitome_thread::titles::{plain_title, words_in_title};
use epitome_thread::{CallId, Change, Entry, ModelName, SessionId, ToolOutcome, Usage};

/// Remarks of one child that are kept.
const NOTICES_MAX: usize = 64;

/// Lines that are told of what one agent does.
const LINES_MAX: usize = 200;

/// Bytes of such a line.
const LINE_BYTES_MAX: usize = 160;

/// Entries of a child, shared with who may have to stop it.
#[derive(Default)]
pub struct ChildLog(Mutex<Vec<Arc<Entry>>>);

impl ChildLog {
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        // Nothing that could panic runs under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct ChildOutlet {
    child: SessionId,
    /// The recipe or the agent, for the cards.
    name: String,
    news: NewsSender,
    commands: mpsc::WeakSender<SessionCommand>,
    agent: Option<ChildAgent>,
    entries: Arc<ChildLog>,
    kept: Mutex<ChildProgress>,
    spent_all: Notify,
}

/// What came of a child so far.
#[derive(Default)]
pub(super) struct ChildProgress {
    pub notices: Vec<String>,
    /// The model's window, as the child knows it.
    pub window: Option<u64>,
    /// Who waits for the answer to the prompt of this ticket.
    answer: Option<(Ticket, oneshot::Sender<Result<SessionAnswer, SessionError>>)>,
    /// Tokens of its model calls that no cache had.
    tokens: u64,
    /// Lines that were told of what it does.
    lines: usize,
    /// Calls that the user was asked about and that have no outcome yet.
    asked: Vec<CallId>,
}

impl ChildOutlet {
    pub(super) fn new(
        child: SessionId,
        order: &ChildOrder,
        news: NewsSender,
        commands: mpsc::WeakSender<SessionCommand>,
        answer: oneshot::Sender<Result<SessionAnswer, SessionError>>,
    ) -> ChildOutlet {
        let kept =
            Mutex::new(ChildProgress { answer: Some((Ticket(0), answer)), ..ChildProgress::default() });
        let (name, agent) = (order.lineage.recipe.clone(), order.agent.clone());
        let entries = agent.as_ref().map_or_else(Arc::default, |agent| agent.child_log.clone());
        ChildOutlet { child, name, news, commands, agent, entries, kept, spent_all: Notify::new() }
    }

    /// Has the answer to another prompt waited for.
    pub(super) fn await_answer(
        &self,
        ticket: Ticket,
        sender: oneshot::Sender<Result<SessionAnswer, SessionError>>,
    ) {
        self.progress().answer = Some((ticket, sender));
    }

    /// Waits until an agent has taken the tokens that it may.
    pub(super) async fn has_spent_all(&self) {
        self.spent_all.notified().await;
    }

    pub(super) fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries.entries()
    }

    pub(super) fn take(&self) -> ChildProgress {
        std::mem::take(&mut *self.progress())
    }

    fn progress(&self) -> MutexGuard<'_, ChildProgress> {
        // Nothing that could panic runs under this lock.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The call's id in the parent's session.
    fn parent_call_id(&self, call: &CallId) -> CallId {
        CallId(format!("{}.{call}", self.child))
    }

    fn ask(&self, ask: AskId, permission: &PermissionRequest) {
        let mut abroad = permission.clone();
        abroad.call = self.parent_call_id(&permission.call);
        let name = words_in_title(permission.card.kind, &self.name);
        abroad.card.title = format!("{name}: {}", permission.card.title);
        // Of agents below one another the innermost is the one that asks.
        if self.agent.is_some() && abroad.agent.is_none() {
            abroad.agent = Some(AskedByAgent {
                session: self.child.clone(),
                call: permission.call.clone(),
                title: permission.card.title.clone(),
            });
        }
        let asked = ChildNews::Asked {
            child: self.child.clone(),
            ask,
            permission: Arc::new(abroad),
            answers: self.commands.clone(),
        };
        if !self.news.send(asked)
            && let Some(commands) = self.commands.upgrade()
        {
            // Nobody is there to be asked. There is room: a child gets nothing but decisions.
            let decision = UserDecision::Absent;
            drop(commands.try_send(SessionCommand::Decide { ask, decision }));
        }
    }

    fn entry(&self, entry: Arc<Entry>) {
        match &entry.change {
            Change::ToolFinished { outcome } => self.finished(outcome),
            Change::Allowed { rule } => {
                self.news.send(ChildNews::Allowed { rule: rule.clone() });
            }
            Change::Replied { model, usage: Some(usage), .. }
            | Change::Compacted { model: Some(model), usage: Some(usage), .. } => {
                self.spent(model, usage, &self.name);
            }
            Change::Spent { model, usage, by } => self.spent(model, usage, by),
            _ => {}
        }
        if let Change::Replied { message, .. } = &entry.change
            && message.calls().next().is_some()
            && let Some(line) = message.text().lines().map(str::trim).find(|line| !line.is_empty())
        {
            self.report_activity(line);
        }
        self.entries.lock().push(entry);
    }

    fn spent(&self, model: &ModelName, usage: &Usage, by: &str) {
        let (model, by) = (model.clone(), by.to_owned());
        self.news.send(ChildNews::Spent { model, usage: *usage, by });
        let Some(agent) = &self.agent else { return };
        let mut kept = self.progress();
        kept.tokens += usage.input.saturating_sub(usage.cache_read) + usage.output;
        if kept.tokens >= agent.tokens_max {
            self.spent_all.notify_one();
        }
    }

    /// Tells the user what an agent does now, in one line.
    fn report_activity(&self, line: &str) {
        let Some(agent) = &self.agent else { return };
        let lines = {
            let mut kept = self.progress();
            kept.lines += 1;
            kept.lines
        };
        match lines {
            ..LINES_MAX => (agent.progress)(format!("{}\n", one_line(line)).into()),
            LINES_MAX => (agent.progress)("… (continued in its report)\n".into()),
            _ => {}
        }
    }

    fn report_call(&self, call: &CallId) {
        let title = self.entries.lock().iter().rev().find_map(|entry| match &entry.change {
            Change::Replied { message, .. } => message
                .calls()
                .find(|known| known.id == *call)
                .map(|known| plain_title(&known.card).into_owned()),
            _ => None,
        });
        if let Some(title) = title {
            self.report_activity(&format!("→ {title}"));
        }
    }

    /// Tells the outcome of a call whose card was shown; nobody knows the others.
    fn finished(&self, outcome: &ToolOutcome) {
        let mut kept = self.progress();
        let before = kept.asked.len();
        kept.asked.retain(|call| *call != outcome.call);
        if kept.asked.len() < before {
            let outcome = ToolOutcome { call: self.parent_call_id(&outcome.call), ..outcome.clone() };
            let (child, outcome) = (self.child.clone(), Arc::new(outcome));
            self.news.send(ChildNews::Finished { child, outcome });
        }
    }
}

impl EventSink for ChildOutlet {
    fn put(&self, session: &SessionId, out: SessionEvent) {
        if self.agent.is_some() && is_shown(&out) {
            self.news.send(ChildNews::Streamed { session: session.clone(), out: out.clone() });
        }
        if *session != self.child {
            return;
        }
        match out {
            SessionEvent::Entry { entry, .. } => self.entry(entry),
            SessionEvent::Usage(usage) => self.progress().window = Some(usage.size),
            SessionEvent::Notice { text, .. } => {
                let mut kept = self.progress();
                if kept.notices.len() < NOTICES_MAX {
                    kept.notices.push(text);
                }
            }
            SessionEvent::Ask { ask, permission } => {
                self.progress().asked.push(permission.call.clone());
                self.ask(ask, &permission);
            }
            SessionEvent::Withdrawn { ask } => {
                self.news.send(ChildNews::Settled { child: self.child.clone(), ask });
            }
            // A child of the child; its ids are told apart once more.
            SessionEvent::CallFinished { outcome } => self.finished(&outcome),
            SessionEvent::Answer { ticket, answer } => {
                if let Some((_, sender)) = self.progress().answer.take_if(|(awaited, _)| *awaited == ticket) {
                    drop(sender.send(answer));
                }
            }
            SessionEvent::CallStarted { call } => self.report_call(&call),
            SessionEvent::Text { .. }
            | SessionEvent::Seen(_)
            | SessionEvent::CallProgress { .. }
            | SessionEvent::Compaction { .. }
            | SessionEvent::Subagent(_)
            | SessionEvent::Commands(_)
            | SessionEvent::Options(_)
            | SessionEvent::Question { .. }
            | SessionEvent::QuestionDone { .. }
            | SessionEvent::State(_)
            | SessionEvent::Inserted { .. }
            | SessionEvent::TerminalEnded { .. }
            | SessionEvent::Wish { .. } => {}
        }
    }

    fn shows_agents(&self) -> bool {
        self.agent.is_some()
    }
}

/// Whether this is for a client that shows the agent as a session. Cards go the way of all cards, and nothing can be
/// chosen in it.
fn is_shown(out: &SessionEvent) -> bool {
    matches!(
        out,
        SessionEvent::Entry { .. }
            | SessionEvent::Text { .. }
            | SessionEvent::Seen(_)
            | SessionEvent::CallStarted { .. }
            | SessionEvent::CallProgress { .. }
            | SessionEvent::CallFinished { .. }
            | SessionEvent::Compaction { .. }
            | SessionEvent::Usage(_)
            | SessionEvent::Notice { .. }
            | SessionEvent::Subagent(_)
    )
}

/// The first line of a text, within bounds.
fn one_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.len() <= LINE_BYTES_MAX {
        true => line.to_owned(),
        false => format!("{}…", &line[..line.floor_char_boundary(LINE_BYTES_MAX)]),
    }
}
