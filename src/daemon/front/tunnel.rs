//! The tunnel between a server and one of its workers: a WebSocket that carries the connection of one client to the
//! worker's daemon.
//!
//! The worker dials, and offers the socket. Once a client wants it, the server sends a [`TunnelRequest`]; the worker
//! attaches to its daemon and sends a [`TunnelAnswer`], both as text. Then binary frames carry the bytes between the front
//! end and the daemon, both ways. An empty frame is the end of one direction. A socket that fails without one is a network
//! that failed: the daemon goes on with the turns for a while, as for a client that is cut off.
//!
//! Both sides send pings, so that a side that hears nothing knows that the other one has gone, even if the other one can't
//! answer because nobody takes what it was sent.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, interval, interval_at, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::progress::{CountedSocket, SocketProgress};
use super::remote::WRITE_TIME_MAX;
use crate::handshake::PROTOCOL;
use epitome_platform::local::{self, AsyncStream};
use epitome_session::AccessGrant;

/// Interval of the server's pings over a socket that waits for a client.
const IDLE_PING_EVERY: Duration = Duration::from_secs(20);

/// Time without any byte of the other side after which such a socket is given up.
const IDLE_SILENCE_MAX: Duration = Duration::from_secs(45);

/// Interval of pings of both sides while a client is served.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Time without any byte of the other side after which a client is looked after by another worker.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Time without any byte of a worker that attaches a client, after which another one is asked.
const ANSWER_SILENCE_MAX: Duration = Duration::from_secs(10);

/// Room for a read that is worth it, in bytes.
const READ_BYTES_MIN: usize = 4 * 1024;

/// Time in which a front end that has given its daemon up closes both directions.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// Largest frame that is sent, in bytes.
const FRAME_BYTES_MAX: usize = 64 * 1024;

/// What a server asks of a worker for a client.
#[derive(Serialize, Deserialize)]
pub struct TunnelRequest {
    /// The rights of the client.
    pub grant: AccessGrant,
    /// The highest id of a daemon's request that the client has seen.
    pub ids_above: u64,
}

/// A worker's answer.
#[derive(Serialize, Deserialize)]
pub struct TunnelAnswer {
    /// The version of its daemon.
    pub version: String,
    /// Why the client is not served, as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What the subprotocols of workers begin with, in all versions.
pub const WORKER_PROTOCOL: &str = "epitome-worker.";

/// The subprotocol of workers.
pub fn worker_protocol() -> String {
    format!("{WORKER_PROTOCOL}{PROTOCOL}")
}

/// One side of a tunnel.
pub struct Tunnel<S> {
    sink: SplitSink<WebSocketStream<CountedSocket<S>>, Message>,
    stream: SplitStream<WebSocketStream<CountedSocket<S>>>,
    progress: SocketProgress,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Tunnel<S> {
    pub fn new(socket: WebSocketStream<CountedSocket<S>>, progress: SocketProgress) -> Tunnel<S> {
        let (sink, stream) = socket.split();
        Tunnel { sink, stream, progress }
    }

    /// Waits for the server's request. `None` if the socket has ended. The server sends pings meanwhile.
    pub async fn request(&mut self) -> Option<TunnelRequest> {
        read_json(next(&mut self.stream, &self.progress, IDLE_SILENCE_MAX).await)
    }

    /// Keeps an offered socket alive until the worker ends it, or says something unasked.
    pub async fn wait(&mut self) {
        let Tunnel { sink, stream, progress } = self;
        tokio::select! {
            _ = next(stream, progress, IDLE_SILENCE_MAX) => {}
            () = ping(sink, progress, IDLE_PING_EVERY) => {}
        }
    }

    /// Shows the server that the worker is there while it attaches a client.
    pub async fn while_attaching<T>(&mut self, attaching: impl Future<Output = T>) -> T {
        let pinging = async {
            ping(&mut self.sink, &self.progress, PING_EVERY).await;
            std::future::pending().await
        };
        tokio::select! {
            attached = attaching => attached,
            never = pinging => never,
        }
    }

    /// Waits for the worker's answer. The worker sends pings meanwhile.
    pub async fn answer(&mut self, within: Duration) -> Option<TunnelAnswer> {
        let answer = next(&mut self.stream, &self.progress, ANSWER_SILENCE_MAX);
        read_json(timeout(within, answer).await.ok()?)
    }

    /// Sends a request or an answer. False if the socket has failed.
    pub async fn say(&mut self, message: &impl Serialize) -> bool {
        let text = serde_json::to_string(message).expect("it is made of texts and numbers");
        send(&mut self.sink, &self.progress, Message::text(text)).await
    }

    pub async fn close(mut self) {
        drop(timeout(WRITE_TIME_MAX, self.sink.close()).await);
    }

    /// Carries bytes between a local socket and the other side, until the daemon is done or the socket fails. `front`:
    /// another handle of the local socket, if a front end is at its other end, and not the daemon. A daemon whose socket is
    /// dropped without the end of a direction notices that the client was cut off. Returns false if the socket has failed.
    pub async fn carry(self, local: AsyncStream, front: Option<local::Stream>) -> bool {
        let Tunnel { mut sink, mut stream, progress } = self;
        let is_daemon = front.is_none();
        let (mut from_local, mut to_local) = local.into_split();
        let up = async {
            let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
            let mut bytes = BytesMut::new();
            let (mut is_open, mut was_open) = (true, true);
            loop {
                if bytes.capacity() < READ_BYTES_MIN {
                    bytes.reserve(FRAME_BYTES_MAX);
                }
                let message = tokio::select! {
                    read = from_local.read_buf(&mut bytes), if is_open => {
                        is_open = matches!(read, Ok(1..));
                        Message::Binary(bytes.split().freeze())
                    }
                    _ = pings.tick() => Message::Ping(Bytes::new()),
                };
                if let Some(front) = front.as_ref().filter(|_| was_open && !is_open) {
                    sleep(LOOK_AFTER).await;
                    if local::has_hung_up(front, Duration::ZERO) {
                        return true;
                    }
                }
                was_open = is_open;
                if !send(&mut sink, &progress, message).await {
                    return false;
                }
                if is_daemon && !is_open {
                    drop(timeout(WRITE_TIME_MAX, sink.close()).await);
                    return true;
                }
            }
        };
        let down = async {
            while let Some(Message::Binary(bytes)) = next(&mut stream, &progress, SILENCE_MAX).await {
                let passed_on = match bytes.is_empty() {
                    // The daemon has closed the connection.
                    true if !is_daemon => return true,
                    true => to_local.shutdown().await,
                    false => to_local.write_all(&bytes).await,
                };
                // A front end that reads no more has given its daemon up, which the other direction notices. Neither can a
                // daemon that has ended say so here.
                drop(passed_on);
            }
            false
        };
        tokio::select! {
            is_whole = up => is_whole,
            is_whole = down => is_whole,
        }
    }
}

fn read_json<T: for<'a> Deserialize<'a>>(message: Option<Message>) -> Option<T> {
    match message? {
        Message::Text(text) => serde_json::from_str(text.as_str()).ok(),
        _ => None,
    }
}

/// The next message that is no ping; `None` if the socket has ended, or the other side is silent.
async fn next<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut SplitStream<WebSocketStream<CountedSocket<S>>>,
    progress: &SocketProgress,
    silence_max: Duration,
) -> Option<Message> {
    loop {
        match progress.while_reading(silence_max, stream.next()).await?? {
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
            Ok(message @ (Message::Text(_) | Message::Binary(_))) => return Some(message),
            Ok(Message::Close(_)) | Err(_) => return None,
        }
    }
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    sink: &mut SplitSink<WebSocketStream<CountedSocket<S>>, Message>,
    progress: &SocketProgress,
    message: Message,
) -> bool {
    matches!(progress.while_writing(WRITE_TIME_MAX, sink.send(message)).await, Some(Ok(())))
}

/// Sends pings until that fails.
async fn ping<S: AsyncRead + AsyncWrite + Unpin>(
    sink: &mut SplitSink<WebSocketStream<CountedSocket<S>>, Message>,
    progress: &SocketProgress,
    every: Duration,
) {
    let mut pings = interval(every);
    loop {
        pings.tick().await;
        if !send(sink, progress, Message::Ping(Bytes::new())).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio::task::JoinHandle;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    async fn side(io: DuplexStream, role: Role) -> Tunnel<DuplexStream> {
        let progress = SocketProgress::default();
        Tunnel::new(WebSocketStream::from_raw_socket(progress.count(io), role, None).await, progress)
    }

    /// A front end and a daemon with a tunnel between them.
    async fn connected() -> (local::Stream, AsyncStream, [JoinHandle<bool>; 2]) {
        let (client, server) = tokio::io::duplex(1 << 16);
        let (worker, server) = (side(client, Role::Client).await, side(server, Role::Server).await);
        let (front, other) = local::pair().expect("a pair");
        let probe = other.try_clone().expect("a descriptor");
        other.set_nonblocking(true).expect("a socket");
        let other = AsyncStream::from_std(other).expect("a runtime");
        let (daemon, daemon_end) = local::async_pair().expect("a pair");
        let carrying =
            [tokio::spawn(server.carry(other, Some(probe))), tokio::spawn(worker.carry(daemon_end, None))];
        (front, daemon, carrying)
    }

    #[tokio::test]
    async fn a_daemon_sends_its_last_words_to_a_client_that_has_closed_its_half() {
        let (front, mut daemon, carrying) = connected().await;
        front.set_nonblocking(true).expect("a socket");
        let mut front = AsyncStream::from_std(front).expect("a runtime");
        front.write_all(b"prompt").await.expect("it is open");
        front.shutdown().await.expect("it is open");
        let mut heard = String::new();
        daemon.read_to_string(&mut heard).await.expect("text");
        daemon.write_all(b"last words").await.expect("the other half is open");
        drop(daemon);
        let mut shown = String::new();
        front.read_to_string(&mut shown).await.expect("text");
        assert_eq!((heard.as_str(), shown.as_str()), ("prompt", "last words"));
        for task in carrying {
            task.await.expect("it ends");
        }
    }

    /// The daemon goes on with the turns of a client that was cut off, and must not take it for one that has left.
    #[tokio::test]
    async fn a_daemon_notices_that_a_front_end_was_cut_off() {
        let (front, daemon, carrying) = connected().await;
        drop(front);
        for task in carrying {
            task.await.expect("it ends");
        }
        assert!(local::has_hung_up(&daemon.into_std().expect("a socket"), Duration::ZERO));
    }
}
