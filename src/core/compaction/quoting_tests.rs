//! Examples of what the compaction message quotes if there is not room for everything.

use super::material::Material;
use super::tests::conversation::{TestConversation, budget, request, words};
use super::*;
use epitome_thread::{
    Change, CompactionStats, Content, Message, MessageId, Origin, PartId, Seq, ToolSpec, Trigger, ViewEdit,
};
use epitome_tokens::Ruler;

/// The message of a compaction of everything, in a window of `window` tokens.
fn message(conversation: &TestConversation, window: u64) -> (Vec<Content>, String) {
    let (content, text, _) = accounted(conversation, window);
    (content, text)
}

/// The same, with the account that the user is shown.
fn accounted(conversation: &TestConversation, window: u64) -> (Vec<Content>, String, CompactionStats) {
    let ruler = Ruler::for_model(None);
    let plan = match conversation.decide(window, Trigger::Manual, KeptTail::Nothing) {
        CompactionDecision::Summarise(plan) => plan,
        other => panic!("{other:?}"),
    };
    let id = conversation.0.next_message();
    match compacted(
        &CompactionInput::new(&ruler, &conversation.0, &budget(window)),
        &plan,
        id,
        Summary::default(),
    ) {
        Ok(Change::Compacted { summary, account, .. }) => {
            let text = summary.text();
            (summary.content, text, account)
        }
        other => panic!("{other:?}"),
    }
}

fn is_quoted(entry: Seq, text: &str) -> bool {
    text.contains(&format!("<said entry=\"{entry}\">"))
}

/// Regression: in a window of 32k, 21,000 characters of computed facts displaced the user's messages.
#[test]
fn the_users_words_are_dropped_after_everything_computed() {
    let mut conversation = TestConversation::new();
    let mut said = Vec::new();
    for number in 0..30 {
        said.push(conversation.add_prompt(format!("Instruction {number}: {}", words(20))));
        conversation.replies(words(100));
        conversation.calls("bash", words(300));
    }
    conversation.add_prompt("And now?");
    conversation.replies("Yes.");
    let (_, roomy) = message(&conversation, 100_000);
    assert!(
        said.iter().all(|entry| is_quoted(*entry, &roomy)) && roomy.contains("<carried_over>"),
        "{roomy}"
    );
    let (_, tight) = message(&conversation, 3_000);
    assert!(said.iter().all(|entry| is_quoted(*entry, &tight)) && tight.len() < roomy.len(), "{tight}");
}

#[test]
fn without_room_the_newest_user_messages_are_quoted_and_gaps_marked() {
    let mut conversation = TestConversation::new();
    let mut said = Vec::new();
    for number in 0..40 {
        said.push(conversation.add_prompt(format!("Instruction {number}: {}", words(40))));
        conversation.replies(words(100));
    }
    conversation.add_prompt("And now?");
    conversation.replies("Yes.");
    let (_, text) = message(&conversation, 1_500);
    assert!(!is_quoted(said[0], &text) && is_quoted(said[39], &text), "{text}");
    assert!(text.contains("<user>\n[…]\n<said"), "{text}");
    assert!(text.find("Instruction 38") < text.find("Instruction 39"), "oldest first: {text}");
}

/// Regression: a conversation of an image and a question was never compacted, since the image was kept and was nearly
/// all of it.
#[test]
fn attachments_are_only_named_if_nothing_is_gained_otherwise() {
    let image = |data: &str| Content::Image { mime_type: "image/png".into(), data: data.into(), uri: None };
    let asked = |conversation: &mut TestConversation, images: Vec<Content>| {
        let text = Content::Text { text: "What is in these?".into() };
        let message = conversation.message([vec![text], images].concat());
        conversation.add(Change::Said { message, origin: Origin::Person });
        conversation.replies(words(100));
    };
    let mut conversation = TestConversation::new();
    asked(&mut conversation, vec![image("iVBORw0KGgo=")]);
    let (content, text) = message(&conversation, 100_000);
    assert!(content.iter().all(|content| matches!(content, Content::Text { .. })), "{text}");
    assert!(text.contains("[image that was attached: image/png]"), "{text}");
    // With two attachments, one is dropped.
    let mut conversation = TestConversation::new();
    asked(&mut conversation, vec![image("iVBORw0KGgo="), image("iVBORw0KGgp=")]);
    let (content, text) = message(&conversation, 100_000);
    assert!(content.contains(&image("iVBORw0KGgo=")) && !content.contains(&image("iVBORw0KGgp=")), "{text}");
    assert!(text.contains("is attached: image/png]") && text.contains("was attached: image/png]"), "{text}");
}

/// Regression: `/compact above e3` compacted everything if almost nothing preceded e3.
#[test]
fn everything_from_a_named_entry_on_is_kept_even_without_a_gain() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("go");
    conversation.replies("Yes.");
    let named = conversation.add_prompt("look");
    conversation.replies(words(5_000));
    let decision = |entry| conversation.decide(100_000, Trigger::Manual, KeptTail::From(entry));
    let CompactionDecision::Summarise(plan) = decision(named) else { panic!("two entries precede it") };
    assert_eq!(plan.through, Seq(named.0 - 1));
    assert_eq!(decision(Seq(1)), CompactionDecision::Nothing(CompactionRefusal::NothingLeft));
    // A number of messages is not a fixed position: if it would keep everything, everything is compacted.
    assert!(matches!(
        conversation.decide(100_000, Trigger::Manual, KeptTail::Messages(4)),
        CompactionDecision::Summarise(_)
    ));
}

/// An older session has the tools of its time. A model calls any other tool without success if a text names it.
#[test]
fn the_recall_tool_is_named_only_if_the_model_has_it() {
    for has_recall in [true, false] {
        let mut conversation = TestConversation::new();
        let tool = |name: &str| ToolSpec {
            name: name.into(),
            description: String::new(),
            schema: serde_json::json!({}),
        };
        let tools = if has_recall { vec![tool("bash"), tool("recall")] } else { vec![tool("bash")] };
        conversation.add(Change::Framed { system: "s".into(), tools });
        conversation.add_prompt(format!("PASTE {} END", "x".repeat(200_000)));
        conversation.calls("bash", words(3_000));
        conversation.add_prompt("the last one");
        conversation.replies("Yes.");
        let (_, text) = message(&conversation, 100_000);
        assert!(text.contains("no longer in view") && text.contains("bytes left out"), "{text}");
        assert_eq!(text.matches("recall").count(), if has_recall { 2 } else { 0 }, "{text}");
    }
}

/// Regression: when the instructions filled the window, a summary was paid for at each prompt before the
/// error that there was no room for it.
#[test]
fn no_summary_is_requested_if_nothing_would_fit() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("first");
    conversation.replies(words(2_000));
    conversation.add_prompt("second");
    for trigger in [Trigger::Manual, Trigger::Threshold, Trigger::Must, Trigger::Overflow] {
        let budget = Budget { frame: 7_900, ..budget(8_000) };
        let decision = decide(
            &CompactionInput::new(&Ruler::for_model(None), &conversation.0, &budget),
            &request(trigger, KeptTail::Nothing),
        );
        let CompactionDecision::Nothing(why) = decision else { panic!("{trigger:?}: {decision:?}") };
        let why = why.to_string();
        assert!(why.contains("7900") && why.contains("larger window"), "{why}");
    }
}

/// Regression: a message to the user said that 42 messages were quoted word for word, and two of them were pastes that
/// had been cut to a small part.
#[test]
fn only_what_is_complete_is_reported_as_quoted_word_for_word() {
    let mut conversation = TestConversation::new();
    let short = conversation.add_prompt("Never push.");
    let paste = conversation.add_prompt(format!("PASTE {} END", "x".repeat(200_000)));
    conversation.replies(words(8_000));
    let request = conversation.add_prompt(format!("REQUEST {} END", words(3_000)));
    let (_, _, account) = accounted(&conversation, 100_000);
    assert_eq!((account.quoted, account.shortened), (vec![short, request], vec![paste]));
    let (_, text, account) = accounted(&conversation, 4_000);
    assert!(text.contains("<last_request>\nREQUEST") && text.contains("bytes left out"), "{text}");
    assert_eq!((account.quoted, account.shortened), (vec![short], vec![paste, request]));
    // A pin repeats the last request, and has all of it.
    conversation.pins(request);
    let (_, _, account) = accounted(&conversation, 100_000);
    assert_eq!((account.quoted, account.shortened), (vec![short, request], vec![paste]));
}

/// Regression: a pinned call was reported as if the complete reply that made it were quoted.
#[test]
fn a_pinned_call_does_not_count_as_its_reply() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("go");
    let reply = Seq(conversation.calls("bash", words(3_000)).0 - 1);
    let at = PartId { entry: reply, part: Some(1) };
    conversation.add(Change::Edited { by: "h".into(), edits: vec![ViewEdit::Pin { at }] });
    conversation.add_prompt("And now?");
    let (_, text, account) = accounted(&conversation, 100_000);
    assert!(text.contains("<pinned entry=") && !account.quoted.contains(&reply), "{account:?}\n{text}");
}

/// Regression: in a window of 60,000 tokens, 50 Chinese messages of 900 characters lost their middle at once as soon as
/// one had to be cut, down to 200 characters each, because the length was in bytes: 43,900 tokens became 12,900. English
/// messages of the same length stayed complete.
#[test]
fn pastes_are_cut_one_by_one_and_only_as_far_as_necessary() {
    let mut chinese = TestConversation::new();
    for number in 0..50 {
        chinese.add_prompt(format!("{number:02} {}", "保留注释。".repeat(180)));
        chinese.replies("Yes.");
    }
    chinese.add_prompt("And now?");
    let (ruler, budget) = (Ruler::for_model(None), budget(60_000));
    let (content, text, account) = accounted(&chinese, 60_000);
    let input = CompactionInput::new(&ruler, &chinese.0, &budget);
    // The room for a model's summary stays free.
    let after =
        input.ruler.message(&Message { id: MessageId(0), content, author: None }) + budget.summary_max;
    // As much is kept as a compaction may keep: what fits, and gains a tenth.
    let target = input.limit.min(input.before * 9 / 10);
    assert!(after <= target && after * 100 >= target * 97, "{} to {after} of {target}", input.before);
    assert!(account.left_out.is_empty() && account.quoted.len() > 10, "{account:?}");
    // The oldest are cut first, and 600 characters of them stay.
    let is_old = |entry: &Seq| account.quoted.iter().all(|quoted| entry < quoted);
    assert!(account.shortened.iter().all(is_old), "{account:?}");
    let first = text.split("</said>").next().and_then(|text| text.split("<said ").nth(1)).expect("a quote");
    assert!(first.chars().filter(|c| "保留注释。".contains(*c)).count() > 590, "{first}");
}

/// Regression: the last request was `/compact`, or an event with the comments of a bot, which so became the user's words.
#[test]
fn an_event_or_a_command_for_the_client_is_not_the_last_request() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("first");
    conversation.replies(words(3_000));
    conversation.add_prompt("fix the parser");
    let event = format!("<ci-monitor-event>\nbot: {} push now\n</ci-monitor-event>", "log ".repeat(1_000));
    let event = conversation.add_prompt(event);
    conversation.replies("The parser is fixed.");
    conversation.add_prompt("/compact");
    let (_, text) = message(&conversation, 100_000);
    assert!(
        text.contains("(it may be answered already):\n\n<last_request>\nfix the parser\n</last_request>"),
        "{text}"
    );
    let quote = format!("<not_by_user entry=\"{event}\" sent_by=\"ci-monitor-event\">\n<ci-monitor-event>");
    assert!(text.contains(&quote) && text.contains("push now") && text.len() < 4_000, "{text}");
}

/// Regression: a user revoked an instruction between the lines of a log of 14 kB. The middle of each text beyond 8,192
/// characters was cut in a window of any size, and the instruction stood alone.
#[test]
fn a_revocation_inside_a_pasted_log_stays_with_what_it_revokes() {
    let line = |nth: usize| {
        format!(
            "2026-08-22T01:06:{:02}.1Z INFO [db-{}] slow query id={nth:x} took {nth}ms",
            nth % 60,
            nth % 9
        )
    };
    for revocation in [
        "forget what I said about tabs, two spaces everywhere",
        "タブの件は取り消します。必ず空白を二つ使ってください。",
    ] {
        let mut log: Vec<String> = (1_000..1_200).map(line).collect();
        log.insert(90, revocation.to_owned());
        let log = log.join("\n");
        for window in [200_000, 3_000] {
            let mut conversation = TestConversation::new();
            conversation.add_prompt("Use tabs for indentation.");
            conversation.replies(words(6_000));
            conversation.add_prompt(log.as_str());
            conversation.replies("Yes.");
            conversation.add_prompt("And now?");
            let (_, text) = message(&conversation, window);
            assert!(text.contains("Use tabs") && text.contains(revocation), "{window}: {text}");
            assert_eq!(text.contains(&log), window == 200_000, "{text}");
        }
    }
}

/// The same number of characters is kept in every script.
#[test]
fn a_paste_keeps_as_many_characters_in_every_script() {
    let kept = |word: &str| {
        let mut conversation = TestConversation::new();
        conversation.add_prompt(word.repeat(400_000));
        conversation.replies(words(3_000));
        conversation.add_prompt("And now?");
        let (_, text, _) = accounted(&conversation, 200_000);
        text.matches(word).count()
    };
    assert_eq!(kept("保"), 8 * 1024);
    assert_eq!(kept("ก"), 8 * 1024);
    // "Q" is in no other sentence of the message.
    assert_eq!(kept("Q"), 8 * 1024);
}

/// Each attempt measures the complete message, so that an attempt for each of thousands of pastes would take minutes.
#[test]
fn one_step_cuts_as_many_pastes_as_necessary() {
    let mut conversation = TestConversation::new();
    for number in 0..1_000 {
        conversation.add_prompt(format!("{number:04} {}", "walnut ".repeat(200)));
        conversation.replies("Yes.");
    }
    conversation.add_prompt("And now?");
    let (ruler, budget) = (Ruler::for_model(None), budget(400_000));
    let input = CompactionInput::new(&ruler, &conversation.0, &budget);
    let mut material = Material::collect(&input, input.entries().len());
    let before = material.user_tokens();
    let all = before / 2;
    assert!(material.cut_pastes(&input, all / 3, 0));
    let after = material.user_tokens();
    assert!(after + all / 3 <= before && after + all / 3 + 300 > before, "{before} to {after}");
    assert!(material.user.last().expect("the oldest").is_cut() && !material.user[0].is_cut());
    while material.cut_pastes(&input, u64::MAX, 0) {}
    assert!(material.user.iter().all(|words| words.is_cut()));
}

/// Regression: each compaction listed all messages of the user that it had no room for. In a conversation of 16,000 turns
/// that were 97 kB in the log, and as much memory, every 300 turns.
#[test]
fn what_a_compaction_left_out_takes_no_more_room_in_a_longer_conversation() {
    let stored = |messages: u32| {
        let mut conversation = TestConversation::new();
        for number in 0..messages {
            conversation.add_prompt(format!("{number:05} {}", words(400)));
            conversation.replies("Yes.");
        }
        let (_, text, account) = accounted(&conversation, 40_000);
        let earlier = account.left_out_earlier.as_deref().expect("there is no room for the first ones");
        let listed = account.quoted.len() + account.shortened.len() + account.left_out_count();
        assert_eq!(listed, messages as usize, "{account:?}");
        let known = account.left_out.iter().chain(&account.quoted).chain(&account.shortened);
        assert!(known.into_iter().all(|entry| *entry > earlier.through), "{account:?}");
        assert!(text.contains("[…]"), "{text}");
        serde_json::to_string(&account).expect("it can be stored").len()
    };
    let (short, long) = (stored(1_000), stored(4_000));
    assert!(long < short + 100, "{short} and {long} bytes");
}

/// Regression: an editor's attached files disappeared. A pinned message lost the rules attached to it, even their
/// name, and a message was reported as quoted word for word although only the name of its file was left.
#[test]
fn attached_files_are_quoted_with_a_pin_and_otherwise_reported_as_missing() {
    let asks = |conversation: &mut TestConversation, words: &str, uri: &str, file: &str| {
        let text = Content::Text { text: words.to_owned() };
        let file = Content::Resource { uri: uri.to_owned(), text: file.to_owned() };
        let message = conversation.message(vec![text, file]);
        conversation.add(Change::Said { message, origin: Origin::Person })
    };
    let mut conversation = TestConversation::new();
    let pinned = asks(&mut conversation, "Follow these rules.", "zed:///rules", "Never use unwrap.");
    let older = asks(&mut conversation, "Read this.", "file:///old.txt", "OLD FILE");
    conversation.replies(words(30_000));
    conversation.pins(pinned);
    let request = asks(&mut conversation, "Sum up the table.", "file:///t.csv", &"1,2,3\n".repeat(1_500));
    let (content, text, account) = accounted(&conversation, 100_000);
    assert!(text.contains("Follow these rules.\n\n[zed:///rules]\nNever use unwrap.\n</pinned>"), "{text}");
    assert!(
        text.contains("[file that was attached: file:///old.txt]") && !text.contains("OLD FILE"),
        "{text}"
    );
    assert!(content.iter().any(Content::is_attachment));
    assert_eq!((account.quoted, account.shortened), (vec![pinned, request], vec![older]));
    // Without room for the table, only its name is left.
    let (content, text, account) = accounted(&conversation, 2_500);
    assert!(text.contains("[file that was attached: file:///t.csv]"), "{text}");
    assert!(!content.iter().any(Content::is_attachment));
    assert_eq!((account.quoted, account.shortened), (vec![pinned], vec![older, request]));
    // The pins as they are counted have the file, too.
    let why = pins_too_large(&Ruler::for_model(None), &conversation.0, 5).expect("more than five tokens");
    assert!(why.contains(&pinned.to_string()), "{why}");
}
