//! The front end: the process that an editor launches. It relays the protocol between the editor's pipes and
//! the daemon, and reattaches to another daemon when its own dies. It needs no async runtime and no store,
//! only threads that copy.
//!
//! ```text
//!  stdin ──► up: a line, its envelope noted in `reconnect` ──► socket
//!  stdout ◄── down: a message, its id and positions noted in `reconnect` ◄──── socket
//!                │ the socket closes without a farewell
//!                ▼
//!             attach again (another daemon) · resume sessions at their positions · repeat requests
//! ```
//!
//! - `attach`: finds a daemon or starts one.
//! - `reconnect`: the state needed to reattach, as a pure state machine; `wait_notice`: what is shown meanwhile.
//! - `signals`: waits for SIGTERM, SIGHUP and SIGINT.
//! - `dial`: connects to a daemon on another machine instead; `kept_frames` are what a lost socket may lack.
//! - `remote`: the same for clients that connect over WebSocket or HTTP; `access` decides who may.
//! - `tls`: encryption for all of them.

pub mod access;
pub mod attach;
pub mod dial;
mod kept_frames;
mod progress;
pub mod reconnect;
#[cfg(test)]
mod reconnect_tests;
pub mod remote;
pub mod tls;
mod wait_notice;

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::build::Build;
use super::messages::{Farewell, MessageKind};
use crate::start::is_timeout;
use attach::{DaemonLink, FindDaemon, Redirect};
use epitome_acp::connection::{LINE_BYTES_MAX, LineDirection, Tap};
use epitome_acp::envelope::{self, Incoming};
use epitome_acp::writer::{self, TooLongLine};
pub use epitome_platform::signals;
use epitome_platform::signals::BlockedSignals;
use epitome_platform::{local, memory_trim};
use reconnect::{DaemonMessage, Elsewhere, LineAction, ReconnectState, stays_because, unserved};

/// Size of a read from the editor, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// A line buffer that grew beyond this many bytes is freed after use.
const KEPT_BYTES: usize = 256 * 1024;

/// Time limit for the daemon's last output after the editor has disconnected. The daemon limits itself to 0.6
/// s, and editors kill processes that have not exited after a second.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_millis(800);

/// Time after which the editor has initialized and opened its first session, so that memory used only during
/// startup can be released.
const STARTED_AFTER: Duration = Duration::from_secs(2);

/// How long the response to an interrupted prompt waits for its session to be resumed.
const RESUME_TIME_MAX: Duration = Duration::from_secs(5);

/// Number of daemons in a row that may die before they have resumed our sessions. After that, the next
/// attempt waits until the editor sends something.
const EARLY_DEATHS_MAX: u32 = 3;

/// Relays the protocol until the editor disconnects or a signal arrives. The connector then exits the process,
/// because a thread may still be blocked on the editor.
pub fn run(
    connector: impl FindDaemon + 'static,
    link: DaemonLink,
    from_editor: impl Read + Send + 'static,
    to_editor: impl Write + Send + 'static,
    tap: Option<Tap>,
    signals: BlockedSignals,
) -> io::Result<()> {
    let shared = start(connector, link, from_editor, to_editor, tap)?;
    let ending = shared.clone();
    thread("front-signals", move || {
        let _closed = OnDrop(|| ending.close());
        // Fails only if the signal set is invalid; then no signal can arrive either.
        drop(signals.wait());
    })?;
    shared.wait_for_end();
    Ok(())
}

/// Relays the protocol through a socket, whose other end is returned in non-blocking mode. Calls `ended` once the relay
/// has ended, because that end was closed or no daemon can be reached any more.
pub fn through_socket(
    connector: impl FindDaemon + 'static,
    link: DaemonLink,
    ended: impl FnOnce() + Send + 'static,
) -> io::Result<local::Stream> {
    let (front, client) = local::pair()?;
    let writer = front.try_clone()?;
    client.set_nonblocking(true)?;
    thread("front-socket", move || {
        match start(connector, link, front, writer, None) {
            Ok(shared) => shared.wait_for_end(),
            Err(error) => tracing::error!(%error, "a connection could not be served"),
        }
        ended();
    })?;
    Ok(client)
}

/// Starts the threads that copy.
fn start(
    mut connector: impl FindDaemon + 'static,
    link: DaemonLink,
    from_editor: impl Read + Send + 'static,
    to_editor: impl Write + Send + 'static,
    tap: Option<Tap>,
) -> io::Result<Arc<FrontShared>> {
    let state = FrontState {
        reconnect: ReconnectState::default(),
        daemon: DaemonState::Here(link.writer.clone()),
        closing: None,
        ended: false,
    };
    let shared = Arc::new(FrontShared {
        state: Mutex::new(state),
        changed: Condvar::new(),
        editor: Mutex::new(Box::new(to_editor)),
        tap: tap.map(Mutex::new),
    });
    let (up, down, waiting) = (shared.clone(), shared.clone(), shared.clone());
    connector.report_to(Arc::new(move |text| {
        let lines = {
            let reconnect = &mut waiting.state.lock().reconnect;
            match text {
                Some(text) => reconnect.wait_begins(text, Instant::now()),
                None => {
                    reconnect.wait_ends();
                    Vec::new()
                }
            }
        };
        waiting.changed.notify_all();
        // An editor that does not read is noticed when a daemon's messages are shown.
        drop(waiting.show(&lines));
    }));
    thread("front-down", move || {
        let _ended = OnDrop(|| down.end());
        Downstream { shared: &down, connector, early_deaths: 0 }.run(link);
    })?;
    thread("front-up", move || {
        let _closed = OnDrop(|| up.close());
        copy_up(&up, from_editor);
    })?;
    Ok(shared)
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// State shared by the threads.
struct FrontShared {
    state: Mutex<FrontState>,
    changed: Condvar,
    editor: Mutex<Box<dyn Write + Send>>,
    tap: Option<Mutex<Tap>>,
}

struct FrontState {
    reconnect: ReconnectState,
    daemon: DaemonState,
    /// The time when the editor was done: it closed its end, or a signal arrived.
    closing: Option<Instant>,
    ended: bool,
}

/// State of the connection to the daemon. Only the downstream thread changes it, except to `Wanted`.
enum DaemonState {
    Here(Arc<local::Stream>),
    /// The downstream thread is looking for a daemon.
    Wanted,
    /// The daemon was stopped; another is looked for when the editor sends something.
    Stopped,
    /// No daemon is available, for this reason; the next attempt is made when the editor sends something.
    OutOfReach(String),
}

enum FoundDaemon<'a> {
    /// Its socket.
    Here(MutexGuard<'a, FrontState>, Arc<local::Stream>),
    /// There is none, for this reason.
    OutOfReach(String),
    /// The front end is ending, or none is started for the line.
    NotNeeded,
}

impl FrontShared {
    /// Waits for a daemon for this line other than the dead one. If the daemon can't be reached at the moment, the user is
    /// shown that.
    fn daemon(&self, line: &[u8], dead: Option<&Arc<local::Stream>>) -> FoundDaemon<'_> {
        let mut state = self.state.lock();
        let mut tried = false;
        loop {
            if state.ended {
                return FoundDaemon::NotNeeded;
            }
            let shown = state.reconnect.shown_waiting_for(line);
            if !shown.is_empty() {
                MutexGuard::unlocked(&mut state, || drop(self.show(&shown)));
                continue;
            }
            match &state.daemon {
                DaemonState::Here(writer) if dead.is_none_or(|dead| !Arc::ptr_eq(writer, dead)) => {
                    let writer = writer.clone();
                    return FoundDaemon::Here(state, writer);
                }
                // The downstream thread is about to notice that it died.
                DaemonState::Here(_) => {}
                DaemonState::OutOfReach(why) if tried => return FoundDaemon::OutOfReach(why.clone()),
                DaemonState::Stopped | DaemonState::OutOfReach(_) => {
                    // A response is for the daemon that asked.
                    if matches!(envelope::read(line), Incoming::Response { .. }) {
                        return FoundDaemon::NotNeeded;
                    }
                    tried = true;
                    state.daemon = DaemonState::Wanted;
                    self.changed.notify_all();
                }
                DaemonState::Wanted => tried = true,
            }
            let answers = state.reconnect.cancelled_without_daemon(line);
            if !answers.is_empty() {
                MutexGuard::unlocked(&mut state, || drop(self.show(&answers)));
                continue;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Records a line from the editor and returns where to send it; `line` becomes what to send. It must be sent there even if
    /// that daemon has died since: a request in it is then answered as interrupted. A line that is not sent has an answer,
    /// which may be empty.
    fn note(
        &self,
        line: &mut Cow<'_, [u8]>,
        dead: Option<&Arc<local::Stream>>,
    ) -> Result<Arc<local::Stream>, Vec<u8>> {
        match self.daemon(line, dead) {
            FoundDaemon::NotNeeded => Err(Vec::new()),
            FoundDaemon::OutOfReach(why) => Err(unserved(line, &why).unwrap_or_default()),
            FoundDaemon::Here(mut state, writer) => match state.reconnect.from_editor(line) {
                LineAction::Forward => Ok(writer),
                LineAction::Instead(keyed) => {
                    *line = keyed.into();
                    Ok(writer)
                }
                LineAction::Drop => Err(Vec::new()),
                LineAction::Answer(answer) => Err(answer),
            },
        }
    }

    /// Writes complete lines to the editor.
    fn show(&self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        if self.tap.is_some() {
            lines
                .split_inclusive(|byte| *byte == b'\n')
                .for_each(|line| self.tap(LineDirection::ToClient, line));
        }
        let mut editor = self.editor.lock();
        editor.write_all(lines)?;
        editor.flush()
    }

    fn tap(&self, direction: LineDirection, line: &[u8]) {
        if let Some(tap) = &self.tap {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            (*tap.lock())(direction, line);
        }
    }

    /// The editor is done: closes our half of the daemon's socket; its last output is still shown.
    fn close(&self) {
        let mut state = self.state.lock();
        state.closing.get_or_insert_with(Instant::now);
        if let DaemonState::Here(writer) = &state.daemon {
            // Fails if the daemon has died since, which is harmless.
            drop(writer.shutdown(Shutdown::Write));
        }
        self.changed.notify_all();
    }

    /// The downstream thread has ended.
    fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    fn wait_for_end(&self) {
        let mut state = self.state.lock();
        let mut trim_at = Some(Instant::now() + STARTED_AFTER);
        while !state.ended {
            match (state.closing, trim_at) {
                (Some(since), _) => {
                    if self.changed.wait_until(&mut state, since + LAST_WORDS_TIME_MAX).timed_out() {
                        return;
                    }
                }
                (None, Some(at)) => {
                    if self.changed.wait_until(&mut state, at).timed_out() {
                        trim_at = None;
                        MutexGuard::unlocked(&mut state, memory_trim::let_go_of_program);
                    }
                }
                (None, None) => self.changed.wait(&mut state),
            }
        }
    }
}

/// Calls a function when dropped, even by a panic.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Copies lines from the editor to the daemon until the editor closes its end.
fn copy_up(shared: &FrontShared, from_editor: impl Read) {
    let mut reader = BufReader::with_capacity(READ_BYTES, from_editor);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "reading from the editor failed");
                return;
            }
        }
        if line.len() == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
            // Answered as the daemon would.
            match envelope::outline(&line, &mut reader).map(|outline| writer::too_long(&outline)) {
                Ok(TooLongLine::Refused(answer)) => drop(shared.show(&answer)),
                Ok(TooLongLine::Replaced(response)) => send(shared, &response),
                Err(error) => {
                    tracing::warn!(%error, "reading from the editor failed");
                    return;
                }
            }
        } else {
            shared.tap(LineDirection::FromClient, &line);
            send(shared, &line);
        }
        if line.capacity() > KEPT_BYTES {
            line = Vec::new();
        }
    }
}

/// Sends a line to the daemon. A line that a dying daemon did not receive completely is sent to the next one;
/// the number of attempts is bounded where daemons are looked for.
fn send(shared: &FrontShared, line: &[u8]) {
    let mut dead = None;
    loop {
        let mut sent = Cow::Borrowed(line);
        match shared.note(&mut sent, dead.as_ref()) {
            Ok(daemon) => {
                if (&*daemon).write_all(&sent).is_ok() || !shared.state.lock().reconnect.take_back(line) {
                    return;
                }
                dead = Some(daemon);
            }
            // An editor that does not read is noticed when the daemon's responses are shown.
            Err(answer) => return drop(shared.show(&answer)),
        }
    }
}

/// Why a daemon sends no more messages.
enum DaemonConnectionEnd {
    Farewell(Farewell),
    /// It died, or sent an invalid line.
    Died,
    /// It speaks another version of the protocol than the editor.
    Unusable,
    /// The window goes to the server that has its session.
    Elsewhere,
    /// The editor has stopped reading.
    EditorGone,
}

/// The downstream thread: copies messages to the editor and looks for daemons.
struct Downstream<'a, F> {
    shared: &'a FrontShared,
    connector: F,
    early_deaths: u32,
}

impl<F: FindDaemon> Downstream<'_, F> {
    fn run(&mut self, mut link: DaemonLink) {
        let mut settle_until = Instant::now();
        loop {
            let over = self.copy(&mut link, settle_until);
            if matches!(over, DaemonConnectionEnd::EditorGone) {
                drop(link.writer.shutdown(Shutdown::Both));
                return;
            }
            if self.shared.state.lock().closing.is_some() {
                return;
            }
            let Some(next) = self.recover(&link, &over) else { return };
            link = next;
            settle_until = Instant::now() + RESUME_TIME_MAX;
        }
    }

    /// Copies messages until there are no more. Until `settle_until`, responses that are owed wait for their
    /// sessions to be resumed.
    fn copy(&mut self, link: &mut DaemonLink, settle_until: Instant) -> DaemonConnectionEnd {
        let mut settles = self.shared.state.lock().reconnect.owes();
        loop {
            if settles {
                let left = settle_until.saturating_duration_since(Instant::now());
                // A timeout of zero is an error.
                let left = Some(left.max(Duration::from_millis(1)));
                drop(link.reader.source().set_read_timeout(left));
            }
            let message = match link.reader.message() {
                Ok(Some(message)) => message,
                Ok(None) => return DaemonConnectionEnd::Died,
                Err(error) if settles && is_timeout(&error) => {
                    let overdue = self.shared.state.lock().reconnect.answers_overdue();
                    if self.shared.show(&overdue).is_err() {
                        return DaemonConnectionEnd::EditorGone;
                    }
                    settles = false;
                    drop(link.reader.source().set_read_timeout(None));
                    continue;
                }
                Err(error) => {
                    tracing::debug!(%error, "the daemon's socket can't be read");
                    return DaemonConnectionEnd::Died;
                }
            };
            if message.kind == MessageKind::Farewell {
                return Farewell::read(message.lines)
                    .map_or(DaemonConnectionEnd::Died, DaemonConnectionEnd::Farewell);
            }
            let elsewhere = match message.kind {
                MessageKind::Response => self.shared.state.lock().reconnect.elsewhere(&message),
                _ => None,
            };
            let stays = match elsewhere {
                None => None,
                Some(Elsewhere::Stay(why)) => Some(why.to_owned()),
                Some(Elsewhere::Go(address)) => match self.connector.go_to(&address) {
                    Redirect::Followed => return DaemonConnectionEnd::Elsewhere,
                    Redirect::NotFollowed => None,
                    Redirect::Impossible(why) => Some(why),
                },
            };
            // The most common kind does not change the recorded state.
            let action = match message.kind == MessageKind::Notifications && message.steps.is_empty() {
                true => DaemonMessage::Show,
                false => self.shared.state.lock().reconnect.from_daemon(&message),
            };
            let shown = match (&action, stays) {
                (DaemonMessage::Show, Some(why)) => self.shared.show(&stays_because(message.lines, &why)),
                (DaemonMessage::Show, None) => self.shared.show(message.lines),
                (DaemonMessage::Instead(lines), _) => self.shared.show(lines),
                (DaemonMessage::Unusable, _) => return DaemonConnectionEnd::Unusable,
            };
            if let Err(error) = shown {
                tracing::info!(%error, "the editor does not read any more");
                return DaemonConnectionEnd::EditorGone;
            }
            if settles && !self.shared.state.lock().reconnect.owes() {
                settles = false;
                drop(link.reader.source().set_read_timeout(None));
            }
        }
    }

    /// Finds another daemon and restores the state of the last one. `None` if the editor is done.
    fn recover(&mut self, last: &DaemonLink, over: &DaemonConnectionEnd) -> Option<DaemonLink> {
        let lines = {
            let mut state = self.shared.state.lock();
            state.daemon = DaemonState::Wanted;
            match (over, state.reconnect.is_settled()) {
                (DaemonConnectionEnd::Elsewhere, _) => {}
                (_, true) => self.early_deaths = 0,
                (_, false) => self.early_deaths += 1,
            }
            state.reconnect.lost()
        };
        drop(last.writer.shutdown(Shutdown::Both));
        match over {
            DaemonConnectionEnd::Elsewhere => tracing::info!("another server has the session"),
            _ => tracing::warn!(version = last.version, deaths = self.early_deaths, "the daemon is gone"),
        }
        self.shared.show(&lines).ok()?;
        let to_newer = matches!(
            over,
            DaemonConnectionEnd::Farewell(Farewell::Reattach(build)) if build.is_newer(Build::current())
        );
        let is_wanted = self.shared.state.lock().reconnect.wants_daemon();
        if matches!(over, DaemonConnectionEnd::Farewell(Farewell::Stopped)) && !is_wanted {
            self.wait_for_editor(DaemonState::Stopped, ReconnectState::answers_overdue)?;
        } else if matches!(over, DaemonConnectionEnd::Unusable) {
            let why =
                "it does not offer the version of the protocol that this window uses; reopen the window";
            self.wait_for_editor(DaemonState::OutOfReach(why.to_owned()), ReconnectState::give_up)?;
        } else if self.early_deaths >= EARLY_DEATHS_MAX {
            let why =
                "it repeatedly exits while it resumes the open sessions; `epitome daemon logs` may say why";
            self.wait_for_editor(DaemonState::OutOfReach(why.to_owned()), ReconnectState::give_up)?;
        }
        loop {
            let ids_above = self.shared.state.lock().reconnect.ids_above();
            match self.connector.find(ids_above, to_newer) {
                Ok(link) => return self.take_up(link),
                Err(error) => {
                    tracing::error!(%error, "no other daemon can be reached");
                    let state = DaemonState::OutOfReach(error.to_string());
                    self.wait_for_editor(state, ReconnectState::give_up)?;
                }
            }
        }
    }

    /// Answers what can be answered and waits until the editor sends something.
    fn wait_for_editor(
        &self,
        daemon: DaemonState,
        answers: impl Fn(&mut ReconnectState) -> Vec<u8>,
    ) -> Option<()> {
        let lines = answers(&mut self.shared.state.lock().reconnect);
        self.shared.show(&lines).ok()?;
        let mut state = self.shared.state.lock();
        state.daemon = daemon;
        state.reconnect.wait_ends();
        self.shared.changed.notify_all();
        loop {
            if state.closing.is_some() {
                return None;
            }
            if matches!(state.daemon, DaemonState::Wanted) {
                return Some(());
            }
            self.shared.changed.wait(&mut state);
        }
    }

    /// Sends the recorded state to a new daemon and the interrupted requests' errors to the editor. The
    /// editor's lines are forwarded only after that.
    fn take_up(&self, link: DaemonLink) -> Option<DaemonLink> {
        let (replay, answers) = {
            let mut state = self.shared.state.lock();
            state.reconnect.wait_ends();
            let replay = state.reconnect.replay();
            (replay, state.reconnect.answers_at_once())
        };
        // If this fails, the new daemon has died as well, which the next read detects.
        drop((&*link.writer).write_all(&replay));
        self.shared.show(&answers).ok()?;
        let mut state = self.shared.state.lock();
        if state.closing.is_some() {
            return None;
        }
        state.daemon = DaemonState::Here(link.writer.clone());
        self.shared.changed.notify_all();
        tracing::info!(version = link.version, "attached to another daemon");
        Some(link)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use serde_json::Value;

    use super::attach::AttachError;
    use super::attach::WaitReport;
    use super::*;

    /// Waits for the daemons of a test.
    struct TestConnector {
        begins: Sender<()>,
        links: Receiver<DaemonLink>,
        report: Option<WaitReport>,
    }

    impl FindDaemon for TestConnector {
        fn find(&mut self, _: u64, _: bool) -> Result<DaemonLink, AttachError> {
            self.begins.send(()).map_err(|_| AttachError::Closes)?;
            if let Some(report) = &self.report {
                report(Some("No server"));
            }
            self.links.recv().map_err(|_| AttachError::Closes)
        }

        fn report_to(&mut self, report: WaitReport) {
            self.report = Some(report);
        }
    }

    /// One side of a socket with messages.
    struct TestPeer(BufReader<local::Stream>);

    impl TestPeer {
        fn send(&mut self, line: &str) {
            self.0.get_mut().write_all(format!("{line}\n").as_bytes()).expect("it is read");
        }

        fn next(&mut self) -> Value {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a line");
            serde_json::from_str(&line).expect("JSON")
        }
    }

    fn daemon() -> (DaemonLink, TestPeer) {
        let (front, daemon) = local::pair().expect("two sockets");
        (DaemonLink::new(front, String::new()).expect("a link"), TestPeer(BufReader::new(daemon)))
    }

    /// Regression: a user sent a prompt while the window waited for its server, and no turn ran. For up to a minute, nothing
    /// was shown.
    #[test]
    fn a_prompt_that_has_to_wait_for_a_daemon_shows_it() {
        let ((begins, begun), (finds, links)) = (channel(), channel());
        let (link, mut first) = daemon();
        let connector = TestConnector { begins, links, report: None };
        let client = through_socket(connector, link, || {}).expect("threads");
        client.set_nonblocking(false).expect("an option");
        let mut client = TestPeer(BufReader::new(client));
        for (request, answer) in [
            (
                r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#,
                r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/w"}}"#,
                r#"{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s_1"}}"#,
            ),
        ] {
            client.send(request);
            first.next();
            first.send(answer);
            client.next();
        }
        drop(first);
        begun.recv().expect("it looks for the next daemon");
        client.send(
            r#"{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"s_1","prompt":[]}}"#,
        );
        let shown = client.next();
        assert_eq!(shown["params"]["sessionId"], "s_1", "{shown}");
        assert!(shown.to_string().contains("No server"), "{shown}");

        let (link, mut second) = daemon();
        finds.send(link).expect("it waits");
        for (method, result) in [("initialize", r#"{"protocolVersion":1}"#), ("session/resume", "{}")] {
            let own = second.next();
            assert_eq!(own["method"], method);
            second.send(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, own["id"]));
        }
        assert_eq!(second.next()["id"], 2, "it is sent once there is a daemon");
        second.send(r#"{"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}"#);
        assert_eq!(client.next()["id"], 2, "it is answered once, and nothing else is shown");
    }
}
