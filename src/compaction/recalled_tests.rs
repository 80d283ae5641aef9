//! Text fetched with `recall` is kept for the turn that fetched it, as far as possible.

use super::talk::{Talk, words};
use super::*;
use epitome_thread::{Change, Seq, Trigger};
use epitome_tokens::Ruler;

/// How an outcome is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Whole,
    /// Its beginning and a hint how to read the rest.
    Cut,
    Gone,
}
use Shown::{Cut, Gone, Whole};

/// Makes the decided compaction, keeping the newest two fifths of the window.
fn compact(talk: &mut Talk, window: u64, trigger: Trigger) {
    match talk.decide(window, trigger, Keep::Ratio(0.4)) {
        Decision::Prune(masks) => {
            let change = pruned(&Ruler::of(None), &talk.0, masks, trigger);
            talk.add(change);
        }
        Decision::Summarise(plan) => {
            let change = talk.made(window, &plan, Some("So far.")).expect("it gains something");
            talk.add(change);
        }
        Decision::Nothing(why) => panic!("{why}"),
    }
}

fn shown(talk: &Talk, outcome: Seq) -> Shown {
    let entry = talk.0.view().entries().iter().find(|entry| entry.seq == outcome);
    let Some(entry) = entry else { return Gone };
    if *entry == talk.0.entries()[outcome.0 as usize] {
        return Whole;
    }
    let Change::ToolFinished { outcome: cut } = &entry.change else { panic!("{}", entry.change.kind()) };
    let text = cut.model_text();
    assert!(text.contains(&format!("`recall` with entry {outcome} reads all of it")), "{text}");
    Cut
}

/// A name; the tokens of older text and of the recalled outcome; whether that turn has ended; the tokens of
/// later outcomes of other tools; the window in tokens and the trigger; how the recalled outcome and the
/// first other one are shown afterwards.
type Case = (&'static str, usize, usize, bool, &'static [usize], u64, Trigger, Shown, Shown);

/// Regression: a model that fetched text back and continued past the threshold had that text cut first, and
/// fetched it again until the rounds of the turn were used up.
#[test]
fn recalled_outcomes_of_the_running_turn_are_dropped_last() {
    let cases: [Case; 8] = [
        ("old words go", 4_000, 600, false, &[1_500, 1_500], 10_000, Trigger::Threshold, Whole, Cut),
        ("it is the newest", 8_000, 600, false, &[], 10_000, Trigger::Threshold, Whole, Whole),
        ("an earlier turn did", 4_000, 600, true, &[1_500, 2_500], 10_000, Trigger::Threshold, Gone, Gone),
        ("others do", 10, 600, false, &[2_000, 2_000, 2_000], 8_000, Trigger::Must, Whole, Cut),
        (
            "others do, there is time",
            10,
            6_000,
            false,
            &[40_000, 9_000, 30_000],
            100_000,
            Trigger::Threshold,
            Whole,
            Cut,
        ),
        (
            "the provider says so",
            10,
            600,
            false,
            &[2_000, 2_000, 2_000],
            8_000,
            Trigger::Overflow,
            Whole,
            Cut,
        ),
        ("the current round gives way first", 10, 2_000, false, &[9_000], 8_000, Trigger::Must, Whole, Cut),
        ("it is too long itself", 10, 20_000, false, &[600, 600], 8_192, Trigger::Must, Cut, Cut),
    ];
    for (story, before, recalled, has_ended, others, window, trigger, wanted, first) in cases {
        let mut talk = Talk::new();
        talk.says("go");
        talk.replies(words(before));
        talk.says("what was it? then look");
        let recalled = talk.calls("recall", words(recalled));
        if has_ended {
            talk.replies("It was that.");
            talk.ends_turn();
            talk.says("look");
        }
        let others: Vec<Seq> = others.iter().map(|tokens| talk.calls("bash", words(*tokens))).collect();
        compact(&mut talk, window, trigger);
        assert_eq!(shown(&talk, recalled), wanted, "{story}: {:?}", talk.shown());
        let first_shown = others.first().map_or(Whole, |other| shown(&talk, *other));
        assert_eq!(first_shown, first, "{story}: {:?}", talk.shown());
    }
}

#[test]
fn pruning_for_cost_skips_recalled_outcomes_of_the_running_turn() {
    let mut talk = Talk::new();
    talk.says("go");
    let recalled = talk.calls("recall", words(20_000));
    let other = talk.calls("bash", words(60_000));
    talk.goes_on();
    let cut = due(&Ruler::of(None), &talk.0, &super::talk::budget(1_000_000)).expect("it pays");
    assert_eq!(cut.iter().map(|mask| mask.entry).collect::<Vec<_>>(), [other]);
    talk.ends_turn();
    let cut = due(&Ruler::of(None), &talk.0, &super::talk::budget(1_000_000)).expect("it pays");
    assert_eq!(cut.iter().map(|mask| mask.entry).collect::<Vec<_>>(), [recalled, other]);
}
