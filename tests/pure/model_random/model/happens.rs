//! The steps of a session other than compactions.

use std::sync::Arc;

use epitome::compaction;
use epitome::config::WireFormat;
use epitome::provider::endpoint::Endpoint;
use epitome::provider::wire::encoding::Encoding;
use epitome::thread::{
    CallId, Change, Content, Entry, HistoryMessage, Message, MessageId, Origin, OutcomeContent,
    OutcomeStatus, PlanPriority, PlanStatus, PlanStep, Role, Seq, StopReason, ThoughtLevel, Thread,
    ToolOutcome, ToolSpec, Usage, ViewEdit, edits,
};
use serde_json::{Value, json};

use super::super::checks;
use super::super::service::{self, Part};
use super::super::step::{Op, Reply, Shown, Speaker, Thinks, What};
use super::{Answered, Checked, Model, Sent, frame_of, picked, read, state_of, text};

/// A picture of one pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

const PDF: &str = "JVBERi0xLjQKJSVFT0YK";

/// The smallest window in which pins are made, in tokens.
const PINS_WINDOW: u64 = 8_000;

impl Model {
    pub(super) fn said(&mut self, by: Speaker, what: What, words: usize) {
        // A turn's calls have ended before the next message.
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

    pub(super) fn say(&mut self, origin: Origin, content: Vec<Content>) {
        let message = self.message(content);
        self.append(Change::Said { message, origin });
    }

    pub(super) fn reply(&mut self, reply: Reply) -> Checked {
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
        let content = read(&endpoint, encoded.prefix, &service::stream(endpoint.wire, &parts))?;
        let message = self.message(content);
        let layers = self.holding();
        let seq = self.append(Change::Replied { message, model: endpoint.name, usage: None, cut: None });
        self.answered.push(Answered { endpoint: self.chosen, seq, layers, frame, messages, signatures });
        Ok(())
    }

    /// The parts of a reply, and the signatures that must be sent back.
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
            // Gemini issues one signature per step.
            let comes_back = match endpoint.wire {
                WireFormat::AnthropicMessages | WireFormat::OpenAiResponses => true,
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

    pub(super) fn finish_calls(&mut self, status: OutcomeStatus) {
        for call in self.thread.open_calls().to_vec() {
            self.finish(call, Shown::Text, status, 3);
        }
    }

    pub(super) fn finish(&mut self, call: CallId, what: Shown, status: OutcomeStatus, words: usize) {
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

    pub(super) fn edit(&mut self, edits: &[(Op, usize)], stale: bool) -> Checked {
        let parts: Vec<_> = self.thread.view().pieces().iter().map(|(part, _)| *part).collect();
        let pinned = self.thread.pinned();
        let mut made = Vec::new();
        for (op, pick) in edits {
            let Some(at) = picked(&parts, *pick).copied() else { return Ok(()) };
            let content = vec![text(&self.words(5))];
            made.push(match op {
                Op::Mask => ViewEdit::Mask { at, note: "a note".into() },
                Op::Drop => ViewEdit::Drop { at },
                Op::Replace => ViewEdit::Replace { at, content },
                Op::Append(role) => ViewEdit::Append {
                    role: *role,
                    message: Message { id: MessageId(0), content, author: None },
                },
                Op::Pin => ViewEdit::Pin { at },
                Op::Unpin => ViewEdit::Unpin { at: picked(&pinned, *pick).copied().unwrap_or(at) },
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

    pub(super) fn commit_edits(&mut self, edits: Vec<ViewEdit>, by: &str) {
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

    pub(super) fn mutate(&mut self, roles: &[Role], kept: usize, stale: bool) -> Checked {
        self.finish_calls(OutcomeStatus::Completed);
        let mut spoken = Vec::new();
        for role in roles {
            let message = Message { id: MessageId(0), content: vec![text(&self.words(8))], author: None };
            spoken.push(HistoryMessage { role: *role, message });
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
                let change = compaction::mutated(&ruler, &self.thread, replacement, "h".into(), u64::MAX)
                    .map_err(|why| why.to_string())?;
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

    pub(super) fn undo(&mut self, entry: Seq) {
        self.count("layers undone");
        if entry != self.newest().seq {
            self.count("layers undone with something behind them");
        }
        self.append(Change::Undone { entry });
    }

    /// The prompts to which the conversation may be rewound: those at which no call is open.
    pub(super) fn rewindable(&self) -> Vec<Seq> {
        let mut open: Vec<&CallId> = Vec::new();
        let mut prompts = Vec::new();
        for entry in self.thread.entries() {
            match &entry.change {
                Change::Said { origin, .. } if origin.is_prompt() && open.is_empty() => {
                    prompts.push(entry.seq)
                }
                Change::Replied { message, .. } => open.extend(message.calls().map(|call| &call.id)),
                Change::ToolFinished { outcome } => open.retain(|call| **call != outcome.call),
                _ => {}
            }
        }
        prompts.into_iter().filter(|to| self.thread.can_rewind(*to).is_ok()).collect()
    }

    pub(super) fn rewind(&mut self, to: Seq) {
        self.count("conversations taken back");
        self.append(Change::Rewound { to });
    }

    pub(super) fn redo(&mut self, entry: Seq) {
        self.count("layers redone");
        self.append(Change::Redone { entry });
    }

    /// Simulates a new build or changed settings, while existing threads keep the frame of the old ones.
    pub(super) fn change_build(&mut self, pick: usize) {
        self.system = format!("You are an agent of build {pick}.");
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
        let tool =
            |name: &str| ToolSpec { name: name.into(), description: "Looks.".into(), schema: schema.clone() };
        self.tools = vec![tool("look")];
        self.tools.extend((0..pick % 3).map(|at| tool(&format!("look_{at}"))));
        self.thought =
            [ThoughtLevel::Medium, ThoughtLevel::Off, ThoughtLevel::Low, ThoughtLevel::Max][pick % 4];
    }

    pub(super) fn aside(&mut self, pick: usize) {
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
            3 => Change::GoalSet { goal: (!pick.is_multiple_of(4)).then(|| format!("goal {pick}")) },
            4 => Change::Hooked { event: "turn_end".into(), runs: Vec::new() },
            _ => {
                self.finish_calls(OutcomeStatus::Interrupted);
                let (reason, usage) = (StopReason::EndTurn, Usage::default());
                Change::TurnEnded { reason, usage, quiet_hooks: 0, failure: None }
            }
        };
        self.append(change);
    }

    /// A new process reads the log from its lines, and running work is lost.
    pub(super) fn kill(&mut self) -> Checked {
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
        self.count("kills");
        self.finish_calls(OutcomeStatus::Interrupted);
        Ok(())
    }
}
