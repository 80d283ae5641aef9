//! Built-in handlers: actions that a recipe can declare for an event without a script. One file each; those
//! without side effects are pure functions from parameters and moment to a result.
//!
//! `declared` parses a recipe's `hooks` table, `plan` orders scripts and handlers, `perform` runs one
//! handler. Results are interpreted like those of scripts.

mod append_context;
mod compact_context;
mod compact_trigger;
mod declared;
mod export_markdown;
mod files;
mod json;
mod log_tool_usage;
mod params;
mod plan;
mod redact;
mod swap_context;
mod validate_output;
mod validate_tool_output;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::event::HookEvent;
use super::functions::Functions;
use super::moment::Moment;
use super::output::{HookOutput, Ran};
pub use declared::{Declared, Table, declared};
use epitome_problem::nearest;
pub use epitome_recipe::handlers::COMPACT_TRIGGER;
use epitome_tools::Workspace;
pub use plan::{Fired, plan};
pub use swap_context::max_summary_tokens;

/// Timeout of a handler with disk I/O; the same as for a script.
const DISK_TIME_MAX: Duration = super::hook::RUN_TIME;

/// A handler as a recipe declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct Handler {
    /// The recipe's id; empty for the compaction trigger and for a script that was not found.
    pub recipe: String,
    pub name: String,
    /// At most one successful run per invocation of the recipe.
    pub once: bool,
    pub params: Map<String, Value>,
}

/// The environment of a handler besides its moment.
#[derive(Clone, Debug)]
pub struct At {
    pub workspace: Arc<Workspace>,
    /// A registered handler takes precedence over the built-in one of the same name.
    pub functions: Functions,
}

/// Runs a handler. Returns its answer or a failure message; an unknown name fails too, so that the trail
/// shows that nothing was done.
pub async fn perform(handler: &Handler, moment: &Moment, at: &At) -> Ran {
    let result = if at.functions.has_handler(&handler.name) {
        at.functions.handle(handler, moment).await.map_err(|error| error.to_string())
    } else {
        match BuiltIn::named(&handler.name) {
            Some(built_in @ BuiltIn::Redact) => {
                let redacted = built_in.perform(handler, moment, at).await;
                Ok(redacted.unwrap_or_else(|why| redact::held_back(moment, &why)))
            }
            Some(built_in) => built_in.perform(handler, moment, at).await,
            None => Err(format!("no handler or script is called {:?}: nothing was done", handler.name)),
        }
    };
    result.map_or_else(Ran::Failed, |output| Ran::Answered(Box::new(output)))
}

/// A fault in a declaration. Declarations with a fatal one are left out.
struct Fault {
    message: String,
    near: Option<&'static str>,
    fatal: bool,
}

/// Checks a declaration before anything runs. Unknown names are not checked here.
fn check(handler: &Handler, event: HookEvent) -> Vec<Fault> {
    let Some(built_in) = BuiltIn::named(&handler.name) else { return Vec::new() };
    let fatal = |message| Fault { message, near: None, fatal: true };
    if let Err(message) = built_in.fits(event) {
        return vec![fatal(message)];
    }
    let known = built_in.params();
    let unknown = handler.params.keys().filter(|name| !known.contains(&name.as_str()));
    let mut faults: Vec<Fault> = unknown
        .map(|name| Fault {
            message: format!("unknown parameter {name:?}, ignored"),
            near: nearest(name, known.iter().copied()),
            fatal: false,
        })
        .collect();
    match built_in.check(&handler.params) {
        Ok(remark) => {
            faults.extend(remark.map(|message| Fault { message, near: None, fatal: false }));
        }
        Err(message) => faults.push(fatal(message)),
    }
    faults
}

/// The parameters that a built-in handler accepts; empty for other names.
fn params_of(name: &str) -> &'static [&'static str] {
    BuiltIn::named(name).map_or(&[], BuiltIn::params)
}

#[derive(Clone, Copy, Debug)]
enum BuiltIn {
    SwapContext,
    CompactContext,
    AppendContext,
    ExportMarkdown,
    ValidateOutput,
    LogToolUsage,
    ValidateToolOutput,
    Redact,
    CompactTrigger,
}

impl BuiltIn {
    fn named(name: &str) -> Option<BuiltIn> {
        Some(match name {
            "swap_context" => BuiltIn::SwapContext,
            "compact_context" => BuiltIn::CompactContext,
            "append_context" => BuiltIn::AppendContext,
            "export_markdown" => BuiltIn::ExportMarkdown,
            "validate_output" => BuiltIn::ValidateOutput,
            "log_tool_usage" => BuiltIn::LogToolUsage,
            "validate_tool_output" => BuiltIn::ValidateToolOutput,
            "redact" => BuiltIn::Redact,
            COMPACT_TRIGGER => BuiltIn::CompactTrigger,
            _ => return None,
        })
    }

    fn events(self) -> &'static [HookEvent] {
        match self {
            BuiltIn::SwapContext
            | BuiltIn::CompactContext
            | BuiltIn::AppendContext
            | BuiltIn::ValidateOutput
            | BuiltIn::CompactTrigger => &[HookEvent::TurnEnd],
            BuiltIn::ExportMarkdown => &[HookEvent::TurnEnd, HookEvent::AgentStop],
            BuiltIn::LogToolUsage => &[HookEvent::BeforeToolCall, HookEvent::AfterToolCall],
            BuiltIn::ValidateToolOutput => &[HookEvent::AfterToolCall],
            BuiltIn::Redact => &[HookEvent::AfterToolCall, HookEvent::UserMessageSend],
        }
    }

    fn fits(self, event: HookEvent) -> Result<(), String> {
        if self.events().contains(&event) {
            return Ok(());
        }
        let events: Vec<&str> = self.events().iter().map(|event| event.name()).collect();
        Err(format!("it works at {}, not at {event}", events.join(" and ")))
    }

    fn params(self) -> &'static [&'static str] {
        match self {
            BuiltIn::SwapContext => &swap_context::PARAMS,
            BuiltIn::CompactContext => &compact_context::PARAMS,
            BuiltIn::AppendContext => &append_context::PARAMS,
            BuiltIn::ExportMarkdown => &export_markdown::PARAMS,
            BuiltIn::ValidateOutput => &validate_output::PARAMS,
            BuiltIn::LogToolUsage => &log_tool_usage::PARAMS,
            BuiltIn::ValidateToolOutput => &validate_tool_output::PARAMS,
            BuiltIn::Redact => &redact::PARAMS,
            BuiltIn::CompactTrigger => &[],
        }
    }

    /// Validates the parameters as a run would; the remark is about one without effect.
    fn check(self, params: &Map<String, Value>) -> Result<Option<String>, String> {
        match self {
            BuiltIn::SwapContext => swap_context::check(params),
            BuiltIn::CompactContext => compact_context::check(params),
            BuiltIn::AppendContext => append_context::Params::read(params).map(|_| None),
            BuiltIn::ExportMarkdown => export_markdown::Params::read(params).map(|_| None),
            BuiltIn::ValidateOutput => validate_output::Params::read(params).map(|_| None),
            BuiltIn::LogToolUsage => log_tool_usage::path(params).map(|_| None),
            BuiltIn::ValidateToolOutput => validate_tool_output::Params::read(params).map(|_| None),
            BuiltIn::Redact => redact::Params::read(params).map(|_| None),
            BuiltIn::CompactTrigger => Ok(None),
        }
    }

    async fn perform(self, handler: &Handler, moment: &Moment, at: &At) -> Result<HookOutput, String> {
        self.fits(moment.what.event())?;
        let params = &handler.params;
        match self {
            BuiltIn::SwapContext => swap_context::answer(params, moment),
            BuiltIn::CompactContext => compact_context::answer(params),
            BuiltIn::AppendContext => append_context::answer(params, moment),
            BuiltIn::Redact => redact::answer(params, moment),
            BuiltIn::CompactTrigger => Ok(compact_trigger::answer(moment)),
            BuiltIn::ExportMarkdown
            | BuiltIn::ValidateOutput
            | BuiltIn::LogToolUsage
            | BuiltIn::ValidateToolOutput => {
                let (params, moment) = (params.clone(), moment.clone());
                let workspace = at.workspace.clone();
                let work = move || match self {
                    BuiltIn::ExportMarkdown => export_markdown::perform(&params, &moment, &workspace),
                    BuiltIn::ValidateOutput => validate_output::perform(&params, &moment, &workspace),
                    BuiltIn::LogToolUsage => log_tool_usage::perform(&params, &moment, &workspace),
                    BuiltIn::ValidateToolOutput => {
                        validate_tool_output::perform(&params, &moment, &workspace)
                    }
                    BuiltIn::SwapContext
                    | BuiltIn::CompactContext
                    | BuiltIn::AppendContext
                    | BuiltIn::Redact
                    | BuiltIn::CompactTrigger => Err("it does not work on the disk".to_owned()),
                };
                files::on_disk(work, DISK_TIME_MAX).await
            }
        }
    }
}

/// Whether the handler applies at this moment. One that does not is not run and not recorded.
fn qualifies(handler: &Handler, moment: &Moment) -> bool {
    match BuiltIn::named(&handler.name) {
        Some(BuiltIn::SwapContext) => swap_context::qualifies(moment),
        Some(BuiltIn::ValidateOutput) => validate_output::qualifies(moment),
        Some(BuiltIn::AppendContext) => append_context::qualifies(moment),
        Some(
            BuiltIn::CompactContext
            | BuiltIn::ExportMarkdown
            | BuiltIn::LogToolUsage
            | BuiltIn::ValidateToolOutput
            | BuiltIn::Redact
            | BuiltIn::CompactTrigger,
        )
        | None => true,
    }
}

#[cfg(test)]
mod tests;
