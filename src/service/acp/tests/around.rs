//! Output around the model's text: Epitome's lines, notices, session-wide updates.

use super::*;

#[test]
fn a_hook_follow_up_is_a_line_live_and_a_user_message_in_a_replay() {
    let change = || said(vec![text("Please run the linter.")], Origin::Hook { hook: "lint".into() });
    let line = chunk("agent_message_chunk", "m3", "↻ lint: Please run the linter.");
    for own in [true, false] {
        assert_eq!(
            WireClient::new(PLAIN).any_entry(change(), false, own).updates,
            std::slice::from_ref(&line)
        );
        let shown = [chunk("user_message_chunk", "m3", "Please run the linter.")];
        assert_eq!(WireClient::new(PLAIN).any_entry(change(), true, own).updates, shown);
    }
}

#[test]
fn a_history_replaced_by_a_hook_is_not_shown_as_a_compaction() {
    let mut client = WireClient::new(ClientTraits { compaction: true, ..PLAIN });
    assert_eq!(client.entry(mutated()).updates[0]["sessionUpdate"], "agent_message_chunk");
}

/// Context may be added before the prompt, and some editors treat chunks outside a turn as an error.
#[test]
fn a_notice_waits_for_the_prompt_and_not_for_context() {
    let mut client = WireClient::new(PLAIN);
    client.put(SessionEvent::Notice { severity: NoticeSeverity::Info, text: "By the way.".into() });
    client.entry(said(vec![text("British spelling.")], Origin::Context { by: "style".into() }));
    assert_eq!(client.updates.len(), 0);
    client.entry(withheld(Withheld::Cancelled));
    assert_eq!(client.updates, [chunk("agent_thought_chunk", "n1", "By the way.")]);
}

#[test]
fn a_compaction_is_streamed_live_and_replayed_as_completed() {
    let statuses = |client: &WireClient| -> Vec<String> {
        client.updates.iter().map(|update| update["status"].as_str().unwrap_or("chunk").to_owned()).collect()
    };
    let mut client = WireClient::new(ClientTraits { compaction: true, ..PLAIN });
    let id = MessageId(9);
    client.put(SessionEvent::Compaction { id, state: CompactionState::Began { tokens: 88_000 } });
    client.put(SessionEvent::Compaction { id, state: CompactionState::Wrote("We wrote".into()) });
    client.entry(compacted());
    assert_eq!(statuses(&client), ["in_progress", "chunk", "completed"]);
    client.updates.clear();
    client.replayed(compacted());
    assert_eq!(statuses(&client), ["completed"]);
    client.updates.clear();
    // A client attaches during a compaction: its progress follows the replay.
    let opened = Change::Opened { format: 1, session: SessionId("s".into()), cwd: PathBuf::from("/w") };
    let id = MessageId(11);
    client.put(SessionEvent::Compaction { id, state: CompactionState::Began { tokens: 88_000 } });
    client.replayed(opened);
    client.put(SessionEvent::Compaction { id, state: CompactionState::Wrote("lost".into()) });
    client.put(SessionEvent::Compaction { id, state: CompactionState::Began { tokens: 88_000 } });
    client.put(SessionEvent::Compaction { id, state: CompactionState::Wrote("We".into()) });
    client.put(SessionEvent::Compaction { id, state: CompactionState::Failed("no model".into()) });
    client.put(SessionEvent::Compaction { id, state: CompactionState::Cancelled });
    assert_eq!(statuses(&client), ["in_progress", "in_progress", "chunk", "failed"]);
    assert_eq!(client.updates[3]["error"], "no model");
}

#[test]
fn without_compaction_support_a_notice_announces_a_compaction() {
    let mut client = WireClient::new(PLAIN);
    client.entry(said(vec![text("go")], Origin::Person));
    client.updates.clear();
    let state = CompactionState::Began { tokens: 88_231 };
    client.put(SessionEvent::Compaction { id: MessageId(2), state });
    client
        .put(SessionEvent::Compaction { id: MessageId(2), state: CompactionState::Wrote("We wrote".into()) });
    client.put(SessionEvent::Compaction { id: MessageId(2), state: CompactionState::Cancelled });
    assert_eq!(client.updates, [chunk("agent_thought_chunk", "n1", "Compacting 88.2k tokens…")]);
}

#[test]
fn a_cut_reply_says_why_unless_the_user_cancelled_it() {
    for (cut, expected) in [
        (ReplyCut::MaxTokens, Some("\n\nCut short: the model reached its output limit.")),
        (ReplyCut::Refused { reason: String::new() }, Some("\n\nCut short: the model declined.")),
        (ReplyCut::Refused { reason: "policy".into() }, Some("\n\nCut short: the model declined: policy")),
        (
            ReplyCut::Broken { reason: "the connection was lost".into() },
            Some("\n\nCut short: the connection was lost"),
        ),
        (ReplyCut::Cancelled, None),
    ] {
        let mut client = WireClient::new(PLAIN);
        client.entry(replied(vec![text("Half")], Some(cut)));
        let mut texts = vec![("m7.0".to_owned(), "Half".to_owned())];
        texts.extend(expected.map(|line| ("m7.cut".to_owned(), line.to_owned())));
        assert_eq!(client.texts(), texts);
    }
}

/// Regression: clients that ignore message ids showed "(try 2 of 6).Anthropic is overloaded" and, after
/// `/rewind undo`, "without it.Taken back". Epitome's lines after other text must be separate paragraphs.
#[test]
fn our_lines_after_other_text_are_separate_paragraphs() {
    let mut client = WireClient::new(PLAIN);
    client.entry(said(vec![text("go")], Origin::Person));
    let notice =
        |text: &str| SessionEvent::Notice { severity: NoticeSeverity::Warning, text: text.to_owned() };
    client.put(notice("Trying again."));
    client.put(notice("Trying again."));
    let noted = |id: u64| Change::Noted { message: MessageId(id), text: "Done.".to_owned() };
    client.entry(noted(20));
    client.entry(noted(21));
    client.entry(said(vec![text("again")], Origin::Person));
    client.entry(noted(22));
    let texts: Vec<String> = client.texts().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["Trying again.", "\n\nTrying again.", "Done.", "\n\nDone.", "Done."]);
}

/// Regression: editors without `compaction_update` that ignore message ids showed "from 45k to 6k tokens.I go
/// on with the parser".
#[test]
fn model_text_after_our_line_is_a_separate_paragraph() {
    let mut client = WireClient::new(PLAIN);
    client.entry(said(vec![text("go")], Origin::Person));
    client.entry(Change::Noted { message: MessageId(20), text: "Compacted.".to_owned() });
    client.text(0, TextKind::Reply, "I go").text(0, TextKind::Reply, " on.");
    client.entry(replied(vec![text("I go on.")], None));
    let texts: Vec<String> = client.texts().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["Compacted.\n\n", "I go on."], "not a byte of the model's message is ours");
    // Loading the session shows the same.
    let mut client = WireClient::new(PLAIN);
    client.replayed(said(vec![text("go")], Origin::Person));
    client.replayed(Change::Noted { message: MessageId(20), text: "Compacted.".to_owned() });
    client.replayed(replied(vec![text("I go on.")], None));
    let texts: Vec<String> = client.texts().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["go", "Compacted.\n\n", "I go on."]);
}

#[test]
fn session_wide_updates() {
    let mut client = WireClient::new(ClientTraits { notices: true, ..PLAIN });
    let last =
        Usage { input: 100, output: 20, cache_read: 60, cache_write: 5, thinking: 7, ..Usage::default() };
    client.put(SessionEvent::Usage(UsageNow {
        used: 120,
        size: 200_000,
        cost: Some(0.500_000_000_000_1),
        last,
    }));
    client.put(SessionEvent::Usage(UsageNow {
        used: 1,
        size: 2,
        cost: Some(f64::NAN),
        last: Usage::default(),
    }));
    let hint = Some("what to keep".to_owned());
    let command = CommandInfo { name: "compact".into(), description: "Compacts".into(), hint, skill: None };
    client.put(SessionEvent::Commands(Arc::new([command])));
    client.put(SessionEvent::Notice { severity: NoticeSeverity::Warning, text: "Retrying\nin 2 s".into() });
    client.put(SessionEvent::Notice { severity: NoticeSeverity::Error, text: " \n".into() });
    assert_eq!(
        client.updates,
        [
            json!({ "sessionUpdate": "usage_update", "used": 120, "size": 200_000,
                "cost": { "amount": 0.5, "currency": "USD" },
                "_meta": { "usage": { "inputTokens": 100, "outputTokens": 20, "cachedReadTokens": 60,
                    "cachedWriteTokens": 5, "thoughtTokens": 7, "totalTokens": 120 } } }),
            json!({ "sessionUpdate": "usage_update", "used": 1, "size": 2,
                "_meta": { "usage": { "inputTokens": 0, "outputTokens": 0, "cachedReadTokens": 0,
                    "cachedWriteTokens": 0, "thoughtTokens": 0, "totalTokens": 0 } } }),
            json!({ "sessionUpdate": "available_commands_update", "availableCommands": [
                { "name": "compact", "description": "Compacts", "input": { "hint": "what to keep" } }] }),
            json!({ "sessionUpdate": "notice", "severity": "warning", "title": "Retrying",
                "description": "in 2 s" }),
        ]
    );
}

#[test]
fn options_are_complete_and_in_order() {
    let options = SessionOptions {
        mode: Mode::Ask,
        model: Some(ModelName("a/b".into())),
        models: vec![ModelOption { name: ModelName("a/c".into()), about: "C".into() }],
        thought: ThoughtLevel::Low,
        remarks: vec![(ThoughtLevel::Off, "always thinks".into())],
        auto_compact: true,
    };
    let mut client = WireClient::new(PLAIN);
    client.put(SessionEvent::Options(Arc::new(options)));
    let offered = client.updates[0]["configOptions"].as_array().unwrap();
    let summary: Vec<(&str, &str, &str, usize)> = offered
        .iter()
        .map(|option| {
            let text = |name: &str| option[name].as_str().unwrap();
            let category = option["category"].as_str().unwrap_or_default();
            (text("id"), category, text("currentValue"), option["options"].as_array().unwrap().len())
        })
        .collect();
    assert_eq!(
        summary,
        [
            ("model", "model", "a/b", 2),
            ("mode", "mode", "ask", 5),
            ("thought_level", "thought_level", "low", 5),
            ("auto_compact", "", "on", 2),
        ]
    );
    assert_eq!(
        offered[2]["options"][0]["description"], "always thinks",
        "a level without its effect says so"
    );
    assert_eq!(offered[2]["options"][1].get("description"), None);
}

/// The values of the model option, with their groups.
fn offered_models(names: &[&str]) -> Value {
    let models =
        names.iter().map(|name| ModelOption { name: ModelName((*name).into()), about: String::new() });
    let options = SessionOptions {
        mode: Mode::Ask,
        model: Some(ModelName("anthropic/a1".into())),
        models: models.collect(),
        thought: ThoughtLevel::Low,
        remarks: vec![(ThoughtLevel::Off, "always thinks".into())],
        auto_compact: true,
    };
    let mut client = WireClient::new(PLAIN);
    client.put(SessionEvent::Options(Arc::new(options)));
    client.updates[0]["configOptions"][0]["options"].clone()
}

#[test]
fn few_models_are_a_flat_list_and_many_are_grouped() {
    assert_eq!(
        offered_models(&["anthropic/a1", "local/org/l1"]),
        json!([{ "value": "anthropic/a1", "name": "a1 (Anthropic)" },
            { "value": "local/org/l1", "name": "org/l1 (This machine)" }])
    );
    let many: Vec<String> = (1..=9).map(|at| format!("local/l{at}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let grouped = offered_models(&many);
    let groups: Vec<(&str, usize)> = grouped
        .as_array()
        .unwrap()
        .iter()
        .map(|group| (group["name"].as_str().unwrap(), group["options"].as_array().unwrap().len()))
        .collect();
    assert_eq!(groups, [("Anthropic", 1), ("This machine", 9)], "the current one is always among them");
    assert_eq!(grouped[1]["options"][0], json!({ "value": "local/l1", "name": "l1" }));
}

#[test]
fn without_notice_support_a_notice_waits_for_a_turn() {
    let mut client = WireClient::new(PLAIN);
    client.put(SessionEvent::Notice { severity: NoticeSeverity::Info, text: "no MCP".into() });
    assert!(client.updates.is_empty(), "a chunk outside of a turn is an error to some editors");
    client.entry(said(vec![text("hi")], Origin::Person));
    client.put(SessionEvent::Notice { severity: NoticeSeverity::Info, text: "retrying".into() });
    assert_eq!(
        client.texts(),
        [("n1".into(), "no MCP".into()), ("n2".to_owned(), "\n\nretrying".to_owned())]
    );
    client.entry(ended(StopReason::EndTurn));
    client.put(SessionEvent::Notice { severity: NoticeSeverity::Info, text: "later".into() });
    assert_eq!(client.updates.len(), 2);
}

#[test]
fn notice_ids_are_not_reused_after_a_replay() {
    let opened = Change::Opened { format: 1, session: SessionId("s_0".into()), cwd: "/w".into() };
    let notice = |text: &str| SessionEvent::Notice { severity: NoticeSeverity::Info, text: text.into() };
    let mut client = WireClient::new(PLAIN);
    client.entry(said(vec![text("hi")], Origin::Person)).put(notice("first"));
    client.entry(ended(StopReason::EndTurn)).put(notice("waits"));
    client.replayed(opened).entry(said(vec![text("again")], Origin::Person));
    assert_eq!(client.texts(), [("n1".into(), "first".into()), ("n2".to_owned(), "waits".to_owned())]);
}
