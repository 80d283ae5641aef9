//! `epitome sessions list`.

use std::fmt::Write as _;

use serde_json::json;

use super::{Request, moment, real_directory};
use crate::cli::CliError;
use crate::cli::terminal::{self, harmless};
use crate::shelf;
use crate::store::{Header, Store};

/// Characters of a title in a listing.
const TITLE_CHARS_MAX: usize = 60;

pub(super) fn list(store: &Store, request: Request) -> Result<(), CliError> {
    let cwd = request.directory().map(|cwd| real_directory(&cwd)).transpose()?;
    let listed = shelf::list(store, cwd.as_deref())?;
    let mut out = String::new();
    if request.has("json") {
        for header in &listed.sessions {
            let _ = writeln!(out, "{}", header_json(header));
        }
    } else if listed.sessions.is_empty() {
        out.push_str("There are no sessions yet.\n");
    } else {
        for header in &listed.sessions {
            out.push_str(&header_line(header));
        }
    }
    terminal::print(&out)?;
    for problem in &listed.problems {
        eprintln!("epitome: session {} can't be listed: {}", problem.session, problem.problem);
    }
    Ok(())
}

fn header_line(header: &Header) -> String {
    let turns = if header.turns == 1 { "1 turn".to_owned() } else { format!("{} turns", header.turns) };
    format!(
        "{}  {}  {}\n    {turns} · {}\n",
        header.session,
        moment(header.updated_at),
        short_title(header.title.as_deref()),
        harmless(&header.cwd.display().to_string())
    )
}

/// A title as one line has room for it.
pub(super) fn short_title(title: Option<&str>) -> String {
    let title = title.unwrap_or("(no title)");
    let mut short: String = title.chars().take(TITLE_CHARS_MAX).collect();
    if short.len() < title.len() {
        short.push('…');
    }
    harmless(&short).into_owned()
}

fn header_json(header: &Header) -> serde_json::Value {
    json!({
        "session": header.session, "cwd": header.cwd, "title": header.title, "model": header.model,
        "created_at": header.created_at, "updated_at": header.updated_at,
        "entries": header.entries, "turns": header.turns,
    })
}
