//! What is wrong in a person's own file. A problem is shown; it never stops us.

use std::fmt;
use std::path::PathBuf;

/// A fault in a configuration, recipe or hook file, with its place and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    pub path: PathBuf,
    /// Line and column, both from 1, where the fault has a place.
    pub place: Option<(u64, u64)>,
    pub message: String,
    pub hint: Option<String>,
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
