//! The bounded queue of events for a client that visits a session, so that the session never waits for it.

use std::convert::Infallible;

use parking_lot::Mutex;
use tokio::sync::Notify;

use epitome_session::event_queue::{EventQueue, PutResult, QueueLimits, QueuedItem};
use epitome_session::{EventSink, SessionEvent};
use epitome_thread::SessionId;

/// Events waiting for one client.
pub struct ClientQueue {
    state: Mutex<ClientQueueState>,
    changed: Notify,
}

struct ClientQueueState {
    events: EventQueue<Infallible>,
    lagged: bool,
}

/// The next event for the client.
#[derive(Debug)]
pub enum QueuedEvent {
    Item(SessionEvent),
    /// Events were lost after those returned so far.
    Lagged,
}

impl ClientQueue {
    /// A queue with these limits; if they are exceeded, the client has lagged.
    pub fn new(limits: QueueLimits) -> ClientQueue {
        let state = ClientQueueState { events: EventQueue::new(limits), lagged: false };
        ClientQueue { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Waits for the next event. The future may be dropped at any time.
    pub async fn next(&self) -> QueuedEvent {
        loop {
            // Created before the check, so that a notification in between is not missed.
            let changed = self.changed.notified();
            {
                let mut state = self.state.lock();
                if let Some(QueuedItem::Event { out, .. }) = state.events.pop() {
                    return QueuedEvent::Item(out);
                }
                if state.lagged {
                    return QueuedEvent::Lagged;
                }
            }
            changed.await;
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::CallId;

    const LIMITS: QueueLimits = QueueLimits { items: 16, ..QueueLimits::NONE };

    fn started(call: usize) -> SessionEvent {
        SessionEvent::CallStarted { call: CallId(call.to_string()) }
    }

    fn session() -> SessionId {
        SessionId("s_00000000000000000001".to_owned())
    }

    #[tokio::test]
    async fn a_slow_client_lags_after_the_queued_events() {
        let queue = ClientQueue::new(LIMITS);
        for call in 0..LIMITS.items + 5 {
            queue.put(&session(), started(call));
        }
        for call in 0..LIMITS.items {
            let next = queue.next().await;
            let wanted = call.to_string();
            assert!(
                matches!(&next, QueuedEvent::Item(SessionEvent::CallStarted { call }) if call.0 == wanted),
                "{next:?}"
            );
        }
        assert!(matches!(queue.next().await, QueuedEvent::Lagged));
        queue.put(&session(), started(0));
        assert!(matches!(queue.next().await, QueuedEvent::Lagged), "nothing comes behind a hole");
    }
}
