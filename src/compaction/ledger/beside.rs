//! Values that a sentence gives to what the one beside it names. Pure.

use std::ops::Range;

use super::fact::{Form, Value};
use super::sentences;
use super::things::{GIVES, is_bound, is_former, is_thing, is_told_value, part, values};
use super::values::{CHANGE_VERBS, Told, bare, make, sort, split, with_unit};
use super::words::{Set, hash};

/// The values of a sentence of a text; with what stands beside it where that goes on with them, and then where both
/// begin and end: "The port of `gate` had to change. 81 is free.", "You still have 80 for `gate`. Make it 81.",
/// "81. That's the new port of `gate`."
pub(super) fn told(text: &str, sentence: &Range<usize>) -> (Told, Range<usize>) {
    let raw = &text[sentence.clone()];
    let mut told = values(raw);
    if !names_thing(raw) {
        return (told, sentence.clone());
    }
    let is_open = told.values.is_empty();
    if let Some(both) = behind(text, sentence) {
        let next = &text[sentence.end..both.end];
        if is_open && gives_alone(next) {
            told = beside(raw, next, told.olds);
        } else if let Some(value) = told.values.last_mut().filter(|value| value.form == Form::Changed) {
            let alike = told_values(next).into_iter().filter(|other| sort(other) == sort(&value.value));
            let alike: Vec<String> = alike.collect();
            if !alike.is_empty() {
                value.others.extend(alike);
                return (told, both);
            }
        }
        if is_open && !told.values.is_empty() {
            return (told, both);
        }
    }
    if is_open && let Some(both) = ahead(text, sentence) {
        told = beside(raw, &text[both.start..sentence.start], told.olds);
        if !told.values.is_empty() {
            return (told, both);
        }
    }
    (told, sentence.clone())
}

/// What looks like values in a sentence.
fn told_values(sentence: &str) -> Vec<String> {
    let lowered = sentence.to_ascii_lowercase();
    let words = split(sentence, &lowered);
    (0..words.len()).filter(|at| is_told_value(&words[*at])).map(|at| with_unit(&words, at)).collect()
}

/// The value that a sentence gives to the one thing that the other names.
fn beside(named: &str, giving: &str, olds: Vec<String>) -> Told {
    let none = |olds| Told { values: Vec::new(), olds };
    let lowered = named.to_ascii_lowercase();
    let words = split(named, &lowered);
    let mut things = (0..words.len()).filter(|at| is_thing(&words[*at]));
    let (Some(thing), None) = (things.next(), things.next()) else { return none(olds) };
    let name = match part(&words, thing) {
        Some(part) => format!("{} {}", bare(words[thing].text), bare(words[part].text)),
        None => bare(words[thing].text).to_owned(),
    };
    let thing = Some(hash(bare(words[thing].text)));
    let lowered = giving.to_ascii_lowercase();
    let words = split(giving, &lowered);
    let all = (0..words.len()).filter(|at| is_told_value(&words[*at]) && !is_bound(&words, *at));
    let (former, news): (Vec<usize>, Vec<usize>) = all.partition(|at| is_former(&words, *at));
    let gives = |at: &&usize| **at > 0 && GIVES.has(words[**at - 1].lower);
    // "81, final answer, the 80 was a guess"
    let begins = |at: &&usize| **at == 0 || words[**at - 1].ends;
    let new = news.iter().rfind(gives).or_else(|| news.iter().find(begins)).or_else(|| news.last());
    let Some(new) = new else { return none(olds) };
    let Some(value) = make(&name, &with_unit(&words, *new), Form::Changed) else { return none(olds) };
    let others = news.iter().filter(|at| *at != new).map(|at| with_unit(&words, *at));
    let mut olds = olds;
    olds.extend(former.iter().map(|at| with_unit(&words, *at)));
    Told { values: vec![Value { thing, others: others.collect(), ..value }], olds }
}

/// A sentence with the next one, where that has a number and names nothing; a few words may stand between: "I thought
/// about `gate`. And again. It's 81."
fn behind(text: &str, sentence: &Range<usize>) -> Option<Range<usize>> {
    let ahead = &text.as_bytes()[sentence.end..text.len().min(sentence.end + NEXT_BYTES_MAX)];
    if !(ahead.starts_with(b" ") && ahead.iter().any(u8::is_ascii_digit)) {
        return None;
    }
    let mut both = sentence.clone();
    for _ in 0..2 {
        let next = sentences::behind(text, &both)?;
        let words = &text[next.clone()];
        if !is_beside(words) {
            return None;
        }
        both.end = next.end;
        if words.bytes().any(|byte| byte.is_ascii_digit()) {
            return Some(both);
        }
        if words.len() > BETWEEN_BYTES_MAX {
            return None;
        }
    }
    None
}

/// A longer sentence between a thing and its value is about something else.
const BETWEEN_BYTES_MAX: usize = 40;

/// A sentence that says that something changed, with the one before it, where that is little more than a value.
fn ahead(text: &str, sentence: &Range<usize>) -> Option<Range<usize>> {
    let head = &text.as_bytes()[sentence.start.saturating_sub(NEXT_BYTES_MAX)..sentence.start];
    if !(head.ends_with(b" ") && head.iter().any(u8::is_ascii_digit)) {
        return None;
    }
    let before = sentences::before(text, sentence)?;
    let raw = &text[before.clone()];
    let lowered = raw.to_ascii_lowercase();
    let words = split(raw, &lowered);
    let said = text[sentence.clone()].to_ascii_lowercase();
    let is_change = || {
        split(&text[sentence.clone()], &said)
            .iter()
            .any(|word| CHANGE_VERBS.has(word.lower) || TURNS.has(word.lower))
    };
    let values = words.iter().filter(|word| is_told_value(word)).count();
    (is_beside(raw.trim_end_matches('?'))
        && matches!(values, 1 | 2)
        && words.len() <= AHEAD_WORDS_MAX
        && is_change())
    .then_some(before.start..sentence.end)
}

/// Words of who says that something is otherwise from now on.
static TURNS: Set = Set::of(
    "that's that’s that this it now new adjusted done holds applies from put puts edited accordingly applied configured \
     corrected mean meant speaking talking concerns regarding",
);

/// More words before a sentence are about something else.
const AHEAD_WORDS_MAX: usize = 14;

/// Whether a sentence beside one that names a thing may give it a value: it names nothing itself.
fn is_beside(sentence: &str) -> bool {
    sentence.len() <= NEXT_BYTES_MAX && !sentence.contains(['`', '_', '/', '?'])
}

/// Whether a sentence is a value, or gives one to what was named before it: "81 is free.", "We go with 81.", "Make it 81."
fn gives_alone(sentence: &str) -> bool {
    let sentence = sentence.trim_start();
    let lowered = sentence.to_ascii_lowercase();
    let words = split(sentence, &lowered);
    let is_one = |at: usize| {
        is_told_value(&words[at])
            && !is_bound(&words, at)
            && (at == 0
                || words[at - 1].ends
                || words[at - 1].text.ends_with(':')
                || GIVES.has(words[at - 1].lower)
                || is_former(&words, at)
                || PUTS.has(words[at - 1].lower))
    };
    (0..words.len()).any(is_one)
}

/// Words right before a value in a sentence that speaks of what was named before it.
static PUTS: Set = Set::of(
    "it in for out put set chose chosen picked made prefer needs want keep kept gave gives left wrote write meant mean \
     instead rather only says said",
);

/// A longer sentence behind one with a value is about something else.
const NEXT_BYTES_MAX: usize = 80;

fn names_thing(sentence: &str) -> bool {
    sentence.contains(['`', '_'])
}

/// The values that sentences give which are told together.
pub(super) fn given(lines: &str) -> Vec<Value> {
    let mut values = told(lines, &sentences::around(lines, 0..0)).0.values;
    if values.is_empty() {
        values = super::things::values(lines).values;
    }
    values.retain(|value| value.form != Form::Near);
    values
}
