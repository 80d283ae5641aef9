//! Suspended sessions: when a session is idle, its task ends and its conversation is freed from memory. Only state
//! that is not in the log stays, a few hundred bytes, until the session is used again.
//!
//! Clients notice nothing: they stay attached, and the next command finds the session as it was. A session is never
//! suspended while something depends on its task (a turn, a question, a resident hook, a callback or a background
//! command).

use std::sync::Arc;
use std::time::Duration;

use super::actor::Session;
use super::client_list::ClientList;
use super::compacting::Compactor;
use super::core::Configured;
use super::editor_buffers::{self, EditorBuffers};
use super::hook_host::HookHost;
use super::inbox::Channel;
use super::registry::SessionServices;
use super::work;
use super::{Attachment, ClientId, SessionEvent};
use epitome_config::McpServer;
use epitome_store::Journal;
use epitome_thread::{Seq, Thread};
use epitome_tools::background::BackgroundCommands;

/// Idle time before a session is suspended.
pub const REST_AFTER: Duration = Duration::from_secs(5 * 60);

/// The environment variable that sets this time for a process, in seconds.
pub const REST_VARIABLE: &str = "EPITOME_REST_S";

/// The state of a session that is not in its log.
pub struct SuspendedSession {
    clients: ClientList,
    /// The entries before this one have been shown to the clients.
    seen: Seq,
    settings: Configured,
    hooks: HookHost,
    /// They have ended, but their last output may not have been read.
    background_commands: Arc<BackgroundCommands>,
    /// The state of editors' buffers.
    editors: editor_buffers::SuspendedBuffers,
    compactor: Compactor,
    mcp_servers: Vec<McpServer>,
}

impl Session {
    /// Checks again later whether the session is idle.
    pub(super) fn watch_idle(&mut self) {
        let after = self.core.services.suspend_after;
        self.core.background.spawn(async move {
            tokio::time::sleep(after).await;
            work::BackgroundResult::Idle
        });
    }

    /// Whether the session was idle for long enough, and nothing depends on its task.
    pub(super) fn may_suspend(&self) -> bool {
        let holds = self.work.is_some()
            || self.inbox.has_prompts()
            || self.recipes.are_rendering()
            || self.hooks.has_background_callback()
            || self.subagents.have_calls()
            || self.core.clients.wait_to_leave()
            || !self.core.background.is_empty()
            || self.hooks.open_consent().is_some()
            || self.questions.are_open()
            || self.tools.background().running() > 0
            || self.core.lineage.is_child()
            || self.hooks.has_residents();
        !holds
            && !self.core.clients.are_closing()
            && self.core.clients.idle_for() >= self.core.services.suspend_after
    }

    /// Ends the session except for its state outside the log. The journal is unlocked afterwards.
    pub(super) fn suspend(mut self) -> SuspendedSession {
        self.core.trace.end("at rest");
        SuspendedSession {
            seen: self.core.thread.next_seq(),
            clients: self.core.clients,
            settings: self.core.settings,
            hooks: self.hooks.at_rest(),
            background_commands: self.tools.background().clone(),
            editors: self.editors.suspend(),
            compactor: self.compactor.at_rest(),
            mcp_servers: self.mcp.client_servers(),
        }
    }
}

impl SuspendedSession {
    /// Resumes with the log, which was read again. Entries written by others in the meantime are shown to the
    /// clients.
    pub(super) fn resume(
        self,
        services: SessionServices,
        thread: Thread,
        journal: Journal,
        channel: Channel,
    ) -> Option<Box<Session>> {
        let opening = self.clients.first()?.clone();
        let mut session = Box::new(Session::new(services, thread, journal, channel, &opening));
        // Problems in files were reported when the session was opened.
        session.core.clients = self.clients;
        session.core.settings = self.settings;
        session.hooks = self.hooks;
        session.tools.resume(self.background_commands);
        session.editors = EditorBuffers::resume(self.editors);
        session.compactor = self.compactor;
        session.core.clients.note_activity();
        for entry in session.core.thread.entries().iter().filter(|entry| entry.seq >= self.seen) {
            session.core.announce(&SessionEvent::Entry { entry: entry.clone(), replay: false, own: false });
        }
        session.mcp.begin(&mut session.core, &self.mcp_servers);
        session.hooks.load(&mut session.core, session.inbox.sender());
        session.recipes.load(&mut session.core, session.inbox.sender());
        session.core.locate();
        Some(session)
    }

    pub(super) fn attachment(&self, client: ClientId) -> Option<Attachment> {
        self.clients.attachment(client).cloned()
    }

    /// Removes a client; returns whether others remain.
    pub(super) fn leave(&mut self, client: ClientId) -> bool {
        self.clients.leave(client);
        self.clients.unwatch(client);
        !self.clients.is_empty()
    }

    pub(super) fn unwatch(&mut self, client: ClientId) {
        self.clients.unwatch(client);
    }

    /// The numbers of clients and observers.
    pub(super) fn counts(&self) -> (usize, usize) {
        self.clients.counts()
    }
}
