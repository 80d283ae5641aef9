//! The control API: JSON-RPC over a local socket, one message a line.

use std::sync::Arc;

use tokio::net::UnixStream;

use super::Daemon;

/// Serves one connection until its end.
pub async fn serve(_daemon: Arc<Daemon>, _stream: UnixStream) {}
