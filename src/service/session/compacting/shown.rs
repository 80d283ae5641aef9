//! A compaction as clients see it while it runs, and as hooks see its recipe's end.

use std::collections::BTreeMap;

use tokio::sync::mpsc;

use super::Compactor;
use crate::core::Core;
use crate::summary::PIECES_MAX;
use crate::{CompactionState, SessionEvent};
use epitome_recipe::command::RecipeArguments;
use epitome_recipe::parse::Recipe;
use epitome_thread::{Change, MessageId, ModelName, Origin, View};

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

/// The view with the summary as the newest reply, as at the end of a callback's conversation: a script that
/// processes the recipe's text looks for it there.
pub(crate) fn view_with_reply(core: &mut Core, text: &str) -> View {
    let reply = reply(core, text);
    let mut callback = core.thread.clone();
    callback.apply_trial(reply);
    callback.view().clone()
}

fn reply(core: &mut Core, text: &str) -> Change {
    let message = core.message(text);
    let model = core.model.endpoint().map_or_else(|| ModelName(String::new()), |it| it.name.clone());
    Change::Replied { message, model, usage: None, cut: None }
}

/// The data of the stop event for a compaction that the user ordered, as for a callback: its arguments, and the
/// view with the recipe's prompt and the message that has replaced the history. `None` for another stop.
pub(crate) fn stop_of_compaction(
    core: &mut Core,
    recipe: &Recipe,
) -> Option<(BTreeMap<String, String>, View)> {
    let compacted = core.thread.last_compaction()?.clone();
    let Change::Compacted { summary, .. } = &compacted.change else { return None };
    let prompt = core.render_without_shell(recipe, &RecipeArguments::default());
    let message = core.message(prompt.unwrap_or_else(|| recipe.body.clone()));
    let origin = Origin::Recipe { recipe: recipe.id.clone(), typed: String::new() };
    let reply = reply(core, &summary.text());
    let mut shown = core.thread.clone();
    shown.apply_trial(Change::Said { message, origin });
    shown.apply_trial(reply);
    let target = ("target_conversation_id".to_owned(), core.id().0.clone());
    Some((BTreeMap::from([target]), shown.view().clone()))
}
