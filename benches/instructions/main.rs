//! Counts the instructions of hot paths with callgrind. Times depend on the machine and on what else it does; these
//! numbers hardly do, so they can be compared with those of another commit.
//!
//! `cargo bench --bench instructions -- --against HEAD^` counts them for that commit and for the working tree, and fails
//! if a path needs more than `TOLERANCE_PERCENT` more than before. Without arguments it compares with the numbers that
//! were recorded last, by that or by `-- --record`. `--profile dev` compiles faster; numbers of different profiles can't
//! be compared, and are recorded separately.

mod paths;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

/// Hash maps have a different seed in each process, and allocators a different state.
const TOLERANCE_PERCENT: u64 = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["--run", path, times] => run(path, times).map(|()| true),
        [] => measure(false),
        ["--record"] => measure(true),
        ["--against", commit] => record_at(commit).and_then(|()| measure(false)),
        other => Err(anyhow::anyhow!(
            "unknown arguments: {}; there are only --record and --against COMMIT",
            other.join(" ")
        )),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prepares a path and takes it this many times: what callgrind runs.
fn run(path: &str, times: &str) -> Result<()> {
    let (_, prepare) = paths::ALL.iter().find(|(name, _)| *name == path).context("an unknown path")?;
    let mut take = prepare()?;
    for _ in 0..times.parse::<u32>()? {
        take()?;
    }
    Ok(())
}

/// Measures all paths. Returns whether none needs more instructions than recorded.
fn measure(is_recording: bool) -> Result<bool> {
    let file = recorded_in();
    let recorded = match is_recording {
        true => BTreeMap::new(),
        false => read(&file)?,
    };
    let mut counts = BTreeMap::new();
    let mut is_fine = true;
    for (path, _) in paths::ALL {
        // Both include the preparation.
        let (once, twice) = (callgrind(path, 1)?, callgrind(path, 2)?);
        let count = twice.checked_sub(once).context("the second time took less than nothing")?;
        let compared = match recorded.get(*path) {
            None => String::new(),
            Some(before) => {
                let change = (count as f64 / (*before).max(1) as f64 - 1.0) * 100.0;
                let is_more = count * 100 > before * (100 + TOLERANCE_PERCENT);
                is_fine &= !is_more;
                format!("{change:+8.1} %{}", if is_more { "  more than recorded" } else { "" })
            }
        };
        println!("{path:<52} {count:>14} {compared}");
        counts.insert(*path, count);
    }
    if is_recording {
        let lines: String = counts.iter().map(|(path, count)| format!("{count} {path}\n")).collect();
        std::fs::write(&file, lines).with_context(|| format!("write {}", file.display()))?;
        println!("recorded in {}", file.display());
    } else if recorded.is_empty() {
        println!("nothing is recorded to compare with; `-- --record` does it");
    }
    Ok(is_fine)
}

/// Checks out this commit elsewhere, and records its numbers here. It has a target directory of its own: Cargo would take
/// the same names for what it builds there, and replace this program.
fn record_at(commit: &str) -> Result<()> {
    let tree = tempfile::tempdir()?;
    let path = tree.path().to_str().context("the directory for temporary files is not named in UTF-8")?;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("before");
    let profile = if cfg!(debug_assertions) { "dev" } else { "bench" };
    let bench = ["bench", "--locked", "--profile", profile, "--bench", "instructions", "--", "--record"];
    succeed(Command::new("git").args(["worktree", "add", "--detach", path, commit]))?;
    let recorded =
        succeed(Command::new("cargo").args(bench).current_dir(path).env("CARGO_TARGET_DIR", &target));
    succeed(Command::new("git").args(["worktree", "remove", "--force", path]))?;
    recorded?;
    let file = recorded_in();
    let name = file.file_name().context("it has a name")?;
    std::fs::copy(target.join("tmp").join(name), &file).context("take over what was recorded")?;
    Ok(())
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Where the numbers of this profile are recorded.
fn recorded_in() -> PathBuf {
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("instructions-{profile}.txt"))
}

fn read(file: &Path) -> Result<BTreeMap<String, u64>> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        text => text.with_context(|| format!("read {}", file.display()))?,
    };
    let count = |line: &str| {
        let (count, path) = line.split_once(' ')?;
        Some((path.to_owned(), count.parse().ok()?))
    };
    text.lines()
        .map(|line| {
            count(line).with_context(|| format!("{} has another format; record again", file.display()))
        })
        .collect()
}

/// The instructions of a process that takes a path this many times.
fn callgrind(path: &str, times: u32) -> Result<u64> {
    let out = tempfile::NamedTempFile::new()?;
    let own = std::env::current_exe()?;
    let made = Command::new("valgrind")
        .args(["--tool=callgrind", "--log-file=/dev/null"])
        .arg(format!("--callgrind-out-file={}", out.path().display()))
        .arg(own)
        .args(["--run", path, &times.to_string()])
        .output();
    let made = match made {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!(
                "valgrind is not installed, and only callgrind counts instructions: install the package `valgrind`"
            )
        }
        made => made.context("start valgrind")?,
    };
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "`{path}` in callgrind: {}: {}", made.status, said.trim());
    let text = std::fs::read_to_string(out.path())?;
    let total =
        text.lines().find_map(|line| line.strip_prefix("summary: ").or(line.strip_prefix("totals: ")));
    let total = total.context("callgrind wrote no sum")?;
    Ok(total.trim().parse()?)
}
