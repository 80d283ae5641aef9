//! One line of a journal: an entry as JSON behind a checksum. It touches no file but blobs.
//!
//! `{"crc":"89abcdef","seq":0,"at":1,"change":"opened",…}`: eight lower-case hexadecimal digits of the
//! CRC-32 of every byte from behind the comma up to and with the last brace. Where big bodies were
//! moved out, `"blobs":{"<place>":"<hash>",…}` stands first (see `blobs`).

use serde::Deserialize;
use serde_json::Value;

use super::blobs::{Blobs, INLINE_BYTES_MAX, Moved};
use epitome_thread::Entry;

/// What stands before the checksummed bytes; the zeros are replaced.
const HEAD: &[u8] = br#"{"crc":"00000000","#;

/// Where the checksum's digits are.
const DIGITS: std::ops::Range<usize> = 8..16;

/// What a line that holds an image or a document contains, because that is how `serde_json` writes the
/// tags of `Content` and `OutcomeContent`. Other lines may hold it too, at no harm.
const ATTACHMENT_HINTS: [&str; 2] = [r#""type":"image""#, r#""type":"document""#];

/// What the second field of a line with moved bodies begins with.
const BLOBS_FIELD: &[u8] = br#""blobs":"#;

/// A line as it is written, its newline included.
pub(super) struct Line {
    pub bytes: Vec<u8>,
    pub crc: u32,
    /// Whether bodies were moved into blobs.
    pub has_blobs: bool,
}

/// Why an entry did not become a line.
#[derive(Debug, thiserror::Error)]
pub(super) enum EncodeError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Blob(std::io::Error),
}

/// Why bytes are no entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineFault {
    /// The bytes are not what was written.
    Checksum,
    /// They are what was written, and this build does not understand them.
    Meaning(String),
}

/// Makes the line of an entry; big bodies are written as blobs first.
pub(super) fn encode(entry: &Entry, blobs: &Blobs) -> Result<Line, EncodeError> {
    let json = serde_json::to_string(entry)?;
    if json.len() <= INLINE_BYTES_MAX && !ATTACHMENT_HINTS.iter().any(|hint| json.contains(hint)) {
        return Ok(seal(json.as_bytes(), false));
    }
    let mut value = serde_json::to_value(entry)?;
    let moved = blobs.move_out(&mut value).map_err(EncodeError::Blob)?;
    if moved.is_empty() {
        return Ok(seal(json.as_bytes(), false));
    }
    let mut json = br#"{"blobs":"#.to_vec();
    serde_json::to_writer(&mut json, &moved)?;
    json.push(b',');
    json.extend_from_slice(&serde_json::to_vec(&value)?[1..]);
    Ok(seal(&json, true))
}

/// Puts the checksum before an object with at least one field.
fn seal(json: &[u8], has_blobs: bool) -> Line {
    let body = &json[1..];
    let crc = crc32fast::hash(body);
    let mut bytes = Vec::with_capacity(HEAD.len() + body.len() + 1);
    bytes.extend_from_slice(HEAD);
    bytes[DIGITS].copy_from_slice(format!("{crc:08x}").as_bytes());
    bytes.extend_from_slice(body);
    bytes.push(b'\n');
    Line { bytes, crc, has_blobs }
}

/// Checks a line without its newline and returns its checksum.
pub(super) fn check(line: &[u8]) -> Result<u32, LineFault> {
    let fault = LineFault::Checksum;
    let Some((head, body)) = line.split_at_checked(HEAD.len()) else { return Err(fault) };
    let framed = head[..DIGITS.start] == HEAD[..DIGITS.start] && head[DIGITS.end..] == HEAD[DIGITS.end..];
    let digits = &head[DIGITS];
    // `from_str_radix` alone would also take upper case and a sign.
    let lower_hex = digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let crc = std::str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok());
    match crc {
        Some(crc) if framed && lower_hex && crc32fast::hash(body) == crc => Ok(crc),
        Some(_) | None => Err(fault),
    }
}

/// Whether bytes that are no line are two of them, at least one whole, with a broken newline between.
/// A write that a crash broke off never looks like this, so it must not be cut off like one.
pub(super) fn holds_another(broken: &[u8]) -> bool {
    // Inside of an entry's text this would have its quotes escaped.
    let head = &HEAD[..DIGITS.start];
    let heads = broken.windows(head.len()).enumerate().skip(1).filter(|(_, bytes)| *bytes == head);
    let mut splits = heads.map(|(at, _)| (&broken[..at - 1], &broken[at..]));
    splits.any(|(before, after)| check(before).is_ok() || check(after).is_ok())
}

/// How much of an entry is wanted.
#[derive(Clone, Copy)]
pub(super) enum Bodies<'a> {
    /// Moved bodies are read back.
    Whole(&'a Blobs),
    /// Moved bodies stay empty; for listings.
    Inline,
}

/// Reads a checked line.
pub(super) fn decode(line: &[u8], bodies: Bodies<'_>) -> Result<Entry, LineFault> {
    let meaning = |error: serde_json::Error| LineFault::Meaning(error.to_string());
    match bodies {
        Bodies::Whole(blobs) if line[HEAD.len()..].starts_with(BLOBS_FIELD) => {
            let mut value: Value = serde_json::from_slice(line).map_err(meaning)?;
            let moved: Moved = match value.get_mut("blobs").map(Value::take) {
                Some(Value::Object(moved)) => moved,
                _ => return Err(LineFault::Meaning("its blobs are not an object".to_owned())),
            };
            blobs.move_in(&mut value, &moved);
            serde_json::from_value(value).map_err(meaning)
        }
        Bodies::Whole(_) | Bodies::Inline => serde_json::from_slice(line).map_err(meaning),
    }
}

/// The hashes of the bodies that a checked line names.
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

/// The format that a checked line opens a journal with; `None` if it is no opening entry. It reads
/// what any later build will still write, so that a journal of the future is known for what it is.
pub(super) fn format(line: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Opening {
        change: String,
        format: u32,
    }
    let opening: Opening = serde_json::from_slice(line).ok()?;
    (opening.change == "opened").then_some(opening.format)
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::{Change, Seq};

    fn entry(title: &str) -> Entry {
        Entry { seq: Seq(3), at: 17, change: Change::Titled { title: title.to_owned() } }
    }

    fn no_blobs() -> Blobs {
        Blobs::new("/nonexistent".into())
    }

    #[test]
    fn a_line_is_the_entrys_json_behind_its_checksum() {
        let line = encode(&entry("Fix the bug"), &no_blobs()).unwrap();
        let text = String::from_utf8(line.bytes).unwrap();
        let body = r#""seq":3,"at":17,"change":"titled","title":"Fix the bug"}"#;
        assert_eq!(text, format!("{{\"crc\":\"{:08x}\",{body}\n", crc32fast::hash(body.as_bytes())));
    }

    #[test]
    fn a_line_reads_back_as_its_entry() {
        let line = encode(&entry("two\nlines and \u{1f980}"), &no_blobs()).unwrap();
        let bytes = line.bytes.strip_suffix(b"\n").unwrap();
        assert_eq!(bytes.iter().filter(|b| **b == b'\n').count(), 0);
        assert_eq!(check(bytes), Ok(line.crc));
        assert_eq!(decode(bytes, Bodies::Inline), Ok(entry("two\nlines and \u{1f980}")));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let line = encode(&entry("x"), &no_blobs()).unwrap();
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
    fn a_change_that_this_build_does_not_know_is_no_broken_line() {
        let line = seal(br#"{"seq":1,"at":2,"change":"teleported"}"#, false);
        let bytes = line.bytes.strip_suffix(b"\n").unwrap();
        assert!(check(bytes).is_ok());
        assert!(matches!(decode(bytes, Bodies::Inline), Err(LineFault::Meaning(_))));
    }
}
