//! Methods about sessions that send no command: listing, showing, cancelling, deleting.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::fault::{Fault, FaultKind};
use super::params::{EntryName, SessionName, SessionParams, spawn_blocking};
use super::{MethodResult, MethodTable, fields};
use crate::Daemon;
use crate::attachments::Attached;
use crate::inspect::timeline::model_of;
use epitome_config::Settings;
use epitome_provider::spent::Spent;
use epitome_session::port::{SessionPort as _, StoredSessionPort as _};
use epitome_session::registry::LiveSession;
use epitome_session::worktree;
use epitome_session::{SessionCommand, SessionError};
use epitome_session_library as session_library;
use epitome_store::{Header, SessionQuery};
use epitome_thread::text::rounded_dollars;
use epitome_thread::{Seq, SessionId, Thread};
use epitome_tokens::Ruler;
use epitome_transfer as transfer;

/// Entries returned by one call by default, and at most.
const ENTRIES_DEFAULT: usize = 100;
const ENTRIES_MAX: usize = 1000;

pub(super) fn register(table: &mut MethodTable) {
    table.blocking("sessions.list", list);
    table.blocking("sessions.show", show);
    table.blocking("sessions.entries", entries);
    // Not `blocking`: a turn can be cancelled even if the disk hangs.
    table.waiting("sessions.cancel", |daemon, wanted, _| cancel(daemon, wanted));
    table.waiting("sessions.delete", |daemon, wanted, _| delete(daemon, wanted));
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListParams {
    /// Only sessions of this directory.
    cwd: Option<PathBuf>,
    /// Include sessions without a prompt.
    #[serde(default)]
    all: bool,
    /// Only so many, the newest.
    limit: Option<usize>,
    /// Only sessions that are listed behind this one.
    after: Option<ListPosition>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListPosition {
    session: SessionId,
    updated_at: u64,
}

fn list(daemon: &Arc<Daemon>, wanted: ListParams) -> MethodResult {
    let ListParams { cwd, all, limit, after } = wanted;
    let query = SessionQuery {
        cwd,
        has_prompt: !all,
        // One more shows whether there are more.
        limit: limit.map(|limit| limit.saturating_add(1)),
        after: after.map(|after| (after.updated_at, after.session)),
        ..SessionQuery::default()
    };
    let mut listed = session_library::list(&daemon.store, &query)?;
    let more = limit.is_some_and(|limit| listed.sessions.len() > limit);
    listed.sessions.truncate(limit.unwrap_or(usize::MAX));
    let live = LiveNow::of(daemon);
    let sessions: Vec<Value> =
        listed.sessions.iter().map(|header| Value::Object(header_json(header, &live))).collect();
    let problems: Vec<Value> = listed
        .problems
        .iter()
        .map(|unlisted| json!({ "session": unlisted.session, "message": unlisted.problem }))
        .collect();
    Ok(json!({ "sessions": sessions, "more": more, "problems": problems }))
}

/// The sessions in memory and the connected clients.
struct LiveNow {
    sessions: Vec<LiveSession>,
    clients: Vec<(Attached, Option<String>)>,
}

impl LiveNow {
    fn of(daemon: &Daemon) -> LiveNow {
        let clients = daemon.attachments.list().into_iter().map(|(attached, (_, name))| (attached, name));
        LiveNow { sessions: daemon.sessions.live_sessions(), clients: clients.collect() }
    }

    /// The clients that have a session open.
    fn present(&self, live: &LiveSession) -> Vec<Value> {
        let is_here =
            |(attached, _): &&(Attached, Option<String>)| live.client_ids.contains(&attached.client);
        let described = |(attached, name): &(Attached, Option<String>)| {
            let grant = attached.grant.as_ref();
            json!({
                "client": attached.client, "name": name, "token": grant.map(|grant| &grant.name),
                "scope": grant.map(|grant| grant.scope.name()),
            })
        };
        self.clients.iter().filter(is_here).map(described).collect()
    }
}

fn header_json(header: &Header, now: &LiveNow) -> Map<String, Value> {
    let live = now.sessions.iter().find(|live| live.session == header.session);
    let mut fields = fields(json!({
        "session": header.session, "cwd": header.cwd, "worktree": worktree::name_of(&header.cwd), "title": header.title, "model": header.model,
        "created_at": header.created_at, "updated_at": header.updated_at,
        "entries": header.entries, "turns": header.turns,
        "forked_from": header.forked.as_ref().map(|origin| json!({
            "session": origin.session, "entry": origin.at.to_string(),
        })),
        "live": live.is_some(),
        "running": live.is_some_and(|live| live.running),
        "clients": live.map_or(0, |live| live.clients),
        "watchers": live.map_or(0, |live| live.watchers),
        "present": live.map_or_else(Vec::new, |live| now.present(live)),
    }));
    if header.lost > 0 {
        fields.insert("lost".to_owned(), json!(header.lost));
    }
    fields
}

/// Folds the readable part of a session's log, and describes the damage to the rest, if any.
pub fn fold(daemon: &Daemon, session: &SessionId) -> Result<(Thread, Option<String>), Fault> {
    let (thread, damage) = daemon.store.thread(session)?;
    Ok((thread, damage.map(|damage| damage.to_string())))
}

fn show(daemon: &Arc<Daemon>, wanted: SessionParams) -> MethodResult {
    let session = wanted.session.find(daemon)?;
    let (thread, damage) = fold(daemon, &session)?;
    let mut header = None;
    for entry in thread.entries() {
        match &mut header {
            None => header = Header::opened(entry),
            Some(header) => header.apply(entry),
        }
    }
    let header =
        header.ok_or_else(|| Fault::new(FaultKind::Store, format!("session {session} has no opening")))?;
    let mut shown = header_json(&header, &LiveNow::of(daemon));
    // Problems in the settings are reported by commands that act on them.
    let (settings, _) = Settings::load(&daemon.paths, Some(thread.cwd()), |name| std::env::var_os(name));
    let spent = Spent::total(&settings, &thread);
    let mut in_view: Vec<String> =
        thread.view().entries().iter().map(|entry| entry.seq.to_string()).collect();
    // The messages of a history replaced by a hook share one entry.
    in_view.dedup();
    let layers: Vec<Value> = thread
        .layers()
        .iter()
        .map(|layer| {
            // Entry numbers are indices.
            let kind = thread.entries().get(layer.entry.0 as usize).map(|entry| entry.change.kind());
            json!({
                "entry": layer.entry.to_string(), "kind": kind, "holds": layer.holds,
                "inside": layer.inside.map(|outer| outer.to_string()),
            })
        })
        .collect();
    shown.extend(fields(json!({
        "mode": thread.mode(), "goal": thread.goal(), "plan": thread.plan(),
        "in_view": in_view, "layers": layers, "counts": counts(&thread),
        "context_tokens": Ruler::for_model(model_of(&thread)).in_context(&thread),
        "usage": spent.usage, "cost": spent.cost.map(rounded_dollars), "damage": damage,
    })));
    Ok(Value::Object(shown))
}

/// Counts the entries of a log by kind.
fn counts(thread: &Thread) -> Map<String, Value> {
    let mut counts: Map<String, Value> = Map::new();
    for entry in thread.entries() {
        let count = counts.entry(entry.change.kind()).or_insert_with(|| json!(0));
        *count = json!(count.as_u64().unwrap_or_default() + 1);
    }
    counts
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadParams {
    session: SessionName,
    from: Option<EntryName>,
    limit: Option<usize>,
}

fn entries(daemon: &Arc<Daemon>, wanted: ReadParams) -> MethodResult {
    let session = wanted.session.find(daemon)?;
    let limit = wanted.limit.unwrap_or(ENTRIES_DEFAULT);
    if limit == 0 || limit > ENTRIES_MAX {
        let message = format!("sessions.entries: `limit` is from 1 to {ENTRIES_MAX}");
        return Err(Fault::new(FaultKind::InvalidParams, message));
    }
    let (thread, damage) = fold(daemon, &session)?;
    let entries = thread.entries();
    let mut rest = entries.since(wanted.from.map_or(Seq(0), |from| from.0));
    let part: Vec<_> = rest.by_ref().take(limit).collect();
    let next = rest.next().map(|entry| entry.seq.to_string());
    let part =
        part.into_iter().map(|entry| transfer::entry_json(&session, entry)).collect::<Result<Vec<_>, _>>();
    let part = part.map_err(|error| Fault::new(FaultKind::Internal, error.to_string()))?;
    Ok(json!({
        "session": session, "entries": part, "next": next, "total": entries.len(), "damage": damage,
    }))
}

async fn cancel(daemon: Arc<Daemon>, wanted: SessionParams) -> MethodResult {
    let session = wanted.session.find_blocking(&daemon).await?;
    let running = daemon.sessions.live_sessions().iter().any(|live| live.session == session && live.running);
    match daemon.sessions.send(&session, SessionCommand::Cancel) {
        Ok(()) => Ok(json!({ "session": session, "cancelled": running })),
        // The session is not live, so there is nothing to cancel; only check that it exists.
        Err(SessionError::NotFound(_)) => {
            let (store, name) = (daemon.store.clone(), session.clone());
            spawn_blocking(&daemon, move || Ok(store.read_with_damage(&name)?)).await?;
            Ok(json!({ "session": session, "cancelled": false }))
        }
        Err(error) => Err(error.into()),
    }
}

async fn delete(daemon: Arc<Daemon>, wanted: SessionParams) -> MethodResult {
    let session = wanted.session.find_blocking(&daemon).await?;
    let (store, name) = (daemon.store.clone(), session.clone());
    let known = spawn_blocking(&daemon, move || Ok(store.read_with_damage(&name))).await?;
    if let Err(error @ epitome_store::StoreError::NotFound(_)) = known {
        return Err(error.into());
    }
    daemon.sessions.delete(&session).await?;
    Ok(json!({ "session": session, "deleted": true }))
}
