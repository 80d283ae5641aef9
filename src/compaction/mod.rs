//! Replacing old entries of a view by a summary: the words around it, and whether it is worth taking.
//!
//! Pure. Who calls the model and commits is the session.

use crate::thread::{Change, Content, Message, MessageId, ModelName, Origin, Seq, Thread, Trigger, Usage};
use crate::tokens;

/// A compaction that does not shrink the view by a tenth is none: it would soon be needed again.
const GAIN_MIN_PERCENT: u64 = 10;

/// A view below this many tokens holds nothing that a summary could shorten.
const VIEW_TOKENS_MIN: u64 = 200;

/// The most of the last request that is quoted, in bytes; the middle of a longer one is left out.
const QUOTE_BYTES_MAX: usize = 32 * 1024;

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
/// `id` is the new message's. The person's last request is quoted byte for byte.
pub fn compacted(
    thread: &Thread,
    id: MessageId,
    summary: &str,
    trigger: Trigger,
    focus: Option<String>,
    written: Option<(ModelName, Usage)>,
) -> Option<Change> {
    let through = thread.entries().last()?.seq;
    let text = frame(summary, last_request(thread).as_deref());
    let summary = Message { id, content: vec![Content::Text { text }] };
    let before = tokens::of_view(thread.view());
    let after = tokens::of_message(&summary);
    let (model, usage) = written.unzip();
    let shrinks = after * 100 <= before * (100 - GAIN_MIN_PERCENT);
    shrinks.then(|| Change::Compacted {
        through: Seq(through.0),
        summary,
        trigger,
        focus,
        tokens_before: before,
        tokens_after: after,
        model,
        usage,
    })
}

/// The view as plain text, for a model that can't take it as messages; oldest parts are left out
/// until it fits `bytes_max`.
pub fn flat(thread: &Thread, bytes_max: usize) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut bytes = 0;
    for entry in thread.view().entries().iter().rev() {
        let part = flat_entry(&entry.change);
        // One long outcome must not push out all that is older.
        let part = head_and_tail(&part, bytes_max / 4);
        bytes += part.len() + 2;
        if bytes > bytes_max {
            parts.push("[earlier parts left out]".to_owned());
            break;
        }
        parts.push(part);
    }
    parts.reverse();
    parts.join("\n\n")
}

fn flat_entry(change: &Change) -> String {
    match change {
        Change::Said { message, .. } => format!("USER: {}", message.text()),
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

/// What the person last asked, also across an earlier compaction.
fn last_request(thread: &Thread) -> Option<String> {
    thread.entries().iter().rev().find_map(|entry| match &entry.change {
        Change::Said { message, origin: Origin::Person | Origin::Queue { .. } } => {
            Some(head_and_tail(&message.text(), QUOTE_BYTES_MAX))
        }
        Change::Said { origin: Origin::Recipe { typed, .. }, .. } => Some(typed.clone()),
        _ => None,
    })
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
