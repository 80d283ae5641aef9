//! Exports sessions to files and imports them. An import stores either everything that its files contain, or nothing.

use epitome_platform::os::{DirBuilderExt, OpenOptionsExt};
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::grown::grown;
use super::{LibraryError, SessionListing, Unlisted, list};
use epitome_platform::program::helper;
use epitome_secrets as secrets;
use epitome_store::{Header, SessionQuery, Store, StoreError, new_id};
use epitome_thread::problem::Problem;
use epitome_thread::{SessionId, Thread, named_enum, text};
use epitome_transfer::{
    self as transfer, IMPORT_BYTES_MAX, ImportDraft, ImportFile, ImportSource, ReadAnswer,
};

named_enum! {
    /// Export formats.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ExportFormat {
        /// Everything, one entry per line; can be imported again.
        #[default]
        Json = "json",
        /// A text for reading.
        Markdown = "markdown",
        /// The journal's own lines, without the bodies in blobs.
        Raw = "raw",
    }
}

impl ExportFormat {
    fn extension(self) -> &'static str {
        match self {
            ExportFormat::Json => "jsonl",
            ExportFormat::Markdown => "md",
            ExportFormat::Raw => "journal",
        }
    }
}

/// A session as text.
pub struct Exported {
    pub text: String,
    /// The loss in its log.
    pub damage: Option<StoreError>,
}

/// Exports a session, even if it is damaged. Apparent API keys are masked, except in the raw format, which is the log byte
/// for byte.
pub fn export(store: &Store, session: &SessionId, form: ExportFormat) -> Result<Exported, LibraryError> {
    let (text, damage) = match (form, store.read_with_damage(session)) {
        // Also if nothing else can be done with the log.
        (ExportFormat::Raw, read) => {
            let text = String::from_utf8_lossy(&store.raw(session)?).into_owned();
            (text, read.map_or_else(Some, |(_, damage)| damage))
        }
        (ExportFormat::Json | ExportFormat::Markdown, Err(error)) => return Err(error.into()),
        (ExportFormat::Json, Ok((entries, damage))) => {
            let text = transfer::json_lines(session, &entries).map_err(|error| {
                LibraryError::failed(format!("session {session} can't be written as JSON: {error}"))
            })?;
            (text, damage)
        }
        (ExportFormat::Markdown, Ok((entries, damage))) => {
            let thread = Thread::replay(entries)
                .map_err(|source| StoreError::Unfoldable { session: session.clone(), source })?;
            let text = text::markdown(&thread);
            (secrets::mask(&text).into_owned(), damage)
        }
    };
    Ok(Exported { text, damage })
}

/// Files with exported sessions.
pub struct ExportedFiles {
    pub files: Vec<PathBuf>,
    /// Sessions that are damaged, and those that could not be exported.
    pub problems: Vec<Unlisted>,
}

/// Writes each session to a separate file in `directory`, which is created if missing; existing files are not
/// overwritten. A session that can't be exported does not prevent the export of others.
pub fn export_all(
    store: &Store,
    directory: &Path,
    form: ExportFormat,
) -> Result<ExportedFiles, LibraryError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| LibraryError::failed(format!("{} can't be made: {error}", directory.display())))?;
    let SessionListing { sessions, mut problems } = list(store, &SessionQuery::default())?;
    let mut files = Vec::new();
    for Header { session, has_prompt, .. } in sessions {
        let problem = match export(store, &session, form) {
            // Damage may be all that remains of a prompt.
            Ok(Exported { damage: None, .. }) if !has_prompt => continue,
            // Deleted in the meantime.
            Err(LibraryError::Store(StoreError::NotFound(_))) => continue,
            Err(error @ LibraryError::Store(StoreError::Unreachable { .. })) => return Err(error),
            Err(error) => Some(error.to_string()),
            Ok(Exported { text, damage }) => {
                let path = directory.join(format!("{session}.{}", form.extension()));
                match write_new(&path, &text) {
                    Ok(()) => {
                        files.push(path);
                        damage.map(|damage| damage.to_string())
                    }
                    Err(error) => Some(format!("{} can't be written: {error}", path.display())),
                }
            }
        };
        problems.extend(problem.map(|problem| Unlisted { session, problem }));
    }
    Ok(ExportedFiles { files, problems })
}

/// Creates a file as private as the log itself. Nothing remains of a failed write.
pub fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes()).inspect_err(|_| drop(std::fs::remove_file(path)))
}

/// Reads a file in another agent's format: its path, the working directory of conversations that name none, its bytes.
pub type ForeignReader = dyn Fn(&Path, &Path, Vec<u8>) -> Result<Vec<ImportDraft>, LibraryError>;

/// The user's choices for an import.
pub struct ImportRequest<'a> {
    pub files: &'a [PathBuf],
    /// Working directory of conversations whose file doesn't contain one.
    pub cwd: &'a Path,
    /// Whether sessions exported by Epitome keep their id, which must be unused, and their mode and permissions.
    pub keep_id: bool,
    /// Whether sessions of other agents that were imported before are imported again.
    pub again: bool,
    /// Reads files in the formats of other agents.
    pub reader: &'a ForeignReader,
}

/// An imported session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    pub session: SessionId,
    pub file: PathBuf,
    /// The kind of file: `an export of Epitome`, `a transcript`, `a session of pi`.
    pub source: String,
    pub title: Option<String>,
    pub cwd: PathBuf,
    pub entries: u64,
    /// It was imported before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_known: bool,
    /// Entries that were added to one that was imported before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub added: u64,
    /// Omitted content, and other notes for the user.
    pub notes: Vec<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Imports the conversations of all files. A session of another agent that was imported before gets what is new in it. If one can't be read, none is stored.
pub fn import(store: &Store, ask: &ImportRequest) -> Result<Vec<Imported>, LibraryError> {
    let mut drafts: Vec<(PathBuf, SessionId, ImportDraft)> = Vec::new();
    let mut known: Vec<(PathBuf, SessionId, ImportDraft)> = Vec::new();
    let mut imported = Vec::new();
    let mut taken = BTreeSet::new();
    for file in ask.files {
        for mut draft in read(ask, file)? {
            let session = match &draft.session {
                Some(session) if ask.keep_id => session.clone(),
                None if draft.source.is_foreign() && !ask.again => Some(draft.imported_id(file))
                    .filter(|id| !is_other(store, id, &draft))
                    .unwrap_or_else(new_id),
                Some(_) | None => new_id(),
            };
            let is_free = matches!(store.header(&session), Err(StoreError::NotFound(_)));
            if !is_free && draft.source.is_foreign() {
                known.push((file.clone(), session, draft));
                continue;
            }
            let is_new = taken.insert(session.clone());
            if !is_new && draft.source.is_foreign() {
                return Err(LibraryError::refused(
                    format!("{} is the same session as another of these files", file.display()),
                    "name one of them, or import both with --again",
                ));
            }
            if !is_free || !is_new {
                return Err(LibraryError::refused(
                    format!("session {session} of {} exists already", file.display()),
                    "without --keep-id it gets an id of its own",
                ));
            }
            let settled = draft.settle_permissions(ask.keep_id && draft.session.is_some());
            settled.map_err(|error| file_problem(file, format!("this is not a conversation: {error}")))?;
            drafts.push((file.clone(), session, draft));
        }
    }
    for (file, session, draft) in drafts {
        let (source, notes) = (draft.source.words().to_owned(), draft.notes.clone());
        let entries = draft.into_entries(&session);
        let thread = Thread::replay(entries.iter().cloned());
        let thread =
            thread.map_err(|error| file_problem(&file, format!("this is not a conversation: {error}")))?;
        if let Err(error) = store.insert(&session, &entries) {
            // Delete what this import has stored so far: it must store all or nothing.
            for Imported { session, .. } in &imported {
                if let Err(error) = store.delete(session) {
                    tracing::warn!(%session, %error, "a part of a failed import can't be removed");
                }
            }
            return Err(error.into());
        }
        imported.push(Imported {
            source,
            title: thread.title().map(str::to_owned),
            cwd: thread.cwd().to_path_buf(),
            entries: entries.len() as u64,
            session,
            file,
            is_known: false,
            added: 0,
            notes,
        });
    }
    for (file, session, draft) in known {
        imported.push(extended(store, session, file, &draft)?);
    }
    Ok(imported)
}

/// Whether the draft is of pi, in which a copy that continues elsewhere has the id of its original, and not a continuation of the
/// stored session.
fn is_other(store: &Store, session: &SessionId, draft: &ImportDraft) -> bool {
    let is_continued = |thread: &Thread| grown(thread, &draft.entries).is_some();
    draft.source == ImportSource::Pi
        && super::read(store, session).is_ok_and(|stored| !is_continued(&stored.thread))
}

/// Adds to a session that was imported before what its agent has added since.
fn extended(
    store: &Store,
    session: SessionId,
    file: PathBuf,
    draft: &ImportDraft,
) -> Result<Imported, LibraryError> {
    const AGAIN: &str = "--again imports it once more, as a session of its own";
    let added = match store.extend(&session, |thread| grown(thread, &draft.entries)) {
        Ok(added) => added.ok_or_else(|| {
            format!("it was imported before, and both have changed since, so it is skipped; {AGAIN}")
        }),
        Err(StoreError::InUse(..)) => Err(format!(
            "it was imported before and is open, so nothing is added; close it first, or {AGAIN}"
        )),
        Err(error) => return Err(error.into()),
    };
    let header = store.header(&session)?;
    let note = match &added {
        Ok(0) => Some(format!("it was imported before, and nothing is new; {AGAIN}")),
        Ok(_) => None,
        Err(why) => Some(why.clone()),
    };
    Ok(Imported {
        source: draft.source.words().to_owned(),
        title: header.title,
        cwd: header.cwd,
        entries: header.entries,
        session,
        file,
        is_known: true,
        added: added.unwrap_or_default(),
        notes: note.into_iter().collect(),
    })
}

/// Returns the conversations of a file.
fn read(ask: &ImportRequest, path: &Path) -> Result<Vec<ImportDraft>, LibraryError> {
    if let Some(draft) = journal(path)? {
        return Ok(vec![draft]);
    }
    // opencode's sessions are named as if its database were a directory.
    let is_inside_of_file = path.parent().is_some_and(Path::is_file);
    let bytes = if is_inside_of_file { Vec::new() } else { bytes_of(path)? };
    match std::str::from_utf8(&bytes) {
        Ok(text) if transfer::is_export(text) => {
            let draft = transfer::read(ImportFile { path }, text).map_err(LibraryError::File)?;
            Ok(vec![draft])
        }
        Ok(_) | Err(_) => (ask.reader)(path, ask.cwd, bytes),
    }
}

/// Has the program `epitome-import` read a file with these contents, in the format of another agent.
pub fn read_by_helper(path: &Path, cwd: &Path, bytes: Vec<u8>) -> Result<Vec<ImportDraft>, LibraryError> {
    let failed = |what: &str| LibraryError::failed(format!("{} can't be read: {what}", path.display()));
    let program = helper(READER).map_err(|missing| LibraryError::Refused {
        message: format!("{} can't be read: {missing}", path.display()),
        hint: Some(missing.hint()),
    })?;
    let mut child = Command::new(program)
        .arg("read")
        .args([path, cwd])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(&format!("{READER} can't be started: {error}")))?;
    if let Some(mut stdin) = child.stdin.take() {
        // It reads everything before it answers, or ends early with an answer that says why.
        drop(stdin.write_all(&bytes));
    }
    let ended = child.wait_with_output().map_err(|error| failed(&error.to_string()))?;
    match serde_json::from_slice(&ended.stdout) {
        Ok(ReadAnswer::Drafts(drafts)) => Ok(drafts),
        Ok(ReadAnswer::Refused { position, message, hint }) => {
            Err(LibraryError::File(Problem { position, hint, ..Problem::new(path, message) }))
        }
        Err(_) => Err(failed(&format!("{READER} ended without an answer ({})", ended.status))),
    }
}

/// The program that reads the formats of other agents.
const READER: &str = "epitome-import";

/// Reads a journal, even a damaged one; `None` if the file is something else. A file that is not regular has no length
/// that limits the reading, and can be read only once.
fn journal(path: &Path) -> Result<Option<ImportDraft>, LibraryError> {
    if !std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= IMPORT_BYTES_MAX) {
        return Ok(None);
    }
    // The name of a damaged journal that a repair has kept continues after the session's id.
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.split('.').next());
    let name = name.and_then(SessionId::parse);
    let read = match Store::read_outside(path, name.as_ref()) {
        // The file is read as text next, which reports a better error.
        Err(StoreError::Io { .. }) | Ok(None) => return Ok(None),
        read => {
            read.map_err(|error| file_problem(path, format!("this journal can't be imported: {error}")))?
        }
    };
    let Some(outside) = read else { return Ok(None) };
    if outside.lost_bodies > 0 {
        let what = format!("each of {} bodies that it names is missing or was changed", outside.lost_bodies);
        return Err(file_problem(path, format!("this journal can't be imported: {what}")));
    }
    let draft = transfer::draft_from_log(&outside.entries);
    let mut draft =
        draft.map_err(|error| file_problem(path, format!("this is not a conversation: {error}")))?;
    if outside.is_damaged {
        draft.notes.push(format!("it is damaged: {} of its entries are lost", outside.lost_entries));
    }
    Ok(Some(draft))
}

/// Reads a file, within the limit.
fn bytes_of(path: &Path) -> Result<Vec<u8>, LibraryError> {
    let failed = |error: io::Error| LibraryError::File(Problem::unreadable(path, &error));
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(IMPORT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > IMPORT_BYTES_MAX {
        return Err(file_problem(path, format!("this file has more than {IMPORT_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

fn file_problem(path: &Path, message: String) -> LibraryError {
    LibraryError::File(Problem::new(path, message))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn make_pipe(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.expect("mkfifo runs").success());
    }

    /// Regression: `epitome sessions import /dev/zero` filled the memory of the machine, in the daemon too. What could be a
    /// journal was read without a limit, and the next attempt to read a pipe found nothing.
    #[test]
    fn what_is_not_a_regular_file_is_read_once_and_with_a_limit() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let pipe = folder.path().join("pipe");
        make_pipe(&pipe);
        let text = "not a conversation\n";
        let written = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::write(pipe, text).expect("it is read")
        });
        assert!(journal(&pipe).expect("it is not opened").is_none());
        assert_eq!(bytes_of(&pipe).expect("it is read"), text.as_bytes());
        written.join().expect("it was read");
    }
}
