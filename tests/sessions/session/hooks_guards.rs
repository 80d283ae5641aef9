//! The guards that keep hooks from causing endless loops.

use epitome::session::SessionEvent;
use epitome::thread::{Change, StopReason, Trigger};
use serde_json::json;

use super::stage::{count, flood, notices, payload_fields, recorder, refused, script, with_hooks};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::session::call;
use epitome_test_harness::text;

fn compactions(change: &Change) -> bool {
    matches!(change, Change::Compacted { .. })
}

#[test]
fn a_hook_with_ever_new_follow_ups_continues_three_times() {
    let endless = script(
        "agent_stop",
        r#"cd "$EPITOME_CWD"; echo x >> n; echo "{\"follow_up_messages\": [\"Go $(wc -l < n)\"]}""#,
    );
    let mut test = with_hooks(&[("endless", endless)], &[], Vec::new());
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
    assert_eq!(test.model.requests().len(), 4);
    assert!(refused(&test)[0].contains("3 times"), "{:?}", refused(&test));
    test.ask("Again");
    assert_eq!(test.model.requests().len(), 8, "each prompt has its own");
}

/// Regression: a user had sent another prompt while the agent worked, which a hook had already continued three times. The
/// hook was told that it had continued that prompt too, and could not.
#[test]
fn a_prompt_that_enters_a_running_turn_has_its_own_continuations() {
    let endless = script(
        "agent_stop",
        r#"cd "$EPITOME_CWD"; echo x >> n; echo "{\"follow_up_messages\": [\"Go $(wc -l < n)\"]}""#,
    );
    let said = || vec![text("Done.")];
    let replies = vec![said(), said(), said(), vec![call(json!({"do": "wait"}))]];
    let mut test = with_hooks(&[("endless", endless)], &[], replies);
    let ticket = test.prompt("Hello");
    test.client.until(|out| matches!(out, SessionEvent::CallStarted { .. }).then_some(()));
    let other = test.prompt("And the tests");
    test.client.entry(|change| matches!(change, Change::Queued { .. }).then_some(()));
    test.release_tool();
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    assert_eq!(test.reason(other), StopReason::EndTurn);
    assert_eq!(test.model.requests().len(), 8, "four for each prompt");
}

/// Regression: of two follow-ups only the second was remembered, so a repeated pair was never recognized.
#[test]
fn a_repeated_follow_up_stops_the_agent() {
    for same in [json!(["Run the linter"]), json!(["Run the linter", "And the tests"])] {
        let lint = json!({"events": ["agent_stop"], "then": {"follow_up_messages": same}}).to_string();
        let mut test = with_hooks(&[("lint.json", lint)], &[], Vec::new());
        assert_eq!(test.ask("Hello"), StopReason::EndTurn);
        assert_eq!(test.model.requests().len(), 2, "{same}");
        assert!(refused(&test)[0].contains("the same"), "{:?}", refused(&test));
        let found =
            notices(&mut test).into_iter().filter(|text| text.contains("lint.json")).collect::<Vec<_>>();
        assert_eq!(found.len(), 1, "{found:?}");
    }
}

#[test]
fn a_hook_causes_at_most_one_compaction_between_two_calls() {
    let always = json!({"events": ["turn_end", "agent_stop"], "then": {"action": "compact"}}).to_string();
    let mut test = with_hooks(
        &[("always.json", always)],
        &[],
        vec![flood(), vec![text("<summary>Words were said.</summary>")], vec![text("Short.")]],
    );
    assert_eq!(test.ask("Say many words"), StopReason::EndTurn);
    assert_eq!(count(&test, compactions), 1);
    assert_eq!(test.model.requests().len(), 2, "the reply and its summary");
    for _ in 0..4 {
        assert_eq!(test.ask("Next"), StopReason::EndTurn);
    }
    // Hardly anything is gained by the others, but the hook requested them.
    assert_eq!(count(&test, compactions), 5, "one after each reply");
}

fn small_window(ratio: f64) -> String {
    format!(
        "[compaction]\nratio = {ratio}\n[models.\"anthropic/claude-sonnet-4-5\"]\ncontext_window = 20000\n"
    )
}

/// Regression: a blocked compaction was performed in the next round without running the hooks, because the request for
/// the first compaction was still pending, with the record that its hooks had run.
#[test]
fn a_blocked_compaction_is_blocked_in_the_next_round_too() {
    let block =
        json!({"events": ["pre_compact"], "then": {"blocked": true, "reason": "Not now."}}).to_string();
    let always = json!({"events": ["turn_end"], "then": {"action": "compact"}}).to_string();
    let audit = recorder("pre_compact");
    let words = json!({"says": "many words ".repeat(2000)});
    let mut test = with_hooks(
        &[("always.json", always), ("audit", audit), ("block.json", block)],
        &[],
        vec![vec![call(words.clone())], vec![call(words)]],
    );
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    assert_eq!(count(&test, compactions), 0);
    assert!(payload_fields(&test, "reason").len() >= 2, "{:?}", payload_fields(&test, "reason"));
    assert!(payload_fields(&test, "reason").iter().all(|reason| reason == "hook"));
}

#[test]
fn the_window_is_compacted_at_the_configured_share() {
    for (ratio, compacted) in [(0.3, 1), (0.0, 0)] {
        let config = format!("model = \"anthropic/claude-sonnet-4-5\"\n{}", small_window(ratio));
        let mut test = with_hooks(
            &[("audit", recorder("pre_compact"))],
            &[("home/config.toml", &config)],
            vec![
                vec![ModelStep::Usage { input: 3_000, output: 2_000 }, text(&"many words ".repeat(3000))],
                vec![ModelStep::Usage { input: 7_000, output: 10 }, text("Yes.")],
                vec![text("<summary>Words were said.</summary>")],
            ],
        );
        assert_eq!(test.ask("Say many words"), StopReason::EndTurn);
        assert_eq!(count(&test, compactions), 0);
        assert_eq!(test.ask("Go"), StopReason::EndTurn);
        let threshold =
            |change: &Change| matches!(change, Change::Compacted { trigger: Trigger::Threshold, .. });
        assert_eq!(count(&test, threshold), compacted, "{ratio}");
        assert_eq!(payload_fields(&test, "reason"), vec!["threshold"; compacted]);
    }
}

#[test]
fn pre_compact_hooks_provide_the_summary_or_instructions() {
    let own = json!({"events": ["pre_compact"], "then": {"summary": "The hook's own words."}}).to_string();
    let mut test = with_hooks(&[("own.json", own)], &[], vec![flood()]);
    test.ask("Say many words");
    test.ask("/compact");
    assert_eq!(test.model.requests().len(), 1, "no model is asked");
    let summary = test.client.entry(|change| match change {
        Change::Compacted { summary, .. } => Some(summary.text()),
        _ => None,
    });
    assert!(summary.contains("The hook's own words."), "{summary}");

    let context = json!({"events": ["pre_compact"], "then": {"custom_instructions": "Mind the gap.",
        "context": "The port is 8123."}})
    .to_string();
    let mut test = with_hooks(
        &[("context.json", context)],
        &[],
        vec![flood(), vec![text("<summary>Words were said.</summary>")]],
    );
    test.ask("Say many words");
    test.ask("/compact");
    assert!(test.last_request().last_user_text().contains("Mind the gap."));
    test.ask("Next");
    let sent = super::stage::sent(&test);
    assert!(sent.contains("The port is 8123.") && sent.contains("Words were said."), "{sent}");
}
