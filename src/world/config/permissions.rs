//! Permission settings: the `[permissions]` and `[secrets]` tables. Rules of all files are combined; a repository's
//! file may add only `ask` and `deny` rules.

use std::ops::Range;
use std::path::PathBuf;

use serde_json::json;
use toml::de::DeValue;

use super::Settings;
use super::file::{ConfigReader, TomlValue, fields};
use super::kind::truth;
use super::values::wrong_type;
use crate::rules::{self, PermissionDecision, RuleError, RulePattern, WrittenRule};
use epitome_thread::problem::{Problem, nearest};

/// Maximum number of rules per list (allow, ask, deny) of a file; every rule is checked for every tool call.
const RULES_MAX: usize = 500;

impl Settings {
    /// Adds an allow rule from the source `by`, for example a command-line option.
    pub fn allow(&mut self, rule: &str, by: &str) -> Result<(), RuleError> {
        self.add_rule(PermissionDecision::Allow, rule, by)
    }

    /// The same for a deny rule.
    pub fn deny(&mut self, rule: &str, by: &str) -> Result<(), RuleError> {
        self.add_rule(PermissionDecision::Deny, rule, by)
    }

    fn add_rule(&mut self, word: PermissionDecision, rule: &str, by: &str) -> Result<(), RuleError> {
        let pattern = rules::parse(rule)?;
        pattern.check_tool()?;
        let (path, line) = (PathBuf::from(by), 1);
        self.permissions.push(WrittenRule { word, pattern, path, line, mistake: None });
        Ok(())
    }
}

impl ConfigReader<'_> {
    pub(super) fn permissions(&mut self, value: &TomlValue<'_>, rules: &mut Vec<WrittenRule>) {
        let before = self.problem_count();
        let Some(table) = self.table(value, "permissions") else {
            return self.ask_until_corrected(before, [rules::covered("")]);
        };
        fields!(self, table, key, value, {
            // A repository may only make the agent more restrictive.
            "allow" => if !self.refused(key.span(), "permissions.allow") {
                self.rules(value, PermissionDecision::Allow, rules);
            },
            "ask" => self.rules(value, PermissionDecision::Ask, rules),
            "deny" => self.rules(value, PermissionDecision::Deny, rules),
        });
    }

    fn rules(&mut self, value: &TomlValue<'_>, word: PermissionDecision, rules: &mut Vec<WrittenRule>) {
        let schema = json!({ "type": "array", "items": { "type": "string" }, "maxItems": RULES_MAX });
        let current = || {
            let rules = rules.iter().filter(|rule| rule.word == word);
            rules.map(|rule| rule.pattern.to_string()).collect::<Vec<_>>()
        };
        if self.collects(&schema, Some(json!(current()))) {
            return;
        }
        let DeValue::Array(list) = value.get_ref() else {
            let wrong = wrong_type("a list of rules", value.get_ref());
            let hint = format!("for example {} = [\"bash(cargo test *)\"]", word.id());
            let error = RuleError { message: wrong.message, hint: Some(hint) };
            return self.invalid_rule(value.span(), word, "", error);
        };
        if let Some(first) = list.get(RULES_MAX) {
            let message = format!("there are {} rules, and only the first {RULES_MAX} apply", list.len());
            let error = RuleError { message, hint: Some("use patterns with *".to_owned()) };
            self.invalid_rule(first.span(), word, "", error);
        }
        for item in list.iter().take(RULES_MAX) {
            let Some(text) = item.get_ref().as_str() else {
                let message = wrong_type("a rule, as text", item.get_ref()).message;
                self.invalid_rule(item.span(), word, "", RuleError { message, hint: None });
                continue;
            };
            let pattern = match rules::parse(text) {
                Ok(pattern) => pattern,
                Err(error) => {
                    self.invalid_rule(item.span(), word, text, error);
                    continue;
                }
            };
            if let Err(RuleError { message, hint }) = pattern.check_tool() {
                self.problem(item.span(), message, hint);
            }
            let (path, line) = self.position(item.span());
            self.note_value(item.span(), json!(pattern.to_string()));
            rules.push(WrittenRule { word, pattern, path, line, mistake: None });
        }
    }

    /// Reports a rule that can't be used. A mistake in a restriction must not lift it, so what it may be about is asked for.
    fn invalid_rule(&mut self, span: Range<usize>, word: PermissionDecision, text: &str, error: RuleError) {
        let before = self.problem_count();
        self.problem(span, error.message, error.hint);
        if word != PermissionDecision::Allow {
            self.ask_until_corrected(before, [rules::covered(text)]);
        }
    }

    pub(super) fn secrets(&mut self, value: &TomlValue<'_>, mask: &mut bool) {
        let Some(table) = self.table(value, "secrets") else { return };
        fields!(self, table, key, value, {
            "mask" => self.set(value, mask, truth()),
        });
    }
}

/// The calls that an unknown key may restrict, as far as its value says. `table`: the tables that contain it; `near`: the
/// key that it resembles.
pub(super) fn restricted_by(
    table: &[String],
    near: Option<&str>,
    name: &str,
    value: &DeValue<'_>,
) -> Vec<RulePattern> {
    match (table, near) {
        ([], Some("permissions")) => match value.as_table() {
            Some(table) => {
                table.iter().flat_map(|(key, value)| listed(key.get_ref(), value.get_ref())).collect()
            }
            None => vec![rules::covered("")],
        },
        ([only], _) if only == "permissions" => listed(name, value),
        // The line with the name of the table may be missing.
        (_, _) if matches!(name, "ask" | "deny") && value.is_array() => listed(name, value),
        (_, _) => Vec::new(),
    }
}

/// The calls that a list of rules is about, or all if it is none. None if the list resembles `allow`.
fn listed(name: &str, value: &DeValue<'_>) -> Vec<RulePattern> {
    if nearest(name, PermissionDecision::ALL.map(PermissionDecision::id))
        == Some(PermissionDecision::Allow.id())
    {
        return Vec::new();
    }
    let Some(list) = value.as_array().filter(|list| list.len() <= RULES_MAX) else {
        return vec![rules::covered("")];
    };
    let texts = list.iter().map(|item| item.get_ref().as_str().unwrap_or_default());
    texts.map(|text| rules::parse(text).unwrap_or_else(|_| rules::covered(text))).collect()
}

/// A rule that asks for calls, because a mistake may hide a restriction of them.
pub(super) fn asks_because(problem: &Problem, pattern: RulePattern) -> WrittenRule {
    WrittenRule {
        word: PermissionDecision::Ask,
        pattern,
        path: problem.path.clone(),
        line: problem.position.map_or(1, |(line, _)| line),
        mistake: Some(problem.to_string()),
    }
}
