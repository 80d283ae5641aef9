//! A session's recipes: reading them, watching their files, and rendering one for a typed command.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::actor::Session;
use super::commands::{self, compact};
use super::compacting::{self, CompactionOrder};
use super::core::Core;
use super::hook_host::MayRun;
use super::replies::sentence;
use super::work::{QueuedPrompt, RecipeRun, RunningTurn};
use super::{CommandInfo, NoticeSeverity, SessionCommand, SessionError, SessionEvent, Ticket, cpu_worker};
use epitome_compaction::{self as compaction, Budget, CompactionRequest};
use epitome_config::Summariser;
use epitome_hooks::claude::tools as claude_tools;
use epitome_hooks::handlers::{self, HandlerTable};
use epitome_platform::blocking;
use epitome_provider::endpoint::{self, Endpoint};
use epitome_provider::models;
use epitome_recipe::catalog::RecipeCatalog;
use epitome_recipe::command::{self, RecipeArguments};
use epitome_recipe::parse::{Recipe, RecipeModel, RecipeSource, RecipeSyntax};
use epitome_recipe::render::{self, NOT_RUN, RenderContext, Rendered, ShellCall, ShellOutputs};
use epitome_recipe::watch::Registration;
use epitome_secrets::Masker;
use epitome_thread::problem::Problem;
use epitome_thread::{Change, Content, Message, ModelName, Origin, Seq, Trigger};
use epitome_tools::shell_output::shell_output;
use epitome_tools::{ToolContext, Toolbox};
use epitome_turn::{Turn, TurnLimits};

/// A session's recipes, and the prompt whose recipe is being rendered.
#[derive(Default)]
pub(super) struct SessionRecipes {
    catalog: Arc<RecipeCatalog>,
    /// Whether the recipes have been read, or the session does without. They are read in the background when it starts.
    is_read: bool,
    watch: Option<Arc<Registration>>,
    /// Other prompts wait for this one.
    rendering: Option<Rendering>,
    /// The prompts of MCP servers.
    prompts: Vec<CommandInfo>,
}

/// A prompt whose recipe waits for the output of its shell calls, or that waits for a compaction preview.
pub struct Rendering {
    pub prompt: QueuedPrompt,
    pub job: AbortHandle,
}

impl Rendering {
    pub(super) fn is_for(&self, ticket: Ticket) -> bool {
        self.prompt.responder.ticket == ticket
    }
}

impl Core {
    /// Renders a recipe with the outputs of its shell calls so far. An error is a sentence for the user.
    pub(super) fn render(
        &self,
        recipe: &Recipe,
        arguments: &RecipeArguments,
        outputs: &ShellOutputs,
    ) -> Result<Rendered, String> {
        let rendered = render::render(recipe, arguments, &self.surroundings(), outputs);
        if let Ok(Rendered::Done(prompt)) = &rendered {
            for warning in &prompt.warnings {
                self.notify(NoticeSeverity::Warning, warning.clone());
            }
        }
        rendered.map_err(|problem| problem.to_string())
    }

    /// Renders a recipe without running anything; `None` if that is not possible.
    pub(super) fn render_without_shell(
        &self,
        recipe: &Recipe,
        arguments: &RecipeArguments,
    ) -> Option<String> {
        match self.render(recipe, arguments, &ShellOutputs::new()) {
            Ok(Rendered::Done(prompt)) => Some(prompt.text),
            Ok(Rendered::Needs(_)) | Err(_) => None,
        }
    }

    /// Returns a maker of the recipe's prompt, for calls by the model and by hooks: arguments are quoted in shell lines.
    pub(super) fn prompt_maker(&self, recipe: &Arc<Recipe>, masker: Option<Arc<Masker>>) -> PromptMaker {
        PromptMaker {
            // Not the complete toolbox: one of its tools may own this.
            toolbox: self.services.toolbox.only(&["bash".to_owned()]),
            surroundings: RenderContext { quotes_arguments: true, ..self.surroundings() },
            recipe: recipe.clone(),
            masker,
        }
    }

    fn surroundings(&self) -> RenderContext {
        RenderContext {
            conversation_id: self.id().0.clone(),
            cwd: self.thread.cwd().display().to_string(),
            date: jiff::Zoned::now().date().to_string(),
            go_compat: self.settings.go_compat,
            quotes_arguments: false,
        }
    }

    /// The handlers that a recipe declares, and the problems of its declarations.
    pub(super) fn handlers_of(
        &self,
        recipe: &Recipe,
        named: &BTreeMap<String, String>,
    ) -> (HandlerTable, Vec<Problem>) {
        let path = recipe.source.path();
        handlers::declared(&recipe.id, &recipe.hooks, named, &self.services.functions, path)
    }

    /// The recipe's model; `None` if it is the session's.
    fn endpoint_of(&self, recipe: &Recipe) -> Result<Option<Endpoint>, String> {
        let name = match &recipe.model {
            RecipeModel::Main => return Ok(None),
            RecipeModel::Named(name) if recipe.syntax == RecipeSyntax::ClaudeCommand => {
                let models = &self.options().models;
                let offered = models.iter().map(|choice| &choice.name);
                offered_model(
                    name,
                    offered,
                    self.model.endpoint().map(|endpoint| &endpoint.name),
                    &recipe.source,
                )?
            }
            RecipeModel::Named(name) => name.clone(),
            RecipeModel::Small => match models::small(&self.settings, self.model.endpoint()) {
                Some(name) => name.0,
                None => return Err("no small model is configured (models.small)".to_owned()),
            },
        };
        let name = ModelName(name);
        if self.model.endpoint().is_some_and(|endpoint| endpoint.name == name) {
            return Ok(None);
        }
        if endpoint::is_searched(&name, &self.settings) {
            return Err(format!(
                "{name} would have to be looked for first; choose it for the session instead"
            ));
        }
        let resolved = endpoint::resolve(&name, &self.settings, &self.workspace.environment);
        let mut endpoint = resolved.map_err(|error| sentence(&error))?;
        self.services.learned.apply(&self.settings, &mut endpoint);
        Ok(Some(endpoint))
    }
}

/// Makes the prompt of a recipe.
#[derive(Clone)]
pub(super) struct PromptMaker {
    toolbox: Toolbox,
    surroundings: RenderContext,
    recipe: Arc<Recipe>,
    /// Masks the outputs of commands.
    masker: Option<Arc<Masker>>,
}

impl PromptMaker {
    /// The shell lines that the prompt needs first. Others may follow from their output.
    pub(super) fn lines(&self, arguments: &RecipeArguments) -> Result<Vec<String>, String> {
        match render::render(&self.recipe, arguments, &self.surroundings, &ShellOutputs::new()) {
            Ok(Rendered::Done(_)) => Ok(Vec::new()),
            Ok(Rendered::Needs(calls)) => Ok(calls.iter().map(ShellCall::line).collect()),
            Err(problem) => Err(problem.to_string()),
        }
    }

    /// Renders the prompt. `instead` returns the note that replaces the output of a line that may not run.
    pub(super) async fn prompt(
        self,
        context: ToolContext,
        arguments: RecipeArguments,
        instead: impl Fn(&str) -> Option<&'static str>,
    ) -> Result<String, String> {
        let mut outputs = ShellOutputs::new();
        loop {
            match render::render(&self.recipe, &arguments, &self.surroundings, &outputs) {
                Ok(Rendered::Done(prompt)) => return Ok(prompt.text),
                Ok(Rendered::Needs(calls)) => {
                    let masker = self.masker.as_deref();
                    outputs.extend(shell_outputs(&self.toolbox, &context, masker, calls, &instead).await);
                }
                Err(problem) => return Err(problem.to_string()),
            }
        }
    }
}

/// The slash commands in the order for clients: the most used ones, then the other built-in ones in the order of
/// `/help`, then the recipes by name. `prompts`: those of MCP servers.
pub(super) fn command_list(catalog: &RecipeCatalog, prompts: &[CommandInfo]) -> Arc<[CommandInfo]> {
    let mut recipes = catalog.commands();
    recipes.sort_by(|a, b| a.name.cmp(&b.name));
    let mut list: Vec<CommandInfo> = commands::listed().chain(recipes).collect();
    let is_new = |prompt: &&CommandInfo| !list.iter().any(|known| known.name == prompt.name);
    let prompts: Vec<CommandInfo> = prompts.iter().filter(is_new).cloned().collect();
    list.extend(prompts);
    list.sort_by_key(|command| commands::rank(&command.name));
    list.into()
}

impl SessionRecipes {
    pub(super) fn catalog(&self) -> &RecipeCatalog {
        &self.catalog
    }

    pub(super) fn are_read(&self) -> bool {
        self.is_read
    }

    /// Stops waiting for the recipes: the session needs none, or they can't be read.
    pub(super) fn give_up_reading(&mut self) {
        self.is_read = true;
    }

    /// Stores the recipes that were read; returns whether this is the first time.
    fn read(&mut self, catalog: RecipeCatalog, watch: Option<Arc<Registration>>) -> bool {
        (self.catalog, self.watch) = (Arc::new(catalog), watch);
        !std::mem::replace(&mut self.is_read, true)
    }

    /// Reads the recipes again in the background, and watches their files from then on.
    pub(super) fn load(&mut self, core: &mut Core, sessions: mpsc::WeakSender<SessionCommand>) {
        let cwd = core.thread.cwd().to_path_buf();
        let (services, overrides) = (core.services.clone(), core.settings.overrides());
        let watch = self.watch.clone();
        let read = blocking::run(move || {
            let plan = RecipeCatalog::watched(&cwd, &services.paths, &overrides.recipe_dirs);
            let watch = services.watch.about_to_read(watch, plan, move || {
                // A full channel means that the session is busy with newer commands.
                if let Some(sender) = sessions.upgrade() {
                    drop(sender.try_send(SessionCommand::RecipesChanged));
                }
            });
            (RecipeCatalog::load(&cwd, &services.paths, &overrides.recipe_dirs), watch)
        });
        core.start(read, |session, (catalog, watch)| session.recipes_read(catalog, watch));
    }

    /// Replaces the prompts of MCP servers; returns whether they have changed.
    pub(super) fn set_prompts(&mut self, prompts: Vec<CommandInfo>) -> bool {
        std::mem::replace(&mut self.prompts, prompts) != self.prompts
    }

    /// The slash commands for clients.
    pub(super) fn command_list(&self) -> Arc<[CommandInfo]> {
        command_list(&self.catalog, &self.prompts)
    }

    /// The instruction of `/compact`, for a compaction that no command started.
    pub(super) fn summary_instruction(&self, core: &Core) -> String {
        let built_in = RecipeCatalog::built_in();
        let recipe = self.catalog.find("compact").or_else(|| built_in.find("compact"));
        let recipe = recipe.expect("the compact recipe is built in");
        let bound = command::bind(recipe, "").ok();
        let text = bound.and_then(|bound| core.render_without_shell(recipe, &bound));
        text.unwrap_or_else(|| recipe.body.clone())
    }

    // ── Rendering ──────────────────────────────────────────────────────────────────────────────

    pub(super) fn render(&mut self, rendering: Rendering) {
        self.rendering = Some(rendering);
    }

    /// Whether a prompt waits for its recipe to be rendered; other prompts wait for it.
    pub(super) fn are_rendering(&self) -> bool {
        self.rendering.is_some()
    }

    pub(super) fn are_rendering_for(&self, ticket: Ticket) -> bool {
        self.rendering.as_ref().is_some_and(|rendering| rendering.is_for(ticket))
    }

    /// Takes the prompt with this ticket, whose rendering has finished.
    pub(super) fn take_rendered(&mut self, ticket: Ticket) -> Option<Rendering> {
        self.rendering.take_if(|rendering| rendering.is_for(ticket))
    }

    /// Takes the prompt whose rendering has panicked, if there is one.
    pub(super) fn take_failed(&mut self) -> Option<Rendering> {
        self.rendering.take_if(|rendering| rendering.job.is_finished())
    }

    /// Takes the prompt whose rendering is cancelled.
    pub(super) fn cancel_rendering(&mut self) -> Option<Rendering> {
        self.rendering.take()
    }
}

impl Session {
    fn recipes_read(&mut self, catalog: RecipeCatalog, watch: Option<Arc<Registration>>) {
        let problems = catalog.problems.clone();
        let before = self.recipes.command_list();
        self.core.workspace = Arc::new(self.core.workspace.reading(catalog.readable.clone()));
        let first = self.recipes.read(catalog, watch);
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
        self.recipes.catalog().find(typed.name).is_some_and(|recipe| recipe.is_compaction())
            && (self.core.settings.compaction.model == Summariser::None || is_dry())
    }

    /// Starts a recipe; `outputs` are the outputs of its shell calls so far.
    pub(super) fn begin_command(&mut self, mut prompt: QueuedPrompt, outputs: ShellOutputs) {
        let found = self.command_in(&prompt.content).and_then(|(at, typed)| {
            let parsed = command::parse(typed)?;
            Some((
                at,
                typed.to_owned(),
                self.recipes.catalog().find(parsed.name)?.clone(),
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
                    return self.carry_out(prompt, typed, |_, _| commands::no_compaction(&why));
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
                            Some(back) => return self.run_shell_calls(back, false, calls, outputs),
                            None => return,
                        }
                    }
                };
                return self.run_shell_calls(prompt, may_run, calls, outputs);
            }
            Err(message) => {
                return prompt.responder.answer(Err(SessionError::Invalid(message)));
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
            self.compactor.order(CompactionOrder {
                recipe: Some(recipe.clone()),
                arguments,
                focus,
                instruction: Some(text),
                keep: swap.keep,
                above,
                summary_tokens_max: swap.summary_tokens_max,
                ..CompactionOrder::default()
            });
            work.run.recipe = Some(recipe);
            return self.start_work(work);
        }
        let mut content = prompt.content;
        content.remove(at);
        // What the user attached to the command is kept.
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
        self.begin_said(Change::Said { message, origin }, prompt.responder, rounds);
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
        let keep = swap.keep.as_ref().map(compacting::keep_of).unwrap_or_default();
        let above_words = above.map(|entry| format!(" above {entry}")).unwrap_or_default();
        let focus_words = focus.as_ref().map(|focus| format!(" {focus}")).unwrap_or_default();
        let named = command::typed(recipe, arguments);
        let command = format!("/{}{named}{above_words}{focus_words}", recipe.id);
        let wish = CompactionRequest {
            trigger: Trigger::Manual,
            keep: above.map_or(keep, compaction::KeptTail::From),
            focus,
            summary: true,
        };
        let used = Some(self.core.tokens_in_context());
        let (ruler, budget) = (self.core.ruler(), self.core.budget(swap.summary_tokens_max));
        let budget = Budget { used, ..budget };
        let thread = self.core.thread.clone();
        let ticket = prompt.responder.ticket;
        let (revision, planned_budget) = (thread.view().revision(), budget.clone());
        let previewing = move || compaction::preview(&ruler, &thread, &budget, &wish);
        let job = self.core.start(cpu_worker::run(previewing), move |session, preview| {
            // Its command may have been cancelled.
            let Some(rendering) = session.recipes.take_rendered(ticket) else { return };
            session.carry_out(rendering.prompt, typed, |core, _| match preview {
                None => commands::no_compaction(&format!("{}.", cpu_worker::FAULT)),
                Some(_) if revision != core.thread.view().revision() => {
                    commands::no_compaction("the conversation was changed meanwhile. Say it again.")
                }
                Some(preview) => commands::dry_run(core, &preview, &planned_budget, command),
            });
        });
        self.recipes.render(Rendering { prompt, job });
    }

    /// Runs a recipe's shell calls in the background, then renders it again with their output.
    pub(super) fn run_shell_calls(
        &mut self,
        prompt: QueuedPrompt,
        may_run: bool,
        calls: Vec<ShellCall>,
        mut outputs: ShellOutputs,
    ) {
        let toolbox = self.core.services.toolbox.clone();
        let context = ToolContext::bare(self.core.workspace.clone());
        let ticket = prompt.responder.ticket;
        let masker = self.tools.masker(&self.core);
        let running = async move {
            let instead = |_: &str| not_run(may_run);
            outputs.extend(shell_outputs(&toolbox, &context, masker.as_deref(), calls, instead).await);
            outputs
        };
        let job = self.core.start(running, move |session, outputs| {
            if let Some(rendering) = session.recipes.take_rendered(ticket) {
                session.begin_command(rendering.prompt, outputs);
            }
        });
        self.recipes.render(Rendering { prompt, job });
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

/// Resolves the model name in a command of another agent among the offered models, preferring the session's provider.
/// A repository may not choose the provider that gets the user's files.
pub(super) fn offered_model<'a>(
    name: &str,
    offered: impl Iterator<Item = &'a ModelName>,
    main: Option<&ModelName>,
    source: &RecipeSource,
) -> Result<String, String> {
    let provider = |model: &ModelName| model.split().map(|(provider, _)| provider.to_owned());
    let own = main.and_then(provider);
    let is_named = |model: &&ModelName| {
        model.0 == name
            || model.split().is_some_and(|(_, model)| model == name || model.ends_with(&format!("/{name}")))
    };
    let mut named: Vec<&ModelName> = offered.filter(is_named).collect();
    named.sort_by_key(|model| provider(model) != own);
    let found = named.first().ok_or_else(|| format!("{name} is not among the models here"))?;
    if matches!(source, RecipeSource::Repository(_)) && provider(found) != own {
        return Err(format!("a repository does not choose the provider ({found})"));
    }
    Ok(found.0.clone())
}

/// The note for all lines of a recipe that may not run.
pub(super) fn not_run(may_run: bool) -> Option<&'static str> {
    (!may_run).then_some(NOT_RUN)
}

async fn shell_outputs(
    toolbox: &Toolbox,
    context: &ToolContext,
    masker: Option<&Masker>,
    calls: Vec<ShellCall>,
    instead: impl Fn(&str) -> Option<&'static str>,
) -> ShellOutputs {
    let mut outputs = ShellOutputs::new();
    for call in calls {
        let line = call.line();
        let mut output = match instead(&line) {
            None => shell_output(toolbox, context, &line).await,
            Some(note) => note.to_owned(),
        };
        masker.map(|masker| masker.mask_in(&mut output));
        outputs.insert(call, output);
    }
    outputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_another_agent_gets_the_model_that_it_names_if_there_is_one() {
        let offered = ["router/claude-haiku-4-5", "anthropic/claude-opus-5", "anthropic/claude-haiku-4-5"];
        let offered = offered.map(|name| ModelName(name.to_owned()));
        let (main, path) = (&offered[1], "/w/.claude/commands/x.md");
        let find = |name, source: &RecipeSource| offered_model(name, offered.iter(), Some(main), source);
        let (own, theirs) = (RecipeSource::User(path.into()), RecipeSource::Repository(path.into()));
        let haiku = || Ok("anthropic/claude-haiku-4-5".to_owned());
        assert_eq!((find("claude-haiku-4-5", &own), find("claude-haiku-4-5", &theirs)), (haiku(), haiku()));
        assert_eq!(find("router/claude-haiku-4-5", &own).as_deref(), Ok("router/claude-haiku-4-5"));
        for (name, source) in [("claude-2", &own), ("router/claude-haiku-4-5", &theirs)] {
            assert!(find(name, source).is_err(), "{name}");
        }
    }
}
