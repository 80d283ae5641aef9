//! `kill -9` of the daemon while clients are attached: they continue with a new daemon, all pending requests
//! are answered, and nothing runs without permission.

use epitome_scripted_model::ModelStep;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use super::desk::{
    Agent, Desk, SILENCE_MAX, assert_paired, call, end_by, final_statuses, is_answer, is_question, obey,
    person_said, record_agent_message, stop_reason, text, within,
};
use super::windows::daemons;

fn kill_daemon(desk: &Desk) -> Pid {
    let daemon = desk.daemon().expect("a daemon serves");
    end_by(daemon, Signal::KILL);
    daemon
}

fn is_interrupted(answer: &Value) -> bool {
    let sentence = answer["error"]["message"].as_str().unwrap_or_default();
    sentence.contains("Interrupted") && sentence.contains("send it again")
}

/// The permission prompt stayed on the user's screen when the daemon died, and they clicked "allow".
#[test]
fn a_late_permission_answer_runs_nothing() {
    let desk = Desk::new(obey);
    let mut agent = desk.start();
    let session = desk.new_session(&mut agent);
    let id = agent.prompt(&session, "run touch never");
    let card = agent.until("the card", is_question).pop().unwrap();
    let dead = kill_daemon(&desk);
    let (mut seen, answer) = agent.answer(id);
    assert!(is_interrupted(&answer), "{answer}");
    let withdrawn =
        seen.iter().find(|message| message["method"] == "$/cancel_request").expect("the card closes");
    assert_eq!(withdrawn["params"]["requestId"], card["id"]);
    agent.decide(&card, "allow_once");
    // The next prompt follows, and an answer to another permission request does not count for this one.
    let id = agent.prompt(&session, "run touch never-either");
    seen.extend(agent.until("the next card", is_question));
    let next = seen.pop().unwrap();
    assert!(next["id"].as_u64() > card["id"].as_u64(), "{} is not above {}", next["id"], card["id"]);
    agent.decide(&card, "allow_once");
    agent.decide(&next, "reject_once");
    let (updates, answer) = agent.answer(id);
    assert_eq!(stop_reason(&answer), "end_turn");
    assert_eq!(final_statuses(&updates), ["failed"]);
    assert_ne!(desk.daemon(), Some(dead));
    for file in ["never", "never-either"] {
        assert!(!desk.workspace.join(file).exists(), "{file} was made");
    }
    assert_eq!(agent.turn(&session, "say more").1, "end_turn");
    desk.model.requests().iter().for_each(assert_paired);
}

#[test]
fn pending_requests_are_answered_and_sessions_continue() {
    let desk = Desk::new(obey);
    let mut agent = desk.start();
    let sessions: Vec<String> = (0..3).map(|_| desk.new_session(&mut agent)).collect();
    for session in &sessions {
        agent.turn(session, "say one");
    }
    let asked = [agent.prompt(&sessions[0], "half"), agent.prompt(&sessions[1], "hang")];
    agent.hear("The first half, ");
    kill_daemon(&desk);
    let mut open = asked.len();
    let seen = agent.until("both answers", |message| {
        open -= usize::from(asked.iter().any(|id| is_answer(message, *id)));
        open == 0
    });
    let answers = seen.iter().filter(|message| message.get("method").is_none());
    assert!(answers.clone().all(is_interrupted), "{seen:?}");
    assert_eq!(answers.count(), 2);
    assert!(!seen.iter().any(|message| message["id"].is_string()), "the front end's own ids stay its own");
    for session in &sessions {
        let (updates, reason) = agent.turn(session, "say more");
        assert_eq!(
            (record_agent_message(&updates).as_str(), reason.as_str()),
            ("You said more.", "end_turn")
        );
    }
    agent.close_input();
    agent.ended();
    let mut agent = desk.start();
    let replay = desk.load(&mut agent, &sessions[0]);
    assert_eq!(person_said(&replay), ["say one", "half", "say more"]);
    assert!(record_agent_message(&replay).contains("Interrupted"), "the log says what happened");
}

/// The editor kept showing the subagent as working, because the daemon that knew of it was dead.
#[test]
fn a_subagent_that_died_with_its_daemon_is_reported_as_idle() {
    let desk = Desk::new(|request| {
        let task = json!({ "description": "Look", "prompt": "Look.", "agent": "explore" });
        match request.last_user_text() {
            said if said.ends_with("Look.") => vec![text("I look."), ModelStep::Hang],
            said if said.ends_with("delegate") => vec![call("task", task)],
            _ => obey(request),
        }
    });
    let mut agent = Agent::spawn(desk.command(&[]));
    let capabilities = json!({ "protocolVersion": 1, "clientCapabilities": { "subagents": {} } });
    agent.call("initialize", capabilities);
    let session = desk.new_session(&mut agent);
    let id = agent.prompt(&session, "delegate");
    let told = agent.hear("I look.");
    let update = |message: &Value| message["params"]["update"].clone();
    let is_of_agent = |message: &Value| update(message)["sessionUpdate"] == "subagent_update";
    let began = told.iter().find(|message| is_of_agent(message)).map(update).expect("it is told of");
    assert_eq!(began["state"]["state"], "running");
    kill_daemon(&desk);
    let (updates, answer) = agent.answer(id);
    assert!(is_interrupted(&answer), "{answer}");
    let ends: Vec<Value> = updates.iter().filter(|message| is_of_agent(message)).map(update).collect();
    let [end] = &ends[..] else { panic!("one end: {ends:?}") };
    assert_eq!((&end["sessionId"], &end["title"]), (&began["sessionId"], &began["title"]));
    assert_eq!((&end["state"], &end["capabilities"]), (&json!({ "state": "idle" }), &Value::Null));
    // It is not a session that can be loaded, and cancelling it has no effect.
    agent.cancel(began["sessionId"].as_str().unwrap());
    let (_, refused) = desk.try_load(&mut agent, began["sessionId"].as_str().unwrap());
    assert_eq!(refused["error"]["code"], -32002, "{refused}");
    assert_eq!(agent.turn(&session, "say more").1, "end_turn");
}

/// A window was stopped for a moment, its turn ended, and the daemon was killed. The window kept 587,000 of 3,000,000
/// characters, and its user was asked to send the prompt again.
#[test]
fn a_window_that_lags_behind_a_killed_daemon_gets_the_rest_and_the_answer() {
    let long = "word ".repeat(60_000);
    let reply = long.clone();
    let desk = Desk::new(move |request| match request.last_user_text() {
        said if said.ends_with("long") => vec![text("Begin. "), ModelStep::Wait, text(&reply)],
        _ => obey(request),
    });
    let mut agent = desk.start();
    let session = desk.new_session(&mut agent);
    let id = agent.prompt(&session, "long");
    let mut seen = agent.hear("Begin. ");
    agent.hold();
    desk.model.release();
    let ended =
        || std::fs::read_to_string(desk.journal(&session)).is_ok_and(|log| log.contains("turn_ended"));
    within(SILENCE_MAX, "the turn's end", || ended().then_some(()));
    kill_daemon(&desk);
    agent.go_on();
    let (rest, answer) = agent.answer(id);
    assert_eq!(stop_reason(&answer), "end_turn");
    seen.extend(rest);
    let said = record_agent_message(&seen);
    assert!(said == format!("Begin. {long}"), "{} characters are there", said.len());
    assert_eq!(record_agent_message(&agent.turn(&session, "say more").0), "You said more.");
}

/// A daemon was killed six seconds into a reply, and the log had none of what the user had read.
#[test]
fn streamed_text_survives_a_killed_daemon() {
    let desk = Desk::new(obey);
    let mut agent = desk.start();
    let session = desk.new_session(&mut agent);
    let id = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    let draft = desk.home.join("data/drafts").join(&session);
    within(SILENCE_MAX, "the saved text", || {
        std::fs::read_to_string(&draft).is_ok_and(|saved| saved.contains("first half")).then_some(())
    });
    kill_daemon(&desk);
    let (_, answer) = agent.answer(id);
    assert!(is_interrupted(&answer), "{answer}");
    agent.close_input();
    agent.ended();
    let mut agent = desk.start();
    assert!(record_agent_message(&desk.load(&mut agent, &session)).contains("The first half, "));
    within(SILENCE_MAX, "the removal of the saved text", || (!draft.exists()).then_some(()));
    assert_eq!(record_agent_message(&agent.turn(&session, "say more").0), "You said more.");
    assert!(!draft.exists());
}

#[test]
fn ten_clients_survive_three_daemon_crashes() {
    let desk = Desk::new(obey);
    let mut windows: Vec<(Agent, String)> = (0..10)
        .map(|_| {
            let mut agent = desk.start_trusted();
            let session = desk.new_session(&mut agent);
            (agent, session)
        })
        .collect();
    for round in 0..3 {
        let words = format!("say {round}");
        let asked: Vec<u64> =
            windows.iter_mut().map(|(agent, session)| agent.prompt(session, &words)).collect();
        kill_daemon(&desk);
        for ((agent, session), id) in windows.iter_mut().zip(asked) {
            // Either it finished before the crash, or the client is asked to send it again.
            let (_, answer) = agent.answer(id);
            assert!(answer.get("result").is_some() || is_interrupted(&answer), "{answer}");
            let (updates, reason) = agent.turn(session, "say more");
            assert_eq!(
                (record_agent_message(&updates).as_str(), reason.as_str()),
                ("You said more.", "end_turn")
            );
        }
        assert_eq!(daemons(&desk).len(), 1);
    }
}

#[test]
fn an_idle_client_finds_its_session_after_crashes() {
    let desk = Desk::new(obey);
    let mut agent = desk.start();
    let session = desk.new_session(&mut agent);
    for _ in 0..3 {
        agent.turn(&session, "say one");
        kill_daemon(&desk);
    }
    let listing = agent.call("session/list", json!({}));
    assert_eq!(listing["sessions"][0]["sessionId"], session);
    agent.call("session/close", json!({ "sessionId": session }));
    agent.close_input();
    agent.ended();
}
