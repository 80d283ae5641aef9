//! Results and errors of version 2. Pure. Those with the form of version 1 are built by `answers`.

use std::path::Path;

use agent_client_protocol::v1::schema::Error;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::answers;
use super::from_wire::ClientTraits;
use super::requests::RequestKind;
use super::v2;
use epitome_session::port::ForegroundNow;
use epitome_session::{CommandInfo, SessionAnswer, SessionNow, SessionOptions};
use epitome_thread::{MessageId, StopReason};

/// The client requested an unsupported version, or another one than before.
const UNSUPPORTED_VERSION: i32 = -32022;
const CANCELLED: i32 = -32800;
/// Epitome's error code: a hook kept the prompt out of the conversation. Outside the reserved ranges.
const REFUSED: i32 = -31003;

/// The agent's capabilities and authentication methods. `methods` are in the form of version 1.
pub fn initialize(
    mut methods: Vec<Value>,
    takes_audio: bool,
    traits: &ClientTraits,
) -> Result<Box<RawValue>, Error> {
    for fields in methods.iter_mut().filter_map(Value::as_object_mut) {
        let id = fields.remove("id").unwrap_or_default();
        fields.insert("methodId".to_owned(), id);
        fields.entry("type").or_insert_with(|| json!("agent"));
        // Variables have the same form as those of MCP servers.
        fields.remove("_meta");
    }
    let mut prompt = json!({ "image": {}, "embeddedContext": {}, "skill": {} });
    if takes_audio {
        prompt["audio"] = json!({});
    }
    let mut meta = json!({ "steering": { "supported": true } });
    if traits.reads_log {
        meta["epitome"] = json!({ "log": true });
    }
    answers::raw(&json!({
        "protocolVersion": 2,
        "info": answers::info(),
        "capabilities": { "session": {
            "prompt": prompt,
            "mcp": { "stdio": {}, "http": {}, "acp": {} },
            "delete": {},
            "additionalDirectories": {},
            "systemPrompt": { "mode": { "override": {} } },
            "fork": {},
            "archive": {},
            "status": {},
            "title": {},
            "options": {},
        }, "auth": { "status": {} }, "providers": {} },
        "authMethods": methods,
        "_meta": meta,
    }))
}

pub fn unsupported_version(requested: &Value) -> Error {
    Error::new(UNSUPPORTED_VERSION, "This connection speaks version 2 of the protocol")
        .data(json!({ "requested": requested, "supported": [1, 2] }))
}

/// The response to a prompt that was inserted as this message.
pub fn inserted(message: MessageId) -> Result<Box<RawValue>, Error> {
    answers::raw(&json!({ "messageId": message.to_string() }))
}

/// The result of a request, from the session's answer. `refused`: why a hook kept the prompt out of the conversation.
pub fn result(
    kind: RequestKind,
    answer: SessionAnswer,
    refused: Option<String>,
    traits: &ClientTraits,
) -> Result<Box<RawValue>, Error> {
    match (kind, answer) {
        (RequestKind::New, SessionAnswer::Attached { session, cwd, options, now }) => {
            let mut result = json!({ "sessionId": session.0, "configOptions": v2::config_options(&options) });
            add_commands(&mut result, now.as_deref(), traits);
            add_directory(&mut result, &cwd, traits);
            answers::raw(&result)
        }
        (RequestKind::Resume | RequestKind::Load, SessionAnswer::Attached { cwd, options, now, .. }) => {
            let mut result = json!({ "configOptions": v2::config_options(&options) });
            add_commands(&mut result, now.as_deref(), traits);
            add_directory(&mut result, &cwd, traits);
            answers::raw(&result)
        }
        (RequestKind::SetOption, SessionAnswer::Options(options)) => {
            answers::raw(&json!({ "configOptions": v2::config_options(&options) }))
        }
        (RequestKind::CancelOne, SessionAnswer::Accepted) => Ok(answers::empty()),
        // A prompt that ends without becoming a message.
        (RequestKind::Prompt, SessionAnswer::TurnEnded { reason: StopReason::Cancelled, .. })
        | (RequestKind::Prompt, SessionAnswer::Closed) => {
            Err(Error::new(CANCELLED, "The prompt was cancelled before it was inserted"))
        }
        (RequestKind::Prompt, SessionAnswer::TurnEnded { .. }) => {
            let sentence =
                refused.unwrap_or_else(|| "The prompt was kept out of the conversation".to_owned());
            Err(Error::new(REFUSED, sentence))
        }
        (kind, answer) => answers::result(kind, answer, traits),
    }
}

/// The options and commands of a session that is not open, or of a new one.
pub fn options(
    options: &SessionOptions,
    commands: &[CommandInfo],
    shows_skills: bool,
) -> Result<Box<RawValue>, Error> {
    answers::raw(&json!({
        "configOptions": v2::config_options(options),
        "availableCommands": v2::commands(commands, shows_skills),
    }))
}

/// The status of a session that is open.
pub fn open_status(now: ForegroundNow) -> Result<Box<RawValue>, Error> {
    let state = match now {
        ForegroundNow::Running => "running",
        ForegroundNow::RequiresAction => "requires_action",
        ForegroundNow::Idle => "idle",
    };
    answers::raw(&json!({ "status": "open", "state": { "state": state } }))
}

fn add_commands(result: &mut Value, now: Option<&SessionNow>, traits: &ClientTraits) {
    if let Some(now) = now {
        result["availableCommands"] = json!(v2::commands(&now.commands, traits.skills));
    }
}

/// The directory of a session's commands, for clients that read logs.
fn add_directory(result: &mut Value, cwd: &Path, traits: &ClientTraits) {
    if traits.reads_log {
        result["_meta"] = json!({ "epitome": { "cwd": cwd.to_string_lossy() } });
    }
}
