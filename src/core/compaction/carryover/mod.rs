//! The part of a compaction message that needs no model: tables computed from the log, and the agent's last messages.
//!
//! Every part is derived from structure: roles, tool calls with their inputs, exit codes, the plan. No part
//! searches prose for phrases, because prose does not state reliably what is open, done or decided. Quoted
//! text may be cut, with a mark at the cut, but is never edited.
//!
//! ```text
//!  log ─► History ─┬─► plan, commands, files, names, git, newest calls and results   (each part guarded)
//!                  └─► the agent's messages, in the room that the others leave
//! ```
//!
//! The contents of a conversation must never make a compaction fail. Each part is therefore guarded: a panic loses only
//! that part, and the message lists the parts that are missing. `History` is limited, so the parts take a limited time.

mod commands;
mod files;
mod git;
mod history;
mod newest;
mod plan;
mod quote;
mod script;
mod skills;
mod status;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::input::{CompactionInput, SummaryReader};
use epitome_thread::{Seq, Thread};
use epitome_tokens::Ruler;
use history::ConversationHistory;
use serde::Serialize;
use std::collections::HashSet;

/// Minimum room in bytes; less is too little to carry over anything useful.
const BYTES_MIN: usize = 300;

/// Upper bound for the average size of a token in bytes; the first guess when fitting text to a number of
/// tokens.
const BYTES_PER_TOKEN: u64 = 5;

/// Sizes of a token in bytes that are tried in turn to use what is spare.
const SPARE_BYTES: [usize; 2] = [4, 2];

/// Attempts to fit the text to a number of tokens. Each attempt measures it and shortens it proportionally.
const FIT_ATTEMPTS_MAX: usize = 5;

/// The tag around the tables in the compaction message.
pub(super) const TAG: &str = "carried_over";

/// The tables of a conversation, computed once and rendered for any amount of room.
pub(super) struct Carryover<'a> {
    parts: Vec<CarryoverPart<'a>>,
    /// Headings of the parts that could not be computed.
    failed: Vec<&'static str>,
}

/// A part of the message: its heading, its share of the room and its renderer.
struct CarryoverPart<'a> {
    heading: &'static str,
    share: PartShare,
    render: Render<'a>,
}

/// Renders a part within a number of bytes; empty if there is nothing to show.
type Render<'a> = Box<dyn Fn(usize) -> String + 'a>;

type Compute = for<'a> fn(&ConversationHistory<'a>) -> Render<'a>;

/// The parts in the order of the message, each with its share of the room. Unused room is left to the last one, the
/// agent's messages.
const PARTS: [(&str, PartShare, Compute); 12] = [
    ("Plan", PartShare::Of(18, 0), plan::compute),
    ("Skills whose instructions left the view, newest first", PartShare::Of(2, 200), skills::read),
    ("Commands that failed when last run, newest first", PartShare::Of(8, 400), commands::failed),
    ("Files, newest first", PartShare::Of(20, 2000), files::touched),
    ("Files named in results", PartShare::Of(5, 0), files::mentioned),
    ("Names defined in edits", PartShare::Of(8, 0), files::defined),
    ("Other commands, most frequent first", PartShare::Of(7, 0), commands::others),
    ("Version control, newest first", PartShare::Of(5, 400), git::compute),
    ("Newest calls that left the view", PartShare::Of(10, 0), newest::calls),
    ("Newest results that left the view", PartShare::Of(20, 0), newest::results),
    ("Lines of older results", PartShare::Spare(6), newest::older_results),
    ("What the agent said, newest last", PartShare::Of(100, 0), newest::words),
];

/// A part's share of the room, in percent.
#[derive(Clone, Copy)]
enum PartShare {
    /// A percentage, but at least this many bytes, so that short lists are shown even if there is little room.
    Of(usize, usize),
    /// The room that is still free with all other parts, up to a percentage. So it costs them nothing.
    Spare(usize),
}

impl PartShare {
    /// The share in bytes for a part, given the total room, what is left of it, and what no other part needs.
    fn bytes(self, room: usize, left: usize, spare: usize) -> usize {
        match self {
            PartShare::Of(percent, bytes_min) => (room * percent / 100).max(bytes_min).min(left),
            PartShare::Spare(percent) => spare.min(room * percent / 100),
        }
    }
}

impl<'a> Carryover<'a> {
    /// Computes all parts for a compaction that keeps the entries `kept` in the view.
    pub fn compute(input: &CompactionInput<'a>, kept: &HashSet<Seq>) -> Carryover<'a> {
        let mut carryover = Carryover { parts: Vec::new(), failed: Vec::new() };
        let Some(history) = guarded(|| ConversationHistory::collect(input.thread, kept, input.reader)) else {
            carryover.failed.extend(PARTS.map(|(heading, ..)| heading));
            return carryover;
        };
        for (heading, share, compute) in PARTS {
            match guarded(|| compute(&history)) {
                Some(render) => carryover.parts.push(CarryoverPart { heading, share, render }),
                None => carryover.failed.push(heading),
            }
        }
        carryover
    }

    /// Renders the parts within `tokens_max`; empty if nothing fits.
    pub fn within(&self, ruler: &Ruler, tokens_max: u64) -> String {
        let mut bytes = usize::try_from(tokens_max.saturating_mul(BYTES_PER_TOKEN)).unwrap_or(usize::MAX);
        for _ in 0..FIT_ATTEMPTS_MAX {
            let text = self.text(bytes, 0);
            let tokens = ruler.text(&text);
            if tokens <= tokens_max {
                let spare = usize::try_from(tokens_max - tokens).unwrap_or(usize::MAX);
                let mut more =
                    SPARE_BYTES.into_iter().map(|size| self.text(bytes, spare.saturating_mul(size)));
                return more.find(|more| ruler.text(more) <= tokens_max).unwrap_or(text);
            }
            let exact = u128::from(tokens_max) * text.len() as u128 / u128::from(tokens.max(1));
            // Slightly less, because cut marks take room as well.
            bytes = usize::try_from(exact * 97 / 100).unwrap_or(0);
        }
        String::new()
    }

    fn text(&self, bytes_max: usize, spare: usize) -> String {
        if bytes_max < BYTES_MIN {
            return String::new();
        }
        let mut failed = self.failed.clone();
        let mut texts: Vec<String> = Vec::new();
        let mut left = bytes_max;
        for CarryoverPart { heading, share, render } in &self.parts {
            // Includes the heading and the blank line before it.
            let room = share.bytes(bytes_max, left, spare).checked_sub(heading.len() + "## \n\n".len());
            let Some(room) = room else { continue };
            match guarded(|| render(room)) {
                Some(text) if text.is_empty() => {}
                Some(text) => {
                    let text = format!("## {heading}\n{text}");
                    if !matches!(share, PartShare::Spare(_)) {
                        left = left.saturating_sub(text.len() + 1);
                    }
                    texts.push(text);
                }
                None => failed.push(heading),
            }
        }
        if !failed.is_empty() {
            texts.push(format!("(Could not be computed: {}.)", failed.join("; ")));
        }
        texts.join("\n\n")
    }
}

/// Kinds of content that are compared, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LostKind {
    /// A message of the user, including messages that refuse a call or answer a question.
    Said,
    /// A file that was changed.
    File,
    /// A command that failed in its last run.
    Failing,
    /// A step of the plan that is not done.
    Step,
}

impl LostKind {
    pub const ALL: [LostKind; 4] = [LostKind::Said, LostKind::File, LostKind::Failing, LostKind::Step];
}

/// The changed files, failing commands and open steps that a summary should mention, with their entries.
pub(super) type Facts = Vec<(LostKind, Option<Seq>, String)>;

/// The facts of a complete conversation. Parts that cannot be computed are left out.
pub(super) fn facts(thread: &Thread) -> Facts {
    let collect = || ConversationHistory::collect(thread, &HashSet::new(), &SummaryReader::Session);
    let Some(history) = guarded(collect) else { return Facts::new() };
    let parts = [files::changed_files, commands::failing_commands, plan::open_steps];
    parts.into_iter().filter_map(|part| guarded(|| part(&history))).flatten().collect()
}

/// Runs a computation that must not make the compaction fail. `None` if it panicked.
fn guarded<T>(compute: impl FnOnce() -> T) -> Option<T> {
    let computed = catch_unwind(AssertUnwindSafe(compute));
    computed.inspect_err(|_| tracing::error!("a part of the carried-over message panicked")).ok()
}

#[cfg(test)]
mod tests;
