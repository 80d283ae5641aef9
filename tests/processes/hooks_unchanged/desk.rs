//! A user's machine: a home with hooks, a project, a scripted model, and runs of `epitome run`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel, Seen};
use serde_json::{Value, json};

pub const SUMMARY: &str = "They spoke of numbers.";

/// Tokens of the scripted model's window.
pub const WINDOW: u64 = 20_000;

/// Tokens that a full request reports: 75 % of the window, below the 80 % of an automatic compaction.
pub const FULL: u64 = 15_000;

/// Repetitions of a sentence that make a text far longer than any summary of it.
const LONG: usize = 400;

/// A model that does what the last paragraph of its input says.
pub fn obey(request: &RecordedRequest) -> Vec<ModelStep> {
    if wants_summary(request) {
        return vec![text(&format!("<summary>\n{SUMMARY}\n</summary>"))];
    }
    let seen = request.seen();
    let Some(Seen::User(said)) = seen.last() else { return vec![text("Done.")] };
    let said = said.rsplit("\n\n").next().unwrap_or_default();
    let (verb, rest) = said.split_once(' ').unwrap_or((said, ""));
    let full = ModelStep::Usage { input: FULL, output: 10 };
    match verb {
        "say" => vec![text(&format!("You said {rest}."))],
        "fill" => vec![text(&long()), full],
        "run" => vec![text("I run it."), call("bash", json!({ "command": rest }))],
        "work" => vec![text(&long()), call("bash", json!({ "command": rest })), full],
        "write" => {
            vec![text("I write it."), call("file_write", json!({ "file_path": rest, "text": "x\n" }))]
        }
        _ => vec![text("I heard it.")],
    }
}

pub fn wants_summary(request: &RecordedRequest) -> bool {
    request.last_user_text().contains("<summary>") && !request.last_user_text().contains(SUMMARY)
}

pub fn long() -> String {
    "The quick brown fox jumps over the lazy dog. ".repeat(LONG)
}

pub fn text(text: &str) -> ModelStep {
    ModelStep::Text(text.to_owned())
}

pub fn call(name: &str, input: Value) -> ModelStep {
    ModelStep::Call { name: name.to_owned(), input }
}

pub struct Desk {
    pub model: ScriptedModel,
    pub home: PathBuf,
    pub project: PathBuf,
    _scratch: tempfile::TempDir,
}

impl Desk {
    pub fn new() -> Desk {
        Desk::with(obey)
    }

    pub fn with(script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static) -> Desk {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let root = scratch.path().canonicalize().expect("it was made");
        let (home, project) = (root.join("home"), root.join("project"));
        let model = ScriptedModel::start(script).expect("a free port");
        fs::create_dir(&home).expect("a directory");
        fs::create_dir(&project).expect("a directory");
        let config = format!(
            "mode = \"full\"\n[models.\"local/scripted\"]\ncontext_window = {WINDOW}\nmax_output = 1000\n"
        );
        write(&home.join(".epitome/config.toml"), &config);
        Desk { model, home, project, _scratch: scratch }
    }

    /// Installs a script in kodelet's hooks folder.
    pub fn hook(&self, name: &str, script: &str) {
        write_executable(&self.home.join(".kodelet/hooks").join(name), script);
    }

    /// Installs an executable file in the project.
    pub fn program(&self, name: &str, script: &str) {
        write_executable(&self.project.join(name), script);
    }

    pub fn write(&self, name: &str, content: &str) {
        write(&self.project.join(name), content);
    }

    /// The contents of a file below the home; empty if it does not exist.
    pub fn read_home(&self, name: &str) -> String {
        fs::read_to_string(self.home.join(name)).unwrap_or_default()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_epitome"));
        command.args(arguments).current_dir(&self.project).env_clear();
        command.env("PATH", std::env::var_os("PATH").expect("there is a path"));
        command.env("HOME", &self.home).env("NO_PROXY", "127.0.0.1");
        command.env("EPITOME_MODEL", "local/scripted");
        command.env("EPITOME_LOCAL_URL", self.model.openai_base_url());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command that has to succeed, and returns its stdout.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        self.ends_with(0, arguments).0
    }

    /// Runs a command that has to exit with this code, and returns stdout and stderr.
    #[track_caller]
    pub fn ends_with(&self, code: i32, arguments: &[&str]) -> (String, String) {
        let output = self.command(arguments).output().expect("the binary starts");
        let out = String::from_utf8(output.stdout).expect("only text is printed");
        let errors = String::from_utf8(output.stderr).expect("only text is printed");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out} {errors}");
        (out, errors)
    }

    /// Runs a prompt in a new session.
    #[track_caller]
    pub fn run(&self, prompt: &str) -> Heard {
        self.run_with(&[prompt])
    }

    /// Runs a prompt in a new session that a hook blocks.
    #[track_caller]
    pub fn refused(&self, prompt: &str) -> Heard {
        self.hear(1, &[prompt])
    }

    /// Runs a prompt in the newest session.
    #[track_caller]
    pub fn follow(&self, prompt: &str) -> Heard {
        self.run_with(&["--follow", prompt])
    }

    #[track_caller]
    pub fn run_with(&self, arguments: &[&str]) -> Heard {
        self.hear(0, arguments)
    }

    #[track_caller]
    fn hear(&self, code: i32, arguments: &[&str]) -> Heard {
        let before = self.model.requests().len();
        let (out, _) = self.ends_with(code, &[&["run", "--json"], arguments].concat());
        Heard { lines: objects(&out), asked: self.model.requests().split_off(before) }
    }

    /// The trail of the newest session, one line per run: event, hook, verdict and request; `quiet N` at the
    /// end of a turn counts the runs without effect.
    #[track_caller]
    pub fn trail(&self) -> Vec<String> {
        let lines = self.trail_entries();
        lines.iter().map(line_of_trail).collect()
    }

    #[track_caller]
    pub fn trail_entries(&self) -> Vec<Value> {
        objects(&self.ok(&["hooks", "log", "--json"]))
    }

    /// The exported log of the only session.
    #[track_caller]
    pub fn export(&self) -> Vec<Value> {
        objects(&self.ok(&["sessions", "export", &self.session()]))
    }

    /// How many changes of this kind the store contains.
    #[track_caller]
    pub fn stored(&self, change: &str) -> usize {
        self.export().iter().filter(|entry| entry["change"] == change).count()
    }

    #[track_caller]
    pub fn session(&self) -> String {
        let listed = objects(&self.ok(&["sessions", "list", "--json"]));
        let [header] = listed.as_slice() else { panic!("one session: {listed:?}") };
        header["session"].as_str().expect("it has an id").to_owned()
    }

    /// The number of model calls that requested a summary.
    pub fn summaries(&self) -> usize {
        self.model.requests().iter().filter(|request| wants_summary(request)).count()
    }
}

fn line_of_trail(line: &Value) -> String {
    if let Some(quiet) = line.get("quiet") {
        return format!("quiet {quiet}");
    }
    let (moment, run) = (word(&line["moment"]), &line["run"]);
    let (hook, verdict, asked) = (word(&run["hook"]), word(&run["verdict"]), word(&run["asked"]));
    match asked {
        "" => format!("{moment} {hook} {verdict}"),
        asked => format!("{moment} {hook} {verdict}: {asked}"),
    }
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The result of one `epitome run`.
pub struct Heard {
    pub lines: Vec<Value>,
    /// Requests to the model during the run.
    pub asked: Vec<RecordedRequest>,
}

impl Heard {
    /// All text of the model.
    pub fn said(&self) -> String {
        self.of("text").filter_map(|line| line["text"].as_str()).collect()
    }

    pub fn notices(&self) -> Vec<&str> {
        self.of("notice").filter_map(|line| line["text"].as_str()).collect()
    }

    /// Status and text of each tool result, as the client sees it.
    pub fn results(&self) -> Vec<(&str, &str)> {
        self.of("tool_result").map(|line| (word(&line["status"]), word(&line["text"]))).collect()
    }

    pub fn reason(&self) -> &str {
        word(&self.lines.last().expect("there is a last line")["reason"])
    }

    fn of(&self, kind: &'static str) -> impl Iterator<Item = &Value> {
        self.lines.iter().filter(move |line| line["type"] == kind)
    }

    /// The contents of the last request to the model, flattened.
    pub fn last_seen(&self) -> Vec<Seen> {
        self.asked.last().expect("the model was asked").seen()
    }

    /// The tool results in the last request to the model, in order.
    pub fn told_results(&self) -> Vec<String> {
        let results = self.last_seen().into_iter().filter_map(|seen| match seen {
            Seen::Result { text, .. } => Some(text),
            _ => None,
        });
        results.collect()
    }
}

pub fn user(text: &str) -> Seen {
    Seen::User(text.to_owned())
}

pub fn agent(text: &str) -> Seen {
    Seen::Agent(text.to_owned())
}

#[track_caller]
fn objects(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect()
}

fn write_executable(path: &Path, script: &str) {
    write(path, script);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its own file");
}

pub fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().expect("a file has a directory")).expect("directories");
    fs::write(path, content).expect("a file");
}
