//! The permanent permissions of a user in a workspace. They are stored in a file in the user's Epitome data directory:
//! never in the repository, which must not grant itself anything.
//!
//! All processes of a home directory share the file. It is checked for each decision and read again if it has
//! changed, so that a rule revoked in one window no longer applies in any. Each change replaces the complete file
//! under a lock.

use epitome_platform::os::MetadataExt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use epitome_files::atomic_file::{lock_for_change, replace_private};
use epitome_files::paths::Paths;
use epitome_thread::Rule;

/// Maximum number of rules for one workspace.
pub const KEPT_MAX: usize = 200;
/// Maximum bytes of the file: several thousand rules.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// A file that changed less than this before it was read may change again without getting another stamp: the clocks
/// of file systems are that coarse.
const TICK: Duration = Duration::from_millis(20);
/// The version of the file format that Epitome writes.
const VERSION: u32 = 1;

/// Why saved permissions can't be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum SavedPermissionsError {
    #[error("your saved permissions can't be read from {}: {source}", file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("{} can't be written: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
}

#[derive(Serialize, Deserialize)]
struct SavedPermissions {
    version: u32,
    workspaces: Vec<SavedWorkspace>,
}

#[derive(Serialize, Deserialize)]
struct SavedWorkspace {
    path: PathBuf,
    rules: Vec<Rule>,
}

pub fn file(paths: &Paths) -> PathBuf {
    paths.data.join("permissions.json")
}

/// Caches the rules that one session last read for its workspace.
#[derive(Default)]
pub struct SavedPermissionsReader {
    read: Option<(PermissionsStamp, Arc<[Rule]>)>,
}

/// Identifies a version of the file: inode, length, and the time of its change in seconds and nanoseconds.
type PermissionsStamp = (u64, u64, i64, i64);

impl SavedPermissionsReader {
    /// Reads the rules of a workspace, which must be the same one each time. After an error, no rule
    /// applies. Blocks on the disk.
    pub fn read(&mut self, paths: &Paths, cwd: &Path) -> Result<Arc<[Rule]>, SavedPermissionsError> {
        let stamp = settled_stamp(&file(paths));
        match &self.read {
            Some((known, rules)) if stamp == Some(*known) => Ok(rules.clone()),
            Some(_) | None => {
                let rules: Arc<[Rule]> = read(paths, cwd)?.into();
                self.read = stamp.map(|stamp| (stamp, rules.clone()));
                Ok(rules)
            }
        }
    }
}

/// The stamp of a file; `None` if the file could still change without getting another stamp.
fn settled_stamp(file: &Path) -> Option<PermissionsStamp> {
    let found = file.metadata().ok()?;
    let changed = Duration::new(u64::try_from(found.ctime()).ok()?, u32::try_from(found.ctime_nsec()).ok()?);
    let age = SystemTime::now().duration_since(UNIX_EPOCH + changed).ok()?;
    (age > TICK).then(|| (found.ino(), found.len(), found.ctime(), found.ctime_nsec()))
}

/// Reads the rules of a workspace. After an error, no rule applies. Blocks on the disk.
pub fn read(paths: &Paths, cwd: &Path) -> Result<Vec<Rule>, SavedPermissionsError> {
    let path = named(cwd);
    let found = load(&file(paths))?.workspaces.into_iter().find(|workspace| workspace.path == path);
    Ok(found.map(|workspace| workspace.rules).unwrap_or_default())
}

/// Changes the rules of a workspace. After an error, nothing has changed. Blocks on the disk.
pub fn change(
    paths: &Paths,
    cwd: &Path,
    with: impl FnOnce(&mut Vec<Rule>),
) -> Result<(), SavedPermissionsError> {
    let file = file(paths);
    let unwritten = |source: io::Error| SavedPermissionsError::Write { file: file.clone(), source };
    let _lock = lock_for_change(&file).map_err(unwritten)?;
    let mut kept = load(&file)?;
    let path = named(cwd);
    let at = kept.workspaces.iter().position(|workspace| workspace.path == path).unwrap_or_else(|| {
        kept.workspaces.push(SavedWorkspace { path, rules: Vec::new() });
        kept.workspaces.len() - 1
    });
    with(&mut kept.workspaces[at].rules);
    kept.workspaces[at].rules.truncate(KEPT_MAX);
    kept.workspaces.retain(|workspace| !workspace.rules.is_empty());
    let bytes = serde_json::to_vec_pretty(&kept).map_err(|error| unwritten(error.into()))?;
    replace_private(&file, &bytes).map_err(unwritten)
}

/// Gives a directory one name, whichever path leads to it.
fn named(cwd: &Path) -> PathBuf {
    cwd.canonicalize().unwrap_or_else(|_| cwd.to_path_buf())
}

fn load(file: &Path) -> Result<SavedPermissions, SavedPermissionsError> {
    let unread = |source: io::Error| SavedPermissionsError::Read { file: file.to_path_buf(), source };
    let mut bytes = Vec::new();
    match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(SavedPermissions { version: VERSION, workspaces: Vec::new() });
        }
        Err(error) => return Err(unread(error)),
        Ok(open) => open.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unread)?,
    };
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(unread(io::Error::other("it is too large")));
    }
    let kept: SavedPermissions = serde_json::from_slice(&bytes).map_err(|error| unread(error.into()))?;
    match kept.version {
        VERSION => Ok(kept),
        other => Err(unread(io::Error::other(format!("it has the unknown version {other}")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_belongs_to_one_workspace_until_it_is_taken_back() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let paths = Paths::below(home.path());
        let rule = Rule::Command { line: "cargo test".into() };
        assert_eq!(read(&paths, Path::new("/w")).expect("read"), []);
        change(&paths, Path::new("/w"), |rules| rules.push(rule.clone())).expect("kept");
        assert_eq!(read(&paths, Path::new("/w")).expect("read"), [rule]);
        assert_eq!(read(&paths, Path::new("/w/below")).expect("read"), []);
        change(&paths, Path::new("/w"), Vec::clear).expect("taken back");
        assert_eq!(read(&paths, Path::new("/w")).expect("read"), []);
    }

    #[test]
    fn what_is_taken_back_holds_in_no_window() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let paths = Paths::below(home.path());
        let (here, mut window) = (Path::new("/w"), SavedPermissionsReader::default());
        assert_eq!(*window.read(&paths, here).expect("read"), []);
        for line in ["cargo test", "make"] {
            let rule = Rule::Command { line: line.into() };
            change(&paths, here, |rules| rules.push(rule.clone())).expect("kept");
            for _ in 0..2 {
                assert_eq!(*window.read(&paths, here).expect("read"), *std::slice::from_ref(&rule));
            }
            change(&paths, here, Vec::clear).expect("taken back");
            assert_eq!(*window.read(&paths, here).expect("read"), []);
        }
        std::fs::write(file(&paths), "{").expect("damaged");
        assert!(window.read(&paths, here).is_err());
    }

    #[test]
    fn a_file_that_did_not_change_is_not_read_again() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let paths = Paths::below(home.path());
        let rule = Rule::Command { line: "make".into() };
        change(&paths, Path::new("/w"), |rules| rules.push(rule)).expect("kept");
        // While the stamp is unchanged, the cached rules are returned.
        while settled_stamp(&file(&paths)).is_none() {
            std::thread::yield_now();
        }
        let mut window =
            SavedPermissionsReader { read: settled_stamp(&file(&paths)).map(|stamp| (stamp, [].into())) };
        assert_eq!(*window.read(&paths, Path::new("/w")).expect("read"), []);
    }

    #[test]
    fn a_damaged_file_allows_nothing_and_is_not_written_over() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let paths = Paths::below(home.path());
        std::fs::create_dir_all(&paths.data).expect("made");
        for damaged in ["{", "{\"version\":9,\"workspaces\":[]}"] {
            std::fs::write(file(&paths), damaged).expect("written");
            assert!(
                read(&paths, Path::new("/w")).is_err_and(|why| why.to_string().contains("permissions.json"))
            );
            assert!(change(&paths, Path::new("/w"), Vec::clear).is_err());
            assert_eq!(std::fs::read_to_string(file(&paths)).expect("there"), damaged);
        }
    }
}
