//! Drives one server of a session: a task connects it, keeps the connection, fetches its tools again when
//! they change, and restarts it a limited number of times when it is gone and a call needs it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rmcp::model::PaginatedRequestParams;
use rmcp::service::{ClientInitializeError, Peer, RoleClient, RunningService, serve_client};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::auth::AuthClient;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use tokio::sync::{Semaphore, mpsc};

use super::child::{self, Diagnostics, LINE_BYTES_MAX};
use super::client::{ClientShared, McpClient};
use super::listed::{self, TOOLS_MAX};
use super::redact::ServerRedactor;
use super::server::{ConnectionState, ENDING_WITHIN, ReadyConnection, ServerHandle, bounded, chain};
use super::{McpContext, McpEvent, login};
use epitome_config::{McpSource, McpTransport, variable};
use epitome_platform::group::{CommandExit, RunningCommand};
use epitome_tools::question::QuestionSender;

/// Timeout from starting a server to knowing its tools.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum restarts of a server per session.
const RESTARTS_MAX: u32 = 3;
/// Delay before a restart, multiplied by the number of that restart.
const RESTART_WAIT: Duration = Duration::from_millis(500);
/// Maximum pages of a tool list.
const PAGES_MAX: usize = 20;
/// Minimum delay between a change notification and fetching the list, for lists that change constantly.
const LIST_APART: Duration = Duration::from_secs(1);

/// Why there is no connection.
enum ConnectError {
    /// The user has to log in; `challenge` is the server's authentication challenge.
    Login { url: String, challenge: Option<String> },
    /// Completes a sentence and contains no secrets.
    Other(String),
}

impl From<String> for ConnectError {
    fn from(why: String) -> ConnectError {
        ConnectError::Other(why)
    }
}

/// A connection and everything that ends with it.
struct McpConnection {
    service: RunningService<RoleClient, McpClient>,
    shared: Arc<ClientShared>,
    redactor: ServerRedactor,
    process: Option<(RunningCommand, Arc<Diagnostics>)>,
}

/// Connects a server and maintains it until the session drops the task.
pub async fn drive(
    server: Arc<ServerHandle>,
    context: McpContext,
    door: QuestionSender,
    news: mpsc::Sender<McpEvent>,
) {
    // One login per request for the server, so that users aren't sent to the same page repeatedly.
    let mut may_log_in = true;
    let mut restarts = 0;
    loop {
        let connecting = connect(&server, &context, &door, &news);
        let connected = tokio::time::timeout(CONNECT_TIME_MAX, connecting).await;
        let late =
            || Err(ConnectError::Other(format!("it did not answer within {} s", CONNECT_TIME_MAX.as_secs())));
        let why = match connected.unwrap_or_else(|_| late()) {
            Ok((connection, link)) => {
                let (name, count) = (&server.spec.name, link.tools.len());
                tracing::info!(server = %name, tools = count, "an MCP server is connected");
                server.set(ConnectionState::Ready(Arc::new(link)));
                drop(news.send(McpEvent::Changed { server: name.clone() }).await);
                connection.follow(&server, &news).await
            }
            Err(ConnectError::Login { url, challenge }) if may_log_in => {
                may_log_in = false;
                server.set(ConnectionState::Gone("it waits for you to log in".to_owned()));
                match login::login(&server.spec.name, &url, challenge, &context, &door, &news).await {
                    Ok(()) => {
                        server.set(ConnectionState::Connecting);
                        continue;
                    }
                    Err(why) => why,
                }
            }
            Err(ConnectError::Login { .. }) => "it requires a login".to_owned(),
            Err(ConnectError::Other(why)) => why,
        };
        tracing::info!(server = %server.spec.name, why, "an MCP server is gone");
        let is_over = restarts == RESTARTS_MAX;
        server.is_over.store(is_over, Ordering::Relaxed);
        server.set(ConnectionState::Gone(why.clone()));
        drop(news.send(McpEvent::Gone { server: server.spec.name.clone(), why }).await);
        if is_over {
            return;
        }
        server.wanted.notified().await;
        restarts += 1;
        may_log_in = true;
        tokio::time::sleep(RESTART_WAIT * restarts).await;
        server.set(ConnectionState::Connecting);
    }
}

/// Connects a server and lists its tools. An error completes a sentence and contains no secrets.
async fn connect(
    server: &Arc<ServerHandle>,
    context: &McpContext,
    door: &QuestionSender,
    news: &mpsc::Sender<McpEvent>,
) -> Result<(McpConnection, ReadyConnection), ConnectError> {
    if matches!(server.spec.from, McpSource::Repository { .. }) {
        let (spec, unchanged) = (server.spec.clone(), context.unchanged.clone());
        let checked = tokio::task::spawn_blocking(move || unchanged(&spec)).await;
        checked.unwrap_or_else(|_| Err("what it runs could not be checked".to_owned()))?;
    }
    let way = server.spec.expanded(&context.environment)?;
    let shared = Arc::new(ClientShared::default());
    let client = McpClient {
        server: server.spec.name.clone(),
        shared: shared.clone(),
        door: door.clone(),
        news: news.downgrade(),
        turn: Semaphore::new(1),
    };
    let (service, process, redactor) = match &way {
        McpTransport::Stdio { command, args, env } => {
            let redactor = ServerRedactor::new(&way);
            let redact = {
                let redactor = redactor.clone();
                move |text: &str| redactor.redact(text)
            };
            let child = child::start(&server.spec, (command, args, env), context, redact).await?;
            let child::ServerProcess { running, stdin, stdout, diagnostics } = child;
            let transport =
                AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(LINE_BYTES_MAX + 1);
            let mut process = Some((running, diagnostics));
            match serve_client(client, transport).await {
                Ok(service) => (service, process, redactor),
                Err(error) => {
                    let own = exit_reason(&mut process, &redactor).await;
                    let own = own.unwrap_or_else(|| bounded(&redactor.redact(&initialize_reason(&error))));
                    return Err(own.into());
                }
            }
        }
        McpTransport::Http { url, headers, key_variable } => {
            let key = match key_variable {
                Some(name) => Some(variable(&context.environment, name).ok_or_else(|| {
                    format!("the variable {name}, which should contain its API key, is not set")
                })?),
                None => None,
            };
            let redactor = ServerRedactor::new(&way).and(key.as_ref());
            let service =
                over_http(client, context, url, headers, key).await.map_err(|trouble| match trouble {
                    ConnectError::Login { .. } => trouble,
                    ConnectError::Other(why) => ConnectError::Other(bounded(&redactor.redact(&why))),
                });
            (service?, None, redactor)
        }
    };
    let mut connection = McpConnection { service, shared: shared.clone(), redactor, process };
    match list(server, connection.service.peer(), &shared).await {
        Ok(link) => Ok((connection, link)),
        Err(why) => {
            let own = exit_reason(&mut connection.process, &connection.redactor).await;
            Err(own.unwrap_or_else(|| bounded(&connection.redactor.redact(&why))).into())
        }
    }
}

async fn over_http(
    client: McpClient,
    context: &McpContext,
    url: &str,
    headers: &[(String, String)],
    key: Option<String>,
) -> Result<RunningService<RoleClient, McpClient>, ConnectError> {
    let has_key = key.is_some() || headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
    let asker = context.http.client(url)?;
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    config.auth_header = key;
    for (name, value) in headers {
        let unfit =
            || format!("the header {:?} has characters that headers cannot contain", listed::short(name));
        let parsed = (name.parse().map_err(|_| unfit())?, value.parse().map_err(|_| unfit())?);
        config.custom_headers.insert(parsed.0, parsed.1);
    }
    config.custom_headers.values_mut().for_each(|value| value.set_sensitive(true));
    let kept = if has_key { None } else { login::stored_login(url, context).await };
    let served = match kept {
        Some(kept) => {
            let asker = AuthClient::new(asker, kept);
            serve_client(client, StreamableHttpClientTransport::with_client(asker, config)).await
        }
        None => serve_client(client, StreamableHttpClientTransport::with_client(asker, config)).await,
    };
    served.map_err(|error| match (error.is_authorization_required(), has_key) {
        (true, false) => {
            ConnectError::Login { url: url.to_owned(), challenge: error.auth_challenge().map(str::to_owned) }
        }
        (true, true) => ConnectError::Other("it rejected its API key".to_owned()),
        (false, _) => ConnectError::Other(initialize_reason(&error)),
    })
}

fn initialize_reason(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::ConnectionClosed(_) => "it ended before it answered".to_owned(),
        // Omits the type names that the SDK adds.
        ClientInitializeError::TransportError { error, .. } => chain(error.error.as_ref()),
        other => chain(other),
    }
}

/// Fetches the tool list page by page. The error is text of the server and may contain secrets.
async fn list(
    server: &ServerHandle,
    peer: &Peer<RoleClient>,
    shared: &Arc<ClientShared>,
) -> Result<ReadyConnection, String> {
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
    Ok(ReadyConnection { peer: peer.clone(), shared: shared.clone(), tools, remarks })
}

/// Why a process ended; `None` if it is still running or there is no process.
async fn exit_reason(
    process: &mut Option<(RunningCommand, Arc<Diagnostics>)>,
    redactor: &ServerRedactor,
) -> Option<String> {
    let (running, diagnostics) = process.as_mut()?;
    if let Some(cut) = diagnostics.cut() {
        return Some(format!("{cut}, and was ended"));
    }
    let ending = tokio::time::timeout(ENDING_WITHIN, &mut running.ending).await.ok()?;
    let how = match ending.unwrap_or(CommandExit::Unknown) {
        CommandExit::Code(code) => format!("its process ended with code {code}"),
        CommandExit::Signal(signal) => format!("its process was ended by signal {signal}"),
        CommandExit::Unknown => "its process ended".to_owned(),
    };
    // A process that it left running may hold the pipe open: report what has been read so far.
    drop(tokio::time::timeout(ENDING_WITHIN, diagnostics.read.notified()).await);
    Some(match redactor.redact(&diagnostics.stderr()) {
        said if said.is_empty() => how,
        said => format!("{how} and said: {}", bounded(&said)),
    })
}

impl McpConnection {
    /// Waits until the connection closes, refreshing the tools when they change; returns why it closed.
    async fn follow(self, server: &Arc<ServerHandle>, news: &mpsc::Sender<McpEvent>) -> String {
        let McpConnection { service, shared, redactor, mut process } = self;
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
                            server.set(ConnectionState::Ready(Arc::new(link)));
                            drop(news.send(McpEvent::Changed { server: server.spec.name.clone() }).await);
                        }
                        Ok(Err(_)) | Err(_) => {
                            tracing::info!(server = %server.spec.name, "a changed list of tools was not told");
                        }
                    }
                }
            }
        }
        let own = exit_reason(&mut process, &redactor).await;
        own.unwrap_or_else(|| "it closed the connection".to_owned())
    }
}
