//! An editor at the other end of the connection: writes lines, reads lines, and validates each one against the
//! protocol's own schema.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::sync::Arc;
use std::thread::JoinHandle;

use agent_client_protocol::v1::schema::{RequestPermissionRequest, SessionNotification};
use epitome::acp::answers::{LoginNeed, LoginState};
use epitome::acp::connection::{Connection, ConnectionExit, Tap};
use epitome::acp::server::{ConnectionConfig, ProviderRoute, UserLogin};
use epitome::acp::writer::Positions;
use epitome::session::registry::Overrides;
use epitome::session::{AccessGrant, ClientId, ProviderSettings, SessionError};
use serde_json::{Value, json};

use super::played::Played;

/// The editor's ends of the pipes of a connection.
pub struct Wire {
    /// Dropping it closes the connection.
    pub to_agent: PipeWriter,
    pub from_agent: BufReader<PipeReader>,
    pub served: JoinHandle<ConnectionExit>,
}

/// Serves a client over two pipes, on its own thread.
fn serve(config: ConnectionConfig<Played>, tap: Option<Tap>) -> Wire {
    let (agent_reads, to_agent) = std::io::pipe().unwrap();
    let (from_agent, agent_writes) = std::io::pipe().unwrap();
    let served = std::thread::spawn(move || {
        let connection = Connection::open(agent_writes, config, tap);
        let exit = connection.read(agent_reads);
        connection.closer().close();
        exit
    });
    Wire { to_agent, from_agent: BufReader::new(from_agent), served }
}

/// A simulated login; the flag is whether the user is logged in.
struct PlayedLogin(bool);

impl UserLogin for PlayedLogin {
    fn check(&self) -> Result<(), SessionError> {
        let missing = || SessionError::AuthRequired("Set EXAMPLE_API_KEY.".to_owned());
        if self.0 { Ok(()) } else { Err(missing()) }
    }

    fn state(&self) -> LoginState {
        let need = if self.0 { LoginNeed::Satisfied } else { LoginNeed::Missing };
        LoginState { need, accounts: Vec::new() }
    }

    fn routes(&self) -> Vec<ProviderRoute> {
        Vec::new()
    }

    fn route(&self, _: String, _: ProviderSettings) {}

    fn overrides(&self) -> Arc<Overrides> {
        Arc::default()
    }

    fn log_out(&self) -> std::io::Result<bool> {
        Ok(!self.0)
    }
}

/// See the module's documentation.
pub struct Editor {
    pub wire: Wire,
    pub played: Played,
    pub runtime: tokio::runtime::Runtime,
    /// Whether the agent may write updates of version 2, which the schema of version 1 does not describe.
    offers_v2: bool,
    next: u64,
}

impl Editor {
    pub fn new() -> Editor {
        Editor::with(true, None)
    }

    pub fn with(configured: bool, tap: Option<Tap>) -> Editor {
        Editor::offered(configured, false, tap)
    }

    /// Like `with`, for an agent that may offer version 2.
    pub fn offered(configured: bool, offers_v2: bool, tap: Option<Tap>) -> Editor {
        Editor::granted(None, configured, offers_v2, tap)
    }

    /// Like `offered`, for a client on another machine, with the rights of its token.
    pub fn granted(
        grant: Option<AccessGrant>,
        configured: bool,
        offers_v2: bool,
        tap: Option<Tap>,
    ) -> Editor {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let played = Played::default();
        let config = ConnectionConfig {
            sessions: played.clone(),
            runtime: runtime.handle().clone(),
            client: ClientId(1),
            grant: grant.map(Arc::new),
            environment: Arc::new(Vec::new()),
            login: Arc::new(PlayedLogin(configured)),
            ids_above: 0,
            positions: Positions::Omitted,
            offers_v2: Box::new(move || offers_v2),
        };
        Editor { wire: serve(config, tap), played, runtime, offers_v2, next: 1 }
    }

    pub fn initialized() -> Editor {
        let mut editor = Editor::new();
        editor.call("initialize", json!({ "protocolVersion": 1 }));
        editor
    }

    pub fn write(&mut self, line: &[u8]) {
        self.wire.to_agent.write_all(line).unwrap();
        self.wire.to_agent.write_all(b"\n").unwrap();
    }

    pub fn send(&mut self, message: Value) {
        self.write(message.to_string().as_bytes());
    }

    pub fn read(&mut self) -> Value {
        let mut line = String::new();
        self.wire.from_agent.read_line(&mut line).unwrap();
        let message: Value = serde_json::from_str(&line).expect("each line is JSON");
        assert_eq!(message["jsonrpc"], "2.0");
        match message["method"].as_str() {
            Some("session/update") if self.offers_v2 => {}
            Some("session/update") => reads_as::<SessionNotification>(&message["params"]),
            Some("session/request_permission") => reads_as::<RequestPermissionRequest>(&message["params"]),
            Some(_) | None => {}
        }
        message
    }

    /// Sends a request and returns its id.
    pub fn request(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next;
        self.next += 1;
        self.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    /// Sends a request and reads until its answer; also returns the messages that preceded it.
    pub fn call_after(&mut self, method: &str, params: Value) -> (Vec<Value>, Value) {
        let id = self.request(method, params);
        let mut before = Vec::new();
        loop {
            let message = self.read();
            if message["id"] == id && message.get("method").is_none() {
                return (before, message);
            }
            before.push(message);
        }
    }

    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.call_after(method, params).1
    }

    pub fn new_session(&mut self) -> String {
        let answer = self.call("session/new", json!({ "cwd": "/w", "mcpServers": [] }));
        assert_eq!(self.read()["params"]["update"]["sessionUpdate"], "available_commands_update");
        answer["result"]["sessionId"].as_str().expect("a new session has an id").to_owned()
    }

    pub fn prompt(&mut self, session: &str, text: &str) -> u64 {
        self.request("session/prompt", prompt(session, text))
    }

    pub fn close(self) -> (Played, ConnectionExit) {
        drop(self.wire.to_agent);
        let exit = self.wire.served.join().unwrap();
        drop(self.runtime);
        (self.played, exit)
    }
}

/// Asserts that the schema's type accepts the value and drops none of it, except for the default of a call's status.
fn reads_as<T: serde::Serialize + serde::de::DeserializeOwned>(params: &Value) {
    let read: T = serde_json::from_value(params.clone()).expect("the schema reads it");
    let mut params = params.clone();
    if let Some(update) = params.get_mut("update").and_then(Value::as_object_mut)
        && update["sessionUpdate"] == "tool_call"
    {
        assert_eq!(update.remove("status"), Some(json!("pending")));
    }
    assert_eq!(serde_json::to_value(read).unwrap(), params);
}

pub fn prompt(session: &str, text: &str) -> Value {
    json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] })
}
