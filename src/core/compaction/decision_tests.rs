//! Examples of what is cut, kept, quoted and dropped.

use super::tests::conversation::{TestConversation, budget, request, words};
use super::*;
use epitome_thread::{
    CallDisplay, CallId, Change, Content, Mask, MessageId, ModelName, Native, Origin, OutcomeContent,
    OutcomeStatus, REFUSED_BECAUSE, Seq, ToolCall, ToolOutcome, Trigger,
};
use epitome_tokens::model_name::Family;
use epitome_tokens::{Calibration, Ruler, Tally};

fn masks(decision: CompactionDecision) -> Vec<Mask> {
    match decision {
        CompactionDecision::Prune(masks) => masks,
        other => panic!("{other:?}"),
    }
}

#[test]
fn old_outcomes_are_cut_to_their_beginning_with_a_recall_hint() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("go");
    let long = conversation.calls("bash", words(4_000));
    conversation.calls("bash", "short");
    let pinned = conversation.calls("bash", words(300));
    conversation.pins(pinned);
    let mut picture = ToolOutcome::text(CallId("p".into()), OutcomeStatus::Completed, "a picture");
    let data = "iVBORw0KGgo=".to_owned();
    picture.content.push(OutcomeContent::Image { mime_type: "image/png".into(), data });
    let call = ToolCall {
        id: CallId("p".into()),
        name: "look".into(),
        input: serde_json::json!({}),
        card: CallDisplay::default(),
    };
    let message = conversation.message(vec![Content::Call(call)]);
    conversation.add(Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None });
    let picture = conversation.add(Change::ToolFinished { outcome: picture });
    conversation.add_later_messages();
    conversation.calls("bash", words(2_000));
    let cut = masks(conversation.decide(8_192, Trigger::Threshold, KeptTail::Ratio(0.4)));
    assert_eq!(cut.iter().map(|mask| mask.entry).collect::<Vec<_>>(), [long, picture]);
    let head: String = words(4_000).chars().take(200).collect();
    let note =
        format!("\n[… cut to save room: 28000 bytes in all; `recall` with entry {long} reads all of it]");
    assert_eq!(cut[0].text, format!("{head}{note}"));
    assert!(cut[1].text.starts_with("a picture\n") && cut[1].text.contains("1 image or document"), "{cut:?}");
    // An outcome that is already cut is not cut again.
    let change = pruned(&Ruler::for_model(None), &conversation.0, cut, Trigger::Threshold);
    conversation.add(change);
    assert!(!matches!(
        conversation.decide(8_192, Trigger::Threshold, KeptTail::Ratio(0.4)),
        CompactionDecision::Prune(_)
    ));
}

/// Regression: with the largest `context_window` that the settings accept, each compaction overflowed.
#[test]
fn the_largest_window_is_no_problem() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt(words(4_000));
    conversation.add_later_messages();
    for window in [u64::try_from(i64::MAX).expect("it is positive"), u64::MAX] {
        for share in [0.4, 1.0] {
            let decision = conversation.decide(window, Trigger::Manual, KeptTail::Ratio(share));
            assert!(!matches!(decision, CompactionDecision::Prune(_)), "{decision:?}");
        }
    }
}

/// Regression: the user's answers to questions, and reasons for refusing a call, were cut to 200 characters like any
/// old result, although the user's messages are the last to be cut.
#[test]
fn the_users_answers_are_not_cut_like_old_outcomes() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("Ask me first.");
    let answer = conversation.calls("ask_user", "Never drop the table legacy_users. ".repeat(43));
    let reason = format!("{REFUSED_BECAUSE}{}", "Use the staging server. ".repeat(60));
    let input = serde_json::json!({"command": "deploy"});
    let refusal = conversation.calls_with("bash", input, OutcomeStatus::Denied, reason);
    let results: Vec<Seq> = (0..20).map(|_| conversation.calls("bash", words(2_000))).collect();
    conversation.add_later_messages();
    let of_cost = due(&Ruler::for_model(None), &conversation.0, &budget(1_000_000)).expect("it pays");
    let of_room = masks(conversation.decide(45_000, Trigger::Threshold, KeptTail::Ratio(0.4)));
    for cut in [of_cost, of_room] {
        let cut: Vec<Seq> = cut.iter().map(|mask| mask.entry).collect();
        assert!(!cut.contains(&answer) && !cut.contains(&refusal), "{cut:?}");
        assert_eq!(cut, results);
    }
}

#[test]
fn a_batch_for_cost_alone_must_free_much() {
    let freed = |outcome: usize| {
        let mut conversation = TestConversation::new();
        conversation.add_prompt("go");
        conversation.calls("bash", words(outcome));
        conversation.add_later_messages();
        due(&Ruler::for_model(None), &conversation.0, &budget(1_000_000)).is_some()
    };
    assert!(!freed(20_000), "30,000 tokens are not freed");
    assert!(freed(40_000));
}

#[test]
fn pruning_is_enough_only_if_it_gets_well_below_the_threshold() {
    let decision = |outcome: usize, spoken: usize| {
        let mut conversation = TestConversation::new();
        conversation.add_prompt(words(spoken));
        conversation.calls("bash", words(outcome));
        conversation.add_later_messages();
        conversation.replies("Done.");
        conversation.decide(10_000, Trigger::Threshold, KeptTail::Ratio(0.4))
    };
    assert!(matches!(decision(4_000, 1_000), CompactionDecision::Prune(_)));
    assert!(matches!(decision(2_000, 6_500), CompactionDecision::Summarise(_)));
    assert!(matches!(decision(200, 5_000), CompactionDecision::Summarise(_)));
}

#[test]
fn the_round_that_waits_for_the_model_is_kept() {
    for trigger in [Trigger::Threshold, Trigger::Must, Trigger::Overflow] {
        let mut conversation = TestConversation::new();
        conversation.add_prompt("go");
        conversation.replies(words(3_000));
        conversation.add_prompt("now look");
        let outcome = conversation.calls("bash", words(1_500));
        conversation.compact(6_000, trigger, KeptTail::Nothing, Some("So far."));
        assert_eq!(conversation.shown()[1..], [outcome.0 - 1, outcome.0], "{trigger:?}");
        let kept = &conversation.0.view().entries()[2];
        assert_eq!(kept, &conversation.0.entries()[outcome.0 as usize], "{trigger:?}");
    }
}

#[test]
fn a_round_that_does_not_fit_is_cut_before_it_is_dropped() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("go");
    let outcome = conversation.calls("bash", format!("FIRST {} LAST", words(20_000)));
    let cut = masks(conversation.decide(8_192, Trigger::Must, KeptTail::Ratio(0.4)));
    let [mask] = &cut[..] else { panic!("{cut:?}") };
    assert_eq!(mask.entry, outcome);
    assert!(mask.text.starts_with("FIRST") && mask.text.ends_with("LAST"), "{}", mask.text);
    assert!(mask.text.contains(&format!("`recall` with entry {outcome} reads all of it")), "{}", mask.text);
}

#[test]
fn a_message_larger_than_the_window_is_cut_in_its_middle() {
    let mut conversation = TestConversation::new();
    let paste = conversation.add_prompt(format!("FIRST {} LAST", words(100_000)));
    let cut = masks(conversation.decide(8_192, Trigger::Overflow, KeptTail::Ratio(0.4)));
    assert_eq!(cut.iter().map(|mask| mask.entry).collect::<Vec<_>>(), [paste]);
    assert!(cut[0].text.starts_with("FIRST") && cut[0].text.ends_with("LAST"));
    conversation.replies("Yes.");
    let text = conversation.compact(8_192, Trigger::Overflow, KeptTail::Nothing, None);
    assert!(text.contains("<last_request>\nFIRST") && text.contains("LAST\n</last_request>"));
    assert!(Ruler::for_model(None).view(conversation.0.view()) <= budget(8_192).room());
}

/// Regression: a hook added a long text to a longer prompt, and both together exceeded a small window. The prompt was cut to
/// 512 bytes, so the model had all of the hook's text and hardly anything of what it was asked to do.
#[test]
fn what_hooks_added_is_cut_before_the_prompt() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt(words(1_500));
    let added = conversation.add_message_from(words(1_400), Origin::Context { by: "h".into() });
    let cut = masks(conversation.decide(6_000, Trigger::Overflow, KeptTail::Nothing));
    assert_eq!(cut.iter().map(|mask| mask.entry).collect::<Vec<_>>(), [added]);
}

#[test]
fn a_compacted_view_without_new_entries_is_left_alone() {
    for (trigger, keep) in [(Trigger::Manual, KeptTail::Nothing), (Trigger::Threshold, KeptTail::Ratio(0.4))]
    {
        let mut conversation = TestConversation::new();
        for _ in 0..10 {
            conversation.add_prompt("go");
            conversation.replies(words(1_000));
        }
        conversation.compact(10_000, trigger, keep, Some("So far."));
        let again = conversation.decide(10_000, trigger, keep);
        assert!(matches!(again, CompactionDecision::Nothing(_)), "{trigger:?}: {again:?}");
        // The user may want to compact the rest too.
        let rest = conversation.decide(10_000, Trigger::Manual, KeptTail::Nothing);
        assert_eq!(matches!(rest, CompactionDecision::Summarise(_)), trigger == Trigger::Threshold);
    }
}

/// `/compact`, a recipe's `swap_context` and a hook's request were refused in a short conversation, because a summary is
/// not shorter than a few words. A user who requests one wants the history replaced.
#[test]
fn a_requested_compaction_of_a_short_conversation_is_made() {
    for trigger in [Trigger::Manual, Trigger::Hook, Trigger::Threshold] {
        let mut conversation = TestConversation::new();
        conversation.add_prompt("hello");
        conversation.replies("Hello.");
        let decision = conversation.decide(100_000, trigger, KeptTail::Nothing);
        if trigger == Trigger::Threshold {
            assert_eq!(decision, CompactionDecision::Nothing(CompactionRefusal::NoGain));
            continue;
        }
        let text = conversation.compact(100_000, trigger, KeptTail::Nothing, Some("They said hello."));
        assert_eq!(conversation.shown(), [3], "{trigger:?}");
        assert!(text.contains("<summary>\nThey said hello.\n</summary>"), "{text}");
    }
    let decision = TestConversation::new().decide(100_000, Trigger::Manual, KeptTail::Nothing);
    assert_eq!(decision, CompactionDecision::Nothing(CompactionRefusal::NothingLeft));
}

/// The message after a `/compact` repeated the user's words that its summary contained already.
#[test]
fn a_requested_compaction_does_not_repeat_what_its_summary_contains() {
    for trigger in [Trigger::Manual, Trigger::Hook, Trigger::Threshold] {
        let mut conversation = TestConversation::new();
        conversation.add_prompt("Never touch the table legacy_users.");
        conversation.replies("I will look at the queue first.");
        conversation.add_prompt("Yes.");
        conversation.replies(words(3_000));
        conversation.add_prompt("Print all of the groups.");
        conversation.replies("Printed.");
        let summary =
            "Never touch the table legacy_users. I will look at the queue first. Print all of the groups.";
        let text = conversation.compact(10_000, trigger, KeptTail::Nothing, Some(summary));
        let times = if trigger == Trigger::Threshold { 2 } else { 1 };
        for said in ["table legacy_users", "all of the groups"] {
            assert_eq!(text.matches(said).count(), times, "{trigger:?}: {said} in {text}");
        }
        // It is a part of many sentences.
        assert!(text.contains("Yes.") && text.contains("Printed."), "{text}");
    }
}

#[test]
fn keep_from_an_entry_works_after_an_earlier_compaction() {
    let mut conversation = TestConversation::new();
    for _ in 0..4 {
        conversation.add_prompt(words(200));
        conversation.replies(words(1_000));
    }
    conversation.compact(100_000, Trigger::Manual, KeptTail::From(Seq(5)), Some("One."));
    assert_eq!(conversation.shown(), [9, 5, 6, 7, 8]);
    conversation.compact(100_000, Trigger::Manual, KeptTail::From(Seq(7)), Some("Two."));
    assert_eq!(conversation.shown(), [10, 7, 8]);
}

#[test]
fn all_user_messages_are_kept_with_long_pastes_cut() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt(format!("OLDEST {}", words(150)));
    let middle = conversation.add_prompt("never touch main.rs");
    let recipe = conversation
        .add_message_from(words(500), Origin::Recipe { recipe: "review".into(), typed: "/review it".into() });
    let paste = conversation.add_prompt(format!("PASTE {} END", "x".repeat(200_000)));
    conversation.replies(words(30_000));
    let last = conversation.add_prompt("the last one");
    conversation.replies("Yes.");
    let text = conversation.compact(100_000, Trigger::Manual, KeptTail::Nothing, Some("So far."));
    assert!(text.contains(&format!("<said entry=\"{middle}\">\nnever touch main.rs\n</said>")), "{text}");
    assert!(text.contains(&format!("<said entry=\"{recipe}\">\n/review it\n</said>")), "{text}");
    assert!(text.contains(&format!("`recall` with entry {paste} reads all of it")), "{text}");
    assert!(text.contains("OLDEST") && !text.contains(&format!("<said entry=\"{last}\">")), "{text}");
    let (first, second) = (text.find("OLDEST").expect("there"), text.find("never touch").expect("there"));
    assert!(first < second, "oldest first: {text}");

    // In a small window, the paste is cut further before any message is left out.
    conversation.replies(words(3_000));
    let text = conversation.compact(2_000, Trigger::Must, KeptTail::Nothing, Some("So far."));
    assert!(text.contains(&format!("<said entry=\"{paste}\">\nPASTE x")) && text.len() < 5_000, "{text}");
    assert!(text.contains(&format!("<said entry=\"{middle}\">")), "{text}");
}

#[test]
fn instructions_are_repeated_with_their_newest_text() {
    let mut conversation = TestConversation::new();
    let file = |path: &str| Origin::Instructions { path: path.into() };
    conversation.add_message_from("tabs", file("/w/a/AGENTS.md"));
    conversation.add_message_from("no tabs", file("/w/b/AGENTS.md"));
    conversation.add_message_from("spaces", file("/w/a/AGENTS.md"));
    conversation.replies(words(1_000));
    for _ in 0..2 {
        let text = conversation.compact(10_000, Trigger::Manual, KeptTail::Nothing, Some("So far."));
        assert!(text.contains("<instructions path=\"/w/a/AGENTS.md\">\nspaces\n</instructions>"), "{text}");
        assert!(text.contains("<instructions path=\"/w/b/AGENTS.md\">\nno tabs\n</instructions>"), "{text}");
        assert!(!text.contains("\ntabs\n"), "{text}");
        conversation.add_prompt("go");
        conversation.replies(words(1_000));
    }
}

/// Regression: two fallbacks in a row lost the contents of the summary before them.
#[test]
fn without_a_new_summary_the_earlier_one_is_reused() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("go");
    for (summary, expected) in [(Some("It began."), "It began."), (None, "It began."), (None, "It began.")] {
        conversation.replies(words(1_000));
        let text = conversation.compact(10_000, Trigger::Manual, KeptTail::Nothing, summary);
        assert!(text.contains(&format!("<summary>\n{expected}\n</summary>")), "{text}");
        assert_eq!(text.contains("of its older part"), summary.is_none(), "{text}");
    }
}

#[test]
fn attachments_of_the_last_request_are_included() {
    let picture = Content::Image { mime_type: "image/png".into(), data: "iVBORw0KGgo=".into(), uri: None };
    let ask = |before: usize, trigger: Trigger| {
        let mut conversation = TestConversation::new();
        conversation.add_prompt("go");
        conversation.replies(words(before));
        let content = vec![Content::Text { text: "what is it?".into() }, picture.clone()];
        let message = conversation.message(content);
        conversation.add(Change::Said { message, origin: Origin::Person });
        conversation.replies(words(300));
        let text = conversation.compact(10_000, trigger, KeptTail::Nothing, None);
        let Change::Compacted { summary, .. } = &conversation.0.view().entries()[0].change else {
            panic!("{text}")
        };
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
    let mut conversation = TestConversation::new();
    conversation.add_prompt("go");
    conversation.replies(words(3_000));
    let asked = conversation.add_prompt("look");
    conversation.replies("Yes.");
    let see = |conversation: &TestConversation, keep| {
        preview(&Ruler::for_model(None), &conversation.0, &budget(10_000), &request(Trigger::Manual, keep))
    };
    let shown = see(&conversation, KeptTail::Messages(1));
    let fates: Vec<EntryTreatment> = shown.lines.iter().map(|line| line.fate).collect();
    assert_eq!(
        fates,
        [EntryTreatment::Quoted, EntryTreatment::Summarised, EntryTreatment::Quoted, EntryTreatment::Kept]
    );
    assert!(shown.carried.contains("<last_request>\nlook\n"), "{}", shown.carried);
    assert!(shown.tokens_after.0 < shown.tokens_after.1 && shown.tokens_after.1 < shown.tokens_before);
    assert_eq!((shown.digest.len(), &shown.digest), (12, &see(&conversation, KeptTail::Messages(1)).digest));
    assert_ne!(shown.digest, see(&conversation, KeptTail::Nothing).digest);
    let text = conversation.compact(10_000, Trigger::Manual, KeptTail::Messages(1), None);
    assert_eq!(text, shown.carried);
    assert!(
        text.ends_with(
            "entries from e1 to e3 are no longer in view: the tool `recall` finds and reads them."
        ),
        "{text} {asked}"
    );
}

/// After an earlier compaction, the user's older messages are in no view. A preview did not say which of them the next
/// one would quote no more, although its result did.
#[test]
fn a_preview_names_what_there_is_no_room_for() {
    const WINDOW: u64 = 4_000;
    let mut conversation = TestConversation::new();
    conversation.add_prompt(format!("never touch vendor/ {}", words(300)));
    conversation.replies(words(800));
    conversation.compact(WINDOW, Trigger::Manual, KeptTail::Nothing, Some("So far."));
    for _ in 0..40 {
        conversation.add_prompt(words(300));
    }
    conversation.replies("Yes.");
    let request = request(Trigger::Manual, KeptTail::Nothing);
    let shown = preview(&Ruler::for_model(None), &conversation.0, &budget(WINDOW), &request);
    let text = conversation.compact(WINDOW, Trigger::Manual, KeptTail::Nothing, None);
    assert!(!text.contains("never touch vendor/"), "{text}");
    let Some(Change::Compacted { account, .. }) = conversation.0.entries().last().map(|entry| &entry.change)
    else {
        panic!("the last entry is no compaction")
    };
    assert!(!shown.left_out.is_empty());
    assert_eq!((&shown.left_out, shown.left_out_count), (&account.left_out, account.left_out_count()));
}

#[test]
fn pieces_contain_everything_the_user_said() {
    let mut conversation = TestConversation::new();
    let paste: String = (0..1_000).map(|number| format!("line {number}\n")).collect();
    conversation.add_prompt(paste.as_str());
    conversation.replies("y".repeat(5_000));
    conversation.calls("recall", "what was once");
    let pieces = pieces(conversation.0.view(), 2_000, 3_000);
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
    let mut conversation = TestConversation::new();
    for number in 0..3_000 {
        conversation.add_prompt(format!("request {number}"));
        conversation.calls("bash", words(50));
        conversation.replies("Done.");
    }
    let text = conversation.compact(200_000, Trigger::Threshold, KeptTail::Ratio(0.4), Some("So far."));
    assert!(text.contains("So far."));
    assert!(Ruler::for_model(None).view(conversation.0.view()) <= budget(200_000).room());
    assert!(conversation.0.view().entries().len() > 1_000);
}

/// Regression: the provider's own form of the summary was in the message twice, so OpenAI's service was sent
/// two items, and the message was larger than its count.
#[test]
fn the_providers_own_summary_comes_first_once_and_is_counted() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("go");
    conversation.replies(words(2_000));
    let CompactionDecision::Summarise(plan) = conversation.decide(8_000, Trigger::Manual, KeptTail::Nothing)
    else {
        panic!("there is enough to compact");
    };
    let data =
        serde_json::json!({"compaction": {"type": "compaction", "encrypted_content": "x".repeat(400)}});
    let native = Native { provider: "openai".into(), model: "gpt-6-sol".into(), data };
    let native = vec![Content::Thinking { text: String::new(), native: Some(native) }];
    let written = Summary { native: native.clone(), ..Summary::default() };
    let (ruler, id) = (Ruler::for_model(None), conversation.0.next_message());
    let change =
        compacted(&CompactionInput::new(&ruler, &conversation.0, &budget(8_000)), &plan, id, written);
    let Ok(Change::Compacted { summary, tokens_after, .. }) = &change else { panic!("{change:?}") };
    assert_eq!(summary.content[..1], native);
    assert!(summary.content[1..].iter().all(|content| matches!(content, Content::Text { .. })));
    assert_eq!(ruler.message(summary), *tokens_after);
}

/// Regression: in a window of 32k, an automatic compaction left a fifth of it, including the message, instead of the
/// promised two fifths: it reserved room for the largest possible message. Later it left two fifths with the message, so
/// that a tenth of the window was recent messages.
#[test]
fn an_automatic_compaction_leaves_the_share_of_the_window_that_is_promised() {
    let none = epitome_thread::compaction_settings::CompactionSettings {
        model: epitome_thread::compaction_settings::Summariser::None,
        ..epitome_thread::compaction_settings::CompactionSettings::default()
    };
    // The model has answered by then, so its way of counting is known.
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
            let budget = Budget::new(settings, window, (window / 4).min(16_384), frame);
            let (mut conversation, ruler) =
                (TestConversation::new(), Ruler::for_model(None).calibrated(learnt));
            while frame + ruler.view(conversation.0.view()) < budget.due_at {
                conversation.add_prompt("Go on, and keep the tests green.");
                conversation.calls("bash", words(60));
                conversation.replies(words(window as usize / rounds));
            }
            let request = request(Trigger::Threshold, KeptTail::Ratio(0.4));
            let CompactionDecision::Summarise(plan) =
                decide(&CompactionInput::new(&ruler, &conversation.0, &budget), &request)
            else {
                panic!("{window}: nothing is summarised")
            };
            let written = Summary { text: summary.clone(), ..Summary::default() };
            let made = compacted(
                &CompactionInput::new(&ruler, &conversation.0, &budget),
                &plan,
                conversation.0.next_message(),
                written,
            );
            let Ok(Change::Compacted { account, .. }) = made else { panic!("{window}: {made:?}") };
            let percent = account.kept.tokens as f64 * 100.0 / window as f64;
            if !(36.0..=43.0).contains(&percent) {
                off.push(format!(
                    "{percent:.1} % of {window} in {rounds} rounds, summary of {:?} bytes",
                    summary.as_ref().map(String::len)
                ));
            }
        }
    }
    assert!(off.is_empty(), "{off:?}");
}

/// Regression: with a threshold of 60,000 tokens in a window of 200,000, all of the conversation was within the share that
/// stays. So nothing of it stayed but the current round.
#[test]
fn a_low_threshold_leaves_the_newest_part() {
    let settings = epitome_thread::compaction_settings::CompactionSettings {
        threshold: epitome_thread::compaction_settings::CompactionThreshold::Used(60_000),
        ..epitome_thread::compaction_settings::CompactionSettings::default()
    };
    let (mut conversation, ruler) = (TestConversation::new(), Ruler::for_model(None));
    let budget = Budget::new(&settings, 200_000, 16_384, 4_000);
    while budget.frame + ruler.view(conversation.0.view()) < budget.due_at {
        conversation.add_prompt("Go on.");
        conversation.calls("bash", words(60));
        conversation.replies(words(1_000));
    }
    let before = ruler.view(conversation.0.view());
    let request = request(Trigger::Threshold, KeptTail::Ratio(0.4));
    let CompactionDecision::Summarise(plan) =
        decide(&CompactionInput::new(&ruler, &conversation.0, &budget), &request)
    else {
        panic!("nothing is summarised")
    };
    let (id, written) = (conversation.0.next_message(), Summary::default());
    let made = compacted(&CompactionInput::new(&ruler, &conversation.0, &budget), &plan, id, written);
    conversation.add(made.expect("a compaction"));
    let after = ruler.view(conversation.0.view());
    assert!((before / 4..before * 2 / 3).contains(&after), "{before} tokens, {after} after");
}

/// Recent messages were a tenth of the window if the user wrote half of the text, because the user's earlier words in the
/// message counted as a part of the share.
#[test]
fn recent_messages_stay_however_much_the_user_wrote() {
    let mut off = Vec::new();
    for (window, by_user, least) in [32_000, 64_000, 128_000, 200_000]
        .into_iter()
        .flat_map(|window| [(window, 10, 0.35), (window, 50, 0.25)])
    {
        let frame = 3_500;
        let budget = Budget::new(&Default::default(), window, (window / 4).min(16_384), frame);
        let (mut conversation, ruler) = (TestConversation::new(), Ruler::for_model(None));
        let round = window as usize / 60;
        while frame + ruler.view(conversation.0.view()) < budget.due_at {
            conversation.add_prompt(words(round * by_user / 100));
            conversation.replies(words(round * (100 - by_user) / 100));
        }
        let before = ruler.view(conversation.0.view());
        let CompactionDecision::Summarise(plan) = decide(
            &CompactionInput::new(&ruler, &conversation.0, &budget),
            &request(Trigger::Threshold, KeptTail::Ratio(0.4)),
        ) else {
            panic!("{window}: nothing is summarised")
        };
        let written = Summary { text: Some(words(800)), ..Summary::default() };
        let made = compacted(
            &CompactionInput::new(&ruler, &conversation.0, &budget),
            &plan,
            MessageId(9_999),
            written,
        );
        let Ok(Change::Compacted { account, tokens_after, .. }) = made else { panic!("{window}: {made:?}") };
        let kept = account.kept.tokens as f64 / window as f64;
        if kept < least || tokens_after > before * 4 / 5 {
            off.push(format!("{window}, {by_user} %: {kept:.2} kept, {before} to {tokens_after} tokens"));
        }
    }
    assert!(off.is_empty(), "{off:?}");
}

/// Regression: if the provider's count differed from Epitome's, the share was missed by up to 4 points. A second compaction
/// to the same share has nothing to do.
#[test]
fn the_share_is_of_the_tokens_that_the_provider_counts() {
    let mut learnt = Calibration::start(Family::Other);
    learnt.learn(Tally { text: 4_000, media: 0 }, 4_800);
    let none = epitome_thread::compaction_settings::CompactionSettings {
        model: epitome_thread::compaction_settings::Summariser::None,
        ..epitome_thread::compaction_settings::CompactionSettings::default()
    };
    let (window, frame) = (65_536, 4_000);
    for percent_of_ours in [80, 90, 100, 110] {
        let (mut conversation, ruler) = (TestConversation::new(), Ruler::for_model(None).calibrated(learnt));
        let mut budget = Budget::new(&none, window, window / 8, frame);
        while frame + ruler.view(conversation.0.view()) < budget.due_at * 9 / 10 {
            conversation.add_prompt("Go on, and keep the tests green.");
            conversation.calls("bash", words(60));
            conversation.replies(words(600));
        }
        let before = frame + ruler.view(conversation.0.view());
        let used = before * percent_of_ours / 100;
        budget.used = Some(used);
        let request = CompactionRequest { summary: true, ..request(Trigger::Manual, KeptTail::Ratio(0.4)) };
        let CompactionDecision::Summarise(plan) =
            decide(&CompactionInput::new(&ruler, &conversation.0, &budget), &request)
        else {
            panic!("{percent_of_ours}: nothing is summarised")
        };
        let (id, written) = (conversation.0.next_message(), Summary::default());
        let made = compacted(&CompactionInput::new(&ruler, &conversation.0, &budget), &plan, id, written)
            .expect("a compaction");
        let Change::Compacted { account, .. } = &made else { unreachable!() };
        let left = (account.kept.tokens * used / before) as f64 * 100.0 / window as f64;
        assert!((37.0..=43.0).contains(&left), "{percent_of_ours} % of ours: {left:.1} % are left");
        conversation.add(made);
        let gone = before - frame - ruler.view(conversation.0.view());
        let shown = used - gone.min(gone * used / before);
        budget.used = Some(shown);
        let again = decide(&CompactionInput::new(&ruler, &conversation.0, &budget), &request);
        assert!(matches!(again, CompactionDecision::Nothing(_)), "{percent_of_ours} % of ours: {again:?}");
    }
}

/// Regression: in a long session in a small window, the user's words filled all that compactions left. Each of them gave
/// up the outcome that the model was about to read to quote more of these, so the model made the same call again, until
/// the turn's limit of calls. The next compaction was due a call later.
#[test]
fn words_of_the_user_leave_room_for_the_current_round() {
    const WINDOW: u64 = 24_000;
    let mut conversation = TestConversation::new();
    let (ruler, budget) = (Ruler::for_model(None), budget(WINDOW));
    let mut compactions = 0;
    for number in 0..400 {
        conversation.add_prompt(format!("Instruction {number}: {}", words(60)));
        conversation.replies(words(20));
        conversation.calls("file_read", words(2_500));
        let before = ruler.view(conversation.0.view());
        if before < budget.due_at {
            conversation.replies(words(20));
            conversation.ends_turn();
            continue;
        }
        let outcome = conversation.0.view().entries().last().expect("an outcome").seq;
        match conversation.decide(WINDOW, Trigger::Threshold, KeptTail::Ratio(0.1)) {
            CompactionDecision::Prune(masks) => {
                let change = pruned(&ruler, &conversation.0, masks, Trigger::Threshold);
                conversation.add(change);
            }
            CompactionDecision::Summarise(plan) => {
                let change = conversation.made(WINDOW, &plan, Some("Read on.")).expect("it gains something");
                conversation.add(change);
                compactions += 1;
                let after = ruler.view(conversation.0.view());
                assert!(after <= before * 3 / 4, "prompt {number}: {before} tokens, {after} after");
            }
            CompactionDecision::Nothing(why) => panic!("prompt {number}: {why}"),
        }
        let last = conversation.0.view().entries().last().expect("an outcome").seq;
        assert_eq!(last, outcome, "prompt {number}: the model does not see the outcome");
        conversation.replies(words(20));
        conversation.ends_turn();
    }
    assert!((10..200).contains(&compactions), "{compactions} compactions");
}

/// Regression: a server ignored the limit for the summary. `/compact` was refused because such a summary is not
/// shorter than what it replaces, and an automatic compaction left out the user's messages to make room for it. A
/// hook's summary or addition may be as long.
#[test]
fn a_summary_beyond_its_limit_is_cut_before_anything_else() {
    for trigger in [Trigger::Manual, Trigger::Hook, Trigger::Threshold] {
        let mut conversation = TestConversation::new();
        let said: Vec<Seq> = (0..20)
            .map(|number| {
                let prompt = conversation.add_prompt(format!("Instruction {number}: {}", words(200)));
                conversation.replies(words(3_000));
                prompt
            })
            .collect();
        let CompactionDecision::Summarise(plan) = conversation.decide(200_000, trigger, KeptTail::Nothing)
        else {
            panic!("{trigger:?}: there is something to compact")
        };
        let long = format!("BEGIN {} END", "chestnut ".repeat(40_000));
        let with_context = |text: Option<&str>, context: &str| Summary {
            text: text.map(str::to_owned),
            context: vec![("h".to_owned(), context.to_owned())],
            ..Summary::default()
        };
        for written in [with_context(Some(&long), "The port is 8123."), with_context(None, &long)] {
            let is_long_summary = written.text.is_some();
            let (ruler, id) = (Ruler::for_model(None), conversation.0.next_message());
            let change = compacted(
                &CompactionInput::new(&ruler, &conversation.0, &budget(200_000)),
                &plan,
                id,
                written,
            );
            let Ok(Change::Compacted { summary, account, tokens_after, .. }) = change else {
                panic!("{trigger:?}: {change:?}")
            };
            let text = summary.text();
            assert!(account.left_out.is_empty() && account.shortened.is_empty(), "{trigger:?}: {account:?}");
            assert!(said.iter().all(|entry| account.quoted.contains(entry)), "{trigger:?}: {account:?}");
            assert!(account.facts > 0 || !is_long_summary, "the tables stay: {trigger:?}: {account:?}");
            assert!(tokens_after < 40_000, "{trigger:?}: {tokens_after}");
            let is_there = |part: &str| text.contains(part);
            assert_eq!(is_there("BEGIN") && is_there(" END"), is_long_summary, "{trigger:?}");
            assert_eq!(is_there("The port is 8123."), is_long_summary, "{trigger:?}");
        }
    }
}
