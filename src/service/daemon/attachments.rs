//! The clients connected to the daemon, for `status` and idle detection.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

use epitome_session::{AccessGrant, ClientId};

/// Client ids are unique within the process.
static NEXT_CLIENT: AtomicU64 = AtomicU64::new(1);

/// Returns a client id that no other client of this process has.
pub fn fresh_client() -> ClientId {
    ClientId(NEXT_CLIENT.fetch_add(1, Ordering::Relaxed))
}

/// A client's connection.
#[derive(Clone, Debug)]
pub struct Attached {
    pub client: ClientId,
    pub kind: AttachmentKind,
    /// Version of the program at the other end, if it sent one.
    pub version: Option<String>,
    /// Process id of the other end.
    pub pid: Option<u32>,
    pub cwd: Option<PathBuf>,
    pub since: SystemTime,
    /// The rights of a client on another machine.
    pub grant: Option<AccessGrant>,
}

impl Attached {
    /// A client of the control API, from now on.
    pub fn control(client: ClientId, pid: Option<u32>) -> Attached {
        let (kind, since) = (AttachmentKind::Control, SystemTime::now());
        Attached { client, kind, version: None, pid, cwd: None, since, grant: None }
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachmentKind {
    /// An editor, attached through a front end.
    Editor,
    /// A client of the control API.
    Control,
}

/// Returns how many items wait for a client to read, and what its program calls itself. Called with the table locked, so it
/// must be quick and must not take a lock that is held while calling the table.
pub type Gauge = Box<dyn Fn() -> (usize, Option<String>) + Send + Sync>;

/// The table of connected clients. Cheap to clone.
#[derive(Clone, Default)]
pub struct Attachments(Arc<AttachmentTable>);

#[derive(Default)]
struct AttachmentTable {
    entries: Mutex<BTreeMap<ClientId, (Attached, Gauge)>>,
    count: watch::Sender<usize>,
}

impl Attachments {
    /// Adds a connection to the table until the returned guard is dropped.
    pub fn enter(&self, attached: Attached, now: Gauge) -> Present {
        let client = attached.client;
        let mut entries = self.0.entries.lock();
        entries.insert(client, (attached, now));
        self.0.count.send_replace(entries.len());
        Present { attachments: self.clone(), client }
    }

    /// The connections, oldest first, each with the number of items waiting for it to read, and its name.
    pub fn list(&self) -> Vec<(Attached, (usize, Option<String>))> {
        self.0.entries.lock().values().map(|(attached, now)| (attached.clone(), now())).collect()
    }

    /// The number of connections, as a channel to wait on.
    pub fn count(&self) -> watch::Receiver<usize> {
        self.0.count.subscribe()
    }
}

/// A connection in the table; dropping it removes the entry.
pub struct Present {
    attachments: Attachments,
    client: ClientId,
}

impl Drop for Present {
    fn drop(&mut self) {
        let Attachments(table) = &self.attachments;
        let mut entries = table.entries.lock();
        entries.remove(&self.client);
        table.count.send_replace(entries.len());
    }
}
