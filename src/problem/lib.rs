//! Errors in the user's own files. A problem is displayed, but never stops the program.

use std::fmt;
use std::path::PathBuf;

/// An error in a configuration, recipe or hook file, with its position and a hint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    pub path: PathBuf,
    /// Line and column, both from 1, if known.
    pub place: Option<(u64, u64)>,
    pub message: String,
    pub hint: Option<String>,
}

impl Problem {
    /// The JSON form, for machine-readable output.
    pub fn to_json(&self) -> serde_json::Value {
        let Problem { path, place, message, hint } = self;
        let (line, column) = (place.map(|place| place.0), place.map(|place| place.1));
        serde_json::json!({
            "path": path.display().to_string(), "line": line, "column": column, "message": message, "hint": hint,
        })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some((line, column)) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, " ({hint})")?;
        }
        Ok(())
    }
}

/// Line and column of a byte offset, both from 1; the column counts characters.
pub fn place_in(text: &str, offset: usize) -> (u64, u64) {
    let before = &text[..text.floor_char_boundary(offset)];
    let line_start = before.rfind('\n').map_or(0, |index| index + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line as u64, before[line_start..].chars().count() as u64 + 1)
}

/// The known name that is a typing mistake away, if any.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let name = plain(name);
    // At most a third of the letters; with more, short names would all be similar.
    let most = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (edit_distance(&name, &plain(candidate)), candidate))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The Levenshtein distance between two words.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, letter) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}
