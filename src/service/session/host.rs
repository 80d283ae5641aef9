//! The process that a session runs in, as the session needs it. The registry of sessions implements it, so that a
//! session doesn't depend on the registry.

use std::sync::{Arc, Weak};

use epitome_tools::BoxFuture;

use super::counts::Counts;
use super::{Mutation, Replaced, ReplacementRefusal, Watcher};
use epitome_thread::{Change, SessionId};

/// All sessions of the process.
pub(super) trait SessionHost: Send + Sync {
    /// Replaces the history of another conversation.
    fn mutate(
        self: Arc<Self>,
        target: SessionId,
        mutation: Mutation,
    ) -> BoxFuture<Result<Replaced, ReplacementRefusal>>;

    /// Keeps the observers that `close` returns until the session is opened again. An observer that leaves meanwhile is
    /// found either in the session or here.
    fn keep_watchers_of(&self, session: &SessionId, close: &mut dyn FnMut() -> Vec<Watcher>);
}

/// See the module. The default is that of a child, which has no access to others.
#[derive(Default)]
pub(super) struct HostProcess {
    others: Option<Weak<dyn SessionHost>>,
    counts: Arc<Counts>,
}

impl HostProcess {
    pub fn new(others: Weak<dyn SessionHost>, counts: Arc<Counts>) -> HostProcess {
        HostProcess { others: Some(others), counts }
    }

    /// All its sessions; `None` if the process is shutting down, and for a child.
    pub fn sessions(&self) -> Option<Arc<dyn SessionHost>> {
        self.others.as_ref()?.upgrade()
    }

    /// Counts a change for the figures of the process.
    pub fn count(&self, change: &Change, cost: Option<f64>) {
        self.counts.take(change, cost);
    }
}
