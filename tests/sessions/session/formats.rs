//! The same scenarios with a model of each wire format, and with all of them in one session. The scripted model rejects
//! the same requests as the real services, and a test fails if any request was rejected. These tests therefore check
//! that thinking is sent back as long as the view is only appended to.

use epitome::config::WireFormat;
use epitome::session::{SessionCommand, SessionEvent};
use epitome::thread::{Change, StopReason};
use epitome_scripted_model::{ModelStep, RecordedRequest, SeenPart};
use epitome_test_harness::session::{Setup, TestSession, call, model_of};
use epitome_test_harness::text;
use serde_json::{Value, json};

use super::stage::{answers, puppet};

pub fn think(text: &str) -> ModelStep {
    ModelStep::Think(text.into())
}

fn is_summary(request: &RecordedRequest) -> bool {
    request.last_user_text().contains("Then write the handover")
}

/// A model that thinks, answers a prompt with two concurrent tool calls, and then with a text.
fn works(request: &RecordedRequest) -> Vec<ModelStep> {
    if is_summary(request) {
        return vec![text("<summary>Things were done.</summary>")];
    }
    match request.seen().last() {
        Some(SeenPart::Result { .. }) => vec![think("That is all."), text("Both are done.")],
        _ => vec![
            think("Two things are to be done."),
            text("I do both."),
            call(json!({"says": "one"})),
            call(json!({"says": "two"})),
        ],
    }
}

fn working(format: WireFormat) -> TestSession {
    Setup::new().format(format).start(works)
}

/// The number of pieces of the model's own thinking that a request sends back.
pub fn sealed(request: &RecordedRequest) -> usize {
    let own = |part: &Value, field: &str| {
        part[field].as_str().is_some_and(|seal| seal != "skip_thought_signature_validator")
    };
    let members = |value: &Value| value.as_array().cloned().unwrap_or_default();
    match request.wire {
        WireFormat::AnthropicMessages => {
            let blocks = members(&request.body["messages"]).into_iter();
            blocks
                .flat_map(|message| members(&message["content"]))
                .filter(|block| own(block, "signature"))
                .count()
        }
        WireFormat::OpenAiResponses => {
            members(&request.body["input"]).iter().filter(|item| own(item, "encrypted_content")).count()
        }
        WireFormat::OpenAiChat => 0,
        WireFormat::Gemini => {
            let parts = members(&request.body["contents"]).into_iter();
            parts
                .flat_map(|content| members(&content["parts"]))
                .filter(|part| own(part, "thoughtSignature"))
                .count()
        }
    }
}

/// [`sealed`] of each request so far.
fn all_sealed(test: &TestSession) -> Vec<usize> {
    test.model.requests().iter().map(sealed).collect()
}

/// The expected counts for a format that sends thinking back; zero for the others.
fn where_it_can<const N: usize>(format: WireFormat, expected: [usize; N]) -> Vec<usize> {
    let brings = format != WireFormat::OpenAiChat;
    expected.map(|count| if brings { count } else { 0 }).into()
}

#[test]
fn concurrent_tools_run_and_all_thinking_is_sent_back() {
    for format in WireFormat::ALL {
        let mut test = working(format);
        assert_eq!(test.ask("Go"), StopReason::EndTurn);
        assert_eq!(test.ask("Once more"), StopReason::EndTurn);
        assert_eq!(all_sealed(&test), where_it_can(format, [0, 1, 2, 3]), "{format:?}");
        let calls =
            test.last_request().seen().iter().filter(|seen| matches!(seen, SeenPart::Result { .. })).count();
        assert_eq!(calls, 4);
        assert!(test.model.requests().iter().all(|request| request.wire == format));

        test.reload(test.environment());
        assert_eq!(test.ask("Still there?"), StopReason::EndTurn);
        assert_eq!(sealed(&test.last_request()), where_it_can(format, [5])[0], "{format:?}");
    }
}

#[test]
fn a_cancelled_turn_leaves_a_valid_next_request() {
    for format in WireFormat::ALL {
        let cut = vec![think("Slowly."), text("I begin"), ModelStep::Hang];
        let waits = vec![think("One by one."), call(json!({"do": "wait"})), call(json!({"do": "wait"}))];
        let mut replies = vec![cut, waits].into_iter();
        let mut test = Setup::new()
            .format(format)
            .start(move |request| replies.next().unwrap_or_else(|| works(request)));

        let ticket = test.prompt("Go");
        test.client.until(|out| matches!(out, SessionEvent::Text { .. }).then_some(()));
        test.send(SessionCommand::Cancel);
        assert_eq!(test.reason(ticket), StopReason::Cancelled);

        let ticket = test.prompt("Again");
        test.client.until(|out| matches!(out, SessionEvent::CallStarted { .. }).then_some(()));
        test.send(SessionCommand::Cancel);
        assert_eq!(test.reason(ticket), StopReason::Cancelled);

        assert_eq!(test.ask("Once more"), StopReason::EndTurn);
        assert!(sealed(&test.last_request()) >= where_it_can(format, [2])[0], "{format:?}");
    }
}

#[test]
fn a_prompt_during_a_tool_call_follows_its_outcome() {
    for format in WireFormat::ALL {
        let mut replies = vec![vec![think("Wait for it."), call(json!({"do": "wait"}))]].into_iter();
        let mut test = Setup::new()
            .format(format)
            .start(move |request| replies.next().unwrap_or_else(|| works(request)));
        let first = test.prompt("Go");
        test.client.until(|out| matches!(out, SessionEvent::CallStarted { .. }).then_some(()));
        let second = test.prompt("And hurry");
        test.client.entry(|change| matches!(change, Change::Queued { .. }).then_some(()));
        test.release_tool();
        assert_eq!((test.reason(first), test.reason(second)), (StopReason::EndTurn, StopReason::EndTurn));
        let seen = test.model.requests()[1].seen();
        assert!(
            matches!(&seen[seen.len() - 2..], [SeenPart::Result { .. }, SeenPart::User(_)]),
            "{format:?}: {seen:?}"
        );
        assert_eq!(all_sealed(&test)[..3], where_it_can(format, [0, 1, 2]), "{format:?}");
    }
}

#[test]
fn a_compaction_drops_thinking_and_its_undo_restores_it() {
    for format in WireFormat::ALL {
        let mut flooded = false;
        let mut test = Setup::new().format(format).start(move |request| {
            if flooded {
                return works(request);
            }
            flooded = true;
            vec![think("Many words."), ModelStep::Flood { count: 2000, text: "many words ".into() }]
        });
        test.ask("Say many words.");
        test.ask("Go");
        assert_eq!(all_sealed(&test), where_it_can(format, [0, 1, 2]), "{format:?}");
        assert_eq!(test.ask("/compact"), StopReason::EndTurn);
        test.client.entry(|change| matches!(change, Change::Compacted { .. }).then_some(()));
        test.ask("On");
        let after = test.model.requests();
        assert_eq!(sealed(&after[after.len() - 2]), 0, "{format:?}: it was made behind another beginning");
        assert_eq!(sealed(&after[after.len() - 1]), where_it_can(format, [1])[0], "{format:?}: its own does");

        assert_eq!(test.ask("/undo"), StopReason::EndTurn);
        test.ask("And now?");
        // All thinking from before the compaction, and that of the turn itself.
        assert_eq!(sealed(&test.last_request()), where_it_can(format, [4])[0], "{format:?}");
        let seen = format!("{:?}", test.last_request().seen());
        assert!(seen.contains("many words many words"), "{format:?}");
    }
}

#[test]
fn a_conversation_that_is_too_long_is_compacted_and_continues() {
    for format in WireFormat::ALL {
        let mut has_replied = false;
        let mut test = Setup::new().format(format).start(move |request| {
            let is_long = request.body.to_string().len() > 20_000;
            match (is_summary(request), is_long, std::mem::replace(&mut has_replied, true)) {
                (_, _, false) => {
                    vec![think("Many words."), ModelStep::Flood { count: 2000, text: "many words ".into() }]
                }
                (false, true, true) => vec![ModelStep::Overflow],
                (true, _, true) | (false, false, true) => works(request),
            }
        });
        assert_eq!(test.ask("Say many words."), StopReason::EndTurn);
        assert_eq!(test.ask("Go"), StopReason::EndTurn, "{format:?}");
        test.client.entry(|change| matches!(change, Change::Compacted { .. }).then_some(()));
        assert_eq!(sealed(&test.last_request()), where_it_can(format, [1])[0], "{format:?}");
    }
}

/// Each model gets the other models' messages and calls, but only its own thinking.
#[test]
fn models_of_all_formats_alternate_in_one_session() {
    let mut test = working(WireFormat::ALL[0]);
    let mut own = std::collections::BTreeMap::new();
    let mut replies = 0;
    for from in WireFormat::ALL {
        for to in WireFormat::ALL {
            for format in [from, to] {
                test.choose("model", model_of(format)).expect("it is offered");
                assert_eq!(test.ask("Go"), StopReason::EndTurn, "{from:?} to {to:?}");
                let request = test.last_request();
                assert_eq!(request.wire, format);
                let own: &mut usize = own.entry(format.id()).or_default();
                // One for the calls of this turn, and two for each earlier turn.
                assert_eq!(sealed(&request), where_it_can(format, [*own + 1])[0], "{from:?} to {to:?}");
                *own += 2;
                replies += 2;
                let said = request.seen().iter().filter(|seen| matches!(seen, SeenPart::Agent(_))).count();
                assert_eq!(said, replies - 1, "what the others said is all there");
            }
        }
    }
}

#[test]
fn a_hook_that_rewrites_the_history_drops_all_thinking() {
    for (from, to) in WireFormat::ALL.into_iter().zip(WireFormat::ALL.into_iter().cycle().skip(1)) {
        let hook = [("home/hooks/short".to_owned(), puppet("turn_end"))];
        let mut test = Setup::with_files(&hook).format(from).start(works);
        test.ask("The word is walnut");
        test.choose("model", model_of(to)).expect("it is offered");
        test.ask("Go");
        answers(&test, &json!({"result": "mutate", "messages": ["It was looked at."], "preserve_recent": 2}));
        assert_eq!(test.ask("And again"), StopReason::EndTurn);
        test.client.entry(|change| matches!(change, Change::Mutated { .. }).then_some(()));
        for format in [from, to] {
            test.choose("model", model_of(format)).expect("it is offered");
            let before = test.model.requests().len();
            assert_eq!(test.ask("Still there?"), StopReason::EndTurn, "{from:?} to {to:?}");
            let requests = test.model.requests();
            let seen = format!("{:?}", requests[before].seen());
            assert!(seen.contains("It was looked at.") && !seen.contains("walnut"), "{seen}");
            assert!(sealed(&requests[before + 1]) > 0 || format == WireFormat::OpenAiChat, "{format:?}");
        }
    }
}
