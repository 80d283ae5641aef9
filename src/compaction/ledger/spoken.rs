//! Facts in what the person and the agent said. Pure.

use std::ops::Range;

use super::cues::{self, Class, Hit};
use super::fact::{Fact, Form, Kind, Source, Value};
use super::joined::Join;
use super::notes::Notes;
use super::{
    beside, blocks, joined, judge, names, printed, said, segments, sentences, shown, things, values, words,
};

/// A fact is told in so many bytes at most.
pub(super) const FACT_BYTES_MAX: usize = 360;
/// Facts of one message; what is beyond is counted.
const MESSAGE_FACTS_MAX: usize = 160;
/// Lines of a list below "Rules:" that are taken with it.
const LIST_LINES_MAX: usize = 24;
/// A value that is told of a named part of a named thing is sure.
pub(super) const PART_STRENGTH: u8 = 6;
/// A longer sentence in which something was decided tells more than the value that is in it.
const VALUE_BYTES_MAX: usize = 120;
/// They are not as sure as what says itself what it is.
const LISTED_STRENGTH: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Person,
    Agent,
}

/// Takes in a message's text.
pub(super) fn take(notes: &mut Notes, text: &str, side: Side, source: Source) {
    let mut room = MESSAGE_FACTS_MAX;
    let names = names::found(text, names::From::of(side));
    for (range, fenced) in segments::segments(text) {
        let part = &text[range.clone()];
        if fenced && shown::take_fenced(notes, text, &range, source) {
            continue;
        }
        if fenced {
            printed::take_pasted(notes, part, source);
        } else {
            shown::take(notes, text, &range, source);
            let mut from = range.start;
            for block in blocks::blocks(text, &range, &names) {
                let taken =
                    block.units.iter().filter(|unit| room > 0 && together(notes, unit, side, source)).count();
                // What is no unit is told line by line.
                if taken > 0 {
                    room -= taken.min(room);
                    plainly(notes, text, from..block.range.start, &names, side, source, &mut room);
                    from = block.range.end;
                }
            }
            plainly(notes, text, from..range.end, &names, side, source, &mut room);
        }
    }
    names::take(notes, text, &names, names::From::of(side), source);
}

/// Takes in what was written as prose.
fn plainly(
    notes: &mut Notes,
    text: &str,
    range: Range<usize>,
    names: &[names::Found],
    side: Side,
    source: Source,
    room: &mut usize,
) {
    let mut told_of = Told { room, places: Vec::new() };
    prose(notes, &text[range.clone()], side, source, &mut told_of);
    let told = told_of.places;
    said::take(notes, text, range, names, &told, side, source);
}

/// How sure it is that a row of a table matters that has no cue, and a list in which the person names something.
const UNIT_STRENGTH: u8 = 4;

/// Takes in lines that are told as one; `false` where they are better told each by itself.
fn together(notes: &mut Notes, unit: &blocks::Unit, side: Side, source: Source) -> bool {
    let line = &unit.line;
    let hits: Vec<Hit> = cues::spoken(line).collect();
    let weight = |class: Class| judge::weight(&hits, class);
    let is_task = weight(Class::Pending) >= judge::TELLING_MIN || weight(Class::Done) > 0 && !unit.is_row;
    let told = things::values(line);
    let values = told.values;
    let is_changed = values.iter().any(|value| value.form == Form::Changed);
    if unit.is_row && is_changed && !told.olds.is_empty() {
        notes.end_values(&told.olds, &values, source.entry);
        let mut fact = Fact::new(Kind::Value, PART_STRENGTH, clipped(line), source);
        fact.by_person = side == Side::Person;
        fact.values = values;
        notes.add(fact);
        return true;
    }
    // Of several tasks each is done by itself.
    if is_task && !unit.is_row && unit.items == 1 && weight(Class::Done) == 0 {
        let mut fact = Fact::new(Kind::Pending, UNIT_STRENGTH, clipped(line), source);
        fact.by_person = side == Side::Person;
        notes.add(fact);
        return true;
    }
    // Settings are told line by line: each takes the place of what it was.
    if is_task || !unit.is_row && values.iter().any(|value| value.form != Form::Near) {
        return false;
    }
    let judged = judge::judge(line, &hits, side, &[]).filter(|(kind, _)| *kind != Kind::Value);
    let (kind, strength) = match judged {
        Some(judged) => judged,
        None if side == Side::Person => (Kind::Rule, UNIT_STRENGTH),
        None if unit.is_row => (Kind::Said, UNIT_STRENGTH),
        None => return false,
    };
    let mut fact = Fact::new(kind, strength.max(UNIT_STRENGTH), clipped(line), source);
    fact.by_person = side == Side::Person;
    if !unit.is_row {
        fact.values = values;
    }
    notes.add(fact);
    true
}

/// What a message has told so far.
struct Told<'a> {
    /// How many facts more it may tell.
    room: &'a mut usize,
    /// Where its sentences with facts are.
    places: Vec<Range<usize>>,
}

/// Takes in what is told in so many words; adds the places of those sentences to `told`.
fn prose(notes: &mut Notes, text: &str, side: Side, source: Source, told: &mut Told<'_>) {
    let mut range: Range<usize> = 0..0;
    let mut hits: Vec<Hit> = Vec::new();
    let mut from = 0;
    // An agent gives no orders as light as "use tabs".
    let counts =
        |hit: &Hit| side == Side::Person || hit.class != Class::Rule || hit.weight > judge::TELLING_MIN;
    for hit in cues::spoken(text).filter(counts) {
        if hit.start < range.end {
            hits.push(hit);
            continue;
        }
        if !hits.is_empty() {
            from = sentence(notes, text, &range, &hits, side, source, told);
            hits.clear();
        }
        if hit.start < from {
            continue;
        }
        range = sentences::around(text, hit.start..hit.end);
        range.start = range.start.max(from);
        hits.push(hit);
    }
    if !hits.is_empty() {
        sentence(notes, text, &range, &hits, side, source, told);
    }
}

/// Takes in one sentence, and with a heading its list; gives where that ends.
fn sentence(
    notes: &mut Notes,
    text: &str,
    range: &Range<usize>,
    hits: &[Hit],
    side: Side,
    source: Source,
    found: &mut Told<'_>,
) -> usize {
    let raw = &text[range.clone()];
    if !may_tell(raw, hits) || sentences::is_of_table(text, range) {
        return range.end;
    }
    if !sentences::is_prose(raw) {
        loose(notes, raw, hits, source);
        return range.end;
    }
    let weight = |class: Class| judge::weight(hits, class);
    let (mut parts, whole) = match has_marks(raw) {
        true => beside::told(text, range),
        false => (values::Told::default(), range.clone()),
    };
    let range = &whole;
    let raw = &text[range.clone()];
    let near: Vec<Value> = parts.values.extract_if(.., |value| value.form == Form::Near).collect();
    let is_part = !parts.values.is_empty();
    let told = match is_part {
        true => parts,
        false if weight(Class::Value) > 0 || weight(Class::Link) > 0 && has_marks(raw) => {
            values::of_sentence(raw)
        }
        false => values::Told::default(),
    };
    let line = sentences::plain(raw);
    if judge::is_hearsay(&line) || sentences::is_of_log(&line) {
        return range.end;
    }
    // "Scratch that, 8080 for the port" corrects a value.
    if side == Side::Person && weight(Class::Revoked) > 0 && told.values.is_empty() {
        notes.revoke(&line, source);
    }
    if weight(Class::Done) > 0 && weight(Class::Pending) < 4 {
        notes.finish(&line, source);
    }
    if !told.olds.is_empty() {
        notes.end_values(&told.olds, &told.values, source.entry);
    }
    let judged = judge::judge(&line, hits, side, &told.values);
    // A part of something got a value, whatever else the words of it are: a limit that holds for good is a rule.
    let is_more = weight(Class::Pending) > judge::TELLING_MIN
        || side == Side::Person && weight(Class::Rule) > judge::TELLING_MIN
        || weight(Class::Decision).max(weight(Class::Rejected)) >= judge::SURE_MIN
            && line.len() > VALUE_BYTES_MAX;
    let judged = if is_part && !is_more {
        Some((Kind::Value, judged.map_or(0, |(_, strength)| strength).max(PART_STRENGTH)))
    } else {
        judged
    };
    let Some((kind, strength)) = judged else { return range.end };
    let errand = match (side, kind) {
        (Side::Person, Kind::Rule | Kind::Decision | Kind::Rejected) => judge::errand(&line),
        (Side::Person | Side::Agent, _) => 0,
    };
    let strength = match kind {
        _ if errand > 0 => strength.min(ERRAND_STRENGTH - errand),
        // A light word makes no rule less sure than it would be without.
        Kind::Rule if side == Side::Person && joined::is_named(&line) => {
            strength.max((judge::said(&line, names::most_told_of(raw, side), side, false) + 1).min(7))
        }
        _ => strength,
    };
    // What it announces is told, not that it is announced.
    let is_report = line.ends_with(':') && !joined::is_named(&line) && judge::is_trouble(&line);
    let strength = if is_report { strength.min(ERRAND_STRENGTH - 1) } else { strength };
    let strength = match strength {
        0..NAMED_STRENGTH => strength.max(of_names(raw, &line, side, errand > 0)),
        NAMED_STRENGTH.. => strength,
    };
    let mut end = range.end;
    if line.ends_with(':') && kind != Kind::Value {
        end = list(notes, text, range, (kind, strength), side, source, found.room);
        if line.split(' ').count() < 4 {
            return end;
        }
    }
    if *found.room == 0 {
        notes.beyond += 1;
        return end;
    }
    *found.room -= 1;
    // What ends a task speaks of the task alone.
    let stems = (kind == Kind::Pending).then(|| words::stems(&clipped(&line)));
    let was_named = joined::is_named(&line);
    let line = match kind {
        Kind::Decision | Kind::Rejected => joined::with_context(text, range, line, Join::Named),
        Kind::Rule => joined::with_context(text, range, line, Join::Rule),
        Kind::Pending if side == Side::Person => joined::with_context(text, range, line, Join::Reason),
        Kind::Pending | Kind::Error => joined::with_context(text, range, line, Join::Plain),
        Kind::Value
            if told
                .values
                .iter()
                .any(|value| values::is_value(&value.value) && !joined::is_plain(&value.value)) =>
        {
            joined::with_nature(text, range, line)
        }
        Kind::Value => joined::with_context(text, range, line, Join::Reason),
        Kind::File | Kind::Command | Kind::Said | Kind::Name => line,
    };
    // "Because …" says of what only with the sentence before it.
    let strength = match kind {
        Kind::Decision | Kind::Rejected if !was_named && joined::is_named(&line) => (strength + 2).min(7),
        Kind::Decision
        | Kind::Rejected
        | Kind::Rule
        | Kind::Pending
        | Kind::Error
        | Kind::Value
        | Kind::File
        | Kind::Command
        | Kind::Said
        | Kind::Name => strength,
    };
    if side == Side::Person {
        rest(notes, &line, kind, strength, source);
    }
    let mut fact = Fact::new(kind, strength, clipped(&line), source).shaped(raw);
    fact.stems = stems.unwrap_or(fact.stems);
    fact.by_person = side == Side::Person;
    fact.more = things::names_more(raw, &told.values);
    fact.values = told.values;
    if fact.values.is_empty() {
        fact.values = near;
    }
    if fact.values.is_empty() && has_marks(&line) {
        // Those of the sentences that are told with it.
        fact.values = beside::given(&line);
    }
    notes.add(fact);
    found.places.push(range.start..end);
    end
}

/// What the person wants done now is less sure than this to matter later.
pub(super) const ERRAND_STRENGTH: u8 = 3;
/// What tells an id or a place is as sure as this.
const NAMED_STRENGTH: u8 = 4;

/// How sure it is that a sentence matters by what it tells of names.
fn of_names(raw: &str, line: &str, side: Side, is_errand: bool) -> u8 {
    match names::most_told_of(raw, side) {
        _ if side == Side::Agent && judge::is_unsure(line) => 0,
        3.. => NAMED_STRENGTH,
        2 if !is_errand && !judge::is_chatter(line) => NAMED_STRENGTH,
        0..3 => 0,
    }
}

/// Pieces of a long sentence that are told.
const PIECES_MAX: usize = 4;

/// What the person said is told to its end: people write long lines without a full stop.
pub(super) fn rest(notes: &mut Notes, line: &str, kind: Kind, strength: u8, source: Source) {
    let mut rest = &line[line.floor_char_boundary(FACT_BYTES_MAX)..];
    for _ in 1..PIECES_MAX {
        if rest.trim().is_empty() {
            return;
        }
        // It begins where a word does.
        let from = line.len() - rest.len();
        let begin = line[..from].rfind(' ').map_or(from, |at| at + 1);
        let end = line.floor_char_boundary(begin + FACT_BYTES_MAX);
        let mut fact = Fact::new(kind, strength, clipped(&line[begin..]), source);
        fact.by_person = true;
        notes.add(fact);
        rest = &line[end..];
    }
}

/// Whether a closer look at a sentence is worth its time: most sentences have nothing but common words.
fn may_tell(raw: &str, hits: &[Hit]) -> bool {
    let mut noun = false;
    let mut link = false;
    for hit in hits {
        match hit.class {
            // An order may be as short as "use tabs".
            Class::Rule => return true,
            Class::Value if hit.weight < judge::TELLING_MIN => noun = true,
            Class::Link => link = true,
            Class::Revoked
            | Class::Pending
            | Class::Done
            | Class::Decision
            | Class::Rejected
            | Class::Value
            | Class::Error => {
                if hit.weight >= judge::TELLING_MIN {
                    return true;
                }
            }
        }
    }
    noun && link || (noun || link) && has_marks(raw)
}

/// Whether a value may be in it that is known by its looks.
fn has_marks(raw: &str) -> bool {
    raw.bytes().any(|byte| byte.is_ascii_digit() || matches!(byte, b'`' | b'=' | b'_'))
}

/// A line that is no prose may still tell a value or an error.
fn loose(notes: &mut Notes, raw: &str, hits: &[Hit], source: Source) {
    if judge::weight(hits, Class::Error) > 0 && raw.len() < FACT_BYTES_MAX {
        notes.add(Fact::new(Kind::Error, 3, clipped(&sentences::plain(raw)), source));
    } else if judge::weight(hits, Class::Value).max(judge::weight(hits, Class::Link)) > 0
        && let Some(value) = values::of_line(raw, Form::Told)
    {
        notes.add(of_value(raw, value, 3, source));
    }
}

/// A fact that tells one value in the words of its line.
pub(super) fn of_value(line: &str, value: Value, strength: u8, source: Source) -> Fact {
    let mut fact = Fact::new(Kind::Value, strength, clipped(&sentences::plain(line)), source).shaped(line);
    fact.values.push(value);
    fact
}

/// The lines of the list below a heading are what the heading says.
fn list(
    notes: &mut Notes,
    text: &str,
    range: &Range<usize>,
    (kind, strength): (Kind, u8),
    side: Side,
    source: Source,
    room: &mut usize,
) -> usize {
    let mut end = range.end;
    for line in text[range.end..].split_inclusive('\n').take(LIST_LINES_MAX) {
        let item = line.trim();
        let digits = item.bytes().take_while(u8::is_ascii_digit).count();
        let is_numbered = (1..=2).contains(&digits) && item[digits..].starts_with(['.', ')']);
        if !(item.is_empty() || is_numbered || item.starts_with(['-', '*', '•'])) || *room == 0 {
            break;
        }
        end += line.len();
        let is_done = kind == Kind::Pending && (item.contains("[x]") || item.contains('✅'));
        let told = values::of_sentence(item);
        notes.end_values(&told.olds, &told.values, source.entry);
        if !is_done && item.len() <= FACT_BYTES_MAX && !words::stems(item).is_empty() {
            *room -= 1;
            let mut fact =
                Fact::new(kind, strength.min(LISTED_STRENGTH), clipped(&sentences::plain(item)), source);
            fact.by_person = side == Side::Person;
            fact.values = told.values;
            notes.add(fact);
        }
    }
    end
}

pub(super) fn clipped(line: &str) -> String {
    if line.len() <= FACT_BYTES_MAX {
        return line.to_owned();
    }
    format!("{}…", &line[..line.floor_char_boundary(FACT_BYTES_MAX)])
}
