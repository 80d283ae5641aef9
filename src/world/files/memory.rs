//! The location of the memory across sessions: one Markdown file for the user and one per project, in the user's own
//! directory. Nothing that a repository contains is memory.

use epitome_platform::os::OsStrExt;
use epitome_platform::root::read_regular_text;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::paths::Paths;

/// Maximum bytes to which a model may extend a memory file: about two thousand tokens in every session.
pub const MEMORY_BYTES_MAX: usize = 8 * 1024;

/// Maximum bytes of a file that connects a worktree with its repository: a path or the name of a branch. Commands of the
/// agent and archives can put anything in place of such a file.
pub const GIT_FILE_BYTES_MAX: u64 = 64 * 1024;

/// The memory files for a working directory. They need not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFiles {
    /// The directory of all memory files.
    pub directory: PathBuf,
    /// The memory for all projects.
    pub user: PathBuf,
    /// The memory for the project of the working directory.
    pub project: PathBuf,
    /// The project's directory. All worktrees of a Git repository belong to the directory of the main one.
    pub root: PathBuf,
}

impl MemoryFiles {
    /// The directory of all memory files.
    pub fn directory(paths: &Paths) -> PathBuf {
        paths.home.join("memory")
    }

    /// Finds the files. Blocks on the disk.
    pub fn of(cwd: &Path, paths: &Paths) -> MemoryFiles {
        let root = paths.repository_roots(cwd).pop().unwrap_or_else(|| cwd.to_path_buf());
        let root = root.canonicalize().unwrap_or(root);
        let root = main_worktree(&root).unwrap_or(root);
        let name = root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
        let digest = format!("{:x}", Sha256::digest(root.as_os_str().as_bytes()));
        let directory = MemoryFiles::directory(paths);
        let project = directory.join("projects").join(format!("{name}-{}.md", &digest[..8]));
        MemoryFiles { user: directory.join("user.md"), directory, project, root }
    }

    /// Both files, the more specific one last.
    pub fn all(&self) -> [PathBuf; 2] {
        [self.user.clone(), self.project.clone()]
    }
}

/// The main worktree of a linked one; `None` if this is no linked worktree. Git must know the worktree: a `.git` file
/// that somebody else wrote may name any repository.
fn main_worktree(root: &Path) -> Option<PathBuf> {
    let own = root.join(".git");
    let text = read_regular_text(&own, GIT_FILE_BYTES_MAX).ok()?;
    // Git can also write these paths relative to the directory of the file.
    let admin = root.join(text.strip_prefix("gitdir: ")?.trim_end()).canonicalize().ok()?;
    let worktrees = admin.parent().filter(|parent| parent.ends_with(".git/worktrees"))?;
    let known = read_regular_text(&admin.join("gitdir"), GIT_FILE_BYTES_MAX).ok()?;
    let is_known = admin.join(known.trim_end()).canonicalize().ok()? == own;
    worktrees.ancestors().nth(2).filter(|_| is_known).map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn worktrees_of_a_repository_share_a_file_and_other_directories_have_their_own() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |path: &str| directory.path().canonicalize().expect("it exists").join(path);
        let write = |path: &str, text: String| {
            fs::create_dir_all(at(path).parent().expect("it has one")).expect("directories");
            fs::write(at(path), text).expect("a file");
        };
        for folder in ["main/.git/worktrees/w", "main/src", "other/.git", "plain"] {
            fs::create_dir_all(at(folder)).expect("directories");
        }
        write("linked/.git", format!("gitdir: {}\n", at("main/.git/worktrees/w").display()));
        write("main/.git/worktrees/w/gitdir", format!("{}\n", at("linked/.git").display()));
        // Somebody packed this into an archive, to read and change what is remembered for another project.
        write("forged/.git", format!("gitdir: {}\n", at("main/.git/worktrees/w").display()));
        // `git worktree add --relative-paths`
        write("relative/.git", "gitdir: ../main/.git/worktrees/r\n".to_owned());
        write("main/.git/worktrees/r/gitdir", "../../../../relative/.git\n".to_owned());
        let paths = Paths::below(&at("home"));
        let of = |cwd: &str| MemoryFiles::of(&at(cwd), &paths);
        assert_eq!(of("main/src"), of("main"));
        assert_eq!(of("linked"), of("main"));
        assert_eq!(of("relative"), of("main"));
        assert_eq!(of("linked").root, at("main"));
        let names = ["main", "forged", "other", "plain"].map(|cwd| of(cwd).project);
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{names:?}");
            assert!(name.starts_with(at("home/memory/projects")), "{names:?}");
        }
        assert_eq!(of("main").user, of("plain").user);
    }
}
