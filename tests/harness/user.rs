//! A user's machine: a home directory with a project, an optional model, and the program with an environment that
//! contains only the variables that a test sets.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use epitome_files::paths::Paths;
use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel};
use serde_json::Value;

use super::write_file;

/// See the module's documentation.
pub struct User {
    directory: tempfile::TempDir,
    model: Option<ScriptedModel>,
    environment: Vec<(OsString, OsString)>,
    pub(crate) is_standalone: bool,
}

impl User {
    /// A user who has not set up any model.
    pub fn new() -> User {
        let user = User {
            directory: tempfile::tempdir().expect("a scratch directory"),
            model: None,
            environment: Vec::new(),
            is_standalone: false,
        };
        for made in [user.own(), user.project()] {
            std::fs::create_dir_all(made).expect("a directory");
        }
        user
    }

    /// A user of the model `local/scripted`, which follows this script.
    pub fn with_model(script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static) -> User {
        let mut user = User::new();
        let model = ScriptedModel::start(script).expect("loopback");
        user.set("EPITOME_MODEL", "local/scripted");
        user.set("EPITOME_LOCAL_URL", model.openai_base_url());
        user.model = Some(model);
        user
    }

    /// A user of a model that sends these replies, one per call, and then "ok".
    pub fn with_replies(replies: Vec<Vec<ModelStep>>) -> User {
        User::with_model(super::in_turn(replies))
    }

    /// The same user, whose editors start agents that do everything in one process.
    pub fn standalone(mut self) -> User {
        self.is_standalone = true;
        self
    }

    pub fn model(&self) -> &ScriptedModel {
        self.model.as_ref().expect("this user has a model")
    }

    /// Sets a variable of the program's environment.
    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.environment.push((name.into(), value.into()));
    }

    /// The user's home directory.
    pub fn home(&self) -> PathBuf {
        self.directory.path().canonicalize().expect("it was made").join("annhome")
    }

    /// The directory of Epitome's own files.
    pub fn own(&self) -> PathBuf {
        self.home().join(".epitome")
    }

    /// The directories in which the program keeps its files.
    pub fn paths(&self) -> Paths {
        Paths::below(&self.own())
    }

    /// The directory in which the program runs.
    pub fn project(&self) -> PathBuf {
        self.home().join("project")
    }

    /// Writes a file in the home directory; see [`write_file`].
    pub fn write(&self, path: impl AsRef<Path>, text: &str) {
        write_file(&self.home().join(path), text);
    }

    pub fn journal(&self, session: &str) -> PathBuf {
        self.own().join("data/journals").join(format!("{session}.jsonl"))
    }

    /// The program, with pipes but nothing on stdin.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments).current_dir(self.project()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home()).env("USER", "annuser").env("EPITOME_HOME", self.own());
        command.env("NO_PROXY", "127.0.0.1").envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.command(arguments).output().expect("the program starts"))
    }

    pub fn run_with_stdin(&self, arguments: &[&str], stdin: &str) -> Ran {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().expect("the program starts");
        let mut input = child.stdin.take().expect("it is a pipe");
        input.write_all(stdin.as_bytes()).expect("it reads stdin");
        drop(input);
        Ran::from(child.wait_with_output().expect("it ends"))
    }

    /// The id of the only session.
    #[track_caller]
    pub fn session(&self) -> String {
        let listed = self.run(&["sessions", "list", "--json"]).objects();
        let [header] = listed.as_slice() else { panic!("one session: {listed:?}") };
        header["session"].as_str().expect("it has an id").to_owned()
    }
}

impl Default for User {
    fn default() -> User {
        User::new()
    }
}

/// The program under test, which Cargo builds before the tests of its package.
pub fn program() -> PathBuf {
    std::env::var_os("CARGO_BIN_EXE_epitome").expect("Cargo runs these tests").into()
}

/// The exit code and output of a run of the program.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).expect("only text is printed");
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Ran {
    /// Asserts success and returns stdout.
    #[track_caller]
    pub fn ok(self) -> String {
        self.exited(0).out
    }

    /// Asserts the exit code.
    #[track_caller]
    pub fn exited(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// The lines of stdout, each of which is JSON.
    #[track_caller]
    pub fn objects(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
    }

    /// Asserts success and reads stdout as JSON.
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.ok()).expect("JSON")
    }
}
