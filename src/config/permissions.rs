//! Permission settings: the `[permissions]` and `[secrets]` tables. Rules of all files add up; a repository's
//! file may only add `ask` and `deny` rules.

use toml::de::DeValue;

use super::file::{ConfigReader, TomlValue, fields};
use super::values::{truth, wrong_type};
use epitome_rules::{self as rules, RuleEffect, WrittenRule};

/// Maximum rules per list (allow, ask, deny) of a file; every rule is checked for every tool call.
const RULES_MAX: usize = 500;

impl ConfigReader<'_> {
    pub(super) fn permissions(&mut self, value: &TomlValue<'_>, rules: &mut Vec<WrittenRule>) {
        let Some(table) = self.table(value, "permissions") else { return };
        for (key, value) in table {
            let name = &**key.get_ref();
            let Some(word) = RuleEffect::ALL.into_iter().find(|word| word.id() == name) else {
                self.unknown(key.span(), name, &RuleEffect::ALL.map(RuleEffect::id));
                continue;
            };
            // A repository may only make the agent more restrictive.
            if word == RuleEffect::Allow && self.refused(key.span(), "permissions.allow") {
                continue;
            }
            let DeValue::Array(list) = value.get_ref() else {
                let wrong = wrong_type("a list of rules", value.get_ref());
                let hint = format!("for example {name} = [\"bash(cargo test *)\"]");
                self.problem(value.span(), wrong.message, Some(hint));
                continue;
            };
            if list.len() > RULES_MAX {
                let message = format!("there are {} rules, and only the first {RULES_MAX} apply", list.len());
                self.problem(value.span(), message, Some("use patterns with *".to_owned()));
            }
            for item in list.iter().take(RULES_MAX) {
                let Some(text) = item.get_ref().as_str() else {
                    self.problem(item.span(), wrong_type("a rule, as text", item.get_ref()).message, None);
                    continue;
                };
                match rules::parse(text) {
                    Ok(pattern) => {
                        let (path, line) = self.place(item.span());
                        rules.push(WrittenRule { word, pattern, path, line });
                    }
                    Err(rules::RuleError { message, hint }) => self.problem(item.span(), message, hint),
                }
            }
        }
    }

    pub(super) fn secrets(&mut self, value: &TomlValue<'_>, mask: &mut bool) {
        let Some(table) = self.table(value, "secrets") else { return };
        fields!(self, table, key, value, {
            "mask" => self.set(value, mask, truth),
        });
    }
}
