//! What the model calls of a conversation took, by its log: tokens, the cache's share of them, dollars. Pure.

use super::models;
use epitome_config::Settings;
use epitome_thread::{Change, ModelName, Thread, Usage};

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    pub usage: Usage,
    /// US dollars of the calls whose prices are known; `None` where there was no such call.
    pub cost: Option<f64>,
}

impl Spent {
    /// What a thread took, with its agents and callbacks.
    pub fn of(settings: &Settings, thread: &Thread) -> Spent {
        let mut spent = Spent::default();
        for (model, usage) in thread.entries().iter().filter_map(|entry| call_of(&entry.change)) {
            spent.usage.add(usage);
            if let Some(cost) = models::cost(settings, model, usage) {
                *spent.cost.get_or_insert(0.0) += cost;
            }
        }
        spent
    }
}

/// The model call that a change stands for, and what it took.
pub fn call_of(change: &Change) -> Option<(&ModelName, &Usage)> {
    match change {
        Change::Replied { model, usage: Some(usage), .. }
        | Change::Compacted { model: Some(model), usage: Some(usage), .. }
        | Change::Spent { model, usage, .. } => Some((model, usage)),
        _ => None,
    }
}

/// US dollars that a change stands for, where it took a model call and the price is known.
pub fn cost_of_change(settings: &Settings, change: &Change) -> Option<f64> {
    call_of(change).and_then(|(model, usage)| models::cost(settings, model, usage))
}
