//! Where the person's files are. The process's own working directory is not used past `main`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The directories of one person's Epitome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Configuration, recipes, hooks: `EPITOME_HOME`, else `~/.epitome`.
    pub home: PathBuf,
    /// Journals, blobs, sled: `XDG_DATA_HOME/epitome`, or `data` below a given `EPITOME_HOME`.
    pub data: PathBuf,
    /// Logs: `XDG_STATE_HOME/epitome`, or `state` below a given `EPITOME_HOME`.
    pub state: PathBuf,
    /// The person's own home directory, for files of other agents; `None` in the barest environments.
    pub user_home: Option<PathBuf>,
}

impl Paths {
    /// Reads the places from an environment. `HOME` may be missing (some editors pass `PATH` alone);
    /// then the password file's entry counts.
    pub fn from_environment(get: impl Fn(&str) -> Option<OsString>) -> Paths {
        let absolute = |name: &str| get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let user_home = absolute("HOME").or_else(|| etcetera::home_dir().ok());
        if let Some(home) = absolute("EPITOME_HOME") {
            let (data, state) = (home.join("data"), home.join("state"));
            return Paths { home, data, state, user_home };
        }
        let base = user_home.clone().unwrap_or_else(std::env::temp_dir);
        let data = absolute("XDG_DATA_HOME").unwrap_or_else(|| base.join(".local/share"));
        let state = absolute("XDG_STATE_HOME").unwrap_or_else(|| base.join(".local/state"));
        Paths {
            home: base.join(".epitome"),
            data: data.join("epitome"),
            state: state.join("epitome"),
            user_home,
        }
    }

    /// All below one directory, as `EPITOME_HOME` gives it.
    pub fn below(home: &Path) -> Paths {
        Paths {
            home: home.to_path_buf(),
            data: home.join("data"),
            state: home.join("state"),
            user_home: None,
        }
    }

    pub fn config_file(&self) -> PathBuf {
        self.home.join("config.toml")
    }

    pub fn log_directory(&self) -> PathBuf {
        self.state.join("log")
    }
}

/// Where a repository's files are looked for: the directory of a session and then, when it is another,
/// the root of the Git repository that it is in. Never the home directory for a session below it: what
/// stands there is the person's own. Blocks on the disk.
pub fn repository_roots(cwd: &Path) -> Vec<PathBuf> {
    let home = etcetera::home_dir().ok();
    let above = cwd.ancestors().take_while(|folder| Some(*folder) != home.as_deref());
    let root = above.into_iter().find(|folder| folder.join(".git").exists());
    let mut roots = vec![cwd.to_path_buf()];
    roots.extend(root.filter(|root| *root != cwd).map(Path::to_path_buf));
    roots
}
