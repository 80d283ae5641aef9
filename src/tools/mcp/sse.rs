//! The older HTTP transport (specification of 2024-11-05, "HTTP with SSE"): the server's messages are events of one
//! endless response; the client's messages are posted to the URL named by the first event. The SDK no longer supports
//! it.

use std::future::{Future, ready};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::StreamExt as _;
use rmcp::service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::auth::{AuthError, AuthorizationManager};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;

use super::{http, received};
use epitome_provider::http::{ClientError, Http};
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
    let response = request.send().await.map_err(|_| SseError::Unreachable)?;
    if response.status().as_u16() == UNAUTHORIZED {
        let challenge = response.headers().get("www-authenticate").and_then(|value| value.to_str().ok());
        return Err(SseError::Unauthorized(challenge.map(str::to_owned)));
    }
    let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !response.status().is_success() || !kind.starts_with(EVENTS) {
        return Err(SseError::Status(response.status().as_u16()));
    }
    let own = response.url().clone();
    let mut events =
        http::events(response).filter_map(|event| ready(event.ok().and_then(|event| event.data)));
    let named = events.next().await.ok_or(SseError::Closed)?;
    let address = own.join(named.trim()).map_err(|_| SseError::NoAddress)?;
    if address.origin() != own.origin() {
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
        while let Some(data) = events.next().await {
            // Anything that is not a message is ignored, as on the other transports.
            let Some(message) = received::message(data.as_bytes()) else { continue };
            if sender.send(message).await.is_err() {
                return;
            }
        }
    });
    Ok(SseTransport { post: Arc::new(post), messages, reading })
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
