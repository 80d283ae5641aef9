//! One server of a session: connecting to it, its list of tools, calls, and what happens when it goes.
//!
//! A task drives it as long as the session lives. When it goes it is started again once a call wants it, a
//! few times; nothing waits for it but that call.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, CancelledNotification,
    CancelledNotificationParam, ClientNotification, ClientRequest, PaginatedRequestParams, ProgressToken,
    RequestId, ServerResult,
};
use rmcp::service::{
    ClientInitializeError, Peer, PeerRequestOptions, RoleClient, RunningService, serve_client,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::auth::AuthClient;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Map, Value};
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use super::child::{self, LINE_BYTES_MAX, LastWords};
use super::client::{Client, Shared};
use super::expand::{Hidden, expanded, variable};
use super::listed::{self, Known, TOOLS_MAX};
use super::{News, Surroundings, login, outcome};
use crate::config::{McpServer, McpWay};
use crate::tools::ToolResult;
use crate::tools::group::{Ending, Running};
use crate::tools::question::Door;

/// How long a server may take until its tools are known.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(60);
/// How long a call waits for a server that is just being started again.
const READY_TIME_MAX: Duration = Duration::from_secs(30);
/// How long one call may take, however much progress it tells of.
const CALL_TIME_MAX: Duration = Duration::from_secs(60 * 60);
/// How often a server is started again in one session.
const RESTARTS_MAX: u32 = 3;
/// What lies between a server's end and its next start, times the number of that start.
const RESTART_WAIT: Duration = Duration::from_millis(500);
/// Pages of a list of tools.
const PAGES_MAX: usize = 20;
/// Between two looks at a list that changes all the time.
const LIST_APART: Duration = Duration::from_secs(1);
/// How long the end of a process is waited for whose pipe has closed.
const ENDING_WITHIN: Duration = Duration::from_millis(300);
/// Bytes of a server's own words in an error.
const WORDS_BYTES_MAX: usize = 500;

/// How a server stands.
#[derive(Clone)]
pub enum State {
    Connecting,
    Ready(Arc<Link>),
    /// Why it is not there: the end of a sentence.
    Gone(String),
}

/// A connection whose tools are known.
pub struct Link {
    peer: Peer<RoleClient>,
    shared: Arc<Shared>,
    pub tools: Vec<Known>,
    /// What is said of its list.
    pub remarks: Vec<String>,
}

/// A server, in the hands of who calls its tools.
pub struct Server {
    pub spec: McpServer,
    /// Its part of the tools' names.
    pub label: String,
    state: watch::Sender<State>,
    /// The tools that it had when it was there last.
    last: Mutex<Vec<Known>>,
    wanted: Notify,
    /// It is not started again.
    is_over: AtomicBool,
}

impl Server {
    pub fn new(spec: McpServer, label: String) -> Server {
        Server {
            spec,
            label,
            state: watch::Sender::new(State::Connecting),
            last: Mutex::default(),
            wanted: Notify::new(),
            is_over: AtomicBool::new(false),
        }
    }

    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Its tools, also while it is not there: a call starts it again.
    pub fn tools(&self) -> Vec<Known> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, state: State) {
        if let State::Ready(link) = &state {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = link.tools.clone();
        }
        self.state.send_replace(state);
    }

    /// The connection; one that went is made again. An error is a sentence for the model.
    async fn link(&self) -> Result<Arc<Link>, String> {
        let mut state = self.state.subscribe();
        let first = state.borrow_and_update().clone();
        let why = match first {
            State::Ready(link) => return Ok(link),
            State::Gone(why) if self.is_over.load(Ordering::Relaxed) => return Err(self.gone(&why)),
            State::Gone(why) => {
                self.wanted.notify_one();
                Some(why)
            }
            State::Connecting => None,
        };
        let settled = async {
            loop {
                if state.changed().await.is_err() {
                    return None;
                }
                let now = state.borrow_and_update().clone();
                match now {
                    State::Ready(link) => return Some(Ok(link)),
                    State::Gone(why) => return Some(Err(why)),
                    State::Connecting => {}
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

    fn gone(&self, why: &str) -> String {
        format!(
            "The MCP server {} is not connected: {why}. Go on without it, or tell the user; /mcp shows them how it \
             stands.",
            self.spec.name
        )
    }

    /// Calls a tool. Dropping the future cancels the call at the server.
    pub async fn call(
        &self,
        tool: &Known,
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
            Ok(Err(Failed::Gone)) => ToolResult::failed(self.went().await),
            Ok(Err(Failed::Told(why))) => ToolResult::failed(format!(
                "The MCP server {} refused the call: {}",
                self.spec.name,
                bounded(&Hidden::of(&self.spec.way).hide(&why))
            )),
            Ok(Err(Failed::Late)) => ToolResult::failed(format!(
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

    /// Why a server went in the middle of a call.
    async fn went(&self) -> String {
        let mut state = self.state.subscribe();
        let gone = state.wait_for(|state| matches!(state, State::Gone(_)));
        let why = match tokio::time::timeout(ENDING_WITHIN * 2, gone).await {
            Ok(Ok(state)) => match &*state {
                State::Gone(why) => Some(why.clone()),
                State::Connecting | State::Ready(_) => None,
            },
            Ok(Err(_)) | Err(_) => None,
        };
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        format!(
            "The MCP server {} went away during the call{why}. Whether the call did its work is not known.",
            self.spec.name
        )
    }
}

/// Why there is no connection.
enum Trouble {
    /// The person has to log in; with what the server says of that.
    Login { url: String, challenge: Option<String> },
    /// The end of a sentence, without a secret.
    Other(String),
}

impl From<String> for Trouble {
    fn from(why: String) -> Trouble {
        Trouble::Other(why)
    }
}

/// Why a call has no result.
enum Failed {
    /// The connection is closed.
    Gone,
    /// The server's own word.
    Told(String),
    Late,
}

/// Takes a call back at the server, unless it is done.
struct Cancel {
    peer: Peer<RoleClient>,
    shared: Arc<Shared>,
    token: ProgressToken,
    id: Option<RequestId>,
    reason: &'static str,
}

impl Drop for Cancel {
    fn drop(&mut self) {
        self.shared.forget(&self.token);
        let (Some(id), Ok(runtime)) = (self.id.take(), tokio::runtime::Handle::try_current()) else { return };
        let params = CancelledNotificationParam::new(Some(id), Some(self.reason.to_owned()));
        let peer = self.peer.clone();
        runtime.spawn(async move {
            let told = ClientNotification::CancelledNotification(CancelledNotification::new(params));
            // A server that is gone works on nothing any more; one that reads nothing is not waited for.
            drop(tokio::time::timeout(ENDING_WITHIN, peer.send_notification(told)).await);
        });
    }
}

impl Link {
    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        quiet: Duration,
        progress: Arc<dyn Fn(String) + Send + Sync>,
    ) -> Result<CallToolResult, Failed> {
        let params = CallToolRequestParams::new(Cow::Owned(tool.to_owned())).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let sending = self.peer.send_request_with_option(request, PeerRequestOptions::no_options());
        let mut handle =
            tokio::time::timeout(quiet, sending).await.map_err(|_| Failed::Late)?.map_err(failed)?;
        self.shared.listen(handle.progress_token.clone(), progress);
        let mut cancel = Cancel {
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
                    // Progress counts, and so does a question that the person has not answered yet.
                    let moved = self.shared.moved.swap(false, Ordering::Relaxed);
                    if !moved && self.shared.asking.load(Ordering::Relaxed) == 0 {
                        cancel.reason = "no answer in time";
                        return Err(Failed::Late);
                    }
                }
            }
        };
        cancel.id = None;
        match came.map_err(|_| Failed::Gone)?.map_err(failed)? {
            ServerResult::CallToolResult(came) => Ok(came),
            ServerResult::EmptyResult(_) => Ok(CallToolResult::success(Vec::new())),
            other => {
                tracing::debug!(?other, "an answer to a call that is none");
                Err(Failed::Told("its answer is no result of a tool".to_owned()))
            }
        }
    }
}

fn failed(error: ServiceError) -> Failed {
    match error {
        ServiceError::TransportClosed => Failed::Gone,
        ServiceError::Cancelled { .. } => Failed::Told("it cancelled the call".to_owned()),
        ServiceError::McpError(error) => Failed::Told(error.message.into_owned()),
        other => Failed::Told(chain(&other)),
    }
}

/// An error with what caused it.
fn chain(error: &dyn std::error::Error) -> String {
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

fn bounded(text: &str) -> String {
    let text = text.trim();
    match text.len() > WORDS_BYTES_MAX {
        true => format!("{}…", &text[..text.floor_char_boundary(WORDS_BYTES_MAX)]),
        false => text.to_owned(),
    }
}

// ── Driving ────────────────────────────────────────────────────────────────────────────────────────

/// A connection with what ends with it.
struct Connection {
    service: RunningService<RoleClient, Client>,
    shared: Arc<Shared>,
    hidden: Hidden,
    process: Option<(Running, Arc<LastWords>)>,
}

/// Connects a server and keeps it, until the session drops the task.
pub async fn drive(server: Arc<Server>, around: Surroundings, door: Door, news: mpsc::Sender<News>) {
    // Once for each time that it is wanted: nobody is sent to the same page again and again.
    let mut may_log_in = true;
    let mut starts = 0;
    loop {
        let connecting = connect(&server, &around, &door, &news);
        let connected = tokio::time::timeout(CONNECT_TIME_MAX, connecting).await;
        let late =
            || Err(Trouble::Other(format!("it did not answer within {} s", CONNECT_TIME_MAX.as_secs())));
        let why = match connected.unwrap_or_else(|_| late()) {
            Ok((connection, link)) => {
                let (name, count) = (&server.spec.name, link.tools.len());
                tracing::info!(server = %name, tools = count, "an MCP server is connected");
                server.set(State::Ready(Arc::new(link)));
                let told = News::Changed { server: name.clone() };
                drop(news.send(told).await);
                connection.follow(&server, &news).await
            }
            Err(Trouble::Login { url, challenge }) if may_log_in => {
                may_log_in = false;
                server.set(State::Gone("it waits for you to log in".to_owned()));
                match login::login(&server.spec.name, &url, challenge, &around, &door, &news).await {
                    Ok(()) => {
                        server.set(State::Connecting);
                        continue;
                    }
                    Err(why) => why,
                }
            }
            Err(Trouble::Login { .. }) => "it wants a login".to_owned(),
            Err(Trouble::Other(why)) => why,
        };
        tracing::info!(server = %server.spec.name, why, "an MCP server is gone");
        starts += 1;
        server.is_over.store(starts > RESTARTS_MAX, Ordering::Relaxed);
        server.set(State::Gone(why.clone()));
        drop(news.send(News::Gone { server: server.spec.name.clone(), why }).await);
        if starts > RESTARTS_MAX {
            return;
        }
        server.wanted.notified().await;
        may_log_in = true;
        tokio::time::sleep(RESTART_WAIT * starts).await;
        server.set(State::Connecting);
    }
}

/// An error is the end of a sentence, without a secret.
async fn connect(
    server: &Arc<Server>,
    around: &Surroundings,
    door: &Door,
    news: &mpsc::Sender<News>,
) -> Result<(Connection, Link), Trouble> {
    let way = expanded(&server.spec, &around.environment)?;
    let shared = Arc::new(Shared::default());
    let client = Client {
        server: server.spec.name.clone(),
        shared: shared.clone(),
        door: door.clone(),
        news: news.downgrade(),
        turn: Semaphore::new(1),
    };
    let (service, process, hidden) = match &way {
        McpWay::Stdio { command, args, env } => {
            let hidden = Hidden::of(&way);
            let hide = {
                let hidden = hidden.clone();
                move |text: &str| hidden.hide(text)
            };
            let child = child::start(&server.spec.name, command, args, env, around, hide).await?;
            let child::Child { running, stdin, stdout, last_words } = child;
            let transport =
                AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(LINE_BYTES_MAX + 1);
            let mut process = Some((running, last_words));
            match serve_client(client, transport).await {
                Ok(service) => (service, process, hidden),
                Err(error) => {
                    let own = went(&mut process, &hidden).await;
                    let own = own.unwrap_or_else(|| bounded(&hidden.hide(&initialize_words(&error))));
                    return Err(own.into());
                }
            }
        }
        McpWay::Http { url, headers, key_variable } => {
            let key =
                match key_variable {
                    Some(name) => Some(variable(&around.environment, name).ok_or_else(|| {
                        format!("the variable {name} is not set, which should hold its key")
                    })?),
                    None => None,
                };
            let hidden = Hidden::of(&way).and(key.as_ref());
            let service =
                over_http(client, around, url, headers, key).await.map_err(|trouble| match trouble {
                    Trouble::Login { .. } => trouble,
                    Trouble::Other(why) => Trouble::Other(bounded(&hidden.hide(&why))),
                });
            (service?, None, hidden)
        }
    };
    let mut connection = Connection { service, shared: shared.clone(), hidden, process };
    match list(server, connection.service.peer(), &shared).await {
        Ok(link) => Ok((connection, link)),
        Err(why) => {
            let own = went(&mut connection.process, &connection.hidden).await;
            Err(own.unwrap_or_else(|| bounded(&connection.hidden.hide(&why))).into())
        }
    }
}

async fn over_http(
    client: Client,
    around: &Surroundings,
    url: &str,
    headers: &[(String, String)],
    key: Option<String>,
) -> Result<RunningService<RoleClient, Client>, Trouble> {
    let has_key = key.is_some() || headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
    let asker = around.http.client_for(url)?;
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    config.auth_header = key;
    for (name, value) in headers {
        let unfit = || format!("the header {:?} has characters that none can hold", listed::short(name));
        let parsed = (name.parse().map_err(|_| unfit())?, value.parse().map_err(|_| unfit())?);
        config.custom_headers.insert(parsed.0, parsed.1);
    }
    config.custom_headers.values_mut().for_each(|value| value.set_sensitive(true));
    let kept = if has_key { None } else { login::kept(url, around).await };
    let served = match kept {
        Some(kept) => {
            let asker = AuthClient::new(asker, kept);
            serve_client(client, StreamableHttpClientTransport::with_client(asker, config)).await
        }
        None => serve_client(client, StreamableHttpClientTransport::with_client(asker, config)).await,
    };
    served.map_err(|error| match (error.is_authorization_required(), has_key) {
        (true, false) => {
            Trouble::Login { url: url.to_owned(), challenge: error.auth_challenge().map(str::to_owned) }
        }
        (true, true) => Trouble::Other("it does not take the key that it is given".to_owned()),
        (false, _) => Trouble::Other(initialize_words(&error)),
    })
}

fn initialize_words(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::ConnectionClosed(_) => "it ended before it had answered".to_owned(),
        // Without the names of the types that it went through.
        ClientInitializeError::TransportError { error, .. } => chain(error.error.as_ref()),
        other => chain(other),
    }
}

/// Asks for the list of tools, page by page. An error is a text of the server's.
async fn list(server: &Server, peer: &Peer<RoleClient>, shared: &Arc<Shared>) -> Result<Link, String> {
    let (mut all, mut cursor) = (Vec::new(), None);
    let has_tools = peer.peer_info().is_some_and(|info| info.capabilities.tools.is_some());
    for _ in 0..PAGES_MAX {
        if !has_tools {
            break;
        }
        let mut params = PaginatedRequestParams::default();
        params.cursor = cursor.take();
        let page = peer.list_tools(Some(params)).await.map_err(|error| chain(&error))?;
        all.extend(page.tools);
        cursor = page.next_cursor;
        if cursor.is_none() || all.len() > TOOLS_MAX * 4 {
            break;
        }
    }
    let spec = &server.spec;
    let (tools, mut remarks) = listed::known(&spec.name, &server.label, spec.tools.as_deref(), all);
    if !has_tools {
        remarks.push("it has no tools".to_owned());
    }
    Ok(Link { peer: peer.clone(), shared: shared.clone(), tools, remarks })
}

/// Why a process is gone, in words; `None` where it is not, or there is none.
async fn went(process: &mut Option<(Running, Arc<LastWords>)>, hidden: &Hidden) -> Option<String> {
    let (running, last_words) = process.as_mut()?;
    if let Some(cut) = last_words.cut() {
        return Some(format!("{cut}, and was ended"));
    }
    let ending = tokio::time::timeout(ENDING_WITHIN, &mut running.ending).await.ok()?;
    let how = match ending.unwrap_or(Ending::Unknown) {
        Ending::Code(code) => format!("its process ended with code {code}"),
        Ending::Signal(signal) => format!("its process was ended by signal {signal}"),
        Ending::Unknown => "its process ended".to_owned(),
    };
    // A process that it left behind may hold the pipe open: then what came so far is told.
    drop(tokio::time::timeout(ENDING_WITHIN, last_words.read.notified()).await);
    Some(match hidden.hide(&last_words.stderr()) {
        said if said.is_empty() => how,
        said => format!("{how} and said: {}", bounded(&said)),
    })
}

impl Connection {
    /// Until it is closed; then why.
    async fn follow(self, server: &Arc<Server>, news: &mpsc::Sender<News>) -> String {
        let Connection { service, shared, hidden, mut process } = self;
        let peer = service.peer().clone();
        let closed = service.waiting();
        tokio::pin!(closed);
        loop {
            tokio::select! {
                biased;
                _ = &mut closed => break,
                () = shared.list_changed.notified() => {
                    tokio::time::sleep(LIST_APART).await;
                    let listing = tokio::time::timeout(CONNECT_TIME_MAX, list(server, &peer, &shared));
                    match listing.await {
                        Ok(Ok(link)) => {
                            server.set(State::Ready(Arc::new(link)));
                            drop(news.send(News::Changed { server: server.spec.name.clone() }).await);
                        }
                        Ok(Err(_)) | Err(_) => {
                            tracing::info!(server = %server.spec.name, "a changed list of tools was not told");
                        }
                    }
                }
            }
        }
        let own = went(&mut process, &hidden).await;
        own.unwrap_or_else(|| "it closed the connection".to_owned())
    }
}
