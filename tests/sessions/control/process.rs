//! The command line with a daemon, as separate processes.

use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use epitome::daemon::runtime_dir::RuntimeDir;
use epitome_scripted_model::{ModelStep, ScriptedModel};
use epitome_test_harness::user::{Ran, User};
use epitome_test_harness::within;
use serde_json::Value;

use super::editor::Editor;
use super::in_process::text;

/// A user whose shell has the keys of a scripted model; the daemon has no keys.
pub struct Home {
    pub user: User,
    pub model: ScriptedModel,
}

impl Home {
    pub fn new() -> Home {
        Home::with_replies(|| text("Said by the model."))
    }

    pub fn with_replies(reply: impl Fn() -> Vec<ModelStep> + Send + 'static) -> Home {
        Home { user: User::new(), model: ScriptedModel::start(move |_| reply()).expect("loopback") }
    }

    pub fn keys(&self) -> [(String, String); 2] {
        [("ANTHROPIC_BASE_URL", self.model.base_url()), ("ANTHROPIC_API_KEY", "sk-test-1".to_owned())]
            .map(|(name, value)| (name.to_owned(), value))
    }

    /// A command in the user's shell, with the keys that the daemon lacks.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.user.command(arguments);
        command.envs(self.keys());
        command
    }

    pub fn shell(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.command(arguments).output().expect("the program starts"))
    }

    pub fn runtime_dir(&self) -> RuntimeDir {
        RuntimeDir::new(&self.user.paths())
    }

    /// Starts a daemon as a child of the test. It has no keys.
    pub fn daemon(&self) -> Daemon {
        let mut command = self.user.command(&["daemon", "serve"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
        let daemon = Daemon(child);
        let socket = self.runtime_dir().control_socket();
        within("the daemon's socket", || UnixStream::connect(&socket).ok());
        daemon
    }
}

pub struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has already exited if the test succeeded.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Regression: with another `HOME` but the same directory for sockets, commands used the daemon of the first `HOME`: they
/// listed, continued and deleted the sessions there.
#[test]
fn a_daemon_of_another_home_is_not_used() {
    let home = Home::new();
    let sockets = home.user.home().join("run");
    std::fs::create_dir(&sockets).expect("its parent exists");
    let command = |name: &str, arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.env("HOME", home.user.home().join(name)).env("XDG_RUNTIME_DIR", &sockets);
        command.env_remove("EPITOME_HOME");
        command
    };
    let shell =
        |name, arguments: &[&str]| Ran::from(command(name, arguments).output().expect("the program starts"));
    let mut serve = command("first", &["daemon", "serve"]);
    let _daemon =
        Daemon(serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts"));
    within("the daemon", || (shell("first", &["daemon", "status"]).code == Some(0)).then_some(()));
    shell("first", &["run", "hello"]).ok();

    assert_eq!(shell("first", &["sessions", "list", "--json"]).objects().len(), 1);
    assert_eq!(shell("second", &["sessions", "list", "--json"]).objects().len(), 0);
    let run = shell("second", &["run", "hello"]);
    assert!(
        run.err.contains("the running daemon uses another home") && run.err.contains("daemon stop"),
        "{run:?}"
    );
    assert!(run.code == Some(0) && run.out.contains("Said by the model."), "{run:?}");
    assert_eq!(shell("second", &["sessions", "list", "--json"]).objects().len(), 1);
    assert_eq!(shell("second", &["sessions", "inspect", "--json"]).code, Some(1));
}

/// Regression: a session that was open in an editor could not be prompted, compacted or undone from the shell: "it is
/// open in another process". If a daemon is running, it owns the session, and both can use it.
#[test]
fn a_session_open_in_an_editor_can_be_prompted_and_compacted_from_the_shell() {
    let home = Home::new();
    let mut daemon = home.daemon();
    let first = home.shell(&["run", "hello", "--json"]);
    assert!(first.code == Some(0), "{first:?}");
    let last = first.objects().pop().expect("a last line");
    assert_eq!((&last["type"], &last["reason"]), (&Value::from("done"), &Value::from("end_turn")));
    let session = last["session"].as_str().expect("an id").to_owned();

    // Another client opens it.
    let editor = Editor::new(&home, Some(&session));

    let again = home.shell(&["run", "--resume", &session, "again"]);
    assert!(again.out.contains("Said by the model."), "{again:?}");
    assert!(again.code == Some(0), "{again:?}");
    let newest = home.shell(&["run", "--follow", "and again"]);
    assert!(newest.code == Some(0), "{newest:?}");
    let dry = home.shell(&["compact", "--dry-run", "--json"]);
    assert!(dry.code == Some(0), "{dry:?}");
    let undo = home.shell(&["sessions", "undo", "latest", "--json"]);
    assert_eq!(undo.objects()[0]["undo"]["status"], "nothing_to_do", "{undo:?}");
    let unknown = home.shell(&["run", "-r", "nosuch", "x"]);
    assert_eq!(unknown.code, Some(2), "{unknown:?}");

    let status = home.shell(&["daemon", "status", "--json"]).json();
    assert_eq!(
        (&status["running"], &status["sessions"][0]["session"]),
        (&Value::from(true), &Value::from(session.as_str()))
    );
    let printed = home.shell(&["daemon", "status"]);
    assert!(printed.out.contains("1 live"), "{printed:?}");

    drop(editor);
    let stopped = home.shell(&["daemon", "stop"]);
    assert!(stopped.out.contains("has ended"), "{stopped:?}");
    assert!(daemon.0.wait().expect("it is our child").success());
    let none = home.shell(&["daemon", "status"]);
    assert_eq!((none.code, none.out.starts_with("No daemon is running.")), (Some(1), true), "{none:?}");

    // Without a daemon, everything runs in the command's own process.
    let tail = home.shell(&["sessions", "tail", &session]);
    assert!(tail.code == Some(0) && tail.out.contains("> again"), "{tail:?}");
    assert!(tail.out.contains("Said by the model."), "{tail:?}");
    let json = home.shell(&["sessions", "tail", &session, "--from", "e1", "--json"]);
    assert_eq!(json.objects()[0]["data"]["entry"]["seq"], 1, "{json:?}");
    assert!(home.shell(&["run", "--follow", "alone"]).code == Some(0));
    let logs = home.shell(&["daemon", "logs", "-n", "1"]);
    assert_eq!(logs.out.lines().count(), 1, "{logs:?}");
}

#[test]
fn a_run_does_not_start_a_daemon() {
    let home = Home::new();
    let run = home.shell(&["run", "hello"]);
    assert!(run.code == Some(0), "{run:?}");
    assert!(!home.runtime_dir().control_socket().exists());
    for verb in ["status", "stop"] {
        assert_eq!(home.shell(&["daemon", verb]).code, Some(1), "{verb}");
    }
}
