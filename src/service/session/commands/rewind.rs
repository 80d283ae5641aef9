//! `/rewind` and `/checkpoints`: list what turns did to files, and undo it, with or without the conversation.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::layers::entry_named;
use super::on_disk::{DiskResult, RewindParts, RewindPlan, RewindRequest};
use super::why::{counted, line_of, more, older};
use super::{CommandContext, CommandOutcome, CommandRefusal};
use crate::core::Core;
use epitome_checkpoint::{CheckpointError, Checkpoints, RewindReport, RewindTarget, TurnRecord};
use epitome_thread::{Change, PromptedTurn, Seq, Thread};

/// Turns listed, and files per turn; the rest are counted. The JSON form has all of them.
const TURNS_SHOWN_MAX: usize = 50;
const FILES_SHOWN_MAX: usize = 20;

/// Characters of a prompt that identify its turn.
const PROMPT_CHARS: usize = 60;

fn parse(typed: &str) -> Result<RewindRequest, CommandRefusal> {
    let mut request =
        RewindRequest { entry: None, scope: RewindParts::Both, dry: false, force: false, undo: false };
    for word in typed.split_whitespace() {
        match word.trim_start_matches("--") {
            "dry" | "dry-run" => request.dry = true,
            "force" => request.force = true,
            "undo" => request.undo = true,
            other => match (RewindParts::parse(other), entry_named(other)) {
                (Some(scope), _) => request.scope = scope,
                (None, Some(entry)) => request.entry = Some(entry),
                (None, None) => return Err(CommandRefusal::RewindOption(other.to_owned())),
            },
        }
    }
    match request.undo && request.entry.is_some() {
        true => Err(CommandRefusal::UndoWithEntry),
        false => Ok(request),
    }
}

/// Replaces `message ID` by the entry of that message: clients of the protocol know the ids of messages only.
fn with_entry(core: &Core, typed: &str) -> String {
    let Some((before, after)) = typed.split_once("message ") else { return typed.to_owned() };
    let (id, after) = after.split_once(' ').unwrap_or((after, ""));
    let is_it = |change: &Change| matches!(change, Change::Said { message, .. } if message.id.to_string() == id.trim());
    let entry = core.thread.entries().iter().find(|entry| is_it(&entry.change)).map(|entry| entry.seq);
    entry.map_or_else(|| typed.to_owned(), |entry| format!("{before}{entry} {after}"))
}

pub(super) fn rewind(core: &mut Core, _: &CommandContext<'_>, typed: &str) -> CommandOutcome {
    let plan = match parse(&with_entry(core, typed)).and_then(|request| plan_rewind(core, request)) {
        Ok(plan) => plan,
        Err(why) => return not_rewound(&why.to_string()),
    };
    let Some(checkpoints) = core.services.checkpoints.clone() else {
        return not_rewound("this session keeps no checkpoints");
    };
    CommandOutcome::later(Box::new(move || {
        let came = plan.files.map(|asked| act(&checkpoints, asked, plan.request));
        DiskResult::Rewound(Box::new(plan), came)
    }))
}

pub(super) fn checkpoints(core: &mut Core, _: &CommandContext<'_>, typed: &str) -> CommandOutcome {
    let Some(checkpoints) = core.services.checkpoints.clone().filter(|_| typed.is_empty()) else {
        return CommandOutcome::text("/checkpoints takes no arguments; /rewind undoes changes.");
    };
    CommandOutcome::later(Box::new(move || DiskResult::Checkpoints(checkpoints.turns())))
}

pub(crate) fn not_rewound(why: &str) -> CommandOutcome {
    let text = format!("Not rewound: {}", sentence(why));
    let data = json!({ "status": "refused", "reason": why, "text": text });
    CommandOutcome::text(text).with("rewind", data)
}

fn plan_rewind(core: &Core, request: RewindRequest) -> Result<RewindPlan, CommandRefusal> {
    if request.undo {
        return plan_undo(core, request);
    }
    let turns = core.thread.prompted_turns();
    let turn = match request.entry {
        Some(entry) => {
            let start = core.thread.turn_start(entry);
            let found = turns.iter().find(|turn| turn.start == start);
            found.ok_or(CommandRefusal::NoTurnAt(entry))?
        }
        // For files alone, the turn may already have been rewound out of the conversation.
        None if request.scope == RewindParts::Files => turns.last().ok_or(CommandRefusal::NoTurn("yet"))?,
        None => {
            let newest = turns.iter().rev().find(|turn| !turn.is_taken_back);
            newest.ok_or(CommandRefusal::NoTurn("in the conversation"))?
        }
    };
    let conversation = match request.scope.conversation() {
        true => {
            core.thread.can_rewind(turn.start)?;
            Some(that_fits(core, Change::Rewound { to: turn.start })?)
        }
        false => None,
    };
    Ok(RewindPlan {
        request,
        files: request.scope.files().then_some(RewindTarget::From(turn.start)),
        conversation,
        what: format!("before {} {}", turn.prompt, quoted(&turn.text)),
        target: turn.start,
    })
}

fn plan_undo(core: &Core, request: RewindRequest) -> Result<RewindPlan, CommandRefusal> {
    let Rewinds { files, conversation } = rewinds(&core.thread);
    let (mut files, mut conversation) =
        (files.filter(|_| request.scope.files()), conversation.filter(|_| request.scope.conversation()));
    // Rewinds of one command belong together; otherwise the newer one is undone.
    if let (Some(of_files), Some(of_conversation)) = (files, conversation)
        && core.thread.turn_start(of_files) != core.thread.turn_start(of_conversation)
    {
        match of_files > of_conversation {
            true => conversation = None,
            false => files = None,
        }
    }
    let newest = files.max(conversation).ok_or(CommandRefusal::NoRewind)?;
    let change = match conversation {
        Some(layer) => {
            core.thread.can_undo(layer)?;
            Some(that_fits(core, Change::Undone { entry: layer })?)
        }
        None => None,
    };
    Ok(RewindPlan {
        request,
        files: files.map(|_| RewindTarget::Undo),
        conversation: change,
        what: format!("the rewind at {newest}"),
        target: newest,
    })
}

/// Returns the change, unless the view would not fit into the window: the next prompt would only cause another compaction.
fn that_fits(core: &Core, change: Change) -> Result<Change, CommandRefusal> {
    core.sizes_with(change.clone()).map_err(CommandRefusal::RewindOverflow)?;
    Ok(change)
}

/// Completes the command once the files are rewound or previewed.
pub(crate) fn rewound(
    core: &mut Core,
    plan: RewindPlan,
    came: Option<Result<RewindReport, CheckpointError>>,
) -> CommandOutcome {
    let report = match came.transpose() {
        Ok(report) => report.unwrap_or_default(),
        Err(error) => return not_rewound(&format!("{error}. No file was changed")),
    };
    let RewindPlan { request, files, conversation, what, target } = plan;
    let has_files = !report.changed.is_empty();
    let nothing = !has_files && report.conflicts.is_empty() && conversation.is_none();
    let status = match (request.dry, nothing) {
        (_, true) => "nothing_to_do",
        (true, false) => "dry",
        (false, false) => "done",
    };
    let text = words_of(core, &report, request, conversation.is_some(), files.is_some(), &what);
    let data = json!({
        "status": status,
        "text": text,
        "target": target.to_string(),
        "scope": request.scope.id(),
        "undo": request.undo,
        "conversation": conversation.is_some(),
        "rewind": report.number,
        "turns": report.turns.iter().map(Seq::to_string).collect::<Vec<_>>(),
        "files": report.changed.iter().map(|(path, verb)| json!({ "path": path.to_string_lossy(), "change": verb })).collect::<Vec<_>>(),
        "conflicts": report.conflicts.iter().map(|conflict| {
            json!({ "path": conflict.path.to_string_lossy(), "why": conflict.why.words(), "force": conflict.why.can_be_forced() })
        }).collect::<Vec<_>>(),
        "failures": report.failures.iter().map(|failure| {
            json!({ "path": failure.path.to_string_lossy(), "why": failure.why })
        }).collect::<Vec<_>>(),
        "beyond": report.beyond,
    });
    let mut changes = Vec::new();
    if !request.dry {
        let left_as_they_are = conversation.is_some() && !request.scope.files() && !request.undo;
        changes.extend(conversation);
        changes.extend(core.files_rewound(&report, request.undo));
        if left_as_they_are {
            let line = "The conversation was rewound to here. Files were left as they are now: what was said \
                        about them above may be out of date.";
            changes.push(core.note_for_model(line.to_owned()));
        }
    }
    let rewound_files = (!request.dry).then_some(report);
    CommandOutcome { changes, rewound_files, ..CommandOutcome::text(text) }.with("rewind", data)
}

fn words_of(
    core: &Core,
    report: &RewindReport,
    request: RewindRequest,
    conversation: bool,
    files: bool,
    what: &str,
) -> String {
    let mut out = match (request.dry, request.undo) {
        (true, false) => format!("Preview only; nothing changed. /rewind would go back to {what}:\n"),
        (true, true) => format!("Preview only; nothing changed. /rewind undo would undo {what}:\n"),
        (false, false) => format!("Rewound to {what}:\n"),
        (false, true) => format!("Undone: {what}.\n"),
    };
    let _ = match (conversation, request.undo) {
        (true, false) => {
            writeln!(out, "\n- the conversation: the model no longer sees what was said from there on")
        }
        (true, true) => writeln!(out, "\n- the conversation: the model sees what was said again"),
        (false, _) => writeln!(out, "\n- the conversation stays as it is"),
    };
    let changed = core.shown_paths(report);
    let shown = core.shown_path();
    match (files, changed.len()) {
        (false, _) => out.push_str("- files stay as they are\n"),
        (true, 0) => out.push_str("- no file has to be restored\n"),
        (true, _) => {}
    }
    for (path, verb) in changed.iter().take(FILES_SHOWN_MAX) {
        let _ = writeln!(out, "- {path}: {verb}");
    }
    more(&mut out, changed.len(), FILES_SHOWN_MAX);
    if !report.conflicts.is_empty() {
        out.push_str("\nLeft alone:\n\n");
    }
    for conflict in report.conflicts.iter().take(FILES_SHOWN_MAX) {
        let _ = writeln!(out, "- {}: {}", shown(&conflict.path), conflict.why.words());
    }
    more(&mut out, report.conflicts.len(), FILES_SHOWN_MAX);
    if report.conflicts.iter().any(|conflict| conflict.why.can_be_forced()) {
        out.push_str("\nAdd force to also revert changes by others; that can be undone.\n");
    }
    for failure in report.failures.iter().take(FILES_SHOWN_MAX) {
        let head = if failure.is_restored { "" } else { " could not be restored" };
        let _ = writeln!(out, "- {}{head}: {}", shown(&failure.path), failure.why);
    }
    for beyond in &report.beyond {
        let _ = writeln!(out, "\nIncomplete: {}", sentence(beyond));
    }
    if !request.dry && !request.undo && (conversation || !changed.is_empty()) {
        out.push_str("\n/rewind undo undoes this.");
    }
    out.trim_end().to_owned()
}

// ── The list ───────────────────────────────────────────────────────────────────────────────────

pub(crate) fn list_checkpoints(core: &mut Core, records: &[TurnRecord]) -> CommandOutcome {
    let prompted = core.thread.prompted_turns();
    let turns: Vec<(&PromptedTurn, Option<&TurnRecord>)> =
        prompted.iter().map(|turn| (turn, records.iter().find(|record| record.turn == turn.start))).collect();
    if turns.is_empty() {
        let text = "There is no turn yet.";
        return CommandOutcome::text(text).with("checkpoints", json!({ "text": text, "turns": [] }));
    }
    let mut out = "Turns and the files that they changed, newest first:\n\n".to_owned();
    let shown = core.shown_path();
    for (turn, record) in turns.iter().rev().take(TURNS_SHOWN_MAX) {
        let gone = if turn.is_taken_back { " (not in the conversation any more)" } else { "" };
        let _ = writeln!(out, "- {} {}{gone}: {}", turn.prompt, quoted(&turn.text), summary(*record));
        for touched in record.iter().flat_map(|record| record.changed()).take(FILES_SHOWN_MAX) {
            let _ = writeln!(
                out,
                "  - {}: {}{}",
                shown(&touched.path),
                touched.verb(),
                touched
                    .lines
                    .map(|lines| format!(", +{} −{}", lines.added, lines.removed))
                    .unwrap_or_default()
            );
        }
        let count = record.map_or(0, |record| record.changed().count());
        if count > FILES_SHOWN_MAX {
            let _ = writeln!(out, "  - and {} more", count - FILES_SHOWN_MAX);
        }
        for beyond in record.iter().flat_map(|record| &record.beyond) {
            let _ = writeln!(out, "   - incomplete: {beyond}");
        }
    }
    older(&mut out, turns.len(), TURNS_SHOWN_MAX);
    out.push_str(
        "\n/rewind with an entry goes back to before its turn; /rewind dry shows what that would do.",
    );
    let rows: Vec<Value> = turns.iter().rev().map(|(turn, record)| turn_json(turn, *record)).collect();
    let data = json!({ "text": out, "turns": rows });
    drop(shown);
    CommandOutcome::text(out).with("checkpoints", data)
}

fn summary(record: Option<&TurnRecord>) -> String {
    let Some(record) = record.filter(|record| record.changed().next().is_some()) else {
        return "no files".to_owned();
    };
    let files = record.changed().filter(|touched| !touched.is_directory()).count();
    let lines = record.changed().filter_map(|touched| touched.lines);
    let (added, removed) =
        lines.fold((0, 0), |(added, removed), lines| (added + lines.added, removed + lines.removed));
    let back = if record.taken_back.is_some() { ", rewound" } else { "" };
    let files = counted(files, "file");
    format!("{files}, +{added} −{removed}{back}")
}

fn turn_json(turn: &PromptedTurn, record: Option<&TurnRecord>) -> Value {
    let files: Vec<Value> = record
        .iter()
        .flat_map(|record| record.changed())
        .map(|touched| {
            json!({
                "path": touched.path.to_string_lossy(), "change": touched.verb(),
                "added": touched.lines.map(|lines| lines.added), "removed": touched.lines.map(|lines| lines.removed),
            })
        })
        .collect();
    json!({
        "turn": turn.start.to_string(), "prompt": turn.prompt.to_string(), "text": line_of(&turn.text, PROMPT_CHARS),
        "in_conversation": !turn.is_taken_back, "files": files,
        "taken_back": record.is_some_and(|record| record.taken_back.is_some()),
        "beyond": record.map(|record| record.beyond.clone()).unwrap_or_default(),
    })
}

/// Rewinds the files, or previews it.
fn act(
    checkpoints: &Checkpoints,
    asked: RewindTarget,
    request: RewindRequest,
) -> Result<RewindReport, CheckpointError> {
    match request.dry {
        true => checkpoints.preview(asked, request.force),
        false => checkpoints.rewind(asked, request.force),
    }
}

/// The newest rewinds in effect: of files and of the conversation.
struct Rewinds {
    files: Option<Seq>,
    conversation: Option<Seq>,
}

fn rewinds(thread: &Thread) -> Rewinds {
    let mut files = Vec::new();
    let mut conversation = None;
    for entry in thread.entries() {
        match &entry.change {
            Change::FilesRewound { undo: false, .. } => files.push(entry.seq),
            Change::FilesRewound { undo: true, .. } => drop(files.pop()),
            Change::Rewound { .. } if !thread.is_undone(entry.seq) && !thread.is_taken_back(entry.seq) => {
                conversation = Some(entry.seq);
            }
            _ => {}
        }
    }
    Rewinds { files: files.pop(), conversation }
}

fn quoted(text: &str) -> String {
    format!("“{}”", line_of(text, PROMPT_CHARS))
}

fn sentence(text: &str) -> String {
    let text = text.trim_end().trim_end_matches('.');
    format!("{text}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_a_rewind_is_read_from_its_words() {
        let plain =
            RewindRequest { entry: None, scope: RewindParts::Both, dry: false, force: false, undo: false };
        for (typed, wanted) in [
            ("", plain),
            ("e12", RewindRequest { entry: Some(Seq(12)), ..plain }),
            (
                "files E7 dry",
                RewindRequest { entry: Some(Seq(7)), scope: RewindParts::Files, dry: true, ..plain },
            ),
            ("conversation", RewindRequest { scope: RewindParts::Conversation, ..plain }),
            ("undo --force", RewindRequest { undo: true, force: true, ..plain }),
        ] {
            assert_eq!(parse(typed), Ok(wanted), "{typed:?}");
        }
        for typed in ["everything", "12", "undo e4", "e4.1"] {
            assert!(
                parse(typed).expect_err("it can't be meant").to_string().contains("/checkpoints"),
                "{typed}"
            );
        }
    }
}
