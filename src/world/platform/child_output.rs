//! Runs a command to its end and returns what it prints, within limits of time and size.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::os::{CommandExt as _, for_programs, kill_group};
use super::program::without_changeable;

/// The longest time between two looks at a command.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// Limits of a command.
pub struct OutputLimits<'a> {
    pub time: Duration,
    /// Bytes of each of its two outputs that are returned.
    pub bytes: u64,
    /// Another limit: returns why the command has to end.
    pub is_over: &'a dyn Fn() -> Option<String>,
}

/// Prepares Git without hooks and questions. A repository's content can configure both, for example with
/// `core.hooksPath`, and must not make this process run it.
pub fn git(arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    let options = ["core.hooksPath=/dev/null", "core.fsmonitor=false", "protocol.ext.allow=never"];
    // Nothing may continue in the background.
    for option in options.into_iter().chain(["gc.auto=0", "maintenance.auto=false"]) {
        command.args(["-c", option]);
    }
    command.args(arguments);
    command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_ASKPASS", "true").env("LC_ALL", "C");
    for variable in ["GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(variable);
    }
    command
}

/// Why a command has no output.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error("{program} can't be run: {source}")]
    Run { program: String, source: io::Error },
    #[error("{program} takes more than {} seconds", limit.as_secs())]
    Late { program: String, limit: Duration },
    /// Another limit was reached.
    #[error("{0}")]
    Over(String),
    #[error("{}", if message.is_empty() { format!("{program} failed") } else { message.clone() })]
    Failed { program: String, message: String },
}

/// Removes the variables from the environment of a command, and the directories from its `PATH`, with which it would run or
/// obey what is in this directory or in repositories.
pub fn keep_from_workspace(command: &mut Command, directory: &Path) {
    // This process was started by an editor, whose variables may name what is in repositories.
    let own: Vec<_> = std::env::vars_os().collect();
    let set: Vec<_> =
        command.get_envs().map(|(name, value)| (name.to_owned(), value.map(OsStr::to_owned))).collect();
    let temporary = std::env::temp_dir();
    let home = std::env::home_dir();
    let is_in_home =
        |path: &Path| home.as_ref().is_some_and(|home| *home != temporary && path.starts_with(home));
    let is_changeable = |path: &Path| {
        (directory.parent().is_some() && path.starts_with(directory))
            || (path.starts_with(&temporary) && !is_in_home(path))
    };
    command.env_clear().envs(without_changeable(&own, home.as_deref(), is_changeable));
    for (name, value) in set {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

/// Runs a command that must not run what is in this directory, in it, and returns what it printed.
pub fn output_of(
    mut command: Command,
    directory: &Path,
    limits: &OutputLimits<'_>,
) -> Result<String, OutputError> {
    command.current_dir(for_programs(directory));
    keep_from_workspace(&mut command, directory);
    output_within(command, limits)
}

/// Runs a command and returns what it printed.
pub fn output_within(mut command: Command, limits: &OutputLimits<'_>) -> Result<String, OutputError> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |source| OutputError::Run { program: program.clone(), source };
    let mut child = command.spawn().map_err(failed)?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (out, err) = (reader(out, limits.bytes), reader(err, limits.bytes));
    let since = Instant::now();
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if since.elapsed() > limits.time => {
                end(child);
                return Err(OutputError::Late { program, limit: limits.time });
            }
            None => match (limits.is_over)() {
                Some(why) => {
                    end(child);
                    return Err(OutputError::Over(why));
                }
                None => std::thread::sleep((since.elapsed() / 4).clamp(Duration::from_millis(1), LOOK_MAX)),
            },
        }
    };
    let (out, err) = (text(out), text(err));
    match status.success() {
        true => Ok(out),
        false => Err(OutputError::Failed { program, message: err.trim().to_owned() }),
    }
}

type PipeReader = JoinHandle<Vec<u8>>;

/// Reads a pipe to its end, so that the command never waits for it, and keeps its first bytes.
fn reader(pipe: Option<impl Read + Send + 'static>, bytes: u64) -> PipeReader {
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let Some(mut pipe) = pipe else { return kept };
        // A read error ends the output.
        drop((&mut pipe).take(bytes).read_to_end(&mut kept));
        drop(io::copy(&mut pipe, &mut io::sink()));
        kept
    })
}

fn text(reader: PipeReader) -> String {
    String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
}

fn end(mut child: Child) {
    kill_group(&mut child);
    drop(child.wait());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Agents waited without a limit for `/pin` in a session that another process held.
    #[test]
    fn a_command_that_does_not_end_is_ended_with_all_that_it_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & wait"]);
        let limits = OutputLimits { time: Duration::from_millis(20), bytes: 100, is_over: &|| None };
        let error = output_within(command, &limits).expect_err("it runs for too long");
        assert!(matches!(error, OutputError::Late { .. }), "{error}");
    }
}
