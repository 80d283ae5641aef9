//! Placeholders: `$S1` for the first session id, `$DIR` for the workspace, `*` for anything.
//!
//! A placeholder is bound at its first occurrence and keeps that value. Patterns with placeholders are compared with
//! actual values, and actual values are written with placeholders.

use std::collections::BTreeMap;

use serde_json::Value;

/// The key in an object pattern that permits additional keys: `{"sessionId":"$S1","*":"*"}`.
pub const OTHER_KEYS: &str = "*";

/// Matches any text within a text.
pub(super) const GAP: char = '…';

/// The placeholders of a transcript and their values.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Values by placeholder.
    bound: BTreeMap<String, String>,
    /// Placeholders by the letter of their kind and their value: recordings of long sessions contain thousands.
    by_value: BTreeMap<(char, String), String>,
    /// The last number assigned to each kind.
    last: BTreeMap<char, u32>,
    /// Placeholders such as `$DIR` with their paths, longest path first. They are replaced within texts.
    places: Vec<(String, String)>,
}

/// The kinds of values that are numbered in the order of their first occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceholderKind {
    /// `$S1`: a session.
    Session,
    /// `$M1`: a message, or a compaction, which has the id of its summary message.
    Message,
    /// `$C1`: a tool call.
    Call,
    /// `$T1`: a time.
    Time,
    /// `$R1`: a request of the agent.
    Request,
}

impl PlaceholderKind {
    /// The kind of the values that messages have under this key.
    pub(super) fn of_key(key: &str) -> Option<PlaceholderKind> {
        match key {
            "sessionId" => Some(PlaceholderKind::Session),
            "messageId" | "compactionId" => Some(PlaceholderKind::Message),
            "toolCallId" => Some(PlaceholderKind::Call),
            "updatedAt" => Some(PlaceholderKind::Time),
            _ => None,
        }
    }

    fn letter(self) -> char {
        match self {
            PlaceholderKind::Session => 'S',
            PlaceholderKind::Message => 'M',
            PlaceholderKind::Call => 'C',
            PlaceholderKind::Time => 'T',
            PlaceholderKind::Request => 'R',
        }
    }
}

impl Names {
    /// Binds a placeholder such as `$DIR` to a path, which is recognized within texts.
    pub fn bind_place(&mut self, name: &str, place: &str) {
        self.bound.insert(name.to_owned(), place.to_owned());
        self.places.retain(|(known, _)| known != name);
        self.places.push((name.to_owned(), place.to_owned()));
        self.places.sort_by_key(|(_, place)| std::cmp::Reverse(place.len()));
    }

    /// Returns the placeholder for a value, creating one if necessary.
    pub fn name(&mut self, kind: PlaceholderKind, value: &str) -> String {
        let letter = kind.letter();
        if let Some(name) = self.by_value.get(&(letter, value.to_owned())) {
            return name.clone();
        }
        let mut number = self.last.get(&letter).copied().unwrap_or(0);
        let name = loop {
            number += 1;
            let name = format!("${letter}{number}");
            if !self.bound.contains_key(&name) {
                break name;
            }
        };
        self.last.insert(letter, number);
        self.bind(&name, value);
        name
    }

    fn bind(&mut self, name: &str, value: &str) {
        self.bound.insert(name.to_owned(), value.to_owned());
        if let Some(letter) = name.chars().nth(1) {
            self.by_value.insert((letter, value.to_owned()), name.to_owned());
        }
    }

    /// Replaces every placeholder with its value. The error names an unbound placeholder.
    pub fn fill_text(&self, text: &str) -> Result<String, String> {
        let mut out = String::new();
        for piece in pieces(text) {
            match piece {
                NamePiece::Literal(text) => out.push_str(text),
                NamePiece::Name(name) => match self.bound.get(name) {
                    Some(value) => out.push_str(value),
                    None => return Err(format!("{name} is used before anything gave it a value")),
                },
            }
        }
        Ok(out)
    }

    /// Like [`fill_text`](Names::fill_text), for every string in a value.
    pub fn fill(&self, value: &Value) -> Result<Value, String> {
        Ok(match value {
            Value::String(text) => Value::String(self.fill_text(text)?),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.fill(item)).collect::<Result<_, _>>()?)
            }
            Value::Object(map) => {
                let filled = map.iter().map(|(key, value)| Ok((key.clone(), self.fill(value)?)));
                Value::Object(filled.collect::<Result<_, String>>()?)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        })
    }

    /// Whether a text matches the pattern. Unbound placeholders are bound if it does.
    ///
    /// `*` as the entire pattern matches any text, and `…` matches any part of a text.
    pub fn matches_text(&mut self, pattern: &str, actual: &str) -> bool {
        if pattern == "*" {
            return true;
        }
        let mut atoms = Vec::new();
        for (at, stretch) in pattern.split(GAP).enumerate() {
            if at > 0 {
                atoms.push(Atom::Gap);
            }
            for piece in pieces(stretch) {
                match piece {
                    NamePiece::Literal(text) => atoms.push(Atom::Literal(text.to_owned())),
                    NamePiece::Name(name) => match self.bound.get(name) {
                        Some(value) => atoms.push(Atom::Literal(value.clone())),
                        None => atoms.push(Atom::Open(name.to_owned())),
                    },
                }
            }
        }
        let mut found = BTreeMap::new();
        if !matches_atoms(&atoms, actual, &mut found)
            || found.iter().any(|(name, value)| self.has_other_name(name, value))
        {
            return false;
        }
        for (name, value) in found {
            self.bind(&name, &value);
        }
        true
    }

    /// Whether the value has another placeholder of the same kind: `$S1` and `$S2` are different sessions. Times may
    /// be equal.
    fn has_other_name(&self, name: &str, value: &str) -> bool {
        let letter = name.chars().nth(1).unwrap_or('T');
        letter != 'T' && self.by_value.contains_key(&(letter, value.to_owned()))
    }

    /// Whether a value matches the pattern. Nothing is bound if it does not.
    ///
    /// `_meta` keys that are not in the pattern are ignored, because they are extensions.
    pub fn matches(&mut self, pattern: &Value, actual: &Value) -> bool {
        let before = self.clone();
        let fits = self.matches_inside(pattern, actual);
        if !fits {
            *self = before;
        }
        fits
    }

    fn matches_inside(&mut self, pattern: &Value, actual: &Value) -> bool {
        match (pattern, actual) {
            (Value::String(pattern), Value::String(actual)) => self.matches_text(pattern, actual),
            (Value::String(pattern), _) if pattern == "*" => true,
            (Value::String(pattern), Value::Number(number)) if pattern.starts_with('$') => {
                self.matches_text(pattern, &number.to_string())
            }
            (Value::Array(pattern), Value::Array(actual)) => {
                pattern.len() == actual.len()
                    && pattern
                        .iter()
                        .zip(actual)
                        .all(|(pattern, actual)| self.matches_inside(pattern, actual))
            }
            (Value::Object(pattern), Value::Object(actual)) => {
                let others = pattern.contains_key(OTHER_KEYS);
                pattern.iter().filter(|(key, _)| *key != OTHER_KEYS).all(|(key, pattern)| {
                    actual.get(key).is_some_and(|actual| self.matches_inside(pattern, actual))
                }) && actual.keys().all(|key| others || key == "_meta" || pattern.contains_key(key))
            }
            _ => pattern == actual,
        }
    }

    /// Writes a value with placeholders: for paths within texts, and for ids and times that are entire strings.
    pub fn with_names(&mut self, value: &Value) -> Value {
        self.named(None, value)
    }

    /// Writes a text with placeholders for the paths and sessions in it.
    pub fn text_with_names(&self, text: &str) -> String {
        let mut out = text.to_owned();
        for (name, place) in &self.places {
            out = out.replace(place.as_str(), name);
        }
        for ((_, value), name) in self.by_value.range(('S', String::new())..('T', String::new())) {
            out = out.replace(value.as_str(), name);
        }
        out
    }

    fn named(&mut self, key: Option<&str>, value: &Value) -> Value {
        if let (Some(kind), Value::String(text)) = (key.and_then(PlaceholderKind::of_key), value) {
            return Value::String(self.name(kind, text));
        }
        match (key, value) {
            (Some("requestId"), Value::Number(_) | Value::String(_)) => {
                let id = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let known = self.bound.iter().find(|(name, bound)| name.starts_with("$R") && **bound == id);
                known.map_or_else(|| value.clone(), |(name, _)| Value::String(name.clone()))
            }
            (_, Value::String(text)) => Value::String(self.text_with_names(text)),
            (_, Value::Array(items)) => {
                Value::Array(items.iter().map(|item| self.named(None, item)).collect())
            }
            (_, Value::Object(map)) => Value::Object(
                map.iter().map(|(key, value)| (key.clone(), self.named(Some(key), value))).collect(),
            ),
            (_, Value::Null | Value::Bool(_) | Value::Number(_)) => value.clone(),
        }
    }
}

enum NamePiece<'a> {
    Literal(&'a str),
    Name(&'a str),
}

enum Atom {
    Literal(String),
    Open(String),
    Gap,
}

/// Splits a text at its placeholders: `$DIR`, `$HOME`, and the letter of a kind with a number.
fn pieces(text: &str) -> Vec<NamePiece<'_>> {
    let mut pieces = Vec::new();
    let (mut begin, mut from) = (0, 0);
    while let Some(at) = text[from..].find('$').map(|at| from + at) {
        let name = &text[at..at + 1 + name_length(&text[at + 1..])];
        if name.len() > 1 {
            if at > begin {
                pieces.push(NamePiece::Literal(&text[begin..at]));
            }
            pieces.push(NamePiece::Name(name));
            begin = at + name.len();
        }
        from = at + name.len();
    }
    if begin < text.len() {
        pieces.push(NamePiece::Literal(&text[begin..]));
    }
    pieces
}

fn name_length(text: &str) -> usize {
    for place in ["DIR", "HOME"] {
        if text.starts_with(place) {
            return place.len();
        }
    }
    let digits = text.bytes().skip(1).take_while(u8::is_ascii_digit).count();
    if text.starts_with(['S', 'M', 'C', 'T', 'R']) && digits > 0 { 1 + digits } else { 0 }
}

/// Whether the atoms match the entire text.
fn matches_atoms(atoms: &[Atom], text: &str, found: &mut BTreeMap<String, String>) -> bool {
    match atoms {
        [] => text.is_empty(),
        [Atom::Gap] => true,
        [Atom::Gap, rest @ ..] => {
            let starts = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            starts.into_iter().any(|at| matches_atoms(rest, &text[at..], found))
        }
        [Atom::Literal(literal), rest @ ..] => {
            text.strip_prefix(literal.as_str()).is_some_and(|text| matches_atoms(rest, text, found))
        }
        [Atom::Open(name), rest @ ..] => {
            if let Some(known) = found.get(name).cloned() {
                return text
                    .strip_prefix(known.as_str())
                    .is_some_and(|text| matches_atoms(rest, text, found));
            }
            // Try the longest value first, so that an id is never matched in part.
            let ends: Vec<usize> = text.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
            for end in ends.into_iter().rev() {
                found.insert(name.clone(), text[..end].to_owned());
                if matches_atoms(rest, &text[end..], found) {
                    return true;
                }
                found.remove(name);
            }
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_placeholder_is_bound_at_its_first_occurrence() {
        let mut names = Names::default();
        assert!(names.matches(&json!({"sessionId": "$S1"}), &json!({"sessionId": "s_1"})));
        assert!(names.matches(&json!({"sessionId": "$S1"}), &json!({"sessionId": "s_1"})));
        assert!(!names.matches(&json!({"sessionId": "$S1"}), &json!({"sessionId": "s_2"})));
        assert!(names.matches(&json!("there is no session $S2."), &json!("there is no session s_9.")));
        assert_eq!(names.fill_text("$S1 and $S2"), Ok("s_1 and s_9".into()));
    }

    #[test]
    fn two_placeholders_of_a_kind_are_different_values() {
        let mut names = Names::default();
        assert!(names.matches_text("$S1", "s_1"));
        assert!(!names.matches_text("$S2", "s_1"));
        assert!(names.matches_text("$C1", "s_1"), "a call is no session");
        assert!(names.matches_text("$T1", "now") && names.matches_text("$T2", "now"));
    }

    #[test]
    fn a_failed_comparison_binds_nothing() {
        let mut names = Names::default();
        assert!(!names.matches(&json!({"a": "$S1", "b": 1}), &json!({"a": "x", "b": 2})));
        assert_eq!(names.fill_text("$S1"), Err("$S1 is used before anything gave it a value".into()));
    }

    #[test]
    fn a_star_matches_any_value_and_a_star_key_permits_other_keys() {
        let mut names = Names::default();
        assert!(names.matches(&json!({"a": "*"}), &json!({"a": [1, 2]})));
        assert!(!names.matches(&json!({"a": 1}), &json!({"a": 1, "b": 2})));
        assert!(names.matches(&json!({"a": 1, "*": "*"}), &json!({"a": 1, "b": 2})));
        assert!(names.matches(&json!({"a": 1}), &json!({"a": 1, "_meta": {"x": 1}})), "extensions are free");
    }

    #[test]
    fn an_ellipsis_matches_any_part_of_a_text() {
        let mut names = Names::default();
        assert!(names.matches_text("No model…", "No model is configured."));
        assert!(names.matches_text("…configured.", "No model is configured."));
        assert!(names.matches_text("…model…", "No model is configured."));
        assert!(names.matches_text("No…is…configured.", "No model is configured."));
        assert!(!names.matches_text("…model", "No model is configured."));
    }

    #[test]
    fn values_are_numbered_in_the_order_of_their_occurrence() {
        let mut names = Names::default();
        names.bind_place("$DIR", "/tmp/w");
        let value =
            json!({"sessionId": "s_1", "text": "/tmp/w/a.txt of s_1", "updatedAt": "2026-01-01T00:00:00Z"});
        let expected = json!({"sessionId": "$S1", "text": "$DIR/a.txt of $S1", "updatedAt": "$T1"});
        assert_eq!(names.with_names(&value), expected);
    }

    #[test]
    fn a_dollar_without_a_name_is_literal() {
        let mut names = Names::default();
        assert_eq!(names.fill_text("$5, $HOM, $"), Ok("$5, $HOM, $".into()));
        assert!(names.matches_text("costs $5", "costs $5"));
    }
}
