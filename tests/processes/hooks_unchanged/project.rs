//! A user's project with hooks: runs `epitome run` in it and reads the effects of the hooks.

use std::path::PathBuf;

use epitome_scripted_model::{ModelStep, RecordedRequest, SeenPart};
use epitome_test_harness::user::User;
use epitome_test_harness::{call, text};
use serde_json::{Value, json};

pub const SUMMARY: &str = "They spoke of numbers.";

/// Tokens of the scripted model's window.
pub const WINDOW: u64 = 20_000;

/// Tokens that a full request reports: 75 % of the window, below the 80 % of an automatic compaction.
pub const FULL: u64 = 15_000;

/// Repetitions of a sentence that make a text far longer than any summary of it.
const LONG: usize = 400;

/// A model that follows the last paragraph of its input.
pub fn obey(request: &RecordedRequest) -> Vec<ModelStep> {
    if wants_summary(request) {
        return vec![text(&format!("<summary>\n{SUMMARY}\n</summary>"))];
    }
    let seen = request.seen();
    let Some(SeenPart::User(said)) = seen.last() else { return vec![text("Done.")] };
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

pub struct Project {
    pub user: User,
}

impl Project {
    pub fn new() -> Project {
        Project::with(obey)
    }

    pub fn with(script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static) -> Project {
        let user = User::with_model(script).standalone();
        let config = format!(
            "mode = \"full\"\n[models.\"local/scripted\"]\ncontext_window = {WINDOW}\nmax_output = 1000\n"
        );
        user.write(".epitome/config.toml", &config);
        Project { user }
    }

    /// Installs a script in kodelet's hooks folder.
    pub fn hook(&self, name: &str, script: &str) {
        self.user.write(format!(".kodelet/hooks/{name}"), script);
    }

    /// Writes a file of the project; see [`User::write`].
    pub fn write(&self, name: &str, content: &str) {
        self.user.write(format!("project/{name}"), content);
    }

    /// A file of the project.
    pub fn path(&self, name: &str) -> PathBuf {
        self.user.project().join(name)
    }

    /// The contents of a file below the home; empty if it does not exist.
    pub fn read_home(&self, name: &str) -> String {
        std::fs::read_to_string(self.user.home().join(name)).unwrap_or_default()
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
        let before = self.user.model().requests().len();
        let ran = self.user.run(&[&["run", "--json"], arguments].concat()).exited(code);
        Heard { lines: ran.objects(), asked: self.user.model().requests().split_off(before) }
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
        self.user.run(&["hooks", "log", "--json"]).exited(0).objects()
    }

    /// The exported log of the only session.
    #[track_caller]
    pub fn export(&self) -> Vec<Value> {
        self.user.run(&["sessions", "export", &self.user.session()]).exited(0).objects()
    }

    /// The number of changes of this kind in the store.
    #[track_caller]
    pub fn stored(&self, change: &str) -> usize {
        self.export().iter().filter(|entry| entry["change"] == change).count()
    }

    /// The number of model calls that requested a summary.
    pub fn summaries(&self) -> usize {
        self.user.model().requests().iter().filter(|request| wants_summary(request)).count()
    }
}

fn line_of_trail(line: &Value) -> String {
    if let Some(quiet) = line.get("quiet") {
        return format!("quiet {quiet}");
    }
    let (hook_context, run) = (word(&line["moment"]), &line["run"]);
    let (hook, verdict, asked) = (word(&run["hook"]), word(&run["verdict"]), word(&run["asked"]));
    match asked {
        "" => format!("{hook_context} {hook} {verdict}"),
        asked => format!("{hook_context} {hook} {verdict}: {asked}"),
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
    pub fn last_seen(&self) -> Vec<SeenPart> {
        self.asked.last().expect("the model was asked").seen()
    }

    /// The tool results in the last request to the model, in order.
    pub fn tool_results(&self) -> Vec<String> {
        let results = self.last_seen().into_iter().filter_map(|seen| match seen {
            SeenPart::Result { text, .. } => Some(text),
            _ => None,
        });
        results.collect()
    }
}

pub fn user(text: &str) -> SeenPart {
    SeenPart::User(text.to_owned())
}

pub fn agent(text: &str) -> SeenPart {
    SeenPart::Agent(text.to_owned())
}
