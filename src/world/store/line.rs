//! One line of a journal: an entry as JSON with a checksum. It touches no files except blobs.
//!
//! `{"crc":"89abcdef","prev":"01234567","synced":4096,"seq":7,"at":1,"change":"titled",…}`: the CRC-32 is eight
//! lowercase hexadecimal digits and covers every byte after the first comma, up to and including the last brace.
//! `prev` is the checksum of the previous line, by which a line that was replaced by an older one is detected;
//! `synced` is the length of the file that was on disk when the line was written, which distinguishes damage from a
//! write that a power loss interrupted. Lines of format 1 have neither. If bodies were moved out,
//! `"blobs":{"<place>":"<hash>",…}` is the next field (see `blobs`).

use serde::Deserialize;
use serde_json::Value;

use super::StoreError;
use super::blobs::{self, Blobs, BodyReader, INLINE_BYTES_MAX};
use epitome_thread::{Entry, SessionId};

/// Precedes the checksummed bytes; the zeros are replaced.
const HEAD: &[u8] = br#"{"crc":"00000000","#;

/// Position of the checksum's digits.
const DIGITS: std::ops::Range<usize> = 8..16;

/// A line with an image or document contains one of these, because that is how `serde_json` writes the tags
/// of `Content` and `OutcomeContent`. False positives are harmless.
const ATTACHMENT_HINTS: [&str; 2] = [r#""type":"image""#, r#""type":"document""#];

/// Start of the field that names moved bodies.
const BLOBS_FIELD: &[u8] = br#""blobs":"#;

/// Levels of nesting that `serde_json` reads.
const DEPTH_MAX: usize = 127;

/// The first format whose lines are chained.
pub(super) const CHAINED_FORMAT: u32 = 2;

/// A serialized line, including its newline.
pub struct JournalLine {
    pub bytes: Vec<u8>,
    pub(super) crc: u32,
    /// Whether bodies were moved to blobs.
    pub(super) has_blobs: bool,
}

/// The fields of a line that describe the file before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineLink {
    /// The checksum of the previous line; 0 in the first line.
    pub prev: u32,
    /// Bytes of the file that were on disk when the line was written.
    pub synced: u64,
}

impl LineLink {
    /// The chain of a line, if the format has one.
    pub fn in_format(format: u32, prev: u32, synced: u64) -> Option<LineLink> {
        (format >= CHAINED_FORMAT).then_some(LineLink { prev, synced })
    }
}

/// Encodes an entry of a session as a line; large bodies are written to blobs first. Refuses an entry that could not be
/// read back.
pub(super) fn encode(
    session: &SessionId,
    entry: &Entry,
    chain: Option<LineLink>,
    blobs: &dyn Blobs,
) -> Result<JournalLine, StoreError> {
    let unstorable = |error: serde_json::Error| StoreError::Unstorable {
        session: session.clone(),
        reason: error.to_string(),
    };
    let json = serde_json::to_string(entry).map_err(unstorable)?;
    let depth = depth(&json);
    if depth > DEPTH_MAX {
        return Err(StoreError::Unstorable {
            session: session.clone(),
            reason: format!("its JSON has {depth} levels of nesting; a log can have {DEPTH_MAX}"),
        });
    }
    if json.len() <= INLINE_BYTES_MAX && !ATTACHMENT_HINTS.iter().any(|hint| json.contains(hint)) {
        return Ok(seal(&json.as_bytes()[1..], chain));
    }
    let mut value = serde_json::to_value(entry).map_err(unstorable)?;
    let moved = blobs::move_out(&mut value, blobs)?;
    if moved.is_empty() {
        return Ok(seal(&json.as_bytes()[1..], chain));
    }
    let mut body = BLOBS_FIELD.to_vec();
    serde_json::to_writer(&mut body, &moved).map_err(unstorable)?;
    body.push(b',');
    body.extend_from_slice(&serde_json::to_vec(&value).map_err(unstorable)?[1..]);
    Ok(JournalLine { has_blobs: true, ..seal(&body, chain) })
}

/// The levels of nesting of a JSON text.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth -= 1,
            _ => {}
        }
    }
    deepest
}

/// Makes a line from an object's fields, which are passed with the closing brace.
pub(super) fn seal(fields: &[u8], chain: Option<LineLink>) -> JournalLine {
    let chain = chain.map(|LineLink { prev, synced }| format!(r#""prev":"{prev:08x}","synced":{synced},"#));
    let chain = chain.unwrap_or_default();
    let mut bytes = Vec::with_capacity(HEAD.len() + chain.len() + fields.len() + 1);
    bytes.extend_from_slice(HEAD);
    bytes.extend_from_slice(chain.as_bytes());
    bytes.extend_from_slice(fields);
    let crc = crc32fast::hash(&bytes[HEAD.len()..]);
    bytes[DIGITS].copy_from_slice(format!("{crc:08x}").as_bytes());
    bytes.push(b'\n');
    JournalLine { bytes, crc, has_blobs: false }
}

/// A line whose checksum is right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed<'a> {
    pub crc: u32,
    /// `None` in format 1.
    pub chain: Option<LineLink>,
    /// The fields of the entry, with the closing brace.
    pub fields: &'a [u8],
}

/// Verifies a line, without its newline; `None` if its checksum is wrong.
pub(super) fn open(line: &[u8]) -> Option<Sealed<'_>> {
    let (head, body) = line.split_at_checked(HEAD.len())?;
    let is_framed = head[..DIGITS.start] == HEAD[..DIGITS.start] && head[DIGITS.end..] == HEAD[DIGITS.end..];
    let crc = hex(&head[DIGITS]).filter(|crc| is_framed && crc32fast::hash(body) == *crc)?;
    let chained = chain_of(body);
    let (chain, fields) = chained.map_or((None, body), |(chain, fields)| (Some(chain), fields));
    Some(Sealed { crc, chain, fields })
}

/// Splits the chain off the checksummed bytes of a line.
fn chain_of(body: &[u8]) -> Option<(LineLink, &[u8])> {
    let rest = body.strip_prefix(br#""prev":""#)?;
    let (prev, rest) = rest.split_at_checked(8)?;
    let rest = rest.strip_prefix(br#"","synced":"#)?;
    let end = rest.iter().position(|byte| *byte == b',')?;
    let synced = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    Some((LineLink { prev: hex(prev)?, synced }, &rest[end + 1..]))
}

/// Parses the digits of a checksum. `from_str_radix` alone would also accept upper case and a sign.
fn hex(digits: &[u8]) -> Option<u32> {
    let is_lower_hex = digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_lower_hex)?;
    u32::from_str_radix(digits, 16).ok()
}

/// The parts of a damaged line that may be separate lines, because the newline between them is damaged. Within the
/// text of an entry, the quotes at a line's beginning would be escaped.
pub(super) fn joined(line: &[u8]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let head = &HEAD[..DIGITS.start];
    let starts: Vec<usize> = memchr::memmem::find_iter(line, head).collect();
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([line.len()]).collect();
    starts.into_iter().zip(ends).flat_map(move |(start, end)| {
        // The newline may be replaced by another byte, or missing.
        [start..end.saturating_sub(1).max(start), start..end]
    })
}

/// How much of an entry to read.
#[derive(Clone, Copy)]
pub(super) enum Bodies<'a> {
    /// Moved bodies are read back.
    Whole(&'a BodyReader<'a>),
    /// Moved bodies stay empty; for listings.
    Inline,
}

/// Decodes a verified line.
pub(super) fn decode(line: Sealed<'_>, bodies: Bodies<'_>) -> Result<Entry, serde_json::Error> {
    let mut json = Vec::with_capacity(line.fields.len() + 1);
    json.push(b'{');
    json.extend_from_slice(line.fields);
    if !line.fields.starts_with(BLOBS_FIELD) {
        return Entry::parse(&json);
    }
    let mut value: Value = serde_json::from_slice(&json)?;
    let moved = value.as_object_mut().and_then(|fields| fields.shift_remove("blobs"));
    if let (Bodies::Whole(bodies), Some(Value::Object(moved))) = (bodies, moved) {
        blobs::move_in(&mut value, &moved, bodies);
    }
    Entry::from_json(&value)
}

/// The hashes of the blobs that a verified line refers to.
pub(super) fn moved(line: Sealed<'_>) -> Vec<String> {
    let Some(blobs) = line.fields.strip_prefix(BLOBS_FIELD) else { return Vec::new() };
    let mut values = serde_json::Deserializer::from_slice(blobs).into_iter();
    let moved: Option<std::collections::BTreeMap<String, String>> = values.next().and_then(Result::ok);
    moved.into_iter().flat_map(std::collections::BTreeMap::into_values).collect()
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
    use super::super::blobs::BlobStore;
    use super::*;
    use epitome_files::disk::RealDisk;
    use epitome_thread::{
        CallDisplay, CallId, Change, Content, Message, MessageId, ModelName, Seq, ToolCall,
    };
    use std::sync::Arc;

    fn entry(title: &str) -> Entry {
        Entry { seq: Seq(3), at: 17, change: Change::Titled { title: title.to_owned() } }
    }

    fn try_encode(entry: &Entry, chain: Option<LineLink>) -> Result<JournalLine, StoreError> {
        let session = SessionId("s_00000000000000000001".to_owned());
        encode(&session, entry, chain, &BlobStore::new(Arc::new(RealDisk), "/nonexistent".into()))
    }

    fn encoded(entry: &Entry, chain: Option<LineLink>) -> JournalLine {
        try_encode(entry, chain).unwrap()
    }

    const CHAIN: Option<LineLink> = Some(LineLink { prev: 0xab, synced: 90 });

    #[test]
    fn a_line_is_the_entrys_json_after_its_checksum_and_chain() {
        let body = r#""seq":3,"at":17,"change":"titled","title":"Fix the bug"}"#;
        for (chain, chained) in [(None, ""), (CHAIN, r#""prev":"000000ab","synced":90,"#)] {
            let text = String::from_utf8(encoded(&entry("Fix the bug"), chain).bytes).unwrap();
            let crc = crc32fast::hash(format!("{chained}{body}").as_bytes());
            assert_eq!(text, format!("{{\"crc\":\"{crc:08x}\",{chained}{body}\n"));
        }
    }

    #[test]
    fn a_line_reads_back_as_its_entry() {
        for chain in [None, CHAIN] {
            let line = encoded(&entry("two\nlines and \u{1f980}"), chain);
            let bytes = line.bytes.strip_suffix(b"\n").unwrap();
            assert!(!bytes.contains(&b'\n'));
            let sealed = open(bytes).unwrap();
            assert_eq!((sealed.crc, sealed.chain), (line.crc, chain));
            assert_eq!(decode(sealed, Bodies::Inline).unwrap(), entry("two\nlines and \u{1f980}"));
        }
    }

    /// A call with 125 nested arrays was written as a line that no reader accepted, so an intact session counted as
    /// damaged.
    #[test]
    fn an_entry_that_is_nested_too_deeply_is_refused_instead_of_written_unreadably() {
        let called = |arrays: usize| {
            let nested = (0..arrays).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
            let call = ToolCall {
                id: CallId("c".to_owned()),
                name: "[{\\\"[".to_owned(),
                input: serde_json::json!({ "a": nested }),
                card: CallDisplay::default(),
            };
            let message = Message { id: MessageId(1), content: vec![Content::Call(call)], author: None };
            let change =
                Change::Replied { message, model: ModelName("a/b".to_owned()), usage: None, cut: None };
            Entry { seq: Seq(1), at: 0, change }
        };
        let is_stored = |arrays: usize| match try_encode(&called(arrays), CHAIN) {
            Ok(line) => {
                let sealed = open(line.bytes.trim_ascii_end()).unwrap();
                assert_eq!(decode(sealed, Bodies::Inline).unwrap(), called(arrays), "{arrays} arrays");
                true
            }
            Err(StoreError::Unstorable { .. }) => false,
            Err(error) => panic!("{arrays} arrays: {error}"),
        };
        let stored = (0..130).filter(|arrays| is_stored(*arrays)).count();
        assert!((64..127).contains(&stored), "{stored}");
        assert!((0..stored).all(is_stored), "up to a limit");
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let line = encoded(&entry("x"), CHAIN);
        let bytes = line.bytes.strip_suffix(b"\n").unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.to_vec();
                flipped[at] ^= 1 << bit;
                assert!(open(&flipped).is_none(), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn lines_without_a_newline_between_them_are_found() {
        let (first, second) = (encoded(&entry("a"), CHAIN).bytes, encoded(&entry("b"), CHAIN).bytes);
        let (first, second) = (first.trim_ascii_end(), second.trim_ascii_end());
        for between in [&b""[..], b"!"] {
            let both = [first, between, second].concat();
            let intact = joined(&both).filter(|part| open(&both[part.clone()]).is_some());
            let intact: Vec<&[u8]> = intact.map(|part| &both[part]).collect();
            assert_eq!(intact, [first, second]);
        }
    }
}
