//! Difficult compactions: small windows, failing summaries, a single message that is too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::stage::notices;
use epitome::session::{SessionAnswer, SessionEvent};
use epitome::thread::{Change, Content, StopReason, Trigger};
use epitome_scripted_model::{ModelStep, RecordedRequest, SeenPart};
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::text;

/// Window in tokens, much smaller than the one in the model table.
const WINDOW: usize = 6_000;

fn tokens(request: &RecordedRequest) -> usize {
    request.body.to_string().len() / 4
}

fn is_summary(request: &RecordedRequest) -> bool {
    request.last_user_text().contains("Then write the handover")
}

/// A provider that counts tokens, rejects requests that are too long, and sends long replies.
fn strict(mut reply: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static) -> TestSession {
    TestSession::with(move |request| {
        let used = tokens(request);
        if used > WINDOW {
            let message = Some(format!("prompt is too long: {used} tokens > {WINDOW} maximum"));
            return vec![ModelStep::Error { status: 400, retry_after: None, message }];
        }
        let mut steps = reply(request);
        steps.push(ModelStep::Usage { input: used as u64, output: 1_100 });
        steps
    })
}

fn many_words() -> Vec<ModelStep> {
    vec![ModelStep::Flood { count: 400, text: "many words ".into() }]
}

fn compactions(test: &TestSession) -> Vec<Trigger> {
    test.log()
        .iter()
        .filter_map(|entry| match &entry.change {
            Change::Compacted { trigger, .. } => Some(*trigger),
            _ => None,
        })
        .collect()
}

#[test]
fn a_session_survives_many_overflows_of_a_small_window() {
    let mut test = strict(|request| match is_summary(request) {
        true => vec![text("<summary>They say many words. The first word was walnut.</summary>")],
        false => many_words(),
    });
    for round in 0..24 {
        assert_eq!(test.ask(&format!("Say many words, {round}")), StopReason::EndTurn);
    }
    assert!(compactions(&test).len() >= 2, "{:?}", compactions(&test));
    let size = test.client.until(|out| match out {
        SessionEvent::Usage(usage) if usage.size == WINDOW as u64 => Some(usage.size),
        _ => None,
    });
    assert_eq!(size, WINDOW as u64, "the provider's own window is shown from then on");
}

/// Regression: OpenAI rejects requests that are too long without reporting the limit. Nothing was learned from that:
/// the conversation grew until the next rejection, and each compaction began with a failed request.
#[test]
fn a_provider_that_reports_no_window_rejects_only_one_request() {
    const LIMIT: usize = 12_000;
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = refused.clone();
    let mut test = TestSession::with(move |request| {
        let used = tokens(request);
        if used > LIMIT {
            counted.fetch_add(1, Ordering::Relaxed);
            let message = "Your input exceeds the context window of this model. Please adjust your input and try again.";
            return vec![ModelStep::Error {
                status: 400,
                retry_after: None,
                message: Some(message.to_owned()),
            }];
        }
        let mut steps = match is_summary(request) {
            true => vec![text("<summary>They say many words.</summary>")],
            false => many_words(),
        };
        steps.push(ModelStep::Usage { input: used as u64, output: 1_100 });
        steps
    });
    for round in 0..40 {
        assert_eq!(test.ask(&format!("Say many words, {round}")), StopReason::EndTurn);
    }
    let compactions = compactions(&test);
    assert!(compactions[0] == Trigger::Overflow && compactions.len() >= 4, "{compactions:?}");
    assert_eq!(refused.load(Ordering::Relaxed), 1, "not even for the summary");
}

#[test]
fn a_session_survives_without_any_summary() {
    let mut test = strict(|request| match is_summary(request) {
        true => vec![ModelStep::Call { name: "does".into(), input: serde_json::json!({}) }],
        false => many_words(),
    });
    for round in 0..12 {
        assert_eq!(test.ask(&format!("Say many words, {round}")), StopReason::EndTurn);
    }
    assert!(!compactions(&test).is_empty());
}

#[test]
fn a_single_message_longer_than_the_window_is_answered() {
    let mut test = strict(|request| match is_summary(request) {
        true => vec![text("<summary>They pasted a long text.</summary>")],
        false => vec![text("Long indeed.")],
    });
    let paste = format!("Begin. {}The end: count the words.", "some words of a paste ".repeat(4_000));
    assert_eq!(test.ask(&paste), StopReason::EndTurn);
    let last = test.last_request().last_user_text();
    assert!(last.contains("Begin. ") && last.contains("count the words."), "{last}");
}

/// Regression: a server was restarted with a smaller window than the configured one. The next prompt was compacted for the
/// old window before it was sent, and when the server refused it all the same, the turn failed: between two replies, only
/// one compaction was made.
#[test]
fn a_request_that_is_still_too_long_after_a_compaction_is_compacted_again() {
    let config = "[compaction]\nmodel = \"none\"\n\n[models.\"anthropic/claude-sonnet-5-5\"]\ncontext_window = 20000\n";
    let window = Arc::new(AtomicUsize::new(20_000));
    let current = window.clone();
    let mut test = Setup::with_config(config).start(move |request| {
        let (used, window) = (tokens(request), current.load(Ordering::Relaxed));
        if used > window {
            let message = Some(format!("prompt is too long: {used} tokens > {window} maximum"));
            return vec![ModelStep::Error { status: 400, retry_after: None, message }];
        }
        let count = if window == 20_000 { 1_500 } else { 10 };
        let reply = ModelStep::Flood { count, text: "many words ".into() };
        vec![reply, ModelStep::Usage { input: used as u64, output: 1_100 }]
    });
    for _ in 0..2 {
        assert_eq!(test.ask("Say many words"), StopReason::EndTurn);
    }
    assert!(compactions(&test).is_empty());
    window.store(4_000, Ordering::Relaxed);
    let paste = format!("Begin. {}The end: count the words.", "some words of a paste ".repeat(3_000));
    assert_eq!(test.ask(&paste), StopReason::EndTurn);
    assert_eq!(compactions(&test).first(), Some(&Trigger::Must));
    let last = test.last_request().last_user_text();
    assert!(last.contains("Begin. ") && last.contains("count the words."), "{last}");
}

/// Regression: just after a compaction, the user chose a model with a smaller window. The next compaction waited until the
/// conversation had grown by a tenth, so a request was sent that was larger than the window. Local servers silently drop
/// the beginning of such a request.
#[test]
fn a_compacted_conversation_is_compacted_again_for_a_model_with_a_smaller_window() {
    let config =
        "[compaction]\nmodel = \"none\"\n\n[models.\"anthropic/claude-haiku-4-5\"]\ncontext_window = 6000\n";
    let mut test = Setup::with_config(config).start(|request| {
        let reply = ModelStep::Flood { count: 2_000, text: "many words ".into() };
        vec![reply, ModelStep::Usage { input: tokens(request) as u64, output: 5_500 }]
    });
    for _ in 0..6 {
        assert_eq!(test.ask("Say many words"), StopReason::EndTurn);
    }
    assert_eq!(test.ask("/compact keep=4"), StopReason::EndTurn);
    assert_eq!(compactions(&test), [Trigger::Manual]);
    test.choose("model", "anthropic/claude-haiku-4-5").expect("it is offered");
    assert_eq!(test.ask("And now?"), StopReason::EndTurn);
    assert_eq!(compactions(&test)[..2], [Trigger::Manual, Trigger::Must]);
    assert!(tokens(&test.last_request()) < WINDOW, "{:?}", test.last_request().seen());
}

/// Servers of local models often load them with a window of 4,096 tokens, and the instructions and tools take three
/// quarters of it. A prompt that did not fit looked like a fault of the model.
#[test]
fn a_small_window_is_reported_once() {
    for (window, is_small) in [(4_096, true), (32_768, false)] {
        let config = format!("[models.\"anthropic/claude-sonnet-5-5\"]\ncontext_window = {window}\n");
        let mut test =
            Setup::with_config(&config).built_in_tools().start(|_| vec![ModelStep::Text("Hello.".into())]);
        assert_eq!(test.ask("Hello"), StopReason::EndTurn);
        assert_eq!(test.ask("And again"), StopReason::EndTurn);
        let warnings = notices(&mut test).into_iter().filter(|text| text.contains("OLLAMA_CONTEXT_LENGTH"));
        assert_eq!(warnings.count(), usize::from(is_small), "{window}");
    }
}

/// Regression: some servers report only the tokens that they had not cached. The report was believed whatever it said, so
/// a conversation grew far beyond the window and was never compacted, and a server that drops the beginning of a request
/// that is too long would have dropped the instructions.
#[test]
fn a_server_that_reports_only_uncached_tokens_does_not_prevent_compactions() {
    let config = "[compaction]\nmodel = \"none\"\n\n[models.\"anthropic/claude-sonnet-5-5\"]\ncontext_window = 60000\n";
    let mut test =
        Setup::with_config(config).start(|_| vec![text("Yes."), ModelStep::Usage { input: 12, output: 3 }]);
    let prompt = "Many words that a person typed. ".repeat(1_000);
    for _ in 0..12 {
        assert_eq!(test.ask(&prompt), StopReason::EndTurn);
    }
    assert!(!compactions(&test).is_empty());
    assert!(tokens(&test.last_request()) < 60_000);
}

#[test]
fn the_outcome_of_compact_is_reported_with_its_tokens() {
    let flood = vec![ModelStep::Flood { count: 2000, text: "many words ".into() }];
    let summary =
        vec![text("<summary>Words were said.</summary>"), ModelStep::Usage { input: 5_000, output: 7 }];
    let mut test = TestSession::new(vec![flood, summary]);
    test.ask("  Say many words,\n\ttwice.");
    let compact = test.prompt("/compact the words");
    let Ok(SessionAnswer::TurnEnded { usage, meta, .. }) = test.client.answer(compact) else {
        panic!("it ends")
    };
    assert_eq!((usage.input, usage.output), (5_000, 7));
    assert_eq!(meta.expect("what came of it")["epitome"]["compaction"]["status"], "compacted");
    test.ask("Next");
    let seen = test.last_request().seen();
    let quoted = |seen: &SeenPart| matches!(seen, SeenPart::User(text) if text.contains("\n  Say many words,\n\ttwice.\n"));
    assert!(seen.iter().any(quoted), "{seen:?}");
}

/// Regression: a small model on llama-server was asked for a summary with the tools still in the request, and wrote
/// output that the server's tool grammar rejects, so the server answered with status 500 each time. `/compact` retried
/// the same request for a minute and failed, although the model writes a summary immediately if there are no tools.
#[test]
fn a_server_that_fails_with_tools_is_asked_for_a_summary_without_them() {
    let mut test = TestSession::with(|request| {
        let has_tools = request.body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
        match (is_summary(request), has_tools) {
            (true, true) => {
                let message = Some("The model produced output that does not match the format".into());
                vec![ModelStep::Error { status: 500, retry_after: None, message }]
            }
            (true, false) => vec![text("<summary>Words were said.</summary>")],
            (false, _) => vec![ModelStep::Flood { count: 2000, text: "many words ".into() }],
        }
    });
    test.ask("Say many words.");
    let compact = test.prompt("/compact");
    let Ok(SessionAnswer::TurnEnded { meta, .. }) = test.client.answer(compact) else { panic!("it ends") };
    assert_eq!(meta.expect("what came of it")["epitome"]["compaction"]["status"], "compacted");
    assert_eq!(compactions(&test), [Trigger::Manual]);
}

#[test]
fn a_compaction_and_its_undo_survive_a_restart() {
    let flood = vec![ModelStep::Flood { count: 2000, text: "many words ".into() }];
    let mut test = TestSession::new(vec![flood, vec![text("<summary>Words were said.</summary>")]]);
    test.ask("Say many words.");
    assert_eq!(test.ask("/compact"), StopReason::EndTurn);
    test.reload(test.environment());
    let twice = test.prompt("/compact");
    let Ok(SessionAnswer::TurnEnded { meta, .. }) = test.client.answer(twice) else { panic!("it ends") };
    assert_eq!(meta.expect("what came of it")["epitome"]["compaction"]["status"], "nothing_to_do");
    test.ask("/undo");
    test.ask("Next");
    let seen = format!("{:?}", test.last_request().seen());
    assert!(seen.contains("many words many words") && !seen.contains("Words were said."));
}

#[test]
fn an_undo_that_does_not_fit_is_refused_with_both_sizes() {
    let mut test = strict(|request| match is_summary(request) {
        true => vec![text("<summary>Words were said.</summary>")],
        false => many_words(),
    });
    while compactions(&test).is_empty() {
        assert_eq!(test.ask("Say many words"), StopReason::EndTurn);
    }
    let undo = test.prompt("/undo");
    let Ok(SessionAnswer::TurnEnded { meta, .. }) = test.client.answer(undo) else { panic!("it ends") };
    assert_eq!(meta.expect("what came of it")["epitome"]["undo"]["status"], "refused");
    let note = test.client.entry(|change| match change {
        Change::Noted { text, .. } => Some(text.clone()),
        _ => None,
    });
    assert!(note.contains("6000") && note.contains("larger window"), "{note}");
    assert_eq!(test.ask("Say many words"), StopReason::EndTurn);
}

/// Regression: two pictures that were larger than the provider accepts were silently removed by a compaction, and the
/// model replied to the user as if there had been none.
#[test]
fn an_attachment_that_is_too_large_for_the_provider_causes_a_notice() {
    let mut test = TestSession::with(|request| match request.body.to_string().contains("iVBORw0KGgo") {
        true => vec![ModelStep::Error { status: 413, retry_after: None, message: None }],
        false => vec![text("<summary>They show a picture.</summary>")],
    });
    let picture = Content::Image { mime_type: "image/png".into(), data: "iVBORw0KGgo=".into(), uri: None };
    let ticket = test.prompt_with(vec![Content::Text { text: "What is it? ".repeat(200) }, picture]);
    let notice = test.client.until(|out| match out {
        SessionEvent::Notice { text, .. } if text.contains("attachments") => Some(text.clone()),
        _ => None,
    });
    assert!(notice.contains("no longer sent"), "{notice}");
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
}

/// Regression: a table was attached to a prompt, and was larger than the window. A compaction removed it before the
/// model saw it, without a word: only requests that a provider had refused caused a notice, and only for images.
#[test]
fn an_attached_file_that_is_larger_than_the_window_causes_a_notice() {
    let mut test = strict(|request| match is_summary(request) {
        true => vec![text("<summary>They say many words.</summary>")],
        false => many_words(),
    });
    // The provider reports its window with its first refusal.
    while compactions(&test).is_empty() {
        assert_eq!(test.ask("Say many words"), StopReason::EndTurn);
    }
    let table = Content::Resource { uri: "file:///t.csv".into(), text: "1,2,3\n".repeat(8_000) };
    let ticket = test.prompt_with(vec![Content::Text { text: "Sum up the table.".into() }, table]);
    let notice = test.client.until(|out| match out {
        SessionEvent::Notice { text, .. } if text.contains("attachments") => Some(text.clone()),
        _ => None,
    });
    assert!(notice.starts_with("Your message is too long for the context window"), "{notice}");
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    let asked = test.last_request().body.to_string();
    assert!(asked.contains("file:///t.csv"), "{asked}");
}
