//! Notices that are shown once per session.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use super::ClientList;
use crate::problem_notice;
use epitome_thread::problem::Problem;
use epitome_thread::{HookRun, HookRunResult};

/// Notices already shown, and problems waiting for a client.
#[derive(Default)]
pub(super) struct Notices {
    pending_problems: Vec<Problem>,
    problems: HashSet<Problem>,
    hooks: HashSet<(String, HookRunResult)>,
    sandbox: bool,
}

impl ClientList {
    /// Shows each problem once. If no client is attached, they wait for one.
    pub fn notify_problems(&mut self, problems: &[Problem]) {
        for problem in problems {
            tracing::warn!(%problem, "a file of the user's has a problem");
            if self.is_empty() {
                self.notices.pending_problems.push(problem.clone());
            } else if self.notices.problems.insert(problem.clone()) {
                self.announce(&problem_notice(problem));
            }
        }
    }

    /// Shows the problems of one kind of file; many of them as a single notice that names the command to list them.
    pub fn notify_problems_of(&mut self, kind: &str, problems: &[Problem]) {
        self.notify_problems(&summarized(kind, problems));
    }

    /// Shows the problems that were found while no client was attached.
    pub fn notify_pending_problems(&mut self) {
        let problems = std::mem::take(&mut self.notices.pending_problems);
        self.notify_problems(&problems);
    }

    /// Whether this is the first run of the hook with this result.
    pub fn is_first_of_hook(&mut self, run: &HookRun) -> bool {
        self.notices.hooks.insert((run.hook.clone(), run.verdict))
    }

    /// Whether the limits of the sandbox on this system have not been reported yet.
    pub fn is_first_of_sandbox(&mut self) -> bool {
        !std::mem::replace(&mut self.notices.sandbox, true)
    }
}

/// Problems of one kind of file that are shown individually.
const SHOWN_PROBLEMS_MAX: usize = 2;

fn summarized(kind: &str, problems: &[Problem]) -> Vec<Problem> {
    let Some(first) = problems.first().filter(|_| problems.len() > SHOWN_PROBLEMS_MAX) else {
        return problems.to_vec();
    };
    let files: BTreeSet<&Path> = problems.iter().map(|problem| problem.path.as_path()).collect();
    let path = first.path.parent().unwrap_or(&first.path).to_path_buf();
    let message = format!("{} {kind} here and elsewhere have remarks or are not used", files.len());
    vec![Problem::new(path, message).with_hint(format!("`epitome {kind} check` shows all"))]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with 158 published agents, the first prompt began with fifty notices.
    #[test]
    fn many_problems_of_one_kind_are_one_line() {
        let problem = |number: usize| {
            Problem::new(format!("/home/ann/.claude/agents/{number}.md"), "\"hooks\" has no effect here")
        };
        let problems: Vec<Problem> = (0..52).map(problem).collect();
        assert_eq!(summarized("agents", &problems[..2]), problems[..2]);
        let lines: Vec<String> = summarized("agents", &problems).iter().map(ToString::to_string).collect();
        let wanted = "/home/ann/.claude/agents: 52 agents here and elsewhere have remarks or are not used \
                      (`epitome agents check` shows all)";
        assert_eq!(lines, [wanted]);
    }
}
