//! Counting tokens. For now by an estimate from the classes of characters, corrected by what the
//! provider last reported; never below zero cost for anything that is sent.

use crate::thread::{
    Change, Content, Edit, Entry, Message, OutcomeContent, Seq, Thread, ToolOutcome, ToolSpec, View,
};

/// Tokens that an image takes with any provider, roughly: they charge by area and cap it near this.
const IMAGE_TOKENS: u64 = 1_500;

/// Bytes of a PDF's page in base64, and the tokens that it takes, roughly: providers charge for its text and
/// for its picture. Counting the pages would need a reader of PDF.
const PAGE_BASE64_BYTES: usize = 64 * 1024;
const PAGE_TOKENS: u64 = 2_500;

/// Tokens that the frame of a message takes beside its text.
const MESSAGE_TOKENS: u64 = 4;

/// Estimates the tokens of a text.
///
/// Letters run about four to a token, digits and punctuation about two, other scripts about one and
/// a half characters. Measured against real vocabularies, plain bytes/4 is 44 %
/// too low on tool output, which is what agents are full of.
pub fn estimate(text: &str) -> u64 {
    // Counted in twelfths of a token, so that the sum stays in integers.
    let mut twelfths = 0u64;
    for byte in text.bytes() {
        twelfths += match byte {
            b'a'..=b'z' => 3,
            b'A'..=b'Z' => 4,
            b' ' | b'\t' => 1,
            b'0'..=b'9' => 6,
            0..=0x7f => 5,
            // Three bytes for most other scripts: about 0.7 tokens a character.
            0x80.. => 3,
        };
    }
    twelfths.div_ceil(12)
}

/// Estimates what a message takes in a request.
pub fn of_message(message: &Message) -> u64 {
    let parts = message.content.iter().map(|content| match content {
        Content::Text { text } => estimate(text),
        Content::Thinking { text, native } => match native {
            Some(_) => estimate(text),
            None => 0,
        },
        Content::Image { .. } => IMAGE_TOKENS,
        Content::Document { data, .. } => of_document(data),
        Content::Resource { uri, text } => estimate(uri) + estimate(text),
        Content::ResourceLink { uri, name } => estimate(uri) + estimate(name),
        Content::Call(call) => estimate(&call.name) + estimate(&call.input.to_string()) + MESSAGE_TOKENS,
    });
    MESSAGE_TOKENS + parts.sum::<u64>()
}

/// Estimates what an outcome takes in a request.
pub fn of_outcome(outcome: &ToolOutcome) -> u64 {
    let parts = outcome.content.iter().map(|content| match content {
        OutcomeContent::Text { text } => estimate(text),
        OutcomeContent::Image { .. } => IMAGE_TOKENS,
        OutcomeContent::Document { data, .. } => of_document(data),
    });
    MESSAGE_TOKENS + parts.sum::<u64>()
}

fn of_document(data: &str) -> u64 {
    data.len().div_ceil(PAGE_BASE64_BYTES) as u64 * PAGE_TOKENS
}

/// Estimates a whole view, without the frame.
pub fn of_view(view: &View) -> u64 {
    view.entries().iter().map(|entry| of_entry(entry)).sum()
}

/// Estimates the system text and the tools.
pub fn of_frame(system: &str, tools: &[ToolSpec]) -> u64 {
    let tools = tools.iter().map(|tool| {
        estimate(&tool.name)
            + estimate(&tool.description)
            + estimate(&tool.schema.to_string())
            + MESSAGE_TOKENS
    });
    estimate(system) + tools.sum::<u64>()
}

/// The tokens that the next request takes: what the provider reported for the newest reply whose
/// context is still the view's, and an estimate of what came behind it.
pub fn in_context(thread: &Thread) -> u64 {
    let mut tail = 0;
    for entry in thread.view().entries().iter().rev() {
        if let Change::Replied { usage: Some(usage), .. } = &entry.change
            && thread.is_seen_as_at(entry.seq)
        {
            return usage.input + usage.output + tail;
        }
        tail += of_entry(entry);
    }
    tail + thread.frame().map_or(0, |(system, tools)| of_frame(system, tools))
}

/// Follows one thread, so that a count costs what is new and not the whole view: where a provider reports
/// no usage, there would be more to count at every reply.
#[derive(Debug, Default)]
pub struct Counter {
    /// The view's revision at the last count, and what it came to.
    counted: Option<(Seq, u64)>,
    /// The first entry that it did not see.
    next: Seq,
}

impl Counter {
    /// As `in_context`, of the same thread each time.
    pub fn in_context(&mut self, thread: &Thread) -> u64 {
        let revision = thread.view().revision();
        let tokens = match self.counted {
            Some((same, tokens)) if same == revision => {
                let new = thread.entries().iter().skip(self.next.0 as usize);
                new.fold(tokens, |tokens, entry| match &entry.change {
                    Change::Replied { usage: Some(usage), .. } => usage.input + usage.output,
                    Change::Framed { system, tools } => tokens + of_frame(system, tools),
                    _ => tokens + of_entry(entry),
                })
            }
            Some(_) | None => in_context(thread),
        };
        self.counted = Some((revision, tokens));
        self.next = thread.next_seq();
        tokens
    }
}

/// Estimates what an entry takes in a request; nothing, where the model does not see it.
pub fn of_entry(entry: &Entry) -> u64 {
    match &entry.change {
        Change::Said { message, .. } | Change::Replied { message, .. } => of_message(message),
        Change::Compacted { summary, .. } => of_message(summary),
        Change::ToolFinished { outcome } => of_outcome(outcome),
        // In a log; the view has them as messages.
        Change::Edited { edits, .. } => edits.iter().map(of_edit).sum(),
        _ => 0,
    }
}

/// What an edit adds at the end of the view.
fn of_edit(edit: &Edit) -> u64 {
    match edit {
        Edit::Append { message, .. } => of_message(message),
        Edit::Pin { .. }
        | Edit::Unpin { .. }
        | Edit::Mask { .. }
        | Edit::Drop { .. }
        | Edit::Replace { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_near_known_counts() {
        // Counts of the o200k vocabulary for the same kinds of text.
        let cases = [
            ("The quick brown fox jumps over the lazy dog.", 10, 0.35),
            ("fn main() { assert_eq!(1 + 2, 3); }", 14, 0.5),
            ("总结这段对话，然后继续。", 9, 0.6),
        ];
        for (text, count, tolerance) in cases {
            let estimated = estimate(text) as f64;
            let error = (estimated - f64::from(count)).abs() / f64::from(count);
            assert!(error <= tolerance, "{text}: {estimated} for {count}");
        }
    }

    #[test]
    fn nothing_takes_nothing_and_more_takes_more() {
        assert_eq!(estimate(""), 0);
        assert!(estimate("ab") >= 1);
        assert!(estimate("hello hello") > estimate("hello"));
    }
}
