//! Hook settings: the `[hooks]` table. Only the user's file may contain it: a repository must not decide whether its
//! hooks are run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::FileOwner;
use super::file::{ConfigReader, TomlValue, fields};
use super::kind::{Kind, between, milliseconds, one_of, seconds, truth};
use super::values::{any, header_map};
use epitome_thread::named_enum;

/// Hook settings.
#[derive(Clone, Debug, PartialEq)]
pub struct HookSettings {
    pub enabled: bool,
    pub trust: HookTrust,
    /// Timeout of hooks that declare no timeout.
    pub timeout: Duration,
    /// How many times hooks may make the agent continue within one prompt.
    pub max_continuations: u32,
    /// Timeout of a recipe called by a hook.
    pub callback_timeout: Duration,
    /// Whether a hook may modify sessions other than the one it runs for.
    pub cross_session: bool,
    /// Whether kodelet's directories are also searched for hooks.
    pub compat_dirs: bool,
    /// Command lines of the functions that hooks can call, by name.
    pub functions: BTreeMap<String, String>,
    /// Manifest fields that override a hook's manifest, by hook name.
    pub overrides: BTreeMap<String, Map<String, Json>>,
}

named_enum! {
    /// How hooks and shell calls from a repository are treated.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum HookTrust {
        /// The user is asked once for each version of each hook; if no client can ask, it does not run.
        #[default]
        Ask = "ask",
        Run = "run",
        Never = "never",
    }
}

impl Default for HookSettings {
    fn default() -> HookSettings {
        HookSettings {
            enabled: true,
            trust: HookTrust::Ask,
            timeout: Duration::from_secs(30),
            max_continuations: 3,
            callback_timeout: Duration::from_secs(120),
            cross_session: false,
            compat_dirs: true,
            functions: BTreeMap::new(),
            overrides: BTreeMap::new(),
        }
    }
}

/// Keys of a hook manifest.
pub const MANIFEST_KEYS: [&str; 11] = [
    "protocol",
    "events",
    "match",
    "timeout_ms",
    "priority",
    "fail_mode",
    "exit_2_blocks",
    "messages",
    "description",
    "mode",
    "transcript",
];

/// Allowed timeout of a hook run, in milliseconds. The user waits for it.
const TIMEOUT_MS: std::ops::RangeInclusive<i64> = 100..=600_000;
/// Allowed timeout of a called recipe, in seconds.
const CALLBACK_TIMEOUT_S: std::ops::RangeInclusive<i64> = 1..=3_600;
/// Allowed number of continuations; each costs model calls that the user did not request.
const CONTINUATIONS: std::ops::RangeInclusive<i64> = 0..=100;

impl ConfigReader<'_> {
    pub(super) fn hooks(&mut self, value: &TomlValue<'_>, hooks: &mut HookSettings) {
        let Some(table) = self.table(value, "hooks") else { return };
        fields!(self, table, key, value, {
            "enabled" => self.set(value, &mut hooks.enabled, truth()),
            "trust" => self.set(value, &mut hooks.trust, trust()),
            "timeout_ms" => self.set(value, &mut hooks.timeout, milliseconds(TIMEOUT_MS)),
            "max_continuations" => {
                self.limit(value, &mut hooks.max_continuations, between(CONTINUATIONS, "a whole number"));
            },
            "callback_timeout_s" => self.set(value, &mut hooks.callback_timeout, seconds(CALLBACK_TIMEOUT_S)),
            "cross_session" => self.set(value, &mut hooks.cross_session, truth()),
            "compat_dirs" => self.set(value, &mut hooks.compat_dirs, truth()),
            "functions" => {
                let users = hooks.functions.clone();
                self.set(value, &mut hooks.functions, header_map());
                if let FileOwner::Policy { .. } = self.owner {
                    for (name, line) in users {
                        hooks.functions.entry(name).or_insert(line);
                    }
                }
            },
            "overrides" => self.overrides(value, &mut hooks.overrides),
        });
    }

    fn overrides(&mut self, value: &TomlValue<'_>, overrides: &mut BTreeMap<String, Map<String, Json>>) {
        let Some(table) = self.table(value, "hooks.overrides") else { return };
        for (name, value) in self.entries(table, &[]) {
            self.enter(&name);
            let manifest = overrides.entry(name.get_ref().to_string()).or_default();
            if let FileOwner::Policy { .. } = self.owner {
                manifest.clear();
            }
            self.override_manifest(value, manifest);
            self.leave();
        }
    }

    /// Checks only that the keys are manifest keys; their values are validated when the manifest is read.
    fn override_manifest(&mut self, value: &TomlValue<'_>, manifest: &mut Map<String, Json>) {
        let Some(table) = self.table(value, "what counts for a hook") else { return };
        let names = MANIFEST_KEYS.each_ref().map(std::slice::from_ref);
        for (key, value) in self.entries(table, &names) {
            let field = &**key.get_ref();
            if !MANIFEST_KEYS.contains(&field) {
                self.unknown(&key, value, &MANIFEST_KEYS);
                continue;
            }
            self.enter(&key);
            let mut read = Json::Null;
            self.set(value, &mut read, any());
            if !read.is_null() {
                manifest.insert(field.to_owned(), read);
            }
            self.leave();
        }
    }
}

fn trust() -> Kind<HookTrust> {
    one_of("trust", &HookTrust::ALL, HookTrust::id)
}
