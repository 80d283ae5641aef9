//! The bounded queue of events for a client of the control API, so that sessions never wait for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use epitome_session::{Out, Outlet, Shows};
use epitome_thread::SessionId;

/// Events that may wait for a client; beyond that, it has lagged.
const ITEMS_MAX: usize = 2048;

/// Waiting streamed text is merged into items of up to this many bytes.
const TEXT_BYTES_MAX: usize = 256 * 1024;

/// Waiting output of a running call is merged and cut to its last bytes.
const PROGRESS_BYTES_MAX: usize = 16 * 1024;

/// Events waiting for one client.
#[derive(Default)]
pub struct Tray {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    items: VecDeque<(SessionId, Out)>,
    lagged: bool,
    /// Kinds of questions that the client can show.
    shows: Shows,
}

/// The queues of one connection: its own, and one for each session that it follows.
#[derive(Default)]
pub struct Trays(Mutex<Vec<Weak<Tray>>>);

impl Trays {
    pub fn add(&self, tray: &Arc<Tray>) {
        let mut trays = self.trays();
        trays.retain(|tray| tray.strong_count() > 0);
        trays.push(Arc::downgrade(tray));
    }

    /// Number of events waiting in all of them.
    pub fn waiting(&self) -> usize {
        self.trays().iter().filter_map(Weak::upgrade).map(|tray| tray.state().items.len()).sum()
    }

    fn trays(&self) -> MutexGuard<'_, Vec<Weak<Tray>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next thing to send to the client.
#[derive(Debug)]
pub enum Next {
    Item(SessionId, Out),
    /// Events were lost after those returned so far.
    Lagged,
}

impl Tray {
    /// Waits for the next event. The future may be dropped at any time.
    pub async fn next(&self) -> Next {
        loop {
            // Created before the check, so that a notification in between is not missed.
            let changed = self.changed.notified();
            {
                let mut state = self.state();
                if let Some((session, out)) = state.items.pop_front() {
                    return Next::Item(session, out);
                }
                if state.lagged {
                    return Next::Lagged;
                }
            }
            changed.await;
        }
    }

    /// Sets the kinds of questions that the client can show from now on.
    pub fn set_shows(&self, shows: Shows) {
        self.state().shows = shows;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outlet for Tray {
    fn put(&self, session: &SessionId, out: Out) {
        let mut state = self.state();
        if state.lagged {
            return;
        }
        let is_full = state.items.len() >= ITEMS_MAX;
        let last = state.items.back_mut().filter(|(last, _)| last == session).map(|(_, out)| out);
        match (last, out) {
            (
                Some(Out::Text { message, part, text, .. }),
                Out::Text { message: same, part: same_part, text: more, .. },
            ) if *message == same && *part == same_part && text.len() + more.len() <= TEXT_BYTES_MAX => {
                text.push_str(&more);
            }
            (Some(Out::CallProgress { call, output }), Out::CallProgress { call: same, output: newest })
                if *call == same =>
            {
                output.push_str(&newest);
                if output.len() > PROGRESS_BYTES_MAX {
                    output.drain(..output.ceil_char_boundary(output.len() - PROGRESS_BYTES_MAX));
                }
            }
            (_, out) if !is_full => state.items.push_back((session.clone(), out)),
            // Dropped: the tool result that follows contains the complete output.
            (_, Out::CallProgress { .. }) => {}
            (_, _) => state.lagged = true,
        }
        drop(state);
        self.changed.notify_one();
    }

    fn shows(&self) -> Shows {
        self.state().shows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_session::TextKind;
    use epitome_thread::{CallId, MessageId};

    fn text(message: u64, text: &str) -> Out {
        Out::Text { message: MessageId(message), part: 0, kind: TextKind::Reply, text: text.to_owned() }
    }

    fn started(call: usize) -> Out {
        Out::CallStarted { call: CallId(call.to_string()) }
    }

    fn session() -> SessionId {
        SessionId("s_00000000000000000001".to_owned())
    }

    #[tokio::test]
    async fn waiting_streamed_text_is_merged_into_one_item() {
        let tray = Tray::default();
        for out in [text(1, "a"), text(1, "b"), text(2, "c")] {
            tray.put(&session(), out);
        }
        for wanted in ["ab", "c"] {
            let next = tray.next().await;
            assert!(matches!(&next, Next::Item(_, Out::Text { text, .. }) if text == wanted), "{next:?}");
        }
    }

    /// A client that follows a session but does not read is visible in the counts.
    #[tokio::test]
    async fn unread_events_are_counted() {
        let (trays, tray) = (Trays::default(), Arc::new(Tray::default()));
        trays.add(&tray);
        for call in 0..2 {
            tray.put(&session(), started(call));
        }
        assert_eq!(trays.waiting(), 2);
        tray.next().await;
        assert_eq!(trays.waiting(), 1);
        drop(tray);
        assert_eq!(trays.waiting(), 0, "it keeps no tray alive");
    }

    #[tokio::test]
    async fn a_slow_client_lags_after_the_queued_events() {
        let tray = Tray::default();
        for call in 0..ITEMS_MAX + 5 {
            tray.put(&session(), started(call));
        }
        for call in 0..ITEMS_MAX {
            let next = tray.next().await;
            let wanted = call.to_string();
            assert!(
                matches!(&next, Next::Item(_, Out::CallStarted { call }) if call.0 == wanted),
                "{next:?}"
            );
        }
        assert!(matches!(tray.next().await, Next::Lagged));
        tray.put(&session(), started(0));
        assert!(matches!(tray.next().await, Next::Lagged), "nothing comes behind a hole");
    }
}
