//! The messages of one client. A connection outlives its sockets for a while: what was sent last is kept, so that a
//! client whose network failed can continue without a gap.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use epitome_platform::local::{OwnedReadHalf, OwnedWriteHalf};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Notify;
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::http::HttpRoutes;
use crate::front::access::AdmittedToken;
use crate::front::kept_frames::KeptFrames;
use crate::handshake::RETURN_TIME_MAX;
use epitome_acp::envelope::{self, Incoming};
use epitome_acp::{answers, writer};

/// Bytes of messages kept for a client that returns. While this many are unsent, the daemon's outbox merges further
/// events.
const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Maximum number of streams of one connection. A stream that nobody reads, with no message left, makes room for
/// another; without such a stream, messages of further sessions are sent on that of the connection.
const STREAMS_MAX: usize = 256;

/// The messages that a client reads from a socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClientStream {
    /// Messages that belong to no session. Over WebSocket, all messages.
    Connection,
    Session(String),
}

/// How the messages of a connection are carried.
pub enum Carrier {
    WebSocket,
    Http(HttpRoutes),
}

/// See the module.
pub struct RemoteConnection {
    pub id: String,
    /// The token with which the client connected.
    pub token: AdmittedToken,
    state: Mutex<ClientStreams>,
    /// Signals new messages, room for more, another reader, and the end.
    changed: Notify,
    /// Sends lines to the front end; `None` once the connection has ended. Locked while a line is being written.
    to_front: Arc<tokio::sync::Mutex<Option<OwnedWriteHalf>>>,
    /// Whether the server is being shut down.
    draining: Arc<AtomicBool>,
    /// Whether the client sends prompts that are returned to it to the next server.
    sends_again: bool,
}

/// The streams of a connection, and what has arrived.
struct ClientStreams {
    carrier: Carrier,
    streams: HashMap<ClientStream, StreamBuffer>,
    /// Number of messages received from the client.
    received: u64,
    /// When the client last sent something or stopped to read.
    used: Instant,
    ended: bool,
}

/// The messages of one stream.
#[derive(Default)]
struct StreamBuffer {
    /// The newest messages to the client.
    frames: KeptFrames,
    /// Number of the current reader.
    readers: u64,
    is_read: bool,
    /// Whether messages were given up that no client has read.
    is_gone: bool,
}

impl StreamBuffer {
    /// Forgets unread messages.
    fn give_up(&mut self) {
        self.frames.clear();
        self.is_gone = true;
    }
}

impl ClientStreams {
    /// Whether there is a stream of this name, or room for it.
    fn has_room(&mut self, name: &ClientStream) -> bool {
        if self.streams.contains_key(name) || self.streams.len() < STREAMS_MAX {
            return true;
        }
        let idle = self.streams.iter().find(|(name, stream)| {
            matches!(name, ClientStream::Session(_)) && !stream.is_read && stream.frames.unsent_bytes() == 0
        });
        let idle = idle.map(|(name, _)| name.clone());
        idle.is_some_and(|idle| self.streams.remove(&idle).is_some())
    }

    /// The stream for messages to this one.
    fn stream(&mut self, name: &ClientStream) -> &mut StreamBuffer {
        let has_room = self.has_room(name);
        let name = if has_room { name.clone() } else { ClientStream::Connection };
        self.streams.entry(name).or_default()
    }

    fn unsent_bytes(&self) -> usize {
        self.streams.values().map(|stream| stream.frames.unsent_bytes()).sum()
    }

    /// Drops messages that were sent, the oldest of the largest stream first, while more than the limit are kept.
    fn trim(&mut self) {
        while self.streams.values().map(|stream| stream.frames.bytes()).sum::<usize>() > KEPT_BYTES_MAX {
            let frames = self.streams.values_mut().map(|stream| &mut stream.frames);
            let sent = frames.filter(|frames| frames.keeps_sent());
            if !sent.max_by_key(|frames| frames.bytes()).is_some_and(KeptFrames::drop_oldest) {
                return;
            }
        }
    }
}

impl ClientStreams {
    /// Gives up the largest unread stream of a session; returns whether there was one.
    fn give_up_unread(&mut self) -> bool {
        let unread = self.streams.iter_mut().filter(|(name, stream)| {
            matches!(name, ClientStream::Session(_)) && !stream.is_read && stream.frames.unsent_bytes() > 0
        });
        let largest = unread.max_by_key(|(_, stream)| stream.frames.bytes());
        largest.map(|(_, stream)| stream.give_up()).is_some()
    }
}

/// Why a stream can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoStream {
    /// It already has a reader.
    Busy,
    /// The messages that the client lacks are no longer kept.
    Gone,
    /// The connection has ended.
    Unknown,
    /// The connection has as many streams as it can, and all are in use.
    TooMany,
}

/// The reader of a stream, until it is dropped or another one takes its place.
pub struct StreamReader {
    connection: Arc<RemoteConnection>,
    stream: ClientStream,
    number: u64,
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        let mut state = self.connection.state.lock();
        if let Some(stream) =
            state.streams.get_mut(&self.stream).filter(|stream| stream.readers == self.number)
        {
            stream.is_read = false;
        }
        state.used = Instant::now();
    }
}

impl StreamReader {
    /// Whether no other reader has taken its place.
    pub fn is_current(&self) -> bool {
        self.connection
            .state
            .lock()
            .streams
            .get(&self.stream)
            .is_some_and(|stream| stream.readers == self.number)
    }

    /// The next message and its number; `None` once another reader has taken over, or the connection has ended and all
    /// messages were sent.
    pub async fn next(&self) -> Option<(u64, Utf8Bytes)> {
        loop {
            let changed = self.connection.changed.notified();
            {
                let mut state = self.connection.state.lock();
                let ended = state.ended;
                let stream = state.streams.get_mut(&self.stream)?;
                if stream.readers != self.number {
                    return None;
                }
                if let Some(frame) = stream.frames.next() {
                    let number = stream.frames.sent();
                    state.trim();
                    drop(state);
                    self.connection.changed.notify_waiters();
                    return Some((number, frame));
                }
                if ended {
                    return None;
                }
            }
            changed.await;
        }
    }
}

impl RemoteConnection {
    pub fn new(
        id: String,
        carrier: Carrier,
        token: AdmittedToken,
        to_front: OwnedWriteHalf,
        draining: Arc<AtomicBool>,
        sends_again: bool,
    ) -> RemoteConnection {
        RemoteConnection {
            token,
            to_front: Arc::new(tokio::sync::Mutex::new(Some(to_front))),
            draining,
            sends_again,
            ..RemoteConnection::without_front(id, carrier)
        }
    }

    fn without_front(id: String, carrier: Carrier) -> RemoteConnection {
        let state = ClientStreams {
            carrier,
            streams: HashMap::from([(ClientStream::Connection, StreamBuffer::default())]),
            received: 0,
            used: Instant::now(),
            ended: false,
        };
        RemoteConnection {
            id,
            token: None,
            state: Mutex::new(state),
            changed: Notify::new(),
            to_front: Arc::default(),
            draining: Arc::default(),
            sends_again: false,
        }
    }

    /// Begins to read a stream: after `received` messages, in place of any other reader; or else where the last reader
    /// stopped.
    pub fn read(
        self: &Arc<Self>,
        stream: ClientStream,
        received: Option<u64>,
    ) -> Result<StreamReader, NoStream> {
        let mut state = self.state.lock();
        if state.ended {
            return Err(NoStream::Unknown);
        }
        if !state.has_room(&stream) {
            return Err(NoStream::TooMany);
        }
        let buffer = state.stream(&stream);
        match received {
            None if buffer.is_read => return Err(NoStream::Busy),
            // Once: the client loads the session again, and then reads on.
            None if std::mem::take(&mut buffer.is_gone) => return Err(NoStream::Gone),
            None => {}
            Some(received) if !buffer.frames.resume(received) => return Err(NoStream::Gone),
            Some(_) => {}
        }
        buffer.readers += 1;
        buffer.is_read = true;
        let number = buffer.readers;
        self.changed.notify_waiters();
        drop(state);
        Ok(StreamReader { connection: self.clone(), stream, number })
    }

    /// Number of messages that have arrived from the client, once the one that is being passed on has been.
    pub async fn received(&self) -> u64 {
        let _passed_on = self.to_front.lock().await;
        self.state.lock().received
    }

    /// The rules for a connection over HTTP.
    pub fn with_routes<T>(&self, with: impl FnOnce(&mut HttpRoutes) -> T) -> Option<T> {
        let mut state = self.state.lock();
        state.used = Instant::now();
        match &mut state.carrier {
            Carrier::Http(routes) => Some(with(routes)),
            Carrier::WebSocket => None,
        }
    }

    /// Makes a session known, so that its messages are kept until the client reads them. Returns whether it does.
    pub fn know_session(&self, session: &str) -> bool {
        self.state.lock().stream(&ClientStream::Session(session.to_owned())).is_read
    }

    /// Whether a session is known.
    pub fn knows_session(&self, session: &str) -> bool {
        self.state.lock().streams.contains_key(&ClientStream::Session(session.to_owned()))
    }

    /// Collects the daemon's lines, and waits while too many bytes are unsent.
    pub async fn collect(self: Arc<Self>, from_front: OwnedReadHalf) {
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
            let Some(stream) = self.route(&frame) else { continue };
            loop {
                let changed = self.changed.notified();
                {
                    let mut state = self.state.lock();
                    if state.ended {
                        return;
                    }
                    let unsent = state.unsent_bytes();
                    if unsent == 0 || unsent + frame.len() <= KEPT_BYTES_MAX {
                        state.stream(&stream).frames.put(frame);
                        state.trim();
                        break;
                    }
                    // An unread session must not stop all others.
                    if state.give_up_unread() {
                        continue;
                    }
                }
                changed.await;
            }
            self.changed.notify_waiters();
        }
    }

    /// The stream of a message; `None` if it was delivered otherwise.
    fn route(&self, frame: &Utf8Bytes) -> Option<ClientStream> {
        let mut state = self.state.lock();
        let ClientStreams { carrier, streams, .. } = &mut *state;
        let routed = match carrier {
            Carrier::WebSocket => return Some(ClientStream::Connection),
            Carrier::Http(routes) => routes
                .route(frame, |session| streams.contains_key(&ClientStream::Session(session.to_owned())))?,
        };
        if let Some(opened) = routed.opens {
            state.stream(&ClientStream::Session(opened));
        }
        Some(routed.stream)
    }

    /// Passes a message on as a line. Line breaks between the parts of a message become spaces; JSON strings contain
    /// none. A message whose writing has begun is written to its end even if the caller does not wait for it: half a
    /// line would spoil the next one.
    ///
    /// Fails if `is_wanted` is false once it is this message's turn: a client that has returned sends it again. While the
    /// server is being shut down, a prompt waits for the end of the connection: its client sends it to the next server.
    pub async fn forward(self: &Arc<Self>, text: &str, is_wanted: impl FnOnce() -> bool) -> io::Result<()> {
        if self.withholds(text) {
            self.ended().await;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let mut line = text.as_bytes().to_vec();
        for byte in &mut line {
            if matches!(*byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        line.push(b'\n');
        let mut to_front = self.to_front.clone().lock_owned().await;
        if !is_wanted() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let connection = self.clone();
        let written = tokio::spawn(async move {
            let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
            let writer = to_front.as_mut().ok_or_else(closed)?;
            let written = tokio::select! {
                biased;
                () = connection.ended() => Err(closed()),
                written = writer.write_all(&line) => written,
            };
            match written {
                Ok(()) => connection.state.lock().received += 1,
                // Closes the front end's input, also for `end`, which does not wait for this message.
                Err(_) => drop(to_front.take()),
            }
            written
        });
        written.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Like `forward`, for a client that sends all its messages one after the other: a prompt that is not passed on because the
    /// server is being shut down is received, but keeps none of the later messages waiting. A running turn may need one of
    /// them. It is returned to a front end, which sends it to the next server.
    pub async fn forward_in_order(
        self: &Arc<Self>,
        text: &str,
        is_wanted: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        if !self.withholds(text) {
            return self.forward(text, is_wanted).await;
        }
        let _passed_on = self.to_front.lock().await;
        if !is_wanted() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let mut state = self.state.lock();
        state.received += 1;
        if let (true, Incoming::Request { id, .. }) = (self.sends_again, envelope::read(text.as_bytes())) {
            let mut answer = Vec::new();
            writer::response(&mut answer, id, Err(answers::returned()));
            let answer = String::from_utf8_lossy(answer.trim_ascii_end()).into_owned();
            state.stream(&ClientStream::Connection).frames.put(answer.into());
            drop(state);
            self.changed.notify_waiters();
        }
        Ok(())
    }

    /// Whether a message is not passed on, because the server is being shut down.
    fn withholds(&self, message: &str) -> bool {
        self.is_draining() && is_prompt(message)
    }

    /// Closes the input of the front end, which then ends.
    pub async fn close_front(&self) {
        drop(self.to_front.lock().await.take());
    }

    /// Ends the connection once nothing was read or sent for a while.
    pub async fn end_unless_used(self: Arc<Self>) {
        loop {
            let until = {
                let state = self.state.lock();
                if state.ended {
                    return;
                }
                let is_read = state.streams.values().any(|stream| stream.is_read);
                RETURN_TIME_MAX.saturating_sub(if is_read { Duration::ZERO } else { state.used.elapsed() })
            };
            if until.is_zero() {
                tracing::info!("a client did not return");
                return self.end();
            }
            tokio::time::sleep(until).await;
        }
    }

    /// Ends the connection: the front end reads the end of its input, and open sockets are closed. A message that is
    /// being written is given up, because a front end that reads nothing would otherwise keep its input open.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_waiters();
        if let Ok(mut to_front) = self.to_front.try_lock() {
            drop(to_front.take());
        }
    }

    /// Ends the connection without sending what waits for its client, who may not read it any more.
    pub fn cut(&self) {
        self.state.lock().streams.values_mut().for_each(StreamBuffer::give_up);
        self.end();
    }

    /// Waits for the end of the connection.
    async fn ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.has_ended() {
                return;
            }
            changed.await;
        }
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub fn has_ended(&self) -> bool {
        self.state.lock().ended
    }
}

/// Whether a message begins a turn.
fn is_prompt(message: &str) -> bool {
    #[derive(Deserialize)]
    struct MethodName<'a> {
        #[serde(borrow)]
        method: Option<Cow<'a, str>>,
    }
    let name = serde_json::from_str::<MethodName<'_>>(message);
    name.is_ok_and(|name| name.method.as_deref() == Some("session/prompt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_frames(texts: &[&str]) -> Arc<RemoteConnection> {
        let connection = RemoteConnection::without_front(String::new(), Carrier::WebSocket);
        for text in texts {
            connection.state.lock().stream(&ClientStream::Connection).frames.put(Utf8Bytes::from(*text));
        }
        Arc::new(connection)
    }

    fn over_websocket(to_front: OwnedWriteHalf) -> Arc<RemoteConnection> {
        let connection =
            RemoteConnection::new(String::new(), Carrier::WebSocket, None, to_front, Arc::default(), false);
        Arc::new(connection)
    }

    #[tokio::test]
    async fn a_client_returns_to_messages_that_are_kept_and_to_no_others() {
        let [a, b, c] = ["a", "b", "c"].map(|text| text.repeat(KEPT_BYTES_MAX / 2 + 1));
        let connection = with_frames(&[&a, &b, &c]);
        let back = |received| connection.read(ClientStream::Connection, Some(received));
        let first = connection.read(ClientStream::Connection, None).expect("it has no reader");
        assert_eq!(connection.read(ClientStream::Connection, None).err(), Some(NoStream::Busy));
        assert!(first.next().await.expect("a message").1.as_str() == a);
        assert_eq!(back(2).err(), Some(NoStream::Gone), "it can't have received what was not sent");
        assert_eq!(back(0).err(), Some(NoStream::Gone), "the others fill the limit");
        let second = back(1).expect("the next one is kept");
        assert_eq!(first.next().await, None, "another reader has taken over");
        for (number, expected) in [(2, b), (3, c)] {
            assert!(second.next().await.expect("a message") == (number, expected.into()));
        }
        assert_eq!(back(1).err(), Some(NoStream::Gone));
        assert!(back(2).is_ok());
        connection.end();
        assert_eq!(back(2).err(), Some(NoStream::Unknown));
    }

    /// Regression: a client returned while its old socket was still passing a frame on. The rest of that frame was
    /// dropped, and the client, informed that it had not arrived, sent it again: both became one malformed line.
    #[tokio::test]
    async fn a_message_is_passed_on_whole_after_its_sender_has_gone() {
        let (ours, mut front) = epitome_platform::local::async_pair().expect("a pair");
        let (_reader, to_front) = ours.into_split();
        let connection = over_websocket(to_front);
        let long = "x".repeat(1 << 20);
        {
            let mut forwarded = std::pin::pin!(connection.forward(&long, || true));
            // It waits for room in the front end's buffer, and its socket is replaced.
            assert!(futures_util::poll!(&mut forwarded).is_pending());
            assert!(connection.to_front.try_lock().is_err(), "it is being written");
        }
        let received = tokio::spawn({
            let connection = connection.clone();
            async move { connection.received().await }
        });
        let mut line = vec![0; long.len() + 1];
        tokio::io::AsyncReadExt::read_exact(&mut front, &mut line).await.expect("all of it");
        assert!(line.ends_with(b"x\n"));
        assert_eq!(received.await.expect("it ends"), 1);
    }

    /// Regression: while a server was shut down, a prompt kept the client's later messages waiting. The turn of another
    /// session never got the permission that its user had given, and was cancelled after 30 seconds.
    #[tokio::test]
    async fn a_prompt_that_waits_for_the_next_server_keeps_no_other_message_waiting() {
        let (ours, mut front) = epitome_platform::local::async_pair().expect("a pair");
        let (_reader, to_front) = ours.into_split();
        let draining = Arc::new(AtomicBool::new(true));
        let connection =
            RemoteConnection::new(String::new(), Carrier::WebSocket, None, to_front, draining, false);
        let connection = Arc::new(connection);
        let (prompt, permission) = (r#"{"id":1,"method":"session/prompt"}"#, r#"{"id":7,"result":{}}"#);
        let mut withheld = std::pin::pin!(connection.forward_in_order(prompt, || true));
        assert!(futures_util::poll!(&mut withheld).is_ready(), "it does not wait for the end");
        connection.forward_in_order(permission, || true).await.expect("it is passed on");
        connection.close_front().await;
        let mut read = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut front, &mut read).await.expect("it ends");
        assert_eq!((read, connection.received().await), (format!("{permission}\n"), 2));
    }

    /// Regression: a client left one of its sessions unread. Once four megabytes waited for it, no other session got
    /// anything any more, and no request an answer.
    #[tokio::test]
    async fn an_unread_session_stops_no_other() {
        let connection = with_frames(&[]);
        let session = ClientStream::Session("s".to_owned());
        connection.state.lock().stream(&session).frames.put(Utf8Bytes::from("unread"));
        connection.state.lock().stream(&ClientStream::Connection).frames.put(Utf8Bytes::from("an answer"));
        assert!(connection.state.lock().give_up_unread());
        assert!(!connection.state.lock().give_up_unread(), "answers stay");
        assert_eq!(connection.state.lock().unsent_bytes(), "an answer".len());
        assert_eq!(connection.read(session.clone(), None).err(), Some(NoStream::Gone));
        assert!(connection.read(session, None).is_ok(), "after the client has loaded the session");
    }

    /// Regression: a client that had opened 255 sessions got a 404 for the stream of each further one.
    #[tokio::test]
    async fn streams_that_are_not_used_make_room_for_others() {
        let connection = with_frames(&[]);
        let session = |number: usize| ClientStream::Session(format!("s_{number}"));
        for number in 0..2 * STREAMS_MAX {
            drop(connection.read(session(number), None).expect("the others are not used"));
        }
        assert_eq!(connection.state.lock().streams.len(), STREAMS_MAX);
        let readers: Vec<_> = (0..STREAMS_MAX - 1)
            .map(|number| connection.read(session(number), None).expect("there is room"))
            .collect();
        assert_eq!(connection.read(session(STREAMS_MAX), None).err(), Some(NoStream::TooMany));
        connection.state.lock().stream(&session(0)).frames.put(Utf8Bytes::from("unread"));
        drop(readers);
        assert!(connection.read(session(STREAMS_MAX), None).is_ok());
        assert!(connection.knows_session("s_0"), "a stream with messages stays");
    }

    /// Regression: a connection that was ended while a message was being written to a front end that read nothing kept
    /// the front end's input open for ever.
    #[tokio::test]
    async fn a_message_that_nobody_takes_does_not_keep_an_ended_connection_open() {
        let (ours, mut front) = epitome_platform::local::async_pair().expect("a pair");
        let (_reader, to_front) = ours.into_split();
        let connection = over_websocket(to_front);
        let long = "x".repeat(1 << 20);
        {
            let mut forwarded = std::pin::pin!(connection.forward(&long, || true));
            assert!(futures_util::poll!(&mut forwarded).is_pending());
            assert!(connection.to_front.try_lock().is_err(), "it is being written");
            connection.end();
            assert!(forwarded.await.is_err());
        }
        let mut read = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut front, &mut read).await.expect("it ends");
        assert!(read.len() < long.len());
    }
}
