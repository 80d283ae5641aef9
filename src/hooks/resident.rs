//! Resident hooks: one process for a session, asked line by line.
//!
//! # The protocol
//!
//! The program is started as `PATH run` when it is first needed. Both directions are lines of JSON: one
//! object a line, UTF-8, ended by a line feed, at most `LINE_BYTES_MAX` bytes. stderr is log text.
//!
//! A **request** asks for a run. It begins with `{"id":` and a number, so that a shell can cut it off;
//! `payload` is what a script would get on its stdin. The answer carries the same id, and `result` is what
//! a script would print; `null` or `{}` for nothing. `error` in its place says that the run failed.
//!
//! ```text
//! → {"id":1,"payload":{"event":"turn_end",…}}
//! ← {"id":1,"result":{"result":"continue","messages":["Run the linter."]}}
//! ← {"id":1,"error":{"message":"the linter is not installed"}}
//! ```
//!
//! While a request is open, the hook may **call** back, with ids of its own, text or number:
//!
//! ```text
//! ← {"id":"a1","method":"context.read","params":{…}}
//! → {"id":"a1","result":…}
//! → {"id":"a1","error":{"message":"…"}}
//! ```
//!
//! - One request is open at a time, with one exception: while a call of the hook is open, another request
//!   may come. It may be because of the call (a compaction passes by the hooks of `pre_compact`), so it has
//!   to be answered before the call's answer can be expected. A hook that makes no calls never sees this.
//! - A request has the hook's time limit, in which its calls count. When it is over the process is ended.
//! - At most `CALLS_OPEN_MAX` calls are open at once and `CALLS_A_RUN_MAX` are made from one request to
//!   its answer; more get an `error`. Calls that are open when the request is answered are dropped.
//! - A line that means nothing here (no JSON, no `id`, an unknown `id`, a refused call) is logged, told
//!   beside the next answer and passed over; after `STRAY_LINES_MAX` of them, and after a line that is too
//!   long, the process is ended.
//! - A process that ended is started again for the next request, at most `RESTARTS_MAX` times and each
//!   time a little later. What was open at its end has failed.
//! - At the session's end stdin is closed and the process group gets TERM, and KILL after `KILL_GRACE`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tracing::Instrument;

use super::output::Ran;
use super::process::Order;
use super::resident_process::{Ask, Driver};

/// Bytes of a line, in either direction of what a hook writes: as much as a script may print.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// Calls of a hook that are worked on at once.
pub const CALLS_OPEN_MAX: usize = 8;

/// Calls that a hook may make for one request.
pub const CALLS_A_RUN_MAX: u32 = 100;

/// Lines of one process that meant nothing.
pub const STRAY_LINES_MAX: u32 = 1000;

/// How often the process is started again in a session.
pub const RESTARTS_MAX: usize = RESTART_WAITS.len();

/// How long each further start waits: what broke may be back by then.
pub(super) const RESTART_WAITS: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(2)];

/// Requests that wait for their turn. A model asks for fewer calls at once.
const WAITING_MAX: usize = 64;

/// What a resident hook may ask of its session.
pub trait Services: Send + Sync {
    /// Does what a hook calls for. The error is a sentence for the hook. Dropping the future gives it up.
    fn call<'a>(
        &'a self,
        hook: &'a str,
        method: &'a str,
        params: Value,
    ) -> BoxFuture<'a, Result<Value, String>>;
}

/// A resident hook to be asked.
pub struct Resident {
    pub name: String,
    /// Another one than before, and the process is another one.
    pub digest: String,
    /// What its process is started with, should none run; its limit is not looked at.
    pub order: Order,
    pub services: Arc<dyn Services>,
}

/// The resident hooks of one session. Dropping it ends their processes.
#[derive(Default)]
pub struct Residents {
    drivers: Mutex<BTreeMap<String, Handle>>,
}

struct Handle {
    digest: String,
    asks: mpsc::Sender<Ask>,
    task: AbortHandle,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Residents {
    /// Whether none runs.
    pub fn is_empty(&self) -> bool {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Asks a hook, and starts its process if none runs. Dropping the future leaves the process running:
    /// its answer, or its time limit, is awaited without anybody.
    pub async fn ask(&self, resident: Resident, payload: Value, limit: Duration) -> Ran {
        let asks = self.asks(resident);
        let (answer, answered) = oneshot::channel();
        // Both errors are that the driver is gone, which is a fault of ours or the session's end.
        if asks.send(Ask { payload, limit, answer }).await.is_ok()
            && let Ok(ran) = answered.await
        {
            return ran;
        }
        Ran::Failed("its process was given up".to_owned())
    }

    fn asks(&self, resident: Resident) -> mpsc::Sender<Ask> {
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        let Resident { name, digest, order, services } = resident;
        if let Some(handle) = drivers.get(&name)
            && handle.digest == digest
            && !handle.asks.is_closed()
        {
            return handle.asks.clone();
        }
        let (asks, asked) = mpsc::channel(WAITING_MAX);
        let driver = Driver::new(name.clone(), order, services, asked);
        let task = tokio::spawn(driver.drive().in_current_span()).abort_handle();
        // One that was there before is dropped, and its process with it.
        drivers.insert(name, Handle { digest, asks: asks.clone(), task });
        asks
    }
}
