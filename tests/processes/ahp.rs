//! `epitome ahp`, as the protocol's own client and reducers see it. The transport is an independent WebSocket library.

mod clients;

use clients::{AhpWindow, Listening, TOKEN, connect, listen};
use epitome_scripted_model::{ModelStep, RecordedRequest};
use epitome_test_harness::agent::{end_by, is_question, kind, obey};
use epitome_test_harness::user::User;
use epitome_test_harness::{call, text};
use futures_util::{SinkExt, StreamExt};
use rustix::process::Signal;
use serde_json::{Value, json};

use ahp::ClientError;
use ahp::ahp_types::commands::ResolveSessionConfigResult;
use ahp::ahp_types::state::{ChatState, ResponsePart, SessionStatus, ToolCallState, TurnState};
use tokio_tungstenite::tungstenite::Message;

/// A chat of this size, sent this often, is more than the host keeps for a client.
const LARGE_BYTES: usize = 900 * 1024;
const SNAPSHOTS: usize = 45;

/// More than the system keeps for a connection, and much less than the host.
const UNREAD_BYTES_MAX: usize = 16 * 1024 * 1024;

fn user(script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static) -> User {
    User::with_model(script)
}

/// The texts of a turn's reply.
fn reply(parts: &[ResponsePart]) -> String {
    let text = |part: &ResponsePart| match part {
        ResponsePart::Markdown(text) => Some(text.content.clone()),
        _ => None,
    };
    parts.iter().filter_map(text).collect()
}

fn calls(parts: &[ResponsePart]) -> Vec<&ToolCallState> {
    let mut calls = Vec::new();
    for part in parts {
        if let ResponsePart::ToolCall(part) = part {
            calls.push(&part.tool_call);
        }
    }
    calls
}

/// The only card that asks for permission: the id of its call.
fn card(chat: &ChatState) -> Option<(String, String)> {
    let turn = chat.active_turn.as_ref()?;
    calls(&turn.response_parts).into_iter().find_map(|call| match call {
        ToolCallState::PendingConfirmation(call) => Some((turn.id.clone(), call.tool_call_id.clone())),
        _ => None,
    })
}

fn states(chat: &ChatState) -> Vec<TurnState> {
    chat.turns.iter().map(|turn| turn.state).collect()
}

/// The property that AHP rests on: a client that folds the actions has the state of the host. A second client comes in the
/// middle of a turn that asks for permission, and a snapshot of any moment with the actions after it is the last state.
#[tokio::test(flavor = "multi_thread")]
async fn folding_the_actions_gives_the_snapshot() {
    let user = user(obey);
    let at = listen(&user, &[]);
    let mut first = AhpWindow::start(&at, "first").await;
    let session = first.create().await;
    let chat = first.follow(&session).await;
    let mut moments = vec![first.snapshot(&chat).await];
    first.begin(&chat, "t1", "run printf 'out\\n'").await;
    first.until("a card", |chat| card(chat).is_some()).await;
    moments.push(first.snapshot(&chat).await);
    // The second client is shown the card, and decides.
    let mut second = AhpWindow::start(&at, "second").await;
    assert_eq!(second.follow(&session).await, chat);
    assert_eq!(second.chat, first.chat);
    let (turn, call) = card(&second.chat).expect("it is in the snapshot");
    assert_eq!(second.chat.status & SessionStatus::InputNeeded.bits(), SessionStatus::InputNeeded.bits());
    second.decide(&chat, &turn, &call, true).await;
    for client in [&mut first, &mut second] {
        client.until("the end of the turn", |chat| chat.turns.len() == 1).await;
    }
    moments.push(second.snapshot(&chat).await);
    let turn = &first.chat.turns[0];
    assert_eq!((turn.id.as_str(), turn.message.text.as_str()), ("t1", "run printf 'out\\n'"));
    assert_eq!(reply(&turn.response_parts), "I run it.Done.");
    let [ToolCallState::Completed(call)] = calls(&turn.response_parts)[..] else { panic!("{turn:?}") };
    assert!(call.success && format!("{:?}", call.content).contains("out\\n"), "{call:?}");
    assert!(turn.usage.as_ref().is_some_and(|usage| usage.output_tokens > Some(0)), "{:?}", turn.usage);
    // One client begins a turn and the other cancels it.
    first.begin(&chat, "t2", "half").await;
    second
        .until("text", |chat| {
            chat.active_turn.as_ref().is_some_and(|turn| !reply(&turn.response_parts).is_empty())
        })
        .await;
    moments.push(second.snapshot(&chat).await);
    second.dispatch(&chat, json!({ "type": "chat/turnCancelled", "turnId": "t2", "duration": 1 })).await;
    first.until("the cancel", |chat| chat.turns.len() == 2).await;
    user.model().release();
    second.begin(&chat, "t3", "say three").await;
    for client in [&mut first, &mut second] {
        client.until("the third turn", |chat| chat.turns.len() == 3).await;
        assert_eq!(states(&client.chat), [TurnState::Complete, TurnState::Cancelled, TurnState::Complete]);
        assert_eq!(
            reply(&client.chat.turns[2].response_parts),
            "You said three.",
            "and nothing of the second turn"
        );
    }
    let last = first.snapshot(&chat).await;
    assert_eq!(first.chat, last.0);
    let folded = first.session_snapshot(&session).await;
    assert_eq!(first.session, folded);
    for (state, number) in moments {
        assert_eq!(first.fold_after(state, number), last.0, "from {number}");
    }
    // A new host is shown the same conversation by the daemon.
    drop(at);
    let at = listen(&user, &[]);
    let mut third = AhpWindow::start(&at, "third").await;
    let listed = third.list().await;
    let again = listed[0]["resource"].as_str().expect("it is listed").to_owned();
    third.follow(&again).await;
    let conversation = |chat: &ChatState| {
        let turns = chat.turns.iter().map(|turn| (turn.message.text.clone(), reply(&turn.response_parts)));
        turns.collect::<Vec<_>>()
    };
    let (shown, seen) = (conversation(&third.chat), conversation(&first.chat));
    assert_eq!(shown.len(), seen.len(), "{shown:?} {seen:?}");
    for ((prompt, reply), (sent, live)) in shown.iter().zip(&seen) {
        // More of the cancelled reply may have arrived before the daemon stopped it.
        assert!(prompt == sent && reply.starts_with(live.as_str()), "{shown:?} {seen:?}");
    }
}

/// A client that lost its socket gets what it missed, in any order of clients; one of an earlier host gets snapshots.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_reconnects_without_a_gap() {
    let user = user(obey);
    let at = listen(&user, &[]);
    let mut first = AhpWindow::start(&at, "first").await;
    let session = first.create().await;
    let chat = first.follow(&session).await;
    first.begin(&chat, "t1", "half").await;
    first
        .until("text", |chat| chat.active_turn.as_ref().is_some_and(|turn| !turn.response_parts.is_empty()))
        .await;
    let lost = first.lose();
    // The turn goes on without any client.
    user.model().release();
    let mut second = AhpWindow::start(&at, "second").await;
    second.follow(&session).await;
    second.until("the end of the turn", |chat| chat.turns.len() == 1).await;
    let back = lost.reconnect(&at).await;
    assert_eq!(back.answer["type"], "replay", "{}", back.answer);
    assert_eq!(back.answer["missing"], json!([]));
    assert_eq!(back.window.chat, second.chat);
    assert_eq!(reply(&back.window.chat.turns[0].response_parts), "The first half, the second half.");
    let lost = back.window.lose();
    drop(at);
    let at = listen(&user, &[]);
    let back = lost.reconnect(&at).await;
    // The address was one of the client's choice, which another host does not know.
    assert_eq!(back.answer["type"], "snapshot", "{}", back.answer);
}

/// A session is shared with an editor's window: each sees the other's prompts, and the first answer to a card counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_shared_with_an_editor() {
    let user = user(obey);
    let at = listen(&user, &[]);
    let mut client = AhpWindow::start(&at, "client").await;
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    assert_eq!(agent.turn(&session, "say one").1, "end_turn");
    let address = format!("ahp-session:/{session}");
    let chat = client.follow(&address).await;
    assert_eq!(reply(&client.chat.turns[0].response_parts), "You said one.");
    // A prompt of the editor, whose card the editor answers.
    let prompt = agent.prompt(&session, "run true");
    client.until("a card", |chat| card(chat).is_some()).await;
    assert_eq!(client.chat.active_turn.as_ref().expect("a turn").message.text, "run true");
    let question = agent.until("a question", is_question).pop().expect("it was read");
    agent.decide(&question, "reject_once");
    client.until("the end of the turn", |chat| chat.turns.len() == 2).await;
    let [ToolCallState::Cancelled(_)] = calls(&client.chat.turns[1].response_parts)[..] else {
        panic!("{:?}", client.chat.turns[1]);
    };
    agent.answer(prompt);
    // A prompt of the client, whose card the client answers.
    client.begin(&chat, "t3", "run true").await;
    client.until("a card", |chat| card(chat).is_some()).await;
    let (turn, call) = card(&client.chat).expect("it waits");
    client.decide(&chat, &turn, &call, false).await;
    client.until("the end of the turn", |chat| chat.turns.len() == 3).await;
    let shown =
        agent.until("the prompt", |seen| kind(seen) == "user_message_chunk").pop().expect("it was read");
    assert!(shown.to_string().contains("run true"), "{shown}");
    // Titles in both directions.
    client.dispatch(&address, json!({ "type": "session/titleChanged", "title": "Ours" })).await;
    let is_title = |seen: &Value| kind(seen) == "session_info_update" && seen.to_string().contains("Ours");
    agent.until("the title", is_title);
    agent.turn(&session, "/rename Theirs");
    client.until_session("the title", |session| session.title == "Theirs").await;
    client.until("the end of the command", |chat| chat.turns.len() == 4).await;
    // The daemon dies, and the next prompt finds another.
    end_by(user.daemon().expect("a daemon serves"), Signal::KILL);
    client.begin(&chat, "t5", "say five").await;
    client.until("a turn of another daemon", |chat| chat.turns.len() == 5).await;
    assert_eq!(reply(&client.chat.turns[4].response_parts), "You said five.");
}

/// A subagent asks for permission in the turn of its session, and what comes of it is shown there.
#[tokio::test(flavor = "multi_thread")]
async fn a_subagent_asks_in_the_turn_of_its_session() {
    let user = user(|request| match request.last_user_text().ends_with("delegate") && request.number == 0 {
        true => vec![call("task", json!({ "description": "Print", "prompt": "run printf child" }))],
        false => obey(request),
    });
    let at = listen(&user, &[]);
    let mut client = AhpWindow::start(&at, "client").await;
    let session = client.create().await;
    let chat = client.follow(&session).await;
    client.begin(&chat, "t1", "delegate").await;
    client.until("a card", |chat| card(chat).is_some()).await;
    let (turn, asked) = card(&client.chat).expect("it waits");
    client.decide(&chat, &turn, &asked, true).await;
    client.until("the end of the turn", |chat| chat.turns.len() == 1).await;
    let shown = calls(&client.chat.turns[0].response_parts);
    let [ToolCallState::Completed(_), ToolCallState::Completed(command)] = shown[..] else {
        panic!("{shown:?}")
    };
    assert!(format!("{:?}", command.content).contains("child"), "{command:?}");
}

/// A message that waits for the end of a turn becomes a turn; a steering message is given to the model.
#[tokio::test(flavor = "multi_thread")]
async fn messages_wait_for_a_turn_or_steer_it() {
    let user = user(obey);
    let at = listen(&user, &[]);
    let mut client = AhpWindow::start(&at, "client").await;
    let session = client.create().await;
    let chat = client.follow(&session).await;
    client.begin(&chat, "t1", "run true").await;
    client.until("a card", |chat| card(chat).is_some()).await;
    let pending = |kind: &str, text: &str| {
        let message = json!({ "text": text, "origin": { "kind": "user" } });
        json!({ "type": "chat/pendingMessageSet", "kind": kind, "id": kind, "message": message })
    };
    client.dispatch(&chat, pending("queued", "say later")).await;
    client.dispatch(&chat, pending("steering", "say now")).await;
    client.until("both", |chat| chat.steering_message.is_some() && chat.queued_messages.is_some()).await;
    let (turn, call) = card(&client.chat).expect("it waits");
    client.decide(&chat, &turn, &call, true).await;
    client.until("two turns", |chat| chat.turns.len() == 2).await;
    assert!(
        reply(&client.chat.turns[0].response_parts).ends_with("You said now."),
        "{:?}",
        client.chat.turns[0]
    );
    assert_eq!(reply(&client.chat.turns[1].response_parts), "You said later.");
    assert!(client.chat.steering_message.is_none() && client.chat.queued_messages.is_none());
}

/// A client steered a turn that the provider then refused, so that the daemon kept the message. It was the first
/// message of the client's next turn: the reply was not shown, and the session accepted no further turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_daemon_kept_hides_no_reply() {
    let refusal = ModelStep::Error { status: 400, retry_after: None, message: Some("no".into()) };
    let user = User::with_replies(vec![
        vec![ModelStep::Wait, refusal],
        vec![text("The reply to both.")],
        vec![text("The next reply.")],
    ]);
    let at = listen(&user, &[]);
    let mut client = AhpWindow::start(&at, "client").await;
    let session = client.create().await;
    let chat = client.follow(&session).await;
    client.begin(&chat, "t1", "one").await;
    while user.model().requests().is_empty() {
        client.list().await;
    }
    let message = json!({ "text": "steer", "origin": { "kind": "user" } });
    let steering =
        json!({ "type": "chat/pendingMessageSet", "kind": "steering", "id": "s1", "message": message });
    client.dispatch(&chat, steering).await;
    client.until("the message", |chat| chat.steering_message.is_some()).await;
    // The daemon answers in the order in which the host asks.
    client.list().await;
    user.model().release();
    client.until("the refusal", |chat| chat.turns.len() == 1 && chat.steering_message.is_none()).await;
    assert_eq!(states(&client.chat), [TurnState::Error]);
    let shows = |chat: &ChatState, wanted: &str| {
        chat.active_turn.is_none() && chat.turns.iter().any(|turn| reply(&turn.response_parts) == wanted)
    };
    client.begin(&chat, "t2", "two").await;
    client.until("the reply", |chat| shows(chat, "The reply to both.")).await;
    client.begin(&chat, "t3", "three").await;
    client.until("the next reply", |chat| shows(chat, "The next reply.")).await;
    assert_eq!(client.chat.turns.last().expect("a turn").id, "t3");
}

/// The daemon shows only the typed text of a command. With an attachment it was not recognized as the client's prompt:
/// the client's turn ended without a reply, which was in a second turn.
#[tokio::test(flavor = "multi_thread")]
async fn the_reply_to_a_command_with_an_attachment_is_in_the_turn_of_the_client() {
    let user = user(obey);
    let at = listen(&user, &[]);
    let mut client = AhpWindow::start(&at, "client").await;
    let session = client.create().await;
    let chat = client.follow(&session).await;
    let attachment =
        json!({ "type": "simple", "label": "selection", "modelRepresentation": "selected text" });
    for (turn, command) in [("t1", "/summary"), ("t2", "/context")] {
        let message = json!({ "text": command, "origin": { "kind": "user" }, "attachments": [attachment] });
        let time = "2026-11-26T10:00:00Z";
        let action =
            json!({ "type": "chat/turnStarted", "turnId": turn, "startedAt": time, "message": message });
        client.dispatch(&chat, action).await;
        client.until("the end of the turn", |chat| chat.turns.iter().any(|ended| ended.id == turn)).await;
    }
    let turns: Vec<&str> = client.chat.turns.iter().map(|turn| turn.id.as_str()).collect();
    assert_eq!(turns, ["t1", "t2"]);
    for turn in &client.chat.turns {
        assert!(!reply(&turn.response_parts).is_empty(), "{turn:?}");
    }
}

/// A client that read nothing was "disconnected", but its socket and all that waited for it were kept.
#[tokio::test(flavor = "multi_thread")]
async fn the_connection_of_a_client_that_does_not_read_is_cut() {
    let user = user(obey);
    let at = listen(&user, &[]);
    let mut client = AhpWindow::start(&at, "client").await;
    let session = client.create().await;
    let chat = client.follow(&session).await;
    // The model is not asked.
    client.begin(&chat, "t1", &format!("/context {}", "x".repeat(LARGE_BYTES))).await;
    client.until("a large turn", |chat| chat.turns.len() == 1).await;
    let mut slow = clients::admitted(&at).await;
    let request = |method: &str, params: Value| {
        Message::text(json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string())
    };
    let hello = json!({ "channel": "ahp-root://", "protocolVersions": ["1.0.0"], "clientId": "slow" });
    slow.send(request("initialize", hello)).await.expect("it is connected");
    let entered =
        json!({ "type": "session/activeClientSet", "activeClient": { "clientId": "slow", "tools": [] } });
    let entered = json!({ "channel": session, "clientSeq": 1, "action": entered });
    let entered = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": entered });
    slow.send(Message::text(entered.to_string())).await.expect("it is connected");
    client.until_session("the client", |session| !session.active_clients.is_empty()).await;
    for _ in 0..SNAPSHOTS {
        // The host may have cut the connection already.
        drop(slow.send(request("subscribe", json!({ "channel": chat }))).await);
    }
    client.until_session("its end", |session| session.active_clients.is_empty()).await;
    let mut bytes = 0;
    while let Some(Ok(message)) = slow.next().await {
        bytes += message.len();
    }
    assert!(bytes < UNREAD_BYTES_MAX, "{bytes} bytes were kept for it");
}

/// A client chooses from the daemon's models. The choice is that of the session, for all of its clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_chooses_the_model_of_its_session() {
    let user = user(obey);
    let at = listen(&user, &[]);
    let mut client = AhpWindow::start(&at, "client").await;
    let session = client.create().await;
    let chat = client.follow(&session).await;
    client.begin(&chat, "t1", "say one").await;
    client.until("a turn", |chat| chat.turns.len() == 1).await;
    let models = client.root.agents[0].models.clone();
    let [model] = &models[..] else { panic!("{models:?}") };
    let begin = |turn: &str, model: &str| {
        json!({
            "type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-11-26T10:00:00Z",
            "message": { "text": "say two", "origin": { "kind": "user" }, "model": { "id": model } },
        })
    };
    let rejected = client.rejected(&chat, begin("t2", "nobody/nothing")).await;
    assert!(rejected.contains("no model"), "{rejected}");
    client.dispatch(&chat, begin("t2", &model.id)).await;
    client.until("the second turn", |chat| chat.turns.len() == 2).await;
    let asked: Vec<String> = user.model().requests().iter().map(|request| request.model.clone()).collect();
    assert_eq!(asked, [model.name.clone(), model.name.clone()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_may_not_do_is_rejected_with_a_reason() {
    let user = user(obey);
    let at = listen(&user, &[]);
    let mut client = AhpWindow::start(&at, "client").await;
    let session = client.create().await;
    let chat = client.follow(&session).await;
    let message = json!({ "text": "say x", "origin": { "kind": "user" } });
    let begin = |turn: &str, time: &str| json!({ "type": "chat/turnStarted", "turnId": turn, "startedAt": time, "message": message });
    let now = "2026-11-26T10:00:00Z";
    client.begin(&chat, "t1", "say one").await;
    client.until("a turn", |chat| chat.turns.len() == 1).await;
    client.begin(&chat, "t2", "hang").await;
    for (channel, action, reason) in [
        (&chat, begin("t3", now), "a turn is running"),
        (&chat, json!({ "type": "chat/turnCancelled", "turnId": "t1", "duration": 1 }), "not running"),
        (
            &chat,
            json!({ "type": "chat/toolCallConfirmed", "turnId": "t2", "toolCallId": "x", "approved": true }),
            "does not wait",
        ),
        (&chat, json!({ "type": "chat/truncated" }), "does not support"),
        (&session, begin("t3", now), "another channel"),
        (&session, json!({ "type": "session/titleChanged", "title": " " }), "empty"),
    ] {
        let rejected = client.rejected(channel, action).await;
        assert!(rejected.contains(reason), "{rejected}");
    }
    client.dispatch(&chat, json!({ "type": "chat/turnCancelled", "turnId": "t2", "duration": 1 })).await;
    client.until("the cancel", |chat| chat.turns.len() == 2).await;
    for (action, reason) in [(begin("t1", now), "already"), (begin("t3", "yesterday"), "not a time")] {
        let rejected = client.rejected(&chat, action).await;
        assert!(rejected.contains(reason), "{rejected}");
    }
    // Nothing was changed for it.
    assert_eq!(client.snapshot(&chat).await.0, client.chat);
    for (method, params, code) in [
        ("createSession", json!({ "channel": session }), -32003),
        ("createSession", json!({ "channel": "ahp-terminal:/1" }), -32602),
        ("createSession", json!({ "channel": "ahp-session:/n", "provider": "nobody" }), -32002),
        (
            "createSession",
            json!({ "channel": "ahp-session:/n", "workingDirectories": ["https://x/y"] }),
            -32602,
        ),
        ("createSession", json!({ "channel": "ahp-session:/n", "config": { "mode": "full" } }), -32602),
        ("subscribe", json!({ "channel": "ahp-session:/s_00000000000000000000" }), -32001),
        ("subscribe", json!({ "channel": "ahp-terminal:/1" }), -32001),
        ("fetchTurns", json!({ "channel": chat, "cursor": "x" }), -32601),
        (
            "initialize",
            json!({ "channel": "ahp-root://", "protocolVersions": ["1.0.0"], "clientId": "x" }),
            -32600,
        ),
        ("resourceRead", json!({ "channel": "ahp-root://", "uri": "file:///etc/passwd" }), -32601),
    ] {
        assert_eq!(client.error(method, params.clone()).await, code, "{method} {params}");
    }
    let config = client.call("resolveSessionConfig", json!({ "channel": "ahp-root://" })).await;
    let config: ResolveSessionConfigResult = serde_json::from_value(config).expect("it has the form");
    assert!(config.schema.properties.is_empty() && config.values.is_empty());
    // A session that the daemon can't create has the reason in its state.
    let gone = user.project().join("gone").display().to_string();
    let params = json!({ "channel": "ahp-session:/n", "workingDirectories": [format!("file://{gone}")] });
    client.call("createSession", params).await;
    let (_, error) = client.failed_session("ahp-session:/n").await;
    assert!(error.contains("gone"), "{error}");
    // Disposing takes the session out of the list, and keeps its log.
    client.call("disposeSession", json!({ "channel": session })).await;
    assert_eq!(client.list().await, [] as [Value; 0]);
    let archived = user.run(&["sessions", "list"]).ok();
    assert!(archived.contains("say one"), "{archived}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_and_the_host_agree_on_a_version() {
    let user = user(obey);
    let at = listen(&user, &[]);
    for (offered, chosen) in
        [(&["1.0.0", "0.9.0"][..], "1.0.0"), (&["0.9.0"], "0.9.0"), (&["0.5.0", "1.2.0"], "1.2.0")]
    {
        let client = connect(&at, "client").await.expect("admitted");
        let offered = offered.iter().map(|version| (*version).to_owned()).collect();
        let answer = client.initialize("client".to_owned(), offered, Vec::new()).await.expect("one fits");
        assert_eq!(answer.protocol_version, chosen);
    }
    let client = connect(&at, "client").await.expect("admitted");
    let refused = client.request::<_, Value>("listSessions", json!({ "channel": "ahp-root://" })).await;
    assert!(matches!(refused, Err(ClientError::Rpc(error)) if error.code == -32600));
    client.ping().await.expect("it is answered before anything else");
    let refused = client.initialize("client".to_owned(), vec!["0.5.0".to_owned()], Vec::new()).await;
    let Err(ClientError::Rpc(refused)) = refused else { panic!("{refused:?}") };
    assert_eq!(refused.code, -32005);
    assert_eq!(refused.data, Some(json!({ "supportedVersions": ["^1.0.0", "^0.9.0"] })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_needs_the_token_and_pages_need_permission() {
    let user = user(obey);
    let at = listen(&user, &["--allow-origin", "https://editor.example"]);
    let status = async |path: &str, headers: &[(&'static str, &str)]| {
        clients::handshake(&at, path, headers).await.err()
    };
    let bearer = format!("Bearer {TOKEN}");
    let right = format!("/?tkn={}", TOKEN.replace(' ', "%20"));
    assert_eq!(status("/", &[]).await, Some(401));
    assert_eq!(status("/?tkn=wrong", &[("authorization", &bearer)]).await, Some(401));
    assert_eq!(status("/other", &[("authorization", &bearer)]).await, Some(404));
    assert_eq!(status(&right, &[("origin", "https://evil.example")]).await, Some(403));
    assert_eq!(status(&right, &[("origin", "https://editor.example")]).await, None);
    assert_eq!(status("/", &[("authorization", &bearer)]).await, None);
    let refused = user.run(&["ahp", "--listen", "0.0.0.0:0"]).exited(1);
    assert!(refused.err.contains("not a loopback address"), "{}", refused.err);
    drop::<Listening>(at);
    user.end_daemon();
    user.write(".epitome/config.toml", "acp_v2 = false\n");
    let refused = user.run(&["ahp"]).exited(1);
    assert!(refused.err.contains("acp_v2 = false"), "{}", refused.err);
}
