//! The Claude Agent SDK's record of a compaction, for clients that expect it on the wire or in an export. Pure.

use serde_json::{Value, json};

use super::{Change, Entry, Trigger};

/// Returns the record of a compaction, or `None` for any other entry.
pub fn boundary_of(session: &str, entry: &Entry) -> Option<Value> {
    let Change::Compacted { trigger, tokens_before, .. } = &entry.change else { return None };
    let trigger = match trigger {
        Trigger::Manual => "manual",
        Trigger::Overflow | Trigger::Threshold | Trigger::Hook | Trigger::Must => "auto",
    };
    Some(json!({
        "type": "system",
        "subtype": "compact_boundary",
        "compact_metadata": { "trigger": trigger, "pre_tokens": tokens_before },
        "uuid": entry.seq.uuid_in(session),
        "session_id": session,
    }))
}
