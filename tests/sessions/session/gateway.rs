//! OpenAI's models behind gateways that speak Chat Completions.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use epitome::config::WireFormat::{AnthropicMessages, OpenAiChat, OpenAiResponses};
use epitome::thread::{Change, StopReason};
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{text, write_file};

fn behind_a_gateway(model: &str, has_responses: bool) -> (TestSession, Vec<(OsString, OsString)>) {
    let mut test = Setup::new().start(|_| vec![text("Hello.")]);
    let base = if has_responses {
        test.model.openai_base_url()
    } else {
        format!("{}/chat-only", test.model.base_url())
    };
    let pairs = [("EPITOME_MODEL", model), ("OPENAI_BASE_URL", &base), ("OPENAI_API_KEY", "sk-test-1")];
    let environment = pairs.map(|(name, value)| (name.into(), value.into())).to_vec();
    test.reload(environment.clone());
    (test, environment)
}

/// With OpenAI's models since GPT-5.4, each prompt at a gateway ended with "Function tools with reasoning_effort are
/// not supported", as the models reason unless they are told not to, and gateways were never told.
#[test]
fn tools_are_given_in_the_form_that_a_gateway_takes() {
    for (model, has_responses, wire, effort) in [
        ("openai/gpt-5.6-terra", false, OpenAiChat, Some("none")),
        ("openai/gpt-6-sol", true, OpenAiResponses, None),
        ("openai/gpt-6-astra", true, OpenAiResponses, None),
    ] {
        let (mut test, environment) = behind_a_gateway(model, has_responses);
        assert_eq!(test.ask("Hello?"), StopReason::EndTurn, "{model}");
        let answered = test.last_request();
        assert_eq!(answered.wire, wire, "{model}");
        assert_eq!(answered.body["reasoning_effort"].as_str(), effort, "{model}");
        // Learned facts are used from the first request on, also in other sessions.
        let (refusals, requests) = (test.model.take_refusals(), test.model.requests().len());
        assert_eq!(refusals.len(), 1, "{model}: {refusals:?}");
        test.reload(environment);
        assert_eq!(test.ask("Again?"), StopReason::EndTurn, "{model}");
        assert_eq!(test.model.refusals(), Vec::<String>::new(), "{model}");
        assert_eq!(test.model.requests().len(), requests + 1, "{model}");
    }
}

/// Mistral refused every request because of a field that it does not know.
#[test]
fn a_field_that_a_service_refuses_is_left_out_from_then_on() {
    let (mut test, environment) = behind_a_gateway("openai/mistral-large-latest", false);
    for refusals in [1, 0] {
        assert_eq!(test.ask("Hello?"), StopReason::EndTurn);
        assert_eq!(test.last_request().body.get("stream_options"), None);
        assert_eq!(test.model.take_refusals().len(), refusals);
        test.reload(environment.clone());
    }
}

/// What services answered to requests that they did not carry out, each in its own words. The turn ended there, or the same
/// request was made again and again.
#[test]
fn refusals_of_services_are_acted_on() {
    let failed_call = r#"{"error":{"message":"Tool call validation failed","code":"tool_use_failed","failed_generation":"<x>"}}"#;
    let empty_account =
        r#"{"error":"Your team has used all available credits or reached its monthly spending limit."}"#;
    let unknown_model = r#"{"message":"Invalid model: m","type":"invalid_model","code":"1500"}"#;
    for (status, body, calls_made, expected) in [
        (400, failed_call, 2, None),
        (429, empty_account, 1, Some("wants the account's billing settled")),
        (403, empty_account, 1, Some("wants the account's billing settled")),
        (400, unknown_model, 1, Some("Invalid model: m")),
    ] {
        let (mut test, calls) = at_a_service("application/json", vec![(status, body), (200, REPLY)]);
        let ticket = test.prompt("Hello?");
        match (test.client.answer(ticket), expected) {
            (Ok(_), None) => {}
            (Err(error), Some(words)) => assert!(error.to_string().contains(words), "{body}: {error}"),
            (answer, _) => panic!("{body}: {answer:?}"),
        }
        assert_eq!(calls.load(Ordering::Relaxed), calls_made, "{body}");
    }
}

/// Regression: a recipe's own model was refused at a gateway each time, as the session's model was given the other form.
#[test]
fn a_recipes_model_gets_tools_in_the_form_that_a_gateway_takes() {
    let recipe = "---\nname: look\nmodel: openai/gpt-6-sol\n---\nLook.\n";
    let mut test = Setup::with_files(&[("home/recipes/look.md", recipe)]).start(|_| vec![text("Hello.")]);
    let base = test.model.openai_base_url();
    let pairs = [
        ("EPITOME_MODEL", "anthropic/claude-sonnet-5-5"),
        ("OPENAI_BASE_URL", base.as_str()),
        ("OPENAI_API_KEY", "sk-test-1"),
    ];
    let mut environment = test.environment();
    environment.extend(pairs.map(|(name, value)| (OsString::from(name), OsString::from(value))));
    test.reload(environment);
    for refusals in [1, 0] {
        assert_eq!(test.ask("/look"), StopReason::EndTurn);
        assert_eq!(test.last_request().wire, OpenAiResponses);
        assert_eq!(test.model.take_refusals().len(), refusals);
    }
    assert_eq!(test.ask("Hello?"), StopReason::EndTurn);
    assert_eq!(test.last_request().wire, AnthropicMessages);
}

/// A model that takes tools in no form that the gateway has is not asked forever.
#[test]
fn a_gateway_that_takes_no_tools_ends_the_prompt_with_advice() {
    let (mut test, _) = behind_a_gateway("openai/gpt-6-astra", false);
    let ticket = test.prompt("Hello?");
    let error = test.client.answer(ticket).expect_err("no form is taken").to_string();
    assert_eq!(test.model.take_refusals().len(), 2);
    assert!(error.contains("Its Responses API was tried too"), "{error}");
}

/// A session at a service that answers its calls with these statuses and bodies, and the number of calls so far.
fn at_a_service(kind: &'static str, bodies: Vec<(u16, &'static str)>) -> (TestSession, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("an address");
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    std::thread::spawn(move || {
        let mut bodies = bodies.into_iter();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).expect("a line");
                if line.trim().is_empty() {
                    break;
                }
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a number");
                }
                head.push_str(&line);
            }
            reader.read_exact(&mut vec![0; length]).expect("a body");
            let (status, body) = match head.starts_with("POST") {
                true => {
                    count.fetch_add(1, Ordering::Relaxed);
                    bodies.next().expect("one more call than expected")
                }
                // It has no list of models.
                false => (404, ""),
            };
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            )
            .expect("it is sent");
        }
    });
    let mut test = TestSession::new(Vec::new());
    let config = format!(
        "[providers.theirs]\nwire = \"openai_chat\"\nbase_url = \"http://{address}/v1\"\nkey_variable = \"THEIR_KEY\"\n\
         [models.\"theirs/m\"]\ncontext_window = 200000\n"
    );
    write_file(&test.home.join("config.toml"), &config);
    let environment = [("EPITOME_MODEL", "theirs/m"), ("THEIR_KEY", "sk-theirs-1")];
    test.reload(environment.map(|(name, value)| (name.into(), value.into())).to_vec());
    (test, calls)
}

const REPLY: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello.\"}}]}\n\n\
                     data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
                     data: [DONE]\n\n";

/// Regression test: an empty reply of any service but the vendor's own counted as an overflow of the window. A healthy
/// conversation was compacted because a gateway hiccuped.
#[test]
fn an_empty_reply_far_below_the_window_is_tried_again() {
    let (mut test, calls) = at_a_service("text/event-stream", vec![(200, ""), (200, REPLY)]);
    assert_eq!(test.ask("Hello?"), StopReason::EndTurn);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert!(!test.log().iter().any(|entry| matches!(entry.change, Change::Compacted { .. })));
}

/// Regression test: only bodies of the types JSON and HTML were searched for an error. With another type, the error was
/// dropped and its request counted as too long.
#[test]
fn an_error_of_another_content_type_is_shown() {
    for kind in ["text/plain", "text/event-stream"] {
        let body = r#"{"error":{"message":"Top up first.","code":"insufficient_quota"}}"#;
        let (mut test, calls) = at_a_service(kind, vec![(200, body)]);
        let ticket = test.prompt("Hello?");
        let error = test.client.answer(ticket).expect_err("it is an error").to_string();
        assert!(error.contains("wants the account's billing settled: Top up first."), "{error}");
        assert_eq!(calls.load(Ordering::Relaxed), 1, "{kind}");
    }
}
