//! The first entries of a child's log: its settings, its frame and the parent's conversation. Pure.

use crate::child::{ChildHistory, ChildSpec};
use epitome_compaction as compaction;
use epitome_thread::{
    Change, Content, Entry, Message, MessageId, ModelName, Origin, StopReason, ToolOutcome, Usage, View,
    ViewItem,
};

/// The form in which a child receives the parent's history.
pub(super) enum Shape {
    /// Messages in the child's log.
    Native,
    /// A single text.
    Flat(String),
    Without,
}

impl Shape {
    /// The requested form. `bytes_max` limits a flat text.
    pub(super) fn first(history: &ChildHistory, bytes_max: usize) -> Shape {
        match history {
            ChildHistory::Native(_) => Shape::Native,
            ChildHistory::Flat(view) => Shape::Flat(compaction::flat(view, bytes_max)),
            ChildHistory::None => Shape::Without,
        }
    }
}

/// The entries that follow the opening entry.
pub(super) fn changes(spec: &ChildSpec, shape: &Shape, model: &ModelName, has_tools: bool) -> Vec<Change> {
    let mut changes = vec![
        Change::ModelChosen { model: model.clone() },
        Change::ModeChosen { mode: spec.mode },
        Change::ThoughtChosen { level: spec.thought },
    ];
    changes.extend(spec.frame.as_deref().and_then(|frame| framed(frame, spec.allowed_tools.as_deref())));
    let given = match (shape, &spec.history) {
        (Shape::Native, ChildHistory::Native(view) | ChildHistory::Flat(view)) => native(view, has_tools),
        (Shape::Flat(text), _) if !text.is_empty() => vec![as_text(text, &spec.lineage.recipe)],
        (Shape::Native | Shape::Flat(_) | Shape::Without, _) => Vec::new(),
    };
    if !given.is_empty() {
        changes.extend(given);
        // Without it, the conversation would look like a turn that was cut short by a crash.
        let (reason, usage) = (StopReason::EndTurn, Usage::default());
        changes.push(Change::TurnEnded { reason, usage, quiet_hooks: 0, failure: None });
    }
    changes
}

/// The parent's frame with the tools that the child may use.
fn framed(frame: &Entry, allowed: Option<&[String]>) -> Option<Change> {
    let Change::Framed { system, tools } = &frame.change else { return None };
    let is_allowed = |name: &str| allowed.is_none_or(|allowed| allowed.iter().any(|tool| tool == name));
    let tools = tools.iter().filter(|tool| is_allowed(&tool.name)).cloned().collect();
    Some(Change::Framed { system: system.clone(), tools })
}

/// The view as entries of another log. The model reads exactly the same bytes, so the provider's cached
/// prefix stays valid. Messages get new ids, and replies have no usage, since the parent has paid for them.
///
/// For a model without tools, calls and outcomes become text: providers reject calls in a request that
/// declares no tools.
fn native(view: &View, has_tools: bool) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut next = 0;
    let mut message = |content: Vec<Content>| {
        next += 1;
        Message { id: MessageId(next - 1), content, author: None }
    };
    for item in view.items() {
        match item {
            ViewItem::User(said) | ViewItem::Summary(said) => {
                let message = message(said.content.clone());
                changes.push(Change::Said { message, origin: Origin::Person });
            }
            ViewItem::Agent(reply, model) => {
                let content = if has_tools { reply.content.clone() } else { in_words(&reply.content) };
                if !content.is_empty() {
                    let (message, model) = (message(content), model.clone());
                    changes.push(Change::Replied { message, model, usage: None, cut: None });
                }
            }
            ViewItem::Outcomes(outcomes) if has_tools => {
                let finished = |outcome: &&ToolOutcome| Change::ToolFinished { outcome: (*outcome).clone() };
                changes.extend(outcomes.iter().map(finished));
            }
            ViewItem::Outcomes(outcomes) => {
                let text = |outcome: &&ToolOutcome| Content::Text {
                    text: format!("Tool result: {}", outcome.model_text()),
                };
                let message = message(outcomes.iter().map(text).collect());
                changes.push(Change::Said { message, origin: Origin::Person });
            }
        }
    }
    changes
}

/// A reply with its calls as text, and without reasoning, which only its provider can read.
fn in_words(content: &[Content]) -> Vec<Content> {
    let words = content.iter().filter_map(|content| match content {
        Content::Thinking { .. } => None,
        Content::Call(call) => {
            let text = format!("Using tool: {} with input: {}", call.name, call.input);
            Some(Content::Text { text })
        }
        Content::Search(search) => Some(Content::Text { text: search.text() }),
        Content::Text { .. }
        | Content::Image { .. }
        | Content::Document { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. } => Some(content.clone()),
    });
    words.collect()
}

fn as_text(text: &str, by: &str) -> Change {
    let text = format!(
        "Below is the conversation so far between a user and a coding agent.\n\n<conversation>\n{text}\n</conversation>"
    );
    let message = Message { id: MessageId(0), content: vec![Content::Text { text }], author: None };
    Change::Said { message, origin: Origin::Context { by: by.to_owned() } }
}
