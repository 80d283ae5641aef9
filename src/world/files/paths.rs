//! Locations of the user's files. The process's working directory isn't used after `main`.

use epitome_platform::os::{MetadataExt, OsStrExt, runtime_directory, user_id};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Maximum number of parent directories searched for the root of a repository.
const ROOT_CLIMB_MAX: usize = 64;

/// The directories that Epitome uses for one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Configuration, recipes, hooks: `EPITOME_HOME`, or else `~/.epitome`.
    pub home: PathBuf,
    /// Journals, blobs, index: `XDG_DATA_HOME/epitome`, or `data` below a given `EPITOME_HOME`.
    pub data: PathBuf,
    /// Logs: `XDG_STATE_HOME/epitome`, or `state` below a given `EPITOME_HOME`.
    pub state: PathBuf,
    /// The policy of the machine, which only its administrator can change.
    pub policy: PathBuf,
    /// Sockets and locks of the daemon: `XDG_RUNTIME_DIR/epitome`, or `run` below a given `EPITOME_HOME`;
    /// without either, `/run/user/<uid>/epitome`, or `/tmp/epitome-<uid>` if that directory doesn't exist or
    /// isn't the user's.
    pub runtime: PathBuf,
    /// The user's home directory, for files of other agents; `None` in minimal environments.
    pub user_home: Option<PathBuf>,
}

/// Longest socket path in bytes, including the terminating zero. `sun_path` has 108 bytes on Linux and 104 on
/// the BSDs.
pub const SOCKET_PATH_BYTES_MAX: usize = 104;

/// The longest file name of a socket in the directory for sockets.
pub const LONGEST_SOCKET_NAME: &str = "control.sock";

impl Paths {
    /// Determines the locations from an environment. If `HOME` is missing (some editors pass only `PATH`), the home
    /// directory is taken from the password file.
    pub fn from_environment(get: impl Fn(&str) -> Option<OsString>) -> Paths {
        let absolute = |name: &str| get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let user_home = absolute("HOME").or_else(|| std::env::home_dir().filter(|home| home.is_absolute()));
        if let Some(home) = absolute("EPITOME_HOME") {
            return Paths { user_home, ..Paths::below(&home) };
        }
        let base = user_home.clone().unwrap_or_else(std::env::temp_dir);
        let data = absolute("XDG_DATA_HOME").unwrap_or_else(|| base.join(".local/share"));
        let state = absolute("XDG_STATE_HOME").unwrap_or_else(|| base.join(".local/state"));
        let runtime = match absolute("XDG_RUNTIME_DIR") {
            Some(directory) => directory.join("epitome"),
            // Some editors pass only `PATH`, but must find the same daemon as the others.
            None => runtime_directory("epitome"),
        };
        Paths {
            home: base.join(".epitome"),
            data: data.join("epitome"),
            state: state.join("epitome"),
            policy: policy_directory(),
            runtime,
            user_home,
        }
    }

    /// Returns the directory for sockets: `runtime`, or a directory with a short name derived from it if the paths of
    /// sockets would be too long.
    pub fn socket_directory(&self) -> PathBuf {
        let longest = self.runtime.join(LONGEST_SOCKET_NAME);
        if longest.as_os_str().len() < SOCKET_PATH_BYTES_MAX {
            return self.runtime.clone();
        }
        let digest = format!("{:x}", Sha256::digest(self.runtime.as_os_str().as_bytes()));
        std::env::temp_dir().join(format!("epitome-{}-{}", user_id(), &digest[..16]))
    }

    /// Creates locations below one directory, as for `EPITOME_HOME`.
    pub fn below(home: &Path) -> Paths {
        Paths {
            home: home.to_path_buf(),
            data: home.join("data"),
            state: home.join("state"),
            policy: policy_directory(),
            runtime: home.join("run"),
            user_home: None,
        }
    }

    pub fn config_file(&self) -> PathBuf {
        self.home.join("config.toml")
    }

    pub fn policy_file(&self) -> PathBuf {
        self.policy.join("policy.toml")
    }

    /// The directory of hooks that every user of the machine has.
    pub fn policy_hooks(&self) -> PathBuf {
        self.policy.join("hooks")
    }

    /// Returns the directories that may contain project files: the directory itself, then the root of its repository
    /// if that is a different one. Blocks on the disk.
    ///
    /// The home directory and its parents never count as a repository: their files are the user's. A root must have
    /// the same owner as the directory, as in Git: in `/tmp`, anyone could create one.
    pub fn repository_roots(&self, cwd: &Path) -> Vec<PathBuf> {
        let owner = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.uid()).ok();
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let home = self.user_home.as_deref().map(real);
        let cwd_real = real(cwd);
        let below_home = cwd_real
            .ancestors()
            .take(ROOT_CLIMB_MAX)
            .take_while(|folder| home.as_deref().is_none_or(|home| !home.starts_with(folder)));
        let root = { below_home }.find(|folder| folder.join(".git").exists());
        let root = root.filter(|root| **root != *cwd_real && owner(root) == owner(&cwd_real));
        [cwd.to_path_buf()].into_iter().chain(root.map(Path::to_path_buf)).collect()
    }

    pub fn log_directory(&self) -> PathBuf {
        self.state.join("log")
    }
}

/// Not from the environment, which users control.
fn policy_directory() -> PathBuf {
    PathBuf::from(match std::env::consts::OS {
        "macos" => "/Library/Application Support/Epitome",
        "windows" => r"C:\Program Files\Epitome",
        _ => "/etc/epitome",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a home directory with these directories; returns the roots for `cwd`, relative to the home directory.
    fn roots(folders: &[&str], cwd: &str) -> Vec<String> {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let home = home.path().canonicalize().expect("it is there");
        for folder in folders {
            std::fs::create_dir_all(home.join(folder)).expect("directories can be made");
        }
        let paths = Paths { user_home: Some(home.clone()), ..Paths::below(&home.join(".epitome")) };
        let roots = paths.repository_roots(&home.join(cwd));
        let below = |root: &PathBuf| root.strip_prefix(&home).map(|root| root.display().to_string());
        roots.iter().map(|root| below(root).unwrap_or_else(|_| root.display().to_string())).collect()
    }

    #[test]
    fn roots_are_the_directory_and_its_repository() {
        for (folders, cwd, wanted) in [
            (&["w/a/b"][..], "w/a/b", &["w/a/b"][..]),
            (&["w/.git", "w/a/b"], "w/a/b", &["w/a/b", "w"]),
            (&["w/.git"], "w", &["w"]),
            (&["w/.git", "w/a/.git", "w/a/b"], "w/a/b", &["w/a/b", "w/a"]),
            // A home directory under version control still contains the user's files.
            (&[".git", "w/a"], "w/a", &["w/a"]),
            (&[".git"], "", &[""]),
        ] {
            assert_eq!(roots(folders, cwd), wanted, "{cwd} in {folders:?}");
        }
    }
}
