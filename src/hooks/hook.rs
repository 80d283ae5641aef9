//! A declared hook: where it comes from, what it handles, how it is run.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use super::event::HookEvent;

/// How long a run may take unless the hook or the configuration says otherwise.
pub const RUN_TIME: Duration = Duration::from_secs(30);
/// The bounds of that limit.
pub const RUN_TIME_MIN: Duration = Duration::from_millis(100);
pub const RUN_TIME_MAX: Duration = Duration::from_secs(600);

/// A hook as declared, ready to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Hook {
    /// Shown to people and given to the hook; unique among the hooks of a session.
    pub name: String,
    pub place: Place,
    pub kind: Kind,
    /// The moments, each with the name that the hook registered it by.
    pub events: Vec<(HookEvent, String)>,
    pub manifest: Manifest,
    /// SHA-256 over the declaration and over the scripts that it names, in hexadecimal.
    pub digest: String,
    /// The files that the digest is over: the declaration first.
    pub files: Vec<PathBuf>,
}

/// Who put the hook there, and with it how far it is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The person's own, which nothing that a repository brings may shadow or switch off.
    Enforced,
    /// The person's own.
    Person,
    /// Came with the repository: runs only with the person's consent to its digest.
    Repository,
}

/// How a hook is run. `Debug` leaves out where a webhook posts to, and what it sends to say who it is.
#[derive(Clone, PartialEq)]
pub enum Kind {
    /// `path run`, the payload on stdin, the result on stdout.
    Script { path: PathBuf },
    /// One process for a session, one JSON object a line.
    Resident { path: PathBuf },
    /// The result itself.
    Declared { then: Map<String, Value> },
    /// The payload is posted, a 2xx answer's body is the result. `secret` signs the body.
    Webhook { url: String, headers: BTreeMap<String, String>, secret: Option<String> },
    /// A Claude Code hook: a line for the shell. Those of one `group` run side by side, the groups one after
    /// another, in the order of their settings file. `only_if` is a permission rule (`Bash(git *)`)
    /// that a tool call has to fit; empty fits all.
    Claude { line: String, group: usize, matcher: String, only_if: String },
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Script { path } => f.debug_struct("Script").field("path", path).finish(),
            Kind::Resident { path } => f.debug_struct("Resident").field("path", path).finish(),
            Kind::Declared { then } => f.debug_struct("Declared").field("then", then).finish(),
            Kind::Webhook { url: _, headers, secret } => f
                .debug_struct("Webhook")
                .field("headers", &headers.keys())
                .field("signed", &secret.is_some())
                .finish_non_exhaustive(),
            Kind::Claude { line, group, matcher, only_if } => f
                .debug_struct("Claude")
                .field("line", line)
                .field("group", group)
                .field("matcher", matcher)
                .field("only_if", only_if)
                .finish(),
        }
    }
}

/// What a hook declares of itself, defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    pub protocol: u32,
    pub matches: Match,
    pub timeout: Duration,
    /// Higher ones run first.
    pub priority: i32,
    pub fail_mode: FailMode,
    /// Exit code 2 blocks, with stderr as the reason.
    pub exit_2_blocks: bool,
    /// `None` leaves it to the event: all of them, but none in `turn_end`.
    pub messages: Option<Messages>,
    pub description: String,
    /// Wants a file with the conversation as JSON lines.
    pub transcript: bool,
}

impl Default for Manifest {
    fn default() -> Manifest {
        Manifest {
            protocol: 1,
            matches: Match::default(),
            timeout: RUN_TIME,
            priority: 0,
            fail_mode: FailMode::Open,
            exit_2_blocks: false,
            messages: None,
            description: String::new(),
            transcript: false,
        }
    }
}

/// What happens when the hook itself fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailMode {
    /// Work goes on.
    Open,
    /// What could have been blocked is blocked.
    Closed,
}

/// How much of the conversation a payload carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Messages {
    Full,
    Last(usize),
    None,
}

/// When a hook runs at all; what is not given fits everything. Lists are globs, any of which may fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Match {
    pub tool_name: Vec<String>,
    pub recipe: Vec<String>,
    pub invoked_by: Vec<String>,
    pub trigger: Vec<String>,
    /// The used share of the window, from 0 to 1.
    pub usage_ratio_gte: Option<f64>,
    /// Each so many rounds of a prompt.
    pub every_turns: Option<u32>,
}
