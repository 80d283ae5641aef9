//! `/why`: explains the changes of a conversation, their authors and reasons, from its log. Pure.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use epitome_thread::text::{sizes, tokens as short, verdict};
use epitome_thread::{
    Change, CompactionStats, EarlierWords, Entry, EntryVisibility, HookRun, Mask, Origin, PINNED_BY_PERSON,
    PartId, PartSize, Seq, Thread, ToolCall, Trigger, ViewEdit, Withheld, describe,
};

/// Maximum number of items in an answer.
const SHOWN_MAX: usize = 15;
/// Remarks shown per hook run, unless the question is about its entry or its hook.
const REMARKS_SHOWN_MAX: usize = 2;
/// Edits shown per change.
const EDITS_SHOWN_MAX: usize = 10;
/// Files named per change.
const FILES_NAMED_MAX: usize = 10;
/// Entries named per line.
const ENTRIES_NAMED_MAX: usize = 20;
/// Maximum characters of a line; the log has the full text.
const LINE_CHARS_MAX: usize = 300;
/// Digits of a digest that are shown: enough to distinguish two versions.
const DIGEST_SHOWN: usize = 12;

/// Explains `asked`: an entry (`e12`) or a hook, or the newest changes if it is empty.
pub fn text(thread: &Thread, asked: &str) -> String {
    if asked.is_empty() {
        return newest(thread);
    }
    let hooks = hooks(thread);
    match asked.parse::<PartId>() {
        Ok(part) if !hooks.contains(asked) => explain_entry(thread, part.entry),
        Ok(_) | Err(()) => explain_hook(thread, asked, &hooks),
    }
}

/// Joins a text into one line of bounded length.
pub(super) fn line(text: &str) -> String {
    line_of(text, LINE_CHARS_MAX)
}

/// Joins a text into one line of at most `chars_max` characters.
pub(super) fn line_of(text: &str, chars_max: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

// ── The newest ─────────────────────────────────────────────────────────────────────────────────────

fn newest(thread: &Thread) -> String {
    let mut out = String::new();
    let mut shown = 0;
    for entry in thread.entries().iter().rev() {
        let item = match &entry.change {
            Change::Hooked { event, runs } => hooked(entry, event, runs, REMARKS_SHOWN_MAX),
            change => what_was_done(thread, change)
                .map(|done| format!("- {}: {done}{}\n", entry.seq, taken_back(thread, entry.seq)))
                .unwrap_or_default(),
        };
        if item.is_empty() {
            continue;
        }
        if shown == SHOWN_MAX {
            let _ =
                writeln!(out, "- older: `epitome hooks log {}`, and /why with an entry", thread.session());
            break;
        }
        shown += 1;
        out.push_str(&item);
    }
    if out.is_empty() {
        return "Nothing to explain: nothing was compacted, and no hook did or asked for anything."
            .to_owned();
    }
    format!("Newest first:\n\n{out}\n/why with an entry or a hook's name shows more.")
}

/// A description of what a change did; `None` if it needs no explanation. Hook runs are handled by `hooked`.
pub fn what_was_done(thread: &Thread, change: &Change) -> Option<String> {
    match change {
        Change::Compacted { through, trigger, focus, model, account, .. } => {
            let mut done = format!("compacted up to {through}, {}; {}", sizes(change)?, asked_by(*trigger));
            if let Some(focus) = focus {
                let _ = write!(done, ", with the focus: {}", line(focus));
            }
            match model {
                Some(model) => {
                    let _ = write!(done, "; summary by {model}");
                }
                None => match &account.fallback {
                    Some(why) => {
                        let _ = write!(done, "; no model's summary: {}", line(why).trim_end_matches('.'));
                    }
                    None => done.push_str("; no model was called for the summary"),
                },
            }
            Some(done)
        }
        Change::Mutated { through, messages, by, .. } => Some(format!(
            "{by} replaced the history up to {through} by {}, {}",
            counted(messages.len(), "message"),
            sizes(change)?
        )),
        Change::Edited { by, edits } if by == PINNED_BY_PERSON => {
            let described: Vec<String> = edits.iter().take(EDITS_SHOWN_MAX).map(pinning).collect();
            Some(format!("you {}", described.join(", ")))
        }
        Change::Edited { by, edits } => {
            let mut described: Vec<String> = edits.iter().take(EDITS_SHOWN_MAX).map(edit).collect();
            if edits.len() > EDITS_SHOWN_MAX {
                described.push(format!("and {} more", edits.len() - EDITS_SHOWN_MAX));
            }
            Some(format!("{by} edited the history: {}", described.join(", ")))
        }
        Change::CallChanged { call, by, .. } => {
            let name = thread.call(call).map_or("a tool", |call| call.name.as_str());
            Some(format!("{by} changed the input of a call of {name}"))
        }
        Change::Withheld { message, why: Withheld::Blocked { hook, reason }, .. } => Some(format!(
            "{hook} stopped the prompt {:?}: {}",
            line(&message.text()),
            if reason.trim().is_empty() { "it gave no reason".to_owned() } else { line(reason) }
        )),
        Change::Rewound { to } => {
            let turn = thread.prompted_turns().into_iter().find(|turn| turn.start == *to);
            let prompt = turn.map_or(*to, |turn| turn.prompt);
            Some(format!("you rewound the conversation to before {prompt} (/rewind)"))
        }
        Change::FilesRewound { turn, undo, files, more, left, .. } => {
            let count = counted(files.len() + *more as usize, "file");
            let named: Vec<String> =
                files.iter().take(FILES_NAMED_MAX).map(|file| file.display().to_string()).collect();
            let rest = files.len() + *more as usize - named.len();
            let mut done = match undo {
                false => format!("you restored {count} as before the turn at {turn} (/rewind): "),
                true => format!("you undid a rewind of files (/rewind undo), {count}: "),
            };
            done.push_str(&line(&named.join(", ")));
            if rest > 0 {
                let _ = write!(done, " and {rest} more");
            }
            if *left > 0 {
                let _ = write!(done, "; {} left as they were", counted(*left as usize, "file"));
            }
            Some(done)
        }
        Change::Forked { from, through } => {
            Some(format!("everything before is from {from}, up to {through}"))
        }
        Change::Undone { entry } => Some(format!("you undid {entry} (/undo)")),
        Change::Redone { entry } => Some(format!("you redid {entry} (/redo)")),
        Change::Pruned { masks, trigger, .. } => Some(format!(
            "shortened {}, {}; {}",
            counted(masks.len(), "old entry"),
            sizes(change)?,
            // Some prunes make room, others only have to pay for their own cost.
            if *trigger == Trigger::Threshold { "to save room" } else { asked_by(*trigger) }
        )),
        _ => None,
    }
}

fn asked_by(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Manual => "you asked for it",
        // It rejected a request, or cut off a reply.
        Trigger::Overflow => "the provider said that the window was full",
        Trigger::Threshold => "the window filled up",
        Trigger::Must => "the next request might not have fit",
        Trigger::Hook => "a hook asked for it",
    }
}

fn edit(edit: &ViewEdit) -> String {
    match (edit, edit.at()) {
        (ViewEdit::Mask { note, .. }, Some(at)) => format!("mask {at} ({})", line(note)),
        (edit, Some(at)) => format!("{} {at}", edit.op()),
        (edit, None) => edit.op().to_owned(),
    }
}

/// A description of an edit by the user, named after their command.
fn pinning(edit: &ViewEdit) -> String {
    match edit {
        ViewEdit::Pin { at } => format!("pinned {at}"),
        ViewEdit::Unpin { at } => format!("unpinned {at}"),
        ViewEdit::Append { message, .. } => format!("added: {}", line(&message.text())),
        ViewEdit::Mask { .. } | ViewEdit::Drop { .. } | ViewEdit::Replace { .. } => edit.op().to_owned(),
    }
}

fn taken_back(thread: &Thread, seq: Seq) -> &'static str {
    if thread.is_undone(seq) { " (undone since)" } else { "" }
}

fn hooked(entry: &Entry, event: &str, runs: &[HookRun], remarks_max: usize) -> String {
    runs.iter().map(|run| format!("- {}: {}", entry.seq, ran(event, run, remarks_max))).collect()
}

fn ran(event: &str, run: &HookRun, remarks_max: usize) -> String {
    let asked = if run.asked.is_empty() {
        verdict(run.verdict).to_owned()
    } else {
        format!("{}, {}", line(&run.asked), verdict(run.verdict))
    };
    let mut out = format!("{} at {event}: {asked} ({}, {} ms)\n", run.hook, line(&run.end), run.milliseconds);
    for remark in run.remarks.iter().take(remarks_max) {
        let _ = writeln!(out, "  - {}", line(remark));
    }
    if run.remarks.len() > remarks_max {
        let _ = writeln!(out, "  - and {}", counted(run.remarks.len() - remarks_max, "more remark"));
    }
    out
}

// ── One hook ───────────────────────────────────────────────────────────────────────────────────────

fn hooks(thread: &Thread) -> BTreeSet<&str> {
    runs(thread).map(|(_, _, run)| run.hook.as_str()).collect()
}

/// All logged hook runs, newest first.
fn runs(thread: &Thread) -> impl Iterator<Item = (Seq, &str, &HookRun)> {
    let trail = thread.entries().iter().rev().filter_map(|entry| match &entry.change {
        Change::Hooked { event, runs } => Some((entry.seq, event.as_str(), runs)),
        _ => None,
    });
    trail.flat_map(|(seq, event, runs)| runs.iter().rev().map(move |run| (seq, event, run)))
}

fn explain_hook(thread: &Thread, hook: &str, known: &BTreeSet<&str>) -> String {
    let own: Vec<_> = runs(thread).filter(|(_, _, run)| run.hook == hook).collect();
    if own.is_empty() {
        let known = match known.len() {
            0 => "no hook did".to_owned(),
            _ => format!("these did: {}", known.iter().copied().collect::<Vec<_>>().join(", ")),
        };
        return format!(
            "{} did nothing and asked for nothing here; {known}. Entries are named like e12; /hooks lists \
             the hooks.",
            line(hook)
        );
    }
    let mut out = format!("Runs of {hook} that did or asked for something, newest first:\n\n");
    for (seq, event, run) in own.iter().take(SHOWN_MAX) {
        let _ = write!(out, "- {seq}: {}", ran(event, run, usize::MAX));
        if let Some(version) = run.digest.get(..DIGEST_SHOWN) {
            let _ = writeln!(out, "  - its version: {version}");
        }
    }
    older(&mut out, own.len(), SHOWN_MAX);
    out.trim_end().to_owned()
}

// ── One entry ──────────────────────────────────────────────────────────────────────────────────────

fn explain_entry(thread: &Thread, seq: Seq) -> String {
    let entry = usize::try_from(seq.0).ok().and_then(|at| thread.entries().get(at));
    let Some(entry) = entry else {
        return format!("There is no entry {seq}; the newest is e{}.", thread.next_seq().0 - 1);
    };
    let mut out = match &entry.change {
        Change::Hooked { event, runs } => {
            format!("{seq} is the trail of hooks at {event}:\n\n{}", hooked(entry, event, runs, usize::MAX))
        }
        change => match what_was_done(thread, change) {
            Some(done) => format!("{seq}: {done}.\n"),
            None => format!("{seq} is {}\n", what_it_is(change)),
        },
    };
    out.push_str(&decisions(thread, entry));
    if let Some(by) = asker(&entry.change) {
        let asked: String = runs_of_turn(thread, seq)
            .filter(|(_, _, run)| by.is_none_or(|by| run.hook == by) && !run.asked.is_empty())
            .map(|(seq, event, run)| format!("- {seq}: {}", ran(event, run, usize::MAX)))
            .collect();
        if !asked.is_empty() {
            let _ = write!(out, "\nHooks that asked for something in this turn:\n\n{asked}");
        }
    }
    let after: Vec<String> = what_came_of_it(thread, entry);
    if !after.is_empty() {
        let _ = write!(out, "\nWhat happened to it since:\n\n{}\n", after.join("\n"));
    }
    if let Change::Compacted { account, masks, .. } = &entry.change {
        out.push_str(&accounted(account, masks));
    }
    if let Change::Pruned { masks, .. } = &entry.change {
        let _ = write!(out, "\nShortened: {}.\n", named(masks.iter().map(|mask| mask.entry)));
    }
    out.push_str(&now_in_view(thread, entry));
    out.trim_end().to_owned()
}

/// The permission decisions: of an outcome its own, of a reply those of its calls.
fn decisions(thread: &Thread, entry: &Entry) -> String {
    match &entry.change {
        Change::ToolFinished { outcome } => match &outcome.decided {
            Some(decided) => format!("\nPermission: {}.\n", line(&decided.to_string())),
            None => String::new(),
        },
        Change::Replied { message, .. } => {
            let later = || thread.entries().iter().skip(entry.seq.0 as usize + 1);
            let of = |call: &ToolCall| {
                later().find_map(|entry| match &entry.change {
                    Change::ToolFinished { outcome } if outcome.call == call.id => outcome.decided.as_ref(),
                    _ => None,
                })
            };
            let lines = message.calls().filter_map(|call| {
                Some(format!("- {}: {}\n", line(&call.card.title), line(&of(call)?.to_string())))
            });
            let lines: String = lines.take(SHOWN_MAX).collect();
            if lines.is_empty() { lines } else { format!("\nPermission of its calls:\n\n{lines}") }
        }
        _ => String::new(),
    }
}

/// The effect of a compaction on the view.
fn accounted(account: &CompactionStats, masks: &[Mask]) -> String {
    let share = |name: &str, share: PartSize| {
        (share.entries > 0).then(|| {
            format!(
                "- {name}: {}, {} tokens\n",
                counted(share.entries as usize, "entry"),
                short(share.tokens)
            )
        })
    };
    let list = |name: &str, entries: Vec<Seq>| {
        (!entries.is_empty()).then(|| format!("- {name}: {}\n", named(entries.into_iter())))
    };
    let facts = (account.facts > 0)
        .then(|| format!("- computed from the log: {}\n", counted(account.facts as usize, "line")));
    let earlier = account.left_out_earlier.as_deref();
    let parts = [
        share("kept unchanged", account.kept),
        share("shortened", account.masked),
        list("these are shortened", masks.iter().map(|mask| mask.entry).collect()),
        share("covered by the summary", account.summarised),
        list("quoted word for word", account.quoted.clone()),
        list("quoted, shortened", account.shortened.clone()),
        facts,
        list("left out for lack of room", account.left_out.clone()),
        earlier.map(|EarlierWords { through, entries }| {
            format!(
                "- left out as well: {} of the user up to {through}\n",
                counted(*entries as usize, "message")
            )
        }),
        account.fallback.as_ref().map(|why| format!("- no model's summary: {}\n", line(why))),
        account.is_cut_off.then(|| "- the model's summary was cut off at its limit\n".to_owned()),
    ];
    let lines: String = parts.into_iter().flatten().collect();
    if lines.is_empty() { lines } else { format!("\nWhat happened to the view:\n\n{lines}") }
}

/// A list of entries, shortened if there are many.
pub(super) fn named(entries: impl ExactSizeIterator<Item: ToString>) -> String {
    let count = entries.len();
    let mut names: Vec<String> = entries.take(ENTRIES_NAMED_MAX).map(|entry| entry.to_string()).collect();
    if count > ENTRIES_NAMED_MAX {
        names.push(format!("and {} more", count - ENTRIES_NAMED_MAX));
    }
    names.join(", ")
}

/// How the model sees an entry now, which entry changed that, and where to read the full text.
fn now_in_view(thread: &Thread, entry: &Entry) -> String {
    let seq = entry.seq;
    let change = |by: Seq| thread.entries().get(by.0 as usize).map(|by| &by.change);
    let seen = match thread.fate(seq) {
        EntryVisibility::NeverShown => return String::new(),
        EntryVisibility::Whole => return "\nThe model sees it unchanged.".to_owned(),
        EntryVisibility::Changed { by } => match change(by) {
            Some(Change::Pruned { .. } | Change::Compacted { .. }) => {
                format!("The model sees it shortened, since {by}.")
            }
            Some(Change::Edited { by: hook, .. }) => {
                format!("The model sees it as {hook} changed it ({by}).")
            }
            Some(Change::ThinkingDropped { .. }) => {
                format!("The model sees it without its thinking, since {by}.")
            }
            Some(_) | None => format!("The model sees it changed, since {by}."),
        },
        EntryVisibility::Left { by } => match change(by) {
            Some(Change::Compacted { account, .. }) if account.quoted.contains(&seq) => {
                format!("{by} quotes it word for word; the entry itself left the view.")
            }
            Some(Change::Compacted { account, .. }) if account.shortened.contains(&seq) => {
                format!("{by} quotes a part of it, or only names its files; the entry itself left the view.")
            }
            Some(Change::Compacted { .. }) => format!("The model no longer sees it: {by} summarised it."),
            Some(Change::Mutated { by: hook, .. }) => {
                format!("The model no longer sees it: {hook} replaced the history ({by}).")
            }
            Some(Change::Edited { by: hook, .. }) => {
                format!("The model no longer sees it: {hook} dropped it ({by}).")
            }
            Some(_) | None => format!("The model no longer sees it, since {by}."),
        },
    };
    format!("\n{seen} The log keeps all of it: `epitome sessions show {} --full`.", thread.session())
}

fn what_it_is(change: &Change) -> String {
    match change {
        Change::Said { message, origin } => {
            let who = match origin {
                Origin::Person | Origin::Queue { .. } => "your message".to_owned(),
                Origin::Recipe { typed, .. } => format!("the prompt of {}", line(typed)),
                Origin::Hook { hook } => format!("a message of {hook}"),
                Origin::Context { by } => format!("context from {by}"),
                Origin::Instructions { path } => format!("the instructions in {}", path.display()),
            };
            format!("{who}: {}", line(&message.text()))
        }
        Change::Replied { message, model, .. } => {
            let calls: Vec<&str> = message.calls().map(|call: &ToolCall| call.name.as_str()).collect();
            let calls = match calls.len() {
                0 => String::new(),
                _ => format!(" with calls of {}", calls.join(", ")),
            };
            format!("a reply of {model}{calls}: {}", line(&message.text()))
        }
        Change::ToolFinished { outcome } => {
            format!("the result of a call ({}): {}", outcome.status.id(), line(&outcome.model_text()))
        }
        Change::Commanded { typed, .. } => format!("a command of yours: {}", line(typed)),
        other => match describe(other).line {
            Some(text) => format!("a notice for you only: {}", line(&text)),
            None => format!("an entry of the kind {}", other.kind()),
        },
    }
}

/// The hook that asked for a change: `Some(Some(name))`, `Some(None)` if unnamed, `None` if no hook did.
fn asker(change: &Change) -> Option<Option<&str>> {
    match change {
        Change::Mutated { by, .. } | Change::Edited { by, .. } | Change::CallChanged { by, .. } => {
            Some(Some(by))
        }
        Change::Withheld { why: Withheld::Blocked { hook, .. }, .. } => Some(Some(hook)),
        Change::Compacted { trigger: Trigger::Hook, .. } => Some(None),
        _ => None,
    }
}

/// The hook runs of the turn that an entry belongs to.
fn runs_of_turn(thread: &Thread, seq: Seq) -> impl Iterator<Item = (Seq, &str, &HookRun)> {
    let ends = |entry: &&std::sync::Arc<Entry>| matches!(entry.change, Change::TurnEnded { .. });
    let ends = thread.entries().iter().filter(ends).map(|entry| entry.seq);
    let from = ends.clone().filter(|end| *end < seq).max().unwrap_or_default();
    let to = ends.filter(|end| *end >= seq).min().unwrap_or(thread.next_seq());
    runs(thread).filter(move |(at, _, _)| *at >= from && *at <= to)
}

/// The effects of later entries on this one.
fn what_came_of_it(thread: &Thread, entry: &Entry) -> Vec<String> {
    let seq = entry.seq;
    let mut gone = thread.text_of(PartId { entry: seq, part: None }).is_none();
    let mut effects = Vec::new();
    for later in thread.entries().iter().skip(seq.0 as usize + 1) {
        let touches = match &later.change {
            // Once it has left the view, later layers don't affect it.
            Change::Compacted { masks, .. } if masks.iter().any(|mask| mask.entry == seq) => true,
            Change::Compacted { through, .. } | Change::Mutated { through, .. } => {
                let replaced = !gone && *through >= seq;
                gone |= replaced && !thread.is_undone(later.seq);
                replaced
            }
            Change::Edited { edits, .. } => {
                edits.iter().any(|edit| edit.at().is_some_and(|at| at.entry == seq))
            }
            Change::Pruned { masks, .. } => masks.iter().any(|mask| mask.entry == seq),
            Change::CallChanged { call, .. } => match &entry.change {
                Change::Replied { message, .. } => message.calls().any(|made| made.id == *call),
                _ => false,
            },
            Change::Undone { entry } | Change::Redone { entry } => *entry == seq,
            Change::Rewound { to } => *to <= seq,
            _ => false,
        };
        if touches && let Some(done) = what_was_done(thread, &later.change) {
            effects.push(format!("- {}: {done}{}", later.seq, taken_back(thread, later.seq)));
        }
        if effects.len() == SHOWN_MAX {
            break;
        }
    }
    effects
}

/// A number with its noun in singular or plural.
pub(crate) fn counted(count: usize, what: &str) -> String {
    match (count, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
        (_, None) => format!("{count} {what}s"),
    }
}

/// Appends the last line of a truncated list, newest first.
pub(super) fn older(out: &mut String, count: usize, shown_max: usize) {
    if count > shown_max {
        let _ = writeln!(out, "- older: {}", count - shown_max);
    }
}

/// Appends the last line of a truncated list.
pub(super) fn more(out: &mut String, count: usize, shown_max: usize) {
    if count > shown_max {
        let _ = writeln!(out, "- and {} more", count - shown_max);
    }
}

#[cfg(test)]
#[path = "why_tests.rs"]
pub(super) mod tests;
