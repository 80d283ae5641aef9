//! The sessions of this process, as the connections of clients use them.

use std::sync::Arc;

use super::Sessions;
use crate::port::{OptionsQuery, SessionPort, SessionStatus, StoredSessionPort};
use crate::{
    Attachment, ClientId, CommandInfo, Opening, Replay, SessionCommand, SessionError, SessionOptions, Ticket,
};
use epitome_store::{Header, SessionQuery};
use epitome_thread::{Seq, SessionId};

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

    fn list(&self, query: &SessionQuery) -> Result<Vec<Header>, SessionError> {
        Sessions::list(self, query)
    }

    fn fork(&self, session: &SessionId, at: Option<Seq>) -> Result<SessionId, SessionError> {
        Sessions::fork(self, session, at)
    }

    fn detach(&self, client: ClientId) {
        Sessions::detach(self, client);
        self.unwatch(client);
    }
}

impl StoredSessionPort for Sessions {
    async fn delete(&self, session: &SessionId) -> Result<(), SessionError> {
        Sessions::delete(self, session).await
    }

    fn watch(&self, session: &SessionId, from: Seq, attachment: Attachment) -> Result<(), SessionError> {
        Sessions::watch(self, session, from, attachment)
    }

    fn status(&self, session: &SessionId) -> Result<SessionStatus, SessionError> {
        Sessions::status(self, session)
    }

    async fn set_title(&self, session: &SessionId, title: &str) -> Result<String, SessionError> {
        Sessions::set_title(self, session, title).await
    }

    async fn set_archived(&self, session: &SessionId, archived: bool) -> Result<(), SessionError> {
        Sessions::set_archived(self, session, archived).await
    }

    fn options(&self, query: &OptionsQuery) -> Result<Arc<SessionOptions>, SessionError> {
        Sessions::options(self, query)
    }

    fn commands(&self, query: &OptionsQuery) -> Arc<[CommandInfo]> {
        Sessions::commands(self, query)
    }
}
