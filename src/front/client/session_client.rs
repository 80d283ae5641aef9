//! The requests of a front end about sessions, over a connection to the agent. Blocking.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};

use agent_client_protocol::v2::schema as wire;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::blocks;
use super::events::{self, ClientEvent, SessionChoices};
use super::handshake::{Handshake, halves};
use super::link::{AcpLink, LinkMessage};
use epitome_acp::updates::{epitome_meta, wire_path};
use epitome_platform::local::Stream;
use epitome_session_api::{AskId, CommandInfo, McpServer, QuestionReply, SessionError, UserDecision};
use epitome_thread::{ClientInstructions, Content, Seq, SessionId};

/// The text of the error for everything that has no answer when the connection ends.
const ENDED: &str = "the daemon ended before the answer came; what was done is in the session's log";

/// Whether the user of a front end can fill in forms and follow addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionForms {
    Shown,
    Unsupported,
}

/// The part of a request that opens a session.
#[derive(Clone, Debug, Default)]
pub struct SessionRequest {
    /// If it is empty, a stored session is opened in its own directory.
    pub cwd: PathBuf,
    pub directories: Vec<PathBuf>,
    pub mcp_servers: Vec<McpServer>,
    pub instructions: Option<ClientInstructions>,
}

/// A session that was opened.
#[derive(Clone, Debug)]
pub struct OpenedSession {
    /// `None` if the request named it.
    pub session: Option<SessionId>,
    /// The directory in which its commands run.
    pub cwd: PathBuf,
    pub choices: SessionChoices,
    /// The commands of Epitome itself while recipes are being read; the complete list follows.
    pub commands: Vec<CommandInfo>,
}

/// A message of the agent. `K` is what the answer to a request is for.
#[derive(Debug)]
pub enum SessionMessage<K> {
    Event(ClientEvent),
    Answer(K, Result<Value, SessionError>),
    /// It needs no reaction.
    Nothing,
}

/// A connection to an agent that reports the entries of logs.
pub struct SessionClient<K, W = Stream> {
    link: AcpLink<K>,
    writer: W,
}

impl<K> SessionClient<K> {
    /// Initializes a connection over a socket, and returns the reader for all further lines.
    pub fn connect(
        stream: Stream,
        name: &str,
        forms: QuestionForms,
    ) -> Result<(SessionClient<K>, BufReader<Stream>), String> {
        SessionClient::initialize(halves(stream)?, name, forms)
    }

    /// Sends nothing more. The agent then closes its half too, once it has let go of the sessions.
    pub fn close(&mut self) {
        // Fails if the agent is gone.
        drop(self.writer.shutdown(Shutdown::Write));
    }
}

impl<K, W: Write> SessionClient<K, W> {
    /// The same over any pair of streams.
    pub fn initialize<R: BufRead>(
        halves: (R, W),
        name: &str,
        forms: QuestionForms,
    ) -> Result<(SessionClient<K, W>, R), String> {
        let capabilities = wire::ClientCapabilities::new()
            .elicitation((forms == QuestionForms::Shown).then(elicitation))
            .meta(epitome_meta(json!({ "log": true })));
        let info = wire::Implementation::new(name, env!("CARGO_PKG_VERSION"));
        let handshake = Handshake::begin(halves, info, capabilities)?;
        if !handshake.reports_log() {
            return Err("the daemon is of another build".to_owned());
        }
        let (link, reader, writer) = handshake.finish();
        Ok((SessionClient { link, writer }, reader))
    }

    /// Creates a session.
    pub fn create(&mut self, request: &SessionRequest, pending: K) {
        let params = wire::NewSessionRequest::new(wire_path(&request.cwd))
            .additional_directories(request.directories())
            .mcp_servers(request.servers())
            .system_prompt(request.system_prompt());
        self.request("session/new", &params, pending);
    }

    /// Opens a stored session. `replays`: its log is sent first.
    pub fn resume(&mut self, session: &SessionId, request: &SessionRequest, replays: bool, pending: K) {
        let start = || wire::ReplayFrom::Start(wire::ReplayFromStart::new());
        let (cwd, meta) = match request.cwd.as_os_str().is_empty() {
            true => (wire_path(Path::new("/")), Some(epitome_meta(json!({ "ownDirectory": true })))),
            false => (wire_path(&request.cwd), None),
        };
        let params = wire::ResumeSessionRequest::new(session.0.as_str(), cwd)
            .meta(meta)
            .additional_directories(request.directories())
            .mcp_servers(request.servers())
            .system_prompt(request.system_prompt())
            .replay_from(replays.then(start));
        self.request("session/resume", &params, pending);
    }

    /// Follows a session without opening it: its log from this entry on, and then what its clients do.
    pub fn watch(&mut self, session: &SessionId, from: Seq, pending: K) {
        let meta = epitome_meta(json!({ "watch": from.to_string() }));
        let params = wire::ResumeSessionRequest::new(session.0.as_str(), "/").meta(meta);
        self.request("session/resume", &params, pending);
    }

    /// Sends a prompt and returns the id of the request. [`ClientEvent::PromptEnded`] reports its end.
    pub fn prompt(&mut self, session: &SessionId, content: Vec<Content>, pending: K) -> u64 {
        let params = wire::PromptRequest::new(session.0.as_str(), blocks::of_prompt(&content));
        self.request("session/prompt", &params, pending)
    }

    /// Cancels what the session does.
    pub fn cancel(&mut self, session: &SessionId) {
        self.link.notify("session/cancel", &wire::CancelSessionNotification::new(session.0.as_str()));
        self.flush();
    }

    /// Cancels a request that is not answered.
    pub fn cancel_request(&mut self, id: u64) {
        self.link.cancel_request(id);
        self.flush();
    }

    pub fn set_option(&mut self, session: &SessionId, option: &str, value: &str, pending: K) {
        let params = wire::SetSessionConfigOptionRequest::new(session.0.as_str(), option, value);
        self.request("session/set_config_option", &params, pending);
    }

    /// Answers a permission request, or leaves it to other clients.
    pub fn decide(&mut self, ask: AskId, decision: &UserDecision) {
        let id = json!(ask.0);
        let answer = match decision {
            UserDecision::AllowOnce => selected("allow_once"),
            UserDecision::AllowAlways => selected("allow_always"),
            UserDecision::Reject => selected("reject_once"),
            UserDecision::RejectAlways => selected("reject_always"),
            UserDecision::RejectBecause(why) => {
                selected("reject_once").meta(epitome_meta(json!({ "reason": why })))
            }
            UserDecision::Dismissed => cancelled(),
            UserDecision::Absent => return self.refuse(&id, "no user can be asked"),
        };
        self.link.answer(&id, &answer);
        self.flush();
    }

    pub fn answer_question(&mut self, ask: AskId, reply: QuestionReply) {
        self.link.answer(&json!(ask.0), &question_answer(reply));
        self.flush();
    }

    /// Reads a line of the agent.
    pub fn receive(&mut self, line: &[u8]) -> SessionMessage<K> {
        let message = match self.link.receive(line) {
            Ok(message) => message,
            Err(error) => {
                tracing::error!(%error, "a line of the agent can't be read");
                return SessionMessage::Nothing;
            }
        };
        let event = match message {
            LinkMessage::Answer(pending, result) => {
                return SessionMessage::Answer(pending, result.map_err(|error| error_of(&error)));
            }
            LinkMessage::Notification { method, params } => match method.as_str() {
                "session/update" => events::updated(params),
                "$/cancel_request" => {
                    params["requestId"].as_u64().map(|id| ClientEvent::Withdrawn { ask: AskId(id) })
                }
                _ => None,
            },
            LinkMessage::Request { id, method, params } => {
                let event = id.as_u64().and_then(|ask| events::asked(AskId(ask), &method, params));
                if event.is_none() {
                    self.refuse(&id, "not supported");
                }
                event
            }
            LinkMessage::Nothing => None,
        };
        event.map_or(SessionMessage::Nothing, SessionMessage::Event)
    }

    /// The agent sends nothing more: what was waited for, and the error that answers it.
    pub fn ended(&mut self) -> (Vec<K>, SessionError) {
        (self.link.give_up(), SessionError::Internal(ENDED.to_owned()))
    }

    fn request(&mut self, method: &'static str, params: &impl Serialize, pending: K) -> u64 {
        let id = self.link.request(method, params, pending);
        self.flush();
        id
    }

    fn refuse(&mut self, id: &Value, message: &str) {
        self.link.refuse(id, message);
        self.flush();
    }

    fn flush(&mut self) {
        // The reader notices an agent that is gone.
        drop(self.writer.write_all(&self.link.take_lines()));
    }
}

impl OpenedSession {
    /// Reads the answer to a request that opens a session.
    pub fn read(answer: Value) -> Result<OpenedSession, SessionError> {
        let cwd = answer.pointer("/_meta/epitome/cwd").and_then(Value::as_str).unwrap_or_default().into();
        let session = answer["sessionId"].as_str().map(|id| SessionId(id.to_owned()));
        let opened = wire::ResumeSessionResponse::deserialize(answer)
            .map_err(|error| SessionError::Internal(format!("the answer can't be read: {error}")))?;
        let choices = events::choices(opened.config_options);
        Ok(OpenedSession {
            session,
            cwd,
            choices,
            commands: events::slash_commands(opened.available_commands),
        })
    }
}

impl SessionRequest {
    fn directories(&self) -> Vec<wire::AbsolutePath> {
        self.directories.iter().map(|directory| wire_path(directory).into()).collect()
    }

    fn servers(&self) -> Vec<wire::McpServer> {
        self.mcp_servers.iter().map(|server| blocks::of_server(server, &self.cwd)).collect()
    }

    fn system_prompt(&self) -> Option<wire::SystemPrompt> {
        let ClientInstructions { text, replaces_role } = self.instructions.as_ref()?;
        let mode = match replaces_role {
            true => wire::SystemPromptMode::Override,
            false => wire::SystemPromptMode::Append,
        };
        Some(wire::SystemPrompt::new(vec![text.as_str().into()]).mode(mode))
    }
}

/// The capabilities of a client that shows forms and addresses.
pub fn elicitation() -> wire::ElicitationCapabilities {
    wire::ElicitationCapabilities::new()
        .form(wire::ElicitationFormCapabilities::new())
        .url(wire::ElicitationUrlCapabilities::new())
}

/// The answer to a permission request with the option that the user chose.
pub fn selected(option: impl Into<wire::PermissionOptionId>) -> wire::RequestPermissionResponse {
    let selected = wire::SelectedPermissionOutcome::new(option);
    wire::RequestPermissionResponse::new(wire::RequestPermissionOutcome::Selected(selected))
}

/// The answer to a permission request that the agent has cancelled, or the user has dismissed.
pub fn cancelled() -> wire::RequestPermissionResponse {
    let cancelled = wire::CancelledPermissionOutcome::new();
    wire::RequestPermissionResponse::new(wire::RequestPermissionOutcome::Cancelled(cancelled))
}

/// The answer to a question of the agent.
pub fn question_answer(reply: QuestionReply) -> wire::CreateElicitationResponse {
    wire::CreateElicitationResponse::new(match reply {
        QuestionReply::Accepted(fields) => {
            let other = |(name, value)| (name, wire::ElicitationContentValue::Other(value));
            let content: BTreeMap<_, _> = fields.into_iter().map(other).collect();
            wire::ElicitationAction::Accept(wire::ElicitationAcceptAction::new().content(content))
        }
        QuestionReply::Declined => wire::ElicitationAction::Decline,
        QuestionReply::Cancelled | QuestionReply::Unable | QuestionReply::TimedOut => {
            wire::ElicitationAction::Cancel
        }
    })
}

/// The session's own error, which the agent adds to that of the protocol.
fn error_of(error: &Value) -> SessionError {
    let own = error.pointer("/data/error").map(SessionError::deserialize);
    own.and_then(Result::ok).unwrap_or_else(|| {
        let message = error["message"].as_str().unwrap_or("the daemon refused it");
        SessionError::Invalid(message.to_owned())
    })
}
