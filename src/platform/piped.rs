//! Commands with pipes for their three standard streams.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::io::Errno;
use tokio::net::unix::pipe;

use super::group::{EndPolicy, RunningCommand};
use super::reaper::Reaper;
use super::sandbox::Confinement;

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
            let (child_stdin, stdin) = io::pipe()?;
            let (stdout, child_stdout) = io::pipe()?;
            let (stderr, child_stderr) = io::pipe()?;
            let running = match sandbox {
                Some(sandbox) => {
                    let streams = [child_stdin.as_fd(), child_stdout.as_fd(), child_stderr.as_fd()];
                    reaper.spawn_confined(&command, streams, policy, sandbox)?
                }
                None => {
                    command.stdin(Stdio::from(OwnedFd::from(child_stdin)));
                    command.stdout(Stdio::from(OwnedFd::from(child_stdout)));
                    command.stderr(Stdio::from(OwnedFd::from(child_stderr)));
                    match policy {
                        EndPolicy::Terminate => reaper.spawn(&mut command),
                        EndPolicy::ClosedInput => reaper.spawn_server(&mut command),
                    }?
                }
            };
            // `command` owns this process's copies of the pipes' other ends; the reader gets no EOF while they are
            // open.
            drop(command);
            Ok(Piped {
                running,
                stdin: pipe::Sender::from_owned_fd(stdin.into())?,
                stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
                stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
            })
        });
        started.await.unwrap_or_else(|_| Err(io::Error::other("the start was aborted")))
    }
}

/// Reads the data that is available in a pipe, even if the runtime has not been notified of it yet.
pub fn read_available(pipe: &pipe::Receiver, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::read(pipe.as_fd(), &mut *buffer) {
            Err(Errno::INTR) => {}
            read => return Ok(read?),
        }
    }
}

/// Whether a file could not be started because it is neither a program nor a script with a `#!` line.
pub fn is_not_a_program(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error())
}
