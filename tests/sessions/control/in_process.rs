//! A daemon in this process with a scripted model, and clients that speak its control API line by line, as a
//! script would.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use epitome::daemon::Daemon;
use epitome::daemon::attachments::fresh_client;
use epitome::daemon::control::limits::MethodTimeouts;
use epitome::daemon::control::{ControlClient, serve};
use epitome::paths::Paths;
use epitome::session::port::SessionPort as _;
use epitome::session::registry::Sessions;
use epitome::session::{
    Attachment, ClientId, EventSink, Opening, Replay, SessionAnswer, SessionCommand, SessionEvent, Ticket,
};
use epitome::thread::{Content, SessionId, StopReason};
use epitome_scripted_model::{ModelStep, ScriptedModel};
use epitome_test_harness::WITHIN;
use epitome_test_harness::session::services;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub struct TestDaemon {
    pub daemon: Arc<Daemon>,
    pub model: ScriptedModel,
    pub cwd: PathBuf,
    _directory: tempfile::TempDir,
}

pub fn text(text: &str) -> Vec<ModelStep> {
    vec![ModelStep::Text(text.to_owned()), ModelStep::Usage { input: 10, output: 5 }]
}

impl TestDaemon {
    /// A daemon whose model sends these replies, one per call, and then "ok". Must be called within a runtime.
    pub fn new(replies: Vec<Vec<ModelStep>>) -> TestDaemon {
        TestDaemon::with_limits(replies, MethodTimeouts::default())
    }

    /// Like [`TestDaemon::new`], with other time limits for calls.
    pub fn with_limits(replies: Vec<Vec<ModelStep>>, limits: MethodTimeouts) -> TestDaemon {
        let mut replies = replies.into_iter();
        let model = ScriptedModel::start(move |_| replies.next().unwrap_or_else(|| text("ok")));
        let model = model.expect("loopback");
        let directory = tempfile::tempdir().expect("a scratch directory");
        let (home, cwd) = (directory.path().join("home"), directory.path().join("work"));
        for made in [&home, &cwd] {
            std::fs::create_dir_all(made).expect("a directory");
        }
        let paths = Paths::below(&home);
        let services = services(&paths);
        let store = services.store.clone();
        let sessions = Sessions::new(services, Handle::current());
        let mut daemon = Daemon::new(paths, sessions, store);
        daemon.control.limits = limits;
        let daemon = Arc::new(daemon);
        let cwd = cwd.canonicalize().expect("it was made");
        TestDaemon { daemon, model, cwd, _directory: directory }
    }

    /// The environment of a client that uses the scripted model.
    pub fn environment(&self) -> Value {
        json!({ "ANTHROPIC_BASE_URL": self.model.base_url(), "ANTHROPIC_API_KEY": "sk-test-1" })
    }

    pub fn pairs(&self) -> Vec<(OsString, OsString)> {
        let pair = |(name, value): (&String, &Value)| {
            (OsString::from(name), OsString::from(value.as_str().expect("text")))
        };
        self.environment().as_object().expect("an object").iter().map(pair).collect()
    }

    /// Opens another connection.
    pub fn connect(&self) -> Wire {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        tokio::spawn(serve(self.daemon.clone(), theirs));
        let (reading, writing) = ours.into_split();
        Wire { reading: BufReader::new(reading), writing: Some(writing), next: 1, set_aside: Vec::new() }
    }

    pub fn client(&self) -> ControlClient {
        ControlClient::here(self.daemon.clone()).expect("a pair of sockets")
    }

    /// A session with one prompt.
    pub async fn session(&self) -> String {
        let mut client = InProcessClient::new(self, None).await;
        client.prompt("hello");
        client.ended().await;
        client.session.0.clone()
    }

    /// Sends a prompt to a session and waits for the end of its turn.
    pub async fn prompt(&self, session: &str, text: &str) {
        let mut client = InProcessClient::new(self, Some(session)).await;
        client.prompt(text);
        client.ended().await;
    }
}

/// A client of a session, without a connection.
pub struct InProcessClient {
    daemon: Arc<Daemon>,
    client: ClientId,
    pub session: SessionId,
    events: UnboundedReceiver<SessionEvent>,
}

impl InProcessClient {
    /// Opens this session, or a new one.
    pub async fn new(test: &TestDaemon, session: Option<&str>) -> InProcessClient {
        let (sender, events) = unbounded_channel();
        let client = fresh_client();
        let opening = Opening {
            attachment: Attachment { client, outlet: Arc::new(EventSender(sender)) },
            cwd: test.cwd.clone(),
            directories: Vec::new(),
            mcp_servers: Vec::new(),
            environment: Arc::new(test.pairs()),
            overrides: Arc::default(),
            instructions: None,
            choices: Vec::new(),
        };
        let sessions = &test.daemon.sessions;
        let session = match session {
            Some(session) => {
                let session = SessionId(session.to_owned());
                sessions.attach(Ticket(1), session.clone(), opening, Replay::Nothing);
                session
            }
            None => sessions.create(Ticket(1), opening),
        };
        let mut client = InProcessClient { daemon: test.daemon.clone(), client, session, events };
        client.until(|event| matches!(event, SessionEvent::Answer { .. }).then_some(())).await;
        client
    }

    pub fn prompt(&self, text: &str) {
        let content = vec![Content::Text { text: text.to_owned() }];
        let prompt = SessionCommand::Prompt { ticket: Ticket(2), client: self.client, content, key: None };
        self.daemon.sessions.send(&self.session, prompt).expect("it lives");
    }

    /// Waits for the end of a prompt.
    pub async fn ended(&mut self) -> StopReason {
        let ended = |event: &SessionEvent| match event {
            SessionEvent::Answer { answer: Ok(SessionAnswer::TurnEnded { reason, .. }), .. } => Some(*reason),
            _ => None,
        };
        self.until(ended).await
    }

    /// Waits for an event.
    pub async fn until<T>(&mut self, wanted: impl Fn(&SessionEvent) -> Option<T>) -> T {
        loop {
            let next = tokio::time::timeout(WITHIN, self.events.recv()).await;
            if let Some(found) = wanted(&next.expect("an event in time").expect("the session lives")) {
                return found;
            }
        }
    }
}

impl Drop for InProcessClient {
    fn drop(&mut self) {
        self.daemon.sessions.detach(self.client);
    }
}

struct EventSender(UnboundedSender<SessionEvent>);

impl EventSink for EventSender {
    fn put(&self, _: &SessionId, out: SessionEvent) {
        // A finished test has dropped the receiver.
        drop(self.0.send(out));
    }
}

/// A client that writes and reads lines.
pub struct Wire {
    reading: BufReader<OwnedReadHalf>,
    writing: Option<OwnedWriteHalf>,
    next: u64,
    set_aside: Vec<Value>,
}

impl Wire {
    pub async fn write(&mut self, bytes: &[u8]) {
        let writing = self.writing.as_mut().expect("it is open");
        writing.write_all(bytes).await.expect("the daemon reads");
    }

    /// Closes the client's writing half.
    pub fn close_writing(&mut self) {
        self.writing = None;
    }

    /// The next line; `None` at the end of the stream.
    pub async fn line(&mut self) -> Option<Value> {
        if !self.set_aside.is_empty() {
            return Some(self.set_aside.remove(0));
        }
        self.fresh_line().await
    }

    async fn fresh_line(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = tokio::time::timeout(WITHIN, self.reading.read_line(&mut line)).await;
        match read.expect("a line in time").expect("the socket can be read") {
            0 => None,
            _ => Some(serde_json::from_str(&line).expect("each line is JSON")),
        }
    }

    /// Sends a request and returns its id.
    pub async fn send(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next;
        self.next += 1;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.write(format!("{request}\n").as_bytes()).await;
        id
    }

    /// The answer with this id; lines before it are kept for later reads.
    pub async fn answer(&mut self, id: u64) -> Value {
        self.until(|line| line["id"] == id).await
    }

    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params).await;
        self.answer(id).await
    }

    /// The next line that satisfies `wanted`; other lines are kept for later reads.
    pub async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.set_aside.iter().position(&wanted) {
            return self.set_aside.remove(at);
        }
        loop {
            let line = self.fresh_line().await.expect("it did not come before the end");
            if wanted(&line) {
                return line;
            }
            self.set_aside.push(line);
        }
    }
}
