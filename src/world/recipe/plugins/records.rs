//! Records of `epitome plugins install`: the source of each plugin, and the digest of its files. A plugin whose files
//! have changed since is not used until the user has agreed again.
//!
//! The digest covers the installed files. Other files may be added, since plugins keep caches and data in their
//! folders, but not where Epitome reads: below the commands, skills and agents.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Plugin;
use crate::text_file::read_text;
use epitome_files::atomic_file::{lock_for_change, replace_private};
use epitome_thread::problem::Problem;

/// The file of records, in the folder of the user's plugins.
const FILE: &str = "installed.json";
/// Maximum size of the records in bytes: a plugin has up to 5,000 paths.
const RECORDS_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum depth of folders.
const DEPTH_MAX: usize = 16;
/// Folders that programs fill automatically; nothing is read from them.
const CACHES: [&str; 3] = ["__pycache__", "node_modules", ".git"];

/// An installed plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledRecord {
    /// An absolute directory or a Git address, with the plugin's name if it is a marketplace. Older records have what
    /// was typed.
    pub source: String,
    /// The installed commit, if the source is a Git address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// SHA-256 of the files, in hexadecimal digits.
    pub digest: String,
    /// Relative to the plugin's folder, sorted.
    pub files: Vec<PathBuf>,
}

/// The records of all installed plugins, by folder name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledRecords {
    pub plugins: BTreeMap<String, InstalledRecord>,
}

impl InstalledRecords {
    /// Loads the records in a folder of plugins; empty if there is no file. After an error, any plugin there may be an
    /// installed one. Blocks on disk I/O.
    pub fn load(folder: &Path) -> Result<InstalledRecords, Problem> {
        let path = folder.join(FILE);
        if path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(InstalledRecords::default());
        }
        let read = read_text(&path, "the list of installed plugins", RECORDS_BYTES_MAX)
            .map_err(|why| why.to_string())
            .and_then(|text| serde_json::from_str(&text).map_err(|why| why.to_string()));
        read.map_err(|why| {
            let message =
                format!("what was installed is not known, so no plugin of this folder is used: {why}");
            let hint = "restore this file; or delete it and the plugins next to it, and install them again";
            Problem::new(path, message).with_hint(hint)
        })
    }

    /// Changes the records in a folder of plugins. Other processes wait meanwhile, and unreadable records are not
    /// replaced. Blocks on disk I/O.
    pub fn change<T>(folder: &Path, change: impl FnOnce(&mut InstalledRecords) -> T) -> Result<T, Problem> {
        let path = folder.join(FILE);
        let failed = |error: io::Error| {
            Problem::new(&path, format!("the list of installed plugins can't be changed: {error}"))
        };
        let _lock = lock_for_change(&path).map_err(failed)?;
        let mut records = InstalledRecords::load(folder)?;
        let changed = change(&mut records);
        records.store(folder).map_err(failed)?;
        Ok(changed)
    }

    fn store(&self, folder: &Path) -> io::Result<()> {
        replace_private(&folder.join(FILE), &serde_json::to_vec_pretty(self)?)
    }

    /// Checks that a plugin is unchanged since its installation. One without a record is accepted: the user put it
    /// there. Blocks on disk I/O.
    pub(super) fn check(&self, name: &str, plugin: &Plugin) -> Result<(), Problem> {
        let Some(record) = self.plugins.get(name) else { return Ok(()) };
        let root = &plugin.folders.root;
        let changed = match hash_folder(root, &record.files) {
            Ok(digest) if digest == record.digest => new_file(plugin, record),
            Ok(_) => Some("files of it have changed".to_owned()),
            Err(why) => Some(why.to_string()),
        };
        let Some(changed) = changed else { return Ok(()) };
        let message = format!("the plugin is not used, because it is not what you installed: {changed}");
        let hint = format!(
            "`epitome plugins accept {name}` shows what it brings now and asks; `epitome plugins update {name}` \
             installs it again"
        );
        Err(Problem::new(root, message).with_hint(hint))
    }
}

/// A file that Epitome would read but that was not installed.
fn new_file(plugin: &Plugin, record: &InstalledRecord) -> Option<String> {
    let root = &plugin.folders.root;
    let read = [&plugin.commands, &plugin.skills, &plugin.agents, &plugin.hooks, &plugin.context];
    let mut files = vec![plugin.manifest_path(), root.join(".mcp.json")];
    for path in read.into_iter().flatten() {
        files_below(path, 0, &mut files);
    }
    let is_new = |path: &&PathBuf| {
        let below = path.strip_prefix(root).unwrap_or(path);
        path.is_file() && record.files.binary_search(&below.to_path_buf()).is_err()
    };
    files.iter().find(is_new).map(|path| format!("{} was added", path.display()))
}

fn files_below(path: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    let is_cache = path.file_name().is_some_and(|name| CACHES.iter().any(|cache| name == *cache));
    if !path.is_dir() {
        files.push(path.to_path_buf());
    } else if depth < DEPTH_MAX && !is_cache {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            files_below(&entry.path(), depth + 1, files);
        }
    }
}

/// A file of a plugin that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("{} can't be read: {source}", path.display())]
pub struct HashError {
    path: PathBuf,
    source: io::Error,
}

/// The digest of a folder: of the paths of these files below it and of their contents. Blocks on disk I/O.
pub fn hash_folder(folder: &Path, files: &[PathBuf]) -> Result<String, HashError> {
    let mut whole = Sha256::new();
    for file in files {
        whole.update(Sha256::digest(file.as_os_str().as_encoded_bytes()));
        let path = folder.join(file);
        let sum = hash_file(&path).map_err(|source| HashError { path: path.clone(), source })?;
        whole.update(sum);
    }
    Ok(format!("{:x}", whole.finalize()))
}

fn hash_file(path: &Path) -> io::Result<impl AsRef<[u8]>> {
    // Opening a pipe would block until it has a writer.
    if !path.symlink_metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut sum = Sha256::new();
    io::copy(&mut File::open(path)?, &mut sum)?;
    Ok(sum.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::PluginFolders;

    /// Each row changes a file of an installed plugin; the flag states whether the plugin is still used.
    #[test]
    fn a_changed_plugin_is_not_used() {
        for (path, text, is_used) in [
            ("commands/run.md", "Run.", true),
            ("commands/run.md", "Run and send.", false),
            ("commands/new.md", "New.", false),
            (".mcp.json", "{}", false),
            ("data/cache.db", "x", true),
            ("commands/__pycache__/x.pyc", "x", true),
        ] {
            let scratch = tempfile::tempdir().expect("a folder");
            let root = scratch.path().join("p");
            let write = |path: &str, text: &str| {
                let path = root.join(path);
                fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
                fs::write(path, text).expect("a file");
            };
            write(".claude-plugin/plugin.json", "{}");
            write("commands/run.md", "Run.");
            let files: Vec<PathBuf> = vec![".claude-plugin/plugin.json".into(), "commands/run.md".into()];
            let digest = hash_folder(&root, &files).expect("it is read");
            let record = InstalledRecord { digest, files, ..InstalledRecord::default() };
            let records = InstalledRecords { plugins: [("p".to_owned(), record)].into() };
            records.store(scratch.path()).expect("it is written");
            let records = InstalledRecords::load(scratch.path()).expect("it is read");
            write(path, text);
            let folders = PluginFolders { root: root.clone(), data: root.clone() };
            let plugin = Plugin::read(folders, "p", "p", None).expect("it is read");
            let checked = records.check("p", &plugin);
            assert_eq!(checked.is_ok(), is_used, "{path}: {checked:?}");
            assert_eq!(records.check("other", &plugin), Ok(()));
        }
    }

    /// Regression: of four plugins that were installed at the same time only one had a record, so that executables in
    /// the folders of the others ran as the user's hooks.
    #[test]
    fn records_that_are_added_at_the_same_time_are_all_kept() {
        let scratch = tempfile::tempdir().expect("a folder");
        std::thread::scope(|scope| {
            for number in 0..8 {
                let add = move |records: &mut InstalledRecords| {
                    records.plugins.insert(format!("p{number}"), InstalledRecord::default())
                };
                let folder = scratch.path();
                scope.spawn(move || InstalledRecords::change(folder, add).expect("it is stored"));
            }
        });
        assert_eq!(InstalledRecords::load(scratch.path()).expect("it is read").plugins.len(), 8);
    }

    /// Regression: unreadable records were replaced by those of the next plugin.
    #[test]
    fn unreadable_records_are_not_replaced() {
        let scratch = tempfile::tempdir().expect("a folder");
        fs::write(scratch.path().join(FILE), "").expect("a file");
        let changed = InstalledRecords::change(scratch.path(), |records| records.plugins.clear());
        let problem = changed.expect_err("it can't be read").to_string();
        assert!(problem.contains("no plugin of this folder is used"), "{problem}");
        assert_eq!(fs::read_to_string(scratch.path().join(FILE)).expect("it is there"), "");
    }
}
