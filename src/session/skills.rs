//! Skills that the model may use: listed in the tool's description at the first model call, which is frozen then, and
//! told behind it where they come later. Nothing of them runs here.

use std::path::Path;
use std::sync::Arc;

use super::actor::Session;
use epitome_recipe::parse::Recipe;
use epitome_thread::{Change, Origin};
use epitome_tools::skill_tool::{self, Skill, SkillTool};

/// Whose words they are that tell of later skills.
const BY: &str = "skills";

/// The file that makes a folder a skill.
const FILE: &str = "SKILL.md";

/// Messages about skills that a thread may have: folders that change all the time must not fill it.
const TOLD_MAX: usize = 20;

impl Session {
    /// Puts the skills of a catalog that was read into the toolbox. What a child has is its parent's.
    pub(super) fn offer_skills(&mut self) {
        let skills = self.skills();
        let has_tool = self.services.toolbox.get(skill_tool::NAME).is_some();
        if !self.lineage.is_child() && (has_tool || !skills.is_empty()) {
            let skills = skills.into_iter().map(|(skill, _)| skill).collect();
            self.services.toolbox = self.services.toolbox.renewed(Arc::new(SkillTool::new(skills)));
        }
    }

    /// Tells the model of skills that neither its frame nor its view names.
    pub(super) fn tell_skills(&mut self) -> Result<(), String> {
        let told = |change: &Change| matches!(change, Change::Said { origin: Origin::Context { by }, .. } if by == BY);
        let count = self.thread.entries().iter().filter(|entry| told(&entry.change)).count();
        if self.lineage.is_child() || count >= TOLD_MAX {
            return Ok(());
        }
        let Some((_, tools)) = self.thread.frame() else { return Ok(()) };
        let tool = tools.iter().find(|tool| tool.name == skill_tool::NAME);
        let listed = tool.map(|tool| tool.description.clone()).unwrap_or_default();
        let in_view: Vec<String> = self
            .thread
            .view()
            .entries()
            .iter()
            .filter_map(|entry| match &entry.change {
                Change::Said { message, origin: Origin::Context { by } } if by == BY => Some(message.text()),
                _ => None,
            })
            .collect();
        let is_known = |name: &str| {
            let head = skill_tool::head(name);
            listed.contains(&head)
                || listed.contains("without room")
                || in_view.iter().any(|text| text.contains(&head))
        };
        let new: Vec<String> = self
            .skill_recipes()
            .filter(|recipe| !is_known(&recipe.id))
            .map(skill)
            .map(|(skill, path)| match tool.is_some() {
                true => skill_tool::line(&skill),
                false => format!("{} ({path})", skill_tool::line(&skill)),
            })
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let how = match tool.is_some() {
            true => "the tool skill gives their instructions",
            false => "read the file to have their instructions",
        };
        let words = format!("There are skills that you were not told of; {how}:\n{}", new.join("\n"));
        let said = self.context(BY.to_owned(), words);
        self.commit(said).map(|_| ()).map_err(|error| error.to_string())
    }

    /// The skills that the model may use by itself, with their files.
    fn skills(&self) -> Vec<(Skill, String)> {
        self.skill_recipes().map(skill).collect()
    }

    fn skill_recipes(&self) -> impl Iterator<Item = &Arc<Recipe>> {
        let is_skill = |recipe: &&Arc<Recipe>| {
            recipe.callable_by.agent
                && recipe.source.path().file_name().is_some_and(|name| name == Path::new(FILE))
        };
        self.catalog.recipes.iter().filter(is_skill)
    }
}

/// A recipe as a skill, with its file.
fn skill(recipe: &Arc<Recipe>) -> (Skill, String) {
    let (name, about, text) = (recipe.id.clone(), recipe.description.clone(), recipe.body.clone());
    (Skill { name, about, text }, recipe.source.path().display().to_string())
}
