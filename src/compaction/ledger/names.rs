//! Names that matter: paths, addresses, ids, hashes, names of code. Pure.

use std::ops::Range;

use super::fact::{Fact, Kind, Source};
use super::notes::Notes;
use super::said;
use super::spoken::Side;
use super::store::Store;
use super::words::Set;

/// A longer word is data.
const NAME_BYTES_MAX: usize = 120;
/// Names of one message or output; what is beyond is counted.
const ENTRY_NAMES_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    Person,
    Agent,
    Output,
}

impl From {
    pub fn of(side: Side) -> From {
        match side {
            Side::Person => From::Person,
            Side::Agent => From::Agent,
        }
    }
}

/// A word of a text that looks like a name.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub place: Range<usize>,
    weight: u8,
}

/// The words of a text that look like names, in its order.
pub(super) fn found(text: &str, from: From) -> Vec<Found> {
    let of = |(word, ticked): (&str, bool)| {
        // "ticket=OPS-12": a word for what it is, and the name.
        let word = match word.split_once('=') {
            Some((nature, name)) if is_nature(nature) => name,
            Some(_) | None => word,
        };
        let start = word.as_ptr() as usize - text.as_ptr() as usize;
        Some(Found { place: start..start + word.len(), weight: weight(word, ticked)? })
    };
    words(text, from).filter_map(of).collect()
}

/// A name that was found, and what an output says of it.
#[derive(Clone, Debug)]
pub(super) struct Named {
    word: String,
    strength: u8,
    said: Option<Fact>,
}

/// Takes in the names of a text. What an output names alone counts only where it can be nothing but a
/// name, such as a hash.
pub(super) fn take(notes: &mut Notes, text: &str, found: &[Found], from: From, source: Source) {
    let named = |Found { place, weight }: &Found| {
        let word = &text[place.clone()];
        let strength = match from {
            From::Person => weight + 2,
            From::Agent => *weight,
            From::Output if *weight >= 3 => weight - 1,
            From::Output => return None,
        };
        let said = (from == From::Output).then(|| said::printed(text, word, source)).flatten();
        Some(Named { word: word.to_owned(), strength, said })
    };
    notes.name(found.iter().filter_map(named).collect(), source);
}

/// Stores the names of a text.
pub(super) fn keep(store: &mut Store, names: Vec<Named>, source: Source) {
    let mut room = ENTRY_NAMES_MAX;
    for Named { word, strength, said } in names {
        if let Some(known) = store.named_mut(Kind::Name, &word) {
            let again = u8::from(known.newest() < source.entry);
            known.strength = (known.strength.max(strength) + again).min(7);
            known.also(source);
        } else if room == 0 {
            store.beyond += 1;
            continue;
        } else {
            room -= 1;
            store.add(Fact::named(Kind::Name, strength.min(7), &word, word.clone(), source));
        }
        if let Some(said) = said {
            store.add(said);
        }
    }
}

/// Words that say what a name names.
static NATURES: Set = Set::of(
    "account role flag bucket topic id ids metric variable ticket issue commit deployment deploy tenant branch host \
     queue key channel url endpoint address project cluster image request database schema user customer group stream \
     registry namespace region version tag release dashboard job pipeline run trace token secret certificate domain \
     webhook service table volume instance machine server called named",
);

/// How near to a name a word stands that says what it names, in bytes.
const NEAR_BYTES: usize = 60;

/// How much is told of a name, which is a part of the clause, by the words around it: more is more, 3 the most.
pub(super) fn told_of(name: &str, clause: &str) -> u8 {
    let start = (name.as_ptr() as usize).saturating_sub(clause.as_ptr() as usize).min(clause.len());
    let low = clause.ceil_char_boundary(start.saturating_sub(NEAR_BYTES));
    let high = clause.floor_char_boundary((start + name.len() + NEAR_BYTES).min(clause.len()));
    let is_described = clause[low..high.max(low)].split(' ').any(is_nature);
    let is_id = weight(name, false) >= Some(4);
    match (is_described, is_id || !is_code(name), name.contains('/')) {
        (true, true, _) => 3,
        (true, false, _) | (_, _, true) => 2,
        (false, true, _) => 1 + u8::from(is_id),
        (false, false, false) => 0,
    }
}

/// How much a sentence tells of that one of its names of which it tells the most.
pub(super) fn most_told_of(sentence: &str, side: Side) -> u8 {
    let found = found(sentence, From::of(side));
    found.iter().map(|name| told_of(&sentence[name.place.clone()], sentence)).max().unwrap_or(0)
}

pub(super) fn is_nature(word: &str) -> bool {
    let word = word.split('=').next().unwrap_or_default();
    let word = word.trim_matches(|c: char| !c.is_alphanumeric());
    match word.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => NATURES.has(&word.to_ascii_lowercase()),
        false => NATURES.has(word),
    }
}

/// Whether a name looks like one of a program's own text, of which there are many.
fn is_code(name: &str) -> bool {
    name.contains("::") || name.contains('_') && !name.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// What a byte says of the word in which it stands: it is between words, or shows that this may be a name.
const PARTS: u8 = 1;
const TELLING: u8 = 2;

const BYTES: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'`' | b'"' | b'\'' | b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'<' | b'>' | b',' | b';'
            | b'|' => PARTS,
            0..=b' ' => PARTS,
            b'a'..=b'z' => 0,
            _ => TELLING,
        };
        byte += 1;
    }
    table
};

fn is_between(byte: u8) -> bool {
    BYTES[usize::from(byte)] == PARTS
}

/// The words of a text that may be names, without what stands around them, and whether they were in
/// backticks. In an output a name that counts has a digit in it.
fn words(text: &str, from: From) -> impl Iterator<Item = (&str, bool)> {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let start = if from == From::Output {
                let digit = at + next_digit(&bytes[at..])?;
                let before = bytes[at..digit].iter().rposition(|byte| is_between(*byte));
                before.map_or(at, |found| at + found + 1)
            } else {
                at + bytes[at..].iter().position(|byte| !is_between(*byte))?
            };
            let mut seen = 0;
            at = start;
            while at < bytes.len() && !is_between(bytes[at]) {
                seen |= BYTES[usize::from(bytes[at])];
                at += 1;
            }
            let ticked = start > 0 && bytes[start - 1] == b'`' && bytes.get(at) == Some(&b'`');
            if seen & TELLING == 0 && !ticked || at - start > 2 * NAME_BYTES_MAX {
                continue;
            }
            let word = text[start..at].trim_matches(['.', ':', '!', '?', '*', '=', '…', '。', '，']);
            if !word.is_empty() && word.len() <= NAME_BYTES_MAX {
                return Some((word, ticked));
            }
        }
    })
}

/// Most of a text has no digits: whole blocks are stepped over.
fn next_digit(bytes: &[u8]) -> Option<usize> {
    const BLOCK: usize = 32;
    let mut from = 0;
    for block in bytes.chunks(BLOCK) {
        let digits = block.iter().fold(0u8, |found, byte| found | u8::from(byte.is_ascii_digit()));
        if digits != 0 {
            return block.iter().position(u8::is_ascii_digit).map(|at| from + at);
        }
        from += block.len();
    }
    None
}

/// How much a word looks like a name that somebody will need; `None` for a word of a language.
fn weight(word: &str, ticked: bool) -> Option<u8> {
    let bytes = word.as_bytes();
    if !(3..=NAME_BYTES_MAX).contains(&bytes.len()) {
        return None;
    }
    let (mut digits, mut upper, mut lower) = (0, 0, 0);
    let (mut dashes, mut slashes, mut colons) = (0, 0, 0);
    let (mut has_dot, mut has_at, mut has_line, mut has_equals) = (false, false, false, false);
    for byte in bytes {
        match byte {
            b'0'..=b'9' => digits += 1,
            b'A'..=b'Z' => upper += 1,
            b'a'..=b'z' => lower += 1,
            b'-' => dashes += 1,
            b'/' => slashes += 1,
            b':' => colons += 1,
            b'.' => has_dot = true,
            b'@' => has_at = true,
            b'_' => has_line = true,
            b'=' => has_equals = true,
            b'#' | b'~' | b'+' | b'?' | b'&' | b'%' => {}
            _ => return None,
        }
    }
    if lower + upper + digits < 3 || is_time(bytes) {
        return None;
    }
    if colons > 0 && slashes > 1 && word.contains("://") {
        return Some(4);
    }
    // A setting with its value is a value.
    if has_equals {
        return None;
    }
    let letters = lower + upper;
    if letters == 0 {
        // A bare number is told with what it is the value of; a number of a ticket is a name.
        return (word.starts_with('#') && digits >= 2).then_some(3);
    }
    let ticket = dashes > 0
        && word.split_once('-').is_some_and(|(left, right)| {
            left.len() >= 2
                && left.bytes().all(|byte| byte.is_ascii_uppercase())
                && !right.is_empty()
                && right.bytes().all(|byte| byte.is_ascii_digit())
        });
    let hex =
        bytes.len() >= 7 && digits >= 2 && bytes.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    let id = digits >= 2 && letters >= 2 && bytes.len() >= 8 && slashes + colons == 0 && !is_unit(bytes);
    if ticket || hex || id {
        return Some(if colons > 0 { 2 } else { 4 });
    }
    let path = slashes > 0
        && (slashes >= 2 || word.rsplit('/').next().is_some_and(|name| name.contains('.')) || ticked);
    if path {
        return Some(if digits * 2 > bytes.len() { 1 } else { 2 });
    }
    let snake = has_line && letters >= 3 && !word.ends_with('_');
    let camel = upper >= 1
        && lower >= 2
        && bytes[1..]
            .iter()
            .zip(bytes)
            .any(|(now, before)| now.is_ascii_uppercase() && before.is_ascii_lowercase());
    let coded = colons > 1 && word.contains("::") || snake || camel || has_at;
    let filed = has_dot
        && word.rsplit_once('.').is_some_and(|(name, ending)| {
            name.len() >= 2
                && (1..=5).contains(&ending.len())
                && ending.bytes().all(|byte| byte.is_ascii_lowercase())
        });
    // "orders.created.v2"; of "e.g." nobody thinks.
    let dotted = has_dot
        && letters >= 6
        && word.matches('.').count() >= 2
        && word.split('.').all(|part| part.len() >= 2 && part.starts_with(|c: char| c.is_ascii_alphabetic()));
    if dotted {
        return Some(3);
    }
    let joined = dashes >= 1 && digits + dashes >= 2 && letters >= 2;
    if ticked {
        return Some(if coded || filed || joined { 3 } else { 2 });
    }
    if coded || filed || joined {
        return Some(2);
    }
    None
}

/// "100ms": a measure, not a name.
fn is_unit(bytes: &[u8]) -> bool {
    let letters = bytes.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    letters <= 2 && bytes[0].is_ascii_digit()
}

fn is_time(bytes: &[u8]) -> bool {
    bytes.len() > 10 && bytes[..4].iter().all(u8::is_ascii_digit) && bytes[4] == b'-' && bytes[10] == b'T'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_words() {
        for name in [
            "https://x.dev/a?b=1",
            "src/main.rs",
            "PROJ-1234",
            "#4512",
            "3f9a1c7e",
            "feature/login-2fa/base",
            "dpl_8Xk29aQ",
            "max_retries",
            "HttpClient",
            "std::fs::read",
            "Cargo.toml",
            "us-east-1",
            "0197c3a2-5d1e-7f00-9a11-3b2c4d5e6f70",
            "ops@corp.io",
        ] {
            assert!(weight(name, false).is_some(), "{name}");
        }
        for word in [
            "word",
            "The",
            "12",
            "1234567",
            "well-known",
            "10:45:00",
            "---",
            "and/or",
            "ÜBER",
            "2024-01-02",
            "100ms",
            "2024-01-02T10:00:00Z",
        ] {
            assert_eq!(weight(word, false), None, "{word}");
        }
        let found: Vec<_> = words("see `kiwi`, (src/a.rs).", From::Agent).collect();
        assert_eq!(found, [("kiwi", true), ("src/a.rs", false)]);
    }
}
