//! What a recipe's own shell call prints: run as the bash tool runs it, in a process group of its own,
//! bounded in time and output, and not held by the sandbox. Whether it may run is for the caller to know.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{ToolContext, Toolbox, Workspace};
use epitome_thread::OutcomeContent;

/// How long one shell call of a recipe may take, in seconds.
const SHELL_SECONDS_MAX: u64 = 30;
/// How long its end may take on top, in seconds.
const SHELL_GRACE_SECONDS: u64 = 5;

/// Runs a line and gives what it printed, or in brackets why it did not.
pub async fn shell_output(toolbox: &Toolbox, workspace: &Arc<Workspace>, line: &str) -> String {
    let Some(bash) = toolbox.get("bash") else { return "[there is no shell]".to_owned() };
    let input = serde_json::json!({
        "description": "A recipe's own command",
        "command": line,
        "timeout": SHELL_SECONDS_MAX,
    });
    // The person has consented to the recipe, and it may need the network or their keys: nothing holds it.
    let context = ToolContext::bare(workspace.clone());
    let limit = Duration::from_secs(SHELL_SECONDS_MAX + SHELL_GRACE_SECONDS);
    let Ok(result) = tokio::time::timeout(limit, bash.run(input, context)).await else {
        return format!("[{line}: no end within {SHELL_SECONDS_MAX} s]");
    };
    printed(result.raw.as_ref()).unwrap_or_else(|| {
        let texts = result.content.iter().filter_map(|content| match content {
            OutcomeContent::Text { text } => Some(text.as_str()),
            OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => None,
        });
        texts.collect()
    })
}

/// Both outputs of a command that ran, and behind them how it failed, if it did: who reads the prompt must
/// not take a failure for an empty answer.
fn printed(raw: Option<&Value>) -> Option<String> {
    let raw = raw?;
    let mut text = raw["stdout"].as_str()?.to_owned();
    text.push_str(raw["stderr"].as_str().unwrap_or_default());
    match raw["exitCode"].as_i64() {
        Some(0) | None => {}
        Some(code) => {
            text.truncate(text.trim_end().len());
            let gap = if text.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{gap}[exit code {code}]"));
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::printed;

    #[test]
    fn a_failure_is_told_behind_what_was_printed() {
        let cases = [
            (json!({"stdout": "a\n", "stderr": "", "exitCode": 0}), Some("a\n")),
            (json!({"stdout": "a\n", "stderr": "b\n", "exitCode": 0}), Some("a\nb\n")),
            (json!({"stdout": "part\n", "stderr": "", "exitCode": 3}), Some("part\n[exit code 3]")),
            (json!({"stdout": "", "stderr": "", "exitCode": 1}), Some("[exit code 1]")),
            (json!({"stdout": "cut", "exitCode": null}), Some("cut")),
            (json!({}), None),
        ];
        for (raw, text) in cases {
            assert_eq!(printed(Some(&raw)).as_deref(), text, "{raw}");
        }
    }
}
