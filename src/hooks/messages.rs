//! The conversation as hooks are given it: a list of messages with ids that their edits can name.

use serde_json::{Value, json};

use super::hook::Messages;
use super::output::Utterance;
use epitome_thread::{Origin, Part, Piece, Role, View};

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
                // As kodelet has it: scripts take the user's messages for what the person said.
                Piece::Outcome(outcome) => {
                    let content = format!("Tool result: {}", outcome.model_text());
                    ("assistant", "tool_result", content, Some(&outcome.call))
                }
            };
            One { at, role, content, kind, call: call.map(ToString::to_string) }
        })
        .collect()
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
        let end = one.content.floor_char_boundary(left);
        one.content.truncate(end);
        one.content.push_str(&format!("[cut here: {} of {size} bytes left out]", size - end));
        left = 0;
    }
}

/// The view as a callback is given it: the same messages, without ids.
pub fn utterances(view: &View) -> Vec<Utterance> {
    let role = |one: &One| if one.role == "user" { Role::User } else { Role::Assistant };
    all(view).into_iter().map(|one| Utterance { role: role(&one), text: one.content }).collect()
}
