//! The newest entries that left the view: calls, their results, and the agent's messages.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use super::Render;
use super::files::changes_a_file;
use super::history::{CallRecord, CallStatus, ConversationHistory};
use super::quote::{BoundedLines, clip, clip_line};
use crate::text::WordPlaces;
use epitome_thread::Content;

/// Maximum number of calls listed.
const CALLS_MAX: usize = 20;
/// Bytes of a call's input that are shown.
const INPUT_BYTES_MAX: usize = 200;

/// Number of newest results that are quoted, each in the same share of the room.
const RESULTS_MAX: usize = 3;

/// Bytes of an older result, and of all of them, that are searched for lines unlike the others.
const OLDER_BYTES_MAX: usize = 16 * 1024;
const ALL_OLDER_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of such a line, and of the input of its call.
const OLDER_LINE_BYTES_MAX: usize = 300;
const OLDER_INPUT_BYTES_MAX: usize = 80;

/// Bytes of the newest message, and of an older one.
const NEWEST_BYTES_MAX: usize = 2400;
const MESSAGE_BYTES_MAX: usize = 1200;
/// Minimum room in bytes for showing a message.
const ROOM_BYTES_MIN: usize = 80;

pub(super) fn calls<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let mut newest: Vec<String> = Vec::new();
    let gone = history.calls.iter().rev().filter(|call| call.has_left && !call.is_planning());
    for call in gone.take(CALLS_MAX) {
        let failed = match call.status {
            CallStatus::Failed => " (failed)",
            CallStatus::Refused => " (refused)",
            _ => "",
        };
        let input = clip_line(&call.input.to_string(), INPUT_BYTES_MAX);
        newest.push(format!("-{} {} {input}{failed}", history.place(" ", call.entry), call.name));
    }
    Box::new(move |bytes_max| BoundedLines::of(bytes_max, &newest).text_reversed())
}

/// The calls whose results left the view, newest first, each result once.
fn results_gone<'h, 'a>(history: &'h ConversationHistory<'a>) -> impl Iterator<Item = &'h CallRecord<'a>> {
    let mut entry = None;
    history
        .calls
        .iter()
        .rev()
        .filter(|call| call.has_left && !call.is_planning() && !call.text().trim().is_empty())
        // The result of a successful edit says nothing more than that.
        .filter(|call| !(changes_a_file(call) && call.status == CallStatus::Succeeded))
        // The calls of a script have one result, and the end of a command is also that of the call that read it.
        .filter(move |call| entry.replace(call.entry) != Some(call.entry))
}

pub(super) fn results<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let newest: Vec<(CallRecord, String)> = results_gone(history)
        .take(RESULTS_MAX)
        .map(|call| (call.clone(), history.place(" ", call.entry)))
        .collect();
    Box::new(move |bytes_max| {
        let mut lines = BoundedLines::within(bytes_max);
        for (call, place) in &newest {
            let head = format!("-{place} {}: ", call.name);
            let room = (bytes_max / RESULTS_MAX).saturating_sub(head.len() + 1);
            if room >= ROOM_BYTES_MIN {
                lines.push(format!("{head}{}", clip(call.text(), room)));
            }
        }
        lines.text_reversed()
    })
}

/// Of each older result the line with the most words that no other line has: what a document or a log says once, between lines
/// that are all alike.
pub(super) fn older_results<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let results: Vec<&CallRecord> = results_gone(history).collect();
    let (mut lines, mut seen, mut words) = (Vec::new(), HashSet::new(), WordPlaces::default());
    let mut bytes = 0;
    for (nth, call) in results.iter().enumerate() {
        let text = &call.text()[..call.text().floor_char_boundary(OLDER_BYTES_MAX)];
        bytes += text.len();
        if bytes > ALL_OLDER_BYTES_MAX {
            break;
        }
        for line in text.lines().map(str::trim) {
            // A file that was read again has other line numbers.
            if !seen.insert(line.trim_start_matches(|c: char| !c.is_alphabetic())) {
                continue;
            }
            let line = &line[..line.floor_char_boundary(OLDER_LINE_BYTES_MAX)];
            words.add(lines.len(), line);
            lines.push((nth, line));
        }
    }
    let mut best: BTreeMap<usize, (usize, &str)> = BTreeMap::new();
    // The newest results are quoted apart.
    for (at, (nth, line)) in lines.into_iter().enumerate().filter(|(_, (nth, _))| *nth >= RESULTS_MAX) {
        let difference = words.difference(at, line);
        if difference > best.get(&nth).map_or(0, |(most, _)| *most) {
            best.insert(nth, (difference, line));
        }
    }
    let quoted = best.into_iter().map(|(nth, (difference, line))| {
        let call = results[nth];
        let input = call.path().map(str::to_owned).or_else(|| call.command()).unwrap_or_default();
        let input = clip_line(&input, OLDER_INPUT_BYTES_MAX);
        let space = if input.is_empty() { "" } else { " " };
        let head = format!("-{} {}{space}{input}", history.place(" ", call.entry), call.name);
        (difference, nth, format!("{head}: {line}"))
    });
    let mut ranked: Vec<(usize, usize, String)> = quoted.collect();
    ranked.sort_by_key(|(difference, nth, _)| (Reverse(*difference), *nth));
    Box::new(move |bytes_max| {
        let mut left = bytes_max;
        let is_shown = |line: &&(usize, usize, String)| {
            let rest = left.checked_sub(line.2.len() + 1);
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        let mut shown: Vec<_> = ranked.iter().filter(is_shown).collect();
        // The oldest result first.
        shown.sort_by_key(|(_, nth, _)| Reverse(*nth));
        shown.into_iter().map(|(.., line)| line.as_str()).collect::<Vec<_>>().join("\n")
    })
}

pub(super) fn words<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let (replies, reader) = (history.replies.clone(), history.reader);
    Box::new(move |bytes_max| {
        let mut lines = BoundedLines::within(bytes_max);
        for (at, (entry, message)) in replies.iter().rev().enumerate() {
            if lines.left() < ROOM_BYTES_MIN {
                break;
            }
            let head = reader.place(entry).map_or("- ".to_owned(), |place| format!("{place}: "));
            let most = if at == 0 { NEWEST_BYTES_MAX } else { MESSAGE_BYTES_MAX };
            let room = most.min(lines.left().saturating_sub(head.len() + 1));
            let texts = message.content.iter().filter_map(Content::as_text).map(str::trim);
            let text = texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n");
            lines.push(format!("{head}{}", clip(&text, room)));
        }
        lines.text_reversed()
    })
}
