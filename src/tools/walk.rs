//! Walks a directory for the search tools: lists its files in a fixed order, without following links and
//! within limits on time and entries. Reads no files other than ignore files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use ignore::WalkBuilder;

use super::disk::Stop;

/// Entries that one search visits: stops a search of a home directory, but not of a monorepo.
pub const ENTRIES_MAX: usize = 1_000_000;

/// Maximum time of one search; the user waits for it.
pub const TIME_MAX: Duration = Duration::from_secs(30);

/// Directories of version control systems, which are never worth searching.
const VERSION_CONTROL: [&str; 4] = [".git", ".hg", ".svn", ".jj"];

/// Whether files matched by `.gitignore` and `.ignore` are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    LeftOut,
    Included,
}

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    Complete,
    /// The visitor returned false, or the call was cancelled.
    Stopped,
    TooMany,
    TooLong,
}

impl WalkEnd {
    /// A note for the model if the walk is incomplete.
    pub fn note(self) -> Option<String> {
        match self {
            WalkEnd::Complete | WalkEnd::Stopped => None,
            WalkEnd::TooMany => Some(format!(
                "[the search ended after {ENTRIES_MAX} files and directories; search a smaller `path`]"
            )),
            WalkEnd::TooLong => Some(format!(
                "[the search ended after {} seconds; search a smaller `path`]",
                TIME_MAX.as_secs()
            )),
        }
    }
}

/// Visits the regular files below `root` in path order, until the visitor returns false.
///
/// Includes hidden files, but not the directories of version control systems. Unreadable directories are
/// skipped.
pub fn files(root: &Path, ignored: Ignored, stop: &Stop, mut visit: impl FnMut(&Path) -> bool) -> WalkEnd {
    let left_out = ignored == Ignored::LeftOut;
    let mut builder = WalkBuilder::new(root);
    builder
        .hidden(false)
        .follow_links(false)
        .parents(left_out)
        .ignore(left_out)
        .git_ignore(left_out)
        .git_exclude(left_out)
        // It would be the one of the daemon's environment, not of the session's.
        .git_global(false)
        .require_git(false)
        .sort_by_file_path(Path::cmp)
        .filter_entry(|entry| {
            let name = entry.file_name().to_string_lossy();
            entry.depth() == 0 || !VERSION_CONTROL.contains(&name.as_ref())
        });
    let deadline = Instant::now() + TIME_MAX;
    for (count, entry) in builder.build().enumerate() {
        if stop.requested() {
            return WalkEnd::Stopped;
        }
        if count >= ENTRIES_MAX {
            return WalkEnd::TooMany;
        }
        if Instant::now() >= deadline {
            return WalkEnd::TooLong;
        }
        let Ok(entry) = entry else { continue };
        if entry.file_type().is_some_and(|kind| kind.is_file()) && !visit(entry.path()) {
            return WalkEnd::Stopped;
        }
    }
    WalkEnd::Complete
}

/// A glob over paths relative to the searched directory.
///
/// `*` and `?` don't match slashes, `**` spans directories, `{a,b}` and `[a-z]` are alternatives. A pattern
/// without a slash matches names at any depth.
pub struct Pattern(GlobSet);

impl Pattern {
    /// Compiles the patterns. The error is a message for the model.
    pub fn new(patterns: &[&str]) -> Result<Pattern, String> {
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            let (pattern, named) = match pattern.strip_prefix("./") {
                Some(below) => (below, false),
                None => (*pattern, !pattern.contains('/')),
            };
            let whole = if named { format!("**/{pattern}") } else { pattern.to_string() };
            // A directory stands for its contents.
            let whole = if whole.ends_with('/') { whole + "**" } else { whole };
            let glob = GlobBuilder::new(&whole).literal_separator(true).build().map_err(|error| {
                format!(
                    "`{pattern}` is not a valid glob pattern: {}. Use *, **, ?, [a-z] and {{a,b}}; put a backslash \
                     before a special character that is meant literally.",
                    error.kind()
                )
            })?;
            set.add(glob);
        }
        let set = set.build().map_err(|error| format!("The glob pattern is too complex: {error}."))?;
        Ok(Pattern(set))
    }

    pub fn matches(&self, relative: &Path) -> bool {
        self.0.is_match(relative)
    }
}

/// Splits an absolute pattern into its literal directory and the rest.
pub fn split_absolute(pattern: &str) -> (PathBuf, String) {
    let parts: Vec<&str> = pattern.split('/').collect();
    let special = |part: &&str| part.contains(['*', '?', '[', '{', '\\']);
    // The last component always belongs to the pattern, even a literal name.
    let first = parts.iter().position(special).unwrap_or(parts.len()).min(parts.len() - 1);
    let directory = parts[..first].join("/");
    let directory = if directory.is_empty() { "/".to_string() } else { directory };
    (PathBuf::from(directory), format!("./{}", parts[first..].join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::new(&[pattern]).expect("a pattern").matches(Path::new(path))
    }

    #[test]
    fn pattern_without_a_slash_matches_names_at_any_depth() {
        assert!(matches("*.rs", "main.rs") && matches("*.rs", "src/deep/lib.rs"));
        assert!(matches("./*.rs", "main.rs") && !matches("./*.rs", "src/lib.rs"));
    }

    #[test]
    fn pattern_with_a_slash_matches_paths() {
        assert!(matches("src/*.rs", "src/lib.rs") && !matches("src/*.rs", "src/deep/lib.rs"));
        assert!(matches("src/**/*.{rs,toml}", "src/lib.rs") && matches("src/**/*.{rs,toml}", "src/a/b.toml"));
        assert!(matches("src/", "src/a/b"));
    }

    #[test]
    fn a_bad_pattern_is_explained() {
        assert!(Pattern::new(&["src/[a"]).err().is_some_and(|why| why.contains("`src/[a`")));
    }

    #[test]
    fn absolute_pattern_is_split_at_the_first_wildcard() {
        assert_eq!(split_absolute("/a/b/**/*.rs"), ("/a/b".into(), "./**/*.rs".into()));
        assert_eq!(split_absolute("/a/b"), ("/a".into(), "./b".into()));
        assert_eq!(split_absolute("/*"), ("/".into(), "./*".into()));
    }
}
