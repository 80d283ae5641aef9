//! A session's recipes: reading them, watching their files, and rendering one for a typed command.

use epitome_provider::ProviderError;
use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::background::BackgroundResult;
use super::core::Core;
use super::hook_host::{HookHost, MayRun};
use super::provider_errors::sentence;
use super::responder::QueuedPrompt;
use super::{CommandInfo, NoticeSeverity, SessionCommand, Ticket};
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
use epitome_thread::ModelName;
use epitome_thread::problem::Problem;
use epitome_tools::shell_output::shell_output;
use epitome_tools::{ToolContext, Toolbox};

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
    ) -> Result<Rendered, Problem> {
        let rendered = render::render(recipe, arguments, &self.surroundings(), outputs);
        if let Ok(Rendered::Done(prompt)) = &rendered {
            for warning in &prompt.warnings {
                self.notify(NoticeSeverity::Warning, warning.clone());
            }
        }
        rendered
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
    pub(super) fn endpoint_of(&self, recipe: &Recipe) -> Result<Option<Endpoint>, RecipeModelError> {
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
                None => return Err(RecipeModelError::NoSmallModel),
            },
        };
        let name = ModelName(name);
        if self.model.endpoint().is_some_and(|endpoint| endpoint.name == name) {
            return Ok(None);
        }
        if endpoint::is_searched(&name, &self.settings) {
            return Err(RecipeModelError::NotSearched(name));
        }
        let mut endpoint = endpoint::resolve(&name, &self.settings, &self.workspace.environment)?;
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
    pub(super) fn lines(&self, arguments: &RecipeArguments) -> Result<Vec<String>, Problem> {
        Ok(match render::render(&self.recipe, arguments, &self.surroundings, &ShellOutputs::new())? {
            Rendered::Done(_) => Vec::new(),
            Rendered::Needs(calls) => calls.iter().map(ShellCall::line).collect(),
        })
    }

    /// Renders the prompt. `instead` returns the note that replaces the output of a line that may not run.
    pub(super) async fn prompt(
        self,
        context: ToolContext,
        arguments: RecipeArguments,
        instead: impl Fn(&str) -> Option<&'static str>,
    ) -> Result<String, Problem> {
        let mut outputs = ShellOutputs::new();
        loop {
            match render::render(&self.recipe, &arguments, &self.surroundings, &outputs)? {
                Rendered::Done(prompt) => return Ok(prompt.text),
                Rendered::Needs(calls) => {
                    let masker = self.masker.as_deref();
                    outputs.extend(shell_outputs(&self.toolbox, &context, masker, calls, &instead).await);
                }
            }
        }
    }
}

impl SessionRecipes {
    pub(super) fn catalog(&self) -> &RecipeCatalog {
        &self.catalog
    }

    /// Lets the repository's compactions that the user trusts replace the built-in ones.
    pub(super) fn trust(&mut self, core: &Core, hooks: &HookHost) {
        let is_trusted = |recipe: &Recipe| matches!(hooks.recipe_may_run(core, recipe), MayRun::Yes);
        Arc::make_mut(&mut self.catalog).trust(is_trusted);
    }

    pub(super) fn are_read(&self) -> bool {
        self.is_read
    }

    /// Stops waiting for the recipes: the session needs none, or they can't be read.
    pub(super) fn give_up_reading(&mut self) {
        self.is_read = true;
    }

    /// Stores the recipes that were read; returns whether this is the first time.
    pub(super) fn read(&mut self, catalog: RecipeCatalog, watch: Option<Arc<Registration>>) -> bool {
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
        core.start(read, |(catalog, watch)| BackgroundResult::RecipesRead(catalog, watch));
    }

    /// The prompts of MCP servers.
    pub(super) fn prompts(&self) -> &[CommandInfo] {
        &self.prompts
    }

    /// Replaces the prompts of MCP servers; returns whether they have changed.
    pub(super) fn set_prompts(&mut self, prompts: Vec<CommandInfo>) -> bool {
        std::mem::replace(&mut self.prompts, prompts) != self.prompts
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

/// Why a recipe or agent does not run on the model that its file names.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RecipeModelError {
    #[error("{0} is not among the models here")]
    NotOffered(String),
    #[error("a repository can't choose the provider ({0})")]
    ForeignProvider(ModelName),
    #[error("no small model is configured (models.small)")]
    NoSmallModel,
    #[error("{0} is not known yet; choose it for the session instead")]
    NotSearched(ModelName),
    #[error("{}", sentence(.0))]
    Provider(#[from] ProviderError),
}

/// Resolves the model name in a command of another agent among the offered models, preferring the session's provider.
/// A repository may not choose the provider that gets the user's files.
pub(super) fn offered_model<'a>(
    name: &str,
    offered: impl Iterator<Item = &'a ModelName>,
    main: Option<&ModelName>,
    source: &RecipeSource,
) -> Result<String, RecipeModelError> {
    let provider = |model: &ModelName| model.split().map(|(provider, _)| provider.to_owned());
    let own = main.and_then(provider);
    let is_named = |model: &&ModelName| {
        model.0 == name
            || model.split().is_some_and(|(_, model)| model == name || model.ends_with(&format!("/{name}")))
    };
    let mut named: Vec<&ModelName> = offered.filter(is_named).collect();
    named.sort_by_key(|model| provider(model) != own);
    let found = named.first().ok_or_else(|| RecipeModelError::NotOffered(name.to_owned()))?;
    if matches!(source, RecipeSource::Repository(_)) && provider(found) != own {
        return Err(RecipeModelError::ForeignProvider(ModelName::clone(found)));
    }
    Ok(found.0.clone())
}

/// The note for all lines of a recipe that may not run.
pub(super) fn not_run(may_run: bool) -> Option<&'static str> {
    (!may_run).then_some(NOT_RUN)
}

pub(super) async fn shell_outputs(
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
