//! What of the ledger a model is told: what holds, once, and not what it sees anyway. Pure.

use std::collections::{HashMap, HashSet};

use super::fact::{Fact, Kind, Source, Value};
use super::layout::{Item, SECTIONS, Section, choose, render};
use super::names::{self, From};
use super::{Ledger, Told, rank, words};
use crate::thread::{Change, PlanStatus, Seq, Thread};
use crate::tokens::Ruler;

/// Times that a text which turned out too long is made again.
const TRIES_MAX: usize = 6;
/// Facts of one entry that are compared with each other.
const ENTRY_COMPARED_MAX: usize = 32;
/// A former value of a thing without a name of code is looked for in what was said of it from so many bytes on:
/// "on" and "5" are everywhere.
const FORMER_BYTES_MIN: usize = 4;
/// Entries that are named behind a fact.
const IDS_MAX: usize = 3;
/// Errors that differ in names and numbers alone, from how many on they are a log's chatter.
const CHATTER_TIMES: usize = 4;

pub(super) fn told(
    ledger: &Ledger,
    ruler: &Ruler,
    thread: &Thread,
    kept: &HashSet<Seq>,
    tokens_max: u64,
) -> Told {
    let mut items = items(ledger, thread, kept);
    let names = Section::Names as usize;
    // A name that stands in another line needs no line of its own. That may leave room for more lines.
    loop {
        let before = items[names].len();
        let lines = render(&items, &choose(ruler, &items, tokens_max), |section| section != Section::Names);
        let told = names::found(&lines, From::Agent);
        let told: HashSet<&str> = told.iter().map(|name| &lines[name.place.clone()]).collect();
        items[names].retain(|item| !told.contains(item.words()));
        if items[names].len() == before {
            break;
        }
    }
    let mut room = tokens_max;
    for _ in 0..TRIES_MAX {
        let chosen = choose(ruler, &items, room);
        let text = render(&items, &chosen, |_| true);
        let taken = if text.is_empty() { 0 } else { ruler.text(&text) };
        if taken <= tokens_max {
            return finish(&items, &chosen, text);
        }
        // Lines together may take more than each alone.
        room = room.saturating_sub(taken - tokens_max + 1);
    }
    finish(&items, &vec![0; SECTIONS.len()], String::new())
}

fn finish(items: &[Vec<Item>], chosen: &[usize], text: String) -> Told {
    let mut left_out: Vec<Seq> = items
        .iter()
        .zip(chosen)
        .flat_map(|(items, chosen)| items[*chosen..].iter().map(|item| item.entry))
        .collect();
    left_out.sort_unstable();
    left_out.dedup();
    Told { text, facts: chosen.iter().sum::<usize>() as u32, left_out }
}

/// What may be told, by section, the first first.
fn items<'a>(ledger: &'a Ledger, thread: &Thread, kept: &HashSet<Seq>) -> Vec<Vec<Item<'a>>> {
    let hidden = Hidden::of(ledger, thread);
    let replaced = replaced(ledger);
    let former = former(ledger);
    let mut items: Vec<Vec<Item>> = SECTIONS.iter().map(|_| Vec::new()).collect();
    for kind in super::fact::KINDS {
        for fact in ledger.store.of(kind) {
            let Some(section) = section(fact) else { continue };
            if is_stale(fact, &replaced, &former) {
                continue;
            }
            let mut seen: Vec<Source> =
                fact.sources.iter().copied().filter(|source| !hidden.has(*source)).collect();
            // What stays in view need not be told twice.
            if seen.is_empty() || seen.iter().any(|source| kept.contains(&source.entry)) {
                continue;
            }
            if seen.len() > IDS_MAX {
                seen.drain(1..=seen.len() - IDS_MAX);
            }
            let newest = seen[seen.len() - 1].entry;
            let order = rank::order(fact, ledger.store.times(fact), newest);
            items[section as usize].push(Item::of(fact, seen, order));
        }
    }
    let errors = &mut items[Section::Errors as usize];
    let mut shapes: HashMap<Option<words::Stem>, usize> = HashMap::new();
    for item in errors.iter() {
        *shapes.entry(words::shape(item.words())).or_default() += 1;
    }
    for item in errors.iter_mut() {
        let times = shapes.get(&words::shape(item.words())).copied().unwrap_or(0);
        if times >= CHATTER_TIMES || item.words().starts_with(|c: char| c.is_ascii_digit()) {
            // What a log says of this and that again and again stopped nobody.
            item.order = rank::last(item.order);
        }
    }
    for items in &mut items {
        items.sort_by_key(|item| std::cmp::Reverse(item.order));
    }
    if let Some(planned) = ledger.planned {
        let steps = thread.plan().iter().filter_map(|step| {
            let state = match step.status {
                PlanStatus::Pending => "",
                PlanStatus::InProgress => " [in progress]",
                PlanStatus::Completed => return None,
            };
            let words = super::spoken::clipped(&super::sentences::plain(&step.content));
            let text = format!("{words}{state} ({planned}, plan)");
            Some(Item::of_plan(words, text, rank::FIRST, planned))
        });
        items[Section::Pending as usize].splice(0..0, steps);
    }
    tell_once(&mut items);
    items
}

/// Whether a fact shows a value that holds no more, as if it did.
fn is_stale(fact: &Fact, replaced: &HashSet<&str>, former: &Former<'_>) -> bool {
    match fact.kind {
        Kind::Name => replaced.contains(fact.text.as_str()),
        Kind::Said => {
            let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
            let names = fact.text.split(|c: char| !is_part(c)).map(|word| word.trim_end_matches('.'));
            let mut values = names.filter_map(|name| former.get(name)).flatten();
            values.any(|value| fact.text.contains(value))
        }
        Kind::Rule
        | Kind::Error
        | Kind::Pending
        | Kind::Decision
        | Kind::Rejected
        | Kind::Value
        | Kind::File
        | Kind::Command => false,
    }
}

/// Drops a sentence that stands in an earlier section too, as it is or within the words around it.
fn tell_once(items: &mut [Vec<Item>]) {
    let is_sentence = |item: &Item| match item.fact.map(|fact| fact.kind) {
        None
        | Some(
            Kind::Rule
            | Kind::Pending
            | Kind::Decision
            | Kind::Rejected
            | Kind::Value
            | Kind::Error
            | Kind::Said,
        ) => true,
        Some(Kind::File | Kind::Command | Kind::Name) => false,
    };
    let key = |item: &Item| words::hash(item.words().trim_end_matches(['.', '!', ',', ';', '…']));
    let mut told: HashSet<u32> = HashSet::new();
    let mut by_entry: HashMap<Seq, Vec<(String, bool, u8)>> = HashMap::new();
    let is_rule = |item: &Item| item.fact.is_some_and(|fact| fact.kind == Kind::Rule);
    for item in items.iter().flatten().filter(|item| is_sentence(item)) {
        let all = by_entry.entry(item.entry).or_default();
        if all.len() < ENTRY_COMPARED_MAX {
            all.push((item.words().to_owned(), is_rule(item), item.order.0));
        }
    }
    for items in items.iter_mut() {
        items.retain(|item| {
            if !is_sentence(item) {
                return true;
            }
            let words = item.words();
            let within = by_entry.get(&item.entry).is_some_and(|all| {
                // The person's own words come first and stand whole: no other section has them.
                let mut others = all
                    .iter()
                    .filter(|(_, of_rule, tier)| (*of_rule || !is_rule(item)) && *tier >= item.order.0);
                others.any(|(other, ..)| other.len() > words.len() && other.contains(words))
            });
            told.insert(key(item)) && !within
        });
    }
}

/// Values that nothing has any more: as names they would look as if something had.
fn replaced(ledger: &Ledger) -> HashSet<&str> {
    let values =
        || super::fact::KINDS.iter().flat_map(|kind| ledger.store.of(*kind)).flat_map(|fact| &fact.values);
    let live: HashSet<&str> =
        values().filter(|value| value.now.is_none()).map(|value| value.value.as_str()).collect();
    values().map(|value| value.value.as_str()).filter(|value| !live.contains(value)).collect()
}

/// By the first word of what things are called, the values that they had.
type Former<'a> = HashMap<&'a str, Vec<&'a str>>;

fn former(ledger: &Ledger) -> Former<'_> {
    let values =
        super::fact::KINDS.iter().flat_map(|kind| ledger.store.of(*kind)).flat_map(|fact| &fact.values);
    let is_told_apart = |value: &&Value| value.name.contains('_') || value.value.len() >= FORMER_BYTES_MIN;
    let mut former: Former = HashMap::new();
    for value in values.filter(|value| value.now.is_some()).filter(is_told_apart) {
        let name = value.name.split(' ').next().unwrap_or_default();
        former.entry(name).or_default().push(&value.value);
    }
    former
}

/// Where a fact is told; `None` for what no longer holds.
fn section(fact: &Fact) -> Option<Section> {
    let section = match fact.kind {
        Kind::Error if fact.over.is_some() => return Some(Section::Solved),
        Kind::Rule => Section::Rules,
        Kind::Error => Section::Errors,
        Kind::Pending => Section::Pending,
        Kind::Decision => Section::Decisions,
        Kind::Rejected => Section::Rejected,
        Kind::Value => Section::Values,
        Kind::File if fact.note == "read" => Section::Read,
        Kind::File => Section::Changed,
        Kind::Command => Section::Commands,
        Kind::Said => Section::Known,
        Kind::Name => Section::Names,
    };
    // What says more than a value holds where that changed; the value is put right.
    let is_value = matches!(fact.kind, Kind::Value | Kind::Said);
    let holds = fact.over.is_none() && !(is_value && fact.is_replaced());
    holds.then_some(section)
}

/// The entries that a hook rewrote, while that holds.
struct Hidden {
    through: Option<Seq>,
    single: HashSet<Seq>,
}

impl Hidden {
    fn of(ledger: &Ledger, thread: &Thread) -> Hidden {
        let mut hidden = Hidden { through: None, single: HashSet::new() };
        for layer in ledger.layers.iter().filter(|layer| !thread.is_undone(**layer)) {
            match thread.entries().get(layer.0 as usize).map(|entry| &entry.change) {
                Some(Change::Mutated { through, .. }) => hidden.through = hidden.through.max(Some(*through)),
                Some(Change::Edited { edits, .. }) => {
                    let rewritten = edits.iter().filter(|edit| edit.rewrites()).filter_map(|edit| edit.at());
                    hidden.single.extend(rewritten.map(|part| part.entry));
                }
                Some(_) | None => {}
            }
        }
        hidden
    }

    fn has(&self, source: Source) -> bool {
        let one =
            |entry: Seq| self.through.is_some_and(|through| entry <= through) || self.single.contains(&entry);
        one(source.entry) || source.call.is_some_and(one)
    }
}
