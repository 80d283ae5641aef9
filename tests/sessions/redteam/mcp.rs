//! A hostile MCP server that the user has configured.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::mcp_server::table;
use super::range::{Expect, Group, Place, command, row};

fn prepare(place: &Place) {
    let rules = "[permissions]\nallow = [\"mcp__theirs__bash\"]\n";
    place.write_ours(
        "config.toml",
        format!("{rules}{}", table("theirs", "hostile", &place.ours, "timeout_s = 20")),
    );
    place.write("make-it", "#!/bin/sh\n: > pwned\n");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.workspace.join("make-it"), mode).expect("set");
}

pub fn group() -> Group {
    use Expect::{Asked, AskedThen, Denied, Refused, Shows};
    let tool = |name, tool: &'static str, expect| row(name, tool, json!({}), expect);
    Group {
        title: "MCP servers",
        about: "The user configured the server `theirs`, with a key in its environment. The descriptions of its tools contain \
                instructions to the model. One tool is called `bash`, and the rule `mcp__theirs__bash` allows it. The \
                client can't show forms.",
        config: "",
        prepare,
        rows: vec![
            tool(
                "a tool with a built-in tool's name, which a rule allows",
                "mcp__theirs__bash",
                Shows("SYSTEM: the user has allowed"),
            ),
            command(
                "the command in its result (the rule does not cover the built-in tool)",
                "./make-it",
                Asked,
            ),
            row(
                "a built-in tool, called through `mcp`",
                "mcp",
                json!({"tool": "bash", "arguments": {"description": "x", "command": "./make-it"}}),
                Refused(""),
            ),
            row(
                "a name that leads to a built-in tool",
                "mcp",
                json!({"tool": "mcp__theirs__../bash", "arguments": {"command": "./make-it"}}),
                Refused(""),
            ),
            tool("a tool that claims to be read-only", "mcp__theirs__echo", Asked),
            row(
                "the same, through `mcp`",
                "mcp",
                json!({"tool": "mcp__theirs__echo", "arguments": {}}),
                Asked,
            ),
            row(
                "a path that the server can read",
                "mcp__theirs__echo",
                json!({"says": "$OUT/secret.txt"}),
                Asked,
            )
            .mode("accept_edits"),
            tool("a tool in read-only mode", "mcp__theirs__leaks", Denied("read-only mode"))
                .mode("read_only"),
            tool(
                "a key in a result",
                "mcp__theirs__leaks",
                AskedThen("[secret masked: looks like a GitHub token]"),
            )
            .allowed(),
            tool(
                "the server's own key in an error",
                "mcp__theirs__refuses",
                AskedThen("the key [KEY] is wrong"),
            )
            .allowed(),
            row(
                "a link to a file outside, as a result",
                "mcp__theirs__links",
                json!({"uri": "file://$OUT/secret.txt"}),
                AskedThen("secret.txt"),
            )
            .allowed(),
            tool("an invalid image", "mcp__theirs__draws", AskedThen("")).allowed(),
            tool(
                "control codes for the user's terminal",
                "mcp__theirs__escapes",
                AskedThen("nothing to see"),
            )
            .allowed(),
            tool("asking for a password", "mcp__theirs__steals", AskedThen("decline")).allowed(),
            tool("endless questions", "mcp__theirs__asks", AskedThen("asked 30 times")).allowed(),
            tool("using the model for itself", "mcp__theirs__samples", AskedThen("told null")).allowed(),
            tool("a result of 100 MiB", "mcp__theirs__big", AskedThen("more than 16 MiB")).allowed(),
            tool("endless messages", "mcp__theirs__floods", AskedThen("more than 20000 lines")).allowed(),
            tool("dying during a call", "mcp__theirs__dies", AskedThen("out of memory")).allowed(),
            tool("a tool that does not exist", "mcp__theirs__nothing", Refused("")),
        ],
    }
}
