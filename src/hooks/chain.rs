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
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::event::HookEvent;
use super::fits::registered;
use super::fold::Fold;
use super::handlers::Handler;
use super::heard::{Said, handled, said};
use super::hook::{Hook, Kind};
use super::moment::Moment;
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

    /// Whether it is a handler without a recipe: the compaction trigger, or a placeholder for a script that
    /// was not found.
    pub(super) fn is_always_there(&self) -> bool {
        matches!(self, Link::Handler(handler) if handler.recipe.is_empty())
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
    fold: Fold,
}

impl Chain {
    pub fn new(moment: Moment, links: Vec<Link>) -> Chain {
        Chain { waiting: links.into(), running: Vec::new(), fold: Fold::new(moment) }
    }

    /// Adds a check of the inputs that hooks give to a call.
    pub fn checking_inputs(mut self, takes: Takes) -> Chain {
        self.fold.check_inputs(takes);
        self
    }

    /// Returns what to run now; several runs are run concurrently. Returns the same runs until their results
    /// are reported with `tell`; `None` at the end of the chain.
    #[expect(clippy::should_implement_trait, reason = "no iterator: repeats until `tell` is called")]
    pub fn next(&mut self) -> Option<Vec<Run>> {
        if self.running.is_empty() && !self.fold.is_over() {
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
    pub fn tell(&mut self, heard: Vec<(Ran, Duration)>) {
        let side_by_side = self.running.len() > 1;
        let mut heard = heard.into_iter();
        let runs = std::mem::take(&mut self.running);
        self.fold.begin_batch(side_by_side);
        for run in runs {
            let given_up = || (Ran::Skipped("it was given up".to_owned()), Duration::ZERO);
            let (ran, took) = heard.next().unwrap_or_else(given_up);
            let said: Said = match &run.link {
                Link::Hook(hook) => said(hook, self.heard_at(&run), &run.event_name, ran),
                Link::Handler(_) => handled(run.moment.what.event(), ran),
            };
            self.fold.hear(&run, said, took);
        }
    }

    /// The moment, including the changes by hooks so far.
    pub fn moment(&self) -> &Moment {
        self.fold.moment()
    }

    /// The combined result of everything reported.
    pub fn finish(self) -> Resolution {
        self.fold.finish()
    }

    /// The moment in which a run's output is interpreted: the one that it was given, except that instructions
    /// for a compaction are appended to those that hooks running concurrently have added.
    fn heard_at<'a>(&'a self, run: &'a Run) -> &'a Moment {
        match run.moment.what.event() {
            HookEvent::PreCompact => self.fold.moment(),
            HookEvent::SessionStart
            | HookEvent::UserMessageSend
            | HookEvent::BeforeToolCall
            | HookEvent::AfterToolCall
            | HookEvent::TurnEnd
            | HookEvent::AgentStop
            | HookEvent::PostCompact
            | HookEvent::SessionEnd => &run.moment,
        }
    }

    fn run(&self, link: Link) -> Run {
        let moment = self.fold.moment().clone();
        let event_name = match &link {
            Link::Hook(hook) => registered(hook, &moment).unwrap_or(moment.what.event().name()).to_owned(),
            Link::Handler(_) => moment.what.event().name().to_owned(),
        };
        Run { link, moment, event_name }
    }
}

/// Claude Code runs the hooks of one group concurrently; groups are numbered within their file.
fn group(link: &Link) -> Option<(Option<&Path>, usize)> {
    match link {
        Link::Hook(hook) => match &hook.kind {
            Kind::Claude { group, .. } => Some((hook.files.first().map(PathBuf::as_path), *group)),
            Kind::Script { .. } | Kind::Resident { .. } | Kind::Declared { .. } | Kind::Webhook { .. } => {
                None
            }
        },
        Link::Handler(_) => None,
    }
}
