//! A client of version 2 that checks each line and keeps the updates of its sessions.

use std::collections::HashMap;
use std::process::Command;

use epitome_test_harness::agent::{Agent, is_answer};
use epitome_test_harness::user::User;
use serde_json::{Value, json};

use super::schema;

/// See the module's documentation.
pub struct Window {
    pub agent: Agent,
    /// The methods of our requests, by id.
    asked: HashMap<u64, String>,
    /// All updates, in order.
    pub updates: Vec<Value>,
    states: HashMap<String, SessionRules>,
}

/// The state on which the rules about a session's updates depend.
#[derive(Default)]
struct SessionRules {
    state: String,
    background: bool,
    /// Terminals that were announced and have not ended.
    terminals: Vec<String>,
    calls: HashMap<String, String>,
    closed: bool,
}

impl Window {
    pub fn start(user: &User, arguments: &[&str]) -> Window {
        Window::of(user.agent_command(arguments))
    }

    pub fn of(agent: Command) -> Window {
        let mut window = Window {
            agent: Agent::spawn(agent),
            asked: HashMap::new(),
            updates: Vec::new(),
            states: HashMap::new(),
        };
        let answer = window.call("initialize", super::initialize());
        assert_eq!(answer["protocolVersion"], 2, "{answer}");
        window
    }

    pub fn new_session(&mut self, user: &User) -> String {
        let made = self.call("session/new", json!({ "cwd": user.project() }));
        made["sessionId"].as_str().expect("it has an id").to_owned()
    }

    pub fn request(&mut self, method: &str, params: Value) -> u64 {
        schema::check(method, "Request", &params);
        self.unchecked(method, params)
    }

    /// Sends a request that is wrong on purpose.
    pub fn unchecked(&mut self, method: &str, params: Value) -> u64 {
        let id = self.agent.request(method, params);
        self.asked.insert(id, method.to_owned());
        id
    }

    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        let answer = self.answer(id);
        answer.get("result").unwrap_or_else(|| panic!("{method} was answered with {answer}")).clone()
    }

    pub fn error(&mut self, method: &str, params: Value) -> i64 {
        let id = self.unchecked(method, params);
        let answer = self.answer(id);
        answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{method} succeeded: {answer}"))
    }

    pub fn prompt(&mut self, session: &str, words: &str) -> u64 {
        let prompt = json!([{ "type": "text", "text": words }]);
        self.request("session/prompt", json!({ "sessionId": session, "prompt": prompt }))
    }

    pub fn answer(&mut self, id: u64) -> Value {
        self.until("an answer", |message| is_answer(message, id))
    }

    /// Reads up to the first matching message, and checks all of them.
    pub fn until(&mut self, wanted: &str, mut is_it: impl FnMut(&Value) -> bool) -> Value {
        loop {
            let message = self.agent.until(wanted, |_| true).pop().expect("it was read");
            self.check(&message);
            if is_it(&message) {
                return message;
            }
        }
    }

    /// Reads up to an update of this kind that is as wanted.
    pub fn update(&mut self, kind: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let is_update = |message: &Value| {
            let update = &message["params"]["update"];
            update["sessionUpdate"] == kind && is_it(update)
        };
        self.until(kind, is_update)["params"]["update"].clone()
    }

    /// Reads until the agent has streamed this text, in any number of pieces.
    pub fn hear(&mut self, words: &str) {
        let mut said = String::new();
        self.until(words, |message| {
            let update = &message["params"]["update"];
            if update["sessionUpdate"] == "agent_message_chunk" {
                said += update["content"]["text"].as_str().expect("it is text");
            }
            said.ends_with(words)
        });
    }

    /// Reads up to the end of the work.
    pub fn idle(&mut self) -> Value {
        self.update("state_update", |update| update["state"] == "idle")
    }

    /// A prompt with its turn; returns the idle state.
    pub fn turn(&mut self, session: &str, words: &str) -> Value {
        let id = self.prompt(session, words);
        let answer = self.answer(id);
        assert!(answer["result"]["messageId"].is_string(), "{answer}");
        self.idle()
    }

    /// The text of a message or the bytes of a terminal, as the updates so far give it.
    pub fn text(&self, id: &str) -> String {
        let mut text = String::new();
        for update in self.updates.iter().map(|message| &message["params"]["update"]) {
            if update["messageId"] == id {
                match &update["content"] {
                    Value::Array(blocks) => {
                        text = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
                    }
                    block => text.push_str(block["text"].as_str().unwrap_or_default()),
                }
            }
        }
        text
    }

    /// The updates of this kind.
    pub fn of_kind(&self, kind: &str) -> Vec<Value> {
        let all = self.updates.iter().map(|message| message["params"]["update"].clone());
        all.filter(|update| update["sessionUpdate"] == kind).collect()
    }

    fn check(&mut self, message: &Value) {
        let (method, id) = (message["method"].as_str(), message["id"].as_u64());
        match (method, id) {
            (Some("session/update"), _) => {
                schema::check_update(&message["params"]);
                self.rules(&message["params"]);
                self.updates.push(message.clone());
            }
            (Some(method), Some(_)) => schema::check(method, "Request", &message["params"]),
            (Some(method), None) => schema::check(method, "Notification", &message["params"]),
            (None, Some(id)) => {
                let method = self.asked.remove(&id).unwrap_or_else(|| panic!("answered twice: {message}"));
                if let Some(result) = message.get("result") {
                    schema::check(&method, "Response", result);
                }
            }
            (None, None) => assert!(message["error"].is_object(), "{message}"),
        }
    }

    /// Rules that no schema states.
    fn rules(&mut self, params: &Value) {
        let session = params["sessionId"].as_str().expect("each update has a session");
        let rules = self.states.entry(session.to_owned()).or_default();
        let update = &params["update"];
        assert!(!rules.closed, "an update of a closed session: {update}");
        match update["sessionUpdate"].as_str().expect("it has a kind") {
            "state_update" => {
                let state = update["state"].as_str().expect("it has a state");
                assert!(rules.state != "requires_action" || state != "requires_action", "{update}");
                rules.state = state.to_owned();
                // An agent that reports background work once reports it always.
                assert!(!rules.background || update["background"].is_array(), "{update}");
                rules.background |= update["background"].is_array();
                let listed: Vec<&str> = update["background"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|item| item["terminalId"].as_str().expect("only terminals are listed"))
                    .collect();
                for terminal in &listed {
                    assert!(rules.terminals.iter().any(|known| known == terminal), "not announced: {update}");
                }
                if state == "idle" {
                    let live: Vec<&str> = rules.terminals.iter().map(String::as_str).collect();
                    assert_eq!(live, listed, "a terminal ends before it leaves the list");
                }
            }
            "terminal_update" => {
                let id = update["terminalId"].as_str().expect("it has an id").to_owned();
                match update["exitStatus"].is_object() {
                    true => rules.terminals.retain(|known| *known != id),
                    false if rules.terminals.contains(&id) => {}
                    false => rules.terminals.push(id),
                }
            }
            "tool_call_update" => {
                let id = update["toolCallId"].as_str().expect("it has an id").to_owned();
                let last = rules.calls.get(&id).map(String::as_str);
                assert!(
                    last.is_some() || update["title"].is_string(),
                    "a call begins with a title: {update}"
                );
                let is_final = |status: &str| matches!(status, "completed" | "failed" | "cancelled");
                assert!(!last.is_some_and(is_final), "after its end: {update}");
                if let Some(status) = update["status"].as_str() {
                    rules.calls.insert(id, status.to_owned());
                }
            }
            "tool_call" | "plan" | "current_mode_update" => panic!("not of version 2: {update}"),
            _ => {}
        }
    }

    /// From now on nothing may come for this session.
    pub fn closed(&mut self, session: &str) {
        self.states.entry(session.to_owned()).or_default().closed = true;
    }
}
