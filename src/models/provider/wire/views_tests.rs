//! Views for the encoders' tests: typical ones written by hand, and generated ones of every shape.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::Purpose;
use super::encoding::{Encoded, Encoding};
use super::turns::{WireTurn, turns};
use crate::endpoint::Endpoint;
use crate::{Basis, ModelRequest};
use epitome_config::WireFormat;
use epitome_thread::{
    CallDisplay, CallId, Change, Content, Entry, FORMAT_VERSION, HistoryMessage, Message, MessageId,
    ModelName, Native, Origin, OutcomeContent, OutcomeStatus, PartId, Role, Seq, SessionId, ThoughtLevel,
    Thread, ToolCall, ToolOutcome, ToolSpec, ViewEdit, ViewItem, edits,
};

/// Encodes a request without a cache, for a reply.
pub fn encode(endpoint: &Endpoint, request: &ModelRequest<'_>) -> Encoded {
    Encoding::default().encode(endpoint, request, Purpose::Reply)
}

/// The body of a request, encoded without a cache.
pub fn body(endpoint: &Endpoint, request: &ModelRequest<'_>) -> Value {
    serde_json::from_slice(&encode(endpoint, request).bytes()).expect("a body is JSON")
}

/// A view that owns its items.
#[derive(Clone, Debug, Default)]
pub struct OwnedView {
    pub items: Vec<OwnedItem>,
    pub tools: Vec<ToolSpec>,
}

#[derive(Clone, Debug)]
pub enum OwnedItem {
    User(Message),
    Agent(Message, ModelName),
    Outcomes(Vec<ToolOutcome>),
}

impl OwnedView {
    pub fn user(mut self, content: Vec<Content>) -> OwnedView {
        self.items.push(OwnedItem::User(Message { id: MessageId(0), content, author: None }));
        self
    }

    pub fn agent(mut self, content: Vec<Content>) -> OwnedView {
        self.items.push(OwnedItem::Agent(
            Message { id: MessageId(0), content, author: None },
            ModelName("any/model".into()),
        ));
        self
    }

    pub fn outcomes(mut self, outcomes: Vec<ToolOutcome>) -> OwnedView {
        self.items.push(OwnedItem::Outcomes(outcomes));
        self
    }

    pub fn with_tools(mut self) -> OwnedView {
        let schema = json!({"type": "object", "properties": {"command": {"type": "string"}}});
        self.tools.push(ToolSpec { name: "bash".into(), description: "Runs a command.".into(), schema });
        self
    }

    pub fn request(&self) -> ModelRequest<'_> {
        let items = self.items.iter().map(|item| match item {
            OwnedItem::User(message) => ViewItem::User(message),
            OwnedItem::Agent(message, model) => ViewItem::Agent(message, model),
            OwnedItem::Outcomes(outcomes) => ViewItem::Outcomes(outcomes.iter().collect()),
        });
        ModelRequest {
            system: "You are an agent.",
            tools: &self.tools,
            items: items.collect(),
            thought: ThoughtLevel::Medium,
            max_output: 32_000,
            cache_key: "s_1",
            // Any basis: the conversation continues.
            basis: Some(Basis::default()),
        }
    }
}

pub fn text(text: &str) -> Content {
    Content::Text { text: text.into() }
}

pub fn image(mime_type: &str) -> Content {
    Content::Image { mime_type: mime_type.into(), data: "aGk=".into(), uri: None }
}

/// A PNG file of this size, without its pixels.
pub fn picture(width: u32, height: u32) -> Content {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    bytes.extend(width.to_be_bytes());
    bytes.extend(height.to_be_bytes());
    Content::Image { mime_type: "image/png".into(), data: STANDARD.encode(bytes), uri: None }
}

pub fn document(mime_type: &str, name: Option<&str>) -> Content {
    let name = name.map(str::to_owned);
    Content::Document { mime_type: mime_type.into(), data: "JVBERi0=".into(), name }
}

pub fn outcome_document(name: Option<&str>) -> OutcomeContent {
    let name = name.map(str::to_owned);
    OutcomeContent::Document { mime_type: "application/pdf".into(), data: "JVBERi0=".into(), name }
}

pub fn call(id: &str, input: Value) -> Content {
    let id = CallId(id.into());
    Content::Call(ToolCall { id, name: "bash".into(), input, card: CallDisplay::default() })
}

pub fn outcome(id: &str, status: OutcomeStatus, text: &str) -> ToolOutcome {
    ToolOutcome::text(CallId(id.into()), status, text)
}

pub fn thinking(provider: &str, model: &str, data: Value) -> Content {
    let native = Native { provider: provider.into(), model: model.into(), data };
    Content::Thinking { text: "hm".into(), native: Some(native) }
}

impl OwnedView {
    /// The same view with the thinking of its replies signed as if this endpoint's model had generated it there.
    pub fn of_own(&self, endpoint: &Endpoint) -> OwnedView {
        let mut own = OwnedView { items: Vec::new(), tools: self.tools.clone() };
        for item in &self.items {
            let mut item = item.clone();
            if let OwnedItem::Agent(message, _) = &mut item {
                let so_far = if own.items.is_empty() { own.clone().user(Vec::new()) } else { own.clone() };
                let before = encode(endpoint, &so_far.request());
                for part in &mut message.content {
                    if let Content::Thinking { native: Some(native), .. } = part {
                        let is_signed = native.provider == "anthropic";
                        let data = sealed(endpoint.wire, is_signed, &before.prefix);
                        *part = thinking(endpoint.provider(), &endpoint.model, data);
                    }
                }
            }
            own.items.push(item);
        }
        own
    }

    /// The same view, with another user message at the end if the last turn is the model's.
    pub fn answerable(self) -> OwnedView {
        let is_answered =
            matches!(turns(&self.request().items).0.last(), Some(WireTurn::Agent { .. }) | None);
        if is_answered { self.user(vec![text("go on")]) } else { self }
    }

    /// The same view after edits by a hook, each applied to the part at this index, and possibly with a history of
    /// messages with these roles before the newest. Rejected edits are skipped.
    pub fn edited(&self, edits: &[(usize, u8)], history: &[Role], kept: usize) -> OwnedView {
        let mut thread = self.thread();
        for (place, op) in edits {
            let parts: Vec<PartId> = thread.view().pieces().iter().map(|(part, _)| *part).collect();
            let at = parts[place % parts.len()];
            let content = vec![text("instead")];
            let edit = match op % 5 {
                0 => ViewEdit::Mask { at, note: "long".into() },
                1 | 2 => ViewEdit::Drop { at },
                3 => ViewEdit::Replace { at, content },
                _ => ViewEdit::Append {
                    role: Role::Assistant,
                    message: Message { id: MessageId(0), content, author: None },
                },
            };
            let (revision, next) = (thread.view().revision(), thread.next_message());
            if let Ok(edits) = edits::check(&thread, revision, next, &[edit]) {
                append(&mut thread, Change::Edited { by: "h".into(), edits });
            }
        }
        let spoken = history.iter().map(|role| HistoryMessage {
            role: *role,
            message: Message { id: MessageId(0), content: vec![text("so far")], author: None },
        });
        let (revision, next) = (thread.view().revision(), thread.next_message());
        if let Ok(made) = edits::mutation(&thread, revision, next, spoken.collect(), kept) {
            let (through, messages) = (made.through, made.messages);
            let by = "h".to_owned();
            append(
                &mut thread,
                Change::Mutated { through, messages, by, tokens_before: 2, tokens_after: 1, window: None },
            );
        }
        let items = thread.view().items().into_iter().map(|item| match item {
            ViewItem::User(message) | ViewItem::Summary(message) => OwnedItem::User(message.clone()),
            ViewItem::Agent(message, model) => OwnedItem::Agent(message.clone(), model.clone()),
            ViewItem::Outcomes(outcomes) => OwnedItem::Outcomes(outcomes.into_iter().cloned().collect()),
        });
        OwnedView { items: items.collect(), tools: self.tools.clone() }
    }

    /// A thread with this view.
    fn thread(&self) -> Thread {
        let session = SessionId("s_00000000000000000001".into());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
        let opened = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
        let mut thread = Thread::replay([opened]).expect("an opened thread");
        for item in &self.items {
            match item {
                OwnedItem::User(message) => {
                    let message = message.clone();
                    append(&mut thread, Change::Said { message, origin: Origin::Person });
                }
                OwnedItem::Agent(message, model) => {
                    let (message, model) = (message.clone(), model.clone());
                    append(&mut thread, Change::Replied { message, model, usage: None, cut: None });
                }
                OwnedItem::Outcomes(outcomes) => {
                    for outcome in outcomes.iter().cloned() {
                        append(&mut thread, Change::ToolFinished { outcome });
                    }
                }
            }
        }
        thread
    }
}

fn append(thread: &mut Thread, change: Change) {
    thread.apply(Arc::new(Entry { seq: thread.next_seq(), at: 0, change }));
}

/// The stored data of a reply in this format; of two kinds in formats that have both.
fn sealed(wire: WireFormat, is_signed: bool, prefix: &str) -> Value {
    let block = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
    let item = json!({"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "Z0FB"});
    match (wire, is_signed) {
        (WireFormat::AnthropicMessages, _) => json!({"block": block, "prefix": prefix}),
        (WireFormat::OpenAiResponses, true) => json!({"item": item, "prefix": prefix}),
        (WireFormat::OpenAiResponses, false) => json!({"phase": "commentary"}),
        (WireFormat::OpenAiChat, _) => json!({}),
        (WireFormat::Gemini, true) => json!({"of": "call", "prefix": prefix, "signature": "c2ln"}),
        (WireFormat::Gemini, false) => {
            json!({"of": "text", "prefix": prefix, "signature": "c2ln", "bytes": 0})
        }
    }
}

/// Edits and history that hooks may request, for `OwnedView::edited`.
pub fn hook_requests() -> impl Strategy<Value = (Vec<(usize, u8)>, Vec<Role>, usize)> {
    let edits = prop::collection::vec((0..32usize, any::<u8>()), 0..8);
    let role = prop_oneof![Just(Role::User), Just(Role::Assistant), Just(Role::System)];
    (edits, prop::collection::vec(role, 0..4), 0..6usize)
}

/// A generated round; call ids are assigned later, so that they are unique.
#[derive(Clone, Debug)]
enum GeneratedRound {
    User(Vec<Content>),
    Agent(Vec<Content>),
    /// The preceding parts, a flag per call for an image in its outcome, and an outcome that the log lost or that
    /// belongs to no call.
    Calls {
        parts: Vec<Content>,
        images: Vec<bool>,
        lost: Option<usize>,
        orphan: bool,
    },
}

/// Views that begin with the user and end where the model has to reply. With `faulty`, outcomes may be missing or
/// belong to no call.
pub fn views(faulty: bool) -> impl Strategy<Value = OwnedView> {
    let begin = prop::collection::vec(said(), 1..3);
    (begin, prop::collection::vec(round(faulty), 0..8), any::<bool>()).prop_map(|(begin, rounds, last)| {
        let mut view = OwnedView::default().with_tools().user(begin);
        let mut calls = 0;
        for round in rounds {
            view = match round {
                GeneratedRound::User(content) => view.user(content),
                GeneratedRound::Agent(content) => view.agent(content),
                GeneratedRound::Calls { mut parts, images, lost, orphan } => {
                    let mut outcomes = Vec::new();
                    for (at, with_image) in images.into_iter().enumerate() {
                        let id = format!("c{calls}");
                        calls += 1;
                        parts.push(call(&id, json!({"command": "ls"})));
                        let mut outcome = outcome(&id, OutcomeStatus::Completed, "");
                        if with_image {
                            let (mime_type, data) = ("image/png".into(), "aGk=".into());
                            outcome.content.push(OutcomeContent::Image { mime_type, data });
                            outcome.content.push(outcome_document(None));
                        }
                        if lost != Some(at) {
                            outcomes.push(outcome);
                        }
                    }
                    if orphan {
                        outcomes.push(outcome("nobody", OutcomeStatus::Failed, "no such call"));
                    }
                    let view = view.agent(parts);
                    if outcomes.is_empty() { view } else { view.outcomes(outcomes) }
                }
            };
        }
        if last { view.user(vec![text("go on")]) } else { view }
    })
}

fn said() -> impl Strategy<Value = Content> {
    prop_oneof![
        "[ \na-z]{0,4}".prop_map(|words| text(&words)),
        Just(image("image/png")),
        Just(image("image/tiff")),
        Just(document("application/pdf", Some("a.pdf"))),
        Just(document("application/zip", None)),
        Just(Content::Resource { uri: "file:///a".into(), text: String::new() }),
        Just(Content::ResourceLink { uri: "file:///b".into(), name: "b".into() }),
    ]
}

fn replied() -> impl Strategy<Value = Content> {
    let block = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
    prop_oneof![
        "[ \na-z]{0,4}".prop_map(|words| text(&words)),
        Just(thinking("anthropic", "claude-sonnet-5-5", block.clone())),
        Just(thinking("elsewhere", "claude-sonnet-5-5", block)),
        Just(Content::Thinking { text: "for people".into(), native: None }),
    ]
}

fn round(faulty: bool) -> impl Strategy<Value = GeneratedRound> {
    let parts = || prop::collection::vec(replied(), 0..4);
    let calls =
        (parts(), prop::collection::vec(any::<bool>(), 1..4), prop::option::of(0usize..4), any::<bool>());
    prop_oneof![
        prop::collection::vec(said(), 0..3).prop_map(GeneratedRound::User),
        parts().prop_map(GeneratedRound::Agent),
        calls.prop_map(move |(parts, images, lost, orphan)| GeneratedRound::Calls {
            parts,
            images,
            lost: lost.filter(|_| faulty),
            orphan: orphan && faulty,
        }),
    ]
}
