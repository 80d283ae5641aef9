//! Landlock rules: which files may be opened, and how. Landlock rules only allow paths; to exclude something below a
//! directory, the directory's other entries have to be allowed individually.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, Scope,
};

use rustix::fs::{CWD, Mode, OFlags};

use crate::directories::open_at;
use crate::sandbox::SandboxPaths;

/// The newest ABI version whose rights are supported here. Older kernels enforce the rights that they know. The next
/// version would also restrict Unix sockets, which are rejected by other means.
const KNOWN: ABI = ABI::V8;

/// Builds the ruleset. `network`: whether Landlock permits connections.
pub(super) fn ruleset(paths: &SandboxPaths, network: bool) -> io::Result<Option<OwnedFd>> {
    let mut ruleset = Ruleset::default().handle_access(AccessFs::from_all(KNOWN)).map_err(failed)?;
    if !network {
        ruleset = ruleset.handle_access(AccessNet::from_all(KNOWN)).map_err(failed)?;
    }
    let mut ruleset = ruleset.scope(Scope::from_all(KNOWN)).map_err(failed)?.create().map_err(failed)?;

    // All directories may be listed: to hide the names in a few of them, all their parents would have to be
    // unreadable.
    ruleset = allow(ruleset, Path::new("/"), AccessFs::ReadDir.into())?;
    for path in &paths.read {
        ruleset = allow(ruleset, path, AccessFs::from_read(KNOWN))?;
    }
    let change = AccessFs::from_all(KNOWN) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    for path in &paths.writable {
        ruleset = allow(ruleset, path, change)?;
    }
    for path in &paths.devices {
        ruleset = allow(ruleset, path, change | AccessFs::IoctlDev)?;
    }
    Ok(ruleset.into())
}

/// Adds one rule. Paths that are gone or can't be opened are skipped.
fn allow(ruleset: RulesetCreated, path: &Path, rights: BitFlags<AccessFs>) -> io::Result<RulesetCreated> {
    // Allow the file that is checked here, whatever the path leads to later.
    let Ok(file) = open_at(CWD, path, OFlags::PATH, Mode::empty()) else { return Ok(ruleset) };
    // The library leaves the rights of directories out of the rule for a file.
    ruleset.add_rule(PathBeneath::new(file, rights)).map_err(failed)
}

fn failed(error: RulesetError) -> io::Error {
    io::Error::other(error)
}
