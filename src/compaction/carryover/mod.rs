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
//! The contents of a conversation must never make a compaction fail. Each part is therefore guarded: a panic
//! or a timeout loses only that part, and the message lists the parts that are missing.

mod commands;
mod files;
mod git;
mod history;
mod newest;
mod plan;
mod quote;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::input::CompactionInput;
use cpu_time::ThreadTime;
use epitome_thread::{Seq, Thread};
use epitome_tokens::Ruler;
use history::ConversationHistory;
use std::collections::HashSet;

pub(super) use history::{is_question, user_reply};

/// CPU time limit for computing a part. All parts together take a few milliseconds for a million tokens.
const PART_TIME_MAX: Duration = Duration::from_millis(500);

/// Minimum room in bytes; less is too little to carry over anything useful.
const BYTES_MIN: usize = 300;

/// Upper bound for the average size of a token in bytes; the first guess when fitting text to a number of
/// tokens.
const BYTES_PER_TOKEN: u64 = 5;

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

/// Computes a part, or reports a timeout.
type Compute = for<'a> fn(&ConversationHistory<'a>, &Deadline) -> Result<Render<'a>, TimedOut>;

/// The parts in the order of the message, each with its share of the room. Unused room is left to the last one, the
/// agent's messages, which have no share.
const PARTS: [(&str, PartShare, Compute); 10] = [
    ("Plan", PartShare::Percent(18), plan::compute),
    ("Commands that failed when last run, newest first", PartShare::State(8, 400), commands::failed),
    ("Files, newest first", PartShare::State(20, 700), files::touched),
    ("Files named in results", PartShare::Growing(5), files::mentioned),
    ("Names defined in edits", PartShare::Percent(8), files::defined),
    ("Other commands, most frequent first", PartShare::Percent(7), commands::others),
    ("Version control, newest first", PartShare::State(5, 400), git::compute),
    ("Newest calls that left the view", PartShare::Growing(8), newest::calls),
    ("Newest results that left the view", PartShare::Growing(20), newest::results),
    ("What the agent said, newest last", PartShare::Rest, newest::words),
];

/// A part's share of the room, in percent.
#[derive(Clone, Copy)]
enum PartShare {
    Percent(usize),
    /// For short status lists: a percentage, but at least this many bytes, so that they are shown even if there is
    /// little room.
    State(usize, usize),
    /// For long quotes and less important lists: a percentage that shrinks proportionally if there is little room.
    Growing(usize),
    /// The room that the other parts leave.
    Rest,
}

/// The room in bytes from which [`PartShare::Growing`] parts get their full percentage.
const GROWN_BYTES: usize = 10_000;

impl PartShare {
    /// The share in bytes for a part, given the total room and what is left of it.
    fn bytes(self, room: usize, left: usize) -> usize {
        let bytes = match self {
            PartShare::Percent(percent) => room * percent / 100,
            PartShare::State(percent, bytes_min) => (room * percent / 100).max(bytes_min),
            PartShare::Growing(percent) => room * percent / 100 * room.min(GROWN_BYTES) / GROWN_BYTES,
            PartShare::Rest => left,
        };
        bytes.min(left)
    }
}

/// The CPU time of this thread by which a part must be finished.
struct Deadline {
    at: Duration,
    /// How often it was checked.
    checks: Cell<u32>,
}

/// Reading the clock is a system call, and a log has a hundred thousand entries.
const CHECKS_PER_CLOCK: u32 = 64;

/// The time limit of a part was exceeded.
struct TimedOut;

impl Deadline {
    fn after(time: Duration) -> Deadline {
        Deadline { at: thread_time() + time, checks: Cell::new(0) }
    }

    /// Called once per call or message.
    fn check(&self) -> Result<(), TimedOut> {
        let checks = self.checks.get();
        self.checks.set(checks.wrapping_add(1));
        let is_over = checks.is_multiple_of(CHECKS_PER_CLOCK) && thread_time() > self.at;
        if is_over { Err(TimedOut) } else { Ok(()) }
    }
}

/// The processor time of this thread. Unlike a clock, it does not advance while a busy machine runs something else.
fn thread_time() -> Duration {
    ThreadTime::now().as_duration()
}

/// Text that fits, and its number of lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CarriedText {
    pub text: String,
    pub lines: u32,
}

impl<'a> Carryover<'a> {
    /// Computes all parts for a compaction that keeps the entries `kept` in the view.
    pub fn compute(input: &CompactionInput<'a>, kept: &HashSet<Seq>) -> Carryover<'a> {
        let mut carryover = Carryover { parts: Vec::new(), failed: Vec::new() };
        let deadline = Deadline::after(PART_TIME_MAX);
        let Some(history) = guarded(|| ConversationHistory::collect(input.thread, kept, &deadline)) else {
            carryover.failed.extend(PARTS.map(|(heading, ..)| heading));
            return carryover;
        };
        for (heading, share, compute) in PARTS {
            match guarded(|| compute(&history, &Deadline::after(PART_TIME_MAX))) {
                Some(render) => carryover.parts.push(CarryoverPart { heading, share, render }),
                None => carryover.failed.push(heading),
            }
        }
        carryover
    }

    /// Renders the parts within `tokens_max`.
    pub fn within(&self, ruler: &Ruler, tokens_max: u64) -> CarriedText {
        let mut bytes = usize::try_from(tokens_max.saturating_mul(BYTES_PER_TOKEN)).unwrap_or(usize::MAX);
        for _ in 0..FIT_ATTEMPTS_MAX {
            let text = self.text(bytes);
            let tokens = ruler.text(&text);
            if tokens <= tokens_max {
                let lines = u32::try_from(text.lines().count()).unwrap_or(u32::MAX);
                return CarriedText { text, lines };
            }
            let exact = u128::from(tokens_max) * text.len() as u128 / u128::from(tokens.max(1));
            // Slightly less, because cut marks take room as well.
            bytes = usize::try_from(exact * 97 / 100).unwrap_or(0);
        }
        CarriedText::default()
    }

    fn text(&self, bytes_max: usize) -> String {
        if bytes_max < BYTES_MIN {
            return String::new();
        }
        let mut failed = self.failed.clone();
        let mut texts: Vec<String> = Vec::new();
        let mut left = bytes_max;
        for CarryoverPart { heading, share, render } in &self.parts {
            // Includes the heading and the blank line before it.
            let room = share.bytes(bytes_max, left).checked_sub(heading.len() + "## \n\n".len());
            let Some(room) = room else { continue };
            match guarded(|| Ok(render(room))) {
                Some(text) if text.is_empty() => {}
                Some(text) => {
                    let text = format!("## {heading}\n{text}");
                    left = left.saturating_sub(text.len() + 1);
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

/// Structural contents of a conversation, oldest first. Parts that cannot be computed are empty.
#[derive(Default)]
pub(super) struct CarryoverFacts {
    pub changed_files: Vec<(Seq, String)>,
    pub failing_commands: Vec<(Seq, String)>,
    pub open_steps: Vec<String>,
}

impl CarryoverFacts {
    /// Collects the facts of a complete conversation.
    pub fn collect(thread: &Thread) -> CarryoverFacts {
        let deadline = || Deadline::after(PART_TIME_MAX);
        let Some(history) = guarded(|| ConversationHistory::collect(thread, &HashSet::new(), &deadline()))
        else {
            return CarryoverFacts::default();
        };
        CarryoverFacts {
            changed_files: guarded(|| files::changed_files(&history, &deadline())).unwrap_or_default(),
            failing_commands: guarded(|| commands::failing_commands(&history, &deadline()))
                .unwrap_or_default(),
            open_steps: guarded(|| plan::open_steps(&history, &deadline())).unwrap_or_default(),
        }
    }
}

/// Runs a computation that must not make the compaction fail. `None` if it panicked or timed out.
fn guarded<T>(compute: impl FnOnce() -> Result<T, TimedOut>) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(compute)) {
        Ok(Ok(value)) => Some(value),
        Ok(Err(TimedOut)) => {
            tracing::warn!("a part of the carried-over message took too long");
            None
        }
        Err(_) => {
            tracing::error!("a part of the carried-over message panicked");
            None
        }
    }
}

#[cfg(test)]
mod tests;
