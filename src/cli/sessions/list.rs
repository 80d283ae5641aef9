//! `epitome sessions list`.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{ago, local_time, real_directory, sendable};
use crate::cli::terminal;
use crate::cli::{CliError, methods};
use crate::paths::Paths;
use crate::thread::visible::visible_line;

/// Maximum length of a title in a listing, in characters.
const TITLE_CHARS_MAX: usize = 60;

/// List sessions, newest first, with those that are live or running marked
///
/// With --json, prints one object per line.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Only sessions of this directory
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub(super) cwd: Option<PathBuf>,
    /// Largest number of sessions to list
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) limit: Option<u32>,
}

pub(super) fn list(paths: &Paths, args: &ListArgs, json: bool) -> Result<i32, CliError> {
    let cwd = args.cwd.as_deref().map(real_directory).transpose()?;
    let cwd = cwd.as_deref().map(sendable).transpose()?;
    let listed = methods::call(paths, "sessions.list", json!({ "cwd": cwd, "limit": args.limit }))?;
    let all = |field: &str| listed[field].as_array().map(Vec::as_slice).unwrap_or_default();
    let sessions = all("sessions");
    let mut out = String::new();
    if json {
        for header in sessions {
            let _ = writeln!(out, "{header}");
        }
    } else if sessions.is_empty() {
        out.push_str("There are no sessions yet.\n");
    } else {
        let now = jiff::Timestamp::now().as_millisecond();
        sessions.iter().for_each(|header| out.push_str(&header_lines(header, now)));
        if listed["more"] == true {
            out.push_str("… and more; --limit N shows more\n");
        }
    }
    terminal::print(&out)?;
    for problem in all("problems") {
        let text = |field: &str| visible_line(problem[field].as_str().unwrap_or_default()).into_owned();
        note!("epitome: session {} can't be listed: {}", text("session"), text("message"));
    }
    Ok(0)
}

/// Formats a session in two lines. `now` is in milliseconds since the epoch.
fn header_lines(header: &Value, now: i64) -> String {
    let text = |field: &str| visible_line(header[field].as_str().unwrap_or_default()).into_owned();
    let number = |field: &str| header[field].as_u64().unwrap_or_default();
    let turns = match number("turns") {
        1 => "1 turn".to_owned(),
        turns => format!("{turns} turns"),
    };
    let state = match (header["running"] == true, header["live"] == true) {
        (true, _) => " · running",
        (false, true) => " · live",
        (false, false) => "",
    };
    let name = |client: &Value| client["token"].as_str().or(client["name"].as_str()).map(str::to_owned);
    let present = header["present"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names = present.iter().filter_map(name).collect::<Vec<_>>().join(", ");
    let names = if names.is_empty() { names } else { format!(" with {}", visible_line(&names)) };
    let worktree = match header["worktree"].as_str() {
        Some(name) => format!(" · worktree {}", visible_line(name)),
        None => String::new(),
    };
    let lost = match number("lost") {
        0 => String::new(),
        1 => " · 1 entry is lost".to_owned(),
        lost => format!(" · {lost} entries are lost"),
    };
    format!(
        "{}  {} ({})  {}\n    {turns} · {}{worktree}{lost}{state}{names}\n",
        text("session"),
        local_time(number("updated_at")),
        ago(number("updated_at"), now),
        short_title(header["title"].as_str()),
        text("cwd"),
    )
}

/// Shortens a title to one line.
pub fn short_title(title: Option<&str>) -> String {
    let title = title.unwrap_or("(no title)");
    let mut short: String = title.chars().take(TITLE_CHARS_MAX).collect();
    if short.len() < title.len() {
        short.push('…');
    }
    visible_line(&short).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lives_and_what_runs_is_marked() {
        let header = |live: bool, running: bool| {
            let header = json!({
                "session": "s_1", "updated_at": 0, "title": "The build", "turns": 2, "cwd": "/work",
                "live": live, "running": running,
            });
            let lines = header_lines(&header, 90_000);
            lines.lines().nth(1).expect("a second line").to_owned()
        };
        assert_eq!(header(false, false), "    2 turns · /work");
        assert_eq!(header(true, false), "    2 turns · /work · live");
        assert_eq!(header(true, true), "    2 turns · /work · running");
        let present = json!([{ "token": "anna", "name": "zed" }, { "token": null, "name": "emacs" }]);
        let lines = header_lines(&json!({ "turns": 1, "cwd": "/work", "live": true, "present": present }), 0);
        assert!(lines.ends_with("    1 turn · /work · live with anna, emacs\n"), "{lines}");
        let lines = header_lines(&json!({ "turns": 1, "cwd": "/app.worktrees/fix", "worktree": "fix" }), 0);
        assert!(lines.ends_with("    1 turn · /app.worktrees/fix · worktree fix\n"), "{lines}");
        let lines = header_lines(&json!({ "turns": 0, "cwd": "/work", "lost": 5 }), 0);
        assert!(lines.ends_with("    0 turns · /work · 5 entries are lost\n"), "{lines}");
        // The name of a directory was printed as it is, and could look like another session.
        let lines = header_lines(&json!({ "turns": 1, "cwd": "/a\ns_2" }), 0);
        assert!(lines.ends_with("    1 turn · /a\\u{a}s_2\n"), "{lines}");
    }
}
