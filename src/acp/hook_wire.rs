//! Translates what hooks did to a conversation to wire updates. Pure.

use agent_client_protocol::v1::schema as wire;
use serde_json::{Value, json};
use wire::SessionUpdate;

use super::updates::agent_line;
use epitome_thread::{Change, Entry, Message, MessageId, describe, text};

/// A follow-up prompt by a hook, shown as a line of the agent, with the hook's name in `_meta` for programs.
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

/// Shows an entry by its one-line description.
pub(super) fn entry_line(entry: &Entry, updates: &mut Vec<SessionUpdate>) {
    if let Some(line) = describe(&entry.change).line {
        agent_line(&entry.seq.to_string(), line, updates);
    }
}

/// Whether the entry queues this prompt.
pub(super) fn is_queued(entry: &Entry, prompt: MessageId) -> bool {
    matches!(&entry.change, Change::Queued { message } if message.id == prompt)
}
