//! Calls methods of the control API: in the daemon if one is running, otherwise in this process, so that commands
//! behave the same in both cases.

use std::sync::{Arc, OnceLock};

use serde_json::Value;
use tokio::runtime::Handle;

use super::{CliError, serve};
use crate::daemon::Daemon;
use crate::daemon::control::ControlClient;
use crate::daemon::control::fault::{Fault, FaultKind};
use crate::paths::Paths;
use crate::session::registry::Sessions;

/// Methods that change nothing: if the daemon ends before it answers, they are called again, of the next one or here.
const READING: [&str; 3] = ["sessions.list", "sessions.checkpoints", "models.list"];

/// How often such a method is called.
const CALLS_MAX: u32 = 3;

/// Calls a method and waits for its result.
pub fn call(paths: &Paths, method: &str, params: Value) -> Result<Value, CliError> {
    let runtime = serve::runtime()?;
    let own = OnceLock::new();
    let answered = runtime.block_on(async {
        let make = || match own.get() {
            Some(daemon) => Ok(Arc::clone(daemon)),
            None => {
                let made = here(paths, runtime.handle());
                let made = made.map_err(|error| Fault::new(FaultKind::Store, error.message))?;
                Ok(own.get_or_init(|| made).clone())
            }
        };
        let mut calls = 0;
        loop {
            let client = ControlClient::connect_or_here(paths, make).await?;
            calls += 1;
            match client.call(method, params.clone()).await {
                Err(fault)
                    if fault == Fault::daemon_ended() && READING.contains(&method) && calls < CALLS_MAX => {}
                answered => return Ok(answered?),
            }
        }
    });
    if let Some(daemon) = own.get() {
        serve::settle(&daemon.sessions, &runtime);
    }
    // Running threads must not delay the exit.
    runtime.shutdown_background();
    answered
}

/// Serves the methods in this process. Opens no files before the first call.
pub fn here(paths: &Paths, runtime: &Handle) -> Result<Arc<Daemon>, CliError> {
    let services = serve::services(paths.clone())?;
    let store = services.store.clone();
    let sessions = Sessions::new(services, runtime.clone());
    Ok(Arc::new(Daemon::new(paths.clone(), sessions, store)))
}
