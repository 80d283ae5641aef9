//! Diagnostics, definitions and references from the user's language servers.
//!
//! A server is started when the first file of its language is edited or queried. It is shared by all sessions of a
//! workspace, and ends after a period without requests, or with the daemon. It runs the repository's code (build
//! scripts, plugins), so the user is asked first, and it runs in the sandbox for commands.
//!
//! Edits never wait. After an edit, the changed file is checked in the background, and new errors are reported once to
//! the model before its next call. [`EditWatch`] does that for one session.

mod client;
mod finding;
mod known;
pub mod tool;
mod watch;
mod wire;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::OnceCell;

use client::LanguageServer;
use epitome_config::{DiagnosticsSettings, StartServers};
use epitome_platform::reaper::Reaper;
use epitome_tools::Workspace;
use epitome_tools::question::{QuestionKind, QuestionReply, QuestionSender, UserQuestion};
use epitome_tools::sandbox::SandboxRules;
use known::Installed;
pub use watch::{Edit, EditWatch};

/// Maximum number of running servers; starting another ends the least recently used one.
const SERVERS_MAX: usize = 6;
/// Idle time after which a server is ended.
const IDLE_MAX: Duration = Duration::from_secs(10 * 60);
const IDLE_CHECKED_EVERY: Duration = Duration::from_secs(60);
/// Maximum starts of one server in one workspace during the lifetime of the daemon: a server that keeps crashing is not
/// restarted.
const STARTS_MAX: u32 = 4;
/// Maximum memory of one server in bytes, if the sandbox limits it.
const MEMORY_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// The running servers of a process. Cheap to clone.
#[derive(Clone, Default)]
pub struct LanguageServers {
    state: Arc<Mutex<ServersState>>,
}

#[derive(Default)]
struct ServersState {
    running: HashMap<ServerKey, Arc<OnceCell<Arc<LanguageServer>>>>,
    starts: HashMap<ServerKey, u32>,
    /// The user's answers, by workspace. Locked while the user is asked, so that concurrent edits ask only once.
    consents: HashMap<PathBuf, Arc<tokio::sync::Mutex<Option<bool>>>>,
}

impl ServersState {
    /// Removes a server, which ends once it is dropped. Only those that ended on their own count as started.
    fn end(&mut self, key: &ServerKey, has_crashed: bool) -> Option<Arc<OnceCell<Arc<LanguageServer>>>> {
        if !has_crashed {
            self.starts.remove(key);
        }
        self.running.remove(key)
    }
}

/// The workspace and the server's name.
type ServerKey = (PathBuf, &'static str);

/// The environment in which servers are started.
#[derive(Clone)]
pub struct ServerContext {
    pub workspace: Arc<Workspace>,
    pub sandbox: Arc<SandboxRules>,
    pub settings: DiagnosticsSettings,
    pub reaper: Arc<Reaper>,
    pub questions: QuestionSender,
}

impl ServerContext {
    /// Returns the installed server for a file. Reads the file system.
    fn installed(&self, path: &Path) -> Option<Installed> {
        let wanted = self.settings.servers.as_deref();
        if self.settings.start == StartServers::Never || !self.workspace.contains(path) {
            return None;
        }
        known::for_file(path, &self.workspace, wanted)
    }
}

impl LanguageServers {
    /// Returns the server for a file's language; starts it if necessary and if the user agrees. The error is a
    /// sentence.
    async fn client(
        &self,
        installed: &Installed,
        context: &ServerContext,
    ) -> Result<Arc<LanguageServer>, String> {
        let key = (context.workspace.cwd.clone(), installed.server.name);
        let cell = self.cell(&key);
        if let Some(client) = cell.get().filter(|client| !client.has_ended()) {
            return Ok(client.clone());
        }
        if !self.may_start(installed, context).await {
            return Err(format!(
                "{} is not started in this workspace: the user did not agree. `start = \"always\"` in [diagnostics] of \
                 config.toml starts it without asking.",
                installed.server.name
            ));
        }
        let started = cell.get_or_try_init(|| self.start(&key, installed, context)).await;
        started.cloned().map_err(|why| format!("{why}."))
    }

    /// Returns the cell for a server; a new one if the old server has ended.
    fn cell(&self, key: &ServerKey) -> Arc<OnceCell<Arc<LanguageServer>>> {
        let mut state = self.state.lock();
        let cell = state.running.entry(key.clone()).or_default();
        if cell.get().is_some_and(|client| client.has_ended()) {
            *cell = Arc::default();
        }
        cell.clone()
    }

    async fn start(
        &self,
        key: &ServerKey,
        installed: &Installed,
        context: &ServerContext,
    ) -> Result<Arc<LanguageServer>, String> {
        {
            let mut state = self.state.lock();
            let starts = state.starts.entry(key.clone()).or_default();
            *starts += 1;
            if *starts > STARTS_MAX {
                return Err(format!(
                    "{} ended {STARTS_MAX} times and is not started again",
                    installed.server.name
                ));
            }
            while state.running.len() > SERVERS_MAX {
                let idle = |cell: &OnceCell<Arc<LanguageServer>>| cell.get().map(|client| client.idle_for());
                let others = state.running.iter().filter(|(other, _)| *other != key);
                let longest = others.max_by_key(|(_, cell)| idle(cell)).map(|(other, _)| other.clone());
                let Some(longest) = longest else { break };
                state.end(&longest, false);
            }
        }
        let mut rules = (*context.sandbox).clone();
        rules.memory = Some(rules.memory.map_or(MEMORY_MAX, |memory| memory.min(MEMORY_MAX)));
        let client = LanguageServer::start(installed, &context.workspace, &rules, &context.reaper).await?;
        tracing::info!(server = installed.server.name, workspace = %key.0.display(), "a language server was started");
        tokio::spawn(end_when_idle(Arc::downgrade(&self.state), key.clone()));
        Ok(client)
    }

    /// Whether the user agrees to servers in this workspace. Asked once during the lifetime of the daemon.
    async fn may_start(&self, installed: &Installed, context: &ServerContext) -> bool {
        if context.settings.start == StartServers::Always {
            return true;
        }
        let root = &context.workspace.cwd;
        let consent = self.state.lock().consents.entry(root.clone()).or_default().clone();
        let mut consent = consent.lock().await;
        if let Some(known) = *consent {
            return known;
        }
        let sandboxing = match context.sandbox.gap() {
            Some(gap) => gap,
            None if context.sandbox.enabled => "It runs in the sandbox of commands.".to_owned(),
            None => "The sandbox is off.".to_owned(),
        };
        let question = UserQuestion {
            message: format!(
                "Start {} ({}) in {} to show the agent the errors of what it edits? Language servers can run code of the \
                 repository, such as build scripts. {sandboxing}",
                installed.server.name,
                installed.program.display(),
                root.display()
            ),
            wants: QuestionKind::Form {
                schema: json!({
                    "type": "object",
                    "properties": {"start": {"type": "string", "title": "Start it?", "enum": ["yes", "no"]}},
                    "required": ["start"],
                }),
            },
            call: None,
        };
        let agreed = match context.questions.ask(question).await {
            QuestionReply::Accepted(fields) => {
                fields.get("start").and_then(|start| start.as_str()) == Some("yes")
            }
            QuestionReply::Declined => false,
            // Not remembered: a client that can answer may attach later.
            QuestionReply::Cancelled | QuestionReply::Unable | QuestionReply::TimedOut => return false,
        };
        *consent = Some(agreed);
        agreed
    }
}

/// Removes a server once it is idle, which ends its processes.
async fn end_when_idle(servers: Weak<Mutex<ServersState>>, key: ServerKey) {
    loop {
        tokio::time::sleep(IDLE_CHECKED_EVERY).await;
        let Some(servers) = servers.upgrade() else { return };
        let mut state = servers.lock();
        let Some(client) = state.running.get(&key).and_then(|cell| cell.get()) else { return };
        let has_crashed = client.has_ended();
        if has_crashed || client.idle_for() >= IDLE_MAX {
            let ended = state.end(&key, has_crashed);
            drop(state);
            drop(ended);
            return;
        }
    }
}

#[cfg(test)]
mod tests;
