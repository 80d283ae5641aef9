//! Connections between processes of one user on this machine: sockets in the file system.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::process::Pid;
use tokio::io::Interest;

use super::directories::FileIdentity;
use super::os::{AsFd, OwnedFd};

pub use std::os::unix::net::UnixStream as Stream;
pub use tokio::net::UnixStream as AsyncStream;
pub use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// Two connected sockets.
pub fn pair() -> io::Result<(Stream, Stream)> {
    Stream::pair()
}

/// The same, for the runtime.
pub fn async_pair() -> io::Result<(AsyncStream, AsyncStream)> {
    AsyncStream::pair()
}

pub fn connect(path: &Path) -> io::Result<Stream> {
    Stream::connect(path)
}

pub async fn connect_async(path: &Path) -> io::Result<AsyncStream> {
    AsyncStream::connect(path).await
}

/// Two connected sockets, the second of which becomes a standard stream of a child.
pub fn pair_with_child() -> io::Result<(Stream, Stdio)> {
    let (ours, theirs) = Stream::pair()?;
    Ok((ours, Stdio::from(OwnedFd::from(theirs))))
}

/// Whether the other end neither writes nor reads any more within this time: its process has died, rather than closed its
/// half.
pub fn has_hung_up(stream: &Stream, within: Duration) -> bool {
    let mut ends = [PollFd::new(stream, PollFlags::empty())];
    let Ok(within) = Timespec::try_from(within) else { return false };
    poll(&mut ends, Some(&within)).is_ok_and(|ready| ready > 0) && ends[0].revents().contains(PollFlags::HUP)
}

/// Waits until the other end, which writes no more, does not read any more either.
pub async fn closed(stream: &AsyncStream) {
    // A separate registration: this loop consumes write-readiness events, which the writer would otherwise miss.
    let own = match duplicate(stream) {
        Ok(own) => own,
        Err(error) => {
            // The disconnect is still noticed on the next write.
            tracing::warn!(%error, "the disconnect of a control client can't be detected early");
            return std::future::pending().await;
        }
    };
    loop {
        match own.ready(Interest::WRITABLE).await {
            Ok(ready) if !ready.is_write_closed() => {
                // Pretend that the write would block, to wait for the next readiness event: writable again,
                // or closed.
                let full = || Err::<(), io::Error>(io::ErrorKind::WouldBlock.into());
                drop(own.try_io(Interest::WRITABLE, full));
            }
            Ok(_) | Err(_) => return,
        }
    }
}

/// Another descriptor of the same connection.
fn duplicate(stream: &AsyncStream) -> io::Result<AsyncStream> {
    AsyncStream::from_std(Stream::from(stream.as_fd().try_clone_to_owned()?))
}

/// The process at the other end of a connection.
pub struct PeerProcess {
    /// The number of its user.
    pub user: u32,
    /// `None` if it is not visible here.
    pub process: Option<Pid>,
}

pub fn peer(stream: &AsyncStream) -> io::Result<PeerProcess> {
    let peer = stream.peer_cred()?;
    Ok(PeerProcess { user: peer.uid(), process: peer.pid().and_then(Pid::from_raw) })
}

/// A socket created by this process, which listens on it. It is identified by its inode, not by its name, which another
/// process may have taken over.
pub struct Socket {
    path: PathBuf,
    /// The directory it was created in, even if that has moved since.
    directory: OwnedFd,
    /// Identifies the socket; its inode is not reused while we listen on it.
    made: FileIdentity,
    listener: std::os::unix::net::UnixListener,
}

impl Socket {
    /// Creates a socket and listens on it. Fails if the path exists.
    pub fn listen(path: &Path) -> io::Result<Socket> {
        let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory = rustix::fs::openat(CWD, directory, flags, Mode::empty())?;
        let listener = std::os::unix::net::UnixListener::bind(path)?;
        let made = FileIdentity::of(&rustix::fs::lstat(path)?);
        // The directory already keeps others out; this protects the socket if it is moved elsewhere.
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
        listener.set_nonblocking(true)?;
        Ok(Socket { path: path.to_path_buf(), directory, made, listener })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether connections to the path still reach this socket.
    pub fn is_found(&self) -> bool {
        rustix::fs::lstat(&self.path).is_ok_and(|found| FileIdentity::of(&found) == self.made)
    }

    /// Removes the socket file if it is still ours. It is looked up in its original directory rather than by
    /// path, which may lead to another process's socket.
    pub fn remove(&self) -> io::Result<()> {
        let Some(name) = self.path.file_name() else { return Ok(()) };
        let found = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        match found.is_ok_and(|found| FileIdentity::of(&found) == self.made) {
            true => Ok(rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())?),
            false => Ok(()),
        }
    }

    /// A handle for the runtime, to wait for connections.
    pub fn for_runtime(&self) -> io::Result<AsyncListener> {
        tokio::net::UnixListener::from_std(self.listener.try_clone()?).map(AsyncListener)
    }

    /// Accepts a connection that is waiting. The error is `WouldBlock` if there is none.
    pub fn accept_at_once(&self) -> io::Result<AsyncStream> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        AsyncStream::from_std(stream)
    }
}

/// A socket that the runtime listens on.
pub struct AsyncListener(tokio::net::UnixListener);

impl AsyncListener {
    pub async fn accept(&self) -> io::Result<AsyncStream> {
        self.0.accept().await.map(|(stream, _)| stream)
    }
}
