//! Random sessions: any steps in any order, checked after each step against the log read from its beginning.
//!
//! A model of a session does what `session` does, without clients, clocks and disks: it appends changes that
//! the library's own functions decided on, and updates a view and an encoded request. After each step: the
//! view equals a cold fold of the log; the request equals one encoded from scratch, byte for byte; its
//! service accepts it, including its reasoning, which follows exactly the prefix for which it was signed;
//! earlier messages that are still in effect are sent again unchanged, with all reasoning; calls and outcomes
//! are paired; pins and the newest prompt are present. The number of checks is counted, and must be
//! sufficient.
//!
//! `EPITOME_STEPS=10000000 cargo test --test pure model_random` runs longer, `EPITOME_SEED=17` uses another seed.

mod checks;
mod crash;
mod imported;
mod model;
mod proofs;
mod service;
mod step;

use checks::Counts;
use model::Model;
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prop_oneof;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// Number of steps unless `EPITOME_STEPS` is set.
const STEPS: u64 = 100_000;

/// Maximum number of steps of a session. Most are short, because the cost of a step grows with the session.
const SHORT_STEPS_MAX: usize = 60;
const LONG_STEPS_MAX: usize = 250;

/// Number of threads.
const PLAYERS: usize = 2;

/// How often, per ten thousand steps, each check must have had something to check.
const AT_LEAST: &[(&str, u64)] = &[
    ("steps", 10_000),
    ("requests", 5_000),
    ("requests looked at", 4_000),
    ("requests that go on", 2_000),
    ("requests that go on after an undo or redo", 80),
    ("reasoning sent again", 4_000),
    ("reasoning taken back", 4_000),
    ("states that were sent before", 1_500),
    ("states brought back by undo or redo", 80),
    ("views without a trace of what is undone", 250),
    ("pairs", 10_000),
    ("pins", 1_500),
    ("pins that are quoted", 700),
    ("last requests as they are", 3_000),
    ("last requests that are quoted", 600),
    ("compactions", 150),
    ("compactions with masks", 4),
    ("prunings", 2),
    ("compactions that fit", 150),
    ("compactions or prunings in a window that is much too small", 10),
    ("compactions or prunings in a tiny window", 10),
    ("compactions or prunings in a small window", 10),
    ("compactions or prunings in a window of 32,000", 10),
    ("compactions or prunings in a large window", 10),
    ("items made by a provider", 30),
    ("items of a provider sent again", 30),
    ("items of a provider kept from another model", 30),
    ("items of a provider left out for good", 10),
    ("compactions that are final", 50),
    ("compactions or prunings by hand", 30),
    ("compactions or prunings by an overflow", 30),
    ("compactions or prunings by the threshold", 30),
    ("compactions or prunings by a hook", 30),
    ("compactions or prunings that must be", 30),
    ("layers undone", 120),
    ("layers undone with something behind them", 100),
    ("layers redone", 50),
    ("edits made", 200),
    ("stale edits refused", 10),
    ("mutations", 50),
    ("kills", 150),
];

#[test]
fn random_sessions_satisfy_all_invariants() {
    let asked = std::env::var("EPITOME_STEPS").ok();
    let steps = asked.map_or(STEPS, |asked| asked.parse().expect("EPITOME_STEPS is a number"));
    // The same seed each time, so that only a change of the code makes it fail; other seeds explore further.
    let seed = std::env::var("EPITOME_SEED").ok();
    let first = seed.map_or(0, |seed| seed.parse::<u64>().expect("EPITOME_SEED is a number"));
    let counts = Mutex::new(Counts::new());
    std::thread::scope(|scope| {
        for player in 0..PLAYERS as u64 {
            let counts = &counts;
            scope.spawn(move || play(steps / PLAYERS as u64, [first, player], counts));
        }
    });
    let counts = counts.into_inner();
    println!("{counts:#?}");
    for (what, per_ten_thousand) in AT_LEAST {
        let seen = counts.get(what).copied().unwrap_or(0);
        let wanted = per_ten_thousand * steps / 10_000;
        assert!(seen >= wanted, "{what}: {seen} times in {steps} steps, expected {wanted}");
    }
}

/// Runs sessions until `steps` steps are done.
fn play(steps: u64, seed: [u64; 2], counts: &Mutex<Counts>) {
    let mut played = 0;
    for round in 0.. {
        if played >= steps {
            break;
        }
        // A new runner every few sessions, because their lengths are not known in advance.
        let config =
            Config { cases: 50, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
        let numbers = [seed[0], seed[1], round, 0].map(u64::to_le_bytes).concat();
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &numbers));
        let own = Mutex::new((0, Counts::new()));
        let session = prop_oneof![
            19 => vec(step::step(), 1..SHORT_STEPS_MAX),
            1 => vec(step::step(), 1..LONG_STEPS_MAX),
        ];
        let result = runner.run(&session, |steps| {
            let mut model = Model::new();
            for step in &steps {
                model.take(step).map_err(TestCaseError::fail)?;
            }
            let mut own = own.lock();
            own.0 += steps.len() as u64;
            for (what, times) in &model.counts {
                checks::count(&mut own.1, what, *times);
            }
            Ok(())
        });
        match result {
            Ok(()) => {}
            Err(TestError::Abort(why)) => panic!("{why}"),
            Err(TestError::Fail(why, steps)) => {
                let steps: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
                panic!("{why}\n\nThe fewest steps to it:\n{}", steps.join("\n"));
            }
        }
        let (more, seen) = own.into_inner();
        played += more;
        let mut counts = counts.lock();
        for (what, times) in seen {
            checks::count(&mut counts, what, times);
        }
    }
}
