//! A conversation as a list of changes, and how a thread is made of it.

use std::sync::Arc;

use epitome::thread::{
    CallId, Card, Change, Content, Edit, Entry, FORMAT_VERSION, Message, MessageId, ModelName, Origin,
    OutcomeStatus, Part, Seq, SessionId, StopReason, Thread, ToolCall, ToolKind, ToolOutcome, Usage,
};
use epitome::tokens::Ruler;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plant::Fact;

/// The model that the conversations are counted and priced for.
pub const MODEL: &str = "anthropic/claude-sonnet-5";

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub change: Change,
    /// The person pins it right behind.
    pub pin: bool,
}

impl Step {
    pub fn plain(change: Change) -> Step {
        Step { change, pin: false }
    }
}

/// A conversation and what is known to be in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    pub name: String,
    pub steps: Vec<Step>,
    pub facts: Vec<Fact>,
    /// Of all steps, by the estimate.
    pub tokens: u64,
}

impl Session {
    /// Where each of `count` compactions happens: the steps before which it does, about equally far apart and
    /// between two turns; the last one behind all.
    pub fn cuts(&self, count: usize) -> Vec<usize> {
        let ruler = ruler();
        let mut taken = 0;
        let mut cuts = Vec::new();
        for (at, step) in self.steps.iter().enumerate() {
            let due = self.tokens * (cuts.len() as u64 + 1) / count as u64;
            let may = matches!(&step.change, Change::Said { origin: Origin::Person, .. });
            if may && taken >= due && cuts.len() + 1 < count {
                cuts.push(at);
            }
            taken += tokens(&ruler, &step.change);
        }
        cuts.push(self.steps.len());
        cuts
    }
}

/// The ruler of all: an estimate, as a session has it that did not load the vocabulary.
pub fn ruler() -> Ruler {
    Ruler::of(Some(&ModelName(MODEL.to_owned())))
}

/// What a change takes in a view.
pub fn tokens(ruler: &Ruler, change: &Change) -> u64 {
    ruler.entry(&Entry { seq: Seq(0), at: 0, change: change.clone() })
}

/// A thread that nothing was said in, with a frame.
pub fn opened() -> Thread {
    let session = SessionId("s_00000000000000000001".to_owned());
    let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/work/app".into() };
    let entry = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
    let mut thread = Thread::replay([entry]).expect("it begins with its opening entry");
    let system = "You are a coding agent. You work in /work/app.".to_owned();
    append(&mut thread, Change::Framed { system, tools: Vec::new() });
    thread
}

/// Appends steps; ids of messages are those of the thread.
pub fn follow(thread: &mut Thread, steps: &[Step]) {
    for step in steps {
        let mut change = step.change.clone();
        match &mut change {
            Change::Said { message, .. } | Change::Replied { message, .. } => {
                message.id = thread.next_message();
            }
            _ => {}
        }
        let entry = append(thread, change);
        if step.pin {
            let at = Part { entry, part: None };
            append(thread, Change::Edited { by: "person".to_owned(), edits: vec![Edit::Pin { at }] });
        }
    }
}

pub fn append(thread: &mut Thread, change: Change) -> Seq {
    let seq = thread.next_seq();
    // A second an entry: times are in the order of the log.
    thread.apply(Arc::new(Entry { seq, at: 1_772_000_000_000 + seq.0 * 1_000, change }));
    seq
}

pub fn said(text: String) -> Change {
    Change::Said { message: message(text), origin: Origin::Person }
}

/// A reply; its calls get their ids from `first_call` on.
pub fn replied(text: String, calls: Vec<(&str, Value)>, first_call: usize) -> Change {
    let mut message = message(text);
    message.content.retain(|content| !matches!(content, Content::Text { text } if text.is_empty()));
    for (at, (name, input)) in calls.into_iter().enumerate() {
        let card = Card { title: name.to_owned(), kind: ToolKind::Other, locations: Vec::new() };
        let call = ToolCall { id: call_id(first_call + at), name: name.to_owned(), input, card };
        message.content.push(Content::Call(call));
    }
    Change::Replied { message, model: ModelName(MODEL.to_owned()), usage: None, cut: None }
}

/// What a call came to; of a command, with what machines read.
pub fn outcome(call: usize, status: OutcomeStatus, text: String, raw: Option<Value>) -> Change {
    Change::ToolFinished { outcome: ToolOutcome { raw, ..ToolOutcome::text(call_id(call), status, text) } }
}

pub fn ended() -> Change {
    Change::TurnEnded { reason: StopReason::EndTurn, usage: Usage::default(), quiet_hooks: 0 }
}

fn call_id(number: usize) -> CallId {
    CallId(format!("call_{number}"))
}

fn message(text: String) -> Message {
    Message { id: MessageId(0), content: vec![Content::Text { text }] }
}
