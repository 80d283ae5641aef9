//! The mounts of a command: everything is read-only, except for the paths that it may change.
//!
//! Paths are looked up and compared before the fork. After it they are opened again, because a mount belongs to a
//! namespace, and must still lead to the same file: it is an error if a directory was replaced in the meantime.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use super::check;
use crate::directories::{FileIdentity, open_at};
use crate::sandbox::SandboxPaths;

/// The mounts, in the order of their creation.
#[derive(Default)]
pub(super) struct Mounts {
    /// Mounted over themselves, which prevents renaming. Copied while writable, before everything else becomes
    /// read-only.
    writable: Vec<Mount>,
    inner: Vec<Mount>,
    /// Files, and the links that are mounted over them.
    links: Vec<(MountTarget, CString)>,
    /// The directory in which the command starts.
    start: Option<MountTarget>,
    /// Whether `/proc` shows the processes of the command's own namespace.
    own_proc: bool,
}

struct Mount {
    target: MountTarget,
    kind: MountKind,
    /// Set after the fork, in preallocated memory.
    made: Option<(OwnedFd, OwnedFd)>,
}

/// A file and the path that leads to it.
struct MountTarget {
    path: CString,
    identity: FileIdentity,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MountKind {
    /// Bind mount over itself, unchanged, so that it can't be renamed.
    Fixed,
    /// The same as `Fixed`, but read-only; mounts inside of it stay unchanged.
    Closed,
    /// The same as `Fixed`, but recursively read-only.
    Frozen,
    /// An empty, read-only directory.
    Empty,
    /// `/dev/null` over a file.
    Null,
}

impl Mounts {
    pub fn new(paths: &SandboxPaths, start: &Path, own_proc: bool) -> io::Result<Mounts> {
        let mut mounts = Mounts { own_proc, ..Mounts::default() };
        mounts.start = MountTarget::resolve(start)?;
        // Devices can be written to on a read-only mount, but no files can be created in their directories.
        let devices = paths.devices.iter().filter(|path| path.is_dir());
        for path in outermost(paths.writable.iter().chain(devices)) {
            mounts.writable.extend(Mount::resolve(path, MountKind::Fixed)?);
        }
        // Fix directories before freezing their contents: a later mount of the directory would hide those of its
        // contents.
        let kinds = [
            (&paths.fixed, MountKind::Fixed),
            (&paths.closed, MountKind::Closed),
            (&paths.frozen, MountKind::Frozen),
            (&paths.covered, MountKind::Empty),
        ];
        for (paths, kind) in kinds {
            for path in paths {
                mounts.inner.extend(Mount::resolve(path, kind)?);
            }
        }
        for (path, link) in paths.replaced.iter().zip(&paths.links) {
            let target = MountTarget::resolve(path)?.ok_or(io::ErrorKind::NotFound)?;
            mounts.links.push((target, CString::new(link.as_os_str().as_bytes())?));
        }
        Ok(mounts)
    }

    /// Creates mounts that are all read-only.
    pub fn none(own_proc: bool) -> Mounts {
        Mounts { own_proc, ..Mounts::default() }
    }

    pub fn have_own_proc(&self) -> bool {
        self.own_proc
    }

    /// Makes the mounts in this process's mount namespace.
    pub fn make(&mut self) -> io::Result<()> {
        // Mounts made here don't propagate out; mounts that the user makes later still propagate in.
        // SAFETY: the kernel reads a string that outlives the call, and ignores the null pointers.
        check(unsafe {
            let null = std::ptr::null();
            libc::mount(null, c"/".as_ptr(), null.cast(), libc::MS_REC | libc::MS_SLAVE, null.cast())
        })?;
        // Copy the mounts in their original state: writable, or read-only by the user's choice.
        for mount in &mut self.writable {
            let target = mount.target.open()?;
            mount.made = Some((copy(target.as_fd())?, target));
        }
        set_read_only(CWD, c"/", libc::AT_RECURSIVE)?;
        for mount in &self.writable {
            if let Some((copied, target)) = &mount.made {
                attach(copied, target)?;
            }
        }
        for mount in &self.inner {
            mount.make()?;
        }
        for (target, link) in &self.links {
            let target = target.open()?;
            if attach_link(link, &target).is_err() {
                let frozen = copy(target.as_fd())?;
                set_read_only(frozen.as_fd(), c"", libc::AT_EMPTY_PATH)?;
                attach(&frozen, &target)?;
            }
        }
        Ok(())
    }

    /// Mounts a `/proc` of this process's namespace; returns its descriptor.
    pub fn mount_proc(&self, processes: Option<&CStr>) -> io::Result<OwnedFd> {
        let proc = new_file_system(c"proc")?;
        if let Some(most) = processes {
            // Since Linux 6.14 each namespace has its own limit, which applies to root too. Without it, the limit on
            // the processes of a user still applies.
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            if let Ok(file) = rustix::fs::openat(&proc, c"sys/kernel/pid_max", flags, Mode::empty()) {
                let _ = rustix::io::write(&file, most.to_bytes());
            }
        }
        set_read_only(proc.as_fd(), c"", libc::AT_EMPTY_PATH)?;
        let at = rustix::fs::openat(CWD, c"/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        attach(&proc, &at)?;
        Ok(proc)
    }

    /// Mounts terminals of the command's own over those of the user: what is typed in them could be read otherwise.
    /// `/dev/ptmx` creates them, because it uses the `pts` next to it. Returns the descriptor; `None` if this system has
    /// no terminals.
    pub fn mount_terminals() -> io::Result<Option<OwnedFd>> {
        let at = match rustix::fs::openat(CWD, c"/dev/pts", PATH, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let context = fsopen(c"devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // If `/dev/ptmx` is a link to `pts/ptmx`, every user of a new instance must be allowed to open it.
        fsconfig_set_string(&context, c"ptmxmode", c"0666")?;
        fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let terminals = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        attach(&terminals, &at)?;
        Ok(Some(terminals))
    }

    /// Mounts shared memory of the command's own over that of other programs. Returns the descriptor; `None` if this system has
    /// none.
    pub fn mount_shared_memory() -> io::Result<Option<OwnedFd>> {
        let at = match rustix::fs::openat(CWD, c"/dev/shm", PATH, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let memory = new_file_system(c"tmpfs")?;
        attach(&memory, &at)?;
        Ok(Some(memory))
    }

    /// Changes into the start directory, as it is after mounting.
    pub fn enter_start(&self) -> io::Result<()> {
        let Some(start) = &self.start else { return Ok(()) };
        Ok(rustix::process::fchdir(start.open()?)?)
    }
}

impl Mount {
    /// Returns `None` if the path doesn't exist.
    fn resolve(path: &Path, kind: MountKind) -> io::Result<Option<Mount>> {
        let Some((target, is_directory)) = MountTarget::look_up(path)? else { return Ok(None) };
        let kind = if kind == MountKind::Empty && !is_directory { MountKind::Null } else { kind };
        Ok(Some(Mount { target, kind, made: None }))
    }

    fn make(&self) -> io::Result<()> {
        let target = match self.target.open() {
            // Deleted since it was looked up.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let new = match self.kind {
            MountKind::Fixed | MountKind::Closed | MountKind::Frozen => copy(target.as_fd())?,
            MountKind::Empty => new_file_system(c"tmpfs")?,
            MountKind::Null => copy(rustix::fs::openat(CWD, c"/dev/null", PATH, Mode::empty())?.as_fd())?,
        };
        match self.kind {
            MountKind::Fixed | MountKind::Null => {}
            MountKind::Closed | MountKind::Empty => set_read_only(new.as_fd(), c"", libc::AT_EMPTY_PATH)?,
            MountKind::Frozen => set_read_only(new.as_fd(), c"", libc::AT_EMPTY_PATH | libc::AT_RECURSIVE)?,
        }
        attach(&new, &target)
    }
}

const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl MountTarget {
    fn look_up(path: &Path) -> io::Result<Option<(MountTarget, bool)>> {
        let file = match open_at(CWD, path, OFlags::PATH, Mode::empty()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // The path contained no link when it was looked up, a moment ago.
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                return Err(rustix::io::Errno::STALE.into());
            }
            other => other?,
        };
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        let target = MountTarget {
            path: CString::new(path.as_os_str().as_bytes())?,
            identity: FileIdentity::read(file)?,
        };
        Ok(Some((target, kind == rustix::fs::FileType::Directory)))
    }

    fn resolve(path: &Path) -> io::Result<Option<MountTarget>> {
        Ok(MountTarget::look_up(path)?.map(|(target, _)| target))
    }

    /// Opens it in the current namespace. Fails with `ESTALE` if the path leads to another file.
    fn open(&self) -> io::Result<OwnedFd> {
        let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file = match rustix::fs::openat2(CWD, self.path.as_c_str(), PATH, Mode::empty(), how) {
            Err(rustix::io::Errno::LOOP) => return Err(rustix::io::Errno::STALE.into()),
            other => other?,
        };
        match FileIdentity::read(&file)? == self.identity {
            true => Ok(file),
            false => Err(rustix::io::Errno::STALE.into()),
        }
    }
}

/// Returns the paths that are below none of the others.
fn outermost<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Vec<&'a PathBuf> {
    let mut paths: Vec<&PathBuf> = paths.collect();
    paths.sort();
    let mut kept: Vec<&PathBuf> = Vec::new();
    for path in paths {
        if !kept.last().is_some_and(|last| path.starts_with(last)) {
            kept.push(path);
        }
    }
    kept
}

/// Copies the mount of a file or directory, with the mounts inside of it.
fn copy(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // `AT_RECURSIVE` and `AT_EMPTY_PATH` have the same meaning here as in other calls.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(file, c"", flags)?)
}

fn attach(mount: &OwnedFd, at: &OwnedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, c"", at, c"", flags)?)
}

/// Mounts a symbolic link over a file; the kernel treats it like a file.
fn attach_link(link: &CStr, at: &OwnedFd) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    attach(&open_tree(CWD, link, flags)?, at)
}

fn new_file_system(name: &CStr) -> io::Result<OwnedFd> {
    let context = fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Makes a mount read-only. Doesn't change its other attributes, some of which could not be restored.
fn set_read_only(directory: BorrowedFd<'_>, path: &CStr, how: libc::c_int) -> io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the kernel reads a string and a structure of the given size, both of which outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory.as_raw_fd(),
            path.as_ptr(),
            how,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    check(done as libc::c_int)
}
