//! Reads MCP servers from the files of other agents: `~/.claude.json` (Claude Code, "Model Context Protocol" in its
//! documentation) and `~/.codex/config.toml` (Codex, `docs/config.md` of its repository). Pure.

use std::path::Path;

use serde_json::{Map, Value};

use crate::config::{McpServer, McpSource, McpTransport};

/// The servers of a file, and sentences about those that can't be imported.
#[derive(Debug, Default)]
pub struct ImportedServers {
    pub servers: Vec<McpServer>,
    pub skipped: Vec<String>,
}

impl ImportedServers {
    fn add_all(
        &mut self,
        table: &Map<String, Value>,
        read: impl Fn(&Map<String, Value>) -> Option<McpTransport>,
    ) {
        for (name, fields) in table {
            let fields = fields.as_object();
            let is_usable = !name.trim().is_empty() && !name.chars().any(char::is_control);
            match fields.filter(|_| is_usable).and_then(&read) {
                Some(way) => {
                    let mut server = McpServer::new(name.clone(), McpSource::Person, way);
                    let is = |key: &str, value: bool| fields.and_then(|fields| fields.get(key)) == Some(&value.into());
                    server.enabled = !is("disabled", true) && !is("enabled", false);
                    self.servers.push(server);
                }
                None => self.skipped.push(format!(
                    "{name:?} is neither a process nor a server with streamable HTTP in a form that Epitome knows"
                )),
            }
        }
    }
}

/// Reads the servers of `~/.claude.json`: the user's global servers, and the user's servers for this project.
pub fn from_claude(text: &str, project: &Path) -> Result<ImportedServers, String> {
    let whole: Value = serde_json::from_str(text).map_err(|_| "it is not valid JSON".to_owned())?;
    let of_project =
        whole.get("projects").and_then(|projects| projects.get(project.to_string_lossy().as_ref()));
    let mut imported = ImportedServers::default();
    for owner in [Some(&whole), of_project].into_iter().flatten() {
        if let Some(table) = owner.get("mcpServers").and_then(Value::as_object) {
            imported.add_all(table, |fields| {
                let kind = text_in(fields, "type").unwrap_or_default();
                match (text_in(fields, "command"), text_in(fields, "url")) {
                    (Some(command), None) => process(fields, command),
                    (None, Some(url)) if kind != "sse" => Some(McpTransport::Http {
                        url,
                        headers: pairs(fields, "headers")?,
                        key_variable: None,
                    }),
                    _ => None,
                }
            });
        }
    }
    Ok(imported)
}

/// Reads the servers of Codex's `config.toml`.
pub fn from_codex(text: &str) -> Result<ImportedServers, String> {
    let table: toml::Table = toml::from_str(text).map_err(|_| "it is not valid TOML".to_owned())?;
    let whole = serde_json::to_value(table).map_err(|_| "it cannot be read".to_owned())?;
    let mut imported = ImportedServers::default();
    if let Some(table) = whole.get("mcp_servers").and_then(Value::as_object) {
        imported.add_all(table, |fields| match (text_in(fields, "command"), text_in(fields, "url")) {
            (Some(command), None) => process(fields, command),
            (None, Some(url)) => Some(McpTransport::Http {
                url,
                headers: pairs(fields, "http_headers")?,
                key_variable: text_in(fields, "bearer_token_env_var"),
            }),
            _ => None,
        });
    }
    Ok(imported)
}

fn process(fields: &Map<String, Value>, command: String) -> Option<McpTransport> {
    let args = match fields.get("args") {
        Some(args) => serde_json::from_value(args.clone()).ok()?,
        None => Vec::new(),
    };
    Some(McpTransport::Stdio { command, args, env: pairs(fields, "env")? })
}

fn text_in(fields: &Map<String, Value>, key: &str) -> Option<String> {
    fields.get(key).and_then(Value::as_str).map(str::to_owned)
}

fn pairs(fields: &Map<String, Value>, key: &str) -> Option<Vec<(String, String)>> {
    let Some(map) = fields.get(key) else { return Some(Vec::new()) };
    map.as_object()?.iter().map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(imported: &ImportedServers) -> Vec<&str> {
        imported.servers.iter().map(|server| server.name.as_str()).collect()
    }

    #[test]
    fn servers_of_other_agents_are_read() {
        let claude = r#"{"mcpServers": {
            "files": {"type": "stdio", "command": "npx", "args": ["-y", "files"], "env": {"A": "${A}"}},
            "old": {"type": "sse", "url": "https://old.example/sse"}},
          "projects": {"/w": {"mcpServers": {"docs": {"type": "http", "url": "https://docs.example/mcp"}}},
                       "/other": {"mcpServers": {"not": {"command": "x"}}}}}"#;
        let imported = from_claude(claude, Path::new("/w")).expect("valid JSON");
        assert_eq!(names(&imported), ["files", "docs"]);
        assert!(
            imported.skipped.len() == 1 && imported.skipped[0].contains("\"old\""),
            "{:?}",
            imported.skipped
        );

        let codex = "[mcp_servers.git]\ncommand = \"uvx\"\nargs = [\"mcp-server-git\"]\nenabled = false\n\
                     [mcp_servers.net]\nurl = \"https://net.example/mcp\"\nbearer_token_env_var = \"NET_KEY\"\n";
        let imported = from_codex(codex).expect("valid TOML");
        assert_eq!(names(&imported), ["git", "net"]);
        assert!(!imported.servers[0].enabled);
        assert!(matches!(
            &imported.servers[1].way,
            McpTransport::Http { key_variable: Some(name), .. } if name == "NET_KEY"
        ));
        assert!(from_codex("not = ").is_err() && from_claude("{", Path::new("/")).is_err());
    }
}
