//! Reads kodelet's stored conversations, each as one text, from its SQLite database.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::Row;
use serde_json::{Value, json};

use super::database::{Database, too_large};
use super::kodelet::time;
use epitome_transfer::{ForeignSession, ImportSource, imported_id};

/// Its table of conversations.
pub(super) const TABLE: &str = "conversations";

/// Returns the conversations of a database, newest first.
pub(super) fn sessions(open: &Database, database: &Path) -> io::Result<Vec<ForeignSession>> {
    let cwd = optional(open, "cwd")?;
    let mut statement = open.prepare(&format!(
        "SELECT id, {cwd}, summary, updated_at, length(raw_messages) FROM {TABLE}
         WHERE raw_messages NOT IN ('', '[]', 'null') ORDER BY updated_at DESC"
    ))?;
    let session = |row: &Row| {
        let id: String = row.get(0)?;
        Ok(ForeignSession {
            session: imported_id(ImportSource::Kodelet, &id),
            file: database.join(&id),
            id,
            cwd: row.get::<_, Option<String>>(1)?.map(PathBuf::from).unwrap_or_default(),
            title: row.get(2)?,
            updated_at: time(&row.get::<_, String>(3)?).unwrap_or_default(),
            bytes: row.get::<_, i64>(4)?.try_into().unwrap_or_default(),
        })
    };
    let rows = statement.query_map([], session).map_err(io::Error::other)?;
    rows.collect::<Result<_, _>>().map_err(io::Error::other)
}

/// Returns a conversation as text.
pub(super) fn session(open: &Database, id: &str) -> io::Result<String> {
    let (cwd, history) = (optional(open, "cwd")?, optional(open, "compaction_history")?);
    let (provider, metadata) = (optional(open, "provider")?, optional(open, "metadata")?);
    let query = format!(
        "SELECT raw_messages, {history}, {metadata}, {provider}, {cwd}, summary, created_at FROM {TABLE} WHERE id = ?1"
    );
    let found = |row: &Row| {
        let column = |at: usize| row.get::<_, Option<String>>(at).map(Option::unwrap_or_default);
        let bytes = column(0)?.len() + column(1)?.len();
        let parsed = |at: usize| column(at).map(|text| serde_json::from_str(&text).unwrap_or(Value::Null));
        let session = json!({
            "kodelet": { "id": id, "provider": column(3)?, "cwd": column(4)?, "title": column(5)?, "created": column(6)? },
            "messages": parsed(0)?, "history": parsed(1)?, "metadata": parsed(2)?,
        });
        Ok((bytes, session))
    };
    let (bytes, session) = open
        .query_row(&query, id, found)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("it has no session {id}")))?;
    too_large(bytes as u64)?;
    Ok(session.to_string())
}

/// The name of a column that older versions lack, or a value in its place.
fn optional(open: &Database, column: &'static str) -> io::Result<&'static str> {
    Ok(if open.has_column(TABLE, column)? { column } else { "NULL" })
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use rusqlite::Connection;

    use super::super::{ImportContext, stored};
    use super::*;
    use epitome_thread::Change;

    /// The conversation with these columns, as one line for each entry with text.
    fn imported(columns: &str, values: &[(&str, Value)]) -> String {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("storage.db");
        let writer = Connection::open(&path).expect("a database");
        let table = format!(
            "CREATE TABLE conversations (id text PRIMARY KEY, raw_messages text NOT NULL, summary text,
                created_at datetime NOT NULL, updated_at datetime NOT NULL{columns});
             INSERT INTO conversations (id, raw_messages, created_at, updated_at) VALUES
                ('c1', '[]', '2026-01-02 15:04:05.5 +0100 CET', '2026-01-02T15:04:05Z'), ('c2', '[]', '', '')"
        );
        writer.execute_batch(&table).expect("a table");
        for (column, value) in values {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            writer
                .execute(&format!("UPDATE conversations SET {column} = ?1 WHERE id = 'c1'"), [value])
                .expect("set");
        }
        drop(writer);
        let found = stored::sessions(&path).expect("it can be read");
        let listed: Vec<_> = found.iter().map(|found| (found.id.as_str(), found.updated_at)).collect();
        assert_eq!(listed, [("c1", 1_767_366_245_000)]);
        let text = stored::text(&found[0].file).expect("in a database").expect("it can be read");
        let context = ImportContext { cwd: Path::new("/here"), now: 1, read_sibling: &|_| None };
        let draft = super::super::read(&path, &text, &context).expect("a conversation").remove(0);
        assert_eq!((draft.source, draft.foreign_id.as_deref()), (ImportSource::Kodelet, Some("c1")));
        assert_eq!(draft.entries[0].at, 1_767_362_645_500);
        let mut seen = String::new();
        for entry in &draft.entries {
            let _ = match &entry.change {
                Change::Opened { cwd, .. } => write!(seen, "in {}", cwd.display()),
                Change::Said { message, .. } => write!(seen, " | user: {}", message.text()),
                Change::Replied { message, model, .. } => {
                    let calls: Vec<String> =
                        message.calls().map(|call| format!(" [{} {}]", call.name, call.input)).collect();
                    write!(seen, " | {}: {}{}", model.0, message.text(), calls.concat())
                }
                Change::ToolFinished { outcome } => {
                    write!(seen, " | {:?}: {}", outcome.status, outcome.model_text())
                }
                Change::Compacted { summary, .. } => write!(seen, " | compacted: {}", summary.text()),
                _ => Ok(()),
            };
        }
        draft.notes.iter().for_each(|note| seen.push_str(&format!(" | {note}")));
        seen
    }

    #[test]
    fn the_messages_of_every_provider_are_read() {
        let newest = ", provider text, cwd text, metadata text, compaction_history text";
        let anthropic = json!([
            { "role": "user", "content": [{ "type": "text", "text": "Look." }] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "Hm." }, { "type": "text", "text": "I look." },
                { "type": "tool_use", "id": "t1", "name": "bash", "input": { "command": "ls" } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": [{ "type": "text", "text": "no" }] },
            ] },
        ]);
        let chat = json!([
            { "role": "system", "content": "You are." },
            { "role": "user", "content": "Look." },
            { "role": "assistant", "content": "I look.", "tool_calls": [
                { "id": "t1", "type": "function", "function": { "name": "bash", "arguments": "{\"command\":\"ls\"}" } },
            ] },
            { "role": "tool", "tool_call_id": "t1", "content": "<error>\nno\n</error>" },
        ]);
        let items = json!([
            { "type": "message", "role": "user", "content": "Look." },
            { "type": "reasoning", "role": "assistant", "content": "Hm." },
            { "type": "message", "role": "assistant", "content": "I look.",
              "raw_item": { "role": "assistant", "content": [{ "type": "output_text", "text": "I look." }] } },
            { "type": "function_call", "call_id": "t1", "name": "bash", "arguments": "{\"command\":\"ls\"}" },
            { "type": "function_call_output", "call_id": "t1", "output": "<error>no" },
            { "type": "web_search_call" },
        ]);
        let gemini = json!([
            { "role": "user", "parts": [{ "text": "Look." }] },
            { "role": "model", "parts": [
                { "text": "Hm.", "thought": true }, { "text": "I look." },
                { "functionCall": { "id": "t1", "name": "bash", "args": { "command": "ls" } } },
            ] },
            { "role": "user", "parts": [{ "functionResponse": { "id": "t1", "response": { "error": "no" } } }] },
        ]);
        for (messages, printed) in [
            (anthropic, "no"),
            (chat, "<error>\nno\n</error>"),
            (items, "<error>no | left out: messages (1 web_search_call)"),
            (gemini, "no"),
        ] {
            let values = [("raw_messages", messages), ("provider", json!("openai")), ("cwd", json!("/w"))];
            let wanted =
                "in /w | user: Look. | openai/unknown: I look. [bash {\"command\":\"ls\"}] | Failed: ";
            assert_eq!(imported(newest, &values), format!("{wanted}{printed}"));
        }
        // The messages that a compaction replaced are in a segment, and the new messages begin with its summary.
        let user = |text: &str| json!({ "role": "user", "content": text });
        let history = json!({ "segments": [{ "rawMessages": [user("One")], "marker": { "summary": "One was said." } }],
            "activeDisplayStart": 1 });
        let values =
            [("raw_messages", json!([user("(summary)"), user("Two")])), ("compaction_history", history)];
        assert_eq!(
            imported(newest, &values),
            "in /here | user: One | compacted: A summary of what was said and done so far:\n\nOne was said. | user: Two"
        );
        // Older versions have fewer columns.
        assert_eq!(imported("", &[("raw_messages", json!([user("One")]))]), "in /here | user: One");
    }
}
