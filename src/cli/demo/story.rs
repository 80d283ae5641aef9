//! The script of the demo: the files of a tiny project, the user's prompts, the model's replies.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde_json::json;

use crate::provider::scripted::{ModelStep, RecordedRequest};

/// The name shows that the model is scripted.
pub const MODEL: &str = "local/scripted";

/// The model's context window in tokens: small, so that the meter moves.
const WINDOW: u64 = 32_000;

pub const SCRIPT: &str = "greet.sh";
const SCRIPT_BEFORE: &str = "#!/bin/sh\n# Greets whoever is named.\necho \"Hello, $1\"\n";
pub const SCRIPT_AFTER: &str = "#!/bin/sh\n# Greets whoever is named.\necho \"Hello, $1!\"\n";

const TEST: &str = "#!/bin/sh\n\
said=$(sh ./greet.sh World)\n\
if [ \"$said\" = \"Hello, World!\" ]; then echo \"ok: $said\"; else echo \"not ok: $said\"; exit 1; fi\n";

/// Lines of the log that makes the conversation long, and how many are read at a time.
const LOG_LINES: u32 = 1_200;
const LOG_PAGE_LINES: u32 = 400;

/// One of its lines.
pub const LOG_LINE: &str = "run 17: not ok: wanted a greeting";

pub const TASK: &str = "The greeting test fails. Find out why, fix it, and run the test.";
pub const INTERRUPTED: &str = "Explain the fix to somebody who is new here.";
pub const LAST: &str = "You were cut off. In one sentence, please.";
pub const LAST_ANSWER: &str = "the greeting had lost its exclamation mark";

/// The last words before the daemon is killed.
pub const LAST_WORDS: &str = "which the test";

/// Writes the project, and the settings of the daemon's home.
pub fn write_files(workspace: &Path, home: &Path) -> io::Result<()> {
    std::fs::create_dir_all(workspace)?;
    std::fs::create_dir_all(home)?;
    std::fs::write(workspace.join(SCRIPT), SCRIPT_BEFORE)?;
    std::fs::write(workspace.join("test.sh"), TEST)?;
    std::fs::write(workspace.join("test.log"), log())?;
    let settings = format!("[models.\"{MODEL}\"]\ncontext_window = {WINDOW}\n");
    std::fs::write(home.join("config.toml"), settings)
}

/// The model's replies.
pub fn script() -> impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static {
    |request| {
        let mut steps = match request.number {
            0 => vec![
                say("I look at the script and at the log of its last runs."),
                call("file_read", json!({ "file_path": SCRIPT })),
                call("file_read", page_of_the_log(1)),
                call("file_read", page_of_the_log(2)),
                call("file_read", page_of_the_log(3)),
            ],
            1 => vec![
                say("The test wants an exclamation mark, and the script prints none."),
                call(
                    "file_edit",
                    json!({ "file_path": SCRIPT, "old_text": "Hello, $1", "new_text": "Hello, $1!" }),
                ),
            ],
            2 => vec![say("Now the test."), call("bash", json!({ "command": "sh test.sh" }))],
            3 => vec![say("It passes: "), say("greet.sh says \"Hello, World!\" again.")],
            4 => vec![say(SUMMARY)],
            5 => vec![
                say("greet.sh prints a greeting, "),
                say(LAST_WORDS),
                // Never released: the daemon is killed while it waits for more.
                ModelStep::Wait,
                say(" never heard."),
            ],
            6 => vec![say("In one sentence: "), say(LAST_ANSWER), say(", and now it has it again.")],
            // A call that is not in the script is an error.
            _ => vec![ModelStep::Error { status: 400, retry_after: None, message: None }],
        };
        steps.push(ModelStep::Usage { input: tokens_of(request), output: 40 });
        steps
    }
}

const SUMMARY: &str = "<summary>\nThe person asked to fix the failing greeting test. test.sh expects \
\"Hello, World!\"; greet.sh printed it without the exclamation mark. greet.sh was edited, the test was run \
and passes. Nothing is pending.\n</summary>";

fn say(text: &str) -> ModelStep {
    ModelStep::Text(text.to_owned())
}

fn call(name: &str, input: serde_json::Value) -> ModelStep {
    ModelStep::Call { name: name.to_owned(), input }
}

fn page_of_the_log(page: u32) -> serde_json::Value {
    let offset = (page - 1) * LOG_PAGE_LINES + 1;
    json!({ "file_path": "test.log", "offset": offset, "line_limit": LOG_PAGE_LINES })
}

/// Approximately what a provider would count, so that the meter shows what is really sent.
fn tokens_of(request: &RecordedRequest) -> u64 {
    crate::tokens::Ruler::of(None).text(&request.body.to_string())
}

/// A long log of test runs.
fn log() -> String {
    let mut log = String::new();
    for run in 1..=LOG_LINES {
        let _ = writeln!(log, "run {run}: not ok: wanted a greeting with an exclamation mark, got none");
    }
    log
}
