//! The session's side of diagnostics: sends what was edited to the language servers, and shows what they find to the
//! model before its next call.

use std::sync::Arc;

use super::core::Core;
use epitome_diagnostics::tool::DiagnosticsTool;
use epitome_diagnostics::{Edit, EditWatch, ServerContext};
use epitome_thread::{OutcomeStatus, ToolDisplay, ToolOutcome};
use epitome_tools::question::QuestionSender;

/// The author of the news in the log.
pub(super) const BY: &str = "diagnostics";

/// Starts to watch the edits of a session. The session gets a tool if that would be useful.
pub(super) fn edit_watch(core: &mut Core, questions: QuestionSender) -> EditWatch {
    let context = ServerContext {
        workspace: core.workspace.clone(),
        sandbox: core.sandbox_rules(),
        settings: core.settings.diagnostics.clone(),
        reaper: core.services.reaper.clone(),
        questions,
    };
    let watch = EditWatch::new(core.services.languages.clone(), context);
    if watch.is_useful() {
        let tool = Arc::new(DiagnosticsTool { watch: watch.clone() });
        core.services.toolbox = core.services.toolbox.with(vec![tool]);
    }
    watch
}

/// The files that a call changed.
pub(super) fn edits_of(outcome: &ToolOutcome) -> Vec<Edit> {
    let diffs = outcome.shown.iter().filter(|_| outcome.status == OutcomeStatus::Completed);
    let edit = |shown: &ToolDisplay| match shown {
        ToolDisplay::Diff { path, old, .. } => Some(Edit { path: path.clone(), before: old.clone() }),
        ToolDisplay::Text { .. } => None,
    };
    diffs.filter_map(edit).collect()
}
