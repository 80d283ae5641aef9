//! The demo's daemon: a process, two pipes, and the client that other commands use too.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use epitome_client::{
    ClientEvent, OpenedSession, PromptEnd, QuestionForms, SessionClient, SessionMessage, SessionRequest,
};

use super::screen::Screen;
use crate::session::UserDecision;
use crate::thread::{Content, SessionId};

/// Maximum time without output from the daemon. Everything in the demo takes milliseconds; a slow machine takes
/// seconds.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Bytes that are read at a time, and how many of these parts wait. A daemon that is ahead blocks, as it would with an
/// editor.
const PART_BYTES: usize = 16 * 1024;
const PARTS_MAX: usize = 16;

/// A running daemon and the client's end of its pipes.
pub struct DemoClient {
    child: KilledChild,
    client: SessionClient<(), ChildStdin>,
    reader: BufReader<TimedOutput>,
}

impl DemoClient {
    /// Starts the daemon with only this environment, and initializes the connection.
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
            .map(KilledChild)
            .map_err(|error| format!("{} can't be started: {error}", program.display()))?;
        let pipes = child.0.stdin.take().zip(child.0.stdout.take());
        let (input, output) = pipes.ok_or("the daemon has no pipes")?;
        let halves = (BufReader::new(TimedOutput::of(output)), input);
        let (client, reader) = SessionClient::initialize(halves, "epitome-demo", QuestionForms::Unsupported)?;
        Ok(DemoClient { child, client, reader })
    }

    pub fn process(&self) -> u32 {
        self.child.0.id()
    }

    /// Creates a session and returns its id.
    pub fn create(&mut self, request: &SessionRequest, screen: &mut Screen) -> Result<SessionId, String> {
        self.client.create(request, ());
        self.opened(screen)?.session.ok_or_else(|| "the new session has no id".to_owned())
    }

    /// Opens a session again, with all of its log.
    pub fn resume(
        &mut self,
        session: &SessionId,
        request: &SessionRequest,
        screen: &mut Screen,
    ) -> Result<(), String> {
        self.client.resume(session, request, true, ());
        self.opened(screen).map(drop)
    }

    fn opened(&mut self, screen: &mut Screen) -> Result<OpenedSession, String> {
        loop {
            if let SessionMessage::Answer((), answer) = self.next(screen)? {
                return answer.and_then(OpenedSession::read).map_err(|error| error.to_string());
            }
        }
    }

    pub fn send_prompt(&mut self, session: &SessionId, text: &str) -> u64 {
        self.client.prompt(session, vec![Content::Text { text: text.to_owned() }], ())
    }

    /// Sends a prompt and shows its turn.
    pub fn prompt(
        &mut self,
        session: &SessionId,
        text: &str,
        screen: &mut Screen,
    ) -> Result<PromptEnd, String> {
        let request = self.send_prompt(session, text);
        loop {
            match self.next(screen)? {
                SessionMessage::Event(ClientEvent::PromptEnded(end)) if end.request == request => {
                    return Ok(*end);
                }
                SessionMessage::Answer((), Err(error)) => return Err(error.to_string()),
                SessionMessage::Answer(..) | SessionMessage::Event(_) | SessionMessage::Nothing => {}
            }
        }
    }

    /// Shows events until this is the last text of the agent.
    pub fn watch(&mut self, words: &str, screen: &mut Screen) -> Result<(), String> {
        while !screen.seen.text.trim_end().ends_with(words) {
            self.next(screen)?;
        }
        Ok(())
    }

    /// Waits for a message; shows an event, and answers a permission request.
    fn next(&mut self, screen: &mut Screen) -> Result<SessionMessage<()>, String> {
        let mut line = Vec::new();
        let read = self.reader.read_until(b'\n', &mut line);
        if read.map_err(|error| format!("the daemon's output can't be read: {error}"))? == 0 {
            return Err("the daemon ended too early".to_owned());
        }
        let message = self.client.receive(&line);
        match &message {
            SessionMessage::Event(ClientEvent::Ask { ask, permission }) => {
                screen.ask(permission);
                self.client.decide(*ask, &UserDecision::AllowOnce);
            }
            SessionMessage::Event(event) => screen.show(event),
            SessionMessage::Answer(..) | SessionMessage::Nothing => {}
        }
        Ok(message)
    }

    /// Kills the daemon as abruptly as a power failure.
    pub fn kill(mut self) -> Result<(), String> {
        let killed = self.child.0.kill().and_then(|()| self.child.0.wait());
        killed.map(drop).map_err(|error| format!("the daemon can't be killed: {error}"))
    }

    /// Closes the daemon's stdin, as an exiting editor does, and waits for the exit.
    pub fn close(self) -> Result<(), String> {
        let DemoClient { mut child, client, mut reader } = self;
        drop(client);
        io::copy(&mut reader, &mut io::sink())
            .map_err(|error| format!("the daemon did not end when its stdin was closed: {error}"))?;
        let status =
            child.0.wait().map_err(|error| format!("the daemon's exit status is unknown: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("the daemon ended with {status}")) }
    }
}

/// A process that is killed when it is dropped, unless it has ended.
struct KilledChild(Child);

impl Drop for KilledChild {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The output of a process. Reading it fails if there is none for a while.
struct TimedOutput {
    parts: Receiver<Vec<u8>>,
    part: io::Cursor<Vec<u8>>,
}

impl TimedOutput {
    fn of(mut output: impl Read + Send + 'static) -> TimedOutput {
        let (sender, parts) = sync_channel(PARTS_MAX);
        std::thread::spawn(move || {
            let mut bytes = vec![0; PART_BYTES];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        TimedOutput { parts, part: io::Cursor::default() }
    }
}

impl Read for TimedOutput {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.part.read(bytes)?;
        if read > 0 || bytes.is_empty() {
            return Ok(read);
        }
        match self.parts.recv_timeout(SILENCE_MAX) {
            Ok(part) => {
                self.part = io::Cursor::new(part);
                self.part.read(bytes)
            }
            Err(RecvTimeoutError::Disconnected) => Ok(0),
            Err(RecvTimeoutError::Timeout) => {
                let why = format!("the daemon was silent for {} s", SILENCE_MAX.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
        }
    }
}
