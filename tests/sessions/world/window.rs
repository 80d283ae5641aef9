//! A simulated editor window with a real front end: what the user sees, and the open requests.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read};
use std::rc::Rc;
use std::sync::Arc;

use epitome::acp::answers::{LoginNeed, LoginState};
use epitome::acp::connection::Inline;
use epitome::acp::model::AcpVersion;
use epitome::acp::server::{ConnectionConfig, ProviderRoute, UserLogin};
use epitome::acp::writer::{POSITION, Positions};
use epitome::daemon::front::reconnect::{DaemonMessage, Elsewhere, LineAction, ReconnectState};
use epitome::daemon::messages::MessageReader;
use epitome::session::registry::{Overrides, Sessions};
use epitome::session::{ClientId, ProviderSettings, SessionError};
use serde_json::{Value, json};

use super::process::Process;

/// A user with a usable model.
struct LoggedIn;

impl UserLogin for LoggedIn {
    fn check(&self) -> Result<(), SessionError> {
        Ok(())
    }

    fn state(&self) -> LoginState {
        LoginState { need: LoginNeed::None, accounts: Vec::new() }
    }

    fn routes(&self) -> Vec<ProviderRoute> {
        Vec::new()
    }

    fn route(&self, _: String, _: ProviderSettings) {}

    fn overrides(&self) -> Arc<Overrides> {
        Arc::default()
    }

    fn log_out(&self) -> std::io::Result<bool> {
        Ok(false)
    }
}

/// A window's content for a session: the text of each message and the state of each call, in order of appearance.
#[derive(Default)]
pub struct Shown {
    pub texts: Vec<(String, String)>,
    pub calls: BTreeMap<String, String>,
    /// The last session state sent to a client of version 2.
    pub state: String,
}

impl Shown {
    pub fn take(&mut self, update: &Value) {
        let text = update["content"]["text"].as_str();
        match (update["sessionUpdate"].as_str().unwrap_or_default(), text) {
            // Version 2: the complete message so far.
            ("user_message" | "agent_message", _) => {
                let id = update["messageId"].as_str().expect("a message has an id").to_owned();
                let parts = update["content"].as_array().into_iter().flatten();
                let whole: String = parts.filter_map(|part| part["text"].as_str()).collect();
                match self.texts.iter_mut().find(|(known, _)| *known == id) {
                    Some((_, shown)) => *shown = whole,
                    None => self.texts.push((id, whole)),
                }
            }
            ("state_update", _) => {
                self.state = update["state"].as_str().expect("a state has a name").to_owned();
            }
            ("user_message_chunk" | "agent_message_chunk", Some(text)) => {
                let id = update["messageId"].as_str().expect("a message has an id").to_owned();
                match self.texts.iter_mut().find(|(known, _)| *known == id) {
                    Some((_, shown)) => shown.push_str(text),
                    None => self.texts.push((id, text.to_owned())),
                }
            }
            ("tool_call" | "tool_call_update", _) => {
                let call = update["toolCallId"].as_str().expect("a call has an id").to_owned();
                match update["status"].as_str() {
                    Some(status) => drop(self.calls.insert(call, status.to_owned())),
                    // Only clients of version 2 receive updates without a status.
                    None => drop(self.calls.entry(call).or_insert("pending".to_owned())),
                }
            }
            _ => {}
        }
    }
}

/// A request from the editor.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: &'static str,
    pub session: String,
    pub text: String,
    /// Number of daemons that had died when it was sent.
    pub deaths: u32,
    /// Whether a daemon died before the prompt was in the log.
    pub was_lost: bool,
}

/// A permission request.
pub struct Card {
    pub call: String,
    options: Vec<String>,
}

/// An editor window; see the module.
pub struct Window {
    pub name: usize,
    front: ReconnectState,
    link: Option<Link>,
    /// Lines to send once a daemon is attached.
    unsent: VecDeque<Vec<u8>>,
    next_id: u64,
    pub open: BTreeMap<u64, Request>,
    pub answered: Vec<(Request, Value)>,
    pub sessions: BTreeMap<String, Shown>,
    /// Unanswered permission requests, by request id.
    pub cards: BTreeMap<u64, Card>,
    /// Permission requests that were withdrawn before the user answered.
    pub withdrawn: u64,
    /// The protocol version of the editor.
    pub version: AcpVersion,
    /// Sessions that the window is not shown completely: forks, and those that could not be continued.
    pub partial: BTreeSet<String>,
    /// The front end's own requests to continue sessions.
    resuming: BTreeMap<String, String>,
    /// Whether it goes to the server that has a session open.
    pub follows: bool,
    /// The address to which it goes next.
    goes_to: Option<String>,
    /// The address that it could not go to last.
    pub unusable: Option<String>,
}

/// Connects to a daemon, which numbers its requests above `ids_above`.
pub fn connect(process: &Process, client: ClientId, ids_above: u64) -> Inline<Sessions> {
    let environment = [("ANTHROPIC_BASE_URL", "http://model.test"), ("ANTHROPIC_API_KEY", "sk-test-1")];
    let environment = environment.map(|(name, value)| (name.into(), value.into()));
    Inline::new(ConnectionConfig {
        sessions: process.sessions.clone(),
        runtime: process.handle(),
        client,
        grant: None,
        environment: Arc::new(environment.into()),
        login: Arc::new(LoggedIn),
        ids_above,
        positions: Positions::Included,
        offers_v2: Box::new(|| true),
    })
}

struct Link {
    connection: Inline<Sessions>,
    /// Bytes that the daemon has written and the front end has not read.
    written: Vec<u8>,
    pipe: Pipe,
    reader: MessageReader<Pipe>,
}

/// The front end's end of the socket: the bytes that have arrived, and whether the daemon is gone.
#[derive(Clone, Default)]
struct Pipe(Rc<RefCell<(VecDeque<u8>, bool)>>);

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (arrived, is_closed) = &mut *self.0.borrow_mut();
        if arrived.is_empty() && !*is_closed {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        arrived.read(into)
    }
}

impl Window {
    pub fn new(name: usize, version: AcpVersion) -> Window {
        Window {
            name,
            version,
            withdrawn: 0,
            front: ReconnectState::default(),
            link: None,
            unsent: VecDeque::new(),
            next_id: 1,
            open: BTreeMap::new(),
            answered: Vec::new(),
            sessions: BTreeMap::new(),
            cards: BTreeMap::new(),
            partial: BTreeSet::new(),
            resuming: BTreeMap::new(),
            follows: false,
            goes_to: None,
            unusable: None,
        }
    }

    pub fn is_attached(&self) -> bool {
        self.link.is_some()
    }

    /// Whether a daemon is attached that has resumed all sessions.
    pub fn is_settled(&self) -> bool {
        self.is_attached() && self.front.is_settled()
    }

    /// The editor sends a request.
    pub fn request(&mut self, params: Value, request: Request) {
        let id = self.next_id;
        self.next_id += 1;
        let method = match (self.version, request.method) {
            (AcpVersion::V2, "session/load") => "session/resume",
            (AcpVersion::V2, "session/set_mode") => "session/set_config_option",
            (_, method) => method,
        };
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        self.open.insert(id, request);
        self.unsent.push_back(format!("{line}\n").into_bytes());
        self.send();
    }

    /// The user withdraws the prompt that they sent last, if it is unanswered.
    pub fn cancel_newest_prompt(&mut self, session: &str) {
        let is_prompt = |open: &Request| open.method == "session/prompt" && open.session == session;
        let newest = self.open.iter().rev().find(|(_, open)| is_prompt(open)).map(|(id, _)| *id);
        if let Some(id) = newest {
            self.notify("$/cancel_request", &json!({ "requestId": id }));
        }
    }

    /// The editor sends a notification.
    pub fn notify(&mut self, method: &str, params: &Value) {
        let line = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.unsent.push_back(format!("{line}\n").into_bytes());
        self.send();
    }

    /// The user answers the oldest permission request with one of its options, or dismisses it.
    pub fn answer_card(&mut self, rng: &mut fastrand::Rng) {
        let Some((id, card)) = self.cards.pop_first() else { return };
        let outcome = match rng.choice(&card.options) {
            Some(option) if rng.u8(..8) > 0 => json!({ "outcome": "selected", "optionId": option }),
            Some(_) | None => json!({ "outcome": "cancelled" }),
        };
        let line = json!({ "jsonrpc": "2.0", "id": id, "result": { "outcome": outcome } });
        self.unsent.push_back(format!("{line}\n").into_bytes());
        self.send();
    }

    fn send(&mut self) {
        while let Some(link) = &mut self.link
            && let Some(line) = self.unsent.pop_front()
        {
            match self.front.from_editor(&line) {
                LineAction::Forward => link.connection.receive(&line),
                LineAction::Instead(line) => link.connection.receive(&line),
                LineAction::Drop => {}
                LineAction::Answer(answer) => self.show(&answer),
            }
        }
    }

    /// Connects the front end to a daemon.
    pub fn attach(&mut self, process: &Process, client: ClientId) {
        self.attach_to(connect(process, client, self.ids_above()));
    }

    /// Above all ids of requests that the editor has seen.
    pub fn ids_above(&self) -> u64 {
        self.front.ids_above()
    }

    pub fn attach_to(&mut self, connection: Inline<Sessions>) {
        let pipe = Pipe::default();
        let reader = MessageReader::new(pipe.clone());
        let replay = self.front.replay();
        for line in replay.split_inclusive(|byte| *byte == b'\n') {
            let request: Value = serde_json::from_slice(line).expect("each line is JSON");
            if request["method"] == "session/resume" && request["id"].is_string() {
                let session = request["params"]["sessionId"].as_str().expect("it names its session");
                self.resuming.insert(request["id"].to_string(), session.to_owned());
            }
        }
        replay.split_inclusive(|byte| *byte == b'\n').for_each(|line| connection.receive(line));
        self.link = Some(Link { connection, written: Vec::new(), pipe, reader });
        let answers = self.front.answers_at_once();
        self.show(&answers);
        self.send();
    }

    /// Delivers at most `most` bytes to the front end, which forwards complete messages.
    pub fn deliver(&mut self, most: usize) {
        let Some(link) = &mut self.link else { return };
        link.connection.write(&mut link.written);
        self.arrive(most);
    }

    fn arrive(&mut self, most: usize) {
        let mut left = most.min(self.link.as_ref().map_or(0, |link| link.written.len()));
        while let Some(link) = &mut self.link {
            let count = next_replay(&link.written[..left]).unwrap_or(left);
            if std::env::var_os("EPITOME_TRACE").is_some() {
                eprintln!("to window {}: {}", self.name, String::from_utf8_lossy(&link.written[..count]));
            }
            link.pipe.0.borrow_mut().0.extend(link.written.drain(..count));
            self.read();
            left -= count;
            if left == 0 {
                return;
            }
        }
    }

    /// The front end forwards the messages that are complete.
    fn read(&mut self) {
        while self.goes_to.is_none()
            && let Some(link) = &mut self.link
            && let Ok(Some(message)) = link.reader.message()
        {
            if let Some(Elsewhere::Go(address)) = self.front.elsewhere(&message)
                && self.follows
                && self.unusable.take_if(|unusable| *unusable == address).is_none()
            {
                self.goes_to = Some(address);
                return;
            }
            // Changes of others between the request to load a session and its replay are in both. An editor can't know;
            // the front end sees where the replay begins.
            for step in message.steps.iter().filter(|step| step.begins) {
                let loads = |open: &Request| open.method == "session/load" && open.session == step.session;
                if self.open.values().any(loads) {
                    self.sessions.insert(step.session.clone(), Shown::default());
                }
            }
            if let Some(session) = self.resuming.remove(message.id)
                && serde_json::from_slice::<Value>(message.lines)
                    .is_ok_and(|answer| answer.get("error").is_some())
            {
                self.partial.insert(session);
            }
            let lines = match self.front.from_daemon(&message) {
                DaemonMessage::Show => message.lines.to_vec(),
                DaemonMessage::Instead(lines) => lines,
                DaemonMessage::Unusable => panic!("each daemon has the versions of the others"),
            };
            self.show(&lines);
        }
    }

    /// The front end leaves its server for another one, whose address is returned.
    pub fn leave(&mut self) -> Option<String> {
        let address = self.goes_to.take()?;
        self.link.take()?;
        let lines = self.front.lost();
        self.show(&lines);
        Some(address)
    }

    /// The daemon dies. Output that its writer had taken may still arrive, up to any byte; the rest is lost.
    pub fn lose(&mut self, rng: &mut fastrand::Rng) {
        let Some(link) = &mut self.link else { return };
        if rng.bool() {
            link.connection.write(&mut link.written);
        }
        let count = rng.usize(..=link.written.len());
        link.pipe.0.borrow_mut().1 = true;
        self.arrive(count);
        self.link = None;
        self.goes_to = None;
        let lines = self.front.lost();
        self.show(&lines);
    }

    fn show(&mut self, lines: &[u8]) {
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let message: Value = serde_json::from_slice(line).expect("each line is JSON");
            if let Some(method) = message["method"].as_str() {
                self.take_message(method, &message);
                continue;
            }
            let id = message["id"].as_u64().expect("the editor's ids are numbers");
            let request = self.open.remove(&id);
            let request = request.unwrap_or_else(|| panic!("{id} has a second answer: {message}"));
            let made = matches!(request.method, "session/new" | "session/fork");
            if let (true, Some(session)) = (made, message["result"]["sessionId"].as_str()) {
                self.sessions.entry(session.to_owned()).or_default();
                if request.method == "session/fork" {
                    self.partial.insert(session.to_owned());
                }
            }
            let failed = message.get("error").is_some();
            let closes = match request.method {
                "session/load" => failed,
                "session/delete" | "session/archive" => !failed,
                _ => false,
            };
            if closes {
                self.sessions.remove(&request.session);
            }
            if failed && request.method == "session/load" {
                // If it was open before, it stays open, and the editor has only what comes from now on.
                self.partial.insert(request.session.clone());
            }
            self.answered.push((request, message));
        }
    }

    /// Handles a notification or a request from the agent.
    fn take_message(&mut self, method: &str, message: &Value) {
        let params = &message["params"];
        match method {
            "session/update" => {
                let session = params["sessionId"].as_str().expect("an update names its session");
                self.sessions.entry(session.to_owned()).or_default().take(&params["update"]);
            }
            "session/request_permission" => {
                let id = message["id"].as_u64().expect("our ids are numbers");
                let options = params["options"].as_array().into_iter().flatten();
                let options = options.filter_map(|option| option["optionId"].as_str().map(str::to_owned));
                let call =
                    params.pointer("/toolCall/toolCallId").or(params.pointer("/subject/toolCall/toolCallId"));
                let call = call.and_then(Value::as_str).expect("a request names its call").to_owned();
                let card = Card { call, options: options.collect() };
                assert!(self.cards.insert(id, card).is_none(), "an id is used twice: {message}");
            }
            "$/cancel_request" => {
                let card = self.cards.remove(&params["requestId"].as_u64().unwrap_or_default());
                self.withdrawn += u64::from(card.is_some());
            }
            other if other.starts_with('_') || other.starts_with("$/") => {}
            other => panic!("an unknown method: {other}"),
        }
    }
}

/// The position of the next replay in the daemon's output, if other lines precede it.
fn next_replay(written: &[u8]) -> Option<usize> {
    let mut at = 0;
    for line in written.split_inclusive(|byte| *byte == b'\n') {
        let begins = line.starts_with(POSITION) && String::from_utf8_lossy(line).contains(r#""begins":true"#);
        if begins && at > 0 {
            return Some(at);
        }
        at += line.len();
    }
    None
}
