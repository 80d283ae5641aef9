//! `swap_context`: the reply replaces the history, as its summary.
//!
//! Removes the tags of `strip_tags` with their content and leaves the rest unchanged: the session extracts
//! the summary from the reply, in the same way for all summaries.

use super::HandlerError;
use super::{BuiltInHandler, Handler, HandlerRun, has_final_text, params};
use crate::event::HookEvent;
use crate::hook_context::{EventData, HookContext};
use crate::output::{HistoryAction, HistoryTail, HookOutput};

pub const HANDLER: BuiltInHandler = BuiltInHandler {
    name: "swap_context",
    events: &[HookEvent::TurnEnd],
    params: &["preserve_system_prompt", "max_summary_tokens", "strip_tags", "preserve_recent"],
    check,
    qualifies: has_final_text,
    run: HandlerRun::Pure(answer),
};

/// Default limit of a summary in tokens.
const SUMMARY_TOKENS: u64 = 4096;
/// More tokens than any model writes in one reply.
const SUMMARY_TOKENS_MAX: u64 = 1_000_000;
/// More messages than any view has.
const RECENT_MAX: u64 = 100_000;

/// Maximum tokens of the reply that becomes the summary; the session limits the model call to it.
pub fn max_summary_tokens(handler: &Handler) -> u64 {
    let given = params::integer(&handler.params, "max_summary_tokens", SUMMARY_TOKENS_MAX);
    given.ok().flatten().filter(|tokens| *tokens > 0).unwrap_or(SUMMARY_TOKENS)
}

fn check(params: &super::HandlerParams) -> Result<Option<String>, HandlerError> {
    read(params)?;
    let keeps = params::truth(params, "preserve_system_prompt")?.unwrap_or(true);
    Ok((!keeps).then(|| "\"preserve_system_prompt\" is always true: a swap never loses it".to_owned()))
}

fn answer(params: &super::HandlerParams, hook_context: &HookContext) -> Result<HookOutput, HandlerError> {
    let (strip_tags, preserve_recent) = read(params)?;
    let EventData::TurnEnd(round) = &hook_context.what else {
        return Err(HandlerError::new("there is no reply to swap in"));
    };
    let summary = strip_tags.iter().fold(round.response.clone(), |text, tag| without(&text, tag));
    let summary = summary.trim();
    if summary.is_empty() {
        return Err(HandlerError::new("the reply has no text to continue with; the history stays as it is"));
    }
    let keep = match preserve_recent {
        0 => HistoryTail::Nothing,
        count => HistoryTail::Messages(count),
    };
    let action = HistoryAction::Swap { summary: summary.to_owned(), keep };
    Ok(HookOutput { action, ..HookOutput::default() })
}

/// The tags to strip, and the number of the newest messages that stay.
fn read(params: &super::HandlerParams) -> Result<(Vec<&str>, usize), HandlerError> {
    if params::integer(params, "max_summary_tokens", SUMMARY_TOKENS_MAX)? == Some(0) {
        return Err(HandlerError::new("\"max_summary_tokens\" must be above 0"));
    }
    let strip_tags = params::list(params, "strip_tags")?.unwrap_or_else(|| vec!["analysis"]);
    let recent = params::integer(params, "preserve_recent", RECENT_MAX)?.unwrap_or(0);
    Ok((strip_tags, usize::try_from(recent).unwrap_or(usize::MAX)))
}

/// Removes `<tag>…</tag>` sections. An unclosed tag stays: the text after it may be the summary.
fn without(text: &str, tag: &str) -> String {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, inside)) = rest.split_once(&open) {
        let Some((_, after)) = inside.split_once(&close) else { break };
        kept.push_str(before);
        rest = after;
    }
    kept + rest
}
