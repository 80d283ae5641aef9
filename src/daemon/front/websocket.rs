//! Serves clients over WebSocket: each connection is a front end of the daemon like an editor's pipes, with one text
//! frame per line. It offers no TLS and no other transport, and listens on loopback only.
//!
//! A connection outlives its socket for a while, so that a client whose network failed can continue: it reconnects
//! with the header `Acp-Connection-Id` of the first response, and in `Acp-Received` the number of frames that it has
//! received. The response's own `Acp-Received` is the number of frames that have arrived from the client. Both are
//! counted since the connection began. Otherwise, a client opens a new connection and loads its sessions.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use hyper::http::HeaderValue;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async_with_config};

use super::access::{
    ACCEPT_AGAIN, HANDSHAKE_TIME_MAX, WebSocketAccess, frame_limits, listen_on_loopback, refusal,
};
use super::attach::Connector;
use super::through_socket;
use crate::token::secret;

/// The path that is served.
pub const PATH: &str = "/acp";

/// Names the connection, in the response to a handshake and in the request of a client that resumes it.
const CONNECTION_HEADER: &str = "acp-connection-id";

/// The number of frames that its sender has received.
const RECEIVED_HEADER: &str = "acp-received";

/// Maximum number of connections. Each has four threads.
const CONNECTIONS_MAX: usize = 64;

/// How long a connection waits for its client to return after its socket failed. Turns continue in the meantime.
const RETURN_TIME_MAX: Duration = Duration::from_secs(60);

/// Bytes of frames kept for a client that returns. While this many are unsent, the daemon's outbox merges further
/// events.
const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;

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
        let listener = listen_on_loopback(address).await?;
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
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(self.server.clone().admit(stream));
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
    /// Continues a connection after this many received frames.
    Return {
        connection: Arc<WebSocketConnection>,
        received: u64,
    },
}

impl Server {
    #[expect(clippy::result_large_err, reason = "tungstenite's callback returns the response")]
    async fn admit(self: Arc<Self>, stream: TcpStream) {
        let id = match secret() {
            Ok(id) => id,
            Err(error) => return tracing::error!(%error, "a connection gets no id"),
        };
        let mut admitted = None;
        let callback =
            |request: &Request, response: Response| self.check(request, response, &id, &mut admitted);
        let accepted = tokio::time::timeout(
            HANDSHAKE_TIME_MAX,
            accept_hdr_async_with_config(stream, callback, Some(frame_limits())),
        );
        let socket = match accepted.await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => return tracing::info!(%error, "a WebSocket handshake was refused"),
            Err(_) => return tracing::info!("a WebSocket handshake took too long"),
        };
        let (connection, received) = match admitted {
            None => return,
            Some(Admitted::Return { connection, received }) => (connection, received),
            Some(Admitted::New) => match self.open(&id).await {
                Ok(connection) => (connection, 0),
                Err(why) => {
                    tracing::warn!(why, "a WebSocket connection is not served");
                    return refuse(socket, &why).await;
                }
            },
        };
        if connection.serve(socket, received).await {
            self.forget_unless_resumed(&connection).await;
        } else {
            connection.end();
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
        self.access.check(request, None)?;
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
                let Some(frames) = connection.take_over(received) else {
                    return Err(refusal(409, "The frames after these are gone; open a new connection"));
                };
                *admitted = Some(Admitted::Return { connection, received });
                (known.to_owned(), frames)
            }
        };
        let headers = response.headers_mut();
        let text = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
        headers.insert(CONNECTION_HEADER, text(&id));
        headers.insert(RECEIVED_HEADER, text(&frames.to_string()));
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
        let (over, is_over) = oneshot::channel();
        let front = through_socket(connector, link, move || {
            let _permit = permit;
            // Fails only if the runtime has ended.
            let _ = over.send(());
        });
        let failed = |error: io::Error| format!("a connection can't be relayed: {error}");
        let front = front.and_then(UnixStream::from_std).map_err(failed)?;
        let (from_front, to_front) = front.into_split();
        let connection = Arc::new(WebSocketConnection {
            id: id.to_owned(),
            state: Mutex::default(),
            changed: Notify::new(),
            to_front: tokio::sync::Mutex::new(Some(to_front)),
        });
        self.connections().insert(id.to_owned(), connection.clone());
        tokio::spawn(connection.clone().collect(from_front));
        let (server, ended) = (self.clone(), connection.clone());
        tokio::spawn(async move {
            drop(is_over.await);
            server.connections().remove(&ended.id);
            ended.end();
        });
        Ok(connection)
    }

    /// Ends a connection whose socket failed, unless its client returns in time.
    async fn forget_unless_resumed(&self, connection: &Arc<WebSocketConnection>) {
        let sockets = connection.state().sockets;
        tokio::time::sleep(RETURN_TIME_MAX).await;
        if connection.state().sockets == sockets {
            tracing::info!("a client did not return");
            connection.end();
        }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<String, Arc<WebSocketConnection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn refuse(mut socket: WebSocketStream<TcpStream>, why: &str) {
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
    /// Sends lines to the front end; `None` once the connection has ended.
    to_front: tokio::sync::Mutex<Option<OwnedWriteHalf>>,
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
    /// Number of frames received from the client.
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

impl WebSocketConnection {
    fn state(&self) -> MutexGuard<'_, FrameBuffer> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a new socket, whose client has received this many frames. Returns how many frames have arrived
    /// from the client; `None` if the frames that it lacks are no longer kept.
    fn take_over(&self, received: u64) -> Option<u64> {
        let mut state = self.state();
        if state.ended || received < state.dropped || received > state.sent {
            return None;
        }
        state.sockets += 1;
        state.sent = received;
        self.changed.notify_waiters();
        Some(state.received)
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

    /// Serves a socket until it ends or another one replaces it. Returns whether its client may return.
    async fn serve(&self, socket: WebSocketStream<TcpStream>, received: u64) -> bool {
        let own = {
            let mut state = self.state();
            state.sent = state.sent.min(received.max(state.dropped));
            state.sockets
        };
        let (mut sink, mut stream) = socket.split();
        let write = async {
            loop {
                let changed = self.changed.notified();
                let next = {
                    let mut state = self.state();
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
                        if self.state().sockets != own || self.forward(text.as_str()).await.is_err() {
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
            may_return = &mut read => {
                if !may_return {
                    // The daemon's output after the end of its input.
                    self.close_front().await;
                    drop(tokio::time::timeout(super::LAST_WORDS_TIME_MAX, write).await);
                }
                may_return
            }
            () = &mut write => !self.state().ended,
        }
    }

    /// Passes a frame on as a line. Line breaks between the parts of a message become spaces; JSON strings contain
    /// none.
    async fn forward(&self, text: &str) -> io::Result<()> {
        let mut line = text.as_bytes().to_vec();
        for byte in &mut line {
            if matches!(*byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        line.push(b'\n');
        let mut to_front = self.to_front.lock().await;
        let Some(to_front) = to_front.as_mut() else { return Err(io::ErrorKind::BrokenPipe.into()) };
        to_front.write_all(&line).await?;
        self.state().received += 1;
        Ok(())
    }

    async fn close_front(&self) {
        drop(self.to_front.lock().await.take());
    }

    /// Ends the connection: the front end reads the end of its input, and any open socket is closed.
    fn end(&self) {
        self.state().ended = true;
        self.changed.notify_waiters();
        // Locked only while a line is being written; that write then fails, because its reader is gone.
        if let Ok(mut to_front) = self.to_front.try_lock() {
            drop(to_front.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_frames(texts: &[&str]) -> WebSocketConnection {
        let mut state = FrameBuffer::default();
        for text in texts {
            state.bytes += text.len();
            state.frames.push_back(Utf8Bytes::from(*text));
        }
        WebSocketConnection {
            id: String::new(),
            state: Mutex::new(state),
            changed: Notify::new(),
            to_front: tokio::sync::Mutex::new(None),
        }
    }

    #[test]
    fn a_client_returns_to_frames_that_are_kept_and_to_no_others() {
        let connection = with_frames(&["a", "b", "c"]);
        connection.state().sent = 2;
        connection.state().received = 5;
        assert_eq!(connection.take_over(3), None, "it can't have received what was not sent");
        assert_eq!(connection.take_over(1), Some(5));
        let mut state = connection.state();
        assert_eq!((state.sent, state.sockets), (1, 1));
        state.sent = 3;
        state.bytes = KEPT_BYTES_MAX + 2;
        state.trim();
        assert_eq!((state.dropped, state.frames.len()), (2, 1));
        drop(state);
        assert_eq!(connection.take_over(1), None);
        assert_eq!(connection.take_over(2), Some(5));
        connection.end();
        assert_eq!(connection.take_over(2), None);
    }

    #[test]
    fn unsent_frames_are_never_dropped() {
        let connection = with_frames(&["aaaa", "bbbb"]);
        let mut state = connection.state();
        state.bytes = 2 * KEPT_BYTES_MAX;
        state.trim();
        assert_eq!((state.dropped, state.unsent_bytes()), (0, 8));
    }
}
