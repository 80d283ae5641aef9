//! Conversations of kodelet, which stores each in one row of its SQLite database `storage.db`. The messages in it have the
//! form of the provider that they were sent to: Anthropic's messages, Gemini's contents, or OpenAI's chat messages or
//! items. A row is converted to a JSON object with the key `kodelet` when it is read.
//!
//! A compaction replaces the messages; those before it are kept in segments, each with the summary that replaced it.

use serde_json::{Value, json};

use super::builder::Builder;
use super::messages::MessagesReader;
use super::{ImportContext, document, list, model_name, moment, text_of};
use epitome_thread::Trigger;
use epitome_thread::problem::Problem;
use epitome_transfer::{ENCRYPTED, ImportDraft, ImportFile, ImportSource};

/// Parses a time as Go writes it: `2026-01-02 15:04:05.99 +0100 CET`, or in RFC 3339.
pub(super) fn time(text: &str) -> Option<u64> {
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
    let log = Builder::new(text_of(&about["cwd"]), started, context);
    let mut reader = MessagesReader::new(log, model_name(provider, "kodelet", model));
    let mut messages: &[Value] = session["messages"].as_array().map_or(&[], Vec::as_slice);
    for segment in list(&session["history"]["segments"]) {
        reader.messages(segment["rawMessages"].as_array().map_or(&[], Vec::as_slice));
        let summary = text_of(&segment["marker"]["summary"]).unwrap_or(ENCRYPTED);
        reader.log.summarized(None, summary, Trigger::Threshold, 0);
    }
    if !session["history"].is_null() {
        // What precedes this message is the summary.
        let first = session["history"]["activeDisplayStart"].as_u64().unwrap_or_default();
        messages = messages.get(usize::try_from(first).unwrap_or(usize::MAX)..).unwrap_or_default();
    }
    reader.messages(messages);
    reader.log.title(about["title"].as_str().unwrap_or_default());
    reader.log.foreign_id(about["id"].as_str().unwrap_or_default());
    reader.log.finish(ImportSource::Kodelet, file, None)
}
