//! Tests of repeated compactions: they keep hooks' edits, and summaries that no model writes again.

use std::path::PathBuf;

use super::tests::conversation::{TestConversation, budget, words};
use super::*;
use epitome_thread::{
    Change, CompactionStats, Content, HistoryMessage, Message, ModelName, Native, Origin, OutcomeStatus,
    PartId, Role, Seq, Trigger, Usage, ViewEdit, edits,
};
use epitome_tokens::Ruler;

const WINDOW: u64 = 100_000;

impl TestConversation {
    fn edits(&mut self, edit: ViewEdit) {
        self.add(Change::Edited { by: "h".into(), edits: vec![edit] });
    }

    /// Adds a request and a reply that are long enough for another compaction.
    fn goes_on(&mut self) {
        self.add_prompt("go on");
        self.replies(words(3_000));
    }

    /// Compacts everything without a model and returns the text of the message.
    fn compact_all(&mut self) -> String {
        self.compact(WINDOW, Trigger::Manual, KeptTail::Nothing, None)
    }

    /// The same with a summary by a model.
    fn compact_by_model(&mut self) -> String {
        self.compact(WINDOW, Trigger::Manual, KeptTail::Nothing, Some("They talked."))
    }

    /// Adds a compaction of everything, with this message and without an account, as an import does.
    fn compacted_elsewhere(&mut self, summary: Message) -> Seq {
        let through = Seq(self.0.next_seq().0 - 1);
        self.add(Change::Compacted {
            through,
            summary,
            trigger: Trigger::Manual,
            focus: None,
            tokens_before: 10_000,
            tokens_after: 100,
            window: None,
            model: None,
            usage: None,
            masks: Vec::new(),
            account: CompactionStats::default(),
        })
    }

    /// Composes a compaction of everything with this result of the summary.
    fn compacted_with(&self, written: Summary) -> Message {
        let CompactionDecision::Summarise(plan) = self.decide(WINDOW, Trigger::Manual, KeptTail::Nothing)
        else {
            panic!("there is something to compact")
        };
        let (ruler, id) = (Ruler::for_model(None), self.0.next_message());
        match compacted(&CompactionInput::new(&ruler, &self.0, &budget(WINDOW)), &plan, id, written) {
            Ok(Change::Compacted { summary, .. }) => summary,
            other => panic!("{other:?}"),
        }
    }
}

fn at(entry: Seq) -> PartId {
    PartId { entry, part: None }
}

fn content(text: &str) -> Vec<Content> {
    vec![Content::Text { text: text.to_owned() }]
}

/// Regression: a hook replaced a user's message to remove a key from it. The first compaction quoted the message as the
/// hook had left it. By the second one it was no longer in the view, and it was dropped although there was room: neither
/// listed as left out nor found by `recall`. The same happened to instruction files, which are not sent again after an
/// edit.
#[test]
fn messages_that_a_hook_edited_survive_repeated_compactions() {
    let mut conversation = TestConversation::new();
    let prompt = conversation.add_prompt("Never push. The key is sk-123.");
    let masked = conversation.add_prompt("The other key is sk-456.");
    let dropped = conversation.add_prompt("And this one is sk-789.");
    let origin = Origin::Instructions { path: PathBuf::from("/w/AGENTS.md") };
    let file = |text: &str| format!("<instructions path=\"/w/AGENTS.md\">\n{text}\n</instructions>");
    let instructions = conversation.add_message_from(file("Use tabs, token sk-000."), origin);
    conversation.replies(words(3_000));
    conversation.edits(ViewEdit::Replace { at: at(prompt), content: content("Never push.") });
    conversation.edits(ViewEdit::Mask { at: at(masked), note: "a key".into() });
    conversation.edits(ViewEdit::Drop { at: at(dropped) });
    let without_key = content(&file("Use tabs."));
    conversation.edits(ViewEdit::Replace { at: at(instructions), content: without_key });
    for _ in 0..3 {
        conversation.goes_on();
        let text = conversation.compact_all();
        assert!(text.contains("\nNever push.\n") && text.contains("[masked by h: a key; entry"), "{text}");
        assert!(text.contains("\nUse tabs.\n</instructions>") && !text.contains("sk-"), "{text}");
    }
}

/// Regression: a compaction message quoted a key, so a hook replaced the message. The next compaction quoted the
/// originals from the log again. The hook's version of the message must survive, too.
#[test]
fn an_edited_compaction_message_is_carried_over_and_its_originals_are_not_quoted() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("Never push. The key is sk-123.");
    conversation.goes_on();
    assert!(conversation.compact_all().contains("sk-123"));
    let compaction = Seq(conversation.0.next_seq().0 - 1);
    let redacted = "The user said: never push. The key was removed.";
    conversation.edits(ViewEdit::Replace { at: at(compaction), content: content(redacted) });
    for _ in 0..2 {
        conversation.goes_on();
        let text = conversation.compact_all();
        assert!(text.contains(redacted) && !text.contains("sk-123"), "{text}");
    }
    // If the compaction is undone, its originals are in the view, and its edit has no effect.
    let mut conversation = TestConversation::new();
    conversation.add_prompt("Never push.");
    conversation.goes_on();
    conversation.compact_all();
    let compaction = Seq(conversation.0.next_seq().0 - 1);
    conversation.edits(ViewEdit::Replace { at: at(compaction), content: content("Nothing.") });
    conversation.add(Change::Undone { entry: compaction });
    conversation.goes_on();
    let text = conversation.compact_all();
    assert!(text.contains("\nNever push.\n"), "{text}");
}

/// Regression: a hook dropped the outcome of a question, and a call. Compactions quoted the user's answer and listed
/// the command nevertheless, because an edit names only one of the two.
#[test]
fn dropped_calls_and_answers_are_not_quoted() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("Ask me.");
    let answer = conversation.calls("ask_user", "The key is sk-123.");
    let input = serde_json::json!({"command": "login sk-456"});
    let login = conversation.calls_with("bash", input, OutcomeStatus::Completed, "ok");
    conversation.edits(ViewEdit::Drop { at: PartId { entry: Seq(answer.0 - 1), part: Some(1) } });
    conversation.edits(ViewEdit::Drop { at: at(login) });
    conversation.goes_on();
    let text = conversation.compact_all();
    assert!(text.contains("Ask me.") && !text.contains("sk-"), "{text}");
}

/// Regression: only a summary between Epitome's own tags was carried over when no model wrote a new one. The summary of
/// an imported session and a hook's history have no tags: both were dropped, and they are nowhere else. The message said
/// that `recall` finds entries that a hook's history hides from it.
#[test]
fn summaries_of_others_are_carried_over_without_a_model() {
    let mut imported = TestConversation::new();
    imported.add_prompt("go");
    let summary = "A summary of what was said and done so far:\n\nShip on Friday.";
    imported.compacted_elsewhere(imported.message(content(summary)));
    for _ in 0..2 {
        imported.goes_on();
        let text = imported.compact_all();
        assert_eq!(text.matches("Ship on Friday.").count(), 1, "{text}");
    }

    let mut replaced = TestConversation::new();
    let removed = replaced.add_prompt("The key is sk-123.");
    replaced.replies("Yes.");
    let spoken = |role, text: &str| HistoryMessage { role, message: replaced.message(content(text)) };
    let messages = vec![spoken(Role::User, "Ship on Friday."), spoken(Role::Assistant, "I will.")];
    let revision = replaced.0.view().revision();
    let made = edits::mutation(&replaced.0, revision, replaced.0.next_message(), messages, 0).expect("valid");
    let change = mutated(&Ruler::for_model(None), &replaced.0, made, "h".into(), WINDOW).expect("it fits");
    let history = replaced.add(change);
    for _ in 0..2 {
        replaced.goes_on();
        let text = replaced.compact_all();
        assert!(
            text.contains("USER: Ship on Friday.\n\nAGENT: I will.") && !text.contains("sk-123"),
            "{text}"
        );
        let gone = format!("entries from {} to", Seq(history.0 + 1));
        assert!(removed < history && text.contains(&gone), "{text}");
    }
}

/// Regression: a provider's encrypted compaction has no readable text. When the next compaction was made by another
/// model or without one, it was dropped, with everything that it covered.
#[test]
fn an_encrypted_summary_is_carried_over_unless_its_model_writes_a_new_one() {
    let native = Native {
        provider: "openai".into(),
        model: "gpt-6".into(),
        data: serde_json::json!({"compaction": {"type": "compaction", "encrypted_content": "x"}}),
    };
    let part = Content::Thinking { text: String::new(), native: Some(native) };
    let mut conversation = TestConversation::new();
    conversation.add_prompt("go");
    conversation.replies(words(3_000));
    let first = Summary { native: vec![part.clone()], ..Summary::default() };
    let summary = conversation.compacted_with(first);
    conversation.compacted_elsewhere(summary);
    conversation.goes_on();
    let by = |model: &str| Some((ModelName(model.into()), Usage::default()));
    let text = || Some("New.".to_owned());
    for (written, is_kept) in [
        (Summary::default(), true),
        (Summary { text: text(), by: by("anthropic/claude"), ..Summary::default() }, true),
        (Summary { text: text(), by: by("openai/gpt-6"), ..Summary::default() }, false),
    ] {
        let message = conversation.compacted_with(written.clone());
        assert_eq!(message.content.contains(&part), is_kept, "{written:?}");
        assert_eq!(message.content[0] == part, is_kept, "it precedes everything else: {written:?}");
    }
}

/// Regression: a hook added a text to the summary. If no model wrote one, the hook's text was taken for a new summary,
/// and replaced that of the earlier compaction. It was also cut like the middle of a summary.
#[test]
fn a_hooks_addition_does_not_replace_the_earlier_summary() {
    let mut conversation = TestConversation::new();
    conversation.goes_on();
    conversation.compact(WINDOW, Trigger::Manual, KeptTail::Nothing, Some("The parser is done."));
    conversation.goes_on();
    let context = vec![("lint".to_owned(), "no tabs".to_owned()), ("port".to_owned(), "8123".to_owned())];
    let written = Summary { context, ..Summary::default() };
    let message = conversation.compacted_with(written.clone());
    let text = message.text();
    assert!(text.contains("<summary>\nThe parser is done.\n</summary>"), "{text}");
    assert!(text.contains("Kept for lint:\nno tabs\n\nKept for port:\n8123"), "{text}");
    let new = Summary { text: Some("The lexer too.".into()), ..written };
    let text = conversation.compacted_with(new).text();
    assert!(text.contains("<summary>\nThe lexer too.\n</summary>") && text.contains("8123"), "{text}");
}

/// Regression: a hook removed a key from the message of a compaction, or from the history. Nothing that it rewrote is
/// quoted from the log again, and what the hook had left was only used if no model wrote a summary. With one, all of
/// the user's earlier instructions disappeared, and the account did not list them.
#[test]
fn words_that_a_hook_left_survive_summaries_by_a_model() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("Never touch vendor/. The key is sk-123.");
    conversation.goes_on();
    conversation.add_prompt("Answer in French.");
    conversation.replies("Yes.");
    let message = conversation.compact_all();
    let compaction = Seq(conversation.0.next_seq().0 - 1);
    let redacted = content(&message.replace("sk-123", "[redacted]"));
    conversation.edits(ViewEdit::Replace { at: at(compaction), content: redacted });
    for _ in 0..2 {
        conversation.add_prompt("Use tabs.");
        conversation.goes_on();
        let text = conversation.compact_by_model();
        for words in ["Never touch vendor/. The key is [redacted].", "Answer in French.", "Use tabs."] {
            assert!(text.contains(&format!("\n{words}\n</said>")), "{words}: {text}");
        }
        assert_eq!(text.matches("Answer in French.").count(), 1, "{text}");
        assert!(text.contains("as a hook left it") && !text.contains("sk-123"), "{text}");
    }

    let mut replaced = TestConversation::new();
    replaced.add_prompt("Ship on Friday. The key is sk-123.");
    replaced.replies("Yes.");
    let spoken = |role, text: &str| HistoryMessage { role, message: replaced.message(content(text)) };
    let messages = vec![spoken(Role::User, "Ship on Friday."), spoken(Role::Assistant, "I will.")];
    let revision = replaced.0.view().revision();
    let made = edits::mutation(&replaced.0, revision, replaced.0.next_message(), messages, 0).expect("valid");
    replaced.add(mutated(&Ruler::for_model(None), &replaced.0, made, "h".into(), WINDOW).expect("it fits"));
    for _ in 0..2 {
        replaced.goes_on();
        let text = replaced.compact_by_model();
        assert!(text.contains("\nShip on Friday.\n</said>") && !text.contains("sk-123"), "{text}");
        assert!(!text.contains("I will."), "the summary covers the agent's words: {text}");
    }
}
