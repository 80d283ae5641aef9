//! `.mcp.json`: MCP servers in the format that several agents read from a project's root. Always treated as a
//! repository's file: its servers run only after the user has allowed them.
//!
//! Variables are expanded when a server is started, so that consent covers the text of the file.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::mcp::{MCP_SERVERS_MAX, McpServer, McpSource, McpTransport, named};
use super::values::ValueError;
use epitome_thread::problem::Problem;

/// Name of the file in the session's directory.
pub const MCP_JSON: &str = ".mcp.json";

/// Appends the servers of a file to `servers`; on a name clash the existing server wins. Returns the problems.
pub(super) fn read(path: &Path, text: &str, servers: &mut Vec<McpServer>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut problem = |message: String, hint: Option<String>| {
        problems.push(Problem { hint, ..Problem::new(path, message) });
    };
    let whole: Value = match serde_json::from_str(text) {
        Ok(whole) => whole,
        Err(error) => {
            let position = Some((error.line() as u64, error.column() as u64));
            let message = "not valid JSON".to_owned();
            return vec![Problem { position, ..Problem::new(path, message) }];
        }
    };
    let Some(named_servers) = whole.get("mcpServers").and_then(Value::as_object) else {
        problem("there is no object \"mcpServers\" in it".to_owned(), None);
        return problems;
    };
    for (name, fields) in named_servers.iter().take(MCP_SERVERS_MAX) {
        match server(path, name, fields) {
            Ok(server) if servers.iter().any(|other| other.name == server.name) => {
                let hint = "the other one is used; give this one another name";
                problem(format!("there is an MCP server {name:?} already"), Some(hint.to_owned()));
            }
            Ok(server) => servers.push(server),
            Err(ValueError { message, hint }) => problem(message, hint),
        }
    }
    if named_servers.len() > MCP_SERVERS_MAX {
        problem(format!("only the first {MCP_SERVERS_MAX} MCP servers of a file are used"), None);
    }
    problems
}

fn server(path: &Path, name: &str, fields: &Value) -> Result<McpServer, ValueError> {
    named(name)?;
    let wrong = |what: &str| {
        let hint = "a process has \"command\", \"args\", \"env\"; a server on the network \"type\": \"http\", \"url\", \"headers\"";
        ValueError::new(format!("the MCP server {name:?} {what}")).hint(hint)
    };
    let fields = fields.as_object().ok_or_else(|| wrong("is no object"))?;
    let text = |key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
    let kind = text("type").or_else(|| text("transport"));
    let way = match (text("command"), text("url"), kind.as_deref()) {
        (Some(command), None, None | Some("stdio")) => {
            let args = fields.get("args").map_or(Ok(Vec::new()), |args| {
                serde_json::from_value(args.clone())
                    .map_err(|_| wrong("has \"args\" that are not a list of texts"))
            })?;
            McpTransport::Stdio {
                command,
                args,
                env: pairs(fields, "env").map_err(|()| wrong("has a wrong \"env\""))?,
            }
        }
        (None, Some(url), None | Some("http" | "streamable-http" | "sse")) => {
            let headers = pairs(fields, "headers").map_err(|()| wrong("has wrong \"headers\""))?;
            McpTransport::Http { url, headers, key_variable: None }
        }
        _ => return Err(wrong("is neither a process nor a server on the network")),
    };
    let from = McpSource::Repository { file: PathBuf::from(path), digest: String::new() };
    let mut server = McpServer::new(name.to_owned(), from, way);
    server.enabled = fields.get("disabled") != Some(&Value::Bool(true));
    server.directory = text("cwd").map(PathBuf::from);
    Ok(server)
}

fn pairs(fields: &Map<String, Value>, key: &str) -> Result<Vec<(String, String)>, ()> {
    let Some(map) = fields.get(key) else { return Ok(Vec::new()) };
    let map = map.as_object().ok_or(())?;
    map.iter().map(|(name, value)| Ok((name.clone(), value.as_str().ok_or(())?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stdio_and_http_servers_are_read_and_others_reported() {
        let text = r#"{"mcpServers": {
            "files": {"command": "npx", "args": ["-y", "server"], "env": {"KEY": "${KEY}"}, "cwd": "lib"},
            "issues": {"type": "http", "url": "https://mcp.example/mcp", "headers": {"X": "1"}},
            "old": {"type": "sse", "url": "https://mcp.example/sse"},
            "both": {"command": "x", "url": "https://x"},
            "mine": {"command": "y"}
        }}"#;
        let mine = McpTransport::Stdio { command: "mine".into(), args: Vec::new(), env: Vec::new() };
        let mut servers = vec![McpServer::new("mine".into(), McpSource::Person, mine)];
        let problems = read(Path::new("/w/.mcp.json"), text, &mut servers);
        let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
        assert_eq!(names, ["mine", "files", "issues", "old"]);
        assert_eq!(servers[1].directory, Some("lib".into()));
        assert!(matches!(&servers[0].way, McpTransport::Stdio { command, .. } if command == "mine"));
        assert!(matches!(servers[1].from, McpSource::Repository { .. }));
        assert_eq!(problems.len(), 2, "{problems:?}");
    }

    #[test]
    fn invalid_json_is_reported_with_its_position() {
        let problems = read(Path::new("/w/.mcp.json"), "{\n nonsense", &mut Vec::new());
        assert_eq!(problems[0].position, Some((2, 2)));
    }
}
