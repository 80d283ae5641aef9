//! Short lists and tables that say one thing together: they are told with what stands over them. Pure.

use std::ops::Range;

use super::judge;
use super::names::Found;
use super::sentences;
use super::spoken::FACT_BYTES_MAX;

/// What stands over a list or a table is a heading of it up to so many bytes.
const HEADING_BYTES_MAX: usize = 120;
/// Without a colon it is one where it has no more words.
const HEADING_WORDS_MAX: usize = 4;
/// Rows of a table that somebody wrote to tell something; a longer one is data.
const ROWS_MAX: usize = 12;
/// A row that has fewer words says nothing of what it names.
const ROW_WORDS_MIN: usize = 3;

/// Lines that are told as one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// What is told.
    pub line: String,
    /// Whether it is a row of a table.
    pub is_row: bool,
    /// The items of the list that it is made of.
    pub items: usize,
}

/// A list or a table, with the line over it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub range: Range<usize>,
    pub units: Vec<Unit>,
}

/// The blocks of a part of a text that belong together, in their order. `names` are those of the whole text.
pub(super) fn blocks(text: &str, part: &Range<usize>, names: &[Found]) -> Vec<Block> {
    let mut blocks = Vec::new();
    if !may_have(&text[part.clone()]) {
        return blocks;
    }
    let lines: Vec<Range<usize>> = lines(text, part).collect();
    let mut at = 0;
    while at < lines.len() {
        let is_row = |at: usize| text[lines[at].clone()].trim_start().starts_with('|');
        let is_item = |at: usize| item(&text[lines[at].clone()]).is_some();
        let is_blank = |at: usize| text[lines[at].clone()].trim().is_empty();
        let first = at;
        at += 1;
        if is_row(first) {
            while at < lines.len() && is_row(at) {
                at += 1;
            }
            blocks.extend(table(text, &lines, first..at, names));
        } else if is_item(first) {
            // Blank lines may stand between items.
            while at < lines.len() && (is_item(at) || is_blank(at) && at + 1 < lines.len() && is_item(at + 1))
            {
                at += 1;
            }
            blocks.extend(list(text, &lines, first..at, names));
        }
    }
    blocks
}

/// Most texts have none: only the bytes at the beginnings of lines are looked at.
fn may_have(text: &str) -> bool {
    let bytes = text.as_bytes();
    let begins = |at: usize| matches!(bytes.get(at), Some(b'-' | b'*' | b'|' | b'0'..=b'9' | b' ' | 0xe2));
    begins(0) || memchr::memchr_iter(b'\n', bytes).any(|at| begins(at + 1))
}

fn lines<'a>(text: &'a str, part: &Range<usize>) -> impl Iterator<Item = Range<usize>> + 'a {
    let mut at = part.start;
    text[part.clone()].split_inclusive('\n').map(move |line| {
        let start = at;
        at += line.len();
        start..at
    })
}

/// What an item of a list says; `None` for another line.
fn item(line: &str) -> Option<&str> {
    let line = line.trim();
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let rest = match digits {
        0 => line.strip_prefix(['-', '*', '•'])?,
        1..=2 => line[digits..].strip_prefix(['.', ')'])?,
        _ => return None,
    };
    rest.starts_with(' ').then(|| rest.trim()).filter(|rest| !rest.is_empty())
}

/// The line over a block that says what it is of, or the last sentence of it; at most one blank line stands between.
fn heading(text: &str, lines: &[Range<usize>], first: usize) -> Option<Range<usize>> {
    let line = |at: usize| text[lines[at].clone()].trim();
    let at = first.checked_sub(1)?;
    let at = if line(at).is_empty() { at.checked_sub(1)? } else { at };
    if line(at).is_empty() {
        return None;
    }
    let end = lines[at].start + text[lines[at].clone()].trim_end().len();
    let last = text[..end].char_indices().next_back().map_or(end, |(at, _)| at);
    let over = sentences::around(text, last.max(lines[at].start)..end);
    let start = over.start.clamp(lines[at].start, end);
    let place = start + heading_from(&text[start..end])..end;
    let over = text[place.clone()].trim();
    let is_short = over.split(' ').count() <= HEADING_WORDS_MAX && !over.ends_with(['.', '!', '?', ',', ';']);
    (!over.is_empty() && over.len() <= HEADING_BYTES_MAX && (over.ends_with(':') || is_short))
        .then_some(place)
}

/// Where a heading begins in its line: people write on without a full stop, "yes House rules of `gate`:".
fn heading_from(line: &str) -> usize {
    if line.len() <= HEADING_BYTES_MAX {
        return 0;
    }
    let lowest = line.ceil_char_boundary(line.len() - HEADING_BYTES_MAX);
    let begins = line[lowest..].match_indices(' ').rev().map(|(at, _)| lowest + at + 1);
    begins.into_iter().find(|at| line[*at..].starts_with(char::is_uppercase)).unwrap_or(0)
}

/// A list of which one item at most names something: the others are about the same.
fn list(text: &str, lines: &[Range<usize>], items: Range<usize>, names: &[Found]) -> Option<Block> {
    let over = heading(text, lines, items.start);
    let range = over.as_ref().unwrap_or(&lines[items.start]).start..lines[items.end - 1].end;
    let count = items.clone().filter(|at| !text[lines[*at].clone()].trim().is_empty()).count();
    let is_told = over.is_some() || count > 1;
    if !is_told || range.len() > FACT_BYTES_MAX || text[range.clone()].contains("[ ]") {
        return None;
    }
    let inside = |range: &Range<usize>| {
        let first = names.partition_point(|name| name.place.start < range.start);
        names[first..].iter().take_while(|name| name.place.start < range.end).count()
    };
    let named = items.clone().filter(|at| inside(&lines[*at]) > 0).count();
    if named > 1 || inside(&range) == 0 {
        return None;
    }
    let said = items.filter_map(|at| item(&text[lines[at].clone()]));
    let said: Vec<String> = said.map(sentences::plain).collect();
    let mut line = over.map_or_else(String::new, |over| told_over(&text[over]));
    line.push_str(&said.join("; "));
    Some(Block { range, units: vec![Unit { line, is_row: false, items: said.len() }] })
}

/// A heading as it stands before what it is of.
fn told_over(heading: &str) -> String {
    let heading = sentences::plain(heading);
    format!("{}: ", heading.trim_end_matches(':'))
}

/// The rows of a small table that name something, each with what stands over the table.
fn table(text: &str, lines: &[Range<usize>], rows: Range<usize>, names: &[Found]) -> Option<Block> {
    if rows.len() > ROWS_MAX {
        return None;
    }
    let over = heading(text, lines, rows.start);
    let range = over.as_ref().unwrap_or(&lines[rows.start]).start..lines[rows.end - 1].end;
    let cells = |at: usize| -> Vec<&str> {
        let cells = text[lines[at].clone()].trim().trim_matches('|').split('|');
        cells.map(str::trim).filter(|cell| !cell.is_empty()).collect()
    };
    let is_rule =
        |at: usize| cells(at).iter().all(|cell| cell.bytes().all(|byte| matches!(byte, b'-' | b':')));
    let has_header = rows.len() > 2 && is_rule(rows.start + 1);
    let first = if has_header { rows.start + 2 } else { rows.start };
    let over = match over {
        Some(over) => told_over(&text[over]),
        None if has_header => format!("{}: ", cells(rows.start).join(", ")),
        None => String::new(),
    };
    let is_named = |at: usize| {
        let first = names.partition_point(|name| name.place.start < lines[at].start);
        names.get(first).is_some_and(|name| name.place.start < lines[at].end)
    };
    let change = has_header.then(|| change_of(&cells(rows.start))).flatten();
    let units = (first..rows.end).filter(|at| is_named(*at)).filter_map(|at| {
        let line = match change.and_then(|(was, is)| changed(&cells(at), was, is)) {
            Some(line) => line,
            None => format!("{over}{}", cells(at).join(": ")),
        };
        let words = cells(at).iter().flat_map(|cell| cell.split(' ')).count();
        (words >= ROW_WORDS_MIN && line.len() <= FACT_BYTES_MAX && !judge::is_hearsay(&line))
            .then_some(Unit { line, is_row: true, items: 1 })
    });
    let units: Vec<Unit> = units.collect();
    (!units.is_empty()).then_some(Block { range, units })
}

/// The columns of a table in which stands what was, and what is.
fn change_of(header: &[&str]) -> Option<(usize, usize)> {
    let column = |words: &[&str]| {
        let is_one = |cell: &&str| words.iter().any(|word| cell.eq_ignore_ascii_case(word));
        header.iter().position(is_one)
    };
    let was = column(&[
        "was",
        "old",
        "before",
        "from",
        "previous",
        "previously",
        "so far",
        "alt",
        "avant",
        "antes",
    ])?;
    let is = column(&["is", "new", "now", "after", "to", "current", "today", "neu", "après", "ahora"])?;
    Some((was, is))
}

/// A row of such a table as a sentence would tell it.
fn changed(cells: &[&str], was: usize, is: usize) -> Option<String> {
    let rest: Vec<&str> =
        cells.iter().enumerate().filter(|(at, _)| *at != was && *at != is).map(|(_, cell)| *cell).collect();
    Some(format!("{}: {} (was {})", rest.join(", "), cells.get(is)?, cells.get(was)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::ledger::names::{From, found};

    fn told(text: &str) -> Vec<String> {
        let names = found(text, From::Person);
        let blocks = blocks(text, &(0..text.len()), &names);
        blocks.into_iter().flat_map(|block| block.units).map(|unit| unit.line).collect()
    }

    #[test]
    fn a_list_about_one_thing_is_one_line() {
        for (text, lines) in [
            (
                "Rules of `kiwi_pool`:\n- no globals\n- small files\n",
                vec!["Rules of `kiwi_pool`: no globals; small files"],
            ),
            (
                "**House rules**\n\n* `kiwi_pool`: one owner\n* sums are in cents\n",
                vec!["House rules: `kiwi_pool`: one owner; sums are in cents"],
            ),
            (
                "that other thing can wait until somebody who knows more of it than me is back in the office on Monday, so no hurry House rules of `kiwi_pool`:\n- no globals\n- small files\n",
                vec!["House rules of `kiwi_pool`: no globals; small files"],
            ),
            // Of two things each line speaks for itself.
            ("Rules:\n- `kiwi_pool` is frozen\n- `plum_pool` is not\n", vec![]),
            ("Rules:\n- no globals\n- small files\n", vec![]),
            ("Done, see `kiwi_pool`. And then:\n\nnothing", vec![]),
            // Tasks are done one by one.
            ("To do:\n- [ ] port `kiwi_pool`\n- [ ] ship\n", vec![]),
        ] {
            assert_eq!(told(text), lines, "{text}");
        }
    }

    #[test]
    fn rows_of_a_small_table_are_lines() {
        let text = "What is out:\n\n| Idea | Why |\n|---|---|\n| caching `kiwi_pool` | it served old rights |\n| tea | no |\n";
        assert_eq!(told(text), ["What is out: caching `kiwi_pool`: it served old rights"]);
        let text =
            "| Option | Verdict |\n|---|---|\n| one writer for `kiwi_pool` | taken, two would clash |\n";
        assert_eq!(told(text), ["Option, Verdict: one writer for `kiwi_pool`: taken, two would clash"]);
        let data = "| `kiwi_pool` | 5 rows are in here |\n".repeat(30);
        assert!(told(&data).is_empty());
    }
}
