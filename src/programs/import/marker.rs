//! The first line of a message that leaves Epitome: by it the message is recognized when it comes back, and the conversation that it
//! stands for. That of an exported session has no such line.
//!
//! The conversation is recognized by what its agent said and called last. An importer may join or split replies, leave some out, or
//! add messages in the user's role; none of that changes the last words.

use super::builder::SUMMARY;
use epitome_compaction::unfold;
use epitome_thread::{Change, Content, Entry};
use sha2::{Digest, Sha256};

const OPEN: &str = "[Epitome message 1: ";

/// How many of the agent's last paragraphs and calls identify a conversation. Of 14,467 places in the sessions of KeepBench, 672 have
/// the same last one as a place in another session, and 4 have the same last four.
const LAST_WORDS: usize = 4;

/// A message of Epitome within a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MarkedMessage<'a> {
    /// What its host put before it, and after it.
    pub around: [&'a str; 2],
    pub body: &'a str,
    /// The digest of what the agent said and called last in the conversation that it stands for; empty if that is unknown.
    end: &'a str,
}

impl MarkedMessage<'_> {
    /// Whether a log has the conversation that the message stands for.
    pub fn is_of(&self, log: &[Entry]) -> bool {
        let words = words_of_agent(log.iter());
        (1..=words.len()).any(|end| end_of(&words[..end]) == self.end)
    }
}

/// In the last line of a message, after the number of entries that it stands for.
const INDEX: &str = " no longer in view";

/// Puts the line before a message about this log, and returns both and the digest.
pub fn sealed<'a>(body: &str, log: impl Iterator<Item = &'a Entry>) -> (String, String) {
    let (digest, end) = (digest(body), end_of(&words_of_agent(log)));
    (format!("{OPEN}{} bytes, sha256 {digest}, end {end}]\n{body}", body.len()), digest)
}

/// Finds a message in a text. If somebody changed it, it reaches to the end of the text.
pub(crate) fn find(text: &str) -> Option<MarkedMessage<'_>> {
    let (before, rest) = text.split_once(OPEN)?;
    let (line, rest) = rest.split_once("]\n")?;
    let (bytes, digests) = line.split_once(" bytes, sha256 ")?;
    // Messages of earlier versions begin with the number of entries, and have no end.
    let bytes = bytes.rsplit(' ').next()?.parse().ok()?;
    let (expected, end) = digests.split_once(", end ").unwrap_or((digests, ""));
    let (body, after) = match rest.split_at_checked(bytes) {
        Some((body, after)) if digest(body) == expected => (body, after),
        Some(_) | None => (rest, ""),
    };
    Some(MarkedMessage { around: [before, after], body, end })
}

/// A text that is a message without the line, and nothing else but the heading of a summary.
pub(crate) fn unmarked(text: &str) -> Option<MarkedMessage<'_>> {
    let body = text.strip_prefix(SUMMARY).unwrap_or(text);
    body.trim_end().lines().last().filter(|last| last.contains(INDEX))?;
    Some(MarkedMessage { around: ["", ""], body, end: "" })
}

/// Whether a title was made from a message.
pub(crate) fn is_title(text: &str) -> bool {
    text.starts_with(OPEN) || unfold(text).is_some()
}

/// The digests of the paragraphs and calls of all replies, without the white space, which hosts change.
fn words_of_agent<'a>(log: impl Iterator<Item = &'a Entry>) -> Vec<String> {
    let replies = log.filter_map(|entry| match &entry.change {
        Change::Replied { message, .. } => Some(&message.content),
        _ => None,
    });
    let mut words = Vec::new();
    let mut add = |text: &str| {
        let text: String = text.split_whitespace().collect();
        words.extend((!text.is_empty()).then(|| digest(&text)));
    };
    for part in replies.flatten() {
        match part {
            Content::Text { text } => text.split("\n\n").for_each(&mut add),
            Content::Call(call) => add(&format!("{} {}", call.name, call.input)),
            _ => {}
        }
    }
    words
}

fn end_of(words: &[String]) -> String {
    digest(&words[words.len().saturating_sub(LAST_WORDS)..].concat())
}

fn digest(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
