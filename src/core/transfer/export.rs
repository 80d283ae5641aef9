//! Epitome's export format: a log as JSON lines, each entry as it is stored, with its blobs inlined.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value;

use super::{ImportDraft, ImportFile, ImportSource};
use epitome_secrets::Masker;
use epitome_thread::boundary::boundary_of;
use epitome_thread::problem::Problem;
use epitome_thread::{Change, Entry, FORMAT_VERSION, Mode, ReplayError, Rule, SessionId, Thread};

/// Writes a log as text for sharing: anything that looks like a key is masked, even in the user's messages. Otherwise
/// the text imports to the same log.
pub fn json_lines(session: &SessionId, entries: &[Arc<Entry>]) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    let masker = Masker::default();
    for entry in entries {
        let mut written = entry_json(session, entry)?;
        masker.mask_json(&mut written);
        let _ = writeln!(text, "{written}");
    }
    Ok(text)
}

/// Returns an entry as it is stored. A compaction also gets a boundary record, for programs that know only that form.
pub fn entry_json(session: &SessionId, entry: &Entry) -> Result<Value, serde_json::Error> {
    let mut written = serde_json::to_value(entry)?;
    if let Some(boundary) = boundary_of(&session.0, entry) {
        written["boundary"] = boundary;
    }
    Ok(written)
}

/// Number of JSON values that are examined to recognize an export.
const PROBED_VALUES: usize = 50;

/// Whether a text is a log in this format.
pub fn is_export(text: &str) -> bool {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    values.map_while(Result::ok).take(PROBED_VALUES).any(|value| value["change"] == "opened")
}

/// Reads a log in this format.
pub fn read(file: ImportFile, text: &str) -> Result<ImportDraft, Problem> {
    let mut entries: Vec<Arc<Entry>> = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        if entries.is_empty() {
            check_format(file, number, line)?;
        }
        let entry = Entry::parse(line.as_bytes()).map_err(|error| file.json_problem(number, &error))?;
        let expected = entries.len() as u64;
        if entry.seq.0 != expected {
            let message = format!("found entry {} instead of e{expected}: a line is missing", entry.seq);
            return Err(file.problem(number, message));
        }
        match &entry.change {
            Change::Opened { .. } if !entries.is_empty() => {
                return Err(file.problem(number, "a second conversation begins here"));
            }
            _ => {}
        }
        entries.push(Arc::new(entry));
    }
    draft_from_log(&entries).map_err(|error| file.problem(1, format!("this is not a conversation: {error}")))
}

/// Creates a draft from another log of Epitome, such as a journal in a backup.
pub fn draft_from_log(entries: &[Arc<Entry>]) -> Result<ImportDraft, ReplayError> {
    let thread = Thread::replay(entries.iter().cloned())?;
    Ok(ImportDraft {
        source: ImportSource::Export,
        session: Some(thread.session().clone()),
        entries: entries.iter().map(|entry| (**entry).clone()).collect(),
        foreign_id: None,
        notes: Vec::new(),
    })
}

/// Rejects exports of newer versions with a specific error, whatever else they contain.
fn check_format(file: ImportFile, number: usize, line: &str) -> Result<(), Problem> {
    let first: Value = serde_json::from_str(line).map_err(|error| file.json_problem(number, &error))?;
    match first.get("format").and_then(Value::as_u64) {
        Some(format) if format > u64::from(FORMAT_VERSION) => {
            let message = format!("this was written by a newer Epitome (format {format})");
            let hint = Some("install the newer version to read it".to_owned());
            Err(Problem { hint, ..file.problem(number, message) })
        }
        Some(_) | None => Ok(()),
    }
}

impl ImportDraft {
    /// Withdraws what the conversation may do without asking, because its author granted it and not the user who
    /// imports it. `keeps` if the user imports a backup. Adds notes about it.
    pub fn settle_permissions(&mut self, keeps: bool) -> Result<(), ReplayError> {
        let thread = Thread::replay(self.entries.iter().cloned().map(Arc::new))?;
        match thread.mode() {
            Mode::Ask | Mode::ReadOnly => {}
            mode @ (Mode::AcceptEdits | Mode::Auto | Mode::Full) => {
                let verb = if keeps { "is" } else { "was" };
                let after = if keeps {
                    ""
                } else {
                    ", and is now in the mode \"Ask\": choose another if you trust it"
                };
                self.notes.push(format!(
                    "it {verb} in the mode {:?} ({}){after}",
                    mode.name(),
                    mode.description()
                ));
            }
        }
        if !thread.rules().is_empty() {
            let rules: Vec<String> = thread.rules().iter().map(Rule::words).collect();
            let after = if keeps { "still apply" } else { "were withdrawn" };
            self.notes
                .push(format!("these permissions were granted in it and {after}: {}", rules.join("; ")));
        }
        // In place: a fork at an earlier entry must not bring them back.
        for entry in self.entries.iter_mut().filter(|_| !keeps) {
            match &mut entry.change {
                Change::ModeChosen { mode } if !matches!(mode, Mode::Ask | Mode::ReadOnly) => {
                    *mode = Mode::Ask
                }
                Change::Allowed { rule } => {
                    let rule = rule.clone();
                    entry.change = Change::Forgotten { rule };
                }
                _ => {}
            }
        }
        Ok(())
    }
}
