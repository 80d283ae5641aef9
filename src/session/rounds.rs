//! The end of a round and the agent's stop: what hooks want done to the history, and the callbacks that
//! they run.

use super::actor::Session;
use super::child::{self, ChildOrder};
use super::compacting::CompactionOrder;
use super::effects;
use super::hooks::refuse;
use super::work::{Done, Pending, Point};
use super::Severity;
use crate::hooks::chain::{self, Guards};
use crate::hooks::event::HookEvent;
use crate::hooks::functions::{CallbackInput, CallbackOutput};
use crate::hooks::moment::What;
use crate::hooks::output::{Action, Callback, Keep, RequestedEdit, RequestedEdits, Resolution, Utterance};
use crate::recipe::parse::{Output, Recipe};
use crate::thread::{Change, Content, Edit, Message, Origin, Role, Spoken, StopReason, Usage, Verdict};
use crate::tokens;
use crate::turn::{Answer as Told, HooksAnswer, Why};

/// What a callback came to, for the session.
#[derive(Debug)]
pub struct Called {
    pub output: CallbackOutput,
    /// What its text is for; `Append` for functions that give text.
    pub becomes: Output,
    pub usage: Usage,
    /// In words, for the trail.
    pub took: String,
}

impl Session {
    pub(super) fn round_ended(&mut self, last: bool) {
        self.apply_side_result();
        if let Some((hook, reason)) = self.work.as_mut().and_then(|work| work.halt.take()) {
            let answer = self.halted(&hook, &reason);
            return self.tell(Told::Hooks(answer));
        }
        let due = self.compaction_is_due();
        let what = What::TurnEnd(self.round());
        let moment = self.may_run(HookEvent::TurnEnd).then(|| self.moment(what));
        let mut links = moment.as_ref().map(|moment| self.links(moment)).unwrap_or_default();
        match moment {
            Some(moment) if !links.is_empty() => {
                if due {
                    links.push(super::compacting::trigger());
                }
                self.start_hooks(links, moment, Point::RoundEnd { last });
            }
            Some(_) | None => {
                let compact = due.then_some(Why::Threshold);
                self.tell(Told::Hooks(HooksAnswer { compact, ..HooksAnswer::default() }));
            }
        }
    }

    pub(super) fn would_stop(&mut self, reason: StopReason) {
        self.apply_side_result();
        let continuations = self.work.as_ref().map_or(0, |work| work.continuations);
        let stop_reason = match reason {
            StopReason::EndTurn => "end_turn",
            StopReason::MaxTokens => "max_tokens",
            StopReason::MaxRounds => "max_turn_requests",
            StopReason::Refusal => "refusal",
            StopReason::Cancelled => "cancelled",
            StopReason::Failed | StopReason::Interrupted => "error",
        };
        let what = What::AgentStop { round: self.round(), stop_reason, continuations };
        if self.run_hooks(what, Point::Stop).is_err() {
            self.tell(Told::Hooks(HooksAnswer::default()));
        }
    }

    fn halted(&mut self, hook: &str, reason: &str) -> HooksAnswer {
        let text = match reason.trim() {
            "" => format!("The hook {hook} ended this turn."),
            reason => format!("The hook {hook} ended this turn: {reason}"),
        };
        let note = Change::Noted { message: self.fresh_message(), text };
        HooksAnswer { commits: vec![note], halt: true, ..HooksAnswer::default() }
    }

    fn guards(&self) -> Guards {
        let work = self.work.as_ref();
        Guards {
            continuations: work.map_or(0, |work| work.continuations),
            continuations_max: self.settings.hooks.max_continuations,
            last_follow_up: work.and_then(|work| work.last_follow_up.clone()),
            compacted_since_call: work.is_some_and(|work| work.turn.compacted_since_reply()),
            auto_compact_paused: self.compaction_is_paused(),
            depth: self.lineage.depth,
            running_recipe: work.and_then(|work| work.recipe.as_ref()).map(|recipe| recipe.id.clone()),
        }
    }

    /// All hooks of a round's end or of the stop have spoken.
    pub(super) fn round_resolved(&mut self, event: HookEvent, last: bool, mut resolution: Resolution) {
        chain::settle(&mut resolution, &self.guards());
        if let Some((hook, reason)) = resolution.halt.take() {
            let mut answer = self.halted(&hook, &reason);
            let trail = self.record(event, &mut resolution);
            answer.commits.splice(0..0, trail);
            return self.tell(Told::Hooks(answer));
        }
        let mut pending = Pending { event, last, resolution, answer: HooksAnswer::default() };
        self.edit(&mut pending);
        let by = pending.resolution.action_by.clone();
        match std::mem::take(&mut pending.resolution.action) {
            Action::None => {}
            Action::Mutate { messages, preserve_recent, target } => {
                self.mutate(&mut pending, &by, messages, preserve_recent, target);
            }
            Action::Swap { summary, keep } => self.swap_in_text(&mut pending, &by, &summary, keep),
            Action::Compact { keep, threshold } => {
                pending.answer.compact = Some(if threshold { Why::Threshold } else { Why::Hook });
                let keep = Some(keep);
                self.order_compaction(CompactionOrder { keep, by, ..CompactionOrder::default() });
            }
            Action::Callback(callback) => return self.call_back(pending, &by, callback),
        }
        self.settle_round(pending);
    }

    /// The rest of it: follow-ups, the trail, the turn's answer.
    pub(super) fn settle_round(&mut self, pending: Pending) {
        let Pending { event, last, mut resolution, mut answer } = pending;
        let follow_ups = std::mem::take(&mut resolution.follow_ups);
        if last && (!follow_ups.is_empty() || resolution.go_on) {
            answer.go_on = true;
            if let Some(work) = &mut self.work {
                work.continuations += 1;
                work.last_follow_up = follow_ups.last().map(|(_, utterance)| utterance.text.clone());
            }
        }
        for (hook, utterance) in follow_ups {
            let message = Message { id: self.fresh_message(), content: text_content(utterance.text) };
            answer.commits.push(Change::Said { message, origin: Origin::Hook { hook } });
        }
        for (by, text) in std::mem::take(&mut resolution.context) {
            let context = self.context(by, text);
            answer.commits.push(context);
        }
        let trail = self.record(event, &mut resolution);
        answer.commits.splice(0..0, trail);
        self.tell(Told::Hooks(answer));
    }

    // ── Edits and mutations ────────────────────────────────────────────────────────────────────

    /// Each hook's edits are one change, all of them or none.
    fn edit(&mut self, pending: &mut Pending) {
        let made_for = self.thread.view().revision();
        let mut edited = self.thread.clone();
        for (by, RequestedEdits { revision, edits }) in std::mem::take(&mut pending.resolution.edits) {
            let edits: Vec<Edit> = edits.into_iter().map(|edit| self.wanted_edit(edit)).collect();
            let revision = revision.unwrap_or(made_for);
            // Another hook's edits of this same moment don't make these stale.
            let revision = if revision == made_for { edited.view().revision() } else { revision };
            match crate::thread::edit::check(&edited, revision, &edits) {
                Ok(edits) => {
                    let change = Change::Edited { by, edits };
                    apply_to(&mut edited, change.clone());
                    pending.answer.commits.push(change);
                }
                Err(why) => refuse(&mut pending.resolution, &by, why),
            }
        }
    }

    fn wanted_edit(&mut self, edit: RequestedEdit) -> Edit {
        match edit {
            RequestedEdit::Pin(at) => Edit::Pin { at },
            RequestedEdit::Unpin(at) => Edit::Unpin { at },
            RequestedEdit::Mask(at, note) => Edit::Mask { at, note },
            RequestedEdit::Drop(at) => Edit::Drop { at },
            RequestedEdit::Replace(at, text) => Edit::Replace { at, content: text_content(text) },
            RequestedEdit::Append(Utterance { role, text }) => {
                Edit::Append { role, message: Message { id: self.fresh_message(), content: text_content(text) } }
            }
        }
    }

    fn mutate(
        &mut self,
        pending: &mut Pending,
        by: &str,
        messages: Vec<Utterance>,
        preserve_recent: usize,
        target: Option<String>,
    ) {
        let made = match target.filter(|target| *target != self.id.0) {
            Some(target) => self.mutate_elsewhere(&target, by, messages),
            None if self.lineage.depth > 0 => Err("a callback run has no history of its own to replace".to_owned()),
            None => self.mutation(by, messages, preserve_recent).map(|change| {
                pending.answer.commits.push(change);
                pending.answer.replaced = true;
            }),
        };
        if let Err(why) = made {
            refuse(&mut pending.resolution, by, why);
        }
    }

    /// The change that puts these messages in the place of the history, or why it can't be.
    pub(super) fn mutation(
        &mut self,
        by: &str,
        messages: Vec<Utterance>,
        preserve_recent: usize,
    ) -> Result<Change, String> {
        let messages = chain::checked(&messages)?;
        let spoken: Vec<Spoken> = messages.into_iter().map(|utterance| self.spoken(utterance)).collect();
        let change = crate::thread::edit::mutation(&self.thread, by, spoken, preserve_recent)?;
        self.measured(change)
    }

    pub(super) fn spoken(&mut self, utterance: Utterance) -> Spoken {
        let message = Message { id: self.fresh_message(), content: text_content(utterance.text) };
        Spoken { role: utterance.role, message }
    }

    /// Fills in what a mutation does to the size, and refuses one that would not fit the window.
    pub(super) fn measured(&self, mut change: Change) -> Result<Change, String> {
        let mut after = self.thread.clone();
        apply_to(&mut after, change.clone());
        let (before, now) = (tokens::of_view(self.thread.view()), tokens::of_view(after.view()));
        if let Some(endpoint) = &self.endpoint {
            let reserve = u64::from(endpoint.max_output).min(endpoint.window / 4);
            let room = endpoint.window.saturating_sub(reserve);
            let whole = tokens::in_context(&after);
            if whole > room {
                return Err(format!(
                    "the new history takes about {whole} tokens and there is room for {room}; nothing was changed"
                ));
            }
        }
        if let Change::Mutated { tokens_before, tokens_after, .. } = &mut change {
            (*tokens_before, *tokens_after) = (before, now);
        }
        Ok(change)
    }

    // ── Callbacks ──────────────────────────────────────────────────────────────────────────────

    /// Runs what a hook calls: a function, a recipe that makes a summary of this conversation, or any
    /// other recipe as a child.
    fn call_back(&mut self, mut pending: Pending, by: &str, callback: Callback) {
        if let Some(target) = callback.target.as_ref().filter(|target| **target != self.id.0) {
            let why = format!("a callback works on its own conversation, and {target} is another one");
            refuse(&mut pending.resolution, by, why);
            return self.settle_round(pending);
        }
        if let Some(function) = self.services.functions.callback(&callback.name) {
            let view = self.thread.view().clone();
            let input = CallbackInput { args: callback.args, session: self.id.0.clone(), messages: crate::hooks::payload::messages(&view) };
            let limit = self.settings.hooks.callback_timeout;
            let called = async move {
                let run = tokio::time::timeout(limit, function.call(input)).await;
                let output = run.map_err(|_| format!("it did not end within {} s", limit.as_secs()))??;
                Ok(Called { output, becomes: Output::Append, usage: Usage::default(), took: "function".to_owned() })
            };
            return self.await_callback(pending, callback.asynchronous, called);
        }
        let Some(recipe) = self.catalog.find(&callback.name).cloned() else {
            let why = format!("there is no recipe or function called {:?}; epitome recipes list shows what there is", callback.name);
            refuse(&mut pending.resolution, by, why);
            return self.settle_round(pending);
        };
        if !recipe.callable_by.hook {
            let why = format!("the recipe {} does not let hooks call it (callable_by)", recipe.id);
            refuse(&mut pending.resolution, by, why);
            return self.settle_round(pending);
        }
        if recipe.swaps_context() && !callback.text_only {
            pending.answer.compact = Some(Why::Hook);
            self.order_compaction(CompactionOrder {
                recipe: Some(recipe),
                callback: Some(callback),
                by: by.to_owned(),
                ..CompactionOrder::default()
            });
            return self.settle_round(pending);
        }
        match self.child_order(&recipe, &callback) {
            Ok(order) => {
                let services = self.services.clone();
                let asks = self.child_asks();
                let becomes = if callback.text_only { Output::Message } else { recipe.output };
                let called = async move {
                    let child = child::run(services, order, asks).await?;
                    let took = format!("{} rounds, {} tokens", child.rounds, child.usage.input + child.usage.output);
                    let output = CallbackOutput { text: child.text, ..CallbackOutput::default() };
                    Ok(Called { output, becomes, usage: child.usage, took })
                };
                self.await_callback(pending, callback.asynchronous, called);
            }
            Err(why) => {
                refuse(&mut pending.resolution, by, why);
                self.settle_round(pending);
            }
        }
    }

    fn await_callback(
        &mut self,
        mut pending: Pending,
        asynchronous: bool,
        called: impl Future<Output = Result<Called, String>> + Send + 'static,
    ) {
        let by = pending.resolution.action_by.clone();
        if asynchronous {
            match self.start_side(by.clone(), called) {
                Ok(()) => {}
                Err(why) => refuse(&mut pending.resolution, &by, why),
            }
            return self.settle_round(pending);
        }
        let Some(work) = &mut self.work else { return };
        work.jobs.spawn(async move {
            let fault = || Err("it met a fault of Epitome's own; its log has the details".to_owned());
            Done::Callback(Box::new(pending), effects::guarded(called, fault).await)
        });
    }

    pub(super) fn called_back(&mut self, mut pending: Pending, called: Result<Called, String>) {
        let by = pending.resolution.action_by.clone();
        match called.and_then(|called| {
            pending.answer.usage.add(&called.usage);
            let took = called.took.clone();
            pending.resolution.go_on |= called.output.go_on;
            self.apply_called(&by, called, None).map(|changes| (changes, took))
        }) {
            Ok((changes, took)) => {
                pending.answer.replaced |= changes.iter().any(|change| matches!(change, Change::Mutated { .. }));
                pending.answer.commits.extend(changes);
                if let Some(run) = pending.resolution.trail.iter_mut().rev().find(|run| run.hook == by) {
                    run.verdict = Verdict::Done;
                    run.remarks.push(format!("the callback took {took}"));
                }
            }
            Err(why) => refuse(&mut pending.resolution, &by, format!("the callback failed: {why}")),
        }
        self.settle_round(pending);
    }

    /// What a callback's output is made into. `through` is where the history stood when a background
    /// callback began; what came since stays behind it.
    pub(super) fn apply_called(
        &mut self,
        by: &str,
        called: Called,
        through: Option<crate::thread::Seq>,
    ) -> Result<Vec<Change>, String> {
        let CallbackOutput { text, messages, .. } = called.output;
        let mut changes = Vec::new();
        if !messages.is_empty() {
            changes.push(self.mutation_through(by, messages, through)?);
        }
        if text.trim().is_empty() {
            return Ok(changes);
        }
        match called.becomes {
            Output::Mutate => {
                let messages = vec![Utterance { role: Role::User, text }];
                changes.push(self.mutation_through(by, messages, through)?);
            }
            Output::Message => {
                let message = Message { id: self.fresh_message(), content: text_content(text) };
                changes.push(Change::Said { message, origin: Origin::Hook { hook: by.to_owned() } });
            }
            Output::Append => changes.push(self.context(by.to_owned(), text)),
            Output::None => {}
        }
        Ok(changes)
    }

    fn mutation_through(
        &mut self,
        by: &str,
        messages: Vec<Utterance>,
        through: Option<crate::thread::Seq>,
    ) -> Result<Change, String> {
        let mut change = self.mutation(by, messages, 0)?;
        if let (Change::Mutated { through: own, .. }, Some(begun)) = (&mut change, through) {
            *own = begun;
        }
        self.measured(change)
    }

    /// What a child that runs a recipe is told.
    pub(super) fn child_order(&mut self, recipe: &Recipe, callback: &Callback) -> Result<ChildOrder, String> {
        todo!("{recipe:?} {callback:?}")
    }

    fn swap_in_text(&mut self, pending: &mut Pending, by: &str, text: &str, keep: Keep) {
        match self.swapped_by_text(by, text, keep) {
            Ok(change) => {
                pending.answer.commits.push(change);
                pending.answer.replaced = true;
            }
            Err(why) => refuse(&mut pending.resolution, by, why),
        }
    }
}

/// Applies a change that is not committed, to see what it would come to.
pub(super) fn apply_to(thread: &mut crate::thread::Thread, change: Change) {
    let seq = thread.next_seq();
    thread.apply(std::sync::Arc::new(crate::thread::Entry { seq, at: 0, change }));
}

pub(super) fn text_content(text: String) -> Vec<Content> {
    vec![Content::Text { text }]
}

#[allow(unused)]
const _: Severity = Severity::Info;
