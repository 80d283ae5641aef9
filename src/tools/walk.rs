//! Walks a directory for the search tools: which files there are, in a fixed order, without following
//! links, for a bounded time. It reads no file but ignore files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use ignore::WalkBuilder;

use super::disk::Stop;

/// Files and directories that one search looks at: a home directory by mistake, not a monorepo.
pub const ENTRIES_MAX: usize = 1_000_000;

/// How long one search may take: a person waits for it.
pub const TIME_MAX: Duration = Duration::from_secs(30);

/// The places where version control keeps its own files; nobody searches those by accident gladly.
const VERSION_CONTROL: [&str; 4] = [".git", ".hg", ".svn", ".jj"];

/// Whether files that `.gitignore` and `.ignore` name are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    LeftOut,
    Included,
}

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    Complete,
    /// The visitor had enough, or nobody waits any more.
    Stopped,
    TooMany,
    TooLong,
}

impl WalkEnd {
    /// What the model is told.
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

/// Visits the regular files below `root` in the order of their paths, until the visitor returns false.
///
/// Hidden files are visited, the directories of version control are not. Unreadable directories are
/// passed over.
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
        // It would be that of our own environment, not of the session's.
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

/// A glob over paths relative to the directory that is searched.
///
/// `*` and `?` stay within a name, `**` spans directories, `{a,b}` and `[a-z]` choose. A pattern
/// without a slash is about names, at any depth.
pub struct Pattern(GlobSet);

impl Pattern {
    /// The error is a sentence for the model.
    pub fn new(patterns: &[&str]) -> Result<Pattern, String> {
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            let (pattern, named) = match pattern.strip_prefix("./") {
                Some(below) => (below, false),
                None => (*pattern, !pattern.contains('/')),
            };
            let whole = if named { format!("**/{pattern}") } else { pattern.to_string() };
            // A directory means what is in it.
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

/// Splits an absolute pattern into the directory that it surely lies in and the rest.
pub fn split_absolute(pattern: &str) -> (PathBuf, String) {
    let parts: Vec<&str> = pattern.split('/').collect();
    let special = |part: &&str| part.contains(['*', '?', '[', '{', '\\']);
    // The last part is always a pattern, be it a plain name.
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
    fn a_pattern_without_a_slash_is_about_names_at_any_depth() {
        assert!(matches("*.rs", "main.rs") && matches("*.rs", "src/deep/lib.rs"));
        assert!(matches("./*.rs", "main.rs") && !matches("./*.rs", "src/lib.rs"));
    }

    #[test]
    fn a_pattern_with_a_slash_is_about_paths() {
        assert!(matches("src/*.rs", "src/lib.rs") && !matches("src/*.rs", "src/deep/lib.rs"));
        assert!(matches("src/**/*.{rs,toml}", "src/lib.rs") && matches("src/**/*.{rs,toml}", "src/a/b.toml"));
        assert!(matches("src/", "src/a/b"));
    }

    #[test]
    fn a_bad_pattern_is_explained() {
        assert!(Pattern::new(&["src/[a"]).err().is_some_and(|why| why.contains("`src/[a`")));
    }

    #[test]
    fn an_absolute_pattern_is_split_where_it_stops_being_plain() {
        assert_eq!(split_absolute("/a/b/**/*.rs"), ("/a/b".into(), "./**/*.rs".into()));
        assert_eq!(split_absolute("/a/b"), ("/a".into(), "./b".into()));
        assert_eq!(split_absolute("/*"), ("/".into(), "./*".into()));
    }
}
