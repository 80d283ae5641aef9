//! `compact_context`: a compaction like that of `/compact` which keeps the tail verbatim, and
//! `builtin:compact-trigger`: the threshold of automatic compaction, checked last at the end of a round.

use super::HandlerError;
use super::{BuiltInHandler, COMPACT_TRIGGER, HandlerParams, HandlerRun, params};
use crate::event::HookEvent;
use crate::hook_context::HookContext;
use crate::output::{HistoryAction, HistoryTail, HookOutput};

pub const HANDLER: BuiltInHandler = BuiltInHandler {
    name: "compact_context",
    events: &[HookEvent::TurnEnd],
    params: &["preserve_ratio", "prune"],
    check,
    qualifies: |_| true,
    run: HandlerRun::Pure(|params, _| Ok(compact(ratio(params)?, false))),
};

pub const TRIGGER: BuiltInHandler = BuiltInHandler {
    name: COMPACT_TRIGGER,
    events: &[HookEvent::TurnEnd],
    params: &[],
    check: |_| Ok(None),
    qualifies: |_| true,
    run: HandlerRun::Pure(|_, hook_context| Ok(trigger(hook_context))),
};

/// Default fraction of the window that stays verbatim.
const PRESERVE_RATIO: f64 = 0.40;

/// Requests a compaction if the used fraction of the window has reached the threshold.
pub fn trigger(hook_context: &HookContext) -> HookOutput {
    let usage = &hook_context.base.usage;
    let threshold = hook_context.base.auto_compact.filter(|threshold| *threshold > 0.0);
    match threshold.is_some_and(|threshold| usage.used as f64 >= usage.size as f64 * threshold) {
        true => compact(PRESERVE_RATIO, true),
        false => HookOutput::default(),
    }
}

fn compact(ratio: f64, threshold: bool) -> HookOutput {
    HookOutput {
        action: HistoryAction::Compact { keep: HistoryTail::Ratio(ratio), threshold },
        ..HookOutput::default()
    }
}

fn check(params: &HandlerParams) -> Result<Option<String>, HandlerError> {
    ratio(params)?;
    let prune = params::truth(params, "prune")?.unwrap_or(false);
    Ok(prune.then(|| "\"prune\" has no effect: a compaction does not shorten tool results first".to_owned()))
}

fn ratio(params: &HandlerParams) -> Result<f64, HandlerError> {
    // At 1, everything would stay and nothing would be gained.
    params::value(params, "preserve_ratio", "a number from 0 to below 1", |value| {
        value.as_f64().filter(|ratio| (0.0..1.0).contains(ratio))
    })
    .map(|ratio| ratio.unwrap_or(PRESERVE_RATIO))
}
