//! KeepBench: how much of a conversation is still known after a compaction. `cargo bench --bench keep`; see
//! `benches/keep/README.md`. It needs no network, and asserts nothing about the results.

mod bench;
mod report;
mod retention;
mod speed;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use bench::corpus::Corpus;

const USAGE: &str = "\
cargo bench --bench keep -- [OPTIONS]

  --corpus DIR    measure on these sessions (or EPITOME_CORPUS); benches/keep/fetch-corpus.py makes such a directory
  --missing       list the facts that Epitome's message lacks, and its lines that are wrong by the log
  --messages DIR  write Epitome's message of each session into this directory, to be read
  --write         write RESULTS.md and the README's part

Without a corpus only times are measured.";

#[derive(Default)]
struct Options {
    corpus: Option<PathBuf>,
    missing: bool,
    messages: Option<PathBuf>,
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
    use lexopt::prelude::*;

    let corpus = std::env::var_os("EPITOME_CORPUS").map(PathBuf::from);
    let mut options = Options { corpus, ..Options::default() };
    let mut asked_by_cargo_bench = false;
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("bench") => asked_by_cargo_bench = true,
            Long("corpus") => options.corpus = Some(parser.value()?.into()),
            Long("missing") => options.missing = true,
            Long("messages") => options.messages = Some(parser.value()?.into()),
            Long("write") => options.write = true,
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
    ensure!(!options.write || options.corpus.is_some(), "--write needs a corpus; name it with --corpus");
    Ok(Some(options))
}

fn run(options: &Options) -> Result<()> {
    let times = if cfg!(debug_assertions) {
        eprintln!("This is not an optimized build: no times are measured.");
        Vec::new()
    } else {
        speed::measure()?
    };
    let Some(folder) = &options.corpus else {
        println!("{}", report::times(&times));
        return Ok(());
    };
    let corpus = Corpus::read(folder)?;
    let results = retention::measure(&corpus)?;
    if let Some(folder) = &options.messages {
        std::fs::create_dir_all(folder)?;
        for (name, message) in &results.messages {
            std::fs::write(folder.join(format!("{name}.txt")), message)?;
        }
    }
    let report = report::whole(&corpus, &results, &times);
    println!("{report}");
    if options.missing {
        results.missing.iter().for_each(|line| println!("missing in {line}"));
        results.truth.wrong.iter().for_each(|line| println!("wrong by the log in {line}"));
    }
    if options.write { write(&report, &report::short(&corpus, &results)) } else { Ok(()) }
}

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
