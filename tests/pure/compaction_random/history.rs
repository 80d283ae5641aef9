//! One conversation, as a log that is built with the library's own functions.

use std::sync::Arc;

use epitome::compaction::{Budget, CompactionRequest, KeptTail, pieces, pins_too_large};
use epitome::config::Settings;
use epitome::thread::{
    CallDisplay, CallId, Change, Content, Entry, FORMAT_VERSION, HistoryMessage, Message, MessageId,
    ModelName, Native, Origin, OutcomeContent, OutcomeStatus, PartId, Role, Seq, SessionId, Thread, ToolCall,
    ToolOutcome, ToolSpec, Trigger, ViewEdit, edits,
};
use epitome::tokens::Ruler;
use serde_json::json;

use super::Counts;
use super::step::{Attached, By, Compaction, Step};

/// An image of one pixel: a few tokens.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// The material of texts: code, other scripts, a user's prohibition, and an error.
const WORDS: &str = "fn walnut(it: &str) -> u64 {\n    it.len() as u64 // Wörter, 港口的灯光, 🦀🦀 and then more\n}\n\
                     Never touch /w/src/keep.rs; the port is 8443.\n\
                     error[E0308]: mismatched types in src/main.rs:17:4, expected `u64`, found `usize`\n";

/// Bytes of a tool's output above which only a part is shown.
const WHOLE_BYTES: usize = 5_000;

/// A unique text of about `bytes` bytes.
fn text(number: usize, bytes: usize) -> String {
    let mut text = format!("n{number}. ");
    if text.len() < bytes {
        text.push_str(&WORDS.repeat((bytes - text.len()).div_ceil(WORDS.len())));
    }
    text.truncate(text.floor_char_boundary(bytes.max(8)));
    text
}

pub struct History {
    pub thread: Thread,
    /// The model's window in tokens.
    window: u64,
    /// Makes texts and ids unique.
    number: usize,
    pub counts: Counts,
}

impl History {
    pub fn new(window: u64) -> History {
        let session = SessionId("s_00000000000000000000".into());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
        let entry = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
        let thread = Thread::replay([entry]).expect("an opened thread");
        let mut history = History { thread, window, number: 0, counts: Counts::new() };
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

    pub fn append(&mut self, change: Change) {
        let seq = self.thread.next_seq();
        self.thread.apply(Arc::new(Entry { seq, at: 0, change }));
    }

    pub fn text(&mut self, bytes: usize) -> String {
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
        let message = Message { id: self.thread.next_message(), content, author: None };
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
            let name = if (self.number + at).is_multiple_of(5) { "recall" } else { "look" };
            Content::Call(ToolCall {
                id: CallId(format!("call_{}_{at}", self.number)),
                name: name.into(),
                input: json!({"path": format!("/w/src/{at}.rs")}),
                card: CallDisplay::default(),
            })
        }));
        let message = Message { id: self.thread.next_message(), content, author: None };
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
                Attached::File => outcome.whole = Some(self.text(WHOLE_BYTES)),
            }
            self.append(Change::ToolFinished { outcome });
        }
    }

    /// A part of the view.
    fn part(&self, pick: usize) -> Option<PartId> {
        let pieces = self.thread.view().pieces();
        picked(&pieces, pick).map(|(part, _)| *part)
    }

    fn edit(&mut self, edit: ViewEdit) {
        let (revision, first) = (self.thread.view().revision(), self.thread.next_message());
        if let Ok(edits) = edits::check(&self.thread, revision, first, &[edit]) {
            self.append(Change::Edited { by: "h".into(), edits });
        }
    }

    /// Performs a step; compactions are checked.
    pub fn take(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Outcomes { bytes, attached, forgets } => self.outcomes(*bytes, *attached, *forgets),
            // In the middle of a round only edits by hooks and compactions are possible.
            Step::Said(..) | Step::Replied { .. } | Step::Mutated { .. } | Step::Appended(_) => {
                self.outcomes(100, Attached::Nothing, false);
            }
            Step::Masked(_)
            | Step::Dropped(_)
            | Step::Replaced(..)
            | Step::Pinned(_)
            | Step::Unpinned(_)
            | Step::Goal(_)
            | Step::Undone
            | Step::Redone(_)
            | Step::ThinkingDropped
            | Step::Compacted(_) => {}
        }
        match step {
            Step::Said(by, bytes, attached) => self.said(*by, *bytes, *attached),
            Step::Replied { bytes, calls, thinks } => {
                if self.thread.view().is_empty() || self.thread.view().ends_with_agent() {
                    self.said(By::Person, 10, Attached::Nothing);
                }
                self.replied(*bytes, *calls, *thinks);
            }
            Step::Outcomes { .. } => {}
            Step::Masked(pick) => {
                if let Some(at) = self.part(*pick) {
                    self.edit(ViewEdit::Mask { at, note: "secret".into() });
                }
            }
            Step::Dropped(pick) => {
                if let Some(at) = self.part(*pick) {
                    self.edit(ViewEdit::Drop { at });
                }
            }
            Step::Replaced(pick, bytes) => {
                let content = vec![Content::Text { text: self.text(*bytes) }];
                if let Some(at) = self.part(*pick) {
                    self.edit(ViewEdit::Replace { at, content });
                }
            }
            Step::Appended(bytes) => {
                let content = vec![Content::Text { text: self.text(*bytes) }];
                let message = Message { id: self.thread.next_message(), content, author: None };
                self.edit(ViewEdit::Append { role: Role::User, message });
            }
            Step::Pinned(pick) => {
                if let Some(at) = self.part(*pick) {
                    self.pin(at);
                }
            }
            Step::Unpinned(pick) => {
                if let Some(at) = picked(&self.thread.pinned(), *pick).copied() {
                    self.edit(ViewEdit::Unpin { at });
                }
            }
            Step::Mutated { messages, kept } => self.mutate(*messages, *kept),
            Step::Goal(bytes) => {
                let goal = Some(self.text(*bytes));
                self.append(Change::GoalSet { goal });
            }
            Step::Undone => {
                if let Some(entry) = self.thread.last_layer().map(|entry| entry.seq) {
                    self.append(Change::Undone { entry });
                    self.count("undone layers");
                }
            }
            Step::Redone(pick) => {
                let undone = self.thread.entries().iter().map(|entry| entry.seq);
                let undone: Vec<Seq> = undone.filter(|seq| self.thread.is_undone(*seq)).collect();
                if let Some(entry) = picked(&undone, *pick).copied() {
                    self.append(Change::Redone { entry });
                    self.count("redone layers");
                }
            }
            Step::ThinkingDropped => {
                let through = Seq(self.thread.next_seq().0 - 1);
                self.append(Change::ThinkingDropped { through, why: "it does not fit".into() });
            }
            Step::Compacted(compaction) => self.compact(compaction, self.window)?,
        }
        Ok(())
    }

    /// Checks that in the end the view fits, even for a different model, and that the history for a summary
    /// is split into pieces that fit.
    pub fn end(&mut self, window: u64) -> Result<(), String> {
        let must = Compaction {
            trigger: Trigger::Must,
            keep: KeptTail::Ratio(0.4),
            summary: None,
            wanted: false,
            again: self.number.is_multiple_of(8),
            service: self.number,
            reported: None,
        };
        self.compact(&must, window)?;
        let pieces = pieces(self.thread.view(), 500, 2_000);
        if pieces.iter().any(|piece| piece.len() > 2_000) {
            return Err("a piece is too long".to_owned());
        }
        Ok(())
    }

    fn pin(&mut self, at: PartId) {
        let mut trial = self.thread.clone();
        let change = Change::Edited { by: "h".into(), edits: vec![ViewEdit::Pin { at }] };
        trial.apply(Arc::new(Entry { seq: trial.next_seq(), at: 0, change }));
        if pins_too_large(&Ruler::for_model(None), &trial, self.budget(self.window).pins_max).is_none() {
            self.edit(ViewEdit::Pin { at });
        }
    }

    fn mutate(&mut self, messages: usize, kept: usize) {
        let mut spoken = Vec::new();
        for _ in 0..messages {
            let content = vec![Content::Text { text: self.text(300) }];
            spoken.push(HistoryMessage {
                role: Role::User,
                message: Message { id: MessageId(0), content, author: None },
            });
        }
        let (revision, next) = (self.thread.view().revision(), self.thread.next_message());
        if let Ok(made) = edits::mutation(&self.thread, revision, next, spoken, kept) {
            let (through, messages) = (made.through, made.messages);
            let by = "h".to_owned();
            self.append(Change::Mutated {
                through,
                messages,
                by,
                tokens_before: 2,
                tokens_after: 1,
                window: None,
            });
        }
    }

    pub fn request(compaction: &Compaction) -> CompactionRequest {
        let Compaction { trigger, keep, wanted, .. } = *compaction;
        CompactionRequest { trigger, keep, focus: None, summary: wanted }
    }

    pub fn budget(&self, window: u64) -> Budget {
        let frame = Ruler::for_model(None).frame_of(&self.thread);
        Budget::new(&Settings::default().compaction, window, (window / 4).min(16_384), frame)
    }

    pub fn count(&mut self, what: &str) {
        self.count_times(what, 1);
    }

    pub fn count_times(&mut self, what: &str, times: u64) {
        match self.counts.get_mut(what) {
            Some(known) => *known += times,
            None => drop(self.counts.insert(what.to_owned(), times)),
        }
    }
}

fn picked<T>(from: &[T], pick: usize) -> Option<&T> {
    from.get(pick.checked_rem(from.len())?)
}
