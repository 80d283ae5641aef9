//! Converts a view to alternating turns that satisfy the rules common to all providers: nothing empty, results directly
//! after the message with their calls, adjacent user messages merged. Independent of wire formats.
//!
//! Views normally pair calls and outcomes, but an imported or faulty log may not. The request is valid in either case,
//! because a single rejected request would make the conversation unusable.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};

use crate::model_endpoint::Endpoint;
use epitome_config::WireFormat;
use epitome_thread::{Content, Native, ToolCall, ToolOutcome, ViewItem};

/// Consecutive messages of one side.
#[derive(Debug)]
pub enum WireTurn<'a> {
    /// The answers to all calls of the preceding message, in order, followed by the user's parts. Never empty. Parts
    /// are non-blank text, images, documents, resources and links. The first turn may also contain providers'
    /// compactions of everything before it; they don't replace any part. `summary` of the parts, the first ones, are the
    /// message of a compaction.
    User {
        compacted: Vec<&'a Native>,
        answers: Vec<CallAnswer<'a>>,
        parts: Vec<Cow<'a, Content>>,
        summary: usize,
    },
    /// Replies: usually one, several if a model paused and continued. Each has non-blank text or calls. It may also
    /// contain blank texts and thinking that its provider accepts back, even at the end.
    Agent { replies: Vec<Vec<&'a Content>> },
}

/// The answer to one call.
#[derive(Debug)]
pub struct CallAnswer<'a> {
    pub call: &'a ToolCall,
    /// `None` if the log contains no outcome.
    pub outcome: Option<&'a ToolOutcome>,
}

/// The answer to a call without an outcome.
pub const NO_OUTCOME: &str = "The tool was interrupted; there is no result.";

/// The text that replaces an outcome without content.
pub const NO_OUTPUT: &str = "(no output)";

/// Maximum characters of a tool's name that all services accept.
const CALL_NAME_CHARS_MAX: usize = 64;

/// The name of a call in a form that all services accept. Imported conversations may contain calls of tools with other
/// names, and a model may call a tool that doesn't exist.
pub fn call_name(name: &str) -> Cow<'_, str> {
    match name {
        "" => "unnamed".into(),
        _ if is_accepted_name(name) => name.into(),
        _ => name.chars().take(CALL_NAME_CHARS_MAX).map(|c| if is_accepted(c) { c } else { '_' }).collect(),
    }
}

/// The id of a call in a form that the service accepts. Models expect their own ids, so that others are replaced only if
/// they must, by a digest.
pub fn call_id<'a>(endpoint: &Endpoint, id: &'a str) -> Cow<'a, str> {
    let (symbols, chars): (&str, _) = match endpoint.wire {
        _ if endpoint.quirks.short_call_ids => ("", SHORT_ID..=SHORT_ID),
        WireFormat::AnthropicMessages => ("_-", 1..=64),
        WireFormat::OpenAiResponses => ("_-.:/", 1..=64),
        WireFormat::OpenAiChat if endpoint.own_api => ("_-.:/", 1..=40),
        WireFormat::OpenAiChat | WireFormat::Gemini => return id.into(),
    };
    let is_accepted = |c: char| c.is_ascii_alphanumeric() || symbols.contains(c);
    if chars.contains(&id.len()) && id.chars().all(is_accepted) {
        return id.into();
    }
    let digits = Sha256::digest(id);
    let letters = digits.iter().take((*chars.end()).min(DIGEST_ID));
    letters.map(|byte| char::from(b"0123456789abcdefghijklmnopqrstuvwxyz"[usize::from(byte % 36)])).collect()
}

/// Characters of an id, where a service wants exactly as many.
const SHORT_ID: usize = 9;

/// Characters of other ids that replace one.
const DIGEST_ID: usize = 24;

/// Whether all services accept this name of a tool.
pub fn is_accepted_name(name: &str) -> bool {
    (1..=CALL_NAME_CHARS_MAX).contains(&name.len()) && name.chars().all(is_accepted)
}

fn is_accepted(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// The text that replaces a user message without sendable content.
const EMPTY_MESSAGE: &str = "(empty message)";

/// Returns the turns of a view, at least one, starting with the user's, and for each the index of the item that begins it.
/// Turns that precede an agent's turn affect neither it nor those after it.
pub fn turns<'a>(items: &[ViewItem<'a>]) -> (Vec<WireTurn<'a>>, Vec<usize>) {
    let mut turns: Vec<WireTurn<'a>> = Vec::with_capacity(items.len() + 1);
    let mut begin: Vec<usize> = Vec::with_capacity(items.len() + 1);
    for (at, item) in items.iter().enumerate() {
        begin.resize(turns.len(), at.saturating_sub(1));
        match item {
            ViewItem::User(message) | ViewItem::Summary(message) => {
                let mut sent: Vec<Cow<'a, Content>> =
                    message.content.iter().filter(|part| is_sendable(part)).map(Cow::Borrowed).collect();
                if sent.is_empty() {
                    sent.push(empty_text());
                }
                drop_open_searches(&mut turns);
                match turns.last_mut() {
                    Some(WireTurn::User { parts, .. }) => parts.append(&mut sent),
                    Some(WireTurn::Agent { .. }) => turns.push(user(sent)),
                    None => {
                        let compacted = message.content.iter().filter_map(native).collect();
                        let summary = if let ViewItem::Summary(_) = item { sent.len() } else { 0 };
                        turns.push(WireTurn::User { compacted, answers: Vec::new(), parts: sent, summary });
                    }
                }
            }
            ViewItem::Agent(message, _) => {
                let parts = replied(&message.content);
                if parts.iter().all(|part| matches!(part, Content::Thinking { .. }) || is_blank(part)) {
                    continue;
                }
                match turns.last_mut() {
                    Some(WireTurn::Agent { replies }) => replies.push(parts),
                    Some(WireTurn::User { .. }) => turns.push(WireTurn::Agent { replies: vec![parts] }),
                    None => {
                        turns.push(user(vec![empty_text()]));
                        turns.push(WireTurn::Agent { replies: vec![parts] });
                    }
                }
                let answers: Vec<CallAnswer<'a>> =
                    message.calls().map(|call| CallAnswer { call, outcome: None }).collect();
                if !answers.is_empty() {
                    turns.push(WireTurn::User {
                        compacted: Vec::new(),
                        answers,
                        parts: Vec::new(),
                        summary: 0,
                    });
                }
            }
            ViewItem::Outcomes(outcomes) => {
                let Some(WireTurn::User { answers, .. }) = turns.last_mut() else { continue };
                for outcome in outcomes {
                    let open = answers
                        .iter_mut()
                        .find(|open| open.outcome.is_none() && open.call.id == outcome.call);
                    if let Some(open) = open {
                        open.outcome = Some(outcome);
                    }
                }
            }
        }
    }
    // An undo may leave an empty view; the request must still be valid.
    if turns.is_empty() {
        turns.push(user(vec![empty_text()]));
    }
    begin.resize(turns.len(), items.len().saturating_sub(1));
    (turns, begin)
}

/// Removes searches without a result from the end of the last reply: the model only continues them if nothing follows.
fn drop_open_searches(turns: &mut Vec<WireTurn<'_>>) {
    let Some(WireTurn::Agent { replies }) = turns.last_mut() else { return };
    let Some(parts) = replies.last_mut() else { return };
    let is_open = |part: &&Content| matches!(part, Content::Search(search) if search.is_open);
    if !parts.last().is_some_and(is_open) {
        return;
    }
    while parts.pop_if(|part| is_open(part) || matches!(part, Content::Thinking { .. })).is_some() {}
    if parts.is_empty() {
        replies.pop();
    }
    if replies.is_empty() {
        turns.pop();
    }
}

/// A reply without trailing thinking, which must be followed by the content for which it was generated.
pub fn without_thinking_at_end<'a, 'b>(parts: &'b [&'a Content]) -> &'b [&'a Content] {
    let end = parts.iter().rposition(|part| !matches!(part, Content::Thinking { .. }));
    &parts[..end.map_or(0, |end| end + 1)]
}

fn user<'a>(parts: Vec<Cow<'a, Content>>) -> WireTurn<'a> {
    WireTurn::User { compacted: Vec::new(), answers: Vec::new(), parts, summary: 0 }
}

/// Splits the text of a compaction's message off a turn of the user, if the settings want it as a system message. Files in
/// it stay: a system message has none.
pub fn split_summary<'b, 'a>(
    endpoint: &Endpoint,
    parts: &'b [Cow<'a, Content>],
    summary: usize,
) -> (Option<String>, impl Iterator<Item = &'b Cow<'a, Content>>) {
    let summary = if endpoint.summary_as_system { summary } else { 0 };
    let texts: Vec<&str> = parts[..summary].iter().filter_map(|part| part.as_text()).collect();
    let text = (!texts.is_empty()).then(|| texts.join("\n\n"));
    let rest = parts.iter().enumerate();
    let rest = rest.filter(move |(at, part)| *at >= summary || part.as_text().is_none());
    (text, rest.map(|(_, part)| part))
}

fn native(part: &Content) -> Option<&Native> {
    let Content::Thinking { native, .. } = part else { return None };
    native.as_ref()
}

fn is_sendable(part: &Content) -> bool {
    part.is_attachment() || part.as_text().is_some_and(|text| !text.trim().is_empty())
}

/// The parts of a reply that can be sent back. Signed thinking is bound to everything before it, so it is dropped after
/// the first part of its message that is missing. Blank texts are kept: formats that accept them get back exactly what
/// they generated.
fn replied(content: &[Content]) -> Vec<&Content> {
    keep_bound(content.iter(), |part| match part {
        Content::Text { text } => !text.is_empty(),
        Content::Thinking { native, .. } => native.is_some(),
        Content::Call(_) | Content::Search(_) => true,
        Content::Image { .. }
        | Content::Document { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. } => false,
    })
}

/// A reply for a format that rejects blank texts.
pub fn without_blanks<'a>(parts: &[&'a Content]) -> Vec<&'a Content> {
    keep_bound(parts.iter().copied(), |part| !is_blank(part))
}

/// The parts for which `is_kept` is true, without thinking that follows the first dropped part.
fn keep_bound<'a>(
    parts: impl Iterator<Item = &'a Content>,
    is_kept: impl Fn(&Content) -> bool,
) -> Vec<&'a Content> {
    let mut nothing_lost = true;
    let keeps = |part: &&Content| {
        let is_kept = is_kept(part);
        let is_bound = matches!(part, Content::Thinking { .. });
        let keeps = is_kept && (nothing_lost || !is_bound);
        // No reasoning depends on blank text, which services write and refuse.
        nothing_lost &= keeps || is_blank(part);
        keeps
    };
    parts.filter(keeps).collect()
}

fn is_blank(part: &Content) -> bool {
    matches!(part, Content::Text { text } if text.trim().is_empty())
}

fn empty_text<'a>() -> Cow<'a, Content> {
    Cow::Owned(Content::Text { text: EMPTY_MESSAGE.into() })
}
