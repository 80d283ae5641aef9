//! What clients are shown of a compaction while it is made, and what its answer tells programs.

use crate::actor::Session;
use crate::work::Compacting;
use crate::{CompactionState, Out};

/// What is shown of a summary as it is written, in bytes, tries that came to nothing counted in; the whole
/// stands in the entry.
const SHOWN_BYTES_MAX: usize = 256 * 1024;

impl Session {
    /// Tells clients that a compaction which they were shown the beginning of will not be.
    pub(crate) fn compaction_came_to_nothing(&mut self, state: CompactionState) {
        if let Some(Compacting { id, .. }) = self.work.as_mut().and_then(|work| work.compacting.take()) {
            self.announce(&Out::Compaction { id, state });
        }
    }

    /// Shows the next piece of the summary that a model writes.
    pub(crate) fn compaction_wrote(&mut self, piece: String) {
        let Some(compacting) = self.work.as_mut().and_then(|work| work.compacting.as_mut()) else { return };
        if piece.is_empty() || compacting.wrote.len() + piece.len() > SHOWN_BYTES_MAX {
            return;
        }
        compacting.wrote.push_str(&piece);
        let id = compacting.id;
        self.announce(&Out::Compaction { id, state: CompactionState::Wrote(piece) });
    }

    /// How the running compaction stands, for a client that joins in the middle of it.
    pub(crate) fn live_compaction(&self) -> Vec<Out> {
        let Some(Compacting { id, tokens, wrote }) =
            self.work.as_ref().and_then(|work| work.compacting.as_ref())
        else {
            return Vec::new();
        };
        let mut outs = vec![Out::Compaction { id: *id, state: CompactionState::Began { tokens: *tokens } }];
        if !wrote.is_empty() {
            outs.push(Out::Compaction { id: *id, state: CompactionState::Wrote(wrote.clone()) });
        }
        outs
    }

    pub(crate) fn compaction_meta(&mut self, status: &str, tokens: Option<(u64, u64)>) {
        let Some(work) = &mut self.work else { return };
        let mut compaction = serde_json::json!({ "status": status });
        if let Some((before, after)) = tokens {
            compaction["pre_tokens"] = before.into();
            compaction["post_tokens"] = after.into();
        }
        work.meta = Some(serde_json::json!({ "epitome": { "compaction": compaction } }));
    }
}
