//! All sessions of this process: creating, attaching, routing, listing, deleting.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use super::actor::Session;
use super::audience::{Pulse, Watcher};
use super::counts::{Counts, Reading};
use super::elsewhere::{self, Mutation, Replaced};
use super::resting::Resting;
use super::work::{Responder, TooLate};
use super::{Attachment, ClientId, Opening, Out, Replay, SessionCommand, SessionError, Ticket};
use crate::checkpoint::Checkpoints;
use crate::config::{Settings, Threshold, Trust};
use crate::hooks::functions::Functions;
use crate::paths::Paths;
use crate::provider::http::Http;
use crate::provider::learned::Learned;
use crate::recipe::watch::RecipeWatch;
pub use crate::store::Header;
use crate::store::{Journal, Store, StoreError};
use crate::thread::{Change, FORMAT_VERSION, Mode, Seq, SessionId, Thread};
use crate::tokens::Rulers;
use crate::tools::Toolbox;
use crate::tools::reaper::Reaper;

/// Commands that may wait for a session. It takes them as fast as it can think; this many waiting
/// means that it is stuck, and the sender is told so.
const COMMANDS_MAX: usize = 256;

/// How long a session that is deleted may take to end.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// How often another conversation is looked for that is just ending.
const MUTATE_ATTEMPTS_MAX: u32 = 3;

/// How often a session is ended that somebody loads again and again while it is deleted.
const DELETE_ATTEMPTS_MAX: u32 = 3;

/// What every session of a process shares.
#[derive(Clone)]
pub struct Services {
    pub paths: Paths,
    pub store: Store,
    pub http: Http,
    /// What this installation has learned about models.
    pub learned: Learned,
    pub toolbox: Toolbox,
    pub watch: RecipeWatch,
    /// What starts the processes of hooks.
    pub reaper: Arc<Reaper>,
    /// What tokens are counted with.
    pub rulers: Rulers,
    /// Callbacks and handlers that the embedding program brings.
    pub functions: Functions,
    /// How long nothing happens before a session rests.
    pub rest_after: Duration,
    /// Where what files were is kept, in a session and its children; `None` where no session has these yet.
    pub checkpoints: Option<Checkpoints>,
}

/// What the command line of a client set: it holds above every file and variable, for the sessions that it
/// opens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overrides {
    pub model: Option<String>,
    pub mode: Option<Mode>,
    /// Whether hooks run.
    pub hooks: Option<bool>,
    pub trust: Option<Trust>,
    /// Whether a compaction happens by itself.
    pub auto_compact: Option<bool>,
    pub threshold: Option<Threshold>,
    /// Further folders with recipes; those that are not absolute are below a session's directory.
    pub recipe_dirs: Vec<PathBuf>,
}

impl Overrides {
    pub fn over(&self, mut settings: Settings) -> Settings {
        settings.model = self.model.clone().or(settings.model);
        settings.mode = self.mode.unwrap_or(settings.mode);
        settings.hooks.enabled = self.hooks.unwrap_or(settings.hooks.enabled);
        settings.hooks.trust = self.trust.unwrap_or(settings.hooks.trust);
        settings.compaction.auto = self.auto_compact.unwrap_or(settings.compaction.auto);
        settings.compaction.threshold = self.threshold.unwrap_or(settings.compaction.threshold);
        settings
    }
}

/// A cheap handle on every session of the process.
#[derive(Clone)]
pub struct Sessions {
    inner: Arc<Inner>,
}

/// The way from a session to the others. It keeps none of them alive.
#[derive(Clone, Default)]
pub(super) struct Others(Weak<Inner>);

impl Others {
    /// `None` where the process ends, and for who has no others.
    pub(super) fn upgrade(&self) -> Option<Sessions> {
        self.0.upgrade().map(|inner| Sessions { inner })
    }
}

struct Inner {
    services: Services,
    runtime: Handle,
    /// Who lives. Held for a look-up only; threads themselves are behind no lock.
    live: Mutex<HashMap<SessionId, Live>>,
    /// Sessions that wait for somebody to want something. Locked under `live`.
    resting: Mutex<HashMap<SessionId, Box<Resting>>>,
    /// Who looks on at sessions that do not live now.
    parked: Mutex<HashMap<SessionId, Vec<Watcher>>>,
    /// How many session tasks run.
    count: watch::Sender<usize>,
    counts: Arc<Counts>,
}

/// A session of this process, as it is seen from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LiveSession {
    pub session: SessionId,
    /// A turn runs or waits.
    pub running: bool,
    pub clients: usize,
    pub watchers: usize,
    /// Nothing has happened for a while, and the conversation is not in memory.
    pub resting: bool,
}

/// A session's task, from outside.
struct Live {
    pulse: Arc<Pulse>,
    commands: mpsc::Sender<SessionCommand>,
    /// Closes when the task has ended and its journal is free.
    ended: watch::Receiver<()>,
}

impl Sessions {
    pub fn new(services: Services, runtime: Handle) -> Sessions {
        let inner = Inner {
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

    /// What every session of the process shares.
    pub fn services(&self) -> &Services {
        &self.inner.services
    }

    /// Makes a session. Its answer, `Answer::Attached`, comes out of the opening's outlet.
    pub fn create(&self, ticket: Ticket, opening: Opening) -> SessionId {
        let id = new_id();
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let channel = (commands.downgrade(), receiver);
        let (alive, ended) = watch::channel(());
        let pulse = Arc::<Pulse>::default();
        self.live().insert(id.clone(), Live { pulse: pulse.clone(), commands, ended });
        let services = self.inner.services.clone();
        let again = self.clone();
        let session = id.clone();
        self.run(id.clone(), alive, async move {
            let opened =
                Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: opening.cwd.clone() };
            let made = services.store.create(&session, opened).map_err(|error| store_error(&session, error));
            let made = made.and_then(|(journal, entry)| {
                let thread =
                    Thread::replay([entry]).map_err(|error| SessionError::Internal(error.to_string()))?;
                Ok((journal, thread))
            });
            match made {
                Ok((journal, thread)) => {
                    let mut live = Session::new(services, thread, journal, channel, &opening);
                    (live.others, live.pulse) = (again.others(), pulse);
                    live.counts = again.inner.counts.clone();
                    live.adopt_settings();
                    live.attach(ticket, opening, Replay::Nothing);
                    again.attach_again(&session, live.run().await);
                }
                Err(error) => Responder::new(ticket, session, opening.attachment).answer(Err(error)),
            }
        });
        id
    }

    /// Attaches a client to a session, live or from its log. Commands sent after this are in order
    /// behind it. The answer comes out of the opening's outlet.
    pub fn attach(&self, ticket: Ticket, session: SessionId, opening: Opening, replay: Replay) {
        let attachment = opening.attachment.clone();
        let mut live = self.live();
        self.wake(&mut live, &session);
        if let Some(found) = live.get(&session) {
            match found.commands.try_send(SessionCommand::Attach { ticket, opening, replay }) {
                Ok(()) => return,
                Err(mpsc::error::TrySendError::Full(_)) => {
                    let busy = Err(SessionError::Busy(COMMANDS_MAX));
                    return Responder::new(ticket, session, attachment).answer(busy);
                }
                // It is just ending: it is opened again from its log.
                Err(mpsc::error::TrySendError::Closed(SessionCommand::Attach { opening, .. })) => {
                    return self.open(&mut live, ticket, session, opening, replay);
                }
                Err(mpsc::error::TrySendError::Closed(_)) => {
                    unreachable!("the command that was sent comes back")
                }
            }
        }
        self.open(&mut live, ticket, session, opening, replay);
    }

    fn open(
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
        let pulse = Arc::<Pulse>::default();
        let before = live.insert(id.clone(), Live { pulse: pulse.clone(), commands, ended });
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
                    let mut live = Session::new(services, thread, journal, channel, &opening);
                    (live.others, live.pulse) = (again.others(), pulse);
                    live.counts = again.inner.counts.clone();
                    for watcher in again.parked().remove(&session).unwrap_or_default() {
                        live.watch(watcher);
                    }
                    live.source = match replay {
                        Replay::Everything => "load",
                        Replay::Nothing | Replay::Repairs => "resume",
                    };
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

    fn attach_again(&self, session: &SessionId, too_late: Vec<TooLate>) {
        for TooLate { ticket, opening, replay } in too_late {
            self.attach(ticket, session.clone(), opening, replay);
        }
    }

    /// Passes a command on. An error here means that the command's ticket gets no other answer.
    pub fn send(&self, session: &SessionId, command: SessionCommand) -> Result<(), SessionError> {
        let mut live = self.live();
        match &command {
            // What rests has nothing to cancel and waits for no decision.
            SessionCommand::Cancel
            | SessionCommand::CancelPrompt { .. }
            | SessionCommand::Decide { .. }
            | SessionCommand::Absent { .. }
            | SessionCommand::Answer { .. }
            | SessionCommand::Fulfil { .. }
                if self.resting().contains_key(session) =>
            {
                return Ok(());
            }
            _ => self.wake(&mut live, session),
        }
        let found = live.get(session).ok_or_else(|| SessionError::NotFound(session.clone()))?;
        match found.commands.try_send(command) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(SessionError::NotFound(session.clone())),
            // A cancel or a leaving must not get lost because of what stands before it.
            Err(mpsc::error::TrySendError::Full(
                command @ (SessionCommand::Cancel
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

    /// Lets somebody look on at a session, now and whenever it is opened again in this process: the entries from
    /// `from` on come as a replay, then all that happens. An observer keeps no session alive and is not asked
    /// anything, though it may send `Cancel` and `Decide`. Reads the disk where the session does not live.
    pub fn watch(&self, session: &SessionId, from: Seq, attachment: Attachment) -> Result<(), SessionError> {
        if self.tell_of_watcher(&self.live(), session, from, &attachment)? {
            return Ok(());
        }
        let entries = self.inner.services.store.read(session).map_err(|error| store_error(session, error))?;
        for entry in entries.iter().filter(|entry| entry.seq >= from) {
            attachment.outlet.put(session, Out::Entry { entry: entry.clone(), replay: true, own: false });
        }
        let from = entries.last().map_or(from, |last| from.max(Seq(last.seq.0 + 1)));
        // It may have been opened while its log was read. Nobody opens it under this lock.
        let live = self.live();
        if !self.tell_of_watcher(&live, session, from, &attachment)? {
            self.parked().entry(session.clone()).or_default().push(Watcher { from, attachment });
        }
        Ok(())
    }

    /// Tells a session that lives of an observer; `false` where it does not live.
    fn tell_of_watcher(
        &self,
        live: &HashMap<SessionId, Live>,
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

    /// Ends all looking on of a client.
    pub fn unwatch(&self, client: ClientId) {
        let sessions: Vec<SessionId> = self.live().keys().cloned().collect();
        for session in sessions {
            // A session that is gone already shows nobody anything.
            drop(self.send(&session, SessionCommand::Unwatch { client }));
        }
        self.resting().values_mut().for_each(|resting| resting.unwatch(client));
        self.parked().retain(|_, watchers| {
            watchers.retain(|watcher| watcher.attachment.client != client);
            !watchers.is_empty()
        });
    }

    /// What they have done since the process started.
    pub fn counts(&self) -> Reading {
        self.inner.counts.read()
    }

    /// The sessions that live in this process.
    pub fn live_sessions(&self) -> Vec<LiveSession> {
        let live = self.live();
        let seen = |(session, live): (&SessionId, &Live)| {
            let (running, clients, watchers) = live.pulse.get();
            LiveSession { session: session.clone(), running, clients, watchers, resting: false }
        };
        let awake = live.iter().filter(|(_, live)| !live.commands.is_closed()).map(seen);
        let asleep = self.resting();
        let asleep = asleep.iter().map(|(session, resting)| {
            let (clients, watchers) = resting.counts();
            LiveSession { session: session.clone(), running: false, clients, watchers, resting: true }
        });
        awake.chain(asleep).collect()
    }

    /// Sessions that have a prompt, newest first. Reads the disk.
    pub fn list(&self, cwd: Option<&Path>) -> Result<Vec<Header>, SessionError> {
        let listing =
            self.inner.services.store.list().map_err(|error| SessionError::Store(error.to_string()))?;
        for (session, problem) in &listing.problems {
            tracing::warn!(%session, %problem, "a session is left out of the list");
        }
        let wanted = |header: &Header| header.has_prompt && cwd.is_none_or(|cwd| header.cwd == cwd);
        Ok(listing.headers.into_iter().filter(wanted).collect())
    }

    /// Ends the session, if it lives, and removes it. Unknown ones are no error. Reads the disk.
    pub fn delete(&self, session: &SessionId) -> Result<(), SessionError> {
        let mut attempts = 1;
        loop {
            self.end(session);
            match self.inner.services.store.delete(session) {
                // A load that came meanwhile has opened it again.
                Err(StoreError::InUse(_))
                    if attempts < DELETE_ATTEMPTS_MAX && self.live().contains_key(session) =>
                {
                    attempts += 1;
                }
                Err(StoreError::InUse(session)) => return Err(SessionError::InUse(session)),
                deleted => return deleted.map_err(|error| SessionError::Store(error.to_string())),
            }
        }
    }

    /// Makes a session that goes on from another, up to and with an entry or as it is now. Reads the disk.
    pub fn fork(&self, session: &SessionId, at: Option<Seq>) -> Result<SessionId, SessionError> {
        let store = &self.inner.services.store;
        if let Some(at) = at {
            let header = store.header(session).map_err(|error| store_error(session, error))?;
            if at.0 >= header.entries {
                return Err(SessionError::Invalid(format!(
                    "session {session} has no entry {at}; the last is {}",
                    Seq(header.entries.saturating_sub(1))
                )));
            }
        }
        let forked = store.fork_with_origin(session, at).map_err(|error| store_error(session, error))?;
        Ok(forked.session)
    }

    fn end(&self, session: &SessionId) {
        let found = {
            let mut live = self.live();
            self.resting().remove(session);
            live.remove(session)
        };
        let Some(mut found) = found else { return };
        let ended = self.inner.runtime.block_on(async {
            let end = async {
                // Closed already is as good as told.
                drop(found.commands.send(SessionCommand::End).await);
                found.ended.changed().await
            };
            tokio::time::timeout(END_TIME_MAX, end).await
        });
        if ended.is_err() {
            tracing::warn!(%session, "a session that is deleted did not end in time");
        }
    }

    /// Replaces the history of a conversation: through its session where it lives in this process, else in
    /// its log. An error is a sentence.
    pub(super) async fn mutate(&self, target: &SessionId, mutation: Mutation) -> Result<Replaced, String> {
        for _ in 0..MUTATE_ATTEMPTS_MAX {
            let (answer, answered) = oneshot::channel();
            match self.hand_over(target, &mutation, answer)? {
                None => {
                    // Dropped without an answer: it ended before it took the command.
                    if let Ok(came_to) = answered.await {
                        return came_to;
                    }
                }
                Some(mut ended) => drop(tokio::time::timeout(END_TIME_MAX, ended.changed()).await),
            }
        }
        Err(format!("{target} is just ending"))
    }

    /// Gives a mutation to who can make it. Gives back a session's end where that must come first.
    fn hand_over(
        &self,
        target: &SessionId,
        mutation: &Mutation,
        answer: elsewhere::ReplacedAnswer,
    ) -> Result<Option<watch::Receiver<()>>, String> {
        let mut live = self.live();
        if let Some(found) = live.get(target) {
            let command = SessionCommand::Mutate { mutation: Box::new(mutation.clone()), answer };
            return match found.commands.try_send(command) {
                Ok(()) => Ok(None),
                Err(mpsc::error::TrySendError::Full(_)) => Err(format!("{target} is busy")),
                Err(mpsc::error::TrySendError::Closed(_)) => Ok(Some(found.ended.clone())),
            };
        }
        // Who loads it meanwhile waits, as for the end of a session: its journal is locked until then.
        let (commands, _) = mpsc::channel(1);
        let (alive, ended) = watch::channel(());
        live.insert(target.clone(), Live { pulse: Arc::default(), commands, ended });
        let (services, name, mutation) = (self.inner.services.clone(), target.clone(), mutation.clone());
        self.run(target.clone(), alive, async move {
            services.recall().await;
            let made =
                tokio::task::spawn_blocking(move || elsewhere::in_store(&services, &name, &mutation)).await;
            // Who gave up meanwhile wants no answer.
            drop(answer.send(made.unwrap_or_else(|error| Err(error.to_string()))));
        });
        Ok(None)
    }

    fn others(&self) -> Others {
        Others(Arc::downgrade(&self.inner))
    }

    /// A client's connection is gone.
    pub fn detach(&self, client: ClientId) {
        let sessions: Vec<SessionId> = {
            let live = self.live();
            self.resting().retain(|_, resting| resting.leave(client));
            live.keys().cloned().collect()
        };
        for session in sessions {
            // A session that is gone already needs no leaving.
            drop(self.send(&session, SessionCommand::Detach { client }));
        }
    }

    /// Waits until every session task has ended and its entries are on disk.
    pub async fn settled(&self) {
        let mut count = self.inner.count.subscribe();
        // The sender lives in `self`, so waiting can't fail.
        drop(count.wait_for(|count| *count == 0).await);
        self.inner.services.learned.save().await;
    }

    fn run(&self, id: SessionId, alive: watch::Sender<()>, task: impl Future<Output = ()> + Send + 'static) {
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
    pub(super) fn lay_down(&self, session: Session) -> Option<Box<Session>> {
        let mut live = self.live();
        if session.has_commands() {
            return Some(Box::new(session));
        }
        let id = session.id.clone();
        let resting = session.lie_down();
        live.remove(&id);
        self.resting().insert(id, Box::new(resting));
        None
    }

    /// Begins to live again where it rests.
    fn wake(&self, live: &mut HashMap<SessionId, Live>, session: &SessionId) {
        let Some(resting) = self.resting().remove(session) else { return };
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let channel = (commands.downgrade(), receiver);
        let (alive, ended) = watch::channel(());
        let pulse = Arc::<Pulse>::default();
        let before = live.insert(session.clone(), Live { pulse: pulse.clone(), commands, ended });
        let (services, again, session) = (self.inner.services.clone(), self.clone(), session.clone());
        self.run(session.clone(), alive, async move {
            if let Some(mut before) = before {
                // Somebody writes its log just now. The error is the end that is waited for.
                drop(before.ended.changed().await);
            }
            match read_log(&services.store, &session).await {
                Ok((journal, thread)) => {
                    let Some(mut live) = resting.get_up(services, thread, journal, channel) else { return };
                    (live.others, live.pulse) = (again.others(), pulse);
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

    fn resting(&self) -> MutexGuard<'_, HashMap<SessionId, Box<Resting>>> {
        self.inner.resting.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Locked after `live`, where both are.
    pub(super) fn parked(&self) -> MutexGuard<'_, HashMap<SessionId, Vec<Watcher>>> {
        self.inner.parked.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn live(&self) -> MutexGuard<'_, HashMap<SessionId, Live>> {
        // Nothing that could panic runs under this lock.
        self.inner.live.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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

fn store_error(session: &SessionId, error: StoreError) -> SessionError {
    match error {
        StoreError::NotFound(_) => SessionError::NotFound(session.clone()),
        StoreError::InUse(_) => SessionError::InUse(session.clone()),
        other => SessionError::Store(other.to_string()),
    }
}

pub(super) fn new_id() -> SessionId {
    crate::store::new_id()
}
