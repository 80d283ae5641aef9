//! Native compaction by a provider: the request, the use of its result in later requests, and its replacement for other
//! models.

use epitome::config::WireFormat;
use epitome::provider::compact::{NativeCompaction, compact};
use epitome::provider::endpoint::Endpoint;
use epitome::provider::http::Http;
use epitome::provider::wire::Purpose;
use epitome::provider::wire::encoding::{Encoded, Encoding};
use epitome::provider::{ErrorClass, ModelRequest, ProviderError, ProviderEvent};
use epitome::thread::{Content, Message, MessageId, ModelName, ThoughtLevel, ToolSpec, Usage, ViewItem};
use epitome_scripted_model::{ModelStep, ScriptedModel};
use serde_json::json;

use super::calls::{call_with, compacting_endpoint, endpoint_of};

const WITH_ONE: [WireFormat; 2] = [WireFormat::AnthropicMessages, WireFormat::OpenAiResponses];

/// An endpoint of the scripted model in this format.
fn endpoint(model: &ScriptedModel, wire: WireFormat) -> Endpoint {
    compacting_endpoint("box", wire, &model.base_url())
}

fn text(text: &str) -> Content {
    Content::Text { text: text.into() }
}

fn message(content: Vec<Content>) -> Message {
    Message { id: MessageId(0), content, author: None }
}

/// Encodes a request of alternating user messages and replies.
fn encoded(endpoint: &Endpoint, said: &[Message], purpose: Purpose<'_>) -> Encoded {
    let model = ModelName("box/some-model".into());
    let items = said.iter().enumerate().map(|(at, message)| match at % 2 {
        0 => ViewItem::User(message),
        _ => ViewItem::Agent(message, &model),
    });
    let schema = json!({"type": "object"});
    let tools = [ToolSpec { name: "look".into(), description: "Looks.".into(), schema }];
    let request = ModelRequest {
        system: "Be brief.",
        tools: &tools,
        items: items.collect(),
        thought: ThoughtLevel::Off,
        max_output: 1000,
        cache_key: "s",
        basis: None,
    };
    Encoding::default().encode(endpoint, &request, purpose)
}

async fn compacted(endpoint: &Endpoint) -> Result<NativeCompaction, ProviderError> {
    let said = [message(vec![text("Read the list.")]), message(vec![text("Milk and bread.")])];
    let encoded = encoded(endpoint, &said, Purpose::Compact { instruction: None });
    compact(&Http::new(), endpoint, &encoded).await
}

/// The message that replaces the conversation: the provider's parts and Epitome's own summary.
fn after(made: &NativeCompaction) -> Message {
    let summary = made.text.as_deref().unwrap_or("Of milk and bread.");
    let mut content = made.parts.clone();
    content.push(text(&format!("So far:\n\n<summary>\n{summary}\n</summary>")));
    content.push(text("<goal>\nA cake\n</goal>"));
    message(content)
}

async fn reply(endpoint: &Endpoint, said: &[Message]) -> Result<String, ProviderError> {
    let encoded = encoded(endpoint, said, Purpose::Reply);
    let events = call_with(&Http::new(), endpoint, &encoded).await?;
    let text = events.into_iter().filter_map(|event| match event {
        ProviderEvent::Text(text) => Some(text),
        _ => None,
    });
    Ok(text.collect())
}

fn script(steps: &[ModelStep]) -> ScriptedModel {
    let steps = steps.to_vec();
    ScriptedModel::start(move |_| steps.clone()).expect("a port is free")
}

#[tokio::test]
async fn a_native_compaction_is_sent_back_to_its_model_before_the_summary() {
    let usage = ModelStep::Usage { input: 100, output: 7 };
    let model = script(&[ModelStep::Text("They want a cake.".into()), usage]);
    for (wire, readable) in WITH_ONE.into_iter().zip([Some("They want a cake.".to_owned()), None]) {
        let endpoint = endpoint(&model, wire);
        let made = compacted(&endpoint).await.expect("it has one");
        assert_eq!(made.text, readable);
        assert_eq!(made.usage, Usage { input: 100, output: 7, ..Usage::default() });
        assert_eq!(reply(&endpoint, &[after(&made)]).await.as_deref(), Ok("They want a cake."));
        // A second compaction includes the first one.
        let said = [after(&made), message(vec![text("Eggs too.")]), message(vec![text("And sugar?")])];
        assert_eq!(reply(&endpoint, &said).await.as_deref(), Ok("They want a cake."));
        let again = encoded(&endpoint, &said, Purpose::Compact { instruction: Some("Be short.") });
        let again = compact(&Http::new(), &endpoint, &again).await.expect("it has one");
        assert_ne!(again.parts, made.parts);
        assert_eq!(reply(&endpoint, &[after(&again)]).await.as_deref(), Ok("They want a cake."));
    }
    assert_eq!(model.refusals(), Vec::<String>::new());
}

/// After a switch to another model or another provider's format, or with the feature disabled, the conversation
/// continues, and the native compaction is not sent.
#[tokio::test]
async fn every_other_model_gets_only_the_summary() {
    let model = script(&[ModelStep::Text("They want a cake.".into())]);
    for wire in WITH_ONE {
        let own = endpoint(&model, wire);
        let made = compacted(&own).await.expect("it has one");
        let (mut newer, mut unwanted) = (own.clone(), own.clone());
        newer.model = "newer-model".into();
        unwanted.native_compaction = false;
        let elsewhere = WireFormat::ALL.map(|wire| compacting_endpoint("elsewhere", wire, &model.base_url()));
        for other in [newer, unwanted].into_iter().chain(elsewhere) {
            reply(&other, &[after(&made)]).await.expect("it is valid");
            let request = model.requests().pop().expect("it was asked");
            let sent = request.body.to_string();
            assert!(!sent.contains("\"compaction\""), "{wire:?} {}: {sent}", other.name);
            assert!(sent.contains("<summary>") && sent.contains("A cake"), "{wire:?} {}: {sent}", other.name);
        }
    }
    assert_eq!(model.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn a_modified_native_compaction_is_rejected_and_can_be_dropped() {
    let model = script(&[ModelStep::Text("They want a cake.".into())]);
    for (wire, field) in WITH_ONE.into_iter().zip(["content", "encrypted_content"]) {
        let endpoint = endpoint(&model, wire);
        let mut made = compacted(&endpoint).await.expect("it has one");
        let Content::Thinking { native: Some(native), .. } = &mut made.parts[0] else { panic!("{made:?}") };
        native.data["compaction"][field] = "They want bread.".into();
        let error = reply(&endpoint, &[after(&made)]).await.expect_err("it is another");
        assert_eq!(error.class, ErrorClass::BadReasoning, "{error:?}");
        made.parts.clear();
        reply(&endpoint, &[after(&made)]).await.expect("our words alone are valid");
    }
    assert_eq!(model.refusals().len(), 2);
}

#[tokio::test]
async fn a_service_without_native_compaction_causes_an_error_with_a_hint() {
    let of_anthropic = "compaction: Extra inputs are not permitted";
    for (wire, status, message, words) in [
        (
            WireFormat::AnthropicMessages,
            400,
            Some(of_anthropic),
            "box refused the request: compaction: Extra",
        ),
        (
            WireFormat::OpenAiResponses,
            404,
            None,
            "box has no compaction of its own here (model box/some-model).",
        ),
        (WireFormat::OpenAiResponses, 400, Some("not for this model"), "not for this model"),
    ] {
        let message = message.map(str::to_owned);
        let model = script(&[ModelStep::Error { status, retry_after: None, message }]);
        let error = compacted(&endpoint(&model, wire)).await.expect_err("there is none");
        assert_eq!(error.class, ErrorClass::Refused);
        assert!(error.message.contains(words), "{error:?}");
        let hint = error.hint.expect("there is something to do");
        assert!(hint.starts_with("compaction = \"summary\" in [models.\"box/some-model\"]"), "{hint}");
    }
    for wire in [WireFormat::OpenAiChat, WireFormat::Gemini] {
        let error = compacted(&endpoint_of("box", wire, "http://127.0.0.1:9", &[])).await;
        let error = error.expect_err("the format has none");
        assert_eq!(error.message, "box has no compaction of its own here (model box/some-model).");
    }
}

#[tokio::test]
async fn other_failures_keep_their_class() {
    let later = ModelStep::Error { status: 529, retry_after: Some(3), message: None };
    for wire in WITH_ONE {
        let class_of = async |step: &ModelStep| {
            let model = script(std::slice::from_ref(step));
            compacted(&endpoint(&model, wire)).await.expect_err("it fails").class
        };
        let after = Some(std::time::Duration::from_secs(3));
        assert_eq!(class_of(&later).await, ErrorClass::Retry { after });
        assert!(matches!(class_of(&ModelStep::Overflow).await, ErrorClass::TooLong { .. }));
    }
    // Anthropic's compaction may contain no text.
    let model = script(&[]);
    let error = compacted(&endpoint(&model, WireFormat::AnthropicMessages)).await.expect_err("it is empty");
    assert_eq!(error.class, ErrorClass::Broken);
    assert_eq!(error.message, "box gave back no compaction (model box/some-model).");
}
