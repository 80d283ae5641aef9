//! The view as alternating turns, with the rules that every provider has: nothing empty, each call
//! answered right behind its message, neighbouring messages of the person as one. Knows no wire format.
//!
//! A view already pairs calls and outcomes; a log from elsewhere, or one with a fault, may not. What
//! is sent is right in either case, because one refused request would end the conversation.

use std::borrow::Cow;

use crate::thread::{Content, ToolCall, ToolOutcome, ViewItem};

/// What one side says before the other does.
#[derive(Debug)]
pub enum Turn<'a> {
    /// The answers to all calls of the message before, in their order, and then what the person says.
    /// Never empty; parts are text that isn't blank, images, documents, resources and links.
    User { answers: Vec<Answer<'a>>, parts: Vec<Cow<'a, Content>> },
    /// Replies, most often one; several stand behind one another where a model paused and went on. Each
    /// has text that isn't blank or calls, and thinking that its provider can take back, which may come
    /// last.
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

/// The turns of a view, beginning with the person's.
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
                    Some(Turn::Agent { .. }) | None => {
                        turns.push(Turn::User { answers: Vec::new(), parts: said });
                    }
                }
            }
            ViewItem::Agent(message, _) => {
                let parts = replied(&message.content);
                if parts.iter().all(|part| matches!(part, Content::Thinking { .. })) {
                    continue;
                }
                match turns.last_mut() {
                    Some(Turn::Agent { replies }) => replies.push(parts),
                    Some(Turn::User { .. }) => turns.push(Turn::Agent { replies: vec![parts] }),
                    None => {
                        turns.push(Turn::User { answers: Vec::new(), parts: vec![nothing_said()] });
                        turns.push(Turn::Agent { replies: vec![parts] });
                    }
                }
                let answers: Vec<Answer<'a>> =
                    message.calls().map(|call| Answer { call, outcome: None }).collect();
                if !answers.is_empty() {
                    turns.push(Turn::User { answers, parts: Vec::new() });
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
    turns
}

/// A reply without the thinking at its end: what thinking is for must follow it.
pub fn without_thinking_at_end<'a, 'b>(parts: &'b [&'a Content]) -> &'b [&'a Content] {
    let end = parts.iter().rposition(|part| !matches!(part, Content::Thinking { .. }));
    &parts[..end.map_or(0, |end| end + 1)]
}

/// A file's text, framed so that the model can tell it from what the person typed.
pub fn resource_text(uri: &str, text: &str) -> String {
    format!("<resource uri=\"{uri}\">\n{text}\n</resource>")
}

/// A line for something that the person named without sending it.
pub fn link_text(uri: &str, name: &str) -> String {
    format!("[{name}]({uri})")
}

/// A line for an image that the model can't be sent.
pub fn image_left_out(mime_type: &str) -> String {
    format!("(An image of type {mime_type} was attached here and left out: this model does not take it.)")
}

/// A line for a document that the model can't be sent.
pub fn document_left_out(mime_type: &str, name: Option<&str>) -> String {
    let named = name.map(|name| format!(" {name}")).unwrap_or_default();
    format!(
        "(The document{named} of type {mime_type} was attached here and left out: this model does not take it.)"
    )
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
/// goes with the first part of its own message that cannot be sent.
fn replied(content: &[Content]) -> Vec<&Content> {
    let mut nothing_lost = true;
    let keeps = |part: &&Content| {
        let keep = match part {
            Content::Text { text } => !text.trim().is_empty(),
            Content::Thinking { native, .. } => native.is_some() && nothing_lost,
            Content::Call(_) => true,
            Content::Image { .. }
            | Content::Document { .. }
            | Content::Resource { .. }
            | Content::ResourceLink { .. } => false,
        };
        nothing_lost &= keep;
        keep
    };
    content.iter().filter(keeps).collect()
}

fn nothing_said<'a>() -> Cow<'a, Content> {
    Cow::Owned(Content::Text { text: NOTHING_SAID.into() })
}
