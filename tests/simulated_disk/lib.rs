//! An in-memory disk that fails and loses power, determined by a seed.
//!
//! Each file has its content as processes see it, the durable part of it, and the writes in between. A power loss
//! keeps, drops, tears or blanks each of these writes independently, and keeps or drops each unsynced change of a
//! directory. After a failed sync, the written pages are lost, though they can still be read.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epitome_files::disk::{Disk, DiskFile, FileId, FileStat, OpenMode, PutMode};
use parking_lot::Mutex;

/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;

/// Bytes that a file system writes at once.
const PAGE: usize = 4096;

/// A handle to the disk; clones share it.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<SimDiskState>>,
}

/// The fault injected at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// The call fails; a write may have written a part.
    Error(ErrorKind),
    /// The power is lost: this call and all later ones fail.
    PowerLoss,
}

/// A call on an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileCall {
    Write,
    Sync,
}

struct SimDiskState {
    rng: fastrand::Rng,
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    name_changes: Vec<NameChange>,
    calls: u64,
    fault: Option<(u64, InjectedFault)>,
    fails_next: Option<FileCall>,
    is_off: bool,
    /// How often each rare event has happened.
    seen: BTreeMap<&'static str, u64>,
}

#[derive(Default)]
struct Inode {
    is_directory: bool,
    content: Vec<u8>,
    durable: Vec<u8>,
    writes: Vec<Write>,
    /// Changes with each write.
    version: u64,
    locked_by: Option<u64>,
}

#[derive(Clone)]
struct Write {
    change: Data,
    /// A sync of it failed, so no later sync makes it durable.
    is_lost: bool,
}

#[derive(Clone)]
enum Data {
    Bytes { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

/// A change of a directory that is not durable yet.
#[derive(Clone)]
struct NameChange {
    path: PathBuf,
    /// `None` removes the name.
    inode: Option<usize>,
    /// The name that it had before, which the same change removes.
    moved_from: Option<PathBuf>,
}

struct SimFile {
    disk: SimDisk,
    inode: usize,
    handle: u64,
}

impl SimDisk {
    pub fn new(seed: u64, data: &Path) -> SimDisk {
        let root = Inode { is_directory: true, ..Inode::default() };
        let parent = data.parent().expect("a data directory has a parent");
        let names: BTreeMap<PathBuf, usize> = parent.ancestors().map(|path| (path.to_owned(), 0)).collect();
        let state = SimDiskState {
            rng: fastrand::Rng::with_seed(seed),
            inodes: vec![root],
            durable_names: names.clone(),
            names,
            name_changes: Vec::new(),
            calls: 0,
            fault: None,
            fails_next: None,
            is_off: false,
            seen: BTreeMap::new(),
        };
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Plans a fault for the n-th call from now, counted from 1.
    pub fn plan(&self, call: u64, fault: InjectedFault) {
        let mut state = self.state.lock();
        state.fault = Some((state.calls + call, fault));
    }

    /// Makes the next call of this kind fail.
    pub fn fail_next(&self, call: FileCall) {
        self.state.lock().fails_next = Some(call);
    }

    /// Whether the planned fault has happened.
    pub fn has_failed(&self) -> bool {
        self.state.lock().fault.is_none()
    }

    pub fn is_off(&self) -> bool {
        self.state.lock().is_off
    }

    pub fn count(&self, what: &'static str) {
        self.state.lock().count(what);
    }

    pub fn seen(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().seen.clone()
    }

    /// Restores the power: the disk is in one of the states that the power loss may have left.
    pub fn restart(&self) {
        let state = &mut *self.state.lock();
        for at in 0..state.inodes.len() {
            state.settle(at);
        }
        for change in std::mem::take(&mut state.name_changes) {
            if state.rng.bool() {
                state.count("a change of a directory was lost");
                continue;
            }
            state.make_durable(change);
        }
        // Files in a directory that was lost are not reachable.
        let names = &state.durable_names;
        let reached: BTreeSet<PathBuf> = names
            .keys()
            .filter(|path| path.ancestors().all(|above| names.contains_key(above)))
            .cloned()
            .collect();
        state.durable_names.retain(|path, _| reached.contains(path));
        state.names = state.durable_names.clone();
        state.fault = None;
        state.is_off = false;
    }

    /// Stops all fault injection.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        (state.fault, state.fails_next) = (None, None);
    }

    /// A new disk with the content that processes see on this one.
    pub fn copy(&self) -> SimDisk {
        let state = self.state.lock();
        let copied = |inode: &Inode| Inode {
            is_directory: inode.is_directory,
            content: inode.content.clone(),
            durable: inode.content.clone(),
            ..Inode::default()
        };
        let copy = SimDiskState {
            rng: fastrand::Rng::with_seed(0),
            inodes: state.inodes.iter().map(copied).collect(),
            names: state.names.clone(),
            durable_names: state.names.clone(),
            name_changes: Vec::new(),
            calls: 0,
            fault: None,
            fails_next: None,
            is_off: false,
            seen: BTreeMap::new(),
        };
        SimDisk { state: Arc::new(Mutex::new(copy)) }
    }

    /// All files with their content, as processes see them.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let state = self.state.lock();
        let files = state.names.iter().filter(|(_, inode)| !state.inodes[**inode].is_directory);
        files.map(|(path, inode)| (path.clone(), state.inodes[*inode].content.clone())).collect()
    }

    /// Changes the durable content of a file, like bit rot or a user would.
    pub fn change(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let state = &mut *self.state.lock();
        let inode = &mut state.inodes[state.names[path]];
        change(&mut inode.content);
        inode.version += 1;
        inode.durable = inode.content.clone();
        inode.writes.clear();
    }

    /// Renames a file atomically, replacing any file with the new name.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.call()?;
        let inode = state.find(from)?;
        state.parent(to)?;
        state.names.remove(from);
        state.names.insert(to.to_owned(), inode);
        let (path, moved_from) = (to.to_owned(), Some(from.to_owned()));
        state.name_changes.push(NameChange { path, inode: Some(inode), moved_from });
        Ok(())
    }

    fn handle(&self, inode: usize) -> Box<dyn DiskFile> {
        Box::new(SimFile { disk: self.clone(), inode, handle: fastrand::u64(..) })
    }
}

impl SimDiskState {
    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Counts a call. Fails if it is the planned one.
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        if self.is_off {
            return Err(io::Error::other("the power is off"));
        }
        match self.fault {
            Some((call, fault)) if call == self.calls => {
                self.fault = None;
                match fault {
                    InjectedFault::Error(kind) => Err(kind.into()),
                    InjectedFault::PowerLoss => {
                        self.is_off = true;
                        Err(io::Error::other("the power fails"))
                    }
                }
            }
            Some(_) | None => Ok(()),
        }
    }

    fn fail_once(&mut self, call: FileCall) -> io::Result<()> {
        match self.fails_next.take_if(|fails| *fails == call) {
            Some(_) => Err(ErrorKind::StorageFull.into()),
            None => Ok(()),
        }
    }

    fn make_durable(&mut self, NameChange { path, inode, moved_from }: NameChange) {
        if let Some(from) = moved_from {
            self.durable_names.remove(&from);
        }
        match inode {
            Some(inode) => self.durable_names.insert(path, inode),
            None => self.durable_names.remove(&path),
        };
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn parent(&self, path: &Path) -> io::Result<()> {
        self.find(path.parent().ok_or(ErrorKind::InvalidInput)?).map(drop)
    }

    fn name(&mut self, path: &Path, inode: Option<usize>) {
        match inode {
            Some(inode) => self.names.insert(path.to_owned(), inode),
            None => self.names.remove(path),
        };
        self.name_changes.push(NameChange { path: path.to_owned(), inode, moved_from: None });
    }

    fn create(&mut self, is_directory: bool) -> usize {
        self.inodes.push(Inode { is_directory, ..Inode::default() });
        self.inodes.len() - 1
    }

    fn write(&mut self, inode: usize, offset: usize, bytes: &[u8]) -> io::Result<()> {
        if self.is_off {
            // Without power, nothing is stored.
            return self.call();
        }
        let called = self.call().and(self.fail_once(FileCall::Write));
        let taken = match called {
            Ok(()) => bytes.len(),
            Err(_) if bytes.is_empty() => 0,
            Err(_) => self.rng.usize(..bytes.len()),
        };
        if called.is_err() && taken > 0 {
            self.count(if self.is_off { "the power failed within a write" } else { "a write was short" });
        }
        let change = Data::Bytes { offset, bytes: bytes[..taken].to_vec() };
        self.inodes[inode].version += 1;
        apply(&mut self.inodes[inode].content, &change);
        self.inodes[inode].writes.push(Write { change, is_lost: false });
        called
    }

    fn sync(&mut self, inode: usize) -> io::Result<()> {
        if let Err(error) = self.call().and(self.fail_once(FileCall::Sync)) {
            if !self.is_off {
                self.inodes[inode].writes.iter_mut().for_each(|write| write.is_lost = true);
                self.count("a sync failed");
            }
            return Err(error);
        }
        let inode = &mut self.inodes[inode];
        let (lost, kept): (Vec<Write>, Vec<Write>) = inode.writes.drain(..).partition(|write| write.is_lost);
        kept.iter().for_each(|write| apply(&mut inode.durable, &write.change));
        inode.writes = lost;
        Ok(())
    }

    /// Decides what a power loss leaves of a file.
    fn settle(&mut self, at: usize) {
        let mut durable = std::mem::take(&mut self.inodes[at].durable);
        let mut has_dropped = false;
        for write in std::mem::take(&mut self.inodes[at].writes) {
            match self.rng.u32(..if write.is_lost { 2 } else { 6 }) {
                0 | 1 => {
                    self.count("a write was lost");
                    has_dropped = true;
                    continue;
                }
                2 => {
                    let torn = match write.change {
                        Data::Bytes { offset, bytes } => {
                            // Only complete sectors of the file.
                            let end = (offset + self.rng.usize(..=bytes.len())) / SECTOR * SECTOR;
                            let kept = end.saturating_sub(offset).min(bytes.len());
                            Data::Bytes { offset, bytes: bytes[..kept].to_vec() }
                        }
                        length => length,
                    };
                    self.count("a write was torn");
                    apply(&mut durable, &torn);
                }
                3 => {
                    let mut blank = write.change;
                    if let Data::Bytes { offset, bytes } = &mut blank {
                        // Only blocks that are new to the file, and at most every second page of them.
                        for (at, byte) in bytes.iter_mut().enumerate() {
                            if *offset + at >= durable.len() && ((*offset + at) / PAGE).is_multiple_of(2) {
                                *byte = 0;
                            }
                        }
                        self.count("a page was blank");
                    }
                    apply(&mut durable, &blank);
                }
                _ => {
                    if has_dropped {
                        self.count("a write survived an earlier one");
                    }
                    apply(&mut durable, &write.change);
                }
            }
        }
        let inode = &mut self.inodes[at];
        inode.content = durable.clone();
        inode.durable = durable;
        inode.locked_by = None;
    }

    fn links(&self, inode: usize) -> u64 {
        self.names.values().filter(|named| **named == inode).count() as u64
    }

    fn stat(&self, at: usize) -> FileStat {
        let inode = &self.inodes[at];
        FileStat {
            id: FileId { device: 1, inode: at as u64 },
            is_file: !inode.is_directory,
            bytes: inode.content.len() as u64,
            links: self.links(at),
            changed_at: inode.version,
            touched_at: inode.version,
        }
    }
}

fn apply(content: &mut Vec<u8>, change: &Data) {
    match change {
        Data::Bytes { offset, bytes } => {
            let end = offset + bytes.len();
            if content.len() < end && !bytes.is_empty() {
                content.resize(end, 0);
            }
            if !bytes.is_empty() {
                content[*offset..end].copy_from_slice(bytes);
            }
        }
        Data::Length(length) => content.resize(*length, 0),
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state.lock();
        state.call()?;
        let found = state.find(path);
        let inode = match (found, mode) {
            (Ok(_), OpenMode::AppendNew) => return Err(ErrorKind::AlreadyExists.into()),
            (Ok(inode), _) => inode,
            (Err(error), OpenMode::Append) => return Err(error),
            (Err(_), OpenMode::AppendNew | OpenMode::AppendOrNew | OpenMode::Overwrite) => {
                state.parent(path)?;
                let inode = state.create(false);
                state.name(path, Some(inode));
                inode
            }
        };
        drop(state);
        Ok(self.handle(inode))
    }

    fn read_range(&self, path: &Path, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut state = self.state.lock();
        state.call()?;
        let inode = state.find(path)?;
        let content = &state.inodes[inode].content;
        let at = |offset: u64| content.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        Ok(content[at(range.start)..at(range.end)].to_vec())
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        let mut state = self.state.lock();
        state.call()?;
        state.find(path).map(|inode| state.stat(inode))
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut state = self.state.lock();
        state.call()?;
        state.find(directory)?;
        let within = state.names.keys().filter(|path| path.parent() == Some(directory));
        Ok(within.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut missing: Vec<PathBuf> =
            path.ancestors().take_while(|path| state.find(path).is_err()).map(Path::to_path_buf).collect();
        missing.reverse();
        state.call()?;
        for path in missing {
            let inode = state.create(true);
            state.name(&path, Some(inode));
        }
        Ok(())
    }

    fn put(&self, path: &Path, bytes: &[u8], mode: PutMode) -> io::Result<()> {
        let mut state = self.state.lock();
        state.call()?;
        state.parent(path)?;
        let inode = state.create(false);
        state.write(inode, 0, bytes)?;
        if mode != PutMode::Unsynced {
            state.sync(inode)?;
        }
        state.call()?;
        if mode == PutMode::New && state.find(path).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        state.name(path, Some(inode));
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.call()?;
        let inode = state.find(from)?;
        if state.find(to).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        state.parent(to)?;
        state.name(to, Some(inode));
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.call()?;
        state.find(path)?;
        state.name(path, None);
        Ok(())
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.state.lock().find(path)?;
        loop {
            let mut state = self.state.lock();
            // One call per file.
            state.call()?;
            let Some(last) = state.names.keys().rfind(|name| name.starts_with(path)).cloned() else {
                return Ok(());
            };
            state.name(&last, None);
        }
    }

    fn sync_files(&self, paths: &[PathBuf]) -> io::Result<()> {
        paths.iter().try_for_each(|path| {
            let mut state = self.state.lock();
            let inode = state.find(path)?;
            state.sync(inode)
        })
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let state = &mut *self.state.lock();
        state.call()?;
        state.find(path)?;
        let is_within = |change: &NameChange| {
            let names = [Some(&change.path), change.moved_from.as_ref()];
            names.into_iter().flatten().any(|name| name.parent() == Some(path))
        };
        let (synced, rest) = state.name_changes.drain(..).partition(is_within);
        state.name_changes = rest;
        let synced: Vec<NameChange> = synced;
        synced.into_iter().for_each(|change| state.make_durable(change));
        Ok(())
    }
}

impl DiskFile for SimFile {
    fn try_lock(&self) -> io::Result<bool> {
        let mut state = self.disk.state.lock();
        state.call()?;
        let locked_by = &mut state.inodes[self.inode].locked_by;
        Ok(*locked_by.get_or_insert(self.handle) == self.handle)
    }

    fn unlock(&self) -> io::Result<()> {
        let state = &mut *self.disk.state.lock();
        let locked_by = &mut state.inodes[self.inode].locked_by;
        if *locked_by == Some(self.handle) {
            *locked_by = None;
        }
        Ok(())
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let mut state = self.disk.state.lock();
        state.call()?;
        Ok(state.inodes[self.inode].content.clone())
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let end = state.inodes[self.inode].content.len();
        state.write(self.inode, end, bytes)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.state.lock().write(self.inode, offset as usize, bytes)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.call()?;
        let change = Data::Length(bytes as usize);
        let inode = &mut state.inodes[self.inode];
        apply(&mut inode.content, &change);
        inode.writes.push(Write { change, is_lost: false });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.state.lock().sync(self.inode)
    }

    fn stat(&self) -> io::Result<FileStat> {
        let mut state = self.disk.state.lock();
        state.call()?;
        Ok(state.stat(self.inode))
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let _ = DiskFile::unlock(self);
    }
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimDisk")
    }
}

impl std::fmt::Debug for SimFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimFile {}", self.inode)
    }
}
