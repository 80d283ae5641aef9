//! Decides which daemon each message of a connection is for, if some of its sessions are open at other servers. Pure:
//! lines in, decisions out.
//!
//! The client's own server is asked first for every session. Only its answer says that a session is open elsewhere and
//! where, so the requests to open and to end sessions are kept until they are answered, and messages for a session that
//! is being opened wait until it is known who has it.
//!
//! Ids of the client's requests need no translation. Those of the daemons' requests neither: each daemon numbers its
//! requests above all ids that the client has seen. Should two of them use the same numbers nevertheless, the connection
//! is begun again: the late answer to a question of one daemon must not become the answer to a question of another.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::reconnect::{
    AgreedInitialize, NamesSession, error, request, routed, succeeded, version_in,
};
use crate::messages::{FrontendMessage, MessageKind};
use epitome_acp::answers::{self, OPEN_AT};
use epitome_acp::envelope::{self, Incoming};
use epitome_acp::requests::first_id;

/// The number of the link to the daemon of the client's own server.
pub const HOME: usize = 0;

/// What a request means for where its session is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SessionEffect {
    /// It is open where the request succeeded.
    Opens,
    /// It is not open for this client any longer.
    Ends,
    /// It is changed where it is open, and there is nothing to remember.
    Changes,
}

/// Lines kept of all sessions that are being opened, in bytes.
const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Subagents with a known link. Further ones can't be cancelled one by one.
const AGENTS_MAX: usize = 4096;

/// Requests of a daemon until the next one begins to number its own.
const IDS_APART: u64 = 1 << 20;

/// Prefix of the ids of the server's own requests to another one.
const OWN: &str = "\"epitome-forward-";

/// The id of its `initialize`.
pub const OWN_INITIALIZE: &str = "\"epitome-forward-0\"";

/// How the update of a session begins.
const UPDATE: &[u8] = br#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":""#;

impl SessionEffect {
    fn of(method: &str) -> Option<SessionEffect> {
        match method {
            "session/load" | "session/resume" => Some(SessionEffect::Opens),
            "session/close" | "session/delete" | "session/archive" => Some(SessionEffect::Ends),
            "session/unarchive" | "session/set_title" => Some(SessionEffect::Changes),
            _ => None,
        }
    }
}

/// What becomes of a line of the client.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientRoute {
    To(usize),
    /// The daemon that it is for knows it, and the others ignore it.
    ToAll,
    /// It waits until its session is open, or is dropped.
    Nowhere,
    Answer(Vec<u8>),
}

/// What becomes of a message of a daemon.
#[derive(Debug, PartialEq, Eq)]
pub enum DaemonRoute {
    Show,
    Drop,
    /// It is shown, and then what waited for the session is sent.
    Settled(String),
    /// The session is open at the server with this address.
    Elsewhere {
        session: String,
        address: String,
    },
    /// The connection has to be begun again, as after the death of a daemon.
    BeginAgain,
}

/// What becomes of a session whose server could not be used.
#[derive(Debug, PartialEq, Eq)]
pub enum Unreached {
    /// The own server is asked again: the process may have died, or its server is about to start.
    Ask(Vec<u8>),
    /// This is the answer to the client. Then what waited for the session is sent.
    GiveUp(Vec<u8>),
}

/// The state of a connection; see the module.
#[derive(Default)]
pub struct ForwardRoutes {
    /// The `initialize` that is not answered: its id and its params.
    initializing: Option<(Box<str>, String)>,
    initialized: Option<AgreedInitialize>,
    /// The newest `providers/set` of each provider that the own daemon has accepted.
    providers: BTreeMap<String, Box<RawValue>>,
    /// Those that are not answered: their ids, providers and params.
    setting: Vec<(Box<str>, String, Box<RawValue>)>,
    /// The links of sessions that are open elsewhere.
    sessions: HashMap<String, usize>,
    /// Those of their subagents.
    agents: HashMap<String, usize>,
    /// The unanswered requests with an effect on where a session is open, one of each session.
    pending: HashMap<String, PendingSession>,
    kept_bytes: usize,
    /// The first and last id of each daemon's requests.
    ids: BTreeMap<usize, (u64, u64)>,
    /// Above all ids so far, and those that other daemons may use.
    ids_above: u64,
    searches_max: u32,
}

struct PendingSession {
    /// `None` once it is answered, while what waited for it is being sent.
    id: Option<Box<str>>,
    line: Vec<u8>,
    effect: SessionEffect,
    /// The ids of prompts whose fate the daemon that opens the session has to find out. One that can't open it answers
    /// them too.
    prompts: Vec<Box<RawValue>>,
    link: usize,
    searches: u32,
    /// Why it could not be opened.
    why: String,
    /// Later lines for the session.
    waiting: VecDeque<Vec<u8>>,
}

impl PendingSession {
    fn new(id: &str, line: &[u8], effect: SessionEffect, link: usize) -> PendingSession {
        let (id, prompts, line) = (Some(id.into()), resumed_prompts(line), line.to_vec());
        let waiting = VecDeque::new();
        PendingSession { id, line, effect, prompts, link, searches: 0, why: String::new(), waiting }
    }
}

/// An error whose data says where a session is open.
struct OpenElsewhere {
    message: String,
    address: String,
}

impl ForwardRoutes {
    /// For a client that has seen requests with ids up to this one, and whose sessions are looked for this often before it
    /// gets an error.
    pub fn new(ids_above: u64, searches_max: u32) -> ForwardRoutes {
        ForwardRoutes { ids_above, searches_max, ..ForwardRoutes::default() }
    }

    /// Routes a line of the client.
    pub fn client_sent(&mut self, line: &[u8]) -> ClientRoute {
        let (id, method, params) = match envelope::read(line) {
            Incoming::Request { id, method, params } => (Some(id), method, params),
            Incoming::Notification { method, params } => (None, method, params),
            Incoming::Response { id, .. } => return ClientRoute::To(self.asked_by(id)),
            Incoming::Invalid { .. } | Incoming::Blank => return ClientRoute::To(HOME),
        };
        match (id, &*method) {
            (Some(id), "initialize") => {
                self.initializing = Some((id.into(), params.map_or("{}", RawValue::get).to_owned()));
            }
            (Some(id), "providers/set") => {
                if let Some((provider, params)) = params.and_then(|params| Some((routed(params)?, params))) {
                    self.setting.push((id.into(), provider, params.to_owned()));
                }
            }
            (None, "$/cancel_request") => {
                if let Some(answer) = self.cancelled(params) {
                    return ClientRoute::Answer(answer);
                }
            }
            _ => {}
        }
        let named = params.and_then(|params| serde_json::from_str::<NamesSession>(params.get()).ok());
        let Some(NamesSession { session_id: session }) = named else {
            return if id.is_some() { ClientRoute::To(HOME) } else { ClientRoute::ToAll };
        };
        if let Some(pending) = self.pending.get_mut(&session) {
            if self.kept_bytes + line.len() <= KEPT_BYTES_MAX {
                self.kept_bytes += line.len();
                pending.waiting.push_back(line.to_vec());
                return ClientRoute::Nowhere;
            }
            let too_many = |id| ClientRoute::Answer(error(id, answers::too_many_requests()));
            return id.map_or(ClientRoute::Nowhere, too_many);
        }
        let link = self.link_of(&session);
        if let Some(id) = id
            && let Some(effect) = SessionEffect::of(&method)
            && self.kept_bytes + line.len() <= KEPT_BYTES_MAX
        {
            self.kept_bytes += line.len();
            self.pending.insert(session, PendingSession::new(id, line, effect, link));
        }
        ClientRoute::To(link)
    }

    fn link_of(&self, session: &str) -> usize {
        self.sessions.get(session).or_else(|| self.agents.get(session)).copied().unwrap_or(HOME)
    }

    /// Takes a request of the client out that waits for a session.
    fn cancelled(&mut self, params: Option<&RawValue>) -> Option<Vec<u8>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Cancelled<'a> {
            #[serde(borrow)]
            request_id: &'a RawValue,
        }
        let cancelled = serde_json::from_str::<Cancelled<'_>>(params?.get()).ok()?.request_id.get();
        let is_it =
            |line: &Vec<u8>| matches!(envelope::read(line), Incoming::Request { id, .. } if id == cancelled);
        let line = self.pending.values_mut().find_map(|pending| {
            let at = pending.waiting.iter().position(is_it)?;
            pending.waiting.remove(at)
        })?;
        self.kept_bytes -= line.len();
        Some(error(cancelled, answers::cancelled()))
    }

    /// The daemon that has sent the request with this id.
    fn asked_by(&self, id: &str) -> usize {
        let asked = id.parse::<u64>().ok().and_then(|id| {
            self.ids.iter().find(|(_, (first, last))| (*first..=*last).contains(&id)).map(|(link, _)| *link)
        });
        asked.unwrap_or(HOME)
    }

    /// Routes a message of a daemon.
    pub fn daemon_sent(&mut self, link: usize, message: &FrontendMessage<'_>) -> DaemonRoute {
        match message.kind {
            MessageKind::Notifications | MessageKind::Step => {
                if link != HOME {
                    self.learn(link, message.lines);
                }
                DaemonRoute::Show
            }
            MessageKind::Withdrawn => DaemonRoute::Show,
            MessageKind::Request => match message.id.parse() {
                Ok(id) if !self.asks(link, id) => DaemonRoute::BeginAgain,
                Ok(_) | Err(_) => DaemonRoute::Show,
            },
            MessageKind::Farewell if link == HOME => DaemonRoute::Show,
            MessageKind::Farewell => DaemonRoute::BeginAgain,
            MessageKind::Response if message.id.starts_with(OWN) => DaemonRoute::Drop,
            MessageKind::Response => self.answered(link, message),
        }
    }

    /// Records the id of a daemon's request; returns false if another daemon may have used it.
    fn asks(&mut self, link: usize, id: u64) -> bool {
        let (first, last) = self.ids.get(&link).copied().unwrap_or((id, id));
        let (first, last) = (first.min(id), last.max(id));
        let is_free = self.ids.iter().all(|(of, (from, to))| *of == link || last < *from || first > *to);
        self.ids.insert(link, (first, last));
        self.ids_above = self.ids_above.max(id);
        is_free
    }

    /// Learns from updates which sessions another server has: the subagents of a session are shown as sessions too.
    fn learn(&mut self, link: usize, lines: &[u8]) {
        for line in lines.split(|byte| *byte == b'\n') {
            let Some(rest) = line.strip_prefix(UPDATE) else { continue };
            let session = rest.split(|byte| *byte == b'"').next().and_then(|name| str::from_utf8(name).ok());
            if let Some(session) = session
                && !self.sessions.contains_key(session)
                && self.agents.len() < AGENTS_MAX
            {
                self.agents.insert(session.to_owned(), link);
            }
        }
    }

    fn answered(&mut self, link: usize, message: &FrontendMessage<'_>) -> DaemonRoute {
        if link == HOME && self.initializing.as_ref().is_some_and(|(id, _)| **id == *message.id) {
            let params = self.initializing.take().map(|(_, params)| params).unwrap_or_default();
            let version = version_in(message.lines);
            self.initialized = version.map(|version| AgreedInitialize { params, version });
            return DaemonRoute::Show;
        }
        let succeeded = succeeded(message);
        if link == HOME
            && let Some(at) = self.setting.iter().position(|(id, ..)| **id == *message.id)
        {
            let (_, provider, params) = self.setting.remove(at);
            if succeeded {
                self.providers.insert(provider, params);
            }
            return DaemonRoute::Show;
        }
        let elsewhere = if succeeded { None } else { open_elsewhere(message.lines) };
        let is_it =
            |pending: &PendingSession| pending.link == link && pending.id.as_deref() == Some(&*message.id);
        let Some(session) = self.pending.iter().find(|(_, it)| is_it(it)).map(|(session, _)| session.clone())
        else {
            let is_resumed = |it: &PendingSession| it.prompts.iter().any(|id| id.get() == message.id);
            return match elsewhere {
                None => DaemonRoute::Show,
                Some(_) if self.pending.values().any(is_resumed) => DaemonRoute::Drop,
                // It was closed here for a while, or lost, and was opened elsewhere in the meantime.
                Some(_) => DaemonRoute::BeginAgain,
            };
        };
        if let Some(pending) = self.pending.get_mut(&session)
            && let Some(elsewhere) = elsewhere
            && pending.searches < self.searches_max
        {
            pending.searches += 1;
            pending.why = elsewhere.message;
            return DaemonRoute::Elsewhere { session, address: elsewhere.address };
        }
        match self.settle(&session) {
            Some(SessionEffect::Opens) if succeeded && link != HOME => {
                self.agents.remove(&session);
                self.sessions.insert(session.clone(), link);
            }
            Some(SessionEffect::Ends) if succeeded => drop(self.sessions.remove(&session)),
            _ => {}
        }
        DaemonRoute::Settled(session)
    }

    /// Records that a request has its answer.
    fn settle(&mut self, session: &str) -> Option<SessionEffect> {
        let pending = self.pending.get_mut(session)?;
        pending.id = None;
        self.kept_bytes -= std::mem::take(&mut pending.line).len();
        Some(pending.effect)
    }

    /// The next line that waited for a session, and its link; `None` if there is none, or if it has to wait again.
    pub fn next_waiting(&mut self, session: &str) -> Option<(usize, Vec<u8>)> {
        let link = self.link_of(session);
        let pending = self.pending.get_mut(session).filter(|pending| pending.id.is_none())?;
        let Some(line) = pending.waiting.pop_front() else {
            self.pending.remove(session);
            return None;
        };
        match envelope::read(&line) {
            Incoming::Request { id, method, .. } if let Some(effect) = SessionEffect::of(&method) => {
                let waiting = std::mem::take(&mut pending.waiting);
                *pending = PendingSession { waiting, ..PendingSession::new(id, &line, effect, link) };
            }
            _ => self.kept_bytes -= line.len(),
        }
        Some((link, line))
    }

    /// The session's server can be used: returns the request to send there.
    pub fn reached(&mut self, session: &str, link: usize) -> Option<Vec<u8>> {
        let pending = self.pending.get_mut(session)?;
        pending.link = link;
        Some(pending.line.clone())
    }

    /// The session's server can't be used.
    pub fn unreached(&mut self, session: &str, address: &str, why: &str) -> Option<Unreached> {
        self.sessions.remove(session);
        let pending = self.pending.get_mut(session)?;
        if pending.searches < self.searches_max {
            pending.link = HOME;
            return Some(Unreached::Ask(pending.line.clone()));
        }
        let sentence = format!("{}; its server {address} can't be used: {why}", pending.why);
        let answer = error(pending.id.as_deref()?, answers::internal(sentence));
        self.settle(session);
        Some(Unreached::GiveUp(answer))
    }

    /// The id above which a further daemon has to number its requests. `now`: seconds since the Unix epoch.
    pub fn ids_for_next(&mut self, now: u64) -> u64 {
        self.ids_above = first_id(now, self.ids_above) + IDS_APART;
        self.ids_above
    }

    /// The first lines for another server. `None` if the client has not initialized the connection.
    pub fn greeting(&self) -> Option<Vec<u8>> {
        let mut lines = request(OWN_INITIALIZE, "initialize", &self.initialized.as_ref()?.pinned());
        for (number, params) in (1..).zip(self.providers.values()) {
            lines += &request(&format!("{OWN}{number}\""), "providers/set", params.get());
        }
        Some(lines.into_bytes())
    }

    /// Whether another server's answer to the greeting agrees with that of the own one.
    pub fn is_agreed(&self, answer: &[u8]) -> bool {
        version_in(answer) == self.initialized.as_ref().map(|initialized| initialized.version)
    }

    /// Number of sessions that are open at other servers.
    pub fn sessions_elsewhere(&self) -> usize {
        self.sessions.len()
    }
}

/// The ids of the prompts that a front end resumes together with their session.
fn resumed_prompts(line: &[u8]) -> Vec<Box<RawValue>> {
    #[derive(Deserialize)]
    struct ResumeParams {
        #[serde(rename = "_meta")]
        meta: ResumeMeta,
    }
    #[derive(Deserialize)]
    struct ResumeMeta {
        epitome: ResumedPrompts,
    }
    #[derive(Deserialize)]
    struct ResumedPrompts {
        prompts: Vec<ResumedPrompt>,
    }
    #[derive(Deserialize)]
    struct ResumedPrompt {
        id: Option<Box<RawValue>>,
    }
    let Incoming::Request { params: Some(params), .. } = envelope::read(line) else { return Vec::new() };
    let params = serde_json::from_str::<ResumeParams>(params.get());
    params.map_or(Vec::new(), |params| {
        params.meta.epitome.prompts.into_iter().filter_map(|prompt| prompt.id).collect()
    })
}

fn open_elsewhere(response: &[u8]) -> Option<OpenElsewhere> {
    #[derive(Deserialize)]
    struct Failed {
        error: RequestError,
    }
    #[derive(Deserialize)]
    struct RequestError {
        message: String,
        data: BTreeMap<String, serde_json::Value>,
    }
    let Failed { error: RequestError { message, data } } = serde_json::from_slice(response).ok()?;
    Some(OpenElsewhere { message, address: data.get(OPEN_AT)?.as_str()?.to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const A: usize = 1;
    const SEARCHES_MAX: u32 = 6;

    fn line(message: &Value) -> Vec<u8> {
        format!("{message}\n").into_bytes()
    }

    fn load(id: u64, session: &str) -> Vec<u8> {
        line(
            &json!({ "jsonrpc": "2.0", "id": id, "method": "session/load", "params": { "sessionId": session } }),
        )
    }

    fn prompt(id: u64, session: &str) -> Vec<u8> {
        line(
            &json!({ "jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": { "sessionId": session } }),
        )
    }

    fn done(id: u64) -> String {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}\n")
    }

    fn open_at_a(id: u64) -> String {
        let error = r#"{"code":1,"message":"it is open elsewhere","data":{"openAt":"wss://a"}}"#;
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n")
    }

    fn hear(routes: &mut ForwardRoutes, link: usize, lines: &str) -> DaemonRoute {
        routes.daemon_sent(link, &FrontendMessage::raw(lines.as_bytes()))
    }

    fn elsewhere(session: &str) -> DaemonRoute {
        DaemonRoute::Elsewhere { session: session.to_owned(), address: "wss://a".to_owned() }
    }

    /// A connection whose session `s` is open at A.
    fn forwarded() -> ForwardRoutes {
        let mut routes = ForwardRoutes::new(0, SEARCHES_MAX);
        assert_eq!(routes.client_sent(&load(1, "s")), ClientRoute::To(HOME));
        assert_eq!(hear(&mut routes, HOME, &open_at_a(1)), elsewhere("s"));
        assert_eq!(routes.reached("s", A), Some(load(1, "s")));
        assert_eq!(hear(&mut routes, A, &done(1)), DaemonRoute::Settled("s".to_owned()));
        assert_eq!(routes.next_waiting("s"), None);
        routes
    }

    #[test]
    fn only_sessions_that_are_open_elsewhere_are_forwarded() {
        let mut routes = forwarded();
        assert_eq!(routes.client_sent(&prompt(2, "s")), ClientRoute::To(A));
        assert_eq!(routes.client_sent(&prompt(3, "other")), ClientRoute::To(HOME));
        let list = json!({ "jsonrpc": "2.0", "id": 4, "method": "session/list", "params": {} });
        assert_eq!(routes.client_sent(&line(&list)), ClientRoute::To(HOME));
        assert_eq!(routes.sessions_elsewhere(), 1);
        let close =
            json!({ "jsonrpc": "2.0", "id": 5, "method": "session/close", "params": { "sessionId": "s" } });
        assert_eq!(routes.client_sent(&line(&close)), ClientRoute::To(A));
        hear(&mut routes, A, &done(5));
        assert_eq!(routes.next_waiting("s"), None);
        assert_eq!(routes.client_sent(&load(6, "s")), ClientRoute::To(HOME), "it may be open anywhere now");
    }

    #[test]
    fn what_follows_a_load_waits_until_it_is_known_who_has_the_session() {
        let mut routes = ForwardRoutes::new(0, SEARCHES_MAX);
        routes.client_sent(&load(1, "s"));
        for id in [2, 3] {
            assert_eq!(routes.client_sent(&prompt(id, "s")), ClientRoute::Nowhere);
        }
        assert_eq!(routes.client_sent(&load(4, "s")), ClientRoute::Nowhere);
        assert_eq!(routes.client_sent(&prompt(5, "s")), ClientRoute::Nowhere);
        let cancel = json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": { "requestId": 3 } });
        assert!(matches!(routes.client_sent(&line(&cancel)), ClientRoute::Answer(_)), "it was not sent");
        assert_eq!(routes.client_sent(&line(&cancel)), ClientRoute::ToAll);
        hear(&mut routes, HOME, &open_at_a(1));
        routes.reached("s", A);
        hear(&mut routes, A, &done(1));
        assert_eq!(routes.next_waiting("s"), Some((A, prompt(2, "s"))));
        assert_eq!(routes.next_waiting("s"), Some((A, load(4, "s"))));
        assert_eq!(routes.next_waiting("s"), None, "the second load decides again");
        hear(&mut routes, A, &done(4));
        assert_eq!(routes.next_waiting("s"), Some((A, prompt(5, "s"))));
        assert_eq!(routes.next_waiting("s"), None);
        assert_eq!((routes.kept_bytes, routes.pending.len()), (0, 0));
    }

    #[test]
    fn the_own_daemon_is_asked_again_if_a_server_is_gone_but_not_for_ever() {
        let mut routes = ForwardRoutes::new(0, SEARCHES_MAX);
        routes.client_sent(&load(1, "s"));
        for _ in 1..SEARCHES_MAX {
            assert_eq!(hear(&mut routes, HOME, &open_at_a(1)), elsewhere("s"));
            let asked = routes.unreached("s", "wss://a", "it refuses");
            assert_eq!(asked, Some(Unreached::Ask(load(1, "s"))));
        }
        assert_eq!(hear(&mut routes, HOME, &open_at_a(1)), elsewhere("s"));
        let Some(Unreached::GiveUp(answer)) = routes.unreached("s", "wss://a", "it refuses") else {
            panic!("it gives up")
        };
        let answer = String::from_utf8(answer).expect("text");
        assert!(
            answer.contains("open elsewhere") && answer.contains("wss://a") && answer.contains("refuses")
        );
    }

    /// A client's late "allow" for a question of one daemon must not answer a question of another.
    #[test]
    fn two_daemons_never_use_the_same_id() {
        let asks = |id: u64| {
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"session/request_permission\"}}\n")
        };
        let answer = |id: u64| line(&json!({ "jsonrpc": "2.0", "id": id, "result": {} }));
        let mut routes = forwarded();
        assert_eq!(hear(&mut routes, HOME, &asks(10)), DaemonRoute::Show);
        let next = routes.ids_for_next(1_800_000_000) + 1;
        assert!(next > 10 + IDS_APART);
        assert!(routes.ids_for_next(1_800_000_000) >= next + IDS_APART, "a third daemon has other ids");
        assert_eq!(hear(&mut routes, A, &asks(next)), DaemonRoute::Show);
        assert_eq!(routes.client_sent(&answer(10)), ClientRoute::To(HOME));
        assert_eq!(routes.client_sent(&answer(next)), ClientRoute::To(A));
        assert_eq!(hear(&mut routes, HOME, &asks(next)), DaemonRoute::BeginAgain);
    }

    /// Regression: each `providers/set` was kept for other servers, even if the daemon had refused it. A client that may only
    /// read could use up the memory of the server with them.
    #[test]
    fn other_servers_get_what_the_own_daemon_has_accepted() {
        let mut routes = ForwardRoutes::new(0, SEARCHES_MAX);
        let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {} });
        routes.client_sent(&line(&initialize));
        hear(&mut routes, HOME, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":1}}\n");
        for (id, provider) in [(2, "accepted"), (3, "refused")] {
            let params = json!({ "providerId": provider });
            let set = json!({ "jsonrpc": "2.0", "id": id, "method": "providers/set", "params": params });
            assert_eq!(routes.client_sent(&line(&set)), ClientRoute::To(HOME));
        }
        assert_eq!(hear(&mut routes, HOME, &done(2)), DaemonRoute::Show);
        let refused = "{\"jsonrpc\":\"2.0\",\"id\":3,\"error\":{\"code\":1,\"message\":\"no\"}}\n";
        assert_eq!(hear(&mut routes, HOME, refused), DaemonRoute::Show);
        let greeting = String::from_utf8(routes.greeting().expect("it is initialized")).expect("text");
        assert!(greeting.contains("accepted") && !greeting.contains("refused"), "{greeting}");
        assert!(routes.setting.is_empty());
    }

    /// A session rested at its server and was opened at another one: the next prompt must reach it there.
    #[test]
    fn the_connection_begins_again_if_a_session_has_moved() {
        let mut routes = forwarded();
        routes.client_sent(&prompt(2, "s"));
        assert_eq!(hear(&mut routes, A, &open_at_a(2)), DaemonRoute::BeginAgain);
    }

    /// Regression: a window resumed a session, with its running prompt, whose server was just starting again. The own
    /// daemon refused both, and the refused prompt began the connection again, until the front end gave up.
    #[test]
    fn a_prompt_waits_with_its_session() {
        let mut routes = ForwardRoutes::new(0, SEARCHES_MAX);
        let meta = json!({ "epitome": { "rest": {}, "prompts": [{ "id": 7, "params": {} }] } });
        let params = json!({ "sessionId": "s", "_meta": meta });
        let resume =
            line(&json!({ "jsonrpc": "2.0", "id": 1, "method": "session/resume", "params": params }));
        routes.client_sent(&resume);
        assert_eq!(hear(&mut routes, HOME, &open_at_a(7)), DaemonRoute::Drop);
        assert_eq!(hear(&mut routes, HOME, &open_at_a(1)), elsewhere("s"));
        assert_eq!(routes.reached("s", A), Some(resume));
        assert_eq!(hear(&mut routes, A, &done(7)), DaemonRoute::Show);
    }

    #[test]
    fn subagents_are_where_their_session_is() {
        let mut routes = forwarded();
        hear(
            &mut routes,
            A,
            r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"agent","update":{}}}"#,
        );
        let cancel =
            json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": "agent" } });
        assert_eq!(routes.client_sent(&line(&cancel)), ClientRoute::To(A));
        assert_eq!(routes.sessions_elsewhere(), 1);
    }
}
