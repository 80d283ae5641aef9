//! Language servers: the `[diagnostics]` table. Servers run code of the repository, so only the user's own file may set it.

use std::time::Duration;

use super::file::{ConfigReader, TomlValue, fields};
use super::kind::{Kind, milliseconds, names, one_of};
use epitome_thread::named_enum;

named_enum! {
    /// When language servers are started.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum StartServers {
        /// When the user agrees, once for each workspace.
        #[default]
        Ask = "ask",
        Always = "always",
        Never = "never",
    }
}

/// Diagnostics of language servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiagnosticsSettings {
    pub start: StartServers,
    /// The names of the servers that may be started; `None` for all that are known.
    pub servers: Option<Vec<String>>,
    /// How long a model call waits for the check of what was just edited.
    pub wait: Duration,
}

impl Default for DiagnosticsSettings {
    fn default() -> DiagnosticsSettings {
        DiagnosticsSettings { start: StartServers::Ask, servers: None, wait: Duration::from_secs(2) }
    }
}

impl ConfigReader<'_> {
    pub(super) fn diagnostics(&mut self, value: &TomlValue<'_>, diagnostics: &mut DiagnosticsSettings) {
        let Some(table) = self.table(value, "diagnostics") else { return };
        fields!(self, table, key, value, {
            "start" => self.set(value, &mut diagnostics.start, start()),
            "servers" => self.set(value, &mut diagnostics.servers, names()),
            "wait_ms" => self.set(value, &mut diagnostics.wait, milliseconds(0..=60_000)),
        });
    }
}

fn start() -> Kind<StartServers> {
    one_of("start of language servers", &StartServers::ALL, StartServers::id)
}
