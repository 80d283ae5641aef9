//! A minimal client of the Agent Client Protocol: a process, two pipes, one JSON object per line. It uses no types of
//! the daemon, so it sees what any editor sees.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long the daemon may be silent. Everything in the demo takes milliseconds; a slow machine
/// takes seconds.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Queued messages. A daemon that is ahead blocks, as it would with an editor.
const MESSAGES_MAX: usize = 256;

/// The longest line that is read, in bytes; the limit of some editors.
const LINE_BYTES_MAX: u64 = 10 * 1024 * 1024;

/// What the user of the editor sees and decides.
pub trait Person {
    fn sees(&mut self, update: &Value);

    /// Chooses one of the options of a permission card, by its id.
    fn chooses(&mut self, card: &Value) -> String;
}

/// A running daemon and the client's end of its pipes.
pub struct Client {
    child: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Message>,
    next_id: u64,
}

enum Message {
    Json(Value),
    /// Output that is not part of the protocol.
    Noise(String),
    /// The daemon closed its end.
    End,
}

/// How far a request is followed.
pub enum Until<'a> {
    Answered,
    /// Until an update for which this is true, with the request still open.
    Seen(&'a mut dyn FnMut(&Value) -> bool),
}

impl Client {
    /// Starts the daemon with only this environment.
    pub fn start(program: &Path, cwd: &Path, environment: &[(String, OsString)]) -> Result<Client, String> {
        let mut child = Command::new(program)
            // The demonstration starts and kills it itself.
            .args(["acp", "--standalone"])
            .current_dir(cwd)
            .env_clear()
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{} can't be started: {error}", program.display()))?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("the daemon has no stdout")?;
        let (sender, messages) = sync_channel(MESSAGES_MAX);
        std::thread::spawn(move || read(output, &sender));
        Ok(Client { child, input, messages, next_id: 0 })
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request, shows what comes until its answer, and returns the answer.
    pub fn request(
        &mut self,
        method: &str,
        params: &Value,
        person: &mut dyn Person,
    ) -> Result<Value, String> {
        self.follow(method, params, person, &mut Until::Answered)
    }

    /// The same until some point. If that is an update, returns it.
    pub fn follow(
        &mut self,
        method: &str,
        params: &Value,
        person: &mut dyn Person,
        until: &mut Until<'_>,
    ) -> Result<Value, String> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        self.pump(Some((id, method)), person, until)
    }

    /// Shows what comes without a request.
    pub fn watch(
        &mut self,
        person: &mut dyn Person,
        seen: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        self.pump(None, person, &mut Until::Seen(seen))
    }

    fn pump(
        &mut self,
        request: Option<(u64, &str)>,
        person: &mut dyn Person,
        until: &mut Until<'_>,
    ) -> Result<Value, String> {
        let what = request.map_or("an update", |(_, method)| method);
        loop {
            let message = self.next(what)?;
            match message["method"].as_str() {
                Some("session/update") => {
                    let update = &message["params"]["update"];
                    person.sees(update);
                    if let Until::Seen(enough) = until
                        && enough(update)
                    {
                        return Ok(update.clone());
                    }
                }
                Some("session/request_permission") => {
                    let option = person.chooses(&message["params"]);
                    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
                    self.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": outcome }))?;
                }
                Some(other) => return Err(format!("the daemon asked for {other}, which was not offered")),
                None if request.is_some_and(|(id, _)| message["id"] == id) => {
                    return match (message.get("result"), until) {
                        (Some(result), Until::Answered) => Ok(result.clone()),
                        (Some(_), Until::Seen(_)) => Err(format!("{what} was answered too early")),
                        (None, _) => Err(format!("{what} was answered with an error: {}", message["error"])),
                    };
                }
                None => return Err(format!("an answer without a request: {message}")),
            }
        }
    }

    fn next(&self, what: &str) -> Result<Value, String> {
        match self.messages.recv_timeout(SILENCE_MAX) {
            Ok(Message::Json(value)) => Ok(value),
            Ok(Message::Noise(line)) => Err(format!("the daemon printed a line that is not JSON: {line}")),
            Ok(Message::End) => Err(format!("the daemon ended during {what}")),
            Err(_) => Err(format!("the daemon was silent for {} s during {what}", SILENCE_MAX.as_secs())),
        }
    }

    fn send(&mut self, message: &Value) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("the daemon's stdin is closed")?;
        writeln!(input, "{message}").map_err(|error| format!("the daemon's stdin can't be written: {error}"))
    }

    /// Kills the daemon, as a power cut would.
    pub fn kill(mut self) -> Result<(), String> {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map(drop).map_err(|error| format!("the daemon can't be killed: {error}"))
    }

    /// Closes the daemon's stdin, as an exiting editor does, and waits for the exit.
    pub fn close(mut self) -> Result<(), String> {
        drop(self.input.take());
        let until = Instant::now() + SILENCE_MAX;
        loop {
            match self.messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Message::End) => break,
                Ok(Message::Json(_) | Message::Noise(_)) => {}
                Err(_) => return Err("the daemon did not end when its stdin was closed".to_owned()),
            }
        }
        let status =
            self.child.wait().map_err(|error| format!("the daemon's exit status is unknown: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("the daemon ended with {status}")) }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // No effect after `kill` and `close`.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Reads lines until the end, or until the receiver is gone.
fn read(output: ChildStdout, sender: &SyncSender<Message>) {
    let mut reader = BufReader::new(output);
    let mut line = String::new();
    loop {
        line.clear();
        let message = match (&mut reader).take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) | Err(_) => Message::End,
            Ok(_) => match serde_json::from_str(&line) {
                Ok(value) => Message::Json(value),
                Err(_) => Message::Noise(line.trim_end().to_owned()),
            },
        };
        let is_end = matches!(message, Message::End);
        if sender.send(message).is_err() || is_end {
            return;
        }
    }
}
