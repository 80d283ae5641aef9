//! The order in which the hooks of an event run, and their combined result.
//!
//! A pure state machine: the session asks what to run [`next`](Chain::next), runs it, and
//! [reports](Chain::tell) the results, until there is nothing more to run; then it [finishes](Chain::finish).
//! Changes made by a hook are visible to the next one. No request of a hook is dropped silently: each one
//! that is not carried out is in the trail with its reason.
//!
//! - The first block or deny is final and ends the chain. (`must` compactions cannot be blocked.)
//! - The first mutation, callback, swap or compaction wins; later ones are conflicts.
//! - Follow-ups, notices and context of all hooks are kept.

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
use super::hook::{Hook, Kind};
use super::moment::Moment;
use super::outcome::{interpret, interpret_plain};
use super::output::{Ran, Resolution};

type InputCheck = dyn Fn(&Map<String, Value>) -> Result<(), String> + Send + Sync;

/// Checks whether the tool of a call accepts an input; the error is the reason if not.
#[derive(Clone)]
pub struct Takes(pub Arc<InputCheck>);

impl fmt::Debug for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Takes(..)")
    }
}

/// Something that runs at an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Link {
    Hook(Arc<Hook>),
    /// A handler that a recipe declares, or one that always runs.
    Handler(Arc<Handler>),
}

impl Link {
    /// Its name in the trail and in notices: `audit`, `compact:swap_context`, `builtin:compact-trigger`.
    pub fn name(&self) -> String {
        match self {
            Link::Hook(hook) => hook.name.clone(),
            Link::Handler(handler) if handler.recipe.is_empty() => handler.name.clone(),
            Link::Handler(handler) => format!("{}:{}", handler.recipe, handler.name),
        }
    }

    /// Whether it is the threshold of automatic compaction, which runs every round.
    pub(super) fn is_compact_trigger(&self) -> bool {
        matches!(self, Link::Handler(handler) if handler.name == COMPACT_TRIGGER)
    }

    /// The digest of what runs, in hexadecimal; empty for handlers.
    pub(super) fn digest(&self) -> String {
        match self {
            Link::Hook(hook) => hook.digest.clone(),
            Link::Handler(_) => String::new(),
        }
    }
}

/// The hooks that run at an event: higher priorities first, otherwise in the order of `hooks`. The caller
/// adds handlers after or between them.
pub fn links(hooks: &[Arc<Hook>], moment: &Moment) -> Vec<Link> {
    let mut fitting: Vec<&Arc<Hook>> =
        hooks.iter().filter(|hook| registered(hook, moment).is_some()).collect();
    fitting.sort_by_key(|hook| std::cmp::Reverse(hook.manifest.priority));
    fitting.into_iter().map(|hook| Link::Hook(hook.clone())).collect()
}

/// One run requested by the chain.
#[derive(Clone, Debug)]
pub struct Run {
    pub link: Link,
    /// The moment, including changes by earlier hooks.
    pub moment: Moment,
    /// The event name under which the hook registered.
    pub event_name: String,
}

/// The hooks of one event in progress.
#[derive(Clone, Debug)]
pub struct Chain {
    waiting: VecDeque<Link>,
    running: Vec<Run>,
    aggregate: Aggregate,
}

impl Chain {
    pub fn new(moment: Moment, links: Vec<Link>) -> Chain {
        Chain { waiting: links.into(), running: Vec::new(), aggregate: Aggregate::new(moment) }
    }

    /// Adds a check of the inputs that hooks give to a call.
    pub fn checking_inputs(mut self, takes: Takes) -> Chain {
        self.aggregate.takes = Some(takes);
        self
    }

    /// Returns what to run now; several runs are run concurrently. Returns the same runs until their results
    /// are reported with `tell`; `None` at the end of the chain.
    #[expect(clippy::should_implement_trait, reason = "no iterator: repeats until `tell` is called")]
    pub fn next(&mut self) -> Option<Vec<Run>> {
        if self.running.is_empty() && !self.aggregate.over {
            let first = self.waiting.pop_front()?;
            let mut links = vec![first];
            while self
                .waiting
                .front()
                .is_some_and(|link| group(link).is_some_and(|of_next| group(&links[0]) == Some(of_next)))
            {
                links.extend(self.waiting.pop_front());
            }
            self.running = links.into_iter().map(|link| self.run(link)).collect();
        }
        (!self.running.is_empty()).then(|| self.running.clone())
    }

    /// Records the results of the runs, in their order, with their durations. A missing result means that the
    /// run was abandoned.
    pub fn tell(&mut self, results: Vec<(Ran, Duration)>) {
        let mut results = results.into_iter();
        let runs = std::mem::take(&mut self.running);
        self.aggregate.is_concurrent = runs.len() > 1;
        self.aggregate.changed_by = None;
        for run in runs {
            let given_up = || (Ran::Skipped("it was abandoned".to_owned()), Duration::ZERO);
            let (ran, took) = results.next().unwrap_or_else(given_up);
            let event = run.moment.what.event();
            let outcome = match &run.link {
                // Instructions for a compaction are appended to those of hooks that ran concurrently.
                Link::Hook(hook) if event == HookEvent::PreCompact => {
                    interpret(hook, &self.aggregate.moment, &run.event_name, ran)
                }
                Link::Hook(hook) => interpret(hook, &run.moment, &run.event_name, ran),
                Link::Handler(_) => interpret_plain(event, ran),
            };
            self.aggregate.add(&run, outcome, took);
        }
    }

    /// The moment, including the changes by hooks so far.
    pub fn moment(&self) -> &Moment {
        &self.aggregate.moment
    }

    /// The combined result of everything reported.
    pub fn finish(self) -> Resolution {
        self.aggregate.resolution
    }

    fn run(&self, link: Link) -> Run {
        let moment = self.aggregate.moment.clone();
        let event_name = match &link {
            Link::Hook(hook) => registered(hook, &moment).unwrap_or(moment.what.event().name()).to_owned(),
            Link::Handler(_) => moment.what.event().name().to_owned(),
        };
        Run { link, moment, event_name }
    }
}

/// Claude Code runs the hooks of one group concurrently; groups are numbered within their file.
fn group(link: &Link) -> Option<(Option<&PathBuf>, usize)> {
    let Link::Hook(hook) = link else { return None };
    let Kind::Claude { group, .. } = hook.kind else { return None };
    Some((hook.files.first(), group))
}
