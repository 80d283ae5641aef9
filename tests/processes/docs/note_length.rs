//! `note_length`: notifies the user when a reply is longer than they want to read. Changes nothing.

use super::params::{self, BuiltIn, Params, Run};
use crate::event::HookEvent;
use crate::moment::Moment;
use crate::output::HookOutput;

pub const HANDLER: BuiltIn = BuiltIn {
    name: "note_length",
    events: &[HookEvent::TurnEnd],
    params: &["words"],
    // Reads the parameters as a run would: an error is reported when the recipe is loaded.
    check: |params| limit(params).map(|_| None),
    qualifies: |_| true,
    run: Run::Pure(answer),
};

/// Maximum words of a reply if the recipe does not set it.
const WORDS: u64 = 400;
/// More words than any reply has.
const WORDS_MAX: u64 = 1_000_000;

fn limit(params: &Params) -> Result<u64, String> {
    Ok(params::whole(params, "words", WORDS_MAX)?.unwrap_or(WORDS))
}

fn answer(params: &Params, moment: &Moment) -> Result<HookOutput, String> {
    let limit = limit(params)?;
    let round = moment.what.round().ok_or("there is no reply to count")?;
    let words = round.response.split_whitespace().count() as u64;
    let notice = (words > limit).then(|| format!("The reply has {words} words, {limit} were wanted."));
    Ok(HookOutput { notice, ..HookOutput::default() })
}
