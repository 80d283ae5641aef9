//! A compaction in the words of the wire: one thing that a client shows in its place, from the beginning over
//! the summary as it is written to what stands in the end. Pure.
//!
//! ```text
//!  in_progress ─► chunks … ─► completed (summary) │ failed (error) │ cancelled
//! ```
//!
//! Its id is that of the summary's message. In a replay it is a single `completed`.

use agent_client_protocol::v1::schema as wire;
use serde_json::json;
use wire::SessionUpdate;

use super::updates::pieces;
use epitome_session::CompactionState;
use epitome_thread::boundary::boundary_of;
use epitome_thread::{Change, Content, Entry, Message, MessageId, text};

/// How the model's own summary stands in the message that it is committed in.
const SUMMARY_OPEN: &str = "<summary>\n";
const SUMMARY_CLOSE: &str = "\n</summary>";

/// What is shown of each part that stands beside the summary, in bytes. What the person said may take a
/// fifth of a large window, and the whole of it stands above in the conversation.
const PART_BYTES_MAX: usize = 8 * 1024;

/// The compaction that a client was shown the beginning of and not the end.
#[derive(Debug, Default)]
pub(super) struct Open(Option<MessageId>);

impl Open {
    /// How a compaction that is not done stands. What belongs to none that the client knows is left out.
    pub(super) fn state(&mut self, id: MessageId, state: CompactionState, updates: &mut Vec<SessionUpdate>) {
        match state {
            CompactionState::Began { .. } => {
                if self.0 != Some(id) {
                    self.close(updates);
                    self.0 = Some(id);
                    updates.push(update(id, wire::CompactionStatus::InProgress, |update| update));
                }
            }
            CompactionState::Wrote(piece) => {
                if self.0 == Some(id) {
                    updates.extend(pieces(&piece).map(|piece| {
                        let content = wire::ContentBlock::from(piece);
                        let chunk = wire::CompactionSummaryChunk::new(id.to_string(), content);
                        SessionUpdate::CompactionSummaryChunk(chunk)
                    }));
                }
            }
            CompactionState::Failed(why) => {
                if self.0.take_if(|open| *open == id).is_some() {
                    updates.push(update(id, wire::CompactionStatus::Failed, |update| update.error(why)));
                }
            }
            CompactionState::Cancelled => {
                if self.0 == Some(id) {
                    self.close(updates);
                }
            }
        }
    }

    /// The compaction is in the log: what stands now, whatever was streamed before.
    pub(super) fn completed(&mut self, session: &str, entry: &Entry, updates: &mut Vec<SessionUpdate>) {
        let Change::Compacted { summary, tokens_before, tokens_after, account, .. } = &entry.change else {
            return;
        };
        if self.0 != Some(summary.id) {
            self.close(updates);
        }
        self.0 = None;
        let mut meta = wire::Meta::new();
        let mut compaction = account.counts();
        compaction["entry"] = json!(entry.seq.to_string());
        compaction["pre_tokens"] = json!(tokens_before);
        compaction["post_tokens"] = json!(tokens_after);
        let boundary = boundary_of(session, entry);
        meta.insert("epitome".to_owned(), json!({ "boundary": boundary, "compaction": compaction }));
        let blocks = shown(summary, text::one_line(&entry.change));
        updates.push(update(summary.id, wire::CompactionStatus::Completed, |update| {
            update.summary(blocks).meta(meta)
        }));
    }

    /// Ends one that the client was shown the beginning of: nothing came of it.
    pub(super) fn close(&mut self, updates: &mut Vec<SessionUpdate>) {
        if let Some(id) = self.0.take() {
            updates.push(update(id, wire::CompactionStatus::Cancelled, |update| update));
        }
    }
}

fn update(
    id: MessageId,
    status: wire::CompactionStatus,
    with: impl FnOnce(wire::CompactionUpdate) -> wire::CompactionUpdate,
) -> SessionUpdate {
    SessionUpdate::CompactionUpdate(with(wire::CompactionUpdate::new(id.to_string(), status)))
}

/// What people see of a compaction, so that they can judge what was kept: first the model's summary as it
/// was streamed, so that nothing jumps; then the other parts as the model reads them, each in a block of
/// code, because renderers of Markdown take tags for HTML and hide them; last the numbers.
fn shown(message: &Message, line: Option<String>) -> Vec<wire::ContentBlock> {
    let mut blocks = Vec::new();
    // A provider's own form of it, which stands in front, is for nobody else.
    let texts = message.content.iter().filter_map(|content| match content {
        Content::Text { text } => Some(text),
        Content::Thinking { .. }
        | Content::Call(_)
        | Content::Image { .. }
        | Content::Document { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. } => None,
    });
    let texts: Vec<&String> = texts.collect();
    for (index, text) in texts.iter().enumerate() {
        let (summary, beside) = match text.split_once(SUMMARY_OPEN) {
            Some((_, from)) if index == 0 => parts_of_first(from),
            // The words that introduce what follows to the model are no news to people.
            None if index == 0 && texts.len() > 1 => continue,
            Some(_) | None => (None, text.as_str()),
        };
        blocks.extend(summary.filter(|summary| !summary.trim().is_empty()).map(str::to_owned));
        let beside = beside.trim_matches('\n');
        if !beside.is_empty() {
            blocks.push(fenced(beside));
        }
    }
    blocks.extend(line);
    blocks.into_iter().map(wire::ContentBlock::from).collect()
}

/// The model's summary in the first part, which begins with it, and what stands behind it.
fn parts_of_first(from: &str) -> (Option<&str>, &str) {
    match from.split_once(SUMMARY_CLOSE) {
        Some((summary, beside)) => (Some(summary), beside),
        None => (Some(from), ""),
    }
}

/// A text in a block of code, with a fence that it does not hold itself; of a long one the head.
fn fenced(text: &str) -> String {
    let head = &text[..text.floor_char_boundary(PART_BYTES_MAX)];
    let longest = head.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    match text.len() - head.len() {
        0 => format!("{fence}text\n{head}\n{fence}"),
        more => format!("{fence}text\n{head}\n{fence}\n({more} bytes more, which the model reads as well)"),
    }
}

#[cfg(test)]
#[path = "compaction_wire_tests.rs"]
mod tests;
