//! Every error literal that the services are known to send, with what it must mean.

use super::*;
use crate::provider::endpoint::{Secret, test_chat_endpoint, test_endpoint};

fn plain(status: u16, body: &str) -> Failure<'_> {
    Failure { status, retry_after: None, should_retry: None, request_id: None, body }
}

fn local() -> Endpoint {
    let mut endpoint = test_endpoint("openai/gpt-5.4");
    endpoint.own_api = false;
    endpoint
}

fn too_long(used: u64, limit: u64) -> ErrorClass {
    ErrorClass::TooLong { used: Some(used), limit: Some(limit) }
}

const RETRY: ErrorClass = ErrorClass::Retry { after: None };
const UNSIZED: ErrorClass = ErrorClass::TooLong { used: None, limit: None };

#[test]
fn anthropic_s_errors() {
    let endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    let body = |kind: &str, message: &str| {
        format!(
            r#"{{"type":"error","error":{{"type":"{kind}","message":"{message}"}},"request_id":"req_1"}}"#
        )
    };
    for (status, kind, message, class) in [
        (400, "invalid_request_error", "messages: at least one message is required", ErrorClass::Refused),
        (
            400,
            "invalid_request_error",
            "prompt is too long: 207791 tokens > 200000 maximum",
            too_long(207_791, 200_000),
        ),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 189136 + 20000 > 204648, decrease input length",
            too_long(209_136, 204_648),
        ),
        (401, "authentication_error", "invalid x-api-key", ErrorClass::Auth),
        (402, "billing_error", "x", ErrorClass::Auth),
        (403, "permission_error", "x", ErrorClass::Auth),
        (404, "not_found_error", "model: claude-nope", ErrorClass::Refused),
        (409, "conflict_error", "x", RETRY),
        (413, "request_too_large", "Request exceeds the maximum size", UNSIZED),
        (500, "api_error", "Internal server error", RETRY),
        (504, "timeout_error", "x", RETRY),
        (529, "overloaded_error", "Overloaded", RETRY),
        // Without a time to wait it is a spending cap.
        (429, "rate_limit_error", "x", ErrorClass::Refused),
        // Inside a stream.
        (200, "overloaded_error", "Overloaded", RETRY),
        (200, "api_error", "Internal server error", RETRY),
        (200, "invalid_request_error", "x", ErrorClass::Refused),
    ] {
        let found = classify(&endpoint, &plain(status, &body(kind, message)));
        assert_eq!(found.class, class, "{status} {kind} {message}");
        assert!(found.message.contains("req_1") && found.message.contains("claude-sonnet-5-5"), "{found}");
    }
    let limited = Failure { retry_after: Some(Duration::from_secs(3)), ..plain(429, "{}") };
    assert_eq!(
        classify(&endpoint, &limited).class,
        ErrorClass::Retry { after: Some(Duration::from_secs(3)) }
    );
}

#[test]
fn openai_s_errors() {
    let endpoint = test_endpoint("openai/gpt-5.4");
    let body = |kind: &str, code: &str, message: &str| {
        format!(r#"{{"error":{{"message":"{message}","type":"{kind}","param":null,"code":{code}}}}}"#)
    };
    for (status, kind, code, message, class) in [
        (
            401,
            "invalid_request_error",
            r#""invalid_api_key""#,
            "Incorrect API key provided",
            ErrorClass::Auth,
        ),
        (
            400,
            "invalid_request_error",
            r#""unknown_parameter""#,
            "Unknown parameter: 'x'.",
            ErrorClass::Refused,
        ),
        (400, "invalid_request_error", r#""unsupported_parameter""#, "x", ErrorClass::Refused),
        (
            400,
            "invalid_request_error",
            r#""context_length_exceeded""#,
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 477469 tokens. Please reduce the length of the messages.",
            too_long(477_469, 272_000),
        ),
        (
            400,
            "invalid_request_error",
            r#""context_length_exceeded""#,
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            UNSIZED,
        ),
        (
            400,
            "invalid_request_error",
            r#""context_length_exceeded""#,
            "This model's maximum context length is 8192 tokens. However, you requested 9001 tokens (8001 in the messages, 1000 in the completion).",
            too_long(9_001, 8_192),
        ),
        (404, "invalid_request_error", r#""model_not_found""#, "x", ErrorClass::Refused),
        (429, "rate_limit_error", r#""rate_limit_exceeded""#, "x", RETRY),
        (429, "rate_limit_error", r#""slow_down""#, "x", RETRY),
        (429, "insufficient_quota", r#""insufficient_quota""#, "x", ErrorClass::Auth),
        (429, "x", r#""credit_balance_exhausted""#, "x", ErrorClass::Auth),
        (503, "service_unavailable_error", r#""server_is_overloaded""#, "x", RETRY),
        (500, "server_error", "null", "x", RETRY),
        (408, "x", "null", "x", RETRY),
        (200, "server_error", "null", "x", RETRY),
    ] {
        let found = classify(&endpoint, &plain(status, &body(kind, code, message)));
        assert_eq!(found.class, class, "{status} {code} {message}");
    }
}

#[test]
fn errors_of_compatible_servers() {
    let mut anthropic_wire = test_endpoint("anthropic/claude-sonnet-5-5");
    anthropic_wire.own_api = false;
    let llama = r#"{"error":{"code":400,"type":"exceed_context_size_error","message":"request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it","n_prompt_tokens":9000,"n_ctx":8192}}"#;
    // llama.cpp answers so on its copy of Anthropic's address too.
    for endpoint in [&local(), &anthropic_wire] {
        assert_eq!(classify(endpoint, &plain(400, llama)).class, too_long(9_000, 8_192));
    }
    for (status, body, class) in [
        (
            400,
            r#"{"object":"error","message":"This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens.","type":"BadRequestError","code":400}"#,
            too_long(5_000, 4_096),
        ),
        (
            400,
            r#"{"error":"Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"}"#,
            too_long(15_028, 7_424),
        ),
        (
            400,
            r#"{"error":{"message":"The number of tokens to keep from the initial prompt is greater than the context length."}}"#,
            UNSIZED,
        ),
        (
            400,
            r#"{"error":{"message":"The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).","code":400}}"#,
            too_long(1_200_293, 1_048_576),
        ),
        (
            404,
            r#"{"error":{"message":"model \"nope\" not found, try pulling it first"}}"#,
            ErrorClass::Refused,
        ),
        (400, r#"{"error":"does not support tools"}"#, ErrorClass::Refused),
        (503, r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#, RETRY),
        (502, "<html><body>Bad Gateway</body></html>", RETRY),
        (429, "slow", RETRY),
        (302, "", ErrorClass::Refused),
    ] {
        let found = classify(&local(), &plain(status, body));
        assert_eq!(found.class, class, "{status} {body}");
        assert!(!found.message.contains('<'), "{found}");
    }
}

#[test]
fn wording_alone_does_not_make_other_refusals_too_long() {
    let body = r#"{"error":{"message":"max_tokens is too large for this model"}}"#;
    assert_eq!(classify(&local(), &plain(400, body)).class, ErrorClass::Refused);
}

#[test]
fn the_header_that_overrides_the_rules_is_honoured() {
    let body = r#"{"error":{"message":"x"}}"#;
    let never = Failure { should_retry: Some(false), ..plain(503, body) };
    assert_eq!(classify(&local(), &never).class, ErrorClass::Refused);
    let always = Failure { should_retry: Some(true), ..plain(400, body) };
    assert_eq!(classify(&local(), &always).class, RETRY);
}

#[test]
fn a_wait_that_is_too_long_is_said() {
    let failure = Failure { retry_after: Some(Duration::from_secs(840)), ..plain(429, "{}") };
    let error = classify(&local(), &failure);
    assert!(error.hint.is_some_and(|hint| hint.contains("840 seconds")));
}

#[test]
fn a_message_tells_who_what_and_which_request() {
    let endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    let body = r#"{"error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let failure = Failure { request_id: Some("req_7"), ..plain(529, body) };
    assert_eq!(
        classify(&endpoint, &failure).message,
        "Anthropic is overloaded: Overloaded (HTTP 529, model anthropic/claude-sonnet-5-5, request req_7)"
    );
}

#[test]
fn keys_are_taken_out_of_what_a_provider_echoes() {
    let mut endpoint = test_endpoint("openai/gpt-5.4");
    endpoint.headers.push(("x-tenant".into(), Secret::new("tenant-secret")));
    let body = r#"{"error":{"message":"bad key sk-test-key for tenant-secret in Bearer sk-test-key"}}"#;
    let error = classify(&endpoint, &plain(401, body));
    assert!(!error.message.contains("sk-test-key") && !error.message.contains("tenant-secret"), "{error}");
}

#[test]
fn a_provider_s_long_echo_is_cut() {
    let body = format!(r#"{{"error":{{"message":"{}"}}}}"#, "ä".repeat(50_000));
    assert!(classify(&local(), &plain(400, &body)).message.len() < PROVIDER_MESSAGE_BYTES_MAX + 200);
}

#[test]
fn a_model_that_takes_no_tools_here_is_explained() {
    let body = r#"{"error":{"message":"Function tools with reasoning_effort are not supported for gpt-6-astra in /v1/chat/completions.","type":"invalid_request_error","param":"reasoning_effort","code":null}}"#;
    let error = classify(&test_chat_endpoint("openai/gpt-6-astra"), &plain(400, body));
    assert_eq!(error.class, ErrorClass::Refused);
    assert!(error.hint.is_some_and(|hint| hint.contains("openai_responses")));
}
