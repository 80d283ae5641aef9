//! Detects a turn that repeats itself. Pure; the turn decides how to react.
//!
//! A round repeats an earlier one if it has the same calls with the same outcomes. A tool that is polled, or a file
//! that changes, gives another outcome, so such rounds don't count. A model may also alternate between a few calls, so
//! each round is compared with the last `CYCLE_MAX` ones. Rounds whose calls can't run all count as repeats, because a
//! model that invents tools or produces invalid arguments varies them each time.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use epitome_thread::{Change, Entry, EntryLog, Thread, ToolCall, ToolOutcome};

/// Maximum rounds of a cycle that is noticed.
const CYCLE_MAX: u32 = 5;

/// Why a turn that makes no progress is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// The same `cycle` rounds had the same outcomes.
    Same { times: u32, cycle: u32, tool: String },
    /// No call could run.
    Unusable { rounds: u32, tool: String },
    /// Each reply reached the output limit within a call.
    Cut { rounds: u32 },
}

impl Stuck {
    /// The reason and how to continue, for the user.
    pub fn sentence(&self) -> String {
        let what = match self {
            Stuck::Same { times, cycle: 1, tool } => {
                format!("the model called {tool} {times} times in a row with the same result")
            }
            Stuck::Same { times, cycle, tool } => format!(
                "the model made the same {cycle} rounds of calls {times} times in a row with the same results, the last one of {tool}"
            ),
            Stuck::Unusable { rounds, tool } => {
                format!("{rounds} replies in a row had only calls that can't run, the last one of {tool}")
            }
            Stuck::Cut { rounds } => {
                format!("{rounds} replies in a row reached the model's output limit within a call")
            }
        };
        let how = match self {
            Stuck::Same { .. } | Stuck::Unusable { .. } => {
                "Say what to do differently, or \"go on\" to let it continue."
            }
            Stuck::Cut { .. } => {
                "Ask for smaller steps, or raise max_output of the model; \"go on\" lets it continue."
            }
        };
        format!("Stopped: {what}. {how} The limit is max_repeats of the configuration.")
    }

    /// The same as a single word, for machine-readable output.
    pub fn id(&self) -> &'static str {
        match self {
            Stuck::Same { .. } => "same_call",
            Stuck::Unusable { .. } => "unusable_calls",
            Stuck::Cut { .. } => "cut_calls",
        }
    }
}

/// Counts of repeated rounds.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// Digests of the calls and outcomes of each round.
    rounds: Vec<BTreeSet<u64>>,
    unusable: u32,
    cut: u32,
    tool: String,
}

impl Repeats {
    /// Records a round whose outcomes are in the log. `is_cut` if its reply reached the output limit, and
    /// `is_usable` if any of its calls could run.
    pub(super) fn round(&mut self, thread: &Thread, is_cut: bool, is_usable: bool) {
        let calls = calls_of_last_round(thread.entries());
        self.rounds.push(calls.iter().map(|(call, outcome)| digest(call, *outcome)).collect());
        self.unusable = if is_usable { 0 } else { self.unusable + 1 };
        self.cut = if is_cut && !is_usable { self.cut + 1 } else { 0 };
        self.tool = calls.last().map(|(call, _)| call.name.clone()).unwrap_or_default();
    }

    /// Resets the counts, after a new prompt of the user.
    pub(super) fn forget(&mut self) {
        *self = Repeats::default();
    }

    /// Why to stop after at most `max` rounds; 0 means never.
    pub(super) fn stuck(&self, max: u32) -> Option<Stuck> {
        let tool = || self.tool.clone();
        let repeats = |cycle: &u32| {
            let (times, cycle) = (max as usize, *cycle as usize);
            let newest = self.rounds.iter().rev();
            let mut compared = newest.clone().zip(newest.skip(cycle)).take((times - 1) * cycle);
            self.rounds.len() >= times * cycle && compared.all(|(round, earlier)| round == earlier)
        };
        match max {
            0 => None,
            _ if self.cut >= max => Some(Stuck::Cut { rounds: self.cut }),
            _ if self.unusable >= max => Some(Stuck::Unusable { rounds: self.unusable, tool: tool() }),
            _ => (1..=CYCLE_MAX).find(repeats).map(|cycle| Stuck::Same { times: max, cycle, tool: tool() }),
        }
    }
}

type Outcome<'t> = Option<&'t ToolOutcome>;

fn calls_of_last_round(entries: &EntryLog) -> Vec<(&ToolCall, Outcome<'_>)> {
    let is_reply = |entry: &Arc<Entry>| matches!(entry.change, Change::Replied { .. });
    let Some(reply) = entries.iter().rev().find(|entry| is_reply(entry)) else { return Vec::new() };
    let outcomes = || entries.since(reply.seq).filter_map(|entry| entry.change.outcome());
    let calls = reply.change.calls();
    calls.map(|call| (call, outcomes().find(|outcome| outcome.call == call.id))).collect()
}

/// A digest that is the same for calls that differ only in their ids.
fn digest(call: &ToolCall, outcome: Outcome<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&call.name, call.input.to_string()).hash(&mut hasher);
    if let Some(outcome) = outcome {
        format!("{:?} {:?}", outcome.status, outcome.content).hash(&mut hasher);
    }
    hasher.finish()
}
