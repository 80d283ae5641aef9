//! MCP servers that the client provides over this connection (`mcp/message`): requests to them, their answers, and the
//! notifications that belong to a request.

use std::collections::HashMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::from_wire::{BadParams, RequestParams};
use super::outbox::Outbox;
use super::writer;
use epitome_session::{ClientMcp, FromClient};

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
    server: String,
    /// The session's id for the request.
    request: String,
    events: mpsc::Sender<FromClient>,
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

    fn find(&self, server: &str, request: &str) -> Option<(u64, &McpCall)> {
        let found = self.0.iter().find(|(_, call)| call.server == server && call.request == request);
        found.map(|(id, call)| (*id, call))
    }

    /// Ends all requests: the client is gone.
    pub fn end(&mut self) {
        for (_, call) in self.0.drain() {
            call.answer(Err("the editor that provides it has disconnected".to_owned()));
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
            format!("the editor could not pass it on: {text}")
        };
        self.answer(match (result, error) {
            (Some(result), _) => {
                serde_json::from_str(result.get()).map_err(|_| "its answer can't be read".to_owned())
            }
            (None, Some(error)) => Err(message(error)),
            (None, None) => Err("its answer is empty".to_owned()),
        });
    }

    fn answer(self, outcome: Result<Value, String>) {
        FromClient::Answer { request: self.request, outcome }.send(&self.events);
    }
}

impl ClientMcp for Outbox {
    fn is_open(&self) -> bool {
        Outbox::is_open(self)
    }

    fn request(
        &self,
        server: &str,
        request: &str,
        method: &str,
        params: Option<Value>,
        events: mpsc::Sender<FromClient>,
    ) -> Result<(), String> {
        let call = McpCall { server: server.to_owned(), request: request.to_owned(), events };
        let id = self.requests().ask_mcp(call).ok_or("too many requests wait for the editor already")?;
        let mut message = json!({ "serverId": server, "requestId": request, "method": method });
        if let Some(params) = params {
            message["params"] = params;
        }
        self.put_line(|line| writer::request(line, id, "mcp/message", &message));
        if self.is_open() {
            return Ok(());
        }
        drop(self.requests().mcp().take(id));
        Err("the editor that provides it has disconnected".to_owned())
    }

    fn cancel(&self, server: &str, request: &str) {
        let mut requests = self.requests();
        let Some(id) = requests.mcp().find(server, request).map(|(id, _)| id) else { return };
        requests.mcp().take(id);
        drop(requests);
        let params = json!({ "requestId": id });
        self.put_line(|line| writer::notification(line, "$/cancel_request", &params));
    }
}

/// Passes on a notification that belongs to a request. Others are dropped.
pub fn notified(outbox: &Outbox, params: &RequestParams<'_>) -> Result<(), BadParams> {
    let (server, request): (String, String) = (params.required("serverId")?, params.required("requestId")?);
    let (method, inner) = (params.required("method")?, params.optional("params")?);
    if let Some((_, call)) = outbox.requests().mcp().find(&server, &request) {
        FromClient::Notification { method, params: inner }.send(&call.events);
    }
    Ok(())
}
