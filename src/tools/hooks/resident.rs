//! Resident hooks: one process per session that handles many requests, as lines of JSON.
//!
//! # The protocol
//!
//! The program is started as `PATH run` when it is first needed. Both directions carry JSON lines: one object
//! per line, UTF-8, terminated by a line feed. A line from the program has at most `LINE_BYTES_MAX` bytes.
//! stderr is log text.
//!
//! A **request** asks for a run. It begins with `{"id":` and a number, so that a shell script can extract it;
//! `payload` is the stdin of an ordinary script. The answer has the same id, and `result` is the stdout of an
//! ordinary script; `null` or `{}` means no action. `error` instead of `result` means that the run failed.
//!
//! ```text
//! → {"id":1,"payload":{"event":"turn_end",…}}
//! ← {"id":1,"result":{"result":"continue","messages":["Run the linter."]}}
//! ← {"id":1,"error":{"message":"the linter is not installed"}}
//! ```
//!
//! While a request is open, the hook may **call** back, with ids of its own, strings or numbers:
//!
//! ```text
//! ← {"id":"a1","method":"context.read","params":{…}}
//! → {"id":"a1","result":…}
//! → {"id":"a1","error":{"message":"…"}}
//! ```
//!
//! - One request is open at a time, with one exception: while a call of the hook is open, another request may
//!   arrive. It may be caused by the call (a compaction runs the hooks of `pre_compact`), so it has to be
//!   answered before the call's answer can be expected. A hook that makes no calls never sees this.
//! - A request has the hook's time limit, which includes its calls. At the limit the process is terminated.
//! - At most `CALLS_OPEN_MAX` calls are open at once, and `CALLS_A_RUN_MAX` are made between a request and
//!   its answer; further calls get an `error`. Calls that are open when the request is answered are dropped.
//! - An invalid line (not JSON, no `id`, an unknown `id`, a refused call) is logged, reported with the
//!   next answer and ignored; after `STRAY_LINES_MAX` of them, and after a line that is too long, the process
//!   is terminated.
//! - A process that ended is restarted for the next request, at most `RESTARTS_MAX` times and each time after
//!   a longer delay. Its open requests have failed.
//! - At the session's end, stdin is closed and the process group gets TERM, and KILL after `KILL_GRACE`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tracing::Instrument;

use super::functions::BoxError;
use super::output::RawOutcome;
use super::process::ProcessSpec;
use super::resident_process::{Driver, ResidentRequest};

/// Maximum bytes of a line from a hook: as much as an ordinary script may print.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// Maximum concurrent calls of a hook.
pub const CALLS_OPEN_MAX: usize = 8;

/// Maximum calls of a hook per request.
pub const CALLS_A_RUN_MAX: u32 = 100;

/// Maximum invalid lines per process.
pub const STRAY_LINES_MAX: u32 = 1000;

/// Maximum restarts of the process per session.
pub const RESTARTS_MAX: usize = RESTART_WAITS.len();

/// Delay before each restart, in case the cause of the failure is temporary.
pub(super) const RESTART_WAITS: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(2)];

/// Maximum queued requests. A model makes fewer calls at once.
const WAITING_MAX: usize = 64;

/// Services of the session for resident hooks.
pub trait HookServices: Send + Sync {
    /// Handles a call of a hook, which gets the error's text. Dropping the future aborts the call.
    fn call<'a>(
        &'a self,
        hook: &'a str,
        method: &'a str,
        params: Value,
    ) -> BoxFuture<'a, Result<Value, BoxError>>;
}

/// A resident hook to send a request to.
pub struct Resident {
    pub name: String,
    /// A changed digest replaces the process.
    pub digest: String,
    /// How to start the process if none runs; its time limit is ignored.
    pub spec: ProcessSpec,
    pub services: Arc<dyn HookServices>,
}

/// The resident hooks of one session. Dropping it terminates their processes.
#[derive(Default)]
pub struct Residents {
    drivers: Mutex<BTreeMap<String, ResidentHandle>>,
}

struct ResidentHandle {
    digest: String,
    requests: mpsc::Sender<ResidentRequest>,
    task: AbortHandle,
}

impl Drop for ResidentHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Residents {
    /// Whether no resident hook has been started.
    pub fn is_empty(&self) -> bool {
        self.drivers.lock().is_empty()
    }

    /// Sends a request, starting the process if none runs. Dropping the future leaves the process running:
    /// the request stays open until it is answered or times out.
    pub async fn ask(&self, resident: Resident, payload: Value, limit: Duration) -> RawOutcome {
        let requests = self.requests(resident);
        let (answer, answered) = oneshot::channel();
        // Both errors mean that the driver is gone: a bug, or the session's end.
        if requests.send(ResidentRequest { payload, limit, answer }).await.is_ok()
            && let Ok(ran) = answered.await
        {
            return ran;
        }
        RawOutcome::Failed("its process was ended".to_owned())
    }

    fn requests(&self, resident: Resident) -> mpsc::Sender<ResidentRequest> {
        let mut drivers = self.drivers.lock();
        let Resident { name, digest, spec, services } = resident;
        if let Some(handle) = drivers.get(&name)
            && handle.digest == digest
            && !handle.requests.is_closed()
        {
            return handle.requests.clone();
        }
        let (requests, incoming) = mpsc::channel(WAITING_MAX);
        let driver = Driver::new(name.clone(), spec, services, incoming);
        let task = tokio::spawn(driver.drive().in_current_span()).abort_handle();
        // Drops the previous driver, and its process with it.
        drivers.insert(name, ResidentHandle { digest, requests: requests.clone(), task });
        requests
    }
}
