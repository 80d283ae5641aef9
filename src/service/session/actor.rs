//! The session's task: the only writer of its thread, with at most one turn.
//!
//! Anything slow runs elsewhere and returns as an `ActorEvent`. Only the model's stream is polled here, so that a delta
//! reaches the client directly.
//!
//! Everything that changes a session stands below this module: `clients` takes commands, `driving` carries out what a
//! turn asks for, and `finished` goes on where work that ran elsewhere has ended.

mod agents;
mod background_callback;
mod callbacks;
mod calls;
mod checkpoints;
mod child;
mod child_requests;
#[cfg(test)]
mod child_requests_tests;
mod clients;
mod commands;
mod compacting;
mod consent;
mod cross_session_edit;
mod driving;
mod ending;
mod finished;
mod hook_dispatch;
mod hook_services;
mod hooks;
mod hooks_aside;
mod instructions;
mod mcp_prompts;
mod models;
mod recipes;
mod replies;
mod rounds;
mod session_state;
pub mod suspended;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::task::JoinSet;

use super::background::BackgroundResult;
use super::child::news::ChildNews;
use super::client_list::Activity;
use super::compacting::Compactor;
use super::core::Core;
use super::editor_buffers::EditorBuffers;
use super::effects::{self, ModelCallEvent};
use super::hook_host::{HookHost, HookNews};
use super::host::HostProcess;
use super::inbox::{Channel, Inbox};
use super::instructions::InstructionWatch;
use super::mcp::McpHost;
use super::questions::Questions;
use super::recipes::SessionRecipes;
use super::services::SessionServices;
use super::subagents::Subagents;
use super::tool_host::{ToolHost, ToolNews};
use super::work::{JobResult, RunningTurn};
use super::{Attaching, ClientId, Opening, SessionCommand, SessionEvent};
use super::{budget, diagnostics, optional_tools};
use epitome_hooks::hook_context::EventData;
use epitome_mcp::McpEvent;
use epitome_platform::blocking;
use epitome_store::Journal;
use epitome_thread::{CallId, CallOutput, SessionId, Thread};
use epitome_tools::ask_user::AskUser;
use epitome_tools::buffers::PendingEditorRequest;
use epitome_tools::question::QuestionMessage;

/// A live session: the core and the components.
pub struct Session {
    core: Core,
    inbox: Inbox,
    work: Option<RunningTurn>,
    recipes: SessionRecipes,
    tools: ToolHost,
    hooks: HookHost,
    compactor: Compactor,
    editors: EditorBuffers,
    /// The state of the instruction files at the last scan.
    instructions: InstructionWatch,
    subagents: Subagents,
    mcp: McpHost,
    questions: Questions,
}

/// Why a session's task stops.
pub(super) enum SessionPause {
    /// The session can be suspended. If it is not, it runs again.
    Idle(Box<Session>),
    /// It has ended. These clients tried to attach too late; the log can be opened again for them.
    Closed(Vec<Attaching>),
}

/// Why events are no longer handled.
enum EventsEnd {
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
    EditorRequested(PendingEditorRequest),
    Background(Result<BackgroundResult, tokio::task::JoinError>),
}

/// The next job that ends; `None` if there is none.
async fn next_of(jobs: Option<&mut JoinSet<JobResult>>) -> Option<Result<JobResult, tokio::task::JoinError>> {
    jobs?.join_next().await
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
        let ask_user = AskUser { questions: questions.sender() };
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
        self.take_up_checkpoints();
    }

    pub(super) fn id(&self) -> &SessionId {
        self.core.id()
    }

    /// Whether any commands have not been received yet.
    pub(super) fn has_commands(&self) -> bool {
        self.inbox.has_commands()
    }

    /// How the session begins, for hooks.
    pub(super) fn set_source(&mut self, source: &'static str) {
        self.hooks.set_source(source);
    }

    /// See `Core::adopt_policy`.
    pub(super) fn adopt_policy(&mut self) {
        self.core.adopt_policy();
    }

    /// Writes configured options to the log of a new session. Returns whether they are in the journal already.
    pub(super) fn adopt_settings(&mut self) -> bool {
        self.core.adopt_settings();
        !self.core.log.is_behind()
    }

    /// Runs until the session is closed, its last client has left, or it can be suspended.
    ///
    /// Boxed, because a session is large and a future stores values moved into it several times.
    pub(super) async fn run(mut self: Box<Self>) -> SessionPause {
        self.watch_idle();
        loop {
            match AssertUnwindSafe(self.handle_events()).catch_unwind().await {
                Ok(EventsEnd::Closing) => break,
                // A child, and a session of a process that ends, are not suspended.
                Ok(EventsEnd::Idle) if self.core.process.sessions().is_some() => {
                    return SessionPause::Idle(self);
                }
                Ok(EventsEnd::Idle) => self.watch_idle(),
                Err(_) => {
                    tracing::error!(session = %self.core.id(), "a session panicked; its log is as it was");
                    return SessionPause::Closed(self.take_no_more());
                }
            }
        }
        self.run_last_hooks(EventData::SessionEnd { reason: "other" }).await;
        SessionPause::Closed(self.end_for_good().await)
    }

    async fn event(&mut self) -> ActorEvent {
        let (model, jobs, outcome_hooks) = match &mut self.work {
            Some(work) => (work.model.as_mut(), Some(&mut work.jobs), Some(&mut work.outcome_hooks)),
            None => (None, None, None),
        };
        let http = &self.core.services.http;
        // Always in the same order, by priority, so that simulations are reproducible. Nothing starves: the queues are
        // bounded, and the model's stream, which may always be ready, comes last.
        tokio::select! {
            biased;
            command = self.inbox.next() => ActorEvent::Command(command),
            Some(job) = next_of(jobs) => ActorEvent::Job(job),
            Some(job) = next_of(outcome_hooks) => ActorEvent::Job(job),
            Some(piece) = self.compactor.next_piece() => ActorEvent::Summary(piece),
            news = self.tools.next_news() => ActorEvent::Tool(news),
            Some(news) = self.subagents.next() => ActorEvent::Child(news),
            Some(news) = self.hooks.next_news() => ActorEvent::Hook(news),
            Some(news) = self.mcp.news() => ActorEvent::Server(news),
            Some(asked) = self.questions.next() => ActorEvent::Asked(asked),
            Some(request) = self.editors.next() => ActorEvent::EditorRequested(request),
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
                self.note_running_cost();
            }
            ActorEvent::Job(Ok(result)) => self.job_ended(result),
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
            ActorEvent::Server(news) => self.handle_server_event(news),
            ActorEvent::Asked(asked) => {
                if let Some(closed) = self.questions.open(asked, &self.core.clients) {
                    self.core.start(closed, BackgroundResult::QuestionExpired);
                }
            }
            ActorEvent::EditorRequested(request) => {
                if let Some(waited) =
                    self.editors.request(request, self.prompting_client(), &self.core.clients)
                {
                    self.core.start(waited, BackgroundResult::EditorWaited);
                }
            }
            ActorEvent::Background(Ok(result)) => self.background_ended(result),
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

    /// Handles events until the session is closed or can be suspended.
    async fn handle_events(&mut self) -> EventsEnd {
        loop {
            self.settle_absent();
            if self.core.log.has_failed() {
                self.leave_failed_log(None).await;
            }
            self.drive().await;
            if self.settle_log().await.is_err() {
                continue;
            }
            if self.work.is_none() {
                self.core.clients.release();
            }
            self.publish_activity();
            self.refresh_state();
            if self.core.clients.are_closing() {
                return EventsEnd::Closing;
            }
            self.questions.follow(&self.core.clients);
            let event = match self.event().await {
                ActorEvent::Command(Some(command)) if self.core.log.has_failed() => {
                    let Some(command) = self.leave_failed_log(Some(command)).await else { continue };
                    ActorEvent::Command(Some(command))
                }
                event => event,
            };
            let is_idle = matches!(event, ActorEvent::Background(Ok(BackgroundResult::Idle)));
            if is_idle && self.can_rest() {
                self.core.release_checkpoints().await;
                if self.can_rest() {
                    return EventsEnd::Idle;
                }
            }
            self.handle(event);
        }
    }
}
