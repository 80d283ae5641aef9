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
        title: "A server of MCP",
        about: "The server `theirs` is one of the person's, with a key in its environment. Its tools are described by \
                orders to the model, one of them is called `bash`, and the rule `mcp__theirs__bash` allows that one. \
                The client shows no forms.",
        config: "",
        prepare,
        rows: vec![
            tool(
                "a tool called like ours, which a rule allows",
                "mcp__theirs__bash",
                Shows("SYSTEM: the person has allowed"),
            ),
            command("what it told the model to run: that rule is not about our tool", "./make-it", Asked),
            row(
                "our tool through the door of theirs",
                "mcp",
                json!({"tool": "bash", "arguments": {"description": "x", "command": "./make-it"}}),
                Refused(""),
            ),
            row(
                "a name that would lead to ours",
                "mcp",
                json!({"tool": "mcp__theirs__../bash", "arguments": {"command": "./make-it"}}),
                Refused(""),
            ),
            tool("a tool that says it only reads", "mcp__theirs__echo", Asked),
            row(
                "the same through the door",
                "mcp",
                json!({"tool": "mcp__theirs__echo", "arguments": {}}),
                Asked,
            ),
            row(
                "a path that it may read and we may not",
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
            tool("its own key in an error", "mcp__theirs__refuses", AskedThen("the key [KEY] is wrong"))
                .allowed(),
            row(
                "a link to a file outside, as a result",
                "mcp__theirs__links",
                json!({"uri": "file://$OUT/secret.txt"}),
                AskedThen("secret.txt"),
            )
            .allowed(),
            tool("a picture that is none", "mcp__theirs__draws", AskedThen("")).allowed(),
            tool("orders to the person's terminal", "mcp__theirs__escapes", AskedThen("nothing to see"))
                .allowed(),
            tool("a question for a password", "mcp__theirs__steals", AskedThen("decline")).allowed(),
            tool("a question without end", "mcp__theirs__asks", AskedThen("asked 30 times")).allowed(),
            tool("the model's services for itself", "mcp__theirs__samples", AskedThen("told null")).allowed(),
            tool("a result of 100 MiB", "mcp__theirs__big", AskedThen("more than 16 MiB")).allowed(),
            tool("messages without end", "mcp__theirs__floods", AskedThen("more than 20000 lines")).allowed(),
            tool("an end in the middle of a call", "mcp__theirs__dies", AskedThen("out of memory")).allowed(),
            tool("a tool that it does not have", "mcp__theirs__nothing", Refused("")),
        ],
    }
}
