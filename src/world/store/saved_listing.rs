//! `listing`: the newest sessions, saved by a process when it is idle or ends, for the first listing of the next one.
//!
//! It is used only if no name in the directory is new, renamed or gone since then; appending to a session removes this file.
//! Journals that were written nevertheless are read again. So the only session that it can lack is an older one that another
//! program than Epitome has written. A process that continues after a listing reads all journals once it has responded.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::disk::{FileId, PutMode};
use super::header::MarkedHeader;
use super::rows::VERSION;
use super::{StorePaths, line};
use epitome_platform::disk::file_time;
use epitome_thread::SessionId;

/// Sessions that are saved: some pages.
pub(super) const SESSIONS_MAX: usize = 200;

/// Longest file that is read, in bytes.
const BYTES_MAX: u64 = 4 * 1024 * 1024;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedListing {
    /// The version of the rows in sled, which changes with the content of headers for the same log.
    pub version: u8,
    /// The mark of the names from before the listing was made.
    pub names: NamesMark,
    /// Newest first.
    pub rows: Vec<SavedRow>,
    /// Further sessions to look at.
    pub unsettled: BTreeSet<SessionId>,
    /// The sessions from here on are not saved.
    pub floor: Option<(u64, SessionId)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedRow {
    pub marked: MarkedHeader,
    /// Length of the journal, which may end with an incomplete line, and the time of its last change, which a restored backup
    /// can't set back.
    pub journal: (u64, u64),
}

/// The state of the directory of the journals.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NamesMark {
    device: u64,
    inode: u64,
    touched_at: u64,
}

impl NamesMark {
    pub fn now(paths: &StorePaths) -> Option<NamesMark> {
        let stat = paths.disk.stat(&paths.journals()).ok()?;
        let FileId { device, inode } = stat.id;
        Some(NamesMark { device, inode, touched_at: stat.touched_at })
    }

    /// Whether each change of a name from now on gets a later time.
    pub fn is_past(&self) -> bool {
        u64::try_from(file_time() / 1_000_000).is_ok_and(|now| self.touched_at < now)
    }
}

impl SavedListing {
    pub fn write(&self, paths: &StorePaths) {
        let Ok(json) = serde_json::to_vec(self) else { return };
        let line = line::seal(&json[1..], None);
        if let Err(error) = paths.disk.put(&paths.saved_listing(), &line.bytes, PutMode::Unsynced) {
            tracing::debug!(%error, "the listing is not saved");
        }
    }

    /// Journals that have changed since are unsettled. `None` if others may have changed.
    pub fn read(paths: &StorePaths) -> Option<SavedListing> {
        let bytes = paths.disk.read(&paths.saved_listing(), BYTES_MAX).ok()?;
        let text = bytes.strip_suffix(b"\n").filter(|text| line::open(text).is_some())?;
        let mut saved: SavedListing = serde_json::from_slice(text).ok()?;
        let has_changed = |row: &&SavedRow| {
            let stat = paths.disk.stat(&paths.journal(&row.marked.header.session));
            !stat.is_ok_and(|stat| (stat.bytes, stat.touched_at) == row.journal)
        };
        let changed = saved.rows.iter().filter(has_changed).map(|row| row.marked.header.session.clone());
        saved.unsettled.extend(changed);
        (saved.version == VERSION && NamesMark::now(paths)? == saved.names).then_some(saved)
    }

    /// Must be called after each write to a journal: a process that saves meanwhile notices the write.
    pub fn remove(paths: &StorePaths) {
        // Usually there is none. Without the right to remove it, there is none to write journals either.
        let _ = paths.disk.remove_file(&paths.saved_listing());
    }
}
