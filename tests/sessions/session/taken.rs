//! Requests that a provider would reject: content that is dropped, and checks before sending.

use epitome::config::WireFormat;
use epitome::session::SessionEvent;
use epitome::thread::{Change, ReplyCut, StopReason, Trigger};
use epitome_scripted_model::{ModelStep, ScriptedStop};
use epitome_test_harness::session::Setup;
use epitome_test_harness::text;

use super::formats::{sealed, think};

const SUMMARY: &str = "<summary>Half of it was said.</summary>";

/// Regression: newer Claude models bind thinking to everything that precedes it, and only the provider can detect a
/// mismatch. After such a rejection the user could not continue the conversation, because each later request contained
/// the same thinking.
#[test]
fn rejected_thinking_is_dropped_and_the_turn_continues() {
    let refused = ModelStep::Error {
        status: 400,
        retry_after: None,
        message: Some("messages.1.content.0: Invalid `signature` in `thinking` block".into()),
    };
    let mut replies = vec![
        vec![think("Hm."), text("One.")],
        vec![refused],
        vec![think("Well."), text("Two.")],
        vec![text("Three.")],
    ]
    .into_iter();
    let mut test = Setup::new()
        .format(WireFormat::AnthropicMessages)
        .start(move |_| replies.next().expect("no more is asked for"));
    for prompt in ["one", "two", "three"] {
        assert_eq!(test.ask(prompt), StopReason::EndTurn);
    }
    let sent: Vec<usize> = test.model.requests().iter().map(sealed).collect();
    assert_eq!(sent, [0, 1, 0, 1], "refused once, left out, and what is thought since goes back");
    let dropped =
        test.log().iter().filter(|entry| matches!(entry.change, Change::ThinkingDropped { .. })).count();
    assert_eq!(dropped, 1);
}

#[test]
fn a_reply_that_fills_the_window_is_compacted_and_continued() {
    let mut replies = vec![
        vec![text("The first half and "), ModelStep::Stop(ScriptedStop::Window)],
        vec![text(SUMMARY)],
        vec![text("the second half.")],
    ]
    .into_iter();
    let mut test = Setup::new()
        .format(WireFormat::AnthropicMessages)
        .start(move |_| replies.next().expect("no more is asked for"));
    assert_eq!(test.ask(&"Tell me all of it. ".repeat(200)), StopReason::EndTurn);
    let came: Vec<&str> = test
        .log()
        .iter()
        .filter_map(|entry| match &entry.change {
            Change::Replied { cut: Some(ReplyCut::WindowFull), .. } => Some("cut"),
            Change::Replied { cut: None, .. } => Some("whole"),
            Change::Compacted { trigger: Trigger::Overflow, .. } => Some("compacted"),
            _ => None,
        })
        .collect();
    assert_eq!(came, ["cut", "compacted", "whole"]);
}

/// A rejected request is slow and, with some providers, charged; if token counting is free, it is used first.
/// Regression: for such a compaction, `/why` reported that the request was too long for the model. It had not been
/// rejected, but exceeded the room that remains next to a reply.
#[test]
fn a_request_that_may_be_too_long_is_counted_before_it_is_sent() {
    const WINDOW: &str = "[models.\"anthropic/claude-sonnet-5-5\"]\ncontext_window = 12000\n";
    let mut replies = vec![
        vec![ModelStep::Usage { input: 4_200, output: 10 }, text("Yes.")],
        vec![text(SUMMARY)],
        vec![text("Yes again.")],
    ]
    .into_iter();
    let mut test = Setup::with_config(WINDOW).start(move |_| replies.next().expect("no more is asked for"));
    for prompt in ["one", "two"] {
        assert_eq!(test.ask(&format!("{prompt} {}", "word and word ".repeat(1_300))), StopReason::EndTurn);
    }
    let compacted = test.log().iter().any(|entry| match &entry.change {
        Change::Compacted { trigger, .. } => *trigger == Trigger::Must,
        _ => false,
    });
    assert!(compacted, "{:?}", test.log().iter().map(|entry| entry.change.kind()).collect::<Vec<_>>());
    assert_eq!(test.model.requests().len(), 3, "the long request was never sent");
}

/// Regression: a server that reported 0.8 tokens for four bytes was assumed to truncate requests, like Ollama does.
/// After two prompts of 200 words its window was 4,096 tokens, and `/compact` claimed that no conversation fits. The
/// server only counts differently; a window may only be learned from the server's list or from a rejection.
#[test]
fn a_server_that_counts_fewer_tokens_keeps_its_window() {
    let mut counts = [7_000, 12_000].into_iter();
    let mut test = Setup::new().format(WireFormat::OpenAiChat).start(move |_| {
        vec![ModelStep::Usage { input: counts.next().expect("two prompts"), output: 10 }, text("I see.")]
    });
    test.reload(vec![("EPITOME_MODEL".into(), "chat/of-unknown-size".into())]);
    for prompt in ["one", "two"] {
        let prompt = format!("{prompt} {}", "word and word ".repeat(3_000));
        assert_eq!(test.ask(&prompt), StopReason::EndTurn);
    }
    let compacted = test.log().iter().any(|entry| matches!(entry.change, Change::Compacted { .. }));
    assert!(!compacted, "there is room");
    let sizes = test.client.seen.iter().filter_map(|out| match out {
        SessionEvent::Usage(usage) => Some(usage.size),
        _ => None,
    });
    assert_eq!(sizes.collect::<std::collections::BTreeSet<_>>(), [32_768].into());
}
