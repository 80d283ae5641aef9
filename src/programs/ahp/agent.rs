//! Requests to the daemon, and what to do with their answers.

use std::collections::HashMap;

use serde_json::{Value, json};

/// What an answer of the daemon is for.
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

/// Lines to the daemon.
#[derive(Default)]
pub struct AgentLink {
    next: u64,
    pending: HashMap<u64, AgentRequest>,
    lines: Vec<u8>,
}

impl AgentLink {
    pub fn request(&mut self, method: &str, params: Value, pending: AgentRequest) {
        self.next += 1;
        self.pending.insert(self.next, pending);
        self.line(&json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params }));
    }

    pub fn notify(&mut self, method: &str, params: Value) {
        self.line(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// Answers a request of the daemon.
    pub fn answer(&mut self, id: &Value, result: Value) {
        self.line(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    /// Refuses a request of the daemon, which leaves it to other windows.
    pub fn refuse(&mut self, id: &Value, message: &str) {
        self.line(&json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": message } }));
    }

    /// What the answer with this id is for.
    pub fn answered(&mut self, id: &Value) -> Option<AgentRequest> {
        self.pending.remove(&id.as_u64()?)
    }

    /// The lines since the last call.
    pub fn take_lines(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }

    fn line(&mut self, message: &Value) {
        self.lines.extend(message.to_string().bytes());
        self.lines.push(b'\n');
    }
}
