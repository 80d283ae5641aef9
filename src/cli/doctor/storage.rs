//! The store section of `epitome doctor`.

use super::{DoctorLine, Status};
use crate::store::{Backup, FindingSeverity, Health, IndexState, Rebuilt, Repair};

const AREA: &str = "store";

pub(super) fn lines(health: &Health) -> Vec<DoctorLine> {
    let sizes = &health.sizes;
    let mut lines = vec![DoctorLine::ok(
        AREA,
        format!(
            "{} sessions with {} entries take {}: journals {}, bodies {}, index {}, set aside {}",
            health.sessions,
            health.entries,
            size(sizes.total()),
            size(sizes.journals),
            size(sizes.blobs),
            size(sizes.index),
            size(sizes.kept + sizes.index_kept)
        ),
    )];
    lines.push(match &health.index {
        IndexState::Absent => DoctorLine::ok(AREA, "there is no index yet; listings read the journals"),
        IndexState::Agrees { sessions, behind: 0 } => {
            DoctorLine::ok(AREA, format!("the index agrees with the journals of {sessions} sessions"))
        }
        IndexState::Agrees { sessions, behind } => DoctorLine::ok(
            AREA,
            format!(
                "the index agrees with the journals of {sessions} sessions, {behind} are not indexed yet"
            ),
        ),
        IndexState::Elsewhere { holder } => DoctorLine::ok(
            AREA,
            format!(
                "the index is open in {} and was not checked",
                holder.as_deref().unwrap_or("another process")
            ),
        ),
        // A separate finding reports it.
        IndexState::Disagrees { .. } | IndexState::Damaged { .. } | IndexState::Unknown { .. } => {
            DoctorLine::ok(AREA, "sessions do not need the index")
        }
    });
    if sizes.is_index_bloated() {
        let what = format!("the index takes {} for {} of journals", size(sizes.index), size(sizes.journals));
        lines.push(DoctorLine::warning(AREA, what, "`epitome doctor --compact` rewrites it"));
    }
    for finding in &health.findings {
        let status = match finding.severity {
            FindingSeverity::Note => Status::Ok,
            FindingSeverity::Warning => Status::Warning,
            FindingSeverity::Error => Status::Error,
        };
        let line = finding.line.map_or_else(String::new, |line| format!(":{line}"));
        let what = format!("{}{line}: {}", finding.path.display(), finding.what);
        lines.push(DoctorLine { area: AREA, status, what, todo: finding.todo.clone() });
    }
    if health.more_findings > 0 {
        let what = format!("there are {} more findings", health.more_findings);
        lines.push(DoctorLine::warning(AREA, what, "look at the disk"));
    }
    lines
}

pub(super) fn backed_up(backup: &Backup) -> Vec<DoctorLine> {
    let what = format!(
        "{} sessions ({}) were copied to {}",
        backup.sessions,
        size(backup.bytes),
        backup.into.display()
    );
    let mut lines = vec![DoctorLine::ok("backup", what)];
    lines.extend(backup.findings.iter().map(|finding| {
        DoctorLine::warning(
            "backup",
            format!("copied unchanged: {}", finding.what),
            "the store has the same problem",
        )
    }));
    lines
}

pub(super) fn repaired(repair: &Repair) -> Vec<DoctorLine> {
    let done = repair.done.iter().map(|done| DoctorLine::ok("repair", done.what.clone()));
    let refused = repair.refused.iter().map(|refused| {
        DoctorLine::error("repair", refused.what.clone(), "run `epitome doctor --repair` again then")
    });
    let mut lines: Vec<DoctorLine> = done.chain(refused).collect();
    if lines.is_empty() {
        lines.push(DoctorLine::ok("repair", "there was nothing to repair"));
    }
    lines
}

pub(super) fn compacted(rebuilt: &Rebuilt) -> DoctorLine {
    let (before, after) = (size(rebuilt.bytes_before), size(rebuilt.bytes_after));
    DoctorLine::ok(
        "compact",
        format!("the index of {} sessions took {before} and takes {after}", rebuilt.sessions),
    )
}

pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1_000),
        10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}
