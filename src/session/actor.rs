//! The session's task: the only writer of its thread, with at most one turn.
//!
//! Anything slow runs elsewhere and returns as an `ActorEvent`. Only the model's stream is polled here, so that a delta
//! reaches the client directly.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;

use super::child::ChildNews;
use super::child_requests::note_running_cost;
use super::client_list::Activity;
use super::compacting::Compactor;
use super::core::{Core, HostProcess};
use super::editor_buffers::EditorBuffers;
use super::effects::{self, ModelCallEvent};
use super::ending::settle_log;
use super::hook_host::{HookHost, HookNews};
use super::inbox::{Channel, Inbox};
use super::instructions::InstructionWatch;
use super::mcp::{McpHost, prompts};
use super::questions::Questions;
use super::recipes::SessionRecipes;
use super::registry::SessionServices;
use super::session_state;
use super::subagents::Subagents;
use super::tool_host::{ToolHost, ToolNews};
use super::work::{Attaching, BackgroundResult, JobResult, RunningTurn};
use super::{ClientId, Opening, SessionCommand, SessionEvent};
use super::{budget, diagnostics, optional_tools};
use epitome_hooks::hook_context::EventData;
use epitome_mcp::McpEvent;
use epitome_platform::blocking;
use epitome_store::Journal;
use epitome_thread::{CallId, CallOutput, Thread};
use epitome_tools::ask_user::AskUser;
use epitome_tools::buffers::PendingEditorRequest;
use epitome_tools::question::{QuestionMessage, QuestionReply};

/// A live session: the core and the components.
pub struct Session {
    pub(super) core: Core,
    pub(super) inbox: Inbox,
    pub(super) work: Option<RunningTurn>,
    pub(super) recipes: SessionRecipes,
    pub(super) tools: ToolHost,
    pub(super) hooks: HookHost,
    pub(super) compactor: Compactor,
    pub(super) editors: EditorBuffers,
    /// The state of the instruction files at the last scan.
    pub(super) instructions: InstructionWatch,
    pub(super) subagents: Subagents,
    pub(super) mcp: McpHost,
    pub(super) questions: Questions,
}

/// Why a session stops working.
enum Pause {
    /// It can be suspended.
    Idle,
    Closing,
}

enum ActorEvent {
    Command(Option<SessionCommand>),
    Model(ModelCallEvent),
    Job(Result<JobResult, tokio::task::JoinError>),
    Tool(ToolNews),
    /// The next piece of a summary.
    Summary(String),
    Child(ChildNews),
    Hook(HookNews),
    Server(McpEvent),
    Asked(QuestionMessage),
    Wished(PendingEditorRequest),
    Background(Result<BackgroundResult, tokio::task::JoinError>),
}

/// Creates a session on a blocking thread: it reads the settings and the working directory, which may be in a
/// network file system that does not answer.
pub(super) async fn open_session(
    services: SessionServices,
    thread: Thread,
    journal: Journal,
    channel: Channel,
    opening: &Opening,
) -> Box<Session> {
    let opening = opening.clone();
    blocking::run(move || Box::new(Session::new(services, thread, journal, channel, &opening))).await
}

impl Session {
    /// Blocks on the disk.
    pub(super) fn new(
        services: SessionServices,
        thread: Thread,
        journal: Journal,
        channel: Channel,
        opening: &Opening,
    ) -> Session {
        let (mut core, problems) = Core::new(services, thread, journal, opening);
        let questions = Questions::new();
        let ask_user = AskUser { door: questions.sender() };
        core.services.toolbox = core.services.toolbox.with(vec![Arc::new(ask_user)]);
        budget::limit_costs(&mut core, questions.sender());
        optional_tools::offer(&mut core);
        let edits = diagnostics::edit_watch(&mut core, questions.sender());
        core.clients.notify_problems(&problems);
        Session {
            inbox: Inbox::new(channel),
            work: None,
            recipes: SessionRecipes::default(),
            tools: ToolHost::new(edits),
            hooks: HookHost::default(),
            compactor: Compactor::default(),
            editors: EditorBuffers::new(&core.thread),
            instructions: InstructionWatch::default(),
            subagents: Subagents::new(core.id().clone(), core.settings.agents.max_parallel),
            mcp: McpHost::new(questions.sender()),
            questions,
            core,
        }
    }

    /// Connects the session with the others of its process, which can read its activity.
    pub(super) fn join_process(&mut self, process: HostProcess, activity: Arc<Activity>) {
        self.core.process = process;
        self.core.clients.share_activity(activity);
    }

    /// Runs until the session is closed, its last client has left, or it is suspended. Returns the clients that tried
    /// to attach too late; the caller can open the log again for them.
    ///
    /// Boxed, because a session is large and a future stores values moved into it several times.
    pub(super) async fn run(mut self: Box<Self>) -> Vec<Attaching> {
        self.watch_idle();
        self.take_up_checkpoints();
        loop {
            match AssertUnwindSafe(handle_events(&mut self)).catch_unwind().await {
                Ok(Pause::Closing) => break,
                Ok(Pause::Idle) => {}
                Err(_) => {
                    tracing::error!(session = %self.core.id(), "a session panicked; its log is as it was");
                    return self.take_no_more();
                }
            }
            if let Some(sessions) = self.core.process.sessions() {
                match sessions.park(self) {
                    None => return Vec::new(),
                    Some(awake) => self = awake,
                }
            }
            self.handle(ActorEvent::Background(Ok(BackgroundResult::Idle)));
        }
        self.run_last_hooks(EventData::SessionEnd { reason: "other" }).await;
        self.end_for_good().await
    }

    async fn event(&mut self) -> ActorEvent {
        let (model, jobs) = match &mut self.work {
            Some(work) => (work.model.as_mut(), Some(&mut work.jobs)),
            None => (None, None),
        };
        let http = &self.core.services.http;
        // Always in the same order, by priority, so that simulations are reproducible. Nothing starves: the queues are
        // bounded, and the model's stream, which may always be ready, comes last.
        tokio::select! {
            biased;
            command = self.inbox.next() => ActorEvent::Command(command),
            Some(job) = async { jobs.expect("the branch is on only with jobs").join_next().await },
                if jobs.as_ref().is_some_and(|jobs| !jobs.is_empty()) => ActorEvent::Job(job),
            Some(piece) = self.compactor.next_piece() => ActorEvent::Summary(piece),
            news = self.tools.next_news() => ActorEvent::Tool(news),
            Some(news) = self.subagents.next() => ActorEvent::Child(news),
            Some(news) = self.hooks.next_news() => ActorEvent::Hook(news),
            Some(news) = self.mcp.news() => ActorEvent::Server(news),
            Some(asked) = self.questions.next() => ActorEvent::Asked(asked),
            Some(wished) = self.editors.next() => ActorEvent::Wished(wished),
            Some(done) = self.core.background.join_next(), if !self.core.background.is_empty() => ActorEvent::Background(done),
            step = async {
                let call = model.expect("the branch is on only with a model call");
                // A panic in a decoder only fails the reply, not the session.
                AssertUnwindSafe(call.step(http)).catch_unwind().await.unwrap_or_else(|_| ModelCallEvent::Failed(effects::internal_error()))
            },
                if model.is_some() => ActorEvent::Model(step),
        }
    }

    fn handle(&mut self, event: ActorEvent) {
        match event {
            ActorEvent::Command(Some(command)) => self.command(command),
            // All senders are gone, so no command can arrive any more.
            ActorEvent::Command(None) => self.core.clients.close(),
            ActorEvent::Model(step) => {
                self.model_step(step);
                note_running_cost(self);
            }
            ActorEvent::Job(Ok(JobResult::Tool(call, outcome, plan))) => self.tool_done(&call, outcome, plan),
            ActorEvent::Job(Ok(JobResult::Then(next))) => next(self),
            ActorEvent::Job(Err(error)) if error.is_cancelled() => {}
            ActorEvent::Job(Err(error)) => {
                // Jobs catch their own panics, so it is unknown which job this was.
                tracing::error!(session = %self.core.id(), %error, "a job of a turn panicked");
                self.cancel();
            }
            ActorEvent::Tool(ToolNews::Output(call, output)) => self.progressed(call, output),
            // Clients that follow the session's state are notified.
            ActorEvent::Tool(ToolNews::CommandEnded) => {}
            ActorEvent::Summary(piece) => self.compactor.show_piece(&self.core, piece),
            ActorEvent::Child(news) => self.child_news(news),
            ActorEvent::Hook(HookNews::Call(call)) => self.serve(call),
            ActorEvent::Hook(HookNews::Late(news)) => self.hooks.late().take_in(&self.core, news),
            ActorEvent::Server(news) => prompts::server_event(self, news),
            ActorEvent::Asked(asked) => {
                if let Some(closed) = self.questions.open(asked, &self.core.clients) {
                    self.core.start(closed, |session, ask| {
                        session.questions.close(ask, QuestionReply::Cancelled, &session.core.clients);
                    });
                }
            }
            ActorEvent::Wished(wished) => {
                if let Some(waited) =
                    self.editors.request(wished, self.prompting_client(), &self.core.clients)
                {
                    self.core.start(waited, |session, waited| {
                        session.editors.waited(waited, &session.core.clients);
                    });
                }
            }
            ActorEvent::Background(Ok(done)) => self.background_done(done),
            ActorEvent::Background(Err(error)) if error.is_cancelled() => {}
            ActorEvent::Background(Err(error)) => {
                tracing::error!(session = %self.core.id(), %error, "background work panicked");
                self.background_panicked(error.id());
            }
        }
    }

    /// The client that sent the turn's prompt; file tools use its editor.
    pub(super) fn prompting_client(&self) -> Option<ClientId> {
        self.work.as_ref()?.responders.first().map(|(responder, _)| responder.client())
    }

    fn progressed(&mut self, call: CallId, output: CallOutput) {
        if self.tools.background().is_from(&call) {
            return self.core.clients.announce_to_followers(&SessionEvent::CallProgress { call, output });
        }
        // Output that arrives after the outcome is part of the outcome.
        if self.core.thread.open_calls().contains(&call) {
            self.core.announce(&SessionEvent::CallProgress { call, output });
        }
    }

    /// Processes the output that running calls have queued so far.
    pub(super) fn take_progress(&mut self) {
        for (call, output) in self.tools.output_by_now() {
            self.progressed(call, output);
        }
    }
}

/// Handles events until the session is closed or can be suspended.
async fn handle_events(session: &mut Session) -> Pause {
    loop {
        session.settle_absent();
        session.drive().await;
        if settle_log(session).await.is_err() {
            continue;
        }
        if session.work.is_none() {
            session.core.clients.release();
        }
        session.publish_activity();
        session_state::refresh(session);
        if session.core.clients.are_closing() {
            return Pause::Closing;
        }
        session.questions.follow(&session.core.clients);
        let event = session.event().await;
        let is_idle = matches!(event, ActorEvent::Background(Ok(BackgroundResult::Idle)));
        if is_idle && session.may_suspend() {
            session.core.release_checkpoints().await;
        }
        if is_idle && session.may_suspend() {
            return Pause::Idle;
        }
        session.handle(event);
    }
}
