//! The program as `epitome` starts it. Cargo also builds it for the tests of `epitome` because of this test.

use std::io::Write as _;
use std::process::{Command, Stdio};

use epitome_transfer::ReadAnswer;

fn read(name: &str, text: &str) -> ReadAnswer {
    let mut child = Command::new(env!("CARGO_BIN_EXE_epitome-import"))
        .args(["read", name, "/w"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("it is a pipe").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends").stdout;
    serde_json::from_slice(&output).expect("an answer")
}

#[test]
fn it_answers_with_conversations_or_with_a_reason() {
    let session = include_str!("copilot.jsonl");
    let ReadAnswer::Drafts(drafts) = read("/w/events.jsonl", session) else { panic!("it is a session") };
    assert_eq!(drafts.len(), 1);
    let ReadAnswer::Refused { message, hint, .. } = read("/w/a", "nonsense") else {
        panic!("it is nonsense")
    };
    assert!(message.contains("not a conversation") && hint.is_some(), "{message}");
}
