//! Decides when a Claude Code hook runs: its matcher, and the permission rule of its `if`.

use std::path::Path;

use fancy_regex::{Regex, RegexBuilder};
use ignore::gitignore::GitignoreBuilder;

use super::tools::{aliases, files_of_patch, tool_name};
use crate::hook_context::{HookCall, HookContext};

/// Maximum length of a matcher or rule in bytes.
const PATTERN_BYTES_MAX: usize = 1024;
/// Backtracking limit of a regular expression on one name; names are short.
const BACKTRACKS_MAX: usize = 100_000;
/// Syntax by which a regular expression excludes text.
const EXCLUDING: [&str; 3] = ["(?!", "(?<!", "[^"];

/// A matcher: empty or `*` for all, names separated by `|` or `,`, otherwise a regular expression that may
/// match anywhere in the name.
pub enum Matcher {
    All,
    Names(Vec<String>),
    Expression {
        regex: Box<Regex>,
        /// It is compared with Claude Code's names only: one that excludes `Bash` is not meant to match `bash`.
        excludes: bool,
    },
}

impl Matcher {
    /// Parses a matcher.
    pub fn read(matcher: &str) -> Result<Matcher, MatcherError> {
        let matcher = matcher.trim();
        if matcher.is_empty() || matcher == "*" {
            return Ok(Matcher::All);
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-|, ".contains(c);
        if matcher.chars().all(plain) {
            let names = matcher.split(['|', ',']).map(str::trim).filter(|name| !name.is_empty());
            return Ok(Matcher::Names(names.map(str::to_owned).collect()));
        }
        let excludes = EXCLUDING.iter().any(|sign| matcher.contains(sign));
        Ok(Matcher::Expression { regex: Box::new(expression(matcher)?), excludes })
    }

    /// Whether it matches Claude Code's name or Epitome's.
    pub fn matches(&self, [theirs, ours]: &[&str; 2]) -> bool {
        match self {
            Matcher::All => true,
            Matcher::Names(names) => names
                .iter()
                .any(|name| name == ours || name == theirs || aliases(theirs).contains(&name.as_str())),
            Matcher::Expression { regex, excludes } => {
                let found = |name: &str| regex.is_match(name).unwrap_or(false);
                let is_alias = || aliases(theirs).iter().any(|alias| found(alias));
                found(theirs) || (!excludes && (found(ours) || is_alias()))
            }
        }
    }
}

fn expression(pattern: &str) -> Result<Regex, MatcherError> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(MatcherError::TooLong);
    }
    RegexBuilder::new(pattern)
        .backtrack_limit(BACKTRACKS_MAX)
        .build()
        .map_err(|error| MatcherError::Expression { pattern: pattern.to_owned(), error: Box::new(error) })
}

/// Why a matcher or a rule can't be read.
#[derive(Debug, thiserror::Error)]
pub enum MatcherError {
    #[error("it is longer than {PATTERN_BYTES_MAX} bytes")]
    TooLong,
    #[error("`{pattern}` is not a valid regular expression: {error}")]
    Expression { pattern: String, error: Box<fancy_regex::Error> },
    #[error("`{0}` has no `)` at its end")]
    Unclosed(String),
    #[error("the calls of `{0}` can't be matched by a pattern")]
    NoPattern(String),
}

/// A permission rule: a tool, and optionally a pattern for its call.
pub struct ClaudeRule {
    tool: String,
    like: Option<String>,
}

impl ClaudeRule {
    /// Parses `Bash`, `Bash(git *)`, `Edit(src/**)`.
    pub fn read(rule: &str) -> Result<ClaudeRule, MatcherError> {
        if rule.len() > PATTERN_BYTES_MAX {
            return Err(MatcherError::TooLong);
        }
        let Some((tool, rest)) = rule.split_once('(') else {
            return Ok(ClaudeRule { tool: rule.trim().to_owned(), like: None });
        };
        let like = rest.strip_suffix(')').ok_or_else(|| MatcherError::Unclosed(rule.to_owned()))?;
        let rule = ClaudeRule { tool: tool.trim().to_owned(), like: Some(like.trim().to_owned()) };
        match rule.tool.as_str() {
            "Bash" | "Read" | "Edit" | "Write" => Ok(rule),
            _ if matches!(like.trim(), "" | "*") => Ok(ClaudeRule { like: None, ..rule }),
            tool => Err(MatcherError::NoPattern(tool.to_owned())),
        }
    }

    /// Whether the event is a call that matches the rule. Events without a call never match.
    pub fn matches(&self, hook_context: &HookContext) -> bool {
        hook_context.what.call().is_some_and(|call| self.fits_call(call, &hook_context.base.cwd))
    }

    fn fits_call(&self, call: &HookCall, cwd: &Path) -> bool {
        let theirs = tool_name(&call.tool);
        if self.tool != theirs && self.tool != call.tool && !aliases(theirs).contains(&self.tool.as_str()) {
            return false;
        }
        let Some(like) = self.like.as_deref().filter(|like| !matches!(*like, "" | "*")) else { return true };
        let text = |key: &str| call.input.get(key).and_then(|value| value.as_str()).unwrap_or_default();
        match theirs {
            "Bash" => fits_command(like, text("command")),
            _ => {
                let named = call.input.get("file_path").and_then(|path| path.as_str());
                named.into_iter().chain(files_of_patch(call)).any(|path| fits_path(like, path, cwd))
            }
        }
    }
}

/// Whether a command line or one of the commands in it matches. Quotes are ignored: if a command is split wrongly, the
/// hook runs and checks the command itself, whereas it would not run for a missed one.
fn fits_command(like: &str, command: &str) -> bool {
    // `git:*` is the older form of `git *`.
    let like = like.strip_suffix(":*").map_or(like.to_owned(), |start| format!("{start} *"));
    let mut pattern = String::from("(?s)^");
    let (start, tail) = like.strip_suffix(" *").map_or((like.as_str(), "$"), |start| (start, "(?:\\s.*)?$"));
    for (at, piece) in start.split('*').enumerate() {
        if at > 0 {
            pattern.push_str(".*");
        }
        pattern.push_str(&fancy_regex::escape(piece));
    }
    let Ok(regex) = expression(&(pattern + tail)) else { return true };
    let pieces = command.split(['\n', ';', '|', '&', '(', ')', '`']).map(without_variables);
    std::iter::once(command.trim()).chain(pieces).any(|piece| regex.is_match(piece).unwrap_or(true))
}

/// A command without the variable assignments before it (`LANG=C git status`).
fn without_variables(command: &str) -> &str {
    let mut rest = command.trim();
    while let Some((word, tail)) = rest.split_once(char::is_whitespace) {
        let sets = word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        });
        if !sets {
            break;
        }
        rest = tail.trim_start();
    }
    rest
}

/// Whether a path matches a pattern, as in a `.gitignore` of the working directory; `//` starts an absolute
/// pattern.
fn fits_path(like: &str, path: &str, cwd: &Path) -> bool {
    let (root, like) = match like.strip_prefix("//") {
        Some(absolute) => (Path::new("/"), format!("/{absolute}")),
        None => (cwd, like.strip_prefix("./").map_or(like.to_owned(), |below| format!("/{below}"))),
    };
    let path = cwd.join(path);
    let mut builder = GitignoreBuilder::new(root);
    if !path.starts_with(root) || builder.add_line(None, &like).is_err() {
        return false;
    }
    builder.build().is_ok_and(|rules| rules.matched_path_or_any_parents(&path, false).is_ignore())
}
