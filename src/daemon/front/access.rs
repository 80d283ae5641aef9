//! Who may connect over WebSocket: clients on this machine that know a token, and of web pages only those that the user
//! allows. Connections are not encrypted, so a server listens on loopback only.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::token::is_same;
use epitome_acp::connection::LINE_BYTES_MAX;

/// Time limit for a client's handshake.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Delay after a failed accept, which usually means too many open files.
pub const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// What clients need to connect.
pub struct WebSocketAccess {
    /// The bearer token.
    pub token: String,
    /// Origins of web pages that may connect; all others are refused.
    pub origins: Vec<String>,
}

impl WebSocketAccess {
    /// Decides about a handshake. `token` is the token in the address, if the protocol has it there; otherwise, the
    /// client sends it in the header `Authorization`. The error is the response.
    #[expect(clippy::result_large_err, reason = "tungstenite's callback returns the response")]
    pub fn check(&self, request: &Request, token: Option<&str>) -> Result<(), ErrorResponse> {
        // Browsers send the origin of each page, and no website may reach its visitor's agent.
        if let Some(origin) = request.headers().get("origin")
            && !self.origins.iter().any(|allowed| origin == allowed.as_str())
        {
            return Err(refusal(403, "This origin may not connect"));
        }
        let header = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let bearer = header.and_then(|value| value.strip_prefix("Bearer "));
        if !token.or(bearer).is_some_and(|token| is_same(token.trim(), &self.token)) {
            return Err(refusal(401, "A bearer token is required"));
        }
        Ok(())
    }
}

/// Listens on a loopback address. An error is a sentence for the user.
pub async fn listen_on_loopback(address: SocketAddr) -> Result<TcpListener, String> {
    if !address.ip().is_loopback() {
        return Err(format!(
            "{address} is not a loopback address, and connections are not encrypted: listen on 127.0.0.1, and reach \
             it from elsewhere through SSH or a proxy with TLS"
        ));
    }
    let listener = TcpListener::bind(address);
    listener.await.map_err(|error| format!("{address} can't be listened on: {error}"))
}

/// Limits a frame to the length of a line on other transports.
pub fn frame_limits() -> WebSocketConfig {
    WebSocketConfig::default().max_message_size(Some(LINE_BYTES_MAX)).max_frame_size(Some(LINE_BYTES_MAX))
}

/// The response to a handshake that is refused.
pub fn refusal(status: u16, text: &str) -> ErrorResponse {
    let mut response = ErrorResponse::new(Some(text.to_owned()));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or(hyper::StatusCode::BAD_REQUEST);
    response
}
