//! The one writer: a task that owns a thread and at most one turn.
//!
//! `Session::commit` is the only place that journals, applies and announces. Everything that takes
//! time runs elsewhere and comes back as an `Event`; only the model's stream is polled here, so that
//! nothing stands between a delta and the client.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::agents_shown::ShownAgent;
use super::arrival::Wholes;
use super::audience::{Audience, Pulse};
use super::buffers::{self, OpenWish};
use super::child::{ChildNews, Lineage};
use super::compacting::Compactor;
use super::counts::Counts;
use super::effects::{self, ModelStep};
use super::foreign::ForeignCall;
use super::hook_host::HookHost;
use super::instructions::Watch;
use super::kept;
use super::mcp::Mcp;
use super::questions::OpenQuestion;
use super::recipes::Rendering;
use super::registry::{Others, Overrides, Services};
use super::remembered::Remembered;
use super::services::{SERVICE_CALLS_MAX, ServiceCall};
use super::side::Side;
use super::tasks::Follower;
use super::trace;
use super::work::{Background, Closer, Done, Prompt, Responder, TooLate, Work};
use super::{Answer, ClientId, Opening, Out, SessionCommand, SessionError};
use epitome_checkpoint::{Bounds, Checkpoints};
use epitome_config::Settings;
use epitome_mcp::News;
use epitome_problem::Problem;
use epitome_provider::endpoint::{Endpoint, LocalServer};
use epitome_provider::learned::Source;
use epitome_provider::spent::{Spent, cost_of_change};
use epitome_provider::wire::encoding::Encoding;
use epitome_recipe::agents::Agents;
use epitome_recipe::catalog::Catalog;
use epitome_recipe::watch::Registration;
use epitome_secrets::Masker;
use epitome_spans::Timed;
use epitome_store::{Journal, StoreError};
use epitome_thread::{CallId, Change, Entry, MessageId, Seq, SessionId, StopReason, Thread};
use epitome_tokens as tokens;
use epitome_tools::Workspace;
use epitome_tools::ask_user::AskUser;
use epitome_tools::background::Background as BackgroundCommands;
use epitome_tools::buffers::{Buffers, Wished};
use epitome_tools::question::{Asked, Door};
use epitome_tools::read_state::Files;

/// How many pieces of live output may wait for the session. What a command prints beyond that is not
/// shown live; its outcome has the whole.
const PROGRESS_MAX: usize = 64;

/// New output of a running call.
type Progress = (CallId, String);

/// Entries are on disk at the latest this long after they were appended.
const SYNC_WITHIN: Duration = Duration::from_secs(1);

/// The names and values that a client's editor has.
type Environment = Vec<(OsString, OsString)>;

/// A live session.
pub struct Session {
    pub(super) id: SessionId,
    /// What the log tells of it.
    pub(super) timed: Timed,
    pub(super) services: Services,
    pub(super) thread: Thread,
    pub(super) workspace: Arc<Workspace>,
    pub(super) settings: Arc<Settings>,
    pub(super) overrides: Arc<Overrides>,
    pub(super) catalog: Arc<Catalog>,
    /// Whether the recipes were read once; they are, off this task, when a session begins.
    pub(super) catalog_read: bool,
    pub(super) work: Option<Work>,
    pub(super) waiting: VecDeque<Prompt>,
    pub(super) endpoint: Option<Endpoint>,
    /// Who says how large the endpoint's window is.
    pub(super) window_from: Source,
    /// The endpoint's server was asked for the window of the loaded model.
    pub(super) asked_loaded: bool,
    /// Its provider was asked for its list of models since the model is in use.
    pub(super) list_asked: bool,
    pub(super) found: Option<LocalServer>,
    pub(super) audience: Audience,
    pub(super) pulse: Arc<Pulse>,
    /// Who sent the newest prompt: their own words are not shown to them again.
    pub(super) speaker: Option<ClientId>,
    pub(super) closers: Vec<Closer>,
    pub(super) closing: bool,
    pub(super) background: JoinSet<Background>,
    /// A local server is being looked for.
    pub(super) searching: bool,
    pub(super) sync_due: bool,
    /// Problems that nobody was there to see, and those that were told.
    pub(super) untold_problems: Vec<Problem>,
    pub(super) told_problems: HashSet<Problem>,
    pub(super) journal: Journal,
    pub(super) progress: (mpsc::Sender<Progress>, mpsc::Receiver<Progress>),
    pub(super) lineage: Lineage,
    pub(super) hooks: HookHost,
    /// When somebody wanted something last.
    pub(super) active_at: Instant,
    /// The first entry of this life: what ends a turn that the one before left open.
    pub(super) repaired_from: Seq,
    pub(super) compactor: Compactor,
    /// What the log holds of outcomes that were too long for the view.
    pub(super) wholes: Wholes,
    /// What the person keeps allowed here.
    pub(super) kept_reader: kept::Reader,
    /// What masks keys, with the environment that it was made for.
    pub(super) masker_made: Option<(Arc<Environment>, Arc<Masker>)>,
    /// What the model knows of files.
    pub(super) files: Arc<Files>,
    /// What editors hold unsaved, where wishes to them come out, and those that are open.
    pub(super) buffers: Arc<Buffers>,
    pub(super) wishes: mpsc::Receiver<Wished>,
    pub(super) wishes_open: Vec<OpenWish>,
    /// Clients that are not asked any more what they hold.
    pub(super) deaf: HashSet<ClientId>,
    /// The files that hold instructions, as they were seen last.
    pub(super) instructions: Watch,
    /// The model's commands that run beside the conversation; with the session they end.
    pub(super) background_commands: Arc<BackgroundCommands>,
    /// The person was told what the sandbox does not hold here.
    pub(super) told_of_sandbox: bool,
    pub(super) others: Others,
    pub(super) counts: Arc<Counts>,
    pub(super) side: Option<Side>,
    pub(super) service_calls: (mpsc::Sender<ServiceCall>, mpsc::Receiver<ServiceCall>),
    /// What children of this session have to say; each gets a sender. It has no capacity, because a child
    /// can't wait here and its parent must miss nothing: what bounds it is a child's rounds and calls.
    pub(super) children: (mpsc::UnboundedSender<ChildNews>, mpsc::UnboundedReceiver<ChildNews>),
    pub(super) foreign: Vec<ForeignCall>,
    /// Children at work.
    pub(super) followers: Vec<Follower>,
    /// Agents at work, at any depth, for clients that show them; each behind who started it.
    pub(super) agents_shown: Vec<ShownAgent>,
    /// What the person allowed for the rest of the session, here or at a child of it.
    pub(super) remembered: Remembered,
    /// The agents that the model is told of, once their files were read.
    pub(super) agents: Arc<Agents>,
    /// As many as may work at a time.
    pub(super) agent_slots: Arc<Semaphore>,
    pub(super) mcp: Mcp,
    /// The way of questions to the person, and where they come out.
    pub(super) door: Door,
    asked: mpsc::Receiver<Asked>,
    pub(super) questions: Vec<OpenQuestion>,
    pub(super) cost: Option<f64>,
    pub(super) counter: tokens::Counter,
    /// Tokens are counted with the vocabulary, as it was there when the last reply came. It is loaded in the background,
    /// and a number that was shown must not change by that.
    pub(super) counts_exactly: bool,
    /// What was written of the conversation for its model's provider.
    pub(super) encoding: Encoding,
    pub(super) commands: mpsc::Receiver<SessionCommand>,
    sender: mpsc::WeakSender<SessionCommand>,
    next_message: u64,
    pub(super) watch: Option<Arc<Registration>>,
    pub(super) rendering: Option<Rendering>,
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
        let slots = usize::try_from(settings.agents.max_parallel).unwrap_or(usize::MAX);
        let (door, asked) = Door::new();
        let (buffers, wishes) = Buffers::new(buffers::at_work_since(&thread));
        let remembered = Remembered::of(thread.rules());
        services.toolbox = services.toolbox.with(vec![Arc::new(AskUser { door: door.clone() })]);
        let counts_exactly = services.rulers.ready().is_some();
        let mut session = Session {
            mcp: Mcp::new(services.toolbox.clone()),
            door,
            asked,
            questions: Vec::new(),
            id: thread.session().clone(),
            timed: trace::session(thread.session(), &thread),
            next_message: thread.next_message().0,
            cost: Spent::of(&settings, &thread).cost,
            repaired_from: thread.next_seq(),
            services,
            thread,
            workspace: Arc::new(workspace),
            settings: Arc::new(settings),
            overrides: opening.overrides.clone(),
            catalog: Arc::new(Catalog::default()),
            catalog_read: false,
            work: None,
            waiting: VecDeque::new(),
            endpoint: None,
            window_from: Source::Guess,
            asked_loaded: false,
            list_asked: false,
            found: None,
            audience: Audience::default(),
            pulse: Arc::default(),
            speaker: None,
            closers: Vec::new(),
            closing: false,
            background: JoinSet::new(),
            searching: false,
            sync_due: false,
            untold_problems: Vec::new(),
            told_problems: HashSet::new(),
            journal,
            progress: mpsc::channel(PROGRESS_MAX),
            lineage: Lineage::default(),
            hooks: HookHost::default(),
            active_at: Instant::now(),
            compactor: Compactor::default(),
            wholes: Wholes::default(),
            kept_reader: kept::Reader::default(),
            masker_made: None,
            files: Arc::default(),
            buffers: Arc::new(buffers),
            wishes,
            wishes_open: Vec::new(),
            deaf: HashSet::new(),
            instructions: Watch::default(),
            background_commands: Arc::default(),
            told_of_sandbox: false,
            others: Others::default(),
            counts: Arc::default(),
            side: None,
            service_calls: mpsc::channel(SERVICE_CALLS_MAX),
            children: mpsc::unbounded_channel(),
            foreign: Vec::new(),
            followers: Vec::new(),
            agents_shown: Vec::new(),
            remembered,
            agents: Arc::default(),
            agent_slots: Arc::new(Semaphore::new(slots)),
            counter: tokens::Counter::default(),
            counts_exactly,
            encoding: Encoding::default(),
            commands,
            watch: None,
            rendering: None,
            rewinding: false,
            sender,
        };
        session.show_problems(&problems);
        if let Err(error) = session.close_open_turn(StopReason::Interrupted) {
            tracing::error!(session = %session.id, %error, "an interrupted turn could not be ended");
        }
        session
    }

    /// Lives until it is closed, its last client has gone, or it rests. Gives back those who wanted in when it was
    /// too late: the log can be opened again for them.
    /// Boxed, because a future keeps what is moved into it in several places, and a session is large.
    pub(super) async fn run(mut self: Box<Self>) -> Vec<TooLate> {
        self.await_rest();
        self.take_up_checkpoints();
        loop {
            self.settle_absent();
            self.settle_unshown();
            self.drive().await;
            self.let_go();
            self.show_pulse();
            if self.closing {
                break;
            }
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
            Some((call, output)) = self.progress.1.recv() => Event::Progress(call, output),
            Some(news) = self.children.1.recv() => Event::Child(news),
            Some(call) = self.service_calls.1.recv() => Event::Service(call),
            Some(news) = self.mcp.news() => Event::Server(news),
            Some(asked) = self.asked.recv() => Event::Asked(asked),
            Some(wished) = self.wishes.recv() => Event::Wished(wished),
            Some(done) = self.background.join_next(), if !self.background.is_empty() => Event::Background(done),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Command(Some(command)) => self.command(command),
            // Every handle is gone: nobody can want anything any more.
            Event::Command(None) => self.closing = true,
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
            Event::Asked(asked) => self.asked(asked),
            Event::Wished(wished) => self.wished(wished),
            Event::Background(Ok(done)) => self.background_done(done),
            Event::Background(Err(error)) if error.is_cancelled() => {}
            Event::Background(Err(error)) => {
                tracing::error!(session = %self.id, %error, "background work panicked");
                self.background_panicked();
            }
        }
    }

    fn progressed(&mut self, call: CallId, output: String) {
        // What comes after the outcome is in the outcome.
        if self.thread.open_calls().contains(&call) {
            self.announce(&Out::CallProgress { call, output });
        }
    }

    /// Takes what running calls had printed so far; no more than may wait for it.
    pub(super) fn hear_progress(&mut self) {
        for _ in 0..PROGRESS_MAX {
            let Ok((call, output)) = self.progress.1.try_recv() else { return };
            self.progressed(call, output);
        }
    }

    // ── The log ────────────────────────────────────────────────────────────────────────────────

    /// Journals, applies, announces. Where the journal refuses, the thread is as it was.
    pub(super) fn commit(&mut self, change: Change) -> Result<Arc<Entry>, SessionError> {
        let change = self.sized(change);
        let entry = self.journal.append(change).map_err(|error| {
            tracing::error!(session = %self.id, %error, "an entry could not be written");
            SessionError::Store(format!("the session's log can't be written: {error}"))
        })?;
        tracing::debug!(session = %self.id, entry = %entry.seq, change = entry.change.kind(), "committed");
        let scope = self.work.as_ref().map_or(self.timed.span(), |work| work.trace.scope());
        trace::compacted(scope, &entry.change);
        self.learn_tokens(&entry);
        self.thread.apply(entry.clone());
        match &entry.change {
            Change::Allowed { rule } => self.remembered.allow(rule),
            Change::Forgotten { rule } => self.remembered.forget(rule),
            _ => {}
        }
        let cost = cost_of_change(&self.settings, &entry.change);
        if let Some(cost) = cost {
            *self.cost.get_or_insert(0.0) += cost;
        }
        self.counts.take(&entry.change, cost);
        self.audience.tell(&self.id, |client| Out::Entry {
            entry: entry.clone(),
            replay: false,
            own: self.speaker == Some(client),
        });
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
        if !self.sync_due {
            self.sync_due = true;
            let syncer = self.journal.syncer();
            self.background.spawn(async move {
                tokio::time::sleep(SYNC_WITHIN).await;
                Background::Synced(tokio::task::spawn_blocking(move || syncer.sync()).await.unwrap_or(Ok(())))
            });
        }
    }

    /// Answers once what was committed is on disk.
    pub(super) fn answer_when_synced(&mut self, responder: Responder, answer: Answer) {
        let syncer = self.journal.syncer();
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
        let syncer = self.journal.syncer();
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
        self.audience.tell(&self.id, |_| out.clone());
    }

    /// Passes over ids that a change gives to its own messages.
    pub(super) fn skip_messages(&mut self, count: usize) {
        self.next_message += count as u64;
    }

    /// A new message's id: unused by the log and by what is streaming.
    pub(super) fn fresh_message(&mut self) -> MessageId {
        self.next_message = self.next_message.max(self.thread.next_message().0);
        self.next_message += 1;
        MessageId(self.next_message - 1)
    }
}

fn variable(environment: &[(OsString, OsString)], name: &str) -> Option<OsString> {
    environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
}
