//! The current activity of a session, for browsers that may be slow: only the newest state of each kind,
//! never a queue.

use std::collections::BTreeSet;

use serde::Serialize;
use tokio::sync::watch;

use epitome_session::event_queue::keep_newest;
use epitome_session::{CompactionState, EventSink, SessionEvent, TextKind, UsageNow};
use epitome_thread::{CallId, Change, SessionId};

/// Bytes of streamed text shown while it arrives; the entry that follows has all of it.
const SPOKEN_BYTES_MAX: usize = 600;

/// Most running calls, and most open questions, that are reported.
const RUNNING_MAX: usize = 64;

/// The changes. The reader fetches new entries, up to `next`, separately.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct News {
    /// The number that the next entry will get, according to the events so far.
    pub next: u64,
    /// The last part of the text being streamed.
    pub spoken: Option<StreamedText>,
    pub running: BTreeSet<CallId>,
    pub compacting: bool,
    /// Ids of open permission requests and questions.
    pub asking: BTreeSet<u64>,
    pub usage: Option<UsageNow>,
    /// The newest notice.
    pub notice: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamedText {
    pub thinking: bool,
    pub text: String,
}

/// Gathers a session's events.
#[derive(Debug, Default)]
pub struct ActivityOutlet(watch::Sender<News>);

impl ActivityOutlet {
    /// The complete state from now on.
    pub fn news(&self) -> watch::Receiver<News> {
        self.0.subscribe()
    }
}

impl EventSink for ActivityOutlet {
    fn put(&self, _: &SessionId, out: SessionEvent) {
        self.0.send_if_modified(|news| news.take(out));
    }
}

impl News {
    /// Applies an event and returns whether it changed anything that the page shows.
    fn take(&mut self, out: SessionEvent) -> bool {
        match out {
            SessionEvent::Entry { entry, .. } => {
                self.next = self.next.max(entry.seq.0 + 1);
                match &entry.change {
                    Change::Replied { .. } => self.spoken = None,
                    Change::ToolFinished { outcome } => drop(self.running.remove(&outcome.call)),
                    Change::Compacted { .. } => self.compacting = false,
                    Change::TurnEnded { .. } => {
                        *self = News { next: self.next, usage: self.usage, ..News::default() };
                    }
                    _ => {}
                }
            }
            SessionEvent::Text { kind, text, .. } => self.push_text(kind == TextKind::Thinking, &text),
            SessionEvent::CallStarted { call } => {
                if self.running.len() < RUNNING_MAX {
                    self.running.insert(call);
                }
            }
            SessionEvent::CallFinished { outcome } => drop(self.running.remove(&outcome.call)),
            SessionEvent::Seen(_) | SessionEvent::Subagent(_) => {}
            SessionEvent::Compaction { state, .. } => {
                self.compacting = match state {
                    CompactionState::Began { .. } | CompactionState::Wrote(_) => true,
                    CompactionState::Failed(_) | CompactionState::Cancelled => false,
                };
            }
            SessionEvent::Usage(usage) => self.usage = Some(usage),
            SessionEvent::Notice { text, .. } => {
                self.notice = Some(text[..text.floor_char_boundary(SPOKEN_BYTES_MAX)].to_owned());
            }
            SessionEvent::Ask { ask, .. } | SessionEvent::Question { ask, .. } => {
                if self.asking.len() < RUNNING_MAX {
                    self.asking.insert(ask.0);
                }
            }
            SessionEvent::Withdrawn { ask } => drop(self.asking.remove(&ask.0)),
            SessionEvent::CallProgress { .. }
            | SessionEvent::Commands(_)
            | SessionEvent::Options(_)
            | SessionEvent::QuestionDone { .. }
            | SessionEvent::EditorRequest { .. }
            | SessionEvent::State(_)
            | SessionEvent::Inserted { .. }
            | SessionEvent::TerminalEnded { .. }
            | SessionEvent::Answer { .. } => return false,
        }
        true
    }

    fn push_text(&mut self, thinking: bool, text: &str) {
        let spoken = match &mut self.spoken {
            Some(spoken) if spoken.thinking == thinking => spoken,
            other => other.insert(StreamedText { thinking, text: String::new() }),
        };
        spoken.text.push_str(text);
        keep_newest(&mut spoken.text, SPOKEN_BYTES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::{Entry, MessageId, Seq, StopReason, Usage};
    use std::sync::Arc;

    fn text(text: &str) -> SessionEvent {
        SessionEvent::Text { message: MessageId(1), part: 0, kind: TextKind::Reply, text: text.to_owned() }
    }

    #[test]
    fn a_slow_reader_gets_a_bounded_current_state() {
        let mut news = News::default();
        for _ in 0..10_000 {
            news.take(text("é, "));
            news.take(SessionEvent::CallStarted { call: CallId("c".into()) });
        }
        let spoken = news.spoken.clone().expect("something is said");
        assert!(spoken.text.len() <= SPOKEN_BYTES_MAX && spoken.text.ends_with("é, "), "{spoken:?}");
        assert_eq!(news.running.len(), 1);
        let reason = StopReason::EndTurn;
        let change = Change::TurnEnded { reason, usage: Usage::default(), quiet_hooks: 0, failure: None };
        let entry = Arc::new(Entry { seq: Seq(7), at: 0, change });
        news.take(SessionEvent::Entry { entry, replay: false, own: false });
        assert_eq!(news, News { next: 8, ..News::default() });
    }

    #[test]
    fn events_before_the_first_read_are_kept() {
        let gathered = ActivityOutlet::default();
        let mut news = gathered.news();
        gathered.put(&SessionId(String::new()), text("a"));
        gathered.put(&SessionId(String::new()), text("b"));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(news.changed()).expect("the outlet exists");
        let spoken = news.borrow().spoken.clone();
        assert_eq!(spoken.map(|spoken| spoken.text), Some("ab".to_owned()));
    }
}
