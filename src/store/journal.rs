//! The journal: one append-only file per session, the source of truth for its thread.
//!
//! It never changes what it has written. It removes only a failed write and the remains of an interrupted write,
//! which it keeps elsewhere. A lock ensures that no two processes write the same session.
//!
//! Work that must not be stored, such as that of a hook's callback, has a journal in memory: the same calls,
//! without a file.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::blobs::BlobStore;
use super::disk::{DiskFile, FileId, OpenMode};
use super::header::{Header, JournalMark, MarkedHeader};
use super::index::Index;
use super::line::{self, Bodies, LineLink};
use super::scan::{JournalDamage, Scan, ScannedLine};
use super::sync_mark::{Reached, SyncMark};
use super::{StoreError, StorePaths, draft_path, io_error, now};
use epitome_thread::{Change, Entry, Seq, SessionId};

/// How long to wait for the lock of a journal. A process that released one may just have forked a child, which has
/// copies of all descriptors until it execs.
const JUST_HELD: Duration = Duration::from_millis(250);

/// A session's log, open for appending. Dropping it lets other processes open the session.
pub struct Journal {
    head: JournalHead,
    writer: JournalWriter,
}

/// Gives each new entry of a log its number and time, without waiting for the disk. A [`JournalWriter`] then writes the
/// entries in that order.
pub struct JournalHead {
    session: SessionId,
    next: Seq,
    updated_at: u64,
    damage: JournalDamage,
    /// The staged entry that accepts the damage, with the number of places that were accepted before it.
    acceptance: Option<(Seq, u64)>,
    /// `None` for a journal in memory.
    log: Option<Arc<SharedJournal>>,
}

/// Writes the entries that its [`JournalHead`] has numbered. Dropping it lets other processes open the session.
pub struct JournalWriter {
    session: SessionId,
    storage: Storage,
    header: Header,
    mark: JournalMark,
}

/// Where a journal's entries are stored.
enum Storage {
    Disk {
        log: Arc<SharedJournal>,
        index: Index,
        tail: Tail,
    },
    /// Not stored; the caller keeps the entries.
    Memory,
}

/// Repairs that the file needs before the next line.
#[derive(Debug, Default)]
struct Tail {
    /// Bytes of a failed write may follow the mark.
    is_unclean: bool,
    /// The last line has no newline.
    needs_newline: bool,
    /// The first line is damaged, and is to be written again from its copy.
    needs_opening: bool,
}

/// State shared by a journal and its syncers.
struct SharedJournal {
    session: SessionId,
    paths: StorePaths,
    blobs: BlobStore,
    file: Box<dyn DiskFile>,
    id: FileId,
    format: u32,
    /// The first line, without its newline.
    opening: Vec<u8>,
    written: Mutex<Written>,
    synced: Mutex<Synced>,
    /// After a failed sync the kernel may mark lost pages as clean: no later sync can be trusted. Set while
    /// `synced` is locked, and read without it.
    has_failed: AtomicBool,
}

/// How much of a log is written, up to the last complete line.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    reached: Reached,
    lines_with_blobs: u64,
    /// How many bytes of it are known to be on disk.
    synced_bytes: u64,
}

/// How much of a log was synced by this process.
#[derive(Debug, Default)]
struct Synced {
    /// `None` before the first sync: how much an earlier process synced does not matter.
    bytes: Option<u64>,
    lines_with_blobs: u64,
}

impl Journal {
    pub(super) fn create(
        paths: &StorePaths,
        index: &Index,
        session: &SessionId,
        opened: Change,
    ) -> Result<(Journal, Arc<Entry>), StoreError> {
        let format = match &opened {
            Change::Opened { session: named, format, .. } if named == session => *format,
            _ => panic!("a log begins with the opening entry of its session"),
        };
        if SessionId::parse(&session.0).is_none() {
            return Err(not_an_id(session));
        }
        let entry = Arc::new(Entry { seq: Seq(0), at: now(), change: opened });
        let blobs = paths.blobs(session);
        let line = line::encode(session, &entry, LineLink::in_format(format, 0, 0), &blobs)?;
        let path = paths.journal(session);
        let file = match paths.disk.open(&path, OpenMode::AppendNew) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                paths.make_directory(&paths.journals())?;
                paths.disk.open(&path, OpenMode::AppendNew)
            }
            opened => opened,
        };
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(StoreError::Exists(session.clone()));
            }
            file => file.map_err(|source| io_error("create", &path, source))?,
        };
        let id = lock(&*file, session, &path)?;

        if let Err(source) = file.append(&line.bytes) {
            // The caller does not know the session yet, so an empty file must not remain.
            let _ = paths.disk.remove_file(&path);
            return Err(io_error("append to", &path, source));
        }
        let mark = JournalMark { entries: 1, bytes: line.bytes.len() as u64, crc: line.crc };
        let mut opening = line.bytes;
        opening.pop();
        let log = SharedJournal {
            session: session.clone(),
            paths: paths.clone(),
            blobs,
            file,
            id,
            format,
            opening,
            written: Mutex::default(),
            synced: Mutex::default(),
            has_failed: AtomicBool::new(false),
        };
        log.written().reached = mark.reached();
        let storage = Storage::Disk { log: Arc::new(log), index: index.clone(), tail: Tail::default() };
        let header = Header::opened(&entry).expect("the change was asserted to be an opening");
        Ok((Journal::new(storage, header, mark, JournalDamage::default()), entry))
    }

    pub(super) fn load(
        paths: &StorePaths,
        index: &Index,
        session: &SessionId,
    ) -> Result<(Journal, Vec<Arc<Entry>>), StoreError> {
        if SessionId::parse(&session.0).is_none() {
            return Err(StoreError::NotFound(session.clone()));
        }
        let path = paths.journal(session);
        let file = match paths.disk.open(&path, OpenMode::Append) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NotFound(session.clone()));
            }
            file => file.map_err(|source| io_error("open", &path, source))?,
        };
        let id = lock(&*file, session, &path)?;
        let known = SyncMark::read(paths, session);
        let bytes = file.read().map_err(|source| io_error("read", &path, source))?;
        let blobs = paths.blobs(session);
        let scan = Scan::read(session, &bytes, known.as_ref(), Bodies::Whole(&blobs))?;
        let Scan { entries, header, mark, lines, format, opening, has_opening, synced, damage } = scan;
        let synced = synced.unwrap_or(0);
        let (kept, torn) = bytes.split_at(mark.bytes as usize);
        if !torn.is_empty() {
            cut(paths, session, &*file, mark.bytes, torn)?;
        }
        if !damage.is_open() && (synced as usize) < kept.len() {
            // After a failed sync, pages may be readable that are not on disk, and that no sync writes again.
            paths
                .disk
                .open(&path, OpenMode::Overwrite)
                .and_then(|file| file.write_at(&kept[synced as usize..], synced))
                .map_err(|source| io_error("write again what was not synced in", &path, source))?;
        }
        if damage.is_open() {
            tracing::warn!(%session, places = damage.count, lost = damage.lost, "a log is damaged");
        }
        // An earlier process may have ended before it synced the names of these blobs.
        let unsynced = lines.iter().filter(|line| line.bytes.end as u64 > synced);
        let has_blobs = |line: &&ScannedLine| {
            line::open(&bytes[line.bytes.clone()]).is_some_and(|sealed| !line::moved(sealed).is_empty())
        };
        let lines_with_blobs = unsynced.filter(has_blobs).count() as u64;
        let written = Written { reached: mark.reached(), lines_with_blobs, synced_bytes: synced };
        let tail = Tail {
            is_unclean: false,
            needs_newline: kept.last().is_some_and(|byte| *byte != b'\n'),
            needs_opening: !has_opening,
        };
        let log = SharedJournal {
            session: session.clone(),
            paths: paths.clone(),
            blobs,
            file,
            id,
            format,
            opening,
            written: Mutex::new(written),
            synced: Mutex::default(),
            has_failed: AtomicBool::new(false),
        };
        let storage = Storage::Disk { log: Arc::new(log), index: index.clone(), tail };
        Ok((Journal::new(storage, header, mark, damage), entries))
    }

    /// Creates a log without a file, from an opening entry and any further changes. It holds no lock, does
    /// not appear in listings, and its syncer does nothing.
    pub fn in_memory(opened: Change, more: Vec<Change>) -> (Journal, Vec<Arc<Entry>>) {
        let first = Arc::new(Entry { seq: Seq(0), at: now(), change: opened });
        let header = Header::opened(&first).expect("a log begins with an opening entry");
        let mark = JournalMark { entries: 1, bytes: 0, crc: 0 };
        let mut journal = Journal::new(Storage::Memory, header, mark, JournalDamage::default());
        let mut entries = vec![first];
        for change in more {
            entries.push(journal.append(change).expect("memory refuses nothing"));
        }
        (journal, entries)
    }

    fn new(storage: Storage, header: Header, mark: JournalMark, damage: JournalDamage) -> Journal {
        let head = JournalHead {
            session: header.session.clone(),
            next: Seq(mark.entries),
            updated_at: header.updated_at,
            damage,
            acceptance: None,
            log: match &storage {
                Storage::Disk { log, .. } => Some(log.clone()),
                Storage::Memory => None,
            },
        };
        Journal { head, writer: JournalWriter { session: header.session.clone(), storage, header, mark } }
    }

    /// Splits the journal, to number entries in one place and write them in another.
    pub fn split(self) -> (JournalHead, JournalWriter) {
        (self.head, self.writer)
    }

    /// Appends a change as the next entry, with one write, and passes the header to the index.
    ///
    /// After an error the log contains nothing of the change, and the next append acts as the retry: it must first
    /// remove the remains of the failed write. The entry is durable only after a sync that started later. A damaged
    /// log accepts only its acceptance.
    pub fn append(&mut self, change: Change) -> Result<Arc<Entry>, StoreError> {
        let entry = self.head.stage(change)?;
        if let Err(error) = self.writer.write(&entry) {
            self.head.rewind(entry.seq);
            return Err(error);
        }
        Ok(entry)
    }

    /// See [`JournalHead::can_append`].
    pub fn can_append(&self) -> Result<(), StoreError> {
        self.head.can_append()
    }

    /// See [`JournalHead::damage`].
    pub fn damage(&self) -> Option<StoreError> {
        self.head.damage()
    }

    /// See [`JournalHead::acceptance`].
    pub fn acceptance(&self) -> Option<Change> {
        self.head.acceptance()
    }

    /// The current listing header of the session.
    pub fn header(&self) -> &Header {
        &self.writer.header
    }

    /// A handle that makes written entries durable, from any thread.
    pub fn syncer(&self) -> Syncer {
        self.head.syncer()
    }
}

impl JournalHead {
    /// Numbers a change as the next entry. A damaged log accepts only its acceptance.
    pub fn stage(&mut self, change: Change) -> Result<Arc<Entry>, StoreError> {
        assert!(!matches!(change, Change::Opened { .. }), "an opening entry is only ever the first");
        let accepts = self.damage.is_open() && change == self.damage.acceptance();
        if !accepts && let Some(error) = self.damage() {
            return Err(error);
        }
        // A clock that was set back must not make a session look older than its own entries.
        let at = now().max(self.updated_at);
        let entry = Arc::new(Entry { seq: self.next, at, change });
        if accepts {
            self.acceptance = Some((entry.seq, self.damage.accepted));
            self.damage.accepted = self.damage.count;
        }
        self.next = Seq(self.next.0 + 1);
        self.updated_at = at;
        Ok(entry)
    }

    /// Forgets the entries from `from` on, which were not written.
    pub fn rewind(&mut self, from: Seq) {
        self.next = self.next.min(from);
        if let Some((_, accepted)) = self.acceptance.take_if(|(seq, _)| *seq >= from) {
            self.damage.accepted = accepted;
        }
    }

    /// The number of the next entry.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Whether entries are stored; those of a journal in memory need no writing.
    pub fn is_stored(&self) -> bool {
        self.log.is_some()
    }

    /// Whether the log can be appended to and synced, determined without writing: it is not damaged, no sync has
    /// failed, and its file still exists. Cheap enough to check before each model call.
    pub fn can_append(&self) -> Result<(), StoreError> {
        match (self.damage(), &self.log) {
            (Some(error), _) => Err(error),
            (None, Some(log)) => log.check(),
            (None, None) => Ok(()),
        }
    }

    /// The damage that prevents writing, as an error that says what to do; `None` if there is none or the user has
    /// accepted it.
    pub fn damage(&self) -> Option<StoreError> {
        self.damage.error(&self.session)
    }

    /// The change that accepts the damage, after which the log can be written again. `None` if there is no damage.
    pub fn acceptance(&self) -> Option<Change> {
        self.damage.is_open().then(|| self.damage.acceptance())
    }

    /// A handle that makes written entries durable, from any thread.
    pub fn syncer(&self) -> Syncer {
        Syncer { log: self.log.clone() }
    }
}

impl JournalWriter {
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// Writes the next entry, with one write, and passes the header to the index. After an error the log contains
    /// nothing of the entry, and the next write must be that of an entry with the same number.
    pub fn write(&mut self, entry: &Entry) -> Result<(), StoreError> {
        assert_eq!(entry.seq.0, self.mark.entries, "entries are written in the order of their numbers");
        let Storage::Disk { log, index, tail } = &mut self.storage else {
            self.mark.entries += 1;
            self.header.apply(entry);
            return Ok(());
        };
        let written = *log.written();
        let chain = LineLink::in_format(log.format, self.mark.crc, written.synced_bytes);
        let line = line::encode(&self.session, entry, chain, &log.blobs)?;
        let path = log.paths.journal(&self.session);
        if tail.is_unclean {
            log.file
                .set_len(self.mark.bytes)
                .map_err(|source| io_error("undo a failed write in", &path, source))?;
            tail.is_unclean = false;
        }
        let before = [
            if tail.needs_newline { &b"\n"[..] } else { b"" },
            if tail.needs_opening { &log.opening } else { b"" },
            if tail.needs_opening { b"\n" } else { b"" },
        ];
        let before = before.concat();
        let bytes = if before.is_empty() { line.bytes } else { [before, line.bytes].concat() };
        if let Err(source) = log.file.append(&bytes) {
            tail.is_unclean = log.file.set_len(self.mark.bytes).is_err();
            return Err(io_error("append to", &path, source));
        }
        *tail = Tail::default();
        self.mark = JournalMark {
            entries: self.mark.entries + 1,
            bytes: self.mark.bytes + bytes.len() as u64,
            crc: line.crc,
        };
        let mut written = log.written();
        written.reached = self.mark.reached();
        written.lines_with_blobs += u64::from(line.has_blobs);
        drop(written);
        self.header.apply(entry);
        // Editors open sessions that are never used; opening sled for those would cost memory per editor
        // window.
        if self.header.has_prompt {
            index.update(MarkedHeader { header: self.header.clone(), mark: self.mark });
        }
        Ok(())
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        // A syncer may keep the file open for a while; the lock must not outlive the session.
        if let Storage::Disk { log, .. } = &self.storage {
            let _ = log.file.unlock();
        }
    }
}

/// Makes a session's appended entries durable. Cheap to clone; `sync` blocks on the disk, so call it on a
/// blocking thread.
#[derive(Clone)]
pub struct Syncer {
    /// `None` for a journal in memory.
    log: Option<Arc<SharedJournal>>,
}

impl Syncer {
    /// Returns once everything appended before the call is on disk; does nothing if it already is.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.log.as_deref().map_or(Ok(()), SharedJournal::sync)
    }
}

impl SharedJournal {
    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if appended entries can't be acknowledged.
    fn check(&self) -> Result<(), StoreError> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(StoreError::SyncFailed(self.session.clone()));
        }
        let path = self.paths.journal(&self.session);
        let own = self.file.stat().map_err(|source| io_error("look at", &path, source))?;
        // An unlinked file accepts all writes, and loses them when it is closed.
        let is_there = own.links > 0 && self.paths.disk.stat(&path).is_ok_and(|found| found.id == self.id);
        if is_there { Ok(()) } else { Err(StoreError::Replaced(self.session.clone())) }
    }

    fn sync(&self) -> Result<(), StoreError> {
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        // Read before syncing: entries appended during the sync stay unsynced.
        let Written { reached, lines_with_blobs, .. } = *self.written();
        if synced.bytes.is_some_and(|bytes| bytes >= reached.bytes) {
            return Ok(());
        }
        if synced.lines_with_blobs < lines_with_blobs {
            self.blobs
                .sync_names()
                .map_err(|source| io_error("sync the directory", self.blobs.directory(), source))?;
            synced.lines_with_blobs = lines_with_blobs;
        }
        self.file.sync().map_err(|source| {
            self.has_failed.store(true, Ordering::Release);
            io_error("sync", &self.paths.journal(&self.session), source)
        })?;
        if synced.bytes.is_none() {
            self.paths.sync_journal_names()?;
        }
        synced.bytes = Some(reached.bytes);
        self.written().synced_bytes = reached.bytes;
        SyncMark::write(&self.paths, &self.session, &self.opening, reached);
        Ok(())
    }
}

/// Cuts off the remains of an interrupted write, after saving them in the `.torn` file.
fn cut(
    paths: &StorePaths,
    session: &SessionId,
    file: &dyn DiskFile,
    whole: u64,
    torn: &[u8],
) -> Result<(), StoreError> {
    let torn_file = paths.torn(session);
    let mut kept = torn.to_vec();
    kept.push(b'\n');
    let saved = paths.disk.open(&torn_file, OpenMode::AppendOrNew);
    saved
        .and_then(|saved| saved.append(&kept).and_then(|()| saved.sync()))
        .map_err(|source| io_error("save an incomplete line in", &torn_file, source))?;
    paths.sync_directory(&paths.journals())?;
    file.set_len(whole)
        .map_err(|source| io_error("remove an incomplete line from", &paths.journal(session), source))?;
    tracing::warn!(%session, bytes = torn.len(), "an unfinished write was cut off");
    Ok(())
}

/// Removes a session's files, the journal first: without it the session no longer exists. If a crash leaves other
/// files, the next attempt removes them.
pub(super) fn remove(paths: &StorePaths, session: &SessionId) -> Result<(), StoreError> {
    let path = paths.journal(session);
    let sync = || match paths.disk.sync_directory(&paths.journals()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        synced => synced.map_err(|source| io_error("sync the directory", &paths.journals(), source)),
    };
    match paths.disk.open(&path, OpenMode::Append) {
        Ok(file) => match lock(&*file, session, &path) {
            Ok(_) => paths.remove_file(&path)?,
            Err(StoreError::NotFound(_)) => {}
            Err(error) => return Err(error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(io_error("open", &path, source)),
    }
    // Otherwise a power loss could bring it back without the bodies that are removed now.
    sync()?;
    paths.remove_file(&paths.sync_mark(session))?;
    paths.remove_file(&paths.torn(session))?;
    paths.remove_file(&draft_path(&paths.data, session))?;
    for damaged in paths.damaged(session)? {
        paths.remove_file(&damaged)?;
    }
    let blobs = paths.blobs(session);
    blobs.remove().map_err(|source| io_error("remove", blobs.directory(), source))?;
    let checkpoints = paths.checkpoints(session);
    remove_directory(paths, &checkpoints).map_err(|source| io_error("remove", &checkpoints, source))?;
    sync()
}

/// Removes a directory with its contents. A checkpoint that was in progress when its session ended may still
/// add a file.
fn remove_directory(paths: &StorePaths, path: &Path) -> io::Result<()> {
    let mut removed = Ok(());
    for _ in 0..REMOVE_TRIES_MAX {
        removed = match paths.disk.remove_directory(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Err(error),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => return removed,
        };
        std::thread::yield_now();
    }
    removed
}

/// Attempts to remove a directory that is still being written to; the writer adds only a file or two.
const REMOVE_TRIES_MAX: u32 = 64;

/// Takes the lock of a journal, which is held while the file is open, and returns the file's id. A file that was
/// deleted between opening and locking counts as not found. May block, so don't call it on a thread that others wait
/// for.
pub(super) fn lock(file: &dyn DiskFile, session: &SessionId, path: &Path) -> Result<FileId, StoreError> {
    let until = Instant::now() + JUST_HELD;
    while !file.try_lock().map_err(|source| io_error("lock", path, source))? {
        if Instant::now() >= until {
            return Err(StoreError::InUse(session.clone()));
        }
        std::thread::sleep(JUST_HELD / 50);
    }
    let stat = file.stat().map_err(|source| io_error("look at", path, source))?;
    if stat.links == 0 { Err(StoreError::NotFound(session.clone())) } else { Ok(stat.id) }
}

/// Whether a process has locked a journal. False if that can't be found out.
pub(super) fn is_locked(paths: &StorePaths, session: &SessionId) -> bool {
    let file = paths.disk.open(&paths.journal(session), OpenMode::Append);
    file.is_ok_and(|file| matches!(file.try_lock(), Ok(false)))
}

fn not_an_id(session: &SessionId) -> StoreError {
    StoreError::Unstorable { session: session.clone(), reason: "its id is not valid".to_owned() }
}
