//! The sections of the ledger as a model reads it, and how many lines of each there is room for. Pure.

use std::borrow::Cow;
use std::cell::OnceCell;

use super::fact::{Fact, Kind, Source};
use super::rank::{Order, PERSON_TIER, TOLD_TIER};
use super::values;
use crate::thread::Seq;
use crate::tokens::Ruler;

/// A heading and what stands below it. In the order of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
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
pub(super) const SECTIONS: [(Section, &str, u64); 12] = [
    (Section::Rules, "## What the person wants", 18),
    (Section::Errors, "## Open errors", 11),
    (Section::Pending, "## Still to do", 11),
    (Section::Decisions, "## Decided and found", 14),
    (Section::Rejected, "## Tried or ruled out", 10),
    (Section::Values, "## Current values", 14),
    (Section::Known, "## Names and places", 14),
    (Section::Changed, "## Files changed", 14),
    (Section::Commands, "## Commands, last result", 1),
    (Section::Names, "## Names", 1),
    (Section::Read, "## Files read", 1),
    (Section::Solved, "## Errors that no longer show", 1),
];

/// Of all room so much goes to what the person wants before anything else gets its part, in per cent.
const RULES_FIRST_PERCENT: u64 = 50;

/// Of all room so much goes to what the person said before anything else gets its part, in per cent.
const PERSON_FIRST_PERCENT: u64 = 60;

/// Enough of a command to know it by.
const COMMAND_WORDS_MAX: usize = 4;
const COMMAND_CHARS_MAX: usize = 40;

/// One line as it would be told. What it says and takes is made out where it is asked for: most lines are not.
pub(super) struct Item<'a> {
    /// `None`: a step of the plan, whose text is made at once.
    pub fact: Option<&'a Fact>,
    /// Where the fact was found, as far as that may be told.
    pub seen: Vec<Source>,
    pub order: Order,
    pub entry: Seq,
    text: OnceCell<String>,
    tokens: OnceCell<u64>,
    plan: String,
}

impl<'a> Item<'a> {
    pub fn of(fact: &'a Fact, seen: Vec<Source>, order: Order) -> Item<'a> {
        let entry = seen.last().map_or(Seq(0), |source| source.entry);
        let (text, tokens) = (OnceCell::new(), OnceCell::new());
        Item { fact: Some(fact), seen, order, entry, text, tokens, plan: String::new() }
    }

    pub fn of_plan(words: String, text: String, order: Order, entry: Seq) -> Item<'a> {
        let tokens = OnceCell::new();
        Item { fact: None, seen: Vec::new(), order, entry, text: text.into(), tokens, plan: words }
    }

    /// What is quoted, without what stands behind it.
    pub fn words(&self) -> &str {
        self.fact.map_or(&self.plan, |fact| &fact.text)
    }

    pub fn text(&self) -> &str {
        self.text.get_or_init(|| self.fact.map_or_else(String::new, |fact| line(fact, &self.seen)))
    }

    fn tokens(&self, ruler: &Ruler) -> u64 {
        *self.tokens.get_or_init(|| ruler.text(self.text()))
    }
}

/// How many of each section's items are told. First each section gets its part, then what is left goes
/// round by the same parts until nothing more fits.
pub(super) fn choose(ruler: &Ruler, items: &[Vec<Item>], tokens_max: u64) -> Vec<usize> {
    let mut chosen = vec![0; SECTIONS.len()];
    let mut left = tokens_max;
    let persons = ends_of(items, PERSON_TIER);
    let rules = SECTIONS.map(|(section, ..)| section == Section::Rules);
    let rules = std::iter::zip(&persons, rules).map(|(end, is_rule)| if is_rule { *end } else { 0 });
    for (ends, percent) in [(rules.collect(), RULES_FIRST_PERCENT), (persons.clone(), PERSON_FIRST_PERCENT)] {
        let mut firsts = (tokens_max * percent / 100).min(left);
        left -= firsts;
        choose_of(ruler, items, &ends, &mut chosen, &mut firsts);
        left += firsts;
    }
    for tier in (0..=TOLD_TIER).rev() {
        choose_of(ruler, items, &ends_of(items, tier), &mut chosen, &mut left);
    }
    chosen
}

/// How many of each section's items are of a tier, or above.
fn ends_of(items: &[Vec<Item>], tier: u8) -> Vec<usize> {
    items.iter().map(|items| items.partition_point(|item| item.order.0 >= tier)).collect()
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
                let cost = item.tokens(ruler) + frame + head;
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
                    let cost = items[at][chosen[at]].tokens(ruler) + 2 + head;
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

pub(super) fn render(items: &[Vec<Item>], chosen: &[usize], wanted: impl Fn(Section) -> bool) -> String {
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
        let told: Vec<&str> = told.into_iter().map(|item| item.text()).collect();
        let (first, between) = if is_inline(*section) { ("\n", ", ") } else { ("\n- ", "\n- ") };
        text.push_str(first);
        text.push_str(&told.join(between));
    }
    text
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
        | Kind::Name => String::new(),
    };
    match fact.kind {
        Kind::Command | Kind::Name => format!("`{}`{note} ({ids})", fact.text),
        Kind::Rule
        | Kind::Error
        | Kind::Pending
        | Kind::Decision
        | Kind::Rejected
        | Kind::Value
        | Kind::Said => {
            format!("{}{note} ({ids})", marked(fact))
        }
        // What is known by its path is found by it: the names of its entries would take a third of the room.
        Kind::File => {
            format!("{}{note}", fact.text)
        }
    }
}

/// What a fact says, with a mark behind each value that something newer took the place of: "take 5 [now 8] for the
/// limit". Where a value stands in other words, the mark stands at the end.
fn marked(fact: &Fact) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(fact.text.as_str());
    for value in &fact.values {
        let mark = match (value.now.as_deref(), value.later.as_deref()) {
            (Some(""), _) => "[no longer]".to_owned(),
            (Some(now), _) => format!("[now {now}]"),
            (None, Some(later)) => format!("[later {later}]"),
            (None, None) => continue,
        };
        let marked = match values::place(&text, &value.value) {
            Some(end) => format!("{} {mark}{}", &text[..end], &text[end..]),
            None => format!("{text} [since then: {} {mark}]", value.name),
        };
        text = Cow::Owned(marked);
    }
    text
}

fn first_words(command: &str) -> String {
    command
        .split_whitespace()
        .take(COMMAND_WORDS_MAX)
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(COMMAND_CHARS_MAX)
        .collect()
}
