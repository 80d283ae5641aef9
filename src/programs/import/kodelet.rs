//! Conversations of kodelet, which stores each in one row of its SQLite database `storage.db`. The messages in it have the
//! form of the provider that they were sent to: Anthropic's messages, Gemini's contents, or OpenAI's chat messages or
//! items. A row is converted to a JSON object with the key `kodelet` when it is read.
//!
//! A compaction replaces the messages; those before it are kept in segments, each with the summary that replaced it.

use serde_json::{Value, json};

use super::builder::Builder;
use super::{ImportContext, list, messages, model_name, moment, text_of};
use epitome_thread::Trigger;
use epitome_transfer::{ENCRYPTED, ImportFile};

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

pub(super) fn read(session: &Value, _: ImportFile, context: &ImportContext) -> Builder {
    let about = &session["kodelet"];
    let started = about["created"].as_str().and_then(time);
    let mut log = Builder::new(text_of(&about["cwd"]), started, context);
    let model = session["metadata"]["model"].as_str();
    log.model(model_name(text_of(&about["provider"]), "kodelet", model));
    for segment in list(&session["history"]["segments"]) {
        list(&segment["rawMessages"]).for_each(|message| messages::add(&mut log, message));
        let summary = text_of(&segment["marker"]["summary"]).unwrap_or(ENCRYPTED);
        log.summarized(None, summary, Trigger::Threshold, 0);
    }
    // The summary precedes this message.
    let first = session["history"]["activeDisplayStart"].as_u64().unwrap_or_default();
    let active = list(&session["messages"]).skip(usize::try_from(first).unwrap_or(usize::MAX));
    active.for_each(|message| messages::add(&mut log, message));
    log.title(about["title"].as_str().unwrap_or_default());
    log.foreign_id(about["id"].as_str().unwrap_or_default());
    log
}
