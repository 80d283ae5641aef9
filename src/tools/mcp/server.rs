//! One server of a session: its state, what it offers and the requests to it.
//!
//! A task drives it for the lifetime of the session ([`drive`](super::drive)). A call to a server that is not connected
//! triggers another attempt; only that call waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rmcp::model::{CallToolResult, GetPromptResult};
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};

use super::McpEvent;
use super::call::{CallFailure, ReadyConnection, ResourceList};
use super::listed::{self, RawListing, ServerListing, ServerTool};
use super::outcome;
use epitome_config::McpServer;
use epitome_tools::ToolError;
use epitome_tools::ToolResult;

/// How long a call waits for a server that is starting or restarting.
const READY_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum duration of one call, regardless of progress.
pub(super) const CALL_TIME_MAX: Duration = Duration::from_secs(60 * 60);
/// Maximum bytes of a server's text in an error.
const REASON_BYTES_MAX: usize = 500;
/// How long to wait for a process to exit after its pipe has closed.
pub(super) const ENDING_WITHIN: Duration = Duration::from_millis(300);

/// Connection state of a server.
#[derive(Clone)]
pub enum ConnectionState {
    /// Started on demand.
    Idle,
    Connecting,
    Ready(Arc<ReadyConnection>),
    /// Why it is not connected; completes a sentence.
    Gone(String),
}

/// A server, shared by all users of its tools.
pub struct ServerHandle {
    pub spec: McpServer,
    /// Its part of the tool names.
    pub label: String,
    state: watch::Sender<ConnectionState>,
    /// Its current listing, or the last one of this or an earlier session.
    listing: Mutex<Option<Arc<ServerListing>>>,
    /// Whether it was connected in this session.
    was_connected: AtomicBool,
    /// Why its last request failed in transport although the connection counts as open.
    trouble: Mutex<Option<String>>,
    pub(super) wanted: Notify,
    /// Whether calls no longer trigger attempts.
    is_exhausted: AtomicBool,
    /// Whether a first start, which may include an installation, is completed after the session has ended.
    pub(super) completes_start: AtomicBool,
    /// Tools that can only be called as tasks.
    pub(super) task_tools: Mutex<Vec<String>>,
}

impl ServerHandle {
    pub fn new(spec: McpServer, label: String) -> ServerHandle {
        ServerHandle {
            spec,
            label,
            state: watch::Sender::new(ConnectionState::Connecting),
            listing: Mutex::default(),
            was_connected: AtomicBool::new(false),
            trouble: Mutex::default(),
            wanted: Notify::new(),
            is_exhausted: AtomicBool::new(false),
            completes_start: AtomicBool::new(false),
            task_tools: Mutex::default(),
        }
    }

    /// A new handle for the same server, with its listing.
    pub fn renewed(&self) -> ServerHandle {
        let renewed = ServerHandle::new(self.spec.clone(), self.label.clone());
        let listing = self.listing.lock().clone();
        *renewed.listing.lock() = listing;
        *renewed.task_tools.lock() = self.task_tools();
        renewed
    }

    pub fn state(&self) -> ConnectionState {
        self.state.borrow().clone()
    }

    /// Its listing, even while it is not connected: a call connects it.
    pub fn listing(&self) -> Arc<ServerListing> {
        self.listing.lock().clone().unwrap_or_default()
    }

    pub fn has_listing(&self) -> bool {
        self.listing.lock().is_some()
    }

    /// Whether its tools are listed: not if every attempt to connect it in this session has failed.
    pub fn is_offered(&self) -> bool {
        self.was_connected.load(Ordering::Relaxed) || !matches!(self.state(), ConnectionState::Gone(_))
    }

    pub(super) fn task_tools(&self) -> Vec<String> {
        self.task_tools.lock().clone()
    }

    pub(super) fn remember_task_tools(&self, tools: &[String]) {
        *self.task_tools.lock() = tools.to_vec();
    }

    /// Why its last request failed in transport.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    fn set_trouble(&self, trouble: Option<String>) -> bool {
        let mut known = self.trouble.lock();
        std::mem::replace(&mut *known, trouble).is_none()
    }

    pub(super) fn set_listing(&self, raw: &RawListing) {
        let listing = listed::validate(&self.spec.name, &self.label, self.spec.tools.as_deref(), raw);
        *self.listing.lock() = Some(Arc::new(listing));
    }

    pub(super) fn set(&self, state: ConnectionState) {
        if let ConnectionState::Ready(_) = &state {
            self.was_connected.store(true, Ordering::Relaxed);
            self.set_trouble(None);
        }
        self.state.send_replace(state);
    }

    pub(super) fn set_exhausted(&self, is_exhausted: bool) {
        self.is_exhausted.store(is_exhausted, Ordering::Relaxed);
    }

    /// Stops calls from connecting it. A new handle reverts this.
    pub fn switch_off(&self, why: &str) {
        self.set_exhausted(true);
        self.set(ConnectionState::Gone(why.to_owned()));
    }

    /// Triggers a new connection attempt if it is not connected. Does not wait.
    pub fn wake(&self) {
        let is_gone = matches!(*self.state.borrow(), ConnectionState::Gone(_) | ConnectionState::Idle);
        if is_gone && !self.is_exhausted.load(Ordering::Relaxed) {
            self.wanted.notify_one();
        }
    }

    /// Whether calls no longer trigger attempts to connect it.
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted.load(Ordering::Relaxed)
    }

    /// Waits until it is connected, or until an attempt made in the meantime has failed.
    pub async fn connected(&self, limit: Duration) {
        let mut state = self.state.subscribe();
        let settled = async {
            let was_connecting =
                state.wait_for(|state| !matches!(state, ConnectionState::Gone(_))).await.is_ok();
            was_connecting
                && state.wait_for(|state| !matches!(state, ConnectionState::Connecting)).await.is_ok()
        };
        drop(tokio::time::timeout(limit, settled).await);
    }

    /// Returns the connection, after another attempt if it is not connected. The error is a sentence for the model.
    pub(super) async fn link(&self) -> Result<Arc<ReadyConnection>, ToolError> {
        let mut state = self.state.subscribe();
        let first = state.borrow_and_update().clone();
        let why = match first {
            ConnectionState::Ready(link) => return Ok(link),
            ConnectionState::Gone(why) if self.is_exhausted.load(Ordering::Relaxed) => {
                return Err(self.gone(&why));
            }
            ConnectionState::Gone(why) => {
                self.wanted.notify_one();
                Some(why)
            }
            ConnectionState::Idle => {
                self.wanted.notify_one();
                None
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
                    // It became idle while the call was already waiting.
                    ConnectionState::Idle => self.wanted.notify_one(),
                    ConnectionState::Connecting => {}
                }
            }
        };
        let limit = if why.is_some() { READY_TIME_MAX.min(self.spec.timeout) } else { READY_TIME_MAX };
        match tokio::time::timeout(limit, settled).await {
            Ok(Some(Ok(link))) => Ok(link),
            Ok(Some(Err(why))) => Err(self.gone(&why)),
            Ok(None) | Err(_) => Err(self.gone(why.as_deref().unwrap_or("it is still being connected"))),
        }
    }

    fn gone(&self, why: &str) -> ToolError {
        ToolError::new(format!(
            "The MCP server {} is not connected: {why}. Go on without it, or tell the user; /mcp shows its \
             state.",
            self.spec.name
        ))
    }

    /// Calls a tool. Dropping the future cancels the call on the server. The error is a sentence for the model.
    pub async fn call(
        &self,
        tool: &ServerTool,
        arguments: Map<String, Value>,
        progress: Arc<dyn Fn(String) + Send + Sync>,
    ) -> Result<ToolResult, ToolError> {
        let link = self.link().await?;
        let calling = self.call_over(&link, &tool.own_name, arguments, progress);
        match tokio::time::timeout(CALL_TIME_MAX, calling).await {
            Ok(came) => {
                let came = self.explained(&link, came).await?;
                self.set_trouble(None);
                Ok(outcome::result(&self.spec.name, &tool.own_name, came, |text| link.redactor.mask(text)))
            }
            Err(_) => Err(ToolError::new(format!(
                "The call took more than {} minutes and was cancelled.",
                CALL_TIME_MAX.as_secs() / 60
            ))),
        }
    }

    /// Calls a tool, as a task if it can't be called otherwise.
    async fn call_over(
        &self,
        link: &ReadyConnection,
        tool: &str,
        arguments: Map<String, Value>,
        progress: Arc<dyn Fn(String) + Send + Sync>,
    ) -> Result<CallToolResult, CallFailure> {
        let quiet = self.spec.timeout;
        if !self.task_tools().iter().any(|known| known == tool) {
            match link.call(tool, arguments.clone(), quiet, progress.clone()).await {
                Err(CallFailure::NeedsTask) => self.note_task_tool(tool, link),
                came => return came,
            }
        }
        link.call_as_task(tool, arguments, quiet, progress).await
    }

    /// Lists its resources. The error is a sentence for the model.
    pub async fn list_resources(&self) -> Result<ResourceList, ToolError> {
        let link = self.link().await?;
        let list = link.list_resources(self.spec.timeout).await;
        self.explained(&link, list).await
    }

    /// Reads a resource. The error is a sentence.
    pub async fn read_resource(&self, uri: &str) -> Result<ToolResult, ToolError> {
        let link = self.link().await?;
        let contents = link.read_resource(uri, self.spec.timeout).await;
        let contents = self.explained(&link, contents).await?;
        Ok(outcome::resource(&self.spec.name, uri, contents, |text| link.redactor.mask(text)))
    }

    /// Fetches a prompt. The error is a sentence.
    pub(super) async fn get_prompt(
        &self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<GetPromptResult, ToolError> {
        let link = self.link().await?;
        let prompt = link.get_prompt(name, arguments, self.spec.timeout).await;
        self.explained(&link, prompt).await
    }

    async fn explained<T>(
        &self,
        link: &ReadyConnection,
        came: Result<T, CallFailure>,
    ) -> Result<T, ToolError> {
        match came {
            Ok(came) => Ok(came),
            Err(failure) => Err(self.failure_message(failure, link).await.into()),
        }
    }

    /// Explains a failed request to the model, and to the user if the server is no longer reachable.
    async fn failure_message(&self, failure: CallFailure, link: &ReadyConnection) -> String {
        let name = &self.spec.name;
        match failure {
            CallFailure::Gone => self.lost_reason().await,
            CallFailure::Refused(why) => {
                format!("The MCP server {name} refused the call: {}", bounded(&link.redactor.redact(&why)))
            }
            CallFailure::NeedsTask => {
                format!("The MCP server {name} needs a task for this, and has none.")
            }
            CallFailure::Unreachable(why) => {
                let why = bounded(&link.redactor.redact(&why));
                let text = format!("The MCP server {name} did not get or answer the call: {why}.");
                if self.set_trouble(Some(why))
                    && let Some(news) = link.news.upgrade()
                {
                    // If the channel is full, the user has enough remarks already.
                    let _ = news.try_send(McpEvent::Remark(text.clone()));
                }
                format!("{text} It is not known whether the call took effect.")
            }
            CallFailure::Late => format!(
                "The MCP server {name} did not answer within {} s; the call was cancelled there.",
                self.spec.timeout.as_secs()
            ),
        }
    }

    /// Records that this tool is called as a task.
    fn note_task_tool(&self, tool: &str, link: &ReadyConnection) {
        let mut known = self.task_tools.lock();
        if !known.iter().any(|known| known == tool) {
            known.push(tool.to_owned());
            link.shared.list_changed.notify_one();
        }
    }

    /// Explains why the connection was lost during a call.
    async fn lost_reason(&self) -> String {
        let mut state = self.state.subscribe();
        let gone = state.wait_for(|state| matches!(state, ConnectionState::Gone(_)));
        let why = match tokio::time::timeout(ENDING_WITHIN * 2, gone).await {
            Ok(Ok(ref state)) if let ConnectionState::Gone(why) = &**state => format!(": {why}"),
            _ => String::new(),
        };
        format!(
            "The MCP server {} disconnected during the call{why}. It is not known whether the call took effect.",
            self.spec.name
        )
    }
}

pub(super) fn bounded(text: &str) -> String {
    let text = text.trim();
    match text.len() > REASON_BYTES_MAX {
        true => format!("{}…", &text[..text.floor_char_boundary(REASON_BYTES_MAX)]),
        false => text.to_owned(),
    }
}
