//! What a front end remembers, so that it can go on with another daemon when its own dies. Pure: lines in,
//! lines out.
//!
//! It keeps the `initialize` line, which sessions are open and how they were opened, and who waits for an answer:
//! the editor's requests, and the daemon's own (permission cards). Of a line it reads the envelope, and the
//! session's name where there is one.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::frame::{Frame, Kind};
use epitome_acp::envelope::{self, Incoming};
use epitome_acp::requests::REQUESTS_OPEN_MAX;
use epitome_acp::{answers, post};

/// Cards that are remembered. A person has a few; above this the oldest is forgotten, and its answer dropped.
const CARDS_MAX: usize = 1024;

/// What the ids of our own requests to a daemon begin with.
const OWN: &str = "\"epitome-front-";

/// What is to be done with a line of the editor's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// It goes on to the daemon.
    Forward,
    /// It goes nowhere.
    Drop,
    /// It goes nowhere, and this is its answer.
    Answer(Vec<u8>),
}

/// What is to be done with a frame of the daemon's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The frame's lines go to the editor.
    Show,
    /// They don't; these lines do.
    Instead(Vec<u8>),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Memory {
    initialize: Option<Initialize>,
    /// The open sessions, each with the params that it was opened with.
    open: BTreeMap<String, Box<RawValue>>,
    /// Requests of the editor's without an answer, oldest first.
    waiting: Vec<Waiting>,
    /// Ids of the daemon's own requests without an answer.
    cards: BTreeSet<u64>,
    highest: u64,
    /// Our own requests to the present daemon.
    own: BTreeMap<String, Own>,
    own_ids: u64,
    /// Requests that a dead daemon owes: they are answered when the session that they wait for is back.
    owed: Vec<Owed>,
}

#[derive(Debug)]
struct Initialize {
    line: Vec<u8>,
    answered: bool,
}

#[derive(Debug)]
struct Waiting {
    id: Box<str>,
    wants: Wants,
}

/// What a request wants, as far as its answer changes what is remembered.
#[derive(Debug)]
enum Wants {
    Initialize,
    New(Box<RawValue>),
    Attach(String, Box<RawValue>),
    /// To close or delete a session.
    End(String),
    Prompt(String),
    Other,
}

#[derive(Debug)]
enum Own {
    Initialize,
    Resume(String),
}

#[derive(Debug)]
struct Owed {
    id: Box<str>,
    /// Which session it waits for.
    behind: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamesSession {
    session_id: String,
}

impl Memory {
    /// Notes a line of the editor's before it goes to the daemon.
    pub fn from_editor(&mut self, line: &[u8]) -> Line {
        match envelope::read(line) {
            Incoming::Request { id, method, params } => self.request(id, &method, params, line),
            Incoming::Response { id, .. } => match id.parse::<u64>() {
                Ok(id) if self.cards.remove(&id) => Line::Forward,
                // An answer to a card that is withdrawn, or of a daemon that is dead.
                Ok(_) | Err(_) => Line::Drop,
            },
            Incoming::Notification { .. } | Incoming::Invalid { .. } => Line::Forward,
            Incoming::Blank => Line::Drop,
        }
    }

    fn request(&mut self, id: &str, method: &str, params: Option<&RawValue>, line: &[u8]) -> Line {
        if self.waiting.len() + self.owed.len() >= REQUESTS_OPEN_MAX {
            return Line::Answer(error(id, answers::too_many_requests()));
        }
        let session = || {
            let params = params?;
            serde_json::from_str::<NamesSession>(params.get()).ok().map(|named| named.session_id)
        };
        let wants = match (method, params) {
            ("initialize", _) => {
                self.initialize = Some(Initialize { line: whole(line), answered: false });
                Wants::Initialize
            }
            ("session/new" | "session/fork", Some(params)) => Wants::New(params.to_owned()),
            ("session/load" | "session/resume", Some(params)) => {
                session().map_or(Wants::Other, |session| Wants::Attach(session, params.to_owned()))
            }
            ("session/close" | "session/delete", _) => session().map_or(Wants::Other, Wants::End),
            ("session/prompt", _) => session().map_or(Wants::Other, Wants::Prompt),
            _ => Wants::Other,
        };
        self.waiting.push(Waiting { id: id.into(), wants });
        Line::Forward
    }

    /// Takes back what was noted of a line that the daemon did not get whole, and says whether it is to go to the
    /// next one. Not where it has been answered meanwhile, nor where the next one hears it anyway.
    pub fn take_back(&mut self, line: &[u8]) -> bool {
        match envelope::read(line) {
            Incoming::Request { id, .. } => {
                let (waiting, owed) = (self.waiting.len(), self.owed.len());
                self.waiting
                    .retain(|waiting| *waiting.id != *id || matches!(waiting.wants, Wants::Initialize));
                self.owed.retain(|owed| *owed.id != *id);
                self.waiting.len() < waiting || self.owed.len() < owed
            }
            Incoming::Notification { .. } | Incoming::Invalid { .. } => true,
            // Its card is void.
            Incoming::Response { .. } | Incoming::Blank => false,
        }
    }

    /// Notes a frame of the daemon's before its lines go to the editor.
    pub fn from_daemon(&mut self, frame: &Frame<'_>) -> Heard {
        match frame.kind {
            Kind::Lines | Kind::Bye => {}
            Kind::Request => {
                if let Ok(id) = frame.id.parse::<u64>() {
                    self.highest = self.highest.max(id);
                    self.cards.insert(id);
                    if self.cards.len() > CARDS_MAX {
                        self.cards.pop_first();
                    }
                }
            }
            Kind::Withdrawn => {
                if let Ok(id) = frame.id.parse::<u64>() {
                    self.cards.remove(&id);
                }
            }
            Kind::Response => {
                if let Some(own) = self.own.remove(frame.id) {
                    return Heard::Instead(self.own_answered(own, succeeded(frame)));
                }
                if let Some(at) = self.waiting.iter().position(|waiting| *waiting.id == *frame.id) {
                    let waiting = self.waiting.remove(at);
                    self.answered(waiting.wants, frame);
                }
            }
        }
        Heard::Show
    }

    fn answered(&mut self, wants: Wants, frame: &Frame<'_>) {
        let succeeded = succeeded(frame);
        match wants {
            Wants::Initialize => {
                if let Some(initialize) = &mut self.initialize {
                    initialize.answered = true;
                }
            }
            Wants::New(params) => {
                if succeeded && let Some(session) = session_made(frame.body) {
                    self.open.insert(session, params);
                }
            }
            Wants::Attach(session, params) => {
                if succeeded {
                    self.open.insert(session, params);
                }
            }
            Wants::End(session) => {
                if succeeded {
                    self.open.remove(&session);
                }
            }
            Wants::Prompt(_) | Wants::Other => {}
        }
    }

    fn own_answered(&mut self, own: Own, succeeded: bool) -> Vec<u8> {
        match own {
            Own::Initialize => Vec::new(),
            Own::Resume(session) => {
                if !succeeded {
                    self.open.remove(&session);
                }
                self.pay(|owed| owed.behind.as_ref() == Some(&session))
            }
        }
    }

    /// Notes that the daemon is gone, and gives what the editor is told of it at once: its cards are void. The
    /// other lines that the dead daemon owes come with `replay` and behind it.
    pub fn lost(&mut self) -> Vec<u8> {
        self.own.clear();
        let mut lines = Vec::new();
        for card in std::mem::take(&mut self.cards) {
            let line = format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"$/cancel_request\",\"params\":{{\"requestId\":{card}}}}}\n"
            );
            lines.extend_from_slice(line.as_bytes());
        }
        for waiting in std::mem::take(&mut self.waiting) {
            let behind = match waiting.wants {
                // It is sent again as it was.
                Wants::Initialize => {
                    self.waiting.push(waiting);
                    continue;
                }
                Wants::Prompt(session) => self.open.contains_key(&session).then_some(session),
                // Whether it was closed is not known; that is what was wanted.
                Wants::End(session) => {
                    self.open.remove(&session);
                    None
                }
                Wants::New(_) | Wants::Attach(..) | Wants::Other => None,
            };
            self.owed.push(Owed { id: waiting.id, behind });
        }
        lines
    }

    /// What a new daemon is to hear first: who we are, and which sessions are open.
    pub fn replay(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        let Some(initialize) = &self.initialize else { return lines };
        if initialize.answered {
            let line = initialize.line.clone();
            if let Incoming::Request { params, .. } = envelope::read(&line) {
                let params = params.map_or("{}", RawValue::get).to_owned();
                self.ask(&mut lines, "initialize", &params, Own::Initialize);
            }
        } else {
            lines.extend_from_slice(&initialize.line);
        }
        let open: Vec<(String, String)> =
            self.open.iter().map(|(session, params)| (session.clone(), resumed(session, params))).collect();
        for (session, params) in open {
            self.ask(&mut lines, "session/resume", &params, Own::Resume(session));
        }
        lines
    }

    fn ask(&mut self, lines: &mut Vec<u8>, method: &str, params: &str, own: Own) {
        self.own_ids += 1;
        let id = format!("{OWN}{}\"", self.own_ids);
        let line =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n");
        lines.extend_from_slice(line.as_bytes());
        self.own.insert(id, own);
    }

    /// The answers that wait for nothing, once the new daemon has been told.
    pub fn answers_at_once(&mut self) -> Vec<u8> {
        self.pay(|owed| owed.behind.is_none())
    }

    /// All answers that are owed: no session is waited for any longer.
    pub fn answers_overdue(&mut self) -> Vec<u8> {
        self.pay(|_| true)
    }

    /// The same where there is no other daemon to be had: who waits for `initialize` waits in vain, too.
    pub fn give_up(&mut self) -> Vec<u8> {
        for waiting in std::mem::take(&mut self.waiting) {
            self.owed.push(Owed { id: waiting.id, behind: None });
        }
        self.answers_overdue()
    }

    /// Whether an answer waits for a session to be back.
    pub fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Whether the editor has greeted and waits for the answer: a daemon that was just leaving took the line.
    pub fn waits_for_greeting(&self) -> bool {
        self.initialize.as_ref().is_some_and(|initialize| !initialize.answered)
    }

    /// Whether the new daemon has answered all that it was asked at first.
    pub fn is_settled(&self) -> bool {
        self.own.is_empty()
    }

    /// The highest id of a daemon's own request so far.
    pub fn ids_above(&self) -> u64 {
        self.highest
    }

    fn pay(&mut self, due: impl Fn(&Owed) -> bool) -> Vec<u8> {
        let mut lines = Vec::new();
        self.owed.retain(|owed| {
            let is_due = due(owed);
            if is_due {
                let details =
                    "Epitome's daemon ended. Please send it again; what was done of it is in the session.";
                lines.extend_from_slice(&error(&owed.id, answers::interrupted(details)));
            }
            !is_due
        });
        lines
    }
}

/// The answer to a request that no daemon can be had for.
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

fn error(id: &str, error: answers::Error) -> Vec<u8> {
    let mut line = Vec::new();
    post::response(&mut line, id, Err(error));
    line
}

/// Whether a response holds a result. Ours have it right behind the id.
fn succeeded(frame: &Frame<'_>) -> bool {
    let head = br#"{"jsonrpc":"2.0","id":"#.len() + frame.id.len();
    frame.body.get(head..).is_some_and(|rest| rest.starts_with(br#","result":"#))
}

/// The session that `session/new` made.
fn session_made(response: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Response {
        result: NamesSession,
    }
    serde_json::from_slice::<Response>(response).ok().map(|response| response.result.session_id)
}

/// The params of `session/resume` for a session that was opened with these.
fn resumed(session: &str, opened: &RawValue) -> String {
    let mut params: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(opened.get()).unwrap_or_default();
    params.insert("sessionId".to_owned(), session.into());
    // The editor has seen everything but how the turn ended that died with the daemon.
    params.insert("_meta".to_owned(), serde_json::json!({ "epitome": { "takenUp": true } }));
    serde_json::Value::Object(params).to_string()
}

fn whole(line: &[u8]) -> Vec<u8> {
    let mut line = line.trim_ascii_end().to_vec();
    line.push(b'\n');
    line
}
