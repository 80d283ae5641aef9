//! Checks whether edits or a new history of a hook can be applied. Pure. Each request is accepted or rejected as a
//! unit, with an error that names the reason and the faulty item.

use std::sync::Arc;

use super::edited::ViewPosition;
use super::view::has_text;
use super::{
    CallId, Change, Content, Entry, HistoryMessage, Message, MessageId, PartId, Role, Seq, Thread, View,
    ViewEdit,
};

/// Maximum number of edits in a list. Each edit searches the view.
pub const EDITS_MAX: usize = 256;

/// Maximum length of a mask's note in characters: it is shown as one line in place of the content.
const NOTE_CHARS_MAX: usize = 200;

/// Inserted before a history that begins with the agent's words: every provider requires a user message
/// first.
const LEAD: &str = "(The conversation goes on from here.)";

/// A history that is ready to replace the older part of the view.
#[derive(Clone, Debug, PartialEq)]
pub struct Replacement {
    pub through: Seq,
    pub messages: Vec<HistoryMessage>,
}

/// Returns the edits in the form to append, or the reason why none of them can be made.
///
/// `revision` is the revision of the view that they were made for. Appended messages are numbered from
/// `first`.
pub fn check(
    thread: &Thread,
    revision: Seq,
    first: MessageId,
    edits: &[ViewEdit],
) -> Result<Vec<ViewEdit>, String> {
    check_revision(thread, revision)?;
    if edits.is_empty() {
        return Err("the list of edits is empty".to_owned());
    }
    if edits.len() > EDITS_MAX {
        return Err(format!("{} edits at once; at most {EDITS_MAX} are made", edits.len()));
    }
    let mut trial = Trial {
        thread,
        view: thread.view().clone(),
        pinned: thread.pinned(),
        layer: Entry { seq: thread.next_seq(), at: 0, change: Change::Undone { entry: Seq(0) } },
        appended: 0,
        next: first,
    };
    let name = |at: usize| {
        let edit = &edits[at];
        let named = edit.at().map(|part| format!(" {part}")).unwrap_or_default();
        format!("edit {} of {}, {}{named}", at + 1, edits.len(), edit.op())
    };
    let mut checked = Vec::with_capacity(edits.len());
    let is_whole = trial.fault().is_none();
    let mut broken_by = None;
    for (at, edit) in edits.iter().enumerate() {
        let done = trial.make(edit).map_err(|why| format!("{}: {why}", name(at)))?;
        checked.push(done);
        // A later edit may repair what this one breaks.
        broken_by = trial.fault().map(|why| (broken_by.map_or(at, |(first, _)| first), why));
    }
    match broken_by {
        Some((at, why)) if is_whole => Err(format!("{}: {why}", name(at))),
        Some(_) | None => Ok(checked),
    }
}

/// Checks a history that is to replace the view. The newest `preserve_recent` messages are kept after it,
/// extended to complete rounds. The new messages are numbered from `first`.
pub fn mutation(
    thread: &Thread,
    revision: Seq,
    first: MessageId,
    messages: Vec<HistoryMessage>,
    preserve_recent: usize,
) -> Result<Replacement, String> {
    check_revision(thread, revision)?;
    if let Some(call) = thread.open_calls().first() {
        return Err(format!("the tool call {call} is still running"));
    }
    if messages.is_empty() {
        return Err("the new history has no message".to_owned());
    }
    let mut spoken = Vec::with_capacity(messages.len() + 1);
    if messages[0].role == Role::Assistant {
        let content = vec![Content::Text { text: LEAD.to_owned() }];
        spoken
            .push(HistoryMessage { role: Role::User, message: Message { id: first, content, author: None } });
    }
    for (at, message) in messages.into_iter().enumerate() {
        check_sayable(message.role, &message.message.content)
            .map_err(|why| format!("message {} of the new history: {why}", at + 1))?;
        spoken.push(message);
    }
    for (id, spoken) in (first.0..).zip(&mut spoken) {
        spoken.message.id = MessageId(id);
    }
    let through = thread.through(thread.view().newest(preserve_recent));
    Ok(Replacement { through, messages: spoken })
}

fn check_revision(thread: &Thread, revision: Seq) -> Result<(), String> {
    let now = thread.view().revision();
    if revision == now {
        return Ok(());
    }
    Err(format!("it was made for the view of revision {revision}, which was changed since (now {now})"))
}

/// Checks that every provider accepts such a message.
fn check_sayable(role: Role, content: &[Content]) -> Result<(), String> {
    for content in content {
        if content.is_attachment() && role == Role::Assistant {
            return Err("the agent's words can only be text".to_owned());
        }
        if matches!(content, Content::Thinking { .. } | Content::Call(_)) {
            return Err("it may hold neither thinking nor tool calls".to_owned());
        }
    }
    let attached = content.iter().any(|content| !matches!(content, Content::Text { .. }));
    if has_text(content) || attached { Ok(()) } else { Err("it is blank".to_owned()) }
}

/// Applies edits to a copy of the view.
struct Trial<'a> {
    thread: &'a Thread,
    view: View,
    pinned: Vec<PartId>,
    /// A placeholder for the entry that the edits will become.
    layer: Entry,
    appended: u32,
    next: MessageId,
}

impl Trial<'_> {
    /// Applies an edit and returns the form to store.
    fn make(&mut self, edit: &ViewEdit) -> Result<ViewEdit, String> {
        let edit = self.tidied(edit);
        match &edit {
            ViewEdit::Pin { at } => self.pin(*at)?,
            ViewEdit::Unpin { at } => {
                let known = self.pinned.len();
                self.pinned.retain(|pinned| pinned != at);
                if self.pinned.len() == known {
                    return Err("it is not pinned".to_owned());
                }
            }
            ViewEdit::Mask { at, .. } | ViewEdit::Drop { at } => {
                self.rewrite(*at, &edit)?;
            }
            ViewEdit::Replace { at, content } => {
                let spot = self.view.find(*at);
                let is_reply = matches!(spot, Some(ViewPosition::Text(_)));
                check_sayable(if is_reply { Role::Assistant } else { Role::User }, content)?;
                let is_outcome = matches!(spot, Some(ViewPosition::Outcome(_)));
                let is_file = |content: &Content| {
                    matches!(content, Content::Resource { .. } | Content::ResourceLink { .. })
                };
                if is_outcome && content.iter().any(is_file) {
                    return Err("a tool's outcome can only be text and images".to_owned());
                }
                self.rewrite(*at, &edit)?;
            }
            ViewEdit::Append { role, message } => {
                check_sayable(*role, &message.content)?;
                self.try_edit(&edit)?;
            }
        }
        Ok(edit)
    }

    fn tidied(&mut self, edit: &ViewEdit) -> ViewEdit {
        let mut edit = edit.clone();
        match &mut edit {
            ViewEdit::Mask { note, .. } => {
                let words: Vec<&str> = note.split_whitespace().collect();
                *note = words.join(" ").chars().take(NOTE_CHARS_MAX).collect();
            }
            ViewEdit::Append { message, .. } => {
                message.id = self.next;
                self.next.0 += 1;
            }
            ViewEdit::Pin { .. }
            | ViewEdit::Unpin { .. }
            | ViewEdit::Drop { .. }
            | ViewEdit::Replace { .. } => {}
        }
        edit
    }

    fn pin(&mut self, at: PartId) -> Result<(), String> {
        let shown = self.shown(at).ok_or_else(|| self.not_shown(at))?;
        if at.entry < self.layer.seq && self.thread.text_of(at).as_ref() != Some(&shown) {
            return Err("a hook changed it, and a pin would restore the old text".to_owned());
        }
        if shown.trim().is_empty() {
            return Err("it has no text that could be kept".to_owned());
        }
        if !self.pinned.contains(&at) {
            self.pinned.push(at);
        }
        Ok(())
    }

    fn rewrite(&mut self, at: PartId, edit: &ViewEdit) -> Result<(), String> {
        let spot = self.view.find(at).ok_or_else(|| self.not_shown(at))?;
        if let Some(call) = self.running_call(spot) {
            return Err(format!("its round is not over: the tool call {call} is still running"));
        }
        let before: Vec<Option<String>> = self.pinned.iter().map(|pin| self.pin_text(*pin)).collect();
        self.try_edit(edit)?;
        let mut pins = self.pinned.iter().zip(before);
        match pins.find(|(pin, before)| before.is_some() && self.pin_text(**pin) != *before) {
            Some((pin, _)) if *pin == at => Err("it is pinned".to_owned()),
            Some((pin, _)) => Err(format!("{pin} goes with it, and that is pinned")),
            None => Ok(()),
        }
    }

    fn try_edit(&mut self, edit: &ViewEdit) -> Result<(), String> {
        // The author does not affect whether an edit is possible.
        self.view.edit(&self.layer, "", edit, &mut self.appended).map_err(str::to_owned)
    }

    /// The text of a pin in the view: as it is shown, or quoted in a summary.
    fn pin_text(&self, pin: PartId) -> Option<String> {
        self.shown(pin).or_else(|| self.thread.text_of(pin).filter(|text| self.view.quotes(text)))
    }

    fn shown(&self, part: PartId) -> Option<String> {
        self.view.piece(part).map(|piece| piece.pin_text())
    }

    fn not_shown(&self, at: PartId) -> String {
        match self.thread.text_of(at) {
            Some(text) if text.trim().is_empty() => "it has no text".to_owned(),
            Some(_) => "it is not in the view any more".to_owned(),
            None => "there is no such entry".to_owned(),
        }
    }

    /// A call of the same reply that has no outcome yet.
    fn running_call(&self, spot: ViewPosition) -> Option<CallId> {
        let reply: &Arc<Entry> = &self.view.entries()[self.view.reply_of(spot)?];
        let open = self.thread.open_calls();
        reply.change.calls().find(|call| open.contains(&call.id)).map(|call| call.id.clone())
    }

    /// Why every provider would reject the current view, if so.
    fn fault(&self) -> Option<String> {
        let first = self.view.entries().first().map(|entry| &entry.change);
        match first {
            None => Some("nothing would be left in the view".to_owned()),
            Some(Change::Said { .. } | Change::Compacted { .. }) => None,
            Some(_) => Some("the view would no longer begin with a user message".to_owned()),
        }
    }
}

#[cfg(test)]
#[path = "edits_tests.rs"]
mod tests;
