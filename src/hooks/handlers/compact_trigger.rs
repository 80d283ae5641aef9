//! `builtin:compact-trigger`: the threshold of automatic compaction, checked last at the end of a round.

use super::compact_context::PRESERVE_RATIO;
use crate::moment::Moment;
use crate::output::{Action, HookOutput, Keep};

/// Requests a compaction if the used fraction of the window has reached the threshold.
pub fn answer(moment: &Moment) -> HookOutput {
    let usage = &moment.base.usage;
    let reached = moment
        .base
        .auto_compact
        .is_some_and(|threshold| threshold > 0.0 && usage.used as f64 >= usage.size as f64 * threshold);
    match reached {
        true => {
            let action = Action::Compact { keep: Keep::Ratio(PRESERVE_RATIO), threshold: true };
            HookOutput { action, ..HookOutput::default() }
        }
        false => HookOutput::default(),
    }
}
