//! Reads MCP servers from the files of other agents: `~/.claude.json` (Claude Code, "Model Context Protocol" in its
//! documentation) and `~/.codex/config.toml` (Codex, the page on its configuration). Pure.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use epitome_config::{McpServer, McpSource, McpTransport};

/// The servers of a file, and sentences about those that can't be imported.
#[derive(Debug, Default)]
pub struct ImportedServers {
    pub servers: Vec<McpServer>,
    pub skipped: Vec<String>,
}

/// A server in the files of Claude Code and Codex.
#[derive(Deserialize)]
struct ForeignServer {
    #[serde(rename = "type")]
    kind: Option<String>,
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    url: Option<String>,
    #[serde(default, alias = "http_headers")]
    headers: BTreeMap<String, String>,
    bearer_token_env_var: Option<String>,
    #[serde(default)]
    disabled: bool,
    enabled: Option<bool>,
}

impl ForeignServer {
    fn named(self, name: &str) -> Option<McpServer> {
        let way = match (self.command, self.url) {
            (Some(command), None) => {
                McpTransport::Stdio { command, args: self.args, env: self.env.into_iter().collect() }
            }
            (None, Some(url)) if self.kind.as_deref() != Some("sse") => McpTransport::Http {
                url,
                headers: self.headers.into_iter().collect(),
                key_variable: self.bearer_token_env_var,
            },
            _ => return None,
        };
        let enabled = !self.disabled && self.enabled.unwrap_or(true);
        Some(McpServer { enabled, ..McpServer::new(name.to_owned(), McpSource::Person, way) })
    }
}

impl ImportedServers {
    fn add_all(&mut self, table: Option<&Value>) {
        for (name, fields) in table.and_then(Value::as_object).into_iter().flatten() {
            let is_usable = !name.trim().is_empty() && !name.chars().any(char::is_control);
            let read = ForeignServer::deserialize(fields).ok().filter(|_| is_usable);
            match read.and_then(|server| server.named(name)) {
                Some(server) => self.servers.push(server),
                None => self.skipped.push(format!(
                    "{name:?} is neither a process nor a server with streamable HTTP in a form that Epitome knows"
                )),
            }
        }
    }
}

/// Reads the servers of `~/.claude.json`: the user's global servers, and the user's servers for this project.
/// `None` if it is not valid JSON.
pub fn from_claude(text: &str, project: &Path) -> Option<ImportedServers> {
    let whole: Value = serde_json::from_str(text).ok()?;
    let mut imported = ImportedServers::default();
    imported.add_all(whole.get("mcpServers"));
    let of_project = whole.get("projects").and_then(|projects| projects.get(&*project.to_string_lossy()));
    imported.add_all(of_project.and_then(|of_project| of_project.get("mcpServers")));
    Some(imported)
}

/// Reads the servers of Codex's `config.toml`; `None` if it is not valid TOML.
pub fn from_codex(text: &str) -> Option<ImportedServers> {
    let whole: Value = toml::from_str(text).ok()?;
    let mut imported = ImportedServers::default();
    imported.add_all(whole.get("mcp_servers"));
    Some(imported)
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
        assert!(from_codex("not = ").is_none() && from_claude("{", Path::new("/")).is_none());
    }
}
