//! MCP servers that the client provides over this connection (`mcp/message`): requests to them, and the notifications that
//! belong to a request.

use agent_client_protocol::v2::schema as wire;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::client_mcp::McpCall;
use crate::envelope;
use crate::from_wire::{BadParams, RequestParams};
use crate::outbox::Outbox;
use epitome_session_api::{ClientMcp, ClientMcpFault, FromClient};

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
    ) -> Result<(), ClientMcpFault> {
        let call = McpCall { server: server.to_owned(), request: request.to_owned(), events };
        let id = self.requests().ask_mcp(call).ok_or(ClientMcpFault::ClientBusy)?;
        // Params that are no object are none of a request of MCP.
        let params = params.and_then(|params| match params {
            Value::Object(params) => Some(params),
            _ => None,
        });
        let message =
            wire::MessageMcpRequest::new(server.to_owned(), request.to_owned(), method).params(params);
        self.put_line(|line| envelope::request(line, id, "mcp/message", &message));
        if self.is_open() {
            return Ok(());
        }
        drop(self.requests().mcp().take(id));
        Err(ClientMcpFault::Disconnected)
    }

    fn cancel(&self, server: &str, request: &str) {
        let mut requests = self.requests();
        let Some(id) = requests.mcp().find(server, request).map(|(id, _)| id) else { return };
        requests.mcp().take(id);
        drop(requests);
        self.put_line(|line| envelope::cancel_request(line, id));
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
