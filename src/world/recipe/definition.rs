//! A recipe as data: the content of its file, in whichever format.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::handlers::UnknownHandler;
use epitome_thread::problem::Problem;

/// The agent that carries out a task for which no other one is named.
pub const AGENT_DEFAULT: &str = "general";

/// A recipe, with all defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The name of the slash command: the path below its folder, without `.md`.
    pub id: String,
    pub name: String,
    pub description: String,
    pub source: RecipeSource,
    pub syntax: RecipeSyntax,
    /// The text after the front matter.
    pub body: String,
    /// The line of the file, 1-based, at which the body begins.
    pub body_line: u64,
    pub aliases: Vec<String>,
    /// Works when typed, but is not listed.
    pub hidden: bool,
    /// `None` inherits the session's tools; an empty list allows none.
    pub allowed_tools: Option<Vec<String>>,
    /// Like `allowed_tools`, for shell command lines.
    pub allowed_commands: Option<Vec<String>>,
    /// Declared arguments, including those of the older `defaults` map.
    pub arguments: BTreeMap<String, Argument>,
    /// Shown instead of the hint generated from the arguments (`argument-hint` of other formats).
    pub argument_hint: Option<String>,
    /// The `hooks` table of the file; `Null` if it has none.
    pub hooks: Value,
    /// Handlers in `hooks` that are not built in and, once the catalog has checked, not hooks on disk.
    pub unknown_handlers: Vec<UnknownHandler>,
    pub output: OutputMode,
    /// `None`: in the session when typed, isolated when called by a hook.
    pub context: Option<Context>,
    pub history: HistoryMode,
    pub model: RecipeModel,
    pub max_turns: Option<u32>,
    pub callable_by: CallableBy,
    pub run_hooks: bool,
    pub foreign: ForeignFields,
}

/// The origin of a recipe, which determines how far it is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecipeSource {
    BuiltIn,
    /// A file in one of the user's own folders.
    User(PathBuf),
    /// A file of a repository: its shell calls run only after the user has allowed them.
    Repository(PathBuf),
}

impl RecipeSource {
    /// The file's path; a placeholder for built-in recipes.
    pub fn path(&self) -> &Path {
        match self {
            RecipeSource::BuiltIn => Path::new("(built in)"),
            RecipeSource::User(path) | RecipeSource::Repository(path) => path,
        }
    }
}

/// How the body becomes a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecipeSyntax {
    /// Go's `text/template`.
    Template,
    /// `$ARGUMENTS`, `$1`, ``!`command` ``: commands and skills of Claude Code.
    ClaudeCommand,
    /// `{{args}}`, `!{command}`.
    GeminiCommand,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Argument {
    pub description: String,
    pub default: Option<String>,
    pub required: bool,
    /// Allowed values; empty allows any.
    pub choices: Vec<String>,
}

/// How a callback uses the resulting text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputMode {
    Message,
    Mutate,
    Append,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Context {
    Session,
    Isolated,
    None,
}

/// How the history is passed to an isolated run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HistoryMode {
    Native,
    Flat,
    Auto,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecipeModel {
    Main,
    Small,
    #[serde(untagged)]
    Named(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallableBy {
    pub user: bool,
    pub hook: bool,
    pub agent: bool,
}

impl Default for CallableBy {
    fn default() -> CallableBy {
        CallableBy { user: true, hook: true, agent: false }
    }
}

/// The variables that every template has.
pub(super) const VARIABLES: [&str; 5] = ["conversation_id", "cwd", "date", "recipe", "input"];

impl Recipe {
    /// Whether the recipe runs as a compaction: its reply, written without tools, replaces the conversation.
    pub fn is_compaction(&self) -> bool {
        self.swaps_context() && self.allowed_tools.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether the recipe replaces the history (`/compact` and similar): it declares a `swap_context` or
    /// `compact_context` handler.
    pub fn swaps_context(&self) -> bool {
        declares_swap(&self.hooks)
    }

    /// Makes a recipe that replaces a built-in compaction one itself, unless it declares something else.
    pub(super) fn replace_history_like(&mut self, compaction: &Recipe) {
        if self.hooks.is_null() && self.output == OutputMode::Message {
            self.hooks = compaction.hooks.clone();
            self.output = compaction.output;
            self.allowed_tools.get_or_insert_default();
        }
    }

    /// A recipe with the given body and defaults for all other fields.
    pub fn plain(id: &str, source: RecipeSource, syntax: RecipeSyntax, body: &str, body_line: u64) -> Recipe {
        Recipe {
            id: id.to_owned(),
            name: id.to_owned(),
            description: format!("Run the {id} recipe"),
            source,
            syntax,
            body: body.to_owned(),
            body_line,
            aliases: Vec::new(),
            hidden: false,
            allowed_tools: None,
            allowed_commands: None,
            arguments: BTreeMap::new(),
            argument_hint: None,
            hooks: Value::Null,
            unknown_handlers: Vec::new(),
            output: OutputMode::Message,
            context: None,
            history: HistoryMode::Auto,
            model: RecipeModel::Main,
            max_turns: None,
            callable_by: CallableBy::default(),
            run_hooks: true,
            foreign: ForeignFields::default(),
        }
    }

    /// The arguments that have a default, with it.
    pub fn defaults(&self) -> impl Iterator<Item = (&str, &str)> {
        self.arguments
            .iter()
            .filter_map(|(name, argument)| Some((name.as_str(), argument.default.as_deref()?)))
    }

    /// Whether the recipe is a skill, which the agent may load automatically.
    pub fn is_skill(&self) -> bool {
        self.foreign.directory.is_some()
    }
}

/// A valid recipe, with remarks on unknown fields and fields without effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    pub recipe: Recipe,
    pub notes: Vec<Problem>,
}

/// Fields that only files of other agents have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignFields {
    /// Names of the typed words, in order.
    pub names: Vec<String>,
    /// The folder of a skill's files.
    pub directory: Option<PathBuf>,
    /// The folders of the plugin that the file belongs to.
    pub plugin: Option<PluginFolders>,
    /// The agent that a skill runs in instead of the conversation (`context: fork`).
    pub fork: Option<String>,
    /// Tools that may not be used, by Claude Code's names or Epitome's (`disallowed-tools`).
    pub without_tools: Vec<String>,
    /// File globs: the agent is offered the skill once it works with a matching file.
    pub paths: Vec<String>,
}

impl ForeignFields {
    /// Whether a skill applies to one of these files, which are relative to the session's directory.
    pub fn is_for<'a>(&self, files: impl Iterator<Item = &'a Path> + Clone) -> bool {
        let is_one = |glob: &String| {
            let fits =
                globset::GlobBuilder::new(glob.trim_start_matches("./")).literal_separator(true).build();
            fits.is_ok_and(|glob| {
                let glob = glob.compile_matcher();
                files.clone().any(|file| glob.is_match(file))
            })
        };
        self.paths.is_empty() || self.paths.iter().any(is_one)
    }
}

/// Folders of a Claude Code plugin, for its `${…}` variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginFolders {
    /// The installation folder: `${CLAUDE_PLUGIN_ROOT}`.
    pub root: PathBuf,
    /// The folder of data that outlives an update: `${CLAUDE_PLUGIN_DATA}`.
    pub data: PathBuf,
}

/// Whether a handler of the recipe replaces the history; then the recipe's output defaults to `mutate`.
fn declares_swap(hooks: &Value) -> bool {
    match hooks {
        Value::String(handler) => matches!(handler.as_str(), "swap_context" | "compact_context"),
        Value::Array(items) => items.iter().any(declares_swap),
        Value::Object(fields) => fields.iter().any(|(name, value)| name != "params" && declares_swap(value)),
        _ => false,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RecipeOwner {
    User,
    Repository,
}

impl RecipeOwner {
    pub(super) fn source(self, path: &Path) -> RecipeSource {
        match self {
            RecipeOwner::User => RecipeSource::User(path.to_path_buf()),
            RecipeOwner::Repository => RecipeSource::Repository(path.to_path_buf()),
        }
    }
}
