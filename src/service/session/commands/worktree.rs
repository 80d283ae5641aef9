//! `/worktree`: makes a Git worktree, shows the one that the session works in, and merges or removes it.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::on_disk::{DiskResult, WorktreeReport};
use super::{CommandContext, CommandOutcome};
use crate::WorkerFault;
use crate::core::Core;
use crate::worktree::{self, Worktree, WorktreeError, WorktreeState};
use epitome_platform::blocking;
use epitome_store::Store;
use epitome_thread::SessionId;
use epitome_tools::question::{QuestionKind, QuestionReply, QuestionSender, UserQuestion};

/// The choices of the question, with what they do.
const CHOICES: [(&str, &str); 3] = [
    ("merge", "Merge it and remove the worktree"),
    ("discard", "Throw it away"),
    ("keep", "Keep it for now"),
];

/// The session that the command was typed in.
struct TypedIn {
    cwd: PathBuf,
    store: Store,
    session: SessionId,
}

pub(super) fn worktree(core: &mut Core, context: &CommandContext<'_>, typed: &str) -> CommandOutcome {
    let (typed, sender) = (typed.trim().to_owned(), context.questions.sender());
    let typed_in = TypedIn {
        cwd: core.workspace.cwd.clone(),
        store: core.services.store.clone(),
        session: core.id().clone(),
    };
    CommandOutcome::eventually(Box::pin(async move {
        let report = match &*typed {
            "" => ask(typed_in, sender).await,
            _ => blocking::start(move || run_typed(&typed_in, &typed)).await.ok()?,
        };
        Some(DiskResult::Worktree(report.unwrap_or_else(|error| refused(&error))))
    }))
}

fn refused(error: &WorktreeError) -> WorktreeReport {
    (format!("Not done: {error}"), json!({ "status": "refused", "reason": error.to_string() }))
}

/// Runs the action that was typed after the name.
fn run_typed(typed_in: &TypedIn, typed: &str) -> Result<WorktreeReport, WorktreeError> {
    match typed {
        "list" => list(&typed_in.cwd),
        "merge" | "discard" => finish(typed_in, &own(&typed_in.cwd)?, typed),
        name => make(&typed_in.cwd, name),
    }
}

fn own(cwd: &std::path::Path) -> Result<Worktree, WorktreeError> {
    worktree::containing(cwd)?.ok_or(WorktreeError::NotInWorktree)
}

fn make(cwd: &std::path::Path, name: &str) -> Result<WorktreeReport, WorktreeError> {
    let opened = worktree::open(cwd, name)?;
    let path = opened.directory.display();
    let mut text = match opened.is_new {
        true => format!("Made the worktree {path} with the branch {}.", opened.worktree.branch),
        false => format!("The worktree {path} exists, with the branch {}.", opened.worktree.branch),
    };
    if opened.left_behind > 0 {
        let _ = write!(text, " {} uncommitted changes stay here.", opened.left_behind);
    }
    let _ = write!(
        text,
        "\n\nThis session stays where it is. Open the directory in your editor for a session there, or use \
                          `epitome run --worktree {name} \"…\"`. `/worktree` in that session merges it or throws it away."
    );
    let meta = json!({ "status": "done", "path": opened.directory.to_string_lossy(), "branch": opened.worktree.branch, "new": opened.is_new });
    Ok((text, meta))
}

fn list(cwd: &std::path::Path) -> Result<WorktreeReport, WorktreeError> {
    let made = worktree::list(cwd)?;
    let mut text = String::new();
    for one in &made {
        let into = one.base.as_ref().map(|base| format!(", from {base}")).unwrap_or_default();
        let _ = writeln!(text, "- **{}**: {}{into}", one.name, one.path.display());
    }
    if made.is_empty() {
        text.push_str("Epitome has no worktrees here. `/worktree NAME` makes one.");
    }
    let worktrees: Vec<Value> = made
        .iter()
        .map(|one| json!({ "name": one.name, "path": one.path.to_string_lossy(), "branch": one.branch, "base": one.base }))
        .collect();
    Ok((text, json!({ "status": "done", "worktrees": worktrees })))
}

/// Shows the worktree of the session and asks what to do with it.
async fn ask(typed_in: TypedIn, sender: QuestionSender) -> Result<WorktreeReport, WorktreeError> {
    let cwd = typed_in.cwd.clone();
    let looked = blocking::start(move || -> Result<_, WorktreeError> {
        let own = own(&cwd)?;
        let state = own.state()?;
        Ok((own, state))
    });
    let (own, state) = looked.await.map_err(|_| WorkerFault)??;
    let text = described(&own, &state);
    let options: Vec<Value> =
        CHOICES.iter().map(|(choice, title)| json!({ "const": choice, "title": title })).collect();
    let schema = json!({
        "type": "object", "required": ["action"],
        "properties": { "action": { "type": "string", "title": "What should happen to it?", "oneOf": options } },
    });
    let question = UserQuestion { message: text.clone(), wants: QuestionKind::Form { schema }, call: None };
    let chosen = match sender.ask(question).await {
        QuestionReply::Accepted(fields) => fields.get("action").and_then(Value::as_str).map(str::to_owned),
        QuestionReply::Unable => {
            let how =
                "`/worktree merge` merges it and removes the worktree; `/worktree discard` throws it away.";
            return Ok((format!("{text}\n\n{how}"), meta_of(&own, &state, "done")));
        }
        QuestionReply::Declined | QuestionReply::Cancelled | QuestionReply::TimedOut => None,
    };
    match chosen.as_deref() {
        Some(action @ ("merge" | "discard")) => {
            let action = action.to_owned();
            let done = blocking::start(move || finish(&typed_in, &own, &action)).await;
            done.map_err(|_| WorkerFault)?
        }
        _ => Ok(("The worktree stays as it is.".to_owned(), meta_of(&own, &state, "kept"))),
    }
}

fn finish(typed_in: &TypedIn, own: &Worktree, action: &str) -> Result<WorktreeReport, WorktreeError> {
    own.check_idle(&typed_in.store, Some(&typed_in.session))?;
    let text = if action == "merge" { own.merge()? } else { own.discard()? };
    let text = match own.path.exists() {
        true => text,
        false => format!("{text} The directory of this session is gone: continue in another session."),
    };
    Ok((text, json!({ "status": "done", "action": action, "branch": own.branch })))
}

fn described(own: &Worktree, state: &WorktreeState) -> String {
    let base = own.base.as_deref().unwrap_or("no branch");
    let mut text = format!("Worktree {} ({}), made from {base}.", own.name, own.path.display());
    let part = |text: &mut String, title: &str, lines: &[String]| {
        if !lines.is_empty() {
            let _ = write!(text, "\n\n{title}:\n{}", worktree::shown(lines));
        }
    };
    part(&mut text, "Commits", &state.commits);
    part(&mut text, "Not committed (throwing it away puts these into a stash)", &state.uncommitted);
    if state.commits.is_empty() && state.uncommitted.is_empty() {
        text.push_str("\n\nIt has no changes.");
    }
    text
}

fn meta_of(own: &Worktree, state: &WorktreeState, status: &str) -> Value {
    json!({
        "status": status, "name": own.name, "path": own.path, "branch": own.branch, "base": own.base,
        "commits": state.commits, "uncommitted": state.uncommitted,
    })
}
