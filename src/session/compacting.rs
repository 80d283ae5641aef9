//! Compaction in a session: what hooks say before and after, who writes the summary, what is committed.

use std::sync::Arc;

use super::Severity;
use super::actor::Session;
use super::effects::{self, Summary};
use super::hooks::refuse;
use super::recipes::Text;
use super::replies::sentence;
use super::rounds::{apply_to, text_content};
use super::work::{Done, Pending, Point};
use crate::compaction::{self, Order};
use crate::hooks::event::HookEvent;
use crate::hooks::handlers::{Declared, Table};
use crate::hooks::moment::{CompactTrigger, Round, What};
use crate::hooks::output::{Action, Callback, Keep, Resolution};
use crate::provider::{ErrorClass, ProviderError};
use crate::recipe::command::Arguments;
use crate::recipe::parse::Recipe;
use crate::recipe::render::ShellOutputs;
use crate::thread::{Change, Message, ModelName, Seq, Trigger, Usage, View};
use crate::tokens;
use crate::turn::{Answer as Told, Ask, CompactAnswer, HooksAnswer, Why};

/// What of the last request is quoted even in the smallest window, in bytes.
const ROOM_BYTES_MIN: usize = 512;

/// Automatic compactions in a row that gained nothing before they are paused.
const USELESS_MAX: u32 = 2;

/// The share of the window, in per cent, that must be added after a compaction before the next automatic
/// one. Without it a summary that is nearly as large as the threshold is compacted again at once.
const GROWTH_PERCENT_MIN: u64 = 10;

/// Why a conversation is left as it is.
pub(super) const NO_GAIN: &str = "a summary would not be shorter than what it replaces";

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
    /// What the hook that asked wants its callback to know.
    pub callback: Option<Callback>,
    /// Hooks have been asked.
    pub seen: bool,
    /// What hooks want kept word for word.
    pub context: Vec<(String, String)>,
    /// A summary that a hook wrote.
    pub summary: Option<String>,
}

/// What keeps automatic compaction from running in circles.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Automatic compactions in a row that gained nothing.
    useless: u32,
    /// Tokens in context behind the last one.
    after: Option<u64>,
}

/// What a `swap_context` of a recipe's table keeps, and the table without it: its work is done by the
/// compaction itself.
pub(super) fn without_swap(mut handlers: Table) -> (Option<Keep>, Table) {
    let mut keep = None;
    for declared in handlers.values_mut() {
        declared.retain(|place| match place {
            Declared::Handler(handler) if handler.name == "swap_context" => {
                let recent = handler.params.get("preserve_recent").and_then(serde_json::Value::as_u64);
                keep = recent.filter(|recent| *recent > 0).map(|recent| Keep::Messages(recent as usize));
                false
            }
            Declared::Handler(_) | Declared::External { .. } | Declared::Script { .. } => true,
        });
    }
    handlers.retain(|_, declared| !declared.is_empty());
    (keep, handlers)
}

impl Session {
    // ── When ───────────────────────────────────────────────────────────────────────────────────

    pub(super) fn compaction_is_paused(&self) -> bool {
        self.pace.useless >= USELESS_MAX
    }

    /// Tokens in context at which a compaction happens by itself; `None` where none does, and where the
    /// window is not known.
    pub(super) fn next_compaction_at(&self) -> Option<u64> {
        let size = self.endpoint.as_ref().map(|endpoint| endpoint.window)?;
        let at = (self.auto_compact_at(size)? * size as f64).ceil() as u64;
        let grown = self.pace.after.map_or(0, |after| after + size.saturating_mul(GROWTH_PERCENT_MIN) / 100);
        Some(at.max(grown))
    }

    /// Whether the configured share of the window is used, and a compaction would help.
    pub(super) fn compaction_is_due(&mut self) -> bool {
        let Some(size) = self.endpoint.as_ref().map(|endpoint| endpoint.window) else { return false };
        let Some(at) = self.auto_compact_at(size) else { return false };
        let used = self.counter.in_context(&self.thread);
        let grown = self.pace.after.is_none_or(|after| {
            used.saturating_sub(after).saturating_mul(100) >= size.saturating_mul(GROWTH_PERCENT_MIN)
        });
        let compacted = self.work.as_ref().is_some_and(|work| work.turn.compacted_since_reply());
        used as f64 >= at * size as f64 && grown && !compacted && !self.compaction_is_paused()
    }

    /// Whether a compaction that a hook asks for could gain anything.
    pub(super) fn is_worth_compacting(&self) -> bool {
        compaction::can_shrink(&self.thread.view().replaced_by(self.through(Why::Hook)))
    }

    pub(super) fn order_compaction(&mut self, order: CompactionOrder) {
        if let Some(work) = &mut self.work {
            work.order = order;
        }
    }

    fn take_order(&mut self) -> CompactionOrder {
        self.work.as_mut().map(|work| std::mem::take(&mut work.order)).unwrap_or_default()
    }

    fn order(&self) -> Option<&CompactionOrder> {
        self.work.as_ref().map(|work| &work.order)
    }

    // ── How ────────────────────────────────────────────────────────────────────────────────────

    pub(super) fn compact(&mut self, focus: Option<String>, why: Why) {
        if why == Why::Overflow && self.is_first_request_of_child() {
            if let Some(work) = &mut self.work {
                work.too_long = true;
            }
            let reason = "the history that it was given is too long".to_owned();
            return self.tell(Told::Compacted(CompactAnswer::Failed(reason)));
        }
        let replaced = self.thread.view().replaced_by(self.through(why));
        if !compaction::can_shrink(&replaced) {
            return self.nothing_to_compact(why);
        }
        if self.order().is_some_and(|order| !order.seen) {
            if let Some(work) = &mut self.work {
                work.order.seen = true;
            }
            let what = self.pre_compact(why, focus.clone());
            if self.run_hooks(what, Point::PreCompact { why, focus: focus.clone() }).is_ok() {
                return;
            }
        }
        if let Some(summary) = self.work.as_mut().and_then(|work| work.order.summary.take()) {
            return self.swap_in(summary, None, focus, why);
        }
        let Some(endpoint) = self.endpoint_for(&Ask::Compact { focus: focus.clone(), why }) else { return };
        if let Err(message) = self.ensure_frame() {
            return self.tell(Told::Compacted(CompactAnswer::Failed(message)));
        }
        let instruction = self.instruction();
        let mut snapshot = self.snapshot(effects::SUMMARY_TOKENS_MAX);
        snapshot.view = replaced;
        let http = self.services.http.clone();
        let Some(work) = &mut self.work else { return };
        work.jobs.spawn(async move {
            let summarise = effects::summarise(http, endpoint, snapshot, instruction);
            let summary = effects::guarded(summarise, || Err(effects::fault_of_ours())).await;
            Done::Summary(Box::new(summary), focus, why)
        });
    }

    /// Whether a child has had no reply yet: then nothing is lost where it begins anew with less.
    fn is_first_request_of_child(&self) -> bool {
        let own = self.thread.entries().iter().skip(self.lineage.own_from.0 as usize);
        self.lineage.is_child()
            && !own.into_iter().any(|entry| matches!(entry.change, Change::Replied { .. }))
    }

    fn keep(&self, why: Why) -> compaction::Keep {
        let ordered = self.order().and_then(|order| order.keep);
        match (ordered, why) {
            (Some(Keep::Nothing), _) | (None, Why::Command | Why::Hook | Why::Overflow) => {
                compaction::Keep::Nothing
            }
            (Some(Keep::Messages(messages)), _) => compaction::Keep::Messages(messages),
            (Some(Keep::Ratio(ratio)), _) => compaction::Keep::Ratio(ratio),
            (None, Why::Threshold) => compaction::Keep::Ratio(self.settings.compaction.preserve_ratio),
        }
    }

    /// The newest entry that goes. Where all fits into what is to be kept, all of it goes: a compaction
    /// that was asked for is made.
    fn through(&self, why: Why) -> Seq {
        let window = self.endpoint.as_ref().map_or(0, |endpoint| endpoint.window);
        let through = compaction::through(&self.thread, self.keep(why), window);
        let replaced = self.thread.view().replaced_by(through);
        match compaction::can_shrink(&replaced) {
            true => through,
            false => compaction::through(&self.thread, compaction::Keep::Nothing, window),
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

    pub(super) fn summarised(
        &mut self,
        summary: Result<Summary, ProviderError>,
        focus: Option<String>,
        why: Why,
    ) {
        let (text, written) = match summary {
            Ok(summary) => (summary.text, Some((summary.model, summary.usage))),
            Err(error) if why == Why::Overflow && can_do_without(&error) => {
                tracing::warn!(session = %self.id, %error, "no summary: the newest words stand for it");
                (compaction::without_model(self.thread.view(), self.room_bytes()), None)
            }
            Err(error) => {
                self.compaction_meta("failed", None);
                if why != Why::Command {
                    self.pace.useless += 1;
                    self.say(
                        Severity::Warning,
                        format!("The conversation was not compacted: {}", sentence(&error)),
                    );
                }
                return self.compaction_ended(CompactAnswer::Failed(sentence(&error)));
            }
        };
        self.swap_in(text, written, focus, why);
    }

    fn swap_in(
        &mut self,
        text: String,
        written: Option<(ModelName, Usage)>,
        focus: Option<String>,
        why: Why,
    ) {
        let through = self.through(why);
        let kept = self.order().map(|order| order.context.clone()).unwrap_or_default();
        let text = with_context(text, &kept);
        let Some(change) = self.compacted(&text, written, focus, through, trigger_of(why)) else {
            return self.nothing_to_compact(why);
        };
        if let Change::Compacted { tokens_before, tokens_after, .. } = &change {
            self.compaction_meta("compacted", Some((*tokens_before, *tokens_after)));
        }
        if let Some(work) = &mut self.work {
            work.summary = (why == Why::Command).then(|| text.clone());
        }
        if why == Why::Hook && self.ask_of_callback(&text, &change) {
            return;
        }
        self.tell(Told::Compacted(CompactAnswer::Done(Box::new(change))));
    }

    fn compacted(
        &mut self,
        text: &str,
        written: Option<(ModelName, Usage)>,
        focus: Option<String>,
        through: Seq,
        trigger: Trigger,
    ) -> Option<Change> {
        let id = self.fresh_message();
        let order = Order { trigger, focus, through, room_bytes: self.room_bytes() };
        compaction::compacted(&self.thread, id, text, written, order)
    }

    /// The change that puts a reply's text in the place of the history (the handler `swap_context`).
    pub(super) fn swapped_by_text(&mut self, text: &str, keep: Keep) -> Result<Change, String> {
        let summary = compaction::extract(text).ok_or("the reply has no text that could be a summary")?;
        let window = self.endpoint.as_ref().map_or(0, |endpoint| endpoint.window);
        let keep = match keep {
            Keep::Nothing => compaction::Keep::Nothing,
            Keep::Messages(messages) => compaction::Keep::Messages(messages),
            Keep::Ratio(ratio) => compaction::Keep::Ratio(ratio),
        };
        let through = compaction::through(&self.thread, keep, window);
        self.compacted(&summary, None, None, through, Trigger::Hook)
            .ok_or_else(|| "the new history would not be shorter than what it replaces".to_owned())
    }

    /// Bytes of text for which there is room beside the frame, a summary and the next reply.
    fn room_bytes(&self) -> usize {
        let Some(endpoint) = &self.endpoint else { return ROOM_BYTES_MIN };
        let frame = self.thread.frame().map_or(0, |(system, tools)| tokens::of_frame(system, tools));
        let taken = frame + 2 * u64::from(endpoint.max_output);
        let tokens = endpoint.window.saturating_sub(taken) / 2;
        usize::try_from(tokens * 3).unwrap_or(usize::MAX).max(ROOM_BYTES_MIN)
    }

    fn nothing_to_compact(&mut self, why: Why) {
        let text = format!("Nothing to compact: {NO_GAIN}.");
        match why {
            Why::Command | Why::Overflow => {
                let message = self.fresh_message();
                if let Err(error) = self.commit(Change::Noted { message, text }) {
                    return self.abandon(&error);
                }
            }
            Why::Threshold | Why::Hook => {
                self.pace.useless += 1;
                if why == Why::Hook {
                    self.say(Severity::Info, text);
                }
                if self.pace.useless == USELESS_MAX {
                    let text =
                        "Compacting gains nothing now, so it pauses until you ask for it with /compact.";
                    self.say(Severity::Info, text.to_owned());
                }
            }
        }
        self.compaction_meta("nothing_to_do", None);
        self.compaction_ended(CompactAnswer::Nothing);
    }

    /// It came to nothing. How it was to be made does not hold for the next one: hooks are asked again.
    fn compaction_ended(&mut self, answer: CompactAnswer) {
        self.order_compaction(CompactionOrder::default());
        self.tell(Told::Compacted(answer));
    }

    fn compaction_meta(&mut self, status: &str, tokens: Option<(u64, u64)>) {
        let Some(work) = &mut self.work else { return };
        let mut compaction = serde_json::json!({ "status": status });
        if let Some((before, after)) = tokens {
            compaction["pre_tokens"] = before.into();
            compaction["post_tokens"] = after.into();
        }
        work.meta = Some(serde_json::json!({ "epitome": { "compaction": compaction } }));
    }

    // ── Hooks before it ────────────────────────────────────────────────────────────────────────

    fn pre_compact(&mut self, why: Why, focus: Option<String>) -> What {
        let used = self.counter.in_context(&self.thread);
        let through = self.through(why);
        let view = self.thread.view();
        let preserve_count = view.kept_behind(through).len();
        What::PreCompact {
            trigger: trigger_word(why),
            reason: match why {
                Why::Command => "command",
                Why::Overflow => "overflow",
                Why::Threshold => "threshold",
                Why::Hook => "hook",
            },
            custom_instructions: focus,
            context: Vec::new(),
            tokens: used,
            compact_count: view.entries().len() - preserve_count,
            preserve_count,
            recipe: self
                .order()
                .and_then(|order| order.recipe.as_ref())
                .map_or_else(|| "compact".to_owned(), |recipe| recipe.id.clone()),
            must: why == Why::Overflow,
        }
    }

    pub(super) fn pre_compact_resolved(
        &mut self,
        why: Why,
        focus: Option<String>,
        mut resolution: Resolution,
    ) {
        let made_for = self.thread.view().revision();
        let mut pending =
            Pending { event: HookEvent::PreCompact, last: false, resolution, answer: HooksAnswer::default() };
        self.edit(&mut pending, made_for);
        resolution = pending.resolution;
        let mut commits = self.record(HookEvent::PreCompact, &mut resolution);
        commits.extend(pending.answer.commits);
        self.commit_all(commits);
        if let Some((hook, reason)) = resolution.block {
            let text = match reason.trim() {
                "" => format!("The hook {hook} stopped this compaction."),
                reason => format!("The hook {hook} stopped this compaction: {reason}"),
            };
            let note = Change::Noted { message: self.fresh_message(), text };
            self.commit_all(vec![note]);
            self.compaction_meta("blocked", None);
            return self.compaction_ended(CompactAnswer::Nothing);
        }
        let focus = resolution.custom_instructions.clone().or(focus);
        let renewed = resolution.custom_instructions.map(|instructions| self.instruction_for(&instructions));
        if let Some(work) = &mut self.work {
            let order = &mut work.order;
            order.instruction = renewed.or(order.instruction.take());
            order.context = resolution.context;
            order.summary = resolution.summary.map(|(_, text)| text);
        }
        self.compact(focus, why);
    }

    /// The recipe's text for other instructions of a hook.
    fn instruction_for(&self, instructions: &str) -> String {
        let recipe = self
            .order()
            .and_then(|order| order.recipe.clone())
            .or_else(|| self.catalog.find("compact").cloned());
        let arguments = self.order().map(|order| order.arguments.clone()).unwrap_or_default();
        let arguments = Arguments { free: instructions.to_owned(), ..arguments };
        let text = recipe.map(|recipe| self.render(&recipe, &arguments, &ShellOutputs::new()));
        match text {
            Some(Text::Done(text)) => text,
            Some(Text::Needs(_) | Text::Failed(_)) | None => {
                format!("{}\n\n## Additional instructions\n\n{instructions}", self.summary_instruction())
            }
        }
    }

    // ── The stop of the recipe that a hook called ──────────────────────────────────────────────

    /// Hooks see the end of the recipe that wrote the summary, as they would of any callback.
    fn ask_of_callback(&mut self, text: &str, change: &Change) -> bool {
        if !self.may_run(HookEvent::AgentStop) {
            return false;
        }
        let order = self.take_order();
        let Some(recipe) = &order.recipe else { return false };
        let round = Round { response: text.to_owned(), message: None, number: 1, ..self.round() };
        let what = What::AgentStop { round, stop_reason: "end_turn", continuations: 0 };
        let mut moment = self.moment(what);
        moment.base.view = self.view_with_reply(text);
        moment.base.recipe = recipe.id.clone();
        moment.base.callback_depth = 1;
        moment.base.invoked_by = crate::hooks::moment::InvokedBy::Subagent;
        moment.base.callback_args =
            order.callback.as_ref().map(|callback| callback.args.clone()).unwrap_or_default();
        let links = crate::hooks::chain::links(&self.hooks.hooks, &moment);
        if links.is_empty() {
            return false;
        }
        self.start_hooks(links, moment, Point::CallbackStop(Box::new(change.clone())));
        true
    }

    /// What the callback's own conversation ends with: a script that acts on the recipe's text looks for
    /// it in the newest message of the agent, as in any conversation.
    fn view_with_reply(&mut self, text: &str) -> View {
        let message = Message { id: self.fresh_message(), content: text_content(text.to_owned()) };
        let model = self.endpoint.as_ref().map_or_else(|| ModelName(String::new()), |it| it.name.clone());
        let mut callback = self.thread.clone();
        apply_to(&mut callback, Change::Replied { message, model, usage: None, cut: None });
        callback.view().clone()
    }

    /// A script may put its own history in the place of the summary, if it names this conversation.
    pub(super) fn callback_stop_resolved(&mut self, swap: Change, mut resolution: Resolution) {
        let by = resolution.action_by.clone();
        let own = self.id.0.clone();
        let mutated = match std::mem::take(&mut resolution.action) {
            Action::Mutate { messages, preserve_recent, target: Some(target) } if target == own => {
                match self.mutation(&by, messages, preserve_recent, None) {
                    Ok(change) => Some(change),
                    Err(why) => {
                        refuse(&mut resolution, &by, why);
                        None
                    }
                }
            }
            Action::None => None,
            Action::Mutate { .. } | Action::Callback(_) | Action::Swap { .. } | Action::Compact { .. } => {
                let why = "in a callback run only a mutation that names its conversation is heard";
                refuse(&mut resolution, &by, why.to_owned());
                None
            }
        };
        for (by, _) in std::mem::take(&mut resolution.follow_ups) {
            refuse(&mut resolution, &by, "a callback run is not continued".to_owned());
        }
        // That a script which does not look at `invoked_recipe` is not heard here is no news to anybody.
        let runs = std::mem::take(&mut resolution.trail);
        if !runs.is_empty() {
            self.commit_all(vec![Change::Hooked { event: HookEvent::AgentStop.name().to_owned(), runs }]);
        }
        match mutated {
            Some(change) => {
                self.commit_all(vec![change]);
                self.tell(Told::Compacted(CompactAnswer::Nothing));
            }
            None => self.tell(Told::Compacted(CompactAnswer::Done(Box::new(swap)))),
        }
    }

    // ── Hooks after it ─────────────────────────────────────────────────────────────────────────

    /// A compaction is committed: hooks hear of it, and the session starts again on it.
    pub(super) fn swapped(&mut self) {
        let used = self.counter.in_context(&self.thread);
        self.pace = Pace { useless: 0, after: Some(used) };
        if let Some(work) = &mut self.work {
            work.summary = None;
            work.order = CompactionOrder::default();
        }
        let what = self.thread.last_compaction().and_then(|entry| match &entry.change {
            Change::Compacted { summary, trigger, tokens_before, tokens_after, model, .. } => {
                Some(What::PostCompact {
                    trigger: match trigger {
                        Trigger::Manual => CompactTrigger::Manual,
                        Trigger::Overflow | Trigger::Threshold | Trigger::Hook => CompactTrigger::Auto,
                    },
                    tokens_before: *tokens_before,
                    tokens_after: *tokens_after,
                    summary: summary.text(),
                    uuid: uuid_of(&self.id.0, entry.seq),
                    fallback: (*trigger == Trigger::Overflow && model.is_none()).then_some("truncated"),
                })
            }
            _ => None,
        });
        let asked = what.is_some_and(|what| self.run_hooks(what, Point::PostCompact).is_ok());
        if !asked {
            self.restart();
        }
    }

    pub(super) fn post_compact_resolved(&mut self, mut resolution: Resolution) {
        let trail = self.record(HookEvent::PostCompact, &mut resolution);
        self.commit_all(trail);
        self.restart();
    }

    fn restart(&mut self) {
        if self.run_hooks(What::SessionStart { source: "compact" }, Point::Restart).is_err() {
            self.tell(Told::Hooks(HooksAnswer::default()));
        }
    }

    pub(super) fn restart_resolved(&mut self, resolution: Resolution) {
        self.start_resolved(resolution);
        self.tell(Told::Hooks(HooksAnswer::default()));
    }
}

fn trigger_of(why: Why) -> Trigger {
    match why {
        Why::Command => Trigger::Manual,
        Why::Overflow => Trigger::Overflow,
        Why::Threshold => Trigger::Threshold,
        Why::Hook => Trigger::Hook,
    }
}

fn trigger_word(why: Why) -> CompactTrigger {
    match why {
        Why::Command => CompactTrigger::Manual,
        Why::Overflow | Why::Threshold | Why::Hook => CompactTrigger::Auto,
    }
}

/// The summary, and behind it what hooks want kept, word for word: a model may have left it out.
fn with_context(mut text: String, kept: &[(String, String)]) -> String {
    for (by, words) in kept {
        text.push_str(&format!("\n\nKept for {by}:\n{words}"));
    }
    text
}

/// A name for a compaction that is the same whenever it is asked for, in the form of a UUID.
fn uuid_of(session: &str, entry: Seq) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(format!("{session}/{entry}"));
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32])
}

/// Whether trying again or another key would not help: then a conversation that is too long goes on
/// without a summary rather than not at all.
fn can_do_without(error: &ProviderError) -> bool {
    match error.class {
        ErrorClass::TooLong { .. } | ErrorClass::Refused | ErrorClass::Broken => true,
        ErrorClass::Retry { .. } | ErrorClass::Auth => false,
    }
}
