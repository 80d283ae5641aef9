//! The combined effect of several hooks for one event, and the trail entry of each.

use epitome::tools::ToolError;
use std::sync::Arc;
use std::time::Duration;

use epitome::hooks::chain::{Chain, ChainLink, ToolInputCheck, links};
use epitome::hooks::handlers::Handler;
use epitome::hooks::hook::{FailMode, Hook, HookConditions, Manifest};
use epitome::hooks::hook_context::{EventData, HookContext, InvokedBy};
use epitome::hooks::output::{
    HistoryAction, HistoryTail, HookOutput, PermissionDecision, ProcessExit, RawOutcome, Resolution,
};
use epitome::hooks::words::REPLACED;
use epitome::thread::HookRunResult;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::*;

fn two(hook_context: HookContext, first: Value, second: Value) -> Resolution {
    resolve(hook_context, vec![(script("a"), printed(first)), (script("b"), printed(second))])
}

fn with(name: &str, change: impl FnOnce(&mut Manifest)) -> Hook {
    let mut hook = script(name);
    change(&mut hook.manifest);
    hook
}

fn names(links: &[ChainLink]) -> Vec<String> {
    links.iter().map(ChainLink::name).collect()
}

// Selection and order of hooks.

#[test]
fn hooks_run_by_priority_then_in_list_order() {
    let hooks: Vec<Arc<Hook>> = [("a", 0), ("b", 5), ("c", 0), ("d", -1), ("e", 5)]
        .map(|(name, priority)| Arc::new(with(name, |manifest| manifest.priority = priority)))
        .to_vec();
    assert_eq!(names(&links(&hooks, &turn_end())), ["b", "e", "a", "c", "d"]);
}

#[test]
fn a_hook_registered_under_two_names_of_an_event_runs_once() {
    let mut hook = script("a");
    let event = turn_end().what.event();
    hook.events = vec![(event, "after_turn".to_owned()), (event, "turn.end".to_owned())];
    let mut chain = Chain::new(turn_end(), links(&[Arc::new(hook)], &turn_end()));
    let runs = chain.next().expect("one run");
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].event_name, "after_turn");
    chain.record_results(vec![(exit(0, "", ""), Duration::ZERO)]);
    assert!(chain.next().is_none());
}

#[test]
fn subagent_stop_runs_only_for_subagents() {
    let mut hook = script("a");
    hook.events = vec![(agent_stop().what.event(), "SubagentStop".to_owned())];
    let hooks = [Arc::new(hook)];
    assert!(links(&hooks, &agent_stop()).is_empty());
    let mut of_subagent = agent_stop();
    of_subagent.base.invoked_by = InvokedBy::Subagent;
    assert_eq!(links(&hooks, &of_subagent).len(), 1);
}

#[test]
fn conditions_apply_only_to_events_that_have_their_subject() {
    let some = |list: &[&str]| list.iter().map(|glob| (*glob).to_owned()).collect::<Vec<String>>();
    let in_recipe = |recipe: &str| {
        let mut hook_context = turn_end();
        hook_context.base.recipe = recipe.to_owned();
        hook_context
    };
    let tool = |globs: &[&str]| HookConditions { tool_name: some(globs), ..HookConditions::default() };
    let recipe = |globs: &[&str]| HookConditions { recipe: some(globs), ..HookConditions::default() };
    let ratio = |least| HookConditions { usage_ratio_gte: Some(least), ..HookConditions::default() };
    let every = |turns| HookConditions { every_turns: Some(turns), ..HookConditions::default() };
    for (condition, hook_context, fits) in [
        (HookConditions::default(), turn_end(), true),
        (tool(&["bash"]), before_call(), true),
        (tool(&["ba*"]), before_call(), true),
        (tool(&["{bash,edit}"]), after_call("x"), true),
        (tool(&["read", "edit"]), before_call(), false),
        (tool(&["read"]), turn_end(), true),
        (recipe(&["compact"]), in_recipe("compact"), true),
        (recipe(&["github/*"]), in_recipe("github/pr"), true),
        (recipe(&["*"]), in_recipe("compact"), true),
        (recipe(&["*"]), in_recipe(""), false),
        (recipe(&[""]), in_recipe(""), true),
        (HookConditions { invoked_by: some(&["subagent"]), ..HookConditions::default() }, turn_end(), false),
        (HookConditions { trigger: some(&["auto"]), ..HookConditions::default() }, pre_compact(false), true),
        (
            HookConditions { trigger: some(&["manual"]), ..HookConditions::default() },
            pre_compact(false),
            false,
        ),
        (ratio(0.6875), turn_end(), true),
        (ratio(0.70), turn_end(), false),
        (every(5), turn_end(), true),
        (every(2), turn_end(), false),
        (every(0), turn_end(), true),
        (every(2), before_call(), true),
        (HookConditions { tool_name: some(&["["]), ..HookConditions::default() }, before_call(), false),
    ] {
        assert_eq!(condition.matches(&hook_context), fits, "{condition:?} at {}", hook_context.what.event());
    }
}

#[test]
fn hooks_run_in_sequence_except_within_a_claude_group() {
    let hooks: Vec<Arc<Hook>> =
        [script("a"), claude("b", 1), claude("c", 1), claude("d", 2), script("e")].map(Arc::new).to_vec();
    let mut chain = Chain::new(before_call(), links(&hooks, &before_call()));
    let mut batches = Vec::new();
    while let Some(runs) = chain.next() {
        batches.push(runs.iter().map(|run| run.link.name()).collect::<Vec<_>>().join(" "));
        chain.record_results(runs.iter().map(|_| (exit(0, "", ""), Duration::ZERO)).collect());
    }
    assert_eq!(batches, ["a", "b c", "d", "e"]);
    assert_eq!(chain.finish().quiet, 5);
}

#[test]
fn next_returns_the_same_runs_until_results_are_provided() {
    let hooks = [Arc::new(script("a"))];
    let mut chain = Chain::new(turn_end(), links(&hooks, &turn_end()));
    for _ in 0..3 {
        assert_eq!(chain.next().expect("still a").len(), 1);
    }
    chain.record_results(Vec::new());
    assert!(chain.next().is_none());
    let resolution = chain.finish();
    assert_eq!(trail(&resolution, "a").verdict, HookRunResult::Skipped);
}

// Blocking.

#[test]
fn the_first_block_is_final_and_later_hooks_do_not_run() {
    for hook_context in [prompt("hi"), before_call(), pre_compact(false)] {
        let resolution = resolve(
            hook_context,
            vec![
                (script("a"), printed(json!({}))),
                (script("b"), printed(json!({"blocked": true, "reason": "policy"}))),
                (script("c"), printed(json!({"blocked": true, "reason": "too late"}))),
            ],
        );
        assert_eq!(resolution.block, Some(("b".to_owned(), "policy".to_owned())));
        assert_eq!((resolution.quiet, resolution.trail.len()), (1, 1));
        let run = trail(&resolution, "b");
        assert_eq!(
            (run.asked.as_str(), run.verdict, run.end.as_str()),
            ("block", HookRunResult::Done, "exit 0")
        );
        assert_eq!((run.milliseconds, run.digest.as_str()), (7, "digest of b"));
    }
}

#[test]
fn a_block_without_a_reason_names_the_hook() {
    let resolution = resolve(before_call(), vec![(script("guard"), printed(json!({"blocked": true})))]);
    assert_eq!(resolution.block, Some(("guard".to_owned(), "Blocked by the hook guard.".to_owned())));
}

#[test]
fn a_mandatory_compaction_cannot_be_blocked() {
    let closed = with("b", |manifest| manifest.fail_mode = FailMode::Closed);
    let resolution = resolve(
        pre_compact(true),
        vec![(script("a"), printed(json!({"blocked": true}))), (closed, exit(1, "", ""))],
    );
    assert_eq!(resolution.block, None);
    assert_eq!(trail(&resolution, "a").verdict, HookRunResult::Refused);
    assert!(trail(&resolution, "a").remarks[0].contains("cannot be blocked"));
    assert_eq!(trail(&resolution, "b").verdict, HookRunResult::Failed);
}

#[test]
fn a_hook_may_block_a_compaction_and_edit_instead() {
    let answer = json!({"blocked": true, "context_edits": [{"op": "mask", "entry": "e3"}]});
    let resolution = resolve(pre_compact(false), vec![(script("a"), printed(answer))]);
    assert!(resolution.block.is_some());
    assert_eq!(resolution.edits.len(), 1);
    assert_eq!(trail(&resolution, "a").asked, "block, edit 1 entry");
}

/// The output of a hook of Claude Code before a tool call.
fn in_claudes_form(specific: Value) -> Value {
    json!({ "hookSpecificOutput": specific })
}

#[test]
fn other_results_of_a_group_are_refused_if_one_hook_blocks() {
    let resolution = resolve(
        before_call(),
        vec![
            (claude("a", 1), answered(json!({"decision": "block", "reason": "no"}))),
            (claude("b", 1), answered(in_claudes_form(json!({"updatedInput": {"command": "pwd"}})))),
            (claude("c", 1), answered(json!({}))),
        ],
    );
    assert_eq!(resolution.block, Some(("a".to_owned(), "no".to_owned())));
    assert_eq!(resolution.input, None);
    assert_eq!(trail(&resolution, "b").verdict, HookRunResult::Refused);
    assert_eq!(resolution.quiet, 1);
}

// Failures.

#[test]
fn a_failed_run_is_in_the_trail_and_changes_nothing() {
    let block = r#"{"blocked": true}"#;
    let ended = |exit, stderr: &str| RawOutcome::Ended {
        exit,
        stdout: block.as_bytes().to_vec(),
        stdout_cut: false,
        stderr: stderr.to_owned(),
    };
    for (ran, end, remark) in [
        (ended(ProcessExit::Code(1), "first\nlast\n"), "exit 1", "last line of stderr: last"),
        (ended(ProcessExit::Code(2), "no"), "exit 2", "last line of stderr: no"),
        (ended(ProcessExit::Signal(9), "x"), "signal 9", "last line of stderr: x"),
        (
            ended(ProcessExit::TimedOut(Duration::from_secs(30)), "x"),
            "time limit of 30 s",
            "last line of stderr: x",
        ),
        (
            ended(ProcessExit::TimedOut(Duration::from_millis(100)), "x"),
            "time limit of 0.1 s",
            "last line of stderr: x",
        ),
        (exit(0, "oops", ""), "exit 0", "it printed something that is not a JSON object: oops"),
        (RawOutcome::Failed("no such file".to_owned()), "failed", "no such file"),
    ] {
        let resolution = resolve(before_call(), vec![(script("a"), ran)]);
        assert_eq!(resolution.block, None);
        let run = trail(&resolution, "a");
        assert_eq!((run.end.as_str(), run.verdict), (end, HookRunResult::Failed));
        assert_eq!(run.remarks, [remark]);
    }
}

#[test]
fn a_hook_that_was_not_started_is_in_the_trail() {
    let closed = with("a", |manifest| manifest.fail_mode = FailMode::Closed);
    let resolution = resolve(before_call(), vec![(closed, RawOutcome::Skipped("not trusted".to_owned()))]);
    assert_eq!(resolution.block, None, "what the user has not allowed blocks nothing");
    let run = trail(&resolution, "a");
    assert_eq!((run.end.as_str(), run.verdict), ("not run", HookRunResult::Skipped));
    assert_eq!(run.remarks, ["not trusted"]);
}

#[test]
fn a_hook_that_fails_closed_blocks_blockable_events() {
    for hook_context in every_moment() {
        let can_block = hook_context.what.event().blocks();
        let closed = with("a", |manifest| manifest.fail_mode = FailMode::Closed);
        let resolution = resolve(hook_context, vec![(closed, exit(1, "", "no network"))]);
        assert_eq!(resolution.block.is_some(), can_block);
        assert_eq!(trail(&resolution, "a").verdict, HookRunResult::Failed);
        if let Some((by, reason)) = resolution.block {
            assert_eq!(by, "a");
            assert_eq!(
                reason,
                "The hook a failed (exit 1): last line of stderr: no network. It is declared to fail closed."
            );
        }
    }
}

#[test]
fn exit_2_blocks_where_the_hook_declares_it() {
    let hook = || with("a", |manifest| manifest.exit_2_blocks = true);
    let resolution = resolve(before_call(), vec![(hook(), exit(2, "ignored", "not today\n"))]);
    assert_eq!(resolution.block, Some(("a".to_owned(), "not today".to_owned())));
    assert_eq!(trail(&resolution, "a").end, "exit 2");
    let elsewhere = resolve(turn_end(), vec![(hook(), exit(2, "", "x"))]);
    assert_eq!(trail(&elsewhere, "a").verdict, HookRunResult::Failed);
}

#[test]
fn a_run_with_only_warnings_is_in_the_trail_and_an_empty_one_is_counted() {
    let resolution = two(turn_end(), json!({"result": "explode"}), json!({}));
    assert_eq!(resolution.quiet, 1);
    let run = trail(&resolution, "a");
    assert_eq!((run.asked.as_str(), run.verdict, run.remarks.len()), ("", HookRunResult::Nothing, 1));
}

// Chaining.

#[test]
fn a_changed_input_is_passed_to_the_next_hook() {
    let hooks = [Arc::new(script("a")), Arc::new(script("b"))];
    let mut chain = Chain::new(before_call(), links(&hooks, &before_call()));
    chain.next();
    chain.record_results(vec![(printed(json!({"input": {"command": "ls -a"}})), Duration::ZERO)]);
    let runs = chain.next().expect("the second");
    let EventData::BeforeToolCall(call) = &runs[0].hook_context.what else { panic!("the same moment") };
    assert_eq!(call.input, object(json!({"command": "ls -a"})));
    chain.record_results(vec![(printed(json!({"input": {"command": "ls -a"}})), Duration::ZERO)]);
    let resolution = chain.finish();
    assert_eq!(resolution.input, Some((object(json!({"command": "ls -a"})), "a".to_owned())));
    assert_eq!(resolution.quiet, 1, "who gives the same input back has changed nothing");
}

/// A hook replaced a call's input with one that the tool rejects. The next hook, a guard, checked that input, but the
/// call then ran with its original input, which the guard had never seen.
#[test]
fn a_rejected_input_is_not_passed_to_the_next_hook() {
    let hooks = [Arc::new(script("a")), Arc::new(script("guard"))];
    let refuses = ToolInputCheck(Arc::new(|_| Err(ToolError::new("`command` is missing"))));
    let mut chain = Chain::new(before_call(), links(&hooks, &before_call())).checking_inputs(refuses);
    chain.next();
    chain.record_results(vec![(printed(json!({"input": {}})), Duration::ZERO)]);
    let runs = chain.next().expect("the guard");
    let (EventData::BeforeToolCall(given), EventData::BeforeToolCall(own)) =
        (&runs[0].hook_context.what, before_call().what)
    else {
        panic!("a call")
    };
    assert_eq!(*given, own);
    chain.record_results(vec![(printed(json!({})), Duration::ZERO)]);
    let resolution = chain.finish();
    assert_eq!(resolution.input, None);
    let run = trail(&resolution, "a");
    assert_eq!(run.verdict, HookRunResult::Refused);
    assert!(run.remarks[0].contains("`command` is missing"), "{:?}", run.remarks);
}

#[test]
fn a_changed_prompt_is_passed_on_and_context_accumulates() {
    let hooks = [Arc::new(script("a")), Arc::new(script("b"))];
    let mut chain = Chain::new(prompt("hi"), links(&hooks, &prompt("hi")));
    chain.next();
    chain.record_results(vec![(printed(json!({"message": "hello", "context": "one"})), Duration::ZERO)]);
    let runs = chain.next().expect("the second");
    let EventData::UserMessageSend { message, .. } = &runs[0].hook_context.what else {
        panic!("the same moment")
    };
    assert_eq!(message, "hello");
    chain.record_results(vec![(printed(json!({"context": ["two"]})), Duration::ZERO)]);
    let resolution = chain.finish();
    assert_eq!(resolution.message.as_deref(), Some("hello"));
    let context = [("a", "one"), ("b", "two")].map(|(by, text)| (by.to_owned(), text.to_owned()));
    assert_eq!(resolution.context, context);
    assert_eq!(trail(&resolution, "a").asked, "changed message, add context");
}

/// Regression: a hook of the session's start printed a log of 700 KB. It became part of the system prompt, so that every
/// request of every session of the project was too long for the model, and no compaction could help.
#[test]
fn the_context_of_the_hooks_of_one_event_is_bounded() {
    const MOST: usize = 64 * 1024;
    for hook_context in [at(EventData::SessionStart { source: "startup" }), prompt("hi"), after_call("done")]
    {
        let event = hook_context.what.event();
        let (first, second) = ("ü".repeat(MOST / 4), "x".repeat(1_000_000));
        let resolution = two(
            hook_context,
            json!({"context": first.as_str()}),
            json!({"context": [second.as_str(), "a third text"]}),
        );
        let result = resolution.result.iter().map(|result| result.text.as_str());
        let added: String = resolution.context.iter().map(|(_, text)| text.as_str()).chain(result).collect();
        assert!(added.contains(&first) && added.len() < MOST + 500, "{event}: {} bytes", added.len());
        let left_out = second.len() - (MOST - first.len());
        assert!(added.contains(&format!("[cut here: {left_out} of 1000000 bytes left out]")), "{event}");
        assert!(!added.contains("a third text"), "{event}");
        assert_eq!(trail(&resolution, "a").remarks, [""; 0], "{event}");
        let run = trail(&resolution, "b");
        assert_eq!((run.verdict, run.remarks.len()), (HookRunResult::Done, 2), "{event}");
    }
}

#[test]
fn the_first_of_two_changes_within_a_group_wins() {
    let resolution = resolve(
        before_call(),
        vec![
            (claude("a", 1), answered(in_claudes_form(json!({"updatedInput": {"command": "one"}})))),
            (claude("b", 1), answered(in_claudes_form(json!({"updatedInput": {"command": "two"}})))),
            (claude("c", 1), answered(in_claudes_form(json!({"permissionDecision": "allow"})))),
        ],
    );
    assert_eq!(resolution.input, Some((object(json!({"command": "one"})), "a".to_owned())));
    assert_eq!(trail(&resolution, "b").remarks, ["a, which ran at the same time, was first"]);
    assert_eq!(trail(&resolution, "c").remarks, ["it was given another input than that of a"]);
    assert_eq!(resolution.decision, None);
}

#[test]
fn a_changed_result_is_passed_to_the_next_hook() {
    let hooks = [Arc::new(script("a")), Arc::new(script("b"))];
    let mut chain = Chain::new(after_call("secret"), links(&hooks, &after_call("secret")));
    chain.next();
    chain.record_results(vec![(printed(json!({"output_text": "***"})), Duration::ZERO)]);
    let runs = chain.next().expect("the second");
    let EventData::AfterToolCall { result, .. } = &runs[0].hook_context.what else {
        panic!("the same moment")
    };
    assert_eq!(result.text, "***");
    chain.record_results(vec![(printed(json!({"context": "masked"})), Duration::ZERO)]);
    let result = chain.finish().result.expect("changed");
    assert_eq!(result.text, "***\n\n[Note by the hook b: masked]");
}

#[test]
fn the_output_text_is_derived_from_a_changed_result() {
    for (output, text) in [
        // The text of a success is in its metadata.
        (json!({"metadata": {"output": "clean", "exitCode": 0}}), "clean"),
        (json!({"metadata": {"text": "clean"}}), "clean"),
        (json!({"metadata": "clean"}), "clean"),
        (json!({"metadata": {"lines": 3}}), r#"{"lines":3}"#),
        // The text of a failure is its error.
        (json!({"success": false, "error": "refused"}), "refused"),
        (json!({"success": false, "error": "refused", "metadata": {"output": "x"}}), "refused"),
        // Nothing is left of it.
        (json!({"success": false}), REPLACED),
        (json!({"toolName": "bash", "success": true, "timestamp": "2024-01-15T10:30:00Z"}), REPLACED),
        // The content is unchanged.
        (json!({"metadataType": "other"}), "secret"),
    ] {
        let answer = json!({"output": output});
        let resolution = resolve(after_call("secret"), vec![(script("a"), printed(answer))]);
        assert_eq!(resolution.result.expect("changed").text, text, "{output}");
    }
}

/// Regression: a hook replaced the text of a result, and its metadata, which clients show, repeated the old one.
#[test]
fn metadata_do_not_outlive_the_text_that_they_repeat() {
    for (answer, stays) in [
        (json!({"output_text": "***"}), false),
        (json!({"output": {"success": false, "error": "***"}}), false),
        (json!({"output": {"success": true}}), false),
        // An addition to a text leaves nothing out.
        (json!({"output_text": "secret, as I know"}), true),
        (json!({"context": "more"}), true),
    ] {
        let resolution = resolve(after_call("secret"), vec![(script("a"), printed(answer.clone()))]);
        assert_eq!(resolution.result.expect("changed").metadata.is_some(), stays, "{answer}");
    }
}

#[test]
fn output_text_overrides_the_derived_text_and_an_equal_result_is_no_change() {
    let answer = json!({"output": {"metadata": {"output": "x"}}, "output_text": "exact"});
    let resolution = resolve(after_call("secret"), vec![(script("a"), printed(answer))]);
    assert_eq!(resolution.result.expect("changed").text, "exact");
    let same = json!({"output": {"toolName": "bash", "success": true, "metadataType": "bash",
        "metadata": {"output": "secret", "exitCode": 0}, "timestamp": "2024-01-15T10:30:00Z"}});
    let resolution = resolve(after_call("secret"), vec![(script("a"), printed(same))]);
    assert_eq!((resolution.result, resolution.quiet), (None, 1));
}

#[test]
fn compaction_instructions_are_passed_on_and_the_first_summary_wins() {
    let resolution = two(
        pre_compact(false),
        json!({"custom_instructions": "one", "context": "keep", "summary": "S"}),
        json!({"custom_instructions": "two", "summary": "T"}),
    );
    assert_eq!(resolution.custom_instructions.as_deref(), Some("two"));
    assert_eq!(resolution.summary, Some(("a".to_owned(), "S".to_owned())));
    assert_eq!(resolution.context, [("a".to_owned(), "keep".to_owned())]);
    assert_eq!(trail(&resolution, "b").verdict, HookRunResult::Refused);
}

// Decisions.

#[test]
fn the_strictest_of_several_decisions_wins() {
    use PermissionDecision::{Allow, Ask, Deny};
    for (first, second, decided, by) in [
        ("allow", "ask", Ask, "b"),
        ("ask", "allow", Ask, "a"),
        ("allow", "deny", Deny, "b"),
        ("ask", "deny", Deny, "b"),
        ("deny", "allow", Deny, "a"),
        ("allow", "allow", Allow, "a"),
    ] {
        let resolution = two(before_call(), json!({"decision": first}), json!({"decision": second}));
        let (decision, who, _) = resolution.decision.clone().expect("a decision");
        assert_eq!((decision, who.as_str()), (decided, by), "{first}, {second}");
        assert_eq!(resolution.block.is_some(), decided == Deny, "a denied call is a blocked one");
    }
    let resolution = two(before_call(), json!({"decision": "deny", "reason": "no"}), json!({}));
    assert_eq!(resolution.block, Some(("a".to_owned(), "no".to_owned())));
    assert_eq!((resolution.trail.len(), resolution.quiet), (1, 0), "b has not run");
}

#[test]
fn an_allow_decision_is_void_if_a_later_hook_changes_the_input() {
    let resolution =
        two(before_call(), json!({"decision": "allow"}), json!({"input": {"command": "rm -rf /"}}));
    assert_eq!(resolution.decision, None);
    assert!(trail(&resolution, "b").remarks[0].contains("no longer counts"));
    let own = json!({"decision": "allow", "input": {"command": "ls -a"}});
    let resolution = two(before_call(), own, json!({}));
    assert!(resolution.decision.is_some());
}

// Changes of the history.

#[test]
fn the_first_mutation_or_callback_wins_and_later_ones_are_conflicts() {
    let mutate = json!({"result": "mutate", "messages": ["S", "T"]});
    let callback = json!({"action": "compact"});
    for (first, second, asked, was_first) in [
        (mutate.clone(), callback.clone(), "callback compact", "mutate with 2 messages by a was first"),
        (callback.clone(), mutate, "mutate with 2 messages", "callback compact by a was first"),
        (callback.clone(), callback, "callback compact", "callback compact by a was first"),
    ] {
        for hook_context in [turn_end(), agent_stop()] {
            let resolution = two(hook_context, first.clone(), second.clone());
            assert_eq!(resolution.action_by, "a");
            let run = trail(&resolution, "b");
            assert_eq!((run.asked.as_str(), run.verdict), (asked, HookRunResult::Refused));
            assert_eq!(run.remarks, [was_first]);
        }
    }
}

#[test]
fn follow_ups_of_all_hooks_accumulate_without_duplicates() {
    let resolution = resolve(
        agent_stop(),
        vec![
            (script("a"), printed(json!({"follow_up_messages": ["one"]}))),
            (script("b"), printed(json!({"action": "compact", "follow_up_messages": ["one", "two"]}))),
            (
                script("c"),
                printed(json!({"result": "mutate", "messages": ["S"], "follow_up_messages": ["three"]})),
            ),
        ],
    );
    let follow_ups: Vec<(&str, &str)> =
        resolution.follow_ups.iter().map(|(by, one)| (by.as_str(), one.text.as_str())).collect();
    assert_eq!(follow_ups, [("a", "one"), ("b", "two"), ("c", "three")]);
    assert_eq!(resolution.action_by, "b");
}

#[test]
fn an_invalid_mutation_does_not_win() {
    let resolution = two(
        turn_end(),
        json!({"result": "mutate", "messages": ["S", " "]}),
        json!({"result": "mutate", "messages": [{"role": "assistant", "content": "T"}]}),
    );
    assert_eq!(trail(&resolution, "a").remarks, ["message 2 of 2 is blank"]);
    let HistoryAction::Mutate { messages, .. } = &resolution.action else { panic!("b's mutation") };
    assert_eq!(resolution.action_by, "b");
    assert_eq!(messages.len(), 2, "a user's line precedes the agent's");
    assert_eq!(messages[1], agent("T"));
}

#[test]
fn continue_is_only_accepted_from_the_winner() {
    let go_on = json!({"action": "compact", "continue": true});
    assert!(two(agent_stop(), go_on.clone(), json!({})).go_on);
    assert!(!two(agent_stop(), json!({"action": "compact"}), go_on).go_on);
}

#[test]
fn edits_conflict_with_a_new_history_but_not_with_a_callback() {
    let edits = json!({"context_edits": [{"op": "pin", "entry": "e3"}]});
    let mutate = json!({"result": "mutate", "messages": ["S"]});
    let resolution = two(turn_end(), edits.clone(), mutate.clone());
    assert_eq!((resolution.edits.len(), &resolution.action), (1, &HistoryAction::None));
    assert_eq!(trail(&resolution, "b").remarks, ["the edits of a were first"]);
    let resolution = two(turn_end(), mutate, edits.clone());
    assert_eq!(resolution.edits.len(), 0);
    assert_eq!(trail(&resolution, "b").verdict, HookRunResult::Refused);
    let resolution = two(turn_end(), edits, json!({"action": "compact"}));
    assert_eq!(resolution.edits.len(), 1);
    assert!(matches!(resolution.action, HistoryAction::Callback(_)));
}

fn swap() -> ChainLink {
    ChainLink::Handler(Arc::new(Handler {
        recipe: "compact".to_owned(),
        name: "swap_context".to_owned(),
        once: true,
        params: Default::default(),
    }))
}

fn with_swap(first: Value) -> Resolution {
    let mut links = links(&[Arc::new(script("a"))], &turn_end());
    links.push(swap());
    drive(turn_end(), links, |name| match name {
        "a" => printed(first.clone()),
        _ => RawOutcome::Answered(Box::new(HookOutput {
            action: HistoryAction::Swap { summary: "S".to_owned(), keep: HistoryTail::Nothing },
            ..HookOutput::default()
        })),
    })
}

#[test]
fn a_swap_after_a_scripts_mutation_counts_as_done() {
    let resolution = with_swap(json!({"result": "mutate", "messages": ["M"]}));
    assert_eq!(resolution.action_by, "a");
    let run = trail(&resolution, "compact:swap_context");
    assert_eq!((run.verdict, run.end.as_str()), (HookRunResult::Done, "answered"));
    assert_eq!(run.remarks, ["a has already replaced the history"]);
}

#[test]
fn a_swap_alone_is_done() {
    let resolution = with_swap(json!({}));
    assert_eq!(resolution.action_by, "compact:swap_context");
    assert!(matches!(resolution.action, HistoryAction::Swap { .. }));
}

#[test]
fn notices_accumulate_and_a_halt_ends_the_turn() {
    let resolution = two(turn_end(), json!({"notice": "one"}), json!({"notice": "two"}));
    assert_eq!(resolution.notices.len(), 2);
    let halt = |reason: &str| {
        RawOutcome::Answered(Box::new(HookOutput { halt: Some(reason.to_owned()), ..HookOutput::default() }))
    };
    let resolution = resolve(turn_end(), vec![(script("a"), halt("one")), (script("b"), halt("two"))]);
    assert_eq!(resolution.halt, Some(("a".to_owned(), "one".to_owned())));
    let resolution = resolve(before_call(), vec![(script("a"), halt("one")), (script("b"), halt("two"))]);
    assert_eq!(resolution.block, Some(("a".to_owned(), "one".to_owned())));
    assert_eq!(resolution.trail.len(), 1, "b has not run");
}

// Arbitrary runs.

fn any_run() -> impl Strategy<Value = RawOutcome> {
    let results = [
        json!({}),
        json!({"blocked": true}),
        json!({"decision": "allow"}),
        json!({"decision": "ask"}),
        json!({"decision": "deny"}),
        json!({"input": {"command": "x"}}),
        json!({"input": {"command": "y"}}),
        json!({"message": "m"}),
        json!({"context": "c"}),
        json!({"output_text": "t"}),
        json!({"result": "mutate", "messages": ["S"]}),
        json!({"result": "mutate", "messages": [" "]}),
        json!({"action": "compact", "continue": true}),
        json!({"follow_up_messages": ["f"]}),
        json!({"context_edits": [{"op": "pin", "entry": "e1"}]}),
        json!({"summary": "S", "custom_instructions": "i"}),
        json!({"result": "explode"}),
    ];
    prop_oneof![
        8 => prop::sample::select(results.to_vec()).prop_map(answered),
        1 => Just(exit(1, "", "broken")),
        1 => Just(exit(0, "garbage", "")),
        1 => Just(RawOutcome::Skipped("not trusted".to_owned())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_runs_have_one_winner_a_final_block_and_a_complete_trail(
        runs in prop::collection::vec((any_run(), any::<bool>(), 0usize..3), 0..8),
        which in 0usize..9,
        must: bool,
    ) {
        let mut hook_context = every_moment().swap_remove(which);
        if let EventData::PreCompact { must: is_must, .. } = &mut hook_context.what {
            *is_must = must;
        }
        let event = hook_context.what.event();
        let runs: Vec<(Hook, RawOutcome)> = runs
            .into_iter()
            .enumerate()
            .map(|(at, (ran, grouped, group))| {
                let name = format!("h{at}");
                (if grouped { claude(&name, group) } else { script(&name) }, ran)
            })
            .collect();
        let hooks: Vec<Arc<Hook>> = runs.iter().map(|(hook, _)| Arc::new(hook.clone())).collect();
        let mut ran = 0;
        let links = links(&hooks, &hook_context);
        let resolution = drive(hook_context, links, |name| {
            ran += 1;
            runs.iter().find(|(hook, _)| hook.name == name).expect("one for each").1.clone()
        });
        // Each run is in the trail or counted.
        prop_assert_eq!(resolution.trail.len() + resolution.quiet as usize, ran);
        // At most one hook's action was performed, and `action_by` names that hook.
        let winners: Vec<&str> = resolution
            .trail
            .iter()
            .filter(|run| run.verdict == HookRunResult::Done)
            .filter(|run| run.asked.contains("mutate") || run.asked.contains("callback"))
            .map(|run| run.hook.as_str())
            .collect();
        prop_assert!(winners.len() <= 1);
        prop_assert_eq!(winners.is_empty(), resolution.action == HistoryAction::None);
        if let Some(winner) = winners.first() {
            prop_assert_eq!(*winner, resolution.action_by.as_str());
        }
        // Only blockable events are blocked, and no later hook had an effect.
        prop_assert!(resolution.block.is_none() || event.blocks());
        prop_assert!(resolution.block.is_none() || !(must && which == 6));
        if let Some((by, _)) = &resolution.block {
            let at = resolution.trail.iter().position(|run| run.hook == *by).expect("who blocks is in the trail");
            let later_done = resolution.trail[at + 1..].iter().any(|run| run.verdict == HookRunResult::Done);
            prop_assert!(!later_done);
        }
        // A run whose request was not fulfilled has a remark that says why.
        for run in &resolution.trail {
            let excused = matches!(run.verdict, HookRunResult::Done);
            prop_assert!(excused || !run.remarks.is_empty(), "{:?}", run);
        }
        let texts: Vec<_> = resolution.follow_ups.iter().map(|(_, one)| &one.text).collect();
        prop_assert!(texts.len() <= 1, "the one follow-up is asked for once: {:?}", texts);
    }
}
