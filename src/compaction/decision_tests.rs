//! What is cut, kept, quoted and given up, by example.

use super::talk::{Talk, budget, wish, words};
use super::*;
use epitome_thread::{
    CallId, Card, Change, Content, Mask, ModelName, Native, Origin, OutcomeContent, OutcomeStatus, Seq,
    ToolCall, ToolOutcome, Trigger,
};
use epitome_tokens::model_name::Family;
use epitome_tokens::{Calibration, Ruler, Tally};

fn masks(decision: Decision) -> Vec<Mask> {
    match decision {
        Decision::Prune(masks) => masks,
        other => panic!("{other:?}"),
    }
}

#[test]
fn old_outcomes_are_cut_to_their_beginning_with_a_recall_hint() {
    let mut talk = Talk::new();
    talk.says("go");
    let long = talk.calls("bash", words(4_000));
    talk.calls("bash", "short");
    let pinned = talk.calls("bash", words(300));
    talk.pins(pinned);
    let mut picture = ToolOutcome::text(CallId("p".into()), OutcomeStatus::Completed, "a picture");
    let data = "iVBORw0KGgo=".to_owned();
    picture.content.push(OutcomeContent::Image { mime_type: "image/png".into(), data });
    let call = ToolCall {
        id: CallId("p".into()),
        name: "look".into(),
        input: serde_json::json!({}),
        card: Card::default(),
    };
    let message = talk.message(vec![Content::Call(call)]);
    talk.add(Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None });
    let picture = talk.add(Change::ToolFinished { outcome: picture });
    talk.goes_on();
    talk.calls("bash", words(2_000));
    let cut = masks(talk.decide(8_192, Trigger::Threshold, Keep::Ratio(0.4)));
    assert_eq!(cut.iter().map(|mask| mask.entry).collect::<Vec<_>>(), [long, picture]);
    let head: String = words(4_000).chars().take(200).collect();
    let note =
        format!("\n[… cut to save room: 28000 bytes in all; `recall` with entry {long} reads all of it]");
    assert_eq!(cut[0].text, format!("{head}{note}"));
    assert!(cut[1].text.starts_with("a picture\n") && cut[1].text.contains("1 image or document"), "{cut:?}");
    // An outcome that is already cut is not cut again.
    let change = pruned(&Ruler::of(None), &talk.0, cut, Trigger::Threshold);
    talk.add(change);
    assert!(!matches!(talk.decide(8_192, Trigger::Threshold, Keep::Ratio(0.4)), Decision::Prune(_)));
}

#[test]
fn a_batch_for_cost_alone_must_free_much_and_pay() {
    let freed = |outcome: usize, behind: usize| {
        let mut talk = Talk::new();
        talk.says("go");
        talk.calls("bash", words(outcome));
        talk.replies(words(behind));
        talk.goes_on();
        due(&Ruler::of(None), &talk.0, &budget(1_000_000)).is_some()
    };
    assert!(!freed(20_000, 0), "30,000 tokens are not freed");
    assert!(freed(40_000, 0));
    assert!(freed(40_000, 50_000));
    assert!(!freed(40_000, 300_000), "too much would have to be written again");
}

/// Regression: conversations with little text per call lost the provider's cache in more than three of a
/// hundred calls.
#[test]
fn a_batch_for_cost_alone_waits_until_the_prefix_is_stable() {
    let mut talk = Talk::new();
    let due = |talk: &Talk| due(&Ruler::of(None), &talk.0, &budget(1_000_000));
    talk.says("go");
    talk.calls("bash", words(40_000));
    talk.goes_on();
    let cut = due(&talk).expect("the first may come at once");
    let change = pruned(&Ruler::of(None), &talk.0, cut, Trigger::Threshold);
    talk.add(change);
    // The reply with this call is the first of the 34.
    talk.calls("bash", words(40_000));
    for _ in 1..33 {
        talk.replies("on it");
    }
    assert_eq!(due(&talk), None);
    talk.replies("on it");
    assert!(due(&talk).is_some());
}

#[test]
fn pruning_is_enough_only_if_it_gets_well_below_the_threshold() {
    let decision = |outcome: usize, spoken: usize| {
        let mut talk = Talk::new();
        talk.says(words(spoken));
        talk.calls("bash", words(outcome));
        talk.goes_on();
        talk.replies("Done.");
        talk.decide(10_000, Trigger::Threshold, Keep::Ratio(0.4))
    };
    assert!(matches!(decision(4_000, 1_000), Decision::Prune(_)));
    assert!(matches!(decision(2_000, 6_500), Decision::Summarise(_)));
    assert!(matches!(decision(200, 5_000), Decision::Summarise(_)));
}

#[test]
fn the_round_that_waits_for_the_model_is_kept() {
    for trigger in [Trigger::Threshold, Trigger::Must, Trigger::Overflow] {
        let mut talk = Talk::new();
        talk.says("go");
        talk.replies(words(3_000));
        talk.says("now look");
        let outcome = talk.calls("bash", words(1_500));
        talk.compact(6_000, trigger, Keep::Nothing, Some("So far."));
        assert_eq!(talk.shown()[1..], [outcome.0 - 1, outcome.0], "{trigger:?}");
        let kept = &talk.0.view().entries()[2];
        assert_eq!(kept, &talk.0.entries()[outcome.0 as usize], "{trigger:?}");
    }
}

#[test]
fn a_round_that_does_not_fit_is_cut_before_it_is_dropped() {
    let mut talk = Talk::new();
    talk.says("go");
    let outcome = talk.calls("bash", format!("FIRST {} LAST", words(20_000)));
    let cut = masks(talk.decide(8_192, Trigger::Must, Keep::Ratio(0.4)));
    let [mask] = &cut[..] else { panic!("{cut:?}") };
    assert_eq!(mask.entry, outcome);
    assert!(mask.text.starts_with("FIRST") && mask.text.ends_with("LAST"), "{}", mask.text);
    assert!(mask.text.contains(&format!("`recall` with entry {outcome} reads all of it")), "{}", mask.text);
}

#[test]
fn a_message_larger_than_the_window_is_cut_in_its_middle() {
    let mut talk = Talk::new();
    let paste = talk.says(format!("FIRST {} LAST", words(100_000)));
    let cut = masks(talk.decide(8_192, Trigger::Overflow, Keep::Ratio(0.4)));
    assert_eq!(cut.iter().map(|mask| mask.entry).collect::<Vec<_>>(), [paste]);
    assert!(cut[0].text.starts_with("FIRST") && cut[0].text.ends_with("LAST"));
    talk.replies("Yes.");
    let text = talk.compact(8_192, Trigger::Overflow, Keep::Nothing, None);
    assert!(text.contains("<last_request>\nFIRST") && text.contains("LAST\n</last_request>"));
    assert!(Ruler::of(None).view(talk.0.view()) <= budget(8_192).room());
}

#[test]
fn a_compacted_view_without_new_entries_is_left_alone() {
    for (trigger, keep) in [(Trigger::Manual, Keep::Nothing), (Trigger::Threshold, Keep::Ratio(0.4))] {
        let mut talk = Talk::new();
        for _ in 0..10 {
            talk.says("go");
            talk.replies(words(1_000));
        }
        talk.compact(10_000, trigger, keep, Some("So far."));
        let again = talk.decide(10_000, trigger, keep);
        assert_eq!(again, Decision::Nothing(NO_GAIN.to_owned()), "{trigger:?}");
        // The user may want to compact the rest too.
        let rest = talk.decide(10_000, Trigger::Manual, Keep::Nothing);
        assert_eq!(matches!(rest, Decision::Summarise(_)), trigger == Trigger::Threshold);
    }
}

#[test]
fn keep_from_an_entry_works_after_an_earlier_compaction() {
    let mut talk = Talk::new();
    for _ in 0..4 {
        talk.says(words(200));
        talk.replies(words(1_000));
    }
    talk.compact(100_000, Trigger::Manual, Keep::From(Seq(5)), Some("One."));
    assert_eq!(talk.shown(), [9, 5, 6, 7, 8]);
    talk.compact(100_000, Trigger::Manual, Keep::From(Seq(7)), Some("Two."));
    assert_eq!(talk.shown(), [10, 7, 8]);
}

#[test]
fn all_user_messages_are_kept_with_long_pastes_cut() {
    let mut talk = Talk::new();
    talk.says(format!("OLDEST {}", words(150)));
    let middle = talk.says("never touch main.rs");
    let recipe =
        talk.says_by(words(500), Origin::Recipe { recipe: "review".into(), typed: "/review it".into() });
    let paste = talk.says(format!("PASTE {} END", "x".repeat(20_000)));
    talk.replies(words(30_000));
    let last = talk.says("the last one");
    talk.replies("Yes.");
    let text = talk.compact(100_000, Trigger::Manual, Keep::Nothing, Some("So far."));
    assert!(text.contains(&format!("<said entry=\"{middle}\">\nnever touch main.rs\n</said>")), "{text}");
    assert!(text.contains(&format!("<said entry=\"{recipe}\">\n/review it\n</said>")), "{text}");
    assert!(text.contains(&format!("`recall` with entry {paste} reads all of it")), "{text}");
    assert!(text.contains("OLDEST") && !text.contains(&format!("<said entry=\"{last}\">")), "{text}");
    let (first, second) = (text.find("OLDEST").expect("there"), text.find("never touch").expect("there"));
    assert!(first < second, "oldest first: {text}");

    // In a small window, the paste is cut further before any message is left out.
    talk.replies(words(3_000));
    let text = talk.compact(2_000, Trigger::Must, Keep::Nothing, Some("So far."));
    assert!(text.contains(&format!("<said entry=\"{paste}\">\nPASTE x")) && text.len() < 5_000, "{text}");
    assert!(text.contains(&format!("<said entry=\"{middle}\">")), "{text}");
}

#[test]
fn instructions_are_repeated_with_their_newest_text() {
    let mut talk = Talk::new();
    let file = |path: &str| Origin::Instructions { path: path.into() };
    talk.says_by("tabs", file("/w/a/AGENTS.md"));
    talk.says_by("no tabs", file("/w/b/AGENTS.md"));
    talk.says_by("spaces", file("/w/a/AGENTS.md"));
    talk.replies(words(1_000));
    for _ in 0..2 {
        let text = talk.compact(10_000, Trigger::Manual, Keep::Nothing, Some("So far."));
        assert!(text.contains("<instructions path=\"/w/a/AGENTS.md\">\nspaces\n</instructions>"), "{text}");
        assert!(text.contains("<instructions path=\"/w/b/AGENTS.md\">\nno tabs\n</instructions>"), "{text}");
        assert!(!text.contains("\ntabs\n"), "{text}");
        talk.says("go");
        talk.replies(words(1_000));
    }
}

/// Regression: two fallbacks in a row lost the contents of the summary before them.
#[test]
fn without_a_new_summary_the_earlier_one_is_reused() {
    let mut talk = Talk::new();
    talk.says("go");
    for (summary, expected) in [(Some("It began."), "It began."), (None, "It began."), (None, "It began.")] {
        talk.replies(words(1_000));
        let text = talk.compact(10_000, Trigger::Manual, Keep::Nothing, summary);
        assert!(text.contains(&format!("<summary>\n{expected}\n</summary>")), "{text}");
        assert_eq!(text.contains("of its older part"), summary.is_none(), "{text}");
    }
    talk.replies(words(1_000));
    let text = talk.compact(10_000, Trigger::Manual, Keep::Nothing, Some("It went on in src/made_up.rs."));
    assert!(text.contains("(not found in the log: src/made_up.rs)\n</summary>"), "{text}");
}

#[test]
fn attachments_of_the_last_request_are_included() {
    let picture = Content::Image { mime_type: "image/png".into(), data: "iVBORw0KGgo=".into(), uri: None };
    let ask = |before: usize, trigger: Trigger| {
        let mut talk = Talk::new();
        talk.says("go");
        talk.replies(words(before));
        let content = vec![Content::Text { text: "what is it?".into() }, picture.clone()];
        let message = talk.message(content);
        talk.add(Change::Said { message, origin: Origin::Person });
        talk.replies(words(300));
        let text = talk.compact(10_000, trigger, Keep::Nothing, None);
        let Change::Compacted { summary, .. } = &talk.0.view().entries()[0].change else { panic!("{text}") };
        (summary.content.contains(&picture), text)
    };
    let (comes_along, text) = ask(7_000, Trigger::Manual);
    assert!(comes_along && text.contains("[image that is attached: image/png]"), "{text}");
    // The provider refused the request because of the picture's bytes.
    let (comes_along, text) = ask(300, Trigger::Overflow);
    assert!(!comes_along && text.contains("[image that was attached: image/png]"), "{text}");
}

#[test]
fn a_preview_shows_the_fate_of_each_entry_and_the_carried_text() {
    let mut talk = Talk::new();
    talk.says("go");
    talk.replies(words(3_000));
    let asked = talk.says("look");
    talk.replies("Yes.");
    let see =
        |talk: &Talk, keep| preview(&Ruler::of(None), &talk.0, &budget(10_000), &wish(Trigger::Manual, keep));
    let shown = see(&talk, Keep::Messages(1));
    let fates: Vec<Fate> = shown.lines.iter().map(|line| line.fate).collect();
    assert_eq!(fates, [Fate::Quoted, Fate::Summarised, Fate::Quoted, Fate::Kept]);
    assert!(shown.carried.contains("<last_request>\nlook\n"), "{}", shown.carried);
    assert!(shown.tokens_after.0 < shown.tokens_after.1 && shown.tokens_after.1 < shown.tokens_before);
    assert_eq!((shown.digest.len(), &shown.digest), (12, &see(&talk, Keep::Messages(1)).digest));
    assert_ne!(shown.digest, see(&talk, Keep::Nothing).digest);
    let text = talk.compact(10_000, Trigger::Manual, Keep::Messages(1), None);
    assert_eq!(text, shown.carried);
    assert!(
        text.ends_with(
            "entries from e1 to e3 are no longer in view: the tool `recall` finds and reads them."
        ),
        "{text} {asked}"
    );
}

#[test]
fn pieces_contain_everything_the_user_said() {
    let mut talk = Talk::new();
    let paste: String = (0..1_000).map(|number| format!("line {number}\n")).collect();
    talk.says(paste.as_str());
    talk.replies("y".repeat(5_000));
    talk.calls("recall", "what was once");
    let pieces = pieces(talk.0.view(), 2_000, 3_000);
    assert!(pieces.iter().all(|piece| piece.len() <= 3_000));
    let all = pieces.concat();
    assert!(
        all.contains("line 999")
            && (0..1_000).all(|number| all.replace("\n", "").contains(&format!("line {number}")))
    );
    assert!(all.contains("bytes left out") && !all.contains("what was once"), "{all}");
    assert!(all.contains("read again from the log; entry e4 has it"), "{all}");
}

#[test]
fn ten_thousand_messages_are_compacted_like_few() {
    let mut talk = Talk::new();
    for number in 0..3_000 {
        talk.says(format!("request {number}"));
        talk.calls("bash", words(50));
        talk.replies("Done.");
    }
    let text = talk.compact(200_000, Trigger::Threshold, Keep::Ratio(0.4), Some("So far."));
    assert!(text.contains("So far."));
    assert!(Ruler::of(None).view(talk.0.view()) <= budget(200_000).room());
    assert!(talk.0.view().entries().len() > 1_000);
}

/// Regression: the provider's own form of the summary was in the message twice, so OpenAI's service was sent
/// two items, and the message was larger than its count.
#[test]
fn the_providers_own_summary_comes_first_once_and_is_counted() {
    let mut talk = Talk::new();
    talk.says("go");
    talk.replies(words(2_000));
    let Decision::Summarise(plan) = talk.decide(8_000, Trigger::Manual, Keep::Nothing) else {
        panic!("there is enough to compact");
    };
    let data =
        serde_json::json!({"compaction": {"type": "compaction", "encrypted_content": "x".repeat(400)}});
    let native = Native { provider: "openai".into(), model: "gpt-6-sol".into(), data };
    let native = vec![Content::Thinking { text: String::new(), native: Some(native) }];
    let written = Written { native: native.clone(), ..Written::default() };
    let (ruler, id) = (Ruler::of(None), talk.0.next_message());
    let change = compacted(&ruler, &talk.0, &budget(8_000), &plan, id, written);
    let Ok(Change::Compacted { summary, tokens_after, .. }) = &change else { panic!("{change:?}") };
    assert_eq!(summary.content[..1], native);
    assert!(summary.content[1..].iter().all(|content| matches!(content, Content::Text { .. })));
    assert_eq!(ruler.message(summary), *tokens_after);
}

/// In a window of 32k an automatic compaction left a fifth of it, the message included, where two fifths were promised:
/// it set aside room for the largest message that there could be.
#[test]
fn an_automatic_compaction_leaves_the_share_of_the_window_that_is_promised() {
    let none = epitome_settings::Compaction {
        model: epitome_settings::Summariser::Nobody,
        ..epitome_settings::Compaction::default()
    };
    // The model has answered by then, and so it is known how it counts.
    let mut learnt = Calibration::start(Family::Other);
    learnt.learn(Tally { text: 4_000, media: 0 }, 4_800);
    let mut off = Vec::new();
    let written = "The parser reads nested groups now, and its tests pass. ".repeat(60);
    for (settings, summary) in [
        (&none, None),
        (&Default::default(), Some("So far.".to_owned())),
        (&Default::default(), Some(written)),
    ] {
        for (window, rounds) in
            [30_000, 32_768, 65_536, 200_000].into_iter().flat_map(|w| [(w, 30), (w, 100)])
        {
            let frame = 4_000;
            let budget = Budget::of(settings, window, (window / 4).min(16_384), frame);
            let (mut talk, ruler) = (Talk::new(), Ruler::of(None).calibrated(learnt));
            while frame + ruler.view(talk.0.view()) < budget.due_at {
                talk.says("Go on, and keep the tests green.");
                talk.calls("bash", words(60));
                talk.replies(words(window as usize / rounds));
            }
            let wish = wish(Trigger::Threshold, Keep::Ratio(0.4));
            let Decision::Summarise(plan) = decide(&ruler, &talk.0, &budget, &wish) else {
                panic!("{window}: nothing is summarised")
            };
            let written = Written { text: summary.clone(), ..Written::default() };
            let made = compacted(&ruler, &talk.0, &budget, &plan, talk.0.next_message(), written);
            let Ok(Change::Compacted { tokens_after, .. }) = made else { panic!("{window}: {made:?}") };
            let percent = tokens_after as f64 * 100.0 / window as f64;
            if !(37.0..=43.0).contains(&percent) {
                off.push(format!(
                    "{percent:.1} % of {window} in {rounds} rounds, summary of {:?} bytes",
                    summary.as_ref().map(String::len)
                ));
            }
        }
    }
    assert!(off.is_empty(), "{off:?}");
}

/// If the provider's count differed from ours, the share of what clients see was missed by up to 4 points. A second
/// compaction by the same share finds nothing to do.
#[test]
fn the_share_is_of_the_tokens_that_clients_see() {
    let mut learnt = Calibration::start(Family::Other);
    learnt.learn(Tally { text: 4_000, media: 0 }, 4_800);
    let none = epitome_settings::Compaction {
        model: epitome_settings::Summariser::Nobody,
        ..epitome_settings::Compaction::default()
    };
    let (window, frame) = (65_536, 4_000);
    for percent_of_ours in [80, 90, 100, 110] {
        let (mut talk, ruler) = (Talk::new(), Ruler::of(None).calibrated(learnt));
        let mut budget = Budget::of(&none, window, window / 8, frame);
        while frame + ruler.view(talk.0.view()) < budget.due_at * 9 / 10 {
            talk.says("Go on, and keep the tests green.");
            talk.calls("bash", words(60));
            talk.replies(words(600));
        }
        let before = frame + ruler.view(talk.0.view());
        let used = before * percent_of_ours / 100;
        budget.used = Some(used);
        let wish = Wish { summary: true, ..wish(Trigger::Manual, Keep::Ratio(0.4)) };
        let Decision::Summarise(plan) = decide(&ruler, &talk.0, &budget, &wish) else {
            panic!("{percent_of_ours}: nothing is summarised")
        };
        let made = compacted(&ruler, &talk.0, &budget, &plan, talk.0.next_message(), Written::default());
        talk.add(made.expect("a compaction"));

        let gone = before - frame - ruler.view(talk.0.view());
        let shown = used - gone.min(gone * used / before);
        let left = (shown - frame * percent_of_ours.min(100) / 100) as f64 * 100.0 / window as f64;
        assert!((37.0..=43.0).contains(&left), "{percent_of_ours} % of ours: {left:.1} % are left");
        budget.used = Some(shown);
        let again = decide(&ruler, &talk.0, &budget, &wish);
        assert!(matches!(again, Decision::Nothing(_)), "{percent_of_ours} % of ours: {again:?}");
    }
}
