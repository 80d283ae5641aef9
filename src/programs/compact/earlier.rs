//! Messages that Epitome composed before, within a conversation that another agent has kept.
//!
//! If the conversation still has what such a message was made from, the message is left out. Otherwise it becomes what it
//! contains: the user's messages, pins, instructions and the goal are entries of their own again, and its tables are the
//! summary of the part before.

use std::path::PathBuf;

use epitome_compaction::{UnfoldedMessage, unfold};
use epitome_thread::{
    Change, CompactionStats, Content, Entry, Message, MessageId, Origin, PartId, Seq, StopReason, Trigger,
    Usage, ViewEdit,
};

use super::marker::{self, MarkedMessage};

/// The author of messages that nobody typed.
const BY: &str = "epitome";

/// Longer texts around a message are not only the tags of its host.
const WRAPPER_CHARS_MAX: usize = 300;

/// Appends entries to a log.
pub(crate) struct EntryAppender<'a> {
    entries: &'a mut Vec<Entry>,
    next_message: u64,
}

impl<'a> EntryAppender<'a> {
    pub fn new(entries: &'a mut Vec<Entry>) -> EntryAppender<'a> {
        let ids = entries.iter().filter_map(|entry| Some(entry.change.shown_message()?.id.0 + 1));
        let next_message = ids.max().unwrap_or_default();
        EntryAppender { entries, next_message }
    }

    pub fn push(&mut self, change: Change) -> Seq {
        let seq = Seq(self.entries.len() as u64);
        let at = self.entries.last().map_or(0, |entry| entry.at);
        self.entries.push(Entry { seq, at, change });
        seq
    }

    fn message(&mut self, text: String) -> Message {
        let id = MessageId(self.next_message);
        self.next_message += 1;
        Message { id, content: vec![Content::Text { text }], author: None }
    }

    pub fn say(&mut self, text: String, origin: Origin) -> Seq {
        let message = self.message(text);
        self.push(Change::Said { message, origin })
    }

    /// Adds a text of which every message has all words, unless one has been added that is the same.
    pub fn pin(&mut self, text: String) {
        let by = Origin::Context { by: BY.to_owned() };
        let is_same = |entry: &Entry| match &entry.change {
            Change::Said { message, origin } => *origin == by && message.text() == text,
            _ => false,
        };
        if self.entries.iter().any(is_same) {
            return;
        }
        let entry = self.say(text, by);
        let edits = vec![ViewEdit::Pin { at: PartId { entry, part: None } }];
        self.push(Change::Edited { by: BY.to_owned(), edits });
    }

    /// Adds what a message contains.
    fn unfold(&mut self, message: UnfoldedMessage) {
        let UnfoldedMessage { summary, instructions, goal, said, pins } = message;
        if !summary.is_empty() {
            self.summarized(summary);
        }
        for (path, text) in instructions {
            let text = format!("<instructions path=\"{path}\">\n{text}\n</instructions>");
            self.say(text, Origin::Instructions { path: PathBuf::from(path) });
        }
        for text in said {
            self.prompt(text);
        }
        if goal.is_some() {
            self.push(Change::GoalSet { goal });
        }
        for pin in pins {
            self.pin(pin);
        }
    }

    /// Adds what is left of the part before as its summary.
    fn summarized(&mut self, summary: String) {
        let through = Seq(self.entries.len() as u64 - 1);
        let summary = self.message(summary);
        self.push(Change::Compacted {
            through,
            summary,
            trigger: Trigger::Manual,
            focus: None,
            tokens_before: 0,
            tokens_after: 0,
            window: None,
            model: None,
            usage: None,
            masks: Vec::new(),
            account: CompactionStats::default(),
        });
    }

    fn prompt(&mut self, text: String) {
        self.say(text, Origin::Person);
        let reason = StopReason::EndTurn;
        self.push(Change::TurnEnded { reason, usage: Usage::default(), quiet_hooks: 0, failure: None });
    }
}

/// Replaces the messages of Epitome in a log. Entries are numbered anew; what refers to a number follows.
pub(crate) fn unfolded(entries: Vec<Entry>) -> Vec<Entry> {
    if !entries.iter().any(|entry| text_of(&entry.change).is_some_and(|text| marker::find(&text).is_some())) {
        return entries;
    }
    let mut log = Vec::with_capacity(entries.len());
    let mut moved: Vec<Seq> = Vec::with_capacity(entries.len());
    let mut spoken = 0;
    for Entry { at, mut change, .. } in entries {
        let text = text_of(&change);
        let found = text.as_deref().and_then(marker::find);
        let is_there = |found: &MarkedMessage| spoken >= found.entries;
        match found {
            Some(found) if is_there(&found) => {}
            Some(found) => {
                let mut writer = EntryAppender::new(&mut log);
                let body = unfold(found.body).unwrap_or_default();
                let [before, after] = found.around;
                writer.unfold(body);
                for text in [before, after] {
                    if text.trim().chars().count() > WRAPPER_CHARS_MAX {
                        writer.prompt(text.to_owned());
                    }
                }
            }
            None => {
                if let Change::Compacted { through, .. } = &mut change {
                    *through = moved.get(through.0 as usize).copied().unwrap_or(*through);
                }
                spoken += usize::from(change.is_spoken());
                let seq = Seq(log.len() as u64);
                log.push(Entry { seq, at, change });
            }
        }
        moved.push(Seq((log.len() as u64).saturating_sub(1)));
    }
    log
}

fn text_of(change: &Change) -> Option<String> {
    match change {
        Change::Said { message, .. } | Change::Replied { message, .. } => Some(message.text()),
        Change::Compacted { summary, .. } => Some(summary.text()),
        _ => None,
    }
}
