//! Who is connected to the daemon: for its status, and to know when it is idle.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use epitome_session::ClientId;

/// Numbers of clients are told apart in the whole process.
static NEXT_CLIENT: AtomicU64 = AtomicU64::new(1);

/// A number that no other client of this process has.
pub fn fresh_client() -> ClientId {
    ClientId(NEXT_CLIENT.fetch_add(1, Ordering::Relaxed))
}

/// What a client's connection is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    pub client: ClientId,
    pub kind: Kind,
    /// The version of the program at the other end, where it told one.
    pub version: Option<String>,
    /// The process at the other end.
    pub pid: Option<u32>,
    pub cwd: Option<PathBuf>,
    pub since: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An editor's window.
    Editor,
    /// A client of the control API.
    Control,
}

/// Tells how much waits for a client to read. Called under the table's lock: it must be quick and take no lock that
/// is held over a call of the table.
pub type Gauge = Box<dyn Fn() -> usize + Send + Sync>;

/// The table. Cheap to clone.
#[derive(Clone)]
pub struct Attachments(Arc<Table>);

struct Table {
    entries: Mutex<BTreeMap<u64, (Attached, Gauge)>>,
    count: watch::Sender<usize>,
}

impl Default for Attachments {
    fn default() -> Attachments {
        Attachments(Arc::new(Table { entries: Mutex::default(), count: watch::Sender::new(0) }))
    }
}

impl Attachments {
    /// Enters a connection, until the guard is dropped.
    pub fn enter(&self, attached: Attached, waiting: Gauge) -> Present {
        let client = attached.client;
        let mut entries = self.entries();
        entries.insert(client.0, (attached, waiting));
        self.0.count.send_replace(entries.len());
        drop(entries);
        Present { attachments: self.clone(), client }
    }

    /// Oldest first, each with how many items wait for it to read.
    pub fn list(&self) -> Vec<(Attached, usize)> {
        self.entries().values().map(|(attached, waiting)| (attached.clone(), waiting())).collect()
    }

    /// How many there are, to be waited on.
    pub fn count(&self) -> watch::Receiver<usize> {
        self.0.count.subscribe()
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, (Attached, Gauge)>> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is there; dropping it takes it off the table.
pub struct Present {
    attachments: Attachments,
    client: ClientId,
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut entries = self.attachments.entries();
        entries.remove(&self.client.0);
        self.attachments.0.count.send_replace(entries.len());
    }
}
