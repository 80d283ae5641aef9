//! Scripts that request a compaction at their own threshold, in each of the supported forms.

use epitome_scripted_model::SeenPart;
use epitome_test_harness::text;

use super::project::*;

/// Scripts for `agent_stop` also run at the end of the recipe; careful ones skip that.
const NOT_IN_THE_RECIPE: &str = r#"if [ "$(field invoked_recipe)" = "compact" ]; then exit 0; fi"#;

/// A script that acts above 70 % of the window.
fn above_70(event: &str, then: &str) -> String {
    format!(
        r#"#!/bin/sh
case "$1" in
    hook)
        echo "{event}"
        ;;
    run)
        payload=$(cat)
        field() {{ printf '%s\n' "$payload" | sed -n "s/.*\"$1\":\"*\([^\",}}]*\).*/\1/p"; }}
        current=$(field current_context_window)
        max=$(field max_context_window)
        if [ "$max" -gt 0 ] && [ $((current * 100)) -gt $((max * 70)) ]; then
            conv_id=$(field conv_id)
            {then}
        fi
        ;;
    *)
        exit 1
        ;;
esac
"#
    )
}

/// Asserts one compaction, as seen by the model, the client and the store, after which the conversation
/// continues. Returns the run that compacted.
#[track_caller]
fn compacts_once(project: &Project, trail: &[&str]) -> Heard {
    project.run("say one");
    let filled = project.follow("fill");
    assert_eq!(filled.asked.len(), 2, "the reply, and the summary");
    assert!(filled.notices().iter().any(|notice| notice.starts_with("Compacted")), "{:?}", filled.notices());
    let heard = project.follow("say two");
    assert_eq!(heard.asked.len(), 1);
    let [SeenPart::User(text)] = &heard.last_seen()[..] else { panic!("{:?}", heard.last_seen()) };
    assert!(
        text.contains(SUMMARY) && text.ends_with("say two") && !text.contains(long().trim_end()),
        "{text}"
    );
    assert_eq!((project.summaries(), project.stored("compacted")), (1, 1));
    let seen = project.trail();
    let asked: Vec<&str> =
        seen.iter().map(String::as_str).filter(|line| !line.starts_with("quiet")).collect();
    assert_eq!(asked, trail);
    filled
}

#[test]
fn a_callback_after_a_turn_compacts_once() {
    let project = Project::new();
    project.hook("at_70", &above_70("after_turn", r#"echo '{"result": "callback", "callback": "compact"}'"#));
    compacts_once(&project, &["turn_end at_70 done: callback compact"]);
}

/// Between a tool result and the next model call, the compaction replaces the history and the turn continues.
#[test]
fn a_callback_within_a_turn_compacts_and_continues_the_turn() {
    let project = Project::new();
    project.hook("at_70", &above_70("after_turn", r#"echo '{"result": "callback", "callback": "compact"}'"#));
    let heard = project.run("work echo one");
    assert!(heard.said().ends_with("I heard it."), "{}", heard.said());
    assert_eq!(heard.asked.len(), 3, "the call, the summary, the last reply");
    let [SeenPart::User(text)] = &heard.last_seen()[..] else { panic!("{:?}", heard.last_seen()) };
    assert!(text.contains(SUMMARY) && text.contains("work echo one"), "{text}");
    assert_eq!(project.trail(), ["turn_end at_70 done: callback compact", "quiet 1"]);
}

/// This script does not check which conversation has stopped, so it requests another compaction when the compaction
/// recipe stops. The trail records the refusal, but the user gets no notice.
#[test]
fn an_action_compacts_once() {
    let project = Project::new();
    project.hook("smart", &above_70("agent_stop", r#"echo '{"action": "compact"}'"#));
    let refused = "agent_stop smart refused: callback compact";
    let heard = compacts_once(&project, &["agent_stop smart done: callback compact", refused]);
    assert!(!heard.notices().iter().any(|notice| notice.contains("smart")), "{:?}", heard.notices());
}

/// The script passes the id of its conversation in the callback's arguments.
fn smart() -> String {
    let answer = r#"echo "{\"result\": \"callback\", \"callback\": \"compact\", \"callback_args\": {\"target_conversation_id\": \"$conv_id\"}}""#;
    above_70("agent_stop", &format!("{NOT_IN_THE_RECIPE}\n            {answer}"))
}

#[test]
fn a_callback_with_its_own_conversation_as_target_compacts_once() {
    let project = Project::new();
    project.hook("smart", &smart());
    compacts_once(&project, &["agent_stop smart done: callback compact"]);
}

#[test]
fn a_declared_threshold_compacts_at_each_crossing() {
    let project = Project::new();
    project.user.write(
        ".kodelet/hooks/smart.yaml",
        "protocol: 2\nevents: [turn_end]\nmatch: { usage_ratio_gte: 0.70, invoked_by: [main] }\n\
         then: { result: callback, callback: compact }\n",
    );
    compacts_once(&project, &["turn_end smart.yaml done: callback compact"]);
    project.follow("fill");
    project.follow("say three");
    assert_eq!(
        (project.summaries(), project.stored("compacted")),
        (2, 2),
        "once more at the second crossing"
    );
}

/// Builds a history from the first message, and inserts it into JSON by hand.
const SIMPLE: &str = r#"summary=$(printf '%s\n' "$payload" | sed 's/.*"messages":\[{//; s/"kind".*//; s/.*"content":"//; s/",*$//' | sed 's/\\"/"/g')
            echo "{\"result\": \"mutate\", \"messages\": [{\"role\": \"user\", \"content\": \"Before this: $summary\"}]}""#;

#[test]
fn a_history_made_by_a_script_replaces_the_old_one() {
    let project = Project::new();
    project.hook("simple", &above_70("agent_stop", SIMPLE));
    project.run("say one");
    let heard = project.follow("fill");
    assert_eq!(heard.asked.len(), 1, "no model is needed");
    let heard = project.follow("say two");
    assert_eq!(heard.last_seen(), [user("Before this: say one\n\nsay two")]);
    assert_eq!((project.stored("mutated"), project.stored("compacted")), (1, 0));
    assert_eq!(project.trail(), ["quiet 1", "agent_stop simple done: mutate with 1 message", "quiet 1"]);
}

#[test]
fn a_history_with_raw_line_breaks_in_strings_is_accepted() {
    let project = Project::new();
    project.hook(
        "simple",
        &above_70(
            "agent_stop",
            "echo '{\"result\": \"mutate\", \"messages\": [{\"role\": \"user\", \"content\": \"Two\nlines\"}]}'",
        ),
    );
    project.run("fill");
    let heard = project.follow("say two");
    assert_eq!(heard.last_seen(), [user("Two\nlines\n\nsay two")]);
}

#[test]
fn a_history_with_an_unescaped_quote_is_reported_and_changes_nothing() {
    let project = Project::new();
    project.hook("simple", &above_70("agent_stop", SIMPLE));
    project.run("say \"one\"");
    let heard = project.follow("fill");
    let notices: Vec<_> = heard.notices().into_iter().filter(|notice| notice.contains("simple")).collect();
    assert!(notices.len() == 1 && notices[0].contains("not a JSON object"), "{:?}", heard.notices());
    let heard = project.follow("say two");
    assert_eq!(heard.last_seen()[0], user("say \"one\""), "the history is as it was");
    assert_eq!(heard.last_seen().len(), 5);
    assert_eq!(project.stored("mutated"), 0);
    assert_eq!(project.trail(), ["quiet 1", "agent_stop simple failed", "quiet 1"]);
}

/// Runs at the end of the compact recipe, and returns the agent's last text. `$content` is the way in which it is
/// inserted into the JSON.
fn completion(content: &str) -> String {
    format!(
        r#"#!/bin/sh
case "$1" in
    hook)
        echo "agent_stop"
        ;;
    run)
        payload=$(cat)
        invoked_recipe=$(printf '%s\n' "$payload" | sed -n 's/.*"invoked_recipe":"\([^"]*\)".*/\1/p')
        if [ "$invoked_recipe" = "compact" ]; then
            summary=$(printf '%s\n' "$payload" | sed 's/.*"role":"assistant","content":"//; s/".*//')
            target=$(printf '%s\n' "$payload" | sed -n 's/.*"target_conversation_id":"\([^"]*\)".*/\1/p')
            if [ -n "$summary" ] && [ -n "$target" ]; then
                echo "{{\"result\": \"mutate\", \"messages\": [{{\"role\": \"user\", \"content\": {content}}}], \"target_conversation_id\": \"$target\"}}"
            fi
        fi
        ;;
esac
"#
    )
}

#[test]
fn malformed_output_at_the_recipes_end_is_reported_and_changes_nothing() {
    let project = Project::new();
    project.hook("a_smart", &smart());
    project.hook("b_done", &completion("$summary"));
    let heard =
        compacts_once(&project, &["agent_stop a_smart done: callback compact", "agent_stop b_done failed"]);
    let notices: Vec<_> = heard.notices().into_iter().filter(|notice| notice.contains("b_done")).collect();
    assert!(notices.len() == 1 && notices[0].contains("not a JSON object"), "{:?}", heard.notices());
}

/// Regression: the payload at the recipe's end did not contain the recipe's own reply, so the same script with valid
/// JSON replaced the history with the reply before the compaction.
#[test]
fn the_payload_at_the_recipes_end_has_the_recipes_reply() {
    let project = Project::new();
    project.hook("a_smart", &smart());
    project.hook("b_done", &completion("\\\"Its summary: $summary\\\""));
    project.run("fill");
    let heard = project.follow("say two");
    assert_eq!(heard.last_seen(), [user(&format!("Its summary: {SUMMARY}\n\nsay two"))]);
    assert_eq!((project.stored("mutated"), project.stored("compacted")), (1, 0));
}

/// Regression: a script requested a compaction of a conversation that is too short to gain anything, and was refused.
#[test]
fn a_compaction_of_a_short_conversation_is_made_if_a_script_requests_it() {
    let project = Project::new();
    project.hook(
        "always",
        "#!/bin/sh\ncase $1 in hook) echo agent_stop ;; run) echo '{\"action\":\"compact\"}' ;; esac\n",
    );
    let heard = project.run("say one");
    assert_eq!((heard.asked.len(), project.stored("compacted")), (2, 1), "the reply, and the summary");
    let refused = "agent_stop always refused: callback compact";
    assert_eq!(
        project.trail(),
        ["agent_stop always done: callback compact", refused],
        "once, not in the recipe"
    );
}

/// Regression: the model wrote a summary that was longer than the history. The compaction was refused after that call, although
/// one without a summary would have been made.
#[test]
fn a_summary_that_is_longer_than_the_history_is_cut() {
    let project = Project::with(|request| match wants_summary(request) {
        true => vec![text(&format!("<summary>{}</summary>", long().repeat(2)))],
        false => obey(request),
    });
    project.hook("at_70", &above_70("agent_stop", r#"echo '{"action": "compact"}'"#));
    let heard = project.run("fill");
    assert_eq!((heard.asked.len(), project.stored("compacted")), (2, 1));
    let is_reported =
        heard.notices().iter().any(|notice| notice.starts_with("Compacted, because a hook asked for it"));
    assert!(is_reported, "{:?}", heard.notices());
}
