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

/// A pull or merge request: the repository and number in its URL in an output, or its number in a command line.
static REQUEST: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"https://[^\s/]+/([\w.-]+/[\w.-]+|[\w./-]+/-)/(?:pull|merge_requests)/(\d+)|/pulls/(\d+)|\b(?:pr|mr) [a-z]+ (\d+)",
    )
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

/// State extracted from the output of version control, newest first.
#[derive(Default)]
struct GitState {
    /// The branches, each with the directory of its repository if that is not the session's.
    branches: Vec<(String, String)>,
    requests: Vec<String>,
    /// Requests that were only read.
    read: Vec<String>,
    commits: Vec<String>,
}

pub(super) fn compute<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let mut found = GitState::default();
    // Branches whose next older commit was rewritten.
    let mut amended = HashSet::new();
    for call in history.calls().rev() {
        let Some(command) = call.command() else { continue };
        let output = bounded(call.text());
        let elsewhere = directory(&command, history.cwd);
        if runs(call, &["git"]) {
            let commits: Vec<_> = COMMIT.captures_iter(output).collect();
            for commit in commits.iter().rev() {
                let is_replaced = amended.remove(&commit[1]);
                if command.contains("--amend") {
                    amended.insert(commit[1].to_owned());
                }
                if is_replaced {
                    continue;
                }
                let commit = format!("- {} on {}{elsewhere}: {}", &commit[2], &commit[1], &commit[3]);
                add(&mut found.commits, COMMITS_MAX, commit);
            }
            let branch = BRANCH.captures_iter(output).last().map(|branch| branch[1].to_owned());
            let branch = branch.or_else(|| commits.last().map(|commit| commit[1].to_owned()));
            if let Some(branch) = branch
                && found.branches.iter().all(|(_, known)| *known != elsewhere)
            {
                found.branches.push((branch, elsewhere));
            }
        }
        // That a command ended well is not always known, but a URL in its output shows that it did something.
        let is_done = call.result() == CallStatus::Succeeded;
        if runs(call, &["gh", "glab"]) && call.result() != CallStatus::Failed {
            let requests = if READING.is_match(&command) { &mut found.read } else { &mut found.requests };
            let in_command = REQUEST.captures_iter(&command).filter(|_| is_done);
            for request in REQUEST.captures_iter(output).take(1).chain(in_command) {
                let repository =
                    request.get(1).map_or("", |repository| repository.as_str().trim_end_matches("/-"));
                if let Some(number) = request.iter().skip(2).flatten().next() {
                    add_request(requests, format!("{repository}#{}", number.as_str()));
                }
            }
        }
    }
    found.read.retain(|read| !found.requests.iter().any(|request| is_same(request, read)));
    let branches = found.branches.iter().map(|(branch, elsewhere)| format!("branch{elsewhere}: {branch}"));
    let requests = [("pull requests", found.requests), ("pull requests that were only read", found.read)];
    let requests = requests.into_iter().filter(|(_, list)| !list.is_empty());
    let requests = requests.map(|(name, list)| format!("{name}: {}", list.join(", ")));
    let state = branches.take(BRANCHES_MAX).chain(requests).collect::<Vec<_>>().join("; ");
    let state = (!state.is_empty()).then(|| format!("- {state}"));
    let commits = found.commits.iter().map(|commit| clip_line(commit, LINE_BYTES_MAX));
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

/// Adds a request, or the repository of a known one.
fn add_request(list: &mut Vec<String>, request: String) {
    match list.iter_mut().find(|known| is_same(known, &request)) {
        Some(known) if known.len() < request.len() => *known = request,
        Some(_) => {}
        None => add(list, REQUESTS_MAX, request),
    }
}

/// Whether two names such as `#17` and `owner/repository#17` are of one request.
fn is_same(one: &str, other: &str) -> bool {
    let (long, short) = if one.len() < other.len() { (other, one) } else { (one, other) };
    long == short || short.starts_with('#') && long.ends_with(short)
}
