//! Drives one server of a session: a task connects it, maintains the connection, and reconnects it when the connection
//! is lost (`retry`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::connect::{ConnectError, McpConnection, ServerConnector};
use super::login::{self, LoginError};
use super::retry::{AttemptEnd, NextAttempt, RetryPolicy};
use super::server::{ConnectionState, ServerHandle};
use super::{McpContext, McpEvent};
use epitome_config::{McpServer, McpTransport};
use epitome_tools::question::QuestionSender;

/// Connects a server and maintains it until the session drops the task.
pub async fn drive(
    server: Arc<ServerHandle>,
    context: McpContext,
    questions: QuestionSender,
    news: mpsc::Sender<McpEvent>,
) {
    let is_recent = load_listing(&server, &context).await;
    let starts_at_use = is_recent && context.starts_at_use && starts_at_use(&server.spec);
    if server.has_listing() {
        if starts_at_use {
            server.set(ConnectionState::Idle);
        }
        drop(news.send(McpEvent::Changed { server: server.spec.name.clone() }).await);
    }
    let connector = ServerConnector { server, context, questions, news: news.downgrade() };
    let driver = ServerDriver { connector, news };
    let mut policy = RetryPolicy::default();
    let mut is_reported = false;
    if starts_at_use {
        driver.server().wanted.notified().await;
        driver.server().set(ConnectionState::Connecting);
    }
    loop {
        let (why, end) = driver.attempt(&mut is_reported).await;
        let next = policy.next(end);
        tracing::info!(server = %driver.server().spec.name, why, "an MCP server is gone");
        driver.gone(why, next, &mut is_reported).await;
        if driver.wait(next).await {
            policy.woken();
        }
        driver.server().set(ConnectionState::Connecting);
    }
}

/// Whether a server whose tools are known is started only on demand. Not so for a remote server: it costs nothing to
/// connect early, and may require a login first.
fn starts_at_use(spec: &McpServer) -> bool {
    matches!(spec.way, McpTransport::Stdio { .. }) && !spec.start_with_session
}

/// Loads the listing of an earlier session. Returns whether it is recent; false for a server that this session has
/// already started.
async fn load_listing(server: &Arc<ServerHandle>, context: &McpContext) -> bool {
    let mut is_recent = false;
    if !server.has_listing() {
        let (listings, way) = (context.listings.clone(), server.spec.way.clone());
        let load = move || (listings.load(&way), listings.is_recent(&way));
        if let Ok((Some(raw), recent)) = tokio::task::spawn_blocking(load).await {
            is_recent = recent;
            server.remember_task_tools(&raw.task_tools);
            server.set_listing(&raw);
        }
    }
    if !server.has_listing() && matches!(server.spec.way, McpTransport::Stdio { .. }) {
        server.completes_start.store(true, Ordering::Relaxed);
    }
    is_recent
}

struct ServerDriver {
    connector: ServerConnector,
    news: mpsc::Sender<McpEvent>,
}

impl ServerDriver {
    fn server(&self) -> &Arc<ServerHandle> {
        &self.connector.server
    }

    /// Connects the server, after a login if it requires one, and follows the connection. Returns why it ended.
    async fn attempt(&self, is_reported: &mut bool) -> (String, AttemptEnd) {
        // One login per attempt, so that users aren't sent to the same page repeatedly.
        let mut may_log_in = true;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    let since = Instant::now();
                    self.connected(&connection, is_reported).await;
                    let why = connection.follow(self.server(), &self.connector.context, &self.news).await;
                    return (why, AttemptEnd::Disconnected { after: since.elapsed() });
                }
                Err(ConnectError::Login { url, challenge }) if may_log_in => {
                    may_log_in = false;
                    if let Err(error) = self.log_in(&url, challenge).await {
                        return (error.to_string(), AttemptEnd::NeedsLogin);
                    }
                }
                Err(error @ ConnectError::Login { .. }) => {
                    return (error.to_string(), AttemptEnd::NeedsLogin);
                }
                Err(error) => return (error.to_string(), AttemptEnd::Failed),
            }
        }
    }

    async fn log_in(&self, url: &str, challenge: Option<String>) -> Result<(), LoginError> {
        let why = "it waits for you to log in".to_owned();
        self.server().set(ConnectionState::Gone(why));
        let ServerConnector { server, context, questions, .. } = &self.connector;
        login::login(&server.spec.name, url, challenge, context, questions, &self.news).await?;
        self.server().set(ConnectionState::Connecting);
        Ok(())
    }

    async fn connect(&self) -> Result<McpConnection, ConnectError> {
        let connecting = tokio::spawn(self.connector.clone().connect());
        let _attempt = ConnectionAttempt { server: self.server().clone(), task: connecting.abort_handle() };
        let failed = |source| Err(ConnectError::Task { what: "connecting it failed", source });
        connecting.await.unwrap_or_else(failed)
    }

    async fn connected(&self, connection: &McpConnection, is_reported: &mut bool) {
        let name = &self.server().spec.name;
        tracing::info!(server = %name, tools = self.server().listing().tools.len(), "an MCP server is connected");
        self.server().completes_start.store(false, Ordering::Relaxed);
        self.server().set(ConnectionState::Ready(connection.link()));
        drop(self.news.send(McpEvent::Changed { server: name.clone() }).await);
        if std::mem::take(is_reported) {
            let text = format!("The MCP server {name} is connected now.");
            drop(self.news.send(McpEvent::Remark(text)).await);
        }
    }

    /// Reports the first of several consecutive failures.
    async fn gone(&self, why: String, next: NextAttempt, is_reported: &mut bool) {
        let server = self.server();
        server.set_exhausted(next.on_demand.is_none());
        // A wake-up from before this failure must not trigger another attempt.
        drop(tokio::time::timeout(Duration::ZERO, server.wanted.notified()).await);
        server.set(ConnectionState::Gone(why.clone()));
        let name = server.spec.name.clone();
        let event = match std::mem::replace(is_reported, true) {
            false => McpEvent::Gone { server: name, why },
            true => McpEvent::Changed { server: name },
        };
        drop(self.news.send(event).await);
    }

    /// Waits for the next attempt. Returns whether a call caused it.
    async fn wait(&self, next: NextAttempt) -> bool {
        let automatic = tokio::time::sleep(next.automatic.unwrap_or_default());
        let on_demand = async {
            self.server().wanted.notified().await;
            tokio::time::sleep(next.on_demand.unwrap_or_default()).await;
        };
        tokio::select! {
            () = automatic, if next.automatic.is_some() => false,
            () = on_demand, if next.on_demand.is_some() => true,
            else => std::future::pending().await,
        }
    }
}

/// A connection attempt. Dropping it ends the attempt, unless it is a first start that has to be completed: an
/// installation that is killed by every short session would never finish.
struct ConnectionAttempt {
    server: Arc<ServerHandle>,
    task: AbortHandle,
}

impl Drop for ConnectionAttempt {
    fn drop(&mut self) {
        if !self.server.completes_start.load(Ordering::Relaxed) {
            self.task.abort();
        }
    }
}
