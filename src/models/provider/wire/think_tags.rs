//! Thinking that a model writes between tags at the beginning of its reply, because its server does not separate it from
//! the answer. Pure.

use crate::ProviderEvent;

/// The tags of models, in the text of their replies, in any case.
const TAGS: [(&str, &str); 7] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[think]", "[/think]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
];

/// Maximum bytes of white space that are held back because a tag may follow.
const HELD_BYTES_MAX: usize = 256;

/// Turns text between tags into thinking.
#[derive(Debug)]
pub(super) enum ThinkTags {
    /// Nothing of the reply has arrived but this, which may be the beginning of a tag.
    Opening(String),
    /// Text until this tag is thinking: what has not been passed on, because it may be the beginning of the tag, and
    /// whether anything has.
    Within(&'static str, String, bool),
    /// The white space after the closing tag is not part of the answer.
    Closed,
    /// Everything is what it is.
    Passed,
}

impl ThinkTags {
    pub(super) fn split(&mut self, events: Vec<ProviderEvent>) -> Vec<ProviderEvent> {
        let mut out = Vec::with_capacity(events.len());
        for event in events {
            match event {
                _ if matches!(self, ThinkTags::Passed) => out.push(event),
                ProviderEvent::Text(text) => self.text(&text, &mut out),
                ProviderEvent::Usage(_) | ProviderEvent::TextEnded => out.push(event),
                event => {
                    match std::mem::replace(self, ThinkTags::Passed) {
                        ThinkTags::Opening(held) => push(&mut out, ProviderEvent::Text, &held),
                        ThinkTags::Within(_, held, _) => push(&mut out, ProviderEvent::Thinking, &held),
                        ThinkTags::Closed | ThinkTags::Passed => {}
                    }
                    out.push(event);
                }
            }
        }
        out
    }

    fn text(&mut self, text: &str, out: &mut Vec<ProviderEvent>) {
        match self {
            ThinkTags::Opening(held) => {
                held.push_str(text);
                // Has the same positions.
                let lower = held.to_ascii_lowercase();
                let begun = lower.trim_start();
                if let Some((open, close)) = TAGS.into_iter().find(|(open, _)| begun.starts_with(open)) {
                    let rest = held.trim_start()[open.len()..].to_owned();
                    *self = ThinkTags::Within(close, String::new(), false);
                    self.text(&rest, out);
                } else if held.len() > HELD_BYTES_MAX || !TAGS.iter().any(|(open, _)| open.starts_with(begun))
                {
                    push(out, ProviderEvent::Text, held);
                    *self = ThinkTags::Passed;
                }
            }
            ThinkTags::Within(close, held, is_begun) => {
                held.push_str(text);
                // White space next to the tags is not part of the thinking.
                if !*is_begun {
                    held.drain(..held.len() - held.trim_start().len());
                }
                let (close, lower) = (*close, held.to_ascii_lowercase());
                match lower.find(close) {
                    Some(at) => {
                        push(out, ProviderEvent::Thinking, held[..at].trim_end());
                        let rest = held[at + close.len()..].to_owned();
                        *self = ThinkTags::Closed;
                        self.text(&rest, out);
                    }
                    None => {
                        let may_close = |at: &usize| close.starts_with(&lower[*at..]);
                        let from =
                            held.char_indices().map(|(at, _)| at).find(may_close).unwrap_or(held.len());
                        let from = if from > HELD_BYTES_MAX { from } else { held[..from].trim_end().len() };
                        *is_begun |= from > 0;
                        push(out, ProviderEvent::Thinking, &held[..from]);
                        held.drain(..from);
                    }
                }
            }
            ThinkTags::Closed => {
                let rest = text.trim_start();
                if !rest.is_empty() {
                    push(out, ProviderEvent::Text, rest);
                    *self = ThinkTags::Passed;
                }
            }
            ThinkTags::Passed => push(out, ProviderEvent::Text, text),
        }
    }
}

fn push(out: &mut Vec<ProviderEvent>, event: fn(String) -> ProviderEvent, text: &str) {
    if !text.is_empty() {
        out.push(event(text.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReplyStop;

    /// Reads a reply in pieces of this many characters: its thinking, and its text.
    fn read(reply: &str, size: usize) -> (String, String) {
        let mut tags = ThinkTags::Opening(String::new());
        let chars: Vec<char> = reply.chars().collect();
        let pieces = chars.chunks(size).map(|piece| ProviderEvent::Text(piece.iter().collect()));
        let stopped = [ProviderEvent::Stopped(ReplyStop::Finished)];
        let (mut thinking, mut text) = (String::new(), String::new());
        for event in pieces.chain(stopped) {
            for event in tags.split(vec![event]) {
                match event {
                    ProviderEvent::Text(piece) => text.push_str(&piece),
                    ProviderEvent::Thinking(piece) => thinking.push_str(&piece),
                    _ => {}
                }
            }
        }
        (thinking, text)
    }

    /// The thoughts of a local model were shown and kept as its answer.
    #[test]
    fn tags_that_open_a_reply_contain_thinking() {
        for (reply, thinking, text) in [
            ("<think>secret plan</think>\n\nHello", "secret plan", "Hello"),
            ("\n<think>\na < b </ c\n</think>Hi <think>x</think>", "a < b </ c", "Hi <think>x</think>"),
            ("[THINK]é[/THINK]é", "é", "é"),
            ("<THINK>Plan</Think>Hi", "Plan", "Hi"),
            ("<think></think>Hi", "", "Hi"),
            ("<think>never closed", "never closed", ""),
            ("<thin", "", "<thin"),
            ("  The tag <think>", "", "  The tag <think>"),
            ("", "", ""),
        ] {
            for size in 1..=reply.len().max(1) {
                assert_eq!(read(reply, size), (thinking.to_owned(), text.to_owned()), "{reply} by {size}");
            }
        }
    }
}
