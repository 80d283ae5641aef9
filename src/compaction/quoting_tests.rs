//! Examples of what the compaction message quotes if there is not room for everything.

use super::conversation::{TestConversation, budget, wish, words};
use super::*;
use epitome_thread::{Change, Content, Origin, Seq, ToolSpec, Trigger};
use epitome_tokens::Ruler;

/// The message of a compaction of everything, in a window of `window` tokens.
fn message(conversation: &TestConversation, window: u64) -> (Vec<Content>, String) {
    let ruler = Ruler::for_model(None);
    let plan = match conversation.decide(window, Trigger::Manual, KeptTail::Nothing) {
        CompactionDecision::Summarise(plan) => plan,
        other => panic!("{other:?}"),
    };
    let id = conversation.0.next_message();
    match compacted(&ruler, &conversation.0, &budget(window), &plan, id, SummaryResult::default()) {
        Ok(Change::Compacted { summary, .. }) => {
            let text = summary.text();
            (summary.content, text)
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
    let decision = conversation.decide(100_000, Trigger::Manual, KeptTail::From(named));
    assert_eq!(decision, CompactionDecision::Nothing(NO_GAIN.to_owned()));
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
        conversation.add_prompt(format!("PASTE {} END", "x".repeat(20_000)));
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
        let decision =
            decide(&Ruler::for_model(None), &conversation.0, &budget, &wish(trigger, KeptTail::Nothing));
        let CompactionDecision::Nothing(why) = decision else { panic!("{trigger:?}: {decision:?}") };
        assert!(why.contains("7900") && why.contains("larger window"), "{why}");
    }
}
