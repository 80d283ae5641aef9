//! Unanswered requests to MCP servers that the client provides over this connection.

use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use epitome_session_api::{ClientMcpFault, FromClient};

/// Unanswered requests to all servers of a client.
const CALLS_OPEN_MAX: usize = 256;

/// Characters kept of a client's error message.
const ERROR_CHARS_MAX: usize = 200;

/// The unanswered requests, by their ids on this connection.
#[derive(Debug, Default)]
pub struct McpCalls(HashMap<u64, McpCall>);

/// An unanswered request to a server.
#[derive(Debug)]
pub struct McpCall {
    pub server: String,
    /// The session's id for the request.
    pub request: String,
    pub events: mpsc::Sender<FromClient>,
}

impl McpCalls {
    /// Records a request. Returns false if too many are unanswered.
    pub fn open(&mut self, id: u64, call: McpCall) -> bool {
        let has_room = self.0.len() < CALLS_OPEN_MAX;
        if has_room {
            self.0.insert(id, call);
        }
        has_room
    }

    /// Removes a request in order to answer it.
    pub fn take(&mut self, id: u64) -> Option<McpCall> {
        self.0.remove(&id)
    }

    pub fn find(&self, server: &str, request: &str) -> Option<(u64, &McpCall)> {
        let found = self.0.iter().find(|(_, call)| call.server == server && call.request == request);
        found.map(|(id, call)| (*id, call))
    }

    /// Ends all requests: the client is gone.
    pub fn end(&mut self) {
        for (_, call) in self.0.drain() {
            call.answer(Err(ClientMcpFault::Disconnected));
        }
    }
}

impl McpCall {
    /// Passes the client's answer on to the session.
    pub fn answered(self, result: Option<&RawValue>, error: Option<&RawValue>) {
        let message = |error: &RawValue| {
            let error: Value = serde_json::from_str(error.get()).unwrap_or_default();
            let text: String =
                error["message"].as_str().unwrap_or("no message").chars().take(ERROR_CHARS_MAX).collect();
            ClientMcpFault::NotPassedOn(text)
        };
        self.answer(match (result, error) {
            (Some(result), _) => serde_json::from_str(result.get()).map_err(|_| ClientMcpFault::Unreadable),
            (None, Some(error)) => Err(message(error)),
            (None, None) => Err(ClientMcpFault::Empty),
        });
    }

    fn answer(self, outcome: Result<Value, ClientMcpFault>) {
        FromClient::Answer { request: self.request, outcome }.send(&self.events);
    }
}
