//! Typed recipes: rendering them, and beginning their turns.

use super::Session;
use crate::background::{BackgroundResult, PreviewedCompaction};
use crate::commands::{self, compact};
use crate::compacting::{self, SummaryRequest};
use crate::cpu_worker;
use crate::hook_host::MayRun;
use crate::recipes::{Rendering, not_run, shell_outputs};
use crate::responder::QueuedPrompt;
use crate::work::{RecipeRun, RunningTurn};
use crate::{NoticeSeverity, SessionError, SessionEvent, Ticket, WorkerFault};
use epitome_compaction::{self as compaction, Budget, CompactionRequest, KeptTail};
use epitome_config::Summariser;
use epitome_hooks::claude::tools as claude_tools;
use epitome_hooks::handlers;
use epitome_recipe::catalog::RecipeCatalog;
use epitome_recipe::command::{self, RecipeArguments};
use epitome_recipe::parse::{Recipe, RecipeSource};
use epitome_recipe::render::{Rendered, ShellCall, ShellOutputs};
use epitome_recipe::watch::Registration;
use epitome_thread::{Change, Content, Message, Origin, Seq, Trigger};
use epitome_tools::{ToolContext, Toolbox};
use epitome_turn::{Turn, TurnLimits};
use std::sync::Arc;

impl Session {
    pub(super) fn recipes_read(&mut self, catalog: RecipeCatalog, watch: Option<Arc<Registration>>) {
        let problems = catalog.problems.clone();
        let before = self.recipes.command_list();
        self.core.workspace = Arc::new(self.core.workspace.reading(catalog.readable.clone()));
        let first = self.recipes.read(catalog, watch);
        self.recipes.trust(&self.core, &self.hooks);
        let masker = self.tools.masker(&self.core);
        self.recipes.offer_skills(&mut self.core, &self.hooks, masker);
        let now = self.recipes.command_list();
        if first || before != now {
            self.core.announce(&SessionEvent::Commands(now));
        }
        self.core.clients.notify_problems_of("recipes", &problems);
    }

    /// Whether a prompt is a compaction without a model, or only a preview of one.
    pub(super) fn needs_no_model(&self, prompt: &QueuedPrompt) -> bool {
        let typed = self.command_in(&prompt.content).and_then(|(_, typed)| command::parse(typed));
        let Some(typed) = typed else { return false };
        let is_dry = || compact::parse(typed.rest).is_ok_and(|asked| asked.dry);
        self.recipes.catalog().called(typed.name).is_some_and(|recipe| recipe.is_compaction())
            && (self.core.settings.compaction.model == Summariser::None || is_dry())
    }

    /// Starts a recipe; `outputs` are the outputs of its shell calls so far.
    pub(super) fn begin_command(&mut self, mut prompt: QueuedPrompt, outputs: ShellOutputs) {
        let found = self.command_in(&prompt.content).and_then(|(at, typed)| {
            let parsed = command::parse(typed)?;
            Some((
                at,
                typed.to_owned(),
                self.recipes.catalog().called(parsed.name)?.clone(),
                parsed.rest.to_owned(),
            ))
        });
        let Some((at, typed, recipe, rest)) = found else {
            let gone = "the recipe no longer exists; send the prompt again".to_owned();
            return prompt.responder.answer(Err(SessionError::Invalid(gone)));
        };
        let mut arguments = match command::bind(&recipe, &rest) {
            Ok(arguments) => arguments,
            Err(usage) => return prompt.responder.answer(Err(SessionError::Invalid(usage.to_string()))),
        };
        let mut above = None;
        if recipe.is_compaction() {
            match compact::parse(&arguments.free).and_then(|asked| asked.checked(&self.core.thread)) {
                Ok(asked) if asked.dry => {
                    let (above, focus) = (asked.above, asked.focus);
                    return self.preview_compaction(prompt, typed, &recipe, &arguments, above, focus);
                }
                Ok(asked) => (above, arguments.free) = (asked.above, asked.focus.unwrap_or_default()),
                Err(why) => {
                    return self.carry_out(prompt, typed, |_, _| commands::no_compaction(&why.to_string()));
                }
            }
        }
        let forks = recipe.foreign.fork.is_some() && recipe.callable_by.agent;
        let (declared, _) = self.core.handlers_of(&recipe, &arguments.named);
        if handlers::writes(&declared).next().is_some()
            && let MayRun::Unknown(item) = self.hooks.recipe_may_run(&self.core, &recipe)
        {
            match self.hooks.ask_for_recipe(&self.core, item, &recipe, prompt) {
                Some(back) => prompt = back,
                None => return,
            }
        }
        let text = match self.core.render(&recipe, &arguments, &outputs) {
            _ if forks => fork_request(&recipe.id, &arguments.free),
            Ok(Rendered::Done(prompt)) => prompt.text,
            Ok(Rendered::Needs(calls)) => {
                let may_run = match self.hooks.recipe_may_run(&self.core, &recipe) {
                    MayRun::Yes => true,
                    MayRun::No => false,
                    MayRun::Unknown(item) => {
                        match self.hooks.ask_for_recipe(&self.core, item, &recipe, prompt) {
                            Some(back) => return self.run_shell_calls(back, &recipe, false, calls, outputs),
                            None => return,
                        }
                    }
                };
                return self.run_shell_calls(prompt, &recipe, may_run, calls, outputs);
            }
            Err(problem) => {
                return prompt.responder.answer(Err(SessionError::Invalid(problem.to_string())));
            }
        };
        let handlers = self.hooks.handlers_that_may_run(&mut self.core, &recipe, &arguments.named);
        self.hooks.invoked();
        if recipe.is_compaction() {
            commands::report_unsent_attachments(&self.core, &prompt);
            let focus = (!arguments.free.trim().is_empty()).then(|| arguments.free.clone());
            let commanded = Change::Commanded { message: self.core.fresh_message(), typed };
            let settings = &self.core.settings;
            let limits = TurnLimits { rounds: settings.max_rounds, repeats: settings.max_repeats };
            let turn = Turn::compact(commanded, limits);
            let mut work = RunningTurn::new(turn, prompt.responder);
            let (swap, handlers) = compacting::without_swap(handlers);
            work.run.handlers = handlers;
            self.compactor.summarise_as(SummaryRequest {
                recipe: Some(recipe.clone()),
                arguments,
                focus,
                instruction: Some(text),
                keep: above.map(KeptTail::From).or(swap.keep),
                ..swap
            });
            work.run.recipe = Some(recipe);
            return self.start_work(work);
        }
        let mut content = prompt.content;
        content.remove(at);
        // The user's attachments to the command are kept.
        content.insert(0, Content::Text { text });
        let message = Message { id: self.core.fresh_message(), content, author: None };
        let origin = Origin::Recipe { recipe: recipe.id.clone(), typed };
        let endpoint = self.core.endpoint_of(&recipe).unwrap_or_else(|why| {
            let text = format!("/{} runs on the session's model: {why}", recipe.id);
            self.core.notify(NoticeSeverity::Warning, text);
            None
        });
        let rounds = recipe
            .max_turns
            .map_or(self.core.settings.max_rounds, |most| most.min(self.core.settings.max_rounds));
        self.begin_prompt(Change::Said { message, origin }, prompt.responder, rounds);
        if let Some(work) = &mut self.work {
            work.run = RecipeRun {
                handlers,
                endpoint,
                allowed_tools: allowed_tools(&recipe, &self.core.services.toolbox),
                allowed_commands: recipe.allowed_commands.clone(),
                recipe: Some(recipe),
            };
        }
    }

    /// Previews the compaction of this recipe. Its text is not rendered, so none of its commands run.
    fn preview_compaction(
        &mut self,
        prompt: QueuedPrompt,
        typed: String,
        recipe: &Recipe,
        arguments: &RecipeArguments,
        above: Option<Seq>,
        focus: Option<String>,
    ) {
        commands::report_unsent_attachments(&self.core, &prompt);
        let (handlers, _) = self.core.handlers_of(recipe, &arguments.named);
        let (swap, _) = compacting::without_swap(handlers);
        let above_words = above.map(|entry| format!(" above {entry}")).unwrap_or_default();
        let focus_words = focus.as_ref().map(|focus| format!(" {focus}")).unwrap_or_default();
        let named = command::typed(recipe, arguments);
        let command = format!("/{}{named}{above_words}{focus_words}", recipe.id);
        let request = CompactionRequest {
            trigger: Trigger::Manual,
            keep: above.map(KeptTail::From).or(swap.keep).unwrap_or_default(),
            focus,
            summary: true,
        };
        let used = Some(self.core.tokens_in_context());
        let (ruler, budget) = (self.core.ruler(), self.core.budget(swap.tokens_max));
        let budget = Budget { used, ..budget };
        let thread = self.core.thread.clone();
        let ticket = prompt.responder.ticket;
        let (revision, planned_budget) = (thread.view().revision(), budget.clone());
        let previewing = move || compaction::preview(&ruler, &thread, &budget, &request);
        let job = self.core.start(cpu_worker::run(previewing), move |preview| {
            let budget = planned_budget;
            let previewed = PreviewedCompaction { ticket, typed, command, revision, budget, preview };
            BackgroundResult::CompactionPreviewed(Box::new(previewed))
        });
        self.recipes.render(Rendering { prompt, job });
    }

    /// Shows the preview of a compaction, unless its command was cancelled.
    pub(super) fn compaction_previewed(&mut self, previewed: PreviewedCompaction) {
        let PreviewedCompaction { ticket, typed, command, revision, budget, preview } = previewed;
        let Some(rendering) = self.recipes.take_rendered(ticket) else { return };
        self.carry_out(rendering.prompt, typed, |core, _| match preview {
            None => commands::no_compaction(&format!("{WorkerFault}.")),
            Some(_) if revision != core.thread.view().revision() => {
                commands::no_compaction("the conversation changed in the meantime. Send it again.")
            }
            Some(preview) => commands::dry_run(core, &preview, &budget, command),
        });
    }

    /// Runs a recipe's shell calls in the background, then renders it again with their output.
    pub(super) fn run_shell_calls(
        &mut self,
        prompt: QueuedPrompt,
        recipe: &Recipe,
        may_run: bool,
        calls: Vec<ShellCall>,
        mut outputs: ShellOutputs,
    ) {
        let toolbox = self.core.services.toolbox.clone();
        let mut context = ToolContext::bare(self.core.workspace.clone());
        // The user has seen a repository's lines, but these may run what commands have changed since.
        if matches!(recipe.source, RecipeSource::Repository(_)) {
            context.mode = self.core.thread.mode();
            context.sandbox = self.core.sandbox_rules();
        }
        let ticket = prompt.responder.ticket;
        let masker = self.tools.masker(&self.core);
        let running = async move {
            let instead = |_: &str| not_run(may_run);
            outputs.extend(shell_outputs(&toolbox, &context, masker.as_deref(), calls, instead).await);
            outputs
        };
        let job =
            self.core.start(running, move |outputs| BackgroundResult::ShellCallsRan { ticket, outputs });
        self.recipes.render(Rendering { prompt, job });
    }

    /// Renders a recipe with the outputs of its shell calls, unless its command was cancelled.
    pub(super) fn shell_calls_ran(&mut self, ticket: Ticket, outputs: ShellOutputs) {
        if let Some(rendering) = self.recipes.take_rendered(ticket) {
            self.begin_command(rendering.prompt, outputs);
        }
    }
}

/// Names of the tools that a recipe may use; `None` if it may use all.
fn allowed_tools(recipe: &Recipe, toolbox: &Toolbox) -> Option<Vec<String>> {
    let without = &recipe.foreign.without_tools;
    if without.is_empty() {
        return recipe.allowed_tools.clone();
    }
    let is_allowed = |name: &String| !without.iter().any(|not| claude_tools::is_name_of(not, name));
    Some(toolbox.names().filter(is_allowed).collect())
}

/// The text that makes the model start a skill in a subagent. The tool `skill` renders the skill.
fn fork_request(skill: &str, free: &str) -> String {
    let arguments = if free.is_empty() { String::new() } else { format!(" and `arguments` {free:?}") };
    format!(
        "Call the tool `skill` with `name` {skill:?}{arguments}. It runs in an agent of its own; give me its report."
    )
}
