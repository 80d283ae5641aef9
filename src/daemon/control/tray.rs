//! What waits for a client of the control API to read, within a bound: the sessions go on without it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use epitome_session::{Out, Outlet, Shows};
use epitome_thread::SessionId;

/// News that wait for a client; more, and it has lagged.
const ITEMS_MAX: usize = 2048;

/// Streamed text that waits is merged up to so many bytes an item.
const TEXT_BYTES_MAX: usize = 256 * 1024;

/// Output of a running call that waits is merged, and its end kept.
const PROGRESS_BYTES_MAX: usize = 16 * 1024;

/// What waits to be told.
#[derive(Default)]
pub struct Tray {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    items: VecDeque<(SessionId, Out)>,
    lagged: bool,
    /// The questions that its client can show.
    shows: Shows,
}

/// The trays of one connection: its own, and one for each session that it follows.
#[derive(Default)]
pub struct Trays(Mutex<Vec<Weak<Tray>>>);

impl Trays {
    pub fn add(&self, tray: &Arc<Tray>) {
        let mut trays = self.trays();
        trays.retain(|tray| tray.strong_count() > 0);
        trays.push(Arc::downgrade(tray));
    }

    /// News that wait in all of them.
    pub fn waiting(&self) -> usize {
        self.trays().iter().filter_map(Weak::upgrade).map(|tray| tray.state().items.len()).sum()
    }

    fn trays(&self) -> MutexGuard<'_, Vec<Weak<Tray>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a tray has.
#[derive(Debug)]
pub enum Next {
    Item(SessionId, Out),
    /// Something is lost behind the items that were given.
    Lagged,
}

impl Tray {
    /// Waits for the next item. It may be dropped at any time.
    pub async fn next(&self) -> Next {
        loop {
            // Asked for before the look, so that what comes between the two is not missed.
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

    /// From now on its client can show these questions.
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
            // The outcome that follows has the whole output.
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
    async fn streamed_text_that_waits_is_one_item() {
        let tray = Tray::default();
        for out in [text(1, "a"), text(1, "b"), text(2, "c")] {
            tray.put(&session(), out);
        }
        for wanted in ["ab", "c"] {
            let next = tray.next().await;
            assert!(matches!(&next, Next::Item(_, Out::Text { text, .. }) if text == wanted), "{next:?}");
        }
    }

    /// A client that follows and does not read is seen to be slow.
    #[tokio::test]
    async fn news_that_nobody_reads_are_counted() {
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
    async fn who_does_not_read_has_lagged_behind_what_was_kept() {
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
