//! All sessions of this process: creating, attaching, routing commands. `lives` starts and ends session tasks,
//! `stored` manages stored sessions.

mod lives;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use lives::{NewSession, NotCreated, TaskOrigin, TaskStart, create_session};

use super::actor::suspended::SuspendedSession;
use super::client_list::{Activity, ActivityNow};
use super::counts::{Counts, CountsSnapshot};
use super::host::{HostProcess, SessionHost};
use super::log::store_error;
use super::port::SessionPort;
use super::responder::Responder;
pub use super::services::SessionServices;
pub use super::{ALLOW_OPTION, DENY_OPTION, Overrides};
use super::{
    Attaching, Attachment, ClientId, Mutation, Opening, Replaced, ReplacementRefusal, Replay, SessionCommand,
    SessionError, Ticket, Watcher,
};
use epitome_store::new_id;
pub use epitome_store::{Header, SessionQuery};
use epitome_thread::{Seq, SessionId};
use epitome_tools::BoxFuture;

/// Commands that may wait for a session. A session takes them quickly; this many waiting means that it is stuck, and
/// the sender gets an error.
const COMMANDS_MAX: usize = 256;

/// A cheap handle on every session of the process.
#[derive(Clone)]
pub struct Sessions {
    inner: Arc<SessionsInner>,
}

struct SessionsInner {
    services: SessionServices,
    runtime: Handle,
    /// The live sessions. Locked only for a look-up; no lock guards the threads themselves.
    live: Mutex<BTreeMap<SessionId, LiveTask>>,
    /// Suspended sessions. Locked after `live`.
    resting: Mutex<BTreeMap<SessionId, Box<SuspendedSession>>>,
    /// Watchers of sessions that are not live.
    parked: Mutex<BTreeMap<SessionId, Vec<Watcher>>>,
    /// Number of running session tasks.
    count: watch::Sender<usize>,
    counts: Arc<Counts>,
}

impl SessionHost for SessionsInner {
    fn mutate(
        self: Arc<Self>,
        target: SessionId,
        mutation: Mutation,
    ) -> BoxFuture<Result<Replaced, ReplacementRefusal>> {
        Box::pin(async move { Sessions { inner: self }.mutate(&target, mutation).await })
    }

    fn keep_watchers_of(&self, session: &SessionId, close: &mut dyn FnMut() -> Vec<Watcher>) {
        let mut parked = self.parked.lock();
        let watchers = close();
        if !watchers.is_empty() {
            parked.entry(session.clone()).or_default().extend(watchers);
        }
    }
}

/// A session of this process, live or suspended, as reported to clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LiveSession {
    pub session: SessionId,
    /// A turn is running or waiting.
    pub running: bool,
    pub clients: usize,
    pub client_ids: Vec<ClientId>,
    pub watchers: usize,
    /// The session was idle for a while and is suspended: its conversation is not in memory.
    pub resting: bool,
    /// Prompts that wait for their turn, or for the running turn to take them in.
    pub queued_prompts: usize,
    /// Commands that clients have sent and the session has not yet handled.
    pub waiting_events: usize,
    /// Its log has entries that may not be on disk.
    pub unsynced: bool,
}

/// Changes of the sessions of this process.
pub struct SessionsActivity {
    entries: watch::Receiver<CountsSnapshot>,
    tasks: watch::Receiver<usize>,
}

impl SessionsActivity {
    /// Waits for the next change since the last wait.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.entries.changed() => {}
            _ = self.tasks.changed() => {}
        }
        self.entries.mark_unchanged();
        self.tasks.mark_unchanged();
    }
}

/// The registry's handle to a session's task.
struct LiveTask {
    activity: Arc<Activity>,
    commands: mpsc::Sender<SessionCommand>,
    /// The clients that have attached, even if they have left since.
    attached: BTreeSet<ClientId>,
    /// Closes when the task has ended and its journal is unlocked.
    ended: watch::Receiver<()>,
}

impl SessionPort for Sessions {
    /// Creates a session. The answer, `Answer::Attached`, is sent to the opening's outlet.
    fn create(&self, ticket: Ticket, opening: Opening) -> SessionId {
        let id = new_id();
        let mut live = self.inner.live.lock();
        if opening.attachment.outlet.is_gone() {
            let error = SessionError::NotFound(id.clone());
            Responder::new(ticket, id.clone(), opening.attachment).answer(Err(error));
            return id;
        }
        let attached = BTreeSet::from([opening.attachment.client]);
        let TaskStart { channel, alive, activity, before: _ } = self.enter(&mut live, &id, attached);
        drop(live);
        let (services, again, session) = (self.inner.services.clone(), self.clone(), id.clone());
        let attachment = opening.attachment.clone();
        let attaching = Attaching { ticket, opening, replay: Replay::Nothing };
        let task = (channel, self.process(), activity);
        let created = {
            let _entered = self.inner.runtime.enter();
            create_session(services, id.clone(), task, attaching)
        };
        self.run(id.clone(), alive, async move {
            match created.await {
                Ok(Ok(NewSession { mut live, attaching })) => {
                    if let Some(attaching) = attaching {
                        // A failed write is logged there; the settings then apply only while the session is live.
                        drop(live.settle_log().await);
                        live.attach(attaching);
                    }
                    again.live(&session, live).await;
                }
                Ok(Err(refused)) => {
                    let NotCreated { error, attaching, channel } = *refused;
                    again.refuse(TaskOrigin::Client(attaching), &session, channel, &error);
                }
                Err(error) => {
                    let error = SessionError::Internal(error.to_string());
                    Responder::new(ticket, session, attachment).answer(Err(error));
                }
            }
        });
        id
    }

    /// Attaches a client to a session, which is loaded from its log if it isn't live. Commands sent after this call
    /// are handled after it. The answer is sent to the opening's outlet.
    fn attach(&self, ticket: Ticket, session: SessionId, opening: Opening, replay: Replay) {
        let mut live = self.inner.live.lock();
        // Under the lock: a client that leaves is detached from the sessions that are live then.
        if opening.attachment.outlet.is_gone() {
            let error = SessionError::NotFound(session.clone());
            return Attaching { ticket, opening, replay }.refuse(&session, &error);
        }
        let client = opening.attachment.client;
        let attaching = Attaching { ticket, opening, replay };
        if let Some(resting) = self.inner.resting.lock().get_mut(&session) {
            resting.set_reloading(attaching.reloads());
        }
        self.resume(&mut live, &session);
        let Some(found) = live.get_mut(&session) else {
            return self.open(&mut live, session, TaskOrigin::Client(attaching));
        };
        found.attached.insert(client);
        let Err(error) = found.commands.try_send(SessionCommand::Attach(attaching)) else { return };
        let is_full = matches!(error, mpsc::error::TrySendError::Full(_));
        let SessionCommand::Attach(attaching) = error.into_inner() else {
            unreachable!("the command that was sent comes back")
        };
        match is_full {
            true => attaching.refuse(&session, &SessionError::Busy(COMMANDS_MAX)),
            // It is just ending: open it again from its log.
            false => self.open(&mut live, session, TaskOrigin::Client(attaching)),
        }
    }

    /// Passes a command to its session. After an error, the command's ticket gets no other answer.
    fn send(&self, session: &SessionId, command: SessionCommand) -> Result<(), SessionError> {
        let mut live = self.inner.live.lock();
        match &command {
            // A suspended session has nothing to cancel and waits for no decision.
            SessionCommand::Cancel
            | SessionCommand::CancelAgent { .. }
            | SessionCommand::CancelPrompt { .. }
            | SessionCommand::Decide { .. }
            | SessionCommand::Absent { .. }
            | SessionCommand::Answer { .. }
            | SessionCommand::Fulfil { .. }
                if self.inner.resting.lock().contains_key(session) =>
            {
                return Ok(());
            }
            _ => self.resume(&mut live, session),
        }
        let found = live.get(session).ok_or_else(|| SessionError::NotFound(session.clone()))?;
        // The session that it was attached to has ended, and another client has opened it again.
        if command.asker().is_some_and(|(_, client)| !found.attached.contains(&client)) {
            return Err(SessionError::NotFound(session.clone()));
        }
        match found.commands.try_send(command) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(SessionError::NotFound(session.clone())),
            // A full queue must not lose a cancel or a detach.
            Err(mpsc::error::TrySendError::Full(
                command @ (SessionCommand::Cancel
                | SessionCommand::CancelAgent { .. }
                | SessionCommand::CancelPrompt { .. }
                | SessionCommand::Detach { .. }
                | SessionCommand::Unwatch { .. }),
            )) => {
                let commands = found.commands.clone();
                self.inner.runtime.spawn(async move { commands.send(command).await });
                Ok(())
            }
            Err(mpsc::error::TrySendError::Full(_)) => Err(SessionError::Busy(COMMANDS_MAX)),
        }
    }

    /// Lists sessions. Reads the disk.
    fn list(&self, query: &SessionQuery) -> Result<Vec<Header>, SessionError> {
        let listing =
            self.inner.services.store.page(query).map_err(|error| SessionError::Store(error.to_string()))?;
        for (session, problem) in &listing.problems {
            tracing::warn!(%session, %problem, "a session is left out of the list");
        }
        Ok(listing.headers)
    }

    /// Creates a session that continues another one in its directory, up to and including `at`, or its newest entry, if
    /// this client may attach to it. Reads the disk.
    fn fork(
        &self,
        session: &SessionId,
        at: Option<Seq>,
        opening: &Opening,
    ) -> Result<SessionId, SessionError> {
        let store = &self.inner.services.store;
        let header = store.header(session).map_err(|error| store_error(session, error))?;
        opening.check_for(&Replay::Nothing, &header.cwd)?;
        let granted = opening.attachment.outlet.grant().map(|grant| grant.check_directory(&header.cwd));
        granted.unwrap_or(Ok(())).map_err(SessionError::Invalid)?;
        if let Some(at) = at.filter(|at| at.0 >= header.entries) {
            return Err(SessionError::Invalid(format!(
                "session {session} has no entry {at}; the last is {}",
                Seq(header.entries.saturating_sub(1))
            )));
        }
        let forked = store.fork_with_origin(session, at).map_err(|error| store_error(session, error))?;
        Ok(forked.session)
    }

    /// Detaches a client whose connection has closed from all sessions, also as an observer.
    fn detach(&self, client: ClientId) {
        let sessions: Vec<SessionId> = {
            let mut live = self.inner.live.lock();
            let mut left = Vec::new();
            for (session, resting) in self.inner.resting.lock().iter_mut() {
                match resting.is_last(client) {
                    true => left.push(session.clone()),
                    false => resting.leave(client),
                }
            }
            for session in left {
                self.end_resting(&mut live, &session);
            }
            live.keys().cloned().collect()
        };
        for session in sessions {
            // A session that has ended needs no detach.
            drop(self.send(&session, SessionCommand::Detach { client }));
        }
        self.unwatch(client);
    }
}

impl Sessions {
    pub fn new(services: SessionServices, runtime: Handle) -> Sessions {
        let inner = SessionsInner {
            services,
            runtime,
            live: Mutex::default(),
            resting: Mutex::default(),
            parked: Mutex::default(),
            count: watch::Sender::new(0),
            counts: Arc::default(),
        };
        Sessions { inner: Arc::new(inner) }
    }

    /// The services that all sessions of the process share.
    pub fn services(&self) -> &SessionServices {
        &self.inner.services
    }

    /// Adds an observer to a live session; returns `false` if the session is not live.
    fn notify_of_watcher(
        &self,
        live: &BTreeMap<SessionId, LiveTask>,
        session: &SessionId,
        from: Seq,
        attachment: &Attachment,
    ) -> Result<bool, SessionError> {
        let Some(found) = live.get(session) else { return Ok(false) };
        let watcher = Watcher { from, attachment: attachment.clone() };
        match found.commands.try_send(SessionCommand::Watch(watcher)) {
            Ok(()) => Ok(true),
            Err(mpsc::error::TrySendError::Closed(_)) => Ok(false),
            Err(mpsc::error::TrySendError::Full(_)) => Err(SessionError::Busy(COMMANDS_MAX)),
        }
    }

    /// Removes an observer from all sessions.
    pub fn unwatch(&self, client: ClientId) {
        let sessions: Vec<SessionId> = self.inner.live.lock().keys().cloned().collect();
        for session in sessions {
            // A session that has ended sends no events.
            drop(self.send(&session, SessionCommand::Unwatch { client }));
        }
        self.inner.resting.lock().values_mut().for_each(|resting| resting.unwatch(client));
        self.parked().retain(|_, watchers| {
            watchers.retain(|watcher| watcher.attachment.client != client);
            !watchers.is_empty()
        });
    }

    /// Counts of the sessions' activities since the process started.
    pub fn counts(&self) -> CountsSnapshot {
        self.inner.counts.read()
    }

    /// Reports that an entry was committed, or that a session was opened, closed or suspended.
    pub fn activity(&self) -> SessionsActivity {
        SessionsActivity { entries: self.inner.counts.subscribe(), tasks: self.inner.count.subscribe() }
    }

    pub fn has_running_turn(&self) -> bool {
        self.inner.live.lock().values().any(|live| !live.commands.is_closed() && live.activity.get().running)
    }

    /// All sessions of this process, live and suspended.
    pub fn live_sessions(&self) -> Vec<LiveSession> {
        let live = self.inner.live.lock();
        let seen = |(session, live): (&SessionId, &LiveTask)| {
            let ActivityNow { running, asks: _, clients, watchers, prompts, unsynced } = live.activity.get();
            LiveSession {
                session: session.clone(),
                running,
                clients: clients.len(),
                client_ids: clients,
                watchers,
                resting: false,
                queued_prompts: prompts,
                waiting_events: live.commands.max_capacity() - live.commands.capacity(),
                unsynced,
            }
        };
        let awake = live.iter().filter(|(_, live)| !live.commands.is_closed()).map(seen);
        let asleep = self.inner.resting.lock();
        let asleep = asleep.iter().map(|(session, resting)| {
            let (clients, watchers) = resting.present();
            LiveSession {
                session: session.clone(),
                running: false,
                clients: clients.len(),
                client_ids: clients,
                watchers,
                resting: true,
                queued_prompts: 0,
                waiting_events: 0,
                unsynced: false,
            }
        });
        awake.chain(asleep).collect()
    }

    fn process(&self) -> HostProcess {
        let inner: Arc<dyn SessionHost> = self.inner.clone();
        HostProcess::new(Arc::downgrade(&inner), self.inner.counts.clone())
    }

    /// Waits until every session task has ended and its entries are on disk.
    pub async fn settled(&self) {
        let mut count = self.inner.count.subscribe();
        // The sender lives in `self`, so waiting can't fail.
        drop(count.wait_for(|count| *count == 0).await);
        self.inner.services.learned.save().await;
    }

    /// Keeps the observers of a session that is no longer open until it is opened again.
    fn keep_watchers(&self, session: &SessionId, watchers: Vec<Watcher>) {
        if !watchers.is_empty() {
            self.parked().entry(session.clone()).or_default().extend(watchers);
        }
    }

    /// If `live` is locked too, it must be locked first.
    fn parked(&self) -> MutexGuard<'_, BTreeMap<SessionId, Vec<Watcher>>> {
        self.inner.parked.lock()
    }
}
