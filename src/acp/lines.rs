//! What the lines of both versions have in common. Pure.

use agent_client_protocol::v1::schema as wire;
use serde::Serialize;
use serde_json::{Value, json};
use wire::SessionUpdate;

use super::model::{AcpVersion, CallContent, CallUpdate, FileDiff, TextUpdate, Update};
use super::{v1, v2};
use epitome_session::TextKind;
use epitome_thread::Location;

/// An update as it is written.
#[expect(clippy::large_enum_variant, reason = "it is moved once, and a box would be one more allocation")]
#[derive(Serialize)]
#[serde(untagged)]
pub enum UpdateLine {
    /// A piece of a message, whose form is the same in both versions.
    Chunk(SessionUpdate),
    Json(Value),
}

/// Passes the lines of an update to `send`. What the version can't express is left out.
pub fn project(version: AcpVersion, update: Update, send: &mut dyn FnMut(UpdateLine)) {
    match version {
        AcpVersion::V1 => v1::project(update, send),
        AcpVersion::V2 => v2::project(update, send),
    }
}

/// A piece of the agent's text.
pub fn chunk(TextUpdate { kind, id, text, piece: _, meta }: TextUpdate) -> UpdateLine {
    let chunk = wire::ContentChunk::new(wire::ContentBlock::from(text)).message_id(id).meta(meta);
    UpdateLine::Chunk(match kind {
        TextKind::Reply => SessionUpdate::AgentMessageChunk(chunk),
        TextKind::Thinking => SessionUpdate::AgentThoughtChunk(chunk),
    })
}

/// Adds the fields of a call. `diff` writes a change of a file.
pub fn add_call(update: &mut Value, call: CallUpdate, diff: fn(FileDiff) -> Value) {
    let CallUpdate { id, name, title, kind, status, content, locations, raw_input, raw_output, .. } = call;
    let part = |part| match part {
        CallContent::Text(text) => object([("type", json!("content")), ("content", text_block(text))]),
        CallContent::Image { mime_type, data } => {
            let image = [("type", json!("image")), ("data", data.into()), ("mimeType", mime_type.into())];
            object([("type", json!("content")), ("content", object(image))])
        }
        CallContent::Diff(change) => diff(change),
        CallContent::Terminal => json!({ "type": "terminal", "terminalId": id }),
    };
    let fields = [
        ("name", name.map(Value::from)),
        ("title", title.map(Value::from)),
        ("kind", kind.map(|kind| json!(kind))),
        ("status", status.map(|status| json!(status))),
        ("content", content.map(|parts| parts.into_iter().map(part).collect())),
        ("locations", locations.map(|locations| locations.iter().map(location).collect())),
        ("rawInput", raw_input),
        ("rawOutput", raw_output),
    ];
    update["toolCallId"] = json!(id);
    for (field, value) in fields {
        if let Some(value) = value {
            update[field] = value;
        }
    }
}

/// A block of text.
pub fn text_block(text: impl Into<String>) -> Value {
    object([("type", json!("text")), ("text", Value::String(text.into()))])
}

/// An object of these values. They are moved, while `json!` copies them; some are megabytes.
pub fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::from_iter(fields)
}

fn location(location: &Location) -> Value {
    let mut place = json!({ "path": location.path.to_string_lossy() });
    if let Some(line) = location.line.filter(|line| *line > 0) {
        place["line"] = json!(line);
    }
    place
}
