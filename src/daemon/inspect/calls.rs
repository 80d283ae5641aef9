//! The door to a daemon: what the page calls, and the sessions that it follows.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use super::news::Gathered;
use super::server::{Door, Following};
use super::{entry, read};
use crate::daemon::Daemon;
use crate::daemon::attachments::fresh_client;
use crate::session::{Attachment, ClientId, SessionError};
use crate::thread::{Seq, SessionId};

/// A daemon, for its own page.
pub struct Inside(pub Arc<Daemon>);

/// A call as it comes.
#[derive(Deserialize)]
struct Call {
    #[serde(default)]
    id: Value,
    method: String,
    #[serde(default)]
    params: Params,
}

#[derive(Default, Deserialize)]
struct Params {
    session: Option<SessionId>,
    entry: Option<String>,
}

impl Door for Inside {
    fn answer(&self, call: String) -> BoxFuture<'_, String> {
        let daemon = self.0.clone();
        async move {
            let answered = tokio::task::spawn_blocking(move || answer(&daemon, &call)).await;
            answered.unwrap_or_else(|_| failed(&Value::Null, "the call could not be answered"))
        }
        .boxed()
    }

    fn follow(&self, session: &SessionId, from: Seq) -> Result<Following, String> {
        let news = Arc::<Gathered>::default();
        let client = fresh_client();
        let attachment = Attachment { client, outlet: news.clone() };
        let end = Box::new(Unwatch { daemon: self.0.clone(), client });
        self.0.sessions.watch(session, from, attachment).map_err(|error| error.to_string())?;
        Ok(Following { news, end })
    }
}

/// Ends the following of a session when it is dropped.
struct Unwatch {
    daemon: Arc<Daemon>,
    client: ClientId,
}

impl Drop for Unwatch {
    fn drop(&mut self) {
        self.daemon.sessions.unwatch(self.client);
    }
}

fn answer(daemon: &Daemon, call: &str) -> String {
    let Call { id, method, params } = match serde_json::from_str(call) {
        Ok(call) => call,
        Err(error) => return failed(&Value::Null, &error.to_string()),
    };
    let named = params.session.ok_or_else(|| SessionError::Invalid(format!("{method} needs a session")));
    let result = match method.as_str() {
        "sessions.list" => list(daemon),
        "sessions.timeline" => named.and_then(|session| json_of(&read::timeline(daemon, &session)?)),
        "sessions.entry" => named.and_then(|session| {
            let seq = params.entry.as_deref().and_then(entry::named);
            let seq = seq.ok_or_else(|| SessionError::Invalid("an entry is named as e12".to_owned()))?;
            json_of(&read::entry(daemon, &session, seq)?)
        }),
        other => Err(SessionError::Invalid(format!("there is no method {other}"))),
    };
    match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string(),
        Err(error) => failed(&id, &error.to_string()),
    }
}

fn list(daemon: &Daemon) -> Result<Value, SessionError> {
    let headers = daemon.sessions.list(None)?;
    let live = daemon.sessions.live_sessions();
    let sessions: Vec<Value> = headers
        .iter()
        .map(|header| {
            let live = live.iter().find(|live| live.session == header.session);
            json!({
                "session": header.session, "cwd": header.cwd, "title": header.title, "model": header.model,
                "updated_at": header.updated_at, "turns": header.turns, "live": live.is_some(),
                "running": live.is_some_and(|live| live.running),
            })
        })
        .collect();
    Ok(json!({ "sessions": sessions }))
}

fn json_of(value: &impl serde::Serialize) -> Result<Value, SessionError> {
    serde_json::to_value(value).map_err(|error| SessionError::Internal(error.to_string()))
}

fn failed(id: &Value, sentence: &str) -> String {
    let error = json!({ "code": -32_000, "message": sentence, "data": { "hint": null } });
    json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string()
}
