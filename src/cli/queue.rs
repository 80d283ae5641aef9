//! A bounded queue between a session and the printing thread, which merges text.
//!
//! A session never waits for a delta to be printed. It does wait if the printer is a thousand entries behind: then the
//! terminal was stopped, and the session should not go on unseen.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::live::keep_newest;
use crate::session::{CompactionState, Out, Outlet, Shows};
use crate::thread::{CallId, MessageId, SessionId};

/// Items in the queue. A turn commits far fewer before it calls the model again.
const ITEMS_MAX: usize = 1_024;

/// Bytes of text in one queued item. More is dropped and printed with its entry.
const TEXT_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a running call's output in one queued item: the newest are kept.
const PROGRESS_BYTES_MAX: usize = 8 * 1024;

/// Input of the printing thread.
#[derive(Debug)]
pub enum News {
    Out(Out),
    /// A line that the user typed; `None` at the end of input.
    Typed(Option<String>),
    /// The user pressed Ctrl-C.
    Interrupted,
}

#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    shows: Shows,
}

#[derive(Default)]
struct State {
    items: VecDeque<News>,
    /// The message of which text was dropped. Queuing more of it would leave a gap; its entry has the full text.
    holed: Option<MessageId>,
    closed: bool,
}

impl Queue {
    /// A queue whose reader can show these questions in addition to permission questions.
    pub fn that_shows(shows: Shows) -> Queue {
        Queue { shows, ..Queue::default() }
    }

    /// The next item, or `None` when the time is up.
    pub fn next(&self, within: Duration) -> Option<News> {
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, within, |state| state.items.is_empty());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let item = state.items.pop_front();
        self.changed.notify_all();
        item
    }

    /// Queues input that is not from a session. There is never much of it.
    pub fn tell(&self, news: News) {
        self.state().items.push_back(news);
        self.changed.notify_all();
    }

    /// Drops everything from now on and makes nobody wait, as the reader has gone.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.items.clear();
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outlet for Queue {
    fn put(&self, _: &SessionId, out: Out) {
        let mut state = self.state();
        match out {
            Out::Compaction { state: CompactionState::Wrote(_), .. } => return,
            Out::CallProgress { call, output } => state.put_progress(call, output),
            Out::Text { message, part, kind, text } => state.put_text(message, part, kind, text),
            Out::Entry { .. }
            | Out::CallStarted { .. }
            | Out::CallFinished { .. }
            | Out::CallsSeen { .. }
            | Out::Subagent(_)
            | Out::Compaction { .. }
            | Out::Usage(_)
            | Out::Commands(_)
            | Out::Options(_)
            | Out::Notice { .. }
            | Out::Ask { .. }
            | Out::Question { .. }
            | Out::QuestionDone { .. }
            | Out::Wish { .. }
            | Out::Withdrawn { .. }
            | Out::Answer { .. } => {
                let is_full = |state: &mut State| state.items.len() >= ITEMS_MAX && !state.closed;
                let waited = self.changed.wait_while(state, is_full);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                if !state.closed {
                    state.items.push_back(News::Out(out));
                }
            }
        }
        self.changed.notify_all();
    }

    fn shows(&self) -> Shows {
        self.shows
    }
}

impl State {
    /// Only the newest output is shown, and the outcome has all of it, so the rest is dropped.
    fn put_progress(&mut self, call: CallId, output: String) {
        if self.closed {
            return;
        }
        if let Some(News::Out(Out::CallProgress { call: last, output: waiting })) = self.items.back_mut()
            && *last == call
        {
            waiting.push_str(&output);
            keep_newest(waiting, PROGRESS_BYTES_MAX);
        } else if self.items.len() < ITEMS_MAX {
            self.items.push_back(News::Out(Out::CallProgress { call, output }));
        }
    }

    fn put_text(&mut self, message: MessageId, part: u32, kind: crate::session::TextKind, text: String) {
        if self.closed || self.holed == Some(message) {
            return;
        }
        if let Some(News::Out(Out::Text { message: last, part: last_part, text: waiting, .. })) =
            self.items.back_mut()
            && *last == message
            && *last_part == part
            && waiting.len() + text.len() <= TEXT_BYTES_MAX
        {
            waiting.push_str(&text);
        } else if self.items.len() < ITEMS_MAX {
            self.items.push_back(News::Out(Out::Text { message, part, kind, text }));
        } else {
            self.holed = Some(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::TextKind;

    fn text(message: u64, text: &str) -> Out {
        Out::Text { message: MessageId(message), part: 0, kind: TextKind::Reply, text: text.to_owned() }
    }

    fn session() -> SessionId {
        SessionId("s_00000000000000000001".to_owned())
    }

    fn waiting(queue: &Queue) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(news) = queue.next(Duration::ZERO) {
            match news {
                News::Out(Out::Text { text, .. }) => texts.push(text),
                other => texts.push(format!("{other:?}")),
            }
        }
        texts
    }

    #[test]
    fn text_that_waits_is_merged_and_messages_stay_apart() {
        let queue = Queue::default();
        for (message, piece) in [(1, "a"), (1, "b"), (2, "c")] {
            queue.put(&session(), text(message, piece));
        }
        assert_eq!(waiting(&queue), ["ab", "c"]);
    }

    #[test]
    fn a_stream_that_nobody_reads_takes_bounded_memory_and_leaves_no_hole() {
        let queue = Queue::default();
        let piece = "x".repeat(TEXT_BYTES_MAX);
        for _ in 0..ITEMS_MAX + 10 {
            queue.put(&session(), text(1, &piece));
        }
        assert!(queue.next(Duration::ZERO).is_some(), "there is room again");
        queue.put(&session(), text(1, "behind the hole"));
        queue.put(&session(), text(2, "the next message"));
        let texts = waiting(&queue);
        assert_eq!(texts.len(), ITEMS_MAX);
        assert_eq!(texts.last().map(String::as_str), Some("the next message"));
    }

    #[test]
    fn nobody_waits_for_a_printer_that_has_gone() {
        let queue = Queue::default();
        queue.close();
        for _ in 0..ITEMS_MAX * 2 {
            queue.put(&session(), Out::CallStarted { call: crate::thread::CallId("c".to_owned()) });
        }
        assert!(queue.next(Duration::ZERO).is_none());
    }
}
