//! Messages that Epitome composed before, within a conversation that another agent has kept.
//!
//! If the conversation still has what such a message was made from, the message is left out, or stays as the compaction that
//! it was. Otherwise it becomes what it contains: the user's messages, pins, instructions and the goal are entries of their own
//! again, and its tables are the summary of the part before.

use std::collections::HashMap;
use std::path::PathBuf;

use epitome_compaction::{UnfoldedMessage, unfold};
use epitome_thread::{
    Change, CompactionStats, Entry, Message, MessageId, Origin, PartId, Seq, StopReason, Trigger, Usage,
    ViewEdit,
};

use super::builder::first_line;
use super::marker::{self, MarkedMessage};
use super::text;

/// The author of messages that nobody typed.
const BY: &str = "epitome";

/// Longer texts around a message are not only the tags of its host.
const WRAPPER_CHARS_MAX: usize = 300;

/// The treatment of a compaction by Epitome if the log has what its message was made from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OwnCompaction {
    /// It stays, with its message alone, so that the model sees what it saw.
    Kept,
    /// It is left out, because the conversation is compacted again.
    LeftOut,
}

/// Appends entries to a log.
pub struct EntryAppender<'a> {
    entries: &'a mut Vec<Entry>,
    next_message: u64,
}

impl<'a> EntryAppender<'a> {
    pub fn new(entries: &'a mut Vec<Entry>) -> EntryAppender<'a> {
        let next_message = next_message(entries);
        EntryAppender { entries, next_message }
    }

    pub fn push(&mut self, change: Change) -> Seq {
        let seq = Seq(self.entries.len() as u64);
        let at = self.entries.last().map_or(0, |entry| entry.at);
        self.entries.push(Entry { seq, at, change });
        seq
    }

    fn message(&mut self, words: String) -> Message {
        let id = MessageId(self.next_message);
        self.next_message += 1;
        Message { id, content: vec![text(words)], author: None }
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

    /// Adds what a message contains of the part up to the entry `through`.
    fn unfold(&mut self, through: Seq, mut message: UnfoldedMessage) {
        message.leave_out_said(self.entries);
        let UnfoldedMessage { summary, instructions, goal, said, pins } = message;
        if !summary.is_empty() {
            self.summarized(through, summary);
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

    /// Adds what is left of the part up to the entry `through` as its summary.
    fn summarized(&mut self, through: Seq, summary: String) {
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
        if !self.entries.iter().any(|entry| matches!(entry.change, Change::Titled { .. })) {
            self.push(Change::Titled { title: first_line(&text) });
        }
        self.say(text, Origin::Person);
        let reason = StopReason::EndTurn;
        self.push(Change::TurnEnded { reason, usage: Usage::default(), quiet_hooks: 0, failure: None });
    }
}

/// The id above those of all messages.
fn next_message(entries: &[Entry]) -> u64 {
    let ids = entries.iter().filter_map(|entry| Some(entry.change.shown_message()?.id.0 + 1));
    ids.max().unwrap_or_default()
}

/// Replaces the messages of Epitome in a log. Entries are numbered anew; what refers to a number follows.
pub fn unfolded(mut entries: Vec<Entry>, own: OwnCompaction) -> Vec<Entry> {
    if !entries.iter().any(|entry| text_of(&entry.change).is_some_and(|text| found(&text).is_some())) {
        return entries;
    }
    // The entries that replace a compaction precede those that it keeps.
    for at in 0..entries.len() {
        if let Change::Compacted { through, summary, .. } = &entries[at].change
            && found(&summary.text()).is_some_and(|(found, _)| !found.is_of(&entries[..at]))
        {
            let behind = (through.0 as usize + 1).min(at);
            entries[behind..=at].rotate_right(1);
        }
    }
    let mut next_message = next_message(&entries);
    let mut log: Vec<Entry> = Vec::with_capacity(entries.len());
    let mut moved: HashMap<Seq, Seq> = HashMap::new();
    for Entry { seq, at, mut change } in entries {
        if let Change::Compacted { through, .. } = &mut change {
            *through = moved.get(through).copied().unwrap_or(*through);
        }
        // A message that somebody pasted into a conversation must not hide what was said before.
        let may_replace = own == OwnCompaction::LeftOut || !log.iter().any(|entry| entry.change.is_spoken());
        let text = text_of(&change).filter(|_| may_replace || matches!(change, Change::Compacted { .. }));
        // The host has kept this beside the message, so it stays in view.
        let opening = log.first().map(|entry| entry.seq);
        match text.as_deref().and_then(found).zip(opening) {
            Some(((found, _), _)) if found.is_of(&log) => {
                if let Change::Compacted { summary, .. } = &mut change
                    && own == OwnCompaction::Kept
                {
                    summary.content = vec![super::text(found.body)];
                    log.push(Entry { seq: Seq(log.len() as u64), at, change });
                }
            }
            Some(((found, body), opening)) => {
                let mut writer = EntryAppender { entries: &mut log, next_message };
                writer.unfold(opening, body);
                for text in found.around {
                    if text.trim().chars().count() > WRAPPER_CHARS_MAX {
                        writer.prompt(text.to_owned());
                    }
                }
                next_message = writer.next_message;
            }
            None if matches!(&change, Change::Titled { title } if marker::is_title(title)) => {}
            None => log.push(Entry { seq: Seq(log.len() as u64), at, change }),
        }
        moved.insert(seq, Seq((log.len() as u64).saturating_sub(1)));
    }
    log
}

/// A message of Epitome in a text, and its parts.
fn found(text: &str) -> Option<(MarkedMessage<'_>, UnfoldedMessage)> {
    let found = marker::find(text).or_else(|| marker::unmarked(text))?;
    let body = unfold(found.body)?;
    Some((found, body))
}

fn text_of(change: &Change) -> Option<String> {
    match change {
        Change::Said { message, .. } | Change::Replied { message, .. } => Some(message.text()),
        Change::Compacted { summary, .. } => Some(summary.text()),
        _ => None,
    }
}
