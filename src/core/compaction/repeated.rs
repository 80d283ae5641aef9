//! Finds the words of the user that a summary already contains, so that a requested compaction does not quote them again next to
//! it. Pure.

/// Shorter words of the user are quoted all the same: a "yes" is a part of many sentences. In bytes.
pub(super) const QUOTE_BYTES_MIN: usize = 12;

/// The words of a summary, separated by single spaces; none if nothing is compared with it.
#[derive(Default)]
pub(super) struct SummaryWords(String);

impl SummaryWords {
    pub fn new(summary: &str) -> SummaryWords {
        SummaryWords(words(summary))
    }

    /// Whether the summary contains this text, however it is broken into lines.
    pub fn contain(&self, text: &str) -> bool {
        let text = words(text);
        text.len() >= QUOTE_BYTES_MIN && self.0.contains(&text)
    }
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
