//! The usage of a conversation's model calls, by model and by the size of their context: some models have higher prices
//! above a size.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Change, ModelName, Usage};

/// Sizes are distinguished by this many tokens, of which the published limits are multiples.
const STEP: u64 = 1_000;

/// See the module.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UsageBySize(BTreeMap<ModelName, BTreeMap<u64, Usage>>);

/// The usage of calls whose contexts have a similar size.
#[derive(Clone, Copy, Debug)]
pub struct SizedUsage<'a> {
    pub model: &'a ModelName,
    /// At least the tokens of each context, and less than 1,000 more.
    pub context: u64,
    /// The sum over these calls.
    pub usage: &'a Usage,
}

impl UsageBySize {
    pub(crate) fn take(&mut self, change: &Change) {
        let Some((model, usage)) = call_of(change) else { return };
        let size = usage.input_context().div_ceil(STEP);
        self.0.entry(model.clone()).or_default().entry(size).or_default().add(usage);
    }

    pub fn iter(&self) -> impl Iterator<Item = SizedUsage<'_>> {
        self.0.iter().flat_map(|(model, sizes)| {
            sizes.iter().map(move |(size, usage)| SizedUsage { model, context: size * STEP, usage })
        })
    }
}

/// The model and the usage of the call that a change records; `None` if it records none.
pub fn call_of(change: &Change) -> Option<(&ModelName, &Usage)> {
    match change {
        Change::Replied { model, usage: Some(usage), .. }
        | Change::Compacted { model: Some(model), usage: Some(usage), .. }
        | Change::Spent { model, usage, .. } => Some((model, usage)),
        _ => None,
    }
}
