//! Compaction in a session: planning, writing the summary, composing the entry. Submodules decide when a compaction is
//! due and how much it may replace, and show its progress to clients.

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
use super::recipes::SessionRecipes;
use super::replies::sentence;
use super::rounds::apply_to;
use super::summary::{self, Attempt, SummaryJob, WrittenSummary};
use super::work::{PendingResolution, TurnFault};
use super::{CompactionState, NoticeSeverity, cpu_worker};
use epitome_compaction::backoff::CompactionBackoff;
use epitome_compaction::{
    self as compaction, CompactionDecision, CompactionInput, CompactionPlan, CompactionRequest, SummaryResult,
};
use epitome_config::Summariser;
use epitome_hooks::output::HistoryTail;
use epitome_provider::ProviderError;
use epitome_provider::endpoint::Endpoint;
use epitome_thread::{Change, Content, Entry, Mask, Seq, Trigger};
use epitome_turn::{CHANGED, CompactionReason, CompactionResult, Effect, EffectResult};

pub(super) use budget::{keep_of, trigger_of};
pub use order::CompactionOrder;
pub(super) use order::without_swap;
use prepared::PreparedSummary;
use shown::Announced;

/// The compaction of the running turn, and the state that outlives turns.
#[derive(Default)]
pub struct Compactor {
    backoff: CompactionBackoff,
    /// A summary written in advance.
    prepared: PreparedSummary,
    /// Tokens in context when old tool results were last considered for pruning.
    eased_at: u64,
    /// How to make the next compaction of the turn.
    order: CompactionOrder,
    /// The planned compaction. It is kept until its change is committed: hooks that run before that may replace it, or
    /// edit the view so that it is composed again.
    draft: Option<CompactionDraft>,
    /// The compaction that clients were notified of.
    announced: Option<Announced>,
    /// The pieces of the summary that is being written.
    pieces: Option<mpsc::Receiver<String>>,
    /// The summary that hooks see before it replaces the history.
    summary: Option<String>,
}

impl Compactor {
    /// Drops everything that belongs to the turn.
    pub(super) fn end_turn(&mut self) {
        let Compactor { backoff, prepared, eased_at, .. } = std::mem::take(self);
        *self = Compactor { backoff, prepared, eased_at, ..Compactor::default() };
    }

    pub(super) fn order(&mut self, order: CompactionOrder) {
        self.order = order;
    }

    /// The summary that hooks see before it replaces the history.
    pub(super) fn summary(&self) -> Option<&String> {
        self.summary.as_ref()
    }

    /// Returns the future that writes the summary for a plan. The frame must exist.
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
            // While the summary is written, the session would copy what it shares with the clone.
            drop(thread);
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

    /// The prompt for the summary.
    fn instruction(&self, core: &Core, recipes: &SessionRecipes) -> String {
        let order = &self.order;
        match (&order.instruction, &order.recipe) {
            (Some(instruction), _) => instruction.clone(),
            (None, Some(recipe)) => {
                core.render_without_shell(recipe, &order.arguments).unwrap_or_else(|| recipe.body.clone())
            }
            (None, None) => recipes.summary_instruction(core),
        }
    }

    /// Forgets the compaction, whose change is committed.
    fn conclude(&mut self) {
        self.forget();
        self.backoff.gained();
    }

    /// Forgets the compaction, and what was ordered for it, which is not for the next one. Returns its draft.
    fn forget(&mut self) -> Option<CompactionDraft> {
        (self.summary, self.order) = (None, CompactionOrder::default());
        self.draft.take()
    }
}

/// A planned compaction. Its stage is a state of the turn.
#[derive(Clone)]
pub struct CompactionDraft {
    why: CompactionReason,
    plan: CompactionPlan,
    /// The text that replaces the plan's part of the view, once written.
    written: SummaryResult,
}

impl Core {
    /// Whether a child has had no reply yet, so that it can start again with a shorter history without losing anything.
    fn is_first_request_of_child(&self) -> bool {
        let own = self.thread.entries().iter().skip(self.lineage.own_from.0 as usize);
        self.lineage.is_child()
            && !own.into_iter().any(|entry| matches!(entry.change, Change::Replied { .. }))
    }

    /// Warns if the change removes files from the view that the model has not seen, or that its provider refused.
    fn warn_of_unsent_files(&self, change: &Change) {
        let (Change::Compacted { trigger, .. } | Change::Pruned { trigger, .. }) = change else { return };
        let is_refused = *trigger == Trigger::Overflow;
        let entries = self.thread.view().entries().iter().rev();
        let is_seen = |change: &Change| matches!(change, Change::Replied { .. } | Change::Compacted { .. });
        let unseen = entries.take_while(|entry| is_refused || !is_seen(&entry.change));
        let Some(sent) = unseen.map(|entry| files(entry)).find(|files| !files.is_empty()) else { return };
        let mut after = self.thread.clone();
        apply_to(&mut after, change.clone());
        let left: Vec<&Content> = after.view().entries().iter().flat_map(|entry| files(entry)).collect();
        let lost = sent.iter().filter(|file| !left.contains(file)).count();
        if lost == 0 {
            return;
        }
        let why = match is_refused {
            true => "The request was larger than the provider accepts",
            false => "Your message is larger than the room in the model's window",
        };
        let which =
            if lost == sent.len() { "the".to_owned() } else { format!("{lost} of the {}", sent.len()) };
        self.notify(
            NoticeSeverity::Warning,
            format!(
                "{why}, so {which} attachments of your last message are no longer sent: the model only gets \
                 their names. Attach fewer or smaller files, or send them one by one."
            ),
        );
    }
}

/// The files in a message of the user, or in the message of a compaction.
fn files(entry: &Entry) -> Vec<&Content> {
    match &entry.change {
        Change::Said { message, .. } | Change::Compacted { summary: message, .. } => {
            message.content.iter().filter(|part| part.has_attached_data()).collect()
        }
        _ => Vec::new(),
    }
}

impl Session {
    /// Returns the result of a compaction to the turn. If none was made, it is dropped: the next compaction runs its own
    /// hooks and decides itself what to keep.
    pub(super) fn end_compaction(&mut self, answer: CompactionResult) {
        let state = match &answer {
            CompactionResult::Done(_) => return self.answer_turn(EffectResult::Compacted(answer)),
            CompactionResult::Nothing => CompactionState::Cancelled,
            CompactionResult::Failed(why) => CompactionState::Failed(why.clone()),
        };
        self.drop_draft();
        self.compactor.show_ended(&self.core, state);
        self.answer_turn(EffectResult::Compacted(answer));
    }

    pub(super) fn fail_compaction(&mut self, why: impl Into<String>) {
        self.end_compaction(CompactionResult::Failed(why.into()));
    }

    /// Drops the compaction. Its unused summary was paid for, so the usage is recorded.
    pub(super) fn drop_draft(&mut self) {
        let draft = self.compactor.forget();
        if let Some((model, usage)) = draft.and_then(|draft| draft.written.by) {
            self.spend(model, usage, UNUSED_SUMMARY.to_owned());
        }
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
    pub(super) fn plan_compaction(&mut self, why: CompactionReason) {
        if why == CompactionReason::Overflow && self.core.is_first_request_of_child() {
            if let Some(work) = &mut self.work {
                work.fault = TurnFault::TooLong;
            }
            return self.fail_compaction("the history that it was given is too long");
        }
        if why == CompactionReason::Overflow
            && let Some(pins) =
                compaction::pins_too_large(&self.core.ruler(), &self.core.thread, self.core.view_tokens_max())
        {
            return self.fail_compaction(format!("{pins}. Unpin some of them first."));
        }
        match self.core.thread.frame() {
            None => self.scan_first(move |session| session.plan(why)),
            Some(_) => self.plan(why),
        }
    }

    /// Decides on the CPU worker what the compaction does.
    fn plan(&mut self, why: CompactionReason) {
        let focus = self.compactor.order.focus.clone();
        let deciding = self.compactor.deciding(&mut self.core, focus, why);
        self.start_job(cpu_worker::run(deciding), move |session, decided| session.planned(why, decided));
    }

    /// Takes the decision. If the view has changed since, the turn requests another plan.
    fn planned(&mut self, why: CompactionReason, decided: Option<(Seq, CompactionDecision)>) {
        let Some((revision, decision)) = decided else {
            return self.fail_compaction(cpu_worker::FAULT);
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

    /// Gets the text that replaces the plan's part of the view: from a hook, prepared in advance or from a model; or no
    /// text.
    pub(super) fn summarise(&mut self) {
        let Some(CompactionDraft { why, plan, .. }) = self.compactor.draft.clone() else { return };
        if let Some(summary) = self.compactor.order.summary.take() {
            return self.written(SummaryResult { text: Some(summary), ..SummaryResult::default() });
        }
        // No model is called, so none has to be configured.
        if self.core.settings.compaction.model == Summariser::None {
            return self.written(SummaryResult::default());
        }
        // If the model has to be looked for, the compaction is planned again once it is found.
        let Some(endpoint) = self.endpoint_for(&Effect::PlanCompaction(why)) else { return };
        if let Err(message) = self.ensure_frame() {
            return self.fail_compaction(message);
        }
        if let Some((prepared, written)) = self.take_prepared(&plan, why) {
            self.compactor.draft =
                Some(CompactionDraft { why, plan: prepared, written: SummaryResult::default() });
            return self.written(written);
        }
        self.write_summary(endpoint, &plan);
    }

    fn written(&mut self, mut written: SummaryResult) {
        written.context.clone_from(&self.compactor.order.context);
        if let Some(draft) = &mut self.compactor.draft {
            draft.written = written;
        }
        self.answer_turn(EffectResult::Summarised);
    }

    /// Has a model write the summary. Clients see it as it streams.
    fn write_summary(&mut self, main: Endpoint, plan: &CompactionPlan) {
        let instruction = self.compactor.instruction(&self.core, &self.recipes);
        let pieces = self.compactor.show_begun(&mut self.core);
        let writing = self.compactor.writing(&self.core, main, plan, instruction, pieces);
        let scope = self.core.trace.scope().clone();
        self.start_job(effects::guarded(writing, Attempt::panicked).instrument(scope), Session::summarised);
    }

    /// Shortens old tool results, without a model call and without hooks.
    fn prune(&mut self, masks: Vec<Mask>, trigger: Trigger) {
        let (ruler, thread) = (self.core.ruler(), self.core.thread.clone());
        let revision = thread.view().revision();
        let pruning = move || compaction::pruned(&ruler, &thread, masks, trigger);
        self.start_job(cpu_worker::run(pruning), move |session, pruned| session.pruned(revision, pruned));
    }

    fn pruned(&mut self, revision: Seq, pruned: Option<Change>) {
        let change = match pruned {
            Some(change) if revision == self.core.thread.view().revision() => self.core.sized(change),
            Some(_) => return self.fail_compaction(CHANGED),
            None => return self.fail_compaction(cpu_worker::FAULT),
        };
        if let Change::Pruned { tokens_before, tokens_after, .. } = &change {
            self.compaction_meta("pruned", Some((*tokens_before, *tokens_after)));
        }
        self.core.warn_of_unsent_files(&change);
        self.end_compaction(CompactionResult::Done(Box::new(change)));
    }

    fn summarised(&mut self, attempt: Attempt) {
        self.compactor.show_last_pieces(&self.core);
        let summary = take_attempt(self, attempt);
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

    /// Composes the compaction's entry on the CPU worker. Fails if it would gain nothing, or if hooks have edited the view
    /// since a model wrote the summary, which may contain what they removed.
    pub(super) fn compose(&mut self) {
        // A pruning has no draft, and is not made again.
        let Some(CompactionDraft { mut plan, written, .. }) = self.compactor.draft.clone() else {
            return self.fail_compaction(CHANGED);
        };
        if plan.revision != self.core.thread.view().revision() {
            if written.by.is_some() {
                return self.fail_compaction(CHANGED);
            }
            let rewritten = self.core.thread.rewritten();
            plan.masks.retain(|mask| !rewritten.contains(mask.entry));
        }
        let announced = self.compactor.announced.as_ref();
        let id = announced.map_or_else(|| self.core.fresh_message(), |announced| announced.id);
        let (ruler, thread) = (self.core.ruler(), self.core.thread.clone());
        let budget = self.compactor.budget(&self.core);
        let composing = move || compaction::compacted(&ruler, &thread, &budget, &plan, id, written);
        self.start_job(cpu_worker::run(composing), Session::composed);
    }

    fn composed(&mut self, composed: Option<Result<Change, String>>) {
        let why = self.compactor.draft.as_ref().map_or(CompactionReason::Command, |draft| draft.why);
        match composed {
            Some(Ok(change)) => {
                let change = self.core.sized(change);
                self.answer_turn(EffectResult::Composed(Box::new(change)));
            }
            Some(Err(no_gain)) => self.nothing_to_compact(why, &no_gain),
            None => self.fail_compaction(cpu_worker::FAULT),
        }
    }

    /// Accepts a composed change that still fits the view. If a hook called the recipe that wrote the summary, the
    /// hooks for the recipe's stop run first.
    pub(super) fn accept(&mut self, change: Change) {
        let Some(CompactionDraft { why, written, .. }) = self.compactor.draft.clone() else { return };
        self.core.warn_of_unsent_files(&change);
        let shown = written.text.unwrap_or_default();
        if why == CompactionReason::Hook && self.ask_of_callback(&shown, &change) {
            return;
        }
        self.compactor.summary = (why == CompactionReason::Command).then_some(shown);
        self.end_compaction(CompactionResult::Done(Box::new(change)));
    }

    /// Composes the change that replaces the history by a reply's text (handler `swap_context`), for the hook that
    /// requested it.
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
        self.hooks.turn().pending = Some(pending);
        self.start_job(cpu_worker::run(composing), move |session, made| {
            session.text_composed(revision, made)
        });
    }

    fn text_composed(&mut self, revision: Seq, made: Option<Result<Change, String>>) {
        let Some(mut pending) = self.hooks.turn().pending.take() else { return };
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
                let note = self.core.note(text);
                if let Err(error) = self.core.commit(note) {
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

/// Applies the context windows that an attempt revealed, records its wasted cost, and returns its summary.
pub(super) fn take_attempt(session: &mut Session, attempt: Attempt) -> Result<WrittenSummary, ProviderError> {
    for (model, limit) in attempt.limits {
        let effect = session.core.model.narrow(&model, limit);
        session.core.model_learned(effect);
    }
    for (model, usage) in attempt.spent {
        session.spend(model, usage, UNUSED_SUMMARY.to_owned());
    }
    attempt.summary
}
