//! Selects records and shows their matching parts.

use regex::{Regex, RegexBuilder};

use super::ask::RecallQuery;
use super::record::Record;
use super::time::Clock;
use super::{RecallError, RecallLog, SearchHit};
use epitome_thread::{Change, Seq};

/// Default and maximum number of results in an answer.
const HITS_MAX: usize = 20;

/// Maximum number of matching lines shown for a record.
const PLACES_MAX: usize = 3;

/// Maximum number of matching lines counted for a record.
const LINES_MAX: usize = 1_000;

/// Maximum size in bytes of a matching line that is shown.
const LINE_BYTES_MAX: usize = 200;

/// Maximum size in bytes of a pattern or of the words, and of a compiled expression.
pub(super) const PATTERN_BYTES_MAX: usize = 1_000;
const REGEX_BYTES_MAX: usize = 1024 * 1024;

/// Maximum number of words in a query.
pub(super) const WORDS_MAX: usize = 20;

/// Returns a page of the texts in the range.
pub(super) fn read(log: &RecallLog, ask: &RecallQuery, clock: &Clock) -> Result<String, RecallError> {
    let range = ask.range.as_ref().expect("without a range it is a search");
    let records: Vec<Record> = log.records().into_iter().filter(|record| range.has(record.part)).collect();
    if records.is_empty() {
        return Err(RecallError::Nothing(nothing_at(log, range.single())));
    }
    let total: usize = records.iter().map(|record| record.text().len()).sum();
    let bytes_max = ask.limit.unwrap_or(usize::MAX).clamp(1, log.answer_bytes);
    let mut page = String::new();
    // Offsets count the bytes of all texts: `at` is the end of the current one, `next` the end of the shown part.
    let (mut at, mut next) = (0, ask.offset);
    for record in &records {
        let text = record.text();
        let from = at;
        at += text.len();
        if at <= ask.offset {
            continue;
        }
        let Some(left) = bytes_max.checked_sub(page.len()).filter(|left| *left > 0) else { break };
        let start = text.ceil_char_boundary(ask.offset.saturating_sub(from));
        let shown = head_of(&text[start..], left);
        let end = start + shown.len();
        let border = if page.is_empty() { "" } else { "\n\n" };
        page.push_str(&format!(
            "{border}[{} {} · {} · bytes {start} to {end} of {}]\n{shown}",
            record.part,
            record.title(),
            clock.show(record.at),
            text.len()
        ));
        next = from + end;
        if end < text.len() {
            break;
        }
    }
    if page.is_empty() {
        return Err(RecallError::PastEnd { total, offset: ask.offset });
    }
    if next < total {
        page.push_str(&format!("\n\n[{} more bytes: recall the same with offset {next}]", total - next));
    }
    Ok(page)
}

/// Returns all records that match all conditions, newest first.
pub(super) fn search(
    log: &RecallLog,
    ask: &RecallQuery,
    clock: &Clock,
    stop: &dyn Fn() -> bool,
) -> Result<String, RecallError> {
    let hits_max = ask.limit.unwrap_or(HITS_MAX).clamp(1, HITS_MAX);
    let (mut found, mut shown, mut hits) = (0, 0, String::new());
    let stopped = each(log, ask, clock, stop, &mut |record, text, finder| {
        found += 1;
        if found <= ask.offset || shown == hits_max {
            return;
        }
        let view = if log.is_shown(record) { " · in your view" } else { "" };
        let mut hit = format!(
            "\n\n{} {} · {} · {} bytes{view}",
            record.part,
            record.title(),
            clock.show(record.at),
            text.len()
        );
        for place in finder.places(text) {
            hit.push_str(&format!("\n  {place}"));
        }
        if hits.len() + hit.len() > log.answer_bytes && shown > 0 {
            return;
        }
        hits.push_str(&hit);
        shown += 1;
    })?;
    let late = if stopped { " The search took too long and was ended; narrow it." } else { "" };
    if found == 0 {
        return Ok(format!("Nothing was found.{late}"));
    }
    let more = if ask.offset + shown < found {
        format!("; offset {} shows the next", ask.offset + shown)
    } else {
        String::new()
    };
    let first = found.min(ask.offset + 1);
    Ok(format!(
        "{found} found, newest first; these are {first} to {}{more}. Read one with its entry, from a byte with \
         offset.{late}{hits}",
        ask.offset + shown
    ))
}

/// Like `search`, but returns data for front ends: at most `ask.limit` results.
pub(super) fn find(
    log: &RecallLog,
    ask: &RecallQuery,
    clock: &Clock,
    stop: &dyn Fn() -> bool,
) -> Result<(Vec<SearchHit>, usize), RecallError> {
    let (mut finds, mut count) = (Vec::new(), 0);
    each(log, ask, clock, stop, &mut |record, text, finder| {
        count += 1;
        if count > ask.offset && finds.len() < ask.limit.unwrap_or(HITS_MAX) {
            let (part, at) = (record.part, record.at);
            finds.push(SearchHit { part, what: record.title(), at, places: finder.places(text) });
        }
    })?;
    Ok((finds, count))
}

/// Visits all matching records, newest first. Returns whether it was stopped early.
fn each(
    log: &RecallLog,
    ask: &RecallQuery,
    clock: &Clock,
    stop: &dyn Fn() -> bool,
    visit: &mut dyn FnMut(&Record, &str, &TextMatcher),
) -> Result<bool, RecallError> {
    let finder = TextMatcher::new(ask)?;
    let since = ask.since.as_deref().map(|since| clock.time(since)).transpose()?;
    let until = ask.until.as_deref().map(|until| clock.time(until)).transpose()?;
    let path = ask
        .path
        .as_deref()
        .map(|path| (path.trim_end_matches('/').trim_start_matches("./"), log.cwd.join(path)));
    let is_meant = |record: &Record| {
        ask.range.as_ref().is_none_or(|range| range.has(record.part))
            && ask.kind.is_none_or(|kind| kind == record.kind)
            && since.is_none_or(|since| record.at >= since)
            && until.is_none_or(|until| record.at <= until)
            && path.as_ref().is_none_or(|(given, absolute)| record.touches(given, absolute))
            && !record.is_recall()
    };
    for record in log.records().iter().rev().filter(|record| is_meant(record)) {
        if stop() {
            return Ok(true);
        }
        let text = record.text();
        if finder.is_in(&text) {
            visit(record, &text, &finder);
        }
    }
    Ok(false)
}

/// The words and the expression that a text must contain.
pub struct TextMatcher {
    all: Vec<Regex>,
    /// Matches any of them, for locating lines.
    any: Option<Regex>,
}

impl TextMatcher {
    /// Compiles the conditions.
    pub fn new(ask: &RecallQuery) -> Result<TextMatcher, RecallError> {
        let pattern = ask.regex.as_deref().filter(|pattern| !pattern.is_empty());
        let words: Vec<&str> = ask.text.as_deref().unwrap_or_default().split_whitespace().collect();
        let bytes = pattern.unwrap_or_default().len().max(ask.text.as_deref().unwrap_or_default().len());
        if bytes > PATTERN_BYTES_MAX || words.len() > WORDS_MAX {
            return Err(RecallError::TooMuch);
        }
        let build = |pattern: &str, any_case: bool| {
            RegexBuilder::new(pattern)
                .case_insensitive(any_case)
                .multi_line(true)
                .size_limit(REGEX_BYTES_MAX)
                .build()
        };
        let escaped: Vec<String> = words.iter().map(|word| regex::escape(word)).collect();
        let mut all = escaped.iter().map(|word| build(word, true)).collect::<Result<Vec<_>, _>>()?;
        let any = match pattern {
            Some(pattern) => {
                let regex = build(pattern, false)?;
                all.push(regex.clone());
                Some(regex)
            }
            None if escaped.is_empty() => None,
            None => Some(build(&escaped.join("|"), true)?),
        };
        Ok(TextMatcher { all, any })
    }

    pub fn is_in(&self, text: &str) -> bool {
        self.all.iter().all(|regex| regex.is_match(text))
    }

    /// Returns matching lines, each with its byte offset. Without words or an expression, returns the first line.
    fn places(&self, text: &str) -> Vec<String> {
        let Some(any) = &self.any else {
            let first = text.lines().find(|line| !line.trim().is_empty());
            return first.map(|line| around(line, 0)).into_iter().collect();
        };
        // Lines that contain all words are best, but the words may also be spread over several lines.
        let together = self.lines(any, text, |line| self.is_in(line));
        let lines = if together.is_empty() { self.lines(any, text, |_| true) } else { together };
        let mut places: Vec<String> = lines
            .iter()
            .take(PLACES_MAX)
            .map(|(start, line, at)| format!("offset {start}: {}", around(line, *at)))
            .collect();
        if lines.len() > PLACES_MAX {
            places.push(format!("and {} more places", lines.len() - PLACES_MAX));
        }
        places
    }

    /// Returns the matching lines: the byte offset of the line, its text, and the position of the match in it.
    fn lines<'t>(
        &self,
        any: &Regex,
        text: &'t str,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Vec<(usize, &'t str, usize)> {
        let mut lines = Vec::new();
        let mut from = 0;
        while let Some(found) = any.find_at(text, from) {
            let at = found.start();
            let start = text[..at].rfind('\n').map_or(0, |border| border + 1);
            let end = text[at..].find('\n').map_or(text.len(), |border| at + border);
            if is_wanted(&text[start..end]) {
                lines.push((start, &text[start..end], at - start));
            }
            // An expression may match an empty text, or span several lines.
            from = end.max(found.end()) + 1;
            if from > text.len() || lines.len() == LINES_MAX {
                break;
            }
            from = text.ceil_char_boundary(from);
        }
        lines
    }
}

/// Returns a line, or the part of a long one around this byte.
fn around(line: &str, at: usize) -> String {
    if line.len() <= LINE_BYTES_MAX {
        return line.trim_end().to_owned();
    }
    let start = line.floor_char_boundary(at.saturating_sub(LINE_BYTES_MAX / 2));
    let end = line.ceil_char_boundary(line.len().min(start + LINE_BYTES_MAX));
    let (before, behind) = (if start > 0 { "…" } else { "" }, if end < line.len() { "…" } else { "" });
    format!("{before}{}{behind}", &line[start..end])
}

/// Returns the longest prefix of at most `max` bytes, but at least one character. It ends at a line break if one is
/// in its second half.
fn head_of(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = text.floor_char_boundary(max);
    let end = if end == 0 { text.ceil_char_boundary(1) } else { end };
    match text[..end].rfind('\n') {
        Some(border) if border >= end / 2 => &text[..=border],
        Some(_) | None => &text[..end],
    }
}

/// Explains why there is nothing to read.
fn nothing_at(log: &RecallLog, entry: Option<Seq>) -> String {
    let Some(seq) = entry else {
        return "Nothing in this range can be read.".to_owned();
    };
    match log.entries.get(seq.0 as usize) {
        None => {
            let last =
                log.entries.last().map_or_else(String::new, |entry| format!("; the last is {}", entry.seq));
            format!("There is no entry {seq}{last}.")
        }
        Some(entry) if matches!(entry.change, Change::Withheld { .. }) => {
            format!("{seq} was kept out of the conversation.")
        }
        Some(_) if log.hidden.has_entry(seq) => {
            format!("{seq} can't be read: a hook removed it, or it was undone or rewound.")
        }
        Some(_) => format!("{seq} has nothing of this kind to read."),
    }
}
