//! What a compaction may take and what it is asked to do, by the settings, the window and who asked for it.

use crate::actor::Session;
use epitome_compaction::{self as compaction, Budget, Wish};
use epitome_config::Compaction;
use epitome_hooks::output::Keep;
use epitome_provider::models;
use epitome_thread::Trigger;
use epitome_turn::Why;

impl Session {
    pub(crate) fn wish(&self, focus: Option<String>, why: Why) -> Wish {
        let ordered = self.order().and_then(|order| order.keep);
        let newest = compaction::Keep::Ratio(self.settings.compaction.preserve_ratio);
        let keep = match (ordered, why) {
            (Some(keep), _) => keep_of(&keep),
            (None, Why::Command | Why::Hook) => compaction::Keep::Nothing,
            (None, Why::Threshold | Why::Must) => newest,
            // How much fits is only known where somebody has told how large the window is.
            (None, Why::Overflow) if self.model.guesses_window() => compaction::Keep::Nothing,
            (None, Why::Overflow) => newest,
        };
        let above = self.order().and_then(|order| order.above);
        Wish {
            trigger: trigger_of(why),
            keep: above.map_or(keep, compaction::Keep::From),
            focus,
            summary: matches!(why, Why::Command | Why::Hook),
        }
    }

    /// The room of the model's window, and how a compaction may use it.
    pub(crate) fn budget(&self) -> Budget {
        self.budget_for(self.order().and_then(|order| order.summary_tokens_max))
    }

    /// The same for a summary of so many tokens, where a recipe says that.
    pub(crate) fn budget_for(&self, summary_max: Option<u32>) -> Budget {
        let window = self.model.window();
        let frame = self.ruler().frame_of(&self.thread);
        let of = |settings| Budget::of(settings, window, self.reserve(), frame);
        let budget = of(&self.settings.compaction);
        let Some(max_summary_tokens) = summary_max else { return budget };
        let recipe = of(&Compaction { max_summary_tokens, ..self.settings.compaction.clone() });
        // A recipe says how long a model may write; the tables go by the settings.
        Budget { summary_max: recipe.summary_max, ..budget }
    }

    /// Tokens of the window that are kept free for a reply.
    pub(crate) fn reserve(&self) -> u64 {
        let reserve = self.settings.compaction.output_reserve;
        match self.model.endpoint() {
            Some(endpoint) => u64::from(reserve.min(endpoint.max_output)).min(endpoint.window / 4),
            None => u64::from(reserve).min(models::WINDOW_DEFAULT / 4),
        }
    }
}

pub(crate) fn trigger_of(why: Why) -> Trigger {
    match why {
        Why::Command => Trigger::Manual,
        Why::Overflow => Trigger::Overflow,
        Why::Threshold => Trigger::Threshold,
        Why::Hook => Trigger::Hook,
        Why::Must => Trigger::Must,
    }
}

pub(crate) fn keep_of(keep: &Keep) -> compaction::Keep {
    match keep {
        Keep::Nothing => compaction::Keep::Nothing,
        Keep::Messages(messages) => compaction::Keep::Messages(*messages),
        Keep::Ratio(ratio) => compaction::Keep::Ratio(*ratio),
    }
}
