//! Recognises command lines that change a Git repository. Pure.

use super::command_line::parts::CommandParts;

/// Subcommands that leave a repository as it is, whatever their arguments. Others may change it.
const READING: [&str; 42] = [
    "annotate",
    "archive",
    "blame",
    "cat-file",
    "check-attr",
    "check-ignore",
    "check-mailmap",
    "check-ref-format",
    "cherry",
    "column",
    "count-objects",
    "describe",
    "diff",
    "diff-files",
    "diff-index",
    "diff-tree",
    "for-each-ref",
    "fsck",
    "grep",
    "help",
    "interpret-trailers",
    "log",
    "ls-files",
    "ls-remote",
    "ls-tree",
    "mailinfo",
    "merge-base",
    "merge-tree",
    "name-rev",
    "patch-id",
    "range-diff",
    "rev-list",
    "rev-parse",
    "shortlog",
    "show",
    "show-branch",
    "show-ref",
    "status",
    "var",
    "verify-commit",
    "verify-tag",
    "version",
];

/// Subcommands that only list something when called with nothing but options or one of these words.
const LISTING: [(&str, &[&str]); 8] = [
    ("branch", &[]),
    ("config", &["get", "list"]),
    ("notes", &["list", "show"]),
    ("reflog", &["show", "exists"]),
    ("remote", &["show", "get-url"]),
    ("stash", &["list", "show"]),
    ("tag", &[]),
    ("worktree", &["list"]),
];

/// Options of `git` itself that are followed by a value.
const WITH_VALUE: [&str; 7] =
    ["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"];

/// Whether a command line calls a subcommand of Git that may change a repository. When the line is ambiguous, it
/// does if any reading of it does. What scripts and other programs do is not recognised.
pub fn changes_repository(line: &str) -> bool {
    let parts = CommandParts::parse(line);
    let calls: Vec<&str> = parts.commands.iter().filter_map(|command| arguments(command)).collect();
    calls.iter().enumerate().any(|(at, call)| {
        // The same call without some of its options; the whole one is judged.
        let is_shortened = calls[..at].iter().any(|whole| whole.starts_with('-') && whole.ends_with(call));
        !is_shortened && changes(call.split_ascii_whitespace())
    })
}

/// The arguments of a command, if it is Git.
fn arguments(command: &str) -> Option<&str> {
    let (program, arguments) = command.split_once(' ')?;
    (program.rsplit('/').next() == Some("git")).then_some(arguments)
}

fn changes<'a>(mut words: impl Iterator<Item = &'a str>) -> bool {
    let subcommand = loop {
        match words.next() {
            None => return false,
            Some(option) if WITH_VALUE.contains(&option) => drop(words.next()),
            Some(option) if option.starts_with('-') => {}
            Some(word) => break word,
        }
    };
    if READING.contains(&subcommand) {
        return false;
    }
    let rest: Vec<&str> = words.collect();
    let first = rest.iter().find(|word| !word.starts_with('-'));
    match LISTING.iter().find(|(name, _)| *name == subcommand) {
        // `git stash` alone changes; `git branch` alone lists.
        Some(("stash", words)) => !first.is_some_and(|first| words.contains(first)),
        Some(("branch" | "tag", _)) => {
            first.is_some()
                && !rest.iter().any(|word| word.starts_with("--") && LISTS.contains(&option(word)))
                || rest.iter().any(|word| ["-d", "-D", "-m", "-M", "-c", "-C", "-f", "-u"].contains(word))
                || rest.iter().any(|word| CHANGES.contains(&option(word)))
        }
        Some((_, words)) => {
            first.is_some_and(|first| !words.contains(first))
                && !rest.iter().any(|word| LISTS.contains(&option(word)))
        }
        None => true,
    }
}

/// The name of an option without its value.
fn option(word: &str) -> &str {
    word.split('=').next().unwrap_or(word)
}

const LISTS: [&str; 9] = [
    "--list",
    "--contains",
    "--no-contains",
    "--merged",
    "--no-merged",
    "--points-at",
    "--get",
    "--get-all",
    "--get-regexp",
];

const CHANGES: [&str; 8] = [
    "--delete",
    "--move",
    "--copy",
    "--force",
    "--set-upstream-to",
    "--unset-upstream",
    "--edit-description",
    "--track",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_change_a_repository_are_recognised() {
        for (line, expected) in [
            ("git status", false),
            ("git log --oneline -5 && git diff HEAD~1", false),
            ("git -C lib -c color.ui=never show HEAD", false),
            ("git branch", false),
            ("git branch -a", false),
            ("git branch --contains abc", false),
            ("git stash list", false),
            ("git remote -v", false),
            ("git config --get user.name", false),
            ("git worktree list", false),
            ("git --version", false),
            ("cargo test", false),
            ("echo git commit", false),
            ("git commit -m x", true),
            ("git add -A", true),
            ("cd lib && /usr/bin/git -C x add .", true),
            ("env GIT_DIR=x git commit", true),
            ("bash -c 'git stash'", true),
            ("git stash", true),
            ("git stash pop", true),
            ("git branch new", true),
            ("git branch -D old", true),
            ("git tag v1", true),
            ("git tag -l", false),
            ("git worktree add ../x", true),
            ("git submodule update --init", true),
            ("git rebase main", true),
            ("git unknown-alias", true),
            ("for f in a b; do git add $f; done", true),
        ] {
            assert_eq!(
                changes_repository(line),
                expected,
                "{line}: {:?}",
                CommandParts::parse(line).commands
            );
        }
    }
}
