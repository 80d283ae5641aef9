//! The end of a round and the agent's stop: what hooks want done to the history, and the callbacks that
//! they run.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::actor::Session;
use super::child::{self, ChildModel, ChildOrder, History};
use super::compacting::{CompactionOrder, NO_GAIN};
use super::effects;
use super::hooks::refuse;
use super::recipes::Text;
use super::work::{Done, Pending, Point};
use crate::compaction;
use crate::hooks::discover::Found;
use crate::hooks::event::HookEvent;
use crate::hooks::functions::{CallbackInput, CallbackOutput};
use crate::hooks::handlers;
use crate::hooks::hook::Place;
use crate::hooks::moment::What;
use crate::hooks::output::{Action, Callback, Keep, RequestedEdit, RequestedEdits, Resolution, Utterance};
use crate::hooks::settle::{self, Guards};
use crate::recipe::command::{self, Arguments};
use crate::recipe::parse::{Context, History as RecipeHistory, ModelChoice, Output, Recipe};
use crate::recipe::render::ShellOutputs;
use crate::thread::{
    Change, Content, Edit, Message, MessageId, ModelName, Origin, Role, Seq, Spoken, StopReason, Usage,
    Verdict, edits,
};
use crate::tokens;
use crate::turn::{Answer as Told, HooksAnswer, Why};

/// What a callback came to, for the session.
#[derive(Debug)]
pub struct Called {
    pub output: CallbackOutput,
    /// What its text is for.
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
        if self.run_hooks(What::TurnEnd(self.round()), Point::RoundEnd { last }).is_err() {
            let due = self.compaction_is_due().then_some(Why::Threshold);
            let compact = self.wanted_compaction().or(due);
            self.tell(Told::Hooks(HooksAnswer { compact, ..HooksAnswer::default() }));
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

    /// A resident hook asked for a compaction since the last safe point.
    fn wanted_compaction(&mut self) -> Option<Why> {
        let wanted = self.work.as_mut().and_then(|work| work.wanted_compaction.take());
        wanted.map(|_| Why::Hook)
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
        settle::settle(&mut resolution, &self.guards());
        if let Some((hook, reason)) = resolution.halt.take() {
            let mut answer = self.halted(&hook, &reason);
            let trail = self.record(event, &mut resolution);
            answer.commits.splice(0..0, trail);
            return self.tell(Told::Hooks(answer));
        }
        let mut pending = Pending { event, last, resolution, answer: HooksAnswer::default() };
        let made_for = self.thread.view().revision();
        self.edit(&mut pending, made_for);
        let by = pending.resolution.action_by.clone();
        match std::mem::take(&mut pending.resolution.action) {
            Action::None => pending.answer.compact = self.wanted_compaction(),
            Action::Mutate { messages, preserve_recent, target } => {
                self.mutate(&mut pending, &by, messages, preserve_recent, target);
            }
            Action::Swap { summary, keep } => self.swap_in_text(&mut pending, &by, &summary, keep),
            // The threshold is checked again: a compaction just before may have gained little.
            Action::Compact { threshold: true, .. } if !self.compaction_is_due() => {}
            Action::Compact { keep, threshold } => {
                pending.answer.compact = Some(if threshold { Why::Threshold } else { Why::Hook });
                let keep = Some(keep);
                self.order_compaction(CompactionOrder { keep, ..CompactionOrder::default() });
            }
            Action::Callback(callback) => return self.call_back(pending, &by, callback),
        }
        self.settle_round(pending);
    }

    /// The rest of it: follow-ups, the trail, the turn's answer.
    pub(super) fn settle_round(&mut self, pending: Pending) {
        let Pending { event, last, mut resolution, mut answer } = pending;
        let said = settle::follow_up_text(&resolution);
        let follow_ups = std::mem::take(&mut resolution.follow_ups);
        if last && (!follow_ups.is_empty() || resolution.go_on) {
            answer.go_on = true;
            if let Some(work) = &mut self.work {
                work.continuations += 1;
                work.last_follow_up = (!said.is_empty()).then_some(said);
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

    /// Each hook's edits are one change, all of them or none. `made_for` is the revision that the payload
    /// told.
    pub(super) fn edit(&mut self, pending: &mut Pending, made_for: Seq) {
        let mut edited = self.thread.clone();
        for (by, RequestedEdits { revision, edits }) in std::mem::take(&mut pending.resolution.edits) {
            let edits: Vec<Edit> = edits.into_iter().map(|edit| self.wanted_edit(edit)).collect();
            // Another hook's edits of this same moment don't make these stale.
            let revision = match revision {
                Some(revision) if revision != made_for => revision,
                Some(_) | None => edited.view().revision(),
            };
            let first = MessageId(self.fresh_message().0 + 1);
            match edits::check(&edited, revision, first, &edits) {
                Ok(edits) => {
                    self.skip_messages(edits.len());
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
            RequestedEdit::Append(Utterance { role, text }) => Edit::Append {
                role,
                message: Message { id: self.fresh_message(), content: text_content(text) },
            },
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
            Some(target) => Err(format!("{target} is another conversation ({} messages)", messages.len())),
            None if self.lineage.depth > 0 => {
                Err("a callback run has no history of its own to replace".to_owned())
            }
            None => self.mutation(by, messages, preserve_recent, None).map(|change| {
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
        through: Option<Seq>,
    ) -> Result<Change, String> {
        let messages = settle::checked(&messages)?;
        let spoken: Vec<Spoken> = messages.into_iter().map(|utterance| self.spoken(utterance)).collect();
        let first = MessageId(self.fresh_message().0 + 1);
        self.skip_messages(spoken.len() + 1);
        let revision = self.thread.view().revision();
        let mut replacement = edits::mutation(&self.thread, revision, first, spoken, preserve_recent)?;
        replacement.through = through.unwrap_or(replacement.through);
        compaction::mutated(&self.thread, replacement, by.to_owned(), self.view_tokens_max())
    }

    fn spoken(&mut self, utterance: Utterance) -> Spoken {
        let message = Message { id: self.fresh_message(), content: text_content(utterance.text) };
        Spoken { role: utterance.role, message }
    }

    /// Tokens that a view may take beside the frame and the room for a reply.
    fn view_tokens_max(&self) -> u64 {
        let Some(endpoint) = &self.endpoint else { return u64::MAX };
        let frame = self.thread.frame().map_or(0, |(system, tools)| tokens::of_frame(system, tools));
        let reserve = u64::from(endpoint.max_output).min(endpoint.window / 4);
        endpoint.window.saturating_sub(frame + reserve)
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
        if self.services.functions.has_callback(&callback.name) {
            let called = self.function_call(pending.event, callback.name, callback.args);
            return self.await_callback(pending, callback.asynchronous, called);
        }
        let Some(recipe) = self.catalog.find(&callback.name).cloned() else {
            let why = format!(
                "there is no recipe or function called {:?}; epitome recipes list shows what there is",
                callback.name
            );
            refuse(&mut pending.resolution, by, why);
            return self.settle_round(pending);
        };
        if !recipe.callable_by.hook {
            let why = format!("the recipe {} does not let hooks call it (callable_by)", recipe.id);
            refuse(&mut pending.resolution, by, why);
            return self.settle_round(pending);
        }
        if recipe.is_compaction() && !callback.text_only {
            if self.guards().compacted_since_call {
                let why = "the history was already compacted since the last model call".to_owned();
                refuse(&mut pending.resolution, by, why);
                return self.settle_round(pending);
            }
            if !self.is_worth_compacting() {
                refuse(&mut pending.resolution, by, NO_GAIN.to_owned());
                return self.settle_round(pending);
            }
            pending.answer.compact = Some(Why::Hook);
            self.order_compaction(CompactionOrder {
                recipe: Some(recipe),
                callback: Some(callback),
                ..CompactionOrder::default()
            });
            return self.settle_round(pending);
        }
        match self.child_order(&recipe, &callback.args) {
            Ok(order) => {
                let services = self.services.clone();
                let asks = self.children.0.clone();
                let becomes = if callback.text_only { Output::Message } else { recipe.output };
                let called = async move {
                    let child = child::run(services, order, asks).await?;
                    let took =
                        format!("{} rounds, {} tokens", child.rounds, child.usage.input + child.usage.output);
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

    fn function_call(
        &mut self,
        event: HookEvent,
        name: String,
        args: BTreeMap<String, String>,
    ) -> impl Future<Output = Result<Called, String>> + Send + 'static {
        let view = self.thread.view();
        let messages = crate::hooks::messages::utterances(view);
        let continuations = self.work.as_ref().map_or(0, |work| work.continuations);
        let moment = self.moment(match event == HookEvent::AgentStop {
            true => What::AgentStop { round: self.round(), stop_reason: "end_turn", continuations },
            false => What::TurnEnd(self.round()),
        });
        let input = CallbackInput { args, moment: Some(moment), messages };
        let functions = self.services.functions.clone();
        let limit = self.settings.hooks.callback_timeout;
        async move {
            let output = tokio::time::timeout(limit, functions.call(&name, input)).await;
            let output = output.map_err(|_| format!("it did not end within {} s", limit.as_secs()))?;
            let output = output.map_err(|error| error.to_string())?;
            Ok(Called {
                output,
                becomes: Output::Mutate,
                usage: Usage::default(),
                took: "a function".to_owned(),
            })
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
                pending.answer.replaced |=
                    changes.iter().any(|change| matches!(change, Change::Mutated { .. }));
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
        through: Option<Seq>,
    ) -> Result<Vec<Change>, String> {
        let CallbackOutput { text, messages, .. } = called.output;
        let mut changes = Vec::new();
        if !messages.is_empty() {
            // The text is left aside.
            return Ok(vec![self.mutation(by, messages, 0, through)?]);
        }
        if text.trim().is_empty() {
            return Ok(changes);
        }
        match called.becomes {
            Output::Mutate => {
                let messages = vec![Utterance { role: Role::User, text }];
                changes.push(self.mutation(by, messages, 0, through)?);
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

    /// What a child that runs a recipe is told.
    pub(super) fn child_order(
        &mut self,
        recipe: &Recipe,
        args: &BTreeMap<String, String>,
    ) -> Result<ChildOrder, String> {
        let named = args.iter().filter(|(name, _)| recipe.arguments.contains_key(*name));
        let named = named.map(|(name, value)| (name.clone(), value.clone())).collect();
        let free = args.get("input").cloned().unwrap_or_default();
        let arguments = command::complete(recipe, Arguments { named, free })?;
        let prompt = match self.render(recipe, &arguments, &ShellOutputs::new()) {
            Text::Done(text) => text,
            Text::Needs(_) => {
                return Err(format!(
                    "the recipe {} runs commands of its own, which callbacks don't",
                    recipe.id
                ));
            }
            Text::Failed(why) => return Err(why),
        };
        let view = self.thread.view().clone();
        let history = match (recipe.context, recipe.history) {
            (Some(Context::None), _) => History::None,
            (Some(Context::Session | Context::Isolated) | None, RecipeHistory::Flat) => History::Flat(view),
            (Some(Context::Session | Context::Isolated) | None, _) => History::Native(view),
        };
        let model = match (&recipe.model, &self.endpoint) {
            (ModelChoice::Named(name), _) => ChildModel::Named(ModelName(name.clone())),
            (ModelChoice::Small, _) if self.settings.small_model.is_some() => {
                ChildModel::Named(ModelName(self.settings.small_model.clone().unwrap_or_default()))
            }
            (ModelChoice::Main | ModelChoice::Small, Some(endpoint)) => ChildModel::At(endpoint.clone()),
            (ModelChoice::Main | ModelChoice::Small, None) => ChildModel::Configured,
        };
        let (handlers, problems) = handlers::declared(
            &recipe.id,
            &recipe.hooks,
            &arguments.named,
            &self.services.functions,
            recipe.source.path(),
        );
        self.show_problems(&problems);
        Ok(ChildOrder {
            parent: self.id.clone(),
            name: recipe.id.clone(),
            prompt,
            history,
            frame: self.thread.frame_entry().cloned(),
            cwd: self.workspace.cwd.clone(),
            directories: self.workspace.directories.clone(),
            environment: self.workspace.environment.clone(),
            model,
            thought: self.thread.thought(),
            mode: self.thread.mode(),
            rules: self.thread.rules().to_vec(),
            allowed_tools: recipe.allowed_tools.clone(),
            allowed_commands: recipe.allowed_commands.clone(),
            max_rounds: recipe.max_turns,
            depth: self.lineage.depth + 1,
            callback_args: args.clone(),
            time: self.settings.hooks.callback_timeout,
            hooks: if recipe.run_hooks { self.hooks.clone() } else { Arc::new(enforced(&self.hooks)) },
            handlers,
        })
    }

    fn swap_in_text(&mut self, pending: &mut Pending, by: &str, text: &str, keep: Keep) {
        match self.swapped_by_text(text, keep) {
            Ok(change) => {
                pending.answer.swap = Some(Box::new(change));
            }
            Err(why) => refuse(&mut pending.resolution, by, why),
        }
    }
}

/// The hooks that no recipe can switch off.
fn enforced(found: &Found) -> Found {
    let hooks = found.hooks.iter().filter(|hook| hook.place == Place::Enforced).cloned().collect();
    Found { hooks, ..Found::default() }
}

/// Applies a change that is not committed, to see what it would come to.
pub(super) fn apply_to(thread: &mut crate::thread::Thread, change: Change) {
    let seq = thread.next_seq();
    thread.apply(std::sync::Arc::new(crate::thread::Entry { seq, at: 0, change }));
}

pub(super) fn text_content(text: String) -> Vec<Content> {
    vec![Content::Text { text }]
}
