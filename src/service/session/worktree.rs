//! Git worktrees in which sessions work, next to the repository: `app.worktrees/NAME` with the branch `epitome/NAME`.
//!
//! Everything is done by Git, and everything that has to be remembered is in its configuration: the section of the
//! branch names the branch to merge into, and disappears with it. Only worktrees with this mark are merged or removed.
//! Nothing that is not committed gets lost: a merge refuses it, and throwing a worktree away puts it into a stash.
//! All functions block.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::WorkerFault;
use super::commands::why::counted;
use epitome_files::memory::GIT_FILE_BYTES_MAX;
use epitome_platform::child_output::{self, OutputError, OutputLimits};
use epitome_platform::root::read_regular_text;
use epitome_store::{Header, Store, StoreError};
use epitome_thread::SessionId;

/// Time limit of a Git command. Checking out a large repository takes a while.
const GIT_TIME_MAX: Duration = Duration::from_secs(10 * 60);
/// Maximum bytes of a Git command's output.
const OUTPUT_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 60;
/// Branches of worktrees begin with this.
const BRANCH_PREFIX: &str = "epitome/";
/// The key of the branch's section in Git's configuration that names the branch to merge into.
const BASE_KEY: &str = "epitome-base";
/// Maximum number of parent directories that are searched for a worktree's `.git` file.
const CLIMB_MAX: usize = 64;

/// A worktree that Epitome made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worktree {
    pub name: String,
    pub path: PathBuf,
    pub branch: String,
    /// The branch to merge into; `None` if no branch was checked out.
    pub base: Option<String>,
    /// The repository's main worktree.
    main: PathBuf,
}

/// A worktree for a new session.
#[derive(Debug)]
pub struct OpenedWorktree {
    pub worktree: Worktree,
    /// The directory in it that corresponds to the one it was opened from.
    pub directory: PathBuf,
    /// Whether it was made just now.
    pub is_new: bool,
    /// Number of uncommitted changes that are only in the directory it was opened from.
    pub left_behind: usize,
}

/// The content of a worktree that its base lacks.
#[derive(Debug, PartialEq, Eq)]
pub struct WorktreeState {
    /// One line per commit, newest first.
    pub commits: Vec<String>,
    /// One line per file with uncommitted changes, as in `git status --short`.
    pub uncommitted: Vec<String>,
}

/// Why a worktree can't be made, read, merged or removed.
#[derive(Debug, thiserror::Error)]
pub enum WorktreeError {
    #[error(
        "{0:?} can't be the name of a worktree: it is a word of letters, digits, `-`, `_` and `.`, of at most \
         {NAME_BYTES_MAX} characters"
    )]
    Name(String),
    #[error("{} is not in a Git repository: worktrees need one (`git init` makes one)", .0.display())]
    NoRepository(PathBuf),
    #[error("the repository {} has no commit yet, so it can't have a second worktree: commit first", .0.display())]
    NoCommit(PathBuf),
    #[error("no directory for worktrees can be made next to {}", .0.display())]
    NoFolderName(PathBuf),
    #[error("the path {} is not UTF-8", .0.display())]
    NotUtf8(PathBuf),
    #[error("{} exists already: choose another name", .0.display())]
    PathExists(PathBuf),
    #[error(
        "the branch {0} exists already and has no worktree of Epitome: choose another name, or delete it with \
         `git branch -d {0}` if it is not needed"
    )]
    BranchExists(String),
    #[error(
        "the directory {} of the worktree {} is gone: `git worktree repair` finds it after a move, and \
         `git worktree prune` forgets it; its commits are in the branch {}",
        worktree.path.display(), worktree.name, worktree.branch
    )]
    Gone { worktree: Box<Worktree> },
    #[error("this session does not work in a worktree of Epitome; `/worktree NAME` makes one")]
    NotInWorktree,
    #[error("session {0} is at work there; wait for its end, or cancel it where it runs")]
    AtWork(SessionId),
    #[error(
        "no branch was checked out when the worktree was made; merge {0} where you want it, then throw the worktree away"
    )]
    NoBase(String),
    #[error("the branch {base} is not checked out anywhere: check it out in {}", main.display())]
    BaseNotCheckedOut { base: String, main: PathBuf },
    #[error(
        "{} in the worktree {} not committed: commit them first, or let the agent do it\n{}",
        counted(files.len(), "change"), if files.len() == 1 { "is" } else { "are" }, shown(files)
    )]
    Uncommitted { files: Vec<String> },
    #[error(
        "{} in {} not committed: commit or stash them first, so that a merge can't mix with them\n{}",
        counted(changes.len(), "change"), target.display(), shown(changes)
    )]
    TargetUncommitted { target: PathBuf, changes: Vec<String> },
    #[error(
        "the merge would overwrite files in {} that Git does not keep: move them away first\n{}",
        target.display(), shown(files)
    )]
    Overwrites { target: PathBuf, files: Vec<String> },
    #[error("{0} adds too many files to check: merge it with Git")]
    TooManyFiles(String),
    #[error(
        "{branch} and {base} change the same lines, so nothing was merged. Merge {base} in the worktree, resolve the \
         conflicts there, and try again. Files:\n{}",
        shown(files)
    )]
    Conflicts { branch: String, base: String, files: Vec<String> },
    #[error("Git did not commit the merge in {}; the worktree stays", .0.display())]
    NotCommitted(PathBuf),
    #[error("The worktree stays: {0}")]
    Stays(#[source] Box<WorktreeError>),
    #[error("The worktree is removed, its branch stays: {0}")]
    BranchStays(#[source] OutputError),
    #[error("{error}.{kept}")]
    NotDiscarded {
        #[source]
        error: Box<WorktreeError>,
        kept: String,
    },
    #[error("{what}: {source}")]
    Git { what: String, source: OutputError },
    #[error(transparent)]
    Read(#[from] OutputError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Fault(#[from] WorkerFault),
}

/// Says what failed, before what Git says about it.
fn failed(what: impl Into<String>) -> impl FnOnce(OutputError) -> WorktreeError {
    move |source| WorktreeError::Git { what: what.into(), source }
}

/// An entry of `git worktree list`.
struct ListedWorktree {
    path: PathBuf,
    branch: Option<String>,
}

fn git(directory: &Path, arguments: &[&str]) -> Result<String, OutputError> {
    let limits = OutputLimits { time: GIT_TIME_MAX, bytes: OUTPUT_BYTES_MAX, is_over: &|| None };
    child_output::output_of(child_output::git(arguments), directory, &limits)
}

fn line(directory: &Path, arguments: &[&str]) -> Result<String, OutputError> {
    git(directory, arguments).map(|text| text.trim_end_matches('\n').to_owned())
}

fn lines(text: &str) -> Vec<String> {
    text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

/// Opens the worktree of this name for a session, and makes it if it does not exist. The new branch begins at the
/// current commit of `directory`.
pub fn open(directory: &Path, name: &str) -> Result<OpenedWorktree, WorktreeError> {
    check_name(name)?;
    let top = top_of(directory)?;
    git(directory, &["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])
        .map_err(|_| WorktreeError::NoCommit(top.clone()))?;
    let listed = listed(directory)?;
    let within = directory.canonicalize().ok();
    let within = within.as_deref().and_then(|path| path.strip_prefix(&top).ok()).map(Path::to_path_buf);
    // Joining nothing would append a slash.
    let within = within.filter(|within| !within.as_os_str().is_empty());
    let opened = |worktree: Worktree, is_new, left_behind| {
        let directory =
            within.map(|within| worktree.path.join(within)).filter(|directory| directory.is_dir());
        let directory = directory.unwrap_or_else(|| worktree.path.clone());
        OpenedWorktree { worktree, directory, is_new, left_behind }
    };
    let branch = format!("{BRANCH_PREFIX}{name}");
    if let Some(found) = made_by_epitome(directory, &listed)?.into_iter().find(|made| made.branch == branch) {
        return match found.path.is_dir() {
            true => Ok(opened(found, false, 0)),
            false => Err(WorktreeError::Gone { worktree: Box::new(found) }),
        };
    }
    if git(directory, &["rev-parse", "--verify", "--quiet", &format!("refs/heads/{branch}")]).is_ok() {
        return Err(WorktreeError::BranchExists(branch));
    }
    let main = listed.first().map_or_else(|| top.clone(), |main| main.path.clone());
    let path = path_for(&main, name)?;
    if path.symlink_metadata().is_ok() {
        return Err(WorktreeError::PathExists(path));
    }
    // The full name: next to a tag of the same name, the short one would begin with `heads/`.
    let head = line(directory, &["symbolic-ref", "--quiet", "HEAD"]).ok();
    let base = head.and_then(|name| name.strip_prefix("refs/heads/").map(str::to_owned));
    let text = path.to_str().ok_or_else(|| WorktreeError::NotUtf8(path.clone()))?;
    git(directory, &["worktree", "add", "--quiet", "-b", &branch, text, "HEAD"])
        .map_err(failed(format!("the worktree {} can't be made", path.display())))?;
    let key = format!("branch.{branch}.{BASE_KEY}");
    let marked = git(directory, &["config", &key, base.as_deref().unwrap_or_default()]);
    if let Err(error) = marked.map_err(failed("Git's configuration can't be changed")) {
        // Without the mark it would never be cleaned up. It is new, so it contains nothing.
        drop(git(directory, &["worktree", "remove", text]));
        drop(git(directory, &["branch", "-d", &branch]));
        return Err(error);
    }
    let left_behind = changes(&top, true)?.len();
    let worktree = Worktree { name: name.to_owned(), path, branch, base, main };
    Ok(opened(worktree, true, left_behind))
}

/// Returns the worktree made by Epitome that a directory is in.
pub fn containing(directory: &Path) -> Result<Option<Worktree>, WorktreeError> {
    let top = top_of(directory)?;
    let made = made_by_epitome(directory, &listed(directory)?)?;
    Ok(made.into_iter().find(|made| made.path == top))
}

/// Lists the worktrees of a repository that Epitome made.
pub fn list(directory: &Path) -> Result<Vec<Worktree>, WorktreeError> {
    top_of(directory)?;
    made_by_epitome(directory, &listed(directory)?)
}

/// The name of the linked worktree that a directory is in, also if Epitome did not make it. Reads only two
/// files, for lists.
pub fn name_of(directory: &Path) -> Option<String> {
    let file =
        directory.ancestors().take(CLIMB_MAX).map(|parent| parent.join(".git")).find(|file| file.exists())?;
    let text = read_regular_text(&file, GIT_FILE_BYTES_MAX).ok()?;
    let own = Path::new(text.strip_prefix("gitdir:")?.trim());
    if !own.parent()?.ends_with(".git/worktrees") {
        return None;
    }
    let head = read_regular_text(&file.parent()?.join(own).join("HEAD"), GIT_FILE_BYTES_MAX).ok()?;
    let branch = head.trim().strip_prefix("ref: refs/heads/");
    let made = branch.and_then(|branch| branch.strip_prefix(BRANCH_PREFIX));
    made.map(str::to_owned).or_else(|| Some(own.file_name()?.to_string_lossy().into_owned()))
}

impl Worktree {
    pub fn state(&self) -> Result<WorktreeState, WorktreeError> {
        // Its base may have been renamed or deleted since.
        let base = self.base.as_ref().map(|base| format!("refs/heads/{base}"));
        let base = base.filter(|base| git(&self.path, &["rev-parse", "--verify", "--quiet", base]).is_ok());
        let range = base.map_or_else(|| "HEAD".to_owned(), |base| format!("{base}..HEAD"));
        let commits = git(&self.path, &["log", "--max-count=50", "--format=%h %s", &range])?;
        Ok(WorktreeState { commits: lines(&commits), uncommitted: changes(&self.path, true)? })
    }

    /// Fails if a session other than `own` is at work in it, in any process: it would write files while they are removed.
    pub fn check_idle(&self, store: &Store, own: Option<&SessionId>) -> Result<(), WorktreeError> {
        let listed = store.list()?;
        let at_work = listed.headers.iter().find(|header| {
            header.in_turn
                && header.cwd.starts_with(&self.path)
                && own != Some(&header.session)
                // A turn whose process was killed has no end either.
                && store.is_in_use(&header.session)
        });
        match at_work {
            None => Ok(()),
            Some(Header { session, .. }) => Err(WorktreeError::AtWork(session.clone())),
        }
    }

    /// Merges the branch into its base and removes the worktree. Refuses if anything would be lost.
    pub fn merge(&self) -> Result<String, WorktreeError> {
        let Some(base) = &self.base else {
            return Err(WorktreeError::NoBase(self.branch.clone()));
        };
        let uncommitted = changes(&self.path, true)?;
        if !uncommitted.is_empty() {
            return Err(WorktreeError::Uncommitted { files: uncommitted });
        }
        let target = listed(&self.path)?.into_iter().find(|listed| listed.branch.as_ref() == Some(base));
        let Some(target) = target.map(|listed| listed.path) else {
            return Err(WorktreeError::BaseNotCheckedOut { base: base.clone(), main: self.main.clone() });
        };
        let changes = changes(&target, false)?;
        if !changes.is_empty() {
            return Err(WorktreeError::TargetUncommitted { target, changes });
        }
        let files = in_the_way(&target, &self.branch_ref())?;
        if !files.is_empty() {
            return Err(WorktreeError::Overwrites { target, files });
        }
        if let Err(source) = git(&target, &["merge", "--quiet", "--no-edit", &self.branch_ref()]) {
            let files = git(&target, &["diff", "--name-only", "--diff-filter=U"]).unwrap_or_default();
            // It fails if the merge has not begun, and then there is nothing to abort.
            drop(git(&target, &["merge", "--abort"]));
            let files = lines(&files);
            return Err(match files.is_empty() {
                true => WorktreeError::Git {
                    what: format!("Git can't merge {} into {base}", self.branch),
                    source,
                },
                false => WorktreeError::Conflicts { branch: self.branch.clone(), base: base.clone(), files },
            });
        }
        let merged = format!("Merged {} into {base} in {}.", self.branch, target.display());
        // Settings of Git can make `git merge` succeed without a commit.
        git(&target, &["merge-base", "--is-ancestor", &self.branch_ref(), "HEAD"])
            .map_err(|_| WorktreeError::NotCommitted(target.clone()))?;
        // Not `-d`, which compares with an upstream branch instead, if there is one.
        match self.remove(&target) {
            Ok(()) => Ok(format!("{merged} The worktree and its branch are removed.")),
            Err(why) => Ok(format!("{merged} {why}")),
        }
    }

    /// Removes the worktree and its branch. Uncommitted changes are put into a stash, and the answer names the last
    /// commit, so that both can be restored.
    pub fn discard(&self) -> Result<String, WorktreeError> {
        let tip = line(&self.path, &["rev-parse", "HEAD"])?;
        let state = self.state()?;
        let mut kept = String::new();
        if !state.uncommitted.is_empty() {
            let message = format!("epitome: worktree {}", self.name);
            git(&self.path, &["stash", "push", "--quiet", "--include-untracked", "--message", &message])
                .map_err(failed("the uncommitted changes can't be put into a stash"))?;
            kept = format!(
                " Its uncommitted changes are in the stash “{message}”: `git stash list` shows it, `git stash apply` \
                 restores it."
            );
        }
        if let Err(error) = self.remove(&self.main) {
            return Err(WorktreeError::NotDiscarded { error: Box::new(error), kept });
        }
        if self.base.is_none() || !state.commits.is_empty() {
            kept.push_str(&format!(" `git branch {} {tip}` restores its commits.", self.branch));
        }
        Ok(format!("The worktree {} and its branch {} are removed.{kept}", self.name, self.branch))
    }

    /// The branch by its full name, which no tag has.
    fn branch_ref(&self) -> String {
        format!("refs/heads/{}", self.branch)
    }

    /// Removes the worktree, then its branch.
    fn remove(&self, from: &Path) -> Result<(), WorktreeError> {
        let stays = |error| WorktreeError::Stays(Box::new(error));
        let path = self.path.to_str().ok_or_else(|| stays(WorktreeError::NotUtf8(self.path.clone())))?;
        // Without --force: Git refuses if something has changed since.
        git(from, &["worktree", "remove", path]).map_err(|error| stays(error.into()))?;
        if let Some(parent) = self.path.parent() {
            // Only an empty directory can be removed.
            drop(fs::remove_dir(parent));
        }
        git(from, &["branch", "--quiet", "-D", &self.branch]).map(drop).map_err(WorktreeError::BranchStays)
    }
}

fn check_name(name: &str) -> Result<(), WorktreeError> {
    let is_good = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    let is_name = name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= NAME_BYTES_MAX
        && name.chars().all(is_good)
        && !name.contains("..")
        && !name.ends_with(['.', '-'])
        && !name.ends_with(".lock");
    match is_name {
        true => Ok(()),
        false => Err(WorktreeError::Name(name.to_owned())),
    }
}

fn top_of(directory: &Path) -> Result<PathBuf, WorktreeError> {
    match line(directory, &["rev-parse", "--show-toplevel"]) {
        Ok(top) => Ok(PathBuf::from(top)),
        Err(source) if source.to_string().contains("not a git") => {
            Err(WorktreeError::NoRepository(directory.to_path_buf()))
        }
        Err(source) => Err(WorktreeError::Git { what: directory.display().to_string(), source }),
    }
}

/// `app.worktrees/NAME` next to `app`.
fn path_for(main: &Path, name: &str) -> Result<PathBuf, WorktreeError> {
    let Some(Component::Normal(folder)) = main.components().next_back() else {
        return Err(WorktreeError::NoFolderName(main.to_path_buf()));
    };
    let mut folder: OsString = folder.to_owned();
    folder.push(".worktrees");
    Ok(main.with_file_name(folder).join(name))
}

fn listed(directory: &Path) -> Result<Vec<ListedWorktree>, WorktreeError> {
    let text = git(directory, &["worktree", "list", "--porcelain", "-z"])?;
    let entries = text.split("\0\0").filter(|entry| !entry.trim_matches('\0').is_empty());
    let read = entries.filter_map(|entry| {
        let field =
            |name: &str| entry.split('\0').find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let branch = field("branch").and_then(|name| name.strip_prefix("refs/heads/")).map(str::to_owned);
        Some(ListedWorktree { path: PathBuf::from(field("worktree")?), branch })
    });
    let mut read: Vec<ListedWorktree> = read.collect();
    // For a submodule, Git lists the repository, which lies below `.git/modules` of another one.
    if let Some(main) = read.first_mut() {
        main.path = top_of(&main.path).unwrap_or_else(|_| main.path.clone());
    }
    Ok(read)
}

fn made_by_epitome(directory: &Path, listed: &[ListedWorktree]) -> Result<Vec<Worktree>, WorktreeError> {
    let pattern = format!(r"^branch\.{BRANCH_PREFIX}.*\.{BASE_KEY}$");
    // It fails if there is none.
    let marked = git(directory, &["config", "--local", "-z", "--get-regexp", &pattern]).unwrap_or_default();
    let Some(main) = listed.first() else { return Ok(Vec::new()) };
    let made = marked.split('\0').filter_map(|entry| {
        let (key, base) = entry.split_once('\n')?;
        let branch = key.strip_prefix("branch.")?.strip_suffix(BASE_KEY)?.strip_suffix('.')?;
        let listed = listed.iter().find(|listed| listed.branch.as_deref() == Some(branch))?;
        Some(Worktree {
            name: branch.strip_prefix(BRANCH_PREFIX)?.to_owned(),
            path: listed.path.clone(),
            branch: branch.to_owned(),
            base: (!base.is_empty()).then(|| base.to_owned()),
            main: main.path.clone(),
        })
    });
    Ok(made.collect())
}

/// Files below `target` that are not in Git, and that a merge of this branch would overwrite: Git spares other untracked
/// files, but not ignored ones.
fn in_the_way(target: &Path, branch: &str) -> Result<Vec<String>, WorktreeError> {
    let added = ["diff", "-z", "--name-only", "--no-renames", "--diff-filter=A", "HEAD", branch];
    let added = git(target, &added)?;
    if added.len() as u64 >= OUTPUT_BYTES_MAX {
        return Err(WorktreeError::TooManyFiles(branch.to_owned()));
    }
    let exists = |path: &Path| target.join(path).symlink_metadata().is_ok();
    let is_in_the_way = |path: &&str| {
        let mut parents = Path::new(path).ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
        exists(Path::new(path)) || parents.any(|parent| exists(parent) && !target.join(parent).is_dir())
    };
    let paths = added.split('\0').filter(|path| !path.is_empty());
    Ok(paths.filter(is_in_the_way).map(str::to_owned).collect())
}

/// Files with uncommitted changes, optionally with new ones.
fn changes(directory: &Path, with_new: bool) -> Result<Vec<String>, WorktreeError> {
    let new = if with_new { "--untracked-files=all" } else { "--untracked-files=no" };
    Ok(lines(&git(directory, &["status", "--short", new])?))
}

/// The first lines of a list.
pub fn shown(lines: &[String]) -> String {
    const SHOWN_MAX: usize = 20;
    let mut shown: Vec<String> =
        lines.iter().take(SHOWN_MAX).map(|line| format!("- `{}`", line.trim())).collect();
    if lines.len() > SHOWN_MAX {
        shown.push(format!("- and {} more", lines.len() - SHOWN_MAX));
    }
    shown.join("\n")
}
