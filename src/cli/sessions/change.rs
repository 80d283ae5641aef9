//! Commands of `epitome sessions` that change a session, or list what can be changed: `fork`, `rename`, `undo`, `pin` and so
//! on.

use serde_json::json;

use super::{entry, named, print_json};
use crate::cli::{CliError, methods, run, terminal};
use crate::paths::Paths;
use crate::thread::{PartId, Seq};

/// Fork a session: create a new one that continues from it
#[derive(Debug, clap::Args)]
pub struct ForkArgs {
    /// ID of the session
    id: String,
    /// Last entry to copy, for example e12 [default: the last one]
    #[arg(long, value_name = "ENTRY", value_parser = entry)]
    at: Option<Seq>,
}

/// Rename a session
#[derive(Debug, clap::Args)]
pub struct RenameArgs {
    /// ID of the session
    pub id: String,
    /// The new title
    #[arg(required = true)]
    pub title: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub struct HistoryArgs {
    /// ID of the session
    pub id: String,
    /// The change, for example e12 [default: the newest]
    pub entry: Option<String>,
}

/// Keep a text through every compaction
///
/// An entry or a text that is pinned stays verbatim.
///
/// Without one, lists what is pinned and how much of the context window it takes.
#[derive(Debug, clap::Args)]
pub struct PinArgs {
    /// ID of the session
    pub id: String,
    /// An entry such as e12 (`epitome sessions show ID` has the numbers), or a text
    #[arg(value_name = "ENTRY|TEXT")]
    pub pinned: Vec<String>,
}

/// Unpin an entry, or all
#[derive(Debug, clap::Args)]
pub struct UnpinArgs {
    /// ID of the session
    pub id: String,
    /// An entry such as e12, or `all`
    #[arg(value_name = "ENTRY|all")]
    pub entry: Vec<String>,
}

/// List or change what runs without asking
///
/// Without an action, lists the rules and the remembered answers to permission questions.
#[derive(Debug, clap::Args)]
#[command(override_usage = "epitome sessions permissions ID [forget N|forget all|keep N]")]
pub struct PermissionsArgs {
    /// ID of the session
    pub id: String,
    /// `forget N` or `forget all` revokes remembered answers; `keep N` applies one to later sessions of this
    /// workspace too
    #[arg(value_name = "ACTION")]
    pub action: Vec<String>,
}

/// Go back to before a turn: restore the files it changed, the conversation, or both
#[derive(Debug, clap::Args)]
pub struct RewindArgs {
    /// ID of the session
    id: String,
    /// An entry of the turn, for example e12 [default: the last turn]
    #[arg(value_parser = entry)]
    entry: Option<Seq>,
    /// Restore the files only
    #[arg(long)]
    files: bool,
    /// Rewind the conversation only
    #[arg(long)]
    conversation: bool,
    /// Show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Restore files even if others have changed them since
    #[arg(long)]
    force: bool,
    /// Revert the last rewind
    #[arg(long)]
    undo: bool,
}

/// Delete a session permanently
#[derive(Debug, clap::Args)]
pub struct DeleteArgs {
    /// ID of the session
    id: String,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

pub(super) fn fork(paths: &Paths, args: &ForkArgs, json: bool) -> Result<i32, CliError> {
    let mut params = json!({ "session": named(paths, &args.id)? });
    if let Some(at) = args.at {
        params["entry"] = json!(at);
    }
    let forked = methods::call(paths, "sessions.fork", params)?;
    let text = |field: &str| forked[field].as_str().unwrap_or_default();
    let at = text("entry").parse::<PartId>().ok().map(|part| part.entry);
    if json {
        let (cwd, title) = (&forked["cwd"], &forked["title"]);
        let (session, from) = (&forked["session"], &forked["from"]);
        return print_json(
            &json!({ "session": session, "from": from, "at": at, "title": title, "cwd": cwd }),
        )
        .map(|()| 0);
    }
    note!("session {} continues {} from {}", text("session"), text("from"), text("entry"));
    terminal::print(&format!("{}\n", text("session"))).map(|()| 0)
}

/// Sends a slash command as a prompt to the session, wherever it is open.
pub(super) fn command(
    paths: &Paths,
    name: &str,
    id: &str,
    words: impl IntoIterator<Item = String>,
    json: bool,
) -> Result<i32, CliError> {
    run::command_of(named(paths, id)?, name, words.into_iter().collect(), json)
}

pub(super) fn rewind(paths: &Paths, args: &RewindArgs, json: bool) -> Result<i32, CliError> {
    let options = [
        ("files", args.files && !args.conversation),
        ("conversation", args.conversation && !args.files),
        ("dry", args.dry_run),
        ("force", args.force),
        ("undo", args.undo),
    ];
    let words = options.into_iter().filter(|(_, is_given)| *is_given).map(|(word, _)| word.to_owned());
    command(
        paths,
        "rewind",
        &args.id,
        args.entry.map(|entry| entry.to_string()).into_iter().chain(words),
        json,
    )
}

pub(super) fn delete(paths: &Paths, args: &DeleteArgs, json: bool) -> Result<i32, CliError> {
    let session = named(paths, &args.id)?;
    if !args.yes && !terminal::agreed(&format!("Delete {session} and everything in it?"))? {
        return Err(CliError::failed(format!("{session} was not deleted")));
    }
    let deleted = methods::call(paths, "sessions.delete", json!({ "session": session }))?;
    if json {
        return print_json(&deleted).map(|()| 0);
    }
    note!("deleted {session}");
    Ok(0)
}
