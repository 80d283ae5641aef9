//! `listing`: the newest sessions, saved by a process that ends, for the first listing of the next one.
//!
//! It is used only if nothing suggests that a journal has changed since: no name in the directory is new, renamed or gone,
//! none of its journals was written, and no session was opened for writing, which removes this file. Only an older session
//! can be missing in it, one that was written without being opened, or that was open when this file was written. So a
//! process that has used it looks at all journals as soon as it has responded.

use serde::{Deserialize, Serialize};

use super::disk::{FileId, PutMode};
use super::header::MarkedHeader;
use super::{StorePaths, line};
use epitome_platform::disk::file_time;
use epitome_thread::SessionId;

/// Sessions that are saved: some pages.
pub(super) const SESSIONS_MAX: usize = 200;

/// Longest file that is read, in bytes.
const BYTES_MAX: u64 = 4 * 1024 * 1024;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedListing {
    /// From before the listing was made.
    pub names: NamesMark,
    /// Newest first.
    pub rows: Vec<SavedRow>,
    /// The sessions from here on are not saved.
    pub floor: Option<(u64, SessionId)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedRow {
    pub marked: MarkedHeader,
    /// Length of the journal, which may end with an incomplete line, and the time of its last change.
    pub journal: (u64, u64),
}

/// The state of the directory of the journals.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NamesMark {
    device: u64,
    inode: u64,
    changed_at: u64,
}

impl NamesMark {
    pub fn now(paths: &StorePaths) -> Option<NamesMark> {
        let stat = paths.disk.stat(&paths.journals()).ok()?;
        let FileId { device, inode } = stat.id;
        Some(NamesMark { device, inode, changed_at: stat.changed_at })
    }

    /// Whether each change of a name from now on gets a later time.
    pub fn is_past(&self) -> bool {
        u64::try_from(file_time() / 1_000_000).is_ok_and(|now| self.changed_at < now)
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

    /// `None` if something has changed since it was saved.
    pub fn read(paths: &StorePaths) -> Option<SavedListing> {
        let bytes = paths.disk.read(&paths.saved_listing(), BYTES_MAX).ok()?;
        let text = bytes.strip_suffix(b"\n").filter(|text| line::open(text).is_some())?;
        let saved: SavedListing = serde_json::from_slice(text).ok()?;
        let is_unchanged = |row: &SavedRow| {
            let stat = paths.disk.stat(&paths.journal(&row.marked.header.session));
            stat.is_ok_and(|stat| (stat.bytes, stat.changed_at) == row.journal)
        };
        (NamesMark::now(paths)? == saved.names && saved.rows.iter().all(is_unchanged)).then_some(saved)
    }

    /// Must be called before a stored session is written to.
    pub fn remove(paths: &StorePaths) {
        // Usually there is none. Without the right to remove it, there is none to write journals either.
        let _ = paths.disk.remove_file(&paths.saved_listing());
    }
}
