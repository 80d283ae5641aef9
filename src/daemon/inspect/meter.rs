//! What filled the context, and when: a point after each round, and on both sides of what rewrote the history.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use epitome_session::meter::Kinds;
use epitome_thread::{Change, Entry, Seq, Thread};
use epitome_tokens::Ruler;

/// The context at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// The entry behind which it was so or, `before`, in front of which.
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

/// Follows a log entry by entry.
pub struct Meter<'a> {
    ruler: &'a Ruler,
    /// Points in front of it are not wanted.
    from: Seq,
    /// The thread as it was then; `None` before its first entry.
    thread: Option<Thread>,
    frame: Kinds,
    /// What was counted once. It holds the entries, so that no address comes twice.
    counted: HashMap<*const Entry, (Arc<Entry>, Kinds)>,
    points: Vec<Point>,
    /// An entry came since the newest point.
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

    /// Takes the next entry of a log that folds.
    pub fn take(&mut self, entry: &Arc<Entry>) {
        let rewrites = entry.change.rewrites() || entry.change.is_layer();
        if rewrites {
            self.point(entry, Side::Before);
        }
        match &mut self.thread {
            // A log that a thread was made of begins as it must.
            None => self.thread = Thread::replay([entry.clone()]).ok(),
            Some(thread) => thread.apply(entry.clone()),
        }
        if let Change::Framed { system, tools } = &entry.change {
            self.frame = Kinds::of_frame(self.ruler, system, tools);
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

    /// All points. The last is how it is now.
    pub fn points(mut self) -> Vec<Point> {
        if let Some((entry, at)) = self.is_stale {
            let kinds = self.now();
            self.points.push(Point { entry, at, side: Side::After, kinds });
        }
        self.points
    }

    fn point(&mut self, entry: &Entry, side: Side) {
        if entry.seq < self.from {
            return;
        }
        let kinds = self.now();
        self.points.push(Point { entry: entry.seq, at: entry.at, side, kinds });
        self.is_stale = None;
    }

    fn now(&mut self) -> Kinds {
        let Meter { thread: Some(thread), ruler, counted, frame, .. } = self else { return Kinds::default() };
        let entries = thread.view().entries().iter().map(|entry| {
            let (_, kinds) = counted
                .entry(Arc::as_ptr(entry))
                .or_insert_with(|| (entry.clone(), Kinds::of_entry(ruler, entry)));
            *kinds
        });
        std::iter::once(*frame).chain(entries).sum()
    }
}
