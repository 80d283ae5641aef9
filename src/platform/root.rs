//! Workspace directories, each opened once: paths below it are opened relative to its descriptor, so that a
//! directory that is moved away or exchanged for a link can't redirect them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// A directory and the inode that it had when it was opened.
#[derive(Debug)]
pub struct Root {
    named: PathBuf,
    path: PathBuf,
    /// `None` if the directory did not exist.
    pin: Option<Pin>,
}

#[derive(Debug)]
struct Pin {
    directory: OwnedFd,
    identity: Identity,
}

/// Device and inode of a file: the same file as long as somebody has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub fn of(file: impl AsFd) -> io::Result<Identity> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Identity { device: stat.st_dev, inode: stat.st_ino })
    }
}

impl Root {
    /// Opens the directory. One that does not exist keeps its path, and nothing can be opened below it.
    pub fn open(named: &Path) -> Root {
        let path = named.canonicalize().unwrap_or_else(|_| named.to_path_buf());
        let pin = || {
            let directory = open_at(rustix::fs::CWD, &path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
            Ok::<_, io::Error>(Pin { identity: Identity::of(&directory)?, directory })
        };
        Root { named: named.to_path_buf(), pin: pin().ok(), path }
    }

    /// The path as the client gave it.
    pub fn named(&self) -> &Path {
        &self.named
    }

    /// The canonical path when it was opened; later links at that place do not change it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory, opened with `O_PATH`; `None` if it did not exist.
    pub fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.pin.as_ref().map(|pin| pin.directory.as_fd())
    }

    pub fn identity(&self) -> Option<Identity> {
        self.pin.as_ref().map(|pin| pin.identity)
    }

    /// Whether its path still leads to the directory that was opened, without a link.
    pub fn is_in_place(&self) -> bool {
        let Some(pin) = &self.pin else { return false };
        let now = open_at(rustix::fs::CWD, &self.path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        now.and_then(Identity::of).is_ok_and(|now| now == pin.identity)
    }

    /// Opens a path below the directory; see `open_at`.
    pub fn open_beneath(&self, relative: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let directory = self.directory().ok_or(io::ErrorKind::NotFound)?;
        open_at(
            directory,
            if relative.as_os_str().is_empty() { Path::new(".") } else { relative },
            flags,
            mode,
        )
    }
}

/// The directories of a workspace.
#[derive(Clone, Debug, Default)]
pub struct Roots(Vec<Arc<Root>>);

impl Roots {
    /// Opens the directories, except for those that `self` has under the same name.
    pub fn reopened<'a>(&self, named: impl IntoIterator<Item = &'a Path>) -> Roots {
        let known = |named: &Path| self.0.iter().find(|root| root.named == named).cloned();
        Roots(
            named.into_iter().map(|path| known(path).unwrap_or_else(|| Arc::new(Root::open(path)))).collect(),
        )
    }

    pub fn iter(&self) -> impl Iterator<Item = &Root> {
        self.0.iter().map(|root| &**root)
    }

    /// The innermost directory that contains this resolved path, and the rest of the path.
    pub fn containing<'a, 'b>(&'a self, real: &'b Path) -> Option<(&'a Root, &'b Path)> {
        let below = |root: &'a Root| Some((root, real.strip_prefix(&root.path).ok()?));
        self.iter().filter_map(below).min_by_key(|(_, rest)| rest.as_os_str().len())
    }
}

/// Opens a resolved path, relative to a directory or absolute. Fails with `ELOOP` where any of its components is
/// a link: the path had none when it was resolved, so that somebody exchanged it since. A relative path can't
/// lead out of the directory.
pub fn open_at(directory: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let beneath = if path.is_absolute() { ResolveFlags::empty() } else { ResolveFlags::BENEATH };
    let how = beneath | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(&directory, path, flags, mode, how) {
            Ok(file) => return Ok(file),
            // Interrupted by a rename elsewhere.
            Err(Errno::AGAIN) if !flags.contains(OFlags::NONBLOCK) => {}
            // Before Linux 5.6, or a container that forbids it.
            Err(Errno::NOSYS | Errno::PERM) => {
                return Ok(open_by_steps(directory.as_fd(), path, flags, mode)?);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The same, one component at a time.
fn open_by_steps(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = if path.is_absolute() { Path::new("/") } else { Path::new(".") };
    let mut at = rustix::fs::openat(directory, root, step, Mode::empty())?;
    let mut components =
        path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    let mut next = components.next();
    while let Some(part) = next {
        if part == Component::ParentDir {
            return Err(Errno::XDEV);
        }
        next = components.next();
        if next.is_none() {
            return rustix::fs::openat(&at, part.as_os_str(), flags, mode);
        }
        at = rustix::fs::openat(&at, part.as_os_str(), step, Mode::empty())?;
    }
    rustix::fs::openat(&at, ".", flags, mode)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const READ: OFlags = OFlags::RDONLY;

    /// A background command exchanged a directory for a link to the home while the agent wrote files into it: 91 of
    /// 118 writes landed outside of the workspace.
    #[test]
    fn a_directory_exchanged_for_a_link_leads_nowhere() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let base = scratch.path().canonicalize().expect("it exists");
        fs::create_dir_all(base.join("w/d/e")).expect("made");
        fs::create_dir_all(base.join("home/e")).expect("made");
        fs::write(base.join("w/d/e/file"), "ours").expect("written");
        fs::write(base.join("home/e/file"), "secret").expect("written");
        let root = Root::open(&base.join("w"));
        let by_steps = |path: &str| {
            open_by_steps(
                root.directory().expect("it exists"),
                Path::new(path),
                READ | OFlags::NOFOLLOW,
                Mode::empty(),
            )
        };
        for path in ["d/e/file", "./d/e/file", "d/e", "."] {
            assert!(root.open_beneath(Path::new(path), READ, Mode::empty()).is_ok(), "{path}");
            assert!(by_steps(path).is_ok(), "{path}");
        }
        fs::rename(base.join("w/d"), base.join("w/was")).expect("renamed");
        symlink(base.join("home"), base.join("w/d")).expect("linked");
        for path in ["d/e/file", "d/e", "d", "../home/e/file", "d/../../home"] {
            assert!(root.open_beneath(Path::new(path), READ, Mode::empty()).is_err(), "{path}");
            assert!(by_steps(path).is_err(), "{path}");
        }
        let absolute = base.join("w/d/e/file");
        assert!(open_at(rustix::fs::CWD, &absolute, READ, Mode::empty()).is_err());
        assert!(open_by_steps(rustix::fs::CWD, &absolute, READ, Mode::empty()).is_err());
    }

    #[test]
    fn an_exchanged_root_is_noticed_and_its_descriptor_keeps_the_old_directory() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let base = scratch.path().canonicalize().expect("it exists");
        fs::create_dir_all(base.join("w")).expect("made");
        fs::create_dir_all(base.join("home")).expect("made");
        fs::write(base.join("w/file"), "ours").expect("written");
        let root = Root::open(&base.join("w"));
        assert!(root.is_in_place());
        fs::rename(base.join("w"), base.join("old")).expect("renamed");
        assert!(!root.is_in_place(), "it is gone");
        symlink(base.join("home"), base.join("w")).expect("linked");
        assert!(!root.is_in_place(), "a link is there");
        assert!(root.open_beneath(Path::new("file"), READ, Mode::empty()).is_ok());
        assert!(!Root::open(&base.join("none")).is_in_place());
    }

    #[test]
    fn the_innermost_root_contains_a_path() {
        let roots = Roots::default().reopened([Path::new("/w"), Path::new("/w/sub")]);
        let found = |path: &str| {
            let (root, rest) = roots.containing(Path::new(path))?;
            Some((root.path().display().to_string(), rest.display().to_string()))
        };
        assert_eq!(found("/w/a"), Some(("/w".into(), "a".into())));
        assert_eq!(found("/w/sub/a"), Some(("/w/sub".into(), "a".into())));
        assert_eq!(found("/w"), Some(("/w".into(), String::new())));
        assert_eq!(found("/wide"), None);
    }
}
