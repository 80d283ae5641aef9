//! Watches a command until all of its processes have ended.
//!
//! It watches which repositories the workspace's repositories link to. `git status` runs in each of them, so a command
//! could make the user's Git run any program.
//!
//! If a command may change repositories, it also removes symbolic links in Git directories, which Git would follow, and
//! looks for links in the new commits, which the user may check out.
//!
//! It also watches the protected files. The kernel removes the mount that protects a file from a command as soon as
//! anybody else removes the file or renames another one over it, as editors do to save it. The command is ended then.
//!
//! It works in a thread, because neither a cancelled call nor a command that keeps running in the background may end
//! it. Every command has one: a link may have been added before the repository that it leads to.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::git;
use super::git_links::{LinkCache, Linked, put_aside};
use epitome_platform::child_output::{self, OutputLimits};
use epitome_platform::entry_watch::{self, EntryNews, EntryWatch};
use epitome_platform::group::{GroupEnd, KILL_GRACE};
use epitome_platform::os::OwnedFd;
use epitome_platform::root::DirectoryEntry;
use epitome_platform::sandbox::SandboxPaths;

/// Interval between looks: shorter than it takes a user to notice a change and to type a command about it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a change of settings waits for the end of other commands: a group ends some time after its command.
const OTHERS_WAIT_MAX: Duration = KILL_GRACE.saturating_mul(3);

/// The state that the guards of a workspace share.
#[derive(Debug, Default)]
pub(super) struct SharedLinks {
    pub cache: Mutex<LinkCache>,
    /// Findings that no command's result has reported. A guard outlives its command by a moment, so it may find a
    /// change of the next command; its findings after a cancelled call are for the next one as well.
    reports: Mutex<Vec<String>>,
}

/// The running commands that may change repositories, each with its number and their Git directories. All sessions of a
/// process share it, because several may work in one repository.
static CHANGING: Mutex<Vec<(u64, Vec<PathBuf>)>> = Mutex::new(Vec::new());

/// Notified when one of them has ended.
static ENDED: Condvar = Condvar::new();

/// Limits of the commands that look for new commits.
const COMMITS: OutputLimits<'static> =
    OutputLimits { time: Duration::from_secs(10), bytes: 16 * 1024 * 1024, is_over: &|| None };

/// Maximum tips of branches before a command that are left out of the search. With more, older commits are searched, too.
const TIPS_MAX: usize = 1_000;

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
    /// The Git directories that the command may change, each with a working tree.
    changed: Vec<ChangedRepository>,
    /// `None` when they are watched.
    entries: Mutex<Option<EntryWatch>>,
    /// Why the command was ended.
    replaced: OnceLock<String>,
    shared: Arc<SharedLinks>,
}

/// A repository that a command may change, before it.
#[derive(Debug)]
struct ChangedRepository {
    worktree: PathBuf,
    git: PathBuf,
    /// The symbolic links in it; `None` if there are too many entries.
    links: Option<BTreeSet<PathBuf>>,
    /// The commits that its branches and reflogs name.
    tips: Vec<String>,
    /// Lines of unfinished operations that run a program.
    running: Vec<(PathBuf, String)>,
}

impl ChangedRepository {
    fn find(worktree: &Path) -> Option<ChangedRepository> {
        let git = git::directory(worktree)?;
        let listed = child_output::git(&["rev-list", "--no-walk=unsorted", "--all", "--reflog"]);
        let listed = child_output::output_of(listed, worktree, &COMMITS).unwrap_or_default();
        let links = git::links(&git).map(BTreeSet::from_iter);
        let tips = listed.lines().map(str::to_owned).collect();
        let running = git::running_lines(&git);
        Some(ChangedRepository { worktree: worktree.to_path_buf(), git, links, tips, running })
    }

    /// Puts new lists of unfinished operations aside if they run a program. Returns a description of each.
    fn refuse_running(&self) -> Vec<String> {
        let mut new = git::running_lines(&self.git);
        new.retain(|line| !self.running.contains(line));
        let refused = new.iter().filter_map(|(file, line)| {
            put_aside(file).ok()?;
            Some(format!(
                "[{} would have run a program when the operation is continued: {line:?}. \".refused\" was added to its name. Look at \
                 it before you change the name back]",
                file.display()
            ))
        });
        refused.collect()
    }

    /// Removes new symbolic links. Returns a description of each. A repository in which they can't be found any more is put out
    /// of use.
    fn remove_links(&self) -> Vec<String> {
        let Some(before) = &self.links else { return Vec::new() };
        let Some(links) = git::links(&self.git) else {
            let objects = self.git.join("objects");
            let done = match put_aside(&objects) {
                Ok(()) => "its name was changed, so that Git does not use the repository".to_owned(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
                Err(error) => format!("its name could not be changed ({error})"),
            };
            return vec![format!(
                "[{} has too many entries now to be searched for links that Git would follow. {}: {done}. Look at it before \
                 you change the name back]",
                self.git.display(),
                objects.display()
            )];
        };
        let new = links.into_iter().filter(|link| !before.contains(link));
        let removed = new.filter_map(|link| {
            let target = fs::read_link(&link).ok()?;
            let done = match DirectoryEntry::at(&link).and_then(|entry| entry.remove_file()) {
                Ok(()) => "was removed".to_owned(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
                Err(error) => format!("could not be removed ({error}): look at it before you use Git there"),
            };
            Some(format!(
                "[{} was a link to {}. Git would have followed it, so it {done}]",
                link.display(),
                target.display()
            ))
        });
        removed.collect()
    }

    /// The paths of links to repositories in new commits.
    fn committed_links(&self) -> Result<Vec<PathBuf>, String> {
        let mut arguments =
            vec!["-c", "log.showSignature=false", "log", "--all", "--format=", "--raw", "-z", "-m"];
        // The user may return to a commit that only the reflog names.
        arguments.extend([
            "--reflog",
            "--root",
            "--no-renames",
            "--no-abbrev",
            "--no-ext-diff",
            "--no-textconv",
            "--not",
        ]);
        arguments.extend(self.tips.iter().take(TIPS_MAX).map(String::as_str));
        let text = child_output::output_of(child_output::git(&arguments), &self.worktree, &COMMITS)
            .map_err(|error| error.to_string())?;
        if text.len() as u64 >= COMMITS.bytes {
            return Err("they are too large".to_owned());
        }
        // `:100644 160000 OLD NEW M`, and the path.
        let mut parts = text.split('\0');
        let mut found = Vec::new();
        while let Some(part) = parts.next() {
            if part.trim_start().starts_with(':') {
                let path = parts.next().unwrap_or_default();
                found.extend(part.split(' ').nth(1).filter(|mode| *mode == "160000").map(|_| path.into()));
            }
        }
        Ok(found)
    }
}

impl LinkGuard {
    /// Call it before the command starts. `changes_git`: whether it may change repositories. Reads the disk.
    pub(super) fn new(
        worktrees: Vec<PathBuf>,
        frozen: Vec<PathBuf>,
        paths: &SandboxPaths,
        changes_git: bool,
        shared: Arc<SharedLinks>,
    ) -> LinkGuard {
        let before = find(&worktrees, &shared);
        let protected = [&paths.frozen, &paths.replaced, &paths.covered].into_iter().flatten();
        let entries = EntryWatch::new(protected.map(PathBuf::as_path));
        let number = fastrand::u64(..);
        let mut changed: Vec<ChangedRepository> = Vec::new();
        if changes_git {
            for worktree in &worktrees {
                if git::directory(worktree).is_some_and(|git| changed.iter().all(|known| known.git != git)) {
                    changed.extend(ChangedRepository::find(worktree));
                }
            }
            CHANGING.lock().push((number, changed.iter().map(|one| one.git.clone()).collect()));
        }
        let entries = Mutex::new(Some(entries));
        LinkGuard { number, worktrees, frozen, before, changed, entries, replaced: OnceLock::new(), shared }
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
                guard.look_at(&group);
            }
            guard.look_at_commits();
            guard.look();
            guard.look_at_unfinished();
            guard.leave();
        };
        thread::Builder::new().name("links".to_owned()).spawn(watch).map(drop)
    }

    /// Watches until the command's first process has ended.
    fn watch_entries(&self, group: &GroupEnd, leader: &OwnedFd) {
        let entries = self.entries.lock().take();
        while let Some(entries) = &entries {
            match entries.wait(leader, LOOK_EVERY) {
                Ok(EntryNews::Quiet) => self.look_at(group),
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

    /// Ends a command that links a Git directory to other files: it could do so again before each command of the user.
    fn look_at(&self, group: &GroupEnd) {
        if self.look() {
            let report =
                "[the command was ended, because it made symbolic links in a Git directory]".to_owned();
            let _ = self.replaced.set(report);
            group.force();
        }
    }

    fn leave(&self) {
        CHANGING.lock().retain(|(number, _)| *number != self.number);
        ENDED.notify_all();
    }

    /// Waits a moment until no other command runs that may change repositories, and returns whether that is so. Blocks.
    pub(super) fn is_alone(&self) -> bool {
        let mut changing = CHANGING.lock();
        let is_own = |git: &PathBuf| self.changed.iter().any(|own| own.git == *git);
        let is_shared = |changing: &mut Vec<(u64, Vec<PathBuf>)>| {
            changing.iter().any(|(number, gits)| *number != self.number && gits.iter().any(is_own))
        };
        ENDED.wait_while_for(&mut changing, is_shared, OTHERS_WAIT_MAX);
        !is_shared(&mut changing)
    }

    /// Looks for new links, and returns what was found and not reported yet. Reads the disk.
    pub fn reports(&self) -> Vec<String> {
        self.look_at_commits();
        self.look();
        self.look_at_unfinished();
        let found = std::mem::take(&mut *self.shared.reports.lock());
        self.replaced.get().cloned().into_iter().chain(found).collect()
    }

    fn look_at_commits(&self) {
        for repository in &self.changed {
            let worktree = &repository.worktree;
            match repository.committed_links() {
                Ok(links) => self.shared.cache.lock().add_committed(worktree, links),
                Err(why) => {
                    let report = format!(
                        "[the new commits in {} could not be searched for links to other repositories: {why}]",
                        worktree.display()
                    );
                    let mut reports = self.shared.reports.lock();
                    if !reports.contains(&report) {
                        reports.push(report);
                    }
                }
            }
        }
    }

    /// Only when the command has ended: it may be the one that continues.
    fn look_at_unfinished(&self) {
        let refused = self.changed.iter().flat_map(ChangedRepository::refuse_running);
        self.shared.reports.lock().extend(refused);
    }

    /// Undoes what would make Git run a program. Returns whether there were symbolic links.
    fn look(&self) -> bool {
        let linked = find(&self.worktrees, &self.shared);
        let mut reports = self.shared.reports.lock();
        let removed: Vec<String> = self.changed.iter().flat_map(ChangedRepository::remove_links).collect();
        let has_links = !removed.is_empty();
        reports.extend(removed);
        for report in linked.refuse_new(&self.before, &self.frozen) {
            tracing::warn!(report, "a command linked a repository");
            reports.push(report);
        }
        has_links
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
    let mut all: BTreeSet<PathBuf> = worktrees.iter().cloned().collect();
    let commons: BTreeSet<PathBuf> =
        worktrees.iter().filter_map(|worktree| git::directory(worktree)).collect();
    all.extend(commons.iter().flat_map(|common| git::worktrees(common)));
    Linked::find(all.iter().map(PathBuf::as_path), &mut cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command left a rebase behind whose strategy was a program of the workspace, which `git rebase --continue` ran.
    #[test]
    fn an_unfinished_operation_that_runs_a_program_is_put_aside() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let git = directory.path().join(".git");
        let write = |name: &str, text: &str| {
            let file = git.join(name);
            fs::create_dir_all(file.parent().expect("it has one")).expect("made");
            fs::write(file, text).expect("written");
        };
        let own = "pick 1 one\nexec make own\n";
        write("rebase-merge/git-rebase-todo", own);
        let running = git::running_lines(&git);
        let worktree = directory.path().to_path_buf();
        let repository =
            ChangedRepository { worktree, git: git.clone(), links: None, tips: Vec::new(), running };
        write("sequencer/todo", "pick 2 exec\n");
        write("rebase-merge/strategy", "ort\n");
        assert_eq!(repository.refuse_running(), [""; 0], "what was there, and what runs only Git");
        for (name, text) in [
            ("rebase-merge/git-rebase-todo", "exec make own\n\tx ./evil\n"),
            ("rebase-merge/strategy", "x/../evil\n"),
            ("worktrees/w/sequencer/opts", "[options]\n\tstrategy = x/../evil\n"),
        ] {
            write(name, text);
            assert_eq!(repository.refuse_running().len(), 1, "{name}");
            assert!(!git.join(name).exists() && git.join(format!("{name}.refused")).exists(), "{name}");
        }
    }

    /// A command made so many files that its link in place of a reflog was not found.
    #[test]
    fn a_git_directory_that_cannot_be_searched_is_put_out_of_use() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let git = directory.path().join(".git");
        for made in ["objects", "logs", "many"] {
            fs::create_dir_all(git.join(made)).expect("made");
        }
        let links = git::links(&git).map(BTreeSet::from_iter);
        let worktree = directory.path().to_path_buf();
        let repository =
            ChangedRepository { worktree, git: git.clone(), links, tips: Vec::new(), running: Vec::new() };
        assert_eq!(repository.remove_links(), [""; 0]);
        (0..1_100).for_each(|n| fs::write(git.join(format!("many/{n}")), "").expect("written"));
        let reports = repository.remove_links();
        assert!(reports.len() == 1 && reports[0].contains("too many entries"), "{reports:?}");
        assert!(!git.join("objects").exists() && git.join("objects.refused").exists());
    }
}
