//! Tests of the processes that may command the daemon.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use epitome_scripted_model::ModelStep;
use epitome_test_harness::does_without;
use epitome_test_harness::user::{Ran, program};
use serde_json::{Value, json};

use super::in_process::text;
use super::process::Home;

/// Sends lines to the control socket and returns all answers.
fn exchange(socket: &Path, requests: &[Value]) -> Vec<Value> {
    let mut stream = UnixStream::connect(socket).expect("a daemon runs");
    for request in requests {
        // A daemon that rejects the first line may have closed the connection.
        drop(writeln!(stream, "{request}"));
    }
    stream.shutdown(std::net::Shutdown::Write).expect("it is open");
    let answers = BufReader::new(stream).lines().map_while(Result::ok);
    answers.map(|line| serde_json::from_str(&line).expect("JSON")).collect()
}

fn authenticate(token: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": 0, "method": "authenticate", "params": { "token": token } })
}

#[test]
fn a_client_without_the_token_gets_nothing() {
    let home = Home::new();
    let _daemon = home.daemon();
    let (socket, runtime_dir) = (home.runtime_dir().control_socket(), home.runtime_dir());
    let status = json!({ "jsonrpc": "2.0", "id": 1, "method": "status" });
    for first in
        [status.clone(), authenticate(""), authenticate("made-up"), json!({ "jsonrpc": "2.0", "id": 7 })]
    {
        let answers = exchange(&socket, &[first.clone(), status.clone()]);
        let [answer] = answers.as_slice() else { panic!("{first}: {answers:?}") };
        assert_eq!(answer["error"]["data"]["kind"], "unauthorized", "{first}: {answer}");
    }
    let token = std::fs::read_to_string(runtime_dir.token()).expect("it is ours");
    let answers = exchange(&socket, &[authenticate(&token), status]);
    assert_eq!((answers.len(), &answers[0]["result"]), (2, &json!(true)), "{answers:?}");
    assert!(answers[1]["result"]["pid"].is_u64(), "{answers:?}");
}

/// A hook or a command outside of the sandbox can read the token, but is identified by the mark of its session.
#[test]
fn a_command_of_a_session_is_refused_with_the_token() {
    if does_without("examining clients") {
        return;
    }
    let home = Home::new();
    let _daemon = home.daemon();
    let listed = home.shell(&["sessions", "list"]);
    assert!(listed.code == Some(0), "{listed:?}");
    let mut command = home.command(&["daemon", "status"]);
    let refused = Ran::from(command.env("EPITOME_COMMAND", "1-made-up-2-").output().expect("it starts"));
    assert!(
        refused.code != Some(0) && refused.err.contains("was started by a command of a session"),
        "{refused:?}"
    );
}

/// Regression: a command in full mode removed its mark with `env -u EPITOME_COMMAND`, and the daemon served it. It could
/// set its session's mode and answer its permission prompts. On a busy machine, the command was also faster than the daemon, which
/// lists the processes that it has started.
#[test]
fn a_command_that_removes_its_mark_is_refused() {
    if does_without("examining clients") {
        return;
    }
    let status = format!("env -u EPITOME_COMMAND {} daemon status 2>&1", program().display());
    for (what, line) in [
        // The shell executes a single command in its own process, so that no process has the mark any more.
        ("directly", format!("exec {status}")),
        ("from a shell", format!("{status}; echo TRIED")),
        ("below others", format!("sh -c 'env -u EPITOME_COMMAND sh -c '\\''{status}; true'\\''; true'")),
    ] {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let input = json!({ "command": line, "description": "Try" });
        let home =
            Home::with_replies(move || match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                0 => vec![ModelStep::Call { name: "bash".to_owned(), input: input.clone() }],
                _ => text("Done."),
            });
        let _daemon = home.daemon();
        let ran = home.shell(&["run", "go", "--mode", "full", "--json"]);
        assert!(ran.out.contains("was started by a command of a session"), "{what}: {ran:?}");
    }
}

/// Regression: with `unix_sockets = true`, meant for databases, a sandboxed command connected to the daemon and set its
/// own session's mode to full. The next command read the user's keys without a permission request.
#[test]
fn a_sandboxed_command_cannot_approve_itself() {
    let code = r#"
import glob, json, os, socket, sys
wire = socket.socket(socket.AF_UNIX)
wire.settimeout(5)
try:
    wire.connect(sys.argv[1])
except OSError as error:
    sys.exit("refused to connect: %s" % error)
try:
    token = open(os.path.dirname(sys.argv[1]) + "/token").read()
    print("TOKEN READ")
except OSError as error:
    token = ""
    print("no token: %s" % error)
lines = wire.makefile("rw")
def call(method, **params):
    print(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}), file=lines, flush=True)
    print(method, lines.readline())
try:
    call("authenticate", token=token)
    call("sessions.list")
    call("sessions.set", session=sys.argv[2], mode="full")
except (OSError, ValueError) as error:
    print("ended: %s" % error)
print("TRIED")
"#;
    if std::process::Command::new("python3").arg("-V").output().is_err() {
        eprintln!("skipped: python3 is not here");
        return;
    }
    let socket = std::sync::Arc::new(parking_lot::Mutex::new(String::new()));
    let shared = socket.clone();
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let home = Home::with_replies(move || {
        let socket = shared.lock().clone();
        match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => vec![ModelStep::Call {
                name: "bash".to_owned(),
                input: json!({ "command": format!("python3 approve.py {socket} s_"), "description": "Try" }),
            }],
            _ => text("Done."),
        }
    });
    *socket.lock() = home.runtime_dir().control_socket().display().to_string();
    home.user.write(
        ".epitome/config.toml",
        "[sandbox]\nunix_sockets = true\n[permissions]\nallow = [\"bash(python3 *)\"]\n",
    );
    home.user.write("project/approve.py", code);
    let _daemon = home.daemon();
    let run = home.shell(&["run", "go", "--json"]);
    let all = &run.out;
    let tried = all.contains("TRIED") || all.contains("refused to connect");
    assert!(tried, "the command ran: {run:?}");
    assert!(does_without("a sandbox") || !all.contains("TOKEN READ"), "{all}");
    assert!(!all.contains("\\\"result\\\""), "{all}");
    assert!(!all.contains("mode_chosen") || !all.contains("\"full\""), "{all}");
    let last = run.objects().pop().expect("a last line");
    assert_eq!(last["reason"], "end_turn", "{last}");
}
