//! The client that rules use: communicates with one agent process and checks every line that the agent sends.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use agent_client_protocol::v1::schema as wire;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::agent::{AgentConnection, AgentEnvironment, Launch, Received};
use super::story::{EXIT_WITHIN, FixtureFailure};

/// Timeout for one response. Agents that run on Node or Python need seconds to start.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// How long to wait for further messages before concluding that there are none. A passing rule that expects silence
/// takes this long.
const SILENCE: Duration = Duration::from_millis(700);

/// How long to wait for that silence. Some agents send heartbeats.
const SILENCE_WITHIN: Duration = Duration::from_secs(5);

/// Maximum number of messages that are kept for a rule. A rule needs a few dozen.
const NEWS_MAX: usize = 100_000;

/// The variable that identifies the processes of an agent, including those that left its process group.
const MARKER: &str = "ACP_CHECK_PROCESS";

const AUTH_REQUIRED: i64 = -32000;

/// Why a rule ended early.
#[derive(Debug)]
pub enum Stop {
    Failed {
        expected: String,
        got: String,
    },
    /// The agent does not advertise this capability.
    NotOffered(String),
    /// The rule could not be checked here, for this reason.
    NotRun(String),
}

pub type Checked<T = ()> = Result<T, Stop>;

pub fn failed<T>(expected: impl Into<String>, got: impl Into<String>) -> Checked<T> {
    Err(Stop::Failed { expected: expected.into(), got: got.into() })
}

/// How the client answers permission requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    Allow,
    Reject,
    /// The client doesn't answer; the rule does.
    Leave,
}

/// The client for checking one rule, with a separate workspace.
pub struct Client<'a> {
    agent: &'a dyn Launch,
    /// The login method to use before opening a session.
    login: Option<&'a str>,
    is_logged_in: bool,
    surroundings: AgentEnvironment,
    connection: Option<AgentConnection>,
    next_id: u64,
    /// The result of `initialize`.
    pub offered: Value,
    /// Received messages that no rule has processed yet, in order, without responses.
    pub news: VecDeque<Value>,
    /// Responses that arrived while waiting for another one.
    answers: Vec<Value>,
    pub permission: Permission,
    marker: String,
    _scratch: tempfile::TempDir,
}

impl<'a> Client<'a> {
    /// Creates a client. It starts its agent with the first message.
    pub fn new(agent: &'a dyn Launch, login: Option<&'a str>) -> io::Result<Client<'a>> {
        let base = std::env::temp_dir().canonicalize()?;
        let scratch = tempfile::Builder::new().prefix("acp-check-").tempdir_in(base)?;
        let workspace = scratch.path().join("workspace");
        std::fs::create_dir(&workspace)?;
        let marker = scratch.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let variables = vec![(MARKER.to_owned(), marker.clone().into())];
        Ok(Client {
            agent,
            login,
            is_logged_in: false,
            surroundings: AgentEnvironment { workspace, variables },
            connection: None,
            next_id: 1,
            offered: Value::Null,
            news: VecDeque::new(),
            answers: Vec::new(),
            permission: Permission::Reject,
            marker,
            _scratch: scratch,
        })
    }

    pub fn workspace(&self) -> &Path {
        &self.surroundings.workspace
    }

    // ── Sending ────────────────────────────────────────────────────────────────────────────────

    pub fn send(&mut self, message: &Value) -> Checked {
        self.send_line(message.to_string().into_bytes())
    }

    pub fn send_line(&mut self, line: Vec<u8>) -> Checked {
        if self.connection.is_none() {
            let running = self.agent.launch(&self.surroundings);
            let running =
                running.map_err(|error| Stop::NotRun(format!("it could not be started: {error}")))?;
            self.connection = Some(AgentConnection::begin(running));
        }
        if let Some(connection) = &self.connection {
            connection.send(line);
        }
        Ok(())
    }

    pub fn notify(&mut self, method: &str, params: Value) -> Checked {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }))
    }

    /// Sends a request and returns its id.
    pub fn request(&mut self, method: &str, params: Value) -> Checked<u64> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        Ok(id)
    }

    /// Sends a request and waits for its response, a message with `result` or `error`.
    pub fn call(&mut self, method: &str, params: Value) -> Checked<Value> {
        let id = self.request(method, params)?;
        self.answer(id, method)
    }

    /// Sends a request that must succeed, and returns its result.
    pub fn result(&mut self, method: &str, params: Value) -> Checked<Value> {
        let answer = self.call(method, params)?;
        match answer.get("result") {
            Some(result) => Ok(result.clone()),
            None => failed(format!("a result of `{method}`"), answer.to_string()),
        }
    }

    /// Sends a request that must fail with one of these codes, or with any code if `codes` is empty.
    pub fn error(&mut self, method: &str, params: Value, codes: &[i64]) -> Checked {
        let answer = self.call(method, params)?;
        let code = answer["error"]["code"].as_i64();
        match code {
            Some(code) if codes.is_empty() || codes.contains(&code) => Ok(()),
            _ => {
                let expected = match codes {
                    [] => "an error".to_owned(),
                    codes => codes.iter().map(i64::to_string).collect::<Vec<_>>().join(" or "),
                };
                failed(format!("`{method}` fails with {expected}"), answer.to_string())
            }
        }
    }

    // ── Receiving ──────────────────────────────────────────────────────────────────────────────

    /// Waits for the response to a request. Other messages are kept in `news`.
    pub fn answer(&mut self, id: u64, method: &str) -> Checked<Value> {
        let deadline = Instant::now() + ANSWER_WITHIN;
        loop {
            if let Some(at) = self.answers.iter().position(|answer| answer["id"] == id) {
                return Ok(self.answers.remove(at));
            }
            match self.receive_by(deadline)? {
                Some(()) => {}
                // A slow agent can't be distinguished from a slow machine.
                None if method == "initialize" => {
                    let why = format!("it did not answer `initialize` within {ANSWER_WITHIN:?}");
                    return Err(Stop::NotRun(why));
                }
                None => {
                    return failed(
                        format!("an answer to `{method}`"),
                        format!("nothing in {ANSWER_WITHIN:?}"),
                    );
                }
            }
        }
    }

    /// Waits for a message that satisfies `is_it`, and removes it from `news`. `what` describes it.
    pub fn wait_for(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Checked<Value> {
        let deadline = Instant::now() + ANSWER_WITHIN;
        loop {
            if let Some(at) = self.news.iter().position(&is_it) {
                return Ok(self.news.remove(at).unwrap_or_default());
            }
            match self.receive_by(deadline)? {
                Some(()) => {}
                None => return failed(what, format!("nothing in {ANSWER_WITHIN:?}")),
            }
        }
    }

    /// Receives until there are no more messages for `SILENCE`, or until `SILENCE_WITHIN` is over. Returns the responses,
    /// for rules that expect none.
    pub fn silence(&mut self) -> Checked<Vec<Value>> {
        let deadline = Instant::now() + SILENCE_WITHIN;
        while self.receive_by(deadline.min(Instant::now() + SILENCE))?.is_some() {}
        Ok(std::mem::take(&mut self.answers))
    }

    /// Waits briefly for a message, and responds to requests of the agent.
    pub fn pause(&mut self) -> Checked {
        self.receive(Duration::from_millis(100)).map(drop)
    }

    /// Receives and stores one message; `None` if the deadline is over, even if the agent continues to send.
    fn receive_by(&mut self, deadline: Instant) -> Checked<Option<()>> {
        match deadline.checked_duration_since(Instant::now()) {
            Some(left) => self.receive(left),
            None => Ok(None),
        }
    }

    /// Receives and stores one message; `None` if none arrives in time.
    fn receive(&mut self, within: Duration) -> Checked<Option<()>> {
        let Some(connection) = &self.connection else { return Ok(None) };
        let line = match connection.receive(within) {
            Received::Line(line) => line,
            Received::Nothing => return Ok(None),
            Received::End => {
                let errors = connection.errors();
                let last = errors.lines().rev().take(4).collect::<Vec<_>>();
                let last = last.into_iter().rev().collect::<Vec<_>>().join(" / ");
                return failed("an agent that goes on", format!("it ended; its error output: {last}"));
            }
        };
        let Ok(message @ Value::Object(_)) = serde_json::from_slice::<Value>(&line) else {
            let text: String = String::from_utf8_lossy(&line).chars().take(200).collect();
            return failed("only JSON-RPC messages on standard output", format!("{text:?}"));
        };
        if message["jsonrpc"] != "2.0" {
            return failed("`\"jsonrpc\":\"2.0\"` in each message", message.to_string());
        }
        if self.news.len() + self.answers.len() >= NEWS_MAX {
            return failed(
                "an agent that sends only what belongs to the rule",
                format!("{NEWS_MAX} messages"),
            );
        }
        match (message["method"].as_str(), message.get("id")) {
            (None, Some(_)) => self.answers.push(message),
            (Some("session/request_permission"), Some(id)) => {
                valid::<wire::RequestPermissionRequest>(&message["params"])?;
                let answer = self.decide(&message, id.clone());
                self.news.push_back(message);
                if let Some(answer) = answer {
                    self.send(&answer)?;
                }
            }
            // The client advertised no capability that allows other requests.
            (Some(method), Some(id)) => {
                let error = json!({ "code": -32601, "message": format!("Method not found: {method}") });
                let answer = json!({ "jsonrpc": "2.0", "id": id, "error": error });
                self.news.push_back(message);
                self.send(&answer)?;
            }
            (Some(method), None) => {
                if method == "session/update" {
                    valid::<wire::SessionNotification>(&message["params"])?;
                }
                self.news.push_back(message);
            }
            (None, None) => return failed("a request, a notification or an answer", message.to_string()),
        }
        Ok(Some(()))
    }

    fn decide(&self, request: &Value, id: Value) -> Option<Value> {
        let wanted = match self.permission {
            Permission::Allow => "allow_once",
            Permission::Reject => "reject_once",
            Permission::Leave => return None,
        };
        let options = request["params"]["options"].as_array().cloned().unwrap_or_default();
        let option = options.iter().find(|option| option["kind"] == wanted);
        let outcome = match option {
            Some(option) => json!({ "outcome": "selected", "optionId": option["optionId"] }),
            None => json!({ "outcome": "cancelled" }),
        };
        Some(json!({ "jsonrpc": "2.0", "id": id, "result": { "outcome": outcome } }))
    }

    /// Returns the updates of a session in `news`, in order.
    pub fn updates(&self, session: &str) -> Vec<&Value> {
        let of = |message: &&Value| {
            message["method"] == "session/update" && message["params"]["sessionId"] == session
        };
        self.news.iter().filter(of).map(|message| &message["params"]["update"]).collect()
    }

    /// Returns the agent's text in the updates of a session in `news`.
    pub fn text(&self, session: &str) -> String {
        let chunks = self.updates(session).into_iter();
        let chunks = chunks.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
    }

    // ── Steps that many rules need ─────────────────────────────────────────────────────────────

    pub fn initialize(&mut self) -> Checked {
        self.initialize_as(json!({}))
    }

    pub fn initialize_as(&mut self, capabilities: Value) -> Checked {
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": capabilities,
            "clientInfo": { "name": "acp-check", "title": "acp-check", "version": env!("CARGO_PKG_VERSION") },
        });
        self.offered = self.result("initialize", params)?;
        valid::<wire::InitializeResponse>(&self.offered)
    }

    /// Whether the agent advertises a capability, a path below `agentCapabilities`.
    pub fn offers(&self, capability: &str) -> bool {
        let path = format!("/agentCapabilities/{}", capability.replace('.', "/"));
        self.offered.pointer(&path).is_some_and(|value| !value.is_null() && value != false)
    }

    pub fn needs(&self, capability: &str) -> Checked {
        if self.offers(capability) { Ok(()) } else { Err(Stop::NotOffered(capability.to_owned())) }
    }

    pub fn opening(&self) -> Value {
        json!({ "cwd": self.surroundings.workspace, "mcpServers": [] })
    }

    /// Initializes and opens a session. Returns the result of `session/new`. If a login is missing, the rule is not
    /// run.
    pub fn open(&mut self) -> Checked<Value> {
        self.initialize()?;
        self.another()
    }

    /// Opens another session, logging in first if necessary.
    pub fn another(&mut self) -> Checked<Value> {
        if let Some(method) = self.login.filter(|_| !self.is_logged_in) {
            self.is_logged_in = true;
            let answer = self.call("authenticate", json!({ "methodId": method }))?;
            if answer.get("error").is_some() {
                return Err(Stop::NotRun(format!(
                    "its login {method} fails: {}",
                    answer["error"]["message"]
                )));
            }
        }
        let answer = self.call("session/new", self.opening())?;
        if let Some(error) = answer.get("error") {
            return match error["code"].as_i64() {
                Some(AUTH_REQUIRED) => Err(Stop::NotRun("it opens no session without a login".to_owned())),
                _ => failed("a session", answer.to_string()),
            };
        }
        valid::<wire::NewSessionResponse>(&answer["result"])?;
        Ok(answer["result"].clone())
    }

    /// Initializes, opens a session and returns its id.
    pub fn session(&mut self) -> Checked<String> {
        let opened = self.open()?;
        Ok(id_of(&opened))
    }

    /// Sends a prompt and returns the id of the request.
    pub fn prompt(&mut self, session: &str, text: &str) -> Checked<u64> {
        let block = json!({ "type": "text", "text": text });
        self.request("session/prompt", json!({ "sessionId": session, "prompt": [block] }))
    }

    /// Waits for the response to a prompt and returns its stop reason. If no model can be called, the rule is not run.
    pub fn ended(&mut self, prompt: u64) -> Checked<String> {
        let answer = self.answer(prompt, "session/prompt")?;
        if let Some(error) = answer.get("error") {
            let message = error["message"].as_str().unwrap_or_default();
            let details = error["data"].to_string();
            let login = error["code"].as_i64() == Some(AUTH_REQUIRED)
                || ["api key", "api_key", "auth", "login", "log in", "credential", "401", "model"]
                    .iter()
                    .any(|word| format!("{message} {details}").to_lowercase().contains(word));
            return match login {
                true => Err(Stop::NotRun(format!("it can't call a model here: {message}"))),
                false => failed("a stop reason", answer.to_string()),
            };
        }
        valid::<wire::PromptResponse>(&answer["result"])?;
        Ok(answer["result"]["stopReason"].as_str().unwrap_or_default().to_owned())
    }

    // ── The end ────────────────────────────────────────────────────────────────────────────────

    /// Closes the agent's input and waits for its end. Further messages are kept in `news`.
    pub fn close(&mut self) -> Checked {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        connection.close();
        let deadline = Instant::now() + EXIT_WITHIN;
        loop {
            let left = deadline.checked_duration_since(Instant::now());
            let connection = self.connection.as_ref();
            match left.zip(connection).map(|(left, connection)| connection.receive(left)) {
                Some(Received::Line(line)) => {
                    self.news.extend(serde_json::from_slice::<Value>(&line));
                }
                Some(Received::End) => return Ok(()),
                Some(Received::Nothing) | None => {
                    let got = format!("it still runs {EXIT_WITHIN:?} after its input was closed");
                    return failed("an agent that ends with its input", got);
                }
            }
        }
    }

    /// Ends the agent, so that the next message starts another process.
    pub fn restart(&mut self) -> Checked {
        self.close()?;
        self.connection = None;
        self.is_logged_in = false;
        self.news.clear();
        self.answers.clear();
        Ok(())
    }

    /// Returns the command lines of the agent's processes that are still running.
    pub fn processes(&self) -> Vec<String> {
        let marker = format!("{MARKER}={}", self.marker);
        let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
        let paths = processes.flatten().map(|entry| entry.path());
        let ours = paths.filter(|path| {
            let environment = std::fs::read(path.join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes())
        });
        ours.filter_map(|path| command_of(&path)).collect()
    }
}

/// The command line of a process; `None` for a zombie.
fn command_of(process: &Path) -> Option<String> {
    let command = std::fs::read(process.join("cmdline")).ok().filter(|command| !command.is_empty())?;
    Some(String::from_utf8_lossy(&command).replace('\0', " ").trim_end().to_owned())
}

pub fn id_of(opened: &Value) -> String {
    opened["sessionId"].as_str().unwrap_or_default().to_owned()
}

/// Checks that a value conforms to a type of the official schema.
fn valid<T: DeserializeOwned>(value: &Value) -> Checked {
    match serde_json::from_value::<T>(value.clone()) {
        Ok(_) => Ok(()),
        Err(error) => failed("a message of the official schema", format!("{error}: {value}")),
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::NotRun(format!("it could not be set up: {error}"))
    }
}

/// Creates the failure report of a rule.
pub fn failure(expected: String, got: String) -> FixtureFailure {
    FixtureFailure { line: 0, expected, got: super::story::shortened(got), notes: Vec::new() }
}
