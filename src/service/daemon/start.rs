//! Starts the daemon, detached from its starter, so that it survives when the host kills the starter's
//! process group, session or process tree.
//!
//! The starter gets the result immediately: the daemon's stdout is a socket pair on which the daemon writes
//! one line and which it then closes. The daemon inherits nothing else from the starter, not even its
//! environment: each attachment brings the environment that its sessions need.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use epitome_platform::COMMAND_VARIABLE;
use epitome_platform::local::pair_with_child;
use epitome_platform::os::{CommandExt, SYSTEM_VARIABLES};
pub use epitome_platform::process::this_program;
use epitome_platform::process::{start_detached, take_stdout};
use epitome_session::suspended::REST_VARIABLE;

/// The arguments that run the daemon itself.
pub const ARGUMENTS: [&str; 2] = ["daemon", "serve"];

/// Time limit for a daemon to report that it is ready, including any wait for its predecessor to exit. If it exits, the
/// starter knows immediately.
pub const READY_TIME_MAX: Duration = Duration::from_secs(60);

/// Time after which a slow daemon is reported.
pub const SLOW_AFTER: Duration = Duration::from_secs(5);

/// Longest line that a starting daemon may write, in bytes.
const LINE_BYTES_MAX: u64 = 4096;

/// Line written by a daemon that accepts connections.
const READY: &str = "ready";

/// Environment variables that the daemon itself uses. API keys are excluded: they belong to sessions.
const NAMES: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TMPDIR",
    "TZ",
    "EPITOME_HOME",
    "EPITOME_LOG",
    "KODELET_LOG_LEVEL",
    // A daemon started by a command serves that command and ends with it.
    COMMAND_VARIABLE,
];

/// Prefixes of further variables that the daemon uses. `PG` are those of PostgreSQL's clients, such as `PGPASSWORD`.
const PREFIXES: [&str; 4] = ["LC_", "XDG_", "SSL_CERT_", "PG"];

fn is_for_daemon(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    [super::serve::IDLE_VARIABLE, REST_VARIABLE].contains(&name)
        || NAMES.contains(&name)
        || SYSTEM_VARIABLES.contains(&name)
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Why a daemon was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the daemon could not be started: {0}")]
    Process(#[from] io::Error),
    #[error("the daemon exited during startup; `epitome daemon logs` may say why")]
    Exited,
    /// The daemon's own description of its failure.
    #[error("{0}")]
    Reported(String),
    #[error("the daemon did not say that it is ready: {0}")]
    NoReport(#[source] io::Error),
}

/// Starts a daemon and waits until it accepts connections.
pub fn start(
    program: &Path,
    environment: &[(OsString, OsString)],
    notices: SlowNotices,
) -> Result<(), StartError> {
    let (ours, theirs) = pair_with_child()?;
    let mut command = Command::new(program);
    command
        .arg0("epitome")
        .args(ARGUMENTS)
        .current_dir("/")
        .env_clear()
        .envs(environment.iter().filter(|(name, _)| is_for_daemon(name)).map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(theirs)
        .stderr(Stdio::null());
    let mut child = start_detached(&mut command)?;
    // The command still holds our copy of the daemon's end of the socket.
    drop(command);
    // On Unix, the child exits immediately; the daemon is its child. Elsewhere it is the daemon.
    if cfg!(unix) {
        child.wait()?;
    }
    let mut line = String::new();
    let mut reader = BufReader::new((&ours).take(LINE_BYTES_MAX));
    ours.set_read_timeout(Some(SLOW_AFTER))?;
    let read = match reader.read_line(&mut line) {
        Err(error) if is_timeout(&error) => {
            notices.report("the daemon is still starting");
            ours.set_read_timeout(Some(READY_TIME_MAX - SLOW_AFTER))?;
            reader.read_line(&mut line)
        }
        read => read,
    };
    match read {
        Ok(_) if line.trim_end() == READY => Ok(()),
        Ok(0) => Err(StartError::Exited),
        Ok(_) => Err(StartError::Reported(line.trim_end().to_owned())),
        Err(error) => Err(StartError::NoReport(error)),
    }
}

/// The outputs that report a slow daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowNotices {
    /// In the log and on standard error.
    StandardError,
    /// In the log only: something has the whole terminal.
    LogOnly,
}

impl SlowNotices {
    /// Reports why a daemon is being waited for.
    pub fn report(self, what: &str) {
        tracing::warn!("{what}; waiting");
        if self == SlowNotices::StandardError {
            eprintln!("epitome: {what}; waiting at most {} s", READY_TIME_MAX.as_secs());
        }
    }
}

/// Whether a read failed because it timed out.
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Called in the daemon: reports the result to the starter and closes the socket to it. `why` in `outcome` is
/// the reason for a failed start.
pub fn report_to_starter(outcome: Result<(), &str>) {
    let line = match outcome {
        Ok(()) => READY,
        Err(why) => why.lines().next().unwrap_or_default(),
    };
    let Ok(mut stdout) = take_stdout() else { return };
    // The starter may have exited already.
    drop(stdout.write_all(format!("{line}\n").as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_keys_are_not_passed_to_the_daemon() {
        for (name, goes) in [
            ("PATH", true),
            ("EPITOME_HOME", true),
            ("EPITOME_IDLE_S", true),
            ("EPITOME_REST_S", true),
            ("XDG_RUNTIME_DIR", true),
            ("LC_ALL", true),
            ("SSL_CERT_FILE", true),
            ("ANTHROPIC_API_KEY", false),
            ("EPITOME_MODEL", false),
            ("EPITOME_LOCAL_URL", false),
            ("HTTPS_PROXY", false),
            ("MY_PATH", false),
        ] {
            assert_eq!(is_for_daemon(OsStr::new(name)), goes, "{name}");
        }
    }

    #[test]
    fn a_failed_start_reports_the_reason() {
        let why = start(Path::new("/no/such/program"), &[], SlowNotices::LogOnly)
            .expect_err("there is no such program");
        assert!(why.to_string().contains("could not be started"), "{why}");
        let ended = start(Path::new("/bin/true"), &[], SlowNotices::LogOnly).expect_err("it says nothing");
        assert!(ended.to_string().contains("exited during startup"), "{ended}");
        let said =
            start(Path::new("/bin/echo"), &[], SlowNotices::LogOnly).expect_err("it says something else");
        assert_eq!(said.to_string(), "daemon serve");
    }
}
