//! Conversations in which anything may happen, compacted again and again: the result fits, is smaller, is taken by
//! every service, and holds what must not be lost.
//!
//! `EPITOME_HISTORIES=100000 cargo test --release --test compaction_random` plays more of them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use epitome::compaction::ledger::Ledger;
use epitome::compaction::{
    Budget, Decision, Keep, NO_GAIN, Wish, Written, compacted, decide, due, pieces, pins_too_large, preview,
    pruned,
};
use epitome::config::{Settings, WireFormat};
use epitome::provider::endpoint::{Endpoint, resolve};
use epitome::provider::wire::encoding::Encoding;
use epitome::provider::wire::{Purpose, valid};
use epitome::provider::{Basis, Request};
use epitome::thread::{
    CallId, Card, Change, Content, Edit, Entry, FORMAT_VERSION, Message, MessageId, ModelName, Native,
    Origin, OutcomeContent, OutcomeStatus, Part, Role, Seq, SessionId, Spoken, ThoughtLevel, Thread,
    ToolCall, ToolOutcome, ToolSpec, Trigger, edits,
};
use epitome::tokens::Ruler;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

/// How many conversations are played where nothing else is asked for.
const HISTORIES: u32 = 2_000;

fn histories() -> u32 {
    let asked = std::env::var("EPITOME_HISTORIES").ok();
    asked.map_or(HISTORIES, |asked| asked.parse().expect("EPITOME_HISTORIES is a number"))
}

/// A pixel, as an image of a few tokens.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// What texts are made of.
const WORDS: &str = "fn walnut(it: &str) -> u64 {\n    it.len() as u64 // Wörter, 港口的灯光, 🦀🦀 and then more\n}\n\
                     error[E0308]: mismatched types in src/main.rs:17:4, expected `u64`, found `usize`\n";

/// A text of about so many bytes that is like no other.
fn text(number: usize, bytes: usize) -> String {
    let mut text = format!("n{number}. ");
    while text.len() < bytes {
        text.push_str(WORDS);
    }
    text.truncate(text.floor_char_boundary(bytes.max(8)));
    text
}

#[derive(Clone, Copy, Debug)]
enum Attached {
    Nothing,
    Image,
    Document,
    File,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Person,
    Recipe,
    Hook,
    Context,
    Instructions(usize),
}

#[derive(Clone, Debug)]
enum Step {
    Said(By, usize, Attached),
    /// Text of so many bytes, and calls.
    Replied(usize, usize, bool),
    /// Outcomes of the open calls, of so many bytes, in another order than the calls; some are forgotten.
    Outcomes(usize, Attached, bool),
    Masked(Index),
    Dropped(Index),
    Replaced(Index, usize),
    Appended(usize),
    Pinned(Index),
    Unpinned(Index),
    Mutated(usize, usize),
    Goal(usize),
    Undone,
    Redone(Index),
    ThinkingDropped,
    Compacted(Trigger, Keep, Option<usize>, bool),
}

fn bytes() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..200usize, 4 => 200..2_000usize, 2 => 2_000..8_000usize, 1 => 8_000..40_000usize]
}

fn step() -> impl Strategy<Value = Step> {
    let attached = || {
        prop_oneof![
            6 => Just(Attached::Nothing),
            1 => Just(Attached::Image),
            1 => Just(Attached::Document),
            1 => Just(Attached::File),
        ]
    };
    let by = prop_oneof![
        6 => Just(By::Person),
        1 => Just(By::Recipe),
        1 => Just(By::Hook),
        1 => Just(By::Context),
        1 => (0..3usize).prop_map(By::Instructions),
    ];
    let trigger = prop_oneof![
        Just(Trigger::Manual),
        Just(Trigger::Overflow),
        Just(Trigger::Threshold),
        Just(Trigger::Hook),
        Just(Trigger::Must),
    ];
    let keep = prop_oneof![
        3 => Just(Keep::Nothing),
        1 => (0..6usize).prop_map(Keep::Messages),
        3 => Just(Keep::Ratio(0.4)),
        1 => (0..60u64).prop_map(|entry| Keep::From(Seq(entry))),
    ];
    let summary = prop_oneof![1 => Just(None), 3 => bytes().prop_map(Some)];
    prop_oneof![
        4 => (by, bytes(), attached()).prop_map(|(by, bytes, attached)| Step::Said(by, bytes, attached)),
        8 => (bytes(), 0..4usize, any::<bool>())
            .prop_map(|(bytes, calls, thinking)| Step::Replied(bytes, calls, thinking)),
        7 => (bytes(), attached(), prop::bool::weighted(0.1))
            .prop_map(|(bytes, attached, forget)| Step::Outcomes(bytes, attached, forget)),
        1 => any::<Index>().prop_map(Step::Masked),
        1 => any::<Index>().prop_map(Step::Dropped),
        1 => (any::<Index>(), bytes()).prop_map(|(at, bytes)| Step::Replaced(at, bytes)),
        1 => bytes().prop_map(Step::Appended),
        1 => any::<Index>().prop_map(Step::Pinned),
        1 => any::<Index>().prop_map(Step::Unpinned),
        1 => (1..4usize, 0..4usize).prop_map(|(messages, kept)| Step::Mutated(messages, kept)),
        1 => (0..2_000usize).prop_map(Step::Goal),
        1 => Just(Step::Undone),
        1 => any::<Index>().prop_map(Step::Redone),
        1 => Just(Step::ThinkingDropped),
        4 => (trigger, keep, summary, any::<bool>()).prop_map(|(trigger, keep, summary, only_summary)| {
            Step::Compacted(trigger, keep, summary, only_summary)
        }),
    ]
}

struct History {
    thread: Thread,
    ledger: Ledger,
    window: u64,
    /// For texts and ids that are like no other.
    number: usize,
}

impl History {
    fn new(window: u64) -> History {
        let session = SessionId("s_00000000000000000000".into());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
        let entry = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
        let thread = Thread::replay([entry]).expect("an opened thread");
        let mut history = History { thread, ledger: Ledger::default(), window, number: 0 };
        let schema = json!({"type": "object"});
        let names = ["look", "recall"];
        let tools = names.map(|name| ToolSpec {
            name: name.into(),
            description: "Looks.".into(),
            schema: schema.clone(),
        });
        history.append(Change::Framed { system: "You are an agent.".into(), tools: tools.into() });
        history.said(By::Person, 20, Attached::Nothing);
        history
    }

    fn append(&mut self, change: Change) {
        let seq = self.thread.next_seq();
        self.thread.apply(Arc::new(Entry { seq, at: 0, change }));
    }

    fn text(&mut self, bytes: usize) -> String {
        self.number += 1;
        text(self.number, bytes)
    }

    fn said(&mut self, by: By, bytes: usize, attached: Attached) {
        let text = self.text(bytes);
        let origin = match by {
            By::Person => Origin::Person,
            By::Recipe => {
                Origin::Recipe { recipe: "review".into(), typed: format!("/review {}", self.number) }
            }
            By::Hook => Origin::Hook { hook: "h".into() },
            By::Context => Origin::Context { by: "h".into() },
            By::Instructions(file) => Origin::Instructions { path: format!("/w/{file}/AGENTS.md").into() },
        };
        let mut content = vec![Content::Text { text }];
        content.extend(match attached {
            Attached::Nothing => None,
            Attached::Image => {
                Some(Content::Image { mime_type: "image/png".into(), data: PNG.into(), uri: None })
            }
            Attached::Document => Some(Content::Document {
                mime_type: "application/pdf".into(),
                data: PNG.repeat(20),
                name: Some("paper.pdf".into()),
            }),
            Attached::File => Some(Content::Resource { uri: "file:///w/a.rs".into(), text: WORDS.into() }),
        });
        let message = Message { id: self.thread.next_message(), content };
        self.append(Change::Said { message, origin });
    }

    fn replied(&mut self, bytes: usize, calls: usize, thinking: bool) {
        let text = self.text(bytes.max(1));
        let mut content = Vec::new();
        if thinking {
            let data = json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"});
            let native = Native { provider: "anthropic".into(), model: "claude-sonnet-5-5".into(), data };
            content.push(Content::Thinking { text: "hm".into(), native: Some(native) });
        }
        content.push(Content::Text { text });
        content.extend((0..calls).map(|at| {
            let name = if (self.number + at) % 5 == 0 { "recall" } else { "look" };
            Content::Call(ToolCall {
                id: CallId(format!("call_{}_{at}", self.number)),
                name: name.into(),
                input: json!({"path": format!("/w/src/{at}.rs")}),
                card: Card::default(),
            })
        }));
        let message = Message { id: self.thread.next_message(), content };
        let model = ModelName("anthropic/claude-sonnet-5-5".into());
        self.append(Change::Replied { message, model, usage: None, cut: None });
    }

    fn outcomes(&mut self, bytes: usize, attached: Attached, forget: bool) {
        let mut calls = self.thread.open_calls().to_vec();
        calls.reverse();
        if forget {
            calls.pop();
        }
        for call in calls {
            let mut outcome = ToolOutcome::text(call, OutcomeStatus::Completed, self.text(bytes.max(1)));
            match attached {
                Attached::Nothing => {}
                Attached::Image => outcome
                    .content
                    .push(OutcomeContent::Image { mime_type: "image/png".into(), data: PNG.into() }),
                Attached::Document => outcome.content.push(OutcomeContent::Document {
                    mime_type: "application/pdf".into(),
                    data: PNG.repeat(20),
                    name: None,
                }),
                Attached::File => outcome.whole = Some(self.text(50_000)),
            }
            self.append(Change::ToolFinished { outcome });
        }
    }

    /// A part of the view.
    fn part(&self, at: &Index) -> Option<Part> {
        let pieces = self.thread.view().pieces();
        (!pieces.is_empty()).then(|| at.get(&pieces).0)
    }

    fn edit(&mut self, edit: Edit) {
        let (revision, first) = (self.thread.view().revision(), self.thread.next_message());
        if let Ok(edits) = edits::check(&self.thread, revision, first, &[edit]) {
            self.append(Change::Edited { by: "h".into(), edits });
        }
    }

    fn budget(&self) -> Budget {
        let frame = Ruler::of(None).frame_of(&self.thread);
        Budget::of(&Settings::default().compaction, self.window, (self.window / 4).min(16_384), frame)
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Outcomes(bytes, attached, forget) => self.outcomes(*bytes, *attached, *forget),
            // What else happens in the middle of a round are edits by hooks and compactions.
            Step::Said(..) | Step::Replied(..) | Step::Mutated(..) | Step::Appended(_) => {
                self.outcomes(100, Attached::Nothing, false);
            }
            _ => {}
        }
        match step {
            Step::Said(by, bytes, attached) => self.said(*by, *bytes, *attached),
            Step::Replied(bytes, calls, thinking) => {
                if self.thread.view().is_empty() || self.thread.view().ends_with_agent() {
                    self.said(By::Person, 10, Attached::Nothing);
                }
                self.replied(*bytes, *calls, *thinking);
            }
            Step::Outcomes(..) => {}
            Step::Masked(at) => {
                if let Some(at) = self.part(at) {
                    self.edit(Edit::Mask { at, note: "secret".into() });
                }
            }
            Step::Dropped(at) => {
                if let Some(at) = self.part(at) {
                    self.edit(Edit::Drop { at });
                }
            }
            Step::Replaced(at, bytes) => {
                let content = vec![Content::Text { text: self.text(*bytes) }];
                if let Some(at) = self.part(at) {
                    self.edit(Edit::Replace { at, content });
                }
            }
            Step::Appended(bytes) => {
                let content = vec![Content::Text { text: self.text(*bytes) }];
                let message = Message { id: self.thread.next_message(), content };
                self.edit(Edit::Append { role: Role::User, message });
            }
            Step::Pinned(at) => {
                if let Some(at) = self.part(at) {
                    let mut trial = self.thread.clone();
                    let change = Change::Edited { by: "h".into(), edits: vec![Edit::Pin { at }] };
                    trial.apply(Arc::new(Entry { seq: trial.next_seq(), at: 0, change }));
                    let too_large = pins_too_large(&Ruler::of(None), &trial, self.budget().pins_max);
                    if too_large.is_none() {
                        self.edit(Edit::Pin { at });
                    }
                }
            }
            Step::Unpinned(at) => {
                let pinned = self.thread.pinned();
                if !pinned.is_empty() {
                    self.edit(Edit::Unpin { at: *at.get(&pinned) });
                }
            }
            Step::Mutated(messages, kept) => {
                let spoken: Vec<Spoken> = (0..*messages)
                    .map(|_| Spoken {
                        role: Role::User,
                        message: Message {
                            id: MessageId(0),
                            content: vec![Content::Text { text: self.text(300) }],
                        },
                    })
                    .collect();
                let (revision, next) = (self.thread.view().revision(), self.thread.next_message());
                if let Ok(made) = edits::mutation(&self.thread, revision, next, spoken, *kept) {
                    let (through, messages) = (made.through, made.messages);
                    let by = "h".to_owned();
                    self.append(Change::Mutated { through, messages, by, tokens_before: 2, tokens_after: 1 });
                }
            }
            Step::Goal(bytes) => {
                let goal = Some(self.text(*bytes));
                self.append(Change::GoalSet { goal });
            }
            Step::Undone => {
                if let Some(entry) = self.thread.last_layer().map(|entry| entry.seq) {
                    self.append(Change::Undone { entry });
                }
            }
            Step::Redone(at) => {
                let undone: Vec<Seq> = self.thread.entries().iter().map(|entry| entry.seq).collect();
                let undone: Vec<Seq> = undone.into_iter().filter(|seq| self.thread.is_undone(*seq)).collect();
                if !undone.is_empty() {
                    self.append(Change::Redone { entry: *at.get(&undone) });
                }
            }
            Step::ThinkingDropped => {
                let through = Seq(self.thread.next_seq().0 - 1);
                self.append(Change::ThinkingDropped { through, why: "it does not fit".into() });
            }
            Step::Compacted(trigger, keep, summary, only_summary) => {
                let wish = Wish { trigger: *trigger, keep: *keep, focus: None, summary: *only_summary };
                self.compact(&wish, *summary)?;
            }
        }
        Ok(())
    }

    fn compact(&mut self, wish: &Wish, summary: Option<usize>) -> Result<(), TestCaseError> {
        self.ledger.follow(&self.thread);
        let (ruler, budget) = (Ruler::of(None), self.budget());
        let before = self.thread.clone();
        let decision = decide(&ruler, &before, &budget, wish);
        let shown = preview(&ruler, &before, &self.ledger, &budget, wish);
        prop_assert_eq!(&shown, &preview(&ruler, &before, &self.ledger, &budget, wish));
        prop_assert_eq!(shown.tokens_before, ruler.view(before.view()));
        if let Some(masks) = due(&ruler, &before, &budget) {
            let Change::Pruned { tokens_before, tokens_after, .. } =
                pruned(&ruler, &before, masks, wish.trigger)
            else {
                unreachable!()
            };
            prop_assert!(tokens_after + 20_000 <= tokens_before, "{tokens_before} to {tokens_after}");
        }
        let change = match decision.clone() {
            Decision::Nothing(_) => {
                let must = wish.trigger == Trigger::Must && ruler.view(before.view()) > budget.room();
                prop_assert!(!must, "what does not fit is compacted");
                return Ok(());
            }
            Decision::Prune(masks) => {
                prop_assert_eq!(&shown.decision, &decision);
                pruned(&ruler, &before, masks, wish.trigger)
            }
            Decision::Summarise(plan) => {
                let id = before.next_message();
                let make = |text: Option<String>| {
                    let written = Written { text, ..Written::default() };
                    compacted(&ruler, &before, &self.ledger, &budget, &plan, id, written)
                };
                let plain = make(None);
                match &plain {
                    Ok(Change::Compacted { summary, tokens_after, .. }) => {
                        prop_assert_eq!(&shown.decision, &decision);
                        prop_assert_eq!(&summary.text(), &shown.carried);
                        prop_assert_eq!(*tokens_after, shown.tokens_after.0);
                        // What was refused is made as small as it can be, by whatever it holds.
                        let is_roomy = wish.trigger != Trigger::Overflow
                            && shown.tokens_after.1 > shown.tokens_after.0
                            && shown.tokens_after.1 * 2 <= budget.room()
                            && shown.tokens_after.1 * 10 <= shown.tokens_before * 9;
                        if let Ok(Change::Compacted { summary: other, .. }) = make(Some("So far.".to_owned()))
                            && is_roomy
                        {
                            prop_assert_eq!(&summary.content[1..], &other.content[1..]);
                        }
                    }
                    Ok(other) => prop_assert!(false, "{} is no compaction", other.kind()),
                    Err(_) => prop_assert!(matches!(shown.decision, Decision::Nothing(_))),
                }
                let text = summary.map(|bytes| self_text(&mut self.number, bytes));
                let made = make(text.clone());
                prop_assert_eq!(&made, &make(text), "the same inputs give the same bytes");
                match made {
                    Ok(change) => change,
                    Err(why) => {
                        let too_long = ruler.view(before.view()) > budget.room();
                        let expected = why.contains("unpin") || why == NO_GAIN && !too_long;
                        prop_assert!(expected, "{why}");
                        return Ok(());
                    }
                }
            }
        };
        self.append(change.clone());
        self.check(&before, &change, &budget, wish)
    }

    fn check(
        &mut self,
        before: &Thread,
        change: &Change,
        budget: &Budget,
        wish: &Wish,
    ) -> Result<(), TestCaseError> {
        let ruler = Ruler::of(None);
        let view = self.thread.view();
        let (was, is) = (ruler.view(before.view()), ruler.view(view));
        match change {
            Change::Compacted { tokens_before, tokens_after, account, summary, masks, .. } => {
                prop_assert_eq!((*tokens_before, *tokens_after), (was, is));
                prop_assert!(is <= budget.room(), "{is} tokens in a room of {}", budget.room());
                match wish.trigger {
                    Trigger::Must | Trigger::Overflow => prop_assert!(is < was),
                    Trigger::Manual | Trigger::Hook | Trigger::Threshold => prop_assert!(is * 10 <= was * 9),
                }
                self.check_kept(before, masks)?;
                self.check_protected(before, &summary.text(), &account.left_out)?;
                let shares = [account.kept, account.masked, account.summarised];
                let entries: u32 = shares.iter().map(|share| share.entries).sum();
                let kept: HashSet<Seq> = view.entries().iter().map(|entry| entry.seq).collect();
                let is_quoted = |seq: &Seq| !kept.contains(seq) && account.quoted.contains(seq);
                let quoted = before.view().entries().iter().filter(|entry| is_quoted(&entry.seq)).count();
                prop_assert_eq!(entries as usize + quoted, before.view().entries().len());
            }
            Change::Pruned { tokens_before, tokens_after, masks, .. } => {
                prop_assert_eq!((*tokens_before, *tokens_after), (was, is));
                prop_assert!(is < was);
                prop_assert_eq!(view.entries().len(), before.view().entries().len());
                self.check_kept(before, masks)?;
            }
            other => prop_assert!(false, "{} is no compaction", other.kind()),
        }
        self.ledger.follow(&self.thread);
        if wish.trigger != Trigger::Overflow && matches!(change, Change::Compacted { .. }) {
            let again = decide(&ruler, &self.thread, budget, &Wish { summary: true, ..wish.clone() });
            prop_assert!(matches!(again, Decision::Nothing(_)), "compacted twice: {again:?}");
        }
        self.check_requests()
    }

    /// What stays behind the message is what it was, but for the masks.
    fn check_kept(&self, before: &Thread, masks: &[epitome::thread::Mask]) -> Result<(), TestCaseError> {
        let masked: HashSet<Seq> = masks.iter().map(|mask| mask.entry).collect();
        let pinned: HashSet<Seq> = before.pinned().iter().map(|part| part.entry).collect();
        let kept: Vec<&Arc<Entry>> = self.thread.view().entries().iter().collect();
        let old = before.view().entries();
        let skipped = usize::from(!kept.is_empty() && kept[0].seq.0 + 1 == self.thread.next_seq().0);
        for (now, then) in kept[skipped..].iter().rev().zip(old.iter().rev()) {
            prop_assert_eq!(now.seq, then.seq);
            if masked.contains(&now.seq) {
                prop_assert!(!pinned.contains(&now.seq), "a pinned part is masked");
            } else {
                prop_assert_eq!(*now, then);
            }
        }
        Ok(())
    }

    fn check_protected(&self, before: &Thread, carried: &str, left_out: &[Seq]) -> Result<(), TestCaseError> {
        let kept: HashSet<Seq> = self.thread.view().entries().iter().map(|entry| entry.seq).collect();
        for (part, pinned) in before.pins() {
            prop_assert!(kept.contains(&part.entry) || carried.contains(&pinned), "{part} is lost");
        }
        let mut newest: BTreeMap<String, &Arc<Entry>> = BTreeMap::new();
        for entry in before.entries() {
            match &entry.change {
                Change::Said { origin: Origin::Instructions { path }, .. } => {
                    newest.insert(path.display().to_string(), entry);
                }
                Change::Said { origin, .. } if origin.is_prompt() => {
                    newest.insert("last request".to_owned(), entry);
                }
                _ => {}
            }
        }
        for (what, entry) in newest {
            let Change::Said { message, origin } = &entry.change else { continue };
            if kept.contains(&entry.seq) || left_out.contains(&entry.seq) || before.is_rewritten(entry.seq) {
                continue;
            }
            let text = message.text();
            let may_be_cut = origin.is_prompt() && text.len() > 512;
            let head = &text[..text.floor_char_boundary(200.min(text.len()))];
            let is_there = if may_be_cut { carried.contains(head) } else { carried.contains(&text) };
            prop_assert!(is_there, "{what} is lost: {text}");
        }
        Ok(())
    }

    /// Every service takes the view.
    fn check_requests(&self) -> Result<(), TestCaseError> {
        if self.thread.view().ends_with_agent() || self.thread.view().is_empty() {
            return Ok(());
        }
        let (system, tools) = self.thread.frame().expect("it is framed");
        let frame = self.thread.frame_entry().expect("it is framed").seq;
        let revision = self.thread.view().revision();
        for endpoint in ENDPOINTS.with(Clone::clone).iter() {
            let request = Request {
                system,
                tools,
                items: self.thread.view().items(),
                thought: ThoughtLevel::Medium,
                max_output: 32_000,
                cache_key: "s",
                basis: Some(Basis { frame, revision }),
            };
            let encoded = Encoding::default().encode(endpoint, &request, Purpose::Reply);
            let body: Value = serde_json::from_slice(&encoded.bytes()).expect("a body is JSON");
            let problems = valid::problems(endpoint.wire, &endpoint.model, &body);
            prop_assert!(problems.is_empty(), "{}: {:#?}", endpoint.name, problems);
        }
        Ok(())
    }
}

fn self_text(number: &mut usize, bytes: usize) -> String {
    *number += 1;
    text(*number, bytes)
}

thread_local! {
    /// A model of each wire format.
    static ENDPOINTS: Arc<Vec<Endpoint>> = Arc::new(endpoints());
}

fn endpoints() -> Vec<Endpoint> {
    let table = [
        ("anthropic/claude-sonnet-5-5", WireFormat::AnthropicMessages),
        ("openai/gpt-6-sol", WireFormat::OpenAiResponses),
        ("openai/gpt-4.1", WireFormat::OpenAiChat),
        ("gemini/gemini-4-argon", WireFormat::Gemini),
    ];
    let env = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"].map(|key| (key.into(), "k".into()));
    let model = |(name, wire): (&str, _)| {
        let endpoint =
            resolve(&ModelName(name.into()), &Settings::default(), &env).expect("all keys are there");
        Endpoint { wire, ..endpoint }
    };
    table.map(model).into()
}

fn window() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => Just(4_096u64),
        4 => Just(8_192),
        3 => Just(32_768),
        1 => Just(200_000),
        1 => Just(1_000_000),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(histories()))]

    #[test]
    fn a_compaction_fits_gains_and_loses_nothing_that_is_protected(
        window in window(),
        later in window(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut history = History::new(window);
        for step in &steps {
            history.take(step)?;
        }
        // Whatever came before, also where the model is another one now: the view fits in the end.
        history.window = later;
        let must = Wish { trigger: Trigger::Must, keep: Keep::Ratio(0.4), focus: None, summary: false };
        history.compact(&must, None)?;
        let pieces = pieces(history.thread.view(), 500, 2_000);
        prop_assert!(pieces.iter().all(|piece| piece.len() <= 2_000));
    }
}
