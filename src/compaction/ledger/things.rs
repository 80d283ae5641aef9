//! Values that a sentence gives to things which have names of code, and to parts of them. Pure.

use std::borrow::Cow;

use super::fact::{Form, Value};
use super::values::{
    ARTICLES, NOUNS, Told, VALUES_MAX, Word, bare, is_number, is_value, make, split, with_unit,
};
use super::words::{Set, hash};

/// Words behind a thing among which its own value stands.
const THING_WORDS_MAX: usize = 6;
/// Words before a thing among which a value stands that is said to hold now.
const STATED_WORDS_MAX: usize = 4;
/// Words on either side of a part and its thing among which its value stands.
const PART_REACH_WORDS: usize = 20;
/// Words between an article and the part that is named: "the maximum batch size of".
const PART_WORDS_MAX: usize = 3;

/// The values that a sentence gives to parts of things that are called by their names of code: "can you move the
/// listen port of `web_gate` from 80 to 81", "81 ms for the timeout of `web_gate`". However it is put, the same
/// part of the same thing gets the same subject.
pub(super) fn values(sentence: &str) -> Told {
    let sentence = &*substituted(sentence);
    let lowered = sentence.to_ascii_lowercase();
    let words = split(sentence, &lowered);
    let things: Vec<usize> = (0..words.len()).filter(|at| is_thing(&words[*at])).collect();
    let mut told = Told::default();
    for (nth, thing) in things.iter().enumerate().take(VALUES_MAX) {
        // What stands on the other side of another thing is about that one.
        let first = nth.checked_sub(1).map_or(0, |before| things[before] + 1);
        let end = things.get(nth + 1).copied().unwrap_or(words.len());
        of_part(&words[first..end], thing - first, &mut told);
    }
    told
}

/// "s/80/81/ for the port of `gate`" as words would tell it.
fn substituted(sentence: &str) -> Cow<'_, str> {
    let told = || {
        let rest = sentence.trim_start().strip_prefix("s/")?;
        let (old, rest) = rest.split_once('/')?;
        let (new, rest) = rest.split_once('/')?;
        Some(format!("from {old} to {new} {}", rest.trim_start_matches(|c: char| c.is_ascii_alphabetic())))
    };
    told().map_or(Cow::Borrowed(sentence), Cow::Owned)
}

/// Whether a word is a name of code that may have a value.
pub(super) fn is_thing(word: &Word) -> bool {
    (word.text.contains('_') || word.ticked && !is_number(word.text)) && !word.text.contains('/')
}

/// Whether a sentence names a thing beside those that it gives values to.
pub(super) fn names_more(sentence: &str, values: &[Value]) -> bool {
    let is_told =
        |name: &str| values.iter().any(|value| value.name.contains(name) || value.value.contains(name));
    let is_name = |word: &str| word.contains('_') && word.len() > 2;
    !values.is_empty()
        && sentence
            .split(|c: char| c.is_whitespace() || matches!(c, '`' | ',' | '(' | ')' | '"' | '\''))
            .map(|word| word.trim_matches(['.', ':', ';', '!', '?']))
            .any(|word| is_name(word) && !is_told(word))
}

fn of_part(words: &[Word], thing: usize, told: &mut Told) {
    let Some(part) = part(words, thing) else { return of_thing(words, thing, told) };
    let near = |at: usize| at.abs_diff(thing).min(at.abs_diff(part)) <= PART_REACH_WORDS;
    let (olds, news): (Vec<usize>, Vec<usize>) = (0..words.len())
        .filter(|at| *at != thing && *at != part && is_told_value(&words[*at]) && near(*at))
        .partition(|at| is_former(words, *at));
    let gives = |at: &&usize| **at > 0 && GIVES.has(words[**at - 1].lower);
    // "fra-1 for the host of `gate`": what stands right before.
    let is_for = |at: &&usize| {
        let rest = &words[**at + 1..];
        !words[**at].ends
            && (rest.first().is_some_and(|word| word.lower == "for")
                || rest.get(1).is_some_and(|word| word.lower == "for") && !is_told_value(&rest[0]))
            && **at < part
            && (**at + 1..part).all(|at| !words[at].ends)
    };
    let sure = news.iter().rfind(gives).or_else(|| news.iter().rfind(is_for));
    let Some(new) = sure.or_else(|| news.last()) else { return };
    let name = format!("{} {}", bare(words[thing].text), bare(words[part].text));
    let Some(mut value) = make(&name, &with_unit(words, *new), Form::Changed) else { return };
    value.thing = Some(hash(bare(words[thing].text)));
    let others = news.iter().filter(|at| *at != new).map(|at| with_unit(words, *at));
    value.others = others.filter(|other| *other != value.value).collect();
    let olds = olds.iter().map(|at| with_unit(words, *at));
    told.olds.extend(olds.filter(|old| *old != value.value));
    told.values.push(value);
}

/// A value of a thing itself: "take 5 s for `grace`", "`grace`: make that 5 s", "`grace` is 5 s now".
fn of_thing(words: &[Word], thing: usize, told: &mut Told) {
    let is_host = |word: &Word| {
        !word.ticked && word.text.contains('-') && word.text.bytes().any(|b| b.is_ascii_digit())
    };
    let stands =
        |at: &usize| (is_number(words[*at].text) || is_host(&words[*at])) && is_told_value(&words[*at]);
    let mut at = thing;
    while at > 0 && ARTICLES.has(words[at - 1].lower) {
        at -= 1;
    }
    let name = bare(words[thing].text);
    let first = at.saturating_sub(THING_WORDS_MAX);
    let last = words.len().min(thing + 1 + THING_WORDS_MAX);
    // "5 for", or "5 s is better for".
    let before = || (first..at).rev().find(|at| stands(at) && !words[*at].ends);
    let for_it = (at >= 2 && matches!(words[at - 1].lower, "for" | "as")).then(before).flatten();
    let is_told = |at: &usize| stands(at) && GIVES.has(words[*at - 1].lower);
    let behind = || (thing + 2..last).find(is_told);
    // "make `grace` 5 s"
    let beside = (thing > 0 && MAKES.has(words[thing - 1].lower)
        || thing > 1 && MAKES.has(words[at.max(1) - 1].lower))
    .then_some(thing + 1)
    .filter(|at| *at < last && stands(at));
    let glued = words[thing].text.ends_with(':').then_some(thing + 1).filter(|at| *at < last && stands(at));
    let sure = for_it.or(glued).or(beside).or_else(behind);
    let all = || (first..at).chain(thing + 1..last).filter(|at| stands(at) && !is_bound(words, *at));
    // "81, not 80 (`grace`)"
    let (olds, news): (Vec<usize>, Vec<usize>) = all().partition(|at| is_former(words, *at));
    let corrected = || (news.len() == 1 && !olds.is_empty()).then(|| news[0]);
    // Of two the store may know which one was.
    let near = || (news.len() <= 2 && olds.is_empty()).then(|| news.last().copied()).flatten();
    // "it's 81 now, `gate`"
    let stated = || {
        let from = at.saturating_sub(STATED_WORDS_MAX);
        let is_told = |at: &usize| stands(at) && *at > 0 && GIVES.has(words[*at - 1].lower);
        (from..at)
            .rev()
            .find(is_told)
            .filter(|at| words[*at..].iter().take(2).any(|word| word.lower == "now"))
    };
    // "that is the value of `gate`: 81"
    let called = || {
        let is_said = words.iter().any(|word| {
            matches!(
                word.lower,
                "value" | "setting" | "set" | "configured" | "reads" | "figure" | "number" | "default"
            )
        });
        (is_said && news.len() == 1).then(|| news[0])
    };
    let sure = corrected().or(sure).or_else(stated).or_else(called);
    let Some((new, form)) = sure.map(|at| (at, Form::Changed)).or_else(|| Some((near()?, Form::Near))) else {
        return;
    };
    told.olds.extend(olds.iter().filter(|old| **old != new).map(|old| with_unit(words, *old)));
    if let Some(mut value) = make(name, &with_unit(words, new), form) {
        value.thing = Some(hash(name));
        let far =
            (last..words.len().min(last + THING_WORDS_MAX)).filter(|at| stands(at) && !is_bound(words, *at));
        let others = news.iter().copied().filter(|at| *at != new).chain(far).map(|at| with_unit(words, at));
        value.others = others.filter(|other| *other != value.value).collect();
        told.values.push(value);
    }
}

/// Whether a number is a bound or a measure, and no value that somebody set.
pub(super) fn is_bound(words: &[Word], at: usize) -> bool {
    static BEFORE: Set = Set::of(
        "below above over under least most than after about around took takes in within beyond exceed once line every \
         all and or",
    );
    let is_put = at >= 2 && matches!(words[at - 2].lower, "put" | "puts" | "goes" | "went");
    at > 0 && BEFORE.has(words[at - 1].lower) && !is_put
}

/// The word that names a part of a thing: `port` in "the listen port of `gate`", and in "`gate`'s listen port".
pub(super) fn part(words: &[Word], thing: usize) -> Option<usize> {
    let mut at = thing;
    while at > 0 && ARTICLES.has(words[at - 1].lower) {
        at -= 1;
    }
    if at >= 2 && matches!(words[at - 1].lower, "of" | "for" | "in" | "on" | "at") {
        let head = at - 2;
        let is_named = (head.saturating_sub(PART_WORDS_MAX)..head).any(|at| ARTICLES.has(words[at].lower));
        return ((is_named || NOUNS.has(words[head].lower)) && !is_value(words[head].text)).then_some(head);
    }
    let next = thing + 1;
    let noun =
        |words: &[Word], from: usize, end: usize| (from..end).rev().find(|at| NOUNS.has(words[*at].lower));
    if words[thing].ends {
        // "the connection pool size (`gate`) should be"
        return noun(words, thing.saturating_sub(2), thing);
    }
    noun(words, next, words.len().min(next + 2))
}

/// Words before a thing that gets the value behind it.
static MAKES: Set = Set::of("make set put give get");

/// Words right before a value that holds.
pub(super) static GIVES: Set = Set::of(
    "to is now be = use used take at on that want wants say with → -> it's needs gets reads has as read by becomes become",
);

/// Whether a value is said to have been.
pub(super) fn is_former(words: &[Word], at: usize) -> bool {
    let before = words[..at].iter().rev().find(|word| !ARTICLES.has(word.lower));
    words[at].struck
        || before.is_some_and(|word| {
            matches!(
                word.lower,
                "from"
                    | "not"
                    | "than"
                    | "was"
                    | "were"
                    | "isn't"
                    | "isn’t"
                    | "wasn't"
                    | "wasn’t"
                    | "forget"
                    | "ignore"
                    | "drop"
                    | "scrap"
                    | "scratch"
                    | "replaces"
                    | "replaced"
                    | "nicht"
                    | "statt"
                    | "von"
                    | "formerly"
                    | "previously"
            )
        })
        || at >= 2
            && matches!(
                (words[at - 2].lower, words[at - 1].lower),
                ("instead", "of") | ("no", "more") | ("no", "longer") | ("take" | "took", "out")
            )
        || words[at + 1..].iter().take(4).any(|word| matches!(word.lower, "too" | "isn't" | "wasn't"))
        || words.get(at + 1).is_some_and(|word| matches!(word.lower, "out" | "gone" | "removed"))
}

/// A number, a version, or a short name with a number in it, as of a region.
pub(super) fn is_told_value(word: &Word) -> bool {
    let text = word.text.trim_end_matches(':');
    is_number(text) && !text.contains(':')
        || text.bytes().any(|byte| byte.is_ascii_digit())
            && text.len() <= 24
            && !text.contains(['_', '/', ':', '='])
            && text.contains(['-', '.'])
        || matches!(word.lower, "true" | "false")
}
