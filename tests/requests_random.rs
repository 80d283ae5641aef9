//! Sessions in which anything may happen between calls of any model: each request is what would be written
//! from the beginning, its service takes it, and nothing that was sent changes without a reason.
//!
//! `EPITOME_SESSIONS=20000 cargo test --test requests_random` plays more of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use epitome::config::{Settings, WireFormat};
use epitome::provider::collect::Collector;
use epitome::provider::endpoint::{Endpoint, resolve};
use epitome::provider::wire::encoding::{Encoded, Encoding};
use epitome::provider::wire::stream::Decoding;
use epitome::provider::wire::{Purpose, valid};
use epitome::provider::{Basis, Request};
use epitome::thread::{
    Change, Content, Entry, FORMAT_VERSION, Message, MessageId, ModelName, Native, Origin, OutcomeContent,
    OutcomeStatus, Role, Seq, SessionId, Spoken, ThoughtLevel, Thread, ToolOutcome, ToolSpec, Trigger, edits,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// How many sessions are played where nothing else is asked for.
const SESSIONS: u32 = 300;

fn sessions() -> u32 {
    let asked = std::env::var("EPITOME_SESSIONS").ok();
    asked.map_or(SESSIONS, |asked| asked.parse().expect("EPITOME_SESSIONS is a number"))
}

/// A model of each wire format, models that are only served in it, and models that want something else
/// than the newest ones.
fn models() -> Vec<Endpoint> {
    let table = [
        ("anthropic/claude-sonnet-5-5", WireFormat::AnthropicMessages, true),
        ("anthropic/claude-haiku-4-5", WireFormat::AnthropicMessages, true),
        ("anthropic/claude-opus-4-8", WireFormat::AnthropicMessages, false),
        ("openai/gpt-6-sol", WireFormat::OpenAiResponses, true),
        ("openai/qwen3", WireFormat::OpenAiResponses, false),
        ("openai/gpt-4.1", WireFormat::OpenAiChat, true),
        ("openai/llama", WireFormat::OpenAiChat, false),
        ("gemini/gemini-2.5-flash", WireFormat::Gemini, true),
        ("gemini/gemini-4-argon", WireFormat::Gemini, true),
    ];
    let env = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"].map(|key| (key.into(), "k".into()));
    let model = |(name, wire, own_api): (&str, WireFormat, bool)| {
        let endpoint =
            resolve(&ModelName(name.into()), &Settings::default(), &env).expect("all keys are there");
        // Of the others nobody wants it, or their format has none.
        let native_compaction = wire.compacts() && own_api;
        Endpoint { wire, own_api, native_compaction, ..endpoint }
    };
    table.map(model).into()
}

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Said(String),
    /// The model that is chosen answers: with reasoning, perhaps a blank text, a text or none, and calls.
    Replied {
        blank: bool,
        text: bool,
        calls: usize,
    },
    Outcomes,
    Chosen(usize),
    /// So many of the newest messages stay.
    Compacted(usize),
    Mutated(Vec<Role>, usize),
    Undone,
    ThinkingDropped,
}

fn step() -> impl Strategy<Value = Step> {
    let replied = || {
        (any::<bool>(), any::<bool>(), 0..3usize).prop_map(|(blank, text, calls)| Step::Replied {
            blank,
            text: text || calls == 0,
            calls,
        })
    };
    let role = prop_oneof![Just(Role::User), Just(Role::Assistant), Just(Role::System)];
    prop_oneof![
        3 => "[ a-z]{0,4}".prop_map(Step::Said),
        8 => replied(),
        4 => Just(Step::Outcomes),
        3 => (0..models().len()).prop_map(Step::Chosen),
        1 => (0..4usize).prop_map(Step::Compacted),
        1 => (prop::collection::vec(role, 1..4), 0..4usize).prop_map(|(roles, kept)| Step::Mutated(roles, kept)),
        1 => Just(Step::Undone),
        1 => Just(Step::ThinkingDropped),
    ]
}

/// What a model has answered last.
struct Answered {
    revision: Seq,
    /// The request's messages.
    messages: Vec<Value>,
}

/// Reasoning that a model has given out, or what it made of the conversation.
struct Given {
    model: usize,
    /// Of the view that it was made from.
    revision: Seq,
    signature: String,
    /// Of the reply.
    seq: Seq,
}

struct Session {
    models: Vec<Endpoint>,
    thread: Thread,
    /// As a session keeps it from call to call.
    encoding: Encoding,
    chosen: usize,
    answered: BTreeMap<usize, Answered>,
    given: Vec<Given>,
    /// For ids and signatures that are like no other.
    number: usize,
}

impl Session {
    fn new() -> Session {
        let id = SessionId("s_00000000000000000000".into());
        let opened = Change::Opened { format: FORMAT_VERSION, session: id, cwd: "/w".into() };
        let entry = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
        let mut session = Session {
            models: models(),
            thread: Thread::replay([entry]).expect("an opened thread"),
            encoding: Encoding::default(),
            chosen: 0,
            answered: BTreeMap::new(),
            given: Vec::new(),
            number: 0,
        };
        let schema = json!({"type": "object"});
        let tools = vec![ToolSpec { name: "look".into(), description: "Looks.".into(), schema }];
        session.append(Change::Framed { system: "You are an agent.".into(), tools });
        session.say("go");
        session
    }

    fn append(&mut self, change: Change) -> Seq {
        let seq = self.thread.next_seq();
        self.thread.apply(Arc::new(Entry { seq, at: 0, change }));
        seq
    }

    fn message(&self, content: Vec<Content>) -> Message {
        Message { id: self.thread.next_message(), content }
    }

    fn say(&mut self, text: &str) {
        let message = self.message(vec![Content::Text { text: text.into() }]);
        self.append(Change::Said { message, origin: Origin::Person });
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        // A turn's calls have ended before anything else happens.
        self.finish_calls();
        match step {
            Step::Said(text) => self.say(text),
            Step::Replied { blank, text, calls } => self.reply(*blank, *text, *calls)?,
            Step::Outcomes => {}
            Step::Chosen(model) => self.chosen = *model,
            Step::Compacted(kept) => {
                let through = self.thread.through(self.thread.view().newest(*kept));
                let (signature, native) = self.made_short();
                let text = Content::Text { text: "So far.".into() };
                let summary = self.message(native.into_iter().chain([text]).collect());
                let seq = self.append(Change::Compacted {
                    through,
                    summary,
                    trigger: Trigger::Manual,
                    focus: None,
                    tokens_before: 2,
                    tokens_after: 1,
                    model: None,
                    usage: None,
                    masks: Vec::new(),
                    account: Default::default(),
                });
                if let Some(signature) = signature {
                    let revision = self.thread.view().revision();
                    self.given.push(Given { model: self.chosen, revision, signature, seq });
                }
            }
            Step::Mutated(roles, kept) => {
                let spoken = roles.iter().map(|role| Spoken {
                    role: *role,
                    message: Message {
                        id: MessageId(0),
                        content: vec![Content::Text { text: "new".into() }],
                    },
                });
                let (revision, next) = (self.thread.view().revision(), self.thread.next_message());
                if let Ok(made) = edits::mutation(&self.thread, revision, next, spoken.collect(), *kept) {
                    let (through, messages) = (made.through, made.messages);
                    let by = "h".to_owned();
                    self.append(Change::Mutated { through, messages, by, tokens_before: 2, tokens_after: 1 });
                }
            }
            Step::Undone => {
                if let Some(entry) = self.thread.last_layer().map(|entry| entry.seq) {
                    self.append(Change::Undone { entry });
                }
            }
            Step::ThinkingDropped => {
                let through = self.thread.entries().last().expect("it is opened").seq;
                self.append(Change::ThinkingDropped { through, why: "it does not fit".into() });
                // Nothing that was left out comes back by another change.
                self.given.retain(|given| given.seq > through);
            }
        }
        Ok(())
    }

    /// What the chosen model's provider makes of the conversation, where it has a form of its own for that.
    fn made_short(&mut self) -> (Option<String>, Option<Content>) {
        let endpoint = &self.models[self.chosen];
        if !endpoint.native_compaction {
            return (None, None);
        }
        self.number += 1;
        let signature = format!("signature{}end", self.number);
        let item = match endpoint.wire {
            WireFormat::AnthropicMessages => {
                json!({"type": "compaction", "content": "Of old.", "signature": signature})
            }
            WireFormat::OpenAiResponses | WireFormat::OpenAiChat | WireFormat::Gemini => {
                json!({"type": "compaction", "encrypted_content": signature})
            }
        };
        let (provider, model) = (endpoint.provider().to_owned(), endpoint.model.clone());
        let native = Native { provider, model, data: json!({ "compaction": item }) };
        (Some(signature), Some(Content::Thinking { text: String::new(), native: Some(native) }))
    }

    fn finish_calls(&mut self) {
        for call in self.thread.open_calls().to_vec() {
            let outcome = ToolOutcome {
                call,
                status: OutcomeStatus::Completed,
                content: vec![OutcomeContent::Text { text: "done".into() }],
                shown: Vec::new(),
                locations: Vec::new(),
                raw: None,
                whole: None,
            };
            self.append(Change::ToolFinished { outcome });
        }
    }

    fn reply(&mut self, blank: bool, text: bool, calls: usize) -> Result<(), TestCaseError> {
        if self.thread.view().ends_with_agent() {
            self.say("Go on.");
        }
        let encoded = self.check()?;
        let endpoint = self.models[self.chosen].clone();
        self.number += 1;
        let signature = format!("signature{}end", self.number);
        let stream = stream(endpoint.wire, &signature, blank, text, calls);
        let mut decoding = Decoding::new(endpoint.clone(), encoded.prefix.clone(), None);
        let mut events = Vec::new();
        decoding.push(stream.as_bytes(), &mut events).expect("the stream can be read");
        decoding.end(&mut events).expect("it is whole");
        let mut collector = Collector::new(&endpoint.name);
        events.into_iter().for_each(|event| drop(collector.feed(event)));
        let mut message = self.message(collector.finish().content);
        for (at, part) in message.content.iter_mut().enumerate() {
            if let Content::Call(call) = part {
                call.id.0 = format!("call_{}_{at}", self.number);
            }
        }
        let revision = self.thread.view().revision();
        let messages = messages(endpoint.wire, &encoded);
        self.answered.insert(self.chosen, Answered { revision, messages });
        let seq = self.append(Change::Replied { message, model: endpoint.name, usage: None, cut: None });
        if endpoint.wire != WireFormat::OpenAiChat {
            self.given.push(Given { model: self.chosen, revision, signature, seq });
        }
        Ok(())
    }

    /// Encodes a request for the chosen model and looks at it.
    fn check(&mut self) -> Result<Encoded, TestCaseError> {
        let endpoint = &self.models[self.chosen];
        let (system, tools) = self.thread.frame().expect("it is framed");
        let frame = self.thread.frame_entry().expect("it is framed").seq;
        let revision = self.thread.view().revision();
        let request = Request {
            system,
            tools,
            items: self.thread.view().items(),
            thought: ThoughtLevel::Medium,
            max_output: 32_000,
            cache_key: "s",
            basis: Some(Basis { frame, revision }),
        };
        let encoded = self.encoding.encode(endpoint, &request, Purpose::Reply);
        let anew = Encoding::default().encode(endpoint, &request, Purpose::Reply);
        let (bytes, text) = (encoded.bytes(), String::from_utf8(anew.bytes()).expect("JSON is UTF-8"));
        prop_assert_eq!(String::from_utf8_lossy(&bytes), text.as_str());
        prop_assert_eq!(&encoded.prefix, &anew.prefix);

        let body: Value = serde_json::from_str(&text).expect("a body is JSON");
        let problems = valid::problems(endpoint.wire, &endpoint.model, &body);
        prop_assert!(problems.is_empty(), "{}: {:#?}\n{}", endpoint.name, problems, text);

        if let Some(before) = self.answered.get(&self.chosen).filter(|before| before.revision == revision) {
            let now = messages(endpoint.wire, &encoded);
            prop_assert!(
                now.starts_with(&before.messages),
                "{}: {:#?}\n{}",
                endpoint.name,
                before.messages,
                text
            );
        }
        for given in &self.given {
            let is_sent = text.contains(&given.signature);
            if given.model != self.chosen {
                prop_assert!(!is_sent, "{} has what another model made: {}", endpoint.name, text);
            } else if given.revision == revision {
                prop_assert!(is_sent, "{} has lost {}: {}", endpoint.name, given.signature, text);
            }
        }
        Ok(encoded)
    }
}

/// The messages of a request, without cache marks: they move, and are no part of what was said.
fn messages(wire: WireFormat, encoded: &Encoded) -> Vec<Value> {
    let text = String::from_utf8(encoded.bytes()).expect("JSON is UTF-8");
    let text = text.replace(r#","cache_control":{"type":"ephemeral"}"#, "");
    let body: Value = serde_json::from_str(&text).expect("a body is JSON");
    let list = match wire {
        WireFormat::AnthropicMessages | WireFormat::OpenAiChat => &body["messages"],
        WireFormat::OpenAiResponses => &body["input"],
        WireFormat::Gemini => &body["contents"],
    };
    list.as_array().expect("messages are a list").clone()
}

/// A reply as its service streams it: signed reasoning, then perhaps a blank text, a text, and calls.
fn stream(wire: WireFormat, signature: &str, blank: bool, text: bool, calls: usize) -> String {
    let texts: Vec<&str> = [(blank, "\n\n"), (text, "Yes.")]
        .into_iter()
        .filter_map(|(is_there, text)| is_there.then_some(text))
        .collect();
    let events = match wire {
        WireFormat::AnthropicMessages => {
            let delta = |kind: &str, field: &str, text: &str| json!({"type": kind, field: text});
            let mut blocks = vec![(
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                vec![
                    delta("thinking_delta", "thinking", "hm"),
                    delta("signature_delta", "signature", signature),
                ],
            )];
            blocks.extend(
                texts.iter().map(|text| {
                    (json!({"type": "text", "text": ""}), vec![delta("text_delta", "text", text)])
                }),
            );
            blocks.extend((0..calls).map(|at| {
                let call = json!({"type": "tool_use", "id": format!("c{at}"), "name": "look", "input": {}});
                (call, vec![delta("input_json_delta", "partial_json", "{}")])
            }));
            let mut events = vec![json!({"type": "message_start", "message": {}})];
            for (index, (block, deltas)) in blocks.into_iter().enumerate() {
                events.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
                events.extend(
                    deltas
                        .into_iter()
                        .map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta})),
                );
                events.push(json!({"type": "content_block_stop", "index": index}));
            }
            events.push(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}));
            events.push(json!({"type": "message_stop"}));
            events
        }
        WireFormat::OpenAiResponses => {
            let reasoning =
                json!({"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": signature});
            let said = texts.iter().enumerate().map(|(at, text)| {
                let content = json!([{"type": "output_text", "text": text}]);
                json!({"type": "message", "id": format!("msg_{at}"), "role": "assistant", "content": content})
            });
            let calls = (0..calls).map(|at| {
                let (id, call) = (format!("fc_{at}"), format!("c{at}"));
                json!({"type": "function_call", "id": id, "call_id": call, "name": "look", "arguments": "{}"})
            });
            let items = std::iter::once(reasoning).chain(said).chain(calls);
            let mut events = Vec::new();
            for (index, item) in items.enumerate() {
                events
                    .push(json!({"type": "response.output_item.added", "output_index": index, "item": item}));
                if item["type"] == "message" {
                    let (id, delta) = (&item["id"], &item["content"][0]["text"]);
                    events.push(json!({"type": "response.output_text.delta", "item_id": id,
                        "output_index": index, "content_index": 0, "delta": delta}));
                }
                events
                    .push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
            }
            events.push(json!({"type": "response.completed", "response": {"status": "completed"}}));
            events
        }
        WireFormat::OpenAiChat => {
            let mut deltas = vec![json!({"content": texts.concat()})];
            deltas.extend((0..calls).map(|at| {
                let function = json!({"name": "look", "arguments": "{}"});
                json!({"tool_calls": [{"index": at, "id": format!("c{at}"), "function": function}]})
            }));
            let end = json!({"choices": [{"delta": {}, "finish_reason": "stop"}]});
            let deltas = deltas.into_iter().map(|delta| json!({"choices": [{"delta": delta}]}));
            deltas.chain([end]).collect()
        }
        WireFormat::Gemini => {
            let mut parts = vec![json!({"text": "hm", "thought": true})];
            parts.extend(texts.iter().map(|text| json!({ "text": text })));
            let call = |at| json!({"functionCall": {"id": format!("c{at}"), "name": "look", "args": {}}});
            let before_calls = parts.len();
            parts.extend((0..calls).map(call));
            // On the first call of a step, else on the last of what it says.
            let signed = if calls > 0 { before_calls } else { parts.len() - 1 };
            parts[signed]["thoughtSignature"] = signature.into();
            let end = json!({"candidates": [{"finishReason": "STOP"}]});
            let chunks =
                parts.into_iter().map(|part| json!({"candidates": [{"content": {"parts": [part]}}]}));
            chunks.chain([end]).collect()
        }
    };
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(sessions()))]

    #[test]
    fn every_request_of_a_session_is_right(steps in prop::collection::vec(step(), 1..40)) {
        let mut session = Session::new();
        for step in &steps {
            session.take(step)?;
            // Only where the model is to speak is it asked.
            if !session.thread.view().ends_with_agent() {
                session.check()?;
            }
        }
    }
}
