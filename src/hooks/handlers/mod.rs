//! Built-in handlers: actions that a recipe can declare for an event without a script. One file each; those
//! without side effects are pure functions from parameters and moment to a result.
//!
//! `declared` parses a recipe's `hooks` table, `plan` orders scripts and handlers, `perform` runs one
//! handler. Results are interpreted like those of scripts.

mod append_context;
mod compact_context;
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

use super::event::HookEvent;
use super::functions::Functions;
use super::moment::{Moment, What};
use super::output::{HookOutput, Ran};
pub use declared::{Declared, Table, declared};
use epitome_problem::nearest;
pub use epitome_recipe::handlers::COMPACT_TRIGGER;
use epitome_tools::Workspace;
use params::{BuiltIn, Params, Run};
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
    pub params: Params,
}

/// The environment of a handler besides its moment.
#[derive(Clone, Debug)]
pub struct At {
    pub workspace: Arc<Workspace>,
    /// A registered handler takes precedence over the built-in one of the same name.
    pub functions: Functions,
}

static BUILT_IN: [&BuiltIn; 9] = [
    &swap_context::HANDLER,
    &compact_context::HANDLER,
    &append_context::HANDLER,
    &export_markdown::HANDLER,
    &validate_output::HANDLER,
    &log_tool_usage::HANDLER,
    &validate_tool_output::HANDLER,
    &redact::HANDLER,
    &compact_context::TRIGGER,
];

fn built_in(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.into_iter().find(|handler| handler.name == name)
}

/// Runs a handler. Returns its answer or a failure message; an unknown name fails too, so that the trail
/// shows that nothing was done.
pub async fn perform(handler: &Handler, moment: &Moment, at: &At) -> Ran {
    let result = if at.functions.has_handler(&handler.name) {
        at.functions.handle(handler, moment).await.map_err(|error| error.to_string())
    } else {
        match built_in(&handler.name) {
            Some(built_in) if built_in.name == redact::HANDLER.name => {
                let redacted = built_in.perform(handler, moment, at).await;
                Ok(redacted.unwrap_or_else(|why| redact::withhold(moment, &why)))
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
    let Some(built_in) = built_in(&handler.name) else { return Vec::new() };
    let fault = |message, fatal| Fault { message, near: None, fatal };
    if let Err(message) = built_in.works_at(event) {
        return vec![fault(message, true)];
    }
    let known = built_in.params;
    let unknown = handler.params.keys().filter(|name| !known.contains(&name.as_str()));
    let mut faults: Vec<Fault> = unknown
        .map(|name| {
            let near = nearest(name, known.iter().copied());
            Fault { near, ..fault(format!("unknown parameter {name:?}, ignored"), false) }
        })
        .collect();
    match (built_in.check)(&handler.params) {
        Ok(remark) => faults.extend(remark.map(|message| fault(message, false))),
        Err(message) => faults.push(fault(message, true)),
    }
    faults
}

impl BuiltIn {
    fn works_at(&self, event: HookEvent) -> Result<(), String> {
        if self.events.contains(&event) {
            return Ok(());
        }
        let events: Vec<&str> = self.events.iter().map(|event| event.name()).collect();
        Err(format!("it works at {}, not at {event}", events.join(" and ")))
    }

    async fn perform(&self, handler: &Handler, moment: &Moment, at: &At) -> Result<HookOutput, String> {
        self.works_at(moment.what.event())?;
        match self.run {
            Run::Pure(run) => run(&handler.params, moment),
            Run::OnDisk(run) => {
                let (params, moment, workspace) =
                    (handler.params.clone(), moment.clone(), at.workspace.clone());
                files::on_disk(move || run(&params, &moment, &workspace), DISK_TIME_MAX).await
            }
        }
    }
}

/// The text of a reply that is final: replies with tool calls only comment on the next step.
fn final_reply(moment: &Moment) -> Option<&str> {
    let What::TurnEnd(round) = &moment.what else { return None };
    Some(round.response.as_str()).filter(|_| !round.tools_used)
}

fn has_final_text(moment: &Moment) -> bool {
    final_reply(moment).is_some_and(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests;
