//! The daemon's listening sockets: how connections are accepted from them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use epitome_platform::local::{AsyncListener, AsyncStream, Socket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of a socket's connections whose clients have not authenticated yet. More wait to be accepted.
const PENDING_MAX: usize = 64;

/// Counts a connection until its client has authenticated; then it is dropped.
pub type PendingPermit = OwnedSemaphorePermit;

/// A listening socket with two handles: the runtime's, to wait for connections, and the original, to accept
/// connections that the runtime has not noticed yet.
pub struct SocketListener {
    waiting: AsyncListener,
    at_once: Socket,
    pending: Arc<Semaphore>,
}

impl SocketListener {
    pub fn new(socket: Socket) -> io::Result<SocketListener> {
        let waiting = socket.for_runtime()?;
        Ok(SocketListener { waiting, at_once: socket, pending: Arc::new(Semaphore::new(PENDING_MAX)) })
    }

    /// Whether connections to the path still reach this socket.
    pub fn is_found(&self) -> bool {
        self.at_once.is_found()
    }

    /// Removes the socket file if it is still ours.
    pub fn remove(&self) {
        if let Err(error) = self.at_once.remove() {
            let path = self.at_once.path().display();
            tracing::warn!(%path, %error, "a socket could not be removed");
        }
    }

    pub async fn accept(&self) -> io::Result<(AsyncStream, Option<PendingPermit>)> {
        // The semaphore is never closed.
        let permit = self.pending.clone().acquire_owned().await.ok();
        self.waiting.accept().await.map(|stream| (stream, permit))
    }

    /// Accepts a waiting connection immediately, even if there are too many.
    pub fn accept_at_once(&self) -> io::Result<Option<(AsyncStream, Option<PendingPermit>)>> {
        match self.at_once.accept_at_once() {
            Ok(stream) => Ok(Some((stream, self.pending.clone().try_acquire_owned().ok()))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Removes a file if it exists.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
