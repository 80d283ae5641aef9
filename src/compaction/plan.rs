//! What a compaction does to a view: what goes, what is cut, what stays. Pure.

use super::GAIN_MIN_PERCENT;
use super::budget::Budget;
use super::carryover::Carryover;
use super::fit::longest_summary;
use super::material::Material;
use super::prune::{self, Shorter};
use super::scene::Scene;
use crate::thread::{Change, Mask, Seq, Thread, Trigger, View};
use crate::tokens::Ruler;

/// Why a conversation is left as it is.
pub const NO_GAIN: &str = "a summary would not be shorter than what it replaces";

/// A view below this many tokens holds nothing that a summary could shorten.
const VIEW_TOKENS_MIN: u64 = 400;

/// Below so many tokens nothing fits, not even what is said around a summary: no model need be asked for one.
const ROOM_TOKENS_MIN: u64 = 64;

/// What of the room is left to the one message however much is kept behind it, as a divisor.
const MESSAGE_PART: u64 = 4;

/// What of the newest part of the view stays as it is behind a summary. A round stays whole or goes whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Keep {
    #[default]
    Nothing,
    /// The newest so many messages, and with the first of them its whole round.
    Messages(usize),
    /// As much as fits this share of the window, from 0 to 1.
    Ratio(f64),
    /// From this entry on, and with it its whole round.
    From(Seq),
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    pub trigger: Trigger,
    pub keep: Keep,
    /// What the person wants kept above all.
    pub focus: Option<String>,
    /// A summary is wanted even where cutting old outcomes would do.
    pub summary: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Nothing, and why, in words.
    Nothing(String),
    /// Old outcomes are cut, and no model is asked.
    Prune(Vec<Mask>),
    Summarise(Plan),
}

/// What a summary takes the place of. A pure function of the log, the budget and the wish.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub trigger: Trigger,
    pub focus: Option<String>,
    /// The view that it was made for.
    pub revision: Seq,
    /// The newest entry that the summary replaces.
    pub through: Seq,
    /// What of the rest is shown shorter.
    pub masks: Vec<Mask>,
}

/// Decides what a compaction of this thread does.
///
/// One that happens by itself keeps the current round, and shows as little of it shorter as it must so that it
/// fits; only where that is not enough it gives the round up. What the running turn recalled stays with it, and
/// is cut only where the other outcomes are and that is not enough. One that a person or a hook asked for keeps what
/// they said. Where all fits into what is to be kept, all is compacted, but for a view that was compacted and
/// has nothing new: compacting that once more would gain nothing, or lose what was just kept. An entry that a
/// person named is no such measure: all from there on stays, also where nothing is left to do then.
pub fn decide(ruler: &Ruler, thread: &Thread, budget: &Budget, wish: &Wish) -> Decision {
    decided(&Scene::of(ruler, thread, budget), wish)
}

/// As `decide`, of what was weighed already.
pub fn decided(scene: &Scene<'_>, wish: &Wish) -> Decision {
    if scene.limit < ROOM_TOKENS_MIN {
        let Budget { frame, window, reserve, .. } = scene.budget;
        return Decision::Nothing(format!(
            "the system text and the tools take {frame} of the {window} tokens that the model holds and {reserve} are \
             kept for its reply, so that no conversation fits; choose a model with a larger window, or make the \
             instructions shorter and begin a new session"
        ));
    }
    let is_full = scene.before > scene.limit;
    // What the provider says is true, whatever we count.
    let is_urgent = wish.trigger == Trigger::Overflow || is_automatic(wish.trigger) && is_full;
    let has_news = scene.has_news();
    let is_done = is_automatic(wish.trigger) || keeps_no_more(scene, wish);
    if is_done && !has_news && !is_urgent {
        return Decision::Nothing(NO_GAIN.to_owned());
    }
    if !wish.summary
        && let Some(masks) = prune::enough(scene)
    {
        return Decision::Prune(masks);
    }
    let (from, masks) = kept(scene, wish);
    let end = scene.entries().len();
    let (from, masks) = if gains(scene, from, is_urgent) {
        (from, masks)
    } else if !is_urgent && (!has_news || matches!(wish.keep, Keep::From(_))) {
        return Decision::Nothing(NO_GAIN.to_owned());
    } else if is_automatic(wish.trigger)
        && scene.recalled_before_round().is_some()
        && let Some(masks) = beside_recalled(scene, is_urgent)
    {
        return Decision::Prune(masks);
    } else if is_automatic(wish.trigger) && !is_urgent && scene.recalled_before_round().is_some() {
        return Decision::Nothing(NO_GAIN.to_owned());
    } else if is_automatic(wish.trigger) && gains(scene, scene.round(), is_urgent) {
        (scene.round(), Vec::new())
    } else if let Some(masks) = in_place(scene, is_urgent) {
        return Decision::Prune(masks);
    } else if gains(scene, end, is_urgent)
        && (is_urgent || !is_automatic(wish.trigger) || scene.round() == end)
    {
        (end, Vec::new())
    } else {
        return Decision::Nothing(NO_GAIN.to_owned());
    };
    Decision::Summarise(Plan {
        trigger: wish.trigger,
        focus: wish.focus.clone(),
        revision: scene.thread.view().revision(),
        through: scene.thread.through(from),
        masks,
    })
}

/// Whether no more stays behind the message that the view begins with than the share that is to stay.
fn keeps_no_more(scene: &Scene<'_>, wish: &Wish) -> bool {
    matches!(wish.keep, Keep::Ratio(share) if scene.from(1) <= share_of(scene, share) + slack(scene))
}

/// Whether nobody asked for it.
pub(super) fn is_automatic(trigger: Trigger) -> bool {
    match trigger {
        Trigger::Threshold | Trigger::Must | Trigger::Overflow => true,
        Trigger::Manual | Trigger::Hook => false,
    }
}

/// Where in the view begins what is kept, and what of it is shown shorter.
fn kept(scene: &Scene<'_>, wish: &Wish) -> (usize, Vec<Mask>) {
    let end = scene.entries().len();
    // What is asked for stays; with a share of the window only as far as there is room beside the message.
    let (from, tail) = match wish.keep {
        Keep::Ratio(share) => {
            let from = newest_near(scene, &Tail::of(scene, share));
            (from, scene.from(from))
        }
        keep => (start(scene.thread, keep).unwrap_or(end), 0),
    };
    if !is_automatic(wish.trigger) {
        return (from, Vec::new());
    }
    // An answer that is waited for is not given up for a summary of its question.
    let from = from.min(scene.round());
    let from = scene.cut(scene.thread.through(from));
    let tokens_max = room_for_kept(scene).max(tail);
    if let Some(held) = scene.recalled_before_round().filter(|held| *held < from) {
        let mut shorter = Shorter::of(scene, held);
        // Between it and the rest stands what would have gone.
        shorter.old(scene, held..from);
        if shorter.all(scene, held, tokens_max) {
            return (held, shorter.masks());
        }
    }
    let mut shorter = Shorter::of(scene, from);
    match shorter.all(scene, from, tokens_max) {
        true => (from, shorter.masks()),
        false => (end, Vec::new()),
    }
}

/// The cuts that make the whole view fit, where that is all that can be done for it without giving up the
/// current round; `None` where they don't, and where nothing needs to be done.
fn in_place(scene: &Scene<'_>, is_urgent: bool) -> Option<Vec<Mask>> {
    let tokens_max = room_for_kept(scene);
    let mut shorter = Shorter::of(scene, 0);
    let fits = is_urgent && shorter.all(scene, 0, tokens_max);
    (fits && !shorter.cuts.is_empty()).then(|| shorter.masks())
}

/// The cuts that make room beside what the running turn recalled, where too little stands before it for a
/// summary. Where the view fits, only those of other outcomes, and only where they gain something.
fn beside_recalled(scene: &Scene<'_>, is_urgent: bool) -> Option<Vec<Mask>> {
    if is_urgent {
        return in_place(scene, is_urgent);
    }
    let gaining = scene.before * (100 - GAIN_MIN_PERCENT) / 100;
    let mut shorter = Shorter::of(scene, 0);
    let is_enough = shorter.outcomes(scene, 0, room_for_kept(scene).min(gaining));
    (is_enough && !shorter.cuts.is_empty()).then(|| shorter.masks())
}

/// What may be kept behind the one message, in tokens.
fn room_for_kept(scene: &Scene<'_>) -> u64 {
    scene.limit - scene.limit / MESSAGE_PART
}

/// How much of the newest part stays, in tokens.
struct Tail {
    /// So much, as nearly as whole rounds allow.
    wanted: u64,
    /// At most.
    max: u64,
}

impl Tail {
    /// What leaves this share of the window together with the message beside it: at least half of that, whatever the
    /// message takes, and never more than there is room for.
    fn of(scene: &Scene<'_>, share: f64) -> Tail {
        let left = by_our_count(scene, share_of(scene, share));
        let material = Material::of(scene, newest_within(scene, left));
        let tables = Carryover::of(scene, &material.kept).within(&scene.ruler, scene.budget.carried_max);
        let quoted = material.tokens(scene) + scene.ruler.text(&tables.text);
        let longest = longest_summary(scene);
        let message = quoted + longest / USUAL_SUMMARY_PART;
        let room = scene.limit.saturating_sub(quoted.min(scene.limit / 2) + longest);
        let within = |left: u64| left.saturating_sub(message).max(left / 2).min(room);
        Tail { wanted: within(left), max: within(left + slack(scene)) }
    }
}

/// This share of the window, in tokens.
fn share_of(scene: &Scene<'_>, share: f64) -> u64 {
    (scene.budget.window as f64 * share.clamp(0.0, 1.0)) as u64
}

/// What we count of a view that is shown as so many tokens. What is shown of a compaction is the provider's last count
/// less what our counts before and after it differ by, in proportion where ours is the larger (`Ruler::in_context_then`).
fn by_our_count(scene: &Scene<'_>, tokens: u64) -> u64 {
    let counted = scene.budget.frame + scene.before;
    match scene.budget.used {
        Some(used) if used >= counted => tokens.saturating_sub(used - counted).max(tokens / 2),
        Some(used) => (u128::from(tokens) * u128::from(counted) / u128::from(used.max(1))) as u64,
        None => tokens,
    }
}

/// How much more than its share of the window a compaction may leave.
fn slack(scene: &Scene<'_>) -> u64 {
    scene.budget.window * LEFT_SLACK_PERCENT / 100
}

/// What a summary takes as a rule of the longest one, as a divisor.
const USUAL_SUMMARY_PART: u64 = 4;

/// The slack in per cent of the window: used where the view would be much smaller without the oldest of the rounds that
/// stay.
const LEFT_SLACK_PERCENT: u64 = 3;

/// Whether a summary could be shorter than the view up to this place. The message of an earlier compaction is made
/// shorter for its own sake only where it does not fit any more, as behind a change to a model with a smaller window:
/// otherwise a hook that asks at each turn would pay a model each time, to lose a little more of what was kept.
fn gains(scene: &Scene<'_>, cut: usize, is_urgent: bool) -> bool {
    // What a number can't tell apart goes together.
    let cut = scene.cut(scene.thread.through(cut));
    let replaced: u64 = scene.weights[..cut].iter().sum();
    let earlier = match scene.entries().first() {
        Some(first) if cut > 0 && matches!(first.change, Change::Compacted { .. }) => scene.weights[0],
        _ => 0,
    };
    let is_new = (replaced - earlier) * 100 >= scene.before * GAIN_MIN_PERCENT;
    replaced >= VIEW_TOKENS_MIN && (is_urgent || is_new)
}

/// The newest entry that a compaction replaces which keeps so much. `window` is the model's, in tokens.
/// What an older layer has put in front of the view is never kept.
pub fn through(ruler: &Ruler, thread: &Thread, keep: Keep, window: u64) -> Seq {
    let view = thread.view();
    let from = match keep {
        Keep::Ratio(share) => {
            let tokens_max = (window as f64 * share.clamp(0.0, 1.0)) as u64;
            let weights = view.entries().iter().rev().map(|entry| ruler.entry(entry));
            newest(view, weights, tokens_max)
        }
        keep => start(thread, keep).unwrap_or(view.entries().len()),
    };
    thread.through(from)
}

/// Where in the view begins what is to be kept; `None` for a share, which is a matter of tokens.
fn start(thread: &Thread, keep: Keep) -> Option<usize> {
    let view = thread.view();
    let entries = view.entries();
    match keep {
        Keep::Nothing => Some(entries.len()),
        Keep::Messages(messages) => Some(view.newest(messages)),
        Keep::From(first) => {
            // A summary in front is newer than what is behind it.
            let own = entries.iter().position(|entry| entry.seq == first);
            let behind = |entry: &std::sync::Arc<crate::thread::Entry>| {
                entry.seq >= first && !matches!(entry.change, Change::Compacted { .. })
            };
            let mut at = own.or_else(|| entries.iter().position(behind)).unwrap_or(entries.len());
            while view.is_inside_round(at) {
                at -= 1;
            }
            Some(at)
        }
        Keep::Ratio(_) => None,
    }
}

/// Where the newest rounds begin that together take as nearly as possible what is wanted.
fn newest_near(scene: &Scene<'_>, tail: &Tail) -> usize {
    let (less, more) = (newest_within(scene, tail.wanted), newest_within(scene, tail.max));
    let is_nearer = scene.from(more).abs_diff(tail.wanted) < scene.from(less).abs_diff(tail.wanted);
    if is_nearer { more } else { less }
}

/// Where the newest rounds begin that together take at most so many tokens.
fn newest_within(scene: &Scene<'_>, tokens_max: u64) -> usize {
    newest(scene.thread.view(), scene.weights.iter().rev().copied(), tokens_max)
}

/// The same by the weights of the view's entries, newest first.
fn newest(view: &View, weights: impl Iterator<Item = u64>, tokens_max: u64) -> usize {
    let mut from = view.entries().len();
    let mut taken = 0;
    for (at, weight) in (0..from).rev().zip(weights) {
        taken += weight;
        if taken > tokens_max {
            break;
        }
        if !view.is_inside_round(at) {
            from = at;
        }
    }
    from
}

/// Whether a summary could be shorter than this view, or part of one (`View::replaced_by`).
pub fn can_shrink(ruler: &Ruler, replaced: &View) -> bool {
    let only_a_summary = matches!(
        replaced.entries(),
        [entry] if matches!(entry.change, Change::Compacted { .. })
    );
    !only_a_summary && ruler.view(replaced) >= VIEW_TOKENS_MIN
}
