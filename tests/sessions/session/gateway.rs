//! OpenAI's models behind gateways that speak Chat Completions.

use epitome::config::WireFormat::{OpenAiChat, OpenAiResponses};
use epitome::thread::StopReason;
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::text;

fn behind_a_gateway(
    model: &str,
    has_responses: bool,
) -> (TestSession, Vec<(std::ffi::OsString, std::ffi::OsString)>) {
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
        // What was learned is used from the first request on, also in other sessions.
        let (refusals, requests) = (test.model.take_refusals(), test.model.requests().len());
        assert_eq!(refusals.len(), 1, "{model}: {refusals:?}");
        test.reload(environment);
        assert_eq!(test.ask("Again?"), StopReason::EndTurn, "{model}");
        assert_eq!(test.model.refusals(), Vec::<String>::new(), "{model}");
        assert_eq!(test.model.requests().len(), requests + 1, "{model}");
    }
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
