//! Start and end of a daemon, and clients that cannot use one.

use epitome::daemon::build::{Build, VERSION};
use epitome::daemon::handshake::{Hello, HelloAnswer, Home, PROTOCOL};
use epitome::daemon::messages::{Farewell, MessageKind, MessageReader};
use epitome::daemon::runtime_dir::RuntimeDir;
use epitome::daemon::token::Token;
use epitome::paths::Paths;
use epitome_test_harness::agent::{Agent, agent_text, end_by, obey, person_said, stop_reason};
use epitome_test_harness::user::User;
use epitome_test_harness::{WITHIN, within};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use super::windows::daemons;

/// Idle time after which the daemon exits in these tests, in seconds.
const IDLE_S: &str = "0.2";

/// A build of a different version, or of this version with different sources and a newer executable.
fn build(version: &str) -> Build {
    Build { version: version.to_owned(), sources: "0123456789abcdef".to_owned(), written_ns: u64::MAX }
}

fn hello(user: &User, version: &str, protocol: u32) -> Hello {
    Hello {
        protocol,
        build: build(version),
        pid: std::process::id(),
        cwd: user.project().into_os_string(),
        place: Home::new(&Paths::below(&user.own())),
        token: Token::read(&RuntimeDir::new(&Paths::below(&user.own()))).unwrap(),
        environment: Default::default(),
        overrides: Default::default(),
        ids_above: 0,
        served_at: None,
        grant: None,
    }
}

/// Process group and session of a process; 0 means that it was created outside of this container. (The system
/// calls return the same 0, but rustix accepts no 0 for a process.)
fn group_and_session(process: Pid) -> [String; 2] {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap();
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    // Skips the state and the parent.
    let mut fields = after_name.split_whitespace().skip(2).map(str::to_owned);
    [fields.next().unwrap(), fields.next().unwrap()]
}

/// Connects like a front end and returns the daemon's answer.
fn attach(user: &User, hello: &Hello) -> (MessageReader<UnixStream>, HelloAnswer) {
    let mut stream = UnixStream::connect(user.own().join("run/acp.sock")).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream.write_all(&hello.to_line()).unwrap();
    let mut reader = MessageReader::new(stream);
    let answer = serde_json::from_slice(reader.line(4096).unwrap().expect("an answer")).unwrap();
    (reader, answer)
}

#[test]
fn an_idle_daemon_exits_and_the_next_client_starts_another() {
    let user = super::user(obey);
    let start = || {
        let mut command = user.agent_command(&[]);
        command.env("EPITOME_IDLE_S", IDLE_S);
        let mut agent = Agent::spawn(command);
        agent.call("initialize", json!({ "protocolVersion": 1 }));
        agent
    };
    let mut before = None;
    for _ in 0..3 {
        let mut agent = start();
        let daemon = user.daemon();
        assert_ne!(daemon, before);
        before = daemon;
        let session = user.new_session(&mut agent);
        assert_eq!(agent.turn(&session, "say one").1, "end_turn");
        agent.close_input();
        agent.ended();
        within("the idle daemon's end", || daemons(&user).is_empty().then_some(()));
        assert!(!user.own().join("run/acp.sock").exists(), "it leaves no socket");
    }
}

/// Regression: `pgrep epitome`, `top` and `killall` did not find the daemon, because its process name was `exe`, after
/// the link through which it is started.
#[test]
fn the_process_name_of_the_daemon_is_epitome() {
    let user = super::user(obey);
    let mut agent = user.start();
    let daemon = user.daemon().expect("one runs").as_raw_nonzero();
    assert_eq!(fs::read_to_string(format!("/proc/{daemon}/comm")).unwrap(), "epitome\n");
    agent.close_input();
    agent.ended();
}

#[test]
fn clients_that_connect_while_the_daemon_exits_are_served() {
    let user = super::user(obey);
    for round in 0..40 {
        let mut command = user.agent_command(&[]);
        command.env("EPITOME_IDLE_S", format!("0.0{}", round % 10));
        let mut agent = Agent::spawn(command);
        agent.call("initialize", json!({ "protocolVersion": 1 }));
        agent.close_input();
        agent.ended();
    }
    let log = log(&user);
    assert!(!log.contains("runs the agent in its own process"), "{log}");
}

fn log(user: &User) -> String {
    let files = fs::read_dir(user.own().join("state/log")).into_iter().flatten().flatten();
    files.map(|file| fs::read_to_string(file.path()).unwrap_or_default()).collect()
}

#[test]
fn sigterm_records_cancelled_turns_and_clients_continue_with_a_new_daemon() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    let id = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    let daemon = user.daemon().unwrap();
    end_by(daemon, Signal::TERM);
    let (_, answer) = agent.answer(id);
    assert_eq!(stop_reason(&answer), "cancelled");
    assert!(daemons(&user).is_empty(), "none is started before it is needed");
    assert_eq!(agent_text(&agent.turn(&session, "say more").0), "You said more.");
    assert_ne!(user.daemon(), Some(daemon));
}

#[test]
fn the_daemon_survives_the_signals_that_end_its_starter() {
    let user = super::user(obey);
    let mut command = user.agent_command(&[]);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut agent = Agent::spawn(command);
    agent.call("initialize", json!({ "protocolVersion": 1 }));
    let daemon = user.daemon().unwrap();
    let window = rustix::process::Pid::from_raw(agent.process().cast_signed());
    let (of_daemon, of_window) = (group_and_session(daemon), group_and_session(window.unwrap()));
    for (daemons, windows) in of_daemon.into_iter().zip(of_window) {
        assert_ne!(daemons, windows);
    }
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.as_raw_nonzero())).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().to_owned();
    assert_ne!(parent, agent.process().to_string());
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.as_raw_nonzero())).unwrap().flatten();
    let first_three: Vec<_> = open
        .filter(|entry| entry.file_name().to_str().unwrap().parse::<u32>().unwrap() < 3)
        .map(|entry| fs::read_link(entry.path()).unwrap())
        .collect();
    assert!(first_three.iter().all(|path| path.as_os_str() == "/dev/null"), "{first_three:?}");
    kill_process_group(window.unwrap(), Signal::KILL).unwrap();
    drop(user.start());
    assert_eq!(user.daemon(), Some(daemon));
}

#[test]
fn a_daemon_with_another_protocol_or_home_is_not_used() {
    let user = super::user(obey);
    drop(user.start());
    for (other, word) in [
        (hello(&user, "0.1.0", PROTOCOL + 1), "protocol"),
        (
            Hello {
                place: Home::new(&Paths::below("/elsewhere".as_ref())),
                ..hello(&user, "0.1.0", PROTOCOL)
            },
            "another home",
        ),
    ] {
        let (mut reader, answer) = attach(&user, &other);
        let why = answer.refused.expect("it is refused");
        assert!(why.contains(word), "{why}");
        assert!(reader.message().unwrap().is_none(), "and that is all");
    }
    let (_, answer) = attach(&user, &hello(&user, "0.1.0", PROTOCOL));
    assert_eq!(answer.refused, None);
}

#[test]
fn a_client_that_cannot_reach_a_daemon_runs_standalone_and_logs_why() {
    // A daemon that refuses, and a directory in which no socket can be created.
    let refusing: fn(&User) = |user| {
        fs::create_dir(user.own().join("run")).unwrap();
        fs::write(user.own().join("run/token"), "made-up-token").unwrap();
        let listener = UnixListener::bind(user.own().join("run/acp.sock")).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            let refused = Some("it is of another age".to_owned());
            stream
                .write_all(&HelloAnswer { build: build("9.9.9"), pid: 1, refused, restricts: true }.to_line())
                .unwrap();
        });
    };
    let closing: fn(&User) = |user| {
        fs::create_dir(user.own().join("run")).unwrap();
        let listener = UnixListener::bind(user.own().join("run/acp.sock")).unwrap();
        std::thread::spawn(move || listener.incoming().for_each(drop));
    };
    let no_place: fn(&User) = |user| fs::write(user.own().join("run"), "a file").unwrap();
    let failing: fn(&User) = |user| {
        fs::create_dir_all(user.own().join("run/control.sock")).unwrap();
    };
    for (trouble, word) in [
        (refusing, "of another age"),
        (closing, "without an answer"),
        (no_place, "directory for sockets"),
        (failing, "control.sock can't be listened on"),
    ] {
        let user = super::user(obey);
        trouble(&user);
        let mut agent = user.start();
        let session = user.new_session(&mut agent);
        assert_eq!(agent_text(&agent.turn(&session, "say one").0), "You said one.");
        agent.close_input();
        agent.ended();
        let log = log(&user);
        assert!(log.contains(word) && log.contains("runs the agent in its own process"), "{word}: {log}");
    }
}

/// Regression: a daemon that may open few files started, and could accept no connection. Its window waited a minute for it.
#[test]
fn a_daemon_that_may_open_too_few_files_does_not_start() {
    let user = super::user(obey);
    let plain = user.command(&["acp"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 20; exec \"$0\" acp"]).arg(plain.get_program()).env_clear();
    limited.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut agent = Agent::spawn(limited);
    agent.call("initialize", json!({ "protocolVersion": 1 }));
    agent.close_input();
    agent.ended();
    let log = log(&user);
    assert!(log.contains("it may open 20 files (`ulimit -n`), and needs 64"), "{log}");
}

/// Regression: a daemon whose store can't be opened ended without a word. The log of its window said that the daemon's log
/// may say why, and it did not.
#[test]
fn a_daemon_that_cannot_open_its_store_says_why() {
    let user = super::user(obey);
    user.write(user.own().join("config.toml"), "store = \"postgres://anna@db/epitome?sslmode=sometimes\"\n");
    let ran = user.run(&["acp"]).exited(1);
    let log = log(&user);
    for text in [&ran.err, &log] {
        assert!(
            text.contains("it can be disable, prefer, require") && text.contains("see `store` in"),
            "{text}"
        );
    }
    assert!(log.contains("the daemon could not be started"), "{log}");
}

/// Regression: on a busy machine, a window that had no answer within 5 seconds worked in its own process, and could open
/// none of the sessions that the daemon had open: "session s_… is open in another process".
#[test]
fn a_window_waits_for_a_daemon_that_is_slow_to_answer() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    assert_eq!(agent.turn(&session, "say one").1, "end_turn");
    let daemon = user.daemon().expect("one runs");
    kill_process(daemon, Signal::STOP).expect("it can be stopped");
    let mut second = Agent::spawn(user.agent_command(&[]));
    let greeting = second.request("initialize", json!({ "protocolVersion": 1 }));
    let notice = format!("the daemon, process {}, does not answer", daemon.as_raw_nonzero());
    within("what the window says", || log(&user).contains(&notice).then_some(()));
    kill_process(daemon, Signal::CONT).expect("it can continue");
    second.answer(greeting);
    let shown = user.load(&mut second, &session);
    assert_eq!(agent_text(&shown), "You said one.");
    assert_eq!(user.daemon(), Some(daemon));
}

#[test]
fn a_newer_front_end_replaces_an_idle_daemon() {
    makes_room_for("99.0.0");
}

/// Regression: after rebuilding the program, a new client still used the daemon of the previous build, because both
/// builds had the same package version.
#[test]
fn a_newer_build_of_the_same_version_replaces_the_daemon() {
    makes_room_for(VERSION);
}

fn makes_room_for(version: &str) {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    let id = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    let old = user.daemon().unwrap();
    let (mut newer, answer) = attach(&user, &hello(&user, version, PROTOCOL));
    assert_eq!(answer.refused, None, "it is served meanwhile");
    // The turn runs to completion.
    user.model().release();
    assert_eq!(stop_reason(&agent.answer(id).1), "end_turn");
    let last = newer.message().unwrap().expect("a farewell");
    assert_eq!(last.kind, MessageKind::Farewell);
    assert_eq!(Farewell::read(last.lines), Some(Farewell::Reattach(build(version))));
    // No other process starts a daemon here, so the older client eventually does.
    assert_eq!(agent_text(&agent.turn(&session, "say more").0), "You said more.");
    assert_ne!(user.daemon(), Some(old));
}

/// Regression: a user moved a home while its daemon was running and created a new one in its place. When the old daemon
/// exited, it removed the sockets of the new one, which was then unreachable.
#[test]
fn a_daemon_whose_home_was_moved_keeps_its_successors_sockets() {
    let user = super::user(obey);
    let mut first = user.start();
    let session = user.new_session(&mut first);
    let old = user.daemon().unwrap();
    fs::rename(user.own().join("run"), user.own().join("moved")).unwrap();
    let second = user.start();
    let new = user.worker(&second);
    assert_ne!(new, old.as_raw_nonzero().get().cast_unsigned());
    end_by(old, Signal::TERM);
    assert!(!user.own().join("moved/acp.sock").exists(), "its own it removes, wherever they are");
    for socket in ["run/acp.sock", "run/control.sock"] {
        UnixStream::connect(user.own().join(socket)).unwrap();
    }
    assert_eq!(agent_text(&first.turn(&session, "say more").0), "You said more.");
    assert_eq!(daemons(&user), [new]);
}

/// Regression: a cleaner removed the daemon's token, or its whole directory, while a window was attached. The daemon did
/// not notice before the window was closed: commands could not reach it, and new windows got another daemon, or none,
/// and could not open the sessions of the first.
#[test]
fn a_daemon_with_clients_puts_back_what_was_removed() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    agent.turn(&session, "say one");
    let daemon = user.worker(&agent);
    let directory = user.own().join("run");
    for removed in ["token", "control.sock", "acp.sock", ""] {
        match removed {
            "" => fs::remove_dir_all(&directory).unwrap(),
            file => fs::remove_file(directory.join(file)).unwrap(),
        }
        let is_back = || {
            let back = ["token", "control.sock", "acp.sock"].map(|file| directory.join(file).exists());
            (back == [true; 3]).then_some(())
        };
        // A window waits for the token, but starts another daemon if there is no socket.
        if removed != "token" {
            within("all is back", is_back);
        }
        let mut window = user.start();
        assert_eq!(user.worker(&window), daemon, "{removed}");
        user.load(&mut window, &session);
        assert!(user.run(&["sessions", "list"]).ok().contains("say one"), "{removed}");
        window.close_input();
        window.ended();
    }
    assert_eq!(daemons(&user), [daemon]);
}

/// Regression: a process opened connections and sent nothing, or not all of its hello. Each had a thread, without a
/// limit.
#[test]
fn silent_connections_get_few_threads_and_block_no_others() {
    let user = super::user(obey);
    let _agent = user.start();
    let daemon = user.daemon().unwrap().as_raw_nonzero();
    let readers = || {
        let tasks = fs::read_dir(format!("/proc/{daemon}/task")).unwrap().flatten();
        let names = tasks.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
        names.filter(|name| name.trim() == "front-reader").count()
    };
    let before = readers();
    let connect = || UnixStream::connect(user.own().join("run/acp.sock")).unwrap();
    let silent: Vec<UnixStream> = (0..200).map(|_| connect()).collect();
    within("the first ones are accepted", || (readers() >= before + 64).then_some(()));
    user.run(&["daemon", "status"]).ok();
    assert_eq!(readers(), before + 64, "the others wait");
    drop(silent);
    user.new_session(&mut user.start());
}

/// Regression: a second daemon served the path of the first, which stayed with the window that it had. Neither window
/// could open the sessions of the other.
#[test]
fn a_daemon_whose_path_is_served_by_another_leaves_its_clients_to_it() {
    let user = super::user(obey);
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    let old = user.worker(&agent);
    fs::remove_dir_all(user.own().join("run")).unwrap();
    let mut second = user.start();
    let new = user.worker(&second);
    assert_ne!(new, old);
    assert_eq!(agent_text(&agent.turn(&session, "say one").0), "You said one.");
    within("the displaced daemon's end", || (daemons(&user) == [new]).then_some(()));
    assert_eq!(agent_text(&agent.turn(&session, "say two").0), "You said two.");
    assert_eq!(person_said(&user.load(&mut second, &session)), ["say one", "say two"]);
    UnixStream::connect(user.own().join("run/acp.sock")).unwrap();
}

#[test]
fn a_front_end_exits_cleanly_on_each_signal() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let user = super::user(obey);
        let mut agent = user.start();
        user.new_session(&mut agent);
        kill_process(rustix::process::Pid::from_raw(agent.process().cast_signed()).unwrap(), signal).unwrap();
        agent.ended();
    }
}

#[test]
fn a_transcript_records_what_the_editor_sees() {
    let user = super::user(obey);
    let path = user.own().join("talk.txt");
    let mut agent = Agent::spawn(user.agent_command(&["--transcript", path.to_str().unwrap()]));
    agent.call("initialize", json!({ "protocolVersion": 1 }));
    let session = user.new_session(&mut agent);
    end_by(user.daemon().unwrap(), Signal::KILL);
    agent.turn(&session, "say one");
    agent.close_input();
    agent.ended();
    let mut text = String::new();
    fs::File::open(&path).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(
        text.matches("editor> initialize").count(),
        1,
        "what the next daemon is sent is not part of the editor's traffic"
    );
    assert!(!text.contains("epitome-front") && text.contains("You said "), "{text}");
}
