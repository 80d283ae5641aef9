//! One server of a session: its state, its tools and the calls to them.
//!
//! A task drives it for the lifetime of the session ([`drive`](super::drive)). When the connection is lost,
//! the server is restarted once a call needs it; only that call waits.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, CancelledNotification,
    CancelledNotificationParam, ClientNotification, ClientRequest, ProgressToken, RequestId, ServerResult,
};
use rmcp::service::{Peer, PeerRequestOptions, RoleClient};
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};

use super::client::ClientShared;
use super::listed::ServerTool;
use super::outcome;
use super::redact::ServerRedactor;
use epitome_config::McpServer;
use epitome_tools::ToolResult;

/// How long a call waits for a server that is starting or restarting.
const READY_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum duration of one call, regardless of progress.
const CALL_TIME_MAX: Duration = Duration::from_secs(60 * 60);
/// Maximum bytes of a server's text in an error.
const REASON_BYTES_MAX: usize = 500;
/// How long to wait for a process to exit after its pipe has closed.
pub(super) const ENDING_WITHIN: Duration = Duration::from_millis(300);

/// Connection state of a server.
#[derive(Clone)]
pub enum ConnectionState {
    Connecting,
    Ready(Arc<ReadyConnection>),
    /// Why it is not connected; completes a sentence.
    Gone(String),
}

/// A connection whose tools are known.
pub struct ReadyConnection {
    pub(super) peer: Peer<RoleClient>,
    pub(super) shared: Arc<ClientShared>,
    pub tools: Vec<ServerTool>,
    /// Remarks about the server's tool list.
    pub remarks: Vec<String>,
}

/// A server, shared by everything that calls its tools.
pub struct ServerHandle {
    pub spec: McpServer,
    /// Its part of the tool names.
    pub label: String,
    state: watch::Sender<ConnectionState>,
    /// The tools that it had when it was last connected.
    last: Mutex<Vec<ServerTool>>,
    pub(super) wanted: Notify,
    /// The server is not restarted any more.
    pub(super) is_over: AtomicBool,
}

impl ServerHandle {
    pub fn new(spec: McpServer, label: String) -> ServerHandle {
        ServerHandle {
            spec,
            label,
            state: watch::Sender::new(ConnectionState::Connecting),
            last: Mutex::default(),
            wanted: Notify::new(),
            is_over: AtomicBool::new(false),
        }
    }

    pub fn state(&self) -> ConnectionState {
        self.state.borrow().clone()
    }

    /// Its tools, even while it is not connected: a call restarts it.
    pub fn tools(&self) -> Vec<ServerTool> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, state: ConnectionState) {
        if let ConnectionState::Ready(link) = &state {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = link.tools.clone();
        }
        self.state.send_replace(state);
    }

    /// Returns the connection, after a restart if it was lost. An error is a sentence for the model.
    async fn link(&self) -> Result<Arc<ReadyConnection>, String> {
        let mut state = self.state.subscribe();
        let first = state.borrow_and_update().clone();
        let why = match first {
            ConnectionState::Ready(link) => return Ok(link),
            ConnectionState::Gone(why) if self.is_over.load(Ordering::Relaxed) => {
                return Err(self.gone_message(&why));
            }
            ConnectionState::Gone(why) => {
                self.wanted.notify_one();
                Some(why)
            }
            ConnectionState::Connecting => None,
        };
        let settled = async {
            loop {
                if state.changed().await.is_err() {
                    return None;
                }
                let now = state.borrow_and_update().clone();
                match now {
                    ConnectionState::Ready(link) => return Some(Ok(link)),
                    ConnectionState::Gone(why) => return Some(Err(why)),
                    ConnectionState::Connecting => {}
                }
            }
        };
        let limit = if why.is_some() { READY_TIME_MAX.min(self.spec.timeout) } else { READY_TIME_MAX };
        match tokio::time::timeout(limit, settled).await {
            Ok(Some(Ok(link))) => Ok(link),
            Ok(Some(Err(why))) => Err(self.gone_message(&why)),
            Ok(None) | Err(_) => {
                Err(self.gone_message(why.as_deref().unwrap_or("it is still being connected")))
            }
        }
    }

    fn gone_message(&self, why: &str) -> String {
        format!(
            "The MCP server {} is not connected: {why}. Go on without it, or tell the user; /mcp shows its \
             state.",
            self.spec.name
        )
    }

    /// Calls a tool. Dropping the future cancels the call on the server.
    pub async fn call(
        &self,
        tool: &ServerTool,
        arguments: Map<String, Value>,
        progress: Arc<dyn Fn(String) + Send + Sync>,
    ) -> ToolResult {
        let link = match self.link().await {
            Ok(link) => link,
            Err(why) => return ToolResult::failed(why),
        };
        match tokio::time::timeout(
            CALL_TIME_MAX,
            link.call(&tool.own_name, arguments, self.spec.timeout, progress),
        )
        .await
        {
            Ok(Ok(came)) => outcome::result(&self.spec.name, &tool.own_name, came),
            Ok(Err(CallFailure::Gone)) => ToolResult::failed(self.lost_reason().await),
            Ok(Err(CallFailure::Told(why))) => ToolResult::failed(format!(
                "The MCP server {} refused the call: {}",
                self.spec.name,
                bounded(&ServerRedactor::new(&self.spec.way).redact(&why))
            )),
            Ok(Err(CallFailure::Late)) => ToolResult::failed(format!(
                "The MCP server {} did not answer within {} s; the call was cancelled there.",
                self.spec.name,
                self.spec.timeout.as_secs()
            )),
            Err(_) => ToolResult::failed(format!(
                "The call took more than {} minutes and was cancelled.",
                CALL_TIME_MAX.as_secs() / 60
            )),
        }
    }

    /// Explains why the connection was lost during a call.
    async fn lost_reason(&self) -> String {
        let mut state = self.state.subscribe();
        let gone = state.wait_for(|state| matches!(state, ConnectionState::Gone(_)));
        let why = match tokio::time::timeout(ENDING_WITHIN * 2, gone).await {
            Ok(Ok(state)) => match &*state {
                ConnectionState::Gone(why) => Some(why.clone()),
                ConnectionState::Connecting | ConnectionState::Ready(_) => None,
            },
            Ok(Err(_)) | Err(_) => None,
        };
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        format!(
            "The MCP server {} disconnected during the call{why}. It is not known whether the call took effect.",
            self.spec.name
        )
    }
}

/// Why a call has no result.
enum CallFailure {
    /// The connection is closed.
    Gone,
    /// The server's error message.
    Told(String),
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
            let told = ClientNotification::CancelledNotification(CancelledNotification::new(params));
            // A server that is gone has nothing to cancel; one that doesn't read must not block us.
            drop(tokio::time::timeout(ENDING_WITHIN, peer.send_notification(told)).await);
        });
    }
}

impl ReadyConnection {
    async fn call(
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
        self.shared.listen(handle.progress_token.clone(), progress);
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
                    let moved = self.shared.moved.swap(false, Ordering::Relaxed);
                    if !moved && self.shared.asking.load(Ordering::Relaxed) == 0 {
                        cancel.reason = "no answer in time";
                        return Err(CallFailure::Late);
                    }
                }
            }
        };
        cancel.id = None;
        match came.map_err(|_| CallFailure::Gone)?.map_err(failed)? {
            ServerResult::CallToolResult(came) => Ok(came),
            ServerResult::EmptyResult(_) => Ok(CallToolResult::success(Vec::new())),
            other => {
                tracing::debug!(?other, "a response that is not a tool result");
                Err(CallFailure::Told("its response is not a tool result".to_owned()))
            }
        }
    }
}

fn failed(error: ServiceError) -> CallFailure {
    match error {
        ServiceError::TransportClosed => CallFailure::Gone,
        ServiceError::Cancelled { .. } => CallFailure::Told("it cancelled the call".to_owned()),
        ServiceError::McpError(error) => CallFailure::Told(error.message.into_owned()),
        other => CallFailure::Told(chain(&other)),
    }
}

/// An error and its causes, joined by colons.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

pub(super) fn bounded(text: &str) -> String {
    let text = text.trim();
    match text.len() > REASON_BYTES_MAX {
        true => format!("{}…", &text[..text.floor_char_boundary(REASON_BYTES_MAX)]),
        false => text.to_owned(),
    }
}
