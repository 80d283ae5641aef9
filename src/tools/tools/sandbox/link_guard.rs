//! Watches a command until all of its processes have ended.
//!
//! It watches which repositories the workspace's repositories link to. `git status` runs in each of them, so a command
//! could make the user's Git run any program.
//!
//! It also watches the protected files. The kernel removes the mount that protects a file from a command as soon as
//! anybody else removes the file or renames another one over it, as editors do to save it. The command is ended then.
//!
//! It works in a thread, because neither a cancelled call nor a command that keeps running in the background may end
//! it. Every command has one: a link may have been added before the repository that it leads to.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::git_links::{LinkCache, Linked};
use epitome_platform::entry_watch::{self, EntryNews, EntryWatch};
use epitome_platform::group::{GroupEnd, KILL_GRACE};
use epitome_platform::os::OwnedFd;
use epitome_platform::sandbox::SandboxPaths;

/// Interval between looks: shorter than it takes a user to notice a change and to type a command about it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a change of settings waits for the end of other commands: a group ends some time after its command.
const OTHERS_WAIT_MAX: Duration = KILL_GRACE.saturating_mul(3);

/// What the guards of a workspace share.
#[derive(Debug, Default)]
pub(super) struct SharedLinks {
    pub cache: Mutex<LinkCache>,
    /// What was found and no command's result has reported. A guard outlives its command by a moment, so it may find what
    /// the next command did; what it finds after a cancelled call is for the next one as well.
    reports: Mutex<Vec<String>>,
    /// The running commands that may change repositories.
    changing: Mutex<BTreeSet<u64>>,
    /// Notified when one of them has ended.
    ended: Condvar,
}

/// The links between repositories before a command, and the files that are protected from it.
#[derive(Debug)]
pub struct LinkGuard {
    /// Different for each command.
    number: u64,
    /// The working trees of the workspace's repositories.
    worktrees: Vec<PathBuf>,
    /// Directories in which the command can't change settings.
    frozen: Vec<PathBuf>,
    before: Linked,
    /// `None` when they are watched.
    entries: Mutex<Option<EntryWatch>>,
    /// Why the command was ended.
    replaced: OnceLock<String>,
    shared: Arc<SharedLinks>,
}

impl LinkGuard {
    /// Call it before the command starts. `changes_git`: whether it may change repositories. Reads the disk.
    pub(super) fn new(
        worktrees: Vec<PathBuf>,
        frozen: Vec<PathBuf>,
        places: &SandboxPaths,
        changes_git: bool,
        shared: Arc<SharedLinks>,
    ) -> LinkGuard {
        let before = find(&worktrees, &shared);
        let protected = [&places.frozen, &places.replaced, &places.covered].into_iter().flatten();
        let entries = EntryWatch::new(protected.map(PathBuf::as_path));
        let number = fastrand::u64(..);
        if changes_git {
            shared.changing.lock().insert(number);
        }
        let entries = Mutex::new(Some(entries));
        LinkGuard { number, worktrees, frozen, before, entries, replaced: OnceLock::new(), shared }
    }

    /// Watches until the group has ended.
    pub fn watch(self: &Arc<Self>, group: GroupEnd) -> io::Result<()> {
        let guard = Arc::clone(self);
        let leader = entry_watch::descriptor_of(group.leader());
        let watch = move || {
            if let Ok(leader) = leader {
                guard.watch_entries(&group, &leader);
            }
            while !group.wait(LOOK_EVERY) {
                guard.look();
            }
            guard.look();
            guard.leave();
        };
        thread::Builder::new().name("links".to_owned()).spawn(watch).map(drop)
    }

    /// Watches until the command's first process has ended.
    fn watch_entries(&self, group: &GroupEnd, leader: &OwnedFd) {
        let entries = self.entries.lock().take();
        while let Some(entries) = &entries {
            match entries.wait(leader, LOOK_EVERY) {
                Ok(EntryNews::Quiet) => self.look(),
                Ok(EntryNews::Replaced(path)) => {
                    let report = format!(
                        "[{} was replaced while this command ran; the sandbox can't protect it any longer, so the \
                         command was ended]",
                        path.display()
                    );
                    tracing::warn!(report, "a command was ended");
                    // The command's result must find the report.
                    let _ = self.replaced.set(report);
                    return group.force();
                }
                Ok(EntryNews::Ended) | Err(_) => return,
            }
        }
    }

    fn leave(&self) {
        self.shared.changing.lock().remove(&self.number);
        self.shared.ended.notify_all();
    }

    /// Waits a moment until no other command runs that may change repositories, and returns whether that is so. Blocks.
    pub(super) fn is_alone(&self) -> bool {
        let mut changing = self.shared.changing.lock();
        let is_shared = |changing: &mut BTreeSet<u64>| changing.iter().any(|number| *number != self.number);
        self.shared.ended.wait_while_for(&mut changing, is_shared, OTHERS_WAIT_MAX);
        !is_shared(&mut changing)
    }

    /// Looks for new links, and returns what was found and not reported yet. Reads the disk.
    pub fn reports(&self) -> Vec<String> {
        self.look();
        let found = std::mem::take(&mut *self.shared.reports.lock());
        self.replaced.get().cloned().into_iter().chain(found).collect()
    }

    fn look(&self) {
        let linked = find(&self.worktrees, &self.shared);
        let mut reports = self.shared.reports.lock();
        for report in linked.refuse_new(&self.before, &self.frozen) {
            tracing::warn!(report, "a command linked a repository");
            reports.push(report);
        }
    }
}

impl Drop for LinkGuard {
    /// The command may not have been started.
    fn drop(&mut self) {
        self.leave();
    }
}

fn find(worktrees: &[PathBuf], shared: &SharedLinks) -> Linked {
    let mut cache = shared.cache.lock();
    Linked::find(worktrees.iter().map(PathBuf::as_path), &mut cache)
}
