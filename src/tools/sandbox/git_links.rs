//! Repositories that the index of another one links to: submodules. `git status` of the outer repository runs Git in
//! each of them, with its settings. The `.git` entry of such a repository names its Git directory and is therefore
//! protected at any depth. After a command that may change a repository, newly linked repositories are examined, and
//! entries that could make Git run a program are renamed.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::git;
use super::git_settings::GitSettings;
use epitome_platform::root::read_regular;

/// Maximum bytes of an index that is read: some two million files.
const INDEX_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Maximum nesting of repositories that is followed.
const DEPTH_MAX: usize = 8;

/// Maximum number of linked repositories that are examined.
const LINKED_MAX: usize = 1_024;

/// The mode of an index entry that links to a repository.
const LINK_MODE: u32 = 0o160_000;

/// The bits of an entry's flags that contain the length of its name; all are set for a longer name.
const NAME_LENGTH: u16 = 0xfff;

/// Suffix of renamed entries.
const ASIDE: &str = "refused";

/// The repositories that are linked directly or through others: their Git directories with their working trees.
#[derive(Debug, Default)]
pub(super) struct Linked(BTreeMap<PathBuf, PathBuf>);

/// The links of indexes, kept while the index files are unchanged.
#[derive(Debug, Default)]
pub(super) struct LinkCache(HashMap<PathBuf, (Stamp, Arc<[PathBuf]>)>);

/// Identifies the content of an index, because Git never modifies one in place.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Linked {
    /// Finds the repositories linked from those with these working trees.
    pub(super) fn find<'a>(worktrees: impl Iterator<Item = &'a Path>, cache: &mut LinkCache) -> Linked {
        let mut linked = Linked::default();
        for worktree in worktrees {
            if let Some(git) = directory_of(worktree) {
                linked.add(worktree, &git, DEPTH_MAX, cache);
            }
        }
        linked
    }

    fn add(&mut self, worktree: &Path, git: &Path, depth: usize, cache: &mut LinkCache) {
        let Some(depth) = depth.checked_sub(1) else { return };
        for path in cache.links_of(git).iter() {
            let inner = worktree.join(path);
            let Some(git) = directory_of(&inner).filter(|_| self.0.len() < LINKED_MAX) else { continue };
            if self.0.insert(git.clone(), inner.clone()).is_none() {
                self.add(&inner, &git, depth, cache);
            }
        }
    }

    /// The `.git` entries of their working trees.
    pub(super) fn entries(&self) -> impl Iterator<Item = PathBuf> {
        self.0.values().map(|worktree| worktree.join(".git"))
    }

    /// Renames entries that could make Git run a program in repositories that were not linked `before`. Returns a
    /// description of each.
    pub(super) fn refuse_new(&self, before: &Linked) -> Vec<String> {
        self.0.keys().filter(|git| !before.0.contains_key(*git)).filter_map(|git| refuse(git)).collect()
    }
}

/// Returns the Git directory of a working tree, resolved.
fn directory_of(worktree: &Path) -> Option<PathBuf> {
    let git = worktree.join(".git").canonicalize().ok()?;
    if git.is_dir() { Some(git) } else { git::named_directory(worktree) }
}

fn refuse(git: &Path) -> Option<String> {
    let is_there = |name: &&str| git.join(name).symlink_metadata().is_ok();
    let refused: Vec<&str> = [
        ("config", is_config_harmless(git)),
        ("hooks", is_without_hooks(git)),
        // These entries refer to or contain other settings; a linked repository needs neither.
        ("commondir", git::is_own_common_directory(git)),
        ("config.worktree", git.join("config.worktree").metadata().is_ok_and(|file| file.len() == 0)),
    ]
    .into_iter()
    .filter_map(|(name, is_harmless)| (!is_harmless).then_some(name))
    .filter(is_there)
    .collect();
    if refused.is_empty() {
        return None;
    }
    let moved = refused.iter().all(|name| {
        let from = git.join(name);
        fs::rename(&from, git.join(format!("{name}.{ASIDE}"))).is_ok()
    });
    let done = match moved {
        true => format!("\".{ASIDE}\" was added to their names"),
        false => "They could not be renamed, so look at them before you use Git there".to_owned(),
    };
    Some(format!(
        "[{} is a repository that another one links to now. These could make Git run a program: {}. {done}]",
        git.display(),
        refused.join(", ")
    ))
}

fn is_config_harmless(git: &Path) -> bool {
    match read_regular(&git.join("config"), git::FILE_BYTES_MAX) {
        Ok(text) => GitSettings::parse(&text).is_some_and(|settings| settings.are_harmless_when_new(git)),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Whether the hooks directory contains only Git's samples.
fn is_without_hooks(git: &Path) -> bool {
    let hooks = git.join("hooks");
    let Ok(kind) = hooks.symlink_metadata() else { return true };
    let mut entries = fs::read_dir(&hooks).into_iter().flatten();
    kind.is_dir()
        && entries
            .all(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().ends_with(".sample")))
}

impl LinkCache {
    /// Returns the paths of the links in the index of a repository.
    fn links_of(&mut self, git: &Path) -> Arc<[PathBuf]> {
        let index = git.join("index");
        let Some(file) = index.metadata().ok().filter(|file| file.is_file() && file.len() <= INDEX_BYTES_MAX)
        else {
            return Arc::default();
        };
        let stamp = Stamp { inode: file.ino(), bytes: file.len(), modified: file.modified().ok() };
        if let Some((known, links)) = self.0.get(&index)
            && *known == stamp
        {
            return links.clone();
        }
        let bytes = read_regular(&index, INDEX_BYTES_MAX).unwrap_or_default();
        // The hash length is stored in the settings; an index can be parsed with only one of the two.
        let links = [20, 32].into_iter().find_map(|hash| links_in(&bytes, hash)).unwrap_or_default();
        let links: Arc<[PathBuf]> = links.into();
        if self.0.len() >= LINKED_MAX {
            self.0.clear();
        }
        self.0.insert(index, (stamp, links.clone()));
        links
    }
}

/// Returns the links in an index; `None` if it can't be parsed with hashes of this length.
fn links_in(index: &[u8], hash_bytes: usize) -> Option<Vec<PathBuf>> {
    let (header, mut rest) = index.split_first_chunk::<12>()?;
    let number = |bytes: &[u8]| Some(u32::from_be_bytes(*bytes.first_chunk()?));
    let (version, count) = (number(&header[4..])?, number(&header[8..])?);
    if !header.starts_with(b"DIRC") || !(2..=4).contains(&version) {
        return None;
    }
    let mut links = Vec::new();
    let mut name: Vec<u8> = Vec::new();
    for _ in 0..count {
        let entry = rest;
        let mode = number(entry.get(24..)?)?;
        let flags_at = 40 + hash_bytes;
        let flags = u16::from_be_bytes(*entry.get(flags_at..)?.first_chunk()?);
        let mut at = flags_at + if flags & 0x4000 != 0 && version > 2 { 4 } else { 2 };
        if version == 4 {
            // The number of bytes of the previous name that are dropped.
            let mut byte = *entry.get(at)?;
            let mut removed = usize::from(byte & 0x7f);
            at += 1;
            while byte & 0x80 != 0 {
                byte = *entry.get(at)?;
                removed = removed.checked_add(1)?.checked_mul(128)? | usize::from(byte & 0x7f);
                at += 1;
            }
            name.truncate(name.len().checked_sub(removed)?);
        } else {
            name.clear();
        }
        let text = entry.get(at..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        name.extend(&text[..end]);
        at += end + 1;
        if version < 4 {
            at = at.next_multiple_of(8);
        }
        // With the wrong hash length everything is shifted.
        let length = usize::from(flags & NAME_LENGTH);
        if name.is_empty() || (length < usize::from(NAME_LENGTH) && length != name.len()) {
            return None;
        }
        if mode == LINK_MODE {
            links.push(OsStr::from_bytes(&name).into());
        }
        rest = entry.get(at..)?;
    }
    Some(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(directory: &Path, line: &str) {
        let mut command = std::process::Command::new("sh");
        command.args(["-ec", line]).current_dir(directory).env("HOME", directory);
        assert!(command.status().expect("sh runs").success(), "{line}");
    }

    /// In each version of the format, as written by Git.
    #[test]
    fn links_are_read_from_an_index() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path();
        if std::process::Command::new("git").arg("--version").output().is_err() {
            eprintln!("skipped: there is no git");
            return;
        }
        for (format, version) in [("sha1", 2), ("sha1", 3), ("sha1", 4), ("sha256", 2), ("sha256", 4)] {
            let name = format!("{format}-{version}");
            let empty = if format == "sha1" { "1".repeat(40) } else { "1".repeat(64) };
            git(
                root,
                &format!(
                    "git init -q --object-format={format} {name}; cd {name}; mkdir -p a/very/deep; touch a/very/deep/file \
                     b; git add .; git update-index --add --cacheinfo 160000,{empty},a/very/deep/lib; git update-index \
                     --add --cacheinfo 160000,{empty},z; touch n; git add -N n; git update-index --index-version \
                     {version}"
                ),
            );
            let links = LinkCache::default().links_of(&root.join(name).join(".git"));
            assert_eq!(*links, [PathBuf::from("a/very/deep/lib"), "z".into()], "{format} {version}");
        }
        assert!(links_in(b"DIRC\0\0\0\x02\xff\xff\xff\xff", 20).is_none());
    }
}
