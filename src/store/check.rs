//! Checks all files of the store and reports every deviation. It changes nothing, takes no session locks, and
//! works while other processes write.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use super::health::{Finding, FindingKind, FindingSeverity, Health, IndexState, StoreSizes};
use super::line::{self, Bodies};
use super::scan::{self, Scan};
use super::{Store, StoreError, StorePaths};
use epitome_thread::SessionId;

/// Depth to which directories are entered to count bytes.
const DEPTH_MAX: usize = 4;

impl Store {
    /// Reads the complete store and reports what is wrong. Takes as long as the disk needs to read all of it.
    pub fn check(&self) -> Result<Health, StoreError> {
        let mut health = Health {
            sessions: 0,
            entries: 0,
            findings: Vec::new(),
            more_findings: 0,
            index: self.index.compare(),
            sizes: self.sizes()?,
        };
        let sessions: BTreeSet<SessionId> = self.paths.sessions()?.into_iter().collect();
        for session in &sessions {
            check_session(&self.paths, session, &mut health);
        }
        check_orphans(&self.paths, &sessions, &mut health)?;
        check_kept(&self.paths, &mut health)?;
        if let Some(finding) = index_finding(&self.paths, &health.index) {
            health.add(finding);
        }
        health.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(health)
    }

    /// Disk usage of the store.
    pub fn sizes(&self) -> Result<StoreSizes, StoreError> {
        let mut sizes =
            StoreSizes { blobs: bytes_below(&self.paths.data.join("blobs"), 0), ..StoreSizes::default() };
        for (name, bytes) in files(&self.paths.journals())? {
            match name.rsplit_once('.') {
                Some((_, "jsonl")) => sizes.journals += bytes,
                Some(_) | None => sizes.kept += bytes,
            }
        }
        for name in names(&self.paths.data)? {
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

/// The finding for a damaged journal line or an unreadable journal.
pub(super) fn damage_finding(paths: &StorePaths, session: &SessionId, damage: &StoreError) -> Finding {
    let (kind, severity, line, todo) = match damage {
        StoreError::Damaged { line, .. } => {
            let todo = "`epitome doctor --repair` keeps the damaged file and continues with the part before the damage";
            (FindingKind::DamagedJournal, FindingSeverity::Error, Some(*line), todo)
        }
        StoreError::FutureFormat { .. } => (
            FindingKind::FutureFormat,
            FindingSeverity::Warning,
            None,
            "install the newer version to read it",
        ),
        StoreError::NotFound(_)
        | StoreError::Exists(_)
        | StoreError::InUse(_)
        | StoreError::Unstorable { .. }
        | StoreError::SyncFailed(_)
        | StoreError::Io { .. } => (
            FindingKind::Unreadable,
            FindingSeverity::Error,
            None,
            "check the disk and the file's permissions",
        ),
    };
    let finding = Finding::new(severity, kind, paths.journal(session), damage.to_string());
    Finding { line, ..finding.for_session(session).todo(todo) }
}

fn check_session(paths: &StorePaths, session: &SessionId, health: &mut Health) {
    let read = scan::read_file(paths, session)
        .and_then(|bytes| Scan::read(session, &bytes, Bodies::Inline).map(|scan| (bytes, scan)));
    let (bytes, scan) = match read {
        Ok(read) => read,
        // Deleted meanwhile, or just being created.
        Err(StoreError::NotFound(_)) => return,
        Err(damage) => return health.add(damage_finding(paths, session, &damage)),
    };
    health.sessions += 1;
    health.entries += scan.mark.entries;
    if let Some(damage) = &scan.damage {
        health.add(damage_finding(paths, session, damage));
    } else if (scan.mark.bytes as usize) < bytes.len() {
        let what = format!(
            "the last line of session {session} is incomplete: a crash cut it off, or it is being written"
        );
        let finding =
            Finding::new(FindingSeverity::Note, FindingKind::TornLine, paths.journal(session), what)
                .for_session(session);
        let finding =
            finding.todo("nothing: it is moved to a file of its own when the session is opened next");
        health.add(Finding { line: Some(scan.mark.entries + 1), ..finding });
    }
    let mut named: BTreeMap<String, u64> = BTreeMap::new();
    for (number, line) in (1..).zip(&scan.lines) {
        for hash in line::moved(&bytes[line.bytes.clone()]) {
            named.entry(hash).or_insert(number);
        }
    }
    check_blobs(paths, session, &named, scan.damage.is_none(), health);
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
        let kind = if path.exists() { FindingKind::ChangedBlob } else { FindingKind::MissingBlob };
        let entry = line.saturating_sub(1);
        let what =
            format!("a body of session {session} {reason}; its entry e{entry} contains a note instead");
        let finding = Finding::new(FindingSeverity::Error, kind, path, what).for_session(session);
        let finding = finding.todo("restore the file from a backup, if there is one");
        health.add(Finding { line: Some(*line), ..finding });
    }
    // After a damaged line there may be entries that refer to the remaining blobs.
    for (name, _) in files(blobs.directory()).unwrap_or_default() {
        if is_whole && !named.contains_key(&name) {
            let what = format!(
                "no entry of session {session} refers to this blob: its entry was never written, or was cut off"
            );
            let path = blobs.directory().join(&name);
            health.add(
                Finding::new(FindingSeverity::Note, FindingKind::UnnamedBlob, path, what)
                    .for_session(session),
            );
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
        for name in names(&directory)? {
            let Some(session) = SessionId::parse(&name) else { continue };
            // The session may have been created after the journals were listed.
            let has_journal = sessions.contains(&session) || paths.journal(&session).exists();
            if has_journal || !paths.damaged(&session)?.is_empty() {
                continue;
            }
            let what = format!(
                "session {session} has {has} but no journal: its deletion was interrupted, or the journal was lost"
            );
            let finding = Finding::new(FindingSeverity::Warning, kind, directory.join(&name), what);
            health.add(finding.for_session(&session).todo(todo));
        }
    }
    Ok(())
}

fn check_kept(paths: &StorePaths, health: &mut Health) -> Result<(), StoreError> {
    for (name, bytes) in files(&paths.journals())? {
        let Some((session, end)) = name.split_once('.') else { continue };
        let (kind, what) = match end {
            "torn" => (FindingKind::TornKept, "incomplete last lines left by crashes are kept here"),
            end if end.starts_with("damaged-") => {
                (FindingKind::DamagedKept, "the original of a repaired journal is kept here")
            }
            _ => continue,
        };
        let path = paths.journals().join(&name);
        let finding = Finding::new(FindingSeverity::Note, kind, path, format!("{what} ({bytes} bytes)"));
        health.add(Finding { session: SessionId::parse(session), ..finding });
    }
    for name in names(&paths.data)?.into_iter().filter(|name| is_kept_index(name)) {
        let what = "a retired index, which is not used".to_owned();
        let finding =
            Finding::new(FindingSeverity::Note, FindingKind::IndexKept, paths.data.join(&name), what);
        health.add(finding.todo("it can be deleted"));
    }
    Ok(())
}

fn index_finding(paths: &StorePaths, state: &IndexState) -> Option<Finding> {
    let (severity, what, todo) = match state {
        IndexState::Absent | IndexState::Agrees { .. } | IndexState::Elsewhere { .. } => return None,
        IndexState::Disagrees { sessions } => (
            FindingSeverity::Warning,
            format!("the index differs from the journals of {} sessions", sessions.len()),
            "`epitome doctor --repair` rebuilds it; nothing is lost",
        ),
        IndexState::Damaged { reason } => (
            FindingSeverity::Warning,
            format!("the index cannot be read: {reason}"),
            "`epitome doctor --repair` rebuilds it; nothing is lost",
        ),
        IndexState::Unknown { reason } => (
            FindingSeverity::Warning,
            format!("the index could not be checked: {reason}"),
            "listings read the journals until it can be used",
        ),
    };
    Some(Finding::new(severity, FindingKind::Index, paths.db(), what).todo(todo))
}

/// Whether a name in the data directory is that of a retired index.
pub(super) fn is_kept_index(name: &str) -> bool {
    name.starts_with("db.corrupt-") || name.starts_with("db.new-") || name.starts_with("db.old-")
}

/// The names in a directory, sorted; empty if it does not exist.
pub(super) fn names(directory: &Path) -> Result<Vec<String>, StoreError> {
    let io = |source| StoreError::Io { doing: "list", path: directory.to_path_buf(), source };
    let listing = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listing => listing.map_err(io)?,
    };
    let mut names = Vec::new();
    for file in listing {
        // All our file names are UTF-8.
        names.extend(file.map_err(io)?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// The files of a directory with their lengths.
fn files(directory: &Path) -> Result<Vec<(String, u64)>, StoreError> {
    let files = names(directory)?.into_iter().filter_map(|name| {
        let metadata = std::fs::symlink_metadata(directory.join(&name)).ok()?;
        metadata.is_file().then_some((name, metadata.len()))
    });
    Ok(files.collect())
}

/// Total size of all files below a directory; unreadable ones count as 0.
pub(super) fn bytes_below(directory: &Path, depth: usize) -> u64 {
    let Ok(listing) = std::fs::read_dir(directory) else { return 0 };
    let bytes = listing.flatten().map(|file| match file.metadata() {
        Ok(metadata) if metadata.is_dir() && depth < DEPTH_MAX => bytes_below(&file.path(), depth + 1),
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(_) | Err(_) => 0,
    });
    bytes.sum()
}
