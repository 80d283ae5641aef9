//! Operations on stored sessions, running or not: list, fork, delete, replace a history. They block on the disk, unless
//! they are asynchronous.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::{COMMANDS_MAX, LiveTask, Sessions};
use crate::client_list::ActivityNow;
use crate::commands::{TITLE_CHARS_MAX, command_list};
use crate::cross_session_edit;
use crate::log::store_error;
use crate::models::options_before_opening;
use crate::port::{OptionsQuery, SessionStatus, StoredSessionPort};
use crate::{
    Attachment, CommandInfo, Foreground, Mutation, NoticeSeverity, Replaced, ReplacementRefusal,
    SessionCommand, SessionError, SessionEvent, SessionOptions, Watcher, WorkerFault,
};
use epitome_platform::blocking;
use epitome_recipe::catalog::RecipeCatalog;
use epitome_store::StoreError;
use epitome_thread::visible::visible_line;
use epitome_thread::{Change, Seq, SessionId};

/// Time for a session that is deleted to end.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// Attempts to reach a session that is about to end.
const DELIVERY_ATTEMPTS_MAX: u32 = 3;

/// Attempts to delete a session that a client keeps loading.
const DELETE_ATTEMPTS_MAX: u32 = 3;

impl StoredSessionPort for Sessions {
    /// Ends the session if it is running, and deletes it. Unknown sessions are not an error.
    async fn delete(&self, session: &SessionId) -> Result<(), SessionError> {
        let mut attempts = 1;
        loop {
            self.end(session).await;
            let (store, name) = (self.inner.services.store.clone(), session.clone());
            match blocking::run(move || store.delete(&name)).await {
                // A concurrent load has opened it again.
                Err(StoreError::InUse(..))
                    if attempts < DELETE_ATTEMPTS_MAX && self.inner.live.lock().contains_key(session) =>
                {
                    attempts += 1;
                }
                deleted => return deleted.map_err(|error| store_error(session, error)),
            }
        }
    }

    /// Whether the session is open in this process or only stored. Does not open it, but reads the disk.
    fn status(&self, session: &SessionId) -> Result<SessionStatus, SessionError> {
        let now =
            self.inner.live.lock().get(session).filter(|found| !found.commands.is_closed()).map(|found| {
                match found.activity.get() {
                    ActivityNow { asks: true, .. } => Foreground::RequiresAction,
                    ActivityNow { running: true, .. } => Foreground::Running,
                    ActivityNow { .. } => Foreground::Idle(None),
                }
            });
        let rests = || self.inner.resting.lock().contains_key(session).then_some(Foreground::Idle(None));
        if let Some(now) = now.or_else(rests) {
            return Ok(SessionStatus::Open(now));
        }
        let header = self.inner.services.store.header(session);
        header.map(|_| SessionStatus::Saved).map_err(|error| store_error(session, error))
    }

    /// Adds an observer to a session, now and whenever the session is opened again in this process. The entries from
    /// `from` on are replayed, then all events follow. An observer does not keep the session alive and is not asked
    /// anything, though it may send `Cancel` and `Decide`. Reads the disk if the session is not live.
    fn watch(&self, session: &SessionId, from: Seq, attachment: Attachment) -> Result<(), SessionError> {
        if let Some(grant) = attachment.outlet.grant() {
            let header = self.inner.services.store.header(session);
            let header = header.map_err(|error| store_error(session, error))?;
            grant.check_directory(&header.cwd).map_err(SessionError::Invalid)?;
        }
        if self.notify_of_watcher(&self.inner.live.lock(), session, from, &attachment)? {
            return Ok(());
        }
        let read = self.inner.services.store.thread(session);
        let (thread, damage) = read.map_err(|error| store_error(session, error))?;
        attachment.replay(session, thread.entries().since(from));
        if let Some(damage) = damage {
            let text = damage.to_string();
            attachment.outlet.put(session, SessionEvent::Notice { severity: NoticeSeverity::Warning, text });
        }
        let from = from.max(thread.next_seq());
        // The session may have been opened while its log was read. It can't be opened while this lock is held.
        let live = self.inner.live.lock();
        if !self.notify_of_watcher(&live, session, from, &attachment)? {
            self.parked().entry(session.clone()).or_default().push(Watcher { from, attachment });
        }
        Ok(())
    }

    /// Gives a session another title, running or not, and returns the title as it is stored: as one line, cut if it is
    /// too long. An error if nothing remains of it.
    async fn set_title(&self, session: &SessionId, title: &str) -> Result<String, SessionError> {
        let words = title.split_whitespace().collect::<Vec<_>>().join(" ");
        let title: String = visible_line(&words).chars().take(TITLE_CHARS_MAX).collect();
        let title = title.trim_end().to_owned();
        if title.is_empty() {
            return Err(SessionError::Invalid("`title` is empty".to_owned()));
        }
        self.record(session, &Change::Titled { title: title.clone() }).await?;
        Ok(title)
    }

    /// Archives a session, which ends it if it is running, or restores it. Does nothing if it already has that state.
    async fn set_archived(&self, session: &SessionId, archived: bool) -> Result<(), SessionError> {
        let (store, name) = (self.inner.services.store.clone(), session.clone());
        let header = blocking::run(move || store.header(&name)).await;
        let header = header.map_err(|error| store_error(session, error))?;
        if archived {
            self.end(session).await;
        }
        if header.archived == archived {
            return Ok(());
        }
        self.record(session, &Change::Archived { archived }).await
    }

    /// Returns the options that a client would get if it opened a session. Does not open it; reads the disk.
    fn options(&self, query: &OptionsQuery) -> Result<Arc<SessionOptions>, SessionError> {
        let services = &self.inner.services;
        let thread = match &query.session {
            None => None,
            Some(session) => {
                Some(services.store.thread(session).map_err(|error| store_error(session, error))?.0)
            }
        };
        options_before_opening(services, &query.cwd, &query.overrides, &query.environment, thread)
    }

    /// Returns the slash commands that a client would get. Reads the disk.
    fn commands(&self, query: &OptionsQuery) -> Arc<[CommandInfo]> {
        let paths = &self.inner.services.paths;
        let (directories, cwd) = (&query.overrides.recipe_dirs, &query.cwd);
        command_list(&RecipeCatalog::load(cwd, paths, directories), &[])
    }
}

impl Sessions {
    /// Adds a setting to a session's log: through the session if it is running, otherwise on the disk.
    async fn record(&self, session: &SessionId, change: &Change) -> Result<(), SessionError> {
        let command = |answer| SessionCommand::Record { change: Box::new(change.clone()), answer };
        let on_disk = || {
            let (store, name, change) = (self.inner.services.store.clone(), session.clone(), change.clone());
            let work = move || {
                let (mut journal, _) = store.open(&name).map_err(|error| store_error(&name, error))?;
                journal.append(change).map_err(|error| SessionError::Store(error.to_string()))?;
                journal.syncer().sync().map_err(|error| SessionError::Store(error.to_string()))
            };
            async move {
                let recorded = blocking::start(work).await;
                recorded.unwrap_or_else(|error| Err(SessionError::Internal(error.to_string())))
            }
        };
        match self.deliver(session, true, command, on_disk).await {
            Ok(recorded) => recorded,
            Err(Undelivered::Busy) => Err(SessionError::Busy(COMMANDS_MAX)),
            Err(Undelivered::Ending) => {
                Err(SessionError::Internal(format!("{session} is closing; try again")))
            }
        }
    }

    /// Sends a command to a session and waits for its answer. If the session is not running, and is not to be resumed
    /// for the command, a task does the work on its log instead.
    async fn deliver<T: Send + 'static, W: Future<Output = T> + Send + 'static>(
        &self,
        session: &SessionId,
        resumes: bool,
        command: impl Fn(oneshot::Sender<T>) -> SessionCommand,
        on_disk: impl Fn() -> W,
    ) -> Result<T, Undelivered> {
        for _ in 0..DELIVERY_ATTEMPTS_MAX {
            let (answer, answered) = oneshot::channel();
            let ended = {
                let mut live = self.inner.live.lock();
                if resumes {
                    self.resume(&mut live, session);
                }
                match live.get(session) {
                    Some(found) => match found.commands.try_send(command(answer)) {
                        Ok(()) => None,
                        Err(mpsc::error::TrySendError::Full(_)) => return Err(Undelivered::Busy),
                        Err(mpsc::error::TrySendError::Closed(_)) => Some(found.ended.clone()),
                    },
                    None => {
                        let work = on_disk();
                        // A caller that has given up needs no answer.
                        let work = async move { drop(answer.send(work.await)) };
                        self.hold(&mut live, session, work);
                        None
                    }
                }
            };
            match ended {
                None => {
                    // Dropped without an answer: the session ended before it received the command.
                    if let Ok(answer) = answered.await {
                        return Ok(answer);
                    }
                }
                Some(mut ended) => drop(tokio::time::timeout(END_TIME_MAX, ended.changed()).await),
            }
        }
        Err(Undelivered::Ending)
    }

    /// Works on the log of a session that is not running. A client that loads it in the meantime waits, as for the end
    /// of a session: the journal is locked.
    fn hold(
        &self,
        live: &mut BTreeMap<SessionId, LiveTask>,
        session: &SessionId,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let (commands, _) = mpsc::channel(1);
        let (alive, ended) = watch::channel(());
        live.insert(
            session.clone(),
            LiveTask { activity: Arc::default(), commands, attached: BTreeSet::new(), ended },
        );
        self.run(session.clone(), alive, work);
    }

    async fn end(&self, session: &SessionId) {
        let found = {
            let mut live = self.inner.live.lock();
            self.end_resting(&mut live, session);
            live.remove(session)
        };
        let Some(mut found) = found else { return };
        let end = async {
            // If the channel is closed, the session is ending already.
            drop(found.commands.send(SessionCommand::End).await);
            found.ended.changed().await
        };
        if tokio::time::timeout(END_TIME_MAX, end).await.is_err() {
            tracing::warn!(%session, "a session that is deleted did not end in time");
        }
    }

    /// Replaces the history of a conversation: through its session if that runs in this process, otherwise in its log.
    pub(crate) async fn mutate(
        &self,
        target: &SessionId,
        mutation: Mutation,
    ) -> Result<Replaced, ReplacementRefusal> {
        let command = |answer| SessionCommand::Mutate { mutation: Box::new(mutation.clone()), answer };
        let on_disk = || {
            let (services, name, mutation) = (self.inner.services.clone(), target.clone(), mutation.clone());
            async move {
                services.recall().await;
                let work = move || cross_session_edit::in_store(&services, &name, &mutation);
                blocking::start(work).await.unwrap_or_else(|_| Err(WorkerFault.into()))
            }
        };
        match self.deliver(target, false, command, on_disk).await {
            Ok(replaced) => replaced,
            Err(Undelivered::Busy) => Err(ReplacementRefusal::Busy(target.clone())),
            Err(Undelivered::Ending) => Err(ReplacementRefusal::Ending(target.clone())),
        }
    }
}

/// Why a command has no answer.
enum Undelivered {
    Busy,
    Ending,
}
