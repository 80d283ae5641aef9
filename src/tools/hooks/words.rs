//! Short descriptions of hook requests, for the trail.

use serde_json::Value;

use super::output::HistoryAction;

/// `1 message`, `2 messages`.
pub fn messages(count: usize) -> String {
    format!("{count} {}", if count == 1 { "message" } else { "messages" })
}

/// `edit 1 entry`, `edit 2 entries`.
pub fn edits(count: usize) -> String {
    format!("edit {count} {}", if count == 1 { "entry" } else { "entries" })
}

/// `None` for no action.
pub fn action(action: &HistoryAction) -> Option<String> {
    match action {
        HistoryAction::None => None,
        HistoryAction::Mutate { messages, .. } => {
            Some(format!("mutate with {}", self::messages(messages.len())))
        }
        HistoryAction::Callback(callback) if callback.asynchronous => {
            Some(format!("callback {} in the background", callback.name))
        }
        HistoryAction::Callback(callback) => Some(format!("callback {}", callback.name)),
        HistoryAction::Swap { .. } => Some("swap the history for its summary".to_owned()),
        HistoryAction::Compact { .. } => Some("compact".to_owned()),
    }
}

/// A tool's metadata as text for the model.
pub fn metadata(metadata: &Value) -> String {
    let text = metadata.as_str().or_else(|| {
        let object = metadata.as_object()?;
        ["output", "text"].into_iter().find_map(|name| object.get(name)?.as_str())
    });
    text.map_or_else(|| metadata.to_string(), str::to_owned)
}

/// The text of a result that a hook has replaced by one without any.
pub const REPLACED: &str = "A hook has replaced this result and gave no text for it.";

/// Maximum bytes of the context that the hooks of one event add. It stays in the conversation, and that of a session's
/// start is part of every request.
pub const CONTEXT_BYTES_MAX: usize = 64 * 1024;

/// Cuts a text that is longer than this many bytes, with a note.
pub fn cut(text: &mut String, bytes_max: usize) {
    let size = text.len();
    if size > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        let left_out = size - text.len();
        text.push_str(&format!("[cut here: {left_out} of {size} bytes left out]"));
    }
}

/// A hook's note for the model, appended to the result of a call.
pub fn note(hook: &str, text: &str) -> String {
    format!("[Note by the hook {hook}: {text}]")
}
