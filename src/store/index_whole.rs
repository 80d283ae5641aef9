//! Operations on the complete index: comparing it with the journals, and rebuilding it from them. Called only
//! by the index thread, with the lock held.

use std::path::{Path, PathBuf};

use super::check::{bytes_below, names};
use super::header::{Header, MarkedHeader};
use super::health::{IndexState, Rebuilt};
use super::index::Keep;
use super::index_thread::{ends_in, guarded, now_millis};
use super::line::Bodies;
use super::rows::{Rows, RowsError};
use super::scan::{self, Scan};
use super::{Places, StoreError};
use epitome_thread::SessionId;

/// A new database, written next to the one in use.
pub(super) struct New {
    directory: PathBuf,
    sessions: u64,
}

/// Compares the rows with the journals.
pub(super) fn compare(places: &Places, rows: &Rows) -> IndexState {
    match guarded(|| compared(places, rows)) {
        Ok(state) => state,
        Err(RowsError::Damaged(reason)) => IndexState::Damaged { reason },
        Err(RowsError::Unavailable(error)) => IndexState::Unknown { reason: error.to_string() },
    }
}

fn compared(places: &Places, rows: &Rows) -> Result<IndexState, RowsError> {
    let mut stored = rows.headers()?;
    let (mut sessions, mut behind, mut wrong) = (0, 0, Vec::new());
    for session in places.sessions().map_err(unavailable)? {
        let Some((bytes, scan)) = read(places, &session) else {
            stored.remove(&session);
            continue;
        };
        let Some(marked) = stored.remove(&session) else {
            behind += u64::from(scan.header.has_prompt);
            continue;
        };
        sessions += 1;
        if is_same(rows, &session, &marked, &scan, &bytes)? {
            behind += u64::from(marked.mark != scan.mark);
        } else {
            wrong.push(session);
        }
    }
    // Rows of sessions that were deleted since.
    behind += stored.len() as u64;
    Ok(if wrong.is_empty() {
        IndexState::Agrees { sessions, behind }
    } else {
        IndexState::Disagrees { sessions: wrong }
    })
}

/// Whether the rows match the first lines of the journal, and the header matches these lines.
fn is_same(
    rows: &Rows,
    session: &SessionId,
    marked: &MarkedHeader,
    scan: &Scan,
    bytes: &[u8],
) -> Result<bool, RowsError> {
    if !ends_in(&scan.lines, &marked.mark) {
        return Ok(false);
    }
    let lines = match rows.lines(session) {
        Ok(lines) => lines,
        // One damaged row affects only this session.
        Err(RowsError::Damaged(_)) => return Ok(false),
        Err(error) => return Err(error),
    };
    let indexed = &scan.entries[..marked.mark.entries as usize];
    let header = indexed.split_first().and_then(|(first, rest)| {
        let mut header = Header::opened(first)?;
        rest.iter().for_each(|entry| header.apply(entry));
        Some(header)
    });
    let journal = scan.lines.iter().map(|line| &bytes[line.bytes.clone()]);
    Ok(lines.len() == indexed.len()
        && lines.iter().zip(journal).all(|(row, line)| row == line)
        && header.as_ref() == Some(&marked.header))
}

/// Writes a new database with all sessions. `end` closes it and returns whether that succeeded.
pub(super) fn write_anew(places: &Places, end: impl FnOnce(Rows, &Path) -> bool) -> Result<New, String> {
    // Remove what a crash left of an earlier attempt.
    for left in names(&places.data).unwrap_or_default() {
        if left.starts_with("db.new-") {
            let _ = std::fs::remove_dir_all(places.data.join(left));
        }
    }
    let directory = places.data.join(format!("db.new-{}", now_millis()));
    let rows = guarded(|| Rows::open(&directory)).map_err(|error| error.to_string())?;
    let written = guarded(|| {
        let mut sessions = 0;
        for session in places.sessions().map_err(unavailable)? {
            let Some((bytes, scan)) = read(places, &session).filter(|(_, scan)| scan.header.has_prompt)
            else {
                continue;
            };
            let lines = scan.lines.iter().map(|line| &bytes[line.bytes.clone()]);
            rows.append(&MarkedHeader { header: scan.header, mark: scan.mark }, 0, lines, None)?;
            sessions += 1;
        }
        Ok(sessions)
    });
    let ended = end(rows, &directory);
    match written {
        Ok(sessions) if ended => Ok(New { directory, sessions }),
        Ok(_) => Err("sled does not end".to_owned()),
        Err(error) => {
            if ended {
                let _ = std::fs::remove_dir_all(&directory);
            }
            Err(error.to_string())
        }
    }
}

/// Replaces the old database with the new one.
pub(super) fn swap(places: &Places, new: New, keep: Keep) -> Result<Rebuilt, String> {
    let old = places.db();
    let bytes_before = bytes_below(&old, 0);
    let name = match keep {
        Keep::Aside => format!("db.corrupt-{}", now_millis()),
        Keep::Nothing => format!("db.old-{}", now_millis()),
    };
    let aside = places.data.join(name);
    let failed = |error: std::io::Error| format!("the new index cannot be put into its place: {error}");
    std::fs::rename(&old, &aside).map_err(failed)?;
    // A crash here leaves no index; the next use rebuilds it from the journals.
    if let Err(error) = std::fs::rename(&new.directory, &old) {
        let _ = std::fs::rename(&aside, &old);
        return Err(failed(error));
    }
    let kept = match keep {
        Keep::Aside => Some(aside),
        Keep::Nothing => {
            if let Err(error) = std::fs::remove_dir_all(&aside) {
                tracing::warn!(%error, directory = %aside.display(), "an old index cannot be removed");
            }
            None
        }
    };
    Ok(Rebuilt { sessions: new.sessions, bytes_before, bytes_after: bytes_below(&old, 0), kept })
}

/// Reads a journal for indexing; `None` if it is damaged, which listings detect themselves.
fn read(places: &Places, session: &SessionId) -> Option<(Vec<u8>, Scan)> {
    let bytes = scan::read_file(places, session).ok()?;
    let scan = Scan::of(session, &bytes, Bodies::Inline).ok()?;
    scan.damage.is_none().then_some((bytes, scan))
}

fn unavailable(error: StoreError) -> RowsError {
    RowsError::Unavailable(std::io::Error::other(error.to_string()))
}
