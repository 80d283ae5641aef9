//! Compaction in a session: who writes the summary, what is committed. When one is due, what it may take and what
//! clients see of it is in the files beside this one.

mod budget;
mod order;
mod shown;
mod when;

use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::actor::Session;
use super::effects;
use super::foreign::UNUSED_SUMMARY;
use super::recipes::Text;
use super::replies::sentence;
use super::summary::{self, Attempt, Summary, SummaryOrder, Writer};
use super::work::{Compacting, Done, Point, Summarised};
use super::{CompactionState, Out, Severity, thinking};
use epitome_compaction::{self as compaction, Decision, Plan, Scene, Wish, Written};
use epitome_config::Summariser;
use epitome_hooks::moment::What;
use epitome_hooks::output::Keep;
use epitome_provider::ProviderError;
use epitome_provider::endpoint::Endpoint;
use epitome_recipe::render::ShellOutputs;
use epitome_thread::{Change, Content, Mask, MessageId, ModelName, Seq, Trigger, Usage};
use epitome_turn::{Answer as Told, Ask, CompactAnswer, Why};

pub(super) use budget::{keep_of, trigger_of};
pub use order::CompactionOrder;
pub(super) use order::without_swap;

/// How often a compaction is decided anew, because the conversation was changed under it.
const DECISIONS_MAX: u32 = 3;

const CHANGED: &str = "the conversation was changed while its summary was written; nothing was replaced";

/// What is known of a compaction while its change is put together.
struct Swap {
    /// The summary, as hooks see it.
    shown: String,
    /// No model's summary stands in it.
    is_fallback: bool,
    /// What the summary took, and of which model.
    spent: Option<(ModelName, Usage)>,
    /// The view that it is for.
    revision: Seq,
    trigger: Trigger,
    why: Why,
}

impl Session {
    pub(super) fn order_compaction(&mut self, order: CompactionOrder) {
        if let Some(work) = &mut self.work {
            work.order = order;
        }
    }

    pub(super) fn take_order(&mut self) -> CompactionOrder {
        self.work.as_mut().map(|work| std::mem::take(&mut work.order)).unwrap_or_default()
    }

    pub(super) fn order(&self) -> Option<&CompactionOrder> {
        self.work.as_ref().map(|work| &work.order)
    }

    /// Tells the turn what came of a compaction. How one is to be made that was not made is forgotten: the
    /// next one asks its hooks anew, and keeps what it should itself.
    pub(super) fn end_compaction(&mut self, answer: CompactAnswer) {
        match &answer {
            CompactAnswer::Done(_) => {}
            CompactAnswer::Nothing => {
                self.take_order();
                self.compaction_came_to_nothing(CompactionState::Cancelled);
            }
            CompactAnswer::Failed(why) => {
                self.take_order();
                self.compaction_came_to_nothing(CompactionState::Failed(why.clone()));
            }
        }
        self.tell(Told::Compacted(answer));
    }

    pub(super) fn compact(&mut self, focus: Option<String>, why: Why) {
        if why == Why::Overflow && self.is_first_request_of_child() {
            if let Some(work) = &mut self.work {
                work.too_long = true;
            }
            let reason = "the history that it was given is too long".to_owned();
            return self.end_compaction(CompactAnswer::Failed(reason));
        }
        if why == Why::Overflow
            && let Some(pins) =
                compaction::pins_too_large(&self.ruler(), &self.thread, self.view_tokens_max())
        {
            return self.end_compaction(CompactAnswer::Failed(format!("{pins}. Unpin some of them first.")));
        }
        if !self.hooks.have_started() {
            let what = What::SessionStart { source: self.hooks.source() };
            if self.run_hooks(what, Point::StartCompact { why, focus: focus.clone() }).is_ok() {
                return;
            }
            self.hooks.start();
        }
        if self.thread.frame().is_none() {
            return self.look_first(move |session| session.weigh(focus, why, DECISIONS_MAX));
        }
        self.weigh(focus, why, DECISIONS_MAX);
    }

    /// Decides what the compaction does, away from this task. `left` is how often that may be done.
    fn weigh(&mut self, focus: Option<String>, why: Why, left: u32) {
        let deciding = self.deciding(focus.clone(), why);
        self.think(deciding, move |session, decided| match decided {
            Some((revision, decision)) if revision == session.thread.view().revision() => {
                session.compact_as(focus, why, decision);
            }
            Some(_) if left > 1 => session.weigh(focus, why, left - 1),
            Some(_) => session.end_compaction(CompactAnswer::Failed(CHANGED.to_owned())),
            None => session.end_compaction(CompactAnswer::Failed(thinking::FAULT.to_owned())),
        });
    }

    fn compact_as(&mut self, focus: Option<String>, why: Why, decision: Decision) {
        let plan = match decision {
            Decision::Nothing(reason) => return self.nothing_to_compact(why, &reason),
            Decision::Prune(masks) => return self.prune(masks, trigger_of(why)),
            Decision::Summarise(plan) => plan,
        };
        if self.order().is_some_and(|order| !order.seen) {
            if let Some(work) = &mut self.work {
                work.order.seen = true;
            }
            let what = self.pre_compact(&plan, why);
            if self.run_hooks(what, Point::PreCompact { why, focus }).is_ok() {
                return;
            }
        }
        if let Some(summary) = self.work.as_mut().and_then(|work| work.order.summary.take()) {
            let written = Written { text: Some(summary), ..Written::default() };
            return self.swap_in(plan, written, why);
        }
        // No model writes it, so that none need be configured.
        if self.settings.compaction.model == Summariser::Nobody {
            return self.swap_in(plan, Written::default(), why);
        }
        let ask = Ask::Compact { focus: plan.focus.clone(), why };
        let Some(endpoint) = self.endpoint_for(&ask) else { return };
        if let Err(message) = self.ensure_frame() {
            return self.end_compaction(CompactAnswer::Failed(message));
        }
        if let Some((plan, written)) = self.take_ahead(&plan, why) {
            return self.swap_in(plan, written, why);
        }
        self.write_summary(endpoint, plan, why);
    }

    /// Has a model write what stands for the plan's part of the view. Clients see it grow.
    fn write_summary(&mut self, main: Endpoint, plan: Plan, why: Why) {
        let instruction = self.instruction();
        let (pieces, shown) = mpsc::channel(summary::PIECES_MAX);
        let writing = self.writing(main, &plan, instruction, pieces);
        let (id, tokens) = (self.fresh_message(), self.tokens_in_context());
        self.announce(&Out::Compaction { id, state: CompactionState::Began { tokens } });
        let Some(work) = &mut self.work else { return };
        work.compacting = Some(Compacting { id, tokens, wrote: String::new() });
        work.pieces = Some(shown);
        let scope = work.trace.scope().clone();
        let job = async move {
            let attempt = effects::guarded(writing, Attempt::panicked).await;
            Done::Summary(Box::new(Summarised { attempt, plan, why }))
        };
        work.jobs.spawn(job.instrument(scope));
    }

    /// What a model does to write the summary for a plan. The frame must be there.
    pub(super) fn writing(
        &mut self,
        main: Endpoint,
        plan: &Plan,
        instruction: String,
        pieces: mpsc::Sender<String>,
    ) -> impl Future<Output = Attempt> + Send + use<> {
        let settings = self.settings.clone();
        let ordered = self.order().and_then(|order| order.summary_tokens_max);
        let mut snapshot = self.snapshot(ordered.unwrap_or(settings.compaction.max_summary_tokens));
        snapshot.view = self.thread.view().replaced_by(plan.through);
        let (http, services) = (self.services.http.clone(), self.services.clone());
        let environment = self.workspace.environment.clone();
        let focus = plan.focus.is_some();
        let (ruler, thread, budget, plan) = (self.ruler(), self.thread.clone(), self.budget(), plan.clone());
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
            if let Writer::Other(other) = &order.writer {
                let own = attempt
                    .limits
                    .iter()
                    .filter(|(model, limit)| *model == other.name && *limit < other.window);
                own.for_each(|(_, limit)| services.learned.learn_window(other, *limit));
            }
            attempt
        }
    }

    /// Cuts old outcomes; no model is asked, and hooks have nothing to say to it.
    fn prune(&mut self, masks: Vec<Mask>, trigger: Trigger) {
        let (ruler, thread) = (self.ruler(), self.thread.clone());
        let revision = thread.view().revision();
        let pruning = move || compaction::pruned(&ruler, &thread, masks, trigger);
        self.think(pruning, move |session, pruned| {
            let change = match pruned {
                Some(change) if revision == session.thread.view().revision() => session.sized(change),
                Some(_) => return session.end_compaction(CompactAnswer::Failed(CHANGED.to_owned())),
                None => return session.end_compaction(CompactAnswer::Failed(thinking::FAULT.to_owned())),
            };
            if let Change::Pruned { tokens_before, tokens_after, .. } = &change {
                session.compaction_meta("pruned", Some((*tokens_before, *tokens_after)));
            }
            session.end_compaction(CompactAnswer::Done(Box::new(change)));
        });
    }

    /// Whether a child has had no reply yet: then nothing is lost where it begins anew with less.
    fn is_first_request_of_child(&self) -> bool {
        let own = self.thread.entries().iter().skip(self.lineage.own_from.0 as usize);
        self.lineage.is_child()
            && !own.into_iter().any(|entry| matches!(entry.change, Change::Replied { .. }))
    }

    /// The work of deciding what a compaction would do to the conversation as it is now. It comes to the revision
    /// that it is for, and the decision.
    pub(super) fn deciding(
        &self,
        focus: Option<String>,
        why: Why,
    ) -> impl FnOnce() -> (Seq, Decision) + Send + use<> {
        let (ruler, thread) = (self.ruler(), self.thread.clone());
        let (budget, wish) = (self.budget(), self.wish(focus, why));
        move || (thread.view().revision(), compaction::decide(&ruler, &thread, &budget, &wish))
    }

    /// What the model is told to write.
    fn instruction(&self) -> String {
        let Some(order) = self.order() else { return self.summary_instruction() };
        match (&order.instruction, &order.recipe) {
            (Some(instruction), _) => instruction.clone(),
            (None, Some(recipe)) => match self.render(recipe, &order.arguments, &ShellOutputs::new()) {
                Text::Done(text) => text,
                Text::Needs(_) | Text::Failed(_) => recipe.body.clone(),
            },
            (None, None) => self.summary_instruction(),
        }
    }

    pub(super) fn summarised(&mut self, summarised: Summarised) {
        let Summarised { attempt, plan, why } = summarised;
        // What was written last may have come at the same moment.
        let pieces = self.work.as_mut().and_then(|work| work.pieces.take());
        for piece in
            pieces.into_iter().flat_map(|mut pieces| std::iter::from_fn(move || pieces.try_recv().ok()))
        {
            self.compaction_wrote(piece);
        }
        let summary = self.take_attempt(attempt);
        if let Err(error) = &summary {
            tracing::warn!(session = %self.id, %error, "no summary: the computed tables stand for it");
        }
        let written = match summary {
            Ok(summary) => summary.written(),
            Err(error) => Written { fallback: Some(sentence(&error)), ..Written::default() },
        };
        self.swap_in(plan, written, why);
    }

    /// What an attempt came to, once what it tells of windows is known.
    pub(super) fn take_attempt(&mut self, attempt: Attempt) -> Result<Summary, ProviderError> {
        for (model, limit) in attempt.limits {
            let effect = self.model.narrow(&model, limit);
            self.model_learned(effect);
        }
        attempt.summary
    }

    /// Puts together what stands for the plan's part of the view, away from this task.
    fn swap_in(&mut self, plan: Plan, mut written: Written, why: Why) {
        let kept = self.order().map(|order| order.context.clone()).unwrap_or_default();
        written.text = with_context(written.text, &kept);
        let swap = Swap {
            shown: written.text.clone().unwrap_or_default(),
            is_fallback: written.fallback.is_some(),
            spent: written.by.clone(),
            revision: plan.revision,
            trigger: plan.trigger,
            why,
        };
        if swap.revision != self.thread.view().revision() {
            return self.swap_failed(&swap, CHANGED);
        }
        let told = self.work.as_ref().and_then(|work| work.compacting.as_ref());
        let id = told.map(|compacting| compacting.id).unwrap_or_else(|| self.fresh_message());
        let composing = self.composing(plan, id, written);
        self.think(composing, move |session, composed| match composed {
            Some(change) => session.swap_composed(&swap, change),
            None => session.swap_failed(&swap, thinking::FAULT),
        });
    }

    /// The work of making the one change of a compaction, or of finding out why it gains nothing.
    fn composing(
        &mut self,
        plan: Plan,
        id: MessageId,
        written: Written,
    ) -> impl FnOnce() -> Result<Change, String> + Send + use<> {
        let (ruler, budget, thread) = (self.ruler(), self.budget(), self.thread.clone());
        move || compaction::compacted(&ruler, &thread, &budget, &plan, id, written)
    }

    fn swap_composed(&mut self, swap: &Swap, change: Result<Change, String>) {
        if swap.revision != self.thread.view().revision() {
            return self.swap_failed(swap, CHANGED);
        }
        let change = match change {
            Ok(change) => self.sized(change),
            Err(no_gain) => {
                self.spend_on(swap);
                return self.nothing_to_compact(swap.why, &no_gain);
            }
        };
        if let Change::Compacted { tokens_before, tokens_after, .. } = &change {
            let status = if swap.is_fallback { "truncated" } else { "compacted" };
            self.compaction_meta(status, Some((*tokens_before, *tokens_after)));
        }
        if swap.trigger == Trigger::Overflow && self.drops_attachments(&change) {
            self.say(
                Severity::Warning,
                "The request was larger than the provider takes, so what you attached to your last message is \
                 not sent any more: the model only gets its name. Attach fewer or smaller files, or send them one \
                 by one."
                    .to_owned(),
            );
        }
        if let Some(work) = &mut self.work {
            work.summary = (swap.why == Why::Command).then(|| swap.shown.clone());
        }
        if swap.why == Why::Hook && self.ask_of_callback(&swap.shown, &change) {
            return;
        }
        self.end_compaction(CompactAnswer::Done(Box::new(change)));
    }

    fn swap_failed(&mut self, swap: &Swap, why: &str) {
        self.spend_on(swap);
        self.end_compaction(CompactAnswer::Failed(why.to_owned()));
    }

    /// A summary that is not used was paid for all the same.
    fn spend_on(&mut self, swap: &Swap) {
        if let Some((model, usage)) = swap.spent.clone() {
            self.spend(model, usage, UNUSED_SUMMARY.to_owned());
        }
    }

    /// Whether the newest that the person said holds an image or a document, and is not sent any more.
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

    /// Makes the change that puts a reply's text in the place of the history (the handler `swap_context`).
    pub(super) fn swap_text(
        &mut self,
        text: &str,
        keep: Keep,
        then: impl FnOnce(&mut Session, Result<Change, String>) + Send + 'static,
    ) {
        let Some(summary) = compaction::extract(text) else {
            return then(self, Err("the reply has no text that could be a summary".to_owned()));
        };
        let wish = Wish { keep: keep_of(&keep), ..self.wish(None, Why::Hook) };
        let (ruler, budget, thread) = (self.ruler(), self.budget(), self.thread.clone());
        let (id, revision) = (self.fresh_message(), thread.view().revision());
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
        self.think(composing, move |session, composed| {
            let change = composed.unwrap_or_else(|| Err(thinking::FAULT.to_owned()));
            let stands = revision == session.thread.view().revision();
            let change = change.map_err(|no_gain| format!("nothing is gained: {no_gain}"));
            then(session, if stands { change } else { Err(CHANGED.to_owned()) });
        });
    }

    fn nothing_to_compact(&mut self, why: Why, no_gain: &str) {
        let text = format!("Nothing to compact: {no_gain}.");
        match why {
            Why::Command | Why::Overflow => {
                let message = self.fresh_message();
                if let Err(error) = self.commit(Change::Noted { message, text }) {
                    return self.abandon(&error);
                }
            }
            Why::Threshold | Why::Hook | Why::Must => {
                if why == Why::Hook {
                    self.say(Severity::Info, text);
                }
                if self.pace.gained_nothing(&self.thread) {
                    let text = "Compacting gains nothing now, so it pauses until you ask for it with /compact or the \
                                conversation has grown.";
                    self.say(Severity::Info, text.to_owned());
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
