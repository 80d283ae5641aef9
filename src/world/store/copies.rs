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
use super::line::{self, Bodies};
use super::log::{StoredLog, WholeLog};
use super::scan::{self, Scan};
use super::sync_mark::SyncMark;
use super::{DiskResultExt, Header, SessionHolder, Store, StoreError, StorePaths, io_error, now};
use epitome_thread::{Change, Entry, FORMAT_VERSION, Seq, SessionId, Thread};

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
    /// The listing header of one session, as its log has it.
    pub fn header(&self, session: &SessionId) -> Result<Header, StoreError> {
        self.logs.header(session)
    }

    /// Creates a session from the entries of another, up to and including `up_to` or all, and returns their
    /// number. Its entries are identical to the other's byte for byte, except for the id in the first one and
    /// the format, which is the current one. The other session may be open and is not changed.
    pub fn fork(&self, session: &SessionId, up_to: Option<Seq>, fork: &SessionId) -> Result<u64, StoreError> {
        let (journal, header) = self.copy_of(session, up_to, fork)?;
        self.logs.publish(fork, &journal, &header)?;
        Ok(journal.entries)
    }

    /// Writes a new session. Its bodies are stored before its log, so they are removed if that fails.
    fn or_nothing<T>(
        &self,
        session: &SessionId,
        write: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        write().inspect_err(|error| {
            // Another process was faster with this id.
            if matches!(error, StoreError::Exists(_)) {
                return;
            }
            if let Err(error) = self.logs.delete(session) {
                tracing::warn!(%session, %error, "what a failed copy has stored can't be removed");
            }
        })
    }

    /// Forks a session up to and including an entry, or in its current state, and records the origin in the
    /// fork's log. The original is not changed and may be open.
    pub fn fork_with_origin(
        &self,
        session: &SessionId,
        at: Option<Seq>,
    ) -> Result<ForkedSession, StoreError> {
        let fork = super::new_id();
        self.or_nothing(&fork, || self.write_fork(session, at, &fork))
    }

    fn write_fork(
        &self,
        session: &SessionId,
        at: Option<Seq>,
        fork: &SessionId,
    ) -> Result<ForkedSession, StoreError> {
        let (mut journal, mut header) = self.copy_of(session, at, fork)?;
        let at = Seq(journal.entries - 1);
        let old = header.title.as_deref().map(|title| title.split(FORK_MARK).next().unwrap_or(title).trim());
        let title = format!("{}{FORK_MARK}{session} at {at})", old.unwrap_or("Untitled"));
        let blobs = self.logs.blobs(fork);
        let origin = Change::Forked { from: session.clone(), through: at };
        for change in [origin, Change::Titled { title: title.clone() }] {
            let entry = Entry { seq: Seq(journal.entries), at: now().max(header.updated_at), change };
            journal.encode(fork, &entry, &*blobs)?;
            header.apply(&entry);
        }
        self.logs.publish(fork, &journal, &header)?;
        Ok(ForkedSession { session: fork.clone(), from: session.clone(), at, title, cwd: header.cwd })
    }

    /// A journal for `fork` with the entries of a session, and their header.
    fn copy_of(
        &self,
        session: &SessionId,
        up_to: Option<Seq>,
        fork: &SessionId,
    ) -> Result<(WholeLog, Header), StoreError> {
        if SessionId::parse(&session.0).is_none() {
            return Err(StoreError::NotFound(session.clone()));
        }
        let stored = self.logs.read(session)?;
        let scan = stored.scan_with(session, Bodies::Inline)?;
        let bytes = &stored.bytes;
        let wanted = up_to.map_or(usize::MAX, |seq| usize::try_from(seq.0).unwrap_or(usize::MAX));
        let to = self.logs.blobs(fork);
        let first = opening_for(&scan.entries[0], fork);
        let mut header = Header::opened(&first).expect("a log begins with an opening entry");
        let mut journal = WholeLog::default();
        journal.encode(fork, &first, &*to)?;
        let mut lines: Vec<Option<&[u8]>> = vec![None; scan.entries.len()];
        for line in &scan.lines {
            lines[line.seq.0 as usize] = Some(&bytes[line.bytes.clone()]);
        }
        for (entry, line) in scan.entries.iter().zip(lines).skip(1).take(wanted) {
            header.apply(entry);
            // A lost entry is written as a regular entry: the fork is not damaged.
            let Some(line) = line.and_then(line::open) else {
                journal.encode(fork, entry, &*to)?;
                continue;
            };
            let moved = line::moved(line);
            for hash in &moved {
                // A blob missing in the original is missing in the fork as well.
                self.logs.share_blob(hash, session, fork)?;
            }
            journal.push(line.fields, !moved.is_empty());
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
        match self.logs.header(session) {
            Err(StoreError::NotFound(_)) => {}
            Err(error @ StoreError::Unreachable { .. }) => return Err(error),
            Ok(_) | Err(_) => return Err(StoreError::Exists(session.clone())),
        }
        for (seq, entry) in (0..).zip(entries) {
            let opens = matches!(&entry.change, Change::Opened { session: named, .. } if named == session);
            if entry.seq != Seq(seq) || opens != (seq == 0) {
                return Err(unfit(format!("entry {} is out of order", entry.seq)));
            }
        }
        let (first, rest) = entries.split_first().ok_or_else(|| unfit("it has no entries".to_owned()))?;
        let opening = opening_for(first, session);
        let mut header = Header::opened(&opening).expect("a log begins with an opening entry");
        let blobs = self.logs.blobs(session);
        self.or_nothing(session, || {
            let mut journal = WholeLog::default();
            journal.encode(session, &opening, &*blobs)?;
            for entry in rest {
                journal.encode(session, entry, &*blobs)?;
                header.apply(entry);
            }
            self.logs.publish(session, &journal, &header)
        })
    }

    /// Adds entries to a closed session, which `more` makes of its thread; `None` if it makes none. Returns how many.
    pub fn extend(
        &self,
        session: &SessionId,
        more: impl FnOnce(&Thread) -> Option<Vec<Entry>>,
    ) -> Result<Option<u64>, StoreError> {
        let (journal, thread) = self.open(session)?;
        let Some(entries) = more(&thread) else { return Ok(None) };
        journal.can_append()?;
        let (head, mut writer) = journal.split();
        entries.iter().try_for_each(|entry| writer.write(entry))?;
        head.syncer().sync()?;
        Ok(Some(entries.len() as u64))
    }

    /// Copies a closed session into another store under its own id, line by line and body by body, and compares what can
    /// be read there. False if the same log was there already.
    pub fn copy_to(&self, session: &SessionId, to: &Store) -> Result<bool, StoreError> {
        let unfit =
            |reason: &str| StoreError::Unstorable { session: session.clone(), reason: reason.to_owned() };
        if self.is_in_use(session) {
            return Err(StoreError::InUse(session.clone(), SessionHolder::default()));
        }
        let stored = self.logs.read(session)?;
        let scan = stored.scan_with(session, Bodies::Inline)?;
        if scan.damage.count > 0 {
            return Err(unfit("lines of its log are damaged or missing; fork it, and copy the fork"));
        }
        match to.logs.read(session) {
            Err(StoreError::NotFound(_)) => {}
            Err(error) => return Err(error),
            Ok(there) if there.bytes == stored.bytes[..scan.bytes() as usize] => return Ok(false),
            Ok(_) => return Err(StoreError::Exists(session.clone())),
        }
        let (from, into) = (self.logs.blobs(session), to.logs.blobs(session));
        for hash in scan.moved(&stored.bytes).collect::<BTreeSet<String>>() {
            // A blob missing in the original is missing in the copy as well.
            if let Some(body) = from.get(&hash)? {
                into.put(&hash, &body)?;
            }
        }
        to.logs.publish(session, &WholeLog::same_as(&stored, &scan), &scan.header)?;
        if self.read(session)? == to.read(session)? {
            return Ok(true);
        }
        Err(unfit("its copy does not have the same entries; the original is unchanged"))
    }

    /// Copies all sessions into a new or empty directory: journals up to their last complete line, with the
    /// blobs that they refer to, so that each session is a consistent snapshot. Sessions may be open. A
    /// damaged journal is copied as it is. The copy has the store's own layout.
    pub fn backup(&self, into: &Path) -> Result<Backup, StoreError> {
        self.only_files("make a backup")?;
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
        let stored = scan::read_stored(&self.paths, session)?;
        let (whole, named) = match stored.scan_with(session, Bodies::Inline) {
            Ok(scan) => {
                backup.findings.extend(findings_in(&self.paths, session, &scan.damage));
                (&stored.bytes[..scan.mark.bytes as usize], scan.moved(&stored.bytes).collect())
            }
            Err(error @ StoreError::NotFound(_)) => return Err(error),
            Err(error) => {
                backup.findings.push(unreadable(&self.paths, session, &error));
                (&stored.bytes[..], BTreeSet::<String>::new())
            }
        };
        let (from, to) = (self.paths.blobs(session), copy.blobs(session));
        for hash in &named {
            // One that is missing is missing in the copy as well.
            let copied = from.copy(hash, &to).if_found().doing("copy a blob into", to.directory())?;
            backup.bytes += copied.unwrap_or(0);
        }
        if !named.is_empty() {
            to.sync_names()?;
        }
        let path = copy.journal(session);
        copy.disk.put(&path, whole, PutMode::Replace).doing("write", &path)?;
        if let Some(SyncMark { opening, reached: Some(reached) }) = &stored.mark {
            SyncMark::write(copy, session, opening, *reached);
        }
        backup.bytes += whole.len() as u64;
        backup.sessions += 1;
        Ok(())
    }

    /// Reads a journal outside the store, for example from a backup, with the blobs next to its directory. `name` is
    /// the assumed session if the first line is damaged.
    pub fn read_outside(path: &Path, name: Option<&SessionId>) -> Result<Option<Outside>, StoreError> {
        let bytes = RealDisk.read(path, u64::MAX).doing("read", path)?;
        let lines = || bytes.split(|byte| *byte == b'\n');
        let opened =
            lines().find_map(|line| Header::opened(&line::decode(line::open(line)?, Bodies::Inline).ok()?));
        let is_journal = opened.is_some() || lines().any(|line| line::open(line).is_some());
        let session = opened.map(|header| header.session).or_else(|| name.cloned());
        let Some(session) = session.filter(|_| is_journal) else { return Ok(None) };
        let blob_root = path.parent().and_then(Path::parent).unwrap_or(Path::new("")).join("blobs");
        let blobs = BlobStore::new(Arc::new(RealDisk), blob_root.join(&session.0));
        let Scan { entries, damage, lost_bodies, .. } =
            StoredLog { bytes, mark: None }.scan(&session, &blobs)?;
        let (is_damaged, lost_entries) = (damage.is_open(), damage.lost);
        Ok(Some(Outside { entries, is_damaged, lost_entries, lost_bodies }))
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

/// The opening entry of a copy, which has the current format.
fn opening_for(opening: &Entry, name: &SessionId) -> Entry {
    let mut opening = opening.clone();
    if let Change::Opened { session, format, .. } = &mut opening.change {
        *session = name.clone();
        *format = FORMAT_VERSION;
    }
    opening
}
