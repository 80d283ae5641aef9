//! Reading the entries of a log, each by itself: what one tells hangs on no other, so that a long log is read by
//! several threads. Pure: they come to what one thread would come to.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::thread;

use super::calls::Called;
use super::fact::Source;
use super::notes::Notes;
use super::spoken::{self, Side};
use super::{outcomes, printed};
use crate::thread::{Change, Content, Message, Seq, Thread, ToolOutcome};

/// Fewer entries are read before another thread has begun.
pub(super) const SHARED_MIN: usize = 64;
/// Threads that read one log.
const THREADS_MAX: usize = 4;

/// A call that waits for its outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// The reply in which it was made, and which part of that it is.
    pub entry: Seq,
    pub part: usize,
    /// The entry that has its newest input.
    pub given: Seq,
}

/// Something to be read, and the entry in which it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading<'a> {
    pub entry: Seq,
    pub of: Of<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Of<'a> {
    Person(&'a Message),
    /// What the person typed to call up a recipe.
    Typed(&'a str),
    Agent(&'a Message),
    Outcome(&'a ToolOutcome, Option<Asked>),
}

/// What each of these tells, in their order.
pub(super) fn read(thread: &Thread, readings: &[Reading<'_>]) -> Vec<Notes> {
    let helpers = if readings.len() < SHARED_MIN { 0 } else { *THREADS - 1 };
    let next = AtomicUsize::new(0);
    let notes: Vec<OnceLock<Notes>> = readings.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let (Some(reading), Some(notes)) = (readings.get(at), notes.get(at)) else { return };
            notes.get_or_init(|| one(thread, *reading));
        }
    };
    thread::scope(|scope| {
        for _ in 0..helpers {
            // Where the system has no room for one more, this thread reads the rest.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let read = |notes: OnceLock<Notes>| notes.into_inner().expect("all were read when the threads had ended");
    notes.into_iter().map(read).collect()
}

/// How many threads read. To ask the system each time would take as long as to read some entries.
static THREADS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX));

fn one(thread: &Thread, reading: Reading<'_>) -> Notes {
    let mut notes = Notes::default();
    let source = Source { entry: reading.entry, call: None };
    match reading.of {
        Of::Person(message) => said(&mut notes, thread, message, source),
        Of::Typed(text) => spoken::take(&mut notes, text, Side::Person, source),
        Of::Agent(message) => {
            for content in &message.content {
                if let Content::Text { text } = content {
                    spoken::take(&mut notes, text, Side::Agent, source);
                }
            }
        }
        Of::Outcome(outcome, asked) => {
            let called = asked.and_then(|asked| called(thread, asked));
            outcomes::take(&mut notes, thread.cwd(), called, outcome, reading.entry);
        }
    }
    notes
}

fn said(notes: &mut Notes, thread: &Thread, message: &Message, source: Source) {
    for content in &message.content {
        match content {
            Content::Text { text } => spoken::take(notes, text, Side::Person, source),
            Content::Resource { uri, text } => {
                outcomes::attached(notes, thread.cwd(), uri, source);
                printed::take_pasted(notes, text, source);
            }
            Content::ResourceLink { uri, .. } => {
                outcomes::attached(notes, thread.cwd(), uri, source);
            }
            Content::Thinking { .. }
            | Content::Image { .. }
            | Content::Document { .. }
            | Content::Call(_) => {}
        }
    }
}

/// A call as it was made in the end.
fn called(thread: &Thread, asked: Asked) -> Option<Called> {
    let change = |seq: Seq| {
        let entry = thread.entries().get(usize::try_from(seq.0).ok()?)?;
        Some(&entry.change)
    };
    let Change::Replied { message, .. } = change(asked.entry)? else { return None };
    let Content::Call(call) = message.content.get(asked.part)? else { return None };
    let (input, card) = match change(asked.given)? {
        Change::CallChanged { input, card, .. } => (input, card),
        _ => (&call.input, &call.card),
    };
    Some(Called::read(asked.entry, &call.name, input, card))
}
