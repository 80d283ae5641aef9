//! Tool calls of a conversation by the meaning that they have for a compaction. Pure.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use epitome_thread::{Entries, OutcomeContent, OutcomeStatus, REFUSED_BECAUSE, ToolOutcome};

/// The tool that reads entries that are no longer in the view.
pub(super) const RECALL: &str = epitome_recall::NAME;

/// Claude Code's result for a call that the user refused, and the text in it that precedes the user's message.
const REFUSED: &str = "The user doesn't want to proceed with this tool use.";
const REFUSED_WITH: &str = "the user said:\n";

/// Tools whose result is the user's answer to a question, in lower case without punctuation: Epitome's, and those of agents
/// whose sessions are imported.
const QUESTION_TOOLS: [&str; 7] = [
    "askuser",
    "askquestions",
    "askuserquestion",
    "askfollowupquestion",
    "askquestion",
    "question",
    "requestuserinput",
];

/// The beginnings of the text around the answers in the results of Claude Code and opencode, and its end.
const ANSWERED: [&str; 2] = ["User has answered your questions: ", "Your questions have been answered: "];
const GO_ON: &str = ". You can now continue with ";

/// Claude Code's result for a question that the user left unanswered.
const UNANSWERED: &str = "No response after ";

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
pub(super) fn user_reply(is_asked: bool, outcome: &ToolOutcome) -> Option<(&'static str, Cow<'_, str>)> {
    let text = text_of(outcome);
    let reply = if is_refusal(outcome) {
        let foreign = || text.split_once(REFUSED_WITH).map(|(_, reason)| reason);
        let reason = text.strip_prefix(REFUSED_BECAUSE).or_else(foreign)?.to_owned();
        ("refusing a call", Cow::Owned(reason))
    } else if is_asked && outcome.status == OutcomeStatus::Completed && !text.starts_with(UNANSWERED) {
        let answers = ANSWERED.iter().find_map(|begin| text.strip_prefix(begin)?.rsplit_once(GO_ON));
        ("answering a question", answers.map_or(text.clone(), |(answers, _)| Cow::Owned(answers.to_owned())))
    } else {
        return None;
    };
    (!reply.1.trim().is_empty()).then_some(reply)
}

/// Whether a tool asks the user something.
pub(super) fn is_question(tool: &str) -> bool {
    // The name of an MCP server may precede it.
    let tool = tool.rsplit("__").next().unwrap_or(tool);
    let name = tool.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    QUESTION_TOOLS.contains(&name.as_str())
}

/// Whether the user refused a call.
pub(super) fn is_refusal(outcome: &ToolOutcome) -> bool {
    let first = || outcome.content.iter().find_map(OutcomeContent::as_text);
    outcome.status == OutcomeStatus::Denied || first().is_some_and(|text| text.starts_with(REFUSED))
}

/// All text of a result.
pub(super) fn text_of(outcome: &ToolOutcome) -> Cow<'_, str> {
    let mut texts = outcome.content.iter().filter_map(OutcomeContent::as_text);
    match (texts.next(), texts.next()) {
        (first, None) => Cow::Borrowed(first.unwrap_or_default()),
        _ => Cow::Owned(outcome.model_text()),
    }
}
