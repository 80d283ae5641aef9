//! The budget bench: everything that a user waits for, measured on whole processes next to the minimum that
//! any process must spend. `cargo bench --bench budgets`; see `benches/README.md`.
//!
//! It never fails because of a time. It exits with 1 only if a measure could not be taken at all.

mod driver;
mod forwarder;
mod hooks;
mod inside;
mod many;
mod measures;
mod model;
mod processes;
mod store;
mod table;
mod windows;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use driver::Subject;
use measures::{Effort, GROUPS, Group, Stage};
use model::Model;
use table::{Pass, Row, Samples};

/// The argument with which the bench starts itself as the floor.
const FORWARD: &str = "__forward";

const USAGE: &str = "\
cargo bench --bench budgets -- [OPTIONS]

  --quick          few repetitions: a look, not a record
  --only NAME      only groups (start, session, prompt, flood, memory, windows, many, streams, load, long, tool, cancel,
                   hooks, found, binary, inside) or
                   rows whose name holds NAME
  --json           print JSON instead of the table, one object a line for each store
  --big            measure again with a store of 500 MB (filled first, takes minutes)
  --agent CMD...   measure another ACP agent: everything behind it is its command line";

struct Options {
    effort: Effort,
    only: Option<String>,
    json: bool,
    big: bool,
    agent: Option<Vec<OsString>>,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(FORWARD) {
        forwarder::run();
        return ExitCode::SUCCESS;
    }
    let outcome = parse().and_then(|options| options.map_or(Ok(true), |options| bench(&options)));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("budgets: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `None` if there is nothing to measure: cargo runs benches as tests too, without `--bench`.
fn parse() -> Result<Option<Options>> {
    use lexopt::prelude::*;

    let mut options = Options { effort: Effort::Full, only: None, json: false, big: false, agent: None };
    let mut asked_by_cargo_bench = false;
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("bench") => asked_by_cargo_bench = true,
            Long("quick") => options.effort = Effort::Quick,
            Long("only") => options.only = Some(parser.value()?.string()?.to_lowercase()),
            Long("json") => options.json = true,
            Long("big") => options.big = true,
            Long("agent") => {
                // Cargo appends its `--bench` to all arguments: it is meant for the bench, not for the agent.
                let mut command: Vec<OsString> = parser.raw_args()?.collect();
                if command.last().is_some_and(|last| last == "--bench") {
                    command.pop();
                    asked_by_cargo_bench = true;
                }
                ensure!(!command.is_empty(), "--agent needs a command line");
                options.agent = Some(command);
            }
            Long("help") | Short('h') => {
                println!("{USAGE}");
                return Ok(None);
            }
            Short(_) | Long(_) | Value(_) => bail!("{}\n\n{USAGE}", argument.unexpected()),
        }
    }
    if !asked_by_cargo_bench {
        println!("Nothing is measured: run `cargo bench --bench budgets`.");
        return Ok(None);
    }
    Ok(Some(options))
}

fn bench(options: &Options) -> Result<bool> {
    processes::adopt_orphans()?;
    let this = std::env::current_exe().context("cannot find the bench itself")?;
    let floor = Subject {
        name: "floor".to_owned(),
        command: vec![this.into_os_string(), FORWARD.into()],
        durable: false,
    };
    let ours = match &options.agent {
        Some(command) => foreign(command)?,
        None => Subject {
            name: "epitome".to_owned(),
            command: vec![env!("CARGO_BIN_EXE_epitome").into(), "acp".into()],
            durable: true,
        },
    };
    let model = Model::start()?;
    let groups: Vec<&Group> = GROUPS.iter().filter(|group| chosen(options, group.name, group.rows)).collect();
    if let Some(only) = &options.only {
        let any =
            !groups.is_empty() || chosen(options, "binary", &[Row::Binary]) || chosen(options, "inside", &[]);
        ensure!(any, "no group or row is called {only}\n\n{USAGE}");
    }
    if cfg!(debug_assertions) {
        eprintln!("This is not an optimized build: the numbers show that it works, no more.");
    }

    let mut whole = pass(options, &groups, &model, [&floor, &ours], &Homes::Fresh, "empty store")?;
    if options.agent.is_none() && chosen(options, "inside", &[]) {
        inside::run(options.effort, options.json)?;
    }
    if options.big {
        let home = tempfile::Builder::new().prefix("epitome-big").tempdir()?;
        let workspace = home.path().join("workspace");
        std::fs::create_dir(&workspace)?;
        let stage = Stage { subject: &ours, home: home.path().to_path_buf(), workspace, model: &model };
        store::fill(&stage).or_else(|error| {
            processes::end_leftovers()?;
            Err(error.context("cannot fill the store"))
        })?;
        whole &=
            pass(options, &groups, &model, [&floor, &ours], &Homes::Filled(home.path()), "500 MB store")?;
    } else if !options.json {
        println!("\nNot measured: the same with a store of 500 MB (--big).");
    }
    Ok(whole)
}

/// Another agent, started in one of the bench's workspaces; its program path is resolved from the current
/// directory.
fn foreign(command: &[OsString]) -> Result<Subject> {
    let mut command = command.to_vec();
    let program = Path::new(&command[0]);
    let name = program.file_name().context("--agent needs a program")?.to_string_lossy().into_owned();
    if program.components().count() > 1 {
        command[0] = std::path::absolute(program)?.into_os_string();
    }
    Ok(Subject { name, command, durable: true })
}

/// The home of the measured agent. The floor stores nothing and always gets a fresh one.
enum Homes<'a> {
    Fresh,
    Filled(&'a Path),
}

/// Runs all chosen groups once, alternating floor and subject, and prints their table. Returns whether
/// everything could be measured.
fn pass(
    options: &Options,
    groups: &[&Group],
    model: &Model,
    subjects: [&Subject; 2],
    homes: &Homes<'_>,
    store: &str,
) -> Result<bool> {
    let mut samples = [Samples::default(), Samples::default()];
    for group in groups {
        let mut going = [true; 2];
        for turn in 0..group.turns {
            progress(&format!("measuring {}, {} of {}", group.name, turn + 1, group.turns));
            // The second one runs on a different machine state (caches, clocks), so the order alternates.
            let order = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
            for index in order {
                if !going[index] {
                    continue;
                }
                let subject = subjects[index];
                let fresh = tempfile::Builder::new().prefix("epitome-bench").tempdir()?;
                let home = match homes {
                    Homes::Filled(home) if subject.durable => home,
                    Homes::Filled(_) | Homes::Fresh => fresh.path(),
                };
                let workspace = fresh.path().join("workspace");
                std::fs::create_dir(&workspace)?;
                let stage = Stage { subject, home: home.to_path_buf(), workspace, model };
                if let Err(error) = (group.run)(&stage, options.effort, &mut samples[index]) {
                    samples[index].failures.push(format!("{}: {error:#}", group.name));
                    going[index] = false;
                    model.clear();
                    processes::end_leftovers()?;
                }
            }
        }
    }
    progress("");
    let [floor, mut ours] = samples;
    if options.agent.is_none() && chosen(options, "binary", &[Row::Binary]) {
        let size = std::fs::metadata(&subjects[1].command[0])?.len();
        ours.bytes(Row::Binary, size as f64);
    }
    let pass = Pass { store, floor: &floor, ours: &ours, name: &subjects[1].name };
    if options.json {
        println!("{}", table::json(&pass));
    } else {
        table::print(&pass);
    }
    Ok(floor.failures.is_empty() && ours.failures.is_empty())
}

/// Shows a line that the next one overwrites; only if stderr is a terminal.
pub fn progress(line: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
    }
}

fn chosen(options: &Options, group: &str, rows: &[Row]) -> bool {
    options.only.as_deref().is_none_or(|only| {
        group.contains(only) || rows.iter().any(|row| row.title().to_lowercase().contains(only))
    })
}
