//! What of a text somebody wrote, and what a program printed that they put into it. Pure.

use std::ops::Range;

use super::sentences::is_of_log;

/// What opens and ends a block of code.
const FENCE: &[u8] = b"```";

/// The parts of a text in their order, and whether each was printed and not written: it stands in a fence of code, or
/// its lines are those of a log.
pub(super) fn segments(text: &str) -> Vec<(Range<usize>, bool)> {
    let mut segments = Vec::new();
    let mut from = 0;
    let mut fenced = false;
    let mut push = |range: Range<usize>, fenced: bool| match fenced {
        true => segments.push((range, true)),
        false => unfenced(text, range, &mut segments),
    };
    for at in memchr::memmem::find_iter(text.as_bytes(), FENCE) {
        let first = text[..at].trim_end_matches([' ', '\t']);
        if at < from || !(first.is_empty() || first.ends_with('\n')) {
            continue;
        }
        push(from..at, fenced);
        // What opens a fence names its language; what stands behind its end is said.
        from = match fenced {
            true => match text[at + FENCE.len()..].find(|c: char| !matches!(c, ' ' | '\t' | '\r')) {
                Some(blank) if text[at + FENCE.len() + blank..].starts_with('\n') => {
                    at + FENCE.len() + blank + 1
                }
                Some(_) => at + FENCE.len(),
                None => text.len(),
            },
            false => memchr::memchr(b'\n', &text.as_bytes()[at..]).map_or(text.len(), |found| at + found + 1),
        };
        fenced = !fenced;
    }
    push(from..text.len(), fenced);
    segments.retain(|(range, _)| range.start < range.end);
    segments
}

/// The lines of a text, as `str::lines` gives them; found by whole words of memory, which takes half the time.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    with_ends(text).map(|line| match line.strip_suffix('\n') {
        Some(line) => line.strip_suffix('\r').unwrap_or(line),
        None => line,
    })
}

/// The same with what ends them.
fn with_ends(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = memchr::memchr(b'\n', rest.as_bytes()).map_or(rest.len(), |at| at + 1);
        let (line, behind) = rest.split_at(end);
        rest = behind;
        (!line.is_empty()).then_some(line)
    })
}

/// Lines of a log from how many on a text was pasted.
const PASTED_LINES_MIN: usize = 3;
/// Lines of no known form that may stand between those of a paste.
const PASTED_GAP_MAX: usize = 2;

/// Parts what stands in no fence: people paste what programs print as it is.
fn unfenced(text: &str, range: Range<usize>, segments: &mut Vec<(Range<usize>, bool)>) {
    let mut from = range.start;
    // The paste that is being read: where it begins and ends, and how many lines of it are known.
    let mut paste: Option<(Range<usize>, usize)> = None;
    let mut gap = 0;
    let mut at = range.start;
    for line in with_ends(&text[range.clone()]) {
        let next = at + line.len();
        match (&mut paste, is_printed(line)) {
            (Some((place, count)), true) => {
                place.end = next;
                *count += 1;
                gap = 0;
            }
            (None, true) => {
                paste = Some((at..next, 1));
                gap = 0;
            }
            (Some(_), false) if gap < PASTED_GAP_MAX && !line.trim().is_empty() => gap += 1,
            (Some(_), false) => push_paste(&mut paste, &mut from, segments),
            (None, false) => {}
        }
        at = next;
    }
    push_paste(&mut paste, &mut from, segments);
    segments.push((from..range.end, false));
}

fn push_paste(
    paste: &mut Option<(Range<usize>, usize)>,
    from: &mut usize,
    segments: &mut Vec<(Range<usize>, bool)>,
) {
    if let Some((place, count)) = paste.take()
        && count >= PASTED_LINES_MIN
    {
        segments.push((*from..place.start, false));
        *from = place.end;
        segments.push((place, true));
    }
}

/// Whether a line looks like one that a program printed. Indented prose is that of a list.
pub(super) fn is_printed(line: &str) -> bool {
    let plain = line.trim();
    is_of_log(plain)
        || line.starts_with([' ', '\t']) && !plain.is_empty() && !plain.starts_with(['-', '*', '•'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_library() {
        for text in ["", "a", "a\n", "\n\na\r\n\rb\r", "a\nb\r\n", "\r\n", "é\n漢"] {
            assert_eq!(lines(text).collect::<Vec<_>>(), text.lines().collect::<Vec<_>>(), "{text:?}");
        }
    }

    #[test]
    fn fences_are_apart() {
        let text = "a\n```rust\nlet x;\n```\nb";
        let parts: Vec<(&str, bool)> =
            segments(text).into_iter().map(|(range, fenced)| (&text[range], fenced)).collect();
        assert_eq!(parts, [("a\n", false), ("let x;\n", true), ("b", false)]);
    }

    #[test]
    fn what_programs_printed_is_apart_without_a_fence() {
        let log = "2026-03-04T10:00:01Z INFO a started\nwarning: unused variable\n  --> src/a.rs:1:9\nok\n\
                   2026-03-04T10:00:02Z INFO a ended\n";
        let text = format!("Here is what I see:\n\n{log}\nWhat is it?");
        let parts: Vec<(&str, bool)> =
            segments(&text).into_iter().map(|(range, printed)| (&text[range], printed)).collect();
        assert_eq!(parts, [("Here is what I see:\n\n", false), (log, true), ("\nWhat is it?", false)]);
        let list = "Rules:\n  - one\n  - two\n  - three\n";
        assert_eq!(segments(list), [(0..list.len(), false)]);
    }
}
