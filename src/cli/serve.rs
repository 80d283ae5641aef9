//! The composition root: builds what sessions share out of paths, environment and flags.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::CliError;
use crate::hooks::functions::Functions;
use crate::paths::Paths;
use crate::provider::http::Http;
use crate::provider::learned::Learned;
use crate::recipe::watch::RecipeWatch;
use crate::session::registry::{Services, Sessions};
use crate::session::resting::{REST_AFTER, REST_VARIABLE};
use crate::store::Store;
use crate::tokens::Rulers;
use crate::tools::Toolbox;
use crate::tools::reaper::Reaper;

/// Log files that are kept, one a day.
const LOG_FILES_MAX: usize = 7;

/// Threads that run sessions. One: every step of a session is short, what is long runs on threads of
/// its own, and the tasks of one reply (the connection's and the session's) hand each piece over without
/// waking another core, which costs more than the piece does.
const WORKER_THREADS: usize = 1;

/// The environment of this process, as sessions take it.
pub fn environment() -> Arc<Vec<(OsString, OsString)>> {
    Arc::new(std::env::vars_os().collect())
}

pub fn paths() -> Paths {
    Paths::from_environment(|name| std::env::var_os(name))
}

/// The runtime that sessions run on.
pub fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .thread_name("epitome-session")
        .enable_all()
        .build()
        .map_err(|error| CliError::failed(format!("the runtime could not be started: {error}"), None))
}

/// All sessions of this process. Touches no file and no network: what is heavy starts on first use.
pub fn sessions(paths: Paths, runtime: &tokio::runtime::Handle) -> Sessions {
    Sessions::new(services(paths), runtime.clone())
}

/// What the sessions of a process share.
pub fn services(paths: Paths) -> Services {
    let store = Store::new(&paths);
    let reaper = Arc::new(Reaper::of_this_executable());
    Services {
        learned: Learned::below(&paths.data),
        paths,
        store,
        http: Http::new(),
        toolbox: Toolbox::built_in(reaper.clone()),
        watch: RecipeWatch::new(),
        reaper,
        rulers: Rulers::with_vocabulary(),
        functions: Functions::default(),
        rest_after: rest_after(),
    }
}

/// How long a session waits before it rests, by the environment of this process.
fn rest_after() -> Duration {
    let set = std::env::var(REST_VARIABLE).ok().and_then(|seconds| seconds.parse::<f64>().ok());
    set.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(REST_AFTER)
}

/// Sends log lines to a file of the day; stdout is the wire and stderr stays silent. `EPITOME_LOG`
/// filters as `RUST_LOG` does elsewhere.
pub fn log_to_file(paths: &Paths) {
    let filter =
        EnvFilter::try_from_env("EPITOME_LOG").unwrap_or_else(|_| EnvFilter::new("epitome=info,warn"));
    let writer = LogFile { directory: paths.log_directory(), file: OnceLock::new() };
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(writer).finish();
    // A second call (a test's) keeps the first subscriber.
    drop(tracing::subscriber::set_global_default(subscriber));
}

/// Opens the log at the first line, so that starting costs nothing. Where it can't be opened, lines
/// are dropped: logging must not stop work.
struct LogFile {
    directory: PathBuf,
    file: OnceLock<Option<RollingFileAppender>>,
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Box<dyn std::io::Write + 'a>;

    fn make_writer(&'a self) -> Self::Writer {
        let file = self.file.get_or_init(|| {
            // The appender tells stderr of a directory that is not there.
            DirBuilder::new().recursive(true).mode(0o700).create(&self.directory).ok()?;
            RollingFileAppender::builder()
                .rotation(Rotation::DAILY)
                .max_log_files(LOG_FILES_MAX)
                .filename_prefix("epitome")
                .filename_suffix("log")
                .build(&self.directory)
                .ok()
        });
        match file {
            Some(file) => Box::new(file.make_writer()),
            None => Box::new(std::io::sink()),
        }
    }
}
