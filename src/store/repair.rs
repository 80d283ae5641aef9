//! Restores a damaged store to its last good state. Damaged files are kept next to the repaired ones: nothing
//! is deleted.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::health::{IndexState, Rebuilt, Repair, Repaired};
use super::index::OldIndex;
use super::line::{self, Bodies};
use super::scan::{self, Scan};
use super::{Store, StoreError, StorePaths, io_error, journal, open_private, sync_directory};
use epitome_files::atomic_file::replace_private;
use epitome_platform::holder::holder;
use epitome_thread::SessionId;

impl Store {
    /// Repairs what can be repaired: a damaged journal continues with the part before the damage, and a wrong
    /// index is rebuilt. Sessions that are open are left alone and reported.
    pub fn repair(&self) -> Result<Repair, StoreError> {
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        for session in self.paths.sessions()? {
            match self.repair_journal(&session) {
                Ok(repaired) => done.extend(repaired),
                Err(error) => refused.push(self.refusal(&session, &error)),
            }
        }
        match self.index.compare() {
            IndexState::Damaged { .. } | IndexState::Disagrees { .. } => {
                match self.index.rebuild(OldIndex::Aside) {
                    Ok(Rebuilt { sessions, kept, .. }) => {
                        let what = format!("the index was rebuilt from the journals of {sessions} sessions");
                        done.push(Repaired { session: None, what, kept });
                    }
                    Err(reason) => refused.push(Repaired {
                        session: None,
                        what: format!("the index was not rebuilt: {reason}"),
                        kept: None,
                    }),
                }
            }
            IndexState::Absent
            | IndexState::Agrees { .. }
            | IndexState::Elsewhere { .. }
            | IndexState::Unknown { .. } => {}
        }
        Ok(Repair { done, refused, health: self.check()? })
    }

    /// Rewrites the index to reclaim space. The old one is removed once the new one is in place. The error is
    /// a sentence.
    pub fn compact_index(&self) -> Result<Rebuilt, String> {
        self.index.rebuild(OldIndex::Nothing)
    }

    /// The process that has a session open, if the system provides that information.
    pub fn holder(&self, session: &SessionId) -> Option<String> {
        SessionId::parse(&session.0)?;
        holder(&self.paths.journal(session))
    }

    /// `None` if nothing was wrong with it.
    fn repair_journal(&self, session: &SessionId) -> Result<Option<Repaired>, StoreError> {
        // Most journals are sound, and an open session only matters if its journal is not.
        if is_sound(session, &scan::read_file(&self.paths, session)?)? {
            return Ok(None);
        }
        let path = self.paths.journal(session);
        let file = open_private()
            .read(true)
            .append(true)
            .open(&path)
            .map_err(|source| io_error("open", &path, source))?;
        journal::lock(&file, session, &path)?;
        // Check again, now that nobody else writes it.
        let bytes = scan::read_file(&self.paths, session)?;
        if is_sound(session, &bytes)? {
            return Ok(None);
        }
        let kept = aside(&self.paths, session);
        let (good, entries) = match Scan::read(session, &bytes, Bodies::Inline) {
            Ok(scan) => (scan.mark.bytes as usize, scan.mark.entries),
            Err(_) => (0, 0),
        };
        let behind = whole_lines(&bytes[good..]);
        let name = kept.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let what = if entries == 0 {
            std::fs::rename(&path, &kept).map_err(|source| io_error("keep", &kept, source))?;
            format!(
                "session {session} has no readable beginning and is no longer listed; its journal is kept as {name}, \
                 with {behind} intact lines"
            )
        } else {
            keep(&path, &kept, &bytes)?;
            replace_private(&path, &bytes[..good]).map_err(|source| io_error("replace", &path, source))?;
            format!(
                "session {session} continues with its first {entries} entries; the original journal is kept as {name}, \
                 with {behind} intact lines after the damage"
            )
        };
        let journals = self.paths.journals();
        sync_directory(&journals).map_err(|source| io_error("sync the directory", &journals, source))?;
        tracing::warn!(%session, entries, behind, "a damaged journal was repaired");
        self.index.catch_up(session);
        Ok(Some(Repaired { session: Some(session.clone()), what, kept: Some(kept) }))
    }

    fn refusal(&self, session: &SessionId, error: &StoreError) -> Repaired {
        let what = match error {
            StoreError::InUse(_) => {
                let who = self.holder(session).unwrap_or_else(|| "another process".to_owned());
                format!("session {session} is damaged, and open in {who}: close it there and repair again")
            }
            error => format!("session {session} was not repaired: {error}"),
        };
        Repaired { session: Some(session.clone()), what, kept: None }
    }
}

/// Whether nothing needs repair; an incomplete last line is cut off when the session is opened.
fn is_sound(session: &SessionId, bytes: &[u8]) -> Result<bool, StoreError> {
    match Scan::read(session, bytes, Bodies::Inline) {
        Ok(scan) => Ok(scan.damage.is_none()),
        Err(StoreError::Damaged { .. }) => Ok(false),
        // A journal of a newer version is not damaged.
        Err(StoreError::NotFound(_) | StoreError::FutureFormat { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Gives the damaged journal a second name. Until the first one is replaced, both name the same file, so that
/// a crash never leaves the session without a journal.
fn keep(path: &Path, kept: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    match std::fs::hard_link(path, kept) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(io_error("keep", kept, error)),
        // Not all file systems support hard links.
        Err(_) => replace_private(kept, bytes).map_err(|source| io_error("keep", kept, source)),
    }
}

/// Path under which a damaged journal is kept: next to it, with the time in milliseconds.
fn aside(paths: &StorePaths, session: &SessionId) -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    paths.journals().join(format!("{session}.damaged-{now}"))
}

fn whole_lines(bytes: &[u8]) -> usize {
    bytes.split(|byte| *byte == b'\n').filter(|line| line::check(line).is_ok()).count()
}
