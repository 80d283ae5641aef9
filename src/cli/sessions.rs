//! `epitome sessions`: what was said, and where. It reads journals and, but for `delete`, changes
//! nothing.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::terminal::{self, harmless};
use super::{CliError, serve};
use crate::config::Settings;
use crate::provider::learned::Learned;
use crate::provider::spent::Spent;
use crate::store::{Header, Store, StoreError};
use crate::thread::boundary::boundary_of;
use crate::thread::text::{self, Detail};
use crate::thread::{Change, Entry, ModelName, SessionId, Thread, Usage};
use crate::tokens::Ruler;

/// Characters of a title in a listing.
const TITLE_CHARS_MAX: usize = 60;

/// Ids that are named when a beginning fits several.
const NAMED_MAX: usize = 5;

/// What to do where another process has a session open.
pub const IN_USE_HINT: &str = "close it in the editor or the other terminal first";

const HELP: &str = "\
epitome sessions: what was said, and where

  epitome sessions list [--json] [--cwd DIR]
        newest first; --cwd leaves out those of other directories
  epitome sessions show ID [--full | --json]
        who said what, tool calls with what came of them, and what the model still sees;
        --full with whole outputs and thinking, --json as one object
  epitome sessions export ID [FILE] [--markdown]
        the log's entries as JSON lines (a compaction has its `compact_boundary` record as
        \"boundary\"), or the conversation as Markdown
  epitome sessions delete ID [--yes]
        asks first; --yes where nobody can be asked

A unique beginning of an id is enough.
";

pub fn main(arguments: Vec<OsString>) -> Result<i32, CliError> {
    let Some(request) = Request::parse(arguments)? else {
        terminal::print(HELP)?;
        return Ok(0);
    };
    let paths = serve::paths();
    serve::log_to_file(&paths);
    let store = Store::new(&paths);
    let done = perform(&store, request);
    store.settle();
    done.map(|()| 0)
}

/// The session that an id, or a beginning of one, names. `s_` may be left out.
pub fn find(store: &Store, typed: &str) -> Result<SessionId, CliError> {
    let listing = store.list().map_err(|error| failed(&error))?;
    let sound = listing.headers.into_iter().map(|header| header.session);
    let mut known: Vec<SessionId> =
        sound.chain(listing.problems.into_iter().map(|(session, _)| session)).collect();
    known.sort();
    known.dedup();
    choose(&known, typed)
}

/// Whether a session's directory is this one, which has no links in it. Editors name directories as
/// the person does, so links are followed before it is denied.
pub fn is_same_directory(of_session: &Path, directory: &Path) -> bool {
    of_session == directory || of_session.canonicalize().is_ok_and(|real| real == directory)
}

fn choose(known: &[SessionId], typed: &str) -> Result<SessionId, CliError> {
    let beginning = if typed.starts_with("s_") { typed.to_owned() } else { format!("s_{typed}") };
    let fitting: Vec<&SessionId> =
        known.iter().filter(|session| !typed.is_empty() && session.0.starts_with(&beginning)).collect();
    match fitting.as_slice() {
        [session] => Ok((*session).clone()),
        [] => {
            let hint = Some("`epitome sessions list` shows what there is".to_owned());
            Err(CliError::failed(format!("there is no session {typed}"), hint))
        }
        several => {
            let named: Vec<&str> = several.iter().take(NAMED_MAX).map(|session| session.0.as_str()).collect();
            let more = if several.len() > NAMED_MAX { ", …" } else { "" };
            let hint = Some(format!("give more of the id: {}{more}", named.join(", ")));
            Err(CliError::failed(format!("{} sessions begin with {typed}", several.len()), hint))
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    List { form: ListForm, cwd: Option<PathBuf> },
    Show { id: String, form: ShowForm },
    Export { id: String, file: Option<PathBuf>, form: ExportForm },
    Delete { id: String, consent: Consent },
}

#[derive(Debug, PartialEq, Eq)]
enum ListForm {
    Text,
    Json,
}

#[derive(Debug, PartialEq, Eq)]
enum ShowForm {
    Text(Detail),
    Json,
}

#[derive(Debug, PartialEq, Eq)]
enum ExportForm {
    JsonLines,
    Markdown,
}

#[derive(Debug, PartialEq, Eq)]
enum Consent {
    Ask,
    Given,
}

impl Request {
    /// `None`: the person wants to know what there is.
    fn parse(arguments: Vec<OsString>) -> Result<Option<Request>, CliError> {
        use lexopt::prelude::*;
        let (mut words, mut flags, mut cwd) = (Vec::new(), Vec::new(), None);
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(None),
                Long("cwd") => cwd = Some(PathBuf::from(parser.value()?)),
                Long(flag) if ["json", "full", "markdown", "yes"].contains(&flag) => {
                    flags.push(flag.to_owned());
                }
                Value(word) => words.push(word),
                other => return Err(other.unexpected().into()),
            }
        }
        let mut words = words.into_iter();
        let verb = words.next().map(|verb| verb.to_string_lossy().into_owned());
        let verb = verb.ok_or_else(|| CliError::usage("say what to do: list, show, export or delete"))?;
        let mut id = || {
            let word =
                words.next().ok_or_else(|| CliError::usage(format!("{verb} needs the id of a session")))?;
            Ok::<String, CliError>(word.to_string_lossy().into_owned())
        };
        let given = |flag: &str| flags.iter().any(|known| known == flag);
        let (request, allowed): (Request, &[&str]) = match verb.as_str() {
            "list" => {
                let form = if given("json") { ListForm::Json } else { ListForm::Text };
                (Request::List { form, cwd: cwd.take() }, &["json"])
            }
            "show" => {
                let form = match (given("json"), given("full")) {
                    (true, _) => ShowForm::Json,
                    (false, true) => ShowForm::Text(Detail::Full),
                    (false, false) => ShowForm::Text(Detail::Short),
                };
                (Request::Show { id: id()?, form }, &["json", "full"])
            }
            "export" => {
                let form = if given("markdown") { ExportForm::Markdown } else { ExportForm::JsonLines };
                let id = id()?;
                (Request::Export { id, file: words.next().map(PathBuf::from), form }, &["markdown"])
            }
            "delete" => {
                let consent = if given("yes") { Consent::Given } else { Consent::Ask };
                (Request::Delete { id: id()?, consent }, &["yes"])
            }
            other => return Err(CliError::usage(format!("there is no `epitome sessions {other}`"))),
        };
        if let Some(flag) = flags.iter().find(|flag| !allowed.contains(&flag.as_str())) {
            return Err(CliError::usage(format!("`epitome sessions {verb}` has no --{flag}")));
        }
        if cwd.is_some() {
            return Err(CliError::usage(format!("`epitome sessions {verb}` has no --cwd")));
        }
        match words.next() {
            Some(word) => Err(CliError::usage(format!("{word:?} is one argument too many"))),
            None => Ok(Some(request)),
        }
    }
}

fn perform(store: &Store, request: Request) -> Result<(), CliError> {
    match request {
        Request::List { form, cwd } => list(store, &form, cwd.as_deref()),
        Request::Show { id, form } => show(store, &find(store, &id)?, &form),
        Request::Export { id, file, form } => export(store, &find(store, &id)?, file.as_deref(), &form),
        Request::Delete { id, consent } => delete(store, &find(store, &id)?, &consent),
    }
}

fn list(store: &Store, form: &ListForm, cwd: Option<&Path>) -> Result<(), CliError> {
    let listing = store.list().map_err(|error| failed(&error))?;
    let cwd = cwd
        .map(|cwd| {
            cwd.canonicalize().map_err(|error| {
                CliError::failed(format!("the directory {} can't be found: {error}", cwd.display()), None)
            })
        })
        .transpose()?;
    // Editors open sessions that never get a prompt; those are nothing to come back to.
    let wanted = |header: &&Header| {
        header.has_prompt && cwd.as_ref().is_none_or(|cwd| is_same_directory(&header.cwd, cwd))
    };
    let headers: Vec<&Header> = listing.headers.iter().filter(wanted).collect();
    let mut out = String::new();
    match form {
        ListForm::Json => {
            for header in &headers {
                let _ = writeln!(out, "{}", header_json(header));
            }
        }
        ListForm::Text if headers.is_empty() => out.push_str("There are no sessions yet.\n"),
        ListForm::Text => {
            for header in &headers {
                out.push_str(&header_line(header));
            }
        }
    }
    terminal::print(&out)?;
    for (session, problem) in &listing.problems {
        eprintln!("epitome: session {session} can't be listed: {problem}");
    }
    Ok(())
}

fn header_line(header: &Header) -> String {
    let title = header.title.as_deref().unwrap_or("(no title)");
    let mut short: String = title.chars().take(TITLE_CHARS_MAX).collect();
    if short.len() < title.len() {
        short.push('…');
    }
    let turns = if header.turns == 1 { "1 turn".to_owned() } else { format!("{} turns", header.turns) };
    format!(
        "{}  {}  {}\n    {turns} · {}\n",
        header.session,
        moment(header.updated_at),
        harmless(&short),
        harmless(&header.cwd.display().to_string())
    )
}

fn header_json(header: &Header) -> serde_json::Value {
    json!({
        "session": header.session, "cwd": header.cwd, "title": header.title, "model": header.model,
        "created_at": header.created_at, "updated_at": header.updated_at,
        "entries": header.entries, "turns": header.turns,
    })
}

/// A time as a person reads it, in their own zone.
fn moment(milliseconds: u64) -> String {
    let time = i64::try_from(milliseconds).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    match time {
        Some(time) => time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M").to_string(),
        None => "(no time)".to_owned(),
    }
}

fn show(store: &Store, session: &SessionId, form: &ShowForm) -> Result<(), CliError> {
    let (entries, damage) = store.read_whole_part(session).map_err(|error| failed(&error))?;
    if let Some(damage) = damage {
        // What stands before the damage is worth seeing, and that there is more is worth knowing.
        eprintln!("epitome: {damage}");
    }
    let thread = fold(session, entries)?;
    // What is wrong in the settings is told by commands that do something by them.
    let (settings, _) = Settings::load(&serve::paths(), Some(thread.cwd()), |name| std::env::var_os(name));
    let spent = Spent::of(&settings, &thread);
    match form {
        ShowForm::Text(detail) => {
            let mut out = text::readable(&thread, *detail);
            let taken = ruler(model_of(&thread))?.in_context(&thread);
            if taken > 0 {
                let _ = writeln!(out, "The next request has about {} tokens.", text::tokens(taken));
            }
            let Spent { usage, cost } = spent;
            if usage != Usage::default() {
                let _ = writeln!(out, "Its model calls took {}.", text::spent(&usage, cost));
            }
            terminal::print(&harmless(&out))
        }
        ShowForm::Json => {
            let mut in_view: Vec<u64> = thread.view().entries().iter().map(|entry| entry.seq.0).collect();
            // The messages of a history that a hook made are one entry.
            in_view.dedup();
            let entries = thread.entries().iter().map(|entry| entry_json(thread.session(), entry));
            let entries = entries.collect::<Result<Vec<Value>, CliError>>()?;
            let shown = json!({
                "session": thread.session(), "cwd": thread.cwd(), "title": thread.title(),
                "model": thread.model(), "mode": thread.mode(), "in_view": in_view,
                "usage": spent.usage, "cost": spent.cost, "entries": entries,
            });
            terminal::print(&format!("{shown}\n"))
        }
    }
}

/// The model that was chosen for a conversation, else the one that answered last.
fn model_of(thread: &Thread) -> Option<&ModelName> {
    let answered = thread.entries().iter().rev().find_map(|entry| match &entry.change {
        Change::Replied { model, .. } => Some(model),
        _ => None,
    });
    thread.model().or(answered)
}

/// What tokens of a model are counted with, by what was learned of it too.
fn ruler(model: Option<&ModelName>) -> Result<Ruler, CliError> {
    let learned = Learned::below(&serve::paths().data);
    serve::runtime()?.block_on(learned.load());
    if let Some(fault) = learned.fault() {
        eprintln!("epitome: {}", harmless(&fault));
    }
    let known = learned.calibrations().into_iter().find(|(known, _)| Some(known) == model);
    let ruler = Ruler::of(model);
    Ok(match known {
        Some((_, calibration)) => ruler.calibrated(calibration),
        None => ruler,
    })
}

fn export(
    store: &Store,
    session: &SessionId,
    file: Option<&Path>,
    form: &ExportForm,
) -> Result<(), CliError> {
    let entries = store.read(session).map_err(|error| failed(&error))?;
    let text = match form {
        ExportForm::JsonLines => json_lines(session, &entries)?,
        ExportForm::Markdown => text::markdown(&fold(session, entries)?),
    };
    let Some(file) = file else { return terminal::print(&text) };
    // As private as the journal it comes from; a file that is there already is somebody's.
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
        let hint = (error.kind() == std::io::ErrorKind::AlreadyExists)
            .then(|| "choose another name, or remove it first".to_owned());
        CliError::failed(format!("{} can't be written: {error}", file.display()), hint)
    })?;
    eprintln!("exported {session} to {}", file.display());
    Ok(())
}

fn json_lines(session: &SessionId, entries: &[Arc<Entry>]) -> Result<String, CliError> {
    let mut text = String::new();
    for entry in entries {
        let _ = writeln!(text, "{}", entry_json(session, entry)?);
    }
    Ok(text)
}

/// An entry as it is stored; a compaction with the record of its boundary, for readers that know no other.
fn entry_json(session: &SessionId, entry: &Entry) -> Result<Value, CliError> {
    let mut written = serde_json::to_value(entry).map_err(|error| {
        CliError::failed(format!("the entry {} can't be written as JSON: {error}", entry.seq), None)
    })?;
    if let Some(boundary) = boundary_of(&session.0, entry) {
        written["boundary"] = boundary;
    }
    Ok(written)
}

fn delete(store: &Store, session: &SessionId, consent: &Consent) -> Result<(), CliError> {
    match consent {
        Consent::Given => {}
        Consent::Ask => {
            let Some(mut keyboard) = terminal::keyboard() else {
                let hint = Some("--yes deletes without asking".to_owned());
                return Err(CliError::failed("nobody is there to be asked whether to delete", hint));
            };
            let question = format!("Delete {session} and all that was said in it?");
            if !terminal::confirm(&mut *keyboard, &question) {
                return Err(CliError::failed(format!("{session} was not deleted"), None));
            }
        }
    }
    store.delete(session).map_err(|error| failed(&error))?;
    eprintln!("deleted {session}");
    Ok(())
}

fn fold(session: &SessionId, entries: Vec<Arc<Entry>>) -> Result<Thread, CliError> {
    Thread::replay(entries).map_err(|error| {
        CliError::failed(
            format!("the log of session {session} can't be read as a conversation: {error}"),
            None,
        )
    })
}

fn failed(error: &StoreError) -> CliError {
    let hint = match error {
        StoreError::NotFound(_) => Some("`epitome sessions list` shows what there is"),
        StoreError::InUse(_) => Some(IN_USE_HINT),
        StoreError::FutureFormat { .. } => Some("install the newer version to read it"),
        StoreError::Exists(_)
        | StoreError::Damaged { .. }
        | StoreError::Unstorable { .. }
        | StoreError::SyncFailed(_)
        | StoreError::Io { .. } => None,
    };
    CliError::failed(error.to_string(), hint.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Request, String> {
        crate::cli::parsed(Request::parse, arguments)
    }

    #[test]
    fn each_command_takes_its_own_flags_only() {
        let id = "s_1".to_owned();
        assert_eq!(parsed(&["list", "--json"]), Ok(Request::List { form: ListForm::Json, cwd: None }));
        assert_eq!(
            parsed(&["show", "s_1", "--full"]),
            Ok(Request::Show { id: id.clone(), form: ShowForm::Text(Detail::Full) })
        );
        let file = Some(PathBuf::from("a.md"));
        assert_eq!(
            parsed(&["export", "s_1", "a.md", "--markdown"]),
            Ok(Request::Export { id, file, form: ExportForm::Markdown })
        );
        let wrong: [(&[&str], &str); 6] = [
            (&[], "say what to do"),
            (&["show"], "needs the id"),
            (&["show", "s_1", "--yes"], "has no --yes"),
            (&["show", "s_1", "--cwd", "/"], "has no --cwd"),
            (&["list", "s_1"], "too many"),
            (&["burn"], "no `epitome sessions burn`"),
        ];
        for (arguments, expected) in wrong {
            let error = parsed(arguments).expect_err("these arguments are wrong");
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn a_unique_beginning_names_a_session() {
        let known = ["s_aa00000000000000000a", "s_ab00000000000000000b"].map(|id| SessionId(id.to_owned()));
        for typed in ["s_ab", "ab", "s_ab00000000000000000b"] {
            assert_eq!(choose(&known, typed).expect("one fits"), known[1]);
        }
        for (typed, expected) in [("a", "2 sessions begin with a"), ("", "no session"), ("c", "no session c")]
        {
            let error = choose(&known, typed).expect_err("none or several fit");
            assert!(error.message.contains(expected), "{typed:?}: {}", error.message);
        }
    }
}
