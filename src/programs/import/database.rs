//! Opens SQLite databases of other agents. Nothing is written to their directories: SQLite would create files next to a
//! database with a write-ahead log, so such a database is copied first.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};
use tempfile::TempDir;

use epitome_transfer::IMPORT_BYTES_MAX;

/// Maximum attempts to copy a database whose files change during the copy.
const COPIES_MAX: usize = 3;

/// Bytes at the start of a write-ahead log that identify its version.
const LOG_HEAD_BYTES: u64 = 32;

/// An open database.
pub(super) struct Database {
    connection: Connection,
    /// The directory of the temporary copy, if one was made.
    _copy: Option<TempDir>,
}

impl Database {
    pub fn open(path: &Path) -> io::Result<Database> {
        let log = path.with_extension("db-wal");
        let has_log = fs::metadata(&log).is_ok_and(|metadata| metadata.len() > 0);
        let copy = if has_log { Some(copied(path, &log)?) } else { None };
        let uri = match &copy {
            Some(copy) => format!("file:{}", percent(&copy.path().join("copy.db"))),
            // Without a log the file is complete and not being written: `immutable` keeps SQLite from creating files
            // next to it.
            None => format!("file:{}?immutable=1", percent(path)),
        };
        let mut flags = OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags |=
            if copy.is_some() { OpenFlags::SQLITE_OPEN_READ_WRITE } else { OpenFlags::SQLITE_OPEN_READ_ONLY };
        let connection = Connection::open_with_flags(uri, flags).map_err(io::Error::other)?;
        Ok(Database { connection, _copy: copy })
    }

    pub fn prepare(&self, statement: &str) -> io::Result<rusqlite::Statement<'_>> {
        self.connection.prepare(statement).map_err(io::Error::other)
    }

    pub fn query_row<T>(
        &self,
        query: &str,
        id: &str,
        row: impl FnOnce(&Row) -> rusqlite::Result<T>,
    ) -> io::Result<Option<T>> {
        self.connection.query_row(query, params![id], row).optional().map_err(io::Error::other)
    }

    pub fn has_table(&self, name: &str) -> io::Result<bool> {
        let mut statement = self.prepare("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1")?;
        statement.exists(params![name]).map_err(io::Error::other)
    }

    pub fn has_column(&self, table: &str, name: &str) -> io::Result<bool> {
        let mut statement = self.prepare("SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2")?;
        statement.exists(params![table, name]).map_err(io::Error::other)
    }
}

/// Copies a database together with its log, retrying until both are consistent.
fn copied(path: &Path, log: &Path) -> io::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let state = || -> io::Result<(u64, Option<std::time::SystemTime>, Vec<u8>)> {
        let metadata = fs::metadata(path)?;
        let mut head = Vec::new();
        File::open(log)?.take(LOG_HEAD_BYTES).read_to_end(&mut head)?;
        Ok((metadata.len(), metadata.modified().ok(), head))
    };
    for _ in 0..COPIES_MAX {
        let before = state()?;
        fs::copy(path, folder.path().join("copy.db"))?;
        fs::copy(log, folder.path().join("copy.db-wal"))?;
        if state()? == before {
            return Ok(folder);
        }
    }
    Err(io::Error::other("its agent is writing it; try again when it is done"))
}

fn percent(path: &Path) -> String {
    percent_encoding::percent_encode(path.as_os_str().as_encoded_bytes(), &WITHIN_PATHS).to_string()
}

const WITHIN_PATHS: percent_encoding::AsciiSet =
    percent_encoding::CONTROLS.add(b' ').add(b'%').add(b'?').add(b'#');

pub(super) fn too_large(bytes: u64) -> io::Result<()> {
    match bytes > IMPORT_BYTES_MAX {
        true => Err(io::Error::other(format!("it has more than {IMPORT_BYTES_MAX} bytes"))),
        false => Ok(()),
    }
}
