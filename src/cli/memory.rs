//! `epitome memory`: shows, edits and deletes what is remembered across sessions.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::text_editor::TextEditor;
use super::{CliContext as _, CliError, serve, terminal};
use crate::atomic_file::private_directory;
use crate::memory::MemoryFiles;

/// Show and edit what sessions remember
///
/// There is one Markdown file about you, for all projects, and one about each project. Sessions read them when they
/// start. With `memory = true` in config.toml, the model may propose changes, each of which you see first.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    arg_required_else_help = false,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage."
)]
pub struct MemoryArgs {
    #[command(subcommand)]
    command: Option<MemoryCommand>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum MemoryCommand {
    /// List the files of all projects
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Open the file of this directory's project in your editor
    Edit {
        /// The file about you instead
        #[arg(long)]
        user: bool,
    },
    /// Delete the file of this directory's project
    Forget {
        /// The file about you instead
        #[arg(long)]
        user: bool,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
}

pub fn main(args: MemoryArgs) -> Result<i32, CliError> {
    let files = MemoryFiles::of(&serve::working_directory()?, &serve::paths());
    match args.command {
        None => show(&files, args.json),
        Some(MemoryCommand::List { json }) => list(&files, json),
        Some(MemoryCommand::Edit { user }) => edit(if user { &files.user } else { &files.project }),
        Some(MemoryCommand::Forget { user, yes }) => {
            forget(if user { &files.user } else { &files.project }, yes)
        }
    }
}

/// A file's text; `None` if it doesn't exist.
fn text_of(path: &Path) -> Result<Option<String>, CliError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CliError::failed(format!("{} can't be read: {error}", path.display()))),
    }
}

fn show(files: &MemoryFiles, as_json: bool) -> Result<i32, CliError> {
    let (user, project) = (text_of(&files.user)?, text_of(&files.project)?);
    if as_json {
        let describe = |path: &Path, text: &Option<String>| json!({ "path": path, "text": text });
        let mut project = describe(&files.project, &project);
        project["root"] = json!(files.root);
        return terminal::print_pretty(&json!({ "user": describe(&files.user, &user), "project": project }))
            .map(|()| 0);
    }
    let mut out = String::new();
    let project_title = format!("About the project {}", files.root.display());
    let parts = [("About you", &files.user, user), (project_title.as_str(), &files.project, project)];
    for (title, path, text) in parts {
        let _ = writeln!(out, "{title} ({}):\n", path.display());
        for line in text.as_deref().unwrap_or("nothing").trim().lines() {
            let _ = writeln!(out, "{}", format!("    {line}").trim_end());
        }
        out.push('\n');
    }
    terminal::print_visible(&out).map(|()| 0)
}

fn list(files: &MemoryFiles, as_json: bool) -> Result<i32, CliError> {
    let folder = std::fs::read_dir(files.directory.join("projects")).into_iter().flatten().flatten();
    let mut projects: Vec<PathBuf> = folder.map(|entry| entry.path()).collect();
    projects.sort();
    let all = std::iter::once(files.user.clone()).chain(projects);
    let sizes = all.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let sizes: Vec<(PathBuf, u64)> =
        sizes.filter_map(|path| Some((path.clone(), path.metadata().ok()?.len()))).collect();
    if as_json {
        let listed: Vec<Value> = sizes
            .iter()
            .map(|(path, bytes)| json!({ "path": path.to_string_lossy(), "bytes": bytes }))
            .collect();
        return terminal::print_pretty(&json!(listed)).map(|()| 0);
    }
    let mut out = String::new();
    for (path, bytes) in &sizes {
        let _ = writeln!(out, "{bytes:>7} bytes  {}", path.display());
    }
    if sizes.is_empty() {
        out.push_str("Nothing is remembered.\n");
    }
    terminal::print_visible(&out).map(|()| 0)
}

fn edit(path: &Path) -> Result<i32, CliError> {
    let editor = TextEditor::of_user(path)?;
    let made = path.parent().map_or(Ok(()), private_directory);
    made.context(format_args!("{} can't be made", path.display()))?;
    editor.edit(path).map(|()| 0)
}

fn forget(path: &Path, yes: bool) -> Result<i32, CliError> {
    let Some(text) = text_of(path)? else {
        return terminal::print_visible(&format!("There is no {}.\n", path.display())).map(|()| 0);
    };
    let question = format!("Delete {} ({} bytes)?", path.display(), text.len());
    if !yes && !terminal::agreed(&question)? {
        return Err(CliError::failed(format!("{} was not deleted", path.display())));
    }
    std::fs::remove_file(path).context(format_args!("{} can't be deleted", path.display()))?;
    terminal::print_visible(&format!("Deleted {}.\n", path.display())).map(|()| 0)
}
