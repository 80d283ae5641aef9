//! Runs one process for a hook: its input, its bounded output, and how it ends.
//!
//! The process leads its own process group and has no terminal. A run ends with the process itself: a child
//! left behind delays nothing and is terminated with the rest of the group. The group is also terminated,
//! with TERM first and KILL after `KILL_GRACE`, at the time limit and when the future is dropped. Output is
//! never an error here; it is interpreted elsewhere.

use epitome_platform::os::PermissionsExt;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::digest::{ApprovedScript, PinError};
use super::hook::HookOrigin;
use super::output::{ProcessExit, RawOutcome};
use super::read::shown;
use super::streams::{Feed, KeptPart, OutputStream, READ_BYTES};
use epitome_platform::blocking;
use epitome_platform::group::{CommandExit, EndPolicy, RunningCommand};
use epitome_platform::piped::{Piped, is_not_a_program};
use epitome_platform::program::shell;
use epitome_platform::reaper::Reaper;
use epitome_platform::sandbox::Confinement;
use epitome_platform::sealed::SealedProgram;
use epitome_tools::Workspace;
use epitome_tools::sandbox::{self, GitChanges, SandboxRules};

/// Maximum bytes of stdout that are kept. A result is a small object; a complete history takes several hundred
/// kilobytes.
pub const STDOUT_BYTES_MAX: usize = 1024 * 1024;

/// Maximum bytes of stderr that are kept, from the end, where the cause of a failure is.
pub const STDERR_BYTES_MAX: usize = 64 * 1024;

/// How many times, and after which delay, starting a program that is open for writing is retried: an editor
/// has finished saving by then.
const BUSY_TRIES: u32 = 5;
const BUSY_WAIT: Duration = Duration::from_millis(20);

/// Bytes of a script that are searched for its `#!` line, as many as the kernel reads.
const SHEBANG_BYTES: u64 = 256;

/// One process to run.
#[derive(Clone)]
pub struct ProcessSpec {
    pub program: HookProgram,
    /// Written to stdin, which is then closed. A process need not read it.
    pub stdin: Vec<u8>,
    /// Working directory; absolute.
    pub cwd: PathBuf,
    /// The complete environment, except for `PWD` and `more`.
    pub environment: Arc<Vec<(OsString, OsString)>>,
    pub more: Vec<(&'static str, OsString)>,
    /// Time limit, after which the process is terminated.
    pub limit: Duration,
    pub reaper: Arc<Reaper>,
    /// Its sandbox; `None` for the user's own.
    pub sandbox: Option<HookSandbox>,
}

/// The sandbox of a repository's hook. The user has consented to its line and to the files that it names, but these start
/// and read others, which a command may have changed since.
#[derive(Clone)]
pub struct HookSandbox {
    pub rules: Arc<SandboxRules>,
    pub workspace: Arc<Workspace>,
    /// Files of Epitome's that the hook may read and change.
    pub own_files: Vec<PathBuf>,
    /// If this is all that it runs, it runs outside.
    pub approved: Option<ApprovedScript>,
}

/// How a program starts: in a sandbox with additional variables, or as a copy of what the user approved, which has to exist
/// until the program runs.
#[derive(Default)]
struct HookStart {
    sandbox: Option<Confinement>,
    variables: Vec<(OsString, OsString)>,
    copy: Option<SealedProgram>,
}

impl HookSandbox {
    /// The sandbox for executables of this origin; `None` for the user's own, and if the sandbox is off.
    pub fn of(
        origin: HookOrigin,
        rules: &Arc<SandboxRules>,
        workspace: &Workspace,
        own_files: Vec<PathBuf>,
        approved: Option<ApprovedScript>,
    ) -> Option<HookSandbox> {
        let (rules, workspace) = (rules.clone(), Arc::new(workspace.clone()));
        (origin.is_repository() && rules.enabled).then_some(HookSandbox {
            rules,
            workspace,
            own_files,
            approved,
        })
    }

    /// Reads the disk and blocks. Fails if an approved script was changed.
    fn prepare(self) -> io::Result<HookStart> {
        let is_trusted = |program: &Path| sandbox::is_of_user(program, &self.workspace);
        let copy = self.approved.map_or(Ok(None), |approved| approved.copy(is_trusted));
        let copy = copy.map_err(io::Error::other)?;
        if copy.is_some() {
            return Ok(HookStart { copy, ..HookStart::default() });
        }
        let made = sandbox::confinement(&self.rules, &self.workspace, GitChanges::None);
        let own = self.own_files.iter().filter_map(|file| file.canonicalize().ok());
        Ok(made.map_or_else(HookStart::default, |mut made| {
            made.confinement.paths.writable.extend(own);
            HookStart { sandbox: Some(made.confinement), variables: made.variables, copy: None }
        }))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookProgram {
    File {
        /// Absolute.
        path: PathBuf,
        arguments: Vec<OsString>,
    },
    /// A shell command line. Run with bash if available, since such lines are usually written for it.
    Line(String),
}

/// Runs the process to its end; always returns `RawOutcome::Ended`. Fails if the process could not be started, with
/// a message for the author of the hook.
///
/// Dropping the future terminates the process and everything that it started.
pub async fn run(spec: ProcessSpec) -> io::Result<RawOutcome> {
    let mut process = FollowedProcess::start(&spec).await?;
    let exit = process.wait(spec.limit, |_| false).await;
    Ok(process.end(exit.unwrap_or(ProcessExit::Code(UNKNOWN_CODE))))
}

/// Why a program has no output that can be used.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error(transparent)]
    Start(#[from] io::Error),
    #[error("it could not be run")]
    NotRun,
    #[error("it printed more than {STDOUT_BYTES_MAX} bytes")]
    TooLong,
    #[error("it {exit}{}", last_line.as_ref().map_or(String::new(), |line| format!(": {line}")))]
    Ended { exit: ProcessExit, last_line: Option<String> },
}

/// The standard output of a program that has ended with code 0.
pub fn stdout_of(ran: RawOutcome) -> Result<Vec<u8>, ProgramError> {
    match ran {
        RawOutcome::Ended { exit: ProcessExit::Code(0), stdout_cut: true, .. } => Err(ProgramError::TooLong),
        RawOutcome::Ended { exit: ProcessExit::Code(0), stdout, .. } => Ok(stdout),
        RawOutcome::Ended { exit, stderr, .. } => {
            let last_line = stderr.lines().rev().map(str::trim).find(|line| !line.is_empty());
            Err(ProgramError::Ended { exit, last_line: last_line.map(shown) })
        }
        _ => Err(ProgramError::NotRun),
    }
}

/// Starts the process.
pub(super) async fn start(spec: &ProcessSpec) -> io::Result<Piped> {
    let started = unless_busy(async || {
        let HookStart { sandbox, variables, copy } = match spec.sandbox.clone() {
            Some(sandbox) => blocking::run(move || sandbox.prepare()).await?,
            None => HookStart::default(),
        };
        let environment = spec.environment.iter().cloned();
        let more = spec.more.iter().map(|(name, value)| (OsString::from(name), value.clone()));
        let environment = environment.chain(variables).chain(more);
        let command = match &copy {
            Some(copy) => spec.program.command_of_copy(copy),
            None => spec.program.command(&spec.environment),
        };
        Piped::start(spec.reaper.clone(), EndPolicy::Terminate, sandbox, command, &spec.cwd, environment)
            .await
    });
    started.await.map_err(|error| explained(spec, error))
}

/// Retries the start while the program is open for writing.
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

impl HookProgram {
    /// An executable that follows the contract of hooks, called with `run`.
    pub fn script(path: &Path) -> HookProgram {
        HookProgram::File { path: path.to_path_buf(), arguments: vec!["run".into()] }
    }

    /// Runs the copy instead of the file. A line that is only a script has no arguments.
    fn command_of_copy(&self, copy: &SealedProgram) -> Command {
        let mut command = copy.command();
        if let HookProgram::File { arguments, .. } = self {
            command.args(arguments);
        }
        command
    }

    fn command(&self, environment: &[(OsString, OsString)]) -> Command {
        match self {
            HookProgram::File { path, arguments } => {
                let mut command = Command::new(path);
                command.args(arguments);
                command
            }
            HookProgram::Line(line) => {
                let mut command = Command::new(shell(environment));
                command.arg("-c").arg(line);
                command
            }
        }
    }
}

/// A running process, with its output so far. Dropping it terminates the process.
pub(super) struct FollowedProcess {
    running: RunningCommand,
    feed: Feed,
    pub stdout: OutputStream,
    stderr: OutputStream,
}

impl FollowedProcess {
    /// Starts the process.
    pub async fn start(spec: &ProcessSpec) -> io::Result<FollowedProcess> {
        let Piped { running, stdin, stdout, stderr } = start(spec).await?;
        Ok(FollowedProcess {
            running,
            feed: Feed::new(stdin, spec.stdin.clone()),
            stdout: OutputStream::new(stdout, KeptPart::Beginning(STDOUT_BYTES_MAX)),
            stderr: OutputStream::new(stderr, KeptPart::End(STDERR_BYTES_MAX)),
        })
    }

    /// Waits for the process to end. Returns `None` if its output moves it to the background (`lets_go`).
    pub async fn wait(&mut self, limit: Duration, lets_go: impl Fn(&[u8]) -> bool) -> Option<ProcessExit> {
        let mut buffer = vec![0; READ_BYTES];
        let limited = tokio::time::sleep(limit);
        tokio::pin!(limited);
        loop {
            // In this order; otherwise a process that writes continuously would never be terminated.
            tokio::select! {
                biased;
                ending = &mut self.running.ending => return Some(match ending.unwrap_or(CommandExit::Unknown) {
                    CommandExit::Code(code) => ProcessExit::Code(code),
                    CommandExit::Signal(signal) => ProcessExit::Signal(signal),
                    CommandExit::Unknown => ProcessExit::Code(UNKNOWN_CODE),
                }),
                () = &mut limited => return Some(ProcessExit::TimedOut(limit)),
                got = self.stdout.ready() => {
                    self.stdout.take(got, &mut buffer);
                    if lets_go(&self.stdout.kept) {
                        return None;
                    }
                }
                got = self.stderr.ready() => self.stderr.take(got, &mut buffer),
                () = self.feed.write() => {}
            }
        }
    }

    /// Returns its outcome, and ends its remaining child processes.
    pub fn end(mut self, exit: ProcessExit) -> RawOutcome {
        let mut buffer = vec![0; READ_BYTES];
        self.stdout.take_leftover(&mut buffer);
        self.stderr.take_leftover(&mut buffer);
        let FollowedProcess { stdout, stderr, .. } = self;
        // Dropping `running` terminates the rest of the group, without waiting for it.
        RawOutcome::Ended { exit, stdout_cut: stdout.cut, stdout: stdout.kept, stderr: stderr.text() }
    }
}

/// The exit code of a process if the system did not report one.
const UNKNOWN_CODE: i32 = -1;

/// Explains a failed start: the system's error names neither the file nor a remedy.
fn explained(spec: &ProcessSpec, error: io::Error) -> io::Error {
    let sentence = match &spec.program {
        _ if !spec.cwd.is_dir() => {
            format!("the directory {} no longer exists, so nothing can run in it", spec.cwd.display())
        }
        _ if error.get_ref().is_some_and(|error| error.is::<PinError>()) => error.to_string(),
        HookProgram::Line(_) => format!("the shell cannot be started for it: {error}"),
        HookProgram::File { path, .. } => unstartable(path, &error),
    };
    io::Error::new(error.kind(), sentence)
}

fn unstartable(path: &Path, error: &io::Error) -> String {
    let shown = path.display();
    match (path.metadata(), interpreter_line(path)) {
        (Err(why), _) => format!("{shown} cannot be found: {why}"),
        (Ok(file), _) if !file.is_file() => format!("{shown} is not a file"),
        (Ok(file), _) if file.permissions().mode() & 0o111 == 0 => {
            format!("{shown} is not executable (chmod +x would make it so)")
        }
        (Ok(_), _) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
            format!("{shown} is open for writing somewhere, and cannot be run until it is closed")
        }
        (Ok(_), Some(line)) if line.ends_with('\r') => format!(
            "{shown} has the line endings of Windows, so its first line names no program (sed -i 's/\\r$//' {shown} \
             corrects them)"
        ),
        (Ok(_), Some(line)) => {
            let interpreter = line.split_whitespace().next().unwrap_or_default();
            format!("{shown} cannot be started with {interpreter}, which its first line names: {error}")
        }
        (Ok(_), None) if is_not_a_program(error) => {
            format!("{shown} is neither a program nor a script that begins with a line such as #!/bin/sh")
        }
        (Ok(_), None) => format!("{shown} cannot be started: {error}"),
    }
}

/// The text behind `#!` in the first line of a script.
fn interpreter_line(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut beginning = Vec::new();
    std::fs::File::open(path).ok()?.take(SHEBANG_BYTES).read_to_end(&mut beginning).ok()?;
    let line = beginning.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    (!line.trim().is_empty()).then(|| line.into_owned())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// An editor that saves a hook briefly opens it for writing, during which the system refuses to run it.
    #[tokio::test]
    async fn a_busy_executable_is_started_once_it_is_closed() {
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
    async fn other_start_errors_are_not_retried() {
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
