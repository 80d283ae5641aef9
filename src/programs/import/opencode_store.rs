//! Reads opencode's stored sessions, each as one text in the format of `opencode export`: from a SQLite database or,
//! for older versions, from one file per message and part.

use std::cmp::Reverse;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Row, params};
use serde_json::{Map, Value, json};

use super::database::{Database, too_large};
use super::files::read_below;
use epitome_transfer::{ForeignSession, ImportSource, imported_id};

/// Returns the text of the session whose description is at this path; `None` if the path isn't one of opencode's.
pub(super) fn text_of_files(path: &Path) -> Option<io::Result<String>> {
    let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
    // storage/session/PROJECT/ses_1.json
    let storage = folder.parent()?.parent()?;
    let id = name.strip_suffix(".json")?;
    let is_file = id.starts_with("ses_") && folder.parent()?.ends_with("storage/session");
    is_file.then(|| read_files(path, storage, id))
}

/// Returns the sessions of a database that have messages, newest first, without those of subagents.
pub(super) fn sessions(open: &Database, database: &Path) -> io::Result<Vec<ForeignSession>> {
    let mut sessions: Vec<ForeignSession> = Vec::new();
    // Version 2 stores sessions in tables of its own, and leaves those of version 1 as they are.
    for (session, message, part) in
        [("session_v2", "session_message", "session_message"), ("session", "message", "part")]
    {
        if !open.has_table(session)? {
            continue;
        }
        let mut statement = open.prepare(&format!(
            "SELECT id, directory, title, time_updated,
                (SELECT sum(length(data)) FROM {part} WHERE {part}.session_id = {session}.id)
             FROM {session} WHERE parent_id IS NULL AND EXISTS (SELECT 1 FROM {message} WHERE session_id = {session}.id)
             ORDER BY time_updated DESC"
        ))?;
        let found = |row: &Row| {
            let id: String = row.get(0)?;
            Ok(ForeignSession {
                session: imported_id(ImportSource::Opencode, &id),
                file: database.join(&id),
                id,
                cwd: PathBuf::from(row.get::<_, String>(1)?),
                title: row.get(2)?,
                updated_at: row.get::<_, i64>(3)?.try_into().unwrap_or_default(),
                bytes: row.get::<_, Option<i64>>(4)?.unwrap_or_default().try_into().unwrap_or_default(),
            })
        };
        let rows = statement.query_map([], found).map_err(io::Error::other)?;
        for session in rows {
            let session = session.map_err(io::Error::other)?;
            if sessions.iter().all(|known| known.id != session.id) {
                sessions.push(session);
            }
        }
    }
    sessions.sort_by_key(|session| Reverse(session.updated_at));
    Ok(sessions)
}

/// The description of a session in this table, and the bytes of its messages in the other.
fn info(open: &Database, table: &str, messages: &str, id: &str) -> io::Result<Option<(Value, u64)>> {
    if !open.has_table(table)? {
        return Ok(None);
    }
    let columns = "id, directory, title, version, time_created, time_updated, revert";
    let info = |row: &Row| {
        let revert: Option<String> = row.get(6)?;
        let revert: Option<Value> = revert.and_then(|revert| serde_json::from_str(&revert).ok());
        let bytes: Option<i64> = row.get(7)?;
        let info = json!({
            "id": row.get::<_, String>(0)?,
            "directory": row.get::<_, String>(1)?,
            "title": row.get::<_, Option<String>>(2)?,
            "version": row.get::<_, String>(3)?,
            "time": { "created": row.get::<_, i64>(4)?, "updated": row.get::<_, i64>(5)? },
            "revert": revert,
        });
        Ok((info, bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default()))
    };
    let bytes = format!("(SELECT sum(length(data)) FROM {messages} WHERE session_id = ?1)");
    let query = format!("SELECT {columns}, {bytes} FROM {table} WHERE id = ?1");
    open.query_row(&query, id, info)
}

/// Returns a session as text.
pub(super) fn session(open: &Database, id: &str) -> io::Result<String> {
    if let Some((info, bytes)) = info(open, "session_v2", "session_message", id)? {
        too_large(bytes)?;
        return session_of_version_2(open, info, id);
    }
    let (info, bytes) = info(open, "session", "part", id)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("it has no session {id}")))?;
    too_large(bytes)?;
    let mut session = OpencodeSession::new(info);
    let mut statement = open.prepare(
        "SELECT message.id, message.data, part.id, part.data FROM message
         LEFT JOIN part ON part.message_id = message.id
         WHERE message.session_id = ?1 ORDER BY message.time_created, message.id, part.id",
    )?;
    let mut rows = statement.query(params![id]).map_err(io::Error::other)?;
    while let Some(row) = rows.next().map_err(io::Error::other)? {
        session.row(row).map_err(io::Error::other)?;
    }
    Ok(session.text())
}

/// Reads the messages of a session of version 2, which contain their parts.
fn session_of_version_2(open: &Database, info: Value, id: &str) -> io::Result<String> {
    let mut session = OpencodeSession::new(info);
    let mut statement = open.prepare(
        "SELECT id, type, time_created, data FROM session_message WHERE session_id = ?1 ORDER BY seq",
    )?;
    let mut rows = statement.query(params![id]).map_err(io::Error::other)?;
    while let Some(row) = rows.next().map_err(io::Error::other)? {
        session.row_of_version_2(row).map_err(io::Error::other)?;
    }
    Ok(session.text())
}

/// A session that is being assembled.
struct OpencodeSession {
    info: Value,
    messages: Vec<Value>,
    /// Number of records that are not JSON objects.
    unreadable: usize,
    /// Id of the message that the current rows belong to, even if it can't be read.
    newest: Option<String>,
}

impl OpencodeSession {
    fn new(info: Value) -> OpencodeSession {
        OpencodeSession { info, messages: Vec::new(), unreadable: 0, newest: None }
    }

    fn row(&mut self, row: &Row) -> rusqlite::Result<()> {
        let bytes = |at: usize| {
            row.get_ref(at).map(|value| value.as_bytes_or_null().ok().flatten().map(<[u8]>::to_vec))
        };
        let id: String = row.get(0)?;
        if self.newest.as_ref() != Some(&id) {
            self.message(&id, &bytes(1)?.unwrap_or_default());
            self.newest = Some(id);
        }
        if let (Some(id), Some(data)) = (row.get::<_, Option<String>>(2)?, bytes(3)?) {
            self.part(&id, &data);
        }
        Ok(())
    }

    fn row_of_version_2(&mut self, row: &Row) -> rusqlite::Result<()> {
        let data = row.get_ref(3)?.as_bytes_or_null().ok().flatten().unwrap_or_default().to_vec();
        if let Some(mut message) = self.record(&row.get::<_, String>(0)?, &data) {
            message.insert("type".to_owned(), json!(row.get::<_, String>(1)?));
            message.entry("time").or_insert(json!({ "created": row.get::<_, i64>(2)? }));
            self.messages.push(Value::Object(message));
        }
        Ok(())
    }

    fn message(&mut self, id: &str, data: &[u8]) {
        let info = self.record(id, data);
        // A message that can't be parsed still has parts.
        self.messages.push(json!({ "info": info.unwrap_or_default(), "parts": [] }));
    }

    fn part(&mut self, id: &str, data: &[u8]) {
        let part = self.record(id, data);
        let parts = self.messages.last_mut().and_then(|message| message["parts"].as_array_mut());
        if let (Some(part), Some(parts)) = (part, parts) {
            parts.push(Value::Object(part));
        }
    }

    /// Parses a record's fields and adds its id.
    fn record(&mut self, id: &str, data: &[u8]) -> Option<Map<String, Value>> {
        match serde_json::from_slice::<Map<String, Value>>(data) {
            Ok(mut fields) => {
                fields.insert("id".to_owned(), json!(id));
                Some(fields)
            }
            Err(_) => {
                self.unreadable += 1;
                None
            }
        }
    }

    fn text(self) -> String {
        json!({ "info": self.info, "messages": self.messages, "unreadable": self.unreadable }).to_string()
    }
}

/// Reads a session of an older version, with one file per message and part.
fn read_files(path: &Path, storage: &Path, id: &str) -> io::Result<String> {
    let info = fs::read(path)?;
    let info: Value = serde_json::from_slice(&info)?;
    let mut session = OpencodeSession::new(info);
    let mut bytes = 0;
    for (name, data) in records(storage, &Path::new("message").join(id))? {
        bytes += data.len() as u64;
        session.message(&name, &data);
        // A message without parts is valid: it was interrupted.
        for (part, data) in records(storage, &Path::new("part").join(&name)).unwrap_or_default() {
            bytes += data.len() as u64;
            session.part(&part, &data);
        }
        too_large(bytes)?;
    }
    Ok(session.text())
}

/// Returns the files of a directory with their names (without the extension), sorted by name and thus
/// chronologically.
fn records(storage: &Path, folder: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(storage.join(folder))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".json").map(str::to_owned));
    }
    names.sort_unstable();
    let read = |name: String| {
        let data = read_below(storage, &folder.join(format!("{name}.json")))?;
        Ok((name, data))
    };
    names.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::super::stored::{sessions, text};
    use super::*;

    /// The tables of opencode 1.18 that are read, with one session and one subagent's session.
    const TABLES: &str = r#"
        CREATE TABLE session (id text PRIMARY KEY, parent_id text, directory text NOT NULL, title text NOT NULL,
            version text NOT NULL, revert text, time_created integer NOT NULL, time_updated integer NOT NULL);
        CREATE TABLE message (id text PRIMARY KEY, session_id text NOT NULL, time_created integer NOT NULL,
            data text NOT NULL);
        CREATE TABLE part (id text PRIMARY KEY, message_id text NOT NULL, session_id text NOT NULL, data text NOT NULL);
        INSERT INTO session VALUES ('ses_1', NULL, '/w', 'Notes', '1.18.33', '{"messageID":"msg_3"}', 1, 9),
            ('ses_2', 'ses_1', '/w', 'Ask', '1.18.33', NULL, 2, 3), ('ses_3', NULL, '/w', 'Nothing', '1.18.33', NULL, 2, 3);
        INSERT INTO message VALUES ('msg_2', 'ses_1', 5, '{"role":"assistant","modelID":"m1","providerID":"mock"}'),
            ('msg_1', 'ses_1', 4, '{"role":"user"}'), ('msg_9', 'ses_2', 4, '{"role":"user"}');
    "#;
    const PARTS: &str = r#"
        INSERT INTO part VALUES ('prt_2', 'msg_2', 'ses_1', '{"type":"text","text":"Milk."}'),
            ('prt_1', 'msg_1', 'ses_1', '{"type":"text","text":"Read the notes."}'), ('prt_3', 'msg_2', 'ses_1', 'torn');
    "#;

    const WHOLE: &str = concat!(
        r#"{"info":{"id":"ses_1","directory":"/w","title":"Notes","version":"1.18.33","time":{"created":1,"updated":9},"#,
        r#""revert":{"messageID":"msg_3"}},"messages":[{"info":{"role":"user","id":"msg_1"},"parts":"#,
        r#"[{"type":"text","text":"Read the notes.","id":"prt_1"}]},{"info":{"role":"assistant","modelID":"m1","#,
        r#""providerID":"mock","id":"msg_2"},"parts":[{"type":"text","text":"Milk.","id":"prt_2"}]}],"unreadable":1}"#
    );

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_database_is_read_with_and_without_log_and_never_written() {
        for has_log in [true, false] {
            let folder = tempfile::tempdir().expect("a temporary directory");
            let path = folder.path().join("opencode 1%.db");
            let writer = Connection::open(&path).expect("a database");
            writer.execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0").expect("a log");
            writer.execute_batch(TABLES).expect("tables");
            writer.execute_batch(PARTS).expect("parts, which are in the log alone");
            // A running program leaves its log; on exit it merges the log into the database.
            let writer = has_log.then_some(writer);
            let before = names(folder.path());
            assert_eq!(before.len(), if has_log { 3 } else { 1 });
            let kept = sessions(&path).expect("it can be read");
            let listed: Vec<_> =
                kept.iter().map(|kept| (kept.id.as_str(), kept.updated_at, kept.bytes)).collect();
            assert_eq!(listed, [("ses_1", 9, 74)]);
            let text = text(&kept[0].file).expect("a session of opencode").expect("it can be read");
            assert_eq!(text, WHOLE);
            assert_eq!(names(folder.path()), before);
            drop(writer);
        }
    }

    /// Version 2 leaves the tables of version 1 in the database. Its sessions were not found.
    #[test]
    fn sessions_of_version_2_are_read_from_their_own_tables() {
        for has_version_1 in [true, false] {
            let folder = tempfile::tempdir().expect("a temporary directory");
            let path = folder.path().join("opencode.db");
            let writer = Connection::open(&path).expect("a database");
            if has_version_1 {
                writer.execute_batch(TABLES).expect("tables");
                writer.execute_batch(PARTS).expect("parts");
            }
            writer
                .execute_batch(
                    r#"CREATE TABLE session_v2 (id text PRIMARY KEY, parent_id text, directory text NOT NULL, title text,
                        version text NOT NULL, revert text, time_created integer NOT NULL, time_updated integer NOT NULL);
                    CREATE TABLE session_message (id text PRIMARY KEY, session_id text NOT NULL, type text NOT NULL,
                        seq integer NOT NULL, time_created integer NOT NULL, data text NOT NULL);
                    INSERT INTO session_v2 VALUES ('ses_1', NULL, '/w', NULL, '2.0.3', NULL, 1, 19),
                        ('ses_4', 'ses_1', '/w', 'Ask', '2.0.3', NULL, 2, 3);
                    INSERT INTO session_message VALUES ('msg_2', 'ses_1', 'assistant', 2, 5, '{"content":[]}'),
                        ('msg_1', 'ses_1', 'user', 1, 4, '{"text":"Read.","time":{"created":3}}'),
                        ('msg_3', 'ses_1', 'user', 3, 6, 'torn');"#,
                )
                .expect("tables of version 2");
            drop(writer);
            let kept = sessions(&path).expect("it can be read");
            let listed: Vec<_> = kept.iter().map(|kept| (kept.id.as_str(), kept.updated_at)).collect();
            assert_eq!(listed, [("ses_1", 19)]);
            let text = text(&kept[0].file).expect("a session of opencode").expect("it can be read");
            let read: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(
                read["messages"],
                json!([
                    { "id": "msg_1", "type": "user", "text": "Read.", "time": { "created": 3 } },
                    { "id": "msg_2", "type": "assistant", "content": [], "time": { "created": 5 } },
                ])
            );
            assert_eq!((&read["unreadable"], &read["info"]["title"]), (&json!(1), &Value::Null));
        }
    }

    #[test]
    fn files_of_older_versions_yield_the_same_text() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        for (path, text) in [
            (
                "session/p1/ses_1.json",
                r#"{"id":"ses_1","directory":"/w","title":"Notes","version":"1.18.33","time":{"created":1,"updated":9},"revert":{"messageID":"msg_3"}}"#,
            ),
            ("message/ses_1/msg_1.json", r#"{"role":"user","id":"msg_1"}"#),
            (
                "message/ses_1/msg_2.json",
                r#"{"role":"assistant","modelID":"m1","providerID":"mock","id":"msg_2"}"#,
            ),
            ("part/msg_1/prt_1.json", r#"{"type":"text","text":"Read the notes.","id":"prt_1"}"#),
            ("part/msg_2/prt_2.json", r#"{"type":"text","text":"Milk.","id":"prt_2"}"#),
            ("part/msg_2/prt_3.json", "torn"),
        ] {
            let path = folder.path().join("storage").join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
            fs::write(path, text).expect("it can be written");
        }
        let path = folder.path().join("storage/session/p1/ses_1.json");
        assert_eq!(text(&path).expect("a session of opencode").expect("it can be read"), WHOLE);
        assert!(text(&folder.path().join("ses_1.json")).is_none(), "a file of another kind");
    }

    #[test]
    fn an_invalid_database_or_unknown_session_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("opencode.db");
        fs::write(&path, "no database").expect("it can be written");
        let error = text(&path.join("ses_1")).expect("by its name").expect_err("it is none");
        assert!(error.to_string().contains("file is not a database"), "{error}");
        fs::remove_file(&path).expect("it can be removed");
        Connection::open(&path).expect("a database").execute_batch(TABLES).expect("tables");
        let error = text(&path.join("ses_7")).expect("by its name").expect_err("it is not there");
        assert_eq!(error.to_string(), "it has no session ses_7");
    }
}
