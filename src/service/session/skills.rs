//! Skills that the model may use. They are listed in the tool's description, which is frozen at the first model call;
//! later ones are announced in the conversation. Their commands run when the model asks for a skill, if they might run
//! when the user types its name, and if the session's mode and rules also allow them as commands of the model. They run
//! in the sandbox, because files that they start may have been changed by the model.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use super::core::Core;
use super::hook_host::{HookHost, RecipeConsent};
use super::recipes::PromptMaker;
use super::recipes::SessionRecipes;
use super::reminders::{ReminderText, Topic, text_by};
use epitome_recipe::command::RecipeArguments;
use epitome_recipe::parse::Recipe;
use epitome_recipe::render::{NOT_DECIDED, NOT_RUN};
use epitome_secrets::Masker;
use epitome_thread::problem::Problem;
use epitome_thread::{CallDisplay, CallId, Change};
use epitome_tools::skill_tool::{self, Skill, SkillText, SkillTool};
use epitome_tools::{BoxFuture, ToolContext, ToolError, listing};

/// The origin of messages about later skills.
const BY: &str = "skills";

/// Maximum number of messages about skills in a view: directories that change constantly must not fill it.
const MESSAGES_MAX: usize = 20;

impl SessionRecipes {
    /// Puts the catalog's skills into the toolbox. A child uses its parent's.
    pub(super) fn offer_skills(&self, core: &mut Core, hooks: &HookHost, masker: Option<Arc<Masker>>) {
        let has_tool = core.services.toolbox.get(skill_tool::NAME).is_some();
        if !core.lineage.is_child() && (has_tool || self.skills().next().is_some()) {
            let files = self.files_for_skills(core);
            let consent = Arc::new(hooks.recipe_consent(core));
            let skill = |recipe: &Arc<Recipe>| {
                let is_listed = recipe.foreign.is_for(files.iter().map(PathBuf::as_path));
                Skill { is_listed, ..skill(core, recipe, &consent, masker.clone()) }
            };
            let tool =
                SkillTool::new(self.skills().map(skill).collect(), listing::bytes_in(core.model.window()));
            core.services.toolbox = core.services.toolbox.renewed(Arc::new(tool));
        }
    }

    /// The reminder about skills that the frame does not list.
    pub(super) fn late_skills(&self, core: &Core) -> Option<Topic> {
        let shown = core.thread.view().entries().iter();
        let said = shown.filter(|entry| text_by(BY, &entry.change).is_some());
        if core.lineage.is_child() || said.count() >= MESSAGES_MAX {
            return None;
        }
        let (_, tools) = core.thread.frame()?;
        let tool = tools.iter().find(|tool| tool.name == skill_tool::NAME);
        let listed = tool.map(|tool| tool.description.as_str()).unwrap_or_default();
        if listed.contains(listing::WITHOUT_ROOM) {
            return None;
        }
        let files = self.files_for_skills(core);
        let is_for = |recipe: &&Arc<Recipe>| recipe.foreign.is_for(files.iter().map(PathBuf::as_path));
        let late = self.skills().filter(is_for).map(|recipe| {
            let item = listing::ListedItem { name: &recipe.id, about: &recipe.description };
            let line = listing::line(item, listing::ABOUT_BYTES_MAX);
            let line = match tool.is_some() {
                true => line,
                false => format!("{line} ({})", recipe.source.path().display()),
            };
            (listing::head(&recipe.id), line)
        });
        let how = match tool.is_some() {
            true => "the tool skill gives their instructions",
            false => "read the file for their instructions",
        };
        let head = format!("More skills are available; {how}:");
        let lines = late.filter(|(head, _)| !listed.contains(head)).collect();
        Some(Topic { by: BY, what: ReminderText::Lines { head, lines } })
    }

    /// The files touched so far; empty if no skill is restricted to certain files.
    fn files_for_skills(&self, core: &Core) -> BTreeSet<PathBuf> {
        match self.skills().any(|recipe| !recipe.foreign.paths.is_empty()) {
            true => touched(core),
            false => BTreeSet::new(),
        }
    }

    /// The skills that the model may use on its own initiative.
    fn skills(&self) -> impl Iterator<Item = &Arc<Recipe>> {
        let recipes = self.catalog().recipes.iter();
        recipes.filter(|recipe| recipe.callable_by.agent && recipe.is_skill())
    }
}

fn skill(
    core: &Core,
    recipe: &Arc<Recipe>,
    consent: &Arc<RecipeConsent>,
    masker: Option<Arc<Masker>>,
) -> Skill {
    let maker = core.prompt_maker(recipe, masker);
    let text = OfferedSkill { maker, recipe: recipe.clone(), consent: consent.clone() };
    let (name, about) = (recipe.id.clone(), recipe.description.clone());
    Skill { name, about, is_listed: true, fork: recipe.foreign.fork.clone(), text: Arc::new(text) }
}

/// A skill's text, and the consent to its commands.
struct OfferedSkill {
    maker: PromptMaker,
    recipe: Arc<Recipe>,
    consent: Arc<RecipeConsent>,
}

impl SkillText for OfferedSkill {
    /// Consent is to the current version of the files that the commands name, so it is checked at each call.
    fn lines(&self, arguments: &str) -> Result<Vec<String>, ToolError> {
        let lines = self.maker.lines(&with_text(arguments.to_owned())).map_err(unrendered)?;
        let may_run = !lines.is_empty() && self.consent.covers(&self.recipe);
        Ok(if may_run { lines } else { Vec::new() })
    }

    fn render(
        &self,
        context: ToolContext,
        arguments: String,
        lines: Vec<String>,
    ) -> BoxFuture<Result<String, ToolError>> {
        let prompt = self.maker.clone().prompt(context, with_text(arguments), move |line| {
            match lines.iter().any(|decided| decided == line) {
                true => None,
                false if lines.is_empty() => Some(NOT_RUN),
                false => Some(NOT_DECIDED),
            }
        });
        Box::pin(async { prompt.await.map_err(unrendered) })
    }
}

fn unrendered(problem: Problem) -> ToolError {
    ToolError::caused(problem.to_string(), problem)
}

fn with_text(free: String) -> RecipeArguments {
    RecipeArguments { free, ..RecipeArguments::default() }
}

/// The files that calls of the conversation have touched, relative to the session's directory.
fn touched(core: &Core) -> BTreeSet<PathBuf> {
    let cwd = &core.workspace.cwd;
    let mut cards: HashMap<&CallId, &CallDisplay> = HashMap::new();
    let mut paths = BTreeSet::new();
    for entry in core.thread.entries() {
        match &entry.change {
            Change::Replied { message, .. } => {
                cards.extend(message.calls().map(|call| (&call.id, &call.card)));
            }
            Change::CallChanged { call, card, .. } => drop(cards.insert(call, card)),
            Change::ToolFinished { outcome } => {
                let of_call = cards.remove(&outcome.call).into_iter().flat_map(|card| &card.locations);
                let all = outcome.locations.iter().chain(of_call);
                paths.extend(all.map(|at| at.path.strip_prefix(cwd).unwrap_or(&at.path).to_path_buf()));
            }
            _ => {}
        }
    }
    paths
}
