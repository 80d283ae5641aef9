//! A child's only outlet: it keeps what came of the child, and passes on to the parent what a person must
//! be asked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::session::{Answer, AskId, Decision, Out, Outlet, PermissionAsk, SessionCommand, SessionError};
use crate::thread::{CallId, Change, Entry, ModelName, Rule, SessionId, ToolOutcome, Usage};

/// Remarks of one child that are kept.
const NOTICES_MAX: usize = 64;

/// What a child has to say to its parent. Calls have ids that no call of the parent has.
///
/// The channel needs no bound: a child has one card at a time and waits for its answer.
pub enum ChildNews {
    /// The person must be asked. The answer goes to `answers` as a `Decide` with `ask`.
    Asked {
        child: SessionId,
        ask: AskId,
        permission: Arc<PermissionAsk>,
        answers: mpsc::WeakSender<SessionCommand>,
    },
    /// The question is answered or void.
    Settled { child: SessionId, ask: AskId },
    /// A call that was asked about has its outcome.
    Finished { child: SessionId, outcome: Arc<ToolOutcome> },
    /// The person said "always".
    Allowed { rule: Rule },
    /// A model call of the child was paid for, whatever comes of the child.
    Spent { model: ModelName, usage: Usage },
    /// The child is gone, with every question that is still open.
    Ended { child: SessionId },
}

/// Tells the parent that the child is gone, however it goes.
pub(super) struct Gone {
    pub child: SessionId,
    pub news: mpsc::UnboundedSender<ChildNews>,
}

impl Drop for Gone {
    fn drop(&mut self) {
        // A parent that is gone itself needs no word.
        drop(self.news.send(ChildNews::Ended { child: self.child.clone() }));
    }
}

pub(super) struct Tray {
    child: SessionId,
    /// The recipe, for the cards.
    name: String,
    news: mpsc::UnboundedSender<ChildNews>,
    commands: mpsc::WeakSender<SessionCommand>,
    kept: Mutex<Kept>,
}

/// What came of a child so far.
#[derive(Default)]
pub(super) struct Kept {
    pub entries: Vec<Arc<Entry>>,
    pub notices: Vec<String>,
    /// The model's window, as the child knows it.
    pub window: Option<u64>,
    answer: Option<oneshot::Sender<Result<Answer, SessionError>>>,
    /// Calls that the person was asked about and that have no outcome yet.
    asked: Vec<CallId>,
}

impl Tray {
    pub(super) fn new(
        child: SessionId,
        name: String,
        news: mpsc::UnboundedSender<ChildNews>,
        commands: mpsc::WeakSender<SessionCommand>,
        answer: oneshot::Sender<Result<Answer, SessionError>>,
    ) -> Tray {
        let kept = Kept { answer: Some(answer), ..Kept::default() };
        Tray { child, name, news, commands, kept: Mutex::new(kept) }
    }

    pub(super) fn take(&self) -> Kept {
        std::mem::take(&mut *self.kept())
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing that could panic runs under this lock.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The call's id in the parent's session.
    fn abroad(&self, call: &CallId) -> CallId {
        CallId(format!("{}.{call}", self.child))
    }

    fn ask(&self, ask: AskId, permission: &PermissionAsk) {
        let mut abroad = permission.clone();
        abroad.call = self.abroad(&permission.call);
        abroad.card.title = format!("{}: {}", self.name, permission.card.title);
        let asked = ChildNews::Asked {
            child: self.child.clone(),
            ask,
            permission: Arc::new(abroad),
            answers: self.commands.clone(),
        };
        if self.news.send(asked).is_err()
            && let Some(commands) = self.commands.upgrade()
        {
            // Nobody is there to be asked. There is room: a child gets nothing but decisions.
            let decision = Decision::Dismissed;
            drop(commands.try_send(SessionCommand::Decide { ask, decision }));
        }
    }

    fn entry(&self, entry: Arc<Entry>) {
        match &entry.change {
            Change::ToolFinished { outcome } => self.finished(outcome),
            Change::Allowed { rule } => drop(self.news.send(ChildNews::Allowed { rule: rule.clone() })),
            Change::Replied { model, usage: Some(usage), .. }
            | Change::Compacted { model: Some(model), usage: Some(usage), .. } => {
                drop(self.news.send(ChildNews::Spent { model: model.clone(), usage: *usage }));
            }
            _ => {}
        }
        self.kept().entries.push(entry);
    }

    /// Tells the outcome of a call whose card was shown; nobody knows the others.
    fn finished(&self, outcome: &ToolOutcome) {
        let mut kept = self.kept();
        let before = kept.asked.len();
        kept.asked.retain(|call| *call != outcome.call);
        if kept.asked.len() < before {
            let outcome = ToolOutcome { call: self.abroad(&outcome.call), ..outcome.clone() };
            let (child, outcome) = (self.child.clone(), Arc::new(outcome));
            drop(self.news.send(ChildNews::Finished { child, outcome }));
        }
    }
}

impl Outlet for Tray {
    fn put(&self, _: &SessionId, out: Out) {
        match out {
            Out::Entry { entry, .. } => self.entry(entry),
            Out::Usage(usage) => self.kept().window = Some(usage.size),
            Out::Notice { text, .. } => {
                let mut kept = self.kept();
                if kept.notices.len() < NOTICES_MAX {
                    kept.notices.push(text);
                }
            }
            Out::Ask { ask, permission } => {
                self.kept().asked.push(permission.call.clone());
                self.ask(ask, &permission);
            }
            Out::Withdrawn { ask } => {
                drop(self.news.send(ChildNews::Settled { child: self.child.clone(), ask }));
            }
            // A child of the child; its ids are told apart once more.
            Out::CallFinished { outcome } => self.finished(&outcome),
            Out::Answer { answer, .. } => {
                if let Some(sender) = self.kept().answer.take() {
                    drop(sender.send(answer));
                }
            }
            Out::Text { .. }
            | Out::CallsSeen { .. }
            | Out::CallStarted { .. }
            | Out::CallProgress { .. }
            | Out::Compaction { .. }
            | Out::Commands(_)
            | Out::Options(_)
            | Out::Question { .. }
            | Out::QuestionDone { .. } => {}
        }
    }
}
