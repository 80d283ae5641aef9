//! Messages that Epitome composed before, within a conversation that another agent has kept.
//!
//! If the conversation still has what such a message was made from, the message is left out, or stays as the compaction that
//! it was. Otherwise it becomes what it contains: the user's messages, pins, instructions and the goal are entries of their own
//! again, and its tables are the summary of the part before.

use std::collections::HashMap;
use std::path::PathBuf;

use epitome_compaction::{UnfoldedMessage, unfold};
use epitome_thread::{Change, Entry, Origin, Seq, StopReason, Trigger};

use super::builder::Builder;
use super::marker::{self, MarkedMessage};
use super::text;

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

/// Adds what a message contains of the part up to the entry `through`.
fn add(log: &mut Builder, through: Seq, mut message: UnfoldedMessage) {
    message.leave_out_said(log.entries());
    let UnfoldedMessage { summary, instructions, goal, said, pins } = message;
    if !summary.is_empty() {
        log.compacted(Some(Seq(through.0 + 1)), summary, Trigger::Manual, 0);
    }
    for (path, text) in instructions {
        let text = format!("<instructions path=\"{path}\">\n{text}\n</instructions>");
        log.say(text, Origin::Instructions { path: PathBuf::from(path) });
    }
    said.into_iter().for_each(|words| prompt(log, words));
    if goal.is_some() {
        log.push(Change::GoalSet { goal });
    }
    pins.into_iter().for_each(|pin| log.pin(pin));
}

fn prompt(log: &mut Builder, words: String) {
    log.prompt(vec![text(words)]);
    log.turn_ended(StopReason::EndTurn);
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
    let mut log = Builder::beside(&entries);
    let mut moved: HashMap<Seq, Seq> = HashMap::new();
    for Entry { seq, at, mut change } in entries {
        if let Change::Compacted { through, .. } = &mut change {
            *through = moved.get(through).copied().unwrap_or(*through);
        }
        // A message that somebody pasted into a conversation must not hide what was said before.
        let is_first = !log.entries().iter().any(|entry| entry.change.is_spoken());
        let may_replace = own == OwnCompaction::LeftOut || is_first;
        let text = text_of(&change).filter(|_| may_replace || matches!(change, Change::Compacted { .. }));
        // The host has kept this beside the message, so it stays in view.
        let opening = log.entries().first().map(|entry| entry.seq);
        match text.as_deref().and_then(found).zip(opening) {
            Some(((found, _), _)) if found.is_of(log.entries()) => {
                if let Change::Compacted { summary, .. } = &mut change
                    && own == OwnCompaction::Kept
                {
                    summary.content = vec![super::text(found.body)];
                    log.copy(at, change);
                }
            }
            Some(((found, body), opening)) => {
                add(&mut log, opening, body);
                for words in found.around {
                    if words.trim().chars().count() > WRAPPER_CHARS_MAX {
                        prompt(&mut log, words.to_owned());
                    }
                }
            }
            None if matches!(&change, Change::Titled { title } if marker::is_title(title)) => {}
            None => log.copy(at, change),
        }
        moved.insert(seq, Seq(log.next_seq().0.saturating_sub(1)));
    }
    log.into_entries()
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
