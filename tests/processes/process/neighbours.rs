//! Two agents on one home, and damaged files.

use epitome_test_harness::agent::{Agent, agent_text, is_answer, kind, obey, person_said};
use std::fs;
use std::path::Path;

use serde_json::json;

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn listed(agent: &mut Agent) -> Vec<String> {
    let listing = agent.call("session/list", json!({}));
    let ids = listing["sessions"].as_array().unwrap().iter();
    let mut ids: Vec<String> = ids.map(|info| info["sessionId"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

#[test]
fn two_agents_work_concurrently_on_one_home() {
    let user = super::user(obey);
    let (mut one, mut two) = (user.start(), user.start());
    let first = user.new_session(&mut one);
    let second = user.new_session(&mut two);
    for round in 0..3 {
        let said = |words: &str| format!("You said {words}.");
        let words = format!("{round}");
        assert_eq!(agent_text(&one.turn(&first, &format!("say {words}")).0), said(&words));
        assert_eq!(agent_text(&two.turn(&second, &format!("say {words}")).0), said(&words));
    }
    let mut both = vec![first.clone(), second.clone()];
    both.sort();
    assert_eq!(listed(&mut one), both);
    assert_eq!(listed(&mut two), both);

    let (_, refused) = user.try_load(&mut two, &first);
    let sentence = refused["error"]["message"].as_str().unwrap();
    assert!(sentence.contains(&first) && sentence.contains("another process"), "{sentence}");
    // Once the other agent has closed it, it can be loaded.
    one.call("session/close", json!({ "sessionId": first }));
    assert_eq!(person_said(&user.load(&mut two, &first)), ["say 0", "say 1", "say 2"]);
    for mut agent in [one, two] {
        agent.close_input();
        agent.ended();
    }
}

/// Regression: a session that had just been closed could neither be loaded elsewhere nor deleted while its last sync
/// was running, because its lock was only released after the response.
#[test]
fn a_closed_session_is_unlocked_immediately() {
    let user = super::user(obey);
    let (mut one, mut two) = (user.start(), user.start());
    let session = user.new_session(&mut one);
    for _ in 0..10 {
        one.turn(&session, "say one");
        one.call("session/close", json!({ "sessionId": session }));
        user.load(&mut two, &session);
        std::mem::swap(&mut one, &mut two);
    }
    // A live session is ended first.
    one.call("session/delete", json!({ "sessionId": session }));
    assert!(!user.journal(&session).exists());
}

/// Regression: an editor that closed a session and immediately loaded it again got the error that the session does not
/// exist. Some editors then forget the session.
#[test]
fn a_session_can_be_loaded_while_it_is_being_closed() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    agent.turn(&session, "say one");
    for _ in 0..10 {
        let close = agent.request("session/close", json!({ "sessionId": session }));
        let (replay, answer) = user.try_load(&mut agent, &session);
        assert!(answer.get("result").is_some(), "{answer}");
        assert!(replay.iter().any(|message| is_answer(message, close)));
        assert_eq!(person_said(&replay), ["say one"]);
    }
}

#[test]
fn a_damaged_journal_is_named_and_affects_no_other_session() {
    let user = super::user(obey);
    let mut agent = user.start();
    let (damaged, whole) = (user.new_session(&mut agent), user.new_session(&mut agent));
    for session in [&damaged, &whole] {
        agent.turn(session, "say one");
        agent.turn(session, "say two");
    }
    agent.close_input();
    agent.ended();
    // Otherwise the line is taken from there.
    fs::remove_dir_all(user.own().join("data/db")).unwrap();
    let journal = user.journal(&damaged);
    let mut bytes = fs::read(&journal).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&journal, &bytes).unwrap();

    let mut agent = user.start();
    let replay = user.load(&mut agent, &damaged);
    assert!(json!(replay).to_string().contains("lost here: the log is damaged"), "{replay:?}");
    let id = agent.request(
        "session/prompt",
        json!({
            "sessionId": damaged, "prompt": [{ "type": "text", "text": "say no" }]
        }),
    );
    let (_, refused) = agent.answer(id);
    let sentence = refused["error"]["message"].as_str().unwrap();
    assert!(sentence.contains("damaged at line") && sentence.contains("/repair"), "{sentence}");
    assert_eq!(person_said(&user.load(&mut agent, &whole)), ["say one", "say two"]);
    assert_eq!(agent.turn(&whole, "say three").1, "end_turn");
    assert!(listed(&mut agent).contains(&whole));
    assert_eq!(fs::read(&journal).unwrap(), bytes, "the file is left as it was");
    assert_eq!(agent.turn(&damaged, "/repair").1, "end_turn");
    assert_eq!(agent.turn(&damaged, "say four").1, "end_turn");
    assert!(fs::read(&journal).unwrap().starts_with(&bytes), "nothing is removed");
}

#[test]
fn invalid_files_are_reported_once_with_line_and_column() {
    let user = super::user(obey);
    write(&user.own().join("config.toml"), "mode = \"ask\"\nmodel = [oops\n");
    let recipe = user.project().join(".epitome/recipes/broken.md");
    write(&recipe, "---\ndescription: fine\narguments: [unclosed\n---\nHello\n");
    let mut agent = user.start();
    let id = agent.request("session/new", json!({ "cwd": user.project(), "mcpServers": [] }));
    let (mut seen, answer) = agent.answer(id);
    let session = answer["result"]["sessionId"].as_str().unwrap().to_owned();
    for words in ["say one", "say two"] {
        let (updates, reason) = agent.turn(&session, words);
        assert_eq!(reason, "end_turn");
        seen.extend(updates);
    }
    seen.extend(user.load(&mut agent, &session));
    let notices: Vec<String> = seen
        .iter()
        .filter(|message| kind(message) == "notice")
        .map(|message| message["params"]["update"].to_string())
        .collect();
    for (file, line) in [("config.toml", 2), ("broken.md", 3)] {
        let of_file: Vec<&String> = notices.iter().filter(|notice| notice.contains(file)).collect();
        let [notice] = of_file[..] else { panic!("{file} is to be reported once: {notices:#?}") };
        let place = notice.split(file).nth(1).unwrap();
        let mut numbers = place.split(':').skip(1).map(str::trim);
        let at = numbers.next().and_then(|line| line.parse::<u32>().ok());
        let column = numbers.next().and_then(|column| column.parse::<u32>().ok());
        assert!(at.is_some_and(|at| at.abs_diff(line) <= 1) && column.is_some(), "{notice}");
    }
    assert!(!json!(seen).to_string().contains("\"broken\""), "a broken recipe is no command");
}
