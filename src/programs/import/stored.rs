//! Sessions that are not one file of text: those in databases, each with many sessions, and those in many files. A session in
//! a database is identified by a path below it: `…/opencode.db/ses_1`.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use super::database::Database;
use super::{kodelet_store, opencode_store};
use epitome_transfer::ForeignSession;

/// Whether the path is that of a session in a database.
fn is_below_database(path: &Path) -> bool {
    path.parent().is_some_and(|folder| is_database(folder) && folder.is_file())
}

/// Whether the path has the extension of a database.
pub(super) fn is_database(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("db"))
}

/// Returns the sessions of a database that have messages, newest first, without those of subagents.
pub(super) fn sessions(path: &Path) -> io::Result<Vec<ForeignSession>> {
    let database = Database::open(path)?;
    match database.has_table(kodelet_store::TABLE)? {
        true => kodelet_store::sessions(&database, path),
        false => opencode_store::sessions(&database, path),
    }
}

/// Returns the text of the session at this path; `None` if it is that of a file of text.
pub(super) fn text(path: &Path) -> Option<io::Result<String>> {
    if !is_below_database(path) {
        return opencode_store::text_of_files(path);
    }
    let (database, id) = (path.parent()?, path.file_name()?.to_str()?);
    let read = |database: Database| match database.has_table(kodelet_store::TABLE)? {
        true => kodelet_store::session(&database, id),
        false => opencode_store::session(&database, id),
    };
    Some(Database::open(database).and_then(read))
}
