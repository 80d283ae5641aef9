//! `kill -9` of the daemon while clients are attached: they continue with a new daemon, all pending requests
//! are answered, and nothing runs without permission.

use epitome_scripted_model::ModelStep;
use epitome_test_harness::agent::{
    Agent, agent_text, assert_paired, end_by, final_statuses, is_answer, is_question, obey, person_said,
    stop_reason,
};
use epitome_test_harness::user::User;
use epitome_test_harness::{call, text, within};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use super::windows::daemons;

fn kill_daemon(user: &User) -> Pid {
    let daemon = user.daemon().expect("a daemon serves");
    end_by(daemon, Signal::KILL);
    daemon
}

fn is_interrupted(answer: &Value) -> bool {
    let sentence = answer["error"]["message"].as_str().unwrap_or_default();
    sentence.contains("Interrupted") && sentence.contains("send it again")
}

/// A permission prompt stayed on the user's screen after the daemon had died, and the user clicked "Allow".
#[test]
fn a_late_permission_answer_runs_nothing() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    let id = agent.prompt(&session, "run touch never");
    let card = agent.until("the card", is_question).pop().unwrap();
    let dead = kill_daemon(&user);
    let (mut seen, answer) = agent.answer(id);
    assert!(is_interrupted(&answer), "{answer}");
    let withdrawn =
        seen.iter().find(|message| message["method"] == "$/cancel_request").expect("the card closes");
    assert_eq!(withdrawn["params"]["requestId"], card["id"]);
    agent.decide(&card, "allow_once");
    // The next prompt asks for permission too, and an answer to the earlier request does not count for it.
    let id = agent.prompt(&session, "run touch never-either");
    seen.extend(agent.until("the next card", is_question));
    let next = seen.pop().unwrap();
    assert!(next["id"].as_u64() > card["id"].as_u64(), "{} is not above {}", next["id"], card["id"]);
    agent.decide(&card, "allow_once");
    agent.decide(&next, "reject_once");
    let (updates, answer) = agent.answer(id);
    assert_eq!(stop_reason(&answer), "end_turn");
    assert_eq!(final_statuses(&updates), ["failed"]);
    assert_ne!(user.daemon(), Some(dead));
    for file in ["never", "never-either"] {
        assert!(!user.project().join(file).exists(), "{file} was made");
    }
    assert_eq!(agent.turn(&session, "say more").1, "end_turn");
    user.model().requests().iter().for_each(assert_paired);
}

/// A user stopped the daemon while a card was open. The editor's answer to the card started another daemon.
#[test]
fn a_late_permission_answer_starts_no_daemon() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    let id = agent.prompt(&session, "run true");
    let card = agent.until("the card", is_question).pop().unwrap();
    user.run(&["daemon", "stop", "--force"]).ok();
    agent.until("the end of the prompt", |message| is_answer(message, id));
    agent.decide(&card, "allow_once");
    // The answer is read before the end of the input.
    agent.close_input();
    agent.ended();
    assert_eq!(daemons(&user), [] as [u32; 0]);
}

#[test]
fn pending_requests_are_answered_and_sessions_continue() {
    let user = super::user(obey);
    let mut agent = user.start();
    let sessions: Vec<String> = (0..3).map(|_| user.new_session(&mut agent)).collect();
    for session in &sessions {
        agent.turn(session, "say one");
    }
    let asked = [agent.prompt(&sessions[0], "half"), agent.prompt(&sessions[1], "hang")];
    agent.hear("The first half, ");
    kill_daemon(&user);
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
        assert_eq!((agent_text(&updates).as_str(), reason.as_str()), ("You said more.", "end_turn"));
    }
    agent.close_input();
    agent.ended();
    let mut agent = user.start();
    let replay = user.load(&mut agent, &sessions[0]);
    assert_eq!(person_said(&replay), ["say one", "half", "say more"]);
    assert!(agent_text(&replay).contains("Interrupted"), "the log says what happened");
}

/// Regression: the editor kept showing a subagent as working after the daemon that ran it had died.
#[test]
fn a_subagent_that_died_with_its_daemon_is_reported_as_idle() {
    let user = super::user(|request| {
        let task = json!({ "description": "Look", "prompt": "Look.", "agent": "explore" });
        match request.last_user_text() {
            said if said.ends_with("Look.") => vec![text("I look."), ModelStep::Hang],
            said if said.ends_with("delegate") => vec![call("task", task)],
            _ => obey(request),
        }
    });
    let mut agent = Agent::spawn(user.agent_command(&[]));
    let capabilities = json!({ "protocolVersion": 1, "clientCapabilities": { "subagents": {} } });
    agent.call("initialize", capabilities);
    let session = user.new_session(&mut agent);
    let id = agent.prompt(&session, "delegate");
    let messages = agent.hear("I look.");
    let update = |message: &Value| message["params"]["update"].clone();
    let is_of_agent = |message: &Value| update(message)["sessionUpdate"] == "subagent_update";
    let began = messages.iter().find(|message| is_of_agent(message)).map(update).expect("it is announced");
    assert_eq!(began["state"]["state"], "running");
    kill_daemon(&user);
    let (updates, answer) = agent.answer(id);
    assert!(is_interrupted(&answer), "{answer}");
    let ends: Vec<Value> = updates.iter().filter(|message| is_of_agent(message)).map(update).collect();
    let [end] = &ends[..] else { panic!("one end: {ends:?}") };
    assert_eq!((&end["sessionId"], &end["title"]), (&began["sessionId"], &began["title"]));
    assert_eq!((&end["state"], &end["capabilities"]), (&json!({ "state": "idle" }), &Value::Null));
    // It is not a session that can be loaded, and cancelling it has no effect.
    agent.cancel(began["sessionId"].as_str().unwrap());
    let (_, refused) = user.try_load(&mut agent, began["sessionId"].as_str().unwrap());
    assert_eq!(refused["error"]["code"], -32002, "{refused}");
    assert_eq!(agent.turn(&session, "say more").1, "end_turn");
}

/// Regression: a window was suspended for a moment, its turn ended, and the daemon was killed. The window had received
/// 587,000 of 3,000,000 characters, and its user was asked to send the prompt again.
#[test]
fn a_window_that_lags_behind_a_killed_daemon_gets_the_rest_and_the_answer() {
    let long = "word ".repeat(60_000);
    let reply = long.clone();
    let user = super::user(move |request| match request.last_user_text() {
        said if said.ends_with("long") => vec![text("Begin. "), ModelStep::Wait, text(&reply)],
        _ => obey(request),
    });
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    let id = agent.prompt(&session, "long");
    let mut seen = agent.hear("Begin. ");
    agent.hold();
    user.model().release();
    let ended =
        || std::fs::read_to_string(user.journal(&session)).is_ok_and(|log| log.contains("turn_ended"));
    within("the turn's end", || ended().then_some(()));
    kill_daemon(&user);
    agent.go_on();
    let (rest, answer) = agent.answer(id);
    assert_eq!(stop_reason(&answer), "end_turn");
    seen.extend(rest);
    let said = agent_text(&seen);
    assert!(said == format!("Begin. {long}"), "{} characters are there", said.len());
    assert_eq!(agent_text(&agent.turn(&session, "say more").0), "You said more.");
}

/// Regression: a daemon was killed six seconds into a reply, and the log contained none of the text that the user had
/// read.
#[test]
fn streamed_text_survives_a_killed_daemon() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    let id = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    let draft = user.own().join("data/drafts").join(&session);
    within("the saved text", || {
        std::fs::read_to_string(&draft).is_ok_and(|saved| saved.contains("first half")).then_some(())
    });
    kill_daemon(&user);
    let (_, answer) = agent.answer(id);
    assert!(is_interrupted(&answer), "{answer}");
    agent.close_input();
    agent.ended();
    let mut agent = user.start();
    assert!(agent_text(&user.load(&mut agent, &session)).contains("The first half, "));
    within("the removal of the saved text", || (!draft.exists()).then_some(()));
    assert_eq!(agent_text(&agent.turn(&session, "say more").0), "You said more.");
    assert!(!draft.exists());
}

#[test]
fn ten_clients_survive_three_daemon_crashes() {
    let user = super::user(obey);
    let mut windows: Vec<(Agent, String)> = (0..10)
        .map(|_| {
            let mut agent = user.start_trusted();
            let session = user.new_session(&mut agent);
            (agent, session)
        })
        .collect();
    for round in 0..3 {
        let words = format!("say {round}");
        let asked: Vec<u64> =
            windows.iter_mut().map(|(agent, session)| agent.prompt(session, &words)).collect();
        kill_daemon(&user);
        for ((agent, session), id) in windows.iter_mut().zip(asked) {
            // Either it finished before the crash, or the client is asked to send it again.
            let (_, answer) = agent.answer(id);
            assert!(answer.get("result").is_some() || is_interrupted(&answer), "{answer}");
            let (updates, reason) = agent.turn(session, "say more");
            assert_eq!((agent_text(&updates).as_str(), reason.as_str()), ("You said more.", "end_turn"));
        }
        assert_eq!(daemons(&user).len(), 1);
    }
}

#[test]
fn an_idle_client_finds_its_session_after_crashes() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    for _ in 0..3 {
        agent.turn(&session, "say one");
        kill_daemon(&user);
    }
    let listing = agent.call("session/list", json!({}));
    assert_eq!(listing["sessions"][0]["sessionId"], session);
    agent.call("session/close", json!({ "sessionId": session }));
    agent.close_input();
    agent.ended();
}
