//! Connects a front end to a daemon on another machine: over a WebSocket to `epitome serve`, which passes on each line
//! in a frame.
//!
//! A socket that fails is replaced, and continues where the last one was. If the server no longer knows the connection,
//! or can't be reached for a while, the link ends like that of a daemon that died.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{FutureExt, SinkExt, StreamExt};
use hyper::header::{self, HeaderName, HeaderValue, InvalidHeaderValue};
use hyper::{HeaderMap, StatusCode};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use socket2::SockRef;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::http::Uri;
use tokio_tungstenite::tungstenite::http::uri::InvalidUri;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use tower_service::Service;

use super::LAST_WORDS_TIME_MAX;
use super::attach::{AttachError, DaemonLink, FindDaemon, Redirect, WaitReport};
use super::kept_frames::KeptFrames;
use super::progress::{CountedSocket, SocketProgress};
use super::remote::{
    CONNECTION_HEADER, IDS_HEADER, PATH, RECEIVED_HEADER, SILENCE_MAX, WRITE_TIME_MAX, front_protocol,
};
use super::tls::{self, TlsError};
use crate::handshake::RETURN_TIME_MAX;
use crate::messages::MESSAGE_BYTES_MAX;
use epitome_acp::envelope::{self, Incoming};
use epitome_acp::{answers, writer};
use epitome_platform::local::{self, OwnedReadHalf, OwnedWriteHalf};

/// Time limit for each step of connecting: the network, the encryption, the handshake.
const STEP_TIME_MAX: Duration = Duration::from_secs(15);

/// Delay before the first attempt to replace a socket; it doubles with each.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// The longest such delay.
const TRY_AGAIN_MAX: Duration = Duration::from_secs(3);

/// Time without a connection after which the user is shown that it is waited for.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// Bytes of frames kept to send them again after a socket has failed.
const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long a server is waited for that has a session of the window, at first and after its connection has failed. Then its
/// lease is about to end, and the window's own server can have the session.
const MOVE_TIME_MAX: Duration = Duration::from_millis(1_500);

/// Why a server that is slow is given up.
const NO_ANSWER: &str = "no answer in time";

/// Longest text of a refusal that is shown, in characters.
const REFUSAL_CHARS_MAX: usize = 300;

/// A server, and how to connect to it.
pub struct RemoteServerAddress {
    uri: Uri,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    token: HeaderValue,
    role: ServerRole,
}

/// The reason why a window uses a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerRole {
    /// The user has named it.
    Own,
    /// It has a session of the window.
    Referred,
}

impl ServerRole {
    /// How long the server is waited for if its connection has failed.
    fn wait(self) -> Duration {
        match self {
            ServerRole::Own => RETURN_TIME_MAX,
            ServerRole::Referred => MOVE_TIME_MAX,
        }
    }
}

/// The link between the front end and a server.
pub struct RemoteConnector {
    server: Arc<RemoteServerAddress>,
    /// The address of the next link instead: this server has a session of the window.
    next: Option<(String, RemoteServerAddress)>,
    /// The last address that could not be used in this way, and why.
    unusable: Option<(String, String)>,
    /// The newest link. Each has its own: a link that was given up may still be waiting for its own server.
    link: Arc<Mutex<LinkState>>,
    report: Option<WaitReport>,
    runtime: Runtime,
}

/// The state that a connector shares with the task that carries a link.
#[derive(Default)]
struct LinkState {
    history: LinkHistory,
    /// Shows the user that the task waits for the server; `None` once the connector looks for another link.
    report: Option<WaitReport>,
}

/// Knowledge about a server from earlier links to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinkHistory {
    /// It may not exist.
    #[default]
    NeverLinked,
    Linked,
    /// It was linked, and a later wait for it has failed.
    WaitedInVain,
}

impl LinkHistory {
    fn waited_in_vain(&mut self) {
        if *self == LinkHistory::Linked {
            *self = LinkHistory::WaitedInVain;
        }
    }
}

trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

type ServerSocket = WebSocketStream<CountedSocket<Box<dyn Transport>>>;

/// A socket that has just been connected.
struct DialedSocket {
    socket: ServerSocket,
    progress: SocketProgress,
    /// Names the connection.
    id: HeaderValue,
    /// Number of our frames that have arrived.
    arrived: u64,
}

/// Why no socket was connected.
#[derive(Debug)]
pub enum DialError {
    Unreachable(String),
    Refused(StatusCode, String),
    /// Another program answered, or an `epitome serve` with another version of the protocol.
    Incompatible(String),
}

impl DialError {
    fn refused(status: StatusCode, text: &str) -> DialError {
        DialError::Refused(status, text.chars().take(REFUSAL_CHARS_MAX).collect())
    }

    /// Whether another server may soon take the place of one that can't be used.
    fn may_pass(&self, history: LinkHistory) -> bool {
        match self {
            DialError::Unreachable(_) => history == LinkHistory::Linked,
            // A proxy answers like this while there is no server.
            DialError::Refused(status, _) => {
                *status == StatusCode::SERVICE_UNAVAILABLE
                    || history == LinkHistory::Linked && is_passing(*status)
            }
            DialError::Incompatible(_) => false,
        }
    }
}

impl std::error::Error for DialError {}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DialError::Unreachable(why) | DialError::Incompatible(why) => f.write_str(why),
            DialError::Refused(StatusCode::UNAUTHORIZED, _) => f.write_str(
                "it does not accept the token: it may have expired or been revoked; `epitome token list` on the server \
                 shows all",
            ),
            DialError::Refused(status, text) => write!(f, "it refuses: {text} ({})", status.as_u16()),
        }
    }
}

/// Why an address of a server can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ServerAddressError {
    #[error("{address:?} is not an address: {source}")]
    Invalid { address: String, source: InvalidUri },
    #[error("the address of a server begins with wss://, as in wss://host:4711/acp")]
    Scheme,
    #[error("{host} is another machine, and ws:// is not encrypted: use wss://, or a tunnel to this machine")]
    Unencrypted { host: String },
    #[error("the address of a server has a host, perhaps a port and a path, and nothing else")]
    Parts,
    #[error("the token has invalid characters")]
    Token(#[from] InvalidHeaderValue),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{server} and {other} differ in their encryption")]
    Encryption { server: Box<Uri>, other: Box<Uri> },
}

impl RemoteServerAddress {
    /// Parses an address, wss:// or, on this machine, ws://. Without a path, it is the usual one. `ca`: PEM files with the
    /// certificates to trust instead of the public ones.
    pub fn parse(
        address: &str,
        token: &str,
        ca: Option<&[u8]>,
    ) -> Result<RemoteServerAddress, ServerAddressError> {
        let invalid = |source| ServerAddressError::Invalid { address: address.to_owned(), source };
        let uri = address.parse::<Uri>().map_err(invalid)?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let (default_port, tls) = match uri.scheme_str() {
            Some("wss") => (443, Some(TlsConnector::from(tls::client(ca)?))),
            Some("ws") if is_loopback(&host) => (80, None),
            Some("ws") => {
                return Err(ServerAddressError::Unencrypted { host });
            }
            _ => return Err(ServerAddressError::Scheme),
        };
        if host.is_empty()
            || uri.query().is_some()
            || uri.authority().is_some_and(|it| it.as_str().contains('@'))
        {
            return Err(ServerAddressError::Parts);
        }
        let path = if matches!(uri.path(), "" | "/") { PATH } else { uri.path() };
        let port = uri.port_u16().unwrap_or(default_port);
        let scheme = uri.scheme_str().unwrap_or_default();
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let uri = format!("{scheme}://{authority}{path}").parse::<Uri>().map_err(invalid)?;
        let mut token = HeaderValue::from_str(&format!("Bearer {token}"))?;
        token.set_sensitive(true);
        Ok(RemoteServerAddress { uri, host, port, tls, token, role: ServerRole::Own })
    }

    /// Another server with the same tokens, to which this one refers.
    fn other(&self, address: &str) -> Result<RemoteServerAddress, ServerAddressError> {
        let other = RemoteServerAddress::parse(address, "", None)?;
        if other.tls.is_some() != self.tls.is_some() {
            return Err(ServerAddressError::Encryption {
                server: Box::new(self.uri.clone()),
                other: Box::new(other.uri),
            });
        }
        let (tls, token) = (self.tls.clone(), self.token.clone());
        Ok(RemoteServerAddress { tls, token, role: ServerRole::Referred, ..other })
    }

    fn linked(
        self: Arc<Self>,
        dialed: DialedSocket,
        link: Arc<Mutex<LinkState>>,
    ) -> io::Result<(local::Stream, impl Future<Output = ()> + Send)> {
        let (front, relay) = local::pair()?;
        relay.set_nonblocking(true)?;
        Ok((front, carry(self, dialed, local::AsyncStream::from_std(relay)?, link)))
    }

    async fn dial(&self, headers: Vec<(HeaderName, HeaderValue)>) -> Result<DialedSocket, DialError> {
        let (socket, progress, headers) = self.connect(&front_protocol(), headers).await?;
        let arrived = headers.get(&RECEIVED_HEADER).and_then(|count| count.to_str().ok()?.parse().ok());
        match (headers.get(&CONNECTION_HEADER), arrived) {
            (Some(id), Some(arrived)) => Ok(DialedSocket { socket, progress, id: id.clone(), arrived }),
            _ => Err(DialError::Incompatible(format!("{}: this server is not `epitome serve`", self.uri))),
        }
    }

    /// Opens a WebSocket of this subprotocol. Returns it with the headers of the answer.
    async fn connect(
        &self,
        protocol: &str,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> Result<(ServerSocket, SocketProgress, HeaderMap), DialError> {
        let stream = self.stream().await?;
        let mut request = self.uri.clone().into_client_request().map_err(|error| self.unreachable(error))?;
        let protocol = HeaderValue::from_str(protocol).expect("letters and digits");
        request.headers_mut().extend(headers);
        request.headers_mut().insert(header::AUTHORIZATION, self.token.clone());
        request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let progress = SocketProgress::default();
        let handshake = client_async_with_config(request, progress.count(stream), Some(limits));
        let connected = timeout(STEP_TIME_MAX, handshake).await.map_err(|_| self.unreachable(NO_ANSWER))?;
        let (socket, response) = connected.map_err(|error| match error {
            Error::Http(response) => {
                let body = response.body().as_deref().unwrap_or_default();
                DialError::refused(response.status(), &String::from_utf8_lossy(body))
            }
            Error::Protocol(error) => {
                let why = format!(
                    "{}: {error}; the server has to be an `epitome serve` of the same version",
                    self.uri
                );
                match error {
                    ProtocolError::SecWebSocketSubProtocolError(_) => DialError::Incompatible(why),
                    _ => DialError::Unreachable(why),
                }
            }
            error => self.unreachable(error),
        })?;
        Ok((socket, progress, response.into_parts().0.headers))
    }

    fn unreachable(&self, why: impl fmt::Display) -> DialError {
        DialError::Unreachable(format!("{}: {why}", self.uri))
    }

    /// Waits for a step of connecting.
    async fn step<T, E: fmt::Display>(
        &self,
        limit: Duration,
        step: impl Future<Output = Result<T, E>>,
    ) -> Result<T, DialError> {
        match timeout(limit, step).await {
            Ok(done) => done.map_err(|error| self.unreachable(error)),
            Err(_) => Err(self.unreachable(NO_ANSWER)),
        }
    }

    /// Connects to the server, or to the proxy that the environment names for it.
    async fn tcp(&self) -> Result<TcpStream, DialError> {
        let server = format!("https://{}:{}", self.uri.host().unwrap_or_default(), self.port).parse::<Uri>();
        let proxy = server.as_ref().ok().and_then(|server| Matcher::from_env().intercept(server));
        let is_usable = |proxy: &Intercept| proxy.uri().scheme_str() == Some("http");
        let proxy = proxy.filter(|it| self.tls.is_some() && !is_loopback(&self.host) && is_usable(it));
        let (Ok(server), Some(proxy)) = (server, proxy) else {
            return self.step(STEP_TIME_MAX, TcpStream::connect((self.host.as_str(), self.port))).await;
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), HttpConnector::new());
        if let Some(credentials) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        self.step(STEP_TIME_MAX, tunnel.call(server)).await.map(TokioIo::into_inner)
    }

    /// Connects, with encryption if the address asks for it.
    async fn stream(&self) -> Result<Box<dyn Transport>, DialError> {
        let stream = self.tcp().await?;
        // Messages are small, and each is waited for.
        drop(stream.set_nodelay(true));
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| self.unreachable(error))?;
        let encrypting = tls.connect(name, stream);
        let encrypting =
            async { encrypting.await.map_err(|error| format!("no encrypted connection: {error}")) };
        Ok(Box::new(self.step(STEP_TIME_MAX, encrypting).await?))
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl RemoteConnector {
    pub fn new(server: RemoteServerAddress) -> io::Result<RemoteConnector> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("front-remote")
            .enable_all()
            .build()?;
        Ok(RemoteConnector {
            server: Arc::new(server),
            next: None,
            unusable: None,
            link: Arc::default(),
            report: None,
            runtime,
        })
    }

    /// Makes a link of a socket to a server.
    fn linked_to(
        &mut self,
        server: Arc<RemoteServerAddress>,
        dialed: DialedSocket,
    ) -> Result<DaemonLink, AttachError> {
        let link = LinkState { history: LinkHistory::Linked, report: self.report.clone() };
        self.link = Arc::new(Mutex::new(link));
        let _entered = self.runtime.enter();
        let name = server.host.clone();
        let (front, carrying) = server.linked(dialed, self.link.clone()).map_err(AttachError::Relay)?;
        self.runtime.spawn(carrying);
        DaemonLink::new(front, name).map_err(AttachError::Relay)
    }
}

impl FindDaemon for RemoteConnector {
    fn find(&mut self, ids_above: u64, _to_newer: bool) -> Result<DaemonLink, AttachError> {
        self.link.lock().report = None;
        let headers = vec![(IDS_HEADER, HeaderValue::from(ids_above))];
        if let Some((address, next)) = self.next.take() {
            let why = match self.runtime.block_on(dial_referred(&next, headers.clone())) {
                Ok(dialed) => return self.linked_to(Arc::new(next), dialed),
                Err(error) => error.to_string(),
            };
            tracing::info!(address, why, "the server that has the session can't be used");
            self.unusable = Some((address, why));
        }
        let dialed = match self.runtime.block_on(self.server.dial(headers.clone())) {
            // The server is being shut down or has been, and another one takes its place.
            Err(error) if error.may_pass(self.link.lock().history) => {
                let why = match &error {
                    DialError::Refused(_, text)
                    | DialError::Unreachable(text)
                    | DialError::Incompatible(text) => text,
                };
                let text = waits_because(why, self.server.role.wait());
                eprintln!("epitome: {text}");
                if let Some(report) = &self.report {
                    report(Some(&text));
                }
                let dialed = self.runtime.block_on(dial_again(&self.server, headers, &self.link));
                dialed.map_err(|newest| newest.unwrap_or(error))
            }
            dialed => dialed,
        };
        self.linked_to(self.server.clone(), dialed?)
    }

    fn go_to(&mut self, address: &str) -> Redirect {
        if let Some((_, why)) = self.unusable.take_if(|(unusable, _)| unusable == address) {
            return Redirect::Impossible(why);
        }
        match self.server.other(address) {
            Ok(next) => {
                self.next = Some((address.to_owned(), next));
                Redirect::Followed
            }
            Err(error) => Redirect::Impossible(error.to_string()),
        }
    }

    fn report_to(&mut self, report: WaitReport) {
        self.link.lock().report = Some(report.clone());
        self.report = Some(report);
    }
}

/// The sentence for a user whose window waits for a server.
fn waits_because(why: &str, wait: Duration) -> String {
    format!("{why}. Waiting at most {} s", wait.as_secs_f64())
}

/// The lines of the front end that the server may lack.
struct SentFrames {
    from_front: BufReader<OwnedReadHalf>,
    /// The line that is being read.
    line: Vec<u8>,
    frames: KeptFrames,
}

impl SentFrames {
    /// Sends lines until the front end closes its end, or the socket fails.
    async fn send(
        &mut self,
        sink: &mut SplitSink<ServerSocket, Message>,
        progress: &SocketProgress,
    ) -> SocketEnd {
        loop {
            if let Some(frame) = self.frames.next() {
                match progress.while_writing(WRITE_TIME_MAX, sink.send(Message::Text(frame))).await {
                    Some(Ok(())) => self.frames.trim(KEPT_BYTES_MAX),
                    Some(Err(_)) | None => return SocketEnd::Cut,
                }
                continue;
            }
            if !self.read().await {
                return SocketEnd::FrontClosed;
            }
        }
    }

    /// Reads a line to be sent. False at the end.
    async fn read(&mut self) -> bool {
        match self.from_front.read_until(b'\n', &mut self.line).await {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(self.line.trim_ascii_end()).into_owned();
        self.line.clear();
        if !line.is_empty() {
            self.frames.put(line.into());
        }
        true
    }

    /// Takes no more lines, and returns the prompts that were never sent to the front end, which sends them to the next daemon.
    /// A prompt that was sent may have begun.
    async fn give_back(mut self, mut received: ReceivedFrames) {
        // Some systems drop what is not read before.
        while self.read().now_or_never() == Some(true) {}
        drop(SockRef::from(self.from_front.get_ref().as_ref()).shutdown(Shutdown::Read));
        while self.read().await {}
        let mut lines = Vec::new();
        while let Some(frame) = self.frames.next() {
            if let Incoming::Request { id, method, .. } = envelope::read(frame.as_bytes())
                && method == "session/prompt"
            {
                writer::response(&mut lines, id, Err(answers::returned()));
            }
        }
        received.rest.extend_from_slice(&lines);
        // A front end that has gone needs none of them.
        drop(received.to_front.write_all(&received.rest).await);
    }
}

/// The server's lines.
struct ReceivedFrames {
    to_front: OwnedWriteHalf,
    /// The part of a line that is still to be written.
    rest: BytesMut,
    received: u64,
}

impl ReceivedFrames {
    /// Passes lines on until the socket ends. A line that has begun continues after a call that was given up.
    async fn pass_on(
        &mut self,
        stream: &mut SplitStream<ServerSocket>,
        progress: &SocketProgress,
    ) -> SocketEnd {
        loop {
            while !self.rest.is_empty() {
                if self.to_front.write_buf(&mut self.rest).await.is_err() {
                    return SocketEnd::FrontClosed;
                }
            }
            match progress.while_moving(SILENCE_MAX, stream.next()).await {
                Some(Some(Ok(Message::Text(text)))) => {
                    self.received += 1;
                    self.rest.extend_from_slice(text.as_bytes());
                    self.rest.extend_from_slice(b"\n");
                }
                Some(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)))) => {}
                Some(Some(Ok(Message::Close(_) | Message::Binary(_)) | Err(Error::ConnectionClosed))) => {
                    return SocketEnd::ServerClosed;
                }
                Some(Some(Err(_)) | None) | None => return SocketEnd::Cut,
            }
        }
    }
}

enum SocketEnd {
    /// The front end is done, or has given this link up.
    FrontClosed,
    /// The server has ended the connection, because the daemon has.
    ServerClosed,
    Cut,
}

/// Carries lines until one side is done, over as many sockets as needed.
async fn carry(
    server: Arc<RemoteServerAddress>,
    dialed: DialedSocket,
    relay: local::AsyncStream,
    link: Arc<Mutex<LinkState>>,
) {
    let (from_front, to_front) = relay.into_split();
    let mut sent = SentFrames {
        from_front: BufReader::new(from_front),
        line: Vec::new(),
        frames: KeptFrames::default(),
    };
    let mut received = ReceivedFrames { to_front, rest: BytesMut::new(), received: 0 };
    let DialedSocket { mut socket, mut progress, id, .. } = dialed;
    loop {
        match carry_over(socket, &progress, &mut sent, &mut received).await {
            SocketEnd::ServerClosed => break,
            SocketEnd::FrontClosed => return,
            SocketEnd::Cut => {}
        }
        tracing::info!(server = %server.uri, "the connection failed");
        let headers =
            vec![(CONNECTION_HEADER, id.clone()), (RECEIVED_HEADER, HeaderValue::from(received.received))];
        let dialing = dial_again(&server, headers, &link);
        let Ok(next) = shown_waiting(&server, &link, dialing).await else { break };
        if !sent.frames.resume(next.arrived) {
            break;
        }
        (socket, progress) = (next.socket, next.progress);
    }
    sent.give_back(received).await;
}

/// Carries lines over one socket, which is closed at the end.
async fn carry_over(
    socket: ServerSocket,
    progress: &SocketProgress,
    sent: &mut SentFrames,
    received: &mut ReceivedFrames,
) -> SocketEnd {
    let (mut sink, mut stream) = socket.split();
    let end = tokio::select! {
        end = sent.send(&mut sink, progress) => end,
        end = received.pass_on(&mut stream, progress) => end,
    };
    if matches!(end, SocketEnd::FrontClosed) {
        drop(sink.close().await);
        // The daemon's output after the end of its input.
        drop(timeout(LAST_WORDS_TIME_MAX, received.pass_on(&mut stream, progress)).await);
    }
    end
}

/// Waits for a socket in place of one that failed, and shows the user if that takes long.
async fn shown_waiting<T>(
    server: &RemoteServerAddress,
    link: &Mutex<LinkState>,
    dialing: impl Future<Output = T>,
) -> T {
    tokio::pin!(dialing);
    if let Ok(dialed) = timeout(SHOWN_AFTER, &mut dialing).await {
        return dialed;
    }
    let why = format!("{}: the connection failed, and the server can't be reached", server.uri);
    // The lock keeps a link that was given up from reporting anything about the next one.
    let report = |text: Option<&str>| {
        if let Some(report) = &link.lock().report {
            // The editor may be slow to read.
            block_in_place(|| report(text));
        }
    };
    report(Some(&waits_because(&why, server.role.wait())));
    let dialed = dialing.await;
    report(None);
    dialed
}

/// Replaces a socket. The error is `None` if that is not possible in time, which the history shows then, or says why the server
/// can't be used or no longer knows the connection.
async fn dial_again(
    server: &RemoteServerAddress,
    headers: Vec<(HeaderName, HeaderValue)>,
    link: &Mutex<LinkState>,
) -> Result<DialedSocket, Option<DialError>> {
    match timeout(server.role.wait(), dial_until_answered(server, headers)).await {
        Ok(dialed) => dialed.map_err(Some),
        Err(_) => {
            // Another server than the window's own is given up for that one, which is waited for.
            if server.role == ServerRole::Own {
                link.lock().history.waited_in_vain();
            }
            Err(None)
        }
    }
}

/// Connects to a server that has a session of the window. The error says why that is not possible.
async fn dial_referred(
    server: &RemoteServerAddress,
    headers: Vec<(HeaderName, HeaderValue)>,
) -> Result<DialedSocket, DialError> {
    let dialed = timeout(server.role.wait(), dial_until_answered(server, headers)).await;
    dialed.unwrap_or_else(|_| Err(server.unreachable(NO_ANSWER)))
}

async fn dial_until_answered(
    server: &RemoteServerAddress,
    headers: Vec<(HeaderName, HeaderValue)>,
) -> Result<DialedSocket, DialError> {
    let mut pause = TRY_AGAIN;
    loop {
        match server.dial(headers.clone()).await {
            Ok(dialed) => return Ok(dialed),
            Err(DialError::Unreachable(why)) => tracing::info!(why, "the server can't be reached"),
            // The server is full or is being ended, or a proxy is waiting for the next one.
            Err(DialError::Refused(status, text)) if is_passing(status) => {
                tracing::info!(%status, text, "the server can't be used yet");
            }
            Err(error @ (DialError::Refused(..) | DialError::Incompatible(_))) => {
                tracing::info!(%error, "the connection can't be continued");
                return Err(error);
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(TRY_AGAIN_MAX);
    }
}

/// Whether a server that answers like this may accept the same request later.
fn is_passing(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::SocketAddr;
    use std::sync::mpsc::Receiver;

    use socket2::{Domain, Socket, Type};
    use tokio_tungstenite::tungstenite;

    use super::*;

    /// Links one front end.
    fn serve(listener: &std::net::TcpListener) -> tungstenite::WebSocket<std::net::TcpStream> {
        let (stream, _) = listener.accept().expect("a client");
        #[expect(clippy::result_large_err, reason = "the error is the library's")]
        let named = |_: &_, mut response: tungstenite::handshake::server::Response| {
            let headers = response.headers_mut();
            headers.insert(CONNECTION_HEADER, HeaderValue::from_static("c"));
            headers.insert(RECEIVED_HEADER, HeaderValue::from_static("0"));
            headers.insert(
                header::SEC_WEBSOCKET_PROTOCOL,
                HeaderValue::from_str(&front_protocol()).expect("text"),
            );
            Ok(response)
        };
        tungstenite::accept_hdr(stream, named).expect("a handshake")
    }

    /// Links one front end, and ends its connection: a link whose socket just fails dials as well, to continue.
    fn serve_and_close(listener: &std::net::TcpListener) {
        drop(serve(listener).close(None));
    }

    /// Listens where another server did before.
    fn listen_again(address: SocketAddr) -> std::net::TcpListener {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_reuse_address(true).expect("an option");
        socket.bind(&address.into()).expect("it was free");
        socket.listen(1).expect("it listens");
        socket.into()
    }

    /// Regression: a window whose server was updated dialed between the end of the old server and the start of the new one.
    /// It gave up at once, and its prompt was answered as interrupted although the turn went on.
    #[test]
    fn a_window_waits_for_a_server_that_is_replaced() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("an address");
        let (mut connector, waiting) = connector_to(address);
        let first = std::thread::spawn(move || serve_and_close(&listener));
        connector.find(0, false).expect("it listens");
        first.join().expect("it answered");

        let second = std::thread::spawn(move || {
            let notice = waiting.recv().expect("the window says that it waits").expect("what it waits for");
            serve_and_close(&listen_again(address));
            notice
        });
        connector.find(0, false).expect("the next server listens");
        let notice = second.join().expect("it answered");
        assert!(notice.contains("refused") && notice.contains("Waiting at most 60 s"), "{notice}");
    }

    /// Returns what it reports, too.
    fn connector_to(address: SocketAddr) -> (RemoteConnector, Receiver<Option<String>>) {
        let server = RemoteServerAddress::parse(&format!("ws://{address}"), "made-up", None);
        let mut connector = RemoteConnector::new(server.expect("an address")).expect("a runtime");
        let (waits, waiting) = std::sync::mpsc::channel();
        connector.report_to(Arc::new(move |text| drop(waits.send(text.map(str::to_owned)))));
        (connector, waiting)
    }

    /// Regression: a window whose connection had failed showed nothing while it tried to connect again, for up to a minute.
    #[test]
    fn a_window_shows_that_it_tries_to_connect_again() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("an address");
        let (mut connector, waiting) = connector_to(address);
        let first = std::thread::spawn(move || drop(serve(&listener)));
        let _link = connector.find(0, false).expect("it listens");
        first.join().expect("it answered");
        let notice = waiting.recv().expect("it says that it waits").expect("what it waits for");
        assert!(notice.contains("can't be reached. Waiting at most 60 s"), "{notice}");
        let _socket = serve(&listen_again(address));
        assert_eq!(waiting.recv().expect("it says that it does not wait any longer"), None);
    }

    /// Regression: while a window tried to connect again, for up to a minute, it kept the connection that had failed.
    #[test]
    fn a_connection_that_failed_is_closed_before_the_next_attempt() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("an address");
        let (mut connector, waiting) = connector_to(address);
        let first = std::thread::spawn(move || serve(&listener));
        let _link = connector.find(0, false).expect("it listens");
        let mut first = first.join().expect("it answered").into_inner();
        first.shutdown(Shutdown::Write).expect("it is open");
        first.set_read_timeout(Some(Duration::from_mins(1))).expect("an option");
        assert_eq!(std::io::Read::read(&mut first, &mut [0]).expect("the window closes it"), 0);
        assert!(waiting.recv().expect("it says that it waits").is_some());
    }

    /// Regression: a window whose server was replaced by one of another version waited a minute before it said so.
    #[test]
    fn a_server_of_another_version_is_not_waited_for() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("an address");
        let (mut connector, waiting) = connector_to(address);
        let serving = std::thread::spawn(move || {
            serve_and_close(&listener);
            let (stream, _) = listener.accept().expect("a client");
            drop(tungstenite::accept(stream).expect("a handshake"));
        });
        connector.find(0, false).expect("it listens");
        let why = connector.find(0, false).err().expect("it knows no front ends of this version");
        serving.join().expect("it answered twice");
        assert!(why.to_string().contains("of the same version"), "{why}");
        assert!(waiting.try_recv().is_err(), "it does not wait");
    }

    /// Regression: a window whose server was replaced behind a proxy gave up at once.
    #[test]
    fn answers_that_may_change_soon_are_waited_for() {
        use LinkHistory::{Linked, NeverLinked, WaitedInVain};
        for (status, history, may_pass) in [
            (StatusCode::BAD_GATEWAY, Linked, true),
            (StatusCode::BAD_GATEWAY, WaitedInVain, false),
            (StatusCode::GATEWAY_TIMEOUT, Linked, true),
            (StatusCode::SERVICE_UNAVAILABLE, NeverLinked, true),
            (StatusCode::UNAUTHORIZED, Linked, false),
        ] {
            assert_eq!(DialError::refused(status, "").may_pass(history), may_pass, "{status}");
        }
    }

    #[test]
    fn only_a_server_that_was_linked_was_waited_for_in_vain() {
        use LinkHistory::{Linked, NeverLinked, WaitedInVain};
        for (before, after) in
            [(NeverLinked, NeverLinked), (Linked, WaitedInVain), (WaitedInVain, WaitedInVain)]
        {
            let mut history = before;
            history.waited_in_vain();
            assert_eq!(history, after);
        }
    }
}
