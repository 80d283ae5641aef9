//! Connects the page's server to a daemon: control API calls, and following sessions.

use std::sync::Arc;
use std::time::SystemTime;

use jsonrpsee::RpcModule;

use super::news::ActivityOutlet;
use crate::attachments::{Attached, AttachmentKind, Present, fresh_client};
use crate::{Daemon, control};
use epitome_session::{Attachment, ClientId};
use epitome_thread::{Seq, SessionId};

/// The response to a call that is not a request, with JSON-RPC's error code for it.
const NO_REQUEST: &str =
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the call is not a JSON-RPC request"}}"#;

/// Serves the page from the daemon it runs in.
pub struct Backend {
    daemon: Arc<Daemon>,
    methods: RpcModule<Daemon>,
}

impl Backend {
    pub fn new(daemon: Arc<Daemon>) -> Backend {
        Backend { methods: control::module(daemon.clone()), daemon }
    }

    /// Answers one JSON-RPC call.
    pub async fn answer(&self, call: String) -> String {
        // No method that the page may call sends more than one response.
        match self.methods.raw_json_request(&call, 1).await {
            Ok((answer, _)) => answer.get().to_owned(),
            Err(_) => NO_REQUEST.to_owned(),
        }
    }

    /// Follows a session from an entry on, until the result is dropped. Blocks on the disk. An error is a sentence.
    pub fn follow(&self, session: &SessionId, from: Seq) -> Result<Following, String> {
        let news = Arc::<ActivityOutlet>::default();
        let client = fresh_client();
        let attached = Attached {
            client,
            kind: AttachmentKind::Control,
            version: None,
            pid: None,
            cwd: None,
            since: SystemTime::now(),
            grant: None,
        };
        // Counts as an attachment, so that a daemon whose page is open is not idle. Its gauge is 0, because
        // updates are merged into one item.
        let present = self.daemon.attachments.enter(attached, Box::new(|| (0, None)));
        let end = Unwatch { daemon: self.daemon.clone(), client, _present: present };
        let attachment = Attachment { client, outlet: news.clone() };
        self.daemon.sessions.watch(session, from, attachment).map_err(|error| error.to_string())?;
        Ok(Following { news, _end: end })
    }
}

/// A session's activity, until it is dropped.
pub struct Following {
    pub news: Arc<ActivityOutlet>,
    _end: Unwatch,
}

/// Stops following a session when dropped.
struct Unwatch {
    daemon: Arc<Daemon>,
    client: ClientId,
    _present: Present,
}

impl Drop for Unwatch {
    fn drop(&mut self) {
        self.daemon.sessions.unwatch(self.client);
    }
}
