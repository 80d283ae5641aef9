//! Skills that the model may use: listed in the tool's description at the first model call, which is frozen then, and
//! told behind it where they come later. Nothing of them runs here.

use std::path::Path;
use std::sync::Arc;

use super::core::Core;
use super::recipe_catalog::SessionRecipes;
use super::reminders::{ReminderText, Topic, text_by};
use epitome_recipe::parse::Recipe;
use epitome_tools::skill_tool::{self, Skill, SkillTool};

/// Whose words they are that tell of later skills.
const BY: &str = "skills";

/// The file that makes a folder a skill.
const FILE: &str = "SKILL.md";

/// Messages about skills that a thread may have: folders that change all the time must not fill it.
const TOLD_MAX: usize = 20;

impl SessionRecipes {
    /// Puts the skills of a catalog that was read into the toolbox. What a child has is its parent's.
    pub(super) fn offer_skills(&self, core: &mut Core) {
        let skills = self.skills();
        let has_tool = core.services.toolbox.get(skill_tool::NAME).is_some();
        if !core.lineage.is_child() && (has_tool || !skills.is_empty()) {
            let skills = skills.into_iter().map(|(skill, _)| skill).collect();
            core.services.toolbox = core.services.toolbox.renewed(Arc::new(SkillTool::new(skills)));
        }
    }

    /// Skills that the frame does not name, for the model to know.
    pub(super) fn late_skills(&self, core: &Core) -> Option<Topic> {
        let said = core.thread.entries().iter().filter(|entry| text_by(BY, &entry.change).is_some());
        if core.lineage.is_child() || said.count() >= TOLD_MAX {
            return None;
        }
        let (_, tools) = core.thread.frame()?;
        let tool = tools.iter().find(|tool| tool.name == skill_tool::NAME);
        let listed = tool.map(|tool| tool.description.as_str()).unwrap_or_default();
        if listed.contains("without room") {
            return None;
        }
        let late = self.skills().into_iter().map(|(skill, path)| {
            let line = match tool.is_some() {
                true => skill_tool::line(&skill),
                false => format!("{} ({path})", skill_tool::line(&skill)),
            };
            (skill_tool::head(&skill.name), line)
        });
        let how = match tool.is_some() {
            true => "the tool skill gives their instructions",
            false => "read the file for their instructions",
        };
        let head = format!("More skills are available; {how}:");
        let lines = late.filter(|(head, _)| !listed.contains(head)).collect();
        Some(Topic { by: BY, what: ReminderText::Lines { head, lines } })
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
        self.catalog().recipes.iter().filter(is_skill)
    }
}

/// A recipe as a skill, with its file.
fn skill(recipe: &Arc<Recipe>) -> (Skill, String) {
    let (name, about, text) = (recipe.id.clone(), recipe.description.clone(), recipe.body.clone());
    (Skill { name, about, text }, recipe.source.path().display().to_string())
}
