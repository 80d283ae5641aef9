//! The sockets of the host: one WebSocket for each client, one message in each text frame, and a connection to the
//! daemon. One task runs the host, so that clients and daemon have one order.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use agent_client_protocol::v2::schema as wire;
use epitome_client::{Handshake, halves};
use epitome_daemon::front::access::{
    ACCEPT_AGAIN, AccessRefusal, RemoteAccess, frame_limits, listen_on_loopback,
};
use epitome_daemon::front::attach::Connector;
use epitome_daemon::front::through_socket;
use epitome_platform::local::{AsyncStream, OwnedReadHalf, OwnedWriteHalf};
use futures_util::{SinkExt, StreamExt};
use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async_with_config};

use super::host::{AhpHost, FrameSink};

/// Time limit for a client's handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Clients that are connected at the same time.
const CLIENTS_MAX: usize = 64;

/// Frames of all clients that wait for the host. Clients that send faster have to wait.
const FRAMES_WAITING_MAX: usize = 64;

/// Bytes that wait to be sent to a client. One that reads more slowly is disconnected.
const UNSENT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Frames that wait to be sent to a client, with the same effect.
const UNSENT_FRAMES_MAX: usize = 64 * 1024;

/// Bytes that wait to be sent to the daemon, beyond which no further frames of clients are read.
const TO_DAEMON_BYTES_MAX: usize = 1024 * 1024;

/// A listening host.
pub struct AhpServer {
    listener: TcpListener,
    access: Arc<RemoteAccess>,
    host: AhpHost<ClientSink>,
    from_daemon: BufReader<OwnedReadHalf>,
    to_daemon: OwnedWriteHalf,
}

/// The queue to a client's socket. Dropping it cuts the connection, because a client that does not read would keep it.
struct ClientSink {
    frames: Sender<String>,
    unsent: Arc<AtomicUsize>,
    _connected: oneshot::Sender<()>,
}

impl FrameSink for ClientSink {
    fn send(&self, frame: String) -> bool {
        let bytes = frame.len();
        let unsent = self.unsent.fetch_add(bytes, Ordering::Relaxed);
        // A snapshot may be larger than the limit.
        (unsent == 0 || unsent + bytes <= UNSENT_BYTES_MAX) && self.frames.try_send(frame).is_ok()
    }
}

enum SocketEvent {
    Connected(u64, ClientSink),
    Frame(u64, Utf8Bytes),
    Gone(u64),
}

impl AhpServer {
    /// Listens on a loopback address, with a connection to the daemon, which is started if it does not run. Sessions are
    /// created in `directory` unless a client names another. An error is a sentence for the user.
    pub async fn listen(
        address: SocketAddr,
        access: RemoteAccess,
        mut connector: Connector,
        directory: PathBuf,
    ) -> Result<AhpServer, String> {
        if directory.to_str().is_none() {
            let shown = directory.display();
            return Err(format!("no session can be created in {shown}, because this name is not UTF-8"));
        }
        let listener = listen_on_loopback(address).await.map_err(|error| error.to_string())?;
        let attached = tokio::task::spawn_blocking(move || {
            let daemon = connector.attach(0).map_err(|error| error.to_string())?;
            let failed = |error: io::Error| format!("a connection can't be relayed: {error}");
            // The relay initializes the connection to another daemon, if this one ends, in the same way.
            let relay = through_socket(connector, daemon, || {}).map_err(failed)?;
            let info =
                wire::Implementation::new("epitome-ahp", env!("CARGO_PKG_VERSION")).title("Epitome AHP");
            let capabilities = wire::ClientCapabilities::new();
            let (link, _, stream) = Handshake::begin(halves(relay)?, info, capabilities)?.finish();
            stream.set_nonblocking(true).map_err(failed)?;
            Ok::<_, String>((link, stream))
        });
        let (link, stream) = attached.await.map_err(|error| error.to_string())??;
        let stream = AsyncStream::from_std(stream).map_err(|error| error.to_string())?;
        let (from_daemon, to_daemon) = stream.into_split();
        let from_daemon = BufReader::new(from_daemon);
        let host = AhpHost::new(link, directory, Timestamp::now());
        Ok(AhpServer { listener, access: Arc::new(access), host, from_daemon, to_daemon })
    }

    /// The address that it listens on.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until no daemon can be reached any more; returns why.
    pub async fn serve(self) -> String {
        let (events, received) = mpsc::channel(FRAMES_WAITING_MAX);
        let AhpServer { listener, access, host, from_daemon, to_daemon } = self;
        tokio::select! {
            () = accept(listener, access, events) => unreachable!("it accepts until it is dropped"),
            error = run(host, from_daemon, to_daemon, received) => match error {
                Ok(()) => "the connection to the daemon has ended".to_owned(),
                Err(error) => format!("the connection to the daemon has failed: {error}"),
            },
        }
    }
}

/// Runs the host until the daemon's connection ends.
async fn run(
    mut host: AhpHost<ClientSink>,
    mut from_daemon: BufReader<OwnedReadHalf>,
    mut to_daemon: OwnedWriteHalf,
    mut events: Receiver<SocketEvent>,
) -> io::Result<()> {
    let (mut line, mut unsent) = (Vec::new(), Vec::new());
    loop {
        unsent.extend(host.take_lines());
        // Both reads and the write lose nothing if another branch is first.
        tokio::select! {
            read = from_daemon.read_until(b'\n', &mut line) => {
                if read? == 0 {
                    return Ok(());
                }
                host.line(&line, Timestamp::now());
                line.clear();
            }
            written = to_daemon.write(&unsent), if !unsent.is_empty() => {
                unsent.drain(..written?);
            }
            event = events.recv(), if unsent.len() <= TO_DAEMON_BYTES_MAX => match event {
                Some(SocketEvent::Connected(client, sink)) => host.connected(client, sink),
                Some(SocketEvent::Frame(client, frame)) => host.frame(client, frame.as_str(), Timestamp::now()),
                Some(SocketEvent::Gone(client)) => host.disconnected(client),
                None => return Ok(()),
            },
        }
    }
}

async fn accept(listener: TcpListener, access: Arc<RemoteAccess>, events: Sender<SocketEvent>) {
    let slots = Arc::new(tokio::sync::Semaphore::new(CLIENTS_MAX));
    let mut clients = 0;
    loop {
        let (stream, permit) = match (listener.accept().await, slots.clone().try_acquire_owned()) {
            (Ok((stream, _)), Ok(permit)) => (stream, permit),
            (Ok(_), Err(_)) => {
                tracing::warn!("there are {CLIENTS_MAX} clients already");
                continue;
            }
            (Err(error), _) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        clients += 1;
        let (access, events, client) = (access.clone(), events.clone(), clients);
        tokio::spawn(async move {
            let _permit = permit;
            if let Some(socket) = admit(stream, &access).await {
                relay(client, socket, &events).await;
                // The host may have ended.
                drop(events.send(SocketEvent::Gone(client)).await);
            }
        });
    }
}

#[expect(clippy::result_large_err, reason = "tungstenite's callback returns the response")]
async fn admit(stream: TcpStream, access: &RemoteAccess) -> Option<WebSocketStream<TcpStream>> {
    let check = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
        if request.uri().path() != "/" {
            return Err(refusal((StatusCode::NOT_FOUND, "AHP is served at /")));
        }
        let token = token(request);
        let checked = access.check_origin(request.headers());
        let checked = checked.and_then(|()| access.check_token(request.headers(), token.as_deref()));
        checked.map(drop).map_err(refusal)?;
        Ok(response)
    };
    let accepted = accept_hdr_async_with_config(stream, check, Some(frame_limits()));
    match tokio::time::timeout(HANDSHAKE_TIME_MAX, accepted).await {
        Ok(Ok(socket)) => Some(socket),
        Ok(Err(error)) => {
            tracing::info!(%error, "a WebSocket handshake was refused");
            None
        }
        Err(_) => {
            tracing::info!("a WebSocket handshake took too long");
            None
        }
    }
}

/// The response to a handshake that is refused.
fn refusal((status, text): AccessRefusal) -> ErrorResponse {
    let mut response = ErrorResponse::new(Some(text.to_owned()));
    *response.status_mut() = status;
    response
}

/// The token in the address, where VS Code sends it: a browser's WebSocket can't set headers.
fn token(request: &Request) -> Option<String> {
    let fields = request.uri().query()?.split('&');
    let token = fields.filter_map(|field| field.strip_prefix("tkn=")).next()?;
    Some(percent_decode_str(token).decode_utf8_lossy().into_owned())
}

/// Passes frames in both directions until the socket or the host ends the connection.
async fn relay(client: u64, socket: WebSocketStream<TcpStream>, events: &Sender<SocketEvent>) {
    let (frames, mut to_client) = mpsc::channel::<String>(UNSENT_FRAMES_MAX);
    let (_connected, cut) = oneshot::channel();
    let unsent = Arc::new(AtomicUsize::new(0));
    let sink = ClientSink { frames, unsent: unsent.clone(), _connected };
    if events.send(SocketEvent::Connected(client, sink)).await.is_err() {
        return;
    }
    let (mut sending, mut receiving) = socket.split();
    let write = async {
        while let Some(frame) = to_client.recv().await {
            let bytes = frame.len();
            if sending.send(Message::text(frame)).await.is_err() {
                return;
            }
            unsent.fetch_sub(bytes, Ordering::Relaxed);
        }
    };
    let read = async {
        while let Some(message) = receiving.next().await {
            match message {
                Ok(Message::Text(text)) => {
                    if events.send(SocketEvent::Frame(client, text)).await.is_err() {
                        return;
                    }
                }
                // Pings are answered by the library.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
                Ok(Message::Binary(_) | Message::Close(_)) => return,
                Err(error) => return tracing::info!(%error, "a WebSocket failed"),
            }
        }
    };
    tokio::select! {
        () = write => {}
        () = read => {}
        // The host has dropped the sink.
        _ = cut => {}
    }
}
