//! Dispatches events of a session to its hooks: builds the hook context, selects the hooks, and runs them as a job.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use tracing::Instrument as _;

use super::Session;
use crate::NoticeSeverity;
use crate::compacting::shown;
use crate::core::Core;
use crate::effects;
use crate::hook_host::HookNews;
use crate::provider_errors::with_full_stop;
use crate::work::JobResult;
use epitome_hooks::chain::{Chain, ChainLink, ToolInputCheck};
use epitome_hooks::event::HookEvent;
use epitome_hooks::hook_context::{
    ContextFacts, EventData, HookContext, HookRound, InvokedBy, PayloadBase, UsageFacts,
};
use epitome_hooks::output::Resolution;
use epitome_hooks::run;
use epitome_thread::{Change, Entry, HookRun, HookRunResult, Seq};
use epitome_turn::HookPoint;

/// The context window reported to hooks if it is unknown. Not 0, because scripts divide by it.
const WINDOW_UNKNOWN: u64 = 128_000;

/// Time limit for hooks at the end of a session; closing the session waits for them.
const END_TIME_MAX: Duration = Duration::from_secs(3);
/// The same after a prompt that failed.
const FAILURE_TIME_MAX: Duration = Duration::from_secs(10);

impl Core {
    fn usage_facts(&mut self) -> UsageFacts {
        let used = self.tokens_in_context();
        let size = self.model.endpoint().map_or(WINDOW_UNKNOWN, |endpoint| endpoint.window).max(1);
        let last = self.usage_now().map(|now| now.last).unwrap_or_default();
        UsageFacts {
            input: last.input,
            output: last.output,
            used,
            size,
            cache_read: last.cache_read,
            cache_write: last.cache_write,
            cost: self.model.cost(),
        }
    }

    fn context_facts(&self) -> ContextFacts {
        let last = self.thread.last_compaction().map_or(Seq(0), |entry| entry.seq);
        let is_compaction = |entry: &&Arc<Entry>| matches!(entry.change, Change::Compacted { .. });
        let shown = self.thread.view().entries();
        ContextFacts {
            entries: shown.len(),
            since_compaction: shown.iter().filter(|entry| entry.seq > last).count(),
            compactions: self.thread.view_changes().iter().filter(is_compaction).count(),
            pinned: self.thread.pinned(),
        }
    }
}

impl Session {
    /// Waits until the hooks are read, if the session was resumed only for its end.
    async fn await_hooks(&mut self) {
        let until = tokio::time::Instant::now() + END_TIME_MAX;
        while !self.hooks.is_read() {
            let done = tokio::time::timeout_at(until, self.core.background.join_next()).await;
            match done {
                Ok(Some(Ok(done))) => self.background_ended(done),
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}

impl Session {
    /// Runs the hooks of an event. Returns `ask` if there are none.
    pub(super) fn run_hooks(&mut self, what: EventData, ask: HookPoint) -> Option<HookPoint> {
        if !self.may_run(what.event()) {
            return Some(ask);
        }
        let hook_context = self.hook_context(what);
        let links = self.links(&hook_context);
        if links.is_empty() || self.work.is_none() {
            return Some(ask);
        }
        self.start_hooks(links, hook_context, ask);
        None
    }

    /// Whether anything may run at an event; checked before the hook context is built.
    pub(super) fn may_run(&self, event: HookEvent) -> bool {
        let declared = self.work.as_ref().is_some_and(|work| work.run.handlers.contains_key(&event));
        declared || self.hooks.has_any_for(event)
    }

    /// The handlers and scripts to run, in order.
    pub(super) fn links(&self, hook_context: &HookContext) -> Vec<ChainLink> {
        let recipe = self.work.as_ref().and_then(|work| work.run.recipe.as_ref());
        let all = recipe.is_none_or(|recipe| recipe.run_hooks);
        let Some(work) = &self.work else { return self.hooks.scripts(hook_context, all) };
        let declared = work.run.handlers.get(&hook_context.what.event()).map(Vec::as_slice);
        self.hooks.links(hook_context, declared, all)
    }

    /// Starts these hooks as a job of the running turn. Does nothing without a turn.
    pub(super) fn start_hooks(&mut self, links: Vec<ChainLink>, hook_context: HookContext, ask: HookPoint) {
        let runner = self.hooks.runner(&self.core);
        let event = hook_context.what.event();
        let takes = self.takes(&hook_context.what);
        let scope = self.core.trace.scope().clone();
        let job = async move {
            let chain = Chain::new(hook_context, links);
            let chain = match takes {
                Some(takes) => chain.checking_inputs(takes),
                None => chain,
            };
            let perform = run::perform(&runner, chain);
            effects::guarded(perform, || internal_error(event)).await
        };
        let Some(work) = &mut self.work else { return };
        let jobs = match ask {
            HookPoint::AfterTool(_) => &mut work.outcome_hooks,
            _ => &mut work.jobs,
        };
        let ended = job.instrument(scope);
        jobs.spawn(async move { JobResult::HooksEnded { point: ask, resolution: Box::new(ended.await) } });
    }

    /// The check that applies when a hook changes the input of a call.
    fn takes(&self, what: &EventData) -> Option<ToolInputCheck> {
        let EventData::BeforeToolCall(call) = what else { return None };
        let tool = self.core.services.toolbox.get(&call.tool)?.clone();
        let workspace = self.core.workspace.clone();
        let takes = move |input: &Map<String, Value>| {
            tool.access(&Value::Object(input.clone()), &workspace).map(drop)
        };
        Some(ToolInputCheck(Arc::new(takes)))
    }

    /// Returns the event with everything else that payloads contain.
    pub(super) fn hook_context(&mut self, what: EventData) -> HookContext {
        let usage = self.core.usage_facts();
        let lineage = &self.core.lineage;
        let recipe = self.work.as_ref().and_then(|work| work.run.recipe.as_ref());
        let recipe = recipe.map_or_else(|| lineage.recipe.clone(), |recipe| recipe.id.clone());
        let ordered = self.work.as_ref().filter(|work| work.turn.compacted_since_reply());
        let ordered =
            ordered.and_then(|work| work.run.recipe.clone()).filter(|recipe| recipe.is_compaction());
        let compaction = match &what {
            EventData::AgentStop { .. } => {
                ordered.and_then(|recipe| shown::stop_of_compaction(&mut self.core, &recipe))
            }
            _ => None,
        };
        let (callback_args, view) = compaction
            .unwrap_or_else(|| (self.core.lineage.callback_args.clone(), self.core.thread.view().clone()));
        let lineage = &self.core.lineage;
        let base = PayloadBase {
            session: self.core.id().0.clone(),
            cwd: self.core.thread.cwd().to_path_buf(),
            invoked_by: if lineage.depth == 0 { InvokedBy::Main } else { InvokedBy::Subagent },
            recipe,
            callback_args,
            callback_depth: lineage.depth,
            model: self.core.model.endpoint().map(|endpoint| endpoint.name.clone()),
            mode: self.core.thread.mode(),
            revision: self.core.thread.view().revision(),
            view,
            at: now(),
            usage,
            auto_compact: self.core.auto_compact_at(usage.size),
            context: self.core.context_facts(),
        };
        HookContext { base, what }
    }

    /// The round that just ended, as reported to hooks.
    pub(super) fn round(&self) -> HookRound {
        let newest = self.core.thread.entries().iter().rev().find_map(|entry| match &entry.change {
            Change::Replied { message, .. } => Some(message),
            _ => None,
        });
        let summary = self.compactor.summary();
        HookRound {
            response: match (summary, newest) {
                (Some(summary), _) => summary.clone(),
                (None, Some(message)) => message.text(),
                (None, None) => String::new(),
            },
            message: newest.filter(|_| summary.is_none()).map(|message| message.id),
            number: self.work.as_ref().map_or(1, |work| work.turn.rounds()).max(1),
            session_number: self.core.thread.replies().max(1),
            tools_used: summary.is_none() && newest.is_some_and(|message| message.calls().next().is_some()),
        }
    }

    /// Runs the hooks of an event that the process may not outlive, such as the end of a session, with a time limit.
    pub(super) async fn run_last_hooks(&mut self, what: EventData) {
        let event = what.event();
        if event == HookEvent::SessionEnd {
            if !self.hooks.has_started() || self.core.lineage.is_child() {
                return;
            }
            self.await_hooks().await;
        }
        if !self.may_run(event) {
            return;
        }
        let hook_context = self.hook_context(what);
        let links = self.links(&hook_context);
        let runner = self.hooks.runner(&self.core);
        let perform = run::perform(&runner, Chain::new(hook_context, links))
            .instrument(self.core.trace.session().clone());
        let limit = if event == HookEvent::SessionEnd { END_TIME_MAX } else { FAILURE_TIME_MAX };
        let until = tokio::time::Instant::now() + limit;
        tokio::pin!(perform);
        // The session's task waits here, so it has to answer the calls of resident hooks itself.
        let ended = loop {
            tokio::select! {
                biased;
                resolution = &mut perform => break Some(resolution),
                () = tokio::time::sleep_until(until) => break None,
                Some(news) = self.hooks.next_news() => match news {
                    HookNews::Call(call) => self.serve(call),
                    HookNews::Late(news) => self.hooks.late().take_in(&self.core, news),
                },
            }
        };
        let Some(mut resolution) = ended else {
            tracing::warn!(session = %self.core.id(), %event, "hooks did not end in time");
            return;
        };
        for change in self.record(event, &mut resolution) {
            drop(self.core.commit(change));
        }
    }

    // ── The trail ──────────────────────────────────────────────────────────────────────────────

    /// Returns the change that records what hooks did. Shows the user the hooks' notices and failures.
    pub(super) fn record(&mut self, event: HookEvent, resolution: &mut Resolution) -> Vec<Change> {
        if let Some(work) = &mut self.work {
            work.turn.count_quiet_hooks(resolution.quiet);
        }
        for (hook, text) in std::mem::take(&mut resolution.notices) {
            self.core.notify(NoticeSeverity::Info, format!("{hook}: {text}"));
        }
        for name in std::mem::take(&mut resolution.quiet_names) {
            self.count_success(event, &name);
        }
        let runs = std::mem::take(&mut resolution.trail);
        for run in &runs {
            self.report_run(event, run);
            if run.verdict == HookRunResult::Done {
                self.count_success(event, &run.hook);
            }
        }
        let event = event.name().to_owned();
        if runs.is_empty() { Vec::new() } else { vec![Change::Hooked { event, runs }] }
    }

    /// A handler or script marked `once` is not run again during this invocation of its recipe.
    fn count_success(&mut self, event: HookEvent, name: &str) {
        let declared = self.work.as_ref().and_then(|work| work.run.handlers.get(&event));
        self.hooks.succeeded(event, name, declared);
    }

    /// Notifies the user of a hook's failure, once for each hook. The trail contains all of them.
    fn report_run(&mut self, event: HookEvent, run: &HookRun) {
        let severity = match run.verdict {
            // The user sees the effect itself.
            HookRunResult::Done => return,
            HookRunResult::Nothing if run.remarks.is_empty() => return,
            HookRunResult::Nothing | HookRunResult::Refused => NoticeSeverity::Info,
            HookRunResult::Failed | HookRunResult::Skipped => NoticeSeverity::Warning,
        };
        tracing::info!(session = %self.core.id(), hook = run.hook, %event, end = run.end, "a hook has a remark");
        if !self.core.clients.is_first_of_hook(run) {
            return;
        }
        let why = run.remarks.first().cloned().unwrap_or_else(|| run.end.clone());
        let asked = if run.asked.is_empty() { String::new() } else { format!(": {}", run.asked) };
        let why = with_full_stop(&why);
        let text = format!("Hook {} ({event}{asked}): {why} More: /why or epitome hooks log.", run.hook);
        self.core.notify(severity, text);
    }
}

/// Milliseconds since the Unix epoch.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The result of hooks whose run panicked.
pub(super) fn internal_error(event: HookEvent) -> Resolution {
    let run = HookRun {
        hook: "epitome".to_owned(),
        event: event.name().to_owned(),
        end: "an internal error".to_owned(),
        verdict: HookRunResult::Failed,
        remarks: vec![
            "Running the hooks failed with an internal error of Epitome; its log has the details.".to_owned(),
        ],
        ..HookRun::default()
    };
    Resolution { trail: vec![run], ..Resolution::default() }
}
