//! Connects to the daemon, starting one if none is running, and performs the handshake.

use epitome_platform::os::try_lock;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::dial::DialError;
use crate::build::Build;
use crate::control::EnvironmentObject;
use crate::handshake::{ANSWER_BYTES_MAX, Hello, HelloAnswer, Home, PROTOCOL};
use crate::messages::MessageReader;
use crate::runtime_dir::{RuntimeDir, open_lock};
use crate::start::{self, READY_TIME_MAX, SLOW_AFTER, SlowNotices, StartError, is_timeout};
use crate::token::Token;
use epitome_files::paths::Paths;
use epitome_platform::local;
use epitome_session::AccessGrant;
use epitome_session::registry::Overrides;

/// Time limit for getting a daemon if no process has its lock or starts one. Otherwise it is waited for as long as for
/// a start: on a busy machine it may be slow, and a window that worked without it could open none of its sessions.
const ATTACH_TIME_MAX: Duration = Duration::from_secs(5);

/// Time that a newer front end is given to start the newer daemon.
const NEWER_TIME_MAX: Duration = Duration::from_secs(2);

/// How often to retry a daemon that closes the connection without an answer, because it is shutting down.
pub const CLOSES_MAX: u32 = 3;

/// Interval between attempts. Starting a daemon takes milliseconds.
const TRY_EVERY: Duration = Duration::from_micros(200);

/// The same for a daemon that is slow.
const TRY_SLOW_AGAIN: Duration = Duration::from_millis(20);

/// Pause before a daemon that is shutting down is tried again.
pub const TRY_ENDING_AGAIN: Duration = Duration::from_millis(10);

const TRY_TOKEN_AGAIN: Duration = Duration::from_millis(100);

/// Connects a front end to the daemon, with the hello it sends.
pub struct Connector {
    runtime_dir: RuntimeDir,
    hello: Hello,
    program: PathBuf,
    notices: SlowNotices,
}

/// Why no daemon can be used.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("the path of this program is unknown: {0}")]
    Program(#[source] io::Error),
    #[error("the directory for sockets can't be used: {0}")]
    RuntimeDir(#[source] io::Error),
    #[error("{} can't be locked: {source}", path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("the daemon's socket {} can't be used: {source}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("{0}; `epitome daemon stop` ends it, and the next window starts another")]
    Refused(String),
    #[error("the daemon did not answer in time")]
    NoAnswer,
    #[error("the daemon closes every connection without an answer")]
    Closes,
    #[error("no daemon was ready within {0:?}")]
    NotReady(Duration),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("a socket can't be made or used: {0}")]
    Relay(#[source] io::Error),
}

/// Finds a daemon for a front end, at the start and when the last one has died.
pub trait FindDaemon: Send {
    /// `to_newer`: another front end is about to start a newer daemon,
    /// which is waited for.
    fn find(&mut self, ids_above: u64, to_newer: bool) -> Result<DaemonLink, AttachError>;

    /// Has this called when finding a daemon, or returning to one, takes long.
    fn report_to(&mut self, _report: WaitReport) {}

    /// Lets the next link be to the server at this address, which has a session of the client open.
    fn go_to(&mut self, _address: &str) -> Redirect {
        Redirect::NotFollowed
    }
}

/// The fate of a link whose session is open at another server.
pub enum Redirect {
    Followed,
    /// The client learns the address, and goes there itself.
    NotFollowed,
    /// The server can't be used, for this reason.
    Impossible(String),
}

/// Shows the user the reason for a wait, a sentence; `None` once a link continues.
pub type WaitReport = Arc<dyn Fn(Option<&str>) + Send + Sync>;

impl FindDaemon for Connector {
    fn find(&mut self, ids_above: u64, to_newer: bool) -> Result<DaemonLink, AttachError> {
        let wait = if to_newer { NEWER_TIME_MAX } else { Duration::ZERO };
        self.attach_from(ids_above, Instant::now() + wait)
    }
}

/// A connection to a daemon that serves us.
pub struct DaemonLink {
    pub writer: Arc<local::Stream>,
    pub reader: MessageReader<local::Stream>,
    pub version: String,
}

impl DaemonLink {
    /// A link through a socket over which nothing was sent.
    pub fn new(stream: local::Stream, version: String) -> io::Result<DaemonLink> {
        let writer = Arc::new(stream.try_clone()?);
        Ok(DaemonLink { writer, reader: MessageReader::new(stream), version })
    }

    /// The socket, in non-blocking mode, for a relay that passes on what the daemon sends.
    pub fn into_stream(self) -> io::Result<local::Stream> {
        let stream = self.writer.try_clone()?;
        stream.set_nonblocking(true)?;
        self.reader.has_nothing_read().then_some(stream).ok_or_else(|| ErrorKind::ConnectionAborted.into())
    }
}

enum Greeting {
    Served(DaemonLink),
    Refused(String),
    Closed,
}

impl Connector {
    pub fn new(paths: &Paths, environment: EnvironmentObject, overrides: Overrides) -> io::Result<Connector> {
        let hello = Hello {
            protocol: PROTOCOL,
            build: Build::current().clone(),
            pid: std::process::id(),
            cwd: std::env::current_dir().unwrap_or_default().into_os_string(),
            place: Home::new(paths),
            token: Token::default(),
            environment,
            overrides,
            ids_above: 0,
            served_at: None,
            grant: None,
        };
        let (runtime_dir, program) = (RuntimeDir::new(paths), start::this_program()?);
        Ok(Connector { runtime_dir, hello, program, notices: SlowNotices::StandardError })
    }

    /// The directory with the daemon's sockets.
    pub fn runtime_dir(&self) -> &RuntimeDir {
        &self.runtime_dir
    }

    /// Restricts the connection to these rights.
    pub fn restrict(&mut self, grant: AccessGrant) {
        self.hello.grant = Some(grant);
    }

    /// Lets the daemon know where its sessions can be reached from other machines.
    pub fn advertise(&mut self, address: &str) {
        self.hello.served_at = Some(address.to_owned());
    }

    /// Starts this program as daemon, instead of the running one.
    pub fn starting(self, program: PathBuf) -> Connector {
        Connector { program, ..self }
    }

    /// Reports slow daemons only in the log from now on, so that nothing is written over a full-screen program.
    pub fn report_in_log_only(&mut self) {
        self.notices = SlowNotices::LogOnly;
    }

    /// Attaches to the daemon, starting it if there is none.
    pub fn attach(&mut self, ids_above: u64) -> Result<DaemonLink, AttachError> {
        self.attach_from(ids_above, Instant::now())
    }

    /// Attaches to the daemon if one is running.
    pub fn attach_running(&mut self) -> Result<Option<DaemonLink>, AttachError> {
        // Dropped before the next connection: a daemon may serve one at a time.
        match local::connect(&self.runtime_dir.acp_socket()).map(drop) {
            // It may be about to end, or to write its token again.
            Ok(()) => self.attach(0).map(Some),
            // Reset: the daemon was killed before it accepted the connection.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
                ) =>
            {
                Ok(None)
            }
            Err(error) => {
                let socket = self.runtime_dir.acp_socket();
                Err(AttachError::Socket { path: socket, source: error })
            }
        }
    }

    fn attach_from(&mut self, ids_above: u64, start_from: Instant) -> Result<DaemonLink, AttachError> {
        self.runtime_dir.prepare().map_err(AttachError::RuntimeDir)?;
        self.hello.ids_above = ids_above;
        let began = Instant::now();
        let mut is_slow = false;
        let mut closes = 0;
        // Held from before the start until we are attached, so that only one of many waiting processes starts
        // a daemon.
        let mut start_lock: Option<File> = None;
        let mut started = false;
        loop {
            match local::connect(&self.runtime_dir.acp_socket()) {
                Ok(stream) => match self.greet(stream) {
                    Ok(Greeting::Served(link)) => return Ok(link),
                    // Its token was removed. It writes the token again as soon as it notices.
                    Ok(Greeting::Refused(_))
                        if self.hello.token.text().is_empty() && began.elapsed() < ATTACH_TIME_MAX =>
                    {
                        std::thread::sleep(TRY_TOKEN_AGAIN);
                    }
                    Ok(Greeting::Refused(why)) => {
                        return Err(AttachError::Refused(why));
                    }
                    Err(error) if is_timeout(&error) => {
                        return Err(AttachError::NoAnswer);
                    }
                    Ok(Greeting::Closed) | Err(_) => {
                        closes += 1;
                        if closes > CLOSES_MAX && self.runtime_dir.daemon().is_none() {
                            return Err(AttachError::Closes);
                        }
                        std::thread::sleep(TRY_ENDING_AGAIN);
                    }
                },
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                    if start_lock.is_some() && !started {
                        start::start(&self.program, &self.hello.environment.0, self.notices)?;
                        started = true;
                        continue;
                    }
                    if start_lock.is_none() && Instant::now() >= start_from {
                        start_lock = self.try_start_lock()?;
                        if start_lock.is_some() {
                            // Its previous holder may have started a daemon.
                            continue;
                        }
                    }
                }
                // The listen backlog is full because many clients connect at once.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => {
                    return Err(AttachError::Socket { path: self.runtime_dir.acp_socket(), source: error });
                }
            }
            let waited = began.elapsed();
            if waited > READY_TIME_MAX {
                return Err(AttachError::NotReady(READY_TIME_MAX));
            }
            if waited > ATTACH_TIME_MAX && !is_slow {
                match self.runtime_dir.daemon() {
                    Some(daemon) => self.report_unresponsive(&daemon),
                    None if start_lock.is_none() && self.runtime_dir.is_starting() => {
                        self.notices.report("the daemon that another process starts is not ready");
                    }
                    None => return Err(AttachError::NotReady(ATTACH_TIME_MAX)),
                }
                is_slow = true;
            }
            std::thread::sleep(if is_slow { TRY_SLOW_AGAIN } else { TRY_EVERY });
        }
    }

    fn try_start_lock(&self) -> Result<Option<File>, AttachError> {
        let path = self.runtime_dir.start_lock();
        let locked = open_lock(&path).and_then(|file| match try_lock(&file) {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        });
        locked.map_err(|source| AttachError::Lock { path, source })
    }

    fn greet(&mut self, stream: local::Stream) -> io::Result<Greeting> {
        stream.set_read_timeout(Some(SLOW_AFTER))?;
        self.hello.token = match Token::read(&self.runtime_dir) {
            Ok(token) => token,
            Err(error) => return Ok(Greeting::Refused(format!("the daemon's token can't be read: {error}"))),
        };
        (&stream).write_all(&self.hello.to_line())?;
        let mut reader = MessageReader::new(stream.try_clone()?);
        let mut line = reader.line(ANSWER_BYTES_MAX).map(|line| line.map(<[u8]>::to_vec));
        if line.as_ref().is_err_and(is_timeout)
            && let Some(daemon) = self.runtime_dir.daemon()
        {
            self.report_unresponsive(&daemon);
            stream.set_read_timeout(Some(READY_TIME_MAX - SLOW_AFTER))?;
            line = reader.line(ANSWER_BYTES_MAX).map(|line| line.map(<[u8]>::to_vec));
        }
        let Some(line) = line? else { return Ok(Greeting::Closed) };
        let answer: HelloAnswer = match serde_json::from_slice(&line) {
            Ok(answer) => answer,
            Err(error) => {
                return Ok(Greeting::Refused(format!("the daemon's answer can't be read: {error}")));
            }
        };
        if let Some(why) = answer.refused {
            return Ok(Greeting::Refused(why));
        }
        if self.hello.grant.is_some() && !answer.restricts {
            let why =
                "the running daemon is of an earlier version, which can't restrict clients of other machines";
            return Ok(Greeting::Refused(why.to_owned()));
        }
        stream.set_read_timeout(None)?;
        Ok(Greeting::Served(DaemonLink { writer: Arc::new(stream), reader, version: answer.build.version }))
    }

    /// The user can end a daemon that hangs, and the window then starts another.
    fn report_unresponsive(&self, daemon: &str) {
        let what = format!("the daemon, process {daemon}, does not answer (`kill {daemon}` ends it)");
        self.notices.report(&what);
    }
}
