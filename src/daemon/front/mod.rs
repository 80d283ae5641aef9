//! The front end: what an editor launches. Carries the protocol between the editor's pipes and the daemon, and
//! goes on with another daemon when its own dies. No runtime and no store: threads that copy.
//!
//! ```text
//!  stdin ──► up: a line, its envelope noted in `memory` ──► socket
//!  stdout ◄── down: a frame, its id noted in `memory` ◄──── socket
//!                │ the socket ends without a last word
//!                ▼
//!             attach again (another daemon) · replay · answer what was in flight
//! ```
//!
//! - `attach`: finds a daemon or starts one.
//! - `memory`: what is remembered, and what follows from it. Pure.
//! - `signals`: TERM and the like.

pub mod attach;
pub mod memory;
#[cfg(test)]
mod memory_tests;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::build::Build;
use super::frame::{Farewell, Kind};
use attach::{Caller, Link, is_timeout};
use epitome_acp::connection::{Direction, LINE_BYTES_MAX, Tap};
use epitome_platform::lean;
pub use epitome_platform::signals;
use epitome_platform::signals::Blocked;
use memory::{Heard, Line, Memory, unserved};

/// Read at once from the editor, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// A line buffer above this is given back after use, in bytes.
const KEPT_BYTES: usize = 256 * 1024;

/// How long the daemon's last words are waited for when the editor has gone. It gives itself 0.6 s, and editors
/// kill what has not ended after a second.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_millis(800);

/// After so long an editor has greeted and opened its first session, and what only a start needs may go.
const STARTED_AFTER: Duration = Duration::from_secs(2);

/// How long a prompt that was interrupted waits for its session to be back before it is answered.
const RESUME_TIME_MAX: Duration = Duration::from_secs(5);

/// Daemons in a row that may die before they have taken our sessions up again. Then the editor has to want
/// something first.
const EARLY_DEATHS_MAX: u32 = 3;

/// Carries the protocol until the editor has gone or a signal comes. The caller ends the process then: a thread
/// may still wait for the editor.
pub fn run(
    caller: Caller,
    link: Link,
    from_editor: impl Read + Send + 'static,
    to_editor: impl Write + Send + 'static,
    tap: Option<Tap>,
    signals: Blocked,
) -> io::Result<()> {
    let state = State {
        memory: Memory::default(),
        daemon: Daemon::Here(link.writer.clone()),
        closing: None,
        ended: false,
    };
    let shared = Arc::new(Shared {
        state: Mutex::new(state),
        changed: Condvar::new(),
        editor: Mutex::new(Box::new(to_editor)),
        tap: tap.map(Mutex::new),
    });
    let (up, down, ending) = (shared.clone(), shared.clone(), shared.clone());
    thread("front-down", move || {
        let _ended = Ended(down.clone());
        Down { shared: &down, caller, early_deaths: 0 }.run(link);
    })?;
    thread("front-up", move || {
        let _closed = Closed(up.clone());
        copy_up(&up, from_editor);
    })?;
    thread("front-signals", move || {
        let _closed = Closed(ending);
        // It fails only where the signals are none, and then none can come.
        drop(signals.wait());
    })?;
    shared.wait_for_end();
    Ok(())
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// What the threads share.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    editor: Mutex<Box<dyn Write + Send>>,
    tap: Option<Mutex<Tap>>,
}

struct State {
    memory: Memory,
    daemon: Daemon,
    /// Since when the editor wants nothing more.
    closing: Option<Instant>,
    ended: bool,
}

/// How it stands with the daemon. Only the thread that copies down changes it, but for `Wanted`.
enum Daemon {
    Here(Arc<UnixStream>),
    /// One is looked for.
    Wanted,
    /// It was told to stop; another is looked for when the editor wants something.
    Stopped,
    /// None can be had, for this reason; another try is made when the editor wants something.
    OutOfReach(String),
}

type Locked<'a> = (MutexGuard<'a, State>, Arc<UnixStream>);

/// What becomes of a line of the editor's.
enum Way {
    To(Arc<UnixStream>),
    Nowhere,
    Answer(Vec<u8>),
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a daemon that is not the dead one, and gives its socket, or why there is none; `None` when all is
    /// over.
    fn daemon(&self, dead: Option<&Arc<UnixStream>>) -> Option<Result<Locked<'_>, String>> {
        let mut state = self.state();
        let mut tried = false;
        loop {
            if state.ended {
                return None;
            }
            match &state.daemon {
                Daemon::Here(writer) if dead.is_none_or(|dead| !Arc::ptr_eq(writer, dead)) => {
                    let writer = writer.clone();
                    return Some(Ok((state, writer)));
                }
                // Its end is about to be seen.
                Daemon::Here(_) => {}
                Daemon::OutOfReach(why) if tried => return Some(Err(why.clone())),
                Daemon::Stopped | Daemon::OutOfReach(_) => {
                    tried = true;
                    state.daemon = Daemon::Wanted;
                    self.changed.notify_all();
                }
                Daemon::Wanted => tried = true,
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes a line of the editor's and says where it goes. It must go there also if that daemon has died
    /// meanwhile: the request in it is answered as one that was lost.
    fn note(&self, line: &[u8], dead: Option<&Arc<UnixStream>>) -> Way {
        match self.daemon(dead) {
            None => Way::Nowhere,
            Some(Err(why)) => unserved(line, &why).map_or(Way::Nowhere, Way::Answer),
            Some(Ok((mut state, writer))) => match state.memory.from_editor(line) {
                Line::Forward => Way::To(writer),
                Line::Drop => Way::Nowhere,
                Line::Answer(answer) => Way::Answer(answer),
            },
        }
    }

    /// Writes whole lines to the editor.
    fn show(&self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        if self.tap.is_some() {
            lines.split_inclusive(|byte| *byte == b'\n').for_each(|line| self.tap(Direction::ToClient, line));
        }
        let mut editor = self.editor.lock().unwrap_or_else(PoisonError::into_inner);
        editor.write_all(lines)?;
        editor.flush()
    }

    fn tap(&self, direction: Direction, line: &[u8]) {
        if let Some(tap) = &self.tap {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            (*tap.lock().unwrap_or_else(PoisonError::into_inner))(direction, line);
        }
    }

    /// The editor wants nothing more: the daemon hears the end, and its last words are still shown.
    fn close(&self) {
        let mut state = self.state();
        state.closing.get_or_insert_with(Instant::now);
        match &state.daemon {
            // One that has died meanwhile has heard it as well.
            Daemon::Here(writer) => drop(writer.shutdown(Shutdown::Write)),
            Daemon::Wanted | Daemon::Stopped | Daemon::OutOfReach(_) => {}
        }
        self.changed.notify_all();
    }

    fn wait_for_end(&self) {
        let mut state = self.state();
        let mut lean_at = Some(Instant::now() + STARTED_AFTER);
        while !state.ended {
            state = match (state.closing, lean_at) {
                (None, None) => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                (None, Some(at)) => match at.checked_duration_since(Instant::now()) {
                    Some(left) => {
                        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => {
                        lean_at = None;
                        drop(state);
                        lean::let_go_of_program();
                        self.state()
                    }
                },
                (Some(since), _) => {
                    let Some(left) = LAST_WORDS_TIME_MAX.checked_sub(since.elapsed()) else { return };
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// Says that the thread that copies down has ended, however it did.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.changed.notify_all();
    }
}

/// Says that nothing more comes of the editor, however that came about.
struct Closed(Arc<Shared>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Copies lines from the editor to the daemon until the editor closes its end.
fn copy_up(shared: &Shared, from_editor: impl Read) {
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
            if let Err(error) = pass_long(shared, &line, &mut reader) {
                tracing::warn!(%error, "reading from the editor failed");
                return;
            }
        } else {
            shared.tap(Direction::FromClient, &line);
            send(shared, &line);
        }
        if line.capacity() > KEPT_BYTES {
            line = Vec::new();
        }
    }
}

/// Sends a line to the daemon. One that a dying daemon did not get whole goes to the next; how often a daemon may
/// die is bounded where they are looked for.
fn send(shared: &Shared, line: &[u8]) {
    let mut dead = None;
    loop {
        match shared.note(line, dead.as_ref()) {
            Way::To(daemon) => {
                if (&*daemon).write_all(line).is_ok() || !shared.state().memory.take_back(line) {
                    return;
                }
                dead = Some(daemon);
            }
            Way::Nowhere => return,
            // An editor that does not read is noticed where the daemon's answers are shown.
            Way::Answer(answer) => return drop(shared.show(&answer)),
        }
    }
}

/// Passes a line on that is too long to be kept. The daemon refuses it, as it does from other clients.
fn pass_long(shared: &Shared, begin: &[u8], reader: &mut impl BufRead) -> io::Result<()> {
    let daemon = match shared.daemon(None) {
        Some(Ok((_, writer))) => Some(writer),
        Some(Err(_)) | None => None,
    };
    let send = |bytes: &[u8]| {
        if let Some(daemon) = &daemon {
            drop((&**daemon).write_all(bytes));
        }
    };
    send(begin);
    loop {
        let piece = reader.fill_buf()?;
        let end = memchr::memchr(b'\n', piece).map(|at| at + 1);
        send(&piece[..end.unwrap_or(piece.len())]);
        let read = end.unwrap_or(piece.len());
        reader.consume(read);
        if end.is_some() || read == 0 {
            return Ok(());
        }
    }
}

/// Why a daemon gives no more frames.
enum Over {
    Bye(Farewell),
    /// It died, or said what makes no sense.
    Died,
    /// The editor does not read any more.
    EditorGone,
}

/// The thread that copies down and looks for daemons.
struct Down<'a> {
    shared: &'a Shared,
    caller: Caller,
    early_deaths: u32,
}

impl Down<'_> {
    fn run(&mut self, mut link: Link) {
        let mut settle_until = Instant::now();
        loop {
            let over = self.copy(&mut link, settle_until);
            if matches!(over, Over::EditorGone) {
                drop(link.writer.shutdown(Shutdown::Both));
                return;
            }
            if self.shared.state().closing.is_some() {
                return;
            }
            let Some(next) = self.recover(&link, &over) else { return };
            link = next;
            settle_until = Instant::now() + RESUME_TIME_MAX;
        }
    }

    /// Copies frames until there are no more. Until `settle_until`, answers wait for their sessions to be back.
    fn copy(&self, link: &mut Link, settle_until: Instant) -> Over {
        let mut settles = self.shared.state().memory.owes();
        loop {
            if settles {
                let left = settle_until.saturating_duration_since(Instant::now());
                // Zero would be no limit at all.
                let left = Some(left.max(Duration::from_millis(1)));
                drop(link.reader.source().set_read_timeout(left));
            }
            let frame = match link.reader.frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Over::Died,
                Err(error) if settles && is_timeout(&error) => {
                    let overdue = self.shared.state().memory.answers_overdue();
                    if self.shared.show(&overdue).is_err() {
                        return Over::EditorGone;
                    }
                    settles = false;
                    drop(link.reader.source().set_read_timeout(None));
                    continue;
                }
                Err(error) => {
                    tracing::debug!(%error, "the daemon's socket can't be read");
                    return Over::Died;
                }
            };
            if frame.kind == Kind::Bye {
                return serde_json::from_slice(frame.body).map_or(Over::Died, Over::Bye);
            }
            let heard = match frame.kind {
                // The commonest kind changes nothing that is remembered.
                Kind::Lines => Heard::Show,
                Kind::Response | Kind::Request | Kind::Withdrawn | Kind::Bye => {
                    self.shared.state().memory.from_daemon(&frame)
                }
            };
            let shown = match &heard {
                Heard::Show => self.shared.show(frame.body),
                Heard::Instead(lines) => self.shared.show(lines),
            };
            if let Err(error) = shown {
                tracing::info!(%error, "the editor does not read any more");
                return Over::EditorGone;
            }
            if settles && !self.shared.state().memory.owes() {
                settles = false;
                drop(link.reader.source().set_read_timeout(None));
            }
        }
    }

    /// Finds another daemon and brings it to where the last one was. `None` when the editor wants nothing more.
    fn recover(&mut self, last: &Link, over: &Over) -> Option<Link> {
        let lines = {
            let mut state = self.shared.state();
            state.daemon = Daemon::Wanted;
            match state.memory.is_settled() {
                true => self.early_deaths = 0,
                false => self.early_deaths += 1,
            }
            state.memory.lost()
        };
        drop(last.writer.shutdown(Shutdown::Both));
        tracing::warn!(version = last.version, deaths = self.early_deaths, "the daemon is gone");
        self.shared.show(&lines).ok()?;
        let to_newer = match over {
            Over::Bye(Farewell::Reattach(build)) => build.is_newer(Build::own()),
            Over::Bye(Farewell::Closed | Farewell::Stopped) | Over::Died | Over::EditorGone => false,
        };
        let waits = self.shared.state().memory.waits_for_greeting();
        if matches!(over, Over::Bye(Farewell::Stopped)) && !waits {
            self.rest(Daemon::Stopped, Memory::answers_overdue)?;
        } else if self.early_deaths >= EARLY_DEATHS_MAX {
            let why = "it ends again and again while it takes up the open sessions; its log tells more";
            self.rest(Daemon::OutOfReach(why.to_owned()), Memory::give_up)?;
        }
        loop {
            let ids_above = self.shared.state().memory.ids_above();
            let attached = match to_newer {
                true => self.caller.attach_to_newer(ids_above),
                false => self.caller.attach(ids_above),
            };
            match attached {
                Ok(link) => return self.take_up(link),
                Err(why) => {
                    tracing::error!(why, "there is no other daemon");
                    self.rest(Daemon::OutOfReach(why), Memory::give_up)?;
                }
            }
        }
    }

    /// Answers what can be answered and waits until the editor wants something.
    fn rest(&self, daemon: Daemon, answers: impl Fn(&mut Memory) -> Vec<u8>) -> Option<()> {
        let lines = answers(&mut self.shared.state().memory);
        self.shared.show(&lines).ok()?;
        let mut state = self.shared.state();
        state.daemon = daemon;
        self.shared.changed.notify_all();
        loop {
            if state.closing.is_some() {
                return None;
            }
            match state.daemon {
                Daemon::Wanted => return Some(()),
                Daemon::Here(_) | Daemon::Stopped | Daemon::OutOfReach(_) => {}
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Tells a new daemon where we are, and the editor what was lost. Only then its lines go on.
    fn take_up(&self, link: Link) -> Option<Link> {
        let (replay, answers) = {
            let mut state = self.shared.state();
            let replay = state.memory.replay();
            (replay, state.memory.answers_at_once())
        };
        // Where it fails this daemon has died, too, which is seen next.
        drop((&*link.writer).write_all(&replay));
        self.shared.show(&answers).ok()?;
        let mut state = self.shared.state();
        if state.closing.is_some() {
            return None;
        }
        state.daemon = Daemon::Here(link.writer.clone());
        self.shared.changed.notify_all();
        tracing::info!(version = link.version, "attached to another daemon");
        Some(link)
    }
}
