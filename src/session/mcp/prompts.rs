//! Prompts of MCP servers as slash commands of a session.

use super::super::actor::Session;
use super::super::recipes::Rendering;
use super::super::services::ServiceCall;
use super::super::work::QueuedPrompt;
use super::super::{CommandInfo, SessionError, SessionEvent, Ticket};
use super::McpHost;
use epitome_mcp::McpEvent;
use epitome_recipe::command;
use epitome_thread::{Change, Content, Message, Origin};

impl McpHost {
    fn prompt_commands(&self) -> Vec<CommandInfo> {
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

    /// Whether a server has a prompt with this command name.
    pub fn has_prompt(&self, name: &str) -> bool {
        self.hub.as_ref().is_some_and(|hub| hub.prompt_call(name, "").is_some())
    }
}

/// Handles an event of a server, and announces changed prompts.
pub(in super::super) fn server_event(session: &mut Session, event: McpEvent) {
    if let McpEvent::ModelWanted { server, params, answer } = event {
        return session.serve(ServiceCall::of_model(format!("MCP server {server}"), params, answer));
    }
    session.mcp.handle_event(&mut session.core, event);
    list_prompts(session);
}

/// Announces the commands again if the servers' prompts have changed.
pub(in super::super) fn list_prompts(session: &mut Session) {
    let is_changed = session.recipes.set_prompts(session.mcp.prompt_commands());
    if is_changed && session.recipes.are_read() {
        session.core.announce(&SessionEvent::Commands(session.recipes.command_list()));
    }
}

/// Fetches the typed MCP prompt in the background; the session's prompts wait for it as for a recipe. Returns the
/// prompt if it does not name one.
pub(in super::super) fn fetch_prompt(
    session: &mut Session,
    prompt: QueuedPrompt,
    typed: &str,
) -> Option<QueuedPrompt> {
    let call = command::parse(typed)
        .filter(|typed| session.recipes.catalog().find(typed.name).is_none())
        .and_then(|typed| session.mcp.hub.as_ref()?.prompt_call(typed.name, typed.rest));
    let call = match call {
        Some(Ok(call)) => call,
        Some(Err(usage)) => {
            prompt.responder.answer(Err(SessionError::Invalid(usage.into())));
            return None;
        }
        None => return Some(prompt),
    };
    let ticket = prompt.responder.ticket;
    let job = session.core.start(
        async move { call.fetch().await.map_err(String::from) },
        move |session, fetched| {
            prompt_fetched(session, ticket, fetched);
        },
    );
    session.recipes.render(Rendering { prompt, job });
    None
}

/// Fetches the MCP resources that a prompt names, in the background. Returns the prompt if it names none.
pub(in super::super) fn fetch_resources(session: &mut Session, prompt: QueuedPrompt) -> Option<QueuedPrompt> {
    let Some(attached) = session.mcp.hub.as_ref().and_then(|hub| hub.attached(&prompt.content)) else {
        return Some(prompt);
    };
    let ticket = prompt.responder.ticket;
    let job = session.core.start(async move { attached.fetch().await }, move |session, content| {
        if let Some(Rendering { prompt, job: _ }) = session.recipes.take_rendered(ticket) {
            session.begin(QueuedPrompt { content, ..prompt });
        }
    });
    session.recipes.render(Rendering { prompt, job });
    None
}

/// Begins the turn of a fetched MCP prompt.
fn prompt_fetched(session: &mut Session, ticket: Ticket, fetched: Result<Vec<Content>, String>) {
    let Some(Rendering { prompt, job: _ }) = session.recipes.take_rendered(ticket) else { return };
    let found = session.command_in(&prompt.content).map(|(at, typed)| (at, typed.to_owned()));
    let (mut content, (at, typed)) = match (fetched, found) {
        (Ok(content), Some(found)) => (content, found),
        (Err(why), _) => return prompt.responder.answer(Err(SessionError::Invalid(why))),
        (Ok(_), None) => {
            let gone = "the server no longer has this prompt; send it again".to_owned();
            return prompt.responder.answer(Err(SessionError::Invalid(gone)));
        }
    };
    // Other attachments of the user's prompt are sent too.
    content
        .extend(prompt.content.into_iter().enumerate().filter(|(part, _)| *part != at).map(|(_, part)| part));
    let recipe = command::parse(&typed).map(|typed| typed.name.to_owned()).unwrap_or_default();
    let message = Message { id: session.core.fresh_message(), content, author: None };
    let said = Change::Said { message, origin: Origin::Recipe { recipe, typed } };
    session.begin_said(said, prompt.responder, session.core.settings.max_rounds);
}
