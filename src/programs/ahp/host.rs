//! The host: its clients, what they follow, and the sessions that are open. No I/O.

use std::collections::HashMap;
use std::path::PathBuf;

use agent_client_protocol::v2::schema as wire;
use ahp::ahp_types::actions::ActionOrigin;
use ahp::ahp_types::commands::{
    CreateSessionParams, DispatchActionParams, InitializeParams, ListSessionsParams, ReconnectParams,
    SubscribeParams, UnsubscribeParams,
};
use ahp::ahp_types::common::ROOT_RESOURCE_URI;
use ahp::ahp_types::errors::{ahp_error_codes, json_rpc_error_codes};
use ahp::ahp_types::state::{SessionActiveClient, SessionLifecycle, SessionSummary};
use ahp::ahp_types::version::negotiate_protocol_version;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::agent::AgentRequest;
pub use super::clients::FrameSink;
use super::clients::{AhpClients, notification, response};
use super::failure::{RequestFailure, invalid, misplaced, not_found, read, too_many, unsupported_version};
use super::log::ActionLog;
use super::messages::of_form;
use super::models::{AgentModels, MODEL};
use super::session::{AgentCommand, PROVIDER, SharedSession};
use super::snapshots::{PendingSnapshot, WaitingFor};
use super::uri;
use epitome_client::{AcpLink, selected};
use epitome_platform::file_uri;

/// Sessions that are open at the same time. Beyond it, unfollowed ones are left.
pub(super) const SESSIONS_MAX: usize = 64;

/// A session in the daemon's list.
pub(super) struct ListedSession {
    pub directory: String,
    pub title: String,
    pub updated_at: String,
}

impl ListedSession {
    /// The session as far as the list describes it.
    pub fn session(&self, address: String) -> SharedSession {
        let directory = file_uri::of(self.directory.as_ref());
        SharedSession::new(address, &self.title, &directory, &self.updated_at, SessionLifecycle::Ready)
    }
}

pub struct AhpHost<S> {
    pub(super) agent: AcpLink<AgentRequest>,
    pub(super) log: ActionLog,
    pub(super) clients: AhpClients<S>,
    pub(super) models: AgentModels,
    pub(super) sessions: HashMap<String, OpenSession>,
    /// The addresses of open sessions by the daemon's ids, and those that clients have chosen.
    pub(super) addresses: HashMap<String, String>,
    /// The addresses of the sessions of running subagents, by the subagents' ids.
    pub(super) subagents: HashMap<String, String>,
    pub(super) waiting: Vec<PendingSnapshot>,
    pub(super) listed: HashMap<String, ListedSession>,
    /// The directory of new sessions if a client names none.
    pub(super) directory: PathBuf,
    uses: u64,
}

pub(super) struct OpenSession {
    pub session: SharedSession,
    /// The entry that clients know.
    pub announced: Option<SessionSummary>,
    last_use: u64,
    /// The number of the last action before it was open.
    pub opened_at: u64,
    /// Pages of the list that were searched for it.
    pub pages: usize,
}

impl<S: FrameSink> AhpHost<S> {
    pub fn new(mut agent: AcpLink<AgentRequest>, directory: PathBuf, now: Timestamp) -> AhpHost<S> {
        agent.request("session/options", &json!({ "cwd": directory }), AgentRequest::Models);
        AhpHost {
            agent,
            log: ActionLog::new(now),
            clients: AhpClients::new(),
            models: AgentModels::default(),
            sessions: HashMap::new(),
            addresses: HashMap::new(),
            subagents: HashMap::new(),
            waiting: Vec::new(),
            listed: HashMap::new(),
            directory,
            uses: 0,
        }
    }

    /// The lines to the daemon since the last call.
    pub fn take_lines(&mut self) -> Vec<u8> {
        self.agent.take_lines()
    }

    pub fn connected(&mut self, client: u64, sink: S) {
        self.clients.add(client, sink);
    }

    /// A client is gone. Its turns go on, because it may come back.
    pub fn disconnected(&mut self, client: u64) {
        self.waiting.retain(|waiting| waiting.client != client);
        let Some(id) = self.clients.remove(client) else { return };
        let sessions: Vec<String> = self.sessions.keys().cloned().collect();
        for session in sessions {
            self.change(&session, |session| session.left(&id));
        }
        self.leave_unused();
    }

    /// Handles a frame of a client.
    pub fn frame(&mut self, client: u64, frame: &str, now: Timestamp) {
        let message: Value = match serde_json::from_str(frame) {
            Ok(message) => message,
            Err(error) => {
                let failure =
                    RequestFailure::new(json_rpc_error_codes::PARSE_ERROR, format!("not JSON: {error}"));
                return self.reply(client, &Value::Null, Err(failure));
            }
        };
        let Some(method) = message["method"].as_str() else {
            // This host sends no requests that a client could answer.
            if message.get("result").is_none() && message.get("error").is_none() {
                let failure = misplaced("`method` is missing");
                self.reply(client, &message["id"], Err(failure));
            }
            return;
        };
        let params = message.get("params").cloned().unwrap_or_default();
        match message.get("id") {
            Some(id) => match self.request(client, id, method, params, now) {
                Ok(Some(result)) => self.reply(client, id, Ok(result)),
                // Answered later.
                Ok(None) => {}
                Err(failure) => self.reply(client, id, Err(failure)),
            },
            None => self.notification(client, method, params, now),
        }
        self.leave_unused();
    }

    fn request(
        &mut self,
        client: u64,
        id: &Value,
        method: &str,
        params: Value,
        now: Timestamp,
    ) -> Result<Option<Value>, RequestFailure> {
        let is_initialized = self.clients.id(client).is_some();
        let params = match method {
            "initialize" | "reconnect" | "listSessions" => with_channel(params),
            _ => params,
        };
        match method {
            "ping" => Ok(Some(Value::Null)),
            "initialize" | "reconnect" if is_initialized => {
                Err(misplaced("the connection is initialized already"))
            }
            "initialize" => self.initialize(client, id, read(params)?).map(|()| None),
            "reconnect" => self.reconnect(client, id, read(params)?).map(|()| None),
            _ if !is_initialized => Err(misplaced("send `initialize` first")),
            "subscribe" => {
                let params: SubscribeParams = read(params)?;
                self.wait(client, id.clone(), vec![params.channel], WaitingFor::Subscribe).map(|()| None)
            }
            "listSessions" => {
                let params: ListSessionsParams = read(params)?;
                let pending = AgentRequest::List { client, id: id.clone() };
                let cursor = params.cursor.map(wire::SessionListCursor::new);
                let params = wire::ListSessionsRequest::new().cursor(cursor);
                self.agent.request("session/list", &params, pending);
                Ok(None)
            }
            "createSession" => self.create(client, read(params)?, now).map(|()| Some(Value::Null)),
            // A new session has the settings, and those of the command line that started this host.
            "resolveSessionConfig" => {
                Ok(Some(json!({ "schema": { "type": "object", "properties": {} }, "values": {} })))
            }
            "disposeSession" => self.dispose(client, id, &params).map(|()| None),
            other => {
                let name: String = other.chars().take(80).collect();
                Err(RequestFailure::new(
                    json_rpc_error_codes::METHOD_NOT_FOUND,
                    format!("not supported: {name}"),
                ))
            }
        }
    }

    fn notification(&mut self, client: u64, method: &str, params: Value, now: Timestamp) {
        match method {
            "unsubscribe" => {
                let Ok(UnsubscribeParams { channel }) = read(params) else { return };
                self.clients.unfollow(client, &channel);
            }
            "dispatchAction" => match read::<DispatchActionParams>(params) {
                Ok(dispatched) => self.dispatch(client, dispatched, now),
                Err(failure) => tracing::info!(%failure, "an action of a client can't be read"),
            },
            _ => {}
        }
    }

    fn initialize(
        &mut self,
        client: u64,
        id: &Value,
        params: InitializeParams,
    ) -> Result<(), RequestFailure> {
        let Some(version) = negotiate_protocol_version(&params.protocol_versions).map_err(invalid)? else {
            return Err(unsupported_version());
        };
        let version = version.to_owned();
        self.clients.initialized(client, params.client_id);
        let channels = params.initial_subscriptions.unwrap_or_default();
        self.wait(client, id.clone(), channels, WaitingFor::Initialize { version })
    }

    fn reconnect(&mut self, client: u64, id: &Value, params: ReconnectParams) -> Result<(), RequestFailure> {
        self.clients.initialized(client, params.client_id);
        let last_seen = u64::try_from(params.last_seen_server_seq).unwrap_or_default();
        // Actions contain no changes of other windows from before a session was opened, perhaps not for the first time.
        let is_complete = |channel: &String| {
            let open = uri::session_of(channel).and_then(|session| self.sessions.get(&session));
            open.is_some_and(|open| open.opened_at < last_seen)
        };
        let known =
            |channel: &&String| uri::session_of(channel).is_some_and(|session| self.can_open(&session));
        let replays = params.subscriptions.iter().filter(known).all(is_complete);
        self.wait(client, id.clone(), params.subscriptions, WaitingFor::Reconnect { last_seen, replays })
    }

    /// Begins to open a session, if it can be opened and is not open. Returns whether to wait for it.
    pub(super) fn open(&mut self, address: &str) -> bool {
        self.uses += 1;
        if let Some(open) = self.sessions.get_mut(address) {
            open.last_use = self.uses;
            return open.session.work.replaying;
        }
        let Some(agent_id) = self.agent_id(address) else { return false };
        if self.sessions.len() >= SESSIONS_MAX {
            return false;
        }
        let mut session = SharedSession::new(address.to_owned(), "", "", "", SessionLifecycle::Ready);
        session.agent_id = Some(agent_id.clone());
        session.work.replaying = true;
        let (last_use, opened_at) = (self.uses, u64::MAX);
        let open = OpenSession { session, announced: None, last_use, opened_at, pages: 0 };
        self.sessions.insert(address.to_owned(), open);
        self.addresses.insert(agent_id, address.to_owned());
        self.resume(address);
        true
    }

    /// Asks the daemon for a session from its start, or first for its directory.
    pub(super) fn resume(&mut self, address: &str) {
        let Some(open) = self.sessions.get_mut(address) else { return };
        let Some(agent_id) = open.session.agent_id.clone() else { return };
        let session = address.to_owned();
        match self.listed.get(&agent_id) {
            Some(listed) => {
                let mut shown = listed.session(session.clone());
                shown.agent_id = Some(agent_id.clone());
                shown.work.replaying = true;
                open.session = shown;
                let from = wire::ReplayFrom::Start(wire::ReplayFromStart::new());
                let params =
                    wire::ResumeSessionRequest::new(agent_id, listed.directory.as_str()).replay_from(from);
                self.agent.request("session/resume", &params, AgentRequest::Open { session })
            }
            None => {
                let pending = AgentRequest::Find { session };
                self.agent.request("session/list", &wire::ListSessionsRequest::new(), pending)
            }
        };
    }

    fn agent_id(&self, address: &str) -> Option<String> {
        let chosen = self.addresses.iter().find(|(_, known)| *known == address).map(|(id, _)| id.clone());
        chosen.or_else(|| uri::agent_id(address).map(str::to_owned))
    }

    pub(super) fn can_open(&self, address: &str) -> bool {
        self.sessions.contains_key(address) || self.agent_id(address).is_some()
    }

    /// The open session of a channel.
    pub(super) fn open_session(&self, channel: &str) -> Option<&SharedSession> {
        let open = self.sessions.get(&uri::session_of(channel)?)?;
        Some(&open.session).filter(|session| !session.work.replaying)
    }

    fn create(
        &mut self,
        client: u64,
        params: CreateSessionParams,
        now: Timestamp,
    ) -> Result<(), RequestFailure> {
        let address = params.channel;
        if !uri::is_session(&address) || uri::agent_id(&address).is_some() {
            return Err(invalid(format!("{address:?} can't be the address of a new session")));
        }
        if self.can_open(&address) {
            let why = format!("there is a session {address:?} already");
            return Err(RequestFailure::new(ahp_error_codes::SESSION_ALREADY_EXISTS, why));
        }
        if let Some(provider) = params.provider.filter(|provider| provider != PROVIDER) {
            let why = format!("there is no provider {provider:?}; this host has {PROVIDER:?}");
            return Err(RequestFailure::new(ahp_error_codes::PROVIDER_NOT_FOUND, why));
        }
        if let Some(key) = params.config.iter().flatten().map(|(key, _)| key).next() {
            return Err(invalid(format!("this host has no configuration {key:?}")));
        }
        let directory = match params.working_directories.iter().flatten().next() {
            Some(given) => {
                file_uri::path(given).ok_or_else(|| invalid(format!("{given:?} is not a local file URI")))?
            }
            None => self.directory.clone(),
        };
        let Some(cwd) = directory.to_str() else {
            return Err(invalid("the directory's name is not UTF-8".to_owned()));
        };
        if self.sessions.len() >= SESSIONS_MAX {
            return Err(too_many(SESSIONS_MAX));
        }
        let pending = AgentRequest::Create { session: address.clone() };
        self.agent.request("session/new", &wire::NewSessionRequest::new(cwd), pending);
        self.uses += 1;
        let (directory, time) = (file_uri::of(&directory), now.to_string());
        let created = SessionLifecycle::Creating;
        let session = SharedSession::new(address.clone(), "New session", &directory, &time, created);
        let summary = session.summary();
        let added = json!({ "channel": ROOT_RESOURCE_URI, "summary": summary });
        let (announced, last_use, opened_at) = (Some(summary), self.uses, self.log.last());
        let open = OpenSession { session, announced, last_use, opened_at, pages: 0 };
        self.sessions.insert(address.clone(), open);
        self.broadcast(ROOT_RESOURCE_URI, "root/sessionAdded", &added);
        if let Some(active) = params.active_client {
            self.enter(client, &address, active);
        }
        Ok(())
    }

    /// Enters the client that creates a session as one of its active clients.
    fn enter(&mut self, client: u64, address: &str, active_client: SessionActiveClient) {
        if self.clients.id(client) == Some(&active_client.client_id) {
            let action = of_form(json!({ "type": "session/activeClientSet", "activeClient": active_client }));
            self.change(address, |session| session.apply(action, None));
        }
    }

    /// Takes a session out of the lists. Its log is kept.
    fn dispose(&mut self, client: u64, id: &Value, params: &Value) -> Result<(), RequestFailure> {
        let address = params["channel"].as_str().unwrap_or_default();
        let agent_id = match self.sessions.get(address) {
            Some(open) => open.session.agent_id.clone(),
            None => self.agent_id(address),
        };
        let agent_id = agent_id.ok_or_else(|| not_found(address))?;
        let pending = AgentRequest::Archive { client, id: id.clone(), session: address.to_owned() };
        self.agent.request("session/archive", &wire::ArchiveSessionRequest::new(agent_id), pending);
        Ok(())
    }

    /// Handles an action of a client. Actions on unknown channels are ignored, as the protocol demands.
    fn dispatch(&mut self, client: u64, dispatched: DispatchActionParams, now: Timestamp) {
        let Some(client_id) = self.clients.id(client).cloned() else { return };
        let DispatchActionParams { channel, client_seq, action } = dispatched;
        let session = uri::session_of(&channel).filter(|_| self.open_session(&channel).is_some());
        let Some((session, open)) =
            session.and_then(|session| Some((session.clone(), self.sessions.get_mut(&session)?)))
        else {
            return;
        };
        let origin = ActionOrigin { client_id, client_seq };
        let wants_chat = channel == open.session.chat_uri;
        let is_chat = json!(action)["type"].as_str().is_some_and(|name| name.starts_with("chat/"));
        let result = match wants_chat == is_chat {
            true => self
                .models
                .check(&action)
                .and_then(|()| open.session.dispatch(action.clone(), origin.clone(), now)),
            false => Err("the action is for another channel".to_owned()),
        };
        match result {
            Ok(commands) => {
                self.distribute(&session);
                commands.into_iter().for_each(|command| self.execute(&channel, command));
            }
            Err(reason) => {
                let envelope = self.log.envelope(&channel, action, Some(origin), Some(reason));
                self.send(client, notification("action", &envelope));
            }
        }
    }

    pub(super) fn execute(&mut self, channel: &str, command: AgentCommand) {
        let Some(session) = uri::session_of(channel) else { return };
        let Some(id) = self.sessions.get(&session).and_then(|open| open.session.agent_id.clone()) else {
            return;
        };
        match command {
            AgentCommand::Prompt { turn, model, blocks } => {
                if let Some(model) = model {
                    let params = wire::SetSessionConfigOptionRequest::new(id.as_str(), MODEL, model.as_str());
                    let pending = AgentRequest::Nothing("the model could not be set");
                    self.agent.request("session/set_config_option", &params, pending);
                }
                let params = json!({ "sessionId": id, "prompt": blocks });
                self.agent.request("session/prompt", &params, AgentRequest::Prompt { session, turn });
            }
            AgentCommand::Cancel => {
                self.agent.notify("session/cancel", &wire::CancelSessionNotification::new(id));
            }
            AgentCommand::Decide { request, option } => self.agent.answer(&request, &selected(option)),
            AgentCommand::SetTitle(title) => {
                let params = wire::SetSessionTitleRequest::new(id, title);
                let pending = AgentRequest::Nothing("a title could not be set");
                self.agent.request("session/set_title", &params, pending);
            }
        }
    }

    /// Changes a session and distributes the actions.
    pub(super) fn change<T>(
        &mut self,
        address: &str,
        change: impl FnOnce(&mut SharedSession) -> T,
    ) -> Option<T> {
        let open = self.sessions.get_mut(address)?;
        let result = change(&mut open.session);
        self.distribute(address);
        Some(result)
    }

    /// Distributes the actions that a session has applied. While it is being opened, it has no followers.
    pub(super) fn distribute(&mut self, address: &str) {
        let Some(open) = self.sessions.get_mut(address) else { return };
        let applied = open.session.take_applied();
        if open.session.work.replaying || applied.is_empty() {
            return;
        }
        let (session, chat) = (open.session.uri.clone(), open.session.chat_uri.clone());
        for applied in applied {
            let channel = if applied.on_chat { &chat } else { &session };
            let envelope = self.log.envelope(channel, applied.action, applied.origin, None);
            self.send_all(channel, &notification("action", &envelope));
            self.log.keep(channel, envelope);
        }
        self.announce(address);
    }

    /// Notifies the clients if a session's entry in the lists has changed.
    fn announce(&mut self, address: &str) {
        let Some(open) = self.sessions.get_mut(address) else { return };
        let now = open.session.summary();
        let before = open.announced.replace(now.clone());
        let Some(before) = before.filter(|before| *before != now) else { return };
        let (before, now) = (json!(before), json!(now));
        let mut changes = json!({ "chats": now["chats"] });
        for name in ["title", "status", "modifiedAt"].into_iter().filter(|name| before[name] != now[name]) {
            changes[name] = now[name].clone();
        }
        let params = json!({ "channel": ROOT_RESOURCE_URI, "session": address, "changes": changes });
        self.broadcast(ROOT_RESOURCE_URI, "root/sessionSummaryChanged", &params);
    }

    /// Distributes an action on the root channel.
    pub(super) fn change_root(&mut self, action: Value) {
        let envelope = self.log.envelope(ROOT_RESOURCE_URI, of_form(action), None, None);
        self.send_all(ROOT_RESOURCE_URI, &notification("action", &envelope));
        self.log.keep(ROOT_RESOURCE_URI, envelope);
    }

    pub(super) fn broadcast(&mut self, channel: &str, method: &str, params: &impl Serialize) {
        self.send_all(channel, &notification(method, params));
    }

    fn send_all(&mut self, channel: &str, frame: &str) {
        let slow = self.clients.send_all(channel, frame);
        slow.into_iter().for_each(|client| self.drop_slow(client));
    }

    fn send(&mut self, client: u64, frame: String) {
        if self.clients.send(client, frame) {
            self.drop_slow(client);
        }
    }

    /// The client reconnects, and then gets what it missed or a snapshot.
    fn drop_slow(&mut self, client: u64) {
        tracing::info!(client, "a client reads too slowly, or not any more");
        self.disconnected(client);
    }

    pub(super) fn reply(&mut self, client: u64, id: &Value, result: Result<Value, RequestFailure>) {
        self.send(client, response(id, result));
    }

    /// Leaves unfollowed sessions, the longest unused first, while there are many.
    fn leave_unused(&mut self) {
        while self.sessions.len() > SESSIONS_MAX / 2 {
            let is_followed = |session: &SharedSession| {
                let is_named = |channel: &String| *channel == session.uri || *channel == session.chat_uri;
                let mut awaited = self.waiting.iter();
                self.clients.any_follows(&[&session.uri, &session.chat_uri])
                    || awaited.any(|waiting| waiting.channels.iter().any(is_named))
            };
            let unused = self
                .sessions
                .values()
                .filter(|open| open.session.is_at_rest() && !is_followed(&open.session));
            let Some(left) = unused.min_by_key(|open| open.last_use).map(|open| open.session.uri.clone())
            else {
                return;
            };
            if let Some(id) = self.sessions.remove(&left).and_then(|open| open.session.agent_id) {
                let pending = AgentRequest::Nothing("a session could not be left");
                self.agent.request("session/close", &wire::CloseSessionRequest::new(id), pending);
            }
        }
    }
}

/// Adds the channel of requests that concern the connection. VS Code leaves it out.
fn with_channel(mut params: Value) -> Value {
    if let Some(fields) = params.as_object_mut() {
        fields.entry("channel").or_insert_with(|| json!(ROOT_RESOURCE_URI));
    }
    params
}
