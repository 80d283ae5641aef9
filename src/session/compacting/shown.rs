//! What clients are shown of a compaction while it is made.

use tokio::sync::mpsc;

use super::Compactor;
use crate::core::Core;
use crate::summary::PIECES_MAX;
use crate::{CompactionState, SessionEvent};
use epitome_thread::MessageId;

/// What is shown of a summary as it is written, in bytes, tries that came to nothing counted in; the whole
/// stands in the entry.
const SHOWN_BYTES_MAX: usize = 256 * 1024;

/// A compaction that clients were told the beginning of.
pub(super) struct Announced {
    /// The id of its summary's message.
    pub id: MessageId,
    /// The tokens that it began with.
    tokens: u64,
    /// What of the summary was shown, for a client that joins in the middle.
    wrote: String,
}

impl Compactor {
    /// A summary begins to be written. Clients see it grow by what comes into the sender.
    pub(super) fn show_begun(&mut self, core: &mut Core) -> mpsc::Sender<String> {
        let (id, tokens) = (core.fresh_message(), core.tokens_in_context());
        core.announce(&SessionEvent::Compaction { id, state: CompactionState::Began { tokens } });
        self.announced = Some(Announced { id, tokens, wrote: String::new() });
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        self.pieces = Some(pieces);
        sender
    }

    pub(crate) fn is_announced(&self) -> bool {
        self.announced.is_some()
    }

    /// The next piece of the summary; never, where none is written.
    pub(crate) async fn next_piece(&mut self) -> Option<String> {
        match &mut self.pieces {
            Some(pieces) => pieces.recv().await,
            None => std::future::pending().await,
        }
    }

    /// What was written last may have come at the same moment as the end.
    pub(super) fn show_last_pieces(&mut self, core: &Core) {
        let Some(mut pieces) = self.pieces.take() else { return };
        while let Ok(piece) = pieces.try_recv() {
            self.show_piece(core, piece);
        }
    }

    /// Shows the next piece of the summary that a model writes.
    pub(crate) fn show_piece(&mut self, core: &Core, piece: String) {
        let Some(Announced { id, wrote, .. }) = &mut self.announced else { return };
        if !piece.is_empty() && wrote.len() + piece.len() <= SHOWN_BYTES_MAX {
            wrote.push_str(&piece);
            core.announce(&SessionEvent::Compaction { id: *id, state: CompactionState::Wrote(piece) });
        }
    }

    /// Tells clients that a compaction which they were shown the beginning of will not be.
    pub(crate) fn show_ended(&mut self, core: &Core, state: CompactionState) {
        if let Some(Announced { id, .. }) = self.announced.take() {
            core.announce(&SessionEvent::Compaction { id, state });
        }
    }

    /// How the running compaction stands, for a client that joins in the middle of it.
    pub(crate) fn live(&self) -> Vec<SessionEvent> {
        let Some(Announced { id, tokens, wrote }) = &self.announced else { return Vec::new() };
        let mut states = vec![CompactionState::Began { tokens: *tokens }];
        if !wrote.is_empty() {
            states.push(CompactionState::Wrote(wrote.clone()));
        }
        states.into_iter().map(|state| SessionEvent::Compaction { id: *id, state }).collect()
    }
}
