//! Finds programs, as a shell does.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::os::{self, PROGRAM_ENDINGS, PermissionsExt as _};

/// Returns the programs with this name in the directories of an environment's `PATH`, in their order. Relative directories
/// are skipped: what is in them depends on where a command runs.
pub fn named<'a>(
    name: &'a str,
    environment: &'a [(OsString, OsString)],
) -> impl Iterator<Item = PathBuf> + 'a {
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_os_str());
    std::env::split_paths(path.unwrap_or(OsStr::new("")))
        .filter(|directory| directory.is_absolute())
        .flat_map(move |directory| PROGRAM_ENDINGS.map(|ending| directory.join(format!("{name}{ending}"))))
        .filter(|file| is_program(file))
}

pub fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns the shell that runs command lines: the `bash` in the environment's `PATH`, or else a usual one.
pub fn shell(environment: &[(OsString, OsString)]) -> PathBuf {
    let usual = os::usual_shells(environment);
    let found = named("bash", environment).filter(|bash| os::is_shell_for_files(bash)).chain(usual);
    found.into_iter().find(|shell| is_program(shell)).unwrap_or_else(|| PathBuf::from(os::LAST_SHELL))
}
