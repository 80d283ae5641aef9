//! A model of a session: log, view and encoded request, and nothing else.

mod compacting;
mod happens;
mod holds;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use epitome::compaction::Budget;
use epitome::config::{Settings, WireFormat};
use epitome::provider::collect::Collector;
use epitome::provider::endpoint::{Endpoint, resolve};
use epitome::provider::wire::encoding::Encoding;
use epitome::provider::wire::stream::Decoding;
use epitome::thread::{
    Change, Content, Entry, FORMAT_VERSION, Message, ModelName, Origin, OutcomeStatus, Seq, SessionId,
    ThoughtLevel, Thread, ToolSpec, ViewEdit,
};
use epitome::tokens::Ruler;
use serde_json::Value;

use super::checks::{self, Counts, count};
use super::service::Service;
use super::step::Step;

static ENDPOINTS: LazyLock<Vec<Endpoint>> = LazyLock::new(endpoints);

/// A model of each wire format, models served by third parties in that format, and models that require other
/// parameters than the newest ones.
fn endpoints() -> Vec<Endpoint> {
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
    let endpoint = |(name, wire, own_api): (&str, WireFormat, bool)| {
        let endpoint =
            resolve(&ModelName(name.into()), &Settings::default(), &env).expect("all keys are set");
        // The other endpoints do not support it, or their format does not.
        let native_compaction = wire.compacts() && own_api;
        Endpoint { wire, own_api, native_compaction, ..endpoint }
    };
    table.map(endpoint).into()
}

pub struct Model {
    endpoints: Vec<Endpoint>,
    pub thread: Thread,
    /// Kept from call to call, like in a session.
    encoding: Encoding,
    chosen: usize,
    thought: ThoughtLevel,
    /// The frame that a new thread would get now.
    system: String,
    tools: Vec<ToolSpec>,
    service: Service,
    answered: Vec<Answered>,
    /// The request of each state.
    sent: HashMap<State, (Seq, Vec<u8>)>,
    /// The revision of the view that was checked last, and what was undone then.
    looked_at: Seq,
    undone: HashSet<Seq>,
    /// Makes texts, ids and signatures unique.
    number: usize,
    pub counts: Counts,
}

/// A request that a model has answered.
struct Answered {
    endpoint: usize,
    /// The reply.
    seq: Seq,
    /// The layers in effect.
    layers: Vec<Seq>,
    frame: [Value; 3],
    messages: String,
    /// The signatures of the reply that can be sent back.
    signatures: Vec<String>,
}

/// Everything that a request depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    layers: Vec<Seq>,
    /// The newest entry of the view that is not a layer.
    newest: Seq,
    endpoint: usize,
    /// A `ThoughtLevel`.
    thought: u8,
}

/// A request that was encoded and checked.
struct Sent {
    /// The messages in it, without cache marks.
    messages: String,
    body: Value,
}

/// Whether the same bytes were already checked, in the same state.
enum Novelty {
    New,
    SentBefore,
}

type Checked<T = ()> = Result<T, String>;

impl Model {
    pub fn new() -> Model {
        let id = SessionId("s_00000000000000000000".into());
        let opened = Change::Opened { format: FORMAT_VERSION, session: id, cwd: "/w".into() };
        let entry = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
        let mut model = Model {
            endpoints: ENDPOINTS.clone(),
            thread: Thread::replay([entry]).expect("an opened thread"),
            encoding: Encoding::default(),
            chosen: 0,
            thought: ThoughtLevel::Medium,
            system: String::new(),
            tools: Vec::new(),
            service: Service::default(),
            answered: Vec::new(),
            sent: HashMap::new(),
            looked_at: Seq(0),
            undone: HashSet::new(),
            number: 0,
            counts: Counts::new(),
        };
        model.change_build(0);
        model.say(Origin::Person, vec![text("go")]);
        model
    }

    /// Performs a step and checks all invariants.
    pub fn take(&mut self, step: &Step) -> Checked {
        self.make(step).map_err(|why| format!("{step:?}: {why}\n{}", self.story()))?;
        self.check().map_err(|why| format!("after {step:?}: {why}\n{}", self.story()))
    }

    /// The log, for debugging a failure.
    fn story(&self) -> String {
        let lines = self.thread.entries().iter().map(|entry| {
            let line = checks::line(entry);
            line[..line.floor_char_boundary(line.len().min(STORY_LINE_BYTES))].to_owned()
        });
        let lines: Vec<String> = lines.collect();
        lines.join("\n")
    }

    /// Performs a step without checking its result.
    pub fn make(&mut self, step: &Step) -> Checked {
        match step {
            Step::Said { by, what, words } => self.said(*by, *what, *words),
            Step::Replied(reply) => return self.reply(*reply),
            Step::Outcomes { first, calls, what, status, words } => {
                for _ in 0..*calls {
                    let open = self.thread.open_calls();
                    if !open.is_empty() {
                        let call = open[first % open.len()].clone();
                        self.finish(call, *what, *status, *words);
                    }
                }
            }
            Step::Edited { edits, stale } => return self.edit(edits, *stale),
            Step::Mutated { roles, kept, stale } => return self.mutate(roles, *kept, *stale),
            Step::Compacted(compaction) => return self.compact(compaction),
            Step::Undone(pick) => {
                let layers = self.outermost();
                if let Some(layer) = picked(&layers, *pick) {
                    self.undo(*layer);
                }
            }
            Step::Redone(pick) => {
                let layers = self.layers(|thread, layer| thread.can_redo(layer).is_ok());
                if let Some(layer) = picked(&layers, *pick) {
                    self.redo(*layer);
                }
            }
            Step::UndoneAndRedone => {
                let layers = self.outermost();
                if let Some(layer) = layers.last() {
                    self.undo(*layer);
                    self.check()?;
                    self.redo(*layer);
                }
            }
            Step::Rewound(pick) => {
                let prompts = self.rewindable();
                if let Some(to) = picked(&prompts, *pick) {
                    self.rewind(*to);
                }
            }
            Step::Pinned(pick) => {
                let parts: Vec<_> = self.thread.view().pieces().iter().map(|(part, _)| *part).collect();
                if let Some(at) = picked(&parts, *pick).copied() {
                    let edit = match self.thread.pinned().contains(&at) {
                        true => ViewEdit::Unpin { at },
                        false => ViewEdit::Pin { at },
                    };
                    self.commit_edits(vec![edit], "you");
                }
            }
            Step::Chosen(pick) => {
                self.chosen = pick % self.endpoints.len();
                let model = self.endpoints[self.chosen].name.clone();
                self.append(Change::ModelChosen { model });
            }
            Step::Changed(pick) => self.change_build(*pick),
            Step::ThinkingDropped => {
                let through = self.newest().seq;
                self.append(Change::ThinkingDropped { through, why: "it does not fit".into() });
            }
            Step::Aside(pick) => self.aside(*pick),
            Step::Killed => return self.kill(),
        }
        Ok(())
    }

    /// Appends the changes of an imported session; calls that are still open count as interrupted.
    pub fn import(&mut self, changes: Vec<Change>) {
        let first = self.thread.next_message().0;
        for mut change in changes {
            if let Change::Said { message, .. } | Change::Replied { message, .. } = &mut change {
                message.id.0 += first;
            }
            self.append(change);
        }
        self.finish_calls(OutcomeStatus::Interrupted);
    }

    /// A reply without reasoning and calls, to a request that is not checked.
    pub fn reply_unseen(&mut self, words: usize) {
        self.finish_calls(OutcomeStatus::Completed);
        let content = vec![text(&self.words(words))];
        let message = self.message(content);
        let model = self.endpoints[self.chosen].name.clone();
        self.append(Change::Replied { message, model, usage: None, cut: None });
    }

    /// The layers that can be undone now.
    pub fn outermost(&self) -> Vec<Seq> {
        self.layers(|thread, layer| thread.can_undo(layer).is_ok())
    }

    /// The layers in effect; dropped thinking counts as a layer.
    fn holding(&self) -> Vec<Seq> {
        let holds = |entry: &&Arc<Entry>| match &entry.change {
            Change::ThinkingDropped { .. } => true,
            change => change.is_layer() && !self.thread.is_undone(entry.seq),
        };
        self.thread.entries().iter().filter(holds).map(|entry| entry.seq).collect()
    }

    fn layers(&self, is_one: impl Fn(&Thread, Seq) -> bool) -> Vec<Seq> {
        let layers = self.thread.layers().into_iter().map(|layer| layer.entry);
        layers.filter(|layer| is_one(&self.thread, *layer)).collect()
    }

    fn newest(&self) -> &Arc<Entry> {
        self.thread.entries().last().expect("a thread is opened")
    }

    fn ruler(&self) -> Ruler {
        Ruler::for_model(Some(&self.endpoints[self.chosen].name))
    }

    fn budget(&self, window: u64) -> Budget {
        let settings = Settings::default().compaction;
        let reserve = u64::from(settings.output_reserve).min(window / 4);
        Budget::new(&settings, window, reserve, self.ruler().frame_of(&self.thread))
    }

    fn append(&mut self, change: Change) -> Seq {
        let seq = self.thread.next_seq();
        self.thread.apply(Arc::new(Entry { seq, at: 0, change }));
        seq
    }

    fn message(&self, content: Vec<Content>) -> Message {
        Message { id: self.thread.next_message(), content, author: None }
    }

    /// A unique text of about `words` words.
    fn words(&mut self, words: usize) -> String {
        self.number += 1;
        format!("[{}]{}", self.number, " walnut".repeat(words))
    }

    fn count(&mut self, what: &'static str) {
        count(&mut self.counts, what, 1);
    }

    fn count_times(&mut self, what: &'static str, times: u64) {
        count(&mut self.counts, what, times);
    }
}

/// Decodes a streamed reply, like a session does.
fn read(endpoint: &Endpoint, prefix: String, stream: &str) -> Checked<Vec<Content>> {
    let mut decoding = Decoding::new(endpoint.clone(), prefix, None);
    let mut events = Vec::new();
    decoding.push(stream.as_bytes(), &mut events).map_err(|error| format!("{error:?}: {stream}"))?;
    decoding.end(&mut events).map_err(|error| format!("{error:?}: {stream}"))?;
    let mut collector = Collector::new(&endpoint.name);
    events.into_iter().for_each(|event| drop(collector.feed(event)));
    Ok(collector.finish().content)
}

/// Bytes of each entry in a failure report.
const STORY_LINE_BYTES: usize = 400;

fn text(text: &str) -> Content {
    Content::Text { text: text.to_owned() }
}

fn picked<T>(from: &[T], pick: usize) -> Option<&T> {
    from.get(pick.checked_rem(from.len())?)
}

/// System text and tools, in any format.
fn frame_of(body: &Value) -> [&Value; 3] {
    let system = match &body["system"][0]["text"] {
        Value::Null => &body["instructions"],
        text => text,
    };
    [system, &body["systemInstruction"], &body["tools"]]
}

/// The state of a thread apart from its view.
fn state_of(thread: &Thread) -> String {
    let facts = (thread.title(), thread.goal(), thread.plan(), thread.model(), thread.mode(), thread.rules());
    let waiting = (thread.queued(), thread.open_calls(), thread.in_turn(), thread.next_message());
    let view = (thread.pins(), thread.view().revision(), thread.frame());
    format!("{facts:?} {waiting:?} {view:?} {:?}", thread.spent())
}
