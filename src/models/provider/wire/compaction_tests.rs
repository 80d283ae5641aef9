//! Tests native compaction: where and to which models a compaction is sent, and how one is requested. Also tests the
//! user message next to it, which has many parts.

use serde_json::{Value, json};

use super::*;
use crate::endpoint::{test_chat_endpoint, test_endpoint};
use crate::wire::Purpose;
use crate::wire::encoding::Encoding;
use crate::wire::views_tests::{OwnedView, body, encode, image, text, thinking};
use epitome_scripted_model::valid;

const SONNET: &str = "anthropic/claude-sonnet-5-5";
const SOL: &str = "openai/gpt-6-sol";

fn compacting(name: &str) -> Endpoint {
    Endpoint { native_compaction: true, ..test_endpoint(name) }
}

fn block() -> Value {
    json!({"type": "compaction", "content": "They want a cake.\n", "signature": "s"})
}

fn item() -> Value {
    json!({"type": "compaction", "id": "cmp_1", "encrypted_content": "Z0FB"})
}

/// A compaction by this endpoint's model in its storage form.
fn given(endpoint: &Endpoint, given: Value) -> Content {
    let native =
        Native { provider: endpoint.provider().into(), model: endpoint.model.clone(), data: kept(given) };
    Content::Thinking { text: String::new(), native: Some(native) }
}

const SUMMARY: &str = "So far:\n\n<summary>\nThey want a cake.\n</summary>";

/// A conversation after a compaction.
fn behind(given: Content) -> OwnedView {
    OwnedView::default()
        .with_tools()
        .user(vec![given, text(SUMMARY), text("<goal>\nA cake\n</goal>")])
        .agent(vec![text("Eggs?")])
        .user(vec![text("Two.")])
}

#[test]
fn anthropic_block_comes_first_and_replaces_the_summary() {
    let endpoint = compacting(SONNET);
    let view = behind(given(&endpoint, block()));
    let sent = body(&endpoint, &view.request());
    let mark = json!({"type": "ephemeral"});
    assert_eq!(
        sent["messages"],
        json!([
            {"role": "assistant", "content": [block()]},
            {"role": "user", "content": [
                {"type": "text", "text": "<goal>\nA cake\n</goal>", "cache_control": mark},
            ]},
            {"role": "assistant", "content": [{"type": "text", "text": "Eggs?"}]},
            {"role": "user", "content": [{"type": "text", "text": "Two."}]},
        ])
    );
    assert_eq!(valid::problems(endpoint.wire, &endpoint.model, &sent), Vec::<String>::new());
}

#[test]
fn openai_item_precedes_our_text() {
    let endpoint = compacting(SOL);
    let sent = body(&endpoint, &behind(given(&endpoint, item())).request());
    let said = |text: &str| json!({"type": "input_text", "text": text});
    let message = |role: &str, content: Value| json!({"type": "message", "role": role, "content": content});
    assert_eq!(
        sent["input"],
        json!([
            item(),
            message("user", json!([said(SUMMARY), said("<goal>\nA cake\n</goal>")])),
            message("assistant", json!([{"type": "output_text", "text": "Eggs?"}])),
            message("user", json!([said("Two.")])),
        ])
    );
    assert_eq!(valid::problems(endpoint.wire, &endpoint.model, &sent), Vec::<String>::new());
}

#[test]
fn repeated_summary_is_dropped_only_if_more_follows() {
    for (words, is_repeated) in [
        (SUMMARY, true),
        ("<summary>They want a cake.</summary>", true),
        ("<summary>\nThey want a cake.\n\nKept for lint:\nno tabs\n</summary>", false),
        ("<summary>\nI think: They want a cake.\n</summary>", false),
        ("<summary>\nThey want a cake.\n</summary>\n\n<goal>\nA cake\n</goal>", false),
        ("They want a cake.", false),
    ] {
        assert_eq!(super::is_repeated(&block(), &text(words)), is_repeated, "{words}");
    }
    let endpoint = compacting(SONNET);
    let alone = OwnedView::default().user(vec![given(&endpoint, block()), text(SUMMARY)]);
    assert_eq!(body(&endpoint, &alone.request())["messages"][1]["content"][0]["text"], SUMMARY);
}

/// The assertions search for the format's field name, to ensure that nothing model-specific is sent to other models.
#[test]
fn compaction_is_only_sent_first_and_to_its_own_model() {
    let sonnet = compacting(SONNET);
    let sol = compacting(SOL);
    let chat = Endpoint { native_compaction: true, ..test_chat_endpoint(SOL) };
    let table = [
        // Another model, another provider, a user who disabled it, another format with the same model name.
        (compacting("anthropic/claude-opus-5-5"), given(&sonnet, block())),
        (compacting("gemini/gemini-4-argon"), given(&sonnet, block())),
        (test_endpoint(SONNET), given(&sonnet, block())),
        (test_endpoint(SOL), given(&sol, item())),
        (compacting("openai/gpt-5.4"), given(&sol, item())),
        (chat, given(&sol, item())),
        (sol.clone(), given(&sol, block())),
        (sonnet.clone(), given(&sonnet, item())),
    ];
    for (endpoint, given) in table {
        let sent = body(&endpoint, &behind(given).request());
        assert!(!sent.to_string().contains("\"compaction\""), "{}: {sent}", endpoint.name);
        assert!(sent.to_string().contains("They want a cake."), "{}: {sent}", endpoint.name);
        assert_eq!(valid::problems(endpoint.wire, &endpoint.model, &sent), Vec::<String>::new());
    }
    // A compaction replaces everything before it, so it is misplaced after anything else.
    for (endpoint, made) in [(&sonnet, block()), (&sol, item())] {
        let view = OwnedView::default()
            .user(vec![text("One.")])
            .agent(vec![text("Yes.")])
            .user(vec![given(endpoint, made), text("Two.")]);
        assert!(!body(endpoint, &view.request()).to_string().contains("\"compaction\""));
    }
}

/// Thinking is bound to the compaction and useless without it.
#[test]
fn thinking_after_a_dropped_compaction_is_dropped() {
    let endpoint = compacting(SONNET);
    let before = OwnedView::default().user(vec![given(&endpoint, block()), text("Go on.")]);
    let prefix = encode(&endpoint, &before.request()).prefix;
    let thought = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
    let data = json!({"block": thought, "prefix": prefix});
    let view = before
        .agent(vec![thinking("anthropic", "claude-sonnet-5-5", data), text("Eggs?")])
        .user(vec![text("Two.")]);
    let sent = |endpoint: &Endpoint| body(endpoint, &view.request())["messages"].to_string();
    assert!(sent(&endpoint).contains("\"thinking\""));
    assert!(!sent(&test_endpoint(SONNET)).contains("\"thinking\""));
}

/// An encoding from before native compaction was disabled must not be sent afterwards.
#[test]
fn cached_encoding_depends_on_native_compaction() {
    let view = behind(given(&compacting(SOL), item()));
    let mut encoding = Encoding::default();
    for endpoint in [compacting(SOL), test_endpoint(SOL), compacting(SOL)] {
        let kept = encoding.encode(&endpoint, &view.request(), Purpose::Reply);
        assert_eq!(kept.bytes(), encode(&endpoint, &view.request()).bytes());
    }
}

#[test]
fn anthropic_compaction_request_is_a_reply_request_plus_a_field() {
    let endpoint = compacting(SONNET);
    let view = OwnedView::default().with_tools().user(vec![text("A cake.")]).agent(vec![text("Eggs?")]);
    let compact = |instruction| {
        let encoded =
            Encoding::default().encode(&endpoint, &view.request(), Purpose::Compact { instruction });
        serde_json::from_slice::<Value>(&encoded.bytes()).expect("a body is JSON")
    };
    let mut reply = body(&endpoint, &view.request());
    reply["compaction"] = json!({"type": "summarize"});
    assert_eq!(compact(None), reply);
    reply["compaction"] = json!({"type": "summarize", "instructions": "Of eggs."});
    assert_eq!(compact(Some("Of eggs.")), reply);
    assert_eq!(valid::problems(endpoint.wire, &endpoint.model, &reply), Vec::<String>::new());
}

#[test]
fn openai_compaction_request_has_only_supported_fields() {
    let endpoint = compacting(SOL);
    let view = OwnedView::default().with_tools().user(vec![text("A cake.")]);
    for (instruction, expected) in
        [(None, "You are an agent."), (Some("Of eggs."), "You are an agent.\n\nOf eggs.")]
    {
        let encoded =
            Encoding::default().encode(&endpoint, &view.request(), Purpose::Compact { instruction });
        assert_eq!(
            serde_json::from_slice::<Value>(&encoded.bytes()).expect("a body is JSON"),
            json!({
                "model": "gpt-6-sol",
                "prompt_cache_key": "s_1",
                "instructions": expected,
                "input": [{"type": "message", "role": "user",
                    "content": [{"type": "input_text", "text": "A cake."}]}],
            })
        );
    }
}

#[test]
fn newest_item_of_openai_answer_is_kept_in_sendable_form() {
    let endpoint = compacting(SOL);
    let said =
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "A cake."}]});
    let made = json!({"type": "compaction", "id": "cmp_1", "encrypted_content": "Z0FB", "created_by": "me"});
    let older = json!({"type": "compaction", "id": null, "encrypted_content": "b2xk"});
    let usage = json!({"input_tokens": 900, "input_tokens_details": {"cached_tokens": 800},
        "output_tokens": 30, "output_tokens_details": {"reasoning_tokens": 10}, "total_tokens": 930});
    let answer = json!({"object": "response.compaction", "output": [older, said, made], "usage": usage});
    let (part, usage) = answered(&endpoint, answer.to_string().as_bytes()).expect("it is one");
    assert_eq!(part, given(&endpoint, item()));
    assert_eq!(read(&part), Some(None), "nobody else can read it");
    assert_eq!(usage, Usage { input: 900, output: 30, cache_read: 800, thinking: 10, ..Usage::default() });
    let without_id = json!({"output": [older]});
    let (part, _) = answered(&endpoint, without_id.to_string().as_bytes()).expect("it is one");
    assert_eq!(part, given(&endpoint, json!({"type": "compaction", "encrypted_content": "b2xk"})));
    for none in [
        "{}",
        "<html>",
        r#"{"output":[]}"#,
        r#"{"output":[{"type":"compaction","encrypted_content":""}]}"#,
        r#"{"output":[{"type":"message"}]}"#,
    ] {
        assert_eq!(answered(&endpoint, none.as_bytes()), None, "{none}");
    }
}

/// The message that replaces a compacted conversation has a part for each kind of preserved content, and the
/// attachments of the last request.
#[test]
fn message_with_many_parts_is_encoded_unchanged_in_each_format() {
    const PARTS: usize = 8;
    let words: Vec<String> = (1..=PARTS).map(|part| format!("<part>{part}</part>")).collect();
    let mut content: Vec<Content> = words.iter().map(|words| text(words)).collect();
    content.extend([image("image/png"), image("image/jpeg")]);
    let view = OwnedView::default()
        .with_tools()
        .user(content)
        .user(vec![text("Two.")])
        .agent(vec![text("Three.")])
        .user(vec![text("Four.")]);
    let gateway = Endpoint { own_api: false, ..test_endpoint(SONNET) };
    for (endpoint, message) in [
        (test_endpoint(SONNET), "/messages/0/content"),
        (gateway, "/messages/0/content"),
        (test_endpoint(SOL), "/input/0/content"),
        (test_chat_endpoint(SOL), "/messages/1/content"),
        (test_endpoint("gemini/gemini-4-argon"), "/contents/0/parts"),
    ] {
        let sent = body(&endpoint, &view.request());
        assert_eq!(valid::problems(endpoint.wire, &endpoint.model, &sent), Vec::<String>::new());
        let parts = sent.pointer(message).and_then(Value::as_array).expect("it is a list of parts");
        assert_eq!(parts.len(), PARTS + 2 + 1, "{}: {sent}", endpoint.name);
        for (part, words) in parts.iter().zip(&words) {
            assert_eq!(part["text"], words.as_str(), "{}", endpoint.name);
        }
        assert!(parts[PARTS..PARTS + 2].iter().all(|part| part.to_string().contains("aGk=")), "{sent}");
        let marks: Vec<usize> =
            (0..parts.len()).filter(|at| !parts[*at]["cache_control"].is_null()).collect();
        let is_anthropic = endpoint.wire == WireFormat::AnthropicMessages;
        assert_eq!(marks, if is_anthropic { vec![PARTS + 2] } else { vec![] }, "the last part alone");
        // System prompt, previous turn and newest turn, which is marked in place or by a field of the request.
        let all = sent.to_string().matches("cache_control").count();
        assert_eq!(all, if is_anthropic { 3 } else { 0 }, "{}", endpoint.name);
    }
}
