//! `epitome-import`: prints the sessions of other agents as JSON, for `epitome sessions import`.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use epitome_files::paths::Paths;
use epitome_import::{ForeignAgent, Machine, read_bytes};
use epitome_thread::problem::Problem;
use epitome_transfer::{AGENTS, ReadAnswer};

/// Read the sessions of other agents
///
/// `epitome sessions import` uses this program, and stores what it reads.
#[derive(Parser)]
#[command(name = "epitome import", bin_name = "epitome import", version)]
enum ImportCli {
    /// Print the number of sessions of each agent, as JSON
    Count,
    /// Print the sessions of an agent, those of this directory first, as JSON
    List {
        #[arg(value_parser = AGENTS.map(|(name, _)| name))]
        agent: String,
    },
    /// Print the conversations of a file as logs of Epitome, as JSON
    Read {
        /// The path of the file whose contents are on stdin
        file: PathBuf,
        /// Directory of conversations without one
        cwd: PathBuf,
    },
}

fn main() -> ExitCode {
    match printed(ImportCli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("epitome-import: {error}");
            ExitCode::FAILURE
        }
    }
}

fn printed(wanted: ImportCli) -> std::io::Result<()> {
    let home = Paths::from_environment(|name| std::env::var_os(name)).user_home;
    let cwd = std::env::current_dir().unwrap_or_default();
    let machine = Machine { variable: &|name| std::env::var_os(name), home: home.as_deref(), cwd: &cwd };
    let text = match wanted {
        ImportCli::Count => {
            let counts: Vec<usize> = ForeignAgent::all().map(|agent| agent.count(&machine)).collect();
            serde_json::to_string(&counts)?
        }
        ImportCli::List { agent } => {
            let mut sessions =
                ForeignAgent::named(&agent).map(|agent| agent.sessions(&machine)).unwrap_or_default();
            // JSON has no words for them.
            sessions.retain(|session| session.file.to_str().is_some() && session.cwd.to_str().is_some());
            serde_json::to_string(&sessions)?
        }
        ImportCli::Read { file, cwd } => {
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes)?;
            let answer = match read_bytes(&file, &cwd, bytes) {
                Ok(drafts) => ReadAnswer::Drafts(drafts),
                Err(Problem { position, message, hint, .. }) => {
                    ReadAnswer::Refused { position, message, hint }
                }
            };
            serde_json::to_string(&answer)?
        }
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}
