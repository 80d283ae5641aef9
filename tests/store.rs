//! The durable store, as a session and the command line use it: what is appended is there again,
//! whatever happens to the process, the file or the index.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use epitome::paths::Paths;
use epitome::store::{Header, Store, StoreError};
use epitome::thread::*;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A home directory that goes with the test.
struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        Home { directory: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> Store {
        Store::new(&Paths::below(self.directory.path()))
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn journal(&self, session: &SessionId) -> PathBuf {
        self.data().join(format!("journals/{session}.jsonl"))
    }

    fn torn(&self, session: &SessionId) -> PathBuf {
        self.data().join(format!("journals/{session}.torn"))
    }

    /// Makes a session of these changes and closes it.
    fn session(&self, number: u64, changes: &[Change]) -> (SessionId, Vec<Arc<Entry>>) {
        let session = id(number);
        let (mut journal, first) = self.store().create(&session, opened(&session)).unwrap();
        let mut entries = vec![first];
        entries.extend(changes.iter().map(|change| journal.append(change.clone()).unwrap()));
        (session, entries)
    }

    /// Reads a session as a later process does.
    fn load(&self, session: &SessionId) -> Result<Vec<Arc<Entry>>, StoreError> {
        self.store().load(session).map(|(_, entries)| entries)
    }
}

fn id(number: u64) -> SessionId {
    SessionId::parse(&format!("s_{number:020x}")).unwrap()
}

fn opened(session: &SessionId) -> Change {
    Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: "/w/site".into() }
}

fn titled(title: &str) -> Change {
    Change::Titled { title: title.to_owned() }
}

fn said(text: &str) -> Change {
    let content = vec![Content::Text { text: text.to_owned() }];
    Change::Said { message: Message { id: MessageId(0), content }, origin: Origin::Person }
}

fn finished(text: &str) -> Change {
    let outcome = ToolOutcome::text(CallId("call_1".into()), OutcomeStatus::Completed, text);
    Change::ToolFinished { outcome }
}

const BIG: usize = 64 * 1024 + 1;

// ---- Ordinary days ----

#[test]
fn what_was_appended_is_there_when_the_session_is_loaded() {
    let home = Home::new();
    let store = home.store();
    let (mut journal, first) = store.create(&id(1), opened(&id(1))).unwrap();
    let second = journal.append(said("Fix the build")).unwrap();
    assert_eq!((first.seq, second.seq), (Seq(0), Seq(1)));
    drop(journal);

    let (mut journal, entries) = store.load(&id(1)).unwrap();
    assert_eq!(entries, [first, second]);
    assert_eq!(journal.append(titled("Build")).unwrap().seq, Seq(2));
    assert_eq!(store.read(&id(1)).unwrap().len(), 3);
}

#[test]
fn the_journal_is_private_text_that_a_person_can_read() {
    let home = Home::new();
    let (session, _) = home.session(1, &[titled("Build")]);
    let text = fs::read_to_string(home.journal(&session)).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert!(text.starts_with(r#"{"crc":""#) && text.ends_with("}\n"));
    assert_eq!(lines[1]["seq"], 1);
    assert_eq!(lines[1]["title"], "Build");

    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&home.journal(&session)), 0o600);
    assert_eq!(mode(&home.data().join("journals")), 0o700);
    assert_eq!(mode(&home.data()), 0o700);
}

#[test]
fn every_kind_of_change_comes_back_as_it_was() {
    let home = Home::new();
    let changes = one_of_each();
    let (session, entries) = home.session(1, &changes);
    let loaded = home.load(&session).unwrap();
    assert_eq!(loaded, entries);
    let stored: Vec<Change> = loaded[1..].iter().map(|entry| entry.change.clone()).collect();
    assert_eq!(stored, changes);
}

#[test]
fn an_unknown_session_is_not_found_and_a_known_one_not_made_twice() {
    let home = Home::new();
    let store = home.store();
    assert!(matches!(store.load(&id(1)), Err(StoreError::NotFound(_))));
    assert!(matches!(store.read(&id(1)), Err(StoreError::NotFound(_))));
    assert!(matches!(store.read(&SessionId("../../etc/passwd".into())), Err(StoreError::NotFound(_))));
    assert!(store.list().unwrap().headers.is_empty());
    assert!(!home.data().exists(), "asking makes nothing");

    home.session(1, &[]);
    assert!(matches!(store.create(&id(1), opened(&id(1))), Err(StoreError::Exists(_))));
}

#[test]
fn a_syncer_may_be_used_from_any_thread_and_as_often_as_one_likes() {
    let home = Home::new();
    let (mut journal, _) = home.store().create(&id(1), opened(&id(1))).unwrap();
    let syncer = journal.syncer();
    syncer.sync().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..20).for_each(|_| syncer.sync().unwrap()));
        }
        (0..50).for_each(|n| drop(journal.append(titled(&n.to_string())).unwrap()));
    });
    syncer.sync().unwrap();
    drop(journal);
    syncer.sync().unwrap();
    assert_eq!(home.load(&id(1)).unwrap().len(), 51);
}

// ---- One writer ----

#[test]
fn two_processes_never_write_one_session() {
    let home = Home::new();
    let (mut journal, _) = home.store().create(&id(1), opened(&id(1))).unwrap();
    let other = home.store();
    assert!(matches!(other.load(&id(1)), Err(StoreError::InUse(_))));
    assert!(matches!(other.delete(&id(1)), Err(StoreError::InUse(_))));
    journal.append(titled("still mine")).unwrap();
    assert_eq!(other.read(&id(1)).unwrap().len(), 2, "reading needs no lock");

    let syncer = journal.syncer();
    drop(journal);
    assert!(other.load(&id(1)).is_ok(), "a syncer that is still about does not hold the session");
    syncer.sync().unwrap();
}

#[test]
fn a_reader_leaves_a_half_written_line_alone() {
    let home = Home::new();
    let (session, entries) = home.session(1, &[titled("whole")]);
    let mut bytes = fs::read(home.journal(&session)).unwrap();
    bytes.extend_from_slice(br#"{"crc":"0123"#);
    fs::write(home.journal(&session), &bytes).unwrap();
    assert_eq!(home.store().read(&session).unwrap(), entries);
    assert_eq!(fs::read(home.journal(&session)).unwrap(), bytes);
    assert!(!home.torn(&session).exists());
}

// ---- Crashes and damage ----

#[test]
fn a_crash_at_any_byte_of_the_last_lines_leaves_all_entries_before_it() {
    let home = Home::new();
    let (session, entries) = home.session(1, &[said("Fix it"), titled("A"), titled("B")]);
    let whole = fs::read(home.journal(&session)).unwrap();
    let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
    for cut in ends[1]..whole.len() {
        fs::write(home.journal(&session), &whole[..cut]).unwrap();
        let _ = fs::remove_file(home.torn(&session));
        let kept = ends.iter().filter(|end| **end <= cut).count();

        let (mut journal, loaded) = home.store().load(&session).unwrap();
        assert_eq!(loaded, entries[..kept], "cut at {cut}");
        let torn = fs::read(home.torn(&session)).unwrap_or_default();
        assert_eq!(torn.strip_suffix(b"\n").unwrap_or_default(), &whole[ends[kept - 1]..cut]);

        let next = journal.append(titled("after the crash")).unwrap();
        assert_eq!(next.seq, Seq(kept as u64));
        drop(journal);
        assert_eq!(home.load(&session).unwrap().last(), Some(&next));
    }
}

#[test]
fn a_crash_in_the_first_line_is_a_session_that_never_was() {
    let home = Home::new();
    let (session, _) = home.session(1, &[]);
    let whole = fs::read(home.journal(&session)).unwrap();
    for cut in 0..whole.len() {
        fs::write(home.journal(&session), &whole[..cut]).unwrap();
        assert!(matches!(home.load(&session), Err(StoreError::NotFound(_))), "cut at {cut}");
        let listing = home.store().list().unwrap();
        assert!(listing.headers.is_empty() && listing.problems.is_empty());
    }
}

#[test]
fn broken_last_lines_are_kept_one_after_the_other() {
    let home = Home::new();
    let (session, _) = home.session(1, &[]);
    for torn in ["first", "second"] {
        let mut bytes = fs::read(home.journal(&session)).unwrap();
        bytes.extend_from_slice(torn.as_bytes());
        fs::write(home.journal(&session), bytes).unwrap();
        home.load(&session).unwrap();
    }
    assert_eq!(fs::read_to_string(home.torn(&session)).unwrap(), "first\nsecond\n");
}

#[test]
fn a_flipped_byte_in_the_last_line_costs_that_line_alone() {
    let home = Home::new();
    let (session, entries) = home.session(1, &[titled("A"), titled("B")]);
    let whole = fs::read(home.journal(&session)).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 1;
    for at in last..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(home.journal(&session), &bytes).unwrap();
        assert_eq!(home.load(&session).unwrap(), entries[..2], "byte {at}");
    }
}

#[test]
fn a_flipped_byte_before_the_last_line_is_named_and_nothing_is_touched() {
    let home = Home::new();
    let (session, entries) = home.session(1, &[titled("A"), titled("B")]);
    let (other, _) = home.session(2, &[titled("fine")]);
    let whole = fs::read(home.journal(&session)).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 1;
    for at in 0..last {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(home.journal(&session), &bytes).unwrap();
        let broken = 1 + whole[..at].iter().filter(|b| **b == b'\n').count() as u64;
        match home.load(&session) {
            Err(StoreError::Damaged { line, .. }) => assert_eq!(line, broken, "byte {at}"),
            unexpected => panic!("byte {at}: {unexpected:?}"),
        }
        assert_eq!(fs::read(home.journal(&session)).unwrap(), bytes);
        assert!(!home.torn(&session).exists());
        if broken > 1 {
            let (before, damage) = home.store().read_whole_part(&session).unwrap();
            assert_eq!(before, entries[..broken as usize - 1]);
            assert!(damage.unwrap().to_string().contains("doctor --repair"));
        }
    }
    assert!(home.load(&other).is_ok());
    // A listing trusts a length that did not change; here it did.
    fs::write(home.journal(&session), [&whole[..9], &whole[10..]].concat()).unwrap();
    let listing = home.store().list().unwrap();
    assert_eq!(listing.headers.iter().map(|header| &header.session).collect::<Vec<_>>(), [&other]);
    assert!(matches!(&listing.problems[..], [(named, StoreError::Damaged { .. })] if *named == session));
}

#[test]
fn a_whole_line_is_not_cut_off_with_the_broken_one_behind_it() {
    let home = Home::new();
    let (session, _) = home.session(1, &[titled("A"), titled("B")]);
    let mut bytes = fs::read(home.journal(&session)).unwrap();
    bytes.truncate(bytes.len() - 5);
    let newline = bytes.iter().rposition(|b| *b == b'\n').unwrap();
    bytes[newline] = b'!';
    fs::write(home.journal(&session), &bytes).unwrap();
    assert!(matches!(home.load(&session), Err(StoreError::Damaged { line: 2, .. })));
    assert_eq!(fs::read(home.journal(&session)).unwrap(), bytes);
}

#[test]
fn a_journal_of_the_future_is_refused_and_left_as_it_is() {
    let home = Home::new();
    let session = id(1);
    let future = Change::Opened { format: FORMAT_VERSION + 1, session: session.clone(), cwd: "/w".into() };
    drop(home.store().create(&session, future).unwrap());
    let mut bytes = fs::read(home.journal(&session)).unwrap();
    bytes.extend_from_slice(b"a last line as only the future writes it");
    fs::write(home.journal(&session), &bytes).unwrap();

    let found = FORMAT_VERSION + 1;
    assert!(matches!(home.load(&session), Err(StoreError::FutureFormat { found: f, .. }) if f == found));
    assert!(matches!(home.store().read(&session), Err(StoreError::FutureFormat { .. })));
    let listing = home.store().list().unwrap();
    assert!(matches!(&listing.problems[..], [(_, StoreError::FutureFormat { .. })]));
    assert_eq!(fs::read(home.journal(&session)).unwrap(), bytes);
    assert!(!home.torn(&session).exists());
}

#[test]
fn a_journal_under_another_sessions_name_is_not_taken_for_it() {
    let home = Home::new();
    let (session, _) = home.session(1, &[titled("A")]);
    fs::copy(home.journal(&session), home.journal(&id(2))).unwrap();
    assert!(matches!(home.load(&id(2)), Err(StoreError::Damaged { line: 1, .. })));
}

#[test]
fn an_entry_that_json_cannot_say_is_refused_and_the_journal_goes_on() {
    use std::os::unix::ffi::OsStrExt;
    let home = Home::new();
    let (mut journal, _) = home.store().create(&id(1), opened(&id(1))).unwrap();
    let path = Path::new(std::ffi::OsStr::from_bytes(b"/w/\xff")).to_path_buf();
    let refused = journal.append(Change::Allowed { rule: Rule::ReadsBelow { path } });
    assert!(matches!(refused, Err(StoreError::Unstorable { .. })));
    assert_eq!(journal.append(titled("A")).unwrap().seq, Seq(1));
}

// ---- Big bodies ----

#[test]
fn big_bodies_are_files_beside_the_journal_and_come_back_whole() {
    let home = Home::new();
    let image = Content::Image { mime_type: "image/png".into(), data: "iVBORw0KGgo=".into(), uri: None };
    let message = Message { id: MessageId(0), content: vec![image] };
    let changes = [
        finished(&"line\n".repeat(BIG)),
        Change::Said { message, origin: Origin::Person },
        finished("small"),
    ];
    let (session, entries) = home.session(1, &changes);
    assert!(fs::metadata(home.journal(&session)).unwrap().len() < 2_000);
    let blobs: Vec<_> =
        fs::read_dir(home.data().join("blobs").join(&session.0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(blobs.len(), 2);
    for blob in blobs {
        assert_eq!(blob.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let (journal, loaded) = home.store().load(&session).unwrap();
    assert_eq!(loaded, entries);
    journal.syncer().sync().unwrap();
}

#[test]
fn a_lost_blob_costs_its_body_and_not_the_thread() {
    let home = Home::new();
    let (session, entries) = home.session(1, &[said("Look"), finished(&"x".repeat(BIG)), said("Go on")]);
    fs::remove_dir_all(home.data().join("blobs")).unwrap();
    let loaded = home.load(&session).unwrap();
    assert_eq!(loaded[..2], entries[..2]);
    assert_eq!(loaded[3], entries[3]);
    let Change::ToolFinished { outcome } = &loaded[2].change else { panic!("{:?}", loaded[2]) };
    assert!(outcome.model_text().contains("is missing"), "{}", outcome.model_text());
    assert!(outcome.model_text().len() < 200);
}

#[test]
fn no_text_can_pass_for_a_moved_body() {
    let home = Home::new();
    let hash = "0".repeat(64);
    let forged = format!(r#"{{"crc":"00000000","blobs":{{"/title":"{hash}"}}}}"#);
    let input = json!({"blobs": {"/title": hash}, "type": "image", "data": "x"});
    let outcome = ToolOutcome {
        raw: Some(input),
        ..ToolOutcome::text(CallId("c".into()), OutcomeStatus::Completed, &*forged)
    };
    let (session, entries) = home.session(1, &[titled(&forged), Change::ToolFinished { outcome }]);
    assert_eq!(home.load(&session).unwrap(), entries);
}

// ---- Listing and deleting ----

#[test]
fn a_listing_shows_the_newest_first_and_what_each_is() {
    let home = Home::new();
    let model = ModelName("anthropic/claude".into());
    let usage = Usage::default();
    let (older, _) = home.session(
        7,
        &[
            Change::ModelChosen { model },
            said("Fix it"),
            titled("First title"),
            titled("Fix the build"),
            Change::TurnEnded { reason: StopReason::EndTurn, usage },
        ],
    );
    let (newer, entries) = home.session(3, &[]);
    let (mut journal, _) = home.store().load(&newer).unwrap();
    // The two may share a millisecond; then the larger id comes first.
    while journal.append(titled("later")).unwrap().at == entries[0].at {}
    drop(journal);

    let headers = home.store().list().unwrap().headers;
    assert_eq!(headers.iter().map(|header| &header.session).collect::<Vec<_>>(), [&newer, &older]);
    assert_eq!(headers[1].title.as_deref(), Some("Fix the build"));
    assert_eq!(headers[1].model.as_deref(), Some("anthropic/claude"));
    assert_eq!((headers[1].entries, headers[1].turns, headers[1].has_prompt), (6, 1, true));
    assert!(!headers[0].has_prompt);
    assert_eq!(headers[1].cwd, Path::new("/w/site"));
}

#[test]
fn the_listing_is_the_same_with_sled_without_it_and_after_a_gap() {
    let home = Home::new();
    let store = home.store();
    let mut expected: Vec<Header> = Vec::new();
    for number in 0..5 {
        let (mut journal, _) = store.create(&id(number), opened(&id(number))).unwrap();
        journal.append(said("Hello")).unwrap();
        journal.append(titled(&format!("Session {number}"))).unwrap();
        expected.push(journal.header().clone());
    }
    expected.sort_by(|a, b| (b.updated_at, &b.session).cmp(&(a.updated_at, &a.session)));

    assert_eq!(store.list().unwrap().headers, expected, "while it is written");
    store.settle();
    assert_eq!(home.store().list().unwrap().headers, expected, "from sled");
    assert!(home.data().join("db").exists());

    // A process that cannot have sled reads and writes on.
    let owner = home.store();
    owner.list().unwrap();
    let without = home.store();
    assert_eq!(without.list().unwrap().headers, expected);
    let (mut journal, _) = without.load(&id(2)).unwrap();
    journal.append(titled("Written without sled")).unwrap();
    drop(journal);
    without.settle();
    owner.settle();

    let listed = home.store().list().unwrap().headers;
    assert_eq!(listed.iter().find(|header| header.session == id(2)).unwrap().entries, 4);
    fs::remove_dir_all(home.data().join("db")).unwrap();
    assert_eq!(home.store().list().unwrap().headers, listed, "without sled");
}

#[test]
fn a_deleted_session_leaves_nothing_and_may_be_deleted_again() {
    let home = Home::new();
    let store = home.store();
    let (session, _) = home.session(1, &[finished(&"x".repeat(BIG))]);
    let (other, entries) = home.session(2, &[finished(&"x".repeat(BIG))]);
    fs::write(home.torn(&session), "torn").unwrap();
    store.list().unwrap();

    store.delete(&session).unwrap();
    assert!(!home.journal(&session).exists() && !home.torn(&session).exists());
    assert!(!home.data().join("blobs").join(&session.0).exists());
    assert!(matches!(store.load(&session), Err(StoreError::NotFound(_))));
    store.delete(&session).unwrap();
    store.delete(&SessionId("../other".into())).unwrap();

    assert_eq!(home.load(&other).unwrap(), entries, "the other one keeps its own blob");
    assert_eq!(store.list().unwrap().headers.len(), 1);
}

// ---- Whole processes ----

/// Runs one of the ignored tests below in a process of its own.
fn child(test: &str, home: &Home, shell: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", shell, "sh"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command.env("EPITOME_TEST_HOME", home.directory.path());
    command
}

#[test]
fn a_damaged_sled_is_rebuilt_while_sessions_go_on() {
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
        // Noise, but the same in every run.
        let mut random = fastrand::Rng::with_seed(7);
        let length = fs::metadata(file).map_or(4096, |metadata| metadata.len().max(64)) as usize;
        fs::write(file, (0..length).map(|_| random.u8(..)).collect::<Vec<u8>>()).unwrap();

        // In a process of its own, because a panic in sled can make a later one of the same process hang.
        let output = child("session_over_a_damaged_sled", &home, r#"exec "$@""#).output().unwrap();
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

#[test]
#[ignore = "started by the test above, in a process of its own"]
fn session_over_a_damaged_sled() {
    let Some(store) = given_store() else { return };
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

/// The home that `child` gave; none if the test was started by hand.
fn given_store() -> Option<Store> {
    let home = PathBuf::from(std::env::var_os("EPITOME_TEST_HOME")?);
    Some(Store::new(&Paths::below(&home)))
}

#[test]
fn nothing_that_was_synced_is_lost_when_the_process_is_killed() {
    let home = Home::new();
    let mut known = 0;
    for acknowledgements in [1, 3, 10, 30, 60] {
        let mut writer = child("writer_that_is_killed", &home, r#"exec "$@""#)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines().map(Result::unwrap);
        // What libtest prints first may share the line with the first acknowledgement.
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

#[test]
#[ignore = "started by the test above, in a process of its own"]
fn writer_that_is_killed() {
    let Some(store) = given_store() else { return };
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
fn a_write_that_fails_halfway_is_taken_back_and_the_next_one_may_work() {
    let home = Home::new();
    // A process that writes beyond its limit gets a signal, which would end it, before the error.
    let output = child("writer_at_its_limit", &home, r#"trap "" XFSZ; exec "$@""#).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("it went on"));
}

#[test]
#[ignore = "started by the test above, in a process of its own"]
fn writer_at_its_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Some(store) = given_store() else { return };
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
    // A blob that cannot be written is no entry either.
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

// ---- Any changes at all ----

/// One change of each kind. A new kind does not compile here until it has its place in the list.
fn one_of_each() -> Vec<Change> {
    let usage = Usage { input: 5, output: 4, cache_read: 3, cache_write: 2, thinking: 1 };
    let message = |id, content| Message { id: MessageId(id), content };
    let text = |text: &str| Content::Text { text: text.into() };
    let model = ModelName("anthropic/claude".into());
    let call = ToolCall {
        id: CallId("call_1".into()),
        name: "bash".into(),
        input: json!({"z": 1.1, "a": [null, true, 18446744073709551615u64, -3], "é": {"nested": "\u{0}\n"}}),
        card: Card {
            title: "Run".into(),
            kind: ToolKind::Execute,
            locations: vec![Location { path: "/w/a".into(), line: Some(3) }],
        },
    };
    let native = Native {
        provider: "anthropic".into(),
        model: "claude".into(),
        data: json!({"type": "thinking", "signature": "c2ln"}),
    };
    let changes = vec![
        Change::Framed {
            system: "You are an agent.".into(),
            tools: vec![ToolSpec {
                name: "bash".into(),
                description: "Runs".into(),
                schema: json!({"type": "object", "properties": {"z": {}, "a": {}}}),
            }],
        },
        Change::Queued { message: message(0, vec![text("wait")]) },
        Change::Commanded { message: MessageId(1), typed: "/compact".into() },
        Change::Said {
            message: message(
                1,
                vec![
                    text("look"),
                    Content::Image {
                        mime_type: "image/png".into(),
                        data: "aGk=".into(),
                        uri: Some("file:///a.png".into()),
                    },
                    Content::Resource { uri: "file:///a".into(), text: "a".into() },
                    Content::ResourceLink { uri: "file:///b".into(), name: "b".into() },
                ],
            ),
            origin: Origin::Queue { entry: Seq(2) },
        },
        Change::Replied {
            message: message(
                2,
                vec![
                    Content::Thinking { text: "hm".into(), native: Some(native) },
                    text("I run it"),
                    Content::Call(call),
                ],
            ),
            model: model.clone(),
            usage: Some(usage),
            cut: Some(Cut::Broken { reason: "reset".into() }),
        },
        Change::ToolFinished {
            outcome: ToolOutcome {
                call: CallId("call_1".into()),
                status: OutcomeStatus::Failed,
                content: vec![
                    OutcomeContent::Text { text: "no".into() },
                    OutcomeContent::Image { mime_type: "image/png".into(), data: "aGk=".into() },
                ],
                shown: vec![
                    Shown::Text { text: "no".into() },
                    Shown::Diff { path: "/w/a".into(), old: None, new: "b".into() },
                ],
                locations: vec![Location { path: "/w/a".into(), line: None }],
                raw: Some(json!({"stdout": "", "exitCode": 1})),
            },
        },
        Change::Compacted {
            through: Seq(3),
            summary: message(3, vec![text("so far")]),
            trigger: Trigger::Manual,
            focus: Some("tests".into()),
            tokens_before: 100,
            tokens_after: 10,
            model: None,
            usage: Some(usage),
        },
        Change::Undone { entry: Seq(6) },
        Change::Noted { message: MessageId(4), text: "undone".into() },
        Change::ModelChosen { model },
        Change::ModeChosen { mode: Mode::AcceptEdits },
        Change::ThoughtChosen { level: ThoughtLevel::Max },
        Change::Titled { title: "Title".into() },
        Change::Planned {
            steps: vec![PlanStep {
                content: "do".into(),
                status: PlanStatus::InProgress,
                priority: PlanPriority::High,
            }],
        },
        Change::Allowed { rule: Rule::Command { line: "cargo test".into() } },
        Change::TurnEnded { reason: StopReason::Cancelled, usage },
    ];
    let kinds: std::collections::BTreeSet<usize> = changes.iter().map(kind).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), (1..=changes.len()).collect::<Vec<_>>());
    changes
}

fn kind(change: &Change) -> usize {
    match change {
        Change::Opened { .. } => 0,
        Change::Framed { .. } => 1,
        Change::Queued { .. } => 2,
        Change::Said { .. } => 3,
        Change::Replied { .. } => 4,
        Change::ToolFinished { .. } => 5,
        Change::Compacted { .. } => 6,
        Change::Undone { .. } => 7,
        Change::Noted { .. } => 8,
        Change::ModelChosen { .. } => 9,
        Change::ModeChosen { .. } => 10,
        Change::ThoughtChosen { .. } => 11,
        Change::Titled { .. } => 12,
        Change::Planned { .. } => 13,
        Change::Allowed { .. } => 14,
        Change::TurnEnded { .. } => 15,
        Change::Commanded { .. } => 16,
    }
}

/// Text that a careless store breaks on, and any other.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => any::<String>(),
        1 => Just("\"},\n{\"crc\":\"00000000\",\u{2028}".to_owned()),
        1 => (0..3usize).prop_map(|more| "é".repeat(BIG / 2 + more)),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        proptest::num::f64::NORMAL.prop_map(Value::from),
        any_text().prop_map(Value::from),
        Just(json!({"type": "image", "data": "x", "inner": null})),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn any_change() -> impl Strategy<Value = Change> {
    let each = one_of_each();
    prop_oneof![
        any_text().prop_map(|text| said(&text)),
        any_text().prop_map(|title| Change::Titled { title }),
        (any_text(), any_json()).prop_map(|(text, raw)| {
            let outcome = ToolOutcome::text(CallId("call_1".into()), OutcomeStatus::Completed, text);
            Change::ToolFinished { outcome: ToolOutcome { raw: Some(raw), ..outcome } }
        }),
        (any_text(), any_json()).prop_map(|(system, schema)| Change::Framed {
            system,
            tools: vec![ToolSpec { name: "t".into(), description: String::new(), schema }],
        }),
        (0..each.len()).prop_map(move |at| each[at].clone()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_changes_come_back_to_the_byte(changes in prop::collection::vec(any_change(), 0..8)) {
        let home = Home::new();
        let (session, entries) = home.session(1, &changes);
        let loaded = home.load(&session).unwrap();
        prop_assert_eq!(serde_json::to_string(&loaded).unwrap(), serde_json::to_string(&entries).unwrap());
        prop_assert_eq!(loaded, entries);
    }
}
