//! `epitome plugins`: lists plugins in other agents' formats, checks one, and installs, updates or removes Epitome's.
//! Never runs a plugin's code.

mod contents;
mod copy;
mod source;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::terminal;
use super::{CliContext as _, CliError, serve};
use crate::paths::Paths;
use crate::problem::Problem;
use crate::recipe::foreign::PluginFolders;
use crate::recipe::plugins::records::{InstalledRecord, InstalledRecords};
use crate::recipe::plugins::{Plugin, PluginCatalog, PluginFormat};
use contents::BroughtItems;
use copy::{FolderCopy, scratch_below};
use source::FoundPlugin;

/// List, check, install, update and remove plugins
///
/// Plugins that Claude Code, Codex and Gemini CLI have installed and enabled are used as they are.
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
    /// Show what a plugin contains, and its problems
    Check {
        /// Directory (./NAME), Git address, OWNER/NAME on GitHub or npm:PACKAGE, with #REFERENCE; PLUGIN@ before it for one of a marketplace
        #[arg(value_name = "[PLUGIN@]SOURCE", value_hint = clap::ValueHint::DirPath)]
        source: String,
    },
    /// Show what a plugin contains, and copy it to your own plugins
    Install {
        /// Directory (./NAME), Git address, OWNER/NAME on GitHub or npm:PACKAGE, with #REFERENCE; PLUGIN@ before it for one of a marketplace
        #[arg(value_name = "[PLUGIN@]SOURCE", value_hint = clap::ValueHint::DirPath)]
        source: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        /// Replace an installed plugin of the same name
        #[arg(long)]
        replace: bool,
    },
    /// Fetch installed plugins again, and show what a new version changes
    Update {
        /// Name of the plugin [default: all]
        name: Option<String>,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Accept an installed plugin whose files have changed, after showing its contents
    Accept {
        /// Name of the plugin
        name: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
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
    let own = OwnPlugins { folder: paths.home.join("plugins"), paths: &paths, cwd: &cwd, as_json: args.json };
    match args.command {
        PluginsCommand::List => list(&PluginCatalog::load(&cwd, &paths), args.json),
        PluginsCommand::Check { source } => check(&own.fetch(&source, Some(&cwd))?.plugin, args.json),
        PluginsCommand::Install { source, yes, replace } => own.install(&source, yes, replace),
        PluginsCommand::Update { name, yes } => own.update(name.as_deref(), yes),
        PluginsCommand::Accept { name, yes } => own.accept(&name, yes),
        PluginsCommand::Remove { name, yes } => own.remove(&name, yes),
    }
}

/// A plugin that is not installed yet.
struct FetchedPlugin {
    plugin: Arc<Plugin>,
    found: FoundPlugin,
    /// Deletes the temporary copy with the manifest of its marketplace when dropped.
    _scratch: Option<TempDir>,
}

/// The plugins that were installed with Epitome.
struct OwnPlugins<'a> {
    folder: PathBuf,
    paths: &'a Paths,
    cwd: &'a Path,
    as_json: bool,
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
    terminal::print_visible(&text).map(|()| code)
}

fn check(plugin: &Arc<Plugin>, as_json: bool) -> Result<i32, CliError> {
    let brought = BroughtItems::of(plugin);
    match as_json {
        true => terminal::print_pretty(&to_json(plugin, &brought))?,
        false => terminal::print_visible(&format!("{}\n{}", head(plugin), brought.text()))?,
    }
    Ok(i32::from(!brought.problems.is_empty()))
}

impl OwnPlugins<'_> {
    /// `cwd`: the directory of a relative path; a record has none.
    fn fetch(&self, source: &str, cwd: Option<&Path>) -> Result<FetchedPlugin, CliError> {
        let claude = self.paths.user_home.as_ref().map(|home| home.join(".claude"));
        let mut found = source::find(source, cwd, claude.as_deref(), &self.folder)?;
        let mut scratch = None;
        if let Some(manifest) = &found.manifest {
            let copy = scratch_below(&self.folder)?;
            FolderCopy::of(&found.folder).and_then(|files| files.install(copy.path(), &found.name))?;
            found.folder = copy.path().join(&found.name);
            let path = found.folder.join(PluginFormat::ClaudeCode.manifest());
            let folder = path.parent().unwrap_or(&path);
            let written = std::fs::create_dir_all(folder)
                .and_then(|()| std::fs::write(&path, format!("{manifest:#}\n")));
            written.context(format_args!("{} can't be written", path.display()))?;
            scratch = Some(copy);
        }
        let plugin = self.read(&found.folder, &found.name)?;
        if plugin.is_empty() && PluginFormat::of(&found.folder).is_none() {
            let manifest = PluginFormat::ClaudeCode.manifest();
            return Err(CliError::failed(format!(
                "{source} is not a plugin: it has no {manifest} and nothing else of one"
            )));
        }
        Ok(FetchedPlugin { plugin: Arc::new(plugin), found, _scratch: scratch })
    }

    fn read(&self, folder: &Path, name: &str) -> Result<Plugin, CliError> {
        let root = folder.canonicalize().context(format_args!("{} can't be read", folder.display()))?;
        let data = self.paths.state.join("plugins").join(name);
        Ok(Plugin::read(PluginFolders { root, data }, name, name, None)?)
    }

    fn records(&self) -> Result<InstalledRecords, CliError> {
        Ok(InstalledRecords::load(&self.folder)?)
    }

    fn change<T>(&self, change: impl FnOnce(&mut InstalledRecords) -> T) -> Result<T, CliError> {
        Ok(InstalledRecords::change(&self.folder, change)?)
    }

    fn install(&self, source: &str, yes: bool, replace: bool) -> Result<i32, CliError> {
        let fetched = self.fetch(source, Some(self.cwd))?;
        let plugin = &fetched.plugin;
        let target = self.folder.join(&plugin.name);
        if target.exists() && !replace {
            return Err(CliError::failed(format!("there is a plugin {} already", plugin.name))
                .hint("`--replace` puts this one in its place"));
        }
        let copied = FolderCopy::of(&fetched.found.folder)?;
        let card = card(plugin, &fetched.found.source, fetched.found.commit.as_deref(), &copied);
        terminal::print_visible(&if self.as_json { String::new() } else { card })?;
        let question = "Its hooks and MCP servers run programs with your rights. Install it?";
        confirmed(yes, question)?;
        self.put(&fetched, &copied)?;
        match self.as_json {
            true => terminal::print_pretty(&json!({
                "installed": plugin.name, "path": target.display().to_string(), "digest": copied.digest,
                "commit": fetched.found.commit,
            }))?,
            false => {
                terminal::print_visible(&format!("installed {} to {}\n", plugin.name, target.display()))?;
            }
        }
        Ok(0)
    }

    /// Stores the record before the files: files without a record would count as put there by the user.
    fn put(&self, fetched: &FetchedPlugin, copied: &FolderCopy) -> Result<(), CliError> {
        let name = &fetched.plugin.name;
        let record = InstalledRecord {
            source: fetched.found.source.clone(),
            commit: fetched.found.commit.clone(),
            digest: copied.digest.clone(),
            files: copied.files.clone(),
        };
        let before = self.change(|records| records.plugins.insert(name.clone(), record.clone()))?;
        copied.install(&self.folder, name).or_else(|why| {
            self.change(|records| {
                // Another process may have installed it meanwhile.
                if records.plugins.get(name) == Some(&record) {
                    records.plugins.remove(name);
                    records.plugins.extend(before.map(|before| (name.clone(), before)));
                }
            })?;
            Err(why)
        })
    }

    fn update(&self, name: Option<&str>, yes: bool) -> Result<i32, CliError> {
        let records = self.records()?;
        if let Some(name) = name.filter(|name| !records.plugins.contains_key(*name)) {
            return Err(unknown(name, records.plugins.keys().map(String::as_str)));
        }
        let mut code = 0;
        let mut results = Vec::new();
        for (own, record) in records.plugins.iter().filter(|(own, _)| name.is_none_or(|name| name == *own)) {
            let result = match self.update_one(own, record, yes) {
                Ok(result) => result.to_owned(),
                Err(error) => {
                    code = 1;
                    error.message
                }
            };
            if !self.as_json {
                terminal::print_visible(&format!("{own}: {result}\n"))?;
            }
            results.push(json!({"name": own, "result": result}));
        }
        match (self.as_json, results.is_empty()) {
            (true, _) => terminal::print_pretty(&Value::from(results))?,
            (false, true) => terminal::print("No plugin was installed with `epitome plugins install`.\n")?,
            (false, false) => {}
        }
        Ok(code)
    }

    fn update_one(&self, name: &str, record: &InstalledRecord, yes: bool) -> Result<&'static str, CliError> {
        let fetched = self.fetch(&record.source, None)?;
        let copied = FolderCopy::of(&fetched.found.folder)?;
        let target = self.folder.join(name);
        let is_installed = FolderCopy::of(&target).is_ok_and(|installed| installed.digest == copied.digest);
        if is_installed && copied.digest == record.digest {
            return Ok("nothing has changed");
        }
        if fetched.plugin.name != name {
            return Err(CliError::failed(format!(
                "it is called {} now: install it under this name",
                fetched.plugin.name
            )));
        }
        let before = self.read(&target, name).map(|plugin| BroughtItems::of(&Arc::new(plugin)).text());
        let card = card(&fetched.plugin, &fetched.found.source, fetched.found.commit.as_deref(), &copied);
        let changes = changes(&before.unwrap_or_default(), &BroughtItems::of(&fetched.plugin).text());
        let text = format!("{card}{changes}");
        terminal::print_visible(&if self.as_json { String::new() } else { text })?;
        confirmed(yes, "Its hooks and MCP servers run programs with your rights. Install this version?")?;
        self.put(&fetched, &copied)?;
        Ok("updated")
    }

    fn accept(&self, name: &str, yes: bool) -> Result<i32, CliError> {
        let records = self.records()?;
        if !records.plugins.contains_key(name) {
            return Err(unknown(name, records.plugins.keys().map(String::as_str)));
        }
        let target = self.folder.join(name);
        let plugin = Arc::new(self.read(&target, name)?);
        let copied = FolderCopy::of(&target)?;
        terminal::print_visible(&card(&plugin, &target.display().to_string(), None, &copied))?;
        confirmed(yes, "Its hooks and MCP servers run programs with your rights. Use it as it is now?")?;
        // The answer may have taken long: change the records as they are now.
        self.change(|records| {
            let record = records.plugins.get_mut(name)?;
            (record.digest, record.files) = (copied.digest, copied.files);
            record.commit = None;
            Some(())
        })?
        .ok_or_else(|| CliError::failed(format!("{name} was removed in the meantime")))?;
        terminal::print_visible(&format!("{name} is used as it is now\n")).map(|()| 0)
    }

    fn remove(&self, name: &str, yes: bool) -> Result<i32, CliError> {
        let catalog = PluginCatalog::load(self.cwd, self.paths);
        let found = catalog.plugins.iter().find(|plugin| plugin.name == name || plugin.id == name);
        let records = self.records()?;
        let root = match found {
            Some(plugin) if plugin.folders.root.parent() != Some(self.folder.as_path()) => {
                let hint = match (&plugin.repository, plugin.format) {
                    (Some(_), _) => "it belongs to the repository: delete it there".to_owned(),
                    (None, PluginFormat::ClaudeCode) => {
                        format!("it belongs to Claude Code: `claude plugin uninstall {}`", plugin.id)
                    }
                    (None, PluginFormat::Codex) => "it belongs to Codex: remove it there".to_owned(),
                    (None, PluginFormat::Gemini) => {
                        format!("it belongs to Gemini CLI: `gemini extensions uninstall {}`", plugin.id)
                    }
                };
                return Err(CliError::failed(format!("{name} was not installed by Epitome")).hint(hint));
            }
            Some(plugin) => plugin.folders.root.clone(),
            // The plugin may be unused because it has changed.
            None if records.plugins.contains_key(name) => self.folder.join(name),
            None => return Err(unknown(name, catalog.plugins.iter().map(|plugin| plugin.name.as_str()))),
        };
        terminal::print_visible(&format!("{name}\n    {}\n", root.display()))?;
        confirmed(yes, "Delete it?")?;
        // If the user created a symbolic link, remove only the link.
        let removed =
            if root.is_symlink() { std::fs::remove_file(&root) } else { std::fs::remove_dir_all(&root) };
        removed.context(format_args!("{} can't be deleted", root.display()))?;
        self.change(|records| records.plugins.remove(name))?;
        terminal::print_visible(&format!("removed {name}\n")).map(|()| 0)
    }
}

fn unknown<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> CliError {
    let unknown = CliError::failed(format!("there is no plugin {name:?}"));
    unknown.meant(name, names, "`epitome plugins list` shows all")
}

/// Formats everything that the user agrees to.
fn card(plugin: &Arc<Plugin>, source: &str, commit: Option<&str>, copied: &FolderCopy) -> String {
    let commit = commit.map(|commit| format!(", commit {commit}")).unwrap_or_default();
    format!(
        "{}\nfrom {source}{commit}, {} files\nsha256 {}\n{}",
        head(plugin),
        copied.files.len(),
        copied.digest,
        BroughtItems::of(plugin).text()
    )
}

/// Formats the lines of a plugin's contents that are new or removed.
fn changes(before: &str, after: &str) -> String {
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) = (before.lines().collect(), after.lines().collect());
    let gone = old.difference(&new).map(|line| format!("  - {}\n", line.trim()));
    let come = new.difference(&old).map(|line| format!("  + {}\n", line.trim()));
    let lines: String = gone.chain(come).collect();
    match lines.is_empty() {
        true => "changes: only in the contents of files\n".to_owned(),
        false => format!("changes, apart from the contents of files:\n{lines}"),
    }
}

fn confirmed(yes: bool, question: &str) -> Result<(), CliError> {
    match yes || terminal::agreed(question)? {
        true => Ok(()),
        false => Err(CliError::failed("nothing was changed")),
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
        "format": match plugin.format {
            PluginFormat::ClaudeCode => "claude_code",
            PluginFormat::Codex => "codex",
            PluginFormat::Gemini => "gemini",
        },
    });
    if let (Value::Object(value), Value::Object(brought)) = (&mut value, brought.to_json()) {
        value.extend(brought);
    }
    value
}
