//! `epitome daemon serve`: the daemon itself. Front ends start it, not users.

use std::sync::Arc;

use super::{CliError, log, serve};
use crate::session::registry::Sessions;
use crate::tools::reaper::raise_descriptors;
use epitome_daemon::Daemon;
use epitome_daemon::serve::{claim, idle_time, serve as serve_all};
use epitome_daemon::start::report_to_starter;
use epitome_platform::process::set_process_name;

/// Files that a daemon must be allowed to open: its own, those of a session, and connections of its clients.
const FILES_MIN: u64 = 64;

pub fn main() -> Result<i32, CliError> {
    set_process_name("epitome");
    let paths = serve::paths();
    log::to_file(&paths);
    let started = start(paths).inspect_err(|error| {
        tracing::error!(error = error.message, "the daemon could not be started");
        report_to_starter(Err(&error.message));
    })?;
    let Some((runtime, claim, daemon)) = started else {
        // Another daemon is serving already, and the front end can connect to it.
        report_to_starter(Ok(()));
        return Ok(0);
    };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), "a daemon serves");
    report_to_starter(Ok(()));
    let served = runtime.block_on(serve_all(daemon, claim, idle_time()));
    let code = match served {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!(%error, "the daemon ends");
            1
        }
    };
    log::flush();
    // Returning from main would wait for abandoned work of the runtime.
    std::process::exit(code)
}

type StartedDaemon = (tokio::runtime::Runtime, epitome_daemon::serve::Claim, Arc<Daemon>);

/// Returns `None` if another daemon is running for this directory.
fn start(paths: crate::paths::Paths) -> Result<Option<StartedDaemon>, CliError> {
    // With fewer, it would start, and could not accept the connections of its clients.
    if let Some(files) = raise_descriptors().filter(|files| *files < FILES_MIN) {
        let why = format!("it may open {files} files (`ulimit -n`), and needs {FILES_MIN}");
        return Err(CliError::failed(why));
    }
    let runtime_dir = epitome_daemon::runtime_dir::RuntimeDir::new(&paths);
    let Some(claim) = claim(&runtime_dir)? else { return Ok(None) };
    let runtime = serve::runtime()?;
    let services = serve::services(paths.clone())?;
    // Load now, so that the first client gets the learned context windows instead of the built-in ones.
    runtime.block_on(services.learned.load());
    let store = services.store.clone();
    store.keep_listing();
    let sessions = Sessions::new(services, runtime.handle().clone());
    Ok(Some((runtime, claim, Arc::new(Daemon::new(paths, sessions, store)))))
}
