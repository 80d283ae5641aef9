//! Tests requests in the Responses format, for OpenAI and compatible servers, and their validity.

use proptest::prelude::*;
use serde_json::json;

use super::super::encoding::Encoding;
use super::super::parts::{document_left_out, image_left_out};
use super::super::stream::Decoding;
use super::*;
use crate::ModelRequest;
use crate::abilities::{Abilities, Thinking};
use crate::collect::Collector;
use crate::endpoint::test_endpoint;
use crate::wire::views_tests::{
    OwnedItem as Viewed, OwnedView, body, call, encode, image, outcome, text, thinking as thought, views,
};
use epitome_thread::{OutcomeStatus, ThoughtLevel};

const EFFORTS: [Effort; 5] = [Effort::None, Effort::Low, Effort::Medium, Effort::High, Effort::XHigh];

fn openai() -> Endpoint {
    let mut endpoint = test_endpoint("openai/gpt-6-sol");
    endpoint.abilities =
        Abilities { images: true, documents: true, audio: false, thinking: Thinking::Efforts(&EFFORTS) };
    endpoint.max_output = 32_000;
    endpoint
}

fn compatible() -> Endpoint {
    let mut endpoint = test_endpoint("openai/qwen3");
    endpoint.own_api = false;
    endpoint.abilities = Abilities { images: true, documents: false, audio: false, thinking: Thinking::None };
    endpoint.max_output = 32_000;
    endpoint
}

fn input(endpoint: &Endpoint, view: &OwnedView) -> Vec<Value> {
    body(endpoint, &view.request())["input"].as_array().expect("input is a list").clone()
}

fn message(role: &str, kind: &str, text: &str) -> Value {
    json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]})
}

/// The service rejects requests with fields that a ChatGPT plan does not support.
#[test]
fn a_plan_takes_fewer_fields() {
    let view = OwnedView::default().with_tools().user(vec![text("what is here?")]);
    let plan = Endpoint { is_plan: true, ..openai() };
    let sent = body(&plan, &view.request());
    assert_eq!((&sent["store"], &sent["stream"]), (&json!(false), &json!(true)));
    for field in ["max_output_tokens", "temperature", "truncation", "previous_response_id", "metadata"] {
        assert!(sent.get(field).is_none(), "{field}");
    }
    assert_eq!((plan.count_url(), plan.compact_url()), (None, None));
}

#[test]
fn an_ordinary_conversation() {
    let view = OwnedView::default()
        .with_tools()
        .user(vec![text("what is here?")])
        .agent(vec![text("I look."), call("c1", json!({"command": "ls"}))])
        .outcomes(vec![outcome("c1", OutcomeStatus::Completed, "a b")])
        .user(vec![text("and?"), text("quick")]);
    assert_eq!(
        body(&openai(), &view.request()),
        json!({
            "model": "gpt-6-sol",
            "store": false,
            "stream": true,
            "max_output_tokens": 32_000,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "s_1",
            "reasoning": {"effort": "medium", "summary": "auto"},
            "parallel_tool_calls": true,
            "instructions": "You are an agent.",
            "tools": [{
                "type": "function",
                "name": "bash",
                "description": "Runs a command.",
                "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
                "strict": false,
            }],
            "input": [
                message("user", "input_text", "what is here?"),
                message("assistant", "output_text", "I look."),
                {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{\"command\":\"ls\"}"},
                {"type": "function_call_output", "call_id": "c1", "output": "a b"},
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text", "text": "and?"}, {"type": "input_text", "text": "quick"},
                ]},
            ],
        })
    );
}

#[test]
fn compatible_servers_get_only_common_fields() {
    let view = OwnedView::default().user(vec![text("hi")]);
    let expected = json!({
        "model": "qwen3",
        "store": false,
        "stream": true,
        "max_output_tokens": 32_000,
        // A server that refuses it is asked without it.
        "include": ["reasoning.encrypted_content"],
        "instructions": "You are an agent.",
        "input": [message("user", "input_text", "hi")],
    });
    assert_eq!(body(&compatible(), &view.request()), expected);
    let mut thinking = compatible();
    thinking.abilities.thinking = Thinking::Efforts(&EFFORTS);
    assert_eq!(body(&thinking, &view.request())["reasoning"], json!({"effort": "medium"}));
}

#[test]
fn reasoning_is_configured_as_the_model_supports_it() {
    const ALWAYS: [Effort; 2] = [Effort::Low, Effort::High];
    let view = OwnedView::default().user(vec![text("hi")]);
    let summed = |effort: &str| json!({"effort": effort, "summary": "auto"});
    for (thinking, level, expected) in [
        (Thinking::Efforts(&EFFORTS), ThoughtLevel::Max, summed("xhigh")),
        (Thinking::Efforts(&EFFORTS), ThoughtLevel::Off, json!({"effort": "none"})),
        (Thinking::Efforts(&ALWAYS), ThoughtLevel::Off, json!({"effort": "low"})),
        (Thinking::None, ThoughtLevel::High, Value::Null),
    ] {
        let mut endpoint = openai();
        endpoint.abilities.thinking = thinking;
        let body = body(&endpoint, &ModelRequest { thought: level, ..view.request() });
        assert_eq!(body["reasoning"], expected, "{thinking:?} {level:?}");
        let reasons = expected.get("effort").is_some_and(|effort| effort != "none");
        assert_eq!(body.get("include").is_some(), reasons, "a model that doesn't reason refuses it");
    }
}

/// The counting endpoint rejects fields that it doesn't use.
#[test]
fn token_count_covers_the_same_conversation() {
    let view = OwnedView::default().with_tools().user(vec![text("hi")]);
    let reply = body(&openai(), &view.request());
    let counted = Encoding::default().encode(&openai(), &view.request(), Purpose::Count).bytes();
    let counted: Value = serde_json::from_slice(&counted).expect("a body is JSON");
    let fields: Vec<&String> = counted.as_object().expect("a body is an object").keys().collect();
    let known = ["model", "reasoning", "parallel_tool_calls", "instructions", "tools", "input"];
    assert_eq!(fields, known);
    assert!(known.iter().all(|field| counted[field] == reply[field]));
}

fn png() -> Value {
    json!({"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"})
}

fn pdf(name: &str) -> Value {
    json!({"type": "input_file", "filename": name, "file_data": "data:application/pdf;base64,aGk="})
}

fn said(text: &str) -> Value {
    json!({"type": "input_text", "text": text})
}

#[test]
fn user_attachments() {
    let document = |mime_type: &str, name: Option<&str>| Content::Document {
        mime_type: mime_type.into(),
        data: "aGk=".into(),
        name: name.map(str::to_owned),
    };
    let view = OwnedView::default().user(vec![
        Content::Resource { uri: "file:///a.rs".into(), text: "fn a() {}".into() },
        Content::ResourceLink { uri: "file:///b.rs".into(), name: "b.rs".into() },
        image("image/png"),
        image("image/tiff"),
        document("application/pdf", Some("plan.pdf")),
        document("application/pdf", None),
    ]);
    let file = said("<resource uri=\"file:///a.rs\">\nfn a() {}\n</resource>");
    let link = said("[b.rs](file:///b.rs)");
    let image_out = |kind: &str| said(&image_left_out(kind));
    let document_out = |name: Option<&str>| said(&document_left_out("application/pdf", name));
    let sent = |endpoint: &Endpoint| input(endpoint, &view)[0]["content"].clone();
    assert_eq!(
        sent(&openai()),
        json!([file, link, png(), image_out("image/tiff"), pdf("plan.pdf"), pdf("document.pdf")])
    );
    let mut blind = openai();
    blind.abilities = Abilities { images: false, documents: false, ..blind.abilities };
    let (named, unnamed) = (document_out(Some("plan.pdf")), document_out(None));
    assert_eq!(
        sent(&blind),
        json!([file, link, image_out("image/png"), image_out("image/tiff"), named, unnamed])
    );
}

/// llama.cpp rejects call outputs that contain anything but text.
#[test]
fn outcome_images_and_documents_are_sent_where_accepted() {
    let mut seen = outcome("c1", OutcomeStatus::Completed, "a picture");
    let data = || "aGk=".to_owned();
    seen.content.push(OutcomeContent::Image { mime_type: "image/png".into(), data: data() });
    let name = Some("plan.pdf".into());
    seen.content.push(OutcomeContent::Document { mime_type: "application/pdf".into(), data: data(), name });
    let view = OwnedView::default()
        .user(vec![text("look")])
        .agent(vec![call("c1", json!({})), call("c2", json!({}))])
        .outcomes(vec![seen, outcome("c2", OutcomeStatus::Denied, " ")])
        .user(vec![text("well?")]);
    let output =
        |id: &str, output: Value| json!({"type": "function_call_output", "call_id": id, "output": output});
    assert_eq!(
        input(&openai(), &view)[3..],
        [
            output("c1", json!([said("a picture"), png(), pdf("plan.pdf")])),
            output("c2", json!("(no output)")),
            message("user", "input_text", "well?"),
        ]
    );
    let left_out = document_left_out("application/pdf", Some("plan.pdf"));
    let shown = json!([said("What call c1 shows:"), png(), said("well?")]);
    assert_eq!(
        input(&compatible(), &view)[3..],
        [
            output("c1", json!(format!("a picture\n{left_out}"))),
            output("c2", json!("(no output)")),
            json!({"type": "message", "role": "user", "content": shown}),
        ]
    );
}

/// A call with malformed arguments is answered with an error, and both are sent.
#[test]
fn a_call_with_unreadable_arguments_is_sent_as_json() {
    let view = OwnedView::default()
        .user(vec![text("go")])
        .agent(vec![call("c1", json!({"invalid_json": "{\"a\": tru"}))])
        .outcomes(vec![outcome("c1", OutcomeStatus::Failed, "no JSON")]);
    let arguments = input(&openai(), &view)[1]["arguments"].clone();
    assert_eq!(arguments, json!("{\"invalid_json\":\"{\\\"a\\\": tru\"}"));
}

fn reply_of(stream: &[u8], endpoint: &Endpoint, prefix: String) -> Vec<Content> {
    let mut decoding = Decoding::new(endpoint.clone(), prefix, None);
    let mut events = Vec::new();
    decoding.push(stream, &mut events).expect("the stream is as it should be");
    let mut collector = Collector::new(&endpoint.name);
    for event in events {
        collector.feed(event);
    }
    collector.finish().content
}

const WITH_CALLS: &[u8] = include_bytes!(
    "../../../../protocol-fixtures/providers/responses-hidden-thinking-and-parallel-calls.sse"
);
const WITH_PHASE: &[u8] =
    include_bytes!("../../../../protocol-fixtures/providers/responses-thinking-and-phase.sse");

/// Encrypted reasoning preserves why the model made its calls. The service accepts it only complete and unchanged, for
/// the model that generated it, and after the same prefix.
#[test]
fn reasoning_is_only_sent_back_to_its_model_after_its_prefix() {
    let item = br#"{"id":"rs_2","type":"reasoning","encrypted_content":"Z0FBQg==","summary":[]}"#;
    let endpoint = openai();
    let before = OwnedView::default().with_tools().user(vec![text("read both")]);
    let reply = reply_of(WITH_CALLS, &endpoint, encode(&endpoint, &before.request()).prefix);
    let with_reply = |before: OwnedView| {
        before.agent(reply.clone()).outcomes(vec![
            outcome("call_1", OutcomeStatus::Completed, "fn a() {}"),
            outcome("call_2", OutcomeStatus::Completed, "nothing to do"),
        ])
    };
    let has = |endpoint: &Endpoint, view: OwnedView| {
        let sent = encode(endpoint, &view.request()).bytes();
        sent.windows(item.len()).any(|window| window == item)
    };
    assert!(has(&endpoint, with_reply(before.clone())));
    let later = with_reply(before.clone()).agent(vec![text("Done.")]).user(vec![text("and?")]);
    assert!(has(&endpoint, later));

    let compacted = OwnedView::default().with_tools().user(vec![text("a summary")]);
    assert!(!has(&endpoint, with_reply(compacted)));
    let other_tools = OwnedView::default().user(vec![text("read both")]);
    assert!(!has(&endpoint, with_reply(other_tools)));
    let mut other_model = openai();
    other_model.model = "gpt-6-luna".into();
    assert!(!has(&other_model, with_reply(before.clone())));
    assert!(!has(&compatible(), with_reply(before)));
}

#[test]
fn message_phase_is_sent_back() {
    let endpoint = openai();
    let before = OwnedView::default().with_tools().user(vec![text("read both")]);
    let reply = reply_of(WITH_PHASE, &endpoint, encode(&endpoint, &before.request()).prefix);
    let view = before.agent(reply).user(vec![text("go on")]);
    let sent = input(&endpoint, &view);
    assert_eq!(sent[1]["type"], "reasoning");
    assert_eq!(
        sent[2],
        json!({"type": "message", "role": "assistant", "phase": "commentary", "content": [
            {"type": "output_text", "text": "I read both."},
        ]})
    );
    assert_eq!(input(&compatible(), &view)[1], message("assistant", "output_text", "I read both."));
}

/// A reply that consists only of reasoning, for example because its tokens ran out, is not sent back: the service
/// rejects reasoning without the content for which it was generated.
#[test]
fn reasoning_without_following_content_is_dropped() {
    let endpoint = openai();
    let before = OwnedView::default().user(vec![text("think")]);
    let prefix = encode(&endpoint, &before.request()).prefix;
    let reasoning = || sealed(&prefix);
    let alone = before.clone().agent(vec![reasoning()]).user(vec![text("and?")]);
    assert_eq!(
        input(&endpoint, &alone),
        [json!({"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "think"}, {"type": "input_text", "text": "and?"},
        ]})]
    );
    let at_the_end = before.agent(vec![reasoning(), text("Hm."), reasoning()]).user(vec![text("and?")]);
    let kinds: Vec<Value> = input(&endpoint, &at_the_end).iter().map(|item| item["type"].clone()).collect();
    assert_eq!(kinds, ["message", "reasoning", "message", "message"]);
}

fn sealed(prefix: &str) -> Content {
    let item = json!({"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "Z0FB"});
    thought("openai", "gpt-6-sol", json!({"prefix": prefix, "item": item}))
}

proptest! {
    /// The model's own reasoning is sent if the content for which it was generated follows in its reply, and no other
    /// item has an id of the service.
    #[test]
    fn reasoning_followed_by_content_is_kept(view in views(false)) {
        let view = view.of_own(&openai());
        let sent = input(&openai(), &view);
        let kept = sent.iter().filter(|item| item["type"] == "reasoning").count();
        prop_assert_eq!(kept, sent.iter().filter(|item| item.get("id").is_some()).count());
        let mut expected = 0;
        for item in &view.items {
            if let Viewed::Agent(message, _) = item {
                let is_lost = |part: &Content| match part {
                    Content::Thinking { native, .. } => native.is_none(),
                    _ => false,
                };
                let is_blank =
                    |part: &Content| matches!(part, Content::Text { text } if text.trim().is_empty());
                let is_empty = |part: &Content| matches!(part, Content::Text { text } if text.is_empty());
                let is_said = |part: &Content| !matches!(part, Content::Thinking { .. }) && !is_empty(part);
                if !message.content.iter().any(|part| is_said(part) && !is_blank(part)) {
                    continue;
                }
                let until = message.content.iter().position(is_lost).unwrap_or(message.content.len());
                let last = message.content.iter().rposition(is_said).unwrap_or(0);
                let is_item = |part: &Content| match part {
                    Content::Thinking { native: Some(native), .. } => native.data.get("item").is_some(),
                    _ => false,
                };
                expected += message.content[..until.min(last)].iter().filter(|part| is_item(part)).count();
            }
        }
        prop_assert_eq!(kept, expected);
    }
}
