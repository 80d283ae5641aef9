//! A conversation builder for tests.

use std::sync::Arc;

use super::super::*;
use epitome_thread::{
    CallDisplay, CallId, Change, Content, Entry, FORMAT_VERSION, Message, ModelName, Origin, OutcomeStatus,
    PartId, Seq, SessionId, StopReason, Thread, ToolCall, ToolOutcome, Trigger, Usage, ViewEdit,
};
use epitome_tokens::Ruler;

/// A conversation that is built step by step.
pub struct TestConversation(pub Thread);

impl TestConversation {
    pub fn new() -> TestConversation {
        TestConversation::in_directory("/w")
    }

    pub fn in_directory(cwd: &str) -> TestConversation {
        let session = SessionId("s_00000000000000000001".into());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: cwd.into() };
        let opened = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
        TestConversation(Thread::replay([opened]).expect("an opened thread"))
    }

    pub fn add(&mut self, change: Change) -> Seq {
        let seq = self.0.next_seq();
        self.0.apply(Arc::new(Entry { seq, at: 0, change }));
        seq
    }

    pub fn message(&self, content: Vec<Content>) -> Message {
        Message { id: self.0.next_message(), content, author: None }
    }

    pub fn add_prompt(&mut self, text: impl Into<String>) -> Seq {
        self.add_message_from(text, Origin::Person)
    }

    pub fn add_message_from(&mut self, text: impl Into<String>, origin: Origin) -> Seq {
        let message = self.message(vec![Content::Text { text: text.into() }]);
        self.add(Change::Said { message, origin })
    }

    pub fn replies(&mut self, text: impl Into<String>) -> Seq {
        let message = self.message(vec![Content::Text { text: text.into() }]);
        self.add(Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None })
    }

    /// Adds a tool call and its outcome; returns the outcome's entry.
    pub fn calls(&mut self, tool: &str, outcome: impl Into<String>) -> Seq {
        self.calls_with(tool, serde_json::json!({}), OutcomeStatus::Completed, outcome)
    }

    pub fn calls_with(
        &mut self,
        tool: &str,
        input: serde_json::Value,
        status: OutcomeStatus,
        outcome: impl Into<String>,
    ) -> Seq {
        let id = CallId(format!("c{}", self.0.next_seq().0));
        let call = ToolCall { id: id.clone(), name: tool.into(), input, card: CallDisplay::default() };
        let message = self.message(vec![Content::Call(call)]);
        self.add(Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None });
        let outcome = ToolOutcome::text(id, status, outcome);
        self.add(Change::ToolFinished { outcome })
    }

    pub fn ends_turn(&mut self) {
        let (reason, usage) = (StopReason::EndTurn, Usage::default());
        self.add(Change::TurnEnded { reason, usage, quiet_hooks: 0, failure: None });
    }

    /// Adds enough messages to make all earlier ones old.
    pub fn add_later_messages(&mut self) {
        for _ in 0..6 {
            self.replies("Yes.");
            self.add_prompt("And?");
        }
    }

    pub fn pins(&mut self, entry: Seq) {
        let at = PartId { entry, part: None };
        self.add(Change::Edited { by: "h".into(), edits: vec![ViewEdit::Pin { at }] });
    }

    pub fn decide(&self, window: u64, trigger: Trigger, keep: KeptTail) -> CompactionDecision {
        decide(
            &CompactionInput::new(&Ruler::for_model(None), &self.0, &budget(window)),
            &request(trigger, keep),
        )
    }

    /// Compacts the conversation and returns the text of the compaction message.
    pub fn compact(
        &mut self,
        window: u64,
        trigger: Trigger,
        keep: KeptTail,
        summary: Option<&str>,
    ) -> String {
        let plan = match self.decide(window, trigger, keep) {
            CompactionDecision::Summarise(plan) => plan,
            other => panic!("{other:?}"),
        };
        let change = self.made(window, &plan, summary).expect("it gains something");
        let Change::Compacted { summary, .. } = &change else { unreachable!() };
        let text = summary.text();
        self.add(change);
        text
    }

    pub fn made(
        &self,
        window: u64,
        plan: &CompactionPlan,
        summary: Option<&str>,
    ) -> Result<Change, CompactionRefusal> {
        let by = summary.map(|_| (ModelName("a/b".into()), Usage::default()));
        let written = Summary { text: summary.map(str::to_owned), by, ..Summary::default() };
        let (ruler, id) = (Ruler::for_model(None), self.0.next_message());
        compacted(&CompactionInput::new(&ruler, &self.0, &budget(window)), plan, id, written)
    }

    pub fn shown(&self) -> Vec<u64> {
        self.0.view().entries().iter().map(|entry| entry.seq.0).collect()
    }
}

pub fn budget(window: u64) -> Budget {
    Budget::new(&Default::default(), window, window / 8, 0)
}

pub fn request(trigger: Trigger, keep: KeptTail) -> CompactionRequest {
    CompactionRequest { trigger, keep, focus: None, summary: trigger == Trigger::Manual }
}

/// A text of about this many tokens.
pub fn words(tokens: usize) -> String {
    "walnut ".repeat(tokens)
}
