//! The core of a session: its conversation, and what all of its components use.
//!
//! `Core::commit` is the only place that numbers, applies and announces a change. Clients see the change, and its
//! consequences begin, once [`Core::settle`] has confirmed that it is in the journal.

use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

use super::Overrides;
use super::background::BackgroundResult;
use super::client_list::ClientList;
use super::draft::ReplyDraft;
use super::host::HostProcess;
use super::lineage::Lineage;
use super::log::{SessionLog, Settled, WriteFailure};
use super::model_link::ModelLink;
use super::own_grants::OwnGrants;
use super::permissions::Permissions;
use super::responder::Responder;
use super::services::SessionServices;
use super::trace::{self, Trace};
use super::{ClientId, NoticeSeverity, Opening, SessionAnswer, SessionError, SessionEvent};
use epitome_checkpoint::{Bounds, Checkpoints};
use epitome_config::Settings;
use epitome_platform::blocking;
use epitome_provider::endpoint;
use epitome_provider::spent::cost_of_change;
use epitome_store::{Journal, StoreError};
use epitome_thread::problem::Problem;
use epitome_thread::{Change, Content, Entry, Message, MessageId, Origin, SessionId, Thread};
use epitome_tools::Workspace;
use epitome_tools::permission::ruled;

/// See the module.
pub(super) struct Core {
    pub thread: Thread,
    pub log: SessionLog,
    pub clients: ClientList,
    pub permissions: Permissions,
    pub model: ModelLink,
    pub settings: Configured,
    pub services: SessionServices,
    pub workspace: Arc<Workspace>,
    pub lineage: Lineage,
    pub process: HostProcess,
    pub background: JoinSet<BackgroundResult>,
    pub trace: Trace,
}

/// The settings of a session.
#[derive(Clone)]
pub(super) struct Configured {
    settings: Arc<Settings>,
    /// Settings from the command line of the client that opened the session.
    overrides: Arc<Overrides>,
}

impl Configured {
    pub fn overrides(&self) -> Arc<Overrides> {
        self.overrides.clone()
    }

    /// Returns a shared handle for work that outlives a borrow of the session.
    pub fn shared(&self) -> Arc<Settings> {
        self.settings.clone()
    }

    pub fn change(&mut self, with: impl FnOnce(&mut Settings)) {
        with(Arc::make_mut(&mut self.settings));
    }
}

impl Deref for Configured {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

impl Core {
    /// Loads the settings. Also returns the problems in their files.
    pub fn new(
        mut services: SessionServices,
        thread: Thread,
        journal: Journal,
        opening: &Opening,
    ) -> (Core, Vec<Problem>) {
        services.checkpoints.get_or_insert_with(|| {
            Checkpoints::new(&services.paths.data, thread.session(), Bounds::default())
        });
        let (settings, mut problems) =
            opening.overrides.load(&services.paths, thread.cwd(), &opening.environment);
        let workspace = Workspace::new(
            thread.cwd().to_path_buf(),
            opening.directories.clone(),
            opening.environment.clone(),
        )
        .exposing(Arc::new(endpoint::exposure(&settings)))
        .sharing(services.running.clone());
        problems.extend(ruled::unmatched(&settings.permissions, &workspace));
        let core = Core {
            log: SessionLog::new(journal, ReplyDraft::of(&services.paths.data, thread.session()), &thread),
            clients: ClientList::new(thread.session().clone()),
            permissions: Permissions::new(
                thread.rules(),
                OwnGrants::of(&services.store, &services.paths.data, &thread),
            ),
            model: ModelLink::new(&services, &settings, &thread),
            settings: Configured { settings: Arc::new(settings), overrides: opening.overrides.clone() },
            services,
            workspace: Arc::new(workspace),
            lineage: Lineage::default(),
            process: HostProcess::default(),
            background: JoinSet::new(),
            trace: Trace::new(&thread),
            thread,
        };
        (core, problems)
    }

    pub fn id(&self) -> &SessionId {
        self.thread.session()
    }

    // ── The log ────────────────────────────────────────────────────────────────────────────────

    /// Sends a change to the journal's writer, applies and announces it. Clients don't see it before [`Core::settle`]. Fails
    /// at once, and logs that, if the journal is damaged.
    pub fn commit(&mut self, change: Change) -> Result<Arc<Entry>, SessionError> {
        let change = self.sized(change);
        let change = self.clients.sign(change);
        let kind = change.kind();
        let entry = self.log.stage(change).map_err(|error| {
            tracing::error!(session = %self.id(), kind, %error, "an entry could not be written");
            log_error(&error)
        })?;
        if self.log.is_behind() {
            self.clients.hold_events();
        }
        tracing::debug!(session = %self.id(), entry = %entry.seq, change = entry.change.kind(), "committed");
        trace::compacted(self.trace.scope(), &entry.change);
        self.model.learn_tokens(&entry, &self.thread);
        self.thread.apply(entry.clone());
        self.permissions.apply(&entry.change);
        let cost = cost_of_change(&self.settings, &entry.change);
        if let Some(cost) = cost {
            self.model.add_cost(cost);
        }
        self.process.count(&entry.change, cost);
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
        if let Some(due) = self.log.sync_soon() {
            self.start(due, |()| BackgroundResult::SyncDue);
        }
        Ok(entry)
    }

    /// Checks that the log could store a model's reply, which would otherwise be paid for and lost.
    pub fn check_log(&self) -> Result<(), SessionError> {
        self.log.can_append().map_err(|error| {
            let advice = match &error {
                StoreError::Unreachable { .. } => " Send the prompt again when it can be reached.".to_owned(),
                // It says what to do.
                StoreError::TakenOver { .. } | StoreError::Damaged { .. } => String::new(),
                StoreError::Replaced(_) => format!(" Close this session and load {} again.", self.id()),
                _ => " Check the disk; then send the prompt again.".to_owned(),
            };
            SessionError::Store(format!(
                "The model was not called, because its answer could not be kept: {error}.{advice}"
            ))
        })
    }

    /// Sends the answer once all commits are on disk, even if the session has ended by then; sends an error at once.
    pub fn answer_when_synced(&mut self, responder: Responder, answer: Result<SessionAnswer, SessionError>) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return responder.answer(Err(error)),
        };
        let syncer = self.log.syncer();
        let answered = tokio::spawn(async move {
            let synced = syncer.sync().await;
            responder.answer(synced.as_ref().map(|()| answer).map_err(|error| log_error(error)));
            synced
        });
        let synced = async move {
            match answered.await {
                Ok(synced) => synced,
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The process ends.
                Err(_) => std::future::pending().await,
            }
        };
        self.start(synced, BackgroundResult::Synced);
    }

    /// Starts work outside of turns. The actor goes on with its result.
    pub fn start<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = T> + Send + 'static,
        result: impl FnOnce(T) -> BackgroundResult + Send + 'static,
    ) -> AbortHandle {
        self.background.spawn(async move { result(work.await) })
    }

    /// Starts syncing the log, without waiting for it.
    pub fn sync_in_background(&mut self) {
        self.sync_then(|_| ());
    }

    /// Starts syncing the log, and reports the result. `report` is dropped if the session ends first.
    pub fn sync_then(&mut self, report: impl FnOnce(&Result<(), Arc<StoreError>>) + Send + 'static) {
        let syncer = self.log.syncer();
        let sync = async move {
            let synced = syncer.sync().await;
            report(&synced);
            synced
        };
        self.start(sync, BackgroundResult::Synced);
    }

    /// Commits a change that was requested outside of any prompt, and answers once it is on disk.
    pub fn record(&mut self, change: Change, answer: oneshot::Sender<Result<(), SessionError>>) {
        if let Err(error) = self.commit(change) {
            return drop(answer.send(Err(error)));
        }
        self.sync_then(|synced| {
            let recorded = synced.as_ref().map_err(|error| SessionError::Store(error.to_string()));
            // The receiver may be gone.
            drop(answer.send(recorded.copied()));
        });
    }

    /// Waits until all commits are in the journal, then releases their events to the clients. Entries that can't be written
    /// are undone: the thread returns to the state before them, and successful answers that followed them become the error.
    pub async fn settle(&mut self) -> Result<(), Unwritten> {
        if !self.log.is_behind() {
            return Ok(());
        }
        let Settled { written, failure } = self.log.settle().await;
        for entry in written {
            if let Some(remove) = self.log.draft.committed(&entry.change) {
                self.start(blocking::run(remove), |()| BackgroundResult::Done);
            }
        }
        let Some(WriteFailure { from, error }) = failure else {
            self.clients.release_events();
            return Ok(());
        };
        tracing::error!(session = %self.id(), entry = %from, %error, "an entry could not be written");
        let error = log_error(&error);
        let refused = self.clients.drop_events(from, &error);
        let kept = self.thread.entries().iter().take_while(|entry| entry.seq < from).cloned();
        self.thread = Thread::replay(kept).expect("it was folded before");
        self.permissions.follow(self.thread.rules());
        self.model.forget_encoding();
        Err(Unwritten { error, refused })
    }

    /// The id for a new message, used neither in the log nor by a streaming reply.
    pub fn fresh_message(&mut self) -> MessageId {
        self.log.fresh_message(&self.thread)
    }

    pub fn message(&mut self, text: impl Into<String>) -> Message {
        Message { id: self.fresh_message(), content: vec![Content::Text { text: text.into() }], author: None }
    }

    /// A notice of the log that the model does not see.
    pub fn note(&mut self, text: impl Into<String>) -> Change {
        Change::Noted { message: self.fresh_message(), text: text.into() }
    }

    /// A message that gives the model context in addition to the user's messages. `by`: its source.
    pub fn context(&mut self, by: String, text: String) -> Change {
        let text = format!("<context from=\"{by}\">\n{text}\n</context>");
        Change::Said { message: self.message(text), origin: Origin::Context { by } }
    }

    // ── Clients ────────────────────────────────────────────────────────────────────────────────

    pub fn announce(&self, out: &SessionEvent) {
        self.clients.announce(out);
    }

    /// Shows the user a message that is not part of the conversation.
    pub fn notify(&self, severity: NoticeSeverity, text: impl Into<String>) {
        self.announce(&SessionEvent::Notice { severity, text: text.into() });
    }
}

/// Entries could not be written and were undone.
pub(super) struct Unwritten {
    pub error: SessionError,
    /// Clients whose successful answer to `Attach` became the error.
    pub refused: Vec<ClientId>,
}

fn log_error(error: &StoreError) -> SessionError {
    SessionError::Store(format!("the session's log can't be written: {error}"))
}
