//! Tests requests in Anthropic's format and their validity.

use serde_json::json;

use super::*;
use crate::ModelRequest;
use crate::abilities::Abilities;
use crate::endpoint::test_endpoint;
use crate::wire::views_tests::{
    OwnedView, body, call, document, encode, image, outcome, outcome_document, picture, text,
    thinking as thought,
};
use epitome_thread::{ModelName, OutcomeContent, ThoughtLevel};

const SONNET: &str = "anthropic/claude-sonnet-5-5";

/// Removes cache marks, which move from request to request and aren't part of the content.
fn unmarked(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(name, _)| *name != "cache_control");
            Value::Object(fields.map(|(name, value)| (name.clone(), unmarked(value))).collect())
        }
        Value::Array(items) => items.iter().map(unmarked).collect(),
        other => other.clone(),
    }
}

#[test]
fn an_ordinary_conversation() {
    let view = OwnedView::default()
        .with_tools()
        .user(vec![text("what is here?")])
        .agent(vec![text("I look."), call("c1", json!({"command": "ls"}))])
        .outcomes(vec![outcome("c1", OutcomeStatus::Completed, "a b")]);
    assert_eq!(
        body(&test_endpoint(SONNET), &view.request()),
        json!({
            "model": "claude-sonnet-5-5",
            "max_tokens": 32_000,
            "stream": true,
            "cache_control": {"type": "ephemeral"},
            "thinking": {"type": "adaptive", "display": "summarized"},
            "output_config": {"effort": "medium"},
            "system": [{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}],
            "tools": [{
                "name": "bash",
                "description": "Runs a command.",
                "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
            }],
            "messages": [
                {"role": "user", "content": [
                    {"type": "text", "text": "what is here?", "cache_control": {"type": "ephemeral"}},
                ]},
                {"role": "assistant", "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a b"}]},
                ]},
            ],
        })
    );
}

#[test]
fn results_come_first_and_adjacent_messages_are_merged() {
    let view = OwnedView::default()
        .user(vec![text("one"), text(" \n")])
        .user(vec![text("two")])
        .agent(vec![call("c1", json!({})), call("c2", json!({}))])
        .outcomes(vec![
            outcome("c1", OutcomeStatus::Failed, "no"),
            outcome("c2", OutcomeStatus::Completed, " "),
        ])
        .user(vec![text("stop that")]);
    assert_eq!(
        unmarked(&body(&test_endpoint(SONNET), &view.request())["messages"]),
        json!([
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c1", "name": "bash", "input": {}},
                {"type": "tool_use", "id": "c2", "name": "bash", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "is_error": true, "content": [{"type": "text", "text": "no"}]},
                {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "(no output)"}]},
                {"type": "text", "text": "stop that"},
            ]},
        ])
    );
}

#[test]
fn user_files_links_and_images() {
    let view = OwnedView::default().user(vec![
        Content::Resource { uri: "file:///a.rs".into(), text: "fn a() {}".into() },
        Content::ResourceLink { uri: "file:///b.rs".into(), name: "b.rs".into() },
        image("image/png"),
        image("image/tiff"),
    ]);
    assert_eq!(
        body(&test_endpoint(SONNET), &view.request())["messages"][0]["content"],
        json!([
            {"type": "text", "text": "<resource uri=\"file:///a.rs\">\nfn a() {}\n</resource>"},
            {"type": "text", "text": "[b.rs](file:///b.rs)"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
            {"type": "text", "text": "(An image of type image/tiff was attached here and left out: this model does not take it.)"},
        ])
    );
}

/// Regression: after the 21st screenshot of a large screen, the service answered every request of the conversation with
/// "image dimensions exceed max allowed size for many-image requests: 2000 pixels", even that for a summary.
#[test]
fn the_oldest_of_many_images_are_left_out_if_any_is_large() {
    let sent = |endpoint: &Endpoint, images: Vec<Content>| {
        let body = body(endpoint, &OwnedView::default().user(images).request());
        let blocks = body["messages"][0]["content"].as_array().cloned().unwrap_or_default();
        blocks.iter().map(|block| block["type"] == "image").collect::<Vec<bool>>()
    };
    let (large, small) = (picture(2_880, 1_800), picture(1_280, 2_000));
    let claude = test_endpoint(SONNET);
    let other = Endpoint { model: "kimi-k2".into(), own_api: false, ..test_endpoint(SONNET) };
    let then = |first: &[Content], count: usize, more: &Content| {
        [first, vec![more.clone(); count].as_slice()].concat()
    };
    for (images, left_out) in [
        (then(&[], 20, &large), 0),
        (then(&[], 21, &large), 10),
        (then(&[], 30, &large), 10),
        (then(&[], 31, &large), 20),
        (then(&[], 100, &small), 0),
        (then(&[], 101, &small), 10),
        // Without the large one, the others are not too many.
        (then(std::slice::from_ref(&large), 40, &small), 10),
        (then(&vec![small.clone(); 40], 1, &large), 30),
    ] {
        let count = images.len();
        let wanted: Vec<bool> = (0..count).map(|at| at >= left_out).collect();
        assert_eq!(sent(&claude, images.clone()), wanted, "{count} images");
        assert_eq!(sent(&other, images), vec![true; count], "{count} images for another model");
    }
}

/// Regression: a screenshot of an entire web page was longer than the service accepts, and it rejected every later
/// request of the conversation.
#[test]
fn images_that_are_too_large_are_left_out() {
    let view = OwnedView::default().user(vec![picture(1_280, 8_001), picture(1_280, 8_000)]);
    let content = &body(&test_endpoint(SONNET), &view.request())["messages"][0]["content"];
    assert_eq!(content[0]["type"], "text", "{content}");
    assert!(content[0]["text"].as_str().is_some_and(|text| text.contains("8000 pixels")), "{content}");
    assert_eq!(content[1]["type"], "image", "{content}");
}

#[test]
fn user_and_tool_documents() {
    let mut read = outcome("c1", OutcomeStatus::Completed, "plan.pdf");
    read.content.push(outcome_document(Some("plan.pdf")));
    let long = "x".repeat(300);
    let view = OwnedView::default()
        .user(vec![
            document("application/pdf", Some("a.pdf")),
            document("application/pdf", None),
            document("application/pdf", Some(&long)),
            document("application/zip", Some("a.zip")),
        ])
        .agent(vec![call("c1", json!({}))])
        .outcomes(vec![read]);
    let source = json!({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="});
    let messages = &body(&test_endpoint(SONNET), &view.request())["messages"];
    assert_eq!(
        messages[0]["content"].as_array().map(|blocks| blocks[..3].to_vec()),
        json!([
            {"type": "document", "source": source, "title": "a.pdf"},
            {"type": "document", "source": source},
            {"type": "document", "source": source, "title": long[..255]},
        ])
        .as_array()
        .cloned()
    );
    assert_eq!(
        messages[0]["content"][3]["text"],
        "(The document a.zip of type application/zip was attached here and left out: this model does not take it.)"
    );
    assert_eq!(
        messages[2]["content"][0]["content"],
        json!([
            {"type": "text", "text": "plan.pdf"},
            {"type": "document", "source": source, "title": "plan.pdf"},
        ])
    );
}

#[test]
fn text_only_models_get_placeholders() {
    let mut read = outcome("c1", OutcomeStatus::Completed, "seen");
    read.content.push(OutcomeContent::Image { mime_type: "image/png".into(), data: "aGk=".into() });
    read.content.push(outcome_document(None));
    let view = OwnedView::default()
        .user(vec![image("image/png"), document("application/pdf", Some("a.pdf"))])
        .agent(vec![call("c1", json!({}))])
        .outcomes(vec![read]);
    let mut endpoint = test_endpoint(SONNET);
    (endpoint.abilities.images, endpoint.abilities.documents) = (false, false);
    let sent = body(&endpoint, &view.request()).to_string();
    assert!(!sent.contains("base64"), "{sent}");
    for line in [
        "(An image of type image/png was attached here and left out: this model does not take it.)",
        "(The document a.pdf of type application/pdf was attached here and left out: this model does not take it.)",
        "(The document of type application/pdf was attached here and left out: this model does not take it.)",
    ] {
        assert!(sent.contains(line), "{line}: {sent}");
    }
}

#[test]
fn thinking_is_configured_as_the_model_supports_it() {
    let view = OwnedView::default().user(vec![text("hi")]);
    let adaptive = json!({"type": "adaptive", "display": "summarized"});
    let budget = |tokens: u32| json!({"type": "enabled", "budget_tokens": tokens});
    for (model, level, max_output, expected, effort) in [
        ("claude-sonnet-5-5", ThoughtLevel::Max, 32_000, adaptive.clone(), json!("max")),
        ("claude-opus-4-8", ThoughtLevel::Low, 32_000, adaptive.clone(), json!("low")),
        ("claude-next", ThoughtLevel::High, 32_000, adaptive.clone(), json!("high")),
        ("claude-sonnet-4-6", ThoughtLevel::Max, 32_000, adaptive.clone(), json!("max")),
        ("claude-haiku-4-5", ThoughtLevel::Medium, 32_000, budget(8_192), Value::Null),
        ("claude-opus-4-20250514", ThoughtLevel::Max, 32_000, budget(16_000), Value::Null),
        ("claude-haiku-4-5-20251001", ThoughtLevel::Low, 2_000, Value::Null, Value::Null),
        ("claude-3-5-haiku-20241022", ThoughtLevel::High, 32_000, Value::Null, Value::Null),
        ("claude-opus-4-8", ThoughtLevel::Off, 32_000, json!({"type": "disabled"}), Value::Null),
        // This model always thinks, so the lowest effort is requested.
        ("claude-sonnet-5-5", ThoughtLevel::Off, 32_000, adaptive, json!("low")),
        ("qwen3", ThoughtLevel::High, 32_000, Value::Null, Value::Null),
    ] {
        let mut endpoint = test_endpoint(SONNET);
        endpoint.model = model.into();
        endpoint.abilities = Abilities::likely(endpoint.wire, model);
        let request = ModelRequest { thought: level, max_output, ..view.request() };
        let body = body(&endpoint, &request);
        assert_eq!(body["thinking"], expected, "{model} {level:?}");
        assert_eq!(body["output_config"]["effort"], effort, "{model} {level:?}");
    }
}

#[test]
fn budgeted_thinking_does_not_start_mid_round() {
    let view = OwnedView::default()
        .user(vec![text("go")])
        .agent(vec![call("c1", json!({}))])
        .outcomes(vec![outcome("c1", OutcomeStatus::Completed, "done")]);
    let endpoint = test_endpoint("anthropic/claude-haiku-4-5");
    assert_eq!(body(&endpoint, &view.request())["thinking"], Value::Null);
    let next = view.agent(vec![text("Done.")]).user(vec![text("again")]);
    assert_eq!(body(&endpoint, &next.request())["thinking"]["type"], "enabled");
}

#[test]
fn cache_marks_suit_the_server() {
    let view = OwnedView::default().user(vec![text("one"), text("two")]);
    let mark = json!({"type": "ephemeral"});
    let mut endpoint = test_endpoint(SONNET);
    endpoint.own_api = false;
    let gateway = body(&endpoint, &view.request());
    assert_eq!(gateway.get("cache_control"), None);
    assert_eq!(gateway["system"][0]["cache_control"], mark);
    assert_eq!(gateway["messages"][0]["content"][0].get("cache_control"), None);
    assert_eq!(gateway["messages"][0]["content"][1]["cache_control"], mark);
    endpoint.model = "qwen3".into();
    let other = encode(&endpoint, &view.request()).bytes();
    assert!(!String::from_utf8_lossy(&other).contains("cache_control"));
    let alone = encode(&test_endpoint(SONNET), &ModelRequest { basis: None, ..view.request() }).bytes();
    assert!(!String::from_utf8_lossy(&alone).contains("cache_control"), "it would never be read");
}

/// Newer models reject thinking after a different prefix, with an error that ends the conversation.
#[test]
fn thinking_is_only_sent_back_to_its_model_after_its_prefix() {
    let endpoint = test_endpoint(SONNET);
    let before = OwnedView::default().with_tools().user(vec![text("think")]);
    let prefix = encode(&endpoint, &before.request()).prefix;
    let block = json!({"type": "thinking", "thinking": "hm", "signature": "sig"});
    let data = json!({"block": block, "prefix": prefix});
    let reply = vec![thought("anthropic", "claude-sonnet-5-5", data), text("Hm.")];
    let rest = |view: OwnedView| view.agent(reply.clone()).user(vec![text("and?")]);
    let sent = |endpoint: &Endpoint, view: OwnedView| {
        body(endpoint, &view.request())["messages"][1]["content"].clone()
    };

    assert_eq!(sent(&endpoint, rest(before.clone()))[0], block);
    let without = json!([{"type": "text", "text": "Hm."}]);
    let compacted = OwnedView::default().with_tools().user(vec![text("a summary")]);
    assert_eq!(sent(&endpoint, rest(compacted)), without);
    let other_tools = OwnedView::default().user(vec![text("think")]);
    assert_eq!(sent(&endpoint, rest(other_tools)), without);
    assert_eq!(sent(&test_endpoint("anthropic/claude-opus-5-5"), rest(before)), without);
}

/// Claude Opus 4.6 writes a blank text before its thinking. The text can't be sent back, and the thinking was dropped with
/// it.
#[test]
fn thinking_after_a_blank_text_is_sent_back() {
    let block = json!({"type": "thinking", "thinking": "hm", "signature": "sig"});
    let signed = || thought("anthropic", "claude-sonnet-5-5", block.clone());
    let view = OwnedView::default()
        .user(vec![text("think")])
        .agent(vec![signed(), text("\n"), signed(), text("Hm.")])
        .user(vec![text("and?")]);
    let sent = body(&test_endpoint(SONNET), &view.request());
    assert_eq!(sent["messages"][1]["content"], json!([block, block, {"type": "text", "text": "Hm."}]));
}

/// Regression: two texts of a reply became one, and the thinking behind them was refused, because its signature is bound to the
/// blocks before it.
#[test]
fn each_text_of_a_reply_is_sent_back_as_it_came() {
    let start = |index: u32, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta =
        |index: u32, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index: u32| json!({"type": "content_block_stop", "index": index});
    let said = |index: u32, text: &str| {
        [
            start(index, json!({"type": "text", "text": ""})),
            delta(index, json!({"type": "text_delta", "text": text})),
            stop(index),
        ]
    };
    let thought = [
        start(2, json!({"type": "thinking", "thinking": "hm", "signature": "sig"})),
        stop(2),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
        json!({"type": "message_stop"}),
    ];
    let mut decoding = crate::wire::stream::Decoding::new(test_endpoint(SONNET), "p".into(), None);
    let mut arrived = Vec::new();
    for event in said(0, "one").into_iter().chain(said(1, "two")).chain(thought) {
        decoding.push(format!("data: {event}\n\n").as_bytes(), &mut arrived).expect("an event");
    }
    let mut collector = crate::collect::Collector::new(&ModelName(SONNET.into()));
    arrived.into_iter().for_each(|event| drop(collector.feed(event)));
    let reply = collector.finish().content;
    assert_eq!(reply[..2], [text("one"), text("two")]);
    let view = OwnedView::default().user(vec![text("go")]).agent(reply).user(vec![text("on")]);
    let sent = body(&test_endpoint(SONNET), &view.request());
    let texts = [json!({"type": "text", "text": "one"}), json!({"type": "text", "text": "two"})];
    assert_eq!(sent["messages"][1]["content"].as_array().expect("parts")[..2], texts);
}

/// Regression: such an event, as sent by older vLLM, was ignored, and the reply seemed to have been cut off.
#[test]
fn an_error_without_a_wrapper_is_an_error() {
    let mut decoding = crate::wire::stream::Decoding::new(test_endpoint(SONNET), "p".into(), None);
    let event = r#"{"object":"error","message":"This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens.","type":"BadRequestError","code":400}"#;
    let pushed = decoding.push(format!("data: {event}\n\n").as_bytes(), &mut Vec::new());
    let error = pushed.expect_err("the service refuses");
    assert!(matches!(error.class, crate::ErrorClass::TooLong { .. }), "{error:?}");
}
