//! What gives way, and in which order, so that the result fits and gains something. Pure.

use super::GAIN_MIN_PERCENT;
use super::carryover::{CarriedText, Carryover};
use super::material::{Material, Request};
use super::parts::{Measure, Parts, Summary};
use super::plan::Plan;
use super::prune::{SAID_BYTES_MIN, Shorter};
use super::scene::Scene;
use epitome_thread::{Content, Mask, Message, MessageId, Seq, Trigger};

/// What of a summary stays as long as anything else can give way, in bytes.
const SUMMARY_BYTES_MIN: usize = 1_000;

/// The part of a window, and of a conversation, that a summary is expected to take at most, as a divisor.
const SUMMARY_PART: u64 = 4;

/// The part by which the user's words or the tables are shortened at least, as a divisor.
const STEP_PART: u64 = 8;

/// Below so many tokens the user's older words and the tables are left out as a whole.
const SHARE_TOKENS_MIN: u64 = 64;

/// Something that can be made shorter or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The tables computed from the log.
    Carried,
    /// The middle of the summary.
    Summary,
    /// The middle of long pastes in what the user said.
    Pastes,
    /// Outcomes in the part that stays.
    Outcomes,
    /// What the running turn recalled.
    Recalled,
    /// What is attached to the last request, the heaviest first: it stays named.
    Attached,
    /// The middle of the last request, and of what was said in the part that stays.
    Request,
    /// The part that stays.
    Kept,
    /// What is left of the summary.
    WholeSummary,
    /// What the user said before, the oldest first, down to the share that it is guaranteed.
    User,
    Goal,
    /// Instructions, by whole file.
    Instructions,
    /// The rest of what the user said before.
    AllOfUser,
}

/// The order where the result would not fit. The user's words come after everything that was computed or that the
/// log can give back.
const TO_FIT: [Step; 13] = [
    Step::Carried,
    Step::Summary,
    Step::Pastes,
    Step::Outcomes,
    Step::Recalled,
    Step::Attached,
    Step::Request,
    Step::Kept,
    Step::WholeSummary,
    Step::User,
    Step::Goal,
    Step::Instructions,
    Step::AllOfUser,
];

/// The order where it fits and gains too little.
fn to_gain(trigger: Trigger) -> &'static [Step] {
    match trigger {
        // Who asked for it loses no word of the request, and nothing of what they wanted kept. What is attached was
        // seen by then, and where it is most of the conversation nothing is gained but by naming it.
        Trigger::Manual => &[Step::Attached, Step::Carried, Step::Pastes],
        Trigger::Hook => &[Step::Attached, Step::Carried, Step::Pastes, Step::Request],
        Trigger::Threshold | Trigger::Must | Trigger::Overflow => &[
            Step::Carried,
            Step::Outcomes,
            Step::Attached,
            Step::Pastes,
            Step::Request,
            Step::Kept,
            Step::User,
            Step::AllOfUser,
        ],
    }
}

/// A compaction as it can be committed.
pub(super) struct Fitted {
    pub content: Parts,
    pub carried: CarriedText,
    pub through: Seq,
    pub cut: usize,
    pub masks: Vec<Mask>,
    pub tokens_after: u64,
}

/// Why there is none.
pub(super) struct Unfit {
    /// What the smallest one would take.
    pub tokens_after: u64,
    /// Of that, what is pinned.
    pub pins: Vec<(epitome_thread::Part, String)>,
    /// Whether it would fit, and gain too little.
    pub fits: bool,
}

/// The state of the search.
struct Fit<'a> {
    scene: &'a Scene<'a>,
    native: &'a [Content],
    summary: Summary,
    trigger: Trigger,
    cut: usize,
    through: Seq,
    kept: Shorter,
    material: Material,
    carryover: Carryover<'a>,
    carried: CarriedText,
    measure: Measure,
    /// What the summary counts for at least, so that the rest is the same whatever a model writes.
    reserve: u64,
    /// What the result takes as it is now.
    after: u64,
    /// Whether that fits.
    fits: bool,
}

/// The one message and what stays behind it, so that both fit and are smaller than the view by a tenth.
///
/// Whatever summary a model writes, the rest is the same as long as there is room for the longest: it is made as
/// if there were that one. Only where this leaves no way it is made for the summary that there is.
pub(super) fn fitted(
    scene: &Scene<'_>,
    plan: &Plan,
    native: &[Content],
    summary: impl Fn(&Material) -> Summary,
) -> Result<Fitted, Unfit> {
    let first = Fit::new(scene, plan, native, &summary, longest_summary(scene)).search(&summary);
    first.or_else(|_| Fit::new(scene, plan, native, &summary, 0).search(&summary))
}

/// The tokens that the longest summary is expected to take: what a model may write, and in a small window, or of
/// a short conversation, a quarter of it.
pub(super) fn longest_summary(scene: &Scene<'_>) -> u64 {
    scene.budget.summary_max.min(scene.limit / SUMMARY_PART).min(scene.before / SUMMARY_PART)
}

impl<'a> Fit<'a> {
    fn new(
        scene: &'a Scene<'a>,
        plan: &Plan,
        native: &'a [Content],
        summary: &impl Fn(&Material) -> Summary,
        reserve: u64,
    ) -> Fit<'a> {
        let cut = scene.cut(plan.through);
        let material = Material::of(scene, cut);
        let mut kept = Shorter::of(scene, cut);
        kept.take(scene, cut, &plan.masks);
        // One that is carried on where none is written makes no more difference to the rest than a new one.
        let earlier = material.earlier.as_ref().map(|text| Summary::Earlier(text.clone()).part(usize::MAX));
        let reserve = match earlier {
            Some(earlier) if reserve > 0 => reserve.max(scene.ruler.text(&earlier)),
            Some(_) | None => reserve,
        };
        let summary = summary(&material);
        let measure = whole(scene, &material, &summary, plan.trigger);
        let carryover = Carryover::of(scene, &material.kept);
        let carried = carryover.within(&scene.ruler, measure.carried);
        let (trigger, through) = (plan.trigger, plan.through);
        Fit {
            scene,
            native,
            summary,
            trigger,
            cut,
            through,
            kept,
            material,
            carryover,
            carried,
            measure,
            reserve,
            after: 0,
            fits: false,
        }
    }

    fn search(mut self, make: &impl Fn(&Material) -> Summary) -> Result<Fitted, Unfit> {
        loop {
            let mut parts =
                Parts::of(self.scene, &self.material, &self.carried, &self.summary, &self.measure);
            parts.content.splice(..0, self.native.iter().cloned());
            let mut message = Message { id: MessageId(0), content: parts.content.clone() };
            let tokens_after = self.scene.ruler.message(&message) + self.kept.tokens;
            // Counted without it and not subtracted, which may be one token more or less from summary to summary.
            message.content.remove(self.native.len());
            self.after =
                tokens_after.max(self.scene.ruler.message(&message) + self.kept.tokens + self.reserve);
            self.fits = self.after <= self.scene.limit;
            let fits = self.fits;
            let before = self.scene.before;
            let is_smaller = self.after < before;
            let enough = match self.trigger {
                Trigger::Must => self.after < before,
                Trigger::Manual | Trigger::Hook | Trigger::Threshold | Trigger::Overflow => {
                    self.after * 100 <= before * (100 - GAIN_MIN_PERCENT)
                }
            };
            let steps: &[Step] = if fits { to_gain(self.trigger) } else { &TO_FIT };
            let is_done = fits && enough;
            if !is_done && steps.iter().any(|step| self.give(*step, make)) {
                continue;
            }
            // Where the provider refused the view, any that is smaller is worth a try.
            if is_done || fits && is_smaller && self.trigger == Trigger::Overflow {
                let masks = self.kept.masks();
                let Fit { through, cut, carried, .. } = self;
                return Ok(Fitted { content: parts, carried, through, cut, masks, tokens_after });
            }
            return Err(Unfit { tokens_after, pins: self.material.pins, fits });
        }
    }

    /// Lets something give way; `false` where it has nothing left to give.
    fn give(&mut self, step: Step, make: &impl Fn(&Material) -> Summary) -> bool {
        let scene = self.scene;
        match step {
            Step::Carried => {
                let is_there = !self.carried.text.is_empty();
                if is_there {
                    let taken = scene.ruler.text(&self.carried.text);
                    self.measure.carried = lessened(self.measure.carried.min(taken), self.excess());
                    self.carried = self.carryover.within(&scene.ruler, self.measure.carried);
                }
                is_there
            }
            Step::Pastes => {
                let is_cut = self.material.cut_pastes(scene);
                self.measure.user = self.measure.user.min(self.material.user_tokens());
                is_cut
            }
            Step::User => {
                let guaranteed = scene.budget.user_min.min(self.material.user_tokens());
                let is_more = self.measure.user > guaranteed;
                if is_more {
                    self.measure.user = lessened(self.measure.user, self.excess()).max(guaranteed);
                }
                is_more
            }
            Step::AllOfUser => {
                let is_there = self.measure.user > 0;
                self.measure.user = lessened(self.measure.user, self.excess());
                is_there
            }
            Step::Summary => {
                let bytes = self.measure.summary.min(self.summary.text().len());
                let is_long =
                    bytes > SUMMARY_BYTES_MIN && scene.ruler.text(&self.summary.part(bytes)) > self.reserve;
                if is_long {
                    self.measure.summary = (bytes / 2).max(SUMMARY_BYTES_MIN);
                }
                is_long
            }
            Step::Outcomes => {
                let before = self.kept.tokens;
                let tokens_max = self.room_for_kept();
                self.kept.outcomes(scene, self.cut, tokens_max);
                self.kept.tokens < before
            }
            Step::Recalled => {
                let before = self.kept.tokens;
                let tokens_max = self.room_for_kept();
                self.kept.recalled(scene, self.cut, tokens_max);
                self.kept.tokens < before
            }
            Step::Attached => {
                let is_there = self.measure.attached > 0;
                self.measure.attached /= 2;
                is_there
            }
            Step::Request => {
                let request = self.material.request.as_ref();
                let text = request.map_or(0, |request| request.with(self.measure.attached).0.len());
                let bytes = self.measure.request.min(text);
                if bytes > SAID_BYTES_MIN {
                    self.measure.request = (bytes / 2).max(SAID_BYTES_MIN);
                    return true;
                }
                let before = self.kept.tokens;
                let tokens_max = self.room_for_kept();
                self.kept.messages(scene, self.cut, tokens_max);
                self.kept.tokens < before
            }
            Step::Kept => {
                let end = scene.entries().len();
                // What was just recalled is given up for room, and not for a gain.
                let is_held = self.fits && scene.recalled.range(self.cut..).next().is_some();
                if self.cut == end || is_held {
                    return false;
                }
                // There is room again for what gave way to it.
                self.cut = end;
                self.through = scene.thread.through(end);
                self.kept = Shorter::of(scene, end);
                self.material = Material::of(scene, end);
                self.summary = make(&self.material);
                self.measure = whole(scene, &self.material, &self.summary, self.trigger);
                self.carryover = Carryover::of(scene, &self.material.kept);
                self.carried = self.carryover.within(&scene.ruler, self.measure.carried);
                true
            }
            Step::Goal => {
                let bytes = self.measure.goal.min(self.material.goal.as_ref().map_or(0, String::len));
                if bytes > SAID_BYTES_MIN {
                    self.measure.goal = (bytes / 2).max(SAID_BYTES_MIN);
                }
                bytes > SAID_BYTES_MIN
            }
            Step::Instructions => {
                let is_told = self.measure.without_files < self.material.instructions.len();
                self.measure.without_files += usize::from(is_told);
                is_told
            }
            Step::WholeSummary => {
                let is_there = self.measure.summary > 0 && !self.summary.text().is_empty();
                self.measure.summary = 0;
                is_there
            }
        }
    }

    /// What the part that stays may take beside the message as it is now.
    fn room_for_kept(&self) -> u64 {
        let message = self.after.saturating_sub(self.kept.tokens);
        self.wanted().saturating_sub(message)
    }

    /// By how much the result is larger than it should be.
    fn excess(&self) -> u64 {
        self.after.saturating_sub(self.wanted())
    }

    /// What the result may take so that it fits and gains enough.
    fn wanted(&self) -> u64 {
        let gaining = match self.trigger {
            Trigger::Must => self.scene.before.saturating_sub(1),
            Trigger::Manual | Trigger::Hook | Trigger::Threshold | Trigger::Overflow => {
                self.scene.before * (100 - GAIN_MIN_PERCENT) / 100
            }
        };
        self.scene.limit.min(gaining)
    }
}

/// Everything, as far as it has a share.
fn whole(scene: &Scene<'_>, material: &Material, summary: &Summary, trigger: Trigger) -> Measure {
    let attached = material.request.as_ref().map_or(0, Request::attached);
    // What is refused as too large although it fits by tokens is so by its bytes.
    let too_many_bytes = trigger == Trigger::Overflow && scene.before <= scene.limit / 2;
    Measure {
        user: material.user_tokens(),
        carried: scene.budget.carried_max,
        summary: summary.text().len().max(1),
        request: usize::MAX,
        attached: if too_many_bytes { 0 } else { attached },
        goal: usize::MAX,
        without_files: 0,
    }
}

/// Less by so many tokens, but at least by an eighth, so that it comes to an end.
fn lessened(tokens: u64, by: u64) -> u64 {
    let less = tokens.saturating_sub(by.max(tokens / STEP_PART));
    if less < SHARE_TOKENS_MIN { 0 } else { less }
}
