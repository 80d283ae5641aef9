//! An editor: one `epitome acp`, two pipes, raw lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::desk::Desk;

/// How long the agent may be silent. Everything here takes milliseconds, or seconds on a busy machine.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Messages that are read ahead.
const MESSAGES_MAX: usize = 64;

pub struct Editor {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    next_id: u64,
}

impl Editor {
    /// Starts an agent and initializes it.
    pub fn start(desk: &Desk) -> Editor {
        let mut command = desk.command(&["acp", "--standalone"]);
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the binary starts");
        let input = child.stdin.take().expect("it is a pipe");
        let output = child.stdout.take().expect("it is a pipe");
        let (sender, messages) = sync_channel(MESSAGES_MAX);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                let message = serde_json::from_str(&line).expect("a line is a JSON object");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut editor = Editor { child, input, messages, next_id: 1 };
        let capabilities = json!({ "session": { "notices": {} } });
        editor.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities }));
        editor
    }

    pub fn new_session(&mut self, desk: &Desk) -> String {
        let made = self.call("session/new", json!({ "cwd": desk.project, "mcpServers": [] }));
        made["sessionId"].as_str().expect("it has an id").to_owned()
    }

    /// Sends a prompt, and answers each permission request with this option. Returns all messages up to and
    /// including the prompt's answer, with requests.
    pub fn turn(&mut self, session: &str, words: &str, option: &str) -> Vec<Value> {
        let prompt = json!([{ "type": "text", "text": words }]);
        let id = self.request("session/prompt", json!({ "sessionId": session, "prompt": prompt }));
        let mut seen = Vec::new();
        loop {
            let message = self.next();
            if message["method"] == "session/request_permission" {
                let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
                self.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": outcome }));
            }
            let answered = is_answer(&message, id);
            seen.push(message);
            if answered {
                return seen;
            }
        }
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        loop {
            let message = self.next();
            if is_answer(&message, id) {
                return message.get("result").unwrap_or_else(|| panic!("{method}: {message}")).clone();
            }
        }
    }

    fn request(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input, "{message}").expect("the agent reads");
    }

    fn next(&self) -> Value {
        self.messages.recv_timeout(SILENCE_MAX).expect("the agent says something")
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn is_answer(message: &Value, id: u64) -> bool {
    message["id"] == id && message.get("method").is_none()
}

/// The permission requests among the messages.
pub fn questions(messages: &[Value]) -> Vec<&Value> {
    messages.iter().filter(|message| message["method"] == "session/request_permission").collect()
}

/// Status of each completed tool call, without the trust question.
pub fn statuses(messages: &[Value]) -> Vec<&str> {
    let updates = messages.iter().map(|message| &message["params"]["update"]);
    let ended = updates.filter(|update| {
        let of_trust = update["toolCallId"].as_str().is_some_and(|id| id.starts_with("trust"));
        update["sessionUpdate"] == "tool_call_update" && !of_trust
    });
    let statuses = ended.filter_map(|update| update["status"].as_str());
    statuses.filter(|status| matches!(*status, "completed" | "failed")).collect()
}
