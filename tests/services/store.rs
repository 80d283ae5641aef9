//! The durable store, as used by a session and the command line: appended entries are loaded again, whatever
//! happens to the process, the file or the index.

mod any_change;
mod care;
mod processes;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epitome::paths::Paths;
use epitome::store::{Header, Journal, Store, StoreError};
use epitome::thread::*;
use serde_json::{Value, json};

use any_change::one_of_each;

/// A home directory that is deleted after the test.
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

    /// Creates a session with these changes and closes it.
    fn session(&self, number: u64, changes: &[Change]) -> (SessionId, Vec<Arc<Entry>>) {
        let session = id(number);
        let (mut journal, first) = self.store().create(&session, opened(&session)).unwrap();
        let mut entries = vec![first];
        entries.extend(changes.iter().map(|change| journal.append(change.clone()).unwrap()));
        (session, entries)
    }

    /// Loads a session as a later process would.
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
    Change::Said { message: Message { id: MessageId(0), content, author: None }, origin: Origin::Person }
}

fn finished(text: &str) -> Change {
    let outcome = ToolOutcome::text(CallId("call_1".into()), OutcomeStatus::Completed, text);
    Change::ToolFinished { outcome }
}

const BIG: usize = 64 * 1024 + 1;

// ---- Normal use ----

#[test]
fn appended_entries_are_loaded_again() {
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

/// In a read-only home, only `epitome doctor` named the variable that helps.
#[test]
fn an_error_of_a_place_that_can_not_be_written_names_the_way_out() {
    let error = |kind: ErrorKind| {
        let path = "/home/ann/.local/share/epitome".into();
        StoreError::Io { doing: "make the directory", path, source: kind.into() }.to_string()
    };
    for kind in [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem] {
        assert!(error(kind).ends_with("set EPITOME_HOME to a directory where you can write"), "{kind}");
    }
    assert!(!error(ErrorKind::StorageFull).contains("EPITOME_HOME"));
}

#[test]
fn the_journal_is_private_readable_text() {
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
fn every_kind_of_change_is_loaded_unchanged() {
    let home = Home::new();
    let changes = one_of_each();
    let (session, entries) = home.session(1, &changes);
    let loaded = home.load(&session).unwrap();
    assert_eq!(loaded, entries);
    let stored: Vec<Change> = loaded[1..].iter().map(|entry| entry.change.clone()).collect();
    assert_eq!(stored, changes);
}

#[test]
fn an_in_memory_journal_folds_like_any_other_and_is_not_stored() {
    let home = Home::new();
    let session = id(1);
    let (mut journal, mut entries) = Journal::in_memory(opened(&session), vec![said("Hello")]);
    entries.push(journal.append(titled("Greeting")).unwrap());
    journal.syncer().sync().unwrap();
    let thread = Thread::replay(entries).unwrap();
    assert_eq!((thread.view().entries().len(), thread.title()), (1, Some("Greeting")));
    assert_eq!(journal.header().title.as_deref(), Some("Greeting"));
    assert!(home.store().list().unwrap().headers.is_empty() && !home.data().exists());
    assert!(matches!(home.load(&session), Err(StoreError::NotFound(_))));
}

#[test]
fn an_unknown_session_is_not_found_and_an_existing_one_not_recreated() {
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
fn a_syncer_may_be_used_from_any_thread_and_repeatedly() {
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
fn two_processes_never_write_the_same_session() {
    let home = Home::new();
    let (mut journal, _) = home.store().create(&id(1), opened(&id(1))).unwrap();
    let other = home.store();
    assert!(matches!(other.load(&id(1)), Err(StoreError::InUse(..))));
    assert!(matches!(other.delete(&id(1)), Err(StoreError::InUse(..))));
    journal.append(titled("still mine")).unwrap();
    assert_eq!(other.read(&id(1)).unwrap().len(), 2, "reading needs no lock");

    let syncer = journal.syncer();
    drop(journal);
    assert!(other.load(&id(1)).is_ok(), "a syncer that is still about does not hold the session");
    syncer.sync().unwrap();
}

#[test]
fn a_reader_ignores_a_partially_written_line() {
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
fn a_crash_at_any_byte_of_the_last_lines_keeps_all_complete_entries() {
    let home = Home::new();
    let (session, entries) = home.session(1, &[said("Fix it"), titled("A"), titled("B")]);
    let whole = fs::read(home.journal(&session)).unwrap();
    let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
    for cut in ends[1]..whole.len() {
        fs::write(home.journal(&session), &whole[..cut]).unwrap();
        let _ = fs::remove_file(home.torn(&session));
        // A line is complete without its newline.
        let kept = ends.iter().filter(|end| **end - 1 <= cut).count();

        let (mut journal, loaded) = home.store().load(&session).unwrap();
        assert_eq!(loaded, entries[..kept], "cut at {cut}");
        let torn = fs::read(home.torn(&session)).unwrap_or_default();
        assert_eq!(torn.strip_suffix(b"\n").unwrap_or_default(), &whole[ends[kept - 1].min(cut)..cut]);

        let next = journal.append(titled("after the crash")).unwrap();
        assert_eq!(next.seq, Seq(kept as u64));
        drop(journal);
        assert_eq!(home.load(&session).unwrap().last(), Some(&next));
    }
}

#[test]
fn a_crash_within_the_first_line_leaves_no_session() {
    let home = Home::new();
    let (session, _) = home.session(1, &[]);
    let whole = fs::read(home.journal(&session)).unwrap();
    for cut in 0..whole.len() - 1 {
        fs::write(home.journal(&session), &whole[..cut]).unwrap();
        assert!(matches!(home.load(&session), Err(StoreError::NotFound(_))), "cut at {cut}");
        let listing = home.store().list().unwrap();
        assert!(listing.headers.is_empty() && listing.problems.is_empty());
    }
}

#[test]
fn torn_last_lines_are_kept_in_sequence() {
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
fn a_flipped_byte_in_an_unsynced_line_is_taken_for_an_interrupted_write() {
    let home = Home::new();
    let (session, entries) = home.session(1, &[titled("A"), titled("B")]);
    let whole = fs::read(home.journal(&session)).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 1;
    for at in last..whole.len() - 1 {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(home.journal(&session), &bytes).unwrap();
        assert_eq!(home.load(&session).unwrap(), entries[..2], "byte {at}");
    }
}

#[test]
fn a_flipped_byte_costs_its_line_alone_and_changes_no_file() {
    let home = Home::new();
    let (session, entries) = home.session(1, &[titled("A"), titled("B")]);
    let (other, _) = home.session(2, &[titled("fine")]);
    home.store().load(&session).unwrap().0.syncer().sync().unwrap();
    let whole = fs::read(home.journal(&session)).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(home.journal(&session), &bytes).unwrap();
        let line = whole[..at].iter().filter(|b| **b == b'\n').count();
        let (journal, loaded) = home.store().load(&session).unwrap();
        for (number, (read, written)) in loaded.iter().zip(&entries).enumerate() {
            // The first line has a copy, and a damaged newline costs nothing.
            let is_lost = number == line && line > 0 && whole[at] != b'\n';
            match is_lost {
                true => assert_eq!(read.change, Change::Lost { entries: 1 }, "byte {at}"),
                false => assert_eq!(read, written, "byte {at}"),
            }
        }
        assert_eq!(loaded.len(), entries.len());
        let is_damaged = matches!(journal.damage(), Some(StoreError::Damaged { .. }));
        assert!(is_damaged || whole[at] == b'\n', "byte {at}");
        assert_eq!(fs::read(home.journal(&session)).unwrap(), bytes);
        assert!(!home.torn(&session).exists());
        let (read, damage) = home.store().read_with_damage(&session).unwrap();
        assert_eq!((read, damage.is_some()), (loaded, is_damaged));
    }
    assert!(home.load(&other).is_ok());
    let listing = home.store().list().unwrap();
    assert_eq!((listing.headers.len(), listing.problems.len()), (2, 0), "a damaged session is listed");
}

#[test]
fn a_complete_line_is_not_dropped_with_the_torn_one_after_it() {
    let home = Home::new();
    let (session, entries) = home.session(1, &[titled("A"), titled("B")]);
    let mut bytes = fs::read(home.journal(&session)).unwrap();
    bytes.truncate(bytes.len() - 5);
    let newline = bytes.iter().rposition(|b| *b == b'\n').unwrap();
    bytes[newline] = b'!';
    fs::write(home.journal(&session), &bytes).unwrap();
    let (mut journal, loaded) = home.store().load(&session).unwrap();
    assert_eq!(loaded, entries[..2]);
    let next = journal.append(titled("C")).unwrap();
    drop(journal);
    assert_eq!(home.load(&session).unwrap().last(), Some(&next));
}

/// The first half of this journal is of format 1, written by an older version. The journal keeps that format, so that
/// the older version can read entries that this one adds.
#[test]
fn a_journal_of_format_1_stays_one() {
    let home = Home::new();
    let session = id(1);
    let opened = Change::Opened { format: 1, session: session.clone(), cwd: "/w/site".into() };
    let (mut journal, first) = home.store().create(&session, opened).unwrap();
    let second = journal.append(said("Fix the build")).unwrap();
    drop(journal);
    let (mut journal, entries) = home.store().load(&session).unwrap();
    assert_eq!(entries, [first, second]);
    journal.append(titled("Build")).unwrap();
    journal.syncer().sync().unwrap();
    let text = fs::read_to_string(home.journal(&session)).unwrap();
    assert!(!text.contains("\"prev\"") && text.contains("\"format\":1"), "{text}");
    // A fork has the current format.
    home.store().fork(&session, None, &id(2)).unwrap();
    let text = fs::read_to_string(home.journal(&id(2))).unwrap();
    assert!(text.lines().all(|line| line.contains("\"prev\"")), "{text}");
}

/// A user deleted the journal or restored a backup over it while the session ran. The next turns were acknowledged, but
/// written to an unlinked file.
#[test]
fn a_journal_that_was_deleted_or_replaced_takes_no_more_entries() {
    let harms: [fn(&Path); 2] = [
        |path| fs::remove_file(path).unwrap(),
        |path| {
            let copy = path.with_extension("copy");
            fs::copy(path, &copy).unwrap();
            fs::rename(copy, path).unwrap();
        },
    ];
    for (number, harm) in (1..).zip(harms) {
        let home = Home::new();
        let (mut journal, _) = home.store().create(&id(number), opened(&id(number))).unwrap();
        journal.syncer().sync().unwrap();
        assert!(journal.can_append().is_ok());
        harm(&home.journal(&id(number)));
        assert!(matches!(journal.can_append(), Err(StoreError::Replaced(_))));
        journal.append(titled("A")).unwrap();
        assert!(matches!(journal.syncer().sync(), Err(StoreError::Replaced(_))));
    }
}

/// Regression: a session that was written while the clock was wrong stayed at the top of the list forever.
#[test]
fn a_session_from_the_future_is_listed_by_the_time_of_its_file() {
    let home = Home::new();
    let (session, _) = home.session(1, &[titled("A")]);
    let path = home.journal(&session);
    fs::File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let entry = Entry { seq: Seq(0), at: u64::MAX, change: opened(&id(2)) };
    home.store().insert(&id(2), &[Arc::new(entry)]).unwrap();
    fs::File::open(home.journal(&id(2))).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let listed: Vec<SessionId> =
        home.store().list().unwrap().headers.into_iter().map(|header| header.session).collect();
    assert_eq!(listed, [session, id(2)]);
}

#[test]
fn a_journal_of_a_future_format_is_refused_and_unchanged() {
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
fn a_journal_under_another_sessions_id_is_refused() {
    let home = Home::new();
    let (session, _) = home.session(1, &[titled("A")]);
    fs::copy(home.journal(&session), home.journal(&id(2))).unwrap();
    assert!(matches!(home.load(&id(2)), Err(StoreError::Misnamed { .. })));
}

#[test]
fn an_unserializable_entry_is_refused_and_the_journal_continues() {
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
fn an_attachment_is_stored_once_and_keeps_its_line_small() {
    let home = Home::new();
    let data = "JVBERi0xLjcK".repeat(20);
    let (mime_type, name) = ("application/pdf".to_owned(), Some("plan.pdf".to_owned()));
    let document = Content::Document { mime_type: mime_type.clone(), data: data.clone(), name: name.clone() };
    let mut read = ToolOutcome::text(CallId("c1".into()), OutcomeStatus::Completed, "plan.pdf");
    read.content.push(OutcomeContent::Document { mime_type, data: data.clone(), name });
    let message = Message { id: MessageId(0), content: vec![document.clone(), document], author: None };
    let changes = [Change::Said { message, origin: Origin::Person }, Change::ToolFinished { outcome: read }];
    let (session, entries) = home.session(1, &changes);
    let blobs: Vec<_> =
        fs::read_dir(home.data().join("blobs").join(&session.0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(blobs.len(), 1);
    assert_eq!(fs::read_to_string(blobs[0].path()).unwrap(), data);
    assert!(!fs::read_to_string(home.journal(&session)).unwrap().contains("JVBERi0"));
    assert_eq!(home.load(&session).unwrap(), entries);
}

#[test]
fn a_lost_document_becomes_a_text_that_says_so() {
    let home = Home::new();
    let document =
        Content::Document { mime_type: "application/pdf".into(), data: "JVBERi0=".into(), name: None };
    let message = Message { id: MessageId(0), content: vec![document], author: None };
    let (session, _) = home.session(1, &[Change::Said { message, origin: Origin::Person }]);
    fs::remove_dir_all(home.data().join("blobs")).unwrap();
    let loaded = home.load(&session).unwrap();
    let Change::Said { message, .. } = &loaded[1].change else { panic!("{loaded:?}") };
    assert!(message.text().contains("is missing"), "{message:?}");
}

#[test]
fn big_bodies_are_files_next_to_the_journal_and_loaded_completely() {
    let home = Home::new();
    let image = Content::Image { mime_type: "image/png".into(), data: "iVBORw0KGgo=".into(), uri: None };
    let message = Message { id: MessageId(0), content: vec![image], author: None };
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
fn a_lost_blob_only_loses_its_body() {
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
fn no_text_is_mistaken_for_a_blob_reference() {
    let home = Home::new();
    let hash = "0".repeat(64);
    let forged = format!(r#"{{"crc":"00000000","blobs":{{"/title":"{hash}"}}}}"#);
    let input = json!({"blobs": {"/title": hash}, "type": "image", "data": "x"});
    let outcome = ToolOutcome {
        raw: Some(input),
        whole: None,
        ..ToolOutcome::text(CallId("c".into()), OutcomeStatus::Completed, &*forged)
    };
    let (session, entries) = home.session(1, &[titled(&forged), Change::ToolFinished { outcome }]);
    assert_eq!(home.load(&session).unwrap(), entries);
}

// ---- Listing and deleting ----

#[test]
fn a_listing_shows_the_newest_first_with_their_properties() {
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
            Change::TurnEnded { reason: StopReason::EndTurn, usage, quiet_hooks: 0, failure: None },
        ],
    );
    let (newer, entries) = home.session(3, &[]);
    let (mut journal, _) = home.store().load(&newer).unwrap();
    // The two timestamps may be equal; then the larger id comes first.
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

    // A process that cannot open sled can still read and write.
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
