//! Serves clients over a port: each connection is a front end of the daemon like an editor's pipes, over WebSocket with
//! one text frame for each line, or over HTTP with server-sent events. The front end of another machine gets what the
//! daemon sends to its own front ends.
//!
//! - `connection`: the messages of one client, kept for a while so that it can continue after its network failed.
//! - `websocket`: a connection with one socket at a time.
//! - `http`: a connection of many requests.
//! - `metrics`: figures for Prometheus.
//! - `drain`: the end of a server.

mod connection;
mod drain;
mod http;
mod metrics;
mod websocket;

use crate::control::fault::Fault;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinError;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_rustls::TlsAcceptor;

use super::access::{
    ACCEPT_AGAIN, AccessRefusal, AdmittedToken, ListenError, RemoteAccess, listen_on, listen_on_loopback,
};
use super::attach::{AttachError, Connector, FindDaemon};
use super::through_socket;
use crate::remote_tokens::StoredToken;
use crate::token::secret;
use connection::{Carrier, RemoteConnection};
pub use drain::Drain;
use epitome_platform::local::AsyncStream;
use websocket::PING_EVERY;
pub use websocket::{IDS_HEADER, SILENCE_MAX, WRITE_TIME_MAX, front_protocol};

/// The path that is served.
pub const PATH: &str = "/acp";

/// The path at which anybody learns that the server runs.
const HEALTH_PATH: &str = "/healthz";

/// The path at which a load balancer learns whether new connections are accepted.
const READY_PATH: &str = "/readyz";

/// The answer to a client that comes while the server is being shut down.
const DRAINING: &str = "This server is being shut down; connect again";

/// The path of figures for Prometheus, for clients.
const METRICS_PATH: &str = "/metrics";

/// Names the connection, in the response that begins it and in later requests.
pub const CONNECTION_HEADER: HeaderName = HeaderName::from_static("acp-connection-id");

/// The session that a request over HTTP is about.
const SESSION_HEADER: HeaderName = HeaderName::from_static("acp-session-id");

/// The number of frames that the sender has received over WebSocket.
pub const RECEIVED_HEADER: HeaderName = HeaderName::from_static("acp-received");

/// Maximum number of connections. Each has four threads.
const CONNECTIONS_MAX: usize = 64;

/// Maximum number of connections with one token, so that one person does not use up those of all.
const CONNECTIONS_OF_TOKEN_MAX: usize = 16;

/// Maximum number of sockets without a valid token yet. Another one takes the place of the oldest, so that silent sockets
/// keep nobody out.
const NEWCOMERS_MAX: usize = 128;

/// Time limit for the first request with a valid token.
const ADMISSION_TIME_MAX: Duration = Duration::from_secs(10);

/// Interval of checks whether the tokens of connected clients are still valid.
const CHECK_TOKENS_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of sockets with a valid token. A client over HTTP has one for each session, and a few more.
const SOCKETS_MAX: usize = 512;

/// Time limit for the head of the next request on a socket. Most clients close an unused socket after 90 seconds, and
/// must not find it closed when they use it.
const HEAD_TIME_MAX: Duration = Duration::from_secs(120);

/// Maximum bytes that the system takes of a socket and does not send yet. A client that is slow gets them in much less
/// than [`SILENCE_MAX`].
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The first bytes of a client that speaks HTTP/2 (RFC 9113, section 3.4), as far as no method of HTTP/1 has them.
const HTTP2_PREFACE: &[u8] = b"PRI";

/// Opens a link to the daemon for a new connection.
pub type NewConnector = Arc<dyn Fn() -> Result<Connector, AttachError> + Send + Sync>;

/// Why a server does not listen, attach a client, or end properly.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("{DRAINING}")]
    Draining,
    #[error("there are {CONNECTIONS_MAX} connections already")]
    TooManyConnections,
    #[error("this token has {CONNECTIONS_OF_TOKEN_MAX} connections already")]
    TooManyOfToken,
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("a connection can't be relayed: {0}")]
    Relay(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] JoinError),
    #[error(transparent)]
    Control(#[from] Fault),
    #[error("the daemon has closed the connection")]
    Closed,
    #[error("the daemon does not answer")]
    NoAnswer,
    #[error("the daemon does not exit")]
    NoExit,
}

/// How the sockets of a server are kept from being read by others.
pub enum SocketSecurity {
    /// Only this machine can connect.
    Loopback,
    /// A proxy in front of it encrypts.
    Proxy,
    Tls(Arc<ServerConfig>),
}

/// A listening server.
pub struct RemoteServer {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    clients: Arc<RemoteClients>,
}

/// The clients of a server.
struct RemoteClients {
    access: RemoteAccess,
    connector: NewConnector,
    connections: Mutex<HashMap<String, Arc<RemoteConnection>>>,
    slots: Arc<Semaphore>,
    /// The sockets without a valid token, oldest first: dropping one's sender closes it.
    newcomers: Mutex<VecDeque<oneshot::Sender<()>>>,
    sockets: Arc<Semaphore>,
    /// Whether the server is being shut down, and begins nothing new.
    draining: Arc<AtomicBool>,
    /// Number of requests without a valid token.
    refused: AtomicU64,
}

/// A socket's slot among those with a valid token; `None` until its first request with one.
type SocketSlot = Mutex<Option<OwnedSemaphorePermit>>;

/// An error of a body ends the response without its proper end.
type RemoteResponse = Response<UnsyncBoxBody<Bytes, io::Error>>;

impl RemoteServer {
    /// Listens on an address, which is one of this machine alone unless the sockets are encrypted.
    pub async fn listen(
        address: SocketAddr,
        security: SocketSecurity,
        access: RemoteAccess,
        connector: NewConnector,
    ) -> Result<RemoteServer, ServeError> {
        let listener = match security {
            SocketSecurity::Loopback => listen_on_loopback(address).await?,
            SocketSecurity::Proxy | SocketSecurity::Tls(_) => listen_on(address).await?,
        };
        let tls = match security {
            SocketSecurity::Loopback | SocketSecurity::Proxy => None,
            SocketSecurity::Tls(config) => Some(TlsAcceptor::from(config)),
        };
        let clients = Arc::new(RemoteClients {
            access,
            connector,
            connections: Mutex::default(),
            slots: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            newcomers: Mutex::default(),
            sockets: Arc::new(Semaphore::new(SOCKETS_MAX)),
            draining: Arc::default(),
            refused: AtomicU64::new(0),
        });
        Ok(RemoteServer { listener, tls, clients })
    }

    /// The address that it listens on.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is dropped.
    pub async fn serve(self) {
        tokio::spawn(end_invalid(Arc::downgrade(&self.clients)));
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(self.clients.clone().socket(stream, self.tls.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }
}

impl RemoteClients {
    /// Serves one socket, as long as its first request with a valid token comes in time.
    async fn socket(self: Arc<Self>, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let slot = Arc::new(SocketSlot::default());
        let closed = self.newcomer();
        let stranger = async {
            drop(tokio::time::timeout(ADMISSION_TIME_MAX, closed).await);
            if slot.lock().is_some() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.open_socket(stream, tls, slot.clone()) => {}
            () = stranger => tracing::info!("a socket is closed: no request with a valid token came in time"),
        }
    }

    /// Counts a new socket. The result is ready once it has to make room for others.
    fn newcomer(&self) -> oneshot::Receiver<()> {
        let (sender, closed) = oneshot::channel();
        let mut newcomers = self.newcomers.lock();
        newcomers.retain(|newcomer| !newcomer.is_closed());
        newcomers.push_back(sender);
        if newcomers.len() > NEWCOMERS_MAX {
            newcomers.pop_front();
        }
        closed
    }

    async fn open_socket(
        self: &Arc<Self>,
        stream: TcpStream,
        tls: Option<TlsAcceptor>,
        slot: Arc<SocketSlot>,
    ) {
        // Messages are small, and each is waited for.
        drop(stream.set_nodelay(true));
        #[cfg(target_os = "linux")]
        {
            let socket = socket2::SockRef::from(&stream);
            // Bytes of a long message that the system has taken count as moved.
            drop(socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX));
            // A client that acknowledges nothing that it is sent is gone.
            drop(socket.set_tcp_user_timeout(Some(SILENCE_MAX)));
        }
        let Some(acceptor) = tls else {
            let Ok(is_http2) = begins_http2(&stream).await else { return };
            return self.requests(stream, is_http2, slot).await;
        };
        match acceptor.accept(stream).await {
            Ok(stream) => {
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2".as_slice());
                self.requests(stream, is_http2, slot).await;
            }
            Err(error) => tracing::info!(%error, "a client could not agree on encryption"),
        }
    }

    /// Serves the requests on one socket.
    async fn requests<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self: &Arc<Self>,
        stream: S,
        is_http2: bool,
        slot: Arc<SocketSlot>,
    ) {
        let service = service_fn(|request| {
            let (clients, slot) = (self.clone(), slot.clone());
            async move { Ok::<RemoteResponse, Infallible>(clients.answer(request, &slot).await) }
        });
        let io = TokioIo::new(stream);
        let served = if is_http2 {
            let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            server.timer(TokioTimer::new()).max_header_list_size(HEAD_BYTES_MAX as u32);
            // A client whose machine has gone would keep its slot forever.
            server.keep_alive_interval(PING_EVERY).keep_alive_timeout(SILENCE_MAX - PING_EVERY);
            server.serve_connection(io, service).await
        } else {
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX).max_buf_size(HEAD_BYTES_MAX);
            server.serve_connection(io, service).with_upgrades().await
        };
        // A client that has gone is not an error.
        if let Err(error) = served {
            tracing::debug!(%error, "a socket ended");
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>, slot: &SocketSlot) -> RemoteResponse {
        if request.uri().path() == HEALTH_PATH {
            return text(StatusCode::OK, "ok\n");
        }
        if request.uri().path() == READY_PATH {
            return match self.draining.load(Ordering::Relaxed) {
                false => text(StatusCode::OK, "ok\n"),
                true => text(StatusCode::SERVICE_UNAVAILABLE, DRAINING),
            };
        }
        let (origin, token) = match self.admit(&request, slot) {
            Ok(admitted) => admitted,
            Err(refused) => return *refused,
        };
        let headers = request.headers();
        let is_websocket =
            value(headers, &header::UPGRADE).is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket"));
        let mut response = match *request.method() {
            Method::GET if request.uri().path() == METRICS_PATH => metrics::answer(&self).await,
            Method::GET if is_websocket => websocket::accept(&self, request, token).await,
            Method::GET => http::events(&self, &request, &token),
            Method::POST => http::post(&self, request, token).await,
            Method::DELETE => http::end(&self, &request, &token),
            Method::OPTIONS => text(StatusCode::NO_CONTENT, ""),
            _ => text(
                StatusCode::METHOD_NOT_ALLOWED,
                "POST sends a message, GET reads, DELETE ends a connection",
            ),
        };
        if let Some(origin) = origin {
            allow_page(response.headers_mut(), origin);
        }
        response
    }

    /// Checks who asks. Returns the origin if it is a page that may connect.
    fn admit(
        &self,
        request: &Request<Incoming>,
        slot: &SocketSlot,
    ) -> Result<(Option<HeaderValue>, AdmittedToken), Box<RemoteResponse>> {
        let is_read = request.method() == Method::GET;
        let is_report = is_read && request.uri().path() == METRICS_PATH;
        if request.uri().path() != PATH && !is_report {
            return Err(Box::new(text(StatusCode::NOT_FOUND, "ACP is served at /acp")));
        }
        let refused = |(status, why): AccessRefusal| Box::new(text(status, why));
        self.access.check_origin(request.headers()).map_err(refused)?;
        let origin = request.headers().get(header::ORIGIN).cloned();
        // Browsers ask without the token whether a page may send it.
        if request.method() == Method::OPTIONS && origin.is_some() {
            return Ok((origin, None));
        }
        let token = self.access.check_token(request.headers(), None);
        if token.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        let token = token.map_err(refused)?;
        let mut slot = slot.lock();
        if slot.is_none() {
            let permit = self.sockets.clone().try_acquire_owned();
            let too_many =
                || refused((StatusCode::SERVICE_UNAVAILABLE, "There are too many sockets already"));
            *slot = Some(permit.map_err(|_| too_many())?);
        }
        Ok((origin, token))
    }

    /// The connection that a request names, which has to be of the same token.
    fn find(
        &self,
        headers: &HeaderMap,
        token: &AdmittedToken,
    ) -> Result<Arc<RemoteConnection>, Box<RemoteResponse>> {
        let refused = |status, why| Box::new(text(status, why));
        let Some(id) = value(headers, &CONNECTION_HEADER) else {
            return Err(refused(StatusCode::BAD_REQUEST, "The header Acp-Connection-Id is missing"));
        };
        let found = self.connections.lock().get(id).filter(|connection| connection.token == *token).cloned();
        let unknown = "There is no such connection; open a new one and load its sessions";
        found.ok_or_else(|| match self.draining.load(Ordering::Relaxed) {
            true => refused(StatusCode::SERVICE_UNAVAILABLE, DRAINING),
            false => refused(StatusCode::NOT_FOUND, unknown),
        })
    }

    /// Attaches a new connection to the daemon. `front`: it is a front end that reconnects on its own, and has seen
    /// requests of a daemon with ids up to this one.
    async fn open(
        self: &Arc<Self>,
        carrier: Carrier,
        token: AdmittedToken,
        front: Option<u64>,
    ) -> Result<Arc<RemoteConnection>, ServeError> {
        if self.draining.load(Ordering::Relaxed) {
            return Err(ServeError::Draining);
        }
        let id = secret()?;
        let permit = self.slots.clone().try_acquire_owned();
        let permit = permit.map_err(|_| ServeError::TooManyConnections)?;
        let (connector, grant) = (self.connector.clone(), token.as_ref().map(StoredToken::grant));
        let attached = tokio::task::spawn_blocking(move || {
            let mut connector = connector()?;
            if let Some(grant) = grant {
                connector.restrict(grant);
            }
            let link = connector.find(front.unwrap_or(0), false)?;
            Ok::<_, AttachError>((connector, link))
        });
        let (connector, link) = attached.await??;
        let (over, is_over) = oneshot::channel::<()>();
        let (relayed, over) = match front {
            Some(_) => (link.into_stream(), Some(over)),
            None => (through_socket(connector, link, move || drop(over)), None),
        };
        let (from_front, to_front) = relayed.and_then(AsyncStream::from_std)?.into_split();
        let draining = self.draining.clone();
        let connection =
            RemoteConnection::new(id.clone(), carrier, token, to_front, draining, front.is_some());
        let connection = Arc::new(connection);
        self.enter(&connection)?;
        let (clients, ended) = (self.clone(), connection.clone());
        tokio::spawn(async move {
            let _permit = permit;
            drop(is_over.await);
            clients.connections.lock().remove(&id);
            ended.end();
        });
        let collecting = connection.clone();
        tokio::spawn(async move {
            let _over = over;
            collecting.collect(from_front).await;
        });
        Ok(connection)
    }

    fn enter(&self, connection: &Arc<RemoteConnection>) -> Result<(), ServeError> {
        let mut connections = self.connections.lock();
        if connection.token.is_some() {
            let same = connections.values().filter(|other| other.token == connection.token).count();
            if same >= CONNECTIONS_OF_TOKEN_MAX {
                return Err(ServeError::TooManyOfToken);
            }
        }
        connections.insert(connection.id.clone(), connection.clone());
        Ok(())
    }
}

/// Ends the connections of tokens that were revoked or have expired, as long as the server exists.
async fn end_invalid(clients: Weak<RemoteClients>) {
    loop {
        tokio::time::sleep(CHECK_TOKENS_EVERY).await;
        let Some(clients) = clients.upgrade() else { return };
        let connections: Vec<_> = clients.connections.lock().values().cloned().collect();
        for connection in connections.iter().filter(|connection| !clients.access.is_valid(&connection.token))
        {
            tracing::info!(
                token = connection.token.as_ref().map(|token| &token.name),
                "a client is disconnected"
            );
            connection.cut();
        }
    }
}

/// Whether a client that connects speaks HTTP/2 from its first byte.
async fn begins_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; HTTP2_PREFACE.len()];
    loop {
        let count = stream.peek(&mut first).await?;
        let begins = HTTP2_PREFACE.starts_with(&first[..count]);
        if !begins || count == first.len() || count == 0 {
            return Ok(begins && count > 0);
        }
        // The rest of the preface follows at once.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The value of a header, if it is text.
fn value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn full(bytes: Bytes) -> UnsyncBoxBody<Bytes, io::Error> {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn text(status: StatusCode, text: &str) -> RemoteResponse {
    let mut response = Response::new(full(Bytes::from(text.to_owned())));
    *response.status_mut() = status;
    if !text.is_empty() {
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, plain);
    }
    response
}

/// Lets a page of this origin send requests and read the responses.
fn allow_page(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    let allowed = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"),
        (
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "Authorization, Content-Type, Acp-Connection-Id, Acp-Session-Id, Last-Event-ID",
        ),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, "Acp-Connection-Id"),
    ];
    for (name, value) in allowed {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
