//! The script of the demo: the files of a tiny project, the user's prompts, and the model's replies.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::model::{ScriptReply, ScriptStep};

/// The name shows that the model is scripted.
pub const MODEL: &str = "local/scripted";
pub const MODEL_AT_SERVER: &str = "scripted";

/// The model's context window in tokens: small, so that the meter moves.
pub const WINDOW: u64 = 32_000;

pub const SCRIPT: &str = "greet.sh";
const SCRIPT_BEFORE: &str = "#!/bin/sh\n# Greets whoever is named.\necho \"Hello, $1\"\n";
pub const SCRIPT_AFTER: &str = "#!/bin/sh\n# Greets whoever is named.\necho \"Hello, $1!\"\n";

const TEST: &str = "#!/bin/sh\n\
said=$(sh ./greet.sh World)\n\
if [ \"$said\" = \"Hello, World!\" ]; then echo \"ok: $said\"; else echo \"not ok: $said\"; exit 1; fi\n";

/// Number of lines of the log that makes the conversation long, and how many are read at a time.
const LOG_LINES: u32 = 1_200;
const LOG_PAGE_LINES: u32 = 400;

/// One line of that log.
pub const LOG_LINE: &str = "run 17: not ok: wanted a greeting";

/// The fact that every compaction keeps.
pub const PINNED: &str = "test.sh is right; never change it.";

pub const TASK: &str = "The greeting test fails. Find out why, fix it, and run the test.";
pub const INTERRUPTED: &str = "Explain the fix to somebody who is new here.";
pub const LAST: &str = "You were cut off. In one sentence, please.";
pub const LAST_ANSWER: &str = "the greeting had lost its exclamation mark";

/// The last words streamed before the daemon is killed.
pub const LAST_WORDS: &str = "which the test";

/// Writes the project, and the settings of the daemon's home.
pub fn write_files(workspace: &Path, home: &Path) -> io::Result<()> {
    std::fs::create_dir_all(workspace)?;
    std::fs::create_dir_all(home)?;
    std::fs::write(workspace.join(SCRIPT), SCRIPT_BEFORE)?;
    std::fs::write(workspace.join("test.sh"), TEST)?;
    std::fs::write(workspace.join("test.log"), log())?;
    let settings =
        format!("[models.\"{MODEL}\"]\ncontext_window = {WINDOW}\nprice = {{ input = 3, output = 15 }}\n");
    std::fs::write(home.join("config.toml"), settings)
}

/// The model's reply to a request; `None` for one that is not in the script.
pub fn reply(number: usize, request: &Value) -> Option<ScriptReply> {
    let steps = match number {
        0 => vec![
            ScriptStep::Text("I look at the script and at the log of its last runs."),
            call("file_read", json!({ "file_path": SCRIPT })),
            call("file_read", page_of_the_log(1)),
            call("file_read", page_of_the_log(2)),
            call("file_read", page_of_the_log(3)),
        ],
        1 => vec![
            ScriptStep::Text("The test wants an exclamation mark, and the script prints none."),
            call(
                "file_edit",
                json!({ "file_path": SCRIPT, "old_text": "Hello, $1", "new_text": "Hello, $1!" }),
            ),
        ],
        2 => vec![ScriptStep::Text("Now the test."), call("bash", json!({ "command": "sh test.sh" }))],
        3 => {
            vec![ScriptStep::Text("It passes: "), ScriptStep::Text("greet.sh says \"Hello, World!\" again.")]
        }
        4 => vec![ScriptStep::Text(SUMMARY)],
        // The daemon is killed while it waits for more.
        5 => vec![
            ScriptStep::Text("greet.sh prints a greeting, "),
            ScriptStep::Text(LAST_WORDS),
            ScriptStep::Hang,
        ],
        6 => vec![
            ScriptStep::Text("In one sentence: "),
            ScriptStep::Text(LAST_ANSWER),
            ScriptStep::Text(", and now it has it again."),
        ],
        _ => return None,
    };
    // Approximately a provider's count, so that the meter shows the real size of the request.
    let input_tokens = crate::tokens::Ruler::for_model(None).text(&request.to_string());
    Some(ScriptReply { steps, input_tokens })
}

const SUMMARY: &str = "<summary>\nThe user asked to fix the failing greeting test. test.sh expects \
\"Hello, World!\"; greet.sh printed it without the exclamation mark. greet.sh was edited, the test was run \
and passes. Nothing is pending.\n</summary>";

fn call(name: &'static str, input: Value) -> ScriptStep {
    ScriptStep::Call { name, input }
}

fn page_of_the_log(page: u32) -> Value {
    let offset = (page - 1) * LOG_PAGE_LINES + 1;
    json!({ "file_path": "test.log", "offset": offset, "line_limit": LOG_PAGE_LINES })
}

fn log() -> String {
    let mut log = String::new();
    for run in 1..=LOG_LINES {
        let _ = writeln!(log, "run {run}: not ok: wanted a greeting with an exclamation mark, got none");
    }
    log
}
