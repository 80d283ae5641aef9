//! The index matches the journals, whatever happens to sled.

use super::super::Store;
use super::super::line::Bodies;
use super::super::scan::Scan;
use super::*;
use epitome_files::paths::Paths;
use epitome_simulated_disk::{InjectedFault, SimDisk};
use epitome_thread::{Change, FORMAT_VERSION, MessageId};

fn session(number: u64) -> SessionId {
    SessionId(format!("s_{number:020x}"))
}

fn titled(title: &str) -> Change {
    Change::Titled { title: title.to_owned() }
}

/// A prompt: sessions without one are not indexed.
fn prompted(typed: &str) -> Change {
    Change::Commanded { message: MessageId(0), typed: typed.to_owned() }
}

/// Writes a session with this many entries after the opening, and closes it.
fn write_session(store: &Store, number: u64, entries: usize) {
    let opened = Change::Opened { format: FORMAT_VERSION, session: session(number), cwd: "/w".into() };
    let (mut journal, _) = store.create(&session(number), opened).unwrap();
    (0..entries).for_each(|n| drop(journal.append(prompted(&n.to_string())).unwrap()));
}

/// Whether sled's header of a session matches its journal exactly.
fn agrees(store: &Store, number: u64) -> bool {
    store.settle();
    let header = scan::read_header(&store.paths, &session(number)).unwrap();
    let rows = Rows::open(&store.paths.db()).unwrap();
    let agrees = rows.headers().unwrap().get(&session(number)).is_some_and(|stored| **stored == header);
    rows.close(&store.paths.db());
    agrees
}

fn home() -> (tempfile::TempDir, Store) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::new(&Paths::below(home.path()));
    (home, store)
}

#[test]
fn sled_matches_the_journal() {
    let (_home, store) = home();
    write_session(&store, 1, 3);
    assert!(agrees(&store, 1));
    let (mut journal, _) = store.load(&session(1)).unwrap();
    journal.append(titled(&"x".repeat(60_000))).unwrap();
    journal.append(Change::Planned { steps: Vec::new() }).unwrap();
    assert!(agrees(&store, 1), "also after sled was closed and opened again");
}

#[test]
fn more_appends_than_the_queue_takes_are_indexed() {
    let (_home, store) = home();
    // The thread may or may not keep up with this many appends: both cases must give the same result.
    write_session(&store, 1, 10 * QUEUE_MAX);
    write_session(&store, 2, 1);
    assert!(agrees(&store, 1));
    assert!(agrees(&store, 2));
}

#[test]
fn a_journal_ahead_of_sled_is_caught_up() {
    let (home, store) = home();
    write_session(&store, 1, 3);
    store.settle();
    // Simulates a process that can't open sled.
    let lock = File::open(home.path().join("data/db.lock")).unwrap();
    lock.try_lock().unwrap();
    let other = Store::new(&Paths::below(home.path()));
    let (mut journal, _) = other.load(&session(1)).unwrap();
    journal.append(titled("unseen")).unwrap();
    drop(journal);
    other.settle();
    drop(lock);

    let (mut journal, _) = store.load(&session(1)).unwrap();
    journal.append(titled("seen")).unwrap();
    assert!(agrees(&store, 1));
}

/// While another process had sled open, each update read every waiting session's journal again, for nothing.
#[test]
fn no_journal_is_read_while_sled_is_unavailable() {
    let (home, store) = home();
    write_session(&store, 1, 1);
    store.settle();
    let lock = File::open(store.paths.db_lock()).unwrap();
    lock.try_lock().unwrap();
    let disk = SimDisk::new(1, home.path());
    disk.plan(1, InjectedFault::PowerLoss);
    let paths = StorePaths { disk: Arc::new(disk.clone()), ..store.paths.clone() };
    let pending = Arc::<PendingUpdates>::default();
    let mut thread = IndexThread::new(paths, pending.clone());
    for number in 0..100 {
        pending.read_from_journal([session(number)]);
        thread.process_updates();
    }
    assert!(!disk.has_failed(), "a journal was read");
    assert_eq!(pending.take().0.len(), 100, "all of them wait until sled can be opened");
}

#[test]
fn a_row_ahead_of_the_journal_is_replaced() {
    let (_home, store) = home();
    write_session(&store, 1, 5);
    store.settle();
    // A power loss removed the last two entries from the journal only.
    let path = store.paths.journal(&session(1));
    let bytes = std::fs::read(&path).unwrap();
    let scan = Scan::read(&session(1), &bytes, None, Bodies::Inline).unwrap();
    std::fs::write(&path, &bytes[..scan.lines[3].bytes.end + 1]).unwrap();

    let (mut journal, entries) = store.load(&session(1)).unwrap();
    assert_eq!(entries.len(), 4);
    journal.append(titled("another life")).unwrap();
    assert!(agrees(&store, 1));
}

#[test]
fn the_row_of_a_deleted_session_is_removed() {
    let (_home, store) = home();
    write_session(&store, 1, 5);
    write_session(&store, 2, 5);
    store.settle();
    store.delete(&session(1)).unwrap();
    assert!(agrees(&store, 2));
    let rows = Rows::open(&store.paths.db()).unwrap();
    assert!(!rows.headers().unwrap().contains_key(&session(1)));
}

#[test]
fn an_unreadable_database_is_set_aside_and_rebuilt() {
    let (home, store) = home();
    write_session(&store, 1, 5);
    write_session(&store, 2, 5);
    store.settle();
    std::fs::write(store.paths.db().join("conf"), "no configuration of sled's").unwrap();
    drop(store);

    let store = Store::new(&Paths::below(home.path()));
    let (mut journal, _) = store.load(&session(1)).unwrap();
    journal.append(titled("seen")).unwrap();
    assert!(agrees(&store, 1));
    assert!(agrees(&store, 2), "also sessions unchanged since");
    let names = std::fs::read_dir(&store.paths.data).unwrap();
    let aside =
        names.filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().starts_with("db.corrupt-"));
    assert_eq!(aside.count(), 1);
}

#[test]
fn a_panic_in_sled_only_retires_that_database() {
    let (_home, store) = home();
    write_session(&store, 1, 5);
    store.settle();
    let mut thread = IndexThread::new(store.paths.clone(), Arc::default());
    assert!(thread.with(|_| Ok(())).is_some());
    assert!(thread.with::<()>(|_| panic!("as sled does")).is_none());
    thread.process_updates();
    assert!(thread.open.is_some());
    thread.close();
    assert!(agrees(&store, 1));

    // Repeated damage must not fill the disk with retired directories.
    for _ in 0..2 * SET_ASIDE_MAX {
        thread.with::<()>(|_| panic!("as sled does"));
    }
    assert!(thread.given_up);
    let count = std::fs::read_dir(&store.paths.data).unwrap().count();
    assert!(count < 10, "{count}");
}
