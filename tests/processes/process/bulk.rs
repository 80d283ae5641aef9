//! Large volumes: a model that is faster than the editor, and an extremely long prompt.

use std::fs;

use epitome_scripted_model::ModelStep;
use epitome_test_harness::agent::{Agent, agent_text, obey, stop_reason};
use epitome_test_harness::user::User;
use epitome_test_harness::{text, within};
use serde_json::json;

const DELTA: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\n";

/// 10 MB of text; three times that on the wire from the model.
const DELTAS: usize = 160_000;

/// Maximum growth of an agent by such a reply, in kB: the received text, its entry, the encoded line, and the
/// outgoing chunks.
const REPLY_KB_MAX: u64 = 100 * 1024;

/// Maximum additional growth if the editor does not read, in kB.
const UNREAD_KB_MAX: u64 = 32 * 1024;

fn peak_kb(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Has a model flood the agent, and returns the agent's growth in kB.
fn flooded(wait: impl FnOnce(&User)) -> u64 {
    let user =
        super::user(|_| vec![ModelStep::Flood { count: DELTAS, text: DELTA.into() }, text("The end.")]);
    // The reply alone is larger than the window.
    user.write(".epitome/config.toml", "[compaction]\nauto = false\n");
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    let before = peak_kb(user.worker(&agent));
    let id = agent.prompt(&session, "go");
    wait(&user);
    let (updates, answer) = agent.answer(id);
    assert_eq!(stop_reason(&answer), "end_turn");
    let said = agent_text(&updates);
    assert!(said == DELTA.repeat(DELTAS) + "The end.", "{} bytes came", said.len());
    let more = peak_kb(user.worker(&agent)) - before;
    agent.close_input();
    agent.ended();
    more
}

#[test]
fn an_editor_that_stops_reading_costs_little_memory_and_misses_nothing() {
    let whole = (DELTA.len() * DELTAS) as u64;
    let reading = flooded(|_| {});
    let not_reading = flooded(|user| {
        // Reads nothing until the model has finished and the reply is in the log.
        let data = user.own().join("data");
        within("the reply in the log", || (size_of(&data) > whole).then_some(()));
    });
    println!("grew by {reading} kB, without reading by {not_reading} kB");
    assert!(reading < REPLY_KB_MAX, "the agent grew by {reading} kB");
    assert!(not_reading < reading + UNREAD_KB_MAX, "by {reading} kB, without reading by {not_reading} kB");
}

#[test]
fn an_editor_that_never_reads_does_not_delay_shutdown() {
    let by_pipe: fn(&mut Agent) = Agent::close_input;
    let by_signal: fn(&mut Agent) = |agent| agent.terminate();
    for end in [by_pipe, by_signal] {
        let user =
            super::user(|_| vec![ModelStep::Flood { count: 20_000, text: DELTA.into() }, ModelStep::Hang]);
        let mut agent = user.start();
        let session = user.new_session(&mut agent);
        agent.prompt(&session, "go");
        agent.until("some text", |message| !agent_text(std::slice::from_ref(message)).is_empty());
        end(&mut agent);
        agent.ended_unread();
        let mut agent = user.start();
        let replay = user.load(&mut agent, &session);
        assert!(agent_text(&replay).starts_with(DELTA), "what had come is kept");
    }
}

/// Bytes of all files below a directory.
fn size_of(directory: &std::path::Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => size_of(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[test]
fn a_large_image_arrives_unchanged_and_an_oversized_line_is_refused() {
    let user = super::user(|_| vec![text("A picture.")]);
    fs::write(user.own().join("config.toml"), "[models.\"local/scripted\"]\nimages = true\n").unwrap();
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    // The signature of a PNG, and nearly as many bytes as an image may have.
    let image = format!("iVBORw0KGgoA{}", "A".repeat(4 * 1024 * 1024));
    let prompt = json!([
        { "type": "text", "text": "what is this?" },
        { "type": "image", "mimeType": "image/png", "data": image },
    ]);
    let id = agent.request("session/prompt", json!({ "sessionId": session, "prompt": prompt }));
    let (updates, answer) = agent.answer(id);
    assert_eq!((agent_text(&updates).as_str(), stop_reason(&answer).as_str()), ("A picture.", "end_turn"));
    let sent = user.model().requests()[0].body.to_string();
    assert!(sent.contains(&image), "the model gets all of it: {} bytes", sent.len());
    // The error has no id, because the line was not parsed.
    agent.prompt(&session, &"A".repeat(65 * 1024 * 1024));
    let refused = agent.until("the refusal", |message| message.get("error").is_some()).pop().unwrap();
    assert!(refused["error"]["message"].as_str().unwrap().contains("64 MiB"), "{refused}");
    assert_eq!(agent.turn(&session, "go on").1, "end_turn");
}

#[test]
fn many_sessions_stream_concurrently_without_mixing_texts() {
    let user = super::user(obey);
    let mut agent = user.start();
    let sessions: Vec<String> = (0..8).map(|_| user.new_session(&mut agent)).collect();
    let asked: Vec<(u64, &String)> =
        sessions.iter().map(|session| (agent.prompt(session, &format!("say {session}")), session)).collect();
    let mut open = asked.len();
    let seen = agent.until("all answers", |message| {
        open -= usize::from(message.get("result").is_some());
        open == 0
    });
    for (_, session) in asked {
        let own: Vec<_> =
            seen.iter().filter(|message| message["params"]["sessionId"] == **session).cloned().collect();
        assert_eq!(agent_text(&own), format!("You said {session}."));
    }
}
