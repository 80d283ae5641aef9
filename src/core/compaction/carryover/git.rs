//! Version control: commits, branches and pull requests, from the output of `git`, `gh` and `glab`.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::Render;
use super::files::below;
use super::history::{CallRecord, CallStatus, ConversationHistory};
use super::quote::{BoundedLines, clip_line};
use epitome_shell::ShellCommand;
use epitome_shell::word::{LITERAL, UNKNOWN};

/// Bytes of an output that are examined.
const OUTPUT_BYTES_MAX: usize = 16 * 1024;
const LINE_BYTES_MAX: usize = 160;

/// Maximum number of commits, pull requests and branches listed.
const COMMITS_MAX: usize = 60;
const REQUESTS_MAX: usize = 4;
const BRANCHES_MAX: usize = 3;

/// `[main 1a2b3c4] subject`, printed by `git commit`.
static COMMIT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)^\[([^\]\s]+(?: \([^)]*\))?) ([0-9a-f]{7,40})\] (.*)$").expect("a valid pattern")
});

/// `On branch x`, `Switched to a new branch 'x'`, `Already on 'x'`.
static BRANCH: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)^(?:On branch |Switched to (?:a new )?branch '|Already on ')([^'\s]+)")
        .expect("a valid pattern")
});

/// A pull or merge request, by its URL: the repository and the number.
static REQUEST: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"https://[^\s/]+/([\w.-]+/[\w.-]+|[\w./-]+/-)/(?:pull|merge_requests)/(\d+)")
        .expect("a valid pattern")
});

/// Commands that make or change a request. All others may read anybody's.
static CHANGING: LazyLock<Regex> = LazyLock::new(|| {
    let actions = "create|new|edit|update|merge|ready|close|reopen|comment|note|review|approve|submit";
    Regex::new(&format!(r"\b(?:pr|mr|stack) (?:{actions})\b")).expect("a valid pattern")
});

/// A command line that takes the newest commits back, with their number.
static RESET: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\bgit reset (?:--[a-z]+ )?HEAD(?:~(\d*)|\^)(?:\s|$)").expect("a valid pattern")
});

/// Printed at the end of a rebase that succeeded, before the name of the branch and a period.
const REBASED: &str = "Successfully rebased and updated refs/heads/";

/// The beginnings of the subjects of commits that a rebase folds into others.
const FOLDED: [&str; 3] = ["fixup! ", "squash! ", "amend! "];

/// The directory outside of the session's that a command line changes to first, or names to `git`.
static DIRECTORY: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?:^\s*cd|\bgit -C) (?:"((?:/|~|\.\.)[^"\n]*)"|((?:/|~|\.\.)[^\s;&|"']*))"#)
        .expect("a valid pattern")
});

pub(super) fn compute<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    // The branches have the directory of their repository if that is not the session's.
    let mut branches: Vec<(String, String)> = Vec::new();
    let (mut requests, mut commits) = (Vec::new(), Vec::new());
    // Branches whose next older commit was rewritten, and those of which all older ones were.
    let (mut amended, mut rebased) = (HashSet::new(), HashSet::new());
    // The number of older commits that were taken back, by directory.
    let mut reset: HashMap<String, usize> = HashMap::new();
    for call in history.calls.iter().rev() {
        let output = bounded(call.text());
        // The name of the server precedes that of the tool.
        let is_tool =
            call.name.ends_with("create_pull_request") || call.name.ends_with("create_merge_request");
        if is_tool {
            add_request(&mut requests, output);
        }
        let Some(command) = call.command() else { continue };
        let elsewhere = directory(&command, call, history.cwd);
        if runs(call, &["git"]) {
            let printed: Vec<_> = COMMIT.captures_iter(output).collect();
            let rebase = output.rfind(REBASED);
            let rebased_now =
                rebase.and_then(|at| output[at + REBASED.len()..].lines().next()?.strip_suffix('.'));
            for commit in printed.iter().rev() {
                let branch = branch_of(commit);
                let is_replaced = amended.remove(branch);
                if command.contains("--amend") {
                    amended.insert(branch.to_owned());
                }
                let is_before = || commit.get(0).map(|commit| commit.start()) < rebase;
                let is_rebased = rebased.contains(branch) || rebased_now == Some(branch) && is_before();
                let subject = &commit[3];
                let is_reset = reset.get_mut(&elsewhere).filter(|count| **count > 0).map(|count| *count -= 1);
                if is_replaced
                    || is_reset.is_some()
                    || is_rebased && FOLDED.iter().any(|begin| subject.starts_with(begin))
                {
                    continue;
                }
                let id = if is_rebased { "before a rebase" } else { &commit[2] };
                let commit = format!("- {id} on {branch}{elsewhere}: {subject}");
                add(&mut commits, COMMITS_MAX, commit);
            }
            let branch = BRANCH.captures_iter(output).last().map(|branch| branch[1].to_owned());
            let branch = branch.or_else(|| printed.last().map(|commit| branch_of(commit).to_owned()));
            let branch = branch.or_else(|| created_branch(call));
            rebased.extend(rebased_now.map(str::to_owned));
            if let Some(found) = RESET.captures(&command).filter(|_| call.status == CallStatus::Succeeded) {
                let count = found.get(1).map_or(Ok(1), |count| count.as_str().parse()).unwrap_or(1);
                *reset.entry(elsewhere.clone()).or_default() += count;
            }
            if let Some(branch) = branch
                && branches.iter().all(|(_, known)| *known != elsewhere)
            {
                branches.push((branch, elsewhere));
            }
        }
        // That a command ended well is not always known, but a URL in its output shows that it did something.
        let is_changing =
            runs(call, &["gh", "glab"]) && call.status != CallStatus::Failed && CHANGING.is_match(&command);
        if is_changing {
            add_request(&mut requests, output);
        }
    }
    let branches = branches.iter().map(|(branch, elsewhere)| format!("branch{elsewhere}: {branch}"));
    let requests = (!requests.is_empty()).then(|| format!("pull requests: {}", requests.join(", ")));
    let state = branches.take(BRANCHES_MAX).chain(requests).collect::<Vec<_>>().join("; ");
    let state = (!state.is_empty()).then(|| format!("- {state}"));
    let commits = commits.iter().map(|commit| clip_line(commit, LINE_BYTES_MAX));
    let lines: Vec<String> = state.into_iter().chain(commits).collect();
    Box::new(move |bytes_max| BoundedLines::of(bytes_max, &lines).text())
}

/// The branch in what `git commit` printed, which may have `(root-commit)` behind it.
fn branch_of<'t>(commit: &regex::Captures<'t>) -> &'t str {
    commit.get(1).map_or("", |branch| branch.as_str()).split(' ').next().unwrap_or_default()
}

/// The branch that a command line created, which a quiet `git` doesn't print.
fn created_branch(call: &CallRecord<'_>) -> Option<String> {
    let of_command = |command: &ShellCommand| {
        let words = &command.words[..];
        let at =
            words.iter().position(|word| ["-b", "-B", "-c", "-C", "--create"].contains(&word.as_str()))?;
        let is_creating = words[..at].iter().any(|word| word == "checkout" || word == "switch");
        words.get(at + 1).filter(|name| is_creating && !name.contains([UNKNOWN, LITERAL])).cloned()
    };
    let is_done = call.status == CallStatus::Succeeded;
    commands(call).filter(|_| is_done).filter_map(of_command).last()
}

/// How many commits a call made, by its output.
pub(super) fn commits_of(call: &CallRecord<'_>) -> usize {
    if runs(call, &["git"]) { COMMIT.find_iter(bounded(call.text())).count() } else { 0 }
}

/// Whether a call's command line runs one of these programs, maybe by another one such as `timeout`. Files with such names are not
/// meant: a guide to `gh` that was printed named somebody's pull request.
fn runs(call: &CallRecord<'_>, programs: &[&str]) -> bool {
    let is_one = |word: &str| programs.contains(&word.rsplit('/').next().unwrap_or(word));
    if call.statements().is_none() {
        return call.command().is_some_and(|line| line.split_whitespace().any(is_one));
    }
    commands(call).flat_map(|command| &command.words).any(|word| is_one(word))
}

/// The commands of a call's command line.
fn commands<'h>(call: &'h CallRecord<'_>) -> impl Iterator<Item = &'h ShellCommand> {
    let pipelines = call.statements().unwrap_or_default().iter().flat_map(|statement| &statement.pipelines);
    pipelines.flat_map(|pipeline| &pipeline.commands).flat_map(ShellCommand::all)
}

fn bounded(output: &str) -> &str {
    &output[..output.floor_char_boundary(OUTPUT_BYTES_MAX)]
}

/// ` in DIRECTORY` if a command is about a repository outside of the session's directory.
fn directory(command: &str, call: &CallRecord<'_>, cwd: &Path) -> String {
    let named = DIRECTORY.captures(command).and_then(|found| found.iter().skip(1).flatten().next());
    let named = named.map(|named| named.as_str()).or_else(|| call.directory());
    let outside = named.filter(|named| below(named, cwd).is_none());
    outside.map_or(String::new(), |named| format!(" in {named}"))
}

/// Adds an item, unless it is in the list already or the list is full.
fn add(list: &mut Vec<String>, items_max: usize, item: String) {
    if list.len() < items_max && !list.contains(&item) {
        list.push(item);
    }
}

/// Adds the first request whose URL is in an output.
fn add_request(list: &mut Vec<String>, output: &str) {
    if let Some(request) = REQUEST.captures(output) {
        add(list, REQUESTS_MAX, format!("{}#{}", request[1].trim_end_matches("/-"), &request[2]));
    }
}
