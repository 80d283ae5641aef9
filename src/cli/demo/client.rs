//! A minimal client of the Agent Client Protocol: a process, two pipes, one JSON object per line. It uses no types of
//! the daemon, so it sees what any editor sees.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::screen::Screen;

/// Maximum time without output from the daemon. Everything in the demo takes milliseconds; a slow machine takes
/// seconds.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Maximum number of queued messages. A daemon that is ahead blocks, as it would with an editor.
const MESSAGES_MAX: usize = 256;

/// Maximum length of a line in bytes; the limit of some editors.
const LINE_BYTES_MAX: u64 = 10 * 1024 * 1024;

/// A running daemon and the client's end of its pipes.
pub struct DemoClient {
    child: Child,
    input: Option<ChildStdin>,
    /// The daemon's output: JSON, or a line that is not part of the protocol. Ends with the daemon's output.
    messages: Receiver<Result<Value, String>>,
    next_id: u64,
}

impl DemoClient {
    /// Starts the daemon with only this environment.
    pub fn start(
        program: &Path,
        cwd: &Path,
        environment: &[(String, OsString)],
    ) -> Result<DemoClient, String> {
        let mut child = Command::new(program)
            // The demo starts and kills the daemon itself.
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
        Ok(DemoClient { child, input, messages, next_id: 0 })
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request, shows updates until its response, and returns the response.
    pub fn request(&mut self, method: &str, params: &Value, screen: &mut Screen) -> Result<Value, String> {
        let id = self.send_request(method, params)?;
        loop {
            let message = self.next_message(method, screen)?;
            if message["id"] == id && message.get("method").is_none() {
                return match message.get("result") {
                    Some(result) => Ok(result.clone()),
                    None => Err(format!("{method} was answered with an error: {}", message["error"])),
                };
            }
        }
    }

    /// Sends a request without waiting for the response, and returns its id.
    pub fn send_request(&mut self, method: &str, params: &Value) -> Result<u64, String> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        Ok(id)
    }

    /// Shows updates until one satisfies the predicate.
    pub fn watch(
        &mut self,
        screen: &mut Screen,
        mut is_last: impl FnMut(&Value) -> bool,
    ) -> Result<(), String> {
        loop {
            let message = self.next_message("an update", screen)?;
            if message.get("method").is_none() {
                return Err(format!("an answer came too early: {message}"));
            }
            if is_last(&message["params"]["update"]) {
                return Ok(());
            }
        }
    }

    /// Waits for a message; shows an update, and answers a permission request.
    fn next_message(&mut self, what: &str, screen: &mut Screen) -> Result<Value, String> {
        let message = match self.messages.recv_timeout(SILENCE_MAX) {
            Ok(Ok(message)) => message,
            Ok(Err(line)) => return Err(format!("the daemon printed a line that is not JSON: {line}")),
            Err(RecvTimeoutError::Disconnected) => return Err(format!("the daemon ended during {what}")),
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("the daemon was silent for {} s during {what}", SILENCE_MAX.as_secs()));
            }
        };
        match message["method"].as_str() {
            Some("session/update") => screen.update(&message["params"]["update"]),
            Some("session/request_permission") => {
                let option = screen.choose(&message["params"]);
                let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
                self.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": outcome }))?;
            }
            Some(other) => return Err(format!("the daemon asked for {other}, which was not offered")),
            None => {}
        }
        Ok(message)
    }

    fn send(&mut self, message: &Value) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("the daemon's stdin is closed")?;
        writeln!(input, "{message}").map_err(|error| format!("the daemon's stdin can't be written: {error}"))
    }

    /// Kills the daemon as abruptly as a power failure.
    pub fn kill(mut self) -> Result<(), String> {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map(drop).map_err(|error| format!("the daemon can't be killed: {error}"))
    }

    /// Closes the daemon's stdin, as an exiting editor does, and waits for the exit.
    pub fn close(mut self) -> Result<(), String> {
        drop(self.input.take());
        loop {
            match self.messages.recv_timeout(SILENCE_MAX) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    return Err("the daemon did not end when its stdin was closed".to_owned());
                }
            }
        }
        let status =
            self.child.wait().map_err(|error| format!("the daemon's exit status is unknown: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("the daemon ended with {status}")) }
    }
}

impl Drop for DemoClient {
    fn drop(&mut self) {
        // No effect after `kill` or `close`.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Reads lines until the end, or until the receiver is dropped.
fn read(output: ChildStdout, sender: &SyncSender<Result<Value, String>>) {
    let mut reader = BufReader::new(output);
    let mut line = String::new();
    while let Ok(1..) = (&mut reader).take(LINE_BYTES_MAX).read_line(&mut line) {
        let message = serde_json::from_str(&line).map_err(|_| line.trim_end().to_owned());
        if sender.send(message).is_err() {
            return;
        }
        line.clear();
    }
}
