//! Compaction in a session: who writes the summary, what is committed. When one is due, what it may take and what
//! clients see of it is in the files beside this one.

mod ahead;
mod budget;
mod ease;
mod hooks;
mod order;
mod shown;
mod when;

use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::actor::Session;
use super::child_requests::UNUSED_SUMMARY;
use super::core::Core;
use super::effects;
use super::recipe_catalog::Recipes;
use super::recipes::Text;
use super::replies::sentence;
use super::summary::{self, Attempt, Summary, SummaryOrder};
use super::work::{Done, Fault, LookedFor, Pending};
use super::{CompactionState, Severity, cpu_worker};
use epitome_compaction::pace::Pace;
use epitome_compaction::{self as compaction, Decision, Plan, Scene, Wish, Written};
use epitome_config::Summariser;
use epitome_hooks::output::Keep;
use epitome_provider::ProviderError;
use epitome_provider::endpoint::Endpoint;
use epitome_recipe::render::ShellOutputs;
use epitome_thread::{Change, Content, Mask, Seq, Trigger};
use epitome_turn::{Answer as TurnAnswer, Ask, CHANGED, CompactAnswer, Why};

use ahead::Ahead;
pub(super) use budget::{keep_of, trigger_of};
pub use order::CompactionOrder;
pub(super) use order::without_swap;
use shown::Announced;

/// The compactions of a session: the one that the running turn makes, and what outlasts turns.
#[derive(Default)]
pub struct Compactor {
    pace: Pace,
    /// A summary that is written before it is needed.
    ahead: Ahead,
    /// Tokens in context when old outcomes were last looked through.
    eased_at: u64,
    /// How the next compaction of the turn is to be made.
    order: CompactionOrder,
    /// The compaction that is planned.
    draft: Option<Draft>,
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
        Compactor { pace: self.pace, ..Compactor::default() }
    }

    /// Forgets what belonged to the turn.
    pub(super) fn end_turn(&mut self) {
        let Compactor { pace, ahead, eased_at, .. } = std::mem::take(self);
        *self = Compactor { pace, ahead, eased_at, ..Compactor::default() };
    }

    pub(super) fn order(&mut self, order: CompactionOrder) {
        self.order = order;
    }

    /// What a model does to write the summary for a plan. The frame must be there.
    pub(super) fn writing(
        &self,
        core: &Core,
        main: Endpoint,
        plan: &Plan,
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
            let order = SummaryOrder {
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
    fn instruction(&self, core: &Core, recipes: &Recipes) -> String {
        let order = &self.order;
        match (&order.instruction, &order.recipe) {
            (Some(instruction), _) => instruction.clone(),
            (None, Some(recipe)) => match core.render(recipe, &order.arguments, &ShellOutputs::new()) {
                Text::Done(text) => text,
                Text::Needs(_) | Text::Failed(_) => recipe.body.clone(),
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
pub struct Draft {
    why: Why,
    plan: Plan,
    /// What stands for the plan's part of the view, once it is there.
    written: Written,
}

impl Core {
    /// What an attempt came to, once what it tells of windows is known.
    pub(super) fn take_attempt(&mut self, attempt: Attempt) -> Result<Summary, ProviderError> {
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
    pub(super) fn end_compaction(&mut self, answer: CompactAnswer) {
        let state = match &answer {
            CompactAnswer::Done(_) => return self.answer_turn(TurnAnswer::Compacted(answer)),
            CompactAnswer::Nothing => CompactionState::Cancelled,
            CompactAnswer::Failed(why) => CompactionState::Failed(why.clone()),
        };
        self.drop_draft();
        self.compactor.order = CompactionOrder::default();
        self.compactor.show_ended(&self.core, state);
        self.answer_turn(TurnAnswer::Compacted(answer));
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
    pub(super) fn plan_compaction(&mut self, why: Why) {
        if why == Why::Overflow && self.core.is_first_request_of_child() {
            if let Some(work) = &mut self.work {
                work.fault = Fault::TooLong;
            }
            let reason = "the history that it was given is too long".to_owned();
            return self.end_compaction(CompactAnswer::Failed(reason));
        }
        if why == Why::Overflow
            && let Some(pins) =
                compaction::pins_too_large(&self.core.ruler(), &self.core.thread, self.core.view_tokens_max())
        {
            return self.end_compaction(CompactAnswer::Failed(format!("{pins}. Unpin some of them first.")));
        }
        match self.core.thread.frame() {
            None => self.look_first(LookedFor::Compaction(why)),
            Some(_) => self.plan(why),
        }
    }

    /// Decides what the compaction does, away from this task.
    pub(super) fn plan(&mut self, why: Why) {
        let focus = self.compactor.order.focus.clone();
        let deciding = self.compactor.deciding(&mut self.core, focus, why);
        self.run_on_cpu(deciding, move |decided| Done::Planned(why, decided));
    }

    /// The turn has it planned anew where the view is another one by now.
    pub(super) fn planned(&mut self, why: Why, decided: Option<(Seq, Decision)>) {
        let Some((revision, decision)) = decided else {
            return self.end_compaction(CompactAnswer::Failed(cpu_worker::FAULT.to_owned()));
        };
        if revision == self.core.thread.view().revision() {
            match decision {
                Decision::Nothing(reason) => return self.nothing_to_compact(why, &reason),
                Decision::Prune(masks) => return self.prune(masks, trigger_of(why)),
                Decision::Summarise(plan) => {
                    self.compactor.draft = Some(Draft { why, plan, written: Written::default() });
                }
            }
        }
        self.answer_turn(TurnAnswer::Planned(revision));
    }

    // ── The summary ────────────────────────────────────────────────────────────────────────────

    /// Gets what stands for the plan's part of the view: from a hook, from nobody, or from a model.
    pub(super) fn summarise(&mut self) {
        let Some(Draft { why, plan, .. }) = self.compactor.draft.clone() else { return };
        if let Some(summary) = self.compactor.order.summary.take() {
            return self.written(Written { text: Some(summary), ..Written::default() });
        }
        // No model writes it, so that none need be configured.
        if self.core.settings.compaction.model == Summariser::Nobody {
            return self.written(Written::default());
        }
        // Once the model is found that was not there yet, the plan is another one.
        let Some(endpoint) = self.endpoint_for(&Ask::PlanCompaction(why)) else { return };
        if let Err(message) = self.ensure_frame() {
            return self.end_compaction(CompactAnswer::Failed(message));
        }
        if let Some((ahead, written)) = self.take_ahead(&plan, why) {
            self.compactor.draft = Some(Draft { why, plan: ahead, written: Written::default() });
            return self.written(written);
        }
        self.write_summary(endpoint, &plan);
    }

    fn written(&mut self, mut written: Written) {
        written.text = with_context(written.text, &self.compactor.order.context);
        if let Some(draft) = &mut self.compactor.draft {
            draft.written = written;
        }
        self.answer_turn(TurnAnswer::Summarised);
    }

    /// Has a model write what stands for the plan's part of the view. Clients see it grow.
    fn write_summary(&mut self, main: Endpoint, plan: &Plan) {
        let instruction = self.compactor.instruction(&self.core, &self.recipes);
        let pieces = self.compactor.show_begun(&mut self.core);
        let writing = self.compactor.writing(&self.core, main, plan, instruction, pieces);
        let Some(work) = &mut self.work else { return };
        let scope = self.core.trace.scope().clone();
        let job = async move { Done::Summary(Box::new(effects::guarded(writing, Attempt::panicked).await)) };
        work.jobs.spawn(job.instrument(scope));
    }

    /// Cuts old outcomes; no model is asked, and hooks have nothing to say to it.
    fn prune(&mut self, masks: Vec<Mask>, trigger: Trigger) {
        let (ruler, thread) = (self.core.ruler(), self.core.thread.clone());
        let revision = thread.view().revision();
        let pruning = move || compaction::pruned(&ruler, &thread, masks, trigger);
        self.run_on_cpu(pruning, move |pruned| Done::Pruned(revision, pruned));
    }

    pub(super) fn pruned(&mut self, revision: Seq, pruned: Option<Change>) {
        let change = match pruned {
            Some(change) if revision == self.core.thread.view().revision() => self.core.sized(change),
            Some(_) => return self.end_compaction(CompactAnswer::Failed(CHANGED.to_owned())),
            None => return self.end_compaction(CompactAnswer::Failed(cpu_worker::FAULT.to_owned())),
        };
        if let Change::Pruned { tokens_before, tokens_after, .. } = &change {
            self.compaction_meta("pruned", Some((*tokens_before, *tokens_after)));
        }
        self.end_compaction(CompactAnswer::Done(Box::new(change)));
    }

    pub(super) fn summarised(&mut self, attempt: Attempt) {
        self.compactor.show_last_pieces(&self.core);
        let summary = self.core.take_attempt(attempt);
        if let Err(error) = &summary {
            tracing::warn!(session = %self.core.id(), %error, "no summary: the computed tables replace it");
        }
        let written = match summary {
            Ok(summary) => summary.written(),
            Err(error) => Written { fallback: Some(sentence(&error)), ..Written::default() },
        };
        self.written(written);
    }

    // ── The change ─────────────────────────────────────────────────────────────────────────────

    /// Makes the one change of a compaction away from this task, or finds out why it gains nothing.
    pub(super) fn compose(&mut self) {
        let Some(Draft { plan, written, .. }) = self.compactor.draft.clone() else { return };
        let announced = self.compactor.announced.as_ref();
        let id = announced.map_or_else(|| self.core.fresh_message(), |announced| announced.id);
        let (ruler, thread) = (self.core.ruler(), self.core.thread.clone());
        let budget = self.compactor.budget(&self.core);
        let composing = move || compaction::compacted(&ruler, &thread, &budget, &plan, id, written);
        self.run_on_cpu(composing, Done::Composed);
    }

    pub(super) fn composed(&mut self, composed: Option<Result<Change, String>>) {
        let why = self.compactor.draft.as_ref().map_or(Why::Command, |draft| draft.why);
        match composed {
            Some(Ok(change)) => {
                let change = self.core.sized(change);
                self.answer_turn(TurnAnswer::Composed(Box::new(change)));
            }
            Some(Err(no_gain)) => self.nothing_to_compact(why, &no_gain),
            None => self.end_compaction(CompactAnswer::Failed(cpu_worker::FAULT.to_owned())),
        }
    }

    /// A composed change that still fits the view: it is told of, and hooks see the stop of the recipe that
    /// wrote its summary, where one of them called it.
    pub(super) fn accept(&mut self, change: Change) {
        let Some(Draft { why, plan, written }) = self.compactor.draft.take() else { return };
        if let Change::Compacted { tokens_before, tokens_after, .. } = &change {
            let status = if written.fallback.is_some() { "truncated" } else { "compacted" };
            self.compaction_meta(status, Some((*tokens_before, *tokens_after)));
        }
        if plan.trigger == Trigger::Overflow && self.core.drops_attachments(&change) {
            self.core.say(
                Severity::Warning,
                "The request was larger than the provider takes, so what you attached to your last message is \
                 not sent any more: the model only gets its name. Attach fewer or smaller files, or send them one \
                 by one."
                    .to_owned(),
            );
        }
        let shown = written.text.unwrap_or_default();
        if why == Why::Hook && self.ask_of_callback(&shown, &change) {
            return;
        }
        self.compactor.summary = (why == Why::Command).then_some(shown);
        self.end_compaction(CompactAnswer::Done(Box::new(change)));
    }

    /// Makes the change that puts a reply's text in the place of the history (the handler `swap_context`), for
    /// the hook whose action this is.
    pub(super) fn swap_text(&mut self, pending: Pending, text: &str, keep: Keep) {
        let revision = self.core.thread.view().revision();
        let Some(summary) = compaction::extract(text) else {
            let why = "the reply has no text that could be a summary".to_owned();
            return self.refuse_action(pending, why);
        };
        let wish = Wish { keep: keep_of(&keep), ..self.compactor.wish(&self.core, None, Why::Hook) };
        let (budget, ruler) = (self.compactor.budget_now(&mut self.core), self.core.ruler());
        let thread = self.core.thread.clone();
        let id = self.core.fresh_message();
        let composing = move || {
            let scene = Scene::of(&ruler, &thread, &budget);
            match compaction::decided(&scene, &wish) {
                Decision::Summarise(plan) => {
                    let written = Written { text: Some(summary), ..Written::default() };
                    compaction::compacted_in(&scene, &plan, id, written)
                }
                Decision::Nothing(reason) => Err(reason),
                Decision::Prune(_) => Err(compaction::NO_GAIN.to_owned()),
            }
        };
        self.wait_with(pending);
        self.run_on_cpu(composing, move |made| Done::Swapped(revision, made));
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

    fn nothing_to_compact(&mut self, why: Why, no_gain: &str) {
        self.drop_draft();
        let text = format!("Nothing to compact: {no_gain}.");
        match why {
            Why::Command | Why::Overflow => {
                let message = self.core.fresh_message();
                if let Err(error) = self.core.commit(Change::Noted { message, text }) {
                    return self.abandon(&error);
                }
            }
            Why::Threshold | Why::Hook | Why::Must => {
                if why == Why::Hook {
                    self.core.say(Severity::Info, text);
                }
                if self.compactor.pace.gained_nothing(&self.core.thread) {
                    let text = "Compacting gains nothing now, so it pauses until you ask for it with /compact or the \
                                conversation has grown.";
                    self.core.say(Severity::Info, text.to_owned());
                }
            }
        }
        self.compaction_meta("nothing_to_do", None);
        self.end_compaction(CompactAnswer::Nothing);
    }
}

/// The summary, and behind it what hooks want kept, word for word: a model may have left it out.
fn with_context(text: Option<String>, kept: &[(String, String)]) -> Option<String> {
    let parts = kept.iter().map(|(by, words)| format!("Kept for {by}:\n{words}"));
    let parts: Vec<String> = text.into_iter().chain(parts).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}
