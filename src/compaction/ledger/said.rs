//! What was said of things that have names, in sentences that are no rule, decision or task by their words. Pure.

use std::ops::Range;

use super::fact::{Fact, Form, Kind, Source};
use super::joined::Join;
use super::names::{self, Found};
use super::notes::Notes;
use super::spoken::{self, PART_STRENGTH, Side, clipped};
use super::{beside, joined, judge, sentences, things};

/// A line of an output that is longer is data, in bytes.
const LINE_BYTES_MAX: usize = 160;
/// How many words before a name a program says what it is.
const NATURE_WORDS_MAX: usize = 3;
/// Fewer words than these say nothing of a name.
const WORDS_MIN: usize = 2;
/// From here on a sentence tells what its name names: an id, a path.
const DESCRIBED_MIN: u8 = 2;
/// A note that gives a value without words is no longer, in bytes.
const NOTE_BYTES_MAX: usize = 60;
/// A task of the agent's own that waits for something.
const PUT_OFF_STRENGTH: u8 = 4;
/// Sentences of one message.
const SENTENCES_MAX: usize = 64;

/// Takes in the sentences of a part of a message that name something and that nothing was found in. `told` are the
/// others, in the order of the part; `names` those of the whole message.
pub(super) fn take(
    notes: &mut Notes,
    text: &str,
    part: Range<usize>,
    names: &[Found],
    told: &[Range<usize>],
    side: Side,
    source: Source,
) {
    let first = names.partition_point(|name| name.place.start < part.start);
    let last = names.partition_point(|name| name.place.start < part.end);
    let places = names[first..last].iter().map(|name| {
        let end = name.place.end.min(part.end);
        name.place.start - part.start..end - part.start
    });
    let text = &text[part.clone()];
    let mut told = told.iter().peekable();
    let mut end = 0;
    let mut room = SENTENCES_MAX;
    let mut places = places.peekable();
    while let Some(place) = places.next() {
        while told.next_if(|known| known.end <= place.start).is_some() {}
        if place.start < end || told.peek().is_some_and(|known| known.contains(&place.start)) {
            continue;
        }
        let range = with_opening(text, sentences::around(text, place.clone()));
        end = range.end;
        let told_of = |place: Range<usize>| names::told_of(&text[place], &text[range.clone()]);
        let mut most = told_of(place);
        while let Some(place) = places.next_if(|place| place.start < end) {
            most = most.max(told_of(place));
        }
        if room == 0 {
            notes.beyond += 1;
            return;
        }
        if sentence(notes, text, &range, most, side, source) {
            room -= 1;
        }
    }
}

/// A name that stands alone, with what asked for it or announced it: "The ticket? OPS-12.", "There is one:" and then
/// the name.
fn with_opening(text: &str, range: Range<usize>) -> Range<usize> {
    // "Which ticket? OPS-12, by the trace."
    let says = |sentence: &str| sentence.split(' ').any(names::is_nature);
    if range.len() <= ALONE_BYTES_MAX
        && !says(&text[range.clone()])
        && let Some(before) = sentences::before(text, &range)
        && before.len() <= QUESTION_BYTES_MAX
        && text[before.clone()].trim_end().ends_with('?')
        && says(&text[before.clone()])
    {
        return before.start..range.end;
    }
    if range.len() > ALONE_BYTES_MAX || words_of(&text[range.clone()]) >= WORDS_MIN {
        return range;
    }
    let announced = || {
        let head = text[..range.start].trim_end();
        head.ends_with(':').then(|| sentences::around(text, head.len() - 1..head.len()))
    };
    match sentences::before(text, &range).or_else(announced) {
        Some(before) if before.start < range.start => before.start..range.end,
        Some(_) | None => range,
    }
}

/// A question that asks for a name is no longer.
const QUESTION_BYTES_MAX: usize = 80;

/// What is longer has more than a name.
const ALONE_BYTES_MAX: usize = 100;

/// The words of a language in it, each once it is parted from the marks around it.
fn words_of(sentence: &str) -> usize {
    let is_word = |word: &&str| {
        let word = word.trim_matches(|character: char| character.is_ascii_punctuation());
        word.contains(char::is_alphabetic)
            && word.chars().all(|c| c.is_alphabetic() || matches!(c, '-' | '\'' | '’'))
    };
    sentence.split_whitespace().filter(is_word).count()
}

/// `false` where it says nothing.
fn sentence(
    notes: &mut Notes,
    text: &str,
    range: &Range<usize>,
    told_of_name: u8,
    side: Side,
    source: Source,
) -> bool {
    let (parts, range) = beside::told(text, range);
    let raw = &text[range.clone()];
    let line = sentences::plain(raw);
    let gives = parts.values.iter().any(|value| value.form != Form::Near);
    // "`gate` → 81" is said, though it has no words.
    let is_note = gives && raw.len() <= NOTE_BYTES_MAX && !raw.contains(['{', '}', ';', '=', '<', '>', '(']);
    if !is_note && (words_of(&line) < WORDS_MIN || !sentences::is_prose(raw))
        || sentences::is_of_table(text, &range)
        || sentences::is_of_log(&line)
        || side == Side::Agent && judge::is_hearsay(&line)
    {
        return false;
    }
    if gives {
        notes.end_values(&parts.olds, &parts.values, source.entry);
        let mut fact = Fact::new(Kind::Value, PART_STRENGTH, clipped(&line), source).shaped(raw);
        fact.by_person = side == Side::Person;
        fact.more = things::names_more(raw, &parts.values);
        fact.values = parts.values;
        notes.add(fact);
        return true;
    }
    let alone = line.len();
    let line = joined::with_context(text, &range, line, Join::Reason);
    // What it names may be said in the next sentence.
    let told_of_name = match line.len() > alone {
        true => told_of_name.max(names::most_told_of(&line, side)),
        false => told_of_name,
    };
    let is_joined = line.len() > alone;
    let strength = judge::said(&line, told_of_name, side, is_joined);
    // Whatever its words: what the person says of a thing, and is no question, is how they want it.
    let is_wish = side == Side::Person && told_of_name < DESCRIBED_MIN && !judge::asks(&line);
    let is_put_off = side == Side::Agent && judge::is_put_off(&line);
    let (kind, strength) = match is_wish {
        _ if is_put_off => (Kind::Pending, PUT_OFF_STRENGTH),
        true if judge::is_hearsay(&line) => (Kind::Rule, 1),
        true => match judge::errand(&line) {
            0 => (Kind::Rule, strength + 1),
            errand => (Kind::Rule, spoken::ERRAND_STRENGTH - errand),
        },
        false if told_of_name == DESCRIBED_MIN && side == Side::Person && judge::errand(&line) > 0 => {
            (Kind::Said, strength.min(spoken::ERRAND_STRENGTH))
        }
        false => (Kind::Said, strength),
    };
    if is_wish {
        spoken::rest(notes, &line, kind, strength, source);
    }
    let mut fact = Fact::new(kind, strength, clipped(&line), source).shaped(raw);
    fact.by_person = side == Side::Person;
    fact.values = parts.values;
    if fact.values.is_empty() && is_joined {
        fact.values = beside::given(&line);
    }
    notes.add(fact);
    true
}

/// The line of an output that says of a name, which is a part of `text`, what it is.
pub(super) fn printed(text: &str, name: &str, source: Source) -> Option<Fact> {
    let start = name.as_ptr() as usize - text.as_ptr() as usize;
    let end = start + name.len();
    let lowest = text.floor_char_boundary(start.saturating_sub(LINE_BYTES_MAX));
    let highest = text.ceil_char_boundary((end + LINE_BYTES_MAX).min(text.len()));
    let begin = memchr::memrchr(b'\n', &text.as_bytes()[lowest..start]).map_or(lowest, |at| lowest + at + 1);
    let close = memchr::memchr(b'\n', &text.as_bytes()[end..highest]).map_or(highest, |at| end + at);
    let line = text[begin..close].trim();
    let is_named = || {
        let before = text[begin..start].split_whitespace().rev().take(NATURE_WORDS_MAX);
        before.into_iter().any(names::is_nature)
    };
    (line.len() <= LINE_BYTES_MAX && !sentences::is_of_log(line) && is_named()).then(|| {
        let strength = 2 + names::told_of(name, line);
        Fact::new(Kind::Said, strength, sentences::plain(line), source).shaped(line)
    })
}
