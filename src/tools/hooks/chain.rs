//! The order in which the hooks of an event run, and their combined result.
//!
//! A pure state machine: the session asks what to run [`next`](Chain::next), runs it, and
//! [reports](Chain::record_results) the results, until there is nothing more to run; then it
//! [finishes](Chain::finish). Changes made by a hook are visible to the next one. No request of a hook is dropped
//! silently: each one that is not carried out is in the trail with its reason.
//!
//! - The first block or deny is final and ends the chain. (`must` compactions cannot be blocked.)
//! - The first mutation, callback, swap or compaction wins; later ones are conflicts.
//! - Follow-ups, notices and context of all hooks are kept.

use epitome_tools::ToolError;
use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::aggregate::Aggregate;
use super::event::HookEvent;
use super::filter::registered;
use super::handlers::{COMPACT_TRIGGER, Handler};
use super::hook::{Hook, HookKind};
use super::hook_context::HookContext;
use super::outcome::{interpret, interpret_plain};
use super::output::{RawOutcome, Resolution};

type InputCheck = dyn Fn(&Map<String, Value>) -> Result<(), ToolError> + Send + Sync;

/// Checks whether the tool of a call accepts an input. The error is the reason for a rejection.
#[derive(Clone)]
pub struct ToolInputCheck(pub Arc<InputCheck>);

impl fmt::Debug for ToolInputCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Takes(..)")
    }
}

/// Something that runs at an event.
#[derive(Clone, Debug, PartialEq)]
pub enum ChainLink {
    Hook(Arc<Hook>),
    /// A handler that a recipe declares, or one that always runs.
    Handler(Arc<Handler>),
}

impl ChainLink {
    /// Its name in the trail and in notices: `audit`, `compact:swap_context`, `builtin:compact-trigger`.
    pub fn name(&self) -> String {
        match self {
            ChainLink::Hook(hook) => hook.name.clone(),
            ChainLink::Handler(handler) if handler.recipe.is_empty() => handler.name.clone(),
            ChainLink::Handler(handler) => format!("{}:{}", handler.recipe, handler.name),
        }
    }

    /// Whether it is the trigger of automatic compaction, which runs every round.
    pub(super) fn is_compact_trigger(&self) -> bool {
        matches!(self, ChainLink::Handler(handler) if handler.name == COMPACT_TRIGGER)
    }
}

/// The hooks that run at an event: higher priorities first, otherwise in the order of `hooks`. The caller
/// adds handlers after or between them.
pub fn links(hooks: &[Arc<Hook>], hook_context: &HookContext) -> Vec<ChainLink> {
    let mut fitting: Vec<&Arc<Hook>> =
        hooks.iter().filter(|hook| registered(hook, hook_context).is_some()).collect();
    fitting.sort_by_key(|hook| std::cmp::Reverse(hook.manifest.priority));
    fitting.into_iter().map(|hook| ChainLink::Hook(hook.clone())).collect()
}

/// One run requested by the chain.
#[derive(Clone, Debug)]
pub struct ChainRun {
    pub link: ChainLink,
    /// The hook context, including changes by earlier hooks.
    pub hook_context: HookContext,
    /// The event name under which the hook registered.
    pub event_name: String,
}

/// The hooks of one event in progress.
#[derive(Clone, Debug)]
pub struct Chain {
    waiting: VecDeque<ChainLink>,
    running: Vec<ChainRun>,
    aggregate: Aggregate,
}

impl Chain {
    pub fn new(hook_context: HookContext, links: Vec<ChainLink>) -> Chain {
        Chain { waiting: links.into(), running: Vec::new(), aggregate: Aggregate::new(hook_context) }
    }

    /// The event of this chain.
    pub fn event(&self) -> HookEvent {
        self.aggregate.hook_context.what.event()
    }

    /// Adds a check of the tool inputs that hooks supply.
    pub fn checking_inputs(mut self, takes: ToolInputCheck) -> Chain {
        self.aggregate.takes = Some(takes);
        self
    }

    /// Returns what to run now; several runs are run concurrently. Returns the same runs until their results
    /// are reported with `record_results`, and `None` at the end of the chain.
    #[expect(clippy::should_implement_trait, reason = "no iterator: repeats until `tell` is called")]
    pub fn next(&mut self) -> Option<Vec<ChainRun>> {
        if self.running.is_empty() && !self.aggregate.over {
            let first = self.waiting.pop_front()?;
            let mut links = vec![first];
            let is_concurrent =
                |next: &mut ChainLink| group(next).is_some() && group(next) == group(&links[0]);
            let concurrent: Vec<_> =
                std::iter::from_fn(|| self.waiting.pop_front_if(is_concurrent)).collect();
            links.extend(concurrent);
            self.running = links.into_iter().map(|link| self.run(link)).collect();
        }
        (!self.running.is_empty()).then(|| self.running.clone())
    }

    /// Records the results of the runs, in their order, with their durations. A missing result means that the
    /// run was abandoned.
    pub fn record_results(&mut self, results: Vec<(RawOutcome, Duration)>) {
        let mut results = results.into_iter();
        let runs = std::mem::take(&mut self.running);
        self.aggregate.is_concurrent = runs.len() > 1;
        self.aggregate.changed_by = None;
        for run in runs {
            let given_up = || (RawOutcome::Skipped("it was abandoned".to_owned()), Duration::ZERO);
            let (ran, took) = results.next().unwrap_or_else(given_up);
            let event = run.hook_context.what.event();
            let outcome = match &run.link {
                // Instructions for a compaction are appended to those of hooks that ran concurrently.
                ChainLink::Hook(hook) if event == HookEvent::PreCompact => {
                    interpret(hook, &self.aggregate.hook_context, &run.event_name, ran)
                }
                ChainLink::Hook(hook) => interpret(hook, &run.hook_context, &run.event_name, ran),
                ChainLink::Handler(_) => interpret_plain(event, ran),
            };
            self.aggregate.add(&run, outcome, took);
        }
    }

    /// The hook context, including the changes by hooks so far.
    pub fn hook_context(&self) -> &HookContext {
        &self.aggregate.hook_context
    }

    /// The combined result of all reported runs.
    pub fn finish(self) -> Resolution {
        self.aggregate.resolution
    }

    fn run(&self, link: ChainLink) -> ChainRun {
        let hook_context = self.aggregate.hook_context.clone();
        let event_name = match &link {
            ChainLink::Hook(hook) => {
                registered(hook, &hook_context).unwrap_or(hook_context.what.event().name()).to_owned()
            }
            ChainLink::Handler(_) => hook_context.what.event().name().to_owned(),
        };
        ChainRun { link, hook_context, event_name }
    }
}

/// Claude Code runs the hooks of one group concurrently; groups are numbered within their file.
fn group(link: &ChainLink) -> Option<(Option<&PathBuf>, usize)> {
    let ChainLink::Hook(hook) = link else { return None };
    let HookKind::Claude { group, .. } = hook.kind else { return None };
    Some((hook.files.first(), group))
}
