//! `note_length`: tells the person when a reply is longer than they want to read. Changes nothing.

use serde_json::{Map, Value};

use super::params;
use crate::moment::{Moment, What};
use crate::output::HookOutput;

pub const PARAMS: [&str; 1] = ["words"];

/// Words of a reply that nobody minds, where the recipe does not say.
const WORDS: u64 = 400;
/// More words than any reply has.
const WORDS_MAX: u64 = 1_000_000;

/// Reads the parameters as a run would: what is wrong with them is told when the recipe is loaded.
pub fn check(params: &Map<String, Value>) -> Result<Option<String>, String> {
    params::whole(params, "words", WORDS_MAX).map(|_| None)
}

pub fn answer(params: &Map<String, Value>, moment: &Moment) -> Result<HookOutput, String> {
    let limit = params::whole(params, "words", WORDS_MAX)?.unwrap_or(WORDS);
    let What::TurnEnd(round) = &moment.what else { return Err("there is no reply to count".to_owned()) };
    let words = round.response.split_whitespace().count() as u64;
    let notice = (words > limit).then(|| format!("The reply has {words} words, {limit} were wanted."));
    Ok(HookOutput { notice, ..HookOutput::default() })
}
