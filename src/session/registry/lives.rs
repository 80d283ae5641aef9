//! How sessions begin to live, from their log or from their rest, and how they end: each is a task that nobody else
//! waits for.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::sync::{mpsc, watch};

use super::{COMMANDS_MAX, Live, Sessions, store_error};
use crate::actor::Session;
use crate::client_list::Activity;
use crate::work::{Responder, TooLate};
use crate::{Attachment, ClientId, Opening, Replay, SessionCommand, SessionError, Ticket};
use epitome_store::{Journal, Store};
use epitome_thread::{SessionId, Thread};

impl Sessions {
    pub(super) fn open(
        &self,
        live: &mut HashMap<SessionId, Live>,
        ticket: Ticket,
        id: SessionId,
        opening: Opening,
        replay: Replay,
    ) {
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let channel = (commands.downgrade(), receiver);
        let (alive, ended) = watch::channel(());
        let activity = Arc::<Activity>::default();
        let before = live.insert(id.clone(), Live { activity: activity.clone(), commands, ended });
        let services = self.inner.services.clone();
        let again = self.clone();
        let session = id.clone();
        self.run(id, alive, async move {
            if let Some(mut before) = before {
                // Its journal is locked until then. The error is the end that is waited for.
                drop(before.ended.changed().await);
            }
            match read_log(&services.store, &session).await {
                Ok((journal, thread)) => {
                    let mut live = Box::new(Session::new(services, thread, journal, channel, &opening));
                    live.join_process(again.process(), activity);
                    for watcher in again.parked().remove(&session).unwrap_or_default() {
                        live.watch(watcher);
                    }
                    live.hooks.set_source(match replay {
                        Replay::Everything => "load",
                        Replay::Nothing | Replay::Repairs => "resume",
                    });
                    live.attach(ticket, opening, replay);
                    again.attach_again(&session, live.run().await);
                }
                Err(error) => {
                    let (_, commands) = channel;
                    let opener = opening.attachment;
                    Responder::new(ticket, session.clone(), opener.clone()).answer(Err(error.clone()));
                    let find = |client| (client == opener.client).then(|| opener.clone());
                    refuse_all(commands, &session, find, &error);
                }
            }
        });
    }

    pub(super) fn attach_again(&self, session: &SessionId, too_late: Vec<TooLate>) {
        for TooLate { ticket, opening, replay } in too_late {
            self.attach(ticket, session.clone(), opening, replay);
        }
    }

    pub(super) fn run(
        &self,
        id: SessionId,
        alive: watch::Sender<()>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let inner = self.inner.clone();
        self.inner.count.send_modify(|count| *count += 1);
        self.inner.runtime.spawn(async move {
            let ended = std::panic::AssertUnwindSafe(task).catch_unwind().await;
            if ended.is_err() {
                tracing::error!(session = %id, "a session panicked; its log is as it was");
            }
            let mut live = inner.live.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if live.get(&id).is_some_and(|found| found.commands.is_closed()) {
                live.remove(&id);
            }
            drop(live);
            drop(alive);
            inner.count.send_modify(|count| *count -= 1);
        });
    }

    /// Takes a session out of the memory that nobody has wanted anything of; gives it back where somebody just did.
    pub(crate) fn lay_down(&self, session: Box<Session>) -> Option<Box<Session>> {
        let mut live = self.live();
        if session.inbox.has_commands() {
            return Some(session);
        }
        let id = session.core.id().clone();
        let resting = session.lie_down();
        live.remove(&id);
        self.resting().insert(id, Box::new(resting));
        None
    }

    /// Begins to live again where it rests.
    pub(super) fn wake(&self, live: &mut HashMap<SessionId, Live>, session: &SessionId) {
        let Some(resting) = self.resting().remove(session) else { return };
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let channel = (commands.downgrade(), receiver);
        let (alive, ended) = watch::channel(());
        let activity = Arc::<Activity>::default();
        let before = live.insert(session.clone(), Live { activity: activity.clone(), commands, ended });
        let (services, again, session) = (self.inner.services.clone(), self.clone(), session.clone());
        self.run(session.clone(), alive, async move {
            if let Some(mut before) = before {
                // Somebody writes its log just now. The error is the end that is waited for.
                drop(before.ended.changed().await);
            }
            match read_log(&services.store, &session).await {
                Ok((journal, thread)) => {
                    let Some(mut live) = resting.get_up(services, thread, journal, channel) else { return };
                    live.join_process(again.process(), activity);
                    for watcher in again.parked().remove(&session).unwrap_or_default() {
                        live.watch(watcher);
                    }
                    again.attach_again(&session, live.run().await);
                }
                Err(error) => {
                    let (_, commands) = channel;
                    refuse_all(commands, &session, |client| resting.attachment(client), &error);
                }
            }
        });
    }
}

/// Answers what was sent to a session that then could not be opened: who sends many requests at once
/// does not wait for the first answer.
fn refuse_all(
    mut commands: mpsc::Receiver<SessionCommand>,
    session: &SessionId,
    find: impl Fn(ClientId) -> Option<Attachment>,
    error: &SessionError,
) {
    commands.close();
    while let Ok(command) = commands.try_recv() {
        let (ticket, attachment) = match command {
            SessionCommand::Attach { ticket, opening, .. } => (ticket, opening.attachment),
            SessionCommand::Prompt { ticket, client, .. }
            | SessionCommand::Steer { ticket, client, .. }
            | SessionCommand::SetMode { ticket, client, .. }
            | SessionCommand::SetOption { ticket, client, .. }
            | SessionCommand::Close { ticket, client } => match find(client) {
                Some(attachment) => (ticket, attachment),
                None => continue,
            },
            SessionCommand::Watch(_)
            | SessionCommand::Unwatch { .. }
            | SessionCommand::Cancel
            | SessionCommand::CancelAgent { .. }
            | SessionCommand::CancelPrompt { .. }
            | SessionCommand::Decide { .. }
            | SessionCommand::Absent { .. }
            | SessionCommand::Answer { .. }
            | SessionCommand::Fulfil { .. }
            | SessionCommand::Detach { .. }
            | SessionCommand::End
            | SessionCommand::RecipesChanged
            | SessionCommand::HooksChanged
            | SessionCommand::Mutate { .. } => continue,
        };
        Responder::new(ticket, session.clone(), attachment).answer(Err(error.clone()));
    }
}

/// Opens a session's log and folds it, on a thread that may wait.
async fn read_log(store: &Store, session: &SessionId) -> Result<(Journal, Thread), SessionError> {
    let (store, name) = (store.clone(), session.clone());
    let read = tokio::task::spawn_blocking(move || {
        let (journal, entries) = store.load(&name).map_err(|error| store_error(&name, error))?;
        let thread = Thread::replay(entries).map_err(|error| {
            SessionError::Store(format!("the log of session {name} can't be folded: {error}"))
        })?;
        Ok((journal, thread))
    });
    read.await.unwrap_or_else(|error| Err(SessionError::Internal(error.to_string())))
}
