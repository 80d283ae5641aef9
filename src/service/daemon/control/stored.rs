//! Methods that work on stored sessions without opening them: search, fork, export, import.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;

use super::fault::{Fault, FaultKind};
use super::params::{EntryName, SessionName, directory};
use super::{MethodResult, MethodTable, json_of};
use crate::Daemon;
use epitome_session_library::{
    self as session_library, ExportFormat, Exported, ImportRequest, SearchRequest, read_by_helper,
};

pub(super) fn register(table: &mut MethodTable) {
    table.blocking("sessions.search", search);
    table.blocking("sessions.fork", fork);
    table.blocking("sessions.export", export);
    table.blocking("sessions.import", import);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchParams {
    text: String,
    /// Whether the text is a regular expression.
    #[serde(default)]
    regex: bool,
    cwd: Option<PathBuf>,
    /// Maximum number of sessions returned.
    limit: Option<usize>,
}

fn search(daemon: &Arc<Daemon>, wanted: SearchParams) -> MethodResult {
    let SearchParams { text, regex, cwd, limit } = wanted;
    let cwd = cwd.map(directory).transpose()?;
    let ask = SearchRequest { words: &text, is_regex: regex, cwd: cwd.as_deref(), limit };
    json_of(&session_library::search(&daemon.store, &ask)?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForkParams {
    session: SessionName,
    /// The last entry included in the fork.
    entry: Option<EntryName>,
}

fn fork(daemon: &Arc<Daemon>, wanted: ForkParams) -> MethodResult {
    let session = wanted.session.find(daemon)?;
    let forked = session_library::fork(&daemon.store, &session, wanted.entry.map(|entry| entry.0))?;
    Ok(json!({
        "session": forked.session, "from": forked.from, "entry": forked.at.to_string(), "title": forked.title,
        "cwd": forked.cwd,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportParams {
    session: SessionName,
    #[serde(default)]
    format: ExportFormat,
    /// File to write; an existing file is not overwritten.
    file: Option<PathBuf>,
}

fn export(daemon: &Arc<Daemon>, wanted: ExportParams) -> MethodResult {
    let session = wanted.session.find(daemon)?;
    let Exported { text, damage } = session_library::export(&daemon.store, &session, wanted.format)?;
    let (format, damage) = (wanted.format.id(), damage.map(|damage| damage.to_string()));
    let Some(file) = wanted.file else {
        return Ok(json!({ "session": session, "format": format, "text": text, "damage": damage }));
    };
    let file = directory(file)?;
    session_library::write_new(&file, &text).map_err(|error| {
        Fault::new(FaultKind::Store, format!("{} can't be written: {error}", file.display()))
    })?;
    Ok(json!({
        "session": session, "format": format, "file": file, "bytes": text.len(), "damage": damage,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImportParams {
    files: Vec<PathBuf>,
    /// Working directory of conversations that record none.
    cwd: PathBuf,
    /// Whether sessions keep their original id.
    #[serde(default)]
    keep_id: bool,
    /// Whether sessions of other agents that were imported before are imported again.
    #[serde(default)]
    again: bool,
}

fn import(daemon: &Arc<Daemon>, wanted: ImportParams) -> MethodResult {
    let cwd = directory(wanted.cwd)?;
    let files = wanted.files.into_iter().map(directory).collect::<Result<Vec<_>, _>>()?;
    let ask = ImportRequest {
        files: &files,
        cwd: &cwd,
        keep_id: wanted.keep_id,
        again: wanted.again,
        reader: &read_by_helper,
    };
    Ok(json!({ "sessions": json_of(&session_library::import(&daemon.store, &ask)?)? }))
}
