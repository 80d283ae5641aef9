//! `/shell`: runs a command that the user has typed, and shows its output to the user and to the model.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Notify;

use super::on_disk::{DiskResult, ShellRun};
use super::{CommandContext, CommandOutcome};
use crate::core::Core;
use epitome_thread::{Change, Mode, Origin, OutcomeContent};
use epitome_tools::{Access, ToolContext, ToolResult};

/// Time limit in seconds: the session waits for the command.
const SECONDS_MAX: u64 = 60;

pub(super) fn shell(core: &mut Core, _: &CommandContext<'_>, typed: &str) -> CommandOutcome {
    let command = typed.trim().to_owned();
    let Some(bash) = core.services.toolbox.get("bash").cloned().filter(|_| !command.is_empty()) else {
        return CommandOutcome::text("Use /shell with a command, as in /shell git status.");
    };
    // Nobody is asked about this command, and every client that may send a prompt may send it.
    let access = Access::Command { line: command.clone(), confined: true, changes_git: false };
    if let Some(gap) = core.sandbox_remark(&access).filter(|_| core.thread.mode() != Mode::Full) {
        return CommandOutcome::text(format!("Not run: it would not be sandboxed. {gap}"));
    }
    let context = ToolContext {
        mode: core.thread.mode(),
        sandbox: core.sandbox_rules(),
        ..ToolContext::bare(core.workspace.clone())
    };
    let input = json!({ "command": command, "description": "Typed by the user", "timeout": SECONDS_MAX });
    let (stop, partial) = (Arc::new(Notify::new()), context.partial.clone());
    let stopped = Arc::clone(&stop);
    let run = CommandOutcome::eventually(Box::pin(async move {
        let result = tokio::select! {
            result = bash.run(input, context) => result,
            // Dropping the tool's future ends the command.
            () = stopped.notified() => partial.take().unwrap_or_else(|| ToolResult::failed("Not run: cancelled.")),
        };
        let output = result.content.iter().filter_map(OutcomeContent::as_text).collect();
        Some(DiskResult::Shell(ShellRun { command, output }))
    }));
    CommandOutcome { stop: Some(stop), ..run }
}

/// The model reads the output before the next prompt.
pub(crate) fn ran(core: &mut Core, ShellRun { command, output }: ShellRun) -> CommandOutcome {
    let fence = "`".repeat(longest_run(&output, '`').max(2) + 1);
    let shown = format!("{fence}console\n$ {command}\n{}\n{fence}", output.trim_end());
    let message = core.message(format!("The user ran a command:\n\n{shown}"));
    let changes = vec![Change::Said { message, origin: Origin::Context { by: "/shell".to_owned() } }];
    CommandOutcome { changes, ..CommandOutcome::text(shown) }
}

/// The length of the longest run of a character.
fn longest_run(text: &str, of: char) -> usize {
    text.split(|c| c != of).map(str::len).max().unwrap_or(0)
}
