//! The command line with a daemon, as separate processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Instant;

use epitome::daemon::control::Client;
use epitome::daemon::control::remote::RemoteSessions;
use epitome::daemon::runtime_dir::RuntimeDir;
use epitome::paths::Paths;
use epitome::session::port::SessionPort;
use epitome::session::{Attachment, ClientId, Opening, Out, Outlet, Ticket};
use epitome::thread::SessionId;
use epitome_scripted_model::{ModelStep, ScriptedModel};
use serde_json::Value;

use super::desk::{WITHIN, text};

pub struct Home {
    directory: tempfile::TempDir,
    pub model: ScriptedModel,
}

impl Home {
    pub fn new() -> Home {
        Home::with_replies(|| text("Said by the model."))
    }

    pub fn with_replies(reply: impl Fn() -> Vec<ModelStep> + Send + 'static) -> Home {
        let model = ScriptedModel::start(move |_| reply()).expect("loopback");
        let home = Home { directory: tempfile::tempdir().expect("a scratch directory"), model };
        std::fs::create_dir_all(home.cwd()).expect("a directory");
        home
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().canonicalize().expect("it is there")
    }

    pub fn cwd(&self) -> PathBuf {
        self.path().join("work")
    }

    fn environment(&self) -> Vec<(String, String)> {
        let path = |path: &Path| path.to_string_lossy().into_owned();
        [
            ("PATH", std::env::var("PATH").unwrap_or_default()),
            ("HOME", path(&self.path())),
            ("EPITOME_HOME", path(&self.path().join("home"))),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    pub fn keys(&self) -> Vec<(String, String)> {
        [("ANTHROPIC_BASE_URL", self.model.base_url()), ("ANTHROPIC_API_KEY", "sk-test-1".to_owned())]
            .map(|(name, value)| (name.to_owned(), value))
            .into()
    }

    /// Writes a file of the user's, below their home.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().expect("it is below")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_epitome"));
        command.args(arguments).current_dir(self.cwd()).stdin(Stdio::null());
        command.env_clear().envs(self.environment());
        command
    }

    /// Runs a command as from a user's shell, with the keys that the daemon lacks.
    pub fn shell(&self, arguments: &[&str]) -> Output {
        self.command(arguments).envs(self.keys()).output().expect("the binary is built")
    }

    pub fn runtime_dir(&self) -> RuntimeDir {
        RuntimeDir::of(&Paths::below(&self.path().join("home")))
    }

    /// Starts a daemon as a child of the test. It has no keys.
    pub fn daemon(&self) -> Daemon {
        let mut command = self.command(&["daemon", "serve"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary is built");
        let (daemon, began) = (Daemon(child), Instant::now());
        while std::os::unix::net::UnixStream::connect(self.runtime_dir().control_socket()).is_err() {
            assert!(began.elapsed() < WITHIN, "the daemon does not come up");
            std::thread::yield_now();
        }
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

struct Deaf;

impl Outlet for Deaf {
    fn put(&self, _: &SessionId, _: Out) {}
}

pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn lines(output: &Output) -> Vec<Value> {
    out(output).lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// A session that was open in an editor could not be prompted, compacted or undone from the shell: "it is
/// open in another process". With a running daemon the session belongs to the daemon and is accessible to
/// both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_open_in_an_editor_can_be_prompted_and_compacted_from_the_shell() {
    let home = Home::new();
    let mut daemon = home.daemon();
    let first = home.shell(&["run", "hello", "--json"]);
    assert!(first.status.success(), "{first:?}");
    let last = lines(&first).pop().expect("a last line");
    assert_eq!((&last["type"], &last["reason"]), (&Value::from("done"), &Value::from("end_turn")));
    let session = last["session"].as_str().expect("an id").to_owned();

    // Another client opens it.
    let client = Client::connect(&home.runtime_dir()).await.expect("the socket is ours").expect("it runs");
    let remote = RemoteSessions::begin(client).await.expect("the same version");
    let opening = Opening {
        attachment: Attachment { client: ClientId(1), outlet: Arc::new(Deaf) },
        cwd: home.cwd(),
        directories: Vec::new(),
        mcp_servers: Vec::new(),
        environment: Arc::default(),
        overrides: Arc::default(),
    };
    let (holder, held) = (remote.clone(), SessionId(session.clone()));
    let attach = move || holder.attach(Ticket(1), held, opening, epitome::session::Replay::Nothing);
    tokio::task::spawn_blocking(attach).await.expect("it is attached");

    let again = home.shell(&["run", "--resume", &session, "again"]);
    assert!(out(&again).contains("Said by the model."), "{again:?}");
    assert!(again.status.success(), "{again:?}");
    let newest = home.shell(&["run", "--follow", "and again"]);
    assert!(newest.status.success(), "{newest:?}");
    let dry = home.shell(&["compact", "--dry-run", "--json"]);
    assert!(dry.status.success(), "{dry:?}");
    let undo = home.shell(&["undo", "--json"]);
    assert_eq!(lines(&undo)[0]["undo"]["status"], "nothing_to_do", "{undo:?}");
    let unknown = home.shell(&["run", "-r", "nosuch", "x"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");

    let status = home.shell(&["daemon", "status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(
        (&status["running"], &status["sessions"][0]["session"]),
        (&Value::from(true), &Value::from(session.as_str()))
    );
    let told = home.shell(&["daemon", "status"]);
    assert!(out(&told).contains("1 live"), "{told:?}");

    drop(remote);
    let stopped = home.shell(&["daemon", "stop"]);
    assert!(out(&stopped).contains("has ended"), "{stopped:?}");
    assert!(daemon.0.wait().expect("it is our child").success());
    let none = home.shell(&["daemon", "status"]);
    assert_eq!((none.status.code(), out(&none).starts_with("No daemon runs.")), (Some(1), true), "{none:?}");

    // Without a daemon everything works in the command's own process.
    let tail = home.shell(&["sessions", "tail", &session]);
    assert!(tail.status.success() && out(&tail).contains("> again"), "{tail:?}");
    assert!(out(&tail).contains("Said by the model."), "{tail:?}");
    let json = home.shell(&["sessions", "tail", &session, "--from", "e1", "--json"]);
    assert_eq!(lines(&json)[0]["data"]["entry"]["seq"], 1, "{json:?}");
    assert!(home.shell(&["run", "--follow", "alone"]).status.success());
    let logs = home.shell(&["daemon", "logs", "-n", "1"]);
    assert_eq!(out(&logs).lines().count(), 1, "{logs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_does_not_start_a_daemon() {
    let home = Home::new();
    let run = home.shell(&["run", "hello"]);
    assert!(run.status.success(), "{run:?}");
    assert!(!home.runtime_dir().control_socket().exists());
    for verb in ["status", "stop"] {
        assert_eq!(home.shell(&["daemon", verb]).status.code(), Some(1), "{verb}");
    }
}
