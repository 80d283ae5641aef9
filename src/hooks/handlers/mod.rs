//! Built-in handlers: what a recipe may have done at a moment without a script. One file each; those
//! that touch nothing outside are pure functions from the parameters and the moment to a result.
//!
//! `declared` reads a recipe's `hooks` table, `plan` puts scripts and handlers in order, `perform` runs
//! one handler. What a result means for the session is decided where the results of scripts are.

mod declared;

use serde_json::{Map, Value};

pub use declared::{Declared, Table};

/// A handler as a recipe declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct Handler {
    /// The recipe's id; empty for what is always there.
    pub recipe: String,
    pub name: String,
    /// At most one successful run for each time that the recipe is invoked.
    pub once: bool,
    pub params: Map<String, Value>,
}

/// The handlers that recipes may name.
pub const NAMES: [&str; 8] = [
    "swap_context",
    "compact_context",
    "append_context",
    "export_markdown",
    "validate_output",
    "log_tool_usage",
    "validate_tool_output",
    "redact",
];
