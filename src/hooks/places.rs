//! Where hooks can be, and what to watch to learn that they changed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::hook::Place;
use super::trust::Trust;
use epitome_files::paths::Paths;
use epitome_recipe::watch::WatchPlan;

/// Plugins whose folders are watched for each place of plugins.
const PLUGINS_MAX: usize = 64;

/// A place where hooks can be.
pub(super) struct Source {
    pub path: PathBuf,
    pub form: SourceForm,
    pub place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceForm {
    Folder,
    /// Each folder is a plugin with a `hooks` folder; its name prefixes theirs.
    Plugins,
    /// A settings file of Claude Code.
    Settings,
}

/// All places, earlier ones first. `roots` are the session's directory and the root of its repository;
/// `compat` says whether kodelet's count.
pub(super) fn sources(roots: &[PathBuf], paths: &Paths, compat: bool) -> Vec<Source> {
    use SourceForm::{Folder, Plugins, Settings};
    let mut sources = Vec::new();
    let mut add = |path: PathBuf, form, place| sources.push(Source { path, form, place });
    add(enforced(paths), Folder, Place::Enforced);
    let own = [(".epitome", true), (".kodelet", compat)].into_iter().filter(|(_, counts)| *counts);
    let own: Vec<&str> = own.map(|(folder, _)| folder).collect();
    for root in roots {
        for (below, form) in [("hooks", Folder), ("plugins", Plugins)] {
            for folder in &own {
                add(root.join(folder).join(below), form, Place::Repository);
            }
        }
    }
    let kodelet = paths.user_home.as_deref().filter(|_| compat).map(|home| home.join(".kodelet"));
    for (below, form) in [("hooks", Folder), ("plugins", Plugins)] {
        add(paths.home.join(below), form, Place::Person);
        if let Some(kodelet) = &kodelet {
            add(kodelet.join(below), form, Place::Person);
        }
    }
    for root in roots {
        for name in ["settings.json", "settings.local.json"] {
            add(root.join(".claude").join(name), Settings, Place::Repository);
        }
    }
    if let Some(home) = &paths.user_home {
        add(home.join(".claude/settings.json"), Settings, Place::Person);
    }
    // A session in the home directory: its folders are the person's, not a repository's.
    let of_person: BTreeSet<PathBuf> = sources
        .iter()
        .filter(|source| source.place == Place::Person)
        .map(|source| source.path.clone())
        .collect();
    sources.retain(|source| source.place != Place::Repository || !of_person.contains(&source.path));
    sources
}

/// Where the hooks are that no repository may shadow.
pub(super) fn enforced(paths: &Paths) -> PathBuf {
    paths.home.join("hooks/enforced")
}

/// What to watch to learn that `discover` would give something else: the places, and the person's
/// consent, which may be given in another process. Blocks on the disk.
///
/// Scripts that stand elsewhere and are only named in a settings file are not watched; `unchanged` sees
/// that they changed before they run.
pub fn watched(cwd: &Path, paths: &Paths, compat: bool) -> WatchPlan {
    let existing = |path: &Path| path.ancestors().find(|folder| folder.is_dir()).map(Path::to_path_buf);
    let mut places: Vec<PathBuf> = Vec::new();
    let mut directories = BTreeSet::new();
    for source in sources(&paths.repository_roots(cwd), paths, compat) {
        directories.extend(existing(&source.path));
        if source.form == SourceForm::Plugins {
            let plugins = fs::read_dir(&source.path).into_iter().flatten().flatten().take(PLUGINS_MAX);
            let hooks = plugins.filter_map(|plugin| existing(&plugin.path().join("hooks")));
            directories.extend(hooks.filter(|folder| folder.starts_with(&source.path)));
        }
        places.push(source.path);
    }
    let consent = Trust::file(paths);
    directories.extend(existing(&consent));
    places.push(consent);
    WatchPlan { directories: directories.into_iter().collect(), places }
}
