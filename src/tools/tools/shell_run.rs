//! Starts a shell, reads its output while it runs, and describes its end.

use epitome_platform::os::{AsFd as _, NO_SHELL, NULL_DEVICE};
use std::future::pending;
use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use epitome_platform::pipe;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, sleep_until, timeout};

use super::Workspace;
use super::disk::CancelFlag;
use super::git_commands::is_plain;
use super::running::RunningNote;
use super::sandbox::{self, GitChanges, LinkGuard, SandboxRules, StagedSettings, git_links};
use crate::ToolError;
use epitome_platform::group::{CommandExit, EndPolicy, KILL_GRACE, RunningCommand};
use epitome_platform::program::{is_program, shell};
use epitome_platform::reaper::Reaper;
use epitome_thread::{CallOutput, WrittenBytes};

/// How long to wait for a command's end, two seconds after SIGKILL. A command stuck in the kernel is then abandoned.
pub(super) const END_TIME_MAX: Duration = KILL_GRACE.saturating_add(Duration::from_secs(2));

/// How long output is still read after the shell has ended, if another process keeps the pipe open.
const DRAIN: Duration = Duration::from_millis(200);

/// Bytes per read: the size of a Linux pipe.
const READ_BYTES: usize = 64 * 1024;

/// Minimum interval between two pieces of live output.
const PASS_ON_EVERY: Duration = Duration::from_millis(100);

/// The interval is at least the elapsed time divided by this: after minutes, ten pieces a second are unnecessary. A
/// command of ten minutes sends some 300 of them.
const PASS_ON_PART: u32 = 50;

/// Maximum bytes of one piece. If more output arrives in so short a time, only its end is useful.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// Bytes of text and of what it was made from that are passed on at any speed, before pieces are left out.
const AT_ONCE_BYTES_MAX: usize = 512 * 1024;

/// Marks omitted output at the start of a piece.
const LEFT_OUT: &str = "[…]\n";

/// Variables that keep programs from prompting; each is set only if the environment doesn't define it.
const NOT_INTERACTIVE: [(&str, &str); 5] = [
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_EDITOR", "true"),
    ("GIT_PAGER", "cat"),
    ("PAGER", "cat"),
    ("TERM", "dumb"),
];

/// A started shell.
pub(super) struct StartedShell {
    pub running: RunningCommand,
    pub pipe: pipe::Receiver,
    /// The command counts as running in the workspace until this is dropped.
    pub note: RunningNote,
    /// Settings of repositories that it may change; call `finish` on them after the command has ended.
    pub settings: Option<StagedSettings>,
    /// The links between repositories, if it is sandboxed; they are watched until all of its processes have ended.
    pub links: Option<Arc<LinkGuard>>,
}

impl StartedShell {
    /// Whether it has network access; `None` if it isn't sandboxed.
    pub fn network(&self, rules: &SandboxRules) -> Option<bool> {
        self.links.is_some().then_some(rules.network)
    }
}

/// How a command is restricted.
pub(super) enum ShellRestriction<'a> {
    /// It runs in a sandbox with these rules, and may change these parts of the workspace's repositories.
    Sandbox(&'a SandboxRules, GitChanges),
    /// The user has permitted that it runs outside of the sandbox.
    Outside,
    /// It is unrestricted, as all commands of the session are.
    None,
}

/// Starts the shell, and returns it with the pipe of its output. Blocks.
pub(super) fn start(
    reaper: &Arc<Reaper>,
    line: &str,
    workspace: &Workspace,
    limits: &ShellRestriction<'_>,
    stop: &CancelFlag,
) -> Result<StartedShell, ToolError> {
    if stop.requested() {
        return Err(ToolError::new("The call was cancelled before its command was started."));
    }
    if !workspace.cwd.is_dir() {
        return Err(ToolError::new(format!(
            "The workspace's directory {} is gone; no command can be run.",
            workspace.cwd.display()
        )));
    }
    if let Some(root) = workspace.roots().iter().find(|root| root.identity().is_some() && !root.is_in_place())
    {
        return Err(ToolError::new(format!(
            "The directory {} was moved away or replaced since the session was opened, so no command is run. The user \
             can open the session again to work in what is there now.",
            root.path().display()
        )));
    }
    // If the user was not asked because Git runs nothing else, that must be the user's Git.
    let is_only_git = || is_plain(line) && git_links::runs_only_git(&workspace.cwd);
    let is_of_user = match limits {
        ShellRestriction::Outside => true,
        ShellRestriction::Sandbox(_, changes) => *changes != GitChanges::None && is_only_git(),
        ShellRestriction::None => false,
    };
    let environment = if is_of_user { sandbox::outside(workspace) } else { workspace.environment.clone() };
    let shell = shell(&environment);
    let failed = |error: io::Error| {
        let text = match error.kind() {
            io::ErrorKind::ArgumentListTooLong => {
                "The command line is too long for the system. Write a script with file_write and run that."
                    .to_owned()
            }
            io::ErrorKind::StaleNetworkFileHandle => {
                "The command was not started: a file or directory that its sandbox protects was replaced at that moment. \
                 Run it again."
                    .to_owned()
            }
            _ if !is_program(&shell) => format!("The command could not be started: {NO_SHELL}."),
            _ => format!("The command could not be started: {error}."),
        };
        ToolError::caused(text, error)
    };
    let (pipe, write) = pipe::from_child().map_err(failed)?;
    let mut command = Command::new(&shell);
    // A repository's hook may have exported code, to which the user has not consented outside.
    let line = if is_of_user { line.to_owned() } else { with_exports(line, workspace) };
    command.arg("-c").arg(line);
    let environment = workspace.exposure().for_commands(&environment);
    let given = |name: &str| environment.iter().any(|(given, _)| given == name);
    command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    for (name, value) in NOT_INTERACTIVE.iter().filter(|(name, _)| !given(name)) {
        command.env(name, value);
    }
    if !given("HOME")
        && let Some(home) = workspace.home()
    {
        command.env("HOME", home);
    }
    // The inherited value would be the editor's directory.
    command.env("PWD", &workspace.cwd).env_remove("OLDPWD");
    let note = workspace.running.note(workspace);
    let prepared = match limits {
        ShellRestriction::Sandbox(rules, git) => sandbox::confinement(rules, workspace, *git),
        ShellRestriction::Outside | ShellRestriction::None => None,
    };
    let (mut settings, mut links) = (None, None);
    let running = match prepared {
        Some(prepared) => {
            command.envs(prepared.variables);
            settings = prepared.settings;
            links = Some(prepared.links);
            let null = std::fs::File::open(NULL_DEVICE).map_err(failed)?;
            let streams = [null.as_fd(), write.as_fd(), write.as_fd()];
            reaper.spawn_confined(&command, streams, EndPolicy::Terminate, prepared.confinement)
        }
        None => {
            command.current_dir(&workspace.cwd).stdin(Stdio::null());
            command.stdout(Stdio::from(write.try_clone().map_err(failed)?));
            command.stderr(Stdio::from(write.try_clone().map_err(failed)?));
            reaper.spawn_marked(&mut command)
        }
    };
    let running = running.map_err(failed)?;
    if let Some(links) = &links {
        links.watch(running.group_end()).map_err(failed)?;
    }
    // They contain this process's copies of the pipe's write end; the reader would not get EOF while they are open.
    drop((command, write));
    Ok(StartedShell { running, pipe, note, settings, links })
}

/// Prepends the exports of hooks to the line. An error in them does not prevent the line from running.
fn with_exports(line: &str, workspace: &Workspace) -> String {
    match workspace.exports() {
        Some(exports) => format!("eval '{}'\n{line}", exports.replace('\'', "'\\''")),
        None => line.to_owned(),
    }
}

/// The read end of a command's output.
pub(super) struct OutputReader {
    /// `None` once the write end is closed.
    pipe: Option<pipe::Receiver>,
    buffer: Vec<u8>,
}

impl OutputReader {
    pub fn new(pipe: pipe::Receiver) -> OutputReader {
        OutputReader { pipe: Some(pipe), buffer: vec![0; READ_BYTES] }
    }

    /// Returns the available output; empty at the end, and never resolves afterwards. Cancel-safe: dropping the
    /// future loses no bytes.
    pub async fn next(&mut self) -> &[u8] {
        let Some(pipe) = &mut self.pipe else { return pending().await };
        match pipe.read(&mut self.buffer).await {
            Ok(0) | Err(_) => {
                self.pipe = None;
                &[]
            }
            Ok(length) => &self.buffer[..length],
        }
    }

    /// Reads what the shell left in the pipe, with a timeout because another process may keep the pipe open.
    pub async fn drain(&mut self, mut take: impl FnMut(&[u8])) {
        let rest = async {
            while self.pipe.is_some() {
                take(self.next().await);
            }
        };
        // A timeout isn't an error: the shell's output is complete.
        let _ = timeout(DRAIN, rest).await;
    }
}

/// Forwards output while the command runs, in pieces of limited size and number.
pub(super) struct LiveOutput {
    began: Instant,
    passed_on: Instant,
    waiting: CallOutput,
    passed_bytes: usize,
    has_left_out: bool,
    progress: Arc<dyn Fn(CallOutput) + Send + Sync>,
}

impl LiveOutput {
    pub fn new(progress: Arc<dyn Fn(CallOutput) + Send + Sync>) -> LiveOutput {
        let began = Instant::now();
        let written = Some(WrittenBytes::default());
        LiveOutput {
            began,
            passed_on: began - PASS_ON_EVERY,
            waiting: CallOutput { text: String::new(), written },
            passed_bytes: 0,
            has_left_out: false,
            progress,
        }
    }

    /// Takes what the command wrote, and its text.
    pub fn take(&mut self, text: &str, bytes: &[u8], now: Instant) {
        self.waiting.text.push_str(text);
        if let Some(written) = &mut self.waiting.written {
            written.bytes.extend_from_slice(bytes);
        }
        let is_long = self.waiting.text.len() > PIECE_BYTES_MAX;
        let takes_much = self.waiting.bytes() > 2 * PIECE_BYTES_MAX;
        if self.due() <= now || ((is_long || takes_much) && self.passed_bytes < AT_ONCE_BYTES_MAX) {
            return self.pass_on(now);
        }
        if is_long || takes_much {
            self.waiting.keep_newest(PIECE_BYTES_MAX);
            self.has_left_out |= is_long;
        }
    }

    /// Waits until pending output is due; forever if there is no pending output.
    pub async fn wait(&self) {
        match self.waiting.bytes() {
            0 => pending().await,
            _ => sleep_until(self.due()).await,
        }
    }

    pub fn pass_on(&mut self, now: Instant) {
        if self.waiting.bytes() > 0 {
            self.pass(now);
        }
    }

    /// Passes on what is left; nothing follows.
    pub fn end(mut self) {
        if let Some(written) = &mut self.waiting.written {
            written.is_last = true;
        }
        self.pass(Instant::now());
    }

    fn pass(&mut self, now: Instant) {
        self.passed_on = now;
        // Once something was left out, the next piece follows nothing.
        let next = self
            .waiting
            .written
            .as_ref()
            .map(|written| WrittenBytes { at: written.end(), ..WrittenBytes::default() });
        let mut output =
            std::mem::replace(&mut self.waiting, CallOutput { text: String::new(), written: next });
        self.passed_bytes += output.bytes();
        if std::mem::take(&mut self.has_left_out) {
            output.text.insert_str(0, LEFT_OUT);
        }
        (self.progress)(output);
    }

    fn due(&self) -> Instant {
        self.passed_on
            + PASS_ON_EVERY.max(self.passed_on.saturating_duration_since(self.began) / PASS_ON_PART)
    }
}

/// Describes an exit, without brackets, and returns its exit code as shells report it.
pub(super) fn ended(ending: CommandExit) -> (String, Option<i32>) {
    // Shells report the end by a signal as 128 plus the signal number.
    const BY_SIGNAL: i32 = 128;
    match ending {
        CommandExit::Code(code) => (format!("exit code {code}"), Some(code)),
        CommandExit::Signal(signal) => {
            let code = BY_SIGNAL + signal;
            (format!("ended by signal {signal}, exit code {code}"), Some(code))
        }
        CommandExit::Unknown => ("the exit code is not known".to_string(), None),
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn fast_output_is_passed_on_in_few_bounded_pieces() {
        let pieces: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = pieces.clone();
        let keep = move |output: CallOutput| kept.lock().push(output.text);
        let mut live = LiveOutput::new(Arc::new(keep));
        let mut now = Instant::now();
        for second in 0..60 {
            for _ in 0..100 {
                let line = format!("{second} {}\n", "x".repeat(1_000));
                live.take(&line, line.as_bytes(), now);
            }
            now += Duration::from_secs(1);
        }
        live.end();
        let pieces = pieces.lock();
        assert!((20..=120).contains(&pieces.len()), "{}", pieces.len());
        // A piece is passed on once it is too long, so it is longer by at most one read.
        let read = "59 \n".len() + 1_000;
        assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES_MAX + read + LEFT_OUT.len()));
        assert!(pieces[0].starts_with("0 x"), "the first is passed on at once");
        assert!(pieces.last().is_some_and(|last| last.starts_with(LEFT_OUT) && last.contains("59 x")));
    }
}
