//! `epitome daemon serve`: the daemon itself. Front ends start it; a person has no need to.

use std::sync::Arc;

use super::{CliError, log, serve};
use crate::daemon::Daemon;
use crate::daemon::serve::{Claimed, claim, idle_time, serve as serve_all};
use crate::daemon::start::tell_starter;
use crate::session::registry::Sessions;
use crate::tools::reaper::raise_descriptors;

/// What `ps` and `top` call a process, for this one. It was started through a link of the kernel's that follows the
/// file, and the name would be that link's: `exe`.
const OWN_NAME: &str = "/proc/self/comm";

pub fn main() -> Result<i32, CliError> {
    // Under another name it serves as well.
    let _ = std::fs::write(OWN_NAME, "epitome");
    let paths = serve::paths();
    log::to_file(&paths);
    raise_descriptors();
    let started = start(paths).inspect_err(|error| {
        tracing::error!(error = error.message, "the daemon could not be started");
        tell_starter(Err(&error.message));
    })?;
    let Some((runtime, claim, daemon)) = started else {
        // Another one serves: whoever started us can attach to that.
        tell_starter(Ok(()));
        return Ok(0);
    };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), "a daemon serves");
    tell_starter(Ok(()));
    let served = runtime.block_on(serve_all(daemon, claim, idle_time()));
    let code = match served {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!(%error, "the daemon ends");
            1
        }
    };
    log::flush();
    // Not by the end of main: the runtime would wait for work that nobody wants any more.
    std::process::exit(code)
}

type Started = (tokio::runtime::Runtime, crate::daemon::serve::Claim, Arc<Daemon>);

/// `None` where another daemon serves this place.
fn start(paths: crate::paths::Paths) -> Result<Option<Started>, CliError> {
    let place = crate::daemon::place::Place::of(&paths);
    let claim = match claim(&place).map_err(|why| CliError::failed(why, None))? {
        Claimed::Ours(claim) => claim,
        Claimed::Others => return Ok(None),
    };
    let runtime = serve::runtime()?;
    let services = serve::services(paths.clone());
    // The first window is told at once which windows its models have, not what the table says until the file is read.
    runtime.block_on(services.learned.load());
    let store = services.store.clone();
    let sessions = Sessions::new(services, runtime.handle().clone());
    Ok(Some((runtime, claim, Arc::new(Daemon::new(paths, sessions, store)))))
}
