//! Facts in what the person and the agent said. Pure.

use std::ops::Range;

use super::cues::{self, Class, Hit};
use super::fact::{Fact, Form, Kind, Source, Store, Value};
use super::{names, printed, sentences, values, words};

/// A fact is told in so many bytes at most.
pub(super) const FACT_BYTES_MAX: usize = 360;
/// Facts of one message; what is beyond is counted.
const MESSAGE_FACTS_MAX: usize = 160;
/// Lines of a list below "Rules:" that are taken with it.
const LIST_LINES_MAX: usize = 24;
/// A share of words from which on a sentence speaks of the same, in per cent.
const SAME_PERCENT: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Person,
    Agent,
}

/// Takes in a message's text.
pub(super) fn take(store: &mut Store, text: &str, side: Side, source: Source) {
    let mut room = MESSAGE_FACTS_MAX;
    for (range, fenced) in sentences::segments(text) {
        let part = &text[range];
        if fenced {
            printed::take_pasted(store, part, source);
        } else {
            prose(store, part, side, source, &mut room);
        }
    }
    names::take(store, text, names::From::of(side), source);
}

fn prose(store: &mut Store, text: &str, side: Side, source: Source, room: &mut usize) {
    let mut range: Range<usize> = 0..0;
    let mut hits: Vec<Hit> = Vec::new();
    for hit in cues::spoken(text) {
        if hit.start < range.end {
            hits.push(hit);
            continue;
        }
        sentence(store, text, &range, &hits, side, source, room);
        let from = range.end;
        range = sentences::around(text, hit.start..hit.end);
        range.start = range.start.max(from);
        hits.clear();
        hits.push(hit);
    }
    sentence(store, text, &range, &hits, side, source, room);
}

fn sentence(
    store: &mut Store,
    text: &str,
    range: &Range<usize>,
    hits: &[Hit],
    side: Side,
    source: Source,
    room: &mut usize,
) {
    if hits.is_empty() {
        return;
    }
    let raw = &text[range.clone()];
    if !sentences::is_prose(raw) {
        loose(store, raw, hits, source);
        return;
    }
    let told = values::of_sentence(raw);
    let weight = |class: Class| weight_of(hits, class);
    let line = sentences::plain(raw);
    let stems = words::stems(&line);
    if side == Side::Person && weight(Class::Revoked) > 0 {
        revoke(store, &line, &stems, source);
    }
    if weight(Class::Done) > 0 && weight(Class::Pending) < 4 {
        finish(store, &stems, source);
    }
    if !told.olds.is_empty() {
        store.end_values(&told.olds, &told.values, source.entry);
    }
    let Some((kind, strength)) = judge(&line, hits, side, &told.values) else { return };
    if line.ends_with(':') && kind != Kind::Value {
        list(store, text, range, kind, strength, source, room);
        if stems.len() < 3 {
            return;
        }
    }
    if *room == 0 {
        store.beyond += 1;
        return;
    }
    *room -= 1;
    let line = match kind {
        Kind::Rule | Kind::Value => line,
        Kind::Decision | Kind::Rejected | Kind::Pending | Kind::Error => with_context(text, range, line),
        Kind::File | Kind::Command | Kind::Name => line,
    };
    let mut fact = Fact::new(kind, strength, clipped(&line), source);
    fact.values = told.values;
    store.add(fact);
}

/// A line that is no prose may still tell a value or an error.
fn loose(store: &mut Store, raw: &str, hits: &[Hit], source: Source) {
    if weight_of(hits, Class::Error) > 0 && raw.len() < FACT_BYTES_MAX {
        store.add(Fact::new(Kind::Error, 3, clipped(&sentences::plain(raw)), source));
    } else if weight_of(hits, Class::Value) > 0
        && let Some(value) = values::of_line(raw, Form::Told)
    {
        store.add(of_value(raw, value, 3, source));
    }
}

/// A fact that tells one value in the words of its line.
pub(super) fn of_value(line: &str, value: Value, strength: u8, source: Source) -> Fact {
    let mut fact = Fact::new(Kind::Value, strength, clipped(&sentences::plain(line)), source);
    fact.values.push(value);
    fact
}

fn weight_of(hits: &[Hit], class: Class) -> u8 {
    hits.iter().filter(|hit| hit.class == class).map(|hit| hit.weight).max().unwrap_or(0)
}

/// What a sentence is, and how sure that is; `None` where it is talk.
fn judge(line: &str, hits: &[Hit], side: Side, values: &[Value]) -> Option<(Kind, u8)> {
    let weight = |class: Class| weight_of(hits, class);
    let lower = line.get(..line.floor_char_boundary(24)).unwrap_or_default().to_lowercase();
    let asks = line.ends_with(['?', '？']);
    let polite = lower.starts_with("can you") || lower.starts_with("could you") || lower.contains("please");
    let specific = u8::from(
        line.contains('`')
            || line.split_whitespace().any(|word| values::is_value(word.trim_end_matches(['.', ',', ':']))),
    );
    let chatter = side == Side::Agent
        && [
            "let me",
            "i'll ",
            "i’ll ",
            "i will ",
            "now ",
            "first",
            "looking",
            "i'm going",
            "i’m going",
            "next, i",
            "let's check",
            "let's see",
            "let's look",
            "great",
            "good",
        ]
        .iter()
        .any(|begin| lower.starts_with(begin));
    let penalty = if asks && !polite { 2 } else { 0 }
        + if chatter { 2 } else { 0 }
        + u8::from(line.len() > FACT_BYTES_MAX);
    let (rule, decided) = match side {
        Side::Person => (weight(Class::Rule).max(weight(Class::Revoked)), weight(Class::Decision)),
        // What the agent says must be so, it found or decided.
        Side::Agent => (0, weight(Class::Decision).max(weight(Class::Rule).saturating_sub(1))),
    };
    let value = if values.is_empty() { 0 } else { weight(Class::Value).max(2) };
    let error = if line.contains(": ") || line.contains('`') { weight(Class::Error) } else { 0 };
    // In this order where weights are the same.
    let (kind, found) = [
        (Kind::Rule, rule),
        (Kind::Rejected, weight(Class::Rejected)),
        (Kind::Pending, weight(Class::Pending)),
        (Kind::Decision, decided),
        (Kind::Error, error),
        (Kind::Value, value),
    ]
    .into_iter()
    .rev()
    .max_by_key(|(_, weight)| *weight)?;
    let strength = (found + specific + u8::from(side == Side::Person)).saturating_sub(penalty);
    // A value is told by itself; the rest needs a word that is more than common.
    let enough = match kind {
        Kind::Value => found >= 2,
        Kind::Rule | Kind::Error | Kind::Pending | Kind::Decision | Kind::Rejected => {
            found >= 3 || found >= 2 && specific > 0 && !values.is_empty()
        }
        Kind::File | Kind::Command | Kind::Name => false,
    };
    let is_order = side == Side::Person && kind == Kind::Rule && found == 2 && line.len() < 160;
    ((enough || is_order) && strength >= 2).then_some((kind, strength.min(7)))
}

/// A sentence that points back is told with the one before it, and a reason with what it is for.
fn with_context(text: &str, range: &Range<usize>, line: String) -> String {
    let first =
        line.split_whitespace().next().unwrap_or_default().trim_end_matches([',', '\'']).to_lowercase();
    let points_back = matches!(
        first.as_str(),
        "that"
            | "that's"
            | "that’s"
            | "it"
            | "it's"
            | "this"
            | "they"
            | "those"
            | "these"
            | "which"
            | "because"
            | "so"
            | "both"
            | "but"
            | "otherwise"
            | "reason:"
            | "instead"
    );
    let mut line = line;
    if points_back
        && let Some(before) = sentences::before(text, range)
        && before.len() + line.len() < FACT_BYTES_MAX
    {
        line = format!("{} {line}", sentences::plain(&text[before]));
    }
    if let Some(behind) = sentences::behind(text, range)
        && behind.len() + line.len() < FACT_BYTES_MAX
    {
        let next = sentences::plain(&text[behind]);
        let first = next.split_whitespace().next().unwrap_or_default().to_lowercase();
        let explains = matches!(
            first.as_str(),
            "because"
                | "reason:"
                | "since"
                | "otherwise"
                | "rationale:"
                | "why:"
                | "that"
                | "it"
                | "the"
                | "they"
        ) && (next.to_lowercase().contains("because")
            || next.to_lowercase().contains("reason")
            || matches!(
                first.as_str(),
                "because" | "reason:" | "since" | "otherwise" | "rationale:" | "why:"
            ));
        if explains {
            line = format!("{line} {next}");
        }
    }
    line
}

/// The lines of the list below a heading are what the heading says.
fn list(
    store: &mut Store,
    text: &str,
    range: &Range<usize>,
    kind: Kind,
    strength: u8,
    source: Source,
    room: &mut usize,
) {
    let lines = text[range.end..].lines().skip_while(|line| line.trim().is_empty()).take(LIST_LINES_MAX);
    for line in lines {
        let trimmed = line.trim_start();
        let numbered = trimmed.split_once(['.', ')']).is_some_and(|(number, _)| {
            !number.is_empty() && number.len() <= 2 && number.bytes().all(|byte| byte.is_ascii_digit())
        });
        if !(trimmed.starts_with(['-', '*', '•']) || numbered) {
            break;
        }
        let done = trimmed.contains("[x]") || trimmed.contains('✅');
        if done || trimmed.len() > FACT_BYTES_MAX || words::stems(trimmed).is_empty() {
            continue;
        }
        if *room == 0 {
            store.beyond += 1;
            return;
        }
        *room -= 1;
        let told = values::of_sentence(trimmed);
        let mut fact = Fact::new(kind, strength.min(4), clipped(&sentences::plain(trimmed)), source);
        fact.values = told.values;
        store.add(fact);
    }
}

/// The person took back a rule: the one that has most in common with these words, or the newest where
/// they name nothing. Where nothing fits, nothing ends.
fn revoke(store: &mut Store, line: &str, stems: &[words::Stem], source: Source) {
    let lower = line.to_lowercase();
    let permits = [
        "you may",
        "you can now",
        "free to",
        "ok to",
        "okay to",
        "fine to",
        "fine now",
        "fine after all",
        "allowed now",
        "go ahead",
        "feel free",
        "du darfst",
    ]
    .iter()
    .any(|cue| lower.contains(cue));
    let not = words::hash("\u{0}not");
    let own: Vec<words::Stem> = stems
        .iter()
        .copied()
        .filter(|stem| *stem != not && !REVOKING.iter().any(|word| words::subject(word).contains(stem)))
        .collect();
    let rules = store
        .of_mut(Kind::Rule)
        .iter_mut()
        .filter(|rule| rule.over.is_none() && rule.newest() <= source.entry);
    let best = if own.is_empty() {
        rules.filter(|_| !permits).max_by_key(|rule| rule.newest())
    } else {
        let scored = rules.filter_map(|rule| {
            let (percent, shared) = words::overlap(&own, &rule.stems);
            let limits = !permits
                || rule.stems.contains(&not)
                || ["only", "keep", "leave", "untouched", "must", "frozen", "off"]
                    .iter()
                    .any(|word| rule.text.to_lowercase().contains(word));
            (percent >= SAME_PERCENT && shared > 0 && limits)
                .then(|| ((shared, percent, rule.newest()), rule))
        });
        scored.max_by_key(|(score, _)| *score).map(|(_, rule)| rule)
    };
    if let Some(rule) = best {
        rule.over = Some(source.entry);
    }
}

const REVOKING: &[&str] = &[
    "forget",
    "scratch",
    "mind",
    "ignore",
    "disregard",
    "take",
    "back",
    "changed",
    "applies",
    "needed",
    "necessary",
    "required",
    "matters",
    "matter",
    "apply",
    "lifted",
    "dropped",
    "gone",
    "may",
    "free",
    "feel",
    "fine",
    "allowed",
    "ahead",
    "drop",
    "rule",
    "earlier",
    "constraint",
    "requirement",
    "thing",
    "restriction",
];

/// Something was said to be done: what was pending of it drops out.
fn finish(store: &mut Store, stems: &[words::Stem], source: Source) {
    for task in store
        .of_mut(Kind::Pending)
        .iter_mut()
        .filter(|task| task.over.is_none() && task.newest() < source.entry)
    {
        let own = task.stems.len();
        let shared = task.stems.iter().filter(|stem| stems.binary_search(stem).is_ok()).count();
        if shared >= 2 && shared * 100 >= own * SAME_PERCENT {
            task.over = Some(source.entry);
        }
    }
}

pub(super) fn clipped(line: &str) -> String {
    if line.len() <= FACT_BYTES_MAX {
        return line.to_owned();
    }
    format!("{}…", &line[..line.floor_char_boundary(FACT_BYTES_MAX)])
}
