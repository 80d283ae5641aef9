//! The outbox of one client: everything to be written, in one order, until the writer takes it.
//!
//! It never makes a session wait for the client. While the client does not read, items are merged, and beyond
//! a limit streamed text is dropped: the entry that follows contains all of it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::from_wire::ClientTraits;
use super::requests::Requests;
use epitome_session::{CompactionState, Offers, Out, Outlet, Shows};
use epitome_thread::{Change, MessageId, SessionId};

/// Limit of streamed text and progress queued for a client that does not read, in bytes.
pub const PENDING_TEXT_BYTES_MAX: usize = 1024 * 1024;

/// Overhead counted for each unmerged piece of text, so that empty pieces are bounded as well.
const PIECE_BYTES: usize = 160;

/// Queued output of one running command, in bytes; the newest part is kept.
const PENDING_PROGRESS_BYTES_MAX: usize = 16 * 1024;

/// Queued notices; further ones are dropped.
const PENDING_NOTICES_MAX: usize = 64;

/// Queued lines beyond which the reader stops reading.
const PENDING_LINES_MAX: usize = 1024;

/// Items searched backwards for one to merge with: this many sessions can stream at once without preventing
/// each other's merging.
const MERGE_REACH: usize = 16;

/// An item to be written.
#[derive(Debug)]
pub enum Item {
    /// A session's event, not yet translated.
    News { session: SessionId, out: Out },
    /// A complete line, including its newline.
    Line(Vec<u8>),
}

/// Shared by the sessions (`Outlet`), the reader (lines) and the writer (`take`).
///
/// A lock instead of a channel, because queued items must be merged and a channel does not give access to
/// them. It is held for microseconds; no translation or I/O happens under it.
pub struct Outbox {
    pending: Mutex<Pending>,
    /// Signals the writer that there are items.
    filled: Condvar,
    /// Signals the reader that there is room, and a closer that the writer has ended.
    drained: Condvar,
    requests: Mutex<Requests>,
}

struct Pending {
    items: VecDeque<Item>,
    text_bytes: usize,
    notices: usize,
    lines: usize,
    /// Messages and summaries of which a piece was dropped; no further piece may be queued until their entry
    /// arrives.
    gaps: HashMap<SessionId, MessageId>,
    traits: ClientTraits,
    /// A wake-up is a system call even without waiters; this avoids it.
    writer_waits: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// New items are rejected; queued ones are still written.
    Closing,
    /// The writer has ended, or the client's end of the pipe is closed.
    Ended,
}

impl Outbox {
    /// `first_own` is the id of our first request to this client.
    pub fn new(first_own: u64) -> Outbox {
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
            requests: Mutex::new(Requests::new(first_own)),
        }
    }

    /// The unanswered requests. Never locked together with the queue.
    pub fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the client's capabilities, for everything translated from now on.
    pub fn set_traits(&self, traits: ClientTraits) {
        self.lock().traits = traits;
    }

    /// The kinds of questions that the client can show.
    pub fn shows(&self) -> Shows {
        let traits = self.lock().traits;
        Shows { forms: traits.elicitation_form, urls: traits.elicitation_url }
    }

    /// The file operations that the client offers on its buffers.
    pub fn offers(&self) -> Offers {
        let traits = self.lock().traits;
        Offers { reads: traits.read_text_file, writes: traits.write_text_file }
    }

    /// Queues a complete line.
    pub fn put_line(&self, line: Vec<u8>) {
        let mut pending = self.lock();
        if pending.state == State::Open {
            pending.lines += 1;
            pending.items.push_back(Item::Line(line));
            self.wake_writer(pending);
        }
    }

    /// If the client sends much and reads nothing, waits until its responses have been written.
    pub fn wait_for_room(&self) {
        let mut pending = self.lock();
        while pending.lines > PENDING_LINES_MAX && pending.state == State::Open {
            pending = self.drained.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Moves all queued items into `items`, waiting for at least one; `None` once closed and drained.
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

    /// Rejects new items; the writer writes what is queued and ends.
    pub fn close(&self) {
        let mut pending = self.lock();
        if pending.state == State::Open {
            pending.state = State::Closing;
        }
        pending.writer_waits = true;
        self.wake_writer(pending);
    }

    /// Marks the writer as ended and drops queued items.
    pub fn ended(&self) {
        let mut pending = self.lock();
        pending.state = State::Ended;
        pending.items.clear();
        self.drained.notify_all();
    }

    /// Waits at most this long for the writer to end. Returns false if it did not.
    pub fn wait_until_ended(&self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        let mut pending = self.lock();
        while pending.state != State::Ended {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return false };
            pending = self.drained.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Bytes of queued streamed text and progress.
    pub fn pending_text_bytes(&self) -> usize {
        self.lock().text_bytes
    }

    /// Number of queued items.
    pub fn waiting(&self) -> usize {
        self.lock().items.len()
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

    fn shows(&self) -> Shows {
        Outbox::shows(self)
    }

    fn offers(&self) -> Offers {
        Outbox::offers(self)
    }

    fn shows_agents(&self) -> bool {
        self.lock().traits.subagents
    }
}

impl Pending {
    fn put(&mut self, session: &SessionId, out: Out) {
        match &out {
            Out::Text { message, part, text, .. } => {
                if !self.has_room(session, *message, text) {
                    return;
                }
                if let Some(Out::Text { message: before, part: part_before, text: whole, .. }) =
                    self.newest_of(session)
                    && (*before, *part_before) == (*message, *part)
                {
                    whole.push_str(text);
                    return;
                }
                self.text_bytes += PIECE_BYTES;
            }
            Out::Compaction { id, state: CompactionState::Wrote(piece) } => {
                if !self.has_room(session, *id, piece) {
                    return;
                }
                if let Some(Out::Compaction { id: before, state: CompactionState::Wrote(whole) }) =
                    self.newest_of(session)
                    && before == id
                {
                    whole.push_str(piece);
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
            Out::Usage(_) | Out::Commands(_) | Out::Options(_) => {
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
                if let Change::Replied { message, .. } | Change::Compacted { summary: message, .. } =
                    &entry.change
                    && self.gaps.get(session) == Some(&message.id)
                {
                    self.gaps.remove(session);
                }
            }
            Out::CallStarted { .. }
            | Out::CallFinished { .. }
            | Out::CallsSeen { .. }
            | Out::Compaction {
                state: CompactionState::Began { .. } | CompactionState::Failed(_) | CompactionState::Cancelled,
                ..
            }
            | Out::Ask { .. }
            | Out::Question { .. }
            | Out::QuestionDone { .. }
            | Out::Wish { .. }
            | Out::Withdrawn { .. }
            | Out::Subagent(_)
            | Out::Answer { .. } => {}
        }
        self.items.push_back(Item::News { session: session.clone(), out });
    }

    /// Accounts for a piece of a streamed message; `false` if it must be dropped.
    fn has_room(&mut self, session: &SessionId, message: MessageId, piece: &str) -> bool {
        if self.gaps.get(session) == Some(&message) {
            return false;
        }
        if self.text_bytes + piece.len() + PIECE_BYTES > PENDING_TEXT_BYTES_MAX {
            self.gaps.insert(session.clone(), message);
            return false;
        }
        self.text_bytes += piece.len();
        true
    }

    /// The newest queued event of this session, among the last [`MERGE_REACH`] items.
    fn newest_of(&mut self, session: &SessionId) -> Option<&mut Out> {
        self.items.iter_mut().rev().take(MERGE_REACH).find_map(|item| match item {
            Item::News { session: other, out } if other == session => Some(out),
            Item::News { .. } | Item::Line(_) => None,
        })
    }

    /// A queued event of the same kind and session that the new one may replace, because no entry, answer or
    /// question follows it.
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
                Out::Entry { .. }
                | Out::Answer { .. }
                | Out::Ask { .. }
                | Out::Question { .. }
                | Out::QuestionDone { .. }
                | Out::Wish { .. }
                | Out::Subagent(_)
                | Out::Withdrawn { .. } => {
                    return None;
                }
                Out::Text { .. }
                | Out::CallStarted { .. }
                | Out::CallProgress { .. }
                | Out::CallFinished { .. }
                | Out::CallsSeen { .. }
                | Out::Compaction { .. }
                | Out::Usage(_)
                | Out::Commands(_)
                | Out::Options(_)
                | Out::Notice { .. } => {}
            }
        }
        None
    }
}

/// Cuts text from the front to at most `bytes`, at a character boundary.
fn keep_newest(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        text.drain(..text.ceil_char_boundary(text.len() - bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::post::Post;
    use epitome_session::{TextKind, UsageNow};
    use epitome_thread::{CallId, Content, Entry, Message, ModelName, Seq, Usage};

    fn session(name: u64) -> SessionId {
        SessionId(format!("s_{name:020x}"))
    }

    fn text(message: u64, text: &str) -> Out {
        Out::Text { message: MessageId(message), part: 0, kind: TextKind::Reply, text: text.to_owned() }
    }

    fn reply(message: u64, text: &str) -> Out {
        let message =
            Message { id: MessageId(message), content: vec![Content::Text { text: text.to_owned() }] };
        let change = Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None };
        Out::Entry { entry: Arc::new(Entry { seq: Seq(1), at: 0, change }), replay: false, own: true }
    }

    fn usage(used: u64) -> Out {
        Out::Usage(UsageNow { used, size: 200_000, cost: None, last: Usage::default() })
    }

    fn waiting(outbox: &Outbox) -> Vec<String> {
        let name = |item: &Item| match item {
            Item::News { out: Out::Text { text, .. }, .. } => text.clone(),
            Item::News { out: Out::Usage(usage), .. } => format!("usage {}", usage.used),
            Item::News { out: Out::CallProgress { output, .. }, .. } => format!("progress {}", output.len()),
            Item::News { out: Out::Compaction { state: CompactionState::Wrote(piece), .. }, .. } => {
                format!("wrote {piece}")
            }
            Item::News { .. } => "entry".to_owned(),
            Item::Line(_) => "line".to_owned(),
        };
        outbox.lock().items.iter().map(name).collect()
    }

    /// Writes what is queued, and adds it to the text that the client has, by session.
    fn deliver(outbox: &Outbox, post: &mut Post, client: &mut HashMap<String, String>) {
        let (mut items, mut lines) = (VecDeque::new(), Vec::new());
        if outbox.lock().items.is_empty() {
            return;
        }
        let traits = outbox.take(&mut items).expect("the outbox is open");
        for item in items {
            post.write(item, &traits, outbox, &mut lines);
        }
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line: serde_json::Value = serde_json::from_slice(line).expect("each line is JSON");
            let session = line["params"]["sessionId"].as_str().expect("an update names its session");
            if let Some(text) = line["params"]["update"]["content"]["text"].as_str() {
                client.entry(session.to_owned()).or_default().push_str(text);
            }
        }
    }

    #[test]
    fn text_merges_even_when_sessions_alternate() {
        let outbox = Outbox::new(0);
        for _ in 0..3 {
            outbox.put(&session(1), text(7, "ab"));
            outbox.put(&session(2), text(7, "cd"));
        }
        outbox.put(&session(1), text(8, "new"));
        assert_eq!(waiting(&outbox), ["ababab", "cdcdcd", "new"]);
    }

    fn wrote(summary: u64, piece: &str) -> Out {
        let state = CompactionState::Wrote(piece.to_owned());
        Out::Compaction { id: MessageId(summary), state }
    }

    #[test]
    fn an_unread_summary_is_merged_and_dropped_beyond_the_limit() {
        let outbox = Outbox::new(0);
        let piece = "x".repeat(1000);
        for _ in 0..10_000 {
            outbox.put(&session(1), wrote(7, &piece));
            assert!(outbox.pending_text_bytes() <= PENDING_TEXT_BYTES_MAX);
        }
        assert_eq!(waiting(&outbox).len(), 1);
        // The writer has taken the queue; a piece after the gap would be appended in the wrong place.
        outbox.take(&mut VecDeque::new());
        outbox.put(&session(1), wrote(7, "late"));
        outbox.put(&session(1), wrote(9, "the next one"));
        assert_eq!(waiting(&outbox), ["wrote the next one"]);
    }

    #[test]
    fn text_does_not_merge_across_an_entry() {
        let outbox = Outbox::new(0);
        outbox.put(&session(1), text(7, "a"));
        outbox.put(&session(1), reply(7, "a"));
        outbox.put(&session(1), text(8, "b"));
        assert_eq!(waiting(&outbox), ["a", "entry", "b"]);
    }

    #[test]
    fn only_the_newest_usage_is_queued_but_not_moved_across_entries() {
        let outbox = Outbox::new(0);
        for used in 1..5 {
            outbox.put(&session(1), usage(used));
            outbox.put(&session(1), text(7, "a"));
        }
        outbox.put(&session(1), reply(7, "aaaa"));
        outbox.put(&session(1), usage(9));
        assert_eq!(waiting(&outbox), ["usage 4", "aaaa", "entry", "usage 9"]);
    }

    #[test]
    fn the_newest_output_of_a_command_is_kept() {
        let outbox = Outbox::new(0);
        for _ in 0..1000 {
            let output = "é".repeat(100);
            outbox.put(&session(1), Out::CallProgress { call: CallId("c".into()), output });
        }
        assert_eq!(waiting(&outbox), [format!("progress {PENDING_PROGRESS_BYTES_MAX}")]);
    }

    #[test]
    fn a_client_that_does_not_read_uses_bounded_memory_and_loses_nothing() {
        let outbox = Outbox::new(0);
        let piece = "x".repeat(1000);
        for _ in 0..100_000 {
            outbox.put(&session(1), text(7, &piece));
            assert!(outbox.pending_text_bytes() <= PENDING_TEXT_BYTES_MAX);
        }
        let whole = piece.repeat(100_000);
        outbox.put(&session(1), reply(7, &whole));
        let mut client = HashMap::new();
        deliver(&outbox, &mut Post::default(), &mut client);
        assert!(client[&session(1).0] == whole, "the client has another text");
    }

    #[test]
    fn after_a_dropped_piece_no_text_follows_until_the_entry() {
        let outbox = Outbox::new(0);
        let (first, large) = ("1".repeat(600_000), "2".repeat(600_000));
        outbox.put(&session(1), text(7, &first));
        outbox.put(&session(1), text(7, &large));
        outbox.put(&session(1), text(7, "3"));
        let (mut post, mut client) = (Post::default(), HashMap::new());
        deliver(&outbox, &mut post, &mut client);
        assert!(client[&session(1).0] == first);
        outbox.put(&session(1), text(7, "4"));
        outbox.put(&session(1), reply(7, &format!("{first}{large}34")));
        outbox.put(&session(1), text(8, "5"));
        deliver(&outbox, &mut post, &mut client);
        assert!(client[&session(1).0] == format!("{first}{large}345"));
    }

    #[test]
    fn nothing_is_queued_after_close() {
        let outbox = Outbox::new(0);
        outbox.put(&session(1), text(7, "last"));
        outbox.close();
        outbox.put(&session(1), text(7, "late"));
        let mut items = VecDeque::new();
        assert!(outbox.take(&mut items).is_some() && items.len() == 1);
        items.clear();
        assert!(outbox.take(&mut items).is_none());
        assert!(!outbox.wait_until_ended(Duration::ZERO));
        outbox.ended();
        assert!(outbox.wait_until_ended(Duration::ZERO));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// However pieces, sessions and reads interleave, and whatever is dropped on the way: in the end the
        /// client has the text of every message.
        #[test]
        fn clients_get_all_text(steps in prop::collection::vec((0u64..3, 0usize..300_000, any::<bool>()), 1..40)) {
            let outbox = Outbox::new(0);
            let (mut post, mut client, mut whole) = (Post::default(), HashMap::new(), HashMap::new());
            for (step, (name, length, reads)) in steps.into_iter().enumerate() {
                // All pieces are distinct, so that a missing one is detected.
                let piece = format!("{step}é").repeat(length / 4);
                outbox.put(&session(name), text(7, &piece));
                whole.entry(name).or_insert_with(String::new).push_str(&piece);
                if reads {
                    deliver(&outbox, &mut post, &mut client);
                }
            }
            for (name, whole) in &whole {
                outbox.put(&session(*name), reply(7, whole));
            }
            deliver(&outbox, &mut post, &mut client);
            for (name, whole) in whole {
                prop_assert!(client.get(&session(name).0).map_or("", String::as_str) == whole);
            }
        }
    }
}
