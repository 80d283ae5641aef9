//! Tool calls: permission requests, progress, terminals, results.

use super::*;

#[test]
fn a_call_changed_by_a_hook_shows_its_new_input() {
    let changed = Change::CallChanged {
        call: CallId("c1".into()),
        input: json!({ "command": "ls -a" }),
        card: CallDisplay { title: "ls -a".into(), kind: ToolKind::Execute, locations: Vec::new() },
        by: "guard".into(),
    };
    let update = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c1", "title": "ls -a",
        "rawInput": { "command": "ls -a" } });
    let line = chunk("agent_message_chunk", "e2", "guard changed the input of this call: ls -a");
    let mut client = WireClient::new(PLAIN);
    client.entry(replied(vec![call("c1", ToolKind::Execute)], None)).entry(changed.clone());
    assert_eq!(client.updates[1..], [update, line]);
    // Editors don't accept updates for a call that was never announced.
    assert_eq!(WireClient::new(PLAIN).entry(changed).updates.len(), 1);
}

#[test]
fn a_call_goes_from_pending_through_running_to_its_outcome() {
    let mut client = WireClient::new(PLAIN);
    let id = CallId("c1".to_owned());
    client.entry(replied(vec![call("c1", ToolKind::Execute)], None));
    client.put(SessionEvent::CallStarted { call: id.clone() });
    client.put(SessionEvent::CallProgress { call: id.clone(), output: "one\n".into() });
    client.put(SessionEvent::CallProgress { call: id.clone(), output: "two\n".into() });
    client.entry(finished("c1", OutcomeStatus::Interrupted, "The command was stopped."));
    let steps: Vec<(&Value, &Value)> = client
        .updates
        .iter()
        .map(|update| (&update["status"], &update["content"][0]["content"]["text"]))
        .collect();
    assert_eq!(
        steps,
        [
            (&Value::Null, &Value::Null),
            (&json!("in_progress"), &Value::Null),
            (&json!("in_progress"), &json!("```\none\n```")),
            (&json!("in_progress"), &json!("```\none\ntwo\n```")),
            (&json!("failed"), &json!("The command was stopped.")),
        ]
    );
    // The call is finished: no further updates for it.
    let count = client.updates.len();
    client
        .put(SessionEvent::CallStarted { call: id.clone() })
        .put(SessionEvent::CallProgress { call: id, output: "x".into() });
    client.entry(finished("c1", OutcomeStatus::Completed, "again"));
    assert_eq!(client.updates.len(), count);
}

/// Regression: a window resumed a session whose call waited for a permission. The call was not announced to it, and editors
/// show no request about a call that they don't know.
#[test]
fn running_calls_are_announced_to_a_client_that_resumes_their_session() {
    let change = replied(vec![call("c1", ToolKind::Execute)], None);
    let entry = Arc::new(Entry { seq: Seq(3), at: 0, change });
    let kinds = ["tool_call", "tool_call_update", "tool_call_update"];
    let at_entry = Position { after: Some(Seq(3)), ..Position::default() };
    for (position, expected) in [(Position::default(), &kinds[..]), (at_entry, &kinds[1..])] {
        let mut client = WireClient::new(PLAIN);
        client.put(SessionEvent::Seen(Box::new(Seen { entries: vec![entry.clone()], position })));
        client.put(SessionEvent::CallStarted { call: CallId("c1".to_owned()) });
        client.entry(finished("c1", OutcomeStatus::Completed, "done"));
        let shown: Vec<&Value> = client.updates.iter().map(|update| &update["sessionUpdate"]).collect();
        assert_eq!(shown, expected);
    }
}

#[test]
fn the_diff_comes_first_in_an_outcome() {
    let outcome = ToolOutcome {
        shown: vec![
            ToolDisplay::Text { text: "**done**".into() },
            ToolDisplay::Diff { path: "/w/a.rs".into(), old: None, new: "fn a() {}\n".into() },
        ],
        raw: Some(json!({ "exitCode": 0 })),
        whole: None,
        locations: vec![Location { path: "/w/a.rs".into(), line: None }],
        ..ToolOutcome::text(CallId("c1".into()), OutcomeStatus::Completed, "ok")
    };
    let mut client = WireClient::new(PLAIN);
    client.entry(replied(vec![call("c1", ToolKind::Edit)], None));
    client.entry(Change::ToolFinished { outcome });
    assert_eq!(
        client.updates[1],
        json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed",
            "content": [
                { "type": "diff", "path": "/w/a.rs", "newText": "fn a() {}\n" },
                { "type": "content", "content": { "type": "text", "text": "**done**" } }],
            "locations": [{ "path": "/w/a.rs" }], "rawOutput": { "exitCode": 0 } })
    );
}

#[test]
fn output_containing_fences_gets_a_longer_fence() {
    let mut client = WireClient::new(PLAIN);
    client.entry(replied(vec![call("c1", ToolKind::Read)], None));
    client.entry(finished("c1", OutcomeStatus::Completed, "````\ncode\n````\n"));
    assert_eq!(client.updates[1]["content"][0]["content"]["text"], "`````\n````\ncode\n````\n`````");
}

#[test]
fn a_terminal_gets_new_output_and_then_its_exit() {
    let mut client = WireClient::new(ClientTraits { terminal_output: true, ..PLAIN });
    client.entry(replied(vec![call("c1", ToolKind::Execute), call("c2", ToolKind::Execute)], None));
    assert_eq!(client.updates[0]["content"], json!([{ "type": "terminal", "terminalId": "c1" }]));
    assert_eq!(client.updates[0]["_meta"], json!({ "terminal_info": { "terminal_id": "c1" } }));
    client.put(SessionEvent::CallProgress { call: CallId("c1".into()), output: "one\n".into() });
    client.entry(finished("c1", OutcomeStatus::Completed, "one\n"));
    client.entry(finished("c2", OutcomeStatus::Completed, "two\n"));
    let meta: Vec<&Value> = client.updates[2..].iter().map(|update| &update["_meta"]).collect();
    assert_eq!(
        meta,
        [
            &json!({ "terminal_output": { "terminal_id": "c1", "data": "one\n" } }),
            &json!({ "terminal_exit": { "terminal_id": "c1" } }),
            &json!({ "terminal_output": { "terminal_id": "c2", "data": "two\n" } }),
            &json!({ "terminal_exit": { "terminal_id": "c2" } }),
        ]
    );
}

/// Regression: a permission request replaced the terminal with the command, and the terminal was not restored
/// until the command had ended, so its live output was never visible.
#[test]
fn a_terminal_is_shown_again_when_the_command_starts() {
    let mut client = WireClient::new(ClientTraits { terminal_output: true, ..PLAIN });
    client.entry(replied(vec![call("c1", ToolKind::Execute), call("c2", ToolKind::Read)], None));
    client.put(SessionEvent::CallStarted { call: CallId("c1".into()) });
    client.put(SessionEvent::CallStarted { call: CallId("c2".into()) });
    let started = &client.updates[client.updates.len() - 2..];
    assert_eq!(started[0]["content"], json!([{ "type": "terminal", "terminalId": "c1" }]));
    assert_eq!(started[1]["content"], Value::Null);
}

#[test]
fn a_terminal_exit_names_the_signal() {
    let mut client = WireClient::new(ClientTraits { terminal_output: true, ..PLAIN });
    client.entry(replied(vec![call("c1", ToolKind::Execute)], None));
    let outcome = ToolOutcome {
        raw: Some(json!({ "stdout": "", "exitCode": 137, "signal": 9 })),
        ..ToolOutcome::text(CallId("c1".into()), OutcomeStatus::Failed, "")
    };
    client.entry(Change::ToolFinished { outcome });
    let exit = json!({ "terminal_id": "c1", "exit_code": 137, "signal": "SIGKILL" });
    assert_eq!(client.updates.last().expect("the end")["_meta"]["terminal_exit"], exit);
}

#[test]
fn a_terminal_that_missed_output_is_shown_with_the_text() {
    for (output, expected) in [("one\n", 1), ("one\ntwo\n", 2)] {
        let mut client = WireClient::new(ClientTraits { terminal_output: true, ..PLAIN });
        client.entry(replied(vec![call("c1", ToolKind::Execute)], None));
        client.put(SessionEvent::CallProgress { call: CallId("c1".into()), output: "one\n".into() });
        let outcome = ToolOutcome {
            raw: Some(json!({ "stdout": output, "exitCode": 3 })),
            whole: None,
            ..ToolOutcome::text(CallId("c1".into()), OutcomeStatus::Completed, output)
        };
        client.entry(Change::ToolFinished { outcome });
        let last = client.updates.last().unwrap();
        assert_eq!(last["content"].as_array().unwrap().len(), expected);
        assert_eq!(last["content"][0], json!({ "type": "terminal", "terminalId": "c1" }));
        assert_eq!(last["_meta"], json!({ "terminal_exit": { "terminal_id": "c1", "exit_code": 3 } }));
    }
}

#[test]
fn old_output_is_capped_in_a_replay_and_progress_is_bounded() {
    let output = "x".repeat(100_000);
    let mut loaded = WireClient::new(PLAIN);
    loaded.replayed(replied(vec![call("c1", ToolKind::Read)], None));
    loaded.replayed(finished("c1", OutcomeStatus::Completed, &output));
    let shown = loaded.updates[1]["content"][0]["content"]["text"].as_str().unwrap();
    assert!(shown.len() < 9_000 && shown.contains("bytes are not shown"));

    let mut live = WireClient::new(PLAIN);
    live.entry(replied(vec![call("c1", ToolKind::Execute)], None));
    for _ in 0..10_000 {
        live.put(SessionEvent::CallProgress { call: CallId("c1".into()), output: "é".repeat(1000).into() });
    }
    let sent: usize = live.updates.iter().map(|update| update.to_string().len()).sum();
    assert!(sent < 2 * PROGRESS_SENT_BYTES_MAX, "{sent} bytes");
}

#[test]
fn a_permission_card_has_one_option_of_each_kind() {
    let ask = |always: Option<&str>| epitome_session_api::PermissionRequest {
        call: CallId("c1".into()),
        tool: "file_edit".into(),
        input: json!({ "path": "a.rs" }),
        card: CallDisplay { title: String::new(), kind: ToolKind::Edit, locations: vec![] },
        preview: vec![
            ToolDisplay::Text { text: "why".into() },
            ToolDisplay::Diff { path: "/w/a.rs".into(), old: Some("a".into()), new: "b".into() },
        ],
        because: None,
        always: always.map(str::to_owned),
        never: None,
        agent: None,
    };
    let session = SessionId("s_0".into());
    let card =
        serde_json::to_value(v1::permission(&session, tool_wire::permission(&ask(Some("edits"))))).unwrap();
    assert!(!has_null(&card));
    assert_eq!(card["toolCall"]["title"], "file_edit");
    assert_eq!(card["toolCall"]["content"][0]["type"], "diff");
    assert_eq!(
        card["options"],
        json!([{ "optionId": "allow_once", "name": "Allow", "kind": "allow_once" },
            { "optionId": "allow_always", "name": "Always allow: edits", "kind": "allow_always" },
            { "optionId": "reject_once", "name": "Reject", "kind": "reject_once" }])
    );
    let card = serde_json::to_value(v1::permission(&session, tool_wire::permission(&ask(None)))).unwrap();
    assert_eq!(card["options"].as_array().unwrap().len(), 2);
}

/// A change of a file above a megabyte was described by a sentence, and could be allowed without having been seen.
#[test]
fn a_change_of_a_large_file_is_shown_or_known_not_to_be() {
    let rest = "same\n".repeat(600_000);
    let shown = |old: &str, new: &str| {
        let ask = epitome_session_api::PermissionRequest {
            call: CallId("c1".into()),
            tool: "file_edit".into(),
            input: json!({}),
            card: CallDisplay::default(),
            preview: vec![ToolDisplay::Diff { path: "/w/a".into(), old: Some(old.into()), new: new.into() }],
            because: None,
            always: None,
            never: None,
            agent: None,
        };
        let session = SessionId("s_0".into());
        let v1 = serde_json::to_value(v1::permission(&session, tool_wire::permission(&ask))).unwrap();
        let v2 = serde_json::to_value(v2::permission(&session, tool_wire::permission(&ask))).unwrap();
        [v1["toolCall"]["content"][0].clone(), v2["subject"]["toolCall"]["content"][0].clone()]
    };
    let [v1, v2] = shown(&format!("{rest}old\n{rest}"), &format!("{rest}new\n{rest}"));
    let lines = |changed: &str| format!("same\nsame\nsame\n{changed}\nsame\nsame\nsame\n");
    assert_eq!((&v1["oldText"], &v1["newText"]), (&json!(lines("old")), &json!(lines("new"))));
    assert!(v2["patch"]["text"].as_str().unwrap().contains("\n-old\n+new\n"), "{v2}");
    let [v1, v2] = shown(&"a".repeat(3 << 20), &"b".repeat(3 << 20));
    assert_eq!(v1["content"]["text"], "/w/a: the change is too large to show (6291456 bytes)");
    assert_eq!((&v2["type"], &v2["patch"]), (&json!("diff"), &serde_json::Value::Null));
}

/// Regression: clients that show the plan also showed each of its updates as a call.
#[test]
fn a_plan_is_shown_without_its_call() {
    let plan = |id: &str| {
        Content::Call(ToolCall {
            id: CallId(id.to_owned()),
            name: PLAN_TOOL.to_owned(),
            input: json!({ "todos": [{ "content": "a", "status": "pending" }] }),
            card: CallDisplay { title: "Update the plan".into(), ..CallDisplay::default() },
        })
    };
    let planned = Change::Planned {
        steps: vec![PlanStep {
            content: "a".into(),
            status: PlanStatus::Pending,
            priority: PlanPriority::Medium,
        }],
    };
    for replay in [false, true] {
        let mut client = WireClient::new(PLAIN);
        client.any_entry(replied(vec![plan("c1"), call("c2", ToolKind::Read)], None), replay, true);
        client.put(SessionEvent::CallStarted { call: CallId("c1".into()) });
        client.any_entry(planned.clone(), replay, true);
        client.any_entry(finished("c1", OutcomeStatus::Completed, "The plan has 1 steps."), replay, true);
        client.any_entry(finished("c2", OutcomeStatus::Completed, "text"), replay, true);
        let kinds: Vec<&Value> = client.updates.iter().map(|update| &update["sessionUpdate"]).collect();
        assert_eq!(kinds, [&json!("tool_call"), &json!("plan"), &json!("tool_call_update")], "{replay}");
        assert_eq!(client.updates[0]["toolCallId"], "c2");
    }
}

/// Regression: Zed titled each command "current directory".
#[test]
fn a_terminal_has_the_directory_of_its_session() {
    let mut client = WireClient::new(ClientTraits { terminal_output: true, ..PLAIN });
    client.cursor.works_in(Path::new("/w"));
    client.entry(replied(vec![call("c1", ToolKind::Execute)], None));
    let info = json!({ "terminal_info": { "terminal_id": "c1", "cwd": "/w" } });
    assert_eq!(client.updates[0]["_meta"], info);
}

/// Regression: after a refusal, the user read the text for the model: "The user refused this call. Don't try the same
/// again".
#[test]
fn the_user_reads_of_their_own_decision_in_a_few_words() {
    let denied = |by| ToolOutcome {
        decided: Some(RecordedDecision { allowed: false, by }),
        ..ToolOutcome::text(CallId("c1".into()), OutcomeStatus::Denied, "Words for the model.")
    };
    let person = |answer| Decider::Person { answer };
    for (by, shown) in [
        (person(PermissionChoice::No), "Refused by you."),
        (person(PermissionChoice::Dismissed), "Not run: the question was closed without an answer."),
        (person(PermissionChoice::TooLate), "Not run: the files changed while you decided."),
        (Decider::Nobody, "Words for the model."),
    ] {
        let mut client = WireClient::new(PLAIN);
        client.entry(replied(vec![call("c1", ToolKind::Execute)], None));
        client.entry(Change::ToolFinished { outcome: denied(by) });
        assert_eq!(client.updates[1]["content"][0]["content"]["text"], shown);
        assert_eq!(client.updates[1]["status"], "failed");
    }
}
