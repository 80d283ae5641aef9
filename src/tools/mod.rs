//! Tools: what one is, what it is told and what it gives back. Types only; one file a tool.

pub mod bash;
pub mod file_edit;
pub mod file_read;
pub mod file_write;
pub mod glob_tool;
pub mod grep_tool;
pub mod permission;
pub mod reaper;
pub mod todo_write;
pub mod truncate;

use std::ffi::OsString;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;

use crate::thread::{Card, Location, OutcomeContent, OutcomeStatus, PlanStep, Shown, ToolSpec};

pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Something that the model can ask to be done.
///
/// The name and the input's keys are the contract with hooks that were written for other agents
/// (`HOOKS.md`); they are never renamed.
pub trait Tool: Send + Sync {
    /// What the model is told.
    fn spec(&self) -> ToolSpec;

    /// What a person sees before it runs. Pure, and tolerant of half-streamed or wrong input.
    fn card(&self, input: &Value, workspace: &Workspace) -> Card;

    /// What it would touch, for the permission decision; wrong input is refused here with a sentence
    /// for the model, so that nobody is asked about a call that cannot run.
    fn access(&self, input: &Value, workspace: &Workspace) -> Result<Access, String>;

    /// What the permission card shows beside the title: the diff of an edit, the command.
    fn preview(&self, input: &Value, workspace: &Workspace) -> BoxFuture<Vec<Shown>>;

    /// Runs it. Dropping the future is how it is cancelled: no process that it started may go on.
    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult>;
}

/// What a running tool has at hand.
#[derive(Clone)]
pub struct ToolContext {
    pub workspace: Arc<Workspace>,
    /// Takes the newest output of a running command, whole lines or not; never blocks.
    pub progress: Arc<dyn Fn(String) + Send + Sync>,
}

/// The places and the environment that a session works in.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Absolute; relative paths of tool inputs are below it.
    pub cwd: PathBuf,
    /// Other directories that the client opened. With `cwd` they are the workspace.
    pub directories: Vec<PathBuf>,
    /// The environment of the editor that sent the prompt; commands get this and nothing else.
    pub environment: Arc<Vec<(OsString, OsString)>>,
}

impl Workspace {
    /// The absolute, lexically normalised form of a path from a tool's input.
    pub fn resolve(&self, path: &str) -> PathBuf {
        let path = Path::new(path);
        let joined = if path.is_absolute() { path.to_path_buf() } else { self.cwd.join(path) };
        let mut normal = PathBuf::new();
        for component in joined.components() {
            match component {
                std::path::Component::ParentDir => {
                    normal.pop();
                }
                std::path::Component::CurDir => {}
                other => normal.push(other),
            }
        }
        normal
    }

    /// Whether the path, with every symbolic link on its way followed, lies in the workspace.
    pub fn contains(&self, path: &Path) -> bool {
        let real = real_path(path);
        std::iter::once(&self.cwd).chain(&self.directories).any(|root| real.starts_with(real_path(root)))
    }

    /// The path as a person would write it here: relative to `cwd` where it lies below it.
    pub fn display(&self, path: &Path) -> String {
        path.strip_prefix(&self.cwd).unwrap_or(path).display().to_string()
    }
}

/// Follows the links of the longest existing part of a path and appends the rest.
fn real_path(path: &Path) -> PathBuf {
    let mut rest: Vec<&std::ffi::OsStr> = Vec::new();
    let mut existing = path;
    loop {
        if let Ok(real) = existing.canonicalize() {
            return rest.iter().rev().fold(real, |path, part| path.join(part));
        }
        match (existing.parent(), existing.file_name()) {
            (Some(parent), Some(name)) => {
                rest.push(name);
                existing = parent;
            }
            _ => return path.to_path_buf(),
        }
    }
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
    /// Runs this command line, which may do anything.
    Command(String),
}

/// What a tool gives back; the session makes the outcome of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResult {
    pub status: OutcomeStatus,
    /// What the model reads, already cut to size by `truncate`.
    pub content: Vec<OutcomeContent>,
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
            shown: Vec::new(),
            locations: Vec::new(),
            raw: None,
            plan: None,
        }
    }

    pub fn failed(text: impl Into<String>) -> ToolResult {
        ToolResult { status: OutcomeStatus::Failed, ..ToolResult::completed(text) }
    }
}

/// The tools of a session, in the order in which the model is told of them.
#[derive(Clone)]
pub struct Toolbox {
    tools: Arc<[Arc<dyn Tool>]>,
}

impl Toolbox {
    pub fn new(tools: Vec<Arc<dyn Tool>>) -> Toolbox {
        Toolbox { tools: tools.into() }
    }

    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.iter().find(|tool| tool.spec().name == name)
    }

    pub fn specs(&self) -> Vec<ToolSpec> {
        self.tools.iter().map(|tool| tool.spec()).collect()
    }
}
