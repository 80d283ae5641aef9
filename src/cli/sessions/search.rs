//! `epitome sessions search`.

use std::fmt::Write as _;

use super::list::short_title;
use super::{Request, moment, print_json, real_directory};
use crate::cli::CliError;
use crate::cli::terminal::{self, harmless};
use crate::shelf::{self, Found, SearchAsk};
use crate::store::Store;

pub(super) fn search(store: &Store, request: Request) -> Result<(), CliError> {
    let words: Vec<String> = request.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let words = words.join(" ");
    let cwd = request.directory().map(|cwd| real_directory(&cwd)).transpose()?;
    let number = |limit: &std::ffi::OsString| {
        let limit = limit.to_str().and_then(|limit| limit.parse().ok());
        limit.ok_or_else(|| CliError::usage("--limit takes a number"))
    };
    let limit = request.option("limit").map(number).transpose()?;
    let ask = SearchAsk { words: &words, is_regex: request.has("regex"), cwd: cwd.as_deref(), limit };
    let found = shelf::search(store, &ask)?;
    if request.has("json") {
        print_json(&found)?;
    } else {
        terminal::print(&harmless(&text_of(&found)))?;
    }
    for problem in &found.problems {
        eprintln!("epitome: session {} can't be searched: {}", problem.session, problem.problem);
    }
    Ok(())
}

fn text_of(found: &Found) -> String {
    let mut out = String::new();
    for session in &found.sessions {
        let title = short_title(session.title.as_deref());
        let _ = writeln!(out, "{}  {}  {title}", session.session, moment(session.updated_at));
        for find in &session.finds {
            let _ = writeln!(out, "    {} {}", find.entry, find.what);
            for excerpt in &find.excerpts {
                // The byte is for programs that read on from there.
                let excerpt = excerpt.split_once(": ").map_or(excerpt.as_str(), |(_, line)| line);
                let _ = writeln!(out, "        {}", excerpt.trim());
            }
        }
        if session.count > session.finds.len() {
            let _ = writeln!(out, "    and {} more places", session.count - session.finds.len());
        }
    }
    if found.sessions.is_empty() {
        let _ = writeln!(out, "Nothing is found in {} sessions.", found.searched);
    }
    if found.is_cut {
        let _ = writeln!(out, "There may be more: --limit shows more sessions, other words fewer.");
    }
    out
}
