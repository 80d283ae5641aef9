//! All sessions of this process: creating, attaching, routing, listing, deleting.

use std::path::Path;

use super::{ClientId, Opening, Replay, SessionCommand, SessionError, Ticket};
pub use crate::store::Header;
use crate::thread::SessionId;

/// A cheap handle on every session of the process.
#[derive(Clone)]
pub struct Sessions {}

impl Sessions {
    /// Makes a session. Its answer, `Answer::Attached`, comes out of the opening's outlet.
    pub fn create(&self, _ticket: Ticket, _opening: Opening) -> SessionId {
        unimplemented!()
    }

    /// Attaches a client to a session, live or from its log. Commands sent after this are in order
    /// behind it. The answer comes out of the opening's outlet.
    pub fn attach(&self, _ticket: Ticket, _session: SessionId, _opening: Opening, _replay: Replay) {
        unimplemented!()
    }

    /// Passes a command on. An error here means that the command's ticket gets no other answer.
    pub fn send(&self, _session: &SessionId, _command: SessionCommand) -> Result<(), SessionError> {
        unimplemented!()
    }

    /// Sessions that have a prompt, newest first. Reads the disk.
    pub fn list(&self, _cwd: Option<&Path>) -> Result<Vec<Header>, SessionError> {
        unimplemented!()
    }

    /// Ends the session, if it lives, and removes it. Unknown ones are no error. Reads the disk.
    pub fn delete(&self, _session: &SessionId) -> Result<(), SessionError> {
        unimplemented!()
    }

    /// A client's connection is gone.
    pub fn detach(&self, _client: ClientId) {
        unimplemented!()
    }

    /// Waits until every turn that was running has ended and its entries are written. Used on exit.
    pub async fn settled(&self) {
        unimplemented!()
    }
}
