//! Callbacks: functions and recipes that hooks run at the end of a round, and the use of their output.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::Session;
use crate::called::{Called, guarded};
use crate::child::{self, ChildError, ChildHistory, ChildModel, ChildOutcome, ChildSpec};
use crate::compacting::{self, SummaryRequest};
use crate::cpu_worker;
use crate::hook_host::MayRun;
use crate::lineage::{HandedHistory, Lineage};
use crate::recipes::not_run;
use crate::refusal::HookRefusal;
use crate::work::{JobResult, PendingResolution};
use crate::{ReplacementRefusal, WorkerFault};
use epitome_compaction::CompactionDecision;
use epitome_hooks::command_function;
use epitome_hooks::event::HookEvent;
use epitome_hooks::functions::{CallbackInput, CallbackOutput};
use epitome_hooks::hook_context::EventData;
use epitome_hooks::output::{CallbackRequest, Utterance};
use epitome_provider::models;
use epitome_recipe::command::{self, ArgumentError, RecipeArguments};
use epitome_recipe::parse::{Context, HistoryMode, OutputMode, Recipe, RecipeModel};
use epitome_thread::{Change, ModelName, Origin, Role, Seq, StopReason, Trigger};
use epitome_tools::ToolContext;

/// The result of a callback that a child has run.
fn called_by_child(child: ChildOutcome, becomes: OutputMode) -> Called {
    let remark = match child.reason {
        StopReason::MaxTokens => Some("its reply was cut at the token limit, so the text is incomplete"),
        StopReason::MaxRounds => Some("it was stopped at its limit of model calls before it was done"),
        StopReason::EndTurn
        | StopReason::Refusal
        | StopReason::Cancelled
        | StopReason::Failed
        | StopReason::Interrupted => None,
    };
    Called {
        took: format!(
            "{} {}, {} tokens",
            child.rounds,
            if child.rounds == 1 { "round" } else { "rounds" },
            child.usage.total()
        ),
        output: CallbackOutput { text: child.text, ..CallbackOutput::default() },
        becomes,
        remarks: remark.into_iter().map(str::to_owned).collect(),
        handed: child.handed,
    }
}

/// A callback, ready to start.
enum Callable {
    /// A recipe that summarizes this conversation.
    Compaction(Arc<Recipe>, CallbackRequest),
    Run(BoxFuture<'static, Result<Called, HookRefusal>>),
}

/// The changes made from a callback's output.
#[derive(Debug, Default)]
pub(super) struct Applied {
    pub changes: Vec<Change>,
    /// Remarks for the trail.
    pub remarks: Vec<String>,
}

impl Session {
    /// Runs a hook's callback: a function, a recipe that summarizes this conversation, or another recipe as a child.
    pub(super) fn call_back(&mut self, pending: PendingResolution, callback: CallbackRequest) {
        let asynchronous = callback.asynchronous;
        match self.callable(pending.event, callback) {
            Ok(Callable::Compaction(recipe, callback)) => {
                let deciding = self.compactor.deciding(&mut self.core, None, Trigger::Hook);
                self.hooks.keep_pending(pending);
                self.start_job(cpu_worker::run(deciding), move |decided| JobResult::CallbackWeighed {
                    recipe,
                    callback,
                    decided,
                });
            }
            Ok(Callable::Run(called)) => self.await_callback(pending, asynchronous, called),
            Err(why) => self.refuse_action(pending, why),
        }
    }

    fn callable(&mut self, event: HookEvent, callback: CallbackRequest) -> Result<Callable, HookRefusal> {
        if let Some(target) = callback.target.as_ref().filter(|target| **target != self.core.id().0) {
            return Err(HookRefusal::OtherConversation(target.clone()));
        }
        if self.core.services.functions.has_callback(&callback.name)
            || self.core.settings.hooks.functions.contains_key(&callback.name)
        {
            let called = self.function_call(event, callback.name, callback.args);
            return Ok(Callable::Run(called.boxed()));
        }
        let Some(recipe) = self.recipes.catalog().find(&callback.name).cloned() else {
            return Err(HookRefusal::NoCallback(callback.name));
        };
        if !recipe.callable_by.hook {
            return Err(HookRefusal::NotCallable(recipe.id.clone()));
        }
        let replaces = !callback.text_only && (recipe.is_compaction() || recipe.output == OutputMode::Mutate);
        if replaces && self.is_compacted_since_reply() {
            return Err(ReplacementRefusal::CompactedAlready.into());
        }
        if recipe.is_compaction() && !callback.text_only {
            return Ok(Callable::Compaction(recipe, callback));
        }
        let run = self.child_run(&recipe, &callback.args)?;
        let becomes = if callback.text_only { OutputMode::Message } else { recipe.output };
        Ok(Callable::Run(async move { Ok(called_by_child(run.await?, becomes)) }.boxed()))
    }

    /// Continues with a hook's recipe that summarizes this conversation, once it is known whether that gains anything.
    pub(super) fn callback_weighed(
        &mut self,
        recipe: Arc<Recipe>,
        callback: CallbackRequest,
        decided: Option<(Seq, CompactionDecision)>,
    ) {
        let Some(mut pending) = self.hooks.take_pending() else { return };
        let requested = match decided {
            Some((_, CompactionDecision::Nothing(why))) => Err(why.into()),
            Some((_, CompactionDecision::Prune(_) | CompactionDecision::Summarise(_))) => {
                self.compaction_called(recipe, callback).map_err(HookRefusal::from)
            }
            None => Err(WorkerFault.into()),
        };
        match requested {
            Ok(request) => {
                pending.answer.compact = Some(Trigger::Hook);
                self.compactor.summarise_as(request);
                self.settle_round(pending);
            }
            Err(why) => self.refuse_action(pending, why),
        }
    }

    /// How to make a compaction with a recipe that a hook called.
    fn compaction_called(
        &self,
        recipe: Arc<Recipe>,
        callback: CallbackRequest,
    ) -> Result<SummaryRequest, ArgumentError> {
        let arguments = called_with(&recipe, &callback.args)?;
        let (declared, _) = self.core.handlers_of(&recipe, &arguments.named);
        let swap = compacting::without_swap(declared).0;
        Ok(SummaryRequest { recipe: Some(recipe), arguments, callback_args: callback.args, ..swap })
    }

    pub(super) fn is_compacted_since_reply(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.turn.compacted_since_reply())
    }

    fn function_call(
        &mut self,
        event: HookEvent,
        name: String,
        args: BTreeMap<String, String>,
    ) -> impl Future<Output = Result<Called, HookRefusal>> + Send + 'static {
        let view = self.core.thread.view();
        let messages = epitome_hooks::messages::utterances(view);
        let continuations = self.hooks.continuations().0;
        let hook_context = self.hook_context(match event == HookEvent::AgentStop {
            true => EventData::AgentStop { round: self.round(), stop_reason: "end_turn", continuations },
            false => EventData::TurnEnd(self.round()),
        });
        let input = CallbackInput { args, hook_context: Some(hook_context), messages };
        let mut functions = self.core.services.functions.clone();
        let limit = self.core.settings.hooks.callback_timeout;
        // A function of the embedding program has precedence.
        if let Some(line) =
            self.core.settings.hooks.functions.get(&name).filter(|_| !functions.has_callback(&name))
        {
            let (line, workspace) = (line.clone(), self.core.workspace.clone());
            let reaper = self.core.services.reaper.clone();
            functions.register_callback(name.clone(), move |input| {
                let (line, workspace, reaper) = (line.clone(), workspace.clone(), reaper.clone());
                async move { command_function::call(line, input, &workspace, reaper, limit).await }
            });
        }
        async move {
            let output = tokio::time::timeout(limit, functions.call(&name, input)).await;
            let output = output.map_err(|_| HookRefusal::Late(limit))??;
            Ok(Called {
                output,
                becomes: OutputMode::Mutate,
                took: "a function".to_owned(),
                remarks: Vec::new(),
                handed: Vec::new(),
            })
        }
    }

    fn await_callback(
        &mut self,
        pending: PendingResolution,
        asynchronous: bool,
        called: BoxFuture<'static, Result<Called, HookRefusal>>,
    ) {
        if asynchronous {
            let by = pending.resolution.action_by.clone();
            return match self.start_background_callback(by, called) {
                Ok(()) => self.settle_round(pending),
                Err(why) => self.refuse_action(pending, why),
            };
        }
        self.hooks.keep_pending(pending);
        self.start_job(guarded(called), JobResult::CallbackEnded);
    }

    pub(super) fn callback_ended(&mut self, called: Result<Called, HookRefusal>) {
        // Its spending is recorded before it ends.
        self.take_child_news();
        let Some(mut pending) = self.hooks.take_pending() else { return };
        let by = pending.resolution.action_by.clone();
        let applied = called.and_then(|called| {
            let took = called.took.clone();
            pending.resolution.go_on |= called.output.go_on;
            Ok((self.apply_called(&by, called, None)?, took))
        });
        let (Applied { changes, remarks }, took) = match applied {
            Ok(applied) => applied,
            Err(why) => return self.refuse_action(pending, format!("the callback failed: {why}")),
        };
        pending.answer.replaced |= changes.iter().any(|change| matches!(change, Change::Mutated { .. }));
        pending.answer.commits.extend(changes);
        pending.done(std::iter::once(format!("the callback took {took}")).chain(remarks));
        self.settle_round(pending);
    }

    /// Makes changes from a callback's output. `through` is the last entry of the history when a background callback
    /// began; entries after it stay.
    pub(super) fn apply_called(
        &mut self,
        by: &str,
        called: Called,
        through: Option<Seq>,
    ) -> Result<Applied, ReplacementRefusal> {
        let mut remarks = called.remarks;
        let mut handed = called.handed.into_iter();
        if let Some(HandedHistory { by: hook, messages, preserve_recent }) = handed.next() {
            for later in handed {
                remarks.push(format!(
                    "{} replaced the history again in its run: the first replacement counts",
                    later.by
                ));
            }
            match self.replacement_once(&format!("{hook} of {by}"), messages, preserve_recent, through) {
                Ok(change) => {
                    remarks.push(format!("{hook} returned a history instead of a text"));
                    return Ok(Applied { changes: vec![change], remarks });
                }
                Err(why) => {
                    remarks.push(format!("the history that {hook} made in its run was refused: {why}"))
                }
            }
        }
        let CallbackOutput { text, messages, .. } = called.output;
        let mut changes = Vec::new();
        if !messages.is_empty() {
            // The text is ignored.
            changes.push(self.replacement_once(by, messages, 0, through)?);
            return Ok(Applied { changes, remarks });
        }
        if text.trim().is_empty() {
            return Ok(Applied { changes, remarks });
        }
        match called.becomes {
            OutputMode::Mutate => {
                let messages = vec![Utterance { role: Role::User, text }];
                changes.push(self.replacement_once(by, messages, 0, through)?);
            }
            OutputMode::Message => {
                let message = self.core.message(text);
                changes.push(Change::Said { message, origin: Origin::Hook { hook: by.to_owned() } });
            }
            OutputMode::Append => changes.push(self.core.context(by.to_owned(), text)),
            OutputMode::None => {}
        }
        Ok(Applied { changes, remarks })
    }

    /// Like `Core::mutation`, but at most once between two model calls.
    fn replacement_once(
        &mut self,
        by: &str,
        messages: Vec<Utterance>,
        preserve_recent: usize,
        through: Option<Seq>,
    ) -> Result<Change, ReplacementRefusal> {
        if self.is_compacted_since_reply() {
            return Err(ReplacementRefusal::CompactedAlready);
        }
        self.core.mutation(by, messages, preserve_recent, through)
    }

    /// Prepares the run of a recipe as a child. Fails if it can't be started.
    pub(super) fn child_run(
        &mut self,
        recipe: &Arc<Recipe>,
        args: &BTreeMap<String, String>,
    ) -> Result<impl Future<Output = Result<ChildOutcome, ChildError>> + Send + use<>, ArgumentError> {
        let arguments = called_with(recipe, args)?;
        let spec = self.child_spec(recipe, &arguments, args);
        let may_run = matches!(self.hooks.recipe_may_run(&self.core, recipe), MayRun::Yes);
        let context = ToolContext::bare(self.core.workspace.clone());
        let maker = self.core.prompt_maker(recipe, self.tools.masker(&self.core));
        let prompt = maker.prompt(context, arguments, move |_| not_run(may_run));
        let (services, news) = (self.core.services.clone(), self.subagents.sender());
        Ok(async move {
            let spec = ChildSpec { prompt: prompt.await?, ..spec };
            child::run(services, spec, news).await
        })
    }

    /// The specification of a child that runs a recipe, without its prompt.
    fn child_spec(
        &mut self,
        recipe: &Recipe,
        arguments: &RecipeArguments,
        args: &BTreeMap<String, String>,
    ) -> ChildSpec {
        let view = self.core.thread.view().clone();
        let history = match (recipe.context, recipe.history) {
            (Some(Context::None), _) => ChildHistory::None,
            (Some(Context::Session | Context::Isolated) | None, HistoryMode::Flat) => {
                ChildHistory::Flat(view)
            }
            (Some(Context::Session | Context::Isolated) | None, _) => ChildHistory::Native(view),
        };
        let model = match (&recipe.model, self.core.model.endpoint()) {
            (RecipeModel::Named(name), _) => ChildModel::Named(ModelName(name.clone())),
            (RecipeModel::Small, main) if let Some(small) = models::small(&self.core.settings, main) => {
                ChildModel::Named(small)
            }
            (RecipeModel::Main | RecipeModel::Small, Some(endpoint)) => {
                ChildModel::At(Box::new(endpoint.clone()))
            }
            (RecipeModel::Main | RecipeModel::Small, None) => ChildModel::Configured,
        };
        let handlers = self.hooks.handlers_that_may_run(&mut self.core, recipe, &arguments.named);
        let hooks = self.hooks.for_child(recipe.run_hooks);
        let time = self.core.settings.hooks.callback_timeout;
        let spec = self.core.child_spec(recipe.id.clone(), time, hooks);
        ChildSpec {
            lineage: Lineage {
                callback_args: args.clone(),
                allowed_commands: recipe.allowed_commands.clone(),
                handlers,
                ..spec.lineage
            },
            history,
            frame: self.core.thread.frame_entry().cloned(),
            model,
            allowed_tools: recipe.allowed_tools.clone(),
            max_rounds: recipe.max_turns,
            ..spec
        }
    }
}

/// Converts a hook's arguments to those of the recipe, which need not declare them; `input` is the free text.
fn called_with(recipe: &Recipe, args: &BTreeMap<String, String>) -> Result<RecipeArguments, ArgumentError> {
    let mut named = args.clone();
    let free = match recipe.arguments.contains_key("input") {
        true => args.get("input").cloned(),
        false => named.remove("input"),
    };
    let free = free.unwrap_or_default();
    command::complete(recipe, RecipeArguments { named, free })
}
