//! Reads a journal's bytes: the entries of all intact lines, the damage between them, and the position where an
//! interrupted write begins.
//!
//! One reader serves sound and damaged journals. A line with a correct checksum is always kept. Entries whose lines
//! are damaged or missing are replaced by `Change::Lost`, so that every entry keeps its number. Changes no file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::header::{Header, JournalMark, MarkedHeader};
use super::line::{self, Bodies, CHAINED_FORMAT, LineLink, Sealed};
use super::log::StoredLog;
use super::sync_mark::{Reached, SyncMark};
use super::{DiskResultExt, StoreError, StorePaths, entries};
use epitome_thread::{Change, Entry, FORMAT_VERSION, Seq, SessionId};

/// Most entries that one gap is believed to contain. Epitome has not written a number beyond that.
const GAP_ENTRIES_MAX: u64 = 1_000_000;

/// Most damaged places that are described; further ones are counted.
const PLACES_MAX: usize = 1_000;

/// Working directory of a session whose first line is lost together with every copy: tools report that it does not
/// exist.
const UNKNOWN_CWD: &str = "/nonexistent";

/// The content of a journal.
#[derive(Debug)]
pub struct Scan {
    pub entries: Vec<Arc<Entry>>,
    pub header: Header,
    /// The end of what is kept. Bytes after it are from an interrupted write, which was not acknowledged.
    pub(super) mark: JournalMark,
    /// The intact lines that are kept, in the order of the file.
    pub(super) lines: Vec<ScannedLine>,
    pub(super) format: u32,
    /// The first line, or a copy of it; without a newline.
    pub(super) opening: Vec<u8>,
    /// Whether the file has that line.
    pub(super) has_opening: bool,
    /// Length of the file that was certainly on disk; `None` if unknown. It may have been more before a power loss,
    /// which loses the newest mark.
    pub(super) synced: Option<u64>,
    pub(super) damage: JournalDamage,
    /// Bodies that are missing or changed; their entries contain placeholders. 0 if bodies were not read.
    pub(super) lost_bodies: u64,
}

/// Position of an intact line in the file, without its newline.
#[derive(Clone, Debug)]
pub(super) struct ScannedLine {
    pub seq: Seq,
    pub bytes: Range<usize>,
    /// Counted from 1.
    pub number: u64,
    pub crc: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct JournalDamage {
    /// In the order of the file; at most `PLACES_MAX`.
    pub places: Vec<Place>,
    /// The number of all places.
    pub count: u64,
    /// Entries that are lost.
    pub lost: u64,
    /// The number of places that the user has accepted; they come first.
    pub accepted: u64,
    /// Entries whose lines are in the index.
    pub restored: u64,
}

/// A place of a journal where something is damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Counted from 1.
    pub line: u64,
    /// Number of entries missing at this place.
    pub lost: u64,
    pub fault: DamageKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DamageKind {
    Bytes,
    Missing,
    Order,
    End,
}

impl DamageKind {
    pub fn reason(self) -> &'static str {
        match self {
            DamageKind::Bytes => "its checksum is wrong",
            DamageKind::Missing => "lines before it are missing",
            DamageKind::Order => "it does not follow the line before it",
            DamageKind::End => "the file ends here, and more of it was on the disk",
        }
    }
}

impl JournalDamage {
    fn add(&mut self, place: Place) {
        self.count += 1;
        self.lost += place.lost;
        if self.places.len() < PLACES_MAX {
            self.places.push(place);
        }
    }

    /// The places that the user has not accepted.
    pub fn open_places(&self) -> &[Place] {
        self.places.get(self.accepted as usize..).unwrap_or_default()
    }

    pub fn is_open(&self) -> bool {
        self.count > self.accepted
    }

    /// The change that accepts all of it.
    pub fn acceptance(&self) -> Change {
        Change::DamageAccepted { places: self.count, entries: self.lost }
    }

    /// Counts an entry as no longer lost, because its line will be written again before the damage is accepted.
    fn restore_one(&mut self) {
        self.lost = self.lost.saturating_sub(1);
        self.restored += 1;
    }

    /// The error for writing to the session; `None` if there is no open damage.
    pub fn error(&self, session: &SessionId) -> Option<StoreError> {
        if !self.is_open() {
            return None;
        }
        let first = self.open_places().first();
        let reason = first.map_or("its damage is beyond description", |place| place.fault.reason());
        let reason = match self.count - self.accepted {
            1 => reason.to_owned(),
            places => format!("{reason}, and {} more places are damaged", places - 1),
        };
        let reason = match self.restored {
            0 => reason,
            restored => format!("{reason}; {} in the index and will be restored", entries(restored)),
        };
        let line = first.map_or(0, |place| place.line);
        Some(StoreError::Damaged { session: session.clone(), line, lost: self.lost, reason })
    }
}

/// A line of the file, or a part of one.
struct Found<'a> {
    number: u64,
    bytes: Range<usize>,
    /// `None` if it is damaged.
    intact: Option<(Sealed<'a>, Arc<Entry>)>,
}

impl Scan {
    /// Reads all lines. A file without an intact line that was never synced counts as not found: creating the
    /// session never finished.
    pub(super) fn read(
        session: &SessionId,
        bytes: &[u8],
        mark: Option<&SyncMark>,
        bodies: Bodies<'_>,
    ) -> Result<Scan, StoreError> {
        let found = pieces(session, bytes, bodies)?;
        let is_opening =
            |found: &&Found<'_>| found.intact.as_ref().is_some_and(|(_, entry)| entry.seq == Seq(0));
        let first = found.iter().find(is_opening).map(|found| bytes[found.bytes.clone()].to_vec());
        // Ignore a mark of another journal of this name.
        let mark = mark.filter(|mark| first.as_ref().is_none_or(|first| *first == mark.opening));
        let opening = match first.or_else(|| mark.map(|mark| mark.opening.clone())) {
            Some(opening) => opening,
            None => made_up_opening(session, bytes, &found)?,
        };
        let opened = read_opening(session, &opening, bodies)?;
        let reached = mark.and_then(|mark| mark.reached);
        let scan = Reader::new(bytes, opening, opened, &found, reached).read(found);
        // Not even the first line was synced.
        let never_was = scan.mark.bytes == 0 && !scan.damage.is_open();
        if never_was { Err(StoreError::NotFound(session.clone())) } else { Ok(scan) }
    }

    /// How many bytes of the log are kept.
    pub fn bytes(&self) -> u64 {
        self.mark.bytes
    }

    /// The loss of entries or bodies, unless the user has accepted it.
    pub(super) fn loss(&self, session: &SessionId) -> Option<StoreError> {
        let bodies = (self.lost_bodies > 0)
            .then(|| StoreError::BodiesLost { session: session.clone(), bodies: self.lost_bodies });
        self.damage.error(session).or(bodies)
    }

    /// The numbers of the entries that are lost.
    pub(super) fn lost(&self) -> impl Iterator<Item = u64> {
        let is_lost = |entry: &&Arc<Entry>| matches!(entry.change, Change::Lost { .. });
        self.entries.iter().filter(is_lost).map(|entry| entry.seq.0)
    }

    /// Puts lost entries into their places if these are their lines: each must continue the chain from the line before it,
    /// and the line behind it, if there is one, must continue from it. Returns the lines that were taken, with newlines.
    pub(super) fn restore(
        &mut self,
        bytes: &[u8],
        lines: &BTreeMap<u64, Vec<u8>>,
        bodies: Bodies<'_>,
    ) -> Vec<u8> {
        // The checksum of each line that is known or was taken, and that of the line before it.
        let mut chain: BTreeMap<u64, (u32, Option<u32>)> = BTreeMap::new();
        for known in &self.lines {
            let prev = line::open(&bytes[known.bytes.clone()]).and_then(|sealed| sealed.chain);
            chain.insert(known.seq.0, (known.crc, prev.map(|chain| chain.prev)));
        }
        let mut taken = Vec::new();
        for (seq, line) in lines {
            let Some(sealed) = line::open(line) else { continue };
            let prev = sealed.chain.map(|chain| chain.prev);
            let before = seq.checked_sub(1).and_then(|before| chain.get(&before)).map(|(crc, _)| *crc);
            let is_linked = before.is_some()
                && before == prev
                && chain.get(&(seq + 1)).is_none_or(|(_, prev)| *prev == Some(sealed.crc));
            let entry = line::decode(sealed, bodies).ok().filter(|entry| is_linked && entry.seq.0 == *seq);
            let Some(entry) = entry else { continue };
            chain.insert(*seq, (sealed.crc, prev));
            self.entries[*seq as usize] = Arc::new(entry);
            taken.extend_from_slice(line);
            taken.push(b'\n');
            self.damage.restore_one();
        }
        self.header = header_of(&self.entries);
        taken
    }

    /// The bodies that the lines refer to.
    pub(super) fn moved<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = String> + 'a {
        let sealed = self.lines.iter().filter_map(|line| line::open(&bytes[line.bytes.clone()]));
        sealed.flat_map(line::moved)
    }
}

/// Puts entries into their places.
struct Reader<'a> {
    bytes: &'a [u8],
    opening: Vec<u8>,
    format: u32,
    /// Indexed by number; `None` for a lost entry.
    entries: Vec<Option<Arc<Entry>>>,
    crcs: Vec<u32>,
    lines: Vec<ScannedLine>,
    /// Whether the first line was read, and not only a copy of it.
    has_opening: bool,
    damage: JournalDamage,
    /// Damage after this position is from an interrupted write; `None` if it is unknown how much was synced.
    floor: Option<u64>,
    reached: Option<Reached>,
}

impl<'a> Reader<'a> {
    fn new(
        bytes: &'a [u8],
        opening: Vec<u8>,
        opened: Entry,
        found: &[Found<'_>],
        reached: Option<Reached>,
    ) -> Reader<'a> {
        let format = match opened.change {
            Change::Opened { format, .. } => format,
            _ => FORMAT_VERSION,
        };
        let chains = found.iter().filter_map(|found| found.intact.as_ref()?.0.chain);
        let in_lines = chains.map(|chain| chain.synced).max();
        let in_lines = in_lines.or((format >= CHAINED_FORMAT).then_some(0));
        Reader {
            bytes,
            crcs: vec![line::open(&opening).map_or(0, |sealed| sealed.crc)],
            opening,
            format,
            entries: vec![Some(Arc::new(opened))],
            lines: Vec::new(),
            has_opening: false,
            damage: JournalDamage::default(),
            floor: in_lines.max(reached.map(|reached| reached.bytes)),
            reached,
        }
    }

    fn read(mut self, found: Vec<Found<'_>>) -> Scan {
        // The first of the damaged lines before the current one.
        let mut damaged: Option<(u64, usize)> = None;
        let mut end = self.bytes.len();
        for Found { number, bytes, intact } in found {
            let Some((sealed, entry)) = intact else {
                let (_, start) = *damaged.get_or_insert((number, bytes.start));
                if self.was_never_synced(start) {
                    end = start;
                    damaged = None;
                    break;
                }
                continue;
            };
            // The opening entry is already in place, wherever its line is.
            if entry.seq == Seq(0) && !self.has_opening {
                self.keep(entry, sealed.crc, number, bytes);
                continue;
            }
            let place = self.place_before(&entry, sealed.chain, number, damaged.take());
            if let Some(place) = place {
                if self.was_never_synced(bytes.start) {
                    end = bytes.start;
                    break;
                }
                self.damage.add(place);
            }
            self.keep(entry, sealed.crc, number, bytes);
        }
        // Without any mark, damage at the end is taken for an interrupted write.
        if let Some((_, start)) = damaged.filter(|_| self.floor.is_none()) {
            (end, damaged) = (start, None);
        }
        self.end(end, damaged.map(|(number, _)| number))
    }

    fn was_never_synced(&self, offset: usize) -> bool {
        self.floor.is_some_and(|floor| offset as u64 >= floor)
    }

    /// The damage between the entries read so far and this one.
    fn place_before(
        &self,
        entry: &Entry,
        chain: Option<LineLink>,
        line: u64,
        damaged: Option<(u64, usize)>,
    ) -> Option<Place> {
        let next = self.entries.len() as u64;
        let before = (entry.seq.0 as usize).checked_sub(1);
        let before = before.and_then(|before| self.entries.get(before)?.as_ref().map(|_| self.crcs[before]));
        let follows = before.zip(chain).is_none_or(|(before, chain)| chain.prev == before);
        let lost = entry.seq.0.saturating_sub(next);
        let is_hole = self.entries.get(entry.seq.0 as usize).is_some_and(Option::is_none);
        let fault = match damaged {
            Some((line, _)) => return Some(Place { line, lost, fault: DamageKind::Bytes }),
            None if is_hole => return None,
            None if lost > 0 => DamageKind::Missing,
            None if entry.seq.0 < next || !follows => DamageKind::Order,
            None => return None,
        };
        Some(Place { line, lost, fault })
    }

    fn keep(&mut self, entry: Arc<Entry>, crc: u32, number: u64, bytes: Range<usize>) {
        let at = entry.seq.0 as usize;
        if let Change::DamageAccepted { places, entries } = entry.change
            && self.damage.count <= places
            && self.damage.lost <= entries
        {
            self.damage.accepted = self.damage.count;
        }
        while self.entries.len() <= at {
            self.entries.push(None);
            self.crcs.push(0);
        }
        if at == 0 && !self.has_opening {
            self.has_opening = true;
        } else if self.entries[at].is_some() {
            return;
        } else if at + 1 < self.entries.len() {
            // A line that comes too late fills the gap that was counted before.
            self.damage.lost = self.damage.lost.saturating_sub(1);
        }
        self.lines.push(ScannedLine { seq: entry.seq, bytes, number, crc });
        self.entries[at] = Some(entry);
        self.crcs[at] = crc;
    }

    fn end(mut self, end: usize, damaged: Option<u64>) -> Scan {
        let next = self.entries.len() as u64;
        let lost =
            self.reached.map_or(0, |reached| reached.entries.saturating_sub(next)).min(GAP_ENTRIES_MAX);
        let after = self.lines.last().map_or(1, |line| line.number + 1);
        let fault = if damaged.is_some() { DamageKind::Bytes } else { DamageKind::End };
        if damaged.is_some() || lost > 0 {
            self.damage.add(Place { line: damaged.unwrap_or(after), lost, fault });
            self.entries.resize((next + lost) as usize, None);
        }
        let entries = fill(self.entries);
        let header = header_of(&entries);
        self.crcs.resize(entries.len(), 0);
        let crc = self.crcs.last().copied().unwrap_or(0);
        Scan {
            mark: JournalMark { entries: entries.len() as u64, bytes: end as u64, crc },
            entries,
            header,
            lines: self.lines,
            format: self.format,
            opening: self.opening,
            has_opening: self.has_opening,
            synced: self.floor.map(|floor| floor.min(end as u64)),
            damage: self.damage,
            lost_bodies: 0,
        }
    }
}

fn header_of(entries: &[Arc<Entry>]) -> Header {
    let mut header = Header::opened(&entries[0]).expect("the first entry is the opening one");
    entries[1..].iter().for_each(|entry| header.apply(entry));
    header
}

/// Replaces lost entries, and counts each run of them in its first one.
fn fill(entries: Vec<Option<Arc<Entry>>>) -> Vec<Arc<Entry>> {
    let mut filled: Vec<Arc<Entry>> = Vec::with_capacity(entries.len());
    let mut time = 0;
    for run in entries.chunk_by(|a, b| a.is_some() == b.is_some()) {
        let lost = (0..run.len()).map(|nth| if nth == 0 { run.len() as u64 } else { 0 });
        for (entry, lost) in run.iter().zip(lost) {
            let seq = Seq(filled.len() as u64);
            let lost = || Entry { seq, at: time, change: Change::Lost { entries: lost } };
            let entry = entry.clone().unwrap_or_else(|| Arc::new(lost()));
            time = entry.at;
            filled.push(entry);
        }
    }
    filled
}

/// Splits the file into lines and verifies each.
fn pieces<'a>(
    session: &SessionId,
    bytes: &'a [u8],
    bodies: Bodies<'_>,
) -> Result<Vec<Found<'a>>, StoreError> {
    let mut found = Vec::new();
    let (mut start, mut number, mut next) = (0, 0, 0);
    while start < bytes.len() {
        let length = memchr::memchr(b'\n', &bytes[start..]).unwrap_or(bytes.len() - start);
        let whole = start..start + length;
        number += 1;
        start = whole.end + 1;
        let mut read = |part: Range<usize>| -> Result<Option<Found<'a>>, StoreError> {
            let Some((sealed, entry)) = intact(session, &bytes[part.clone()], bodies)? else {
                return Ok(None);
            };
            // Epitome does not write a number far beyond the previous ones either.
            if entry.seq.0 > next + GAP_ENTRIES_MAX {
                return Ok(None);
            }
            next = next.max(entry.seq.0 + 1);
            Ok(Some(Found { number, bytes: part, intact: Some((sealed, Arc::new(entry))) }))
        };
        if let Some(line) = read(whole.clone())? {
            found.push(line);
            continue;
        }
        let mut rest = whole.start;
        for part in line::joined(&bytes[whole.clone()]) {
            let part = whole.start + part.start..whole.start + part.end;
            let Some(line) = read(part)? else { continue };
            if line.bytes.start > rest + 1 {
                found.push(Found { number, bytes: rest..line.bytes.start, intact: None });
            }
            rest = line.bytes.end;
            found.push(line);
        }
        // An empty line is damage as well.
        if rest < whole.end || whole.is_empty() {
            found.push(Found { number, bytes: rest..whole.end, intact: None });
        }
    }
    Ok(found)
}

/// The entry of a line; `None` if the line is not intact.
fn intact<'a>(
    session: &SessionId,
    text: &'a [u8],
    bodies: Bodies<'_>,
) -> Result<Option<(Sealed<'a>, Entry)>, StoreError> {
    let Some(sealed) = line::open(text) else { return Ok(None) };
    let may_open = memchr::memmem::find(text, br#""change":"opened""#).is_some();
    if may_open && let Some(found) = line::format(text).filter(|found| *found > FORMAT_VERSION) {
        return Err(StoreError::FutureFormat { session: session.clone(), found });
    }
    let Ok(entry) = line::decode(sealed, bodies) else { return Ok(None) };
    match &entry.change {
        Change::Opened { session: named, .. } if named != session => {
            Err(StoreError::Misnamed { session: session.clone(), named: named.clone() })
        }
        Change::Opened { .. } => Ok((entry.seq == Seq(0)).then_some((sealed, entry))),
        _ => Ok((entry.seq != Seq(0)).then_some((sealed, entry))),
    }
}

fn read_opening(session: &SessionId, opening: &[u8], bodies: Bodies<'_>) -> Result<Entry, StoreError> {
    let read = intact(session, opening, bodies)?.map(|(_, entry)| entry);
    let opens = read.filter(|entry| matches!(entry.change, Change::Opened { .. }));
    opens.ok_or_else(|| StoreError::NotFound(session.clone()))
}

/// Makes a first line for a journal that has lost it, from whatever can be read.
fn made_up_opening(session: &SessionId, bytes: &[u8], found: &[Found<'_>]) -> Result<Vec<u8>, StoreError> {
    let Some((sealed, entry)) = found.iter().find_map(|found| found.intact.as_ref()) else {
        return Err(match found.len() {
            0 | 1 => StoreError::NotFound(session.clone()),
            _ => StoreError::Unreadable(session.clone()),
        });
    };
    let (at, format) = (entry.at, if sealed.chain.is_some() { CHAINED_FORMAT } else { 1 });
    let cwd = cwd_in(bytes).unwrap_or_else(|| PathBuf::from(UNKNOWN_CWD));
    let change = Change::Opened { format, session: session.clone(), cwd };
    let fields = serde_json::to_vec(&Entry { seq: Seq(0), at, change });
    let fields = fields.map_err(|_| StoreError::NotFound(session.clone()))?;
    let mut line = line::seal(&fields[1..], LineLink::in_format(format, 0, 0)).bytes;
    line.pop();
    Ok(line)
}

/// The working directory that is still readable in a damaged first line.
fn cwd_in(bytes: &[u8]) -> Option<PathBuf> {
    let first = bytes.split(|byte| *byte == b'\n').next()?;
    let field = br#""cwd":"#;
    let at = memchr::memmem::find(first, field)? + field.len();
    let cwd: String = serde_json::Deserializer::from_slice(&first[at..]).into_iter().next()?.ok()?;
    Path::new(&cwd).is_absolute().then(|| PathBuf::from(cwd))
}

/// Reads a journal without locking it.
pub(super) fn read_stored(paths: &StorePaths, session: &SessionId) -> Result<StoredLog, StoreError> {
    let not_found = || StoreError::NotFound(session.clone());
    if SessionId::parse(&session.0).is_none() {
        return Err(not_found());
    }
    // The session may be written at the same time: its mark must not be newer than the bytes that are read.
    let (mark, path) = (SyncMark::read(paths, session), paths.journal(session));
    let bytes = paths.disk.read(&path, u64::MAX).if_found().doing("read", &path)?;
    Ok(StoredLog { bytes: bytes.ok_or_else(not_found)?, mark })
}

/// Reads a journal without locking it and without its bodies, and returns it with its bytes.
pub(super) fn read(paths: &StorePaths, session: &SessionId) -> Result<(Scan, Vec<u8>), StoreError> {
    let stored = read_stored(paths, session)?;
    Ok((stored.scan_with(session, Bodies::Inline)?, stored.bytes))
}

/// Builds a session's header from its journal alone.
pub(super) fn read_header(paths: &StorePaths, session: &SessionId) -> Result<MarkedHeader, StoreError> {
    let (scan, _) = read(paths, session)?;
    Ok(MarkedHeader { header: scan.header, mark: scan.mark })
}
