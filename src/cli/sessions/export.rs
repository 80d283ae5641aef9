//! `epitome sessions export`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Request, find, print_json};
use crate::cli::{CliError, terminal};
use crate::shelf;
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
