//! `epitome worktree`: the Git worktrees that `epitome run --worktree` and `/worktree` made.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{CliError, serve, sessions, terminal};
use crate::session::worktree::{self, Worktree};
use crate::thread::visible::visible;

/// List, merge or remove Git worktrees of sessions
///
/// `epitome run --worktree NAME` and /worktree make them. `/worktree` in a session shows what has changed and asks what
/// to do.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = false)]
pub struct WorktreeArgs {
    #[command(subcommand)]
    command: WorktreeCommand,
    /// Use the repository of this directory instead of the current one
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, global = true)]
    cwd: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum WorktreeCommand {
    /// List the worktrees, with commits and changes that are only there
    List {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Merge a worktree into the branch it was made from, and remove it
    ///
    /// Changes nothing if something is not committed, there or where that branch is checked out, or if the two conflict.
    Merge {
        /// The name of the worktree
        name: String,
    },
    /// Throw a worktree and its branch away
    ///
    /// Uncommitted changes are put into a stash, and the last commit is named, so that both can be restored.
    Discard {
        /// The name of the worktree
        name: String,
    },
}

pub fn main(args: WorktreeArgs) -> Result<i32, CliError> {
    let cwd = match &args.cwd {
        Some(directory) => sessions::real_directory(directory)?,
        None => serve::working_directory()?,
    };
    match args.command {
        WorktreeCommand::List { json } => list(&cwd, json),
        WorktreeCommand::Merge { name } => finish(idle(&cwd, &name)?.merge()),
        WorktreeCommand::Discard { name } => finish(idle(&cwd, &name)?.discard()),
    }
}

/// Opens a worktree for a run; returns its directory.
pub fn open(cwd: &Path, name: &str) -> Result<PathBuf, CliError> {
    let opened = worktree::open(cwd, name)?;
    if opened.is_new {
        let Worktree { path, branch, .. } = &opened.worktree;
        note!("epitome: made the worktree {} with the branch {branch}", path.display());
        let left = match opened.left_behind {
            0 => return Ok(opened.directory),
            1 => "1 file".to_owned(),
            files => format!("{files} files"),
        };
        note!("epitome: uncommitted changes to {left} in {} are not in it", cwd.display());
    }
    Ok(opened.directory)
}

fn finish(done: Result<String, String>) -> Result<i32, CliError> {
    terminal::print_visible(&format!("{}\n", done?)).map(|()| 0)
}

/// The worktree of this name, if nothing works in it.
fn idle(cwd: &Path, name: &str) -> Result<Worktree, CliError> {
    let found = named(cwd, name)?;
    found.check_idle(&serve::store(&serve::paths()), None)?;
    Ok(found)
}

fn named(cwd: &Path, name: &str) -> Result<Worktree, CliError> {
    let made = worktree::list(cwd)?;
    let names: Vec<&str> = made.iter().map(|one| one.name.as_str()).collect();
    let hint = match names.is_empty() {
        true => "Epitome has made none of this repository; `epitome run --worktree NAME` does".to_owned(),
        false => format!("its worktrees are: {}", names.join(", ")),
    };
    let error = CliError::failed(format!("there is no worktree {name:?} of Epitome")).hint(hint);
    made.into_iter().find(|one| one.name == name).ok_or(error)
}

fn list(cwd: &Path, as_json: bool) -> Result<i32, CliError> {
    let mut out = String::new();
    for one in worktree::list(cwd)? {
        let state = one.state();
        if as_json {
            let (commits, uncommitted) = match &state {
                Ok(state) => (Some(&state.commits), Some(&state.uncommitted)),
                Err(_) => (None, None),
            };
            out.push_str(&format!(
                "{}\n",
                json!({ "name": one.name, "path": one.path.to_string_lossy(), "branch": one.branch, "base": one.base,
                    "commits": commits, "uncommitted": uncommitted, "error": state.as_ref().err() })
            ));
            continue;
        }
        let state = match state {
            Ok(state) => {
                format!("{} commits, {} not committed", state.commits.len(), state.uncommitted.len())
            }
            Err(why) => why,
        };
        let base = one.base.map(|base| format!(", from {base}")).unwrap_or_default();
        out.push_str(&format!("{}  {}\n    {}{base}: {state}\n", one.name, one.path.display(), one.branch));
    }
    if out.is_empty() && !as_json {
        out.push_str("There are no worktrees of Epitome in this repository.\n");
    }
    terminal::print(&if as_json { out } else { visible(&out).into_owned() }).map(|()| 0)
}
