//! The older HTTP transport (specification of 2024-11-05, "HTTP with SSE"): the server's messages are events of one
//! endless response; the client's messages are posted to the URL named by the first event. The SDK no longer supports
//! it.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rmcp::service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::auth::{AuthError, AuthorizationManager};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;

use super::received;
use epitome_provider::http::{ClientError, Http};
use epitome_provider::wire::sse::{EventTooLong, SseParser};
use epitome_tools::BoxFuture;

/// Time limit for the first event.
const OPEN_TIME_MAX: Duration = Duration::from_secs(15);
/// Maximum received messages queued for the client.
const WAITING_MAX: usize = 64;
/// The HTTP status of a request without a valid login.
const UNAUTHORIZED: u16 = 401;
/// The content type of the response.
const EVENTS: &str = "text/event-stream";

/// Posts one message of the client.
type Post = Arc<dyn Fn(Vec<u8>) -> BoxFuture<io::Result<()>> + Send + Sync>;

/// An open connection. Dropping it closes it.
pub struct SseTransport {
    post: Post,
    messages: mpsc::Receiver<RxJsonRpcMessage<RoleClient>>,
    reading: JoinHandle<()>,
}

impl Drop for SseTransport {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// Why a connection could not be opened. The text completes a sentence.
#[derive(Debug, thiserror::Error)]
pub enum SseError {
    /// The user has to log in; contains the server's challenge.
    #[error("it requires a login")]
    Unauthorized(Option<String>),
    #[error(transparent)]
    Http(#[from] ClientError),
    #[error(transparent)]
    Token(#[from] AuthError),
    #[error("it cannot be reached")]
    Unreachable,
    #[error("it answers with HTTP {0}, not with events")]
    Status(u16),
    #[error("it closed the connection before it named an address for messages")]
    Closed,
    #[error("it sent an event that is too long")]
    EventTooLong,
    #[error("it named no address for messages")]
    NoAddress,
    #[error("it named an address on another host for messages")]
    OtherHost,
    #[error("it named no address for messages within {} s", OPEN_TIME_MAX.as_secs())]
    Late,
    /// It could not be initialized, for this reason.
    #[error("{0}")]
    Server(String),
}

/// Headers sent with each request.
#[derive(Clone)]
pub struct SseHeaders {
    pub fixed: Vec<(String, String)>,
    /// Provides the access token of a login, and renews it.
    pub login: Option<Arc<Mutex<AuthorizationManager>>>,
}

impl SseHeaders {
    async fn current(&self) -> Result<Vec<(String, String)>, AuthError> {
        let mut headers = self.fixed.clone();
        if let Some(login) = &self.login {
            let token = login.lock().await.get_access_token().await?;
            headers.push(("authorization".to_owned(), format!("Bearer {token}")));
        }
        Ok(headers)
    }
}

/// Opens a connection.
pub async fn open(http: &Http, url: &str, headers: SseHeaders) -> Result<SseTransport, SseError> {
    let opening = open_unbounded(http, url, headers);
    let opened = tokio::time::timeout(OPEN_TIME_MAX, opening).await;
    opened.unwrap_or(Err(SseError::Late))
}

async fn open_unbounded(http: &Http, url: &str, headers: SseHeaders) -> Result<SseTransport, SseError> {
    let client = http.client(url)?;
    let mut request = client.get(url).header("accept", EVENTS);
    for (name, value) in headers.current().await? {
        request = request.header(name, value);
    }
    let mut response = request.send().await.map_err(|_| SseError::Unreachable)?;
    if response.status().as_u16() == UNAUTHORIZED {
        let challenge = response.headers().get("www-authenticate").and_then(|value| value.to_str().ok());
        return Err(SseError::Unauthorized(challenge.map(str::to_owned)));
    }
    let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !response.status().is_success() || !kind.starts_with(EVENTS) {
        return Err(SseError::Status(response.status().as_u16()));
    }
    let mut parser = SseParser::default();
    let mut events: Vec<String> = Vec::new();
    while events.is_empty() {
        let piece = response.chunk().await.ok().flatten().ok_or(SseError::Closed)?;
        read(&mut parser, &piece, &mut events)?;
    }
    let rest = events.split_off(1);
    let named = events.pop().unwrap_or_default();
    let address = response.url().join(named.trim());
    let address = address.map_err(|_| SseError::NoAddress)?;
    if address.origin() != response.url().origin() {
        // The headers, which may contain a key, would go to another host.
        return Err(SseError::OtherHost);
    }
    let post = move |body: Vec<u8>| -> BoxFuture<io::Result<()>> {
        let mut request = client.post(address.clone()).header("content-type", "application/json").body(body);
        let headers = headers.clone();
        Box::pin(async move {
            for (name, value) in headers.current().await.map_err(io::Error::other)? {
                request = request.header(name, value);
            }
            let response = request.send().await.map_err(|_| io::Error::other("it cannot be reached"))?;
            match response.status().is_success() {
                true => Ok(()),
                false => Err(io::Error::other(format!("HTTP {}", response.status().as_u16()))),
            }
        })
    };
    let (sender, messages) = mpsc::channel(WAITING_MAX);
    let reading = tokio::spawn(async move {
        let mut events = rest;
        loop {
            for event in events.drain(..) {
                // Anything that is not a message is ignored, as on the other transports.
                let Some(message) = received::message(event.as_bytes()) else { continue };
                if sender.send(message).await.is_err() {
                    return;
                }
            }
            let Ok(Some(piece)) = response.chunk().await else { return };
            if read(&mut parser, &piece, &mut events).is_err() {
                return;
            }
        }
    });
    Ok(SseTransport { post: Arc::new(post), messages, reading })
}

/// Appends the data of the events that end in this piece.
fn read(parser: &mut SseParser, piece: &[u8], events: &mut Vec<String>) -> Result<(), SseError> {
    let read: Result<(), EventTooLong> = parser.push(piece, |event| {
        events.push(event.to_owned());
        Ok(())
    });
    read.map_err(|EventTooLong| SseError::EventTooLong)
}

impl Transport<RoleClient> for SseTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let post = self.post.clone();
        async move { post(serde_json::to_vec(&message)?).await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        self.messages.recv().await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.reading.abort();
        Ok(())
    }
}
