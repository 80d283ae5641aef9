//! `epitome store`: copies sessions between files and databases, and cleans databases.

use serde_json::json;

use super::{CliError, log, policy, serve, terminal};
use crate::paths::Paths;
use crate::session_library;
use crate::thread::visible::visible;
use epitome_store::{Store, StoreError};

/// Copy sessions between files and a database
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = false)]
pub struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, clap::Subcommand)]
enum StoreCommand {
    Copy(CopyArgs),
    Policy(policy::PolicyArgs),
    /// Remove data from a database that no session references, if older than a day
    Clean {
        /// An address like postgres://user@host/database
        address: String,
    },
}

/// Copy closed sessions to another store; existing sessions are skipped
#[derive(Debug, clap::Args)]
struct CopyArgs {
    /// `files`, or an address like postgres://user@host/database
    from: String,
    /// Destination, in the same form as FROM
    to: String,
    /// Copy only this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Print one JSON object for each session
    #[arg(long)]
    json: bool,
}

pub fn main(StoreArgs { command }: StoreArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    log::to_file(&paths);
    let args = match command {
        StoreCommand::Policy(args) => return policy::main(args),
        StoreCommand::Copy(args) => args,
        StoreCommand::Clean { address } => {
            let removed = serve::clean(&address)?;
            return terminal::print(&format!("{removed} texts and images were removed\n")).map(|()| 0);
        }
    };
    let (from, to) = (named(&paths, &args.from)?, named(&paths, &args.to)?);
    if from.place() == to.place() {
        return Err(CliError::failed("both stores are the same"));
    }
    let copied = copy(&from, &to, &args);
    from.settle();
    to.settle();
    copied
}

fn named(paths: &Paths, name: &str) -> Result<Store, CliError> {
    match name {
        "files" => Ok(Store::new(paths)),
        address => serve::store_at(paths, address),
    }
}

fn copy(from: &Store, to: &Store, args: &CopyArgs) -> Result<i32, CliError> {
    let listing = from.list()?;
    let mut sessions: Vec<_> = listing.headers.into_iter().map(|header| header.session).collect();
    // Sessions that are not readable are not copied, and must not go unnoticed.
    sessions.extend(listing.problems.into_iter().map(|(session, _)| session));
    if let Some(typed) = &args.session {
        sessions = vec![session_library::resolve(from, typed)?];
    }
    let (all, mut copied, mut incomplete, mut failed) = (sessions.len(), 0, 0, 0);
    for (nth, session) in (1..).zip(sessions) {
        let done = from.copy_to(&session, to);
        let (what, error) = match &done {
            Ok(true) => ("copied", to.read_with_damage(&session)?.1.map(|lost| lost.to_string())),
            Ok(false) => ("was there already", None),
            Err(error) => ("not copied", Some(error.to_string())),
        };
        copied += u64::from(matches!(done, Ok(true)));
        incomplete += u64::from(done.is_ok() && error.is_some());
        failed += u64::from(done.is_err());
        if args.json {
            let line = json!({ "session": session, "result": what, "error": error });
            terminal::print(&format!("{line}\n"))?;
        } else if let Some(error) = error {
            eprintln!("{nth}/{all} {session} {what}: {}", visible(&error));
        } else {
            eprintln!("{nth}/{all} {session} {what}");
        }
        if let Err(error @ StoreError::Unreachable { .. }) = done {
            return Err(error.into());
        }
    }
    if !args.json {
        let lacking = match incomplete {
            0 => String::new(),
            incomplete => format!(" ({incomplete} of them as incomplete as the original)"),
        };
        terminal::print(&format!("{copied} of {all} sessions were copied{lacking}, {failed} failed\n"))?;
    }
    Ok(i32::from(failed + incomplete > 0))
}
