//! Follows one thread, so that a count costs what is new and not the whole view.

use std::sync::Arc;

use super::family::Family;
use super::ruler::Ruler;
use super::tally::Tally;
use crate::thread::{Change, Entry, Thread};

/// Remembers what each entry of a thread's view measures, as long as it is in the view.
///
/// It remembers tallies, because what a model makes of them changes with each of its replies.
#[derive(Debug, Default)]
pub struct Counter {
    /// The entries of the view at the last count; those that nobody asked for have no tally yet.
    entries: Vec<(Arc<Entry>, Option<Tally>)>,
    frame: Option<(Arc<Entry>, Tally)>,
    /// What the tallies were made with: a vocabulary or none, and the rules for images.
    by: (bool, Family),
}

impl Counter {
    /// As `Ruler::in_context`, of the same thread each time.
    pub fn in_context(&mut self, ruler: &Ruler, thread: &Thread) -> u64 {
        self.follow(ruler, thread);
        let mut tail = 0;
        for at in (0..self.entries.len()).rev() {
            if let Some(anchor) = ruler.anchor(thread, &self.entries[at].0) {
                return anchor + tail;
            }
            tail += ruler.fit(self.tally_at(ruler, at));
        }
        match self.tally_frame(ruler, thread) {
            Some(frame) => ruler.calibration().overhead() + ruler.fit(frame) + tail,
            None => tail,
        }
    }

    /// The whole request as the thread stands, frame and view: what a reported count is compared with.
    pub fn request(&mut self, ruler: &Ruler, thread: &Thread) -> Tally {
        self.follow(ruler, thread);
        let view: Tally = (0..self.entries.len()).map(|at| self.tally_at(ruler, at)).sum();
        view + self.tally_frame(ruler, thread).unwrap_or_default()
    }

    /// Keeps what is still in the view from its front on.
    fn follow(&mut self, ruler: &Ruler, thread: &Thread) {
        let by = (ruler.is_exact(), ruler.family());
        if self.by != by {
            *self = Counter { by, ..Counter::default() };
        }
        let entries = thread.view().entries();
        let known =
            self.entries.iter().zip(entries).take_while(|((known, _), entry)| Arc::ptr_eq(known, entry));
        let known = known.count();
        self.entries.truncate(known);
        self.entries.extend(entries[known..].iter().map(|entry| (entry.clone(), None)));
    }

    fn tally_at(&mut self, ruler: &Ruler, at: usize) -> Tally {
        let (entry, tally) = &mut self.entries[at];
        *tally.get_or_insert_with(|| ruler.tally_entry(entry))
    }

    fn tally_frame(&mut self, ruler: &Ruler, thread: &Thread) -> Option<Tally> {
        let entry = thread.frame_entry()?;
        match &self.frame {
            Some((known, tally)) if Arc::ptr_eq(known, entry) => Some(*tally),
            Some(_) | None => {
                let Change::Framed { system, tools } = &entry.change else { return None };
                let tally = ruler.tally_frame(system, tools);
                self.frame = Some((entry.clone(), tally));
                Some(tally)
            }
        }
    }
}
