//! `note_length`: notifies the user of overlong replies. Changes nothing.

use super::HandlerError;
use super::params::{self, BuiltInHandler, HandlerParams, HandlerRun};
use crate::event::HookEvent;
use crate::hook_context::HookContext;
use crate::output::HookOutput;

pub const HANDLER: BuiltInHandler = BuiltInHandler {
    name: "note_length",
    events: &[HookEvent::TurnEnd],
    params: &["words"],
    // Parses the parameters like a run does, so that an error is reported when the recipe is loaded.
    check: |params| limit(params).map(|_| None),
    qualifies: |_| true,
    run: HandlerRun::Pure(answer),
};

/// Maximum words of a reply if the recipe does not set it.
const WORDS: u64 = 400;
/// More words than any reply has.
const WORDS_MAX: u64 = 1_000_000;

fn limit(params: &HandlerParams) -> Result<u64, HandlerError> {
    Ok(params::integer(params, "words", WORDS_MAX)?.unwrap_or(WORDS))
}

fn answer(params: &HandlerParams, hook_context: &HookContext) -> Result<HookOutput, HandlerError> {
    let limit = limit(params)?;
    let round = hook_context.what.round().ok_or("there is no reply to count")?;
    let words = round.response.split_whitespace().count() as u64;
    let notice = (words > limit).then(|| format!("The reply has {words} words, {limit} were wanted."));
    Ok(HookOutput { notice, ..HookOutput::default() })
}
