//! The same operations with files and with PostgreSQL, and what only a database and several processes can do wrong.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connections::{Connections, SqlFailure, TRY_FOR, begin};
use super::{Postgres, StoreAddress};
use epitome_files::paths::Paths;
use epitome_store::{Journal, LogStore, SessionQuery, Store, StoreError, new_id};
use epitome_test_harness::postgres::PostgresServer;
use epitome_test_harness::relay::Relay;
use epitome_test_harness::within;
use epitome_thread::{Change, Entry, FORMAT_VERSION, Seq, SessionId, Thread};

/// A store in whichever of the servers accepts writes, of another process.
fn store(servers: &[&PostgresServer], home: &Path) -> Store {
    store_at(&PostgresServer::address(servers), home)
}

fn store_at(address: &str, home: &Path) -> Store {
    let address = StoreAddress::parse(address, |_| None).expect("an address");
    let place = address.place().to_owned();
    let postgres = Postgres::new(address).expect("threads");
    Store::elsewhere(&Paths::below(home), Arc::new(postgres), &place)
}

fn opened(session: &SessionId) -> Change {
    Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: "/w".into() }
}

fn titled(title: &str) -> Change {
    Change::Titled { title: title.to_owned() }
}

fn create(store: &Store) -> (SessionId, Journal) {
    let session = new_id();
    let (journal, _) = store.create(&session, opened(&session)).expect("a session");
    (session, journal)
}

fn titles(store: &Store, session: &SessionId) -> Vec<String> {
    let entries = store.read(session).expect("it is readable");
    let title = |entry: &Arc<Entry>| match &entry.change {
        Change::Titled { title } => Some(title.clone()),
        _ => None,
    };
    entries.iter().filter_map(title).collect()
}

/// The contract of every backend. `other` is another process with the same sessions.
fn contract(store: &Store, other: &Store) {
    let (session, mut journal) = create(store);
    assert!(matches!(store.create(&session, opened(&session)), Err(StoreError::Exists(_))));
    let big = "x".repeat(100_000);
    for title in ["first", "second \u{1f980}\n\u{0}", &big] {
        journal.append(titled(title)).expect("it is writable");
    }
    journal.syncer().sync().expect("it is durable");
    journal.can_append().expect("it is writable");

    // Everyone reads it, and nobody else writes or deletes it.
    assert_eq!(titles(other, &session), ["first", "second \u{1f980}\n\u{0}", &big]);
    assert!(other.is_in_use(&session));
    assert!(matches!(other.load(&session).map(drop), Err(StoreError::InUse(..))));
    assert!(matches!(other.delete(&session), Err(StoreError::InUse(..))));

    // It goes on elsewhere once it is closed.
    drop(journal);
    store.settle();
    let (mut journal, entries) = other.load(&session).expect("it is closed");
    assert_eq!(entries.len(), 4);
    journal.append(titled("third")).expect("it is writable");
    drop(journal);
    other.settle();
    let header = store.header(&session).expect("it is there");
    assert_eq!((header.entries, header.title.as_deref()), (5, Some("third")));
    assert_eq!(store.list().expect("a list").headers, [header]);

    // Copies.
    let fork = store.fork_with_origin(&session, Some(Seq(3))).expect("a fork").session;
    assert_eq!(titles(store, &fork)[..3], ["first", "second \u{1f980}\n\u{0}", &big]);
    let name = new_id();
    let entries = store.read(&session).expect("it is readable");
    assert!(matches!(store.insert(&session, &entries), Err(StoreError::Exists(_))));
    let mut named = entries.clone();
    named[0] = Arc::new(Entry { change: opened(&name), ..(*entries[0]).clone() });
    store.insert(&name, &named).expect("an import");
    assert_eq!(store.read(&name).expect("it is readable")[1..], entries[1..]);
    assert_eq!(store.list().expect("a list").headers.len(), 3);

    for session in [&session, &fork, &name] {
        store.delete(session).expect("it is closed");
        store.delete(session).expect("deleting it again does nothing");
        assert!(matches!(store.read(session), Err(StoreError::NotFound(_))));
        assert!(matches!(store.load(session).map(drop), Err(StoreError::NotFound(_))));
    }
    assert!(store.list().expect("a list").headers.is_empty());
}

#[test]
fn files_and_postgres_do_the_same() {
    let home = tempfile::tempdir().unwrap();
    let files = || Store::new(&Paths::below(home.path()));
    contract(&files(), &files());
    let Some(server) = PostgresServer::start() else { return };
    contract(&store(&[&server], home.path()), &store(&[&server], home.path()));
}

/// A session is copied there and back as the same bytes.
#[test]
fn a_session_is_copied_in_both_directions() {
    let Some(server) = PostgresServer::start() else { return };
    let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [files, back] = homes.each_ref().map(|home| Store::new(&Paths::below(home.path())));
    let postgres = store(&[&server], homes[0].path());
    let (session, mut journal) = create(&files);
    for title in ["first", &"x".repeat(100_000)] {
        journal.append(titled(title)).unwrap();
    }
    assert!(matches!(files.copy_to(&session, &postgres), Err(StoreError::InUse(..))));
    drop(journal);
    assert!(files.copy_to(&session, &postgres).expect("it is closed"));
    assert!(!files.copy_to(&session, &postgres).expect("it is there already"));
    assert!(postgres.copy_to(&session, &back).expect("it is closed"));
    assert_eq!(files.raw(&session).unwrap(), back.raw(&session).unwrap());
    let folded =
        [&files, &postgres, &back].map(|store| Thread::replay(store.read(&session).unwrap()).unwrap());
    assert!(folded.iter().all(|thread| thread.next_message() == folded[0].next_message()));
    postgres.load(&session).unwrap().0.append(titled("other")).unwrap();
    assert!(matches!(files.copy_to(&session, &postgres), Err(StoreError::Exists(_))));
}

/// A process that was stopped for longer than its lease lasts must not write into a session that another one continues.
#[test]
fn a_stale_holder_writes_nothing_and_is_read_only() {
    let Some(server) = PostgresServer::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let (old, new) = (store(&[&server], home.path()), store(&[&server], home.path()));
    let (session, mut stale) = create(&old);
    stale.append(titled("before")).unwrap();
    let mut journal = within("the end of the lease", || {
        // The old process may renew it at this moment.
        server.sql("update epitome_process set lease_until = now() - interval '1 hour'");
        new.load(&session).ok().map(|(journal, _)| journal)
    });
    journal.append(titled("after")).unwrap();
    for _ in 0..50 {
        let refused = stale.append(titled("stale")).expect_err("another process has the lease");
        assert!(matches!(&refused, StoreError::TakenOver { .. }), "{refused}");
    }
    assert!(matches!(stale.can_append(), Err(StoreError::TakenOver { .. })));
    assert!(matches!(stale.syncer().sync(), Err(StoreError::TakenOver { .. })));
    journal.append(titled("later")).unwrap();
    assert_eq!(titles(&new, &session), ["before", "after", "later"]);
    // Closing the stale one takes nothing from the new holder.
    drop(stale);
    old.settle();
    journal.append(titled("last")).unwrap();
}

/// After a daemon was killed, its front end loads the session again at once. That failed while the lease of the killed
/// process lasted, and the front end considered the session gone.
#[test]
fn opening_waits_for_the_lease_of_a_process_that_was_killed() {
    let Some(server) = PostgresServer::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let store = store(&[&server], home.path());
    let (session, journal) = create(&store);
    drop(journal);
    store.settle();
    server.sql(
        "insert into epitome_process values ('killed', now() + interval '1 second'); \
         update epitome_session set holder = 'killed', process = 'killed'",
    );
    let (mut journal, _) = store.load(&session).expect("nobody renews the lease");
    journal.append(titled("continued")).unwrap();
    assert!(matches!(store.load(&session).map(drop), Err(StoreError::InUse(..))), "this process has it");
}

/// Regression: a process died just after it had renewed its lease, and two others waited for its session. Their own leases ran
/// out meanwhile, and the second took the session from the first at once.
#[test]
fn one_of_two_that_wait_for_a_session_gets_it() {
    let Some(server) = PostgresServer::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let stores = [store(&[&server], home.path()), store(&[&server], home.path())];
    let (session, journal) = create(&stores[0]);
    drop(journal);
    stores[0].settle();
    server.sql(
        "insert into epitome_process values ('killed', now() + interval '4 seconds'); \
         update epitome_session set holder = 'killed', process = 'killed'",
    );
    let (opened, _) = all(stores.iter().collect(), |store| store.load(&session).map(|(journal, _)| journal));
    let (mut journals, refused): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
    assert!(matches!(&refused[..], [Err(StoreError::InUse(..))]), "{}", journals.len());
    let journal = journals[0].as_mut().unwrap();
    journal.append(titled("continued")).expect("nobody has taken it");
}

/// Regression: nothing renewed the lease of a process that was still reading the log that it had opened. If that took longer
/// than the lease, another one took the session, and the window that had opened it became read-only.
#[test]
fn a_session_whose_log_is_still_being_read_is_in_use() {
    let Some(server) = PostgresServer::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let (reading, other) = (store(&[&server], home.path()), store(&[&server], home.path()));
    let (session, journal) = create(&reading);
    drop(journal);
    reading.settle();
    let is_one = |sql: &str| (server.sql(sql).trim() == "1").then_some(());
    // Reading waits for it, as for a long log.
    let lock = "begin; lock table epitome_entry; select pg_sleep(6); commit";
    let locked = "select count(*) from pg_locks where granted and mode = 'AccessExclusiveLock' \
                  and relation = 'epitome_entry'::regclass";
    std::thread::scope(|scope| {
        scope.spawn(|| server.sql(lock));
        within("the lock", || is_one(locked));
        let opening = scope.spawn(|| reading.load(&session).map(drop));
        within("the lease", || is_one("select count(*) from epitome_session where holder is not null"));
        assert!(matches!(other.load(&session).map(drop), Err(StoreError::InUse(..))));
        opening.join().unwrap().expect("it is open here");
    });
}

/// A lease that has run out while nobody else took it is simply renewed.
#[test]
fn a_holder_continues_if_nobody_has_taken_over() {
    let Some(server) = PostgresServer::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let store = store(&[&server], home.path());
    let (session, mut journal) = create(&store);
    server.sql("update epitome_process set lease_until = now() - interval '1 second'");
    journal.append(titled("still here")).expect("nobody else wants it");
    assert_eq!(titles(&store, &session), ["still here"]);
}

/// Rows that are removed or changed by hand are damage, as in a file.
#[test]
fn damage_in_the_tables_is_noticed() {
    let Some(server) = PostgresServer::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let store = store(&[&server], home.path());
    let (session, mut journal) = create(&store);
    for title in ["a", "b", "c"] {
        journal.append(titled(title)).unwrap();
    }
    drop(journal);
    store.settle();
    server.sql("delete from epitome_entry where seq = 3");
    let (entries, damage) = store.read_with_damage(&session).unwrap();
    assert!(matches!(damage, Some(StoreError::Damaged { lost: 1, .. })), "{damage:?}");
    assert!(matches!(entries[3].change, Change::Lost { entries: 1 }));
    let (mut journal, _) = store.load(&session).unwrap();
    assert!(matches!(journal.append(titled("d")), Err(StoreError::Damaged { .. })));
    let acceptance = journal.acceptance().expect("there is damage");
    journal.append(acceptance).unwrap();
    journal.append(titled("d")).unwrap();
    drop(journal);
    store.settle();
    server.sql("update epitome_entry set line = replace(line, '\"b\"', '\"x\"') where seq = 2");
    assert!(store.read_with_damage(&session).unwrap().1.is_some());
}

/// A standby went away, so that each commit waited without end. Calls were given up after their time limit, but their
/// connections stayed, until the server refused everybody.
#[test]
fn a_call_that_is_given_up_leaves_no_connection() {
    let Some(server) = PostgresServer::start() else { return };
    let address = StoreAddress::parse(&PostgresServer::address(&[&server]), |_| None).expect("an address");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let connections = Connections::new(Arc::new(address), 1);
    runtime.block_on(async {
        connections.query("look", "select 1", Vec::new()).await.expect("the tables are made");
        let until = tokio::time::Instant::now() + Duration::from_millis(100);
        let given_up = connections.query_until(until, "select pg_sleep(3600)", &[]).await;
        assert!(matches!(given_up, Err(SqlFailure::Late)), "{given_up:?}");
        let waiting =
            "select from pg_stat_activity where query like '%sleep(3600)' and pid <> pg_backend_pid()";
        while !connections.query("look", waiting, Vec::new()).await.expect("an answer").is_empty() {}
    });
}

/// Regression: the network of a writer was cut in the transaction in which it took its own session back. Its row stayed locked,
/// and no other machine could open the session.
#[test]
fn a_transaction_of_a_client_that_is_silent_is_ended() {
    let Some(server) = PostgresServer::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let (_, _journal) = create(&store(&[&server], home.path()));
    let address = StoreAddress::parse(&PostgresServer::address(&[&server]), |_| None).expect("an address");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let connections = Connections::new(Arc::new(address), 2);
    let sql = "update epitome_session set epoch = epoch + 1 returning epoch";
    let locked = tokio::sync::Notify::new();
    let work = async |client: &mut tokio_postgres::Client| {
        let begun = begin(client).await?;
        begun.query_typed(sql, &[]).await?;
        locked.notify_one();
        std::future::pending::<Result<(), SqlFailure>>().await
    };
    runtime.block_on(async {
        let other = async {
            locked.notified().await;
            // Sooner than the silent one is given up by its own side.
            let until = tokio::time::Instant::now() + TRY_FOR - Duration::from_secs(1);
            connections.query_until(until, sql, &[]).await
        };
        tokio::select! {
            updated = other => assert_eq!(updated.expect("the row is not locked any longer").len(), 1),
            silent = connections.until(tokio::time::Instant::now() + TRY_FOR, work) => panic!("the row stayed locked: {silent:?}"),
        }
    });
}

/// A database that refused connections was reported as one that had not answered within 10 s: the last attempt had no time left.
#[test]
fn an_unreachable_database_is_reported_with_the_reason() {
    let address = "postgres://epitome@%2Fthere%2Fis%2Fno%2Fserver/postgres";
    let address = StoreAddress::parse(address, |_| None).expect("an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let connections = Connections::new(Arc::new(address), 1);
    let found = runtime.expect("a thread").block_on(connections.query("look", "select 1", Vec::new()));
    let message = found.expect_err("there is none").to_string();
    assert!(message.contains("No such file or directory"), "{message}");
}

/// Regression test: a primary that was stopped, not dead, still accepted connections, which its system did. Each attempt to
/// connect waited for it until the time of the call was over, and the second host was never tried.
#[test]
fn a_host_that_accepts_connections_and_is_silent_is_passed_over() {
    let Some(server) = PostgresServer::start() else { return };
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let both = format!("@{},", silent.local_addr().unwrap());
    let address = PostgresServer::address(&[&server]).replacen('@', &both, 1) + "&connect_timeout=1";
    let address = StoreAddress::parse(&address, |_| None).expect("an address");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let connections = Connections::new(Arc::new(address), 1);
    let found = runtime.block_on(connections.query("look", "select 1", Vec::new()));
    assert_eq!(found.expect("the second host answers").len(), 1);
}

/// The primary is killed while writers append, and the synchronous standby is promoted. `EPITOME_APPENDS=5000` for a longer
/// run.
#[test]
fn nothing_acknowledged_is_lost_when_the_primary_is_killed() {
    let appends =
        std::env::var("EPITOME_APPENDS").ok().and_then(|count| count.parse().ok()).unwrap_or(60_usize);
    let Some(mut primary) = PostgresServer::start() else { return };
    let standby = primary.standby();
    let home = tempfile::tempdir().unwrap();
    let both = store(&[&primary, &standby], home.path());
    let sessions: Vec<(SessionId, Journal)> = (0..4).map(|_| create(&both)).collect();
    let (reached, half) = std::sync::mpsc::channel();
    let writers: Vec<_> = sessions
        .into_iter()
        .map(|(session, mut journal)| {
            let reached = reached.clone();
            std::thread::spawn(move || {
                for nth in 0..appends {
                    if nth == appends / 2 {
                        reached.send(()).unwrap();
                    }
                    journal.append(titled(&nth.to_string())).expect("the standby takes over in time");
                }
                session
            })
        })
        .collect();
    half.recv().unwrap();
    primary.kill();
    standby.promote();
    let expected: Vec<String> = (0..appends).map(|nth| nth.to_string()).collect();
    for writer in writers {
        let session = writer.join().expect("it wrote everything");
        assert_eq!(titles(&both, &session), expected, "acknowledged lines, once each and in order");
    }
}

/// Prints how long appends take. `cargo test --workspace --lib latency -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn latency_of_appends() {
    let Some(mut server) = PostgresServer::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let measure = |server: &PostgresServer, what: &str| {
        for writers in [1, 8] {
            let store = store(&[server], home.path());
            let journals: Vec<Journal> = (0..writers).map(|_| create(&store).1).collect();
            let started = Instant::now();
            let threads = journals.into_iter().map(|mut journal| {
                std::thread::spawn(move || {
                    let append = |_| {
                        let began = Instant::now();
                        journal.append(titled(&"x".repeat(600))).unwrap();
                        began.elapsed()
                    };
                    (0..300).map(append).collect::<Vec<_>>()
                })
            });
            let threads: Vec<_> = threads.collect();
            let mut taken: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            let rate = taken.len() as f64 / started.elapsed().as_secs_f64();
            taken.sort();
            let at = |share: usize| taken[taken.len() * share / 100].as_secs_f64() * 1e3;
            eprintln!(
                "{what}, {writers} writers: median {:.1} ms, p99 {:.1} ms, {rate:.0} a second",
                at(50),
                at(99)
            );
        }
    };
    measure(&server, "one server");
    let _standby = server.standby();
    measure(&server, "with a synchronous standby");
}

/// Prints how long appends take when three processes have a thousand sessions open.
/// `cargo test --workspace --lib thousand_sessions -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn thousand_sessions() {
    const APPENDS_A_SECOND: u32 = 300;
    const THREADS: u32 = 30;
    const FOR: Duration = Duration::from_secs(20);
    let Some(mut server) = PostgresServer::start() else { return };
    let _standby = server.standby();
    let home = tempfile::tempdir().unwrap();
    let stores = [(); 3].map(|()| store(&[&server], home.path()));
    let mut journals: Vec<Vec<Journal>> = (0..THREADS).map(|_| Vec::new()).collect();
    for nth in 0..1_000 {
        journals[nth % THREADS as usize].push(create(&stores[nth % 3]).1);
    }
    for what in ["without an index for searches", "with it"] {
        if what == "with it" {
            server.sql("create extension pg_trgm");
            server.sql("create index epitome_entry_text on epitome_entry using gin (line gin_trgm_ops)");
        }
        let began = Instant::now();
        let pause = Duration::from_secs(1) * THREADS / APPENDS_A_SECOND;
        let mut taken: Vec<Duration> = std::thread::scope(|scope| {
            let work = |journals: &mut Vec<Journal>, nth: u32| {
                let mut taken = Vec::new();
                for round in 0.. {
                    let at = began + pause * round + pause * nth / THREADS;
                    if at > began + FOR {
                        return taken;
                    }
                    std::thread::sleep(at.saturating_duration_since(Instant::now()));
                    let count = journals.len();
                    let asked = Instant::now();
                    journals[round as usize % count].append(titled(&words(round * THREADS + nth))).unwrap();
                    taken.push(asked.elapsed());
                }
                taken
            };
            let threads =
                journals.iter_mut().zip(0..).map(|(journals, nth)| scope.spawn(move || work(journals, nth)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        taken.sort();
        let at = |share: usize| taken[taken.len() * share / 1_000].as_secs_f64() * 1e3;
        let rate = taken.len() as f64 / began.elapsed().as_secs_f64();
        eprintln!(
            "{what}: {rate:.0} appends a second, median {:.1} ms, p99 {:.1} ms, p99.9 {:.1} ms",
            at(500),
            at(990),
            at(999)
        );
    }
}

/// About 600 bytes of different words.
fn words(seed: u32) -> String {
    (0..100_u32).map(|nth| format!("{:x} ", (seed * 100 + nth).wrapping_mul(2_654_435_761) >> 12)).collect()
}

/// A log that is read by several pages has every line, and only those, once.
#[test]
fn a_long_log_is_read_by_page() {
    let Some(server) = PostgresServer::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let store = store(&[&server], home.path());
    let (session, mut journal) = create(&store);
    let expected: Vec<String> = (0..2 * super::PAGE).map(|nth| nth.to_string()).collect();
    journal.append(titled("first")).unwrap();
    drop(journal);
    store.settle();
    let mut entries = store.read(&session).unwrap();
    let name = new_id();
    entries.truncate(1);
    entries[0] = Arc::new(Entry { change: opened(&name), ..(*entries[0]).clone() });
    let at = entries[0].at;
    entries.extend(
        expected
            .iter()
            .zip(1..)
            .map(|(title, seq)| Arc::new(Entry { seq: Seq(seq), at, change: titled(title) })),
    );
    store.insert(&name, &entries).unwrap();
    assert_eq!(titles(&store, &name), expected);
}

/// Prints how long it takes to open a log of 100,000 entries.
#[test]
#[ignore = "a measurement"]
fn a_log_of_a_hundred_thousand_entries_opens() {
    let Some(server) = PostgresServer::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let store = store(&[&server], home.path());
    let (session, journal) = create(&store);
    drop(journal);
    store.settle();
    server.sql(
        "insert into epitome_entry select session, nth, 0, line from epitome_entry, generate_series(1, 99999) nth; \
         update epitome_session set entries = 100000",
    );
    let began = Instant::now();
    let lines = store.raw(&session).expect("it is readable").split(|byte| *byte == b'\n').count();
    assert_eq!(lines, 100_001);
    eprintln!("the lines: {:?}", began.elapsed());
    let name = new_id();
    let opening = Arc::new(Entry { seq: Seq(0), at: 1, change: opened(&name) });
    let entry = |seq| Arc::new(Entry { seq: Seq(seq), at: 1, change: titled(&words(seq as u32)) });
    let entries: Vec<Arc<Entry>> = std::iter::once(opening).chain((1..100_000).map(entry)).collect();
    let began = Instant::now();
    store.insert(&name, &entries).expect("an import");
    eprintln!("imported: {:?}", began.elapsed());
    let began = Instant::now();
    let (_, loaded) = store.load(&name).expect("it is closed");
    assert_eq!(loaded.len(), 100_000);
    eprintln!("opened: {:?}", began.elapsed());
}

/// Lists and searches read pages, and find the same as with files.
#[test]
fn pages_of_sessions_are_those_of_files() {
    let home = tempfile::tempdir().unwrap();
    let files = Store::new(&Paths::below(home.path()));
    let Some(server) = PostgresServer::start() else { return };
    let postgres = store(&[&server], home.path());
    let sessions: Vec<SessionId> = (0..5)
        .map(|nth| {
            let (session, mut journal) = create(&files);
            journal.append(titled(&format!("Build number {nth} of src/main.rs"))).unwrap();
            journal.append(Change::Archived { archived: nth == 3 }).unwrap();
            drop(journal);
            assert!(files.copy_to(&session, &postgres).unwrap());
            session
        })
        .collect();
    let pages = |query: SessionQuery| {
        [&files, &postgres].map(|store| {
            let listed = store.page(&query).expect("a page").headers;
            listed.into_iter().map(|header| header.session).collect::<Vec<_>>()
        })
    };
    let same = |query: SessionQuery| {
        let [files, postgres] = pages(query);
        assert_eq!(files, postgres);
        postgres
    };
    let all = same(SessionQuery::default());
    assert_eq!(all.len(), 5);
    let newest = postgres.header(&all[1]).expect("it is there");
    let after = Some((newest.updated_at, all[1].clone()));
    assert_eq!(same(SessionQuery { after, limit: Some(2), ..SessionQuery::default() }), all[2..4]);
    assert_eq!(same(SessionQuery { archived: Some(true), ..SessionQuery::default() }), sessions[3..4]);
    assert_eq!(
        same(SessionQuery { prefix: sessions[2].0.clone(), ..SessionQuery::default() }),
        sessions[2..3]
    );
    assert_eq!(same(SessionQuery { cwd: Some("/w".into()), ..SessionQuery::default() }).len(), 5);
    assert!(same(SessionQuery { cwd: Some("/other".into()), ..SessionQuery::default() }).is_empty());
    assert!(same(SessionQuery { has_prompt: true, ..SessionQuery::default() }).is_empty());
    // Words are a hint that only the database takes.
    let words = |words: &[&str]| SessionQuery {
        words: words.iter().map(|&word| word.to_owned()).collect(),
        ..SessionQuery::default()
    };
    assert_eq!(pages(words(&["BUILD", "SRC/main.rs"]))[1].len(), 5);
    assert!(pages(words(&["build", "missing"]))[1].is_empty());
}

/// A machine with its own network to the database, and its sessions with what was acknowledged in each.
struct FleetMachine {
    relay: Relay,
    store: Store,
    sessions: Vec<MachineSession>,
}

struct MachineSession {
    id: SessionId,
    journal: Journal,
    acknowledged: Vec<String>,
}

impl MachineSession {
    fn append(&mut self) -> Result<(), StoreError> {
        let title = self.acknowledged.len().to_string();
        self.journal.append(titled(&title))?;
        self.acknowledged.push(title);
        Ok(())
    }

    /// Opens the session on another machine and appends.
    fn on(store: &Store, (id, acknowledged): (SessionId, Vec<String>)) -> MachineSession {
        let (journal, _) = store.load(&id).expect("its process does not renew its lease");
        let mut session = MachineSession { id, journal, acknowledged };
        session.append().expect("it is open here");
        session
    }
}

/// All at the same time, and how long the last one took.
fn all<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> (Vec<R>, Duration) {
    let began = Instant::now();
    let done = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it works")).collect()
    });
    (done, began.elapsed())
}

/// Three machines with 50 sessions lose the primary, a whole machine, and the network of another one. Nothing that was
/// acknowledged is lost, and nothing is written by a machine that has lost a session. Prints what was measured.
#[test]
fn sessions_survive_the_loss_of_each_part() {
    const SESSIONS: usize = 50;
    const IN_TIME: Duration = Duration::from_secs(5);
    let Some(mut primary) = PostgresServer::start() else { return };
    let standby = primary.standby();
    let home = tempfile::tempdir().unwrap();
    let mut machines = [(); 3].map(|()| {
        let relay = Relay::to(&[&primary.socket(), &standby.socket()]);
        let store = store_at(&relay.address(), home.path());
        FleetMachine { relay, store, sessions: Vec::new() }
    });
    for nth in 0..SESSIONS {
        let machine = &mut machines[nth % 3];
        let (id, journal) = create(&machine.store);
        machine.sessions.push(MachineSession { id, journal, acknowledged: Vec::new() });
    }
    let every = |machines: &mut [FleetMachine; 3]| -> Duration {
        let sessions = machines.iter_mut().flat_map(|machine| &mut machine.sessions).collect();
        all(sessions, |session: &mut MachineSession| session.append().expect("its machine has it")).1
    };
    let usual = every(&mut machines);
    let report = |what: &str, took: Duration| {
        eprintln!("{what}: every session continues within {took:?}; undisturbed {usual:?}");
        assert!(took < IN_TIME + usual, "{what}: {took:?}");
    };

    // Half of the appends of a round are on their way.
    let promoted = std::thread::scope(|scope| {
        let appending = scope.spawn(|| every(&mut machines));
        primary.kill();
        standby.promote();
        let promoted = Instant::now();
        appending.join().expect("it works");
        promoted
    });
    every(&mut machines);
    report("the primary was killed and the standby promoted", promoted.elapsed());

    let [mut first, lost, mut cut] = machines;
    lost.relay.cut();
    let told = |sessions: &[MachineSession]| -> Vec<_> {
        sessions.iter().map(|session| (session.id.clone(), session.acknowledged.clone())).collect()
    };
    let (moved, took) = all(told(&lost.sessions), |session| MachineSession::on(&cut.store, session));
    report("a machine was lost", took);
    cut.sessions.extend(moved);

    cut.relay.cut();
    let mut stale = cut.sessions.split_off(cut.sessions.len() / 2);
    let known = told(&stale);
    let (refused, waited) = std::thread::scope(|scope| {
        let FleetMachine { sessions, relay, .. } = &mut cut;
        let refused = scope
            .spawn(|| all(stale.iter_mut().collect(), |session: &mut MachineSession| session.append()).0);
        let waiting = scope.spawn(|| {
            all(sessions.iter_mut().collect(), |session: &mut MachineSession| {
                session.append().expect("it is ours")
            })
        });
        let (moved, took) = all(known, |session| MachineSession::on(&first.store, session));
        report("the network of a machine was cut", took);
        first.sessions.extend(moved);
        relay.heal();
        let healed = Instant::now();
        waiting.join().expect("it works");
        (refused.join().expect("it works"), healed.elapsed())
    });
    report("the network was there again", waited);
    for refused in refused {
        assert!(matches!(refused, Err(StoreError::TakenOver { .. })), "{refused:?}");
    }

    let wrong = "select count(*) from (select epoch < lag(epoch) over (partition by session order by seq) as stale \
                 from epitome_entry) as entries where stale";
    assert_eq!(standby.sql(wrong).trim(), "0", "a stale machine has written");
    let mut entries = 0;
    for session in first.sessions.iter().chain(&cut.sessions) {
        assert_eq!(titles(&first.store, &session.id), session.acknowledged);
        assert_eq!(titles(&cut.store, &session.id), session.acknowledged);
        entries += session.acknowledged.len();
    }
    assert_eq!(first.sessions.len() + cut.sessions.len(), SESSIONS);
    eprintln!("{entries} acknowledged entries, none lost; {} stale appends, none written", stale.len());
}

/// A port of loopback that nothing listens at.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The meanings of `sslmode` that PostgreSQL documents, with a server that admits only connections with TLS, and one that
/// admits only connections without it.
#[test]
fn tls_verifies_as_much_as_the_address_asks_for() {
    let (port, plain_port) = (free_port(), free_port());
    let Some(server) = PostgresServer::with_tls(port, "hostssl") else { return };
    let Some(other) = PostgresServer::with_tls(plain_port, "hostnossl") else { return };
    let home = tempfile::tempdir().unwrap();
    let connect = |host: &str, options: &str| {
        let url = format!("postgres://epitome@{host}/postgres?hostaddr=127.0.0.1{options}");
        let address = StoreAddress::parse(&url, |_| None).map_err(|error| error.to_string())?;
        let postgres = Postgres::new(address).expect("threads");
        let store = Store::elsewhere(&Paths::below(home.path()), Arc::new(postgres), "a database");
        store.list().map(drop).map_err(|error| error.to_string())
    };
    let trusting = |file: &Path, mode: &str| format!("&sslmode={mode}&sslrootcert={}", file.display());
    let right = |mode| trusting(&server.authority(), mode);
    let (named, numbered) = (format!("localhost:{port}"), format!("127.0.0.1:{port}"));
    let plain = format!("localhost:{plain_port}");
    for (host, options) in [
        (&named, right("verify-full")),
        // The server's own certificate, as if it had signed itself.
        (&named, trusting(&server.authority().with_file_name("server.crt"), "verify-full")),
        (&numbered, right("verify-ca")),
        (&numbered, right("require")),
        (&numbered, "&sslmode=require".to_owned()),
        (&numbered, "&sslmode=prefer".to_owned()),
        (&numbered, String::new()),
        (&plain, String::new()),
        (&plain, "&sslmode=disable".to_owned()),
    ] {
        assert_eq!(connect(host, &options), Ok(()), "{host} {options}");
    }
    let untrusted = "sslrootcert names the certificates that are trusted";
    for (host, options, why) in [
        (&numbered, right("verify-full"), "use a name of the certificate as the host"),
        (&named, trusting(&other.authority(), "verify-full"), untrusted),
        (&named, trusting(&other.authority(), "require"), untrusted),
        (&named, "&sslmode=disable".to_owned(), "no encryption"),
        (&plain, right("verify-full"), untrusted),
        (&plain, "&sslmode=require".to_owned(), "SSL encryption"),
        (&named, "&sslmode=verify-full".to_owned(), "sslrootcert"),
        (&named, "&sslmode=verify-full&sslrootcert=system".to_owned(), untrusted),
        (&named, "&sslmode=require&sslrootcert=system".to_owned(), "needs sslmode=verify-full"),
        (&named, "&sslmode=allow".to_owned(), "not supported"),
        (&named, "&sslmode=verify-ca&sslrootcert=/missing".to_owned(), "/missing"),
    ] {
        let began = Instant::now();
        let refused = connect(host, &options).expect_err("it is not the server that is asked for");
        assert!(refused.contains(why), "{host} {options}: {refused}");
        assert!(began.elapsed() < TRY_FOR, "{host} {options}: another attempt would fail as well");
    }
}

/// A server without TLS: `prefer` does without, and `require` says so at once.
#[test]
fn a_server_without_tls_is_refused_if_the_address_requires_it() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The answer to the request for TLS, as the protocol defines it.
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
        stream.write_all(b"N").unwrap();
    });
    let url = format!("postgres://epitome@{address}/postgres?sslmode=require");
    let home = tempfile::tempdir().unwrap();
    let store = store_at(&url, home.path());
    let refused = store.list().unwrap_err().to_string();
    assert!(refused.contains("server does not support TLS; sslmode=disable"), "{refused}");
    answering.join().unwrap();
}

/// A body whose line was never written took its space for as long as its session existed.
#[test]
fn bodies_that_no_line_names_are_removed_after_a_day() {
    let Some(server) = PostgresServer::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let address = StoreAddress::parse(&PostgresServer::address(&[&server]), |_| None).unwrap();
    let postgres = Postgres::new(address).unwrap();
    let store = Store::elsewhere(&Paths::below(home.path()), Arc::new(postgres.clone()), "a database");
    let (session, mut journal) = create(&store);
    let long = "x".repeat(100_000);
    journal.append(titled(&long)).unwrap();
    let put = |session: &SessionId, hash: &str| postgres.blobs(session).put(hash, b"a body").unwrap();
    put(&session, "lost");
    put(&SessionId("s_interrupted".to_owned()), "imported");
    put(&session, "stored again");
    assert_eq!(postgres.remove_unused_bodies().unwrap(), 0, "their lines may be on their way");
    server.sql("update epitome_blob set stored_at = now() - interval '25 hours'");
    put(&session, "stored again");
    assert_eq!(postgres.remove_unused_bodies().unwrap(), 2);
    assert_eq!(server.sql("select count(*) from epitome_blob").trim(), "2");
    assert_eq!(titles(&store, &session), [long]);
}
