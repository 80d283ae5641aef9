//! Version control: commits, branches and pull requests, from the output of `git`, `gh` and `glab`.

use std::sync::LazyLock;

use regex::Regex;

use super::Render;
use super::history::{CallStatus, ConversationHistory};
use super::quote::{BoundedLines, clip_line};

/// Bytes of an output that are examined.
const OUTPUT_BYTES_MAX: usize = 16 * 1024;
const LINE_BYTES_MAX: usize = 160;

/// Maximum number of commits and of pull requests listed.
const COMMITS_MAX: usize = 60;
const REQUESTS_MAX: usize = 4;

/// `[main 1a2b3c4] subject`, printed by `git commit`.
static COMMIT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)^\[([^\]\s]+(?: \([^)]*\))?) ([0-9a-f]{7,40})\] (.*)$").expect("a valid pattern")
});

/// `On branch x`, `Switched to a new branch 'x'`.
static BRANCH: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)^(?:On branch |Switched to (?:a new )?branch ')([^'\s]+)").expect("a valid pattern")
});

/// A pull or merge request: its URL in an output, or its number in a command line.
static REQUEST: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"https://[^\s/]+/\S+/(?:pull|merge_requests)/(\d+)|/pulls/(\d+)|\b(?:pr|mr) [a-z]+ (\d+)")
        .expect("a valid pattern")
});

/// State extracted from the output of version control, newest first.
#[derive(Default)]
struct GitState {
    branch: Option<String>,
    requests: Vec<String>,
    commits: Vec<String>,
}

pub(super) fn compute<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let mut found = GitState::default();
    for call in history.calls().rev() {
        let Some(command) = call.command() else { continue };
        let has = |program: &str| command.split(|c: char| !c.is_alphanumeric()).any(|word| word == program);
        let output = call.text();
        let output = &output[..output.floor_char_boundary(OUTPUT_BYTES_MAX)];
        if has("git") {
            let commits: Vec<_> = COMMIT.captures_iter(output).collect();
            for commit in commits.iter().rev() {
                let commit = format!("- {} on {}: {}", &commit[2], &commit[1], &commit[3]);
                add(&mut found.commits, COMMITS_MAX, commit);
            }
            let branch = BRANCH.captures_iter(output).last().map(|branch| branch[1].to_owned());
            let of_commit = || commits.last().map(|commit| commit[1].to_owned());
            found.branch = found.branch.or_else(|| branch.or_else(of_commit));
        }
        if (has("gh") || has("glab")) && call.result() == CallStatus::Succeeded {
            let requests = REQUEST.captures_iter(output).take(1).chain(REQUEST.captures_iter(&command));
            for number in requests.filter_map(|found| found.iter().skip(1).flatten().next()) {
                add(&mut found.requests, REQUESTS_MAX, format!("#{}", number.as_str()));
            }
        }
    }
    Box::new(move |bytes_max| found.render(bytes_max))
}

/// Adds an item, unless it is in the list already or the list is full.
fn add(list: &mut Vec<String>, items_max: usize, item: String) {
    if list.len() < items_max && !list.contains(&item) {
        list.push(item);
    }
}

impl GitState {
    fn render(&self, bytes_max: usize) -> String {
        let mut lines = BoundedLines::within(bytes_max);
        let requests = Some(self.requests.join(", ")).filter(|requests| !requests.is_empty());
        let state = [("branch", &self.branch), ("pull requests", &requests)];
        let state =
            state.into_iter().filter_map(|(name, value)| Some(format!("{name}: {}", value.as_ref()?)));
        let state = state.collect::<Vec<_>>().join("; ");
        if !state.is_empty() {
            lines.push(format!("- {state}"));
        }
        for commit in &self.commits {
            if !lines.push(clip_line(commit, LINE_BYTES_MAX)) {
                break;
            }
        }
        lines.text()
    }
}
