//! The store on simulated disks: sessions are written, copied and deleted while calls fail and the power is lost.
//! Afterwards the acknowledged entries are compared with the stored ones.
//!
//! `EPITOME_DISKS` is the number of disks, `EPITOME_SEED` the first seed. A failure prints the command that repeats
//! it.

#![expect(clippy::print_stdout, reason = "what a failed disk went through is printed")]

mod damage;
mod faults;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Disks of a normal run, for each kind of test.
const DISKS: u64 = 2_000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is no number")))
}

/// Runs a test on many disks; each must succeed, and together they must reach all these rare states.
fn on_many_disks(name: &str, share: u64, rare: &[&str], test: impl Fn(u64) -> BTreeMap<&'static str, u64>) {
    let first = number("EPITOME_SEED").unwrap_or(0);
    let disks = number("EPITOME_DISKS").unwrap_or((DISKS / share).max(1));
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in first..first + disks {
        match catch_unwind(AssertUnwindSafe(|| test(seed))) {
            Ok(more) => more.into_iter().for_each(|(what, times)| *seen.entry(what).or_default() += times),
            Err(_) => panic!(
                "disk {seed} failed; to repeat it: EPITOME_SEED={seed} EPITOME_DISKS=1 cargo test -p epitome-simulations {name}"
            ),
        }
    }
    println!("{name}: {disks} disks, {seen:#?}");
    if number("EPITOME_DISKS").is_none() {
        for state in rare {
            assert!(seen.contains_key(state), "no disk reached the state {state:?}: {seen:#?}");
        }
    }
}
