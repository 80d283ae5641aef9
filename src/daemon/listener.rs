//! The daemon's listening sockets: how they are created, accepted from and removed. A socket is identified by
//! its inode, not by its name, which another daemon may have taken over.

use std::fs::Permissions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use rustix::fs::{AtFlags, CWD, Dev, Mode, OFlags, Stat};

/// Maximum number of a socket's connections whose clients have not authenticated yet. More wait to be accepted.
const PENDING_MAX: usize = 64;

/// Counts a connection until its client has authenticated; then it is dropped.
pub type PendingPermit = OwnedSemaphorePermit;

/// A socket created by this process, which listens on it.
pub struct Socket {
    path: PathBuf,
    /// The directory it was created in, even if that has moved since.
    directory: OwnedFd,
    /// Identifies the socket; its inode is not reused while we listen on it.
    made: SocketFileId,
    listener: UnixListener,
}

/// Identity of a file independent of its name: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SocketFileId(Dev, u64);

impl SocketFileId {
    fn from_stat(stat: &Stat) -> SocketFileId {
        SocketFileId(stat.st_dev, stat.st_ino)
    }
}

impl Socket {
    /// Creates a socket and listens on it. Fails if the path exists.
    pub fn listen(path: &Path) -> io::Result<Socket> {
        let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory = rustix::fs::openat(CWD, directory, flags, Mode::empty())?;
        let listener = UnixListener::bind(path)?;
        let made = SocketFileId::from_stat(&rustix::fs::lstat(path)?);
        // The directory already keeps others out; this protects the socket if it is moved elsewhere.
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Socket { path: path.to_path_buf(), directory, made, listener })
    }
}

/// A listening socket with two handles: the runtime's, to wait for connections, and the original, to accept
/// connections that the runtime has not noticed yet.
pub struct SocketListener {
    waiting: tokio::net::UnixListener,
    at_once: Socket,
    pending: Arc<Semaphore>,
}

impl SocketListener {
    pub fn new(socket: Socket) -> io::Result<SocketListener> {
        let waiting = tokio::net::UnixListener::from_std(socket.listener.try_clone()?)?;
        Ok(SocketListener { waiting, at_once: socket, pending: Arc::new(Semaphore::new(PENDING_MAX)) })
    }

    /// Whether connections to the path still reach this socket.
    pub fn is_found(&self) -> bool {
        let Socket { path, made, .. } = &self.at_once;
        rustix::fs::lstat(path).is_ok_and(|found| SocketFileId::from_stat(&found) == *made)
    }

    /// Removes the socket file if it is still ours. It is looked up in its original directory rather than by
    /// path, which may lead to another daemon's socket.
    pub fn remove(&self) {
        let Socket { path, directory, made, .. } = &self.at_once;
        let Some(name) = path.file_name() else { return };
        let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| SocketFileId::from_stat(&found) == *made)
            && let Err(error) = rustix::fs::unlinkat(directory, name, AtFlags::empty())
        {
            tracing::warn!(path = %path.display(), %error, "a socket could not be removed");
        }
    }

    pub async fn accept(&self) -> io::Result<(tokio::net::UnixStream, Option<PendingPermit>)> {
        // The semaphore is never closed.
        let permit = self.pending.clone().acquire_owned().await.ok();
        self.waiting.accept().await.map(|(stream, _)| (stream, permit))
    }

    /// Accepts a waiting connection immediately, even if there are too many.
    pub fn accept_at_once(&self) -> io::Result<Option<(tokio::net::UnixStream, Option<PendingPermit>)>> {
        match self.at_once.listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                let stream = tokio::net::UnixStream::from_std(stream)?;
                Ok(Some((stream, self.pending.clone().try_acquire_owned().ok())))
            }
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
