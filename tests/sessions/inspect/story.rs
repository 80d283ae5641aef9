//! A session that contains every kind of event, with a scripted model and real tools and hooks: rounds, calls that run
//! concurrently, fail, are changed, blocked and refused, an outcome truncated on arrival, three compactions, an undo.
//! Its timestamps are stretched from moments to hours, so that it looks like a day's work.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use epitome::paths::Paths;
use epitome::session::port::SessionPort as _;
use epitome::session::registry::Sessions;
use epitome::session::{Attachment, Opening, SessionCommand, SessionEvent, Ticket, UserDecision};
use epitome::thread::{Change, Content, Entry, SessionId};
use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel};
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{runtime, services};
use epitome_test_harness::{call, text, write_file};
use serde_json::json;

/// The start of the story: a Thursday in October 2026, 09:12 UTC.
const BEGINS: u64 = 1_791_537_120_000;

/// A home that contains a session.
pub struct Home {
    pub paths: Paths,
    pub session: SessionId,
    _directory: tempfile::TempDir,
}

/// Runs the story.
pub fn played() -> Home {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let (home, workspace) = (directory.path().join("home"), directory.path().join("lines"));
    write_files(&home, &workspace);
    let mut script = script().into_iter();
    let mut sent = 0;
    let model = ScriptedModel::start(move |request: &RecordedRequest| {
        let tokens = request.body.to_string().len() as u64 / 4;
        let cached = if sent > 0 && tokens > sent { sent } else { tokens / 8 };
        let mut steps = match request.last_user_text().contains("Then write the handover") {
            true => vec![text(SUMMARY)],
            false => script.next().unwrap_or_else(|| vec![text("Anything else?")]),
        };
        sent = tokens;
        steps.push(ModelStep::Usage { input: tokens, output: 90 + tokens % 700 });
        steps.push(ModelStep::Cached(cached));
        steps
    });
    let model = model.expect("loopback");
    let paths = Paths::below(&home);
    let runtime = runtime();
    let services = services(&paths);
    let store = services.store.clone();
    let sessions = Sessions::new(services, runtime.handle().clone());
    let client = TestClient::new(1);
    let environment =
        [("ANTHROPIC_BASE_URL", model.base_url()), ("ANTHROPIC_API_KEY", "sk-test-1".to_owned())];
    let environment: Vec<(OsString, OsString)> = environment
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .chain(std::env::var_os("PATH").map(|path| ("PATH".into(), path)))
        .collect();
    let opening = Opening {
        attachment: Attachment { client: client.id, outlet: client.outlet.clone() },
        cwd: workspace,
        directories: Vec::new(),
        mcp_servers: Vec::new(),
        environment: Arc::new(environment),
        overrides: Arc::default(),
        instructions: None,
        choices: Vec::new(),
    };
    let session = sessions.create(Ticket(0), opening);
    let mut player = Player { sessions, session, client, tickets: 0, asked: 0 };
    player.answered(Ticket(0));
    for prompt in PROMPTS {
        player.ask(prompt);
    }
    let Player { session, sessions, client, .. } = player;
    sessions.detach(client.id);
    runtime.block_on(sessions.settled());
    let entries = stretched(&store.read(&session).expect("a whole log"));
    store.settle();
    let journal = paths.data.join("journals").join(format!("{session}.jsonl"));
    std::fs::remove_dir_all(&paths.data).expect("ours");
    std::fs::create_dir_all(journal.parent().expect("a folder")).expect("a folder");
    let lines: String = entries.iter().map(line).collect();
    std::fs::write(journal, lines).expect("a file");
    Home { paths, session, _directory: directory }
}

/// An entry in journal format.
fn line(entry: &Entry) -> String {
    let body = serde_json::to_string(entry).expect("an entry")[1..].to_owned();
    format!("{{\"crc\":\"{:08x}\",{body}\n", crc32fast::hash(body.as_bytes()))
}

struct Player {
    sessions: Sessions,
    session: SessionId,
    client: TestClient,
    tickets: u64,
    asked: u32,
}

impl Player {
    fn ask(&mut self, prompt: &str) {
        self.tickets += 1;
        let content = vec![Content::Text { text: prompt.into() }];
        self.send(SessionCommand::Prompt {
            ticket: Ticket(self.tickets),
            client: self.client.id,
            content,
            key: None,
        });
        self.answered(Ticket(self.tickets));
    }

    /// Waits for the answer. The first permission request is allowed for the session, all others once.
    fn answered(&mut self, wanted: Ticket) {
        loop {
            match self.client.next_event().1 {
                SessionEvent::Answer { ticket, answer } if ticket == wanted => {
                    answer.expect("it is done");
                    return;
                }
                SessionEvent::Ask { ask, permission } => {
                    let is_push =
                        permission.input["command"].as_str().is_some_and(|line| line.contains("push"));
                    let decision = match (self.asked, is_push) {
                        (_, true) => UserDecision::Reject,
                        (0, false) => UserDecision::AllowAlways,
                        (_, false) => UserDecision::AllowOnce,
                    };
                    self.asked += 1;
                    self.send(SessionCommand::Decide { ask, decision });
                }
                _ => {}
            }
        }
    }

    fn send(&self, command: SessionCommand) {
        self.sessions.send(&self.session, command).expect("the session lives");
    }
}

/// The same entries with times of an ordinary day, and a directory that is the same in every run.
fn stretched(entries: &[Arc<Entry>]) -> Vec<Entry> {
    let mut at = BEGINS;
    let mut turns = 0;
    let later = |entry: &Arc<Entry>| {
        // Pseudorandom and deterministic.
        let chance = (entry.seq.0 * 7_919 + 13) % 97;
        at += match &entry.change {
            Change::Said { .. } | Change::Commanded { .. } => {
                turns += 1;
                if turns % 3 == 0 { 1_500_000 + chance * 9_000 } else { 35_000 + chance * 700 }
            }
            Change::Replied { message, .. } => 3_500 + chance * 130 + message.text().len() as u64 * 9,
            Change::ToolFinished { .. } if chance.is_multiple_of(5) => 14_000 + chance * 260,
            Change::ToolFinished { .. } => 180 + chance * 31,
            Change::Compacted { usage: Some(_), .. } => 17_000 + chance * 90,
            Change::Hooked { .. } => 120,
            _ => 25,
        };
        let change = match &entry.change {
            Change::Opened { format, session, .. } => Change::Opened {
                format: *format,
                session: session.clone(),
                cwd: "/home/ada/src/lines".into(),
            },
            other => other.clone(),
        };
        Entry { seq: entry.seq, at, change }
    };
    entries.iter().map(later).collect()
}

// ── Prompts and replies ────────────────────────────────────────────────────────────────────────────

const PROMPTS: [&str; 10] = [
    "The reader loses the last line of a file that does not end in a newline. Find out why and fix it; never touch \
     tests/golden.",
    "Also look whether the writer has the same fault, and what the log of the last run says.",
    "/compact what is left to do for the writer",
    "Good. Now make the reader skip a byte order mark, and read the notes on encodings first.",
    "/undo",
    "/redo",
    "Read through the rest of the sources and tell me what else would break on Windows line endings.",
    "Fix those too, run everything, and push it.",
    "/compact",
    "What is still open?",
];

const SUMMARY: &str = "<summary>\nThe reader in src/reader.rs dropped the last line when a file had no final newline: \
    `lines()` was fed by a loop that only flushed at `\\n`. It flushes at the end now; the test for it is in \
    tests/reader.rs. The writer is right as it is. Still to do: a byte order mark at the beginning, and line endings \
    of Windows in src/split.rs and src/count.rs. tests/golden stays as it is.\n</summary>";

fn think(text: &str) -> ModelStep {
    ModelStep::Think(text.into())
}

fn read(path: &str) -> ModelStep {
    call("file_read", json!({ "file_path": path }))
}

fn run(description: &str, command: &str) -> ModelStep {
    call("bash", json!({ "description": description, "command": command }))
}

fn script() -> Vec<Vec<ModelStep>> {
    vec![
        // The bug: the last line is lost.
        vec![
            think(
                "A line without a newline at the end: the loop probably only flushes at the newline. I look for it.",
            ),
            text("I look where lines are cut."),
            call("grep_tool", json!({ "pattern": "newline" })),
            read("src/reader.rs"),
            read("tests/reader.rs"),
        ],
        vec![
            think("As I thought: `flush` is called in the arm of the newline and nowhere else."),
            text(
                "The loop flushes at a newline and nowhere else, so what stands behind the last one is dropped.",
            ),
            call(
                "file_edit",
                json!({ "file_path": "src/reader.rs", "old_text": "// end of the loop", "new_text": "self.flush();" }),
            ),
        ],
        vec![run(
            "Run the reader's tests",
            "echo 'running 14 tests'; echo 'test empty ... FAILED'; exit 101",
        )],
        vec![
            text("An empty file gives a line too many now; I only flush what is there."),
            call(
                "file_edit",
                json!({ "file_path": "src/reader.rs", "old_text": "self.flush();",
                        "new_text": "if !self.line.is_empty() { self.flush(); }" }),
            ),
        ],
        vec![run("Run the reader's tests", "echo 'running 14 tests'; echo 'test result: ok. 14 passed'")],
        vec![text(
            "Fixed: the reader gives the last line whether or not a newline follows it. 14 tests pass.",
        )],
        // The writer and the log.
        vec![
            read("src/writer.rs"),
            run("Read the log of the last run", "seq -f 'line %g of the run: nothing to see here' 1 9000"),
        ],
        vec![
            think("The writer writes the newline itself. Nothing to do."),
            text(
                "The writer ends every line itself, so it has no such fault. The log is long and has nothing unusual.",
            ),
        ],
        // Byte order marks.
        vec![
            text("I read the notes."),
            read("docs/encodings.md"),
            read("src/split.rs"),
            read("src/count.rs"),
        ],
        vec![run("Clean up", "rm -rf target tests/golden")],
        vec![
            text("Understood: no folders are removed. I put the check where the first bytes are read."),
            call(
                "file_edit",
                json!({ "file_path": "src/reader.rs", "old_text": "// first bytes",
                        "new_text": "self.skip(b\"\\xef\\xbb\\xbf\");" }),
            ),
        ],
        vec![text("A byte order mark is skipped. The check is in `Reader::open`.")],
        // Line endings.
        vec![
            think("Many files. In one go."),
            read("src/table.rs"),
            read("src/merge.rs"),
            read("src/sort.rs"),
            read("src/join.rs"),
        ],
        vec![text("And the others."), read("src/diff.rs"), read("src/stats.rs"), read("docs/format.md")],
        vec![text(
            "Three places would break: `split.rs` keeps the carriage return in the last column, `count.rs` counts it, \
             and `merge.rs` compares lines with and without it as different.",
        )],
        vec![
            text("I cut the carriage return in one place, where lines are made."),
            call(
                "file_edit",
                json!({ "file_path": "src/split.rs", "old_text": "// endings", "new_text": "let line = trimmed(line);" }),
            ),
            run("Run all tests", "echo 'test result: ok. 61 passed'"),
        ],
        vec![run("Push", "git push origin main")],
        vec![text("All 61 tests pass. I was not allowed to push, so the commit waits on this machine.")],
        vec![text("Open: the push, which you did not allow. Everything else is done.")],
    ]
}

// ── The files ──────────────────────────────────────────────────────────────────────────────────────

fn write_files(home: &Path, workspace: &Path) {
    // A window that the work of a morning fills.
    write_file(
        &home.join("config.toml"),
        "[models.\"anthropic/claude-sonnet-5-5\"]\ncontext_window = 48000\n",
    );
    write_file(&home.join("hooks/guard"), GUARD);
    write_file(&home.join("hooks/house-rules"), RULES);
    write_file(&home.join("hooks/reviewer"), REVIEWER);
    write_file(
        &workspace.join("AGENTS.md"),
        &prose("Rules of this repository: small commits, tests first.", 24),
    );
    let sources: [(&str, &str, usize); 12] = [
        ("src/reader.rs", "// first bytes\n// end of the loop\n", 60),
        ("tests/reader.rs", "", 40),
        ("src/writer.rs", "", 70),
        ("docs/encodings.md", "", 120),
        ("src/split.rs", "// endings\n", 60),
        ("src/count.rs", "", 50),
        ("src/table.rs", "", 140),
        ("src/merge.rs", "", 230),
        ("src/sort.rs", "", 60),
        ("src/join.rs", "", 80),
        ("src/diff.rs", "", 260),
        ("src/stats.rs", "", 70),
    ];
    for (name, head, lines) in sources {
        write_file(
            &workspace.join(name),
            &format!("{head}{}", prose(&format!("/// {name}: what a newline means here"), lines)),
        );
    }
    write_file(&workspace.join("docs/format.md"), &prose("A table is lines, a line is cells.", 60));
}

fn prose(head: &str, lines: usize) -> String {
    let line = |at: usize| {
        format!("{head}, paragraph {at}: columns stay in order, and what is empty stays empty.\n")
    };
    (1..=lines).map(line).collect()
}

/// Blocks the removal of folders, and requires permission for a push.
const GUARD: &str = r#"#!/bin/sh
if [ "$1" = hook ]; then echo before_tool_call; exit 0; fi
read -r call
case "$call" in
*"rm -rf"*) echo '{"blocked": true, "reason": "Folders are not removed by agents here."}' ;;
*"git push"*) echo '{"permission_decision": "ask", "reason": "A push goes out of the house."}' ;;
esac
"#;

/// Adds a rule of the project to one of the prompts.
const RULES: &str = r#"#!/bin/sh
if [ "$1" = hook ]; then echo user_message_send; exit 0; fi
read -r prompt
case "$prompt" in
*"encodings"*) echo '{"context": ["House rule: bytes that are no UTF-8 are kept as they are."]}' ;;
esac
"#;

/// A hook that fails.
const REVIEWER: &str = r#"#!/bin/sh
if [ "$1" = hook ]; then echo agent_stop; exit 0; fi
read -r end
case "$end" in
*"byte order mark is skipped"*) echo "the review server is not there" >&2; exit 3 ;;
esac
"#;
