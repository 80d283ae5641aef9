//! Walks a directory for the search tools: lists its files in a fixed order, without following links and within
//! limits on time and entries. Reads no files other than ignore files, and skips those that are pipes, devices or
//! huge.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::disk::CancelFlag;
use crate::ToolError;
use epitome_platform::root::{FileKind, OpenDirectory, Roots};

/// Maximum number of entries that one search visits: stops a search of a home directory, but not of a monorepo.
pub const ENTRIES_MAX: usize = 1_000_000;

/// Timeout of one search; the user waits for it.
pub const TIME_MAX: Duration = Duration::from_secs(30);

/// Maximum nesting of directories that are visited; each level takes a file descriptor.
const DEPTH_MAX: usize = 256;

const IGNORE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The directories of version control systems, and the `.git` file of a worktree, which are never worth searching.
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

/// A regular file found by a walk, in its opened directory.
pub struct FoundFile<'a> {
    directory: &'a OpenDirectory,
    name: &'a OsStr,
    /// Its path below the resolved root of the walk.
    pub path: &'a Path,
    /// Relative to the walk's root.
    pub relative: &'a Path,
}

impl FoundFile<'_> {
    pub fn open(&self) -> io::Result<File> {
        self.directory.file(self.name).map(|(file, _)| file)
    }

    pub fn modified(&self) -> io::Result<SystemTime> {
        self.directory.metadata(self.name)?.modified()
    }
}

/// Visits the regular files below `root`, a resolved path, in path order, until the visitor returns false.
///
/// Includes hidden files, but not the directories of version control systems. Unreadable directories are skipped.
/// Each directory is opened relative to its parent, so that one that is replaced by a link during the walk is skipped
/// too.
pub fn files(
    root: &Path,
    roots: &Roots,
    ignored: Ignored,
    stop: &CancelFlag,
    mut visit: impl FnMut(&FoundFile<'_>) -> bool,
) -> io::Result<WalkEnd> {
    let left_out = ignored == Ignored::LeftOut;
    let mut rules = if left_out { IgnoreRules::above(root) } else { IgnoreRules::default() };
    let mut levels = vec![Level::open(roots.directory(root)?, root, left_out, &mut rules)];
    let mut path = root.to_path_buf();
    let deadline = Instant::now() + TIME_MAX;
    // The root counts too.
    let mut count = 1;
    loop {
        let depth = levels.len();
        let Some(level) = levels.last_mut() else { return Ok(WalkEnd::Complete) };
        let Some((name, kind)) = level.entries.pop() else {
            levels.pop();
            path.pop();
            if left_out {
                rules.0.pop();
            }
            continue;
        };
        if VERSION_CONTROL.iter().any(|own| name == *own) {
            continue;
        }
        path.push(&name);
        if left_out && rules.ignore(&path, kind == FileKind::Directory) {
            path.pop();
            continue;
        }
        count += 1;
        if stop.requested() {
            return Ok(WalkEnd::Stopped);
        }
        if count > ENTRIES_MAX {
            return Ok(WalkEnd::TooMany);
        }
        if Instant::now() >= deadline {
            return Ok(WalkEnd::TooLong);
        }
        match kind {
            FileKind::Directory if depth < DEPTH_MAX => {
                if let Ok(directory) = level.directory.directory(&name) {
                    levels.push(Level::open(directory, &path, left_out, &mut rules));
                    continue;
                }
            }
            FileKind::File => {
                let relative = path.strip_prefix(root).unwrap_or(&path);
                let found = FoundFile { directory: &level.directory, name: &name, path: &path, relative };
                if !visit(&found) {
                    return Ok(WalkEnd::Stopped);
                }
            }
            FileKind::Directory | FileKind::Other => {}
        }
        path.pop();
    }
}

/// A directory of a walk and its unvisited entries, in reverse order.
struct Level {
    directory: OpenDirectory,
    entries: Vec<(OsString, FileKind)>,
}

impl Level {
    fn open(directory: OpenDirectory, path: &Path, left_out: bool, rules: &mut IgnoreRules) -> Level {
        // Unreadable directories are skipped.
        let mut entries = directory.entries().unwrap_or_default();
        if left_out {
            let has = |name: &str| entries.iter().any(|(own, _)| own == name);
            rules.0.push(DirectoryIgnores::load(&directory, path, has));
        }
        entries.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
        Level { directory, entries }
    }
}

/// The ignore files of the directories from the file system's root to the visited directory.
#[derive(Default)]
struct IgnoreRules(Vec<DirectoryIgnores>);

#[derive(Default)]
struct DirectoryIgnores {
    /// `.ignore`
    ignore: Option<Gitignore>,
    /// `.gitignore`
    git: Option<Gitignore>,
    /// `.git/info/exclude`
    exclude: Option<Gitignore>,
    /// Whether it is the root of a repository: Git's ignore files above it don't apply.
    is_repository: bool,
}

impl IgnoreRules {
    /// Collects the ignore files of the directories above this one.
    fn above(root: &Path) -> IgnoreRules {
        let mut above: Vec<&Path> = root.ancestors().skip(1).collect();
        above.reverse();
        let opened = |path: &Path| {
            let Ok(directory) = Roots::default().directory(path) else { return DirectoryIgnores::default() };
            DirectoryIgnores::load(&directory, path, |name| directory.metadata(OsStr::new(name)).is_ok())
        };
        IgnoreRules(above.into_iter().map(opened).collect())
    }

    /// Whether a path is ignored. `.ignore` takes precedence over Git's files, and a directory's file over those of
    /// its parents.
    fn ignore(&self, path: &Path, is_directory: bool) -> bool {
        let matched = |of: fn(&DirectoryIgnores) -> &Option<Gitignore>, is_of_git: bool| {
            let mut is_in_repository = true;
            for rule in self.0.iter().rev() {
                if is_of_git && !is_in_repository {
                    break;
                }
                if let Some(rules) = of(rule) {
                    match rules.matched(path, is_directory) {
                        Match::None => {}
                        Match::Ignore(_) => return Some(true),
                        Match::Whitelist(_) => return Some(false),
                    }
                }
                is_in_repository &= !rule.is_repository;
            }
            None
        };
        let ignored = matched(|rule| &rule.ignore, false)
            .or_else(|| matched(|rule| &rule.git, true))
            .or_else(|| matched(|rule| &rule.exclude, true));
        ignored.unwrap_or(false)
    }
}

impl DirectoryIgnores {
    fn load(directory: &OpenDirectory, path: &Path, has: impl Fn(&str) -> bool) -> DirectoryIgnores {
        let read = |name: &str| {
            let (file, _) = has(name).then(|| directory.file(OsStr::new(name)).ok())??;
            rules_of(file, path)
        };
        let is_repository = has(".git");
        let exclude = || {
            let git = directory.directory(OsStr::new(".git")).ok();
            let common = match git {
                Some(git) => git,
                None => common_directory(directory, path)?,
            };
            let info = common.directory(OsStr::new("info")).ok()?;
            rules_of(info.file(OsStr::new("exclude")).ok()?.0, path)
        };
        DirectoryIgnores {
            ignore: read(".ignore"),
            git: read(".gitignore"),
            exclude: is_repository.then(exclude).flatten(),
            is_repository,
        }
    }
}

/// The Git directory that the `.git` file of a worktree names.
fn common_directory(directory: &OpenDirectory, path: &Path) -> Option<OpenDirectory> {
    let line = |directory: &OpenDirectory, name: &str| {
        let (file, _) = directory.file(OsStr::new(name)).ok()?;
        let mut text = String::new();
        file.take(IGNORE_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text.trim_end().to_owned())
    };
    let opened = |path: PathBuf| Roots::default().directory(&path.canonicalize().ok()?).ok();
    let own = path.join(line(directory, ".git")?.strip_prefix("gitdir:")?.trim());
    let common = line(&opened(own.clone())?, "commondir")?;
    opened(own.join(common))
}

/// Parses an ignore file; `None` if it can't be read or is too large.
fn rules_of(file: File, directory: &Path) -> Option<Gitignore> {
    let mut bytes = Vec::new();
    file.take(IGNORE_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    if bytes.len() as u64 > IGNORE_BYTES_MAX {
        return None;
    }
    let text = String::from_utf8_lossy(&bytes);
    let mut builder = GitignoreBuilder::new(directory);
    for line in text.trim_start_matches('\u{feff}').lines() {
        // Invalid patterns are skipped, as by Git.
        let _ = builder.add_line(None, line);
    }
    builder.build().ok().filter(|rules| !rules.is_empty())
}

/// A glob over paths relative to the searched directory.
///
/// `*` and `?` don't match slashes, `**` spans directories, `{a,b}` and `[a-z]` are alternatives. A pattern
/// without a slash matches names at any depth.
pub struct PathPattern(GlobSet);

impl PathPattern {
    /// Compiles the patterns. The error is a message for the model.
    pub fn new(patterns: &[&str]) -> Result<PathPattern, ToolError> {
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            let (pattern, named) = match pattern.strip_prefix("./") {
                Some(below) => (below, false),
                None => (*pattern, !pattern.contains('/')),
            };
            let whole = if named { format!("**/{pattern}") } else { pattern.to_string() };
            // A pattern for a directory matches its contents.
            let whole = if whole.ends_with('/') { whole + "**" } else { whole };
            let glob = GlobBuilder::new(&whole).literal_separator(true).build().map_err(|error| {
                let text = format!(
                    "`{pattern}` is not a valid glob pattern: {}. Use *, **, ?, [a-z] and {{a,b}}; put a backslash \
                     before a special character that is meant literally.",
                    error.kind()
                );
                ToolError::caused(text, error)
            })?;
            set.add(glob);
        }
        let set = set.build().map_err(|error| {
            ToolError::caused(format!("The glob pattern is too complex: {error}."), error)
        })?;
        Ok(PathPattern(set))
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
        PathPattern::new(&[pattern]).expect("a pattern").matches(Path::new(path))
    }

    fn found(root: &Path, ignored: Ignored) -> Vec<String> {
        let mut found = Vec::new();
        let roots = Roots::default().reopened([root]);
        let end = files(root, &roots, ignored, &CancelFlag::default(), |file| {
            found.push(file.relative.display().to_string());
            true
        });
        assert_eq!(end.expect("walked"), WalkEnd::Complete);
        found
    }

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().canonicalize().expect("it is there");
        for (file, text) in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().expect("it is below")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        (directory, root)
    }

    #[test]
    fn ignore_files_apply_as_in_git() {
        let (_directory, root) = tree(&[
            (".ignore", "above.txt\n"),
            (".gitignore", "a.txt\n"),
            ("repo/.git/HEAD", ""),
            ("repo/.git/info/exclude", "excluded.txt\n!kept.log\n"),
            ("repo/.gitignore", "\u{feff}*.log\n/target/\n[\n"),
            ("repo/a.txt", ""),
            ("repo/above.txt", ""),
            ("repo/b.log", ""),
            ("repo/excluded.txt", ""),
            ("repo/kept.log", ""),
            ("repo/sub/.gitignore", "!c.log\nsub\n"),
            ("repo/sub/c.log", ""),
            ("repo/sub/sub/d", ""),
            ("repo/sub/target/e", ""),
            ("repo/target/f", ""),
            ("repo/z/.ignore", "!g.log\n"),
            ("repo/z/g.log", ""),
        ]);
        let repo = root.join("repo");
        let wanted =
            [".gitignore", "a.txt", "sub/.gitignore", "sub/c.log", "sub/target/e", "z/.ignore", "z/g.log"];
        assert_eq!(found(&repo, Ignored::LeftOut), wanted);
        assert_eq!(found(&repo.join("sub"), Ignored::LeftOut), [".gitignore", "c.log", "target/e"]);
        assert_eq!(found(&repo, Ignored::Included).len(), 13);
    }

    /// A named pipe `.ignore` made every search take 60 seconds and fail.
    #[test]
    fn an_ignore_file_that_is_no_file_is_skipped() {
        let (_directory, root) = tree(&[("a", ""), ("sub/b", "")]);
        for name in [".ignore", "sub/.gitignore"] {
            let made = std::process::Command::new("mkfifo").arg(root.join(name)).status();
            assert!(made.expect("mkfifo runs").success());
        }
        let huge = File::create(root.join(".gitignore")).expect("made");
        huge.set_len(1 << 40).expect("sparse");
        assert_eq!(found(&root, Ignored::LeftOut), [".gitignore", "a", "sub/b"]);
    }

    /// The search opened each path by name again, and followed a link that had replaced a directory in the meantime.
    #[test]
    fn a_directory_exchanged_during_the_walk_leads_nowhere() {
        let (_directory, root) =
            tree(&[("w/a", "ours"), ("w/d/b", "ours"), ("w/e/b", "ours"), ("home/b", "theirs")]);
        let work = root.join("w");
        let roots = Roots::default().reopened([&*work]);
        let mut seen = Vec::new();
        let end = files(&work, &roots, Ignored::LeftOut, &CancelFlag::default(), |file| {
            let exchange = |name: &str| {
                std::fs::rename(work.join(name), root.join(name)).expect("renamed");
                std::os::unix::fs::symlink(root.join("home"), work.join(name)).expect("linked");
            };
            match file.relative.to_str() {
                Some("a") => exchange("e"),
                Some("d/b") => exchange("d"),
                _ => {}
            }
            seen.push((
                file.relative.to_path_buf(),
                io::read_to_string(file.open().expect("opened")).expect("read"),
            ));
            true
        });
        assert_eq!(end.expect("walked"), WalkEnd::Complete);
        assert_eq!(seen, [("a".into(), "ours".to_owned()), ("d/b".into(), "ours".to_owned())]);
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
        assert!(PathPattern::new(&["src/[a"]).err().is_some_and(|why| why.to_string().contains("`src/[a`")));
    }

    #[test]
    fn absolute_pattern_is_split_at_the_first_wildcard() {
        assert_eq!(split_absolute("/a/b/**/*.rs"), ("/a/b".into(), "./**/*.rs".into()));
        assert_eq!(split_absolute("/a/b"), ("/a".into(), "./b".into()));
        assert_eq!(split_absolute("/*"), ("/".into(), "./*".into()));
    }
}
