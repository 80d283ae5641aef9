//! Sets up the sandbox between fork and exec: namespaces, mounts, capabilities, Landlock. All data is prepared
//! beforehand; the functions that run in the child make system calls only.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::mounts::Mounts;
use super::{check, processes};
use crate::sandbox::{Namespaces, SandboxPaths, Support};

/// Capabilities that commands run by root keep. They apply to files, owners and processes, which Landlock and the
/// namespaces restrict, and to low ports of the command's private network. All others could undo the sandbox, change
/// the machine or take resources from other programs (real-time priorities, locked memory). With `CAP_FSETID`, a new
/// setuid file would stay one when it is written to.
const RIGHTS_KEPT: [u32; 5] = [
    0,  // CAP_CHOWN
    1,  // CAP_DAC_OVERRIDE
    3,  // CAP_FOWNER
    5,  // CAP_KILL
    10, // CAP_NET_BIND_SERVICE
];

/// Maximum number of capabilities of a kernel: two words of bits.
const RIGHTS_MAX: u32 = 64;

/// The private mounts, network and processes of a command.
pub(super) struct SandboxWorld {
    namespaces: Namespaces,
    /// Whether it gets a network that consists only of a loopback.
    loopback: bool,
    /// Limit of processes and threads in it; `None` if the kernel would count them together with the user's other
    /// processes.
    processes: Option<libc::rlimit>,
    /// The same limit, as text for the process namespace.
    numbers: Option<CString>,
    /// Contents of the user namespace's `uid_map` and `gid_map`.
    maps: [Vec<u8>; 2],
    mounts: Mounts,
}

/// The remaining steps after entering the namespaces.
#[derive(Default)]
pub(super) struct EnteredWorld {
    /// The new `/proc`, `/dev/pts` and `/dev/shm`, which no Landlock rule covers yet.
    pub proc: Option<OwnedFd>,
    pub terminals: Option<OwnedFd>,
    pub shared_memory: Option<OwnedFd>,
    /// Set if this process is the first of its namespace; it must then start the command.
    pub command: Option<processes::PendingCommand>,
}

impl SandboxWorld {
    /// Returns `None` without namespaces.
    pub fn new(
        paths: &SandboxPaths,
        start: &Path,
        support: &Support,
        loopback: bool,
        processes: Option<u64>,
    ) -> io::Result<Option<SandboxWorld>> {
        if support.namespaces == Namespaces::None {
            return Ok(None);
        }
        let mounts = Mounts::new(paths, start, support.own_processes)?;
        let mut world = SandboxWorld {
            loopback,
            mounts,
            ..SandboxWorld::bare(support.namespaces, support.own_processes)
        };
        world.processes = processes.map(limit).filter(|_| support.namespaces.count_processes());
        let numbers = processes.map(|processes| processes.max(PROCESS_NUMBERS_MIN).to_string());
        world.numbers = numbers.and_then(|numbers| CString::new(numbers).ok());
        Ok(Some(world))
    }

    /// Creates namespaces in which nothing may be written, to test for support.
    pub fn bare(namespaces: Namespaces, own_processes: bool) -> SandboxWorld {
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let map = |id: u32| format!("{id} {id} 1\n").into_bytes();
        let mounts = Mounts::none(own_processes);
        let maps = [map(user), map(group)];
        SandboxWorld { namespaces, loopback: true, processes: None, numbers: None, maps, mounts }
    }

    /// Enters the namespaces and sets up the mounts, the process limit and the loopback.
    pub fn enter(&mut self) -> io::Result<EnteredWorld> {
        let network = if self.loopback { libc::CLONE_NEWNET } else { 0 };
        let processes = if self.mounts.have_own_proc() { libc::CLONE_NEWPID } else { 0 };
        let all = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | network | processes;
        match self.namespaces {
            Namespaces::None => return Ok(EnteredWorld::default()),
            Namespaces::OfAdministrator => unshare(all)?,
            Namespaces::OfUser => {
                unshare(libc::CLONE_NEWUSER | all)?;
                // The kernel requires this before a group may be mapped.
                write_proc_file(c"/proc/self/setgroups", b"deny")?;
                write_proc_file(c"/proc/self/uid_map", &self.maps[0])?;
                write_proc_file(c"/proc/self/gid_map", &self.maps[1])?;
            }
        }
        let mut entered = EnteredWorld::default();
        if self.mounts.have_own_proc() {
            entered.command = Some(processes::begin()?);
        }
        if let Some(limit) = &self.processes {
            // SAFETY: the kernel reads a structure that outlives the call.
            check(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, limit) })?;
        }
        if self.loopback {
            raise_loopback()?;
        }
        self.mounts.make()?;
        entered.terminals = Mounts::mount_terminals()?;
        entered.shared_memory = Mounts::mount_shared_memory()?;
        if self.mounts.have_own_proc() {
            entered.proc = Some(self.mounts.mount_proc(self.numbers.as_deref())?);
        }
        self.mounts.enter_start()?;
        Ok(entered)
    }
}

/// The smallest limit that the kernel accepts for a namespace.
const PROCESS_NUMBERS_MIN: u64 = 301;

/// Makes the kernel kill this process's descendants before others when memory runs out. Errors are ignored: the
/// sandbox does not depend on it.
pub(super) fn raise_oom_score() {
    // Between other programs (0) and the first to be killed (1000).
    let _ = write_proc_file(c"/proc/self/oom_score_adj", b"500");
}

/// Returns a process limit, soft and hard, capped at the current maximum, which can't be raised.
fn limit(processes: u64) -> libc::rlimit {
    let now = rustix::process::getrlimit(rustix::process::Resource::Nproc);
    let most = now.maximum.map_or(processes, |maximum| maximum.min(processes));
    libc::rlimit { rlim_cur: most, rlim_max: most }
}

/// Irrevocably drops the capabilities, if any. The bounding set affects programs that root executes; the process's
/// own sets affect the first process of a namespace, which executes no program.
pub(super) fn drop_capabilities() -> io::Result<()> {
    /// `struct __user_cap_header_struct` of the kernel.
    #[repr(C)]
    struct CapabilityHeader {
        version: u32,
        process: libc::c_int,
    }
    /// `struct __user_cap_data_struct`.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Rights {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    for right in (0..RIGHTS_MAX).filter(|right| !RIGHTS_KEPT.contains(right)) {
        // SAFETY: a system call with integer arguments. It fails without CAP_SETPCAP, when there is nothing to drop,
        // and from the first number on that this kernel does not know.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, right, 0, 0, 0) } != 0 {
            break;
        }
    }
    let header = CapabilityHeader { version: VERSION_3, process: 0 };
    let mut rights = [Rights { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: the kernel reads and writes structures of the sizes that belong to this version; they outlive the
    // calls.
    unsafe {
        if libc::syscall(libc::SYS_capget, &raw const header, rights.as_mut_ptr()) == 0 {
            let kept = RIGHTS_KEPT.iter().fold(0, |kept, right| kept | 1 << right);
            let masks: [u32; 2] = [kept, 0];
            for (rights, mask) in rights.iter_mut().zip(masks) {
                rights.effective &= mask;
                rights.permitted &= mask;
                rights.inheritable = 0;
            }
            check(libc::syscall(libc::SYS_capset, &raw const header, rights.as_ptr()) as libc::c_int)?;
        }
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

/// The right to read files and directories.
pub(super) const READ: u64 = 1 << 2 | 1 << 3;

/// The rights to read, write, create and remove files. Before this version, Landlock allows to truncate all that may be written.
pub(super) fn change_files(landlock: u32) -> u64 {
    const CHANGE: u64 = 1 << 1 | 1 << 5 | 1 << 8;
    const TRUNCATE: u64 = 1 << 14;
    const TRUNCATES_FROM: u32 = 3;
    READ | CHANGE | if landlock >= TRUNCATES_FROM { TRUNCATE } else { 0 }
}

/// The right to use terminals. Before this version, Landlock allows the requests of all devices.
pub(super) fn use_terminals(landlock: u32) -> u64 {
    const WRITE_FILE: u64 = 1 << 1;
    const REQUEST_OF_DEVICE: u64 = 1 << 15;
    const REQUESTS_FROM: u32 = 5;
    READ | WRITE_FILE | if landlock >= REQUESTS_FROM { REQUEST_OF_DEVICE } else { 0 }
}

/// Adds a rule that allows this access to files and directories at or below this one.
pub(super) fn allow(ruleset: &OwnedFd, below: &OwnedFd, access: u64) -> io::Result<()> {
    /// `struct landlock_path_beneath_attr` of the kernel.
    #[repr(C, packed)]
    struct PathBeneath {
        allowed_access: u64,
        parent_fd: i32,
    }
    const PATH_BENEATH: libc::c_int = 1;
    let rule = PathBeneath { allowed_access: access, parent_fd: below.as_raw_fd() };
    // SAFETY: the kernel reads a structure that outlives the call.
    let done = unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), PATH_BENEATH, &raw const rule, 0_u32)
    };
    check(done as libc::c_int)
}

/// Irrevocably restricts this thread to the rules.
pub(super) fn restrict(ruleset: &OwnedFd) -> io::Result<()> {
    // SAFETY: a system call with a descriptor that stays open while it is borrowed.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) };
    check(done as libc::c_int)
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: a system call with an integer argument. After a fork there is only one thread.
    check(unsafe { libc::unshare(flags) })
}

fn write_proc_file(path: &std::ffi::CStr, text: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}

/// Brings up the loopback of a new network. Errors are ignored: the sandbox is effective without a loopback.
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
