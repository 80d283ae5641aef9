//! `cargo run -p epitome-soak -- --minutes 60 --report soak`: works with the real program, kills it, plays simulated
//! worlds and disks, and fuzzes, in turns until the time is over. Writes `report.md` with counts, seeds and failures, and
//! plots of memory and latency, into the directory of the report. Exits with 1 if something failed.
//!
//! The program must have been built (`cargo build`); `--program PATH` takes another than `target/debug/epitome`.

#![expect(clippy::print_stdout, reason = "it says what it does")]

mod chart;
mod program;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use program::ProgramRun;

/// Where the test harness looks for the program.
const PROGRAM: &str = "CARGO_BIN_EXE_epitome";

/// Simulated worlds and disks of one turn, inputs of each fuzz target, and the time of one target guided by coverage.
const WORLDS: u64 = 500;
const DISKS: u64 = 2_000;
const INPUTS: u64 = 2_000;
const FUZZ_SECONDS: u64 = 60;

/// The targets that read most, for fuzzing guided by coverage.
const FUZZ_TARGETS: [&str; 6] =
    ["compact", "provider_stream", "journal", "import", "command_line", "acp_line"];

struct Arguments {
    time: Duration,
    report: PathBuf,
    program: PathBuf,
}

/// One run of something else than the program itself.
struct Check {
    what: &'static str,
    command: String,
    /// Seeds or inputs.
    amount: u64,
    time: Duration,
    failure: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read(std::env::args().skip(1))?;
    if std::env::var_os(PROGRAM).is_none() {
        // The harness reads it from the environment, which a process must not change while it runs.
        let again = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(PROGRAM, arguments.program.canonicalize().context("the program is not built")?)
            .status()?;
        std::process::exit(again.code().unwrap_or(1));
    }
    std::fs::create_dir_all(&arguments.report)?;
    let until = Instant::now() + arguments.time;
    let mut program = ProgramRun::new();
    let mut checks: Vec<Check> = Vec::new();
    let first = fastrand::u32(..).into();
    for turn in 0.. {
        println!("turn {turn}: the program");
        program.work(until.min(Instant::now() + arguments.time / 4));
        if Instant::now() >= until {
            break;
        }
        for check in turn_of_checks(turn, first) {
            println!("turn {turn}: {}", check.what);
            checks.push(check.run());
            if Instant::now() >= until {
                break;
            }
        }
        write_report(&arguments.report, &program, &checks)?;
    }
    program.finish();
    write_report(&arguments.report, &program, &checks)?;
    let failed = checks.iter().filter(|check| check.failure.is_some()).count() + program.failures.len();
    if failed > 0 {
        bail!("{failed} failures are in {}", arguments.report.join("report.md").display());
    }
    Ok(())
}

impl Arguments {
    fn read(mut given: impl Iterator<Item = String>) -> anyhow::Result<Arguments> {
        let mut arguments = Arguments {
            time: Duration::from_secs(3600),
            report: PathBuf::from("soak"),
            program: PathBuf::from("target/debug/epitome"),
        };
        while let Some(name) = given.next() {
            let value = given.next().with_context(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--hours" => arguments.time = Duration::from_secs_f64(value.parse::<f64>()? * 3600.0),
                "--minutes" => arguments.time = Duration::from_secs_f64(value.parse::<f64>()? * 60.0),
                "--report" => arguments.report = value.into(),
                "--program" => arguments.program = value.into(),
                _ => bail!("{name} is none of --hours, --minutes, --report, --program"),
            }
        }
        Ok(arguments)
    }
}

fn turn_of_checks(turn: u64, first: u64) -> Vec<Check> {
    let check =
        |what, amount, command: String| Check { what, command, amount, time: Duration::ZERO, failure: None };
    let test =
        |test: &str, filter: &str| format!("cargo test --locked --test {test} {filter} -- --nocapture");
    let seed = |amount: u64| first + turn * amount;
    let target = FUZZ_TARGETS[usize::try_from(turn).unwrap_or(0) % FUZZ_TARGETS.len()];
    let mut checks = vec![
        check(
            "simulated worlds",
            WORLDS,
            format!("EPITOME_SEED={} EPITOME_SEEDS={WORLDS} {}", seed(WORLDS), test("sessions", "world")),
        ),
        check(
            "simulated disks",
            DISKS,
            format!(
                "EPITOME_SEED={} EPITOME_DISKS={DISKS} cargo test --locked -p epitome-store simulation",
                seed(DISKS)
            ),
        ),
        check(
            "mutated inputs of each target",
            INPUTS,
            format!("EPITOME_INPUTS={INPUTS} {}", test("pure", "fuzz")),
        ),
    ];
    let has_fuzz = Command::new("cargo").args(["fuzz", "--version"]).output();
    if has_fuzz.is_ok_and(|ran| ran.status.success()) {
        let command = format!("cargo +nightly fuzz run {target} -- -max_total_time={FUZZ_SECONDS}");
        checks.push(check("seconds of fuzzing guided by coverage", FUZZ_SECONDS, command));
    }
    checks
}

impl Check {
    fn run(mut self) -> Check {
        let began = Instant::now();
        let ran = Command::new("sh").args(["-c", &self.command]).output();
        self.time = began.elapsed();
        self.failure = match ran {
            Ok(ran) if ran.status.success() => None,
            Ok(ran) => Some([ran.stdout, ran.stderr].map(|bytes| tail(&bytes)).join("\n")),
            Err(error) => Some(error.to_string()),
        };
        self
    }
}

/// The last lines of an output.
fn tail(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(120)..].join("\n")
}

fn write_report(to: &Path, program: &ProgramRun, checks: &[Check]) -> anyhow::Result<()> {
    let mut text = String::from("# Soak\n\n| what | amount | time | failures |\n| --- | --- | --- | --- |\n");
    writeln!(
        text,
        "| prompts to the real program, each answered, of which {} were checked after {} kills of its daemon | {} | {:.0} s | {} |",
        program.checked,
        program.kills,
        program.latencies.len(),
        program.time().as_secs_f64(),
        program.failures.len()
    )?;
    let mut kinds: Vec<&str> = checks.iter().map(|check| check.what).collect();
    kinds.dedup();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let of_kind: Vec<&Check> = checks.iter().filter(|check| check.what == kind).collect();
        let amount: u64 = of_kind.iter().map(|check| check.amount).sum();
        let time: Duration = of_kind.iter().map(|check| check.time).sum();
        let failures = of_kind.iter().filter(|check| check.failure.is_some()).count();
        writeln!(text, "| {kind} | {amount} | {:.0} s | {failures} |", time.as_secs_f64())?;
    }
    let ms = |latency: &Duration| latency.as_secs_f64() * 1000.0;
    let mut sorted = program.latencies.clone();
    sorted.sort_unstable();
    let at = |share: f64| sorted.get((sorted.len() as f64 * share) as usize).map(ms).unwrap_or_default();
    writeln!(
        text,
        "\nA prompt takes {:.1} ms (median), {:.1} ms (99 %). The daemon has {:.1} MB at first and {:.1} MB at last.\n",
        at(0.5),
        at(0.99),
        program.memory.first().copied().unwrap_or_default(),
        program.memory.last().copied().unwrap_or_default()
    )?;
    let latencies: Vec<f64> = program.latencies.iter().map(ms).collect();
    for (file, title, values) in [
        ("latency.svg", "Milliseconds from a prompt to its answer", &latencies),
        ("memory.svg", "Megabytes of the daemon", &program.memory),
    ] {
        std::fs::write(to.join(file), chart::line(title, values))?;
        writeln!(text, "![{title}]({file})\n")?;
    }
    for check in checks {
        let result = check.failure.as_deref().map_or("ok", |_| "FAILED");
        writeln!(text, "- {result}: `{}`", check.command)?;
    }
    let failures = checks.iter().filter_map(|check| check.failure.as_ref());
    for failure in failures.chain(&program.failures) {
        writeln!(text, "\n```text\n{failure}\n```")?;
    }
    std::fs::write(to.join("report.md"), text)?;
    Ok(())
}
