//! `<session>.synced`: how much of a journal is known to be on disk, and a copy of its first line.
//!
//! A journal that is shorter than its mark has lost acknowledged entries, which the journal alone cannot show. The
//! mark is written after each sync and not synced itself: after a power loss it is older than the journal or
//! unreadable, so it never claims too much.

use serde::Deserialize;

use super::line;
use super::{DiskResultExt, StorePaths};
use epitome_files::disk::OpenMode;
use epitome_thread::SessionId;

/// Longest file that is read, in bytes: a journal's first line contains little more than a path.
const BYTES_MAX: u64 = 64 * 1024;

/// The state of a journal after its last known sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SyncMark {
    /// The first line of the journal, without its newline.
    pub opening: Vec<u8>,
    /// `None` if that part is unreadable.
    pub reached: Option<Reached>,
}

/// A position in a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Reached {
    pub entries: u64,
    pub bytes: u64,
}

impl SyncMark {
    /// Reads the mark of a session, before its journal is read; `None` if it is missing.
    pub fn read(paths: &StorePaths, session: &SessionId) -> Option<SyncMark> {
        let bytes = paths.disk.read(&paths.sync_mark(session), BYTES_MAX).ok()?;
        let mut lines =
            bytes.split_inclusive(|byte| *byte == b'\n').map_while(|line| line.strip_suffix(b"\n"));
        let opening = lines.next().filter(|opening| line::open(opening).is_some())?.to_vec();
        let reached = lines.next().filter(|reached| line::open(reached).is_some());
        Some(SyncMark { opening, reached: reached.and_then(|reached| serde_json::from_slice(reached).ok()) })
    }

    /// Writes the mark, without waiting for the disk. After a failure, later readers only know less.
    pub fn write(paths: &StorePaths, session: &SessionId, opening: &[u8], reached: Reached) {
        let Reached { entries, bytes } = reached;
        let reached = line::seal(format!(r#""entries":{entries},"bytes":{bytes}}}"#).as_bytes(), None);
        let text = [opening, b"\n", &reached.bytes].concat();
        let path = paths.sync_mark(session);
        let written = paths.disk.open(&path, OpenMode::Overwrite).and_then(|file| file.write_at(&text, 0));
        if let Err(error) = written.doing("write", &path) {
            tracing::debug!(%session, %error, "a sync was not recorded");
        }
    }
}
