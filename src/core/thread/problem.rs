//! Errors in the user's own files. A problem is displayed, but never stops the program.

use std::error::Error;
use std::path::PathBuf;
use std::{fmt, io};

/// An error in a configuration, recipe or hook file, with its position and a hint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    pub path: PathBuf,
    /// Line and column, both from 1, if known.
    pub position: Option<(u64, u64)>,
    pub message: String,
    pub hint: Option<String>,
    /// Whether it does not matter, also in a file in which nothing may be wrong.
    pub is_notice: bool,
}

impl Problem {
    /// A problem without position and hint; see [`at`](Problem::at) and [`with_hint`](Problem::with_hint).
    pub fn new(path: impl Into<PathBuf>, message: impl Into<String>) -> Problem {
        Problem { path: path.into(), position: None, message: message.into(), hint: None, is_notice: false }
    }

    /// A file that can't be read.
    pub fn unreadable(path: impl Into<PathBuf>, error: &io::Error) -> Problem {
        let message = match error.kind() {
            io::ErrorKind::NotFound => "there is no such file".to_owned(),
            _ => format!("it can't be read: {error}"),
        };
        Problem::new(path, message)
    }

    /// Adds line and column.
    pub fn at(self, position: (u64, u64)) -> Problem {
        Problem { position: Some(position), ..self }
    }

    pub fn with_hint(self, hint: impl Into<String>) -> Problem {
        Problem { hint: Some(hint.into()), ..self }
    }

    /// The JSON form, for machine-readable output.
    pub fn to_json(&self) -> serde_json::Value {
        let Problem { path, position, message, hint, is_notice: _ } = self;
        let (line, column) = (position.map(|position| position.0), position.map(|position| position.1));
        serde_json::json!({
            "path": path.display().to_string(), "line": line, "column": column, "message": message, "hint": hint,
        })
    }
}

impl Error for Problem {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some((line, column)) = self.position {
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
pub fn position_in(text: &str, offset: usize) -> (u64, u64) {
    let before = &text[..text.floor_char_boundary(offset)];
    let line_start = before.rfind('\n').map_or(0, |index| index + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line as u64, before[line_start..].chars().count() as u64 + 1)
}

/// The known name that is a typing mistake away, if any. Of two equally near names, the one with the same letters.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let name = plain(name);
    let letters = |name: &str| {
        let mut letters: Vec<char> = name.chars().collect();
        letters.sort_unstable();
        letters
    };
    // At most a third of the letters; with more, short names would all be similar.
    let most = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (plain(candidate), candidate))
        .map(|(plain, candidate)| {
            // An exchange of two neighbouring letters counts as one mistake.
            (strsim::osa_distance(&name, &plain), letters(&plain) != letters(&name), candidate)
        })
        .filter(|(distance, ..)| *distance <= most)
        .min_by_key(|(distance, has_others, _)| (*distance, *has_others))
        .map(|(.., candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `modle` in config.toml was answered with "mode", because an exchange of two letters counted as two mistakes.
    #[test]
    fn an_exchange_of_two_letters_is_one_mistake() {
        assert_eq!(nearest("modle", ["mode", "model"]), Some("model"));
        assert_eq!(nearest("trun_end", ["session_end", "turn_end"]), Some("turn_end"));
        assert_eq!(nearest("Max-Rounds", ["max_rounds"]), Some("max_rounds"));
        assert_eq!(nearest("mdoe", ["model", "mode"]), Some("mode"));
        assert_eq!(nearest("modell", ["model", "models"]), Some("model"));
        assert_eq!(nearest("xy", ["mode", "model"]), None);
    }
}
