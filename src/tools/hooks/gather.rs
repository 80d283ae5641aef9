//! Collects hook candidates from folders and settings files. It neither runs them nor checks for consent.

use epitome_platform::os::PermissionsExt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::claude;
use super::claude::action::ClaudeAction;
use super::digest::{self, PinError};
use super::discover::{
    DECLARATION_BYTES_MAX, Declaration, ENTRIES_MAX, HOOKS_MAX, HookCandidate, HookFinder,
};
use super::hook::{ClaudeOptions, HookKind, HookOrigin};
use super::manifest::ManifestSyntax;
use super::sources::{HookSource, SourceForm, enforced};
use epitome_config::HookTrust;
use epitome_recipe::plugins::records::InstalledRecords;
use epitome_recipe::plugins::{Plugin, PluginCatalog, PluginFormat};
use epitome_recipe::text_file::read_text;
use epitome_thread::problem::Problem;

/// A file of a hooks folder.
enum HookFile {
    Hook(String, Declaration),
    /// Not a hook, for this reason.
    NoHook(String),
    /// It can't be read, which was reported.
    Reported,
}

/// Descriptions of the files, for error messages.
const DECLARATION: &str = "a declaration of hooks";
const OUT_OF_REPOSITORY: &str = "a link that leads out of the repository, or nowhere";

impl HookFinder<'_> {
    pub fn source(&mut self, source: &HookSource) {
        // A repository must not use up the entries that may be read of the user's folders, which come later.
        self.entries = ENTRIES_MAX;
        match source.form {
            SourceForm::Settings => self.settings(&source.path, source.origin, None),
            SourceForm::Folder => self.folder(&source.path, source.origin, ""),
            SourceForm::Plugins => {
                // The user agreed to what `plugins` reads of an installed one.
                let installed = match source.origin {
                    HookOrigin::User => InstalledRecords::load(&source.path),
                    HookOrigin::Repository | HookOrigin::Enforced => Ok(InstalledRecords::default()),
                };
                // `plugins` reports unreadable records. Any of the folders may be an installed plugin then.
                let Ok(installed) = installed else { return };
                for plugin in self.children(&source.path) {
                    let Some(name) = plugin.file_name().and_then(|name| name.to_str()) else { continue };
                    // Plugins with a manifest have another form; `plugins` reads their hooks.
                    let has_manifest = PluginFormat::of(&plugin).is_some();
                    let is_plugin = has_manifest || installed.plugins.contains_key(name);
                    if plugin.is_dir() && !name.starts_with('.') && !is_plugin {
                        self.folder(&plugin.join("hooks"), source.origin, &format!("{name}/"));
                    }
                }
            }
        }
    }

    /// Collects the hooks of plugins, and reports the problems of the plugins as problems of hooks.
    pub fn plugins(&mut self) {
        let catalog = PluginCatalog::of_roots(&self.roots, self.search.paths);
        catalog.problems.into_iter().for_each(|problem| self.problem(problem));
        for plugin in &catalog.plugins {
            let origin = match plugin.repository {
                Some(_) => HookOrigin::Repository,
                None => HookOrigin::User,
            };
            for path in &plugin.hooks {
                self.settings(path, origin, Some(plugin));
            }
        }
    }

    fn folder(&mut self, folder: &Path, origin: HookOrigin, prefix: &str) {
        if !folder.exists() {
            return;
        }
        if !self.may_enter(origin, folder) {
            return self.skip(folder.to_path_buf(), OUT_OF_REPOSITORY);
        }
        for path in self.children(folder) {
            if path == enforced(self.search.paths) {
                continue;
            }
            match self.classify(origin, &path) {
                HookFile::Hook(name, written) => {
                    let found_as = format!("{prefix}{name}");
                    // Plugins are installed as `org@repo` and shown as `org/repo/name`.
                    let alias = prefix.contains('@').then(|| found_as.clone());
                    let name = if alias.is_some() { found_as.replacen('@', "/", 1) } else { found_as };
                    let files = vec![path];
                    self.add(HookCandidate { alias, ..HookCandidate::new(name, files, origin, written) });
                }
                HookFile::Reported => {}
                HookFile::NoHook(reason) => self.skip(path, reason),
            }
        }
    }

    fn settings(&mut self, path: &Path, origin: HookOrigin, plugin: Option<&Plugin>) {
        if !path.exists() && !path.is_symlink() {
            return;
        }
        if !self.may_enter(origin, path) {
            return self.skip(path.to_path_buf(), OUT_OF_REPOSITORY);
        }
        let text = match read_text(path, DECLARATION, DECLARATION_BYTES_MAX) {
            Ok(text) => text,
            Err(why) => {
                return self.problem(Problem::new(path, why.to_string()));
            }
        };
        let (hooks, problems) = claude::parse_of(path, &text, origin, &self.search.workspace.cwd, plugin);
        if let Some(switch) = &self.switch {
            let reason = format!("{} sets `disableAllHooks`", switch.display());
            if !hooks.is_empty() {
                self.skip(path.to_path_buf(), reason);
            }
            return;
        }
        problems.into_iter().for_each(|problem| self.problem(problem));
        let groups = self.groups;
        for mut hook in hooks {
            let HookKind::Claude { line, group, options, .. } = &mut hook.kind else { continue };
            // Numbered across files, so that groups of two files never run concurrently.
            *group += groups;
            self.groups = self.groups.max(*group + 1);
            match self.pinned(origin, line, options) {
                Ok(named) => hook.files.extend(named),
                Err(reason) => {
                    let message = format!("the hook {} is not run: {reason}", hook.name);
                    let hint = Some("put the line into a script, and name that".to_owned());
                    let position = options.written_at;
                    self.problem(Problem { position, hint, ..Problem::new(path, message) });
                    continue;
                }
            }
            let (name, files) = (hook.name.clone(), hook.files.clone());
            self.add(HookCandidate::new(name, files, origin, Declaration::Claude(Box::new(hook))));
        }
    }

    /// The files covered by the consent to a line; empty if no consent is needed.
    fn pinned(
        &self,
        origin: HookOrigin,
        line: &str,
        options: &ClaudeOptions,
    ) -> Result<Vec<PathBuf>, PinError> {
        let needs_consent = origin.is_repository() && self.search.settings.trust != HookTrust::Run;
        if !needs_consent || options.action != ClaudeAction::Command {
            return Ok(Vec::new());
        }
        let line = match &options.plugin {
            Some(plugin) => {
                let root = plugin.root.to_string_lossy();
                line.replace("${CLAUDE_PLUGIN_ROOT}", &root).replace("$CLAUDE_PLUGIN_ROOT", &root)
            }
            None => line.to_owned(),
        };
        digest::named(&line, &self.roots)
    }

    fn add(&mut self, candidate: HookCandidate) {
        let of_origin = self.candidates.iter().filter(|other| other.origin == candidate.origin);
        match of_origin.count() < HOOKS_MAX {
            true => self.candidates.push(candidate),
            false => self.skip(candidate.path, format!("there are more than {HOOKS_MAX} hooks")),
        }
    }

    fn classify(&mut self, origin: HookOrigin, path: &Path) -> HookFile {
        let no_hook = |reason: &str| HookFile::NoHook(reason.to_owned());
        let Some(name) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else {
            return no_hook("its name is not UTF-8");
        };
        if let Some(reason) = not_by_name(&name) {
            return no_hook(reason);
        }
        if !self.may_enter(origin, path) {
            return no_hook(OUT_OF_REPOSITORY);
        }
        let metadata = match path.metadata() {
            Ok(metadata) => metadata,
            Err(error) => return no_hook(&format!("it cannot be read: {error}")),
        };
        if metadata.is_dir() {
            return no_hook("a directory");
        }
        if !metadata.is_file() {
            return no_hook("not an ordinary file");
        }
        let Some(syntax) = syntax_of(&name) else {
            let is_executable = metadata.permissions().mode() & 0o111 != 0;
            return match is_executable {
                true => HookFile::Hook(name, Declaration::Executable),
                false => no_hook("not executable"),
            };
        };
        match read_text(path, DECLARATION, DECLARATION_BYTES_MAX) {
            Ok(content) => HookFile::Hook(name, Declaration::Declarative { syntax, content }),
            Err(why) => {
                self.problem(Problem::new(path, why.to_string()));
                HookFile::Reported
            }
        }
    }

    /// Whether a file or folder may be read. If a repository's link led outside, its target could change
    /// without consent, or be a file that was never meant as a hook.
    fn may_enter(&self, origin: HookOrigin, path: &Path) -> bool {
        let inside = |root: &PathBuf| path.canonicalize().is_ok_and(|real| real.starts_with(root));
        !origin.is_repository() || self.repository.as_ref().is_some_and(inside)
    }

    /// The entries of a folder, sorted by name. A missing folder is empty.
    fn children(&mut self, folder: &Path) -> Vec<PathBuf> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                let message = format!("this folder of hooks cannot be read: {error}");
                self.problem(Problem::new(folder, message));
                return Vec::new();
            }
        };
        let mut paths: Vec<PathBuf> =
            entries.flatten().take(self.entries).map(|entry| entry.path()).collect();
        self.entries -= paths.len();
        if self.entries == 0 {
            self.skip(
                folder.to_path_buf(),
                format!("more than {ENTRIES_MAX} files; the rest is not looked at"),
            );
        }
        paths.sort();
        paths
    }
}

/// Whether this is a settings file of the user that disables the hooks of all settings files.
pub(super) fn switches_settings_off(source: &HookSource) -> bool {
    let of_user = source.form == SourceForm::Settings && source.origin == HookOrigin::User;
    of_user
        && read_text(&source.path, DECLARATION, DECLARATION_BYTES_MAX)
            .is_ok_and(|text| claude::disables_all(&text))
}

/// Suffixes of files that are not hooks, with the reason.
const NOT_HOOKS: [(&str, &str); 5] = [
    ("~", "a backup"),
    (".bak", "a backup"),
    (".disable", "switched off by its name"),
    (".md", "a text file"),
    (".txt", "a text file"),
];

/// Why a file with this name is not a hook.
fn not_by_name(name: &str) -> Option<&'static str> {
    if name.starts_with('.') {
        return Some("a hidden file");
    }
    NOT_HOOKS.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, reason)| reason)
}

fn syntax_of(name: &str) -> Option<ManifestSyntax> {
    match Path::new(name).extension()?.to_str()? {
        "yaml" | "yml" => Some(ManifestSyntax::Yaml),
        "json" => Some(ManifestSyntax::Json),
        _ => None,
    }
}
