//! A daemon's process without its sockets: real sessions on a separate runtime whose clock is paused. Dropping it acts
//! like `kill -9`: every task stops at its current await.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use epitome::session::registry::{SessionServices, Sessions};
use epitome_files::paths::Paths;
use epitome_hooks::functions::Functions;
use epitome_platform::reaper::Reaper;
use epitome_provider::http::Http;
use epitome_provider::learned::Learned;
use epitome_recipe::watch::RecipeWatch;
use epitome_scripted_model::SimulatedModel;
use epitome_simulated_disk::SimDisk;
use epitome_store::Store;
use epitome_tokens::Rulers;
use epitome_tools::task::Task;
use epitome_tools::{RunningCommands, Toolbox};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use super::oracle::ReadLogs;
use super::tool::{Executions, Work, Write, Written};

/// Idle time after which a session is suspended.
const REST_AFTER: Duration = Duration::from_secs(300);

/// Shared, so that TLS and its certificates are set up only once.
static HTTP: LazyLock<Http> = LazyLock::new(Http::new);

/// State that outlives a process.
#[derive(Clone)]
pub struct Machine {
    pub disk: SimDisk,
    pub home: Arc<tempfile::TempDir>,
    pub model: SimulatedModel,
    pub executions: Arc<Mutex<Executions>>,
    pub written: Written,
    pub hooks: Functions,
    /// For the checks.
    pub read: Arc<Mutex<ReadLogs>>,
}

/// A daemon's process; see the module.
pub struct Process {
    pub sessions: Sessions,
    runtime: Runtime,
}

impl Machine {
    /// The path of the store on the simulated disk.
    pub fn data(&self) -> &'static Path {
        Path::new("/home/data")
    }

    /// The current store, without faults.
    pub fn stored(&self) -> Store {
        Store::on_disk(self.data(), Arc::new(self.disk.copy()))
    }

    /// The bytes of each session's journal, as processes see them.
    pub fn journals(&self) -> BTreeMap<String, Vec<u8>> {
        let journals = self.data().join("journals");
        let files = self.disk.files().into_iter().filter(|(path, _)| {
            path.parent() == Some(journals.as_path()) && path.extension().is_some_and(|end| end == "jsonl")
        });
        files.filter_map(|(path, bytes)| Some((path.file_stem()?.to_str()?.to_owned(), bytes))).collect()
    }

    /// The workspace of the sessions.
    pub fn project(&self) -> PathBuf {
        self.home.path().join("project")
    }

    fn tools(&self) -> Toolbox {
        let executions = || self.executions.clone();
        Toolbox::new(vec![
            Arc::new(Work { executions: executions() }),
            Arc::new(Write { executions: executions(), written: self.written.clone() }),
            Arc::new(Task),
        ])
    }

    pub fn start(&self) -> Process {
        self.start_with(|_| Store::on_disk(self.data(), Arc::new(self.disk.clone())))
    }

    /// Starts a daemon with a store that works on its runtime.
    pub fn start_with(&self, store: impl FnOnce(&Handle) -> Store) -> Process {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let paths = Paths::below(self.home.path());
        let services = SessionServices {
            store: store(runtime.handle()),
            http: HTTP.simulated(Arc::new(self.model.clone())),
            learned: Learned::below(&paths.data),
            toolbox: self.tools(),
            watch: RecipeWatch::disabled(),
            reaper: Arc::new(Reaper::disabled()),
            running: RunningCommands::default(),
            languages: Default::default(),
            rulers: Rulers::default(),
            functions: self.hooks.clone(),
            suspend_after: REST_AFTER,
            ends_with_sessions: false,
            checkpoints: None,
            paths,
        };
        let sessions = Sessions::new(services, runtime.handle().clone());
        Process { sessions, runtime }
    }
}

impl Process {
    pub fn handle(&self) -> Handle {
        self.runtime.handle().clone()
    }

    /// Runs all tasks for this much simulated time.
    pub fn run_for(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    /// The process was stopped for this long.
    pub fn jump(&self, time: Duration) {
        self.runtime.block_on(tokio::time::advance(time));
    }

    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Lets all tasks that are ready run this many times.
    pub fn run_a_little(&self, times: u32) {
        self.runtime.block_on(async {
            for _ in 0..times {
                tokio::task::yield_now().await;
            }
        });
    }
}
