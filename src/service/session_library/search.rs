//! Searches all sessions: titles, messages, tool calls and their results. Within a conversation it finds only what
//! recall finds, so that nothing removed by a hook appears.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use serde::Serialize;

use super::{LibraryError, StoredConversation, list};
use epitome_recall::{Clock, RecallLog, RecallQuery, TextMatcher};
use epitome_store::{Header, SessionQuery, Store};
use epitome_thread::SessionId;
use epitome_thread::visible::shortened;

/// Time limit of a search, after which it returns its results so far.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(20);

/// Maximum number of sessions returned by default.
const SESSIONS_MAX: usize = 20;

/// Maximum number of sessions that can be requested.
const SESSIONS_LIMIT: usize = 500;

/// Sessions that are listed at a time.
const PAGE: usize = 1_000;

/// Maximum number of matches shown per session.
const FINDS_MAX: usize = 5;

/// How much of what is looked for an error repeats, in characters.
const WORDS_CHARS_MAX: usize = 200;

/// The query.
#[derive(Clone, Debug, Default)]
pub struct SearchRequest<'a> {
    /// Words that must all occur in one text, ignoring case; or a regular expression.
    pub words: &'a str,
    pub is_regex: bool,
    /// Only sessions of this directory.
    pub cwd: Option<&'a Path>,
    /// Maximum number of sessions returned.
    pub limit: Option<usize>,
}

/// The results of a search, newest session first.
#[derive(Debug, Serialize)]
pub struct SearchResults {
    pub sessions: Vec<SessionFind>,
    /// Number of sessions searched.
    pub searched: u64,
    /// Whether the search stopped early because of the time limit or the number of results.
    pub is_cut: bool,
    /// Sessions that can't be read.
    pub problems: Vec<super::Unlisted>,
}

/// The matches in one session.
#[derive(Debug, Serialize)]
pub struct SessionFind {
    pub session: SessionId,
    pub title: Option<String>,
    pub updated_at: u64,
    pub cwd: std::path::PathBuf,
    /// Whether its title matches.
    pub in_title: bool,
    /// Number of matching texts.
    pub count: usize,
    /// The newest matching texts.
    pub finds: Vec<EntryFind>,
}

/// A matching text.
#[derive(Debug, Serialize)]
pub struct EntryFind {
    /// `e12`, or `e12.2` for a part of it.
    pub entry: String,
    /// Its kind: `said`, `call of bash (make)`.
    pub what: String,
    pub at: u64,
    /// Lines around the matches.
    pub excerpts: Vec<String>,
}

/// Searches sessions, newest first.
pub fn search(store: &Store, ask: &SearchRequest) -> Result<SearchResults, LibraryError> {
    let words = Some(ask.words.to_owned());
    let (regex, text) = if ask.is_regex { (words, None) } else { (None, words) };
    let question = RecallQuery { regex, text, limit: Some(FINDS_MAX), ..RecallQuery::default() };
    if ask.words.trim().is_empty() {
        return Err(LibraryError::refused(
            "there are no words to look for",
            "give the words of a message, a call or a result",
        ));
    }
    let finder = TextMatcher::new(&question).map_err(|why| {
        // The last line of the message describes the error; the lines before it show the expression with a marker,
        // which needs a fixed-width display.
        let why = why.to_string();
        let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let hint = match ask.is_regex {
            true => {
                "it must be a regular expression in Rust's syntax; without that option, words are searched literally"
            }
            false => "look for fewer words",
        };
        let words = shortened(ask.words, WORDS_CHARS_MAX);
        LibraryError::refused(format!("{words:?} can't be searched for: {why}"), hint)
    })?;
    let mut query = SessionQuery {
        cwd: ask.cwd.map(Path::to_path_buf),
        has_prompt: true,
        limit: Some(PAGE),
        words: if ask.is_regex {
            Vec::new()
        } else {
            ask.words.split_whitespace().map(str::to_owned).collect()
        },
        ..SessionQuery::default()
    };
    let clock = Clock { now: 0, zone: TimeZone::UTC };
    let end = Instant::now() + SEARCH_TIME_MAX;
    let is_late = || Instant::now() >= end;
    let limit = ask.limit.unwrap_or(SESSIONS_MAX).clamp(1, SESSIONS_LIMIT);
    let mut found = SearchResults { sessions: Vec::new(), searched: 0, is_cut: false, problems: Vec::new() };
    let mut page: VecDeque<Header> = VecDeque::new();
    let mut is_last = false;
    loop {
        if page.is_empty() && !is_last {
            let listed = list(store, &query)?;
            is_last = listed.sessions.len() < PAGE;
            // With files, each page has the same ones.
            if query.after.is_none() {
                found.problems = listed.problems;
            }
            query.after = listed.sessions.last().map(|last| (last.updated_at, last.session.clone()));
            page = listed.sessions.into();
        }
        let Some(header) = page.pop_front() else { break };
        if found.sessions.len() == limit || is_late() {
            found.is_cut = true;
            break;
        }
        found.searched += 1;
        let thread = match super::read(store, &header.session) {
            Ok(StoredConversation { thread, .. }) => thread,
            Err(error) => {
                let problem = error.to_string();
                found.problems.push(super::Unlisted { session: header.session, problem });
                continue;
            }
        };
        let log = RecallLog::with_rewound(&thread, usize::MAX);
        let (finds, count) =
            log.find(&question, &clock, &is_late).map_err(|error| LibraryError::failed(error.to_string()))?;
        let in_title = header.title.as_deref().is_some_and(|title| finder.is_in(title));
        if count == 0 && !in_title {
            continue;
        }
        let finds = finds.into_iter().map(|find| EntryFind {
            entry: find.part.to_string(),
            what: find.what,
            at: find.at,
            excerpts: find.places,
        });
        found.sessions.push(SessionFind {
            finds: finds.collect(),
            session: header.session,
            title: header.title,
            updated_at: header.updated_at,
            cwd: header.cwd,
            in_title,
            count,
        });
    }
    Ok(found)
}
