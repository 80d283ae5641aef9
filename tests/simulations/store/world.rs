//! Sessions on a simulated disk, and the record of what was acknowledged to their user.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use epitome_simulated_disk::{InjectedFault, SimDisk};
use epitome_store::{FindingKind, FindingSeverity, INLINE_BYTES_MAX, Journal, Store, StoreError};
use epitome_thread::{
    Change, Content, Entry, FORMAT_VERSION, Message, MessageId, Origin, Seq, SessionId, Thread,
};

/// Maximum number of steps between two power losses.
const STEPS_MAX: usize = 24;

/// Maximum number of sessions on one disk.
const SESSIONS_MAX: usize = 4;

/// A disk with the sessions that should be on it.
pub struct World {
    pub disk: SimDisk,
    pub store: Store,
    pub sessions: Vec<SimSession>,
    pub rng: fastrand::Rng,
    words: u64,
    /// Whether an entry that was never acknowledged is stored without its body.
    has_lost_bodies: bool,
}

/// A session, and what was acknowledged to its user.
pub struct SimSession {
    pub id: SessionId,
    /// Every change that was written, or may have been.
    pub history: Vec<Change>,
    /// The number of changes, from the first, that were acknowledged.
    pub acknowledged: usize,
    pub state: SimSessionState,
    journal: Option<Journal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimSessionState {
    There,
    /// It may or may not exist, because its creation or deletion was interrupted.
    Uncertain,
    Deleted,
}

pub fn data() -> PathBuf {
    PathBuf::from("/home/data")
}

impl World {
    pub fn new(seed: u64) -> World {
        // Ids of sessions and file handles.
        fastrand::seed(seed);
        let disk = SimDisk::new(seed, &data());
        let store = Store::on_disk(&data(), Arc::new(disk.clone()));
        World {
            disk,
            store,
            sessions: Vec::new(),
            rng: fastrand::Rng::with_seed(!seed),
            words: 0,
            has_lost_bodies: false,
        }
    }

    /// Performs random operations on sessions, until one fails or enough are done.
    pub fn work(&mut self) {
        for _ in 0..self.rng.usize(1..=STEPS_MAX) {
            self.step();
            if self.disk.is_off() {
                break;
            }
        }
    }

    fn step(&mut self) {
        let alive: Vec<usize> = (0..self.sessions.len()).filter(|at| self.sessions[*at].is_there()).collect();
        let Some(at) = self.rng.choice(&alive).copied() else { return self.create() };
        let has_room = alive.len() < SESSIONS_MAX;
        match self.rng.u32(..24) {
            0 | 1 if has_room => self.create(),
            2 if has_room => self.fork(at),
            3 if has_room => self.insert(at),
            4 => self.sessions[at].journal = None,
            5 if self.rng.bool() => self.delete(at),
            6..=11 => self.sync(at),
            _ => self.append(at),
        }
    }

    fn create(&mut self) {
        let id = epitome_store::new_id();
        let opened = Change::Opened { format: FORMAT_VERSION, session: id.clone(), cwd: "/w".into() };
        let created = self.store.create(&id, opened.clone());
        println!("create {id}: {:?}", created.as_ref().map(|_| ()));
        if created.is_ok() || self.disk.is_off() {
            let state = if created.is_ok() { SimSessionState::There } else { SimSessionState::Uncertain };
            let journal = created.ok().map(|(journal, _)| journal);
            self.sessions.push(SimSession { id, history: vec![opened], acknowledged: 0, state, journal });
        }
    }

    /// Opens a session as a later process would, if it is not open.
    fn open(&mut self, at: usize) -> Option<&mut Journal> {
        if self.sessions[at].journal.is_none() {
            match self.store.load(&self.sessions[at].id) {
                Ok((journal, entries)) => {
                    self.sessions[at].compare(&entries);
                    assert!(journal.damage().is_none(), "{:?}", journal.damage());
                    self.sessions[at].journal = Some(journal);
                }
                Err(error) => {
                    assert!(self.disk.has_failed(), "a session was not opened: {error}");
                    return None;
                }
            }
        }
        self.sessions[at].journal.as_mut()
    }

    fn next_change(&mut self) -> Change {
        self.words += 1;
        let mut text = format!("word {} ", self.words);
        match self.rng.u32(..40) {
            0 => text = text.repeat(INLINE_BYTES_MAX / text.len() + 1),
            1..=5 => text = text.repeat(self.rng.usize(1..600)),
            _ => {}
        }
        let message =
            Message { id: MessageId(self.words), content: vec![Content::Text { text }], author: None };
        Change::Said { message, origin: Origin::Person }
    }

    pub fn append(&mut self, at: usize) {
        let change = self.next_change();
        if change_bytes(&change) > INLINE_BYTES_MAX {
            self.disk.count("a body was moved out");
        }
        let Some(journal) = self.open(at) else { return };
        let appended = journal.append(change.clone());
        println!("append to {}: {:?}", self.sessions[at].id, appended.as_ref().map(|entry| entry.seq));
        // A failed append leaves nothing, unless the power fails after the write.
        if appended.is_ok() || self.disk.is_off() {
            self.sessions[at].history.push(change);
        } else {
            self.disk.count("an append failed");
        }
    }

    pub fn sync(&mut self, at: usize) {
        let Some(journal) = self.open(at) else { return };
        let synced = journal.syncer().sync();
        let can_append = journal.can_append();
        println!("sync {}: {synced:?}", self.sessions[at].id);
        match synced {
            Ok(()) => self.sessions[at].acknowledged = self.sessions[at].history.len(),
            Err(StoreError::SyncFailed(_)) => {
                assert!(can_append.is_err(), "a session whose sync failed does not ask a model");
                self.disk.count("a session was closed after a failed sync");
                self.sessions[at].journal = None;
            }
            Err(_) => {}
        }
    }

    fn fork(&mut self, at: usize) {
        let entry = Seq(self.rng.u64(..self.sessions[at].history.len() as u64));
        let from = self.sessions[at].id.clone();
        let forked = self.store.fork_with_origin(&from, Some(entry));
        println!("fork {from} at {entry}: {:?}", forked.as_ref().map(|forked| &forked.session));
        match forked {
            Ok(forked) => {
                let mut history = self.sessions[at].history[..=entry.0 as usize].to_vec();
                let session = forked.session.clone();
                history[0] = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
                history.push(Change::Forked { from, through: entry });
                history.push(Change::Titled { title: forked.title });
                let acknowledged = history.len();
                let (id, state) = (forked.session, SimSessionState::There);
                self.sessions.push(SimSession { id, history, acknowledged, state, journal: None });
                self.disk.count("a session was forked");
            }
            Err(error) => {
                assert!(self.disk.has_failed(), "a fork failed: {error}");
                self.disk.count("a fork failed");
            }
        }
    }

    fn insert(&mut self, at: usize) {
        let id = epitome_store::new_id();
        let opened = Change::Opened { format: FORMAT_VERSION, session: id.clone(), cwd: "/w".into() };
        let more = self.sessions[at].history[1..].iter().cloned();
        let history: Vec<Change> = [opened].into_iter().chain(more).collect();
        let entries = (0..)
            .zip(&history)
            .map(|(seq, change)| Arc::new(Entry { seq: Seq(seq), at: 1, change: change.clone() }));
        let entries: Vec<Arc<Entry>> = entries.collect();
        let inserted = self.store.insert(&id, &entries);
        println!("insert {id}: {inserted:?}");
        match inserted {
            Ok(()) => {
                let acknowledged = history.len();
                let state = SimSessionState::There;
                self.sessions.push(SimSession { id, history, acknowledged, state, journal: None });
            }
            Err(error) => {
                assert!(self.disk.has_failed(), "an insert failed: {error}");
                self.disk.count("an import failed");
                // It may or may not have its name.
                let state = SimSessionState::Uncertain;
                self.sessions.push(SimSession { id, history, acknowledged: 0, state, journal: None });
            }
        }
    }

    fn delete(&mut self, at: usize) {
        self.sessions[at].journal = None;
        let deleted = self.store.delete(&self.sessions[at].id);
        println!("delete {}: {deleted:?}", self.sessions[at].id);
        match deleted {
            Ok(()) => {
                self.sessions[at].state = SimSessionState::Deleted;
                self.disk.count("a session was deleted");
            }
            Err(error) => {
                assert!(self.disk.has_failed(), "a deletion failed: {error}");
                self.sessions[at].state = SimSessionState::Uncertain;
                self.disk.count("a deletion failed");
            }
        }
    }

    /// All processes end.
    pub fn kill(&mut self) {
        self.sessions.iter_mut().for_each(|session| session.journal = None);
    }

    /// The power fails and returns, and everything is compared with what was acknowledged.
    pub fn lose_power(&mut self) {
        println!("the power fails and comes back");
        self.kill();
        self.disk.restart();
        self.store = Store::on_disk(&data(), Arc::new(self.disk.clone()));
        self.recover();
    }

    /// Opens all sessions without faults.
    pub fn recover(&mut self) {
        for at in 0..self.sessions.len() {
            let session = &mut self.sessions[at];
            match self.store.load(&session.id) {
                Ok((journal, entries)) => {
                    println!("{} has {} entries", session.id, entries.len());
                    assert_ne!(session.state, SimSessionState::Deleted, "{} is there again", session.id);
                    session.compare(&entries);
                    assert!(journal.damage().is_none(), "{}: {:?}", session.id, journal.damage());
                    // Changes that were not acknowledged may be lost; then they are forgotten.
                    session.history.truncate(entries.len());
                    for (written, entry) in
                        session.history.iter_mut().zip(&entries).skip(session.acknowledged)
                    {
                        if is_placeholder(&entry.change) {
                            *written = entry.change.clone();
                            self.has_lost_bodies = true;
                        }
                    }
                    session.state = SimSessionState::There;
                }
                Err(StoreError::NotFound(_)) => {
                    let is_acknowledged = session.state == SimSessionState::There && session.acknowledged > 0;
                    assert!(!is_acknowledged, "{} is lost", session.id);
                    session.state = SimSessionState::Deleted;
                }
                // The first line of a session whose file was never synced may be missing while later ones are there.
                Err(StoreError::Unreadable(_)) if session.acknowledged == 0 => {
                    self.disk.count("a session that was never synced is unreadable");
                    self.store.delete(&session.id).expect("no fault is planned");
                    session.state = SimSessionState::Deleted;
                }
                Err(error) => panic!("{}: {error}", session.id),
            }
        }
        self.expect_health();
        // A second recovery changes no byte.
        let before = self.disk.files();
        for session in &self.sessions {
            drop(self.store.load(&session.id));
        }
        let after = self.disk.files();
        let differs = before.iter().find(|(path, bytes)| after.get(*path) != Some(bytes));
        assert!(before.len() == after.len() && differs.is_none(), "a second recovery changed {differs:?}");
        // And each session continues.
        for at in 0..self.sessions.len() {
            if self.sessions[at].is_there() {
                self.append(at);
                self.sync(at);
                assert_eq!(self.sessions[at].acknowledged, self.sessions[at].history.len());
                self.sessions[at].journal = None;
                let entries = self.store.read(&self.sessions[at].id).expect("it was just written");
                self.sessions[at].compare(&entries);
            }
        }
        self.expect_health();
    }

    /// The check reports only what a crash may leave.
    pub fn expect_health(&self) {
        let health = self.store.check().expect("the store can be read");
        for finding in &health.findings {
            let is_expected = match finding.kind {
                FindingKind::TornKept | FindingKind::UnnamedBlob | FindingKind::Index => true,
                // Blobs of sessions that were never acknowledged, or are deleted.
                FindingKind::OrphanBlobs => finding.severity == FindingSeverity::Warning,
                FindingKind::Leftover => true,
                FindingKind::MissingBlob => self.has_lost_bodies,
                _ => false,
            };
            assert!(is_expected, "{finding:?}");
            if finding.kind == FindingKind::TornKept {
                self.disk.count("an unfinished write was cut off");
            }
        }
    }

    pub fn fault(&mut self) -> InjectedFault {
        match self.rng.u32(..3) {
            0 => InjectedFault::Error(std::io::ErrorKind::Other),
            1 => InjectedFault::Error(std::io::ErrorKind::StorageFull),
            _ => InjectedFault::PowerLoss,
        }
    }

    pub fn journal(&self, at: usize) -> PathBuf {
        Path::new(&data()).join(format!("journals/{}.jsonl", self.sessions[at].id))
    }
}

impl SimSession {
    pub fn is_there(&self) -> bool {
        self.state == SimSessionState::There
    }

    pub fn is_open(&self) -> bool {
        self.journal.is_some()
    }

    /// Checks that acknowledged entries are stored, and that stored entries were written.
    pub fn compare(&self, entries: &[Arc<Entry>]) {
        assert!(
            entries.len() >= self.acknowledged,
            "{}: {} of {} acknowledged entries",
            self.id,
            entries.len(),
            self.acknowledged
        );
        assert!(entries.len() <= self.history.len(), "{}: more than was written", self.id);
        for (entry, written) in entries.iter().zip(&self.history) {
            // The body was never acknowledged, or could not be read this time.
            let is_unread = || {
                let is_acknowledged = entry.seq.0 < self.acknowledged as u64;
                is_placeholder(&entry.change)
                    && (!is_acknowledged || format!("{:?}", entry.change).contains("cannot be read: "))
            };
            assert!(
                entry.change == *written || is_unread(),
                "{}: entry {} is another: {:.200}",
                self.id,
                entry.seq,
                format!("{:?}", entry.change)
            );
        }
        Thread::replay(entries.iter().cloned()).expect("what was read is a log");
    }
}

fn change_bytes(change: &Change) -> usize {
    match change {
        Change::Said { message, .. } => message.text().len(),
        _ => 0,
    }
}

fn is_placeholder(change: &Change) -> bool {
    matches!(change, Change::Said { message, .. } if message.text().starts_with("[A body of this entry is lost"))
}
