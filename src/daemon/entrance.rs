//! The sockets that the daemon listens on: how they are made, who stands in them, and how they are removed. A
//! socket is known by what it is, not by its name, which may have become another daemon's.

use std::fs::Permissions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dev, Mode, OFlags, Stat};

/// A socket that this process has made and listens on.
pub struct Socket {
    path: PathBuf,
    /// The directory that it was made in, wherever that is by now.
    directory: OwnedFd,
    /// What tells it from another of its name: given to nobody else while it is listened on.
    made: FileId,
    listener: UnixListener,
}

/// A file, whatever it is called: its device and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(Dev, u64);

impl FileId {
    fn of(stat: &Stat) -> FileId {
        FileId(stat.st_dev, stat.st_ino)
    }
}

impl Socket {
    /// Listens on a new socket. Fails where there is something of this name.
    pub fn listen(path: &Path) -> io::Result<Socket> {
        let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory = rustix::fs::openat(CWD, directory, flags, Mode::empty())?;
        let listener = UnixListener::bind(path)?;
        let made = FileId::of(&rustix::fs::lstat(path)?);
        // The directory lets nobody in; this is for whoever moves the socket elsewhere.
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Socket { path: path.to_path_buf(), directory, made, listener })
    }
}

/// A socket that is listened on. Twice the same: the runtime's waits for who comes, and the other tells who has
/// come that the runtime has not heard of yet.
pub struct Entrance {
    waiting: tokio::net::UnixListener,
    at_once: Socket,
}

impl Entrance {
    pub fn new(socket: Socket) -> io::Result<Entrance> {
        let waiting = tokio::net::UnixListener::from_std(socket.listener.try_clone()?)?;
        Ok(Entrance { waiting, at_once: socket })
    }

    /// Whether who connects to the path comes to us.
    pub fn is_found(&self) -> bool {
        let Socket { path, made, .. } = &self.at_once;
        rustix::fs::lstat(path).is_ok_and(|found| FileId::of(&found) == *made)
    }

    /// Removes the socket, where it is still the one that was made. The path is not asked: it may lead to another
    /// daemon's.
    pub fn remove(&self) {
        let Socket { path, directory, made, .. } = &self.at_once;
        let Some(name) = path.file_name() else { return };
        let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| FileId::of(&found) == *made)
            && let Err(error) = rustix::fs::unlinkat(directory, name, AtFlags::empty())
        {
            tracing::warn!(path = %path.display(), %error, "a socket could not be removed");
        }
    }

    pub async fn accept(&self) -> io::Result<tokio::net::UnixStream> {
        self.waiting.accept().await.map(|(stream, _)| stream)
    }

    /// Those who stand in it; does not wait.
    pub fn accept_at_once(&self) -> io::Result<Option<tokio::net::UnixStream>> {
        match self.at_once.listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                tokio::net::UnixStream::from_std(stream).map(Some)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Removes a file, if it is there.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
