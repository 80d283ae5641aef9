//! What an organisation prescribes on its machines: `policy.toml`, in a directory that only the administrator can change.
//!
//! It is read like the user's file, and applied after all files, variables and command lines, so that nothing loosens what
//! it sets. Rules add up, and the strictest counts. Of two limits, the lower one counts. `[policy]` lists the modes and
//! models that may be chosen. With a mistake in the policy, no model is called.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use epitome_platform::os::MetadataExt;
use serde_json::json;

use super::file::{self, ConfigReader, TomlValue, fields};
use super::keys::SetValue;
use super::kind::{Kind, Slot, names};
use super::values::{ValueError, mode, wrong_type};
use super::{FileOwner, HookTrust, Settings, text_of};
use epitome_files::paths::Paths;
use epitome_problem::Problem;
use epitome_thread::Mode;

/// The user who may change policies.
const ADMINISTRATOR: u32 = 0;

/// Permissions of others than the owner to write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The policy of a machine. By default there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    file: Option<PolicyFile>,
    /// The modes that may be chosen, in addition to `read_only`; `None` for all.
    modes: Option<Vec<Mode>>,
    /// The models that may be called; `None` for all.
    models: Option<Vec<String>>,
    /// Why the policy can't be used.
    fault: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct PolicyFile {
    path: PathBuf,
    text: Arc<str>,
    /// What `~` means.
    home: Option<PathBuf>,
}

impl Policy {
    pub(super) fn new(path: PathBuf, text: &str, home: Option<&Path>) -> Policy {
        let file = PolicyFile { path, text: text.into(), home: home.map(Path::to_path_buf) };
        Policy { file: Some(file), ..Policy::default() }
    }

    /// Reads the policy of this machine. Blocks on disk I/O.
    pub(super) fn read(paths: &Paths) -> (Policy, Option<Problem>) {
        let (file, hooks) = (paths.policy_file(), paths.policy_hooks());
        let trusted =
            [&file, &hooks].into_iter().try_for_each(|path| mistrust(&chain_of(path)?, ADMINISTRATOR));
        let fault = match trusted.and_then(|()| text_of(&file)) {
            Ok(Some(text)) => return (Policy::new(file, &text, paths.user_home.as_deref()), None),
            Ok(None) => return (Policy::default(), None),
            Err(fault) => fault,
        };
        let problem = Problem { path: file, place: None, message: fault, hint: None };
        (Policy { fault: Some(problem.to_string()), ..Policy::default() }, Some(problem))
    }

    /// The file, if it could be read.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// Whether it can't be used, so that nothing may run.
    pub fn is_unusable(&self) -> bool {
        self.fault.is_some()
    }

    /// Why a model is not called; `None` if it may be. Without a name, about any model.
    pub fn refuses_model(&self, name: Option<&str>) -> Option<String> {
        if let Some(fault) = &self.fault {
            return Some(format!(
                "No model is called, because the policy of this machine can't be used: {fault}."
            ));
        }
        let (name, models) = (name?, self.models.as_ref()?);
        let is_it = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == pattern,
        };
        let listed = models.join(", ");
        let why = || format!("{} does not allow the model {name}; it allows {listed}.", self.name());
        (!models.iter().any(is_it)).then(why)
    }

    /// Why a mode can't be chosen; `None` if it can.
    pub fn refuses_mode(&self, wanted: Mode) -> Option<String> {
        let modes = self.modes.as_ref()?;
        let listed: Vec<&str> = modes.iter().map(|mode| mode.id()).chain([Mode::ReadOnly.id()]).collect();
        let why = || {
            format!(
                "{} does not allow the mode {}; it allows {}.",
                self.name(),
                wanted.id(),
                listed.join(", ")
            )
        };
        (wanted != Mode::ReadOnly && !modes.contains(&wanted)).then(why)
    }

    fn name(&self) -> String {
        self.path().map_or_else(|| "The policy".to_owned(), |path| format!("The policy {}", path.display()))
    }
}

impl Settings {
    /// Applies the policy over what is set so far. Pure, and the same however often it is repeated. Returns what the policy
    /// sets, and the mistakes in it.
    pub fn enforce_policy(&mut self) -> (Vec<SetValue>, Vec<Problem>) {
        let (mut values, mut problems) = Default::default();
        if let Some(PolicyFile { path, text, home }) = self.policy.file.clone() {
            // Those of the last time.
            self.permissions.retain(|rule| rule.path != path);
            (values, problems) = file::apply(self, &path, &text, FileOwner::Policy { home: home.as_deref() });
            self.policy.fault = problems.first().map(Problem::to_string);
            if self.policy.refuses_mode(self.mode).is_some() {
                self.mode = self.policy.modes.iter().flatten().next().copied().unwrap_or(Mode::ReadOnly);
                let value = self.mode.id().into();
                values.push(SetValue { key: vec!["mode".to_owned()], value, path, line: None });
            }
        }
        if self.policy.is_unusable() {
            self.hooks.enabled = false;
            self.hooks.trust = HookTrust::Never;
            self.mcp.servers.clear();
        }
        let policy = &self.policy;
        self.small_model.take_if(|name| policy.refuses_model(Some(name)).is_some());
        (values, problems)
    }
}

impl ConfigReader<'_> {
    pub(super) fn policy(&mut self, value: &TomlValue<'_>, policy: &mut Policy) {
        let Some(table) = self.table(value, "policy") else { return };
        fields!(self, table, key, value, {
            "modes" => self.set(value, &mut policy.modes, modes()),
            "models" => self.set(value, &mut policy.models, models()),
        });
    }

    /// Sets a limit, unless a policy would raise it.
    pub(super) fn limit<T: PartialOrd, F: Slot<T>>(
        &mut self,
        value: &TomlValue<'_>,
        field: &mut F,
        kind: Kind<T>,
    ) {
        if let FileOwner::Policy { .. } = self.owner
            && let (Ok(most), Some(current)) = (kind.read(value.get_ref()), Slot::<T>::current(&*field))
            && *current <= most
        {
            return;
        }
        self.set(value, field, kind);
    }
}

fn modes() -> Kind<Vec<Mode>> {
    let one = mode();
    let schema = json!({ "type": "array", "items": one.schema() });
    let written = |modes: &Vec<Mode>| json!(modes.iter().map(|mode| mode.id()).collect::<Vec<_>>());
    Kind::new(schema, written, move |value| {
        let list = value.as_array().ok_or_else(|| wrong_type("a list of modes", value))?;
        list.iter().map(|item| one.read(item.get_ref())).collect()
    })
}

fn models() -> Kind<Vec<String>> {
    let texts = names();
    Kind::new(
        texts.schema().clone(),
        |models| json!(models),
        move |value| {
            let models = texts.read(value)?;
            let is_plain = |model: &String| !model.trim_end_matches('*').contains('*') && model.contains('/');
            match models.iter().all(is_plain) {
                true => Ok(models),
                false => Err(ValueError {
                    message: "a model is named as provider/name, in which only the last character can be *"
                        .to_owned(),
                    hint: Some("for example \"anthropic/*\"".to_owned()),
                }),
            }
        },
    )
}

/// A file or directory with its owner and its permissions.
type Owned = (PathBuf, u32, u32);

/// The file, or the directory, and the directories above it, without links. Empty if it does not exist.
fn chain_of(path: &Path) -> Result<Vec<Owned>, String> {
    let failed = |error: std::io::Error| format!("{} can't be examined: {error}", path.display());
    // Windows has no such owners. There, only administrators can change files in the directory.
    if cfg!(windows) || !path.try_exists().map_err(failed)? {
        return Ok(Vec::new());
    }
    let real = path.canonicalize().map_err(failed)?;
    let owned = |path: &Path| {
        let metadata = path.metadata().map_err(failed)?;
        Ok((path.to_path_buf(), metadata.uid(), metadata.mode()))
    };
    // A user who can change the root directory does not need to change a policy.
    real.ancestors().filter(|path| path.parent().is_some()).map(owned).collect()
}

/// Fails if anybody but the administrator could have written a file, or put another one in its place.
fn mistrust(chain: &[Owned], administrator: u32) -> Result<(), String> {
    for (path, owner, permissions) in chain {
        let path = path.display();
        if *owner != administrator {
            return Err(format!("{path} belongs to the user {owner}, and not to root, so it is no policy"));
        }
        if permissions & WRITABLE_BY_OTHERS != 0 {
            return Err(format!(
                "{path} can be changed by others than root; `chmod go-w {path}` prevents that"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
