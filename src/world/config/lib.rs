//! Settings: the user's configuration, merged from several layers, as plain data. Read once per session.
//!
//! Layers, in increasing precedence: defaults, `config.toml` in Epitome's home directory, `.epitome/config.toml` of
//! the repository, environment variables, the policy of the machine. An invalid value is reported as a problem and leaves
//! the value of the lower layer in effect; it never aborts loading. A repository's file can neither widen the agent's
//! permissions nor choose where the conversation is sent: such keys are refused with a hint that names the file where they
//! belong.

mod agents;
mod budget;
mod choices;
mod diagnostics;
mod exposure;
mod file;
mod hooks;
mod keys;
mod kind;
pub mod logins;
mod mcp;
mod mcp_json;
mod mcp_variables;
mod models;
mod permissions;
pub mod plugin_servers;
mod policy;
pub mod rules;
mod sandbox;
mod values;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub use agents::AgentSettings;
pub use budget::BudgetSettings;
pub use choices::{
    BuiltInSettings, ChatKeys, EditorWrites, ProviderSettings, SearchChoice, TurnNotice, WireFormat,
};
pub use diagnostics::{DiagnosticsSettings, StartServers};
use epitome_files::paths::Paths;
pub use epitome_thread::compaction_settings::{
    BeforeBreak, CompactionSettings, CompactionThreshold, PruneSettings, Summariser,
};
use epitome_thread::problem::Problem;
use epitome_thread::{Mode, ThoughtLevel};
pub use exposure::{ExposureSettings, REMOTE_TOKEN_VARIABLE};
pub use file::BUILT_IN as BUILT_IN_PROVIDERS;
pub use hooks::MANIFEST_KEYS;
pub use hooks::{HookSettings, HookTrust};
pub use keys::{ANY_NAME, ConfigKey, SetValue, schema};
use kind::Kind;
pub use logins::{ChatGptLogin, ChatGptTokens, LockedLogin, LoginSecret, Logins, RemovedLogin, StoredLogin};
pub use mcp::{
    MCP_NAME_BYTES_MAX, MCP_SERVERS_MAX, McpSandbox, McpServer, McpSettings, McpSource, McpTransport, origin,
};
pub use mcp_variables::{VariableError, VariableUse, variable};
pub use models::{EditTools, Effort, ModelSettings, PriceSettings, ThinkingSettings};
pub use policy::{Policy, check_policy_of_store, set_policy_of_store};
use rules::{WrittenRule, covered};
pub use sandbox::SandboxSettings;
use toml::de::DeValue;
pub use values::MAX_ROUNDS_MAX;

/// All configurable settings, with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `provider/name`; `None` derives the model from the environment.
    pub model: Option<String>,
    pub mode: Mode,
    pub thought: ThoughtLevel,
    /// Maximum model calls per turn.
    pub max_rounds: u32,
    /// Maximum number of consecutive rounds of a turn that repeat each other; 0 is unlimited.
    pub max_repeats: u32,
    /// Model properties that override or extend the built-in table, by full model name.
    pub models: BTreeMap<String, ModelSettings>,
    /// Additional providers, by the part of a model's name before the slash.
    pub providers: BTreeMap<String, ProviderSettings>,
    /// Overrides for built-in providers, by the same names.
    pub built_in: BTreeMap<String, BuiltInSettings>,
    /// `models.small`: the model for small tasks; `None` selects the cheapest current model of the session's
    /// provider, if that is known.
    pub small_model: Option<String>,
    pub compaction: CompactionSettings,
    pub hooks: HookSettings,
    /// `budget`: limits on cost.
    pub budget: BudgetSettings,
    pub agents: AgentSettings,
    /// `diagnostics`: language servers.
    pub diagnostics: DiagnosticsSettings,
    pub mcp: McpSettings,
    pub sandbox: SandboxSettings,
    /// `environment`: the variables that programs get.
    pub exposure: ExposureSettings,
    /// Rules of all files, the user's first. The strictest matching rule wins, regardless of its file.
    pub permissions: Vec<WrittenRule>,
    /// `secrets.mask`: whether text that looks like a key is masked before it is stored.
    pub mask_secrets: bool,
    /// `templates.go_compat`: a variable that a recipe does not define renders as `<no value>`, as in Go,
    /// instead of as an empty string.
    pub go_compat: bool,
    /// When edits are sent to the user's editor. Only the user can set it.
    pub editor_writes: EditorWrites,
    /// Whether clients that request version 2 of ACP get it. Only the user can set it.
    pub acp_v2: bool,
    /// Whether the model may fetch pages from this machine and from private networks. Only the user can set it.
    pub fetch_private: bool,
    /// The service for the model's web searches. Only the user can set it.
    pub web_search: SearchChoice,
    /// How the chat announces the end of a long turn. Only the user can set it.
    pub notify: TurnNotice,
    pub chat_keys: ChatKeys,
    /// The address of the PostgreSQL database that has the sessions; `None` if they are in files.
    pub store: Option<String>,
    /// Whether the model may propose changes of its memory. Only the user can set it.
    pub memory: bool,
    /// The address to which spans are sent, as in `OTEL_EXPORTER_OTLP_ENDPOINT`. Only the user can set it.
    pub telemetry: Option<String>,
    /// The stored logins. Not set by any file.
    pub logins: Logins,
    /// The settings that the administrator of the machine prescribes.
    pub policy: Policy,
}

/// Default limit of model calls per turn.
pub const MAX_ROUNDS: u32 = 200;
/// Default limit of consecutive rounds that repeat each other.
pub const MAX_REPEATS: u32 = 5;
/// Maximum size of a configuration file in bytes; real files have a few hundred.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            model: None,
            mode: Mode::default(),
            thought: ThoughtLevel::default(),
            max_rounds: MAX_ROUNDS,
            max_repeats: MAX_REPEATS,
            models: BTreeMap::new(),
            providers: BTreeMap::new(),
            built_in: BTreeMap::new(),
            small_model: None,
            compaction: CompactionSettings::default(),
            hooks: HookSettings::default(),
            budget: BudgetSettings::default(),
            agents: AgentSettings::default(),
            diagnostics: DiagnosticsSettings::default(),
            mcp: McpSettings::default(),
            sandbox: SandboxSettings::default(),
            exposure: ExposureSettings::default(),
            permissions: Vec::new(),
            mask_secrets: true,
            go_compat: false,
            editor_writes: EditorWrites::default(),
            acp_v2: true,
            fetch_private: false,
            web_search: SearchChoice::default(),
            notify: TurnNotice::default(),
            chat_keys: ChatKeys::default(),
            store: None,
            memory: false,
            telemetry: None,
            logins: Logins::default(),
            policy: Policy::default(),
        }
    }
}

/// The owner of a configuration file, which determines what the file may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileOwner<'a> {
    /// `home` is the directory that `~` expands to.
    User { home: Option<&'a Path> },
    /// `instead` is the user's file, where a refused key belongs.
    Repository { instead: &'a Path },
    /// The administrator of the machine, for a user with this home directory, or the person who may change the policy of a database.
    Policy { home: Option<&'a Path>, is_of_store: bool },
}

impl<'a> FileOwner<'a> {
    /// The directory that `~` expands to.
    fn home(self) -> Option<&'a Path> {
        match self {
            FileOwner::User { home } | FileOwner::Policy { home, .. } => home,
            FileOwner::Repository { .. } => None,
        }
    }
}

/// Settings with their origins.
#[derive(Debug)]
pub struct LoadedSettings {
    pub settings: Settings,
    /// The values that files and the environment set, in increasing precedence.
    pub values: Vec<SetValue>,
    pub problems: Vec<Problem>,
}

impl Settings {
    /// Loads all layers. Missing files are fine; any error in a file becomes a problem. Blocks on disk I/O.
    /// `environment` is the editor's environment, not that of this process.
    pub fn load(
        paths: &Paths,
        cwd: Option<&Path>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> (Settings, Vec<Problem>) {
        let loaded = LoadedSettings::load(paths, cwd, environment);
        (loaded.settings, loaded.problems)
    }

    /// Returns every key that the user's file may contain, with its value in these settings.
    pub fn keys(&self) -> Vec<ConfigKey> {
        file::keys(self)
    }

    /// The environment variables with keys that the user's providers name.
    pub fn key_variables(&self) -> impl Iterator<Item = &str> {
        let own = self.providers.values().map(|provider| &provider.key_variable);
        let built_in = self.built_in.values().map(|provider| &provider.key_variable);
        own.chain(built_in).filter_map(Option::as_deref)
    }

    /// Returns the path of the repository's settings for sessions of this directory.
    pub fn repository_file(cwd: &Path) -> PathBuf {
        cwd.join(".epitome/config.toml")
    }
}

impl LoadedSettings {
    /// See [`Settings::load`].
    pub fn load(
        paths: &Paths,
        cwd: Option<&Path>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> LoadedSettings {
        let settings = Settings { logins: Logins::below(&paths.data), ..Settings::default() };
        let mut loaded = LoadedSettings { settings, values: Vec::new(), problems: Vec::new() };
        if let Some(threshold) = old_ratio(&environment) {
            loaded.settings.compaction.threshold = threshold;
            loaded.set_by(OLD_RATIO, &["compaction", "threshold"], values::threshold().written(&threshold));
        }
        let users = paths.config_file();
        loaded.read(&users, FileOwner::User { home: paths.user_home.as_deref() });
        // If the session's directory is the parent of Epitome's home directory, this file is the user's file, which
        // has already been read.
        let repository = cwd.map(Settings::repository_file).filter(|file| *file != users);
        if let Some(file) = repository {
            loaded.read(&file, FileOwner::Repository { instead: &users });
        }
        if let Some(cwd) = cwd {
            loaded.read_mcp_json(&cwd.join(mcp_json::MCP_JSON));
        }
        if let Some(cwd) = cwd {
            loaded.problems.extend(plugin_servers::read(cwd, paths, &mut loaded.settings.mcp.servers));
        }
        loaded.settings.mcp.apply_allowed_variables();
        loaded.environment(&environment);
        let (policy, unusable) = Policy::read(paths);
        loaded.settings.policy = policy;
        let (values, problems) = loaded.settings.enforce_policy();
        loaded.values.extend(values);
        loaded.problems.extend(unusable.into_iter().chain(problems));
        loaded
    }

    fn read(&mut self, path: &Path, owner: FileOwner<'_>) {
        match text_of(path) {
            Ok(Some(text)) => {
                let (values, problems) = file::apply(&mut self.settings, path, &text, owner);
                self.values.extend(values);
                self.problems.extend(problems);
            }
            Ok(None) => {}
            Err(error) => {
                let message = error.to_string();
                // Its restrictions are unknown.
                let mut applies = "Epitome asks before every call";
                if let FileOwner::User { .. } = owner {
                    applies = "Epitome asks before every call and calls no model";
                    self.settings.budget.fault = Some(Problem::new(path, &*message).to_string());
                }
                let problem = Problem::new(path, format!("{message}{}{applies}", file::UNTIL_CORRECTED));
                self.settings.permissions.push(permissions::asks_because(&problem, covered("")));
                self.problems.push(problem);
            }
        }
    }

    fn read_mcp_json(&mut self, path: &Path) {
        let known = self.settings.mcp.servers.len();
        match text_of(path) {
            Ok(Some(text)) => {
                self.problems.extend(mcp_json::read(path, &text, &mut self.settings.mcp.servers));
            }
            Ok(None) => {}
            Err(error) => self.problem(path, error.to_string(), None),
        }
        for server in self.settings.mcp.servers.iter().skip(known) {
            let key = ["mcp", "servers", &server.name].map(str::to_owned).to_vec();
            let value = serde_json::Value::from("<a server>");
            self.values.push(SetValue { key, value, path: path.to_path_buf(), line: None });
        }
    }

    fn environment(&mut self, get: &impl Fn(&str) -> Option<OsString>) {
        if let Some(model) = self.variable(get, "EPITOME_MODEL", "model", &values::model_name()) {
            self.settings.model = Some(model);
        }
        if let Some(mode) = self.variable(get, "EPITOME_MODE", "mode", &values::mode()) {
            self.settings.mode = mode;
        }
    }

    /// Returns the value of a variable, if it is valid.
    fn variable<T: 'static>(
        &mut self,
        get: &impl Fn(&str) -> Option<OsString>,
        name: &str,
        key: &str,
        kind: &Kind<T>,
    ) -> Option<T> {
        let text = get(name)?.into_string().ok().filter(|value| !value.is_empty())?;
        let read = kind.read(&DeValue::String(text.into()));
        match &read {
            Ok(value) => self.set_by(name, &[key], kind.written(value)),
            Err(error) => {
                let path = PathBuf::from(format!("${name}"));
                self.problem(&path, error.message.clone(), error.hint.clone());
            }
        }
        read.ok()
    }

    fn problem(&mut self, path: &Path, message: String, hint: Option<String>) {
        self.problems.push(Problem { hint, ..Problem::new(path, message) });
    }

    /// Records a value from the environment.
    fn set_by(&mut self, variable: &str, key: &[&str], value: serde_json::Value) {
        let key = key.iter().map(|name| (*name).to_owned()).collect();
        self.values.push(SetValue { key, value, path: PathBuf::from(format!("${variable}")), line: None });
    }
}

/// A variable of Epitome's predecessor, kodelet.
const OLD_RATIO: &str = "KODELET_COMPACT_RATIO";

/// Returns the compaction threshold from kodelet's environment variable; any file overrides it.
fn old_ratio(get: &impl Fn(&str) -> Option<OsString>) -> Option<CompactionThreshold> {
    CompactionThreshold::from_ratio(&get(OLD_RATIO)?.into_string().ok()?)
}

/// Reads a file; `None` if it does not exist.
fn text_of(path: &Path) -> io::Result<Option<String>> {
    let unreadable =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot read the settings: {error}"));
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        // A link shows that there are settings, for example on a disk that isn't mounted. They may contain rules.
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
            return Err(io::Error::other("the settings are a link to a file that does not exist"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    // Opening a named pipe would block until a writer appears.
    if !metadata.is_file() {
        return Err(io::Error::other("the settings must be an ordinary file"));
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        let text = format!("the settings have more than {} KiB", CONFIG_BYTES_MAX / 1024);
        return Err(io::Error::other(text));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests;
