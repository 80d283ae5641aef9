//! Applies the edits of hooks and masks to the view, creating derived entries in place of the logged ones.
//!
//! Edits are validated in `edits`; here, every edit that has a target is made.

use std::collections::HashMap;
use std::sync::Arc;

use super::change::{Change, Entry, Mask, Seq};
use super::hooked::{HistoryMessage, PartId, ViewEdit};
use super::message::{Content, Message, OutcomeContent, ToolOutcome};
use super::view::{PartNumbers, View, has_text, is_outcome, rank, spoken_entry};

/// The kind of a part and its index in the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViewPosition {
    /// A user message, or a summary.
    Message(usize),
    /// The text of a reply.
    Text(usize),
    /// The index of the reply, and which of its remaining calls, from 0.
    Call(usize, usize),
    Outcome(usize),
}

/// Why an edit without a target cannot be made.
const NOT_SHOWN: &str = "it is not in the view";

impl View {
    /// Applies one edit of the entry `layer`, requested by `by`, or returns why that is impossible. Pins do not change
    /// what is shown. `appended` counts the messages that the layer has appended so far.
    pub(super) fn edit(
        &mut self,
        layer: &Entry,
        by: &str,
        edit: &ViewEdit,
        appended: &mut u32,
    ) -> Result<(), &'static str> {
        match edit {
            ViewEdit::Pin { .. } | ViewEdit::Unpin { .. } => {}
            ViewEdit::Mask { at, note } => {
                let spot = self.find(*at).ok_or(NOT_SHOWN)?;
                self.mask(spot, placeholder(by, note, *at));
            }
            ViewEdit::Drop { at } => {
                let spot = self.find(*at).ok_or(NOT_SHOWN)?;
                self.drop_part(spot);
            }
            ViewEdit::Replace { at, content } => match self.find(*at).ok_or(NOT_SHOWN)? {
                ViewPosition::Call(..) => return Err("a tool call can't be replaced; mask or drop it"),
                spot => self.put(spot, content),
            },
            ViewEdit::Append { role, message } => {
                *appended += 1;
                let spoken = HistoryMessage { role: *role, message: message.clone() };
                let numbers = PartNumbers { nth: Some(*appended), calls: None };
                self.push(spoken_entry(layer, &spoken, by), numbers);
            }
        }
        Ok(())
    }

    /// Shows outcomes and user messages as other texts. Masks of entries outside of the view are ignored.
    pub(super) fn mask_all(&mut self, masks: &[Mask]) {
        if masks.is_empty() {
            return;
        }
        let texts: HashMap<Seq, &str> = masks.iter().map(|mask| (mask.entry, mask.text.as_str())).collect();
        for at in 0..self.shown.len() {
            let entry = &self.shown[at];
            let Some(text) = texts.get(&entry.seq).filter(|_| self.part_numbers[at].nth.is_none()) else {
                continue;
            };
            let content = [Content::Text { text: (*text).to_owned() }];
            match entry.change {
                Change::Said { .. } => self.put(ViewPosition::Message(at), &content),
                Change::ToolFinished { .. } => self.put(ViewPosition::Outcome(at), &content),
                // Replies stay as the model made them, and summaries are only replaced as a unit.
                _ => {}
            }
        }
    }

    pub(super) fn find(&self, part: PartId) -> Option<ViewPosition> {
        let shown = self.shown.iter().zip(&self.part_numbers).enumerate();
        let mut of_entry = shown.filter(|(_, (entry, _))| entry.seq == part.entry);
        of_entry.find_map(|(at, (entry, numbers))| match &entry.change {
            Change::Said { .. } | Change::Compacted { .. } => {
                (numbers.nth == part.part).then_some(ViewPosition::Message(at))
            }
            Change::ToolFinished { .. } => part.part.is_none().then_some(ViewPosition::Outcome(at)),
            Change::Replied { message, .. } => {
                if numbers.nth == part.part && has_text(&message.content) {
                    return Some(ViewPosition::Text(at));
                }
                let calls = 0..message.calls().count();
                let number = part.part?;
                let call = calls.into_iter().find(|call| numbers.call_number(*call) == number)?;
                Some(ViewPosition::Call(at, call))
            }
            _ => None,
        })
    }

    /// The index of the reply that the spot belongs to.
    pub(super) fn reply_of(&self, spot: ViewPosition) -> Option<usize> {
        match spot {
            ViewPosition::Message(_) => None,
            ViewPosition::Text(at) | ViewPosition::Call(at, _) => Some(at),
            ViewPosition::Outcome(at) => self.call_of(at).map(|(reply, _)| reply),
        }
    }

    /// The index of the reply, and of its call, that this outcome belongs to.
    fn call_of(&self, outcome_at: usize) -> Option<(usize, usize)> {
        let outcome = self.shown[outcome_at].change.outcome()?;
        let before = self.shown[..outcome_at].iter().enumerate().rev();
        before.map(|(at, entry)| (at, rank(entry, outcome))).find_map(|(at, rank)| Some((at, rank?)))
    }

    fn mask(&mut self, spot: ViewPosition, line: String) {
        match spot {
            ViewPosition::Message(_) | ViewPosition::Text(_) | ViewPosition::Outcome(_) => {
                self.put(spot, &[Content::Text { text: line }]);
            }
            ViewPosition::Call(at, call) => {
                let mut message = self.reply(at);
                let mut calls = message.content.iter_mut().filter_map(|content| match content {
                    Content::Call(call) => Some(call),
                    _ => None,
                });
                if let Some(call) = calls.nth(call) {
                    call.input = serde_json::json!({ "masked": line });
                    call.card = Default::default();
                }
                self.set_reply(at, message.content);
            }
        }
    }

    /// Replaces the text of a spot with other content.
    fn put(&mut self, spot: ViewPosition, content: &[Content]) {
        match spot {
            ViewPosition::Message(at) => {
                let kept = content.iter().filter(|content| is_text(content) || content.is_attachment());
                let kept: Vec<Content> = kept.cloned().collect();
                self.alter(at, |change| match change {
                    Change::Said { message, .. } | Change::Compacted { summary: message, .. } => {
                        message.content = kept;
                    }
                    _ => {}
                });
            }
            ViewPosition::Text(at) => {
                let old = self.reply(at).content;
                let before = old.iter().take_while(|content| !is_text(content));
                let mut new: Vec<Content> = before.cloned().collect();
                let rest = old[new.len()..].iter().filter(|content| !is_text(content));
                new.extend(content.iter().filter(|content| is_text(content)).cloned());
                new.extend(rest.cloned());
                self.set_reply(at, new);
            }
            ViewPosition::Outcome(at) => {
                let put = |outcome: &ToolOutcome| ToolOutcome {
                    content: content.iter().cloned().filter_map(OutcomeContent::of).collect(),
                    ..ToolOutcome::text(outcome.call.clone(), outcome.status, "")
                };
                self.alter(at, |change| {
                    if let Change::ToolFinished { outcome } = change {
                        *outcome = put(outcome);
                    }
                });
            }
            ViewPosition::Call(..) => {}
        }
    }

    fn drop_part(&mut self, spot: ViewPosition) {
        match spot {
            ViewPosition::Message(at) => self.remove(at),
            ViewPosition::Text(at) => {
                let content = self.reply(at).content.into_iter().filter(|content| !is_text(content));
                self.set_reply(at, content.collect());
            }
            ViewPosition::Call(at, call) => self.drop_call(at, call),
            ViewPosition::Outcome(at) => match self.call_of(at) {
                Some((reply, call)) => self.drop_call(reply, call),
                None => self.remove(at),
            },
        }
    }

    fn drop_call(&mut self, at: usize, call: usize) {
        let mut content = self.reply(at).content;
        let mut calls = content.iter().filter_map(Content::as_call);
        let Some(id) = calls.nth(call).map(|call| call.id.clone()) else { return };
        let of_call = |entry: &Arc<Entry>| entry.change.outcome().is_some_and(|outcome| outcome.call == id);
        if let Some(behind) =
            self.shown[at + 1..].iter().take_while(|entry| is_outcome(entry)).position(of_call)
        {
            self.remove(at + 1 + behind);
        }
        let count = self.shown[at].change.calls().count();
        let numbers = (0..count).filter(|other| *other != call);
        self.part_numbers[at].calls =
            Some(numbers.map(|other| self.part_numbers[at].call_number(other)).collect());
        // By its number: the ids of calls come from providers, and `numbers` lacks only one.
        let mut nth = 0usize..;
        content.retain(|content| content.as_call().is_none() || nth.next() != Some(call));
        self.set_reply(at, content);
    }

    fn reply(&self, at: usize) -> Message {
        match &self.shown[at].change {
            Change::Replied { message, .. } => message.clone(),
            _ => unreachable!("the place was found to be a reply's"),
        }
    }

    /// Gives a reply other content. Its thinking is removed, since its signature covers the original reply. A
    /// reply left without text and calls is removed.
    fn set_reply(&mut self, at: usize, mut content: Vec<Content>) {
        content.retain(|content| !matches!(content, Content::Thinking { .. }));
        let has_call = content.iter().any(|content| matches!(content, Content::Call(_)));
        if !has_call && !has_text(&content) {
            return self.remove(at);
        }
        self.alter(at, |change| {
            if let Change::Replied { message, .. } = change {
                message.content = content;
            }
        });
    }

    fn alter(&mut self, at: usize, alter: impl FnOnce(&mut Change)) {
        alter(&mut Arc::make_mut(&mut self.shown[at]).change);
    }

    fn remove(&mut self, at: usize) {
        self.shown.remove(at);
        self.part_numbers.remove(at);
        if at < self.head {
            self.head -= 1;
        }
    }
}

/// The line shown in place of masked content.
pub(super) fn placeholder(by: &str, note: &str, at: PartId) -> String {
    match note {
        "" => format!("[masked by {by}; entry {at}]"),
        note => format!("[masked by {by}: {note}; entry {at}]"),
    }
}

fn is_text(content: &Content) -> bool {
    matches!(content, Content::Text { .. })
}
