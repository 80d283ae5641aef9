//! Servers that share a database: a window at one of them uses a session that another one has open.

use std::net::TcpListener;
use std::time::Instant;

use epitome_test_harness::agent::{Agent, agent_text, end_by, is_question, stop_reason};
use epitome_test_harness::postgres::PostgresServer;
use epitome_test_harness::user::User;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::{CONTINUES_WITHIN, machine};
use crate::daemon::remote::{Server, certificate, editor, serve, token};

/// A machine of the fleet with its server, which the others reach with TLS.
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
        Node::start_at(user, port)
    }

    fn start_at(user: User, port: u16) -> Node {
        let address = format!("wss://localhost:{port}");
        let [chain, key, ca] = ["server.pem", "server.key", "ca.pem"].map(certificate);
        let [chain, key, ca] = [&chain, &key, &ca].map(|path| path.to_str().expect("text"));
        let listen = format!("127.0.0.1:{port}");
        let server = serve(
            &user,
            &[
                &["--listen", listen.as_str(), "--tls-cert", chain, "--tls-key", key][..],
                &["--advertise", &address, "--peer-ca", ca],
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

    /// The server is ended as by a rolling update, and the next one takes its place.
    fn updated(self) -> Node {
        let port = self.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
        self.server.signal(Signal::TERM);
        assert_eq!(self.server.exit_code(), Some(0));
        Node::start_at(self.user, port)
    }

    /// The machine is gone.
    fn kill(self) -> User {
        end_by(self.user.daemon().expect("it runs"), Signal::KILL);
        drop(self.server);
        self.user
    }

    fn metrics(&self, token: &str) -> String {
        let port = self.address.rsplit_once(':').expect("a port").1;
        let mut curl = std::process::Command::new("curl");
        let ca = certificate("ca.pem");
        curl.args(["-sS", "--cacert"]).arg(ca).args(["-H", &format!("Authorization: Bearer {token}")]);
        let done = curl.arg(format!("https://localhost:{port}/metrics")).output().expect("curl is installed");
        String::from_utf8(done.stdout).expect("text")
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
fn a_window_at_one_server_uses_a_session_that_is_open_at_another() {
    let Some(database) = PostgresServer::start() else { return };
    let (a, b, [anna, screen]) = nodes(&database);
    let laptop = User::new();
    let mut at_a = a.window(&laptop, &anna);
    let session = a.user.new_session(&mut at_a);
    at_a.turn(&session, "say hello");

    // The window at B sees the conversation, and both see the next turn, which A's model answers.
    let began = Instant::now();
    let mut at_b = b.window(&laptop, &anna);
    let replay = load(&a.user, &mut at_b, &session);
    eprintln!("a session of another server is loaded within {:?}", began.elapsed());
    assert!(agent_text(&replay).contains("You said hello."), "{replay:#?}");
    let (said, reason) = at_b.turn(&session, "say more");
    assert_eq!((agent_text(&said).as_str(), reason.as_str()), ("You said more.", "end_turn"));
    at_a.hear("You said more.");
    assert!(b.user.model().requests().is_empty(), "the session is A's");
    assert!(b.metrics(&anna).contains("epitome_remote_forwarded_sessions 1\n"), "{}", b.metrics(&anna));

    // A question is shown in both windows and answered in the one at B.
    let prompt = at_a.prompt(&session, "run echo made > made.txt");
    at_a.until("a question", is_question);
    let asked = at_b.until("a question", is_question).pop().expect("the question");
    at_b.decide(&asked, "allow_once");
    assert_eq!(stop_reason(&at_a.answer(prompt).1), "end_turn");
    assert!(a.user.project().join("made.txt").exists());
    at_b.hear("Done.");

    // A token allows no more at A than it does at B.
    let mut watching = b.window(&laptop, &screen);
    load(&a.user, &mut watching, &session);
    let id = watching.prompt(&session, "say no");
    let (_, refused) = watching.answer(id);
    assert!(refused["error"]["message"].as_str().expect("a refusal").contains("scope"), "{refused}");

    // Closing one window's view of the session leaves the others alone.
    watching.call("session/close", json!({ "sessionId": session }));
    at_a.turn(&session, "say on");
    at_b.hear("You said on.");

    // What a session does to itself works from everywhere.
    at_b.call("session/set_title", json!({ "sessionId": session, "title": "Numbers" }));
    let half = at_b.prompt(&session, "half");
    at_b.hear("The first half, ");
    at_b.cancel(&session);
    assert_eq!(stop_reason(&at_b.answer(half).1), "cancelled");

    // A is lost in a turn. The window at B goes on, and so does the session.
    let half = at_b.prompt(&session, "half");
    at_b.hear("The first half, ");
    let lost = Instant::now();
    let a = a.kill();
    let (_, answer) = at_b.answer(half);
    eprintln!("after the loss, the prompt was answered within {:?}: {answer}", lost.elapsed());
    let (said, _) = at_b.turn(&session, "say again");
    let took = lost.elapsed();
    eprintln!("after the loss, the window at the other server continued within {took:?}");
    assert_eq!(agent_text(&said), "You said again.");
    assert!(took <= CONTINUES_WITHIN, "{took:?}");
    assert!(!b.user.model().requests().is_empty(), "the session is B's now");
    assert!(b.metrics(&anna).contains("epitome_remote_forwarded_sessions 0\n"), "{}", b.metrics(&anna));
    drop(a);
}

/// Regression: a server that was shut down closed the sessions that its clients had open at other servers. Their turns were
/// cancelled at once, although they would have got 30 seconds at their own server.
#[test]
fn a_turn_at_another_server_goes_on_while_its_windows_server_is_updated() {
    let Some(database) = PostgresServer::start() else { return };
    let (a, b, [anna, _]) = nodes(&database);
    let laptop = User::new();
    let mut at_a = a.window(&laptop, &anna);
    let session = a.user.new_session(&mut at_a);
    at_a.turn(&session, "say hello");
    let mut at_b = b.window(&laptop, &anna);
    load(&a.user, &mut at_b, &session);
    // Only the window at B has it open now.
    at_a.call("session/close", json!({ "sessionId": session }));

    let half = at_b.prompt(&session, "half");
    at_b.hear("The first half, ");
    let _b = b.updated();
    a.user.model().release();
    let (rest, answer) = at_b.answer(half);
    assert_eq!((agent_text(&rest).as_str(), stop_reason(&answer).as_str()), ("the second half.", "end_turn"));
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
    let ran = b.run(&["serve", "--advertise", "wss://node-b:4711"]).exited(1);
    assert!(ran.err.contains("--peer-ca"), "{}", ran.err);
    let alone = User::new().run(&["serve", "--advertise", "ws://127.0.0.1:4711"]).exited(1);
    assert!(alone.err.contains("store"), "{}", alone.err);
}

/// Regression: a machine was suspended, and its session was continued on another one and closed there. From then on, each
/// window that loaded the session on the first machine was shown what it had been before, and could not prompt.
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

    let lost = at_a.prompt(&session, "say lost");
    let (_, refused) = at_a.answer(lost);
    assert!(refused["error"]["message"].as_str().is_some_and(|why| why.contains("taken over")), "{refused}");
    let mut next = a.start_trusted();
    let replay = a.load(&mut next, &session);
    assert!(agent_text(&replay).contains("You said more."), "{replay:#?}");
    assert_eq!(agent_text(&next.turn(&session, "say again").0), "You said again.");
}
