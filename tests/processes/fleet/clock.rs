//! A wall clock that jumps by hours, in both directions, while sessions are open. Leases use the database's clock, and a process
//! measures how long something takes with its monotonic clock. Needs libfaketime.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use epitome_test_harness::agent::{agent_text, obey};
use epitome_test_harness::postgres::PostgresServer;
use epitome_test_harness::user::User;
use serde_json::{Value, json};

use super::machine;

/// The library that changes the clock of a program; `None`, with a message, if it is not installed.
fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let found =
        folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: libfaketime is not installed");
    }
    found
}

/// The same user, whose agents do everything in one process, with a clock that the file `clock` sets.
fn with_clock(mut user: User, library: &PathBuf) -> User {
    user.write("clock", "+0");
    user.set("LD_PRELOAD", library);
    user.set("FAKETIME_TIMESTAMP_FILE", user.home().join("clock"));
    user.set("FAKETIME_NO_CACHE", "1");
    user.set("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    user.standalone()
}

#[test]
fn a_jump_of_the_clock_changes_nothing() {
    let Some(library) = library() else { return };
    let Some(database) = PostgresServer::start() else { return };
    let address = PostgresServer::address(&[&database]);
    for (user, other) in [(User::with_model(obey), None), (machine(&address), Some(machine(&address)))] {
        let user = with_clock(user, &library);
        let mut agent = user.start_trusted();
        let session = user.new_session(&mut agent);
        let mut last = agent.turn(&session, "say 0").1;
        for (number, jump) in ["+5h", "-5h", "+400d", "-1h"].into_iter().enumerate() {
            assert_eq!(last, "end_turn");
            user.write("clock", jump);
            let words = format!("say {}", number + 1);
            let (updates, reason) = agent.turn(&session, &words);
            assert_eq!(agent_text(&updates), format!("You said {}.", number + 1), "{jump}");
            last = reason;
            // A command has its time limit whatever the clock says.
            let (_, reason) = agent.turn(&session, "run sleep 0.1");
            assert_eq!(reason, "end_turn", "{jump}");
            // The other machine watches the lease for longer than it lasts.
            if let Some(other) = &other {
                let (_, answer) = user.try_load(&mut other.start_trusted(), &session);
                assert!(answer["error"].to_string().contains("is open in"), "{jump}: {answer}");
            }
        }
        agent.call("session/close", json!({ "sessionId": session }));
        drop(agent);
        let log = match &other {
            Some(_) => database.sql("select line from epitome_entry order by seq"),
            None => std::fs::read_to_string(user.journal(&session)).expect("a journal"),
        };
        let entries = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let times: Vec<u64> = entries.filter_map(|entry| entry["at"].as_u64()).collect();
        let real = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_millis() as u64;
        assert!(times.last().is_some_and(|last| *last > real + 300 * 24 * 3_600_000), "the clock has jumped");
        assert!(times.len() > 10 && times.is_sorted(), "no entry is older than the one before it: {times:?}");
    }
}
