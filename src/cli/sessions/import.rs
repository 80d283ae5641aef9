//! `epitome sessions import`: imports conversations from files and from the stores of other agents, which `epitome-import`
//! reads.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::json;

use super::list::short_title;
use super::{local_time, print_json, real_directory, sendable};
use crate::cli::{CliContext as _, CliError, helper, methods, serve, terminal};
use crate::paths::Paths;
use crate::session_library::Imported;
use crate::thread::visible::visible;
use crate::transfer::{AGENTS, ForeignSession};

/// The program that finds and reads the sessions of other agents.
const READER: &str = "epitome-import";

/// Maximum number of sessions in a listing without `--all`.
const LISTED_MAX: usize = 20;

/// Displayed length of an id in a listing.
const ID_CHARS: usize = 12;

/// Import sessions from files or from another agent
///
/// Without an ID, --from lists the sessions of an agent, those of this directory first. Files are exports, journals
/// of a backup, transcripts of `epitome acp --transcript`, or session files of one of these agents or of pi.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  epitome sessions import --from claude-code          list its sessions
  epitome sessions import --from claude-code latest   import the newest one of this directory
  epitome sessions import rollout-2026-11-23.jsonl    import a file")]
pub struct ImportArgs {
    /// Files; with --from, IDs or unique ID prefixes, or `latest`
    #[arg(value_name = "FILE|ID", value_hint = clap::ValueHint::FilePath)]
    words: Vec<OsString>,
    /// Agent whose sessions are listed or imported
    #[arg(long, value_name = "AGENT", value_parser = AGENTS.map(|(name, _)| name))]
    from: Option<String>,
    /// List all sessions of the agent
    #[arg(long)]
    all: bool,
    /// Import again, as another session
    #[arg(long)]
    again: bool,
    /// Keep the session's ID, mode and permissions: for your own backups
    #[arg(long)]
    keep_id: bool,
    /// Directory of conversations without one [default: this directory]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    cwd: Option<PathBuf>,
}

pub(super) fn import(paths: &Paths, args: &ImportArgs, json: bool) -> Result<i32, CliError> {
    // The daemon has another working directory.
    let cwd = real_directory(args.cwd.as_deref().unwrap_or(Path::new(".")))?;
    let Some(agent) = args.from.as_deref().and_then(OtherAgent::named) else {
        if args.words.is_empty() {
            return Err(CliError::usage(nothing_named(&cwd)?));
        }
        let absolute = |file: &OsString| {
            std::path::absolute(file).context(format_args!("{} can't be resolved", file.display()))
        };
        let files = args.words.iter().map(absolute).collect::<Result<Vec<PathBuf>, CliError>>()?;
        return import_files(paths, args, &files, &cwd, json);
    };
    let sessions: Vec<ForeignSession> = answer(&["list", agent.name], &cwd)?;
    if args.words.is_empty() {
        let shown = if args.all { sessions.len() } else { LISTED_MAX.min(sessions.len()) };
        if json {
            return print_json(&sessions[..shown]).map(|()| 0);
        }
        return list(paths, agent, &sessions, shown, &cwd);
    }
    let wanted = args.words.iter().map(|word| chosen(agent, &sessions, &word.to_string_lossy(), &cwd));
    let files = wanted.collect::<Result<Vec<PathBuf>, CliError>>()?;
    import_files(paths, args, &files, &cwd, json)
}

#[derive(Clone, Copy)]
struct OtherAgent {
    name: &'static str,
    words: &'static str,
}

impl OtherAgent {
    fn named(name: &str) -> Option<OtherAgent> {
        let found = AGENTS.into_iter().find(|(known, _)| *known == name);
        found.map(|(name, words)| OtherAgent { name, words })
    }
}

/// Returns what the reader prints.
fn answer<T: DeserializeOwned>(arguments: &[&str], cwd: &Path) -> Result<T, CliError> {
    let printed = helper::output(READER, arguments, cwd)?;
    serde_json::from_slice(&printed).context(format_args!("the answer of {READER} can't be read"))
}

/// The error for an import without arguments; lists the agents that have sessions here.
fn nothing_named(cwd: &Path) -> Result<String, CliError> {
    let counts: Vec<usize> = answer(&["count"], cwd)?;
    let mut message = "import needs a file, or --from with the name of an agent:".to_owned();
    for ((name, _), count) in AGENTS.into_iter().zip(counts) {
        let _ = match count {
            0 => write!(message, "\n  {name:<12} no sessions found"),
            1 => write!(message, "\n  {name:<12} 1 session"),
            count => write!(message, "\n  {name:<12} {count} sessions"),
        };
    }
    Ok(message)
}

/// Returns the file of the session with this id prefix; `latest` is the newest one of this directory.
fn chosen(
    agent: OtherAgent,
    sessions: &[ForeignSession],
    word: &str,
    cwd: &Path,
) -> Result<PathBuf, CliError> {
    let from = agent.name;
    if word == "latest" {
        let newest = sessions.iter().find(|session| session.cwd == cwd);
        return newest.map(|session| session.file.clone()).ok_or_else(|| {
            CliError::failed(format!("{} has no session in {}", agent.words, cwd.display()))
                .hint(format!("`epitome sessions import --from {from}` lists those of other directories"))
        });
    }
    let fits: Vec<&ForeignSession> = sessions.iter().filter(|session| session.id.starts_with(word)).collect();
    match fits.as_slice() {
        [session] => Ok(session.file.clone()),
        [] => Err(CliError::failed(format!("{} has no session {word}", agent.words))
            .hint(format!("`epitome sessions import --from {from} --all` lists all"))),
        [first, second, ..] => Err(CliError::failed(format!(
            "{} session IDs begin with {word}, such as {} and {}",
            fits.len(),
            first.id,
            second.id
        ))
        .hint("give a longer prefix")),
    }
}

fn list(
    paths: &Paths,
    agent: OtherAgent,
    sessions: &[ForeignSession],
    shown: usize,
    cwd: &Path,
) -> Result<i32, CliError> {
    if sessions.is_empty() {
        terminal::print(&format!("No sessions of {} were found.\n", agent.words))?;
        return Ok(0);
    }
    let store = serve::store(paths)?;
    let mut out = String::new();
    for session in &sessions[..shown] {
        let id: String = session.id.chars().take(ID_CHARS).collect();
        let folder = match session.cwd.as_path() {
            folder if folder == cwd => "this folder".to_owned(),
            folder if folder.as_os_str().is_empty() => "folder not recorded".to_owned(),
            folder => visible(&folder.display().to_string()).into_owned(),
        };
        let imported = match store.header(&session.session) {
            Ok(_) => format!(" · imported as {}", session.session),
            Err(_) => String::new(),
        };
        let _ = writeln!(
            out,
            "{id}  {}  {}\n    {} kB · {folder}{imported}",
            local_time(session.updated_at),
            short_title(session.title.as_deref()),
            session.bytes.div_ceil(1000),
            id = visible(&id),
        );
    }
    store.settle();
    terminal::print(&out)?;
    if shown < sessions.len() {
        note!("{} more: --all", sessions.len() - shown);
    }
    note!("to import one: epitome sessions import --from {} ID, or `latest`", agent.name);
    Ok(0)
}

fn import_files(
    paths: &Paths,
    args: &ImportArgs,
    files: &[PathBuf],
    cwd: &Path,
    json: bool,
) -> Result<i32, CliError> {
    let files = files.iter().map(|file| sendable(file)).collect::<Result<Vec<&str>, CliError>>()?;
    let params = json!({
        "files": files, "cwd": sendable(cwd)?, "keep_id": args.keep_id, "again": args.again,
    });
    let mut answered = methods::call(paths, "sessions.import", params)?;
    if json {
        return print_json(&answered["sessions"]).map(|()| 0);
    }
    let imported: Vec<Imported> = serde_json::from_value(answered["sessions"].take())
        .context("the result of the import can't be read")?;
    for session in &imported {
        let done = match (session.is_known, session.added) {
            (false, _) => "imported".to_owned(),
            (true, 0) => "not imported:".to_owned(),
            (true, 1) => "added 1 new entry of".to_owned(),
            (true, added) => format!("added {added} new entries of"),
        };
        note!(
            "{done} {} ({}): {}, {} entries",
            session.file.display(),
            session.source,
            short_title(session.title.as_deref()),
            session.entries
        );
        for note in &session.notes {
            note!("  {note}");
        }
        terminal::print(&format!("{}\n", session.session))?;
    }
    Ok(0)
}
