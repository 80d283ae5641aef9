//! Where sentences begin and end, and whether one is prose. Pure.

use std::ops::Range;

/// A sentence that is longer is cut here, on either side of what was found in it.
const SIDE_BYTES_MAX: usize = 300;
/// Lines shorter than this end where they end: what is wrapped is longer.
const WRAPPED_BYTES_MIN: usize = 45;
/// Lines of a wrapped text are about as long as their neighbours: others are sentences without a full stop.
const WRAPPED_BYTES_APART: usize = 12;
/// How far back the beginning of a wrapped line is looked for.
const LINE_BYTES_MAX: usize = 400;

/// Words whose full stop ends nothing.
const SHORT: &[&str] = &[
    "e.g", "i.e", "etc", "vs", "cf", "approx", "resp", "z.b", "bzw", "ca", "no", "dr", "mr", "mrs", "p.s",
    "incl", "max", "min",
];

/// With this byte begin the letters of writing without blanks between words: Hiragana and what follows.
const WIDE_FIRST: u8 = 0xe3;

/// The sentence around a place of a text.
pub(super) fn around(text: &str, place: Range<usize>) -> Range<usize> {
    let bytes = text.as_bytes();
    let lowest = text.ceil_char_boundary(place.start.saturating_sub(SIDE_BYTES_MAX));
    let highest = text.floor_char_boundary((place.end + SIDE_BYTES_MAX).min(text.len()));
    let mut start = place.start;
    while start > lowest && !ends_before(text, start) {
        start -= 1;
    }
    let mut end = place.end;
    while end < highest && (end == 0 || !ends_before(text, end)) {
        end += 1;
    }
    let start = text.ceil_char_boundary(start);
    let end = text.floor_char_boundary(end).max(start);
    let blank = |byte: &u8| byte.is_ascii_whitespace();
    let start = start + bytes[start..end].iter().take_while(|byte| blank(byte)).count();
    let end = end - bytes[start..end].iter().rev().take_while(|byte| blank(byte)).count();
    start..end
}

/// The sentence before this one, in the same paragraph.
pub(super) fn before(text: &str, sentence: &Range<usize>) -> Option<Range<usize>> {
    let head = text[..sentence.start].trim_end_matches(' ');
    let same = head.len() < sentence.start && !head.is_empty() && !head.ends_with('\n');
    same.then(|| around(text, head.len() - last_char(head)..head.len() - last_char(head)))
}

/// The sentence behind this one, in the same paragraph.
pub(super) fn behind(text: &str, sentence: &Range<usize>) -> Option<Range<usize>> {
    let rest = &text[sentence.end..];
    let gap = rest.len() - rest.trim_start_matches(' ').len();
    // What stands in parentheses on the next line belongs to this one.
    if rest.starts_with("\n(") {
        return Some(around(text, sentence.end + 1..sentence.end + 2));
    }
    let same = gap > 0 && gap < rest.len() && !rest[gap..].starts_with(['\n', '\r']);
    same.then(|| around(text, sentence.end + gap..sentence.end + gap + 1))
}

/// The line below a sentence, where the sentence ends its own line; a blank line may stand between.
pub(super) fn below(text: &str, sentence: &Range<usize>) -> Option<Range<usize>> {
    let rest = &text[sentence.end..];
    let gap = rest.strip_prefix('\r').unwrap_or(rest).strip_prefix('\n')?;
    let gap = gap.strip_prefix('\r').unwrap_or(gap);
    let gap = gap.strip_prefix('\n').unwrap_or(gap);
    let start = text.len() - gap.len();
    let end = memchr::memchr(b'\n', gap.as_bytes()).map_or(text.len(), |at| start + at);
    (end > start).then_some(start..end)
}

fn last_char(text: &str) -> usize {
    text.chars().next_back().map_or(0, char::len_utf8)
}

/// Whether a sentence ends right before this place.
fn ends_before(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    if at == 0 {
        return true;
    }
    match bytes[at - 1] {
        b'\n' => !is_wrapped(text, at),
        b' ' if at >= 2 && bytes.get(at).is_some_and(u8::is_ascii_uppercase) && opens_anew(text, at) => true,
        b' ' | b'\t' if at >= 2 => {
            let quote = usize::from(at >= 3 && matches!(bytes[at - 2], b')' | b'"' | b'\'' | b'`' | b'*'));
            match bytes[at - 2 - quote] {
                b'?' => !is_quoted(bytes, at - 2),
                // "81! not 80! for the port"
                b'!' => !is_quoted(bytes, at - 2) && !bytes.get(at).is_some_and(u8::is_ascii_lowercase),
                // "it is... let me see... 5"
                b'.' if bytes[..at - 2 - quote].ends_with(b"..") && !begins_word(&bytes[at..]) => false,
                b'.' => !is_short(&text.as_bytes()[..at - 2 - quote]) && !is_quoted(bytes, at - 2),
                _ => false,
            }
        }
        // The last byte of a full stop that is no ASCII.
        0x82 | 0x81 | 0x9f => text.is_char_boundary(at) && text[..at].ends_with(['。', '！', '？']),
        _ => false,
    }
}

/// Whether a word with a capital stands here, and no name.
fn begins_word(rest: &[u8]) -> bool {
    rest.first().is_some_and(u8::is_ascii_uppercase) && !rest.get(1).is_some_and(u8::is_ascii_uppercase)
}

/// Whether a place stands between backticks of its line.
fn is_quoted(bytes: &[u8], at: usize) -> bool {
    let lowest = at.saturating_sub(LINE_BYTES_MAX);
    let line = memchr::memrchr(b'\n', &bytes[lowest..at]).map_or(lowest, |found| lowest + found + 1);
    let end = memchr::memchr(b'\n', &bytes[at..bytes.len().min(at + LINE_BYTES_MAX)])
        .map_or(bytes.len(), |found| at + found);
    memchr::memchr_iter(b'`', &bytes[line..at]).count() % 2 == 1
        && memchr::memchr(b'`', &bytes[at..end]).is_some()
}

/// Words that stand in capitals only where a sentence begins.
const OPENERS: &[&str] = &[
    "Once",
    "Let's",
    "Please",
    "Can",
    "Could",
    "We",
    "The",
    "This",
    "That",
    "There",
    "It",
    "If",
    "When",
    "No",
    "Don't",
    "Never",
    "Always",
    "Looks",
    "Also",
    "And",
    "But",
    "Then",
    "Not",
    "What",
    "Why",
    "How",
    "Maybe",
    "You",
    "After",
    "Before",
    "Everything",
    "Every",
    "Nothing",
    "Tell",
    "Here",
    "Of",
    "Is",
    "Are",
    "Do",
    "For",
    "In",
    "On",
    "At",
    "By",
    "With",
    "From",
    "As",
    "Since",
    "So",
    "Just",
    "Only",
    "A",
    "An",
    "My",
    "Our",
    "Your",
    "They",
    "He",
    "She",
    "Who",
    "Where",
    "Which",
    "Should",
    "Would",
    "Will",
    "Did",
    "Does",
    "Has",
    "Have",
    "Add",
    "Fix",
    "Find",
    "Take",
    "Make",
    "Use",
    "Run",
    "Check",
    "Keep",
    "Show",
    "Give",
    "Update",
    "Remove",
    "Rename",
    "Move",
    "Create",
    "Write",
    "Look",
    "Start",
    "Stop",
    "Put",
    "Next",
    "Thanks",
    "Thank",
    "Sorry",
    "Nice",
    "Good",
    "Great",
    "Somebody",
    "Someone",
    "Nobody",
    "Something",
    "Users",
    "Now",
    "Yes",
    "Ok",
];

/// Whether a sentence begins here though none was ended: people leave full stops out.
fn opens_anew(text: &str, at: usize) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '\'' | '_' | '-');
    let word = text[at..].split(|c: char| !is_part(c)).next().unwrap_or_default();
    let before = text[..at - 1].bytes().next_back();
    before
        .is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'`' | b')'))
        && OPENERS.contains(&word)
}

/// Whether the word before a full stop is a short form, or the number of a list.
fn is_short(before: &[u8]) -> bool {
    let begin =
        before.iter().rposition(|byte| byte.is_ascii_whitespace() || *byte == b'(').map_or(0, |at| at + 1);
    let word = &before[begin..];
    let listed = !word.is_empty()
        && word.len() <= 2
        && word.iter().all(u8::is_ascii_digit)
        && (begin == 0 || before[begin - 1] == b'\n');
    listed || word.len() <= 5 && SHORT.iter().any(|short| short.as_bytes().eq_ignore_ascii_case(word))
}

/// Whether the line that begins here goes on with the sentence of the line before it.
fn is_wrapped(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    let Some(next) = bytes.get(at) else { return false };
    if !(next.is_ascii_lowercase() || next.is_ascii_digit() || matches!(next, b'`' | b'(')) {
        return false;
    }
    let before = bytes[..at - 1].strip_suffix(b"\r").unwrap_or(&bytes[..at - 1]);
    let line = &before[memchr::memrchr(b'\n', &before[before.len().saturating_sub(LINE_BYTES_MAX)..])
        .map_or(before.len().saturating_sub(LINE_BYTES_MAX), |found| {
            before.len().saturating_sub(LINE_BYTES_MAX) + found + 1
        })..];
    let rest = &bytes[at..];
    let next_line =
        &rest[..memchr::memchr(b'\n', &rest[..rest.len().min(LINE_BYTES_MAX)]).unwrap_or(rest.len())];
    let above = &before[..before.len() - line.len()];
    let above = above.strip_suffix(b"\n").unwrap_or(above);
    let from = above.len().saturating_sub(LINE_BYTES_MAX);
    let above = &above[memchr::memrchr(b'\n', &above[from..]).map_or(from, |found| from + found + 1)..];
    let is_as_long = |other: &[u8]| other.len().abs_diff(line.len()) <= WRAPPED_BYTES_APART;
    // Two lines that happen to be as long are two things that were said; the text goes on below those of a wrapped one.
    let goes_on = rest.get(next_line.len() + 1).is_some_and(|byte| !byte.is_ascii_whitespace());
    line.len() >= WRAPPED_BYTES_MIN
        && (is_as_long(next_line) && goes_on || is_as_long(above))
        && !matches!(line.last(), Some(b'.' | b':' | b'!' | b'?' | b';' | b'{' | b'}' | b')'))
}

/// The sentence on one line, without the marks of lists, quotes and headings.
pub(super) fn plain(sentence: &str) -> String {
    let mut rest = sentence.trim();
    loop {
        let without = rest.trim_start_matches(['-', '*', '•', '>', '#', '+', '|']).trim_start();
        let digits = without.bytes().take_while(u8::is_ascii_digit).count();
        let numbered = (1..=2).contains(&digits)
            && without[digits..].starts_with([')', '.'])
            && without[digits + 1..].starts_with(' ');
        let without = if numbered { without[digits + 1..].trim_start() } else { without };
        if without.len() == rest.len() {
            break;
        }
        rest = without;
    }
    // An option of a command is no list.
    let rest = if sentence.trim().starts_with("--") { sentence.trim() } else { rest };
    let mut line = String::with_capacity(rest.len());
    for word in rest.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    // Bold and headings carry no meaning here, and take tokens.
    line.replace("**", "")
}

/// Whether a sentence stands in a row of a table, which is data.
pub(super) fn is_of_table(text: &str, sentence: &Range<usize>) -> bool {
    let lowest = sentence.start.saturating_sub(LINE_BYTES_MAX);
    let head = &text.as_bytes()[lowest..sentence.start];
    let line = memchr::memrchr(b'\n', head).map_or(lowest, |at| lowest + at + 1);
    let row = &text.as_bytes()[line..sentence.end];
    row.trim_ascii_start().starts_with(b"|")
        || text[sentence.clone()].split('`').step_by(2).any(|plain| plain.contains(" | "))
}

/// Whether people would read this as a sentence, and not as code, data or a line of a log.
pub(super) fn is_prose(sentence: &str) -> bool {
    let trimmed = sentence.trim_start();
    if ["//", "/*", "#!", "#[", "<!--", "@@", "+++", "--- ", "diff "]
        .iter()
        .any(|code| trimmed.starts_with(code))
    {
        return false;
    }
    // "from the ticket: …" is said, `from x import y` is not.
    let is_code = match trimmed.split(' ').next() {
        Some("from") => trimmed.contains(" import "),
        Some("import") => trimmed.contains(['{', '"', '\'', '.', '*']),
        Some("at") => trimmed.contains(['(', ':']),
        Some(_) | None => false,
    };
    if is_code {
        return false;
    }
    if trimmed.ends_with(['{', '}', ';']) {
        return false;
    }
    let mut letters = 0usize;
    let mut marks = 0usize;
    let mut outside = 0usize;
    let mut words = 0usize;
    let mut ticked = false;
    let mut ticks = false;
    let mut digits = 0usize;
    let mut wide = false;
    let mut blank = true;
    for byte in sentence.bytes() {
        let was_blank = std::mem::replace(&mut blank, byte.is_ascii_whitespace());
        words += usize::from(was_blank && !blank);
        wide |= byte >= WIDE_FIRST;
        let continues = (0x80..0xc0).contains(&byte);
        match byte {
            b'`' => {
                ticked = !ticked;
                ticks = true;
            }
            _ if ticked || continues => {}
            b'{' | b'}' | b'<' | b'>' | b'=' | b';' | b'|' | b'\\' | b'$' | b'[' | b']' | b'&' | b'%' => {
                marks += 1;
                outside += 1;
            }
            byte => {
                letters += usize::from(byte.is_ascii_alphabetic() || byte >= 0x80);
                digits += usize::from(byte.is_ascii_digit());
                // A short sentence of a name is blanks for the most part.
                outside += usize::from(!byte.is_ascii_whitespace());
            }
        }
    }
    (words >= 2 || wide || trimmed.trim_end().ends_with(':'))
        && letters >= 4
        && marks * 12 <= letters + 24
        // "sorry, 14 not 15 (`x`)" is said.
        && letters * 2 + if ticks { digits } else { 0 } >= outside
}

/// Whether a line was printed by a program and pasted: it begins with its time, or as a compiler's warning.
pub(super) fn is_of_log(line: &str) -> bool {
    let first = line.split(' ').next().unwrap_or_default();
    let is_time = first.len() >= 8
        && first.bytes().filter(u8::is_ascii_digit).count() >= 6
        && first.contains([':', '-']);
    is_time || matches!(first, "warning:" | "-->" | "INFO" | "DEBUG" | "WARN" | "note:" | "help:")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(text: &'a str, word: &str) -> &'a str {
        let at = text.find(word).expect("the word is in the text");
        &text[around(text, at..at + word.len())]
    }

    #[test]
    fn a_sentence_ends_at_its_stop_at_a_line_and_at_a_list() {
        for (text, word, sentence) in [
            ("One. Never do it! Two.", "Never", "Never do it!"),
            ("Use e.g. tabs. More", "tabs", "Use e.g. tabs."),
            ("- use v1.2.3 here\n- never there", "never", "- never there"),
            (
                "please keep in mind that this must be done in a way\nthat never blocks what other tasks are waiting for it\nat all.",
                "never",
                "please keep in mind that this must be done in a way\nthat never blocks what other tasks are waiting for it\nat all.",
            ),
            (
                "please keep the whole of `kiwi` as it is in there\n`plum` never writes what it can look up again",
                "never",
                "`plum` never writes what it can look up again",
            ),
            (
                "please keep in mind that this must be done now\nthat never blocks",
                "never",
                "that never blocks",
            ),
            (
                "can you make it easier to read Once it is there never do it",
                "never",
                "Once it is there never do it",
            ),
            ("Short\nnever", "never", "never"),
            ("one\r\nnever do\r\nthree", "never", "never do"),
            ("好的。不要改测试。谢谢", "不要", "不要改测试。"),
            ("never", "never", "never"),
            ("(\"Really.\" he said.) Then never", "never", "Then never"),
        ] {
            assert_eq!(found(text, word), sentence);
        }
    }

    #[test]
    fn code_is_no_prose() {
        for prose in [
            "from the ticket: never touch `a`",
            "at last",
            "Never touch `a < b && c`.",
            "use tabs",
            "不要改测试",
            "keep it at 5, not 8",
        ] {
            assert!(is_prose(prose), "{prose}");
        }
        for code in [
            "// never do this",
            "from never import only",
            "at Object.never (only.js:1:1)",
            "if (must) { return only; }",
            "let x = never;",
            "{\"must\": [1, 2], \"only\": {}}",
            "x",
        ] {
            assert!(!is_prose(code), "{code}");
        }
    }

    #[test]
    fn marks_of_lists_are_left_out() {
        for (text, line) in [
            ("- **Never** do\n  it", "Never do it"),
            ("2. next", "next"),
            ("> - a", "a"),
            ("--flag is on", "--flag is on"),
            ("3.5 is it", "3.5 is it"),
        ] {
            assert_eq!(plain(text), line);
        }
    }
}
