//! The simulations and the fuzz targets, with other seeds and for longer than in CI.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::Run;

/// Simulated worlds and disks of one turn, inputs of each fuzz target, and seconds of one target guided by coverage.
const WORLDS: u64 = 500;
const DISKS: u64 = 2_000;
const INPUTS: u64 = 2_000;
const FUZZ_SECONDS: u64 = 60;

/// Bytes of a failed command's output that are in the report.
const BYTES_MAX: usize = 16 * 1024;

/// The runs of one turn.
pub fn planned(turn: u64, first: u64) -> Vec<Run> {
    let seed = |amount: u64| first + turn * amount;
    let run =
        |what, amount, how: String| Run { what, how, amount, time: Duration::ZERO, failures: Vec::new() };
    let tests = |amount: u64, count: &str, filter: &str| {
        let cargo = std::env::var("CARGO").unwrap_or("cargo".to_owned());
        let seed = seed(amount);
        format!("EPITOME_SEED={seed} {count}={amount} {cargo} test --locked {filter} -- --nocapture")
    };
    let mut runs = vec![
        run("simulated worlds", WORLDS, tests(WORLDS, "EPITOME_SEEDS", "--test sessions windows_agree")),
        run("simulated disks", DISKS, tests(DISKS, "EPITOME_DISKS", "-p epitome-simulations")),
        run("mutated inputs of each target", INPUTS, tests(INPUTS, "EPITOME_INPUTS", "--test pure fuzz")),
    ];
    // Without cargo-fuzz, there are no targets.
    let listed = Command::new("cargo").args(["+nightly", "fuzz", "list"]).output();
    let listed = listed.map(|ran| String::from_utf8_lossy(&ran.stdout).into_owned()).unwrap_or_default();
    let targets: Vec<&str> = listed.lines().collect();
    if let Some(target) = targets.get(turn as usize % targets.len().max(1)) {
        let how = format!("fuzz/run {target} {FUZZ_SECONDS}");
        runs.push(run("seconds of fuzzing guided by coverage", FUZZ_SECONDS, how));
    }
    runs
}

pub fn run(mut run: Run) -> Run {
    let began = Instant::now();
    let ran = Command::new("sh").args(["-c", &run.how]).output();
    run.time = began.elapsed();
    match ran {
        Ok(ran) if ran.status.success() => {}
        Ok(ran) => run.failures.push([ran.stdout, ran.stderr].map(|bytes| tail(&bytes)).join("\n")),
        Err(error) => run.failures.push(error.to_string()),
    }
    run
}

/// The end of an output.
fn tail(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(BYTES_MAX)..]).into_owned()
}
