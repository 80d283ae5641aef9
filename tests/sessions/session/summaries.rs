//! Tests of the model that writes the summary, its fallbacks, and measures before a request that might not fit.

use epitome::session::port::SessionPort as _;
use epitome::session::{CompactionState, SessionAnswer, SessionEvent};
use epitome::thread::{Change, Entry, StopReason, Trigger};
use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedStop};
use epitome_test_harness::session::{Setup, TestSession, call};
use epitome_test_harness::text;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stage::notices;

/// A name, and the model's reply in place of a summary.
type Instead = (&'static str, fn() -> Vec<ModelStep>);

const RULE: &str = "Never touch the vendored walnuts.";

fn is_summary(request: &RecordedRequest) -> bool {
    request.last_user_text().contains("Then write the handover")
}

fn words(count: usize) -> Vec<ModelStep> {
    vec![ModelStep::Flood { count, text: "many words ".into() }]
}

fn configured(
    config: &str,
    script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
) -> TestSession {
    Setup::with_config(config).start(script)
}

fn compacted(test: &TestSession) -> Vec<Arc<Entry>> {
    let log = test.log();
    log.into_iter().filter(|entry| matches!(entry.change, Change::Compacted { .. })).collect()
}

fn outcome_of(test: &mut TestSession, command: &str) -> Value {
    let ticket = test.prompt(command);
    let Ok(SessionAnswer::TurnEnded { meta, .. }) = test.client.answer(ticket) else { panic!("it ends") };
    meta.expect("what came of it")["epitome"]["compaction"].clone()
}

/// The most frequent complaint of other agents' users: the context was too long, `/compact` failed, and the session was
/// stuck. Whatever the model replies instead of a summary, the conversation is shortened and the user's instructions
/// are kept.
#[test]
fn a_compaction_shortens_the_conversation_whatever_the_model_does() {
    let ways: [Instead; 7] = [
        ("a refusal", || vec![ModelStep::Stop(ScriptedStop::Refusal("no".into()))]),
        ("an empty reply", || vec![text("")]),
        ("an apology", || vec![text("I'm sorry, I can't help with that.")]),
        ("a stub", || vec![text("<summary>They sa"), ModelStep::Stop(ScriptedStop::MaxTokens)]),
        ("a tool call", || vec![call(serde_json::json!({}))]),
        ("an error", || vec![ModelStep::Error { status: 400, retry_after: None, message: None }]),
        ("a cut", || vec![ModelStep::Cut]),
    ];
    for (name, instead) in ways {
        let mut test = TestSession::with(move |request| match is_summary(request) {
            true => instead(),
            false => words(1_500),
        });
        test.ask(RULE);
        test.ask("Say many words.");
        let result = outcome_of(&mut test, "/compact");
        assert_eq!(result["status"], "truncated", "{name}: {result}");
        let [entry] = &compacted(&test)[..] else { panic!("{name}: one compaction") };
        let Change::Compacted { account, tokens_before, tokens_after, .. } = &entry.change else { panic!() };
        assert!(account.fallback.is_some() && tokens_after * 2 < *tokens_before, "{name}: {account:?}");
        test.ask("Go on.");
        let sent = test.last_request().body.to_string();
        assert!(sent.contains(RULE) && !sent.contains(&"many words ".repeat(1_400)), "{name}: {sent}");
    }
}

fn unused_input(test: &TestSession) -> Vec<u64> {
    let log = test.log();
    let spent = log.iter().filter_map(|entry| match &entry.change {
        Change::Spent { usage, .. } => Some(usage.input),
        _ => None,
    });
    spent.collect()
}

/// A model that called a tool instead of writing the summary was paid for its answers, but neither `/usage` nor the log
/// had them.
#[test]
fn answers_that_are_no_summary_are_counted() {
    let mut asked = 0;
    let mut test = TestSession::with(move |request| match is_summary(request) {
        true => {
            asked += 1;
            vec![call(serde_json::json!({})), ModelStep::Usage { input: 1_000 + asked, output: 10 }]
        }
        false => words(1_500),
    });
    test.ask("Say many words.");
    assert_eq!(outcome_of(&mut test, "/compact")["status"], "truncated");
    let asked = test.model.requests().iter().filter(|request| is_summary(request)).count() as u64;
    assert_eq!(unused_input(&test), (1..=asked).map(|number| 1_000 + number).collect::<Vec<_>>());
}

/// The cost of a summary that was prepared but not needed before the session ended appeared nowhere. One that is ready
/// survives a suspension.
#[test]
fn a_prepared_summary_that_is_never_used_is_counted_at_the_end() {
    let mut turn = 0;
    let config = small_window("[compaction]\nahead = true\n");
    let setup = Setup::with_config(&config).suspend_after(Duration::from_millis(30));
    let mut test = setup.start(move |request| {
        if is_summary(request) {
            return vec![
                text("<summary>Words were said early.</summary>"),
                ModelStep::Usage { input: 777, output: 10 },
            ];
        }
        turn += 1;
        let input = [6_000, 8_000, 11_600][(turn - 1).min(2)];
        vec![text(&"word and word ".repeat(500)), ModelStep::Usage { input, output: 100 }]
    });
    for prompt in ["one", "two", "three"] {
        assert_eq!(test.ask(prompt), StopReason::EndTurn);
    }
    // The summary is written in the background, which keeps the session from being suspended.
    super::resting::rests(&test);
    assert_eq!(test.model.requests().iter().filter(|request| is_summary(request)).count(), 1);
    assert_eq!(unused_input(&test), [0; 0]);
    test.sessions.detach(test.client.id);
    test.wait_for(test.sessions.settled());
    assert_eq!(unused_input(&test), [777]);
}

#[test]
fn a_summary_that_times_out_is_replaced_by_the_tables() {
    let config = "[compaction]\nsummary_timeout_s = 1\ntimeout_s = 1\n";
    let mut test = configured(config, |request| match is_summary(request) {
        true => vec![ModelStep::Hang],
        false => words(1_500),
    });
    test.ask(RULE);
    test.ask("Say many words.");
    assert_eq!(outcome_of(&mut test, "/compact")["status"], "truncated");
    let entries = compacted(&test);
    let Change::Compacted { account, .. } = &entries[0].change else { panic!() };
    assert!(account.fallback.as_ref().is_some_and(|why| why.contains("within 1 s")), "{account:?}");
}

#[test]
fn with_model_none_the_tables_suffice_and_no_model_is_called() {
    let mut test = configured("[compaction]\nmodel = \"none\"\n", |_| words(1_500));
    test.ask(RULE);
    test.ask("Say many words.");
    let asked = test.model.requests().len();
    assert_eq!(outcome_of(&mut test, "/compact")["status"], "compacted");
    assert_eq!(test.model.requests().len(), asked);
}

#[test]
fn a_configured_model_writes_the_summary() {
    let config = "[compaction]\nmodel = \"anthropic/claude-haiku-4-5\"\n";
    let mut test = configured(config, |request| match is_summary(request) {
        true => vec![text("<summary>Words were said.</summary>")],
        false => words(1_500),
    });
    test.ask("Say many words.");
    assert_eq!(outcome_of(&mut test, "/compact")["status"], "compacted");
    let summary = test.last_request();
    assert_eq!(summary.body["model"], "claude-haiku-4-5");
    assert!(summary.body["tools"].as_array().is_none_or(Vec::is_empty), "flat text needs no tools");
    let entries = compacted(&test);
    let Change::Compacted { model, .. } = &entries[0].change else { panic!() };
    assert_eq!(model.as_ref().map(|model| model.0.as_str()), Some("anthropic/claude-haiku-4-5"));
}

/// Regression: a summary request that was rejected as too long was shortened and accepted, but the window in the
/// provider's error was forgotten, so the conversation's next request was also too long. In addition, the window that
/// another model's provider reported was applied to the conversation's own model.
#[test]
fn a_rejected_summary_teaches_the_window_of_the_model_that_wrote_it() {
    let own = "anthropic/claude-sonnet-5-5";
    for writer in [own, "anthropic/claude-haiku-4-5"] {
        let mut refused = 0;
        let config = format!("[compaction]\nmodel = \"{writer}\"\n");
        let mut test = configured(&config, move |request| match is_summary(request) {
            true if refused < 2 => {
                refused += 1;
                let message = Some("prompt is too long: 150000 tokens > 90000 maximum".to_owned());
                vec![ModelStep::Error { status: 400, retry_after: None, message }]
            }
            true => vec![text("<summary>Words were said.</summary>")],
            false => words(1_500),
        });
        test.ask("Say many words.");
        assert_eq!(outcome_of(&mut test, "/compact")["status"], "compacted", "{writer}");
        test.ask("Go on.");
        let ticket = test.prompt("/context");
        let shown = test.client.entry(|change| match change {
            Change::Noted { text, .. } if text.starts_with("Context ") => Some(text.clone()),
            _ => None,
        });
        assert_eq!(test.reason(ticket), StopReason::EndTurn);
        assert_eq!(shown.contains(" of 90k tokens"), writer == own, "{writer}: {shown}");
    }
}

/// A summary that is streamed to the user.
#[test]
fn a_summary_is_shown_while_it_is_written() {
    let summary =
        vec![text("<analysis>hm</analysis><summary>Words "), ModelStep::Wait, text("were said.</summary>")];
    let mut test = TestSession::new(vec![words(1_500), summary]);
    test.ask("Say many words.");
    let ticket = test.prompt("/compact");
    let wrote = |out: &SessionEvent| match out {
        SessionEvent::Compaction { state: CompactionState::Wrote(piece), .. } => Some(piece.clone()),
        _ => None,
    };
    let mut shown = String::new();
    while shown != "Words " {
        shown.push_str(&test.client.until(wrote));
        assert!("Words ".starts_with(&shown), "{shown}");
    }
    test.model.release();
    while shown != "Words were said." {
        shown.push_str(&test.client.until(wrote));
        assert!("Words were said.".starts_with(&shown), "{shown}");
    }
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
}

fn small_window(more: &str) -> String {
    format!("[models.\"anthropic/claude-sonnet-5-5\"]\ncontext_window = 16000\n{more}")
}

/// Regression: the user's next prompt would have been rejected. The request is now shortened before it is sent.
#[test]
fn a_request_that_would_not_fit_is_shortened_before_it_is_sent() {
    let mut test = configured(&small_window(""), |request| match is_summary(request) {
        true => vec![text("<summary>Words were said.</summary>")],
        false => vec![
            text("Yes. "),
            text(&"word and word ".repeat(700)),
            ModelStep::Usage { input: 6_000, output: 3_000 },
        ],
    });
    test.ask(RULE);
    let long = format!("{} And the last word is walnut.", "and more words ".repeat(1_800));
    assert_eq!(test.ask(&long), StopReason::EndTurn);
    let triggers: Vec<Trigger> = compacted(&test)
        .iter()
        .map(|entry| match &entry.change {
            Change::Compacted { trigger, .. } => *trigger,
            _ => unreachable!("only compactions are asked for"),
        })
        .collect();
    assert!(triggers.contains(&Trigger::Must), "{triggers:?}");
    let answered = test.last_request().body.to_string();
    assert!(answered.contains("walnut"), "{answered}");
}

/// A summary that was prepared ahead of time causes no delay, and later messages follow it.
#[test]
fn a_summary_prepared_ahead_is_used_without_waiting() {
    let mut turn = 0;
    let config = small_window("[compaction]\nahead = true\n");
    let mut test = configured(&config, move |request| {
        if is_summary(request) {
            return vec![text("<summary>Words were said early.</summary>")];
        }
        turn += 1;
        let input = [6_000, 8_000, 11_600, 13_000][(turn - 1).min(3)];
        vec![text(&"word and word ".repeat(500)), ModelStep::Usage { input, output: 100 }]
    });
    let asked =
        |test: &TestSession| test.model.requests().iter().filter(|request| is_summary(request)).count();
    for prompt in ["one", "two", "three"] {
        assert_eq!(test.ask(prompt), StopReason::EndTurn);
    }
    assert_eq!(compacted(&test).len(), 0, "{:?}", notices(&mut test));
    // It is written in the background: `/context` shows when it is ready.
    let is_ready = |test: &mut TestSession| {
        test.ask("/context");
        test.client.entry(|change| match change {
            Change::Noted { text, .. } => Some(text.contains("already written")),
            _ => None,
        })
    };
    assert!((0..1_000).any(|_| is_ready(&mut test)), "it is written before it is due");
    assert_eq!(asked(&test), 1);
    test.ask("four");
    assert_eq!(compacted(&test).len(), 1);
    assert_eq!(asked(&test), 1, "and not once more");
    test.ask("five");
    let sent = test.last_request().body.to_string();
    assert!(sent.contains("Words were said early.") && sent.contains("four"), "{sent}");
}

/// A compaction that came before its prepared summary was complete left that summary's model call running. It was paid
/// for and never used.
#[test]
fn a_compaction_aborts_a_summary_that_is_still_being_prepared() {
    let (mut turn, mut summaries) = (0, 0);
    let config = small_window("[compaction]\nahead = true\n");
    let mut test = configured(&config, move |request| {
        if is_summary(request) {
            summaries += 1;
            return match summaries {
                1 => vec![ModelStep::Hang],
                _ => vec![text("<summary>Words were said.</summary>")],
            };
        }
        turn += 1;
        let input = [6_000, 8_000, 11_600][(turn - 1).min(2)];
        vec![text(&"word and word ".repeat(500)), ModelStep::Usage { input, output: 100 }]
    });
    for prompt in ["one", "two", "three"] {
        assert_eq!(test.ask(prompt), StopReason::EndTurn);
    }
    let eventually = |test: &TestSession, what: &str, is_so: &dyn Fn(&TestSession) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so(test) {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    };
    eventually(&test, "it is started in the background", &|test| {
        test.model.requests().iter().any(is_summary)
    });
    test.ask("/compact");
    assert_eq!(compacted(&test).len(), 1);
    eventually(&test, "the call is aborted", &|test| test.model.given_up() == 1);
}

/// Old outcomes fill a window long before messages do. They are masked in one batch, and no model is called.
#[test]
fn old_outcomes_are_masked_in_a_batch_before_anything_is_summarized() {
    let config = "[models.\"anthropic/claude-sonnet-5-5\"]\ncontext_window = 200000\n";
    let mut calls = 0;
    let mut test = configured(config, move |request| {
        assert!(!is_summary(request), "nobody is asked for a summary");
        calls += 1;
        match calls {
            1..=16 => {
                let usage = ModelStep::Usage { input: 7_000 * calls, output: 100 };
                vec![call(serde_json::json!({ "bytes": 30_000 + calls })), usage]
            }
            _ => vec![text("Done.")],
        }
    });
    assert_eq!(test.ask("Read it all."), StopReason::EndTurn);
    let pruned = test.log().iter().filter(|entry| matches!(entry.change, Change::Pruned { .. })).count();
    assert!((1..=4).contains(&pruned), "in batches: {pruned}");
    let sent = test.last_request().body.to_string();
    assert!(sent.contains("recall"), "what was cut can be read: {}", &sent[..2_000]);
    test.ask("/undo");
    test.ask("Go on.");
    assert!(test.last_request().body.to_string().len() > sent.len(), "it is brought back");
}

/// After a break of more than five minutes, the whole conversation was read at the full price. A compaction while the provider
/// still has it in its cache is offered, or made if the settings say so.
#[test]
fn before_a_break_a_compaction_that_pays_is_offered_or_made() {
    let prices = "price = { input = 3.0, output = 15.0, cache_read = 0.3, cache_write = 3.75 }\n";
    let of = |before_break: &str| {
        let config = format!(
            "[compaction]\nmodel = \"none\"\n{before_break}[models.\"anthropic/claude-sonnet-5-5\"]\n\
             context_window = 200000\n{prices}"
        );
        let setup = Setup::with_config(&config).suspend_after(Duration::from_millis(30));
        let mut test = setup.start(|_| {
            let mut reply = words(50_000);
            reply.push(ModelStep::Usage { input: 20_000, output: 100_000 });
            reply
        });
        assert_eq!(test.ask("Count the walnuts."), StopReason::EndTurn);
        test
    };
    let offered = |out: &SessionEvent| super::stage::notice(out).filter(|text| text.contains("soon forget"));

    let mut test = of("");
    let offer = test.client.until(offered);
    assert!(offer.contains("/compact"), "{offer}");
    super::resting::rests(&test);
    assert!(compacted(&test).is_empty(), "nothing is done unasked");

    let mut test = of("before_break = \"compact\"\n");
    test.client.until(offered);
    test.client.entry(|change| matches!(change, Change::Compacted { .. }).then_some(()));
    super::resting::rests(&test);
    assert_eq!(compacted(&test).len(), 1, "once");
    test.ask("/undo");
    test.ask("And now?");
    let sent = test.last_request().body.to_string();
    assert!(sent.contains("many words many words"), "it was taken back");

    let mut test = of("before_break = \"nothing\"\n");
    super::resting::rests(&test);
    assert!(notices(&mut test).iter().all(|text| !text.contains("soon forget")));
}
