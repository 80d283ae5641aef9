//! The definition of a built-in handler, and readers of its parameters. `null` counts as missing.

use serde_json::{Map, Value};

use super::HandlerError;
use crate::event::HookEvent;
use crate::hook_context::HookContext;
use crate::output::HookOutput;
use epitome_tools::Workspace;

/// The parameters of a handler, as declared.
pub type HandlerParams = Map<String, Value>;

/// A built-in handler.
pub struct BuiltInHandler {
    pub name: &'static str,
    pub events: &'static [HookEvent],
    /// The parameters that it accepts.
    pub params: &'static [&'static str],
    /// Validates the parameters as a run would. The remark is about a parameter without effect.
    pub check: fn(&HandlerParams) -> Result<Option<String>, HandlerError>,
    /// Whether it applies to this hook context. A handler that does not apply is neither run nor recorded.
    pub qualifies: fn(&HookContext) -> bool,
    pub run: HandlerRun,
}

#[derive(Clone, Copy)]
pub enum HandlerRun {
    Pure(fn(&HandlerParams, &HookContext) -> Result<HookOutput, HandlerError>),
    OnDisk(DiskHandler),
    /// Writes to the file in the parameter `path`, or to the default path.
    Writing(&'static str, DiskHandler),
}

type DiskHandler = fn(&HandlerParams, &HookContext, &Workspace) -> Result<HookOutput, HandlerError>;

pub fn given<'a>(params: &'a HandlerParams, name: &str) -> Option<&'a Value> {
    params.get(name).filter(|value| !value.is_null())
}

/// Reads a parameter with `read`, which returns `None` for a value that is not `wanted`.
pub fn value<'a, T>(
    params: &'a HandlerParams,
    name: &str,
    wanted: &str,
    read: impl FnOnce(&'a Value) -> Option<T>,
) -> Result<Option<T>, HandlerError> {
    let Some(value) = given(params, name) else { return Ok(None) };
    read(value).map(Some).ok_or_else(|| HandlerError::new(format!("{name:?} must be {wanted}")))
}

/// A string that is not blank.
pub fn text<'a>(params: &'a HandlerParams, name: &str) -> Result<Option<&'a str>, HandlerError> {
    value(params, name, "a text that is not empty", |value| {
        value.as_str().filter(|text| !text.trim().is_empty())
    })
}

pub fn truth(params: &HandlerParams, name: &str) -> Result<Option<bool>, HandlerError> {
    value(params, name, "true or false", Value::as_bool)
}

/// An integer from 0 to `max`, inclusive.
pub fn integer(params: &HandlerParams, name: &str, max: u64) -> Result<Option<u64>, HandlerError> {
    value(params, name, &format!("a whole number from 0 to {max}"), |value| {
        value.as_u64().filter(|number| *number <= max)
    })
}

/// A list of strings that are not empty; a single string counts as a list.
pub fn list<'a>(params: &'a HandlerParams, name: &str) -> Result<Option<Vec<&'a str>>, HandlerError> {
    value(params, name, "a list of texts that are not empty", |value| {
        let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        items.iter().map(|item| item.as_str().filter(|text| !text.is_empty())).collect()
    })
}

/// One of the given words.
pub fn choice<T: Copy>(
    params: &HandlerParams,
    name: &str,
    choices: &[(&str, T)],
) -> Result<Option<T>, HandlerError> {
    let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
    value(params, name, &words.join(" or "), |value| {
        choices.iter().find(|(word, _)| value == word).map(|(_, choice)| *choice)
    })
}
