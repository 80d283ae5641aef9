//! Calls that a resident hook may make to its session during a request.

use epitome::thread::{Change, StopReason};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::session::TestSession;
use epitome_test_harness::{text, write_file};
use serde_json::{Value, json};

use super::stage::{count, flood, notices, script, trail, with_hooks};

/// A hook of this event that makes the calls in `calls`, one per line, writes the responses to `answers`, and returns
/// no result.
fn resident(event: &str) -> String {
    let declares = format!(r#"{{"protocol": 2, "events": ["{event}"], "mode": "resident"}}"#);
    let body = r#"cd "$EPITOME_CWD"
while read -r line; do
  case "$line" in
    *'"payload"'*)
      id=${line#*:}; id=${id%%,*}
      if [ -e calls ]; then
        mv calls made
        while read -r call <&3; do
          printf '%s\n' "$call"; read -r answer; printf '%s\n' "$answer" >> answers
        done 3< made
      fi
      echo "{\"id\":$id,\"result\":{}}";;
  esac
done"#;
    script(&declares, body)
}

fn started(more: &[(&str, &str)], replies: Vec<Vec<ModelStep>>) -> TestSession {
    with_hooks(&[("at-work", resident("turn_end"))], more, replies)
}

/// Has the hook make these calls during the next prompt; returns the responses.
fn ask(test: &mut TestSession, calls: &[Value]) -> Vec<Value> {
    let lines = calls.iter().enumerate().map(|(at, call)| {
        let mut call = call.clone();
        call["id"] = format!("c{at}").into();
        format!("{call}\n")
    });
    write_file(&test.cwd().join("calls"), &lines.collect::<String>());
    assert_eq!(test.ask("Go on"), StopReason::EndTurn);
    let path = test.cwd().join("answers");
    let answers = std::fs::read_to_string(&path).expect("answers");
    std::fs::remove_file(path).expect("it was there");
    answers.lines().map(|line| serde_json::from_str(line).expect("an answer")).collect()
}

fn contents(answer: &Value) -> Vec<&str> {
    let messages = answer["result"]["messages"].as_array().expect("messages");
    messages.iter().filter_map(|message| message["content"].as_str()).collect()
}

#[test]
fn context_read_returns_the_view_and_the_log() {
    let mut test = started(&[], vec![flood(), vec![text("<summary>Words were said.</summary>")]]);
    test.ask("The word is walnut");
    test.ask("/compact");
    let read = |params: Value| json!({"method": "context.read", "params": params});
    let answers = ask(
        &mut test,
        &[
            read(json!({})),
            read(json!({"from": "log"})),
            read(json!({"kind": "compaction_summary"})),
            read(json!({"from": "elsewhere"})),
        ],
    );
    assert!(contents(&answers[0]).iter().any(|text| text.contains("Words were said.")));
    assert!(!contents(&answers[0]).iter().any(|text| text.contains(&"many words ".repeat(1_900))));
    assert!(contents(&answers[1]).iter().any(|text| text.contains(&"many words ".repeat(1_900))));
    assert_eq!(contents(&answers[2]).len(), 1);
    assert!(answers[3]["error"]["message"].as_str().is_some_and(|why| why.contains("elsewhere")));
    let first = answers[0]["result"]["messages"][0]["id"].clone();
    let one = ask(&mut test, &[read(json!({"ids": [first]}))]);
    assert_eq!(contents(&one[0]).len(), 1);
}

/// Regression: after a failed prompt, the session waited for its hooks without answering their calls. A resident hook
/// that wanted to show a notice waited for ten seconds, and the session with it, and then counted as too late.
#[test]
fn calls_are_answered_after_a_failed_prompt() {
    let refused = ModelStep::Error { status: 400, retry_after: None, message: Some("no such thing".into()) };
    let mut test = with_hooks(&[("at-work", resident("turn_failed"))], &[], vec![vec![refused]]);
    let call = json!({"id": "c0", "method": "notice", "params": {"text": "It went wrong."}});
    write_file(&test.cwd().join("calls"), &format!("{call}\n"));
    let ticket = test.prompt("Go on");
    test.client.answer(ticket).expect_err("the prompt failed");
    let answers = std::fs::read_to_string(test.cwd().join("answers")).expect("it was answered in time");
    assert_eq!(answers, "{\"id\":\"c0\",\"result\":null}\n");
    assert!(notices(&mut test).iter().any(|text| text.contains("It went wrong.")));
}

#[test]
fn compact_plans_a_compaction_or_schedules_it() {
    let mut test = started(&[], vec![flood(), flood(), vec![text("<summary>Words were said.</summary>")]]);
    test.ask("Say many words");
    let compact = |mode: &str| json!({"method": "compact", "params": {"mode": mode}});
    let answers = ask(&mut test, &[compact("plan"), compact("dry_run"), compact("do"), compact("now")]);
    assert_eq!(answers[0]["result"]["possible"], json!(true));
    assert!(answers[0]["result"]["tokens"].as_u64().is_some_and(|tokens| tokens > 1_000));
    assert!(answers[1]["result"]["instruction"].as_str().is_some_and(|text| !text.is_empty()));
    assert!(answers[3]["error"].is_object());
    assert_eq!(count(&test, |change| matches!(change, Change::Compacted { .. })), 1);
}

#[test]
fn recipe_run_and_model_complete_work_within_limits() {
    let note = "---\ndescription: d\nallowed_tools: []\ncontext: none\n---\nWrite a note.\n";
    let mut test = started(&[("home/recipes/note.md", note)], Vec::new());
    let recipe = |name: &str| json!({"method": "recipe.run", "params": {"name": name}});
    let model = json!({"method": "model.complete", "params": {"messages": ["Two and two?"], "model": "main", "max_tokens": 9}});
    let calls = [
        recipe("note"),
        recipe("nothing"),
        model.clone(),
        json!({"method": "model.complete", "params": {}}),
        json!({"method": "notice", "params": {"text": "Look here."}}),
        json!({"method": "guess", "params": {}}),
    ];
    let answers = ask(&mut test, &calls);
    assert_eq!(answers[0]["result"]["text"], "ok");
    // As kodelet's design has it.
    assert_eq!(answers[0]["result"]["recipe_output"], "ok");
    assert_eq!(answers[0]["result"]["messages"], json!([{ "role": "user", "content": "ok" }]));
    assert_eq!(answers[0]["result"]["continue"], false);
    assert!(answers[1]["error"]["message"].as_str().is_some_and(|why| why.contains("nothing")));
    assert_eq!(answers[2]["result"]["text"], "ok");
    assert!(answers[3]["error"].is_object() && answers[5]["error"].is_object(), "{answers:?}");
    assert!(notices(&mut test).iter().any(|text| text.contains("at-work") && text.contains("Look here.")));
    let asked: Vec<String> = trail(&test).into_iter().map(|run| run.asked).collect();
    assert!(asked.iter().any(|asked| asked == "recipe.run note"), "{asked:?}");

    let many = vec![model; 9];
    let answers = ask(&mut test, &many);
    assert!(answers[..8].iter().all(|answer| answer["result"].is_object()), "{answers:?}");
    assert!(answers[8]["error"].is_object());
}
