//! A simulated editor window with a real front end: what the user sees, and the requests that wait.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::rc::Rc;
use std::sync::Arc;

use epitome::acp::answers::{LoginNeed, LoginState};
use epitome::acp::connection::Inline;
use epitome::acp::server::{ConnectionConfig, UserLogin};
use epitome::acp::writer::Positions;
use epitome::daemon::front::reconnect::{DaemonMessage, LineAction, ReconnectState};
use epitome::daemon::messages::MessageReader;
use epitome::session::{ClientId, SessionError};
use serde_json::{Value, json};

use super::daemon::Daemon;

/// A user whose model can be used.
struct LoggedIn;

impl UserLogin for LoggedIn {
    fn check(&self) -> Result<(), SessionError> {
        Ok(())
    }

    fn state(&self) -> LoginState {
        LoginState { need: LoginNeed::None, accounts: Vec::new() }
    }

    fn log_out(&self) -> Result<bool, String> {
        Ok(false)
    }
}

/// What a window shows of a session: the text of each message, and the state of each call, in order of appearance.
#[derive(Default)]
pub struct Shown {
    pub texts: Vec<(String, String)>,
    pub calls: BTreeMap<String, String>,
}

impl Shown {
    pub fn take(&mut self, update: &Value) {
        let text = update["content"]["text"].as_str();
        match (update["sessionUpdate"].as_str().unwrap_or_default(), text) {
            ("user_message_chunk" | "agent_message_chunk", Some(text)) => {
                let id = update["messageId"].as_str().expect("a message has an id").to_owned();
                match self.texts.iter_mut().find(|(known, _)| *known == id) {
                    Some((_, shown)) => shown.push_str(text),
                    None => self.texts.push((id, text.to_owned())),
                }
            }
            ("tool_call" | "tool_call_update", _) => {
                let call = update["toolCallId"].as_str().expect("a call has an id").to_owned();
                let status = update["status"].as_str().unwrap_or("pending").to_owned();
                self.calls.insert(call, status);
            }
            _ => {}
        }
    }
}

/// A request of the editor.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: &'static str,
    pub session: String,
    pub text: String,
    /// Daemons that had died when it was sent.
    pub deaths: u32,
}

/// See the module.
pub struct Window {
    pub name: usize,
    front: ReconnectState,
    link: Option<Link>,
    /// Lines that wait for a daemon.
    unsent: VecDeque<Vec<u8>>,
    next_id: u64,
    pub open: BTreeMap<u64, Request>,
    pub answered: Vec<(Request, Value)>,
    pub sessions: BTreeMap<String, Shown>,
}

struct Link {
    connection: Inline<Daemon>,
    /// What the daemon has written and the front end has not read.
    written: Vec<u8>,
    pipe: Pipe,
    reader: MessageReader<Pipe>,
}

/// The front end's end of the socket: what has arrived, and whether the daemon is gone.
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
    pub fn new(name: usize) -> Window {
        Window {
            name,
            front: ReconnectState::default(),
            link: None,
            unsent: VecDeque::new(),
            next_id: 1,
            open: BTreeMap::new(),
            answered: Vec::new(),
            sessions: BTreeMap::new(),
        }
    }

    pub fn is_attached(&self) -> bool {
        self.link.is_some()
    }

    /// The editor sends a request.
    pub async fn request(&mut self, params: Value, request: Request) {
        let id = self.next_id;
        self.next_id += 1;
        let method = request.method;
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        self.open.insert(id, request);
        self.unsent.push_back(format!("{line}\n").into_bytes());
        self.send().await;
    }

    async fn send(&mut self) {
        while let Some(link) = &mut self.link
            && let Some(line) = self.unsent.pop_front()
        {
            match self.front.from_editor(&line) {
                LineAction::Forward => link.connection.receive(&line).await,
                LineAction::Drop => {}
                LineAction::Answer(answer) => self.show(&answer),
            }
        }
    }

    /// The front end finds a daemon.
    pub async fn attach(&mut self, daemon: &Daemon, runtime: &tokio::runtime::Handle, client: ClientId) {
        let config = ConnectionConfig {
            sessions: daemon.clone(),
            runtime: runtime.clone(),
            client,
            environment: Arc::default(),
            overrides: Arc::default(),
            login: Arc::new(LoggedIn),
            ids_above: self.front.ids_above(),
            positions: Positions::Told,
            offers_v2: Box::new(|| true),
        };
        let connection = Inline::new(config);
        let pipe = Pipe::default();
        let reader = MessageReader::new(pipe.clone());
        for line in self.front.replay().split_inclusive(|byte| *byte == b'\n') {
            connection.receive(line).await;
        }
        self.link = Some(Link { connection, written: Vec::new(), pipe, reader });
        let answers = self.front.answers_at_once();
        self.show(&answers);
        self.send().await;
    }

    /// So many bytes arrive at the front end, which forwards what is complete.
    pub fn deliver(&mut self, most: usize) {
        let Some(link) = &mut self.link else { return };
        link.connection.write(&mut link.written);
        self.arrive(most);
    }

    fn arrive(&mut self, most: usize) {
        let Some(link) = &mut self.link else { return };
        let count = most.min(link.written.len());
        if std::env::var_os("EPITOME_TRACE").is_some() {
            eprintln!("to window {}: {}", self.name, String::from_utf8_lossy(&link.written[..count]));
        }
        link.pipe.0.borrow_mut().0.extend(link.written.drain(..count));
        while let Some(link) = &mut self.link
            && let Ok(Some(message)) = link.reader.message()
        {
            let lines = match self.front.from_daemon(&message) {
                DaemonMessage::Show => message.lines.to_vec(),
                DaemonMessage::Instead(lines) => lines,
            };
            self.show(&lines);
        }
    }

    /// The daemon dies. What its writer had taken may still arrive, to any byte; the rest is lost.
    pub fn lose(&mut self, rng: &mut fastrand::Rng) {
        let Some(link) = &mut self.link else { return };
        if rng.bool() {
            link.connection.write(&mut link.written);
        }
        let count = rng.usize(..=link.written.len());
        link.pipe.0.borrow_mut().1 = true;
        self.arrive(count);
        self.link = None;
        let lines = self.front.lost();
        self.show(&lines);
    }

    fn show(&mut self, lines: &[u8]) {
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let message: Value = serde_json::from_slice(line).expect("each line is JSON");
            if let Some(method) = message["method"].as_str() {
                assert_eq!(method, "session/update", "the editor gets nothing of ours: {message}");
                let session = message["params"]["sessionId"].as_str().expect("an update names its session");
                self.sessions.entry(session.to_owned()).or_default().take(&message["params"]["update"]);
                continue;
            }
            let id = message["id"].as_u64().expect("the editor's ids are numbers");
            let request = self.open.remove(&id);
            let request = request.unwrap_or_else(|| panic!("{id} has a second answer: {message}"));
            if request.method == "session/new" {
                let session = message["result"]["sessionId"].as_str().expect("a session").to_owned();
                self.sessions.entry(session).or_default();
            }
            if request.method == "session/load" && message.get("error").is_some() {
                self.sessions.remove(&request.session);
            }
            self.answered.push((request, message));
        }
    }
}
