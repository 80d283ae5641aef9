//! What a recipe's own shell call prints: run as the bash tool runs it, in a process group of its own,
//! bounded in time and output. Whether it may run is for the caller to know.

use std::sync::Arc;
use std::time::Duration;

use super::{ToolContext, Toolbox, Workspace};
use crate::thread::OutcomeContent;

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
    let context = ToolContext { workspace: workspace.clone(), progress: Arc::new(|_| {}) };
    let limit = Duration::from_secs(SHELL_SECONDS_MAX + SHELL_GRACE_SECONDS);
    let Ok(result) = tokio::time::timeout(limit, bash.run(input, context)).await else {
        return format!("[{line}: no end within {SHELL_SECONDS_MAX} s]");
    };
    let stdout = result.raw.as_ref().and_then(|raw| raw.get("stdout")).and_then(|out| out.as_str());
    stdout.map(str::to_owned).unwrap_or_else(|| {
        let texts = result.content.iter().filter_map(|content| match content {
            OutcomeContent::Text { text } => Some(text.as_str()),
            OutcomeContent::Image { .. } => None,
        });
        texts.collect()
    })
}
