//! A hundred sessions killed at random times leave no process, temporary file or lock behind.

use epitome_test_harness::agent::{Agent, obey};
use epitome_test_harness::user::User;
use epitome_test_harness::within;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::orphans::processes_of;

const ROUNDS: usize = 20;
const SESSIONS_A_ROUND: usize = 5;

/// All files below a directory.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_below(&entry.path())),
            Ok(_) | Err(_) => files.push(entry.path()),
        }
    }
    files
}

fn start(user: &User, temporary: &Path) -> Agent {
    let mut command = user.agent_command(&["--mode", "full"]);
    command.env("TMPDIR", temporary);
    let mut agent = Agent::spawn(command);
    agent.call("initialize", serde_json::json!({ "protocolVersion": 1 }));
    agent
}

#[test]
fn a_hundred_killed_sessions_leave_nothing_behind() {
    let user = super::user(obey);
    let temporary = user.home().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let hook = user.own().join("hooks");
    fs::create_dir(&hook).unwrap();
    let hook = hook.join("looks");
    fs::write(&hook, "#!/bin/sh\n[ \"$1\" = hook ] && echo user.message && exit\ncat >/dev/null\n").unwrap();
    fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let next = AtomicU32::new(0);
    let mut sessions = Vec::new();
    for _ in 0..ROUNDS {
        let mut agent = start(&user, &temporary);
        for _ in 0..SESSIONS_A_ROUND {
            let session = user.new_session(&mut agent);
            let nth = next.fetch_add(1, Ordering::Relaxed);
            let words = match nth % 5 {
                0 => "run trap '' TERM; sleep 1000 & sleep 1000".to_owned(),
                1 => format!("run for i in 1 2 3 4 5 6 7 8; do echo {nth} >> grows; done; sleep 1000"),
                2 => "run setsid sleep 1000 & sleep 1000".to_owned(),
                3 => "hang".to_owned(),
                _ => format!("say {}", "words ".repeat(500)),
            };
            agent.prompt(&session, &words);
            sessions.push(session);
        }
        let until = std::time::Instant::now() + Duration::from_micros(chance.u64(0..150_000));
        while let Some(left) = until.checked_duration_since(std::time::Instant::now()) {
            drop(agent.next_within(left));
        }
        user.kill(agent);
    }
    within("the end of all that was started", || (processes_of(&user.own()) == 0).then_some(()));
    assert_eq!(sessions.len(), 100);

    // Each session can be opened, so its lock is free, and continues.
    let mut agent = start(&user, &temporary);
    for session in &sessions {
        user.load(&mut agent, session);
    }
    let (_, reason) = agent.turn(&sessions[0], "say more");
    assert_eq!(reason, "end_turn");
    agent.close_input();
    agent.ended();
    user.end_daemon();
    within("the end of the last one", || (processes_of(&user.own()) == 0).then_some(()));
    assert_eq!(files_below(&temporary), Vec::<PathBuf>::new(), "temporary files are left");
    let strays: Vec<PathBuf> = files_below(&user.own())
        .into_iter()
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with(".tmp")
                || name.ends_with(".tmp")
                || name.ends_with(".new")
                || name.ends_with(".sock")
        })
        .collect();
    // A file is complete when it gets its temporary name, and is renamed by the next system call. With a hundred kills,
    // one in between is rare.
    let is_complete = |path: &&PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(".epitome-");
    let complete = strays.iter().filter(is_complete).count();
    assert!(
        complete <= 1 && complete == strays.len(),
        "half-written files and dead sockets are left: {strays:?}"
    );
}
