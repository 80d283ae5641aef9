//! Guarantees of the protocol, independent of methods.

use epitome::session::SessionEvent;
use epitome_scripted_model::ModelStep;
use serde_json::{Value, json};

use super::in_process::{InProcessClient, TestDaemon};
use epitome_test_harness::WITHIN;

#[tokio::test]
async fn an_invalid_request_is_refused_and_the_next_one_answered() {
    let test = TestDaemon::new(Vec::new());
    let mut wire = test.connect();
    for (line, id, code, expected) in [
        ("{\"jsonrpc\": \"2.0\", \"id\"", Value::Null, -32700, "not JSON"),
        ("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}]", Value::Null, -32600, "batches"),
        ("{\"id\": 4, \"method\": \"status\"}", json!(4), -32600, "jsonrpc"),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"statsu\"}",
            json!("a"),
            -32601,
            "no method \"statsu\"",
        ),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"sessions.show\",\"params\":{\"sesion\":\"x\"}}",
            json!(5),
            -32602,
            "unknown field `sesion`, expected `session`",
        ),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"sessions.show\",\"params\":{\"session\":\"abc\"}}",
            json!(6),
            -32001,
            "there is no session abc",
        ),
    ] {
        wire.write(format!("{line}\n").as_bytes()).await;
        let answer = wire.line().await.expect("an answer");
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(code)), "{line}: {answer}");
        let message = answer["error"]["message"].as_str().expect("a sentence");
        assert!(message.contains(expected), "{line}: {message}");
        assert!(answer["error"]["data"]["kind"].is_string(), "{answer}");
    }
    let near = wire.call("sessions.lst", json!({})).await;
    assert_eq!(near["error"]["data"]["hint"], "did you mean \"sessions.list\"?");
    assert_eq!(wire.call("status", json!({})).await["result"]["pid"], std::process::id());
}

#[tokio::test]
async fn notifications_and_empty_lines_are_not_answered() {
    let test = TestDaemon::new(Vec::new());
    let mut wire = test.connect();
    wire.write(b"\n  \n{\"jsonrpc\":\"2.0\",\"method\":\"stop\"}\n").await;
    assert_eq!(wire.call("status", json!({})).await["id"], 1);
    assert!(!*test.daemon.stop.borrow(), "what can't be answered is not done");
}

#[tokio::test]
async fn split_lines_are_joined_and_overlong_lines_are_refused() {
    let test = TestDaemon::new(Vec::new());
    let mut wire = test.connect();
    wire.write(b"{\"jsonrpc\":\"2.0\",\"id\":1,").await;
    tokio::task::yield_now().await;
    wire.write(b"\"method\":\"status\"}\n").await;
    assert_eq!(wire.line().await.expect("an answer")["id"], 1);
    let piece = vec![b'x'; 1024 * 1024];
    for _ in 0..65 {
        wire.write(&piece).await;
    }
    wire.write(b"\n").await;
    let answer = wire.line().await.expect("an answer");
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    assert!(wire.call("status", json!({})).await["result"].is_object());
}

#[tokio::test]
async fn a_client_that_closes_its_writing_half_still_gets_all_answers() {
    let test = TestDaemon::new(Vec::new());
    let mut wire = test.connect();
    let session = test.session().await;
    let id = wire.send("sessions.undo", json!({ "session": session })).await;
    wire.close_writing();
    assert_eq!(wire.answer(id).await["result"]["reason"], "end_turn");
    assert!(wire.line().await.is_none(), "and then it is the end");
}

#[tokio::test]
async fn answers_are_sent_as_they_become_ready() {
    let test = TestDaemon::new(vec![vec![ModelStep::Text("slow".into()), ModelStep::Wait]]);
    let mut wire = test.connect();
    let mut client = InProcessClient::new(&test, None).await;
    client.prompt("hello");
    client.until(|event| matches!(event, SessionEvent::Text { .. }).then_some(())).await;
    // It waits for the turn.
    let slow = wire.send("sessions.undo", json!({ "session": client.session })).await;
    let quick = wire.send("status", json!({})).await;
    assert_eq!(wire.line().await.expect("an answer")["id"], quick);
    test.model.release();
    assert_eq!(wire.answer(slow).await["result"]["reason"], "end_turn");
}

#[tokio::test]
async fn status_lists_a_connection_until_it_is_closed() {
    let test = TestDaemon::new(Vec::new());
    let mut wire = test.connect();
    let status = wire.call("status", json!({})).await["result"].clone();
    assert_eq!(status["attachments"][0]["kind"], "control");
    assert_eq!(status["attachments"][0]["pid"], std::process::id());
    let mut count = test.daemon.attachments.count();
    drop(wire);
    let gone = tokio::time::timeout(WITHIN, count.wait_for(|count| *count == 0)).await;
    assert!(gone.is_ok(), "it is taken off the table");
}
