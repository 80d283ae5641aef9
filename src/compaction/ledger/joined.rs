//! Sentences that are told together: one that names something, and those beside it that say why, or what it names. Pure.

use std::ops::Range;

use super::spoken::FACT_BYTES_MAX;
use super::words::Set;
use super::{judge, names, sentences, things};

/// A longer sentence behind a decision is about something else.
const REASON_BYTES_MAX: usize = 160;

/// What a sentence is told with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// What it points back to, and why it says so in as many words.
    Plain,
    /// What stands beside it and may be its reason.
    Reason,
    /// The same, and what it speaks of without a name.
    Named,
    /// The same for a rule, which may speak of all there is: where it says "it".
    Rule,
}

/// First words of a sentence that points to the one before it.
static BACK: Set = Set::of(
    "that that's that’s it it's this they those these which because so both but otherwise reason instead hence therefore \
     thus why rationale",
);

/// A sentence that points back is told with the one before it, and a reason with what it is for.
pub(super) fn with_context(text: &str, range: &Range<usize>, line: String, join: Join) -> String {
    if line.ends_with(':') && !is_named(&line) {
        return announced(text, range, &line).unwrap_or(line);
    }
    let first = line.split_whitespace().next().unwrap_or_default().trim_end_matches([',', '\'', ':']);
    let points_back = BACK.has(&first.to_lowercase());
    let before =
        || sentences::before(text, range).filter(|before| before.len() + line.len() < FACT_BYTES_MAX);
    let line = match points_back.then(before).flatten() {
        Some(before) => format!("{} {line}", sentences::plain(&text[before])),
        None => line,
    };
    let is_choice = join != Join::Plain && is_named(&line);
    let line = match (is_choice && !points_back).then(|| with_opening(text, range, &line)).flatten() {
        Some(opened) => opened,
        None => line,
    };
    let below = || reason_below(text, range).filter(|below| below.len() + line.len() < FACT_BYTES_MAX);
    if let Some(reason) = is_choice.then(below).flatten() {
        return format!("{line} {reason}");
    }
    let next = with_next(text, range, &line, is_choice);
    if next.is_some() || points_back {
        return next.unwrap_or(line);
    }
    match join {
        _ if is_choice => with_reason_before(text, range, &line),
        Join::Named | Join::Rule if !is_named(&line) => with_name(text, range, &line, join),
        Join::Plain | Join::Reason | Join::Named | Join::Rule => None,
    }
    .unwrap_or(line)
}

/// A few words with those before them: "Generated! Edit the template, not `gate`."
fn with_opening(text: &str, range: &Range<usize>, line: &str) -> Option<String> {
    let is_short = line.split(' ').count() <= REST_WORDS_MAX;
    let before =
        sentences::before(text, range).filter(|before| is_short && before.len() <= SHORT_BYTES_MAX)?;
    let before = sentences::plain(&text[before]);
    (may_explain(&before) && before.contains(' ')).then(|| format!("{before} {line}"))
}

/// "Put off for now:" and below it what.
fn announced(text: &str, range: &Range<usize>, line: &str) -> Option<String> {
    let below = sentences::below(text, range).filter(|below| below.len() + line.len() < FACT_BYTES_MAX)?;
    let below = sentences::plain(&text[below]);
    (is_named(&below) && tells_no_value(&below)).then(|| format!("{line} {below}"))
}

/// A sentence with those behind it that say why, or may do so.
fn with_next(text: &str, range: &Range<usize>, line: &str, is_choice: bool) -> Option<String> {
    let mut line = line.to_owned();
    let mut end = range.end;
    let mut joined = 0;
    while joined < JOINED_MAX
        && let Some(behind) = sentences::behind(text, &(range.start..end))
        && behind.len() + line.len() < FACT_BYTES_MAX
    {
        let next = sentences::plain(&text[behind.clone()]);
        let is_short = joined == 0 || text[range.end..end].len() <= SHORT_BYTES_MAX;
        if !(joined == 0 && explains(&next) || is_choice && is_short && may_explain(&next)) {
            break;
        }
        line.push(' ');
        line.push_str(&next);
        end = behind.end;
        joined += 1;
    }
    (joined > 0).then_some(line)
}

/// What was chosen or turned down may be named in the sentence before, "I tried a cache in `gate`. No good, it leaks.",
/// or in the one that is announced, "One negative result. A cache in `gate` leaks."
fn with_name(text: &str, range: &Range<usize>, line: &str, join: Join) -> Option<String> {
    if let Some(named) = named_before(text, range, join == Join::Rule)
        && named.len() + line.len() < FACT_BYTES_MAX
    {
        return Some(format!("{named} {line}"));
    }
    let behind = sentences::behind(text, range).filter(|_| join == Join::Named)?;
    let behind = sentences::plain(&text[behind]);
    let is_told = behind.len() + line.len() < FACT_BYTES_MAX && is_named(&behind) && tells_no_value(&behind);
    is_told.then(|| format!("{line} {behind}"))
}

/// A choice with the sentence before it that says why, where it does not say so itself.
fn with_reason_before(text: &str, range: &Range<usize>, line: &str) -> Option<String> {
    let before = sentences::before(text, range).filter(|_| !judge::gives_reason(line))?;
    if before.len() + line.len() >= FACT_BYTES_MAX {
        return None;
    }
    let before = sentences::plain(&text[before]);
    (may_explain(&before) && before.split(' ').nth(REASON_WORDS_MIN - 1).is_some())
        .then(|| format!("{before} {line}"))
}

/// Sentences behind one that names something that are told with it: they speak of the same.
const JOINED_MAX: usize = 2;
/// A second one only behind a first that is no longer, in bytes: "Nope, dead on arrival."
const SHORT_BYTES_MAX: usize = 40;

/// A longer sentence says itself what its name names.
const NATURE_BYTES_MAX: usize = 100;

/// "It is `ops-12`. That's our ticket.": a name, with the sentence that says what it names.
pub(super) fn with_nature(text: &str, range: &Range<usize>, line: String) -> String {
    let is_said = |sentence: &str| sentence.split(' ').any(names::is_nature);
    match sentences::behind(text, range) {
        Some(behind) if line.len() <= NATURE_BYTES_MAX && !is_said(&line) => {
            let next = sentences::plain(&text[behind]);
            if may_explain(&next) && is_said(&next) { format!("{line} {next}") } else { line }
        }
        Some(_) | None => match reason_below(text, range) {
            Some(reason) if line.len() + reason.len() < FACT_BYTES_MAX => format!("{line} {reason}"),
            Some(_) | None => line,
        },
    }
}

/// Whether a value is of words alone: "the answer is server-sent events".
pub(super) fn is_plain(value: &str) -> bool {
    value.chars().all(|c| c.is_alphabetic() || matches!(c, '-' | ' '))
}

/// Whether a sentence names something.
pub(super) fn is_named(line: &str) -> bool {
    line.contains(['`', '_', '/']) || !names::found(line, names::From::Agent).is_empty()
}

/// Whether a sentence says by its words that it is the reason of the one before.
fn explains(next: &str) -> bool {
    if next.split_once(':').is_some_and(|(label, _)| is_reason(&label.to_lowercase())) {
        return true;
    }
    let first = next.split_whitespace().next().unwrap_or_default().to_lowercase();
    let gives =
        matches!(first.as_str(), "because" | "reason:" | "since" | "otherwise" | "rationale:" | "why:");
    let lower = || next.to_lowercase();
    gives
        || matches!(first.as_str(), "that" | "it" | "the" | "they")
            && (lower().contains("because") || lower().contains("reason"))
}

/// What stands before a sentence and names something; a few words may stand between: "`gate`? Been there. Never again."
/// A rule may be one of all there is: it is told with what it points to, or with the question that it answers.
fn named_before(text: &str, range: &Range<usize>, of_rule: bool) -> Option<String> {
    let mut first = range.start;
    for _ in 0..NAMED_BEFORE_MAX {
        let before = sentences::before(text, &(first..range.end))?;
        let line = sentences::plain(&text[before.clone()]);
        if is_named(&line) {
            let own = &text[range.clone()];
            let points = || own.split(' ').any(is_pronoun) || is_fragment(own);
            let is_topic = judge::is_topic(&line);
            // A value would be told twice, and outlive what it was.
            let may =
                (!of_rule || is_topic || points()) && !judge::is_hearsay(&line) && tells_no_value(&line);
            return may.then(|| sentences::plain(&text[before.start..range.start]));
        }
        if line.len() > SHORT_BYTES_MAX {
            return None;
        }
        first = before.start;
    }
    None
}

/// Whether a short sentence leaves out of what it is: "At most 5 a day, please."
fn is_fragment(sentence: &str) -> bool {
    static FIRST: Set = Set::of(
        "at no not never ever always only nothing nobody without max just hands period strictly don't same keep leave",
    );
    let first = sentence.split([' ', ',']).next().unwrap_or_default().to_ascii_lowercase();
    sentence.len() <= FRAGMENT_BYTES_MAX && FIRST.has(&first)
}

/// A longer one says of what it is.
const FRAGMENT_BYTES_MAX: usize = 60;

/// Sentences before one that are looked at for a name.
const NAMED_BEFORE_MAX: usize = 2;

fn tells_no_value(line: &str) -> bool {
    things::values(line).values.is_empty()
}

/// Words that stand for what was named before.
fn is_pronoun(word: &str) -> bool {
    static PRONOUNS: Set =
        Set::of("it its it's it’s itself there them they their this these those inside therein");
    PRONOUNS.has(&word.trim_matches(|c: char| !c.is_alphabetic()).to_ascii_lowercase())
}

/// The line below that is a reason by its label or by the heading over it: "**Why:** it leaks". Other labelled lines,
/// headings and items may stand between.
fn reason_below(text: &str, range: &Range<usize>) -> Option<String> {
    let mut range = range.clone();
    let mut is_headed = false;
    for _ in 0..LABELS_MAX {
        range = sentences::below(text, &range)?;
        let raw = text[range.clone()].trim();
        let line = sentences::plain(raw);
        let is_heading = raw.starts_with('#') || raw.starts_with("**") && raw.ends_with("**");
        let is_item = raw.starts_with(['-', '*']) || raw.starts_with(|c: char| c.is_ascii_digit());
        match line.split_once(':') {
            _ if is_headed => return Some(line),
            Some((label, _)) if is_reason(&label.to_lowercase()) => return Some(line),
            Some((label, _)) if label.split(' ').nth(LABEL_WORDS_MAX).is_none() => {}
            Some(_) | None if is_heading => is_headed = is_reason(&line.to_lowercase()),
            Some(_) | None if is_item && !is_named(&line) => {}
            Some(_) | None => return None,
        }
    }
    None
}

/// Lines below a choice that are looked at.
const LABELS_MAX: usize = 4;

/// Whether a label is that of a reason.
fn is_reason(label: &str) -> bool {
    static REASONS: Set = Set::of(
        "why reason reasons rationale because reasoning motivation argument grund warum pourquoi raison cause background \
         justification finding result outcome evidence problem context motive",
    );
    let mut words = label.split(' ').map(|word| word.trim_matches(|c: char| !c.is_alphabetic()));
    label.split(' ').nth(LABEL_WORDS_MAX).is_none() && words.any(|word| REASONS.has(word))
}

/// Words of a label.
const LABEL_WORDS_MAX: usize = 4;

/// A reason that stands in a sentence of its own has so many words at least, where it is the first.
const REASON_WORDS_MIN: usize = 6;

/// A sentence of no more words goes on with the one before it.
const REST_WORDS_MAX: usize = 5;

/// Whether a sentence beside one that names something may be about the same: it names nothing itself.
fn may_explain(sentence: &str) -> bool {
    // "You ask why?" asks nobody.
    let asks = sentence.contains('?') && sentence.len() > SHORT_BYTES_MAX;
    !asks
        && !is_named(sentence)
        && sentence.len() <= REASON_BYTES_MAX
        && !judge::is_chatter(sentence)
        && !judge::is_hearsay(sentence)
}
