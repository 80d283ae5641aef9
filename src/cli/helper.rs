//! Programs of their own, beside this one: `epitome NAME` runs `epitome-NAME`.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{CliContext as _, CliError};
use epitome_acp::connection::{LineDirection, Tap};
use epitome_platform::os::OpenOptionsExt;
use epitome_platform::program::{MissingHelper, helper};

/// The programs of this workspace: the command, the program, and what it is for. Others are found in the same way.
pub const PROGRAMS: [(&str, &str, &str); 3] = [
    ("ahp", "epitome-ahp", "Serve clients of the Agent Host Protocol"),
    ("check", CHECK, "Test any ACP agent with protocol fixtures"),
    ("import", "epitome-import", "Read the sessions of other agents"),
];

/// Runs the program that compacts transcripts of other agents if `compact` has the option `--from`; `None` otherwise.
pub fn compact_transcript(arguments: &[OsString]) -> Option<Result<i32, CliError>> {
    let (name, arguments) = arguments.split_first()?;
    let is_from = |argument: &OsString| {
        argument.to_str().is_some_and(|text| text == "--from" || text.starts_with("--from="))
    };
    if name != "compact" || !arguments.iter().any(is_from) {
        return None;
    }
    let program = helper("epitome-compact").map_err(CliError::from);
    Some(program.and_then(|program| replaced_by(&program, arguments)))
}

/// The conformance suite, which owns the format of transcripts.
const CHECK: &str = "acp-check";

impl From<MissingHelper> for CliError {
    fn from(missing: MissingHelper) -> CliError {
        CliError::failed(missing.to_string()).hint(missing.hint())
    }
}

/// Runs the program of a command that is not built in, in place of this process where the system can; `None` if there is no
/// such command.
pub fn run(arguments: &[OsString]) -> Option<Result<i32, CliError>> {
    let (name, arguments) = arguments.split_first()?;
    let name = name.to_str()?;
    let known = PROGRAMS.iter().find(|(command, ..)| *command == name).map(|(_, program, _)| *program);
    let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let own = format!("epitome-{name}");
    match (helper(known.unwrap_or(&own)), known) {
        (Ok(program), known) if known.is_some() || is_name => Some(replaced_by(&program, arguments)),
        (Err(missing), Some(_)) => Some(Err(missing.into())),
        (Ok(_) | Err(_), _) => None,
    }
}

#[cfg(unix)]
fn replaced_by(program: &Path, arguments: &[OsString]) -> Result<i32, CliError> {
    use epitome_platform::os::CommandExt as _;
    let error = Command::new(program).args(arguments).exec();
    Err(CliError::failed(format!("{} can't be started: {error}", program.display())))
}

#[cfg(not(unix))]
fn replaced_by(program: &Path, arguments: &[OsString]) -> Result<i32, CliError> {
    let ended = Command::new(program).args(arguments).status();
    let ended = ended.context(format_args!("{} can't be started", program.display()))?;
    Ok(ended.code().unwrap_or(1))
}

/// Runs a program and returns what it printed.
pub fn output(name: &str, arguments: &[&str], cwd: &Path) -> Result<Vec<u8>, CliError> {
    let ran = Command::new(helper(name)?).args(arguments).current_dir(cwd).stderr(Stdio::inherit()).output();
    let ran = ran.context(format_args!("{name} can't be started"))?;
    match ran.status.success() {
        true => Ok(ran.stdout),
        false => Err(CliError::failed(format!("{name} failed ({})", ran.status))),
    }
}

/// Records the messages of a connection in a file, by the program that knows the format. It confirms each line, so that a
/// crash costs none.
pub fn record(path: &Path) -> Result<Tap, CliError> {
    let program: PathBuf = helper(CHECK)?;
    // Private like the journals, because it contains the conversation.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.context(format_args!("the transcript {} can't be written", path.display()))?;
    let recorder = Command::new(program)
        .arg(epitome_platform::program::RECORD_ARGUMENT)
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let recorder = recorder.context(format_args!("{CHECK} can't be started"))?;
    let (mut lines, mut confirmed) = (recorder.stdin, recorder.stdout);
    Ok(Box::new(move |direction, line| {
        let (Some(lines), Some(confirmed)) = (&mut lines, &mut confirmed) else { return };
        let mark: &[u8] = match direction {
            LineDirection::FromClient => b">",
            LineDirection::ToClient => b"<",
        };
        // A recorder that has ended must not end the session.
        if lines.write_all(&[mark, line, b"\n"].concat()).is_ok() {
            drop(confirmed.read_exact(&mut [0]));
        }
    }))
}
