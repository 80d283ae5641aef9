//! MCP servers as processes of the built program: their sandbox, and the end of the program during their first start.

use std::path::Path;

use epitome_test_harness::user::User;
use epitome_test_harness::within;
use serde_json::json;

/// A server without tools, in a shell. `first` runs before it answers.
fn server(first: &str) -> String {
    format!(
        r#"#!/bin/sh
{first}
while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
    case "$line" in
    *'"initialize"'*) result='{{"protocolVersion":"2025-06-18","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"x","version":"1"}}}}' ;;
    *'"tools/list"'*) result='{{"tools":[]}}' ;;
    *) continue ;;
    esac
    printf '{{"jsonrpc":"2.0","id":%s,"result":%s}}\n' "$id" "$result"
done
"#
    )
}

/// A user with one server, whose table has more keys.
fn user(first: &str, more: &str) -> User {
    let user = User::new().standalone();
    user.write("project/server.sh", &server(first));
    let table = format!("[mcp.servers.x]\ncommand = \"sh\"\nargs = [\"server.sh\"]\n{more}");
    user.write(".epitome/config.toml", &table);
    user
}

/// Servers could read everything that their user can, and each API key with it.
#[test]
fn a_server_in_the_sandbox_can_not_read_what_commands_can_not() {
    let first = "cat \"$EPITOME_HOME/config.toml\" > read 2>&1";
    for (more, is_sandboxed) in [("", false), ("sandbox = true\n", true)] {
        let user = user(first, more);
        let said = user.run(&["doctor"]);
        if said.out.contains("does not fully have") {
            // Nothing is started half protected.
            assert!(is_sandboxed && !user.project().join("read").exists(), "{said:?}");
            continue;
        }
        assert!(said.out.contains("x is connected, with 0 tools"), "{said:?}");
        let read = std::fs::read_to_string(user.project().join("read")).expect("it wrote to the workspace");
        assert_eq!(read.contains("[mcp.servers.x]"), !is_sandboxed, "{read}");
    }
    let user = user("", "sandbox_network = true\n");
    let said = user.run(&["config", "check"]);
    assert!(format!("{said:?}").contains("has `sandbox_network` and no sandbox"), "{said:?}");
}

/// Without a daemon, each short session killed `npx` in the middle of its installation, and none ever had its tools.
#[test]
fn a_first_start_is_completed_when_the_program_has_ended() {
    // The first process waits forever; the next one has what it installed.
    let first = "if [ ! -e started ]; then mkfifo never; : > started; read -r _ < never; fi";
    let user = user(first, "");
    let mut agent = user.start();
    let opened = json!({ "cwd": user.project(), "mcpServers": [] });
    agent.call("session/new", opened);
    let started = user.project().join("started");
    within("the start", || started.exists().then_some(()));
    agent.close_input();
    agent.ended_unread();
    let listings = user.paths().data.join("mcp-listings");
    within("the stored tools", || has_file(&listings).then_some(()));
}

fn has_file(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some())
}

/// An agent whose conversation was imported looks up what has left its view by `epitome mcp serve`.
#[test]
fn stored_sessions_are_served_to_other_agents() {
    let user = User::new().standalone();
    let said = |id: &str, parent: Option<&str>, text: &str| {
        json!({
            "type": "message", "id": id, "parentId": parent, "timestamp": "2026-11-28T10:00:00.000Z",
            "message": { "role": "user", "content": [{ "type": "text", "text": text }] },
        })
    };
    let header = json!({
        "type": "session", "version": 3, "id": "h", "timestamp": "2026-11-28T10:00:00.000Z", "cwd": user.project(),
    });
    let lines = [
        header,
        said(
            "a",
            None,
            "The release is called WALNUT-42. The key is sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH.",
        ),
        said("b", Some("a"), "Go on."),
    ];
    user.write("project/session.jsonl", &lines.map(|line| format!("{line}\n")).concat());
    let session = user.run(&["sessions", "import", "session.jsonl"]).ok().trim().to_owned();
    let call = |id: u32, name: &str, arguments: serde_json::Value| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": name, "arguments": arguments } });
    let requests = [
        json!({
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
            },
        }),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" }),
        call(3, "recall", json!({ "text": "release called" })),
        call(4, "recall", json!({ "session": &session[..6], "entry": "e2" })),
        call(5, "recall", json!({ "session": "s_ffff", "text": "x" })),
        call(6, "sessions", json!({})),
        call(7, "pin", json!({ "text": "The port is 8123." })),
        call(8, "why", json!({ "entry": "e2" })),
    ];
    let stdin: String = requests.iter().map(|request| format!("{request}\n")).collect();
    let ran = user.run_with_stdin(&["mcp", "serve"], &stdin);
    let answers = ran.exited(0).objects();
    let of = |id: u32| &answers.iter().find(|answer| answer["id"] == id).expect("an answer")["result"];
    assert_eq!(of(1)["serverInfo"]["name"], "epitome");
    assert_eq!(of(2)["tools"][0]["name"], "recall");
    for (id, expected, is_error) in [
        (3, "e2", false),
        (4, "WALNUT-42", false),
        (5, "no session", true),
        (6, &*session, false),
        (7, "Pinned", false),
        (8, "The model sees it unchanged", false),
    ] {
        let text = of(id)["content"][0]["text"].as_str().expect("a text");
        assert!(!text.contains("sk-ant-api03-abcdefgh"), "{text}");
        assert!(text.contains(expected) && of(id)["isError"] == is_error, "{id}: {}", of(id));
    }
}
