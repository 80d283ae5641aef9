//! Tests the parsers with real responses of providers and servers.

use serde_json::json;

use super::*;

fn listed(name: &str, facts: ModelFacts) -> ListedModel {
    ListedModel { name: name.into(), facts, life: Lifecycle::Active }
}

fn window(tokens: u64) -> ModelFacts {
    ModelFacts { window: Some(tokens), ..ModelFacts::default() }
}

fn read(body: &str, own_api: bool) -> Option<(Vec<ListedModel>, Option<String>)> {
    page(body.as_bytes(), own_api).map(|page| (page.listed, page.next))
}

/// Regression: a server listed a name of 100,000 characters, and `epitome models` panicked, also later, as lists are
/// stored.
#[test]
fn names_that_are_too_long_are_left_out() {
    let body = json!({"data": [{"id": "x".repeat(100_000)}, {"id": "short"}]}).to_string();
    assert_eq!(read(&body, false), Some((vec![listed("short", ModelFacts::default())], None)));
}

#[test]
fn lists_of_known_servers_are_parsed() {
    for (server, body, expected) in [
        (
            "llama.cpp",
            r#"{"models":[{"name":"qwen3.gguf","model":"qwen3.gguf","capabilities":["completion"]}],
                "object":"list","data":[{"id":"qwen3.gguf","object":"model","owned_by":"llamacpp",
                "meta":{"n_ctx":32768,"n_ctx_train":262144}}]}"#,
            vec![listed("qwen3.gguf", ModelFacts { images: Some(false), ..window(32_768) })],
        ),
        (
            "llama.cpp that sees",
            r#"{"models":[{"name":"gemma.gguf","capabilities":["completion","multimodal"]}],
                "data":[{"id":"gemma.gguf","meta":{"n_ctx":8192}}]}"#,
            vec![listed("gemma.gguf", ModelFacts { images: Some(true), ..window(8_192) })],
        ),
        (
            "vLLM",
            r#"{"object":"list","data":[{"id":"org/model","object":"model","max_model_len":8192}]}"#,
            vec![listed("org/model", window(8_192))],
        ),
        (
            "Ollama",
            r#"{"object":"list","data":[{"id":"llama3.2:3b","object":"model","owned_by":"library"}]}"#,
            vec![listed("llama3.2:3b", ModelFacts::default())],
        ),
        ("Ollama without a model", r#"{"object":"list","data":null}"#, vec![]),
        (
            "OpenRouter",
            r#"{"data":[{"id":"a/b","context_length":131072,"architecture":{"input_modalities":["text","image"]},
                "top_provider":{"context_length":131072,"max_completion_tokens":16384}}]}"#,
            vec![listed(
                "a/b",
                ModelFacts { max_output: Some(16_384), images: Some(true), ..window(131_072) },
            )],
        ),
        (
            "a server that leaves things open",
            r#"{"data":[{"id":"m","max_model_len":null},{"id":""},7]}"#,
            vec![listed("m", ModelFacts::default())],
        ),
    ] {
        assert_eq!(read(body, false), Some((expected, None)), "{server}");
    }
    for body in ["<html>", "[]", r#"{"error":{"message":"no"}}"#, r#"{"data":"x"}"#] {
        assert_eq!(read(body, false), None, "{body}");
    }
}

#[test]
fn anthropic_list_has_limits_and_abilities() {
    let yes = json!({ "supported": true });
    let no = json!({ "supported": false });
    let model = |id: &str, adaptive: &serde_json::Value, enabled: &serde_json::Value| {
        json!({
            "type": "model", "id": id, "display_name": "A name", "created_at": "2026-05-01T00:00:00Z",
            "lifecycle": "active", "line": "sonnet", "retires_at": null,
            "max_input_tokens": 1_000_000, "max_tokens": 128_000,
            "capabilities": {
                "image_input": yes, "pdf_input": no,
                "effort": { "supported": true, "low": yes, "medium": yes, "high": yes, "xhigh": null, "max": yes },
                "thinking": { "supported": true, "types": {
                    "adaptive": adaptive, "enabled": enabled, "disabled": yes, "between_tools": no } },
            },
        })
    };
    let mut ending = model("claude-old", &no, &yes);
    ending["lifecycle"] = json!("deprecated");
    ending["retires_at"] = json!("2027-01-14T00:00:00Z");
    let mut gone = model("claude-gone", &no, &yes);
    gone["lifecycle"] = json!("retired");
    let body = json!({
        "data": [model("claude-new", &yes, &no), ending, gone],
        "has_more": true, "first_id": "claude-new", "last_id": "claude-gone",
    });
    let limits = ModelFacts {
        max_output: Some(128_000),
        images: Some(true),
        documents: Some(false),
        ..window(1_000_000)
    };
    let efforts = &[Effort::None, Effort::Low, Effort::Medium, Effort::High, Effort::Max];
    let newest = ModelFacts { thinking: Some(Thinking::Efforts(efforts)), ..limits.clone() };
    let old = ModelFacts { thinking: Some(Thinking::Budget { optional: true }), ..limits };
    let life = Lifecycle::Ending { on: Some("2027-01-14".into()) };
    assert_eq!(
        read(&body.to_string(), true),
        Some((
            vec![listed("claude-new", newest), ListedModel { name: "claude-old".into(), facts: old, life }],
            Some("claude-gone".into())
        ))
    );
}

#[test]
fn anthropic_model_without_thinking_is_recognized() {
    let body = r#"{"data":[{"id":"m","capabilities":{"thinking":{"supported":false,"types":{}}}}]}"#;
    let facts = ModelFacts { thinking: Some(Thinking::None), ..ModelFacts::default() };
    assert_eq!(read(body, true), Some((vec![listed("m", facts)], None)));
}

#[test]
fn openai_list_is_filtered_to_chat_models() {
    let body = r#"{"object":"list","data":[
        {"id":"gpt-6-sol","object":"model","created":1,"owned_by":"system","shutdown_date":null},
        {"id":"gpt-4.1","object":"model","created":1,"owned_by":"system","shutdown_date":"2027-01-14"},
        {"id":"text-embedding-3-small","object":"model"},{"id":"gpt-realtime","object":"model"}]}"#;
    let ending = ListedModel {
        life: Lifecycle::Ending { on: Some("2027-01-14".into()) },
        ..listed("gpt-4.1", ModelFacts::default())
    };
    assert_eq!(read(body, true), Some((vec![listed("gpt-6-sol", ModelFacts::default()), ending], None)));
    let compatible = read(body, false).expect("a list").0;
    assert_eq!(compatible.len(), 4, "a compatible server's names mean what its owner wants");
}

#[test]
fn gemini_list_is_filtered_to_chat_models_with_limits() {
    let body = r#"{"models":[
        {"name":"models/gemini-3.8-flash","inputTokenLimit":1048576,"outputTokenLimit":65536,
         "supportedGenerationMethods":["generateContent","countTokens"],"thinking":true},
        {"name":"models/gemma-4","inputTokenLimit":131072,"outputTokenLimit":8192,
         "supportedGenerationMethods":["generateContent"],"thinking":false},
        {"name":"models/gemini-embedding-2","supportedGenerationMethods":["embedContent"]},
        {"name":"models/gemini-3.8-flash-tts","supportedGenerationMethods":["generateContent"]}],
        "nextPageToken":"abc"}"#;
    let flash = ModelFacts { max_output: Some(65_536), ..window(1_048_576) };
    let gemma = ModelFacts { max_output: Some(8_192), thinking: Some(Thinking::None), ..window(131_072) };
    assert_eq!(
        read(body, true),
        Some((vec![listed("gemini-3.8-flash", flash), listed("gemma-4", gemma)], Some("abc".into())))
    );
    assert_eq!(read("{}", true), Some((vec![], None)));
}

/// Regression test: the list of Vertex AI was requested below the project, where there is none, and its form was unknown.
#[test]
fn the_list_of_a_publisher_at_vertex_is_filtered_to_chat_models() {
    let body = r#"{"publisherModels":[
        {"name":"publishers/google/models/gemini-3.8-flash","versionId":"001","launchStage":"GA"},
        {"name":"publishers/google/models/gemini-3.8-flash-image"},
        {"name":"publishers/google/models/imagen-5"},
        {"name":"publishers/anthropic/models/claude-opus-5-5"}]}"#;
    let expected = ["gemini-3.8-flash", "claude-opus-5-5"].map(|name| listed(name, ModelFacts::default()));
    assert_eq!(read(body, true), Some((expected.to_vec(), None)));
}

#[test]
fn ollama_reports_windows_of_loaded_models() {
    for (body, expected) in [
        (
            r#"{"models":[{"name":"qwen3:8b","model":"qwen3:8b","size":1,"size_vram":1,"context_length":4096}]}"#,
            Some(vec![("qwen3:8b".to_owned(), 4_096)]),
        ),
        // Older versions omit the context window.
        (r#"{"models":[{"name":"qwen3:8b","size":1}]}"#, Some(vec![])),
        (r#"{"models":[]}"#, Some(vec![])),
        (r#"{"error":"not found"}"#, None),
    ] {
        assert_eq!(ollama_loaded(body.as_bytes()), expected, "{body}");
    }
}

#[test]
fn ollama_reports_abilities() {
    let shown = |capabilities: serde_json::Value, parameters: &str| {
        let body = json!({ "capabilities": capabilities, "parameters": parameters, "model_info": {
            "general.architecture": "qwen3", "qwen3.context_length": 40_960 } });
        ollama_shown(body.to_string().as_bytes()).expect("it is an object")
    };
    let facts = shown(json!(["completion", "tools", "vision", "thinking"]), "stop \"x\"\nnum_ctx    8192\n");
    assert_eq!(facts, ModelFacts { images: Some(true), ..window(8_192) });
    let facts = shown(json!(["completion", "tools"]), "temperature 0.6");
    let expected =
        ModelFacts { images: Some(false), thinking: Some(Thinking::None), ..ModelFacts::default() };
    assert_eq!(facts, expected);
    assert_eq!(ollama_shown(b"{}"), Some(ModelFacts::default()), "an older one reports nothing");
}
