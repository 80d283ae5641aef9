//! Compaction in a session: when one is due, who writes the summary, what is committed.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::actor::Session;
use super::effects;
use super::recipes::Text;
use super::replies::sentence;
use super::summary::{self, Attempt, Summary, SummaryOrder, Writer};
use super::work::{Compacting, Done, Point, Summarised};
use super::{CompactionState, Out, Severity};
use crate::compaction::pace::Fullness;
use crate::compaction::{self, Budget, Decision, Plan, Wish, Written};
use crate::config::Summariser;
use crate::hooks::handlers::{self, Declared, Table};
use crate::hooks::moment::What;
use crate::hooks::output::{Callback, Keep};
use crate::provider::endpoint::Endpoint;
use crate::provider::learned::{Lesson, Source};
use crate::provider::{ProviderError, models};
use crate::recipe::command::Arguments;
use crate::recipe::parse::Recipe;
use crate::recipe::render::ShellOutputs;
use crate::thread::{Change, Content, Mask, Seq, Trigger};
use crate::turn::{Answer as Told, Ask, CompactAnswer, Why};

/// What is shown of a summary as it is written, in bytes, tries that came to nothing counted in; the whole
/// stands in the entry.
const SHOWN_BYTES_MAX: usize = 256 * 1024;

/// How a compaction is to be made; what is not said is as the `compact` recipe has it.
#[derive(Clone, Debug, Default)]
pub struct CompactionOrder {
    /// The recipe whose text tells the model what to write.
    pub recipe: Option<Arc<Recipe>>,
    pub arguments: Arguments,
    /// The recipe's text, where it is rendered already.
    pub instruction: Option<String>,
    /// What stays verbatim; `None` is the configured share for the threshold, and else nothing.
    pub keep: Option<Keep>,
    /// Only what is older than this entry goes.
    pub above: Option<Seq>,
    /// Tokens that the summary may have; `None` is what is configured.
    pub summary_tokens_max: Option<u32>,
    /// What the hook that asked wants its callback to know.
    pub callback: Option<Callback>,
    /// A recipe's own handler asked for it, not a script.
    pub by_recipe: bool,
    /// Hooks have been asked.
    pub seen: bool,
    /// What hooks want kept word for word.
    pub context: Vec<(String, String)>,
    /// A summary that a hook wrote.
    pub summary: Option<String>,
}

/// What a `swap_context` of a recipe says about the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Swap {
    pub keep: Option<Keep>,
    pub summary_tokens_max: Option<u32>,
}

/// What a `swap_context` of a recipe's table says, and the table without it: its work is done by the
/// compaction itself.
pub(super) fn without_swap(mut handlers: Table) -> (Swap, Table) {
    let mut swap = Swap::default();
    for declared in handlers.values_mut() {
        declared.retain(|place| match place {
            Declared::Handler(handler) if handler.name == "swap_context" => {
                let recent = handler.params.get("preserve_recent").and_then(serde_json::Value::as_u64);
                swap.keep = recent.filter(|recent| *recent > 0).map(|recent| Keep::Messages(recent as usize));
                let tokens = handler.params.contains_key("max_summary_tokens");
                let tokens = tokens.then(|| handlers::max_summary_tokens(handler));
                swap.summary_tokens_max = tokens.and_then(|tokens| u32::try_from(tokens).ok());
                false
            }
            Declared::Handler(_) | Declared::External { .. } | Declared::Script { .. } => true,
        });
    }
    handlers.retain(|_, declared| !declared.is_empty());
    (swap, handlers)
}

impl Session {
    // ── When ───────────────────────────────────────────────────────────────────────────────────

    pub(super) fn compaction_is_paused(&self) -> bool {
        let size = self.endpoint.as_ref().map_or(models::WINDOW_DEFAULT, |endpoint| endpoint.window);
        self.pace.is_paused(&self.ruler(), &self.thread, size)
    }

    /// Tokens in context at which a compaction happens by itself; `None` where none does, and where the
    /// window is not known.
    pub(super) fn next_compaction_at(&self) -> Option<u64> {
        let size = self.endpoint.as_ref().map(|endpoint| endpoint.window)?;
        let at = self.auto_compact_at(size)?;
        let ruler = self.ruler();
        let used = ruler.in_context(&self.thread);
        Some(self.pace.due_at(&ruler, &self.thread, Fullness { used, size, at }))
    }

    /// Whether the configured share of the window is used, and a compaction would help.
    pub(super) fn compaction_is_due(&mut self) -> bool {
        let Some(size) = self.endpoint.as_ref().map(|endpoint| endpoint.window) else { return false };
        let Some(at) = self.auto_compact_at(size) else { return false };
        let used = self.tokens_at_most();
        let compacted = self.work.as_ref().is_some_and(|work| work.turn.compacted_since_reply());
        !compacted && self.pace.is_due(&self.ruler(), &self.thread, Fullness { used, size, at })
    }

    /// Whether the next request might not fit, so that the conversation must be made shorter before it is sent.
    /// It is never so below the configured threshold: in a small window the room for a reply is a large part.
    pub(super) fn must_compact(&mut self, endpoint: &Endpoint) -> bool {
        let size = endpoint.window;
        let Some(threshold) = self.auto_compact_at(size) else { return false };
        if !self.work.as_ref().is_some_and(|work| work.turn.may_compact_before_call()) {
            return false;
        }
        let reserve = self.reserve() as f64 / size.max(1) as f64;
        let at = (self.settings.compaction.must_ratio - reserve).max(threshold);
        // Who counts before the call need not fear the worst of an estimate.
        let used = match endpoint.count_url() {
            Some(_) => self.tokens_in_context(),
            None => self.tokens_at_most(),
        };
        self.pace.is_due(&self.ruler(), &self.thread, Fullness { used, size, at })
    }

    /// Whether a compaction that a hook asks for could gain anything.
    pub(super) fn is_worth_compacting(&self) -> bool {
        !matches!(self.decide(None, Why::Hook), Decision::Nothing(_))
    }

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

    // ── How ────────────────────────────────────────────────────────────────────────────────────

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

    /// Tells clients that a compaction which they were shown the beginning of will not be.
    pub(super) fn compaction_came_to_nothing(&mut self, state: CompactionState) {
        if let Some(Compacting { id, .. }) = self.work.as_mut().and_then(|work| work.compacting.take()) {
            self.announce(&Out::Compaction { id, state });
        }
    }

    /// Shows the next piece of the summary that a model writes.
    pub(super) fn compaction_wrote(&mut self, piece: String) {
        let Some(compacting) = self.work.as_mut().and_then(|work| work.compacting.as_mut()) else { return };
        if piece.is_empty() || compacting.wrote.len() + piece.len() > SHOWN_BYTES_MAX {
            return;
        }
        compacting.wrote.push_str(&piece);
        let id = compacting.id;
        self.announce(&Out::Compaction { id, state: CompactionState::Wrote(piece) });
    }

    /// How the running compaction stands, for a client that joins in the middle of it.
    pub(super) fn live_compaction(&self) -> Vec<Out> {
        let Some(Compacting { id, tokens, wrote }) =
            self.work.as_ref().and_then(|work| work.compacting.as_ref())
        else {
            return Vec::new();
        };
        let mut outs = vec![Out::Compaction { id: *id, state: CompactionState::Began { tokens: *tokens } }];
        if !wrote.is_empty() {
            outs.push(Out::Compaction { id: *id, state: CompactionState::Wrote(wrote.clone()) });
        }
        outs
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

    pub(super) fn wish(&self, focus: Option<String>, why: Why) -> Wish {
        let ordered = self.order().and_then(|order| order.keep);
        let newest = compaction::Keep::Ratio(self.settings.compaction.preserve_ratio);
        let keep = match (ordered, why) {
            (Some(keep), _) => keep_of(&keep),
            (None, Why::Command | Why::Hook) => compaction::Keep::Nothing,
            (None, Why::Threshold | Why::Must) => newest,
            // How much fits is only known where somebody has told how large the window is.
            (None, Why::Overflow) if self.window_from == Source::Guess => compaction::Keep::Nothing,
            (None, Why::Overflow) => newest,
        };
        let above = self.order().and_then(|order| order.above);
        Wish {
            trigger: trigger_of(why),
            keep: above.map_or(keep, compaction::Keep::From),
            focus,
            summary: matches!(why, Why::Command | Why::Hook),
        }
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

    /// The room of the model's window, and how a compaction may use it.
    pub(super) fn budget(&self) -> Budget {
        self.budget_for(self.order().and_then(|order| order.summary_tokens_max))
    }

    /// The same for a summary of so many tokens, where a recipe says that.
    pub(super) fn budget_for(&self, summary_max: Option<u32>) -> Budget {
        let window = self.endpoint.as_ref().map_or(models::WINDOW_DEFAULT, |endpoint| endpoint.window);
        let frame = self.ruler().frame_of(&self.thread);
        let mut settings = self.settings.compaction.clone();
        settings.max_summary_tokens = summary_max.unwrap_or(settings.max_summary_tokens);
        Budget::of(&settings, window, self.reserve(), frame)
    }

    /// Tokens of the window that are kept free for a reply.
    fn reserve(&self) -> u64 {
        let reserve = self.settings.compaction.output_reserve;
        match &self.endpoint {
            Some(endpoint) => u64::from(reserve.min(endpoint.max_output)).min(endpoint.window / 4),
            None => u64::from(reserve).min(models::WINDOW_DEFAULT / 4),
        }
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

    pub(super) fn compaction_meta(&mut self, status: &str, tokens: Option<(u64, u64)>) {
        let Some(work) = &mut self.work else { return };
        let mut compaction = serde_json::json!({ "status": status });
        if let Some((before, after)) = tokens {
            compaction["pre_tokens"] = before.into();
            compaction["post_tokens"] = after.into();
        }
        work.meta = Some(serde_json::json!({ "epitome": { "compaction": compaction } }));
    }
}

fn trigger_of(why: Why) -> Trigger {
    match why {
        Why::Command => Trigger::Manual,
        Why::Overflow => Trigger::Overflow,
        Why::Threshold => Trigger::Threshold,
        Why::Hook => Trigger::Hook,
        Why::Must => Trigger::Must,
    }
}

pub(super) fn keep_of(keep: &Keep) -> compaction::Keep {
    match keep {
        Keep::Nothing => compaction::Keep::Nothing,
        Keep::Messages(messages) => compaction::Keep::Messages(*messages),
        Keep::Ratio(ratio) => compaction::Keep::Ratio(*ratio),
    }
}

/// The summary, and behind it what hooks want kept, word for word: a model may have left it out.
fn with_context(text: Option<String>, kept: &[(String, String)]) -> Option<String> {
    let parts = kept.iter().map(|(by, words)| format!("Kept for {by}:\n{words}"));
    let parts: Vec<String> = text.into_iter().chain(parts).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}
