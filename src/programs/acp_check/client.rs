//! The client that rules use: communicates with one agent process and checks every line that the agent sends.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use agent_client_protocol::{v1::schema as wire, v2::schema as wire_2};
use clap::ValueEnum;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use epitome_transcript::MessageDirection;

use super::agent::{AgentConnection, AgentEnvironment, AgentHome, EXIT_WITHIN, Launch};
use super::invariants::Invariants;
use super::model::CheckModel;
use super::outcome::{AUTH_REQUIRED, RunTranscript};

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

const CANCELLED: i64 = -32800;

/// The version of the protocol that the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Version {
    #[value(name = "1")]
    V1,
    #[value(name = "2")]
    V2,
}

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

/// Fails unless the condition holds.
pub fn ensure(holds: bool, expected: impl Into<String>, got: impl ToString) -> Checked {
    if holds { Ok(()) } else { failed(expected, got.to_string()) }
}

/// Fails if there is something.
pub fn nothing(expected: &str, found: Option<&Value>) -> Checked {
    found.map_or(Ok(()), |found| failed(expected, found.to_string()))
}

/// How the client answers permission requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    Allow,
    Reject,
    /// The client doesn't answer; the rule does.
    Leave,
}

/// The setting in which all rules are checked.
#[derive(Clone, Copy)]
pub struct RuleSetting<'a> {
    pub agent: &'a dyn Launch,
    pub version: Version,
    /// The login method to use before opening a session.
    pub login: Option<&'a str>,
    pub home: &'a AgentHome,
    /// The scripted model; `None` if the agent uses its own.
    pub model: Option<&'a CheckModel>,
}

/// The client for checking one rule, with a separate workspace.
pub struct Client<'a> {
    setting: RuleSetting<'a>,
    pub version: Version,
    is_logged_in: bool,
    /// How many replies the model had begun to hold, and how often it had been called, before.
    held_before: usize,
    calls_before: usize,
    /// The same at the last prompt.
    calls_at_prompt: usize,
    pub transcript: RunTranscript,
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
    /// The sessions of prompts.
    prompts: HashMap<u64, String>,
    invariants: Invariants,
    marker: String,
    _scratch: tempfile::TempDir,
}

impl<'a> Client<'a> {
    /// Creates a client. It starts its agent with the first message.
    pub fn new(setting: RuleSetting<'a>) -> io::Result<Client<'a>> {
        let (mut surroundings, scratch) = AgentEnvironment::create(setting.home)?;
        static CLIENTS: AtomicU32 = AtomicU32::new(0);
        // Nothing random: an agent that keeps secrets from its commands could take that for one.
        let marker = format!("{}-{}", std::process::id(), CLIENTS.fetch_add(1, Ordering::Relaxed));
        surroundings.variables.push((MARKER.to_owned(), marker.clone().into()));
        surroundings.variables.extend(setting.model.map(CheckModel::variables).unwrap_or_default());
        Ok(Client {
            setting,
            version: setting.version,
            is_logged_in: false,
            held_before: setting.model.map_or(0, CheckModel::held),
            calls_before: setting.model.map_or(0, CheckModel::calls),
            calls_at_prompt: 0,
            transcript: RunTranscript::default(),
            surroundings,
            connection: None,
            next_id: 1,
            offered: Value::Null,
            news: VecDeque::new(),
            answers: Vec::new(),
            permission: Permission::Reject,
            prompts: HashMap::new(),
            invariants: Invariants::default(),
            marker,
            _scratch: scratch,
        })
    }

    pub fn workspace(&self) -> &Path {
        &self.surroundings.workspace
    }

    /// Whether the turn of the last prompt can't have ended: the scripted model has held a reply for this client, or was
    /// called for an earlier prompt but not for this one.
    pub fn is_held(&self) -> bool {
        let has_called = self.calls_at_prompt > self.calls_before;
        self.setting.model.is_some_and(|model| model.held() > self.held_before)
            || (has_called && self.calls() == self.calls_at_prompt)
    }

    /// The number of calls of the scripted model so far.
    pub fn calls(&self) -> usize {
        self.setting.model.map_or(0, CheckModel::calls)
    }

    /// Whether a prompt is answered.
    pub fn is_answered(&self, prompt: u64) -> bool {
        self.answers.iter().any(|answer| answer["id"] == prompt)
    }

    // ── Sending ────────────────────────────────────────────────────────────────────────────────

    pub fn send(&mut self, message: &Value) -> Checked {
        self.send_line(message.to_string().into_bytes())
    }

    pub fn send_line(&mut self, line: Vec<u8>) -> Checked {
        if self.connection.is_none() {
            let running = self.setting.agent.launch(&self.surroundings);
            let running =
                running.map_err(|error| Stop::NotRun(format!("it could not be started: {error}")))?;
            self.connection = Some(AgentConnection::begin(running));
        }
        if let Some(connection) = &self.connection {
            self.transcript.record(MessageDirection::ToAgent, &line);
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
        let answer = self.call_with_login(method, params)?;
        match answer.get("result") {
            Some(result) => Ok(result.clone()),
            None => failed(format!("a result of `{method}`"), answer.to_string()),
        }
    }

    /// Like `call`; if a login is missing, the rule is not run.
    fn call_with_login(&mut self, method: &str, params: Value) -> Checked<Value> {
        let answer = self.call(method, params)?;
        match answer["error"]["code"] == AUTH_REQUIRED {
            true => Err(Stop::NotRun(format!("it needs a login for `{method}`"))),
            false => Ok(answer),
        }
    }

    /// Sends a request that must fail with one of these codes, or with any code if `codes` is empty.
    pub fn error(&mut self, method: &str, params: Value, codes: &[i64]) -> Checked {
        let answer = self.call_with_login(method, params)?;
        let code = answer["error"]["code"].as_i64();
        let is_right = code.is_some_and(|code| codes.is_empty() || codes.contains(&code));
        let expected = match codes {
            [] => "an error".to_owned(),
            codes => codes.iter().map(i64::to_string).collect::<Vec<_>>().join(" or "),
        };
        ensure(is_right, format!("`{method}` fails with {expected}"), answer)
    }

    // ── Receiving ──────────────────────────────────────────────────────────────────────────────

    /// Waits for the response to a request. Other messages are kept in `news`.
    pub fn answer(&mut self, id: u64, method: &str) -> Checked<Value> {
        let answer = self.receive_until(|client| {
            let at = client.answers.iter().position(|answer| answer["id"] == id)?;
            Some(client.answers.remove(at))
        });
        match answer? {
            Some(answer) => Ok(answer),
            // A slow agent can't be distinguished from a slow machine.
            None if method == "initialize" => {
                let why = format!("it did not answer `initialize` within {ANSWER_WITHIN:?}");
                Err(Stop::NotRun(why))
            }
            None => failed(format!("an answer to `{method}`"), format!("nothing in {ANSWER_WITHIN:?}")),
        }
    }

    /// Receives until `get` finds something; `None` if it finds nothing in time.
    fn receive_until<T>(&mut self, mut get: impl FnMut(&mut Self) -> Option<T>) -> Checked<Option<T>> {
        let deadline = Instant::now() + ANSWER_WITHIN;
        loop {
            if let Some(found) = get(self) {
                return Ok(Some(found));
            }
            if !self.receive_by(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Waits for a message that satisfies `is_it`, and removes it from `news`. `what` describes it.
    pub fn wait_for(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Checked<Value> {
        Ok(self.wait_until(what, is_it, None)?.unwrap_or_default())
    }

    /// The same for a message during the turn that a prompt has started; `None` if the turn ends without it.
    pub fn wait_in_turn(
        &mut self,
        what: &str,
        prompt: u64,
        is_it: impl Fn(&Value) -> bool,
    ) -> Checked<Option<Value>> {
        let session = self.prompts.get(&prompt).cloned().unwrap_or_default();
        let is_over = |message: &Value| {
            is_state(message, &session, |state| state["state"] == "idle" && state["stopReason"].is_string())
        };
        // In version 2, a prompt is answered at its beginning.
        let answered = (self.version == Version::V1).then_some(prompt);
        let found = self.wait_until(what, |message| is_it(message) || is_over(message), answered)?;
        Ok(found.filter(|message| !is_over(message)))
    }

    /// Waits for a message; `None` if this request is answered first.
    fn wait_until(
        &mut self,
        what: &str,
        is_it: impl Fn(&Value) -> bool,
        request: Option<u64>,
    ) -> Checked<Option<Value>> {
        let found = self.receive_until(|client| {
            if let Some(at) = client.news.iter().position(&is_it) {
                return Some(client.news.remove(at));
            }
            request.is_some_and(|id| client.is_answered(id)).then_some(None)
        });
        match found? {
            Some(found) => Ok(found),
            None => failed(what, format!("nothing in {ANSWER_WITHIN:?}")),
        }
    }

    /// Receives until there are no more messages for `SILENCE`, or until `SILENCE_WITHIN` is over. Returns the responses,
    /// for rules that expect none.
    pub fn silence(&mut self) -> Checked<Vec<Value>> {
        let deadline = Instant::now() + SILENCE_WITHIN;
        while self.receive_by(deadline.min(Instant::now() + SILENCE))? {}
        Ok(std::mem::take(&mut self.answers))
    }

    /// Waits briefly for a message, and responds to requests of the agent.
    pub fn pause(&mut self) -> Checked {
        self.receive(Duration::from_millis(100)).map(drop)
    }

    /// Receives and stores one message; false if the deadline is over, even if the agent continues to send.
    fn receive_by(&mut self, deadline: Instant) -> Checked<bool> {
        match deadline.checked_duration_since(Instant::now()) {
            Some(left) => self.receive(left),
            None => Ok(false),
        }
    }

    /// Receives and stores one message; false if none arrives in time.
    fn receive(&mut self, within: Duration) -> Checked<bool> {
        let Some(connection) = &self.connection else { return Ok(false) };
        let line = match connection.receive(within) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                let errors = connection.errors();
                let last = errors.lines().rev().take(4).collect::<Vec<_>>();
                let last = last.into_iter().rev().collect::<Vec<_>>().join(" / ");
                return failed("an agent that goes on", format!("it ended; its error output: {last}"));
            }
        };
        self.transcript.record(MessageDirection::ToEditor, &line);
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
                self.valid::<wire::RequestPermissionRequest, wire_2::RequestPermissionRequest>(
                    &message["params"],
                )?;
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
                    let params = &message["params"];
                    self.valid::<wire::SessionNotification, wire_2::UpdateSessionNotification>(params)?;
                    if self.version == Version::V2 {
                        self.invariants.check(params)?;
                    }
                }
                self.news.push_back(message);
            }
            (None, None) => return failed("a request, a notification or an answer", message.to_string()),
        }
        Ok(true)
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
        self.text_by("agent_message", session)
    }

    /// Returns the text of messages of this kind: their chunks, and in version 2 also complete contents.
    pub fn text_by(&self, kind: &str, session: &str) -> String {
        let mut messages: Vec<(&Value, String)> = Vec::new();
        for update in self.updates(session) {
            let Some(form) = update["sessionUpdate"].as_str().and_then(|update| update.strip_prefix(kind))
            else {
                continue;
            };
            let id = &update["messageId"];
            let at = messages.iter().position(|(known, _)| *known == id).unwrap_or_else(|| {
                messages.push((id, String::new()));
                messages.len() - 1
            });
            match (form, &update["content"]) {
                ("_chunk", block) => messages[at].1.push_str(block["text"].as_str().unwrap_or_default()),
                ("", Value::Array(blocks)) => {
                    messages[at].1 = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
                }
                _ => {}
            }
        }
        messages.into_iter().map(|(_, text)| text).collect()
    }

    // ── Steps that many rules need ─────────────────────────────────────────────────────────────

    pub fn initialize(&mut self) -> Checked {
        self.initialize_as(json!({}))
    }

    pub fn initialize_as(&mut self, capabilities: Value) -> Checked {
        let info = json!({ "name": "acp-check", "title": "acp-check", "version": env!("CARGO_PKG_VERSION") });
        let params = match self.version {
            Version::V1 => {
                json!({ "protocolVersion": 1, "clientCapabilities": capabilities, "clientInfo": info })
            }
            Version::V2 => json!({ "protocolVersion": 2, "capabilities": capabilities, "info": info }),
        };
        self.offered = self.result("initialize", params)?;
        if self.version == Version::V2 && self.offered["protocolVersion"] == 1 {
            valid::<wire::InitializeResponse>(&self.offered)?;
            return Err(Stop::NotOffered("version 2: it answers with version 1".to_owned()));
        }
        let offered = self.offered.clone();
        self.valid::<wire::InitializeResponse, wire_2::InitializeResponse>(&offered)
    }

    /// Checks that a value conforms to the official schema of the client's version.
    fn valid<One: DeserializeOwned, Two: DeserializeOwned>(&self, value: &Value) -> Checked {
        match self.version {
            Version::V1 => valid::<One>(value),
            Version::V2 => valid::<Two>(value),
        }
    }

    /// Whether the agent advertises a capability, a path below `agentCapabilities`. Entries of `sessionCapabilities` in
    /// version 1 are in `session` in version 2.
    pub fn offers(&self, capability: &str) -> bool {
        let path = capability.replace('.', "/");
        let path = match self.version {
            Version::V1 => format!("/agentCapabilities/{path}"),
            // Every agent with sessions has these methods.
            Version::V2
                if matches!(
                    capability,
                    "sessionCapabilities.list" | "sessionCapabilities.resume" | "sessionCapabilities.close"
                ) =>
            {
                "/capabilities/session".to_owned()
            }
            Version::V2 => format!("/capabilities/{}", path.replace("sessionCapabilities", "session")),
        };
        self.offered.pointer(&path).is_some_and(|value| !value.is_null() && value != false)
    }

    /// Logs in if necessary. An agent that lacks the capability is not checked.
    pub fn needs(&mut self, capability: &str) -> Checked {
        if self.offers(capability) { self.log_in() } else { Err(Stop::NotOffered(capability.to_owned())) }
    }

    pub fn opening(&self) -> Value {
        json!({ "cwd": self.surroundings.workspace, "mcpServers": [] })
    }

    /// The parameters of a request that opens this session.
    pub fn opening_of(&self, session: &str) -> Value {
        let mut params = self.opening();
        params["sessionId"] = json!(session);
        params
    }

    /// Initializes and opens a session. Returns the result of `session/new`. If a login is missing, the rule is not
    /// run.
    pub fn open(&mut self) -> Checked<Value> {
        self.initialize()?;
        self.another()
    }

    /// Opens another session, logging in first if necessary.
    pub fn another(&mut self) -> Checked<Value> {
        self.log_in()?;
        let answer = self.call("session/new", self.opening())?;
        if let Some(error) = answer.get("error") {
            return match error["code"].as_i64() {
                Some(AUTH_REQUIRED) => Err(Stop::NotRun("it opens no session without a login".to_owned())),
                _ => failed("a session", answer.to_string()),
            };
        }
        self.valid::<wire::NewSessionResponse, wire_2::NewSessionResponse>(&answer["result"])?;
        Ok(answer["result"].clone())
    }

    /// Logs in, if a method is given and unless it was done before.
    fn log_in(&mut self) -> Checked {
        let Some(method) = self.setting.login.filter(|_| !self.is_logged_in) else { return Ok(()) };
        self.is_logged_in = true;
        match self.call(self.login_method(), json!({ "methodId": method }))?.get("error") {
            None => Ok(()),
            Some(error) => Err(Stop::NotRun(format!("its login {method} fails: {}", error["message"]))),
        }
    }

    pub fn login_method(&self) -> &'static str {
        match self.version {
            Version::V1 => "authenticate",
            Version::V2 => "auth/login",
        }
    }

    /// Initializes, opens a session and returns its id.
    pub fn session(&mut self) -> Checked<String> {
        Ok(id_of(&self.open()?))
    }

    /// The same for a rule about a capability.
    pub fn session_with(&mut self, capability: &str) -> Checked<String> {
        self.initialize()?;
        self.needs(capability)?;
        Ok(id_of(&self.another()?))
    }

    /// Sends a prompt and returns the id of the request.
    pub fn prompt(&mut self, session: &str, text: &str) -> Checked<u64> {
        self.prompt_with(prompt_params(session, text))
    }

    /// Sends a prompt, waits for the end of its turn and returns the stop reason.
    pub fn turn(&mut self, session: &str, text: &str) -> Checked<String> {
        let prompt = self.prompt(session, text)?;
        self.ended(prompt)
    }

    /// Cancels the turn of a session.
    pub fn cancel(&mut self, session: &str) -> Checked {
        self.notify("session/cancel", json!({ "sessionId": session }))
    }

    /// The same with all parameters.
    pub fn prompt_with(&mut self, params: Value) -> Checked<u64> {
        let session = id_of(&params);
        // The states of earlier turns say nothing about this one.
        self.news.retain(|message| !is_state(message, &session, |_| true));
        self.calls_at_prompt = self.calls();
        let id = self.request("session/prompt", params)?;
        self.prompts.insert(id, session);
        Ok(id)
    }

    /// Waits for the end of the turn that a prompt has started and returns its stop reason. If no model can be called,
    /// the rule is not run.
    pub fn ended(&mut self, prompt: u64) -> Checked<String> {
        let answer = self.answer(prompt, "session/prompt")?;
        if let Some(error) = answer.get("error") {
            if self.version == Version::V2 && error["code"] == CANCELLED {
                return Ok("cancelled".to_owned());
            }
            return Err(without_a_model(error));
        }
        self.valid::<wire::PromptResponse, wire_2::PromptResponse>(&answer["result"])?;
        if self.version == Version::V1 {
            return Ok(answer["result"]["stopReason"].as_str().unwrap_or_default().to_owned());
        }
        self.inserted(&answer)?;
        let session = self.prompts.get(&prompt).cloned().unwrap_or_default();
        let idle = self.idle(&session)?;
        match idle["stopReason"].as_str() {
            Some("error") => Err(without_a_model(&idle["error"])),
            Some(reason) => Ok(reason.to_owned()),
            None => failed("a stop reason in the state `idle`", idle.to_string()),
        }
    }

    /// The id of the message that this answer of version 2 to a prompt gives.
    pub fn inserted(&self, answer: &Value) -> Checked<String> {
        match answer["result"]["messageId"].as_str() {
            Some(id) if !id.is_empty() => Ok(id.to_owned()),
            _ => failed("`messageId` in the answer to a prompt", answer.to_string()),
        }
    }

    /// Waits until a session of version 2 is working.
    pub fn works(&mut self, session: &str) -> Checked<Value> {
        self.state("the state `running` while the agent works", session, |state| state["state"] != "idle")
    }

    /// Waits for the end of work in a session of version 2: the first state `idle` after another, or with a reason.
    pub fn idle(&mut self, session: &str) -> Checked<Value> {
        let first = self.state("the state `running`, then `idle`", session, |state| {
            state["state"] != "idle" || state["stopReason"].is_string()
        })?;
        if first["state"] == "idle" {
            return Ok(first);
        }
        self.state("the state `idle` at the end of the work", session, |state| state["state"] == "idle")
    }

    fn state(&mut self, what: &str, session: &str, is_it: impl Fn(&Value) -> bool) -> Checked<Value> {
        let found = self.wait_for(what, |message| is_state(message, session, &is_it))?;
        Ok(found["params"]["update"].clone())
    }

    // ── The end ────────────────────────────────────────────────────────────────────────────────

    /// Closes the agent's input and waits for its end. Further messages are kept in `news`.
    pub fn close(&mut self) -> Checked {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        connection.close();
        let deadline = Instant::now() + EXIT_WITHIN;
        loop {
            match connection.receive(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if Instant::now() < deadline => {
                    self.news.extend(serde_json::from_slice::<Value>(&line));
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {
                    let got = format!("it still runs {EXIT_WITHIN:?} after its input was closed");
                    return failed("an agent that ends with its input", got);
                }
            }
        }
    }

    /// Ends the agent, by force if necessary, so that the next message starts another process.
    pub fn restart(&mut self) {
        // Whether it ends with its input is a rule of its own.
        let _ = self.close();
        self.connection = None;
        self.is_logged_in = false;
        self.news.clear();
        self.answers.clear();
        self.invariants = Invariants::default();
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

/// Whether a message is a state of this session for which `is_it` holds.
fn is_state(message: &Value, session: &str, is_it: impl Fn(&Value) -> bool) -> bool {
    let update = &message["params"]["update"];
    message["params"]["sessionId"] == session && update["sessionUpdate"] == "state_update" && is_it(update)
}

/// How a rule ends whose prompt failed with this error.
fn without_a_model(error: &Value) -> Stop {
    let message = error["message"].as_str().unwrap_or_default();
    let details = error["data"].to_string();
    let login = error["code"].as_i64() == Some(AUTH_REQUIRED)
        || ["api key", "api_key", "auth", "login", "log in", "credential", "401", "model"]
            .iter()
            .any(|word| format!("{message} {details}").to_lowercase().contains(word));
    match login {
        true => Stop::NotRun(format!("it can't call a model here: {message}")),
        false => Stop::Failed { expected: "a stop reason".to_owned(), got: error.to_string() },
    }
}

/// The parameters of a prompt with this text.
pub fn prompt_params(session: &str, text: &str) -> Value {
    json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] })
}

pub fn id_of(opened: &Value) -> String {
    opened["sessionId"].as_str().unwrap_or_default().to_owned()
}

/// Checks that a value conforms to a type of the official schema.
fn valid<T: DeserializeOwned>(value: &Value) -> Checked {
    match serde_json::from_value::<T>(value.clone()) {
        Ok(_) => Ok(()),
        Err(error) => failed("a message that the official schema allows", format!("{error}: {value}")),
    }
}
