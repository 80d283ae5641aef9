//! The outbox of one client: all output, in one order, until the writer takes it.
//!
//! A session never waits for the client. While the client does not read, items are merged. Beyond a limit, streamed
//! text is dropped, because the entry that follows contains all of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::from_wire::ClientTraits;
use super::requests::Requests;
use epitome_session_api::SessionEvent;
use epitome_session_api::event_queue::{self, EventQueue, QueueLimits};
use epitome_thread::SessionId;

/// Limits of the queue for a client that does not read.
const LIMITS: QueueLimits = QueueLimits {
    bytes: 1024 * 1024,
    output_bytes: 512 * 1024,
    notices: 64,
    replaces_states: true,
    ..QueueLimits::NONE
};

/// Queued lines beyond which the reader stops reading.
const PENDING_LINES_MAX: usize = 1024;

/// A session's event, not yet translated, or a complete line, including its newline.
pub type OutboxItem = event_queue::QueuedItem<Vec<u8>>;

/// Shared by the sessions (events), the reader (lines) and the writer (`take`).
///
/// It uses a lock instead of a channel because queued items must be merged, and a channel gives no access to them. The
/// lock is held for microseconds, never during translation or I/O.
pub struct Outbox {
    pending: Mutex<OutboxContents>,
    /// Signals the writer that there are items.
    filled: Condvar,
    /// Signals the reader that there is room, and a thread that closes the connection that the writer has ended.
    drained: Condvar,
    requests: Mutex<Requests>,
    is_leaving: AtomicBool,
}

struct OutboxContents {
    queue: EventQueue<Vec<u8>>,
    lines: usize,
    traits: ClientTraits,
    /// The name that the client gives itself.
    client_name: Option<String>,
    /// Whether the writer waits. A wake-up is a system call even without waiters; this flag avoids it.
    writer_waits: bool,
    state: OutboxState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutboxState {
    Open,
    /// New items are rejected; queued ones are still written.
    Closing,
    /// The writer has ended, or the client has closed its end of the pipe.
    Ended,
}

impl Outbox {
    /// `first_own` is the id of the agent's first request to this client.
    pub fn new(first_own: u64) -> Outbox {
        Outbox {
            pending: Mutex::new(OutboxContents {
                queue: EventQueue::new(LIMITS),
                lines: 0,
                traits: ClientTraits::default(),
                client_name: None,
                writer_waits: false,
                state: OutboxState::Open,
            }),
            filled: Condvar::new(),
            drained: Condvar::new(),
            requests: Mutex::new(Requests::new(first_own)),
            is_leaving: AtomicBool::new(false),
        }
    }

    /// The unanswered requests. Never locked together with the queue.
    pub fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock()
    }

    /// Sets the capabilities of the client, for everything translated from now on, and its name.
    pub fn set_client(&self, traits: ClientTraits, name: Option<String>) {
        let mut contents = self.pending.lock();
        contents.traits = traits;
        contents.client_name = name;
    }

    /// The client's capabilities.
    pub fn traits(&self) -> ClientTraits {
        self.pending.lock().traits
    }

    /// Queues an event of a session.
    pub fn put(&self, session: &SessionId, out: SessionEvent) {
        let mut pending = self.pending.lock();
        if pending.state == OutboxState::Open {
            // Nothing of it is shown, and the answer to the request follows at once.
            let waits = matches!(out, SessionEvent::Seen(_));
            // The client gets any dropped text with a later event.
            drop(pending.queue.put(session, out));
            if !waits {
                self.wake_writer(pending);
            }
        }
    }

    /// Queues a complete line, or several.
    pub fn put_line(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut line = Vec::new();
        write(&mut line);
        let mut pending = self.pending.lock();
        if pending.state == OutboxState::Open {
            pending.lines += 1;
            pending.queue.put_own(line);
            self.wake_writer(pending);
        }
    }

    /// Waits until queued responses have been written if the client sends much and reads nothing.
    pub fn wait_for_room(&self) {
        let mut pending = self.pending.lock();
        self.drained.wait_while(&mut pending, |pending| {
            pending.lines > PENDING_LINES_MAX && pending.state == OutboxState::Open
        });
    }

    /// Moves all queued items into `items`, waiting for at least one. Returns `None` once the outbox is closed and
    /// empty.
    pub fn take(&self, items: &mut VecDeque<OutboxItem>) -> Option<ClientTraits> {
        let mut pending = self.pending.lock();
        while pending.queue.is_empty() {
            if pending.state != OutboxState::Open {
                return None;
            }
            pending.writer_waits = true;
            self.filled.wait(&mut pending);
        }
        pending.writer_waits = false;
        pending.queue.take(items);
        pending.lines = 0;
        self.drained.notify_all();
        Some(pending.traits)
    }

    /// No further sessions are opened for the client, which is about to be detached from those that it has.
    pub fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// Rejects new items. The writer ends after it has written the queued ones.
    pub fn close(&self) {
        let mut pending = self.pending.lock();
        if pending.state == OutboxState::Open {
            pending.state = OutboxState::Closing;
        }
        pending.writer_waits = true;
        self.wake_writer(pending);
    }

    /// Marks the writer as ended and drops queued items.
    pub fn ended(&self) {
        let mut pending = self.pending.lock();
        pending.state = OutboxState::Ended;
        pending.queue.clear();
        self.drained.notify_all();
        drop(pending);
        self.requests().mcp().end();
    }

    /// Whether new items are accepted.
    pub fn is_open(&self) -> bool {
        self.pending.lock().state == OutboxState::Open
    }

    /// Waits at most `at_most` for the writer to end. Returns false if it did not.
    pub fn wait_until_ended(&self, at_most: Duration) -> bool {
        let mut pending = self.pending.lock();
        self.drained.wait_while_for(&mut pending, |pending| pending.state != OutboxState::Ended, at_most);
        pending.state == OutboxState::Ended
    }

    /// Number of queued items, and the client's name.
    pub fn client_now(&self) -> (usize, Option<String>) {
        let contents = self.pending.lock();
        (contents.queue.len(), contents.client_name.clone())
    }

    fn wake_writer(&self, mut pending: MutexGuard<'_, OutboxContents>) {
        let waits = std::mem::take(&mut pending.writer_waits);
        drop(pending);
        if waits {
            self.filled.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::writer::UpdateWriter;
    use epitome_session_api::TextKind;
    use epitome_thread::{Change, Content, Entry, Message, MessageId, ModelName, Seq};

    fn session(name: u64) -> SessionId {
        SessionId(format!("s_{name:020x}"))
    }

    fn text(message: u64, text: &str) -> SessionEvent {
        SessionEvent::Text {
            message: MessageId(message),
            part: 0,
            kind: TextKind::Reply,
            text: text.to_owned(),
        }
    }

    fn reply(message: u64, text: &str) -> SessionEvent {
        let message = Message {
            id: MessageId(message),
            content: vec![Content::Text { text: text.to_owned() }],
            author: None,
        };
        let change = Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None };
        SessionEvent::Entry {
            entry: Arc::new(Entry { seq: Seq(1), at: 0, change }),
            replay: false,
            own: true,
        }
    }

    /// Writes the queued items, and appends their text to the client's text, by session.
    fn deliver(outbox: &Outbox, writer: &mut UpdateWriter, client: &mut HashMap<String, String>) {
        let (mut items, mut lines) = (VecDeque::new(), Vec::new());
        if outbox.client_now().0 == 0 {
            return;
        }
        let traits = outbox.take(&mut items).expect("the outbox is open");
        for item in items {
            writer.write(item, &traits, outbox, &mut lines);
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
    fn a_client_that_does_not_read_uses_bounded_memory_and_loses_nothing() {
        let outbox = Outbox::new(0);
        let piece = "x".repeat(1000);
        for _ in 0..100_000 {
            outbox.put(&session(1), text(7, &piece));
            assert!(outbox.pending.lock().queue.bytes() <= LIMITS.bytes);
        }
        let whole = piece.repeat(100_000);
        outbox.put(&session(1), reply(7, &whole));
        let mut client = HashMap::new();
        deliver(&outbox, &mut UpdateWriter::default(), &mut client);
        assert!(client[&session(1).0] == whole, "the client has another text");
    }

    #[test]
    fn after_a_dropped_piece_no_text_follows_until_the_entry() {
        let outbox = Outbox::new(0);
        let (first, large) = ("1".repeat(600_000), "2".repeat(600_000));
        outbox.put(&session(1), text(7, &first));
        outbox.put(&session(1), text(7, &large));
        outbox.put(&session(1), text(7, "3"));
        let (mut writer, mut client) = (UpdateWriter::default(), HashMap::new());
        deliver(&outbox, &mut writer, &mut client);
        assert!(client[&session(1).0] == first);
        outbox.put(&session(1), text(7, "4"));
        outbox.put(&session(1), reply(7, &format!("{first}{large}34")));
        outbox.put(&session(1), text(8, "5"));
        deliver(&outbox, &mut writer, &mut client);
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
        /// The client ends up with the text of every message, however pieces, sessions and reads interleave, and
        /// whatever is dropped.
        #[test]
        fn clients_get_all_text(steps in prop::collection::vec((0u64..3, 0usize..300_000, any::<bool>()), 1..40)) {
            let outbox = Outbox::new(0);
            let (mut writer, mut client, mut whole) = (UpdateWriter::default(), HashMap::new(), HashMap::new());
            for (step, (name, length, reads)) in steps.into_iter().enumerate() {
                // All pieces are distinct, so that a missing one is detected.
                let piece = format!("{step}é").repeat(length / 4);
                outbox.put(&session(name), text(7, &piece));
                whole.entry(name).or_insert_with(String::new).push_str(&piece);
                if reads {
                    deliver(&outbox, &mut writer, &mut client);
                }
            }
            for (name, whole) in &whole {
                outbox.put(&session(*name), reply(7, whole));
            }
            deliver(&outbox, &mut writer, &mut client);
            for (name, whole) in whole {
                prop_assert!(client.get(&session(name).0).map_or("", String::as_str) == whole);
            }
        }
    }
}
