//! Checks all files of the store and reports every deviation. It changes nothing, takes no session locks, and
//! works while other processes write.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::health::{Finding, FindingKind, Health, IndexState, StoreSizes, bytes_below};
use super::index_compare::IndexComparison;
use super::line;
use super::scan::{self, DamageKind, JournalDamage};
use super::{Store, StoreError, StorePaths, entries, now, restore};
use epitome_thread::SessionId;

/// Age from which a file without its final name is a leftover; a younger one may be in use.
const LEFTOVER_MS: u64 = 60 * 60 * 1000;

/// Damaged places of one session that are reported; on a failing disk the first ones are sufficient.
const PLACES_SHOWN_MAX: usize = 20;

impl Store {
    /// Reads the complete store and reports what is wrong. Takes as long as the disk needs to read all of it.
    pub fn check(&self) -> Result<Health, StoreError> {
        self.check_with(&mut |_, _| ())
    }

    /// Like `check`. Reports before each session how many are checked, of how many.
    pub fn check_with(&self, progress: &mut dyn FnMut(usize, usize)) -> Result<Health, StoreError> {
        self.only_files("check the journals")?;
        let mut compared = self.index.comparison();
        let mut health = Health {
            sessions: 0,
            entries: 0,
            findings: Vec::new(),
            more_findings: 0,
            index: IndexState::Absent,
            sizes: self.sizes()?,
        };
        let sessions: BTreeSet<SessionId> = self.paths.sessions()?.into_iter().collect();
        for (at, session) in sessions.iter().enumerate() {
            progress(at, sessions.len());
            self.check_session(session, compared.as_mut().ok(), &mut health);
        }
        health.index = compared.map_or_else(|state| state, IndexComparison::end);
        check_orphans(&self.paths, &sessions, &mut health)?;
        check_kept(&self.paths, &mut health)?;
        if let Some(finding) = index_finding(&self.paths, &health.index) {
            health.add(finding);
        }
        health.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(health)
    }

    fn check_session(
        &self,
        session: &SessionId,
        compared: Option<&mut IndexComparison>,
        health: &mut Health,
    ) {
        let paths = &self.paths;
        let read = scan::read(paths, session);
        if let Some(compared) = compared {
            compared.add(session, read.as_ref().ok().map(|(scan, _)| scan));
        }
        let (mut scan, bytes) = match read {
            Ok(read) => read,
            // Deleted since, or just being created.
            Err(StoreError::NotFound(_)) => return,
            Err(error) => return health.add(unreadable(paths, session, &error)),
        };
        health.sessions += 1;
        health.entries += scan.mark.entries;
        // A lost entry may refer to any of the remaining blobs.
        let is_whole = scan.damage.lost == 0 && scan.mark.bytes as usize == bytes.len();
        if scan.damage.is_open() {
            restore::restore(paths, &self.index, session, &mut scan, &bytes);
        }
        for finding in findings_in(paths, session, &scan.damage) {
            health.add(finding);
        }
        if (scan.mark.bytes as usize) < bytes.len() {
            let what = format!(
                "the end of session {session} is incomplete: a crash interrupted its write, or it is being written"
            );
            let finding =
                Finding::new(FindingKind::TornLine, paths.journal(session), what).for_session(session);
            let todo = "nothing: it is moved to a file of its own when the session is opened next";
            health.add(finding.in_line(scan.lines.last().map_or(1, |line| line.number + 1)).todo(todo));
        }
        let mut named: BTreeMap<String, u64> = BTreeMap::new();
        for line in &scan.lines {
            let sealed = line::open(&bytes[line.bytes.clone()]);
            for hash in sealed.into_iter().flat_map(line::moved) {
                named.entry(hash).or_insert(line.number);
            }
        }
        check_blobs(paths, session, &named, is_whole, health);
    }

    /// Disk usage of the store.
    pub fn sizes(&self) -> Result<StoreSizes, StoreError> {
        let mut sizes =
            StoreSizes { blobs: bytes_below(&self.paths.data.join("blobs"), 0), ..StoreSizes::default() };
        for (name, bytes) in files(&self.paths, &self.paths.journals())? {
            match name.rsplit_once('.') {
                Some((_, "jsonl" | "synced")) => sizes.journals += bytes,
                Some(_) | None => sizes.kept += bytes,
            }
        }
        for name in self.paths.names(&self.paths.data)? {
            let path = self.paths.data.join(&name);
            if name == "db" {
                sizes.index += bytes_below(&path, 0);
            } else if is_kept_index(&name) {
                sizes.index_kept += bytes_below(&path, 0);
            }
        }
        Ok(sizes)
    }
}

pub(super) fn findings_in(paths: &StorePaths, session: &SessionId, damage: &JournalDamage) -> Vec<Finding> {
    let path = paths.journal(session);
    let mut findings = Vec::new();
    if damage.accepted > 0 {
        let what = format!(
            "{} damaged places of session {session} are known; you continued without what they contained",
            damage.accepted
        );
        findings.push(Finding::new(FindingKind::AcceptedDamage, path.clone(), what).for_session(session));
    }
    for place in damage.open_places().iter().take(PLACES_SHOWN_MAX) {
        let kind = match place.fault {
            DamageKind::Bytes | DamageKind::Missing | DamageKind::Order => FindingKind::DamagedJournal,
            DamageKind::End => FindingKind::MissingEntries,
        };
        let what = format!(
            "session {session} is damaged: {}; {} missing",
            place.fault.reason(),
            entries(place.lost)
        );
        let repairs = match (damage.restored, damage.lost) {
            (0, _) => "accepts the loss".to_owned(),
            (_, 0) => "restores everything that is missing from the index".to_owned(),
            (restored, lost) => format!(
                "restores {restored} of the {} missing entries from the index, and accepts the loss of the others",
                restored + lost
            ),
        };
        let todo =
            format!("it can be read; `/repair` in the session, or `epitome doctor --repair`, {repairs}");
        let finding = Finding::new(kind, path.clone(), what).for_session(session);
        findings.push(finding.in_line(place.line).todo(&todo));
    }
    let more = (damage.count - damage.accepted).saturating_sub(PLACES_SHOWN_MAX as u64);
    if more > 0 {
        let what = format!("{more} more places of session {session} are damaged");
        findings.push(Finding::new(FindingKind::DamagedJournal, path, what).for_session(session));
    }
    findings
}

/// The finding for a journal that can't be read at all.
pub(super) fn unreadable(paths: &StorePaths, session: &SessionId, error: &StoreError) -> Finding {
    let (kind, todo) = match error {
        StoreError::FutureFormat { .. } => {
            (FindingKind::FutureFormat, "install the newer version to read it")
        }
        StoreError::Unreadable(_) => (
            FindingKind::DamagedJournal,
            "restore it from a backup; `epitome doctor --repair` moves the file out of the way",
        ),
        StoreError::Misnamed { .. } => {
            (FindingKind::Unreadable, "rename the file, or delete it if it is a copy")
        }
        StoreError::Damaged { .. }
        | StoreError::BodiesLost { .. }
        | StoreError::NotFound(_)
        | StoreError::Exists(_)
        | StoreError::InUse(..)
        | StoreError::Unstorable { .. }
        | StoreError::SyncFailed(_)
        | StoreError::Replaced(_)
        | StoreError::DamageFound(_)
        | StoreError::Unfoldable { .. }
        | StoreError::TakenOver { .. }
        | StoreError::Unreachable { .. }
        | StoreError::NotFiles { .. }
        | StoreError::Io { .. } => (FindingKind::Unreadable, "check the disk and the file's permissions"),
    };
    Finding::new(kind, paths.journal(session), error.to_string()).for_session(session).todo(todo)
}

/// `named` contains the blobs that entries refer to, each with the first line that does.
fn check_blobs(
    paths: &StorePaths,
    session: &SessionId,
    named: &BTreeMap<String, u64>,
    is_whole: bool,
    health: &mut Health,
) {
    let blobs = paths.blobs(session);
    for (hash, line) in named {
        let Err(reason) = blobs.check(hash) else { continue };
        let path = blobs.directory().join(hash);
        let kind =
            if paths.disk.stat(&path).is_ok() { FindingKind::ChangedBlob } else { FindingKind::MissingBlob };
        let entry = line.saturating_sub(1);
        let what =
            format!("a body of session {session} {reason}; its entry e{entry} contains a note instead");
        let finding = Finding::new(kind, path, what).for_session(session).in_line(*line);
        health.add(finding.todo("restore the file from a backup, if there is one"));
    }
    for (name, _) in files(paths, blobs.directory()).unwrap_or_default() {
        if is_whole && !named.contains_key(&name) {
            let what = format!(
                "no entry of session {session} refers to this blob: its entry was never written, or was cut off"
            );
            let path = blobs.directory().join(&name);
            health.add(Finding::new(FindingKind::UnnamedBlob, path, what).for_session(session));
        }
    }
}

/// Reports the blobs and checkpoints of sessions that have no journal.
fn check_orphans(
    paths: &StorePaths,
    sessions: &BTreeSet<SessionId>,
    health: &mut Health,
) -> Result<(), StoreError> {
    for (directory, kind, has, todo) in [
        (
            "checkpoints",
            FindingKind::OrphanCheckpoints,
            "checkpoints of files",
            "delete the directory if you need nothing in it",
        ),
        (
            "blobs",
            FindingKind::OrphanBlobs,
            "blobs",
            "restore its journal from a backup, or delete the directory",
        ),
    ] {
        let directory = paths.data.join(directory);
        for name in paths.names(&directory)? {
            let Some(session) = SessionId::parse(&name) else { continue };
            // The session may have been created after the journals were listed.
            let has_journal =
                sessions.contains(&session) || paths.disk.stat(&paths.journal(&session)).is_ok();
            if has_journal || !paths.damaged(&session)?.is_empty() {
                continue;
            }
            let what = format!(
                "session {session} has {has} but no journal: its deletion was interrupted, or the journal was lost"
            );
            let finding = Finding::new(kind, directory.join(&name), what);
            health.add(finding.for_session(&session).todo(todo));
        }
    }
    Ok(())
}

fn check_kept(paths: &StorePaths, health: &mut Health) -> Result<(), StoreError> {
    for path in leftovers(paths)? {
        let what = "an interrupted write left this file, which nothing uses".to_owned();
        let finding = Finding::new(FindingKind::Leftover, path, what);
        health.add(finding.todo("`epitome doctor --repair` deletes it"));
    }
    for (name, bytes) in files(paths, &paths.journals())? {
        let Some((session, end)) = name.split_once('.') else { continue };
        let (kind, what) = match end {
            "torn" => (FindingKind::TornKept, "what crashes left of unfinished writes is kept here"),
            end if end.starts_with("damaged-") => {
                (FindingKind::DamagedKept, "a damaged journal is kept here")
            }
            _ => continue,
        };
        let path = paths.journals().join(&name);
        let finding = Finding::new(kind, path, format!("{what} ({bytes} bytes)"));
        health.add(Finding { session: SessionId::parse(session), ..finding });
    }
    for name in paths.names(&paths.data)?.into_iter().filter(|name| is_kept_index(name)) {
        let what = "a retired index, which is not used".to_owned();
        let finding = Finding::new(FindingKind::IndexKept, paths.data.join(&name), what);
        health.add(finding.todo("it can be deleted"));
    }
    Ok(())
}

fn index_finding(paths: &StorePaths, state: &IndexState) -> Option<Finding> {
    let rebuilds = "`epitome doctor --repair` rebuilds it; nothing is lost";
    let (what, todo) = match state {
        IndexState::Absent | IndexState::Agrees { .. } | IndexState::Elsewhere { .. } => return None,
        IndexState::Disagrees { sessions } => {
            (format!("the index differs from the journals of {} sessions", sessions.len()), rebuilds)
        }
        IndexState::Damaged { reason } => (format!("the index cannot be read: {reason}"), rebuilds),
        IndexState::Unknown { reason } => (
            format!("the index could not be checked: {reason}"),
            "listings read the journals until it can be used",
        ),
    };
    Some(Finding::new(FindingKind::Index, paths.db(), what).todo(todo))
}

/// Whether a name in the data directory is that of a retired index.
pub(super) fn is_kept_index(name: &str) -> bool {
    name.starts_with("db.corrupt-") || name.starts_with("db.new-") || name.starts_with("db.old-")
}

/// Files that have lacked their final name for a long time, and marks of journals that no longer exist.
pub(super) fn leftovers(paths: &StorePaths) -> Result<Vec<PathBuf>, StoreError> {
    let directory = paths.journals();
    let mut leftovers = Vec::new();
    for name in paths.names(&directory)? {
        let path = directory.join(&name);
        let is_temporary = name.ends_with(".new") || name.starts_with(".epitome-") && name.ends_with(".tmp");
        let is_leftover = match name.strip_suffix(".synced").and_then(SessionId::parse) {
            Some(session) => paths.disk.stat(&paths.journal(&session)).is_err(),
            None => is_temporary,
        };
        let age = |changed_at: u64| now().saturating_sub(changed_at);
        if is_leftover && paths.disk.stat(&path).is_ok_and(|stat| age(stat.changed_at) >= LEFTOVER_MS) {
            leftovers.push(path);
        }
    }
    Ok(leftovers)
}

/// The files of a directory with their lengths.
fn files(paths: &StorePaths, directory: &Path) -> Result<Vec<(String, u64)>, StoreError> {
    let files = paths.names(directory)?.into_iter().filter_map(|name| {
        let stat = paths.disk.stat(&directory.join(&name)).ok()?;
        stat.is_file.then_some((name, stat.bytes))
    });
    Ok(files.collect())
}
