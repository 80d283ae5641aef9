//! Finds programs, as a shell does.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use super::os::{self, FileTypeExt as _, PROGRAM_ENDINGS, PermissionsExt as _};

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

/// Variables with paths of data, and the ends of their names: programs neither run what is there nor obey it.
const OF_DATA: &str = "CARGO_TARGET_DIR EPITOME_HOME GOCACHE HOME INIT_CWD KRB5CCNAME OLDPWD PWD TEMP TMP TMPDIR XAUTHORITY \
                       XDG_RUNTIME_DIR";
const OF_DATA_ENDS: [&str; 2] = ["CACHE_DIR", "DATABASE"];

/// Directories that belong to one project, wherever it is.
const OF_PROJECTS: [&str; 2] = ["node_modules", ".venv"];

/// Removes from `PATH` and other lists of directories with programs or code what a sandboxed command may have put there:
/// relative directories, those for which `is_changeable`, and those in repositories and virtual environments, which are
/// workspaces of other sessions. Removes all other variables that name such a path, except for data and sockets: programs run or
/// obey what they name. Unsandboxed programs are started with the result. The hidden directories of a home don't count as
/// repositories: some installers of programs clone themselves into one.
pub fn without_changeable(
    environment: &[(OsString, OsString)],
    home: Option<&Path>,
    is_changeable: impl Fn(&Path) -> bool,
) -> Vec<(OsString, OsString)> {
    let home = home.map(resolved);
    let is_changed = |path: &Path| is_changeable(path) || is_changeable(&resolved(path));
    let is_kept = |entry: &PathBuf| {
        let real = resolved(entry);
        let below_home = home.as_deref().and_then(|home| real.strip_prefix(home).ok());
        let is_hidden =
            below_home.is_some_and(|below| below.as_os_str().as_encoded_bytes().first() == Some(&b'.'));
        let above = || real.ancestors().take_while(|above| home.as_deref() != Some(above));
        let in_repository = || {
            real.iter().any(|part| OF_PROJECTS.iter().any(|name| part == *name))
                || above().any(|above| {
                    [".git", "pyvenv.cfg"].iter().any(|name| above.join(name).symlink_metadata().is_ok())
                })
        };
        // What a path below `/proc` leads to depends on the process that opens it.
        entry.is_absolute()
            && !entry.starts_with("/proc")
            && !is_changed(entry)
            && (is_hidden || !in_repository())
    };
    let is_socket = |path: &Path| path.metadata().is_ok_and(|file| file.file_type().is_socket());
    let given = environment.iter().filter_map(|(name, value)| {
        let text = name.to_string_lossy();
        if text.ends_with("PATH") {
            let kept: Vec<PathBuf> = std::env::split_paths(value).filter(is_kept).collect();
            return Some((name.clone(), std::env::join_paths(kept).ok()?))
                .filter(|(_, kept)| !kept.is_empty());
        }
        let is_data = OF_DATA.split(' ').any(|known| known == text)
            || OF_DATA_ENDS.iter().any(|end| text.ends_with(end));
        // `-javaagent:/w/x.jar`, `--require /w/x.js`, `ssh -F /w/x`, `./edit --wait`.
        let value_text = value.to_string_lossy();
        let mut parts =
            value_text.split([':', '=', ' ', ',', ';']).filter(|part| part.contains('/')).map(Path::new);
        let is_named = |path: &Path| {
            // A library need not be there yet.
            let is_relative = path.starts_with(".")
                || path.starts_with("..")
                || text.starts_with("LD_") && path.is_relative();
            !is_socket(path) && (is_changed(path) || is_relative)
        };
        (is_data || !parts.any(is_named)).then(|| (name.clone(), value.clone()))
    });
    given.collect()
}

/// A path whose existing part has its links resolved.
fn resolved(path: &Path) -> PathBuf {
    let existing = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, real)) = existing else { return path.to_path_buf() };
    path.strip_prefix(above).map_or_else(|_| real.clone(), |rest| real.join(rest))
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
        let folder = self.name.trim_start_matches("epitome-").replace('-', "_");
        format!(
            "in a clone, `cargo install --locked --path src/programs/{folder}` installs it; a released package has it"
        )
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
