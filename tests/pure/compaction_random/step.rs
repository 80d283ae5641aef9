//! The steps of a conversation, generated from a seed. A step refers to things by an index modulo their
//! current count, so that it stays meaningful when other steps are removed.

use epitome::compaction::KeptTail;
use epitome::thread::{Seq, Trigger};
use fastrand::Rng;

/// One conversation.
#[derive(Clone, Debug)]
pub struct Story {
    /// The model's window in tokens, and that of the model chosen at the end.
    pub window: u64,
    pub later: u64,
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
pub enum Attached {
    Nothing,
    Image,
    Document,
    File,
}

#[derive(Clone, Copy, Debug)]
pub enum By {
    Person,
    Recipe,
    Hook,
    Context,
    Instructions(usize),
}

/// Sizes of texts are in bytes.
#[derive(Clone, Debug)]
pub enum Step {
    Said(By, usize, Attached),
    Replied {
        bytes: usize,
        calls: usize,
        thinks: bool,
    },
    /// Outcomes of the open calls, in a different order than the calls; some may be missing.
    Outcomes {
        bytes: usize,
        attached: Attached,
        forgets: bool,
    },
    Masked(usize),
    Dropped(usize),
    Replaced(usize, usize),
    Appended(usize),
    Pinned(usize),
    Unpinned(usize),
    Mutated {
        messages: usize,
        kept: usize,
    },
    Goal(usize),
    Undone,
    Redone(usize),
    ThinkingDropped,
    Compacted(Compaction),
}

#[derive(Clone, Copy, Debug)]
pub struct Compaction {
    pub trigger: Trigger,
    pub keep: KeptTail,
    /// Bytes of the model's summary; `None` if no model writes one.
    pub summary: Option<usize>,
    /// A summary is requested even if masks would suffice.
    pub wanted: bool,
    /// Checks in addition that the result is deterministic.
    pub again: bool,
    /// The service that checks the result; occasionally all four do.
    pub service: usize,
    /// The provider's count of the request, in percent of Epitome's estimate; `None` if it reports none.
    pub reported: Option<u64>,
}

/// One in this many conversations is as long as real ones.
const LARGE_ONE_IN: u32 = 1_000;

/// Maximum number of steps of a conversation.
const SMALL_STEPS_MAX: usize = 10;
const LARGE_STEPS_MAX: usize = 40;

/// In tokens; repeated values are more frequent.
const SMALL_WINDOWS: [u64; 6] = [2_048, 2_048, 2_048, 2_048, 2_048, 4_096];
const LARGE_WINDOWS: [u64; 8] = [4_096, 8_192, 8_192, 32_768, 32_768, 32_768, 200_000, 1_000_000];

impl Story {
    pub fn of(number: u64) -> Story {
        let mut rng = Rng::with_seed(number);
        let is_large = one_in(&mut rng, LARGE_ONE_IN);
        let windows = if is_large { &LARGE_WINDOWS[..] } else { &SMALL_WINDOWS };
        let mut window = || windows[rng.usize(..windows.len())];
        let (window, later) = (window(), window());
        let scale = if is_large { 16_384 } else { window / 2 };
        let steps = rng.usize(1..=if is_large { LARGE_STEPS_MAX } else { SMALL_STEPS_MAX });
        let steps = (0..steps).map(|_| step(&mut rng, scale as usize)).collect();
        Story { window, later, steps }
    }
}

fn one_in(rng: &mut Rng, many: u32) -> bool {
    rng.u32(..many) == 0
}

/// A random text size: usually a small fraction of `scale`, sometimes much more.
fn bytes(rng: &mut Rng, scale: usize) -> usize {
    match rng.u32(..22) {
        0..=8 => rng.usize(..scale / 32),
        9..=16 => rng.usize(scale / 32..scale / 8),
        17..=20 => rng.usize(scale / 8..scale),
        _ => rng.usize(scale..scale * 5),
    }
}

fn step(rng: &mut Rng, scale: usize) -> Step {
    let size = bytes(rng, scale);
    let pick = rng.usize(..1 << 16);
    match rng.u32(..36) {
        0..=4 => Step::Said(by(rng), size, attached(rng)),
        5..=12 => Step::Replied { bytes: size, calls: rng.usize(..4), thinks: rng.bool() },
        13..=19 => Step::Outcomes { bytes: size, attached: attached(rng), forgets: one_in(rng, 10) },
        20 => Step::Masked(pick),
        21 => Step::Dropped(pick),
        22 => Step::Replaced(pick, size),
        23 => Step::Appended(size),
        24 => Step::Pinned(pick),
        25 => Step::Unpinned(pick),
        26 => Step::Mutated { messages: rng.usize(1..4), kept: rng.usize(..4) },
        27 => Step::Goal(rng.usize(..scale / 2)),
        28 => Step::Undone,
        29 => Step::Redone(pick),
        30 => Step::ThinkingDropped,
        _ => Step::Compacted(compaction(rng, scale)),
    }
}

fn by(rng: &mut Rng) -> By {
    match rng.u32(..10) {
        0 => By::Recipe,
        1 => By::Hook,
        2 => By::Context,
        3 => By::Instructions(rng.usize(..3)),
        _ => By::Person,
    }
}

fn attached(rng: &mut Rng) -> Attached {
    match rng.u32(..9) {
        0 => Attached::Image,
        1 => Attached::Document,
        2 => Attached::File,
        _ => Attached::Nothing,
    }
}

fn compaction(rng: &mut Rng, scale: usize) -> Compaction {
    let triggers = [Trigger::Manual, Trigger::Overflow, Trigger::Threshold, Trigger::Hook, Trigger::Must];
    let keep = match rng.u32(..8) {
        0..=2 => KeptTail::Nothing,
        3..=5 => KeptTail::Ratio(0.4),
        6 => KeptTail::Messages(rng.usize(..6)),
        _ => KeptTail::From(Seq(rng.u64(..60))),
    };
    let mut compaction = Compaction {
        trigger: triggers[rng.usize(..triggers.len())],
        keep,
        summary: (!one_in(rng, 4)).then(|| bytes(rng, scale)),
        wanted: rng.bool(),
        again: one_in(rng, 4),
        service: rng.usize(..1 << 16),
        reported: None,
    };
    // Drawn from a separate generator, so that a seed that failed before this field existed still generates the same
    // conversation.
    let mut apart = Rng::with_seed(compaction.service as u64);
    compaction.reported = apart.bool().then(|| apart.u64(70..=130));
    compaction
}
