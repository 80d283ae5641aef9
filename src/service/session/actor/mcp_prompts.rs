//! Prompts and resources of MCP servers that a user's prompt names.

use super::Session;
use crate::background::BackgroundResult;
use crate::hook_host::calls::ServiceCall;
use crate::recipes::Rendering;
use crate::responder::QueuedPrompt;
use crate::{SessionError, SessionEvent, Ticket};
use epitome_mcp::McpEvent;
use epitome_recipe::command;
use epitome_thread::{Change, Content, Message, Origin};
use epitome_tools::ToolError;

impl Session {
    /// Handles an event of a server, and announces changed prompts.
    pub(super) fn handle_server_event(&mut self, event: McpEvent) {
        if let McpEvent::ModelWanted { server, params, answer } = event {
            return self.serve(ServiceCall::of_model(format!("MCP server {server}"), params, answer));
        }
        self.mcp.handle_event(&mut self.core, event);
        self.list_mcp_prompts();
    }

    /// Announces the commands again if the servers' prompts have changed.
    pub(super) fn list_mcp_prompts(&mut self) {
        let is_changed = self.recipes.set_prompts(self.mcp.prompt_commands());
        if is_changed && self.recipes.are_read() {
            self.core.announce(&SessionEvent::Commands(self.recipes.command_list()));
        }
    }

    /// Fetches the typed MCP prompt in the background; the session's prompts wait for it as for a recipe. Returns the
    /// prompt if it does not name one.
    pub(super) fn fetch_mcp_prompt(&mut self, prompt: QueuedPrompt, typed: &str) -> Option<QueuedPrompt> {
        let call = command::parse(typed)
            .filter(|typed| self.recipes.catalog().find(typed.name).is_none())
            .and_then(|typed| self.mcp.prompt_call(typed.name, typed.rest));
        let call = match call {
            Some(Ok(call)) => call,
            Some(Err(usage)) => {
                prompt.responder.answer(Err(SessionError::Invalid(usage.into())));
                return None;
            }
            None => return Some(prompt),
        };
        let ticket = prompt.responder.ticket;
        let job = self.core.start(async move { call.fetch().await }, move |fetched| {
            BackgroundResult::PromptFetched { ticket, fetched }
        });
        self.recipes.render(Rendering { prompt, job });
        None
    }

    /// Fetches the MCP resources that a prompt names, in the background. Returns the prompt if it names none.
    pub(super) fn fetch_mcp_resources(&mut self, prompt: QueuedPrompt) -> Option<QueuedPrompt> {
        let Some(attached) = self.mcp.attached(&prompt.content) else {
            return Some(prompt);
        };
        let ticket = prompt.responder.ticket;
        let job = self.core.start(async move { attached.fetch().await }, move |content| {
            BackgroundResult::ResourcesFetched { ticket, content }
        });
        self.recipes.render(Rendering { prompt, job });
        None
    }

    /// Begins the prompt whose resources were fetched, unless it was cancelled meanwhile.
    pub(super) fn mcp_resources_fetched(&mut self, ticket: Ticket, content: Vec<Content>) {
        if let Some(Rendering { prompt, job: _ }) = self.recipes.take_rendered(ticket) {
            self.begin(QueuedPrompt { content, ..prompt });
        }
    }

    /// Begins the turn of a fetched MCP prompt.
    pub(super) fn mcp_prompt_fetched(&mut self, ticket: Ticket, fetched: Result<Vec<Content>, ToolError>) {
        let Some(Rendering { prompt, job: _ }) = self.recipes.take_rendered(ticket) else { return };
        let found = self.command_in(&prompt.content).map(|(at, typed)| (at, typed.to_owned()));
        let (mut content, (at, typed)) = match (fetched, found) {
            (Ok(content), Some(found)) => (content, found),
            (Err(why), _) => return prompt.responder.answer(Err(SessionError::Invalid(why.into()))),
            (Ok(_), None) => {
                let gone = "the server no longer has this prompt; send it again".to_owned();
                return prompt.responder.answer(Err(SessionError::Invalid(gone)));
            }
        };
        // Other attachments of the user's prompt are sent too.
        content.extend(
            prompt.content.into_iter().enumerate().filter(|(part, _)| *part != at).map(|(_, part)| part),
        );
        let recipe = command::parse(&typed).map(|typed| typed.name.to_owned()).unwrap_or_default();
        let message = Message { id: self.core.fresh_message(), content, author: None };
        let said = Change::Said { message, origin: Origin::Recipe { recipe, typed } };
        self.begin_prompt(said, prompt.responder, self.core.settings.max_rounds);
    }
}
