//! Starting sessions from their log or from suspension, and ending them. Each session is an independent task.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::{COMMANDS_MAX, LiveTask, SessionServices, Sessions};
use crate::actor::suspended::SuspendedSession;
use crate::actor::{Session, SessionPause, open_session};
use crate::client_list::Activity;
use crate::host::HostProcess;
use crate::inbox::Channel;
use crate::log::{read_log, store_error};
use crate::port::SessionPort as _;
use crate::responder::Responder;
use crate::{Attaching, ClientId, Opening, Replay, SessionCommand, SessionError};
use epitome_platform::blocking;
use epitome_store::{Journal, Store};
use epitome_thread::{Change, FORMAT_VERSION, SessionId, Thread};

impl Sessions {
    /// Registers a session that is about to start. Returns its channels, and the previous task of that id, which must
    /// end first.
    pub(super) fn enter(
        &self,
        live: &mut BTreeMap<SessionId, LiveTask>,
        id: &SessionId,
        attached: BTreeSet<ClientId>,
    ) -> TaskStart {
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let channel = Channel::new(&commands, receiver);
        let (alive, ended) = watch::channel(());
        let activity = Arc::<Activity>::default();
        let before =
            live.insert(id.clone(), LiveTask { activity: activity.clone(), commands, attached, ended });
        TaskStart { channel, alive, activity, before }
    }

    /// Starts a session from its log.
    pub(super) fn open(&self, live: &mut BTreeMap<SessionId, LiveTask>, id: SessionId, origin: TaskOrigin) {
        let TaskStart { channel, alive, activity, before } = self.enter(live, &id, origin.clients());
        let (again, session) = (self.clone(), id.clone());
        self.run(id, alive, async move {
            if let Some(mut before) = before {
                // Its journal is locked until it ends. The error is the end that is awaited.
                drop(before.ended.changed().await);
            }
            if let Some(live) = again.start(&session, origin, channel, activity).await {
                again.live(&session, live).await;
            }
        });
    }

    /// Starts a session from its log. If that fails, its commands are refused, and a suspended one stays suspended.
    async fn start(
        &self,
        session: &SessionId,
        origin: TaskOrigin,
        channel: Channel,
        activity: Arc<Activity>,
    ) -> Option<Box<Session>> {
        let services = self.inner.services.clone();
        let read = match read_log(&services.store, session).await {
            Ok((journal, thread)) => origin.check(thread.cwd()).await.map(|()| (journal, thread)),
            Err(error) => Err(error),
        };
        let (journal, thread) = match read {
            Ok(read) => read,
            Err(error) => {
                self.refuse(origin, session, channel, &error);
                return None;
            }
        };
        let (mut live, attach) = match origin {
            TaskOrigin::Client(attaching) => {
                let mut live = open_session(services, thread, journal, channel, &attaching.opening).await;
                live.set_source(match attaching.replay {
                    Replay::Everything => "load",
                    Replay::Nothing | Replay::Rest { .. } => "resume",
                });
                (live, Some(attaching))
            }
            TaskOrigin::Rest(resting) => {
                (blocking::run(move || resting.resume(services, thread, journal, channel)).await?, None)
            }
        };
        live.end_interrupted_turn().await;
        live.join_process(self.process(), activity);
        for watcher in self.parked().remove(session).unwrap_or_default() {
            live.watch(watcher);
        }
        match attach {
            Some(attaching) => live.attach(attaching),
            // Another machine, with another policy, may have changed the mode meanwhile.
            None => live.adopt_policy(),
        }
        Some(live)
    }

    /// Runs a session until it has ended or is suspended.
    pub(super) async fn live(&self, session: &SessionId, mut live: Box<Session>) {
        loop {
            match live.run().await {
                SessionPause::Idle(idle) => match self.park(idle) {
                    None => return,
                    Some(awake) => live = awake,
                },
                SessionPause::Closed(too_late) => return self.attach_again(session, too_late),
            }
        }
    }

    fn attach_again(&self, session: &SessionId, too_late: Vec<Attaching>) {
        for Attaching { ticket, opening, replay } in too_late {
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
            let mut live = inner.live.lock();
            if live.get(&id).is_some_and(|found| found.commands.is_closed()) {
                live.remove(&id);
            }
            drop(live);
            drop(alive);
            inner.count.send_modify(|count| *count -= 1);
        });
    }

    /// Suspends an idle session and removes it from memory; returns it if a command has just arrived.
    fn park(&self, session: Box<Session>) -> Option<Box<Session>> {
        let mut live = self.inner.live.lock();
        if session.has_commands() {
            return Some(session);
        }
        let id = session.id().clone();
        let resting = session.suspend();
        live.remove(&id);
        self.inner.resting.lock().insert(id, Box::new(resting));
        None
    }

    /// Ends a session if it is suspended. One that has something left to do is resumed instead, for the command that
    /// ends it.
    pub(super) fn end_resting(&self, live: &mut BTreeMap<SessionId, LiveTask>, session: &SessionId) {
        let resting = self.inner.resting.lock().remove(session);
        match resting {
            Some(resting) if resting.owes_end() => {
                self.open(live, session.clone(), TaskOrigin::Rest(resting));
            }
            Some(mut resting) => self.keep_watchers(session, resting.take_watchers()),
            None => {}
        }
    }

    /// Answers all commands sent to a session that could not be opened, since clients may send several requests
    /// without waiting for the first response. A suspended session stays suspended: the error may be temporary.
    pub(super) fn refuse(
        &self,
        origin: TaskOrigin,
        session: &SessionId,
        mut channel: Channel,
        error: &SessionError,
    ) {
        // Under the lock, so that no command arrives between the last answer and the suspension.
        let mut live = self.inner.live.lock();
        let is_registered = live.get(session).is_some_and(|found| channel.is_of(&found.commands));
        let mut openers = Vec::new();
        let refuse = |attaching: Attaching| {
            let opener = attaching.opening.attachment.clone();
            attaching.refuse(session, error);
            opener
        };
        let mut resting = match origin {
            TaskOrigin::Client(attaching) => {
                openers.push(refuse(attaching));
                None
            }
            TaskOrigin::Rest(resting) => Some(resting),
        };
        for command in channel.close() {
            let asker = command.asker();
            match (command, &mut resting) {
                (SessionCommand::Attach(attaching), _) => {
                    openers.push(refuse(attaching));
                    continue;
                }
                (SessionCommand::Record { answer, .. }, _) => drop(answer.send(Err(error.clone()))),
                (SessionCommand::Detach { client }, Some(resting)) => resting.leave(client),
                (SessionCommand::Unwatch { client }, Some(resting)) => resting.unwatch(client),
                (SessionCommand::Watch(watcher), Some(_)) => self.keep_watchers(session, vec![watcher]),
                _ => {}
            }
            let Some((ticket, client)) = asker else { continue };
            let opener = openers.iter().find(|opener| opener.client == client).cloned();
            let attachment = opener.or_else(|| resting.as_ref()?.attachment(client));
            if let Some(attachment) = attachment {
                Responder::new(ticket, session.clone(), attachment).answer(Err(error.clone()));
            }
        }
        let Some(mut resting) = resting.filter(|_| !matches!(error, SessionError::NotFound(_))) else {
            return;
        };
        if is_registered && !resting.present().0.is_empty() {
            live.remove(session);
            resting.set_reloading(None);
            self.inner.resting.lock().insert(session.clone(), resting);
        } else {
            self.keep_watchers(session, resting.take_watchers());
        }
    }

    /// Restarts a session if it is suspended.
    pub(super) fn resume(&self, live: &mut BTreeMap<SessionId, LiveTask>, session: &SessionId) {
        let resting = self.inner.resting.lock().remove(session);
        if let Some(resting) = resting {
            self.open(live, session.clone(), TaskOrigin::Rest(resting));
        }
    }
}

/// The channels of a starting session task.
pub(super) struct TaskStart {
    pub channel: Channel,
    pub alive: watch::Sender<()>,
    pub activity: Arc<Activity>,
    pub before: Option<LiveTask>,
}

/// Why a session is started from its log.
pub(super) enum TaskOrigin {
    Client(Attaching),
    Rest(Box<SuspendedSession>),
}

impl TaskOrigin {
    fn clients(&self) -> BTreeSet<ClientId> {
        match self {
            TaskOrigin::Client(Attaching { opening, .. }) => BTreeSet::from([opening.attachment.client]),
            TaskOrigin::Rest(resting) => resting.clients().collect(),
        }
    }

    /// Whether the client may attach to a session that works in this directory.
    async fn check(&self, cwd: &Path) -> Result<(), SessionError> {
        match self {
            TaskOrigin::Client(Attaching { opening, replay, .. }) => {
                let (opening, replay, cwd) = (opening.clone(), replay.clone(), cwd.to_path_buf());
                blocking::run(move || opening.check_for(&replay, &cwd)).await
            }
            TaskOrigin::Rest(_) => Ok(()),
        }
    }
}

/// Creates the log of a session with its first entry.
fn create_log(
    store: &Store,
    session: &SessionId,
    opening: &Opening,
) -> Result<(Journal, Thread), SessionError> {
    opening.check_cwd()?;
    let (format, cwd) = (FORMAT_VERSION, opening.cwd.clone());
    let created = store.create(session, Change::Opened { format, session: session.clone(), cwd });
    let (journal, entry) = created.map_err(|error| store_error(session, error))?;
    let thread = Thread::replay([entry]).map_err(|error| SessionError::Internal(error.to_string()))?;
    Ok((journal, thread))
}

/// A session with a log of one entry.
pub(super) struct NewSession {
    pub live: Box<Session>,
    /// The client to attach once the settings that the session starts with are in the log, if there are any; otherwise it
    /// is attached.
    pub attaching: Option<Attaching>,
}

/// The remains of a session that could not be created: others may have found it in the store, and sent it commands.
pub(super) struct NotCreated {
    pub error: SessionError,
    pub attaching: Attaching,
    pub channel: Channel,
}

/// Starts to create a session and its log with the first entry, and to attach its client, on a blocking thread: all of it
/// on one, because the client waits for each change of threads. Must be called within the runtime.
pub(super) fn create_session(
    services: SessionServices,
    name: SessionId,
    task: (Channel, HostProcess, Arc<Activity>),
    attaching: Attaching,
) -> JoinHandle<Result<NewSession, Box<NotCreated>>> {
    let (channel, process, activity) = task;
    blocking::start(move || {
        let opening = &attaching.opening;
        let (journal, thread) = match create_log(&services.store, &name, opening) {
            Ok(created) => created,
            Err(error) => return Err(Box::new(NotCreated { error, attaching, channel })),
        };
        let mut live = Box::new(Session::new(services, thread, journal, channel, opening));
        live.join_process(process, activity);
        if !live.adopt_settings() {
            return Ok(NewSession { live, attaching: Some(attaching) });
        }
        live.attach(attaching);
        Ok(NewSession { live, attaching: None })
    })
}
