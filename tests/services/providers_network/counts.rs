//! Token counts by the provider.

use epitome::config::WireFormat;
use epitome::provider::ErrorClass;
use epitome::provider::count::count;
use epitome::provider::http::Http;

use super::calls::{encoded, endpoint_of};
use super::servers::{answer, converse, listen};

/// Answers every request on one connection, and returns the requests.
async fn server(response: String) -> (String, tokio::task::JoinHandle<Vec<String>>) {
    let (listener, address) = listen().await;
    let serving = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("the client comes");
        converse(socket, &response).await
    });
    (format!("http://{address}"), serving)
}

#[tokio::test]
async fn each_format_has_its_own_path_and_response() {
    for (wire, path, body, key) in [
        (WireFormat::AnthropicMessages, "/v1/messages/count_tokens", r#"{"input_tokens":42}"#, "x-api-key"),
        (
            WireFormat::OpenAiResponses,
            "/v1/responses/input_tokens",
            r#"{"object":"response.input_tokens","input_tokens":42}"#,
            "authorization",
        ),
        (
            WireFormat::Gemini,
            "/v1beta/models/some-model:countTokens",
            r#"{"totalTokens":42,"cachedContentTokenCount":7}"#,
            "x-goog-api-key",
        ),
    ] {
        let (base, serving) = server(answer("200 OK", body)).await;
        let http = Http::new();
        let endpoint = endpoint_of("box", wire, &base, &[]);
        assert_eq!(count(&http, &endpoint, &encoded(&["{\"a\"", ":1}"])).await, Ok(42), "{path}");
        drop(http);
        let request = serving.await.expect("the server ends").remove(0);
        assert!(request.starts_with(&format!("POST {path} HTTP/1.1")), "{request}");
        assert!(request.contains(&format!("{key}: ")) && request.ends_with("{\"a\":1}"), "{request}");
    }
}

#[tokio::test]
async fn a_server_without_token_counting_is_asked_once() {
    let (base, serving) = server(answer("404 Not Found", r#"{"detail":"Not Found"}"#)).await;
    let http = Http::new();
    let endpoint = endpoint_of("box", WireFormat::AnthropicMessages, &base, &[]);
    for _ in 0..3 {
        let error = count(&http, &endpoint, &encoded(&["{}"])).await.expect_err("it does not count");
        assert_eq!(error.message, "box counts no tokens (model box/some-model).");
    }
    drop(http);
    assert_eq!(serving.await.expect("the server ends").len(), 1);
}

#[tokio::test]
async fn a_temporary_error_is_returned_and_the_server_asked_again() {
    let (base, serving) = server(answer("529 Overloaded", r#"{"error":{"type":"overloaded_error"}}"#)).await;
    let http = Http::new();
    let endpoint = endpoint_of("box", WireFormat::AnthropicMessages, &base, &[]);
    for _ in 0..2 {
        let error = count(&http, &endpoint, &encoded(&["{}"])).await.expect_err("it is overloaded");
        assert_eq!(error.class, ErrorClass::Retry { after: None });
    }
    drop(http);
    assert_eq!(serving.await.expect("the server ends").len(), 2);
}

#[tokio::test]
async fn chat_completions_cannot_count_tokens() {
    let endpoint = endpoint_of("box", WireFormat::OpenAiChat, "http://127.0.0.1:9", &[]);
    let error = count(&Http::new(), &endpoint, &encoded(&["{}"])).await.expect_err("there is none");
    assert_eq!(error.class, ErrorClass::Refused);
}
