//! The contents of a plugin as one list. Reads the plugin's files and runs nothing.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::config::plugin_servers;
use crate::hooks::claude;
use crate::hooks::claude::action::ClaudeAction;
use crate::hooks::discover::DECLARATION_BYTES_MAX;
use crate::hooks::hook::{HookKind, HookOrigin};
use crate::problem::Problem;
use crate::recipe::agents::AgentCatalog;
use crate::recipe::catalog::RecipeCatalog;
use crate::recipe::parse::Recipe;
use crate::recipe::plugins::Plugin;
use crate::recipe::render;
use crate::recipe::text_file::read_text;

/// The contents of a plugin, as text by kind.
pub struct BroughtItems {
    pub commands: Vec<String>,
    pub skills: Vec<String>,
    /// The shell lines in commands and skills.
    pub shell_lines: Vec<String>,
    pub agents: Vec<String>,
    /// Hooks with their events and command lines.
    pub hooks: Vec<String>,
    /// Servers with their commands or addresses.
    pub servers: Vec<String>,
    /// Files with instructions, which are included in every session.
    pub instructions: Vec<String>,
    /// Parts that are not used or have no effect.
    pub problems: Vec<Problem>,
}

impl BroughtItems {
    pub fn of(plugin: &Arc<Plugin>) -> BroughtItems {
        let recipes = RecipeCatalog::of_plugin(plugin);
        let agents = AgentCatalog::of_plugin(plugin);
        let mut problems = plugin.problems.clone();
        problems.extend(recipes.problems.iter().chain(&agents.problems).chain(&agents.remarks).cloned());
        let shadowed = recipes.shadowed.iter().map(|recipe| {
            Problem::new(
                recipe.source.path(),
                format!("it is not used: {} has the same name", recipe.by.path().display()),
            )
        });
        problems.extend(shadowed);
        let names = |of_skills: bool| {
            let recipes = recipes.recipes.iter().filter(move |recipe| recipe.is_skill() == of_skills);
            recipes.map(|recipe| format!("/{}", recipe.id)).collect()
        };
        let lines = |recipe: &Arc<Recipe>| -> Vec<String> {
            render::shell_calls(recipe).into_iter().map(|call| format!("/{}: {call}", recipe.id)).collect()
        };
        let mut servers = Vec::new();
        problems.extend(plugin_servers::of_plugin(plugin, &mut servers));
        let hooks = plugin.hooks.iter().flat_map(|path| hooks(path, plugin, &mut problems)).collect();
        // A plugin is read from a scratch directory before it is installed.
        let below = |path: &Path| path.strip_prefix(&plugin.folders.root).unwrap_or(path).to_path_buf();
        problems.iter_mut().for_each(|problem| problem.path = below(&problem.path));
        BroughtItems {
            commands: names(false),
            skills: names(true),
            shell_lines: recipes.recipes.iter().flat_map(lines).collect(),
            agents: agents.agents.iter().map(|agent| agent.name.clone()).collect(),
            hooks,
            servers: servers
                .iter()
                .map(|server| format!("{}: {}:\n{}", server.name, server.description(), server.runs()))
                .collect(),
            instructions: plugin.context.iter().map(|path| below(path).display().to_string()).collect(),
            problems,
        }
    }

    fn parts(&self) -> [(&'static str, &Vec<String>); 7] {
        [
            ("commands", &self.commands),
            ("skills", &self.skills),
            ("shell lines", &self.shell_lines),
            ("agents", &self.agents),
            ("hooks", &self.hooks),
            ("MCP servers", &self.servers),
            ("instructions", &self.instructions),
        ]
    }

    /// The number of items by kind: `3 commands, 1 hooks`.
    pub fn counts(&self) -> String {
        let parts = self.parts().into_iter().filter(|(_, items)| !items.is_empty());
        let counts: Vec<String> = parts.map(|(what, items)| format!("{what}: {}", items.len())).collect();
        if counts.is_empty() { "nothing that is used here".to_owned() } else { counts.join(", ") }
    }

    /// Formats all items by kind, then the problems.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (what, items) in self.parts().into_iter().filter(|(_, items)| !items.is_empty()) {
            let _ = writeln!(text, "{what}:");
            // Further lines of an item are indented, so that they can't look like another one.
            items.iter().for_each(|item| text.push_str(&format!("  {}\n", item.replace('\n', "\n      "))));
        }
        if !self.problems.is_empty() {
            text.push_str("problems:\n");
            self.problems.iter().for_each(|problem| text.push_str(&format!("  {problem}\n")));
        }
        if text.is_empty() { "  nothing that is used here\n".to_owned() } else { text }
    }

    pub fn to_json(&self) -> Value {
        let problems: Vec<Value> = self.problems.iter().map(Problem::to_json).collect();
        json!({
            "commands": self.commands, "skills": self.skills, "shell_lines": self.shell_lines,
            "agents": self.agents, "hooks": self.hooks,
            "servers": self.servers, "instructions": self.instructions, "problems": problems,
        })
    }
}

fn hooks(path: &Path, plugin: &Plugin, problems: &mut Vec<Problem>) -> Vec<String> {
    let text = match read_text(path, "a declaration of hooks", DECLARATION_BYTES_MAX) {
        Ok(text) => text,
        Err(why) => {
            problems.push(Problem::new(path, why.to_string()));
            return Vec::new();
        }
    };
    let (hooks, found) = claude::parse_of(path, &text, HookOrigin::User, &plugin.folders.root, Some(plugin));
    problems.extend(found);
    let line = |hook: &crate::hooks::hook::Hook| {
        let HookKind::Claude { line, matcher, options, .. } = &hook.kind else { return None };
        let events: Vec<&str> = hook.events.iter().map(|(_, name)| name.as_str()).collect();
        let matcher = if matcher.is_empty() { String::new() } else { format!("[{matcher}]") };
        let verb = match options.action {
            ClaudeAction::Command => String::new(),
            ClaudeAction::Prompt { .. } | ClaudeAction::Post { .. } => format!("{} ", options.action.verb()),
        };
        Some(format!("{}{matcher}: {verb}{line}", events.join(", ")))
    };
    hooks.iter().filter_map(line).collect()
}
