//! The `Tool` trait, its inputs and its results; each tool has its own file. `permission` decides whether a call may
//! run, and the session requests that decision; a tool never decides for itself.

mod apply_patch;
pub mod ask_user;
mod attached;
pub mod background;
mod bash;
mod bash_kill;
mod bash_output;
pub mod buffers;
pub mod command_line;
pub mod disk;
mod error;
mod file_edit;
mod file_read;
mod file_write;
pub mod git_commands;
mod glob_tool;
mod grep_tool;
mod input;
pub mod listing;
pub mod memory;
mod notebook;
mod output;
mod parsed;
pub mod permission;
pub mod question;
pub mod read_state;
pub mod recall_tool;
mod running;
pub mod sandbox;
pub mod schema;
pub mod secret_paths;
pub mod shell_output;
mod shell_run;
pub mod skill_tool;
mod spelling;
pub mod task;
mod todo_write;
pub mod truncate;
mod view_image;
mod walk;
mod web_fetch;
pub mod web_search;

use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;

use serde_json::Value;

pub use epitome_platform::{child_output, group, launcher, reaper};
pub use error::ToolError;
pub use parsed::ParsedTool;
pub use running::RunningCommands;

use read_state::ReadState;
use secret_paths::SecretPaths;

use epitome_platform::file_uri;
use epitome_platform::root::{Root, Roots, resolve};
use epitome_recall::RecallLog;
pub use epitome_secrets::exposure::Exposure;
use epitome_thread::titles::name_in_title;
use epitome_thread::{
    CallDisplay, CallId, CallOutput, Location, Mode, OutcomeContent, OutcomeStatus, PlanStep, ToolDisplay,
    ToolKind, ToolSpec,
};

pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An error of a part that another one plugs in.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A tool that the model can call.
///
/// Tool names and input keys are those that hooks written for other agents match on; never rename them.
pub trait Tool: Send + Sync {
    /// The name, description and input schema that the model receives.
    fn spec(&self) -> ToolSpec;

    /// Returns the tool card that clients display before the call runs. Tolerates invalid input. Accesses the disk
    /// only to resolve paths and to locate an edit in a small file.
    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay;

    /// Returns the resources that the call would access, for the permission decision. Rejects invalid input with a
    /// message for the model, so that the user is never asked about a call that cannot run.
    fn access(&self, input: &Value, workspace: &Workspace) -> Result<Access, ToolError>;

    /// Returns the content that the permission prompt displays below the title, such as the diff of an edit or the
    /// command. Empty for tools whose title is sufficient.
    fn preview(&self, _input: &Value, _context: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        Box::pin(async { Vec::new() })
    }

    /// Whether the tool is in the tool list that the model receives. An unlisted tool can still be called, for
    /// example through another tool.
    fn is_listed(&self) -> bool {
        true
    }

    /// The name and input of the tool that this call forwards to, if any. Hooks see the forwarded call.
    fn forwarded_call(&self, _input: &Value) -> Option<(String, Value)> {
        None
    }

    /// Wraps the input of a forwarded call in an input of this tool: the inverse of `forwarded_call`. Called only if
    /// `forwarded_call` returns `Some`.
    fn wrap_forwarded(&self, _name: &str, input: Value) -> Value {
        input
    }

    /// Checks whether the call can succeed in the current state, so that the user isn't asked about one that can't.
    /// The error is a message for the model. May read the disk, but changes nothing.
    fn check(&self, _input: &Value, _context: ToolContext) -> BoxFuture<Result<(), ToolError>> {
        Box::pin(async { Ok(()) })
    }

    /// The part of the context that this tool needs in addition to what every tool gets.
    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    /// The agent that the call would start, if any. Its context then contains an `AgentRunner`.
    fn agent_request(&self, _input: &Value) -> Option<task::TaskRequest> {
        None
    }

    /// The names that permission rules can give in parentheses after a tool's name, each with that tool's name:
    /// `skill(deploy)`.
    fn rule_names(&self, _input: &Value) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Runs the call. Dropping the future cancels it; no process that it started may keep running.
    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult>;
}

/// A part of a tool's context that only some tools get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// The conversation log.
    Log,
    /// Unsaved text of the user's editor, which is queried for it.
    EditorBuffers,
}

/// What follows the output of a cancelled call.
pub const CANCELLED: &str = "[cancelled before it finished; changes already made were kept]";

/// Describes what a call has put out so far, which is its outcome if it is cancelled. Shared by the tool, which is dropped
/// by a cancel, and the session.
#[derive(Clone, Default)]
pub struct PartialResult(Arc<Mutex<Option<DescribeResult>>>);

type DescribeResult = Box<dyn FnOnce() -> ToolResult + Send>;

impl PartialResult {
    pub fn set(&self, describe: impl FnOnce() -> ToolResult + Send + 'static) {
        *self.0.lock() = Some(Box::new(describe));
    }

    /// The result of a call that was stopped now; `None` if it has put nothing out.
    pub fn take(&self) -> Option<ToolResult> {
        let describe = self.0.lock().take()?;
        Some(ToolResult { status: OutcomeStatus::Interrupted, ..describe() })
    }
}

/// Everything that a running tool can use.
#[derive(Clone)]
pub struct ToolContext {
    /// The call's id; `None` outside of a session.
    pub call: Option<CallId>,
    pub workspace: Arc<Workspace>,
    /// Receives the newest output of a running command, possibly ending in a partial line; never blocks.
    pub progress: Arc<dyn Fn(CallOutput) + Send + Sync>,
    /// The conversation of the call, as of its start.
    pub log: Arc<RecallLog>,
    /// The session's mode at the start of the call.
    pub mode: Mode,
    /// The access that was decided about when the call was permitted. `None` outside of a session.
    pub decided: Option<Arc<Access>>,
    /// Starts subagents; `None` for tools that don't need it.
    pub agents: Option<Arc<dyn task::AgentRunner>>,
    /// The file states known to the model.
    pub files: Arc<ReadState>,
    /// Whether the model accepts images.
    pub sees_images: bool,
    /// Whether loopback and private network addresses may be fetched.
    pub fetches_private: bool,
    /// Sandbox rules for commands.
    pub sandbox: Arc<sandbox::SandboxRules>,
    /// The session's background commands.
    pub background: Arc<background::BackgroundCommands>,
    /// Paths below the searched directory that searches skip.
    pub hidden: Arc<permission::ruled::HiddenFiles>,
    /// Unsaved editor text of the call's files.
    pub unsaved: Arc<buffers::Unsaved>,
    /// What the call has put out so far, in case it is cancelled.
    pub partial: PartialResult,
}

impl ToolContext {
    /// A context for a call outside of any conversation.
    pub fn bare(workspace: Arc<Workspace>) -> ToolContext {
        ToolContext {
            call: None,
            workspace,
            progress: Arc::new(|_| {}),
            log: Arc::default(),
            mode: Mode::Ask,
            decided: None,
            files: Arc::default(),
            sees_images: true,
            fetches_private: false,
            agents: None,
            sandbox: Arc::default(),
            background: Arc::default(),
            hidden: Arc::default(),
            unsaved: Arc::default(),
            partial: PartialResult::default(),
        }
    }

    /// Resolves a path of the call's input: the only source of paths for the functions of `disk`. Fails if the path
    /// leads to another file than when the permission was decided. The error is a message for the model.
    pub fn permitted(&self, path: &str) -> Result<PathBuf, ToolError> {
        self.permitted_path(&self.workspace.resolve(path))
    }

    /// Like `permitted`, for an absolute path.
    pub fn permitted_path(&self, path: &Path) -> Result<PathBuf, ToolError> {
        let real = real_path(path);
        match self.decided.as_deref() {
            Some(Access::Read(paths) | Access::Write(paths)) if !paths.contains(&real) => {
                Err(ToolError::new(format!(
                    "{} leads to {} now, and led elsewhere when the call was checked: a directory or link on \
                 its path was replaced. Nothing was read or written.",
                    self.workspace.display(path),
                    self.workspace.display(&real)
                )))
            }
            _ => Ok(real),
        }
    }
}

/// The directories and the environment of a session. `Debug` omits the environment, which contains API keys.
#[derive(Clone, Default)]
pub struct Workspace {
    /// Absolute; relative paths in tool inputs are resolved against it. Don't modify it: `roots` contains it too.
    pub cwd: PathBuf,
    /// Additional directories opened by the client; together with `cwd` they make up the workspace.
    pub directories: Vec<PathBuf>,
    /// The environment of the editor that sent the prompt, with its API keys. Programs get the part of it that
    /// `exposure` selects.
    pub environment: Arc<Vec<(OsString, OsString)>>,
    exposure: Arc<Exposure>,
    /// `cwd` and `directories`, opened when the session started to work there.
    roots: Roots,
    /// Repositories and other paths in these directories that commands may not change.
    found: Arc<sandbox::FoundRepositories>,
    /// Directories outside of the workspace that may be read without asking, with links resolved: the user's skills.
    readable: Arc<[PathBuf]>,
    /// Files that commands may not change, because the user has consented to what is in them.
    frozen: Arc<[PathBuf]>,
    /// The running commands of all sessions.
    running: RunningCommands,
    /// Shell code that precedes each command.
    exports: Option<Arc<str>>,
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace")
            .field("cwd", &self.cwd)
            .field("directories", &self.directories)
            .finish_non_exhaustive()
    }
}

impl Workspace {
    /// Opens the directories.
    pub fn new(
        cwd: impl Into<PathBuf>,
        directories: Vec<PathBuf>,
        environment: Arc<Vec<(OsString, OsString)>>,
    ) -> Workspace {
        Workspace { cwd: cwd.into(), ..Workspace::default() }.changed(directories, environment)
    }

    /// Returns a workspace with the same working directory and with other directories and another environment.
    /// Directories that are already open are not opened again.
    pub fn changed(
        &self,
        directories: Vec<PathBuf>,
        environment: Arc<Vec<(OsString, OsString)>>,
    ) -> Workspace {
        let all = std::iter::once(&self.cwd).chain(&directories).map(PathBuf::as_path);
        let roots = self.roots.reopened(all);
        Workspace { directories, environment, roots, ..self.clone() }
    }

    /// Returns the workspace with other directories that may be read without asking; their links must be resolved.
    pub fn reading(&self, readable: Vec<PathBuf>) -> Workspace {
        Workspace { readable: readable.into(), ..self.clone() }
    }

    /// Returns the workspace with other files that commands may not change.
    pub fn freezing(&self, frozen: Vec<PathBuf>) -> Workspace {
        Workspace { frozen: frozen.into(), ..self.clone() }
    }

    /// Returns the workspace with this code before each shell command: the exports of session start hooks.
    pub fn exporting(&self, exports: impl Into<Arc<str>>) -> Workspace {
        Workspace { exports: Some(exports.into()), ..self.clone() }
    }

    /// The shell code that precedes each command.
    pub fn exports(&self) -> Option<&Arc<str>> {
        self.exports.as_ref()
    }

    /// Whether a path outside of the workspace, with links resolved, may be read without asking.
    fn is_readable(&self, real: &Path) -> bool {
        self.readable.iter().any(|folder| real.starts_with(folder))
    }

    /// Returns the workspace with other rules for the environment of programs.
    pub fn exposing(self, exposure: Arc<Exposure>) -> Workspace {
        Workspace { exposure, ..self }
    }

    /// Returns the workspace with a list of running commands that it shares with others.
    pub fn sharing(self, running: RunningCommands) -> Workspace {
        Workspace { running, ..self }
    }

    /// The rules that select which environment variables programs get.
    pub fn exposure(&self) -> &Exposure {
        &self.exposure
    }

    pub(crate) fn found(&self) -> &sandbox::FoundRepositories {
        &self.found
    }

    pub(crate) fn frozen(&self) -> &[PathBuf] {
        &self.frozen
    }

    /// The opened directories.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Returns the absolute, lexically normalized form of a path from a tool's input, which may also be a `file:` URI as in
    /// a prompt. A name whose accents are composed is also found with decomposed ones, as in archives from macOS.
    pub fn resolve(&self, path: &str) -> PathBuf {
        let resolved = match (file_uri::path(path), path.strip_prefix("~/").zip(self.home())) {
            (Some(path), _) => path,
            (None, Some((below, home))) => home.join(below),
            (None, None) => self.cwd.join(path),
        };
        spelling::on_disk(normal(&resolved))
    }

    /// Returns the path with every symbolic link resolved, including links with a missing target.
    ///
    /// Tools name this path in `Access` and open it, so that a permission applies to the file and not to a link to
    /// it. A session that waited for the user in between compares a fresh `access` with the permitted one, which
    /// reveals a link that was replaced in the meantime.
    pub fn real(&self, path: &str) -> PathBuf {
        real_path(&self.resolve(path))
    }

    /// Whether the path is inside the workspace after every symbolic link is resolved.
    pub fn contains(&self, path: &Path) -> bool {
        self.roots.containing(&real_path(path)).is_some()
    }

    /// Returns the path as displayed to users: relative to `cwd` if it is below it.
    pub fn display(&self, path: &Path) -> String {
        match path.strip_prefix(&self.cwd) {
            Ok(below) if below.as_os_str().is_empty() => ".".to_string(),
            Ok(below) => below.display().to_string(),
            Err(_) => path.display().to_string(),
        }
    }

    /// Returns the file that a path leads to, as shown to clients: links are resolved, except those above the
    /// directories of the workspace.
    pub fn target(&self, path: &Path) -> PathBuf {
        let real = real_path(path);
        match self.roots.containing(&real) {
            Some((root, rest)) => below(root.named().to_path_buf(), rest),
            None => real,
        }
    }

    /// Returns a path for the title of a card of this kind. If it leads to another file, or outside of the workspace,
    /// the text says so.
    pub fn describe(&self, path: &Path, kind: ToolKind) -> String {
        let target = self.target(path);
        let name = |path: &Path| name_in_title(kind, &self.display_home(path)).into_owned();
        let mut text = match target == path {
            true => name(path),
            false => format!("{} → {}", name(path), name(&target)),
        };
        if self.roots.containing(&real_path(path)).is_none() {
            text.push_str(", outside the workspace");
        }
        text
    }

    /// Like `display`, with `~` for the home directory.
    fn display_home(&self, path: &Path) -> String {
        let below = || Some(path.strip_prefix(self.home()?).ok()?.display().to_string());
        match path.strip_prefix(&self.cwd) {
            Ok(_) => self.display(path),
            Err(_) => below().map_or_else(|| self.display(path), |rest| format!("~/{rest}")),
        }
    }

    /// Finds the secret places of the editor's user. Accesses the disk.
    pub fn secrets(&self) -> SecretPaths {
        // The user's skills are read as if they were a part of the workspace.
        let roots = self.roots().iter().map(Root::path).chain(self.readable.iter().map(PathBuf::as_path));
        let roots: Vec<&Path> = roots.collect();
        SecretPaths::find(self.home().as_deref(), &roots, &self.environment)
    }

    /// The home directory of the editor's user.
    fn home(&self) -> Option<PathBuf> {
        let named = self.variable("HOME").map(PathBuf::from);
        named.filter(|home| home.is_absolute()).or_else(std::env::home_dir)
    }

    fn variable(&self, name: &str) -> Option<&OsString> {
        self.environment.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }
}

/// Removes `.` and `..` from a path without accessing the disk.
pub fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => normal.push(component),
        }
    }
    normal
}

/// Maximum number of dangling links followed in a row; the same limit as in Linux.
const LINKS_MAX: u32 = 40;

/// Maximum length of a path in a system call, in bytes. A longer path can't be opened.
const PATH_BYTES_MAX: usize = 4096;

/// Resolves the links in the longest existing prefix of a path and appends the rest.
///
/// Links with a missing target are followed too, because writing through one would create that target.
fn real_path(path: &Path) -> PathBuf {
    if path.as_os_str().len() > PATH_BYTES_MAX {
        return path.to_path_buf();
    }
    if let Ok(real) = resolve(path) {
        return real;
    }
    let mut followed = path.to_path_buf();
    let mut links = 0;
    loop {
        // Walk down from the root, not up from the end: for a path with a thousand missing components, the latter
        // would look up each ancestor.
        let mut existing = PathBuf::new();
        let mut rest = followed.components();
        let missing = rest.by_ref().find(|part| {
            existing.push(part);
            existing.metadata().is_err()
        });
        let Some(missing) = missing else {
            return existing.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        };
        let rest = rest.as_path();
        // A `..` after a missing component can't be resolved.
        let is_up = |part: Component<'_>| part == Component::ParentDir;
        let Some(directory) = existing.parent().filter(|_| !is_up(missing) && !rest.components().any(is_up))
        else {
            return path.to_path_buf();
        };
        // Resolve the directory of the link first: a `..` in the target is relative to the real directory.
        let Ok(directory) = directory.canonicalize() else { return path.to_path_buf() };
        match existing.read_link() {
            Ok(target) if links < LINKS_MAX => {
                links += 1;
                followed = below(normal(&directory.join(target)), rest);
            }
            Ok(_) | Err(_) => return below(directory.join(missing), rest),
        }
    }
}

/// Joins two paths without a trailing slash if `rest` is empty.
fn below(mut path: PathBuf, rest: &Path) -> PathBuf {
    path.extend(rest.components());
    path
}

/// The resources that a call would access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing outside of this process (for example, the plan).
    Nothing,
    /// Reads files and directories at or below these paths.
    Read(Vec<PathBuf>),
    /// Creates or changes these files.
    Write(Vec<PathBuf>),
    /// Runs this command line, which may do anything that its sandbox permits.
    Command {
        line: String,
        /// Whether the command runs in the sandbox if the system supports one; the model may request to run outside
        /// of it.
        confined: bool,
        /// Whether it may change the workspace's Git repositories, which are read-only otherwise.
        changes_git: bool,
    },
    /// Changes this file of the memory across sessions, wherever it is.
    Remember(PathBuf),
    /// Fetches this address from the network.
    Fetch {
        url: String,
        /// The host part of the address, in lower case.
        host: String,
    },
    /// Calls a tool of an MCP server.
    External {
        /// The server's part of the names of its tools.
        server: String,
        tool: String,
        /// The server's unverified claim that the tool changes nothing.
        reads_only: bool,
    },
}

/// The result of a tool run; the session converts it to a `ToolOutcome`.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResult {
    pub status: OutcomeStatus,
    /// The model's text, already truncated by `truncate`.
    pub content: Vec<OutcomeContent>,
    /// The complete text, if `content` has only a part of it.
    pub whole: Option<String>,
    /// The content that clients display; if empty, they display the text of `content`.
    pub shown: Vec<ToolDisplay>,
    pub locations: Vec<Location>,
    pub raw: Option<Value>,
    /// The new plan; set only by `todo_write`.
    pub plan: Option<Vec<PlanStep>>,
}

impl ToolResult {
    pub fn completed(text: impl Into<String>) -> ToolResult {
        ToolResult {
            status: OutcomeStatus::Completed,
            content: vec![OutcomeContent::Text { text: text.into() }],
            whole: None,
            shown: Vec::new(),
            locations: Vec::new(),
            raw: None,
            plan: None,
        }
    }

    pub fn failed(text: impl Into<String>) -> ToolResult {
        ToolResult { status: OutcomeStatus::Failed, ..ToolResult::completed(text) }
    }

    /// Creates a result with a file's text. Clients get it in a fenced block, because an editor would render it as
    /// Markdown.
    fn with_file_text(text: String) -> ToolResult {
        let shown = vec![ToolDisplay::Text { text: disk::fenced("", &text) }];
        ToolResult { shown, ..ToolResult::completed(text) }
    }
}

/// A tool with its spec, which is computed only once.
type Described = (Arc<ToolSpec>, Arc<dyn Tool>);

/// The tools of a session, in the order of the model's tool list.
#[derive(Clone)]
pub struct Toolbox {
    tools: Arc<[Described]>,
}

impl Toolbox {
    pub fn new(tools: Vec<Arc<dyn Tool>>) -> Toolbox {
        Toolbox { tools: tools.into_iter().map(|tool| (Arc::new(tool.spec()), tool)).collect() }
    }

    /// Creates the built-in tools.
    pub fn built_in(reaper: Arc<reaper::Reaper>) -> Toolbox {
        Toolbox::new(vec![
            Arc::new(file_read::FileRead),
            Arc::new(file_write::FileWrite),
            Arc::new(file_edit::FileEdit),
            Arc::new(apply_patch::ApplyPatch),
            Arc::new(view_image::ViewImage),
            Arc::new(glob_tool::GlobTool),
            Arc::new(grep_tool::GrepTool),
            Arc::new(bash::Bash { reaper }),
            Arc::new(bash_output::BashOutput),
            Arc::new(bash_kill::BashKill),
            Arc::new(web_fetch::WebFetch),
            Arc::new(todo_write::TodoWrite),
            Arc::new(recall_tool::RecallTool),
            Arc::new(task::Task),
        ])
    }

    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.iter().find(|(spec, _)| spec.name == name).map(|(_, tool)| tool)
    }

    /// Returns the toolbox with this tool added, or replaced if a tool with its name exists.
    pub fn renewed(&self, tool: Arc<dyn Tool>) -> Toolbox {
        let spec = Arc::new(tool.spec());
        let mut tools = self.tools.to_vec();
        match tools.iter_mut().find(|(own, _)| own.name == spec.name) {
            Some(own) => *own = (spec, tool),
            None => tools.push((spec, tool)),
        }
        Toolbox { tools: tools.into() }
    }

    /// Returns the toolbox reduced to the tools with these names.
    pub fn only(&self, names: &[String]) -> Toolbox {
        let named = self.tools.iter().filter(|(spec, _)| names.contains(&spec.name));
        Toolbox { tools: named.cloned().collect() }
    }

    /// Returns the toolbox without the tools whose spec matches `is_left_out`.
    pub fn without(&self, is_left_out: impl Fn(&ToolSpec) -> bool) -> Toolbox {
        Toolbox { tools: self.tools.iter().filter(|(spec, _)| !is_left_out(spec)).cloned().collect() }
    }

    /// Returns the toolbox with further tools appended; tools whose name is taken are ignored.
    pub fn with(&self, more: Vec<Arc<dyn Tool>>) -> Toolbox {
        let mut tools = self.tools.to_vec();
        for tool in more {
            let spec = Arc::new(tool.spec());
            if !tools.iter().any(|(known, _)| known.name == spec.name) {
                tools.push((spec, tool));
            }
        }
        Toolbox { tools: tools.into() }
    }

    /// The names of all tools.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.tools.iter().map(|(spec, _)| spec.name.clone())
    }

    /// The specs of the listed tools.
    pub fn specs(&self) -> Vec<ToolSpec> {
        let listed = self.tools.iter().filter(|(_, tool)| tool.is_listed());
        listed.map(|(spec, _)| ToolSpec::clone(spec)).collect()
    }
}

#[cfg(test)]
mod lib_tests;
/// The worked example in `CONTRIBUTING.md`.
#[cfg(test)]
mod line_count;
