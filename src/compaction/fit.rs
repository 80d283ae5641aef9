//! What gives way, and in which order, so that the result fits and gains something. Pure.

use super::GAIN_MIN_PERCENT;
use super::ledger::{Ledger, Told};
use super::material::{Material, Request};
use super::parts::{Facts, Measure, Parts, Summary};
use super::plan::Plan;
use super::prune::{SAID_BYTES_MIN, Shorter};
use super::scene::Scene;
use crate::thread::{Content, Mask, Message, MessageId, Seq, Trigger};

/// What of a summary stays as long as anything else can give way, in bytes.
const SUMMARY_BYTES_MIN: usize = 1_000;

/// The part of a window, and of a conversation, that a summary is expected to take at most, as a divisor.
const SUMMARY_PART: u64 = 4;

/// The part by which the person's words or the ledger give way at least, as a divisor.
const STEP_PART: u64 = 8;

/// Below so many tokens the person's older words and the ledger are left out as a whole.
const SHARE_TOKENS_MIN: u64 = 64;

/// The part of the room for the person's words that goes to the ledger where neither has enough, in per cent.
const GIVEN_PERCENT: u64 = 95;

/// Something that gives way, in the order in which it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// What the person said before.
    Person,
    Ledger,
    /// The middle of the summary.
    Summary,
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
    Goal,
    /// Instructions, by whole file.
    Instructions,
    /// What is left of the summary.
    WholeSummary,
}

/// The order where the result would not fit.
const TO_FIT: [Step; 11] = [
    Step::Person,
    Step::Ledger,
    Step::Summary,
    Step::Outcomes,
    Step::Recalled,
    Step::Attached,
    Step::Request,
    Step::Kept,
    Step::Goal,
    Step::Instructions,
    Step::WholeSummary,
];

/// The order where it fits and gains too little.
fn to_gain(trigger: Trigger) -> &'static [Step] {
    match trigger {
        // Who asked for it loses no word of the request, and nothing of what they wanted kept. What is attached was
        // seen by then, and where it is most of the conversation nothing is gained but by naming it.
        Trigger::Manual => &[Step::Attached, Step::Person, Step::Ledger],
        Trigger::Hook => &[Step::Attached, Step::Person, Step::Ledger, Step::Request],
        Trigger::Threshold | Trigger::Must | Trigger::Overflow => {
            &[Step::Person, Step::Ledger, Step::Outcomes, Step::Attached, Step::Request, Step::Kept]
        }
    }
}

/// A compaction as it can be committed.
pub(super) struct Fitted {
    pub content: Parts,
    pub told: Told,
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
    pub pins: Vec<(crate::thread::Part, String)>,
    /// Whether it would fit, and gain too little.
    pub fits: bool,
}

/// The state of the search.
struct Fit<'a> {
    scene: &'a Scene<'a>,
    ledger: &'a Ledger,
    native: &'a [Content],
    summary: Summary,
    trigger: Trigger,
    cut: usize,
    through: Seq,
    kept: Shorter,
    material: Material,
    facts: Facts,
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
    ledger: &Ledger,
    plan: &Plan,
    native: &[Content],
    summary: impl Fn(&Material) -> Summary,
) -> Result<Fitted, Unfit> {
    let first = Fit::new(scene, ledger, plan, native, &summary, longest_summary(scene)).search(&summary);
    first.or_else(|_| Fit::new(scene, ledger, plan, native, &summary, 0).search(&summary))
}

/// The tokens that the longest summary is expected to take: what a model may write, and in a small window, or of
/// a short conversation, a quarter of it.
pub(super) fn longest_summary(scene: &Scene<'_>) -> u64 {
    scene.budget.summary_max.min(scene.limit / SUMMARY_PART).min(scene.before / SUMMARY_PART)
}

impl<'a> Fit<'a> {
    fn new(
        scene: &'a Scene<'a>,
        ledger: &'a Ledger,
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
        let mut measure = measure;
        let told = told_all(scene, ledger, &material, &mut measure);
        let facts = Facts { told, found: ledger.found() };
        let (trigger, through) = (plan.trigger, plan.through);
        Fit {
            scene,
            ledger,
            native,
            summary,
            trigger,
            cut,
            through,
            kept,
            material,
            facts,
            measure,
            reserve,
            after: 0,
            fits: false,
        }
    }

    fn search(mut self, make: &impl Fn(&Material) -> Summary) -> Result<Fitted, Unfit> {
        loop {
            let mut parts = Parts::of(self.scene, &self.material, &self.facts, &self.summary, &self.measure);
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
                let Fit { through, cut, facts, .. } = self;
                return Ok(Fitted { content: parts, told: facts.told, through, cut, masks, tokens_after });
            }
            return Err(Unfit { tokens_after, pins: self.material.pins, fits });
        }
    }

    /// Lets something give way; `false` where it has nothing left to give.
    fn give(&mut self, step: Step, make: &impl Fn(&Material) -> Summary) -> bool {
        let scene = self.scene;
        match step {
            Step::Person => {
                let is_said = self.measure.person > 0 && !self.material.person.is_empty();
                self.measure.person = lessened(self.measure.person, self.excess());
                is_said
            }
            Step::Ledger => {
                let is_told = !self.facts.told.text.is_empty();
                if is_told {
                    let taken = scene.ruler.text(&self.facts.told.text);
                    self.measure.ledger = lessened(self.measure.ledger.min(taken), self.excess());
                    self.facts.told = told(scene, self.ledger, &self.material, self.measure.ledger);
                }
                is_told
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
                self.facts.told = told_all(scene, self.ledger, &self.material, &mut self.measure);
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
        person: scene.budget.person_max.min(material.person.iter().map(|words| words.tokens).sum()),
        ledger: scene.budget.ledger_max,
        summary: summary.text().len().max(1),
        request: usize::MAX,
        attached: if too_many_bytes { 0 } else { attached },
        goal: usize::MAX,
        without_files: 0,
    }
}

/// The ledger, at its full measure. Where it has to leave something out and the person's words do too, it gets the
/// most of their room: it quotes what matters of them.
fn told_all(scene: &Scene<'_>, ledger: &Ledger, material: &Material, measure: &mut Measure) -> Told {
    let first = told(scene, ledger, material, measure.ledger);
    let said: u64 = material.person.iter().map(|words| words.tokens).sum();
    if first.left_out.is_empty() || said <= measure.person || measure.ledger == 0 {
        return first;
    }
    let given = measure.person * GIVEN_PERCENT / 100;
    let more = told(scene, ledger, material, measure.ledger + given);
    let taken = scene.ruler.text(&more.text).saturating_sub(measure.ledger);
    measure.ledger += taken;
    measure.person -= taken.min(given);
    more
}

fn told(scene: &Scene<'_>, ledger: &Ledger, material: &Material, tokens_max: u64) -> Told {
    match tokens_max {
        0 => Told::default(),
        tokens_max => ledger.told(&scene.ruler, scene.thread, &material.kept, tokens_max),
    }
}

/// Less by so many tokens, but at least by an eighth, so that it comes to an end.
fn lessened(tokens: u64, by: u64) -> u64 {
    let less = tokens.saturating_sub(by.max(tokens / STEP_PART));
    if less < SHARE_TOKENS_MIN { 0 } else { less }
}
