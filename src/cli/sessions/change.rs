//! `epitome sessions fork`, `rename`, `undo` and `delete`.

use std::ffi::OsString;

use super::{Request, find, print_json};
use crate::cli::{CliError, run, terminal};
use crate::paths::Paths;
use crate::shelf;
use crate::store::Store;
use crate::thread::Part;

pub(super) fn fork(store: &Store, request: Request) -> Result<(), CliError> {
    let at = request.option("at").map(|at| {
        let part = at.to_str().and_then(|at| at.parse::<Part>().ok()).filter(|part| part.part.is_none());
        part.map(|part| part.entry)
            .ok_or_else(|| CliError::usage(format!("{at:?} names no entry: it is e12")))
    });
    let at = at.transpose()?;
    let forked = shelf::fork(store, &find(store, &request.id)?, at)?;
    if request.has("json") {
        return print_json(&forked);
    }
    eprintln!("session {} goes on from {} at {}", forked.session, forked.from, forked.at);
    terminal::print(&format!("{}\n", forked.session))
}

/// A prompt of the session itself, which knows how to be renamed wherever it lives.
pub(super) fn rename(paths: &Paths, request: Request) -> Result<i32, CliError> {
    let title: Vec<String> = request.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let session = find(&Store::new(paths), &request.id)?;
    let prompt = format!("/rename {}", title.join(" "));
    run::main(["--resume".to_owned(), session.0, prompt].into_iter().map(OsString::from).collect())
}

pub(super) fn undo(paths: &Paths, request: Request) -> Result<i32, CliError> {
    let session = find(&Store::new(paths), &request.id)?;
    let arguments = ["--resume".to_owned(), session.0].into_iter().map(OsString::from);
    run::own("undo", arguments.chain(request.words).collect())
}

pub(super) fn delete(store: &Store, request: Request) -> Result<(), CliError> {
    let session = find(store, &request.id)?;
    if !request.has("yes") {
        let Some(mut keyboard) = terminal::keyboard() else {
            let hint = Some("--yes deletes without asking".to_owned());
            return Err(CliError::failed("nobody is there to be asked whether to delete", hint));
        };
        let question = format!("Delete {session} and all that was said in it?");
        if !terminal::confirm(&mut *keyboard, &question) {
            return Err(CliError::failed(format!("{session} was not deleted"), None));
        }
    }
    store.delete(&session).map_err(shelf::ShelfError::from)?;
    eprintln!("deleted {session}");
    Ok(())
}
