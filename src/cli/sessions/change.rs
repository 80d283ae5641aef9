//! `epitome sessions fork`, `rename`, `undo` and `delete`.

use std::ffi::{OsStr, OsString};

use serde_json::{Value, json};

use super::{Request, named, print_json};
use crate::cli::{CliError, methods, run, terminal};
use crate::paths::Paths;
use crate::thread::{Part, Seq};

pub(super) fn fork(paths: &Paths, request: Request) -> Result<i32, CliError> {
    let at = request.option("at").map(|at| entry(at)).transpose()?;
    let mut params = json!({ "session": request.id });
    if let Some(at) = at {
        params["entry"] = json!(at);
    }
    let forked = methods::call(paths, "sessions.fork", params)?;
    let text = |field: &str| forked[field].as_str().unwrap_or_default();
    let at = text("entry").parse::<Part>().ok().map(|part| part.entry);
    if request.has("json") {
        let (cwd, title) = (&forked["cwd"], &forked["title"]);
        let (session, from) = (&forked["session"], &forked["from"]);
        return print_json(
            &json!({ "session": session, "from": from, "at": at, "title": title, "cwd": cwd }),
        )
        .map(|()| 0);
    }
    eprintln!("session {} goes on from {} at {}", text("session"), text("from"), text("entry"));
    terminal::print(&format!("{}\n", text("session"))).map(|()| 0)
}

/// An entry as a person types it.
fn entry(typed: &OsStr) -> Result<Seq, CliError> {
    let part = typed.to_str().and_then(|typed| typed.parse::<Part>().ok()).filter(|part| part.part.is_none());
    part.map(|part| part.entry).ok_or_else(|| CliError::usage(format!("{typed:?} names no entry: it is e12")))
}

/// Rename, undo and redo are prompts of the session itself, which knows how to do them wherever it lives.
pub(super) fn own(paths: &Paths, request: Request) -> Result<i32, CliError> {
    let session = named(paths, &request.id)?;
    let mut arguments: Vec<OsString> = vec!["--resume".into(), session.0.into()];
    arguments.extend(request.has("json").then(|| "--json".into()));
    // A title may begin with a hyphen.
    arguments.push("--".into());
    arguments.extend(request.words);
    run::own(request.verb.name, arguments)
}

pub(super) fn rewind(paths: &Paths, request: Request) -> Result<i32, CliError> {
    let mut params = json!({
        "session": request.id, "dry_run": request.has("dry-run"), "force": request.has("force"),
        "undo": request.has("undo"),
    });
    if let Some(word) = request.words.first() {
        params["entry"] = json!(entry(word)?);
    }
    match (request.has("files"), request.has("conversation")) {
        (true, true) | (false, false) => {}
        (true, false) => params["scope"] = json!("files"),
        (false, true) => params["scope"] = json!("conversation"),
    }
    let done = methods::call(paths, "sessions.rewind", params)?;
    tell(&request, &done, "rewind")
}

pub(super) fn checkpoints(paths: &Paths, request: Request) -> Result<i32, CliError> {
    let listed = methods::call(paths, "sessions.checkpoints", json!({ "session": request.id }))?;
    tell(&request, &listed, "checkpoints")
}

/// Prints what a command came to; the exit code says whether it was refused.
fn tell(request: &Request, done: &Value, command: &str) -> Result<i32, CliError> {
    let told = &done["outcome"][command];
    match request.has("json") {
        true => print_json(told)?,
        false => terminal::print(&format!("{}\n", told["text"].as_str().unwrap_or_default().trim_end()))?,
    }
    Ok(i32::from(told["status"] == "refused"))
}

pub(super) fn delete(paths: &Paths, request: Request) -> Result<i32, CliError> {
    let session = named(paths, &request.id)?;
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
    let deleted = methods::call(paths, "sessions.delete", json!({ "session": session }))?;
    if request.has("json") {
        return print_json(&deleted).map(|()| 0);
    }
    eprintln!("deleted {session}");
    Ok(0)
}
