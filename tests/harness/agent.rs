//! The agent as an editor starts it: a process, two pipes and raw lines. The client uses none of the agent's types, so
//! that it can misbehave in any way.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use epitome_scripted_model::{ModelStep, RecordedRequest, SeenPart};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::{Value, json};

use super::user::User;
use super::{WITHIN, call, text, within};

/// Messages read ahead. A client that reads none leaves the rest in the pipe.
const MESSAGES_MAX: usize = 16;

pub const SUMMARY: &str = "They talked about numbers.";

/// A model that follows its prompt like a script. The only unscripted prompt is the request for a summary.
pub fn obey(request: &RecordedRequest) -> Vec<ModelStep> {
    let seen = request.seen();
    let Some(SeenPart::User(said)) = seen.last() else { return vec![text("Done.")] };
    // Adjacent user messages are one message for this provider.
    let said = said.rsplit("\n\n").next().unwrap_or_default();
    match said.split_once(' ').unwrap_or((said, "")) {
        ("say", words) => vec![text("You said "), text(words), text(".")],
        ("run", command) => vec![text("I run it."), call("bash", json!({ "command": command }))],
        ("background", command) => {
            vec![text("I start it."), call("bash", json!({ "command": command, "background": true }))]
        }
        ("hang", _) => vec![ModelStep::Hang],
        ("half", _) => vec![text("The first half, "), ModelStep::Wait, text("the second half.")],
        _ => vec![text(&format!("<summary>\n{SUMMARY}\n</summary>"))],
    }
}

/// Whether the model is asked for a summary.
pub fn wants_summary(request: &RecordedRequest) -> bool {
    request.last_user_text().contains("<summary>") && !request.last_user_text().contains(SUMMARY)
}

/// The methods for an editor on a user's machine.
impl User {
    /// The agent with pipes. Without a daemon if the user is [`User::standalone`].
    pub fn agent_command(&self, arguments: &[&str]) -> Command {
        let acp: &[&str] = if self.is_standalone { &["acp", "--standalone"] } else { &["acp"] };
        let mut command = self.command(&[acp, arguments].concat());
        command.stdin(Stdio::piped());
        command
    }

    /// The daemon's process id, if this home has a running one.
    pub fn daemon(&self) -> Option<Pid> {
        let number = fs::read_to_string(self.own().join("run/daemon.lock")).ok()?;
        let pid = Pid::from_raw(number.trim().parse().ok()?)?;
        lives(pid).then_some(pid)
    }

    /// The process that does the agent's work: the agent itself, or the daemon.
    pub fn worker(&self, agent: &Agent) -> u32 {
        self.daemon().map_or(agent.process(), |daemon| daemon.as_raw_nonzero().get().unsigned_abs())
    }

    /// Ends an agent and its daemon like a power cut; returns its last messages.
    pub fn kill(&self, agent: Agent) -> Vec<Value> {
        if let Some(daemon) = self.daemon() {
            // Neither may notice that the other is gone: the daemon would record a cancelled turn, the front
            // end would start another daemon.
            agent.hold();
            end_by(daemon, Signal::KILL);
        }
        agent.kill()
    }

    /// Ends the daemon like `epitome daemon stop`, if one is running.
    pub fn end_daemon(&self) {
        if let Some(daemon) = self.daemon() {
            end_by(daemon, Signal::TERM);
        }
    }

    /// Starts and initializes an agent that asks for every permission.
    pub fn start(&self) -> Agent {
        self.start_with(&[])
    }

    /// Starts an agent whose new sessions need no permission.
    pub fn start_trusted(&self) -> Agent {
        self.start_with(&["--mode", "full"])
    }

    fn start_with(&self, arguments: &[&str]) -> Agent {
        let mut agent = Agent::spawn(self.agent_command(arguments));
        agent.call(
            "initialize",
            json!({ "protocolVersion": 1, "clientCapabilities": { "session": { "notices": {} } } }),
        );
        agent
    }

    pub fn new_session(&self, agent: &mut Agent) -> String {
        let made = agent.call("session/new", self.opening());
        made["sessionId"].as_str().unwrap().to_owned()
    }

    /// Loads a session and returns its replay.
    pub fn load(&self, agent: &mut Agent, session: &str) -> Vec<Value> {
        let (replay, answer) = self.try_load(agent, session);
        assert!(answer.get("result").is_some(), "{answer}");
        replay
    }

    pub fn try_load(&self, agent: &mut Agent, session: &str) -> (Vec<Value>, Value) {
        let mut params = self.opening();
        params["sessionId"] = json!(session);
        let id = agent.request("session/load", params);
        agent.answer(id)
    }

    fn opening(&self) -> Value {
        json!({ "cwd": self.project(), "mcpServers": [] })
    }

    /// The messages of the newest request, as they were sent.
    pub fn last_messages(&self) -> Vec<Value> {
        let requests = self.model().requests();
        messages_of(requests.last().expect("the model was asked"))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.end_daemon();
    }
}

/// Sends a signal to a process that is not a child, and waits for its end.
pub fn end_by(process: Pid, signal: Signal) {
    // It may have exited already.
    let _ = kill_process(process, signal);
    within("the daemon's end", || (!lives(process)).then_some(()));
}

/// Whether a process is running. A process that has ended may remain in the process table until its parent
/// reaps it; its sockets stay open until the last of its threads has ended.
fn lives(process: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    if threads.is_ok_and(|threads| threads.count() > 1) {
        return true;
    }
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|behind_name| behind_name.split_whitespace().next());
    state.is_some_and(|state| state != "Z")
}

/// The messages of a request without the system text.
pub fn messages_of(request: &RecordedRequest) -> Vec<Value> {
    let messages = request.body["messages"].as_array().unwrap();
    messages.iter().filter(|message| message["role"] != "system").cloned().collect()
}

/// Asserts that each call of a request is immediately followed by its only outcome.
pub fn assert_paired(request: &RecordedRequest) {
    let messages = messages_of(request);
    let mut open: Vec<String> = Vec::new();
    for message in &messages {
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str().unwrap();
            let at = open.iter().position(|call| call == id);
            open.remove(at.unwrap_or_else(|| panic!("an outcome without its call: {messages:#?}")));
            continue;
        }
        assert!(open.is_empty(), "calls without an outcome: {messages:#?}");
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            open.push(call["id"].as_str().unwrap().to_owned());
        }
    }
    assert!(open.is_empty(), "calls without an outcome: {messages:#?}");
}

/// A running agent and the client's ends of its pipes.
pub struct Agent {
    child: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    reading: Option<JoinHandle<()>>,
    complaints: Option<JoinHandle<String>>,
    next_id: u64,
}

impl Agent {
    pub fn spawn(mut command: Command) -> Agent {
        let mut child = command.spawn().unwrap();
        let (output, mut errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (sender, messages) = sync_channel(MESSAGES_MAX);
        let reading = std::thread::spawn(move || read(output, &sender));
        let complaints = std::thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).unwrap();
            text
        });
        let input = child.stdin.take();
        Agent { child, input, messages, reading: Some(reading), complaints: Some(complaints), next_id: 1 }
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    /// Sends a request and returns its id.
    pub fn request(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    pub fn prompt(&mut self, session: &str, words: &str) -> u64 {
        let prompt = json!([{ "type": "text", "text": words }]);
        self.request("session/prompt", json!({ "sessionId": session, "prompt": prompt }))
    }

    pub fn cancel(&mut self, session: &str) {
        self.notify("session/cancel", json!({ "sessionId": session }));
    }

    pub fn decide(&mut self, question: &Value, option: &str) {
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        self.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": outcome }));
    }

    /// The next message; an error if the agent has closed its end.
    pub fn next_within(&self, at_most: Duration) -> Result<Value, RecvTimeoutError> {
        self.messages.recv_timeout(at_most)
    }

    fn next(&self, wanted: &str) -> Value {
        self.next_within(WITHIN).unwrap_or_else(|error| panic!("waiting for {wanted}: {error}"))
    }

    /// Reads up to the first matching message, which is the last one returned.
    pub fn until(&mut self, wanted: &str, mut is_it: impl FnMut(&Value) -> bool) -> Vec<Value> {
        let mut seen = Vec::new();
        loop {
            let message = self.next(wanted);
            let found = is_it(&message);
            seen.push(message);
            if found {
                return seen;
            }
        }
    }

    /// Reads until the agent has sent this text, in any number of chunks.
    pub fn hear(&mut self, words: &str) -> Vec<Value> {
        let mut said = String::new();
        self.until(words, |message| {
            said += &agent_text(std::slice::from_ref(message));
            said.ends_with(words)
        })
    }

    /// Reads up to an answer; returns it with the messages that preceded it.
    pub fn answer(&mut self, id: u64) -> (Vec<Value>, Value) {
        let mut before = self.until("an answer", |message| is_answer(message, id));
        let answer = before.pop().unwrap();
        (before, answer)
    }

    /// Sends a request and returns its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        let (_, answer) = self.answer(id);
        answer.get("result").unwrap_or_else(|| panic!("{method} was answered with {answer}")).clone()
    }

    /// Sends a prompt and reads its turn: the updates, and the stop reason.
    pub fn turn(&mut self, session: &str, words: &str) -> (Vec<Value>, String) {
        let id = self.prompt(session, words);
        let (updates, answer) = self.answer(id);
        (updates, stop_reason(&answer))
    }

    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the process and waits until all its threads have stopped. After just sending the signal, a
    /// thread on another CPU could continue for a moment.
    pub fn hold(&self) {
        self.signal(Signal::STOP);
        waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED).unwrap();
    }

    /// Continues a process that was stopped.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the agent, which remains usable for further checks.
    pub fn kill_now(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn close_input(&mut self) {
        drop(self.input.take());
    }

    /// Waits for a clean exit and returns the remaining messages.
    pub fn ended(self) -> Vec<Value> {
        let (rest, status) = self.gone();
        assert!(status.success(), "the agent ended with {status}");
        rest
    }

    /// Waits for a clean exit without reading.
    pub fn ended_unread(mut self) {
        let status = within("the agent's end", || self.child.try_wait().unwrap());
        assert!(status.success(), "the agent ended with {status}");
        self.gone();
    }

    /// Kills the agent like a power cut, and returns its remaining messages.
    pub fn kill(mut self) -> Vec<Value> {
        self.child.kill().unwrap();
        self.gone().0
    }

    fn gone(mut self) -> (Vec<Value>, ExitStatus) {
        let mut rest = Vec::new();
        // The channel ends when the agent has closed its stdout.
        while let Ok(message) = self.messages.recv_timeout(WITHIN) {
            rest.push(message);
        }
        let status = within("the agent's end", || self.child.try_wait().unwrap());
        // The reading thread panics on lines that are not JSON.
        self.reading.take().unwrap().join().unwrap();
        let complaints = self.complaints.take().unwrap().join().unwrap();
        // A notice about a daemon that is slow on a busy machine is no complaint.
        let complaints: Vec<&str> =
            complaints.lines().filter(|line| !line.ends_with("; waiting at most 60 s")).collect();
        assert!(complaints.is_empty(), "stderr is not silent: {complaints:?}");
        (rest, status)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // After `ended` and `kill` there is nothing to do.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn read(output: ChildStdout, sender: &SyncSender<Value>) {
    let mut reader = BufReader::new(output);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).unwrap() > 0 {
        // A kill may truncate the last line.
        if line.last() != Some(&b'\n') {
            return;
        }
        let message: Value = serde_json::from_slice(&line)
            .unwrap_or_else(|_| panic!("no JSON on stdout: {}", String::from_utf8_lossy(&line)));
        assert_eq!(message["jsonrpc"], "2.0");
        if sender.send(message).is_err() {
            return;
        }
        line.clear();
    }
}

pub fn is_answer(message: &Value, id: u64) -> bool {
    message["id"] == id && message.get("method").is_none()
}

pub fn stop_reason(answer: &Value) -> String {
    let reason = answer["result"]["stopReason"].as_str();
    reason.unwrap_or_else(|| panic!("the turn was answered with {answer}")).to_owned()
}

pub fn is_question(message: &Value) -> bool {
    message["method"] == "session/request_permission"
}

/// The kind of an update; empty for other messages.
pub fn kind(message: &Value) -> &str {
    message["params"]["update"]["sessionUpdate"].as_str().unwrap_or_default()
}

/// The joined text of chunks of this kind.
pub fn spoken(messages: &[Value], chunks: &str) -> String {
    let of_kind = messages.iter().filter(|message| kind(message) == chunks);
    of_kind.filter_map(|message| message["params"]["update"]["content"]["text"].as_str()).collect()
}

pub fn agent_text(messages: &[Value]) -> String {
    spoken(messages, "agent_message_chunk")
}

/// The text of each user message.
pub fn person_said(messages: &[Value]) -> Vec<&str> {
    let of_person = messages.iter().filter(|message| kind(message) == "user_message_chunk");
    of_person.filter_map(|message| message["params"]["update"]["content"]["text"].as_str()).collect()
}

/// The final statuses of calls, in the order of the updates.
pub fn final_statuses<'a>(messages: impl IntoIterator<Item = &'a Value>) -> Vec<&'a str> {
    let updates = messages.into_iter().filter(|message| kind(message) == "tool_call_update");
    let statuses = updates.filter_map(|message| message["params"]["update"]["status"].as_str());
    statuses.filter(|status| matches!(*status, "completed" | "failed")).collect()
}

/// Whether a message is part of the conversation rather than of the session's state.
pub fn is_history(message: &Value) -> bool {
    match kind(message) {
        "available_commands_update"
        | "usage_update"
        | "config_option_update"
        | "current_mode_update"
        | "session_info_update"
        | "notice" => false,
        kind => !kind.is_empty(),
    }
}
