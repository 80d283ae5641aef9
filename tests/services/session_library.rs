//! Operations of the command line and the control API on stored sessions: search, fork, export, import, and
//! diagnosis.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epitome::session_library::{self, ExportFormat, ImportRequest, LibraryError, SearchRequest};
use epitome::store::{Store, StoreError};
use epitome::thread::*;
use epitome::transfer::ImportDraft;
use epitome_test_harness::user::{Ran, User};
use sha2::{Digest as _, Sha256};

/// A user whose home contains stored sessions.
struct Home {
    user: User,
}

impl Home {
    fn new() -> Home {
        Home { user: User::new() }
    }

    /// The directory of the sessions, which is also the program's working directory.
    fn path(&self) -> PathBuf {
        self.user.own()
    }

    fn store(&self) -> Store {
        Store::new(&self.user.paths())
    }

    /// Stores a golden log of the repository under its own id.
    fn golden(&self, name: &str) -> (SessionId, Vec<Arc<Entry>>) {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.jsonl"));
        let text = fs::read_to_string(path).expect("a golden log");
        let entries: Vec<Arc<Entry>> =
            text.lines().map(|line| Arc::new(serde_json::from_str(line).expect("an entry"))).collect();
        let Change::Opened { session, .. } = &entries[0].change else { panic!("it opens") };
        self.store().insert(session, &entries).expect("it can be stored");
        (session.clone(), entries)
    }

    /// Stores a session with this user message.
    fn said(&self, number: u64, title: &str, text: &str) -> SessionId {
        let session = id(number);
        let opened = Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: self.path() };
        let content = vec![Content::Text { text: text.to_owned() }];
        let said = Change::Said {
            message: Message { id: MessageId(0), content, author: None },
            origin: Origin::Person,
        };
        let changes = [opened, Change::Titled { title: title.to_owned() }, said];
        let entries: Vec<Arc<Entry>> = (0..)
            .zip(changes)
            .map(|(seq, change)| Arc::new(Entry { seq: Seq(seq), at: 1_000 * number, change }))
            .collect();
        self.store().insert(&session, &entries).expect("it can be stored");
        session
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = self.user.command(arguments);
        Ran::from(command.current_dir(self.path()).env("TZ", "UTC").output().expect("the program starts"))
    }
}

fn id(number: u64) -> SessionId {
    SessionId::parse(&format!("s_{number:020x}")).expect("an id")
}

fn thread(store: &Store, session: &SessionId) -> Thread {
    Thread::replay(store.read(session).expect("it can be read")).expect("a log")
}

/// Does the work of `epitome-import`.
fn by_another_program(path: &Path, cwd: &Path, bytes: Vec<u8>) -> Result<Vec<ImportDraft>, LibraryError> {
    epitome_import::read_bytes(path, cwd, bytes).map_err(LibraryError::File)
}

fn import(store: &Store, file: &Path, keep_id: bool) -> Result<Vec<session_library::Imported>, String> {
    let files = [file.to_path_buf()];
    let ask = ImportRequest {
        files: &files,
        cwd: Path::new("/w"),
        keep_id,
        again: false,
        reader: &by_another_program,
    };
    session_library::import(store, &ask).map_err(|error| error.to_string())
}

// ---- Searching ----

#[test]
fn a_search_finds_titles_messages_and_tool_inputs_newest_first() {
    let home = Home::new();
    home.said(11, "The parser", "Look at it.");
    home.said(12, "Else", "Where is the PARSER, and why?\nNobody knows.");
    home.said(13, "Nothing", "of the kind");
    let (golden, _) = home.golden("format-1");
    let store = home.store();
    let found = |words: &str, is_regex: bool| {
        let ask = SearchRequest { words, is_regex, ..SearchRequest::default() };
        let found = session_library::search(&store, &ask).expect("a search");
        assert!(!found.is_cut);
        found
    };
    let parser = found("parser", false);
    let of: Vec<_> = parser.sessions.iter().map(|of| (of.session.clone(), of.in_title, of.count)).collect();
    assert_eq!(of, [(id(12), false, 1), (id(11), true, 0)]);
    assert_eq!(parser.sessions[0].finds[0].entry, "e2");
    assert!(parser.sessions[0].finds[0].excerpts[0].contains("Where is the PARSER"));
    assert_eq!(found("parser knows", false).sessions.len(), 1);
    assert_eq!(found("par.er", false).sessions.len(), 0);
    assert_eq!(found("PAR.ER", true).sessions[0].session, id(12));
    // The key of a call's input, indexed as `file_path: …`.
    let by_input = found("file_path", false);
    assert!(by_input.sessions.iter().any(|of| of.session == golden), "{by_input:?}");
    for (words, is_regex) in [("", false), ("(", true)] {
        assert!(
            session_library::search(&store, &SearchRequest { words, is_regex, ..SearchRequest::default() })
                .is_err()
        );
    }
    let one = SearchRequest { words: "parser", limit: Some(1), ..SearchRequest::default() };
    let one = session_library::search(&store, &one).expect("a search");
    assert!(one.sessions.len() == 1 && one.is_cut);
}

#[test]
fn a_damaged_session_does_not_abort_a_search() {
    let home = Home::new();
    home.said(1, "a", "needle");
    let broken = home.said(2, "b", "needle");
    let path = home.path().join(format!("data/journals/{broken}.jsonl"));
    let text = fs::read_to_string(&path).expect("a journal").replacen("\"b\"", "\"x\"", 1);
    fs::write(&path, text).expect("it can be written");
    let found = session_library::search(
        &home.store(),
        &SearchRequest { words: "needle", ..SearchRequest::default() },
    );
    let found = found.expect("a search");
    // Only the title of one session is lost.
    assert_eq!((found.sessions.len(), found.problems.len()), (2, 0));
}

// ---- Forks ----

#[test]
fn a_fork_at_any_entry_equals_the_replay_up_to_it() {
    let home = Home::new();
    for name in ["format-1", "hooks", "layers"] {
        let (session, entries) = home.golden(name);
        let store = home.store();
        for at in 0..entries.len() {
            let forked = session_library::fork(&store, &session, Some(Seq(at as u64))).expect("a fork");
            let fork = thread(&store, &forked.session);
            let replay = Thread::replay(entries[..=at].iter().cloned()).expect("a log");
            assert_eq!(fork.view().entries(), replay.view().entries(), "{name} at {at}");
            assert_eq!(fork.pins(), replay.pins());
            assert_eq!(fork.layers(), replay.layers());
            assert_eq!(fork.open_calls(), replay.open_calls());
            assert_eq!(fork.cwd(), replay.cwd());
            store.delete(&forked.session).expect("it goes");
        }
        store.delete(&session).expect("it goes");
    }
}

#[test]
fn the_title_of_a_fork_names_its_origin() {
    let home = Home::new();
    let session = home.said(1, "The parser", "Look at it.");
    let store = home.store();
    let first = session_library::fork(&store, &session, None).expect("a fork");
    assert_eq!(first.title, format!("The parser (fork of {session} at e2)"));
    let second = session_library::fork(&store, &first.session, Some(Seq(1))).expect("a fork");
    assert_eq!(second.title, format!("The parser (fork of {} at e1)", first.session));
    assert_eq!(thread(&store, &second.session).title(), Some(second.title.as_str()));
    let error = session_library::fork(&store, &session, Some(Seq(9))).expect_err("there is none");
    assert!(error.to_string().contains("no entry e9; the last is e2"), "{error}");
}

// ---- Files ----

#[test]
fn an_export_is_imported_as_the_same_conversation() {
    let home = Home::new();
    for name in ["format-1", "hooks", "layers"] {
        let (session, entries) = home.golden(name);
        let store = home.store();
        let file = home.path().join(format!("{name}.jsonl"));
        fs::write(
            &file,
            session_library::export(&store, &session, ExportFormat::Json).expect("an export").text,
        )
        .expect("written");

        let other = Home::new();
        let kept = import(&other.store(), &file, true).expect("an import");
        assert_eq!((kept[0].session.clone(), kept[0].entries), (session.clone(), entries.len() as u64));
        // The opening entry gets the current format.
        assert_eq!(other.store().read(&session).expect("it is there")[1..], entries[1..], "{name}");
        assert_eq!(
            other.store().raw(&session).expect("it is there"),
            store.raw(&session).expect("a journal")
        );

        let again = import(&other.store(), &file, true).expect_err("it exists already");
        assert!(again.contains("exists already"), "{again}");
        let fresh = import(&other.store(), &file, false).expect("an import");
        let (before, after) = (thread(&store, &session), thread(&other.store(), &fresh[0].session));
        assert_eq!(after.view().entries(), before.view().entries());
        assert_eq!((after.pins(), after.layers()), (before.pins(), before.layers()));
    }
}

#[test]
fn a_journal_from_a_backup_is_imported_with_all_blobs_or_not_at_all() {
    let home = Home::new();
    let big = "x".repeat(70_000);
    let session = home.said(1, "Big", &big);
    let backup = home.path().join("backup");
    home.store().backup(&backup).expect("a backup");
    let journal = backup.join(format!("journals/{session}.jsonl"));
    let other = Home::new();
    let imported = import(&other.store(), &journal, true).expect("an import");
    assert_eq!(
        other.store().read(&imported[0].session).expect("there"),
        home.store().read(&session).expect("there")
    );

    fs::remove_dir_all(backup.join("blobs")).expect("it was there");
    let refused = import(&other.store(), &journal, false).expect_err("its body is gone");
    assert!(refused.contains("is missing"), "{refused}");
}

#[test]
fn an_invalid_file_aborts_the_entire_import() {
    let home = Home::new();
    let session = home.said(1, "a", "b");
    let good = home.path().join("good.jsonl");
    let export =
        session_library::export(&home.store(), &session, ExportFormat::Json).expect("an export").text;
    fs::write(&good, &export).expect("written");
    let other = Home::new();
    for (bad, words) in [
        (export.replacen("\"seq\":1", "\"seq\":7", 1), "bad.jsonl:2:1"),
        ("nonsense".to_owned(), "not a conversation"),
        (export.clone(), "exists already"),
    ] {
        let path = home.path().join("bad.jsonl");
        fs::write(&path, bad).expect("written");
        let files = [good.clone(), path];
        let ask = ImportRequest {
            files: &files,
            cwd: Path::new("/w"),
            keep_id: true,
            again: false,
            reader: &by_another_program,
        };
        let error = session_library::import(&other.store(), &ask).expect_err("it can't be").to_string();
        assert!(error.contains(words), "{error}");
        assert!(other.store().list().expect("a listing").headers.is_empty());
        assert!(matches!(other.store().read(&session), Err(StoreError::NotFound(_))));
    }
}

// ---- The command line ----

/// All sessions were exported to another machine. One had a damaged line, one no intact line at all, and one had lost a long
/// text, but the command announced that it had exported them all, and succeeded. `-` as a file became a file of that name.
#[test]
fn an_export_reports_what_is_missing_in_it() {
    let home = Home::new();
    let whole = home.said(1, "Whole", "Hello.");
    let damaged = home.said(2, "Damaged", "Remember this.");
    let unreadable = home.said(3, "Unreadable", "Something.");
    let lacking = home.said(4, "Lacking", &"x".repeat(70_000));
    let journal = |session: &SessionId| home.user.journal(&session.0);
    let text = fs::read_to_string(journal(&damaged)).expect("a journal");
    fs::write(journal(&damaged), text.replace("Remember", "Forgotte")).expect("written");
    fs::write(journal(&unreadable), "nothing\nof this is a journal\n").expect("written");
    fs::remove_file(journal(&unreadable).with_extension("synced")).expect("it was there");
    fs::remove_dir_all(home.user.paths().data.join("blobs").join(&lacking.0)).expect("it was there");

    let exported = home.run(&["sessions", "export", "--all", "out"]);
    assert_eq!(exported.code, Some(1), "{exported:?}");
    let is_named = [&whole, &damaged, &unreadable, &lacking].map(|session| exported.err.contains(&session.0));
    assert_eq!(is_named, [false, true, true, true], "{exported:?}");
    assert_eq!(fs::read_dir(home.path().join("out")).expect("it was made").count(), 3);

    // The files are there already, except that of the session that can't be read.
    let again = home.run(&["sessions", "export", "--all", "out", "--json"]);
    let problems = again.exited(1).objects().remove(0)["problems"].take();
    let named: Vec<&str> =
        problems.as_array().expect("a list").iter().filter_map(|one| one["session"].as_str()).collect();
    for session in [&whole, &damaged, &unreadable, &lacking] {
        assert!(named.contains(&session.0.as_str()), "{problems}");
    }

    for (session, words) in [(&damaged, "damaged at line 3"), (&lacking, "lacks 1 image or long text")] {
        let file = format!("{session}.jsonl");
        let exported = home.run(&["sessions", "export", &session.0, &file, "--json"]);
        let damage = exported.exited(1).objects().remove(0)["damage"].take();
        assert!(damage.as_str().is_some_and(|damage| damage.contains(words)), "{damage}");
    }
    let printed = home.run(&["sessions", "export", &whole.0, "-"]).ok();
    assert!(printed.contains("Hello."), "{printed}");
    assert!(!home.path().join("-").exists());
}

#[test]
fn sessions_are_moved_between_homes_on_the_command_line() {
    let home = Home::new();
    let (session, _) = home.golden("format-1");
    home.said(77, "Second", "One more.");
    home.run(&["sessions", "export", "--all", "out"]).ok();
    let mut names: Vec<String> = fs::read_dir(home.path().join("out"))
        .expect("it was made")
        .map(|file| file.expect("a file").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, [format!("{session}.jsonl"), format!("{}.jsonl", id(77))]);

    let other = Home::new();
    let files: Vec<String> =
        names.iter().map(|name| home.path().join("out").join(name).display().to_string()).collect();
    let mut arguments = vec!["sessions", "import", "--json", "--keep-id"];
    arguments.extend(files.iter().map(String::as_str));
    let imported = other.run(&arguments).json();
    assert_eq!(imported[0]["session"], session.0);
    assert_eq!(imported[0]["source"], "an export of Epitome");
    let show = ["sessions", "show", session.0.as_str(), "--format", "markdown"];
    assert_eq!(other.run(&show).ok(), home.run(&show).ok());

    let found = other.run(&["sessions", "search", "one", "more", "--json"]).json();
    assert_eq!(found["sessions"][0]["session"], id(77).0);
    let found = other.run(&["sessions", "search", "one", "more"]).ok();
    assert!(found.contains("Second") && found.contains("e2 said") && found.contains("One more."), "{found}");

    let forked = other.run(&["sessions", "fork", &session.0, "--at", "e7", "--json"]).json();
    assert_eq!((&forked["from"], &forked["at"]), (&session.0.as_str().into(), &7.into()));
    let wrong = other.run(&["sessions", "fork", &session.0, "--at", "12"]);
    assert!(wrong.err.contains("entries are named like e12"), "{}", wrong.err);
}

#[test]
fn a_stored_session_is_renamed_and_its_compaction_undone() {
    let home = Home::new();
    let (session, entries) = home.golden("layers");
    home.run(&["sessions", "rename", &session.0, "Another", "title"]).ok();
    let renamed = thread(&home.store(), &session);
    assert_eq!(renamed.title(), Some("Another title"));
    let layer = renamed.last_layer().expect("a layer").seq;
    home.run(&["sessions", "undo", &session.0]).ok();
    let undone = thread(&home.store(), &session);
    assert!(undone.is_undone(layer) && undone.entries().len() > entries.len());
}

#[test]
fn the_doctor_reports_and_repairs_problems() {
    let home = Home::new();
    let session = home.said(1, "The title", "What was said.");
    home.said(2, "b", "c");
    let well = home.run(&["doctor"]).ok();
    assert!(well.contains("2 sessions with 6 entries") && well.contains("no daemon is running"), "{well}");
    assert!(well.contains("none of ANTHROPIC_API_KEY"), "{well}");

    let path = home.path().join(format!("data/journals/{session}.jsonl"));
    let damaged = fs::read_to_string(&path).expect("a journal").replacen("The title", "Thx title", 1);
    fs::write(&path, &damaged).expect("written");
    fs::write(home.path().join("config.toml"), "compaction = 3\n").expect("written");
    let ill = home.run(&["doctor"]);
    assert_eq!(ill.code, Some(1));
    let text = ill.out;
    assert!(text.contains("error   store") && text.contains(".jsonl:2: "), "{text}");
    assert!(text.contains("warning settings") && text.contains("config.toml"), "{text}");
    assert!(!text.contains("Thx"), "no message is shown: {text}");

    let mended = home.run(&["doctor", "--backup", "copy", "--repair", "--compact", "--json"]).json();
    assert_eq!(mended["backup"]["sessions"], 2);
    assert_eq!(
        fs::read_to_string(home.path().join(format!("copy/journals/{session}.jsonl"))).expect("a copy"),
        damaged
    );
    assert!(mended["repair"]["done"][0]["what"].as_str().expect("words").contains("1 entry is lost"));
    assert_eq!(mended["store"]["index"]["state"], "agrees");
    assert!(home.run(&["doctor", "--backup", "copy"]).err.contains("not empty"));
    assert!(home.run(&["doctor"]).ok().contains("1 damaged places"));
}

/// Journals that the last build before the command line and the protocols were reduced wrote for the protocol
/// fixtures, and the SHA-256 digests of what it exported from them. Each must open without damage, export the same
/// bytes in every format, and be forked with the same lines.
#[test]
fn journals_of_an_earlier_build_open_export_and_fork_byte_for_byte() {
    let home = Home::new();
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/journals/2026-11-28");
    let digests = fs::read_to_string(golden.join("exports.sha256")).expect("the digests");
    let journals = home.path().join("data/journals");
    fs::create_dir_all(&journals).expect("a directory");
    let mut sessions = Vec::new();
    for file in fs::read_dir(&golden).expect("the journals").map(|file| file.expect("a file").path()) {
        if file.extension().is_some_and(|extension| extension == "jsonl") {
            fs::copy(&file, journals.join(file.file_name().expect("a name"))).expect("copied");
            sessions.push(file.file_stem().expect("a name").to_string_lossy().into_owned());
        }
    }
    assert_eq!(sessions.len() * 2, digests.lines().count());
    for session in sessions {
        let exported =
            |session: &str, format| home.run(&["sessions", "export", session, "--format", format]).ok();
        let journal = fs::read_to_string(golden.join(format!("{session}.jsonl"))).expect("a journal");
        assert_eq!(exported(&session, "raw"), journal);
        let json = exported(&session, "json");
        for (text, extension, format) in
            [(json.clone(), "json", "JSON"), (exported(&session, "markdown"), "md", "Markdown")]
        {
            let digest: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
            let line = format!("{digest}  {session}.{extension}");
            assert!(digests.lines().any(|known| known == line), "{session} as {format} is now\n{text}");
        }
        let fork = home.run(&["sessions", "fork", &session, "--json"]).json();
        let forked = exported(fork["session"].as_str().expect("an id"), "raw");
        // Each line begins with its checksum and that of the line before, which differ in a fork.
        let unchained = |line: &str| line.find("\"seq\":").map(|seq| line[seq..].to_owned());
        for (copied, original) in forked.lines().zip(journal.lines()).skip(1) {
            assert_eq!(unchained(copied), unchained(original), "a line of the fork of {session}");
        }
        assert!(forked.lines().count() > journal.lines().count(), "the fork of {session}");
    }
}
