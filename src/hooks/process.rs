//! Runs one process for a hook: what it gets, what is taken from it, and how it ends.
//!
//! The process leads a group of its own and has no terminal. It is done when it has ended itself: a child
//! that it left behind does not keep anybody waiting, and is ended with the rest of the group. The group
//! is also ended, TERM first and KILL after `KILL_GRACE`, at the time limit and when the future is
//! dropped. What is printed is never an error here; others read it.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::unix::pipe;

use super::output::{Exit, Ran};
use super::streams::{Feed, Keep, READ_BYTES, Stream};
use epitome_platform::group::{Ending, Running};
use epitome_platform::reaper::Reaper;
use epitome_tools::shell;

/// Bytes of stdout that are kept. A result is a small object; a whole history is some hundred kilobytes.
pub const STDOUT_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of stderr that are kept, the last ones: what went wrong stands at the end.
pub const STDERR_BYTES_MAX: usize = 64 * 1024;

/// How often a program is started again that somebody has open for writing, and how long apart: an
/// editor that saves it is done by then.
const BUSY_TRIES: u32 = 5;
const BUSY_WAIT: Duration = Duration::from_millis(20);

/// Bytes of a script that are looked at for its `#!` line: what the kernel looks at.
const SHEBANG_BYTES: u64 = 256;

/// One process to be run.
#[derive(Clone)]
pub struct Order {
    pub program: Program,
    /// Given to it and closed. A process that does not read it is none the worse.
    pub stdin: Vec<u8>,
    /// Where it runs; absolute.
    pub cwd: PathBuf,
    /// All of its environment, except for `PWD` and what is in `more`.
    pub environment: Arc<Vec<(OsString, OsString)>>,
    pub more: Vec<(&'static str, OsString)>,
    /// Its time. What is over is ended.
    pub limit: Duration,
    pub reaper: Arc<Reaper>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    File {
        /// Absolute.
        path: PathBuf,
        arguments: Vec<OsString>,
    },
    /// A line for the shell: bash where there is one, for which such lines are written.
    Line(String),
}

/// Runs it to its end: always `Ran::Ended`. The error is that it could not be started; its text is a
/// sentence for the person who wrote the hook.
///
/// Dropping the future ends the process and all that it started.
pub async fn run(order: Order) -> io::Result<Ran> {
    let limit = order.limit;
    let started = start(order).await?;
    Ok(started.follow(limit).await)
}

/// A process that runs, with its ends of pipes.
pub(super) struct Started {
    pub running: Running,
    pub stdin: Option<pipe::Sender>,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
    /// What of the order's stdin did not fit the pipe.
    unwritten: Vec<u8>,
}

/// Starts it, away from the thread that others are waiting for: a fork and an exec block.
pub(super) async fn start(order: Order) -> io::Result<Started> {
    let order = Arc::new(order);
    let spawned = unless_busy(|| {
        let order = order.clone();
        let spawned = tokio::task::spawn_blocking(move || spawn(&order));
        spawned.map(|spawned| spawned.unwrap_or_else(|_| Err(io::Error::other("the start broke off"))))
    });
    spawned.await.map_err(|error| explained(&order, error))?.adopt()
}

/// Tries again while the program is open for writing.
async fn unless_busy<T, F: Future<Output = io::Result<T>>>(mut attempt: impl FnMut() -> F) -> io::Result<T> {
    let mut tries = 0;
    loop {
        match attempt().await {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES => {
                tries += 1;
                tokio::time::sleep(BUSY_WAIT).await;
            }
            done => return done,
        }
    }
}

/// A started process before its pipes belong to the runtime.
struct Spawned {
    running: Running,
    stdin: Option<OwnedFd>,
    unwritten: Vec<u8>,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

fn spawn(order: &Order) -> io::Result<Spawned> {
    let mut command = match &order.program {
        Program::File { path, arguments } => {
            let mut command = Command::new(path);
            command.args(arguments);
            command
        }
        Program::Line(line) => {
            let mut command = Command::new(shell(&order.environment));
            command.arg("-c").arg(line);
            command
        }
    };
    let (child_stdin, stdin) = io::pipe()?;
    let (stdout, child_stdout) = io::pipe()?;
    let (stderr, child_stderr) = io::pipe()?;
    let stdin = OwnedFd::from(stdin);
    rustix::fs::fcntl_setfl(&stdin, rustix::fs::OFlags::NONBLOCK)?;
    // Most payloads fit the pipe: then there is nothing to be written later.
    let written = rustix::io::write(&stdin, &order.stdin).unwrap_or(0);
    command
        .current_dir(&order.cwd)
        .env_clear()
        .envs(order.environment.iter().map(|(name, value)| (name, value)));
    // A shell would look at it and find that it is somebody else's.
    command
        .env("PWD", &order.cwd)
        .env_remove("OLDPWD")
        .envs(order.more.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::from(OwnedFd::from(child_stdin)));
    command.stdout(Stdio::from(OwnedFd::from(child_stdout)));
    command.stderr(Stdio::from(OwnedFd::from(child_stderr)));
    let running = order.reaper.spawn(&mut command)?;
    // Our copies of the pipes' other ends go with `command`; while they are open there is no end.
    drop(command);
    let unwritten = order.stdin[written..].to_vec();
    Ok(Spawned { running, stdin: Some(stdin), unwritten, stdout: stdout.into(), stderr: stderr.into() })
}

impl Spawned {
    fn adopt(self) -> io::Result<Started> {
        Ok(Started {
            running: self.running,
            stdin: self.stdin.map(pipe::Sender::from_owned_fd).transpose()?,
            stdout: pipe::Receiver::from_owned_fd(self.stdout)?,
            stderr: pipe::Receiver::from_owned_fd(self.stderr)?,
            unwritten: self.unwritten,
        })
    }
}

impl Started {
    async fn follow(self, limit: Duration) -> Ran {
        let Started { mut running, stdin, stdout, stderr, unwritten } = self;
        let mut feed = Feed::new(stdin, unwritten);
        let mut stdout = Stream::new(stdout, Keep::Beginning(STDOUT_BYTES_MAX));
        let mut stderr = Stream::new(stderr, Keep::End(STDERR_BYTES_MAX));
        let mut buffer = vec![0; READ_BYTES];
        let limited = tokio::time::sleep(limit);
        tokio::pin!(limited);
        let exit = loop {
            // In this order, or a process that never stops writing would never be stopped.
            tokio::select! {
                biased;
                ending = &mut running.ending => break match ending.unwrap_or(Ending::Unknown) {
                    Ending::Code(code) => Exit::Code(code),
                    Ending::Signal(signal) => Exit::Signal(signal),
                    Ending::Unknown => Exit::Code(UNKNOWN_CODE),
                },
                () = &mut limited => break Exit::TimedOut(limit),
                got = stdout.ready() => stdout.take(got, &mut buffer),
                got = stderr.ready() => stderr.take(got, &mut buffer),
                () = feed.write() => {}
            }
        };
        stdout.take_leftover(&mut buffer);
        stderr.take_leftover(&mut buffer);
        // What is left of the group is ended when `running` is dropped; nobody waits for that.
        Ran::Ended { exit, stdout_cut: stdout.cut, stdout: stdout.kept, stderr: stderr.text() }
    }
}

/// Stands for the code of a process whose end the system would not tell.
const UNKNOWN_CODE: i32 = -1;

/// The error of a start as a sentence: the system's own words name neither the file nor what to do.
fn explained(order: &Order, error: io::Error) -> io::Error {
    let kind = error.kind();
    if !order.cwd.is_dir() {
        let sentence = format!("the directory {} is gone, and nothing can be run in it", order.cwd.display());
        return io::Error::new(kind, sentence);
    }
    let sentence = match &order.program {
        Program::Line(_) => format!("the shell cannot be started for it: {error}"),
        Program::File { path, .. } => unstartable(path, &error),
    };
    io::Error::new(kind, sentence)
}

fn unstartable(path: &Path, error: &io::Error) -> String {
    let shown = path.display();
    let interpreter = interpreter(path);
    match (path.metadata(), interpreter) {
        (Err(why), _) => format!("{shown} cannot be found: {why}"),
        (Ok(file), _) if !file.is_file() => format!("{shown} is not a file"),
        (Ok(file), _) if file.permissions().mode() & 0o111 == 0 => {
            format!("{shown} is not executable (chmod +x would make it so)")
        }
        (Ok(_), _) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
            format!("{shown} is open for writing somewhere, and cannot be run until it is closed")
        }
        (Ok(_), Some(interpreter)) => {
            format!("{shown} cannot be started with {interpreter}, which its first line names: {error}")
        }
        (Ok(_), None) if error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
            format!("{shown} is no program and has no first line like #!/bin/sh")
        }
        (Ok(_), None) => format!("{shown} cannot be started: {error}"),
    }
}

/// What the `#!` line of a script names.
fn interpreter(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut beginning = Vec::new();
    std::fs::File::open(path).ok()?.take(SHEBANG_BYTES).read_to_end(&mut beginning).ok()?;
    let line = beginning.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    String::from_utf8_lossy(line).split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// An editor that saves a hook has it open for a moment, in which the system refuses to run it.
    #[tokio::test]
    async fn what_is_open_for_writing_is_started_once_it_is_closed() {
        for (busy, expected) in
            [(0, Ok(1)), (2, Ok(3)), (BUSY_TRIES, Ok(BUSY_TRIES + 1)), (u32::MAX, Err(()))]
        {
            let tries = Cell::new(0);
            let started = unless_busy(async || {
                tries.set(tries.get() + 1);
                match tries.get() > busy {
                    true => Ok(tries.get()),
                    false => Err(io::ErrorKind::ExecutableFileBusy.into()),
                }
            });
            assert_eq!(started.await.map_err(drop), expected, "busy {busy} times");
        }
    }

    #[tokio::test]
    async fn other_errors_are_not_tried_again() {
        let tries = Cell::new(0);
        let started: io::Result<()> = unless_busy(async || {
            tries.set(tries.get() + 1);
            Err(io::ErrorKind::NotFound.into())
        })
        .await;
        assert!(started.is_err());
        assert_eq!(tries.get(), 1);
    }
}
