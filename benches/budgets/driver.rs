//! Drives one agent process the way an editor does: a pipe in each direction, one JSON-RPC message per line.
//! It knows only the parts of ACP that the measures need. All clocks are read on the thread that waits for
//! the output; there is no channel in between.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::Value;

use crate::processes;

/// An agent that is silent for this long while a message is expected is killed, and the measure fails.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The command to start, and its name in the table.
#[derive(Clone, Debug)]
pub struct Subject {
    pub name: String,
    pub command: Vec<OsString>,
    /// Whether a response is synced to disk first. The floor's is not, so no sync time is subtracted for it.
    pub durable: bool,
    /// The version of ACP to speak with it.
    pub version: u8,
}

/// Home, workspace and model URL of an agent.
pub struct Place {
    pub home: PathBuf,
    pub workspace: PathBuf,
    pub model_url: String,
    /// Additional environment variables.
    pub more: Vec<(String, String)>,
}

/// A running agent. Dropping it kills the process.
pub struct Agent {
    child: Child,
    /// When the process was spawned.
    pub started: Instant,
    input: Option<ChildStdin>,
    output: Lines,
    place: Place,
    next_id: u64,
    watch: Watch,
    version: u8,
}

/// Messages of the agent that the measures distinguish.
#[derive(Debug)]
pub enum Heard {
    Answer {
        id: u64,
        result: Value,
    },
    /// Text of an `agent_message_chunk`.
    Chunk(String),
    /// A complete message of the agent, in a replay of version 2.
    Message,
    /// In version 2, the end of a turn, with its stop reason.
    Idle(String),
    /// Any other notification.
    Other,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default)]
    id: Option<Value>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a serde_json::value::RawValue>,
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Notification<'a> {
    #[serde(borrow)]
    update: Update<'a>,
}

#[derive(Deserialize)]
struct Update<'a> {
    #[serde(borrow, rename = "sessionUpdate")]
    kind: Cow<'a, str>,
    #[serde(default)]
    content: Option<Value>,
    #[serde(default, rename = "stopReason")]
    stop_reason: Option<String>,
}

impl Agent {
    /// Starts the process and sends nothing yet. The environment is empty apart from what is set here, so
    /// that the user's keys and proxies cannot influence a measure.
    pub fn start(subject: &Subject, place: Place) -> Result<Agent> {
        let (program, arguments) = subject.command.split_first().context("no command to measure")?;
        let complaints = File::create(complaints(&place.home))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(&place.workspace)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("HOME", &place.home)
            .env("EPITOME_HOME", &place.home)
            .env("ANTHROPIC_BASE_URL", &place.model_url)
            .env("ANTHROPIC_API_KEY", "test")
            .envs(place.more.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(complaints);
        let started = Instant::now();
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", program.to_string_lossy()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take().context("stdout was piped")?);
        let watch = Watch::over(&child)?;
        let output = Lines { output, bytes: Vec::new(), start: 0, scanned: 0, at: started };
        Ok(Agent { child, started, input, output, place, next_id: 0, watch, version: subject.version })
    }

    /// Sends `initialize` and returns when it was answered.
    pub fn initialize(&mut self) -> Result<Instant> {
        let params = match self.version {
            1 => {
                r#"{"protocolVersion":1,"clientInfo":{"name":"budgets","version":"1"},"clientCapabilities":{}}"#
            }
            _ => r#"{"protocolVersion":2,"info":{"name":"budgets","version":"1"},"capabilities":{}}"#,
        };
        let (id, _) = self.request("initialize", params)?;
        let (at, result) = self.answer(id)?;
        ensure!(result["protocolVersion"] == self.version, "initialize was answered {result}");
        Ok(at)
    }

    /// Sends a request that does no work and returns how long the answer took. Only Epitome supports the
    /// method.
    pub fn authenticate(&mut self) -> Result<Duration> {
        let (id, sent) = self.request("authenticate", r#"{"methodId":"environment"}"#)?;
        let (at, _) = self.answer(id)?;
        Ok(at - sent)
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Opens a session; returns its id and how long that took.
    pub fn new_session(&mut self) -> Result<(String, Duration)> {
        let params = format!(r#"{{"cwd":{},"mcpServers":[]}}"#, text(&self.place.workspace)?);
        let (id, sent) = self.request("session/new", &params)?;
        let (at, result) = self.answer(id)?;
        let session = result["sessionId"].as_str().context("session/new gave no sessionId")?;
        Ok((session.to_owned(), at - sent))
    }

    /// Requests the first page of the stored sessions; returns how long that took.
    pub fn list_sessions(&mut self) -> Result<Duration> {
        let (id, sent) = self.request("session/list", "{}")?;
        let (at, result) = self.answer(id)?;
        let listed = result["sessions"].as_array().map_or(0, Vec::len);
        ensure!(listed > 0, "no session was listed: {result}");
        Ok(at - sent)
    }

    /// Loads a session, including its replay; returns how long that took and the number of agent text chunks.
    pub fn load_session(&mut self, session: &str) -> Result<(Duration, usize)> {
        let (method, more) = match self.version {
            1 => ("session/load", ""),
            _ => ("session/resume", r#","replayFrom":{"type":"start"}"#),
        };
        let cwd = text(&self.place.workspace)?;
        let params = format!(r#"{{"sessionId":"{session}","cwd":{cwd},"mcpServers":[]{more}}}"#);
        let (id, sent) = self.request(method, &params)?;
        let mut chunks = 0;
        loop {
            match self.hear()? {
                (at, Heard::Answer { id: answered, .. }) if answered == id => return Ok((at - sent, chunks)),
                (_, Heard::Chunk(_) | Heard::Message) => chunks += 1,
                (_, Heard::Answer { .. } | Heard::Idle(_) | Heard::Other) => {}
            }
        }
    }

    /// Sends a prompt; returns its id and the time just before it was written.
    pub fn prompt(&mut self, session: &str, text: &str) -> Result<(u64, Instant)> {
        let text = Value::from(text);
        self.request(
            "session/prompt",
            &format!(r#"{{"sessionId":"{session}","prompt":[{{"type":"text","text":{text}}}]}}"#),
        )
    }

    /// Cancels the session's turn; returns the time just before the message was written.
    pub fn cancel(&mut self, session: &str) -> Result<Instant> {
        self.send(&format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"session/cancel\",\"params\":{{\"sessionId\":\"{session}\"}}}}\n"
        ))
    }

    /// Returns when the next chunk of the agent's text arrived. Fails if the turn ends first.
    pub fn chunk(&mut self) -> Result<Instant> {
        loop {
            match self.hear()? {
                (at, Heard::Chunk(_)) => return Ok(at),
                (_, Heard::Answer { result, .. }) if self.version == 1 => {
                    bail!("answered {result} instead of sending a chunk")
                }
                (_, Heard::Idle(reason)) => bail!("stopped with {reason} instead of sending a chunk"),
                (_, Heard::Answer { .. } | Heard::Message | Heard::Other) => {}
            }
        }
    }

    /// Waits for the end of a prompt's turn, which must have this stop reason; returns when it arrived and all text
    /// that preceded it. In version 1 it is the prompt's answer.
    pub fn stop(&mut self, id: u64, reason: &str) -> Result<(Instant, String)> {
        let mut whole = String::new();
        loop {
            match self.hear()? {
                (at, Heard::Answer { id: answered, result }) if answered == id && self.version == 1 => {
                    ensure!(result["stopReason"] == reason, "the prompt was answered {result}");
                    return Ok((at, whole));
                }
                (at, Heard::Idle(stopped)) => {
                    ensure!(stopped == reason, "the turn ended with {stopped}");
                    return Ok((at, whole));
                }
                (_, Heard::Chunk(text)) => whole += &text,
                (_, Heard::Answer { .. } | Heard::Message | Heard::Other) => {}
            }
        }
    }

    /// Reads everything until these prompts are answered; returns the time of the last answer.
    pub fn all_answered(
        &mut self,
        mut open: HashSet<u64>,
        mut heard: impl FnMut(Instant, &str),
    ) -> Result<Instant> {
        let mut last = Instant::now();
        while !open.is_empty() {
            match self.hear()? {
                (at, Heard::Answer { id, result }) => {
                    if open.remove(&id) {
                        ensure!(result["stopReason"] == "end_turn", "the prompt was answered {result}");
                        last = at;
                    }
                }
                (at, Heard::Chunk(text)) => heard(at, &text),
                (_, Heard::Idle(_) | Heard::Message | Heard::Other) => {}
            }
        }
        Ok(last)
    }

    /// Closes stdin and waits for the process to exit; returns how long that took. The exit status must be 0.
    pub fn exit(mut self) -> Result<Duration> {
        let closed = Instant::now();
        drop(self.input.take());
        self.watch.expect();
        let status = self.child.wait()?;
        let took = closed.elapsed();
        self.watch.rest();
        ensure!(status.success(), "the agent ended with {status}{}", self.complaint());
        Ok(took)
    }

    fn answer(&mut self, id: u64) -> Result<(Instant, Value)> {
        loop {
            if let (at, Heard::Answer { id: answered, result }) = self.hear()?
                && answered == id
            {
                return Ok((at, result));
            }
        }
    }

    fn request(&mut self, method: &str, params: &str) -> Result<(u64, Instant)> {
        self.next_id += 1;
        let id = self.next_id;
        let line =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n");
        Ok((id, self.send(&line)?))
    }

    fn send(&mut self, line: &str) -> Result<Instant> {
        let input = self.input.as_mut().expect("stdin is open until the agent is told to exit");
        self.watch.expect();
        let at = Instant::now();
        let written = input.write_all(line.as_bytes());
        self.watch.rest();
        if let Err(error) = written {
            bail!("the agent took no more input: {error}{}", self.complaint());
        }
        Ok(at)
    }

    /// Reads the next message of the agent. The agent's own requests are answered along the way: a permission
    /// is allowed once, any other method is unknown.
    fn hear(&mut self) -> Result<(Instant, Heard)> {
        loop {
            self.watch.expect();
            let line = self.output.next();
            let late = self.watch.rest();
            let Some((at, line)) = line? else {
                ensure!(!late, "the agent said nothing for {SILENCE_MAX:?}{}", self.complaint());
                bail!("the agent closed its output{}", self.complaint());
            };
            let wrong = || format!("not a message: {}", String::from_utf8_lossy(&line));
            let envelope: Envelope<'_> = serde_json::from_slice(&line).with_context(wrong)?;
            let Some(method) = envelope.method else {
                if let Some(error) = envelope.error {
                    bail!("the agent answered with an error: {error}");
                }
                let id = envelope.id.as_ref().and_then(Value::as_u64).with_context(wrong)?;
                return Ok((at, Heard::Answer { id, result: envelope.result.unwrap_or_default() }));
            };
            if let Some(id) = envelope.id {
                let outcome = outcome_of(&method, envelope.params.map_or("null", |params| params.get()))?;
                self.send(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{outcome}}}\n"))?;
                continue;
            }
            if method != "session/update" {
                return Ok((at, Heard::Other));
            }
            let params = envelope.params.with_context(wrong)?;
            let notification: Notification<'_> = serde_json::from_str(params.get()).with_context(wrong)?;
            if let Some(reason) = notification.update.stop_reason {
                return Ok((at, Heard::Idle(reason)));
            }
            let text = notification.update.content.as_ref().and_then(|content| content["text"].as_str());
            return Ok(match text {
                Some(text) if notification.update.kind == "agent_message_chunk" => {
                    (at, Heard::Chunk(text.to_owned()))
                }
                Some(_) => (at, Heard::Other),
                // Version 2 replays complete messages.
                None if notification.update.kind == "agent_message" => (at, Heard::Message),
                None => (at, Heard::Other),
            });
        }
    }

    /// The last line of the agent's stderr, as a suffix for an error message.
    fn complaint(&self) -> String {
        let all = std::fs::read_to_string(complaints(&self.place.home)).unwrap_or_default();
        all.lines().last().map(|line| format!("; it said: {line}")).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Fails only if the process has already exited.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Ends a measured agent and all processes that it left running.
pub fn end(agent: Agent) -> Result<()> {
    agent.exit()?;
    processes::end_leftovers()
}

fn outcome_of(method: &str, params: &str) -> Result<String> {
    if method != "session/request_permission" {
        return Ok(r#""error":{"code":-32601,"message":"method not found"}"#.to_owned());
    }
    let params: Value = serde_json::from_str(params)?;
    let options = params["options"].as_array().ok_or_else(|| anyhow!("a permission without options"))?;
    let once = options.iter().find(|option| option["kind"] == "allow_once");
    let chosen = &once.context("a permission that cannot be given once")?["optionId"];
    Ok(format!(r#""result":{{"outcome":{{"outcome":"selected","optionId":{chosen}}}}}"#))
}

fn complaints(home: &Path) -> PathBuf {
    home.join("agent-stderr.txt")
}

/// A path as a JSON string.
fn text(path: &Path) -> Result<Value> {
    Ok(Value::from(path.to_str().context("the temporary directory's name is not UTF-8")?))
}

/// The agent's output, split into lines, each with the time of the read that completed it.
struct Lines {
    output: ChildStdout,
    bytes: Vec<u8>,
    /// Where the next line begins, and the end of the part known to contain no line break.
    start: usize,
    scanned: usize,
    at: Instant,
}

impl Lines {
    fn next(&mut self) -> std::io::Result<Option<(Instant, Vec<u8>)>> {
        loop {
            if let Some(length) = self.bytes[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let end = self.scanned + length;
                let line = self.bytes[self.start..end].to_vec();
                (self.start, self.scanned) = (end + 1, end + 1);
                return Ok(Some((self.at, line)));
            }
            self.bytes.drain(..self.start);
            (self.start, self.scanned) = (0, self.bytes.len());
            let mut piece = [0; 64 << 10];
            let count = self.output.read(&mut piece)?;
            self.at = Instant::now();
            if count == 0 {
                return Ok(None);
            }
            self.bytes.extend_from_slice(&piece[..count]);
        }
    }
}

/// Kills an agent that does not answer in time; the blocked read then returns and the measure fails. The
/// deadline is an atomic that is checked once a second, not a message, because a message would wake a thread
/// in the middle of a measurement.
struct Watch {
    /// Seconds since `begun` at which the agent is killed; [`Watch::IDLE`] while nothing is expected.
    deadline: Arc<AtomicU64>,
    begun: Instant,
}

impl Watch {
    const IDLE: u64 = u64::MAX;

    fn over(child: &Child) -> Result<Watch> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process has an id")?;
        let watch = Watch { deadline: Arc::new(AtomicU64::new(Watch::IDLE)), begun: Instant::now() };
        let (deadline, begun) = (Arc::downgrade(&watch.deadline), watch.begun);
        std::thread::spawn(move || {
            while let Some(deadline) = deadline.upgrade() {
                if begun.elapsed().as_secs() >= deadline.load(Ordering::Relaxed) {
                    // Fails only if the process has exited in the meantime.
                    let _ = kill_process(pid, Signal::KILL);
                    return;
                }
                drop(deadline);
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        Ok(watch)
    }

    fn expect(&self) {
        let deadline = (self.begun.elapsed() + SILENCE_MAX).as_secs();
        self.deadline.store(deadline, Ordering::Relaxed);
    }

    /// Disarms the deadline. Returns whether it had already passed.
    fn rest(&self) -> bool {
        let deadline = self.deadline.swap(Watch::IDLE, Ordering::Relaxed);
        self.begun.elapsed().as_secs() >= deadline
    }
}
