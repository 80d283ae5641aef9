//! State that a front end needs to continue with another daemon when its own dies. Pure: lines in, lines out.
//!
//! It keeps the `initialize` line, the open sessions and how they were opened, and all unanswered requests:
//! the editor's and the daemon's own (permission requests). Of a line it parses only the envelope and, where
//! there is one, the session id.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::messages::{FrontendMessage, MessageKind};
use epitome_acp::envelope::{self, Incoming};
use epitome_acp::requests::REQUESTS_OPEN_MAX;
use epitome_acp::{answers, writer};

/// Daemon requests that are remembered. There are usually a few; beyond this the oldest is forgotten, and its
/// response dropped.
const DAEMON_REQUESTS_MAX: usize = 1024;

/// Prefix of the ids of the front end's own requests to a daemon.
const OWN: &str = "\"epitome-front-";

/// What to do with a line from the editor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineAction {
    /// Forward it to the daemon.
    Forward,
    /// Drop it.
    Drop,
    /// Don't forward it; send this response to the editor.
    Answer(Vec<u8>),
}

/// What to do with a message from the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonMessage {
    /// Forward its lines to the editor.
    Show,
    /// Send these lines instead.
    Instead(Vec<u8>),
}

/// The recorded state; see the module documentation.
#[derive(Debug, Default)]
pub struct ReconnectState {
    initialize: Option<Initialize>,
    /// The open sessions, each with the params it was opened with.
    open: BTreeMap<String, Box<RawValue>>,
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
}

#[derive(Debug)]
struct Initialize {
    line: Vec<u8>,
    answered: bool,
}

#[derive(Debug)]
struct WaitingRequest {
    id: Box<str>,
    wants: RequestEffect,
}

/// The request's type, as far as its response changes the recorded state.
#[derive(Debug)]
enum RequestEffect {
    Initialize,
    New(Box<RawValue>),
    Attach(String, Box<RawValue>),
    /// Closes or deletes a session.
    End(String),
    Prompt(String),
    Other,
}

#[derive(Debug)]
enum OwnRequest {
    Initialize,
    Resume(String),
}

#[derive(Debug)]
struct Owed {
    id: Box<str>,
    /// The session it waits for.
    behind: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamesSession {
    session_id: String,
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
            Incoming::Notification { .. } | Incoming::Invalid { .. } => LineAction::Forward,
            Incoming::Blank => LineAction::Drop,
        }
    }

    fn request(&mut self, id: &str, method: &str, params: Option<&RawValue>, line: &[u8]) -> LineAction {
        if self.waiting.len() + self.owed.len() >= REQUESTS_OPEN_MAX {
            return LineAction::Answer(error(id, answers::too_many_requests()));
        }
        let session = || {
            let params = params?;
            serde_json::from_str::<NamesSession>(params.get()).ok().map(|named| named.session_id)
        };
        let wants = match (method, params) {
            ("initialize", _) => {
                self.initialize = Some(Initialize { line: terminated_line(line), answered: false });
                RequestEffect::Initialize
            }
            ("session/new" | "session/fork", Some(params)) => RequestEffect::New(params.to_owned()),
            ("session/load" | "session/resume", Some(params)) => session()
                .map_or(RequestEffect::Other, |session| RequestEffect::Attach(session, params.to_owned())),
            ("session/close" | "session/delete", _) => {
                session().map_or(RequestEffect::Other, RequestEffect::End)
            }
            ("session/prompt", _) => session().map_or(RequestEffect::Other, RequestEffect::Prompt),
            _ => RequestEffect::Other,
        };
        self.waiting.push(WaitingRequest { id: id.into(), wants });
        LineAction::Forward
    }

    /// Forgets a line that the daemon did not receive completely, and returns whether to send it to the next
    /// daemon: not if it has been answered meanwhile, nor if the next daemon gets it anyway.
    pub fn take_back(&mut self, line: &[u8]) -> bool {
        match envelope::read(line) {
            Incoming::Request { id, .. } => {
                let (waiting, owed) = (self.waiting.len(), self.owed.len());
                self.waiting.retain(|waiting| {
                    *waiting.id != *id || matches!(waiting.wants, RequestEffect::Initialize)
                });
                self.owed.retain(|owed| *owed.id != *id);
                self.waiting.len() < waiting || self.owed.len() < owed
            }
            Incoming::Notification { .. } | Incoming::Invalid { .. } => true,
            // The daemon's request died with it.
            Incoming::Response { .. } | Incoming::Blank => false,
        }
    }

    /// Records a message from the daemon before its lines are forwarded to the editor.
    pub fn from_daemon(&mut self, message: &FrontendMessage<'_>) -> DaemonMessage {
        match message.kind {
            MessageKind::Notifications | MessageKind::Farewell => {}
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
                    return DaemonMessage::Instead(self.own_answered(own, succeeded(message)));
                }
                if let Some(at) = self.waiting.iter().position(|waiting| *waiting.id == *message.id) {
                    let waiting = self.waiting.remove(at);
                    self.answered(waiting.wants, message);
                }
            }
        }
        DaemonMessage::Show
    }

    fn answered(&mut self, wants: RequestEffect, message: &FrontendMessage<'_>) {
        let succeeded = succeeded(message);
        match wants {
            RequestEffect::Initialize => {
                if let Some(initialize) = &mut self.initialize {
                    initialize.answered = true;
                }
            }
            RequestEffect::New(params) => {
                if succeeded && let Some(session) = session_made(message.lines) {
                    self.open.insert(session, params);
                }
            }
            RequestEffect::Attach(session, params) => {
                if succeeded {
                    self.open.insert(session, params);
                }
            }
            RequestEffect::End(session) => {
                if succeeded {
                    self.open.remove(&session);
                }
            }
            RequestEffect::Prompt(_) | RequestEffect::Other => {}
        }
    }

    fn own_answered(&mut self, own: OwnRequest, succeeded: bool) -> Vec<u8> {
        match own {
            OwnRequest::Initialize => Vec::new(),
            OwnRequest::Resume(session) => {
                if !succeeded {
                    self.open.remove(&session);
                }
                self.pay(|owed| owed.behind.as_ref() == Some(&session))
            }
        }
    }

    /// Records that the daemon is gone, and returns the lines to send to the editor immediately:
    /// cancellations of the daemon's requests. The responses owed by the dead daemon are sent after `replay`.
    pub fn lost(&mut self) -> Vec<u8> {
        self.own.clear();
        let mut lines = Vec::new();
        for card in std::mem::take(&mut self.requests) {
            let line = format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"$/cancel_request\",\"params\":{{\"requestId\":{card}}}}}\n"
            );
            lines.extend_from_slice(line.as_bytes());
        }
        for waiting in std::mem::take(&mut self.waiting) {
            let behind = match waiting.wants {
                // Sent again unchanged by `replay`.
                RequestEffect::Initialize => {
                    self.waiting.push(waiting);
                    continue;
                }
                RequestEffect::Prompt(session) => self.open.contains_key(&session).then_some(session),
                // Whether it was closed is unknown, but closing was the intent.
                RequestEffect::End(session) => {
                    self.open.remove(&session);
                    None
                }
                RequestEffect::New(_) | RequestEffect::Attach(..) | RequestEffect::Other => None,
            };
            self.owed.push(Owed { id: waiting.id, behind });
        }
        lines
    }

    /// The first lines for a new daemon: `initialize`, and the sessions to resume.
    pub fn replay(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        let Some(initialize) = &self.initialize else { return lines };
        if initialize.answered {
            let line = initialize.line.clone();
            if let Incoming::Request { params, .. } = envelope::read(&line) {
                let params = params.map_or("{}", RawValue::get).to_owned();
                self.ask(&mut lines, "initialize", &params, OwnRequest::Initialize);
            }
        } else {
            lines.extend_from_slice(&initialize.line);
        }
        let open: Vec<(String, String)> =
            self.open.iter().map(|(session, params)| (session.clone(), resumed(session, params))).collect();
        for (session, params) in open {
            self.ask(&mut lines, "session/resume", &params, OwnRequest::Resume(session));
        }
        lines
    }

    fn ask(&mut self, lines: &mut Vec<u8>, method: &str, params: &str, own: OwnRequest) {
        self.own_ids += 1;
        let id = format!("{OWN}{}\"", self.own_ids);
        let line =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n");
        lines.extend_from_slice(line.as_bytes());
        self.own.insert(id, own);
    }

    /// The owed responses that wait for no session, to be sent once the new daemon has received the replay.
    pub fn answers_at_once(&mut self) -> Vec<u8> {
        self.pay(|owed| owed.behind.is_none())
    }

    /// All owed responses, without waiting for sessions any longer.
    pub fn answers_overdue(&mut self) -> Vec<u8> {
        self.pay(|_| true)
    }

    /// Like [`ReconnectState::answers_overdue`] when no daemon is available: answers a pending `initialize` as well.
    pub fn give_up(&mut self) -> Vec<u8> {
        for waiting in std::mem::take(&mut self.waiting) {
            self.owed.push(Owed { id: waiting.id, behind: None });
        }
        self.answers_overdue()
    }

    /// Whether any response is owed.
    pub fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Whether the editor's `initialize` is unanswered, because a daemon took it just before it ended.
    pub fn waits_for_greeting(&self) -> bool {
        self.initialize.as_ref().is_some_and(|initialize| !initialize.answered)
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
        let mut lines = Vec::new();
        self.owed.retain(|owed| {
            let is_due = due(owed);
            if is_due {
                let details =
                    "Epitome's daemon ended. Please send it again; what was done so far is in the session.";
                lines.extend_from_slice(&error(&owed.id, answers::interrupted(details)));
            }
            !is_due
        });
        lines
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

/// The response to a line that was too long to be read.
pub fn line_too_long() -> Vec<u8> {
    error("null", answers::line_too_long())
}

fn error(id: &str, error: answers::Error) -> Vec<u8> {
    let mut line = Vec::new();
    writer::response(&mut line, id, Err(error));
    line
}

/// Whether a response has a result. In our own lines it directly follows the id.
fn succeeded(message: &FrontendMessage<'_>) -> bool {
    let head = br#"{"jsonrpc":"2.0","id":"#.len() + message.id.len();
    message.lines.get(head..).is_some_and(|rest| rest.starts_with(br#","result":"#))
}

/// The session created by `session/new`.
fn session_made(response: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct SessionResponse {
        result: NamesSession,
    }
    serde_json::from_slice::<SessionResponse>(response).ok().map(|response| response.result.session_id)
}

/// The params of `session/resume` for a session that was opened with `opened`.
fn resumed(session: &str, opened: &RawValue) -> String {
    let mut params: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(opened.get()).unwrap_or_default();
    params.insert("sessionId".to_owned(), session.into());
    // The editor has seen everything except how the interrupted turn ended.
    params.insert("_meta".to_owned(), serde_json::json!({ "epitome": { "takenUp": true } }));
    serde_json::Value::Object(params).to_string()
}

fn terminated_line(line: &[u8]) -> Vec<u8> {
    let mut line = line.trim_ascii_end().to_vec();
    line.push(b'\n');
    line
}
