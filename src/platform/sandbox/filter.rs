//! The seccomp filter: rejects sockets to the outside, and calls that bypass Landlock and the mounts.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// Calls that are not needed to build or test software: they change the system or its mounts, or reach files
/// and keys without a path. `mount_setattr` would make a read-only mount writable, `open_by_handle_at` needs
/// no path, session keyrings contain tickets and secrets, and requests through an `io_uring` bypass every
/// filter; programs fall back when it is unavailable.
const NEVER: [i64; 24] = [
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
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
];

/// Sockets that reach local devices or hosts other than through IP; never allowed, even with a network.
const NEVER_FAMILIES: [libc::c_int; 3] = [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_BLUETOOTH];

/// Calls of the x32 ABI, which 64-bit kernels may support, are numbered with this bit.
#[cfg(target_arch = "x86_64")]
const X32_BIT: i64 = 0x4000_0000;

/// Builds the filter. `internet`: whether IP sockets may be created at all, even for a loopback only;
/// `routes`: whether the kernel may be queried about the network (netlink); `unix`: whether Unix sockets may
/// be created. Socket pairs are always allowed. Empty if seccomp doesn't support this architecture.
pub(super) fn program(internet: bool, routes: bool, unix: bool) -> io::Result<BpfProgram> {
    let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else { return Ok(Vec::new()) };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for number in NEVER {
        rules.insert(number, Vec::new());
    }
    rules.insert(libc::SYS_socket, sockets(internet, routes, unix)?);
    #[cfg(target_arch = "x86_64")]
    for (number, same) in rules.clone() {
        rules.insert(number | X32_BIT, same);
    }
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).map_err(io::Error::other)?;
    BpfProgram::try_from(filter).map_err(io::Error::other)
}

/// Rules for the socket families that are rejected. An empty list rejects every family.
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
                let program = program(internet, routes, unix).expect("it compiles");
                assert!(!program.is_empty(), "{internet} {routes} {unix}");
            }
        }
    }
}
