//! `epitome daemon`: shows the daemon's status and log, and stops it. Editors start it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::terminal;
use super::{CliContext as _, CliError, serve};
use crate::thread::visible::visible;
use epitome_daemon::control::ControlClient;
use epitome_daemon::runtime_dir::{END_TIME_MAX, RuntimeDir};

/// Number of bytes at the end of a log file that are searched for lines.
const LOG_TAIL_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Poll interval of a followed log.
const LOG_LOOK: Duration = Duration::from_millis(250);

/// How long a daemon may take to answer before it is considered stuck.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Status, stop and log of the background process
///
/// One process serves all editor windows. The first editor window starts the daemon. It exits ten minutes after the
/// last window was closed.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = false,
    arg = super::before_subcommand("json").action(clap::ArgAction::SetTrue),
    after_help = "Exit codes: 0 done, 1 failed or no daemon is running, 2 wrong usage."
)]
pub struct DaemonArgs {
    #[command(subcommand)]
    command: DaemonCommand,
}

#[derive(Debug, clap::Subcommand)]
enum DaemonCommand {
    /// Show whether a daemon is running, since when, its clients, sessions, memory and paths
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop the daemon
    ///
    /// Refused while a turn runs. The next editor window starts a new daemon, and open windows reconnect to it.
    Stop {
        /// Cancel running turns
        #[arg(long)]
        force: bool,
    },
    /// Print the last lines of the daemon's log
    Logs {
        /// Keep printing new lines
        #[arg(short, long)]
        follow: bool,
        /// Number of lines
        #[arg(short = 'n', long, default_value_t = 50)]
        lines: usize,
    },
}

pub fn main(args: DaemonArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    match args.command {
        DaemonCommand::Logs { lines, follow } => logs(&paths.log_directory(), lines, follow),
        DaemonCommand::Status { json } => serve::runtime()?.block_on(status(&RuntimeDir::new(&paths), json)),
        DaemonCommand::Stop { force } => serve::runtime()?.block_on(stop(&RuntimeDir::new(&paths), force)),
    }
}

/// Calls a daemon, with a timeout because it may be stuck.
pub(super) async fn call(client: &ControlClient, method: &str, params: Value) -> Result<Value, CliError> {
    match tokio::time::timeout(ANSWER_WITHIN, client.call(method, params)).await {
        Ok(answered) => Ok(answered?),
        Err(_) => {
            let message = format!("the daemon has not answered for {} s", ANSWER_WITHIN.as_secs());
            Err(CliError::failed(message).hint(
                "`epitome daemon logs` may say why; end a stuck daemon with kill, and open windows \
                        reconnect to the next one",
            ))
        }
    }
}

const NONE_RUNS: &str = "No daemon is running. The next window starts one.\n";

async fn status(runtime_dir: &RuntimeDir, json: bool) -> Result<i32, CliError> {
    let Some(client) = ControlClient::connect(runtime_dir).await? else {
        let text = if json { format!("{}\n", json!({ "running": false })) } else { NONE_RUNS.to_owned() };
        return terminal::print(&text).map(|()| 1);
    };
    let mut status = call(&client, "status", json!({})).await?;
    let text = if json {
        status["running"] = json!(true);
        format!("{status:#}\n")
    } else {
        shown(&status, jiff::Timestamp::now().as_millisecond())
    };
    terminal::print_visible(&text).map(|()| 0)
}

/// Formats the status. `now` is in milliseconds since the epoch.
fn shown(status: &Value, now: i64) -> String {
    let number = |field: &str| status[field].as_u64().unwrap_or_default();
    let attached = |kind: &str| {
        let all = status["attachments"].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().filter(|attached| attached["kind"] == kind).count()
    };
    let since = i64::try_from(number("started_at")).unwrap_or_default();
    let seconds = u64::try_from(now - since).unwrap_or_default() / 1000;
    let up = match (seconds / 3600, seconds / 60 % 60) {
        (0, 0 | 1) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    };
    let sessions = status["sessions"].as_array().map_or(0, Vec::len);
    // Don't count this command's connection.
    let shells = attached("control").saturating_sub(1);
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!(
        "epitome {} runs, process {}, for {up}\n\
         windows   {}, other clients {shells}\n\
         sessions  {sessions} live, {} with a running turn\n\
         memory    {}\n\
         store     {} in {}\n\
         sockets   {} (editors)\n\
         \x20         {} (shells and scripts)\n\
         logs      {}\n",
        text(&status["version"]),
        number("pid"),
        attached("editor"),
        number("running_turns"),
        bytes(number("resident_bytes")),
        bytes(number("store_bytes")),
        text(&status["data"]),
        text(&status["sockets"]["acp"]),
        text(&status["sockets"]["control"]),
        text(&status["logs"]),
    )
}

fn bytes(count: u64) -> String {
    match count {
        0..=9_999 => format!("{count} bytes"),
        10_000..=999_999 => format!("{} KB", count / 1000),
        _ => format!("{}.{} MB", count / 1_000_000, count % 1_000_000 / 100_000),
    }
}

async fn stop(runtime_dir: &RuntimeDir, force: bool) -> Result<i32, CliError> {
    let Some(client) = ControlClient::connect(runtime_dir).await? else {
        return terminal::print(NONE_RUNS).map(|()| 1);
    };
    let stopping = call(&client, "stop", json!({ "force": force })).await?;
    drop(client);
    let pid = stopping["pid"].as_u64().unwrap_or_default();
    if !runtime_dir.ended_within(END_TIME_MAX).await {
        let hint = format!("`kill {pid}` ends it; open windows reconnect to the next one");
        return Err(CliError::failed("the daemon does not exit").hint(hint));
    }
    terminal::print(&format!("The daemon, process {pid}, has ended.\n")).map(|()| 0)
}

fn logs(directory: &Path, lines: usize, follow: bool) -> Result<i32, CliError> {
    let unreadable = |path: &Path| format!("{} can't be read", path.display());
    let Some(mut path) = newest_log(directory) else {
        return Err(CliError::failed(format!("there is no log in {}", directory.display()))
            .hint("the log is created with its first line"));
    };
    let mut file = BufReader::new(File::open(&path).context(unreadable(&path))?);
    let last = last_lines(&mut file, lines).context(unreadable(&path))?;
    if !terminal::print_more(&visible(&last))? || !follow {
        return Ok(0);
    }
    loop {
        let mut more = String::new();
        file.read_to_string(&mut more).context(unreadable(&path))?;
        if !more.is_empty() {
            if !terminal::print_more(&visible(&more))? {
                return Ok(0);
            }
            continue;
        }
        // Each day has a separate file.
        if let Some(newer) = newest_log(directory).filter(|newest| *newest != path) {
            file = BufReader::new(File::open(&newer).context(unreadable(&newer))?);
            path = newer;
            continue;
        }
        std::thread::sleep(LOG_LOOK);
    }
}

fn newest_log(directory: &Path) -> Option<PathBuf> {
    logs_of(directory).pop()
}

/// Returns the log files, oldest first: their names contain the date.
pub(super) fn logs_of(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut logs: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect();
    logs.sort();
    logs
}

/// Returns the last lines of a file, within `LOG_TAIL_BYTES_MAX` of its end. Leaves the file at its end.
pub(super) fn last_lines(file: &mut BufReader<File>, count: usize) -> std::io::Result<String> {
    let length = file.seek(SeekFrom::End(0))?;
    let from = length.saturating_sub(LOG_TAIL_BYTES_MAX);
    file.seek(SeekFrom::Start(from))?;
    if from > 0 {
        // Skip the rest of a partial line.
        file.skip_until(b'\n')?;
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    Ok(lines[lines.len().saturating_sub(count)..].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_status_is_shown_as_lines() {
        let status = json!({
            "version": "1.2.3", "pid": 42, "started_at": 1_000, "running_turns": 1,
            "attachments": [{ "kind": "editor" }, { "kind": "control" }, { "kind": "control" }],
            "sessions": [{}, {}], "resident_bytes": 12_345_678, "store_bytes": 20_480, "data": "/h/data",
            "sockets": { "acp": "/h/run/acp.sock", "control": "/h/run/control.sock" }, "logs": "/h/state/log",
        });
        assert_eq!(
            shown(&status, 1_000 + 125 * 60_000),
            "epitome 1.2.3 runs, process 42, for 2 h 5 min\n\
             windows   1, other clients 1\n\
             sessions  2 live, 1 with a running turn\n\
             memory    12.3 MB\n\
             store     20 KB in /h/data\n\
             sockets   /h/run/acp.sock (editors)\n\
             \x20         /h/run/control.sock (shells and scripts)\n\
             logs      /h/state/log\n"
        );
        for (milliseconds, up) in
            [(0, "0 s"), (119_999, "119 s"), (120_000, "2 min"), (3_600_000, "1 h 0 min")]
        {
            let first = shown(&status, 1_000 + milliseconds);
            assert!(first.starts_with(&format!("epitome 1.2.3 runs, process 42, for {up}\n")), "{first}");
        }
    }

    #[test]
    fn the_last_lines_of_a_log_are_shown() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(b"one\ntwo\nthree\n").expect("room");
        let mut file = BufReader::new(file);
        for (count, wanted) in [(2, "two\nthree\n"), (9, "one\ntwo\nthree\n"), (0, "")] {
            assert_eq!(last_lines(&mut file, count).expect("it can be read"), wanted);
        }
    }
}
