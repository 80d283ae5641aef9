//! The conversation as passed to hooks: a list of messages with ids that their edits can refer to.

use serde_json::{Value, json};

use super::hook::Messages;
use super::output::Utterance;
use epitome_thread::{Origin, Part, Piece, Role, View};

/// Maximum bytes of content in one payload. A shell script should not have to parse 100 MB of JSON.
pub const MESSAGES_BYTES_MAX: usize = 8 << 20;

/// The messages of the view, oldest first, without thinking. If the contents exceed [`MESSAGES_BYTES_MAX`],
/// the oldest are truncated with a note.
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

/// One message before its conversion to JSON.
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
    let pieces = view.pieces().into_iter();
    pieces
        .map(|(at, piece)| {
            let (role, kind, content, call) = match piece {
                Piece::Said(_, Origin::Context { .. } | Origin::Instructions { .. }) => {
                    ("user", "context", piece.text(), None)
                }
                Piece::Said(
                    _,
                    Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. } | Origin::Hook { .. },
                ) => ("user", "text", piece.text(), None),
                Piece::Summary(_) => ("user", "compaction_summary", piece.text(), None),
                Piece::Reply(_) => ("assistant", "text", piece.text(), None),
                Piece::Call(call) => {
                    let content = format!("Using tool: {} with input: {}", call.name, call.input);
                    ("assistant", "tool_use", content, Some(&call.id))
                }
                // With role `assistant`, as in kodelet: scripts take messages with role `user` for the user's
                // own words.
                Piece::Outcome(outcome) => {
                    let content = format!("Tool result: {}", outcome.model_text());
                    ("assistant", "tool_result", content, Some(&outcome.call))
                }
            };
            One { at, role, content, kind, call: call.map(ToString::to_string) }
        })
        .collect()
}

/// Keeps the newest contents completely as far as they fit, then the beginning of one, and only a note of all
/// older ones.
fn cut(spoken: &mut [One], bytes_max: usize) {
    let mut left = bytes_max;
    for one in spoken.iter_mut().rev() {
        let size = one.content.len();
        if size <= left {
            left -= size;
            continue;
        }
        let end = one.content.floor_char_boundary(left);
        one.content.truncate(end);
        one.content.push_str(&format!("[cut here: {} of {size} bytes left out]", size - end));
        left = 0;
    }
}

/// The view as passed to callbacks: the same messages, without ids.
pub fn utterances(view: &View) -> Vec<Utterance> {
    let role = |one: &One| if one.role == "user" { Role::User } else { Role::Assistant };
    all(view).into_iter().map(|one| Utterance { role: role(&one), text: one.content }).collect()
}
