//! A session as a model of it: what the log, the view and the written request do, and nothing else.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use epitome::compaction::ledger::Ledger;
use epitome::compaction::{self, Budget, Decision, Keep, Wish, Written};
use epitome::config::{Settings, WireFormat};
use epitome::provider::collect::Collector;
use epitome::provider::endpoint::{Endpoint, resolve};
use epitome::provider::wire::encoding::{Encoded, Encoding};
use epitome::provider::wire::stream::Decoding;
use epitome::provider::wire::{Purpose, valid};
use epitome::provider::{Basis, Request};
use epitome::thread::{
    CallId, Change, Content, Edit, Entry, FORMAT_VERSION, Message, MessageId, ModelName, Origin,
    OutcomeContent, OutcomeStatus, PlanPriority, PlanStatus, PlanStep, Role, Seq, SessionId, Spoken,
    StopReason, ThoughtLevel, Thread, ToolOutcome, ToolSpec, Usage, View, edits,
};
use epitome::tokens::Ruler;
use serde_json::{Value, json};

use super::checks::{self, Counts, Held, count};
use super::service::{self, Part, Service};
use super::step::{Compaction, Op, Reply, Shown, Speaker, Step, Thinks, What};

/// A picture of one pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

const PDF: &str = "JVBERi0xLjQKJSVFT0YK";

static ENDPOINTS: LazyLock<Vec<Endpoint>> = LazyLock::new(endpoints);

/// A model of each wire format, models that are only served in it, and models that want something else
/// than the newest ones.
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
    let endpoint = |(name, wire, own_api): (&str, _, _)| {
        let endpoint =
            resolve(&ModelName(name.into()), &Settings::default(), &env).expect("all keys are there");
        Endpoint { wire, own_api, ..endpoint }
    };
    table.map(endpoint).into()
}

pub struct Model {
    endpoints: Vec<Endpoint>,
    pub thread: Thread,
    /// As a session keeps it from call to call.
    encoding: Encoding,
    ledger: Ledger,
    chosen: usize,
    thought: ThoughtLevel,
    /// What a thread would be framed with now.
    system: String,
    tools: Vec<ToolSpec>,
    service: Service,
    answered: Vec<Answered>,
    /// What was sent in each state.
    sent: HashMap<State, (Seq, Vec<u8>)>,
    /// The revision of the view that was looked at last, and what was undone then.
    looked_at: Seq,
    undone: HashSet<Seq>,
    /// For texts, ids and signatures that are like no other.
    number: usize,
    pub counts: Counts,
}

/// A request that a model has answered.
struct Answered {
    endpoint: usize,
    /// The reply.
    seq: Seq,
    /// The layers that held.
    layers: Vec<Seq>,
    frame: [Value; 3],
    messages: String,
    /// What of the reply can be sent back.
    signatures: Vec<String>,
}

/// All that a request depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    layers: Vec<Seq>,
    /// The newest entry of the view that is not a layer.
    newest: Seq,
    endpoint: usize,
    /// A `ThoughtLevel`.
    thought: u8,
}

/// A request as it was written and looked at.
struct Sent {
    /// The messages in it, without cache marks.
    messages: String,
    body: Value,
}

/// Whether the very bytes were looked at before, in the same state.
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
            ledger: Ledger::default(),
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

    /// Takes a step and looks at all that must hold.
    pub fn take(&mut self, step: &Step) -> Checked {
        self.make(step).map_err(|why| format!("{step:?}: {why}\n{}", self.story()))?;
        self.check().map_err(|why| format!("after {step:?}: {why}\n{}", self.story()))
    }

    /// The log, for who has to find out what went wrong.
    fn story(&self) -> String {
        let lines = self.thread.entries().iter().map(|entry| {
            let line = checks::line(entry);
            line[..line.floor_char_boundary(line.len().min(STORY_LINE_BYTES))].to_owned()
        });
        let lines: Vec<String> = lines.collect();
        lines.join("\n")
    }

    /// Takes a step without looking at what comes of it.
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
            Step::Pinned(pick) => {
                let parts: Vec<_> = self.thread.view().pieces().iter().map(|(part, _)| *part).collect();
                if let Some(at) = picked(&parts, *pick).copied() {
                    let edit = match self.thread.pinned().contains(&at) {
                        true => Edit::Unpin { at },
                        false => Edit::Pin { at },
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

    /// Takes over a session from elsewhere. Its calls are paired as an import of it is.
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

    /// A reply without reasoning and calls, to a request that nobody looks at.
    pub fn reply_unseen(&mut self, words: usize) {
        self.finish_calls(OutcomeStatus::Completed);
        let content = vec![text(&self.words(words))];
        let message = self.message(content);
        let model = self.endpoints[self.chosen].name.clone();
        self.append(Change::Replied { message, model, usage: None, cut: None });
    }

    /// The layers that can be taken back now.
    pub fn outermost(&self) -> Vec<Seq> {
        self.layers(|thread, layer| thread.can_undo(layer).is_ok())
    }

    // ── What happens ───────────────────────────────────────────────────────────────────────────

    fn said(&mut self, by: Speaker, what: What, words: usize) {
        // A turn's calls have ended before anybody speaks.
        self.finish_calls(OutcomeStatus::Completed);
        let words = self.words(words);
        let uri = format!("file:///w/{}.txt", self.number);
        let content = match what {
            What::Text => vec![text(&words)],
            What::Blank => vec![text(" ")],
            What::Image => {
                let image = Content::Image { mime_type: "image/png".into(), data: PNG.into(), uri: None };
                vec![text(&words), image]
            }
            What::Document => {
                let (mime_type, data) = ("application/pdf".to_owned(), PDF.to_owned());
                vec![Content::Document { mime_type, data, name: Some("plan.pdf".into()) }, text(&words)]
            }
            What::Resource => vec![text(&words), Content::Resource { uri, text: "of a file".into() }],
            What::Link => vec![text(&words), Content::ResourceLink { uri, name: "a file".into() }],
        };
        let origin = match by {
            Speaker::Person => Origin::Person,
            Speaker::Recipe => Origin::Recipe { recipe: "review".into(), typed: "/review".into() },
            Speaker::Queue => {
                let message = self.message(content.clone());
                let entry = self.append(Change::Queued { message: message.clone() });
                self.append(Change::Said { message, origin: Origin::Queue { entry } });
                return;
            }
            Speaker::Hook => Origin::Hook { hook: "lint".into() },
            Speaker::Context => Origin::Context { by: "style".into() },
            Speaker::Instructions => Origin::Instructions { path: "/w/AGENTS.md".into() },
        };
        self.say(origin, content);
    }

    fn say(&mut self, origin: Origin, content: Vec<Content>) {
        let message = self.message(content);
        self.append(Change::Said { message, origin });
    }

    fn reply(&mut self, reply: Reply) -> Checked {
        self.finish_calls(OutcomeStatus::Completed);
        if self.thread.view().ends_with_agent() || self.thread.view().is_empty() {
            let words = self.words(3);
            self.say(Origin::Person, vec![text(&words)]);
        }
        if self.thread.frame().is_none() {
            self.append(Change::Framed { system: self.system.clone(), tools: self.tools.clone() });
        }
        let (encoded, _) = self.write()?;
        let Sent { messages, body } = self.look_at(&encoded)?;
        let endpoint = self.endpoints[self.chosen].clone();
        let (parts, signatures) = self.parts(&endpoint, reply);
        let frame = frame_of(&body).map(Value::clone);
        self.service.seal(endpoint.wire, &endpoint.name.0, body, &parts);
        let stream = service::stream(endpoint.wire, &parts);
        let mut decoding = Decoding::new(endpoint.clone(), encoded.prefix, None);
        let mut events = Vec::new();
        decoding.push(stream.as_bytes(), &mut events).map_err(|error| format!("{error:?}: {stream}"))?;
        decoding.end(&mut events).map_err(|error| format!("{error:?}: {stream}"))?;
        let mut collector = Collector::new(&endpoint.name);
        events.into_iter().for_each(|event| drop(collector.feed(event)));
        let message = self.message(collector.finish().content);
        let layers = self.holding();
        let seq = self.append(Change::Replied { message, model: endpoint.name, usage: None, cut: None });
        self.answered.push(Answered { endpoint: self.chosen, seq, layers, frame, messages, signatures });
        Ok(())
    }

    /// What the model says, and the signatures that must come back.
    fn parts(&mut self, endpoint: &Endpoint, reply: Reply) -> (Vec<Part>, Vec<String>) {
        let mut signatures = Vec::new();
        let mut parts = Vec::new();
        let words = self.words(reply.words);
        let number = self.number;
        let mut think = |parts: &mut Vec<Part>, hidden: bool, comes_back: bool| {
            let signature = format!("signature{number}x{}end", parts.len());
            if comes_back {
                signatures.push(signature.clone());
            }
            let hidden = hidden && endpoint.wire == WireFormat::AnthropicMessages;
            parts.push(if hidden { Part::Hidden(signature) } else { Part::Thought(signature) });
        };
        let gives_signatures = endpoint.wire != WireFormat::OpenAiChat;
        match reply.thinks {
            Thinks::No => {}
            Thinks::Once | Thinks::Twice => think(&mut parts, false, gives_signatures),
            Thinks::Hidden => think(&mut parts, true, gives_signatures),
        }
        if reply.blank {
            parts.push(Part::Text("\n\n".into()));
        }
        if reply.text {
            parts.push(Part::Text(words));
        }
        if reply.thinks == Thinks::Twice && reply.calls > 0 {
            // What it stands behind is not whole any more where a blank text is refused, and Gemini gives out
            // one signature a step.
            let comes_back = match endpoint.wire {
                WireFormat::AnthropicMessages => !reply.blank,
                WireFormat::OpenAiResponses => true,
                WireFormat::OpenAiChat | WireFormat::Gemini => false,
            };
            think(&mut parts, false, comes_back);
        }
        for at in 0..reply.calls {
            let input = json!({"path": format!("/w/{number}/{at}"), "lines": [at, 1.5, null]});
            parts.push(Part::Call { id: format!("call_{number}_{at}"), input });
        }
        (parts, signatures)
    }

    fn finish_calls(&mut self, status: OutcomeStatus) {
        for call in self.thread.open_calls().to_vec() {
            self.finish(call, Shown::Text, status, 3);
        }
    }

    fn finish(&mut self, call: CallId, what: Shown, status: OutcomeStatus, words: usize) {
        let words = self.words(words);
        let mut outcome = ToolOutcome::text(call, status, words.clone());
        match what {
            Shown::Text => {}
            Shown::Cut => {
                outcome.whole = Some(format!("{words} {}", "and all of the rest ".repeat(50)));
            }
            Shown::Blank => outcome.content = vec![OutcomeContent::Text { text: " ".into() }],
            Shown::Image => {
                outcome
                    .content
                    .push(OutcomeContent::Image { mime_type: "image/png".into(), data: PNG.into() });
            }
            Shown::Document => {
                let (mime_type, data) = ("application/pdf".to_owned(), PDF.to_owned());
                outcome.content = vec![OutcomeContent::Document { mime_type, data, name: None }];
            }
        }
        self.append(Change::ToolFinished { outcome });
    }

    fn edit(&mut self, edits: &[(Op, usize)], stale: bool) -> Checked {
        let parts: Vec<_> = self.thread.view().pieces().iter().map(|(part, _)| *part).collect();
        let pinned = self.thread.pinned();
        let mut made = Vec::new();
        for (op, pick) in edits {
            let Some(at) = picked(&parts, *pick).copied() else { return Ok(()) };
            let content = vec![text(&self.words(5))];
            made.push(match op {
                Op::Mask => Edit::Mask { at, note: "a note".into() },
                Op::Drop => Edit::Drop { at },
                Op::Replace => Edit::Replace { at, content },
                Op::Append(role) => {
                    Edit::Append { role: *role, message: Message { id: MessageId(0), content } }
                }
                Op::Pin => Edit::Pin { at },
                Op::Unpin => Edit::Unpin { at: picked(&pinned, *pick).copied().unwrap_or(at) },
            });
        }
        let revision = self.thread.view().revision();
        if stale && revision > Seq(0) {
            let next = self.thread.next_message();
            if edits::check(&self.thread, Seq(revision.0 - 1), next, &made).is_ok() {
                return Err("edits of an older view were taken".to_owned());
            }
            self.count("stale edits refused");
            return Ok(());
        }
        self.commit_edits(made, "h");
        Ok(())
    }

    fn commit_edits(&mut self, edits: Vec<Edit>, by: &str) {
        let (revision, next) = (self.thread.view().revision(), self.thread.next_message());
        let Ok(edits) = edits::check(&self.thread, revision, next, &edits) else {
            return self.count("edits refused");
        };
        let change = Change::Edited { by: by.to_owned(), edits };
        let mut trial = self.thread.clone();
        trial.apply(Arc::new(Entry { seq: trial.next_seq(), at: 0, change: change.clone() }));
        let pins_max = self.budget(PINS_WINDOW).pins_max;
        if compaction::pins_too_large(&self.ruler(), &trial, pins_max).is_some() {
            return self.count("pins refused as too large");
        }
        self.count("edits made");
        self.append(change);
    }

    fn mutate(&mut self, roles: &[Role], kept: usize, stale: bool) -> Checked {
        self.finish_calls(OutcomeStatus::Completed);
        let mut spoken = Vec::new();
        for role in roles {
            let message = Message { id: MessageId(0), content: vec![text(&self.words(8))] };
            spoken.push(Spoken { role: *role, message });
        }
        let (mut revision, next) = (self.thread.view().revision(), self.thread.next_message());
        if stale && revision > Seq(0) {
            revision.0 -= 1;
        }
        match edits::mutation(&self.thread, revision, next, spoken, kept) {
            Ok(_) if revision != self.thread.view().revision() => {
                return Err("a history for an older view was taken".to_owned());
            }
            Ok(replacement) => {
                let ruler = self.ruler();
                let change = compaction::mutated(&ruler, &self.thread, replacement, "h".into(), u64::MAX)?;
                let Change::Mutated { tokens_after, .. } = change else {
                    unreachable!("a mutation was made")
                };
                self.append(change);
                self.is_counted(tokens_after)?;
                self.count("mutations");
            }
            Err(_) => self.count("mutations refused"),
        }
        Ok(())
    }

    fn compact(&mut self, asked: &Compaction) -> Checked {
        self.finish_calls(OutcomeStatus::Completed);
        let (ruler, budget) = (self.ruler(), self.budget(asked.window));
        self.ledger.follow(&self.thread);
        let wish = Wish {
            trigger: asked.trigger,
            keep: asked.keep,
            focus: asked.focus.then(|| "the tests".to_owned()),
            summary: asked.wanted,
        };
        let before = ruler.view(self.thread.view());
        let change = match compaction::decide(&ruler, &self.thread, &budget, &wish) {
            Decision::Nothing(_) => {
                self.count("compactions without a need");
                return Ok(());
            }
            Decision::Prune(masks) => compaction::pruned(&ruler, &self.thread, masks, asked.trigger),
            Decision::Summarise(plan) => {
                let text = asked.summary.map(|words| self.words(words));
                let written = Written { text, ..Written::default() };
                let id = self.thread.next_message();
                let (thread, ledger) = (&self.thread, &self.ledger);
                match compaction::compacted(&ruler, thread, ledger, &budget, &plan, id, written) {
                    Ok(change) => change,
                    Err(_) => {
                        self.count("compactions that gain nothing");
                        return Ok(());
                    }
                }
            }
        };
        let (what, after, trigger) = match &change {
            Change::Compacted { tokens_after, trigger, .. } => ("compactions", *tokens_after, *trigger),
            Change::Pruned { tokens_after, trigger, .. } => ("prunings", *tokens_after, *trigger),
            other => return Err(format!("a compaction is {}", other.kind())),
        };
        let is_summary = what == "compactions";
        self.append(change);
        self.count(what);
        self.count(match trigger {
            epitome::thread::Trigger::Manual => "compactions or prunings by hand",
            epitome::thread::Trigger::Overflow => "compactions or prunings by an overflow",
            epitome::thread::Trigger::Threshold => "compactions or prunings by the threshold",
            epitome::thread::Trigger::Hook => "compactions or prunings by a hook",
            epitome::thread::Trigger::Must => "compactions or prunings that must be",
        });
        self.is_counted(after)?;
        if is_summary && after * 10 > before * 9 {
            return Err(format!("a compaction from {before} to {after} tokens"));
        }
        self.fits(&budget, after)?;
        if is_summary && asked.keep == Keep::Nothing {
            self.gains_nothing_more(&budget, &wish)?;
        }
        Ok(())
    }

    /// What was compacted as a whole is not compacted again.
    fn gains_nothing_more(&mut self, budget: &Budget, wish: &Wish) -> Checked {
        self.ledger.follow(&self.thread);
        let ruler = self.ruler();
        let plan = match compaction::decide(&ruler, &self.thread, budget, wish) {
            Decision::Nothing(_) => return Ok(self.count("compactions that are final")),
            Decision::Prune(masks) => return Err(format!("behind a compaction {masks:?} is cut")),
            Decision::Summarise(plan) => plan,
        };
        let (id, written) = (self.thread.next_message(), Written::default());
        match compaction::compacted(&ruler, &self.thread, &self.ledger, budget, &plan, id, written) {
            Ok(_) => Err("a compacted view is compacted again".to_owned()),
            Err(_) => Ok(self.count("compactions that are final")),
        }
    }

    /// The tokens that a change says are left are those of the view.
    fn is_counted(&mut self, told: u64) -> Checked {
        let counted = self.ruler().view(self.thread.view());
        if counted != told {
            return Err(format!("the change tells {told} tokens, the view takes {counted}"));
        }
        Ok(())
    }

    fn fits(&mut self, budget: &Budget, after: u64) -> Checked {
        let what =
            if after <= budget.room() { "compactions that fit" } else { "compactions that do not fit" };
        self.count(what);
        Ok(())
    }

    fn undo(&mut self, entry: Seq) {
        self.count("layers undone");
        if entry != self.newest().seq {
            self.count("layers undone with something behind them");
        }
        self.append(Change::Undone { entry });
    }

    fn redo(&mut self, entry: Seq) {
        self.count("layers redone");
        self.append(Change::Redone { entry });
    }

    /// A build, or a person's settings, of which one thread was made with the first alone.
    fn change_build(&mut self, pick: usize) {
        self.system = format!("You are an agent of build {pick}.");
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
        let tool =
            |name: &str| ToolSpec { name: name.into(), description: "Looks.".into(), schema: schema.clone() };
        self.tools = vec![tool("look")];
        self.tools.extend((0..pick % 3).map(|at| tool(&format!("look_{at}"))));
        self.thought =
            [ThoughtLevel::Medium, ThoughtLevel::Off, ThoughtLevel::Low, ThoughtLevel::Max][pick % 4];
    }

    fn aside(&mut self, pick: usize) {
        let message = self.thread.next_message();
        let change = match pick % 6 {
            0 => Change::Noted { message, text: "Compacted.".into() },
            1 => Change::Titled { title: format!("Title {pick}") },
            2 => Change::Planned {
                steps: vec![PlanStep {
                    content: "do".into(),
                    status: PlanStatus::Pending,
                    priority: PlanPriority::Medium,
                }],
            },
            3 => Change::GoalSet { goal: (pick % 4 != 0).then(|| format!("goal {pick}")) },
            4 => Change::Hooked { event: "turn_end".into(), runs: Vec::new() },
            _ => {
                self.finish_calls(OutcomeStatus::Interrupted);
                let (reason, usage) = (StopReason::EndTurn, Usage::default());
                Change::TurnEnded { reason, usage, quiet_hooks: 0 }
            }
        };
        self.append(change);
    }

    /// The log is read from its lines by a process that knows nothing else, and what ran is lost.
    fn kill(&mut self) -> Checked {
        let mut read = Vec::with_capacity(self.thread.entries().len());
        for entry in self.thread.entries() {
            let line = checks::line(entry);
            let again: Entry = serde_json::from_str(&line).map_err(|error| format!("{error}: {line}"))?;
            if again != **entry || checks::line(&again) != line {
                return Err(format!("another entry is read than was written: {line}"));
            }
            read.push(Arc::new(again));
        }
        let reloaded = Thread::replay(read).map_err(|error| error.to_string())?;
        let (before, after) = (state_of(&self.thread), state_of(&reloaded));
        if before != after {
            return Err(format!("before: {before}\nreloaded: {after}"));
        }
        checks::same_view(self.thread.view(), reloaded.view())?;
        self.thread = reloaded;
        self.encoding = Encoding::default();
        self.ledger = Ledger::default();
        self.count("kills");
        self.finish_calls(OutcomeStatus::Interrupted);
        Ok(())
    }

    // ── What must hold ─────────────────────────────────────────────────────────────────────────

    pub fn check(&mut self) -> Checked {
        self.count("steps");
        let is_rewritten = self.thread.view().revision() != self.looked_at;
        if is_rewritten {
            self.looked_at = self.thread.view().revision();
            let entries = self.thread.entries().iter().map(|entry| entry.seq);
            self.undone = entries.filter(|seq| self.thread.is_undone(*seq)).collect();
        }
        checks::same_view(self.thread.view(), &View::fold(self.thread.entries(), &self.undone))?;
        if is_rewritten && !self.undone.is_empty() {
            self.leaves_no_trace()?;
        }
        let pairs = checks::paired(self.thread.view(), self.thread.open_calls())?;
        self.count_times("pairs", pairs);
        let (looked, quoted) = checks::pins(&self.thread)?;
        self.count_times("pins", looked);
        self.count_times("pins that are quoted", quoted);
        if let Some(held) = checks::last_request(&self.thread)? {
            self.count(match held {
                Held::AsItIs => "last requests as they are",
                Held::Quoted => "last requests that are quoted",
                Held::InPart => "last requests that are quoted in part",
            });
        }
        // Only where the model is to speak is it asked.
        let is_asked = !self.thread.view().ends_with_agent() && !self.thread.view().is_empty();
        if is_asked && self.thread.frame().is_some() {
            let (encoded, novelty) = self.write()?;
            match novelty {
                Novelty::New => drop(self.look_at(&encoded)?),
                Novelty::SentBefore => {}
            }
        }
        Ok(())
    }

    /// A layer that is taken back is as if it had never been.
    fn leaves_no_trace(&mut self) -> Checked {
        let is_there = |entry: &&Arc<Entry>| {
            let is_switch = matches!(entry.change, Change::Undone { .. } | Change::Redone { .. });
            !is_switch && !self.undone.contains(&entry.seq)
        };
        let entries: Vec<Arc<Entry>> = self.thread.entries().iter().filter(is_there).cloned().collect();
        let never = View::fold(&entries, &HashSet::new());
        let lines =
            |view: &View| -> Vec<String> { view.entries().iter().map(|entry| checks::line(entry)).collect() };
        let same = self.thread.view().entries().len() == never.entries().len()
            && self
                .thread
                .view()
                .entries()
                .iter()
                .zip(never.entries())
                .all(|(a, b)| Arc::ptr_eq(a, b) || a == b);
        if !same {
            return Err(format!("{:#?} is left of {:#?}", lines(self.thread.view()), lines(&never)));
        }
        self.count("views without a trace of what is undone");
        Ok(())
    }

    /// Writes a request for the chosen model, also anew.
    fn write(&mut self) -> Checked<(Encoded, Novelty)> {
        let endpoint = &self.endpoints[self.chosen];
        let (system, tools) = self.thread.frame().expect("it is framed");
        let frame = self.thread.frame_entry().expect("it is framed").seq;
        let revision = self.thread.view().revision();
        let request = Request {
            system,
            tools,
            items: self.thread.view().items(),
            thought: self.thought,
            max_output: 32_000,
            cache_key: "s",
            basis: Some(Basis { frame, revision }),
        };
        let encoded = self.encoding.encode(endpoint, &request, Purpose::Reply);
        let anew = Encoding::default().encode(endpoint, &request, Purpose::Reply);
        checks::same_request(&encoded, &anew)?;
        self.count("requests");
        let novelty = self.is_what_it_was(encoded.bytes())?;
        Ok((encoded, novelty))
    }

    /// Looks at a request for the chosen model as its service does.
    fn look_at(&mut self, encoded: &Encoded) -> Checked<Sent> {
        self.count("requests looked at");
        let endpoint = self.endpoints[self.chosen].clone();
        let text = String::from_utf8(encoded.bytes()).map_err(|error| error.to_string())?;
        let body: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;

        let problems = valid::problems(endpoint.wire, &endpoint.model, &body);
        if !problems.is_empty() {
            return Err(format!("{} refuses: {problems:#?}\n{text}", endpoint.name));
        }
        let taken_back = self
            .service
            .check(endpoint.wire, &endpoint.name.0, &body)
            .map_err(|why| format!("{}: {why}\n{text}", endpoint.name))?;
        self.count_times("reasoning taken back", taken_back.len() as u64);
        let unmarked = without_marks(&text);
        let messages = checks::messages(endpoint.wire, &unmarked);
        let goes_on = self.goes_on(messages, &body, &taken_back);
        goes_on.map_err(|why| format!("{}: {why}", endpoint.name))?;
        Ok(Sent { messages: messages.to_owned(), body })
    }

    /// What was sent and still holds is sent again as it was, and the reasoning of the reply to it too.
    fn goes_on(&mut self, now: &str, body: &Value, taken_back: &HashSet<String>) -> Checked {
        let layers = self.holding();
        let (mut sent_again, mut continued, mut after_undo) = (0, 0, 0);
        for answered in self.answered.iter().rev().filter(|answered| answered.endpoint == self.chosen) {
            let (old, new): (Vec<Seq>, Vec<Seq>) = layers.iter().partition(|layer| **layer < answered.seq);
            let rewrites = |layer: &Seq| self.thread.entries()[layer.0 as usize].change.rewrites();
            if old != answered.layers || new.iter().any(rewrites) {
                continue;
            }
            if let Some(lost) = answered.signatures.iter().find(|signature| !taken_back.contains(*signature))
            {
                return Err(format!("{lost} is not sent again: {now}"));
            }
            sent_again += answered.signatures.len() as u64;
            // Each one begins with those before it.
            if continued == 0 {
                checks::continues(&answered.messages, now)?;
                if answered.frame.iter().ne(frame_of(body)) {
                    return Err(format!("system text or tools are not those of {}: {body}", answered.seq));
                }
                continued += 1;
                after_undo += u64::from(answered.seq < self.thread.view().revision());
            }
        }
        self.count_times("reasoning sent again", sent_again);
        self.count_times("requests that go on", continued);
        self.count_times("requests that go on after an undo or redo", after_undo);
        Ok(())
    }

    /// The same state gives the same bytes, whatever was done and undone in between.
    fn is_what_it_was(&mut self, bytes: Vec<u8>) -> Checked<Novelty> {
        let in_view = |entry: &&Arc<Entry>| {
            matches!(
                entry.change,
                Change::Said { .. }
                    | Change::Replied { .. }
                    | Change::ToolFinished { .. }
                    | Change::ThinkingDropped { .. }
            )
        };
        let newest = self.thread.entries().iter().rev().find(in_view).map(|entry| entry.seq);
        let state = State {
            layers: self.holding(),
            newest: newest.unwrap_or_default(),
            endpoint: self.chosen,
            thought: self.thought as u8,
        };
        let revision = self.thread.view().revision();
        match self.sent.get(&state) {
            Some((_, before)) if *before != bytes => {
                let text = String::from_utf8_lossy;
                Err(format!("of {state:?}\nbefore: {}\nnow: {}", text(before), text(&bytes)))
            }
            Some((at, _)) => {
                let is_brought_back = *at < revision;
                self.count("states that were sent before");
                self.count_times("states brought back by undo or redo", u64::from(is_brought_back));
                Ok(Novelty::SentBefore)
            }
            None => {
                self.sent.insert(state, (revision, bytes));
                Ok(Novelty::New)
            }
        }
    }

    // ── What it is made of ─────────────────────────────────────────────────────────────────────

    /// The layers that hold; what was thought and is left out counts as one.
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
        Ruler::of(Some(&self.endpoints[self.chosen].name))
    }

    fn budget(&self, window: u64) -> Budget {
        let settings = Settings::default().compaction;
        let reserve = u64::from(settings.output_reserve).min(window / 4);
        Budget::of(&settings, window, reserve, self.ruler().frame_of(&self.thread))
    }

    fn append(&mut self, change: Change) -> Seq {
        let seq = self.thread.next_seq();
        self.thread.apply(Arc::new(Entry { seq, at: 0, change }));
        seq
    }

    fn message(&self, content: Vec<Content>) -> Message {
        Message { id: self.thread.next_message(), content }
    }

    /// A text like no other, of about so many words.
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

/// What is told of each entry where something went wrong.
const STORY_LINE_BYTES: usize = 400;

/// The smallest window in which pins are made, in tokens.
const PINS_WINDOW: u64 = 8_000;

fn text(text: &str) -> Content {
    Content::Text { text: text.to_owned() }
}

fn picked<T>(from: &[T], pick: usize) -> Option<&T> {
    from.get(pick.checked_rem(from.len())?)
}

/// Cache marks move, and are no part of what was said.
fn without_marks(text: &str) -> Cow<'_, str> {
    const MARK: &str = r#","cache_control":{"type":"ephemeral"}"#;
    if text.contains("cache_control") { text.replace(MARK, "").into() } else { text.into() }
}

/// The system text and the tools, in whichever format.
fn frame_of(body: &Value) -> [&Value; 3] {
    let system = match &body["system"][0]["text"] {
        Value::Null => &body["instructions"],
        text => text,
    };
    [system, &body["systemInstruction"], &body["tools"]]
}

/// All that a thread says beside its view.
fn state_of(thread: &Thread) -> String {
    let beside =
        (thread.title(), thread.goal(), thread.plan(), thread.model(), thread.mode(), thread.rules());
    let waiting = (thread.queued(), thread.open_calls(), thread.in_turn(), thread.next_message());
    let view = (thread.pins(), thread.view().revision(), thread.frame());
    format!("{beside:?} {waiting:?} {view:?} {:?}", thread.spent())
}
