//! Settings of hooks: the `[hooks]` table. Only the person's own file may have one: a repository must
//! not decide whether what it brings is run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use toml::de::DeValue;

use super::file::{Reader, Value};
use super::values::{Wrong, between, json, text, truth};
use epitome_problem::nearest;

/// Whether and how hooks run.
#[derive(Clone, Debug, PartialEq)]
pub struct Hooks {
    pub enabled: bool,
    pub trust: Trust,
    /// How long a hook may run that says nothing of its own.
    pub timeout: Duration,
    /// How often hooks may send the agent on within one prompt.
    pub max_continuations: u32,
    /// How long a recipe may run that a hook called.
    pub callback_timeout: Duration,
    /// Whether a hook may change another session than the one that it was called for.
    pub cross_session: bool,
    /// Whether hooks are looked for in kodelet's folders, too.
    pub compat_dirs: bool,
    /// Fields of a hook's manifest that count instead of its own, by the hook's name.
    pub overrides: BTreeMap<String, Map<String, Json>>,
}

/// What happens to hooks and shell calls that came with a repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// The person is asked once for each version of each; where nobody can be asked, it does not run.
    #[default]
    Ask,
    Run,
    Never,
}

impl Trust {
    pub const ALL: [Trust; 3] = [Trust::Ask, Trust::Run, Trust::Never];

    pub fn id(self) -> &'static str {
        match self {
            Trust::Ask => "ask",
            Trust::Run => "run",
            Trust::Never => "never",
        }
    }

    pub fn parse(id: &str) -> Option<Trust> {
        Trust::ALL.into_iter().find(|trust| trust.id() == id)
    }
}

impl Default for Hooks {
    fn default() -> Hooks {
        Hooks {
            enabled: true,
            trust: Trust::Ask,
            timeout: Duration::from_secs(30),
            max_continuations: 3,
            callback_timeout: Duration::from_secs(120),
            cross_session: false,
            compat_dirs: true,
            overrides: BTreeMap::new(),
        }
    }
}

const KEYS: [&str; 8] = [
    "enabled",
    "trust",
    "timeout_ms",
    "max_continuations",
    "callback_timeout_s",
    "cross_session",
    "compat_dirs",
    "overrides",
];
/// What a hook's manifest can have.
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

/// Milliseconds that one run of a hook can be given. The person waits for it.
const TIMEOUT_MS: std::ops::RangeInclusive<i64> = 100..=600_000;
/// Seconds that a called recipe can be given.
const CALLBACK_TIMEOUT_S: std::ops::RangeInclusive<i64> = 1..=3_600;
/// Continuations that can be configured; each costs model calls that nobody typed for.
const CONTINUATIONS: std::ops::RangeInclusive<i64> = 0..=100;

impl Reader<'_> {
    pub(super) fn hooks(&mut self, value: &Value<'_>, hooks: &mut Hooks) {
        let Some(table) = self.table(value, "hooks") else { return };
        for (key, value) in table {
            match &**key.get_ref() {
                "enabled" => self.set(value, &mut hooks.enabled, truth),
                "trust" => self.set(value, &mut hooks.trust, trust),
                "timeout_ms" => self.set(value, &mut hooks.timeout, |value| {
                    between(value, TIMEOUT_MS, "a number of milliseconds").map(Duration::from_millis)
                }),
                "max_continuations" => self.set(value, &mut hooks.max_continuations, continuations),
                "callback_timeout_s" => self.set(value, &mut hooks.callback_timeout, |value| {
                    between(value, CALLBACK_TIMEOUT_S, "a number of seconds").map(Duration::from_secs)
                }),
                "cross_session" => self.set(value, &mut hooks.cross_session, truth),
                "compat_dirs" => self.set(value, &mut hooks.compat_dirs, truth),
                "overrides" => self.overrides(value, &mut hooks.overrides),
                other => self.unknown(key.span(), other, &KEYS),
            }
        }
    }

    /// What the values mean is for who reads a manifest; here they must be fields of one.
    fn overrides(&mut self, value: &Value<'_>, overrides: &mut BTreeMap<String, Map<String, Json>>) {
        let Some(table) = self.table(value, "hooks.overrides") else { return };
        for (name, value) in table {
            let Some(fields) = self.table(value, "what counts for a hook") else { continue };
            let manifest = overrides.entry(name.get_ref().to_string()).or_default();
            for (key, value) in fields {
                let field = &**key.get_ref();
                if !MANIFEST_KEYS.contains(&field) {
                    self.unknown(key.span(), field, &MANIFEST_KEYS);
                    continue;
                }
                let mut read = Json::Null;
                self.set(value, &mut read, json);
                if !read.is_null() {
                    manifest.insert(field.to_owned(), read);
                }
            }
        }
    }
}

fn trust(value: &DeValue<'_>) -> Result<Trust, Wrong> {
    let id = text(value)?;
    Trust::parse(&id).ok_or_else(|| {
        let known = Trust::ALL.map(Trust::id);
        let hint = match nearest(&id, known) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("one of {}", known.join(", ")),
        };
        Wrong { message: format!("there is no trust {id:?}"), hint: Some(hint) }
    })
}

fn continuations(value: &DeValue<'_>) -> Result<u32, Wrong> {
    let number = between(value, CONTINUATIONS, "a whole number")?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}
