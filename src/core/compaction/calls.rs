//! Tool calls of a conversation by the meaning that they have for a compaction. Pure.

use std::collections::{HashMap, HashSet};

use epitome_thread::{Entries, OutcomeContent, OutcomeStatus, REFUSED_BECAUSE, ToolOutcome};

/// The tool that reads entries that are no longer in the view.
pub(super) const RECALL: &str = epitome_recall::NAME;

/// Claude Code's result for a call that the user refused, and the text in it that precedes the user's message.
const REFUSED: &str = "The user doesn't want to proceed with this tool use.";
const REFUSED_WITH: &str = "the user said:\n";

/// Tools whose result is the user's answer to a question: Epitome's, and those of agents whose sessions are imported.
const QUESTION_TOOLS: [&str; 4] =
    ["ask_user", "AskUserQuestion", "ask_followup_question", "request_user_input"];

/// The ids of the calls in these entries that asked the user something.
pub(super) fn asked<'a>(entries: impl Into<Entries<'a>>) -> HashSet<&'a str> {
    tools(entries).into_iter().filter(|(_, tool)| is_question(tool)).map(|(call, _)| call).collect()
}

/// The tool name of each call in these entries, by call id.
pub(super) fn tools<'a>(entries: impl Into<Entries<'a>>) -> HashMap<&'a str, &'a str> {
    let calls = entries.into().flat_map(|entry| entry.change.calls());
    calls.map(|call| (call.id.0.as_str(), call.name.as_str())).collect()
}

/// The user's message in a tool result: given when refusing a call, or as the answer to a question.
///
/// `is_asked`: whether the call asked the user something ([`is_question`]).
pub(super) fn user_reply(is_asked: bool, outcome: &ToolOutcome) -> Option<(&'static str, &str)> {
    let text = first_text(outcome)?;
    let reply = if is_refusal(outcome) {
        let foreign = || text.split_once(REFUSED_WITH).map(|(_, reason)| reason);
        ("refusing a call", text.strip_prefix(REFUSED_BECAUSE).or_else(foreign)?)
    } else if is_asked && outcome.status == OutcomeStatus::Completed {
        ("answering a question", text)
    } else {
        return None;
    };
    (!reply.1.trim().is_empty()).then_some(reply)
}

/// Whether a tool asks the user something.
fn is_question(tool: &str) -> bool {
    QUESTION_TOOLS.contains(&tool)
}

/// Whether the user refused a call.
pub(super) fn is_refusal(outcome: &ToolOutcome) -> bool {
    outcome.status == OutcomeStatus::Denied
        || first_text(outcome).is_some_and(|text| text.starts_with(REFUSED))
}

/// The first text of a result.
pub(super) fn first_text(outcome: &ToolOutcome) -> Option<&str> {
    outcome.content.iter().find_map(OutcomeContent::as_text)
}
