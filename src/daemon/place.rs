//! Where the daemon's sockets and locks are. The directory is the person's own: nobody else may enter it, and
//! one that belongs to somebody else is refused.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use epitome_files::paths::Paths;

/// The longest path of a socket, in bytes, with its closing zero: `sun_path` of Linux has 108, that of the
/// BSDs 104.
const SOCKET_PATH_BYTES_MAX: usize = 104;

/// The longest name of a socket in the directory.
const LONGEST_NAME: &str = "control.sock";

/// The files of one home's daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub directory: PathBuf,
}

impl Place {
    /// Touches no disk.
    pub fn of(paths: &Paths) -> Place {
        let longest = paths.runtime.join(LONGEST_NAME);
        if longest.as_os_str().len() < SOCKET_PATH_BYTES_MAX {
            return Place { directory: paths.runtime.clone() };
        }
        // Sockets have short names only; the directory's name then stands for the long one.
        let digest = Sha256::digest(paths.runtime.as_os_str().as_bytes());
        let name = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>();
        let user = rustix::process::getuid().as_raw();
        Place { directory: std::env::temp_dir().join(format!("epitome-{user}-{name}")) }
    }

    /// Where front ends connect.
    pub fn acp_socket(&self) -> PathBuf {
        self.directory.join("acp.sock")
    }

    /// Where the control API is.
    pub fn control_socket(&self) -> PathBuf {
        self.directory.join(LONGEST_NAME)
    }

    /// Held by the daemon for as long as it lives.
    pub fn daemon_lock(&self) -> PathBuf {
        self.directory.join("daemon.lock")
    }

    /// Held while a daemon is started, and while an idle one makes sure that nobody came.
    pub fn start_lock(&self) -> PathBuf {
        self.directory.join("start.lock")
    }

    /// Makes the directory, or checks that the one that is there is ours alone.
    pub fn prepare(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        self.check()
    }

    /// That the directory is no link, belongs to this user, and lets nobody else in. Wrong rights of our own
    /// are put right.
    pub fn check(&self) -> io::Result<()> {
        let metadata = std::fs::symlink_metadata(&self.directory)?;
        let refused = |why: &str| {
            let text = format!("{} is not used for sockets: {why}", self.directory.display());
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        };
        if !metadata.is_dir() {
            return refused("it is no directory");
        }
        if metadata.uid() != rustix::process::getuid().as_raw() {
            return refused("it belongs to another user");
        }
        if metadata.mode() & 0o077 != 0 {
            let private = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(&self.directory, private)?;
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
    use super::*;

    #[test]
    fn a_long_home_has_short_sockets() {
        let short = Place::of(&Paths::below(Path::new("/h")));
        assert_eq!(short.acp_socket(), Path::new("/h/run/acp.sock"));
        let (a, b) = (format!("/{}", "a".repeat(120)), format!("/{}", "b".repeat(120)));
        let (a, b) = (Place::of(&Paths::below(Path::new(&a))), Place::of(&Paths::below(Path::new(&b))));
        assert!(a.control_socket().as_os_str().len() < SOCKET_PATH_BYTES_MAX);
        assert_ne!(a, b);
    }

    #[test]
    fn the_directory_is_private_and_no_link() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let place = Place { directory: scratch.path().join("run") };
        place.prepare().expect("a new directory");
        std::fs::set_permissions(&place.directory, std::fs::Permissions::from_mode(0o755)).expect("ours");
        place.prepare().expect("our own directory");
        assert_eq!(std::fs::metadata(&place.directory).expect("it is there").mode() & 0o777, 0o700);
        let link = Place { directory: scratch.path().join("link") };
        std::os::unix::fs::symlink(&place.directory, &link.directory).expect("a link can be made");
        assert!(link.prepare().is_err());
    }
}
