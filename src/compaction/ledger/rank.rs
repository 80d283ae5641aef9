//! Which facts are told first where room is short. Pure.

use super::fact::{Fact, Kind};
use super::spoken::PART_STRENGTH;
use crate::thread::Seq;

/// What is told first where room is short: by tier, what names something, how sure it is, and then all over the
/// conversation: what was said early is worth as much as what was said late.
pub(super) type Order = (u8, bool, u8, u64);

/// The tier of what surely matters.
pub(super) const TOLD_TIER: u8 = 2;

/// The same, where the person said it: no instruction gives way to what an agent said or a tool printed.
pub(super) const PERSON_TIER: u8 = 3;

/// Before all else.
pub(super) const FIRST: Order = (u8::MAX, true, 0, 0);

/// The order of what turned out to be chatter.
pub(super) fn last(order: Order) -> Order {
    (0, false, 0, order.3)
}

fn spread(entry: Seq) -> u64 {
    entry.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Whether it names something.
fn is_specific(fact: &Fact) -> bool {
    fact.text.contains(['`', '_', '/'])
        || fact.text.bytes().any(|byte| byte.is_ascii_digit())
        || fact.text.split(' ').any(|word| word.matches(['-', '.']).count() >= 2)
}

/// Times from which on a sentence that differs from others in names and numbers alone is what somebody always says.
const ROUTINE_TIMES: u32 = 3;

/// What is no surer than this is chatter where it is routine.
const WEAK_MAX: u8 = 5;

/// The order of a fact whose words were said so many times, but for names and numbers, and last in this entry.
pub(super) fn order(fact: &Fact, times: u32, entry: Seq) -> Order {
    let strength = strength(fact, times);
    let tier = tier(fact, strength);
    let tier = match fact.by_person {
        true if tier >= TOLD_TIER => PERSON_TIER,
        true | false => tier.min(TOLD_TIER),
    };
    (tier, is_specific(fact), strength, spread(entry))
}

/// How sure it is that a fact matters, now that it is known what else was said.
fn strength(fact: &Fact, times: u32) -> u8 {
    let is_part = fact.kind == Kind::Value && fact.strength >= PART_STRENGTH;
    let routine = match times {
        _ if is_part => 0,
        0..=1 => 0,
        2..ROUTINE_TIMES => 1,
        ROUTINE_TIMES.. if fact.strength <= WEAK_MAX => 4,
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
        // The work itself, and told in few words.
        _ if fact.kind == Kind::File => TOLD_TIER,
        // Short orders are rules; but where nothing is named, most are talk.
        0..=4 if !is_specific(fact) && fact.values.is_empty() && fact.kind != Kind::Error => 0,
        0..=5 if !is_specific(fact) && matches!(fact.kind, Kind::Decision | Kind::Rejected) => 0,
        // What was solved is done.
        _ if fact.over.is_some() => 0,
        0..=1 => 0,
        2 => 1,
        3 if fact.kind != Kind::Pending => 1,
        3..=5 => 2,
        6.. => 3,
    }
}
