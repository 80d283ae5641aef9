//! The sessions as a client's connection needs them, as traits, so that routing can be tested without sessions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use super::{
    Attachment, ClientId, CommandInfo, Foreground, Opening, Overrides, Replay, SessionCommand, SessionError,
    SessionOptions, Ticket,
};
pub use epitome_store::{Header, SessionQuery};
use epitome_thread::{Seq, SessionId};

/// The sessions from a connection's point of view. The methods are documented at `Sessions`.
pub trait SessionPort: Clone + Send + Sync + 'static {
    fn create(&self, ticket: Ticket, opening: Opening) -> SessionId;
    fn attach(&self, ticket: Ticket, session: SessionId, opening: Opening, replay: Replay);
    fn send(&self, session: &SessionId, command: SessionCommand) -> Result<(), SessionError>;
    fn list(&self, query: &SessionQuery) -> Result<Vec<Header>, SessionError>;
    /// Creates a session from a copy of another's log, up to and including the entry `at`, or all of it, to which this
    /// client may then attach.
    fn fork(
        &self,
        session: &SessionId,
        at: Option<Seq>,
        opening: &Opening,
    ) -> Result<SessionId, SessionError>;
    fn detach(&self, client: ClientId);
}

/// Inspects and changes sessions without opening them. Methods that return no future block on the disk.
pub trait StoredSessionPort: SessionPort {
    fn delete(&self, session: &SessionId) -> impl Future<Output = Result<(), SessionError>> + Send;
    fn status(&self, session: &SessionId) -> Result<SessionStatus, SessionError>;
    /// Follows a session without opening it. `SessionPort::detach` ends that.
    fn watch(&self, session: &SessionId, from: Seq, attachment: Attachment) -> Result<(), SessionError>;
    fn set_title(
        &self,
        session: &SessionId,
        title: &str,
    ) -> impl Future<Output = Result<String, SessionError>> + Send;
    fn set_archived(
        &self,
        session: &SessionId,
        archived: bool,
    ) -> impl Future<Output = Result<(), SessionError>> + Send;
    fn options(&self, query: &OptionsQuery) -> Result<Arc<SessionOptions>, SessionError>;
    /// The slash commands of such a session, without those of MCP servers.
    fn commands(&self, query: &OptionsQuery) -> Arc<[CommandInfo]>;
}

/// Whether a session is in use.
#[derive(Clone, Debug, PartialEq)]
pub enum SessionStatus {
    /// This process has it open, for any client.
    Open(Foreground),
    /// It is only stored.
    Saved,
}

/// Asks for the options of a stored session, or of a new one in a directory.
#[derive(Clone, Debug)]
pub struct OptionsQuery {
    pub session: Option<SessionId>,
    pub cwd: PathBuf,
    pub environment: Arc<Vec<(OsString, OsString)>>,
    pub overrides: Arc<Overrides>,
}
