//! Who waits for an answer: requests of the client that we owe one, and questions of ours that the
//! client owes us one. Each entry is taken out exactly once, so nothing is answered twice.

use std::collections::HashMap;

use crate::session::{AskId, Ticket};
use crate::thread::SessionId;

/// Requests of one client that may be open at a time; a runaway client gets errors beyond.
pub const REQUESTS_OPEN_MAX: usize = 4096;

/// What a request was, as far as its answer depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    New,
    Load,
    Resume,
    Prompt,
    SetMode,
    SetOption,
    Close,
    List,
    Delete,
}

/// A request of the client that has no answer yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// The id as it came, to the byte.
    pub id: Box<str>,
    pub kind: RequestKind,
    /// The session that it names, for those that name one.
    pub session: Option<SessionId>,
}

/// A permission request of ours that has no answer yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub session: SessionId,
    pub ask: AskId,
    /// Whether "always" was among the offers.
    pub always: bool,
}

/// Both tables.
#[derive(Debug)]
pub struct Requests {
    next_ticket: u64,
    open: HashMap<Ticket, OpenRequest>,
    next_own: u64,
    asked: HashMap<u64, Asked>,
}

impl Requests {
    /// Ids of our own requests begin at a number made of the time, and so never repeat between one
    /// life of the process and the next: a late "allow" cannot meet another question.
    pub fn new(unix_seconds: u64) -> Requests {
        // 32 bits of time and 20 bits of count stay below 2^53, the largest integer of JavaScript.
        let next_own = (unix_seconds & 0xffff_ffff) << 20;
        Requests { next_ticket: 1, open: HashMap::new(), next_own, asked: HashMap::new() }
    }

    /// Notes a request; `None` if too many are open.
    pub fn open(&mut self, request: OpenRequest) -> Option<Ticket> {
        if self.open.len() >= REQUESTS_OPEN_MAX {
            return None;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.open.insert(ticket, request);
        Some(ticket)
    }

    /// Takes a request out, to answer it.
    pub fn answer(&mut self, ticket: Ticket) -> Option<OpenRequest> {
        self.open.remove(&ticket)
    }

    /// The open prompt with this id.
    pub fn prompt_with_id(&self, id: &str) -> Option<(Ticket, SessionId)> {
        self.open.iter().find_map(|(ticket, request)| {
            (request.kind == RequestKind::Prompt && *request.id == *id)
                .then(|| request.session.clone().map(|session| (*ticket, session)))?
        })
    }

    /// Notes a question and gives the id of its request.
    pub fn ask(&mut self, asked: Asked) -> u64 {
        let id = self.next_own;
        self.next_own += 1;
        self.asked.insert(id, asked);
        id
    }

    /// Takes a question out by the id of its request, to pass its answer on.
    pub fn decided(&mut self, id: u64) -> Option<Asked> {
        self.asked.remove(&id)
    }

    /// Takes a question out that is void; gives the id of its request if it is still unanswered.
    pub fn withdraw(&mut self, session: &SessionId, ask: AskId) -> Option<u64> {
        let id = *self.asked.iter().find(|(_, asked)| asked.session == *session && asked.ask == ask)?.0;
        self.asked.remove(&id);
        Some(id)
    }

    /// Requests of the client that have no answer yet.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }
}
