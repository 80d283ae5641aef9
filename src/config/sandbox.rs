//! Settings of the sandbox that commands run in: the `[sandbox]` table. Only the person's own file may have one: a
//! repository must not decide what its own commands may do.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use toml::de::DeValue;

use super::file::{Reader, Value};
use super::values::{Wrong, between, names, truth};

/// What commands of the model are held to, beside the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    pub enabled: bool,
    /// Whether it holds in full mode, too.
    pub in_full_mode: bool,
    pub network: bool,
    /// Whether sockets in the file system may be used.
    pub unix_sockets: bool,
    /// Processes and threads that one command may have at a time, where they can be counted apart.
    pub processes: u64,
    /// What commands may change beside the workspace; absolute.
    pub write: Vec<PathBuf>,
    /// What commands may not read beside the usual secrets; absolute.
    pub hide: Vec<PathBuf>,
}

impl Default for Sandbox {
    fn default() -> Sandbox {
        Sandbox {
            enabled: true,
            in_full_mode: false,
            network: false,
            unix_sockets: false,
            processes: PROCESSES,
            write: Vec::new(),
            hide: Vec::new(),
        }
    }
}

const KEYS: [&str; 7] = ["enabled", "in_full_mode", "network", "unix_sockets", "processes", "write", "hide"];

/// As many as a build on a large machine takes, and far fewer than a machine has room for.
const PROCESSES: u64 = 4_096;

/// The bounds of that: with fewer no build runs, and no system has more.
const PROCESSES_BOUNDS: RangeInclusive<i64> = 64..=4_194_304;

impl Reader<'_> {
    /// `home` stands for `~`.
    pub(super) fn sandbox(&mut self, value: &Value<'_>, sandbox: &mut Sandbox, home: Option<&Path>) {
        let Some(table) = self.table(value, "sandbox") else { return };
        for (key, value) in table {
            match &**key.get_ref() {
                "enabled" => self.set(value, &mut sandbox.enabled, truth),
                "in_full_mode" => self.set(value, &mut sandbox.in_full_mode, truth),
                "network" => self.set(value, &mut sandbox.network, truth),
                "unix_sockets" => self.set(value, &mut sandbox.unix_sockets, truth),
                "processes" => {
                    let processes =
                        |value: &DeValue<'_>| between(value, PROCESSES_BOUNDS, "a number of processes");
                    self.set(value, &mut sandbox.processes, processes);
                }
                "write" => self.set(value, &mut sandbox.write, |value| places(value, home)),
                "hide" => self.set(value, &mut sandbox.hide, |value| places(value, home)),
                other => self.unknown(key.span(), other, &KEYS),
            }
        }
    }
}

/// Absolute paths; one that begins with `~/` is below the home.
fn places(value: &DeValue<'_>, home: Option<&Path>) -> Result<Vec<PathBuf>, Wrong> {
    let place = |name: String| match (name.strip_prefix("~/"), home) {
        (Some(below), Some(home)) => Ok(home.join(below)),
        (_, _) if Path::new(&name).is_absolute() => Ok(PathBuf::from(name)),
        (_, _) => Err(Wrong {
            message: format!("{name:?} is neither absolute nor below ~/"),
            hint: Some(
                "the directories of a session may always be changed; write others as /… or ~/…".to_owned(),
            ),
        }),
    };
    names(value)?.into_iter().map(place).collect()
}
