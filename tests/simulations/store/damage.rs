//! Damage of data that was on disk: it costs the damaged lines, is reported, and keeps the session from being written
//! until the user accepts it.

use super::on_many_disks;
use super::world::World;
use epitome_store::{FindingKind, FindingSeverity, StoreError};
use epitome_thread::{Change, Thread};

/// The kinds of damage to a journal.
#[derive(Clone, Copy, Debug)]
enum InjectedDamage {
    Flip,
    Zeros,
    Garbage,
    Truncated,
    LineMissing,
    LineTwice,
    LinesSwapped,
    NewlineMissing,
    ZerosAtTheEnd,
}

const DAMAGES: [InjectedDamage; 9] = [
    InjectedDamage::Flip,
    InjectedDamage::Zeros,
    InjectedDamage::Garbage,
    InjectedDamage::Truncated,
    InjectedDamage::LineMissing,
    InjectedDamage::LineTwice,
    InjectedDamage::LinesSwapped,
    InjectedDamage::NewlineMissing,
    InjectedDamage::ZerosAtTheEnd,
];

impl InjectedDamage {
    /// Damages a journal; returns the maximum number of entries that this may cost.
    fn harm(self, bytes: &mut Vec<u8>, rng: &mut fastrand::Rng) -> u64 {
        let lines: Vec<Vec<u8>> = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        let at = rng.usize(..bytes.len());
        let line = rng.usize(..lines.len());
        let touched = |from: usize, to: usize| {
            let before = bytes[..from].iter().filter(|byte| **byte == b'\n').count();
            // A damaged newline also costs the line after it, unless that is recognized.
            let through = bytes[..to.min(bytes.len())].iter().filter(|byte| **byte == b'\n').count();
            (through - before + 1) as u64
        };
        match self {
            InjectedDamage::Flip => {
                let most = touched(at, at + 1);
                bytes[at] ^= 1 << rng.u32(..8);
                most
            }
            InjectedDamage::Zeros | InjectedDamage::Garbage => {
                let end = (at + *rng.choice(&[1, 64, 4096]).expect("there are some")).min(bytes.len());
                let most = touched(at, end);
                let is_zero = matches!(self, InjectedDamage::Zeros);
                bytes[at..end].iter_mut().for_each(|byte| *byte = if is_zero { 0 } else { rng.u8(..) });
                most
            }
            InjectedDamage::Truncated => {
                let most = touched(at, bytes.len());
                bytes.truncate(at);
                most
            }
            InjectedDamage::LineMissing => {
                *bytes = [&lines[..line], &lines[line + 1..]].concat().concat();
                1
            }
            InjectedDamage::LineTwice => {
                *bytes = [&lines[..=line], &lines[line..]].concat().concat();
                0
            }
            InjectedDamage::LinesSwapped => {
                let mut lines = lines;
                if line > 0 {
                    lines.swap(line - 1, line);
                }
                *bytes = lines.concat();
                0
            }
            InjectedDamage::NewlineMissing => {
                bytes.pop();
                0
            }
            InjectedDamage::ZerosAtTheEnd => {
                let more = *rng.choice(&[1, 100, 4096]).expect("there are some");
                bytes.extend(std::iter::repeat_n(0, more));
                0
            }
        }
    }
}

#[test]
fn damage_costs_the_damaged_lines_alone() {
    let rare = [
        "damage was accepted",
        "entries were lost",
        "nothing was lost",
        "the first line was lost",
        "the end was lost",
    ];
    on_many_disks("damage_costs_the_damaged_lines_alone", 1, &rare, |seed| {
        let mut world = World::new(seed);
        while world.sessions.iter().filter(|session| session.is_there()).count() < 2 {
            world.work();
        }
        world.kill();
        world.recover();
        world.kill();
        let there: Vec<usize> =
            (0..world.sessions.len()).filter(|at| world.sessions[*at].is_there()).collect();
        let at = *world.rng.choice(&there).expect("there are two");
        let damage = *world.rng.choice(&DAMAGES).expect("there are some");
        let (path, mut rng) = (world.journal(at), world.rng.fork());
        println!("{damage:?} of {} at {}", world.sessions[at].id, path.display());
        let mut most = 0;
        let mut is_changed = false;
        world.disk.change(&path, |bytes| {
            let before = bytes.clone();
            most = damage.harm(bytes, &mut rng);
            is_changed = *bytes != before;
        });
        suffer(&mut world, at, most, is_changed);
        world.disk.seen()
    });
}

/// Reads a damaged session, accepts the damage and continues the session.
fn suffer(world: &mut World, at: usize, most: u64, is_changed: bool) {
    let (id, history) = (world.sessions[at].id.clone(), world.sessions[at].history.clone());
    let entries = world.store.read(&id).expect("a damaged session can be read");
    assert_eq!(entries.len(), history.len(), "each entry keeps its number");
    let mut lost = 0;
    for (entry, written) in entries.iter().zip(&history) {
        match &entry.change {
            Change::Lost { .. } => lost += 1,
            change => assert!(change == written, "entry {} is another", entry.seq),
        }
    }
    assert!(lost <= most, "{lost} entries are lost, and {most} lines were damaged");
    let counted: u64 = entries
        .iter()
        .map(|entry| match entry.change {
            Change::Lost { entries } => entries,
            _ => 0,
        })
        .sum();
    assert_eq!(counted, lost, "each gap says how many entries it is for");
    Thread::replay(entries.iter().cloned()).expect("what is left is a log");
    world.disk.count(if lost > 0 { "entries were lost" } else { "nothing was lost" });

    // The check names only this session.
    let health = world.store.check().expect("the store can be read");
    let errors: Vec<_> =
        health.findings.iter().filter(|finding| finding.severity == FindingSeverity::Error).collect();
    assert!(errors.iter().all(|finding| finding.session.as_ref() == Some(&id)), "{errors:?}");
    let is_named = errors
        .iter()
        .any(|finding| matches!(finding.kind, FindingKind::DamagedJournal | FindingKind::MissingEntries));
    assert!(is_named || lost == 0, "{:?}", health.findings);
    if errors.iter().any(|finding| finding.kind == FindingKind::MissingEntries) {
        world.disk.count("the end was lost");
    }
    if errors.iter().any(|finding| finding.line == Some(1)) {
        world.disk.count("the first line was lost");
    }
    assert!(is_changed || errors.is_empty());

    let (mut journal, loaded) = world.store.load(&id).expect("a damaged session can be opened");
    assert_eq!(loaded, entries);
    assert_eq!(journal.damage().is_some(), is_named, "{:?}", journal.damage());
    let title = Change::Titled { title: "after the damage".to_owned() };
    if is_named {
        assert!(matches!(journal.append(title.clone()), Err(StoreError::Damaged { .. })));
        assert!(matches!(journal.can_append(), Err(StoreError::Damaged { .. })));
        drop(journal);
        if world.rng.bool() {
            let repair = world.store.repair().expect("the store can be written");
            assert!(repair.refused.iter().all(|refused| refused.session.is_none()), "{:?}", repair.refused);
            (journal, _) = world.store.load(&id).expect("it was repaired");
        } else {
            (journal, _) = world.store.load(&id).expect("it opens again");
            let acceptance = journal.acceptance().expect("it is damaged");
            journal.append(acceptance).expect("the acceptance is written");
        }
        world.disk.count("damage was accepted");
    }
    assert!(journal.damage().is_none(), "{:?}", journal.damage());
    journal.append(title).expect("the session continues");
    journal.syncer().sync().expect("the disk takes it");
    drop(journal);
    let (journal, after) = world.store.load(&id).expect("it opens again");
    assert!(journal.damage().is_none(), "{:?}", journal.damage());
    assert_eq!(after[..entries.len()], entries);
    assert_eq!(after.len(), entries.len() + 1 + usize::from(is_named));
    drop(journal);
    let health = world.store.check().expect("the store can be read");
    assert!(!health.has_errors(), "{:?}", health.findings);
    // The others are unchanged, even after a fork of the damaged one.
    let fork = world.store.fork_with_origin(&id, None).expect("a damaged session can be forked");
    let forked = world.store.read(&fork.session).expect("the fork is there");
    assert_eq!(forked[1..after.len()], after[1..]);
    for session in world.sessions.iter().filter(|session| session.is_there() && session.id != id) {
        let entries = world.store.read(&session.id).expect("the other sessions are sound");
        assert_eq!(entries.len(), session.history.len());
        session.compare(&entries);
    }
}

#[test]
fn a_journal_that_is_removed_while_it_is_open_is_noticed() {
    on_many_disks(
        "a_journal_that_is_removed_while_it_is_open_is_noticed",
        20,
        &["it was replaced", "it was removed"],
        |seed| {
            use epitome_store::disk::{Disk, PutMode};
            let mut world = World::new(seed);
            while !world.sessions.iter().any(|session| session.is_there() && session.is_open()) {
                world.work();
            }
            let at = world.sessions.iter().position(|session| session.is_there() && session.is_open());
            let at = at.expect("one is open");
            world.sync(at);
            let acknowledged = world.sessions[at].acknowledged;
            let path = world.journal(at);
            if world.rng.bool() {
                world.disk.remove_file(&path).expect("it is there");
                world.disk.count("it was removed");
            } else {
                world.disk.put(&path, b"a restored file\n", PutMode::Replace).expect("it is there");
                world.disk.count("it was replaced");
            }
            world.append(at);
            world.sync(at);
            assert_eq!(world.sessions[at].acknowledged, acknowledged, "nothing is acknowledged any more");
            world.disk.seen()
        },
    );
}
