//! State that a front end needs to continue with another daemon when its own dies. Pure: lines in, lines out.
//!
//! It keeps the params of `initialize`, the open sessions (how they were opened, and the position up to which each was
//! shown), and all unanswered requests: the editor's and the daemon's own (permission requests). It parses only a
//! line's envelope and its session id, if it has one. Each prompt is given a key, by which the next daemon finds it in
//! the log.
//!
//! The fate of an unanswered request:
//!
//! | request | with the next daemon |
//! |---|---|
//! | `session/prompt` | sent again with its session, whose log shows how its turn ended; it begins if the log does not have it |
//! | `session/fork`, `_session/steering` | answered as interrupted: doing it twice would be wrong |
//! | `session/close` | answered: the session ended with its daemon. If a prompt of it waits, sent again |
//! | all others | sent again; a `session/load` continues where it was |
//!
//! A session that was to be closed, archived or deleted is resumed only if one of its prompts waits for an answer.
//!
//! A request that the editor has cancelled is answered as cancelled wherever it would be answered as interrupted. If
//! the next daemon continues it, it is cancelled there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::wait_notice::WaitNotice;
use crate::messages::{FrontendMessage, MessageKind};
use epitome_acp::answers::{self, OPEN_AT};
use epitome_acp::envelope::{self, Incoming};
use epitome_acp::model::AcpVersion;
use epitome_acp::requests::REQUESTS_OPEN_MAX;
use epitome_acp::updates::idle_line;
use epitome_acp::writer;

/// Daemon requests that are remembered. There are usually a few; beyond this the oldest is forgotten, and its
/// response dropped.
const DAEMON_REQUESTS_MAX: usize = 1024;

/// Maximum bytes kept of unanswered requests, to send them again. A request beyond it is answered as interrupted when its
/// daemon dies, except for a prompt that a daemon has taken.
const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How often a request is sent again. A request that kills every daemon must not be sent forever.
const REPEATS_MAX: u32 = 2;

/// How often in a row a window goes to another server, to which a server refers it.
const MOVES_MAX: u32 = 4;

/// The position before a replay.
const FROM_THE_BEGINNING: &str = r#"{"replay":true}"#;

/// Prefix of the ids of the front end's own requests to a daemon.
const OWN: &str = "\"epitome-front-";

/// The treatment of a line from the editor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineAction {
    /// Forward it to the daemon.
    Forward,
    /// Forward this line instead.
    Instead(Vec<u8>),
    /// Drop it.
    Drop,
    /// Don't forward it; send this response to the editor.
    Answer(Vec<u8>),
}

/// The treatment of a message from the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonMessage {
    /// Forward its lines to the editor.
    Show,
    /// Send these lines instead.
    Instead(Vec<u8>),
    /// The daemon can't continue the connection: it answers the replayed `initialize` with another version.
    Unusable,
}

/// The reaction of a window if another server has a session of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// It continues at the server with this address.
    Go(String),
    /// It stays where it is, for this reason.
    Stay(&'static str),
}

/// The recorded state; see the module documentation.
#[derive(Debug, Default)]
pub struct ReconnectState {
    /// `None` until a daemon has answered `initialize`.
    initialize: Option<AgreedInitialize>,
    /// The newest `providers/set` of each provider.
    routes: BTreeMap<String, Box<RawValue>>,
    /// The open sessions, each with the params it was opened with.
    open: BTreeMap<String, Box<RawValue>>,
    /// The position up to which each session was shown.
    positions: BTreeMap<String, Box<RawValue>>,
    /// Unanswered requests of the editor, oldest first.
    waiting: Vec<WaitingRequest>,
    /// Ids of the daemon's unanswered requests.
    requests: BTreeSet<u64>,
    highest: u64,
    /// The front end's own unanswered requests to the current daemon.
    own: BTreeMap<String, OwnRequest>,
    own_ids: u64,
    /// Requests left unanswered by a dead daemon; each is answered once the session it waits for is resumed.
    owed: Vec<Owed>,
    /// Ids of requests that the current daemon has, and that were answered without it.
    given_up: BTreeSet<Box<str>>,
    wait: WaitNotice,
    /// Number of moves to other servers since a session was last opened.
    moves: u32,
}

/// How the connection was initialized.
#[derive(Debug)]
struct AgreedInitialize {
    params: String,
    /// The version in the answer, which all lines since have.
    version: u64,
}

#[derive(Debug)]
struct WaitingRequest {
    id: Box<str>,
    wants: RequestEffect,
    /// The request, if it can be sent again.
    line: Option<Vec<u8>>,
    repeats: u32,
    /// Whether the editor has cancelled it.
    is_cancelled: bool,
}

/// The request's type, if its response changes the recorded state.
#[derive(Debug)]
enum RequestEffect {
    Initialize,
    New(Box<RawValue>),
    Fork(Box<RawValue>),
    Attach {
        session: String,
        params: Box<RawValue>,
        /// Whether the session is shown from its beginning already.
        begun: bool,
        /// Whether the editor had the session open before.
        was_open: bool,
    },
    Close(String),
    /// Deletes or archives a session, which ends it.
    End(String),
    Prompt(PromptState),
    Steer,
    /// Redirects a provider's requests from now on.
    Route(Box<RawValue>),
    Other,
}

#[derive(Debug)]
struct PromptState {
    session: String,
    key: String,
    fate: PromptFate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PromptFate {
    /// The current daemon has it.
    Sent,
    /// The current daemon has to find out what became of it.
    Resuming,
    /// No daemon has it: a server that is being ended has not passed it on, or none could be reached.
    Returned,
}

#[derive(Debug)]
enum OwnRequest {
    Initialize,
    Route,
    Resume(String),
}

#[derive(Debug)]
struct Owed {
    id: Box<str>,
    /// The session it waits for.
    behind: Option<String>,
    /// Whether the editor has cancelled the request.
    is_cancelled: bool,
    /// The response, as a line.
    answer: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamesSession {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamesRequest<'a> {
    #[serde(borrow)]
    request_id: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamesVersion {
    protocol_version: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamesKey {
    idempotency_key: String,
}

impl ReconnectState {
    /// Records a line from the editor before it is forwarded to the daemon.
    pub fn from_editor(&mut self, line: &[u8]) -> LineAction {
        match envelope::read(line) {
            Incoming::Request { id, method, params } => self.request(id, &method, params, line),
            Incoming::Response { id, .. } => match id.parse::<u64>() {
                Ok(id) if self.requests.remove(&id) => LineAction::Forward,
                // A response to a request that was withdrawn or that came from a dead daemon.
                Ok(_) | Err(_) => LineAction::Drop,
            },
            Incoming::Notification { method, params } => {
                self.keep_cancelled(&method, params);
                LineAction::Forward
            }
            Incoming::Invalid { .. } => LineAction::Forward,
            Incoming::Blank => LineAction::Drop,
        }
    }

    /// Records what a notification cancels. From then on, a prompt that no daemon has is owed its answer.
    fn keep_cancelled(&mut self, method: &str, params: Option<&RawValue>) {
        let (mut session, mut request) = (None, None);
        match method {
            "session/cancel" => session = session_in(params),
            "$/cancel_request" => request = params.and_then(read::<NamesRequest<'_>>),
            _ => return,
        }
        for waiting in &mut self.waiting {
            let is_of_session = session.is_some() && waiting.session() == session.as_deref();
            waiting.is_cancelled |=
                is_of_session || request.as_ref().is_some_and(|named| *named.request_id.get() == *waiting.id);
        }
        let is_over = |waiting: &mut WaitingRequest| {
            waiting.is_cancelled && waiting.fate() == Some(PromptFate::Returned)
        };
        for waiting in self.waiting.extract_if(.., is_over).collect::<Vec<_>>() {
            self.owe(waiting, None);
        }
    }

    /// The same for a line that has to wait for a daemon. Returns the answers to what no daemon has.
    pub fn cancelled_without_daemon(&mut self, line: &[u8]) -> Vec<u8> {
        if let Incoming::Notification { method, params } = envelope::read(line) {
            self.keep_cancelled(&method, params);
        }
        self.pay(|owed| owed.is_cancelled)
    }

    /// Records that a request is answered without a daemon, once the session is resumed that it waits `behind`.
    fn owe(&mut self, request: WaitingRequest, behind: Option<String>) {
        let answer = match (request.is_cancelled, request.fate()) {
            (true, fate) => self.cancelled(&request.id, fate.is_some()),
            (false, Some(PromptFate::Returned)) => error(&request.id, answers::undelivered()),
            (false, _) => {
                let details =
                    "Epitome's daemon ended. Please send it again; what was done so far is in the session.";
                error(&request.id, answers::interrupted(details))
            }
        };
        self.owed.push(Owed { id: request.id, behind, is_cancelled: request.is_cancelled, answer });
    }

    fn request(&mut self, id: &str, method: &str, params: Option<&RawValue>, line: &[u8]) -> LineAction {
        if self.waiting.len() + self.owed.len() >= REQUESTS_OPEN_MAX {
            return LineAction::Answer(error(id, answers::too_many_requests()));
        }
        // The id of a request that was answered may be used again.
        self.given_up.remove(id);
        let mut keyed = None;
        let wants = match (method, params, session_in(params)) {
            ("initialize", ..) => RequestEffect::Initialize,
            ("session/new", Some(params), _) => RequestEffect::New(params.to_owned()),
            ("session/fork", Some(params), _) => RequestEffect::Fork(params.to_owned()),
            ("session/load" | "session/resume", Some(params), Some(session)) => RequestEffect::Attach {
                was_open: self.open.contains_key(&session),
                session,
                params: params.to_owned(),
                begun: false,
            },
            ("providers/set", Some(params), _) => RequestEffect::Route(params.to_owned()),
            ("session/close", _, Some(session)) => RequestEffect::Close(session),
            ("session/delete" | "session/archive", _, Some(session)) => RequestEffect::End(session),
            ("session/prompt", Some(params), Some(session)) => {
                let key = read::<NamesKey>(params).map(|named| named.idempotency_key);
                let key = key.unwrap_or_else(|| {
                    let key = format!("{:016x}", fastrand::u64(..));
                    keyed = with_key(params, &key).map(|params| request(id, method, &params).into_bytes());
                    key
                });
                RequestEffect::Prompt(PromptState { session, key, fate: PromptFate::Sent })
            }
            ("_session/steering", ..) => RequestEffect::Steer,
            _ => RequestEffect::Other,
        };
        let is_done_once = matches!(wants, RequestEffect::Fork(_) | RequestEffect::Steer);
        // No daemon serves anything without `initialize`.
        let is_kept = matches!(wants, RequestEffect::Initialize)
            || !is_done_once && self.kept_bytes() + line.len() <= KEPT_BYTES_MAX;
        let kept = is_kept.then(|| terminated_line(keyed.as_deref().unwrap_or(line)));
        self.waiting.push(WaitingRequest {
            id: id.into(),
            wants,
            line: kept,
            repeats: 0,
            is_cancelled: false,
        });
        keyed.map_or(LineAction::Forward, LineAction::Instead)
    }

    fn kept_bytes(&self) -> usize {
        self.waiting.iter().filter_map(|request| request.line.as_ref()).map(Vec::len).sum()
    }

    /// Forgets a line that the daemon did not receive completely, and returns whether to send it to the next daemon:
    /// not if it has been answered since, nor if the next daemon gets it anyway.
    pub fn take_back(&mut self, line: &[u8]) -> bool {
        match envelope::read(line) {
            Incoming::Request { id, .. } => {
                let is_it = |waiting: &WaitingRequest| {
                    *waiting.id == *id
                        && waiting.repeats == 0
                        && !matches!(waiting.wants, RequestEffect::Initialize)
                };
                let waiting = self.waiting.iter().position(is_it).map(|at| self.waiting.remove(at));
                let owed = self.owed.len();
                self.owed.retain(|owed| *owed.id != *id);
                waiting.is_some() || self.owed.len() < owed
            }
            Incoming::Notification { .. } | Incoming::Invalid { .. } => true,
            // The daemon's request died with it.
            Incoming::Response { .. } | Incoming::Blank => false,
        }
    }

    /// Records a message from the daemon before its lines are forwarded to the editor.
    pub fn from_daemon(&mut self, message: &FrontendMessage<'_>) -> DaemonMessage {
        for step in message.steps {
            self.positions.insert(step.session.clone(), step.at.clone());
            for waiting in self.waiting.iter_mut().filter(|_| step.begins) {
                if let RequestEffect::Attach { session, begun, .. } = &mut waiting.wants
                    && *session == step.session
                {
                    *begun = true;
                }
            }
        }
        match message.kind {
            MessageKind::Notifications | MessageKind::Step | MessageKind::Farewell => {}
            MessageKind::Request => {
                if let Ok(id) = message.id.parse::<u64>() {
                    self.highest = self.highest.max(id);
                    self.requests.insert(id);
                    if self.requests.len() > DAEMON_REQUESTS_MAX {
                        self.requests.pop_first();
                    }
                }
            }
            MessageKind::Withdrawn => {
                if let Ok(id) = message.id.parse::<u64>() {
                    self.requests.remove(&id);
                }
            }
            MessageKind::Response => {
                if let Some(own) = self.own.remove(message.id) {
                    return self.own_answered(own, message);
                }
                if self.given_up.remove(message.id) {
                    return DaemonMessage::Instead(Vec::new());
                }
                if let Some(at) = self.waiting.iter().position(|waiting| *waiting.id == *message.id) {
                    let is_cancelled = self.waiting[at].is_cancelled;
                    if self.waiting[at].is_returned_by(message) && !is_cancelled {
                        return DaemonMessage::Instead(Vec::new());
                    }
                    let waiting = self.waiting.remove(at);
                    if waiting.prompt().is_some() && is_cancelled && answers::is_interrupted(message.lines) {
                        return DaemonMessage::Instead(self.cancelled(message.id, true));
                    }
                    let mut lines = self.answered(waiting, message);
                    if !lines.is_empty() {
                        lines.extend_from_slice(message.lines);
                        return DaemonMessage::Instead(lines);
                    }
                }
            }
        }
        DaemonMessage::Show
    }

    /// Decides about a message that says where a session is open, and records that the request is still to be answered if
    /// the window goes there. All of its sessions go with it, so it stays while it has others open here.
    pub fn elsewhere(&mut self, message: &FrontendMessage<'_>) -> Option<Elsewhere> {
        if message.kind != MessageKind::Response || succeeded(message) {
            return None;
        }
        let address = open_at(message.lines)?;
        let session = self.session_of(message.id)?;
        let is_here = |name: &String| {
            let resumes = |own: &OwnRequest| matches!(own, OwnRequest::Resume(of) if of == name);
            *name != session && !self.own.values().any(resumes)
        };
        if self.open.keys().any(is_here) {
            return Some(Elsewhere::Stay("this window has other sessions, which are open here"));
        }
        let waiting = self.waiting.iter_mut().find(|waiting| *waiting.id == *message.id);
        let can_repeat = waiting.as_ref().is_none_or(|it| it.prompt().is_some() || it.may_repeat());
        if self.moves >= MOVES_MAX || !can_repeat {
            return Some(Elsewhere::Stay("the servers refer this window to each other"));
        }
        self.moves += 1;
        // Unless its fate is unknown, no daemon has it.
        if let Some(prompt) = waiting.and_then(WaitingRequest::prompt_mut)
            && prompt.fate == PromptFate::Sent
        {
            prompt.fate = PromptFate::Returned;
        }
        Some(Elsewhere::Go(address))
    }

    /// The session that an unanswered request is about, if the request can be sent again.
    fn session_of(&self, id: &str) -> Option<String> {
        if let Some(OwnRequest::Resume(session)) = self.own.get(id) {
            return Some(session.clone());
        }
        let waiting = self.waiting.iter().find(|waiting| *waiting.id == *id)?;
        waiting.session().map(str::to_owned).or_else(|| session_in(waiting.params()))
    }

    /// Returns the lines to show before the answer.
    fn answered(&mut self, request: WaitingRequest, message: &FrontendMessage<'_>) -> Vec<u8> {
        let succeeded = succeeded(message);
        match request.wants {
            RequestEffect::Initialize => {
                if let Some(version) = version_in(message.lines) {
                    let params = request.params().map_or("{}", RawValue::get).to_owned();
                    self.initialize = Some(AgreedInitialize { params, version });
                }
            }
            RequestEffect::Route(params) => {
                if let Some(provider) = routed(&params).filter(|_| succeeded) {
                    self.routes.insert(provider, params);
                }
            }
            RequestEffect::New(params) | RequestEffect::Fork(params) => {
                if let Some(made) = result_of::<NamesSession>(message.lines) {
                    self.open.insert(made.session_id, params);
                }
            }
            // The daemon has it open nevertheless, unless it is the next one, which was only asked to attach.
            RequestEffect::Attach { was_open: true, .. } if !succeeded && request.repeats == 0 => {}
            RequestEffect::Attach { session, params, begun, .. } => {
                self.resumed(&session, succeeded);
                match succeeded {
                    true => drop(self.open.insert(session, params)),
                    false if begun => return self.let_go(&session),
                    false => self.forget(&session),
                }
            }
            RequestEffect::Close(session) | RequestEffect::End(session) => {
                if succeeded {
                    self.forget(&session);
                }
            }
            RequestEffect::Prompt(_) | RequestEffect::Steer | RequestEffect::Other => {}
        }
        Vec::new()
    }

    /// Forgets a session that the editor may still show as running. Returns the lines that show that it no longer runs.
    fn let_go(&mut self, session: &str) -> Vec<u8> {
        self.forget(session);
        self.shown_idle(session)
    }

    /// Shows a client of version 2 that a session no longer runs. Its prompt may have been answered before.
    fn shown_idle(&self, session: &str) -> Vec<u8> {
        match self.version() {
            AcpVersion::V2 => idle_line(session),
            AcpVersion::V1 => Vec::new(),
        }
    }

    fn forget(&mut self, session: &str) {
        self.open.remove(session);
        self.positions.remove(session);
    }

    fn own_answered(&mut self, own: OwnRequest, message: &FrontendMessage<'_>) -> DaemonMessage {
        match own {
            OwnRequest::Initialize => {
                let agreed = self.initialize.as_ref().map(|initialize| initialize.version);
                match version_in(message.lines) == agreed {
                    true => DaemonMessage::Instead(Vec::new()),
                    false => DaemonMessage::Unusable,
                }
            }
            OwnRequest::Route => DaemonMessage::Instead(Vec::new()),
            OwnRequest::Resume(session) => {
                let succeeded = succeeded(message);
                let mut lines = Vec::new();
                if !succeeded {
                    lines = self.let_go(&session);
                }
                self.resumed(&session, succeeded);
                lines.extend(self.pay(|owed| owed.behind.as_ref() == Some(&session)));
                DaemonMessage::Instead(lines)
            }
        }
    }

    /// A daemon continues a session and will answer its prompts, or can't.
    fn resumed(&mut self, session: &str, succeeded: bool) {
        if !succeeded {
            return self.owe_resuming(|of| of == session);
        }
        self.moves = 0;
        let prompts = self.waiting.iter_mut().filter_map(WaitingRequest::prompt_mut);
        let resuming = prompts.filter(|it| it.session == session && it.fate == PromptFate::Resuming);
        resuming.for_each(|prompt| prompt.fate = PromptFate::Sent);
    }

    fn version(&self) -> AcpVersion {
        let is_v2 = self.initialize.as_ref().is_some_and(|initialize| initialize.version >= 2);
        if is_v2 { AcpVersion::V2 } else { AcpVersion::V1 }
    }

    /// Records that a daemon is waited for. Returns the lines that show this in the sessions whose prompts wait for an answer.
    pub fn wait_begins(&mut self, text: &str, now: Instant) -> Vec<u8> {
        let running: BTreeSet<String> =
            self.waiting.iter().filter_map(WaitingRequest::session).map(str::to_owned).collect();
        self.wait.begin(text, &running, now);
        self.wait.show(running, self.version())
    }

    /// Records that there is a daemon again, or that none is waited for any longer.
    pub fn wait_ends(&mut self) {
        self.wait.end();
    }

    /// Shows in the session of a request that it has to wait for a daemon.
    pub fn shown_waiting_for(&mut self, line: &[u8]) -> Vec<u8> {
        if self.wait.is_over() {
            return Vec::new();
        }
        let Incoming::Request { params, .. } = envelope::read(line) else { return Vec::new() };
        let session = session_in(params).filter(|session| self.open.contains_key(session));
        self.wait.show(session, self.version())
    }

    /// Gives up on prompts whose fate no daemon has reported.
    fn owe_resuming(&mut self, of: impl Fn(&str) -> bool) {
        let is_due =
            |waiting: &mut WaitingRequest| waiting.is_resuming() && waiting.session().is_some_and(&of);
        for waiting in self.waiting.extract_if(.., is_due).collect::<Vec<_>>() {
            let behind = waiting.session().map(str::to_owned);
            self.given_up.insert(waiting.id.clone());
            self.owe(waiting, behind);
        }
    }

    /// Records that the daemon has died, and returns the lines to send to the editor immediately: cancellations of
    /// the daemon's requests, and the idle state of sessions that are not continued. The responses owed by the dead
    /// daemon are sent after `replay`.
    pub fn lost(&mut self) -> Vec<u8> {
        use RequestEffect::{Attach, Close, End, Fork, Initialize, New, Other, Prompt, Route, Steer};
        self.own.clear();
        self.given_up.clear();
        let mut lines = Vec::new();
        for card in std::mem::take(&mut self.requests) {
            lines.extend_from_slice(&cancellation(&card.to_string()));
        }
        for session in self.ending() {
            lines.extend(self.let_go(&session));
        }
        for mut waiting in std::mem::take(&mut self.waiting) {
            let (is_kept, may_repeat) = (waiting.line.is_some(), waiting.may_repeat());
            let mut stays = may_repeat;
            match &mut waiting.wants {
                Initialize => stays = true,
                Prompt(prompt) => {
                    let is_open = self.open.contains_key(&prompt.session);
                    stays = is_open && (is_kept || prompt.fate != PromptFate::Returned);
                    if stays && prompt.fate == PromptFate::Sent {
                        prompt.fate = PromptFate::Resuming;
                    }
                }
                Close(session) if !self.open.contains_key(session) => {
                    let mut answer = Vec::new();
                    writer::response(&mut answer, &waiting.id, Ok(answers::empty()));
                    self.owed.push(Owed { id: waiting.id, behind: None, is_cancelled: false, answer });
                    continue;
                }
                // The editor learns that it has not opened it.
                Attach { session, was_open: false, begun, .. } if !may_repeat => match begun {
                    true => lines.extend(self.let_go(session)),
                    false => self.forget(session),
                },
                New(_) | Fork(_) | Attach { .. } | Close(_) | End(_) | Steer | Route(_) | Other => {}
            }
            match stays {
                true => self.waiting.push(waiting),
                false => self.owe(waiting, None),
            }
        }
        lines
    }

    /// The sessions that are ended by a request whose daemon died, and that nobody needs any more. Whether they have ended is
    /// unknown, but that was the intent.
    fn ending(&self) -> Vec<String> {
        let is_needed =
            |session: &String| self.waiting.iter().any(|waiting| waiting.session() == Some(session));
        let ends = self.waiting.iter().filter_map(|waiting| match &waiting.wants {
            RequestEffect::Close(session) => Some(session),
            RequestEffect::End(session) if waiting.may_repeat() => Some(session),
            _ => None,
        });
        ends.filter(|session| !is_needed(session)).cloned().collect()
    }

    /// The first lines for a new daemon: `initialize`, the sessions to resume, and the requests to repeat.
    pub fn replay(&mut self) -> Vec<u8> {
        use RequestEffect::{Attach, Close, End, Fork, Initialize, New, Other, Prompt, Route, Steer};
        let mut lines = Vec::new();
        // An editor whose `initialize` is unanswered has neither routes nor sessions.
        if let Some(initialize) = &self.initialize {
            let params = initialize.pinned();
            self.ask(&mut lines, "initialize", &params, OwnRequest::Initialize);
        }
        // Before the sessions, which it holds for.
        for params in self.routes.values().map(|params| params.get().to_owned()).collect::<Vec<_>>() {
            self.ask(&mut lines, "providers/set", &params, OwnRequest::Route);
        }
        // The editor opens such a session itself, and may have cleared its window for that.
        let is_attaching = |name: &String| {
            let attaches = |waiting: &WaitingRequest| matches!(&waiting.wants, RequestEffect::Attach { session, .. } if session == name);
            self.waiting.iter().any(attaches)
        };
        let open: Vec<(String, String)> = self
            .open
            .iter()
            .filter(|(session, _)| !is_attaching(session))
            .map(|(session, params)| {
                let rest = self.rest(session, self.positions.get(session).map_or("{}", |at| at.get()));
                (session.clone(), continued(params, Some(session), rest))
            })
            .collect();
        for (session, params) in open {
            self.ask(&mut lines, "session/resume", &params, OwnRequest::Resume(session));
        }
        for at in 0..self.waiting.len() {
            self.waiting[at].repeats += 1;
            let waiting = &self.waiting[at];
            let Some(line) = &waiting.line else { continue };
            match &waiting.wants {
                Attach { session, params, begun, .. } => {
                    let Incoming::Request { method, .. } = envelope::read(line) else { continue };
                    let from = match self.positions.get(session) {
                        _ if !begun && is_replay(&method, params) => FROM_THE_BEGINNING,
                        Some(position) => position.get(),
                        None => {
                            lines.extend_from_slice(line);
                            continue;
                        }
                    };
                    let params = continued(params, None, self.rest(session, from));
                    lines.extend_from_slice(request(&waiting.id, &method, &params).as_bytes());
                }
                Prompt(prompt) if prompt.fate != PromptFate::Returned => {}
                Prompt(_) | Initialize | New(_) | Fork(_) | Close(_) | End(_) | Steer | Route(_) | Other => {
                    lines.extend_from_slice(line);
                }
            }
            if let Some(prompt) = self.waiting[at].prompt_mut()
                && prompt.fate == PromptFate::Returned
            {
                prompt.fate = PromptFate::Sent;
            }
        }
        // Also the prompts that the next daemon finds running, because only the link to the last one failed.
        for cancelled in self.waiting.iter().filter(|waiting| waiting.is_cancelled) {
            lines.extend_from_slice(&cancellation(&cancelled.id));
        }
        lines
    }

    /// The position at which to continue a session, and the prompts whose fate its log shows, as JSON for `_meta`.
    fn rest(&self, name: &str, at: &str) -> String {
        let prompts = self.waiting.iter().filter_map(|waiting| {
            let prompt = waiting.prompt().filter(|prompt| prompt.session == name && waiting.is_resuming())?;
            // Ids are sent back byte for byte.
            let (id, key) = (&waiting.id, Value::from(prompt.key.as_str()));
            let params = waiting.params().map_or("null", RawValue::get);
            let cancelled = waiting.is_cancelled;
            Some(format!(r#"{{"id":{id},"key":{key},"cancelled":{cancelled},"params":{params}}}"#))
        });
        let prompts = prompts.collect::<Vec<_>>().join(",");
        format!(r#"{{"epitome":{{"rest":{at},"prompts":[{prompts}]}}}}"#)
    }

    fn ask(&mut self, lines: &mut Vec<u8>, method: &str, params: &str, own: OwnRequest) {
        self.own_ids += 1;
        let id = format!("{OWN}{}\"", self.own_ids);
        lines.extend_from_slice(request(&id, method, params).as_bytes());
        self.own.insert(id, own);
    }

    /// The owed responses that wait for no session, to be sent once the new daemon has received the replay.
    pub fn answers_at_once(&mut self) -> Vec<u8> {
        self.pay(|owed| owed.behind.is_none())
    }

    /// All owed responses, without waiting for sessions any longer.
    pub fn answers_overdue(&mut self) -> Vec<u8> {
        self.owe_resuming(|_| true);
        self.pay(|_| true)
    }

    /// Like [`ReconnectState::answers_overdue`] when no daemon is available: answers a pending `initialize` as well, and shows
    /// that nothing runs.
    pub fn give_up(&mut self) -> Vec<u8> {
        for waiting in std::mem::take(&mut self.waiting) {
            self.owe(waiting, None);
        }
        let mut lines: Vec<u8> = self.open.keys().flat_map(|session| self.shown_idle(session)).collect();
        lines.extend(self.answers_overdue());
        lines
    }

    /// Whether any response is owed.
    pub fn owes(&self) -> bool {
        !self.owed.is_empty() || self.waiting.iter().any(WaitingRequest::is_resuming)
    }

    /// Whether the editor waits for an answer that another daemon has to give, because the last one took the request just
    /// before it ended.
    pub fn wants_daemon(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_resuming())
    }

    /// Whether the new daemon has answered all requests of the replay.
    pub fn is_settled(&self) -> bool {
        self.own.is_empty()
    }

    /// The highest id of a daemon request so far.
    pub fn ids_above(&self) -> u64 {
        self.highest
    }

    fn pay(&mut self, due: impl Fn(&Owed) -> bool) -> Vec<u8> {
        self.owed.extract_if(.., |owed| due(owed)).flat_map(|owed| owed.answer).collect()
    }

    /// The response to a request that the editor has cancelled.
    fn cancelled(&self, id: &str, is_prompt: bool) -> Vec<u8> {
        let mut line = Vec::new();
        writer::response(
            &mut line,
            id,
            answers::cancelled_unserved(is_prompt && self.version() == AcpVersion::V1),
        );
        line
    }
}

impl WaitingRequest {
    fn prompt(&self) -> Option<&PromptState> {
        if let RequestEffect::Prompt(prompt) = &self.wants { Some(prompt) } else { None }
    }

    fn prompt_mut(&mut self) -> Option<&mut PromptState> {
        if let RequestEffect::Prompt(prompt) = &mut self.wants { Some(prompt) } else { None }
    }

    fn fate(&self) -> Option<PromptFate> {
        self.prompt().map(|prompt| prompt.fate)
    }

    /// The session of a prompt.
    fn session(&self) -> Option<&str> {
        self.prompt().map(|prompt| prompt.session.as_str())
    }

    /// The params of a request that can be sent again.
    fn params(&self) -> Option<&RawValue> {
        let Incoming::Request { params, .. } = envelope::read(self.line.as_ref()?) else { return None };
        params
    }

    fn may_repeat(&self) -> bool {
        self.line.is_some() && self.repeats < REPEATS_MAX
    }

    /// Whether it is a prompt that a server returns with this answer, to be sent to the next one.
    fn is_returned_by(&mut self, answer: &FrontendMessage<'_>) -> bool {
        let is_returned = self.line.is_some() && answers::is_returned(answer.lines);
        let Some(prompt) = self.prompt_mut().filter(|_| is_returned) else { return false };
        prompt.fate = PromptFate::Returned;
        true
    }

    /// Whether it is a prompt whose fate a daemon has to find out.
    fn is_resuming(&self) -> bool {
        self.fate() == Some(PromptFate::Resuming)
    }
}

impl AgreedInitialize {
    /// The params with which another daemon chooses the same version, whatever the user has set since.
    fn pinned(&self) -> String {
        let mut params: BTreeMap<String, Value> = serde_json::from_str(&self.params).unwrap_or_default();
        params.insert("protocolVersion".to_owned(), self.version.into());
        if self.version >= 2 {
            let meta = params.entry("_meta".to_owned()).or_default();
            if !meta.is_object() {
                *meta = json!({});
            }
            meta["epitome"] = json!({ "continued": true });
        }
        serde_json::to_string(&params).expect("it is made of JSON")
    }
}

/// The response to a request when no daemon is available.
pub fn unserved(line: &[u8], why: &str) -> Option<Vec<u8>> {
    match envelope::read(line) {
        Incoming::Request { id, .. } => {
            let sentence = format!("Epitome's daemon can't be reached: {why}");
            Some(error(id, answers::internal(sentence)))
        }
        Incoming::Response { .. }
        | Incoming::Notification { .. }
        | Incoming::Invalid { .. }
        | Incoming::Blank => None,
    }
}

/// Cancels a request.
fn cancellation(id: &str) -> Vec<u8> {
    let line = format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"$/cancel_request\",\"params\":{{\"requestId\":{id}}}}}\n"
    );
    line.into_bytes()
}

fn error(id: &str, error: answers::Error) -> Vec<u8> {
    let mut line = Vec::new();
    writer::response(&mut line, id, Err(error));
    line
}

/// The provider that a `providers/set` names.
fn routed(params: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Named {
        provider_id: String,
    }
    read::<Named>(params).map(|named| named.provider_id)
}

/// The address of the server that has a session open, if an error says that.
fn open_at(response: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Failed {
        error: ErrorWithData,
    }
    #[derive(Deserialize)]
    struct ErrorWithData {
        data: BTreeMap<String, Value>,
    }
    let Failed { error } = serde_json::from_slice(response).ok()?;
    Some(error.data.get(OPEN_AT)?.as_str()?.to_owned())
}

/// The refusal of a session that is open elsewhere, with the reason why the window does not go there.
pub fn stays_because(response: &[u8], why: &str) -> Vec<u8> {
    let Ok(mut response) = serde_json::from_slice::<Value>(response) else { return response.to_vec() };
    let error = &mut response["error"];
    let message = error["message"].as_str().unwrap_or_default();
    let address = error["data"][OPEN_AT].as_str().unwrap_or_default();
    error["message"] =
        format!("{message}; it can be used at {address}. The window did not go there: {why}").into();
    format!("{response}\n").into_bytes()
}

/// Whether a request that opens a session asks for all of its conversation: `session/load`, or `session/resume` of
/// version 2 with a start.
fn is_replay(method: &str, params: &RawValue) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ReplayStart {
        replay_from: Option<serde::de::IgnoredAny>,
    }
    method == "session/load" || read::<ReplayStart>(params).is_some_and(|from| from.replay_from.is_some())
}

/// Whether a response has a result. In our own lines it directly follows the id.
fn succeeded(message: &FrontendMessage<'_>) -> bool {
    let head = br#"{"jsonrpc":"2.0","id":"#.len() + message.id.len();
    message.lines.get(head..).is_some_and(|rest| rest.starts_with(br#","result":"#))
}

/// The result of a response; `None` if it is an error.
fn result_of<'a, T: Deserialize<'a>>(response: &'a [u8]) -> Option<T> {
    #[derive(Deserialize)]
    struct SuccessfulResponse<T> {
        result: T,
    }
    serde_json::from_slice::<SuccessfulResponse<T>>(response).ok().map(|response| response.result)
}

/// The version in the response to an `initialize`.
fn version_in(response: &[u8]) -> Option<u64> {
    result_of::<NamesVersion>(response).map(|named| named.protocol_version)
}

fn read<'a, T: Deserialize<'a>>(params: &'a RawValue) -> Option<T> {
    serde_json::from_str(params.get()).ok()
}

/// The session that a request names.
fn session_in(params: Option<&RawValue>) -> Option<String> {
    read::<NamesSession>(params?).map(|named| named.session_id)
}

/// Params with which a session was opened, to continue it.
fn continued(opened: &RawValue, session: Option<&str>, rest: String) -> String {
    let raw = |json: String| RawValue::from_string(json).expect("it is made of JSON");
    let mut params: BTreeMap<String, Box<RawValue>> = serde_json::from_str(opened.get()).unwrap_or_default();
    if let Some(session) = session {
        params.insert("sessionId".to_owned(), raw(serde_json::Value::from(session).to_string()));
    }
    params.insert("_meta".to_owned(), raw(rest));
    serde_json::to_string(&params).expect("it is made of JSON")
}

/// The params of a prompt, which name its session, with a key; `None` if they are no object. Of two fields with one name the last
/// counts, so it stands behind a `null` of the editor.
fn with_key(params: &RawValue, key: &str) -> Option<String> {
    Some(format!(r#"{},"idempotencyKey":"{key}"}}"#, params.get().strip_suffix('}')?))
}

pub(super) fn request(id: &str, method: &str, params: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n")
}

fn terminated_line(line: &[u8]) -> Vec<u8> {
    let mut line = line.trim_ascii_end().to_vec();
    line.push(b'\n');
    line
}
