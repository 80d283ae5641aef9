//! Clients on other machines: `epitome serve`, `epitome token`, and `epitome acp --remote`.

use std::fs::{self, Permissions};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use epitome_test_harness::agent::{Agent, agent_text, is_question, obey, spoken, stop_reason};
use epitome_test_harness::serve::{Server, certificate, editor, remote_agent, serve, token};
use epitome_test_harness::user::User;
use epitome_test_harness::within;
use parking_lot::Mutex;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::user;
use super::websocket::{Socket, connect};

/// Whether a message shows that the window waits for its server.
pub fn shows_wait(message: &Value) -> bool {
    spoken(std::slice::from_ref(message), "agent_thought_chunk").contains("Waiting at most")
}

#[test]
fn an_editor_works_with_the_daemon_of_another_machine() {
    let (build, laptop) = (user(obey), User::new());
    let secret = token(&build, "anna", "approve");
    let (chain, key, ca) = (certificate("server.pem"), certificate("server.key"), certificate("ca.pem"));
    let [chain, key, ca] = [&chain, &key, &ca].map(|path| path.to_str().expect("text"));
    let encrypted = ["--tls-cert", chain, "--tls-key", key];
    let server = serve(&build, &[&["--listen", "127.0.0.1:0"][..], &encrypted].concat());
    let port = server.address.rsplit_once(':').expect("a port").1.to_owned();
    let mut agent = editor(&laptop, &format!("wss://localhost:{port}"), &secret, &["--tls-ca", ca]);
    let session = build.new_session(&mut agent);
    let (said, reason) = agent.turn(&session, "say hello");
    assert_eq!((agent_text(&said).as_str(), reason.as_str()), ("You said hello.", "end_turn"));
    assert!(laptop.daemon().is_none(), "nothing runs on the laptop");
    // The server is killed in a turn. The turn goes on, and the editor's window continues with the next server.
    let prompt = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    drop(server);
    let same = format!("127.0.0.1:{port}");
    let _server = serve(&build, &[&["--listen", same.as_str()][..], &encrypted].concat());
    build.model().release();
    let (rest, answer) = agent.answer(prompt);
    assert_eq!((agent_text(&rest).as_str(), stop_reason(&answer).as_str()), ("the second half.", "end_turn"));
    let (said, _) = agent.turn(&session, "say more");
    assert_eq!(agent_text(&said), "You said more.");
    let shown = build.run(&["sessions", "show", &session]).ok();
    assert!(shown.contains("anna"), "{shown}");
    assert!(!shown.contains(&secret));
}

/// Passes bytes on to a server, until its connections are cut.
pub struct CuttableRelay {
    pub address: String,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl CuttableRelay {
    pub fn to(server: &str) -> CuttableRelay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let open = Arc::new(Mutex::new(Vec::new()));
        let (server, streams) = (server.to_owned(), open.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let copy = |from: &TcpStream, to: &TcpStream| {
                    let (mut from, mut to) = (from.try_clone().expect("open"), to.try_clone().expect("open"));
                    std::thread::spawn(move || {
                        drop(std::io::copy(&mut from, &mut to));
                        drop(to.shutdown(Shutdown::Both));
                    });
                };
                copy(&client, &server);
                copy(&server, &client);
                streams.lock().extend([client, server]);
            }
        });
        CuttableRelay { address, open }
    }

    pub fn cut(&self) {
        for stream in self.open.lock().drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

#[test]
fn a_turn_goes_on_without_a_gap_when_the_connection_is_cut() {
    let (build, laptop) = (user(obey), User::new());
    let secret = token(&build, "anna", "approve");
    let server = serve(&build, &["--listen", "127.0.0.1:0"]);
    let relay = CuttableRelay::to(&server.address);
    let mut agent = editor(&laptop, &format!("ws://{}", relay.address), &secret, &[]);
    let session = build.new_session(&mut agent);
    let prompt = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    relay.cut();
    build.model().release();
    let (rest, answer) = agent.answer(prompt);
    assert_eq!((agent_text(&rest).as_str(), stop_reason(&answer).as_str()), ("the second half.", "end_turn"));
}

/// Regression: a server was killed. A user who sent a prompt before there was another one saw nothing for up to a minute,
/// and then had to send it again; also one whose prompt went to the server just before that.
#[test]
fn a_prompt_shows_that_its_server_is_waited_for_and_reaches_it() {
    let (build, laptop) = (user(obey), User::new());
    let secret = token(&build, "anna", "approve");
    let server = serve(&build, &["--listen", "127.0.0.1:0"]);
    let address = server.address.clone();
    let mut agent = editor(&laptop, &format!("ws://{address}"), &secret, &[]);
    let session = build.new_session(&mut agent);
    drop(server);
    let prompt = agent.prompt(&session, "say hello");
    let shown = agent.until("a sentence about what is waited for", shows_wait);
    assert_eq!(shown.last().map(|shown| &shown["params"]["sessionId"]), Some(&json!(session)));
    let _server = serve(&build, &["--listen", &address]);
    let (rest, answer) = agent.answer(prompt);
    assert!(!rest.iter().any(shows_wait), "it is said once: {rest:?}");
    assert_eq!((agent_text(&rest).as_str(), stop_reason(&answer).as_str()), ("You said hello.", "end_turn"));
    assert_eq!(agent_text(&agent.turn(&session, "say more").0), "You said more.");
}

async fn admitted(server: &Server, token: &str) -> Socket {
    let header = format!("Bearer {token}");
    let mut socket =
        connect(&server.address, "/acp", &[("authorization", header.as_str())]).await.expect("admitted");
    let capabilities = json!({ "session": { "notices": {} } });
    socket.call(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities })).await;
    socket
}

#[tokio::test]
async fn a_client_does_no_more_than_its_token_allows() {
    let user = user(obey);
    // The client's words were inserted into the line for a shell, which ran outside of the sandbox.
    user.write(".claude/commands/issue.md", "Issue: !`echo looking at $ARGUMENTS`\n");
    let (read, prompt) = (token(&user, "screen", "read"), token(&user, "bob", "prompt"));
    let server = serve(&user, &["--listen", "127.0.0.1:0"]);
    let mut owner = user.start();
    let session = user.new_session(&mut owner);
    owner.turn(&session, "say hello");
    let load = json!({ "sessionId": session, "cwd": user.project(), "mcpServers": [] });
    let words = |text: &str| json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });

    let mut screen = admitted(&server, &read).await;
    screen.call(2, "session/load", load.clone()).await;
    for (method, params) in [
        ("session/prompt", words("say no")),
        ("session/new", json!({ "cwd": user.project(), "mcpServers": [] })),
        ("session/set_mode", json!({ "sessionId": session, "modeId": "full" })),
        ("session/delete", json!({ "sessionId": session })),
    ] {
        let refused = screen.refusal(3, method, params).await;
        assert!(refused.contains("scope"), "{method}: {refused}");
    }
    let mut bob = admitted(&server, &prompt).await;
    bob.call(2, "session/load", load.clone()).await;
    for text in ["/permissions forget all", "/rewind", "/issue 7; touch pwned"] {
        let refused = bob.refusal(3, "session/prompt", words(text)).await;
        assert!(refused.contains("scope `approve`"), "{refused}");
    }
    let program = json!([{ "name": "a", "command": "/bin/sh", "args": [], "env": [] }]);
    let opening = json!({ "cwd": user.project(), "mcpServers": program });
    assert!(bob.refusal(4, "session/new", opening).await.contains("mcpServers"));

    // Only the owner is asked whether the command may run.
    bob.request(5, "session/prompt", words("run echo made > made.txt")).await;
    let notice = bob.until(|message| message["params"]["update"]["sessionUpdate"] == "notice").await;
    assert!(!notice.iter().any(is_question), "{notice:?}");
    let mut asked = owner.until("a question", is_question);
    owner.decide(&asked.pop().expect("the question"), "allow_once");
    bob.answer(5).await;
    assert!(user.project().join("made.txt").exists());
    // The screen saw all of that, and who asked for it.
    let seen = screen.until(|message| agent_text(std::slice::from_ref(message)).contains("Done")).await;
    assert!(!seen.iter().any(is_question));
    assert!(seen.iter().any(|message| message["params"]["update"]["_meta"]["epitome"]["author"] == "bob"));

    user.run(&["token", "revoke", "screen"]).ok();
    while screen.try_next().await.is_some() {}
    let header = format!("Bearer {read}");
    assert_eq!(
        connect(&server.address, "/acp", &[("authorization", header.as_str())]).await.err(),
        Some(401)
    );
    let listed = user.run(&["token", "list", "--json"]).objects();
    let names: Vec<&Value> = listed.iter().map(|token| &token["name"]).collect();
    assert_eq!(names, ["bob"]);
}

/// A client whose token was for other directories could not load a session, but it could follow one, and see it in the list.
#[tokio::test]
async fn a_client_sees_nothing_of_sessions_in_other_directories() {
    let user = user(obey);
    let elsewhere = user.home().join("elsewhere");
    fs::create_dir_all(&elsewhere).expect("a directory");
    let elsewhere = elsewhere.to_str().expect("text");
    let tokens = ["read", "prompt"].map(|scope| {
        let create = ["token", "create", "--name", scope, "--scope", scope, "--directory", elsewhere];
        user.run(&create).ok().trim().to_owned()
    });
    let server = serve(&user, &["--listen", "127.0.0.1:0"]);
    let mut owner = user.start();
    let session = user.new_session(&mut owner);
    owner.turn(&session, "say hello");
    for token in tokens {
        let header = format!("Bearer {token}");
        let mut eve =
            connect(&server.address, "/acp", &[("authorization", header.as_str())]).await.expect("admitted");
        eve.call(1, "initialize", json!({ "protocolVersion": 2, "clientCapabilities": {} })).await;
        let watch = json!({ "epitome": { "watch": "e0" } });
        for (method, params) in [
            ("session/resume", json!({ "sessionId": session, "_meta": watch })),
            ("session/resume", json!({ "sessionId": session, "cwd": elsewhere, "_meta": watch })),
            ("session/resume", json!({ "sessionId": session, "cwd": elsewhere, "mcpServers": [] })),
            ("session/fork", json!({ "sessionId": session, "cwd": elsewhere, "mcpServers": [] })),
            ("session/fork", json!({ "sessionId": session })),
        ] {
            let refused = eve.refusal(2, method, params.clone()).await;
            assert!(!refused.is_empty() && !refused.contains("hello"), "{method} {params}: {refused}");
        }
        let listed = eve.call(3, "session/list", json!({})).await;
        assert!(!listed.to_string().contains(&session), "{listed}");
    }
    let stored = user.run(&["sessions", "list", "--json"]).objects();
    assert_eq!(stored.len(), 1, "nothing was made from it: {stored:?}");
}

#[test]
fn nothing_is_served_or_dialled_without_encryption_by_accident() {
    let user = User::new();
    let ran = user.run(&["serve", "--listen", "0.0.0.0:0"]).exited(1);
    assert!(ran.err.contains("--tls-cert"), "{}", ran.err);
    let dial = |arguments: &[&str]| user.run(&[&["acp", "--remote"][..], arguments].concat()).exited(1).err;
    assert!(dial(&["wss://build.example"]).contains("EPITOME_REMOTE_TOKEN"));
    let file = user.project().join("token");
    fs::write(&file, "epitome-made-up\n").expect("it can be written");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("it is ours");
    let file = ["--remote-token-file", file.to_str().expect("text")];
    let with_file = |address: &str| dial(&[&[address][..], &file].concat());
    assert!(with_file("wss://build.example").contains("chmod 600"));
    fs::set_permissions(user.project().join("token"), Permissions::from_mode(0o600)).expect("it is ours");
    assert!(with_file("ws://build.example").contains("not encrypted"));
    assert!(with_file("build.example").contains("wss://"));
    token(&user, "anna", "read");
    let server = serve(&user, &["--listen", "127.0.0.1:0"]);
    assert!(with_file(&format!("ws://{}", server.address)).contains("does not accept the token"));
}

/// A rolling update: the server of the old version lets its turns end, while a new prompt is for the next server.
#[test]
fn a_server_that_is_terminated_lets_running_turns_end_and_gives_sessions_back() {
    let (build, laptop) = (user(obey), User::new());
    let secret = token(&build, "anna", "approve");
    let server = serve(&build, &["--listen", "127.0.0.1:0"]);
    let address = server.address.clone();
    let mut working = editor(&laptop, &format!("ws://{address}"), &secret, &[]);
    let session = build.new_session(&mut working);
    let prompt = working.prompt(&session, "half");
    working.hear("The first half, ");
    let mut idle = editor(&laptop, &format!("ws://{address}"), &secret, &[]);
    let other = build.new_session(&mut idle);
    assert_eq!((server.status("/healthz"), server.status("/readyz")), (200, 200));

    server.signal(Signal::TERM);
    within("the server is not ready", || (server.status("/readyz") == 503).then_some(()));
    assert_eq!(server.status("/healthz"), 200, "it is alive");
    let bearer = format!("Bearer {secret}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let refused = runtime.block_on(connect(&address, "/acp", &[("authorization", &bearer)]));
    assert_eq!(refused.err(), Some(503), "it begins no connection");
    let later = idle.prompt(&other, "say later");
    build.model().release();
    let (rest, answer) = working.answer(prompt);
    assert_eq!((agent_text(&rest).as_str(), stop_reason(&answer).as_str()), ("the second half.", "end_turn"));
    assert_eq!(server.exit_code(), Some(0));
    within("the daemon has ended, because nobody else uses it", || build.daemon().is_none().then_some(()));

    let _next = serve(&build, &["--listen", &address]);
    let (said, answer) = idle.answer(later);
    assert_eq!((agent_text(&said).as_str(), stop_reason(&answer).as_str()), ("You said later.", "end_turn"));
    assert_eq!(agent_text(&working.turn(&session, "say on").0), "You said on.");
}

#[test]
fn a_turn_that_takes_too_long_is_cancelled_and_recorded_when_its_server_ends() {
    let (build, laptop) = (user(obey), User::new());
    let secret = token(&build, "anna", "approve");
    let server = serve(&build, &["--listen", "127.0.0.1:0", "--drain-timeout", "0"]);
    let mut agent = editor(&laptop, &format!("ws://{}", server.address), &secret, &[]);
    let session = build.new_session(&mut agent);
    agent.prompt(&session, "half");
    agent.hear("The first half, ");
    server.signal(Signal::TERM);
    assert_eq!(server.exit_code(), Some(0));
    within("the daemon has ended", || build.daemon().is_none().then_some(()));
    let shown = build.run(&["sessions", "show", &session]).ok();
    assert!(shown.contains("The first half,"), "what had arrived is kept: {shown}");
    build.model().release();
}

/// Regression: a server that was ended stopped the daemon while a prompt of another terminal ran there: only windows of
/// editors kept it.
#[test]
fn a_server_that_ends_leaves_the_turns_of_other_programs_running() {
    let (build, laptop) = (user(obey), User::new());
    let secret = token(&build, "anna", "approve");
    let server = serve(&build, &["--listen", "127.0.0.1:0"]);
    let mut window = editor(&laptop, &format!("ws://{}", server.address), &secret, &[]);
    build.new_session(&mut window);
    let other = build.command(&["run", "half"]).spawn().expect("the program starts");
    within("the request", || (build.model().requests().len() == 1).then_some(()));
    server.signal(Signal::TERM);
    assert_eq!(server.exit_code(), Some(0));
    build.model().release();
    let done = other.wait_with_output().expect("it ends");
    let said = String::from_utf8(done.stdout).expect("text");
    assert!(said.contains("the second half."), "{said}");
}

#[test]
fn a_second_signal_ends_a_server_at_once_and_its_turn_goes_on() {
    let (build, laptop) = (user(obey), User::new());
    let secret = token(&build, "anna", "approve");
    let server = serve(&build, &["--listen", "127.0.0.1:0", "--drain-timeout", "600"]);
    let mut agent = editor(&laptop, &format!("ws://{}", server.address), &secret, &[]);
    let session = build.new_session(&mut agent);
    agent.prompt(&session, "half");
    agent.hear("The first half, ");
    server.signal(Signal::TERM);
    within("the server is not ready", || (server.status("/readyz") == 503).then_some(()));
    server.signal(Signal::TERM);
    assert_eq!(server.exit_code(), Some(1));
    assert!(build.daemon().is_some(), "the client may return to another server");
    build.model().release();
}

/// The clients of a session, in the control API and in `epitome sessions list`.
#[test]
fn the_clients_of_a_session_are_listed_with_their_token_and_program() {
    let (build, laptop) = (user(obey), User::new());
    let secret = token(&build, "anna", "prompt");
    let server = serve(&build, &["--listen", "127.0.0.1:0"]);
    let mut agent = Agent::spawn(remote_agent(&laptop, &format!("ws://{}", server.address), &secret, &[]));
    let client = json!({ "name": "zed", "version": "1" });
    agent.call("initialize", json!({ "protocolVersion": 1, "clientInfo": client }));
    let session = build.new_session(&mut agent);
    let (_, _) = agent.turn(&session, "say hello");
    let listed = build.run(&["sessions", "list", "--json"]).objects();
    let present = &listed[0]["present"][0];
    assert_eq!(
        (&present["token"], &present["scope"], &present["name"]),
        (&json!("anna"), &json!("prompt"), &json!("zed"))
    );
    let shown = build.run(&["sessions", "list"]).ok();
    assert!(shown.contains(" · live with anna\n"), "{shown}");
}
