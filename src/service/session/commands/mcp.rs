//! `/mcp`: shows a session's MCP servers with their states and tools, and controls one of them.

use std::fmt::Write as _;

use super::why::{counted, more};
use crate::core::Core;
use crate::mcp::McpHost;
use epitome_config::McpSource;
use epitome_mcp::{ServerCommand, ServerState, ServerStatus, tokens};

/// Tools of a server listed by name; the rest are counted.
const TOOLS_SHOWN_MAX: usize = 100;

/// The commands and their keywords.
const COMMANDS: [(&str, ServerCommand); 5] = [
    ("reconnect", ServerCommand::Reconnect),
    ("login", ServerCommand::LogIn),
    ("logout", ServerCommand::LogOut),
    ("off", ServerCommand::Off),
    ("on", ServerCommand::On),
];

/// The parsed arguments.
#[derive(Debug, PartialEq)]
enum McpArguments<'a> {
    Show,
    Control(ServerCommand, &'a str),
    /// The reason, as a sentence.
    Wrong(String),
}

fn parse<'a>(rest: &'a str, names: &[String]) -> McpArguments<'a> {
    let rest = rest.trim();
    if rest.is_empty() || names.iter().any(|name| name == rest) {
        return McpArguments::Show;
    }
    let (word, name) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    match COMMANDS.iter().find(|(known, _)| *known == word) {
        Some((_, command)) if !name.trim().is_empty() => McpArguments::Control(*command, name.trim()),
        Some(_) => {
            McpArguments::Wrong(format!("`/mcp {word}` needs the name of a server: {}.", listed(names)))
        }
        None => {
            let words: Vec<&str> = COMMANDS.iter().map(|(word, _)| *word).collect();
            McpArguments::Wrong(format!(
                "`/mcp` does not know {rest:?}. It takes the name of a server, or {} and a name. Servers: {}.",
                words.join(", "),
                listed(names)
            ))
        }
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "there are none".to_owned() } else { names.join(", ") }
}

/// Carries out the arguments of `/mcp`; `None` if they only ask for information.
pub(super) fn control_server(core: &mut Core, mcp: &mut McpHost, rest: &str) -> Option<String> {
    let names: Vec<String> = mcp.statuses().into_iter().map(|status| status.spec.name).collect();
    match parse(rest, &names) {
        McpArguments::Show => None,
        McpArguments::Wrong(why) => Some(why),
        McpArguments::Control(command, name) => Some(mcp.control(core, name, command)),
    }
}

/// One line per server. `waiting` describes the repository's servers that the user has neither allowed nor refused.
pub(super) fn text(statuses: &[ServerStatus], waiting: &[String]) -> String {
    if statuses.is_empty() && waiting.is_empty() {
        return "No MCP server is configured. Add one with `epitome mcp add`, in [mcp.servers.NAME] of config.toml, or in the editor."
            .to_owned();
    }
    let mut out = String::new();
    for status in statuses {
        let _ = writeln!(out, "- {}", line(status));
        for remark in &status.remarks {
            let _ = writeln!(out, "  - {remark}");
        }
    }
    if statuses.iter().any(|status| !status.tools.is_empty()) {
        out.push_str("\n`/mcp NAME` lists the tools of one.\n");
    }
    if !waiting.is_empty() {
        out.push_str("\nNot allowed, and not running:\n");
        for what in waiting {
            let _ = writeln!(out, "- {what}");
        }
    }
    out
}

fn line(status: &ServerStatus) -> String {
    let ServerStatus { spec, state, tools, tool_bytes, prompts, has_resources, .. } = status;
    let of = match &spec.from {
        McpSource::Client => "of the editor",
        McpSource::Person => "yours",
        McpSource::Repository { .. } => "of the repository, allowed",
    };
    let way = spec.way.target();
    let state = match state {
        ServerState::Idle => "started when it is used; from earlier:".to_owned(),
        ServerState::Connecting if !tools.is_empty() => "being connected; from earlier:".to_owned(),
        ServerState::Connecting => "being connected".to_owned(),
        ServerState::Gone(why) => format!("not connected: {why}"),
        ServerState::Ready => "connected,".to_owned(),
    };
    let mut line = format!("**{}** ({of}; {way}): {state}", spec.name);
    if !matches!(status.state, ServerState::Gone(_))
        && (!tools.is_empty() || status.state == ServerState::Ready)
    {
        let _ = write!(line, " {} (~{} tokens)", counted(tools.len(), "tool"), tokens(*tool_bytes));
        if *prompts > 0 {
            let _ = write!(line, ", {}", counted(*prompts, "prompt"));
        }
        if *has_resources {
            line.push_str(", resources");
        }
    }
    line
}

/// One server with its tools and the newest messages of its log.
pub(super) fn detailed_text(status: &ServerStatus) -> String {
    let mut out = format!("{}\n", line(status));
    for remark in &status.remarks {
        let _ = writeln!(out, "- {remark}");
    }
    if !status.tools.is_empty() {
        out.push_str("\nTools:\n");
    }
    for tool in status.tools.iter().take(TOOLS_SHOWN_MAX) {
        let _ = writeln!(out, "- {tool}");
    }
    more(&mut out, status.tools.len(), TOOLS_SHOWN_MAX);
    if !status.log.is_empty() {
        out.push_str("\nIts newest log messages:\n");
    }
    for message in &status.log {
        let _ = writeln!(out, "- {message}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_config::{McpServer, McpTransport};

    fn server(name: &str, state: ServerState, tools: usize) -> ServerStatus {
        let way = McpTransport::Http {
            url: "https://mcp.example/sk-secret".to_owned(),
            headers: Vec::new(),
            key_variable: None,
        };
        ServerStatus {
            spec: McpServer::new(name.to_owned(), McpSource::Person, way),
            state,
            tools: (0..tools).map(|number| format!("mcp__{name}__{number}")).collect(),
            tool_bytes: tools * 400,
            prompts: 0,
            has_resources: false,
            remarks: Vec::new(),
            log: vec!["warning: the disk is full".to_owned()],
        }
    }

    /// Regression: a single line listed the names of all tools.
    #[test]
    fn each_server_has_one_line_with_its_state_and_the_size_of_its_tools() {
        let gone = ServerState::Gone("it ended".to_owned());
        let servers = [server("a", ServerState::Ready, 150), server("b", gone, 0)];
        let one = line(&ServerStatus { prompts: 1, ..server("c", ServerState::Ready, 1) });
        assert!(one.ends_with("connected, 1 tool (~100 tokens), 1 prompt"), "{one}");
        let text = text(&servers, &["the MCP server c: runs \"c\"".to_owned()]);
        assert!(
            text.contains("- **a** (yours; https://mcp.example): connected, 150 tools (~15000 tokens)\n"),
            "{text}"
        );
        assert!(text.contains("- **b** (yours; https://mcp.example): not connected: it ended\n"), "{text}");
        assert!(text.contains("the MCP server c") && !text.contains("sk-secret"), "{text}");
        assert!(!text.contains("mcp__a__0"), "{text}");

        let detailed = detailed_text(&servers[0]);
        assert!(detailed.contains("\n- mcp__a__0\n") && detailed.contains("and 50 more"), "{detailed}");
        assert!(detailed.contains("- warning: the disk is full"), "{detailed}");
    }

    /// Regression: `/mcp reconnect x` printed the list, as if it had done something.
    #[test]
    fn arguments_are_carried_out_or_refused() {
        let names = ["docs".to_owned(), "my server".to_owned()];
        for (typed, parsed) in [
            ("", McpArguments::Show),
            ("docs", McpArguments::Show),
            ("my server", McpArguments::Show),
            ("reconnect docs", McpArguments::Control(ServerCommand::Reconnect, "docs")),
            ("off  my server", McpArguments::Control(ServerCommand::Off, "my server")),
        ] {
            assert_eq!(parse(typed, &names), parsed, "{typed}");
        }
        for (typed, words) in
            [("login", "needs the name of a server: docs"), ("nonsense", "does not know \"nonsense\"")]
        {
            assert!(
                matches!(parse(typed, &names), McpArguments::Wrong(why) if why.contains(words)),
                "{typed}"
            );
        }
    }
}
