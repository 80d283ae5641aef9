//! Built-in handlers: actions that a recipe can declare for an event without a script. One file each. Those
//! without side effects are pure functions from parameters and hook context to a result.
//!
//! `declared` parses a recipe's `hooks` table, `plan` orders scripts and handlers, `perform` runs one
//! handler. Results are interpreted like those of scripts.

mod append_context;
mod compact_context;
mod declared;
mod error;
mod export_markdown;
mod files;
pub mod json;
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
use super::hook_context::{EventData, HookContext};
use super::output::{HookOutput, RawOutcome};
pub use declared::{DeclaredHandler, HandlerTable, declared};
pub use epitome_recipe::handlers::COMPACT_TRIGGER;
use epitome_thread::problem::nearest;
use epitome_tools::Workspace;
pub use error::HandlerError;
use params::{BuiltInHandler, HandlerParams, HandlerRun};
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
    pub params: HandlerParams,
}

/// The environment of a handler in addition to its hook context.
#[derive(Clone, Debug)]
pub struct HandlerContext {
    pub workspace: Arc<Workspace>,
    /// A registered handler takes precedence over the built-in one of the same name.
    pub functions: Functions,
}

static BUILT_IN: [&BuiltInHandler; 9] = [
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

fn built_in(name: &str) -> Option<&'static BuiltInHandler> {
    BUILT_IN.into_iter().find(|handler| handler.name == name)
}

/// Runs a handler. Returns its answer or a failure message; an unknown name fails too, so that the trail
/// shows that nothing was done.
pub async fn perform(handler: &Handler, hook_context: &HookContext, at: &HandlerContext) -> RawOutcome {
    let result = if at.functions.has_handler(&handler.name) {
        at.functions.handle(handler, hook_context).await.map_err(HandlerError::from)
    } else {
        match built_in(&handler.name) {
            Some(built_in) if built_in.name == redact::HANDLER.name => {
                let redacted = built_in.perform(handler, hook_context, at).await;
                Ok(redacted.unwrap_or_else(|why| redact::withhold(hook_context, &why.to_string())))
            }
            Some(built_in) => built_in.perform(handler, hook_context, at).await,
            None => Err(HandlerError::new(format!(
                "no handler or script is called {:?}: nothing was done",
                handler.name
            ))),
        }
    };
    result.map_or_else(
        |error| RawOutcome::Failed(error.to_string()),
        |output| RawOutcome::Answered(Box::new(output)),
    )
}

impl Handler {
    /// The path of the workspace file that a built-in handler writes; `None` if it writes none.
    fn written(&self) -> Option<&str> {
        let HandlerRun::Writing(default, _) = built_in(&self.name)?.run else { return None };
        Some(self.params.get("path").and_then(|path| path.as_str()).unwrap_or(default))
    }
}

/// The declared handlers that write files of the workspace: their events, names and paths.
pub fn writes(table: &HandlerTable) -> impl Iterator<Item = (HookEvent, &str, &str)> {
    let all = table.iter().flat_map(|(event, declared)| declared.iter().map(move |one| (*event, one)));
    all.filter_map(|(event, declared)| match declared {
        DeclaredHandler::Handler(handler) => Some((event, handler.name.as_str(), handler.written()?)),
        DeclaredHandler::External { .. } | DeclaredHandler::Script { .. } => None,
    })
}

/// Removes the handlers that write files of the workspace.
pub fn without_writes(mut table: HandlerTable) -> HandlerTable {
    let writes = |declared: &DeclaredHandler| match declared {
        DeclaredHandler::Handler(handler) => handler.written().is_some(),
        DeclaredHandler::External { .. } | DeclaredHandler::Script { .. } => false,
    };
    table.values_mut().for_each(|declared| declared.retain(|one| !writes(one)));
    table.retain(|_, declared| !declared.is_empty());
    table
}

/// Checks a declaration before anything runs; the error is why it cannot run. `remark` receives what has no effect, and a
/// known name that is similar. Unknown handlers are not checked here.
fn check(
    handler: &Handler,
    event: HookEvent,
    mut remark: impl FnMut(String, Option<&str>),
) -> Result<(), HandlerError> {
    let Some(built_in) = built_in(&handler.name) else { return Ok(()) };
    built_in.works_at(event)?;
    let known = built_in.params;
    for name in handler.params.keys().filter(|name| !known.contains(&name.as_str())) {
        remark(format!("unknown parameter {name:?}, ignored"), nearest(name, known.iter().copied()));
    }
    if let Some(message) = (built_in.check)(&handler.params)? {
        remark(message, None);
    }
    Ok(())
}

impl BuiltInHandler {
    fn works_at(&self, event: HookEvent) -> Result<(), HandlerError> {
        if self.events.contains(&event) {
            return Ok(());
        }
        let events: Vec<&str> = self.events.iter().map(|event| event.name()).collect();
        Err(HandlerError::new(format!("it works at {}, not at {event}", events.join(" and "))))
    }

    async fn perform(
        &self,
        handler: &Handler,
        hook_context: &HookContext,
        at: &HandlerContext,
    ) -> Result<HookOutput, HandlerError> {
        self.works_at(hook_context.what.event())?;
        match self.run {
            HandlerRun::Pure(run) => run(&handler.params, hook_context),
            HandlerRun::OnDisk(run) | HandlerRun::Writing(_, run) => {
                let (params, hook_context, workspace) =
                    (handler.params.clone(), hook_context.clone(), at.workspace.clone());
                files::on_disk(move || run(&params, &hook_context, &workspace), DISK_TIME_MAX).await
            }
        }
    }
}

/// The text of a reply that is final: replies with tool calls only comment on the next step.
fn final_reply(hook_context: &HookContext) -> Option<&str> {
    let EventData::TurnEnd(round) = &hook_context.what else { return None };
    Some(round.response.as_str()).filter(|_| !round.tools_used)
}

fn has_final_text(hook_context: &HookContext) -> bool {
    final_reply(hook_context).is_some_and(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests;
