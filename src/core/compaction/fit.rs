//! Drops and shortens parts of a compaction, in a fixed order, until the result fits and gains enough. Pure.

use super::carryover::Carryover;
use super::input::{CompactionInput, SummaryReader};
use super::material::{LONG_PASTE_CHARS, LastRequest, Material};
use super::parts::{CompactionMessage, Composition, Summary, SummaryPart};
use super::plan::CompactionPlan;
use super::prune::{PruneCuts, SAID_BYTES_MIN};
use super::refusal::{CompactionRefusal, why_not};
use super::{GAIN_MIN_PERCENT, LEFT_PERCENT_MAX};
use epitome_thread::{Content, EarlierWords, Mask, Message, MessageId, Seq, Trigger};

/// Bytes of a summary that are kept as long as something else can be shortened.
const SUMMARY_BYTES_MIN: usize = 1_000;

/// Divisor: the largest expected share of the window, and of the conversation, for a summary.
const SUMMARY_PART: u64 = 4;

/// The parts that are shortened to make that room, in this order: the excess of a summary over its expected size,
/// pastes, then the user's oldest words down to their guaranteed share. Everything else is bounded anyway.
const TO_MAKE_ROOM: [ShrinkablePart; 3] =
    [ShrinkablePart::Summary, ShrinkablePart::Pastes, ShrinkablePart::User];

/// Divisor: the minimum share by which the user's words or the tables are shortened in a step. On 65 recorded sessions, a
/// quarter and a sixteenth change seven messages of half the size, and keep no more.
const STEP_PART: u64 = 8;

/// Divisor: the share of the tables that goes after the user's words beyond their own share. Two sessions with long prompts had
/// neither plan nor files, failures or last calls in their messages.
const CARRIED_PART: u64 = 8;

/// A part that can be shortened or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShrinkablePart {
    /// The tables computed from the log, down to their guaranteed share.
    Carried,
    /// The rest of the tables.
    AllCarried,
    /// The middle of the summary.
    Summary,
    /// The middle of long pastes in the user's messages, of which more is kept than of others.
    LongPastes,
    /// The middle of shorter ones, and more of the long ones.
    Pastes,
    /// Outcomes in the kept part.
    Outcomes,
    /// Outcomes that the running turn recalled.
    Recalled,
    /// Attachments of the last request, the heaviest first. The text still names them.
    Attached,
    /// The middle of the last request, and of messages in the kept part.
    Request,
    /// The kept part.
    Kept,
    /// The rest of the summary, and its native form from an earlier compaction.
    WholeSummary,
    /// The additions of hooks to the summary.
    Context,
    /// The user's earlier messages, oldest first, down to their guaranteed share.
    User,
    Goal,
    /// Instruction files, one at a time.
    Instructions,
    /// The rest of the user's earlier messages.
    AllOfUser,
}

/// The order if the result does not fit. Long pastes come first: at half the size, the tables keep more of what is needed next
/// than the middle of a log does. The guaranteed share of the user's messages comes after everything that was
/// computed or can be read from the log again. Messages beyond that share come before the current round: a model that
/// never sees the outcomes of its calls repeats them without end.
const TO_FIT: [ShrinkablePart; 16] = [
    ShrinkablePart::LongPastes,
    ShrinkablePart::Carried,
    ShrinkablePart::Summary,
    ShrinkablePart::Pastes,
    ShrinkablePart::Outcomes,
    ShrinkablePart::Recalled,
    ShrinkablePart::User,
    ShrinkablePart::AllCarried,
    ShrinkablePart::Attached,
    ShrinkablePart::Request,
    ShrinkablePart::Kept,
    ShrinkablePart::WholeSummary,
    ShrinkablePart::Context,
    ShrinkablePart::Goal,
    ShrinkablePart::Instructions,
    ShrinkablePart::AllOfUser,
];

/// The order if the result fits but gains too little. The excess of a summary over its expected size goes first: the
/// other parts were chosen for that size.
fn to_gain(trigger: Trigger) -> &'static [ShrinkablePart] {
    const REQUESTED: [ShrinkablePart; 5] = [
        ShrinkablePart::Summary,
        ShrinkablePart::Attached,
        ShrinkablePart::Context,
        ShrinkablePart::Pastes,
        ShrinkablePart::Request,
    ];
    match trigger {
        // A requested compaction keeps the request and the part to keep intact. Attachments have been seen by then,
        // and if they make up most of the conversation, only dropping them gains anything.
        Trigger::Manual => &REQUESTED[..4],
        Trigger::Hook => &REQUESTED,
        Trigger::Threshold | Trigger::Must | Trigger::Overflow => &[
            ShrinkablePart::Summary,
            ShrinkablePart::Carried,
            ShrinkablePart::Outcomes,
            ShrinkablePart::Attached,
            ShrinkablePart::Context,
            ShrinkablePart::Pastes,
            ShrinkablePart::User,
            ShrinkablePart::AllCarried,
            ShrinkablePart::Request,
            ShrinkablePart::Kept,
            ShrinkablePart::AllOfUser,
        ],
    }
}

/// A compaction that is ready to be committed.
pub(super) struct FittedCompaction {
    pub message: CompactionMessage,
    /// Earlier messages of the user, for which there could be no room.
    pub left_out_earlier: Option<EarlierWords>,
    pub through: Seq,
    pub cut: usize,
    pub masks: Vec<Mask>,
    pub tokens_after: u64,
}

impl Summary {
    /// The native form to begin with. That of an earlier summary may be all that is left of what it covers, so it is
    /// carried over unless the model that can read it has written a new summary.
    fn native(&self, material: &Material) -> Vec<Content> {
        let is_read = |part: &Content| match (part, &self.by) {
            (Content::Thinking { native: Some(native), .. }, Some((writer, _))) => {
                writer.0 == format!("{}/{}", native.provider, native.model)
            }
            _ => false,
        };
        match self.native.is_empty() {
            true => material.native.iter().filter(|part| !is_read(part)).cloned().collect(),
            false => self.native.clone(),
        }
    }

    /// The additions of hooks to the summary, as one text.
    fn added(&self) -> Option<String> {
        let added = self.context.iter().map(|(by, words)| format!("Kept for {by}:\n{words}"));
        (!self.context.is_empty()).then(|| added.collect::<Vec<_>>().join("\n\n"))
    }
}

/// The state of the search.
struct FitSearch<'a> {
    input: &'a CompactionInput<'a>,
    given: &'a Summary,
    trigger: Trigger,
    cut: usize,
    through: Seq,
    kept: PruneCuts,
    parts: Composition<'a>,
    carryover: Carryover<'a>,
    /// Tokens of the tables.
    carried_max: u64,
    /// Minimum size assumed for the summary, so that the other parts do not depend on the model's text.
    reserve: u64,
    /// Whether it must be smaller than the view.
    must_gain: bool,
    /// The current size of the result.
    after: u64,
    /// Whether that fits.
    fits: bool,
}

/// Finds a message and a kept part that fit together and are smaller than the view by a tenth. A requested compaction may
/// gain less: a short conversation has nothing to gain, but what is requested is done.
///
/// The other parts are chosen as if the summary had its maximum length, so they do not depend on the model's text. Only
/// if nothing fits that way, the actual summary is used.
pub(super) fn fitted(
    input: &CompactionInput<'_>,
    plan: &CompactionPlan,
    given: &Summary,
) -> Result<FittedCompaction, CompactionRefusal> {
    let search = |must_gain| {
        let within = |reserve| {
            FitSearch::new(input, given, (plan.trigger, must_gain), plan.through, &plan.masks, reserve)
                .search()
        };
        within(longest_summary(input)).or_else(|_| within(0))
    };
    if *input.reader != SummaryReader::Session {
        return search(false);
    }
    // If leaving parts out gains too little, the compaction keeps all that fit.
    search(true).or_else(|why| match plan.trigger.is_automatic() {
        false => search(false),
        true => Err(why),
    })
}

/// The expected size of the longest summary, in tokens: the model's limit, but at most a quarter of the room and of the
/// conversation.
pub(super) fn longest_summary(input: &CompactionInput<'_>) -> u64 {
    input.budget.summary_max.min(input.limit / SUMMARY_PART).min(input.before / SUMMARY_PART)
}

impl<'a> FitSearch<'a> {
    fn new(
        input: &'a CompactionInput<'a>,
        given: &'a Summary,
        (trigger, must_gain): (Trigger, bool),
        through: Seq,
        masks: &[Mask],
        reserve: u64,
    ) -> FitSearch<'a> {
        let cut = input.cut(through);
        let mut material = Material::collect(input, cut);
        if given.is_reply {
            material.request = material.request.map(LastRequest::into_typed);
        }
        let summary = SummaryPart::new(given.text.as_deref(), material.earlier.as_deref());
        material.add_words_left_by_hooks(input, &summary.text);
        let mut kept = PruneCuts::new(input, cut);
        kept.take(input, cut, masks);
        // A reused earlier summary must not affect the other parts more than a new one does. That of another program
        // or a hook may be of any size; then its middle is cut.
        let earlier = material.earlier.as_deref().filter(|_| reserve > 0).map_or(0, |text| {
            let part = SummaryPart::new(None, Some(text)).part(usize::MAX);
            input.ruler.text(&part).min(input.limit / SUMMARY_PART)
        });
        let carryover = Carryover::compute(input, &material.kept);
        let carried_max = input.carried_max();
        // If the provider refuses a view that fits in tokens, it has too many bytes. Another agent gets the text alone.
        let is_text = trigger == Trigger::Overflow && input.before <= input.limit / 2
            || *input.reader != SummaryReader::Session;
        let attached = material.request.as_ref().filter(|_| !is_text).map_or(0, LastRequest::attached);
        let parts = Composition {
            input,
            native: given.native(&material),
            summary_max: usize::MAX,
            summary,
            context: given.added(),
            carried: carryover.within(&input.ruler, carried_max),
            without_files: 0,
            goal_max: usize::MAX,
            user_max: material.user_tokens(),
            request_max: usize::MAX,
            attached,
            repeats_summary: trigger.is_automatic() || given.text.is_none(),
            material,
        };
        let reserve = reserve.max(earlier);
        let (after, fits) = (0, false);
        FitSearch {
            input,
            given,
            trigger,
            cut,
            through,
            kept,
            parts,
            carryover,
            carried_max,
            reserve,
            must_gain,
            after,
            fits,
        }
    }

    fn search(mut self) -> Result<FittedCompaction, CompactionRefusal> {
        loop {
            let made = self.parts.message();
            let mut message = Message { id: MessageId(0), content: made.content.clone(), author: None };
            let tokens_after = self.input.ruler.message(&message) + self.kept.tokens;
            // Counted without the summary instead of subtracted, since the difference could vary by a token
            // with its text.
            message.content.remove(self.parts.native.len());
            self.after =
                tokens_after.max(self.input.ruler.message(&message) + self.kept.tokens + self.reserve);
            self.fits = self.after <= self.input.limit;
            let fits = self.fits;
            let is_smaller = self.after < self.input.before;
            let target = self.target_size();
            let is_done = self.after <= target;
            let steps: &[ShrinkablePart] = if fits { to_gain(self.trigger) } else { &TO_FIT };
            if !is_done && steps.iter().any(|step| self.give(*step, target)) {
                continue;
            }
            let roomy = self.input.before * LEFT_PERCENT_MAX / 100;
            let is_cramped = self.trigger.is_automatic() && self.after > roomy;
            if is_cramped && TO_MAKE_ROOM.iter().any(|step| self.give(*step, roomy)) {
                continue;
            }
            let masks = self.kept.masks();
            let FitSearch { through, cut, .. } = self;
            // The provider refused the view, so any smaller one is worth an attempt.
            if is_done || fits && is_smaller && self.trigger == Trigger::Overflow {
                let left_out_earlier = self.parts.material.beyond;
                return Ok(FittedCompaction {
                    message: made,
                    left_out_earlier,
                    through,
                    cut,
                    masks,
                    tokens_after,
                });
            }
            return Err(why_not(self.input, tokens_after, &self.parts.material.pins, fits));
        }
    }

    /// Shortens a part by one step, by what the result exceeds `target` if that is possible; `false` if it has nothing left
    /// to give.
    fn give(&mut self, step: ShrinkablePart, target: u64) -> bool {
        let input = self.input;
        let excess = self.after.saturating_sub(target);
        let parts = &mut self.parts;
        match step {
            ShrinkablePart::Carried | ShrinkablePart::AllCarried => {
                let is_all = step == ShrinkablePart::AllCarried;
                let guaranteed = if is_all { 0 } else { input.carried_max() / CARRIED_PART };
                let taken = input.ruler.text(&parts.carried);
                let is_more = taken > guaranteed;
                if is_more {
                    self.carried_max = lessened(self.carried_max.min(taken), excess).max(guaranteed);
                    parts.carried = self.carryover.within(&input.ruler, self.carried_max);
                }
                is_more
            }
            ShrinkablePart::LongPastes | ShrinkablePart::Pastes => {
                let chars_min = if step == ShrinkablePart::LongPastes { LONG_PASTE_CHARS } else { 0 };
                let is_cut = parts.material.cut_pastes(input, excess.max(1), chars_min);
                parts.user_max = parts.user_max.min(parts.material.user_tokens());
                is_cut
            }
            ShrinkablePart::User => {
                let guaranteed = input.budget.user_min.min(parts.material.user_tokens());
                let is_more = parts.user_max > guaranteed;
                if is_more {
                    parts.user_max = lessened(parts.user_max, excess).max(guaranteed);
                }
                is_more
            }
            ShrinkablePart::AllOfUser => {
                let is_there = parts.user_max > 0;
                parts.user_max = lessened(parts.user_max, excess);
                is_there
            }
            ShrinkablePart::Summary => {
                let bytes = parts.summary_max.min(parts.summary.text.len());
                let tokens = input.ruler.text(&parts.summary.part(bytes));
                // For a gain, only what exceeds the expected size is cut, so not in a search without one.
                let is_long =
                    bytes > SUMMARY_BYTES_MIN && tokens > self.reserve && (self.reserve > 0 || !self.fits);
                if is_long {
                    let size = bytes as u128 * u128::from(self.reserve) / u128::from(tokens.max(1));
                    let wanted = usize::try_from(size).unwrap_or(bytes) * 95 / 100;
                    let wanted = if self.reserve > 0 { wanted } else { bytes / 2 };
                    parts.summary_max = wanted.max(SUMMARY_BYTES_MIN);
                }
                is_long
            }
            ShrinkablePart::Outcomes => self.cut_kept(target, PruneCuts::outcomes),
            ShrinkablePart::Recalled => self.cut_kept(target, PruneCuts::recalled),
            ShrinkablePart::Attached => {
                let is_there = parts.attached > 0;
                parts.attached /= 2;
                is_there
            }
            ShrinkablePart::Request => {
                let request = parts.material.request.as_ref();
                let text = request.map_or(0, |request| request.with(parts.attached).0.len());
                halve(&mut parts.request_max, text) || self.cut_kept(target, PruneCuts::messages)
            }
            ShrinkablePart::Kept => {
                // The current round and recalled outcomes are given up for room, but not for a gain: the model would repeat
                // calls whose outcomes it never sees, without end.
                let keeps_recalled = self.fits && input.recalled.range(self.cut..).next().is_some();
                let through =
                    input.thread.through(if self.fits { input.round() } else { input.entries().len() });
                let cut = input.cut(through);
                if self.cut >= cut || keeps_recalled {
                    return false;
                }
                // There is room again for the parts that were shortened for it.
                let goal = (self.trigger, self.must_gain);
                *self = FitSearch::new(input, self.given, goal, through, &[], self.reserve);
                true
            }
            ShrinkablePart::Goal => {
                halve(&mut parts.goal_max, parts.material.goal.as_ref().map_or(0, String::len))
            }
            ShrinkablePart::Instructions => {
                let is_listed = parts.without_files < parts.material.instructions.len();
                parts.without_files += usize::from(is_listed);
                is_listed
            }
            ShrinkablePart::WholeSummary => {
                let is_there = parts.summary_max > 0 && !parts.summary.text.is_empty();
                let is_carried = self.given.native.is_empty() && !parts.native.is_empty();
                parts.summary_max = 0;
                if is_carried {
                    parts.native.clear();
                }
                is_there || is_carried
            }
            ShrinkablePart::Context => parts.context.take().is_some(),
        }
    }

    /// Cuts entries of the kept part until it fits `target` next to the current message; `false` if that gave nothing.
    fn cut_kept(
        &mut self,
        target: u64,
        cut: fn(&mut PruneCuts, &CompactionInput<'_>, usize, u64) -> bool,
    ) -> bool {
        let before = self.kept.tokens;
        let tokens_max = target.saturating_sub(self.after.saturating_sub(before));
        cut(&mut self.kept, self.input, self.cut, tokens_max);
        self.kept.tokens < before
    }

    /// The size at which the result fits and gains enough.
    fn target_size(&self) -> u64 {
        let gaining = match self.trigger {
            _ if !self.must_gain => u64::MAX,
            Trigger::Must => self.input.before.saturating_sub(1),
            Trigger::Manual | Trigger::Hook | Trigger::Threshold | Trigger::Overflow => {
                self.input.before * (100 - GAIN_MIN_PERCENT) / 100
            }
        };
        self.input.limit.min(gaining)
    }
}

/// Halves the limit of a text of this many bytes; `false` if hardly anything is left of it.
fn halve(limit: &mut usize, bytes: usize) -> bool {
    let bytes = bytes.min(*limit);
    let is_long = bytes > SAID_BYTES_MIN;
    if is_long {
        *limit = (bytes / 2).max(SAID_BYTES_MIN);
    }
    is_long
}

/// Reduces by `by` tokens, but at least by an eighth, so that the search terminates.
fn lessened(tokens: u64, by: u64) -> u64 {
    tokens.saturating_sub(by.max(tokens / STEP_PART))
}
