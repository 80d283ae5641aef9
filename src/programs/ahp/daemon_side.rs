//! The host's side to the daemon: updates and requests of sessions, and answers to the host's own requests.

use agent_client_protocol::v2::schema as wire;
use ahp::ahp_types::common::ROOT_RESOURCE_URI;
use ahp::ahp_types::state::SessionStatus;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::agent::AgentRequest;
use super::failure::{failure, words};
use super::host::{AhpHost, FrameSink, ListedSession};
use super::session::SharedSession;
use super::snapshots::PendingSnapshot;
use super::uri;
use epitome_client::{LinkMessage, cancelled};

/// Pages of the daemon's list that are searched for a session.
const PAGES_MAX: usize = 200;

impl<S: FrameSink> AhpHost<S> {
    /// Handles a line of the daemon.
    pub fn line(&mut self, line: &[u8], now: Timestamp) {
        match self.agent.receive(line) {
            Ok(LinkMessage::Answer(pending, result)) => self.answered(pending, result.as_ref(), now),
            Ok(LinkMessage::Notification { method, params }) => self.notified(&method, &params, now),
            Ok(LinkMessage::Request { id, method, params }) => self.asked(&id, &method, &params, now),
            Ok(LinkMessage::Nothing) => {}
            Err(error) => tracing::error!(%error, "a line of the daemon can't be read"),
        }
    }

    fn notified(&mut self, method: &str, params: &Value, now: Timestamp) {
        match method {
            "session/update" => {
                let id = params["sessionId"].as_str().unwrap_or_default();
                let update = &params["update"];
                if let Some(session) = self.subagents.get(id).cloned() {
                    self.change(&session, |session| session.update_of_subagent(update, now));
                } else if let Some(session) = self.addresses.get(id).cloned() {
                    self.note_models(update);
                    self.note_subagent(&session, update);
                    self.change_and_go_on(&session, now, |session| session.update(update, now));
                }
            }
            "$/cancel_request" => {
                let request = &params["requestId"];
                if self.sessions.values_mut().any(|open| open.session.withdraw(request)) {
                    self.agent.answer(request, &cancelled());
                }
            }
            _ => {}
        }
    }

    fn asked(&mut self, id: &Value, method: &str, params: &Value, now: Timestamp) {
        if method != "session/request_permission" {
            return self.agent.refuse(id, "not supported");
        }
        let name = params["sessionId"].as_str().unwrap_or_default();
        let session = self.subagents.get(name).or(self.addresses.get(name)).cloned();
        let asks = |session: &mut SharedSession| session.ask(id.clone(), params, now);
        if session.and_then(|session| self.change(&session, asks)) != Some(true) {
            self.agent.refuse(id, "no client of this host can be asked");
        }
    }

    /// Changes a session, and begins its next turn if it can.
    fn change_and_go_on(&mut self, session: &str, now: Timestamp, change: impl FnOnce(&mut SharedSession)) {
        let command = self.change(session, |session| {
            change(session);
            session.next_queued(now)
        });
        if let Some(command) = command.flatten() {
            self.execute(session, command);
        }
    }

    /// Takes the models from an answer or an update with options.
    fn note_models(&mut self, from: &Value) {
        if self.models.update(&from["configOptions"]) {
            let action = json!({ "type": "root/agentsChanged", "agents": self.models.agents() });
            self.change_root(action);
        }
    }

    /// A subagent shows only its questions and the calls that they are about, in the turn of its session.
    fn note_subagent(&mut self, session: &str, update: &Value) {
        let Some(id) = update["sessionId"].as_str().filter(|_| update["sessionUpdate"] == "subagent_update")
        else {
            return;
        };
        if update["state"]["state"] == "idle" {
            self.subagents.remove(id);
        } else {
            self.subagents.insert(id.to_owned(), session.to_owned());
        }
    }

    fn answered(&mut self, pending: AgentRequest, result: Result<&Value, &Value>, now: Timestamp) {
        match pending {
            AgentRequest::Create { session } => {
                let id = result.map(|result| result["sessionId"].as_str().unwrap_or_default().to_owned());
                if let Ok(id) = &id {
                    self.addresses.insert(id.clone(), session.clone());
                }
                // A new session's options contain the models that were listed since.
                if let Ok(result) = result {
                    self.note_models(result);
                }
                self.change(&session, |session| session.created(id.map_err(words)));
            }
            AgentRequest::Open { session } => self.opened(&session, result.is_ok()),
            AgentRequest::Find { session } => self.found(&session, result),
            AgentRequest::List { client, id } => {
                let result = result.map(|page| self.page(page)).map_err(failure);
                self.reply(client, &id, result);
            }
            AgentRequest::Archive { client, id, session } => {
                if result.is_ok() {
                    self.removed(&session);
                }
                self.reply(client, &id, result.map(|_| Value::Null).map_err(failure));
            }
            AgentRequest::Prompt { session, turn } => {
                let answered = |session: &mut SharedSession| {
                    session.prompted(turn.as_deref(), result.map(|_| ()), now);
                };
                self.change_and_go_on(&session, now, answered);
            }
            AgentRequest::Models => {
                if let Ok(result) = result {
                    self.note_models(result);
                }
            }
            AgentRequest::Nothing(what) => {
                if let Err(error) = result {
                    tracing::warn!(%error, what);
                }
            }
        }
    }

    /// A session has been shown, or can't be.
    fn opened(&mut self, address: &str, is_open: bool) {
        match self.sessions.get_mut(address) {
            Some(open) if is_open => {
                // The applied actions are in the state that clients are sent.
                drop(open.session.take_applied());
                open.session.work.replaying = false;
                open.announced = Some(open.session.summary());
                open.opened_at = self.log.last();
            }
            Some(_) | None => {
                self.sessions.remove(address);
            }
        }
        let ready = self.waiting.extract_if(.., |waiting| {
            waiting.opening.remove(address);
            waiting.opening.is_empty()
        });
        let ready: Vec<PendingSnapshot> = ready.collect();
        ready.into_iter().for_each(|waiting| self.answer(waiting));
    }

    /// A page of the daemon's list, which may contain a session that is to be opened.
    fn found(&mut self, address: &str, result: Result<&Value, &Value>) {
        if let Ok(page) = result {
            self.page(page);
        }
        let Some(open) = self.sessions.get_mut(address) else { return };
        open.pages += 1;
        let is_listed = open.session.agent_id.as_ref().is_some_and(|id| self.listed.contains_key(id));
        let next = result.ok().and_then(|page| page["nextCursor"].as_str());
        match next {
            _ if is_listed => self.resume(address),
            Some(cursor) if open.pages < PAGES_MAX => {
                let pending = AgentRequest::Find { session: address.to_owned() };
                let params = wire::ListSessionsRequest::new().cursor(wire::SessionListCursor::new(cursor));
                self.agent.request("session/list", &params, pending);
            }
            Some(_) | None => self.opened(address, false),
        }
    }

    /// Translates a page of the daemon's list, and notes its sessions.
    fn page(&mut self, page: &Value) -> Value {
        let mut items = Vec::new();
        for info in page["sessions"].as_array().into_iter().flatten() {
            let text = |name: &str| info[name].as_str().unwrap_or_default().to_owned();
            let id = text("sessionId");
            let address = self.addresses.get(&id).cloned().unwrap_or_else(|| uri::of_session(&id));
            let listed =
                ListedSession { directory: text("cwd"), title: text("title"), updated_at: text("updatedAt") };
            items.push(match self.open_session(&address) {
                Some(session) => session.summary(),
                None => {
                    let mut summary = listed.session(address).summary();
                    // Messages that arrived while no client followed the session do not make it unread.
                    summary.status |= SessionStatus::IsRead.bits();
                    summary
                }
            });
            self.listed.insert(id, listed);
        }
        let mut result = json!({ "items": items });
        if page["nextCursor"].is_string() {
            result["nextCursor"] = page["nextCursor"].clone();
        }
        result
    }

    fn removed(&mut self, address: &str) {
        self.sessions.remove(address);
        self.addresses.retain(|_, known| known != address);
        let params = json!({ "channel": ROOT_RESOURCE_URI, "session": address });
        self.broadcast(ROOT_RESOURCE_URI, "root/sessionRemoved", &params);
    }
}
