//! `epitome worker`: clients of a server use the files and commands of another machine.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use epitome_test_harness::agent::{Agent, agent_text, end_by, is_answer, is_question, obey, stop_reason};
use epitome_test_harness::user::User;
use epitome_test_harness::within;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use super::remote::{Server, certificate, editor, serve, shows_wait, token};
use super::user;

/// `epitome worker`, killed when dropped.
pub struct RunningWorker(Child);

impl Drop for RunningWorker {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl RunningWorker {
    /// Starts a worker, and waits until it is connected.
    pub fn start(machine: &User, address: &str, token: &str, arguments: &[&str]) -> RunningWorker {
        let named = ["worker", "--remote", address, "--name", "build-box"];
        let mut command = machine.command(&[&named[..], arguments].concat());
        command.env("EPITOME_REMOTE_TOKEN", token).stderr(Stdio::piped());
        let mut worker = RunningWorker(command.spawn().expect("the program starts"));
        let lines = BufReader::new(worker.0.stderr.take().expect("it is a pipe")).lines();
        let mut seen = Vec::new();
        for line in lines {
            seen.push(line.expect("it is text"));
            if seen.last().is_some_and(|line| line.contains("connected to the server")) {
                return worker;
            }
        }
        panic!("it is not connected: {seen:?}")
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(self.0.id().cast_signed()).expect("a process");
        rustix::process::kill_process(process, signal).expect("it runs");
    }
}

/// A server without a model, its tokens for a client and for a worker, and an editor's machine.
struct Office {
    server_machine: User,
    server: Server,
    anna: String,
    work: String,
    laptop: User,
}

impl Office {
    fn open() -> Office {
        let server_machine = User::new();
        let (anna, work) = (token(&server_machine, "anna", "approve"), token(&server_machine, "box", "work"));
        let server = serve(&server_machine, &["--listen", "127.0.0.1:0"]);
        Office { server_machine, server, anna, work, laptop: User::new() }
    }

    fn address(&self) -> String {
        format!("ws://{}", self.server.address)
    }

    fn worker(&self, machine: &User, arguments: &[&str]) -> RunningWorker {
        RunningWorker::start(machine, &self.address(), &self.work, arguments)
    }

    fn editor(&self) -> Agent {
        editor(&self.laptop, &self.address(), &self.anna, &["--worker", "build-box"])
    }

    /// What `epitome worker list` prints.
    fn workers(&self) -> Vec<Value> {
        let mut command = self.laptop.command(&["worker", "list", "--json", "--remote", &self.address()]);
        let done = command.env("EPITOME_REMOTE_TOKEN", &self.anna).output().expect("it starts");
        let text = String::from_utf8(done.stdout).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

/// The text that a command which fails prints.
fn fails(machine: &User, token: &str, arguments: &[&str]) -> String {
    let done = machine.command(arguments).env("EPITOME_REMOTE_TOKEN", token).output().expect("it starts");
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    String::from_utf8(done.stderr).expect("text")
}

#[test]
fn an_editor_uses_the_files_and_commands_of_a_worker() {
    let (office, machine) = (Office::open(), user(obey));
    assert!(office.workers().is_empty());
    let _worker = office.worker(&machine, &[]);
    let mut agent = office.editor();
    let session = machine.new_session(&mut agent);
    let prompt = agent.prompt(&session, "run echo made > made.txt");
    let asked = agent.until("a question", is_question).pop().expect("the question");
    agent.decide(&asked, "allow_once");
    assert_eq!(stop_reason(&agent.answer(prompt).1), "end_turn");
    assert!(machine.project().join("made.txt").exists());
    let shown = machine.run(&["sessions", "show", &session]).ok();
    assert!(shown.contains("anna"), "{shown}");
    assert!(office.server_machine.daemon().is_none(), "nothing runs at the server");

    let listed = office.workers();
    let [worker] = &listed[..] else { panic!("one worker: {listed:?}") };
    assert_eq!(
        (&worker["name"], &worker["token"], &worker["clients"]),
        (&json!("build-box"), &json!("box"), &json!(1))
    );
    agent.close_input();
    agent.ended();
    within("the client has left", || (office.workers()[0]["clients"] == 0).then_some(()));
    within("the session is closed", || {
        let sessions = machine.run(&["sessions", "list", "--json"]).objects();
        sessions[0]["present"].as_array().is_none_or(Vec::is_empty).then_some(())
    });
}

/// Nothing that a server does makes a worker work elsewhere.
#[test]
fn sessions_outside_of_a_workers_directories_are_refused() {
    let (office, machine) = (Office::open(), user(obey));
    machine.write("project/inside/file", "");
    let mut owner = machine.start();
    let elsewhere = machine.new_session(&mut owner);
    owner.turn(&elsewhere, "say hello");
    let inside = machine.project().join("inside");
    let _worker = office.worker(&machine, &["--directory", inside.to_str().expect("text")]);
    let mut agent = office.editor();
    let mut refused = |method: &str, params: Value| {
        let id = agent.request(method, params);
        let answer = agent.answer(id).1;
        let why = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{method}: {answer}"));
        assert!(why.contains("not below"), "{method}: {why}");
    };
    std::os::unix::fs::symlink(machine.home(), inside.join("link")).expect("a link");
    for cwd in [machine.project(), inside.join(".."), inside.join("link")] {
        refused("session/new", json!({ "cwd": cwd, "mcpServers": [] }));
    }
    let wider = [machine.project()];
    refused("session/new", json!({ "cwd": inside, "additionalDirectories": wider, "mcpServers": [] }));
    for method in ["session/load", "session/resume", "session/fork"] {
        refused(method, json!({ "sessionId": elsewhere, "cwd": inside, "mcpServers": [] }));
    }
    for method in ["session/delete", "session/archive"] {
        refused(method, json!({ "sessionId": elsewhere }));
    }
    refused("session/set_title", json!({ "sessionId": elsewhere, "title": "Mine" }));
    // Regression: a turn could be cancelled, because that is a notification, which needs no open session.
    let prompt = owner.prompt(&elsewhere, "half");
    owner.hear("The first half, ");
    agent.cancel(&elsewhere);
    agent.call("session/list", json!({}));
    machine.model().release();
    assert_eq!(stop_reason(&owner.answer(prompt).1), "end_turn");
    let made = agent.call("session/new", json!({ "cwd": inside, "mcpServers": [] }));
    let session = made["sessionId"].as_str().expect("an id");
    agent.turn(session, "say inside");
    let listed = agent.call("session/list", json!({}));
    let listed: Vec<&Value> =
        listed["sessions"].as_array().expect("a list").iter().map(|it| &it["sessionId"]).collect();
    assert_eq!(listed, [&json!(session)]);
}

#[test]
fn a_token_for_workers_allows_nothing_else_and_no_other_allows_to_be_one() {
    let (office, machine) = (Office::open(), user(obey));
    let address = office.address();
    let address = address.as_str();
    let as_worker = ["worker", "--remote", address, "--name", "build-box"];
    let why = fails(&machine, &office.anna, &as_worker);
    assert!(why.contains("a token with the scope `work`"), "{why}");
    assert!(fails(&machine, "epitome-made-up", &as_worker).contains("does not accept the token"));
    let why = fails(&machine, &office.work, &["worker", "list", "--remote", address]);
    assert!(why.contains("allows nothing but"), "{why}");
    let why = fails(&machine, &office.work, &["acp", "--remote", address]);
    assert!(why.contains("allows nothing but"), "{why}");

    let other = ["acp", "--remote", address, "--worker", "other"];
    let why = fails(&office.laptop, &office.anna, &other);
    assert!(why.contains("No worker \"other\" is connected"), "{why}");
    let _worker = office.worker(&machine, &[]);
    assert!(fails(&office.laptop, &office.anna, &other).contains("build-box"));
    let ran = machine.run(&["worker", "--remote", address, "--name", "two words"]).exited(2);
    assert!(ran.err.contains("a worker's name has letters"), "{}", ran.err);

    // One that is for a worker is for no other one.
    let arguments = ["token", "create", "--name", "own", "--scope", "work", "--worker", "own-box"];
    let own = office.server_machine.run(&arguments).ok();
    let why = fails(&machine, own.trim(), &as_worker);
    assert!(why.contains("This token is for the worker \"own-box\""), "{why}");

    // A token that is revoked ends what was connected with it.
    office.server_machine.run(&["token", "revoke", "box"]).ok();
    within("the worker is gone", || office.workers().is_empty().then_some(()));
}

/// The process of the worker dies, and its service manager starts it again. The daemon has gone on.
#[test]
fn a_turn_goes_on_while_its_worker_is_started_again() {
    let (office, machine) = (Office::open(), user(obey));
    let worker = office.worker(&machine, &[]);
    let mut agent = office.editor();
    let [session, other] = [0, 1].map(|_| machine.new_session(&mut agent));
    let prompt = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    drop(worker);
    agent.until("a sentence about what is waited for", shows_wait);
    // Regression: a prompt that was sent now showed nothing until there was a worker, for up to a minute.
    let next = agent.prompt(&other, "say hello");
    agent.until("the same for a new prompt", |message| {
        shows_wait(message) && message["params"]["sessionId"] == other.as_str()
    });
    let _worker = office.worker(&machine, &[]);
    machine.model().release();
    let mut left = vec![prompt, next];
    let rest = agent.until("both answers", |message| {
        left.retain(|id| !is_answer(message, *id));
        left.is_empty()
    });
    let of = |session: &str| {
        let of_session = rest.iter().filter(|message| message["params"]["sessionId"] == session);
        agent_text(&of_session.cloned().collect::<Vec<Value>>())
    };
    assert_eq!((of(&session).as_str(), of(&other).as_str()), ("the second half.", "You said hello."));
    let answers: Vec<&Value> = rest.iter().filter(|message| message.get("id").is_some()).collect();
    assert_eq!(answers.len(), 2, "each is answered once: {answers:?}");
    answers.into_iter().for_each(|answer| assert_eq!(stop_reason(answer), "end_turn"));
}

/// The machine of a worker is started again: what ran there is recorded as interrupted.
#[test]
fn a_call_of_a_machine_that_vanishes_is_interrupted() {
    let (office, machine) = (Office::open(), user(obey));
    let worker = office.worker(&machine, &["--mode", "full"]);
    let mut agent = office.editor();
    let session = machine.new_session(&mut agent);
    let prompt = agent.prompt(&session, "run touch began; sleep 1000");
    within("the command runs", || machine.project().join("began").exists().then_some(()));
    end_by(machine.daemon().expect("it runs"), Signal::KILL);
    drop(worker);
    let _worker = office.worker(&machine, &["--mode", "full"]);
    let (_, answer) = agent.answer(prompt);
    assert!(answer.to_string().contains("Please send it again"), "{answer}");
    let (said, _) = agent.turn(&session, "say on");
    assert_eq!(agent_text(&said), "You said on.");
    let exported = std::fs::read_to_string(machine.journal(&session)).expect("a journal");
    assert!(exported.contains("interrupted"), "{exported}");
}

#[test]
fn a_worker_that_is_terminated_lets_running_turns_end() {
    let (office, machine) = (Office::open(), user(obey));
    let mut worker = office.worker(&machine, &[]);
    let mut agent = office.editor();
    let session = machine.new_session(&mut agent);
    let prompt = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    worker.signal(Signal::TERM);
    within("the worker takes no further client", || {
        let workers = office.workers();
        (workers.len() == 1 && workers[0]["clients"] == 1).then_some(())
    });
    machine.model().release();
    let (rest, answer) = agent.answer(prompt);
    assert_eq!((agent_text(&rest).as_str(), stop_reason(&answer).as_str()), ("the second half.", "end_turn"));
    assert_eq!(worker.0.wait().expect("it is a child").code(), Some(0));
    within("the daemon has ended", || machine.daemon().is_none().then_some(()));
    let _worker = office.worker(&machine, &[]);
    assert_eq!(agent_text(&agent.turn(&session, "say on").0), "You said on.");
}

/// The server is replaced: the worker and the window connect to the next one, and the turn goes on.
#[test]
fn a_turn_goes_on_while_the_server_is_started_again() {
    let server_machine = User::new();
    let (anna, work) = (token(&server_machine, "anna", "approve"), token(&server_machine, "box", "work"));
    let [chain, key, ca] = ["server.pem", "server.key", "ca.pem"].map(certificate);
    let [chain, key, ca] = [&chain, &key, &ca].map(|path| path.to_str().expect("text"));
    let serve_at =
        |listen: &str| serve(&server_machine, &["--listen", listen, "--tls-cert", chain, "--tls-key", key]);
    let server = serve_at("127.0.0.1:0");
    let port = server.address.rsplit_once(':').expect("a port").1.to_owned();
    let address = format!("wss://localhost:{port}");
    let (machine, laptop) = (user(obey), User::new());
    let _worker = RunningWorker::start(&machine, &address, &work, &["--tls-ca", ca]);
    let mut agent = editor(&laptop, &address, &anna, &["--worker", "build-box", "--tls-ca", ca]);
    let session = machine.new_session(&mut agent);
    let prompt = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    drop(server);
    let server = serve_at(&format!("127.0.0.1:{port}"));
    machine.model().release();
    let (rest, answer) = agent.answer(prompt);
    assert_eq!((agent_text(&rest).as_str(), stop_reason(&answer).as_str()), ("the second half.", "end_turn"));

    // Regression: a server without a daemon of its own that was terminated closed the sessions of its workers, as if their
    // clients had left, instead of cutting the connections.
    let prompt = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    server.signal(Signal::TERM);
    assert_eq!(server.exit_code(), Some(0));
    let _server = serve_at(&format!("127.0.0.1:{port}"));
    machine.model().release();
    let (rest, answer) = agent.answer(prompt);
    assert_eq!((agent_text(&rest).as_str(), stop_reason(&answer).as_str()), ("the second half.", "end_turn"));
}
