//! Methods used by the inspect page: a session's timeline, one entry, and a link to the page.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;

use super::fault::{Fault, FaultKind};
use super::params::{EntryName, SessionName, SessionParams};
use super::{MethodResult, MethodTable, json_of};
use crate::Daemon;
use crate::inspect::read;

pub(super) fn register(table: &mut MethodTable) {
    table.blocking("sessions.timeline", timeline);
    table.blocking("sessions.entry", entry);
    table.waiting("inspect.open", |daemon, params, _| open(daemon, params));
}

fn timeline(daemon: &Arc<Daemon>, wanted: SessionParams) -> MethodResult {
    json_of(&read::timeline(daemon, &wanted.session.find(daemon)?)?)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryParams {
    session: SessionName,
    entry: EntryName,
}

fn entry(daemon: &Arc<Daemon>, wanted: EntryParams) -> MethodResult {
    json_of(&read::entry(daemon, &wanted.session.find(daemon)?, wanted.entry.0)?)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InspectParams {
    /// The session to show; the list of all sessions if absent.
    session: Option<SessionName>,
}

async fn open(daemon: Arc<Daemon>, wanted: InspectParams) -> MethodResult {
    // The page shows the context window that a session uses, including one that only an earlier process
    // learned.
    daemon.sessions.services().recall().await;
    let session = match wanted.session {
        None => None,
        Some(name) => Some(name.find_blocking(&daemon).await?),
    };
    let url = daemon
        .inspect
        .open(&daemon, session.as_ref())
        .map_err(|error| Fault::new(FaultKind::Internal, format!("the page can't be served: {error}")))?;
    Ok(json!({ "url": url }))
}
