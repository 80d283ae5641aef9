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

use bytes::{Bytes, BytesMut};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{FutureExt, SinkExt, StreamExt};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::http::Uri;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::LAST_WORDS_TIME_MAX;
use super::attach::{DaemonLink, FindDaemon, WaitReport};
use super::kept_frames::KeptFrames;
use super::progress::{CountedSocket, SocketProgress};
use super::remote::{
    CONNECTION_HEADER, FORWARDED_HEADER, IDS_HEADER, PATH, RECEIVED_HEADER, RETURN_TIME_MAX, SILENCE_MAX,
    WORKER_HEADER, WRITE_TIME_MAX, front_protocol,
};
use super::tls;
use super::worker::WorkerName;
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

/// A server that forwards notices within this time that the machine of another one has gone.
const PEER_SILENCE_MAX: Duration = Duration::from_secs(4);

/// Interval of the probes of a silent connection between servers, and their number.
const PEER_PROBES: (Duration, u32) = (Duration::from_secs(1), 3);

/// Why a server that is slow is given up.
const NO_ANSWER: &str = "no answer in time";

/// Longest text that a server is asked for, in bytes.
const REPORT_BYTES_MAX: usize = 1024 * 1024;

/// Longest text of a refusal that is shown, in characters.
const REFUSAL_CHARS_MAX: usize = 300;

/// A server, and how to connect to it.
pub struct RemoteServerAddress {
    uri: Uri,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    token: HeaderValue,
    /// Whether a server dials for one of its own clients. It does not return after a failure: its client is served by
    /// the daemon that has the session then.
    is_peer: bool,
}

/// The link between the front end and a server, or one of its workers.
pub struct RemoteConnector {
    server: Arc<RemoteServerAddress>,
    worker: Option<WorkerName>,
    /// The newest link. Each has its own: one that was given up may still wait in vain for its own server.
    link: Arc<Mutex<LinkState>>,
    report: Option<WaitReport>,
    runtime: Runtime,
}

/// What a connector shares with the task that carries a link.
#[derive(Default)]
struct LinkState {
    history: LinkHistory,
    /// Shows the user that the task waits for the server; `None` once the connector looks for another link.
    report: Option<WaitReport>,
}

/// What is known of a server or worker from earlier links to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinkHistory {
    /// It may not exist.
    #[default]
    NeverLinked,
    Linked,
    /// It was linked, and has been waited for in vain since.
    WaitedInVain,
}

impl LinkHistory {
    fn waited_in_vain(&mut self) {
        if *self == LinkHistory::Linked {
            *self = LinkHistory::WaitedInVain;
        }
    }
}

pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

pub type ServerSocket = WebSocketStream<CountedSocket<Box<dyn Transport>>>;

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
pub enum DialError {
    Unreachable(String),
    Refused(StatusCode, String),
    /// What answers is another program, or an `epitome serve` with another version of the protocol.
    Incompatible(String),
}

impl DialError {
    fn refused(status: StatusCode, text: &str) -> DialError {
        DialError::Refused(status, text.chars().take(REFUSAL_CHARS_MAX).collect())
    }

    /// Whether another server or worker may soon take the place of one that can't be used.
    fn may_pass(&self, history: LinkHistory) -> bool {
        match self {
            // The server is there, and its worker may return at any time.
            DialError::Refused(StatusCode::NOT_FOUND, _) => history != LinkHistory::NeverLinked,
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

impl RemoteServerAddress {
    /// Parses an address, wss:// or, on this machine, ws://. Without a path, it is the usual one. `ca`: PEM files with the
    /// certificates to trust instead of the public ones. An error is a sentence for the user.
    pub fn parse(address: &str, token: &str, ca: Option<&[u8]>) -> Result<RemoteServerAddress, String> {
        let uri =
            address.parse::<Uri>().map_err(|error| format!("{address:?} is not an address: {error}"))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let is_loopback = host == "localhost"
            || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        let (default_port, tls) = match uri.scheme_str() {
            Some("wss") => (443, Some(TlsConnector::from(tls::client(ca)?))),
            Some("ws") if is_loopback => (80, None),
            Some("ws") => {
                return Err(format!(
                    "{host} is another machine, and ws:// is not encrypted: use wss://, or a tunnel to this machine"
                ));
            }
            _ => {
                return Err(
                    "the address of a server begins with wss://, as in wss://host:4711/acp".to_owned()
                );
            }
        };
        if host.is_empty()
            || uri.query().is_some()
            || uri.authority().is_some_and(|it| it.as_str().contains('@'))
        {
            return Err(
                "the address of a server has a host, perhaps a port and a path, and nothing else".to_owned()
            );
        }
        let path = if matches!(uri.path(), "" | "/") { PATH } else { uri.path() };
        let port = uri.port_u16().unwrap_or(default_port);
        let scheme = uri.scheme_str().unwrap_or_default();
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let uri = format!("{scheme}://{authority}{path}")
            .parse::<Uri>()
            .map_err(|error| format!("{address:?}: {error}"))?;
        let mut token = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| "the token has characters that no token has".to_owned())?;
        token.set_sensitive(true);
        Ok(RemoteServerAddress { uri, host, port, tls, token, is_peer: false })
    }

    /// For a server that forwards one of its own clients.
    pub fn for_peer(self) -> RemoteServerAddress {
        RemoteServerAddress { is_peer: true, ..self }
    }

    /// Connects. Returns the end for the front end, and what carries its lines as long as it is polled. The daemon numbers
    /// its requests above `ids_above`.
    pub async fn link(
        self: Arc<Self>,
        ids_above: u64,
    ) -> Result<(local::Stream, impl Future<Output = ()> + Send), String> {
        let dialed = self.dial(vec![(IDS_HEADER, HeaderValue::from(ids_above))]).await;
        self.linked(dialed.map_err(|error| error.to_string())?, Arc::default())
    }

    fn linked(
        self: Arc<Self>,
        dialed: DialedSocket,
        link: Arc<Mutex<LinkState>>,
    ) -> Result<(local::Stream, impl Future<Output = ()> + Send), String> {
        let linked = || {
            let (front, relay) = local::pair()?;
            relay.set_nonblocking(true)?;
            Ok::<_, io::Error>((front, local::AsyncStream::from_std(relay)?))
        };
        let (front, relay) = linked().map_err(|error| format!("a socket can't be made: {error}"))?;
        Ok((front, carry(self, dialed, relay, link)))
    }

    async fn dial(&self, headers: Vec<(HeaderName, HeaderValue)>) -> Result<DialedSocket, DialError> {
        let (socket, progress, headers) = self.connect(&front_protocol(), headers).await?;
        let arrived = headers.get(&RECEIVED_HEADER).and_then(|count| count.to_str().ok()?.parse().ok());
        match (headers.get(&CONNECTION_HEADER), arrived) {
            (Some(id), Some(arrived)) => Ok(DialedSocket { socket, progress, id: id.clone(), arrived }),
            _ => Err(DialError::Incompatible(format!("{}: the server is no `epitome serve`", self.uri))),
        }
    }

    /// Opens a WebSocket of this subprotocol. Returns it with the headers of the answer.
    pub async fn connect(
        &self,
        protocol: &str,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> Result<(ServerSocket, SocketProgress, HeaderMap), DialError> {
        let stream = self.stream().await?;
        let mut request = self.uri.clone().into_client_request().map_err(|error| self.unreachable(error))?;
        let protocol = HeaderValue::from_str(protocol).expect("letters and digits");
        request.headers_mut().extend(headers);
        if self.is_peer {
            request.headers_mut().insert(FORWARDED_HEADER, HeaderValue::from_static("1"));
        }
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

    /// Asks for a text next to the path of clients.
    pub async fn get(&self, name: &str) -> Result<String, DialError> {
        let io = TokioIo::new(self.stream().await?);
        let (mut sender, connection) =
            self.step(STEP_TIME_MAX, http1::handshake::<_, Empty<Bytes>>(io)).await?;
        tokio::spawn(connection);
        let directory = self.uri.path().rsplit_once('/').map_or("", |(directory, _)| directory);
        let request = Request::get(format!("{directory}/{name}"))
            .header(header::HOST, self.uri.authority().map_or("", |authority| authority.as_str()))
            .header(header::AUTHORIZATION, self.token.clone())
            .body(Empty::new())
            .map_err(|error| self.unreachable(error))?;
        let answered = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), REPORT_BYTES_MAX).collect().await?.to_bytes();
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((status, body))
        };
        let (status, body) = self.step(STEP_TIME_MAX, answered).await?;
        match (status, String::from_utf8_lossy(&body)) {
            (StatusCode::OK, text) => Ok(text.into_owned()),
            (status, text) => Err(DialError::refused(status, &text)),
        }
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

    /// Connects, with encryption if the address asks for it.
    async fn stream(&self) -> Result<Box<dyn Transport>, DialError> {
        // A lost machine is noticed as soon as one that falls silent later.
        let limit = if self.is_peer { PEER_SILENCE_MAX } else { STEP_TIME_MAX };
        let stream = self.step(limit, TcpStream::connect((self.host.as_str(), self.port))).await?;
        // Messages are small, and each is waited for.
        drop(stream.set_nodelay(true));
        if self.is_peer {
            notice_silence(&stream).map_err(|error| self.unreachable(error))?;
        }
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| self.unreachable(error))?;
        let encrypting = tls.connect(name, stream);
        let encrypting =
            async { encrypting.await.map_err(|error| format!("no encrypted connection: {error}")) };
        Ok(Box::new(self.step(STEP_TIME_MAX, encrypting).await?))
    }
}

impl RemoteConnector {
    /// `worker`: the server's worker whose daemon is used instead of the server's own.
    pub fn new(server: RemoteServerAddress, worker: Option<WorkerName>) -> io::Result<RemoteConnector> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("front-remote")
            .enable_all()
            .build()?;
        Ok(RemoteConnector { server: Arc::new(server), worker, link: Arc::default(), report: None, runtime })
    }
}

impl FindDaemon for RemoteConnector {
    fn find(&mut self, ids_above: u64, _to_newer: bool) -> Result<DaemonLink, String> {
        self.link.lock().report = None;
        let mut headers = vec![(IDS_HEADER, HeaderValue::from(ids_above))];
        headers.extend(self.worker.clone().map(|name| (WORKER_HEADER, name.0)));
        let dialed = match self.runtime.block_on(self.server.dial(headers.clone())) {
            // The server is being shut down or has been, and another one takes its place; or the worker has vanished.
            Err(error) if error.may_pass(self.link.lock().history) => {
                let why = match &error {
                    DialError::Refused(_, text)
                    | DialError::Unreachable(text)
                    | DialError::Incompatible(text) => text,
                };
                let text = waits_because(why);
                eprintln!("epitome: {text}");
                if let Some(report) = &self.report {
                    report(Some(&text));
                }
                let dialed = self.runtime.block_on(dial_again(&self.server, headers, &self.link));
                dialed.map_err(|newest| newest.unwrap_or(error))
            }
            dialed => dialed,
        };
        let dialed = dialed.map_err(|error| error.to_string())?;
        let link = LinkState { history: LinkHistory::Linked, report: self.report.clone() };
        self.link = Arc::new(Mutex::new(link));
        let _entered = self.runtime.enter();
        let (front, carrying) = self.server.clone().linked(dialed, self.link.clone())?;
        self.runtime.spawn(carrying);
        DaemonLink::new(front, self.server.host.clone())
            .map_err(|error| format!("a socket can't be used: {error}"))
    }

    fn report_to(&mut self, report: WaitReport) {
        self.link.lock().report = Some(report.clone());
        self.report = Some(report);
    }
}

/// The sentence for a user whose window waits for a server or its worker.
fn waits_because(why: &str) -> String {
    format!("{why}. Waiting at most {} s", RETURN_TIME_MAX.as_secs())
}

/// Lets the system end a connection whose other machine is silent.
fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    let (every, probes) = PEER_PROBES;
    let keepalive = TcpKeepalive::new().with_time(PEER_SILENCE_MAX - every * probes).with_interval(every);
    let socket = SockRef::from(stream);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(PEER_SILENCE_MAX))?;
    socket.set_tcp_keepalive(&keepalive.with_retries(probes))
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
    /// What of a line is still to be written.
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
        let (mut sink, mut stream) = socket.split();
        let end = tokio::select! {
            end = sent.send(&mut sink, &progress) => end,
            end = received.pass_on(&mut stream, &progress) => end,
        };
        match end {
            SocketEnd::ServerClosed => break,
            SocketEnd::FrontClosed => {
                drop(sink.close().await);
                // The daemon's output after the end of its input.
                drop(timeout(LAST_WORDS_TIME_MAX, received.pass_on(&mut stream, &progress)).await);
                return;
            }
            SocketEnd::Cut => {}
        }
        tracing::info!(server = %server.uri, "the connection failed");
        if server.is_peer {
            break;
        }
        let headers =
            vec![(CONNECTION_HEADER, id.clone()), (RECEIVED_HEADER, HeaderValue::from(received.received))];
        let dialing = dial_again(&server, headers, &link);
        let Ok(next) = shown_waiting(&server, &link, dialing).await else { break };
        if !sent.frames.resume(next.arrived) {
            break;
        }
        (socket, progress) = (next.socket, next.progress);
    }
    // The client of a server that forwards may not be a front end.
    if !server.is_peer {
        sent.give_back(received).await;
    }
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
    report(Some(&waits_because(&why)));
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
    match timeout(RETURN_TIME_MAX, dial_until_answered(server, headers)).await {
        Ok(dialed) => dialed.map_err(Some),
        Err(_) => {
            link.lock().history.waited_in_vain();
            Err(None)
        }
    }
}

async fn dial_until_answered(
    server: &RemoteServerAddress,
    headers: Vec<(HeaderName, HeaderValue)>,
) -> Result<DialedSocket, DialError> {
    let is_new = headers.iter().all(|(name, _)| name != CONNECTION_HEADER);
    let mut pause = TRY_AGAIN;
    loop {
        match server.dial(headers.clone()).await {
            Ok(dialed) => return Ok(dialed),
            Err(DialError::Unreachable(why)) => tracing::info!(why, "the server can't be reached"),
            // The server is full or is being ended, or a proxy is waiting for the next one.
            Err(DialError::Refused(status, text)) if is_passing(status) => {
                tracing::info!(%status, text, "the server can't be used yet");
            }
            // A worker connects again, or another one takes its place.
            Err(DialError::Refused(StatusCode::NOT_FOUND, text)) if is_new => {
                tracing::info!(text, "the worker can't be used yet");
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
pub fn is_passing(status: StatusCode) -> bool {
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
    use tokio::time::Instant;
    use tokio_tungstenite::tungstenite;

    use super::*;

    /// Regression: the machine of a session's server was lost. Each attempt to reach it took 15 seconds, and until then the
    /// session was not opened elsewhere, although its lease had run out.
    #[tokio::test(start_paused = true)]
    async fn a_server_gives_a_lost_machine_up_soon() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("loopback");
        socket.listen(0).expect("it listens");
        let address = socket.local_addr().ok().and_then(|address| address.as_socket()).expect("an address");
        // While this one is not accepted, the system answers no other.
        let _first = std::net::TcpStream::connect(address).expect("there is room for one");
        let server =
            RemoteServerAddress::parse(&format!("ws://{address}"), "made-up", None).expect("an address");
        let began = Instant::now();
        let link = Arc::new(server.for_peer()).link(0).await;
        assert!(link.err().expect("nobody answers").contains("no answer in time"));
        assert!(began.elapsed() <= PEER_SILENCE_MAX + Duration::from_secs(1), "{:?}", began.elapsed());
    }

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
            let said = waiting.recv().expect("the window says that it waits").expect("what it waits for");
            serve_and_close(&listen_again(address));
            said
        });
        connector.find(0, false).expect("the next server listens");
        let said = second.join().expect("it answered");
        assert!(said.contains("refused") && said.contains("Waiting at most 60 s"), "{said}");
    }

    /// Returns what it reports, too.
    fn connector_to(address: SocketAddr) -> (RemoteConnector, Receiver<Option<String>>) {
        let server = RemoteServerAddress::parse(&format!("ws://{address}"), "made-up", None);
        let mut connector = RemoteConnector::new(server.expect("an address"), None).expect("a runtime");
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
        let said = waiting.recv().expect("it says that it waits").expect("what it waits for");
        assert!(said.contains("can't be reached. Waiting at most 60 s"), "{said}");
        let _socket = serve(&listen_again(address));
        assert_eq!(waiting.recv().expect("it says that it does not wait any longer"), None);
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
        assert!(why.contains("of the same version"), "{why}");
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
            // A worker that takes longer to return is waited for again.
            (StatusCode::NOT_FOUND, WaitedInVain, true),
            (StatusCode::NOT_FOUND, NeverLinked, false),
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
