//! The change that replaces a conversation's history by messages of a hook.

use super::ReplacementRefusal;
use epitome_compaction as compaction;
use epitome_hooks::guards;
use epitome_hooks::output::Utterance;
use epitome_thread::{Change, Content, HistoryMessage, Message, MessageId, Seq, Thread, edits};
use epitome_tokens::Ruler;

/// Returns the change that replaces a thread's view up to and including `through` (the complete view if `None`) by
/// these messages, or why that is impossible. The messages are numbered from `first` and may take up to `tokens_max`
/// tokens.
pub(super) fn replacement(
    ruler: &Ruler,
    thread: &Thread,
    first: MessageId,
    by: String,
    (messages, preserve_recent): (&[Utterance], usize),
    through: Option<Seq>,
    tokens_max: u64,
) -> Result<Change, ReplacementRefusal> {
    let spoken = guards::checked(messages)?.into_iter().map(|Utterance { role, text }| HistoryMessage {
        role,
        message: Message { id: first, content: vec![Content::Text { text }], author: None },
    });
    let revision = thread.view().revision();
    let mut replacement = edits::mutation(thread, revision, first, spoken.collect(), preserve_recent)?;
    replacement.through = through.unwrap_or(replacement.through);
    Ok(compaction::mutated(ruler, thread, replacement, by, tokens_max)?)
}
