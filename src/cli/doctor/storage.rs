//! The store section of `epitome doctor`.

use super::{Line, Status};
use crate::store::{Backup, Health, IndexState, Rebuilt, Repair, Severity};

const AREA: &str = "store";

pub(super) fn lines(health: &Health) -> Vec<Line> {
    let sizes = &health.sizes;
    let mut lines = vec![Line::ok(
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
        IndexState::Absent => Line::ok(AREA, "there is no index yet; listings read the journals"),
        IndexState::Agrees { sessions, behind: 0 } => {
            Line::ok(AREA, format!("the index agrees with the journals of {sessions} sessions"))
        }
        IndexState::Agrees { sessions, behind } => Line::ok(
            AREA,
            format!(
                "the index agrees with the journals of {sessions} sessions, {behind} are not indexed yet"
            ),
        ),
        IndexState::Elsewhere { holder } => Line::ok(
            AREA,
            format!(
                "the index is open in {} and was not looked at",
                holder.as_deref().unwrap_or("another process")
            ),
        ),
        // A finding reports it.
        IndexState::Disagrees { .. } | IndexState::Damaged { .. } | IndexState::Unknown { .. } => {
            Line::ok(AREA, "sessions do not need the index")
        }
    });
    if sizes.is_index_bloated() {
        let what = format!("the index takes {} for {} of journals", size(sizes.index), size(sizes.journals));
        lines.push(Line::warning(AREA, what, "`epitome doctor --compact` writes it anew"));
    }
    for finding in &health.findings {
        let status = match finding.severity {
            Severity::Note => Status::Ok,
            Severity::Warning => Status::Warning,
            Severity::Error => Status::Error,
        };
        let line = finding.line.map_or_else(String::new, |line| format!(":{line}"));
        let what = format!("{}{line}: {}", finding.path.display(), finding.what);
        lines.push(Line { area: AREA, status, what, todo: finding.todo.clone() });
    }
    if health.more_findings > 0 {
        let what = format!("there are {} findings more", health.more_findings);
        lines.push(Line::warning(AREA, what, "look at the disk"));
    }
    lines
}

pub(super) fn backed_up(backup: &Backup) -> Vec<Line> {
    let what = format!(
        "{} sessions ({}) were copied to {}",
        backup.sessions,
        size(backup.bytes),
        backup.into.display()
    );
    let mut lines = vec![Line::ok("backup", what)];
    lines.extend(backup.findings.iter().map(|finding| {
        Line::warning(
            "backup",
            format!("copied unchanged: {}", finding.what),
            "the store has the same problem",
        )
    }));
    lines
}

pub(super) fn repaired(repair: &Repair) -> Vec<Line> {
    let done = repair.done.iter().map(|done| Line::ok("repair", done.what.clone()));
    let refused = repair.refused.iter().map(|refused| {
        Line::error("repair", refused.what.clone(), "run `epitome doctor --repair` again then")
    });
    let mut lines: Vec<Line> = done.chain(refused).collect();
    if lines.is_empty() {
        lines.push(Line::ok("repair", "there was nothing to repair"));
    }
    lines
}

pub(super) fn compacted(rebuilt: &Rebuilt) -> Line {
    let (before, after) = (size(rebuilt.bytes_before), size(rebuilt.bytes_after));
    Line::ok("compact", format!("the index of {} sessions took {before} and takes {after}", rebuilt.sessions))
}

/// A size in human-readable units.
fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1_000),
        10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}
