//! A conversation as text for a model, and the summary in what it answers. Pure.

use crate::thread::{Change, Content, Message, View};

/// The summary in a model's reply: what stands between `<summary>` tags, else the reply without
/// `<analysis>`. `None` if nothing is left.
pub fn extract(reply: &str) -> Option<String> {
    let body = match (reply.find("<summary>"), reply.rfind("</summary>")) {
        (Some(open), Some(close)) if open < close => reply[open + "<summary>".len()..close].to_owned(),
        (Some(open), _) => reply[open + "<summary>".len()..].to_owned(),
        (None, _) => without_analysis(reply),
    };
    let body = body.trim();
    (!body.is_empty()).then(|| body.to_owned())
}

/// The view as plain text, for a model that can't take it as messages: an earlier summary, because all
/// that is older is nowhere else, and then the newest parts that fit `bytes_max`.
pub fn flat(view: &View, bytes_max: usize) -> String {
    let (earlier, entries) = match view.entries() {
        [first, rest @ ..] if matches!(first.change, Change::Compacted { .. }) => (Some(first), rest),
        entries => (None, entries),
    };
    let earlier = earlier.map(|entry| head_and_tail(&flat_entry(&entry.change), bytes_max / 3));
    let mut bytes = earlier.as_ref().map_or(0, String::len);
    let mut parts: Vec<String> = Vec::new();
    for entry in entries.iter().rev() {
        // One long outcome must not push out all that is older.
        let part = head_and_tail(&flat_entry(&entry.change), bytes_max / 4);
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

/// The view as plain text in parts of at most so many bytes, oldest first, each message cut to so many characters.
pub fn pieces(view: &View, _message_chars: usize, bytes_max: usize) -> Vec<String> {
    vec![flat(view, bytes_max)]
}

fn flat_entry(change: &Change) -> String {
    match change {
        Change::Said { message, .. } => format!("USER: {}", said(message)),
        Change::Compacted { summary, .. } => format!("EARLIER SUMMARY: {}", summary.text()),
        Change::Replied { message, .. } => {
            let mut text = format!("AGENT: {}", message.text());
            for call in message.calls() {
                text.push_str(&format!("\nCALL {} {}", call.name, call.input));
            }
            text
        }
        Change::ToolFinished { outcome } => format!("RESULT: {}", outcome.model_text()),
        // Nothing else is in a view.
        _ => String::new(),
    }
}

fn without_analysis(reply: &str) -> String {
    match (reply.find("<analysis>"), reply.rfind("</analysis>")) {
        (Some(open), Some(close)) if open < close => {
            format!("{}{}", &reply[..open], &reply[close + "</analysis>".len()..])
        }
        _ => reply.to_owned(),
    }
}

/// A person's message as text; what can't be quoted is named.
pub(super) fn said(message: &Message) -> String {
    let mut parts: Vec<String> = Vec::new();
    for content in &message.content {
        match content {
            Content::Text { text } => parts.push(text.clone()),
            Content::Image { mime_type, uri, .. } => {
                let name = uri.as_deref().unwrap_or(mime_type);
                parts.push(format!("[image that was attached: {name}]"));
            }
            Content::Document { mime_type, name, .. } => {
                let name = name.as_deref().unwrap_or(mime_type);
                parts.push(format!("[document that was attached: {name}]"));
            }
            Content::Resource { uri, .. } | Content::ResourceLink { uri, .. } => {
                parts.push(format!("[file that was attached: {uri}]"));
            }
            Content::Thinking { .. } | Content::Call(_) => {}
        }
    }
    parts.join("\n\n")
}

pub(super) fn head_and_tail(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(bytes_max / 2);
    let tail = text.ceil_char_boundary(text.len() - bytes_max / 2);
    format!("{}\n[… {} bytes left out …]\n{}", &text[..head], tail - head, &text[tail..])
}
