//! The skills that the agent has read. Their instructions leave the view with the results of the calls.

use std::collections::HashSet;

use super::Render;
use super::files::joined;
use super::history::{CallRecord, CallStatus, ConversationHistory};
use super::quote::noted;

/// The inputs that name the skill: ours, and those of Claude Code, the older one last.
const NAME_INPUTS: [&str; 3] = ["name", "skill", "command"];

pub(super) fn read<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let mut seen = HashSet::new();
    let is_read = |call: &&CallRecord<'_>| {
        call.name.eq_ignore_ascii_case("skill") && call.status == CallStatus::Succeeded
    };
    let named = history.calls.iter().rev().filter(is_read).filter_map(|call| {
        let name = call.input_text(&NAME_INPUTS).filter(|name| seen.insert((*name).to_owned()))?;
        call.has_left.then(|| format!("{name}{}", noted([history.place("", call.entry)])))
    });
    let names: Vec<String> = named.collect();
    Box::new(move |bytes_max| joined(&names, bytes_max))
}
