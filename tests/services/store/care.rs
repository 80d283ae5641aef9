//! Maintenance of a store: damage is detected, repaired if possible, and copies are complete.

use std::os::unix::fs::MetadataExt;

use epitome::store::{FindingKind, FindingSeverity, Health, IndexState, Repair};
use epitome_simulated_disk::{InjectedFault, SimDisk};
use epitome_test_harness::{does_without, within};

use super::*;

/// A store with a big body in its first session, completely indexed.
fn furnished() -> (Home, SessionId, SessionId) {
    let home = Home::new();
    let store = home.store();
    let changes = [said("Fix the build"), finished(&"x".repeat(BIG)), titled("Build"), said("more")];
    for (number, changes) in [(1, &changes[..]), (2, &[said("Another")])] {
        let (mut journal, _) = store.create(&id(number), opened(&id(number))).unwrap();
        changes.iter().for_each(|change| drop(journal.append(change.clone()).unwrap()));
        journal.syncer().sync().unwrap();
    }
    store.settle();
    (home, id(1), id(2))
}

/// Lists all sessions and closes the index, so that the next handle finds it unlocked and up to date.
fn listed(home: &Home) -> Vec<Header> {
    let store = home.store();
    let headers = store.list().unwrap().headers;
    store.settle();
    headers
}

/// Checks the store with a separate handle. A child process that another test starts inherits the lock on the index
/// until it runs its program, so the index may be in use for a moment.
fn checked(home: &Home) -> Health {
    within("the index", || {
        let store = home.store();
        let health = store.check().unwrap();
        store.settle();
        (!matches!(health.index, IndexState::Elsewhere { .. })).then_some(health)
    })
}

fn repaired(home: &Home) -> Repair {
    let store = home.store();
    let repair = store.repair().unwrap();
    store.settle();
    repair
}

fn kinds(health: &Health) -> Vec<FindingKind> {
    health.findings.iter().map(|finding| finding.kind).collect()
}

/// Changes one byte of a line.
fn flip(path: &Path, line: usize) {
    let text = fs::read_to_string(path).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = lines[line - 1].len() - 3;
    lines[line - 1].replace_range(at..at + 1, "~");
    fs::write(path, lines.join("\n") + "\n").unwrap();
}

fn only_blob(home: &Home, session: &SessionId) -> PathBuf {
    let directory = home.data().join("blobs").join(&session.0);
    fs::read_dir(directory).unwrap().next().unwrap().unwrap().path()
}

// ---- Checks ----

#[test]
fn a_healthy_store_has_no_findings() {
    let (home, ..) = furnished();
    let health = checked(&home);
    assert_eq!(kinds(&health), []);
    assert_eq!((health.sessions, health.entries), (2, 7));
    assert_eq!(health.index, IndexState::Agrees { sessions: 2, behind: 0 });
    let sizes = health.sizes;
    assert!(sizes.journals > 0 && sizes.blobs == BIG as u64 && sizes.index > 0 && sizes.kept == 0);
}

/// Each row is a kind of damage and the expected finding.
#[test]
fn damage_is_found_and_reported_with_its_location() {
    type Harm = fn(&Home, &SessionId);
    let rows: [(&str, Harm, FindingKind, FindingSeverity, Option<u64>); 10] = [
        (
            "a line in the middle",
            |home, session| flip(&home.journal(session), 3),
            FindingKind::DamagedJournal,
            FindingSeverity::Error,
            Some(3),
        ),
        (
            "a line is missing",
            |home, session| {
                let text = fs::read_to_string(home.journal(session)).unwrap();
                let lines: Vec<&str> = text.lines().collect();
                fs::write(home.journal(session), [lines[0], lines[2], lines[3], lines[4], ""].join("\n"))
                    .unwrap();
            },
            FindingKind::DamagedJournal,
            FindingSeverity::Error,
            Some(2),
        ),
        (
            "the last lines are missing",
            |home, session| {
                let text = fs::read_to_string(home.journal(session)).unwrap();
                let lines: Vec<&str> = text.lines().collect();
                fs::write(home.journal(session), [lines[0], lines[1], ""].join("\n")).unwrap();
            },
            FindingKind::MissingEntries,
            FindingSeverity::Error,
            Some(3),
        ),
        (
            "half a last line",
            |home, session| {
                let mut bytes = fs::read(home.journal(session)).unwrap();
                bytes.extend_from_slice(b"{\"crc\":\"0000");
                fs::write(home.journal(session), bytes).unwrap();
            },
            FindingKind::TornLine,
            FindingSeverity::Note,
            Some(6),
        ),
        (
            "a body is gone",
            |home, session| fs::remove_file(only_blob(home, session)).unwrap(),
            FindingKind::MissingBlob,
            FindingSeverity::Error,
            Some(3),
        ),
        (
            "a body is another",
            |home, session| fs::write(only_blob(home, session), "y").unwrap(),
            FindingKind::ChangedBlob,
            FindingSeverity::Error,
            Some(3),
        ),
        (
            "a body too many",
            |home, session| {
                fs::write(only_blob(home, session).with_file_name("left.new"), "y").unwrap();
            },
            FindingKind::UnnamedBlob,
            FindingSeverity::Note,
            None,
        ),
        (
            "the journal is gone",
            |home, session| fs::remove_file(home.journal(session)).unwrap(),
            FindingKind::OrphanBlobs,
            FindingSeverity::Warning,
            None,
        ),
        (
            "kept lines",
            |home, session| fs::write(home.torn(session), "{\n").unwrap(),
            FindingKind::TornKept,
            FindingSeverity::Note,
            None,
        ),
        (
            "a newer version",
            |home, _| {
                let session = id(3);
                let future =
                    Change::Opened { format: FORMAT_VERSION + 1, session: session.clone(), cwd: "/".into() };
                drop(home.store().create(&session, future).unwrap());
            },
            FindingKind::FutureFormat,
            FindingSeverity::Warning,
            None,
        ),
    ];
    for (story, harm, kind, severity, line) in rows {
        let (home, session, _) = furnished();
        harm(&home, &session);
        let health = checked(&home);
        let found: Vec<_> = health.findings.iter().filter(|f| f.kind != FindingKind::Index).collect();
        assert_eq!(found.len(), 1, "{story}: {found:?}");
        assert_eq!((found[0].kind, found[0].severity, found[0].line), (kind, severity, line), "{story}");
        assert!(!found[0].what.contains("Fix the build"), "{story}: no content is shown");
    }
}

#[test]
fn a_check_needs_no_lock_and_changes_nothing() {
    let (home, first, _) = furnished();
    let (mut journal, _) = home.store().load(&first).unwrap();
    journal.append(said("while it is open")).unwrap();
    let before = fs::read(home.journal(&first)).unwrap();
    let health = checked(&home);
    assert_eq!(kinds(&health), []);
    assert_eq!(fs::read(home.journal(&first)).unwrap(), before);
}

// ---- Repair ----

/// Removes what could restore a damaged line.
fn without_sled(home: &Home) {
    home.store().settle();
    fs::remove_dir_all(home.data().join("db")).unwrap();
}

/// Regression: one flipped bit made all later entries unreadable, for every tool.
#[test]
fn damage_costs_one_entry_and_is_accepted_once() {
    let (home, first, second) = furnished();
    let whole = home.store().read(&first).unwrap();
    without_sled(&home);
    flip(&home.journal(&first), 3);
    let damaged = fs::read(home.journal(&first)).unwrap();
    let other = fs::read(home.journal(&second)).unwrap();

    // Until the user accepts the damage, the session can only be read.
    let (mut journal, entries) = home.store().load(&first).unwrap();
    assert_eq!(entries[2].change, Change::Lost { entries: 1 });
    assert_eq!((&entries[..2], &entries[3..]), (&whole[..2], &whole[3..]));
    let refused = journal.append(said("on we go")).unwrap_err();
    assert!(matches!(refused, StoreError::Damaged { line: 3, lost: 1, .. }), "{refused}");
    assert!(journal.can_append().is_err());
    assert!(refused.to_string().contains("/repair") && refused.to_string().contains("doctor --repair"));
    drop(journal);
    assert_eq!(fs::read(home.journal(&first)).unwrap(), damaged, "reading changes nothing");

    let repair = repaired(&home);
    assert!(repair.refused.is_empty());
    let done = repair.done.iter().find(|done| done.session.as_ref() == Some(&first)).unwrap();
    assert!(done.what.contains("1 entry is lost"), "{}", done.what);
    assert!(fs::read(home.journal(&first)).unwrap().starts_with(&damaged), "not a byte is lost");
    assert_eq!(fs::read(home.journal(&second)).unwrap(), other);
    assert!(!repair.health.has_errors(), "{:?}", repair.health.findings);
    assert!(kinds(&repair.health).contains(&FindingKind::AcceptedDamage));

    // The session continues like any other, and deleting it removes everything.
    let (mut journal, loaded) = home.store().load(&first).unwrap();
    assert_eq!(loaded[5].change, Change::DamageAccepted { places: 1, entries: 1 });
    assert_eq!(journal.append(said("on we go")).unwrap().seq, Seq(6));
    drop(journal);
    home.store().delete(&first).unwrap();
    let left: Vec<_> = fs::read_dir(home.data().join("journals")).unwrap().flatten().collect();
    assert!(left.iter().all(|file| file.file_name().to_string_lossy().starts_with(&second.0)), "{left:?}");
}

/// Regression: the index noticed that acknowledged entries were gone, and adopted the journal's state at the next load.
/// The user was never informed.
#[test]
fn lost_acknowledged_entries_are_reported_until_they_are_accepted() {
    let (home, first, _) = furnished();
    without_sled(&home);
    let text = fs::read_to_string(home.journal(&first)).unwrap();
    let short: String = text.split_inclusive('\n').take(2).collect();
    fs::write(home.journal(&first), &short).unwrap();
    for _ in 0..2 {
        let (journal, entries) = home.store().load(&first).unwrap();
        assert_eq!((entries.len(), &entries[2].change), (5, &Change::Lost { entries: 3 }));
        assert!(matches!(journal.damage(), Some(StoreError::Damaged { line: 3, lost: 3, .. })));
        drop(journal);
        assert_eq!(listed(&home).len(), 2);
        assert!(checked(&home).has_errors());
    }
    repaired(&home);
    assert!(!checked(&home).has_errors());
    // No entry gets the number of a lost one.
    let (mut journal, _) = home.store().load(&first).unwrap();
    assert_eq!(journal.append(said("on we go")).unwrap().seq, Seq(6));
}

/// Regression: `doctor --repair` cut off the entries of a newer build, although their checksums were correct.
#[test]
fn entries_of_a_newer_version_are_kept() {
    let home = Home::new();
    let (session, entries) = home.session(1, &one_of_each());
    let before = fs::read(home.journal(&session)).unwrap();
    assert!(repaired(&home).done.is_empty());
    let (mut journal, loaded) = home.store().load(&session).unwrap();
    assert_eq!(loaded, entries);
    let unknown = loaded.iter().find(|entry| matches!(entry.change, Change::Unknown(_))).unwrap();
    assert!(describe(&unknown.change).line.unwrap().contains("from_the_future"));
    journal.append(said("on we go")).unwrap();
    drop(journal);
    assert!(fs::read(home.journal(&session)).unwrap().starts_with(&before));
    let fork = home.store().fork_with_origin(&session, None).unwrap();
    assert_eq!(home.store().read(&fork.session).unwrap()[unknown.seq.0 as usize], *unknown);
}

#[test]
fn a_lost_first_line_is_replaced_by_its_copy() {
    let (home, first, _) = furnished();
    let whole = home.store().read(&first).unwrap();
    flip(&home.journal(&first), 1);
    assert_eq!(home.store().read(&first).unwrap(), whole);
    repaired(&home);
    assert_eq!(home.load(&first).unwrap()[1..5], whole[1..]);
}

#[test]
fn a_journal_without_an_intact_line_is_moved_away() {
    let (home, first, _) = furnished();
    fs::write(home.journal(&first), "nothing\nof this\nis a journal\n").unwrap();
    fs::remove_file(home.journal(&first).with_extension("synced")).unwrap();
    assert!(matches!(home.load(&first), Err(StoreError::Unreadable(_))));
    let repair = repaired(&home);
    let done = repair.done.iter().find(|done| done.session.as_ref() == Some(&first)).unwrap();
    assert!(done.kept.as_ref().unwrap().exists());
    assert_eq!(listed(&home).len(), 1);
    assert!(only_blob(&home, &first).exists());
    assert!(!repair.health.has_errors());
}

/// Regression: a kill during a fork left `journals/S.new` behind. It was never removed, and no check reported it.
#[test]
fn leftovers_of_interrupted_writes_are_named_and_deleted() {
    let (home, first, _) = furnished();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(7_200);
    let leftovers =
        [format!("{first}.new"), ".epitome-0123456789abcdef.tmp".to_owned(), format!("{}.synced", id(9))];
    for name in &leftovers {
        let file = fs::File::create(home.data().join("journals").join(name)).unwrap();
        file.set_modified(old).unwrap();
    }
    // This file may be in use.
    fs::write(home.data().join("journals/.epitome-00.tmp"), "").unwrap();
    assert_eq!(kinds(&checked(&home)), [FindingKind::Leftover; 3]);
    assert_eq!(repaired(&home).done.len(), 3);
    assert_eq!(kinds(&checked(&home)), []);
    assert!(home.data().join("journals/.epitome-00.tmp").exists());
}

#[test]
fn an_open_session_is_not_repaired_and_its_owner_is_named() {
    let (home, first, second) = furnished();
    let (_open, _) = home.store().load(&first).unwrap();
    flip(&home.journal(&first), 3);
    flip(&home.journal(&second), 2);
    let before = fs::read(home.journal(&first)).unwrap();
    let repair = repaired(&home);
    assert_eq!(repair.refused.len(), 1);
    let refused = &repair.refused[0];
    assert_eq!(refused.session, Some(first.clone()));
    if !does_without("the process that has a lock") {
        assert!(refused.what.contains(&format!("process {}", std::process::id())), "{}", refused.what);
    }
    assert_eq!(fs::read(home.journal(&first)).unwrap(), before);
    assert_eq!(home.load(&second).unwrap().len(), 3, "the others are repaired all the same");
}

#[test]
fn a_second_repair_has_nothing_to_do() {
    let (home, first, _) = furnished();
    flip(&home.journal(&first), 2);
    repaired(&home);
    listed(&home);
    let again = repaired(&home);
    assert_eq!((again.done.len(), again.refused.len()), (0, 0), "{:?}", again.done);
}

// ---- The index ----

/// Eight flipped bytes made sled panic in 29 of 40 trials and silently lose rows in 9. Nevertheless, listings must
/// match the journals, and a repair must restore the index.
#[test]
fn flipped_bytes_in_the_index_lose_nothing() {
    for trial in 0..40_usize {
        let (home, ..) = furnished();
        let wanted = listed(&home);
        let file = home.data().join("db/db");
        let mut bytes = fs::read(&file).unwrap();
        // The data is at the beginning; the rest of a segment is empty.
        let written = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        for n in 0..8 {
            let at = (trial * 7919 + n * 104_729) % written;
            bytes[at] ^= 1 << (n % 8);
        }
        fs::write(&file, bytes).unwrap();

        let state = checked(&home).index;
        assert_eq!(listed(&home), wanted, "trial {trial}: {state:?}");
        let repair = repaired(&home);
        assert!(repair.refused.is_empty(), "trial {trial}: {:?}", repair.refused);
        listed(&home);
        let state = checked(&home).index;
        assert_eq!(state, IndexState::Agrees { sessions: 2, behind: 0 }, "trial {trial}");
    }
}

#[test]
fn a_broken_index_snapshot_loses_nothing() {
    let (home, ..) = furnished();
    // A snapshot that sled would read first when it opens the index.
    let snapshot = home.data().join("db").join(format!("snap.{:016X}", 1 << 19));
    fs::write(&snapshot, "no snapshot at all, but long enough to be one").unwrap();
    assert!(matches!(checked(&home).index, IndexState::Damaged { .. }));
    assert_eq!(listed(&home).len(), 2);
    repaired(&home);
    listed(&home);
    assert_eq!(checked(&home).index, IndexState::Agrees { sessions: 2, behind: 0 });
}

#[test]
fn a_foreign_index_is_detected_and_rebuilt() {
    let (home, ..) = furnished();
    let (other, _, _) = furnished();
    // A directory of another store: its rows do not match these journals.
    fs::remove_dir_all(home.data().join("db")).unwrap();
    fs::rename(other.data().join("db"), home.data().join("db")).unwrap();
    let health = checked(&home);
    assert!(matches!(&health.index, IndexState::Disagrees { sessions } if sessions.len() == 2), "{health:?}");
    let repair = repaired(&home);
    assert!(repair.done[0].kept.as_ref().unwrap().exists(), "the old one is put aside");
    assert_eq!(repair.health.index, IndexState::Agrees { sessions: 2, behind: 0 });
}

#[test]
fn compact_index_rebuilds_the_index_without_a_second_copy() {
    let (home, ..) = furnished();
    let store = home.store();
    let rebuilt = store.compact_index().unwrap();
    assert_eq!((rebuilt.sessions, rebuilt.kept), (2, None));
    let names: Vec<String> = fs::read_dir(home.data())
        .unwrap()
        .map(|file| file.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("db."))
        .collect();
    assert_eq!(names, ["db.lock"]);
    assert_eq!(store.check().unwrap().index, IndexState::Agrees { sessions: 2, behind: 0 });
}

#[test]
fn an_index_locked_by_another_process_is_left_alone() {
    let (home, ..) = furnished();
    let lock = fs::File::open(home.data().join("db.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let store = home.store();
    assert!(matches!(store.check().unwrap().index, IndexState::Elsewhere { .. }));
    let refused = store.compact_index().unwrap_err();
    assert!(refused.to_string().contains("is open in"), "{refused}");
    assert_eq!(store.list().unwrap().headers.len(), 2, "journals need no lock");
}

// ---- Copies ----

#[test]
fn a_backup_is_a_complete_store_even_while_sessions_are_written() {
    let (home, first, second) = furnished();
    let (mut open, _) = home.store().load(&second).unwrap();
    open.append(said("not yet synced")).unwrap();
    // A half-written line.
    let mut bytes = fs::read(home.journal(&second)).unwrap();
    let whole = bytes.len();
    bytes.extend_from_slice(b"{\"crc\":\"12");
    fs::write(home.journal(&second), &bytes).unwrap();

    let copy = Home::new();
    let into = copy.data();
    let backup = home.store().backup(&into).unwrap();
    assert_eq!((backup.sessions, backup.findings.len()), (2, 0));
    assert_eq!(fs::read(copy.journal(&first)).unwrap(), fs::read(home.journal(&first)).unwrap());
    assert_eq!(fs::read(copy.journal(&second)).unwrap(), bytes[..whole]);
    assert_eq!(copy.load(&first).unwrap(), home.store().read(&first).unwrap());
    assert_eq!(kinds(&checked(&copy)), []);
    assert_eq!(fs::metadata(copy.journal(&first)).unwrap().mode() & 0o777, 0o600);

    let again = home.store().backup(&into).unwrap_err().to_string();
    assert!(again.contains("not empty"), "{again}");
}

#[test]
fn a_backup_copies_damaged_journals_unchanged_and_reports_them() {
    let (home, first, _) = furnished();
    flip(&home.journal(&first), 3);
    let copy = Home::new();
    let backup = home.store().backup(&copy.data()).unwrap();
    assert_eq!(backup.findings.len(), 1);
    assert_eq!(fs::read(copy.journal(&first)).unwrap(), fs::read(home.journal(&first)).unwrap());
}

#[test]
fn a_fork_is_a_copy_of_the_log_up_to_an_entry() {
    let (home, first, _) = furnished();
    let whole = home.store().read(&first).unwrap();
    for up_to in [None, Some(Seq(0)), Some(Seq(2)), Some(Seq(4)), Some(Seq(99))] {
        let fork = id(100 + up_to.map_or(50, |seq| seq.0));
        let entries = home.store().fork(&first, up_to, &fork).unwrap();
        let last = up_to.map_or(4, |seq| seq.0.min(4));
        let copied = home.load(&fork).unwrap();
        assert_eq!((entries, copied.len() as u64), (last + 1, last + 1));
        assert_eq!(copied[1..], whole[1..=last as usize]);
        assert!(matches!(&copied[0].change, Change::Opened { session, .. } if *session == fork));
        assert_eq!(copied[0].at, whole[0].at);
    }
    // Each session has its own blobs.
    home.store().delete(&first).unwrap();
    let kept = home.load(&id(102)).unwrap();
    assert_eq!(kept[2], whole[2]);
    assert_eq!(kinds(&checked(&home)), []);
    let taken = home.store().fork(&id(102), None, &id(104)).unwrap_err();
    assert!(matches!(taken, StoreError::Exists(_)), "{taken}");
}

/// Regression: the disk was full while a session was forked. The bodies of the fork stayed behind without a log, and
/// `doctor` reported a session whose journal was lost.
#[test]
fn a_failed_fork_or_import_leaves_nothing() {
    for call in 1.. {
        let disk = SimDisk::new(call, Path::new("/data"));
        let store = Store::on_disk(Path::new("/data"), Arc::new(disk.clone()));
        let (mut journal, _) = store.create(&id(1), opened(&id(1))).unwrap();
        journal.append(finished(&"x".repeat(BIG))).unwrap();
        journal.syncer().sync().unwrap();
        let mut entries = store.read(&id(1)).unwrap();
        let other = Change::Opened { format: FORMAT_VERSION, session: id(2), cwd: "/".into() };
        entries[0] = Arc::new(Entry { change: other, ..(*entries[0]).clone() });
        disk.plan(call, InjectedFault::Error(std::io::ErrorKind::StorageFull));
        let (forked, inserted) = (store.fork_with_origin(&id(1), None), store.insert(&id(2), &entries));
        if !disk.has_failed() {
            break;
        }
        let expected = 1 + u64::from(forked.is_ok()) + u64::from(inserted.is_ok());
        let health = store.check().unwrap();
        let orphans = |kind| health.findings.iter().filter(|found| found.kind == kind).count();
        assert_eq!((orphans(FindingKind::OrphanBlobs), health.sessions), (0, expected), "call {call}");
    }
}

#[test]
fn a_fork_of_a_damaged_session_is_sound() {
    let (home, first, _) = furnished();
    flip(&home.journal(&first), 3);
    let damaged = home.store().read(&first).unwrap();
    assert_eq!(home.store().fork(&first, Some(Seq(1)), &id(7)).unwrap(), 2);
    assert_eq!(home.store().fork(&first, None, &id(8)).unwrap(), 5);
    let (mut journal, forked) = home.store().load(&id(8)).unwrap();
    assert_eq!(forked[1..], damaged[1..]);
    journal.append(said("on we go")).unwrap();
}

#[test]
fn an_insert_is_complete_or_has_no_effect() {
    let (home, first, _) = furnished();
    let entries = home.store().read(&first).unwrap();
    let other = Home::new();
    other.store().insert(&first, &entries).unwrap();
    assert_eq!(other.load(&first).unwrap(), entries);
    assert!(matches!(other.store().insert(&first, &entries), Err(StoreError::Exists(_))));
    for wrong in [&entries[1..], &entries[..0], &[entries[0].clone(), entries[2].clone()]] {
        assert!(matches!(other.store().insert(&id(5), wrong), Err(StoreError::Unstorable { .. })));
    }
    assert!(matches!(other.store().insert(&id(5), &entries), Err(StoreError::Unstorable { .. })));
    assert_eq!(other.store().list().unwrap().headers.len(), 1);
}

/// Checkpoints are deleted with their session, after its journal. An interrupted deletion, or a lost journal,
/// leaves them behind; they may be the only copy of a user's work, so nothing deletes them automatically.
#[test]
fn checkpoints_without_a_session_are_reported_and_kept() {
    let (home, first, _) = furnished();
    let checkpoints = |session: &SessionId| home.data().join("checkpoints").join(&session.0);
    for session in [&first, &id(9)] {
        fs::create_dir_all(checkpoints(session)).unwrap();
        fs::write(checkpoints(session).join("kept"), "a file").unwrap();
    }
    let health = checked(&home);
    let orphans: Vec<_> =
        health.findings.iter().filter(|found| found.kind == FindingKind::OrphanCheckpoints).collect();
    let [orphan] = orphans[..] else { panic!("{:?}", health.findings) };
    assert_eq!(
        (&orphan.path, orphan.severity, &orphan.session),
        (&checkpoints(&id(9)), FindingSeverity::Warning, &Some(id(9)))
    );
    assert!(orphan.todo.as_deref().is_some_and(|todo| todo.contains("delete the directory")), "{orphan:?}");
    repaired(&home);
    assert!(checkpoints(&id(9)).join("kept").exists());
    home.store().delete(&first).unwrap();
    assert!(!checkpoints(&first).exists());
}
