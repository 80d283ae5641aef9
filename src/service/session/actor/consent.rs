//! The user's consent to programs of a repository, as prompts wait for it.

use super::Session;
use crate::{AskId, UserDecision};
use epitome_recipe::render::ShellOutputs;

impl Session {
    /// Whether prompts must wait because hooks are being discovered or the user is being asked about them.
    pub(super) fn waits_for_hooks(&mut self) -> bool {
        if self.work.is_some() || !self.inbox.has_prompts() || self.core.lineage.is_child() {
            return false;
        }
        if !self.hooks.is_read() || self.hooks.open_consent().is_some() {
            return true;
        }
        // Built-in commands run no programs of the repository.
        if self.inbox.first().is_some_and(|prompt| self.is_built_in(prompt)) {
            return false;
        }
        let hooks = self.hooks.untrusted();
        if !hooks.is_empty() {
            return self.hooks.ask_consent(&self.core, hooks, "hooks", None);
        }
        let mut servers = self.mcp.untrusted(&self.hooks);
        servers.retain(|server| !self.hooks.was_asked_about(&server.item));
        if !servers.is_empty() {
            return self.hooks.ask_consent(&self.core, servers, "MCP servers", None);
        }
        self.mcp.waits(&mut self.core)
    }

    /// Applies the user's decision; `false` if it answers another question.
    pub(super) fn consented(&mut self, ask: AskId, decision: &UserDecision) -> bool {
        match self.hooks.answer_consent(&self.core, ask, decision) {
            Some((Some(prompt), _)) => {
                // From now on, the model may use the skill and its commands.
                let masker = self.tools.masker(&self.core);
                self.recipes.offer_skills(&mut self.core, &self.hooks, masker);
                self.begin_command(prompt, ShellOutputs::new());
            }
            Some((None, true)) => self.hooks.load(&mut self.core, self.inbox.sender()),
            Some((None, false)) => {}
            None => return false,
        }
        true
    }
}
