//! MCP servers of installed plugins. Those of the user's plugins are treated as the user's; those of a repository's
//! plugins run only after the user has allowed them.

use std::borrow::Cow;
use std::path::Path;

use serde_json::{Value, json};

use super::mcp::{McpServer, McpSource};
use super::mcp_json;
use epitome_files::paths::Paths;
use epitome_recipe::plugins::{Plugin, PluginCatalog, PluginFormat};
use epitome_thread::problem::Problem;

/// Appends the servers of all plugins of a directory, named `plugin_PLUGIN_SERVER` as in Claude Code's tool names.
/// Blocks on disk I/O.
pub(super) fn read(cwd: &Path, paths: &Paths, servers: &mut Vec<McpServer>) -> Vec<Problem> {
    let catalog = PluginCatalog::load(cwd, paths);
    catalog.plugins.iter().flat_map(|plugin| of_plugin(plugin, servers)).collect()
}

/// Appends the servers of one plugin.
pub fn of_plugin(plugin: &Plugin, servers: &mut Vec<McpServer>) -> Vec<Problem> {
    if plugin.servers.is_empty() {
        return Vec::new();
    }
    let named = plugin.servers.iter().map(|(name, server)| {
        let server = in_folder(as_claude_code(with_folders(server, plugin), plugin.format), plugin);
        (format!("plugin_{}_{name}", plugin.name), server)
    });
    let text = json!({"mcpServers": named.collect::<serde_json::Map<_, _>>()}).to_string();
    let first = servers.len();
    let problems = mcp_json::read(&plugin.manifest_path(), &text, servers);
    if plugin.repository.is_none() {
        servers[first..].iter_mut().for_each(|server| server.from = McpSource::Person);
    }
    problems
}

/// Converts a server to Claude Code's format. Gemini CLI distinguishes the two transports by the address field:
/// `httpUrl`, and `url` for the older one.
fn as_claude_code(mut server: Value, format: PluginFormat) -> Value {
    if let Some(fields) = server.as_object_mut().filter(|_| format == PluginFormat::Gemini)
        && let Some(url) = fields.remove("httpUrl")
    {
        fields.insert("url".to_owned(), url);
    }
    server
}

/// Resolves the server's directory relative to the plugin's directory.
fn in_folder(mut server: Value, plugin: &Plugin) -> Value {
    if let Some(directory) = server.get_mut("cwd").filter(|directory| directory.is_string()) {
        let below = Path::new(directory.as_str().unwrap_or_default());
        *directory = plugin.folders.root.join(below).to_string_lossy().into();
    }
    server
}

/// Replaces the variables for the plugin's directories, in the spelling of each format.
fn with_folders(value: &Value, plugin: &Plugin) -> Value {
    match value {
        Value::String(text) => {
            let root = plugin.folders.root.to_string_lossy();
            let data = plugin.folders.data.to_string_lossy();
            let names = match plugin.format {
                PluginFormat::ClaudeCode => [("CLAUDE_PLUGIN_ROOT", &root), ("CLAUDE_PLUGIN_DATA", &data)],
                PluginFormat::Codex => [("PLUGIN_ROOT", &root), ("PLUGIN_DATA", &data)],
                PluginFormat::Gemini => [("extensionPath", &root), ("/", &"/".into())],
            };
            let replace = |text: String, (name, value): (&str, &Cow<'_, str>)| {
                text.replace(&format!("${{{name}}}"), value)
            };
            names.into_iter().fold(text.clone(), replace).into()
        }
        Value::Array(items) => items.iter().map(|item| with_folders(item, plugin)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), with_folders(value, plugin))).collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::McpTransport;

    #[test]
    fn servers_of_the_users_plugins_are_the_users_own() {
        let home = tempfile::tempdir().expect("a folder");
        let root = home.path().join("plugins/docs");
        std::fs::create_dir_all(root.join(".claude-plugin")).expect("a folder");
        std::fs::write(root.join(PluginFormat::ClaudeCode.manifest()), r#"{"name": "docs"}"#)
            .expect("a file");
        let servers =
            r#"{"find": {"command": "${CLAUDE_PLUGIN_ROOT}/serve", "args": ["${HOME}"]}, "old": 7}"#;
        std::fs::write(root.join(".mcp.json"), servers).expect("a file");
        let mut found = Vec::new();
        let problems = read(home.path(), &Paths::below(home.path()), &mut found);
        let [server] = &found[..] else { panic!("{found:?}") };
        assert_eq!((server.name.as_str(), &server.from), ("plugin_docs_find", &McpSource::Person));
        let McpTransport::Stdio { command, args, .. } = &server.way else { panic!("{server:?}") };
        assert_eq!((Path::new(command), args), (root.join("serve").as_path(), &vec!["${HOME}".to_owned()]));
        assert!(problems.len() == 1 && problems[0].message.contains("plugin_docs_old"), "{problems:?}");
    }
}
