//! Facts in what came of a tool call: files, commands, errors. Pure.

use std::borrow::Cow;
use std::path::Path;

use serde_json::Value as Json;

use super::calls::{Action, Called, Doing};
use super::fact::{Fact, Kind, Source};
use super::notes::Notes;
use super::printed::{self, Ended};
use super::segments;
use super::shell;
use super::store::Store;
use crate::thread::{OutcomeContent, OutcomeStatus, Seq, Shown, ToolOutcome};

/// A command is told in so many bytes.
const COMMAND_BYTES_MAX: usize = 160;
/// What came of it likewise.
const RESULT_BYTES_MAX: usize = 160;
/// A value that was written is one that the work is about.
const WRITTEN_STRENGTH: u8 = 4;
/// An output of so few lines was asked for because of what it says.
const SHORT_LINES_MAX: usize = 25;

/// Reads an outcome, with its call where that is known.
pub(super) fn take(notes: &mut Notes, cwd: &Path, called: Option<Called>, outcome: &ToolOutcome, entry: Seq) {
    let source = Source { entry, call: called.as_ref().map(|called| called.entry) };
    let (ended, code) = match outcome.status {
        OutcomeStatus::Completed => match exit_code(outcome) {
            Some(code) if code != 0 => (Ended::Failed, Some(code)),
            code => (Ended::Well, code),
        },
        OutcomeStatus::Failed => (Ended::Failed, exit_code(outcome).filter(|code| *code != 0)),
        OutcomeStatus::Denied => return refused(notes, called.as_ref(), &text(outcome), source),
        OutcomeStatus::Interrupted => return,
    };
    let Some(called) = called else { return };
    if called.doing == Doing::Quoting {
        return;
    }
    let text = text(outcome);
    if ended == Ended::Well {
        files(notes, cwd, &called, outcome, source);
    }
    match called.doing {
        Doing::Files(_) | Doing::Search => {
            let path =
                called.touched.first().map(|(path, _)| file_name(cwd, path).to_owned()).unwrap_or_default();
            if ended == Ended::Failed {
                errors(notes, printed::errors(&text, ended), 2, &path, source);
            } else if !path.is_empty() {
                notes.solve(&path, ended, entry);
            }
            if let (Ended::Well, Some(written)) = (ended, &called.written) {
                printed::take_values(notes, written, &path, WRITTEN_STRENGTH, source);
            }
        }
        Doing::Command | Doing::Other => {
            let line = called.command.as_deref().unwrap_or(&called.name);
            let key = shell::key(line);
            let found = printed::errors(&text, ended);
            command(notes, line, &key, printed::decisive(&text, &found, ended), ended, code, source);
            let strength = if ended == Ended::Failed { 5 } else { 3 };
            errors(notes, found, strength, &key, source);
            notes.solve(&key, ended, entry);
            let short = segments::lines(&text).nth(SHORT_LINES_MAX).is_none();
            // What was only looked at is somebody's text, where it is long.
            if ended == Ended::Well && (short || shell::weight(&key) > 1) {
                printed::take_values(notes, &text, "", 1 + u8::from(short), source);
                printed::take_sayings(notes, &text, 1 + u8::from(short), source);
            }
        }
        Doing::Quoting => {}
    }
    match called.doing {
        // What a file holds can be read again.
        Doing::Files(_) | Doing::Search | Doing::Quoting => {}
        Doing::Command | Doing::Other => printed::take_names(notes, &text, source),
    }
}

/// A file that the person put into a prompt.
pub(super) fn attached(notes: &mut Notes, cwd: &Path, uri: &str, source: Source) {
    if let Some(path) = uri.strip_prefix("file://") {
        notes.touch(file_name(cwd, path), path, Action::Read, source);
    }
}

fn files(notes: &mut Notes, cwd: &Path, called: &Called, outcome: &ToolOutcome, source: Source) {
    let created = |path: &str| {
        outcome.shown.iter().any(|shown| match shown {
            Shown::Diff { path: shown, old: None, .. } => shown.ends_with(path.trim_start_matches("./")),
            Shown::Diff { .. } | Shown::Text { .. } => false,
        })
    };
    for (path, action) in &called.touched {
        let action = if *action == Action::Modified && created(path) { Action::Created } else { *action };
        notes.touch(file_name(cwd, path), path, action, source);
    }
    if called.touched.is_empty()
        && let Doing::Files(action) = called.doing
    {
        for at in &outcome.locations {
            let path = at.path.to_string_lossy();
            notes.touch(file_name(cwd, &path), &path, action, source);
        }
    }
}

/// Stores what was done to a file that is known by this name.
pub(super) fn touch(store: &mut Store, name: &str, path: String, action: Action, source: Source) {
    let mut action = action;
    if let Some(known) = store.named_mut(Kind::File, name) {
        let changed = known.note != Action::Read.word();
        // That a file was looked at again says less than that it was changed.
        if changed && action == Action::Read {
            return;
        }
        if known.note == Action::Created.word() && action == Action::Modified {
            action = Action::Created;
        }
    }
    let strength = if action.is_change() { 5 } else { 1 };
    let mut fact = Fact::named(Kind::File, strength, name, path, source);
    fact.note = action.word().to_owned();
    store.add(fact);
}

/// The path by which a file is known, however it was called.
fn file_name<'a>(cwd: &Path, path: &'a str) -> &'a str {
    let own = cwd.to_str().and_then(|cwd| path.strip_prefix(cwd)).and_then(|rest| rest.strip_prefix('/'));
    own.unwrap_or(path).trim_start_matches("./")
}

fn command(
    notes: &mut Notes,
    line: &str,
    key: &str,
    decisive: String,
    ended: Ended,
    code: Option<i64>,
    source: Source,
) {
    let shown = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = cut(&shown, COMMAND_BYTES_MAX);
    let strength = shell::weight(key) + u8::from(ended == Ended::Failed);
    let result = match (ended, code) {
        (Ended::Well, _) => "ok".to_owned(),
        (Ended::Failed, Some(code)) => format!("exit {code}"),
        (Ended::Failed, None) => "failed".to_owned(),
    };
    let mut fact = Fact::named(Kind::Command, strength, key, told, source);
    fact.note =
        if decisive.is_empty() { result } else { format!("{result}: {}", cut(&decisive, RESULT_BYTES_MAX)) };
    notes.add(fact);
}

fn errors(notes: &mut Notes, found: Vec<String>, strength: u8, origin: &str, source: Source) {
    for line in found {
        let key = printed::error_key(&line);
        let mut fact = Fact::named(Kind::Error, strength, &key, line, source);
        fact.note = origin.to_owned();
        notes.add(fact);
    }
}

/// A call that was not allowed. That the person said no is as good as a rule.
fn refused(notes: &mut Notes, called: Option<&Called>, why: &str, source: Source) {
    let Some(called) = called else { return };
    let what = match (&called.command, called.touched.first()) {
        (Some(line), _) => cut(&line.split_whitespace().collect::<Vec<_>>().join(" "), COMMAND_BYTES_MAX),
        (None, Some((path, _))) => format!("{} {path}", called.name),
        (None, None) => called.name.clone(),
    };
    let by_person = why.trim_start().starts_with("The person ");
    let text = if by_person {
        format!("The person refused `{what}`.")
    } else {
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("`{what}` was not allowed: {}", cut(&why, RESULT_BYTES_MAX))
    };
    let strength = if by_person { 6 } else { 4 };
    notes.add(Fact::named(Kind::Rejected, strength, &what, text, source));
}

/// Ends the errors of this command, or of this file, that this run did not show any more.
pub(super) fn solve(store: &mut Store, origin: &str, ended: Ended, entry: Seq) {
    store.end_errors(origin, entry, |error| {
        let gone = match ended {
            Ended::Well => shell::covers(origin, &error.note),
            Ended::Failed => origin == error.note,
        };
        gone && !error.note.is_empty() && error.newest() != entry
    });
}

fn text(outcome: &ToolOutcome) -> Cow<'_, str> {
    if let Some(whole) = &outcome.whole {
        return Cow::Borrowed(whole);
    }
    match outcome.content.as_slice() {
        [OutcomeContent::Text { text }] => Cow::Borrowed(text),
        _ => Cow::Owned(outcome.model_text()),
    }
}

/// The exit code that machines are told, else the one that stands in brackets at the end.
fn exit_code(outcome: &ToolOutcome) -> Option<i64> {
    if let Some(raw) = &outcome.raw {
        let code = ["exitCode", "exit_code", "returncode", "code"]
            .iter()
            .find_map(|key| raw.get(key).and_then(Json::as_i64));
        if code.is_some() {
            return code;
        }
    }
    const TAIL_BYTES: usize = 120;
    let OutcomeContent::Text { text } = outcome.content.last()? else { return None };
    let tail = text[text.ceil_char_boundary(text.len().saturating_sub(TAIL_BYTES))..].to_ascii_lowercase();
    // Most outputs end with neither.
    if !tail.contains("exit") {
        return None;
    }
    let at = ["exit code", "exit status", "exited with"]
        .iter()
        .filter_map(|words| Some(tail.rfind(words)? + words.len()))
        .max()?;
    let digits = tail[at..].trim_start_matches([':', ' ', '=', '(']);
    let digits = digits.strip_prefix("code ").unwrap_or(digits);
    let end = digits.find(|character: char| !character.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

fn cut(line: &str, bytes_max: usize) -> String {
    if line.len() <= bytes_max {
        line.to_owned()
    } else {
        format!("{}…", &line[..line.floor_char_boundary(bytes_max)])
    }
}
