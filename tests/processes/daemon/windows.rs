//! Several clients of one daemon.

use epitome_test_harness::agent::{
    Agent, agent_text, is_answer, is_question, obey, person_said, stop_reason,
};
use epitome_test_harness::user::{Ran, User};
use epitome_test_harness::within;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde_json::json;

/// Clients that are started at the same time.
const WINDOWS: usize = 10;

/// Process ids of the living daemons of this home.
pub fn daemons(user: &User) -> Vec<u32> {
    let home = user.home().display().to_string();
    let numbers =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let of = |process: u32, what: &str| {
        String::from_utf8_lossy(&fs::read(format!("/proc/{process}/{what}")).unwrap_or_default()).into_owned()
    };
    let is_ours = |process: &u32| {
        of(*process, "environ").contains(&home)
            && of(*process, "cmdline").starts_with("epitome\0daemon\0serve")
    };
    numbers.filter(is_ours).collect()
}

fn initialize(agent: &mut Agent) {
    agent.call("initialize", json!({ "protocolVersion": 1 }));
}

/// One client was started in a directory whose name is not UTF-8: `daemon status` panicked for everybody, and other
/// commands in that directory too.
#[test]
fn a_directory_that_is_not_utf8_is_shown_or_refused() {
    let user = super::user(obey);
    let odd = user.home().join(OsStr::from_bytes(b"w\xff"));
    fs::create_dir(&odd).unwrap();
    let there = |arguments: &[&str]| {
        Ran::from(user.command(arguments).current_dir(&odd).output().expect("the program starts"))
    };
    let mut command = user.agent_command(&[]);
    command.current_dir(&odd);
    let mut window = Agent::spawn(command);
    initialize(&mut window);
    let status = user.run(&["daemon", "status", "--json"]).json();
    let cwd = status["attachments"][0]["cwd"].as_str().expect("a path");
    assert!(cwd.ends_with("w\u{fffd}"), "{status}");
    assert!(there(&["models", "local"]).ok().contains("scripted"));
    let path = there(&["config", "path", "--json"]).json();
    assert!(path["repository"]["path"].as_str().expect("a path").contains("w\u{fffd}"), "{path}");
    for refused in [
        &["sessions", "import", "/etc/hostname"][..],
        &["sessions", "list", "--cwd", "."],
        &["ahp", "--listen", "127.0.0.1:0"],
    ] {
        let refused = there(refused).exited(1).err;
        assert!(refused.contains("not UTF-8"), "{refused}");
    }
}

#[test]
fn ten_clients_started_at_once_share_one_daemon() {
    let user = super::user(obey);
    let mut windows: Vec<Agent> = (0..WINDOWS).map(|_| Agent::spawn(user.agent_command(&[]))).collect();
    windows.iter_mut().for_each(initialize);
    assert_eq!(daemons(&user), [user.worker(&windows[0])]);
    let sessions: Vec<String> = windows.iter_mut().map(|window| user.new_session(window)).collect();
    for (at, (window, session)) in windows.iter_mut().zip(&sessions).enumerate() {
        assert_eq!(agent_text(&window.turn(session, &format!("say {at}")).0), format!("You said {at}."));
    }
    let listing = windows[3].call("session/list", json!({}));
    assert_eq!(listing["sessions"].as_array().unwrap().len(), WINDOWS, "each sees the others' sessions");
    for mut window in windows {
        window.close_input();
        window.ended();
    }
    assert_eq!(daemons(&user).len(), 1, "the daemon outlives its windows");
}

#[test]
fn a_second_client_follows_a_session_and_may_answer_its_permission_requests() {
    let user = super::user(obey);
    let (mut one, mut two) = (user.start(), user.start());
    let session = user.new_session(&mut one);
    one.turn(&session, "say one");
    assert_eq!(person_said(&user.load(&mut two, &session)), ["say one"]);
    let id = one.prompt(&session, "run echo hi > made");
    one.until("the card", is_question);
    let card = two.until("the card in the second window", is_question).pop().unwrap();
    two.decide(&card, "allow_once");
    let (seen, answer) = one.answer(id);
    assert_eq!(stop_reason(&answer), "end_turn");
    assert!(seen.iter().any(|message| message["method"] == "$/cancel_request"), "the first card closes");
    assert!(user.project().join("made").exists());
}

/// One client's key must never pay for another client's prompts, and its base URL must never receive them.
#[test]
fn each_client_uses_its_own_environment() {
    let user = super::user(obey);
    let other = super::user(obey);
    let start = |url: String, secret: &str| {
        let mut command = user.agent_command(&["--mode", "full"]);
        command.env("EPITOME_LOCAL_URL", url).env("SECRET_KEY", secret).env("WHOSE", secret);
        let mut agent = Agent::spawn(command);
        initialize(&mut agent);
        agent
    };
    let mut one = start(user.model().openai_base_url(), "sk-one-0451");
    let mut two = start(other.model().openai_base_url(), "sk-two-0815");
    assert_eq!(daemons(&user).len(), 1);
    for (agent, model, secret, not) in
        [(&mut one, user.model(), "sk-one", "sk-two"), (&mut two, other.model(), "sk-two", "sk-one")]
    {
        let session = user.new_session(agent);
        // Reversed, because the key would be masked otherwise. Commands do not get `SECRET_KEY`, whose name is that of
        // a key.
        agent.turn(&session, "run printenv SECRET_KEY WHOSE | rev");
        let sent: String = model.requests().iter().map(|request| request.body.to_string()).collect();
        let backwards = |text: &str| text.chars().rev().collect::<String>();
        assert!(sent.contains(&backwards(secret)) && !sent.contains(&backwards(not)), "{sent}");
    }
    let daemon = daemons(&user)[0];
    let environment = fs::read(format!("/proc/{daemon}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    for name in ["SECRET_KEY", "WHOSE", "EPITOME_LOCAL_URL", "NO_PROXY"] {
        assert!(!environment.contains(name), "{name} is in {environment}");
    }
}

#[test]
fn a_killed_client_leaves_a_recorded_turn_and_no_child_process() {
    let user = super::user(obey);
    let mut agent = user.start_trusted();
    let session = user.new_session(&mut agent);
    agent.prompt(&session, "run echo begun > marker; sleep 1000");
    let marker = user.project().join("marker");
    within("the command's file", || marker.exists().then_some(()));
    let daemon = user.worker(&agent);
    agent.kill();
    // A client that loads the session before the daemon has noticed the disconnect would share the turn,
    // which would then continue.
    let ended = || fs::read_to_string(user.journal(&session)).is_ok_and(|log| log.contains("\"turn_ended\""));
    within("the turn's end", || ended().then_some(()));
    let mut agent = user.start();
    assert_eq!(user.worker(&agent), daemon, "the daemon lives on");
    let replay = user.load(&mut agent, &session);
    assert_eq!(person_said(&replay).len(), 1);
    let (updates, reason) = agent.turn(&session, "say more");
    assert_eq!((agent_text(&updates).as_str(), reason.as_str()), ("You said more.", "end_turn"));
    let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children")).unwrap_or_default();
    assert!(children.split_whitespace().count() <= 2, "at most the two helpers: {children}");
}

#[test]
fn a_client_that_disconnects_within_a_line_does_no_harm() {
    use std::io::Write;
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    let mut rude = user.agent_command(&[]).spawn().unwrap();
    let half =
        json!({ "jsonrpc": "2.0", "id": 9, "method": "session/delete", "params": { "sessionId": session } });
    let half = half.to_string();
    let mut input = rude.stdin.take().unwrap();
    input.write_all(&half.as_bytes()[..half.len() - 1]).unwrap();
    rude.kill().unwrap();
    rude.wait().unwrap();
    assert_eq!(agent.turn(&session, "say one").1, "end_turn");
    assert!(user.journal(&session).exists());
}

#[test]
fn requests_sent_immediately_before_end_of_input_are_answered() {
    let user = super::user(obey);
    let mut agent = Agent::spawn(user.agent_command(&[]));
    let first = agent.request("initialize", json!({ "protocolVersion": 1 }));
    let made = agent.request("session/new", json!({ "cwd": user.project(), "mcpServers": [] }));
    agent.close_input();
    let rest = agent.ended();
    for id in [first, made] {
        assert!(rest.iter().any(|message| is_answer(message, id)), "{id} has no answer in {rest:?}");
    }
}
