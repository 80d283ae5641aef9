//! Translates a compaction to wire updates: one item in the client, from its start through the streamed
//! summary to its final state. Pure.
//!
//! ```text
//!  in_progress ─► chunks … ─► completed (summary) │ failed (error) │ cancelled
//! ```
//!
//! Its id is that of the summary message. In a replay, it is a single `completed`.

use agent_client_protocol::v2::schema as wire;
use serde_json::json;
use wire::{CompactionStatus, SessionUpdate};

use super::model::Update;
use super::updates::{epitome_meta, fenced, pieces};
use epitome_session_api::CompactionState;
use epitome_thread::boundary::boundary_of;
use epitome_thread::{Change, Content, Entry, Message, MessageId, describe};

/// The delimiters of the model's summary within the message committed to the log.
const SUMMARY_OPEN: &str = "<summary>\n";
const SUMMARY_CLOSE: &str = "\n</summary>";

/// Bytes shown of each part other than the summary. Quoted user messages may take a fifth of a large window,
/// and are visible in the conversation anyway.
const PART_BYTES_MAX: usize = 8 * 1024;

/// The compaction whose start the client has seen, but not its end.
#[derive(Debug, Default)]
pub(super) struct OpenCompaction(Option<MessageId>);

impl OpenCompaction {
    /// Translates the progress of a compaction. Drops it if the client has not seen the compaction start.
    pub(super) fn state(&mut self, id: MessageId, state: CompactionState, updates: &mut Vec<Update>) {
        match state {
            CompactionState::Began { .. } => {
                if self.0 != Some(id) {
                    self.close(updates);
                    self.0 = Some(id);
                    updates.push(shared(update(id, CompactionStatus::InProgress)));
                }
            }
            CompactionState::Wrote(piece) => {
                if self.0 == Some(id) {
                    updates.extend(pieces(&piece).map(|piece| {
                        let piece = wire::ContentBlock::from(piece);
                        let chunk = wire::CompactionSummaryChunk::new(id.to_string(), piece);
                        Update::shared(SessionUpdate::CompactionSummaryChunk(chunk))
                    }));
                }
            }
            CompactionState::Failed(why) => {
                if self.0.take_if(|open| *open == id).is_some() {
                    updates.push(shared(update(id, CompactionStatus::Failed).error(why)));
                }
            }
            CompactionState::Cancelled => {
                if self.0 == Some(id) {
                    self.close(updates);
                }
            }
        }
    }

    /// Translates a committed compaction: its final content, regardless of what was streamed before.
    pub(super) fn completed(&mut self, session: &str, entry: &Entry, updates: &mut Vec<Update>) {
        let Change::Compacted { summary, tokens_before, tokens_after, account, .. } = &entry.change else {
            return;
        };
        if self.0 != Some(summary.id) {
            self.close(updates);
        }
        self.0 = None;
        let mut compaction = account.counts();
        compaction["entry"] = json!(entry.seq.to_string());
        compaction["pre_tokens"] = json!(tokens_before);
        compaction["post_tokens"] = json!(tokens_after);
        let boundary = boundary_of(session, entry);
        let meta = json!({ "boundary": boundary, "compaction": compaction });
        let completed = update(summary.id, CompactionStatus::Completed)
            .summary(shown(summary, describe(&entry.change).line))
            .meta(epitome_meta(meta));
        updates.push(shared(completed));
    }

    /// The compaction whose start the client has seen, but not its end.
    pub(super) fn id(&self) -> Option<MessageId> {
        self.0
    }

    /// Takes over the compaction that an earlier process has shown.
    pub(super) fn take_over(&mut self, id: Option<MessageId>) {
        self.0 = id;
    }

    /// Ends an open compaction as cancelled.
    pub(super) fn close(&mut self, updates: &mut Vec<Update>) {
        if let Some(id) = self.0.take() {
            updates.push(shared(update(id, CompactionStatus::Cancelled)));
        }
    }
}

fn update(id: MessageId, status: CompactionStatus) -> wire::CompactionUpdate {
    wire::CompactionUpdate::new(id.to_string(), status)
}

/// The start of a compaction for clients that read logs: with the tokens in context.
pub(super) fn began(id: MessageId, tokens: u64) -> Update {
    shared(update(id, CompactionStatus::InProgress).meta(epitome_meta(json!({ "tokens": tokens }))))
}

fn shared(update: wire::CompactionUpdate) -> Update {
    Update::shared(SessionUpdate::CompactionUpdate(update))
}

/// The content shown to the user, who can judge from it what was kept: first the model's summary as it was
/// streamed, so that the display does not jump; then the other parts as the model reads them, in code blocks,
/// because Markdown renderers would treat their tags as HTML and hide them; finally the statistics.
fn shown(message: &Message, line: Option<String>) -> Vec<wire::ContentBlock> {
    let mut blocks = Vec::new();
    // A leading provider-specific block of the summary is not readable text.
    let texts: Vec<&str> = message.content.iter().filter_map(Content::as_text).collect();
    for (index, text) in texts.iter().enumerate() {
        let (summary, rest) = match text.split_once(SUMMARY_OPEN) {
            Some((_, from)) if index == 0 => {
                let (summary, rest) = from.split_once(SUMMARY_CLOSE).unwrap_or((from, ""));
                (Some(summary), rest)
            }
            // The text that introduces the following parts to the model is not shown.
            None if index == 0 && texts.len() > 1 => continue,
            Some(_) | None => (None, *text),
        };
        blocks.extend(summary.filter(|summary| !summary.trim().is_empty()).map(str::to_owned));
        let rest = rest.trim_matches('\n');
        if !rest.is_empty() {
            blocks.push(fenced_part(rest));
        }
    }
    blocks.extend(line);
    blocks.into_iter().map(wire::ContentBlock::from).collect()
}

/// Puts text into a code block; a long text is truncated.
fn fenced_part(text: &str) -> String {
    let head = &text[..text.floor_char_boundary(PART_BYTES_MAX)];
    let block = fenced("text", head);
    match text.len() - head.len() {
        0 => block,
        more => format!("{block}\n({more} bytes more, which the model reads as well)"),
    }
}

#[cfg(test)]
#[path = "tests/compaction_wire.rs"]
mod tests;
