//! Watches which repositories the workspace's repositories link to while a command runs, and until all of its processes
//! have ended. `git status` runs in each of them, so a command could make the user's Git run any program.
//!
//! It works in a thread, because neither a cancelled call nor a command that keeps running in the background may end
//! it. Every command has one: a link may have been added before the repository that it leads to.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::git_links::{LinkCache, Linked};
use epitome_platform::group::GroupEnd;

/// Interval between looks: shorter than it takes a user to notice a change and to type a command about it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the guards of a workspace share.
#[derive(Debug, Default)]
pub(super) struct SharedLinks {
    pub cache: Mutex<LinkCache>,
    /// What was found and no command's result has reported. A guard outlives its command by a moment, so it may find what
    /// the next command did; what it finds after a cancelled call is for the next one as well.
    reports: Mutex<Vec<String>>,
}

/// The links between repositories before a command.
#[derive(Debug)]
pub struct LinkGuard {
    /// The working trees of the workspace's repositories.
    worktrees: Vec<PathBuf>,
    /// Directories in which the command can't change settings.
    frozen: Vec<PathBuf>,
    before: Linked,
    shared: Arc<SharedLinks>,
}

impl LinkGuard {
    /// Call it before the command starts. Reads the disk.
    pub(super) fn new(worktrees: Vec<PathBuf>, frozen: Vec<PathBuf>, shared: Arc<SharedLinks>) -> LinkGuard {
        let before = find(&worktrees, &shared);
        LinkGuard { worktrees, frozen, before, shared }
    }

    /// Watches until the group has ended.
    pub fn watch(self: &Arc<Self>, group: GroupEnd) -> io::Result<()> {
        if self.worktrees.is_empty() {
            return Ok(());
        }
        let guard = Arc::clone(self);
        let watch = move || {
            while !group.wait(LOOK_EVERY) {
                guard.look();
            }
            guard.look();
        };
        thread::Builder::new().name("links".to_owned()).spawn(watch).map(drop)
    }

    /// Looks for new links, and returns what was found and not reported yet. Reads the disk.
    pub fn reports(&self) -> Vec<String> {
        self.look();
        std::mem::take(&mut self.shared.reports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn look(&self) {
        let linked = find(&self.worktrees, &self.shared);
        let mut reports = self.shared.reports.lock().unwrap_or_else(PoisonError::into_inner);
        for report in linked.refuse_new(&self.before, &self.frozen) {
            tracing::warn!(report, "a command linked a repository");
            reports.push(report);
        }
    }
}

fn find(worktrees: &[PathBuf], shared: &SharedLinks) -> Linked {
    let mut cache = shared.cache.lock().unwrap_or_else(PoisonError::into_inner);
    Linked::find(worktrees.iter().map(PathBuf::as_path), &mut cache)
}
