//! What the preparation of one command finds on the disk, and needs in several places: each is looked up once. It must not
//! be kept for the next command, because other programs may change all of it. Changes nothing.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use crate::Workspace;
use crate::secret_paths::account_home;
use epitome_platform::root::{Root, resolve};

/// A workspace at the moment at which a command is prepared.
pub(crate) struct CommandDisk<'a> {
    workspace: &'a Workspace,
    real_home: OnceCell<Option<PathBuf>>,
    homes: OnceCell<BTreeSet<PathBuf>>,
    entries: OnceCell<Vec<PathBuf>>,
}

impl Deref for CommandDisk<'_> {
    type Target = Workspace;

    fn deref(&self) -> &Workspace {
        self.workspace
    }
}

impl<'a> CommandDisk<'a> {
    pub fn new(workspace: &'a Workspace) -> CommandDisk<'a> {
        CommandDisk {
            workspace,
            real_home: OnceCell::new(),
            homes: OnceCell::new(),
            entries: OnceCell::new(),
        }
    }

    /// The home with its links resolved; `None` if it does not exist.
    pub fn real_home(&self) -> Option<&Path> {
        self.real_home.get_or_init(|| resolve(&self.home()?).ok()).as_deref()
    }

    /// The home and that of the account, which may be another.
    pub fn homes(&self) -> &BTreeSet<PathBuf> {
        let account = || account_home().and_then(|home| resolve(&home).ok());
        self.homes
            .get_or_init(|| self.real_home().map(Path::to_path_buf).into_iter().chain(account()).collect())
    }

    /// The `.git` entries below the workspace's directories, and what else is executed later.
    pub fn entries(&self) -> &[PathBuf] {
        self.entries.get_or_init(|| self.found().entries(self.roots().iter().map(Root::path)))
    }

    /// The working trees of the workspace's repositories.
    pub fn worktrees(&self) -> impl Iterator<Item = &Path> {
        self.entries().iter().filter(|entry| entry.ends_with(".git")).filter_map(|git| git.parent())
    }
}
