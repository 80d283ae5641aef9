//! Follows one thread, so that a count costs what is new and not the whole view.

use std::sync::Arc;

use super::ruler::Ruler;
use super::tally::Tally;
use crate::family::Family;
use epitome_thread::{Change, Entry, Seq, Thread};

/// Tokens that one call counts with the vocabulary, more or less; the rest of a long conversation is
/// estimated until later calls come to it. It bounds what a session waits for, to about 10 ms.
const EXACT_TOKENS_MAX: u64 = 20_000;

/// What a request takes, by who says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Tokens that the provider reported, of the beginning.
    pub reported: u64,
    /// Tokens that we count, of what came behind it.
    pub counted: u64,
}

impl Count {
    /// All of them.
    pub fn tokens(self) -> u64 {
        self.reported.saturating_add(self.counted)
    }
}

/// Remembers what each entry of a thread's view measures, as long as it is in the view.
///
/// It remembers tallies, because what a model makes of them changes with each of its replies.
#[derive(Debug, Default)]
pub struct Counter {
    /// The entries of the view at the last count.
    entries: Vec<Measured>,
    frame: Option<Measured>,
    /// Whose rules for images the tallies are made by.
    family: Family,
}

#[derive(Debug)]
struct Measured {
    entry: Arc<Entry>,
    /// What it measures, once that was asked for, and whether that is no estimate.
    tally: Option<(Tally, bool)>,
    /// What it was first said to measure: a number that people were shown stays, also where it was an estimate and there
    /// is a count by now.
    shown: Option<Tally>,
}

impl Counter {
    /// As `Ruler::in_context`, of the same thread each time.
    pub fn in_context(&mut self, ruler: &Ruler, thread: &Thread) -> u64 {
        self.follow(ruler, thread);
        let mut room = EXACT_TOKENS_MAX;
        let known = ruler.known(thread);
        let parts = self.behind(known.map(|(at, _)| at));
        let counted: u64 = parts.map(|measured| ruler.fit(measured.shown(ruler, &mut room))).sum();
        known.map_or_else(|| self.overhead(ruler), |(_, tokens)| tokens).saturating_add(counted)
    }

    /// The tokens that the next request takes at most, as far as one can know: by what the provider reported, and what
    /// came behind it with a margin.
    pub fn at_most(&mut self, ruler: &Ruler, thread: &Thread) -> u64 {
        let shown = self.in_context(ruler, thread);
        let mut room = EXACT_TOKENS_MAX;
        let reported = ruler.reported(thread);
        let (mut counted, mut estimated) = (0, 0);
        for measured in self.behind(reported.map(|(at, _)| at)) {
            let (tally, exact) = measured.tally(ruler, &mut room);
            *(if exact { &mut counted } else { &mut estimated }) += ruler.fit(tally);
        }
        let reported = reported.map_or_else(|| self.overhead(ruler), |(_, tokens)| tokens);
        let sure = ruler.at_most(Count { reported, counted });
        let rest = ruler.clone().exact(None).at_most(Count { reported: 0, counted: estimated });
        shown.max(sure.saturating_add(rest))
    }

    /// What is measured of a request behind this entry, the newest first; the frame is the oldest of it.
    fn behind(&mut self, known: Option<Seq>) -> impl Iterator<Item = &mut Measured> {
        let entries = self.entries.iter_mut().rev().filter(move |measured| Some(measured.entry.seq) > known);
        entries.chain(self.frame.iter_mut().filter(move |_| known.is_none()))
    }

    /// What the provider adds to a request.
    fn overhead(&self, ruler: &Ruler) -> u64 {
        self.frame.as_ref().map_or(0, |_| ruler.calibration().overhead())
    }

    /// The whole request as the thread stands, frame and view: what a reported count is compared with.
    /// `None` where a part of it is only estimated so far.
    pub fn request(&mut self, ruler: &Ruler, thread: &Thread) -> Option<Tally> {
        self.follow(ruler, thread);
        let mut room = EXACT_TOKENS_MAX;
        let parts = self.frame.iter_mut().chain(self.entries.iter_mut().rev());
        let parts = parts.map(|measured| measured.tally(ruler, &mut room));
        // To the end, also behind one that is estimated: each call counts a part of the rest.
        let (tally, exact) =
            parts.fold((Tally::default(), true), |(sum, all), (tally, exact)| (sum + tally, all && exact));
        exact.then_some(tally)
    }

    /// Keeps what is still in the view from its front on.
    fn follow(&mut self, ruler: &Ruler, thread: &Thread) {
        if self.family != ruler.family() {
            *self = Counter { family: ruler.family(), ..Counter::default() };
        }
        let view = thread.view().entries();
        let pairs = self.entries.iter().zip(view);
        let known = pairs.take_while(|(known, entry)| Arc::ptr_eq(&known.entry, entry)).count();
        self.entries.truncate(known);
        self.entries.extend(view[known..].iter().map(Measured::new));
        let frame = thread.frame_entry();
        let same = |known: &Measured| frame.is_some_and(|entry| Arc::ptr_eq(&known.entry, entry));
        if !self.frame.as_ref().is_some_and(same) {
            self.frame = frame.map(Measured::new);
        }
    }
}

impl Measured {
    fn new(entry: &Arc<Entry>) -> Measured {
        Measured { entry: entry.clone(), tally: None, shown: None }
    }

    /// What it measures, as it was first said.
    fn shown(&mut self, ruler: &Ruler, room: &mut u64) -> Tally {
        let (now, _) = self.tally(ruler, room);
        *self.shown.get_or_insert(now)
    }

    /// What it measures, and whether that is exact. While there is `room`, in tokens, an estimate is
    /// replaced by a count.
    fn tally(&mut self, ruler: &Ruler, room: &mut u64) -> (Tally, bool) {
        let may_count = ruler.is_exact() && *room > 0;
        match self.tally {
            Some((tally, exact)) if exact || !may_count => (tally, exact),
            Some(_) | None => {
                let tally =
                    if may_count { self.measure(ruler) } else { self.measure(&ruler.clone().exact(None)) };
                if may_count {
                    *room = room.saturating_sub(tally.text);
                }
                *self.tally.insert((tally, may_count))
            }
        }
    }

    fn measure(&self, ruler: &Ruler) -> Tally {
        match &self.entry.change {
            Change::Framed { system, tools } => ruler.tally_frame(system, tools),
            _ => ruler.tally_entry(&self.entry),
        }
    }
}
