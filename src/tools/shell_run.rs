//! Starts a shell, reads its output while it runs, and describes its end.

use std::ffi::{OsStr, OsString};
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until, timeout};

use super::Workspace;
use super::disk::CancelFlag;
use super::running::RunningNote;
use super::sandbox::{self, GitChanges, SandboxRules, StagedSettings};
use epitome_platform::group::{CommandExit, EndPolicy, RunningCommand};
use epitome_platform::reaper::Reaper;

/// Time for which output is still read after the shell has ended while another process keeps the pipe open.
const DRAIN: Duration = Duration::from_millis(200);

/// Bytes per read: the size of a Linux pipe.
const READ_BYTES: usize = 64 * 1024;

/// Minimum interval between two pieces of output passed on while a command runs.
const PASS_ON_EVERY: Duration = Duration::from_millis(100);

/// Divisor of the elapsed time that raises that interval: after minutes there is no need for ten pieces a
/// second. A command of ten minutes passes on some 300 of them.
const PASS_ON_PART: u32 = 50;

/// Bytes of one piece. When there is more output in so short a time, only its end is useful.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// Marks omitted output at the start of a piece.
const LEFT_OUT: &str = "[…]\n";

/// Variables that keep programs from prompting; each is only set if the environment doesn't define it.
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
    /// While it is kept, the command counts as running in the workspace.
    pub note: RunningNote,
    /// Whether it is sandboxed.
    pub is_held: bool,
    /// Settings of repositories that it may change, to be finished when it has ended.
    pub settings: Option<StagedSettings>,
}

/// Starts the shell, sandboxed if there are rules, and returns it with the pipe of its output. Blocks. `sandbox`: the
/// rules, and what the command may change of the workspace's repositories.
pub(super) fn start(
    reaper: &Arc<Reaper>,
    line: &str,
    workspace: &Workspace,
    sandbox: Option<(&SandboxRules, GitChanges)>,
    stop: &CancelFlag,
) -> Result<StartedShell, String> {
    if stop.requested() {
        return Err("The call was cancelled before its command was started.".to_string());
    }
    if !workspace.cwd.is_dir() {
        return Err(format!(
            "The workspace's directory {} is gone; no command can be run.",
            workspace.cwd.display()
        ));
    }
    if let Some(root) = workspace.roots().iter().find(|root| root.identity().is_some() && !root.is_in_place())
    {
        return Err(format!(
            "The directory {} was moved away or replaced since the session was opened, so no command is run. The user \
             can open the session again to work in what is there now.",
            root.path().display()
        ));
    }
    let failed = |error: io::Error| {
        match error.kind() {
        io::ErrorKind::ArgumentListTooLong => {
            "The command line is too long for the system. Write a script with file_write and run that."
                .to_string()
        }
        io::ErrorKind::StaleNetworkFileHandle => {
            "The command was not started: a file or directory that its sandbox protects was replaced at that moment. \
             Run it again."
                .to_string()
        }
        _ => format!("The command could not be started: {error}."),
    }
    };
    let (read, write) = io::pipe().map_err(failed)?;
    let write = OwnedFd::from(write);
    let mut command = Command::new(shell(&workspace.environment));
    command.arg("-c").arg(with_exports(line, workspace));
    let environment = workspace.exposure().for_commands(&workspace.environment);
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
    let prepared = sandbox.and_then(|(rules, git)| sandbox::confinement(rules, workspace, git));
    let is_held = prepared.is_some();
    let mut settings = None;
    let running = match prepared {
        Some(prepared) => {
            settings = prepared.settings;
            let null = std::fs::File::open("/dev/null").map_err(failed)?;
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
    // They contain our copies of the pipe's write end, and the reader sees no end of file while they are open.
    drop((command, write));
    let pipe = pipe::Receiver::from_owned_fd(OwnedFd::from(read)).map_err(failed)?;
    Ok(StartedShell { running, pipe, note, is_held, settings })
}

/// The line, after what hooks export. A fault in that does not keep the line from running.
fn with_exports(line: &str, workspace: &Workspace) -> String {
    match workspace.exports() {
        Some(exports) => format!("eval '{}'\n{line}", exports.replace('\'', "'\\''")),
        None => line.to_owned(),
    }
}

/// Returns the `bash` in the environment's PATH, else the system's, else `sh`.
pub fn shell(environment: &[(OsString, OsString)]) -> PathBuf {
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_os_str());
    let directories: Vec<PathBuf> = std::env::split_paths(path.unwrap_or(OsStr::new(""))).collect();
    let runs = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let ours = directories.iter().filter(|directory| directory.is_absolute()).map(|path| path.join("bash"));
    let system = ["/bin/bash", "/usr/bin/bash"].map(PathBuf::from);
    ours.chain(system).find(runs).unwrap_or_else(|| Path::new("/bin/sh").to_path_buf())
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

    fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// Returns the available output; empty at the end, and never resolves after it. Cancel-safe: dropping the
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

    /// Reads what the shell left in the pipe; another process may keep the pipe open.
    pub async fn drain(&mut self, mut take: impl FnMut(&[u8])) {
        let rest = async {
            while self.is_open() {
                take(self.next().await);
            }
        };
        // A timeout isn't an error: the output is complete as far as the shell wrote it.
        let _ = timeout(DRAIN, rest).await;
    }
}

/// Passes output on while the command runs, in pieces of limited size and number.
pub(super) struct LiveOutput {
    began: Instant,
    passed_on: Instant,
    waiting: String,
    has_left_out: bool,
    progress: Arc<dyn Fn(String) + Send + Sync>,
}

impl LiveOutput {
    pub fn new(progress: Arc<dyn Fn(String) + Send + Sync>) -> LiveOutput {
        let began = Instant::now();
        LiveOutput {
            began,
            passed_on: began - PASS_ON_EVERY,
            waiting: String::new(),
            has_left_out: false,
            progress,
        }
    }

    pub fn take(&mut self, text: &str, now: Instant) {
        self.waiting.push_str(text);
        if self.waiting.len() > PIECE_BYTES_MAX {
            let from = self.waiting.ceil_char_boundary(self.waiting.len() - PIECE_BYTES_MAX);
            self.waiting.drain(..from);
            self.has_left_out = true;
        }
        if self.due() <= now {
            self.pass_on(now);
        }
    }

    /// Waits until pending output is due; forever if there is none.
    pub async fn wait(&self) {
        match self.waiting.is_empty() {
            true => pending().await,
            false => sleep_until(self.due()).await,
        }
    }

    pub fn pass_on(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            return;
        }
        self.passed_on = now;
        let text = std::mem::take(&mut self.waiting);
        let head = if std::mem::take(&mut self.has_left_out) { LEFT_OUT } else { "" };
        (self.progress)(format!("{head}{text}"));
    }

    fn due(&self) -> Instant {
        self.passed_on
            + PASS_ON_EVERY.max(self.passed_on.saturating_duration_since(self.began) / PASS_ON_PART)
    }
}

/// Describes an end, without brackets, and returns its exit code as shells report it.
pub(super) fn ended(ending: CommandExit) -> (String, Option<i32>) {
    // Shells report the end by a signal as 128 plus its number.
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
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn fast_output_is_passed_on_in_few_bounded_pieces() {
        let pieces: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = pieces.clone();
        let mut live = LiveOutput::new(Arc::new(move |text| kept.lock().expect("not poisoned").push(text)));
        let mut now = Instant::now();
        for second in 0..60 {
            for _ in 0..100 {
                live.take(&format!("{second} {}\n", "x".repeat(1_000)), now);
            }
            now += Duration::from_secs(1);
        }
        live.pass_on(now);
        let pieces = pieces.lock().expect("not poisoned");
        assert!((20..=120).contains(&pieces.len()), "{}", pieces.len());
        assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES_MAX + LEFT_OUT.len()));
        assert!(pieces[0].starts_with("0 x"), "the first is passed on at once");
        assert!(pieces.last().is_some_and(|last| last.starts_with(LEFT_OUT) && last.contains("59 x")));
    }
}
