//! The facts of a thread: what is the same, and what takes whose place. Pure.

use std::collections::HashSet;

use super::fact::{Fact, Form, KINDS, Kind, Value, name_key};
use super::values;
use super::words::{self, ByHash, Stem};
use crate::thread::Seq;

/// Facts of one kind. Where one more comes, the weakest quarter goes and is counted.
const KIND_FACTS_MAX: usize = 2048;
/// Shapes of sentences that are counted; what is said after so many is taken to be new.
const SHAPES_MAX: usize = 65_536;
/// Older facts that one new value is compared with.
const RIVALS_MAX: usize = 64;

/// A value of a fact: the fact's kind and place, and which of its values.
type Rival = (Kind, u32, usize);

/// All facts of a thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    facts: [Vec<Fact>; KINDS.len()],
    by_key: ByHash<u64, (Kind, u32)>,
    /// The facts with a value whose subject has this word.
    by_word: ByHash<Stem, Vec<(Kind, u32)>>,
    /// The facts with a value of this thing.
    by_thing: ByHash<Stem, Vec<(Kind, u32)>>,
    /// The facts with this value.
    by_value: ByHash<Stem, Vec<(Kind, u32)>>,
    /// The shapes of sentences that told facts.
    shapes: ByHash<Stem, Shape>,
    /// The tasks that may still be open: what ends one looks at no others.
    tasks: Vec<u32>,
    /// The errors that may still show, by the first words of what they came from.
    errors: ByHash<Stem, Vec<u32>>,
    /// Facts that there was no room for here.
    pub beyond: u64,
}

/// How often sentences that differ in names and numbers alone told something new.
#[derive(Clone, Copy, Debug)]
struct Shape {
    last: Seq,
    times: u32,
}

impl Store {
    pub fn of(&self, kind: Kind) -> &[Fact] {
        &self.facts[kind as usize]
    }

    pub fn of_mut(&mut self, kind: Kind) -> &mut [Fact] {
        &mut self.facts[kind as usize]
    }

    pub fn named_mut(&mut self, kind: Kind, name: &str) -> Option<&mut Fact> {
        let (kind, at) = *self.by_key.get(&name_key(kind, name))?;
        self.facts[kind as usize].get_mut(at as usize)
    }

    /// Takes in a fact. What is known already gets one more source, and holds again.
    pub fn add(&mut self, mut fact: Fact) {
        self.settle(&mut fact);
        if let Some(&(kind, at)) = self.by_key.get(&fact.key) {
            let values_hold = fact.values.iter().any(|value| self.has_live_rival(value, (kind, at)));
            let known = &mut self.facts[kind as usize][at as usize];
            let source = fact.sources[0];
            known.also(source);
            let was_over = known.over.take().is_some();
            let came_from = origin(&fact.note);
            // An error that another command shows too is that one's from now on.
            if was_over || kind == Kind::Error && origin(&known.note) != came_from {
                match kind {
                    Kind::Error => self.errors.entry(came_from).or_default().push(at),
                    Kind::Pending => self.tasks.push(at),
                    Kind::Rule
                    | Kind::Decision
                    | Kind::Rejected
                    | Kind::Value
                    | Kind::File
                    | Kind::Command
                    | Kind::Said
                    | Kind::Name => {}
                }
            }
            known.strength = known.strength.max(fact.strength);
            known.by_person |= fact.by_person;
            known.note = fact.note;
            if fact.kind == known.kind && known.sources.len() > 1 && !fact.text.is_empty() {
                known.text = fact.text;
            }
            if values_hold || known.values.iter().any(|value| value.now.is_some()) {
                // Back to an older value: it holds again, and what came between does not.
                known.values = fact.values;
                self.replace_rivals(kind, at);
            }
            return;
        }
        if let Some(shape) = fact.shape {
            self.notice(shape, fact.sources[0].entry);
        }
        let kind = fact.kind;
        if self.facts[kind as usize].len() >= KIND_FACTS_MAX {
            self.drop_weakest(kind);
        }
        let at = self.facts[kind as usize].len() as u32;
        self.by_key.insert(fact.key, (kind, at));
        self.index_values(&fact.values, (kind, at));
        self.index_open(&fact, at);
        self.facts[kind as usize].push(fact);
        self.replace_rivals(kind, at);
    }

    /// Leaves of what stands near a thing only what may be its value, and tells the older ones of it. Of two values
    /// in one sentence the one that the thing is known to have is the old one, whatever the words: "where it says 80
    /// for the port of `gate`, read 81".
    fn settle(&mut self, fact: &mut Fact) {
        let mut olds = Vec::new();
        for value in fact.values.iter_mut().filter(|value| !value.others.is_empty()) {
            let mut all = std::mem::take(&mut value.others);
            let places =
                value.thing.and_then(|thing| self.by_thing.get(&thing)).map_or(&[][..], Vec::as_slice);
            let known = places.iter().rev().take(RIVALS_MAX).flat_map(|&(kind, at)| {
                let values = &self.facts[kind as usize][at as usize].values;
                values.iter().filter(|known| known.thing == value.thing)
            });
            let known: Vec<&str> = known.map(|known| bare_number(&known.value)).collect();
            let is_known = |value: &str| known.contains(&bare_number(value));
            all.push(value.value.clone());
            let (was, mut new): (Vec<String>, Vec<String>) =
                all.into_iter().partition(|value| is_known(value));
            let is_doubtful = value.form == Form::Near || is_known(&value.value);
            if is_doubtful && new.len() == 1 && !was.is_empty() {
                value.value = new.remove(0);
                value.form = Form::Changed;
            }
            if value.form == Form::Changed && !is_known(&value.value) {
                let old = |was: String| Value { value: was, now: Some(value.value.clone()), ..value.clone() };
                olds.extend(was.into_iter().map(old));
            } else if value.form == Form::Near {
                // Nobody knows which of them it would be.
                value.thing = None;
            }
        }
        fact.values.append(&mut olds);
        for near in fact.values.extract_if(.., |value| value.form == Form::Near) {
            let places =
                near.thing.and_then(|thing| self.by_thing.get(&thing)).map_or(&[][..], Vec::as_slice);
            for &(kind, at) in places.iter().rev().take(RIVALS_MAX) {
                for old in &mut self.facts[kind as usize][at as usize].values {
                    let is_one =
                        old.thing == near.thing && values::sort(&old.value) == values::sort(&near.value);
                    if is_one && old.now.is_none() && old.value != near.value {
                        old.later = Some(near.value.clone());
                    }
                }
            }
        }
    }

    /// Ends those of the open tasks that `is_over` tells.
    pub fn end_tasks(&mut self, by: Seq, is_over: impl Fn(&Fact) -> bool) {
        end(&mut self.tasks, &mut self.facts[Kind::Pending as usize], by, is_over);
    }

    /// Ends those of the open errors of commands that begin like this one, or of this file, that `is_over` tells.
    pub fn end_errors(&mut self, command: &str, by: Seq, is_over: impl Fn(&Fact) -> bool) {
        if let Some(errors) = self.errors.get_mut(&origin(command)) {
            end(errors, &mut self.facts[Kind::Error as usize], by, is_over);
        }
    }

    fn index_open(&mut self, fact: &Fact, at: u32) {
        match fact.kind {
            _ if fact.over.is_some() => {}
            Kind::Error => self.errors.entry(origin(&fact.note)).or_default().push(at),
            Kind::Pending => self.tasks.push(at),
            Kind::Rule
            | Kind::Decision
            | Kind::Rejected
            | Kind::Value
            | Kind::File
            | Kind::Command
            | Kind::Said
            | Kind::Name => {}
        }
    }

    fn notice(&mut self, shape: Stem, entry: Seq) {
        if self.shapes.len() >= SHAPES_MAX && !self.shapes.contains_key(&shape) {
            return;
        }
        let known = self.shapes.entry(shape).or_insert(Shape { last: entry, times: 1 });
        // A list of likes in one message is one thing that was said.
        if known.last != entry {
            *known = Shape { last: entry, times: known.times + 1 };
        }
    }

    /// In how many entries something was told in the words of this fact, but for names and numbers.
    pub fn times(&self, fact: &Fact) -> u32 {
        fact.shape.and_then(|shape| self.shapes.get(&shape)).map_or(1, |known| known.times)
    }

    /// Ends what has one of these values, because a newer text said that it no longer holds.
    pub fn end_values(&mut self, olds: &[String], now: &[Value], by: Seq) {
        for old in olds {
            let Some(places) = self.by_value.get(&words::hash(old)) else { continue };
            let mut ended: Vec<Value> = Vec::new();
            for &(kind, at) in places.iter().rev().take(RIVALS_MAX) {
                let fact = &mut self.facts[kind as usize][at as usize];
                if fact.newest() >= by {
                    continue;
                }
                for value in fact.values.iter_mut().filter(|value| value.now.is_none() && value.value == *old)
                {
                    let shared = |new: &&Value| new.subject.iter().any(|stem| value.subject.contains(stem));
                    let new = now.iter().find(shared);
                    if new.is_some() || old.len() >= OLD_BYTES_MIN {
                        let new = new.or(now.first());
                        value.now = Some(new.map_or_else(String::new, |new| new.value.clone()));
                        ended.push(value.clone());
                    }
                }
            }
            for value in ended {
                self.pass_on(&value, value.now.as_deref().unwrap_or_default());
            }
        }
    }

    fn has_live_rival(&self, value: &Value, own: (Kind, u32)) -> bool {
        self.rivals(value, own).into_iter().any(|(kind, at, of)| {
            let other = &self.facts[kind as usize][at as usize].values[of];
            other.now.is_none() && other.value != value.value
        })
    }

    /// The live values that a new one stands against: those of the same subject or, where a change was told
    /// and there is just one, of a subject that is named more or less fully.
    fn rivals(&self, value: &Value, own: (Kind, u32)) -> Vec<Rival> {
        let Some(head) = value.subject.last() else { return Vec::new() };
        let mut exact = Vec::new();
        let mut near: Vec<(Rival, &[Stem])> = Vec::new();
        let mut of_thing: Vec<(Rival, &[Stem])> = Vec::new();
        let empty = Vec::new();
        let with = |word: &Stem| self.by_word.get(word).unwrap_or(&empty).iter().rev().take(RIVALS_MAX);
        let first = value.subject.first().filter(|first| *first != head && value.thing.is_none());
        let of_same =
            value.thing.iter().flat_map(|thing| self.by_thing.get(thing).unwrap_or(&empty).iter().rev());
        for &(kind, at) in of_same.take(RIVALS_MAX).chain(with(head)).chain(first.into_iter().flat_map(with))
        {
            if (kind, at) == own {
                continue;
            }
            for (of, other) in self.facts[kind as usize][at as usize].values.iter().enumerate() {
                let is_apart = matches!((other.thing, value.thing), (Some(one), Some(two)) if one != two);
                // A fact may be found by several words.
                if other.now.is_some() || is_apart || exact.contains(&(kind, at, of)) {
                    continue;
                }
                if is_same_set(&other.subject, &value.subject) {
                    exact.push((kind, at, of));
                } else if other.thing.is_some()
                    && other.thing == value.thing
                    && is_part(&other.subject, &value.subject)
                {
                    of_thing.push(((kind, at, of), &other.subject));
                } else if value.form == Form::Changed
                    && other.subject.last() == Some(head)
                    && is_part(&other.subject, &value.subject)
                {
                    near.push(((kind, at, of), &other.subject));
                }
            }
        }
        let is_one = |near: &[(Rival, &[Stem])]| {
            near.first().is_some_and(|(_, first)| near.iter().all(|(_, subject)| is_same_set(subject, first)))
        };
        // A thing that has one setting has that one, however it is called.
        if is_one(&of_thing) {
            exact.extend(of_thing.into_iter().map(|(rival, _)| rival));
        }
        if exact.is_empty() && is_one(&near) {
            return near.into_iter().map(|(rival, _)| rival).collect();
        }
        exact
    }

    fn replace_rivals(&mut self, kind: Kind, at: u32) {
        for value in self.facts[kind as usize][at as usize].values.clone() {
            for (other_kind, other, of) in self.rivals(&value, (kind, at)) {
                let old = &mut self.facts[other_kind as usize][other as usize].values[of];
                if old.value != value.value
                    && value.form != Form::Changed
                    && value.thing.is_none()
                    && is_id(&old.value)
                    && is_id(&value.value)
                {
                    old.later = Some(value.value.clone());
                } else if old.value != value.value {
                    old.now = Some(value.value.clone());
                    let old = old.clone();
                    self.pass_on(&old, &value.value);
                }
            }
        }
    }

    /// What this value had taken the place of has the new one now: of three values, the first and the second are told
    /// with the third.
    fn pass_on(&mut self, old: &Value, now: &str) {
        let of_thing = old.thing.and_then(|thing| self.by_thing.get(&thing));
        let of_head = || old.subject.last().and_then(|head| self.by_word.get(head));
        let Some(places) = of_thing.or_else(of_head) else { return };
        for (kind, at) in places.iter().rev().take(RIVALS_MAX) {
            for other in &mut self.facts[*kind as usize][*at as usize].values {
                let is_one = other.thing == old.thing && is_part(&other.subject, &old.subject);
                if is_one && other.now.as_ref() == Some(&old.value) {
                    other.now = Some(now.to_owned());
                }
            }
        }
    }

    /// Drops the weakest and oldest quarter of a kind, those that are over first.
    fn drop_weakest(&mut self, kind: Kind) {
        let facts = &mut self.facts[kind as usize];
        let mut order: Vec<usize> = (0..facts.len()).collect();
        order.sort_by_key(|&at| {
            let fact = &facts[at];
            (fact.over.is_none() && !fact.is_replaced(), fact.strength, fact.newest())
        });
        let gone: HashSet<usize> = order.into_iter().take(KIND_FACTS_MAX / 4).collect();
        self.beyond += gone.len() as u64;
        let mut at = 0;
        facts.retain(|_| {
            at += 1;
            !gone.contains(&(at - 1))
        });
        self.index();
    }

    fn index(&mut self) {
        self.by_key.clear();
        self.by_word.clear();
        self.by_thing.clear();
        self.by_value.clear();
        self.tasks.clear();
        self.errors.clear();
        for kind in KINDS {
            let facts = std::mem::take(&mut self.facts[kind as usize]);
            for (at, fact) in facts.iter().enumerate() {
                self.index_open(fact, at as u32);
                self.by_key.insert(fact.key, (kind, at as u32));
                self.index_values(&fact.values, (kind, at as u32));
            }
            self.facts[kind as usize] = facts;
        }
    }

    fn index_values(&mut self, values: &[Value], place: (Kind, u32)) {
        let add = |facts: &mut Vec<(Kind, u32)>| {
            if facts.last() != Some(&place) {
                facts.push(place);
            }
        };
        for value in values {
            add(self.by_value.entry(words::hash(&value.value)).or_default());
            if let Some(thing) = value.thing {
                add(self.by_thing.entry(thing).or_default());
            }
            for word in &value.subject {
                add(self.by_word.entry(*word).or_default());
            }
        }
    }
}

/// An old value that is named without its subject must have so many bytes: "not 5" may be about anything.
const OLD_BYTES_MIN: usize = 4;

fn end(open: &mut Vec<u32>, facts: &mut [Fact], by: Seq, is_over: impl Fn(&Fact) -> bool) {
    open.retain(|at| {
        let fact = &mut facts[*at as usize];
        if fact.over.is_none() && is_over(fact) {
            fact.over = Some(by);
        }
        fact.over.is_none()
    });
}

/// A value without the unit behind it: settings are written without.
fn bare_number(value: &str) -> &str {
    value.split(' ').next().unwrap_or(value)
}

/// Whether a value is a name that somebody gave, such as an id: a thing may have several of these, one after the
/// other, and the older one is still one of them.
fn is_id(value: &str) -> bool {
    value.len() >= ID_BYTES_MIN
        && !value.contains(' ')
        && value.bytes().any(|byte| byte.is_ascii_alphabetic())
        && (value.contains(['-', '_', ':', '/', '.']) || value.bytes().any(|byte| byte.is_ascii_digit()))
}

/// Shorter names are words.
const ID_BYTES_MIN: usize = 8;

/// The first two words of a command: a run of it, or of all that it does a part of, begins with the same.
fn origin(command: &str) -> Stem {
    let end = command.match_indices(' ').nth(1).map_or(command.len(), |(at, _)| at);
    words::hash(&command[..end])
}

fn is_same_set(one: &[Stem], other: &[Stem]) -> bool {
    one.len() == other.len() && one.iter().all(|stem| other.contains(stem))
}

fn is_part(one: &[Stem], other: &[Stem]) -> bool {
    let (small, large) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    !small.is_empty() && small.iter().all(|stem| large.contains(stem))
}
