//! `cargo run -p epitome-soak -- --hours 8 --report soak` plays one long session, and then, in turns until the time is
//! over, the program under kills, simulated worlds and disks, and the fuzz targets. It writes `report.md` with counts,
//! seeds and failures, and plots of memory and latency, into the directory of the report, and exits with 1 if something
//! failed. `--only fleet --runs 10` lets each part of a fleet fail ten times instead, and `--only steady --hours 1` lets parts of one
//! fleet fail for an hour.
//!
//! The program must have been built (`cargo build`).

#![expect(clippy::print_stdout, reason = "it reports what it does")]

mod fleet;
mod kills;
mod long;
mod report;
mod runs;
mod steady;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser as _;

/// The variable with the path of the program, for the test harness.
const PROGRAM: &str = "CARGO_BIN_EXE_epitome";

/// The share of a turn of the whole time that the program is killed in.
const KILLS_SHARE: u32 = 20;

#[derive(clap::Parser)]
struct Arguments {
    #[arg(long, default_value = "1")]
    hours: f64,
    /// Directory of the report.
    #[arg(long, default_value = "soak")]
    report: PathBuf,
    /// The built program.
    #[arg(long, default_value = "target/debug/epitome")]
    program: PathBuf,
    /// Length of the long session.
    #[arg(long, default_value = "1000", value_parser = clap::value_parser!(u32).range(10..))]
    prompts: u32,
    /// Only what contains these words, such as "kills". "fleet" and "steady" are not played otherwise.
    #[arg(long, default_value = "")]
    only: String,
    /// How often each event of a fleet is played.
    #[arg(long, default_value = "1")]
    runs: usize,
    /// Only the events of a fleet with this name, such as "LeaseRace".
    #[arg(long, default_value = "")]
    event: String,
}

/// A run that is over.
pub struct Run {
    pub what: &'static str,
    /// The command, with its seeds.
    pub how: String,
    pub amount: u64,
    pub time: Duration,
    pub failures: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let time = Duration::try_from_secs_f64(arguments.hours * 3600.0).context("--hours is not a time")?;
    if std::env::var_os(PROGRAM).is_none() {
        // The harness reads it from the environment, which a process must not change while it runs.
        let again = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(PROGRAM, arguments.program.canonicalize().context("the program is not built")?)
            .status()?;
        std::process::exit(again.code().unwrap_or(1));
    }
    std::fs::create_dir_all(&arguments.report)
        .with_context(|| format!("{} can't be created", arguments.report.display()))?;
    let until = Instant::now() + time;
    let wanted = |what: &str| what.contains(&arguments.only);
    let (mut samples, mut runs) = (Vec::new(), Vec::new());
    if arguments.only == "fleet" {
        let (table, run) = fleet::run(arguments.runs, &arguments.event);
        println!("{table}");
        runs.push(run);
    }
    if arguments.only == "steady" {
        let (table, run) = steady::run(time);
        println!("{table}");
        runs.push(run);
    }
    if wanted(long::WHAT) {
        println!("one session with {} prompts", arguments.prompts);
        let (measured, session) = long::run(arguments.prompts);
        (samples, runs) = (measured, vec![session]);
    }
    let first = fastrand::u32(..).into();
    for turn in 0.. {
        report::write(&arguments.report, &samples, &runs)?;
        let before = runs.len();
        if Instant::now() < until && wanted(kills::WHAT) {
            println!("turn {turn}: kills");
            runs.push(kills::run(until.min(Instant::now() + time / KILLS_SHARE)));
        }
        for planned in runs::planned(turn, first) {
            if Instant::now() < until && wanted(planned.what) {
                println!("turn {turn}: {}", planned.what);
                runs.push(runs::run(planned));
            }
        }
        if runs.len() == before {
            break;
        }
    }
    let report = arguments.report.join("report.md");
    println!("{}", report.display());
    if runs.is_empty() {
        bail!("nothing that can be run is called {:?}", arguments.only);
    }
    match runs.iter().map(|run| run.failures.len()).sum::<usize>() {
        0 => Ok(()),
        failed => bail!("{failed} failures are in {}", report.display()),
    }
}
