//! Processes the events of a session's children, and records spending besides the turn's own model calls.

use super::Session;
use crate::child::news::ChildNews;
use epitome_thread::{Change, ModelName, Usage};

impl Session {
    /// Processes all pending events of children, so that their spending belongs to the current turn.
    pub(super) fn take_child_news(&mut self) {
        while let Some(news) = self.subagents.next_now() {
            self.child_news(news);
        }
    }

    /// Records spending besides the turn's own model calls. `by`: who made the calls.
    pub(super) fn spend(&mut self, model: ModelName, usage: Usage, by: String) {
        if let Some(work) = &mut self.work {
            work.turn.add_usage(&usage);
        }
        if self.core.commit(Change::Spent { model, usage, by }).is_ok() {
            self.core.announce_usage();
        }
    }

    pub(super) fn child_news(&mut self, news: ChildNews) {
        match news {
            // The rule already applies; this is for the log.
            ChildNews::Allowed { rule } => {
                if !self.core.thread.rules().contains(&rule) {
                    drop(self.core.commit(Change::Allowed { rule }));
                }
            }
            ChildNews::Spent { model, usage, by } => self.spend(model, usage, by),
            news => self.subagents.handle_event(news, self.core.thread.mode(), &self.core.clients),
        }
    }
}

impl Session {
    /// Notes what the running model call of a child has cost, for its parent.
    pub(super) fn note_running_cost(&self) {
        if self.core.lineage.is_child() {
            let call = self.work.as_ref().and_then(|work| work.model.as_ref());
            let cost = call.and_then(|call| Some((call.model.clone(), call.collector.usage()?)));
            self.core.lineage.running.set(cost);
        }
    }
}
