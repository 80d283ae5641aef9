//! Renders a conversation as text for a model, and extracts the summary from its reply. Pure.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use super::calls::{RECALL, tools};
use epitome_thread::{Change, Content, Entry, View};

/// Minimum size of a piece in bytes. A smaller one would contain nothing worth summarizing.
const PIECE_BYTES_MIN: usize = 1_024;

/// The last line of a summary that the model could not finish.
pub const CUT_OFF: &str = "[The summary was cut off here: it grew too long.]";

/// Extracts the summary from a model's reply without `<analysis>`: the text between `<summary>` tags or, without
/// them, all of it. `None` if nothing is left.
pub fn extract(reply: &str) -> Option<String> {
    let reply = without_analysis(reply);
    let body = match tagged(&reply) {
        Some(body) => body,
        None => reply.split_once("<summary>").map_or(reply.as_str(), |(_, begun)| begun),
    };
    let body = body.trim();
    (!body.is_empty()).then(|| body.to_owned())
}

/// Renders the view as plain text of at most `bytes_max`, for a model that cannot take it as messages: an earlier
/// summary, because it is all that is left of older entries, and the newest entries that fit.
pub fn flat(view: &View, bytes_max: usize) -> String {
    let tools = tools(view.entries());
    let (earlier, entries) = match view.entries() {
        [first, rest @ ..] if matches!(first.change, Change::Compacted { .. }) => (Some(first), rest),
        entries => (None, entries),
    };
    let earlier = earlier.map(|entry| head_and_tail(&flat_entry(entry, &tools), bytes_max / 3));
    let mut bytes = earlier.as_ref().map_or(0, String::len);
    let mut parts: Vec<String> = Vec::new();
    for entry in entries.iter().rev() {
        // A single long outcome must not displace everything older.
        let part = head_and_tail(&flat_entry(entry, &tools), bytes_max / 4);
        bytes += part.len() + 2;
        if bytes > bytes_max {
            parts.push("[earlier parts left out]".to_owned());
            break;
        }
        parts.push(part);
    }
    parts.extend(earlier);
    parts.reverse();
    parts.join("\n\n")
}

/// Renders the view as plain text in pieces of at most `bytes_max` (at least 1,024), oldest first, for a model whose
/// window is too small for all of it. Messages are cut to `message_chars`, except for the user's messages and an
/// earlier summary, which are always complete.
pub fn pieces(view: &View, message_chars: usize, bytes_max: usize) -> Vec<String> {
    let bytes_max = bytes_max.max(PIECE_BYTES_MIN);
    let tools = tools(view.entries());
    let mut pieces: Vec<String> = Vec::new();
    for entry in view.entries() {
        let mut part = flat_entry(entry, &tools);
        let is_whole = matches!(entry.change, Change::Said { .. } | Change::Compacted { .. });
        if !is_whole && let Some((end, _)) = part.char_indices().nth(message_chars) {
            let left_out = part.len() - end;
            part.truncate(end);
            part.push_str(&format!("\n[… {left_out} bytes left out …]"));
        }
        let mut rest = part.as_str();
        while !rest.is_empty() {
            let (taken, behind) = rest.split_at(rest.floor_char_boundary(bytes_max));
            match pieces.last_mut() {
                Some(piece) if piece.len() + 2 + taken.len() <= bytes_max => {
                    piece.push_str("\n\n");
                    piece.push_str(taken);
                }
                _ => pieces.push(taken.to_owned()),
            }
            rest = behind;
        }
    }
    pieces
}

pub(super) fn flat_entry(entry: &Entry, tools: &HashMap<&str, &str>) -> String {
    match &entry.change {
        Change::Said { message, .. } => format!("USER: {}", said(&message.content)),
        Change::Compacted { summary, .. } => format!("EARLIER SUMMARY: {}", summary.text()),
        Change::Replied { message, .. } => {
            let mut text = format!("AGENT: {}", message.text());
            for call in message.calls() {
                text.push_str(&format!("\nCALL {} {}", call.name, call.input));
            }
            text
        }
        // Recalled text is in the log, and an earlier summary has already covered it.
        Change::ToolFinished { outcome } if tools.get(outcome.call.0.as_str()) == Some(&RECALL) => {
            format!("RESULT: [read again from the log; entry {} has it]", entry.seq)
        }
        Change::ToolFinished { outcome } => format!("RESULT: {}", outcome.model_text()),
        // A view contains nothing else.
        _ => String::new(),
    }
}

/// Whether a reply has a summary between `<summary>` tags.
pub fn is_tagged(reply: &str) -> bool {
    tagged(&without_analysis(reply)).is_some()
}

fn tagged(reply: &str) -> Option<&str> {
    let (_, begun) = reply.split_once("<summary>")?;
    Some(begun.rsplit_once("</summary>")?.0)
}

/// The reply without the analysis that precedes a summary. It may mention the tags of the summary.
fn without_analysis(reply: &str) -> String {
    let Some((before, begun)) = reply.split_once("<analysis>") else { return reply.to_owned() };
    match begun.split_once("</analysis>") {
        // A summary may mention the tags of the analysis.
        _ if before.contains("<summary>") => reply.to_owned(),
        Some((_, behind)) => format!("{before}{behind}"),
        None if begun.contains("<summary>") => reply.to_owned(),
        None => before.to_owned(),
    }
}

/// A user's message as text; parts that cannot be quoted are named.
pub(super) fn said(content: &[Content]) -> String {
    said_with(content, |_| false)
}

/// Like `said`, with another wording for attachments for which `comes_along` is true: they follow the text.
pub(super) fn said_with(content: &[Content], comes_along: impl Fn(usize) -> bool) -> String {
    let mut parts: Vec<String> = Vec::new();
    for (at, content) in content.iter().enumerate() {
        let where_it_is = if comes_along(at) { "that is attached" } else { "that was attached" };
        match content {
            Content::Text { text } => parts.push(text.clone()),
            Content::Image { mime_type, uri, .. } => {
                let name = uri.as_deref().unwrap_or(mime_type);
                parts.push(format!("[image {where_it_is}: {name}]"));
            }
            Content::Document { mime_type, name, .. } => {
                let name = name.as_deref().unwrap_or(mime_type);
                parts.push(format!("[document {where_it_is}: {name}]"));
            }
            Content::Resource { uri, .. } | Content::ResourceLink { uri, .. } => {
                parts.push(format!("[file {where_it_is}: {uri}]"));
            }
            Content::Thinking { .. } | Content::Call(_) | Content::Search(_) => {}
        }
    }
    parts.join("\n\n")
}

/// Shorter words of the user are not looked for in other texts: a "yes" is a part of many sentences. In bytes.
pub(super) const QUOTE_BYTES_MIN: usize = 12;

/// Begins the line that marks where a text lacks its middle.
pub(super) const LEFT_OUT: &str = "\n[… ";

pub(super) fn head_and_tail(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max { text.to_owned() } else { shortened(text, bytes_max, "") }
}

/// The head and tail of a longer text, with the number of omitted bytes and a hint between them.
pub(super) fn shortened(text: &str, bytes_max: usize, hint: &str) -> String {
    let head = text.floor_char_boundary(bytes_max / 2);
    let tail = text.ceil_char_boundary(text.len() - bytes_max / 2);
    format!("{}{LEFT_OUT}{} bytes left out{hint} …]\n{}", &text[..head], tail - head, &text[tail..])
}

/// The head and tail of a longer text, and the lines between them that are least like all others, in `chars_max` characters
/// without the marks. A sentence of the user in a pasted log has words that no other line has, in any language.
pub(super) fn most_telling_lines(text: &str, chars_max: usize, hint: &str) -> String {
    let ends = |chars: usize| {
        let head = text.char_indices().nth(chars / 2).map_or(text.len(), |(at, _)| at);
        let tail = text.char_indices().nth_back((chars / 2).saturating_sub(1)).map_or(head, |(at, _)| at);
        (head, tail)
    };
    let (head, tail) = ends(chars_max - chars_max / TELLING_PART);
    let (lines, taken) = telling_lines(text, head, tail, chars_max / TELLING_PART);
    let (head, tail) = ends(chars_max - taken);
    let mut middle = String::new();
    let mut end = head;
    for line in lines.into_iter().filter(|line| line.start >= head && line.end <= tail) {
        middle.push_str(if line.start > end && !middle.is_empty() { "[…]\n" } else { "" });
        middle.push_str(&text[line.clone()]);
        end = line.end;
    }
    middle.push_str(if tail > end && !middle.is_empty() { "[…]\n" } else { "" });
    let left_out = tail - head - middle.replace("[…]\n", "").len();
    format!("{}{LEFT_OUT}{left_out} bytes left out{hint} …]\n{middle}{}", &text[..head], &text[tail..])
}

/// Divisor: the part of a shortened text that lines from its middle may take. 20 instructions, five in each of four sessions, were
/// revoked in the middle of a log of 14 kB: all revocations stay in windows of 200,000, 64,000 and 32,000 tokens. Without these
/// lines, it is 2 in the largest window and none in the others.
const TELLING_PART: usize = 3;

/// The complete lines between these places with the most words that no other line of the text has, compared with their other
/// words, in their order, and how many characters they have.
fn telling_lines(text: &str, from: usize, to: usize, chars_max: usize) -> (Vec<Range<usize>>, usize) {
    let mut words = WordPlaces::default();
    let mut starts = Vec::new();
    let mut start = 0;
    for (at, line) in text.split_inclusive('\n').enumerate() {
        words.add(at, line);
        starts.push(start..start + line.len());
        start += line.len();
    }
    let inside = starts.into_iter().enumerate().filter(|(_, line)| line.start >= from && line.end <= to);
    let mut ranked: Vec<(usize, Range<usize>)> =
        inside.map(|(at, line)| (words.difference(at, &text[line.clone()]), line)).collect();
    ranked.retain(|(score, _)| *score > 0);
    ranked.sort_by_key(|(score, line)| (Reverse(*score), line.start));
    let mut left = chars_max;
    ranked.retain(|(_, line)| match left.checked_sub(text[line.clone()].chars().count()) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    });
    ranked.sort_by_key(|(_, line)| line.start);
    (ranked.into_iter().map(|(_, line)| line).collect(), chars_max - left)
}

/// The words of some lines, each with the only line that has it.
#[derive(Default)]
pub(super) struct WordPlaces<'a>(HashMap<&'a str, Option<usize>>);

impl<'a> WordPlaces<'a> {
    pub fn add(&mut self, at: usize, line: &'a str) {
        for word in words_of(line) {
            let only = self.0.entry(word).or_insert(Some(at));
            *only = only.filter(|only| *only == at);
        }
    }

    /// How much an added line differs from the others: by the words that no other line has, compared with all its words.
    pub fn difference(&self, at: usize, line: &str) -> usize {
        let own: usize = words_of(line).filter(|word| self.0.get(word) == Some(&Some(at))).map(weight).sum();
        let all: usize = words_of(line).map(weight).sum();
        own * own / all.max(1)
    }
}

fn words_of(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// How many words a word counts as: none if it has digits, as dates and ids have, and many in a script without spaces.
fn weight(word: &str) -> usize {
    match word.is_ascii() {
        true => usize::from(!word.bytes().any(|byte| byte.is_ascii_digit())),
        false => word.chars().count().div_ceil(4),
    }
}
