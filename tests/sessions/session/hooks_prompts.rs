//! Changes of a prompt by hooks before the model receives it.

use epitome::thread::{Change, Origin, StopReason, Withheld};
use epitome_scripted_model::SeenPart;
use epitome_test_harness::session::call;
use serde_json::json;

use super::stage::{answers, count, flood, puppet, script, sent, with_hooks};

#[test]
fn a_blocked_prompt_reaches_no_model_and_is_logged_outside_the_view() {
    let guard = script(
        "user_message_send",
        r#"read -r line; case "$line" in *secret*) echo '{"blocked": true, "reason": "No secrets."}';; esac"#,
    );
    let mut test = with_hooks(&[("guard", guard)], &[], Vec::new());
    assert_eq!(test.ask("My secret is 12"), StopReason::Refusal);
    assert!(test.model.requests().is_empty());
    let why = test.client.entry(|change| match change {
        Change::Withheld { why: Withheld::Blocked { hook, reason }, .. } => {
            Some((hook.clone(), reason.clone()))
        }
        _ => None,
    });
    assert_eq!(why, ("guard".to_owned(), "No secrets.".to_owned()));
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
    assert!(!sent(&test).contains("secret is"));
}

#[test]
fn a_blocked_queued_prompt_does_not_end_the_running_turn() {
    let guard = script(
        "user_message_send",
        r#"read -r line; case "$line" in *secret*) echo '{"blocked": true, "reason": "No secrets."}';; esac"#,
    );
    let mut test = with_hooks(&[("guard", guard)], &[], vec![vec![call(json!({"do": "wait"}))]]);
    let first = test.prompt("Hello");
    test.client.until(|out| matches!(out, epitome::session::SessionEvent::CallStarted { .. }).then_some(()));
    let second = test.prompt("My secret is 12");
    test.client.entry(|change| matches!(change, Change::Queued { .. }).then_some(()));
    test.release_tool();
    assert_eq!((test.reason(first), test.reason(second)), (StopReason::EndTurn, StopReason::EndTurn));
    assert_eq!(test.model.requests().len(), 2);
    assert!(!sent(&test).contains("secret is"));
    test.ask("Next");
    assert!(!sent(&test).contains("secret is"), "nor with a later prompt");
}

#[test]
fn a_changed_prompt_and_its_context_are_sent_to_the_model() {
    let style = "events: [user_message_send]\nthen: {message: Changed., context: [Be brief.]}\n".to_owned();
    let mut test = with_hooks(&[("style.yaml", style)], &[], vec![flood()]);
    test.ask("Hello");
    let seen = test.last_request().seen();
    let [SeenPart::User(said), SeenPart::User(context)] = &seen[..] else { panic!("two texts: {seen:?}") };
    assert_eq!(said, "Changed.");
    assert!(context.contains("style") && context.contains("Be brief."), "{context}");
    assert_eq!(
        count(&test, |change| matches!(change, Change::Said { origin: Origin::Context { .. }, .. })),
        1
    );
    test.ask("/compact");
    let summary = test.client.entry(|change| match change {
        Change::Compacted { summary, .. } => Some(summary.text()),
        _ => None,
    });
    assert!(
        summary.contains("Changed.") && !summary.contains("Be brief."),
        "the last request is quoted: {summary}"
    );
}

/// No provider accepts an empty text.
#[test]
fn a_hook_cannot_make_a_prompt_empty() {
    let mut test = with_hooks(&[("empty", puppet("user_message_send"))], &[], Vec::new());
    for empty in ["", " \n"] {
        answers(&test, &json!({"message": empty}));
        assert_eq!(test.ask("Hello"), StopReason::EndTurn);
        assert_eq!(test.last_request().last_user_text(), "Hello", "{empty:?}");
    }
}

#[test]
fn context_of_session_start_is_in_the_system_text() {
    let start = "events: [session_start]\nthen: {context: Speak Welsh.}\n".to_owned();
    let mut test = with_hooks(&[("start.yaml", start)], &[], Vec::new());
    test.ask("Hello");
    assert!(test.last_request().body["system"].to_string().contains("Speak Welsh."));
    assert!(!sent(&test).contains("Welsh"));
}
