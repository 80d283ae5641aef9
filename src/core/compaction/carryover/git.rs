//! Version control: commits, branches and pull requests, from the output of `git`, `gh` and `glab`.

use std::collections::HashSet;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::Render;
use super::history::{CallRecord, CallStatus, ConversationHistory};
use super::quote::{BoundedLines, clip_line};
use epitome_shell::ShellCommand;

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

/// `On branch x`, `Switched to a new branch 'x'`.
static BRANCH: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)^(?:On branch |Switched to (?:a new )?branch ')([^'\s]+)").expect("a valid pattern")
});

/// A pull or merge request, by its URL: the repository and the number.
static REQUEST: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"https://[^\s/]+/([\w.-]+/[\w.-]+|[\w./-]+/-)/(?:pull|merge_requests)/(\d+)")
        .expect("a valid pattern")
});

/// Commands that only read a request, which may be anybody's.
static READING: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\b(?:pr|mr) (?:view|diff|checks|list|status|checkout)\b|/pulls/").expect("a valid pattern")
});

/// The directory outside of the session's that a command line changes to first, or names to `git`.
static DIRECTORY: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?:^\s*cd|\bgit -C) (?:"((?:/|~|\.\.)[^"\n]*)"|((?:/|~|\.\.)[^\s;&|"']*))"#)
        .expect("a valid pattern")
});

pub(super) fn compute<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    // The branches have the directory of their repository if that is not the session's.
    let mut branches: Vec<(String, String)> = Vec::new();
    let (mut requests, mut commits) = (Vec::new(), Vec::new());
    // Branches whose next older commit was rewritten.
    let mut amended = HashSet::new();
    for call in history.calls.iter().rev() {
        let Some(command) = call.command() else { continue };
        let output = bounded(call.text());
        let elsewhere = directory(&command, history.cwd);
        if runs(call, &["git"]) {
            let printed: Vec<_> = COMMIT.captures_iter(output).collect();
            for commit in printed.iter().rev() {
                let is_replaced = amended.remove(&commit[1]);
                if command.contains("--amend") {
                    amended.insert(commit[1].to_owned());
                }
                if is_replaced {
                    continue;
                }
                let commit = format!("- {} on {}{elsewhere}: {}", &commit[2], &commit[1], &commit[3]);
                add(&mut commits, COMMITS_MAX, commit);
            }
            let branch = BRANCH.captures_iter(output).last().map(|branch| branch[1].to_owned());
            let branch = branch.or_else(|| printed.last().map(|commit| commit[1].to_owned()));
            if let Some(branch) = branch
                && branches.iter().all(|(_, known)| *known != elsewhere)
            {
                branches.push((branch, elsewhere));
            }
        }
        // That a command ended well is not always known, but a URL in its output shows that it did something.
        if runs(call, &["gh", "glab"])
            && call.status != CallStatus::Failed
            && !READING.is_match(&command)
            && let Some(request) = REQUEST.captures(output)
        {
            let repository = request[1].trim_end_matches("/-");
            add(&mut requests, REQUESTS_MAX, format!("{repository}#{}", &request[2]));
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
fn directory(command: &str, cwd: &Path) -> String {
    let named = DIRECTORY.captures(command).and_then(|found| found.iter().skip(1).flatten().next());
    let outside = named.map(|named| named.as_str()).filter(|named| !Path::new(named).starts_with(cwd));
    outside.map_or(String::new(), |named| format!(" in {named}"))
}

/// Adds an item, unless it is in the list already or the list is full.
fn add(list: &mut Vec<String>, items_max: usize, item: String) {
    if list.len() < items_max && !list.contains(&item) {
        list.push(item);
    }
}
