//! Methods of the control API, as commands call them: the daemon's where one runs, else the same ones served in
//! this process. So no command is written twice, and each does the same either way.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Handle;

use super::daemon::failed;
use super::{CliError, serve};
use crate::daemon::Daemon;
use crate::daemon::control::Client;
use crate::daemon::place::Place;
use crate::paths::Paths;
use crate::session::registry::Sessions;

/// How long what a method left behind in this process may take to settle. What it answered is on disk by then.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);

/// Calls one method and waits for what it comes to.
pub fn call(paths: &Paths, method: &str, params: Value) -> Result<Value, CliError> {
    let runtime = serve::runtime()?;
    let own = OnceLock::new();
    let answered = runtime.block_on(async {
        let make = || own.get_or_init(|| here(paths, runtime.handle())).clone();
        let client = Client::connect_or_here(&Place::of(paths), make).await.map_err(failed)?;
        client.call(method, params).await.map_err(failed)
    });
    if let Some(daemon) = own.get() {
        let settled = async { tokio::time::timeout(SETTLE_WITHIN, daemon.sessions.settled()).await };
        if runtime.block_on(settled).is_err() {
            tracing::warn!(method, "the sessions of this process did not settle in time");
        }
        daemon.store.settle();
    }
    // Whatever still runs on a thread of its own must not hold up the end.
    runtime.shutdown_background();
    answered
}

/// What serves the methods in this process. Touches no file until one is called.
pub fn here(paths: &Paths, runtime: &Handle) -> Arc<Daemon> {
    let services = serve::services(paths.clone());
    let store = services.store.clone();
    let sessions = Sessions::new(services, runtime.clone());
    Arc::new(Daemon::new(paths.clone(), sessions, store))
}
