//! A daemon in this process with a scripted model, and clients that speak its control API line by line, as a
//! script would.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use epitome::daemon::Daemon;
use epitome::daemon::control::limits::MethodTimeouts;
use epitome::daemon::control::{ControlClient, serve};
use epitome::paths::Paths;
use epitome::session::registry::Sessions;
use epitome_scripted_model::{ModelStep, ScriptedModel};
use epitome_test_harness::WITHIN;
use epitome_test_harness::session::services;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Handle;

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
        let served = tokio::spawn(serve(self.daemon.clone(), theirs));
        let (reading, writing) = ours.into_split();
        Wire {
            reading: BufReader::new(reading),
            writing: Some(writing),
            served,
            next: 1,
            set_aside: Vec::new(),
        }
    }

    pub fn client(&self) -> ControlClient {
        ControlClient::here(self.daemon.clone()).expect("a pair of sockets")
    }

    /// A session with one prompt.
    pub async fn session(&self, wire: &mut Wire) -> String {
        let params = json!({ "cwd": self.cwd, "text": "hello", "environment": self.environment() });
        let answered = wire.call("sessions.prompt", params).await;
        answered["result"]["session"].as_str().unwrap_or_else(|| panic!("{answered}")).to_owned()
    }
}

/// A client that writes and reads lines.
pub struct Wire {
    reading: BufReader<OwnedReadHalf>,
    writing: Option<OwnedWriteHalf>,
    pub served: tokio::task::JoinHandle<()>,
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

    /// The next tail item of this type.
    pub async fn item(&mut self, kind: &str) -> Value {
        let line = self
            .until(|line| line["method"] == "sessions.tail" && line["params"]["result"]["type"] == kind)
            .await;
        line["params"]["result"].clone()
    }
}
