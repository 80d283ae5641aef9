//! The daemon's main loop: claims the runtime directory, serves clients, and shuts down when idle, on
//! request, or when a newer build is to take over.
//!
//! Two locks ensure that only one daemon runs. `daemon.lock` is held for the daemon's lifetime. `start.lock`
//! is held by a process that starts a daemon, and by an idle daemon that is about to exit: it removes its
//! sockets, accepts the connections made before that, and keeps running if there were any.
//!
//! The home may be moved or removed while a daemon runs, and another daemon may then serve the same path. A
//! daemon therefore identifies its sockets by inode rather than by name, and never removes sockets of others. When the
//! paths no longer lead to its own sockets and token, a daemon without clients exits. One with clients puts back what
//! was removed; if another daemon serves the path already, it leaves its clients to that one once no turn runs.

use epitome_platform::os::try_lock;
use epitome_platform::place_watch::PlaceWatch;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::Daemon;
use super::build::Build;
use super::control;
use super::frontends::Frontends;
use super::idle::tidy_while_idle;
use super::listener::{PendingPermit, SocketListener, remove};
use super::messages::Farewell;
use super::peer::{self, Peer};
use super::runtime_dir::{RuntimeDir, open_lock};
use super::token::Token;
use epitome_files::atomic_file::private_directory;
use epitome_platform::local::{self, AsyncStream, Socket};
use epitome_platform::root::FileIdentity;
use epitome_platform::signals::EndRequests;

/// Environment variable for the time without attachments after which a daemon exits, in seconds.
pub const IDLE_VARIABLE: &str = "EPITOME_IDLE_S";

const IDLE_TIME: Duration = Duration::from_secs(600);

/// Time limit for a predecessor that holds the lock but accepts no connections to exit. Shorter than what its starter
/// waits.
const PREDECESSOR_TIME_MAX: Duration = Duration::from_secs(50);

const TRY_LOCK_EVERY: Duration = Duration::from_millis(2);

/// Interval between checks whether turns still run when a newer build waits to take over.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Time after a change of the directory of its sockets until a daemon checks that they and its token are still in place, and the
/// interval of these checks where changes are not reported.
const PLACE_LOOK: Duration = Duration::from_secs(3);

/// Delay after a failed accept, which usually means too many open files: an immediate retry would fail as
/// well.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Maximum number of connections of refused processes that get an answer at a time. Others are closed.
const REFUSED_MAX: usize = 8;

/// Time limit for attachments to close cleanly. Each limits itself to 0.6 s.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(1);

/// Time limit for the rest after all front ends have disconnected: turns of control clients, and the store.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(2);

/// Time limit for clients of the control API to read their last responses.
const CONTROL_TIME_MAX: Duration = Duration::from_millis(300);

/// Time after which an idle daemon exits, taken from the environment.
pub fn idle_time() -> Duration {
    let set = std::env::var(IDLE_VARIABLE).ok().and_then(|seconds| seconds.parse::<f64>().ok());
    set.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(IDLE_TIME)
}

/// The claimed runtime directory: no other daemon serves it while this exists.
pub struct Claim {
    runtime_dir: RuntimeDir,
    acp: Socket,
    control: Socket,
    token: Token,
    lock: File,
}

/// Why a daemon can't serve a runtime directory.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("{} can't be {what}: {source}", path.display())]
    Path { path: PathBuf, what: &'static str, source: io::Error },
    #[error("the daemon (process {process}) neither answers nor exits")]
    Hangs { process: String },
}

impl ClaimError {
    fn at(path: PathBuf, what: &'static str) -> impl FnOnce(io::Error) -> ClaimError {
        move |source| ClaimError::Path { path, what, source }
    }
}

/// Claims the runtime directory and listens on its sockets; `None` if another daemon serves it.
pub fn claim(runtime_dir: &RuntimeDir) -> Result<Option<Claim>, ClaimError> {
    runtime_dir.prepare().map_err(ClaimError::at(runtime_dir.directory.clone(), "used"))?;
    let Some(lock) = lock(runtime_dir)? else { return Ok(None) };
    let listen = |path: PathBuf| {
        // A stale socket may be left over. It can't belong to a running daemon, because we hold the lock.
        let listening = remove(&path).and_then(|()| Socket::listen(&path));
        listening.map_err(ClaimError::at(path, "listened on"))
    };
    // Before the sockets: a client that can connect must find the token.
    let token = Token::create(runtime_dir).map_err(ClaimError::at(runtime_dir.token(), "written"))?;
    Ok(Some(Claim {
        token,
        acp: listen(runtime_dir.acp_socket())?,
        control: listen(runtime_dir.control_socket())?,
        runtime_dir: runtime_dir.clone(),
        lock,
    }))
}

/// Takes the daemon's lock and writes our process id into it. `None` if another daemon holds it and accepts
/// connections.
fn lock(runtime_dir: &RuntimeDir) -> Result<Option<File>, ClaimError> {
    let path = runtime_dir.daemon_lock();
    let failed = |source: io::Error| ClaimError::at(path.clone(), "locked")(source);
    let file = open_lock(&path).map_err(failed)?;
    let until = Instant::now() + PREDECESSOR_TIME_MAX;
    loop {
        match try_lock(&file) {
            Ok(()) => break,
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) => {}
        }
        if local::connect(&runtime_dir.acp_socket()).is_ok() {
            return Ok(None);
        }
        if Instant::now() > until {
            let holder = std::fs::read_to_string(&path).unwrap_or_default();
            return Err(ClaimError::Hangs { process: holder.trim().to_owned() });
        }
        std::thread::sleep(TRY_LOCK_EVERY);
    }
    write_holder(&file).map_err(failed)?;
    Ok(Some(file))
}

fn write_holder(mut lock: &File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.write_all(format!("{}\n", std::process::id()).as_bytes())
}

/// Why a daemon shut down, for the log.
#[derive(Debug)]
enum ShutdownReason {
    Idle,
    Requested,
    Signal,
    Newer(Build),
    /// Its home was moved or removed, or another daemon has claimed its paths and takes over its clients.
    Displaced,
    /// Its sockets can't be recreated, or signals can't be received.
    Broken,
}

/// Serves until the daemon is to shut down, then shuts it down cleanly. The caller exits the process.
pub async fn serve(daemon: Arc<Daemon>, claim: Claim, idle: Duration) -> io::Result<()> {
    tracing::debug!(build = ?Build::current(), "the daemon serves");
    let token = Arc::new(claim.token);
    let frontends = Frontends::new(daemon.clone(), token.clone());
    let mut serving = Serving {
        acp: SocketListener::new(claim.acp)?,
        control: SocketListener::new(claim.control)?,
        runtime_dir: claim.runtime_dir,
        lock: claim.lock,
        data: private_directory(&daemon.paths.data).and_then(|()| File::open(&daemon.paths.data)).ok(),
        refused: Arc::new(Semaphore::new(REFUSED_MAX)),
        token,
        frontends,
        daemon,
        idle,
    };
    let tidying = tokio::spawn(tidy_while_idle(serving.daemon.sessions.clone()));
    // Attached clients get a clean farewell even if the listening sockets are broken.
    let end = serving.run().await.unwrap_or_else(|error| {
        tracing::error!(%error, "the daemon can't be reached any more");
        ShutdownReason::Broken
    });
    tracing::info!(?end, "the daemon ends");
    let farewell = match end {
        ShutdownReason::Displaced => Farewell::Reattach(Build::current().clone()),
        ShutdownReason::Newer(build) => Farewell::Reattach(build),
        ShutdownReason::Idle
        | ShutdownReason::Requested
        | ShutdownReason::Signal
        | ShutdownReason::Broken => Farewell::Stopped,
    };
    tidying.abort();
    serving.end(farewell).await;
    Ok(())
}

struct Serving {
    daemon: Arc<Daemon>,
    runtime_dir: RuntimeDir,
    acp: SocketListener,
    control: SocketListener,
    token: Arc<Token>,
    lock: File,
    /// The directory of its data, wherever it is now.
    data: Option<File>,
    /// The permits for connections of refused processes.
    refused: Arc<Semaphore>,
    frontends: Arc<Frontends>,
    idle: Duration,
}

impl Serving {
    async fn run(&mut self) -> io::Result<ShutdownReason> {
        let mut stop = self.daemon.stop.subscribe();
        let mut attached = self.daemon.attachments.count();
        let mut newer = self.frontends.newer();
        let mut signals = EndRequests::new()?;
        let mut idle_since = tokio::time::Instant::now();
        let mut place_check = Box::pin(place_check(PlaceWatch::new(self.runtime_dir.path())));
        loop {
            let is_idle = *attached.borrow_and_update() == 0;
            let wanted = newer.borrow_and_update().clone();
            if let Some(build) = wanted.clone()
                && !self.works()
            {
                return Ok(ShutdownReason::Newer(build));
            }
            tokio::select! {
                accepted = self.acp.accept() => match accepted {
                    Ok((stream, permit)) => self.admit(stream, permit),
                    Err(error) => refused(&error).await,
                },
                accepted = self.control.accept() => match accepted {
                    Ok((stream, permit)) => self.admit_control(stream, permit),
                    Err(error) => refused(&error).await,
                },
                // The sender is owned by the daemon and outlives this loop.
                _ = stop.wait_for(|stop| *stop) => return Ok(ShutdownReason::Requested),
                () = signals.recv() => return Ok(ShutdownReason::Signal),
                _ = attached.changed() => idle_since = tokio::time::Instant::now(),
                _ = newer.changed() => {}
                () = tokio::time::sleep(LOOK_EVERY), if wanted.is_some() => {}
                () = &mut place_check => {
                    // It begins before the check, so that no later change goes unseen.
                    let mut watch = PlaceWatch::new(self.runtime_dir.path());
                    if !self.is_found() {
                        if self.is_displaced(is_idle) && !self.works() {
                            return Ok(ShutdownReason::Displaced);
                        }
                        // It looks again, at the interval, until it is found.
                        watch = Err(io::ErrorKind::NotFound.into());
                    }
                    place_check.set(self::place_check(watch));
                }
                () = tokio::time::sleep_until(idle_since + self.idle), if is_idle => {
                    if self.works() {
                        idle_since = tokio::time::Instant::now();
                    } else if !self.is_found() {
                        return Ok(ShutdownReason::Displaced);
                    } else if self.remove_unused_sockets()? {
                        return Ok(ShutdownReason::Idle);
                    } else {
                        idle_since = tokio::time::Instant::now();
                    }
                }
            }
        }
    }

    /// Whether any session has a running turn, with or without a client.
    fn works(&self) -> bool {
        self.daemon.sessions.has_running_turn()
    }

    /// Whether its sockets and its token are still at the paths where clients look for them.
    fn is_found(&self) -> bool {
        let token = Token::read(&self.runtime_dir);
        self.acp.is_found()
            && self.control.is_found()
            && token.is_ok_and(|token| self.token.matches(token.text()))
    }

    /// Decides what becomes of a daemon that is not found: returns whether it should end.
    fn is_displaced(&mut self, is_idle: bool) -> bool {
        if is_idle {
            return true;
        }
        // A daemon whose data was moved away serves the clients that it has.
        self.data.as_ref().is_some_and(|data| is_at(data, &self.daemon.paths.data))
            && !self.reclaim().unwrap_or_else(|error| {
                tracing::error!(%error, "the directory for sockets can't be restored");
                true
            })
    }

    /// Puts the lock, the token and the sockets back where clients look for them. Returns false if another daemon holds
    /// the lock.
    fn reclaim(&mut self) -> io::Result<bool> {
        self.runtime_dir.prepare()?;
        if !is_at(&self.lock, &self.runtime_dir.daemon_lock()) {
            let lock = open_lock(&self.runtime_dir.daemon_lock())?;
            match try_lock(&lock) {
                Ok(()) => write_holder(&lock)?,
                Err(TryLockError::WouldBlock) => return Ok(false),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            self.lock = lock;
        }
        // Before the sockets, as in `claim`.
        self.token.store(&self.runtime_dir)?;
        for (listener, path) in [
            (&mut self.acp, self.runtime_dir.acp_socket()),
            (&mut self.control, self.runtime_dir.control_socket()),
        ] {
            if !listener.is_found() {
                remove(&path)?;
                *listener = SocketListener::new(Socket::listen(&path)?)?;
            }
        }
        tracing::warn!(directory = %self.runtime_dir.path().display(), "the directory for sockets was damaged and is restored");
        Ok(true)
    }

    /// Removes the sockets and returns whether no connection was pending. Pending connections are accepted,
    /// and the sockets are created again. Otherwise the start lock is kept until the process exits, so that a
    /// process waiting for it starts the next daemon only then.
    fn remove_unused_sockets(&mut self) -> io::Result<bool> {
        let lock = open_lock(&self.runtime_dir.start_lock())?;
        if try_lock(&lock).is_err() {
            // Another process is about to connect.
            return Ok(false);
        }
        self.remove_sockets();
        let mut came = 0;
        while let Some((stream, permit)) = self.acp.accept_at_once()? {
            came += 1;
            self.admit(stream, permit);
        }
        while let Some((stream, permit)) = self.control.accept_at_once()? {
            came += 1;
            self.admit_control(stream, permit);
        }
        if came == 0 {
            // Keeps the lock until the process exits.
            std::mem::forget(lock);
            return Ok(true);
        }
        self.acp = SocketListener::new(Socket::listen(&self.runtime_dir.acp_socket())?)?;
        self.control = SocketListener::new(Socket::listen(&self.runtime_dir.control_socket())?)?;
        Ok(false)
    }

    fn admit(&self, stream: AsyncStream, permit: Option<PendingPermit>) {
        let Some((permit, refused)) = self.judge(&stream, permit) else { return };
        let opened = stream.into_std().and_then(|stream| self.frontends.open(stream, permit, refused));
        if let Err(error) = opened {
            tracing::warn!(%error, "a front end could not be let in");
        }
    }

    fn admit_control(&self, stream: AsyncStream, permit: Option<PendingPermit>) {
        let Some((permit, refused)) = self.judge(&stream, permit) else { return };
        tokio::spawn(control::admit(self.daemon.clone(), stream, self.token.clone(), permit, refused));
    }

    /// Checks who has connected. Returns the permit that counts the connection, and why it is to be refused; `None` if it
    /// is closed without an answer.
    fn judge(
        &self,
        stream: &AsyncStream,
        permit: Option<PendingPermit>,
    ) -> Option<(Option<PendingPermit>, Option<String>)> {
        match peer::judge(stream, &self.daemon.sessions.services().reaper) {
            Peer::MayAsk => Some((permit, None)),
            // They don't take the places of clients.
            Peer::Refused(why) => Some((Some(self.refused.clone().try_acquire_owned().ok()?), Some(why))),
            Peer::Foreign => None,
        }
    }

    async fn end(self, farewell: Farewell) {
        // Clients that connect now start the next daemon, which waits for our lock.
        self.remove_sockets();
        drop((self.acp, self.control));
        self.daemon.stop.send_replace(true);
        self.frontends.close(farewell);
        if tokio::time::timeout(LEAVE_TIME_MAX, self.frontends.closed()).await.is_err() {
            tracing::warn!("a front end did not leave in time");
        }
        let store = self.daemon.store.clone();
        let settled = async {
            self.daemon.sessions.settled().await;
            // If this panics, the index is rebuilt from the journals.
            drop(tokio::task::spawn_blocking(move || store.settle()).await);
        };
        if tokio::time::timeout(SETTLE_TIME_MAX, settled).await.is_err() {
            tracing::warn!("sessions or the store did not settle in time");
        }
        let mut attached = self.daemon.attachments.count();
        // The sender is owned by the daemon, so only the timeout can fail.
        drop(tokio::time::timeout(CONTROL_TIME_MAX, attached.wait_for(|count| *count == 0)).await);
    }

    fn remove_sockets(&self) {
        self.acp.remove();
        self.control.remove();
    }
}

/// Whether a path leads to this open file.
fn is_at(file: &File, path: &Path) -> bool {
    let found = File::open(path).and_then(FileIdentity::read);
    FileIdentity::read(file).is_ok_and(|own| found.is_ok_and(|found| found == own))
}

/// Waits until a daemon should check that it is still found.
async fn place_check(watch: io::Result<PlaceWatch>) {
    if let Ok(watch) = watch {
        // If it fails, the interval takes its place.
        drop(watch.changed().await);
    }
    tokio::time::sleep(PLACE_LOOK).await;
}

async fn refused(error: &io::Error) {
    tracing::warn!(%error, "a connection could not be accepted");
    tokio::time::sleep(ACCEPT_AGAIN).await;
}
