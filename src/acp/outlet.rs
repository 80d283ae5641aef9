//! The outbox of one client: all that is to be written, in one order, until the writer takes it.
//!
//! It never waits for the client on behalf of a session. What piles up while the client does not
//! read is merged, and past a bound live text is forgotten: the entry that follows has the whole.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::from_wire::ClientTraits;
use super::requests::Requests;
use crate::session::{Out, Outlet};
use crate::thread::{Change, MessageId, SessionId};

/// Live text and progress that may wait for a client that does not read, in bytes.
pub const PENDING_TEXT_BYTES_MAX: usize = 1024 * 1024;

/// What an unmerged piece of text costs beside its bytes, so that empty ones are bounded too.
const PIECE_BYTES: usize = 160;

/// Progress of one running command that may wait, in bytes; the newest is kept.
const PENDING_PROGRESS_BYTES_MAX: usize = 16 * 1024;

/// Notices that may wait; they are passing remarks, and more than these nobody reads.
const PENDING_NOTICES_MAX: usize = 64;

/// Ready-made lines that may wait before the reader stops reading.
const PENDING_LINES_MAX: usize = 1024;

/// How far back a piece looks for its neighbour: as many sessions can stream at once without
/// getting in the way of each other's merging.
const MERGE_REACH: usize = 16;

/// Something to be written.
#[derive(Debug)]
pub enum Item {
    /// News of a session, not yet in the words of the wire.
    News { session: SessionId, out: Out },
    /// A finished line, with its line end.
    Line(Vec<u8>),
}

/// Shared by the sessions (`Outlet`), the reader (lines) and the writer (`take`).
///
/// A lock and not a channel, because what waits must be merged: a channel's items are out of reach.
/// It is held for microseconds, and nothing is translated or written under it.
pub struct Outbox {
    pending: Mutex<Pending>,
    /// The writer waits for items.
    filled: Condvar,
    /// The reader waits for room, a closer for the end of the writer.
    drained: Condvar,
    requests: Mutex<Requests>,
}

struct Pending {
    items: VecDeque<Item>,
    text_bytes: usize,
    notices: usize,
    lines: usize,
    /// Messages of which a piece was forgotten, so that none may follow before the entry.
    gaps: HashMap<SessionId, MessageId>,
    traits: ClientTraits,
    /// A wake-up is a system call even if nobody waits; this saves it.
    writer_waits: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Nothing new is taken in; what waits is still written.
    Closing,
    /// The writer has ended, or the client's end of the pipe is gone.
    Ended,
}

impl Outbox {
    pub fn new(unix_seconds: u64) -> Outbox {
        Outbox {
            pending: Mutex::new(Pending {
                items: VecDeque::new(),
                text_bytes: 0,
                notices: 0,
                lines: 0,
                gaps: HashMap::new(),
                traits: ClientTraits::default(),
                writer_waits: false,
                state: State::Open,
            }),
            filled: Condvar::new(),
            drained: Condvar::new(),
            requests: Mutex::new(Requests::new(unix_seconds)),
        }
    }

    /// The tables of who waits for an answer. Never locked together with what waits to be written.
    pub fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what the client can do; counts for all that is translated from now on.
    pub fn set_traits(&self, traits: ClientTraits) {
        self.lock().traits = traits;
    }

    /// Queues a finished line.
    pub fn put_line(&self, line: Vec<u8>) {
        let mut pending = self.lock();
        if pending.state == State::Open {
            pending.lines += 1;
            pending.items.push_back(Item::Line(line));
            self.wake_writer(pending);
        }
    }

    /// Waits, if a client sends much and reads nothing, until its answers have been written.
    pub fn wait_for_room(&self) {
        let mut pending = self.lock();
        while pending.lines > PENDING_LINES_MAX && pending.state == State::Open {
            pending = self.drained.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Moves all that waits into `items`, waiting for some; `None` when nothing will come any more.
    pub fn take(&self, items: &mut VecDeque<Item>) -> Option<ClientTraits> {
        let mut pending = self.lock();
        while pending.items.is_empty() {
            if pending.state != State::Open {
                return None;
            }
            pending.writer_waits = true;
            pending = self.filled.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
        pending.writer_waits = false;
        std::mem::swap(items, &mut pending.items);
        (pending.text_bytes, pending.notices, pending.lines) = (0, 0, 0);
        self.drained.notify_all();
        Some(pending.traits)
    }

    /// Takes nothing in any more; the writer writes what waits and ends.
    pub fn close(&self) {
        let mut pending = self.lock();
        if pending.state == State::Open {
            pending.state = State::Closing;
        }
        pending.writer_waits = true;
        self.wake_writer(pending);
    }

    /// The writer has ended; whatever waits is dropped.
    pub fn ended(&self) {
        let mut pending = self.lock();
        pending.state = State::Ended;
        pending.items.clear();
        self.drained.notify_all();
    }

    /// Waits until the writer has ended, at most this long. False if it did not.
    pub fn wait_until_ended(&self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        let mut pending = self.lock();
        while pending.state != State::Ended {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return false };
            pending = self.drained.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Bytes of live text and progress that wait.
    pub fn pending_text_bytes(&self) -> usize {
        self.lock().text_bytes
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_writer(&self, mut pending: MutexGuard<'_, Pending>) {
        let waits = std::mem::take(&mut pending.writer_waits);
        drop(pending);
        if waits {
            self.filled.notify_one();
        }
    }
}

impl Outlet for Outbox {
    fn put(&self, session: &SessionId, out: Out) {
        let mut pending = self.lock();
        if pending.state == State::Open {
            pending.put(session, out);
            self.wake_writer(pending);
        }
    }
}

impl Pending {
    fn put(&mut self, session: &SessionId, out: Out) {
        match &out {
            Out::Text { message, part, text, .. } => {
                if self.gaps.get(session) == Some(message) {
                    return;
                }
                if self.text_bytes + text.len() + PIECE_BYTES > PENDING_TEXT_BYTES_MAX {
                    self.gaps.insert(session.clone(), *message);
                    return;
                }
                self.text_bytes += text.len();
                if let Some(Out::Text { message: before, part: part_before, text: whole, .. }) =
                    self.newest_of(session)
                    && (*before, *part_before) == (*message, *part)
                {
                    whole.push_str(text);
                    return;
                }
                self.text_bytes += PIECE_BYTES;
            }
            Out::CallProgress { call, output } => {
                if let Some(Out::CallProgress { call: before, output: whole }) = self.newest_of(session)
                    && before == call
                {
                    let length_before = whole.len();
                    whole.push_str(output);
                    keep_newest(whole, PENDING_PROGRESS_BYTES_MAX);
                    let length_after = whole.len();
                    self.text_bytes = self.text_bytes + length_after - length_before;
                    return;
                }
                let bytes = output.len().min(PENDING_PROGRESS_BYTES_MAX) + PIECE_BYTES;
                if self.text_bytes + bytes > PENDING_TEXT_BYTES_MAX {
                    return;
                }
                self.text_bytes += bytes;
                let mut output = output.clone();
                keep_newest(&mut output, PENDING_PROGRESS_BYTES_MAX);
                let out = Out::CallProgress { call: call.clone(), output };
                self.items.push_back(Item::News { session: session.clone(), out });
                return;
            }
            Out::Usage(_) | Out::Commands(_) | Out::Options(_) | Out::Info { .. } => {
                if let Some(waiting) = self.waiting_like(session, &out) {
                    *waiting = out;
                    return;
                }
            }
            Out::Notice { .. } => {
                if self.notices >= PENDING_NOTICES_MAX {
                    return;
                }
                self.notices += 1;
            }
            Out::Entry { entry, .. } => {
                if let Change::Replied { message, .. } = &entry.change
                    && self.gaps.get(session) == Some(&message.id)
                {
                    self.gaps.remove(session);
                }
            }
            Out::CallStarted { .. } | Out::Ask { .. } | Out::Withdrawn { .. } | Out::Answer { .. } => {}
        }
        self.items.push_back(Item::News { session: session.clone(), out });
    }

    /// The last thing of this session that waits.
    fn newest_of(&mut self, session: &SessionId) -> Option<&mut Out> {
        self.items.iter_mut().rev().take(MERGE_REACH).find_map(|item| match item {
            Item::News { session: other, out } if other == session => Some(out),
            Item::News { .. } | Item::Line(_) => None,
        })
    }

    /// A waiting item of the same kind and session with no entry, answer or question behind it, so
    /// that the new one may take its place.
    fn waiting_like(&mut self, session: &SessionId, new: &Out) -> Option<&mut Out> {
        let of_session = self.items.iter_mut().rev().filter_map(|item| match item {
            Item::News { session: other, out } if other == session => Some(out),
            Item::News { .. } | Item::Line(_) => None,
        });
        for out in of_session.take(MERGE_REACH) {
            if std::mem::discriminant(out) == std::mem::discriminant(new) {
                return Some(out);
            }
            match out {
                Out::Entry { .. } | Out::Answer { .. } | Out::Ask { .. } | Out::Withdrawn { .. } => {
                    return None;
                }
                Out::Text { .. }
                | Out::CallStarted { .. }
                | Out::CallProgress { .. }
                | Out::Usage(_)
                | Out::Commands(_)
                | Out::Options(_)
                | Out::Info { .. }
                | Out::Notice { .. } => {}
            }
        }
        None
    }
}

/// Cuts text from the front to at most `bytes`, at a character's border.
fn keep_newest(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        let mut from = text.len() - bytes;
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text.drain(..from);
    }
}
