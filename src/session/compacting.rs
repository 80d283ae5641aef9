//! Compaction in a session: who writes the summary, what is committed. When one is due, what it may take and what
//! clients see of it is in the files beside this one.

mod budget;
mod order;
mod shown;
mod when;

use tokio::sync::mpsc;

use super::actor::Session;
use super::effects;
use super::recipes::Text;
use super::replies::sentence;
use super::summary::{self, Attempt, Summary, SummaryOrder, Writer};
use super::work::{Compacting, Done, Point, Summarised};
use super::{CompactionState, Out, Severity};
use crate::compaction::{self, Decision, Plan, Wish, Written};
use crate::config::Summariser;
use crate::hooks::moment::What;
use crate::hooks::output::Keep;
use crate::provider::endpoint::Endpoint;
use crate::provider::learned::Lesson;
use crate::provider::{ProviderError, models};
use crate::recipe::render::ShellOutputs;
use crate::thread::{Change, Content, Mask, Trigger};
use crate::turn::{Answer as Told, Ask, CompactAnswer, Why};

pub(super) use budget::{keep_of, trigger_of};
pub use order::CompactionOrder;
pub(super) use order::without_swap;

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
        if !self.started {
            let what = What::SessionStart { source: self.source };
            if self.run_hooks(what, Point::StartCompact { why, focus: focus.clone() }).is_ok() {
                return;
            }
            self.started = true;
        }
        let plan = match self.decide(focus.clone(), why) {
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
            return self.swap_in(&plan, written, why);
        }
        let ask = Ask::Compact { focus: plan.focus.clone(), why };
        let Some(endpoint) = self.endpoint_for(&ask) else { return };
        if let Err(message) = self.ensure_frame() {
            return self.end_compaction(CompactAnswer::Failed(message));
        }
        if self.settings.compaction.model == Summariser::Nobody {
            return self.swap_in(&plan, Written::default(), why);
        }
        if let Some((plan, written)) = self.take_ahead(&plan, why) {
            return self.swap_in(&plan, written, why);
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
        // A long conversation is read while its summary is written. What a cancel takes with it is read again.
        let (mut ledger, thread) = (std::mem::take(&mut self.ledger), self.thread.clone());
        work.jobs.spawn(async move {
            let reading = tokio::task::spawn_blocking(move || {
                ledger.follow(&thread);
                ledger
            });
            let attempt = effects::guarded(writing, Attempt::panicked).await;
            let ledger = reading.await.unwrap_or_default();
            Done::Summary(Box::new(Summarised { attempt, plan, ledger, why }))
        });
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
        async move {
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
                own.for_each(|(_, limit)| services.learned.learn_window(other, *limit, Lesson::Overflow));
            }
            attempt
        }
    }

    /// Cuts old outcomes; no model is asked, and hooks have nothing to say to it.
    fn prune(&mut self, masks: Vec<Mask>, trigger: Trigger) {
        let change = compaction::pruned(&self.ruler(), &self.thread, masks, trigger);
        if let Change::Pruned { tokens_before, tokens_after, .. } = &change {
            self.compaction_meta("pruned", Some((*tokens_before, *tokens_after)));
        }
        self.end_compaction(CompactAnswer::Done(Box::new(change)));
    }

    /// Whether a child has had no reply yet: then nothing is lost where it begins anew with less.
    fn is_first_request_of_child(&self) -> bool {
        let own = self.thread.entries().iter().skip(self.lineage.own_from.0 as usize);
        self.lineage.is_child()
            && !own.into_iter().any(|entry| matches!(entry.change, Change::Replied { .. }))
    }

    /// What a compaction would do to the conversation as it is now.
    pub(super) fn decide(&self, focus: Option<String>, why: Why) -> Decision {
        compaction::decide(&self.ruler(), &self.thread, &self.budget(), &self.wish(focus, why))
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
        let Summarised { attempt, plan, ledger, why } = summarised;
        self.ledger = ledger;
        // What was written last may have come at the same moment.
        let pieces = self.work.as_mut().and_then(|work| work.pieces.take());
        for piece in
            pieces.into_iter().flat_map(|mut pieces| std::iter::from_fn(move || pieces.try_recv().ok()))
        {
            self.compaction_wrote(piece);
        }
        let summary = self.take_attempt(attempt);
        if let Err(error) = &summary {
            tracing::warn!(session = %self.id, %error, "no summary: the facts found by code stand for it");
        }
        let written = match summary {
            Ok(summary) => summary.written(),
            Err(error) => Written { fallback: Some(sentence(&error)), ..Written::default() },
        };
        self.swap_in(&plan, written, why);
    }

    /// What an attempt came to, once what it tells of windows is known.
    pub(super) fn take_attempt(&mut self, attempt: Attempt) -> Result<Summary, ProviderError> {
        for (model, limit) in attempt.limits {
            self.learn_limit(&model, limit);
        }
        attempt.summary
    }

    fn swap_in(&mut self, plan: &Plan, mut written: Written, why: Why) {
        if plan.revision != self.thread.view().revision() {
            let reason = "the conversation was changed while its summary was written; nothing was replaced";
            return self.end_compaction(CompactAnswer::Failed(reason.to_owned()));
        }
        let kept = self.order().map(|order| order.context.clone()).unwrap_or_default();
        written.text = with_context(written.text, &kept);
        let shown = written.text.clone().unwrap_or_default();
        let is_fallback = written.fallback.is_some();
        let spent =
            written.by.as_ref().map(|(model, usage)| (*usage, models::cost(&self.settings, model, usage)));
        let change = match self.compacted(plan, written) {
            Ok(change) => change,
            Err(no_gain) => {
                // It was paid for all the same.
                if let Some((usage, cost)) = spent {
                    self.spend(&usage, cost);
                }
                return self.nothing_to_compact(why, &no_gain);
            }
        };
        if let Change::Compacted { tokens_before, tokens_after, .. } = &change {
            let status = if is_fallback { "truncated" } else { "compacted" };
            self.compaction_meta(status, Some((*tokens_before, *tokens_after)));
        }
        if plan.trigger == Trigger::Overflow && self.drops_attachments(&change) {
            self.say(
                Severity::Warning,
                "The request was larger than the provider takes, so what you attached to your last message is \
                 not sent any more: the model only gets its name. Attach fewer or smaller files, or send them one \
                 by one."
                    .to_owned(),
            );
        }
        if let Some(work) = &mut self.work {
            work.summary = (why == Why::Command).then(|| shown.clone());
        }
        if why == Why::Hook && self.ask_of_callback(&shown, &change) {
            return;
        }
        self.end_compaction(CompactAnswer::Done(Box::new(change)));
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

    fn compacted(&mut self, plan: &Plan, written: Written) -> Result<Change, String> {
        let told = self.work.as_ref().and_then(|work| work.compacting.as_ref());
        let id = told.map(|compacting| compacting.id).unwrap_or_else(|| self.fresh_message());
        let (ruler, budget) = (self.ruler(), self.budget());
        self.ledger.follow(&self.thread);
        compaction::compacted(&ruler, &self.thread, &self.ledger, &budget, plan, id, written)
    }

    /// The change that puts a reply's text in the place of the history (the handler `swap_context`).
    pub(super) fn swapped_by_text(&mut self, text: &str, keep: Keep) -> Result<Change, String> {
        let summary = compaction::extract(text).ok_or("the reply has no text that could be a summary")?;
        let wish = Wish { keep: keep_of(&keep), ..self.wish(None, Why::Hook) };
        match compaction::decide(&self.ruler(), &self.thread, &self.budget(), &wish) {
            Decision::Summarise(plan) => {
                self.compacted(&plan, Written { text: Some(summary), ..Written::default() })
            }
            Decision::Nothing(reason) => Err(reason),
            Decision::Prune(_) => Err(compaction::NO_GAIN.to_owned()),
        }
        .map_err(|no_gain| format!("nothing is gained: {no_gain}"))
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
