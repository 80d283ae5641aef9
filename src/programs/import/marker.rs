//! The first line of a message that leaves Epitome: by it the message is recognized when it comes back. That of an exported
//! session has no such line.

use super::builder::SUMMARY;
use epitome_compaction::unfold;
use sha2::{Digest, Sha256};

const OPEN: &str = "[Epitome message 1: ";

/// A message of Epitome within a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MarkedMessage<'a> {
    /// What its host put before it, and after it.
    pub around: [&'a str; 2],
    pub body: &'a str,
    /// Messages, replies and results that it stands for.
    pub entries: usize,
}

/// In the last line of a message, after the number of entries that it stands for.
const INDEX: &str = " no longer in view";

/// Puts the line before a message, and returns both and the digest.
pub fn sealed(body: &str, entries: usize) -> (String, String) {
    let digest = digest(body);
    let line = format!("{OPEN}{entries} entries, {} bytes, sha256 {digest}]", body.len());
    (format!("{line}\n{body}"), digest)
}

/// Finds a message in a text. If somebody changed it, it reaches to the end of the text.
pub(crate) fn find(text: &str) -> Option<MarkedMessage<'_>> {
    let (before, rest) = text.split_once(OPEN)?;
    let (line, rest) = rest.split_once("]\n")?;
    let (entries, line) = line.split_once(" entries, ")?;
    let (bytes, expected) = line.split_once(" bytes, sha256 ")?;
    let (entries, bytes) = (entries.parse().ok()?, bytes.parse().ok()?);
    let (body, after) = match rest.split_at_checked(bytes) {
        Some((body, after)) if digest(body) == expected => (body, after),
        Some(_) | None => (rest, ""),
    };
    Some(MarkedMessage { around: [before, after], body, entries })
}

/// A text that is a message without the line, and nothing else but the heading of a summary.
pub(crate) fn unmarked(text: &str) -> Option<MarkedMessage<'_>> {
    let body = text.strip_prefix(SUMMARY).unwrap_or(text);
    let (entries, _) = body.trim_end().lines().last().filter(|last| last.contains(INDEX))?.split_once(' ')?;
    Some(MarkedMessage { around: ["", ""], body, entries: entries.parse().ok()? })
}

/// Whether a title was made from a message.
pub(crate) fn is_title(text: &str) -> bool {
    text.starts_with(OPEN) || unfold(text).is_some()
}

fn digest(body: &str) -> String {
    let digest = Sha256::digest(body);
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
