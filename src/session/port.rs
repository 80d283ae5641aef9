//! What a client's connection needs of the sessions, as a trait, so that routing can be tested
//! without any.

use std::path::Path;

use super::registry::{Header, Sessions};
use super::{ClientId, Opening, Replay, SessionCommand, SessionError, Ticket};
use epitome_thread::{Seq, SessionId};

/// The sessions as a connection sees them. `Sessions` tells what each promises.
pub trait SessionPort: Clone + Send + Sync + 'static {
    fn create(&self, ticket: Ticket, opening: Opening) -> SessionId;
    fn attach(&self, ticket: Ticket, session: SessionId, opening: Opening, replay: Replay);
    fn send(&self, session: &SessionId, command: SessionCommand) -> Result<(), SessionError>;
    fn list(&self, cwd: Option<&Path>) -> Result<Vec<Header>, SessionError>;
    fn delete(&self, session: &SessionId) -> Result<(), SessionError>;
    /// Makes a session that goes on from another, up to and with an entry or as it is now.
    fn fork(&self, session: &SessionId, at: Option<Seq>) -> Result<SessionId, SessionError>;
    fn detach(&self, client: ClientId);
}

impl SessionPort for Sessions {
    fn create(&self, ticket: Ticket, opening: Opening) -> SessionId {
        Sessions::create(self, ticket, opening)
    }

    fn attach(&self, ticket: Ticket, session: SessionId, opening: Opening, replay: Replay) {
        Sessions::attach(self, ticket, session, opening, replay)
    }

    fn send(&self, session: &SessionId, command: SessionCommand) -> Result<(), SessionError> {
        Sessions::send(self, session, command)
    }

    fn list(&self, cwd: Option<&Path>) -> Result<Vec<Header>, SessionError> {
        Sessions::list(self, cwd)
    }

    fn delete(&self, session: &SessionId) -> Result<(), SessionError> {
        Sessions::delete(self, session)
    }

    fn fork(&self, session: &SessionId, at: Option<Seq>) -> Result<SessionId, SessionError> {
        Sessions::fork(self, session, at)
    }

    fn detach(&self, client: ClientId) {
        Sessions::detach(self, client)
    }
}
