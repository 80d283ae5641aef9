//! The agent under test: a child process, or anything else with an input and an output.
//!
//! Separate threads read and write lines, so that neither direction can block the execution of a fixture.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use epitome_platform::os::{CommandExt as _, SYSTEM_VARIABLES, kill_group};
use parking_lot::Mutex;

/// Maximum bytes of one line of the agent. The strictest known client reads at most 10 MiB.
const LINE_BYTES_MAX: u64 = 10 * 1024 * 1024;

/// Maximum queued lines from the agent.
const LINES_WAITING_MAX: usize = 65_536;

/// Maximum queued lines to the agent.
const LINES_TO_WRITE_MAX: usize = 64;

/// Maximum bytes of the agent's newest error output that are kept for a report.
const ERROR_OUTPUT_BYTES_MAX: usize = 4096;

/// How long the daemon of an Epitome that is checked stays without a window.
const IDLE_SECONDS: &str = "1";

/// Timeout for an agent's exit after its input is closed. Editors kill it after one to five seconds.
pub const EXIT_WITHIN: Duration = Duration::from_secs(5);

/// The home directory of an agent.
#[derive(Clone, Debug)]
pub enum AgentHome {
    Users,
    Given(PathBuf),
    /// A new one for each rule and fixture.
    New,
}

/// The directories and the additional environment variables of an agent.
#[derive(Clone, Debug)]
pub struct AgentEnvironment {
    pub workspace: PathBuf,
    pub home: PathBuf,
    pub variables: Vec<(String, OsString)>,
}

impl AgentEnvironment {
    /// Creates the directories for one rule or fixture. They are removed with the returned one. An agent may leave a process
    /// that serves all its windows: such a process must not serve the user's own windows from another home, so it gets
    /// another directory for its sockets, and that of Epitome ends soon.
    pub(crate) fn create(home: &AgentHome) -> io::Result<(AgentEnvironment, tempfile::TempDir)> {
        // Canonical, because tools resolve symbolic links.
        let base = std::env::temp_dir().canonicalize()?;
        let scratch = tempfile::Builder::new().prefix("acp-check-").tempdir_in(base)?;
        let path = match home {
            AgentHome::Users | AgentHome::New => scratch.path().join("home"),
            AgentHome::Given(path) => path.clone(),
        };
        let (workspace, sockets) = (scratch.path().join("workspace"), scratch.path().join("run"));
        [&path, &workspace, &sockets].into_iter().try_for_each(std::fs::create_dir_all)?;
        let mut variables = vec![("EPITOME_IDLE_S".to_owned(), IDLE_SECONDS.into())];
        if !matches!(home, AgentHome::Users) {
            variables.push(("HOME".to_owned(), path.clone().into()));
            variables.push(("XDG_RUNTIME_DIR".to_owned(), sockets.into()));
        }
        Ok((AgentEnvironment { workspace, home: path, variables }, scratch))
    }
}

/// Starts agents.
pub trait Launch {
    fn launch(&self, surroundings: &AgentEnvironment) -> io::Result<LaunchedAgent>;
}

/// A running agent.
pub struct LaunchedAgent {
    pub input: Box<dyn Write + Send>,
    pub output: Box<dyn Read + Send>,
    pub errors: Option<Box<dyn Read + Send>>,
    /// Kills the agent. Called once, when the connection is dropped.
    pub kill: Box<dyn FnMut() + Send>,
}

/// A command that starts an agent.
#[derive(Clone, Debug)]
pub struct AgentProgram {
    pub command: OsString,
    pub arguments: Vec<OsString>,
    /// The variables that the agent inherits; Epitome's own tests restrict them.
    pub inherits: Inherits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherits {
    Everything,
    /// Only `PATH`.
    PathAlone,
}

impl Launch for AgentProgram {
    fn launch(&self, surroundings: &AgentEnvironment) -> io::Result<LaunchedAgent> {
        let mut command = Command::new(&self.command);
        command.args(&self.arguments).current_dir(&surroundings.workspace);
        match self.inherits {
            Inherits::Everything => {}
            Inherits::PathAlone => {
                command.env_clear();
                let kept = SYSTEM_VARIABLES.iter().copied().chain(["PATH"]);
                command.envs(kept.filter_map(|name| Some((name, std::env::var_os(name)?))));
            }
        }
        command.envs(surroundings.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        let mut child = command.spawn()?;
        let missing = || io::Error::other("the child has no pipe");
        let input = child.stdin.take().ok_or_else(missing)?;
        let output = child.stdout.take().ok_or_else(missing)?;
        let errors = child.stderr.take().ok_or_else(missing)?;
        let kill = move || {
            // The group also contains descendants that the agent has left.
            kill_group(&mut child);
            let _ = child.wait();
        };
        Ok(LaunchedAgent {
            input: Box::new(input),
            output: Box::new(output),
            errors: Some(Box::new(errors)),
            kill: Box::new(kill),
        })
    }
}

/// The connection to a running agent.
pub(crate) struct AgentConnection {
    to: Option<SyncSender<Vec<u8>>>,
    from: Receiver<Vec<u8>>,
    errors: Arc<Mutex<Vec<u8>>>,
    kill: Box<dyn FnMut() + Send>,
}

impl AgentConnection {
    pub(crate) fn begin(running: LaunchedAgent) -> AgentConnection {
        let LaunchedAgent { mut input, output, errors, kill } = running;
        let (to, lines) = mpsc::sync_channel::<Vec<u8>>(LINES_TO_WRITE_MAX);
        std::thread::spawn(move || {
            for mut line in lines {
                line.push(b'\n');
                // The end of the agent's output reports that it has ended.
                if input.write_all(&line).and_then(|()| input.flush()).is_err() {
                    return;
                }
            }
        });
        let (received, from) = mpsc::sync_channel(LINES_WAITING_MAX);
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            loop {
                let mut line = Vec::new();
                let read = output.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
                if !matches!(read, Ok(count) if count > 0) {
                    return;
                }
                if line.last() == Some(&b'\n') {
                    line.pop();
                }
                if received.send(line).is_err() {
                    return;
                }
            }
        });
        let kept = Arc::new(Mutex::new(Vec::new()));
        if let Some(mut errors) = errors {
            let kept = kept.clone();
            std::thread::spawn(move || {
                let mut some = [0; 1024];
                while let Ok(count @ 1..) = errors.read(&mut some) {
                    let mut kept = kept.lock();
                    kept.extend_from_slice(&some[..count]);
                    let surplus = kept.len().saturating_sub(ERROR_OUTPUT_BYTES_MAX);
                    kept.drain(..surplus);
                }
            });
        }
        AgentConnection { to: Some(to), from, errors: kept, kill }
    }

    /// Queues a line for the agent. Write errors are ignored: the response will be missing.
    pub(crate) fn send(&self, line: Vec<u8>) {
        if let Some(to) = &self.to {
            let _ = to.send(line);
        }
    }

    /// Receives a line, without its newline. `Disconnected`: the agent has closed its output.
    pub(crate) fn receive(&self, within: Duration) -> Result<Vec<u8>, RecvTimeoutError> {
        self.from.recv_timeout(within)
    }

    /// Closes the agent's input, as an exiting editor does.
    pub(crate) fn close(&mut self) {
        self.to = None;
    }

    /// Returns the newest error output.
    pub(crate) fn errors(&self) -> String {
        let kept = self.errors.lock();
        String::from_utf8_lossy(&kept).trim().to_owned()
    }
}

impl Drop for AgentConnection {
    fn drop(&mut self) {
        self.to = None;
        (self.kill)();
    }
}
