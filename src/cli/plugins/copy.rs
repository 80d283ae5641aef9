//! Copies a plugin's directory: exactly the files that its digest covers, either all or none.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::cli::{CliContext as _, CliError};
use crate::recipe::plugins::records;

/// Maximum number of files of a plugin.
const FILES_MAX: usize = 5_000;
/// Maximum size of a plugin in bytes.
pub const BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Maximum depth of directories.
pub const DEPTH_MAX: usize = 16;

/// The files of a directory.
pub struct FolderCopy {
    folder: PathBuf,
    /// Relative to the directory, sorted.
    pub files: Vec<PathBuf>,
    /// Digest of the files' paths and contents.
    pub digest: String,
}

impl FolderCopy {
    /// Lists a directory. Skips Git's history. Symbolic links are an error, because they may lead anywhere.
    pub fn of(folder: &Path) -> Result<FolderCopy, CliError> {
        let mut files = Vec::new();
        let mut bytes = 0;
        gather(folder, Path::new(""), 0, &mut files, &mut bytes)?;
        files.sort();
        let digest = records::hash_folder(folder, &files).map_err(|why| why.to_string())?;
        Ok(FolderCopy { folder: folder.to_path_buf(), files, digest })
    }

    /// Copies the files to a directory of this name below `parent`, replacing an existing one.
    pub fn install(&self, parent: &Path, name: &str) -> Result<(), CliError> {
        let failed =
            |what: &Path, error: std::io::Error| format!("{} can't be written: {error}", what.display());
        let scratch = scratch_below(parent)?;
        let new = scratch.path().join("new");
        for file in &self.files {
            let target = new.join(file);
            let folder = target.parent().unwrap_or(&new);
            fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
            // Permissions are copied too: scripts have to stay executable.
            fs::copy(self.folder.join(file), &target).map_err(|error| failed(&target, error))?;
        }
        if records::hash_folder(&new, &self.files).map_err(|why| why.to_string())? != self.digest {
            return Err(CliError::failed(
                "the plugin was changed while it was copied; nothing was installed",
            ));
        }
        let target = parent.join(name);
        if target.symlink_metadata().is_ok() {
            fs::rename(&target, scratch.path().join("old")).map_err(|error| failed(&target, error))?;
        }
        fs::rename(&new, &target).map_err(|error| failed(&target, error).into())
    }
}

/// Creates a new directory in another one. It is deleted with its contents when dropped.
pub fn scratch_below(parent: &Path) -> Result<TempDir, CliError> {
    let made = fs::create_dir_all(parent)
        .and_then(|()| tempfile::Builder::new().prefix(".installing-").tempdir_in(parent));
    made.context(format_args!("no folder can be made in {}", parent.display()))
}

fn gather(
    folder: &Path,
    below: &Path,
    depth: usize,
    files: &mut Vec<PathBuf>,
    bytes: &mut u64,
) -> Result<(), CliError> {
    let at = folder.join(below);
    let unreadable = |error: std::io::Error| format!("{} can't be read: {error}", at.display());
    for entry in fs::read_dir(&at).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let path = below.join(entry.file_name());
        let metadata = entry.metadata().map_err(unreadable)?;
        if entry.file_name() == ".git" {
            continue;
        }
        if metadata.is_dir() && depth < DEPTH_MAX {
            gather(folder, &path, depth + 1, files, bytes)?;
        } else if metadata.is_file() {
            *bytes += metadata.len();
            files.push(path);
        } else {
            return Err(CliError::failed(format!(
                "{} is a link, a special file or too deep, so the plugin is not copied",
                folder.join(&path).display()
            )));
        }
        if files.len() > FILES_MAX || *bytes > BYTES_MAX {
            let size = BYTES_MAX / 1024 / 1024;
            return Err(CliError::failed(format!(
                "the plugin has more than {FILES_MAX} files or {size} MiB"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_copied_as_a_whole_and_replaced() {
        let scratch = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = scratch.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write("from/commands/a.md", "A");
        write("from/.git/config", "not copied");
        let own = scratch.path().join("own");
        let first = FolderCopy::of(&scratch.path().join("from")).expect("it is read");
        first.install(&own, "p").expect("it is copied");
        assert_eq!(first.files, [PathBuf::from("commands/a.md")]);
        fs::remove_file(scratch.path().join("from/commands/a.md")).expect("it is there");
        write("from/commands/b.md", "A");
        let second = FolderCopy::of(&scratch.path().join("from")).expect("it is read");
        assert_ne!(first.digest, second.digest, "a name is part of it");
        second.install(&own, "p").expect("it is copied");
        let names: Vec<_> = fs::read_dir(own.join("p/commands")).expect("a folder").flatten().collect();
        assert_eq!(names.len(), 1);
        assert_eq!(fs::read_dir(&own).expect("a folder").count(), 1, "nothing else is left");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_refused() {
        let scratch = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink("/etc", scratch.path().join("etc")).expect("a link");
        let why = FolderCopy::of(scratch.path()).err().expect("it is refused").message;
        assert!(why.contains("etc is a link"), "{why}");
    }
}
