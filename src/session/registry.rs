//! All sessions of this process: creating, attaching, routing. `lives` has how they come and go, `stored` what is done
//! with them on the disk.

mod lives;
mod stored;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use lives::{TaskOrigin, TaskStart};

use super::actor::Session;
use super::client_list::{Activity, ActivityNow, Watcher};
use super::core::{HostProcess, settle};
use super::counts::{Counts, CountsSnapshot};
use super::suspended::SuspendedSession;
use super::work::{Attaching, Responder};
use super::{Attachment, ClientId, Opening, Replay, SessionCommand, SessionError, SessionEvent, Ticket};
use epitome_checkpoint::Checkpoints;
use epitome_config::{CompactionThreshold, HookTrust, Settings};
use epitome_files::paths::Paths;
use epitome_hooks::functions::Functions;
use epitome_platform::reaper::Reaper;
use epitome_provider::http::Http;
use epitome_provider::learned::Learned;
use epitome_recipe::watch::RecipeWatch;
pub use epitome_store::Header;
use epitome_store::{Store, StoreError};
use epitome_thread::{Change, FORMAT_VERSION, Mode, Seq, SessionId, ThoughtLevel, Thread};
use epitome_tokens::Rulers;
use epitome_tools::{RunningCommands, Toolbox};

/// Commands that may wait for a session. It takes them as fast as it can think; this many waiting
/// means that it is stuck, and the sender is told so.
const COMMANDS_MAX: usize = 256;

/// The option that adds an allow rule, which messages name in place of a file.
pub const ALLOW_OPTION: &str = "--allow";

/// What every session of a process shares.
#[derive(Clone)]
pub struct SessionServices {
    pub paths: Paths,
    pub store: Store,
    pub http: Http,
    /// What this installation has learned about models.
    pub learned: Learned,
    pub toolbox: Toolbox,
    pub watch: RecipeWatch,
    /// What starts the processes of hooks.
    pub reaper: Arc<Reaper>,
    /// The commands that run, of all sessions.
    pub running: RunningCommands,
    /// What tokens are counted with.
    pub rulers: Rulers,
    /// Callbacks and handlers that the embedding program brings.
    pub functions: Functions,
    /// How long nothing happens before a session rests.
    pub suspend_after: Duration,
    /// Whether this process ends with its sessions; a daemon does not.
    pub ends_with_sessions: bool,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thought: Option<ThoughtLevel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rounds: Option<u32>,
    /// Permission rules of the kind `allow`, as written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Whether hooks run.
    pub hooks: Option<bool>,
    pub trust: Option<HookTrust>,
    /// Whether a compaction happens by itself.
    pub auto_compact: Option<bool>,
    pub threshold: Option<CompactionThreshold>,
    /// Further folders with recipes; those that are not absolute are below a session's directory.
    pub recipe_dirs: Vec<PathBuf>,
}

impl Overrides {
    pub fn over(&self, mut settings: Settings) -> Settings {
        settings.model = self.model.clone().or(settings.model);
        settings.mode = self.mode.unwrap_or(settings.mode);
        settings.thought = self.thought.unwrap_or(settings.thought);
        settings.max_rounds = self.max_rounds.unwrap_or(settings.max_rounds);
        for rule in &self.allow {
            // The command line has reported what is no rule; here it must not allow anything.
            if let Err(error) = settings.allow(rule, ALLOW_OPTION) {
                tracing::warn!(error, "a rule is ignored");
            }
        }
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
    inner: Arc<SessionsInner>,
}

/// The way from a session to the others. It keeps none of them alive.
#[derive(Clone, Default)]
pub(super) struct OtherSessions(Weak<SessionsInner>);

impl OtherSessions {
    /// `None` where the process ends, and for who has no others.
    pub(super) fn upgrade(&self) -> Option<Sessions> {
        self.0.upgrade().map(|inner| Sessions { inner })
    }
}

struct SessionsInner {
    services: SessionServices,
    runtime: Handle,
    /// Who lives. Held for a look-up only; threads themselves are behind no lock.
    live: Mutex<BTreeMap<SessionId, LiveTask>>,
    /// Sessions that wait for somebody to want something. Locked under `live`.
    resting: Mutex<BTreeMap<SessionId, Box<SuspendedSession>>>,
    /// Who looks on at sessions that do not live now.
    parked: Mutex<BTreeMap<SessionId, Vec<Watcher>>>,
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
    /// Prompts that wait for their turn, or for a turn to take them in.
    pub queued_prompts: usize,
    /// What clients have sent and the session has not looked at.
    pub waiting_events: usize,
    /// Entries are in its log that are not known to be on the disk.
    pub unsynced: bool,
}

/// A session's task, from outside.
struct LiveTask {
    activity: Arc<Activity>,
    commands: mpsc::Sender<SessionCommand>,
    /// Closes when the task has ended and its journal is free.
    ended: watch::Receiver<()>,
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

    /// What every session of the process shares.
    pub fn services(&self) -> &SessionServices {
        &self.inner.services
    }

    /// Makes a session. Its answer, `Answer::Attached`, comes out of the opening's outlet.
    pub fn create(&self, ticket: Ticket, opening: Opening) -> SessionId {
        let id = new_id();
        let TaskStart { channel, alive, activity, before: _ } = self.enter(&mut self.live(), &id);
        let (services, again, session) = (self.inner.services.clone(), self.clone(), id.clone());
        self.run(id.clone(), alive, async move {
            let opened =
                Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: opening.cwd.clone() };
            let made = opening.check_cwd().and_then(|()| {
                services.store.create(&session, opened).map_err(|error| store_error(&session, error))
            });
            let made = made.and_then(|(journal, entry)| {
                let thread =
                    Thread::replay([entry]).map_err(|error| SessionError::Internal(error.to_string()))?;
                Ok((journal, thread))
            });
            match made {
                Ok((journal, thread)) => {
                    let mut live = Box::new(Session::new(services, thread, journal, channel, &opening));
                    live.join_process(again.process(), activity);
                    live.core.adopt_settings();
                    // What could not be written is logged there, and holds for the session's life only.
                    drop(settle(&mut live.core).await);
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
        let mut live = self.live();
        self.resume(&mut live, &session);
        let sent = match live.get(&session) {
            Some(found) => found.commands.try_send(SessionCommand::Attach { ticket, opening, replay }),
            None => {
                return self.open(
                    &mut live,
                    session,
                    TaskOrigin::Client(Attaching { ticket, opening, replay }),
                );
            }
        };
        match sent {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(SessionCommand::Attach { ticket, opening, replay })) => {
                Attaching { ticket, opening, replay }.refuse(&session, &SessionError::Busy(COMMANDS_MAX));
            }
            // It is just ending: it is opened again from its log.
            Err(mpsc::error::TrySendError::Closed(SessionCommand::Attach { ticket, opening, replay })) => {
                self.open(&mut live, session, TaskOrigin::Client(Attaching { ticket, opening, replay }));
            }
            Err(mpsc::error::TrySendError::Full(_) | mpsc::error::TrySendError::Closed(_)) => {
                unreachable!("the command that was sent comes back")
            }
        }
    }

    /// Passes a command on. An error here means that the command's ticket gets no other answer.
    pub fn send(&self, session: &SessionId, command: SessionCommand) -> Result<(), SessionError> {
        let mut live = self.live();
        match &command {
            // What rests has nothing to cancel and waits for no decision.
            SessionCommand::Cancel
            | SessionCommand::CancelAgent { .. }
            | SessionCommand::CancelPrompt { .. }
            | SessionCommand::Decide { .. }
            | SessionCommand::Absent { .. }
            | SessionCommand::Answer { .. }
            | SessionCommand::Fulfil { .. }
                if self.resting().contains_key(session) =>
            {
                return Ok(());
            }
            _ => self.resume(&mut live, session),
        }
        let found = live.get(session).ok_or_else(|| SessionError::NotFound(session.clone()))?;
        match found.commands.try_send(command) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(SessionError::NotFound(session.clone())),
            // A cancel or a leaving must not get lost because of what stands before it.
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

    /// Lets somebody look on at a session, now and whenever it is opened again in this process: the entries from
    /// `from` on come as a replay, then all that happens. An observer keeps no session alive and is not asked
    /// anything, though it may send `Cancel` and `Decide`. Reads the disk where the session does not live.
    pub fn watch(&self, session: &SessionId, from: Seq, attachment: Attachment) -> Result<(), SessionError> {
        if self.notify_of_watcher(&self.live(), session, from, &attachment)? {
            return Ok(());
        }
        let entries = self.inner.services.store.read(session).map_err(|error| store_error(session, error))?;
        for entry in entries.iter().filter(|entry| entry.seq >= from) {
            attachment
                .outlet
                .put(session, SessionEvent::Entry { entry: entry.clone(), replay: true, own: false });
        }
        let from = entries.last().map_or(from, |last| from.max(Seq(last.seq.0 + 1)));
        // It may have been opened while its log was read. Nobody opens it under this lock.
        let live = self.live();
        if !self.notify_of_watcher(&live, session, from, &attachment)? {
            self.parked().entry(session.clone()).or_default().push(Watcher { from, attachment });
        }
        Ok(())
    }

    /// Tells a session that lives of an observer; `false` where it does not live.
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
    pub fn counts(&self) -> CountsSnapshot {
        self.inner.counts.read()
    }

    /// The sessions that live in this process.
    pub fn live_sessions(&self) -> Vec<LiveSession> {
        let live = self.live();
        let seen = |(session, live): (&SessionId, &LiveTask)| {
            let ActivityNow { running, clients, watchers, prompts, unsynced } = live.activity.get();
            LiveSession {
                session: session.clone(),
                running,
                clients,
                watchers,
                resting: false,
                queued_prompts: prompts,
                waiting_events: live.commands.max_capacity() - live.commands.capacity(),
                unsynced,
            }
        };
        let awake = live.iter().filter(|(_, live)| !live.commands.is_closed()).map(seen);
        let asleep = self.resting();
        let asleep = asleep.iter().map(|(session, resting)| {
            let (clients, watchers) = resting.counts();
            LiveSession {
                session: session.clone(),
                running: false,
                clients,
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
        HostProcess::new(OtherSessions(Arc::downgrade(&self.inner)), self.inner.counts.clone())
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

    fn resting(&self) -> MutexGuard<'_, BTreeMap<SessionId, Box<SuspendedSession>>> {
        self.inner.resting.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Locked after `live`, where both are.
    pub(super) fn parked(&self) -> MutexGuard<'_, BTreeMap<SessionId, Vec<Watcher>>> {
        self.inner.parked.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<SessionId, LiveTask>> {
        // Nothing that could panic runs under this lock.
        self.inner.live.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn store_error(session: &SessionId, error: StoreError) -> SessionError {
    match error {
        StoreError::NotFound(_) => SessionError::NotFound(session.clone()),
        StoreError::InUse(_) => SessionError::InUse(session.clone()),
        other => SessionError::Store(other.to_string()),
    }
}

pub(super) fn new_id() -> SessionId {
    epitome_store::new_id()
}
