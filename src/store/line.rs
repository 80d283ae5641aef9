//! One line of a journal: an entry as JSON with a checksum. It touches no files except blobs.
//!
//! `{"crc":"89abcdef","seq":0,"at":1,"change":"opened",…}`: the CRC-32 is eight lowercase hexadecimal digits
//! and covers every byte after the first comma, up to and including the last brace. If bodies were moved out,
//! `"blobs":{"<place>":"<hash>",…}` is the next field (see `blobs`).

use serde::Deserialize;
use serde_json::Value;

use super::blobs::{BlobStore, INLINE_BYTES_MAX, MovedStrings};
use super::{StoreError, io_error};
use epitome_thread::{Entry, SessionId};

/// Precedes the checksummed bytes; the zeros are replaced.
const HEAD: &[u8] = br#"{"crc":"00000000","#;

/// Position of the checksum's digits.
const DIGITS: std::ops::Range<usize> = 8..16;

/// A line with an image or document contains one of these, because that is how `serde_json` writes the tags
/// of `Content` and `OutcomeContent`. False positives are harmless.
const ATTACHMENT_HINTS: [&str; 2] = [r#""type":"image""#, r#""type":"document""#];

/// Start of the second field of a line with moved bodies.
const BLOBS_FIELD: &[u8] = br#""blobs":"#;

/// A serialized line, including its newline.
pub(super) struct JournalLine {
    pub bytes: Vec<u8>,
    pub crc: u32,
    /// Whether bodies were moved to blobs.
    pub has_blobs: bool,
}

/// Why bytes are not a valid entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineFault {
    /// The bytes were altered.
    Checksum,
    /// The bytes are intact, but this build does not understand them.
    Meaning(String),
    /// The journal has the format of a newer version.
    Future(u32),
}

impl LineFault {
    pub fn reason(self) -> String {
        match self {
            LineFault::Checksum => "its checksum is wrong".to_owned(),
            LineFault::Meaning(reason) => reason,
            LineFault::Future(found) => format!("it has format {found}"),
        }
    }
}

/// Encodes an entry of a session as a line; large bodies are written to blobs first.
pub(super) fn encode(
    session: &SessionId,
    entry: &Entry,
    blobs: &BlobStore,
) -> Result<JournalLine, StoreError> {
    let unstorable = |error: serde_json::Error| StoreError::Unstorable {
        session: session.clone(),
        reason: error.to_string(),
    };
    let json = serde_json::to_string(entry).map_err(unstorable)?;
    if json.len() <= INLINE_BYTES_MAX && !ATTACHMENT_HINTS.iter().any(|hint| json.contains(hint)) {
        return Ok(seal(json.as_bytes(), false));
    }
    let mut value = serde_json::to_value(entry).map_err(unstorable)?;
    let moved = blobs
        .move_out(&mut value)
        .map_err(|source| io_error("write a blob in", blobs.directory(), source))?;
    if moved.is_empty() {
        return Ok(seal(json.as_bytes(), false));
    }
    let mut json = br#"{"blobs":"#.to_vec();
    serde_json::to_writer(&mut json, &moved).map_err(unstorable)?;
    json.push(b',');
    json.extend_from_slice(&serde_json::to_vec(&value).map_err(unstorable)?[1..]);
    Ok(seal(&json, true))
}

/// Prefixes an object that has at least one field with its checksum.
fn seal(json: &[u8], has_blobs: bool) -> JournalLine {
    let body = &json[1..];
    let crc = crc32fast::hash(body);
    let mut bytes = Vec::with_capacity(HEAD.len() + body.len() + 1);
    bytes.extend_from_slice(HEAD);
    bytes[DIGITS].copy_from_slice(format!("{crc:08x}").as_bytes());
    bytes.extend_from_slice(body);
    bytes.push(b'\n');
    JournalLine { bytes, crc, has_blobs }
}

/// Verifies a line, without its newline, and returns its checksum.
pub(super) fn check(line: &[u8]) -> Result<u32, LineFault> {
    let fault = LineFault::Checksum;
    let Some((head, body)) = line.split_at_checked(HEAD.len()) else { return Err(fault) };
    let framed = head[..DIGITS.start] == HEAD[..DIGITS.start] && head[DIGITS.end..] == HEAD[DIGITS.end..];
    let digits = &head[DIGITS];
    // `from_str_radix` alone would also accept upper case and a sign.
    let lower_hex = digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let crc = std::str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok());
    match crc {
        Some(crc) if framed && lower_hex && crc32fast::hash(body) == crc => Ok(crc),
        Some(_) | None => Err(fault),
    }
}

/// Whether invalid bytes are two lines joined by a broken newline, at least one of them intact. An
/// interrupted write never looks like this, so such bytes must not be cut off.
pub(super) fn holds_another(broken: &[u8]) -> bool {
    // Within an entry's text, the quotes would be escaped.
    let head = &HEAD[..DIGITS.start];
    let heads = broken.windows(head.len()).enumerate().skip(1).filter(|(_, bytes)| *bytes == head);
    let mut splits = heads.map(|(at, _)| (&broken[..at - 1], &broken[at..]));
    splits.any(|(before, after)| check(before).is_ok() || check(after).is_ok())
}

/// How much of an entry to read.
#[derive(Clone, Copy)]
pub(super) enum Bodies<'a> {
    /// Moved bodies are read back.
    Whole(&'a BlobStore),
    /// Moved bodies stay empty; for listings.
    Inline,
}

/// Decodes a verified line.
pub(super) fn decode(line: &[u8], bodies: Bodies<'_>) -> Result<Entry, LineFault> {
    let meaning = |error: serde_json::Error| LineFault::Meaning(error.to_string());
    match bodies {
        Bodies::Whole(blobs) if line[HEAD.len()..].starts_with(BLOBS_FIELD) => {
            let mut value: Value = serde_json::from_slice(line).map_err(meaning)?;
            let moved: MovedStrings = match value.get_mut("blobs").map(Value::take) {
                Some(Value::Object(moved)) => moved,
                _ => return Err(LineFault::Meaning("its blobs are not an object".to_owned())),
            };
            blobs.move_in(&mut value, &moved);
            serde_json::from_value(value).map_err(meaning)
        }
        Bodies::Whole(_) | Bodies::Inline => serde_json::from_slice(line).map_err(meaning),
    }
}

/// The hashes of the blobs that a verified line refers to.
pub(super) fn moved(line: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    struct Naming {
        blobs: std::collections::BTreeMap<String, String>,
    }
    if !line[HEAD.len()..].starts_with(BLOBS_FIELD) {
        return Vec::new();
    }
    let naming: Option<Naming> = serde_json::from_slice(line).ok();
    naming.into_iter().flat_map(|naming| naming.blobs.into_values()).collect()
}

/// The format version of a verified opening line; `None` if it is not an opening entry. It reads only fields
/// that any later build will write, so that a journal of a newer version is recognized.
pub(super) fn format(line: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct OpeningLine {
        change: String,
        format: u32,
    }
    let opening: OpeningLine = serde_json::from_slice(line).ok()?;
    (opening.change == "opened").then_some(opening.format)
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::{Change, Seq};

    fn entry(title: &str) -> Entry {
        Entry { seq: Seq(3), at: 17, change: Change::Titled { title: title.to_owned() } }
    }

    fn encoded(entry: &Entry) -> JournalLine {
        let session = SessionId("s_00000000000000000001".to_owned());
        encode(&session, entry, &BlobStore::new("/nonexistent".into())).unwrap()
    }

    #[test]
    fn a_line_is_the_entrys_json_after_its_checksum() {
        let line = encoded(&entry("Fix the bug"));
        let text = String::from_utf8(line.bytes).unwrap();
        let body = r#""seq":3,"at":17,"change":"titled","title":"Fix the bug"}"#;
        assert_eq!(text, format!("{{\"crc\":\"{:08x}\",{body}\n", crc32fast::hash(body.as_bytes())));
    }

    #[test]
    fn a_line_reads_back_as_its_entry() {
        let line = encoded(&entry("two\nlines and \u{1f980}"));
        let bytes = line.bytes.strip_suffix(b"\n").unwrap();
        assert_eq!(bytes.iter().filter(|b| **b == b'\n').count(), 0);
        assert_eq!(check(bytes), Ok(line.crc));
        assert_eq!(decode(bytes, Bodies::Inline), Ok(entry("two\nlines and \u{1f980}")));
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let line = encoded(&entry("x"));
        let bytes = line.bytes.strip_suffix(b"\n").unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.to_vec();
                flipped[at] ^= 1 << bit;
                assert_eq!(check(&flipped), Err(LineFault::Checksum), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn an_unknown_change_is_not_a_checksum_error() {
        let line = seal(br#"{"seq":1,"at":2,"change":"teleported"}"#, false);
        let bytes = line.bytes.strip_suffix(b"\n").unwrap();
        assert!(check(bytes).is_ok());
        assert!(matches!(decode(bytes, Bodies::Inline), Err(LineFault::Meaning(_))));
    }
}
