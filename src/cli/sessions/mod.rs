//! `epitome sessions`: what was said, and where. What is done is `shelf`'s; here are the words and the answers.

mod change;
mod export;
mod import;
mod list;
mod lost;
mod search;
mod show;
mod tail;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{CliError, log, serve, terminal};
use crate::paths::Paths;
use crate::shelf::{self, ShelfError};
use crate::store::Store;
use crate::thread::SessionId;

pub use crate::shelf::IN_USE_HINT;
pub use list::short_title;

const HELP: &str = "\
epitome sessions: what was said, and where

  epitome sessions list [--json] [--cwd DIR]
        newest first, and which of them live in the daemon or run; --cwd leaves out those of other
        directories
  epitome sessions show ID [--full | --json | --format markdown|json|raw]
        who said what, tool calls with what came of them, and what the model still sees;
        --full with whole outputs and thinking, --json as one object, --format as export writes it
  epitome sessions search WORDS... [--regex] [--cwd DIR] [--limit N] [--json]
        all words in one text, in any case of letters, or a regular expression: titles, what was said,
        calls and what came of them
  epitome sessions tail ID [--from e5] [--json]
        its log, then what happens in it, until Ctrl-C
  epitome sessions fork ID [--at ENTRY] [--json]
        a new session that goes on from there; the old one stays as it is
  epitome sessions rename ID TITLE... [--json]
  epitome sessions undo ID [ENTRY] [--json]
        takes back the newest compaction or other change of the history, or the one of this entry
  epitome sessions redo ID [ENTRY] [--json]
        brings again what was taken back last, or this entry
  epitome sessions checkpoints ID [--json]
        the turns with the files that each of them changed
  epitome sessions rewind ID [ENTRY] [--files | --conversation] [--dry-run] [--force] [--json]
        goes back to before the last turn, or the one of this entry: the files that it and all behind it
        changed, the conversation, or both; --force also where somebody else has changed a file since
  epitome sessions rewind ID --undo [--files | --conversation] [--dry-run] [--json]
        takes the last rewind back
  epitome sessions export ID [FILE] [--format json|markdown|raw] [--json]
  epitome sessions export --all DIR [--format ...] [--json]
        --json tells as an object what was written where; the format json (the log's entries, a line each; a compaction has its `compact_boundary` record as
        \"boundary\") can be imported again; markdown (also --markdown) is for reading
  epitome sessions import --from AGENT [ID... | latest] [--all] [--again] [--cwd DIR] [--json]
        sessions of claude-code, codex, opencode, gemini, cline, copilot or aider where they lie: lists
        them, those of this directory first, or imports one; one that is here already is only told,
        unless --again
  epitome sessions import FILE... [--keep-id] [--again] [--cwd DIR] [--json]
        an export, a journal of a backup, a transcript of `epitome acp --transcript`, or a session file
        of one of these agents or of pi; --cwd is the directory of a conversation that names none
  epitome sessions lost ID [--json]
        of a session that another agent compacted: what its summary no longer mentions, and what a
        compaction by Epitome would have kept of that
  epitome sessions delete ID [--yes] [--json]
        asks first; --yes where nobody can be asked

A unique beginning of an id is enough.
";

pub fn main(mut arguments: Vec<OsString>) -> Result<i32, CliError> {
    if arguments.first().is_some_and(|verb| verb == "tail") {
        return tail::main(arguments.split_off(1));
    }
    let Some(request) = Request::parse(arguments)? else {
        terminal::print(HELP)?;
        return Ok(0);
    };
    let paths = serve::paths();
    log::to_file(&paths);
    let read = |read: fn(&Store, Request) -> Result<(), CliError>, request| {
        let store = Store::new(&paths);
        let done = read(&store, request);
        store.settle();
        done.map(|()| 0)
    };
    match request.verb.kind {
        // These are prompts to a session, which does them like any other.
        Kind::Own => change::own(&paths, request),
        Kind::List => list::list(&paths, request),
        Kind::Fork => change::fork(&paths, request),
        Kind::Rewind => change::rewind(&paths, request),
        Kind::Checkpoints => change::checkpoints(&paths, request),
        Kind::Import => import::import(&paths, request),
        Kind::Delete => change::delete(&paths, request),
        // The logs alone know enough.
        Kind::Show => read(show::show, request),
        Kind::Lost => read(lost::lost, request),
        Kind::Search => read(search::search, request),
        Kind::Export => read(export::export, request),
    }
}

/// The same as `find`, with a store of its own for as long as it looks.
pub fn named(paths: &Paths, typed: &str) -> Result<SessionId, CliError> {
    let store = Store::new(paths);
    let found = find(&store, typed);
    store.settle();
    found
}

/// The session that an id, or a beginning of one, names. `s_` may be left out.
pub fn find(store: &Store, typed: &str) -> Result<SessionId, CliError> {
    Ok(shelf::resolve(store, typed)?)
}

/// Whether a session's directory is this one.
pub fn is_same_directory(of_session: &Path, directory: &Path) -> bool {
    shelf::is_same_directory(of_session, directory)
}

impl From<ShelfError> for CliError {
    fn from(error: ShelfError) -> CliError {
        CliError::failed(error.to_string(), error.hint())
    }
}

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    List,
    Show,
    Search,
    Fork,
    /// A command of the session itself, of the verb's name.
    Own,
    Rewind,
    Checkpoints,
    Export,
    Import,
    Lost,
    Delete,
}

/// A subcommand, and the arguments that it takes.
#[derive(Debug, PartialEq, Eq)]
struct Verb {
    name: &'static str,
    kind: Kind,
    /// Whether the first word is a session's id.
    has_id: bool,
    /// Words behind that: how many at least, how many at most.
    words: (usize, usize),
    flags: &'static [&'static str],
    options: &'static [&'static str],
}

/// Words of a title or a search, files of an import.
const WORDS_MAX: usize = 10_000;

const VERBS: [Verb; 13] = [
    Verb {
        name: "list",
        kind: Kind::List,
        has_id: false,
        words: (0, 0),
        flags: &["json"],
        options: &["cwd"],
    },
    Verb {
        name: "show",
        kind: Kind::Show,
        has_id: true,
        words: (0, 0),
        flags: &["json", "full"],
        options: &["format"],
    },
    Verb {
        name: "search",
        kind: Kind::Search,
        has_id: false,
        words: (1, WORDS_MAX),
        flags: &["json", "regex"],
        options: &["cwd", "limit"],
    },
    Verb { name: "fork", kind: Kind::Fork, has_id: true, words: (0, 0), flags: &["json"], options: &["at"] },
    Verb {
        name: "rename",
        kind: Kind::Own,
        has_id: true,
        words: (1, WORDS_MAX),
        flags: &["json"],
        options: &[],
    },
    Verb { name: "undo", kind: Kind::Own, has_id: true, words: (0, 1), flags: &["json"], options: &[] },
    Verb { name: "redo", kind: Kind::Own, has_id: true, words: (0, 1), flags: &["json"], options: &[] },
    Verb {
        name: "rewind",
        kind: Kind::Rewind,
        has_id: true,
        words: (0, 1),
        flags: &["json", "files", "conversation", "dry-run", "force", "undo"],
        options: &[],
    },
    Verb {
        name: "checkpoints",
        kind: Kind::Checkpoints,
        has_id: true,
        words: (0, 0),
        flags: &["json"],
        options: &[],
    },
    Verb {
        name: "export",
        kind: Kind::Export,
        has_id: false,
        words: (0, 2),
        flags: &["markdown", "json"],
        options: &["format", "all"],
    },
    Verb {
        name: "import",
        kind: Kind::Import,
        has_id: false,
        words: (0, WORDS_MAX),
        flags: &["json", "keep-id", "again", "all"],
        options: &["cwd", "from"],
    },
    Verb { name: "lost", kind: Kind::Lost, has_id: true, words: (0, 0), flags: &["json"], options: &[] },
    Verb {
        name: "delete",
        kind: Kind::Delete,
        has_id: true,
        words: (0, 0),
        flags: &["yes", "json"],
        options: &[],
    },
];

/// What was asked for, every argument one that the verb takes.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    verb: &'static Verb,
    /// Empty for a verb that takes none.
    id: String,
    words: Vec<OsString>,
    flags: Vec<String>,
    options: Vec<(String, OsString)>,
}

impl Request {
    /// `None`: the person wants to know what there is.
    fn parse(arguments: Vec<OsString>) -> Result<Option<Request>, CliError> {
        use lexopt::prelude::*;
        let is_flag = |name: &str| VERBS.iter().any(|verb| verb.flags.contains(&name));
        let is_option = |name: &str| VERBS.iter().any(|verb| verb.options.contains(&name));
        let is_option_of = |words: &[OsString], name: &str| {
            let verb = words.first().and_then(|first| VERBS.iter().find(|verb| *first == *verb.name));
            verb.is_some_and(|verb| verb.options.contains(&name))
        };
        let (mut words, mut flags, mut options) = (Vec::new(), Vec::new(), Vec::new());
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(None),
                // `--all` is a flag of one verb and an option of another.
                Long(name) if is_flag(name) && !is_option_of(&words, name) => flags.push(name.to_owned()),
                Long(name) if is_option(name) => {
                    let name = name.to_owned();
                    options.push((name, parser.value()?));
                }
                Value(word) => words.push(word),
                other => return Err(other.unexpected().into()),
            }
        }
        let mut words = words.into_iter();
        let names = VERBS.map(|verb| verb.name).join(", ");
        let name = words.next().ok_or_else(|| CliError::usage(format!("say what to do: {names}")))?;
        let verb = VERBS.iter().find(|verb| name == verb.name).ok_or_else(|| {
            CliError::usage(format!("there is no `epitome sessions {}`", name.to_string_lossy()))
        })?;
        let name = verb.name;
        let given = flags.iter().map(String::as_str).chain(options.iter().map(|(name, _)| name.as_str()));
        for given in given {
            if !verb.flags.contains(&given) && !verb.options.contains(&given) {
                return Err(CliError::usage(format!("`epitome sessions {name}` has no --{given}")));
            }
        }
        let id = if verb.has_id {
            let word = words.next();
            let word = word.ok_or_else(|| CliError::usage(format!("{name} needs the id of a session")))?;
            word.to_string_lossy().into_owned()
        } else {
            String::new()
        };
        let words: Vec<OsString> = words.collect();
        let (least, most) = verb.words;
        if words.len() < least {
            let what = match verb.kind {
                Kind::Search => "words to look for",
                Kind::Own => "a title",
                Kind::Import
                | Kind::List
                | Kind::Show
                | Kind::Fork
                | Kind::Rewind
                | Kind::Checkpoints
                | Kind::Export
                | Kind::Lost
                | Kind::Delete => "more",
            };
            return Err(CliError::usage(format!("{name} needs {what}")));
        }
        if let Some(word) = words.get(most) {
            return Err(CliError::usage(format!("{word:?} is one argument too many")));
        }
        Ok(Some(Request { verb, id, words, flags, options }))
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|given| given == flag)
    }

    /// The last value of an option.
    fn option(&self, name: &str) -> Option<&OsString> {
        self.options.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value)
    }

    fn directory(&self) -> Option<PathBuf> {
        self.option("cwd").map(PathBuf::from)
    }

    /// The form of an export that was asked for.
    fn form(&self) -> Result<Option<shelf::Form>, CliError> {
        if self.has("markdown") {
            return Ok(Some(shelf::Form::Markdown));
        }
        let Some(word) = self.option("format") else { return Ok(None) };
        let form = shelf::Form::ALL.into_iter().find(|form| *word == *form.word());
        let names = || shelf::Form::ALL.map(shelf::Form::word).join(", ");
        form.map(Some)
            .ok_or_else(|| CliError::usage(format!("there is no format {word:?}: it is {}", names())))
    }
}

/// A directory that a person named, as it is called without links.
fn real_directory(directory: &Path) -> Result<PathBuf, CliError> {
    directory.canonicalize().map_err(|error| {
        CliError::failed(format!("the directory {} can't be found: {error}", directory.display()), None)
    })
}

/// A time as a person reads it, in their own zone.
fn moment(milliseconds: u64) -> String {
    let time = i64::try_from(milliseconds).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    match time {
        Some(time) => time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M").to_string(),
        None => "(no time)".to_owned(),
    }
}

/// Prints data as one line of JSON.
fn print_json(data: &(impl serde::Serialize + ?Sized)) -> Result<(), CliError> {
    let json = serde_json::to_string(data)
        .map_err(|error| CliError::failed(format!("this can't be written as JSON: {error}"), None))?;
    terminal::print(&format!("{json}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Request, String> {
        crate::cli::parsed(Request::parse, arguments)
    }

    #[test]
    fn each_command_takes_its_own_arguments_only() {
        let request = parsed(&["show", "s_1", "--full"]).expect("it is right");
        assert_eq!((request.verb.name, request.id.as_str(), request.has("full")), ("show", "s_1", true));
        let request = parsed(&["export", "s_1", "a.md", "--format", "raw"]).expect("it is right");
        assert_eq!(request.words, ["s_1", "a.md"]);
        assert_eq!(request.form().expect("a known one"), Some(shelf::Form::Raw));
        let request = parsed(&["search", "two", "words", "--limit", "3"]).expect("it is right");
        assert_eq!((request.words.len(), request.option("limit")), (2, Some(&"3".into())));
        let wrong: [(&[&str], &str); 9] = [
            (&[], "say what to do"),
            (&["show"], "needs the id"),
            (&["show", "s_1", "--yes"], "has no --yes"),
            (&["show", "s_1", "--cwd", "/"], "has no --cwd"),
            (&["list", "s_1"], "too many"),
            (&["search"], "needs words to look for"),
            (&["rename", "s_1"], "needs a title"),
            (&["fork", "s_1", "--at"], "missing argument"),
            (&["burn"], "no `epitome sessions burn`"),
        ];
        for (arguments, expected) in wrong {
            let error = parsed(arguments).expect_err("these arguments are wrong");
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }
}
