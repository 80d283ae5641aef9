//! The composition root: builds the services that sessions share from paths and the environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{CliContext as _, CliError};
use crate::paths::Paths;
use crate::provider::http::Http;
use crate::provider::learned::Learned;
use crate::recipe::watch::RecipeWatch;
use crate::session::registry::{SessionServices, Sessions};
use crate::session::suspended::{REST_AFTER, REST_VARIABLE};
use crate::thread::visible::{visible, visible_line};
use crate::tokens::Rulers;
use crate::tools::reaper::Reaper;
use crate::tools::{RunningCommands, Toolbox};
use epitome_config::Settings;
use epitome_hooks::functions::Functions;
use epitome_store::Store;

/// Number of threads that run sessions. One is enough: every step of a session is short, long work runs on separate
/// threads, and the tasks of one reply (the connection's and the session's) pass each piece on without waking another
/// core, which would cost more than the piece itself.
const WORKER_THREADS: usize = 1;

/// Timeout for the end of the sessions of this process.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);

/// The environment of this process.
pub fn environment() -> Arc<Vec<(OsString, OsString)>> {
    Arc::new(epitome_platform::os::environment())
}

pub fn working_directory() -> Result<PathBuf, CliError> {
    let found =
        std::env::current_dir().context("the working directory can't be found; it may have been deleted");
    found.map_err(|error| error.hint("change to another directory"))
}

/// Refuses a directory in which sessions can't work: logs and clients have its name as text.
pub fn session_directory(directory: PathBuf) -> Result<PathBuf, CliError> {
    if directory.to_str().is_some() {
        return Ok(directory);
    }
    let why = format!(
        "sessions can't work in {}, whose name is not UTF-8",
        visible_line(&directory.to_string_lossy())
    );
    Err(CliError::failed(why).hint("rename the directory, or start in another one"))
}

/// Loads the settings for this directory. Problems are printed to stderr.
pub fn settings(paths: &Paths, cwd: Option<&Path>) -> Settings {
    let (settings, problems) = Settings::load(paths, cwd, |name| std::env::var_os(name));
    for problem in problems {
        note!("epitome: {problem}");
    }
    settings
}

pub fn paths() -> Paths {
    Paths::from_environment(|name| std::env::var_os(name))
}

/// Opens the store of the settings. If that is not possible, it is not replaced: sessions must not end up elsewhere.
pub fn store(paths: &Paths) -> Result<Store, CliError> {
    let (settings, _) = Settings::load(paths, None, |_| None);
    match &settings.store {
        None => Ok(Store::new(paths)),
        Some(address) => store_at(paths, address).map_err(|error| named_in(paths, error)),
    }
}

/// Runs a command with the store of the settings, which needs no daemon.
pub fn with_store<T, E>(paths: &Paths, run: impl FnOnce(&Store) -> Result<T, E>) -> Result<T, CliError>
where
    CliError: From<E>,
{
    let store = store(paths)?;
    let done = run(&store);
    store.settle();
    Ok(done?)
}

/// Opens the store of the settings, and applies the policy in it to this process as long as it is open. Files have none.
/// Fails if it can't be read: it might forbid what would be done.
fn governed_store(paths: &Paths) -> Result<Store, CliError> {
    let (settings, _) = Settings::load(paths, None, |_| None);
    match &settings.store {
        None => Ok(Store::new(paths)),
        Some(address) => governed_store_at(paths, address).map_err(|error| named_in(paths, error)),
    }
}

/// The error of a store, with the file that names it.
fn named_in(paths: &Paths, error: CliError) -> CliError {
    let file = visible(&paths.config_file().to_string_lossy()).into_owned();
    CliError { message: format!("{}: see `store` in {file}", error.message), ..error }
}

#[cfg(feature = "postgres")]
fn governed_store_at(paths: &Paths, address: &str) -> Result<Store, CliError> {
    let (postgres, place) = database_at(address)?;
    let known = postgres.policy()?;
    let of = place.clone();
    let apply = move |policy: Option<&epitome_store_postgres::StoredPolicy>| {
        epitome_config::set_policy_of_store(&of, policy.map(|policy| &*policy.text));
    };
    apply(known.as_ref());
    postgres.watch_policy(known, apply);
    Ok(Store::elsewhere(paths, Arc::new(postgres), &place))
}

/// Applies the policy in the store of the settings to this process.
#[cfg(feature = "postgres")]
pub fn read_policy(paths: &Paths) -> Result<(), CliError> {
    let (settings, _) = Settings::load(paths, None, |_| None);
    let Some(address) = &settings.store else { return Ok(()) };
    let (postgres, place) = database_at(address)?;
    let policy = postgres.policy()?;
    epitome_config::set_policy_of_store(&place, policy.as_ref().map(|policy| &*policy.text));
    Ok(())
}

/// Opens a store in a database.
#[cfg(feature = "postgres")]
pub fn store_at(paths: &Paths, address: &str) -> Result<Store, CliError> {
    let (postgres, place) = database_at(address)?;
    Ok(Store::elsewhere(paths, Arc::new(postgres), &place))
}

/// Removes from a database what no session names. Returns how much that was.
#[cfg(feature = "postgres")]
pub fn clean(address: &str) -> Result<i64, CliError> {
    Ok(database_at(address)?.0.remove_unused_bodies()?)
}

#[cfg(feature = "postgres")]
pub fn database_at(address: &str) -> Result<(epitome_store_postgres::Postgres, String), CliError> {
    use epitome_store_postgres::{Postgres, StoreAddress};
    let address = StoreAddress::parse(address, |name| std::env::var(name).ok());
    let address = address.map_err(|error| CliError::failed(error.to_string()))?;
    let place = address.place().to_owned();
    let postgres = Postgres::new(address).context(format_args!("{place} can't be used"))?;
    Ok((postgres, place))
}

/// The error of a program that was built without databases.
#[cfg(not(feature = "postgres"))]
pub const WITHOUT_DATABASES: &str = "this epitome was built without the feature `postgres`";

#[cfg(not(feature = "postgres"))]
pub fn store_at(_: &Paths, _: &str) -> Result<Store, CliError> {
    Err(CliError::failed(WITHOUT_DATABASES))
}

#[cfg(not(feature = "postgres"))]
pub fn clean(_: &str) -> Result<i64, CliError> {
    Err(CliError::failed(WITHOUT_DATABASES))
}

#[cfg(not(feature = "postgres"))]
fn governed_store_at(paths: &Paths, address: &str) -> Result<Store, CliError> {
    store_at(paths, address)
}

#[cfg(not(feature = "postgres"))]
pub fn read_policy(_: &Paths) -> Result<(), CliError> {
    Ok(())
}

/// Creates the runtime for sessions.
pub fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .thread_name("epitome-session")
        .enable_all()
        .build()
        .context("the runtime could not be started")
}

/// All sessions of a process that ends with them. Opens no file and no connection; expensive parts start on first use.
pub fn sessions(paths: Paths, runtime: &tokio::runtime::Handle) -> Result<Sessions, CliError> {
    let services = SessionServices { ends_with_sessions: true, ..services(paths)? };
    Ok(Sessions::new(services, runtime.clone()))
}

/// Waits for the end of the sessions of this process, but not long: their results are already on disk.
pub fn settle(sessions: &Sessions, runtime: &tokio::runtime::Runtime) {
    let settled = async { tokio::time::timeout(SETTLE_WITHIN, sessions.settled()).await };
    if runtime.block_on(settled).is_err() {
        tracing::warn!("the sessions of this process did not settle in time");
    }
    sessions.services().store.settle();
}

/// Creates the services that the sessions of a process share.
pub fn services(paths: Paths) -> Result<SessionServices, CliError> {
    let store = governed_store(&paths)?;
    let reaper = Arc::new(Reaper::for_this_executable());
    Ok(SessionServices {
        learned: Learned::below(&paths.data),
        paths,
        store,
        http: Http::new(),
        toolbox: Toolbox::built_in(reaper.clone()),
        watch: RecipeWatch::new(),
        reaper,
        running: RunningCommands::default(),
        languages: crate::diagnostics::LanguageServers::default(),
        rulers: Rulers::with_vocabulary(),
        functions: Functions::default(),
        suspend_after: suspend_after(),
        ends_with_sessions: false,
        checkpoints: None,
    })
}

/// Returns the idle time before a session is suspended, which the environment can override.
fn suspend_after() -> Duration {
    let set = std::env::var(REST_VARIABLE).ok().and_then(|seconds| seconds.parse::<f64>().ok());
    set.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(REST_AFTER)
}
