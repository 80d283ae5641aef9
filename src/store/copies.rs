//! Complete journals written at once: forks, imports, backups. Each gets its name only when it is complete.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::blobs::BlobStore;
use super::check::{damage_finding, names};
use super::health::Backup;
use super::line::{self, Bodies};
use super::scan::{self, Scan};
use super::{Header, Store, StoreError, StorePaths, io_error, private_directory, sync_directory};
use epitome_files::atomic_file::{create_private, replace_private};
use epitome_thread::{Change, Entry, Seq, SessionId};

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
    /// number. Its log is identical to the other's byte for byte, except for the id in the first line. The
    /// other session may be open and is not changed.
    pub fn fork(&self, session: &SessionId, up_to: Option<Seq>, fork: &SessionId) -> Result<u64, StoreError> {
        let bytes = scan::read_file(&self.paths, session)?;
        let scan = Scan::read(session, &bytes, Bodies::Inline)?;
        // The part before a damaged line can be forked if the last entry is given explicitly.
        let wanted = up_to.map_or(usize::MAX, |seq| usize::try_from(seq.0).unwrap_or(usize::MAX));
        if let Some(damage) = scan.damage.filter(|_| wanted >= scan.entries.len()) {
            return Err(damage);
        }
        let lines = &scan.lines[..scan.lines.len().min(wanted.saturating_add(1))];
        let (from, to) = (self.paths.blobs(session), self.paths.blobs(fork));
        let mut first = (*scan.entries[0]).clone();
        rename_in(&mut first, fork);
        let mut journal = line::encode(fork, &first, &to)?.bytes;
        for line in &lines[1..] {
            let line = &bytes[line.bytes.clone()];
            for hash in line::moved(line) {
                match from.share(&hash, &to) {
                    // A blob missing in the original is missing in the fork as well.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    shared => {
                        shared.map_err(|source| io_error("copy a blob into", to.directory(), source))?
                    }
                }
            }
            journal.extend_from_slice(line);
            journal.push(b'\n');
        }
        self.publish(fork, &journal)?;
        Ok(lines.len() as u64)
    }

    /// Forks a session up to and including an entry, or in its current state, and records the origin in the
    /// fork's log. The original is not changed and may be open.
    pub fn fork_with_origin(
        &self,
        session: &SessionId,
        at: Option<Seq>,
    ) -> Result<ForkedSession, StoreError> {
        let fork = super::new_id();
        let at = Seq(self.fork(session, at, &fork)?.saturating_sub(1));
        let (mut journal, _) = self.load(&fork)?;
        journal.append(Change::Forked { from: session.clone(), through: at })?;
        let header = self.header(&fork)?;
        let old = header.title.as_deref().map(|title| title.split(FORK_MARK).next().unwrap_or(title).trim());
        let title = format!("{}{FORK_MARK}{session} at {at})", old.unwrap_or("Untitled"));
        journal.append(Change::Titled { title: title.clone() })?;
        journal.syncer().sync()?;
        Ok(ForkedSession { session: fork, from: session.clone(), at, title, cwd: header.cwd })
    }

    /// Stores a log from elsewhere as a new session. The entries must be numbered from 0 and start with the
    /// opening entry of this session.
    pub fn insert(&self, session: &SessionId, entries: &[Arc<Entry>]) -> Result<(), StoreError> {
        let unfit = |reason: String| StoreError::Unstorable { session: session.clone(), reason };
        if SessionId::parse(&session.0).is_none() {
            return Err(unfit("its id is not valid".to_owned()));
        }
        if self.paths.journal(session).exists() {
            return Err(StoreError::Exists(session.clone()));
        }
        let blobs = self.paths.blobs(session);
        let mut journal = Vec::new();
        for (seq, entry) in (0..).zip(entries) {
            let opens = matches!(&entry.change, Change::Opened { session: named, .. } if named == session);
            if entry.seq != Seq(seq) || opens != (seq == 0) {
                return Err(unfit(format!("entry {} is out of order", entry.seq)));
            }
            journal.extend_from_slice(&line::encode(session, entry, &blobs)?.bytes);
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
        if !names(into)?.is_empty() {
            let source = io::Error::new(io::ErrorKind::AlreadyExists, "the directory is not empty");
            return Err(io_error("make a backup in", into, source));
        }
        let copy = StorePaths { data: Arc::from(into) };
        private_directory(&copy.journals())
            .map_err(|source| io_error("make the directory", &copy.journals(), source))?;
        let mut backup = Backup { into: into.to_path_buf(), sessions: 0, bytes: 0, findings: Vec::new() };
        for session in self.paths.sessions()? {
            match self.back_up(&session, &copy, &mut backup) {
                // Deleted meanwhile.
                Err(StoreError::NotFound(_)) => {}
                done => done?,
            }
        }
        sync_directory(&copy.journals())
            .and_then(|()| sync_directory(into))
            .map_err(|source| io_error("sync the directory", into, source))?;
        Ok(backup)
    }

    fn back_up(&self, session: &SessionId, copy: &StorePaths, backup: &mut Backup) -> Result<(), StoreError> {
        // The journal is read first, because blobs are written before the lines that refer to them.
        let bytes = scan::read_file(&self.paths, session)?;
        let (whole, lines) = match Scan::read(session, &bytes, Bodies::Inline) {
            Ok(Scan { damage: None, mark, lines, .. }) => (&bytes[..mark.bytes as usize], lines),
            Ok(Scan { damage: Some(damage), lines, .. }) => {
                backup.findings.push(damage_finding(&self.paths, session, &damage));
                (&bytes[..], lines)
            }
            Err(StoreError::NotFound(session)) => return Err(StoreError::NotFound(session)),
            Err(damage) => {
                backup.findings.push(damage_finding(&self.paths, session, &damage));
                (&bytes[..], Vec::new())
            }
        };
        let (from, to) = (self.paths.blobs(session), copy.blobs(session));
        let named: BTreeSet<String> =
            lines.iter().flat_map(|line| line::moved(&bytes[line.bytes.clone()])).collect();
        for hash in &named {
            backup.bytes += copy_body(&from, &to, hash)?;
        }
        if !named.is_empty() {
            to.sync_names().map_err(|source| io_error("sync the directory", to.directory(), source))?;
        }
        let path = copy.journal(session);
        replace_private(&path, whole).map_err(|source| io_error("write", &path, source))?;
        backup.bytes += whole.len() as u64;
        backup.sessions += 1;
        Ok(())
    }

    /// Writes a complete journal under its final name. If that fails, the blobs written for it are left
    /// alone: if the id exists already, they belong to that session.
    fn publish(&self, session: &SessionId, journal: &[u8]) -> Result<(), StoreError> {
        let (directory, path) = (self.paths.journals(), self.paths.journal(session));
        private_directory(&directory).map_err(|source| io_error("make the directory", &directory, source))?;
        create_private(&path, journal).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => StoreError::Exists(session.clone()),
            _ => io_error("write", &path, error),
        })?;
        sync_directory(&directory).map_err(|source| io_error("sync the directory", &directory, source))?;
        self.index.catch_up(session);
        Ok(())
    }
}

/// Replaces the session id in an opening entry.
fn rename_in(opening: &mut Entry, name: &SessionId) {
    if let Change::Opened { session, .. } = &mut opening.change {
        *session = name.clone();
    }
}

/// Copies a blob and returns its length; 0 if it is missing, which it then is in the copy as well.
fn copy_body(from: &BlobStore, to: &BlobStore, hash: &str) -> Result<u64, StoreError> {
    let source = from.directory().join(hash);
    match std::fs::read(&source) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(io_error("read", &source, error)),
        Ok(body) => {
            private_directory(to.directory())
                .map_err(|source| io_error("make the directory", to.directory(), source))?;
            let copy = to.directory().join(hash);
            replace_private(&copy, &body).map_err(|source| io_error("write", &copy, source))?;
            Ok(body.len() as u64)
        }
    }
}
