//! The order in which scripts and handlers run at an event, and which `once` runs are used up. Pure.
//!
//! Default order: all scripts, then the recipe's handlers, then the trigger of automatic compaction. So a
//! user's script that compacts at 70 % acts before the built-in 80 %.

use std::sync::Arc;

use serde_json::Map;

use super::{COMPACT_TRIGGER, DeclaredHandler, Handler, append_context, built_in};
use crate::chain::ChainLink;
use crate::event::HookEvent;
use crate::hook_context::HookContext;

/// Successful runs that must not be repeated. Each session has one.
#[derive(Clone, Debug, Default)]
pub struct Fired {
    /// Handlers that have run since the recipe was invoked.
    handlers: Vec<(HookEvent, Arc<Handler>)>,
    scripts: Vec<(HookEvent, String)>,
    /// Handlers that have run in this session.
    in_session: Vec<Arc<Handler>>,
}

impl Fired {
    /// Resets all `once` runs when a recipe is invoked.
    pub fn invoked(&mut self) {
        self.handlers.clear();
        self.scripts.clear();
    }

    /// Records a run whose result was carried out.
    pub fn succeeded(&mut self, event: HookEvent, link: &ChainLink) {
        match link {
            ChainLink::Hook(hook) => {
                if !self.script(event, &hook.name) {
                    self.scripts.push((event, hook.name.clone()));
                }
            }
            ChainLink::Handler(handler) => {
                if handler.once && !self.handler(event, handler) {
                    self.handlers.push((event, handler.clone()));
                }
                if once_per_session(handler) && !self.in_session.contains(handler) {
                    self.in_session.push(handler.clone());
                }
            }
        }
    }

    fn script(&self, event: HookEvent, name: &str) -> bool {
        self.scripts.iter().any(|(at, done)| *at == event && done == name)
    }

    fn handler(&self, event: HookEvent, handler: &Arc<Handler>) -> bool {
        self.handlers.iter().any(|(at, done)| *at == event && done == handler)
    }

    fn allows(&self, event: HookEvent, handler: &Arc<Handler>) -> bool {
        let has_run = handler.once && self.handler(event, handler);
        !has_run && (!once_per_session(handler) || !self.in_session.contains(handler))
    }
}

fn once_per_session(handler: &Handler) -> bool {
    handler.name == "append_context" && append_context::once_per_session(&handler.params).unwrap_or(false)
}

/// The links of an event, in the order in which they run.
///
/// `scripts` are those found for the event, in their own order; `declared` is the order that the running
/// recipe declares. A script runs once, at the position that names it. Scripts without a position come first,
/// since a recipe does not disable the user's hooks. `once` applies to a script only if the recipe names it
/// or `external`. A name that is neither a handler nor a script becomes a link whose run fails with a
/// message.
pub fn plan(
    declared: Option<&[DeclaredHandler]>,
    scripts: Vec<ChainLink>,
    hook_context: &HookContext,
    fired: &Fired,
) -> Vec<ChainLink> {
    let event = hook_context.what.event();
    let declared = declared.unwrap_or_default();
    let is_named = |link: &ChainLink| {
        let name = link.name();
        declared
            .iter()
            .any(|place| matches!(place, DeclaredHandler::Script { name: named, .. } if *named == name))
    };
    let (named, mut others): (Vec<ChainLink>, Vec<ChainLink>) = scripts.into_iter().partition(is_named);
    let spent = |link: &ChainLink, once: bool| once && fired.script(event, &link.name());
    let mut links = Vec::new();
    if !declared.iter().any(|place| matches!(place, DeclaredHandler::External { .. })) {
        links.append(&mut others);
    }
    for place in declared {
        match place {
            DeclaredHandler::External { once } => {
                links.extend(std::mem::take(&mut others).into_iter().filter(|link| !spent(link, *once)));
            }
            DeclaredHandler::Script { name, once } => match named.iter().find(|link| link.name() == *name) {
                // A script that is named twice runs once.
                Some(link) if links.contains(link) || spent(link, *once) => {}
                Some(link) => links.push(link.clone()),
                None => links.push(ChainLink::Handler(Arc::new(bare(name, *once)))),
            },
            DeclaredHandler::Handler(handler) => {
                let qualifies =
                    built_in(&handler.name).is_none_or(|built_in| (built_in.qualifies)(hook_context));
                if qualifies && fired.allows(event, handler) {
                    links.push(ChainLink::Handler(handler.clone()));
                }
            }
        }
    }
    if event == HookEvent::TurnEnd && hook_context.base.auto_compact.is_some() {
        links.push(ChainLink::Handler(Arc::new(bare(COMPACT_TRIGGER, false))));
    }
    links
}

/// A handler without a recipe and parameters.
fn bare(name: &str, once: bool) -> Handler {
    Handler { recipe: String::new(), name: name.to_owned(), once, params: Map::new() }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
