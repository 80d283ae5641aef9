//! The budget of a compaction and its parameters, from the settings, the window and the reason.

use super::Compactor;
use crate::core::Core;
use epitome_compaction::{self as compaction, Budget, CompactionDecision, CompactionRequest};
use epitome_config::CompactionSettings;
use epitome_hooks::output::HistoryTail;
use epitome_provider::models;
use epitome_thread::{Seq, Trigger};

impl Core {
    /// The room of the model's window, and how a compaction may use it. `summary_max` limits the summary in tokens;
    /// `None` uses the configured limit.
    pub(crate) fn budget(&self, summary_max: Option<u32>) -> Budget {
        let window = self.model.window();
        let frame = self.ruler().frame_of(&self.thread);
        let of = |settings| Budget::new(settings, window, self.reserve(), frame);
        let budget = of(&self.settings.compaction);
        let Some(max_summary_tokens) = summary_max else { return budget };
        let recipe = of(&CompactionSettings { max_summary_tokens, ..self.settings.compaction.clone() });
        // A recipe limits only the model's text; the tables follow the settings.
        Budget { summary_max: recipe.summary_max, ..budget }
    }

    /// Tokens of the window that are reserved for a reply.
    pub(crate) fn reserve(&self) -> u64 {
        let reserve = self.settings.compaction.output_reserve;
        match self.model.endpoint() {
            Some(endpoint) => u64::from(reserve.min(endpoint.max_output)).min(endpoint.window / 4),
            None => u64::from(reserve).min(models::WINDOW_DEFAULT / 4),
        }
    }
}

impl Compactor {
    pub(crate) fn request(&self, core: &Core, focus: Option<String>, why: Trigger) -> CompactionRequest {
        let newest = compaction::KeptTail::Ratio(core.settings.compaction.preserve_ratio);
        let keep = match (self.request.keep, why) {
            (Some(keep), _) => keep,
            (None, Trigger::Manual | Trigger::Hook) => compaction::KeptTail::Nothing,
            (None, Trigger::Threshold | Trigger::Must) => newest,
            // Without a known window size, how much fits is unknown too.
            (None, Trigger::Overflow) if core.model.guesses_window() => compaction::KeptTail::Nothing,
            (None, Trigger::Overflow) => newest,
        };
        CompactionRequest { trigger: why, keep, focus, summary: !why.is_automatic() }
    }

    pub(crate) fn budget(&self, core: &Core) -> Budget {
        core.budget(self.request.tokens_max)
    }

    /// The budget, including the tokens that are in context now.
    pub(crate) fn budget_now(&self, core: &mut Core) -> Budget {
        let used = Some(core.tokens_in_context());
        Budget { used, ..self.budget(core) }
    }

    /// The computation that decides what a compaction would do to the current conversation. It returns the decision and
    /// the revision of the view that it applies to.
    pub(crate) fn deciding(
        &self,
        core: &mut Core,
        focus: Option<String>,
        why: Trigger,
    ) -> impl FnOnce() -> (Seq, CompactionDecision) + Send + use<> {
        let (budget, request) = (self.budget_now(core), self.request(core, focus, why));
        let (ruler, thread) = (core.ruler(), core.thread.clone());
        move || {
            (
                thread.view().revision(),
                compaction::decide(&compaction::CompactionInput::new(&ruler, &thread, &budget), &request),
            )
        }
    }
}

pub(crate) fn keep_of(keep: HistoryTail) -> compaction::KeptTail {
    match keep {
        HistoryTail::Nothing => compaction::KeptTail::Nothing,
        HistoryTail::Messages(messages) => compaction::KeptTail::Messages(messages),
        HistoryTail::Ratio(ratio) => compaction::KeptTail::Ratio(ratio),
    }
}
