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

use super::fault::{Fault, Kind};
use super::params::{Environment, Nothing, read};
use super::tray::{Next, Tray};
use super::visit::fresh_tickets;
use super::wire::{Caller, stopped};
use super::{NAMED_ONCE, Reply, Table, caller, json_of};
use crate::Daemon;
use crate::build::Build;
use epitome_session::registry::Overrides;
use epitome_session::{
    AskId, Attachment, ClientId, Decision, McpServer, Opening, Out, Replay, Reply as Answered,
    SessionCommand, SessionError, Shows, Ticket,
};
use epitome_thread::{Content, SessionId};

/// Number of tickets that one connection may use.
const TICKETS_MAX: u64 = 1 << 20;

/// Time limit for sending the remaining events to clients when the daemon stops.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(500);

/// State of a connection that has sessions of its own.
pub struct Port {
    pub(super) tray: Arc<Tray>,
    /// Added to the connection's tickets, so that no two clients of the daemon share one.
    base: u64,
}

impl Default for Port {
    fn default() -> Port {
        Port { tray: Arc::default(), base: fresh_tickets(TICKETS_MAX).0 }
    }
}

impl Port {
    fn ticket(&self, theirs: Ticket) -> Result<Ticket, Fault> {
        match theirs.0 < TICKETS_MAX {
            true => Ok(Ticket(self.base + theirs.0)),
            false => Err(Fault::new(Kind::InvalidParams, format!("a ticket is below {TICKETS_MAX}"))),
        }
    }

    /// Translates an event's ticket back to the client's own number.
    fn shown(&self, out: Out) -> Out {
        match out {
            Out::Answer { ticket, answer } => {
                Out::Answer { ticket: Ticket(ticket.0.saturating_sub(self.base)), answer }
            }
            other => other,
        }
    }
}

/// One item of `port.events`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Event {
    pub session: SessionId,
    pub out: Out,
}

/// An [`Opening`] without its client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Brought {
    pub cwd: PathBuf,
    pub directories: Vec<PathBuf>,
    pub mcp_servers: Vec<McpServer>,
    pub environment: Environment,
    pub overrides: Overrides,
    /// Kinds of questions that the client can show.
    pub shows: Shows,
}

impl Brought {
    pub fn of(opening: &Opening) -> Brought {
        Brought {
            cwd: opening.cwd.clone(),
            directories: opening.directories.clone(),
            mcp_servers: opening.mcp_servers.clone(),
            environment: Environment(opening.environment.to_vec()),
            overrides: (*opening.overrides).clone(),
            shows: opening.attachment.outlet.shows(),
        }
    }

    fn opening(self, caller: &Caller) -> Opening {
        caller.port.tray.set_shows(self.shows);
        Opening {
            attachment: Attachment { client: caller.client, outlet: caller.port.tray.clone() },
            cwd: self.cwd,
            directories: self.directories,
            mcp_servers: self.mcp_servers,
            environment: self.environment.shared(),
            overrides: Arc::new(self.overrides),
        }
    }
}

/// Commands that can be sent over the control API; their client is the connection.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Sent {
    Prompt { ticket: Ticket, content: Vec<Content> },
    Steer { ticket: Ticket, content: Vec<Content> },
    Cancel,
    CancelPrompt { ticket: Ticket },
    SetMode { ticket: Ticket, mode: String },
    SetOption { ticket: Ticket, option: String, value: String },
    Decide { ask: AskId, decision: Decision },
    Absent { ask: AskId },
    Answer { ask: AskId, reply: Answered },
    Close { ticket: Ticket },
    Detach,
}

impl Sent {
    /// `None` for commands that clients don't send.
    pub fn of(command: SessionCommand) -> Option<Sent> {
        Some(match command {
            SessionCommand::Prompt { ticket, content, client: _ } => Sent::Prompt { ticket, content },
            SessionCommand::Steer { ticket, content, client: _ } => Sent::Steer { ticket, content },
            SessionCommand::Cancel => Sent::Cancel,
            SessionCommand::CancelPrompt { ticket } => Sent::CancelPrompt { ticket },
            SessionCommand::SetMode { ticket, mode, client: _ } => Sent::SetMode { ticket, mode },
            SessionCommand::SetOption { ticket, option, value, client: _ } => {
                Sent::SetOption { ticket, option, value }
            }
            SessionCommand::Decide { ask, decision } => Sent::Decide { ask, decision },
            SessionCommand::Absent { ask, client: _ } => Sent::Absent { ask },
            SessionCommand::Answer { ask, reply } => Sent::Answer { ask, reply },
            SessionCommand::Close { ticket, client: _ } => Sent::Close { ticket },
            SessionCommand::Detach { client: _ } => Sent::Detach,
            // Only editors have open buffers, and they use a different channel.
            SessionCommand::Fulfil { .. }
            | SessionCommand::Attach { .. }
            // Subagents are not shown to clients of the control API.
            | SessionCommand::CancelAgent { .. }
            | SessionCommand::Watch(_)
            | SessionCommand::Unwatch { .. }
            | SessionCommand::End
            | SessionCommand::RecipesChanged
            | SessionCommand::HooksChanged
            | SessionCommand::Mutate { .. } => return None,
        })
    }

    /// The ticket that the command's answer carries.
    pub fn ticket(&self) -> Option<Ticket> {
        match self {
            Sent::Prompt { ticket, .. }
            | Sent::Steer { ticket, .. }
            | Sent::SetMode { ticket, .. }
            | Sent::SetOption { ticket, .. }
            | Sent::Close { ticket } => Some(*ticket),
            Sent::Cancel
            | Sent::CancelPrompt { .. }
            | Sent::Decide { .. }
            | Sent::Absent { .. }
            | Sent::Answer { .. }
            | Sent::Detach => None,
        }
    }

    fn command(self, client: ClientId, port: &Port) -> Result<SessionCommand, Fault> {
        Ok(match self {
            Sent::Prompt { ticket, content } => {
                SessionCommand::Prompt { ticket: port.ticket(ticket)?, client, content }
            }
            Sent::Steer { ticket, content } => {
                SessionCommand::Steer { ticket: port.ticket(ticket)?, client, content }
            }
            Sent::Cancel => SessionCommand::Cancel,
            Sent::CancelPrompt { ticket } => SessionCommand::CancelPrompt { ticket: port.ticket(ticket)? },
            Sent::SetMode { ticket, mode } => {
                SessionCommand::SetMode { ticket: port.ticket(ticket)?, client, mode }
            }
            Sent::SetOption { ticket, option, value } => {
                SessionCommand::SetOption { ticket: port.ticket(ticket)?, client, option, value }
            }
            Sent::Decide { ask, decision } => SessionCommand::Decide { ask, decision },
            Sent::Absent { ask } => SessionCommand::Absent { ask, client },
            Sent::Answer { ask, reply } => SessionCommand::Answer { ask, reply },
            Sent::Close { ticket } => SessionCommand::Close { ticket: port.ticket(ticket)?, client },
            Sent::Detach => SessionCommand::Detach { client },
        })
    }
}

pub(super) fn register(table: &mut Table) {
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
pub struct Create {
    pub ticket: Ticket,
    pub opening: Brought,
}

async fn create(daemon: Arc<Daemon>, params: Create, caller: Caller) -> Reply {
    let ticket = caller.port.ticket(params.ticket)?;
    Ok(json!(daemon.sessions.create(ticket, params.opening.opening(&caller))))
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    pub ticket: Ticket,
    pub session: SessionId,
    pub opening: Brought,
    pub replay: Replay,
}

async fn attach(daemon: Arc<Daemon>, params: Attach, caller: Caller) -> Reply {
    let ticket = caller.port.ticket(params.ticket)?;
    daemon.sessions.attach(ticket, params.session, params.opening.opening(&caller), params.replay);
    Ok(Value::Null)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Send {
    pub session: SessionId,
    pub command: Sent,
}

/// Sends a command. A rejected command is returned as the session's own error.
async fn send(daemon: Arc<Daemon>, params: Send, caller: Caller) -> Reply {
    let command = params.command.command(caller.client, &caller.port)?;
    let sent: Result<(), SessionError> = daemon.sessions.send(&params.session, command);
    json_of(&sent)
}

fn list(daemon: &Arc<Daemon>, _: Nothing) -> Reply {
    json_of(&daemon.sessions.list(None)?)
}

async fn detach(daemon: Arc<Daemon>, _: Nothing, caller: Caller) -> Reply {
    daemon.sessions.detach(caller.client);
    Ok(Value::Null)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Events {
    pub build: Build,
}

async fn events(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    daemon: Arc<Daemon>,
    extensions: Extensions,
) {
    let begun = read::<Events>("port.events", params.as_str()).and_then(|params| match params.build {
        same if same.is(Build::own()) => caller(&extensions),
        other => Err(Fault::of_builds(Build::own(), &other)),
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
            next = caller.port.tray.next() => next,
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
        let Next::Item(session, out) = next else { return };
        let event = Event { session, out: caller.port.shown(out) };
        let Ok(event) = to_json_raw_value(&event) else { return };
        if sink.send(event).await.is_err() {
            return;
        }
    }
}
