//! `kill -9` at any time: everything acknowledged is preserved, interrupted work is marked as such, and the
//! conversation continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use epitome_scripted_model::ModelStep;
use epitome_test_harness::agent::{
    Agent, agent_text, assert_paired, final_statuses, is_answer, is_history, is_question, kind, obey,
    person_said, stop_reason, wants_summary,
};
use epitome_test_harness::user::User;
use epitome_test_harness::within;

/// Loads a session in a new process and asserts that nothing is added to its replay.
fn come_back(user: &User, session: &str) -> (Agent, Vec<Value>) {
    let mut agent = user.start_trusted();
    let replay = user.load(&mut agent, session);
    // Any further message about earlier turns would have to precede this response.
    let id = agent.request("session/list", json!({}));
    let (after, _) = agent.answer(id);
    let late: Vec<&Value> = after.iter().filter(|message| is_history(message)).collect();
    assert!(late.is_empty(), "sent after the answer to session/load: {late:?}");
    let again = user.load(&mut agent, session);
    assert_eq!(history(&replay), history(&again));
    (agent, replay)
}

fn history(messages: &[Value]) -> Vec<&Value> {
    messages.iter().filter(|message| is_history(message)).collect()
}

/// Asserts that the next prompt works, with a request that every provider accepts.
fn go_on(user: &User, agent: &mut Agent, session: &str) {
    let (updates, reason) = agent.turn(session, "say more");
    assert_eq!((agent_text(&updates).as_str(), reason.as_str()), ("You said more.", "end_turn"));
    user.model().requests().iter().for_each(assert_paired);
}

fn interruptions(replay: &[Value]) -> usize {
    agent_text(replay).matches("Interrupted: the agent's process ended").count()
}

#[test]
fn kill_within_a_reply() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    agent.turn(&session, "say one");
    agent.prompt(&session, "half");
    agent.hear("The first half, ");
    user.kill(agent);
    let (mut agent, replay) = come_back(&user, &session);
    assert_eq!(person_said(&replay), ["say one", "half"]);
    assert!(agent_text(&replay).starts_with("You said one."));
    assert_eq!(interruptions(&replay), 1);
    go_on(&user, &mut agent, &session);
    agent.close_input();
    agent.ended();
}

#[test]
fn kill_while_a_command_runs() {
    let user = super::user(obey);
    let mut agent = user.start_trusted();
    let session = user.new_session(&mut agent);
    agent.turn(&session, "run echo one");
    agent.prompt(&session, "run echo begun > marker; sleep 1000");
    let marker = user.project().join("marker");
    within("the command's file", || marker.exists().then_some(()));
    user.kill(agent);
    let (mut agent, replay) = come_back(&user, &session);
    assert_eq!(final_statuses(&replay), ["completed", "failed"]);
    assert_eq!(interruptions(&replay), 1);
    let interrupted =
        replay.iter().filter(|message| message.to_string().contains("Interrupted before it finished"));
    assert_eq!(interrupted.count(), 1);
    go_on(&user, &mut agent, &session);
    let last = user.model().requests().pop().unwrap();
    assert!(last.body.to_string().contains("Interrupted before it finished"), "the model is told as well");
}

/// An MCP server is a child process, like a command.
#[test]
fn kill_with_an_mcp_server() {
    let user = super::user(obey);
    let numbers = user.project().join("numbers");
    let script = format!("sleep 1000 & echo $$ $! > '{}'; exec sleep 1000", numbers.display());
    let config =
        format!("[mcp]\nwait_s = 0\n[mcp.servers.s]\ncommand = \"sh\"\nargs = [\"-c\", {script:?}]\n");
    std::fs::write(user.own().join("config.toml"), config).unwrap();
    let mut agent = user.start_trusted();
    let session = user.new_session(&mut agent);
    agent.turn(&session, "say one");
    let started = within("the server's start", || {
        std::fs::read_to_string(&numbers).ok().filter(|text| text.ends_with('\n'))
    });
    user.kill(agent);
    within("the server's end", || {
        let mut processes = started.split_whitespace();
        let sleeps = |line: String| line.starts_with("sleep") || line.starts_with("sh");
        let lives =
            |number: &str| std::fs::read_to_string(format!("/proc/{number}/cmdline")).is_ok_and(sleeps);
        (!processes.any(lives)).then_some(())
    });
}

#[test]
fn kill_during_a_permission_request() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    agent.prompt(&session, "run touch never");
    agent.until("the card", is_question);
    user.kill(agent);
    let (mut agent, replay) = come_back(&user, &session);
    assert_eq!(final_statuses(&replay), ["failed"]);
    assert_eq!(interruptions(&replay), 1);
    assert!(!replay.iter().any(is_question), "nobody is asked about the past");
    go_on(&user, &mut agent, &session);
    assert!(!user.project().join("never").exists());
}

#[test]
fn kill_during_a_compaction() {
    let hangs = Arc::new(AtomicBool::new(true));
    let hanging = hangs.clone();
    let user = super::user(move |request| match wants_summary(request) {
        true if hanging.load(Ordering::SeqCst) => vec![ModelStep::Hang],
        _ => obey(request),
    });
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    let long = format!("say {}", "a long story ".repeat(200));
    agent.turn(&session, &long);
    let before = user.last_messages();
    agent.prompt(&session, "/compact");
    within("the call for a summary", || user.model().requests().iter().any(wants_summary).then_some(()));
    user.kill(agent);
    hangs.store(false, Ordering::SeqCst);
    let (mut agent, replay) = come_back(&user, &session);
    assert_eq!(person_said(&replay).last(), Some(&"/compact"));
    assert!(!agent_text(&replay).contains("Compacted"));
    assert_eq!(interruptions(&replay), 1);
    go_on(&user, &mut agent, &session);
    assert_eq!(user.last_messages()[..before.len()], before, "nothing was replaced");
    let (updates, _) = agent.turn(&session, "/compact");
    assert!(agent_text(&updates).contains("Compacted"), "and it can be compacted now");
}

#[test]
fn thirty_kills_at_random_times() {
    let user = super::user(obey);
    let mut agent = user.start_trusted();
    let session = user.new_session(&mut agent);
    let mut acknowledged: Vec<String> = Vec::new();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    for round in 0..30 {
        let (words, expected) = match round % 3 {
            0 => (format!("run echo {round}"), "Done.".to_owned()),
            1 => (format!("say {round}"), format!("You said {round}.")),
            _ => (format!("run echo {round}; exit 1"), "Done.".to_owned()),
        };
        let id = agent.prompt(&session, &words);
        let until = Instant::now() + Duration::from_micros(chance.u64(0..60_000));
        let mut said = Vec::new();
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            said.extend(agent.next_within(left).ok());
        }
        // Everything that the agent sent before it was killed counts as acknowledged.
        said.extend(user.kill(agent));
        if let Some(answer) = said.iter().find(|message| is_answer(message, id)) {
            assert_eq!(stop_reason(answer), "end_turn");
            assert!(agent_text(&said).ends_with(&expected));
            acknowledged.push(words);
        }
        let (next, replay) = come_back(&user, &session);
        agent = next;
        let there = person_said(&replay);
        let mut rest = there.iter();
        for words in &acknowledged {
            assert!(rest.any(|said| said == words), "{words:?} was answered and is lost: {there:?}");
        }
        let begun = replay.iter().filter(|message| kind(message) == "tool_call").count();
        assert_eq!(final_statuses(&replay).len(), begun, "each call has one outcome");
    }
    println!("{} of 30 prompts were answered", acknowledged.len());
    go_on(&user, &mut agent, &session);
}
