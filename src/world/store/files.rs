//! The files, the default backend: one append-only file per log.
//!
//! It never changes what it has written. It removes only a failed write and the remains of an interrupted write,
//! which it keeps elsewhere. A lock ensures that no two processes write the same log.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::blobs::{BlobStore, Blobs};
use super::disk::{DiskFile, FileId, OpenMode, PutMode};
use super::header::{Header, JournalMark, MarkedHeader};
use super::index::{Index, UnsavedThread};
use super::line::{self, JournalLine};
use super::listing::KeptListing;
use super::log::{Log, LogStore, ResumedLog, StoredLog, WholeLog};
use super::restore;
use super::resume;
use super::saved_listing::SavedListing;
use super::saved_thread::{ResumedThread, SavedEntries};
use super::scan::{self, Scan, ScannedLine};
use super::sync_mark::{Reached, SyncMark};
use super::{DiskResultExt, Listing, SessionHolder, SessionQuery, StoreError, StorePaths, io_error};
use epitome_thread::{OlderEntries, Seq, SessionId, Thread, ThreadState};

/// How long to wait for the lock of a journal. A process that released one may just have forked a child, which has
/// copies of all descriptors until it execs.
const JUST_HELD: Duration = Duration::from_millis(250);

/// The logs of one data directory.
#[derive(Clone)]
pub(super) struct Files {
    pub paths: StorePaths,
    pub index: Index,
    pub listed: Arc<KeptListing>,
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
    /// Lines that the file has lost and the index has: they are written again, with newlines.
    restored: Vec<u8>,
}

/// An open log.
struct FileLog {
    session: SessionId,
    files: Files,
    blobs: BlobStore,
    file: Box<dyn DiskFile>,
    id: FileId,
    /// The first line, without its newline.
    opening: Vec<u8>,
    /// Locked by the only writer.
    tail: Mutex<Tail>,
    written: Mutex<Written>,
    synced: Mutex<Synced>,
    /// After a failed sync the kernel may mark lost pages as clean: no later sync can be trusted. Set while
    /// `synced` is locked, and read without it.
    has_failed: AtomicBool,
    /// Damage was found in the part of the log that was not read when it was opened.
    is_damaged: AtomicBool,
    /// Entries that sled has since a state of the thread was saved.
    stored: Arc<Mutex<Option<SavedEntries>>>,
}

/// How much of a log is written, up to the last complete line.
#[derive(Clone, Debug)]
struct Written {
    /// Its end, with the header that the session has there.
    newest: Arc<MarkedHeader>,
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

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Files").field(&self.paths.data).finish()
    }
}

impl LogStore for Files {
    fn create(
        &self,
        session: &SessionId,
        line: &JournalLine,
        header: &Header,
    ) -> Result<Arc<dyn Log>, StoreError> {
        let paths = &self.paths;
        let path = paths.journal(session);
        let create = || paths.disk.open(&path, OpenMode::AppendNew);
        let created = match create() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                paths.make_directory(&paths.journals())?;
                create()
            }
            created => created,
        };
        let file = created.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => StoreError::Exists(session.clone()),
            _ => io_error("create", &path, error),
        })?;
        let id = lock(&*file, session, &path)?;

        if let Err(source) = file.append(&line.bytes) {
            // The caller does not know the session yet, so an empty file must not remain.
            let _ = paths.disk.remove_file(&path);
            return Err(io_error("append to", &path, source));
        }
        let mark = JournalMark { entries: 1, bytes: line.bytes.len() as u64, crc: line.crc };
        let opening = line.bytes[..line.bytes.len() - 1].to_vec();
        let newest = Arc::new(MarkedHeader { header: header.clone(), mark });
        let written = Written { lines_with_blobs: 0, synced_bytes: 0, newest };
        Ok(self.opened(session, file, id, opening, Tail::default(), written))
    }

    fn open(&self, session: &SessionId) -> Result<(Arc<dyn Log>, Scan), StoreError> {
        let paths = &self.paths;
        let path = paths.journal(session);
        let (file, id) = self.locked(session)?;
        let mark = SyncMark::read(paths, session);
        let log = StoredLog { bytes: file.read().doing("read", &path)?, mark };
        let (mut scan, bytes) = (log.scan(session, &paths.blobs(session))?, &log.bytes);
        let restored = if scan.damage.is_open() {
            restore::restore(paths, &self.index, session, &mut scan, bytes)
        } else {
            Vec::new()
        };
        let Scan { mark, lines, opening, has_opening, synced, damage, .. } = &scan;
        let synced = synced.unwrap_or(0);
        let (kept, torn) = bytes.split_at(mark.bytes as usize);
        if !torn.is_empty() {
            cut(paths, session, &*file, mark.bytes, torn)?;
        }
        if !damage.is_open() {
            self.write_again(session, &kept[(synced as usize).min(kept.len())..], synced)?;
        }
        // An earlier process may have ended before it synced the names of these blobs.
        let unsynced = lines.iter().filter(|line| line.bytes.end as u64 > synced);
        let has_blobs = |line: &&ScannedLine| {
            line::open(&bytes[line.bytes.clone()]).is_some_and(|sealed| !line::moved(sealed).is_empty())
        };
        let lines_with_blobs = unsynced.filter(has_blobs).count() as u64;
        let newest = Arc::new(MarkedHeader { header: scan.header.clone(), mark: *mark });
        let written = Written { lines_with_blobs, synced_bytes: synced, newest };
        let tail = Tail {
            is_unclean: false,
            needs_newline: kept.last().is_some_and(|byte| *byte != b'\n'),
            needs_opening: !has_opening,
            restored,
        };
        Ok((self.opened(session, file, id, opening.clone(), tail, written), scan))
    }

    fn resume(&self, session: &SessionId) -> Result<Option<ResumedLog>, StoreError> {
        let (file, id) = self.locked(session)?;
        let Some(resumed) = resume::resume(&self.paths, &self.index, session, false)? else {
            return Ok(None);
        };
        let ResumedThread { newest, opening, synced, unsynced, saved, .. } = &resumed;
        self.write_again(session, unsynced, *synced)?;
        let has_blobs = |line: &&[u8]| line::open(line).is_some_and(|sealed| !line::moved(sealed).is_empty());
        let lines_with_blobs = unsynced.split(|byte| *byte == b'\n').filter(has_blobs).count() as u64;
        let written = Written { newest: Arc::new(newest.clone()), lines_with_blobs, synced_bytes: *synced };
        let log = self.opened(session, file, id, opening.clone(), Tail::default(), written);
        let examined = log.clone();
        let report = move || examined.is_damaged.store(true, Ordering::Release);
        let is_examined = self.index.examine(session, *saved, report);
        // The whole log is read if nobody else looks at its older part.
        Ok(is_examined.then_some((log, resumed)))
    }

    fn read_resumed(&self, session: &SessionId) -> Result<Option<Thread>, StoreError> {
        Ok(resume::resume(&self.paths, &self.index, session, true)?.map(|resumed| resumed.thread))
    }

    fn read(&self, session: &SessionId) -> Result<StoredLog, StoreError> {
        scan::read_stored(&self.paths, session)
    }

    fn header(&self, session: &SessionId) -> Result<Header, StoreError> {
        scan::read_header(&self.paths, session).map(|marked| marked.header)
    }

    /// Headers come from sled where it is up to date, and otherwise from the journals, so that the listing is the same
    /// without sled. Damage that does not change a journal's length is not noticed here.
    fn page(&self, query: &SessionQuery) -> Result<Listing, StoreError> {
        self.listed.page(self, query)
    }

    fn keep_listing(&self) {
        self.listed.enable();
    }

    fn publish(&self, session: &SessionId, log: &WholeLog, _: &Header) -> Result<(), StoreError> {
        let (directory, path) = (self.paths.journals(), self.paths.journal(session));
        if self.paths.disk.stat(&path).is_ok() {
            return Err(StoreError::Exists(session.clone()));
        }
        if log.has_blobs {
            self.paths.blobs(session).sync_names()?;
        }
        self.paths.make_directory(&directory)?;
        self.paths.disk.put(&path, &log.bytes, PutMode::New).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => StoreError::Exists(session.clone()),
            _ => io_error("write", &path, error),
        })?;
        self.paths.sync_journal_names()?;
        let opening = log.bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let reached = Reached { entries: log.entries, bytes: log.bytes.len() as u64 };
        SyncMark::write(&self.paths, session, opening, reached);
        self.index.catch_up(session);
        Ok(())
    }

    fn delete(&self, session: &SessionId) -> Result<(), StoreError> {
        remove(&self.paths, session)?;
        self.index.catch_up(session);
        Ok(())
    }

    fn is_in_use(&self, session: &SessionId) -> bool {
        let file = self.paths.disk.open(&self.paths.journal(session), OpenMode::Append);
        file.is_ok_and(|file| matches!(file.try_lock(), Ok(false)))
    }

    fn blobs(&self, session: &SessionId) -> Box<dyn Blobs> {
        Box::new(self.paths.blobs(session))
    }

    fn share_blob(&self, hash: &str, from: &SessionId, to: &SessionId) -> Result<bool, StoreError> {
        let to = self.paths.blobs(to);
        let shared = self.paths.blobs(from).share(hash, &to).if_found();
        Ok(shared.doing("copy a blob into", to.directory())?.is_some())
    }

    fn has_unsaved_listing(&self) -> bool {
        self.listed.is_unsaved()
    }

    fn save_listing(&self) {
        self.listed.save(self);
    }

    fn settle(&self) {
        self.save_listing();
        self.index.settle();
    }
}

impl Files {
    /// Opens a journal for appending and takes its lock.
    fn locked(&self, session: &SessionId) -> Result<(Box<dyn DiskFile>, FileId), StoreError> {
        let path = self.paths.journal(session);
        let file = self.paths.disk.open(&path, OpenMode::Append).if_found().doing("open", &path)?;
        let file = file.ok_or_else(|| StoreError::NotFound(session.clone()))?;
        let id = lock(&*file, session, &path)?;
        Ok((file, id))
    }

    /// Writes the end of a journal again: after a failed sync, pages may be readable that are not on disk, and that no sync
    /// writes again.
    fn write_again(&self, session: &SessionId, unsynced: &[u8], from: u64) -> Result<(), StoreError> {
        if unsynced.is_empty() {
            return Ok(());
        }
        let path = self.paths.journal(session);
        let file = self.paths.disk.open(&path, OpenMode::Overwrite);
        let written = file.and_then(|file| file.write_at(unsynced, from));
        written.doing("write again what was not synced in", &path)
    }

    fn opened(
        &self,
        session: &SessionId,
        file: Box<dyn DiskFile>,
        id: FileId,
        opening: Vec<u8>,
        tail: Tail,
        written: Written,
    ) -> Arc<FileLog> {
        Arc::new(FileLog {
            session: session.clone(),
            files: self.clone(),
            blobs: self.paths.blobs(session),
            file,
            id,
            opening,
            tail: Mutex::new(tail),
            written: Mutex::new(written),
            synced: Mutex::default(),
            has_failed: AtomicBool::new(false),
            is_damaged: AtomicBool::new(false),
            stored: Arc::default(),
        })
    }
}

impl Log for FileLog {
    fn append(&self, _: Seq, line: &JournalLine, header: &Header) -> Result<(), StoreError> {
        let path = self.files.paths.journal(&self.session);
        let mut tail = self.tail.lock();
        let mark = self.written.lock().newest.mark;
        if tail.is_unclean {
            self.file.set_len(mark.bytes).doing("undo a failed write in", &path)?;
            tail.is_unclean = false;
        }
        let before = [
            if tail.needs_newline { &b"\n"[..] } else { b"" },
            if tail.needs_opening { &self.opening } else { b"" },
            if tail.needs_opening { b"\n" } else { b"" },
            &tail.restored,
        ];
        let before = before.concat();
        let bytes = match before.is_empty() {
            true => Cow::Borrowed(&line.bytes),
            false => Cow::Owned([&before[..], &line.bytes].concat()),
        };
        if let Err(source) = self.file.append(&bytes) {
            tail.is_unclean = self.file.set_len(mark.bytes).is_err();
            return Err(io_error("append to", &path, source));
        }
        SavedListing::remove(&self.files.paths);
        *tail = Tail::default();
        let mark =
            JournalMark { entries: mark.entries + 1, bytes: mark.bytes + bytes.len() as u64, crc: line.crc };
        let header = Arc::new(MarkedHeader { header: header.clone(), mark });
        let mut written = self.written.lock();
        written.lines_with_blobs += u64::from(line.has_blobs);
        written.newest = header.clone();
        drop(written);
        // Editors open sessions that are never used; opening sled for those would cost memory per editor
        // window.
        if header.header.has_prompt {
            self.files.listed.appended(&header);
            self.files.index.update(header);
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        let mut synced = self.synced.lock();
        self.check()?;
        // Read before syncing: entries appended during the sync stay unsynced.
        let Written { newest, lines_with_blobs, .. } = self.written.lock().clone();
        let reached = newest.mark.reached();
        if synced.bytes.is_some_and(|bytes| bytes >= reached.bytes) {
            return Ok(());
        }
        if synced.lines_with_blobs < lines_with_blobs {
            self.blobs.sync_names()?;
            synced.lines_with_blobs = lines_with_blobs;
        }
        self.file.sync().map_err(|source| {
            self.has_failed.store(true, Ordering::Release);
            io_error("sync", &self.files.paths.journal(&self.session), source)
        })?;
        if synced.bytes.is_none() {
            self.files.paths.sync_journal_names()?;
        }
        synced.bytes = Some(reached.bytes);
        self.written.lock().synced_bytes = reached.bytes;
        SyncMark::write(&self.files.paths, &self.session, &self.opening, reached);
        Ok(())
    }

    fn synced_bytes(&self) -> u64 {
        self.written.lock().synced_bytes
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(StoreError::SyncFailed(self.session.clone()));
        }
        if self.is_damaged.load(Ordering::Acquire) {
            return Err(StoreError::DamageFound(self.session.clone()));
        }
        let path = self.files.paths.journal(&self.session);
        let own = self.file.stat().doing("look at", &path)?;
        // An unlinked file accepts all writes, and loses them when it is closed.
        let is_there =
            own.links > 0 && self.files.paths.disk.stat(&path).is_ok_and(|found| found.id == self.id);
        if is_there { Ok(()) } else { Err(StoreError::Replaced(self.session.clone())) }
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire) || self.is_damaged.load(Ordering::Acquire)
    }

    fn save_thread(&self, state: &ThreadState, entries: u64) {
        let marked = self.written.lock().newest.clone();
        if marked.mark.entries == entries && marked.header.has_prompt {
            let (opening, state) = (self.opening.clone(), Arc::new(state.clone()));
            let stored = self.stored.clone();
            self.files.index.save_thread(UnsavedThread { marked, opening, state, stored });
        }
    }

    fn take_older(&self) -> Option<(u64, Arc<dyn OlderEntries>)> {
        let stored = self.stored.lock().take()?;
        let Files { paths, index, .. } = &self.files;
        Some(resume::older_entries(paths, index, &self.session, stored))
    }

    fn release(&self) {
        // A syncer may keep the file open for a while; the lock must not outlive the session.
        let _ = self.file.unlock();
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
        .doing("save an incomplete line in", &torn_file)?;
    paths.sync_directory(&paths.journals())?;
    file.set_len(whole).doing("remove an incomplete line from", &paths.journal(session))?;
    tracing::warn!(%session, bytes = torn.len(), "an unfinished write was cut off");
    Ok(())
}

/// Removes the files of a session's log, the journal first: without it the session no longer exists. If a crash leaves other
/// files, the next attempt removes them.
fn remove(paths: &StorePaths, session: &SessionId) -> Result<(), StoreError> {
    let (directory, path) = (paths.journals(), paths.journal(session));
    let sync = || paths.disk.sync_directory(&directory).if_found().doing("sync the directory", &directory);
    if let Some(file) = paths.disk.open(&path, OpenMode::Append).if_found().doing("open", &path)? {
        match lock(&*file, session, &path) {
            Ok(_) => paths.remove_file(&path)?,
            Err(StoreError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    // Otherwise a power loss could bring it back without the bodies that are removed now.
    sync()?;
    paths.remove_file(&paths.sync_mark(session))?;
    paths.remove_file(&paths.torn(session))?;
    for damaged in paths.damaged(session)? {
        paths.remove_file(&damaged)?;
    }
    paths.blobs(session).remove()?;
    sync().map(drop)
}

/// Takes the lock of a journal, which is held while the file is open, and returns the file's id. A file that was
/// deleted between opening and locking counts as not found. May block, so don't call it on a thread that others wait
/// for.
pub(super) fn lock(file: &dyn DiskFile, session: &SessionId, path: &Path) -> Result<FileId, StoreError> {
    let until = Instant::now() + JUST_HELD;
    while !file.try_lock().doing("lock", path)? {
        if Instant::now() >= until {
            return Err(StoreError::InUse(session.clone(), SessionHolder::default()));
        }
        std::thread::sleep(JUST_HELD / 50);
    }
    let stat = file.stat().doing("look at", path)?;
    if stat.links == 0 { Err(StoreError::NotFound(session.clone())) } else { Ok(stat.id) }
}
