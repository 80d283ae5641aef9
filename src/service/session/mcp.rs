//! A session's MCP servers: which are started and when, how their tools reach the conversation, and what is reported
//! to the user.
//!
//! The list of tools is frozen with the first model call. Later tools are announced to the model in a text appended
//! to the conversation, and called through the tool `mcp`, so no earlier byte changes. They join the list when that
//! costs nothing: after a compaction, when the prefix is new anyway, and after a pause that no provider's cache
//! survives.

pub(super) mod instructions;
mod prompts;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::background::BackgroundResult;
use super::core::Core;
use super::hook_host::{HookHost, UntrustedItem};
use super::reminders::{ReminderText, Topic};
use super::{NoticeSeverity, SessionError};
use epitome_config::{McpServer, McpSource, McpTransport};
use epitome_hooks::servers::{self, PinnedServer};
use epitome_hooks::trust::TrustVerdict;
use epitome_mcp::{
    ClientMcp, Hub, ListBudget, ListingCache, McpContext, McpEvent, PREFIX, REACH, ServerCommand,
    ServerState, ServerStatus, SharedClient,
};
use epitome_provider::network::Network;
use epitome_thread::{Change, ToolSpec};
use epitome_tools::question::QuestionSender;
use epitome_tools::sandbox::{self, of_server};

/// The origin of messages about late tools.
const BY: &str = "mcp";
/// Directory of servers' logins, in the user's data directory.
pub const LOGINS: &str = "mcp-logins";
/// Directory of cached listings of servers, in the user's data directory.
pub const LISTINGS: &str = "mcp-listings";
/// A pause after which no provider still caches a conversation's prefix: Anthropic and OpenAI keep one for an hour at
/// most.
const CACHE_TIME_MAX: Duration = Duration::from_secs(60 * 60);
/// Maximum number of late tools announced by name; the rest is only counted.
const LATE_LINES_MAX: usize = 60;
/// Maximum number of remarks of servers shown to the user in one session.
const REMARKS_MAX: usize = 40;

/// A session's MCP servers and their state.
pub(super) struct McpHost {
    /// Carries servers' questions to the user.
    questions: QuestionSender,
    /// `None` until the session has a server.
    hub: Option<Hub>,
    news: Option<mpsc::Receiver<McpEvent>>,
    begun: bool,
    wait: ServerWait,
    kept: KeptServers,
}

/// The state that is kept while the session is suspended.
#[derive(Default)]
pub(super) struct KeptServers {
    /// Servers given by the client.
    given: Vec<McpServer>,
    /// The client that provides servers over its own connection.
    client: SharedClient,
    /// Names of servers that the user has switched off.
    off: HashSet<String>,
    /// Remarks already shown to the user.
    shown_remarks: HashSet<String>,
}

/// Whether prompts wait for servers to connect.
enum ServerWait {
    /// No prompt has had to wait yet.
    Possible,
    /// Prompts wait until the timer ends.
    Running(AbortHandle),
    Over,
}

impl McpHost {
    pub fn new(questions: QuestionSender) -> McpHost {
        McpHost {
            questions,
            hub: None,
            news: None,
            begun: false,
            wait: ServerWait::Possible,
            kept: KeptServers::default(),
        }
    }

    /// The next event of a server; pends forever if there are no servers.
    pub async fn news(&mut self) -> Option<McpEvent> {
        match &mut self.news {
            Some(news) => news.recv().await,
            None => std::future::pending().await,
        }
    }

    pub fn suspend(self) -> KeptServers {
        self.kept
    }

    /// Starts the servers again.
    pub fn resume(&mut self, core: &mut Core, kept: KeptServers) {
        let given = kept.given.clone();
        self.kept = kept;
        let client = self.kept.client.get();
        self.begin(core, &given, client);
    }

    /// The repository's servers that the user has neither allowed nor refused.
    pub fn untrusted(&self, hooks: &HookHost) -> Vec<UntrustedItem> {
        let servers = hooks.found().servers.iter();
        servers
            .filter_map(|(name, PinnedServer { item, record, what, runs })| {
                let is_known = self.hub.as_ref().is_some_and(|hub| hub.has(name));
                if is_known || hooks.trusts(item) != Some(TrustVerdict::Unknown) {
                    return None;
                }
                let (what, runs) = (what.clone(), runs.clone());
                Some(UntrustedItem { item: item.clone(), record: Some(record.clone()), what, runs })
            })
            .collect()
    }

    pub fn statuses(&self) -> Vec<ServerStatus> {
        self.hub.as_ref().map(Hub::statuses).unwrap_or_default()
    }
}

/// Whether a tool belongs to a server or is the one that reaches them.
fn is_mcp(spec: &ToolSpec) -> bool {
    spec.name.starts_with(PREFIX) || spec.name == REACH
}

impl McpHost {
    // ── Starting ───────────────────────────────────────────────────────────────────────────────

    /// Starts to connect to the servers that the client gave and the user configured, without waiting. Servers of a
    /// later client are not started; a notice says so. `client` provides those of its servers that it carries over its
    /// own connection; a later client that gives the same ones takes its place
    /// while it is connected. Does nothing if the policy of the machine can't be used.
    pub(super) fn begin(&mut self, core: &mut Core, given: &[McpServer], client: Option<Arc<dyn ClientMcp>>) {
        if core.lineage.is_child() || core.settings.policy.is_unusable() {
            return;
        }
        let provides = |server: &McpServer| matches!(server.way, McpTransport::Client { .. });
        let is_known = |server: &McpServer| !self.begun || self.kept.given.contains(server);
        if let Some(client) = client
            && given.iter().any(|server| provides(server) && is_known(server))
        {
            self.kept.client.add(client);
        }
        if self.begun {
            let others: Vec<&str> = given
                .iter()
                .filter(|server| !self.kept.given.contains(server))
                .map(|server| server.name.as_str())
                .collect();
            if !others.is_empty() {
                let text = format!(
                    "This session is already open with the MCP servers of the client that opened it. Not started: {}.",
                    others.join(", ")
                );
                core.notify(NoticeSeverity::Warning, text);
            }
            return;
        }
        self.begun = true;
        self.kept.given = given.to_vec();
        let of_person = core.settings.mcp.servers.iter().filter(|server| server.from == McpSource::Person);
        let all: Vec<McpServer> = given.iter().chain(of_person).cloned().collect();
        let was_framed = core.thread.frame().is_some_and(|(_, tools)| tools.iter().any(is_mcp));
        if was_framed {
            self.hub(core);
        }
        self.start_servers(core, all);
    }

    /// Starts servers of the repository that the user has allowed since.
    pub(super) fn start_trusted(&mut self, core: &mut Core, hooks: &HookHost) {
        if !self.begun {
            return;
        }
        let allowed = |server: &McpServer| {
            let item = &hooks.found().servers.get(&server.name)?.item;
            let is_trusted = hooks.trusts(item) == Some(TrustVerdict::Trusted);
            let (file, digest) = (item.path.clone(), item.digest.clone());
            let is_of_repository = matches!(server.from, McpSource::Repository { .. });
            (is_of_repository && is_trusted)
                .then(|| McpServer { from: McpSource::Repository { file, digest }, ..server.clone() })
        };
        let servers: Vec<McpServer> = core.settings.mcp.servers.iter().filter_map(allowed).collect();
        self.start_servers(core, servers);
    }

    fn start_servers(&mut self, core: &mut Core, servers: Vec<McpServer>) {
        let (used, off): (Vec<_>, Vec<_>) = servers.into_iter().partition(|server| server.enabled);
        for server in off {
            tracing::debug!(session = %core.id(), server = %server.name, "an MCP server is switched off");
        }
        if !used.is_empty() {
            let off = self.kept.off.clone();
            self.hub(core).start(used, |name| off.contains(name));
        }
        self.refresh_tools(core);
    }

    fn hub(&mut self, core: &Core) -> &mut Hub {
        if self.hub.is_none() {
            let (paths, cwd) = (core.services.paths.clone(), core.workspace.cwd.clone());
            let (rules, workspace) = (core.sandbox_rules(), core.workspace.clone());
            let environment = core.workspace.environment.clone();
            let around = McpContext {
                cwd: core.workspace.cwd.clone(),
                roots: core.roots(),
                environment: sandbox::outside(&core.workspace),
                exposure: Arc::new(core.workspace.exposure().clone()),
                reaper: core.services.reaper.clone(),
                client: self.kept.client.clone(),
                http: core.services.http.within(Network::read(&core.workspace.environment)),
                logins: core.services.paths.data.join(LOGINS),
                listings: ListingCache::new(core.services.paths.data.join(LISTINGS)),
                unchanged: Arc::new(move |server| {
                    Ok(servers::unchanged(server, &paths.repository_roots(&cwd), &environment)?)
                }),
                sandbox: Arc::new(move |directory, sandbox| {
                    of_server(&rules, &workspace, directory.to_path_buf(), sandbox.network)
                }),
                starts_at_use: true,
                ends_with_sessions: core.services.ends_with_sessions,
            };
            let (hub, news) = Hub::new(around, self.questions.clone());
            (self.hub, self.news) = (Some(hub), Some(news));
        }
        self.hub.as_mut().expect("it was just made where there was none")
    }

    // ── Waiting and events ─────────────────────────────────────────────────────────────────────

    /// Whether the first prompt still waits for servers: for a limited time, once per session.
    pub(super) fn waits(&mut self, core: &mut Core) -> bool {
        let connecting = self.hub.as_ref().is_some_and(|hub| !hub.connecting().is_empty());
        match &self.wait {
            ServerWait::Running(timer) if !connecting => {
                // While it runs, the session is not suspended.
                timer.abort();
                self.wait = ServerWait::Over;
                false
            }
            ServerWait::Over => false,
            ServerWait::Running(_) => true,
            ServerWait::Possible => {
                if connecting {
                    let wait = core.settings.mcp.wait;
                    let timer = core.start(tokio::time::sleep(wait), |()| BackgroundResult::ServersWaited);
                    self.wait = ServerWait::Running(timer);
                }
                connecting
            }
        }
    }

    /// The servers had their time to connect.
    pub(super) fn end_wait(&mut self, core: &Core, is_awaited: bool) {
        self.wait = ServerWait::Over;
        let connecting = self.hub.as_ref().map(Hub::connecting).unwrap_or_default();
        // If the prompt was cancelled, nothing waits any more.
        if !connecting.is_empty() && is_awaited {
            let text = format!(
                "Not connected yet, continuing without: MCP server {}. The model gets its tools once they \
                 are available.",
                connecting.join(", ")
            );
            core.notify(NoticeSeverity::Warning, text);
        }
    }

    pub(super) fn handle_event(&mut self, core: &mut Core, news: McpEvent) {
        match news {
            McpEvent::Changed { server } => {
                self.refresh_tools(core);
                let statuses = self.statuses();
                let remarks = statuses.into_iter().filter(|status| status.spec.name == server);
                for remark in remarks.flat_map(|status| status.remarks) {
                    self.remark(core, NoticeSeverity::Info, format!("The MCP server {server}: {remark}."));
                }
            }
            McpEvent::Gone { server, why } => {
                self.refresh_tools(core);
                let text = format!(
                    "The MCP server {server} is not connected: {why}. The session continues without its \
                     tools; /mcp shows the state of the servers."
                );
                self.remark(core, NoticeSeverity::Warning, text);
            }
            McpEvent::Remark(text) => self.remark(core, NoticeSeverity::Info, text),
            // Dropping it refuses the call.
            McpEvent::ModelWanted { .. } => {}
        }
    }

    /// Shows the user a remark once.
    fn remark(&mut self, core: &Core, severity: NoticeSeverity, text: String) {
        if self.kept.shown_remarks.len() < REMARKS_MAX && self.kept.shown_remarks.insert(text.clone()) {
            core.notify(severity, text);
        }
    }

    /// Rebuilds the session's tools from what its servers offer now.
    pub(super) fn refresh_tools(&mut self, core: &mut Core) {
        let Some(hub) = &self.hub else { return };
        let framed = core.thread.frame().map(|(_, tools)| tools).unwrap_or_default();
        let budget = ListBudget::for_window(core.model.known_window());
        core.services.toolbox = core.services.toolbox.without(is_mcp).with(hub.tools(framed, budget));
    }

    /// Carries out a user's command for a server. Returns what was done, or why nothing was.
    pub(super) fn control(&mut self, core: &mut Core, name: &str, command: ServerCommand) -> String {
        let Some(hub) = &mut self.hub else { return "This session has no MCP servers.".to_owned() };
        let done = match hub.control(name, command) {
            Ok(done) => done,
            Err(error) => return error.to_string(),
        };
        match command {
            ServerCommand::Off | ServerCommand::LogOut => drop(self.kept.off.insert(name.to_owned())),
            ServerCommand::On | ServerCommand::Reconnect | ServerCommand::LogIn => {
                self.kept.off.remove(name);
            }
        }
        // Remarks about this server may be shown again.
        self.kept.shown_remarks.retain(|remark| !remark.contains(&format!(" {name} ")));
        self.refresh_tools(core);
        done
    }

    /// Returns the system prompt with the current instructions of the servers.
    pub(super) fn with_instructions(&self, system: &str) -> String {
        let instructions = self.hub.as_ref().map(Hub::instructions).unwrap_or_default();
        instructions::replace_section(system, &instructions::section(&instructions))
    }

    // ── The conversation ───────────────────────────────────────────────────────────────────────

    /// Updates the list of tools: late ones join it and unavailable ones leave it, if no provider cache is lost. The
    /// other tools and the rest of the system prompt stay byte-identical.
    pub(super) fn renew_frame(&mut self, core: &mut Core) -> Result<(), SessionError> {
        if self.hub.is_none() {
            return Ok(());
        }
        if !prefix_is_new(core) && !prefix_is_cold(core) {
            return Ok(());
        }
        self.refresh_tools(core);
        let Some((system, framed)) = core.thread.frame() else { return Ok(()) };
        let now = core.services.toolbox.specs();
        let own = framed.iter().filter(|spec| !is_mcp(spec));
        let tools: Vec<ToolSpec> = own.chain(now.iter().filter(|spec| is_mcp(spec))).cloned().collect();
        let with_instructions = self.with_instructions(system);
        if tools == framed && with_instructions == system {
            return Ok(());
        }
        let system = with_instructions;
        core.commit(Change::Framed { system, tools })?;
        self.refresh_tools(core);
        Ok(())
    }

    /// The reminder about server tools that are not in the model's list. If the model can't reach them, the user gets
    /// a notice.
    pub(super) fn late_tools(&mut self, core: &Core) -> Option<Topic> {
        let (Some(hub), Some((_, framed))) = (&self.hub, core.thread.frame()) else { return None };
        let lines = hub.unlisted_tool_lines(framed);
        let instructions: Vec<(String, String)> = self.late_instructions(core);
        if lines.is_empty() && instructions.is_empty() {
            return None;
        }
        if !framed.iter().any(|spec| spec.name == REACH) {
            let text = "MCP servers were added since this conversation began. Their tools join it at the next \
                        compaction; /compact makes one now.";
            self.remark(core, NoticeSeverity::Info, text.to_owned());
            return None;
        }
        let more = lines.len().saturating_sub(LATE_LINES_MAX);
        let shown: Vec<String> = lines.iter().take(LATE_LINES_MAX).map(|line| format!("- {line}")).collect();
        let more = if more > 0 { format!("\n- and {more} more") } else { String::new() };
        let tools = format!(
            "These tools of MCP servers are not in your list of tools. Reach them with the tool {REACH}:\n{}{more}",
            shown.join("\n")
        );
        let tools = (!lines.is_empty()).then_some(tools);
        let instructions = instructions.into_iter().map(|(name, words)| {
            format!(
                "About its tools, in its own words, which are not the person's: {}",
                instructions::quoted(&name, &words)
            )
        });
        let lines = tools.into_iter().chain(instructions).map(|text| (text.clone(), text)).collect();
        Some(Topic { by: BY, what: ReminderText::Lines { head: String::new(), lines } })
    }

    /// Servers' instructions that the system prompt does not contain.
    fn late_instructions(&self, core: &Core) -> Vec<(String, String)> {
        let (Some(hub), Some((system, _))) = (&self.hub, core.thread.frame()) else { return Vec::new() };
        let ready: Vec<String> =
            hub.statuses().into_iter().filter(is_ready).map(|status| status.spec.name).collect();
        let mut instructions = hub.instructions();
        instructions.retain(|(name, words)| {
            ready.contains(name) && !system.contains(&instructions::quoted(name, words))
        });
        instructions
    }
}

fn is_ready(status: &ServerStatus) -> bool {
    matches!(status.state, ServerState::Ready | ServerState::Idle)
}

/// Whether a compaction has replaced the conversation since the frame was set.
fn prefix_is_new(core: &Core) -> bool {
    let since = core.thread.frame_entry().map(|frame| frame.seq);
    let newer = core.thread.view_changes().iter().rev().take_while(|entry| Some(entry.seq) > since);
    newer.into_iter().any(|entry| matches!(entry.change, Change::Compacted { .. }))
}

/// Whether the last reply is so old that no provider still caches the conversation.
fn prefix_is_cold(core: &Core) -> bool {
    let last =
        core.thread.entries().iter().rev().find(|entry| matches!(entry.change, Change::Replied { .. }));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    last.is_some_and(|last| now.saturating_sub(Duration::from_millis(last.at)) > CACHE_TIME_MAX)
}
