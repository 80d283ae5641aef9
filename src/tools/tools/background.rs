//! Background commands: started by `bash`, read by `bash_output`, and ended by `bash_kill`, on exit, or when their
//! session ends.
//!
//! A session owns its `BackgroundCommands`; dropping it ends all its commands. Cancelling a turn doesn't end them.
//! Their number and the output kept of each are limited.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use regex::Regex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::output::{Cleaner, drawn};
use super::shell_run::{self, OutputReader, StartedShell};
use super::{ToolContext, ToolError, ToolResult, disk, input, sandbox, truncate};
use epitome_platform::group::CommandExit;
use epitome_thread::titles::name_in_title;
use epitome_thread::{CallDisplay, CallId, CallOutput, ToolDisplay, ToolKind, WrittenBytes};

/// Maximum number of commands that run at a time: a server, a watcher or two, a long build.
pub const RUNNING_MAX: usize = 8;

/// Maximum number of ended commands that are kept so that their last output can still be read.
const ENDED_MAX: usize = 16;

/// Maximum unread output kept per command, in bytes; older bytes are dropped.
const UNREAD_BYTES_MAX: usize = 1024 * 1024;

/// How long a new command is observed before its start is reported: by then a server has printed its address, and a
/// command that can't run has printed why.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Maximum length in bytes of a command line in messages about it.
const LINE_BYTES_MAX: usize = 200;

/// Alphabet and length of ids: short enough to copy without mistakes, long enough to rarely repeat an id from before
/// a restart of the session.
const ID_LETTERS: &[u8] = b"abcdefghjkmnpqrstuvwxyz23456789";
const ID_LETTERS_COUNT: usize = 4;

/// The commands of one session.
#[derive(Default)]
pub struct BackgroundCommands {
    commands: Mutex<Vec<FollowedCommand>>,
    /// Woken when a command ends.
    ends: Arc<Notify>,
}

struct FollowedCommand {
    command: Arc<BackgroundCommand>,
    task: AbortHandle,
}

/// A command that was started in the background.
pub struct BackgroundCommand {
    pub id: String,
    call: Option<CallId>,
    /// Receives output as it arrives, for display.
    progress: Arc<dyn Fn(CallOutput) + Send + Sync>,
    ends: Arc<Notify>,
    /// The command line, truncated.
    pub line: String,
    began: Instant,
    state: Mutex<CommandState>,
    /// Changes whenever there is new output or the command ends.
    news: watch::Sender<u64>,
    end: Notify,
    /// Whether the command has network access; `None` if it isn't sandboxed.
    network: Option<bool>,
}

#[derive(Default)]
struct CommandState {
    unread: String,
    /// Bytes that the command has written.
    written: u64,
    /// Bytes of output that precede `unread`, whether read or not.
    before: u64,
    /// Bytes discarded unread since the last read.
    forgotten: u64,
    ending: Option<CommandExit>,
    is_end_reported: bool,
}

/// The status of a command, without its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandStatus {
    pub id: String,
    pub line: String,
    /// How it ended, as text, once it has.
    pub ended: Option<String>,
    pub is_end_reported: bool,
}

impl BackgroundCommands {
    pub fn has_room(&self) -> bool {
        self.running() < RUNNING_MAX
    }

    /// Number of running commands.
    pub fn running(&self) -> usize {
        self.commands.lock().iter().filter(|followed| followed.command.runs()).count()
    }

    /// Returns the command with this id. The error is a message for the model.
    pub fn find(&self, id: &str) -> Result<Arc<BackgroundCommand>, ToolError> {
        let id = id.trim();
        let commands = self.commands.lock();
        if let Some(followed) = commands.iter().find(|followed| followed.command.id == id) {
            return Ok(followed.command.clone());
        }
        let ids: Vec<&str> = commands.iter().map(|followed| followed.command.id.as_str()).collect();
        let known = match ids.is_empty() {
            true => "There are none".to_string(),
            false => format!("There are {}", ids.join(", ")),
        };
        Err(ToolError::new(format!(
            "There is no background command {id:?} in this session. {known}. Those from before a restart of the \
             session have ended."
        )))
    }

    /// The status of all known commands, oldest first.
    pub fn statuses(&self) -> Vec<CommandStatus> {
        self.commands.lock().iter().map(|followed| followed.command.status()).collect()
    }

    /// The running commands that were started by a call, oldest first: the call and its command line.
    pub fn terminals(&self) -> Vec<(CallId, String)> {
        let commands = self.commands.lock();
        let running = commands.iter().map(|followed| &followed.command).filter(|command| command.runs());
        running.filter_map(|command| Some((command.call.clone()?, command.line.clone()))).collect()
    }

    /// Whether this call started a command.
    pub fn is_from(&self, call: &CallId) -> bool {
        self.from(call).is_some()
    }

    /// The exit code and signal of a call's command, at most one of which is known. `None` while it runs, or if the
    /// call started none.
    pub fn exit_of(&self, call: &CallId) -> Option<(Option<i64>, Option<i64>)> {
        let ending = self.from(call)?.state.lock().ending?;
        Some(match ending {
            CommandExit::Code(code) => (Some(code.into()), None),
            CommandExit::Signal(signal) => (None, Some(signal.into())),
            CommandExit::Unknown => (None, None),
        })
    }

    /// Ends the command of a call; returns whether it was running.
    pub fn end(&self, call: &CallId) -> bool {
        let running = self.from(call).filter(|command| command.runs());
        running.inspect(|command| command.kill()).is_some()
    }

    /// Waits until a command ends. An end between two waits is not missed; several ends may wake it only once.
    pub async fn next_end(&self) {
        self.ends.notified().await;
    }

    fn from(&self, call: &CallId) -> Option<Arc<BackgroundCommand>> {
        let commands = self.commands.lock();
        let found = commands.iter().rev().find(|followed| followed.command.call.as_ref() == Some(call));
        found.map(|followed| followed.command.clone())
    }

    /// Registers a command and starts to follow it. Ends the command and returns `None` if too many are running.
    fn follow(
        &self,
        line: &str,
        started: StartedShell,
        context: &ToolContext,
    ) -> Option<Arc<BackgroundCommand>> {
        let mut commands = self.commands.lock();
        if commands.iter().filter(|followed| followed.command.runs()).count() >= RUNNING_MAX {
            return None;
        }
        let mut id = fresh_id();
        while commands.iter().any(|followed| followed.command.id == id) {
            id = fresh_id();
        }
        let command = Arc::new(BackgroundCommand {
            id,
            call: context.call.clone(),
            progress: context.progress.clone(),
            ends: self.ends.clone(),
            line: truncate::line(line.trim(), LINE_BYTES_MAX),
            began: Instant::now(),
            state: Mutex::default(),
            news: watch::Sender::new(0),
            end: Notify::new(),
            network: started.network(&context.sandbox),
        });
        let task = tokio::spawn(follow(command.clone(), started)).abort_handle();
        commands.push(FollowedCommand { command: command.clone(), task });
        let spare =
            commands.iter().filter(|followed| followed.task.is_finished()).count().saturating_sub(ENDED_MAX);
        commands.extract_if(.., |followed| followed.task.is_finished()).take(spare).for_each(drop);
        Some(command)
    }
}

impl Drop for BackgroundCommands {
    fn drop(&mut self) {
        // Dropping the task drops the command's `Running`, which ends it.
        for followed in self.commands.lock().iter() {
            followed.task.abort();
        }
    }
}

fn fresh_id() -> String {
    let letters = (0..ID_LETTERS_COUNT).map(|_| char::from(ID_LETTERS[fastrand::usize(..ID_LETTERS.len())]));
    std::iter::once('b').chain(letters).collect()
}

/// Returns the card of a tool that acts on the command with the id in its input.
pub(super) fn display(verb: &str, kind: ToolKind, input: &Value) -> CallDisplay {
    let title = match input::optional_named(input, "id") {
        Ok(Some(id)) => format!("{verb} the background command {}", name_in_title(kind, &id)),
        Ok(None) | Err(_) => format!("{verb} a background command"),
    };
    CallDisplay { title, kind, locations: Vec::new() }
}

/// The error message if no more commands can be started.
pub(super) fn full() -> String {
    format!("{RUNNING_MAX} commands run in the background already. End one with bash_kill first.")
}

/// Keeps a started command running in the background; returns the result of its start, with its first output.
pub(super) async fn start(
    background: &BackgroundCommands,
    line: String,
    started: StartedShell,
    context: &ToolContext,
) -> ToolResult {
    let Some(command) = background.follow(&line, started, context) else {
        return ToolResult::failed(full());
    };
    command.wait(FIRST_LOOK, WaitFor::End).await;
    let head = format!("Background command {} was started", command.id);
    command.result(&head)
}

/// Follows a command until its end. Dropping the future ends the command.
async fn follow(command: Arc<BackgroundCommand>, started: StartedShell) {
    let StartedShell { mut running, pipe, note: _note, settings: _, links } = started;
    let (mut reading, mut cleaner) = (OutputReader::new(pipe), Cleaner::default());
    let ending = loop {
        tokio::select! {
            biased;
            ending = &mut running.ending => break ending.unwrap_or(CommandExit::Unknown),
            () = command.end.notified() => running.end(),
            bytes = reading.next() => command.take(cleaner.clean(bytes), bytes),
        }
    };
    reading.drain(|bytes| command.take(cleaner.clean(bytes), bytes)).await;
    running.release();
    command.take(cleaner.finish(), &[]);
    if let Some(links) = links {
        for report in disk::blocking(move |_| links.reports()).await {
            command.take(format!("{report}\n"), &[]);
        }
    }
    command.state.lock().ending = Some(ending);
    command.notify_waiters();
    command.ends.notify_one();
}

/// The condition to wait for.
pub(super) enum WaitFor {
    End,
    /// New output, or the end.
    News,
    /// An unread line that matches, or the end.
    Line(Regex),
}

impl BackgroundCommand {
    /// Requests the command's end, and forces it after a grace period. Does not block.
    pub(super) fn kill(&self) {
        self.end.notify_one();
    }

    fn runs(&self) -> bool {
        self.state.lock().ending.is_none()
    }

    pub fn status(&self) -> CommandStatus {
        let state = self.state.lock();
        CommandStatus {
            id: self.id.clone(),
            line: self.line.clone(),
            ended: state.ending.map(|ending| shell_run::ended(ending).0),
            is_end_reported: state.is_end_reported,
        }
    }

    /// Marks the end as reported to the model.
    pub fn mark_end_reported(&self) {
        self.state.lock().is_end_reported = true;
    }

    /// Waits for a condition, at most for the given time.
    pub(super) async fn wait(&self, at_most: Duration, wait_for: WaitFor) {
        let mut news = self.news.subscribe();
        let mut searched = 0;
        let there = async {
            loop {
                news.mark_unchanged();
                if self.has(&wait_for, &mut searched) || news.changed().await.is_err() {
                    return;
                }
            }
        };
        // A timeout isn't an error: the result contains what is available by then.
        let _ = tokio::time::timeout(at_most, there).await;
    }

    /// Whether the condition holds. Bytes before `searched`, counted from the start of the output, are known
    /// not to match.
    fn has(&self, wait_for: &WaitFor, searched: &mut u64) -> bool {
        let state = self.state.lock();
        if state.ending.is_some() {
            return true;
        }
        match wait_for {
            WaitFor::End => false,
            WaitFor::News => !state.unread.is_empty(),
            WaitFor::Line(pattern) => {
                let from = usize::try_from(searched.saturating_sub(state.before)).unwrap_or(usize::MAX);
                let text = state.unread.get(from..).unwrap_or_default();
                let found = text.lines().any(|line| pattern.is_match(line));
                // The last line may be incomplete.
                let whole = text.rfind('\n').map_or(0, |border| border + 1);
                *searched = state.before + (from.min(state.unread.len()) + whole) as u64;
                found
            }
        }
    }

    /// Returns and consumes the unread output, with the command's status.
    pub(super) fn result(&self, head: &str) -> ToolResult {
        let (unread, forgotten, ending) = {
            let mut state = self.state.lock();
            let unread = std::mem::take(&mut state.unread);
            state.before += unread.len() as u64;
            state.is_end_reported = state.ending.is_some();
            (unread, std::mem::take(&mut state.forgotten), state.ending)
        };
        let output = drawn(&unread);
        let shown =
            truncate::head_and_tail(&output, truncate::OUTPUT_BYTES_MAX, truncate::OUTPUT_HEAD_BYTES, REST);
        let mut raw = json!({"stdout": shown, "stderr": ""});
        let (outcome, state) = match ending {
            None => (format!("still runs after {} s", self.began.elapsed().as_secs()), "running"),
            Some(ending) => {
                let (words, code) = shell_run::ended(ending);
                if let Some(code) = code {
                    raw["exitCode"] = Value::from(code);
                }
                (format!("has ended: {words}"), "ended")
            }
        };
        raw["background"] = json!({"id": self.id, "state": state});
        let mut say = format!("[{head}; it {outcome}]");
        if forgotten > 0 {
            say = format!(
                "[{forgotten} bytes of its output before this are lost: they were not read in time]\n{say}"
            );
        }
        if let Some(hint) = self.network.and_then(|network| {
            sandbox::hint(&shown, matches!(ending, None | Some(CommandExit::Code(0))), network)
        }) {
            say = format!("{say}\n{hint}");
        }
        let border = if shown.is_empty() || shown.ends_with('\n') { "" } else { "\n" };
        let nothing = if shown.is_empty() { "(no new output)\n" } else { "" };
        // The command is identified first, because the beginning remains when old results are shortened.
        let text = format!("Background command {}: `{}`\n{shown}{border}{nothing}{say}", self.id, self.line);
        let whole = (shown.len() != output.len()).then(|| format!("{output}\n{say}"));
        let shown = vec![ToolDisplay::Text { text: format!("{}\n\n{say}", disk::fenced("", &shown)) }];
        ToolResult { whole, shown, raw: Some(raw), ..ToolResult::completed(text) }
    }

    /// Takes what the command wrote, and its text.
    fn take(&self, text: String, bytes: &[u8]) {
        if text.is_empty() && bytes.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let at = state.written;
        state.written += bytes.len() as u64;
        state.unread.push_str(&text);
        // Truncated only at twice the limit, so that each byte is moved once on average.
        if state.unread.len() > 2 * UNREAD_BYTES_MAX {
            let from = state.unread.ceil_char_boundary(state.unread.len() - UNREAD_BYTES_MAX);
            state.unread.drain(..from);
            state.before += from as u64;
            state.forgotten += from as u64;
        }
        drop(state);
        let written = WrittenBytes { at, bytes: bytes.to_vec(), is_last: false };
        (self.progress)(CallOutput { text, written: Some(written) });
        self.notify_waiters();
    }

    fn notify_waiters(&self) {
        self.news.send_modify(|count| *count += 1);
    }
}

/// How the model can read the omitted part of the output.
const REST: &str = "`recall` reads the rest";
