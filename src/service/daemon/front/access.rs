//! Admits clients over a port: they must know a token, and web pages must also be allowed by the user. A server listens
//! on loopback only, unless its connections are encrypted.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::{HeaderMap, StatusCode, header};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::remote_tokens::{RemoteTokens, StoredToken};
use crate::token::is_same;
use epitome_acp::connection::LINE_BYTES_MAX;

/// Delay after a failed accept, which usually means too many open files.
pub const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// The prefix of a subprotocol with the token, for web pages: they can set no other header of a WebSocket.
const TOKEN_SUBPROTOCOL: &str = "bearer.";

/// The conditions for a connection.
pub struct RemoteAccess {
    pub tokens: AcceptedTokens,
    /// Origins of web pages that may connect; all others are refused.
    pub origins: Vec<String>,
}

/// The bearer tokens with which clients may connect.
pub enum AcceptedTokens {
    /// One, with all rights.
    One(String),
    /// The tokens of the file.
    Stored(RemoteTokens),
}

/// The token with which a client was admitted; `None` for the one with all rights.
pub type AdmittedToken = Option<StoredToken>;

/// Why a request is refused: the status and the text of the response.
pub type AccessRefusal = (StatusCode, &'static str);

impl RemoteAccess {
    /// Checks the origin, which browsers send for each page: no website may reach its visitor's agent.
    pub fn check_origin(&self, headers: &HeaderMap) -> Result<(), AccessRefusal> {
        match headers.get(header::ORIGIN) {
            Some(origin) if !self.origins.iter().any(|allowed| origin == allowed.as_str()) => {
                Err((StatusCode::FORBIDDEN, "This origin may not connect"))
            }
            _ => Ok(()),
        }
    }

    /// Checks the token: the one in the address, if the protocol has it there, else that of the headers.
    pub fn check_token(
        &self,
        headers: &HeaderMap,
        in_address: Option<&str>,
    ) -> Result<AdmittedToken, AccessRefusal> {
        let refused = (StatusCode::UNAUTHORIZED, "A valid bearer token is required");
        let token = in_address.map(str::trim).or_else(|| presented_token(headers)).ok_or(refused)?;
        match &self.tokens {
            AcceptedTokens::One(accepted) if is_same(token, accepted) => Ok(None),
            AcceptedTokens::One(_) => Err(refused),
            AcceptedTokens::Stored(tokens) => match tokens.find(token) {
                Ok(Some(found)) => Ok(Some(found)),
                Ok(None) => Err(refused),
                Err(error) => {
                    tracing::error!(%error, "no client is admitted");
                    Err((
                        StatusCode::SERVICE_UNAVAILABLE,
                        "The tokens can't be read; see the log of the server",
                    ))
                }
            },
        }
    }

    /// Whether the token of a connected client has neither been revoked nor expired.
    pub fn is_valid(&self, token: &AdmittedToken) -> bool {
        match (&self.tokens, token) {
            (AcceptedTokens::Stored(tokens), Some(token)) => tokens.is_valid(token).unwrap_or_else(|error| {
                tracing::error!(%error, "clients are disconnected");
                false
            }),
            (AcceptedTokens::Stored(_) | AcceptedTokens::One(_), _) => true,
        }
    }
}

/// The token in the header `Authorization`, or else one that is offered as a subprotocol.
fn presented_token(headers: &HeaderMap) -> Option<&str> {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = authorization.and_then(|value| value.strip_prefix("Bearer "));
    let offered = || subprotocols(headers).find_map(|name| name.strip_prefix(TOKEN_SUBPROTOCOL));
    bearer.or_else(offered).map(str::trim)
}

/// The subprotocols that a client of WebSocket offers.
pub fn subprotocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    offered.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

/// Listens on a loopback address.
pub async fn listen_on_loopback(address: SocketAddr) -> Result<TcpListener, ListenError> {
    match address.ip().is_loopback() {
        true => listen_on(address).await,
        false => Err(ListenError::NotLoopback(address)),
    }
}

/// Listens on any address.
pub async fn listen_on(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|source| ListenError::Bind { address, source })
}

/// Why a server does not listen on an address.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "{0} is not a loopback address, and connections are not encrypted: listen on 127.0.0.1, or serve other machines \
         with `epitome serve` and a certificate"
    )]
    NotLoopback(SocketAddr),
    #[error("can't listen on {address}: {source}")]
    Bind { address: SocketAddr, source: io::Error },
}

/// Limits a frame to the length of a line on other transports.
pub fn frame_limits() -> WebSocketConfig {
    WebSocketConfig::default().max_message_size(Some(LINE_BYTES_MAX)).max_frame_size(Some(LINE_BYTES_MAX))
}
