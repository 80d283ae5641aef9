//! Recognizes command lines that change a Git repository. Pure.

use super::command_line::parts::{CommandParts, WITH_VALUE};
use super::command_line::refused;

/// Subcommands that never change the Git directory, whatever their arguments; some of them write files elsewhere. All
/// others, including unknown ones, are assumed to change it.
const READING: &str = "annotate archive blame bugreport cat-file check-attr check-ignore check-mailmap check-ref-format cherry \
    clean column count-objects describe diagnose diff diff-files diff-index diff-pairs diff-tree difftool \
    fast-export fmt-merge-msg for-each-ref format-patch fsck get-tar-commit-id grep help interpret-trailers \
    last-modified log ls-files ls-remote ls-tree mailinfo mailsplit merge-base merge-file name-rev patch-id \
    range-diff request-pull rev-list rev-parse shortlog show show-branch show-index show-ref status \
    stripspace unpack-file var verify-pack version";

/// Ordinary subcommands that run no other programs than Git's hooks and those of its settings, unless an option says so.
const PLAIN: &str = "add branch checkout cherry-pick commit diff log merge mv rebase reset restore revert rm show status switch";

/// Whether a line certainly consists of ordinary commands of Git in the current directory.
pub fn is_plain(line: &str) -> bool {
    let patterns: Vec<String> = PLAIN.split(' ').map(|subcommand| format!("git {subcommand} *")).collect();
    !line.trim().is_empty() && refused(line, &patterns).is_none()
}

/// Subcommands that change a repository only with some arguments; `None` for others.
fn changes_by_arguments(subcommand: &str, rest: &[&str]) -> Option<bool> {
    let words: Vec<&str> = rest.iter().copied().filter(|word| !word.starts_with('-')).collect();
    let first = words.first().copied();
    let is_first = |listing: &[&str]| first.is_some_and(|first| listing.contains(&first));
    let has_of = |options: &str| rest.iter().any(|word| is_listed(options, option(word)));
    let has = |options: &[&str]| rest.iter().any(|word| options.contains(&option(word)));
    let lists_or_nothing = |listing: &[&str]| first.is_some() && !is_first(listing);
    Some(match subcommand {
        "branch" => {
            first.is_some() && !has_of(LISTS)
                || rest.iter().any(|word| ["-d", "-D", "-m", "-M", "-c", "-C", "-f", "-u"].contains(word))
                || has_of(CHANGES)
        }
        "tag" => {
            first.is_some() && !has_of(LISTS) && !has(&["-n", "-v", "--verify"])
                || has(&["-d", "-f"])
                || has_of(CHANGES)
        }
        // One name without a value queries the setting.
        "config" => {
            let asks = has_of(LISTS) || is_first(&["get", "list"]) || has(&["-l"]);
            let edits =
                has(&["-e", "--edit", "--unset", "--unset-all", "--remove-section", "--rename-section"]);
            edits || (!asks && (words.len() > 1 || is_first(&["edit"])))
        }
        "notes" => lists_or_nothing(&["list", "show", "get-ref"]),
        "reflog" => is_first(&["expire", "delete", "drop", "write"]),
        "remote" => lists_or_nothing(&["show", "get-url"]),
        // `git stash` without arguments changes the repository.
        "stash" => !is_first(&["list", "show"]),
        "worktree" => lists_or_nothing(&["list"]),
        "submodule" => lists_or_nothing(&["status", "summary"]),
        "bisect" => !is_first(&["log", "view", "visualize", "terms", "help"]),
        "bundle" => !is_first(&["create", "verify", "list-heads"]),
        "rerere" => !is_first(&["status", "diff", "remaining"]),
        "sparse-checkout" => !is_first(&["list", "check-rules"]),
        "symbolic-ref" => words.len() != 1 || has(&["-d", "--delete"]),
        "hash-object" => has(&["-w"]),
        "commit-graph" | "multi-pack-index" => !is_first(&["verify"]),
        "refs" => !is_first(&["verify", "list", "exists"]),
        "verify-commit" | "verify-tag" => false,
        _ => return None,
    })
}

/// Whether a command line calls a subcommand of Git that may change a repository. An ambiguous line counts as
/// changing if any reading of it does. The effects of scripts and other programs are not recognized.
pub fn changes_repository(line: &str) -> bool {
    let parts = CommandParts::parse(line);
    let calls: Vec<&str> = parts.commands.iter().filter_map(|command| arguments(command)).collect();
    calls.iter().enumerate().any(|(at, call)| {
        // This is the same call without some of its options; the complete one is judged.
        let is_shortened = calls[..at].iter().any(|whole| whole.starts_with('-') && whole.ends_with(call));
        !is_shortened && changes(call.split_ascii_whitespace())
    })
}

/// Returns the arguments of a command if its program is Git.
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
    let rest: Vec<&str> = words.collect();
    !is_listed(READING, subcommand) && changes_by_arguments(subcommand, &rest).unwrap_or(true)
}

fn is_listed(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|listed| listed == word)
}

fn option(word: &str) -> &str {
    word.split('=').next().unwrap_or(word)
}

const LISTS: &str = "-l --list --show-current --format --contains --no-contains --merged --no-merged --points-at --get \
    --get-all --get-regexp";

const CHANGES: &str =
    "--delete --move --copy --force --set-upstream-to --unset-upstream --edit-description --track";

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
            ("git config user.name", false),
            ("git config -l", false),
            ("git branch --show-current", false),
            ("git tag -l 'v1*'", false),
            ("git reflog main", false),
            ("git submodule status", false),
            ("git bisect log", false),
            ("git symbolic-ref HEAD", false),
            ("git hash-object Cargo.toml", false),
            ("git format-patch -1 -o x", false),
            ("git bundle create x main", false),
            ("git config user.name me", true),
            ("git config --edit", true),
            ("git config --unset user.name", true),
            ("git reflog expire --all", true),
            ("git remote add up x", true),
            ("git symbolic-ref HEAD refs/heads/x", true),
            ("git hash-object -w Cargo.toml", true),
            ("git merge-tree main topic", true),
            ("git tag -d v1", true),
            ("git fetch", true),
            ("git maintenance run", true),
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

    #[test]
    fn lines_of_ordinary_commands_are_plain() {
        for (line, expected) in [
            ("git add -A && git commit -qm 'a; b'", true),
            ("git commit -m \"$(cat <<'EOF'\na\nEOF\n)\"", true),
            ("git switch -c feature; git status", true),
            ("git rebase main", true),
            ("git rebase -x make main", false),
            ("git rebase --exec=make main", false),
            ("git -c core.fsmonitor=./x status", false),
            ("git -C lib commit -m x", false),
            ("cd lib && git commit -m x", false),
            ("GIT_DIR=x git commit -m x", false),
            ("./git commit -m x", false),
            ("git commit -m x && make", false),
            ("git commit -m \"$(make)\"", false),
            ("git log --output=x", false),
            ("git submodule update", false),
            ("git update-index --add --cacheinfo 160000,a,b", false),
            ("git push", false),
            ("git config user.name x", false),
            ("git", false),
            ("", false),
        ] {
            assert_eq!(is_plain(line), expected, "{line}");
        }
    }

    /// The list was written from memory. This test compares it with the commands of the installed Git: each of them
    /// must be in the list, or be one of those that change something.
    #[test]
    fn every_command_of_git_is_classified() {
        const CHANGING: &str = "add am apply bisect branch bundle checkout checkout-index cherry-pick citool clone commit \
            commit-graph commit-tree config cvsexportcommit cvsimport cvsserver archimport credential credential-cache \
            credential-store daemon fast-import fetch fetch-pack filter-branch for-each-repo fsck-objects gc gui gitk \
            gitweb hash-object hook http-backend http-fetch http-push imap-send index-pack init init-db instaweb \
            maintenance merge merge-index merge-octopus merge-one-file merge-ours merge-recursive \
            merge-recursive-ours merge-recursive-theirs merge-resolve merge-subtree merge-tree mergetool mktag mktree \
            multi-pack-index mv notes p4 pack-objects pack-redundant pack-refs pickaxe prune prune-packed pull push \
            quiltimport read-tree rebase receive-pack reflog refs remote remote-ext remote-fd remote-ftp remote-ftps \
            remote-http remote-https repack replace replay rerere reset restore revert rm scalar send-email send-pack \
            shell sparse-checkout stage stash submodule svn switch symbolic-ref tag unpack-objects update-index update-ref \
            update-server-info upload-archive upload-pack verify-commit verify-tag whatchanged worktree write-tree \
            sh-i18n sh-setup";
        let listed = std::process::Command::new("git").args(["--list-cmds=builtins,main,nohelpers"]).output();
        let Some(listed) = listed.ok().filter(|listed| listed.status.success()) else {
            eprintln!("skipped: there is no git");
            return;
        };
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let is_known = |name: &&str| {
            is_listed(READING, name)
                || CHANGING.split_whitespace().any(|known| known == *name)
                || name.contains("--")
                || name.contains('.')
        };
        let unknown: Vec<&str> = listed.split_whitespace().filter(|name| !is_known(name)).collect();
        // An unknown command of a newer Git counts as changing, which asks too often rather than too rarely.
        eprintln!("not compared: {unknown:?}");
        let version = std::process::Command::new("git").arg("--version").output().expect("it runs").stdout;
        let is_newer = |name: &str| !String::from_utf8_lossy(&version).contains(name);
        assert!(unknown.is_empty() || is_newer(" 2.47."), "{unknown:?}");
        for name in READING.split_whitespace() {
            assert!(!changes_repository(&format!("git {name} x")), "{name}");
            assert!(!CHANGING.split_whitespace().any(|known| known == name), "{name} is in both lists");
        }
    }
}
