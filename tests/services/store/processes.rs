//! Tests that need a separate process: kills, a full disk, and a panic inside sled that must not affect other tests.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use epitome::paths::Paths;
use epitome::store::{Header, Store, StoreError};
use epitome::thread::*;
use epitome_test_harness::own_process;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{BIG, Home, finished, id, opened, said, titled};

/// The task of the child process, which is passed in `EPITOME_TEST_STORY`.
#[derive(Clone, Copy, Debug)]
enum Story {
    DamagedSled,
    WriterThatIsKilled,
    WriterAtItsLimit,
}

impl Story {
    const ALL: [Story; 3] = [Story::DamagedSled, Story::WriterThatIsKilled, Story::WriterAtItsLimit];

    /// A command that runs this test program as the child process; `shell` is the script that starts it.
    fn command(self, home: &Home, shell: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", shell, "sh"]).arg(own_process::program());
        command.args(own_process::arguments(concat!(module_path!(), "::child_process_runs_its_story")));
        command.env("EPITOME_TEST_HOME", home.directory.path());
        command.env("EPITOME_TEST_STORY", format!("{self:?}"));
        command
    }

    fn play(self, store: &Store) {
        match self {
            Story::DamagedSled => go_on_over_a_damaged_sled(store),
            Story::WriterThatIsKilled => write_until_killed(store),
            Story::WriterAtItsLimit => write_beyond_the_limit(store),
        }
    }
}

/// The entry point of the child process. Does nothing in a normal test run, in which no story is set.
#[test]
fn child_process_runs_its_story() {
    let Ok(name) = std::env::var("EPITOME_TEST_STORY") else { return };
    let story = Story::ALL.into_iter().find(|story| format!("{story:?}") == name);
    let home = PathBuf::from(std::env::var_os("EPITOME_TEST_HOME").expect("a story has a home"));
    story.expect("a known story").play(&Store::new(&Paths::below(&home)));
}

#[test]
fn a_damaged_sled_index_is_rebuilt_while_sessions_continue() {
    let home = Home::new();
    for number in 0..20 {
        home.session(number, &[said("Hello"), finished(&"output ".repeat(500)), titled("Session")]);
    }
    let store = home.store();
    let expected = store.list().unwrap().headers;
    store.settle();
    let files: Vec<PathBuf> = fs::read_dir(home.data().join("db"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    assert!(files.len() >= 2, "{files:?}");
    for (entries, file) in (5..).zip(&files) {
        // Deterministic noise.
        let mut random = fastrand::Rng::with_seed(7);
        let length = fs::metadata(file).map_or(4096, |metadata| metadata.len().max(64)) as usize;
        fs::write(file, (0..length).map(|_| random.u8(..)).collect::<Vec<u8>>()).unwrap();

        // In a child process, because a panic in sled can make a later one in the same process hang.
        let output = Story::DamagedSled.command(&home, r#"exec "$@""#).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("it went on"), "{}: {said}", file.display());
        assert_eq!(home.load(&id(3)).unwrap().len(), entries);
    }
    let listed = home.store().list().unwrap();
    assert!(listed.problems.is_empty());
    let others = |headers: Vec<Header>| -> Vec<Header> {
        headers.into_iter().filter(|header| header.session != id(3)).collect()
    };
    assert_eq!(others(listed.headers), others(expected));
}

fn go_on_over_a_damaged_sled(store: &Store) {
    assert_eq!(store.list().unwrap().headers.len(), 20);
    let (mut journal, entries) = store.load(&id(3)).unwrap();
    let next = journal.append(titled("Session")).unwrap();
    assert_eq!(next.seq.0, entries.len() as u64);
    drop(journal);
    store.settle();
    let headers = store.list().unwrap().headers;
    assert_eq!(headers.len(), 20);
    assert_eq!(headers.iter().find(|header| header.session == id(3)).unwrap().entries, next.seq.0 + 1);
    println!("it went on");
}

#[test]
fn nothing_synced_is_lost_when_the_process_is_killed() {
    let home = Home::new();
    let mut known = 0;
    for acknowledgements in [1, 3, 10, 30, 60] {
        let mut writer = Story::WriterThatIsKilled
            .command(&home, r#"exec "$@""#)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines().map(Result::unwrap);
        // The first output of libtest may share the line with the first acknowledgement.
        let acknowledged =
            lines.filter_map(|line| line.rsplit_once("synced ").map(|(_, n)| n.parse::<u64>().unwrap()));
        let last = acknowledged.take(acknowledgements).last().unwrap();
        writer.kill().unwrap();
        writer.wait().unwrap();

        let entries = home.load(&id(1)).unwrap();
        assert!(entries.len() as u64 > last, "{} entries, entry {last} was synced", entries.len());
        assert!(entries.len() as u64 > known);
        known = entries.len() as u64;
        assert!(entries.iter().enumerate().all(|(n, entry)| entry.seq == Seq(n as u64)));
    }
    let store = home.store();
    assert_eq!(store.list().unwrap().headers[0].entries, known);
    store.settle();
    assert_eq!(home.store().list().unwrap().headers[0].entries, known);
}

fn write_until_killed(store: &Store) {
    let mut journal = match store.load(&id(1)) {
        Ok((journal, _)) => journal,
        Err(_) => store.create(&id(1), opened(&id(1))).unwrap().0,
    };
    let syncer = journal.syncer();
    loop {
        let entry = journal.append(finished(&"output ".repeat(200))).unwrap();
        if entry.seq.0.is_multiple_of(2) {
            syncer.sync().unwrap();
            println!("synced {}", entry.seq.0);
        }
    }
}

#[test]
fn a_partial_write_is_rolled_back_and_the_next_one_may_succeed() {
    let home = Home::new();
    // A process that exceeds its file size limit gets a signal before the error, which would kill it.
    let output = Story::WriterAtItsLimit.command(&home, r#"trap "" XFSZ; exec "$@""#).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("it went on"));
}

fn write_beyond_the_limit(store: &Store) {
    let (mut journal, first) = store.create(&id(1), opened(&id(1))).unwrap();
    let mut entries = vec![first];
    let before = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(10_000), maximum: before.maximum }).unwrap();
    let text = "x".repeat(700);
    let refused = loop {
        match journal.append(titled(&text)) {
            Ok(entry) => entries.push(entry),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Io { doing: "append to", .. }), "{refused}");
    assert!(entries.len() > 10);
    assert_eq!(store.read(&id(1)).unwrap(), entries, "half a line was taken back");
    assert!(journal.append(titled(&text)).is_err());
    // Without its blob, an entry is not written either.
    assert!(journal.append(finished(&"x".repeat(BIG))).is_err());

    setrlimit(Resource::Fsize, before).unwrap();
    entries.push(journal.append(titled(&text)).unwrap());
    entries.push(journal.append(finished(&"x".repeat(BIG))).unwrap());
    journal.syncer().sync().unwrap();
    drop(journal);
    let (_, loaded) = store.load(&id(1)).unwrap();
    assert_eq!(loaded, entries);
    println!("it went on");
}
