//! The chain of a journal's lines: each continues from the checksum of the one before it.

use std::convert::Infallible;

use super::StorePaths;
use super::header::JournalMark;
use super::line::{self, Sealed};
use epitome_thread::SessionId;

/// Bytes of a journal that are read at once.
const READ_BYTES: u64 = 1024 * 1024;

/// Whether the journal has an unbroken chain of lines up to this position.
pub(super) fn is_sound(paths: &StorePaths, session: &SessionId, until: JournalMark) -> bool {
    let mut mark = JournalMark::default();
    walk(paths, session, &mut mark, until, |_, _| Ok::<_, Infallible>(())).is_ok_and(|()| mark == until)
}

/// Reads the lines of a journal from a mark on, as long as they continue the chain, and moves the mark behind each line
/// that `each` has taken. Holds only a part of the journal in memory.
pub(super) fn walk<E>(
    paths: &StorePaths,
    session: &SessionId,
    mark: &mut JournalMark,
    until: JournalMark,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut read_bytes = READ_BYTES;
    while mark.bytes < until.bytes {
        let end = until.bytes.min(mark.bytes + read_bytes);
        let Ok(bytes) = paths.disk.read_range(&paths.journal(session), mark.bytes..end) else {
            return Ok(());
        };
        let (mut rest, began) = (&bytes[..], mark.bytes);
        while let Some((_, line)) = next_line(&mut rest, mark) {
            each(mark.entries - 1, line)?;
        }
        match mark.bytes > began {
            true => read_bytes = READ_BYTES,
            // A line may be longer.
            false if end < until.bytes && !rest.contains(&b'\n') => read_bytes *= 2,
            false => return Ok(()),
        }
    }
    Ok(())
}

/// Reads the next line after a mark and moves the mark behind it. `None` if the line does not continue the chain; then
/// nothing is moved.
pub(super) fn next_line<'a>(bytes: &mut &'a [u8], mark: &mut JournalMark) -> Option<(Sealed<'a>, &'a [u8])> {
    let mut rest = *bytes;
    let sealed = first_line(&mut rest)?;
    if sealed.chain?.prev != mark.crc {
        return None;
    }
    let length = bytes.len() - rest.len();
    let line = &bytes[..length - 1];
    *bytes = rest;
    let (entries, bytes) = (mark.entries + 1, mark.bytes + length as u64);
    *mark = JournalMark { entries, bytes, crc: sealed.crc };
    Some((sealed, line))
}

/// Reads the next line, whatever it continues.
pub(super) fn first_line<'a>(bytes: &mut &'a [u8]) -> Option<Sealed<'a>> {
    let end = memchr::memchr(b'\n', bytes)?;
    let sealed = line::open(&bytes[..end])?;
    *bytes = &bytes[end + 1..];
    Some(sealed)
}
