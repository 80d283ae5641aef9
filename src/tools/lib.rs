//! Tools: what one is, what it is told and what it gives back. One file a tool; what may run is decided
//! in `permission`, asked for by the session, and never by a tool itself.

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
mod file_edit;
mod file_read;
mod file_write;
mod glob_tool;
mod grep_tool;
mod input;
mod output;
pub mod permission;
pub mod question;
pub mod read_state;
mod recall_tool;
pub mod sandbox;
pub mod shell_output;
mod shell_run;
pub mod skill_tool;
pub mod task;
mod todo_write;
pub mod truncate;
mod view_image;
mod walk;
mod web_fetch;

use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;

pub use epitome_platform::{group, reaper};
pub use shell_run::shell;

use read_state::Files;

use epitome_recall::Log;
use epitome_thread::{Card, Location, Mode, OutcomeContent, OutcomeStatus, PlanStep, Shown, ToolSpec};

pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Something that the model can ask to be done.
///
/// The name and the input's keys are those that hooks written for other agents know; they are never
/// renamed.
pub trait Tool: Send + Sync {
    /// What the model is told.
    fn spec(&self) -> ToolSpec;

    /// What a person sees before it runs. Pure, and tolerant of half-streamed or wrong input.
    fn card(&self, input: &Value, workspace: &Workspace) -> Card;

    /// What it would touch, for the permission decision; wrong input is refused here with a sentence
    /// for the model, so that nobody is asked about a call that cannot run.
    fn access(&self, input: &Value, workspace: &Workspace) -> Result<Access, String>;

    /// What the permission card shows beside the title: the diff of an edit, the command. Nothing,
    /// for tools whose title says all.
    fn preview(&self, _input: &Value, _context: ToolContext) -> BoxFuture<Vec<Shown>> {
        Box::pin(async { Vec::new() })
    }

    /// Whether a model is told of it when its list of tools is made. One that is not is run all the same: for
    /// who was told of it in another way.
    fn is_listed(&self) -> bool {
        true
    }

    /// Another tool's name and input, where a call of this one stands for a call of that: hooks see the other.
    fn stands_for(&self, _input: &Value) -> Option<(String, Value)> {
        None
    }

    /// The input of this tool that stands for a call of another with this input. Only for what `stands_for`.
    fn standing_for(&self, _name: &str, input: Value) -> Value {
        input
    }

    /// Whether it can run as things stand, so that nobody is asked about a call that cannot. The error is a sentence
    /// for the model. It may read the disk, and changes nothing.
    fn check(&self, _input: &Value, _context: ToolContext) -> BoxFuture<Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    /// Whether it reads the conversation's log; other tools get an empty one.
    fn reads_log(&self) -> bool {
        false
    }

    /// Whether it works on texts that an editor may hold unsaved; for other tools none is asked.
    fn minds_editors(&self) -> bool {
        false
    }

    /// Whether it starts agents; other tools get none.
    fn starts_agents(&self) -> bool {
        false
    }

    /// Runs it. Dropping the future is how it is cancelled: no process that it started may go on.
    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult>;
}

/// What a running tool has at hand.
#[derive(Clone)]
pub struct ToolContext {
    pub workspace: Arc<Workspace>,
    /// Takes the newest output of a running command, whole lines or not; never blocks.
    pub progress: Arc<dyn Fn(String) + Send + Sync>,
    /// The conversation that the call is of, as it is when the call begins.
    pub log: Arc<Log>,
    /// The mode that the session is in as the call begins.
    pub mode: Mode,
    /// Who starts agents, for tools that do.
    pub agents: Option<Arc<dyn task::Agents>>,
    /// What the model knows of files.
    pub files: Arc<Files>,
    /// Whether the model can be sent images.
    pub sees_images: bool,
    /// Whether addresses of this machine and of private networks may be fetched.
    pub fetches_private: bool,
    /// What commands are held to.
    pub sandbox: Arc<sandbox::Rules>,
    /// The session's commands that run beside the conversation.
    pub background: Arc<background::Background>,
    /// What a search leaves out of what lies below its directory.
    pub hidden: Arc<permission::ruled::Hidden>,
    /// What the person's editor holds unsaved of the call's files.
    pub unsaved: Arc<buffers::Unsaved>,
}

impl ToolContext {
    /// A context for a call that no conversation is behind.
    pub fn bare(workspace: Arc<Workspace>) -> ToolContext {
        ToolContext {
            workspace,
            progress: Arc::new(|_| {}),
            log: Arc::default(),
            mode: Mode::Ask,
            files: Arc::default(),
            sees_images: true,
            fetches_private: false,
            agents: None,
            sandbox: Arc::default(),
            background: Arc::default(),
            hidden: Arc::default(),
            unsaved: Arc::default(),
        }
    }
}

/// The places and the environment that a session works in. `Debug` leaves the environment out, which
/// holds keys.
#[derive(Clone)]
pub struct Workspace {
    /// Absolute; relative paths of tool inputs are below it.
    pub cwd: PathBuf,
    /// Other directories that the client opened. With `cwd` they are the workspace.
    pub directories: Vec<PathBuf>,
    /// The environment of the editor that sent the prompt; commands get this and nothing else.
    pub environment: Arc<Vec<(OsString, OsString)>>,
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
    /// The absolute, lexically normalised form of a path from a tool's input.
    pub fn resolve(&self, path: &str) -> PathBuf {
        match path.strip_prefix("~/").zip(self.home()) {
            Some((below, home)) => normal(&home.join(below)),
            None => normal(&self.cwd.join(path)),
        }
    }

    /// The same path with every symbolic link followed, also the links whose target is missing.
    ///
    /// This is what the tools name in `Access` and what they open, so that a permission is given for
    /// the file that is touched and not for a link to it. A session that waited for a person between
    /// the two compares a fresh `access` with the one that was allowed; a link that was exchanged
    /// meanwhile shows as a difference.
    pub fn real(&self, path: &str) -> PathBuf {
        real_path(&self.resolve(path))
    }

    /// Whether the path, with every symbolic link on its way followed, lies in the workspace.
    pub fn contains(&self, path: &Path) -> bool {
        let real = real_path(path);
        std::iter::once(&self.cwd).chain(&self.directories).any(|root| real.starts_with(real_path(root)))
    }

    /// The path as a person would write it here: relative to `cwd` where it lies below it.
    pub fn display(&self, path: &Path) -> String {
        match path.strip_prefix(&self.cwd) {
            Ok(below) if below.as_os_str().is_empty() => ".".to_string(),
            Ok(below) => below.display().to_string(),
            Err(_) => path.display().to_string(),
        }
    }

    /// The home directory of the person whose editor this is.
    fn home(&self) -> Option<PathBuf> {
        let named = self.environment.iter().find(|(name, _)| name == "HOME").map(|(_, home)| home.into());
        named.filter(|home: &PathBuf| home.is_absolute()).or_else(|| etcetera::home_dir().ok())
    }
}

/// Takes `.` and `..` out of a path without looking at the disk.
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

/// Links without a target that are followed in a row, as many as Linux follows.
const LINKS_MAX: u32 = 40;

/// Bytes of a path that a system call takes. A longer one names nothing that could be opened.
const PATH_BYTES_MAX: usize = 4096;

/// Follows the links of the longest existing part of a path and appends the rest.
///
/// A link whose target is missing is followed too: writing through it would create that target.
fn real_path(path: &Path) -> PathBuf {
    if path.as_os_str().len() > PATH_BYTES_MAX {
        return path.to_path_buf();
    }
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    let mut followed = path.to_path_buf();
    let mut links = 0;
    loop {
        // From the root down, and not from the end up: of a path with a thousand missing parts each would be
        // looked for.
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
        // What lies above something missing is not known.
        let is_up = |part: Component<'_>| part == Component::ParentDir;
        let Some(directory) = existing.parent().filter(|_| !is_up(missing) && !rest.components().any(is_up))
        else {
            return path.to_path_buf();
        };
        // The link's own directory first, or a `..` in the target would be taken from the wrong place.
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

/// Joins two paths without a slash behind what nothing follows.
fn below(mut path: PathBuf, rest: &Path) -> PathBuf {
    path.extend(rest.components());
    path
}

/// What a call would touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing outside this process (the plan).
    Nothing,
    /// Reads files and directories below these paths.
    Read(Vec<PathBuf>),
    /// Creates or changes these files.
    Write(Vec<PathBuf>),
    /// Runs this command line, which may do anything that its confinement lets it do.
    Command {
        line: String,
        /// Whether it is held to the workspace where the system can do that; the model may ask to run one
        /// outside of it.
        confined: bool,
    },
    /// Fetches this address from the network.
    Fetch {
        url: String,
        /// The part of the address that names who is asked, in lower case.
        host: String,
    },
    /// Calls a tool of a server that is not ours.
    External {
        server: String,
        tool: String,
        /// The server says of itself that the tool changes nothing. A remark, not a promise.
        reads_only: bool,
    },
}

/// What a tool gives back; the session makes the outcome of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResult {
    pub status: OutcomeStatus,
    /// What the model reads, already cut to size by `truncate`.
    pub content: Vec<OutcomeContent>,
    /// All of the text, where `content` has only a part.
    pub whole: Option<String>,
    /// What the person sees; where empty, the same text.
    pub shown: Vec<Shown>,
    pub locations: Vec<Location>,
    pub raw: Option<Value>,
    /// The new plan, from `todo_write` alone.
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

    /// Text as it is in files, fenced for the person because an editor would render it as Markdown.
    fn of_files(text: String) -> ToolResult {
        let shown = vec![Shown::Text { text: disk::fenced("", &text) }];
        ToolResult { shown, ..ToolResult::completed(text) }
    }
}

/// A tool with what it says of itself, asked once.
type Described = (Arc<ToolSpec>, Arc<dyn Tool>);

/// The tools of a session, in the order in which the model is told of them.
#[derive(Clone)]
pub struct Toolbox {
    tools: Arc<[Described]>,
}

impl Toolbox {
    pub fn new(tools: Vec<Arc<dyn Tool>>) -> Toolbox {
        Toolbox { tools: tools.into_iter().map(|tool| (Arc::new(tool.spec()), tool)).collect() }
    }

    /// The tools that come with Epitome.
    pub fn built_in(reaper: Arc<reaper::Reaper>) -> Toolbox {
        Toolbox::new(vec![
            Arc::new(file_read::FileRead),
            Arc::new(file_write::FileWrite),
            Arc::new(file_edit::FileEdit),
            Arc::new(apply_patch::ApplyPatch),
            Arc::new(view_image::ViewImage),
            Arc::new(glob_tool::GlobTool),
            Arc::new(grep_tool::GrepTool),
            Arc::new(bash::Bash::new(reaper)),
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

    /// The same tools and this one, in the place of the one that has its name.
    pub fn renewed(&self, tool: Arc<dyn Tool>) -> Toolbox {
        let spec = Arc::new(tool.spec());
        let mut tools = self.tools.to_vec();
        match tools.iter_mut().find(|(own, _)| own.name == spec.name) {
            Some(own) => *own = (spec, tool),
            None => tools.push((spec, tool)),
        }
        Toolbox { tools: tools.into() }
    }

    /// Those of the tools that have one of these names.
    pub fn only(&self, names: &[String]) -> Toolbox {
        let named = self.tools.iter().filter(|(spec, _)| names.contains(&spec.name));
        Toolbox { tools: named.cloned().collect() }
    }

    /// These tools and further ones behind them. Of two with one name the first one stays.
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

    /// What a model is told of them.
    pub fn specs(&self) -> Vec<ToolSpec> {
        self.tools
            .iter()
            .filter(|(_, tool)| tool.is_listed())
            .map(|(spec, _)| ToolSpec::clone(spec))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_leads_where_writing_to_it_would() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let root = home.path().canonicalize().expect("it is there");
        let at = |path: &str| root.join(path);
        create_dir_all(at("a/b")).expect("made");
        write(at("file"), "").expect("written");
        for (link, target) in [
            ("to-a", "a"),
            ("a/up", "../file"),
            ("dangling", "a/missing"),
            ("a/dangling", "../new/er"),
            ("far", "/nowhere/at/all"),
            ("first", "dangling"),
            ("through", "dangling/below"),
            ("round", "trip"),
            ("trip", "round"),
        ] {
            symlink(target, at(link)).expect("made");
        }
        for (path, real) in [
            ("a/b", "a/b"),
            ("to-a/b", "a/b"),
            ("to-a/up", "file"),
            ("to-a/b/../up", "file"),
            ("a/b/new", "a/b/new"),
            ("to-a/new/er", "a/new/er"),
            ("new/a/b", "new/a/b"),
            ("file/below", "file/below"),
            ("dangling", "a/missing"),
            ("dangling/below/it", "a/missing/below/it"),
            ("to-a/dangling", "new/er"),
            ("first/x", "a/missing/x"),
            ("through/x", "a/missing/below/x"),
            ("far", "/nowhere/at/all"),
            ("far/x", "/nowhere/at/all/x"),
            ("round/x", "round/x"),
            // What is above something missing is not known.
            ("new/../file", "new/../file"),
            ("dangling/../file", "dangling/../file"),
        ] {
            assert_eq!(real_path(&at(path)), at(real), "{path}");
        }
        let long = at(&"x/".repeat(PATH_BYTES_MAX / 2 - 200));
        assert_eq!(real_path(&long), long.components().collect::<PathBuf>());
        let too_long = at(&"x".repeat(PATH_BYTES_MAX));
        assert_eq!(real_path(&too_long), too_long);
        assert_eq!(real_path(Path::new("no/such/place")), Path::new("no/such/place"));
    }

    #[test]
    fn a_path_with_a_thousand_missing_parts_is_looked_for_once() {
        // It took seconds, because each of its ancestors was looked for from the root, and one with some thousand of
        // them held the session up.
        let home = tempfile::tempdir().expect("a temporary directory");
        let root = home.path().canonicalize().expect("it is there");
        symlink("missing", root.join("link")).expect("made");
        let tail = "y/".repeat(1_500);
        let found = real_path(&root.join("link").join(&tail));
        assert_eq!(found, root.join("missing").join(&tail).components().collect::<PathBuf>());
    }
}
