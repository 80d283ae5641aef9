//! `redact`: replaces text that matches a pattern in prompts and tool results, before the model reads them.

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::HandlerError;
use super::{BuiltInHandler, HandlerRun, params};
use crate::event::HookEvent;
use crate::hook_context::{EventData, HookContext};
use crate::output::{HookOutput, ResultChange};

pub const HANDLER: BuiltInHandler = BuiltInHandler {
    name: "redact",
    events: &[HookEvent::AfterToolCall, HookEvent::UserMessageSend],
    params: &["patterns", "replacement"],
    check: |params| RedactParams::read(params).map(|_| None),
    qualifies: |_| true,
    run: HandlerRun::Pure(answer),
};

/// Maximum patterns per handler. Each is applied to every text.
const PATTERNS_MAX: usize = 64;
/// Maximum size in bytes of a compiled pattern; limits repetitions such as `(.{1000}){1000}`.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;
/// Maximum depth of metadata; external JSON has at most 128 levels.
const DEPTH_MAX: usize = 128;

/// Withholds a text that could not be redacted: a mistyped pattern must not pass on the secrets that the user wants
/// removed.
pub fn withhold(hook_context: &HookContext, why: &str) -> HookOutput {
    let mut output = HookOutput { warnings: vec![why.to_owned()], ..HookOutput::default() };
    match &hook_context.what {
        EventData::UserMessageSend { .. } => {
            output.block = Some(Some(format!("it cannot be redacted: {why}")))
        }
        EventData::AfterToolCall { .. } => {
            output.output = Some(ResultChange { metadata: Some(Value::Null), ..ResultChange::default() });
            output.output_text = Some(format!("[withheld, because it cannot be redacted: {why}]"));
        }
        _ => {}
    }
    output
}

pub struct RedactParams<'a> {
    patterns: Vec<Regex>,
    replacement: &'a str,
}

impl RedactParams<'_> {
    pub fn read(params: &super::HandlerParams) -> Result<RedactParams<'_>, HandlerError> {
        let patterns = params::list(params, "patterns")?.unwrap_or_default();
        if patterns.is_empty() {
            return Err(HandlerError::new("\"patterns\" must be a list of regular expressions"));
        }
        if patterns.len() > PATTERNS_MAX {
            return Err(HandlerError::new(format!(
                "\"patterns\" has more than {PATTERNS_MAX} regular expressions"
            )));
        }
        let compile = |pattern: &str| {
            RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build().map_err(|error| {
                // The library prints the pattern on several lines; the last line contains the cause.
                let error = error.to_string();
                let why = error.lines().last().unwrap_or_default().trim();
                format!(
                    "{pattern:?} is not a valid regular expression: {}",
                    why.trim_start_matches("error: ")
                )
            })
        };
        let patterns = patterns.into_iter().map(compile).collect::<Result<Vec<_>, _>>()?;
        let replacement = params::value(params, "replacement", "a text", Value::as_str)?;
        Ok(RedactParams { patterns, replacement: replacement.unwrap_or("[redacted]") })
    }

    /// The text with matches replaced; `None` if there are none.
    fn text(&self, text: &str) -> Option<String> {
        let mut changed: Option<String> = None;
        for pattern in &self.patterns {
            let now = changed.as_deref().unwrap_or(text);
            // `NoExpand`: a `$1` in a replacement would reinsert the removed text.
            let next = pattern.replace_all(now, regex::NoExpand(self.replacement));
            if let std::borrow::Cow::Owned(next) = next {
                changed = Some(next);
            }
        }
        changed
    }

    /// Redacts the strings inside a value. Returns whether one was changed.
    fn value(&self, value: &mut Value, depth: usize) -> Result<bool, HandlerError> {
        if depth > DEPTH_MAX {
            return Err(HandlerError::new(format!(
                "the result's metadata is nested deeper than {DEPTH_MAX} levels"
            )));
        }
        let within = |changed: bool, inner: &mut Value| {
            Ok::<_, HandlerError>(self.value(inner, depth + 1)? || changed)
        };
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(false),
            Value::String(text) => {
                let redacted = self.text(text);
                let changed = redacted.is_some();
                *text = redacted.unwrap_or_else(|| std::mem::take(text));
                Ok(changed)
            }
            Value::Array(items) => items.iter_mut().try_fold(false, within),
            Value::Object(fields) => fields.values_mut().try_fold(false, within),
        }
    }
}

fn answer(params: &super::HandlerParams, hook_context: &HookContext) -> Result<HookOutput, HandlerError> {
    let params = RedactParams::read(params)?;
    match &hook_context.what {
        EventData::UserMessageSend { message, .. } => {
            Ok(HookOutput { message: params.text(message), ..HookOutput::default() })
        }
        EventData::AfterToolCall { result, .. } => {
            let error = result.error.as_deref().and_then(|error| params.text(error));
            let mut metadata = result.metadata.clone();
            let in_metadata = match &mut metadata {
                Some(metadata) => params.value(metadata, 0)?,
                None => false,
            };
            let output_text = params.text(&result.text);
            let changed = error.is_some() || in_metadata || output_text.is_some();
            // Also metadata without a secret are given: otherwise they are removed with the text.
            let output = changed.then(|| ResultChange { error, metadata, ..ResultChange::default() });
            Ok(HookOutput { output, output_text, ..HookOutput::default() })
        }
        _ => Err(HandlerError::new("there is neither a prompt nor a tool's result")),
    }
}
