//! A kept listing equals one that reads every journal, also after changes by other processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::disk::RealDisk;
use super::super::index::Index;
use super::super::{Journal, Store, StorePaths, line};
use super::*;
use epitome_files::paths::Paths;
use epitome_thread::{Change, Entry, FORMAT_VERSION, MessageId, Seq};

/// Random stories, and steps of each.
const STORIES: u64 = 10;
const STEPS: usize = 60;

const HOUR: u64 = 3_600_000;

fn session(number: u64) -> SessionId {
    SessionId(format!("s_{number:020x}"))
}

fn opened(session: &SessionId) -> Change {
    Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: "/w".into() }
}

fn prompted(typed: &str) -> Change {
    Change::Commanded { message: MessageId(0), typed: typed.to_owned() }
}

/// A store whose listings are kept if the system allows it.
fn keeping(home: &Path) -> (Store, Files) {
    let paths = StorePaths { data: Arc::from(Paths::below(home).data), disk: Arc::new(RealDisk) };
    let index = Index::new(paths.clone());
    let files = Files { paths: paths.clone(), index: index.clone(), listed: Arc::default() };
    let store = Store { paths, index, logs: Arc::new(files.clone()), elsewhere: None };
    store.keep_listing();
    (store, files)
}

/// Returns the listing that reading every journal gives.
fn looked_at(home: &Path, query: &SessionQuery) -> Listing {
    let paths = StorePaths { data: Arc::from(Paths::below(home).data), disk: Arc::new(RealDisk) };
    let files = Files { index: Index::absent(paths.clone()), paths, listed: Arc::default() };
    let mut sessions = SortedSessions::look(&files, false).unwrap();
    Listing { headers: sessions.page(query).unwrap(), problems: take(&mut sessions.problems) }
}

struct ListingStory {
    rng: fastrand::Rng,
    home: tempfile::TempDir,
    /// The first one keeps its listings. Both use the same files and the same index, like two processes.
    stores: [Store; 2],
    open: BTreeMap<SessionId, Journal>,
    backups: Vec<(PathBuf, Vec<u8>)>,
    sessions: u64,
    /// Each text is longer than the one before: what is written instead of something else has another length.
    words: usize,
}

impl ListingStory {
    fn new(seed: u64) -> ListingStory {
        let home = tempfile::tempdir().unwrap();
        let (kept, _) = keeping(home.path());
        let stores = [kept, Store::new(&Paths::below(home.path()))];
        let rng = fastrand::Rng::with_seed(seed);
        if seed.is_multiple_of(2) {
            // Reading it takes longer than opening the index.
            let journals = home.path().join("data/journals");
            fs::create_dir_all(&journals).unwrap();
            fs::write(journals.join(format!("{}.jsonl", session(0))), vec![0; READ_BYTES_MAX as usize])
                .unwrap();
        }
        ListingStory { rng, home, stores, open: BTreeMap::new(), backups: Vec::new(), sessions: 0, words: 0 }
    }

    fn journals(&self) -> PathBuf {
        self.home.path().join("data/journals")
    }

    fn store(&mut self) -> Store {
        self.rng.choice(&self.stores).unwrap().clone()
    }

    fn next(&mut self) -> SessionId {
        self.sessions += 1;
        session(self.sessions)
    }

    fn change(&mut self) -> Change {
        self.words += 1;
        let text = "x".repeat(self.words);
        if self.rng.bool() { Change::Titled { title: text } } else { prompted(&text) }
    }

    fn any_journal(&mut self) -> Option<PathBuf> {
        let files = fs::read_dir(self.journals()).ok()?.map(|file| file.unwrap().path());
        let mut files: Vec<PathBuf> =
            files.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
        files.sort();
        self.rng.choice(&files).cloned()
    }

    fn any_session(&mut self) -> Option<SessionId> {
        SessionId::parse(self.any_journal()?.file_stem()?.to_str()?)
    }

    fn step(&mut self) {
        let store = self.store();
        match self.rng.u8(..16) {
            0 | 1 => {
                let name = self.next();
                let (journal, _) = store.create(&name, opened(&name)).unwrap();
                self.open.insert(name, journal);
            }
            2..=6 => {
                let Some(name) = self.any_session() else { return };
                let is_archived = (self.rng.u8(..4) == 0).then(|| self.rng.bool());
                let changes =
                    [is_archived.map(|archived| Change::Archived { archived }), Some(self.change())];
                let syncs = self.rng.bool();
                // It may be damaged, or replaced while it is open.
                if !self.open.contains_key(&name)
                    && let Ok((journal, _)) = store.load(&name)
                {
                    self.open.insert(name.clone(), journal);
                }
                let Some(journal) = self.open.get_mut(&name) else { return };
                changes.into_iter().flatten().for_each(|change| drop(journal.append(change)));
                if syncs {
                    drop(journal.syncer().sync());
                }
            }
            7 => drop(self.open.pop_first()),
            8 => drop(self.any_session().map(|name| store.delete(&name))),
            9 => drop(self.any_session().map(|name| store.fork_with_origin(&name, None))),
            10 => self.insert_from_the_future(&store),
            11 if self.rng.bool() => store.settle(),
            11 => store.save_listing(),
            12 => self.back_up_or_restore(),
            13 => self.damage(),
            14 => self.replace_the_directory(),
            _ => self.begin_the_next_process(),
        }
    }

    /// Sessions that are open stay open, as in a third process.
    fn begin_the_next_process(&mut self) {
        // Or it is killed.
        if self.rng.bool() {
            self.stores[0].settle();
        }
        (self.stores[0], _) = keeping(self.home.path());
        self.compare();
    }

    /// A session of a machine whose clock is wrong.
    fn insert_from_the_future(&mut self, store: &Store) {
        let name = self.next();
        let at = now() + self.rng.u64(1..3) * HOUR;
        let changes = [opened(&name), self.change()];
        let entries: Vec<Arc<Entry>> =
            (0..).zip(changes).map(|(seq, change)| Arc::new(Entry { seq: Seq(seq), at, change })).collect();
        store.insert(&name, &entries).unwrap();
    }

    fn back_up_or_restore(&mut self) {
        if self.rng.bool()
            && let Some(path) = self.any_journal()
        {
            let bytes = fs::read(&path).unwrap();
            self.backups.push((path, bytes));
        }
        let Some((path, bytes)) = self.rng.choice(&self.backups).cloned() else { return };
        if self.rng.bool() {
            fs::write(&path, bytes).unwrap();
        } else {
            let new = path.with_extension("new");
            fs::write(&new, bytes).unwrap();
            fs::rename(&new, &path).unwrap();
        }
    }

    fn damage(&mut self) {
        let Some(path) = self.any_journal() else { return };
        let bytes = fs::read(&path).unwrap();
        match self.rng.u8(..4) {
            0 => fs::write(&path, &bytes[..self.rng.usize(..bytes.len().max(1))]).unwrap(),
            1 => fs::write(&path, [&b"damage\n"[..], &bytes].concat()).unwrap(),
            2 => fs::rename(&path, path.with_file_name(format!("{}.jsonl", self.next()))).unwrap(),
            _ => fs::remove_file(&path).unwrap(),
        }
    }

    fn replace_the_directory(&mut self) {
        let (directory, old) = (self.journals(), self.home.path().join(format!("old-{}", self.rng.u64(..))));
        if fs::rename(&directory, &old).is_err() || self.rng.u8(..8) == 0 {
            return;
        }
        fs::create_dir(&directory).unwrap();
        for file in fs::read_dir(&old).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), directory.join(file.file_name())).unwrap();
        }
    }

    fn query(&mut self, all: &[Header]) -> SessionQuery {
        let after = self.rng.choice(all).map(|header| (header.updated_at, header.session.clone()));
        SessionQuery {
            has_prompt: self.rng.bool(),
            archived: self.rng.choice([None, Some(true), Some(false)]).unwrap(),
            after: after.filter(|_| self.rng.bool()),
            limit: self.rng.bool().then(|| self.rng.usize(..4)),
            ..SessionQuery::default()
        }
    }

    fn compare(&mut self) {
        let all = looked_at(self.home.path(), &SessionQuery::default()).headers;
        for query in [SessionQuery::default(), self.query(&all)] {
            let kept = self.stores[0].page(&query).unwrap();
            // Like a command that runs without a daemon.
            let command = Store::on_disk(&self.home.path().join("data"), Arc::new(RealDisk)).page(&query);
            let [kept, command, looked_at] = [kept, command.unwrap(), looked_at(self.home.path(), &query)]
                .map(|Listing { headers, problems }| {
                    let problems = problems.into_iter().map(|(name, why)| (name, why.to_string()));
                    (headers, problems.collect::<BTreeMap<_, _>>())
                });
            assert_eq!(kept, looked_at, "{query:?}");
            assert_eq!(command, looked_at, "{query:?}");
        }
    }
}

#[test]
fn a_kept_listing_equals_one_that_reads_every_journal() {
    for seed in 0..STORIES {
        let mut story = ListingStory::new(seed);
        for _ in 0..STEPS {
            story.step();
            if story.rng.u8(..3) > 0 {
                story.compare();
            }
        }
        story.compare();
        story.stores.iter().for_each(Store::settle);
    }
}

/// With 10,000 sessions, each listing took 40 ms of CPU time, although nothing or one session had changed.
#[test]
fn a_kept_listing_looks_only_at_what_has_changed() {
    let home = tempfile::tempdir().unwrap();
    let other = Store::new(&Paths::below(home.path()));
    let mut journals: Vec<Journal> = Vec::new();
    for number in 0..5 {
        let (mut journal, _) = other.create(&session(number), opened(&session(number))).unwrap();
        journal.append(prompted("Hello")).unwrap();
        journals.push(journal);
    }
    let (store, files) = keeping(home.path());
    store.list().unwrap();
    if watch(&files).is_none() {
        // Not on this system.
        return;
    }
    let rows = || -> BTreeMap<SessionId, Arc<MarkedHeader>> {
        let kept = files.listed.sessions.lock();
        let rows = kept.as_ref().expect("it is kept").rows.iter();
        rows.map(|(_, marked)| (marked.header.session.clone(), marked.clone())).collect()
    };
    let before = rows();
    assert_eq!(store.list().unwrap().headers.len(), 5);
    // Of sessions that were updated in the same millisecond, the one with the highest number is first.
    journals[4].append(prompted("Again")).unwrap();
    assert_eq!(store.list().unwrap().headers[0].session, session(4));
    let after = rows();
    let same: Vec<bool> = before.iter().map(|(name, row)| Arc::ptr_eq(row, &after[name])).collect();
    assert_eq!(same, [true, true, true, true, false]);

    // The journals of this process are not even read.
    drop(journals);
    let (mut journal, _) = store.load(&session(4)).unwrap();
    journal.append(prompted("Here")).unwrap();
    let appended = files.listed.appended.lock().as_ref().expect("it is kept")[&session(4)].clone();
    assert_eq!(store.list().unwrap().headers[0].entries, 4);
    assert!(Arc::ptr_eq(&rows()[&session(4)], &appended));
    assert!(files.listed.appended.lock().as_ref().is_some_and(BTreeMap::is_empty));
}

/// Sessions that are not all saved, with a process that keeps them; `None` where the system does not report changes.
struct SavedSessions {
    home: tempfile::TempDir,
    other: Store,
    store: Store,
    files: Files,
}

impl SavedSessions {
    fn new() -> Option<SavedSessions> {
        let home = tempfile::tempdir().unwrap();
        let other = Store::new(&Paths::below(home.path()));
        for number in 0..SESSIONS_MAX as u64 + 20 {
            let (mut journal, _) = other.create(&session(number), opened(&session(number))).unwrap();
            journal.append(prompted("Hello")).unwrap();
        }
        let (store, files) = keeping(home.path());
        watch(&files)?;
        let sessions = SavedSessions { home, other, store, files };
        sessions.store.list().unwrap();
        sessions.save();
        Some(sessions)
    }

    /// Saves the listing, like an idle daemon that is killed later.
    fn save(&self) {
        // A name that changes in the same tick of the clock can't be noticed later.
        while !NamesMark::now(&self.files.paths).unwrap().is_past() {
            std::thread::yield_now();
        }
        self.store.save_listing();
        assert!(!self.store.has_unsaved_listing());
    }

    fn saved(&self) -> Option<SortedSessions> {
        SortedSessions::saved(&self.files)
    }

    /// A page of a command that runs without a daemon, and of the next daemon.
    fn assert_pages_are_right(&self) {
        let page = SessionQuery { limit: Some(51), ..SessionQuery::default() };
        let looked_at = looked_at(self.home.path(), &page).headers;
        let command = Store::new(&Paths::below(self.home.path()));
        assert_eq!(command.page(&page).unwrap().headers, looked_at);
        assert_eq!(keeping(self.home.path()).0.page(&page).unwrap().headers, looked_at);
    }
}

/// The first listing of a process took 80 ms of CPU time with 10,000 sessions, and 15 ms with few. Later it took as long only
/// after a process that had been killed, and in commands that run without a daemon.
#[test]
fn a_saved_listing_is_used_until_something_changes() {
    let Some(sessions) = SavedSessions::new() else { return };
    let SavedSessions { home, other, store, files } = &sessions;
    let page = SessionQuery { limit: Some(51), ..SessionQuery::default() };
    let known = sessions.saved().expect("nothing has changed");
    assert_eq!(known.page(&page).unwrap(), looked_at(home.path(), &page).headers);
    assert!(known.page(&SessionQuery::default()).is_none(), "it does not have all of them");
    assert!(known.is_saved, "it is not saved again");
    sessions.assert_pages_are_right();

    // The oldest one becomes the newest. It was open in another process when the listing was saved.
    let oldest = store.list().unwrap().headers.pop().unwrap().session;
    let (mut journal, _) = other.load(&oldest).unwrap();
    assert!(sessions.saved().is_some(), "nothing was written to it");
    journal.append(prompted("Again")).unwrap();
    assert!(sessions.saved().is_none() && store.has_unsaved_listing());
    let known = known.renewed(files, &AppendedHeaders::new()).expect("the watch knows what has changed");
    let headers = known.page(&page).unwrap();
    assert_eq!((&headers[0].session, headers[0].entries), (&oldest, 3));
    sessions.assert_pages_are_right();

    sessions.save();
    let (mut added, _) = other.create(&session(1_000), opened(&session(1_000))).unwrap();
    added.append(prompted("Hello")).unwrap();
    assert!(sessions.saved().is_none(), "one was added");
    sessions.assert_pages_are_right();
    drop((journal, added));

    let newest = |at: usize| store.list().unwrap().headers.swap_remove(at).session;
    let changes: [fn(&Path); 2] = [
        |journal| fs::write(journal.with_extension("new"), "").unwrap(),
        |journal| fs::remove_file(journal).unwrap(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        sessions.save();
        assert!(sessions.saved().is_some());
        change(&files.paths.journal(&newest(number)));
        assert!(sessions.saved().is_none(), "change {number}");
        sessions.assert_pages_are_right();
    }
    sessions.save();
    let (next, _) = keeping(home.path());
    assert_eq!(next.page(&page).unwrap().headers, looked_at(home.path(), &page).headers);
    // Everything else is looked at in the background.
    assert_eq!(next.list().unwrap().headers, looked_at(home.path(), &SessionQuery::default()).headers);
}

/// Regression, found by reading: a backup was copied over its home, with times (`cp -a`). The saved list was that of the backup,
/// and the directory had the time that belonged to it, so a session that had been created since was missing.
#[test]
fn a_restored_backup_hides_no_session() {
    let Some(sessions) = SavedSessions::new() else { return };
    let SavedSessions { home, other, files, .. } = &sessions;
    let (listing, journals) = (files.paths.saved_listing(), files.paths.journals());
    let backup = fs::read(&listing).unwrap();
    let time = fs::metadata(&journals).unwrap().modified().unwrap();
    let (mut added, _) = other.create(&session(1_000), opened(&session(1_000))).unwrap();
    added.append(prompted("Hello")).unwrap();
    drop(added);
    fs::write(&listing, backup).unwrap();
    fs::File::open(&journals).unwrap().set_modified(time).unwrap();
    assert!(sessions.saved().is_none());
    sessions.assert_pages_are_right();
    let page = SessionQuery { limit: Some(51), ..SessionQuery::default() };
    assert_eq!(looked_at(home.path(), &page).headers[0].session, session(1_000));
}

#[test]
fn only_journals_that_were_written_by_others_are_read_again() {
    let Some(sessions) = SavedSessions::new() else { return };
    let SavedSessions { home, other, store, files } = &sessions;
    let [cut, damaged] = [3, 4].map(|at| store.list().unwrap().headers.swap_remove(at).session);
    let bytes = fs::read(files.paths.journal(&cut)).unwrap();
    fs::write(files.paths.journal(&cut), &bytes[..bytes.len() - 2]).unwrap();
    fs::write(files.paths.journal(&damaged), "damage\nmore\n").unwrap();
    for _ in 0..2 {
        let known = sessions.saved().expect("the others are unchanged");
        let headers = &known.rows;
        let entries =
            |name| headers.iter().find(|(_, row)| row.header.session == name).map(|row| row.1.header.entries);
        assert_eq!((entries(cut.clone()), entries(damaged.clone())), (Some(1), None));
        assert_eq!(known.problems.len(), 1);
        sessions.assert_pages_are_right();
        // The damaged one is looked at each time, and keeps no other one from being saved.
        sessions.save();
    }
    let query = SessionQuery { limit: Some(51), ..SessionQuery::default() };
    let command = Store::new(&Paths::below(home.path())).page(&query).unwrap();
    assert_eq!(command.problems.len(), 1);
    assert_eq!(other.page(&query).unwrap().headers, looked_at(home.path(), &query).headers);
}

#[test]
fn an_unusable_saved_listing_costs_only_time() {
    let Some(sessions) = SavedSessions::new() else { return };
    let path = sessions.files.paths.saved_listing();
    let sound = fs::read(&path).unwrap();
    // The version before had no list of unsettled sessions.
    let text = String::from_utf8(sound.clone()).unwrap();
    let fields = text.split_once(',').unwrap().1.trim_end().replace(r#""unsettled":[],"#, "");
    let older = line::seal(fields.as_bytes(), None).bytes;
    // Regression, found by reading: after an update, headers of the version before were shown, in which a session that had lost
    // everything had no prompt.
    let fields = text.split_once(',').unwrap().1.trim_end().replace(r#""version":2,"#, r#""version":1,"#);
    let of_other_version = line::seal(fields.as_bytes(), None).bytes;
    let middle = sound.len() / 2;
    let flipped = [&sound[..middle], &[sound[middle] ^ 1], &sound[middle + 1..]].concat();
    let unusable = [
        Vec::new(),
        sound[..middle].to_vec(),
        sound[..sound.len() - 1].to_vec(),
        vec![0; sound.len()],
        flipped,
        older,
        of_other_version,
    ];
    for (number, bytes) in unusable.into_iter().enumerate() {
        assert_ne!(bytes, sound);
        fs::write(&path, bytes).unwrap();
        assert!(sessions.saved().is_none(), "case {number}");
        sessions.assert_pages_are_right();
    }
    fs::write(&path, sound).unwrap();
    assert!(sessions.saved().is_some());

    // As in a store that can't be written: the file can't be replaced.
    fs::remove_file(&path).unwrap();
    fs::create_dir_all(path.join("below")).unwrap();
    let (mut journal, _) = sessions.other.load(&session(0)).unwrap();
    journal.append(prompted("Again")).unwrap();
    assert!(sessions.store.has_unsaved_listing());
    // It is not tried again before the next change.
    sessions.save();
    assert!(sessions.saved().is_none());
    sessions.assert_pages_are_right();
}

#[test]
fn the_order_follows_a_clock_that_is_set_back() {
    let home = tempfile::tempdir().unwrap();
    let (store, files) = keeping(home.path());
    let (_journal, _) = store.create(&session(1), opened(&session(1))).unwrap();
    store.list().unwrap();
    let kept = files.listed.sessions.lock().take();
    if let Some(mut kept) = kept {
        // As if it had been listed before the clock was set back.
        kept.rows[0].0 += HOUR;
        assert!(kept.renewed(&files, &AppendedHeaders::new()).is_none());
    }
}
