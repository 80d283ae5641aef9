//! The daemon's life: it takes its place, serves who attaches, and ends when nobody has for a while, when it is
//! told to, or when a newer version is to take over.
//!
//! Two locks keep it alone. `daemon.lock` is its own for as long as it lives. `start.lock` belongs to who starts a
//! daemon, and to an idle one that is about to leave: it removes its sockets, serves who had connected before
//! that, and stays if there was anybody.
//!
//! A home may be moved or removed under a daemon, and another daemon then serves the same path. So it knows its
//! sockets by what they are and not by their names, removes no others, and leaves when its names are not its own.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Daemon;
use super::build::Build;
use super::control;
use super::doors::Doors;
use super::entrance::{Entrance, Socket, remove};
use super::frame::Farewell;
use super::place::Place;
use epitome_platform::lean::{self, Lean};

/// Sets how long a daemon stays without an attachment, in seconds.
pub const IDLE_VARIABLE: &str = "EPITOME_IDLE_S";

/// How long it does where nothing is set.
const IDLE_TIME: Duration = Duration::from_secs(600);

/// How long a predecessor may take to end that holds the lock and answers nobody any more.
const PREDECESSOR_TIME_MAX: Duration = Duration::from_secs(4);

/// How often its lock is tried.
const TRY_LOCK_EVERY: Duration = Duration::from_millis(2);

/// How often it is looked again whether a turn still runs without a client.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How often a daemon without clients looks whether its sockets are still where they were made.
const PLACE_LOOK: Duration = Duration::from_secs(3);

/// After an accept that failed: most often there are too many open files, and trying at once helps nobody.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// How long attachments may take to end in an orderly way. Each gives itself 0.6 s.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(1);

/// How long what is left may take when all front ends have gone: turns of control clients, the store.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(2);

/// How long clients of the control API may take to read their last answers.
const CONTROL_TIME_MAX: Duration = Duration::from_millis(300);

/// How long an idle daemon stays, by its environment.
pub fn idle_time() -> Duration {
    let set = std::env::var(IDLE_VARIABLE).ok().and_then(|seconds| seconds.parse::<f64>().ok());
    set.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(IDLE_TIME)
}

/// The place, taken: nobody else serves it while this lives.
pub struct Claim {
    place: Place,
    acp: Socket,
    control: Socket,
    _lock: File,
}

/// What came of the attempt to take the place.
pub enum Claimed {
    Ours(Claim),
    /// Another daemon serves it.
    Others,
}

/// Takes the place and listens. An error is a sentence.
pub fn claim(place: &Place) -> Result<Claimed, String> {
    place.prepare().map_err(|error| format!("there is no place for sockets: {error}"))?;
    let Some(lock) = lock(place)? else { return Ok(Claimed::Others) };
    let listen = |path: PathBuf| {
        // A stale one is in the way. It is nobody else's: we hold the lock.
        let listening = remove(&path).and_then(|()| Socket::listen(&path));
        listening.map_err(|error| format!("{} can't be listened on: {error}", path.display()))
    };
    Ok(Claimed::Ours(Claim {
        acp: listen(place.acp_socket())?,
        control: listen(place.control_socket())?,
        place: place.clone(),
        _lock: lock,
    }))
}

/// The daemon's lock with our number in it; `None` where its holder serves.
fn lock(place: &Place) -> Result<Option<File>, String> {
    let path = place.daemon_lock();
    let failed = |error: io::Error| format!("{} can't be locked: {error}", path.display());
    let mut file =
        File::options().create(true).write(true).truncate(false).mode(0o600).open(&path).map_err(failed)?;
    let until = Instant::now() + PREDECESSOR_TIME_MAX;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) => {}
        }
        if UnixStream::connect(place.acp_socket()).is_ok() {
            return Ok(None);
        }
        if Instant::now() > until {
            let holder = std::fs::read_to_string(&path).unwrap_or_default();
            return Err(format!("the daemon with process number {} neither answers nor ends", holder.trim()));
        }
        std::thread::sleep(TRY_LOCK_EVERY);
    }
    file.set_len(0)
        .and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()))
        .map_err(failed)?;
    Ok(Some(file))
}

/// Why a daemon ended, for its log.
#[derive(Debug)]
enum End {
    Idle,
    Told,
    Signal,
    Newer(Build),
    /// Its home was moved or removed, or another daemon has its place.
    Displaced,
    /// Its sockets can't be made again, or signals not be heard.
    Broken,
}

/// Serves until the daemon is to end, and ends it in an orderly way. The caller exits.
pub async fn serve(daemon: Arc<Daemon>, claim: Claim, idle: Duration) -> io::Result<()> {
    tracing::debug!(build = ?Build::own(), "the daemon serves");
    let doors = Doors::new(daemon.clone());
    let mut serving = Serving {
        acp: Entrance::new(claim.acp)?,
        control: Entrance::new(claim.control)?,
        place: claim.place,
        doors,
        daemon,
        idle,
    };
    // What has attached is taken leave of also where the entrance is broken.
    let end = serving.run().await.unwrap_or_else(|error| {
        tracing::error!(%error, "the daemon can't be reached any more");
        End::Broken
    });
    tracing::info!(?end, "the daemon ends");
    let farewell = match end {
        End::Idle | End::Told | End::Signal | End::Displaced | End::Broken => Farewell::Stopped,
        End::Newer(build) => Farewell::Reattach(build),
    };
    serving.end(farewell).await;
    Ok(())
}

struct Serving {
    daemon: Arc<Daemon>,
    place: Place,
    acp: Entrance,
    control: Entrance,
    doors: Doors,
    idle: Duration,
}

impl Serving {
    async fn run(&mut self) -> io::Result<End> {
        let mut stop = self.daemon.stop.subscribe();
        let mut attached = self.daemon.attachments.count();
        let mut newer = self.doors.newer();
        let mut signals = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::interrupt())?,
        ];
        let mut idle_since = tokio::time::Instant::now();
        let mut lean = Lean::default();
        let mut lean_looks = tokio::time::interval_at(idle_since + lean::LOOK_EVERY, lean::LOOK_EVERY);
        lean_looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_idle = *attached.borrow_and_update() == 0;
            let wanted = newer.borrow_and_update().clone();
            if let Some(build) = wanted.clone()
                && !self.works()
            {
                return Ok(End::Newer(build));
            }
            tokio::select! {
                accepted = self.acp.accept() => match accepted {
                    Ok(stream) => self.admit(stream),
                    Err(error) => refused(&error).await,
                },
                accepted = self.control.accept() => match accepted {
                    Ok(stream) => self.admit_control(stream),
                    Err(error) => refused(&error).await,
                },
                // The sender is the daemon's own and lives as long as we do.
                _ = stop.wait_for(|stop| *stop) => return Ok(End::Told),
                () = any(&mut signals) => return Ok(End::Signal),
                _ = attached.changed() => idle_since = tokio::time::Instant::now(),
                _ = newer.changed() => {}
                _ = lean_looks.tick() => {
                    if !self.works() {
                        lean = look_lean(lean).await;
                    }
                }
                () = tokio::time::sleep(LOOK_EVERY), if wanted.is_some() => {}
                () = tokio::time::sleep(PLACE_LOOK), if is_idle => {
                    if !self.is_found() && !self.works() {
                        return Ok(End::Displaced);
                    }
                }
                () = tokio::time::sleep_until(idle_since + self.idle), if is_idle => {
                    if self.works() {
                        idle_since = tokio::time::Instant::now();
                    } else if !self.is_found() {
                        return Ok(End::Displaced);
                    } else if self.nobody_came()? {
                        return Ok(End::Idle);
                    } else {
                        idle_since = tokio::time::Instant::now();
                    }
                }
            }
        }
    }

    /// Whether a turn runs or waits, with or without a client.
    fn works(&self) -> bool {
        self.daemon.sessions.live_sessions().iter().any(|session| session.running)
    }

    /// Whether its sockets are where clients look for them.
    fn is_found(&self) -> bool {
        self.acp.is_found() && self.control.is_found()
    }

    /// Closes the entrance, and says whether nobody stood in it. If somebody did they are served and it is opened
    /// again. The start lock is kept for good otherwise: whoever waits for it starts the next daemon when this
    /// one has ended.
    fn nobody_came(&mut self) -> io::Result<bool> {
        let lock = File::options().create(true).append(true).mode(0o600).open(self.place.start_lock())?;
        if lock.try_lock().is_err() {
            // Somebody is about to connect.
            return Ok(false);
        }
        self.remove_sockets();
        let mut came = 0;
        while let Some(stream) = self.acp.accept_at_once()? {
            came += 1;
            self.admit(stream);
        }
        while let Some(stream) = self.control.accept_at_once()? {
            came += 1;
            self.admit_control(stream);
        }
        if came == 0 {
            // Until the process ends.
            std::mem::forget(lock);
            return Ok(true);
        }
        self.acp = Entrance::new(Socket::listen(&self.place.acp_socket())?)?;
        self.control = Entrance::new(Socket::listen(&self.place.control_socket())?)?;
        Ok(false)
    }

    fn admit(&self, stream: tokio::net::UnixStream) {
        if let Some(stream) = ours(stream)
            && let Err(error) = stream.into_std().and_then(|stream| self.doors.open(stream))
        {
            tracing::warn!(%error, "a front end could not be let in");
        }
    }

    fn admit_control(&self, stream: tokio::net::UnixStream) {
        if let Some(stream) = ours(stream) {
            tokio::spawn(control::serve(self.daemon.clone(), stream));
        }
    }

    async fn end(self, farewell: Farewell) {
        // Who comes now starts the next daemon, which waits for our lock.
        self.remove_sockets();
        drop((self.acp, self.control));
        self.daemon.stop.send_replace(true);
        self.doors.close(farewell);
        if tokio::time::timeout(LEAVE_TIME_MAX, self.doors.closed()).await.is_err() {
            tracing::warn!("a front end did not leave in time");
        }
        let store = self.daemon.store.clone();
        let settled = async {
            self.daemon.sessions.settled().await;
            // What is written behind is made again out of the journals, should this panic.
            drop(tokio::task::spawn_blocking(move || store.settle()).await);
        };
        if tokio::time::timeout(SETTLE_TIME_MAX, settled).await.is_err() {
            tracing::warn!("sessions or the store did not settle in time");
        }
        let mut attached = self.daemon.attachments.count();
        // The sender lives in the daemon, so it can only be late.
        drop(tokio::time::timeout(CONTROL_TIME_MAX, attached.wait_for(|count| *count == 0)).await);
    }

    fn remove_sockets(&self) {
        self.acp.remove();
        self.control.remove();
    }
}

/// Gives back what a daemon that waits has no use for, beside what it serves.
async fn look_lean(mut lean: Lean) -> Lean {
    let looked = tokio::task::spawn_blocking(move || {
        lean.look();
        lean
    });
    looked.await.unwrap_or_default()
}

async fn refused(error: &io::Error) {
    tracing::warn!(%error, "a connection could not be accepted");
    tokio::time::sleep(ACCEPT_AGAIN).await;
}

async fn any(signals: &mut [Signal; 3]) {
    let [term, hup, int] = signals;
    tokio::select! {
        _ = term.recv() => {}
        _ = hup.recv() => {}
        _ = int.recv() => {}
    }
}

/// The connection, if the process at its other end is this user's.
fn ours(stream: tokio::net::UnixStream) -> Option<tokio::net::UnixStream> {
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == rustix::process::getuid().as_raw() => Some(stream),
        Ok(peer) => {
            tracing::warn!(uid = peer.uid(), "another user's connection is refused");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "a connection whose user is not known is refused");
            None
        }
    }
}
