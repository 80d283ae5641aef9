//! Serves clients over a loopback port: each connection is a front end of the daemon like an editor's pipes, over
//! WebSocket with one text frame for each line, or over HTTP with server-sent events. No TLS.
//!
//! - `connection`: the messages of one client, kept for a while so that it can continue after its network failed.
//! - `websocket`: a connection with one socket at a time.
//! - `http`: a connection of many requests.

mod connection;
mod http;
mod websocket;

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};

use super::access::{ACCEPT_AGAIN, AccessRefusal, RemoteAccess, listen_on_loopback};
use super::attach::Connector;
use super::through_socket;
use crate::token::secret;
use connection::{Carrier, RemoteConnection};
use epitome_platform::local::AsyncStream;

/// The path that is served.
pub const PATH: &str = "/acp";

/// Names the connection, in the response that begins it and in later requests.
const CONNECTION_HEADER: HeaderName = HeaderName::from_static("acp-connection-id");

/// The session that a request over HTTP is about.
const SESSION_HEADER: HeaderName = HeaderName::from_static("acp-session-id");

/// The number of frames that the sender has received over WebSocket.
const RECEIVED_HEADER: HeaderName = HeaderName::from_static("acp-received");

/// Maximum number of connections. Each has four threads.
const CONNECTIONS_MAX: usize = 64;

/// Maximum number of sockets. A client over HTTP has one for each session, and a few more.
const SOCKETS_MAX: usize = 512;

/// Time limit for the first bytes of a new socket.
const FIRST_BYTES_TIME_MAX: Duration = Duration::from_secs(10);

/// Time limit for the head of the next request on a socket. Most clients close an unused socket after 90 seconds, and
/// must not find it closed when they use it.
const HEAD_TIME_MAX: Duration = Duration::from_secs(120);

/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The first bytes of a client that speaks HTTP/2 (RFC 9113, section 3.4), as far as no method of HTTP/1 has them.
const HTTP2_PREFACE: &[u8] = b"PRI";

/// Opens a link to the daemon for a new connection.
pub type NewConnector = Arc<dyn Fn() -> Result<Connector, String> + Send + Sync>;

/// A listening server.
pub struct RemoteServer {
    listener: TcpListener,
    clients: Arc<RemoteClients>,
}

/// The clients of a server.
struct RemoteClients {
    access: RemoteAccess,
    connector: NewConnector,
    connections: Mutex<HashMap<String, Arc<RemoteConnection>>>,
    slots: Arc<Semaphore>,
    sockets: Arc<Semaphore>,
}

type RemoteResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl RemoteServer {
    /// Listens on a loopback address. An error is a sentence for the user.
    pub async fn listen(
        address: SocketAddr,
        access: RemoteAccess,
        connector: NewConnector,
    ) -> Result<RemoteServer, String> {
        let listener = listen_on_loopback(address).await?;
        let clients = Arc::new(RemoteClients {
            access,
            connector,
            connections: Mutex::default(),
            slots: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            sockets: Arc::new(Semaphore::new(SOCKETS_MAX)),
        });
        Ok(RemoteServer { listener, clients })
    }

    /// The address that it listens on.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is dropped.
    pub async fn serve(self) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(self.clients.clone().socket(stream));
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
    /// Serves the requests on one socket.
    async fn socket(self: Arc<Self>, stream: TcpStream) {
        let Ok(_permit) = self.sockets.clone().try_acquire_owned() else {
            return tracing::warn!("there are {SOCKETS_MAX} sockets already; another one is closed");
        };
        let Ok(Ok(is_http2)) = tokio::time::timeout(FIRST_BYTES_TIME_MAX, begins_http2(&stream)).await else {
            return;
        };
        let service = service_fn(|request| {
            let clients = self.clone();
            async move { Ok::<RemoteResponse, Infallible>(clients.answer(request).await) }
        });
        let io = TokioIo::new(stream);
        let served = if is_http2 {
            let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            server.timer(TokioTimer::new()).max_header_list_size(HEAD_BYTES_MAX as u32);
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

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> RemoteResponse {
        let origin = match self.admit(&request) {
            Ok(origin) => origin,
            Err(refused) => return *refused,
        };
        let is_websocket = value(request.headers(), &header::UPGRADE)
            .is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket"));
        let mut response = match *request.method() {
            Method::GET if is_websocket => websocket::accept(&self, request).await,
            Method::GET => http::events(&self, &request),
            Method::POST => http::post(&self, request).await,
            Method::DELETE => http::end(&self, &request),
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
    fn admit(&self, request: &Request<Incoming>) -> Result<Option<HeaderValue>, Box<RemoteResponse>> {
        if request.uri().path() != PATH {
            return Err(Box::new(text(StatusCode::NOT_FOUND, "ACP is served at /acp")));
        }
        let refused = |(status, why): AccessRefusal| Box::new(text(status, why));
        self.access.check_origin(request.headers()).map_err(refused)?;
        let origin = request.headers().get(header::ORIGIN);
        // Browsers ask without the token whether a page may send it.
        if request.method() != Method::OPTIONS || origin.is_none() {
            self.access.check_token(request.headers(), None).map_err(refused)?;
        }
        Ok(origin.cloned())
    }

    /// The connection that a request names.
    fn find(&self, headers: &HeaderMap) -> Result<Arc<RemoteConnection>, Box<RemoteResponse>> {
        let refused = |status, why| Box::new(text(status, why));
        let Some(id) = value(headers, &CONNECTION_HEADER) else {
            return Err(refused(StatusCode::BAD_REQUEST, "The header Acp-Connection-Id is missing"));
        };
        let found = self.connections().get(id).cloned();
        let unknown = "There is no such connection; open a new one and load its sessions";
        found.ok_or_else(|| refused(StatusCode::NOT_FOUND, unknown))
    }

    /// Attaches a new connection to the daemon.
    async fn open(self: &Arc<Self>, carrier: Carrier) -> Result<Arc<RemoteConnection>, String> {
        let id = secret().map_err(|error| error.to_string())?;
        let permit = self.slots.clone().try_acquire_owned();
        let permit = permit.map_err(|_| format!("there are {CONNECTIONS_MAX} connections already"))?;
        let connector = self.connector.clone();
        let attached = tokio::task::spawn_blocking(move || {
            let mut connector = connector()?;
            let link = connector.attach(0)?;
            Ok::<_, String>((connector, link))
        });
        let (connector, link) = attached.await.map_err(|error| error.to_string())??;
        let (over, is_over) = oneshot::channel();
        let front = through_socket(connector, link, move || {
            let _permit = permit;
            // Fails only if the runtime has ended.
            let _ = over.send(());
        });
        let failed = |error: io::Error| format!("a connection can't be relayed: {error}");
        let (from_front, to_front) = front.and_then(AsyncStream::from_std).map_err(failed)?.into_split();
        let connection = Arc::new(RemoteConnection::new(id.clone(), carrier, to_front));
        self.connections().insert(id.clone(), connection.clone());
        let (clients, ended) = (self.clone(), connection.clone());
        tokio::spawn(async move {
            drop(is_over.await);
            clients.connections().remove(&id);
            ended.end();
        });
        tokio::spawn(connection.clone().collect(from_front));
        Ok(connection)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<String, Arc<RemoteConnection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
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

fn text(status: StatusCode, text: &str) -> RemoteResponse {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())).boxed_unsync());
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
