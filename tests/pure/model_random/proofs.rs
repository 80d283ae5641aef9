//! Proofs that each check can fail: it gets the errors that it should find.

use std::sync::Arc;

use epitome::config::{Settings, WireFormat};
use epitome::provider::endpoint::{Endpoint, resolve};
use epitome::provider::wire::Purpose;
use epitome::provider::wire::encoding::{Encoded, Encoding};
use epitome::provider::{Basis, ModelRequest};
use epitome::thread::{
    CallDisplay, CallId, Change, Content, Entry, FORMAT_VERSION, Message, MessageId, ModelName, Origin,
    OutcomeStatus, PartId as ViewPart, Seq, SessionId, ThoughtLevel, Thread, ToolCall, ToolOutcome, Trigger,
    View, ViewEdit,
};
use serde_json::{Value, json};

use super::checks;
use super::service::{Part, Service, list_of};

fn entry(seq: u64, change: Change) -> Arc<Entry> {
    Arc::new(Entry { seq: Seq(seq), at: 0, change })
}

fn message(id: u64, text: &str) -> Message {
    Message { id: MessageId(id), content: vec![Content::Text { text: text.into() }], author: None }
}

fn said(seq: u64, text: &str) -> Arc<Entry> {
    entry(seq, Change::Said { message: message(seq, text), origin: Origin::Person })
}

fn called(seq: u64, calls: &[&str]) -> Arc<Entry> {
    let call = |id: &&str| {
        let (id, name) = (CallId((*id).into()), "look".to_owned());
        Content::Call(ToolCall { id, name, input: json!({}), card: CallDisplay::default() })
    };
    let message = Message { id: MessageId(seq), content: calls.iter().map(call).collect(), author: None };
    entry(seq, Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None })
}

fn came(seq: u64, call: &str) -> Arc<Entry> {
    let outcome = ToolOutcome::text(CallId(call.into()), OutcomeStatus::Completed, "done");
    entry(seq, Change::ToolFinished { outcome })
}

fn compacted(seq: u64, through: u64, summary: &str) -> Arc<Entry> {
    let change = Change::Compacted {
        through: Seq(through),
        summary: message(seq, summary),
        trigger: Trigger::Manual,
        focus: None,
        tokens_before: 2,
        tokens_after: 1,
        window: None,
        model: None,
        usage: None,
        masks: Vec::new(),
        account: Default::default(),
    };
    entry(seq, change)
}

fn folded(entries: &[Arc<Entry>]) -> View {
    View::fold(entries, &Default::default())
}

fn thread(entries: Vec<Arc<Entry>>) -> Thread {
    let session = SessionId("s_00000000000000000000".into());
    let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
    Thread::replay([entry(0, opened)].into_iter().chain(entries)).expect("a log")
}

#[test]
fn a_view_that_differs_from_the_fold_is_detected() {
    let log = [said(1, "go"), called(2, &["c1"]), came(3, "c1")];
    let whole = folded(&log);
    assert!(checks::same_view(&whole, &whole.clone()).is_ok());
    let another_text = [said(1, "stop"), log[1].clone(), log[2].clone()];
    let another_revision = [&log[..], &[entry(4, Change::Undone { entry: Seq(9) })]].concat();
    for other in [&log[..2], &another_text, &another_revision] {
        assert!(checks::same_view(&folded(other), &whole).is_err());
    }
}

#[test]
fn calls_without_outcomes_and_outcomes_without_calls_are_detected() {
    let open = [CallId("c1".into())];
    type Case<'a> = (&'a [Arc<Entry>], &'a [CallId], bool);
    let cases: [Case; 5] = [
        (&[said(1, "go"), called(2, &["c1", "c2"]), came(3, "c1"), came(4, "c2")], &[], true),
        (&[said(1, "go"), called(2, &["c1"])], &open, true),
        (&[said(1, "go"), called(2, &["c1"])], &[], false),
        (&[said(1, "go"), called(2, &["c1", "c2"]), came(3, "c1")], &[], false),
        // The call was open when something else was said.
        (&[said(1, "go"), called(2, &["c1"]), said(3, "and?")], &[], false),
    ];
    for (entries, open, is_right) in cases {
        assert_eq!(checks::paired(&folded(entries), open).is_ok(), is_right, "{entries:#?}");
    }
}

#[test]
fn lost_pins_and_prompts_are_detected() {
    let pin = || {
        entry(
            2,
            Change::Edited {
                by: "you".into(),
                edits: vec![ViewEdit::Pin { at: ViewPart { entry: Seq(1), part: None } }],
            },
        )
    };
    let with = |summary: &str| thread(vec![said(1, "never push"), pin(), compacted(3, 2, summary)]);
    assert_eq!(checks::pins(&with("It said: never push.")), Ok((1, 1)));
    assert!(checks::pins(&with("It said: push never.")).is_err());
    assert_eq!(checks::last_request(&with("never push")), Ok(Some(checks::KeptRequest::Quoted)));
    assert!(checks::last_request(&with("It said something.")).is_err());
}

fn endpoint(name: &str, wire: WireFormat) -> Endpoint {
    let env = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"].map(|key| (key.into(), "k".into()));
    let endpoint = resolve(&ModelName(name.into()), &Settings::default(), &env).expect("all keys are set");
    Endpoint { wire, own_api: true, ..endpoint }
}

fn encoded(encoding: &mut Encoding, view: &View, basis: Option<Basis>) -> Encoded {
    let endpoint = endpoint("anthropic/claude-sonnet-5-5", WireFormat::AnthropicMessages);
    let request = ModelRequest {
        system: "You are an agent.",
        tools: &[],
        items: view.items(),
        thought: ThoughtLevel::Medium,
        max_output: 1_000,
        cache_key: "s",
        basis,
    };
    encoding.encode(&endpoint, &request, Purpose::Reply)
}

/// An encoding that is not notified of a changed view reuses its stale output.
#[test]
fn a_stale_encoding_is_detected() {
    let model = ModelName("a/b".into());
    let reply = |seq| {
        let message = message(seq, "yes");
        entry(seq, Change::Replied { message, model: model.clone(), usage: None, cut: None })
    };
    let before = folded(&[said(1, "go"), reply(2), said(3, "on")]);
    let after = folded(&[said(1, "GO"), reply(2), said(3, "on")]);
    let basis = Some(Basis::default());
    let mut kept = Encoding::default();
    let first = encoded(&mut kept, &before, basis);
    assert!(checks::same_request(&first, &encoded(&mut Encoding::default(), &before, basis)).is_ok());
    let stale = encoded(&mut kept, &after, basis);
    assert!(checks::same_request(&stale, &encoded(&mut Encoding::default(), &after, basis)).is_err());
}

#[test]
fn a_request_that_does_not_extend_the_previous_one_is_detected() {
    assert!(checks::continues(r#"{"a":1}"#, r#"{"a":1},{"b":2}"#).is_ok());
    assert!(checks::continues(r#"{"a":1}"#, r#"{"a":1}"#).is_ok());
    assert!(checks::continues(r#"{"a":1}"#, r#"{"a":2},{"b":2}"#).is_err());
    assert!(checks::continues(r#"{"a":1}"#, r#"{"a":1}{"b":2}"#).is_err());
    assert!(checks::continues(r#"{"a":1},{"b":2}"#, r#"{"a":1}"#).is_err());
}

/// For each format with signatures: reasoning after a different prefix, of a different model, repeated, or
/// unknown.
#[test]
fn misplaced_reasoning_is_detected() {
    for wire in [WireFormat::AnthropicMessages, WireFormat::OpenAiResponses, WireFormat::Gemini] {
        let asked = |text: &str| match wire {
            WireFormat::AnthropicMessages => {
                json!({"role": "user", "content": [{"type": "text", "text": text}]})
            }
            WireFormat::OpenAiResponses | WireFormat::OpenAiChat => {
                json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
            }
            WireFormat::Gemini => json!({"role": "user", "parts": [{"text": text}]}),
        };
        let body = |text: &str, more: Vec<Value>| {
            let list: Vec<Value> = [asked(text)].into_iter().chain(more).collect();
            let mut body = json!({});
            body[list_of(wire)] = list.into();
            body
        };
        let parts = [Part::Thought("sealed".into()), Part::Text("yes".into())];
        let mut service = Service::default();
        service.seal(wire, "one", body("go", Vec::new()), &parts);
        let reply = super::service::echo(wire, &parts);
        let twice = [reply.clone(), reply.clone()].concat();
        let forged = super::service::echo(wire, &[Part::Thought("forged".into()), Part::Text("yes".into())]);
        let right = service.check(wire, "one", &body("go", reply.clone()));
        assert_eq!(right.map(|seen| seen.len()), Ok(1), "{wire:?}");
        for (wrong, model, body) in [
            ("another beginning", "one", body("stop", reply.clone())),
            ("another model", "two", body("go", reply.clone())),
            ("twice", "one", body("go", twice)),
            ("never made", "one", body("go", forged)),
        ] {
            assert!(service.check(wire, model, &body).is_err(), "{wire:?}: {wrong}");
        }
    }
}

/// A provider's own compaction: changed, another model's, not first, or repeated.
#[test]
fn a_misplaced_provider_compaction_is_detected() {
    for wire in [WireFormat::AnthropicMessages, WireFormat::OpenAiResponses] {
        let item = super::service::short(wire, 1).expect("it has a form of its own");
        let mut service = Service::default();
        service.made_short("one", &item);
        let body = |items: &[&Value]| {
            let said = match wire {
                WireFormat::AnthropicMessages => json!({"role": "assistant", "content": items}),
                WireFormat::OpenAiResponses | WireFormat::OpenAiChat | WireFormat::Gemini => Value::Null,
            };
            let list = if said.is_null() { json!(items) } else { json!([said]) };
            let mut body = json!({});
            body[list_of(wire)] = list;
            body
        };
        let text = json!({"type": "text", "text": "yes"});
        let mut changed = item.clone();
        changed["cache_control"] = json!({"type": "ephemeral"});
        assert_eq!(service.check_short(wire, "one", &body(&[&item, &text])), Ok(true));
        assert_eq!(service.check_short(wire, "two", &body(&[&text])), Ok(false));
        for (wrong, model, items) in [
            ("changed", "one", vec![&changed]),
            ("another model", "two", vec![&item]),
            ("behind a text", "one", vec![&text, &item]),
            ("twice", "one", vec![&item, &item]),
        ] {
            assert!(service.check_short(wire, model, &body(&items)).is_err(), "{wire:?}: {wrong}");
        }
    }
}
