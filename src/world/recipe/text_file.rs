//! Reads text files that a user or a repository wrote.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// Why a link in a repository is not followed.
pub(super) const LEADS_OUT: &str = "this link leads out of the repository or nowhere, so it is not read";

/// Why a file is not read. `what` names the file, such as `a recipe`.
#[derive(Debug, thiserror::Error)]
pub enum TextFileError {
    #[error(
        "cannot read this {}: {source}",
        what.trim_start_matches("an ").trim_start_matches("a ").trim_start_matches("the ")
    )]
    Unreadable { what: &'static str, source: io::Error },
    #[error("{what} must be an ordinary file")]
    NotAFile { what: &'static str },
    #[error("{what} has at most {} KiB", bytes_max / 1024)]
    TooLong { what: &'static str, bytes_max: u64 },
    #[error("{what} must be UTF-8 text")]
    NotText { what: &'static str, source: std::str::Utf8Error },
}

/// Reads a text file of at most `bytes_max` bytes. `what` names it in errors, such as `a recipe`.
pub fn read_text(path: &Path, what: &'static str, bytes_max: u64) -> Result<String, TextFileError> {
    let unreadable = |source| TextFileError::Unreadable { what, source };
    // Opening a named pipe would block until a writer appears.
    if !path.metadata().map_err(unreadable)?.is_file() {
        return Err(TextFileError::NotAFile { what });
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > bytes_max {
        return Err(TextFileError::TooLong { what, bytes_max });
    }
    // Some editors begin files with a byte order mark.
    let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
    let text = str::from_utf8(text).map_err(|source| TextFileError::NotText { what, source })?;
    Ok(text.to_owned())
}
