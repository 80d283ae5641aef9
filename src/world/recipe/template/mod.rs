//! The subset of Go's `text/template` that recipes use: a lexer, a parser and an evaluator.
//!
//! Pure and bounded. It starts no process: a `bash` call whose output is not known yet is returned to the
//! caller. It has no lists, no methods and only the functions of `parser::FUNCTIONS`.

mod eval;
mod functions;
mod lexer;
mod parser;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use eval::{Evaluated, TemplateScope, evaluate};
pub use lexer::commands;
pub use parser::{Template, compile};

/// Maximum nesting of blocks and parentheses in the text. Deeper nesting is a mistake, or an attempt to overflow the
/// stack.
pub const NESTING_MAX: usize = 64;
/// Maximum nesting of blocks and template calls during evaluation; keeps recursion from overflowing the stack.
pub const EVALUATION_DEPTH_MAX: usize = 128;
/// Maximum steps of one evaluation: nodes, operands, loop rounds and KiB copied. A normal recipe takes
/// hundreds; this many take a few milliseconds.
pub const STEPS_MAX: u64 = 200_000;
/// Maximum size in bytes of a rendered prompt and of any intermediate string.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Maximum commands that one rendering may request.
pub const SHELL_CALLS_MAX: usize = 64;

/// A value in a template. Arguments are strings, so no expression can produce a list.
#[derive(Clone, Debug, PartialEq)]
pub enum TemplateValue {
    /// A variable that was not given. It is false, compares as an empty string, and prints as nothing.
    Missing,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Map(Arc<BTreeMap<String, TemplateValue>>),
}

impl TemplateValue {
    /// Truth as in Go: any value except the zero value of its type.
    pub fn truth(&self) -> bool {
        match self {
            TemplateValue::Missing => false,
            TemplateValue::Bool(value) => *value,
            TemplateValue::Int(value) => *value != 0,
            TemplateValue::Float(value) => *value != 0.0,
            TemplateValue::Text(text) => !text.is_empty(),
            TemplateValue::Map(map) => !map.is_empty(),
        }
    }

    /// The steps that reading it takes: its KiB, and the entries of a map.
    fn steps(&self) -> u64 {
        match self {
            TemplateValue::Text(text) => text.len() as u64 / 1024,
            TemplateValue::Map(map) => map.values().map(|value| 1 + value.steps()).sum(),
            TemplateValue::Missing
            | TemplateValue::Bool(_)
            | TemplateValue::Int(_)
            | TemplateValue::Float(_) => 0,
        }
    }

    /// The type's name in error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            TemplateValue::Missing => "a missing value",
            TemplateValue::Bool(_) => "a truth value",
            TemplateValue::Int(_) | TemplateValue::Float(_) => "a number",
            TemplateValue::Text(_) => "text",
            TemplateValue::Map(_) => "a map",
        }
    }
}

impl fmt::Display for TemplateValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TemplateValue::Missing => Ok(()),
            TemplateValue::Bool(value) => write!(f, "{value}"),
            TemplateValue::Int(value) => write!(f, "{value}"),
            TemplateValue::Float(value) => write!(f, "{value}"),
            TemplateValue::Text(text) => f.write_str(text),
            TemplateValue::Map(map) => {
                f.write_str("map[")?;
                for (index, (key, value)) in map.iter().enumerate() {
                    let space = if index == 0 { "" } else { " " };
                    write!(f, "{space}{key}:{value}")?;
                }
                f.write_str("]")
            }
        }
    }
}

/// An error in a template, at a byte offset of its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    pub at: usize,
    pub message: String,
    pub hint: Option<String>,
}

impl TemplateError {
    pub fn new(at: usize, message: impl Into<String>) -> TemplateError {
        TemplateError { at, message: message.into(), hint: None }
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> TemplateError {
        self.hint = Some(hint.into());
        self
    }

    /// Line and column of the error, 1-based; the column counts characters.
    pub fn position(&self, source: &str) -> (u64, u64) {
        epitome_thread::problem::position_in(source, self.at)
    }
}
