//! Connects the page's server to a daemon: control API calls, and following sessions.

use std::sync::Arc;

use tokio::sync::watch;

use super::news::{ActivityOutlet, News};
use crate::Daemon;
use crate::attachments::{Attached, Present, fresh_client};
use crate::control::wire::{self, Caller};
use epitome_session::port::StoredSessionPort as _;
use epitome_session::{Attachment, ClientId, SessionError};
use epitome_thread::{Seq, SessionId};

/// The response to a call that is not a request, with JSON-RPC's error code for it.
const NO_REQUEST: &str =
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the call is not a JSON-RPC request"}}"#;

/// Serves the page from the daemon it runs in.
pub struct Backend {
    daemon: Arc<Daemon>,
}

impl Backend {
    pub fn new(daemon: Arc<Daemon>) -> Backend {
        Backend { daemon }
    }

    /// Answers one JSON-RPC call.
    pub async fn answer(&self, call: String) -> String {
        let answer = wire::answer(Caller::new(self.daemon.clone()), &call).await;
        answer.unwrap_or_else(|| NO_REQUEST.to_owned())
    }

    /// Follows a session from an entry on, until the result is dropped. Blocks on the disk.
    pub fn follow(&self, session: &SessionId, from: Seq) -> Result<Following, SessionError> {
        let (client, outlet) = (fresh_client(), Arc::<ActivityOutlet>::default());
        let attachment = Attachment { client, outlet: outlet.clone() };
        // Counts as an attachment, so that a daemon whose page is open is not idle. Its gauge is 0, because
        // updates are merged into one item.
        let present = self.daemon.attachments.enter(Attached::control(client, None), Box::new(|| (0, None)));
        let (daemon, news) = (self.daemon.clone(), outlet.news());
        let following = Following { news, _outlet: outlet, daemon, client, _present: present };
        self.daemon.sessions.watch(session, from, attachment)?;
        Ok(following)
    }
}

/// A session's activity, until it is dropped.
pub struct Following {
    news: watch::Receiver<News>,
    /// Keeps the sender of `news`.
    _outlet: Arc<ActivityOutlet>,
    daemon: Arc<Daemon>,
    client: ClientId,
    _present: Present,
}

impl Following {
    /// Waits for a change and returns the complete state.
    pub async fn next(&mut self) -> News {
        drop(self.news.changed().await);
        self.news.borrow_and_update().clone()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.daemon.sessions.unwatch(self.client);
    }
}
