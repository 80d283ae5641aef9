//! Notices that are shown once per session.

use std::collections::HashSet;

use super::ClientList;
use crate::problem_notice;
use epitome_problem::Problem;
use epitome_thread::{HookRun, HookRunResult};

/// What the user was told, and what nobody was there to see.
#[derive(Default)]
pub(super) struct Notices {
    pending_problems: Vec<Problem>,
    problems: HashSet<Problem>,
    hooks: HashSet<(String, HookRunResult)>,
    sandbox: bool,
}

impl ClientList {
    /// Shows each problem once, and waits for a client if none is attached.
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

    /// Shows the problems that were found while no client was attached.
    pub fn notify_pending_problems(&mut self) {
        let problems = std::mem::take(&mut self.notices.pending_problems);
        self.notify_problems(&problems);
    }

    /// Whether a run of a hook is the first that went so.
    pub fn is_first_of_hook(&mut self, run: &HookRun) -> bool {
        self.notices.hooks.insert((run.hook.clone(), run.verdict))
    }

    /// Whether what the sandbox can't enforce here was not told yet.
    pub fn is_first_of_sandbox(&mut self) -> bool {
        !std::mem::replace(&mut self.notices.sandbox, true)
    }
}
