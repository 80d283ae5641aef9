//! The description of an entry from which every list of entries is made: on the command line, in editors, in
//! exports, for recall and in the inspector.

use serde_json::Value;

use super::lines::{compaction, cut_words, edited, ending, pruned, sizes, withheld};
use super::text::speaker;
use super::{Change, HookRun, Mask, Message, Origin, PlanStatus, Role, ToolOutcome, ToolSpec, ViewEdit};

/// An entry in a form for people and for programs that list entries. One with neither a heading nor a line is not
/// listed.
#[derive(Clone, Debug, Default)]
pub struct EntryLine<'a> {
    /// The author of a message, or a description of the parts: `you`, `agent (model)`, `hooks, turn_end`.
    pub heading: Option<String>,
    /// The effect of the entry, in one line. If there is a heading, this is a remark that follows the parts.
    pub line: Option<String>,
    pub parts: Vec<EntryPart<'a>>,
}

/// A part of an entry's content.
#[derive(Clone, Copy, Debug)]
pub enum EntryPart<'a> {
    Prompt(&'a Message, &'a Origin),
    Reply(&'a Message),
    /// The message that replaces the compacted entries.
    Summary(&'a Message),
    /// A message of a history that a hook made.
    Spoken(Role, &'a Message),
    /// A command that Epitome executes itself.
    Typed(&'a str),
    Outcome(&'a ToolOutcome),
    Mask(&'a Mask),
    Edit(&'a ViewEdit),
    /// The input that a hook gave a call.
    Input(&'a Value),
    Run(&'a HookRun),
    /// A text for the user alone.
    Notice(&'a str),
    SystemPrompt(&'a str),
    Tool(&'a ToolSpec),
}

/// Describes an entry by its change.
pub fn describe(change: &Change) -> EntryLine<'_> {
    let (heading, line, parts) = match change {
        Change::Framed { system, tools } => {
            let tools = tools.iter().map(EntryPart::Tool);
            (None, None, std::iter::once(EntryPart::SystemPrompt(system)).chain(tools).collect())
        }
        Change::Said { message, origin } => {
            (Some(speaker(message, origin)), None, vec![EntryPart::Prompt(message, origin)])
        }
        Change::Queued { message } => {
            let heading = format!("{}, while the agent worked", speaker(message, &Origin::Person));
            (Some(heading), None, vec![EntryPart::Prompt(message, &Origin::Person)])
        }
        Change::Withheld { message, why, .. } => {
            let prompt = EntryPart::Prompt(message, &Origin::Person);
            (Some(speaker(message, &Origin::Person)), withheld(why), vec![prompt])
        }
        Change::Commanded { typed, .. } => {
            (Some("you, to Epitome".to_owned()), None, vec![EntryPart::Typed(typed)])
        }
        Change::Replied { message, model, cut, .. } => {
            let heading = format!("agent ({model})");
            (Some(heading), cut.as_ref().map(cut_words), vec![EntryPart::Reply(message)])
        }
        Change::ToolFinished { outcome } => {
            (Some("result of a call".to_owned()), None, vec![EntryPart::Outcome(outcome)])
        }
        Change::Hooked { event, runs } => {
            (Some(format!("hooks, {event}")), None, runs.iter().map(EntryPart::Run).collect())
        }
        Change::Compacted { trigger, summary, masks, account, .. } => {
            let line = sizes(change).map(|sizes| compaction(*trigger, &sizes, account));
            let masks = masks.iter().map(EntryPart::Mask);
            (None, line, std::iter::once(EntryPart::Summary(summary)).chain(masks).collect())
        }
        Change::Pruned { masks, .. } => {
            let line = sizes(change).map(|sizes| pruned(masks.len(), &sizes));
            (None, line, masks.iter().map(EntryPart::Mask).collect())
        }
        Change::Mutated { messages, by, .. } => {
            let line = |sizes| format!("History replaced by {by}: {sizes}; /undo undoes it.");
            let spoken = messages.iter().map(|spoken| EntryPart::Spoken(spoken.role, &spoken.message));
            (None, sizes(change).map(line), spoken.collect())
        }
        Change::Edited { by, edits } => {
            (None, Some(edited(by, edits)), edits.iter().map(EntryPart::Edit).collect())
        }
        Change::CallChanged { input, card, by, .. } => {
            let title = card.title.lines().next().map_or(".".to_owned(), |title| format!(": {title}"));
            let line = format!("{by} changed the input of this call{title}");
            (None, Some(line), vec![EntryPart::Input(input)])
        }
        Change::ClientInstructed(instructions) => {
            let line = match instructions.replaces_role {
                true => "The editor set the system prompt.",
                false => "The editor added to the system prompt.",
            };
            (None, Some(line.to_owned()), vec![EntryPart::SystemPrompt(&instructions.text)])
        }
        Change::Noted { text, .. } => (None, Some(text.clone()), vec![EntryPart::Notice(text)]),
        other => (None, line_of(other), Vec::new()),
    };
    EntryLine { heading, line, parts }
}

/// The line of a change that has no parts; `None` if it is of no interest to the user.
fn line_of(change: &Change) -> Option<String> {
    match change {
        Change::GoalSet { goal: Some(goal) } => Some(format!("Goal: {goal}")),
        Change::GoalSet { goal: None } => Some("The goal was cleared.".to_owned()),
        Change::ThinkingDropped { .. } => Some(
            "The provider rejected the model's earlier thinking; the conversation continues without it."
                .to_owned(),
        ),
        Change::Undone { entry } => {
            Some(format!("Undone: {entry}. The conversation is as it would be without it."))
        }
        Change::Redone { entry } => Some(format!("Redone: {entry} is in effect again.")),
        Change::Rewound { to } => Some(format!(
            "Rewound: the conversation is as it was before {to}; /rewind undo restores the rest."
        )),
        Change::FilesRewound { turn, undo, files, more, left, .. } => {
            let count = files.len() + *more as usize;
            let files = if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
            let left = if *left == 0 { String::new() } else { format!("; {left} left as they are") };
            Some(match undo {
                false => format!("Restored: {files} as before {turn}{left}. /rewind undo undoes that."),
                true => format!("Restored: {files} as before the rewind{left}."),
            })
        }
        Change::Forked { from, through } => {
            Some(format!("Forked: everything above is from {from}, up to {through}."))
        }
        Change::Planned { steps } => {
            let done = steps.iter().filter(|step| step.status == PlanStatus::Completed).count();
            let now = steps.iter().find(|step| step.status == PlanStatus::InProgress);
            let now = now.map(|step| format!(", now: {}", step.content)).unwrap_or_default();
            Some(format!("Plan: {done} of {} steps done{now}", steps.len()))
        }
        Change::ModelChosen { model } => Some(format!("Model: {model}")),
        Change::ModeChosen { mode } => Some(format!("Mode: {}", mode.id())),
        Change::TurnEnded { failure: Some(failure), .. } => Some(format!("The turn failed: {failure}")),
        Change::TurnEnded { reason, .. } => ending(*reason).map(str::to_owned),
        Change::Lost { entries: 0 } => None,
        Change::Lost { entries } => Some(format!("{} lost here: the log is damaged.", counted(*entries))),
        Change::DamageAccepted { entries, .. } => Some(format!(
            "The log was damaged before this entry, and {} lost; the conversation continues without them.",
            counted(*entries)
        )),
        Change::Unknown(opaque) => {
            Some(format!("Written by a newer Epitome, and not understood by this one: {}.", opaque.kind()))
        }
        _ => None,
    }
}

/// Entries as the subject of a sentence in the past tense.
fn counted(entries: u64) -> String {
    match entries {
        0 => "no entry is".to_owned(),
        1 => "1 entry is".to_owned(),
        entries => format!("{entries} entries are"),
    }
}
