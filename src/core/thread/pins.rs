//! Pins: parts of a thread whose text survives every compaction. They are read from the log, so no number of
//! compactions, masks or mutations can alter them.

use super::{Change, PartId, Thread, View, ViewEdit, ViewPart};

/// The `by` of an `Edited` entry for the user's pins. It cannot collide with a hook, which is named after its
/// file.
pub const PINNED_BY_PERSON: &str = "/pin";

impl Thread {
    /// Pinned parts in the order in which they were pinned, each with its text from the log.
    pub fn pins(&self) -> Vec<(PartId, String)> {
        let pinned = self.pinned();
        pinned.into_iter().filter_map(|part| Some((part, self.text_of(part)?))).collect()
    }

    /// Pinned parts, in the order in which they were pinned.
    pub fn pinned(&self) -> Vec<PartId> {
        let mut pinned: Vec<PartId> = Vec::new();
        for entry in self.view_changes() {
            let Change::Edited { edits, .. } = &entry.change else { continue };
            if self.is_undone(entry.seq) {
                continue;
            }
            for edit in edits {
                match edit {
                    ViewEdit::Pin { at } if !pinned.contains(at) => pinned.push(*at),
                    ViewEdit::Unpin { at } => pinned.retain(|known| known != at),
                    ViewEdit::Pin { .. }
                    | ViewEdit::Mask { .. }
                    | ViewEdit::Drop { .. }
                    | ViewEdit::Replace { .. }
                    | ViewEdit::Append { .. } => {}
                }
            }
        }
        pinned
    }

    /// The original text of a part as logged, whether or not it is in the view: what a pin keeps of it. For a call,
    /// its name and input.
    pub fn text_of(&self, part: PartId) -> Option<String> {
        let entry = self.entry(part.entry)?;
        let nth = part.part.map(|nth| (nth as usize).checked_sub(1));
        match (&entry.change, nth) {
            (Change::Said { message, .. }, None) => Some(message.text_with_files()),
            (Change::Replied { message, .. }, None) => Some(message.text()),
            (Change::Compacted { summary, .. }, None) => Some(summary.text()),
            (Change::ToolFinished { outcome }, None) => Some(outcome.model_text()),
            (Change::Replied { message, .. }, Some(nth)) => {
                message.calls().nth(nth?).map(|call| ViewPart::Call(call).text())
            }
            (Change::Mutated { messages, .. }, Some(nth)) => {
                messages.get(nth?).map(|spoken| spoken.message.text_with_files())
            }
            (Change::Edited { edits, .. }, Some(nth)) => {
                let appended = edits.iter().filter_map(|edit| match edit {
                    ViewEdit::Append { message, .. } => Some(message.text_with_files()),
                    _ => None,
                });
                appended.into_iter().nth(nth?)
            }
            _ => None,
        }
    }
}

impl View {
    /// Whether a pinned part is in the view: shown with this text, or quoted in a summary.
    pub(super) fn has_pin(&self, pin: PartId, text: &str) -> bool {
        self.piece(pin).is_some_and(|piece| piece.pin_text() == text) || self.quotes(text)
    }

    /// Whether a summary contains this text.
    pub(super) fn quotes(&self, text: &str) -> bool {
        self.entries().iter().any(|entry| match &entry.change {
            Change::Compacted { summary, .. } => summary.text().contains(text),
            _ => false,
        })
    }
}
