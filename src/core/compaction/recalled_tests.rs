//! Text fetched with `recall` is kept for the turn that fetched it, if possible.

use super::tests::conversation::{TestConversation, words};
use super::*;
use epitome_thread::{Change, Seq, Trigger};
use epitome_tokens::Ruler;

/// How an outcome is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShownAs {
    Whole,
    /// Its beginning and a hint how to read the rest.
    Cut,
    Gone,
}
use ShownAs::{Cut, Gone, Whole};

/// Makes the decided compaction, keeping the newest two fifths of the window.
fn compact(conversation: &mut TestConversation, window: u64, trigger: Trigger) {
    match conversation.decide(window, trigger, KeptTail::Ratio(0.4)) {
        CompactionDecision::Prune(masks) => {
            let change = pruned(&Ruler::for_model(None), &conversation.0, masks, trigger);
            conversation.add(change);
        }
        CompactionDecision::Summarise(plan) => {
            let change = conversation.made(window, &plan, Some("So far.")).expect("it gains something");
            conversation.add(change);
        }
        CompactionDecision::Nothing(why) => panic!("{why}"),
    }
}

fn shown(conversation: &TestConversation, outcome: Seq) -> ShownAs {
    let entry = conversation.0.view().entries().iter().find(|entry| entry.seq == outcome);
    let Some(entry) = entry else { return Gone };
    if *entry == conversation.0.entries()[outcome.0 as usize] {
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
type RecallCase = (&'static str, usize, usize, bool, &'static [usize], u64, Trigger, ShownAs, ShownAs);

/// Regression: a model fetched text back and continued past the threshold. That text was cut first, and the model
/// fetched it again until the rounds of the turn were used up.
#[test]
fn recalled_outcomes_of_the_running_turn_are_dropped_last() {
    let cases: [RecallCase; 8] = [
        ("old words go", 4_000, 600, false, &[2_500, 1_700], 10_000, Trigger::Threshold, Whole, Cut),
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
        let mut conversation = TestConversation::new();
        conversation.add_prompt("go");
        conversation.replies(words(before));
        conversation.add_prompt("what was it? then look");
        let recalled = conversation.calls("recall", words(recalled));
        if has_ended {
            conversation.replies("It was that.");
            conversation.ends_turn();
            conversation.add_prompt("look");
        }
        let others: Vec<Seq> =
            others.iter().map(|tokens| conversation.calls("bash", words(*tokens))).collect();
        compact(&mut conversation, window, trigger);
        assert_eq!(shown(&conversation, recalled), wanted, "{story}: {:?}", conversation.shown());
        let first_shown = others.first().map_or(Whole, |other| shown(&conversation, *other));
        assert_eq!(first_shown, first, "{story}: {:?}", conversation.shown());
    }
}

#[test]
fn pruning_for_cost_skips_recalled_outcomes_of_the_running_turn() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("go");
    let recalled = conversation.calls("recall", words(20_000));
    let other = conversation.calls("bash", words(60_000));
    conversation.add_later_messages();
    let cut = due(&Ruler::for_model(None), &conversation.0, &super::tests::conversation::budget(1_000_000))
        .expect("it pays");
    assert_eq!(cut.iter().map(|mask| mask.entry).collect::<Vec<_>>(), [other]);
    conversation.ends_turn();
    let cut = due(&Ruler::for_model(None), &conversation.0, &super::tests::conversation::budget(1_000_000))
        .expect("it pays");
    assert_eq!(cut.iter().map(|mask| mask.entry).collect::<Vec<_>>(), [recalled, other]);
}
