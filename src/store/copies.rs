//! Complete journals written at once: forks, imports, backups. Each gets its name only when it is complete.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::blobs::BlobStore;
use super::check::{findings_in, unreadable};
use super::disk::{Disk, PutMode, RealDisk};
use super::health::Backup;
use super::line::{self, Bodies, JournalLine, LineLink};
use super::scan::{self, Scan};
use super::sync_mark::{Reached, SyncMark};
use super::{Header, Store, StoreError, StorePaths, io_error, now};
use epitome_thread::{Change, Entry, FORMAT_VERSION, Seq, SessionId};

/// A session forked from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ForkedSession {
    pub session: SessionId,
    pub from: SessionId,
    /// The last entry that both have in common.
    pub at: Seq,
    pub title: String,
    pub cwd: PathBuf,
}

/// Separates a fork's title from its origin. A fork of a fork names only the direct origin.
const FORK_MARK: &str = " (fork of ";

impl Store {
    /// The listing header of one session, read from its journal.
    pub fn header(&self, session: &SessionId) -> Result<Header, StoreError> {
        scan::read_header(&self.paths, session).map(|marked| marked.header)
    }

    /// Creates a session from the entries of another, up to and including `up_to` or all, and returns their
    /// number. Its entries are identical to the other's byte for byte, except for the id in the first one and
    /// the format, which is the current one. The other session may be open and is not changed.
    pub fn fork(&self, session: &SessionId, up_to: Option<Seq>, fork: &SessionId) -> Result<u64, StoreError> {
        let (journal, _) = self.copy_of(session, up_to, fork)?;
        self.publish(fork, &journal)?;
        Ok(journal.entries)
    }

    /// Forks a session up to and including an entry, or in its current state, and records the origin in the
    /// fork's log. The original is not changed and may be open.
    pub fn fork_with_origin(
        &self,
        session: &SessionId,
        at: Option<Seq>,
    ) -> Result<ForkedSession, StoreError> {
        let fork = super::new_id();
        let (mut journal, header) = self.copy_of(session, at, &fork)?;
        let at = Seq(journal.entries - 1);
        let old = header.title.as_deref().map(|title| title.split(FORK_MARK).next().unwrap_or(title).trim());
        let title = format!("{}{FORK_MARK}{session} at {at})", old.unwrap_or("Untitled"));
        let blobs = self.paths.blobs(&fork);
        let origin = Change::Forked { from: session.clone(), through: at };
        for change in [origin, Change::Titled { title: title.clone() }] {
            let entry = Entry { seq: Seq(journal.entries), at: now().max(header.updated_at), change };
            journal.encode(&fork, &entry, &blobs)?;
        }
        self.publish(&fork, &journal)?;
        Ok(ForkedSession { session: fork, from: session.clone(), at, title, cwd: header.cwd })
    }

    /// A journal for `fork` with the entries of a session, and their header.
    fn copy_of(
        &self,
        session: &SessionId,
        up_to: Option<Seq>,
        fork: &SessionId,
    ) -> Result<(WholeJournal, Header), StoreError> {
        let (scan, bytes) = scan::read(&self.paths, session, |_| Bodies::Inline)?;
        let wanted = up_to.map_or(usize::MAX, |seq| usize::try_from(seq.0).unwrap_or(usize::MAX));
        let (from, to) = (self.paths.blobs(session), self.paths.blobs(fork));
        let first = opening_for(&scan.entries[0], fork);
        let mut header = Header::opened(&first).expect("a log begins with an opening entry");
        let mut journal = WholeJournal::default();
        journal.encode(fork, &first, &to)?;
        let mut lines: Vec<Option<&[u8]>> = vec![None; scan.entries.len()];
        for line in &scan.lines {
            lines[line.seq.0 as usize] = Some(&bytes[line.bytes.clone()]);
        }
        for (entry, line) in scan.entries.iter().zip(lines).skip(1).take(wanted) {
            header.apply(entry);
            // A lost entry is written as a regular entry: the fork is not damaged.
            let Some(line) = line.and_then(line::open) else {
                journal.encode(fork, entry, &to)?;
                continue;
            };
            for hash in line::moved(line) {
                match from.share(&hash, &to) {
                    // A blob missing in the original is missing in the fork as well.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    shared => {
                        shared.map_err(|source| io_error("copy a blob into", to.directory(), source))?
                    }
                }
                journal.has_blobs = true;
            }
            journal.push(line.fields);
        }
        Ok((journal, header))
    }

    /// Stores a log from elsewhere as a new session. The entries must be numbered from 0 and start with the
    /// opening entry of this session.
    pub fn insert(&self, session: &SessionId, entries: &[Arc<Entry>]) -> Result<(), StoreError> {
        let unfit = |reason: String| StoreError::Unstorable { session: session.clone(), reason };
        if SessionId::parse(&session.0).is_none() {
            return Err(unfit("its id is not valid".to_owned()));
        }
        if self.paths.disk.stat(&self.paths.journal(session)).is_ok() {
            return Err(StoreError::Exists(session.clone()));
        }
        let blobs = self.paths.blobs(session);
        let mut journal = WholeJournal::default();
        for (seq, entry) in (0..).zip(entries) {
            let opens = matches!(&entry.change, Change::Opened { session: named, .. } if named == session);
            if entry.seq != Seq(seq) || opens != (seq == 0) {
                return Err(unfit(format!("entry {} is out of order", entry.seq)));
            }
            match opens {
                true => journal.encode(session, &opening_for(entry, session), &blobs)?,
                false => journal.encode(session, entry, &blobs)?,
            }
        }
        if entries.is_empty() {
            return Err(unfit("it has no entries".to_owned()));
        }
        self.publish(session, &journal)
    }

    /// Copies all sessions into a new or empty directory: journals up to their last complete line, with the
    /// blobs that they refer to, so that each session is a consistent snapshot. Sessions may be open. A
    /// damaged journal is copied as it is. The copy has the store's own layout.
    pub fn backup(&self, into: &Path) -> Result<Backup, StoreError> {
        let copy = StorePaths { data: Arc::from(into), disk: self.paths.disk.clone() };
        if !copy.names(into)?.is_empty() {
            let source = io::Error::new(io::ErrorKind::AlreadyExists, "the directory is not empty");
            return Err(io_error("make a backup in", into, source));
        }
        copy.make_directory(&copy.journals())?;
        let mut backup = Backup { into: into.to_path_buf(), sessions: 0, bytes: 0, findings: Vec::new() };
        for session in self.paths.sessions()? {
            match self.back_up(&session, &copy, &mut backup) {
                // Deleted since.
                Err(StoreError::NotFound(_)) => {}
                done => done?,
            }
        }
        copy.sync_directory(&copy.journals())?;
        copy.sync_directory(into)?;
        Ok(backup)
    }

    fn back_up(&self, session: &SessionId, copy: &StorePaths, backup: &mut Backup) -> Result<(), StoreError> {
        // The journal is read before its blobs, which are written before the lines that refer to them.
        let mark = SyncMark::read(&self.paths, session);
        let bytes = scan::read_file(&self.paths, session)?;
        let (whole, lines) = match Scan::read(session, &bytes, mark.as_ref(), Bodies::Inline) {
            Ok(scan) => {
                backup.findings.extend(findings_in(&self.paths, session, &scan.damage));
                (&bytes[..scan.mark.bytes as usize], scan.lines)
            }
            Err(error @ StoreError::NotFound(_)) => return Err(error),
            Err(error) => {
                backup.findings.push(unreadable(&self.paths, session, &error));
                (&bytes[..], Vec::new())
            }
        };
        let (from, to) = (self.paths.blobs(session), copy.blobs(session));
        let sealed = lines.iter().filter_map(|line| line::open(&bytes[line.bytes.clone()]));
        let named: BTreeSet<String> = sealed.flat_map(line::moved).collect();
        for hash in &named {
            backup.bytes += match from.copy(hash, &to) {
                // It is missing in the copy as well.
                Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
                copied => copied.map_err(|source| io_error("copy a blob into", to.directory(), source))?,
            };
        }
        if !named.is_empty() {
            to.sync_names().map_err(|source| io_error("sync the directory", to.directory(), source))?;
        }
        let path = copy.journal(session);
        let put = copy.disk.put(&path, whole, PutMode::Replace);
        put.map_err(|source| io_error("write", &path, source))?;
        if let Some(SyncMark { opening, reached: Some(reached) }) = mark {
            SyncMark::write(copy, session, &opening, reached);
        }
        backup.bytes += whole.len() as u64;
        backup.sessions += 1;
        Ok(())
    }

    /// Writes a complete journal under its final name. If that fails, the blobs written for it are left
    /// alone: if the id exists already, they belong to that session.
    fn publish(&self, session: &SessionId, journal: &WholeJournal) -> Result<(), StoreError> {
        let (directory, path) = (self.paths.journals(), self.paths.journal(session));
        if journal.has_blobs {
            let blobs = self.paths.blobs(session);
            let synced = blobs.sync_names();
            synced.map_err(|source| io_error("sync the directory", blobs.directory(), source))?;
        }
        self.paths.make_directory(&directory)?;
        self.paths.disk.put(&path, &journal.bytes, PutMode::New).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => StoreError::Exists(session.clone()),
            _ => io_error("write", &path, error),
        })?;
        self.paths.sync_journal_names()?;
        let opening = journal.bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let reached = Reached { entries: journal.entries, bytes: journal.bytes.len() as u64 };
        SyncMark::write(&self.paths, session, opening, reached);
        self.index.catch_up(session);
        Ok(())
    }

    /// Reads a journal outside the store, for example from a backup, with the blobs next to its directory. `name` is
    /// the assumed session if the first line is damaged.
    pub fn read_outside(path: &Path, name: Option<&SessionId>) -> Result<Option<Outside>, StoreError> {
        let bytes = RealDisk.read(path, u64::MAX).map_err(|source| io_error("read", path, source))?;
        let lines = || bytes.split(|byte| *byte == b'\n');
        let opened =
            lines().find_map(|line| Header::opened(&line::decode(line::open(line)?, Bodies::Inline).ok()?));
        let is_journal = opened.is_some() || lines().any(|line| line::open(line).is_some());
        let session = opened.map(|header| header.session).or_else(|| name.cloned());
        let Some(session) = session.filter(|_| is_journal) else { return Ok(None) };
        let blob_root = path.parent().and_then(Path::parent).unwrap_or(Path::new("")).join("blobs");
        let blobs = BlobStore::new(Arc::new(RealDisk), blob_root.join(&session.0));
        let scan = Scan::read(&session, &bytes, None, Bodies::Whole(&blobs))?;
        let sealed = scan.lines.iter().filter_map(|line| line::open(&bytes[line.bytes.clone()]));
        let lost_bodies = sealed.flat_map(line::moved).filter(|hash| blobs.check(hash).is_err()).count();
        let lost_entries = scan.damage.lost;
        let is_damaged = scan.damage.is_open();
        Ok(Some(Outside { entries: scan.entries, is_damaged, lost_entries, lost_bodies: lost_bodies as u64 }))
    }
}

/// A journal that was read from outside the store.
#[derive(Debug)]
pub struct Outside {
    pub entries: Vec<Arc<Entry>>,
    /// Whether there is damage that the user has not accepted.
    pub is_damaged: bool,
    pub lost_entries: u64,
    /// Bodies that are missing or changed; their entries contain placeholders.
    pub lost_bodies: u64,
}

/// A journal that is written at once, in the current format. It is completely on disk before it has a name.
#[derive(Default)]
struct WholeJournal {
    bytes: Vec<u8>,
    entries: u64,
    crc: u32,
    has_blobs: bool,
}

impl WholeJournal {
    fn chain(&self) -> Option<LineLink> {
        LineLink::in_format(FORMAT_VERSION, self.crc, self.bytes.len() as u64)
    }

    fn encode(&mut self, session: &SessionId, entry: &Entry, blobs: &BlobStore) -> Result<(), StoreError> {
        let line = line::encode(session, entry, self.chain(), blobs)?;
        self.has_blobs |= line.has_blobs;
        self.add(&line);
        Ok(())
    }

    /// Adds a line of another journal.
    fn push(&mut self, fields: &[u8]) {
        let line = line::seal(fields, self.chain());
        self.add(&line);
    }

    fn add(&mut self, line: &JournalLine) {
        self.bytes.extend_from_slice(&line.bytes);
        self.crc = line.crc;
        self.entries += 1;
    }
}

/// The opening entry of a copy, which has the current format.
fn opening_for(opening: &Entry, name: &SessionId) -> Entry {
    let mut opening = opening.clone();
    if let Change::Opened { session, format, .. } = &mut opening.change {
        *session = name.clone();
        *format = FORMAT_VERSION;
    }
    opening
}
