//! `compact_context`: a compaction like that of `/compact` which keeps the tail verbatim.

use serde_json::{Map, Value};

use super::params;
use crate::output::{Action, HookOutput, Keep};

pub const PARAMS: [&str; 2] = ["preserve_ratio", "prune"];

/// Default fraction of the window that stays verbatim.
pub const PRESERVE_RATIO: f64 = 0.40;

pub fn check(params: &Map<String, Value>) -> Result<Option<String>, String> {
    ratio(params)?;
    let prune = params::truth(params, "prune")?.unwrap_or(false);
    Ok(prune.then(|| "\"prune\" has no effect: a compaction does not shorten tool results first".to_owned()))
}

pub fn answer(params: &Map<String, Value>) -> Result<HookOutput, String> {
    let action = Action::Compact { keep: Keep::Ratio(ratio(params)?), threshold: false };
    Ok(HookOutput { action, ..HookOutput::default() })
}

fn ratio(params: &Map<String, Value>) -> Result<f64, String> {
    match params::given(params, "preserve_ratio") {
        None => Ok(PRESERVE_RATIO),
        // At 1 everything would stay and nothing would be gained.
        Some(value) => value
            .as_f64()
            .filter(|ratio| (0.0..1.0).contains(ratio))
            .ok_or_else(|| "\"preserve_ratio\" must be a number from 0 to below 1".to_owned()),
    }
}
