//! Diagnostics that a server reports for a file, and which of them are new. Pure.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

const MESSAGE_CHARS_MAX: usize = 240;
const CODE_CHARS_MAX: usize = 60;

/// An error or a warning at a position of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Counted from 1.
    pub line: u32,
    /// Counted from 1, in UTF-16 units, as in the protocol.
    pub column: u32,
    pub is_error: bool,
    pub code: String,
    pub message: String,
}

impl Diagnostic {
    /// Parses a diagnostic of the protocol.
    pub fn read(diagnostic: &Value) -> Diagnostic {
        let start = &diagnostic["range"]["start"];
        let at = |name: &str| {
            start[name].as_u64().and_then(|at| u32::try_from(at).ok()).unwrap_or(0).saturating_add(1)
        };
        let code = match &diagnostic["code"] {
            Value::String(code) => one_line(code, CODE_CHARS_MAX),
            Value::Number(code) => code.to_string(),
            _ => String::new(),
        };
        let message = one_line(diagnostic["message"].as_str().unwrap_or_default(), MESSAGE_CHARS_MAX);
        // If the severity is missing, the client chooses one.
        let is_error = diagnostic["severity"].as_u64().unwrap_or(1) == 1;
        Diagnostic { line: at("line"), column: at("character"), is_error, code, message }
    }

    /// Formats the diagnostic as one line, in the style of compilers.
    pub fn shown(&self, path: &Path) -> String {
        let Diagnostic { line, column, is_error, code, message } = self;
        let kind = if *is_error { "error" } else { "warning" };
        let code = if code.is_empty() { String::new() } else { format!(" [{code}]") };
        format!("{}:{line}:{column}: {kind}{code}: {message}", path.display())
    }

    /// Identifies the diagnostic even after lines were moved: code, message and line of code.
    fn identity<'a>(&'a self, text: &'a str) -> (&'a str, &'a str, &'a str) {
        let line = text.lines().nth(self.line as usize - 1).unwrap_or_default();
        (&self.code, &self.message, line.trim())
    }
}

fn one_line(text: &str, chars_max: usize) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(chars_max).collect()
}

/// Returns the errors of a text that its earlier version did not have.
pub fn new_errors(
    before: &[Diagnostic],
    text_before: &str,
    now: &[Diagnostic],
    text: &str,
) -> Vec<Diagnostic> {
    let mut known: HashMap<(&str, &str, &str), usize> = HashMap::new();
    for finding in before.iter().filter(|finding| finding.is_error) {
        *known.entry(finding.identity(text_before)).or_default() += 1;
    }
    let mut new = Vec::new();
    for finding in now.iter().filter(|finding| finding.is_error) {
        match known.get_mut(&finding.identity(text)) {
            Some(count) if *count > 0 => *count -= 1,
            Some(_) | None => new.push(finding.clone()),
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn finding(line: u32, message: &str, severity: u64) -> Diagnostic {
        Diagnostic::read(&json!({
            "range": {"start": {"line": line - 1, "character": 4}, "end": {"line": line - 1, "character": 5}},
            "severity": severity, "code": "E1", "message": message,
        }))
    }

    #[test]
    fn errors_that_only_moved_are_not_new() {
        let (before, after) = ("bad()\nfine()\n", "import os\nbad()\nworse()\n");
        let old = [finding(1, "bad", 1), finding(2, "slow", 2)];
        let now = [finding(2, "bad", 1), finding(3, "worse", 1), finding(3, "slow", 2)];
        assert_eq!(new_errors(&old, before, &now, after), [finding(3, "worse", 1)]);
        // A second occurrence of the same error is new.
        let twice = [finding(1, "bad", 1), finding(2, "bad", 1)];
        assert_eq!(new_errors(&old, before, &twice, "bad()\nbad()\n"), [finding(2, "bad", 1)]);
    }

    #[test]
    fn a_finding_is_one_line() {
        let shown = finding(3, "mismatched\n   types", 1).shown(Path::new("src/a.rs"));
        assert_eq!(shown, "src/a.rs:3:5: error [E1]: mismatched types");
    }

    /// Regression: a plugin of the repository chose codes, which were shown to the model without a limit and with their line
    /// breaks.
    #[test]
    fn a_code_is_part_of_the_line_too() {
        let code = format!("E\n{}", "1".repeat(1_000_000));
        let read = Diagnostic::read(&json!({ "code": code, "message": "bad" }));
        let shown = read.shown(Path::new("a.py"));
        assert!(shown.starts_with("a.py:1:1: error [E 1") && shown.ends_with("1]: bad"), "{shown}");
        assert!(shown.len() < 200, "{}", shown.len());
    }
}
