//! Every event of a session, as received by a script.

use epitome::session::SessionCommand;
use epitome::thread::StopReason;
use epitome_test_harness::session::{TestSession, call};
use epitome_test_harness::text;
use serde_json::{Value, json};

use super::stage::{flood, payload_fields, payloads, recorder, with_hooks};

const ALL: &str = r#"{"protocol": 2, "events": ["session_start", "user_message_send", "before_tool_call",
"after_tool_call", "turn_end", "agent_stop", "pre_compact", "post_compact", "session_end"]}"#;

fn payload(test: &TestSession, event: &str) -> Value {
    let found = payloads(test).into_iter().rfind(|payload| payload["canonical_event"] == event);
    found.unwrap_or_else(|| panic!("{event} was sent"))
}

#[test]
fn every_event_is_sent_at_its_time() {
    let mut test = with_hooks(
        &[("audit", recorder(ALL))],
        &[],
        vec![
            vec![text("I look."), call(json!({"says": "found"}))],
            flood(),
            vec![text("<summary>Words were said.</summary>")],
        ],
    );
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
    let first = [
        "session_start",
        "user_message_send",
        "before_tool_call",
        "after_tool_call",
        "turn_end",
        "turn_end",
        "agent_stop",
    ];
    assert_eq!(payload_fields(&test, "event"), first);

    let start = payload(&test, "session_start");
    assert_eq!((&start["source"], &start["invoked_by"]), (&json!("startup"), &json!("main")));
    assert_eq!(start["conv_id"], json!(test.session.0));
    assert_eq!(payload(&test, "user_message_send")["message"], "Hello");
    let before = payload(&test, "before_tool_call");
    assert_eq!((&before["tool_name"], &before["tool_input"]), (&json!("does"), &json!({"says": "found"})));
    let after = payload(&test, "after_tool_call");
    assert_eq!((&after["output_text"], &after["blocked"]), (&json!("found"), &json!(false)));
    assert_eq!(after["tool_output"]["success"], json!(true));
    let rounds: Vec<Value> =
        payloads(&test).into_iter().filter(|payload| payload["event"] == "turn_end").collect();
    assert_eq!((&rounds[0]["turn_number"], &rounds[0]["tools_used"]), (&json!(1), &json!(true)));
    assert_eq!((&rounds[1]["turn_number"], &rounds[1]["tools_used"]), (&json!(2), &json!(false)));
    assert_eq!(rounds[0]["response"], "I look.");
    let stop = payload(&test, "agent_stop");
    assert_eq!((&stop["stop_reason"], &stop["stop_hook_active"]), (&json!("end_turn"), &json!(false)));
    assert!(stop["usage"]["max_context_window"].as_u64().is_some_and(|window| window > 0));

    assert_eq!(test.ask("/compact the words"), StopReason::EndTurn);
    let by_command =
        ["pre_compact", "turn_end", "post_compact", "session_start", "agent_stop"].map(str::to_owned);
    assert_eq!(payload_fields(&test, "event")[first.len()..], by_command);
    let pre = payload(&test, "pre_compact");
    assert_eq!((&pre["trigger"], &pre["reason"]), (&json!("manual"), &json!("command")));
    assert_eq!((&pre["custom_instructions"], &pre["recipe"]), (&json!("the words"), &json!("compact")));
    let post = payload(&test, "post_compact");
    assert!(post["pre_tokens"].as_u64() > post["post_tokens"].as_u64(), "{post}");
    assert!(post["summary"].as_str().is_some_and(|summary| summary.contains("Words were said.")));
    assert_eq!(payload(&test, "session_start")["source"], "compact");

    // A script that makes a summary of a callback's last reply finds the same here.
    let stop = payload(&test, "agent_stop");
    assert_eq!(stop["callback_args"], json!({"target_conversation_id": test.session.0}));
    let messages = stop["messages"].as_array().expect("the event has messages");
    let [.., prompt, reply] = &messages[..] else { panic!("the recipe's prompt and its reply: {stop}") };
    assert_eq!((&prompt["role"], &reply["role"]), (&json!("user"), &json!("assistant")));
    assert!(prompt["content"].as_str().is_some_and(|text| text.contains("handover")), "{prompt}");
    assert!(reply["content"].as_str().is_some_and(|text| text.contains("Words were said.")), "{reply}");
}

#[test]
fn a_session_ends_on_close_and_on_detach_and_starts_again() {
    let ends = r#"{"protocol": 2, "events": ["session_start", "session_end"]}"#;
    let mut test = with_hooks(&[("audit", recorder(ends))], &[], Vec::new());
    test.ask("Hello");
    test.reload(test.environment());
    assert_eq!(payload_fields(&test, "event"), ["session_start", "session_end"]);
    test.ask("Again");
    assert_eq!(payload(&test, "session_start")["source"], "resume");
    let client = test.client.id;
    test.send(SessionCommand::Detach { client });
    // The load waits until the closing session has released the log.
    test.load(test.environment());
    assert_eq!(payload_fields(&test, "event")[2..], ["session_start", "session_end"]);
}

#[test]
fn a_recipe_and_a_queued_prompt_are_sent_to_prompt_hooks() {
    let recipe = "---\ndescription: Greets\n---\nGreet {{.who}}.\n";
    let mut test = with_hooks(
        &[("audit", recorder(r#"{"protocol": 2, "events": ["UserPromptSubmit"]}"#))],
        &[("home/recipes/greet.md", recipe)],
        vec![vec![call(json!({"do": "wait"}))]],
    );
    let first = test.prompt("/greet");
    test.client.until(|out| matches!(out, epitome::session::SessionEvent::CallStarted { .. }).then_some(()));
    let second = test.prompt("And this");
    test.client.entry(|change| matches!(change, epitome::thread::Change::Queued { .. }).then_some(()));
    test.release_tool();
    assert_eq!((test.reason(first), test.reason(second)), (StopReason::EndTurn, StopReason::EndTurn));
    assert_eq!(payload_fields(&test, "event"), ["UserPromptSubmit", "UserPromptSubmit"]);
    assert_eq!(payload_fields(&test, "invoked_recipe"), ["greet", "greet"]);
    assert_eq!(payload_fields(&test, "message")[1], "And this");
}

/// Regression: a session that was loaded and immediately compacted sent the `session_start` event that follows a
/// compaction before the one for its own start.
#[test]
fn a_session_that_begins_with_a_compaction_sends_session_start_first() {
    let starts = r#"{"protocol": 2, "events": ["session_start", "pre_compact"]}"#;
    let replies = vec![flood(), vec![text("<summary>Words were said.</summary>")]];
    let mut test = with_hooks(&[("audit", recorder(starts))], &[], replies);
    test.ask("Hello");
    test.reload(test.environment());
    test.ask("/compact");
    let events = payload_fields(&test, "event");
    assert_eq!(events[1..], ["session_start", "pre_compact", "session_start"]);
    assert_eq!(payloads(&test)[1]["source"], "resume");
}
