//! Tests requests in the Chat Completions format and their validity.

use serde_json::json;

use super::*;
use crate::ModelRequest;
use crate::abilities::{Abilities, Thinking};
use crate::endpoint::test_chat_endpoint;
use crate::wire::views_tests::{
    OwnedView, body, call, document, image, outcome, outcome_document, text, thinking,
};
use epitome_thread::{OutcomeContent, OutcomeStatus, ViewItem};

fn compatible() -> Endpoint {
    let mut endpoint = test_chat_endpoint("openai/qwen3");
    endpoint.own_api = false;
    endpoint.abilities = Abilities { images: true, documents: false, audio: false, thinking: Thinking::None };
    endpoint
}

#[test]
fn an_ordinary_conversation() {
    let view = OwnedView::default()
        .with_tools()
        .user(vec![text("what is here?")])
        .agent(vec![
            thinking("openai", "qwen3", json!({})),
            text("I look."),
            call("c1", json!({"command": "ls"})),
        ])
        .outcomes(vec![outcome("c1", OutcomeStatus::Completed, "a b")])
        .user(vec![text("and?"), text("quick")]);
    assert_eq!(
        body(&compatible(), &view.request()),
        json!({
            "model": "qwen3",
            "max_tokens": 16_384,
            "stream": true,
            "stream_options": {"include_usage": true},
            "tools": [{"type": "function", "function": {
                "name": "bash",
                "description": "Runs a command.",
                "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
            }}],
            "messages": [
                {"role": "system", "content": "You are an agent."},
                {"role": "user", "content": "what is here?"},
                {"role": "assistant", "content": "I look.", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{\"command\":\"ls\"}"}},
                ]},
                {"role": "tool", "tool_call_id": "c1", "content": "a b"},
                {"role": "user", "content": "and?\n\nquick"},
            ],
        })
    );
}

/// `summary_role = "system"` was refused, although these formats accept a system message anywhere.
#[test]
fn a_summary_is_a_system_message_if_the_settings_say_so() {
    let view =
        OwnedView::default().user(vec![text("So far."), text("e1 to e9 left.")]).user(vec![text("and?")]);
    let mut request = view.request();
    if let ViewItem::User(summary) = request.items[0] {
        request.items[0] = ViewItem::Summary(summary);
    }
    for (summary_as_system, expected) in [
        (false, json!([{"role": "user", "content": "So far.\n\ne1 to e9 left.\n\nand?"}])),
        (
            true,
            json!([
                {"role": "system", "content": "So far.\n\ne1 to e9 left."},
                {"role": "user", "content": "and?"},
            ]),
        ),
    ] {
        let endpoint = Endpoint { summary_as_system, ..compatible() };
        let sent = body(&endpoint, &request);
        assert_eq!(
            sent["messages"].as_array().expect("a list")[1..],
            expected.as_array().expect("a list")[..]
        );
    }
}

#[test]
fn reply_with_only_calls_has_null_content() {
    let view = OwnedView::default()
        .user(vec![text("go")])
        .agent(vec![call("c1", json!({}))])
        .outcomes(vec![outcome("c1", OutcomeStatus::Completed, "")]);
    let messages = &body(&compatible(), &view.request())["messages"];
    assert_eq!(messages[2]["content"], Value::Null);
    assert_eq!(messages[3]["content"], "(no output)");
}

#[test]
fn outcome_images_follow_all_outcomes() {
    let mut seen = outcome("c1", OutcomeStatus::Completed, "a picture");
    seen.content.push(OutcomeContent::Image { mime_type: "image/png".into(), data: "aGk=".into() });
    let view = OwnedView::default()
        .user(vec![text("look"), image("image/png")])
        .agent(vec![call("c1", json!({})), call("c2", json!({}))])
        .outcomes(vec![seen, outcome("c2", OutcomeStatus::Denied, "no")]);
    let url = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}});
    assert_eq!(
        body(&compatible(), &view.request())["messages"].as_array().map(|all| all[1..].to_vec()),
        json!([
            {"role": "user", "content": [{"type": "text", "text": "look"}, url]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}},
                {"id": "c2", "type": "function", "function": {"name": "bash", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "a picture"},
            {"role": "tool", "tool_call_id": "c2", "content": "no"},
            {"role": "user", "content": [{"type": "text", "text": "What call c1 shows:"}, url]},
        ])
        .as_array()
        .cloned()
    );
}

#[test]
fn only_openai_gets_documents() {
    let mut read = outcome("c1", OutcomeStatus::Completed, "plan.pdf");
    read.content.push(outcome_document(Some("plan.pdf")));
    let view = OwnedView::default()
        .user(vec![document("application/pdf", None)])
        .agent(vec![call("c1", json!({}))])
        .outcomes(vec![read]);
    let mut endpoint = compatible();
    endpoint.abilities.documents = true;
    let left_out = |name: &str| {
        format!(
            "(The document{name} of type application/pdf was attached here and left out: this model does not take it.)"
        )
    };
    let messages = &body(&endpoint, &view.request())["messages"];
    assert_eq!(messages[1]["content"], left_out(""));
    assert_eq!(messages[3]["content"], format!("plan.pdf\n{}", left_out(" plan.pdf")));

    endpoint.own_api = true;
    let messages = &body(&endpoint, &view.request())["messages"];
    let file = |name: &str| {
        let file_data = "data:application/pdf;base64,JVBERi0=";
        json!({"type": "file", "file": {"filename": name, "file_data": file_data}})
    };
    assert_eq!(messages[1]["content"], json!([file("document.pdf")]));
    assert_eq!(
        messages[4]["content"],
        json!([{"type": "text", "text": "What call c1 shows:"}, file("plan.pdf")])
    );
}

#[test]
fn text_only_model_gets_an_image_placeholder() {
    let view = OwnedView::default().user(vec![text("look"), image("image/png")]);
    let mut endpoint = compatible();
    endpoint.abilities.images = false;
    assert_eq!(
        body(&endpoint, &view.request())["messages"][1]["content"],
        "look\n\n(An image of type image/png was attached here and left out: this model does not take it.)"
    );
}

#[test]
fn only_openai_gets_its_own_fields() {
    let tools = OwnedView::default().with_tools().user(vec![text("hi")]);
    let plain = OwnedView::default().user(vec![text("hi")]);
    for (model, with_tools, without) in [
        ("gpt-6-sol", json!("none"), json!("medium")),
        ("gpt-5.4", json!("none"), json!("medium")),
        ("gpt-6-astra", Value::Null, json!("medium")),
        ("gpt-5", json!("medium"), json!("medium")),
        ("o3", json!("medium"), json!("medium")),
        ("gpt-4.1", Value::Null, Value::Null),
    ] {
        let endpoint = test_chat_endpoint(&format!("openai/{model}"));
        let sent = body(&endpoint, &tools.request());
        assert_eq!(sent["reasoning_effort"], with_tools, "{model}");
        assert_eq!(body(&endpoint, &plain.request())["reasoning_effort"], without, "{model}");
        assert_eq!(sent["prompt_cache_key"], "s_1");
        assert!(sent["max_completion_tokens"].is_u64() && sent.get("max_tokens").is_none());
    }
}

/// Regression: a gateway to OpenAI rejected the first prompt: "Use 'max_completion_tokens' instead".
#[test]
fn openai_thinking_models_use_max_completion_tokens_behind_gateways() {
    for (model, is_new) in
        [("gpt-6-sol", true), ("o3", true), ("gpt-4.1", false), ("gpt-oss-20b", false), ("qwen3", false)]
    {
        let mut endpoint = compatible();
        endpoint.model = model.to_owned();
        let sent = body(&endpoint, &OwnedView::default().user(vec![text("hi")]).request());
        assert_eq!(sent.get("max_completion_tokens").is_some(), is_new, "{model}");
        assert_eq!(sent.get("max_tokens").is_some(), !is_new, "{model}");
    }
}

#[test]
fn other_services_get_the_configured_thinking() {
    let view = OwnedView::default().user(vec![text("hi")]).with_tools();
    for (thinking, level, expected) in [
        (Thinking::None, ThoughtLevel::High, Value::Null),
        (Thinking::Efforts(&[Effort::Low, Effort::High]), ThoughtLevel::Max, json!("high")),
        (Thinking::Efforts(&[Effort::None, Effort::High]), ThoughtLevel::Off, json!("none")),
    ] {
        let mut endpoint = compatible();
        endpoint.abilities.thinking = thinking;
        let request = ModelRequest { thought: level, ..view.request() };
        assert_eq!(body(&endpoint, &request)["reasoning_effort"], expected, "{thinking:?} {level:?}");
    }
}

/// Regression: a service with other rules for call ids refused every conversation that had begun with another service.
#[test]
fn ids_of_calls_have_the_form_that_the_service_takes() {
    let view = OwnedView::default()
        .with_tools()
        .user(vec![text("what is here?")])
        .agent(vec![call("toolu_01ABCdef", json!({})), call("abcDEF123", json!({}))])
        .outcomes(vec![
            outcome("toolu_01ABCdef", OutcomeStatus::Completed, "a"),
            outcome("abcDEF123", OutcomeStatus::Completed, "b"),
        ]);
    let mut endpoint = compatible();
    endpoint.quirks.short_call_ids = true;
    let sent = body(&endpoint, &view.request());
    let messages = sent["messages"].as_array().expect("a list");
    let calls = messages.iter().find_map(|message| message["tool_calls"].as_array()).expect("calls");
    let answers: Vec<&Value> = messages.iter().filter(|message| message["role"] == "tool").collect();
    for (at, (call, answer)) in calls.iter().zip(answers).enumerate() {
        let id = call["id"].as_str().expect("an id");
        assert_eq!(answer["tool_call_id"], id);
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!(id == "abcDEF123", at == 1);
    }
}

/// DeepSeek refuses the second step of a turn without the reasoning of the first.
#[test]
fn reasoning_is_sent_back_in_its_field_where_the_service_wants_it() {
    let view = OwnedView::default()
        .with_tools()
        .user(vec![text("what is here?")])
        .agent(vec![
            thinking("openai", "qwen3", json!({"field": "reasoning_content"})),
            call("c1", json!({"command": "ls"})),
        ])
        .outcomes(vec![outcome("c1", OutcomeStatus::Completed, "a b")]);
    let mut endpoint = compatible();
    let reply = |endpoint: &Endpoint| {
        let sent = body(endpoint, &view.request());
        let messages = sent["messages"].as_array().expect("a list");
        messages.iter().find(|message| message["role"] == "assistant").expect("a reply").clone()
    };
    assert!(reply(&endpoint).get("reasoning_content").is_none());
    endpoint.quirks.reasoning_back = true;
    assert!(reply(&endpoint)["reasoning_content"].as_str().is_some_and(|text| !text.is_empty()));
    // Reasoning of another model is not sent.
    endpoint.model = "other".into();
    assert!(reply(&endpoint).get("reasoning_content").is_none());
}

#[test]
fn audio_has_the_form_of_the_service_or_is_left_out() {
    use crate::endpoint::test_endpoint;
    let audio = Content::Document { mime_type: "audio/x-wav".into(), data: "UklGRg==".into(), name: None };
    let view = OwnedView::default().user(vec![audio]);
    let sent = body(&test_chat_endpoint("openai/gpt-4o-audio-preview"), &view.request()).to_string();
    assert!(
        sent.contains(r#"{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}}"#),
        "{sent}"
    );
    let sent = body(&test_endpoint("gemini/gemini-3.8-flash"), &view.request()).to_string();
    assert!(sent.contains(r#"{"inlineData":{"mimeType":"audio/x-wav","data":"UklGRg=="}}"#), "{sent}");
    for endpoint in [test_endpoint("anthropic/claude-sonnet-5-5"), test_endpoint("openai/gpt-6-sol")] {
        let sent = body(&endpoint, &view.request()).to_string();
        assert!(sent.contains("(The recording of type audio/x-wav was attached here and left out"), "{sent}");
    }
}

/// OpenRouter wants the reasoning blocks back as its models made them: signatures of Anthropic's models and encrypted
/// reasoning of OpenAI's are in there.
#[test]
fn reasoning_details_are_joined_and_sent_back() {
    use crate::collect::Collector;
    use crate::wire::stream::Decoding;
    let chunk = |delta: Value| format!("data: {}\n\n", json!({"choices": [{ "delta": delta }]}));
    let text = |text: &str, signature: Value| json!({"type": "reasoning.text", "text": text, "signature": signature, "index": 0});
    let hidden = json!({"type": "reasoning.encrypted", "data": "c2VhbGVk", "id": "rs_1", "index": 1});
    let stream = [
        chunk(json!({"reasoning": "Hm", "reasoning_details": [text("Hm", Value::Null)]})),
        chunk(json!({"reasoning": ", so", "reasoning_details": [text(", so", json!("c2ln"))]})),
        chunk(json!({"reasoning_details": [hidden, {"type": "odd", "nested": {"a": 1}}]})),
        chunk(
            json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "ls", "arguments": "{}"}}]}),
        ),
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n"
            .to_owned(),
    ];
    let mut endpoint = compatible();
    let mut events = Vec::new();
    let mut decoding = Decoding::new(endpoint.clone(), String::new(), None);
    decoding.push(stream.concat().as_bytes(), &mut events).expect("a reply");
    let mut collector = Collector::new(&endpoint.name);
    for event in events {
        collector.feed(event);
    }
    let view = OwnedView::default()
        .with_tools()
        .user(vec![crate::wire::views_tests::text("what is here?")])
        .agent(collector.finish().content)
        .outcomes(vec![outcome("c", OutcomeStatus::Completed, "a b")]);
    let sent = |endpoint: &Endpoint| {
        let sent = body(endpoint, &view.request());
        let messages = sent["messages"].as_array().expect("a list");
        let reply = messages.iter().find(|message| message["role"] == "assistant").expect("a reply");
        reply["reasoning_details"].clone()
    };
    assert_eq!(sent(&endpoint), json!([text("Hm, so", json!("c2ln")), hidden]));
    // Another model would refuse them.
    endpoint.model = "other".into();
    assert!(sent(&endpoint).is_null());
}

#[test]
fn reasoning_keeps_its_field_where_the_service_wants_it_back() {
    use crate::ProviderEvent::{CallStarted, Stopped, Text, Thinking, ThinkingSealed};
    use crate::wire::stream::Decoding;
    let stream = "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"Hm\"}}]}\n\n\
                  data: {\"choices\":[{\"delta\":{\"content\":\"I look.\"}}]}\n\n\
                  data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"ls\"}}]}}]}\n\n\
                  data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n";
    let mut endpoint = compatible();
    endpoint.quirks.reasoning_back = true;
    let mut events = Vec::new();
    Decoding::new(endpoint, String::new(), None).push(stream.as_bytes(), &mut events).expect("a reply");
    assert_eq!(
        events,
        [
            Thinking("Hm".into()),
            ThinkingSealed { data: json!({"field": "reasoning_content"}) },
            Text("I look.".into()),
            CallStarted { index: 0, id: "c".into(), name: "ls".into() },
            Stopped(crate::ReplyStop::Finished),
        ]
    );
}

/// Regression: a reply of 60 MB became an entry of the log, which was several times in memory meanwhile. Where memory was limited,
/// that ended the daemon with all sessions.
#[test]
fn an_endless_reply_is_cut_off_before_it_fills_the_memory() {
    let piece = "word ".repeat(16 * 1024);
    let event = format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"content": piece}}]}));
    for (begins, piece) in [("", event.as_str()), ("{\"choices\":\"", piece.as_str())] {
        let mut decoding = crate::wire::stream::Decoding::new(compatible(), String::new(), None);
        let mut events = Vec::new();
        decoding.push(begins.as_bytes(), &mut events).expect("it begins");
        let pushed = (0..1_000).find_map(|_| decoding.push(piece.as_bytes(), &mut events).err());
        let error = pushed.expect("80 MB are too much").message;
        assert!(error.contains("the reply is longer than 16 MB"), "{error}");
        let kept: usize = events
            .iter()
            .map(|event| if let crate::ProviderEvent::Text(text) = event { text.len() } else { 0 })
            .sum();
        assert!(kept <= 17 * 1024 * 1024, "{kept}");
    }
}
