//! Ends of turns and processes: by cancel, by end of input, by a signal.

use epitome_scripted_model::ModelStep;
use epitome_test_harness::agent::{
    Agent, agent_text, assert_paired, final_statuses, is_history, is_question, obey, person_said,
    stop_reason, wants_summary,
};
use epitome_test_harness::user::User;
use epitome_test_harness::within;
use serde_json::{Value, json};

/// Advances a turn to some point, cancels it, and returns all messages from then on.
fn cancelled(words: &str, at: impl FnOnce(&User, &mut Agent) -> Vec<Value>) -> Vec<Value> {
    let user = super::user(obey);
    // A call that needs permission is only possible if the agent asks.
    let mut agent = if words.contains("touch") { user.start() } else { user.start_trusted() };
    let session = user.new_session(&mut agent);
    let id = agent.prompt(&session, words);
    let mut seen = at(&user, &mut agent);
    agent.cancel(&session);
    let (updates, answer) = agent.answer(id);
    assert_eq!(stop_reason(&answer), "cancelled");
    seen.extend(updates);

    let again = agent.prompt(&session, "say more");
    let (updates, answer) = agent.answer(again);
    assert_eq!(stop_reason(&answer), "end_turn");
    assert_eq!(agent_text(&updates), "You said more.", "nothing of the cancelled turn comes after it");
    assert!(final_statuses(&updates).is_empty());
    user.model().requests().iter().for_each(assert_paired);

    agent.close_input();
    agent.ended();
    let mut agent = user.start();
    let replay = user.load(&mut agent, &session);
    assert_eq!(person_said(&replay), [words, "say more"]);
    let live: String = agent_text(&seen) + "You said more.";
    assert_eq!(agent_text(&replay), live, "what was shown is what is kept");
    assert_eq!(final_statuses(&replay), final_statuses(&seen));
    seen
}

#[test]
fn cancel_before_the_first_chunk() {
    let seen = cancelled("hang", |user, _| {
        within("the model's call", || (!user.model().requests().is_empty()).then(Vec::new))
    });
    assert_eq!(agent_text(&seen), "");
}

#[test]
fn cancel_within_a_reply() {
    let seen = cancelled("half", |_, agent| agent.hear("The first half, "));
    assert_eq!(agent_text(&seen), "The first half, ");
}

#[test]
fn cancel_while_a_command_runs() {
    let seen = cancelled("run echo begun > marker; sleep 1000", |user, _| {
        let marker = user.project().join("marker");
        within("the command's file", || marker.exists().then(Vec::new))
    });
    assert_eq!(final_statuses(&seen), ["failed"]);
}

#[test]
fn cancel_during_a_permission_request() {
    let seen = cancelled("run touch never", |_, agent| agent.until("the card", is_question));
    assert_eq!(final_statuses(&seen), ["failed"]);
    let question = seen.iter().find(|message| is_question(message)).unwrap();
    let withdrawn = seen.iter().find(|message| message["method"] == "$/cancel_request").unwrap();
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
}

#[test]
fn a_cancelled_compaction_changes_nothing() {
    let user = super::user(|request| match wants_summary(request) {
        true => vec![ModelStep::Hang],
        false => obey(request),
    });
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    agent.turn(&session, &format!("say {}", "a long story ".repeat(200)));
    let before = user.last_messages();
    let id = agent.prompt(&session, "/compact");
    within("the call for a summary", || user.model().requests().iter().any(wants_summary).then_some(()));
    agent.cancel(&session);
    let (updates, answer) = agent.answer(id);
    assert_eq!(stop_reason(&answer), "cancelled");
    assert!(!agent_text(&updates).contains("Compacted"));
    agent.turn(&session, "say more");
    assert_eq!(user.last_messages()[..before.len()], before);
}

#[test]
fn end_of_input_ends_an_idle_agent() {
    let user = super::user(obey);
    let mut agent = user.start();
    agent.close_input();
    assert!(agent.ended().is_empty());
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    agent.turn(&session, "say one");
    agent.close_input();
    assert!(!agent.ended().iter().any(is_history));
}

#[test]
fn end_of_input_and_sigterm_record_a_running_turn_as_cancelled() {
    let by_pipe: fn(&mut Agent) = Agent::close_input;
    let by_signal: fn(&mut Agent) = |agent| agent.terminate();
    for end in [by_pipe, by_signal] {
        for words in ["hang", "half", "run sleep 1000"] {
            let user = super::user(obey);
            let mut agent = user.start_trusted();
            let session = user.new_session(&mut agent);
            agent.prompt(&session, words);
            within("the model's call", || (!user.model().requests().is_empty()).then_some(()));
            end(&mut agent);
            agent.ended();
            let mut agent = user.start();
            let replay = user.load(&mut agent, &session);
            assert_eq!(person_said(&replay), [words]);
            assert!(!agent_text(&replay).contains("process ended"), "{words}: it was an orderly end");
            agent.turn(&session, "say more");
            user.model().requests().iter().for_each(assert_paired);
        }
    }
}

#[test]
fn a_signal_ends_an_idle_agent() {
    let user = super::user(obey);
    let mut agent = user.start();
    user.new_session(&mut agent);
    agent.terminate();
    agent.ended();
}

#[test]
fn requests_in_the_pipe_before_end_of_input_are_answered() {
    let user = super::user(obey);
    let mut agent = user.start();
    let listing = agent.request("session/list", json!({}));
    let unknown = agent.request("no/such", json!({}));
    agent.close_input();
    let rest = agent.ended();
    for id in [listing, unknown] {
        assert!(rest.iter().any(|message| message["id"] == id), "{id} has no answer in {rest:?}");
    }
}
