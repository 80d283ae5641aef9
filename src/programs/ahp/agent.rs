//! The purposes of requests to the daemon, by which their answers are handled.

use serde_json::Value;

/// The purpose of a request to the daemon.
pub enum AgentRequest {
    /// `createSession` of this session.
    Create { session: String },
    /// This session is being shown from its start.
    Open { session: String },
    /// Looks for the directory of a session that is to be opened.
    Find { session: String },
    /// `listSessions` of a client.
    List { client: u64, id: Value },
    /// `disposeSession` of a client.
    Archive { client: u64, id: Value, session: String },
    /// A prompt, with the turn that it begins.
    Prompt { session: String, turn: Option<String> },
    /// The options of a new session, among them the models.
    Models,
    /// Only a failure matters, and only to the log.
    Nothing(&'static str),
}
