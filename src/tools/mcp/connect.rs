//! Connects one server, over the pipes of a process or over HTTP, and fetches what it offers.

use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::{
    ClientRequest, CustomResult, ListToolsRequest, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
    ServerResult,
};
use rmcp::service::{
    ClientLifecycleMode, Peer, RoleClient, RunningService, serve_client, serve_client_with_lifecycle,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::auth::AuthClient;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinError;

use super::call::ReadyConnection;
use super::child::{self, Diagnostics, PipeTransport, ServerStartError};
use super::client::{ClientShared, McpClient};
use super::client_servers::ClientTransport;
use super::errors::{initialize_reason, is_refused_post, service_reason};
use super::http::ServerHttp;
use super::listed::{self, PROMPTS_MAX, RawListing, TOOLS_MAX};
use super::login::{self, LoginError};
use super::pages::{Cursors, ToolPage};
use super::redact::ServerRedactor;
use super::server::{ENDING_WITHIN, ServerHandle, bounded};
use super::sse::{self, SseError, SseHeaders};
use super::stderr::last_words;
use super::{McpContext, McpEvent};
use epitome_config::{McpSource, McpTransport, VariableError, variable};
use epitome_platform::group::{CommandExit, RunningCommand};
use epitome_provider::http::ClientError;
use epitome_tools::BoxError;
use epitome_tools::question::QuestionSender;

/// Timeout from starting a server to receiving its listing.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(60);
/// The same for the first start of a process, which may have to be installed first (`npx`, `uvx`).
pub const FIRST_START_TIME_MAX: Duration = Duration::from_secs(120);
/// Maximum pages of a list.
const PAGES_MAX: usize = 20;
/// Minimum delay between a change notification and fetching the list, for lists that change constantly.
const LIST_APART: Duration = Duration::from_secs(1);
/// How an authorization server reports that the client's registration is unknown (RFC 6749, section 5.2).
const INVALID_CLIENT: &str = "invalid_client";

/// Why a server could not be connected. The text completes a sentence and contains no secrets.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The user has to log in; `challenge` is the server's authentication challenge.
    #[error("it requires a login")]
    Login { url: String, challenge: Option<String> },
    #[error("it did not answer within {} s", .0.as_secs())]
    Late(Duration),
    /// It is not the version that the user consented to.
    #[error(transparent)]
    Changed(BoxError),
    #[error("{what} inside Epitome")]
    Task { what: &'static str, source: JoinError },
    #[error(transparent)]
    Variable(#[from] VariableError),
    #[error("the variable {0}, which should contain its API key, is not set")]
    NoKey(String),
    #[error("it rejected its API key")]
    KeyRejected,
    #[error("the header {0:?} has characters that headers cannot contain")]
    Header(String),
    #[error("it speaks the version {0:?} of the protocol, which Epitome does not know")]
    Version(String),
    #[error(transparent)]
    Start(#[from] ServerStartError),
    #[error(transparent)]
    Http(#[from] ClientError),
    #[error(transparent)]
    LoginFile(#[from] LoginError),
    /// The error in the words of the server or its SDK, without secrets.
    #[error("{0}")]
    Server(String),
}

/// A connection and everything that ends with it. Dropping it closes the connection and ends the process.
pub struct McpConnection {
    service: RunningService<RoleClient, McpClient>,
    link: Arc<ReadyConnection>,
    process: Option<(RunningCommand, Arc<Diagnostics>)>,
}

/// The inputs of a connection attempt.
#[derive(Clone)]
pub struct ServerConnector {
    pub server: Arc<ServerHandle>,
    pub context: McpContext,
    pub questions: QuestionSender,
    pub news: mpsc::WeakSender<McpEvent>,
}

impl ServerConnector {
    /// Connects the server and fetches what it offers, within a bounded time.
    pub async fn connect(self) -> Result<McpConnection, ConnectError> {
        let limit = match self.server.has_listing() {
            false if matches!(self.server.spec.way, McpTransport::Stdio { .. }) => FIRST_START_TIME_MAX,
            false | true => CONNECT_TIME_MAX,
        };
        let connected = tokio::time::timeout(limit, self.connect_unbounded()).await;
        connected.unwrap_or(Err(ConnectError::Late(limit)))
    }

    async fn connect_unbounded(self) -> Result<McpConnection, ConnectError> {
        let ServerConnector { server, context, .. } = &self;
        if matches!(server.spec.from, McpSource::Repository { .. }) {
            let (spec, unchanged) = (server.spec.clone(), context.unchanged.clone());
            let checked = tokio::task::spawn_blocking(move || unchanged(&spec)).await;
            let what = "checking what it runs failed";
            checked.map_err(|source| ConnectError::Task { what, source })?.map_err(ConnectError::Changed)?;
        }
        let way = context.expanded(&server.spec)?;
        let redactor = ServerRedactor::new(&way);
        let mut connection = match &way {
            McpTransport::Stdio { command, args, env } => {
                self.over_pipes(redactor, (command, args, env)).await?
            }
            McpTransport::Http { url, headers, key_variable } => {
                self.over_http(redactor, url, headers, key_variable.as_deref()).await?
            }
            McpTransport::Client { id } => self.over_client(redactor, id).await?,
        };
        match refresh(server, context, &connection.link).await {
            Ok(()) => Ok(connection),
            Err(error) => {
                let own = exit_reason(&mut connection.process, &connection.link.redactor).await;
                let own =
                    own.unwrap_or_else(|| bounded(&connection.link.redactor.redact(&service_reason(&error))));
                Err(ConnectError::Server(own))
            }
        }
    }

    fn client(&self, redactor: &ServerRedactor) -> McpClient {
        McpClient {
            server: self.server.spec.name.clone(),
            shared: Arc::new(ClientShared::default()),
            redactor: redactor.clone(),
            roots: self.context.roots.clone(),
            questions: self.questions.clone(),
            news: self.news.clone(),
            turn: Semaphore::new(1),
        }
    }

    fn connection(
        &self,
        service: RunningService<RoleClient, McpClient>,
        redactor: ServerRedactor,
        process: Option<(RunningCommand, Arc<Diagnostics>)>,
    ) -> Result<McpConnection, ConnectError> {
        let version = service.peer().peer_info().map(|info| info.protocol_version.clone());
        if let Some(version) = version.filter(|version| !ProtocolVersion::KNOWN_VERSIONS.contains(version)) {
            return Err(ConnectError::Version(listed::short(version.as_str())));
        }
        let (peer, shared) = (service.peer().clone(), service.service().shared.clone());
        let link = Arc::new(ReadyConnection { peer, shared, redactor, news: self.news.clone() });
        Ok(McpConnection { service, link, process })
    }

    async fn over_pipes(
        &self,
        redactor: ServerRedactor,
        command: (&str, &[String], &[(String, String)]),
    ) -> Result<McpConnection, ConnectError> {
        let redact = {
            let redactor = redactor.clone();
            move |text: &str| redactor.redact(text)
        };
        let child = child::start(&self.server.spec, command, &self.context, redact).await?;
        let child::ServerProcess { running, stdin, stdout, diagnostics } = child;
        let transport = PipeTransport::new(stdout, stdin, diagnostics.clone());
        let mut process = Some((running, diagnostics));
        match serve_client(self.client(&redactor), transport).await {
            Ok(service) => {
                if let Some((_, diagnostics)) = &process {
                    diagnostics.forget_start();
                }
                self.connection(service, redactor, process)
            }
            Err(error) => {
                let own = exit_reason(&mut process, &redactor).await;
                let own = own.unwrap_or_else(|| bounded(&redactor.redact(&initialize_reason(&error))));
                Err(ConnectError::Server(own))
            }
        }
    }

    /// Servers of a client speak the newest version of the protocol, which has no `initialize`: the connection is that
    /// of the client.
    async fn over_client(&self, redactor: ServerRedactor, id: &str) -> Result<McpConnection, ConnectError> {
        let transport = ClientTransport::new(id.to_owned(), self.context.client.clone());
        let lifecycle =
            ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::NO_INITIALIZE] };
        match serve_client_with_lifecycle(self.client(&redactor), transport, lifecycle).await {
            Ok(service) => self.connection(service, redactor, None),
            Err(error) => Err(ConnectError::Server(bounded(&redactor.redact(&initialize_reason(&error))))),
        }
    }

    async fn over_http(
        &self,
        redactor: ServerRedactor,
        url: &str,
        headers: &[(String, String)],
        key_variable: Option<&str>,
    ) -> Result<McpConnection, ConnectError> {
        let key = match key_variable {
            Some(name) => {
                let key = variable(&self.context.environment, name);
                Some(key.ok_or_else(|| ConnectError::NoKey(name.to_owned()))?)
            }
            None => None,
        };
        let redactor = redactor.and(key.as_ref());
        let has_key =
            key.is_some() || headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let asker = ServerHttp(self.context.http.client(url)?);
        let key_header = key.as_ref().map(|key| format!("Bearer {key}"));
        let config = http_config(url, headers, key)?;
        let kept = if has_key { None } else { login::stored_login(url, &self.context).await };
        let is_logged_in = kept.is_some();
        let client = self.client(&redactor);
        let mut login = None;
        let served = match kept {
            Some(kept) => {
                let asker = AuthClient::new(asker, kept);
                login = Some(asker.auth_manager.clone());
                serve_client(client, StreamableHttpClientTransport::with_client(asker, config)).await
            }
            None => serve_client(client, StreamableHttpClientTransport::with_client(asker, config)).await,
        };
        let error = match served {
            Ok(service) => return self.connection(service, redactor, None),
            Err(error) => error,
        };
        let mut why = initialize_reason(&error);
        let mut challenge =
            error.is_authorization_required().then(|| error.auth_challenge().map(str::to_owned));
        if is_refused_post(&why) {
            // The specification requires clients to fall back to the older transport (Transports, Backwards
            // Compatibility).
            let key = key_header.map(|value| ("authorization".to_owned(), value));
            let headers = SseHeaders { fixed: headers.iter().cloned().chain(key).collect(), login };
            match self.over_sse(url, headers, &redactor).await {
                Ok(service) => return self.connection(service, redactor, None),
                Err(SseError::Unauthorized(asked)) => challenge = Some(asked),
                Err(also) => why = format!("{why}; over the older SSE transport: {also}"),
            }
        }
        if is_logged_in && why.contains(INVALID_CLIENT) {
            // The server has forgotten the client's registration, without which no token can be renewed.
            login::forget(url, &self.context).await?;
            return Err(ConnectError::Login { url: url.to_owned(), challenge: None });
        }
        Err(match challenge {
            Some(challenge) if !has_key => ConnectError::Login { url: url.to_owned(), challenge },
            Some(_) => ConnectError::KeyRejected,
            None => ConnectError::Server(bounded(&redactor.redact(&why))),
        })
    }

    async fn over_sse(
        &self,
        url: &str,
        headers: SseHeaders,
        redactor: &ServerRedactor,
    ) -> Result<RunningService<RoleClient, McpClient>, SseError> {
        let transport = sse::open(&self.context.http, url, headers).await?;
        let served = serve_client(self.client(redactor), transport).await;
        served.map_err(|error| SseError::Server(initialize_reason(&error)))
    }
}

fn http_config(
    url: &str,
    headers: &[(String, String)],
    key: Option<String>,
) -> Result<StreamableHttpClientTransportConfig, ConnectError> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    config.auth_header = key;
    for (name, value) in headers {
        let unfit = || ConnectError::Header(listed::short(name));
        let parsed = (name.parse().map_err(|_| unfit())?, value.parse().map_err(|_| unfit())?);
        config.custom_headers.insert(parsed.0, parsed.1);
    }
    config.custom_headers.values_mut().for_each(|value| value.set_sensitive(true));
    Ok(config)
}

/// Fetches what the server offers, and stores it for later sessions.
async fn refresh(
    server: &Arc<ServerHandle>,
    context: &McpContext,
    link: &ReadyConnection,
) -> Result<(), ServiceError> {
    let mut raw = list(&link.peer).await?;
    raw.task_tools = server.task_tools();
    server.set_listing(&raw);
    let (listings, way) = (context.listings.clone(), server.spec.way.clone());
    // A failure only makes the next session slower.
    drop(tokio::task::spawn_blocking(move || listings.store(&way, &raw)).await);
    Ok(())
}

async fn list(peer: &Peer<RoleClient>) -> Result<RawListing, ServiceError> {
    let Some(info) = peer.peer_info() else { return Ok(RawListing::default()) };
    let mut raw = RawListing {
        instructions: info.instructions.clone(),
        has_tools: info.capabilities.tools.is_some(),
        has_resources: info.capabilities.resources.is_some(),
        ..RawListing::default()
    };
    let mut cursors = Cursors::default();
    for _ in 0..PAGES_MAX {
        if !raw.has_tools {
            break;
        }
        let page = list_tools(peer, cursors.params()).await?;
        raw.add_tools(page.tools, page.remarks);
        if !cursors.go_on(page.next_cursor) || raw.tools.len() > TOOLS_MAX * 4 {
            break;
        }
    }
    if info.capabilities.prompts.is_some() {
        // A server whose prompts can't be listed may still have tools.
        let page = peer.list_prompts(None).await;
        raw.prompts = page.map(|page| page.prompts).unwrap_or_default();
        raw.prompts.truncate(PROMPTS_MAX);
    }
    Ok(raw)
}

/// A page of a server's tools, from which a tool that can't be read is left out.
async fn list_tools(
    peer: &Peer<RoleClient>,
    params: PaginatedRequestParams,
) -> Result<ToolPage, ServiceError> {
    let request =
        ListToolsRequest { method: Default::default(), params: Some(params), extensions: Default::default() };
    match peer.send_request(ClientRequest::ListToolsRequest(request)).await? {
        ServerResult::ListToolsResult(page) => {
            let ListToolsResult { tools, next_cursor, .. } = page;
            Ok(ToolPage { tools, remarks: Vec::new(), next_cursor })
        }
        // The SDK reads all tools of a page or none.
        ServerResult::CustomResult(CustomResult(page)) => {
            ToolPage::read(&page).ok_or(ServiceError::UnexpectedResponse)
        }
        _ => Err(ServiceError::UnexpectedResponse),
    }
}

/// Why a process ended; `None` if it is still running or there is no process.
async fn exit_reason(
    process: &mut Option<(RunningCommand, Arc<Diagnostics>)>,
    redactor: &ServerRedactor,
) -> Option<String> {
    let (running, diagnostics) = process.as_mut()?;
    if let Some(cut) = diagnostics.cut.get() {
        return Some(format!("{cut}, and was ended"));
    }
    let ending = tokio::time::timeout(ENDING_WITHIN, &mut running.ending).await.ok()?;
    let how = match ending.unwrap_or(CommandExit::Unknown) {
        CommandExit::Code(code) => format!("its process ended with code {code}"),
        CommandExit::Signal(signal) => format!("its process was ended by signal {signal}"),
        CommandExit::Unknown => "its process ended".to_owned(),
    };
    // A child process that is still running may keep the pipe open: report what has been read so far.
    drop(tokio::time::timeout(ENDING_WITHIN, diagnostics.read.notified()).await);
    Some(match last_words(&redactor.redact(&diagnostics.stderr())) {
        said if said.is_empty() => how,
        said => format!("{how} and said: {said}"),
    })
}

impl McpConnection {
    pub fn link(&self) -> Arc<ReadyConnection> {
        self.link.clone()
    }

    /// Follows the connection until it closes, and fetches lists again when they change. Returns why it closed.
    pub async fn follow(
        self,
        server: &Arc<ServerHandle>,
        context: &McpContext,
        news: &mpsc::Sender<McpEvent>,
    ) -> String {
        let McpConnection { service, link, mut process } = self;
        let closed = service.waiting();
        tokio::pin!(closed);
        loop {
            tokio::select! {
                biased;
                _ = &mut closed => break,
                () = link.shared.list_changed.notified() => {
                    tokio::time::sleep(LIST_APART).await;
                    let listing = tokio::time::timeout(CONNECT_TIME_MAX, refresh(server, context, &link));
                    match listing.await {
                        Ok(Ok(())) => {
                            drop(news.send(McpEvent::Changed { server: server.spec.name.clone() }).await);
                        }
                        Ok(Err(_)) | Err(_) => {
                            tracing::info!(server = %server.spec.name, "a changed list could not be fetched");
                        }
                    }
                }
            }
        }
        let own = exit_reason(&mut process, &link.redactor).await;
        own.unwrap_or_else(|| "it closed the connection".to_owned())
    }
}
