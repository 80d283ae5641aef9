//! Paths of the daemon's sockets and locks. Their directory must belong to the current user and be accessible only to
//! them; a directory owned by another user is rejected.

use epitome_platform::os::{
    DirBuilderExt, MetadataExt, OpenOptionsExt, make_private, try_lock_shared, user_id,
};
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use epitome_files::paths::{LONGEST_SOCKET_NAME, Paths};

/// How long a daemon may take to exit.
pub const END_TIME_MAX: Duration = Duration::from_secs(20);

/// Interval of looks whether it has.
const END_LOOK: Duration = Duration::from_millis(20);

/// The runtime files of the daemon that serves one home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir {
    pub directory: PathBuf,
}

/// Opens a file to lock it, and creates it if there is none.
pub fn open_lock(path: &Path) -> io::Result<File> {
    File::options().create(true).write(true).truncate(false).mode(0o600).open(path)
}

fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(try_lock_shared(&file), Err(TryLockError::WouldBlock)))
}

impl RuntimeDir {
    /// Derives the paths without touching the disk.
    pub fn new(paths: &Paths) -> RuntimeDir {
        RuntimeDir { directory: paths.socket_directory() }
    }

    /// Socket that front ends connect to.
    pub fn acp_socket(&self) -> PathBuf {
        self.directory.join("acp.sock")
    }

    /// Socket of the control API.
    pub fn control_socket(&self) -> PathBuf {
        self.directory.join(LONGEST_SOCKET_NAME)
    }

    /// The secret that clients of both sockets have to know.
    pub fn token(&self) -> PathBuf {
        self.directory.join("token")
    }

    /// Lock held by the daemon for its lifetime.
    pub fn daemon_lock(&self) -> PathBuf {
        self.directory.join("daemon.lock")
    }

    /// Lock held while a daemon is started, and while an idle daemon checks for late connections before it
    /// exits.
    pub fn start_lock(&self) -> PathBuf {
        self.directory.join("start.lock")
    }

    /// The process id of the daemon that serves this directory, starts or ends; `None` if there is none.
    pub fn daemon(&self) -> Option<String> {
        let lock = self.daemon_lock();
        is_locked(&lock).then(|| std::fs::read_to_string(&lock).unwrap_or_default().trim().to_owned())
    }

    /// Waits for the end of a daemon that was stopped; returns whether it has ended in time. It removes its sockets first;
    /// its lock is released when the process ends.
    pub async fn ended_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while self.daemon().is_some() {
            if Instant::now() > until {
                return false;
            }
            tokio::time::sleep(END_LOOK).await;
        }
        true
    }

    /// Whether a process, which may be this one, is starting a daemon.
    pub fn is_starting(&self) -> bool {
        is_locked(&self.start_lock())
    }

    /// Creates the directory, or checks that an existing one is private to the current user.
    pub fn prepare(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        self.check()
    }

    /// Checks that the directory is not a symlink and belongs to the current user. Permissions that let
    /// others in are tightened to 0700.
    pub fn check(&self) -> io::Result<()> {
        let metadata = std::fs::symlink_metadata(&self.directory)?;
        let refused = |why: &str| {
            let text = format!("{} is not used for sockets: {why}", self.directory.display());
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        };
        if !metadata.is_dir() {
            return refused("it is not a directory");
        }
        if metadata.uid() != user_id() {
            return refused("it belongs to another user");
        }
        if metadata.mode() & 0o077 != 0 {
            make_private(&self.directory)?;
        }
        Ok(())
    }

    /// The directory's path, for messages.
    pub fn path(&self) -> &Path {
        &self.directory
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use epitome_files::paths::SOCKET_PATH_BYTES_MAX;

    #[test]
    fn a_long_home_gets_short_socket_paths() {
        let short = RuntimeDir::new(&Paths::below(Path::new("/h")));
        assert_eq!(short.acp_socket(), Path::new("/h/run/acp.sock"));
        let (a, b) = (format!("/{}", "a".repeat(120)), format!("/{}", "b".repeat(120)));
        let (a, b) =
            (RuntimeDir::new(&Paths::below(Path::new(&a))), RuntimeDir::new(&Paths::below(Path::new(&b))));
        assert!(a.control_socket().as_os_str().len() < SOCKET_PATH_BYTES_MAX);
        assert_ne!(a, b);
    }

    #[test]
    fn the_directory_is_private_and_not_a_symlink() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let runtime_dir = RuntimeDir { directory: scratch.path().join("run") };
        runtime_dir.prepare().expect("a new directory");
        std::fs::set_permissions(&runtime_dir.directory, std::fs::Permissions::from_mode(0o755))
            .expect("ours");
        runtime_dir.prepare().expect("our own directory");
        assert_eq!(std::fs::metadata(&runtime_dir.directory).expect("it is there").mode() & 0o777, 0o700);
        let link = RuntimeDir { directory: scratch.path().join("link") };
        std::os::unix::fs::symlink(&runtime_dir.directory, &link.directory).expect("a link can be made");
        assert!(link.prepare().is_err());
    }
}
