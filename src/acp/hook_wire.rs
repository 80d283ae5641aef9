//! What hooks did to a conversation, in the words of the wire. Pure.

use agent_client_protocol::v1::schema as wire;
use serde_json::{Value, json};
use wire::SessionUpdate;

use super::updates::agent_line;
use epitome_thread::{Change, Entry, Message, MessageId, text};

/// What a hook asked the agent to do next, as it happens: a line of the agent's, and for programs whose
/// it is.
pub(super) fn follow_up(message: &Message, hook: &str, updates: &mut Vec<SessionUpdate>) {
    let first = updates.len();
    agent_line(&message.id.to_string(), text::follow_up(hook, message), updates);
    for update in &mut updates[first..] {
        let Value::Object(meta) = json!({ "epitome": { "hook": hook } }) else {
            unreachable!("the literal above is an object")
        };
        if let SessionUpdate::AgentMessageChunk(chunk) = update {
            chunk.meta = Some(meta);
        }
    }
}

/// An entry as the line that everybody is shown of it.
pub(super) fn entry_line(entry: &Entry, updates: &mut Vec<SessionUpdate>) {
    if let Some(line) = text::one_line(&entry.change) {
        agent_line(&entry.seq.to_string(), line, updates);
    }
}

/// Whether the entry is the wait of this prompt.
pub(super) fn is_queued(entry: &Entry, prompt: MessageId) -> bool {
    matches!(&entry.change, Change::Queued { message } if message.id == prompt)
}
