//! The output of a recipe's shell call. It runs like the bash tool, in a separate process group and with limits on
//! time and output. The caller is responsible for permission.

use std::time::Duration;

use serde_json::Value;

use super::{Access, ToolContext, Toolbox};
use epitome_thread::OutcomeContent;

/// Timeout in seconds for one shell call of a recipe.
const SHELL_SECONDS_MAX: u64 = 30;
/// Additional seconds allowed for ending it.
const SHELL_GRACE_SECONDS: u64 = 5;

/// Runs a line and returns its output, or the reason for a failure in brackets. In the context of a call, it runs in the
/// sandbox unless the user allowed that call to leave it. In a bare context there is no sandbox: the user typed the
/// recipe's name, and it may need the network. It always gets the same environment as the model's commands, because its
/// output is sent to the model.
pub async fn shell_output(toolbox: &Toolbox, context: &ToolContext, line: &str) -> String {
    let Some(bash) = toolbox.get("bash") else { return "[there is no shell]".to_owned() };
    let is_outside = matches!(context.decided.as_deref(), Some(Access::Command { confined: false, .. }));
    let input = serde_json::json!({
        "description": "A recipe's own command",
        "command": line,
        "timeout": SHELL_SECONDS_MAX,
        "outside_sandbox": is_outside,
        "reason": "The user allowed it for this call.",
    });
    let limit = Duration::from_secs(SHELL_SECONDS_MAX + SHELL_GRACE_SECONDS);
    let Ok(result) = tokio::time::timeout(limit, bash.run(input, context.clone())).await else {
        return format!("[{line}: no end within {SHELL_SECONDS_MAX} s]");
    };
    printed(result.raw.as_ref())
        .unwrap_or_else(|| result.content.iter().filter_map(OutcomeContent::as_text).collect())
}

/// Both outputs of a command, followed by a nonzero exit code: a reader of the prompt must not mistake a failure for
/// an empty result.
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
    fn failures_are_appended_to_the_output() {
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
