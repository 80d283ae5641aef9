//! KeepBench: what of a conversation is still known after it was compacted. `cargo bench --bench keep`; see
//! `benches/README.md`. It needs no network, and asserts nothing about what it measures.

mod bench;
mod calls;
mod measure;
mod plot;
mod record;
mod report;
mod speed;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use bench::corpus::{self, Corpus};
use bench::phrases::Half;
use bench::recorded;
use bench::session::Session;
use calls::Management;
use measure::{At, Way};
use report::Report;

const USAGE: &str = "\
cargo bench --bench keep -- [OPTIONS]

  --quick               two short conversations: a look
  --json                print JSON instead of the tables
  --write               write RESULTS.md, the plot and the README's part
  --lost WAY N TOKENS   list the facts that are lost or stale in one cell (WAY: tail, masked, ledger, held-out);
                        with --corpus of its sessions
  --seed N              other conversations
  --corpus DIR          plant facts into real sessions too, and judge their stored summaries
  --record URL MODEL    let a model write summaries of some conversations, into benches/keep/recorded";

/// The seed of the conversations that are reported.
const SEED: u64 = 1_000;
/// What recorded summaries of short conversations may take, in tokens.
const RECORDED_BUDGET: u64 = 1_000;

#[derive(Default)]
struct Options {
    quick: bool,
    json: bool,
    write: bool,
    lost: Option<At>,
    seed: Option<u64>,
    corpus: Option<PathBuf>,
    record: Option<(String, String)>,
}

fn main() -> ExitCode {
    match parse().and_then(|options| options.map_or(Ok(()), |options| run(&options))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("keep: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `None` when there is nothing to measure: cargo runs benches as tests too, without `--bench`.
fn parse() -> Result<Option<Options>> {
    use lexopt::prelude::*;

    let mut options = Options::default();
    let mut asked_by_cargo_bench = false;
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("bench") => asked_by_cargo_bench = true,
            Long("quick") => options.quick = true,
            Long("json") => options.json = true,
            Long("write") => options.write = true,
            Long("seed") => options.seed = Some(parser.value()?.parse()?),
            Long("corpus") => options.corpus = Some(parser.value()?.into()),
            Long("record") => {
                options.record = Some((parser.value()?.string()?, parser.value()?.string()?));
            }
            Long("lost") => {
                let way = match parser.value()?.string()?.as_str() {
                    "tail" => Way::Tail,
                    "masked" => Way::Masked,
                    "ledger" => Way::Ledger,
                    "held-out" => Way::HeldOut,
                    other => bail!("no way is called {other}\n\n{USAGE}"),
                };
                let (compactions, budget) = (parser.value()?.parse()?, parser.value()?.parse()?);
                options.lost = Some(At { way, compactions, budget });
            }
            Long("help") | Short('h') => {
                println!("{USAGE}");
                return Ok(None);
            }
            Short(_) | Long(_) | Value(_) => bail!("{}\n\n{USAGE}", argument.unexpected()),
        }
    }
    if !asked_by_cargo_bench {
        println!("Nothing is measured: run `cargo bench --bench keep`.");
        return Ok(None);
    }
    ensure!(!(options.quick && options.write), "--quick is a look, not a record: leave out --write");
    Ok(Some(options))
}

fn run(options: &Options) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/keep");
    if let Some((url, model)) = &options.record {
        return record::run(url, model, &folder.join("recorded"));
    }
    if cfg!(debug_assertions) {
        eprintln!("This is not an optimized build: its times mean nothing.");
    }
    let seed = options.seed.unwrap_or(SEED);
    // Read before all that takes long: a file may be damaged.
    let recorded = recorded::read(&folder.join("recorded"))?;
    let corpus = match &options.corpus {
        Some(directory) => corpus::read(directory, seed, measure::EACH)?,
        None => Corpus::default(),
    };
    corpus.told.iter().for_each(|line| eprintln!("{line}"));
    progress("writing conversations");
    let open = measure::sessions(options.quick, seed, Half::Open);
    let held_out = measure::sessions(options.quick, seed, Half::HeldOut);
    let grid = measure::grid(&open, &held_out, options.quick, progress);
    let real = (!corpus.open.is_empty()).then(|| {
        let grid = measure::grid(&corpus.open, &corpus.held_out, options.quick, progress);
        (about(&corpus.open, seed), grid)
    });
    if let Some(at) = options.lost {
        progress("");
        let grid = real.as_ref().map_or(&grid, |(_, grid)| grid);
        let score = grid.get(&at).context("that cell is not in this run")?;
        score.failures.iter().chain(&score.lost).for_each(|line| println!("{line}"));
        return Ok(());
    }
    let mut calls = Vec::new();
    let longest = open.iter().map(|session| session.tokens).max().unwrap_or(0);
    let long: Vec<_> =
        open.iter().filter(|session| options.quick || session.tokens * 2 > longest).cloned().collect();
    for management in Management::ALL {
        progress(&format!("calls, {}", management.title()));
        calls.push((management, calls::simulate(&long, management)?));
    }
    progress("times");
    let speed = speed::measure(options.quick);
    let summaries = corpus.stored.iter().flat_map(|stored| {
        let summaries = stored.summaries.iter();
        summaries.map(|(writer, text)| (writer.as_str(), &stored.session, text.as_str()))
    });
    let stored = measure::of_summaries(summaries, 4_000);
    let summaries = recorded
        .iter()
        .map(|recorded| (recorded.model.as_str(), &recorded.session, recorded.summary.as_str()));
    let recorded = measure::of_summaries(summaries, RECORDED_BUDGET);
    progress("");
    let about = about(&open, seed);
    let report =
        Report { grid, calls, speed, stored, recorded, recorded_budget: RECORDED_BUDGET, real, about };
    let real_scores = report.real.iter().flat_map(|(_, grid)| grid.values());
    for score in report.grid.values().chain(real_scores) {
        score.failures.iter().for_each(|failure| eprintln!("not measured: {failure}"));
    }
    if options.json {
        println!("{}", report.json());
    } else {
        println!("{}", report.markdown());
    }
    if options.write { write(&report, &folder) } else { Ok(()) }
}

fn about(sessions: &[Session], seed: u64) -> String {
    let lengths = || sessions.iter().map(|session| session.tokens / 1_000);
    format!(
        "{} conversations ({}k to {}k tokens) for each half of the phrases, seed {seed}, {} facts in each.",
        sessions.len(),
        lengths().min().unwrap_or(0),
        lengths().max().unwrap_or(0),
        sessions.first().map_or(0, |session| session.facts.len())
    )
}

/// The lines of the README between which its part is written.
const BEGINS: &str = "<!-- keepbench -->\n";
const ENDS: &str = "<!-- /keepbench -->\n";

fn write(report: &Report, folder: &Path) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::write(folder.join("RESULTS.md"), report.markdown())?;
    std::fs::write(root.join("docs/keepbench.svg"), plot::svg(&report.grid))?;
    let readme = root.join("README.md");
    let text = std::fs::read_to_string(&readme)?;
    let (before, rest) = text.split_once(BEGINS).context("the README has no line <!-- keepbench -->")?;
    let (_, after) = rest.split_once(ENDS).context("the README has no line <!-- /keepbench -->")?;
    std::fs::write(&readme, format!("{before}{BEGINS}\n{}\n{ENDS}{after}", report.short()))?;
    Ok(())
}

/// Shows one line that the next one replaces, to a person only.
fn progress(line: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
    }
}
