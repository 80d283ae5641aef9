//! The seccomp filter: rejects sockets to the outside, and system calls that bypass Landlock and the mounts.

use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// System calls that are not needed to build or test software: they change the system, its mounts or namespaces, or
/// access files and keys without a path. `mount_setattr` would make a read-only mount writable, `open_by_handle_at`
/// needs no path, session keyrings contain tickets and secrets, requests through an `io_uring` bypass every filter,
/// and `userfaultfd` is mostly useful for attacks on the kernel; programs fall back when it is unavailable.
const NEVER: [i64; 31] = [
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Exists since Linux 6.15, with the same number on every architecture.
const OPEN_TREE_ATTR: i64 = 467;

/// Flags of `clone` that create namespaces.
const NEW_NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// System calls that change a file's mode, and the position of the mode in their arguments.
const MODE_CALLS: &[(i64, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (libc::SYS_fchmodat2, 2),
];

/// Socket families that reach local devices or hosts other than through IP; never allowed, even with a network.
const NEVER_FAMILIES: [libc::c_int; 3] = [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_BLUETOOTH];

/// System calls of the x32 ABI, which 64-bit kernels may support, are numbered with this bit.
#[cfg(target_arch = "x86_64")]
const X32_BIT: i64 = 0x4000_0000;

/// Returns the filters for a command. `internet`: whether IP sockets may be created, even if only for a loopback;
/// `routes`: whether the kernel may be queried about the network (netlink); `unix`: whether Unix sockets may be
/// created. Pairs of connected sockets are always allowed. Empty if seccomp doesn't support this architecture.
pub(super) fn programs(internet: bool, routes: bool, unix: bool) -> io::Result<&'static [BpfProgram]> {
    /// Compiled once for each combination.
    static PROGRAMS: OnceLock<Result<Vec<Vec<BpfProgram>>, String>> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(|| {
        let all = (0..COMBINATIONS).map(|bits| compiled(bits & 1 != 0, bits & 2 != 0, bits & 4 != 0));
        all.collect::<io::Result<_>>().map_err(|error| error.to_string())
    });
    match programs {
        Ok(all) => Ok(&all[usize::from(internet) | usize::from(routes) << 1 | usize::from(unix) << 2]),
        Err(error) => Err(io::Error::other(error.clone())),
    }
}

/// Combinations of three flags.
const COMBINATIONS: usize = 8;

fn compiled(internet: bool, routes: bool, unix: bool) -> io::Result<Vec<BpfProgram>> {
    let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else { return Ok(Vec::new()) };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for number in NEVER {
        rules.insert(number, Vec::new());
    }
    rules.insert(libc::SYS_socket, sockets(internet, routes, unix)?);
    if !unix {
        rules.insert(libc::SYS_socketpair, unconnected_pairs()?);
    }
    rules.insert(libc::SYS_clone, has_any(0, NEW_NAMESPACES)?);
    for (call, position) in MODE_CALLS {
        // A setuid program would give its owner's rights to the machine's other users.
        rules.insert(*call, has_any(*position, libc::S_ISUID.cast_signed())?);
    }
    let refused = filter(rules, libc::EPERM, arch)?;
    // The flags of `clone3` are in memory, which filters can't read. The C library falls back to `clone`.
    let unknown = filter(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS, arch)?;
    Ok(vec![refused, unknown])
}

fn filter(
    mut rules: BTreeMap<i64, Vec<SeccompRule>>,
    error: libc::c_int,
    arch: TargetArch,
) -> io::Result<BpfProgram> {
    #[cfg(target_arch = "x86_64")]
    for (number, same) in rules.clone() {
        rules.insert(number | X32_BIT, same);
    }
    let refuse = SeccompAction::Errno(error.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).map_err(io::Error::other)?;
    BpfProgram::try_from(filter).map_err(io::Error::other)
}

/// Returns rules that match if any of the bits is set in an argument.
fn has_any(argument: u8, bits: libc::c_int) -> io::Result<Vec<SeccompRule>> {
    let bits = (0..31).map(|bit| 1_u64 << bit).filter(|bit| u64::from(bits.unsigned_abs()) & bit != 0);
    let rule = |bit| {
        let is_set = SeccompCmpOp::MaskedEq(bit);
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is_set, bit)?;
        SeccompRule::new(vec![condition])
    };
    bits.map(rule).collect::<Result<_, _>>().map_err(io::Error::other)
}

/// Returns rules for pairs of datagram sockets: each of the two can send to the socket of any daemon. Unix sockets that
/// are raw are the same.
fn unconnected_pairs() -> io::Result<Vec<SeccompRule>> {
    /// The bits of a type that are no flags.
    const TYPE: u64 = 0xf;
    let rule = |kind: libc::c_int| {
        let (is_kind, kind) = (SeccompCmpOp::MaskedEq(TYPE), u64::from(kind.unsigned_abs()));
        SeccompRule::new(vec![SeccompCondition::new(1, SeccompCmpArgLen::Dword, is_kind, kind)?])
    };
    [libc::SOCK_DGRAM, libc::SOCK_RAW]
        .map(rule)
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(io::Error::other)
}

/// Returns rules for the socket families that are rejected. An empty list rejects every family.
fn sockets(internet: bool, routes: bool, unix: bool) -> io::Result<Vec<SeccompRule>> {
    let family = |operator: SeccompCmpOp, family: libc::c_int| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, operator, u64::from(family.unsigned_abs()))
    };
    let all_but = |allowed: &[libc::c_int]| {
        let conditions = allowed.iter().map(|allowed| family(SeccompCmpOp::Ne, *allowed));
        SeccompRule::new(conditions.collect::<Result<_, _>>()?)
    };
    let rules = match (internet, routes) {
        (true, true) => {
            let unix = (!unix).then_some(libc::AF_UNIX);
            let refused = NEVER_FAMILIES.into_iter().chain(unix);
            refused.map(|refused| SeccompRule::new(vec![family(SeccompCmpOp::Eq, refused)?])).collect()
        }
        (true, false) if unix => {
            all_but(&[libc::AF_INET, libc::AF_INET6, libc::AF_UNIX]).map(|rule| vec![rule])
        }
        (true, false) => all_but(&[libc::AF_INET, libc::AF_INET6]).map(|rule| vec![rule]),
        (false, _) if unix => all_but(&[libc::AF_UNIX]).map(|rule| vec![rule]),
        (false, _) => Ok(Vec::new()),
    };
    rules.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_compile_for_all_network_settings() {
        for (internet, routes) in [(false, false), (true, false), (true, true)] {
            for unix in [false, true] {
                let programs = programs(internet, routes, unix).expect("they compile");
                assert!(programs.iter().all(|program| !program.is_empty()), "{internet} {routes} {unix}");
            }
        }
    }
}
