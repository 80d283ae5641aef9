//! The conversation as passed to hooks: a list of messages with ids that their edits can refer to.

use serde::Serialize;
use serde_json::{Value, json};

use super::hook::PayloadMessages;
use super::output::Utterance;
use super::words;
use epitome_thread::{Origin, Role, ToolCall, ToolKind, View, ViewPart};

/// Maximum bytes of content in one payload. A shell script should not have to parse 100 MB of JSON.
pub const MESSAGES_BYTES_MAX: usize = 8 << 20;

/// The messages of the view, oldest first, without thinking. If the contents exceed [`MESSAGES_BYTES_MAX`],
/// the oldest are truncated with a note.
pub fn messages(view: &View, asked: PayloadMessages) -> Vec<Value> {
    let mut messages = all(view);
    match asked {
        PayloadMessages::None => messages.clear(),
        PayloadMessages::Last(count) => drop(messages.drain(..messages.len().saturating_sub(count))),
        PayloadMessages::Full => {}
    }
    cut(&mut messages, MESSAGES_BYTES_MAX);
    messages.iter().map(|message| json!(message)).collect()
}

/// A message in the form that hooks receive.
#[derive(Serialize)]
struct HookMessage {
    id: String,
    role: Role,
    content: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<String>,
}

fn all(view: &View) -> Vec<HookMessage> {
    let pieces = view.pieces().into_iter();
    pieces
        .map(|(at, piece)| {
            let (role, kind, content, call) = match piece {
                ViewPart::Said(_, Origin::Context { .. } | Origin::Instructions { .. }) => {
                    (Role::User, "context", piece.text(), None)
                }
                ViewPart::Said(..) => (Role::User, "text", piece.text(), None),
                ViewPart::Summary(_) => (Role::User, "compaction_summary", piece.text(), None),
                ViewPart::Reply(_) => (Role::Assistant, "text", piece.text(), None),
                ViewPart::Call(call) => {
                    let content = format!("Using tool: {} with input: {}", named(call), call.input);
                    (Role::Assistant, "tool_use", content, Some(&call.id))
                }
                // With role `assistant`, as in kodelet: scripts assume that messages with role `user` are written by
                // the user.
                ViewPart::Outcome(outcome) => {
                    let content = format!("Tool result: {}", outcome.model_text());
                    (Role::Assistant, "tool_result", content, Some(&outcome.call))
                }
            };
            let tool_call_id = call.map(ToString::to_string);
            HookMessage { id: at.to_string(), role, content, kind, tool_call_id }
        })
        .collect()
}

/// The name of a call's tool. Scripts look for kodelet's names in the text, so another tool that edits files has one of them
/// as well.
fn named(call: &ToolCall) -> String {
    match (call.card.kind, call.name.as_str()) {
        (ToolKind::Edit, name) if !matches!(name, "file_edit" | "file_write") => {
            format!("{name} (file_edit)")
        }
        (_, name) => name.to_owned(),
    }
}

/// Keeps as many of the newest contents as fit, then the beginning of one, and only a note for each older one.
fn cut(messages: &mut [HookMessage], bytes_max: usize) {
    let mut left = bytes_max;
    for message in messages.iter_mut().rev() {
        let size = message.content.len();
        if size <= left {
            left -= size;
            continue;
        }
        words::cut(&mut message.content, left);
        left = 0;
    }
}

/// The view as passed to callbacks: the same messages, without ids.
pub fn utterances(view: &View) -> Vec<Utterance> {
    let messages = all(view).into_iter();
    messages.map(|message| Utterance { role: message.role, text: message.content }).collect()
}
