//! Stores the session of another agent by the program `epitome`, which is the only writer of the store.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use epitome_compact::CompactError;
use epitome_platform::child_output::{self, OutputLimits};
use epitome_thread::problem::Problem;

/// Limits of each run of `epitome`. There are two, and agents wait a minute for this program.
const LIMITS: OutputLimits<'static> =
    OutputLimits { time: Duration::from_secs(25), bytes: 1 << 20, is_over: &|| None };

/// Imports a session, or adds what is new in it. Returns its ID there, and the texts that are pinned in it, with `epitome mcp serve` for
/// example.
pub fn stored(path: &Path, is_request: bool, cwd: &Path) -> Result<(String, Vec<String>), CompactError> {
    if is_request {
        return Err(CompactError::Usage("--store needs the session file of an agent".to_owned()));
    }
    let arguments = ["sessions", "import", "--json", "--cwd"].map(OsStr::new);
    let arguments = arguments.into_iter().chain([cwd.as_os_str(), path.as_os_str()]);
    let imported = epitome(arguments, path)?;
    let session = imported[0]["session"].as_str();
    let session = session.ok_or_else(|| not_stored(path, "epitome named no session"))?;
    let listed = epitome(["sessions", "pin", "--json", session].map(OsStr::new), path)?;
    let texts = listed["pin"]["texts"].as_array().into_iter().flatten();
    Ok((session.to_owned(), texts.filter_map(|text| text.as_str().map(str::to_owned)).collect()))
}

/// Runs the program `epitome` and returns what it prints, as JSON. `path` is the session file, for errors.
fn epitome<'a>(
    arguments: impl IntoIterator<Item = &'a OsStr>,
    path: &Path,
) -> Result<serde_json::Value, CompactError> {
    let beside =
        std::env::current_exe().ok().map(|own| own.with_file_name("epitome")).filter(|own| own.is_file());
    let program = beside.unwrap_or_else(|| "epitome".into());
    let mut command = Command::new(program);
    command.args(arguments);
    let printed = child_output::output_within(command, &LIMITS)
        .map_err(|error| not_stored(path, &error.to_string()))?;
    serde_json::from_str(&printed)
        .map_err(|error| not_stored(path, &format!("epitome printed no JSON ({error})")))
}

fn not_stored(path: &Path, why: &str) -> CompactError {
    CompactError::Unreadable(Problem::new(path, format!("it can't be stored: {why}")))
}
