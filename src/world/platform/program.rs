//! Finds programs, as a shell does.

use std::ffi::{OsStr, OsString};
use std::fmt;
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

/// The argument with which `acp-check` writes a transcript of what `epitome acp` passes on.
pub const RECORD_ARGUMENT: &str = "--record";

/// A program that comes with this one is not installed.
#[derive(Debug)]
pub struct MissingHelper {
    name: String,
    directory: Option<PathBuf>,
}

impl MissingHelper {
    /// How it is installed.
    pub fn hint(&self) -> String {
        let package = match self.name.starts_with("epitome-") {
            true => self.name.clone(),
            false => format!("epitome-{}", self.name),
        };
        format!("install it with `cargo install {package}`, or install a released package, which has it")
    }
}

impl fmt::Display for MissingHelper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the program {} is not installed", self.name)?;
        match &self.directory {
            Some(directory) => write!(f, " in {}", directory.display()),
            None => Ok(()),
        }
    }
}

/// Finds a program that comes with this one: only beside the real file of this one, because whatever is first on `PATH` may
/// be of somebody else.
pub fn helper(name: &str) -> Result<PathBuf, MissingHelper> {
    let own = std::env::current_exe().and_then(|own| own.canonicalize()).ok();
    let directory = own.as_deref().and_then(Path::parent);
    let beside = directory.map(|directory| directory.join(format!("{name}{}", std::env::consts::EXE_SUFFIX)));
    beside
        .filter(|file| is_program(file))
        .ok_or_else(|| MissingHelper { name: name.to_owned(), directory: directory.map(Path::to_path_buf) })
}
