//! Serves clients over WebSocket: each connection is a front end of the daemon like an editor's pipes, with one text
//! frame per line. It offers no TLS and no other transport, and listens on loopback only.
//!
//! A connection outlives its socket for a while, so that a client whose network failed can continue: it reconnects
//! with the header `Acp-Connection-Id` of the first response, and in `Acp-Received` the number of frames that it has
//! received. The response's own `Acp-Received` is the number of frames that have arrived from the client. Both are
//! counted since the connection began. Otherwise, a client opens a new connection and loads its sessions.
//!
//! A client may return before the server notices that its old socket has failed. Sockets are therefore numbered, and
//! what the task of a replaced socket does no longer affects the connection.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream as BlockingStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use hyper::http::HeaderValue;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async_with_config};

use super::attach::Connector;
use super::relay;
use crate::token::{is_same, secret};
use epitome_acp::connection::LINE_BYTES_MAX;

/// The path that is served.
pub const PATH: &str = "/acp";

/// Names the connection, in the response to a handshake and in the request of a client that resumes it.
const CONNECTION_HEADER: &str = "acp-connection-id";

/// The subprotocol that a client may offer and that is then selected.
const SUBPROTOCOL: &str = "acp";

/// The prefix of a second subprotocol with the token, for web pages: they can set no other header of a WebSocket.
const TOKEN_SUBPROTOCOL: &str = "bearer.";

/// The number of frames that its sender has received.
const RECEIVED_HEADER: &str = "acp-received";

/// Maximum number of connections. Each has four threads.
const CONNECTIONS_MAX: usize = 64;

/// Maximum number of unfinished handshakes. A further one ends the oldest, because any local process can open sockets
/// that stay silent, and a client's handshake takes only milliseconds.
const HANDSHAKES_MAX: usize = 64;

/// Time limit for a client's handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a connection waits for its client to return after its socket failed. Turns continue in the meantime.
const RETURN_TIME_MAX: Duration = Duration::from_secs(60);

/// Bytes of frames kept for a client that returns. While this many are unsent, the daemon's outbox merges further
/// events.
const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Delay after a failed accept, which usually means too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// What clients need to connect.
pub struct WebSocketAccess {
    /// The bearer token.
    pub token: String,
    /// Origins of web pages that may connect; all others are refused.
    pub origins: Vec<String>,
}

/// Opens a link to the daemon for a new connection.
pub type NewConnector = Arc<dyn Fn() -> Result<Connector, String> + Send + Sync>;

/// A listening server.
pub struct WebSocketServer {
    listener: TcpListener,
    server: Arc<Server>,
}

struct Server {
    access: WebSocketAccess,
    connector: NewConnector,
    connections: Mutex<HashMap<String, Arc<WebSocketConnection>>>,
    slots: Arc<Semaphore>,
}

impl WebSocketServer {
    /// Listens on a loopback address. An error is a sentence for the user.
    pub async fn listen(
        address: SocketAddr,
        access: WebSocketAccess,
        connector: NewConnector,
    ) -> Result<WebSocketServer, String> {
        if !address.ip().is_loopback() {
            return Err(format!(
                "{address} is not a loopback address, and connections are not encrypted: listen on 127.0.0.1, and reach \
                 it from elsewhere through SSH or a proxy with TLS"
            ));
        }
        let listener = TcpListener::bind(address);
        let listener = listener.await.map_err(|error| format!("{address} can't be listened on: {error}"))?;
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let server = Arc::new(Server { access, connector, connections: Mutex::default(), slots });
        Ok(WebSocketServer { listener, server })
    }

    /// The address that it listens on.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is dropped.
    pub async fn serve(self) {
        // Dropping one ends its handshake.
        let mut handshakes: VecDeque<oneshot::Sender<()>> = VecDeque::new();
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    handshakes.retain(|handshake| !handshake.is_closed());
                    if handshakes.len() >= HANDSHAKES_MAX {
                        handshakes.pop_front();
                    }
                    let (handshake, abandoned) = oneshot::channel();
                    handshakes.push_back(handshake);
                    tokio::spawn(self.server.clone().admit(stream, abandoned));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }
}

/// The kind of connection that a handshake asks for.
enum Admitted {
    New,
    /// Continues a connection with the socket of this number.
    Return {
        connection: Arc<WebSocketConnection>,
        own: u64,
    },
}

impl Server {
    #[expect(clippy::result_large_err, reason = "tungstenite's callback returns the response")]
    async fn admit(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin,
        abandoned: oneshot::Receiver<()>,
    ) {
        let id = match secret() {
            Ok(id) => id,
            Err(error) => return tracing::error!(%error, "a connection gets no id"),
        };
        let mut admitted = None;
        let callback =
            |request: &Request, response: Response| self.check(request, response, &id, &mut admitted);
        let config = WebSocketConfig::default()
            .max_message_size(Some(LINE_BYTES_MAX))
            .max_frame_size(Some(LINE_BYTES_MAX));
        let accepted = tokio::select! {
            accepted = accept_hdr_async_with_config(stream, callback, Some(config)) => {
                accepted.map_err(|error| error.to_string())
            }
            () = tokio::time::sleep(HANDSHAKE_TIME_MAX) => Err("it took too long".to_owned()),
            _ = abandoned => Err(format!("{HANDSHAKES_MAX} others began after it")),
        };
        let (connection, own) = match (&accepted, admitted) {
            (_, Some(Admitted::Return { connection, own })) => (connection, own),
            (Ok(_), Some(Admitted::New)) => match self.open(&id).await {
                Ok(connection) => (connection, 0),
                Err(why) => {
                    tracing::warn!(why, "a WebSocket connection is not served");
                    if let Ok(socket) = accepted {
                        refuse(socket, &why).await;
                    }
                    return;
                }
            },
            (Ok(_), None) => return,
            (Err(why), None | Some(Admitted::New)) => {
                return tracing::info!(why, "a WebSocket handshake failed");
            }
        };
        match accepted {
            Ok(socket) => connection.serve_to_end(socket, own).await,
            // The socket that it was to replace is no longer served.
            Err(why) => {
                tracing::info!(why, "the handshake of a returning client failed");
                connection.end_unless_resumed(own).await;
            }
        }
    }

    /// Decides about a handshake. The error is the response.
    #[expect(clippy::result_large_err, reason = "tungstenite's callback returns the response")]
    fn check(
        &self,
        request: &Request,
        mut response: Response,
        id: &str,
        admitted: &mut Option<Admitted>,
    ) -> Result<Response, ErrorResponse> {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        if request.uri().path() != PATH {
            return Err(refusal(404, "ACP is served at /acp"));
        }
        // Browsers send the origin of each page, and no website may reach its visitor's agent.
        if let Some(origin) = request.headers().get("origin")
            && !self.access.origins.iter().any(|allowed| origin == allowed.as_str())
        {
            return Err(refusal(403, "This origin may not connect"));
        }
        let offered = request.headers().get_all("sec-websocket-protocol").iter();
        let offered = offered.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        let offered: Vec<&str> = offered.map(str::trim).collect();
        let token = header("authorization")
            .and_then(|value| value.strip_prefix("Bearer "))
            .or_else(|| offered.iter().find_map(|name| name.strip_prefix(TOKEN_SUBPROTOCOL)));
        if !token.is_some_and(|token| is_same(token.trim(), &self.access.token)) {
            return Err(refusal(401, "A bearer token is required"));
        }
        let (id, frames) = match header(CONNECTION_HEADER) {
            None => {
                *admitted = Some(Admitted::New);
                (id.to_owned(), 0)
            }
            Some(known) => {
                let found = self.connections().get(known).cloned();
                let received = header(RECEIVED_HEADER).and_then(|received| received.parse().ok());
                let (Some(connection), Some(received)) = (found, received) else {
                    return Err(refusal(
                        404,
                        "There is no such connection; open a new one and load its sessions",
                    ));
                };
                let Some((own, frames)) = connection.take_over(received) else {
                    return Err(refusal(409, "The frames after these are gone; open a new connection"));
                };
                *admitted = Some(Admitted::Return { connection, own });
                (known.to_owned(), frames)
            }
        };
        let headers = response.headers_mut();
        let text = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
        headers.insert(CONNECTION_HEADER, text(&id));
        headers.insert(RECEIVED_HEADER, text(&frames.to_string()));
        // A browser ends a socket whose server selects none of the subprotocols that the page offered.
        if offered.contains(&SUBPROTOCOL) {
            headers.insert("sec-websocket-protocol", HeaderValue::from_static(SUBPROTOCOL));
        }
        Ok(response)
    }

    /// Attaches a new connection to the daemon.
    async fn open(self: &Arc<Self>, id: &str) -> Result<Arc<WebSocketConnection>, String> {
        let permit = self.slots.clone().try_acquire_owned();
        let permit = permit.map_err(|_| format!("there are {CONNECTIONS_MAX} connections already"))?;
        let connector = self.connector.clone();
        let attached = tokio::task::spawn_blocking(move || {
            let mut connector = connector()?;
            let link = connector.attach(0)?;
            Ok::<_, String>((connector, link))
        });
        let (connector, link) = attached.await.map_err(|error| error.to_string())??;
        let failed = |error: io::Error| format!("a pair of sockets can't be made: {error}");
        let (front, ours) = BlockingStream::pair().map_err(failed)?;
        let writer = front.try_clone().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let (from_front, to_front) = UnixStream::from_std(ours).map_err(failed)?.into_split();
        let connection = Arc::new(WebSocketConnection::new(id.to_owned(), to_front));
        self.connections().insert(id.to_owned(), connection.clone());
        let (server, ended) = (self.clone(), connection.clone());
        std::thread::Builder::new()
            .name("front-websocket".to_owned())
            .spawn(move || {
                let _permit = permit;
                if let Err(error) = relay(connector, link, front, writer, None) {
                    tracing::error!(%error, "a connection could not be served");
                }
                server.connections().remove(&ended.id);
                ended.end();
            })
            .map_err(|error| format!("a thread can't be started: {error}"))?;
        tokio::spawn(connection.clone().collect(from_front));
        Ok(connection)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<String, Arc<WebSocketConnection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refusal(status: u16, text: &str) -> ErrorResponse {
    let mut response = ErrorResponse::new(Some(text.to_owned()));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or(hyper::StatusCode::BAD_REQUEST);
    response
}

async fn refuse(mut socket: WebSocketStream<impl AsyncRead + AsyncWrite + Unpin>, why: &str) {
    // A reason has at most 123 bytes.
    let reason = &why[..why.floor_char_boundary(123)];
    let frame = CloseFrame { code: CloseCode::Again, reason: Utf8Bytes::from(reason) };
    // The client may be gone already.
    drop(socket.close(Some(frame)).await);
}

/// One client's connection, which may have several sockets, one after another.
struct WebSocketConnection {
    id: String,
    state: Mutex<FrameBuffer>,
    /// Signals new frames, room for more, another socket, and the end.
    changed: Notify,
}

#[derive(Default)]
struct FrameBuffer {
    /// The newest frames to the client.
    frames: VecDeque<Utf8Bytes>,
    bytes: usize,
    /// Number of frames that are no longer kept.
    dropped: u64,
    /// Number of frames that were written to a socket.
    sent: u64,
    /// Takes lines for the front end, which `pass_on` writes; `None` once there will be no more.
    inbox: Option<mpsc::Sender<Vec<u8>>>,
    /// Number of frames received from the client and put into `inbox`.
    received: u64,
    /// Number of the current socket.
    sockets: u64,
    ended: bool,
}

impl FrameBuffer {
    fn unsent_bytes(&self) -> usize {
        let sent = usize::try_from(self.sent - self.dropped).unwrap_or(usize::MAX);
        self.frames.iter().skip(sent).map(|frame| frame.len()).sum()
    }

    /// Drops frames that were sent, the oldest first, while more than the limit are kept.
    fn trim(&mut self) {
        while self.bytes > KEPT_BYTES_MAX && self.dropped < self.sent {
            let Some(frame) = self.frames.pop_front() else { return };
            self.bytes -= frame.len();
            self.dropped += 1;
        }
    }
}

/// Writes the client's lines to the front end, each completely, whichever socket brought it.
async fn pass_on(mut lines: mpsc::Receiver<Vec<u8>>, mut to_front: impl AsyncWrite + Unpin) {
    while let Some(line) = lines.recv().await {
        // Fails if the front end has ended, and its connection with it.
        if to_front.write_all(&line).await.is_err() {
            return;
        }
    }
}

impl WebSocketConnection {
    /// Must be called on a runtime.
    fn new(id: String, to_front: impl AsyncWrite + Send + Unpin + 'static) -> WebSocketConnection {
        // A line waits while another is being written. While both are there, nothing is read from the client.
        let (inbox, lines) = mpsc::channel(1);
        tokio::spawn(pass_on(lines, to_front));
        let state = FrameBuffer { inbox: Some(inbox), ..FrameBuffer::default() };
        WebSocketConnection { id, state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, FrameBuffer> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a new socket, whose client has received this many frames. Returns the socket's number, and how
    /// many frames have arrived from the client; `None` if the frames that it lacks are no longer kept.
    fn take_over(&self, received: u64) -> Option<(u64, u64)> {
        let mut state = self.state();
        if state.ended || received < state.dropped || received > state.sent {
            return None;
        }
        state.sockets += 1;
        state.sent = received;
        self.changed.notify_waiters();
        Some((state.sockets, state.received))
    }

    /// Collects the daemon's lines as frames, and waits while too many are unsent.
    async fn collect(self: Arc<Self>, from_front: OwnedReadHalf) {
        let mut reader = BufReader::new(from_front);
        let mut line = Vec::new();
        loop {
            line.clear();
            match reader.read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return self.end(),
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(line.trim_ascii_end());
            if text.is_empty() {
                continue;
            }
            let frame = Utf8Bytes::from(text.into_owned());
            loop {
                let changed = self.changed.notified();
                {
                    let mut state = self.state();
                    if state.ended {
                        return;
                    }
                    if state.unsent_bytes() == 0 || state.unsent_bytes() + frame.len() <= KEPT_BYTES_MAX {
                        state.bytes += frame.len();
                        state.frames.push_back(frame);
                        state.trim();
                        break;
                    }
                }
                changed.await;
            }
            self.changed.notify_waiters();
        }
    }

    /// Serves the socket of this number, and ends the connection with it, unless the client returns in time.
    async fn serve_to_end(
        &self,
        socket: WebSocketStream<impl AsyncRead + AsyncWrite + Send + Unpin>,
        own: u64,
    ) {
        match self.serve(socket, own).await {
            true => self.end_unless_resumed(own).await,
            false => self.end(),
        }
    }

    /// Serves the socket of this number until it ends or another one replaces it. Returns whether its client may
    /// return.
    async fn serve(
        &self,
        socket: WebSocketStream<impl AsyncRead + AsyncWrite + Send + Unpin>,
        own: u64,
    ) -> bool {
        let (mut sink, mut stream) = socket.split();
        let write = async {
            loop {
                let changed = self.changed.notified();
                let next = {
                    let mut state = self.state();
                    // Frames that a replaced socket sends would be missing in the next.
                    if state.sockets != own {
                        return;
                    }
                    let at = usize::try_from(state.sent - state.dropped).unwrap_or(usize::MAX);
                    let next = state.frames.get(at).cloned();
                    match &next {
                        Some(_) => state.sent += 1,
                        None if state.ended => break,
                        None => {}
                    }
                    next
                };
                match next {
                    Some(frame) => {
                        if sink.send(Message::Text(frame)).await.is_err() {
                            return;
                        }
                        self.state().trim();
                        self.changed.notify_waiters();
                    }
                    None => changed.await,
                }
            }
            // Everything is sent. The client may be gone already.
            drop(sink.close().await);
        };
        let read = async {
            loop {
                match stream.next().await {
                    Some(Ok(Message::Text(text))) => {
                        if !self.forward(text.as_str(), own).await {
                            return true;
                        }
                    }
                    // Pings are answered by the library.
                    Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                    Some(Ok(Message::Close(_))) => return false,
                    Some(Ok(Message::Binary(_))) => {
                        tracing::info!("a client sent a binary frame, which is no message of ACP");
                        return false;
                    }
                    Some(Err(Error::ConnectionClosed)) => return false,
                    Some(Err(error)) => {
                        tracing::info!(%error, "a WebSocket failed");
                        return true;
                    }
                    None => return true,
                }
            }
        };
        tokio::pin!(write, read);
        tokio::select! {
            // First, so that what a replaced socket reports is ignored.
            biased;
            // Sending to a client that is gone may take minutes.
            () = self.replaced(own) => true,
            may_return = &mut read => {
                if !may_return {
                    // The daemon's output after the end of its input.
                    self.close_front();
                    drop(tokio::time::timeout(super::LAST_WORDS_TIME_MAX, write).await);
                }
                may_return
            }
            () = &mut write => !self.state().ended,
        }
    }

    /// Waits until another socket has taken over from the one of this number.
    async fn replaced(&self, own: u64) {
        loop {
            let changed = self.changed.notified();
            if self.state().sockets != own {
                return;
            }
            changed.await;
        }
    }

    /// Passes on a frame that the socket of this number has brought, as a line, and counts it. Returns false if the
    /// socket has been replaced or the front end has ended; then the frame is not counted. Line breaks between the
    /// parts of a message become spaces; JSON strings contain none.
    async fn forward(&self, text: &str, own: u64) -> bool {
        let mut line = text.as_bytes().to_vec();
        for byte in &mut line {
            if matches!(*byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        line.push(b'\n');
        let Some(inbox) = self.state().inbox.clone() else { return false };
        let Ok(room) = inbox.reserve().await else { return false };
        // Counted under the lock that `take_over` holds, so that it reports exactly the frames that are passed on.
        let mut state = self.state();
        if state.sockets != own {
            return false;
        }
        state.received += 1;
        room.send(line);
        true
    }

    /// The front end reads the end of its input after the lines that were passed on.
    fn close_front(&self) {
        drop(self.state().inbox.take());
    }

    /// Ends the connection: the front end reads the end of its input, and any open socket is closed.
    fn end(&self) {
        self.state().ended = true;
        self.changed.notify_waiters();
        self.close_front();
    }

    /// Ends the connection if its client does not return in time. Does nothing if the socket of this number, which
    /// has failed, has been replaced.
    async fn end_unless_resumed(&self, own: u64) {
        if self.state().sockets == own {
            tokio::time::sleep(RETURN_TIME_MAX).await;
        }
        if self.state().sockets == own {
            tracing::info!("a client did not return");
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    /// A connection whose front end has not read anything yet, and the front end's end of it, which buffers few bytes.
    fn connection() -> (Arc<WebSocketConnection>, BufReader<DuplexStream>) {
        let (to_front, front) = duplex(16);
        (Arc::new(WebSocketConnection::new("c".to_owned(), to_front)), BufReader::new(front))
    }

    fn keep(connection: &WebSocketConnection, texts: &[&str]) {
        let mut state = connection.state();
        for text in texts {
            state.bytes += text.len();
            state.frames.push_back(Utf8Bytes::from(*text));
        }
    }

    /// Serves a socket of this number, and returns the client's end.
    async fn socket(connection: &Arc<WebSocketConnection>, own: u64) -> WebSocketStream<DuplexStream> {
        let (ours, theirs) = duplex(1024);
        let ours = WebSocketStream::from_raw_socket(ours, Role::Server, None).await;
        let connection = connection.clone();
        tokio::spawn(async move { connection.serve_to_end(ours, own).await });
        WebSocketStream::from_raw_socket(theirs, Role::Client, None).await
    }

    /// Waits until all tasks wait: a paused clock moves only then.
    async fn all_wait() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    async fn line(front: &mut BufReader<DuplexStream>) -> String {
        let mut line = String::new();
        front.read_line(&mut line).await.expect("it is UTF-8");
        line
    }

    #[tokio::test]
    async fn a_client_returns_to_frames_that_are_kept_and_to_no_others() {
        let (connection, _front) = connection();
        keep(&connection, &["a", "b", "c"]);
        connection.state().sent = 2;
        connection.state().received = 5;
        assert_eq!(connection.take_over(3), None, "it can't have received what was not sent");
        assert_eq!(connection.take_over(1), Some((1, 5)));
        let mut state = connection.state();
        assert_eq!(state.sent, 1);
        state.sent = 3;
        state.bytes = KEPT_BYTES_MAX + 2;
        state.trim();
        assert_eq!((state.dropped, state.frames.len()), (2, 1));
        drop(state);
        assert_eq!(connection.take_over(1), None);
        assert_eq!(connection.take_over(2), Some((2, 5)));
        connection.end();
        assert_eq!(connection.take_over(2), None);
    }

    #[tokio::test]
    async fn unsent_frames_are_never_dropped() {
        let (connection, _front) = connection();
        keep(&connection, &["aaaa", "bbbb"]);
        let mut state = connection.state();
        state.bytes = 2 * KEPT_BYTES_MAX;
        state.trim();
        assert_eq!((state.dropped, state.unsent_bytes()), (0, 8));
    }

    /// Regression: a laptop changed its network, and its client was back before the server had noticed that the old
    /// socket was dead. A minute later the task of the old socket took the new one for its own and ended the
    /// connection, with its running turn.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_resumed_in_time_goes_on() {
        let (connection, mut front) = connection();
        let mut old = socket(&connection, 0).await;
        all_wait().await;
        let (own, _) = connection.take_over(0).expect("nothing is missing");
        let mut new = socket(&connection, own).await;
        // A client that closes the socket that it has replaced does not mean the connection.
        drop(old.close(None).await);
        tokio::time::sleep(RETURN_TIME_MAX * 2).await;
        new.send(Message::from("still here")).await.expect("it is served");
        assert_eq!(line(&mut front).await, "still here\n");
        // If this one fails too, nobody else returns.
        drop(new);
        tokio::time::sleep(RETURN_TIME_MAX * 2).await;
        assert!(connection.state().ended);
        assert_eq!(line(&mut front).await, "", "its front end has ended");
    }

    /// Regression: a client's network failed again while it returned, before it had the response to its handshake. The
    /// old socket was no longer served and the new one never came to be, so that nothing ended the connection: it
    /// occupied one of 64 places until the server was restarted.
    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_if_the_handshake_of_its_returning_client_fails() {
        let (connection, _front) = connection();
        keep(&connection, &["a"]);
        connection.state().sent = 1;
        let access = WebSocketAccess { token: "t".to_owned(), origins: Vec::new() };
        let server = Arc::new(Server {
            access,
            connector: Arc::new(|| Err("there is no daemon".to_owned())),
            connections: Mutex::new(HashMap::from([("c".to_owned(), connection.clone())])),
            slots: Arc::new(Semaphore::new(1)),
        });
        // Nobody reads the response, which is longer than the buffer.
        let (ours, mut theirs) = duplex(64);
        let (_handshake, abandoned) = oneshot::channel();
        let served = tokio::spawn(server.admit(ours, abandoned));
        let request = "GET /acp HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
                       Authorization: Bearer t\r\nAcp-Connection-Id: c\r\nAcp-Received: 1\r\n\r\n";
        theirs.write_all(request.as_bytes()).await.expect("it is read");
        all_wait().await;
        assert_eq!(connection.state().sockets, 1, "the handshake has begun");
        served.await.expect("it does not panic");
        assert!(connection.state().ended);
    }

    /// Regression: a client returned while its last prompt was half written to a daemon that was busy. The rest of the
    /// line was dropped and the frame not counted, so that the client sent it again: the daemon read half a line with
    /// a whole one behind it, and the prompt was never answered.
    #[tokio::test(start_paused = true)]
    async fn a_frame_is_passed_on_whole_if_its_socket_is_replaced() {
        let (connection, mut front) = connection();
        let mut old = socket(&connection, 0).await;
        let frames = ["first", "second", "third"].map(|name| format!("{name} {}", "x".repeat(64)));
        for frame in &frames {
            old.send(Message::from(frame.as_str())).await.expect("it is served");
        }
        // The front end's buffer is full, and one line waits behind it.
        all_wait().await;
        let (own, received) = connection.take_over(0).expect("nothing is missing");
        assert_eq!(received, 2);
        let mut new = socket(&connection, own).await;
        new.send(Message::from(frames[2].as_str())).await.expect("it is served");
        for frame in frames {
            assert_eq!(line(&mut front).await, format!("{frame}\n"));
        }
        assert_eq!(connection.take_over(0).map(|(_, received)| received), Some(3));
    }
}
