//! Servers that share a database: a window of one of them goes to the one that has its session open.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Instant;

use epitome_test_harness::agent::{Agent, agent_text, end_by, obey};
use epitome_test_harness::postgres::PostgresServer;
use epitome_test_harness::serve::{Server, certificate, editor, serve, token};
use epitome_test_harness::user::{User, program};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::{CONTINUES_WITHIN, machine};

/// A machine of the fleet with its server, which windows reach with TLS.
struct Node {
    user: User,
    server: Server,
    address: String,
}

impl Node {
    fn start(user: User) -> Node {
        // Free a moment ago. The address has to be known before the server listens.
        let port =
            TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("an address").port();
        let address = format!("wss://localhost:{port}");
        let [chain, key] = ["server.pem", "server.key"].map(certificate);
        let [chain, key] = [&chain, &key].map(|path| path.to_str().expect("text"));
        let listen = format!("127.0.0.1:{port}");
        let server = serve(
            &user,
            &[
                &["--listen", listen.as_str(), "--tls-cert", chain, "--tls-key", key][..],
                &["--advertise", &address],
            ]
            .concat(),
        );
        Node { user, server, address }
    }

    /// A window on a laptop without anything else.
    fn window(&self, laptop: &User, token: &str) -> Agent {
        let ca = certificate("ca.pem");
        editor(laptop, &self.address, token, &["--tls-ca", ca.to_str().expect("text")])
    }

    /// The machine is gone.
    fn kill(self) -> User {
        let daemon = self.user.daemon().expect("it runs");
        // First: it starts another daemon, which would have the session.
        drop(self.server);
        end_by(daemon, Signal::KILL);
        self.user
    }
}

fn load(user: &User, window: &mut Agent, session: &str) -> Vec<Value> {
    let params = json!({ "sessionId": session, "cwd": user.project(), "mcpServers": [] });
    let id = window.request("session/load", params);
    let (replay, answer) = window.answer(id);
    assert!(answer.get("result").is_some(), "{answer}");
    replay
}

/// Two machines with the same tokens, like a mounted secret.
fn nodes(database: &PostgresServer) -> (Node, Node, [String; 2]) {
    let address = PostgresServer::address(&[database]);
    let [first, second] = [machine(&address), machine(&address)];
    let tokens = [token(&first, "anna", "approve"), token(&first, "screen", "read")];
    let file = "data/remote-tokens.json";
    std::fs::create_dir_all(second.own().join("data")).expect("a directory");
    std::fs::copy(first.own().join(file), second.own().join(file)).expect("they can be copied");
    (Node::start(first), Node::start(second), tokens)
}

#[test]
fn a_window_goes_to_the_server_that_has_its_session() {
    let Some(database) = PostgresServer::start() else { return };
    let (a, b, [anna, screen]) = nodes(&database);
    let laptop = User::new();
    let mut at_a = a.window(&laptop, &anna);
    let session = a.user.new_session(&mut at_a);
    at_a.turn(&session, "say hello");

    // The window that began at B sees the conversation, and both see the next turn, which A's model answers.
    let began = Instant::now();
    let mut at_b = b.window(&laptop, &anna);
    let replay = load(&a.user, &mut at_b, &session);
    eprintln!("a session of another server is loaded within {:?}", began.elapsed());
    assert!(agent_text(&replay).contains("You said hello."), "{replay:#?}");
    let (said, reason) = at_b.turn(&session, "say more");
    assert_eq!((agent_text(&said).as_str(), reason.as_str()), ("You said more.", "end_turn"));
    at_a.hear("You said more.");
    assert!(b.user.model().requests().is_empty(), "the session is A's");

    // A token allows no more at A than it does at B.
    let mut watching = b.window(&laptop, &screen);
    load(&a.user, &mut watching, &session);
    let id = watching.prompt(&session, "say no");
    let (_, refused) = watching.answer(id);
    assert!(refused["error"]["message"].as_str().expect("a refusal").contains("scope"), "{refused}");

    // A window with sessions at its own server stays there, and learns the address.
    let mut busy = b.window(&laptop, &anna);
    b.user.new_session(&mut busy);
    let (_, refused) = a.user.try_load(&mut busy, &session);
    let why = refused["error"]["message"].as_str().expect("a refusal");
    assert!(why.contains(&a.address) && why.contains("other sessions"), "{why}");
    assert_eq!(refused["error"]["data"]["openAt"], a.address, "{refused}");

    // A is lost in a turn. The window that began at B goes on there, and so does the session.
    let half = at_b.prompt(&session, "half");
    at_b.hear("The first half, ");
    let lost = Instant::now();
    let a = a.kill();
    let (_, answer) = at_b.answer(half);
    eprintln!("after the loss, the prompt was answered within {:?}: {answer}", lost.elapsed());
    let (said, _) = at_b.turn(&session, "say again");
    let took = lost.elapsed();
    eprintln!("after the loss, the window continued at its own server within {took:?}");
    assert_eq!(agent_text(&said), "You said again.");
    assert!(took <= CONTINUES_WITHIN, "{took:?}");
    assert!(!b.user.model().requests().is_empty(), "the session is B's now");
    drop(a);
}

/// A session of a process that does not serve can't be reached. The error names the process.
#[test]
fn a_session_that_no_server_has_is_refused_with_its_holder() {
    let Some(database) = PostgresServer::start() else { return };
    let address = PostgresServer::address(&[&database]);
    let [a, b] = [machine(&address), machine(&address)];
    let mut at_a = a.start_trusted();
    let session = a.new_session(&mut at_a);
    let mut at_b = b.start_trusted();
    let (_, answer) = a.try_load(&mut at_b, &session);
    let daemon = a.daemon().expect("it runs").as_raw_nonzero();
    let message = answer["error"]["message"].as_str().expect("a refusal");
    assert!(message.contains(&format!("process {daemon}")), "{message}");
    let ran = b.run(&["serve", "--advertise", "ws://node-b:4711"]).exited(1);
    assert!(ran.err.contains("not encrypted"), "{}", ran.err);
    let alone = User::new().run(&["serve", "--advertise", "ws://127.0.0.1:4711"]).exited(1);
    assert!(alone.err.contains("store"), "{}", alone.err);
}

/// Regressions: a machine was suspended, and its session was continued on another one and closed there. From then on, each
/// window that loaded the session on the first machine was shown what it had been before, and could not prompt. Later
/// loading cured it, but the window that had the session open all the time was refused until it loaded it.
#[test]
fn a_session_that_was_lost_is_loaded_as_it_is_now() {
    let Some(database) = PostgresServer::start() else { return };
    let address = PostgresServer::address(&[&database]);
    let [a, b] = [machine(&address), machine(&address)];
    let mut at_a = a.start_trusted();
    let session = a.new_session(&mut at_a);
    at_a.turn(&session, "say hello");
    let daemon = a.daemon().expect("it runs");
    kill_process(daemon, Signal::STOP).expect("it runs");
    let mut at_b = b.start_trusted();
    a.load(&mut at_b, &session);
    at_b.turn(&session, "say more");
    at_b.call("session/close", json!({ "sessionId": session }));
    kill_process(daemon, Signal::CONT).expect("it is there");

    // Only what is sent before the machine knows that it has lost the session is refused.
    let early = at_a.prompt(&session, "say early");
    let (mut shown, answer) = at_a.answer(early);
    assert!(answer.get("error").is_none_or(|error| error.to_string().contains("taken over")), "{answer}");
    shown.extend(at_a.turn(&session, "say on").0);
    let shown = agent_text(&shown);
    assert!(shown.contains("You said more.") && shown.ends_with("You said on."), "{shown}");
    let mut next = a.start_trusted();
    let replay = a.load(&mut next, &session);
    assert!(agent_text(&replay).contains("You said more."), "{replay:#?}");
    assert_eq!(agent_text(&next.turn(&session, "say again").0), "You said again.");
}

/// Regression: a window loaded a session that its machine had lost meanwhile. It was shown what had been added elsewhere
/// twice: when the log was opened again for the clients that were there, and when it was replayed.
#[test]
fn a_window_that_loads_a_lost_session_sees_each_entry_once() {
    let Some(database) = PostgresServer::start() else { return };
    let address = PostgresServer::address(&[&database]);
    let [a, b] = [machine(&address), machine(&address)];
    let mut at_a = a.start_trusted();
    let session = a.new_session(&mut at_a);
    at_a.turn(&session, "say hello");
    let daemon = a.daemon().expect("it runs");
    kill_process(daemon, Signal::STOP).expect("it runs");
    let mut at_b = b.start_trusted();
    a.load(&mut at_b, &session);
    at_b.turn(&session, "say more");
    kill_process(daemon, Signal::CONT).expect("it is there");
    // The machine has lost the session, and then finds it open elsewhere. It keeps it for its window.
    for _ in 0..2 {
        let refused = at_a.prompt(&session, "say early");
        assert!(at_a.answer(refused).1.get("error").is_some());
    }
    at_b.call("session/close", json!({ "sessionId": session }));
    let replay = agent_text(&a.load(&mut at_a, &session));
    assert_eq!(replay.matches("You said more.").count(), 1, "{replay}");
}

/// The trial of docs/operators/fleet.md: a session that was begun at one server is continued with a window of the other.
#[test]
fn the_trial_serves_one_session_at_both_servers() {
    if !PostgresServer::is_installed() {
        return;
    }
    let user = crate::daemon::user(obey);
    let plain = user.command(&[]);
    let mut trial = Command::new("docs/fleet/try");
    trial.args(["sh", "-c", "echo $SERVER_A $SERVER_B $EPITOME_REMOTE_TOKEN; cat"]);
    trial.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // Below the ports that the system gives to other connections.
    trial.env("EPITOME", program()).env("PORT", (20_000 + std::process::id() % 12_000).to_string());
    let mut trial = trial.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut printed = String::new();
    BufReader::new(trial.stdout.take().expect("a pipe")).read_line(&mut printed).expect("text");
    let [at_a, at_b, token] = printed.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("two servers and a token: {printed:?}")
    };
    let laptop = User::new();
    let mut first = editor(&laptop, at_a, token, &[]);
    let session = user.new_session(&mut first);
    first.turn(&session, "say one");
    let mut second = editor(&laptop, at_b, token, &[]);
    assert!(agent_text(&load(&user, &mut second, &session)).contains("You said one."));
    assert_eq!(agent_text(&second.turn(&session, "say two").0), "You said two.");
    drop(trial.stdin.take());
    assert!(trial.wait().expect("it ends").success());
}
