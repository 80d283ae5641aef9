//! Finds the files that rules forbid to read, so that commands can't read them either. Reads the disk.

use std::path::PathBuf;

use crate::Workspace;
use crate::permission::ruled::HiddenFiles;

/// Maximum number of files and directories of a workspace that are compared with patterns each time a command starts.
const ENTRIES_MAX: usize = 50_000;

/// Returns the existing paths at and below the workspace's directories that match these patterns of deny rules, and
/// those elsewhere that the patterns name without a wildcard.
pub(super) fn find(patterns: &[String], workspace: &Workspace) -> Vec<PathBuf> {
    if patterns.is_empty() {
        return Vec::new();
    }
    let hidden = HiddenFiles::by_patterns(patterns, workspace);
    let mut found: Vec<PathBuf> = hidden.named().filter(|path| path.exists()).cloned().collect();
    let has_wildcards =
        patterns.iter().any(|about| !about.contains('/') || about.contains(['*', '?', '[', '{']));
    let mut pending: Vec<PathBuf> = workspace.roots().iter().map(|root| root.path().to_path_buf()).collect();
    let mut left = if has_wildcards { ENTRIES_MAX } else { 0 };
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten().take(left) {
            left -= 1;
            let path = entry.path();
            if hidden.hides_itself(&path) {
                found.push(path);
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(path);
            }
        }
    }
    found
}
