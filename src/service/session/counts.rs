//! Counters of what the sessions of this process have done since it started, updated by each committed entry.

use serde::Serialize;
use tokio::sync::watch;

use epitome_provider::spent::call_of;
use epitome_thread::{Change, Usage};

/// Counters of a process. They never decrease.
#[derive(Default)]
pub struct Counts(watch::Sender<CountsSnapshot>);

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CountsSnapshot {
    pub entries: u64,
    /// Turns that ended.
    pub turns: u64,
    /// Replies of models.
    pub rounds: u64,
    pub tool_calls: u64,
    pub hook_runs: u64,
    pub compactions: u64,
    pub prunings: u64,
    /// Layers that were undone.
    pub undone: u64,
    pub tokens: Usage,
    /// US dollars, if prices are known.
    pub cost: f64,
}

impl Counts {
    /// Counts a committed change and its cost in US dollars.
    pub fn take(&self, change: &Change, cost: Option<f64>) {
        self.0.send_modify(|counts| {
            counts.entries += 1;
            match change {
                Change::TurnEnded { quiet_hooks, .. } => {
                    counts.turns += 1;
                    counts.hook_runs += u64::from(*quiet_hooks);
                }
                Change::Replied { .. } => counts.rounds += 1,
                Change::Compacted { .. } => counts.compactions += 1,
                Change::ToolFinished { .. } => counts.tool_calls += 1,
                Change::Hooked { runs, .. } => counts.hook_runs += runs.len() as u64,
                Change::Pruned { .. } => counts.prunings += 1,
                Change::Undone { .. } => counts.undone += 1,
                _ => {}
            }
            if let Some((_, usage)) = call_of(change) {
                counts.tokens.add(usage);
                counts.cost += cost.unwrap_or_default();
            }
        });
    }

    pub fn read(&self) -> CountsSnapshot {
        *self.0.borrow()
    }

    /// Returns a receiver that sees each change.
    pub fn subscribe(&self) -> watch::Receiver<CountsSnapshot> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::ModelName;

    /// Regression: the metrics lacked everything that agents and callbacks had spent.
    #[test]
    fn calls_of_agents_are_counted() {
        let counts = Counts::default();
        let usage = Usage { input: 10, output: 5, ..Usage::default() };
        let (model, by) = (ModelName("a/b".to_owned()), "explore".to_owned());
        counts.take(&Change::Spent { model, usage, by }, Some(0.5));
        assert_eq!(
            counts.read(),
            CountsSnapshot { entries: 1, tokens: usage, cost: 0.5, ..CountsSnapshot::default() }
        );
    }
}
