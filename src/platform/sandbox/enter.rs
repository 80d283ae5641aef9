//! Sandbox setup between fork and exec: namespaces, mounts, capabilities, Landlock. All data is prepared
//! beforehand; the functions that run in the child make system calls only.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::{Namespaces, Places};

/// Capabilities that commands run by root lose, because they could undo the sandbox or change the machine.
/// The remaining ones apply to files, owners and processes, which Landlock and the namespaces restrict.
const RIGHTS_GIVEN_UP: [libc::c_int; 20] = [
    2,  // CAP_DAC_READ_SEARCH: permits opening files by handle.
    9,  // CAP_LINUX_IMMUTABLE
    12, // CAP_NET_ADMIN
    13, // CAP_NET_RAW
    16, // CAP_SYS_MODULE
    17, // CAP_SYS_RAWIO
    19, // CAP_SYS_PTRACE
    20, // CAP_SYS_PACCT
    21, // CAP_SYS_ADMIN
    22, // CAP_SYS_BOOT
    24, // CAP_SYS_RESOURCE
    25, // CAP_SYS_TIME
    27, // CAP_MKNOD
    32, // CAP_MAC_OVERRIDE
    33, // CAP_MAC_ADMIN
    34, // CAP_SYSLOG
    35, // CAP_WAKE_ALARM
    38, // CAP_PERFMON
    39, // CAP_BPF
    40, // CAP_CHECKPOINT_RESTORE
];

/// The private mounts and network of a command.
pub(super) struct World {
    namespaces: Namespaces,
    /// Whether it gets a network that consists only of a loopback.
    loopback: bool,
    /// Limit of processes and threads in it; `None` if they would be counted together with the user's other
    /// processes.
    processes: Option<libc::rlimit>,
    /// Contents of the user namespace's `uid_map` and `gid_map`.
    maps: [Vec<u8>; 2],
    mounts: Vec<Mount>,
}

struct Mount {
    at: CString,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Bind mount over itself, unchanged, so that it can't be renamed.
    Fixed,
    /// Bind mount over itself, read-only; mounts inside of it stay unchanged.
    Closed,
    /// Bind mount over itself, recursively read-only.
    Frozen,
    /// An empty tmpfs over a directory.
    Empty,
    /// `/dev/null` over a file.
    Null,
}

impl World {
    /// Returns `None` without namespaces.
    pub fn new(
        places: &Places,
        namespaces: Namespaces,
        loopback: bool,
        processes: Option<u64>,
    ) -> io::Result<Option<World>> {
        if namespaces == Namespaces::None {
            return Ok(None);
        }
        let processes = processes.map(limit).filter(|_| namespaces.count_processes());
        let mut world = World { loopback, processes, ..World::bare(namespaces)? };
        // Fix directories before freezing their contents: a later mount of the directory would hide the
        // others.
        for path in &places.fixed {
            world.mount(path, Kind::Fixed)?;
        }
        for path in &places.closed {
            world.mount(path, Kind::Closed)?;
        }
        for path in &places.frozen {
            world.mount(path, Kind::Frozen)?;
        }
        for path in &places.covered {
            world.mount(path, if path.is_dir() { Kind::Empty } else { Kind::Null })?;
        }
        Ok(Some(world))
    }

    /// Namespaces without mounts and limits, to test for support.
    pub fn bare(namespaces: Namespaces) -> io::Result<World> {
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let map = |id: u32| format!("{id} {id} 1\n").into_bytes();
        let maps = [map(user), map(group)];
        Ok(World { namespaces, loopback: true, processes: None, maps, mounts: Vec::new() })
    }

    fn mount(&mut self, path: &Path, kind: Kind) -> io::Result<()> {
        self.mounts.push(Mount { at: CString::new(path.as_os_str().as_bytes())?, kind });
        Ok(())
    }

    /// Enters the namespaces and sets up the mounts, the process limit and the loopback.
    pub fn enter(&self) -> io::Result<()> {
        let network = if self.loopback { libc::CLONE_NEWNET } else { 0 };
        match self.namespaces {
            Namespaces::None => return Ok(()),
            Namespaces::OfAdministrator => unshare(libc::CLONE_NEWNS | network)?,
            Namespaces::OfUser => {
                unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | network)?;
                // The kernel requires this before a group may be mapped.
                tell(c"/proc/self/setgroups", b"deny")?;
                tell(c"/proc/self/uid_map", &self.maps[0])?;
                tell(c"/proc/self/gid_map", &self.maps[1])?;
            }
        }
        if let Some(limit) = &self.processes {
            // SAFETY: the kernel reads a structure that outlives the call.
            check(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, limit) })?;
        }
        if self.loopback {
            raise_loopback()?;
        }
        // Mounts made here don't propagate out; mounts that the user makes later still propagate in.
        mount(None, c"/", None, libc::MS_REC | libc::MS_SLAVE)?;
        for Mount { at, kind } in &self.mounts {
            let mounted = match kind {
                Kind::Fixed => mount(Some(at), at, None, libc::MS_BIND | libc::MS_REC),
                Kind::Closed => {
                    mount(Some(at), at, None, libc::MS_BIND | libc::MS_REC).and_then(|()| freeze(at, 0))
                }
                Kind::Frozen => mount(Some(at), at, None, libc::MS_BIND | libc::MS_REC)
                    .and_then(|()| freeze(at, libc::AT_RECURSIVE)),
                Kind::Empty => mount(Some(c"none"), at, Some(c"tmpfs"), libc::MS_RDONLY | libc::MS_NOSUID),
                Kind::Null => mount(Some(c"/dev/null"), at, None, libc::MS_BIND),
            };
            match mounted {
                // Deleted since it was looked up.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// Returns a process limit, soft and hard, capped at the current maximum, which can't be raised.
fn limit(processes: u64) -> libc::rlimit {
    let now = rustix::process::getrlimit(rustix::process::Resource::Nproc);
    let most = now.maximum.map_or(processes, |maximum| maximum.min(processes));
    libc::rlimit { rlim_cur: most, rlim_max: most }
}

/// Irrevocably drops the capabilities, if there are any.
pub(super) fn give_up_rights() -> io::Result<()> {
    for right in RIGHTS_GIVEN_UP {
        // SAFETY: a system call with integer arguments. It fails without CAP_SETPCAP, and then there is
        // nothing to drop.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, right, 0, 0, 0) };
    }
    // SAFETY: a system call with integer arguments.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

/// The Landlock ABI version; 0 if unsupported.
pub(super) fn landlock_version() -> u32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: the kernel reads nothing at the null pointer of length 0 in a version query.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0_usize, VERSION)
    };
    u32::try_from(version).unwrap_or(0)
}

/// Irrevocably restricts this thread to the rules.
pub(super) fn restrict(ruleset: &OwnedFd) -> io::Result<()> {
    // SAFETY: a system call with a descriptor that stays open while it is borrowed.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: a system call with an integer argument. After a fork there is only one thread.
    check(unsafe { libc::unshare(flags) })
}

fn tell(path: &std::ffi::CStr, text: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}

fn mount(
    from: Option<&std::ffi::CStr>,
    at: &std::ffi::CStr,
    kind: Option<&std::ffi::CStr>,
    flags: libc::c_ulong,
) -> io::Result<()> {
    let pointer = |text: Option<&std::ffi::CStr>| text.map_or(std::ptr::null(), std::ffi::CStr::as_ptr);
    // SAFETY: the kernel reads strings that outlive the call, or null.
    check(unsafe { libc::mount(pointer(from), at.as_ptr(), pointer(kind), flags, std::ptr::null()) })
}

/// Makes a mount read-only. Leaves its other attributes alone, some of which could not be set again.
fn freeze(at: &std::ffi::CStr, how: libc::c_int) -> io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the kernel reads a string and a structure of the given size, both of which outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            at.as_ptr(),
            how,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Brings up the loopback of a new network. Errors are ignored: a sandbox without a loopback is still a
/// sandbox.
fn raise_loopback() -> io::Result<()> {
    // SAFETY: all zeros is a valid request with an empty name, no flags and no address.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the descriptor is opened, used and closed here, and the request outlives the call.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Ok(());
        }
        libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &raw const request);
        libc::close(socket);
    }
    Ok(())
}

fn check(done: libc::c_int) -> io::Result<()> {
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
