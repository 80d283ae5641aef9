//! Results and errors of version 2. Pure. Those with the form of version 1 are built by `answers`.

use std::path::Path;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::Error;
use agent_client_protocol::v2::schema as wire;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::answers::{self, LoginOffer};
use super::from_wire::ClientTraits;
use super::requests::RequestKind;
use super::updates::epitome_meta;
use super::{unpublished, v2};
use epitome_session_api::{CommandInfo, Foreground, SessionAnswer, SessionNow, SessionOptions};
use epitome_thread::{MessageId, StopReason};

/// The client requested an unsupported version, or another one than before.
const UNSUPPORTED_VERSION: i32 = -32022;
const CANCELLED: i32 = -32800;
/// Epitome's error code: a hook kept the prompt out of the conversation. Outside the reserved ranges.
const REFUSED: i32 = -31003;

/// The agent's capabilities and authentication methods.
pub fn initialize(
    offer: LoginOffer,
    takes_audio: bool,
    traits: &ClientTraits,
) -> Result<Box<RawValue>, Error> {
    let prompt = wire::PromptCapabilities::new()
        .image(wire::PromptImageCapabilities::new())
        .audio(takes_audio.then(wire::PromptAudioCapabilities::new))
        .embedded_context(wire::PromptEmbeddedContextCapabilities::new());
    let mcp = wire::McpCapabilities::new()
        .stdio(wire::McpStdioCapabilities::new())
        .http(wire::McpHttpCapabilities::new())
        .acp(wire::McpAcpCapabilities::new());
    let session = v2::session_capabilities().prompt(prompt).mcp(mcp);
    let capabilities = wire::AgentCapabilities::new()
        .session(session)
        .auth(wire::AgentAuthCapabilities::new().status(wire::AuthStatusCapabilities::new()))
        .providers(wire::ProvidersCapabilities::new());
    let mut meta = answers::agent_meta();
    if traits.reads_log {
        meta.extend(epitome_meta(json!({ "log": true })));
    }
    let info = wire::Implementation::new(answers::AGENT_NAME, answers::AGENT_VERSION);
    let response = wire::InitializeResponse::new(ProtocolVersion::V2, info.title(answers::AGENT_TITLE))
        .capabilities(capabilities)
        .auth_methods(v2::auth_methods(offer, |_| None))
        .meta(meta);
    unpublished::with_skill_capability(&response)
}

pub fn unsupported_version(requested: &Value) -> Error {
    let text = format!("Version {requested} of the protocol is not offered on this connection");
    Error::new(UNSUPPORTED_VERSION, text).data(json!({ "requested": requested, "supported": [1, 2] }))
}

/// The response to a prompt that was inserted as this message.
pub fn inserted(message: MessageId) -> Result<Box<RawValue>, Error> {
    answers::raw(&wire::PromptResponse::new(message.to_string()))
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
            let response = wire::NewSessionResponse::new(session.0).meta(directory(&cwd, traits));
            let shown = v2::config_options(&options, true);
            answers::raw(&response.config_options(shown).available_commands(commands(now.as_deref(), traits)))
        }
        (
            RequestKind::Resume | RequestKind::ResumeReplayed | RequestKind::Load,
            SessionAnswer::Attached { cwd, options, now, .. },
        ) => {
            let response = wire::ResumeSessionResponse::new().meta(directory(&cwd, traits));
            let shown = v2::config_options(&options, true);
            answers::raw(&response.config_options(shown).available_commands(commands(now.as_deref(), traits)))
        }
        (RequestKind::SetOption, SessionAnswer::Options(options)) => {
            answers::raw(&wire::SetSessionConfigOptionResponse::new(v2::config_options(&options, true)))
        }
        (RequestKind::CancelOne, SessionAnswer::Accepted) => Ok(answers::empty()),
        // A prompt that ends without becoming a message.
        (RequestKind::Prompt, SessionAnswer::TurnEnded { reason: StopReason::Cancelled, .. })
        | (RequestKind::Prompt, SessionAnswer::Closed) => {
            Err(Error::new(CANCELLED, "The prompt was cancelled before it was inserted"))
        }
        (RequestKind::Prompt, SessionAnswer::TurnEnded { .. }) => {
            let sentence = refused.unwrap_or_else(|| "A hook blocked the prompt".to_owned());
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
    let response = wire::SessionOptionsResponse::new().config_options(v2::config_options(options, true));
    answers::raw(&response.available_commands(v2::commands(commands, shows_skills)))
}

/// The status of a session that is open. It does not say what runs in the background.
pub fn open_status(now: &Foreground) -> Result<Box<RawValue>, Error> {
    let state = match now {
        Foreground::Running => wire::StateUpdate::Running(wire::RunningStateUpdate::new()),
        Foreground::RequiresAction => {
            wire::StateUpdate::RequiresAction(wire::RequiresActionStateUpdate::new())
        }
        Foreground::Idle(_) => wire::StateUpdate::Idle(wire::IdleStateUpdate::new()),
    };
    answers::raw(&wire::SessionStatusResponse::new(wire::SessionStatus::Open).state(state))
}

fn commands(now: Option<&SessionNow>, traits: &ClientTraits) -> Vec<wire::AvailableCommand> {
    now.map(|now| v2::commands(&now.commands, traits.skills)).unwrap_or_default()
}

/// The directory of a session's commands, for clients that read logs.
fn directory(cwd: &Path, traits: &ClientTraits) -> Option<wire::Meta> {
    traits.reads_log.then(|| epitome_meta(json!({ "cwd": cwd.to_string_lossy() })))
}
