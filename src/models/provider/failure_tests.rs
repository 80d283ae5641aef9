//! All known error bodies of the services, and their expected classification.

use super::*;
use crate::endpoint::{Secret, resolve, test_chat_endpoint, test_endpoint};
use epitome_config::{ProviderSettings, Settings};
use epitome_thread::ModelName;

fn plain(status: u16, body: &str) -> ErrorResponse<'_> {
    ErrorResponse { status, retry_after: None, should_retry: None, request_id: None, body }
}

fn local() -> Endpoint {
    let mut endpoint = test_endpoint("openai/gpt-5.4");
    endpoint.own_api = false;
    endpoint
}

fn too_long(used: u64, limit: u64) -> ErrorClass {
    ErrorClass::TooLong { used: Some(used), limit: Some(limit), window: true }
}

const RETRY: ErrorClass = ErrorClass::Retry { after: None };
const UNSIZED: ErrorClass = ErrorClass::TooLong { used: None, limit: None, window: true };

#[test]
fn anthropic_errors() {
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
        // Without a retry delay, it is a spending cap.
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
    let limited = ErrorResponse { retry_after: Some(Duration::from_secs(3)), ..plain(429, "{}") };
    assert_eq!(
        classify(&endpoint, &limited).class,
        ErrorClass::Retry { after: Some(Duration::from_secs(3)) }
    );
}

#[test]
fn openai_errors() {
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
    // llama.cpp also sends this error from its copy of Anthropic's API.
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
fn wording_alone_does_not_classify_an_error_as_too_long() {
    let body = r#"{"error":{"message":"max_tokens is too large for this model"}}"#;
    assert_eq!(classify(&local(), &plain(400, body)).class, ErrorClass::Refused);
}

#[test]
fn should_retry_header_overrides_the_rules() {
    let body = r#"{"error":{"message":"x"}}"#;
    let never = ErrorResponse { should_retry: Some(false), ..plain(503, body) };
    assert_eq!(classify(&local(), &never).class, ErrorClass::Refused);
    let always = ErrorResponse { should_retry: Some(true), ..plain(400, body) };
    assert_eq!(classify(&local(), &always).class, RETRY);
}

#[test]
fn too_long_retry_delay_is_reported() {
    let failure = ErrorResponse { retry_after: Some(Duration::from_secs(840)), ..plain(429, "{}") };
    let error = classify(&local(), &failure);
    assert!(error.hint.is_some_and(|hint| hint.contains("840 seconds")));
}

#[test]
fn message_names_provider_problem_and_request() {
    let endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    let body = r#"{"error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let failure = ErrorResponse { request_id: Some("req_7"), ..plain(529, body) };
    assert_eq!(
        classify(&endpoint, &failure).message,
        "Anthropic is overloaded: Overloaded (HTTP 529, model anthropic/claude-sonnet-5-5, request req_7)"
    );
}

#[test]
fn echoed_keys_are_redacted() {
    let mut endpoint = test_endpoint("openai/gpt-5.4");
    endpoint.headers.push(("x-tenant".into(), Secret::new("tenant-secret")));
    let body = r#"{"error":{"message":"bad key sk-test-key for tenant-secret in Bearer sk-test-key"}}"#;
    let error = classify(&endpoint, &plain(401, body));
    assert!(!error.message.contains("sk-test-key") && !error.message.contains("tenant-secret"), "{error}");
}

#[test]
fn the_limit_of_a_plan_is_no_rate_limit() {
    let body = r#"{"error":{"code":"subscription_sharing_usage_limit_exceeded","message":"Limit reached"}}"#;
    for status in [429, 200] {
        let error = classify(&test_endpoint("openai/gpt-5.4"), &plain(status, body));
        assert_eq!(error.class, ErrorClass::Refused);
        assert!(error.hint.is_some_and(|hint| hint.contains("chatgpt.com/settings/usage")));
    }
}

#[test]
fn long_provider_messages_are_cut() {
    let body = format!(r#"{{"error":{{"message":"{}"}}}}"#, "ä".repeat(50_000));
    assert!(classify(&local(), &plain(400, &body)).message.len() < PROVIDER_MESSAGE_BYTES_MAX + 200);
}

#[test]
fn models_without_tools_in_this_format_get_a_hint() {
    let body = r#"{"error":{"message":"Function tools with reasoning_effort are not supported for gpt-6-astra in /v1/chat/completions.","type":"invalid_request_error","param":"reasoning_effort","code":null}}"#;
    let error = classify(&test_chat_endpoint("openai/gpt-6-astra"), &plain(400, body));
    assert_eq!(error.class, ErrorClass::ToolForm);
    assert!(error.hint.is_some_and(|hint| hint.contains("openai_responses")));
    // A gateway may pass on only the message.
    let sentence = r#"{"error":"Function tools with reasoning_effort are not supported for gpt-5.4"}"#;
    assert_eq!(
        classify(&test_chat_endpoint("openai/gpt-5.4"), &plain(400, sentence)).class,
        ErrorClass::ToolForm
    );
}

/// Regression: a request to an unimplemented URL was sent six times.
#[test]
fn what_is_not_implemented_is_not_tried_again() {
    assert_eq!(classify(&local(), &plain(501, "")).class, ErrorClass::Refused);
}

fn gemini() -> Endpoint {
    test_endpoint("gemini/gemini-4-argon")
}

#[test]
fn gemini_errors() {
    let body = |code: u16, status: &str, message: &str, details: &str| {
        format!(
            r#"{{"error":{{"code":{code},"message":"{message}","status":"{status}","details":[{details}]}}}}"#
        )
    };
    let bad_key = r#"{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com"}"#;
    let wait = r#"{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"9.5s"}"#;
    let day = r#"{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"30s"}"#;
    let after = ErrorClass::Retry { after: Some(Duration::from_millis(9_500)) };
    for (code, status, message, details, class) in [
        (
            400,
            "INVALID_ARGUMENT",
            "API key not valid. Please pass a valid API key.",
            bad_key,
            ErrorClass::Auth,
        ),
        (400, "INVALID_ARGUMENT", "Invalid JSON payload received.", "", ErrorClass::Refused),
        (
            400,
            "FAILED_PRECONDITION",
            "User location is not supported for the API use.",
            "",
            ErrorClass::Refused,
        ),
        (
            400,
            "FAILED_PRECONDITION",
            "Gemini API free tier is not available in your country. Please enable billing on your project.",
            "",
            ErrorClass::Auth,
        ),
        (
            400,
            "INVALID_ARGUMENT",
            "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
            "",
            too_long(1_200_293, 1_048_576),
        ),
        (
            400,
            "INVALID_ARGUMENT",
            "Function call is missing a thought_signature in functionCall parts.",
            "",
            ErrorClass::BadReasoning,
        ),
        (403, "PERMISSION_DENIED", "x", "", ErrorClass::Auth),
        (404, "NOT_FOUND", "models/gemini-4-argon is not found", "", ErrorClass::Refused),
        (429, "RESOURCE_EXHAUSTED", "x", wait, after.clone()),
        (429, "RESOURCE_EXHAUSTED", "x", day, ErrorClass::Refused),
        (500, "INTERNAL", "x", "", RETRY),
        (503, "UNAVAILABLE", "x", "", RETRY),
        (504, "DEADLINE_EXCEEDED", "x", "", RETRY),
    ] {
        let body = body(code, status, message, details);
        // As an error status, in a list, and inside a stream.
        for (status, body) in [(code, body.clone()), (code, format!("[{body}]")), (200, body.clone())] {
            let found = classify(&gemini(), &plain(status, &body));
            assert_eq!(found.class, class, "{status} {body}");
        }
    }
    let error = classify(&gemini(), &plain(400, &body(400, "INVALID_ARGUMENT", "x", bad_key)));
    assert!(error.hint.is_some_and(|hint| hint.contains("GEMINI_API_KEY")));
}

#[test]
fn errors_in_responses_events_are_parsed() {
    let endpoint = test_endpoint("openai/gpt-5.4");
    let failed = |code: &str, message: &str| {
        format!(
            r#"{{"type":"response.failed","response":{{"status":"failed","error":{{"code":"{code}","message":"{message}"}}}}}}"#
        )
    };
    let event = |code: &str, message: &str| {
        format!(r#"{{"type":"error","code":"{code}","message":"{message}","param":null}}"#)
    };
    for (code, message, class) in [
        ("server_error", "The server had an error", RETRY),
        ("rate_limit_exceeded", "Rate limit reached", RETRY),
        ("context_length_exceeded", "Your input exceeds the context window of this model.", UNSIZED),
        ("invalid_prompt", "x", ErrorClass::Refused),
        ("insufficient_quota", "x", ErrorClass::Auth),
        ("invalid_encrypted_content", "x", ErrorClass::BadReasoning),
    ] {
        for body in [failed(code, message), event(code, message)] {
            let found = classify(&endpoint, &plain(200, &body));
            assert_eq!(found.class, class, "{body}");
            assert!(found.message.contains(message), "{found}");
        }
    }
}

#[test]
fn rejected_reasoning_has_its_own_class() {
    for message in [
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "Invalid `signature` in `thinking` block. The block is bound to a different conversation.",
        "messages.3.content.1: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        "Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'.",
        "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
        "The encrypted content could not be verified.",
        "Function call is missing a thought_signature in functionCall parts.",
        "Thought signature is not valid.",
    ] {
        let body = serde_json::json!({ "error": { "type": "invalid_request_error", "message": message } });
        let found = classify(&local(), &plain(400, &body.to_string()));
        assert_eq!(found.class, ErrorClass::BadReasoning, "{message}");
    }
}

#[test]
fn billing_errors_are_explained_and_not_retried() {
    let anthropic = test_endpoint("anthropic/claude-sonnet-5-5");
    let code = |code: &str| {
        format!(
            r#"{{"error":{{"type":"rate_limit_error","message":"x","details":{{"error_code":"{code}"}}}}}}"#
        )
    };
    let low = r#"{"error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}"#;
    let own = r#"{"error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits. You will regain access on 2026-12-01."}}"#;
    for (status, body) in [
        (429, code("enforced_spend_limit_reached").as_str()),
        (429, code("contract_spend_limit_reached").as_str()),
        (402, "{}"),
        (400, low),
        (400, own),
    ] {
        let failure = ErrorResponse { retry_after: Some(Duration::from_secs(3)), ..plain(status, body) };
        let error = classify(&anthropic, &failure);
        assert_eq!(error.class, ErrorClass::Auth, "{body}");
        assert!(error.message.contains("billing") && error.hint.is_some_and(|hint| hint.contains("credit")));
    }
}

#[test]
fn sizes_are_extracted_from_every_services_wording() {
    for (message, class) in [
        (
            "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
            too_long(40_000, 32_768),
        ),
        (
            "'max_tokens' is too large: 32000. This model's maximum context length is 32768 tokens and your request has 5000 input tokens",
            too_long(5_000, 32_768),
        ),
        (
            "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
            too_long(9_000, 8_192),
        ),
        (
            "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
            too_long(537_812, 131_072),
        ),
        (
            "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 `max_new_tokens`",
            too_long(5_000, 4_096),
        ),
        (
            "Trying to keep the first 5000 tokens when context overflows. However, the model is loaded with context length of only 4096 tokens",
            too_long(5_000, 4_096),
        ),
        // Regression: with these services, a conversation that had become too long failed with each prompt.
        (
            "The input (516368 tokens) is longer than the model's context length (262144 tokens).",
            too_long(516_368, 262_144),
        ),
        (
            "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
            too_long(131_393, 131_040),
        ),
        ("Prompt has 5,000 tokens, but the configured context size is 4,096 tokens", too_long(5_000, 4_096)),
        ("prompt token count of 139424 exceeds the limit of 128000", too_long(139_424, 128_000)),
        (
            "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)",
            too_long(291_351, 262_144),
        ),
        (
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 202745]",
            ErrorClass::TooLong { used: None, limit: Some(202_745), window: true },
        ),
    ] {
        let body = serde_json::json!({ "error": { "message": message } }).to_string();
        assert_eq!(classify(&local(), &plain(400, &body)).class, class, "{message}");
    }
}

/// With 30,000 tokens a minute, a longer conversation was sent six times, and then the turn failed: it looked like a rate
/// limit, although no wait helps.
#[test]
fn a_request_that_exceeds_the_rate_limit_on_its_own_is_too_long() {
    let openai = "Request too large for gpt-5.4 (for limit gpt-5) in organization org-1a2b3 on tokens per min (TPM): \
                  Limit 30000, Requested 45234. The input or output tokens must be reduced in order to run successfully.";
    let groq = "Request too large for model `llama-4-70b` in organization `org_01` service tier `on_demand` on tokens per \
                minute (TPM): Limit 6000, Requested 8231, please reduce your message size and try again.";
    let full = "Rate limit reached for gpt-5.4 in organization org-1a2b3 on tokens per min (TPM): Limit 30000, Used 25000, \
                Requested 6000. Please try again in 2s.";
    let exceeds_rate =
        |used, limit| ErrorClass::TooLong { used: Some(used), limit: Some(limit), window: false };
    for (status, message, class) in [
        (429, openai, exceeds_rate(45_234, 30_000)),
        (200, openai, exceeds_rate(45_234, 30_000)),
        (413, groq, exceeds_rate(8_231, 6_000)),
        (429, full, ErrorClass::Retry { after: Some(Duration::from_secs(2)) }),
        (200, full, ErrorClass::Retry { after: Some(Duration::from_secs(2)) }),
    ] {
        let code = "rate_limit_exceeded";
        let body = serde_json::json!({ "error": { "type": "tokens", "code": code, "message": message } });
        let body = body.to_string();
        let found = classify(&test_endpoint("openai/gpt-5.4"), &plain(status, &body));
        assert_eq!(found.class, class, "{message}");
    }
}

/// A proxy refused a request of many megabytes with its own page. The request was sent six times, as if the service had
/// answered with nothing, and then the turn failed.
#[test]
fn a_body_that_a_proxy_refuses_is_too_long() {
    for body in ["", "<html><title>413 Request Entity Too Large</title></html>", r#"{"message":"too big"}"#] {
        let class = ErrorClass::TooLong { used: None, limit: None, window: false };
        let found = classify(&test_endpoint("openai/gpt-5.4"), &plain(413, body));
        assert_eq!(found.class, class, "{body}");
        assert!(found.hint.is_some_and(|hint| hint.contains("a proxy before https://")), "{body}");
    }
}

/// The body of an error was compressed in a way that nobody had asked for, and its bytes were shown to the user.
#[test]
fn bytes_that_are_not_text_are_not_shown() {
    for body in ["x\u{fffd}y", "(\u{1}text"] {
        let found = classify(&test_endpoint("openai/gpt-5.4"), &plain(400, body));
        assert_eq!(found.message, "OpenAI refused the request (HTTP 400, model openai/gpt-5.4)");
    }
}

/// Regression: LiteLLM sends the status of an error inside a stream as a string. A failure of a moment was not retried.
#[test]
fn a_status_inside_a_stream_may_be_a_string() {
    for code in ["503", "\"503\""] {
        let body = format!(r#"{{"error":{{"message":"up","type":"None","code":{code}}}}}"#);
        assert_eq!(classify(&test_endpoint("openai/gpt-5.4"), &plain(200, &body)).class, RETRY, "{code}");
    }
}

#[test]
fn statuses_that_repetition_cannot_change_are_not_retried() {
    for status in [400, 404, 405, 410, 415, 422, 451, 501, 505, 511] {
        let found = classify(&test_endpoint("openai/gpt-5.4"), &plain(status, "{}"));
        assert_eq!(found.class, ErrorClass::Refused, "{status}");
    }
    for status in [408, 409, 425, 429, 500, 502, 503, 504, 529] {
        assert_eq!(classify(&test_endpoint("openai/gpt-5.4"), &plain(status, "{}")).class, RETRY, "{status}");
    }
}

#[test]
fn upstream_errors_are_extracted_from_gateway_errors() {
    let raw = r#"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 9 tokens > 8 maximum\"}}"#;
    let body = format!(
        r#"{{"error":{{"message":"Provider returned error","code":400,"metadata":{{"raw":"{raw}","provider_name":"Anthropic"}}}}}}"#
    );
    assert_eq!(classify(&local(), &plain(200, &body)).class, too_long(9, 8));
    let busy = r#"{"error":{"code":502,"message":"Network connection lost."}}"#;
    assert_eq!(classify(&local(), &plain(200, busy)).class, RETRY);
}

#[test]
fn unknown_model_error_lists_available_models() {
    let mut endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    endpoint.model = "claude-nope".into();
    let body = r#"{"error":{"type":"not_found_error","message":"model: claude-nope"}}"#;
    let hint = classify(&endpoint, &plain(404, body)).hint.expect("it says what to do");
    assert!(hint.contains("anthropic/claude-") && hint.contains("`epitome models`"), "{hint}");
    let address = classify(&endpoint, &plain(404, "<html>nginx</html>")).hint.expect("it says what to do");
    assert!(address.contains("base URL https://api.anthropic.com"), "{address}");
}

#[test]
fn secrets_are_redacted_before_messages_are_cut() {
    let body = format!("{} sk-test-key", "x".repeat(PROVIDER_MESSAGE_BYTES_MAX - 5));
    let error = classify(&test_endpoint("openai/gpt-5.4"), &plain(400, &body));
    assert!(!error.message.contains("sk-"), "{error}");
}

/// Regression: if both `GOOGLE_API_KEY` and `GEMINI_API_KEY` were set, the error didn't name the rejected one; for
/// configured providers it named "the key in config.toml", which doesn't contain keys.
#[test]
fn rejected_key_is_named_by_variable_and_url() {
    let settings = toml_settings();
    for (model, env, words) in [
        (
            "gemini/x",
            vec![("GOOGLE_API_KEY", "a"), ("GEMINI_API_KEY", "b")],
            vec!["Check GOOGLE_API_KEY: it must be a key of the service."],
        ),
        (
            "anthropic/x",
            vec![
                ("ANTHROPIC_API_KEY", "a"),
                ("ANTHROPIC_AUTH_TOKEN", "b"),
                ("ANTHROPIC_BASE_URL", "https://me:pw@gw"),
            ],
            vec!["Check ANTHROPIC_API_KEY and ANTHROPIC_AUTH_TOKEN", "of the service at https://gw."],
        ),
        ("router/x", vec![("ROUTER_KEY", "a")], vec!["Check ROUTER_KEY", "https://router.example"]),
        (
            "local/x",
            vec![("EPITOME_LOCAL_URL", "http://box:1")],
            vec!["No key was sent", "[providers.local]"],
        ),
    ] {
        let env: Vec<_> = env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let endpoint = resolve(&ModelName(model.into()), &settings, &env).expect("it is there");
        let failure =
            ErrorResponse { status: 401, retry_after: None, should_retry: None, request_id: None, body: "" };
        let hint = classify(&endpoint, &failure).hint.unwrap_or_default();
        assert!(words.iter().all(|word| hint.contains(word)), "{hint}");
    }
}

/// Regression: a URL that was rejected by a corporate proxy was reported as a bad key.
#[test]
fn html_403_behind_a_proxy_hints_at_the_proxy() {
    let env = [
        ("ANTHROPIC_API_KEY", "a"),
        ("ANTHROPIC_BASE_URL", "http://gw.example"),
        ("HTTP_PROXY", "http://proxy:3128"),
    ];
    let env = env.map(|(name, value)| (name.into(), value.into()));
    let model = ModelName("anthropic/x".into());
    let endpoint = resolve(&model, &Default::default(), &env).expect("a key is there");
    let failure =
        |body| ErrorResponse { status: 403, retry_after: None, should_retry: None, request_id: None, body };
    let hint = |body| classify(&endpoint, &failure(body)).hint.unwrap_or_default();
    assert!(hint("<html>no</html>").contains("the proxy of HTTP_PROXY"));
    assert!(!hint(r#"{"error":{"message":"no such key"}}"#).contains("HTTP_PROXY"));
}

/// Settings with one custom provider.
fn toml_settings() -> Settings {
    let mut settings = Settings::default();
    let router = ProviderSettings {
        wire: WireFormat::OpenAiChat,
        base_url: "https://router.example/v1".into(),
        key_variable: Some("ROUTER_KEY".into()),
        headers: Default::default(),
    };
    settings.providers.insert("router".into(), router);
    settings
}

#[test]
fn invalid_compaction_block_differs_from_rejected_compaction() {
    let endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    for (status, kind, code, class) in [
        (400, "invalid_request_error", "compaction_signature_invalid", ErrorClass::BadReasoning),
        (400, "invalid_request_error", "compaction_content_mismatch", ErrorClass::BadReasoning),
        (400, "invalid_request_error", "compaction_block_misplaced", ErrorClass::BadReasoning),
        (400, "invalid_request_error", "compaction_nothing_to_summarize", ErrorClass::Refused),
        (400, "invalid_request_error", "compaction_incomplete_turn", ErrorClass::Refused),
        (529, "overloaded_error", "compaction_unavailable", RETRY),
    ] {
        let body = format!(
            r#"{{"type":"error","error":{{"type":"{kind}","message":"x","details":{{"error_code":"{code}"}}}}}}"#
        );
        assert_eq!(classify(&endpoint, &plain(status, &body)).class, class, "{code}");
    }
}

/// The refusals that test suites of public repositories have recorded of real services.
#[test]
fn recorded_refusals_are_understood() {
    const FOLDER: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../../protocol-fixtures/providers/recorded");
    let now = |seconds| ErrorClass::Retry { after: Some(Duration::from_secs_f64(seconds)) };
    let gemini = test_endpoint("gemini/gemini-2.5-flash");
    let chat = test_chat_endpoint("openai/gpt-4.1");
    let responses = test_endpoint("openai/gpt-5");
    let claude = test_endpoint("anthropic/claude-haiku-4-5");
    let unknown = Endpoint { model: "nonexistent".to_owned(), ..chat.clone() };
    let window = ErrorClass::TooLong { used: None, limit: None, window: true };
    for (file, status, endpoint, class, words) in [
        (
            "anthropic-400-prompt-too-long",
            400,
            &claude,
            too_long(3_333_404, 200_000),
            "too long for the model",
        ),
        ("azure-429-retry-after-ms-0", 429, &chat, RETRY, "limits the rate"),
        ("gemini-429-retry-info", 429, &gemini, now(48.0), "limits the rate"),
        ("groq-400-tool-use-failed", 400, &chat, RETRY, "could not use what the model wrote"),
        (
            "openai-400-reasoning-without-following-item",
            400,
            &responses,
            ErrorClass::BadReasoning,
            "reasoning",
        ),
        // It was taken for a wrong key.
        ("openrouter-403-content-policy", 403, &chat, ErrorClass::Refused, "refused the request"),
        ("perplexity-400-too-long", 400, &chat, ErrorClass::Refused, "too long for the model"),
        ("xai-400-wrong-key", 400, &responses, ErrorClass::Auth, "did not accept the key"),
        ("deepseek-400-too-long", 400, &chat, too_long(1_250_025, 1_048_565), "too long for the model"),
        ("ollama-400-too-long", 400, &chat, ErrorClass::Refused, "may be too long for the model"),
        ("openai-400-too-long", 400, &responses, window, "too long for the model"),
        ("mistral-400-unknown-model", 400, &unknown, ErrorClass::Refused, "Invalid model"),
        ("xai-400-unknown-model", 400, &unknown, ErrorClass::Refused, "Model not found"),
        ("anthropic-400-schema-without-type", 400, &claude, ErrorClass::Refused, "tools.0.custom"),
        ("xai-400-reasoning-effort", 400, &chat, ErrorClass::Refused, "reasoningEffort"),
        ("openai-400-reasoning-effort", 400, &responses, ErrorClass::Refused, "reasoning.effort"),
        ("llamacpp-500-no-tools", 500, &chat, RETRY, "requires --jinja"),
    ] {
        let body = std::fs::read_to_string(format!("{FOLDER}/error-{file}.json")).expect("it is recorded");
        let found = classify(endpoint, &plain(status, &body));
        match (&class, &found.class) {
            (ErrorClass::Retry { after: Some(least) }, ErrorClass::Retry { after: Some(after) }) => {
                assert!(after >= least, "{file}: {found:?}");
            }
            (class, found) => assert_eq!(class, found, "{file}"),
        }
        assert!(found.message.contains(words), "{file}: {found}");
    }
}

/// A large conversation with a model that the service does not have was compacted, because a refusal without a reason may be
/// one of its length.
#[test]
fn an_unknown_model_is_no_reason_to_shorten_the_conversation() {
    for (status, message) in [
        (400, "Invalid model: some-model"),
        (400, "Model not found: some-model"),
        (400, "some-model is not a valid model ID"),
        (400, "The supported API model names are a or b, but you passed some-model."),
        (400, "The requested model 'some-model' does not exist."),
        (404, "Specified model not found: some-model."),
    ] {
        let endpoint = Endpoint { model: "some-model".to_owned(), ..test_chat_endpoint("openai/gpt-4.1") };
        let code = if message.contains("does not exist") { "model_not_found" } else { "x" };
        let body = serde_json::json!({ "error": { "message": message, "code": code } }).to_string();
        let found = classify(&endpoint, &plain(status, &body));
        assert_eq!((&found.class, &found.remedy), (&ErrorClass::Refused, &None), "{message}");
        assert!(found.hint.is_some_and(|hint| hint.contains("epitome models")), "{message}");
    }
    let endpoint = Endpoint { model: "some-model".to_owned(), ..test_chat_endpoint("openai/gpt-4.1") };
    let body =
        r#"{"error":{"message":"This is not a valid model input: some-model has a context of 9 tokens."}}"#;
    let found = classify(&endpoint, &plain(400, body));
    assert_eq!(found.remedy, Some(Remedy::Shorten { is_likely: true }), "{found:?}");
}

/// Services word a refusal of a field, a tool or a length in their own ways. Each used to end the conversation, and with a
/// list of wordings only those that somebody had reported did not.
#[test]
fn refusals_have_remedies() {
    let mistral = r#"{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","stream_options","include_usage"],"msg":"Extra inputs are not permitted"}]},"type":"invalid_request_error"}"#;
    let openai = r#"{"error":{"message":"Your organization must be verified to generate reasoning summaries.","type":"invalid_request_error","param":"reasoning.summary","code":"unsupported_value"}}"#;
    let anthropic = r#"{"type":"error","error":{"type":"invalid_request_error","message":"tools.12.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"}}"#;
    let google = r#"{"error":{"code":400,"message":"* GenerateContentRequest.tools[0].function_declarations[3].parameters.properties[q]: should be non-empty","status":"INVALID_ARGUMENT"}}"#;
    let long = r#"{"error":{"message":"Invalid 'tools[8].function.description': string too long. Expected a string with maximum length 1024, but got a string with length 3542 instead.","type":"invalid_request_error","param":"tools[8].function.description","code":"string_above_max_length"}}"#;
    let named = r#"{"error":{"message":"Invalid schema for function 'mcp__s__a': schema must have type 'object'","type":"invalid_request_error","param":null,"code":"x"}}"#;
    let litellm = r#"{"error":{"message":"litellm.ContextWindowExceededError: litellm.BadRequestError: Context Window exceeded for given call.","type":null,"param":null,"code":"400"}}"#;
    let many = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.0.content.1.image.source.base64.data: At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels"}}"#;
    let invalid = r#"{"error":{"message":"You uploaded an unsupported image. Please make sure your image is valid.","type":"invalid_request_error","param":null,"code":"image_parse_error"}}"#;
    let blind = r#"{"error":{"message":"No endpoints found that support image input","code":404}}"#;
    let claude = test_endpoint("anthropic/claude-sonnet-5-5");
    for (endpoint, status, body, remedy) in [
        (
            &test_chat_endpoint("openai/gpt-4.1"),
            422,
            mistral,
            Remedy::OmitField("stream_options.include_usage"),
        ),
        (&test_endpoint("openai/gpt-5"), 400, openai, Remedy::OmitField("reasoning.summary")),
        (&claude, 400, anthropic, Remedy::OmitTool(Some(12))),
        (&gemini(), 400, google, Remedy::OmitTool(Some(3))),
        (&test_chat_endpoint("openai/gpt-4o"), 400, long, Remedy::OmitTool(Some(8))),
        (&local(), 400, named, Remedy::OmitTool(None)),
        (&claude, 400, many, Remedy::OmitAttachments),
        (&test_chat_endpoint("openai/gpt-4o"), 400, invalid, Remedy::OmitAttachments),
        (&local(), 404, blind, Remedy::OmitAttachments),
        (&local(), 400, r#"{"error":"see the documentation"}"#, Remedy::Shorten { is_likely: false }),
        (&local(), 400, litellm, Remedy::Shorten { is_likely: true }),
        (&local(), 500, "{}", Remedy::Shorten { is_likely: false }),
        (&local(), 422, r#"{"error":"no"}"#, Remedy::Shorten { is_likely: false }),
    ] {
        let found = classify(endpoint, &plain(status, body));
        assert_eq!(found.remedy, Some(remedy), "{body}");
    }
    // The service objects to what is said, not to its length, and does so again with each prompt.
    let filtered = r#"{"error":{"message":"The response was filtered due to the prompt triggering Azure OpenAI's content management policy.","type":null,"param":"prompt","code":"content_filter","status":400}}"#;
    let filtered = classify(&test_chat_endpoint("openai/gpt-4.1"), &plain(400, filtered));
    assert_eq!((&filtered.class, &filtered.remedy), (&ErrorClass::Refused, &None));
    assert!(filtered.hint.is_some_and(|hint| hint.contains("/rewind")));
    let mut without = test_endpoint("openai/gpt-5");
    without.omitted.fields.insert("reasoning.summary");
    // It wants more of the field, not less.
    let missing = r#"{"error":{"message":"thinking is enabled but reasoning_content is missing in assistant tool call message at index 2"}}"#;
    let missing = classify(&test_chat_endpoint("openai/gpt-4.1"), &plain(400, missing)).remedy;
    assert_eq!(missing, Some(Remedy::Shorten { is_likely: false }));
    let again = classify(&without, &plain(400, openai)).remedy;
    assert_ne!(again, Some(Remedy::OmitField("reasoning.summary")), "it is left out already");
    assert_eq!(classify(&local(), &plain(401, "{}")).remedy, None);
}

#[test]
fn words_about_other_tokens_are_not_about_the_length() {
    for message in ["Unexpected token } in JSON at position 7", "The token is malformed"] {
        let body = serde_json::json!({ "error": { "message": message } }).to_string();
        let found = classify(&local(), &plain(400, &body));
        assert_eq!(found.remedy, Some(Remedy::Shorten { is_likely: false }), "{message}");
    }
}

/// Regression: with these services, a conversation that had become too long failed with each prompt.
#[test]
fn wordings_without_numbers_are_likely_about_the_length() {
    for message in [
        "Input is too long for requested model.",
        "The number of tokens to keep from the initial prompt is greater than the context length.",
        "invalid params, context window exceeds limit (2013)",
        "Prompt exceeds max length",
        "prompt too long; exceeded max context length by 4093 tokens",
        "Your input exceeds the context window of this model.",
        "Please reduce the length of the messages",
        "Requested token count exceeds the model's maximum",
        "The token limit of this model was exceeded",
    ] {
        let body = serde_json::json!({ "error": { "message": message } }).to_string();
        for status in [200, 400, 422] {
            let found = classify(&local(), &plain(status, &body)).judged(0, false);
            assert_eq!(found.class, UNSIZED, "{message}");
        }
    }
}

#[test]
fn an_unclear_refusal_of_a_large_request_means_that_it_is_too_long() {
    let refused = |status, body: &str| classify(&local(), &plain(status, body));
    let (vague, likely) = (r#"{"error":"no"}"#, r#"{"error":"Too many input tokens"}"#);
    for (status, body, attempts, is_large, class) in [
        (400, vague, 0, false, ErrorClass::Refused),
        (400, vague, 0, true, UNSIZED),
        (400, likely, 0, false, UNSIZED),
        (500, vague, 0, true, RETRY),
        (500, vague, 1, true, UNSIZED),
        (500, vague, 1, false, RETRY),
        (401, vague, 0, true, ErrorClass::Auth),
        (429, likely, 3, true, RETRY),
    ] {
        let found = refused(status, body).judged(attempts, is_large);
        assert_eq!(found.class, class, "{status} {body} {attempts} {is_large}");
    }
    let empty = || ProviderError::new(ErrorClass::Empty, "nothing");
    assert_eq!((empty().judged(0, true).class, empty().judged(0, false).class), (UNSIZED, RETRY));
}

/// Empty accounts were asked again or blamed on the key, and refusals because of content or of tools on the key and the name
/// of the model.
#[test]
fn accounts_contents_and_abilities_are_told_apart() {
    let chat = test_chat_endpoint("openai/gpt-4.1");
    for (status, message, class, words) in [
        (
            429,
            "Your team has either used all available credits or reached its monthly spending limit.",
            ErrorClass::Auth,
            "billing",
        ),
        (
            403,
            "Your newly created team doesn't have any credits or licenses yet. You can purchase those on x.ai",
            ErrorClass::Auth,
            "billing",
        ),
        (
            429,
            "Your account org-1 is suspended due to insufficient balance, please recharge",
            ErrorClass::Auth,
            "billing",
        ),
        (429, "Insufficient balance or no resource package. Please recharge.", ErrorClass::Auth, "billing"),
        (400, "You have reached your specified API usage limits.", ErrorClass::Auth, "billing"),
        (429, "余额不足或无可用资源包,请充值。", ErrorClass::Auth, "billing"),
        (
            429,
            "Rate limit reached. Please try again in 20s. Add a payment method to raise your limit.",
            ErrorClass::Retry { after: Some(Duration::from_secs(20)) },
            "rate",
        ),
        (403, "Content violates usage guidelines.", ErrorClass::Refused, "refused the request"),
        (403, "This key has no access", ErrorClass::Auth, "did not accept the key"),
        (404, "No endpoints found that support tool use.", ErrorClass::Refused, "refused the request"),
        (404, "tools is not supported", ErrorClass::Refused, "refused the request"),
        (404, "gpt-4.1 is not supported", ErrorClass::Refused, "does not know this model"),
    ] {
        let body = serde_json::json!({ "error": { "message": message } }).to_string();
        let found = classify(&chat, &plain(status, &body));
        assert_eq!(found.class, class, "{message}");
        assert!(found.message.contains(words), "{found}");
        assert!(class != ErrorClass::Refused || !found.hint.unwrap_or_default().contains("KEY"), "{message}");
    }
}

/// The reasons that these services gave were not shown.
#[test]
fn the_reason_is_found_in_any_shape() {
    for (body, words) in [
        (r#"{"error":{"message":{"detail":"the reason"}}}"#, "the reason"),
        (r#"{"message":{"detail":[{"loc":["body","x"],"msg":"the reason"}]}}"#, "x: the reason"),
        (r#"{"error":{"message":["the","reason"]}}"#, "the; reason"),
        (r#"{"Message":"the reason"}"#, "the reason"),
        (r#"{"error":[{"message":"the reason"},{"message":"more"}]}"#, "the reason; more"),
        (r#"{"errors":["the reason"]}"#, "the reason"),
        (r#"{"reasons":{"a":"the reason"}}"#, r#"{"reasons":{"a":"the reason"}}"#),
        ("the reason", "the reason"),
    ] {
        let found = classify(&local(), &plain(400, body));
        assert!(found.message.contains(words), "{body}: {found}");
    }
}

#[test]
fn the_end_of_a_rate_limit_is_read_from_the_message_or_the_headers() {
    for (message, after) in [
        ("Please try again in 11.054s. Visit x", Some(11.054)),
        ("Please try again in 7m12.5s.", Some(432.5)),
        ("Please retry in 500ms", Some(0.5)),
        ("Retry after 20 seconds.", Some(20.0)),
        ("Please try again in a moment", None),
    ] {
        let body = serde_json::json!({ "error": { "message": message } }).to_string();
        let after = after.map(Duration::from_secs_f64);
        assert_eq!(classify(&local(), &plain(429, &body)).class, ErrorClass::Retry { after }, "{message}");
    }
}
