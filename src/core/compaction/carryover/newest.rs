//! The newest entries that left the view: calls, their results, and the agent's messages.

use super::Render;
use super::files::changes_a_file;
use super::history::{CallRecord, CallStatus, ConversationHistory};
use super::quote::{BoundedLines, clip, clip_line};
use epitome_thread::Content;

/// Maximum number of calls listed.
const CALLS_MAX: usize = 20;
/// Bytes of a call's input that are shown.
const INPUT_BYTES_MAX: usize = 200;

/// Shares of the room for the newest results, in percent, newest first.
const RESULT_PERCENT: [usize; 3] = [60, 20, 20];

/// The largest share of the room for the newest message, in percent.
const NEWEST_PERCENT: usize = 60;
/// Bytes of the message before it. Each older message may take 7 % less, down to the minimum.
const MESSAGE_BYTES: usize = 1200;
const MESSAGE_BYTES_MIN: usize = 200;
/// Total size in bytes of the messages that are considered; there is never room for more.
const MESSAGES_BYTES_MAX: usize = 256 * 1024;
/// Minimum room in bytes for showing a message.
const ROOM_BYTES_MIN: usize = 80;

pub(super) fn calls<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let mut newest: Vec<String> = Vec::new();
    let gone = history.calls().rev().filter(|call| call.has_left && !call.is_planning());
    for call in gone.take(CALLS_MAX) {
        let failed = if call.result() == CallStatus::Failed { " (failed)" } else { "" };
        let input = clip_line(&call.input.to_string(), INPUT_BYTES_MAX);
        newest.push(format!("-{} {} {input}{failed}", history.place(" ", call.entry), call.name));
    }
    Box::new(move |bytes_max| {
        let mut lines = BoundedLines::within(bytes_max);
        for line in &newest {
            if !lines.push(line.clone()) {
                break;
            }
        }
        lines.text_reversed()
    })
}

pub(super) fn results<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let mut entry = None;
    let newest: Vec<(CallRecord, String)> = history
        .calls()
        .rev()
        .filter(|call| call.has_left && !call.is_planning() && !call.text().trim().is_empty())
        // The result of a successful edit says nothing more than that.
        .filter(|call| !(changes_a_file(call) && call.result() == CallStatus::Succeeded))
        // The calls of a script have one result, and the end of a command is also that of the call that read it.
        .filter(|call| entry.replace(call.entry) != Some(call.entry))
        .take(RESULT_PERCENT.len())
        .map(|call| (call.clone(), history.place(" ", call.entry)))
        .collect();
    Box::new(move |bytes_max| {
        let mut lines = BoundedLines::within(bytes_max);
        for ((call, place), percent) in newest.iter().zip(RESULT_PERCENT) {
            let head = format!("-{place} {}: ", call.name);
            let room = (bytes_max * percent / 100).saturating_sub(head.len() + 1);
            if room >= ROOM_BYTES_MIN {
                lines.push(format!("{head}{}", clip(call.text(), room)));
            }
        }
        lines.text_reversed()
    })
}

pub(super) fn words<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let mut said: Vec<(String, String)> = Vec::new();
    let mut bytes = 0;
    for (entry, message) in history.replies().rev() {
        if bytes > MESSAGES_BYTES_MAX {
            break;
        }
        let texts = message.content.iter().filter_map(Content::as_text).map(str::trim);
        let text = texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n");
        bytes += text.len();
        let place = history.place("", *entry);
        said.push((if place.is_empty() { "- ".to_owned() } else { place + ": " }, text));
    }
    Box::new(move |bytes_max| {
        let mut lines = BoundedLines::within(bytes_max);
        let mut older = MESSAGE_BYTES;
        for (head, text) in &said {
            if lines.left() < ROOM_BYTES_MIN {
                break;
            }
            let most = if lines.is_empty() { (bytes_max * NEWEST_PERCENT / 100).max(older) } else { older };
            older = (older * 93 / 100).max(MESSAGE_BYTES_MIN);
            let room = most.min(lines.left().saturating_sub(head.len() + 1));
            lines.push(format!("{head}{}", clip(text, room)));
        }
        lines.text_reversed()
    })
}
