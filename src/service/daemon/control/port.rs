//! Sessions as used by another process of the same user: offers over the control API what an editor's
//! connection does inside the daemon. `epitome run` is such a client. These methods are not for scripts: they
//! change with the program, and the client must be the same build as the daemon.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jsonrpsee::core::to_json_raw_value;
use jsonrpsee::{Extensions, PendingSubscriptionSink};
use jsonrpsee_types::Params;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::fault::{Fault, FaultKind};
use super::params::{EnvironmentObject, NoParams, read};
use super::queue::{ClientQueue, QueuedEvent};
use super::temporary_client::fresh_tickets;
use super::wire::{Caller, stopped};
use super::{MethodResult, MethodTable, NAMED_ONCE, caller, json_of};
use crate::Daemon;
use crate::build::Build;
use epitome_session::registry::{Overrides, SessionQuery};
use epitome_session::{
    Attachment, ClientId, McpServer, Opening, QuestionSupport, Replay, SessionCommand, SessionError,
    SessionEvent, Ticket,
};
use epitome_thread::{ClientInstructions, SessionId};

/// Number of tickets that one connection may use.
const TICKETS_MAX: u64 = 1 << 20;

/// Time limit for sending the remaining events to clients when the daemon stops.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(500);

/// State of a connection that owns sessions.
pub struct Port {
    pub(super) queue: Arc<ClientQueue>,
    /// Added to the connection's tickets, so that no two clients of the daemon share one.
    base: u64,
}

impl Default for Port {
    fn default() -> Port {
        Port { queue: Arc::default(), base: fresh_tickets(TICKETS_MAX).0 }
    }
}

impl Port {
    fn ticket(&self, theirs: Ticket) -> Result<Ticket, Fault> {
        match theirs.0 < TICKETS_MAX {
            true => Ok(Ticket(self.base + theirs.0)),
            false => Err(Fault::new(FaultKind::InvalidParams, format!("a ticket is below {TICKETS_MAX}"))),
        }
    }

    /// Translates an event's ticket back to the client's own number.
    fn shown(&self, out: SessionEvent) -> SessionEvent {
        match out {
            SessionEvent::Answer { ticket, answer } => {
                SessionEvent::Answer { ticket: Ticket(ticket.0.saturating_sub(self.base)), answer }
            }
            other => other,
        }
    }
}

/// One item of `port.events`.
#[derive(Debug, Serialize, Deserialize)]
pub struct PortEvent {
    pub session: SessionId,
    pub out: SessionEvent,
}

/// An [`Opening`] without its client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteOpening {
    pub cwd: PathBuf,
    pub directories: Vec<PathBuf>,
    pub mcp_servers: Vec<McpServer>,
    pub environment: EnvironmentObject,
    pub overrides: Overrides,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<ClientInstructions>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<(String, String)>,
    /// Kinds of questions that the client can show.
    pub shows: QuestionSupport,
}

impl RemoteOpening {
    pub fn new(opening: &Opening) -> RemoteOpening {
        RemoteOpening {
            cwd: opening.cwd.clone(),
            directories: opening.directories.clone(),
            mcp_servers: opening.mcp_servers.clone(),
            environment: EnvironmentObject(opening.environment.to_vec()),
            overrides: (*opening.overrides).clone(),
            instructions: opening.instructions.clone(),
            choices: opening.choices.clone(),
            shows: opening.attachment.outlet.shows(),
        }
    }

    fn opening(self, caller: &Caller) -> Opening {
        caller.port.queue.set_shows(self.shows);
        Opening {
            attachment: Attachment { client: caller.client, outlet: caller.port.queue.clone() },
            cwd: self.cwd,
            directories: self.directories,
            mcp_servers: self.mcp_servers,
            environment: self.environment.shared(),
            overrides: Arc::new(self.overrides),
            instructions: self.instructions,
            choices: self.choices,
        }
    }
}

/// The ticket and the client in a command that can be sent over the control API. Commands that are answered have
/// both.
pub fn ids_in(command: &mut SessionCommand) -> (Option<&mut Ticket>, Option<&mut ClientId>) {
    match command {
        SessionCommand::Prompt { ticket, client, .. }
        | SessionCommand::Steer { ticket, client, .. }
        | SessionCommand::SetMode { ticket, client, .. }
        | SessionCommand::SetOption { ticket, client, .. }
        | SessionCommand::Close { ticket, client } => (Some(ticket), Some(client)),
        SessionCommand::CancelPrompt { ticket } => (Some(ticket), None),
        SessionCommand::Absent { client, .. } | SessionCommand::Detach { client } => (None, Some(client)),
        SessionCommand::Cancel
        | SessionCommand::Decide { .. }
        | SessionCommand::Answer { .. }
        // These are not sent.
        | SessionCommand::Fulfil { .. }
        | SessionCommand::Attach { .. }
        | SessionCommand::CancelAgent { .. }
        | SessionCommand::CancelOne { .. }
        | SessionCommand::Watch(_)
        | SessionCommand::Unwatch { .. }
        | SessionCommand::End
        | SessionCommand::RecipesChanged
        | SessionCommand::HooksChanged
        | SessionCommand::Record { .. }
        | SessionCommand::Mutate { .. } => (None, None),
    }
}

pub(super) fn register(table: &mut MethodTable) {
    table.waiting("port.create", create);
    table.waiting("port.attach", attach);
    table.waiting("port.send", send);
    table.blocking("port.list", list);
    table.waiting("port.detach", detach);
    let events = table.module.register_subscription("port.events", "port.events", "port.end", events);
    events.expect(NAMED_ONCE);
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateParams {
    pub ticket: Ticket,
    pub opening: RemoteOpening,
}

async fn create(daemon: Arc<Daemon>, params: CreateParams, caller: Caller) -> MethodResult {
    let ticket = caller.port.ticket(params.ticket)?;
    Ok(json!(daemon.sessions.create(ticket, params.opening.opening(&caller))))
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachParams {
    pub ticket: Ticket,
    pub session: SessionId,
    pub opening: RemoteOpening,
    pub replay: Replay,
}

async fn attach(daemon: Arc<Daemon>, params: AttachParams, caller: Caller) -> MethodResult {
    let ticket = caller.port.ticket(params.ticket)?;
    daemon.sessions.attach(ticket, params.session, params.opening.opening(&caller), params.replay);
    Ok(Value::Null)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendParams {
    pub session: SessionId,
    pub command: SessionCommand,
}

/// Sends a command as the caller's. A rejected command is returned as the session's own error.
async fn send(daemon: Arc<Daemon>, mut params: SendParams, caller: Caller) -> MethodResult {
    let (ticket, client) = ids_in(&mut params.command);
    if let Some(ticket) = ticket {
        *ticket = caller.port.ticket(*ticket)?;
    }
    if let Some(client) = client {
        *client = caller.client;
    }
    let sent: Result<(), SessionError> = daemon.sessions.send(&params.session, params.command);
    json_of(&sent)
}

fn list(daemon: &Arc<Daemon>, _: NoParams) -> MethodResult {
    json_of(&daemon.sessions.list(&SessionQuery { has_prompt: true, ..SessionQuery::default() })?)
}

async fn detach(daemon: Arc<Daemon>, _: NoParams, caller: Caller) -> MethodResult {
    daemon.sessions.detach(caller.client);
    Ok(Value::Null)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsParams {
    pub build: Build,
}

async fn events(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    daemon: Arc<Daemon>,
    extensions: Extensions,
) {
    let begun = read::<EventsParams>("port.events", params.as_str()).and_then(|params| match params.build {
        same if same.is(Build::current()) => caller(&extensions),
        other => Err(Fault::incompatible_builds(Build::current(), &other)),
    });
    let caller = match begun {
        Ok(caller) => caller,
        Err(fault) => return pending.reject(fault).await,
    };
    let Ok(sink) = pending.accept().await else { return };
    let mut stop = daemon.stop.subscribe();
    let mut stopping = false;
    loop {
        let next = tokio::select! {
            next = caller.port.queue.next() => next,
            () = sink.closed() => return,
            // Running turns are cancelled, and their answers are still sent.
            () = stopped(&mut stop), if !stopping => {
                stopping = true;
                daemon.sessions.detach(caller.client);
                continue;
            }
            () = tokio::time::sleep(LAST_WORDS_WITHIN), if stopping => return,
        };
        // A client that lagged can't continue: its own answers may be among the lost items. The end of the
        // stream signals it.
        let QueuedEvent::Item(session, out) = next else { return };
        let event = PortEvent { session, out: caller.port.shown(out) };
        let Ok(event) = to_json_raw_value(&event) else { return };
        if sink.send(event).await.is_err() {
            return;
        }
    }
}
