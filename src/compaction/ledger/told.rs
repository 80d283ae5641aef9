//! The ledger as a model reads it: what is told, in which order, and what there is no room for. Pure.

use std::collections::{HashMap, HashSet};

use super::fact::{Fact, Kind, Source, Value};
use super::spoken::PART_STRENGTH;
use super::{Ledger, Told, words};
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

/// A heading and what stands below it. In the order of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Rules,
    Errors,
    Pending,
    Decisions,
    Rejected,
    Values,
    Known,
    Changed,
    Commands,
    Names,
    Read,
    Solved,
}

/// Each with its heading and its part of the room, in per cent; a part that is not used goes to the
/// others.
const SECTIONS: [(Section, &str, u64); 12] = [
    (Section::Rules, "## What the person wants", 18),
    (Section::Errors, "## Open errors", 11),
    (Section::Pending, "## Still to do", 11),
    (Section::Decisions, "## Decided and found", 14),
    (Section::Rejected, "## Tried or ruled out", 10),
    (Section::Values, "## Current values", 14),
    (Section::Known, "## Names and places", 14),
    (Section::Changed, "## Files changed", 4),
    (Section::Commands, "## Commands, last result", 1),
    (Section::Names, "## Names", 1),
    (Section::Read, "## Files read", 1),
    (Section::Solved, "## Errors that no longer show", 1),
];

/// What is told first where room is short: how sure it is, how often it was said, and then all over the
/// conversation: what was said early is worth as much as what was said late.
type Order = (u8, bool, u8, u64);

fn spread(entry: Seq) -> u64 {
    entry.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Errors that differ in names and numbers alone, from how many on they are a log's chatter.
const CHATTER_TIMES: usize = 4;

/// What a line says without the names and numbers in it.
fn shape(line: &str) -> String {
    let words =
        line.split(' ').filter(|word| word.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b':'));
    words.collect::<Vec<_>>().join(" ")
}

/// So many of the upper tiers are told before any of the tier below.
const TIERS_FIRST: u8 = 2;

/// One fact as it would be told.
struct Item {
    kind: Option<Kind>,
    /// What is quoted, without what stands behind it.
    words: String,
    text: String,
    order: Order,
    entry: Seq,
}

pub(super) fn told(
    ledger: &Ledger,
    ruler: &Ruler,
    thread: &Thread,
    kept: &HashSet<Seq>,
    tokens_max: u64,
) -> Told {
    let mut items = items(ledger, thread, kept);
    let names = [Section::Names, Section::Known];
    // A name that stands in another line needs no line of its own. That may leave room for more lines.
    loop {
        let count = |items: &[Vec<Item>]| names.iter().map(|at| items[*at as usize].len()).sum::<usize>();
        let before = count(&items);
        let lines = render(&items, &choose(ruler, &items, tokens_max), |section| !names.contains(&section));
        for section in names {
            items[section as usize].retain(|item| !lines.contains(item.words.as_str()));
        }
        if count(&items) == before {
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
fn items(ledger: &Ledger, thread: &Thread, kept: &HashSet<Seq>) -> Vec<Vec<Item>> {
    let hidden = Hidden::of(ledger, thread);
    let replaced = replaced(ledger);
    let former = former(ledger);
    let mut items: Vec<Vec<Item>> = SECTIONS.iter().map(|_| Vec::new()).collect();
    for kind in super::fact::KINDS {
        for fact in ledger.store.of(kind) {
            let Some(section) = section(fact) else { continue };
            let is_former =
                |(name, value): &(&str, &str)| fact.text.contains(*name) && fact.text.contains(*value);
            let is_stale = match fact.kind {
                Kind::Name => replaced.contains(fact.text.as_str()),
                Kind::Said => former.iter().any(is_former),
                Kind::Rule
                | Kind::Error
                | Kind::Pending
                | Kind::Decision
                | Kind::Rejected
                | Kind::Value
                | Kind::File
                | Kind::Command => false,
            };
            if is_stale {
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
            let entry = seen[seen.len() - 1].entry;
            items[section as usize].push(Item {
                kind: Some(fact.kind),
                words: fact.text.clone(),
                text: line(fact, &seen),
                order: order(fact, ledger.store.times(fact), entry),
                entry,
            });
        }
    }
    let errors = &mut items[Section::Errors as usize];
    let mut shapes: HashMap<String, usize> = HashMap::new();
    for item in errors.iter() {
        *shapes.entry(shape(&item.words)).or_default() += 1;
    }
    for item in errors.iter_mut() {
        let times = shapes.get(&shape(&item.words)).copied().unwrap_or(0);
        if times >= CHATTER_TIMES || item.words.starts_with(|c: char| c.is_ascii_digit()) {
            // What a log says of this and that again and again stopped nobody.
            item.order = (0, false, 0, item.order.3);
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
            Some(Item { kind: None, words, text, order: (u8::MAX, true, 0, 0), entry: planned })
        });
        items[Section::Pending as usize].splice(0..0, steps);
    }
    tell_once(&mut items);
    items
}

/// Drops a sentence that stands in an earlier section too, as it is or within the words around it.
fn tell_once(items: &mut [Vec<Item>]) {
    let is_sentence = |item: &Item| match item.kind {
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
    let key = |item: &Item| words::hash(item.words.trim_end_matches(['.', '!', ',', ';', '…']));
    let mut told: HashSet<u32> = HashSet::new();
    let mut by_entry: HashMap<Seq, Vec<String>> = HashMap::new();
    for item in items.iter().flatten().filter(|item| is_sentence(item)) {
        by_entry.entry(item.entry).or_default().push(item.words.clone());
    }
    for items in items.iter_mut() {
        items.retain(|item| {
            if !is_sentence(item) {
                return true;
            }
            let within = by_entry.get(&item.entry).is_some_and(|all| {
                let longer =
                    all.iter().take(ENTRY_COMPARED_MAX).filter(|other| other.len() > item.words.len());
                longer.into_iter().any(|other| other.contains(item.words.as_str()))
            });
            // The person's own words come first and stand whole.
            told.insert(key(item)) && (item.kind == Some(Kind::Rule) || !within)
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

/// What was called by these words, and had these values.
fn former(ledger: &Ledger) -> Vec<(&str, &str)> {
    let values =
        super::fact::KINDS.iter().flat_map(|kind| ledger.store.of(*kind)).flat_map(|fact| &fact.values);
    let is_told_apart = |value: &&Value| value.name.contains('_') || value.value.len() >= FORMER_BYTES_MIN;
    let former = values.filter(|value| value.now.is_some()).filter(is_told_apart);
    former.map(|value| (value.name.split(' ').next().unwrap_or_default(), value.value.as_str())).collect()
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

/// Whether it names something.
fn is_specific(fact: &Fact) -> bool {
    fact.text.contains(['`', '_', '/']) || fact.text.bytes().any(|byte| byte.is_ascii_digit())
}

/// Times from which on a sentence that differs from others in names and numbers alone is what somebody always says.
const ROUTINE_TIMES: u32 = 3;

fn order(fact: &Fact, times: u32, entry: Seq) -> Order {
    let strength = strength(fact, times);
    (tier(fact, strength), is_specific(fact), strength, spread(entry))
}

/// How sure it is that a fact matters, now that it is known what else was said.
fn strength(fact: &Fact, times: u32) -> u8 {
    let is_part = fact.kind == Kind::Value && fact.strength >= PART_STRENGTH;
    let routine = match times {
        _ if is_part => 0,
        0..=1 => 0,
        2..ROUTINE_TIMES => 1,
        ROUTINE_TIMES.. => 3,
    };
    fact.strength.saturating_sub(routine)
}

fn tier(fact: &Fact, strength: u8) -> u8 {
    match strength {
        _ if matches!(fact.kind, Kind::Command | Kind::Name)
            || fact.kind == Kind::File && fact.note == "read" =>
        {
            0
        }
        _ if fact.kind == Kind::File => 1,
        // Short orders are rules; but where nothing is named, most are talk.
        0..=4 if !is_specific(fact) && fact.values.is_empty() => 0,
        // What was solved is done.
        _ if fact.over.is_some() => 0,
        0..=1 => 0,
        2 => 1,
        3 if fact.kind != Kind::Pending => 1,
        3..=5 => 2,
        6.. => 3,
    }
}

fn line(fact: &Fact, seen: &[Source]) -> String {
    let ids: Vec<String> = seen.iter().map(|source| source.entry.to_string()).collect();
    let ids = ids.join(", ");
    let note = match fact.kind {
        Kind::Command => format!(" → {}", fact.note),
        Kind::File if fact.note != "read" && fact.note != "modified" => format!(" {}", fact.note),
        Kind::Error if fact.over.is_none() && !fact.note.is_empty() => {
            format!(" [{}]", first_words(&fact.note))
        }
        Kind::Rule
        | Kind::Pending
        | Kind::Decision
        | Kind::Rejected
        | Kind::Value
        | Kind::Error
        | Kind::File
        | Kind::Said
        | Kind::Name => {
            let replaced = fact.values.iter().filter(|value| value.now.is_some());
            let now: Vec<String> = replaced
                .map(|value| match value.now.as_deref() {
                    Some(now) if !now.is_empty() => format!("{} is now {now}", value.name),
                    Some(_) | None => format!("no longer {}", value.value),
                })
                .collect();
            if now.is_empty() { String::new() } else { format!(" [since then: {}]", now.join("; ")) }
        }
    };
    match fact.kind {
        Kind::Command | Kind::Name => format!("`{}`{note} ({ids})", fact.text),
        Kind::Rule
        | Kind::Error
        | Kind::Pending
        | Kind::Decision
        | Kind::Rejected
        | Kind::Value
        | Kind::Said
        | Kind::File => {
            format!("{}{note} ({ids})", fact.text)
        }
    }
}

/// Enough of a command to know it by.
fn first_words(command: &str) -> String {
    command.split_whitespace().take(4).collect::<Vec<_>>().join(" ").chars().take(40).collect()
}

/// How many of each section's items are told. First each section gets its part, then what is left goes
/// round by the same parts until nothing more fits.
fn choose(ruler: &Ruler, items: &[Vec<Item>], tokens_max: u64) -> Vec<usize> {
    let mut chosen = vec![0; SECTIONS.len()];
    let mut left = tokens_max;
    for tier in (0..=TIERS_FIRST).rev() {
        let ends =
            items.iter().map(|items| items.partition_point(|item| item.order.0 >= tier)).collect::<Vec<_>>();
        choose_of(ruler, items, &ends, &mut chosen, &mut left);
    }
    chosen
}

fn choose_of(ruler: &Ruler, items: &[Vec<Item>], ends: &[usize], chosen: &mut [usize], left: &mut u64) {
    loop {
        let open: u64 = SECTIONS
            .iter()
            .enumerate()
            .filter(|(at, _)| chosen[*at] < ends[*at])
            .map(|(_, (_, _, part))| part)
            .sum();
        if open == 0 {
            return;
        }
        let round = *left;
        let mut took = false;
        for (at, (section, heading, part)) in SECTIONS.iter().enumerate() {
            let mut share = (round * part / open).min(*left);
            while chosen[at] < ends[at] {
                let item = &items[at][chosen[at]];
                let frame = if is_inline(*section) { 1 } else { 2 };
                let head = if chosen[at] == 0 { ruler.text(heading) + 2 } else { 0 };
                let cost = ruler.text(&item.text) + frame + head;
                if cost > share {
                    break;
                }
                share -= cost;
                *left -= cost;
                chosen[at] += 1;
                took = true;
            }
        }
        if !took {
            // Nothing fits into its part any more: in their order, as far as the rest goes.
            for (at, (_, heading, _)) in SECTIONS.iter().enumerate() {
                while chosen[at] < ends[at] {
                    let head = if chosen[at] == 0 { ruler.text(heading) + 2 } else { 0 };
                    let cost = ruler.text(&items[at][chosen[at]].text) + 2 + head;
                    if cost > *left {
                        break;
                    }
                    *left -= cost;
                    chosen[at] += 1;
                }
            }
            return;
        }
    }
}

/// Whether several items share a line.
fn is_inline(section: Section) -> bool {
    match section {
        Section::Names | Section::Read | Section::Changed => true,
        Section::Rules
        | Section::Errors
        | Section::Pending
        | Section::Decisions
        | Section::Rejected
        | Section::Values
        | Section::Known
        | Section::Commands
        | Section::Solved => false,
    }
}

fn render(items: &[Vec<Item>], chosen: &[usize], wanted: impl Fn(Section) -> bool) -> String {
    let mut text = String::new();
    for ((section, heading, _), (items, chosen)) in SECTIONS.iter().zip(items.iter().zip(chosen)) {
        if *chosen == 0 || !wanted(*section) {
            continue;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(heading);
        let mut told: Vec<&Item> = items[..*chosen].iter().collect();
        told.sort_by_key(|item| std::cmp::Reverse(item.entry));
        let told: Vec<&str> = told.into_iter().map(|item| item.text.as_str()).collect();
        let (first, between) = if is_inline(*section) { ("\n", ", ") } else { ("\n- ", "\n- ") };
        text.push_str(first);
        text.push_str(&told.join(between));
    }
    text
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
