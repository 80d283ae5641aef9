//! A session that is opened with a saved state is the one that its journal has, whatever happened to sled or the journal.

use std::fs;
use std::path::Path;

use super::super::rows::{Rows, RowsError};
use super::super::{IndexState, Journal, Store};
use super::*;
use epitome_files::paths::Paths;
use epitome_thread::{FORMAT_VERSION, MessageId};

const ENTRIES: u64 = 600;

/// Bytes before the text of each prompt: only long journals have use for a state.
const PADDING: usize = 4_000;

fn session(number: u64) -> SessionId {
    SessionId(format!("s_{number:020x}"))
}

fn prompted(typed: &str) -> Change {
    Change::Commanded { message: MessageId(0), typed: typed.to_owned() }
}

/// A store with a session of this format, closed after its state was saved, and 20 more entries were written.
fn saved(store: &Store, number: u64, format: u32) {
    let opened = Change::Opened { format, session: session(number), cwd: "/w".into() };
    let (mut journal, first) = store.create(&session(number), opened).unwrap();
    let mut thread = Thread::replay([first]).unwrap();
    append(&mut journal, &mut thread, ENTRIES);
    let (head, mut writer) = journal.split();
    head.syncer().sync().unwrap();
    head.save_thread(&thread);
    let more = (ENTRIES + 1..).take(20).map(|seq| Entry { seq: Seq(seq), at: 1, change: prompted("more") });
    more.for_each(|entry| writer.write(&entry).unwrap());
    head.syncer().sync().unwrap();
    drop((head, writer));
    store.settle();
}

fn append(journal: &mut Journal, thread: &mut Thread, entries: u64) {
    for n in 0..entries {
        thread.apply(journal.append(prompted(&format!("{} prompt {n}", "x".repeat(PADDING)))).unwrap());
    }
}

fn home() -> (tempfile::TempDir, Store) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::new(&Paths::below(home.path()));
    saved(&store, 1, FORMAT_VERSION);
    (home, store)
}

/// Opens the session, checks it against a fold of its journal, and returns how many of its entries were not read.
fn opened(store: &Store) -> usize {
    let whole = Thread::replay(store.read(&session(1)).unwrap()).unwrap();
    let (journal, thread) = store.open(&session(1)).unwrap();
    let state = |thread: &Thread| serde_json::to_value(thread.state()).unwrap();
    let header = store.header(&session(1)).unwrap();
    let older = thread.entries().older();
    // An entry that the journal has lost is taken from the index.
    let is_same = |(one, other): (&Arc<Entry>, &Arc<Entry>)| {
        one == other || header.lost > 0 && matches!(other.change, Change::Lost { .. })
    };
    assert_eq!(thread.entries().len(), whole.entries().len());
    assert!(
        thread.entries().iter().zip(whole.entries()).all(is_same),
        "entries that were read later are others"
    );
    assert!(header.lost > 0 || state(&thread) == state(&whole));
    assert!(header.lost > 0 || *journal.header() == header);
    older
}

fn with_rows(store: &Store, change: impl FnOnce(&Rows) -> Result<(), RowsError>) {
    store.settle();
    let rows = Rows::open(&store.paths.db()).unwrap();
    change(&rows).unwrap();
    // On a busy machine, the next test of the state once found the database locked, and read the journal instead.
    rows.close(&store.paths.db());
}

fn journal_text(store: &Store) -> String {
    fs::read_to_string(store.paths.journal(&session(1))).unwrap()
}

#[test]
fn only_what_follows_the_saved_state_is_read() {
    let (_home, store) = home();
    assert_eq!(opened(&store), ENTRIES as usize + 1);
    let (thread, damage) = store.thread(&session(1)).unwrap();
    assert!(damage.is_none());
    assert_eq!((thread.entries().older(), thread.entries().len()), (601, 621), "readers too");
}

#[test]
fn a_session_goes_on_after_its_saved_state() {
    let (_home, store) = home();
    let (mut journal, mut thread) = store.open(&session(1)).unwrap();
    append(&mut journal, &mut thread, 300);
    journal.syncer().sync().unwrap();
    let (head, writer) = journal.split();
    head.save_thread(&thread);
    drop(writer);
    store.settle();
    head.move_older(&mut thread);
    assert_eq!((thread.entries().older(), thread.entries().len()), (921, 921), "its memory is freed");
    drop(head);
    assert_eq!(opened(&store), 921);
    assert!(thread.entries().iter().eq(&store.read(&session(1)).unwrap()));
}

/// Rows are believed only as far as they are the journal's lines.
#[test]
fn wrong_rows_are_read_from_the_journal_and_stored_again() {
    let (_home, store) = home();
    saved(&store, 2, FORMAT_VERSION);
    type RowHarm = fn(&Rows) -> Result<(), RowsError>;
    let changes: [RowHarm; 5] = [
        // Missing.
        |rows| rows.remove_lines(&session(1), 300..301),
        // Damaged.
        |rows| rows.put_line(&session(1), 300, b"{}"),
        // Swapped with another row of the session, and with that of another session.
        |rows| rows.put_line(&session(1), 300, &rows.line(&session(1), 301)?.unwrap()),
        |rows| rows.put_line(&session(1), 300, &rows.line(&session(2), 300)?.unwrap()),
        // A page of another session, with an unbroken chain.
        |rows| {
            let lines = rows.lines(&session(2), 0..256)?;
            (0..).zip(&lines).try_for_each(|(entry, line)| rows.put_line(&session(1), entry, line))
        },
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        with_rows(&store, change);
        assert_eq!(opened(&store), 601, "change {nth}");
        store.settle();
        with_rows(&store, |rows| {
            for entry in [0, 255, 300, 301] {
                let line = journal_text(&store).lines().nth(entry).unwrap().to_owned();
                assert_eq!(rows.line(&session(1), entry as u64)?, Some(line.into_bytes()), "change {nth}");
            }
            Ok(())
        });
    }
}

/// A state is used only with the journal that it was made from.
#[test]
fn the_whole_journal_is_read_if_the_state_is_not_that_of_its_beginning() {
    type TextHarm = fn(&str) -> String;
    let changes: [(&str, TextHarm); 4] = [
        ("shorter", |text| text.lines().take(500).map(|line| format!("{line}\n")).collect()),
        ("damaged behind the state", |text| text.replacen("\"more\"", "\"many\"", 1)),
        ("damaged at the state", |text| text.replacen("prompt 599", "prompt 999", 1)),
        ("an incomplete line at the end", |text| format!("{text}{{\"crc\":")),
    ];
    for (what, change) in changes {
        let (_home, store) = home();
        let changed = change(&journal_text(&store));
        assert_ne!(changed, journal_text(&store));
        fs::write(store.paths.journal(&session(1)), changed).unwrap();
        assert_eq!(opened(&store), 0, "{what}");
    }
    // A backup of a session that went on differently.
    let (_home, store) = home();
    let text = journal_text(&store);
    let kept: String = text.lines().take(400).map(|line| format!("{line}\n")).collect();
    fs::write(store.paths.journal(&session(1)), kept).unwrap();
    fs::remove_file(store.paths.sync_mark(&session(1))).unwrap();
    let (mut journal, entries) = store.load(&session(1)).unwrap();
    let mut thread = Thread::replay(entries).unwrap();
    append(&mut journal, &mut thread, 300);
    drop(journal);
    assert_eq!(opened(&store), 0, "another continuation");
}

/// The older part of a journal is examined after the session was opened without reading it.
#[test]
fn damage_in_the_part_that_was_not_read_is_found_a_moment_later() {
    let (_home, store) = home();
    let damaged = journal_text(&store).replacen("prompt 100\"", "prompt 10O\"", 1);
    fs::write(store.paths.journal(&session(1)), damaged).unwrap();
    let (journal, thread) = store.open(&session(1)).unwrap();
    assert_eq!(thread.entries().older(), 601);
    store.settle();
    assert!(matches!(journal.can_append(), Err(StoreError::DamageFound(_))));
    // The line is still in sled.
    assert!(
        matches!(&thread.entries()[101].change, Change::Commanded { typed, .. } if typed.ends_with(" prompt 100"))
    );
    drop(journal);
    let (mut journal, _) = store.open(&session(1)).unwrap();
    assert!(matches!(journal.append(prompted("x")), Err(StoreError::Damaged { lost: 0, .. })));
}

/// A damaged line that sled has is written again when the user accepts the damage.
#[test]
fn a_repair_restores_what_is_in_the_index() {
    let (home, store) = home();
    let before = store.read(&session(1)).unwrap();
    let text = journal_text(&store);
    let lines: Vec<&str> = text.lines().collect();
    // Two neighbours are damaged, and one is gone.
    let damaged: String = (0..lines.len())
        .filter(|at| *at != 400)
        .map(|at| match at {
            100 | 101 => format!("{}\n", lines[at].replacen("prompt", "prompd", 1)),
            _ => format!("{}\n", lines[at]),
        })
        .collect();
    fs::write(store.paths.journal(&session(1)), &damaged).unwrap();
    let found = store.check().unwrap().findings.into_iter().find_map(|finding| finding.todo).unwrap();
    assert!(found.ends_with("restores everything that is missing from the index"), "{found}");
    let (mut journal, entries) = store.load(&session(1)).unwrap();
    assert_eq!(entries, before, "it can be read");
    let problem = journal.damage().unwrap().to_string();
    assert!(problem.contains("3 entries are in the index and will be restored"), "{problem}");
    let acceptance = journal.acceptance().unwrap();
    assert_eq!(acceptance, Change::DamageAccepted { places: 2, entries: 0 });
    journal.append(acceptance).unwrap();
    journal.append(prompted("it goes on")).unwrap();
    journal.syncer().sync().unwrap();
    drop(journal);
    store.settle();
    let compared = store.check().unwrap().index;
    assert!(
        matches!(compared, IndexState::Agrees { .. }),
        "the row in the list is that of the journal: {compared:?}"
    );
    // Without sled, too: the lines are in the journal again.
    fs::remove_dir_all(home.path().join("data/db")).unwrap();
    let (journal, entries) = store.load(&session(1)).unwrap();
    assert_eq!(entries[..before.len()], before);
    assert_eq!(entries.len(), before.len() + 2);
    assert!(journal.damage().is_none());
    assert!(journal_text(&store).starts_with(&damaged), "what was there is unchanged");
}

#[test]
fn an_index_that_is_rewritten_keeps_what_a_repair_needs() {
    let (_home, store) = home();
    let damaged = journal_text(&store).replacen("prompt 100\"", "prompt 10O\"", 1);
    fs::write(store.paths.journal(&session(1)), damaged).unwrap();
    store.compact_index().unwrap();
    with_rows(&store, |rows| {
        assert!(rows.line(&session(1), 101)?.is_some() && rows.line(&session(1), 102)?.is_none());
        Ok(())
    });
    assert_eq!(
        store.load(&session(1)).unwrap().0.acceptance(),
        Some(Change::DamageAccepted { places: 1, entries: 0 })
    );
}

/// A journal has lost its end. The rows behind a wrong one continue from that, and not from the journal.
#[test]
fn rows_that_continue_from_a_wrong_row_restore_nothing() {
    let (_home, store) = home();
    saved(&store, 2, FORMAT_VERSION);
    let short: String = journal_text(&store).lines().take(500).map(|line| format!("{line}\n")).collect();
    fs::write(store.paths.journal(&session(1)), short).unwrap();
    with_rows(&store, |rows| {
        let lines = rows.lines(&session(2), 500..601)?;
        (500..).zip(&lines).try_for_each(|(entry, line)| rows.put_line(&session(1), entry, line))
    });
    let (_, entries) = store.load(&session(1)).unwrap();
    assert!(entries[500..].iter().all(|entry| matches!(entry.change, Change::Lost { .. })));
}

/// The line of another session, or one that the journal never had, restores nothing.
#[test]
fn a_wrong_row_restores_nothing() {
    let (_home, store) = home();
    saved(&store, 2, FORMAT_VERSION);
    let damaged = journal_text(&store).replacen("prompt 100\"", "prompt 10O\"", 1);
    fs::write(store.paths.journal(&session(1)), damaged).unwrap();
    with_rows(&store, |rows| rows.put_line(&session(1), 101, &rows.line(&session(2), 101)?.unwrap()));
    let (journal, entries) = store.load(&session(1)).unwrap();
    assert!(matches!(entries[101].change, Change::Lost { entries: 1 }));
    assert_eq!(journal.acceptance(), Some(Change::DamageAccepted { places: 1, entries: 1 }));
}

#[test]
fn a_state_of_another_build_or_a_damaged_one_is_not_used() {
    let (_home, store) = home();
    with_rows(&store, |rows| {
        let mut state: SavedThread = rows::decode(&rows.thread(&session(1))?.unwrap()).unwrap();
        state.fold = "another".to_owned();
        rows.put_thread(&session(1), 601, &state)
    });
    assert_eq!(opened(&store), 0);
    let (_home, store) = home();
    with_rows(&store, |rows| {
        let state: SavedThread = rows::decode(&rows.thread(&session(1))?.unwrap()).unwrap();
        rows.remove_thread(&session(1))?;
        // A crash has left the beginning of a newer one.
        rows.put_thread(&session(1), 601, &state)?;
        rows.put_part_of_thread(&session(1), 602, b"\x02")
    });
    assert_eq!(opened(&store), 0);
}

/// Lines of the first format are not chained.
#[test]
fn a_journal_of_the_first_format_is_always_read_whole() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::new(&Paths::below(home.path()));
    saved(&store, 1, 1);
    assert_eq!(opened(&store), 0);
}

#[test]
fn deleting_a_session_removes_its_rows() {
    let (_home, store) = home();
    saved(&store, 2, FORMAT_VERSION);
    store.delete(&session(1)).unwrap();
    with_rows(&store, |rows| {
        assert!(rows.lines(&session(1), 0..u64::MAX)?.is_empty());
        assert!(rows.thread(&session(1))?.is_none() && rows.followed(&session(1))?.is_none());
        assert_eq!(rows.lines(&session(2), 0..u64::MAX)?.len(), 621);
        Ok(())
    });
}

/// Whatever happens to sled's files, a session is opened with exactly what was confirmed: bits are flipped, rows are lost or
/// exchanged, and the directory is removed, replaced by an older one, or by one that was copied in the middle of the work.
#[test]
fn damaged_missing_and_old_databases_are_never_believed() {
    let mut resumed = 0;
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (home, store) = home();
        let mut confirmed = store.read(&session(1)).unwrap();
        let (db, old) = (store.paths.db(), home.path().join("old"));
        let copy = |from: &Path, to: &Path| {
            if !from.exists() {
                return;
            }
            let _ = fs::remove_dir_all(to);
            let copied = std::process::Command::new("cp").arg("-r").arg(from).arg(to).status();
            assert!(copied.unwrap().success());
        };
        copy(&db, &old);
        for _ in 0..8 {
            let (mut journal, mut thread) = store.open(&session(1)).unwrap();
            assert!(thread.entries().iter().eq(&confirmed), "seed {seed}: other entries than were confirmed");
            let folded = Thread::replay(confirmed.iter().cloned()).unwrap();
            let state = |thread: &Thread| serde_json::to_value(thread.state()).unwrap();
            assert_eq!(state(&thread), state(&folded), "seed {seed}: another state");
            resumed += usize::from(thread.entries().older() > 0);
            append(&mut journal, &mut thread, rng.u64(1..80));
            journal.syncer().sync().unwrap();
            let (head, writer) = journal.split();
            if rng.bool() {
                head.save_thread(&thread);
            }
            if rng.u8(0..3) == 0 {
                copy(&db, &old);
            }
            confirmed = thread.entries().iter().cloned().collect();
            drop((head, writer));
            store.settle();
            let entry = rng.u64(1..confirmed.len() as u64);
            match rng.u8(0..6) {
                0 => {}
                1 => fs::remove_dir_all(&db).unwrap(),
                2 => copy(&old, &db),
                what @ 3..5 => {
                    // Damage of an earlier round may keep sled from being opened, or make it panic.
                    let _ = std::panic::catch_unwind(|| {
                        let rows = Rows::open(&db)?;
                        if what == 3 {
                            rows.remove_lines(&session(1), entry..entry + 9)?;
                        } else {
                            let other = rows.line(&session(1), entry)?.unwrap_or_default();
                            rows.put_line(&session(1), entry / 2, &other)?;
                        }
                        rows.close(&db);
                        Ok::<_, RowsError>(())
                    });
                }
                _ => {
                    let path = db.join("db");
                    let mut bytes = fs::read(&path).unwrap();
                    for _ in 0..8 {
                        let at = rng.usize(..bytes.len());
                        bytes[at] ^= 1 << rng.u8(0..8);
                    }
                    fs::write(&path, bytes).unwrap();
                }
            }
        }
    }
    assert!(resumed > 40, "only {resumed} of 160 openings used a saved state");
}
