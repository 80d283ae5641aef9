//! Tokens in the context over time, by kind: one point after each round, and before and after each rewrite of
//! the history.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use epitome_session::meter::Kinds;
use epitome_thread::{Change, Entry, Seq, Thread};
use epitome_tokens::Ruler;

/// The context at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ContextPoint {
    /// The entry after which it was measured or, for `before`, the one that it preceded.
    pub entry: Seq,
    /// Milliseconds since the Unix epoch.
    pub at: u64,
    pub side: Side,
    pub kinds: Kinds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    Before,
    After,
}

/// Measures the context while a log is replayed entry by entry.
pub struct Meter<'a> {
    ruler: &'a Ruler,
    /// No points are recorded before this entry.
    from: Seq,
    /// The thread at this point of the log; `None` before the first entry.
    thread: Option<Thread>,
    frame: Kinds,
    /// Counts of entries seen so far, by address. Keeps the entries alive, so that no address is reused.
    counted: HashMap<*const Entry, (Arc<Entry>, Kinds)>,
    points: Vec<ContextPoint>,
    /// The newest entry and its time, if it came after the newest point.
    is_stale: Option<(Seq, u64)>,
}

impl<'a> Meter<'a> {
    pub fn new(ruler: &'a Ruler, from: Seq) -> Meter<'a> {
        Meter {
            ruler,
            from,
            thread: None,
            frame: Kinds::default(),
            counted: HashMap::new(),
            points: Vec::new(),
            is_stale: None,
        }
    }

    /// Applies the next entry of a log that is known to replay.
    pub fn take(&mut self, entry: &Arc<Entry>) {
        let rewrites = entry.change.rewrites() || entry.change.is_layer();
        if rewrites {
            self.point(entry, Side::Before);
        }
        match &mut self.thread {
            // The log of an existing thread starts with a valid entry.
            None => self.thread = Thread::replay([entry.clone()]).ok(),
            Some(thread) => thread.apply(entry.clone()),
        }
        if let Change::Framed { system, tools } = &entry.change {
            self.frame = Kinds::measure_frame(self.ruler, system, tools);
        }
        self.is_stale = Some((entry.seq, entry.at));
        let is_moment = match &entry.change {
            Change::Said { .. } | Change::Replied { .. } => true,
            Change::ToolFinished { .. } => {
                self.thread.as_ref().is_some_and(|thread| thread.open_calls().is_empty())
            }
            _ => rewrites,
        };
        if is_moment {
            self.point(entry, Side::After);
        }
    }

    /// All points; the last one is the current state.
    pub fn points(mut self) -> Vec<ContextPoint> {
        if let Some((entry, at)) = self.is_stale {
            let kinds = self.now();
            self.points.push(ContextPoint { entry, at, side: Side::After, kinds });
        }
        self.points
    }

    fn point(&mut self, entry: &Entry, side: Side) {
        if entry.seq < self.from {
            return;
        }
        let kinds = self.now();
        self.points.push(ContextPoint { entry: entry.seq, at: entry.at, side, kinds });
        self.is_stale = None;
    }

    fn now(&mut self) -> Kinds {
        let Meter { thread: Some(thread), ruler, counted, frame, .. } = self else { return Kinds::default() };
        let entries = thread.view().entries().iter().map(|entry| {
            let (_, kinds) = counted
                .entry(Arc::as_ptr(entry))
                .or_insert_with(|| (entry.clone(), Kinds::measure_entry(ruler, entry)));
            *kinds
        });
        std::iter::once(*frame).chain(entries).sum()
    }
}
