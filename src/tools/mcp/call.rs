//! Requests to a connected server: tool calls with progress and cancellation, resources and prompts.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, CancelledNotification,
    CancelledNotificationParam, ClientNotification, ClientRequest, ContentBlock, ErrorCode,
    GetPromptRequestParams, GetPromptResult, ProgressToken, ReadResourceRequestParams, RequestId, Resource,
    ResourceContents, ResourceTemplate, ServerResult,
};
use rmcp::service::PeerRequestOptions;
use rmcp::service::{Peer, RoleClient};
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::McpEvent;
use super::client::ClientShared;
use super::errors::service_reason;
use super::outcome;
use super::pages::Cursors;
use super::redact::ServerRedactor;
use super::server::ENDING_WITHIN;

/// Maximum pages of a list of resources.
const PAGES_MAX: usize = 10;
/// Maximum resources and templates listed per server.
const RESOURCES_MAX: usize = 500;

/// An established connection.
pub struct ReadyConnection {
    pub(super) peer: Peer<RoleClient>,
    pub(super) shared: Arc<ClientShared>,
    pub(super) redactor: ServerRedactor,
    pub(super) news: mpsc::WeakSender<McpEvent>,
}

/// Why a request has no result.
pub enum CallFailure {
    /// The connection is closed.
    Gone,
    /// The server's error message.
    Refused(String),
    /// The request could not be sent, or its response not received.
    Unreachable(String),
    /// The tool can only be called as a task: the specification requires servers to answer "method not found".
    NeedsTask,
    Late,
}

/// Cancels the call on the server when dropped, unless it has completed.
struct CancelCall {
    peer: Peer<RoleClient>,
    shared: Arc<ClientShared>,
    token: ProgressToken,
    id: Option<RequestId>,
    reason: &'static str,
}

impl Drop for CancelCall {
    fn drop(&mut self) {
        self.shared.forget(&self.token);
        let (Some(id), Ok(runtime)) = (self.id.take(), tokio::runtime::Handle::try_current()) else { return };
        let params = CancelledNotificationParam::new(Some(id), Some(self.reason.to_owned()));
        let peer = self.peer.clone();
        runtime.spawn(async move {
            let notification = ClientNotification::CancelledNotification(CancelledNotification::new(params));
            // There is nothing to cancel on a server that is gone, and one that doesn't read must not block the caller.
            drop(tokio::time::timeout(ENDING_WITHIN, peer.send_notification(notification)).await);
        });
    }
}

impl ReadyConnection {
    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        quiet: Duration,
        progress: Arc<dyn Fn(String) + Send + Sync>,
    ) -> Result<CallToolResult, CallFailure> {
        let params = CallToolRequestParams::new(Cow::Owned(tool.to_owned())).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let sending = self.peer.send_request_with_option(request, PeerRequestOptions::no_options());
        let mut handle =
            tokio::time::timeout(quiet, sending).await.map_err(|_| CallFailure::Late)?.map_err(failed)?;
        let mut activity = self.shared.listen(handle.progress_token.clone(), progress);
        let mut cancel = CancelCall {
            peer: self.peer.clone(),
            shared: self.shared.clone(),
            token: handle.progress_token.clone(),
            id: Some(handle.id.clone()),
            reason: "cancelled by the user",
        };
        let came = loop {
            tokio::select! {
                biased;
                came = &mut handle.rx => break came,
                () = tokio::time::sleep(quiet) => {
                    // Progress resets the timer, and so does a question that the user has not answered yet.
                    if !activity.has_moved(&self.shared) {
                        cancel.reason = "no answer in time";
                        return Err(CallFailure::Late);
                    }
                }
            }
        };
        cancel.id = None;
        let unreadable = || CallFailure::Refused("its response is not a tool result".to_owned());
        match came.map_err(|_| CallFailure::Gone)?.map_err(failed)? {
            ServerResult::CallToolResult(came) if needs_task(&came) => Err(CallFailure::NeedsTask),
            ServerResult::CallToolResult(came) => Ok(came),
            ServerResult::EmptyResult(_) => Ok(CallToolResult::success(Vec::new())),
            ServerResult::CustomResult(came) => outcome::understood(came.0).ok_or_else(unreadable),
            other => {
                tracing::debug!(?other, "a response that is not a tool result");
                Err(unreadable())
            }
        }
    }
}

/// Whether a result reports that the tool can only be called as a task. The SDK drops this property of the tool list.
fn needs_task(came: &CallToolResult) -> bool {
    let words = |block: &ContentBlock| {
        block.as_text().is_some_and(|text| text.text.contains("requires task augmentation"))
    };
    came.is_error == Some(true) && came.content.iter().any(words)
}

/// A server's resources and resource templates.
pub struct ResourceList {
    pub resources: Vec<Resource>,
    pub templates: Vec<ResourceTemplate>,
}

impl ReadyConnection {
    /// Lists the resources, within `limit`.
    pub(super) async fn list_resources(&self, limit: Duration) -> Result<ResourceList, CallFailure> {
        let listing = async {
            let mut resources = Vec::new();
            let mut cursors = Cursors::default();
            for _ in 0..PAGES_MAX {
                let page = self.peer.list_resources(Some(cursors.params())).await.map_err(failed)?;
                resources.extend(page.resources);
                if !cursors.go_on(page.next_cursor) || resources.len() >= RESOURCES_MAX {
                    break;
                }
            }
            resources.truncate(RESOURCES_MAX);
            // Servers without templates may refuse the request.
            let mut templates = match self.peer.list_resource_templates(None).await {
                Ok(page) => page.resource_templates,
                Err(_) => Vec::new(),
            };
            templates.truncate(RESOURCES_MAX);
            Ok(ResourceList { resources, templates })
        };
        tokio::time::timeout(limit, listing).await.unwrap_or(Err(CallFailure::Late))
    }

    pub(super) async fn read_resource(
        &self,
        uri: &str,
        limit: Duration,
    ) -> Result<Vec<ResourceContents>, CallFailure> {
        let reading = self.peer.read_resource(ReadResourceRequestParams::new(uri));
        let read = tokio::time::timeout(limit, reading).await.map_err(|_| CallFailure::Late)?;
        read.map(|read| read.contents).map_err(failed)
    }

    pub(super) async fn get_prompt(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        limit: Duration,
    ) -> Result<GetPromptResult, CallFailure> {
        let params = GetPromptRequestParams::new(name).with_arguments(arguments);
        let got = tokio::time::timeout(limit, self.peer.get_prompt(params)).await;
        got.map_err(|_| CallFailure::Late)?.map_err(failed)
    }
}

pub(super) fn failed(error: ServiceError) -> CallFailure {
    match error {
        ServiceError::TransportClosed => CallFailure::Gone,
        ServiceError::McpError(error)
            if error.code == ErrorCode::METHOD_NOT_FOUND && error.message.contains("task") =>
        {
            CallFailure::NeedsTask
        }
        ServiceError::TransportSend(_) => CallFailure::Unreachable(service_reason(&error)),
        other => CallFailure::Refused(service_reason(&other)),
    }
}
