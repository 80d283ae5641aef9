//! Power losses, and disks on which the n-th call fails.

use std::io::ErrorKind;

use epitome_simulated_disk::InjectedFault;

use super::on_many_disks;
use super::world::World;

/// Maximum number of power losses of one disk.
const LIVES_MAX: u32 = 3;

/// Maximum number of calls of a scenario that are made to fail, one per run.
const CALLS_MAX: u64 = 3_000;

#[test]
fn nothing_acknowledged_is_lost_on_simulated_disks() {
    let rare = [
        "a body was moved out",
        "a change of a directory was lost",
        "a deletion failed",
        "a fork failed",
        "a page was blank",
        "a session was closed after a failed sync",
        "a session was deleted",
        "a session was forked",
        "a sync failed",
        "a write survived an earlier one",
        "a write was lost",
        "a write was short",
        "a write was torn",
        "an append failed",
        "an import failed",
        "an unfinished write was cut off",
        "the power failed within a write",
    ];
    on_many_disks("nothing_acknowledged_is_lost_on_simulated_disks", 1, &rare, |seed| {
        let mut world = World::new(seed);
        for _ in 0..world.rng.u32(1..=LIVES_MAX) {
            if world.rng.u32(..8) > 0 {
                let (call, fault) = (world.rng.u64(1..200), world.fault());
                world.disk.plan(call, fault);
            }
            world.work();
            world.lose_power();
        }
        world.disk.seen()
    });
}

#[test]
fn every_single_call_may_fail() {
    on_many_disks("every_single_call_may_fail", 500, &["an append failed", "a sync failed"], each_call_fails);
}

/// Regression: deleting a session failed while its bodies were removed, and a power loss brought the session back without
/// them.
#[test]
fn a_session_that_is_partly_deleted_does_not_come_back() {
    each_call_fails(1_892_063_212);
}

/// Runs the same scenario repeatedly; first the first call fails, then the second, and so on, until a run needs fewer
/// calls.
fn each_call_fails(seed: u64) -> std::collections::BTreeMap<&'static str, u64> {
    let mut seen = std::collections::BTreeMap::new();
    for fault in [
        InjectedFault::Error(ErrorKind::Other),
        InjectedFault::Error(ErrorKind::StorageFull),
        InjectedFault::PowerLoss,
    ] {
        for call in 1..=CALLS_MAX {
            let mut world = World::new(seed);
            world.disk.plan(call, fault);
            for _ in 0..3 {
                world.work();
            }
            let has_failed = world.disk.has_failed();
            world.lose_power();
            world.disk.seen().into_iter().for_each(|(what, times)| *seen.entry(what).or_default() += times);
            *seen.entry("disks").or_default() += 1;
            if !has_failed {
                break;
            }
            assert!(call < CALLS_MAX, "a scenario is longer than expected");
        }
    }
    seen
}
