//! The policies of an organisation for its machines: `policy.toml`, in a directory that only the administrator can
//! change, and the policy in the database that has the sessions.
//!
//! They are read like the user's file, and applied after all files, variables and command lines, so that nothing
//! loosens them. The file is applied last, so that the database can't override the administrator of the machine. Rules
//! add up, and the strictest counts. The lower of two limits counts. `[policy]` lists the modes and models that may be
//! chosen. With a mistake in the policy, no model is called.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epitome_platform::os::MetadataExt;
use parking_lot::RwLock;
use serde_json::json;

use super::file::{self, ConfigReader, TomlValue, fields};
use super::keys::SetValue;
use super::kind::{Kind, Slot, names};
use super::values::{ValueError, mode, wrong_type};
use super::{FileOwner, HookTrust, Settings, text_of};
use epitome_files::paths::Paths;
use epitome_thread::Mode;
use epitome_thread::problem::Problem;
use toml::de::DeTable;

/// The user who may change policies.
const ADMINISTRATOR: u32 = 0;

/// Permissions of others than the owner to write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The policy of the database that has the sessions of this process. It is read when the database is opened.
static OF_STORE: RwLock<Option<PolicyFile>> = RwLock::new(None);

/// Keys that the policy of a database can't set: they would start programs on all machines, allow them, or send something
/// elsewhere.
const NOT_OF_STORES: [&[&str]; 10] = [
    &["store"],
    &["telemetry"],
    &["providers"],
    &["mcp"],
    &["environment"],
    &["diagnostics"],
    &["web_search"],
    &["hooks", "functions"],
    &["hooks", "overrides"],
    &["permissions", "allow"],
];

/// The policies of a machine. By default there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// The policies in the order in which they are applied.
    files: Vec<PolicyFile>,
    /// The modes and models that each of them allows.
    choices: Vec<PolicyChoices>,
    /// Why they can't be used.
    fault: Option<String>,
}

/// The modes and models that one policy allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PolicyChoices {
    /// The file of the policy, or the name of the database.
    path: PathBuf,
    /// The modes that may be chosen, in addition to `read_only`; `None` for all.
    modes: Option<Vec<Mode>>,
    /// The models that may be called; `None` for all.
    models: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq)]
struct PolicyFile {
    /// The path of the file. For the policy of a database, its name in messages.
    path: PathBuf,
    text: Arc<str>,
    is_of_store: bool,
    /// The home directory, for `~` in paths.
    home: Option<PathBuf>,
}

impl PolicyFile {
    fn of_store(place: &str, text: &str) -> PolicyFile {
        let path = PathBuf::from(format!("the policy in {place}"));
        PolicyFile { path, text: text.into(), is_of_store: true, home: None }
    }
}

/// Sets what a database prescribes to this process, from the next session on.
pub fn set_policy_of_store(place: &str, text: Option<&str>) {
    let policy = text.map(|text| PolicyFile::of_store(place, text));
    *OF_STORE.write() = policy;
}

/// The mistakes in a text that is to be the policy of a database.
pub fn check_policy_of_store(place: &str, text: &str) -> Vec<Problem> {
    let files = vec![PolicyFile::of_store(place, text)];
    let policy = Policy { files, ..Policy::default() };
    Settings { policy, ..Settings::default() }.enforce_policy().1
}

impl Policy {
    /// Reads the policy of this machine. Blocks on disk I/O.
    pub(super) fn read(paths: &Paths) -> (Policy, Option<Problem>) {
        let (file, hooks) = (paths.policy_file(), paths.policy_hooks());
        let trusted =
            [&file, &hooks].into_iter().try_for_each(|path| mistrust(&chain_of(path)?, ADMINISTRATOR));
        let mut files = Vec::from_iter(OF_STORE.read().clone());
        match trusted.and_then(|()| text_of(&file)) {
            Ok(text) => {
                let home = paths.user_home.clone();
                files.extend(text.map(|text| PolicyFile {
                    path: file,
                    text: text.into(),
                    is_of_store: false,
                    home,
                }));
                (Policy { files, ..Policy::default() }, None)
            }
            Err(error) => {
                let problem = Problem::new(file, error.to_string());
                (Policy { files, fault: Some(problem.to_string()), ..Policy::default() }, Some(problem))
            }
        }
    }

    /// Returns the paths of the policies that could be read, or the name for that of a database.
    pub fn places(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
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
        let allows_none = |choices: &&PolicyChoices| choices.models.as_ref().is_some_and(Vec::is_empty);
        if let Some(choices) = self.choices.iter().find(allows_none) {
            return Some(format!(
                "{} allows no model: the list `models` of its [policy] is empty.",
                choices.name()
            ));
        }
        let name = name?;
        let is_it = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == pattern,
        };
        let refuses = |choices: &PolicyChoices| {
            let models = choices.models.as_ref().filter(|models| !models.iter().any(is_it))?;
            let listed = models.join(", ");
            Some(format!("{} does not allow the model {name}; it allows {listed}.", choices.name()))
        };
        self.choices.iter().find_map(refuses)
    }

    /// Why a mode can't be chosen; `None` if it can.
    pub fn refuses_mode(&self, wanted: Mode) -> Option<String> {
        let refuses = |choices: &PolicyChoices| {
            let modes = choices.modes.as_ref().filter(|modes| !modes.contains(&wanted))?;
            let listed: Vec<&str> = modes.iter().map(|mode| mode.id()).chain([Mode::ReadOnly.id()]).collect();
            let listed = listed.join(", ");
            Some(format!("{} does not allow the mode {}; it allows {listed}.", choices.name(), wanted.id()))
        };
        self.choices.iter().filter(|_| wanted != Mode::ReadOnly).find_map(refuses)
    }

    /// The mode that takes the place of one that is refused, and which policy names it.
    fn first_mode(&self) -> (Mode, PathBuf) {
        let named = self
            .choices
            .iter()
            .flat_map(|choices| choices.modes.iter().flatten().map(|mode| (*mode, choices.path.clone())));
        let last = || (Mode::ReadOnly, self.choices.last().map(|last| last.path.clone()).unwrap_or_default());
        { named }.find(|(mode, _)| self.refuses_mode(*mode).is_none()).unwrap_or_else(last)
    }
}

impl PolicyChoices {
    fn name(&self) -> String {
        let path = self.path.display().to_string();
        match path.strip_prefix("the ") {
            Some(name) => format!("The {name}"),
            None => format!("The policy {path}"),
        }
    }
}

impl Settings {
    /// Applies the policies over what is set so far. Pure, and the same however often it is repeated. Returns what they
    /// set, and the mistakes in them.
    pub fn enforce_policy(&mut self) -> (Vec<SetValue>, Vec<Problem>) {
        let (mut values, mut problems) = (Vec::new(), Vec::new());
        self.policy.choices.clear();
        for PolicyFile { path, text, is_of_store, home } in self.policy.files.clone() {
            // Remove the rules of the previous run.
            self.permissions.retain(|rule| rule.path != path);
            self.policy.choices.push(PolicyChoices { path: path.clone(), ..PolicyChoices::default() });
            let owner = FileOwner::Policy { home: home.as_deref(), is_of_store };
            let before = is_of_store.then(|| self.clone());
            let (set, found) = file::apply(self, &path, &text, owner);
            match before.filter(|_| found.iter().any(|problem| !problem.is_notice)) {
                // A person who can write to the database must not get anything sent by what is refused.
                Some(before) => *self = Settings { policy: std::mem::take(&mut self.policy), ..before },
                None => values.extend(set),
            }
            problems.extend(found);
        }
        if let Some(problem) = problems.iter().find(|problem| !problem.is_notice) {
            self.policy.fault.get_or_insert_with(|| problem.to_string());
        }
        if self.policy.refuses_mode(self.mode).is_some() {
            let (mode, path) = self.policy.first_mode();
            self.mode = mode;
            values.push(SetValue { key: vec!["mode".to_owned()], value: mode.id().into(), path, line: None });
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
        let mut unused = PolicyChoices::default();
        let choices = policy.choices.last_mut().unwrap_or(&mut unused);
        fields!(self, table, key, value, {
            "modes" => self.set(value, &mut choices.modes, modes()),
            "models" => self.set(value, &mut choices.models, models()),
        });
    }

    /// Reports what the policy of a database can't set.
    pub(super) fn refuse_of_store(&mut self, root: &DeTable<'_>) {
        if !matches!(self.owner, FileOwner::Policy { is_of_store: true, .. }) {
            return;
        }
        for names in NOT_OF_STORES {
            let (last, tables) = names.split_last().expect("a key has a name");
            let table = tables.iter().try_fold(root, |table, name| table.get(*name)?.get_ref().as_table());
            if let Some(value) = table.and_then(|table| table.get(*last)) {
                let message = format!("a policy in a database can't set {:?}", names.join("."));
                let hint = "set it in the policy of each machine, see docs/operators/policy.md".to_owned();
                self.problem(value.span(), message, Some(hint));
            }
        }
        let hooks = root.get("hooks").and_then(|hooks| hooks.get_ref().as_table());
        if let Some(trust) = hooks.and_then(|hooks| hooks.get("trust"))
            && trust.get_ref().as_str() == Some(HookTrust::Run.id())
        {
            let message = "a policy in a database can't have the hooks of repositories run".to_owned();
            self.problem(trust.span(), message, Some("trust is \"ask\" or \"never\"".to_owned()));
        }
    }

    /// Sets a limit, unless a policy would raise it.
    pub(super) fn limit<T: PartialOrd + 'static, F: Slot<T>>(
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
    names().checked(|models| {
        let is_plain = |model: &String| !model.trim_end_matches('*').contains('*') && model.contains('/');
        let message = "a model is named as provider/name, in which only the last character can be *";
        let error = || ValueError::new(message).hint("for example \"anthropic/*\"");
        (!models.iter().all(is_plain)).then(error)
    })
}

/// A file or directory with its owner and its permissions.
type Owned = (PathBuf, u32, u32);

/// The file, or the directory, and the directories above it, without links. Empty if it does not exist.
fn chain_of(path: &Path) -> io::Result<Vec<Owned>> {
    let failed = |error: io::Error| {
        io::Error::new(error.kind(), format!("{} can't be examined: {error}", path.display()))
    };
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
fn mistrust(chain: &[Owned], administrator: u32) -> io::Result<()> {
    for (path, owner, permissions) in chain {
        let path = path.display();
        if *owner != administrator {
            let text = format!("{path} belongs to the user {owner}, not to root, so it is not used");
            return Err(io::Error::other(text));
        }
        if permissions & WRITABLE_BY_OTHERS != 0 {
            let text =
                format!("{path} can be changed by others than root; `chmod go-w {path}` prevents that");
            return Err(io::Error::other(text));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
