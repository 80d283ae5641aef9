//! The bounded queue of events for a client of the control API, so that sessions never wait for it.

use std::convert::Infallible;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use epitome_session::event_queue::{EventQueue, PutResult, QueueLimits, QueuedItem};
use epitome_session::{EventSink, QuestionSupport, SessionEvent};
use epitome_thread::SessionId;

/// Limits of a client's queue; if they are exceeded, the client has lagged.
const LIMITS: QueueLimits =
    QueueLimits { items: 2048, text_bytes: 256 * 1024, output_bytes: 16 * 1024, ..QueueLimits::NONE };

/// Events waiting for one client.
pub struct ClientQueue {
    state: Mutex<ClientQueueState>,
    changed: Notify,
}

struct ClientQueueState {
    events: EventQueue<Infallible>,
    lagged: bool,
    /// Kinds of questions that the client can show.
    shows: QuestionSupport,
}

impl Default for ClientQueue {
    fn default() -> ClientQueue {
        ClientQueue::new(LIMITS)
    }
}

/// The queues of one connection: its own, and one for each session that it follows.
#[derive(Default)]
pub struct ClientQueues(Mutex<Vec<Weak<ClientQueue>>>);

impl ClientQueues {
    pub fn add(&self, queue: &Arc<ClientQueue>) {
        let mut queues = self.0.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }

    /// Number of events waiting in all of them.
    pub fn waiting(&self) -> usize {
        self.0.lock().iter().filter_map(Weak::upgrade).map(|queue| queue.state.lock().events.len()).sum()
    }
}

/// The next thing to send to the client.
#[derive(Debug)]
pub enum QueuedEvent {
    Item(SessionId, SessionEvent),
    /// Events were lost after those returned so far.
    Lagged,
}

impl ClientQueue {
    pub fn new(limits: QueueLimits) -> ClientQueue {
        let state = ClientQueueState {
            events: EventQueue::new(limits),
            lagged: false,
            shows: QuestionSupport::default(),
        };
        ClientQueue { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Waits for the next event. The future may be dropped at any time.
    pub async fn next(&self) -> QueuedEvent {
        loop {
            // Created before the check, so that a notification in between is not missed.
            let changed = self.changed.notified();
            {
                let mut state = self.state.lock();
                if let Some(QueuedItem::Event { session, out }) = state.events.pop() {
                    return QueuedEvent::Item(session, out);
                }
                if state.lagged {
                    return QueuedEvent::Lagged;
                }
            }
            changed.await;
        }
    }

    /// Sets the kinds of questions that the client can show from now on.
    pub fn set_shows(&self, shows: QuestionSupport) {
        self.state.lock().shows = shows;
    }
}

impl EventSink for ClientQueue {
    fn put(&self, session: &SessionId, out: SessionEvent) {
        let mut state = self.state.lock();
        if state.lagged {
            return;
        }
        match state.events.put(session, out) {
            PutResult::Queued | PutResult::Dropped => {}
            PutResult::Gap | PutResult::Full(_) => state.lagged = true,
        }
        drop(state);
        self.changed.notify_one();
    }

    fn shows(&self) -> QuestionSupport {
        self.state.lock().shows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::CallId;

    fn started(call: usize) -> SessionEvent {
        SessionEvent::CallStarted { call: CallId(call.to_string()) }
    }

    fn session() -> SessionId {
        SessionId("s_00000000000000000001".to_owned())
    }

    /// A client that follows a session but does not read is visible in the counts.
    #[tokio::test]
    async fn unread_events_are_counted() {
        let (queues, queue) = (ClientQueues::default(), Arc::new(ClientQueue::default()));
        queues.add(&queue);
        for call in 0..2 {
            queue.put(&session(), started(call));
        }
        assert_eq!(queues.waiting(), 2);
        queue.next().await;
        assert_eq!(queues.waiting(), 1);
        drop(queue);
        assert_eq!(queues.waiting(), 0, "it keeps no queue alive");
    }

    #[tokio::test]
    async fn a_slow_client_lags_after_the_queued_events() {
        let queue = ClientQueue::default();
        for call in 0..LIMITS.items + 5 {
            queue.put(&session(), started(call));
        }
        for call in 0..LIMITS.items {
            let next = queue.next().await;
            let wanted = call.to_string();
            assert!(
                matches!(&next, QueuedEvent::Item(_, SessionEvent::CallStarted { call }) if call.0 == wanted),
                "{next:?}"
            );
        }
        assert!(matches!(queue.next().await, QueuedEvent::Lagged));
        queue.put(&session(), started(0));
        assert!(matches!(queue.next().await, QueuedEvent::Lagged), "nothing comes behind a hole");
    }
}
