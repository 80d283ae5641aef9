//! Changes of a prompt by hooks before the model receives it.

use epitome::thread::{Change, Origin, StopReason, Withheld};
use epitome_scripted_model::Seen;
use serde_json::json;

use super::desk::call;
use super::stage::{answers, count, flood, puppet, script, sent, with_hooks};

#[test]
fn a_blocked_prompt_reaches_no_model_and_is_logged_outside_the_view() {
    let guard = script(
        "user_message_send",
        r#"read -r line; case "$line" in *secret*) echo '{"blocked": true, "reason": "No secrets."}';; esac"#,
    );
    let mut desk = with_hooks(&[("guard", guard)], &[], Vec::new());
    assert_eq!(desk.ask("My secret is 12"), StopReason::Refusal);
    assert!(desk.model.requests().is_empty());
    let why = desk.client.entry(|change| match change {
        Change::Withheld { why: Withheld::Blocked { hook, reason }, .. } => {
            Some((hook.clone(), reason.clone()))
        }
        _ => None,
    });
    assert_eq!(why, ("guard".to_owned(), "No secrets.".to_owned()));
    assert_eq!(desk.ask("Hello"), StopReason::EndTurn);
    assert!(!sent(&desk).contains("secret is"));
}

#[test]
fn a_blocked_queued_prompt_does_not_end_the_running_turn() {
    let guard = script(
        "user_message_send",
        r#"read -r line; case "$line" in *secret*) echo '{"blocked": true, "reason": "No secrets."}';; esac"#,
    );
    let mut desk = with_hooks(&[("guard", guard)], &[], vec![vec![call(json!({"do": "wait"}))]]);
    let first = desk.prompt("Hello");
    desk.client.until(|out| matches!(out, epitome::session::Out::CallStarted { .. }).then_some(()));
    let second = desk.prompt("My secret is 12");
    desk.client.entry(|change| matches!(change, Change::Queued { .. }).then_some(()));
    desk.release_tool();
    assert_eq!((desk.reason(first), desk.reason(second)), (StopReason::EndTurn, StopReason::EndTurn));
    assert_eq!(desk.model.requests().len(), 2);
    assert!(!sent(&desk).contains("secret is"));
    desk.ask("Next");
    assert!(!sent(&desk).contains("secret is"), "nor with a later prompt");
}

#[test]
fn a_changed_prompt_and_its_context_are_sent_to_the_model() {
    let style = "events: [user_message_send]\nthen: {message: Changed., context: [Be brief.]}\n".to_owned();
    let mut desk = with_hooks(&[("style.yaml", style)], &[], vec![flood()]);
    desk.ask("Hello");
    let seen = desk.last_request().seen();
    let [Seen::User(said), Seen::User(context)] = &seen[..] else { panic!("two texts: {seen:?}") };
    assert_eq!(said, "Changed.");
    assert!(context.contains("style") && context.contains("Be brief."), "{context}");
    assert_eq!(
        count(&desk, |change| matches!(change, Change::Said { origin: Origin::Context { .. }, .. })),
        1
    );
    desk.ask("/compact");
    let summary = desk.client.entry(|change| match change {
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
    let mut desk = with_hooks(&[("empty", puppet("user_message_send"))], &[], Vec::new());
    for empty in ["", " \n"] {
        answers(&desk, &json!({"message": empty}));
        assert_eq!(desk.ask("Hello"), StopReason::EndTurn);
        assert_eq!(desk.last_request().last_user_text(), "Hello", "{empty:?}");
    }
}

#[test]
fn context_of_session_start_is_in_the_system_text() {
    let start = "events: [session_start]\nthen: {context: Speak Welsh.}\n".to_owned();
    let mut desk = with_hooks(&[("start.yaml", start)], &[], Vec::new());
    desk.ask("Hello");
    assert!(desk.last_request().body["system"].to_string().contains("Speak Welsh."));
    assert!(!sent(&desk).contains("Welsh"));
}
