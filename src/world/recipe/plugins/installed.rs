//! The plugins that other programs have installed and enabled. Pure.
//!
//! Claude Code: `~/.claude/plugins/installed_plugins.json` lists installations by `name@marketplace`; version 1 of
//! the file has one per plugin, version 2 a list with scopes. `enabledPlugins` of the settings files enables and
//! disables them; the project's files override the user's (code.claude.com/docs/en/settings).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// An installed plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Installation {
    /// `name@marketplace`.
    pub id: String,
    pub folder: PathBuf,
    pub version: Option<String>,
    /// The project that it was installed for; `None` if it applies to all projects.
    pub project: Option<PathBuf>,
}

impl Installation {
    /// The plugin's default name, if its manifest has none.
    pub fn name(&self) -> &str {
        self.id.split('@').next().unwrap_or_default()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InstallationEntry {
    install_path: PathBuf,
    version: Option<String>,
    scope: Option<String>,
    project_path: Option<PathBuf>,
}

/// Parses the list. Invalid entries are omitted.
pub(super) fn installations(text: &str) -> Result<Vec<Installation>, serde_json::Error> {
    #[derive(Deserialize)]
    struct InstalledFile {
        #[serde(default)]
        plugins: BTreeMap<String, Value>,
    }
    let file: InstalledFile = serde_json::from_str(text)?;
    let mut all = Vec::new();
    for (id, value) in file.plugins {
        let entries = match value {
            Value::Array(entries) => entries,
            entry => vec![entry],
        };
        for entry in entries {
            let Ok(entry) = serde_json::from_value::<InstallationEntry>(entry) else { continue };
            let is_for_all = entry.scope.as_deref().is_none_or(|scope| matches!(scope, "user" | "managed"));
            let project = entry.project_path.filter(|_| !is_for_all);
            all.push(Installation {
                id: id.clone(),
                folder: entry.install_path,
                version: entry.version,
                project,
            });
        }
    }
    Ok(all)
}

/// `enabledPlugins` of a settings file; empty if it is missing or invalid.
pub(super) fn enabled(settings: &str) -> BTreeMap<String, bool> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct PluginSwitches {
        #[serde(default)]
        enabled_plugins: BTreeMap<String, Value>,
    }
    let read = serde_json::from_str::<PluginSwitches>(settings);
    let switches = read.map(|read| read.enabled_plugins).unwrap_or_default();
    switches.into_iter().filter_map(|(id, value)| Some((id, value.as_bool()?))).collect()
}

/// The reason if the repository's settings disable a plugin.
pub(super) const OFF_HERE: &str = "this project's settings switch it off";

/// Why an installed plugin is not used; `None` if it is.
///
/// A repository may disable a plugin without hooks; the caller checks that. It may enable only plugins that the user
/// installed for it: otherwise a checkout could start programs that the user keeps for other work.
pub(super) fn unused(
    installation: &Installation,
    roots: &[PathBuf],
    of_user: &BTreeMap<String, bool>,
    of_repository: &BTreeMap<String, bool>,
) -> Option<&'static str> {
    let is_here = |project: &Path| roots.iter().any(|root| root == project);
    match (&installation.project, of_repository.get(&installation.id), of_user.get(&installation.id)) {
        (Some(project), _, _) if !is_here(project) => Some("it is installed for another project"),
        (_, Some(false), _) => Some(OFF_HERE),
        (Some(_), Some(true), _) | (_, None | Some(true), Some(true)) => None,
        (None, Some(true), _) => Some("only this project's settings enable it, not yours"),
        (_, None, Some(false)) => Some("your settings switch it off"),
        (_, None, None) => Some("`enabledPlugins` of the settings doesn't name it"),
    }
}

/// The plugins in Codex's `config.toml` by `name@marketplace`, and whether they are enabled: `[plugins."a@b"]` with
/// `enabled` (developers.openai.com/codex/plugins).
pub(super) fn of_codex(config: &str) -> Result<BTreeMap<String, bool>, toml::de::Error> {
    let table: toml::Table = config.parse()?;
    let plugins = table.get("plugins").and_then(toml::Value::as_table).cloned().unwrap_or_default();
    let is_enabled =
        |fields: &toml::Value| fields.get("enabled").and_then(toml::Value::as_bool).unwrap_or(true);
    Ok(plugins.into_iter().map(|(id, fields)| (id, is_enabled(&fields))).collect())
}

/// Whether Gemini CLI's `extension-enablement.json` disables an extension for a directory. The file lists overrides
/// per extension: directories, with a leading `!` to disable it there, and a trailing `*` to include everything below.
/// The last match wins; without a match, an extension is enabled (`gemini extensions disable --scope`).
pub(super) fn is_extension_off(switches: &str, name: &str, cwd: &Path) -> bool {
    #[derive(Deserialize)]
    struct ExtensionSwitches {
        #[serde(default)]
        overrides: Vec<String>,
    }
    let all: BTreeMap<String, ExtensionSwitches> = serde_json::from_str(switches).unwrap_or_default();
    let cwd = format!("{}/", cwd.display());
    let fits = |rule: &str| match rule.strip_suffix('*') {
        Some(above) => cwd.starts_with(above),
        None => cwd == format!("{}/", rule.trim_end_matches('/')),
    };
    let of_name = all.get(name).map(|all| all.overrides.as_slice()).unwrap_or_default();
    let last = of_name.iter().rfind(|rule| fits(rule.trim_start_matches('!')));
    last.is_some_and(|rule| rule.starts_with('!'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installation(project: Option<&str>) -> Installation {
        Installation {
            id: "fmt@acme".to_owned(),
            folder: "/c/fmt".into(),
            version: None,
            project: project.map(PathBuf::from),
        }
    }

    #[test]
    fn both_versions_of_the_list_are_read() {
        let first = r#"{"version": 1, "plugins": {"fmt@acme": {"installPath": "/c/fmt", "version": "1.0"}}}"#;
        let wanted = Installation { version: Some("1.0".to_owned()), ..installation(None) };
        assert_eq!(installations(first).expect("it is JSON"), [wanted]);
        let second = r#"{"version": 2, "plugins": {"fmt@acme": [
            {"scope": "user", "installPath": "/c/fmt"},
            {"scope": "project", "projectPath": "/w", "installPath": "/c/fmt"}, 7]}}"#;
        let wanted = [installation(None), installation(Some("/w"))];
        assert_eq!(installations(second).expect("it is JSON"), wanted);
        assert!(installations("[").is_err());
    }

    /// Each row is the project of the installation, the project's setting, the user's setting, and whether it is used.
    #[test]
    fn a_repository_enables_only_what_was_installed_for_it() {
        let map = |switch: Option<bool>| switch.map(|on| ("fmt@acme".to_owned(), on)).into_iter().collect();
        for (project, of_repository, of_user, is_used) in [
            (None, None, Some(true), true),
            (None, Some(true), Some(true), true),
            (None, Some(true), None, false),
            (None, Some(false), Some(true), false),
            (None, None, Some(false), false),
            (None, None, None, false),
            (Some("/w"), Some(true), None, true),
            (Some("/w"), None, Some(true), true),
            (Some("/other"), Some(true), Some(true), false),
        ] {
            let why = unused(&installation(project), &["/w".into()], &map(of_user), &map(of_repository));
            assert_eq!(why.is_none(), is_used, "{project:?} {of_repository:?} {of_user:?}: {why:?}");
        }
    }

    #[test]
    fn switches_are_read_from_settings_with_other_fields() {
        let read = enabled(r#"{"model": "x", "enabledPlugins": {"a@b": true, "c@d": false, "e@f": ["1"]}}"#);
        assert_eq!(read, [("a@b".to_owned(), true), ("c@d".to_owned(), false)].into());
        assert_eq!(enabled("{"), BTreeMap::new());
    }

    #[test]
    fn plugins_of_codex_are_enabled_in_its_settings() {
        let config = "model = \"x\"\n[plugins.\"a@b\"]\nenabled = false\n[plugins.\"c@d\"]\nenabled = true\n";
        let wanted = [("a@b".to_owned(), false), ("c@d".to_owned(), true)].into();
        assert_eq!(of_codex(config).expect("it is TOML"), wanted);
        assert!(of_codex("model = \"x\"").expect("it is TOML").is_empty());
    }

    #[test]
    fn the_last_override_that_fits_switches_an_extension() {
        for (overrides, is_off) in [
            (r#"[]"#, false),
            (r#"["!/*"]"#, true),
            (r#"["!/*", "/w/app/*"]"#, false),
            (r#"["/w/*", "!/w/app"]"#, true),
            (r#"["!/w/ap"]"#, false),
            (r#"["!/w/app/src/*"]"#, false),
        ] {
            let text = format!(r#"{{"x": {{"overrides": {overrides}}}}}"#);
            assert_eq!(is_extension_off(&text, "x", Path::new("/w/app")), is_off, "{overrides}");
        }
        assert!(!is_extension_off("", "x", Path::new("/w")));
    }
}
