//! Counts one thread incrementally: a count costs only the new entries, not the entire view.

use std::sync::Arc;

use super::calibration::is_plausible;
use super::ruler::Ruler;
use super::tally::Tally;
use crate::model_name::Family;
use epitome_thread::{Change, Entry, Seq, Thread};

/// The approximate number of tokens that one call counts with the vocabulary. The rest of a long conversation is
/// estimated until later calls count it. This limits a session's wait to about 10 ms.
const EXACT_TOKENS_MAX: u64 = 20_000;

/// The size of a request, by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Tokens of the beginning of the request, as reported by the provider.
    pub reported: u64,
    /// Tokens of the rest, counted by Epitome.
    pub counted: u64,
}

impl Count {
    /// The sum of both.
    pub fn tokens(self) -> u64 {
        self.reported.saturating_add(self.counted)
    }
}

/// Caches the tally of each entry in a thread's view.
///
/// It stores tallies instead of tokens, because the scale of a model changes with each of its replies.
#[derive(Debug, Default)]
pub struct Counter {
    /// The entries of the view at the last count.
    entries: Vec<MeasuredEntry>,
    frame: Option<MeasuredEntry>,
    /// The family whose image rules the tallies use.
    family: Family,
}

#[derive(Debug)]
struct MeasuredEntry {
    entry: Arc<Entry>,
    /// The entry's own; here it is found without reading each entry of a long view.
    seq: Seq,
    /// The tally, once computed, and whether it is exact.
    tally: Option<(Tally, bool)>,
    /// The first tally that was returned. It is displayed even after a count has replaced an estimate, so that
    /// numbers shown to the user do not change.
    shown: Option<Tally>,
}

impl Counter {
    /// Like [`Ruler::in_context`], for the same thread each time.
    pub fn in_context(&mut self, ruler: &Ruler, thread: &Thread) -> u64 {
        self.follow(ruler, thread);
        let mut room = EXACT_TOKENS_MAX;
        let known = ruler.known(thread);
        let parts = self.behind(known.map(|(at, _)| at));
        let counted: u64 = parts.map(|measured| ruler.fit(measured.shown(ruler, &mut room))).sum();
        known.map_or_else(|| self.overhead(ruler), |(_, tokens)| tokens).saturating_add(counted)
    }

    /// Returns the likely size of the next request in tokens, and the largest likely one: the size reported by the
    /// provider, if it is plausible, and the rest without and with a margin.
    pub fn likely(&mut self, ruler: &Ruler, thread: &Thread) -> (u64, u64) {
        let shown = self.in_context(ruler, thread);
        let mut room = EXACT_TOKENS_MAX;
        let reported = ruler.reported(thread).filter(|report| self.is_plausible(ruler, *report));
        let (mut counted, mut estimated) = (0, 0);
        for measured in self.behind(reported.map(|(at, _)| at)) {
            let (tally, exact) = measured.tally(ruler, &mut room);
            *(if exact { &mut counted } else { &mut estimated }) += ruler.fit(tally);
        }
        let reported = reported.map_or_else(|| self.overhead(ruler), |(_, tokens)| tokens);
        let sure = ruler.at_most(Count { reported, counted });
        let rest = ruler.clone().exact(None).at_most(Count { reported: 0, counted: estimated });
        let likely = reported.saturating_add(counted).saturating_add(estimated);
        (shown.max(likely), shown.max(sure.saturating_add(rest)))
    }

    /// The largest likely size of the next request in tokens.
    pub fn at_most(&mut self, ruler: &Ruler, thread: &Thread) -> u64 {
        self.likely(ruler, thread).1
    }

    /// Whether a request up to this entry may have this size. Some servers report only the tokens that they had not
    /// cached, which would make a full window look empty.
    fn is_plausible(&mut self, ruler: &Ruler, (at, tokens): (Seq, u64)) -> bool {
        let estimating = ruler.clone().exact(None);
        let sent = self.entries.iter_mut().take_while(|measured| measured.seq <= at).chain(&mut self.frame);
        let text: u64 = sent.map(|measured| measured.tally(&estimating, &mut 0).0.text).sum();
        if is_plausible(tokens, text) {
            return true;
        }
        // Earlier thinking may not have been sent, or is dropped by the service.
        let sent = self.entries.iter().take_while(|measured| measured.seq <= at);
        let thinking: u64 = sent.map(|measured| estimating.tally_thinking(&measured.entry).text).sum();
        is_plausible(tokens, text.saturating_sub(thinking))
    }

    /// Returns the parts of a request after this entry, newest first, with the frame as the oldest.
    fn behind(&mut self, known: Option<Seq>) -> impl Iterator<Item = &mut MeasuredEntry> {
        let entries = self.entries.iter_mut().rev().filter(move |measured| Some(measured.seq) > known);
        entries.chain(self.frame.iter_mut().filter(move |_| known.is_none()))
    }

    /// Tokens that the provider adds to a request.
    fn overhead(&self, ruler: &Ruler) -> u64 {
        self.frame.as_ref().map_or(0, |_| ruler.calibration().overhead())
    }

    /// Returns the tally of the complete request, frame and view, for comparison with a reported count. `None` while
    /// a part of it is only estimated.
    pub fn request(&mut self, ruler: &Ruler, thread: &Thread) -> Option<Tally> {
        self.follow(ruler, thread);
        let mut room = EXACT_TOKENS_MAX;
        let parts = self.frame.iter_mut().chain(self.entries.iter_mut().rev());
        let parts = parts.map(|measured| measured.tally(ruler, &mut room));
        // Continues after an estimated part, so that each call counts some more of the rest.
        let (tally, exact) =
            parts.fold((Tally::default(), true), |(sum, all), (tally, exact)| (sum + tally, all && exact));
        exact.then_some(tally)
    }

    /// Keeps the cached entries that are still at the front of the view.
    fn follow(&mut self, ruler: &Ruler, thread: &Thread) {
        if self.family != ruler.family() {
            *self = Counter { family: ruler.family(), ..Counter::default() };
        }
        let view = thread.view().entries();
        let pairs = self.entries.iter().zip(view);
        let known = pairs.take_while(|(known, entry)| Arc::ptr_eq(&known.entry, entry)).count();
        self.entries.truncate(known);
        self.entries.extend(view[known..].iter().map(MeasuredEntry::new));
        let frame = thread.frame_entry();
        let same = |known: &MeasuredEntry| frame.is_some_and(|entry| Arc::ptr_eq(&known.entry, entry));
        if !self.frame.as_ref().is_some_and(same) {
            self.frame = frame.map(MeasuredEntry::new);
        }
    }
}

impl MeasuredEntry {
    fn new(entry: &Arc<Entry>) -> MeasuredEntry {
        MeasuredEntry { entry: entry.clone(), seq: entry.seq, tally: None, shown: None }
    }

    /// Returns the first tally that was returned.
    fn shown(&mut self, ruler: &Ruler, room: &mut u64) -> Tally {
        let (now, _) = self.tally(ruler, room);
        *self.shown.get_or_insert(now)
    }

    /// Returns the current tally, and whether it is exact. An estimate is replaced by a count while there is `room`,
    /// in tokens.
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
