//! Parses the manifest of a plugin. Pure, except for [`PluginFormat::of`].
//!
//! | format | rules |
//! | --- | --- |
//! | Claude Code's plugins | code.claude.com/docs/en/plugins-reference |
//! | Codex's plugins, whose manifest has the same fields | developers.openai.com/codex/plugins/build |
//! | Gemini CLI's extensions | geminicli.com/docs/extensions/reference |
//!
//! Paths are relative to the plugin's folder. The paths in a manifest are read in addition to the default folders
//! (`commands/`, `agents/`, `skills/`, `hooks/hooks.json`, `.mcp.json`), unless a marketplace entry with
//! `strict: false` replaces the manifest.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::fields::{self, RecipeField};
use epitome_thread::problem::Problem;

/// The program that a plugin was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginFormat {
    ClaudeCode,
    Codex,
    Gemini,
}

impl PluginFormat {
    /// The order of precedence in a folder with several manifests.
    const ALL: [PluginFormat; 3] = [PluginFormat::ClaudeCode, PluginFormat::Codex, PluginFormat::Gemini];

    /// The path of the manifest below the plugin's folder.
    pub fn manifest(self) -> &'static str {
        match self {
            PluginFormat::ClaudeCode => ".claude-plugin/plugin.json",
            PluginFormat::Codex => ".codex-plugin/plugin.json",
            PluginFormat::Gemini => "gemini-extension.json",
        }
    }

    /// The format of the manifest in a folder; `None` if it has none. Looks at the disk.
    pub fn of(root: &Path) -> Option<PluginFormat> {
        PluginFormat::ALL.into_iter().find(|format| root.join(format.manifest()).is_file())
    }
}

/// The contents of a manifest; empty for a plugin without one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PluginManifest {
    pub name: Option<String>,
    pub version: Option<String>,
    pub description: String,
    pub commands: Vec<PathBuf>,
    pub agents: Vec<PathBuf>,
    pub skills: Vec<PathBuf>,
    pub hooks: Vec<PathBuf>,
    /// Whether the manifest itself contains hooks.
    pub has_hooks: bool,
    pub server_files: Vec<PathBuf>,
    pub servers: BTreeMap<String, Value>,
    /// Files with instructions.
    pub context: Vec<PathBuf>,
    /// Only paths named by the manifest apply, not the default folders.
    pub is_complete: bool,
}

/// Parses a manifest; remarks report values that are not used.
pub(super) fn parse(text: &str, path: &Path) -> Result<(PluginManifest, Vec<Problem>), Problem> {
    let fields = fields::from_json(text, path, "the manifest")?;
    let mut manifest = PluginManifest::default();
    let mut remarks = Vec::new();
    for (name, RecipeField { value, position }) in &fields {
        if let Err(why) = set(&mut manifest, name, value) {
            let message = format!("{name:?} of the plugin is not used: {why}");
            remarks.push(Problem::new(path, message).at(*position));
        }
    }
    Ok((manifest, remarks))
}

fn set(manifest: &mut PluginManifest, name: &str, value: &Value) -> Result<(), String> {
    match name {
        "name" => {
            let name = fields::text(value).ok().filter(|name| is_name(name));
            manifest.name = Some(name.ok_or("it must be a name of letters, digits, - and _")?);
        }
        "version" => manifest.version = fields::text(value).ok(),
        "description" => manifest.description = fields::text(value).unwrap_or_default(),
        "commands" => manifest.commands = paths(value)?,
        "agents" => manifest.agents = paths(value)?,
        "skills" => manifest.skills = paths(value)?,
        "hooks" if value.is_object() => manifest.has_hooks = true,
        "hooks" => manifest.hooks = paths(value)?,
        "contextFileName" => manifest.context = paths(value)?,
        "strict" => manifest.is_complete = value == &Value::Bool(false),
        "mcpServers" => match value {
            Value::Object(servers) => manifest.servers = servers.clone().into_iter().collect(),
            value => manifest.server_files = paths(value)?,
        },
        _ => {}
    }
    Ok(())
}

/// Whether a name is valid for a plugin: it becomes part of command names.
pub(super) fn is_name(name: &str) -> bool {
    const NAME_BYTES_MAX: usize = 64;
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.starts_with(char::is_alphanumeric) && name.len() <= NAME_BYTES_MAX && name.chars().all(is_part)
}

/// A path, a list of paths, or a map from names to `{"source": path}`.
fn paths(value: &Value) -> Result<Vec<PathBuf>, String> {
    let items: Vec<&Value> = match value {
        Value::String(_) => vec![value],
        Value::Array(items) => items.iter().collect(),
        Value::Object(named) => named.values().filter_map(|entry| entry.get("source")).collect(),
        _ => return Err("it must be a path or a list of paths".to_owned()),
    };
    items.into_iter().map(|item| path(item.as_str().ok_or("it must be a path or a list of paths")?)).collect()
}

fn path(text: &str) -> Result<PathBuf, String> {
    // Gemini's variable for the path separator.
    let text = &text.replace("${/}", "/");
    below(text).ok_or_else(|| format!("{text:?} is not a path below the plugin's folder"))
}

/// A path below a folder, without a leading dot; `None` if it leads out of the folder.
pub(super) fn below(path: &str) -> Option<PathBuf> {
    let parts = Path::new(path).components().filter(|part| *part != Component::CurDir);
    parts.map(|part| matches!(part, Component::Normal(_)).then_some(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (PluginManifest, Vec<String>) {
        let (manifest, remarks) = parse(text, Path::new("/p/plugin.json")).expect("it is JSON");
        (manifest, remarks.into_iter().map(|remark| remark.to_string()).collect())
    }

    #[test]
    fn components_are_paths_in_every_documented_form() {
        let (manifest, remarks) = read(
            r#"{"name": "deploy", "version": "1.2", "description": "D", "author": {"name": "a"},
                "commands": ["./extra/a.md", "./more/"], "agents": "./team",
                "skills": "./", "hooks": {"Stop": []}, "mcpServers": "./servers.json"}"#,
        );
        assert_eq!(remarks, Vec::<String>::new());
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(manifest.name.as_deref(), Some("deploy"));
        assert_eq!(manifest.commands, paths(&["extra/a.md", "more"]));
        assert_eq!((manifest.agents, manifest.skills), (paths(&["team"]), paths(&[""])));
        assert_eq!((manifest.has_hooks, manifest.server_files), (true, paths(&["servers.json"])));
        let (manifest, _) = read(r#"{"name": "g", "contextFileName": ["a${/}G.md"], "strict": false}"#);
        assert_eq!((manifest.context, manifest.is_complete), (paths(&["a/G.md"]), true));
        let (manifest, _) = read(r#"{"commands": {"ship": {"source": "./ship.md"}}, "hooks": ["./h.json"]}"#);
        assert_eq!((manifest.commands, manifest.hooks), (paths(&["ship.md"]), paths(&["h.json"])));
    }

    #[test]
    fn values_that_are_not_used_are_remarked_with_their_position() {
        let (manifest, remarks) = read("{\n \"name\": \"a b\",\n \"commands\": \"../out\", \"skills\": 7}");
        assert_eq!(manifest, PluginManifest::default());
        assert_eq!(remarks.len(), 3, "{remarks:?}");
        assert!(remarks[0].contains("plugin.json:3:14: \"commands\"") && remarks[0].contains("\"../out\""));
        assert!(remarks[1].contains("2:10: \"name\""), "{remarks:?}");
        assert!(parse("{", Path::new("/p")).is_err());
        for (name, is_good) in [("a-b.c_1", true), ("..", false), ("", false), ("a/b", false), ("-a", false)]
        {
            assert_eq!(is_name(name), is_good, "{name}");
        }
    }
}
