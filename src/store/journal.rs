//! The journal: one append-only file per session, the source of truth for its thread.
//!
//! It never changes what it wrote. It removes only a write that failed and an incomplete last line, which it
//! keeps elsewhere. A lock ensures that no two processes write the same session.
//!
//! Work that must not be stored, such as that of a hook's callback, has a journal in memory: the same calls,
//! without a file.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::blobs::BlobStore;
use super::header::{Header, JournalMark, MarkedHeader};
use super::index::Index;
use super::line::{self, Bodies};
use super::scan::Scan;
use super::{StoreError, StorePaths, io_error, open_private, private_directory, sync_directory};
use epitome_thread::{Change, Entry, Seq, SessionId};

/// How long to wait for the lock of a journal. A process that released one may just have forked a child,
/// which holds copies of all descriptors until it execs.
const JUST_HELD: Duration = Duration::from_millis(250);

/// A session's log, open for appending. Dropping it lets other processes open the session.
pub struct Journal {
    session: SessionId,
    storage: Storage,
    header: Header,
    mark: JournalMark,
    /// Whether bytes of a failed write may follow the mark.
    unclean: bool,
}

/// Where a journal's entries are stored.
enum Storage {
    Disk {
        log: Arc<SharedJournal>,
        index: Index,
    },
    /// Not stored; the caller keeps the entries.
    Memory,
}

/// State shared by a journal and its syncers.
struct SharedJournal {
    session: SessionId,
    path: PathBuf,
    paths: StorePaths,
    blobs: BlobStore,
    file: File,
    /// Lines with blobs so far. Stored before `bytes`, read after it.
    lines_with_blobs: AtomicU64,
    /// Length of the complete lines in bytes.
    bytes: AtomicU64,
    synced: Mutex<Synced>,
}

/// How much of a log is known to be on disk.
#[derive(Default)]
struct Synced {
    bytes: u64,
    lines_with_blobs: u64,
    /// Whether the file's name is durable.
    name: bool,
    /// After a failed sync the kernel may mark lost pages as clean: no later sync can be trusted.
    failed: bool,
}

impl Journal {
    pub(super) fn create(
        paths: &StorePaths,
        index: &Index,
        session: &SessionId,
        opened: Change,
    ) -> Result<(Journal, Arc<Entry>), StoreError> {
        let names_itself = matches!(&opened, Change::Opened { session: named, .. } if named == session);
        assert!(names_itself, "a log begins with the opening entry of its session");
        if SessionId::parse(&session.0).is_none() {
            return Err(not_an_id(session));
        }
        let path = paths.journal(session);
        let options = || {
            let mut options = open_private();
            options.read(true).append(true).create_new(true);
            options
        };
        let file = match options().open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                private_directory(&paths.journals())
                    .map_err(|source| io_error("make the directory", &paths.journals(), source))?;
                options().open(&path)
            }
            opened => opened,
        };
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(StoreError::Exists(session.clone()));
            }
            file => file.map_err(|source| io_error("create", &path, source))?,
        };
        lock(&file, session, &path)?;

        let entry = Arc::new(Entry { seq: Seq(0), at: now(), change: opened });
        let mut journal = Journal {
            session: session.clone(),
            header: Header::opened(&entry).expect("the change was asserted to be an opening"),
            storage: Storage::Disk {
                log: Arc::new(SharedJournal::new(paths, session, file)),
                index: index.clone(),
            },
            mark: JournalMark { entries: 0, bytes: 0, crc: 0 },
            unclean: false,
        };
        if let Err(error) = journal.write(&entry) {
            // The caller does not know the session yet, so an empty file must not remain.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok((journal, entry))
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
        let mut file = match open_private().read(true).append(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NotFound(session.clone()));
            }
            file => file.map_err(|source| io_error("open", &path, source))?,
        };
        lock(&file, session, &path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|source| io_error("read", &path, source))?;
        let log = SharedJournal::new(paths, session, file);
        let scan = Scan::read(session, &bytes, Bodies::Whole(&log.blobs))?;
        if let Some(damage) = scan.damage {
            return Err(damage);
        }
        let whole = scan.mark.bytes as usize;
        if whole < bytes.len() {
            log.cut(scan.mark.bytes, &bytes[whole..])?;
        }
        // How much of it an earlier process synced is unknown, so the first sync covers everything.
        log.bytes.store(scan.mark.bytes, Ordering::Release);
        let journal = Journal {
            session: session.clone(),
            storage: Storage::Disk { log: Arc::new(log), index: index.clone() },
            header: scan.header,
            mark: scan.mark,
            unclean: false,
        };
        Ok((journal, scan.entries))
    }

    /// Creates a log without a file, from an opening entry and any further changes. It holds no lock, does
    /// not appear in listings, and its syncer does nothing.
    pub fn in_memory(opened: Change, more: Vec<Change>) -> (Journal, Vec<Arc<Entry>>) {
        let first = Arc::new(Entry { seq: Seq(0), at: now(), change: opened });
        let header = Header::opened(&first).expect("a log begins with an opening entry");
        let mut journal = Journal {
            session: header.session.clone(),
            storage: Storage::Memory,
            header,
            mark: JournalMark { entries: 1, bytes: 0, crc: 0 },
            unclean: false,
        };
        let mut entries = vec![first];
        for change in more {
            entries.push(journal.append(change).expect("memory refuses nothing"));
        }
        (journal, entries)
    }

    /// Appends a change as the next entry, with one write, and hands the header to the index.
    ///
    /// After an error the log contains nothing of the change, and the next append acts as the retry: it must
    /// first remove what the failed write left. The entry is durable only after a sync that started later.
    pub fn append(&mut self, change: Change) -> Result<Arc<Entry>, StoreError> {
        assert!(!matches!(change, Change::Opened { .. }), "an opening entry is only ever the first");
        // A clock that was set back must not make a session look older than its own entries.
        let at = now().max(self.header.updated_at);
        let entry = Arc::new(Entry { seq: Seq(self.mark.entries), at, change });
        self.write(&entry)?;
        Ok(entry)
    }

    /// Whether the log can be appended to and synced, as far as that is known without writing. Cheap enough to ask
    /// before each model call.
    pub fn can_append(&self) -> Result<(), StoreError> {
        let Storage::Disk { log, .. } = &self.storage else { return Ok(()) };
        match log.synced.try_lock() {
            Ok(synced) if synced.failed => Err(StoreError::SyncFailed(self.session.clone())),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The current listing header of the session.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// A handle that makes appended entries durable, from any thread.
    pub fn syncer(&self) -> Syncer {
        Syncer {
            log: match &self.storage {
                Storage::Disk { log, .. } => Some(log.clone()),
                Storage::Memory => None,
            },
        }
    }

    fn write(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let Storage::Disk { log, index } = &self.storage else {
            self.mark.entries += 1;
            self.header.apply(entry);
            return Ok(());
        };
        let line = line::encode(&self.session, entry, &log.blobs)?;
        if self.unclean {
            log.file
                .set_len(self.mark.bytes)
                .map_err(|source| io_error("undo a failed write in", &log.path, source))?;
            self.unclean = false;
        }
        // One `write(2)`; a second one follows only after a partial write, to get its error.
        if let Err(source) = (&log.file).write_all(&line.bytes) {
            self.unclean = log.file.set_len(self.mark.bytes).is_err();
            return Err(io_error("append to", &log.path, source));
        }
        self.mark = JournalMark {
            entries: self.mark.entries + 1,
            bytes: self.mark.bytes + line.bytes.len() as u64,
            crc: line.crc,
        };
        if line.has_blobs {
            log.lines_with_blobs.fetch_add(1, Ordering::Release);
        }
        log.bytes.store(self.mark.bytes, Ordering::Release);
        if self.mark.entries > 1 {
            self.header.apply(entry);
        }
        // Editors open sessions that are never used; opening sled for those would cost memory per editor
        // window.
        if self.header.has_prompt {
            index.update(MarkedHeader { header: self.header.clone(), mark: self.mark });
        }
        Ok(())
    }
}

impl Drop for Journal {
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
        let Some(log) = self.log.as_deref() else { return Ok(()) };
        let mut synced = log.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if synced.failed {
            return Err(StoreError::SyncFailed(log.session.clone()));
        }
        // Read before syncing: entries appended meanwhile stay unsynced.
        let bytes = log.bytes.load(Ordering::Acquire);
        let lines_with_blobs = log.lines_with_blobs.load(Ordering::Acquire);
        if synced.bytes >= bytes {
            return Ok(());
        }
        log.sync(&mut synced, lines_with_blobs)?;
        synced.bytes = bytes;
        Ok(())
    }
}

impl SharedJournal {
    fn new(paths: &StorePaths, session: &SessionId, file: File) -> SharedJournal {
        SharedJournal {
            session: session.clone(),
            path: paths.journal(session),
            paths: paths.clone(),
            blobs: paths.blobs(session),
            file,
            lines_with_blobs: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            synced: Mutex::new(Synced::default()),
        }
    }

    fn sync(&self, synced: &mut Synced, lines_with_blobs: u64) -> Result<(), StoreError> {
        if synced.lines_with_blobs < lines_with_blobs {
            self.blobs
                .sync_names()
                .map_err(|source| io_error("sync the directory", self.blobs.directory(), source))?;
            synced.lines_with_blobs = lines_with_blobs;
        }
        self.file.sync_data().map_err(|source| {
            synced.failed = true;
            io_error("sync", &self.path, source)
        })?;
        if !synced.name {
            let journals = self.paths.journals();
            // The directories may be as new as the file.
            for directory in [Some(&*journals), Some(&*self.paths.data), self.paths.data.parent()] {
                let Some(directory) = directory else { continue };
                sync_directory(directory)
                    .map_err(|source| io_error("sync the directory", directory, source))?;
            }
            synced.name = true;
        }
        Ok(())
    }

    /// Cuts off an incomplete last line after saving it in the `.torn` file.
    fn cut(&self, whole: u64, torn: &[u8]) -> Result<(), StoreError> {
        let beside = self.paths.torn(&self.session);
        let mut kept = torn.to_vec();
        kept.push(b'\n');
        open_private()
            .append(true)
            .create(true)
            .open(&beside)
            .and_then(|mut file| file.write_all(&kept).and_then(|()| file.sync_data()))
            .map_err(|source| io_error("save an incomplete line in", &beside, source))?;
        self.file
            .set_len(whole)
            .map_err(|source| io_error("remove an incomplete line from", &self.path, source))?;
        tracing::warn!(session = %self.session, bytes = torn.len(), "an incomplete last line was cut off");
        Ok(())
    }
}

/// Removes a session's files, the journal first: without it the session no longer exists, and what a crash
/// leaves of the rest is removed by the next attempt.
pub(super) fn remove(paths: &StorePaths, session: &SessionId) -> Result<(), StoreError> {
    let path = paths.journal(session);
    match open_private().read(true).append(true).open(&path) {
        Ok(file) => match lock(&file, session, &path) {
            Ok(()) => remove_file(&path)?,
            Err(StoreError::NotFound(_)) => {}
            Err(error) => return Err(error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(io_error("open", &path, source)),
    }
    remove_file(&paths.torn(session))?;
    remove_file(&super::draft_path(&paths.data, session))?;
    for damaged in paths.damaged(session)? {
        remove_file(&damaged)?;
    }
    let blobs = paths.blobs(session);
    blobs.remove().map_err(|source| io_error("remove", blobs.directory(), source))?;
    let checkpoints = paths.checkpoints(session);
    remove_directory(&checkpoints).map_err(|source| io_error("remove", &checkpoints, source))?;
    match sync_directory(&paths.journals()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        synced => synced.map_err(|source| io_error("sync the directory", &paths.journals(), source)),
    }
}

/// Removes a directory with its contents. A checkpoint that was in progress when its session ended may still
/// add a file.
fn remove_directory(path: &Path) -> io::Result<()> {
    for _ in 1..REMOVE_TRIES_MAX {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => std::thread::yield_now(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => return removed,
        }
    }
    std::fs::remove_dir_all(path)
}

/// Attempts to remove a directory that is still being written to; the writer adds only a file or two.
const REMOVE_TRIES_MAX: u32 = 64;

fn remove_file(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|source| io_error("remove", path, source)),
    }
}

/// Takes the lock of a journal, which is held while the file is open. A file that was deleted between opening
/// and locking counts as not found. May block, so don't call it on a thread that others wait for.
pub(super) fn lock(file: &File, session: &SessionId, path: &Path) -> Result<(), StoreError> {
    let until = Instant::now() + JUST_HELD;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(JUST_HELD / 50);
            }
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse(session.clone())),
            Err(TryLockError::Error(error)) => return Err(io_error("lock", path, error)),
        }
    }
    let links = file.metadata().map_err(|error| io_error("look at", path, error))?.nlink();
    if links == 0 { Err(StoreError::NotFound(session.clone())) } else { Ok(()) }
}

/// The clock for new entries: milliseconds since the Unix epoch.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn not_an_id(session: &SessionId) -> StoreError {
    StoreError::Unstorable { session: session.clone(), reason: "its id is not valid".to_owned() }
}
