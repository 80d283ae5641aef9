//! Runs `docs/builders/control.md`: every method is documented with an example, results contain everything that the page shows,
//! and its scripts work. In the page, `…` matches any text and a number matches any number; lists and objects may omit
//! items and fields.

use std::process::Command;
use std::sync::Arc;

use epitome::daemon::control::{METHODS, admit};
use epitome::daemon::runtime_dir::RuntimeDir;
use epitome::daemon::token::Token;
use epitome_test_harness::does_without;
use serde_json::{Value, json};
use tokio::net::UnixListener;

use super::in_process::{InProcessClient, TestDaemon, text};

/// The session id in the page.
const SHOWN_SESSION: &str = "s_0123456789abcdef0123";
const SHOWN_CWD: &str = "/home/ann/app";

struct Block {
    line: usize,
    language: String,
    text: String,
}

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/builders/control.md");
    std::fs::read_to_string(path).expect("the page is there")
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (at, line) in page.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => {
                open = Some(Block { line: at + 1, language: language.to_owned(), text: String::new() });
            }
            (None, None) => {}
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
        }
    }
    blocks
}

/// Whether a result contains everything that is shown.
fn has(shown: &Value, came: &Value) -> bool {
    match (shown, came) {
        (Value::Object(shown), Value::Object(came)) => {
            shown.iter().all(|(name, shown)| came.get(name).is_some_and(|came| has(shown, came)))
        }
        (Value::Array(shown), Value::Array(came)) => match shown.is_empty() {
            true => came.is_empty(),
            false => shown.iter().all(|shown| came.iter().any(|came| has(shown, came))),
        },
        (Value::Number(_), Value::Number(_)) => true,
        (Value::String(shown), Value::String(came)) => {
            let mut parts = shown.split('…');
            let Some(rest) = came.strip_prefix(parts.next().unwrap_or_default()) else { return false };
            let mut rest = rest;
            let is_whole = !shown.contains('…');
            for part in parts {
                let Some(at) = rest.find(part) else { return false };
                rest = &rest[at + part.len()..];
            }
            !is_whole || rest.is_empty()
        }
        (shown, came) => shown == came,
    }
}

#[test]
fn every_method_is_documented() {
    let page = page();
    let shown: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`')).collect();
    for method in METHODS {
        assert!(shown.contains(&method), "{method} is not on the page");
    }
    assert_eq!(shown.len(), METHODS.len(), "the page has methods that are none: {shown:?}");
}

#[tokio::test]
async fn the_examples_in_control_md_work() {
    if does_without("the memory of a process") {
        return;
    }
    let test = TestDaemon::new(vec![text("A test is missing.")]);
    let mut wire = test.connect();
    let mut client = InProcessClient::new(&test, None).await;
    client.prompt("Why does the build fail?");
    client.ended().await;
    let (mut session, mut answer) = (client.session.0.clone(), Value::Null);
    wire.call("sessions.rename", json!({ "session": session, "title": "The build" })).await;
    drop(client);
    let mut sessions = vec![session.clone()];
    for block in blocks(&page()) {
        let at = format!("docs/builders/control.md:{}", block.line);
        let shown = || {
            let text = block.text.replace(SHOWN_SESSION, &session);
            let text = text.replace(SHOWN_CWD, &test.cwd.to_string_lossy());
            serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{at}: {error}"))
        };
        match block.language.as_str() {
            "json call" => {
                let mut call = shown();
                let params = call["params"].as_object_mut();
                let mut params = params.map(std::mem::take).unwrap_or_default();
                if params.contains_key("environment") {
                    params.insert("environment".to_owned(), test.environment());
                }
                let method = call["method"].as_str().expect("a method");
                answer = wire.call(method, Value::Object(params)).await;
                if let Some(made) = answer["result"]["session"].as_str() {
                    session = made.to_owned();
                }
                if !sessions.contains(&session) {
                    sessions.push(session.clone());
                }
                if answer["result"]["deleted"] == true {
                    // The rest of the page uses the remaining session.
                    session = sessions[0].clone();
                }
            }
            "json result" => assert!(has(&shown(), &answer["result"]), "{at}: it is {answer}"),
            "json error" => assert!(has(&shown(), &answer["error"]), "{at}: it is {answer}"),
            "python script" | "sh script" => {}
            other => panic!("{at}: nobody plays {other:?}"),
        }
    }
}

/// Runs the scripts over a real socket, as a user would.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_in_control_md_work() {
    let test = TestDaemon::new(Vec::new());
    let mut wire = test.connect();
    let session = test.session().await;
    wire.call("sessions.rename", json!({ "session": session, "title": "Hello there" })).await;
    let socket = test.cwd.join("control.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let daemon = test.daemon.clone();
    let token = Token::create(&RuntimeDir { directory: test.cwd.clone() }).expect("a token");
    let token = Arc::new(token);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(admit(daemon.clone(), stream, token.clone(), None, None));
        }
    });
    let is_there = |program: &str| Command::new(program).arg("-h").output().is_ok();
    for block in blocks(&page()) {
        let (program, needed) = match block.language.as_str() {
            "python script" => ("python3", &["python3"][..]),
            "sh script" => ("sh", &["socat", "jq"][..]),
            _ => continue,
        };
        let missing = needed.iter().find(|needed| !is_there(needed));
        if let Some(missing) = missing {
            eprintln!("skipped: the script at line {} needs {missing}, which is not here", block.line);
            continue;
        }
        let (socket, script) = (socket.clone(), block.text.clone());
        let run = tokio::task::spawn_blocking(move || {
            Command::new(program)
                .arg("-c")
                .arg(script)
                .args((program == "sh").then_some("sh"))
                .arg(socket)
                .output()
        });
        let output = run.await.expect("it runs").expect("it is there");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.trim(), format!("{session} Hello there"), "{program}: {output:?}");
    }
}
