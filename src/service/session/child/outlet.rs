//! The event sink of a child: collects its results, and forwards its permission requests and events to the
//! parent.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use super::news::{ChildNews, NewsSender};
use super::{ChildAgent, ChildSpec};
use crate::{
    AskId, AskedByAgent, EventSink, PermissionRequest, SessionAnswer, SessionCommand, SessionError,
    SessionEvent, Ticket, UserDecision,
};
use epitome_thread::titles::{plain_title, words_in_title};
use epitome_thread::{CallId, Change, Entry, ModelName, SessionId, ToolOutcome, Usage};

/// Maximum number of notices kept per child.
const NOTICES_MAX: usize = 64;

/// Maximum number of progress lines per agent.
const LINES_MAX: usize = 200;

/// Maximum bytes of a progress line.
const LINE_BYTES_MAX: usize = 160;

/// The entries of a child, shared with the code that may have to stop it.
#[derive(Default)]
pub struct ChildLog(Mutex<Vec<Arc<Entry>>>);

impl ChildLog {
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        self.0.lock().clone()
    }
}

pub(super) struct ChildOutlet {
    child: SessionId,
    /// The name of the recipe or agent, for permission prompts.
    name: String,
    news: NewsSender,
    commands: mpsc::WeakSender<SessionCommand>,
    agent: Option<ChildAgent>,
    entries: Arc<ChildLog>,
    kept: Mutex<ChildProgress>,
    spent_all: Notify,
}

/// The progress of a child so far.
#[derive(Default)]
pub(super) struct ChildProgress {
    pub notices: Vec<String>,
    /// The model's window in tokens, as the child reports it.
    pub window: Option<u64>,
    /// The receiver of the answer to the prompt with this ticket.
    answer: Option<(Ticket, oneshot::Sender<Result<SessionAnswer, SessionError>>)>,
    /// Tokens of its model calls, without those read from a cache.
    tokens: u64,
    /// Number of progress lines sent.
    lines: usize,
    /// Calls that the user was asked about and that have no outcome yet.
    asked: Vec<CallId>,
}

impl ChildOutlet {
    pub(super) fn new(
        child: SessionId,
        spec: &ChildSpec,
        news: NewsSender,
        commands: mpsc::WeakSender<SessionCommand>,
        answer: oneshot::Sender<Result<SessionAnswer, SessionError>>,
    ) -> ChildOutlet {
        let kept =
            Mutex::new(ChildProgress { answer: Some((Ticket(0), answer)), ..ChildProgress::default() });
        let (name, agent) = (spec.lineage.recipe.clone(), spec.agent.clone());
        let entries = agent.as_ref().map_or_else(Arc::default, |agent| agent.child_log.clone());
        ChildOutlet { child, name, news, commands, agent, entries, kept, spent_all: Notify::new() }
    }

    /// Sends the answer to the prompt of `ticket` to `sender`.
    pub(super) fn await_answer(
        &self,
        ticket: Ticket,
        sender: oneshot::Sender<Result<SessionAnswer, SessionError>>,
    ) {
        self.kept.lock().answer = Some((ticket, sender));
    }

    /// Waits until an agent has used up its tokens.
    pub(super) async fn has_spent_all(&self) {
        self.spent_all.notified().await;
    }

    pub(super) fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries.entries()
    }

    pub(super) fn take(&self) -> ChildProgress {
        std::mem::take(&mut *self.kept.lock())
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
        // If agents are nested, the innermost one asks.
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
            // No user is attached. The channel has room: a child receives only decisions.
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
        self.entries.0.lock().push(entry);
    }

    fn spent(&self, model: &ModelName, usage: &Usage, by: &str) {
        let (model, by) = (model.clone(), by.to_owned());
        self.news.send(ChildNews::Spent { model, usage: *usage, by });
        let Some(agent) = &self.agent else { return };
        let mut kept = self.kept.lock();
        kept.tokens += usage.input.saturating_sub(usage.cache_read) + usage.output;
        if kept.tokens >= agent.tokens_max {
            self.spent_all.notify_one();
        }
    }

    /// Reports an agent's current activity in one line.
    fn report_activity(&self, line: &str) {
        let Some(agent) = &self.agent else { return };
        let lines = {
            let mut kept = self.kept.lock();
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
        let title = self.entries.0.lock().iter().rev().find_map(|entry| match &entry.change {
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

    /// Forwards the outcome of a call that the user was asked about; the parent does not know the others.
    fn finished(&self, outcome: &ToolOutcome) {
        let mut kept = self.kept.lock();
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
            SessionEvent::Usage(usage) => self.kept.lock().window = Some(usage.size),
            SessionEvent::Notice { text, .. } => {
                let mut kept = self.kept.lock();
                if kept.notices.len() < NOTICES_MAX {
                    kept.notices.push(text);
                }
            }
            SessionEvent::Ask { ask, permission } => {
                self.kept.lock().asked.push(permission.call.clone());
                self.ask(ask, &permission);
            }
            SessionEvent::Withdrawn { ask } => {
                self.news.send(ChildNews::Settled { child: self.child.clone(), ask });
            }
            // From a child of this child; its call ids get another prefix.
            SessionEvent::CallFinished { outcome } => self.finished(&outcome),
            SessionEvent::Answer { ticket, answer } => {
                if let Some((_, sender)) = self.kept.lock().answer.take_if(|(awaited, _)| *awaited == ticket)
                {
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
            | SessionEvent::EditorRequest { .. } => {}
        }
    }

    fn shows_agents(&self) -> bool {
        self.agent.is_some()
    }
}

/// Whether the event is for clients that show agents as sessions. Permission requests are forwarded separately, and
/// an agent's session has no options to choose.
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

/// The first line of a text, truncated to the limit.
fn one_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.len() <= LINE_BYTES_MAX {
        true => line.to_owned(),
        false => format!("{}…", &line[..line.floor_char_boundary(LINE_BYTES_MAX)]),
    }
}
