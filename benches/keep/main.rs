//! KeepBench: measures how much of a conversation is still known after a compaction. `cargo bench --bench keep`; see
//! `benches/keep/README.md`. It needs no network, and asserts nothing about the results.

mod bench;
mod report;
mod retention;
mod speed;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use bench::corpus::Corpus;
use bench::surprise::Oracle;

/// Measure how much of a conversation is still known after a compaction
///
/// Without a corpus only times are measured.
#[derive(Debug, clap::Parser)]
#[command(name = "keep")]
struct Options {
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
    /// Measure on these sessions (or EPITOME_CORPUS); benches/keep/fetch-corpus.py makes such a directory. Can be repeated
    #[arg(long, value_name = "DIR")]
    corpus: Vec<PathBuf>,
    /// List the facts that Epitome's message lacks, and its lines that are wrong by the log
    #[arg(long)]
    missing: bool,
    /// Write Epitome's message of each session into this directory, to be read
    #[arg(long, value_name = "DIR")]
    messages: Option<PathBuf>,
    /// Write RESULTS.md and the README's part
    #[arg(long)]
    write: bool,
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

/// `None` if there is nothing to measure: cargo runs benches as tests too, without `--bench`.
fn parse() -> Result<Option<Options>> {
    let mut options = Options::parse();
    if options.corpus.is_empty() {
        options.corpus.extend(std::env::var_os("EPITOME_CORPUS").map(PathBuf::from));
    }
    if !options.bench {
        println!("Nothing is measured: run `cargo bench --bench keep`.");
        return Ok(None);
    }
    ensure!(!options.write || !options.corpus.is_empty(), "--write needs a corpus; name it with --corpus");
    Ok(Some(options))
}

fn run(options: &Options) -> Result<()> {
    let times = if cfg!(debug_assertions) {
        eprintln!("This is not an optimized build: no times are measured.");
        Vec::new()
    } else {
        speed::measure()?
    };
    if options.corpus.is_empty() {
        println!("{}", report::times(&times));
        return Ok(());
    }
    let corpus = Corpus::read_all(&options.corpus)?;
    let results = retention::measure(&corpus)?;
    if let Some(folder) = &options.messages {
        std::fs::create_dir_all(folder)?;
        for (name, message) in &results.messages {
            std::fs::write(folder.join(format!("{name}.txt")), message)?;
        }
    }
    let surprises = match std::env::var(SURPRISE) {
        Ok(address) => {
            let oracle = Oracle::at(&address, &std::env::var(SURPRISE_MODEL).unwrap_or_default())?;
            retention::surprises(&corpus, &results, &oracle)?
        }
        Err(_) => Vec::new(),
    };
    let report = report::whole(&corpus, &results, &surprises, &times);
    println!("{report}");
    if options.missing {
        results.missing.iter().for_each(|line| println!("missing in {line}"));
        results.truth.wrong.iter().for_each(|line| println!("wrong by the log in {line}"));
    }
    if options.write { write(&report, &report::short(&corpus, &results)) } else { Ok(()) }
}

/// The variables that name the address of a model for the surprise, such as `http://127.0.0.1:8000/v1`, and the model there.
const SURPRISE: &str = "EPITOME_SURPRISE";
const SURPRISE_MODEL: &str = "EPITOME_SURPRISE_MODEL";

/// The markers in the README between which the results are written.
const BEGINS: &str = "<!-- keepbench -->\n";
const ENDS: &str = "<!-- /keepbench -->\n";

fn write(report: &str, short: &str) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::write(root.join("benches/keep/RESULTS.md"), report)?;
    let readme = root.join("README.md");
    let text = std::fs::read_to_string(&readme)?;
    let (before, rest) = text.split_once(BEGINS).context("the README has no line <!-- keepbench -->")?;
    let (_, after) = rest.split_once(ENDS).context("the README has no line <!-- /keepbench -->")?;
    std::fs::write(&readme, format!("{before}{BEGINS}\n{short}\n{ENDS}{after}"))?;
    Ok(())
}
