//! Plants secrets of every known form wherever a report collects data: none of them is in the report, and all
//! useful data is.

use std::os::unix::fs::PermissionsExt as _;

use epitome_scripted_model::ModelStep;
use serde_json::json;

use epitome_test_harness::user::User;

/// Part of every planted secret, and of every message.
const MARK: &str = "PLANTED";

const LOG: &str = r#"2026-11-22T10:00:00.000001Z  INFO session{id=s_00}: epitome::spans: ended milliseconds=12
2026-11-22T10:00:00.000002Z  WARN epitome::x: key sk-PLANTED01 and sk-ant-api03-PLANTED02 and sk-proj-PLANTED03
2026-11-22T10:00:00.000003Z  WARN epitome::x: AIzaSyPLANTED04 ghp_PLANTED05 github_pat_PLANTED06 xoxb-PLANTED07
2026-11-22T10:00:00.000004Z  WARN epitome::x: Authorization: Bearer PLANTED08
2026-11-22T10:00:00.000005Z  WARN epitome::x: at https://ann:PLANTED09@gateway.example.com/v1?key=PLANTED10
2026-11-22T10:00:00.000006Z  WARN epitome::x: AKIAPLANTED11ABCD aws_secret_access_key=wJalrPLANTED12/bPxRfiCY
2026-11-22T10:00:00.000007Z  WARN epitome::x: eyJhbGciPLANTED.eyJzdWIiPLANTED13.PLANTEDsig
-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1PLANTED14
PLANTED15==
-----END OPENSSH PRIVATE KEY-----
2026-11-22T10:00:00.000008Z  WARN epitome::x: bob:PLANTED16@db.example.com {"password": "PLANTED17 words"}
2026-11-22T10:00:00.000009Z  WARN epitome::x: x-tenant-PLANTED18 is what the environment holds
"#;

const CONFIG: &str = r#"
model = "local/scripted"
[providers.gate]
wire = "openai_chat"
base_url = "https://ann:PLANTED20@gateway.example.com/v1?key=PLANTED21"
key_variable = "GATE_CODE"
headers = { x-tenant = "PLANTED22" }
[mcp.servers.tickets]
command = "false"
args = ["--pin", "PLANTED24"]
env = { FOO = "PLANTED25 words" }
[mcp.servers.wiki]
url = "http://127.0.0.1:1/PLANTED26/mcp"
[hooks.overrides.guard]
description = "needs sk-PLANTED23"
"#;

fn planted() -> (User, String) {
    let call = ModelStep::Call { name: "bash".into(), input: json!({"command": "echo PLANTED-call"}) };
    let replies = vec![
        vec![ModelStep::Text("PLANTED reply".into()), call, ModelStep::Usage { input: 77, output: 5 }],
        vec![ModelStep::Text("PLANTED end".into())],
    ];
    let mut user = User::with_replies(replies);
    user.set("GATE_CODE", "x-tenant-PLANTED18");
    user.set("ANTHROPIC_CUSTOM_HEADERS", "X-Gate: PLANTED30");
    user.write(".epitome/config.toml", CONFIG);
    let command = "PLANTED_TOKEN=PLANTED31 /usr/bin/guard --key PLANTED32";
    let hook = json!({"hooks": {"PreToolUse": [
        {"matcher": "Nothing", "hooks": [{"type": "command", "command": command}]}
    ]}});
    user.write(".claude/settings.json", &hook.to_string());
    user.run(&["run", "--mode", "full", "a PLANTED prompt"]).ok();
    user.write(".epitome/state/log/epitome.2020-01-01.log", LOG);
    let listed = user.run(&["sessions", "list", "--json"]).ok();
    let header: serde_json::Value = serde_json::from_str(listed.trim()).expect("one session");
    let session = header["session"].as_str().expect("an id").to_owned();
    (user, session)
}

#[test]
fn a_report_contains_no_planted_secrets_and_no_messages() {
    let (user, session) = planted();
    let report = user.run(&["bug-report", "-", "--session", &session]).ok();
    let faults: Vec<&str> = report
        .lines()
        .filter(|line| {
            let home = user.home();
            line.contains(MARK) || line.contains("annuser") || line.contains(home.to_str().expect("text"))
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for wanted in [
        "Read it before you send it",
        concat!("epitome ", env!("CARGO_PKG_VERSION")),
        "none runs",
        "providers.gate.key_variable = \"GATE_CODE\"",
        "gateway.example.com",
        "providers.gate.headers.x-tenant = <redacted>",
        "runs guard",
        "ended milliseconds=12",
        &session,
        r#"{"change":"replied""#,
        r#""name":"bash""#,
        r#""status":"completed""#,
        r#""input":77,"output":5"#,
        r#"{"change":"turn_ended","reason":"end_turn""#,
    ] {
        assert!(report.contains(wanted), "{wanted:?} is not in\n{report}");
    }
}

#[test]
fn a_report_is_a_new_file_readable_only_by_its_owner() {
    let user = User::new();
    let printed = user.run(&["bug-report"]).ok();
    let file = printed.split(' ').next().expect("a name");
    assert!(file.starts_with("epitome-bug-report-2") && printed.contains("Nothing was sent"), "{printed}");
    let mode = std::fs::metadata(user.project().join(file)).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
