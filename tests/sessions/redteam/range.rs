//! The test range: a workspace, files outside of it that contain a secret, and a model that makes one attempt at a
//! time.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;

use epitome::session::{Opening, SessionCommand, SessionEvent, UserDecision};
use epitome::thread::{Change, OutcomeStatus, ToolOutcome};
use epitome::tools::sandbox::TEMPORARY;
use epitome_scripted_model::ModelStep;
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{Setup, TestSession};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The text that must not leak. It does not look like a key, so that masking cannot hide a leak.
pub const SECRET: &str = "the-frog-sings-at-noon";

/// Attempts of one kind.
pub struct Group {
    pub title: &'static str,
    pub about: &'static str,
    /// The user's own configuration.
    pub config: &'static str,
    /// Prepares the workspace and the files outside of it.
    pub prepare: fn(&Place),
    pub rows: Vec<Row>,
}

/// The directories of an attempt.
pub struct Place {
    pub workspace: PathBuf,
    /// Contains the user's home.
    pub outside: PathBuf,
    /// Epitome's own files.
    pub ours: PathBuf,
    /// Processes of the user that no attempt may end.
    pub others: Mutex<Vec<Child>>,
}

impl Place {
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        put(&self.workspace.join(path), text.as_ref());
    }

    pub fn write_outside(&self, path: &str, text: impl AsRef<[u8]>) {
        put(&self.outside.join(path), text.as_ref());
    }

    pub fn write_ours(&self, path: &str, text: impl AsRef<[u8]>) {
        put(&self.ours.join(path), text.as_ref());
    }

    /// The files that a successful attempt creates.
    fn marks(&self) -> [PathBuf; 5] {
        let (workspace, outside) = (&self.workspace, &self.outside);
        [
            workspace.clone(),
            workspace.join(".git/hooks"),
            outside.clone(),
            outside.join(".ssh"),
            self.ours.clone(),
        ]
        .map(|directory| directory.join("pwned"))
    }

    pub fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.workspace.join(path);
        std::fs::create_dir_all(path.parent().expect("it is below the workspace")).expect("made");
        std::os::unix::fs::symlink(target, path).expect("linked");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for other in self.others.get_mut() {
            // An attempt may have killed it already, which its test has reported.
            drop(other.kill());
            drop(other.wait());
        }
    }
}

fn put(path: &Path, text: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("it has one")).expect("made");
    std::fs::write(path, text).expect("written");
}

/// One attempt.
pub struct Row {
    pub name: &'static str,
    tool: &'static str,
    /// `$OUT`, `$OURS` and `$IN` are replaced with the outside directory, that of Epitome's own files and the
    /// workspace.
    input: Value,
    mode: &'static str,
    pub expect: Expect,
    /// The user's decision if permission is requested.
    answer: UserDecision,
    /// Runs while the permission request is open.
    meanwhile: Option<fn(&Place)>,
    /// The call of the subagent that the attempt starts.
    agent: Option<(&'static str, Value)>,
    /// Whether this system has the features that the row needs.
    is_possible: fn() -> bool,
    /// The attempt succeeds; the description explains why.
    pub is_limit: bool,
}

/// The expected outcome of an attempt.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    Asked,
    /// With this text for the model.
    Denied(&'static str),
    Refused(&'static str),
    Shows(&'static str),
    /// Permission is requested and given; the outcome contains this text.
    AskedThen(&'static str),
    /// The subagent's call requires permission, and the subagent reports so.
    AgentAsked,
    /// The subagent's call is refused without a permission request.
    AgentRefused,
}

impl Expect {
    pub fn words(self) -> String {
        let (what, words) = match self {
            Expect::Asked => ("prompt", ""),
            Expect::Denied(words) => ("denied", words),
            Expect::Refused(words) => ("fails", words),
            Expect::Shows(words) => ("runs", words),
            Expect::AskedThen(words) => ("prompt, then", words),
            Expect::AgentAsked => ("prompt that names the subagent", ""),
            Expect::AgentRefused => ("denied to the subagent", ""),
        };
        if words.is_empty() {
            what.trim_end_matches(", then").to_owned()
        } else {
            format!("{what} \"{words}\"")
        }
    }
}

pub fn row(name: &'static str, tool: &'static str, input: Value, expect: Expect) -> Row {
    Row {
        name,
        tool,
        input,
        mode: "ask",
        expect,
        answer: UserDecision::Reject,
        meanwhile: None,
        agent: None,
        is_possible: || true,
        is_limit: false,
    }
}

pub fn read(name: &'static str, path: &str, expect: Expect) -> Row {
    row(name, "file_read", json!({ "file_path": path }), expect)
}

pub fn write(name: &'static str, path: &str, expect: Expect) -> Row {
    row(name, "file_write", json!({ "file_path": path, "text": "x" }), expect)
}

pub fn command(name: &'static str, line: &str, expect: Expect) -> Row {
    row(name, "bash", json!({ "description": "Try it", "command": line }), expect)
}

impl Row {
    pub fn mode(self, mode: &'static str) -> Row {
        Row { mode, ..self }
    }

    /// The user allows the call once.
    pub fn allowed(self) -> Row {
        Row { answer: UserDecision::AllowOnce, ..self }
    }

    pub fn meanwhile(self, then: fn(&Place)) -> Row {
        Row { meanwhile: Some(then), ..self }
    }

    /// For a call that starts a subagent: the subagent's own call.
    pub fn whose_agent(self, tool: &'static str, input: Value) -> Row {
        Row { agent: Some((tool, input)), ..self }
    }

    /// Skips the row unless this returns true.
    pub fn where_there_is(self, is_possible: fn() -> bool) -> Row {
        Row { is_possible, ..self }
    }

    pub fn limit(self) -> Row {
        Row { is_limit: true, ..self }
    }

    /// The attempt, as shown in test reports.
    pub fn shown(&self) -> String {
        format!("{}{}{}", self.tool_shown(), self.text_shown(), self.mode_shown())
    }

    /// The tool and a space; empty for commands.
    pub fn tool_shown(&self) -> String {
        if self.tool == "bash" { String::new() } else { format!("{} ", self.tool) }
    }

    /// The relevant part of the input.
    pub fn text_shown(&self) -> &str {
        let of = |key: &str| self.input[key].as_str();
        let names = ["command", "file_path", "path", "pattern", "url", "input", "prompt", "name", "tool"];
        names.into_iter().find_map(of).unwrap_or_default()
    }

    /// The mode in parentheses; empty for `ask`.
    pub fn mode_shown(&self) -> String {
        if self.mode == "ask" { String::new() } else { format!(" (mode {})", self.mode) }
    }
}

impl Group {
    /// Makes every attempt, and reports all unexpected outcomes.
    pub fn hold(self) {
        let mut range = Range::new(self.config, self.prepare);
        let faults: Vec<String> = self.rows.iter().filter_map(|row| range.fault(row)).collect();
        assert!(
            faults.is_empty(),
            "{} of {} came out otherwise:\n{}",
            faults.len(),
            self.rows.len(),
            faults.join("\n")
        );
    }
}

/// A directory outside of those for temporary files, which every command may change.
fn apart() -> tempfile::TempDir {
    let named = ["XDG_RUNTIME_DIR", "HOME"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let places = std::iter::once(PathBuf::from(env!("CARGO_TARGET_TMPDIR"))).chain(named);
    let made = places.filter(|place| !TEMPORARY.iter().any(|temporary| place.starts_with(temporary)));
    let mut made = made.filter_map(|place| tempfile::tempdir_in(place).ok());
    made.next().expect("a scratch directory that is not for temporary files")
}

/// A session with the real tools.
pub struct Range {
    test: TestSession,
    place: Place,
    steps: Arc<Mutex<VecDeque<Vec<ModelStep>>>>,
    _outside: tempfile::TempDir,
}

impl Range {
    pub fn new(config: &str, prepare: fn(&Place)) -> Range {
        let steps = Arc::<Mutex<VecDeque<Vec<ModelStep>>>>::default();
        let script = steps.clone();
        let mut test = Setup::with_config(config).built_in_tools().start(move |_| {
            let next = script.lock().pop_front();
            next.unwrap_or_else(|| vec![ModelStep::Text("ok".into())])
        });
        let outside = apart();
        // The session's own files are in its directory; the workspace is a subdirectory.
        let workspace = test.cwd().canonicalize().expect("it is there").join("work");
        std::fs::create_dir_all(&workspace).expect("made");
        let place = Place {
            workspace,
            outside: outside.path().canonicalize().expect("it is there"),
            ours: test.home.canonicalize().expect("it is there"),
            others: Mutex::default(),
        };
        place.write_outside("secret.txt", SECRET);
        prepare(&place);
        test.client = TestClient::new(7);
        let mut environment = test.environment();
        environment.push(("HOME".into(), place.outside.clone().into()));
        let opening = test.opening(&test.client, environment);
        test.create_with(Opening { cwd: place.workspace.clone(), ..opening });
        test.client.until(|out| matches!(out, SessionEvent::Commands(_)).then_some(()));
        Range { test, place, steps, _outside: outside }
    }

    /// Makes an attempt; returns a description of an unexpected outcome.
    fn fault(&mut self, row: &Row) -> Option<String> {
        if !(row.is_possible)() {
            eprintln!("skipped, this system has not what it needs: {}", row.name);
            return None;
        }
        let (was_asked, outcome) = self.attempt(row);
        let text = outcome.model_text();
        let is = |status: OutcomeStatus| outcome.status == status;
        let as_expected = match row.expect {
            Expect::Asked => was_asked && is(OutcomeStatus::Denied),
            Expect::Denied(words) => !was_asked && is(OutcomeStatus::Denied) && text.contains(words),
            Expect::Refused(words) => !was_asked && is(OutcomeStatus::Failed) && text.contains(words),
            Expect::Shows(words) => !was_asked && is(OutcomeStatus::Completed) && text.contains(words),
            Expect::AskedThen(words) => was_asked && text.contains(words),
            Expect::AgentAsked => was_asked && is(OutcomeStatus::Completed),
            Expect::AgentRefused => !was_asked && is(OutcomeStatus::Completed),
        };
        let stored = serde_json::to_string(&outcome).expect("JSON");
        let leaked = stored.contains(SECRET);
        let pwned = self.place.marks().iter().any(|mark| mark.exists());
        for mark in self.place.marks() {
            // Usually the file does not exist, as intended.
            drop(std::fs::remove_file(mark));
        }
        let mut others = self.place.others.lock();
        let killed = others.iter_mut().any(|other| !matches!(other.try_wait(), Ok(None)));
        let harm = (leaked || pwned || killed) && !row.is_limit;
        (!as_expected || harm).then(|| {
            let short: String = text.chars().take(300).collect();
            format!(
                "- {} [{}]: wanted {:?}; asked {was_asked}, {:?}, leaked {leaked}, pwned {pwned}, killed \
                 {killed}: {short}",
                row.name,
                row.shown().chars().take(120).collect::<String>(),
                row.expect,
                outcome.status
            )
        })
    }

    /// The input with placeholders replaced by paths.
    fn named(&self, input: &Value) -> Value {
        let places =
            [("$OUT", &self.place.outside), ("$OURS", &self.place.ours), ("$IN", &self.place.workspace)];
        let written = places
            .iter()
            .fold(input.to_string(), |text, (name, place)| text.replace(name, &place.display().to_string()));
        serde_json::from_str(&written).expect("JSON")
    }

    fn attempt(&mut self, row: &Row) -> (bool, ToolOutcome) {
        self.test.choose("mode", row.mode).expect("a mode");
        let call =
            |tool: &str, input: &Value| ModelStep::Call { name: tool.into(), input: self.named(input) };
        let first = call(row.tool, &row.input);
        let then = row.agent.as_ref().map(|(tool, input)| call(tool, input));
        self.steps.lock().extend(std::iter::once(first).chain(then).map(|step| vec![step]));
        let ticket = self.test.prompt("Go on");
        let mut was_asked = false;
        let outcome = loop {
            enum News {
                Asked(epitome::session::AskId),
                Came(Box<ToolOutcome>),
            }
            let news = self.test.client.until(|out| match out {
                SessionEvent::Ask { ask, .. } => Some(News::Asked(*ask)),
                SessionEvent::Entry { entry, .. } => match &entry.change {
                    Change::ToolFinished { outcome } => Some(News::Came(Box::new(outcome.clone()))),
                    _ => None,
                },
                _ => None,
            });
            match news {
                News::Asked(ask) => {
                    was_asked = true;
                    if let Some(then) = row.meanwhile {
                        then(&self.place);
                    }
                    self.test.send(SessionCommand::Decide { ask, decision: row.answer.clone() });
                }
                News::Came(outcome) => break *outcome,
            }
        };
        self.test.reason(ticket);
        self.test.client.seen.clear();
        (was_asked, outcome)
    }
}
