//! What the one message says word for word where there is not room for all, by example.

use super::ledger::Ledger;
use super::talk::{Talk, budget, wish, words};
use super::*;
use crate::thread::{Change, Content, Origin, Seq, ToolSpec, Trigger};
use crate::tokens::Ruler;

/// The one message of a compaction with the ledger that the log gives, where the person's words may take so many
/// tokens.
fn message(talk: &Talk, ledger_max: u64, person_max: u64) -> (Vec<Content>, String) {
    let budget = Budget { ledger_max, person_max, ..budget(100_000) };
    let mut ledger = Ledger::default();
    ledger.follow(&talk.0);
    let ruler = Ruler::of(None);
    let plan = match decide(&ruler, &talk.0, &budget, &wish(Trigger::Manual, Keep::Nothing)) {
        Decision::Summarise(plan) => plan,
        other => panic!("{other:?}"),
    };
    let id = talk.0.next_message();
    match compacted(&ruler, &talk.0, &ledger, &budget, &plan, id, Written::default()) {
        Ok(Change::Compacted { summary, .. }) => {
            let text = summary.text();
            (summary.content, text)
        }
        other => panic!("{other:?}"),
    }
}

/// Small talk that was newer took the room, and what the person had asked for at the beginning was lost.
#[test]
fn where_room_is_short_what_the_person_wants_outlasts_small_talk() {
    let mut talk = Talk::new();
    let wanted = talk.says("You must never write to the table of invoices, whatever a test asks for.");
    talk.replies(words(500));
    let story = talk.says(format!("Here is how it came about. {}", words(60)));
    let mut thanks = Vec::new();
    for _ in 0..40 {
        talk.replies(words(100));
        thanks.push(talk.says("thanks, go on"));
    }
    talk.says("And now?");
    talk.replies("Yes.");
    let quoted = |entry: Seq, text: &str| text.contains(&format!("<said entry=\"{entry}\">"));
    let (_, text) = message(&talk, 0, 200);
    assert!(quoted(wanted, &text) && quoted(story, &text), "{text}");
    assert!(!quoted(thanks[0], &text), "the oldest goes first: {text}");
    assert!(text.find("never write") < text.find("how it came about"), "in their order: {text}");
    assert!(text.contains("</said>\n[…]\n"), "a gap is marked: {text}");
    // What the ledger tells is not quoted beside it, as long as there is something else to quote.
    let (_, text) = message(&talk, 2_000, 110);
    assert!(text.matches("never write to the table").count() == 1 && quoted(story, &text), "{text}");
    // With room for all there is no gap.
    let (_, text) = message(&talk, 2_000, 10_000);
    assert!(quoted(wanted, &text) && quoted(thanks[0], &text) && !text.contains("[…]"), "{text}");
}

/// Of a picture and a question about it nothing was compacted: the picture came along and was all that there was.
#[test]
fn what_is_attached_is_only_named_where_nothing_is_gained_with_it() {
    let image = |data: &str| Content::Image { mime_type: "image/png".into(), data: data.into(), uri: None };
    let asked = |talk: &mut Talk, images: Vec<Content>| {
        let text = Content::Text { text: "What is in these?".into() };
        let message = talk.message([vec![text], images].concat());
        talk.add(Change::Said { message, origin: Origin::Person });
        talk.replies(words(100));
    };
    let mut talk = Talk::new();
    asked(&mut talk, vec![image("iVBORw0KGgo=")]);
    let (content, text) = message(&talk, 100, 100);
    assert!(content.iter().all(|content| matches!(content, Content::Text { .. })), "{text}");
    assert!(text.contains("[image that was attached: image/png]"), "{text}");
    // Of two the half gives way.
    let mut talk = Talk::new();
    asked(&mut talk, vec![image("iVBORw0KGgo="), image("iVBORw0KGgp=")]);
    let (content, text) = message(&talk, 100, 100);
    assert!(content.contains(&image("iVBORw0KGgo=")) && !content.contains(&image("iVBORw0KGgp=")), "{text}");
    assert!(text.contains("is attached: image/png]") && text.contains("was attached: image/png]"), "{text}");
}

/// `/compact above e3` compacted everything where above e3 was next to nothing.
#[test]
fn all_from_a_named_entry_on_stays_also_where_nothing_is_left_to_do() {
    let mut talk = Talk::new();
    talk.says("go");
    talk.replies("Yes.");
    let named = talk.says("look");
    talk.replies(words(5_000));
    let decision = talk.decide(100_000, Trigger::Manual, Keep::From(named));
    assert_eq!(decision, Decision::Nothing(NO_GAIN.to_owned()));
    // A number of messages is a measure, and not a place: where all would stay, all goes.
    assert!(matches!(talk.decide(100_000, Trigger::Manual, Keep::Messages(4)), Decision::Summarise(_)));
}

/// An older session has the tools of its day, and a model that is told of another one calls it in vain.
#[test]
fn the_tool_that_reads_the_log_is_only_named_where_the_model_has_it() {
    for has_recall in [true, false] {
        let mut talk = Talk::new();
        let tool = |name: &str| ToolSpec {
            name: name.into(),
            description: String::new(),
            schema: serde_json::json!({}),
        };
        let tools = if has_recall { vec![tool("bash"), tool("recall")] } else { vec![tool("bash")] };
        talk.add(Change::Framed { system: "s".into(), tools });
        talk.says(format!("PASTE {} END", "x".repeat(20_000)));
        talk.calls("bash", words(3_000));
        talk.says("the last one");
        talk.replies("Yes.");
        let (_, text) = message(&talk, 1_000, 10_000);
        assert!(text.contains("no longer in view") && text.contains("bytes left out"), "{text}");
        assert_eq!(text.matches("recall").count(), if has_recall { 2 } else { 0 }, "{text}");
    }
}
