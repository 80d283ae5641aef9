//! Compaction in a session: who writes the summary, what is committed. When one is due, what it may take and what
//! clients see of it is in the files beside this one.

mod budget;
mod ease;
mod hooks;
mod order;
mod prepared;
mod shown;
mod when;

use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::actor::Session;
use super::child_requests::UNUSED_SUMMARY;
use super::core::Core;
use super::effects;
use super::recipe_catalog::SessionRecipes;
use super::recipes::RenderedText;
use super::replies::sentence;
use super::summary::{self, Attempt, SummaryJob, WrittenSummary};
use super::work::{JobResult, PendingResolution, ScanPurpose, TurnFault};
use super::{CompactionState, NoticeSeverity, cpu_worker};
use epitome_compaction::backoff::CompactionBackoff;
use epitome_compaction::{
    self as compaction, CompactionDecision, CompactionInput, CompactionPlan, CompactionRequest, SummaryResult,
};
use epitome_config::Summariser;
use epitome_hooks::output::HistoryTail;
use epitome_provider::ProviderError;
use epitome_provider::endpoint::Endpoint;
use epitome_recipe::render::ShellOutputs;
use epitome_thread::{Change, Content, Mask, Seq, Trigger};
use epitome_turn::{CHANGED, CompactionReason, CompactionResult, Effect, EffectResult};

pub(super) use budget::{keep_of, trigger_of};
pub use order::CompactionOrder;
pub(super) use order::without_swap;
use prepared::PreparedSummary;
use shown::Announced;

/// The compactions of a session: the one that the running turn makes, and what outlasts turns.
#[derive(Default)]
pub struct Compactor {
    backoff: CompactionBackoff,
    /// A summary that is written before it is needed.
    prepared: PreparedSummary,
    /// Tokens in context when old outcomes were last looked through.
    eased_at: u64,
    /// How the next compaction of the turn is to be made.
    order: CompactionOrder,
    /// The compaction that is planned.
    draft: Option<CompactionDraft>,
    /// The compaction that clients were told of.
    announced: Option<Announced>,
    /// The summary, as it is being written.
    pieces: Option<mpsc::Receiver<String>>,
    /// The summary that hooks see before it takes the history's place.
    summary: Option<String>,
}

impl Compactor {
    /// What of it outlives a rest of its session.
    pub(super) fn at_rest(self) -> Compactor {
        Compactor { backoff: self.backoff, ..Compactor::default() }
    }

    /// Forgets the summary that was prepared: the view that it is for may be none that ever was.
    pub(super) fn forget_prepared(&mut self) {
        self.prepared = PreparedSummary::default();
    }

    /// Forgets what belonged to the turn.
    pub(super) fn end_turn(&mut self) {
        let Compactor { backoff, prepared, eased_at, .. } = std::mem::take(self);
        *self = Compactor { backoff, prepared, eased_at, ..Compactor::default() };
    }

    pub(super) fn order(&mut self, order: CompactionOrder) {
        self.order = order;
    }

    /// What a model does to write the summary for a plan. The frame must be there.
    pub(super) fn writing(
        &self,
        core: &Core,
        main: Endpoint,
        plan: &CompactionPlan,
        instruction: String,
        pieces: mpsc::Sender<String>,
    ) -> impl Future<Output = Attempt> + Send + use<> {
        let settings = core.settings.shared();
        let ordered = self.order.summary_tokens_max;
        let mut snapshot = core.snapshot(ordered.unwrap_or(settings.compaction.max_summary_tokens));
        snapshot.view = core.thread.view().replaced_by(plan.through);
        let (http, services) = (core.services.http.clone(), core.services.clone());
        let environment = core.workspace.environment.clone();
        let focus = plan.focus.is_some();
        let (ruler, thread, budget, plan) =
            (core.ruler(), core.thread.clone(), self.budget(core), plan.clone());
        async move {
            let tables = compaction::tables(&ruler, &thread, &budget, &plan);
            let instruction = summary::with_tables(instruction, &tables);
            let tokens = snapshot.tokens();
            let writer = summary::writer(&services, &settings, &environment, &main, tokens).await;
            let order = SummaryJob {
                http,
                main,
                writer,
                snapshot,
                instruction,
                focus,
                message_chars: settings.compaction.message_chars,
                time: (settings.compaction.summary_timeout, settings.compaction.timeout),
                pieces,
            };
            let attempt = summary::write(&order).await;
            if let Some(other) = &order.writer {
                let own = attempt
                    .limits
                    .iter()
                    .filter(|(model, limit)| *model == other.name && *limit < other.window);
                own.for_each(|(_, limit)| services.learned.learn_window(other, *limit));
            }
            attempt
        }
    }

    /// What the model is told to write.
    fn instruction(&self, core: &Core, recipes: &SessionRecipes) -> String {
        let order = &self.order;
        match (&order.instruction, &order.recipe) {
            (Some(instruction), _) => instruction.clone(),
            (None, Some(recipe)) => match core.render(recipe, &order.arguments, &ShellOutputs::new()) {
                RenderedText::Done(text) => text,
                RenderedText::Needs(_) | RenderedText::Failed(_) => recipe.body.clone(),
            },
            (None, None) => recipes.summary_instruction(core),
        }
    }

    /// The summary that hooks see before it takes the history's place.
    pub(super) fn summary(&self) -> Option<&String> {
        self.summary.as_ref()
    }
}

/// A compaction that is planned; how far it is, the turn knows.
#[derive(Clone)]
pub struct CompactionDraft {
    why: CompactionReason,
    plan: CompactionPlan,
    /// What stands for the plan's part of the view, once it is there.
    written: SummaryResult,
}

impl Core {
    /// What an attempt came to, once what it tells of windows is known.
    pub(super) fn take_attempt(&mut self, attempt: Attempt) -> Result<WrittenSummary, ProviderError> {
        for (model, limit) in attempt.limits {
            let effect = self.model.narrow(&model, limit);
            self.model_learned(effect);
        }
        attempt.summary
    }

    /// Whether a child has had no reply yet: then nothing is lost where it begins anew with less.
    fn is_first_request_of_child(&self) -> bool {
        let own = self.thread.entries().iter().skip(self.lineage.own_from.0 as usize);
        self.lineage.is_child()
            && !own.into_iter().any(|entry| matches!(entry.change, Change::Replied { .. }))
    }

    /// Whether the newest that the user said holds an image or a document, and is not sent any more.
    fn drops_attachments(&self, change: &Change) -> bool {
        let Change::Compacted { through, summary, .. } = change else { return false };
        let is_attached = |part: &Content| matches!(part, Content::Image { .. } | Content::Document { .. });
        let said = self.thread.view().entries().iter().rev().find_map(|entry| match &entry.change {
            Change::Said { message, .. } => Some((entry.seq, message)),
            _ => None,
        });
        said.is_some_and(|(seq, message)| {
            seq <= *through
                && message.content.iter().any(is_attached)
                && !summary.content.iter().any(is_attached)
        })
    }
}

impl Session {
    /// Tells the turn what came of a compaction. How one is to be made that was not made is forgotten: the
    /// next one asks its hooks anew, and keeps what it should itself.
    pub(super) fn end_compaction(&mut self, answer: CompactionResult) {
        let state = match &answer {
            CompactionResult::Done(_) => return self.answer_turn(EffectResult::Compacted(answer)),
            CompactionResult::Nothing => CompactionState::Cancelled,
            CompactionResult::Failed(why) => CompactionState::Failed(why.clone()),
        };
        self.drop_draft();
        self.compactor.order = CompactionOrder::default();
        self.compactor.show_ended(&self.core, state);
        self.answer_turn(EffectResult::Compacted(answer));
    }

    /// A summary that is not used was paid for all the same.
    fn drop_draft(&mut self) {
        let draft = self.compactor.draft.take();
        if let Some((model, usage)) = draft.and_then(|draft| draft.written.by) {
            self.spend(model, usage, UNUSED_SUMMARY.to_owned());
        }
    }

    /// What the answer to the prompt tells programs of the compaction.
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

    /// Plans a compaction, where it can be one, once the files of instructions were looked at.
    pub(super) fn plan_compaction(&mut self, why: CompactionReason) {
        if why == CompactionReason::Overflow && self.core.is_first_request_of_child() {
            if let Some(work) = &mut self.work {
                work.fault = TurnFault::TooLong;
            }
            let reason = "the history that it was given is too long".to_owned();
            return self.end_compaction(CompactionResult::Failed(reason));
        }
        if why == CompactionReason::Overflow
            && let Some(pins) =
                compaction::pins_too_large(&self.core.ruler(), &self.core.thread, self.core.view_tokens_max())
        {
            return self
                .end_compaction(CompactionResult::Failed(format!("{pins}. Unpin some of them first.")));
        }
        match self.core.thread.frame() {
            None => self.scan_first(ScanPurpose::Compaction(why)),
            Some(_) => self.plan(why),
        }
    }

    /// Decides what the compaction does, away from this task.
    pub(super) fn plan(&mut self, why: CompactionReason) {
        let focus = self.compactor.order.focus.clone();
        let deciding = self.compactor.deciding(&mut self.core, focus, why);
        self.run_on_cpu(deciding, move |decided| JobResult::Planned(why, decided));
    }

    /// The turn has it planned anew where the view is another one by now.
    pub(super) fn planned(&mut self, why: CompactionReason, decided: Option<(Seq, CompactionDecision)>) {
        let Some((revision, decision)) = decided else {
            return self.end_compaction(CompactionResult::Failed(cpu_worker::FAULT.to_owned()));
        };
        if revision == self.core.thread.view().revision() {
            match decision {
                CompactionDecision::Nothing(reason) => return self.nothing_to_compact(why, &reason),
                CompactionDecision::Prune(masks) => return self.prune(masks, trigger_of(why)),
                CompactionDecision::Summarise(plan) => {
                    self.compactor.draft =
                        Some(CompactionDraft { why, plan, written: SummaryResult::default() });
                }
            }
        }
        self.answer_turn(EffectResult::Planned(revision));
    }

    // ── The summary ────────────────────────────────────────────────────────────────────────────

    /// Gets what stands for the plan's part of the view: from a hook, from nobody, or from a model.
    pub(super) fn summarise(&mut self) {
        let Some(CompactionDraft { why, plan, .. }) = self.compactor.draft.clone() else { return };
        if let Some(summary) = self.compactor.order.summary.take() {
            return self.written(SummaryResult { text: Some(summary), ..SummaryResult::default() });
        }
        // No model writes it, so that none need be configured.
        if self.core.settings.compaction.model == Summariser::Nobody {
            return self.written(SummaryResult::default());
        }
        // Once the model is found that was not there yet, the plan is another one.
        let Some(endpoint) = self.endpoint_for(&Effect::PlanCompaction(why)) else { return };
        if let Err(message) = self.ensure_frame() {
            return self.end_compaction(CompactionResult::Failed(message));
        }
        if let Some((prepared, written)) = self.take_prepared(&plan, why) {
            self.compactor.draft =
                Some(CompactionDraft { why, plan: prepared, written: SummaryResult::default() });
            return self.written(written);
        }
        self.write_summary(endpoint, &plan);
    }

    fn written(&mut self, mut written: SummaryResult) {
        written.text = with_context(written.text, &self.compactor.order.context);
        if let Some(draft) = &mut self.compactor.draft {
            draft.written = written;
        }
        self.answer_turn(EffectResult::Summarised);
    }

    /// Has a model write what stands for the plan's part of the view. Clients see it grow.
    fn write_summary(&mut self, main: Endpoint, plan: &CompactionPlan) {
        let instruction = self.compactor.instruction(&self.core, &self.recipes);
        let pieces = self.compactor.show_begun(&mut self.core);
        let writing = self.compactor.writing(&self.core, main, plan, instruction, pieces);
        let Some(work) = &mut self.work else { return };
        let scope = self.core.trace.scope().clone();
        let job =
            async move { JobResult::Summary(Box::new(effects::guarded(writing, Attempt::panicked).await)) };
        work.jobs.spawn(job.instrument(scope));
    }

    /// Cuts old outcomes; no model is asked, and hooks have nothing to say to it.
    fn prune(&mut self, masks: Vec<Mask>, trigger: Trigger) {
        let (ruler, thread) = (self.core.ruler(), self.core.thread.clone());
        let revision = thread.view().revision();
        let pruning = move || compaction::pruned(&ruler, &thread, masks, trigger);
        self.run_on_cpu(pruning, move |pruned| JobResult::Pruned(revision, pruned));
    }

    pub(super) fn pruned(&mut self, revision: Seq, pruned: Option<Change>) {
        let change = match pruned {
            Some(change) if revision == self.core.thread.view().revision() => self.core.sized(change),
            Some(_) => return self.end_compaction(CompactionResult::Failed(CHANGED.to_owned())),
            None => return self.end_compaction(CompactionResult::Failed(cpu_worker::FAULT.to_owned())),
        };
        if let Change::Pruned { tokens_before, tokens_after, .. } = &change {
            self.compaction_meta("pruned", Some((*tokens_before, *tokens_after)));
        }
        self.end_compaction(CompactionResult::Done(Box::new(change)));
    }

    pub(super) fn summarised(&mut self, attempt: Attempt) {
        self.compactor.show_last_pieces(&self.core);
        let summary = self.core.take_attempt(attempt);
        if let Err(error) = &summary {
            tracing::warn!(session = %self.core.id(), %error, "no summary: the computed tables replace it");
        }
        let written = match summary {
            Ok(summary) => summary.written(),
            Err(error) => SummaryResult { fallback: Some(sentence(&error)), ..SummaryResult::default() },
        };
        self.written(written);
    }

    // ── The change ─────────────────────────────────────────────────────────────────────────────

    /// Makes the one change of a compaction away from this task, or finds out why it gains nothing.
    pub(super) fn compose(&mut self) {
        let Some(CompactionDraft { plan, written, .. }) = self.compactor.draft.clone() else { return };
        let announced = self.compactor.announced.as_ref();
        let id = announced.map_or_else(|| self.core.fresh_message(), |announced| announced.id);
        let (ruler, thread) = (self.core.ruler(), self.core.thread.clone());
        let budget = self.compactor.budget(&self.core);
        let composing = move || compaction::compacted(&ruler, &thread, &budget, &plan, id, written);
        self.run_on_cpu(composing, JobResult::Composed);
    }

    pub(super) fn composed(&mut self, composed: Option<Result<Change, String>>) {
        let why = self.compactor.draft.as_ref().map_or(CompactionReason::Command, |draft| draft.why);
        match composed {
            Some(Ok(change)) => {
                let change = self.core.sized(change);
                self.answer_turn(EffectResult::Composed(Box::new(change)));
            }
            Some(Err(no_gain)) => self.nothing_to_compact(why, &no_gain),
            None => self.end_compaction(CompactionResult::Failed(cpu_worker::FAULT.to_owned())),
        }
    }

    /// A composed change that still fits the view: it is told of, and hooks see the stop of the recipe that
    /// wrote its summary, where one of them called it.
    pub(super) fn accept(&mut self, change: Change) {
        let Some(CompactionDraft { why, plan, written }) = self.compactor.draft.take() else { return };
        if let Change::Compacted { tokens_before, tokens_after, .. } = &change {
            let status = if written.fallback.is_some() { "truncated" } else { "compacted" };
            self.compaction_meta(status, Some((*tokens_before, *tokens_after)));
        }
        if plan.trigger == Trigger::Overflow && self.core.drops_attachments(&change) {
            self.core.notify(
                NoticeSeverity::Warning,
                "The request was larger than the provider accepts, so the attachments of your last message are \
                 no longer sent: the model only gets their names. Attach fewer or smaller files, or send them \
                 one by one."
                    .to_owned(),
            );
        }
        let shown = written.text.unwrap_or_default();
        if why == CompactionReason::Hook && self.ask_of_callback(&shown, &change) {
            return;
        }
        self.compactor.summary = (why == CompactionReason::Command).then_some(shown);
        self.end_compaction(CompactionResult::Done(Box::new(change)));
    }

    /// Makes the change that puts a reply's text in the place of the history (the handler `swap_context`), for
    /// the hook whose action this is.
    pub(super) fn swap_text(&mut self, pending: PendingResolution, text: &str, keep: HistoryTail) {
        let revision = self.core.thread.view().revision();
        let Some(summary) = compaction::extract(text) else {
            let why = "the reply has no text that could be a summary".to_owned();
            return self.refuse_action(pending, why);
        };
        let wish = CompactionRequest {
            keep: keep_of(&keep),
            ..self.compactor.wish(&self.core, None, CompactionReason::Hook)
        };
        let (budget, ruler) = (self.compactor.budget_now(&mut self.core), self.core.ruler());
        let thread = self.core.thread.clone();
        let id = self.core.fresh_message();
        let composing = move || {
            let scene = CompactionInput::new(&ruler, &thread, &budget);
            match compaction::decided(&scene, &wish) {
                CompactionDecision::Summarise(plan) => {
                    let written = SummaryResult { text: Some(summary), ..SummaryResult::default() };
                    compaction::compacted_in(&scene, &plan, id, written)
                }
                CompactionDecision::Nothing(reason) => Err(reason),
                CompactionDecision::Prune(_) => Err(compaction::NO_GAIN.to_owned()),
            }
        };
        self.wait_with(pending);
        self.run_on_cpu(composing, move |made| JobResult::Swapped(revision, made));
    }

    pub(super) fn text_composed(&mut self, revision: Seq, made: Option<Result<Change, String>>) {
        let Some(mut pending) = self.take_pending() else { return };
        let made = made.unwrap_or_else(|| Err(cpu_worker::FAULT.to_owned()));
        let made = match revision == self.core.thread.view().revision() {
            true => made.map_err(|no_gain| format!("nothing is gained: {no_gain}")),
            false => Err(CHANGED.to_owned()),
        };
        match made {
            Ok(change) => {
                pending.answer.swap = Some(Box::new(change));
                self.settle_round(pending);
            }
            Err(why) => self.refuse_action(pending, why),
        }
    }

    fn nothing_to_compact(&mut self, why: CompactionReason, no_gain: &str) {
        self.drop_draft();
        let text = format!("Nothing to compact: {no_gain}.");
        match why {
            CompactionReason::Command | CompactionReason::Overflow => {
                let message = self.core.fresh_message();
                if let Err(error) = self.core.commit(Change::Noted { message, text }) {
                    return self.abandon(&error);
                }
            }
            CompactionReason::Threshold | CompactionReason::Hook | CompactionReason::Must => {
                if why == CompactionReason::Hook {
                    self.core.notify(NoticeSeverity::Info, text);
                }
                if self.compactor.backoff.gained_nothing(&self.core.thread) {
                    let text = "Compacting gains nothing now, so it pauses until you ask for it with /compact \
                                or the conversation has grown.";
                    self.core.notify(NoticeSeverity::Info, text.to_owned());
                }
            }
        }
        self.compaction_meta("nothing_to_do", None);
        self.end_compaction(CompactionResult::Nothing);
    }
}

/// The summary, and behind it what hooks want kept, word for word: a model may have left it out.
fn with_context(text: Option<String>, kept: &[(String, String)]) -> Option<String> {
    let parts = kept.iter().map(|(by, words)| format!("Kept for {by}:\n{words}"));
    let parts: Vec<String> = text.into_iter().chain(parts).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}
