//! The stages of a compaction: planning, writing the summary, composing the entry. The turn requests each of them.

mod ease;
mod hooks;
mod prepared;

use std::fmt::Display;

use tracing::Instrument as _;

use super::Session;
use crate::compacting::keep_of;
use crate::cpu_worker;
use crate::provider_errors::sentence;
use crate::summary::SummaryAttempt;
use crate::work::{AfterScan, JobResult, PendingResolution, TurnFault};
use crate::{CompactionState, NoticeSeverity, WorkerFault, effects};
use epitome_compaction::{
    self as compaction, CompactionDecision, CompactionInput, CompactionPlan, CompactionRefusal,
    CompactionRequest, Summary,
};
use epitome_config::Summariser;
use epitome_hooks::output::HistoryTail;
use epitome_provider::ProviderError;
use epitome_provider::endpoint::Endpoint;
use epitome_thread::{Change, Mask, ModelName, Seq, Trigger, Usage};
use epitome_turn::{CHANGED, CompactionResult, Effect, EffectResult};

/// The source of spending on summaries that are not used, as recorded in the log.
const UNUSED_SUMMARY: &str = "a summary that is not used";

impl Session {
    /// Returns the result of a compaction to the turn. If none was made, it is dropped: the next compaction runs its own
    /// hooks and decides itself what to keep.
    pub(super) fn end_compaction(&mut self, answer: CompactionResult) {
        let state = match &answer {
            CompactionResult::Done(_) => return self.answer_turn(EffectResult::Compacted(answer)),
            CompactionResult::Nothing => CompactionState::Cancelled,
            CompactionResult::Failed(why) => CompactionState::Failed(why.clone()),
        };
        self.drop_compaction();
        self.compactor.show_ended(&self.core, state);
        self.answer_turn(EffectResult::Compacted(answer));
    }

    pub(super) fn fail_compaction(&mut self, why: impl Display) {
        self.end_compaction(CompactionResult::Failed(why.to_string()));
    }

    /// Drops the compaction. Its unused summary was paid for, so the usage is recorded.
    pub(super) fn drop_compaction(&mut self) {
        let unused = self.compactor.forget();
        self.spend_on_unused(unused);
    }

    /// Sets the `_meta` of the prompt's answer that describes the compaction to programs.
    pub(super) fn compaction_meta(&mut self, status: &str, tokens: Option<(u64, u64)>) {
        let Some(work) = &mut self.work else { return };
        let mut compaction = serde_json::json!({ "status": status });
        if let Some((before, after)) = tokens {
            compaction["pre_tokens"] = before.into();
            compaction["post_tokens"] = after.into();
        }
        work.meta = Some(serde_json::json!({ "epitome": { "compaction": compaction } }));
    }

    // ── The plan ───────────────────────────────────────────────────────────────────────────────

    /// Plans a compaction, if one is possible. Without a frame, scans the instruction files first.
    pub(super) fn plan_compaction(&mut self, why: Trigger) {
        if why == Trigger::Overflow && self.core.is_first_request_of_child() {
            if let Some(work) = &mut self.work {
                work.fault = TurnFault::TooLong;
            }
            return self.fail_compaction("the history that it was given is too long");
        }
        if why == Trigger::Overflow
            && let Some(pins) =
                compaction::pins_too_large(&self.core.ruler(), &self.core.thread, self.core.view_tokens_max())
        {
            return self.fail_compaction(format!("{pins}. Unpin some of them first."));
        }
        match self.core.thread.frame() {
            None => self.scan_first(AfterScan::PlanCompaction(why)),
            Some(_) => self.decide_compaction(why),
        }
    }

    /// Decides on the CPU worker what the compaction does.
    pub(super) fn decide_compaction(&mut self, why: Trigger) {
        let deciding = self.compactor.deciding_requested(&mut self.core, why);
        self.start_job(cpu_worker::run(deciding), move |decided| JobResult::CompactionPlanned {
            why,
            decided,
        });
    }

    /// Takes the decision. If the view has changed since, the turn requests another plan.
    pub(super) fn compaction_planned(&mut self, why: Trigger, decided: Option<(Seq, CompactionDecision)>) {
        let Some((revision, decision)) = decided else {
            return self.fail_compaction(WorkerFault);
        };
        if revision == self.core.thread.view().revision() {
            match decision {
                CompactionDecision::Nothing(reason) => return self.nothing_to_compact(why, &reason),
                CompactionDecision::Prune(masks) => return self.prune(masks, why),
                CompactionDecision::Summarise(plan) => self.compactor.begin(plan),
            }
        }
        self.answer_turn(EffectResult::Planned(revision));
    }

    // ── The summary ────────────────────────────────────────────────────────────────────────────

    /// Gets the text that replaces the plan's part of the view: from a hook, prepared in advance or from a model; or no
    /// text.
    pub(super) fn summarise(&mut self) {
        let Some(plan) = self.compactor.plan().cloned() else { return };
        if self.compactor.written().text.is_some() {
            return self.answer_turn(EffectResult::Summarised);
        }
        // No model is called, so none has to be configured.
        if self.core.settings.compaction.model == Summariser::None {
            return self.keep_summary(Summary::default());
        }
        // If the model has to be looked for, the compaction is planned again once it is found.
        let Some(endpoint) = self.endpoint_for(&Effect::PlanCompaction(plan.trigger)) else { return };
        if let Err(error) = self.ensure_frame() {
            return self.fail_compaction(error);
        }
        match self.compactor.take_prepared(&plan) {
            Ok((prepared, written)) => {
                self.compactor.begin(prepared);
                return self.keep_summary(written);
            }
            Err(unused) => self.spend_on_unused(unused),
        }
        self.write_summary(endpoint, &plan);
    }

    fn keep_summary(&mut self, written: Summary) {
        self.compactor.keep_written(written);
        self.answer_turn(EffectResult::Summarised);
    }

    /// Has a model write the summary. Clients see it as it streams.
    fn write_summary(&mut self, main: Endpoint, plan: &CompactionPlan) {
        let instruction = self.compactor.instruction(&self.core, &self.recipes);
        let pieces = self.compactor.show_begun(&mut self.core);
        let writing = self.compactor.writing(&self.core, main, plan, instruction, pieces);
        let scope = self.core.trace.scope().clone();
        self.start_job(
            effects::guarded(writing, SummaryAttempt::unfinished).instrument(scope),
            JobResult::SummaryWritten,
        );
    }

    /// Shortens old tool results, without a model call and without hooks.
    fn prune(&mut self, masks: Vec<Mask>, trigger: Trigger) {
        let (ruler, thread) = (self.core.ruler(), self.core.thread.clone());
        let revision = thread.view().revision();
        let pruning = move || compaction::pruned(&ruler, &thread, masks, trigger);
        self.start_job(cpu_worker::run(pruning), move |pruned| JobResult::CompactionPruned {
            revision,
            pruned,
        });
    }

    pub(super) fn compaction_pruned(&mut self, revision: Seq, pruned: Option<Change>) {
        let change = match pruned {
            Some(change) if revision == self.core.thread.view().revision() => self.core.sized(change),
            Some(_) => return self.fail_compaction(CHANGED),
            None => return self.fail_compaction(WorkerFault),
        };
        if let Change::Pruned { tokens_before, tokens_after, .. } = &change {
            self.compaction_meta("pruned", Some((*tokens_before, *tokens_after)));
        }
        self.core.warn_of_unsent_files(&change);
        self.end_compaction(CompactionResult::Done(Box::new(change)));
    }

    pub(super) fn summary_written(&mut self, attempt: SummaryAttempt) {
        self.compactor.show_last_pieces(&self.core);
        let summary = self.take_attempt(attempt).unwrap_or_else(|error| {
            tracing::warn!(session = %self.core.id(), %error, "no summary: the computed tables replace it");
            Summary { fallback: Some(sentence(&error)), ..Summary::default() }
        });
        self.keep_summary(summary);
    }

    // ── The change ─────────────────────────────────────────────────────────────────────────────

    /// Composes the compaction's entry on the CPU worker. Fails if it would gain nothing, or if hooks have edited the view
    /// since a model wrote the summary, which may contain what they removed.
    pub(super) fn compose(&mut self) {
        // A pruning has no plan, and is not made again.
        let Some(mut plan) = self.compactor.plan().cloned() else {
            return self.fail_compaction(CHANGED);
        };
        let written = self.compactor.written().clone();
        if plan.revision != self.core.thread.view().revision() {
            if written.by.is_some() {
                return self.fail_compaction(CHANGED);
            }
            let rewritten = self.core.thread.rewritten();
            plan.masks.retain(|mask| !rewritten.contains(mask.entry));
        }
        let id = self.compactor.announced_id().unwrap_or_else(|| self.core.fresh_message());
        let (ruler, thread) = (self.core.ruler(), self.core.thread.clone());
        let budget = self.compactor.budget_now(&mut self.core);
        let composing = move || {
            compaction::compacted(&CompactionInput::new(&ruler, &thread, &budget), &plan, id, written)
        };
        self.start_job(cpu_worker::run(composing), JobResult::CompactionComposed);
    }

    pub(super) fn compaction_composed(&mut self, composed: Option<Result<Change, CompactionRefusal>>) {
        let why = self.compactor.plan().map_or(Trigger::Manual, |plan| plan.trigger);
        match composed {
            Some(Ok(change)) => {
                let change = self.core.sized(change);
                self.answer_turn(EffectResult::Composed(Box::new(change)));
            }
            Some(Err(no_gain)) => self.nothing_to_compact(why, &no_gain),
            None => self.fail_compaction(WorkerFault),
        }
    }

    /// Accepts a composed change that still fits the view. If a hook called the recipe that wrote the summary, the
    /// hooks for the recipe's stop run first.
    pub(super) fn accept_compaction(&mut self, change: Change) {
        let Some(why) = self.compactor.plan().map(|plan| plan.trigger) else { return };
        self.core.warn_of_unsent_files(&change);
        let shown = self.compactor.written().text.clone().unwrap_or_default();
        if why == Trigger::Hook && self.ask_of_callback(&shown, &change) {
            return;
        }
        if why == Trigger::Manual {
            self.compactor.show_to_hooks(shown);
        }
        self.end_compaction(CompactionResult::Done(Box::new(change)));
    }

    /// Composes the change that replaces the history by a reply's text (handler `swap_context`), for the hook that
    /// requested it.
    pub(super) fn swap_text(&mut self, pending: PendingResolution, text: &str, keep: HistoryTail) {
        let revision = self.core.thread.view().revision();
        let Some(summary) = compaction::extract(text) else {
            return self.refuse_action(pending, "the reply has no text that could be a summary");
        };
        let request = CompactionRequest {
            keep: keep_of(keep),
            ..self.compactor.request(&self.core, None, Trigger::Hook)
        };
        let (budget, ruler) = (self.compactor.budget_now(&mut self.core), self.core.ruler());
        let thread = self.core.thread.clone();
        let id = self.core.fresh_message();
        let composing = move || {
            let input = CompactionInput::new(&ruler, &thread, &budget);
            match compaction::decide(&input, &request) {
                CompactionDecision::Summarise(plan) => {
                    let text = Some(summary);
                    let written = Summary { text, is_reply: true, ..Summary::default() };
                    compaction::compacted(&input, &plan, id, written)
                }
                CompactionDecision::Nothing(reason) => Err(reason),
                CompactionDecision::Prune(_) => Err(CompactionRefusal::NoGain),
            }
        };
        self.hooks.keep_pending(pending);
        self.start_job(cpu_worker::run(composing), move |made| JobResult::SwapComposed { revision, made });
    }

    pub(super) fn swap_composed(&mut self, revision: Seq, made: Option<Result<Change, CompactionRefusal>>) {
        let Some(mut pending) = self.hooks.take_pending() else { return };
        match made {
            _ if revision != self.core.thread.view().revision() => self.refuse_action(pending, CHANGED),
            Some(Ok(change)) => {
                pending.answer.swap = Some(Box::new(change));
                self.settle_round(pending);
            }
            Some(Err(no_gain)) => self.refuse_action(pending, format!("nothing is gained: {no_gain}")),
            None => self.refuse_action(pending, WorkerFault),
        }
    }

    fn nothing_to_compact(&mut self, why: Trigger, no_gain: &CompactionRefusal) {
        self.drop_compaction();
        let text = format!("Nothing to compact: {no_gain}.");
        match why {
            Trigger::Manual | Trigger::Overflow => {
                let note = self.core.note(text);
                if let Err(error) = self.core.commit(note) {
                    return self.abandon(&error);
                }
            }
            Trigger::Threshold | Trigger::Hook | Trigger::Must => {
                if why == Trigger::Hook {
                    self.core.notify(NoticeSeverity::Info, text);
                }
                if self.compactor.note_no_gain(&self.core) {
                    let text = "Compacting would gain nothing now; it pauses until you use /compact or the conversation grows.";
                    self.core.notify(NoticeSeverity::Info, text.to_owned());
                }
            }
        }
        self.compaction_meta("nothing_to_do", None);
        self.end_compaction(CompactionResult::Nothing);
    }

    /// Applies the context windows that an attempt revealed, records its wasted cost, and returns its summary.
    fn take_attempt(&mut self, attempt: SummaryAttempt) -> Result<Summary, ProviderError> {
        for (model, limit) in attempt.limits {
            let effect = self.core.model.narrow(&model, limit);
            self.core.model_learned(effect);
        }
        for spent in attempt.spent {
            self.spend_on_unused(Some(spent));
        }
        attempt.summary
    }

    /// Records the cost of a summary that is not used.
    fn spend_on_unused(&mut self, unused: Option<(ModelName, Usage)>) {
        if let Some((model, usage)) = unused {
            self.spend(model, usage, UNUSED_SUMMARY.to_owned());
        }
    }
}
