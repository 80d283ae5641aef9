//! Handlers: what a recipe declares to be done at moments of its run.

use serde_json::{Map, Value};

/// A handler as a recipe declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct Handler {
    /// The recipe's id; empty for what is built in.
    pub recipe: String,
    pub name: String,
    pub once: bool,
    pub params: Map<String, Value>,
}
