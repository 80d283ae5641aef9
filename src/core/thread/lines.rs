//! One-line texts for the parts of a thread, shared by the command line, exports and editors.

use super::titles::plain_title;
use super::{
    CallDisplay, Change, CompactionStats, ContextSizes, Decider, HookRunResult, Message, OutcomeStatus,
    PINNED_BY_PERSON, PermissionChoice, RecordedDecision, ReplyCut, StopReason, ToolCall, ToolKind,
    ToolOutcome, Trigger, Usage, ViewEdit, Withheld,
};

/// The follow-up that a hook requested.
pub fn follow_up(hook: &str, message: &Message) -> String {
    format!("↻ {hook}: {}", message.text())
}

/// A pruning with its numbers: usually old outcomes, but also a message larger than the window.
pub(super) fn pruned(entries: usize, sizes: &str) -> String {
    match entries {
        1 => format!("Shortened 1 entry: {sizes}. The full text is kept; /undo restores it."),
        many => format!("Shortened {many} entries: {sizes}. The full texts are kept; /undo restores them."),
    }
}

/// A compaction with its numbers, and how to undo it.
pub(super) fn compaction(trigger: Trigger, sizes: &str, account: &CompactionStats) -> String {
    let count = |count: usize, one: &str, many: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {many}")),
    };
    let details = [
        count(account.summarised.entries as usize, "entry became one message", "entries became one message"),
        count(account.quoted.len(), "entry word for word", "entries word for word"),
        count(account.shortened.len(), "quote shortened", "quotes shortened"),
        count(account.facts as usize, "line from the log", "lines from the log"),
    ];
    let shortened = count(account.masked.entries as usize, "entry shortened", "entries shortened");
    let left_out =
        count(account.left_out_count(), "entry only found by recall", "entries only found by recall");
    let details = details.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let details = [Some(details).filter(|details| !details.is_empty()), shortened, left_out];
    let details = details.into_iter().flatten().collect::<Vec<_>>().join("; ");
    let details = if details.is_empty() { details } else { format!(" ({details})") };
    let fallback = match &account.fallback {
        None if account.is_cut_off => " The model's summary was cut off at its limit.".to_owned(),
        Some(why) => {
            format!(
                " No model could write a summary ({}); the tables computed from the log replace it.",
                bare(why)
            )
        }
        None => String::new(),
    };
    let called = compacted(trigger);
    format!("{called}: {sizes}{details}.{fallback} /undo undoes it.")
}

/// A sentence without its full stop, for use within another one.
fn bare(sentence: &str) -> &str {
    sentence.trim().trim_end_matches('.')
}

/// A compaction's description by its trigger.
fn compacted(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Manual | Trigger::Overflow => "Compacted",
        Trigger::Threshold | Trigger::Must => "Compacted, because the window filled up",
        Trigger::Hook => "Compacted, because a hook asked for it",
    }
}

/// Why a prompt did not enter the view; `None` if the user already knows.
pub fn withheld(why: &Withheld) -> Option<String> {
    match why {
        Withheld::Blocked { hook, reason } if reason.trim().is_empty() => {
            Some(format!("The hook {hook} stopped this prompt."))
        }
        Withheld::Blocked { reason, .. } => Some(reason.clone()),
        Withheld::Cancelled => None,
    }
}

/// The result of a hook's run.
pub fn verdict(verdict: HookRunResult) -> &'static str {
    match verdict {
        HookRunResult::Nothing => "did nothing",
        HookRunResult::Done => "done",
        HookRunResult::Refused => "refused",
        HookRunResult::Failed => "failed",
        HookRunResult::Skipped => "not run",
    }
}

/// The machine-readable name of a trigger.
pub fn trigger(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Manual => "manual",
        Trigger::Overflow => "overflow",
        Trigger::Threshold => "threshold",
        Trigger::Hook => "hook",
        Trigger::Must => "must",
    }
}

/// The parts that the user pinned or unpinned.
fn pinned_by_person(edits: &[ViewEdit]) -> String {
    let names = |wanted: fn(&ViewEdit) -> bool| {
        let named = edits.iter().filter(|edit| wanted(edit)).filter_map(ViewEdit::at);
        named.map(|at| at.to_string()).collect::<Vec<_>>().join(", ")
    };
    let unpinned = names(|edit| matches!(edit, ViewEdit::Unpin { .. }));
    if !unpinned.is_empty() {
        return format!("No longer pinned: {unpinned}.");
    }
    let pinned = names(|edit| matches!(edit, ViewEdit::Pin { .. }));
    let suffix = if edits.iter().all(ViewEdit::only_pins) { "" } else { ", and shown to the model" };
    format!("Pinned{suffix}: {pinned}. Every compaction keeps it unchanged; /unpin {pinned} unpins it.")
}

/// The number of edits of each kind.
pub(super) fn edited(by: &str, edits: &[ViewEdit]) -> String {
    if by == PINNED_BY_PERSON {
        return pinned_by_person(edits);
    }
    let count = |op: fn(&ViewEdit) -> bool, word: &str| {
        let count = edits.iter().filter(|edit| op(edit)).count();
        (count > 0).then(|| format!("{count} {word}"))
    };
    let counts = [
        count(|edit| matches!(edit, ViewEdit::Pin { .. }), "pinned"),
        count(|edit| matches!(edit, ViewEdit::Unpin { .. }), "unpinned"),
        count(|edit| matches!(edit, ViewEdit::Mask { .. }), "masked"),
        count(|edit| matches!(edit, ViewEdit::Drop { .. }), "dropped"),
        count(|edit| matches!(edit, ViewEdit::Replace { .. }), "replaced"),
        count(|edit| matches!(edit, ViewEdit::Append { .. }), "appended"),
    ];
    let counts: Vec<String> = counts.into_iter().flatten().collect();
    let undo = if edits.iter().all(ViewEdit::only_pins) { "" } else { "; /undo undoes it" };
    format!("History edited by {by}: {}{undo}.", counts.join(", "))
}

/// Why a turn ended; `None` if it ended normally.
pub fn ending(reason: StopReason) -> Option<&'static str> {
    match reason {
        StopReason::EndTurn => None,
        StopReason::MaxTokens => Some("The model reached its output limit."),
        StopReason::MaxRounds => Some("The turn reached its limit of model calls."),
        StopReason::Refusal => Some("The model declined."),
        StopReason::Cancelled => Some("Cancelled."),
        StopReason::Failed => Some("The turn failed."),
        StopReason::Interrupted => Some("Interrupted: Epitome ended in the middle of this turn."),
    }
}

/// Why a reply ended early.
pub fn cut_words(cut: &ReplyCut) -> String {
    match cut {
        ReplyCut::MaxTokens => "[cut at the model's output limit]".to_owned(),
        ReplyCut::Refused { reason } if reason.is_empty() => "[the model declined]".to_owned(),
        ReplyCut::Refused { reason } => format!("[the model declined: {reason}]"),
        ReplyCut::Cancelled => "[cancelled here]".to_owned(),
        ReplyCut::WindowFull => "[cut here: the model's window was full]".to_owned(),
        ReplyCut::Filtered { reason } => format!("[withheld by the provider's filter: {reason}]"),
        ReplyCut::Other { reason } => format!("[the model stopped: {reason}]"),
        ReplyCut::Broken { reason } => format!("[broken off: {reason}]"),
    }
}

/// How a compaction, a pruning or a mutation changed the size of the context; `None` for any other change.
pub fn sizes(change: &Change) -> Option<String> {
    let ContextSizes { before, after, window } = change.context_sizes()?;
    Some(match window {
        Some(window) => context(before, after, window),
        None => format!("{} → {} tokens", tokens(before), tokens(after)),
    })
}

/// A change in context size within a window: `context 21.3k → 9.8k of 200k`.
pub fn context(before: u64, after: u64, window: u64) -> String {
    format!("context {} → {} of {}", tokens(before), tokens(after), round(window))
}

/// The size of a window for display: `8.2k`, `200k`, `1M`.
pub fn round(window: u64) -> String {
    tokens(window).replace(".0", "")
}

/// A token count for display: `950`, `12.4k`, `1.2M`.
pub fn tokens(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..999_950 => format!("{:.1}k", count as f64 / 1e3),
        _ => format!("{:.1}M", count as f64 / 1e6),
    }
}

/// How long ago a time was, in the largest unit that fits.
pub fn ago(seconds: i64) -> String {
    let (count, unit) = match seconds {
        ..60 => return "just now".to_owned(),
        60..3_600 => (seconds / 60, "minute"),
        3_600..86_400 => (seconds / 3_600, "hour"),
        86_400..2_592_000 => (seconds / 86_400, "day"),
        2_592_000..31_536_000 => (seconds / 2_592_000, "month"),
        _ => (seconds / 31_536_000, "year"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural} ago")
}

/// Token usage for display, with the cost in dollars if known:
/// `12.4k tokens in (85 % from the cache), 1.2k out`.
pub fn spent(usage: &Usage, dollars: Option<f64>) -> String {
    let mut out = format!("{} tokens in", tokens(usage.input));
    if let Some(percent) = (usage.cache_read * 100).checked_div(usage.input) {
        out.push_str(&format!(" ({percent} % from the cache)"));
    }
    out.push_str(&format!(", {} out", tokens(usage.output)));
    if let Some(dollars) = dollars {
        out.push_str(&format!(", ${dollars:.4}"));
    }
    out
}

/// US dollars as a number for programs, to a millionth: sums of prices have digits that mean nothing.
pub fn rounded_dollars(dollars: f64) -> f64 {
    (dollars * 1e6).round() / 1e6
}

/// The text for the user, in place of the text for the model, if the user decided against the call.
pub fn refused_by_user(outcome: &ToolOutcome) -> Option<&'static str> {
    match (outcome.status, &outcome.decided) {
        (
            OutcomeStatus::Denied,
            Some(RecordedDecision { allowed: false, by: Decider::Person { answer } }),
        ) => Some(match answer {
            PermissionChoice::TooLate => "Not run: the files changed while you decided.",
            PermissionChoice::Dismissed => "Not run: the question was closed without an answer.",
            PermissionChoice::No | PermissionChoice::Once | PermissionChoice::Always => "Refused by you.",
        }),
        _ => None,
    }
}

/// The title of a call, in one line.
pub fn call_title(call: &ToolCall) -> String {
    title(&call.name, &call.card)
}

/// Like `call_title`, without a call: the first line of the display's title, without Markdown. For a command, the
/// tool's name precedes it.
pub fn title(tool: &str, card: &CallDisplay) -> String {
    let title = plain_title(card);
    let mut lines = title.trim().lines();
    let first = lines.next().unwrap_or_default();
    let more = if lines.next().is_some() { " …" } else { "" };
    match (first, card.kind) {
        ("", _) => tool.to_owned(),
        (first, ToolKind::Execute) => format!("{tool} {first}{more}"),
        (first, _) => format!("{first}{more}"),
    }
}
