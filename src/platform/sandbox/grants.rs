//! Landlock's part: what may be opened, and how. It lists what is allowed; whatever is to be left out below a
//! directory, it has to allow the directory's other entries one by one.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, Scope,
};

use super::Places;

/// The newest version whose rights we know what to do with. Older kernels hold what they can of it. The next one
/// would hold sockets of the file system too, which are refused otherwise.
const KNOWN: ABI = ABI::V8;

/// Where all devices are. Only those that are named are read: as an administrator one could read a disk past every
/// file.
const ALL_DEVICES: &str = "/dev";

/// Entries that are allowed one by one, at most. What comes behind them in a directory with secrets in it can't be
/// read.
const ENTRIES_MAX: usize = 4_096;

/// The rules, as the kernel takes them. `network`: whether landlock lets connections be made.
pub(super) fn ruleset(places: &Places, network: bool) -> io::Result<Option<OwnedFd>> {
    let mut ruleset = Ruleset::default().handle_access(AccessFs::from_all(KNOWN)).map_err(failed)?;
    if !network {
        ruleset = ruleset.handle_access(AccessNet::from_all(KNOWN)).map_err(failed)?;
    }
    let mut ruleset = ruleset.scope(Scope::from_all(KNOWN)).map_err(failed)?.create().map_err(failed)?;

    // Names may be listed everywhere: to leave out those of a few directories, all of their parents would have to be
    // unreadable.
    ruleset = allow(ruleset, Path::new("/"), AccessFs::ReadDir.into())?;
    let mut unread = places.hidden.clone();
    unread.push(PathBuf::from(ALL_DEVICES));
    let mut readable = Vec::new();
    all_but(Path::new("/"), &unread, &mut readable);
    for path in &readable {
        ruleset = allow(ruleset, path, AccessFs::from_read(KNOWN))?;
    }
    let change = AccessFs::from_all(KNOWN) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    for path in &places.writable {
        ruleset = allow(ruleset, path, change)?;
    }
    for path in &places.devices {
        ruleset = allow(ruleset, path, change | AccessFs::IoctlDev)?;
    }
    Ok(ruleset.into())
}

/// Adds one rule. What is gone meanwhile, or can't be looked at, needs none.
fn allow(ruleset: RulesetCreated, path: &Path, rights: BitFlags<AccessFs>) -> io::Result<RulesetCreated> {
    let Ok(file) = PathFd::new(path) else { return Ok(ruleset) };
    let is_directory = fs::metadata(path).is_ok_and(|metadata| metadata.is_dir());
    let rights = if is_directory { rights } else { rights & AccessFs::from_file(KNOWN) };
    ruleset.add_rule(PathBeneath::new(file, rights)).map_err(failed)
}

/// Appends what lies at and below `path` but for these: `path` itself where none of them is in it, else its entries,
/// each in the same way. Links are left out: what they lead to has an entry of its own.
pub fn all_but(path: &Path, without: &[PathBuf], allowed: &mut Vec<PathBuf>) {
    if without.iter().any(|without| path.starts_with(without)) || allowed.len() >= ENTRIES_MAX {
        return;
    }
    if !without.iter().any(|without| without.starts_with(path)) {
        return allowed.push(path.to_path_buf());
    }
    let Ok(entries) = fs::read_dir(path) else { return };
    let mut entries: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()))
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    for entry in entries {
        all_but(&entry, without, allowed);
    }
}

fn failed(error: RulesetError) -> io::Error {
    io::Error::other(error)
}
