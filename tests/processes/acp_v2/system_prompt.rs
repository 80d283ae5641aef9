//! V15: the system prompt of a client.

use epitome_scripted_model::RecordedRequest;
use epitome_test_harness::agent::{end_by, obey, wants_summary};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::window::Window;
use super::{INVALID_PARAMS, user};

const RHYMES: &str = "Answer in rhymes.";

fn rhymes() -> Value {
    json!({ "mode": "append", "content": [{ "type": "text", "text": RHYMES }] })
}

/// The messages of a request: the system's own, and all others.
fn messages(request: &RecordedRequest) -> (String, String) {
    let messages = request.body["messages"].as_array().expect("messages");
    let of = |is_system: bool| -> String {
        let ours = messages.iter().filter(|message| (message["role"] == "system") == is_system);
        ours.map(|message| message["content"].to_string()).collect()
    };
    (of(true), of(false))
}

#[test]
fn it_is_at_system_level_also_after_a_compaction_a_resume_and_a_fork() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let made = window.call("session/new", json!({ "cwd": user.project(), "systemPrompt": rhymes() }));
    let session = made["sessionId"].as_str().expect("an id").to_owned();
    for _ in 0..2 {
        window.turn(&session, &format!("say {}", "several words of text ".repeat(2_500)));
    }
    window.turn(&session, "/compact");
    assert!(user.model().requests().iter().any(wants_summary), "it was compacted");
    window.turn(&session, "say two");
    end_by(user.daemon().expect("a daemon serves"), Signal::KILL);
    let mut second = Window::start(&user, &[]);
    second.call("session/resume", json!({ "sessionId": session, "cwd": user.project() }));
    second.turn(&session, "say three");
    let fork = second.call("session/fork", json!({ "sessionId": session, "cwd": user.project() }));
    let fork = fork["sessionId"].as_str().expect("an id").to_owned();
    second.turn(&fork, "say four");
    let answered = |request: &RecordedRequest| request.last_user_text().contains("say ");
    let requests: Vec<_> = user.model().requests().into_iter().filter(answered).collect();
    assert!(requests.len() >= 4, "{}", requests.len());
    for request in &requests {
        let (system, others) = messages(request);
        assert!(system.contains(RHYMES), "{}", request.last_user_text());
        assert!(!others.contains(RHYMES));
    }
    // Another value replaces it.
    let other = json!({ "mode": "override", "content": [{ "type": "text", "text": "You are a poet." }] });
    let params = json!({ "sessionId": session, "cwd": user.project(), "systemPrompt": other });
    second.call("session/resume", params);
    second.turn(&session, "say five");
    let last = user.model().requests().pop().expect("a request");
    let (system, _) = messages(&last);
    assert!(system.starts_with("\"You are a poet.") && !system.contains(RHYMES), "{system:.200}");
}

#[test]
fn a_session_that_cannot_follow_it_is_not_made() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let text = json!([{ "type": "text", "text": "x" }]);
    let image = json!([{ "type": "image", "data": "AAAA", "mimeType": "image/png" }]);
    for prompt in [
        json!({ "mode": "replace", "content": text }),
        json!({ "mode": "append", "content": image }),
        json!({ "mode": "append", "content": [] }),
        json!({ "content": text }),
        json!("x"),
    ] {
        let params = json!({ "cwd": user.project(), "systemPrompt": prompt });
        assert_eq!(window.error("session/new", params), INVALID_PARAMS, "{prompt}");
    }
    let journals = user.own().join("data/journals");
    let logs = std::fs::read_dir(journals).map_or(0, |entries| entries.count());
    assert_eq!(logs, 0, "no session is on the disk");
}
