//! A connection over WebSocket: one text frame for each message, both ways.
//!
//! A front end of another machine offers the subprotocol with the number of the protocol between front ends and daemons,
//! and is sent what a daemon sends to its front ends, including positions.
//!
//! A client whose network failed reconnects with the header `Acp-Connection-Id` of the first response, and in
//! `Acp-Received` the number of frames that it has received. The response's own `Acp-Received` is the number of frames
//! that have arrived from the client. Both are counted since the connection began.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::upgrade::Upgraded;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::ServeError;
use super::connection::{Carrier, ClientStream, NoStream, RemoteConnection, StreamReader};
use super::{CONNECTION_HEADER, RECEIVED_HEADER, RemoteClients, RemoteResponse, text, value};
use crate::front::LAST_WORDS_TIME_MAX;
use crate::front::access::{AdmittedToken, frame_limits, subprotocols};
use crate::front::progress::{CountedSocket, SocketProgress};
use crate::handshake::{PROTOCOL, RETURN_TIME_MAX};

/// The subprotocol that a client may offer and that is then selected.
const SUBPROTOCOL: &str = "acp";

/// The highest id of a daemon's request that a front end has seen.
pub const IDS_HEADER: HeaderName = HeaderName::from_static("epitome-ids-above");

/// Interval of pings, by which both sides notice that the other one has gone.
pub const PING_EVERY: Duration = Duration::from_secs(15);

/// Time without any byte after which the other side has gone.
pub const SILENCE_MAX: Duration = Duration::from_secs(45);

/// Time after which a client that takes nothing of a frame has gone.
pub const WRITE_TIME_MAX: Duration = Duration::from_secs(30);

/// The subprotocol of front ends on other machines.
pub fn front_protocol() -> String {
    format!("epitome-front.{PROTOCOL}")
}

type ClientSocket = WebSocketStream<CountedSocket<TokioIo<Upgraded>>>;

/// Answers the handshake of a client that opens a connection or returns to one.
pub async fn accept(
    clients: &Arc<RemoteClients>,
    mut request: Request<Incoming>,
    token: AdmittedToken,
) -> RemoteResponse {
    let headers = request.headers();
    let key = headers.get(header::SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
    let (Some(key), Some("13")) = (key, value(headers, &header::SEC_WEBSOCKET_VERSION)) else {
        return text(StatusCode::BAD_REQUEST, "This is not a WebSocket handshake (version 13)");
    };
    let front_protocol = front_protocol();
    let is_front = subprotocols(headers).any(|name| name == front_protocol);
    let is_acp = subprotocols(headers).any(|name| name == SUBPROTOCOL);
    let seen = value(headers, &IDS_HEADER).and_then(|ids| ids.parse().ok()).unwrap_or(0);
    let opened = match headers.contains_key(&CONNECTION_HEADER) {
        true => resumed(clients, &request, &token),
        false => new(clients, token, is_front.then_some(seen)).await,
    };
    let (connection, reader) = match opened {
        Ok(opened) => opened,
        Err(refused) => return *refused,
    };
    // A browser ends a socket whose server selects none of the subprotocols that the page offered.
    let selected = is_front.then_some(front_protocol.as_str()).or(is_acp.then_some(SUBPROTOCOL));
    let mut response = switching(&key, selected);
    response.headers_mut().insert(CONNECTION_HEADER, header_value(&connection.id));
    let upgrade = hyper::upgrade::on(&mut request);
    let carried = connection.clone();
    // Begun before anything is waited for: the client may give up in the meantime, and then this ends the connection.
    tokio::spawn(async move {
        let connection = carried;
        let may_return = match upgrade.await {
            Ok(upgraded) => {
                let progress = SocketProgress::default();
                let io = progress.count(TokioIo::new(upgraded));
                let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(frame_limits())).await;
                serve(&connection, socket, &progress, &reader).await
            }
            Err(error) => {
                tracing::info!(%error, "a WebSocket handshake failed");
                true
            }
        };
        if may_return {
            tokio::time::sleep(RETURN_TIME_MAX).await;
            if !reader.is_current() {
                return;
            }
            tracing::info!("a client did not return");
        }
        connection.end();
    });
    let received = connection.received().await.to_string();
    response.headers_mut().insert(RECEIVED_HEADER, header_value(&received));
    response
}

/// The response that begins a WebSocket, with the subprotocol that was selected.
fn switching(key: &str, selected: Option<&str>) -> RemoteResponse {
    let mut response = text(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, header_value(key));
    if let Some(selected) = selected {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, header_value(selected));
    }
    response
}

fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

type OpenedSocket = (Arc<RemoteConnection>, StreamReader);

async fn new(
    clients: &Arc<RemoteClients>,
    token: AdmittedToken,
    front: Option<u64>,
) -> Result<OpenedSocket, Box<RemoteResponse>> {
    let opened = clients.open(Carrier::WebSocket, token, front).await.and_then(|connection| {
        let reader = connection.read(ClientStream::Connection, None);
        Ok((connection, reader.map_err(|_| ServeError::Closed)?))
    });
    opened.map_err(|error| {
        tracing::warn!(%error, "a connection is not served");
        Box::new(text(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()))
    })
}

fn resumed(
    clients: &RemoteClients,
    request: &Request<Incoming>,
    token: &AdmittedToken,
) -> Result<OpenedSocket, Box<RemoteResponse>> {
    let connection = clients.find(request.headers(), token)?;
    let received = value(request.headers(), &RECEIVED_HEADER).and_then(|received| received.parse().ok());
    let read = match received {
        Some(received) => connection.read(ClientStream::Connection, Some(received)),
        None => Err(NoStream::Unknown),
    };
    let reader = read.map_err(|why| {
        Box::new(match why {
            NoStream::Unknown | NoStream::TooMany => text(
                StatusCode::NOT_FOUND,
                "There is no such connection, or Acp-Received is missing; open a new one and load its sessions",
            ),
            NoStream::Gone | NoStream::Busy => {
                text(StatusCode::CONFLICT, "The frames after these are gone; open a new connection")
            }
        })
    })?;
    Ok((connection, reader))
}

/// Serves a socket until it ends or another one replaces it. Returns whether its client may return.
async fn serve(
    connection: &Arc<RemoteConnection>,
    socket: ClientSocket,
    progress: &SocketProgress,
    reader: &StreamReader,
) -> bool {
    let (mut sink, mut stream) = socket.split();
    let write = async {
        let mut pings = tokio::time::interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        loop {
            let message = tokio::select! {
                next = reader.next() => match next {
                    Some((_, frame)) => Message::Text(frame),
                    None => break,
                },
                _ = pings.tick() => Message::Ping(Bytes::new()),
            };
            let is_ping = message.is_ping();
            let sending = sink.send(message);
            let sent = match is_ping {
                true => progress.while_pinging(WRITE_TIME_MAX, sending).await,
                false => progress.while_writing(WRITE_TIME_MAX, sending).await,
            };
            match sent {
                Some(Ok(())) => {}
                Some(Err(_)) => return,
                None => return tracing::info!("a client that does not read is disconnected"),
            }
        }
        // Without a farewell, the client looks for the next server.
        if reader.is_current() && !connection.is_draining() {
            // Everything is sent. The client may be gone already.
            drop(sink.close().await);
        }
    };
    let read = async {
        loop {
            let Some(next) = progress.while_moving(SILENCE_MAX, stream.next()).await else {
                tracing::info!("a client does not answer pings");
                return true;
            };
            match next {
                Some(Ok(Message::Text(text))) => {
                    let passed_on = connection.forward_in_order(text.as_str(), || reader.is_current());
                    if passed_on.await.is_err() {
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
                connection.close_front().await;
                drop(tokio::time::timeout(LAST_WORDS_TIME_MAX, write).await);
            }
            may_return
        }
        () = &mut write => !connection.has_ended(),
    }
}
