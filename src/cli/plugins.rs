//! `epitome plugins`: lists plugins in Claude Code's format, checks one, and installs or removes own ones. Runs nothing
//! of them.

mod contents;
mod copy;

use std::fmt::Write as _;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::terminal;
use super::{CliError, serve};
use crate::paths::Paths;
use crate::problem::Problem;
use crate::recipe::foreign::PluginFolders;
use crate::recipe::plugins::{MANIFEST, Plugin, PluginCatalog};
use crate::thread::visible::visible;
use contents::BroughtItems;

/// List, check, install and remove plugins
///
/// Plugins that Claude Code has installed and enabled are used as they are.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = false,
    after_help = "Exit codes: 0 done, 1 failed or a plugin has problems, 2 wrong usage."
)]
pub struct PluginsArgs {
    #[command(subcommand)]
    command: PluginsCommand,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum PluginsCommand {
    /// List the plugins of this directory, and those that are not used with the reason
    List,
    /// Show what the plugin in a directory brings, and its problems
    Check {
        /// Directory of the plugin
        #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
        directory: PathBuf,
    },
    /// Show what the plugin in a directory brings, and copy it to your own plugins
    Install {
        /// Directory of the plugin
        #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
        directory: PathBuf,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        /// Replace an installed plugin of the same name
        #[arg(long)]
        replace: bool,
    },
    /// Delete a plugin that was installed with `epitome plugins install`
    Remove {
        /// Name of the plugin
        name: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
}

pub fn main(args: PluginsArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    let cwd = serve::working_directory()?;
    match args.command {
        PluginsCommand::List => list(&PluginCatalog::load(&cwd, &paths), args.json),
        PluginsCommand::Check { directory } => check(&read(&cwd.join(directory), &paths)?, args.json),
        PluginsCommand::Install { directory, yes, replace } => {
            install(&read(&cwd.join(directory), &paths)?, &paths, yes, replace, args.json)
        }
        PluginsCommand::Remove { name, yes } => {
            remove(&name, &PluginCatalog::load(&cwd, &paths), &paths, yes)
        }
    }
}

/// The plugin in a directory.
fn read(directory: &Path, paths: &Paths) -> Result<Arc<Plugin>, CliError> {
    let root = directory
        .canonicalize()
        .map_err(|error| CliError::failed(format!("{} can't be read: {error}", directory.display()), None))?;
    let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let data = data_folder(paths, &name);
    let plugin = Plugin::read(PluginFolders { root, data }, &name, &name, None);
    let plugin = plugin.map_err(|problem| CliError::failed(problem.to_string(), None))?;
    let brings_nothing = [&plugin.commands, &plugin.skills, &plugin.agents, &plugin.hooks]
        .iter()
        .all(|paths| paths.is_empty());
    if brings_nothing && plugin.servers.is_empty() && !plugin.folders.root.join(MANIFEST).is_file() {
        let message =
            format!("{} is no plugin: it has no {MANIFEST} and nothing of one", directory.display());
        return Err(CliError::failed(message, None));
    }
    Ok(Arc::new(plugin))
}

fn data_folder(paths: &Paths, name: &str) -> PathBuf {
    paths.state.join("plugins").join(name)
}

fn list(catalog: &PluginCatalog, as_json: bool) -> Result<i32, CliError> {
    let code = i32::from(!catalog.problems.is_empty());
    if as_json {
        let plugins: Vec<Value> =
            catalog.plugins.iter().map(|plugin| to_json(plugin, &BroughtItems::of(plugin))).collect();
        let unused = catalog.unused.iter().map(|unused| {
            json!({"id": unused.id, "path": unused.folder.display().to_string(), "reason": unused.reason})
        });
        let unused: Vec<Value> = unused.collect();
        let problems: Vec<Value> = catalog.problems.iter().map(Problem::to_json).collect();
        terminal::print_pretty(&json!({"plugins": plugins, "unused": unused, "problems": problems}))?;
        return Ok(code);
    }
    let mut text = String::new();
    for plugin in &catalog.plugins {
        let _ = writeln!(text, "{}\n    {}", head(plugin), BroughtItems::of(plugin).counts());
    }
    if !catalog.unused.is_empty() {
        text.push_str("Not used:\n");
        for unused in &catalog.unused {
            let _ = writeln!(text, "  {}  {} ({})", unused.id, unused.reason, unused.folder.display());
        }
    }
    if !catalog.problems.is_empty() {
        text.push_str("Problems:\n");
        catalog.problems.iter().for_each(|problem| text.push_str(&format!("  {problem}\n")));
    }
    if text.is_empty() {
        text.push_str("There are no plugins here.\n");
    }
    terminal::print(&visible(&text)).map(|()| code)
}

fn check(plugin: &Arc<Plugin>, as_json: bool) -> Result<i32, CliError> {
    let brought = BroughtItems::of(plugin);
    match as_json {
        true => terminal::print_pretty(&to_json(plugin, &brought))?,
        false => terminal::print(&visible(&format!("{}\n{}", head(plugin), brought.text())))?,
    }
    Ok(i32::from(!brought.problems.is_empty()))
}

fn install(
    plugin: &Arc<Plugin>,
    paths: &Paths,
    yes: bool,
    replace: bool,
    as_json: bool,
) -> Result<i32, CliError> {
    let own = paths.home.join("plugins");
    let target = own.join(&plugin.name);
    if target.exists() && !replace {
        let hint = Some("`--replace` puts this one in its place".to_owned());
        return Err(CliError::failed(format!("there is a plugin {} already", plugin.name), hint));
    }
    let copied = copy::FolderCopy::of(&plugin.folders.root).map_err(|why| CliError::failed(why, None))?;
    let brought = BroughtItems::of(plugin);
    let card = format!(
        "{}\nfrom {}, {} files\nsha256 {}\n{}",
        head(plugin),
        plugin.folders.root.display(),
        copied.files.len(),
        copied.digest,
        brought.text()
    );
    terminal::print(&visible(&if as_json { String::new() } else { card }))?;
    let question = "Its hooks and MCP servers run programs with your rights. Install it?";
    confirmed(yes, question)?;
    copied.install(&own, &plugin.name).map_err(|why| CliError::failed(why, None))?;
    match as_json {
        true => terminal::print_pretty(&json!({
            "installed": plugin.name, "path": target.display().to_string(), "digest": copied.digest,
        }))?,
        false => terminal::print(&visible(&format!("installed {} to {}\n", plugin.name, target.display())))?,
    }
    Ok(0)
}

fn remove(name: &str, catalog: &PluginCatalog, paths: &Paths, yes: bool) -> Result<i32, CliError> {
    let own = paths.home.join("plugins");
    let found = catalog.plugins.iter().find(|plugin| plugin.name == name || plugin.id == name);
    let Some(plugin) = found else {
        let names = catalog.plugins.iter().map(|plugin| plugin.name.as_str());
        let hint = crate::problem::nearest(name, names).map(|near| format!("did you mean {near:?}?"));
        let hint = hint.or_else(|| Some("`epitome plugins list` shows all".to_owned()));
        return Err(CliError::failed(format!("there is no plugin {name:?}"), hint));
    };
    let root = &plugin.folders.root;
    if root.parent() != Some(own.as_path()) {
        let hint = match plugin.repository {
            Some(_) => "it belongs to the repository: delete it there".to_owned(),
            None => format!("it belongs to Claude Code: `claude plugin uninstall {}`", plugin.id),
        };
        return Err(CliError::failed(format!("{name} was not installed by Epitome"), Some(hint)));
    }
    terminal::print(&visible(&format!("{}\n    {}\n", head(plugin), root.display())))?;
    confirmed(yes, "Delete it?")?;
    // A link is the user's own arrangement: only it is taken away.
    let removed = if root.is_symlink() { std::fs::remove_file(root) } else { std::fs::remove_dir_all(root) };
    removed
        .map_err(|error| CliError::failed(format!("{} can't be deleted: {error}", root.display()), None))?;
    terminal::print(&visible(&format!("removed {name}\n"))).map(|()| 0)
}

fn confirmed(yes: bool, question: &str) -> Result<(), CliError> {
    if yes {
        return Ok(());
    }
    let Some(mut keyboard) = terminal::keyboard() else {
        let hint = Some("`--yes` does it without asking".to_owned());
        return Err(CliError::failed("nobody is there to confirm it", hint));
    };
    let keyboard: &mut dyn BufRead = &mut keyboard;
    match terminal::confirm(keyboard, question) {
        true => Ok(()),
        false => Err(CliError::failed("nothing was changed", None)),
    }
}

fn head(plugin: &Plugin) -> String {
    let version = plugin.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
    let about = match plugin.description.is_empty() {
        true => String::new(),
        false => format!("  {}", plugin.description),
    };
    format!("{}{version}{about}", plugin.name)
}

fn to_json(plugin: &Plugin, brought: &BroughtItems) -> Value {
    let mut value = json!({
        "name": plugin.name,
        "id": plugin.id,
        "version": plugin.version,
        "description": plugin.description,
        "path": plugin.folders.root.display().to_string(),
        "of_repository": plugin.repository.is_some(),
    });
    if let (Value::Object(value), Value::Object(brought)) = (&mut value, brought.to_json()) {
        value.extend(brought);
    }
    value
}
