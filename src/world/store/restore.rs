//! Puts entries back whose lines a journal has lost, and the index has.

use super::StorePaths;
use super::blobs::BodyReader;
use super::index::Index;
use super::line::Bodies;
use super::scan::Scan;
use epitome_thread::SessionId;

/// Most entries of a damaged log that are looked for in the index.
const RESTORED_MAX: usize = 10_000;

/// Puts entries into a damaged log whose lines the index has, and returns these lines.
pub(super) fn restore(
    paths: &StorePaths,
    index: &Index,
    session: &SessionId,
    scan: &mut Scan,
    bytes: &[u8],
) -> Vec<u8> {
    let lost: Vec<u64> = scan.lost().take(RESTORED_MAX).collect();
    let Some(lines) = index.lines_of(session, lost) else { return Vec::new() };
    let blobs = paths.blobs(session);
    let bodies = BodyReader::new(&blobs);
    scan.restore(bytes, &lines, Bodies::Whole(&bodies))
}
