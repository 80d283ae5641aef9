//! The clients' view of a running compaction.

use tokio::sync::mpsc;

use super::Compactor;
use crate::core::Core;
use crate::summary::PIECES_MAX;
use crate::{CompactionState, SessionEvent};
use epitome_thread::MessageId;

/// Maximum bytes of a streaming summary that are shown, including failed attempts; the entry contains the
/// complete summary.
const SHOWN_BYTES_MAX: usize = 256 * 1024;

/// A compaction whose start was announced to clients.
pub(super) struct Announced {
    /// The id of its summary's message.
    pub id: MessageId,
    /// Tokens in context at the start.
    tokens: u64,
    /// The part of the summary that was shown, for clients that join later.
    wrote: String,
}

impl Compactor {
    /// Announces the start of a summary. Text sent to the returned channel is shown as it is written.
    pub(crate) fn show_begun(&mut self, core: &mut Core) -> mpsc::Sender<String> {
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

    /// The next piece of the summary; pending forever if none is being written.
    pub(crate) async fn next_piece(&mut self) -> Option<String> {
        match &mut self.pieces {
            Some(pieces) => pieces.recv().await,
            None => std::future::pending().await,
        }
    }

    /// Shows pieces that arrived together with the end.
    pub(crate) fn show_last_pieces(&mut self, core: &Core) {
        let Some(mut pieces) = self.pieces.take() else { return };
        while let Ok(piece) = pieces.try_recv() {
            self.show_piece(core, piece);
        }
    }

    pub(crate) fn show_piece(&mut self, core: &Core, piece: String) {
        let Some(Announced { id, wrote, .. }) = &mut self.announced else { return };
        if !piece.is_empty() && wrote.len() + piece.len() <= SHOWN_BYTES_MAX {
            wrote.push_str(&piece);
            core.announce(&SessionEvent::Compaction { id: *id, state: CompactionState::Wrote(piece) });
        }
    }

    /// Announces that an announced compaction has ended without a summary.
    pub(crate) fn show_ended(&mut self, core: &Core, state: CompactionState) {
        if let Some(Announced { id, .. }) = self.announced.take() {
            core.announce(&SessionEvent::Compaction { id, state });
        }
    }

    /// Forgets that a compaction was announced: its entry tells clients of its end.
    pub(crate) fn end_with_entry(&mut self) {
        self.announced = None;
    }

    /// The running compaction as events, for a client that joins in the middle of it.
    pub(crate) fn live(&self) -> Vec<SessionEvent> {
        let Some(Announced { id, tokens, wrote }) = &self.announced else { return Vec::new() };
        let mut states = vec![CompactionState::Began { tokens: *tokens }];
        if !wrote.is_empty() {
            states.push(CompactionState::Wrote(wrote.clone()));
        }
        states.into_iter().map(|state| SessionEvent::Compaction { id: *id, state }).collect()
    }
}
