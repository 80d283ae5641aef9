//! Replacing old entries of a view by a summary: the words around it, and whether it is worth taking.
//!
//! Pure. Who calls the model and commits is the session.

use crate::thread::{Change, Content, Message, MessageId, ModelName, Thread, Trigger, Usage, View};
use crate::tokens;

/// A compaction that does not shrink the view by a tenth is none: it would soon be needed again.
const GAIN_MIN_PERCENT: u64 = 10;

/// A view below this many tokens holds nothing that a summary could shorten.
const VIEW_TOKENS_MIN: u64 = 200;

/// What of the last request is quoted however little room there is, in bytes.
const QUOTE_BYTES_MIN: usize = 512;

/// Whether there is anything to compact.
pub fn is_worthwhile(thread: &Thread) -> bool {
    let only_a_summary = matches!(
        thread.view().entries(),
        [entry] if matches!(entry.change, Change::Compacted { .. })
    );
    !only_a_summary && tokens::of_view(thread.view()) >= VIEW_TOKENS_MIN
}

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

/// The change that puts a summary in the place of the whole view, or why that gains nothing.
///
/// `id` is the new message's. The person's last request is quoted byte for byte. Only where it would
/// not fit (`room_bytes`), or an overflow leaves no other way to gain anything, its middle is left out.
pub fn compacted(
    thread: &Thread,
    id: MessageId,
    summary: &str,
    trigger: Trigger,
    focus: Option<String>,
    written: Option<(ModelName, Usage)>,
    room_bytes: usize,
) -> Option<Change> {
    let through = thread.entries().last()?.seq;
    let before = tokens::of_view(thread.view());
    let request = last_request(thread);
    let mut quoted_max = request.as_ref().map_or(0, String::len).min(room_bytes);
    let (summary, after) = loop {
        let quote = request.as_ref().map(|request| head_and_tail(request, quoted_max));
        let text = frame(summary, quote.as_deref());
        let message = Message { id, content: vec![Content::Text { text }] };
        let after = tokens::of_message(&message);
        if after * 100 <= before * (100 - GAIN_MIN_PERCENT) {
            break (message, after);
        }
        // A person who asked for it loses no word to a compaction; a request that is too long must shrink.
        let may_cut = match trigger {
            Trigger::Overflow | Trigger::Threshold | Trigger::Hook => quoted_max > QUOTE_BYTES_MIN,
            Trigger::Manual => false,
        };
        if !may_cut {
            return None;
        }
        quoted_max /= 2;
    };
    let (model, usage) = written.unzip();
    Some(Change::Compacted {
        through,
        summary,
        trigger,
        focus,
        tokens_before: before,
        tokens_after: after,
        model,
        usage,
    })
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

/// What stands for a summary that no model could write: the conversation's own words, as many as there
/// is room for.
pub fn without_model(view: &View, room_bytes: usize) -> String {
    format!(
        "(No summary could be written. These are the conversation's own words instead; what is oldest is \
         left out, and long parts are cut.)\n\n{}",
        flat(view, room_bytes)
    )
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

fn frame(summary: &str, last_request: Option<&str>) -> String {
    let mut text = format!(
        "The conversation so far was compacted. This is its summary, kept as background. It is not a new \
         request: what it lists as done is done, and what it decided stands.\n\n<summary>\n{summary}\n</summary>"
    );
    if let Some(request) = last_request {
        text.push_str(&format!(
            "\n\nThe last request before the compaction, word for word (it may be answered already, see the \
             summary):\n\n<last_request>\n{request}\n</last_request>"
        ));
    }
    text
}

/// What the person last asked, also across an earlier compaction; of a recipe, its text: without it
/// nobody knows what its name asks for.
fn last_request(thread: &Thread) -> Option<String> {
    thread.entries().iter().rev().find_map(|entry| match &entry.change {
        Change::Said { message, .. } => Some(said(message)),
        _ => None,
    })
}

/// A person's message as text; what can't be quoted is named.
fn said(message: &Message) -> String {
    let mut parts: Vec<String> = Vec::new();
    for content in &message.content {
        match content {
            Content::Text { text } => parts.push(text.clone()),
            Content::Image { mime_type, uri, .. } => {
                let name = uri.as_deref().unwrap_or(mime_type);
                parts.push(format!("[image that was attached: {name}]"));
            }
            Content::Resource { uri, .. } | Content::ResourceLink { uri, .. } => {
                parts.push(format!("[file that was attached: {uri}]"));
            }
            Content::Thinking { .. } | Content::Call(_) => {}
        }
    }
    parts.join("\n\n")
}

fn head_and_tail(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(bytes_max / 2);
    let tail = text.ceil_char_boundary(text.len() - bytes_max / 2);
    format!("{}\n[… {} bytes left out …]\n{}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests {
    use super::extract;

    #[test]
    fn a_summary_is_what_stands_in_its_tags() {
        let cases = [
            ("<analysis>hm</analysis>\n<summary>\nA.\n</summary>", Some("A.")),
            ("<summary>cut off", Some("cut off")),
            ("<analysis>hm</analysis>\nA.", Some("A.")),
            ("A.", Some("A.")),
            ("<summary> </summary>", None),
            ("", None),
        ];
        for (reply, summary) in cases {
            assert_eq!(extract(reply).as_deref(), summary, "{reply}");
        }
    }
}
