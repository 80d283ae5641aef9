//! `epitome sessions`: lists, inspects and manages sessions. `session_library` and the control API do the work; this
//! module contains the arguments and the output.

mod change;
mod export;
mod import;
mod list;
mod lost;
mod search;
mod show;
mod tail;

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::{CliContext as _, CliError, inspect, log, serve, terminal};
use crate::paths::Paths;
use crate::session_library;
use crate::store::{SessionQuery, Store};
use crate::thread::{PartId, Seq, SessionId, text};

pub use crate::session_library::IN_USE_HINT;
pub use list::short_title;
pub use search::found;
use terminal::print_json;

/// List, search, export and delete sessions
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = false,
    arg = super::before_subcommand("cwd").value_parser(clap::value_parser!(PathBuf)),
    after_help = "Commands that take the ID of a session accept a unique prefix of it, and `latest` for the newest of\nthis directory."
)]
pub struct SessionsArgs {
    #[command(subcommand)]
    command: SessionsCommand,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum SessionsCommand {
    List(list::ListArgs),
    Show(show::ShowArgs),
    Search(search::SearchArgs),
    Tail(tail::TailArgs),
    Fork(change::ForkArgs),
    Rename(change::RenameArgs),
    /// List the changes of history that can be undone
    History {
        /// ID of the session
        id: String,
    },
    /// Undo a compaction or other change of history
    ///
    /// Restores what the model saw before a compaction, a hook's change or a pin. Later messages stay.
    Undo(change::HistoryArgs),
    /// Redo what was undone
    Redo(change::HistoryArgs),
    Pin(change::PinArgs),
    Unpin(change::UnpinArgs),
    /// List the turns, newest first, with the files each of them changed
    Checkpoints {
        /// ID of the session
        id: String,
    },
    Rewind(change::RewindArgs),
    Permissions(change::PermissionsArgs),
    Inspect(inspect::InspectArgs),
    Export(export::ExportArgs),
    Import(import::ImportArgs),
    /// Show what another agent's compaction lost
    ///
    /// Lists what the summary of an imported session no longer mentions, and how much of it a compaction by Epitome
    /// would have kept.
    Lost {
        /// ID of the session
        id: String,
    },
    Delete(change::DeleteArgs),
}

pub fn main(SessionsArgs { command, json }: SessionsArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    log::to_file(&paths);
    match command {
        SessionsCommand::List(args) => list::list(&paths, &args, json),
        SessionsCommand::Tail(args) => tail::tail(&paths, &args, json),
        SessionsCommand::Fork(args) => change::fork(&paths, &args, json),
        SessionsCommand::Rename(args) => change::command(&paths, "rename", &args.id, args.title, json),
        SessionsCommand::History { id } => change::command(&paths, "history", &id, [], json),
        SessionsCommand::Undo(args) => change::command(&paths, "undo", &args.id, args.entry, json),
        SessionsCommand::Redo(args) => change::command(&paths, "redo", &args.id, args.entry, json),
        SessionsCommand::Pin(args) => change::command(&paths, "pin", &args.id, args.pinned, json),
        SessionsCommand::Unpin(args) => change::command(&paths, "unpin", &args.id, args.entry, json),
        SessionsCommand::Permissions(args) => {
            change::command(&paths, "permissions", &args.id, args.action, json)
        }
        SessionsCommand::Inspect(mut args) => {
            args.session =
                args.session.map(|typed| named(&paths, &typed)).transpose()?.map(|session| session.0);
            inspect::main(args)
        }
        SessionsCommand::Checkpoints { id } => change::command(&paths, "checkpoints", &id, [], json),
        SessionsCommand::Rewind(args) => change::rewind(&paths, &args, json),
        SessionsCommand::Import(args) => import::import(&paths, &args, json),
        SessionsCommand::Delete(args) => change::delete(&paths, &args, json),
        // These only read journals.
        SessionsCommand::Show(args) => serve::with_store(&paths, |store| show::show(store, &args, json)),
        SessionsCommand::Search(args) => {
            serve::with_store(&paths, |store| search::search(store, &args, json))
        }
        SessionsCommand::Export(args) => {
            serve::with_store(&paths, |store| export::export(store, &args, json))
        }
        SessionsCommand::Lost { id } => serve::with_store(&paths, |store| lost::lost(store, &id, json)),
    }
}

/// Like `find`, with a store that is opened for this call.
pub fn named(paths: &Paths, typed: &str) -> Result<SessionId, CliError> {
    serve::with_store(paths, |store| find(store, typed))
}

/// Finds a session like `find`, and the directory in which it works.
pub fn named_with_directory(paths: &Paths, typed: &str) -> Result<(SessionId, PathBuf), CliError> {
    serve::with_store(paths, |store| {
        let session = find(store, typed)?;
        let query = SessionQuery { prefix: session.0.clone(), ..SessionQuery::default() };
        let header = session_library::list(store, &query)?.sessions.pop();
        // One that can't be read fails when it is opened.
        let cwd = header.map_or_else(serve::working_directory, |header| Ok(header.cwd))?;
        Ok::<_, CliError>((session, cwd))
    })
}

/// The name of the newest session of the current directory.
pub const LATEST: &str = "latest";

/// The newest session of a directory.
pub fn newest(paths: &Paths, cwd: &Path) -> Result<SessionId, CliError> {
    let listed = super::methods::call(paths, "sessions.list", serde_json::json!({ "cwd": cwd, "limit": 1 }))?;
    let newest = listed["sessions"][0]["session"].as_str().map(|id| SessionId(id.to_owned()));
    newest.ok_or_else(|| {
        let hint = "`epitome run` without --follow starts one; `epitome sessions list` shows all";
        CliError::failed(format!("{} has no session to continue", cwd.display())).hint(hint)
    })
}

/// Finds a session by its id or a unique prefix, with or without `s_`, or as the newest of the current directory.
pub fn find(store: &Store, typed: &str) -> Result<SessionId, CliError> {
    if typed != LATEST {
        return Ok(session_library::resolve(store, typed)?);
    }
    let cwd = serve::working_directory()?;
    let query =
        SessionQuery { cwd: Some(cwd.clone()), has_prompt: true, limit: Some(1), ..SessionQuery::default() };
    let newest = session_library::list(store, &query)?.sessions.pop().map(|header| header.session);
    newest.ok_or_else(|| {
        CliError::failed(format!("{} has no sessions", cwd.display()))
            .hint("`epitome sessions list` shows all")
    })
}

/// Parses an entry as users type it: e12.
fn entry(typed: &str) -> Result<Seq, &'static str> {
    match typed.parse::<PartId>() {
        Ok(PartId { entry, part: None }) => Ok(entry),
        Ok(PartId { part: Some(_), .. }) | Err(()) => Err("entries are named like e12"),
    }
}

/// The formats of an export.
fn formats() -> impl TypedValueParser<Value = session_library::ExportFormat> {
    let names =
        PossibleValuesParser::new(session_library::ExportFormat::ALL.map(session_library::ExportFormat::id));
    names.try_map(|name| session_library::ExportFormat::parse(&name).ok_or("unknown format"))
}

/// Returns the canonical path of a directory that the user named.
pub fn real_directory(directory: &Path) -> Result<PathBuf, CliError> {
    directory.canonicalize().context(format_args!("the directory {} can't be found", directory.display()))
}

/// A path for a request to the daemon, which is JSON.
fn sendable(path: &Path) -> Result<&str, CliError> {
    path.to_str().ok_or_else(|| {
        CliError::failed(format!("{} can't be sent to the daemon, because it is not UTF-8", path.display()))
    })
}

/// Formats a time in milliseconds since the epoch as local time.
fn local_time(milliseconds: u64) -> String {
    let time = i64::try_from(milliseconds).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    match time {
        Some(time) => time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M").to_string(),
        None => "(no time)".to_owned(),
    }
}

/// Formats how long ago a time was. Both are in milliseconds since the epoch.
fn ago(milliseconds: u64, now: i64) -> String {
    text::ago(now.saturating_sub_unsigned(milliseconds) / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::CliCommand;
    use crate::cli::tests::{parsed, usage_error};

    fn command(line: &[&str]) -> SessionsCommand {
        match parsed(&[&["sessions"], line].concat()).command {
            CliCommand::Sessions(args) => args.command,
            other => panic!("not a command of sessions: {other:?}"),
        }
    }

    #[test]
    fn times_are_also_shown_as_ages() {
        const DAY: i64 = 86_400_000;
        for (age, shown) in [
            (59_999, "just now"),
            (-5_000, "just now"),
            (60_000, "1 minute ago"),
            (7_200_000, "2 hours ago"),
            (DAY, "1 day ago"),
            (45 * DAY, "1 month ago"),
            (800 * DAY, "2 years ago"),
        ] {
            assert_eq!(ago(1_000 * DAY as u64, 1_000 * DAY + age), shown);
        }
    }

    #[test]
    fn each_command_takes_its_own_arguments() {
        command(&["show", "s_1", "--full"]);
        command(&["export", "s_1", "a.md", "--format", "raw"]);
        command(&["search", "two", "words", "--limit", "3"]);
        command(&["--json", "list", "--limit", "5"]);
        let SessionsCommand::List(args) = command(&["--cwd", "/w", "list"]) else { panic!("it is a list") };
        assert_eq!(args.cwd.as_deref(), Some(Path::new("/w")));
        let SessionsCommand::Tail(args) = command(&["tail", "ab", "--from", "e5"]) else {
            panic!("it is a tail")
        };
        assert_eq!((args.id.as_str(), args.from), ("ab", Seq(5)));
    }

    #[test]
    fn wrong_arguments_are_refused_with_their_names() {
        let wrong: [(&[&str], &str); 11] = [
            (&[], "subcommands: list, show"),
            (&["show"], "<ID>"),
            (&["show", "s_1", "--yes"], "--yes"),
            (&["show", "s_1", "--format", "pdf"], "possible values: json, markdown, raw"),
            (&["list", "s_1"], "'s_1'"),
            (&["search"], "<WORD>"),
            (&["rename", "s_1"], "<TITLE>"),
            (&["fork", "s_1", "--at"], "--at"),
            (&["fork", "s_1", "--at", "9"], "entries are named like e12"),
            (&["tail"], "<ID>"),
            (&["lst"], "did you mean 'list'?"),
        ];
        for (arguments, expected) in wrong {
            usage_error(&[&["sessions"], arguments].concat(), expected);
        }
    }
}
