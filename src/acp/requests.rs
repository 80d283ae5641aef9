//! Who waits for an answer: requests of the client that we owe one, and questions of ours that the
//! client owes us one. Each entry is taken out exactly once, so nothing is answered twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use epitome_session::{AskId, Ticket};
use epitome_thread::SessionId;

/// Requests of one client that may be open at a time; a runaway client gets errors beyond.
pub const REQUESTS_OPEN_MAX: usize = 4096;

/// What a request was, as far as its answer depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    New,
    Fork,
    Load,
    Resume,
    Prompt,
    Steer,
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

/// A request of ours that has no answer yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub session: SessionId,
    pub ask: AskId,
    pub what: What,
}

/// What was asked, as far as its answer depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A permission, and whether "always" and "never" were among the offers.
    Permission { always: bool, never: bool },
    /// A form or an address.
    Elicitation,
    /// The text that an editor holds of a file.
    Text,
    /// That it holds this text.
    Put,
}

/// Tickets are told apart in the whole process, because a session that two clients share gets them
/// from both.
static NEXT_TICKET: AtomicU64 = AtomicU64::new(1);

/// The largest integer that every JSON reader keeps, JavaScript's among them.
const ID_MAX: u64 = (1 << 53) - 1;

/// Where the ids of our own requests begin: above all that this client has seen, and at a number made of the
/// time. So they never repeat between one life of the process and the next, and a late "allow" cannot meet
/// another question.
pub fn first_id(unix_seconds: u64, seen: u64) -> u64 {
    // 32 bits of time and 20 bits of count stay below `ID_MAX`.
    let of_time = (unix_seconds & 0xffff_ffff) << 20;
    // Room for as many questions as the time leaves; what claims to have seen more was never given out by us.
    let above = if seen < ID_MAX - (1 << 20) { seen + 1 } else { 0 };
    of_time.max(above)
}

/// Both tables.
#[derive(Debug)]
pub struct Requests {
    open: HashMap<Ticket, OpenRequest>,
    next_own: u64,
    asked: HashMap<u64, Asked>,
    /// The agents that the client was told of and that work, each with who started it.
    agents: HashMap<SessionId, SessionId>,
}

impl Requests {
    /// `first_own` is the id of our first own request; see [`first_id`].
    pub fn new(first_own: u64) -> Requests {
        Requests { open: HashMap::new(), next_own: first_own, asked: HashMap::new(), agents: HashMap::new() }
    }

    /// Notes a request; `None` if too many are open.
    pub fn open(&mut self, request: OpenRequest) -> Option<Ticket> {
        if self.open.len() >= REQUESTS_OPEN_MAX {
            return None;
        }
        let ticket = Ticket(NEXT_TICKET.fetch_add(1, Ordering::Relaxed));
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

    /// Notes that an agent works for a session, or for another agent.
    pub fn agent_works(&mut self, agent: SessionId, parent: SessionId) {
        self.agents.insert(agent, parent);
    }

    pub fn agent_ended(&mut self, agent: &SessionId) {
        self.agents.remove(agent);
    }

    /// The session that an agent works under, through however many agents; `None` where it is no agent at work.
    pub fn root_of(&self, agent: &SessionId) -> Option<SessionId> {
        let mut root = self.agents.get(agent)?;
        // One that is told of twice under others could close a ring; it has no more links than there are agents.
        for _ in 0..self.agents.len() {
            match self.agents.get(root) {
                Some(above) => root = above,
                None => return Some(root.clone()),
            }
        }
        None
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: &str) -> OpenRequest {
        let session = Some(SessionId("s_0".to_owned()));
        OpenRequest { id: id.into(), kind: RequestKind::Prompt, session }
    }

    #[test]
    fn a_request_is_answered_once() {
        let mut requests = Requests::new(0);
        let ticket = requests.open(request("1")).expect("one request is not too many");
        assert_eq!(requests.answer(ticket), Some(request("1")));
        assert_eq!(requests.answer(ticket), None);
    }

    #[test]
    fn a_runaway_client_is_stopped_until_it_got_answers() {
        let mut requests = Requests::new(0);
        let tickets: Vec<Ticket> =
            (0..REQUESTS_OPEN_MAX).filter_map(|_| requests.open(request("1"))).collect();
        assert_eq!(requests.open(request("1")), None);
        requests.answer(tickets[0]);
        assert!(requests.open(request("1")).is_some());
    }

    #[test]
    fn an_agent_belongs_to_the_session_at_the_root_until_it_ends() {
        let id = |name: &str| SessionId(name.to_owned());
        let mut requests = Requests::new(0);
        requests.agent_works(id("s_a"), id("s_0"));
        requests.agent_works(id("s_b"), id("s_a"));
        let roots = |requests: &Requests| ["s_0", "s_a", "s_b"].map(|name| requests.root_of(&id(name)));
        assert_eq!(roots(&requests), [None, Some(id("s_0")), Some(id("s_0"))]);
        requests.agent_ended(&id("s_b"));
        assert_eq!(roots(&requests), [None, Some(id("s_0")), None]);
        requests.agent_works(id("s_0"), id("s_a"));
        assert_eq!(requests.root_of(&id("s_a")), None);
    }

    #[test]
    fn ids_of_questions_do_not_repeat_in_the_next_life() {
        let asked = || Asked {
            session: SessionId("s_0".to_owned()),
            ask: AskId(1),
            what: What::Permission { always: false, never: false },
        };
        let now = 1_795_300_000;
        let ask = |seconds, seen| Requests::new(first_id(seconds, seen)).ask(asked());
        let (first, next) = (ask(now, 0), ask(now + 1, 0));
        assert!(first < next && next <= ID_MAX);
        // Within the same second, and with a clock that was set back, what was seen decides.
        assert_eq!(ask(now, first + 7), first + 8);
        assert_eq!(ask(now - 1000, next), next + 1);
        // Nobody can push us out of the range in which numbers stay what they are.
        assert_eq!(ask(now, u64::MAX), first);
    }

    #[test]
    fn a_withdrawn_question_cannot_be_decided() {
        let mut requests = Requests::new(0);
        let session = SessionId("s_0".to_owned());
        let id = requests.ask(Asked {
            session: session.clone(),
            ask: AskId(1),
            what: What::Permission { always: true, never: false },
        });
        assert_eq!(requests.withdraw(&session, AskId(1)), Some(id));
        assert_eq!(requests.decided(id), None);
        assert_eq!(requests.withdraw(&session, AskId(1)), None);
    }
}
