//! Plugins of Claude Code and Codex, and extensions of Gemini CLI: folders with commands, skills, agents, hooks, MCP
//! servers and instructions.
//!
//! They come from these programs (if installed and enabled there), from `epitome plugins install`, and from a
//! repository's `.epitome/plugins`. Reading a plugin runs nothing.

mod installed;
mod manifest;
pub mod marketplace;
pub mod records;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::definition::{PluginFolders, RecipeOwner};
use super::text_file::{LEADS_OUT, read_text};
use epitome_files::paths::Paths;
use epitome_thread::problem::Problem;
use installed::Installation;
pub use manifest::PluginFormat;
use manifest::PluginManifest;
use marketplace::Marketplace;
use records::InstalledRecords;

/// Maximum plugins per session.
pub const PLUGINS_MAX: usize = 128;
/// Maximum size of a manifest, a list of servers or a settings file in bytes.
const FILE_BYTES_MAX: u64 = 256 * 1024;
/// Maximum size of Claude Code's list of plugins in bytes.
const INSTALLED_BYTES_MAX: u64 = 1024 * 1024;
/// A plugin and its contents.
#[derive(Clone, Debug, PartialEq)]
pub struct Plugin {
    pub name: String,
    /// Its name in the list that it comes from, such as `name@marketplace`.
    pub id: String,
    pub version: Option<String>,
    pub description: String,
    pub format: PluginFormat,
    pub folders: PluginFolders,
    /// The root of the repository that contains it; its contents then need the user's consent.
    pub repository: Option<PathBuf>,
    /// Files and folders of commands that exist.
    pub commands: Vec<PathBuf>,
    /// Folders that contain skills or are one.
    pub skills: Vec<PathBuf>,
    /// Files and folders of agents.
    pub agents: Vec<PathBuf>,
    /// Files with hooks, in the format of a settings file.
    pub hooks: Vec<PathBuf>,
    /// MCP servers, as declared.
    pub servers: BTreeMap<String, Value>,
    /// Files with instructions.
    pub context: Vec<PathBuf>,
    pub problems: Vec<Problem>,
}

/// The plugins of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PluginCatalog {
    /// One per name; the first wins.
    pub plugins: Vec<Arc<Plugin>>,
    /// Plugins that are not used, with the reason.
    pub unused: Vec<UnusedPlugin>,
    pub problems: Vec<Problem>,
}

/// A plugin that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedPlugin {
    pub id: String,
    pub folder: PathBuf,
    pub reason: String,
}

impl PluginCatalog {
    /// Finds the plugins of a directory: the user's, then the repository's, which can't replace one of the user's.
    /// Blocks on disk I/O.
    pub fn load(cwd: &Path, paths: &Paths) -> PluginCatalog {
        PluginCatalog::of_roots(&paths.repository_roots(cwd), paths)
    }

    /// Like `load`, for the directory's roots, the first of which is the directory.
    pub fn of_roots(roots: &[PathBuf], paths: &Paths) -> PluginCatalog {
        let mut catalog = PluginCatalog::default();
        let own = paths.home.join("plugins");
        catalog.folder(&own, None, paths);
        if let Some(home) = &paths.user_home {
            catalog.of_claude_code(&home.join(".claude"), roots);
            catalog.of_codex(&home.join(".codex"));
            if let Some(cwd) = roots.first() {
                catalog.of_gemini(&home.join(".gemini/extensions"), cwd);
            }
        }
        for root in roots {
            let folder = root.join(".epitome/plugins");
            if folder != own {
                catalog.folder(&folder, roots.last().map(PathBuf::as_path), paths);
            }
        }
        catalog
    }

    /// Adds the plugins in the subfolders of a folder. An installed one needs no manifest, and must be unchanged since
    /// its installation.
    fn folder(&mut self, folder: &Path, repository: Option<&Path>, paths: &Paths) {
        let records = match repository {
            Some(_) => InstalledRecords::default(),
            None => match InstalledRecords::load(folder) {
                Ok(records) => records,
                Err(problem) => return self.problems.push(problem),
            },
        };
        for root in subfolders(folder) {
            let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_plugin = PluginFormat::of(&root).is_some() || records.plugins.contains_key(&name);
            if name.starts_with('.') || !is_plugin {
                continue;
            }
            let data = paths.state.join("plugins").join(&name);
            let read = Plugin::read(PluginFolders { root, data }, &name, &name, repository);
            self.add(read.and_then(|plugin| records.check(&name, &plugin).map(|()| plugin)));
        }
    }

    /// Adds the plugins that Claude Code has installed; `claude` is its folder.
    fn of_claude_code(&mut self, claude: &Path, roots: &[PathBuf]) {
        let list = claude.join("plugins/installed_plugins.json");
        if !list.is_file() {
            return;
        }
        let read = read_text(&list, "a list of plugins", INSTALLED_BYTES_MAX)
            .map_err(|why| why.to_string())
            .and_then(|text| {
                installed::installations(&text).map_err(|error| format!("not valid JSON: {error}"))
            });
        let installations = match read {
            Ok(installations) => installations,
            Err(message) => {
                let message = format!("Claude Code's plugins are not read: {message}");
                return self.problems.push(Problem::new(list, message));
            }
        };
        let switches = |path: PathBuf| {
            let text = read_text(&path, "a settings file", FILE_BYTES_MAX).unwrap_or_default();
            installed::enabled(&text)
        };
        let of_user = switches(claude.join("settings.json"));
        // The nearer file overrides the farther one, and the local file the shared one.
        let of_repository = roots.iter().rev().flat_map(|root| {
            let shared = switches(root.join(".claude/settings.json"));
            shared.into_iter().chain(switches(root.join(".claude/settings.local.json")))
        });
        let of_repository: BTreeMap<String, bool> = if roots.iter().any(|root| root.join(".claude") == claude)
        {
            BTreeMap::new()
        } else {
            of_repository.collect()
        };
        let marketplaces = marketplace::known(claude);
        for installation in installations {
            match installed::unused(&installation, roots, &of_user, &of_repository) {
                None => self.add(read_installed(claude, &installation, &marketplaces)),
                Some(installed::OFF_HERE)
                    if installed::unused(&installation, roots, &of_user, &BTreeMap::new()).is_none()
                        && let Ok(plugin) = read_installed(claude, &installation, &marketplaces)
                        && !plugin.hooks.is_empty() =>
                {
                    // Hooks of the user may guard against what the repository brings.
                    let message = format!(
                        "settings of the repository switch off your plugin {}, which stays on: it has hooks",
                        installation.id
                    );
                    let hint = "switch it off in ~/.claude/settings.json, or uninstall it";
                    self.problems.push(Problem::new(&plugin.folders.root, message).with_hint(hint));
                    self.add(Ok(plugin));
                }
                Some(reason) => {
                    let Installation { id, folder, .. } = installation;
                    self.leave_out(id, folder, reason);
                }
            }
        }
    }

    /// Adds the plugins that Codex has installed in `plugins/cache/MARKETPLACE/PLUGIN/VERSION` below its folder, if
    /// they are enabled in `config.toml`.
    fn of_codex(&mut self, codex: &Path) {
        let config = codex.join("config.toml");
        if !codex.join("plugins/cache").is_dir() || !config.is_file() {
            return;
        }
        let read = read_text(&config, "a settings file", FILE_BYTES_MAX)
            .map_err(|why| why.to_string())
            .and_then(|text| installed::of_codex(&text).map_err(|error| error.message().to_owned()));
        let plugins = match read {
            Ok(plugins) => plugins,
            Err(why) => {
                let message = format!("Codex's plugins are not read: {why}");
                return self.problems.push(Problem::new(config, message));
            }
        };
        for (id, is_enabled) in plugins {
            let Some((name, marketplace)) = id.split_once('@') else { continue };
            // A path in place of a name could lead elsewhere.
            if [name, marketplace].iter().any(|part| !manifest::is_name(part)) {
                continue;
            }
            let folder = codex.join("plugins/cache").join(marketplace).join(name);
            let versions = subfolders(&folder).into_iter().filter(|root| PluginFormat::of(root).is_some());
            let changed = |root: &PathBuf| root.metadata().and_then(|root| root.modified()).ok();
            match versions.max_by_key(changed) {
                Some(root) if is_enabled => {
                    let data = codex.join("plugins/data").join(format!("{name}-{marketplace}"));
                    self.add(Plugin::read(PluginFolders { root, data }, name, &id, None));
                }
                found => {
                    let reason = match &found {
                        Some(_) => "Codex's config.toml switches it off",
                        None => "Codex has not downloaded it",
                    };
                    self.leave_out(id, found.unwrap_or(folder), reason);
                }
            }
        }
    }

    /// Adds the extensions of Gemini CLI in a folder, if they are enabled for the directory.
    fn of_gemini(&mut self, folder: &Path, cwd: &Path) {
        let file = folder.join("extension-enablement.json");
        let switches = read_text(&file, "a settings file", FILE_BYTES_MAX).unwrap_or_default();
        for root in subfolders(folder) {
            if !root.join(PluginFormat::Gemini.manifest()).is_file() {
                continue;
            }
            let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if installed::is_extension_off(&switches, &name, cwd) {
                self.leave_out(name, root, "it is switched off for this directory in Gemini CLI");
                continue;
            }
            let folders = PluginFolders { data: root.clone(), root };
            self.add(Plugin::read(folders, &name, &name, None));
        }
    }

    fn leave_out(&mut self, id: String, folder: PathBuf, reason: &str) {
        self.unused.push(UnusedPlugin { id, folder, reason: reason.to_owned() });
    }

    fn add(&mut self, read: Result<Plugin, Problem>) {
        let plugin = match read {
            Ok(plugin) => plugin,
            Err(problem) => return self.problems.push(problem),
        };
        let (id, root) = (plugin.id.clone(), plugin.folders.root.clone());
        if let Some(first) = self.plugins.iter().find(|first| first.name == plugin.name) {
            if first.folders.root != root {
                let reason = format!("{} has the same name and comes first", first.folders.root.display());
                if plugin.repository.is_some() {
                    let message = format!("the repository's plugin {:?} is not used: {reason}", plugin.name);
                    let hint = "give it another name in its manifest";
                    self.problems.push(Problem::new(&root, message).with_hint(hint));
                }
                self.leave_out(id, root, &reason);
            }
        } else if self.plugins.len() >= PLUGINS_MAX {
            self.leave_out(id, root, &format!("there are more than {PLUGINS_MAX} plugins"));
        } else {
            self.problems.extend(plugin.problems.iter().cloned());
            self.plugins.push(Arc::new(plugin));
        }
    }
}

impl Plugin {
    /// Reads the plugin in a folder. `name` is used if the manifest has none; `repository` is the root of the
    /// repository that contains it. Blocks on disk I/O.
    pub fn read(
        folders: PluginFolders,
        name: &str,
        id: &str,
        repository: Option<&Path>,
    ) -> Result<Plugin, Problem> {
        Plugin::read_with(folders, name, id, repository, None)
    }

    /// Like `read`, with a marketplace entry as a replacement for a missing manifest.
    fn read_with(
        folders: PluginFolders,
        name: &str,
        id: &str,
        repository: Option<&Path>,
        entry: Option<&Value>,
    ) -> Result<Plugin, Problem> {
        let root = &folders.root;
        let real = root
            .canonicalize()
            .map_err(|error| Problem::new(root, format!("the plugin can't be read: {error}")))?;
        if let Some(repository) = repository
            && !repository.canonicalize().is_ok_and(|repository| real.starts_with(repository))
        {
            return Err(Problem::new(root, LEADS_OUT));
        }
        let format = PluginFormat::of(root).unwrap_or(PluginFormat::ClaudeCode);
        let path = root.join(format.manifest());
        let (manifest, mut problems) = match (path.is_file(), entry) {
            (true, _) => {
                let text = read_text(&path, "a manifest", FILE_BYTES_MAX)
                    .map_err(|why| Problem::new(&path, why.to_string()))?;
                manifest::parse(&text, &path)?
            }
            (false, Some(entry)) => manifest::parse(&entry.to_string(), &path)?,
            (false, None) => (PluginManifest::default(), Vec::new()),
        };
        let name = manifest.name.clone().unwrap_or_else(|| name.to_owned());
        if !manifest::is_name(&name) {
            return Err(Problem::new(
                root,
                format!("{name:?} can't be the name of a plugin, so it is not read"),
            ));
        }
        let mut contents =
            PluginContents { real: &real, root, is_complete: manifest.is_complete, problems: &mut problems };
        let mut hooks = contents.existing(&["hooks/hooks.json"], &manifest.hooks);
        if manifest.has_hooks {
            hooks.push(path.clone());
        }
        if format == PluginFormat::Gemini {
            // They have other events and payloads.
            let message = "hooks of Gemini CLI are not run: only those of Claude Code and Codex are";
            contents.problems.extend(hooks.drain(..).map(|path| Problem::new(path, message)));
        }
        let servers = contents.servers(&manifest);
        let commands = contents.existing(&["commands"], &manifest.commands);
        let agents = contents.existing(&["agents"], &manifest.agents);
        let mut skills = contents.existing(&["skills"], &manifest.skills);
        // A plugin may be a skill itself (CHANGELOG 2.1.142).
        if skills.is_empty() && root.join(super::folders::SKILL_FILE).is_file() {
            skills.push(root.clone());
        }
        let context = match (format, manifest.context.is_empty()) {
            (PluginFormat::Gemini, true) => contents.existing(&["GEMINI.md"], &[]),
            (PluginFormat::Gemini, false) => contents.existing(&[], &manifest.context),
            (PluginFormat::ClaudeCode | PluginFormat::Codex, _) => Vec::new(),
        };
        Ok(Plugin {
            name,
            id: id.to_owned(),
            version: manifest.version,
            description: manifest.description,
            format,
            commands,
            skills,
            agents,
            hooks,
            servers,
            context,
            repository: repository.map(Path::to_path_buf),
            problems,
            folders,
        })
    }

    pub(super) fn owner(&self) -> RecipeOwner {
        if self.repository.is_some() { RecipeOwner::Repository } else { RecipeOwner::User }
    }

    /// The path of its manifest, whether it exists or not.
    pub fn manifest_path(&self) -> PathBuf {
        self.folders.root.join(self.format.manifest())
    }

    /// Whether it contains nothing that Epitome uses.
    pub fn is_empty(&self) -> bool {
        let paths = [&self.commands, &self.skills, &self.agents, &self.hooks, &self.context];
        paths.iter().all(|paths| paths.is_empty()) && self.servers.is_empty()
    }
}

/// Reads a plugin that Claude Code has installed.
fn read_installed(
    claude: &Path,
    installation: &Installation,
    marketplaces: &BTreeMap<String, PathBuf>,
) -> Result<Plugin, Problem> {
    // Claude Code replaces characters that can't be part of a file name.
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
    let data = claude.join("plugins/data").join(installation.id.chars().map(plain).collect::<String>());
    let folders = PluginFolders { root: installation.folder.clone(), data };
    // The marketplace entry replaces a missing manifest.
    let entry = || {
        let (name, marketplace) = installation.id.split_once('@')?;
        Marketplace::read(marketplaces.get(marketplace)?)?.ok()?.find(name)?.manifest.clone()
    };
    let has_manifest = PluginFormat::of(&installation.folder).is_some();
    let entry = if has_manifest { None } else { entry() };
    let plugin = Plugin::read_with(folders, installation.name(), &installation.id, None, entry.as_ref())?;
    Ok(Plugin { version: plugin.version.or(installation.version.clone()), ..plugin })
}

/// The subfolders of a folder, sorted, up to a limit.
fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(PLUGINS_MAX);
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

/// The folder of a plugin that is being read.
struct PluginContents<'a> {
    /// Its canonical path.
    real: &'a Path,
    root: &'a Path,
    /// Whether default paths are ignored.
    is_complete: bool,
    problems: &'a mut Vec<Problem>,
}

impl PluginContents<'_> {
    /// The default paths that exist, and those of the manifest. A declared path that is missing or leads out of the
    /// plugin is a problem.
    fn existing(&mut self, default: &[&str], declared: &[PathBuf]) -> Vec<PathBuf> {
        let default = default.iter().filter(|_| !self.is_complete).map(|path| self.root.join(path));
        let mut found: Vec<PathBuf> = default.filter(|path| self.is_inside(path)).collect();
        for path in declared.iter().map(|path| self.root.join(path)) {
            if !self.is_inside(&path) {
                let message = "the plugin names this file, which is missing or outside of its folder";
                self.problems.push(Problem::new(path, message));
            } else if !found.iter().any(|known| known.components().eq(path.components())) {
                found.push(path);
            }
        }
        found
    }

    fn is_inside(&self, path: &Path) -> bool {
        path.canonicalize().is_ok_and(|real| real.starts_with(self.real))
    }

    /// The MCP servers of `.mcp.json` and the manifest. In the file they may be wrapped in `mcpServers`.
    fn servers(&mut self, manifest: &PluginManifest) -> BTreeMap<String, Value> {
        let mut servers = manifest.servers.clone();
        for path in self.existing(&[".mcp.json"], &manifest.server_files) {
            let read = read_text(&path, "a list of servers", FILE_BYTES_MAX)
                .map_err(|why| why.to_string())
                .and_then(|text| {
                    serde_json::from_str::<BTreeMap<String, Value>>(&text).map_err(|error| error.to_string())
                });
            match read {
                Ok(mut fields) => match fields.remove("mcpServers") {
                    Some(Value::Object(inner)) => servers.extend(inner),
                    Some(_) => {}
                    None => servers.extend(fields),
                },
                Err(why) => {
                    let message = format!("the plugin's MCP servers are not read: {why}");
                    self.problems.push(Problem::new(path, message));
                }
            }
        }
        servers
    }
}

#[cfg(test)]
mod tests;
