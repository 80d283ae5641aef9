//! Prompts of MCP servers as slash commands of a session.

use super::McpHost;
use crate::CommandInfo;
use epitome_mcp::{AttachedResources, PromptCall};
use epitome_thread::Content;
use epitome_tools::ToolError;

impl McpHost {
    pub fn prompt_commands(&self) -> Vec<CommandInfo> {
        let commands = self.hub.iter().flat_map(|hub| hub.prompt_commands());
        commands
            .map(|prompt| CommandInfo {
                name: prompt.name,
                description: prompt.description,
                hint: prompt.hint,
                skill: None,
            })
            .collect()
    }

    /// A call of the server's prompt with this command name, or how it is used; `None` if there is none.
    pub fn prompt_call(&self, name: &str, rest: &str) -> Option<Result<PromptCall, ToolError>> {
        self.hub.as_ref()?.prompt_call(name, rest)
    }

    /// The servers' resources that a prompt names; `None` if it names none.
    pub fn attached(&self, content: &[Content]) -> Option<AttachedResources> {
        self.hub.as_ref()?.attached(content)
    }

    /// Whether a server has a prompt with this command name.
    pub fn has_prompt(&self, name: &str) -> bool {
        self.hub.as_ref().is_some_and(|hub| hub.prompt_call(name, "").is_some())
    }
}
