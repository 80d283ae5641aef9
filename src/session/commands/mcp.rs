//! `/mcp`: a session's servers, how they stand and what tools they have. Pure.

use std::fmt::Write as _;

use epitome_config::{McpSource, McpTransport, origin};
use epitome_mcp::{ServerState, ServerStatus};

/// Tools of one server that are listed by name; of more it says how many.
const TOOLS_SHOWN_MAX: usize = 40;

/// `waiting` are servers of the repository's that nobody has allowed or refused, each in words.
pub(super) fn text(statuses: &[ServerStatus], waiting: &[String]) -> String {
    if statuses.is_empty() && waiting.is_empty() {
        return "No MCP server is configured. A table [mcp.servers.NAME] in config.toml adds one, and so does the \
                editor."
            .to_owned();
    }
    let mut out = String::new();
    for ServerStatus { spec, state, remarks } in statuses {
        let of = match &spec.from {
            McpSource::Client => "of the editor",
            McpSource::Person => "yours",
            McpSource::Repository { .. } => "of the repository, allowed",
        };
        let way = match &spec.way {
            McpTransport::Stdio { command, .. } => command.clone(),
            McpTransport::Http { url, .. } => origin(url),
        };
        let _ = write!(out, "- **{}** ({of}; {way}): ", spec.name);
        let _ = match state {
            ServerState::Connecting => writeln!(out, "is being connected"),
            ServerState::Gone(why) => writeln!(out, "not connected: {why}"),
            ServerState::Ready(tools) => {
                let shown: Vec<&str> = tools.iter().take(TOOLS_SHOWN_MAX).map(String::as_str).collect();
                let more = tools.len().saturating_sub(TOOLS_SHOWN_MAX);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                writeln!(out, "connected, {} tools: {}{more}", tools.len(), shown.join(", "))
            }
        };
        for remark in remarks {
            let _ = writeln!(out, "  - {remark}");
        }
    }
    if !waiting.is_empty() {
        out.push_str("\nNot allowed, and not running:\n");
        for what in waiting {
            let _ = writeln!(out, "- {what}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_config::McpServer;

    #[test]
    fn each_server_is_told_with_how_it_stands() {
        let server = |name: &str, state| ServerStatus {
            spec: McpServer::new(
                name.to_owned(),
                McpSource::Person,
                McpTransport::Http {
                    url: "https://mcp.example/sk-secret".to_owned(),
                    headers: Vec::new(),
                    key_variable: None,
                },
            ),
            state,
            remarks: Vec::new(),
        };
        let tools = (0..50).map(|number| format!("mcp__a__{number}")).collect();
        let text = text(
            &[server("a", ServerState::Ready(tools)), server("b", ServerState::Gone("it ended".to_owned()))],
            &["the MCP server c: runs \"c\"".to_owned()],
        );
        assert!(
            text.contains("**a** (yours; https://mcp.example): connected, 50 tools: mcp__a__0,"),
            "{text}"
        );
        assert!(
            text.contains("and 10 more") && text.contains("**b**") && text.contains("it ended"),
            "{text}"
        );
        assert!(text.contains("the MCP server c") && !text.contains("sk-secret"), "{text}");
    }
}
