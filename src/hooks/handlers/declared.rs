//! Reads the `hooks` table of a recipe. Pure; what it cannot read is a problem, never silence.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Handler;
use crate::hooks::event::HookEvent;

/// One place in the order that a recipe declares for a moment.
#[derive(Clone, Debug, PartialEq)]
pub enum Declared {
    Handler(Arc<Handler>),
    /// All scripts that were found and that the recipe does not name itself.
    External { once: bool },
    /// One script by its name.
    Script { name: String, once: bool },
}

/// What a recipe declares for each moment, in its order.
pub type Table = BTreeMap<HookEvent, Vec<Declared>>;
