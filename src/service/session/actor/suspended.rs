//! Suspended sessions: when a session is idle, its task ends and its conversation is freed from memory. Only state
//! that is not in the log stays, a few hundred bytes, until the session is used again.
//!
//! Clients notice nothing: they stay attached, and the next command finds the session as it was. A session is never
//! suspended while something depends on its task (a turn, a question, a resident hook, a hook or callback in the
//! background, or a background command).
//!
//! A session whose log can't be written any more, because its disk has failed or another process has the session now, goes on
//! with the log as it is once that can be opened again. Everything that is not made from the log stays as it is: hooks and
//! commands that run, and open questions. So none of them can keep a session on a log that has failed.

use std::sync::Arc;
use std::time::Duration;

use super::Session;
use super::clients::refuse_client;
use crate::background::BackgroundResult;
use crate::client_list::ClientList;
use crate::compacting::Compactor;
use crate::core::{Configured, Core};
use crate::draft::ReplyDraft;
use crate::editor_buffers::{self, EditorBuffers};
use crate::hook_host::HookHost;
use crate::inbox::Channel;
use crate::log::{SessionLog, read_log};
use crate::mcp::KeptServers;
use crate::services::SessionServices;
use crate::{Attachment, ClientId, NoticeSeverity, SessionCommand, SessionError, SessionEvent, Watcher};
use epitome_provider::budget::{BudgetGrants, CostBudget};
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
    /// The client that asks for a replay of the conversation, which has what others have added.
    reloading: Option<ClientId>,
    settings: Configured,
    /// The user's permissions to exceed the budget.
    granted: Option<BudgetGrants>,
    /// The exports of hooks for the session's start, which do not run again.
    exports: Option<Arc<str>>,
    hooks: HookHost,
    /// The end of the session still has something to do: hooks for it run, or the cost of an unused summary is recorded.
    owes_end: bool,
    /// The commands have ended, but their last output may not have been read.
    background_commands: Arc<BackgroundCommands>,
    editors: editor_buffers::SuspendedBuffers,
    compactor: Compactor,
    servers: KeptServers,
}

impl Session {
    /// Checks again later whether the session is idle.
    pub(super) fn watch_idle(&mut self) {
        let after = self.core.services.suspend_after;
        self.core.start(tokio::time::sleep(after), |()| BackgroundResult::Idle);
    }

    /// Whether the session was idle for long enough, and nothing depends on its task.
    pub(super) fn can_rest(&self) -> bool {
        let is_needed = self.work.is_some()
            || self.inbox.has_prompts()
            || self.inbox.is_paused()
            || self.recipes.are_rendering()
            || self.hooks.has_background_callback()
            || self.subagents.have_calls()
            || self.core.clients.wait_to_leave()
            || self.hooks.open_consent().is_some()
            || self.questions.are_open()
            || self.tools.background().running() > 0
            || self.core.lineage.is_child()
            || self.hooks.has_residents()
            || self.hooks.has_any_aside();
        !is_needed
            && !self.core.clients.are_closing()
            && self.core.background.is_empty()
            && self.core.clients.idle_for() >= self.core.services.suspend_after
    }

    /// Ends the session except for its state outside the log. The journal is unlocked afterwards.
    pub(crate) fn suspend(mut self) -> SuspendedSession {
        self.core.trace.end("at rest");
        self.compactor.end_turn();
        // Names every field, so that a new one can't be lost by mistake. The others are made again from the log, the
        // files and the clients.
        let Session {
            core,
            inbox: _,
            work: _,
            recipes: _,
            tools,
            hooks,
            compactor,
            editors,
            instructions: _,
            subagents: _,
            mcp,
            questions: _,
        } = self;
        let Core {
            thread,
            log: _,
            clients,
            permissions: _,
            model: _,
            settings,
            services,
            workspace,
            lineage: _,
            process: _,
            background: _,
            trace: _,
        } = core;
        SuspendedSession {
            seen: thread.next_seq(),
            reloading: None,
            clients,
            settings,
            granted: services.http.budget().map(CostBudget::grants),
            exports: workspace.exports().cloned(),
            owes_end: hooks.owe_end() || compactor.has_unused(),
            hooks: hooks.at_rest(),
            background_commands: tools.background().clone(),
            editors: editors.suspend(),
            compactor,
            servers: mcp.suspend(),
        }
    }

    /// Ends the turn, of which a log that has failed can't keep the rest, and refuses the prompts that wait. Then opens the log again: once without a command,
    /// and for each command that needs it. Returns the command unless that fails; then it is refused.
    pub(super) async fn leave_failed_log(
        &mut self,
        command: Option<SessionCommand>,
    ) -> Option<SessionCommand> {
        if let Err(error) = self.core.check_log() {
            // Their clients may be at another machine by now, which has begun them.
            for prompt in self.inbox.take_all() {
                prompt.responder.answer(Err(error.clone()));
            }
            if self.work.is_some() {
                self.abandon(&error);
            }
        }
        // It logs what could not be written.
        drop(self.settle_log().await);
        let asker = command.as_ref().and_then(SessionCommand::asker);
        // A client that was refused is refused again.
        let is_known = asker.is_none_or(|(_, client)| self.core.clients.know(client));
        let reloading = match &command {
            None if self.core.log.has_just_failed() => None,
            Some(SessionCommand::Attach(attaching)) => attaching.reloads(),
            Some(
                SessionCommand::Prompt { .. }
                | SessionCommand::Steer { .. }
                | SessionCommand::SetMode { .. }
                | SessionCommand::SetOption { .. }
                | SessionCommand::Record { .. }
                | SessionCommand::Mutate { .. },
            ) if is_known => None,
            _ => return command,
        };
        let is_needed = self.core.process.sessions().is_some() && !self.core.clients.are_closing();
        if !is_needed
            || self.work.is_some()
            || self.core.lineage.is_child()
            || self.subagents.have_calls()
            || self.core.clients.wait_to_leave()
        {
            return command;
        }
        let core = &mut self.core;
        core.log.close();
        let (journal, thread) = match read_log(&core.services.store, core.id()).await {
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(session = %core.id(), %error, "the log can't be opened again yet");
                let responder = asker.and_then(|(ticket, client)| core.responder(ticket, client));
                match (command?, responder) {
                    (SessionCommand::Attach(attaching), _) => refuse_client(core, attaching, &error),
                    (SessionCommand::Record { answer, .. }, _) => drop(answer.send(Err(error.clone()))),
                    (_, Some(responder)) => responder.answer(Err(error.clone())),
                    (_, None) => {}
                }
                if matches!(error, SessionError::NotFound(_)) {
                    core.clients.close();
                }
                return None;
            }
        };
        let seen = core.thread.next_seq();
        let draft = ReplyDraft::of(&core.services.paths.data, core.id());
        core.log = SessionLog::new(journal, draft, &thread);
        core.thread = thread;
        core.permissions.follow(core.thread.rules());
        core.model.follow(&core.settings, &core.thread);
        self.tools.log_reopened();
        self.drop_prepared();
        self.instructions.require_check();
        self.subagents.set_mode(self.core.thread.mode());
        self.core.announce(&SessionEvent::Options(self.core.options()));
        show_later(&mut self.core, seen, reloading);
        self.end_interrupted_turn().await;
        // Another machine, with another policy, may have changed the mode meanwhile.
        self.core.adopt_policy();
        command
    }
}

/// Shows the clients what the log lacks or has in addition to what they have seen. `except`: the client that is about to be
/// shown the conversation.
fn show_later(core: &mut Core, seen: Seq, except: Option<ClientId>) {
    let lost = seen.0.saturating_sub(core.thread.next_seq().0);
    if lost > 0 {
        let text =
            format!("The last {lost} entries of this conversation did not reach the disk and are lost.");
        core.notify(NoticeSeverity::Warning, text);
    }
    if let Some(damage) = core.log.damage() {
        core.notify(NoticeSeverity::Warning, damage.to_string());
    }
    for entry in core.thread.entries().since(seen) {
        core.clients.announce_later_entry(entry, except);
    }
}

impl SuspendedSession {
    /// Resumes with the log, which was read again; blocks on the disk. Entries written by others in the meantime are shown
    /// to the clients.
    pub(crate) fn resume(
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
        if let (Some(granted), Some(budget)) = (self.granted, session.core.services.http.budget()) {
            budget.resume(granted);
        }
        if let Some(exports) = self.exports {
            session.core.workspace = Arc::new(session.core.workspace.exporting(exports));
        }
        session.hooks = self.hooks;
        session.tools.resume(self.background_commands);
        session.editors = EditorBuffers::resume(self.editors);
        session.compactor = self.compactor;
        session.core.clients.note_activity();
        show_later(&mut session.core, self.seen, self.reloading);
        session.mcp.resume(&mut session.core, self.servers);
        session.hooks.load(&mut session.core, session.inbox.sender());
        session.recipes.load(&mut session.core, session.inbox.sender());
        session.core.locate();
        Some(session)
    }

    /// Sets the client for which the conversation will be replayed.
    pub(crate) fn set_reloading(&mut self, client: Option<ClientId>) {
        self.reloading = client;
    }

    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.clients.ids()
    }

    pub(crate) fn attachment(&self, client: ClientId) -> Option<Attachment> {
        self.clients.attachment(client).cloned()
    }

    /// Whether the session has to be resumed for its end.
    pub(crate) fn owes_end(&self) -> bool {
        self.owes_end
    }

    pub(crate) fn is_last(&self, client: ClientId) -> bool {
        self.clients.opening(client).is_some() && !self.clients.others_stay(client)
    }

    pub(crate) fn leave(&mut self, client: ClientId) {
        self.clients.leave(client);
        self.clients.forget_refused(client);
        self.clients.unwatch(client);
    }

    /// Removes and returns the observers.
    pub(crate) fn take_watchers(&mut self) -> Vec<Watcher> {
        self.clients.take_watchers(self.seen)
    }

    pub(crate) fn unwatch(&mut self, client: ClientId) {
        self.clients.unwatch(client);
    }

    /// The numbers of clients and observers.
    pub(crate) fn present(&self) -> (Vec<ClientId>, usize) {
        self.clients.present()
    }
}
