//! The complete life of a session with the client from the protocol's official library, on which editors are built, and
//! prompts sent while the agent works.

use std::fs;
use std::process::Stdio;
use std::sync::Arc;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema as wire;
use epitome_scripted_model::{ModelStep, RecordedRequest, SeenPart};
use epitome_test_harness::agent::{
    SUMMARY, agent_text, is_answer, kind, messages_of, obey, stop_reason, wants_summary,
};
use epitome_test_harness::{call, text};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

const BEFORE: &str = "fn main() {\n    println!(\"helo\");\n}\n";
const AFTER: &str = "fn main() {\n    println!(\"hello\");\n}\n";

fn edits_then_obeys(request: &RecordedRequest) -> Vec<ModelStep> {
    match (request.number, wants_summary(request)) {
        (_, true) => obey(request),
        (0, false) => {
            vec![text("I look "), text("first."), call("file_read", json!({ "file_path": "main.rs" }))]
        }
        (1, false) => {
            let input = json!({ "file_path": "main.rs", "old_text": "helo", "new_text": "hello" });
            vec![text("A typo."), call("file_edit", input)]
        }
        (2, false) => {
            vec![text("It is mended. "), text("That was all there was to do. ".repeat(60).as_str())]
        }
        _ => obey(request),
    }
}

#[test]
fn a_complete_session_with_the_reference_client() {
    let user = super::user(edits_then_obeys);
    let file = user.project().join("main.rs");
    fs::write(&file, BEFORE).unwrap();
    let updates: Arc<Mutex<Vec<Value>>> = Arc::default();
    let cards: Arc<Mutex<Vec<Value>>> = Arc::default();
    let (seen, asked) = (updates.clone(), cards.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut command = tokio::process::Command::from(user.agent_command(&[]));
        let mut child = command.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let streams = agent_client_protocol::ByteStreams::new(input.compat_write(), output.compat());
        agent_client_protocol::Client
            .v1()
            .on_receive_notification(
                async move |notification: wire::SessionNotification, _connection| {
                    let update = serde_json::to_value(notification.update).unwrap();
                    seen.lock().push(json!({ "params": { "update": update } }));
                    Ok(())
                },
                agent_client_protocol::on_receive_notification!(),
            )
            .on_receive_request(
                async move |request: wire::RequestPermissionRequest, responder, _connection| {
                    asked.lock().push(serde_json::to_value(&request).unwrap());
                    let allow = request
                        .options
                        .iter()
                        .find(|option| option.kind == wire::PermissionOptionKind::AllowOnce);
                    let chosen = wire::SelectedPermissionOutcome::new(allow.unwrap().option_id.clone());
                    responder.respond(wire::RequestPermissionResponse::new(
                        wire::RequestPermissionOutcome::Selected(chosen),
                    ))
                },
                agent_client_protocol::on_receive_request!(),
            )
            .connect_with(streams, async |connection: agent_client_protocol::v1::ConnectionTo<_>| {
                let initialize = wire::InitializeRequest::new(ProtocolVersion::V1);
                connection.send_request(initialize).block_task().await?;
                let new = wire::NewSessionRequest::new(user.project());
                let session = connection.send_request(new).block_task().await?.session_id;
                for words in ["mend it", "/compact", "say two", "/undo", "say three"] {
                    let prompt = wire::PromptRequest::new(session.clone(), vec![words.into()]);
                    let done = connection.send_request(prompt).block_task().await?;
                    assert_eq!(done.stop_reason, wire::StopReason::EndTurn, "{words}");
                }
                Ok(())
            })
            .await
            .unwrap();
        let ended = child.wait_with_output().await.unwrap();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    });

    assert_eq!(fs::read_to_string(&file).unwrap(), AFTER);
    let cards = cards.lock();
    let [card] = cards.as_slice() else { panic!("one card, for the edit alone: {cards:?}") };
    let diff = &card["toolCall"]["content"][0];
    assert_eq!(
        (&diff["type"], &diff["oldText"], &diff["newText"]),
        (&json!("diff"), &json!(BEFORE), &json!(AFTER))
    );
    let updates = updates.lock();
    let said = agent_text(&updates);
    assert!(said.starts_with("I look first.A typo.It is mended. "), "{said}");
    assert!(said.contains("Compacted: ") && said.contains("Undone: "), "{said}");
    assert!(!updates.iter().any(|update| kind(update) == "user_message_chunk"));

    let requests = user.model().requests();
    let [.., mended, summary, two, three] = requests.as_slice() else { panic!("{}", requests.len()) };
    assert!(wants_summary(summary));
    // After the compaction: the summary and the new prompt, which are one message for this provider.
    let shown = two.seen();
    let [SeenPart::User(said)] = shown.as_slice() else { panic!("{shown:?}") };
    assert!(said.contains(SUMMARY) && said.contains("mend it") && said.ends_with("\n\nsay two"), "{said}");
    // After the undo: the bytes that were sent before the compaction, and later messages.
    let (before, after) = (messages_of(mended), messages_of(three));
    assert_eq!(after[..before.len()], before);
    let since: Vec<SeenPart> = three.seen().split_off(mended.seen().len() + 1);
    let expected = [
        SeenPart::User("say two".into()),
        SeenPart::Agent("You said two.".into()),
        SeenPart::User("say three".into()),
    ];
    assert_eq!(since, expected);
    assert_eq!(three.body["messages"][0], mended.body["messages"][0], "the system text is the same");
    assert_eq!(three.body["tools"], mended.body["tools"]);
}

#[test]
fn a_prompt_during_a_turn_is_in_the_next_model_call() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    let first = agent.prompt(&session, "run echo hi");
    let question = agent.until("the card", |message| message["method"] == "session/request_permission");
    let second = agent.prompt(&session, "say two");
    // Commands are processed in order: after this answer, the prompt is queued.
    agent.call("session/set_mode", json!({ "sessionId": session, "modeId": "ask" }));
    agent.decide(question.last().unwrap(), "allow_once");
    let (before, answer) = agent.answer(first);
    assert_eq!(stop_reason(&answer), "end_turn");
    assert_eq!(agent_text(&before), "You said two.", "one reply to both");
    let (between, answer) = agent.answer(second);
    assert_eq!(stop_reason(&answer), "end_turn");
    assert!(agent_text(&between).is_empty());
    let requests = user.model().requests();
    assert_eq!(requests.len(), 2);
    let shown = requests[1].seen();
    assert!(
        matches!(&shown[shown.len() - 2..], [SeenPart::Result { .. }, SeenPart::User(said)] if said == "say two")
    );
}

#[test]
fn a_single_queued_prompt_can_be_cancelled() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    let first = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    let second = agent.prompt(&session, "say two");
    let third = agent.prompt(&session, "say three");
    agent.notify("$/cancel_request", json!({ "requestId": second }));
    let (before, answer) = agent.answer(second);
    assert_eq!(stop_reason(&answer), "cancelled");
    assert!(!before.iter().any(|message| is_answer(message, first) || is_answer(message, third)));
    user.model().release();
    let mut answers = Vec::new();
    let seen = agent.until("both answers", |message| {
        if message.get("result").is_some() {
            answers.push((message["id"].as_u64().unwrap(), stop_reason(message)));
        }
        answers.len() == 2
    });
    let ended = |id| (id, "end_turn".to_owned());
    assert_eq!(answers, [ended(first), ended(third)]);
    assert_eq!(agent_text(&seen), "the second half.You said three.");
    let last = user.model().requests().pop().unwrap();
    assert!(!last.seen().contains(&SeenPart::User("say two".into())), "what was taken back is not sent");
}

/// Regression: an editor deleted a session in one window and restored it in another. The load reopened the log between
/// the session's end and its removal, and the deletion was refused with the file still on disk.
#[test]
fn a_session_loaded_during_its_deletion_is_deleted_nevertheless() {
    let user = super::user(obey);
    let mut agent = user.start();
    for _ in 0..20 {
        let session = user.new_session(&mut agent);
        agent.turn(&session, "say hello");
        let deleted = agent.request("session/delete", json!({ "sessionId": session }));
        let place = json!({ "sessionId": session, "cwd": user.project(), "mcpServers": [] });
        let loaded = agent.request("session/load", place);
        // Either may be answered first, and the load may be too late.
        let (mut deletion, mut load) = (None, None);
        agent.until("both answers", |message| {
            if is_answer(message, deleted) {
                deletion = Some(message.clone());
            } else if is_answer(message, loaded) {
                load = Some(());
            }
            deletion.is_some() && load.is_some()
        });
        assert_eq!(deletion.expect("it was waited for")["result"], json!({}));
        assert!(!user.journal(&session).exists());
    }
    agent.close_input();
    agent.ended();
}

/// `session/fork` from an entry of another session, given in `_meta`.
#[test]
fn a_fork_continues_from_its_entry_and_leaves_the_original_unchanged() {
    let user = super::user(obey);
    let mut agent = user.start_trusted();
    let opening = |session: &str, meta: Value| json!({ "sessionId": session, "cwd": user.project(), "mcpServers": [], "_meta": { "epitome": meta } });
    let session = user.new_session(&mut agent);
    agent.turn(&session, "say one");
    let journal = fs::read_to_string(user.journal(&session)).unwrap();
    agent.turn(&session, "say two");

    let whole = agent.call("session/fork", opening(&session, json!({})));
    let whole = whole["sessionId"].as_str().unwrap().to_owned();
    agent.turn(&whole, "say three");
    let sent = user.model().requests().pop().unwrap().body.to_string();
    assert!(sent.contains("say one") && sent.contains("say two"), "{sent}");

    let at = format!("e{}", journal.lines().count() - 1);
    let part = agent.call("session/fork", opening(&session, json!({ "at": at })));
    let part = part["sessionId"].as_str().unwrap().to_owned();
    agent.turn(&part, "say four");
    let sent = user.model().requests().pop().unwrap().body.to_string();
    assert!(sent.contains("say one") && !sent.contains("say two") && !sent.contains("say three"), "{sent}");

    agent.turn(&session, "say five");
    let sent = user.model().requests().pop().unwrap().body.to_string();
    assert!(sent.contains("say two") && !sent.contains("say three") && !sent.contains("say four"), "{sent}");
    for (session, at, why) in [
        (session.as_str(), "12", "names an entry"),
        (&session, "e9000", "e9000"),
        ("s_ffffffffffffffffffff", "e1", "s_ffff"),
    ] {
        let id = agent.request("session/fork", opening(session, json!({ "at": at })));
        let (_, answer) = agent.answer(id);
        assert!(answer["error"].to_string().contains(why), "{at}: {answer}");
    }
    agent.close_input();
    agent.ended();
}
