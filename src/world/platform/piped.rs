//! Commands with pipes for their three standard streams.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::group::{EndPolicy, RunningCommand};
use super::os::AsFd;
use super::pipe::{self, from_child, to_child};
use super::reaper::Reaper;
use super::sandbox::Confinement;

/// `ENOEXEC` on Unix, `ERROR_BAD_EXE_FORMAT` on Windows.
const NOT_A_PROGRAM: i32 = if cfg!(windows) { 193 } else { 8 };

/// A running command with this process's ends of its pipes.
pub struct Piped {
    pub running: RunningCommand,
    pub stdin: pipe::Sender,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
}

impl Piped {
    /// Starts a command in a directory with exactly the given environment and `PWD`, on a blocking thread, since
    /// fork and exec block. `policy` says how its group is ended. In a sandbox, it is the sandbox that has the directory
    /// to start in.
    pub async fn start(
        reaper: Arc<Reaper>,
        policy: EndPolicy,
        sandbox: Option<Confinement>,
        mut command: Command,
        cwd: &Path,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> io::Result<Piped> {
        command.current_dir(cwd).env_clear().envs(environment);
        // Otherwise a shell would find a wrong inherited value.
        command.env("PWD", cwd).env_remove("OLDPWD");
        let started = tokio::task::spawn_blocking(move || {
            let (stdin, child_stdin) = to_child()?;
            let (stdout, child_stdout) = from_child()?;
            let (stderr, child_stderr) = from_child()?;
            let running = match sandbox {
                Some(sandbox) => {
                    let streams = [child_stdin.as_fd(), child_stdout.as_fd(), child_stderr.as_fd()];
                    reaper.spawn_confined(&command, streams, policy, sandbox)?
                }
                None => {
                    command.stdin(Stdio::from(child_stdin));
                    command.stdout(Stdio::from(child_stdout));
                    command.stderr(Stdio::from(child_stderr));
                    reaper.spawn_with(&mut command, policy == EndPolicy::ClosedInput, policy)?
                }
            };
            // `command` owns this process's copies of the pipes' other ends; the reader gets no EOF while they are
            // open.
            drop(command);
            Ok(Piped { running, stdin, stdout, stderr })
        });
        started.await.unwrap_or_else(|_| Err(io::Error::other("the start was aborted")))
    }
}

/// Whether a file could not be started because it is neither a program nor a script with a `#!` line.
pub fn is_not_a_program(error: &io::Error) -> bool {
    error.raw_os_error() == Some(NOT_A_PROGRAM)
}
