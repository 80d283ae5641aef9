//! Sessions at rest: where nothing happens for a while, a session's task ends and its conversation leaves the
//! memory. What is not in the log stays here, a few hundred bytes, until somebody wants something of it again.
//!
//! Clients notice nothing: they stay where they are, and the next command finds the session as it was. Only one
//! that holds something alive (a turn, a question, a resident hook, a callback or a command in the background) never
//! rests.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::actor::Session;
use super::audience::Audience;
use super::compacting::Compactor;
use super::hook_host::HookHost;
use super::registry::{Overrides, Services};
use super::work;
use super::{Attachment, ClientId, Out, SessionCommand};
use epitome_config::{McpServer, Settings};
use epitome_problem::Problem;
use epitome_store::Journal;
use epitome_thread::{Seq, Thread};
use epitome_tools::background::Background;
use epitome_tools::buffers::Buffers;

/// How long nobody wants anything of a session before it rests.
pub const REST_AFTER: Duration = Duration::from_secs(5 * 60);

/// Sets that time, in seconds, for a whole process.
pub const REST_VARIABLE: &str = "EPITOME_REST_S";

/// What of a session is not in its log.
pub struct Resting {
    audience: Audience,
    /// The entries that the audience has seen end here.
    seen: Seq,
    settings: Arc<Settings>,
    overrides: Arc<Overrides>,
    hooks: HookHost,
    told_problems: HashSet<Problem>,
    told_of_sandbox: bool,
    /// They have ended, and what they printed last may not have been read.
    background_commands: Arc<Background>,
    /// What was seen of editors' texts.
    buffers: Arc<Buffers>,
    deaf: HashSet<ClientId>,
    compactor: Compactor,
    speaker: Option<ClientId>,
    mcp_servers: Vec<McpServer>,
}

impl Session {
    /// Looks again later whether nothing has happened meanwhile.
    pub(super) fn await_rest(&mut self) {
        let after = self.services.rest_after;
        self.background.spawn(async move {
            tokio::time::sleep(after).await;
            work::Background::Idle
        });
    }

    /// Whether nobody has wanted anything for long enough, and nothing is held that ends with the task.
    pub(super) fn may_rest(&self) -> bool {
        let holds = self.work.is_some()
            || !self.waiting.is_empty()
            || self.rendering.is_some()
            || self.side.is_some()
            || !self.foreign.is_empty()
            || !self.closers.is_empty()
            || !self.background.is_empty()
            || self.open_consent().is_some()
            || !self.questions.is_empty()
            || self.sync_due
            || self.background_commands.running() > 0
            || self.lineage.is_child()
            || self.hooks.has_residents();
        !holds && !self.closing && self.active_at.elapsed() >= self.services.rest_after
    }

    /// Ends the session but for what is not in its log. Its journal is free afterwards.
    pub(super) fn lie_down(mut self) -> Resting {
        self.timed.end("at rest");
        Resting {
            seen: self.thread.next_seq(),
            audience: self.audience,
            settings: self.settings,
            overrides: self.overrides,
            hooks: self.hooks.at_rest(),
            told_problems: self.told_problems,
            told_of_sandbox: self.told_of_sandbox,
            background_commands: self.background_commands,
            buffers: self.buffers,
            deaf: self.deaf,
            compactor: self.compactor.at_rest(),
            speaker: self.speaker,
            mcp_servers: self.mcp.given(),
        }
    }
}

impl Resting {
    /// Goes on with a log that was read again. What others wrote into it meanwhile is shown.
    pub(super) fn get_up(
        self,
        services: Services,
        thread: Thread,
        journal: Journal,
        channel: (mpsc::WeakSender<SessionCommand>, mpsc::Receiver<SessionCommand>),
    ) -> Option<Box<Session>> {
        let opening = self.audience.first()?.clone();
        let mut session = Box::new(Session::new(services, thread, journal, channel, &opening));
        // The files' problems were told when the session was opened.
        session.untold_problems.clear();
        session.audience = self.audience;
        session.settings = self.settings;
        session.overrides = self.overrides;
        session.hooks = self.hooks;
        session.told_problems = self.told_problems;
        session.told_of_sandbox = self.told_of_sandbox;
        session.background_commands = self.background_commands;
        let (buffers, wishes) = self.buffers.on_another_way();
        (session.buffers, session.wishes) = (Arc::new(buffers), wishes);
        session.deaf = self.deaf;
        session.compactor = self.compactor;
        session.speaker = self.speaker;
        session.active_at = Instant::now();
        for entry in session.thread.entries().iter().filter(|entry| entry.seq >= self.seen) {
            let news = |_| Out::Entry { entry: entry.clone(), replay: false, own: false };
            session.audience.tell(&session.id, news);
        }
        session.begin_mcp(&self.mcp_servers);
        session.load_hooks();
        session.load_recipes();
        session.locate_quietly();
        Some(session)
    }

    pub(super) fn attachment(&self, client: ClientId) -> Option<Attachment> {
        self.audience.seat(client).map(|opening| opening.attachment.clone())
    }

    /// Lets a client go; whether others stay.
    pub(super) fn leave(&mut self, client: ClientId) -> bool {
        self.audience.leave(client);
        self.audience.unwatch(client);
        !self.audience.is_empty()
    }

    pub(super) fn unwatch(&mut self, client: ClientId) {
        self.audience.unwatch(client);
    }

    /// The clients, and the observers.
    pub(super) fn counts(&self) -> (usize, usize) {
        self.audience.counts()
    }
}
