//! The locations of hooks, and the paths to watch for changes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::hook::HookOrigin;
use super::trust::TrustStore;
use epitome_files::paths::Paths;
use epitome_recipe::watch::{ExistingFolders, WatchPlan};

/// Maximum plugins watched per plugin folder.
const PLUGINS_MAX: usize = 64;

/// A location of hooks.
pub(super) struct HookSource {
    pub path: PathBuf,
    pub form: SourceForm,
    pub origin: HookOrigin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceForm {
    Folder,
    /// Each subfolder is a plugin with a `hooks` folder; the plugin's name prefixes its hooks.
    Plugins,
    /// A settings file of Claude Code.
    Settings,
}

/// All locations, in order of precedence. `roots` are the session's directory and the root of its repository;
/// `compat` includes kodelet's folders.
pub(super) fn sources(roots: &[PathBuf], paths: &Paths, compat: bool) -> Vec<HookSource> {
    use SourceForm::{Folder, Plugins, Settings};
    let mut sources = Vec::new();
    let mut add = |path: PathBuf, form, origin| sources.push(HookSource { path, form, origin });
    add(paths.policy_hooks(), Folder, HookOrigin::Enforced);
    add(enforced(paths), Folder, HookOrigin::Enforced);
    let own = [(".epitome", true), (".kodelet", compat)].into_iter().filter(|(_, counts)| *counts);
    let own: Vec<&str> = own.map(|(folder, _)| folder).collect();
    for root in roots {
        for (below, form) in [("hooks", Folder), ("plugins", Plugins)] {
            for folder in &own {
                add(root.join(folder).join(below), form, HookOrigin::Repository);
            }
        }
    }
    let kodelet = paths.user_home.as_deref().filter(|_| compat).map(|home| home.join(".kodelet"));
    for (below, form) in [("hooks", Folder), ("plugins", Plugins)] {
        add(paths.home.join(below), form, HookOrigin::User);
        if let Some(kodelet) = &kodelet {
            add(kodelet.join(below), form, HookOrigin::User);
        }
    }
    for root in roots {
        for name in ["settings.json", "settings.local.json"] {
            add(root.join(".claude").join(name), Settings, HookOrigin::Repository);
        }
    }
    if let Some(home) = &paths.user_home {
        add(home.join(".claude/settings.json"), Settings, HookOrigin::User);
    }
    // If the session is in the home directory, its folders are the user's, not a repository's.
    let of_user: BTreeSet<PathBuf> = sources
        .iter()
        .filter(|source| source.origin == HookOrigin::User)
        .map(|source| source.path.clone())
        .collect();
    sources.retain(|source| source.origin != HookOrigin::Repository || !of_user.contains(&source.path));
    sources
}

/// The folder of hooks that no repository may shadow.
pub(super) fn enforced(paths: &Paths) -> PathBuf {
    paths.home.join("hooks/enforced")
}

/// The paths to watch for changes that affect `discover`: the locations, and the user's consent, which another
/// process may update. Blocks on disk I/O.
///
/// Scripts elsewhere that are only named in a settings file are not watched; `unchanged` detects their
/// changes before they run.
pub fn watched(cwd: &Path, paths: &Paths, compat: bool) -> WatchPlan {
    let mut existing = ExistingFolders::default();
    let mut roots: Vec<PathBuf> = Vec::new();
    let mut directories = BTreeSet::new();
    for source in sources(&paths.repository_roots(cwd), paths, compat) {
        directories.extend(existing.nearest(&source.path));
        if source.form == SourceForm::Plugins && existing.contains(&source.path) {
            let plugins = fs::read_dir(&source.path).into_iter().flatten().flatten().take(PLUGINS_MAX);
            let hooks = plugins.filter_map(|plugin| existing.nearest(&plugin.path().join("hooks")));
            directories.extend(hooks.filter(|folder| folder.starts_with(&source.path)));
        }
        roots.push(source.path);
    }
    if let Some(home) = &paths.user_home {
        // The list of Claude Code's plugins.
        let list = home.join(".claude/plugins/installed_plugins.json");
        directories.extend(existing.nearest(&list));
        roots.push(list);
    }
    let consent = TrustStore::file(paths);
    directories.extend(existing.nearest(&consent));
    roots.push(consent);
    WatchPlan { directories, roots }
}
