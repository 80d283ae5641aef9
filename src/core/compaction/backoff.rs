//! Decides when an automatic compaction is due, and avoids repeating useless ones. Pure.

use epitome_thread::{Change, Entry, Seq, Thread};
use epitome_tokens::Ruler;

/// Number of useless automatic compactions in a row after which they are paused.
pub const USELESS_MAX: u32 = 2;

/// Growth of the view, in percent of the window, before the next automatic compaction: after a compaction, after its
/// undo, and after a pause. Without it, a summary nearly as large as the threshold would be compacted again at once,
/// and an undone compaction would be repeated.
const GROWTH_PERCENT_MIN: u64 = 10;

/// How full the window is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fullness {
    /// Tokens in context.
    pub used: u64,
    /// The window, in tokens.
    pub size: u64,
    /// The share of the window at which a compaction is due.
    pub at: f64,
}

impl Fullness {
    /// The tokens in context at which a compaction is due, whatever was compacted before.
    fn threshold(self) -> u64 {
        (self.at * self.size as f64).ceil() as u64
    }
}

/// Counts automatic compactions in a row that gained nothing. Everything else is read from the log, so a restart does
/// not affect it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionBackoff {
    useless: u32,
    /// The newest entry of the log at the last of them.
    since: Seq,
}

impl CompactionBackoff {
    /// Records an automatic compaction that gained nothing. Returns `true` if they are paused from now on.
    pub fn gained_nothing(&mut self, thread: &Thread) -> bool {
        self.useless = self.useless.saturating_add(1);
        self.since = Seq(thread.next_seq().0.saturating_sub(1));
        self.useless == USELESS_MAX
    }

    /// Records a compaction, automatic or requested.
    pub fn gained(&mut self) {
        *self = CompactionBackoff::default();
    }

    /// Whether automatic compactions are paused. `size` is the window in tokens.
    pub fn is_paused(&self, ruler: &Ruler, thread: &Thread, size: u64) -> bool {
        self.useless >= USELESS_MAX && added(ruler, thread, self.since) < growth(size)
    }

    /// Whether a compaction is due.
    pub fn is_due(&self, ruler: &Ruler, thread: &Thread, now: Fullness) -> bool {
        // Most often it is not even that full, and the log is not searched.
        now.used >= now.threshold()
            && now.used >= self.due_at(ruler, thread, now)
            && !self.is_paused(ruler, thread, now.size)
    }

    /// Tokens in context at which a compaction is due, ignoring pauses.
    pub fn due_at(&self, ruler: &Ruler, thread: &Thread, now: Fullness) -> u64 {
        let (Fullness { used, size, .. }, at) = (now, now.threshold());
        let missing =
            last_swap(thread).map_or(0, |since| growth(size).saturating_sub(added(ruler, thread, since)));
        match missing {
            0 => at,
            missing => at.max(used.saturating_add(missing)),
        }
    }
}

fn growth(size: u64) -> u64 {
    size.saturating_mul(GROWTH_PERCENT_MIN).div_ceil(100)
}

/// Tokens of the view in entries after `since`.
fn added(ruler: &Ruler, thread: &Thread, since: Seq) -> u64 {
    let behind = thread.view().entries().iter().filter(|entry| entry.seq > since);
    behind.map(|entry| ruler.entry(entry)).sum()
}

/// The newest active compaction or pruning, or the newest undo or redo of one.
fn last_swap(thread: &Thread) -> Option<Seq> {
    let is_swap = |change: &Change| matches!(change, Change::Compacted { .. } | Change::Pruned { .. });
    let swaps = |entry: &Entry| match &entry.change {
        Change::Undone { entry: layer } | Change::Redone { entry: layer } => {
            thread.entry(*layer).is_some_and(|layer| is_swap(&layer.change))
        }
        change => is_swap(change) && !thread.is_undone(entry.seq) && !thread.is_taken_back(entry.seq),
    };
    thread.view_changes().iter().rev().find(|entry| swaps(entry)).map(|entry| entry.seq)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use epitome_thread::{Content, FORMAT_VERSION, Message, MessageId, Origin, SessionId, Trigger};

    /// In tokens. Small, so that a few words are a tenth of it.
    const WINDOW: u64 = 1_000;

    fn append(thread: &mut Thread, change: Change) -> Seq {
        let seq = thread.next_seq();
        thread.apply(Arc::new(Entry { seq, at: 0, change }));
        seq
    }

    fn message(words: usize) -> Message {
        Message {
            id: MessageId(0),
            content: vec![Content::Text { text: "walnut ".repeat(words) }],
            author: None,
        }
    }

    /// Builds a conversation from named events: `much` adds more than a tenth of the window, `little` less.
    fn conversation(events: &[&str]) -> (Thread, CompactionBackoff) {
        let session = SessionId("s_00000000000000000001".into());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
        let mut thread = Thread::replay([Arc::new(Entry { seq: Seq(0), at: 0, change: opened })])
            .expect("an opened thread");
        let mut backoff = CompactionBackoff::default();
        for event in events {
            match *event {
                "much" => {
                    append(&mut thread, Change::Said { message: message(200), origin: Origin::Person });
                }
                "little" => {
                    append(&mut thread, Change::Said { message: message(5), origin: Origin::Person });
                }
                "compacted" => {
                    let through = Seq(thread.next_seq().0 - 1);
                    append(
                        &mut thread,
                        Change::Compacted {
                            through,
                            summary: message(3),
                            trigger: Trigger::Threshold,
                            focus: None,
                            tokens_before: 0,
                            tokens_after: 0,
                            window: None,
                            model: None,
                            usage: None,
                            masks: Vec::new(),
                            account: Default::default(),
                        },
                    );
                    backoff.gained();
                }
                "pruned" => {
                    let trigger = Trigger::Threshold;
                    append(
                        &mut thread,
                        Change::Pruned {
                            masks: Vec::new(),
                            trigger,
                            tokens_before: 0,
                            tokens_after: 0,
                            window: None,
                        },
                    );
                    backoff.gained();
                }
                "redo" => {
                    let undone = thread.entries().iter().rev().find_map(|entry| match entry.change {
                        Change::Undone { entry } => Some(entry),
                        _ => None,
                    });
                    let entry = undone.expect("an undo");
                    append(&mut thread, Change::Redone { entry });
                }
                "useless" => {
                    backoff.gained_nothing(&thread);
                }
                "undo" => {
                    let entry = thread.last_layer().expect("a layer").seq;
                    append(&mut thread, Change::Undone { entry });
                }
                "restart" => {
                    thread = Thread::replay(thread.entries().iter().cloned()).expect("the same log");
                    backoff = CompactionBackoff::default();
                }
                other => panic!("there is no event {other:?}"),
            }
        }
        (thread, backoff)
    }

    #[test]
    fn compactions_are_due_at_the_threshold_and_do_not_repeat() {
        let full = |used| Fullness { used, size: WINDOW, at: 0.8 };
        for (events, used, due) in [
            (&["much"][..], 799, false),
            (&["much"], 800, true),
            (&["much", "compacted"], 900, false),
            (&["much", "compacted", "little"], 900, false),
            (&["much", "compacted", "much"], 900, true),
            (&["much", "compacted", "restart", "little"], 900, false),
            (&["much", "compacted", "undo"], 900, false),
            (&["much", "compacted", "undo", "little", "restart"], 900, false),
            (&["much", "compacted", "undo", "much"], 900, true),
            (&["much", "compacted", "undo", "much", "redo", "little"], 900, false),
            (&["much", "compacted", "undo", "redo", "much"], 900, true),
            (&["much", "pruned", "little"], 900, false),
            (&["much", "pruned", "restart", "much"], 900, true),
            (&["much", "pruned", "much", "undo"], 900, false),
            (&["much", "useless"], 900, true),
            (&["much", "useless", "useless"], 900, false),
            (&["much", "useless", "little", "useless", "little"], 900, false),
            (&["much", "useless", "useless", "much"], 900, true),
            (&["much", "useless", "useless", "much", "useless"], 900, false),
            (&["much", "useless", "useless", "compacted", "much"], 900, true),
        ] {
            let (thread, backoff) = conversation(events);
            assert_eq!(
                backoff.is_due(&Ruler::for_model(None), &thread, full(used)),
                due,
                "{events:?} at {used}"
            );
        }
    }
}
