//! Reads front matter line by line, for files of other agents. Pure.
//!
//! A quarter of the commands published for Claude Code are not valid YAML (`argument-hint: [a] [b]`,
//! `description: Use this when: …`), and Claude Code loads them anyway. So nothing here fails: a line that is not
//! `name: value` belongs to the field above it.

use serde_json::Value;

use super::fields::{RecipeField, RecipeFields};

/// A field of the front matter, with its position in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LenientField<'a> {
    pub name: &'a str,
    /// The value on the field's own line, without white space around it.
    first: &'a str,
    /// The lines below that belong to it, trimmed.
    more: Vec<&'a str>,
    /// Line and column of the value, both 1-based.
    pub position: (u64, u64),
}

/// Reads `name: value` lines. `lines_before` is the number of lines in the file before the text. A field starts only
/// at a name for which `is_field` returns `true`.
pub(super) fn read<'a>(
    front: &'a str,
    lines_before: u64,
    is_field: impl Fn(&str) -> bool,
) -> Vec<LenientField<'a>> {
    let mut fields: Vec<LenientField<'a>> = Vec::new();
    for (line, number) in front.lines().zip(lines_before + 1..) {
        match field(line).filter(|(name, _)| is_field(name)) {
            Some((name, value)) => {
                let first = value.trim();
                let before = line.len() - value.trim_start().len();
                let column = line[..before].chars().count() as u64 + 1;
                fields.push(LenientField { name, first, more: Vec::new(), position: (number, column) });
            }
            None => fields.last_mut().into_iter().for_each(|field| field.more.push(line.trim())),
        }
    }
    fields
}

/// Splits a line into a one-word name and the text after the colon.
fn field(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(':')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let separated = value.is_empty() || value.starts_with([' ', '\t', '\r']);
    (separated && !name.is_empty() && name.chars().all(is_name)).then_some((name, value))
}

impl LenientField<'_> {
    /// The value as one line of text, without quotes around it.
    pub fn text(&self) -> String {
        let is_block = matches!(self.first, ">" | ">-" | ">+" | "|" | "|-" | "|+");
        let first = if is_block { "" } else { self.first };
        let lines = [first].into_iter().chain(self.more.iter().copied()).filter(|line| !line.is_empty());
        unquoted(&lines.collect::<Vec<_>>().join(" "))
    }

    /// The value as a list: the items below it, or the words of its line.
    pub fn items(&self) -> Vec<String> {
        let below: Vec<&str> = self.more.iter().filter_map(|line| line.strip_prefix("- ")).collect();
        if !below.is_empty() {
            return below.into_iter().map(|item| unquoted(item.trim())).collect();
        }
        let text = self.text();
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
        let words = inner.split(|c: char| c == ',' || c.is_whitespace());
        words.filter(|word| !word.is_empty()).map(unquoted).collect()
    }

    /// The value as a list of globs: commas within braces separate alternatives, not globs.
    pub fn globs(&self) -> Vec<String> {
        self.split_outside(['{', '}'])
    }

    /// The value as a list of tools: commas within parentheses belong to the rule of a tool.
    pub fn tools(&self) -> Vec<String> {
        self.split_outside(['(', ')'])
    }

    /// The items below the field, or the parts between commas that are not within a pair of marks.
    fn split_outside(&self, [open, close]: [char; 2]) -> Vec<String> {
        if self.is_list() && self.first.is_empty() {
            return self.items();
        }
        let text = self.text();
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
        let mut depth = 0_i32;
        let parts = inner.split(|c: char| {
            depth += i32::from(c == open) - i32::from(c == close);
            c == ',' && depth == 0
        });
        parts.map(|part| unquoted(part.trim())).filter(|part| !part.is_empty()).collect()
    }

    /// Whether the value is a list of items, in brackets or below the field.
    fn is_list(&self) -> bool {
        let is_below = self.first.is_empty() && self.more.first().is_some_and(|line| line.starts_with("- "));
        is_below || (self.first.starts_with('[') && self.first.ends_with(']'))
    }
}

/// The fields as valid YAML would have them: lists, numbers and text.
pub(super) fn as_fields(front: &str, lines_before: u64, is_field: impl Fn(&str) -> bool) -> RecipeFields {
    let fields = read(front, lines_before, is_field).into_iter().map(|field| {
        let text = field.text();
        let value = match (field.is_list(), text.parse::<u64>()) {
            (true, _) => Value::from(field.items()),
            (false, Ok(number)) => Value::from(number),
            (false, Err(_)) => Value::from(text),
        };
        (field.name.to_owned(), RecipeField { value, position: field.position })
    });
    fields.collect()
}

/// The text within quotes; escapes in double quotes are resolved if they are valid in JSON.
fn unquoted(value: &str) -> String {
    if value.len() > 1 && value.starts_with('"') && value.ends_with('"') {
        let inner = &value[1..value.len() - 1];
        return serde_json::from_str(value).unwrap_or_else(|_| inner.to_owned());
    }
    let single = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\''));
    single.map_or_else(|| value.to_owned(), |inner| inner.replace("''", "'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(front: &str) -> Vec<(String, String)> {
        read(front, 1, |_| true).iter().map(|field| (field.name.to_owned(), field.text())).collect()
    }

    #[test]
    fn each_field_is_one_line_of_text() {
        for (front, wanted) in [
            ("a: one: two", "one: two"),
            ("a: [x] [y]", "[x] [y]"),
            ("a: >-\n  Reads\n  PDFs", "Reads PDFs"),
            ("a: |\n  Reads\n\n  PDFs", "Reads PDFs"),
            ("a: \"say \\\"hi\\\"\"", "say \"hi\""),
            ("a: 'it''s'", "it's"),
            ("a: \"", "\""),
            ("a: Use it.\nSee http://x and:\n<b>", "Use it. See http://x and: <b>"),
            ("a:", ""),
        ] {
            assert_eq!(texts(front), [("a".to_owned(), wanted.to_owned())], "{front}");
        }
    }

    #[test]
    fn lists_have_items_in_every_spelling() {
        for front in ["a: [x, y-z]", "a: x, y-z", "a: x y-z", "a:\n  - x\n  - \"y-z\"", "a:\n- x\n- y-z"] {
            assert_eq!(read(front, 1, |_| true)[0].items(), ["x", "y-z"], "{front}");
        }
        assert_eq!(read("a: []", 1, |_| true)[0].items(), Vec::<String>::new());
    }

    #[test]
    fn unknown_names_belong_to_the_field_above_where_only_known_ones_count() {
        let front = "description: Use it.\nuser: \"hi\"\nmodel: haiku";
        let fields = as_fields(front, 1, |name| matches!(name, "description" | "model"));
        assert_eq!(fields["description"].value, "Use it. user: \"hi\"");
        assert_eq!((&fields["model"].value, fields["model"].position), (&Value::from("haiku"), (4, 8)));
    }
}
