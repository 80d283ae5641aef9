//! Facts in what programs printed and files hold. Pure.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use super::cues;
use super::fact::{Fact, Form, Kind, Source};
use super::notes::Notes;
use super::spoken::{clipped, of_value};
use super::{names, segments, sentences, values, words};

/// Lines with the word of an error that are looked at, from the front and once more from the end.
const EXAMINED_MAX: usize = 400;
/// So much of the end is looked at where the front has taken all of those.
const END_BYTES: usize = 64 * 1024;
/// Errors of one output: the first say what is wrong, the last what came of it.
const ERRORS_FIRST: usize = 4;
const ERRORS_LAST: usize = 2;
/// An error's line is told up to here.
pub(super) const LINE_BYTES_MAX: usize = 280;
/// Outputs up to this size are searched for values and names as a whole, longer ones at their ends.
const WINDOW_BYTES: usize = 4 * 1024;
/// A value that is a name, and that is called by what it is.
const DESCRIBED_STRENGTH: u8 = 4;
/// Values of one output.
const VALUES_MAX: usize = 12;

/// Lines that only say that there were errors.
const HOLLOW: &[&str] = &[
    "aborting due to",
    "could not compile",
    "for more information about",
    "0 errors",
    "0 failed",
    "no errors",
    "errors: 0",
    "error: 0",
    "failed: 0",
    "0 failures",
    "error-free",
    "test failed, to rerun",
    "failures:",
    "short test summary",
    "elifecycle",
    "a complete log of this run",
    "build failed, waiting",
    "some errors have detailed",
];

/// How the command that printed it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Well,
    Failed,
}

/// The lines of an output that tell what went wrong, in its order.
pub(super) fn errors(text: &str, ended: Ended) -> Vec<String> {
    let mut found: Vec<(usize, u8, String)> = Vec::new();
    let next = examine(text, 0, ended, &mut found);
    if let Some(next) = next {
        let from = text.ceil_char_boundary(text.len().saturating_sub(END_BYTES).max(next));
        examine(text, from, ended, &mut found);
    }
    found.dedup_by(|later, earlier| later.2 == earlier.2);
    let sure: Vec<&(usize, u8, String)> = found.iter().filter(|(_, weight, _)| *weight >= 4).collect();
    let of: Vec<&(usize, u8, String)> = if sure.is_empty() { found.iter().collect() } else { sure };
    let first = if of.iter().all(|(_, weight, _)| *weight < 4) { 1 } else { ERRORS_FIRST };
    let mut told: Vec<String> = Vec::new();
    for (at, (_, _, line)) in of.iter().enumerate() {
        if (at < first || at + ERRORS_LAST >= of.len()) && !told.contains(line) {
            told.push(line.clone());
        }
    }
    if ended == Ended::Failed {
        // What is said behind the last error is what it ended with.
        let behind = sure_end(&found, text);
        for line in standing_out(&text[behind..]) {
            if !told.iter().any(|known| known.contains(&line)) {
                told.push(line);
            }
        }
    }
    told
}

/// Whether a line only sums up what there was.
fn is_summary(line: &str) -> bool {
    static FOUND: LazyLock<AhoCorasick> = LazyLock::new(|| any_of(SUMMARIES));
    FOUND.is_match(line)
}

/// Whether a line only says that there were errors.
fn is_hollow(line: &str) -> bool {
    static FOUND: LazyLock<AhoCorasick> = LazyLock::new(|| any_of(HOLLOW));
    FOUND.is_match(line)
}

/// Finds any of some words, whatever their case.
fn any_of(words: &[&str]) -> AhoCorasick {
    AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .kind(Some(AhoCorasickKind::DFA))
        .build(words)
        .expect("the words are few and short")
}

/// Where the last line ends that is surely an error, and not only sums up.
fn sure_end(found: &[(usize, u8, String)], text: &str) -> usize {
    let last = found.iter().rfind(|(_, weight, line)| *weight >= cues::SURE_MIN && !is_summary(line));
    last.map_or(0, |(at, ..)| {
        memchr::memchr(b'\n', &text.as_bytes()[*at..]).map_or(text.len(), |end| at + end)
    })
}

/// Lines at the end of an output that are looked at for what it ended with.
const LAST_LINES: usize = 40;
/// So many of them are told.
const STANDING_OUT_MAX: usize = 2;

/// The last lines of an output that are like no others of it: what a program says as it fails, whatever its words.
fn standing_out(text: &str) -> Vec<String> {
    let tail = &text[text.ceil_char_boundary(text.len().saturating_sub(WINDOW_BYTES))..];
    let lines: Vec<&str> = tail.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let lines = &lines[lines.len().saturating_sub(LAST_LINES)..];
    let shapes: Vec<Option<u32>> = lines.iter().map(|line| words::shape(line)).collect();
    let is_own = |at: usize| {
        let line = lines[at];
        // What is said before is what the program did.
        if at + LAST_OWN_LINES < lines.len() {
            return false;
        }
        let lower = line[..line.floor_char_boundary(LINE_BYTES_MAX)].to_lowercase();
        shapes[at].is_some()
            && shapes.iter().filter(|shape| **shape == shapes[at]).count() == 1
            && (MESSAGE_BYTES_MIN..=LINE_BYTES_MAX).contains(&line.len())
            && !sentences::is_of_log(line)
            && !is_source(line)
            && !line.starts_with('[')
            && !is_hollow(line)
            && !is_summary(line)
            && !lower.ends_with("... ok")
            && !lower.starts_with("running ")
            && !is_progress(line)
    };
    let own: Vec<usize> = (0..lines.len()).rev().filter(|at| is_own(*at)).take(STANDING_OUT_MAX).collect();
    own.into_iter().rev().map(|at| collapse(lines[at])).collect()
}

/// Lines at the very end of which one may be like no others.
const LAST_OWN_LINES: usize = 8;

/// Whether a line tells how far a program got, or what a server was asked and gave.
fn is_progress(line: &str) -> bool {
    let first = line.split(' ').next().unwrap_or_default();
    matches!(
        first,
        "Compiling"
            | "Checking"
            | "Downloading"
            | "Downloaded"
            | "Building"
            | "Installing"
            | "Fetching"
            | "Updating"
            | "Linking"
            | "GET"
            | "POST"
            | "PUT"
            | "PATCH"
            | "DELETE"
            | "HEAD"
    )
}

/// A shorter line says nothing by itself.
const MESSAGE_BYTES_MIN: usize = 16;

/// Looks at lines with cues from a place on; gives where it stopped, if it stopped early.
fn examine(text: &str, from: usize, ended: Ended, found: &mut Vec<(usize, u8, String)>) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut line_end = from;
    let mut line_start = from;
    let mut weight = 0;
    let mut examined = 0;
    for hit in cues::printed(&text[from..], ended == Ended::Failed) {
        let (start, end) = (from + hit.start, from + hit.end);
        if start < line_end {
            weight = weight.max(hit.weight);
            continue;
        }
        take_line(text, line_start..line_end, weight, ended, found);
        examined += 1;
        if examined > EXAMINED_MAX {
            return Some(line_end);
        }
        let lowest = text.floor_char_boundary(start.saturating_sub(LINE_BYTES_MAX)).max(line_end);
        line_start = memchr::memrchr(b'\n', &bytes[lowest..start]).map_or(lowest, |at| lowest + at + 1);
        line_end = memchr::memchr(b'\n', &bytes[end..]).map_or(text.len(), |at| end + at);
        weight = hit.weight;
    }
    take_line(text, line_start..line_end, weight, ended, found);
    None
}

fn take_line(
    text: &str,
    range: std::ops::Range<usize>,
    weight: u8,
    ended: Ended,
    found: &mut Vec<(usize, u8, String)>,
) {
    let needed = match ended {
        Ended::Well => cues::SURE_MIN,
        Ended::Failed => 2,
    };
    if weight < needed {
        return;
    }
    let whole = &text[range.clone()];
    let line = &whole[..whole.floor_char_boundary(LINE_BYTES_MAX)];
    // Only the head, however long the line.
    let lower = line.to_lowercase();
    if is_hollow(line) || (lower.contains("warning") && !lower.contains("error")) {
        return;
    }
    let trimmed = line.trim();
    let unsure = ended == Ended::Well || weight < cues::SURE_MIN;
    if unsure && (is_source(trimmed) || lower.contains("\"error\": null")) {
        return;
    }
    let mut told = collapse(trimmed);
    let mut rest = text[range.end..].lines().skip(1);
    if lower.contains("panicked at") && lower.trim_end().ends_with(':') {
        if let Some(next) = rest.next() {
            told = format!(
                "{told} {}",
                collapse(next.get(..next.floor_char_boundary(LINE_BYTES_MAX)).unwrap_or_default())
            );
        }
    } else if lower.starts_with("error")
        && let Some(place) = rest.next().map(str::trim).and_then(|line| line.strip_prefix("--> "))
    {
        told = format!("{told} ({})", &place[..place.floor_char_boundary(LINE_BYTES_MAX)]);
    }
    found.push((range.start, weight, told));
}

/// Whether a line is one of a program's text or of a document, and not what a program said.
pub(super) fn is_source(line: &str) -> bool {
    let line = unnumbered(line).trim_start();
    let begins = line.starts_with(['/', '*', '#', '+', '<', '|', '}', '"', '\'', '`', '&', '.'])
        && !line.starts_with("/usr")
        // A script's name, and a mark before an error.
        && !line.starts_with("./")
        && !line.starts_with("** ")
        && !line.starts_with("# ")
        || [
            "- ", "let ", "return ", "if ", "for ", "fn ", "pub ", "def ", "class ", "const ", "use ",
            "import ",
        ]
        .iter()
        .any(|word| line.starts_with(word));
    begins
        || line.ends_with(['{', ';', '}', ',', '(', '|'])
        || line.contains("=> ")
        || line.contains("::") && line.contains("()")
}

fn collapse(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    for word in line.split_whitespace() {
        if !plain.is_empty() {
            plain.push(' ');
        }
        plain.push_str(word);
    }
    plain
}

/// The key under which two runs' errors are the same: numbers, which are times and places, left out.
pub(super) fn error_key(line: &str) -> String {
    line.chars().filter(|character| !character.is_ascii_digit()).collect()
}

/// What stands in a fence of a message: a log, a file, an example.
pub(super) fn take_pasted(notes: &mut Notes, text: &str, source: Source) {
    for line in errors(text, Ended::Well) {
        let key = error_key(&line);
        notes.add(Fact::named(Kind::Error, 4, &key, clipped(&line), source));
    }
    take_values(notes, text, "", 3, source);
}

/// Values in the lines of a text's ends. `place` is told before each line.
pub(super) fn take_values(notes: &mut Notes, text: &str, place: &str, strength: u8, source: Source) {
    let mut room = VALUES_MAX;
    for window in windows(text) {
        for line in segments::lines(window).map(unnumbered).filter(|line| line.len() <= 160) {
            if room == 0 {
                notes.beyond += 1;
                return;
            }
            if line.bytes().any(|byte| matches!(byte, b'=' | b':'))
                && let Some(value) = values::of_line(line, Form::Told)
            {
                let line = if place.is_empty() {
                    line.trim().to_owned()
                } else {
                    format!("{place}: {}", line.trim())
                };
                // "service account: svc-a": what people look for later is called by such words.
                let is_described = value.name.split(' ').any(names::is_nature)
                    && value.value.bytes().any(|byte| byte.is_ascii_alphabetic());
                let strength = if is_described { strength.max(DESCRIBED_STRENGTH) } else { strength };
                notes.add(of_value(line.trim_end_matches([',', ';']), value, strength, source));
                room -= 1;
            }
        }
    }
}

/// A file's line without its number, as tools that read files print it.
fn unnumbered(line: &str) -> &str {
    let begun = line.trim_start();
    let digits = begun.bytes().take_while(u8::is_ascii_digit).count();
    begun[digits..].strip_prefix(['\t', '→']).filter(|_| digits > 0).unwrap_or(line)
}

/// Sentences of an output that tell a value: "Server listening on port 8081".
pub(super) fn take_sayings(notes: &mut Notes, text: &str, strength: u8, source: Source) {
    let mut room = VALUES_MAX;
    for window in windows(text) {
        for line in segments::lines(window).filter(|line| (8..200).contains(&line.len())) {
            if room == 0 {
                return;
            }
            // Programs print values as numbers and names. What a log says of a moment is no value that holds.
            if !line.bytes().any(|byte| byte.is_ascii_digit())
                || sentences::is_of_log(line)
                || !sentences::is_prose(line)
                || is_source(line)
                || values::of_line(line, Form::Told).is_some()
            {
                continue;
            }
            let mut told = values::of_sentence(line).values;
            told.truncate(2);
            if !told.is_empty() {
                let mut fact =
                    Fact::new(Kind::Value, strength, clipped(&sentences::plain(line)), source).shaped(line);
                fact.values = told;
                notes.add(fact);
                room -= 1;
            }
        }
    }
}

/// Names in a text's ends.
pub(super) fn take_names(notes: &mut Notes, text: &str, source: Source) {
    for window in windows(text) {
        names::take(notes, window, &names::found(window, names::From::Output), names::From::Output, source);
    }
}

/// The ends of a text, by whole lines where there are lines; all of it where it is short.
fn windows(text: &str) -> [&str; 2] {
    if text.len() <= 2 * WINDOW_BYTES {
        return [text, ""];
    }
    let head = &text[..text.floor_char_boundary(WINDOW_BYTES)];
    let tail = &text[text.ceil_char_boundary(text.len() - WINDOW_BYTES)..];
    let head = head.rfind('\n').map_or(head, |at| &head[..at]);
    let tail = tail.find('\n').map_or(tail, |at| &tail[at + 1..]);
    [head, tail]
}

/// Words of lines that sum up what a command did.
const SUMMARIES: &[&str] = &[
    "test result:",
    " passed",
    " failed",
    "tests:",
    "finished",
    "built in",
    "compiled",
    "success",
    "done",
    "created",
    "deployed",
    "pushed",
    "changed,",
    "listening",
    "total",
];

/// Of so many lines at the end one may sum up.
const SUMMED_LINES: usize = 20;

/// The line of an output that says what came of the command.
pub(super) fn decisive(text: &str, errors: &[String], ended: Ended) -> String {
    if ended == Ended::Failed
        && let Some(error) = errors.first()
    {
        return error.clone();
    }
    let tail = &text[text.ceil_char_boundary(text.len().saturating_sub(WINDOW_BYTES))..];
    let lines = || {
        let lines = tail.lines().rev().map(str::trim);
        lines.filter(|line| line.len() > 1 && !line.starts_with("[exit code")).take(SUMMED_LINES)
    };
    let sums_up = |line: &&str| is_summary(&line[..line.floor_char_boundary(LINE_BYTES_MAX)]);
    let line = lines().find(sums_up).or_else(|| lines().next());
    line.map_or_else(String::new, |line| collapse(&line[..line.floor_char_boundary(160)]))
}
