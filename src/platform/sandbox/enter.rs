//! What happens between fork and exec: namespaces, mounts, rights, landlock. All data is made before; the functions
//! with which a command enters make system calls alone.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::{Namespaces, Places};

/// What an administrator's command gives up: what could undo the sandbox, or change the machine. What is left are
/// rights over files, owners and processes, which landlock and the namespaces hold.
const RIGHTS_GIVEN_UP: [libc::c_int; 20] = [
    2,  // CAP_DAC_READ_SEARCH: open by handle.
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

/// The mounts and the network that a command sees instead of the system's.
pub(super) struct World {
    namespaces: Namespaces,
    /// A network with nothing in it but a loopback.
    loopback: bool,
    /// Processes and threads that there may be in it; `None` where they would be counted with all others of the user.
    processes: Option<libc::rlimit>,
    /// What a user namespace is told of the user and of the group.
    maps: [Vec<u8>; 2],
    mounts: Vec<Mount>,
}

struct Mount {
    at: CString,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Over itself, as it is: it can't be renamed then.
    Fixed,
    /// Over itself, read-only, with what is mounted in it as it is.
    Closed,
    /// Over itself, read-only with all that is in it.
    Frozen,
    /// Nothing, over a directory.
    Empty,
    /// Nothing, over a file.
    Null,
}

impl World {
    /// `None` without namespaces.
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
        // A directory is fixed before what is in it is frozen, or its mount would hide the others.
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

    /// Namespaces with everything that there is, for a try.
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

    /// Leaves the system's world for this one.
    pub fn enter(&self) -> io::Result<()> {
        let network = if self.loopback { libc::CLONE_NEWNET } else { 0 };
        match self.namespaces {
            Namespaces::None => return Ok(()),
            Namespaces::OfAdministrator => unshare(libc::CLONE_NEWNS | network)?,
            Namespaces::OfUser => {
                unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | network)?;
                // Who maps a group must have given up to change groups.
                tell(c"/proc/self/setgroups", b"deny")?;
                tell(c"/proc/self/uid_map", &self.maps[0])?;
                tell(c"/proc/self/gid_map", &self.maps[1])?;
            }
        }
        if let Some(limit) = &self.processes {
            // SAFETY: the kernel reads a structure that lives as long as the call.
            check(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, limit) })?;
        }
        if self.loopback {
            raise_loopback()?;
        }
        // What is mounted here stays here; what the person mounts later still comes.
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
                // Gone since it was looked at.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// A limit of processes, soft and hard. No higher than the one that holds already: that can't be raised.
fn limit(processes: u64) -> libc::rlimit {
    let now = rustix::process::getrlimit(rustix::process::Resource::Nproc);
    let most = now.maximum.map_or(processes, |maximum| maximum.min(processes));
    libc::rlimit { rlim_cur: most, rlim_max: most }
}

/// Gives up rights for good, as far as there are some.
pub(super) fn give_up_rights() -> io::Result<()> {
    for right in RIGHTS_GIVEN_UP {
        // SAFETY: a system call with numbers. It fails without the right to give up rights: then there are none.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, right, 0, 0, 0) };
    }
    // SAFETY: a system call with numbers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

/// The version of landlock's interface; 0 for none.
pub(super) fn landlock_version() -> u32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: the kernel reads nothing at the null pointer of length 0 when it is asked for the version.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0_usize, VERSION)
    };
    u32::try_from(version).unwrap_or(0)
}

/// Holds this thread to the rules, for good.
pub(super) fn restrict(ruleset: &OwnedFd) -> io::Result<()> {
    // SAFETY: a system call with a descriptor that is open as long as it is borrowed.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: a system call with a number. After a fork there is one thread.
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
    // SAFETY: the kernel reads strings that live as long as the call; null where there is none.
    check(unsafe { libc::mount(pointer(from), at.as_ptr(), pointer(kind), flags, std::ptr::null()) })
}

/// Makes a mount read-only and leaves its other attributes, some of which could not be set again.
fn freeze(at: &std::ffi::CStr, how: libc::c_int) -> io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the kernel reads a string and a structure of the given size, which live as long as the call.
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

/// A new network's loopback is down. A sandbox without one is still a sandbox.
fn raise_loopback() -> io::Result<()> {
    // SAFETY: all zeros is a request with an empty name, no flags and no address.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: a descriptor that is opened, used and closed here, and a request that lives as long as the call.
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
