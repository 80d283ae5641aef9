//! Conversations of kodelet, which stores each in one row of its SQLite database `storage.db`. The messages in it have the
//! form of the provider that they were sent to: Anthropic's messages, Gemini's contents, or OpenAI's chat messages or
//! items. A row is converted to a JSON object with the key `kodelet` when it is read.
//!
//! A compaction replaces the messages; those before it are kept in segments, each with the summary that replaced it.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::Row;
use serde_json::{Value, json};

use super::builder::Builder;
use super::database::{Database, too_large};
use super::{
    ImportContext, contents, data_url_part, document, file_part, list, model_name, moment, outcome_content,
    text, text_of, text_part, thinking_part,
};
use epitome_thread::problem::Problem;
use epitome_thread::{Content, OutcomeStatus, Trigger};
use epitome_transfer::{ENCRYPTED, ForeignSession, ImportDraft, ImportFile, ImportSource, imported_id};

/// Its table of conversations.
pub(super) const TABLE: &str = "conversations";

/// Start of the result of a call that failed.
const FAILED: &str = "<error>";

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

/// Parses a time as Go writes it: `2026-01-02 15:04:05.99 +0100 CET`, or in RFC 3339.
fn time(text: &str) -> Option<u64> {
    let mut words = text.split(' ');
    let (date, time, offset) = (words.next()?, words.next(), words.next());
    match (time, offset.and_then(|offset| offset.split_at_checked(3))) {
        (None, _) => moment(&json!(date)),
        (Some(time), Some((hours, minutes))) => moment(&json!(format!("{date}T{time}{hours}:{minutes}"))),
        (Some(time), None) => moment(&json!(format!("{date}T{}Z", time.trim_end_matches('Z')))),
    }
}

pub(super) fn read(file: ImportFile, text: &str, context: &ImportContext) -> Result<ImportDraft, Problem> {
    let session = document(file, text)?;
    let about = &session["kodelet"];
    let started = about["created"].as_str().and_then(time);
    let provider = text_of(&about["provider"]);
    let model = session["metadata"]["model"].as_str();
    let mut reader = KodeletReader {
        log: Builder::new(text_of(&about["cwd"]), started, context),
        model: model_name(provider, "kodelet", model),
        parts: Vec::new(),
    };
    let mut messages: &[Value] = session["messages"].as_array().map_or(&[], Vec::as_slice);
    for segment in list(&session["history"]["segments"]) {
        list(&segment["rawMessages"]).for_each(|message| reader.message(message));
        reader.flush();
        let summary = text_of(&segment["marker"]["summary"]).unwrap_or(ENCRYPTED);
        reader.log.summarized(None, summary, Trigger::Threshold, 0);
    }
    if !session["history"].is_null() {
        // What precedes this message is the summary.
        let first = session["history"]["activeDisplayStart"].as_u64().unwrap_or_default();
        messages = messages.get(usize::try_from(first).unwrap_or(usize::MAX)..).unwrap_or_default();
    }
    messages.iter().for_each(|message| reader.message(message));
    reader.flush();
    reader.log.title(about["title"].as_str().unwrap_or_default());
    reader.log.foreign_id(about["id"].as_str().unwrap_or_default());
    reader.log.finish(ImportSource::Kodelet, file, None)
}

struct KodeletReader {
    log: Builder,
    model: String,
    /// The parts of a reply that may be incomplete.
    parts: Vec<Content>,
}

impl KodeletReader {
    fn message(&mut self, message: &Value) {
        match (message["type"].as_str(), message["role"].as_str()) {
            (None | Some("message"), Some("user")) => self.user(message),
            (None | Some("message"), Some("assistant" | "model")) => self.reply(message),
            (None, Some("tool")) => self.result(&message["tool_call_id"], &message["content"], false),
            // The system prompt.
            (None | Some("message"), Some("system" | "developer")) => {}
            (Some("reasoning"), _) => self.parts.extend(thinking_part(&message["content"])),
            (Some("function_call"), _) => {
                self.call(&message["call_id"], &message["name"], &message["arguments"])
            }
            (Some("function_call_output"), _) => {
                let printed = &message["output"];
                let printed = if printed.is_string() { printed } else { &message["raw_output"] };
                self.result(&message["call_id"], printed, false);
            }
            (kind, role) => self.log.left_out_kind("messages", kind.or(role).unwrap_or("unknown")),
        }
    }

    /// The parts of a message, in the form of any provider.
    fn parts_of(message: &Value) -> &Value {
        let raw = &message["raw_item"]["content"];
        [raw, &message["parts"], &message["content"]]
            .into_iter()
            .find(|parts| !parts.is_null())
            .unwrap_or(raw)
    }

    fn user(&mut self, message: &Value) {
        self.flush();
        let parts = Self::parts_of(message);
        for part in list(parts) {
            let response = &part["functionResponse"];
            if part["type"] == "tool_result" {
                self.result(&part["tool_use_id"], &part["content"], part["is_error"] == true);
            } else if response.is_object() {
                let printed = &response["response"];
                let is_error = printed["error"].is_string();
                let printed = ["output", "result", "error"]
                    .iter()
                    .map(|key| &printed[*key])
                    .find(|text| text.is_string());
                self.result(&response["id"], printed.unwrap_or(&response["response"]), is_error);
            }
        }
        self.log.prompt(contents(parts, content));
    }

    fn reply(&mut self, message: &Value) {
        let parts = Self::parts_of(message);
        match parts {
            Value::Array(parts) => {
                for part in parts {
                    let called = &part["functionCall"];
                    match part["type"].as_str() {
                        Some("thinking") => self.parts.extend(thinking_part(&part["thinking"])),
                        Some("tool_use") => self.call(&part["id"], &part["name"], &part["input"]),
                        _ if called.is_object() => self.call(&called["id"], &called["name"], &called["args"]),
                        _ if part["thought"] == true => self.parts.extend(thinking_part(&part["text"])),
                        _ => self.parts.extend(content(part)),
                    }
                }
            }
            words => self.parts.extend(text_part(words)),
        }
        for call in list(&message["tool_calls"]) {
            self.call(&call["id"], &call["function"]["name"], &call["function"]["arguments"]);
        }
    }

    fn call(&mut self, id: &Value, name: &Value, input: &Value) {
        let parsed = input.as_str().and_then(|text| serde_json::from_str(text).ok());
        let call = self.log.call(id.as_str(), name.as_str(), parsed.as_ref().unwrap_or(input));
        self.parts.push(call);
    }

    fn result(&mut self, call: &Value, printed: &Value, is_error: bool) {
        self.flush();
        let content = match printed {
            Value::Object(_) => vec![text(printed.to_string())],
            printed => contents(printed, content),
        };
        let begins = content.first().and_then(Content::as_text).is_some_and(|text| text.starts_with(FAILED));
        let status = if is_error || begins { OutcomeStatus::Failed } else { OutcomeStatus::Completed };
        self.log.outcome(call.as_str(), status, outcome_content(content), None);
    }

    /// Completes the reply.
    fn flush(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        if !parts.is_empty() {
            self.log.reply(parts, &self.model, None, None);
        }
    }
}

/// Converts a text, an image or a document.
fn content(part: &Value) -> Option<Content> {
    let (source, data) = (&part["source"], &part["inlineData"]);
    if let Some(words) = text_part(&part["text"]) {
        return Some(words);
    }
    let url = part["image_url"].as_str().or_else(|| part["image_url"]["url"].as_str());
    match url {
        Some(url) => data_url_part(url, None),
        None if data.is_object() => file_part(data["mimeType"].as_str()?, data["data"].as_str()?, None),
        None => file_part(source["media_type"].as_str()?, source["data"].as_str()?, None),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use rusqlite::Connection;

    use super::super::stored;
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
        // What a compaction replaced is in a segment, and the new messages begin with its summary.
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
