//! Locates a patch's hunks in a text and applies them. Pure. Unchanged lines are taken from the file, even if
//! the patch quotes them with different white space; line endings and a missing final newline are preserved.

use std::borrow::Cow;

use super::parse::{Hunk, PatchLine};
use crate::ToolError;
use crate::file_edit::{is_crlf, listed, nearest};
use crate::truncate;
use crate::truncate::BYTE_ORDER_MARK;

const QUOTED_LINES: usize = 3;
const QUOTE_BYTES_MAX: usize = 200;
const LINES_COMPARED_MAX: usize = 20_000;

/// Maximum number of candidate positions examined to find the longest matching prefix of a hunk.
const POSITIONS_COMPARED_MAX: usize = 1_000;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct PatchedText {
    pub text: String,
    /// The line of the old text at which each hunk begins, from 1.
    pub lines: Vec<usize>,
    /// Remarks about positions that were ambiguous or not an exact match.
    pub notes: Vec<String>,
}

/// How exactly lines are compared, strictest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatchStrictness {
    Exact,
    /// Ignores trailing white space.
    End,
    /// Ignores leading and trailing white space, and a byte order mark.
    Ends,
    /// Also treats typographic quotes, dashes and spaces as their ASCII equivalents.
    Print,
}

impl MatchStrictness {
    const ALL: [MatchStrictness; 4] =
        [MatchStrictness::Exact, MatchStrictness::End, MatchStrictness::Ends, MatchStrictness::Print];

    fn normalize(self, line: &str) -> Cow<'_, str> {
        match self {
            MatchStrictness::Exact => Cow::Borrowed(line),
            MatchStrictness::End => Cow::Borrowed(line.trim_end()),
            MatchStrictness::Ends => Cow::Borrowed(line.trim_start_matches(BYTE_ORDER_MARK).trim()),
            MatchStrictness::Print => Cow::Owned(line.trim().chars().map(keyboard).collect()),
        }
    }

    fn words(self) -> &'static str {
        match self {
            MatchStrictness::Exact => "exactly",
            MatchStrictness::End => "but for blanks at line ends",
            MatchStrictness::Ends => "but for indentation",
            MatchStrictness::Print => "but for quotes, dashes or blanks",
        }
    }
}

/// The ASCII equivalent of a typographic character.
fn keyboard(character: char) -> char {
    match character {
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        '\u{a0}' | '\u{2002}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        other => other,
    }
}

/// A text as lines, each with its line ending.
struct TextLines<'a> {
    lines: Vec<(&'a str, &'a str)>,
    /// The line ending of new lines.
    line_break: &'static str,
}

impl<'a> TextLines<'a> {
    fn split(text: &'a str) -> TextLines<'a> {
        let split = |line: &'a str| {
            let content =
                line.strip_suffix('\n').map_or(line, |line| line.strip_suffix('\r').unwrap_or(line));
            (content, &line[content.len()..])
        };
        let lines: Vec<_> = text.split_inclusive('\n').map(split).collect();
        let line_break = if is_crlf(text) { "\r\n" } else { "\n" };
        TextLines { lines, line_break }
    }

    fn len(&self) -> usize {
        self.lines.len()
    }

    /// Positions from `from` on at which these lines occur.
    fn positions(&self, wanted: &[&str], from: usize, care: MatchStrictness) -> Vec<usize> {
        let Some(last) = self.len().checked_sub(wanted.len()) else { return Vec::new() };
        let wanted: Vec<Cow<'_, str>> = wanted.iter().map(|line| care.normalize(line)).collect();
        let own: Vec<Cow<'_, str>> = self.lines.iter().map(|(line, _)| care.normalize(line)).collect();
        (from..=last).filter(|at| own[*at..at + wanted.len()] == wanted[..]).collect()
    }

    /// The first of the positions at which these lines occur as exactly as possible.
    fn first_position(&self, wanted: &[&str], from: usize) -> Option<usize> {
        MatchStrictness::ALL.into_iter().find_map(|care| self.positions(wanted, from, care).first().copied())
    }

    fn quoted(&self, at: usize) -> String {
        let from = at.saturating_sub(1);
        let quoted = self.lines.iter().enumerate().skip(from).take(QUOTED_LINES);
        let quoted: Vec<String> = quoted
            .map(|(at, (line, _))| format!("{:>6}\t{}", at + 1, truncate::line(line, QUOTE_BYTES_MAX)))
            .collect();
        quoted.join("\n")
    }
}

/// Applies hunks in order. The error names the hunk that can't be located, and quotes the nearest lines.
///
/// A byte order mark stays, and isn't part of the first line: most models leave it out when they quote that.
pub fn fit(text: &str, hunks: &[Hunk]) -> Result<PatchedText, ToolError> {
    let unmarked = text.strip_prefix(BYTE_ORDER_MARK);
    let (is_marked, text) = (unmarked.is_some(), unmarked.unwrap_or(text));
    let lines = TextLines::split(text);
    let mut fitted = PatchedText::default();
    let mut pieces: Vec<(&str, &str)> = Vec::new();
    let mut cursor = 0;
    let mut last_break = text.is_empty() || text.ends_with('\n');
    for (number, hunk) in hunks.iter().enumerate() {
        let name = if hunks.len() == 1 { "The hunk".to_owned() } else { format!("Hunk {}", number + 1) };
        let position = position(&lines, hunk, cursor).map_err(|why| format!("{name} {why}"))?;
        fitted.notes.extend(position.note.map(|note| format!("{name} {note}")));
        fitted.lines.push(position.at + 1);
        pieces.extend(&lines.lines[cursor..position.at]);
        cursor = position.at;
        for line in &hunk.lines[..hunk.lines.len() - position.left_out] {
            match line {
                PatchLine::Same(_) => {
                    pieces.push(lines.lines[cursor]);
                    cursor += 1;
                }
                PatchLine::Out(_) => cursor += 1,
                PatchLine::In(added) => pieces.push((added, lines.line_break)),
            }
        }
        last_break = hunk.last_break.unwrap_or(last_break);
    }
    pieces.extend(&lines.lines[cursor..]);
    let last = pieces.len().saturating_sub(1);
    for (at, (content, end)) in pieces.into_iter().enumerate() {
        fitted.text.push_str(content);
        if at < last || last_break {
            fitted.text.push_str(if end.is_empty() { lines.line_break } else { end });
        }
    }
    if is_marked && !fitted.text.starts_with(BYTE_ORDER_MARK) {
        fitted.text.insert(0, BYTE_ORDER_MARK);
    }
    Ok(fitted)
}

struct HunkPosition {
    /// Line index, from 0.
    at: usize,
    /// Number of lines at the end of the hunk that the file doesn't have: an empty one that represents the final
    /// newline.
    left_out: usize,
    note: Option<String>,
}

/// Locates a hunk. The error continues a sentence that begins with the hunk's name.
fn position(lines: &TextLines<'_>, hunk: &Hunk, cursor: usize) -> Result<HunkPosition, ToolError> {
    let mut from = cursor;
    for header in &hunk.headers {
        from = header_position(lines, header, from)? + 1;
    }
    let wanted: Vec<&str> = hunk
        .lines
        .iter()
        .filter_map(|line| match line {
            PatchLine::Same(text) | PatchLine::Out(text) => Some(text.as_str()),
            PatchLine::In(_) => None,
        })
        .collect();
    if wanted.is_empty() {
        let at = match hunk.line {
            // After the line that a unified diff names.
            Some(line) => line.clamp(from, lines.len()),
            None if hunk.headers.is_empty() || hunk.at_end => lines.len(),
            None => from,
        };
        return Ok(HunkPosition { at, left_out: 0, note: None });
    }
    if let Some((at, note)) = found(lines, &wanted, hunk, from) {
        return Ok(HunkPosition { at, left_out: 0, note });
    }
    if let (Some(PatchLine::Same(last)), [shorter @ .., _]) = (hunk.lines.last(), wanted.as_slice())
        && last.is_empty()
        && !shorter.is_empty()
        && let Some((at, note)) = found(lines, shorter, hunk, from)
    {
        return Ok(HunkPosition { at, left_out: 1, note });
    }
    Err(missing(lines, &wanted, from).into())
}

fn header_position(lines: &TextLines<'_>, header: &str, from: usize) -> Result<usize, ToolError> {
    lines.first_position(&[header], from).ok_or_else(|| {
        let why =
            format!("has the header `@@ {header}`, and there is no such line from line {} on", from + 1);
        ToolError::new(match near(lines, header) {
            Some(near) => format!("{why}. The nearest is:\n{}", lines.quoted(near)),
            None => format!("{why}, and none like it."),
        })
    })
}

/// Returns the position of some lines, with a remark if it is ambiguous or not exact.
fn found(
    lines: &TextLines<'_>,
    wanted: &[&str],
    hunk: &Hunk,
    from: usize,
) -> Option<(usize, Option<String>)> {
    let at_end = lines.len().checked_sub(wanted.len()).filter(|at| *at >= from && hunk.at_end);
    for care in MatchStrictness::ALL {
        if let Some(at) = at_end
            && lines.positions(wanted, at, care).first() == Some(&at)
        {
            return Some((at, None));
        }
    }
    MatchStrictness::ALL.into_iter().find_map(|care| {
        let positions = lines.positions(wanted, from, care);
        let at = match hunk.line {
            Some(line) => positions.iter().copied().min_by_key(|at| at.abs_diff(line.saturating_sub(1)))?,
            None => *positions.first()?,
        };
        let others: Vec<usize> = positions.iter().filter(|position| **position != at).map(|position| position + 1).collect();
        let fuzzy = (care != MatchStrictness::Exact).then(|| format!("fits line {} {}", at + 1, care.words()));
        let again = (!others.is_empty() && hunk.line.is_none()).then(|| {
            format!(
                "was applied at line {}, and would fit at lines {} too: if another was meant, give more lines around it \
                 or an `@@` line",
                at + 1,
                listed(&others)
            )
        });
        Some((at, again.or(fuzzy)))
    })
}

/// Explains why lines can't be located, quoting the nearest ones.
fn missing(lines: &TextLines<'_>, wanted: &[&str], from: usize) -> String {
    if let Some(at) = lines.first_position(wanted, 0) {
        return format!(
            "matches line {}, which is before line {}, where the previous hunks and `@@` lines end. Give hunks in the \
             file's order.",
            at + 1,
            from + 1
        );
    }
    if let Some((at, length)) = longest_beginning(lines, wanted, from) {
        return format!(
            "does not fit: its first {length} of {} lines are at line {}, but then the file has\n{}\nwhere the patch \
             has\n      \t{}",
            wanted.len(),
            at + 1,
            lines.quoted(at + length),
            truncate::line(wanted[length], QUOTE_BYTES_MAX)
        );
    }
    let first = wanted.iter().find(|line| !line.trim().is_empty()).copied().unwrap_or_default();
    match near(lines, first) {
        Some(at) => format!(
            "does not fit: there is no line `{}` from line {} on. The nearest is:\n{}",
            truncate::line(first, QUOTE_BYTES_MAX),
            from + 1,
            lines.quoted(at)
        ),
        None => format!(
            "does not fit: there is no line `{}` from line {} on, and none like it.",
            truncate::line(first, QUOTE_BYTES_MAX),
            from + 1
        ),
    }
}

/// Returns the position at which the longest prefix of the lines matches, and its length. A prefix that consists only
/// of blank lines doesn't count.
fn longest_beginning(lines: &TextLines<'_>, wanted: &[&str], from: usize) -> Option<(usize, usize)> {
    let alike = |at: usize| {
        let own = lines.lines[at..].iter().map(|(line, _)| MatchStrictness::Print.normalize(line));
        own.zip(wanted).take_while(|(own, wanted)| *own == MatchStrictness::Print.normalize(wanted)).count()
    };
    let positions =
        lines.positions(&wanted[..1], from, MatchStrictness::Print).into_iter().take(POSITIONS_COMPARED_MAX);
    let (at, length) =
        positions.map(|at| (at, alike(at))).max_by_key(|(at, length)| (*length, usize::MAX - at))?;
    let says = wanted[..length].iter().any(|line| !line.trim().is_empty());
    (says && length < wanted.len()).then_some((at, length))
}

fn near(lines: &TextLines<'_>, wanted: &str) -> Option<usize> {
    let candidates: Vec<&str> =
        lines.lines.iter().take(LINES_COMPARED_MAX).map(|(line, _)| line.trim()).collect();
    nearest(wanted.trim(), &candidates)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::parse::{FilePatch, parse};
    use super::*;

    fn hunks(body: &str) -> Vec<Hunk> {
        let patch = format!("*** Begin Patch\n*** Update File: a\n{body}\n*** End Patch\n");
        match parse(&patch).expect("well formed").remove(0) {
            FilePatch::Update { hunks, .. } => hunks,
            other => panic!("{other:?}"),
        }
    }

    fn fitted(text: &str, body: &str) -> String {
        fit(text, &hunks(body)).expect("it fits").text
    }

    #[test]
    fn hunks_are_applied_where_they_match() {
        for (story, text, body, expected) in [
            ("in the middle", "a\nb\nc\n", " a\n-b\n+B", "a\nB\nc\n"),
            ("twice", "a\nb\nc\nd\n", "@@\n-a\n+A\n@@\n-d\n+D", "A\nb\nc\nD\n"),
            (
                "behind a header",
                "def f():\n  x\ndef g():\n  x\n",
                "@@ def g():\n-  x\n+  y",
                "def f():\n  x\ndef g():\n  y\n",
            ),
            ("new lines below a header", "a\nb\n", "@@ a\n+x", "a\nx\nb\n"),
            ("new lines at the end", "a\nb\n", "+x", "a\nb\nx\n"),
            ("at the end of the file", "x\ny\nx\n", "@@\n-x\n+z\n*** End of File", "x\ny\nz\n"),
            ("into an empty file", "", "+x", "x\n"),
            ("all of it", "a\n", "-a", ""),
            ("blanks at line ends", "a  \nb\n", " a\n-b\n+c", "a  \nc\n"),
            ("indentation stays the file's", "\ta\n\tb\n", "     a\n-    b\n+\tc", "\ta\n\tc\n"),
            (
                "quotes of print",
                "x = \u{201c}a\u{201d} \u{2013} b\ny\n",
                " x = \"a\" - b\n-y\n+z",
                "x = \u{201c}a\u{201d} \u{2013} b\nz\n",
            ),
            ("CRLF", "a\r\nb\r\n", " a\n-b\n+c\n+d", "a\r\nc\r\nd\r\n"),
            ("the first line behind a byte order mark", "\u{feff}a\nb\n", "-a\n+c", "\u{feff}c\nb\n"),
            (
                "a byte order mark that is quoted",
                "\u{feff}a\nb\n",
                "-\u{feff}a\n+\u{feff}c",
                "\u{feff}c\nb\n",
            ),
            ("no last line break", "a\nb", " a\n-b\n+c", "a\nc"),
            ("none, and lines behind", "a\nb", " b\n+c", "a\nb\nc"),
            ("a blank line that is the end", "a\nb\n", " a\n-b\n+c\n\n*** End of File", "a\nc\n"),
        ] {
            assert_eq!(fitted(text, body), expected, "{story}");
        }
    }

    #[test]
    fn unified_diff_hunk_is_applied_at_the_nearest_match() {
        let text = "x\n1\nx\n2\nx\n3\n";
        let diff = "--- a/a\n+++ b/a\n@@ -5 +5 @@\n-x\n+y\n";
        let FilePatch::Update { hunks, .. } = parse(diff).expect("well formed").remove(0) else {
            unreachable!()
        };
        assert_eq!(fit(text, &hunks).expect("it fits").text, "x\n1\nx\n2\ny\n3\n");
    }

    #[test]
    fn unified_diff_adds_and_removes_the_final_newline() {
        let change = |text: &str, lines: &str| {
            let diff = format!("--- a/a\n+++ b/a\n@@ -1 +1 @@\n{lines}");
            let FilePatch::Update { hunks, .. } = parse(&diff).expect("well formed").remove(0) else {
                unreachable!()
            };
            fit(text, &hunks).expect("it fits").text
        };
        let note = "\\ No newline at end of file\n";
        assert_eq!(change("a\n", &format!("-a\n+b\n{note}")), "b");
        assert_eq!(change("a", &format!("-a\n{note}+b\n")), "b\n");
    }

    #[test]
    fn inexact_and_ambiguous_matches_are_noted() {
        let notes = |text: &str, body: &str| fit(text, &hunks(body)).expect("it fits").notes.join("\n");
        assert_eq!(notes("a\nb\n", "-a\n+c"), "");
        assert!(notes("a\nb\na\n", "-a\n+c").contains("would fit at lines 3 too"));
        assert!(notes("  a\n", "-a\n+c").contains("but for indentation"));
    }

    #[test]
    fn unplaced_hunk_error_quotes_the_nearest_lines() {
        for (text, body, part) in [
            (
                "let total = 1;\nlet count = 2;\n",
                "-let counts = 2;",
                "The nearest is:\n     1\tlet total = 1;\n     2\tlet count = 2;",
            ),
            (
                "a\nb\nc\n",
                " a\n b\n-x\n+y",
                "first 2 of 3 lines are at line 1, but then the file has\n     2\tb\n     3\tc",
            ),
            ("a\nb\n", "@@\n-b\n+c\n@@\n-a\n+d", "Hunk 2 matches line 1, which is before line 3"),
            ("fn one() {}\n", "@@ fn ones() {}\n+x", "The nearest is:\n     1\tfn one() {}"),
            ("a\n", "-something else altogether", "and none like it"),
        ] {
            let why = fit(text, &hunks(body)).expect_err("it has no place");
            assert!(why.to_string().contains(part), "{why}");
        }
    }

    proptest! {
        /// Applying a diff of two texts to the first must yield the second.
        #[test]
        fn unified_diff_reproduces_the_new_text(
            old in "([a-c]{0,2}(\n|\r\n)){0,12}[ab]{0,1}",
            new in "([a-d]{0,2}\n){0,12}[ab]{0,1}",
        ) {
            let old = if old.contains("\r\n") { old.replace("\r\n", "\n").replace('\n', "\r\n") } else { old };
            let new = if old.contains("\r\n") { new.replace('\n', "\r\n") } else { new };
            prop_assume!(old != new && !old.is_empty());
            let plain = |text: &str| text.replace("\r\n", "\n");
            let (from, to) = (plain(&old), plain(&new));
            prop_assume!(from != to);
            let diff = similar::TextDiff::from_lines(&from, &to).unified_diff().header("a/a", "b/a").to_string();
            let FilePatch::Update { hunks, .. } = parse(&diff).expect("well formed").remove(0) else { unreachable!() };
            let made = fit(&old, &hunks).map_err(|why| TestCaseError::fail(format!("{why}\n{diff}")))?.text;
            // The line ending of a text with a single line can't be inferred.
            prop_assert_eq!(plain(&made), to);
        }
    }
}
