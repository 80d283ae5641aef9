//! The updates that show a session to a client, in the shape of version 2: everything with an id is created or changed through
//! that id, and a session has a state. `v1` and `v2` turn an update into lines; each update is translated once.

use std::path::PathBuf;
use std::sync::Arc;

use agent_client_protocol::v1::schema as wire_v1;
use agent_client_protocol::v2::schema as wire;
use serde::Serialize;
use serde_json::Value;

use epitome_session_api::{CommandInfo, SessionOptions, SessionState, TextKind};
use epitome_thread::{CallId, Location, Mode, PlanStep, SessionId, ToolKind};

/// The version of the protocol that a connection negotiated in `initialize`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcpVersion {
    #[default]
    V1,
    V2,
}

/// One update of a session.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// An update whose form is the same in both versions.
    Shared(Box<wire::SessionUpdate>),
    Text(TextUpdate),
    UserMessage {
        id: wire::MessageId,
        content: Vec<wire::ContentBlock>,
        meta: Option<wire::Meta>,
    },
    Call(Box<CallUpdate>),
    /// New output of a terminal, as text and, for version 2, as bytes.
    TerminalOutput {
        id: CallId,
        text: String,
        bytes: Option<Vec<u8>>,
    },
    /// The complete output of a terminal; replaces what was sent. Version 1 has no such update.
    TerminalReplaced {
        id: CallId,
        text: String,
    },
    /// The start or the end of a terminal that stays open after its call. Only in version 2.
    Terminal {
        id: CallId,
        change: TerminalChange,
    },
    /// The complete plan. `by_id`: whether version 1 shows it with an id.
    Plan {
        steps: Vec<PlanStep>,
        by_id: bool,
    },
    /// The complete list of slash commands, with or without skills as a separate kind.
    Commands {
        list: Arc<[CommandInfo]>,
        shows_skills: bool,
    },
    /// The complete list of options, with boolean options as booleans or as selections.
    Options {
        options: Arc<SessionOptions>,
        shows_booleans: bool,
    },
    /// Only in version 1; version 2 has an option for it.
    Mode(Mode),
    /// Only in version 2. In version 1, the response to a prompt reports how its turn ended.
    State(Arc<SessionState>),
}

impl Update {
    /// An update whose form is the same in both versions.
    pub fn shared(update: wire::SessionUpdate) -> Update {
        Update::Shared(Box::new(update))
    }
}

/// Text of the agent.
#[derive(Clone, Debug, PartialEq)]
pub struct TextUpdate {
    pub kind: TextKind,
    pub id: wire::MessageId,
    pub text: String,
    pub piece: MessagePiece,
}

/// Whether a text starts its message or continues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePiece {
    /// The complete message, or its beginning if it is too long for one line.
    First,
    /// Continues the message.
    More,
}

/// A new tool call, or a change of one. A missing field stays unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallUpdate {
    pub id: String,
    /// Whether the call is new to the client.
    pub is_new: bool,
    pub name: Option<String>,
    pub title: Option<String>,
    pub kind: Option<ToolKind>,
    /// Version 1 shows a cancelled call as failed.
    pub status: Option<wire::ToolCallStatus>,
    /// Replaces what was shown.
    pub content: Option<Vec<CallContent>>,
    pub locations: Option<Vec<Location>>,
    pub raw_input: Option<Value>,
    pub raw_output: Option<Value>,
    pub terminal: Option<TerminalChange>,
    /// Whether the user can cancel this call alone from now on.
    pub can_cancel: Option<bool>,
    /// The finished subagent of the call, which clients of version 1 can load.
    pub agent: Option<SessionId>,
}

/// A part of a call's content.
#[derive(Clone, Debug, PartialEq)]
pub enum CallContent {
    Text(String),
    Image {
        mime_type: String,
        data: String,
    },
    Diff(FileDiff),
    /// The terminal of the call, which has the call's id.
    Terminal,
    /// The running subagent of the call.
    Agent(SessionId),
}

/// A change of a text file; `old` is `None` for a new file. Clients receive at most `bytes_max` bytes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct FileDiff {
    pub path: PathBuf,
    pub old: Option<String>,
    pub new: String,
    pub bytes_max: usize,
}

/// A change of a call's terminal that is sent with the call.
#[derive(Clone, Debug, PartialEq)]
pub enum TerminalChange {
    Created { command: String, cwd: Option<PathBuf> },
    Ended(TerminalExit),
}

/// How a command ended; unknown parts are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalExit {
    pub code: Option<i64>,
    pub signal: Option<i64>,
}

impl TerminalExit {
    /// The name of the signal; clients expect text.
    pub fn signal_name(&self) -> Option<String> {
        let signal = self.signal?;
        let names = [
            (1, "SIGHUP"),
            (2, "SIGINT"),
            (3, "SIGQUIT"),
            (4, "SIGILL"),
            (5, "SIGTRAP"),
            (6, "SIGABRT"),
            (8, "SIGFPE"),
            (9, "SIGKILL"),
            (11, "SIGSEGV"),
            (13, "SIGPIPE"),
            (14, "SIGALRM"),
            (15, "SIGTERM"),
        ];
        let name = names.iter().find(|(number, _)| *number == signal).map(|(_, name)| (*name).to_owned());
        Some(name.unwrap_or_else(|| format!("signal {signal}")))
    }
}

/// An update as it is written.
#[derive(Serialize)]
#[serde(untagged)]
pub enum UpdateLine {
    /// Also of a connection of version 1, if that has the same form.
    V2(wire::SessionUpdate),
    V1(wire_v1::SessionUpdate),
    /// A new call in version 1.
    Announced(AnnouncedCall),
}

/// A new call in version 1. The schema's `ToolCall` omits the status `pending`, and clients that don't know that it is the
/// default showed "undefined".
#[derive(Serialize)]
pub struct AnnouncedCall {
    #[serde(rename = "sessionUpdate")]
    pub kind: &'static str,
    #[serde(flatten)]
    pub call: wire_v1::ToolCallUpdate,
}

/// A permission request.
#[derive(Clone, Debug, PartialEq)]
pub struct PermissionCard {
    pub call: CallUpdate,
    pub options: Vec<wire::PermissionOption>,
}
