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

/// Why a hook's edits or its new history are not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditRefusal {
    #[error("it was made for the view of revision {revision}, which was changed since (now {now})")]
    OtherView { revision: Seq, now: Seq },
    #[error("the list of edits is empty")]
    NoEdits,
    #[error("{0} edits at once; at most {EDITS_MAX} are made")]
    TooMany(usize),
    #[error("{edit}: {why}")]
    Edit {
        edit: String,
        #[source]
        why: PartRefusal,
    },
    #[error("the tool call {0} is still running")]
    CallRuns(CallId),
    #[error("the new history has no message")]
    NoMessages,
    #[error("message {at} of the new history: {why}")]
    Message {
        at: usize,
        #[source]
        why: PartRefusal,
    },
}

/// Why one edit, or one message of a new history, is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartRefusal {
    /// A content that no provider accepts there.
    #[error("{0}")]
    Content(&'static str),
    /// A part that the view cannot change so.
    #[error("{0}")]
    View(&'static str),
    #[error("it is not pinned")]
    NotPinned,
    #[error("it is pinned")]
    Pinned,
    #[error("{0} goes with it, and that is pinned")]
    TakesPin(PartId),
    #[error("a hook changed it, and a pin would restore the old text")]
    Rewritten,
    #[error("it has no text to pin")]
    NothingToPin,
    #[error("it has no text")]
    NoText,
    #[error("it is not in the view any more")]
    NotShown,
    #[error("there is no such entry")]
    NoEntry,
    #[error("its round is not over: the tool call {0} is still running")]
    CallRuns(CallId),
    #[error("nothing would be left in the view")]
    EmptiesView,
    #[error("the view would no longer begin with a user message")]
    BeginsWithAgent,
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
) -> Result<Vec<ViewEdit>, EditRefusal> {
    check_revision(thread, revision)?;
    if edits.is_empty() {
        return Err(EditRefusal::NoEdits);
    }
    if edits.len() > EDITS_MAX {
        return Err(EditRefusal::TooMany(edits.len()));
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
        let done = trial.make(edit).map_err(|why| EditRefusal::Edit { edit: name(at), why })?;
        checked.push(done);
        // A later edit may repair what this one breaks.
        broken_by = trial.fault().map(|why| (broken_by.map_or(at, |(first, _)| first), why));
    }
    match broken_by {
        Some((at, why)) if is_whole => Err(EditRefusal::Edit { edit: name(at), why }),
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
) -> Result<Replacement, EditRefusal> {
    check_revision(thread, revision)?;
    if let Some(call) = thread.open_calls().first() {
        return Err(EditRefusal::CallRuns(call.clone()));
    }
    if messages.is_empty() {
        return Err(EditRefusal::NoMessages);
    }
    let mut spoken = Vec::with_capacity(messages.len() + 1);
    if messages[0].role == Role::Assistant {
        let content = vec![Content::Text { text: LEAD.to_owned() }];
        spoken
            .push(HistoryMessage { role: Role::User, message: Message { id: first, content, author: None } });
    }
    for (at, message) in messages.into_iter().enumerate() {
        check_sayable(message.role, &message.message.content)
            .map_err(|why| EditRefusal::Message { at: at + 1, why })?;
        spoken.push(message);
    }
    for (id, spoken) in (first.0..).zip(&mut spoken) {
        spoken.message.id = MessageId(id);
    }
    let through = thread.through(thread.view().newest(preserve_recent));
    Ok(Replacement { through, messages: spoken })
}

fn check_revision(thread: &Thread, revision: Seq) -> Result<(), EditRefusal> {
    let now = thread.view().revision();
    if revision == now {
        return Ok(());
    }
    Err(EditRefusal::OtherView { revision, now })
}

/// Checks that every provider accepts such a message.
fn check_sayable(role: Role, content: &[Content]) -> Result<(), PartRefusal> {
    for content in content {
        if content.is_attachment() && role == Role::Assistant {
            return Err(PartRefusal::Content("the agent's words can only be text"));
        }
        if matches!(content, Content::Thinking { .. } | Content::Call(_)) {
            return Err(PartRefusal::Content("it may hold neither thinking nor tool calls"));
        }
    }
    let attached = content.iter().any(|content| !matches!(content, Content::Text { .. }));
    if has_text(content) || attached { Ok(()) } else { Err(PartRefusal::Content("it is blank")) }
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
    fn make(&mut self, edit: &ViewEdit) -> Result<ViewEdit, PartRefusal> {
        let edit = self.tidied(edit);
        match &edit {
            ViewEdit::Pin { at } => self.pin(*at)?,
            ViewEdit::Unpin { at } => {
                let known = self.pinned.len();
                self.pinned.retain(|pinned| pinned != at);
                if self.pinned.len() == known {
                    return Err(PartRefusal::NotPinned);
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
                    return Err(PartRefusal::Content("a tool's outcome can only be text and images"));
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

    fn pin(&mut self, at: PartId) -> Result<(), PartRefusal> {
        let shown = self.shown(at).ok_or_else(|| self.not_shown(at))?;
        if at.entry < self.layer.seq && self.thread.text_of(at).as_ref() != Some(&shown) {
            return Err(PartRefusal::Rewritten);
        }
        if shown.trim().is_empty() {
            return Err(PartRefusal::NothingToPin);
        }
        if !self.pinned.contains(&at) {
            self.pinned.push(at);
        }
        Ok(())
    }

    fn rewrite(&mut self, at: PartId, edit: &ViewEdit) -> Result<(), PartRefusal> {
        let spot = self.view.find(at).ok_or_else(|| self.not_shown(at))?;
        if let Some(call) = self.running_call(spot) {
            return Err(PartRefusal::CallRuns(call));
        }
        let before: Vec<Option<String>> = self.pinned.iter().map(|pin| self.pin_text(*pin)).collect();
        self.try_edit(edit)?;
        let mut pins = self.pinned.iter().zip(before);
        match pins.find(|(pin, before)| before.is_some() && self.pin_text(**pin) != *before) {
            Some((pin, _)) if *pin == at => Err(PartRefusal::Pinned),
            Some((pin, _)) => Err(PartRefusal::TakesPin(*pin)),
            None => Ok(()),
        }
    }

    fn try_edit(&mut self, edit: &ViewEdit) -> Result<(), PartRefusal> {
        // The author does not affect whether an edit is possible.
        self.view.edit(&self.layer, "", edit, &mut self.appended).map_err(PartRefusal::View)
    }

    /// The text of a pin in the view: as it is shown, or quoted in a summary.
    fn pin_text(&self, pin: PartId) -> Option<String> {
        self.shown(pin).or_else(|| self.thread.text_of(pin).filter(|text| self.view.quotes(text)))
    }

    fn shown(&self, part: PartId) -> Option<String> {
        self.view.piece(part).map(|piece| piece.pin_text())
    }

    fn not_shown(&self, at: PartId) -> PartRefusal {
        match self.thread.text_of(at) {
            Some(text) if text.trim().is_empty() => PartRefusal::NoText,
            Some(_) => PartRefusal::NotShown,
            None => PartRefusal::NoEntry,
        }
    }

    /// A call of the same reply that has no outcome yet.
    fn running_call(&self, spot: ViewPosition) -> Option<CallId> {
        let reply: &Arc<Entry> = &self.view.entries()[self.view.reply_of(spot)?];
        let open = self.thread.open_calls();
        reply.change.calls().find(|call| open.contains(&call.id)).map(|call| call.id.clone())
    }

    /// Why every provider would reject the current view, if so.
    fn fault(&self) -> Option<PartRefusal> {
        let first = self.view.entries().first().map(|entry| &entry.change);
        match first {
            None => Some(PartRefusal::EmptiesView),
            Some(Change::Said { .. } | Change::Compacted { .. }) => None,
            Some(_) => Some(PartRefusal::BeginsWithAgent),
        }
    }
}

#[cfg(test)]
#[path = "edits_tests.rs"]
mod tests;
