//! `epitome sessions export` and `import`.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::list::short_title;
use super::{Request, find, print_json, real_directory};
use crate::cli::terminal::{self, harmless};
use crate::cli::{CliError, methods};
use crate::paths::Paths;
use crate::shelf::{self, Imported};
use crate::store::Store;

pub(super) fn export(store: &Store, request: Request) -> Result<(), CliError> {
    let form = request.form()?.unwrap_or_default();
    if let Some(directory) = request.option("all").map(PathBuf::from) {
        if let Some(word) = request.words.first() {
            return Err(CliError::usage(format!("--all exports every session, so {word:?} is too much")));
        }
        let written = shelf::export_all(store, &directory, form)?;
        if request.has("json") {
            return print_json(&json!({ "format": form.word(), "directory": directory, "files": written }));
        }
        eprintln!("exported {} sessions to {}", written.len(), directory.display());
        return Ok(());
    }
    let id = request.words.first().ok_or_else(|| CliError::usage("export needs the id of a session"))?;
    let session = find(store, &id.to_string_lossy())?;
    let text = shelf::export(store, &session, form)?;
    let Some(file) = request.words.get(1).map(Path::new) else {
        if request.has("json") {
            return Err(CliError::usage(
                "--json tells of a file that was written: say which, or leave it out",
            ));
        }
        return terminal::print(&text);
    };
    // As private as the journal it comes from; a file that is there already is somebody's.
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
        let hint = (error.kind() == std::io::ErrorKind::AlreadyExists)
            .then(|| "choose another name, or remove it first".to_owned());
        CliError::failed(format!("{} can't be written: {error}", file.display()), hint)
    })?;
    if request.has("json") {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
        return print_json(&json!({
            "session": session, "format": form.word(), "file": file, "bytes": text.len(),
        }));
    }
    eprintln!("exported {session} to {}", file.display());
    Ok(())
}

pub(super) fn import(paths: &Paths, request: Request) -> Result<i32, CliError> {
    // The daemon has another working directory.
    let absolute = |file: &OsString| {
        std::path::absolute(file)
            .map_err(|error| CliError::failed(format!("{} can't be named: {error}", file.display()), None))
    };
    let files = request.words.iter().map(absolute).collect::<Result<Vec<PathBuf>, CliError>>()?;
    let cwd = match request.directory() {
        Some(directory) => real_directory(&directory)?,
        None => real_directory(Path::new("."))?,
    };
    let params = json!({ "files": files, "cwd": cwd, "keep_id": request.has("keep-id") });
    let mut answered = methods::call(paths, "sessions.import", params)?;
    if request.has("json") {
        return print_json(&answered["sessions"]).map(|()| 0);
    }
    let imported: Vec<Imported> = serde_json::from_value(answered["sessions"].take())
        .map_err(|error| CliError::failed(format!("what the import came to can't be read: {error}"), None))?;
    for session in &imported {
        eprintln!(
            "imported {} ({}): {}, {} entries",
            harmless(&session.file.display().to_string()),
            session.source,
            short_title(session.title.as_deref()),
            session.entries
        );
        for note in &session.notes {
            eprintln!("  {}", harmless(note));
        }
        terminal::print(&format!("{}\n", session.session))?;
    }
    Ok(0)
}
