//! The view as alternating turns, with the rules that every provider has: nothing empty, each call
//! answered right behind its message, neighbouring messages of the person as one. Knows no wire format.
//!
//! A view already pairs calls and outcomes; a log from elsewhere, or one with a fault, may not. What
//! is sent is right in either case, because one refused request would end the conversation.

use std::borrow::Cow;

use epitome_thread::{Content, Native, ToolCall, ToolOutcome, ViewItem};

/// What one side says before the other does.
#[derive(Debug)]
pub enum Turn<'a> {
    /// The answers to all calls of the message before, in their order, and then what the person says.
    /// Never empty; parts are text that isn't blank, images, documents, resources and links. In front of the
    /// first turn there may be what a provider has made of all before it; it takes the place of no part.
    User { compacted: Vec<&'a Native>, answers: Vec<Answer<'a>>, parts: Vec<Cow<'a, Content>> },
    /// Replies, most often one; several stand behind one another where a model paused and went on. Each
    /// has text that isn't blank or calls. Beside it there may be blank texts and thinking that its
    /// provider can take back, also at the end.
    Agent { replies: Vec<Vec<&'a Content>> },
}

/// The answer to one call.
#[derive(Debug)]
pub struct Answer<'a> {
    pub call: &'a ToolCall,
    /// `None` where the log has no outcome.
    pub outcome: Option<&'a ToolOutcome>,
}

/// What a call is answered with that has no outcome.
pub const NO_OUTCOME: &str = "The tool was interrupted; there is no result.";

/// What stands for an outcome without any text.
pub const NO_OUTPUT: &str = "(no output)";

/// What stands where a person's message has nothing that can be sent.
const NOTHING_SAID: &str = "(empty message)";

/// The turns of a view, beginning with the person's: at least one.
pub fn turns<'a>(items: &[ViewItem<'a>]) -> Vec<Turn<'a>> {
    let mut turns: Vec<Turn<'a>> = Vec::with_capacity(items.len() + 1);
    for item in items {
        match item {
            ViewItem::User(message) => {
                let mut said: Vec<Cow<'a, Content>> =
                    message.content.iter().filter(|part| can_be_said(part)).map(Cow::Borrowed).collect();
                if said.is_empty() {
                    said.push(nothing_said());
                }
                match turns.last_mut() {
                    Some(Turn::User { parts, .. }) => parts.append(&mut said),
                    Some(Turn::Agent { .. }) => turns.push(user(said)),
                    None => {
                        let compacted = message.content.iter().filter_map(native).collect();
                        turns.push(Turn::User { compacted, answers: Vec::new(), parts: said });
                    }
                }
            }
            ViewItem::Agent(message, _) => {
                let parts = replied(&message.content);
                if parts.iter().all(|part| matches!(part, Content::Thinking { .. }) || is_blank(part)) {
                    continue;
                }
                match turns.last_mut() {
                    Some(Turn::Agent { replies }) => replies.push(parts),
                    Some(Turn::User { .. }) => turns.push(Turn::Agent { replies: vec![parts] }),
                    None => {
                        turns.push(user(vec![nothing_said()]));
                        turns.push(Turn::Agent { replies: vec![parts] });
                    }
                }
                let answers: Vec<Answer<'a>> =
                    message.calls().map(|call| Answer { call, outcome: None }).collect();
                if !answers.is_empty() {
                    turns.push(Turn::User { compacted: Vec::new(), answers, parts: Vec::new() });
                }
            }
            ViewItem::Outcomes(outcomes) => {
                let Some(Turn::User { answers, .. }) = turns.last_mut() else { continue };
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
    // An undo may leave nothing at all; what is asked for then is still a request.
    if turns.is_empty() {
        turns.push(user(vec![nothing_said()]));
    }
    turns
}

/// A reply without the thinking at its end: what thinking is for must follow it.
pub fn without_thinking_at_end<'a, 'b>(parts: &'b [&'a Content]) -> &'b [&'a Content] {
    let end = parts.iter().rposition(|part| !matches!(part, Content::Thinking { .. }));
    &parts[..end.map_or(0, |end| end + 1)]
}

fn user<'a>(parts: Vec<Cow<'a, Content>>) -> Turn<'a> {
    Turn::User { compacted: Vec::new(), answers: Vec::new(), parts }
}

fn native(part: &Content) -> Option<&Native> {
    match part {
        Content::Thinking { native, .. } => native.as_ref(),
        Content::Text { .. }
        | Content::Image { .. }
        | Content::Document { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. }
        | Content::Call(_) => None,
    }
}

fn can_be_said(part: &Content) -> bool {
    match part {
        Content::Text { text } => !text.trim().is_empty(),
        Content::Image { .. }
        | Content::Document { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. } => true,
        Content::Thinking { .. } | Content::Call(_) => false,
    }
}

/// The parts of a reply that can be sent back. Signed thinking is bound to all before it, so that it
/// goes with the first part of its own message that is not there any more. A blank text is: what a format
/// that takes it gets back is what it gave.
fn replied(content: &[Content]) -> Vec<&Content> {
    keep_bound(content.iter(), |part| match part {
        Content::Text { text } => !text.is_empty(),
        Content::Thinking { native, .. } => native.is_some(),
        Content::Call(_) => true,
        Content::Image { .. }
        | Content::Document { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. } => false,
    })
}

/// A reply for a format that refuses blank texts.
pub fn without_blanks<'a>(parts: &[&'a Content]) -> Vec<&'a Content> {
    keep_bound(parts.iter().copied(), |part| !is_blank(part))
}

/// The parts that are to be kept, without the thinking behind the first of the others.
fn keep_bound<'a>(
    parts: impl Iterator<Item = &'a Content>,
    is_kept: impl Fn(&Content) -> bool,
) -> Vec<&'a Content> {
    let mut nothing_lost = true;
    let keeps = |part: &&Content| {
        let is_kept = is_kept(part);
        let is_bound = matches!(part, Content::Thinking { .. });
        let keeps = is_kept && (nothing_lost || !is_bound);
        nothing_lost &= keeps;
        keeps
    };
    parts.filter(keeps).collect()
}

fn is_blank(part: &Content) -> bool {
    matches!(part, Content::Text { text } if text.trim().is_empty())
}

fn nothing_said<'a>() -> Cow<'a, Content> {
    Cow::Owned(Content::Text { text: NOTHING_SAID.into() })
}
