//! Settings of the command sandbox: the `[sandbox]` table. Only the user's file may contain it: a repository must not
//! decide what its commands may do.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::file::{ConfigReader, TomlValue, fields};
use super::kind::{Kind, between, truth};
use super::values::{ValueError, names};
use crate::rules::covered;

/// Sandbox restrictions on the model's commands, in addition to the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxSettings {
    pub enabled: bool,
    /// Whether the sandbox also applies in full mode.
    pub in_full_mode: bool,
    pub network: bool,
    /// Whether Unix domain sockets in the file system may be used.
    pub unix_sockets: bool,
    /// Maximum concurrent processes and threads per command, where the system can count them per command.
    pub processes: u64,
    /// Maximum memory in MiB of one command's processes together; `None` is a fraction of the machine's memory.
    pub memory_mib: Option<u64>,
    /// Absolute paths that commands may write besides the workspace.
    pub write: Vec<PathBuf>,
    /// Absolute paths that commands may not read, in addition to the usual secrets.
    pub hide: Vec<PathBuf>,
}

impl Default for SandboxSettings {
    fn default() -> SandboxSettings {
        SandboxSettings {
            enabled: true,
            in_full_mode: false,
            network: false,
            unix_sockets: false,
            processes: PROCESSES,
            memory_mib: None,
            write: Vec::new(),
            hide: Vec::new(),
        }
    }
}

/// Default: enough for a build on a large machine, and far below any system's limit.
const PROCESSES: u64 = 4_096;

/// Allowed range: builds fail with fewer, and no system supports more.
const PROCESSES_BOUNDS: RangeInclusive<i64> = 64..=4_194_304;

/// Allowed range: an interpreter needs the minimum, and no machine has the maximum.
const MEMORY_MIB_BOUNDS: RangeInclusive<i64> = 256..=1_073_741_824;

impl ConfigReader<'_> {
    pub(super) fn sandbox(&mut self, value: &TomlValue<'_>, sandbox: &mut SandboxSettings) {
        let before = self.problem_count();
        self.sandbox_table(value, sandbox);
        self.ask_until_corrected(before, [covered("Bash")]);
    }

    fn sandbox_table(&mut self, value: &TomlValue<'_>, sandbox: &mut SandboxSettings) {
        let Some(table) = self.table(value, "sandbox") else { return };
        let home = self.owner.home();
        fields!(self, table, key, value, {
            "enabled" => self.set(value, &mut sandbox.enabled, truth()),
            "in_full_mode" => self.set(value, &mut sandbox.in_full_mode, truth()),
            "network" => self.set(value, &mut sandbox.network, truth()),
            "unix_sockets" => self.set(value, &mut sandbox.unix_sockets, truth()),
            "processes" => {
                self.limit(value, &mut sandbox.processes, between(PROCESSES_BOUNDS, "a number of processes"));
            },
            "memory" => {
                self.limit(value, &mut sandbox.memory_mib, between::<u64>(MEMORY_MIB_BOUNDS, "a number of MiB"));
            },
            "write" => self.set(value, &mut sandbox.write, places(home)),
            "hide" => self.set(value, &mut sandbox.hide, places(home)),
        });
    }
}

/// Absolute paths; `~/` expands to the home directory.
fn places(home: Option<&Path>) -> Kind<Vec<PathBuf>> {
    let home = home.map(Path::to_path_buf);
    let schema = json!({ "type": "array", "items": { "type": "string", "pattern": "^(/|~/)" } });
    Kind::new(
        schema,
        |places: &Vec<PathBuf>| {
            json!(places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>())
        },
        move |value| names(value)?.into_iter().map(|name| place(name, home.as_deref())).collect(),
    )
}

pub(super) fn place(name: String, home: Option<&Path>) -> Result<PathBuf, ValueError> {
    match (name.strip_prefix("~/"), home) {
        (Some(below), Some(home)) => Ok(home.join(below)),
        (_, _) if Path::new(&name).is_absolute() => Ok(PathBuf::from(name)),
        (_, _) => Err(ValueError::new(format!("{name:?} is neither absolute nor below ~/"))
            .hint("the directories of a session may always be changed; write others as /… or ~/…")),
    }
}
