//! The budget bench: measures everything that a user waits for, on complete processes, next to the minimum that any
//! process must spend. `cargo bench --bench budgets`; see `benches/README.md`.
//!
//! No time makes it fail. It exits with 1 only if a measurement fails.

mod driver;
mod forwarder;
mod growth;
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

use anyhow::{Context, Result, ensure};
use clap::Parser;

use driver::Subject;
use measures::{Effort, GROUPS, Group, Stage};
use model::{Model, ToolName, ToolNames};
use table::{Pass, Row, Samples};

/// The argument with which the bench starts itself as the floor.
const FORWARD: &str = "__forward";

/// The groups that `--v2` measures.
const BOTH_VERSIONS: [&str; 7] = ["session", "prompt", "flood", "load", "long", "tool", "cancel"];

/// Measure everything that a user waits for
#[derive(Debug, clap::Parser)]
#[command(name = "budgets")]
struct Options {
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
    /// Few repetitions: a look, not a record
    #[arg(long)]
    quick: bool,
    /// Only groups (start, session, list, prompt, flood, memory, windows, many, streams, late, load, long, tool, cancel, hooks,
    /// found, binary, inside) or rows whose name has NAME; can be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Let floor and agent alternate at most N times in each group: for a slow agent
    #[arg(long, value_name = "N", default_value_t = u32::MAX, hide_default_value = true)]
    turns: u32,
    /// The agent's tool that reads a file, and the argument that takes the path
    #[arg(long, value_name = "NAME:ARGUMENT", default_value = "file_read:file_path", value_parser = tool_name)]
    read_tool: ToolName,
    /// The agent's tool that runs a command, and the argument that takes its line
    #[arg(long, value_name = "NAME:ARGUMENT", default_value = "bash:command", value_parser = tool_name)]
    shell_tool: ToolName,
    /// Print JSON instead of the table, one object a line for each store
    #[arg(long)]
    json: bool,
    /// Measure again with a store of 500 MB (filled first, takes minutes)
    #[arg(long)]
    big: bool,
    /// Measure only how cost grows: with the length of a conversation, and with the number of stored ones (takes minutes)
    #[arg(long, conflicts_with_all = ["only", "big", "v2"])]
    growth: bool,
    /// Compare version 2 of the protocol with version 1, which takes the place of the floor
    #[arg(long, conflicts_with_all = ["agent", "big"])]
    v2: bool,
    /// Measure another ACP agent: everything that follows is its command line
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    agent: Option<Vec<OsString>>,
}

fn tool_name(text: &str) -> Result<ToolName> {
    let (name, argument) = text.split_once(':').context("NAME:ARGUMENT is expected")?;
    Ok(ToolName { name: name.to_owned(), argument: argument.to_owned() })
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(FORWARD) {
        forwarder::run();
        return ExitCode::SUCCESS;
    }
    let outcome = parse().map_or(Ok(true), |options| bench(&options));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("budgets: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Options {
    fn effort(&self) -> Effort {
        if self.quick { Effort::Quick } else { Effort::Full }
    }
}

/// `None` if there is nothing to measure: cargo runs benches as tests too, without `--bench`.
fn parse() -> Option<Options> {
    let mut options = Options::parse();
    options.only.iter_mut().for_each(|only| *only = only.to_lowercase());
    // Cargo appends its `--bench` to all arguments: it is meant for the bench, not for the agent.
    if let Some(command) = &mut options.agent {
        options.bench |= command.pop_if(|last| last == "--bench").is_some();
    }
    if !options.bench {
        println!("Nothing is measured: run `cargo bench --bench budgets`.");
        return None;
    }
    Some(options)
}

fn bench(options: &Options) -> Result<bool> {
    processes::adopt_orphans()?;
    let this = std::env::current_exe().context("cannot find the bench itself")?;
    let floor = Subject {
        name: "floor".to_owned(),
        command: vec![this.into_os_string(), FORWARD.into()],
        durable: false,
        version: 1,
    };
    let epitome = |name: &str, version| Subject {
        name: name.to_owned(),
        command: vec![env!("CARGO_BIN_EXE_epitome").into(), "acp".into()],
        durable: true,
        version,
    };
    let floor = if options.v2 { epitome("version 1", 1) } else { floor };
    let ours = match &options.agent {
        Some(command) => foreign(command)?,
        None if options.v2 => epitome("version 2", 2),
        None => epitome("epitome", 1),
    };
    let names = ToolNames { read_file: options.read_tool.clone(), shell: options.shell_tool.clone() };
    let model = Model::start(names)?;
    if options.growth {
        let home = tempfile::Builder::new().prefix("epitome-growth").tempdir()?;
        let workspace = home.path().join("workspace");
        std::fs::create_dir(&workspace)?;
        let stage = Stage { subject: &ours, home: home.path().to_path_buf(), workspace, model: &model };
        let quick = options.effort() == Effort::Quick;
        let most = if quick { (1_000, 1_000) } else { (u32::MAX, u32::MAX) };
        return growth::run(&stage, most, options.json)
            .map(|()| true)
            .or_else(|error| processes::end_leftovers().and(Err(error)));
    }
    let is_chosen = |group: &&Group| {
        chosen(options, group.name, group.rows) && (!options.v2 || BOTH_VERSIONS.contains(&group.name))
    };
    let groups: Vec<&Group> = GROUPS.iter().filter(is_chosen).collect();
    let any =
        !groups.is_empty() || chosen(options, "binary", &[Row::Binary]) || chosen(options, "inside", &[]);
    ensure!(any, "no group or row is called {}; `--help` names them", options.only.join(" or "));
    if cfg!(debug_assertions) {
        eprintln!("This is not an optimized build: the numbers show that it works, no more.");
    }

    let mut whole = pass(options, &groups, &model, [&floor, &ours], &Homes::Fresh, "empty store")?;
    if options.agent.is_none() && !options.v2 && chosen(options, "inside", &[]) {
        inside::run(options.effort(), options.json)?;
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
    Ok(Subject { name, command, durable: true, version: 1 })
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
        let turns = group.turns.min(options.turns);
        for turn in 0..turns {
            progress(&format!("measuring {}, {} of {turns}", group.name, turn + 1));
            // The second one runs in a different machine state (caches, clocks), so the order alternates.
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
                if let Err(error) = (group.run)(&stage, options.effort(), &mut samples[index]) {
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
    let floor_name = if options.v2 { &subjects[0].name } else { "the floor" };
    let pass = Pass { store, floor_name, floor: &floor, ours: &ours, name: &subjects[1].name };
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
    let named = |only: &String| {
        group.contains(only) || rows.iter().any(|row| row.title().to_lowercase().contains(only))
    };
    options.only.is_empty() || options.only.iter().any(named)
}
