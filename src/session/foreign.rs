//! The parent's side of its children: their questions go to its own clients, and the answers back.
//!
//! Calls of a child are not in the parent's log. A client that a card was shown to is told of the call's
//! outcome; nothing of it is replayed.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::actor::Session;
use super::child::ChildNews;
use super::tasks::Follower;
use super::{AskId, Attachment, Decision, Out, PermissionAsk, SessionCommand};
use epitome_thread::{CallId, Change, ModelName, OutcomeStatus, SessionId, ToolOutcome, Usage};

/// Whose calls they were that wrote a summary which is not used, in the log.
pub(super) const UNUSED_SUMMARY: &str = "a summary that is not used";

/// A call of a child that this session's person was asked about, until it has its outcome.
pub(super) struct ForeignCall {
    child: SessionId,
    call: CallId,
    /// While the card is open.
    open: Option<ForeignAsk>,
}

impl ForeignCall {
    pub(super) fn is_of(&self, child: &SessionId) -> bool {
        self.child == *child
    }
}

struct ForeignAsk {
    /// The id that this session's clients know.
    ask: AskId,
    /// The id that the child knows.
    theirs: AskId,
    permission: Arc<PermissionAsk>,
    answers: mpsc::WeakSender<SessionCommand>,
}

impl ForeignAsk {
    /// Passes a decision on. A child that is gone needs none, and its channel has room for one answer to
    /// each card.
    fn answer(&self, decision: Decision) {
        if let Some(answers) = self.answers.upgrade() {
            drop(answers.try_send(SessionCommand::Decide { ask: self.theirs, decision }));
        }
    }
}

impl Session {
    /// Hears what children have said so far: what they spent belongs to the turn that goes on or ends now.
    pub(super) fn hear_children(&mut self) {
        while let Ok(news) = self.children.1.try_recv() {
            self.child_news(news);
        }
    }

    /// Counts what was spent beside the turn's own model calls; `by` is whose calls they were.
    pub(super) fn spend(&mut self, model: ModelName, usage: Usage, by: String) {
        if let Some(work) = &mut self.work {
            work.turn.add_usage(&usage);
        }
        match self.commit(Change::Spent { model, usage, by }) {
            Ok(_) => self.announce_usage(),
            Err(error) => tracing::error!(session = %self.id, %error, "what was spent could not be written"),
        }
    }

    pub(super) fn child_news(&mut self, news: ChildNews) {
        match news {
            ChildNews::Asked { child, ask: theirs, permission, answers } => {
                let ask = AskId::fresh();
                let open = ForeignAsk { ask, theirs, permission: permission.clone(), answers };
                if self.clients.is_empty() {
                    return open.answer(Decision::Absent);
                }
                let call = permission.call.clone();
                self.foreign.push(ForeignCall { child: child.clone(), call, open: Some(open) });
                self.agent_waits(&child);
                self.announce(&Out::Ask { ask, permission });
            }
            ChildNews::Settled { child, ask } => {
                let settled = self
                    .foreign
                    .iter_mut()
                    .filter(|foreign| foreign.child == child)
                    .find_map(|foreign| foreign.open.take_if(|open| open.theirs == ask));
                if let Some(open) = settled {
                    self.announce(&Out::Withdrawn { ask: open.ask });
                    self.agent_waits(&child);
                }
            }
            ChildNews::Finished { child, outcome } => {
                self.foreign.retain(|foreign| foreign.child != child || foreign.call != outcome.call);
                self.announce(&Out::CallFinished { outcome });
            }
            ChildNews::Allowed { rule } => {
                if !self.thread.rules().contains(&rule)
                    && let Err(error) = self.commit(Change::Allowed { rule })
                {
                    tracing::error!(session = %self.id, %error, "a rule of the person's could not be written");
                }
            }
            ChildNews::Spent { model, usage, by } => self.spend(model, usage, by),
            ChildNews::Began { child, commands, follows_mode, about } => {
                self.followers.push(Follower { child: child.clone(), commands, follows_mode });
                if let Some(about) = about {
                    self.show_agent(child, about);
                }
            }
            ChildNews::Streamed { session, out } => self.agent_streamed(session, out),
            ChildNews::Ended { child, end } => {
                self.followers.retain(|follower| follower.child != child);
                self.end_foreign(|foreign| foreign.is_of(&child));
                self.agent_ended(&child, end);
            }
        }
    }

    /// Takes back the cards of children that are gone, and ends their calls for whoever saw them.
    pub(super) fn end_foreign(&mut self, is_gone: impl Fn(&ForeignCall) -> bool) {
        let gone: Vec<ForeignCall> = self.foreign.extract_if(.., |foreign| is_gone(foreign)).collect();
        for ForeignCall { call, open, .. } in gone {
            if let Some(open) = open {
                self.announce(&Out::Withdrawn { ask: open.ask });
            }
            let text = "Who made this call was stopped.";
            let outcome = Arc::new(ToolOutcome::text(call, OutcomeStatus::Interrupted, text));
            self.announce(&Out::CallFinished { outcome });
        }
    }

    /// Whether a card of this child, or of one that works for it, waits for the person.
    pub(super) fn has_open_card(&self, child: &SessionId) -> bool {
        self.foreign.iter().any(|foreign| foreign.is_of(child) && foreign.open.is_some())
    }

    /// Shows the open cards of children to a client that comes later.
    pub(super) fn show_foreign_asks(&self, attachment: &Attachment) {
        for open in self.foreign.iter().filter_map(|foreign| foreign.open.as_ref()) {
            let (ask, permission) = (open.ask, open.permission.clone());
            attachment.outlet.put(&self.id, Out::Ask { ask, permission });
        }
    }

    /// The open cards of children, by the ids that this session's clients know.
    pub(super) fn foreign_asks(&self) -> impl Iterator<Item = AskId> {
        self.foreign.iter().filter_map(|foreign| foreign.open.as_ref()).map(|open| open.ask)
    }

    /// Passes a decision on to the child that asked; `false` if none did. The card is withdrawn when the
    /// child has taken it.
    pub(super) fn decided_for_child(&self, ask: AskId, decision: &Decision) -> bool {
        let open = self.foreign.iter().filter_map(|foreign| foreign.open.as_ref());
        let Some(open) = open.into_iter().find(|open| open.ask == ask) else { return false };
        open.answer(decision.clone());
        true
    }
}
