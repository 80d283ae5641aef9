//! The displayed form of a session's events, in whichever format: the one reader of events for text, JSON lines and the
//! demo. Pure.

use std::borrow::Cow;

use epitome_client::{ClientEvent, ContextUsage};

use super::streamed::Streamed;
use crate::session::{NoticeSeverity, TextKind};
use crate::thread::{CallId, Change, ChangeGroup, MessageId, Origin, ToolCall, ToolOutcome, describe, text};

/// A part of an event that is shown.
pub enum ShownPart<'a> {
    /// Text of the model: a piece as it is streamed, or at the end of a message what was not.
    Text {
        message: MessageId,
        kind: TextKind,
        text: Cow<'a, str>,
    },
    Call(Cow<'a, ToolCall>),
    CallStarted(&'a CallId),
    /// The newest output of a running call.
    CallProgress(&'a CallId, &'a str),
    Outcome(Cow<'a, ToolOutcome>),
    Notice(NoticeSeverity, Cow<'a, str>),
    /// A line about a change of the conversation.
    Line(String),
    /// A compaction of so many tokens begins.
    Compacting(u64),
    Usage(&'a ContextUsage),
}

/// Reads events in their order, so that text is shown once.
#[derive(Default)]
pub struct EventReader(Streamed);

impl EventReader {
    /// The parts of an event. Questions, and what no format shows, have none.
    pub fn read<'a>(&mut self, event: &'a ClientEvent) -> Vec<ShownPart<'a>> {
        match event {
            ClientEvent::Text { message, part, kind, text } => {
                self.0.saw(*message, *part, *kind, text.len());
                vec![ShownPart::Text { message: *message, kind: *kind, text: text.into() }]
            }
            ClientEvent::Entry { entry, .. } => self.change(&entry.change),
            ClientEvent::CallStarted { call } => vec![ShownPart::CallStarted(call)],
            ClientEvent::CallProgress { call, output } => vec![ShownPart::CallProgress(call, output)],
            ClientEvent::Notice { severity, text } => vec![ShownPart::Notice(*severity, text.into())],
            ClientEvent::Compacting { tokens } => vec![ShownPart::Compacting(*tokens)],
            ClientEvent::Usage(usage) => vec![ShownPart::Usage(usage)],
            ClientEvent::CallFinished { .. }
            | ClientEvent::Commands(_)
            | ClientEvent::Options(_)
            | ClientEvent::Ask { .. }
            | ClientEvent::Question { .. }
            | ClientEvent::Withdrawn { .. }
            | ClientEvent::PromptEnded(_) => Vec::new(),
        }
    }

    fn change<'a>(&mut self, change: &'a Change) -> Vec<ShownPart<'a>> {
        match change {
            Change::Replied { message, cut, .. } => {
                let missing = self.0.missing(message).into_iter();
                let mut parts: Vec<_> =
                    missing.map(|(kind, text)| ShownPart::Text { message: message.id, kind, text }).collect();
                parts.extend(message.calls().map(|call| ShownPart::Call(Cow::Borrowed(call))));
                for (call, outcome) in message.searches() {
                    let (call, outcome) = (Cow::Owned(call), Cow::Owned(outcome));
                    parts.extend([ShownPart::Call(call), ShownPart::Outcome(outcome)]);
                }
                let cut = cut.as_ref().map(text::cut_words);
                parts.extend(cut.map(|words| ShownPart::Notice(NoticeSeverity::Warning, words.into())));
                parts
            }
            Change::ToolFinished { outcome } => vec![ShownPart::Outcome(Cow::Borrowed(outcome))],
            change => line(change).map(ShownPart::Line).into_iter().collect(),
        }
    }
}

/// Returns the line for a change other than replies and results; `None` for changes that are not shown.
fn line(change: &Change) -> Option<String> {
    match change {
        Change::Said { message, origin: Origin::Hook { hook } } => Some(text::follow_up(hook, message)),
        // The notice of the same command reports it.
        Change::Rewound { .. }
        | Change::FilesRewound { .. }
        | Change::Undone { .. }
        | Change::Redone { .. } => None,
        change => match change.group() {
            ChangeGroup::Message | ChangeGroup::View | ChangeGroup::Note => describe(change).line,
            ChangeGroup::Setting | ChangeGroup::Lifecycle => None,
        },
    }
}
