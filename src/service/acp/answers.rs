//! Translates results, errors and options to wire types. Pure.

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema as wire;
pub use agent_client_protocol::v1::schema::Error;
use agent_client_protocol::v2::schema as wire_v2;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::envelope::{INVALID_REQUEST, LINE_BYTES_MAX};
use super::from_wire::{BadParams, ClientTraits};
use super::requests::RequestKind;
use super::updates::{timestamp, wire_path};
use super::v1;
use epitome_session_api::port::Header;
use epitome_session_api::{SessionAnswer, SessionError, SessionOptions, Steered};
use epitome_thread::visible::visible_line;
use epitome_thread::{StopReason, Usage};

const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
const INTERNAL: i32 = -32603;
const AUTH_REQUIRED: i32 = -32000;
const NOT_FOUND: i32 = -32002;
const CANCELLED: i32 = -32800;
/// Epitome's error code: too many requests, try again later. Outside the ranges reserved by JSON-RPC and ACP.
const BUSY: i32 = -31001;

/// Epitome's error code: the daemon died while handling the request. Not the internal-error code, because some clients
/// hide such errors.
const INTERRUPTED: i32 = -31002;
const RETURNED: i32 = -31004;

/// The id of the authentication method that the agent handles: the user logs in elsewhere, or sets an API key, and
/// retries.
pub const AUTH_METHOD: &str = "environment";

/// The name of [`AUTH_METHOD`], and its description.
pub const AUTH_NAME: &str = "API key";
pub const AUTH_ADVICE: &str = "Run `epitome login` in a terminal, or set an API key in the environment of the editor (for \
    example ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY), or name a local model in the configuration";

/// The id of the authentication method that the client runs in a terminal, its name and its description. Never passed to
/// `authenticate`.
pub const TERMINAL_METHOD: &str = "epitome-login";
pub const TERMINAL_NAME: &str = "Log in";
pub const TERMINAL_ADVICE: &str = "Store the API key of a model provider";

/// The agent as clients name it.
pub const AGENT_NAME: &str = "epitome";
pub const AGENT_TITLE: &str = "Epitome";
pub const AGENT_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The ways to log in that a client is offered.
pub enum LoginOffer {
    /// A model is usable.
    None,
    Key,
    /// Also this command, which the client runs in a terminal.
    Terminal(LoginCommand),
}

/// Whether a login is needed, as far as this is known without using the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginNeed {
    /// The model has a key or a login.
    Satisfied,
    /// The model needs no login.
    None,
    Missing,
}

/// The state of the login, and the name of each stored login with whether the selected model uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginState {
    pub need: LoginNeed,
    pub accounts: Vec<(String, bool)>,
}

/// The result of a request, from the session's answer.
pub fn result(
    kind: RequestKind,
    answer: SessionAnswer,
    traits: &ClientTraits,
) -> Result<Box<RawValue>, wire::Error> {
    match (kind, answer) {
        (RequestKind::New, SessionAnswer::Attached { session, options, .. }) => {
            let options_shown = v1::config_options(&options, traits.boolean_options);
            let response = wire::NewSessionResponse::new(session.0);
            raw(&response.modes(v1::modes(&options)).config_options(options_shown))
        }
        (
            RequestKind::Load | RequestKind::Resume | RequestKind::ResumeReplayed,
            SessionAnswer::Attached { options: now, .. },
        ) => {
            let options_shown = v1::config_options(&now, traits.boolean_options);
            raw(&wire::LoadSessionResponse::new().modes(v1::modes(&now)).config_options(options_shown))
        }
        (RequestKind::Prompt, SessionAnswer::TurnEnded { reason, usage, meta }) => {
            turn_ended(reason, &usage, meta)
        }
        (RequestKind::Steer, SessionAnswer::Steered(Steered::Injected)) => {
            raw(&json!({ "outcome": "injected" }))
        }
        (RequestKind::Steer, SessionAnswer::Steered(Steered::PromptRequired(why))) => {
            raw(&json!({ "outcome": "promptRequired", "reason": why }))
        }
        // The session is closing.
        (RequestKind::Steer, SessionAnswer::Closed) => raw(&json!({ "outcome": "failed" })),
        (RequestKind::SetMode, SessionAnswer::Options(_)) | (RequestKind::Close, SessionAnswer::Closed) => {
            Ok(empty())
        }
        (RequestKind::SetOption, SessionAnswer::Options(options)) => raw(
            &wire::SetSessionConfigOptionResponse::new(v1::config_options(&options, traits.boolean_options)),
        ),
        // A session that closes during a prompt must still answer it.
        (RequestKind::Prompt, SessionAnswer::Closed) => {
            turn_ended(StopReason::Cancelled, &Usage::default(), None)
        }
        (kind, answer) => {
            tracing::error!(?kind, ?answer, "a session answered a different kind of request");
            Err(wire::Error::new(INTERNAL, "The session ended before it could answer"))
        }
    }
}

/// In `data` of an error: the address of the server that has the session open.
pub const OPEN_AT: &str = "openAt";

/// Converts a session error for the client: a sentence, and a hint as `data.details`.
pub fn session_error(error: &SessionError) -> wire::Error {
    let sentence = error.to_string();
    match error {
        SessionError::NotFound(session) => not_found(&session.0),
        SessionError::AuthRequired(_) => wire::Error::new(AUTH_REQUIRED, sentence),
        SessionError::Invalid(_) => wire::Error::new(INVALID_PARAMS, sentence),
        SessionError::Provider { hint: Some(hint), .. } => {
            wire::Error::new(INTERNAL, sentence).data(json!({ "details": hint }))
        }
        SessionError::Provider { hint: None, .. }
        | SessionError::TooLong(_)
        | SessionError::OverBudget(_)
        | SessionError::Store(_)
        | SessionError::Internal(_) => wire::Error::new(INTERNAL, sentence),
        SessionError::InUse(_, holder) => {
            let error = wire::Error::new(INTERNAL, sentence);
            match &holder.address {
                Some(address) => error.data(json!({ OPEN_AT: address })),
                None => error,
            }
        }
        SessionError::Busy(_) => wire::Error::new(BUSY, sentence),
        SessionError::Interrupted(_) => wire::Error::new(INTERRUPTED, sentence),
    }
}

/// Adapts an error for a client that shows only `data.details`: puts the message at their beginning.
pub fn put_message_in_details(error: wire::Error) -> wire::Error {
    let mut data = error.data.clone().unwrap_or_else(|| json!({}));
    let text = match data["details"].as_str() {
        Some(details) => format!("{}. {details}", error.message.trim_end_matches('.')),
        None => error.message.clone(),
    };
    data["details"] = json!(text);
    error.data(data)
}

/// The error for an unknown session. Some clients detect a stale session by the first two words of the message, not by
/// its code.
pub fn not_found(session: &str) -> wire::Error {
    wire::Error::new(NOT_FOUND, "Resource not found: there is no such session")
        .data(json!({ "sessionId": session }))
}

pub fn bad_params(bad: &BadParams) -> wire::Error {
    wire::Error::new(INVALID_PARAMS, format!("Invalid params: {}", bad.0))
}

/// The error for a request that its client may not send, or not now.
pub fn invalid_request(why: impl Into<String>) -> wire::Error {
    wire::Error::new(INVALID_REQUEST, why)
}

pub fn method_not_found(method: &str) -> wire::Error {
    // Method names are short; a longer text is not a method name.
    let name: String = method.chars().take(80).collect();
    wire::Error::new(METHOD_NOT_FOUND, format!("Method not found: {name}"))
}

/// The response to a line that was too long to read.
pub fn line_too_long() -> wire::Error {
    let megabytes = LINE_BYTES_MAX / (1024 * 1024);
    invalid_request(format!(
        "The message has more than {megabytes} MiB and was not read: send less at once, such as fewer or smaller attachments"
    ))
}

pub fn too_many_requests() -> wire::Error {
    wire::Error::new(BUSY, "Too many requests are open; wait for answers first")
}

/// The error for a request that its client cancelled.
pub fn cancelled() -> wire::Error {
    wire::Error::new(CANCELLED, "The request was cancelled")
}

/// The error for a request to a process that died before it answered.
pub fn interrupted(details: &str) -> wire::Error {
    let sentence = "Interrupted: Epitome's daemon ended before it could answer. Please send it again";
    wire::Error::new(INTERRUPTED, sentence).data(json!({ "details": details }))
}

/// The response to a request that its client cancelled, from a process that does not know more of it. `is_prompt`: it is a
/// prompt of version 1.
pub fn cancelled_unserved(is_prompt: bool) -> Result<Box<RawValue>, wire::Error> {
    match is_prompt {
        true => turn_ended(StopReason::Cancelled, &Usage::default(), None),
        false => Err(cancelled()),
    }
}

/// The error for a prompt that is not passed on, because the server is being ended or can't be reached.
pub fn returned() -> wire::Error {
    not_sent(RETURNED)
}

/// The same, once no other server was found in time.
pub fn undelivered() -> wire::Error {
    not_sent(INTERRUPTED)
}

fn not_sent(code: i32) -> wire::Error {
    let details = "The server is shutting down or can't be reached. Please send it again: it had not begun.";
    let sentence =
        "Interrupted: the prompt did not reach the server, and nothing of it was done. Please send it again";
    wire::Error::new(code, sentence).data(json!({ "details": details }))
}

/// Whether a response is the error of [`returned`].
pub fn is_returned(response: &[u8]) -> bool {
    error_code(response) == Some(RETURNED)
}

/// Whether a response is an error that asks to send the request again.
pub fn is_interrupted(response: &[u8]) -> bool {
    matches!(error_code(response), Some(INTERRUPTED | RETURNED))
}

fn error_code(response: &[u8]) -> Option<i32> {
    #[derive(serde::Deserialize)]
    struct FailedResponse {
        error: ErrorCode,
    }
    #[derive(serde::Deserialize)]
    struct ErrorCode {
        code: i32,
    }
    serde_json::from_slice::<FailedResponse>(response).ok().map(|failure| failure.error.code)
}

/// A result without content.
pub fn empty() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("it is JSON")
}

pub fn internal(sentence: impl Into<String>) -> wire::Error {
    wire::Error::new(INTERNAL, sentence)
}

/// The command that a client runs in a terminal for a login.
pub struct LoginCommand {
    pub program: String,
    pub environment: Vec<(String, String)>,
}

/// Zed reads `_meta["terminal-auth"]`, a complete command (`meta_terminal_auth_task` in `crates/agent_servers/src/acp.rs`).
fn terminal_auth(LoginCommand { program, environment }: LoginCommand) -> Option<Map<String, Value>> {
    let environment: Value = environment.into_iter().collect();
    let command = json!({
        "label": "Log in to Epitome", "command": program, "args": ["acp", "login"], "env": environment,
    });
    Some(Map::from_iter([("terminal-auth".to_owned(), command)]))
}

/// The agent's capabilities and authentication methods. Several clients authenticate whenever a method is offered, so
/// methods are offered only when a login is needed. Session cursors have no agent capability: the client requests them.
pub fn initialize(offer: LoginOffer, takes_audio: bool) -> Result<Box<RawValue>, wire::Error> {
    let prompt = wire::PromptCapabilities::new().image(true).audio(takes_audio).embedded_context(true);
    let session = v1::session_capabilities()
        .list(wire::SessionListCapabilities::new())
        .resume(wire::SessionResumeCapabilities::new())
        .close(wire::SessionCloseCapabilities::new());
    let auth = wire::AgentAuthCapabilities::new()
        .status(wire::AuthStatusCapabilities::new())
        .logout(wire::LogoutCapabilities::new());
    let capabilities = wire::AgentCapabilities::new()
        .load_session(true)
        .prompt_capabilities(prompt)
        .mcp_capabilities(wire::McpCapabilities::new().http(true).sse(true).acp(true))
        .session_capabilities(session)
        .auth(auth)
        .providers(wire::ProvidersCapabilities::new());
    let response = wire::InitializeResponse::new(ProtocolVersion::V1)
        .agent_capabilities(capabilities)
        .auth_methods(v1::auth_methods(offer, terminal_auth))
        .agent_info(wire::Implementation::new(AGENT_NAME, AGENT_VERSION).title(AGENT_TITLE))
        .meta(agent_meta());
    raw(&response)
}

/// `_meta` of the answer to `initialize`: the extensions that the agent supports.
pub fn agent_meta() -> Map<String, Value> {
    Map::from_iter([("steering".to_owned(), json!({ "supported": true }))])
}

/// One item of a session listing. It always has a title and a time, because some editors fail without them.
pub fn session_info(header: &Header) -> wire::SessionInfo {
    let directory = header.cwd.file_name().map(|name| name.to_string_lossy().into_owned());
    let title = header
        .title
        .clone()
        .filter(|title| !title.trim().is_empty())
        .unwrap_or_else(|| format!("Session in {}", directory.as_deref().unwrap_or("/")));
    wire::SessionInfo::new(header.session.0.clone(), wire_path(&header.cwd))
        .title(visible_line(&title))
        .updated_at(timestamp(header.updated_at))
        .archived(header.archived)
}

/// Serializes a result.
pub fn raw(result: &impl Serialize) -> Result<Box<RawValue>, wire::Error> {
    to_raw_value(result).map_err(|error| {
        tracing::error!(%error, "an answer could not be written as JSON");
        internal("The answer could not be written as JSON")
    })
}

fn turn_ended(reason: StopReason, usage: &Usage, meta: Option<Value>) -> Result<Box<RawValue>, wire::Error> {
    let reason = match reason {
        StopReason::EndTurn => wire::StopReason::EndTurn,
        StopReason::MaxTokens => wire::StopReason::MaxTokens,
        StopReason::MaxRounds => wire::StopReason::MaxTurnRequests,
        StopReason::Refusal => wire::StopReason::Refusal,
        StopReason::Cancelled | StopReason::Interrupted => wire::StopReason::Cancelled,
        StopReason::Failed => return Err(internal("The turn failed")),
    };
    let mut response = wire::PromptResponse::new(reason);
    let mut meta = match meta {
        Some(Value::Object(meta)) => meta,
        Some(_) | None => Map::new(),
    };
    if *usage != Usage::default() {
        response = response.usage(v1::tokens(usage));
        meta.entry("usage").or_insert_with(|| json!(v1::tokens(usage)));
    }
    raw(&response.meta((!meta.is_empty()).then_some(meta)))
}

/// The reason why a turn ended, as version 2 has it; `None` if the turn did not finish.
pub fn stop_reason(reason: StopReason) -> Option<wire_v2::StopReason> {
    match reason {
        StopReason::EndTurn => Some(wire_v2::StopReason::EndTurn),
        StopReason::MaxTokens => Some(wire_v2::StopReason::MaxTokens),
        StopReason::MaxRounds => Some(wire_v2::StopReason::MaxTurnRequests),
        StopReason::Refusal => Some(wire_v2::StopReason::Refusal),
        StopReason::Cancelled => Some(wire_v2::StopReason::Cancelled),
        StopReason::Failed | StopReason::Interrupted => None,
    }
}

/// The state of the login, for a response or an update.
pub fn auth_status(login: &LoginState) -> wire::AuthStatusResponse {
    let state = match login.need {
        LoginNeed::Satisfied => wire::AuthState::Authenticated,
        LoginNeed::None => wire::AuthState::NotRequired,
        LoginNeed::Missing => wire::AuthState::Unauthenticated,
    };
    let account = |(label, active): &(String, bool)| wire::AuthAccount::new(label).active(*active);
    wire::AuthStatusResponse::new(state).accounts(login.accounts.iter().map(account).collect())
}

/// The options of a session that is not open, in the same form as those of a new session.
pub fn options(options: &SessionOptions, booleans: bool) -> Result<Box<RawValue>, wire::Error> {
    let shown = v1::config_options(options, booleans);
    raw(&wire::SessionOptionsResponse::new().modes(v1::modes(options)).config_options(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: Toad shows only `data.details`, which had only hints. A rejected key and an unknown model
    /// both read "Epitome returned an error".
    #[test]
    fn the_details_contain_the_complete_message() {
        let adapted =
            |error: &SessionError| put_message_in_details(session_error(error)).data.expect("it has data");
        let refused = |hint: Option<&str>| SessionError::Provider {
            message: "The key was not accepted".to_owned(),
            hint: hint.map(str::to_owned),
        };
        assert_eq!(adapted(&refused(None))["details"], "The key was not accepted");
        assert_eq!(
            adapted(&refused(Some("Set another.")))["details"],
            "The key was not accepted. Set another."
        );
        let gone = adapted(&SessionError::NotFound(epitome_thread::SessionId("s_1".to_owned())));
        assert_eq!(gone["details"], "Resource not found: there is no such session");
        assert_eq!(gone["sessionId"], "s_1");
    }
}
