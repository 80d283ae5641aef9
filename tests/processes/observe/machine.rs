//! A user's machine: a home, a project, and an environment that contains only what a test sets.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel};

pub struct Machine {
    directory: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

impl Machine {
    pub fn new() -> Machine {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let machine = Machine { directory, environment: Vec::new() };
        std::fs::create_dir_all(machine.project()).expect("a directory");
        machine
    }

    /// A machine with a model that sends these replies, one per call.
    pub fn with_model(replies: Vec<Vec<ModelStep>>) -> (Machine, ScriptedModel) {
        let mut machine = Machine::new();
        let model = ScriptedModel::start(move |request: &RecordedRequest| {
            replies.get(request.number).cloned().unwrap_or_else(|| vec![ModelStep::Text("ok".into())])
        });
        let model = model.expect("a free port");
        machine.set("EPITOME_MODEL", "local/scripted");
        machine.set("EPITOME_LOCAL_URL", &model.openai_base_url());
        (machine, model)
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// The user's home directory.
    pub fn home(&self) -> PathBuf {
        self.directory.path().canonicalize().expect("it was made").join("annhome")
    }

    pub fn project(&self) -> PathBuf {
        self.home().join("project")
    }

    /// Writes a file in the user's home, creating its parent directories.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.home().join(name);
        std::fs::create_dir_all(path.parent().expect("it is in the home")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }

    /// Asserts success and returns stdout.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_epitome"));
        command.args(arguments).current_dir(self.project()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
            .env("HOME", self.home())
            .env("USER", "annuser")
            .env("EPITOME_HOME", self.home().join(".epitome"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let output = command.stdin(Stdio::null()).output().expect("the binary starts");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("only text is printed")
    }
}
