//! Shapes that are newer than the published schema crate (1.15.1), written by hand. A newer crate replaces this file.
//!
//! Sources: the documentation of schema 1.17 to 1.21 and the protocol's RFDs on session options, session cursors and
//! subagent sessions (which became stable on 2026-11-20, with the `session` content of a call).

use serde_json::{Value, json};

use super::from_wire::{BadParams, RequestParams};
use epitome_thread::{PartId, Seq, SessionId};

/// Adds the capabilities that the crate does not have. Session cursors have none: the client asks for them.
pub fn advertise(agent_capabilities: &mut Value) {
    agent_capabilities["sessionCapabilities"]["options"] = json!({});
}

/// `configOptions` of a request that opens a session: ids and values of options to start with. An option that is
/// malformed is left out, since unknown ones and values that can't be chosen are ignored too; only an unknown `type` is
/// an error.
pub fn initial_options(params: &RequestParams<'_>) -> Result<Vec<(String, String)>, BadParams> {
    let given: Vec<Value> = params.list("configOptions")?;
    let mut options = Vec::with_capacity(given.len());
    for (at, option) in given.iter().enumerate() {
        match option.get("type") {
            None => {}
            Some(Value::String(kind)) if matches!(kind.as_str(), "id" | "boolean") => {}
            Some(_) => {
                return Err(BadParams(format!("`configOptions[{at}].type` is none that this agent knows")));
            }
        }
        // All our options are selects, so a boolean has the wrong type.
        if let (Some(id), Some(value)) = (option["configId"].as_str(), option["value"].as_str()) {
            options.push((id.to_owned(), value.to_owned()));
        }
    }
    Ok(options)
}

/// `cursorId` of `session/fork`: the entry up to which the fork goes.
pub fn fork_cursor(params: &RequestParams<'_>) -> Result<Option<Seq>, BadParams> {
    let Some(cursor) = params.optional::<String>("cursorId")? else { return Ok(None) };
    let part = cursor.parse::<PartId>().ok().filter(|part| part.part.is_none());
    let unknown = || BadParams("`cursorId` was not issued by this agent".to_owned());
    Ok(Some(part.ok_or_else(unknown)?.entry))
}

/// The message after which a cursor is placed.
pub enum CursorAnchor {
    UserMessage(String),
    AgentMessage(String),
}

/// The params of the update that announces a cursor: a position in the conversation where a fork can begin. Its id is
/// that of the last entry that the fork takes over.
pub fn cursor_update(session: &SessionId, entry: Seq, anchor: &CursorAnchor) -> Value {
    let (kind, message) = match anchor {
        CursorAnchor::UserMessage(message) => ("user_message", message),
        CursorAnchor::AgentMessage(message) => ("agent_message", message),
    };
    json!({
        "sessionId": session.0,
        "update": {
            "sessionUpdate": "cursor_update",
            "cursorId": entry.to_string(),
            "anchor": { "type": kind, "messageId": message, "position": "after" },
            "capabilities": { "fork": {} },
        },
    })
}

/// The content of a call that links to the subagent it started.
pub fn session_content(child: &SessionId) -> Value {
    json!({ "type": "session", "sessionId": child.0 })
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn with<T>(json: &str, read: impl FnOnce(&RequestParams<'_>) -> T) -> T {
        let raw: &RawValue = serde_json::from_str(json).expect("JSON");
        read(&RequestParams::read(Some(raw)).expect("an object"))
    }

    #[test]
    fn only_an_unknown_type_of_an_initial_option_is_an_error() {
        let json = r#"{"configOptions":[
            {"configId":"mode","value":"allow"},
            {"configId":"thought_level","type":"id","value":"high"},
            {"configId":"web","type":"boolean","value":true},
            {"configId":7,"value":"x"},
            "nonsense"]}"#;
        let options = with(json, initial_options).expect("nothing in it is refused");
        let text = |(id, value): &(String, String)| format!("{id}={value}");
        assert_eq!(options.iter().map(text).collect::<Vec<_>>(), ["mode=allow", "thought_level=high"]);
        assert_eq!(with("{}", initial_options), Ok(Vec::new()));
        let unknown = r#"{"configOptions":[{"configId":"mode","type":"slider","value":3}]}"#;
        assert!(with(unknown, initial_options).is_err());
    }

    #[test]
    fn a_cursor_is_an_entry() {
        assert_eq!(with(r#"{"cursorId":"e12"}"#, fork_cursor), Ok(Some(Seq(12))));
        assert_eq!(with("{}", fork_cursor), Ok(None));
        for bad in ["\"12\"", "\"e12.1\"", "\"\"", "12"] {
            assert!(with(&format!(r#"{{"cursorId":{bad}}}"#), fork_cursor).is_err(), "{bad}");
        }
    }
}
