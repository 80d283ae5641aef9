//! What the sessions of this process have done since it started, counted from the entries that they commit.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use epitome_thread::{Change, Usage};

/// Counts of a process. They only grow.
#[derive(Default)]
pub struct Counts {
    entries: AtomicU64,
    turns: AtomicU64,
    rounds: AtomicU64,
    tool_calls: AtomicU64,
    hook_runs: AtomicU64,
    compactions: AtomicU64,
    prunings: AtomicU64,
    undone: AtomicU64,
    spent: Mutex<Spent>,
}

#[derive(Clone, Copy, Default)]
struct Spent {
    usage: Usage,
    cost: f64,
}

/// The figures at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reading {
    pub entries: u64,
    /// Turns that ended.
    pub turns: u64,
    /// Replies of models.
    pub rounds: u64,
    pub tool_calls: u64,
    pub hook_runs: u64,
    pub compactions: u64,
    pub prunings: u64,
    /// Layers that were taken back.
    pub undone: u64,
    pub tokens: Usage,
    /// US dollars, where prices are known.
    pub cost: f64,
}

impl Counts {
    /// Takes in a change that was committed, and what it cost.
    pub fn take(&self, change: &Change, cost: Option<f64>) {
        let one_more = |count: &AtomicU64| {
            count.fetch_add(1, Ordering::Relaxed);
        };
        one_more(&self.entries);
        match change {
            Change::TurnEnded { quiet_hooks, .. } => {
                one_more(&self.turns);
                self.hook_runs.fetch_add(u64::from(*quiet_hooks), Ordering::Relaxed);
            }
            Change::Replied { usage, .. } => {
                one_more(&self.rounds);
                self.spend(usage.as_ref(), cost);
            }
            Change::Compacted { usage, .. } => {
                one_more(&self.compactions);
                self.spend(usage.as_ref(), cost);
            }
            Change::ToolFinished { .. } => one_more(&self.tool_calls),
            Change::Hooked { runs, .. } => {
                self.hook_runs.fetch_add(runs.len() as u64, Ordering::Relaxed);
            }
            Change::Pruned { .. } => one_more(&self.prunings),
            Change::Undone { .. } => one_more(&self.undone),
            _ => {}
        }
    }

    fn spend(&self, usage: Option<&Usage>, cost: Option<f64>) {
        let mut spent = self.spent.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(usage) = usage {
            spent.usage.add(usage);
        }
        spent.cost += cost.unwrap_or_default();
    }

    pub fn read(&self) -> Reading {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let spent = *self.spent.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Reading {
            entries: count(&self.entries),
            turns: count(&self.turns),
            rounds: count(&self.rounds),
            tool_calls: count(&self.tool_calls),
            hook_runs: count(&self.hook_runs),
            compactions: count(&self.compactions),
            prunings: count(&self.prunings),
            undone: count(&self.undone),
            tokens: spent.usage,
            cost: spent.cost,
        }
    }
}
