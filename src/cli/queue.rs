//! A bounded queue between a session and the printing thread, which merges text.
//!
//! A session never waits for a delta to be printed. It does wait if the printer is a thousand entries behind: the
//! terminal was then stopped, and the session should not continue unseen.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::run::HostLine;
use crate::session::event_queue::{EventQueue, PutResult, QueueLimits, QueuedItem};
use crate::session::{CompactionState, EventSink, QuestionSupport, SessionEvent};
use crate::thread::SessionId;

/// A turn commits far fewer items before it calls the model again.
const LIMITS: QueueLimits =
    QueueLimits { items: 1_024, text_bytes: 64 * 1024, output_bytes: 8 * 1024, ..QueueLimits::NONE };

/// Input that is not from a session.
#[derive(Debug)]
pub enum UserInput {
    /// A line that the user typed; `None` at the end of input.
    Typed(Option<String>),
    /// The user pressed Ctrl-C.
    Interrupted,
    /// A line of the program that runs this one.
    Host(Result<HostLine, String>),
    /// The program has closed stdin.
    HostLeft,
}

pub struct InputQueue {
    state: Mutex<InputQueueState>,
    changed: Condvar,
    shows: QuestionSupport,
}

struct InputQueueState {
    items: EventQueue<UserInput>,
    closed: bool,
}

impl InputQueue {
    /// Creates a queue whose reader can show these questions in addition to permission questions.
    pub fn new(shows: QuestionSupport) -> InputQueue {
        let state = InputQueueState { items: EventQueue::new(LIMITS), closed: false };
        InputQueue { state: Mutex::new(state), changed: Condvar::new(), shows }
    }

    /// Returns the next item, or `None` after the timeout.
    pub fn next(&self, within: Duration) -> Option<QueuedItem<UserInput>> {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| state.items.is_empty(), within);
        let item = state.items.pop();
        self.changed.notify_all();
        item
    }

    /// Queues input that is not from a session. Its amount is small, so it is not limited.
    pub fn put_input(&self, input: UserInput) {
        self.state.lock().items.put_own(input);
        self.changed.notify_all();
    }

    /// Drops all items from now on and never blocks, because the reader is gone.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.items.clear();
        self.changed.notify_all();
    }
}

impl EventSink for InputQueue {
    fn put(&self, session: &SessionId, mut out: SessionEvent) {
        if let SessionEvent::Compaction { state: CompactionState::Wrote(_), .. } = out {
            return;
        }
        let mut state = self.state.lock();
        while !state.closed
            && let PutResult::Full(rejected) = state.items.put(session, out)
        {
            out = rejected;
            self.changed.wait(&mut state);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn shows(&self) -> QuestionSupport {
        self.shows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::TextKind;
    use crate::thread::{CallId, MessageId};

    fn text(message: u64, text: &str) -> SessionEvent {
        SessionEvent::Text {
            message: MessageId(message),
            part: 0,
            kind: TextKind::Reply,
            text: text.to_owned(),
        }
    }

    fn session() -> SessionId {
        SessionId("s_00000000000000000001".to_owned())
    }

    #[test]
    fn an_unread_stream_takes_bounded_memory_and_has_no_gap() {
        let queue = InputQueue::new(QuestionSupport::default());
        let piece = "x".repeat(LIMITS.text_bytes);
        for _ in 0..LIMITS.items + 10 {
            queue.put(&session(), text(1, &piece));
        }
        assert!(queue.next(Duration::ZERO).is_some(), "there is room again");
        queue.put(&session(), text(1, "behind the hole"));
        queue.put(&session(), text(2, "the next message"));
        let waiting: Vec<_> = std::iter::from_fn(|| queue.next(Duration::ZERO)).collect();
        assert_eq!(waiting.len(), LIMITS.items);
        let last = waiting.last();
        assert!(matches!(
            last,
            Some(QueuedItem::Event { out: SessionEvent::Text { message: MessageId(2), .. }, .. })
        ));
    }

    #[test]
    fn a_printer_that_has_gone_delays_nothing() {
        let queue = InputQueue::new(QuestionSupport::default());
        queue.close();
        for _ in 0..LIMITS.items * 2 {
            queue.put(&session(), SessionEvent::CallStarted { call: CallId("c".to_owned()) });
        }
        assert!(queue.next(Duration::ZERO).is_none());
    }
}
