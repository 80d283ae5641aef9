//! Entries that hooks have removed or replaced. Neither a compaction's quotes nor a search of the log may restore them.

use std::collections::{HashMap, HashSet};

use super::edited::placeholder;
use super::{CallId, Change, Content, Entry, Seq, Thread, ViewEdit};

/// The entries whose logged content edits or new histories of hooks have rewritten.
#[derive(Clone, Debug, Default)]
pub struct RewrittenEntries {
    /// All entries up to and including this one.
    through: Option<Seq>,
    /// Entries edited individually, with the content that the newest edit gave them; `None` if it dropped them.
    single: HashMap<Seq, Option<Vec<Content>>>,
    /// Calls that were dropped together with their outcomes.
    calls: HashSet<CallId>,
}

impl RewrittenEntries {
    /// Adds what an active entry of the thread rewrites.
    pub fn take(&mut self, thread: &Thread, entry: &Entry) {
        match &entry.change {
            Change::Mutated { through, .. } => self.through = self.through.max(Some(*through)),
            Change::Edited { by, edits } => {
                edits.iter().filter(|edit| edit.rewrites()).for_each(|edit| self.edit(thread, by, edit));
            }
            _ => {}
        }
    }

    fn edit(&mut self, thread: &Thread, by: &str, edit: &ViewEdit) {
        let Some(at) = edit.at() else { return };
        let content = match edit {
            ViewEdit::Replace { content, .. } => Some(content.clone()),
            ViewEdit::Mask { note, .. } => Some(vec![Content::Text { text: placeholder(by, note, at) }]),
            ViewEdit::Drop { .. }
            | ViewEdit::Pin { .. }
            | ViewEdit::Unpin { .. }
            | ViewEdit::Append { .. } => None,
        };
        self.single.insert(at.entry, content);
        let Some(entry) = thread.entry(at.entry) else { return };
        match &entry.change {
            // A summary describes everything that it replaced. If it is undone, that is in the view again.
            Change::Compacted { through, .. } if !thread.is_undone(at.entry) => {
                self.through = self.through.max(Some(*through));
            }
            // A call and its outcome are dropped together, whichever of them the edit refers to.
            Change::ToolFinished { outcome } if matches!(edit, ViewEdit::Drop { .. }) => {
                self.calls.insert(outcome.call.clone());
            }
            Change::Replied { message, .. } if matches!(edit, ViewEdit::Drop { .. }) => {
                let number = at.part.and_then(|part| usize::try_from(part).ok()?.checked_sub(1));
                self.calls.extend(number.and_then(|at| message.calls().nth(at)).map(|call| call.id.clone()));
            }
            _ => {}
        }
    }

    pub fn contains(&self, entry: Seq) -> bool {
        self.through.is_some_and(|through| entry <= through) || self.single.contains_key(&entry)
    }

    pub fn contains_call(&self, call: &CallId) -> bool {
        self.calls.contains(call)
    }

    /// The content that an edit gave to a message, whether or not the message is still in the view. `None` if the
    /// message was not edited individually, was dropped, or belongs to a history that was replaced later.
    pub fn content(&self, message: Seq) -> Option<&[Content]> {
        match self.through.is_some_and(|through| message <= through) {
            true => None,
            false => self.single.get(&message)?.as_deref(),
        }
    }
}

impl Thread {
    /// Returns the entries that the active edits and histories of hooks have rewritten.
    pub fn rewritten(&self) -> RewrittenEntries {
        let mut rewritten = RewrittenEntries::default();
        self.active_view_changes().for_each(|entry| rewritten.take(self, entry));
        rewritten
    }

    /// Whether an active edit or new history of a hook has rewritten this entry.
    pub fn is_rewritten(&self, entry: Seq) -> bool {
        self.rewritten().contains(entry)
    }
}
