//! Methods that act as a client of a session: commands, choices, titles. Each call attaches as its own client and
//! detaches with its answer.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::fault::{Fault, FaultKind};
use super::params::{EntryName, EnvironmentObject, SessionName, SessionParams};
use super::temporary_client::TemporaryClient;
use super::wire::Caller;
use super::{MethodResult, MethodTable, json_of};
use crate::Daemon;
use epitome_session::{SessionAnswer, SessionCommand};
use epitome_thread::{Content, Mode};

pub(super) fn register(table: &mut MethodTable) {
    table.waiting("sessions.compact", compact);
    table.waiting("sessions.undo", |daemon, params, caller| layer("undo", daemon, params, caller));
    table.waiting("sessions.redo", |daemon, params, caller| layer("redo", daemon, params, caller));
    table.waiting("sessions.rewind", rewind);
    table.waiting("sessions.checkpoints", checkpoints);
    table.waiting("sessions.set", |daemon, params, _| set(daemon, params));
    table.waiting("sessions.rename", rename);
}

/// Sends a command and reports how its turn ended.
async fn say(visit: &mut TemporaryClient, content: Vec<Content>) -> MethodResult {
    let (answer, text) = visit.prompt(content).await?;
    let SessionAnswer::TurnEnded { reason, usage, meta } = answer else {
        return Err(Fault::new(FaultKind::Internal, "the answer is not that of a prompt"));
    };
    let outcome = meta.and_then(|mut meta| meta.get_mut("epitome").map(Value::take));
    Ok(json!({
        "session": visit.session, "reason": reason, "text": text, "usage": usage, "outcome": outcome,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CompactParams {
    session: SessionName,
    /// The topics that the summary must preserve.
    focus: Option<String>,
    /// Everything from this entry on is kept.
    above: Option<EntryName>,
    #[serde(default)]
    dry_run: bool,
    environment: Option<EnvironmentObject>,
}

async fn compact(daemon: Arc<Daemon>, params: CompactParams, caller: Caller) -> MethodResult {
    let mut words = vec!["/compact".to_owned()];
    if params.dry_run {
        words.push("dry".to_owned());
    }
    if let Some(EntryName(entry)) = params.above {
        words.push(format!("above {entry}"));
    }
    if let Some(focus) = params.focus {
        // These words would be parsed as options of `/compact`.
        if matches!(focus.split_whitespace().next(), Some("dry" | "above")) {
            let message = "sessions.compact: `focus` can't begin with \"dry\" or \"above\"";
            return Err(Fault::new(FaultKind::InvalidParams, message).hint("begin it with another word"));
        }
        words.push(focus);
    }
    command(daemon, params.session, words.join(" "), params.environment, caller).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerParams {
    session: SessionName,
    entry: Option<EntryName>,
}

async fn layer(way: &'static str, daemon: Arc<Daemon>, params: LayerParams, caller: Caller) -> MethodResult {
    let text = match params.entry {
        Some(EntryName(entry)) => format!("/{way} {entry}"),
        None => format!("/{way}"),
    };
    command(daemon, params.session, text, None, caller).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RewindParams {
    session: SessionName,
    /// An entry of the first turn to undo; everything after that turn is undone as well. Defaults to the last
    /// turn.
    entry: Option<EntryName>,
    #[serde(default)]
    scope: RewindScope,
    #[serde(default)]
    dry_run: bool,
    /// Also revert files that something else has changed since.
    #[serde(default)]
    force: bool,
    /// Undo the last rewind instead.
    #[serde(default)]
    undo: bool,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RewindScope {
    #[default]
    Both,
    Files,
    Conversation,
}

async fn rewind(daemon: Arc<Daemon>, params: RewindParams, caller: Caller) -> MethodResult {
    let mut words = vec!["/rewind".to_owned()];
    words.extend(params.entry.map(|EntryName(entry)| entry.to_string()));
    words.extend(match params.scope {
        RewindScope::Both => None,
        RewindScope::Files => Some("files".to_owned()),
        RewindScope::Conversation => Some("conversation".to_owned()),
    });
    for (word, is_given) in [("dry", params.dry_run), ("force", params.force), ("undo", params.undo)] {
        words.extend(is_given.then(|| word.to_owned()));
    }
    command(daemon, params.session, words.join(" "), None, caller).await
}

async fn checkpoints(daemon: Arc<Daemon>, params: SessionParams, caller: Caller) -> MethodResult {
    command(daemon, params.session, "/checkpoints".to_owned(), None, caller).await
}

/// Runs a slash command in a session, as if the user had typed it.
async fn command(
    daemon: Arc<Daemon>,
    session: SessionName,
    text: String,
    environment: Option<EnvironmentObject>,
    caller: Caller,
) -> MethodResult {
    let room = caller.room()?;
    let session = session.find_blocking(&daemon).await?;
    let mut visit = TemporaryClient::to(&daemon, session, environment).await?;
    let said = say(&mut visit, vec![Content::Text { text }]).await;
    drop(room);
    said
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChooseParams {
    session: SessionName,
    mode: Option<Mode>,
    model: Option<String>,
    thought_level: Option<String>,
    environment: Option<EnvironmentObject>,
}

async fn set(daemon: Arc<Daemon>, params: ChooseParams) -> MethodResult {
    let session = params.session.find_blocking(&daemon).await?;
    let choices = [
        ("mode", params.mode.map(|mode| mode.id().to_owned())),
        ("model", params.model),
        ("thought_level", params.thought_level),
    ];
    if choices.iter().all(|(_, value)| value.is_none()) {
        let message = "sessions.set: nothing is chosen: give `mode`, `model` or `thought_level`";
        return Err(Fault::new(FaultKind::InvalidParams, message));
    }
    let mut visit = TemporaryClient::to(&daemon, session, params.environment).await?;
    let mut options = Value::Null;
    for (option, value) in choices {
        let Some(value) = value else { continue };
        let option = option.to_owned();
        let answer =
            visit.ask(|ticket, client| SessionCommand::SetOption { ticket, client, option, value }).await?;
        if let SessionAnswer::Options(now) = answer {
            options = json_of(&*now)?;
        }
    }
    Ok(json!({ "session": visit.session, "options": options }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RenameParams {
    session: SessionName,
    title: String,
}

async fn rename(daemon: Arc<Daemon>, params: RenameParams, caller: Caller) -> MethodResult {
    command(daemon, params.session, format!("/rename {}", params.title.trim()), None, caller).await
}
