//! The guards: limits on hooks that prevent endless loops.

use epitome::hooks::guards::{
    BEGINNING, Guards, HistoryError, checked, claude_continuations, continues, enforce, follow_up_text,
};
use epitome::hooks::output::{CallbackRequest, HistoryAction, HistoryTail, Resolution, Utterance};
use epitome::thread::{HookRunResult, Role};
use serde_json::{Value, json};

use super::support::*;

fn guards() -> Guards {
    Guards { continuations_max: 3, ..Guards::default() }
}

fn asked(value: Value) -> Resolution {
    resolve(agent_stop(), vec![(script("a"), printed(value))])
}

/// A resolution with an action that only handlers can request.
fn wanting(action: HistoryAction) -> Resolution {
    let mut resolution = asked(json!({"action": "compact"}));
    resolution.action = action;
    resolution
}

fn settled(mut resolution: Resolution, guards: &Guards) -> Resolution {
    enforce(&mut resolution, guards);
    resolution
}

#[track_caller]
fn assert_refused(resolution: &Resolution, why: &str) {
    assert_eq!(resolution.action, HistoryAction::None);
    let run = trail(resolution, "a");
    assert_eq!(run.verdict, HookRunResult::Refused);
    assert!(run.remarks.last().is_some_and(|remark| remark.contains(why)), "{:?}", run.remarks);
}

fn callback(name: &str) -> HistoryAction {
    HistoryAction::Callback(CallbackRequest { name: name.to_owned(), ..CallbackRequest::default() })
}

fn compact(threshold: bool) -> HistoryAction {
    HistoryAction::Compact { keep: HistoryTail::Ratio(0.4), threshold }
}

#[test]
fn what_no_guard_forbids_is_unchanged() {
    for action in [callback("compact"), callback("review"), compact(true), compact(false)] {
        let before = wanting(action);
        assert_eq!(settled(before.clone(), &guards()), before);
    }
}

#[test]
fn inside_a_callback_there_is_no_other_callback_and_no_compaction() {
    let inside = Guards { depth: 1, ..guards() };
    let swap = HistoryAction::Swap { summary: "S".to_owned(), keep: HistoryTail::Nothing };
    for action in [callback("compact"), callback("review"), compact(false), swap] {
        assert_refused(&settled(wanting(action), &inside), "inside a callback");
    }
}

#[test]
fn inside_a_callback_a_mutation_must_name_its_conversation() {
    let inside = Guards { depth: 1, ..guards() };
    let mutate = json!({"result": "mutate", "messages": ["S"]});
    assert_refused(&settled(asked(mutate), &inside), "must name its conversation");
    let mutate = json!({"result": "mutate", "messages": ["S"], "target_conversation_id": "s_02"});
    assert!(matches!(settled(asked(mutate), &inside).action, HistoryAction::Mutate { .. }));
}

#[test]
fn a_running_recipe_is_not_started_again() {
    let running = Guards { running_recipe: Some("compact".to_owned()), ..guards() };
    assert_refused(&settled(wanting(callback("compact")), &running), "the recipe compact is running already");
    assert_eq!(settled(wanting(callback("review")), &running).action, callback("review"));
}

#[test]
fn there_is_at_most_one_compaction_between_two_model_calls() {
    let compacted = Guards { compacted_since_call: true, ..guards() };
    for action in [callback("compact"), compact(true), compact(false)] {
        assert_refused(&settled(wanting(action), &compacted), "already compacted");
    }
    assert_eq!(settled(wanting(callback("review")), &compacted).action, callback("review"));
}

#[test]
fn two_useless_compactions_only_pause_the_automatic_one() {
    let paused = Guards { auto_compact_paused: true, ..guards() };
    assert_refused(&settled(wanting(compact(true)), &paused), "paused");
    assert_eq!(settled(wanting(compact(false)), &paused).action, compact(false));
    assert_eq!(settled(wanting(callback("compact")), &paused).action, callback("compact"));
}

#[test]
fn the_number_of_continuations_per_prompt_is_limited() {
    let follow_up = json!({"follow_up_messages": ["go"]});
    for continuations in 0..5 {
        let resolution = settled(asked(follow_up.clone()), &Guards { continuations, ..guards() });
        assert_eq!(continues(&resolution), continuations < 3, "after {continuations}");
        let is_refused = trail(&resolution, "a").verdict == HookRunResult::Refused;
        assert_eq!(is_refused, continuations >= 3);
    }
    let resolution = settled(asked(follow_up), &Guards { continuations: 3, ..guards() });
    assert_refused(&resolution, "3 times, which is the limit");
    let go_on = json!({"action": "compact", "continue": true});
    let resolution = settled(asked(go_on), &Guards { continuations: 3, ..guards() });
    assert!(!continues(&resolution));
    assert_eq!(resolution.action, callback("compact"), "the callback itself is done");
}

/// A hook that reminds the model to lint looks at the entire history, so it prints the same text after each reply.
#[test]
fn the_second_identical_follow_up_stops_with_a_notice() {
    let answer =
        json!({"result": "continue", "messages": [{"role": "user", "content": "Please run the linter"}]});
    let first = settled(asked(answer.clone()), &guards());
    assert!(continues(&first));
    let next = Guards { continuations: 1, last_follow_up: Some(follow_up_text(&first)), ..guards() };
    let second = settled(asked(answer), &next);
    assert!(!continues(&second));
    assert_refused(&second, "is the same");
    let other = settled(asked(json!({"follow_up_messages": ["Run the tests"]})), &next);
    assert!(continues(&other));
}

#[test]
fn identical_follow_ups_of_two_hooks_stop_too() {
    let both = || {
        resolve(
            agent_stop(),
            vec![
                (script("a"), printed(json!({"follow_up_messages": ["lint"]}))),
                (script("b"), printed(json!({"follow_up_messages": ["test"]}))),
            ],
        )
    };
    let last = follow_up_text(&both());
    assert_eq!(last, "lint\n\ntest");
    let resolution = settled(both(), &Guards { last_follow_up: Some(last), ..guards() });
    assert!(!continues(&resolution));
    assert!(resolution.trail.iter().all(|run| run.verdict == HookRunResult::Refused));
}

#[test]
fn after_a_mutation_or_callback_the_agent_stops_unless_a_hook_continues() {
    for (answer, expected) in [
        (json!({"action": "compact"}), false),
        (json!({"result": "mutate", "messages": ["S"]}), false),
        (json!({"action": "compact", "continue": true}), true),
        (json!({"action": "compact", "follow_up_messages": ["go"]}), true),
        (json!({}), false),
    ] {
        assert_eq!(continues(&settled(asked(answer.clone()), &guards())), expected, "{answer}");
    }
}

#[test]
fn a_mutation_is_valid_or_refused_with_a_reason() {
    let system = Utterance { role: Role::System, text: "rules".to_owned() };
    for (messages, expected) in [
        (vec![user("a")], Ok(vec![user("a")])),
        (vec![user("a"), user("b"), agent("c")], Ok(vec![user("a"), user("b"), agent("c")])),
        (vec![system.clone(), agent("c")], Ok(vec![system, agent("c")])),
        (vec![agent("c")], Ok(vec![user(BEGINNING), agent("c")])),
        (vec![], Err(HistoryError::Empty)),
        (vec![user("a"), user("\n ")], Err(HistoryError::Blank { at: 2, count: 2 })),
    ] {
        assert_eq!(checked(&messages), expected);
    }
}

/// Regression: Anthropic's own plugin ralph-wiggum continues with the same prompt each time. It was stopped after one
/// round; Claude Code ends such a loop after eight rounds.
#[test]
fn a_hook_of_claude_code_may_repeat_itself_eight_times() {
    let again = json!({"follow_up_messages": ["Once more."]});
    let at = |continuations, claude: &[&str]| Guards {
        continuations,
        claude: claude.iter().map(|name| (*name).to_owned()).collect(),
        claude_continuations_max: claude_continuations(&[], 3),
        last_follow_up: (continuations > 0).then(|| "Once more.".to_owned()),
        ..guards()
    };
    for (continuations, claude, goes_on) in [
        (0, &[][..], true),
        (1, &[][..], false),
        (1, &["a"][..], true),
        (7, &["a"][..], true),
        (8, &["a"][..], false),
    ] {
        let resolution = settled(asked(again.clone()), &at(continuations, claude));
        assert_eq!(continues(&resolution), goes_on, "{continuations} {claude:?}");
    }
}

#[test]
fn a_variable_sets_the_limit_of_claude_codes_hooks() {
    let with =
        |value: &str| claude_continuations(&[("CLAUDE_CODE_STOP_HOOK_BLOCK_CAP".into(), value.into())], 3);
    assert_eq!([with("20"), with("1"), with("many"), with("99999")], [20, 1, 8, 1_000]);
    assert_eq!((claude_continuations(&[], 3), claude_continuations(&[], 12)), (8, 12));
}
