//! The one writer: a task that owns a thread and at most one turn.
//!
//! `Session::commit` is the only place that journals, applies and announces. Everything that takes
//! time runs elsewhere and comes back as an `Event`; only the model's stream is polled here, so that
//! nothing stands between a delta and the client.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::child::{ChildNews, Lineage};
use super::client_list::{Activity, Clients};
use super::compacting::Compactor;
use super::counts::Counts;
use super::editor_buffers::EditorBuffers;
use super::effects::{self, ModelStep};
use super::hook_host::HookHost;
use super::instructions::Watch;
use super::log::Log;
use super::mcp::Mcp;
use super::model_link::ModelLink;
use super::notices::Notices;
use super::permissions::Permissions;
use super::questions::Questions;
use super::recipe_catalog::Recipes;
use super::registry::{Others, Overrides, Services};
use super::services::{SERVICE_CALLS_MAX, ServiceCall};
use super::side::Side;
use super::subagents::Subagents;
use super::tool_host::ToolHost;
use super::trace;
use super::work::{Background, Done, Prompt, Responder, TooLate, Work};
use super::{Answer, ClientId, Opening, Out, SessionCommand, SessionError};
use epitome_checkpoint::{Bounds, Checkpoints};
use epitome_config::Settings;
use epitome_mcp::News;
use epitome_provider::spent::cost_of_change;
use epitome_store::{Journal, StoreError};
use epitome_thread::{CallId, Change, Entry, MessageId, SessionId, StopReason, Thread};
use epitome_timing::TimedSpan;
use epitome_tools::Workspace;
use epitome_tools::ask_user::AskUser;
use epitome_tools::buffers::Wished;
use epitome_tools::question::Asked;

/// A live session.
pub struct Session {
    pub(super) id: SessionId,
    /// What the log tells of it.
    pub(super) timed: TimedSpan,
    pub(super) services: Services,
    pub(super) thread: Thread,
    pub(super) workspace: Arc<Workspace>,
    pub(super) settings: Arc<Settings>,
    pub(super) overrides: Arc<Overrides>,
    pub(super) recipes: Recipes,
    pub(super) work: Option<Work>,
    pub(super) waiting: VecDeque<Prompt>,
    pub(super) model: ModelLink,
    pub(super) clients: Clients,
    pub(super) background: JoinSet<Background>,
    pub(super) notices: Notices,
    pub(super) log: Log,
    pub(super) tools: ToolHost,
    pub(super) lineage: Lineage,
    pub(super) hooks: HookHost,
    pub(super) compactor: Compactor,
    pub(super) editors: EditorBuffers,
    /// The files that hold instructions, as they were seen last.
    pub(super) instructions: Watch,
    pub(super) others: Others,
    pub(super) counts: Arc<Counts>,
    pub(super) side: Option<Side>,
    pub(super) service_calls: (mpsc::Sender<ServiceCall>, mpsc::Receiver<ServiceCall>),
    pub(super) subagents: Subagents,
    pub(super) permissions: Permissions,
    pub(super) mcp: Mcp,
    pub(super) questions: Questions,
    pub(super) commands: mpsc::Receiver<SessionCommand>,
    sender: mpsc::WeakSender<SessionCommand>,
    /// Files are being put back, or looked at for it: prompts wait.
    pub(super) rewinding: bool,
}

enum Event {
    Command(Option<SessionCommand>),
    Model(ModelStep),
    Job(Result<Done, tokio::task::JoinError>),
    Progress(CallId, String),
    /// More of a summary.
    Summary(String),
    Child(ChildNews),
    Service(ServiceCall),
    Server(News),
    Asked(Asked),
    Wished(Wished),
    Background(Result<Background, tokio::task::JoinError>),
}

impl Session {
    pub(super) fn new(
        mut services: Services,
        thread: Thread,
        journal: Journal,
        (sender, commands): (mpsc::WeakSender<SessionCommand>, mpsc::Receiver<SessionCommand>),
        opening: &Opening,
    ) -> Session {
        services.checkpoints.get_or_insert_with(|| {
            Checkpoints::new(&services.paths.data, thread.session(), Bounds::default())
        });
        let (settings, problems) =
            Settings::load(&services.paths, Some(thread.cwd()), |name| variable(&opening.environment, name));
        let settings = opening.overrides.over(settings);
        let workspace = Workspace {
            cwd: thread.cwd().to_path_buf(),
            directories: opening.directories.clone(),
            environment: opening.environment.clone(),
        };
        let subagents = Subagents::new(thread.session().clone(), settings.agents.max_parallel);
        let questions = Questions::new();
        let editors = EditorBuffers::new(&thread);
        let permissions = Permissions::new(thread.rules());
        services.toolbox = services.toolbox.with(vec![Arc::new(AskUser { door: questions.sender() })]);
        let mut session = Session {
            mcp: Mcp::new(services.toolbox.clone()),
            questions,
            id: thread.session().clone(),
            clients: Clients::new(thread.session().clone()),
            timed: trace::session(thread.session(), &thread),
            model: ModelLink::new(&services, &settings, &thread),
            log: Log::new(journal, &thread),
            services,
            thread,
            workspace: Arc::new(workspace),
            settings: Arc::new(settings),
            overrides: opening.overrides.clone(),
            recipes: Recipes::default(),
            work: None,
            waiting: VecDeque::new(),
            background: JoinSet::new(),
            notices: Notices::default(),
            tools: ToolHost::new(),
            lineage: Lineage::default(),
            hooks: HookHost::default(),
            compactor: Compactor::default(),
            editors,
            instructions: Watch::default(),
            others: Others::default(),
            counts: Arc::default(),
            side: None,
            service_calls: mpsc::channel(SERVICE_CALLS_MAX),
            subagents,
            permissions,
            commands,
            rewinding: false,
            sender,
        };
        session.show_problems(&problems);
        if let Err(error) = session.close_open_turn(StopReason::Interrupted) {
            tracing::error!(session = %session.id, %error, "an interrupted turn could not be ended");
        }
        session
    }

    /// Takes its place among the sessions of the process, which see its activity.
    pub(super) fn join_process(&mut self, others: Others, counts: Arc<Counts>, activity: Arc<Activity>) {
        (self.others, self.counts) = (others, counts);
        self.clients.share_activity(activity);
    }

    /// Lives until it is closed, its last client has gone, or it rests. Gives back those who wanted in when it was
    /// too late: the log can be opened again for them.
    /// Boxed, because a future keeps what is moved into it in several places, and a session is large.
    pub(super) async fn run(mut self: Box<Self>) -> Vec<TooLate> {
        self.await_rest();
        self.take_up_checkpoints();
        loop {
            self.settle_absent();
            self.drive().await;
            if self.work.is_none() {
                self.clients.release();
            }
            self.publish_activity();
            if self.clients.are_closing() {
                break;
            }
            self.questions.follow(&self.clients);
            let event = self.event().await;
            let is_idle = matches!(event, Event::Background(Ok(Background::Idle)));
            if is_idle && self.may_rest() {
                self.rest_checkpoints().await;
            }
            if is_idle
                && self.may_rest()
                && let Some(sessions) = self.others.upgrade()
            {
                match sessions.lay_down(self) {
                    None => return Vec::new(),
                    Some(awake) => self = awake,
                }
            }
            self.handle(event);
        }
        self.tell_of_end().await;
        self.end_for_good().await
    }

    async fn event(&mut self) -> Event {
        let (model, jobs, pieces) = match &mut self.work {
            Some(work) => (work.model.as_mut(), Some(&mut work.jobs), work.pieces.as_mut()),
            None => (None, None, None),
        };
        let http = &self.services.http;
        tokio::select! {
            command = self.commands.recv() => Event::Command(command),
            step = async {
                let call = model.expect("the branch is on only with a model call");
                // A decoder that panics costs its reply, not the session.
                AssertUnwindSafe(call.step(http)).catch_unwind().await.unwrap_or_else(|_| effects::panicked())
            },
                if model.is_some() => Event::Model(step),
            Some(job) = async { jobs.expect("the branch is on only with jobs").join_next().await },
                if jobs.as_ref().is_some_and(|jobs| !jobs.is_empty()) => Event::Job(job),
            Some(piece) = async { pieces.expect("the branch is on only with a summary").recv().await },
                if pieces.is_some() => Event::Summary(piece),
            Some((call, output)) = self.tools.next_output() => Event::Progress(call, output),
            Some(news) = self.subagents.next() => Event::Child(news),
            Some(call) = self.service_calls.1.recv() => Event::Service(call),
            Some(news) = self.mcp.news() => Event::Server(news),
            Some(asked) = self.questions.next() => Event::Asked(asked),
            Some(wished) = self.editors.next() => Event::Wished(wished),
            Some(done) = self.background.join_next(), if !self.background.is_empty() => Event::Background(done),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Command(Some(command)) => self.command(command),
            // Every handle is gone: nobody can want anything any more.
            Event::Command(None) => self.clients.close(),
            Event::Model(step) => self.model_step(step),
            Event::Job(Ok(done)) => self.job_done(done),
            Event::Job(Err(error)) if error.is_cancelled() => {}
            Event::Job(Err(error)) => {
                // Jobs guard themselves; what still panics is not known by name.
                tracing::error!(session = %self.id, %error, "a job of a turn panicked");
                self.cancel();
            }
            Event::Progress(call, output) => self.progressed(call, output),
            Event::Summary(piece) => self.compaction_wrote(piece),
            Event::Child(news) => self.child_news(news),
            Event::Service(call) => self.serve(call),
            Event::Server(news) => self.heard_of_server(news),
            Event::Asked(asked) => {
                if let Some(closed) = self.questions.open(asked, &self.clients) {
                    self.background.spawn(async move { Background::QuestionOver(closed.await) });
                }
            }
            Event::Wished(wished) => {
                if let Some(waited) = self.editors.request(wished, self.prompting_client(), &self.clients) {
                    self.background.spawn(async move { Background::EditorRequestOver(waited.await) });
                }
            }
            Event::Background(Ok(done)) => self.background_done(done),
            Event::Background(Err(error)) if error.is_cancelled() => {}
            Event::Background(Err(error)) => {
                tracing::error!(session = %self.id, %error, "background work panicked");
                self.background_panicked();
            }
        }
    }

    /// The client whose prompt began the turn: its editor counts.
    pub(super) fn prompting_client(&self) -> Option<ClientId> {
        self.work.as_ref()?.responders.first().map(|(responder, _)| responder.client())
    }

    fn progressed(&mut self, call: CallId, output: String) {
        // What comes after the outcome is in the outcome.
        if self.thread.open_calls().contains(&call) {
            self.announce(&Out::CallProgress { call, output });
        }
    }

    /// Takes what running calls had printed so far; no more than may wait for it.
    pub(super) fn hear_progress(&mut self) {
        for (call, output) in self.tools.output_by_now() {
            self.progressed(call, output);
        }
    }

    // ── The log ────────────────────────────────────────────────────────────────────────────────

    /// Journals, applies, announces. Where the journal refuses, the thread is as it was.
    pub(super) fn commit(&mut self, change: Change) -> Result<Arc<Entry>, SessionError> {
        let change = self.sized(change);
        let entry = self.log.append(change).map_err(|error| {
            tracing::error!(session = %self.id, %error, "an entry could not be written");
            SessionError::Store(format!("the session's log can't be written: {error}"))
        })?;
        tracing::debug!(session = %self.id, entry = %entry.seq, change = entry.change.kind(), "committed");
        let scope = self.work.as_ref().map_or(self.timed.span(), |work| work.trace.scope());
        trace::compacted(scope, &entry.change);
        self.model.learn_tokens(&entry, &self.thread);
        self.thread.apply(entry.clone());
        self.permissions.apply(&entry.change);
        let cost = cost_of_change(&self.settings, &entry.change);
        if let Some(cost) = cost {
            self.model.add_cost(cost);
        }
        self.counts.take(&entry.change, cost);
        self.clients.announce_entry(&entry);
        match &entry.change {
            Change::Replied { .. }
            | Change::Compacted { .. }
            | Change::Pruned { .. }
            | Change::Mutated { .. }
            | Change::Edited { .. }
            | Change::Undone { .. }
            | Change::Redone { .. }
            | Change::Rewound { .. } => self.announce_usage(),
            _ => {}
        }
        self.sync_soon();
        Ok(entry)
    }

    pub(super) fn sync_soon(&mut self) {
        if let Some(sync) = self.log.sync_soon() {
            self.background.spawn(sync);
        }
    }

    /// Answers once what was committed is on disk.
    pub(super) fn answer_when_synced(&mut self, responder: Responder, answer: Answer) {
        let syncer = self.log.syncer();
        self.background.spawn_blocking(move || {
            let synced = syncer.sync();
            let failed = |error: &StoreError| {
                SessionError::Store(format!("the session's log can't be written: {error}"))
            };
            responder.answer(synced.as_ref().map(|()| answer).map_err(failed));
            Background::Synced(synced)
        });
    }

    /// Starts bringing the log to the disk, beside whatever comes next.
    pub(super) fn sync_beside(&mut self) {
        let syncer = self.log.syncer();
        self.background.spawn_blocking(move || Background::Synced(syncer.sync()));
    }

    /// Whether somebody has sent something that was not taken yet.
    pub(super) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    pub(super) fn commands_sender(&self) -> mpsc::WeakSender<SessionCommand> {
        self.sender.clone()
    }

    pub(super) fn announce(&self, out: &Out) {
        self.clients.announce(out);
    }

    /// Passes over ids that a change gives to its own messages.
    pub(super) fn skip_messages(&mut self, count: usize) {
        self.log.skip_messages(count);
    }

    /// A new message's id: unused by the log and by what is streaming.
    pub(super) fn fresh_message(&mut self) -> MessageId {
        self.log.fresh_message(&self.thread)
    }
}

fn variable(environment: &[(OsString, OsString)], name: &str) -> Option<OsString> {
    environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
}
