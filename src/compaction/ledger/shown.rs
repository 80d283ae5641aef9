//! What somebody shows in a message because it is wrong: a line or two of a program's output. Pure.

use std::ops::Range;

use super::fact::{Fact, Kind, Source};
use super::notes::Notes;
use super::printed::{LINE_BYTES_MAX, error_key, is_source};
use super::segments::is_printed;
use super::{cues, judge, sentences};

/// So many lines are shown for what they say; more are a log.
const LINES_MAX: usize = 4;
/// So much is looked at of what stands over them.
const OVER_BYTES_MAX: usize = 160;
/// A shorter line is a word or a name.
const BYTES_MIN: usize = 10;
/// It surely does not work: somebody says so.
const STRENGTH: u8 = 4;

/// Takes in lines that stand apart, by a blank before them or by what announces them. `part` is one of the text that
/// was written.
pub(super) fn take(notes: &mut Notes, text: &str, part: &Range<usize>, source: Source) {
    // The line over this one, as long as it may be of it. Few lines stand apart: only over those is it read.
    let mut over: Option<&str> = None;
    // Only what stands apart goes on behind a blank line, or behind what stood apart.
    let mut is_next = false;
    let mut left = LINES_MAX;
    for line in text[part.clone()].lines() {
        let plain = line.trim();
        if plain.is_empty() {
            is_next = false;
            continue;
        }
        let is_apart = line.starts_with("    ") || line.starts_with('\t');
        if let Some(before) = over.filter(|_| left > 0)
            && (is_apart || is_next && announces(before))
            && judge::is_trouble(tail(before))
        {
            add(notes, plain, source);
            is_next = false;
            left = if is_apart { left - 1 } else { 0 };
            continue;
        }
        over = (!is_printed(line)).then_some(plain);
        is_next = true;
        left = LINES_MAX;
    }
}

/// Takes in a short block of code behind words of trouble; `false` where it is something else.
pub(super) fn take_fenced(notes: &mut Notes, text: &str, block: &Range<usize>, source: Source) -> bool {
    let head = text[..block.start].trim_end();
    // The fence itself, and the line over it.
    let head = head.rfind('\n').map_or("", |at| head[..at].trim_end());
    let over = tail(&head[head.rfind('\n').map_or(0, |at| at + 1)..]);
    let shown = &text[block.clone()];
    if shown.lines().nth(LINES_MAX).is_some() || !judge::is_trouble(over) {
        return false;
    }
    shown.lines().map(str::trim).filter(|line| !line.is_empty()).for_each(|line| add(notes, line, source));
    true
}

fn tail(line: &str) -> &str {
    &line[line.ceil_char_boundary(line.len().saturating_sub(OVER_BYTES_MAX))..]
}

fn add(notes: &mut Notes, line: &str, source: Source) {
    let is_source = || is_source(line) && cues::printed(line, false).next().is_none();
    if (BYTES_MIN..=LINE_BYTES_MAX).contains(&line.len()) && !is_source() && !sentences::is_of_log(line) {
        let told: Vec<&str> = line.split_whitespace().collect();
        let told = told.join(" ");
        notes.add(Fact::named(Kind::Error, STRENGTH, &error_key(&told), told, source));
    }
}

/// Whether a line of words is not done without the next one: "it dies with".
fn announces(line: &str) -> bool {
    line.ends_with([':', '…'])
        || ["with", "this", "that", "says", "prints"].iter().any(|word| line.ends_with(word))
}
