//! The plugins that are found for given files in a repository and a home directory.

use std::fs;

use super::*;

struct PluginDisk {
    root: tempfile::TempDir,
}

impl PluginDisk {
    fn with(files: &[(&str, &str)]) -> PluginDisk {
        let disk = PluginDisk { root: tempfile::tempdir().expect("a temporary directory can be made") };
        fs::create_dir_all(disk.at("repo")).expect("directories can be made");
        for (path, text) in files {
            let path = disk.at(path);
            fs::create_dir_all(path.parent().expect("test paths have a folder"))
                .expect("directories can be made");
            fs::write(path, text.replace("ROOT", &disk.root.path().display().to_string()))
                .expect("files can be written");
        }
        disk
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn load(&self) -> PluginCatalog {
        let home = self.at("home");
        let paths = Paths { user_home: Some(home.clone()), ..Paths::below(&home.join(".epitome")) };
        PluginCatalog::load(&self.at("repo"), &paths)
    }
}

const LIST: &str = r#"{"version": 2, "plugins": {"fmt@acme": [{"scope": "user", "installPath": "ROOT/home/.claude/plugins/cache/acme/fmt/1.0", "version": "1.0"}]}}"#;
const ENABLED: &str = r#"{"enabledPlugins": {"fmt@acme": true}}"#;

fn fmt(path: &str) -> String {
    format!("home/.claude/plugins/cache/acme/fmt/1.0/{path}")
}

#[test]
fn an_enabled_plugin_of_claude_code_is_found_with_all_that_it_brings() {
    let disk = PluginDisk::with(&[
        ("home/.claude/plugins/installed_plugins.json", LIST),
        ("home/.claude/settings.json", ENABLED),
        (
            &fmt(".claude-plugin/plugin.json"),
            r#"{"name": "fmt", "description": "Formats", "agents": "./team"}"#,
        ),
        (&fmt("commands/run.md"), "Run."),
        (&fmt("team/one.md"), "---\ndescription: d\n---\n"),
        (&fmt("skills/style/SKILL.md"), "Style."),
        (&fmt("hooks/hooks.json"), r#"{"hooks": {}}"#),
        (&fmt(".mcp.json"), r#"{"mcpServers": {"docs": {"command": "docs"}}}"#),
    ]);
    let found = disk.load();
    let [plugin] = &found.plugins[..] else { panic!("{found:?}") };
    let at = |path: &str| vec![disk.at(&fmt(path))];
    assert_eq!((plugin.name.as_str(), plugin.version.as_deref()), ("fmt", Some("1.0")));
    assert_eq!((&plugin.commands, &plugin.skills), (&at("commands"), &at("skills")));
    assert_eq!((&plugin.agents, &plugin.hooks), (&at("team"), &at("hooks/hooks.json")));
    assert_eq!(plugin.servers.keys().collect::<Vec<_>>(), ["docs"]);
    assert!(plugin.folders.data.ends_with(".claude/plugins/data/fmt-acme"));
    assert_eq!((&found.problems, &found.unused), (&vec![], &vec![]));
}

#[test]
fn a_plugin_that_is_not_enabled_is_listed_with_the_reason() {
    let disk = PluginDisk::with(&[
        ("home/.claude/plugins/installed_plugins.json", LIST),
        ("repo/.claude/settings.json", ENABLED),
    ]);
    let found = disk.load();
    assert_eq!(found.plugins, []);
    assert_eq!(found.unused[0].reason, "only this project's settings enable it, not yours");
}

#[test]
fn own_plugins_and_those_of_a_repository_are_found_by_their_manifest() {
    let manifest = r#"{"name": "tools"}"#;
    let disk = PluginDisk::with(&[
        ("repo/.epitome/plugins/a/.claude-plugin/plugin.json", manifest),
        ("repo/.epitome/plugins/no-plugin/recipes/x.md", "X."),
        ("home/.epitome/plugins/b/.claude-plugin/plugin.json", manifest),
        ("home/.epitome/plugins/c/.claude-plugin/plugin.json", "{"),
        ("home/.epitome/plugins/d/.claude-plugin/plugin.json", r#"{"skills": "./gone"}"#),
    ]);
    let found = disk.load();
    let names: Vec<_> =
        found.plugins.iter().map(|plugin| (plugin.name.as_str(), plugin.repository.is_some())).collect();
    assert_eq!(names, [("tools", false), ("d", false)]);
    assert!(found.unused[0].reason.contains("has the same name"), "{:?}", found.unused);
    let messages: Vec<String> = found.problems.iter().map(ToString::to_string).collect();
    assert!(messages[0].contains("plugin.json:1:1: the manifest is not a JSON object"), "{messages:?}");
    assert!(messages[1].contains("d/gone: the plugin names this file"), "{messages:?}");
}

/// A repository switched off the hooks with which the user guards calls, without a word: by a plugin of the same name, or
/// by a line in its settings.
#[test]
fn a_repository_can_not_switch_off_the_hooks_of_the_user() {
    let hooks = r#"{"hooks": {}}"#;
    let disk = PluginDisk::with(&[
        ("home/.epitome/plugins/guard/.claude-plugin/plugin.json", r#"{"name": "guard"}"#),
        ("repo/.epitome/plugins/x/.claude-plugin/plugin.json", r#"{"name": "guard"}"#),
        ("home/.claude/plugins/installed_plugins.json", LIST),
        ("home/.claude/settings.json", ENABLED),
        ("repo/.claude/settings.json", r#"{"enabledPlugins": {"fmt@acme": false}}"#),
        (&fmt("hooks/hooks.json"), hooks),
    ]);
    let found = disk.load();
    let names: Vec<_> =
        found.plugins.iter().map(|plugin| (plugin.name.as_str(), plugin.repository.is_some())).collect();
    assert_eq!(names, [("guard", false), ("fmt", false)]);
    let messages: Vec<String> = found.problems.iter().map(ToString::to_string).collect();
    assert!(
        messages[0].contains("switch off your plugin fmt@acme, which stays on: it has hooks"),
        "{messages:?}"
    );
    assert!(messages[1].contains("the repository's plugin \"guard\" is not used"), "{messages:?}");

    // A plugin without hooks guards nothing.
    fs::remove_file(disk.at(&fmt("hooks/hooks.json"))).expect("it is there");
    let found = disk.load();
    assert_eq!(found.plugins.len(), 1);
    assert!(found.unused.iter().any(|unused| unused.reason == installed::OFF_HERE), "{:?}", found.unused);
}

/// A cloned repository must not use a link to make files outside readable.
#[cfg(unix)]
#[test]
fn a_plugin_does_not_lead_out_of_its_repository() {
    let disk =
        PluginDisk::with(&[("elsewhere/.claude-plugin/plugin.json", "{}"), ("repo/.epitome/plugins/x", "")]);
    std::os::unix::fs::symlink(disk.at("elsewhere"), disk.at("repo/.epitome/plugins/out"))
        .expect("links can be made");
    let found = disk.load();
    assert_eq!(found.plugins, []);
    assert!(found.problems[0].message.contains("leads out of the repository"));
}
