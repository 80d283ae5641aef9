//! The consumption of a conversation's model calls, from its log: tokens, cached tokens, dollars. Pure.

use super::models;
use epitome_config::Settings;
pub use epitome_thread::call_of;
use epitome_thread::{Change, Thread, Usage};

/// Consumption of model calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    pub usage: Usage,
    /// US dollars for the calls with known prices; `None` if there are none.
    pub cost: Option<f64>,
}

impl Spent {
    /// The consumption of a thread, including its subagents and callbacks.
    pub fn total(settings: &Settings, thread: &Thread) -> Spent {
        let mut spent = Spent::default();
        for calls in thread.usage_by_size().iter() {
            spent.usage.add(calls.usage);
            if let Some(cost) = models::cost_of_calls(settings, calls) {
                *spent.cost.get_or_insert(0.0) += cost;
            }
        }
        spent
    }
}

/// US dollars for the call that a change records; `None` if it records none or the price is unknown.
pub fn cost_of_change(settings: &Settings, change: &Change) -> Option<f64> {
    call_of(change).and_then(|(model, usage)| models::cost(settings, model, usage))
}
