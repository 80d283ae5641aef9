//! `epitome doctor`: diagnoses problems, suggests fixes, and applies some of them on request. Never shows an API key
//! or the content of a session.

mod editors;
mod program;
mod servers;
mod storage;

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use super::terminal::{self, Color, Style};
use super::{CliError, log, serve};
use crate::problem::Problem;
use crate::store::{Backup, Health, Rebuilt, Repair, Store};
use crate::thread::visible::visible;

/// Check the installation and suggest fixes
///
/// Checks the stored sessions, the free space, the daemon, settings, recipes, hooks, MCP servers, API keys and editor
/// configurations. The exit code is 1 if there is an error.
#[derive(Debug, Default, clap::Args)]
pub struct DoctorArgs {
    /// Accept the losses of damaged sessions, rebuild a wrong index, and delete leftovers
    #[arg(long)]
    repair: bool,
    /// Rewrite the index to free unused disk space
    #[arg(long)]
    compact: bool,
    /// First copy all sessions to DIR, which must be empty or missing; open sessions are fine
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    backup: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Maximum number of lines per area and status that are printed; the rest are counted.
const LINES_MAX: usize = 20;

pub fn main(args: DoctorArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    log::to_file(&paths);
    let report = serve::with_store(&paths, |store| examine(store, &args))?;
    if args.json {
        terminal::print_json(&report)?;
    } else {
        terminal::print(&report.text(Style::for_stdout()))?;
    }
    Ok(i32::from(report.lines.iter().any(|line| line.status == Status::Error)))
}

/// Returns the findings as text, for a bug report. Changes nothing.
pub(super) fn findings(store: &Store) -> Result<String, CliError> {
    Ok(examine(store, &DoctorArgs::default())?.text(Style::Plain))
}

/// The status of one finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Ok,
    Warning,
    Error,
}

/// One line of the report.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct DoctorLine {
    area: &'static str,
    status: Status,
    what: String,
    /// The suggested fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    todo: Option<String>,
}

impl DoctorLine {
    fn ok(area: &'static str, what: impl Into<String>) -> DoctorLine {
        DoctorLine { area, status: Status::Ok, what: what.into(), todo: None }
    }

    fn warning(area: &'static str, what: impl Into<String>, todo: impl Into<String>) -> DoctorLine {
        DoctorLine { area, status: Status::Warning, what: what.into(), todo: Some(todo.into()) }
    }

    fn error(area: &'static str, what: impl Into<String>, todo: impl Into<String>) -> DoctorLine {
        DoctorLine { area, status: Status::Error, what: what.into(), todo: Some(todo.into()) }
    }

    fn problem(area: &'static str, problem: &Problem) -> DoctorLine {
        let todo = Some("fix the file; its valid parts are used".to_owned());
        DoctorLine { area, status: Status::Warning, what: problem.to_string(), todo }
    }
}

/// All findings and actions.
#[derive(Debug, Default, Serialize)]
struct DoctorReport {
    version: &'static str,
    lines: Vec<DoctorLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backup: Option<Backup>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<Repair>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compacted: Option<Rebuilt>,
    /// The state of the store after the actions.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<Health>,
}

/// Makes the backup before changing anything, and checks everything afterwards.
fn examine(store: &Store, args: &DoctorArgs) -> Result<DoctorReport, CliError> {
    let mut report = DoctorReport { version: env!("CARGO_PKG_VERSION"), ..DoctorReport::default() };
    if let Some(directory) = &args.backup {
        let backup = store.backup(directory)?;
        report.lines.extend(storage::backed_up(&backup));
        report.backup = Some(backup);
    }
    if args.repair {
        let repair = store.repair()?;
        report.lines.extend(storage::repaired(&repair));
        report.repair = Some(repair);
    }
    if args.compact {
        match store.compact_index() {
            Ok(rebuilt) => {
                report.lines.push(storage::compacted(&rebuilt));
                report.compacted = Some(rebuilt);
            }
            Err(why) => {
                let what = format!("the index was not rewritten: {why}");
                report.lines.push(DoctorLine::error("store", what, "nothing was changed; try again later"));
            }
        }
    }
    let paths = serve::paths();
    let get = |name: &str| std::env::var_os(name);
    report.lines.extend(program::lines(&paths));
    let checked = match store.place() {
        None => store
            .check_with(&mut |done, all| {
                terminal::progress(&format!("Checking session {} of {all} …", done + 1))
            })
            .map(Some),
        Some(_) => store.list().map(|_| None),
    };
    match checked {
        Ok(None) => {
            let place = store.place().unwrap_or_default();
            report.lines.push(DoctorLine::ok("store", format!("sessions are in {place}, which answers")));
        }
        Ok(Some(health)) => {
            report.lines.extend(storage::lines(&health));
            report.store = Some(health);
        }
        Err(error) => report.lines.push(DoctorLine::error(
            "store",
            error.to_string(),
            "check the disk and its permissions, or the database",
        )),
    }
    terminal::progress("Starting the MCP servers …");
    let files = program::files(&paths, get);
    terminal::progress("");
    report.lines.extend(files?);
    report.lines.extend(editors::lines(&editors::places(paths.user_home.as_deref(), get)));
    Ok(report)
}

impl DoctorReport {
    fn text(&self, style: Style) -> String {
        let mut out = String::new();
        let mut counts: std::collections::HashMap<(&str, &str), usize> = std::collections::HashMap::new();
        for line in &self.lines {
            let (word, color) = match line.status {
                Status::Ok => ("ok     ", Color::Green),
                Status::Warning => ("warning", Color::Yellow),
                Status::Error => ("error  ", Color::Red),
            };
            // Further findings of the same kind are only counted.
            let count = counts.entry((line.area, word)).or_default();
            *count += 1;
            if *count > LINES_MAX {
                continue;
            }
            let _ = writeln!(out, "{} {:<8} {}", style.paint(color, word), line.area, visible(&line.what));
            if let Some(todo) = &line.todo {
                let _ = writeln!(out, "                 → {}", visible(todo));
            }
        }
        for ((area, word), count) in counts.into_iter().filter(|(_, count)| *count > LINES_MAX) {
            let _ = writeln!(out, "{word} {area:<8} and {} more; --json has all", count - LINES_MAX);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_findings_are_shortened() {
        let lines =
            (0..50).map(|n| DoctorLine::warning("store", format!("thing {n}"), "look at it")).collect();
        let report =
            DoctorReport { version: "1", lines, backup: None, repair: None, compacted: None, store: None };
        let text = report.text(Style::Plain);
        assert_eq!(text.lines().count(), 2 * LINES_MAX + 1);
        assert!(text.ends_with("store    and 30 more; --json has all\n"), "{text}");
    }
}
