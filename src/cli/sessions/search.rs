//! `epitome sessions search`.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::list::short_title;
use super::{ago, local_time, print_json, real_directory};
use crate::chat::ChatSession;
use crate::cli::{CliError, serve, terminal};
use crate::session_library::{self, SearchRequest, SearchResults, SessionFind};
use crate::store::Store;

/// Search titles, messages, tool calls and their results in all sessions
///
/// Finds texts that contain all words, in upper or lower case.
#[derive(Debug, clap::Args)]
pub struct SearchArgs {
    /// Words to look for
    #[arg(value_name = "WORD", required = true)]
    words: Vec<String>,
    /// Search for a regular expression instead
    #[arg(long)]
    regex: bool,
    /// Only sessions of this directory
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    cwd: Option<PathBuf>,
    /// Largest number of sessions to show
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

pub(super) fn search(store: &Store, args: &SearchArgs, json: bool) -> Result<i32, CliError> {
    let words = args.words.join(" ");
    let cwd = args.cwd.as_deref().map(real_directory).transpose()?;
    let limit = args.limit.map(|limit| limit as usize);
    let ask = SearchRequest { words: &words, is_regex: args.regex, cwd: cwd.as_deref(), limit };
    let found = session_library::search(store, &ask)?;
    if json {
        print_json(&found)?;
    } else {
        terminal::print_visible(&text_of(&found))?;
    }
    for problem in &found.problems {
        note!("epitome: session {} can't be searched: {}", problem.session, problem.problem);
    }
    Ok(0)
}

/// An excerpt without its byte offset, which is for programs.
fn without_offset(excerpt: &str) -> &str {
    excerpt.split_once(": ").map_or(excerpt, |(_, line)| line).trim()
}

/// The sessions of all directories in which these words occur, for the chat.
pub fn found(words: &str) -> Result<Vec<ChatSession>, CliError> {
    let request = SearchRequest { words, ..SearchRequest::default() };
    let found = serve::with_store(&serve::paths(), |store| session_library::search(store, &request))?;
    let now = jiff::Timestamp::now().as_millisecond();
    let session = |found: SessionFind| ChatSession {
        excerpt: found
            .finds
            .iter()
            .flat_map(|find| &find.excerpts)
            .map(|excerpt| without_offset(excerpt).to_owned())
            .next()
            .unwrap_or_default(),
        id: found.session.0,
        age: ago(found.updated_at, now),
        cwd: found.cwd,
        title: found.title,
    };
    Ok(found.sessions.into_iter().map(session).collect())
}

fn text_of(found: &SearchResults) -> String {
    let mut out = String::new();
    for session in &found.sessions {
        let title = short_title(session.title.as_deref());
        let _ = writeln!(out, "{}  {}  {title}", session.session, local_time(session.updated_at));
        for find in &session.finds {
            let _ = writeln!(out, "    {} {}", find.entry, find.what);
            for excerpt in &find.excerpts {
                let _ = writeln!(out, "        {}", without_offset(excerpt));
            }
        }
        if session.count > session.finds.len() {
            let _ = writeln!(out, "    and {} more places", session.count - session.finds.len());
        }
    }
    if found.sessions.is_empty() {
        let _ = writeln!(out, "Nothing was found in {} sessions.", found.searched);
    }
    if found.is_cut {
        let _ = writeln!(out, "There may be more: --limit shows more sessions, other words fewer.");
    }
    out
}
