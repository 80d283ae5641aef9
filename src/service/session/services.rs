//! The services that all sessions of a process share.

use std::sync::Arc;
use std::time::Duration;

use epitome_checkpoint::Checkpoints;
use epitome_diagnostics::LanguageServers;
use epitome_files::paths::Paths;
use epitome_hooks::functions::Functions;
use epitome_platform::reaper::Reaper;
use epitome_provider::http::Http;
use epitome_provider::learned::Learned;
use epitome_recipe::watch::RecipeWatch;
use epitome_store::Store;
use epitome_tokens::Rulers;
use epitome_tools::{RunningCommands, Toolbox};

/// The services that all sessions of a process share.
#[derive(Clone)]
pub struct SessionServices {
    pub paths: Paths,
    pub store: Store,
    pub http: Http,
    /// Facts that this installation has learned about models.
    pub learned: Learned,
    pub toolbox: Toolbox,
    pub watch: RecipeWatch,
    /// Starts the processes of hooks.
    pub reaper: Arc<Reaper>,
    /// The running commands of all sessions.
    pub running: RunningCommands,
    /// The language servers that run, of all sessions.
    pub languages: LanguageServers,
    /// The vocabularies that count tokens.
    pub rulers: Rulers,
    /// Callbacks and handlers of the embedding program.
    pub functions: Functions,
    /// Idle time before a session is suspended.
    pub suspend_after: Duration,
    /// Whether this process ends with its sessions; a daemon does not.
    pub ends_with_sessions: bool,
    /// The directory of the earlier contents of files, for a session and its children; `None` until a session has some.
    pub checkpoints: Option<Checkpoints>,
}
