//! Unanswered requests: those from the client, and those sent to it. Each is removed exactly once, so that nothing is
//! answered twice.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::client_mcp::{McpCall, McpCalls};
use epitome_session_api::{AskId, Ticket};
use epitome_thread::{Entry, SessionId};

/// Unanswered requests allowed per client; further requests are rejected.
pub const REQUESTS_OPEN_MAX: usize = 4096;

/// The kind of a request; its response depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A new session, or a fork of one.
    New,
    Load,
    Resume,
    /// Resumes a session, and replays its conversation.
    ResumeReplayed,
    Prompt,
    Steer,
    SetMode,
    SetOption,
    Close,
    /// Cancels one call or terminal.
    CancelOne,
    /// Another request that only reads. If the client cancels it, it is answered immediately.
    Read,
    /// Another request that changes something.
    Write,
}

/// An unanswered request of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingRequest {
    /// The request's id, byte for byte.
    pub id: Box<str>,
    pub kind: RequestKind,
    /// The session it refers to, if any.
    pub session: Option<SessionId>,
    pub opening: OpeningState,
}

/// The progress of a request that opens a session, and whether its client has cancelled it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OpeningState {
    /// It opens no session, or one that the client has open already.
    #[default]
    None,
    /// The session is about to be opened. A new session has no id yet.
    Begun,
    /// The session was asked to attach the client.
    Attaching(SessionId),
    /// The client has cancelled the request. If the session is known, the client is detached as soon as it is open.
    Cancelled(Option<SessionId>),
}

/// The handling of a request that its client cancels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// The session answers the prompt once it is cancelled.
    Prompt(Ticket, SessionId),
    /// It has been removed and must be answered as cancelled.
    Answer(IncomingRequest),
    /// The client must be detached from this session. The request is answered as cancelled when the session answers.
    Detach(SessionId),
    /// It is unknown or answered already, or it completes as if it had not been cancelled.
    Nothing,
}

/// An unanswered request from the agent to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingRequest {
    pub session: SessionId,
    pub ask: AskId,
    pub what: OutgoingKind,
}

/// The kind of a request to the client; the handling of its answer depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutgoingKind {
    /// A permission request, and whether "always" and "never" were offered.
    Permission { always: bool, never: bool },
    /// A form or a URL elicitation.
    Elicitation,
    /// Reading the editor's text of a file.
    Text,
    /// Writing a file through the editor.
    Put,
}

/// Tickets are unique in the process, because a session shared by two clients gets tickets from both.
static NEXT_TICKET: AtomicU64 = AtomicU64::new(1);

/// The largest integer that every JSON parser represents exactly, including JavaScript's.
const ID_MAX: u64 = (1 << 53) - 1;

/// The first id for requests to the client: above all ids that this client has seen, and derived from the time. Ids are
/// therefore not repeated after a restart, and a late "allow" can't match a different request.
pub fn first_id(unix_seconds: u64, seen: u64) -> u64 {
    // 32 bits of time and 20 bits of counter stay below `ID_MAX`.
    let of_time = (unix_seconds & 0xffff_ffff) << 20;
    // Leaves as much room for ids as the time-based start does. Epitome never issued a larger value.
    let above = if seen < ID_MAX - (1 << 20) { seen + 1 } else { 0 };
    of_time.max(above)
}

/// Tables of unanswered requests, and of running subagents.
#[derive(Debug, Default)]
pub struct Requests {
    open: HashMap<Ticket, IncomingRequest>,
    next_own: u64,
    asked: HashMap<u64, OutgoingRequest>,
    /// The sessions that the client has opened, each with the skills that it was shown as a separate kind.
    sessions: HashMap<SessionId, HashSet<String>>,
    /// Sessions whose opening the client has cancelled and that it has not opened again.
    abandoned: HashSet<SessionId>,
    /// Running subagents known to the client, each with its parent.
    agents: HashMap<SessionId, SessionId>,
    /// Finished subagents whose calls were replayed to the client, which can load them.
    finished: HashMap<SessionId, FinishedAgent>,
    mcp: McpCalls,
}

/// A subagent's record in the log of its parent.
#[derive(Clone, Debug)]
pub struct FinishedAgent {
    pub parent: SessionId,
    /// The task that it was given.
    pub task: String,
    /// The entry with the outcome of its call, which contains its work.
    pub outcome: Arc<Entry>,
}

impl Requests {
    /// `first_own` is the id of the first request to the client; see [`first_id`].
    pub fn new(first_own: u64) -> Requests {
        Requests { next_own: first_own, ..Requests::default() }
    }

    /// Records a request. Returns `None` if too many are unanswered.
    pub fn open(&mut self, request: IncomingRequest) -> Option<Ticket> {
        if self.open.len() >= REQUESTS_OPEN_MAX {
            return None;
        }
        let ticket = Ticket(NEXT_TICKET.fetch_add(1, Ordering::Relaxed));
        self.open.insert(ticket, request);
        Some(ticket)
    }

    /// The unanswered request with this ticket.
    pub fn unanswered(&self, ticket: Ticket) -> Option<&IncomingRequest> {
        self.open.get(&ticket)
    }

    /// Removes a request in order to answer it.
    pub fn answer(&mut self, ticket: Ticket) -> Option<IncomingRequest> {
        self.open.remove(&ticket)
    }

    /// Cancels the unanswered request with this id.
    pub fn cancel(&mut self, id: &str) -> Cancellation {
        let Some((&ticket, found)) = self.open.iter().find(|(_, request)| *request.id == *id) else {
            return Cancellation::Nothing;
        };
        let is_opened_again = match &found.opening {
            OpeningState::Attaching(session) => self.open.iter().any(|(other, request)| {
                *other != ticket
                    && matches!(
                        request.kind,
                        RequestKind::Load | RequestKind::Resume | RequestKind::ResumeReplayed
                    )
                    && !matches!(request.opening, OpeningState::Cancelled(_))
                    && request.session.as_ref() == Some(session)
            }),
            OpeningState::None | OpeningState::Begun | OpeningState::Cancelled(_) => false,
        };
        let Some(request) = self.open.get_mut(&ticket) else { return Cancellation::Nothing };
        match (request.kind, &request.session, &request.opening) {
            (RequestKind::Prompt, Some(session), _) => Cancellation::Prompt(ticket, session.clone()),
            (RequestKind::Read, _, _) => {
                self.open.remove(&ticket).map_or(Cancellation::Nothing, Cancellation::Answer)
            }
            (_, _, OpeningState::Begun) => {
                request.opening = OpeningState::Cancelled(None);
                Cancellation::Nothing
            }
            // Detaching the client would take the session from the other request.
            (_, _, OpeningState::Attaching(_)) if is_opened_again => Cancellation::Nothing,
            (_, _, OpeningState::Attaching(session)) => {
                let session = session.clone();
                request.opening = OpeningState::Cancelled(Some(session.clone()));
                self.abandoned.insert(session.clone());
                Cancellation::Detach(session)
            }
            (_, _, OpeningState::None | OpeningState::Cancelled(_)) => Cancellation::Nothing,
        }
    }

    /// Records the session that a request is about to open. Returns false if the request was cancelled or answered, in
    /// which case the session must not be opened.
    pub fn attaching(&mut self, ticket: Ticket, session: &SessionId) -> bool {
        match self.open.get_mut(&ticket).map(|request| &mut request.opening) {
            Some(opening @ OpeningState::Begun) => {
                *opening = OpeningState::Attaching(session.clone());
                true
            }
            Some(OpeningState::Cancelled(_)) | None => false,
            Some(OpeningState::None | OpeningState::Attaching(_)) => true,
        }
    }

    /// Records the session that a request has created. Returns whether the client must be detached from it, because the
    /// client has cancelled the request.
    pub fn created(&mut self, ticket: Ticket, session: &SessionId) -> bool {
        // A request that has been answered was not cancelled.
        let Some(request) = self.open.get_mut(&ticket) else { return false };
        let is_cancelled = matches!(request.opening, OpeningState::Cancelled(_));
        request.opening = match is_cancelled {
            true => OpeningState::Cancelled(Some(session.clone())),
            false => OpeningState::Attaching(session.clone()),
        };
        if is_cancelled {
            self.abandoned.insert(session.clone());
        }
        is_cancelled
    }

    /// Whether a request is unanswered and its client has not cancelled it.
    pub fn is_wanted(&self, ticket: Ticket) -> bool {
        let request = self.open.get(&ticket);
        request.is_some_and(|request| !matches!(request.opening, OpeningState::Cancelled(_)))
    }

    /// Whether the client has cancelled the request that opened this session, so that none of its updates are written.
    pub fn is_abandoned(&self, session: &SessionId) -> bool {
        self.abandoned.contains(session)
    }

    /// Records that the client opens a session, so that its later requests find the session.
    pub fn session_opens(&mut self, session: SessionId) {
        self.abandoned.remove(&session);
        self.sessions.entry(session).or_default();
    }

    pub fn session_closed(&mut self, session: &SessionId) {
        self.sessions.remove(session);
        self.finished.retain(|_, agent| agent.parent != *session);
    }

    /// Whether the client has opened a session, or is about to.
    pub fn has_opened(&self, session: &SessionId) -> bool {
        self.sessions.contains_key(session) && !self.is_abandoned(session)
    }

    /// Records the skills that the client was shown.
    pub fn lists_skills(&mut self, session: &SessionId, names: impl Iterator<Item = String>) {
        if let Some(listed) = self.sessions.get_mut(session) {
            *listed = names.collect();
        }
    }

    /// Whether the client was shown this skill.
    pub fn has_skill(&self, session: &SessionId, name: &str) -> bool {
        self.sessions.get(session).is_some_and(|listed| listed.contains(name))
    }

    /// Records a request to the client and returns its id.
    pub fn ask(&mut self, asked: OutgoingRequest) -> u64 {
        let id = self.own_id();
        self.asked.insert(id, asked);
        id
    }

    /// Records a request to a server of the client and returns its id; `None` if too many are unanswered.
    pub fn ask_mcp(&mut self, call: McpCall) -> Option<u64> {
        let id = self.own_id();
        self.mcp.open(id, call).then_some(id)
    }

    /// The unanswered requests to servers of the client.
    pub fn mcp(&mut self) -> &mut McpCalls {
        &mut self.mcp
    }

    fn own_id(&mut self) -> u64 {
        let id = self.next_own;
        self.next_own += 1;
        id
    }

    /// Records a running subagent and its parent, a session or another subagent.
    pub fn agent_works(&mut self, agent: SessionId, parent: SessionId) {
        self.agents.insert(agent, parent);
    }

    pub fn agent_ended(&mut self, agent: &SessionId) {
        self.agents.remove(agent);
    }

    pub fn agent_can_be_loaded(&mut self, agent: SessionId, record: FinishedAgent) {
        self.finished.insert(agent, record);
    }

    pub fn finished_agent(&self, agent: &SessionId) -> Option<FinishedAgent> {
        self.finished.get(agent).cloned()
    }

    /// The session at the root of a subagent's chain of parents; `None` if it is not a running subagent.
    pub fn root_of(&self, agent: &SessionId) -> Option<SessionId> {
        let mut root = self.agents.get(agent)?;
        // A subagent announced twice with different parents could create a cycle, so the number of steps is limited.
        for _ in 0..self.agents.len() {
            match self.agents.get(root) {
                Some(above) => root = above,
                None => return Some(root.clone()),
            }
        }
        None
    }

    /// Removes a request to the client by its id, in order to pass on its answer.
    pub fn decided(&mut self, id: u64) -> Option<OutgoingRequest> {
        self.asked.remove(&id)
    }

    /// Removes a withdrawn request to the client. Returns its id if it was unanswered.
    pub fn withdraw(&mut self, session: &SessionId, ask: AskId) -> Option<u64> {
        let id = *self.asked.iter().find(|(_, asked)| asked.session == *session && asked.ask == ask)?.0;
        self.asked.remove(&id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: &str) -> IncomingRequest {
        let session = Some(SessionId("s_0".to_owned()));
        let opening = OpeningState::None;
        IncomingRequest { id: id.into(), kind: RequestKind::Prompt, session, opening }
    }

    #[test]
    fn a_request_is_answered_once() {
        let mut requests = Requests::new(0);
        let ticket = requests.open(request("1")).expect("one request is not too many");
        assert_eq!(requests.answer(ticket), Some(request("1")));
        assert_eq!(requests.answer(ticket), None);
    }

    #[test]
    fn what_a_cancelled_request_leads_to_depends_on_its_kind() {
        let session = || SessionId("s_0".to_owned());
        let mut requests = Requests::new(0);
        let mut open = |kind, opening| {
            let request = IncomingRequest { id: "\"a\"".into(), kind, session: Some(session()), opening };
            let ticket = requests.open(request.clone()).expect("one request is not too many");
            let cancelled = requests.cancel("\"a\"");
            // Ids of different JSON types are different ids.
            assert_eq!(requests.cancel("a"), Cancellation::Nothing);
            let left = requests.answer(ticket);
            (cancelled, left.is_some(), ticket, request)
        };
        let (cancelled, is_open, ticket, _) = open(RequestKind::Prompt, OpeningState::None);
        assert_eq!((cancelled, is_open), (Cancellation::Prompt(ticket, session()), true));
        let (cancelled, is_open, _, request) = open(RequestKind::Read, OpeningState::None);
        assert_eq!((cancelled, is_open), (Cancellation::Answer(request), false));
        let attaching = OpeningState::Attaching(session());
        let (cancelled, is_open, ..) = open(RequestKind::Load, attaching);
        assert_eq!((cancelled, is_open), (Cancellation::Detach(session()), true));
        for (kind, opening) in [
            (RequestKind::New, OpeningState::Begun),
            // The client has that session open, and keeps it.
            (RequestKind::Load, OpeningState::None),
            (RequestKind::Write, OpeningState::None),
        ] {
            let (cancelled, is_open, ..) = open(kind, opening);
            assert_eq!((cancelled, is_open), (Cancellation::Nothing, true), "{kind:?}");
        }
        assert!(requests.is_abandoned(&session()));
        requests.session_opens(session());
        assert!(!requests.is_abandoned(&session()));
    }

    #[test]
    fn a_request_that_was_cancelled_opens_nothing_any_more() {
        let session = SessionId("s_0".to_owned());
        let mut requests = Requests::new(0);
        let begun =
            || IncomingRequest { kind: RequestKind::New, opening: OpeningState::Begun, ..request("1") };
        let ticket = requests.open(begun()).expect("one request is not too many");
        assert!(requests.attaching(ticket, &session));
        assert_eq!(requests.cancel("1"), Cancellation::Detach(session.clone()));
        requests.answer(ticket);
        let ticket = requests.open(begun()).expect("one request is not too many");
        requests.cancel("1");
        assert!(!requests.is_wanted(ticket) && !requests.attaching(ticket, &session));
        assert!(requests.created(ticket, &session) && requests.is_abandoned(&session));
    }

    /// Regression: the client was detached from the session. Its next message was never answered, neither behind the
    /// cancelled request, nor behind another one that had opened the same session meanwhile.
    #[test]
    fn a_request_to_open_a_session_that_is_cancelled_takes_it_from_no_other_request() {
        let session = SessionId("s_0".to_owned());
        for is_opened_again in [false, true] {
            let mut requests = Requests::new(0);
            let load = |id, opening| IncomingRequest { kind: RequestKind::Load, opening, ..request(id) };
            let ticket = requests.open(load("1", OpeningState::Begun)).expect("it is not too many");
            requests.session_opens(session.clone());
            assert!(requests.attaching(ticket, &session));
            if is_opened_again {
                requests.open(load("2", OpeningState::None)).expect("these are not too many");
            }
            let detaches = requests.cancel("1") == Cancellation::Detach(session.clone());
            assert_eq!((detaches, requests.has_opened(&session)), (!is_opened_again, is_opened_again));
        }
    }

    #[test]
    fn a_client_with_too_many_open_requests_must_wait() {
        let mut requests = Requests::new(0);
        let tickets: Vec<Ticket> =
            (0..REQUESTS_OPEN_MAX).filter_map(|_| requests.open(request("1"))).collect();
        assert_eq!(requests.open(request("1")), None);
        requests.answer(tickets[0]);
        assert!(requests.open(request("1")).is_some());
    }

    #[test]
    fn a_subagent_belongs_to_its_root_session_until_it_ends() {
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
    fn request_ids_are_not_repeated_after_a_restart() {
        let asked = || OutgoingRequest {
            session: SessionId("s_0".to_owned()),
            ask: AskId(1),
            what: OutgoingKind::Permission { always: false, never: false },
        };
        let now = 1_795_300_000;
        let ask = |seconds, seen| Requests::new(first_id(seconds, seen)).ask(asked());
        let (first, next) = (ask(now, 0), ask(now + 1, 0));
        assert!(first < next && next <= ID_MAX);
        // Within the same second, or after the clock was set back, the ids seen take precedence.
        assert_eq!(ask(now, first + 7), first + 8);
        assert_eq!(ask(now - 1000, next), next + 1);
        // A client can't push ids out of the exactly representable range.
        assert_eq!(ask(now, u64::MAX), first);
    }

    #[test]
    fn a_withdrawn_request_cannot_be_answered() {
        let mut requests = Requests::new(0);
        let session = SessionId("s_0".to_owned());
        let id = requests.ask(OutgoingRequest {
            session: session.clone(),
            ask: AskId(1),
            what: OutgoingKind::Permission { always: true, never: false },
        });
        assert_eq!(requests.withdraw(&session, AskId(1)), Some(id));
        assert_eq!(requests.decided(id), None);
        assert_eq!(requests.withdraw(&session, AskId(1)), None);
    }
}
