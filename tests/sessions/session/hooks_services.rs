//! Calls that a resident hook may make to its session during a request.

use epitome::thread::{Change, StopReason};
use epitome_scripted_model::ModelStep;
use serde_json::{Value, json};

use super::desk::{Desk, put, text};
use super::stage::{count, flood, notices, script, trail, with_hooks};

/// A hook that makes the calls in `calls`, one per line, writes the responses to `answers`, and returns no
/// result.
fn resident() -> String {
    let declares = r#"{"protocol": 2, "events": ["turn_end"], "mode": "resident"}"#;
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
    script(declares, body)
}

fn desk(more: &[(&str, &str)], replies: Vec<Vec<ModelStep>>) -> Desk {
    with_hooks(&[("at-work", resident())], more, replies)
}

/// Has the hook make these calls during the next prompt; returns the responses.
fn ask(desk: &mut Desk, calls: &[Value]) -> Vec<Value> {
    let lines = calls.iter().enumerate().map(|(at, call)| {
        let mut call = call.clone();
        call["id"] = format!("c{at}").into();
        format!("{call}\n")
    });
    put(&desk.cwd().join("calls"), &lines.collect::<String>());
    assert_eq!(desk.ask("Go on"), StopReason::EndTurn);
    let path = desk.cwd().join("answers");
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
    let mut desk = desk(&[], vec![flood(), vec![text("<summary>Words were said.</summary>")]]);
    desk.ask("The word is walnut");
    desk.ask("/compact");
    let read = |params: Value| json!({"method": "context.read", "params": params});
    let answers = ask(
        &mut desk,
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
    let one = ask(&mut desk, &[read(json!({"ids": [first]}))]);
    assert_eq!(contents(&one[0]).len(), 1);
}

#[test]
fn compact_plans_a_compaction_or_schedules_it() {
    let mut desk = desk(&[], vec![flood(), flood(), vec![text("<summary>Words were said.</summary>")]]);
    desk.ask("Say many words");
    let compact = |mode: &str| json!({"method": "compact", "params": {"mode": mode}});
    let answers = ask(&mut desk, &[compact("plan"), compact("dry_run"), compact("do"), compact("now")]);
    assert_eq!(answers[0]["result"]["possible"], json!(true));
    assert!(answers[0]["result"]["tokens"].as_u64().is_some_and(|tokens| tokens > 1_000));
    assert!(answers[1]["result"]["instruction"].as_str().is_some_and(|text| !text.is_empty()));
    assert!(answers[3]["error"].is_object());
    assert_eq!(count(&desk, |change| matches!(change, Change::Compacted { .. })), 1);
}

#[test]
fn recipe_run_and_model_complete_work_within_limits() {
    let note = "---\ndescription: d\nallowed_tools: []\ncontext: none\n---\nWrite a note.\n";
    let mut desk = desk(&[("home/recipes/note.md", note)], Vec::new());
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
    let answers = ask(&mut desk, &calls);
    assert_eq!(answers[0]["result"]["text"], "ok");
    assert!(answers[1]["error"]["message"].as_str().is_some_and(|why| why.contains("nothing")));
    assert_eq!(answers[2]["result"]["text"], "ok");
    assert!(answers[3]["error"].is_object() && answers[5]["error"].is_object(), "{answers:?}");
    assert!(notices(&mut desk).iter().any(|text| text.contains("at-work") && text.contains("Look here.")));
    let asked: Vec<String> = trail(&desk).into_iter().map(|run| run.asked).collect();
    assert!(asked.iter().any(|asked| asked == "recipe.run note"), "{asked:?}");

    let many = vec![model; 9];
    let answers = ask(&mut desk, &many);
    assert!(answers[..8].iter().all(|answer| answer["result"].is_object()), "{answers:?}");
    assert!(answers[8]["error"].is_object());
}
