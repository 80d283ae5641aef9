//! The conversation as hooks are given it: a list of messages with ids that their edits can name.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::hook::Messages;
use crate::thread::{Change, Entry, Message, Origin, Part, Role, Seq, Spoken, View};

/// Bytes of content in one payload. A script that reads JSON in a shell is no place for 100 MB.
pub const MESSAGES_BYTES_MAX: usize = 8 << 20;

/// The view, oldest message first. Thinking is left out. Where the contents are more than
/// [`MESSAGES_BYTES_MAX`], the oldest are cut, and say so.
pub fn messages(view: &View, asked: Messages) -> Vec<Value> {
    let mut spoken = match asked {
        Messages::None => return Vec::new(),
        Messages::Full | Messages::Last(_) => all(view),
    };
    if let Messages::Last(count) = asked {
        spoken.drain(..spoken.len().saturating_sub(count));
    }
    cut(&mut spoken, MESSAGES_BYTES_MAX);
    spoken.into_iter().map(One::into_value).collect()
}

/// One message on its way to JSON.
struct One {
    at: Part,
    role: &'static str,
    content: String,
    kind: &'static str,
    call: Option<String>,
}

impl One {
    fn into_value(self) -> Value {
        let mut value = json!({
            "id": self.at.to_string(),
            "role": self.role,
            "content": self.content,
            "kind": self.kind,
        });
        if let Some(call) = self.call {
            value["tool_call_id"] = Value::from(call);
        }
        value
    }
}

fn all(view: &View) -> Vec<One> {
    let mut times: HashMap<Seq, u32> = HashMap::new();
    for entry in view.entries() {
        *times.entry(entry.seq).or_default() += 1;
    }
    let mut seen: HashMap<Seq, u32> = HashMap::new();
    let mut found = Vec::with_capacity(view.entries().len());
    for entry in view.entries() {
        // The messages of a history that a hook made share the number of its entry.
        let nth = seen.entry(entry.seq).or_default();
        *nth += 1;
        let part = (times[&entry.seq] > 1).then_some(*nth);
        push(&mut found, entry, Part { entry: entry.seq, part });
    }
    found
}

fn push(found: &mut Vec<One>, entry: &Entry, at: Part) {
    let said = |message: &Message, kind| One { at, role: "user", content: message.text(), kind, call: None };
    match &entry.change {
        Change::Said { message, origin } => {
            let kind = match origin {
                Origin::Context { .. } => "context",
                Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. } | Origin::Hook { .. } => "text",
            };
            found.push(said(message, kind));
        }
        Change::Compacted { summary, .. } => found.push(said(summary, "compaction_summary")),
        Change::Replied { message, .. } => {
            let content = message.text();
            if !content.trim().is_empty() {
                found.push(One { at, role: "assistant", content, kind: "text", call: None });
            }
            for (part, call) in (1..).zip(message.calls()) {
                found.push(One {
                    at: Part { entry: entry.seq, part: Some(part) },
                    role: "assistant",
                    content: format!("Using tool: {} with input: {}", call.name, call.input),
                    kind: "tool_use",
                    call: Some(call.id.to_string()),
                });
            }
        }
        Change::ToolFinished { outcome } => found.push(One {
            at,
            // As kodelet has it: scripts take the user's messages for what the person said.
            role: "assistant",
            content: format!("Tool result: {}", outcome.model_text()),
            kind: "tool_result",
            call: Some(outcome.call.to_string()),
        }),
        Change::Mutated { messages, .. } => {
            for (part, Spoken { role, message }) in (1..).zip(messages) {
                let role = match role {
                    Role::User | Role::System => "user",
                    Role::Assistant => "assistant",
                };
                let at = Part { entry: entry.seq, part: Some(part) };
                found.push(One { at, role, content: message.text(), kind: "text", call: None });
            }
        }
        Change::Opened { .. }
        | Change::Framed { .. }
        | Change::Queued { .. }
        | Change::Commanded { .. }
        | Change::Edited { .. }
        | Change::CallChanged { .. }
        | Change::Withheld { .. }
        | Change::Hooked { .. }
        | Change::GoalSet { .. }
        | Change::Undone { .. }
        | Change::Noted { .. }
        | Change::ModelChosen { .. }
        | Change::ModeChosen { .. }
        | Change::ThoughtChosen { .. }
        | Change::Titled { .. }
        | Change::Planned { .. }
        | Change::Allowed { .. }
        | Change::TurnEnded { .. } => {}
    }
}

/// Keeps the newest contents whole as far as they fit; of the first that does not its beginning; of the
/// older ones nothing but a note.
fn cut(spoken: &mut [One], bytes_max: usize) {
    let mut left = bytes_max;
    for one in spoken.iter_mut().rev() {
        let size = one.content.len();
        if size <= left {
            left -= size;
            continue;
        }
        let mut end = left;
        while !one.content.is_char_boundary(end) {
            end -= 1;
        }
        one.content.truncate(end);
        one.content.push_str(&format!("[cut here: {} of {size} bytes left out]", size - end));
        left = 0;
    }
}
