//! Tests requests in Gemini's format and their validity.

use serde_json::json;

use super::super::encoding::Encoding;
use super::super::parts::{document_left_out, image_left_out};
use super::super::stream::Decoding;
use super::*;
use crate::ModelRequest;
use crate::collect::Collector;
use crate::endpoint::test_endpoint;
use crate::wire::views_tests::{OwnedView, body, call, encode, image, outcome, text};
use epitome_thread::OutcomeContent;

const FLASH: &str = "gemini-3.8-flash";

fn endpoint(model: &str) -> Endpoint {
    let mut endpoint = test_endpoint(&format!("gemini/{model}"));
    endpoint.max_output = 65_536;
    endpoint
}

/// A part with the signature data of an adjacent one.
fn seal(data: Value) -> Content {
    Content::Thinking {
        text: String::new(),
        native: Some(Native { provider: "gemini".into(), model: FLASH.into(), data }),
    }
}

#[test]
fn an_ordinary_conversation() {
    let view = OwnedView::default()
        .with_tools()
        .user(vec![text("what is here?")])
        .agent(vec![text("I look."), call("c1", json!({"command": "ls"}))])
        .outcomes(vec![outcome("c1", OutcomeStatus::Completed, "a b")]);
    let encoded = encode(&endpoint(FLASH), &view.request()).bytes();
    let expected = json!({
        "systemInstruction": {"parts": [{"text": "You are an agent."}]},
        "tools": [{"functionDeclarations": [{
            "name": "bash",
            "description": "Runs a command.",
            "parametersJsonSchema": {"type": "object", "properties": {"command": {"type": "string"}}},
        }]}],
        "generationConfig": {
            "maxOutputTokens": 32_000,
            "thinkingConfig": {"includeThoughts": true, "thinkingLevel": "MEDIUM"},
        },
        "contents": [
            {"role": "user", "parts": [{"text": "what is here?"}]},
            {"role": "model", "parts": [
                {"text": "I look."},
                {
                    "functionCall": {"name": "bash", "args": {"command": "ls"}, "id": "c1"},
                    "thoughtSignature": "skip_thought_signature_validator",
                },
            ]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "bash", "response": {"output": "a b"}, "id": "c1"}},
            ]},
        ],
    });
    assert_eq!(String::from_utf8_lossy(&encoded), expected.to_string());
}

#[test]
fn token_count_covers_the_entire_request() {
    let view = OwnedView::default().with_tools().user(vec![text("hi")]);
    let endpoint = endpoint(FLASH);
    let counted = Encoding::default().encode(&endpoint, &view.request(), Purpose::Count);
    let sent = body(&endpoint, &view.request());
    assert_eq!(
        serde_json::from_slice::<Value>(&counted.bytes()).expect("a body is JSON"),
        json!({"generateContentRequest": {
            "model": "models/gemini-3.8-flash",
            "systemInstruction": sent["systemInstruction"],
            "tools": sent["tools"],
            "contents": sent["contents"],
        }})
    );
}

#[test]
fn all_responses_come_first_and_say_which_failed() {
    let view = OwnedView::default()
        .user(vec![text("one"), text(" \n")])
        .user(vec![text("two")])
        .agent(vec![call("c1", json!({})), call("c2", json!({})), call("c3", json!({}))])
        .outcomes(vec![
            outcome("c1", OutcomeStatus::Failed, "no"),
            outcome("c2", OutcomeStatus::Completed, " "),
        ])
        .user(vec![text("stop that")]);
    let contents = &body(&endpoint("gemini-2.5-flash"), &view.request())["contents"];
    let answer = |id: &str, response: Value| json!({"functionResponse": {"id": id, "name": "bash", "response": response}});
    assert_eq!(
        *contents,
        json!([
            {"role": "user", "parts": [{"text": "one"}, {"text": "two"}]},
            {"role": "model", "parts": [
                {"functionCall": {"id": "c1", "name": "bash", "args": {}}},
                {"functionCall": {"id": "c2", "name": "bash", "args": {}}},
                {"functionCall": {"id": "c3", "name": "bash", "args": {}}},
            ]},
            {"role": "user", "parts": [
                answer("c1", json!({"error": "no"})),
                answer("c2", json!({"output": "(no output)"})),
                answer("c3", json!({"error": "The tool was interrupted; there is no result."})),
                {"text": "stop that"},
            ]},
        ])
    );
}

#[test]
fn user_attachments() {
    let pdf = |kind: &str, name: Option<&str>| Content::Document {
        mime_type: kind.into(),
        data: "aGk=".into(),
        name: name.map(str::to_owned),
    };
    let view = OwnedView::default().user(vec![
        Content::Resource { uri: "file:///a.rs".into(), text: "fn a() {}".into() },
        Content::ResourceLink { uri: "file:///b.rs".into(), name: "b.rs".into() },
        image("image/png"),
        image("image/gif"),
        pdf("application/pdf", Some("a.pdf")),
        pdf("application/pdf", None),
        pdf("application/zip", Some("a.zip")),
    ]);
    let mut endpoint = endpoint(FLASH);
    let sent = body(&endpoint, &view.request())["contents"][0]["parts"].clone();
    let left_out = |kind: &str| json!({"text": image_left_out(kind)});
    assert_eq!(
        sent,
        json!([
            {"text": "<resource uri=\"file:///a.rs\">\nfn a() {}\n</resource>"},
            {"text": "[b.rs](file:///b.rs)"},
            {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
            left_out("image/gif"),
            {"text": "The document a.pdf:"},
            {"inlineData": {"mimeType": "application/pdf", "data": "aGk="}},
            {"inlineData": {"mimeType": "application/pdf", "data": "aGk="}},
            {"text": document_left_out("application/zip", Some("a.zip"))},
        ])
    );
    endpoint.abilities.images = false;
    assert_eq!(body(&endpoint, &view.request())["contents"][0]["parts"][2], left_out("image/png"));
}

/// Models before Gemini 3 reject responses with parts; newer ones accept only some types in them.
#[test]
fn tool_images_are_in_or_next_to_the_response() {
    let mut seen = outcome("c1", OutcomeStatus::Completed, "a picture");
    seen.content.push(OutcomeContent::Image { mime_type: "image/png".into(), data: "aGk=".into() });
    seen.content.push(OutcomeContent::Image { mime_type: "image/gif".into(), data: "aGk=".into() });
    seen.content.push(OutcomeContent::Image { mime_type: "image/heic".into(), data: "aGk=".into() });
    let view = OwnedView::default()
        .user(vec![text("look")])
        .agent(vec![call("c1", json!({})), call("c2", json!({}))])
        .outcomes(vec![seen, outcome("c2", OutcomeStatus::Completed, "b")]);
    let png = json!({"inlineData": {"mimeType": "image/png", "data": "aGk="}});
    let output = "a picture\n(An image of type image/gif was attached here and left out: this model does not take it.)";
    let one = json!({"id": "c1", "name": "bash", "response": {"output": output}});
    let two = json!({"functionResponse": {"id": "c2", "name": "bash", "response": {"output": "b"}}});
    let sent = |model: &str| body(&endpoint(model), &view.request())["contents"][2]["parts"].clone();

    let mut with_parts = one.clone();
    with_parts["parts"] = json!([png]);
    let heic = json!({"inlineData": {"mimeType": "image/heic", "data": "aGk="}});
    let caption = json!({"text": "Shown by the call c1 of bash:"});
    assert_eq!(sent(FLASH), json!([{"functionResponse": with_parts}, two, caption, heic]));
    assert_eq!(sent("gemini-2.5-pro"), json!([{"functionResponse": one}, two, caption, png, heic]));
}

#[test]
fn thinking_is_configured_as_the_model_supports_it() {
    let words = Thinking::Efforts(&[Effort::Minimal, Effort::Low, Effort::Medium, Effort::High]);
    let more = Thinking::Efforts(&[Effort::Low, Effort::XHigh, Effort::Max]);
    let can_be_off = Thinking::Efforts(&[Effort::None, Effort::High]);
    let flash = Thinking::Budget { optional: true };
    let pro = Thinking::Budget { optional: false };
    let level = |word: &str, shown: bool| json!({"includeThoughts": shown, "thinkingLevel": word});
    let budget = |tokens: u32, shown: bool| json!({"includeThoughts": shown, "thinkingBudget": tokens});
    for (steered, wanted, max_output, expected) in [
        (words, ThoughtLevel::Off, 32_000, level("MINIMAL", false)),
        (words, ThoughtLevel::Low, 32_000, level("LOW", true)),
        (words, ThoughtLevel::Max, 32_000, level("HIGH", true)),
        (more, ThoughtLevel::Off, 32_000, level("LOW", false)),
        (more, ThoughtLevel::Max, 32_000, level("XHIGH", true)),
        (can_be_off, ThoughtLevel::Off, 32_000, budget(0, false)),
        (flash, ThoughtLevel::Off, 32_000, budget(0, false)),
        (flash, ThoughtLevel::Medium, 32_000, budget(8_192, true)),
        (flash, ThoughtLevel::Max, 64_000, budget(24_576, true)),
        (flash, ThoughtLevel::High, 800, budget(0, false)),
        (pro, ThoughtLevel::Off, 32_000, budget(128, false)),
        (pro, ThoughtLevel::High, 800, budget(128, true)),
        (Thinking::None, ThoughtLevel::High, 32_000, Value::Null),
    ] {
        let view = OwnedView::default().user(vec![text("hi")]);
        let mut endpoint = endpoint(FLASH);
        endpoint.abilities.thinking = steered;
        let request = ModelRequest { thought: wanted, max_output, ..view.request() };
        let found = body(&endpoint, &request)["generationConfig"]["thinkingConfig"].clone();
        assert_eq!(found, expected, "{steered:?} {wanted:?}");
    }
}

/// The stored parts of a streamed reply.
fn replied_with(endpoint: &Endpoint, prefix: &str, chunks: &[Value]) -> Vec<Content> {
    let mut decoding = Decoding::new(endpoint.clone(), prefix.into(), None);
    let mut events = Vec::new();
    for chunk in chunks {
        let parts = json!({"candidates": [{"content": {"parts": chunk, "role": "model"}}]});
        decoding.push(format!("data: {parts}\n\n").as_bytes(), &mut events).expect("a chunk can be read");
    }
    let last = "data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\n\n";
    decoding.push(last.as_bytes(), &mut events).expect("a chunk can be read");
    decoding.end(&mut events).expect("it is whole");
    let mut collector = Collector::new(&endpoint.name);
    events.into_iter().for_each(|event| drop(collector.feed(event)));
    collector.finish().content
}

/// A streamed reply of Gemini 3, and the message that is sent back for it.
fn a_signed_reply() -> (Vec<Value>, Value) {
    let streamed = vec![
        json!([{"text": "Two ", "thought": true}]),
        json!([{"text": "files.", "thought": true}]),
        json!([{"text": "I "}]),
        json!([{"text": "look."}]),
        json!([
            {"functionCall": {"id": "a", "name": "bash", "args": {"command": "ls"}}, "thoughtSignature": "c2lnMQ=="},
            {"functionCall": {"id": "b", "name": "bash", "args": {}}},
        ]),
        json!([{"functionCall": {"id": "c", "name": "bash", "args": {}}, "thoughtSignature": "c2lnMg=="}]),
    ];
    let sent_back = json!([
        {"text": "I look."},
        {"functionCall": {"id": "a", "name": "bash", "args": {"command": "ls"}}, "thoughtSignature": "c2lnMQ=="},
        {"functionCall": {"id": "b", "name": "bash", "args": {}}},
        {"functionCall": {"id": "c", "name": "bash", "args": {}}, "thoughtSignature": "c2lnMg=="},
    ]);
    (streamed, sent_back)
}

fn answered(view: OwnedView, reply: Vec<Content>) -> OwnedView {
    let done = |id| outcome(id, OutcomeStatus::Completed, "done");
    view.agent(reply).outcomes(vec![done("a"), done("b"), done("c")])
}

#[test]
fn signatures_are_sent_back_on_their_own_parts() {
    let endpoint = endpoint(FLASH);
    let view = OwnedView::default().with_tools().user(vec![text("look")]);
    let prefix = encode(&endpoint, &view.request()).prefix;
    let (streamed, sent_back) = a_signed_reply();
    let view = answered(view, replied_with(&endpoint, &prefix, &streamed));
    let sent = body(&endpoint, &view.request());
    assert_eq!(sent["contents"][1]["parts"], sent_back);

    // The next reply is bound to this one, including its signatures.
    let prefix = encode(&endpoint, &view.request()).prefix;
    let streamed = [
        json!([{"text": "Think", "thought": true}]),
        json!([{"text": "ing.", "thought": true, "thoughtSignature": "dA=="}]),
        json!([{"text": "One"}]),
        json!([{"text": ", two.", "thoughtSignature": "c2lnMw=="}, {"text": " Three."}]),
        json!([{"text": "", "thoughtSignature": "c2lnNA=="}]),
    ];
    let next = view.clone().agent(replied_with(&endpoint, &prefix, &streamed)).user(vec![text("and?")]);
    let sent = body(&endpoint, &next.request());
    assert_eq!(sent["contents"][1]["parts"], sent_back);
    assert_eq!(
        sent["contents"][3]["parts"],
        json!([
            {"text": "ing.", "thought": true, "thoughtSignature": "dA=="},
            {"text": "One"},
            {"text": ", two.", "thoughtSignature": "c2lnMw=="},
            {"text": " Three."},
            {"text": "", "thoughtSignature": "c2lnNA=="},
        ])
    );
}

/// The service rejects a signature that doesn't fit its conversation, and a first call without one.
#[test]
fn signature_is_dropped_for_other_models_and_prefixes() {
    let flash = endpoint(FLASH);
    let before = OwnedView::default().with_tools().user(vec![text("look")]);
    let prefix = encode(&flash, &before.request()).prefix;
    let (streamed, _) = a_signed_reply();
    let reply = replied_with(&flash, &prefix, &streamed);
    let compacted = OwnedView::default().with_tools().user(vec![text("a summary")]);
    let other_tools = OwnedView::default().user(vec![text("look")]);
    for (endpoint, view, first) in [
        (&flash, before.clone(), json!("c2lnMQ==")),
        (&flash, compacted, json!(NO_SIGNATURE)),
        (&flash, other_tools, json!(NO_SIGNATURE)),
        (&endpoint("gemini-4-argon"), before.clone(), json!(NO_SIGNATURE)),
        (&endpoint("gemini-2.5-flash"), before, Value::Null),
    ] {
        let view = answered(view, reply.clone());
        let sent = body(endpoint, &view.request());
        assert_eq!(sent["contents"][1]["parts"][1]["thoughtSignature"], first, "{}", endpoint.model);
        let later = sent["contents"][1]["parts"][3]["thoughtSignature"].as_str();
        assert_eq!(later, (first == "c2lnMQ==").then_some("c2lnMg=="), "{}", endpoint.model);
    }
}

/// The text of a reply can change later, for example when a secret is redacted.
#[test]
fn signature_of_changed_text_is_dropped() {
    let endpoint = endpoint(FLASH);
    let view = OwnedView::default().user(vec![text("go")]);
    let prefix = encode(&endpoint, &view.request()).prefix;
    let signed =
        |bytes: usize| seal(json!({"of": "text", "prefix": prefix, "signature": "c2ln", "bytes": bytes}));
    for (said, bytes, expected) in [
        ("größe", 3, json!([{"text": "grö"}, {"text": "ße", "thoughtSignature": "c2ln"}])),
        ("größe", 7, json!([{"text": "größe", "thoughtSignature": "c2ln"}])),
        ("größe", 4, json!([{"text": "größe"}])),
        ("größe", 8, json!([{"text": "größe"}])),
    ] {
        let view = view.clone().agent(vec![text(said), signed(bytes)]).user(vec![text("and?")]);
        assert_eq!(body(&endpoint, &view.request())["contents"][1]["parts"], expected, "{said} {bytes}");
    }
}

/// A signature is bound only to what precedes its reply, even if two replies are sent as one message.
#[test]
fn consecutive_reply_keeps_its_signature() {
    let endpoint = endpoint(FLASH);
    let view = OwnedView::default().user(vec![text("go")]).agent(vec![text("First.")]);
    let prefix = encode(&endpoint, &view.request()).prefix;
    let sealed = seal(json!({"of": "call", "prefix": prefix, "signature": "c2ln"}));
    let view = view.agent(vec![sealed, call("c1", json!({}))]).outcomes(vec![outcome(
        "c1",
        OutcomeStatus::Completed,
        "done",
    )]);
    let contents = &body(&endpoint, &view.request())["contents"];
    assert_eq!(contents[1]["parts"][0], json!({"text": "First."}));
    assert_eq!(contents[1]["parts"][1]["thoughtSignature"], "c2ln");
    assert_eq!(contents[2]["role"], "user");
}
