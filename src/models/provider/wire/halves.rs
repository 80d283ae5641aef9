//! Joins characters whose halves a service sends in two events: it streams UTF-16 and cuts between them. Pure.

use serde_json::Value;

use crate::ProviderEvent;
use epitome_thread::halves::MARKED;

/// The halves of a reply that wait for the other one, each with the text that it ends.
#[derive(Debug, Default)]
pub(super) struct SplitCharacters {
    pending: Vec<(TextOf, char)>,
    /// Whether the service has sent a half; before that, nothing is changed.
    is_used: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextOf {
    Reply,
    Thinking,
    Call(u32),
}

impl SplitCharacters {
    /// Records that an event has halves, which are marked.
    pub(super) fn found(&mut self) {
        self.is_used = true;
    }

    /// Joins the halves in these events with each other and with those before.
    pub(super) fn join(&mut self, events: Vec<ProviderEvent>) -> Vec<ProviderEvent> {
        if !self.is_used {
            return events;
        }
        let mut joined = Vec::with_capacity(events.len());
        for mut event in events {
            let of = match &event {
                ProviderEvent::Text(_) => Some(TextOf::Reply),
                ProviderEvent::Thinking(_) => Some(TextOf::Thinking),
                ProviderEvent::CallArguments { index, .. } => Some(TextOf::Call(*index)),
                _ => None,
            };
            let is_end = matches!(event, ProviderEvent::Stopped(_));
            // Texts of the reply follow each other, arguments of calls may alternate.
            let ends =
                |pending: &TextOf| is_end || Some(*pending) != of && !matches!(pending, TextOf::Call(_));
            for (of, _) in self.pending.extract_if(.., |(pending, _)| ends(pending)) {
                joined.push(of.event(char::REPLACEMENT_CHARACTER.to_string()));
            }
            match &mut event {
                ProviderEvent::Text(text)
                | ProviderEvent::Thinking(text)
                | ProviderEvent::CallArguments { json: text, .. } => {
                    let of = of.expect("it is a text");
                    let before = self.pending.extract_if(.., |(pending, _)| *pending == of).next();
                    text.insert_str(0, &before.map(|(_, half)| half.to_string()).unwrap_or_default());
                    if let Some(half) = text.chars().next_back().filter(|c| is_high(*c)) {
                        text.truncate(text.len() - half.len_utf8());
                        self.pending.push((of, half));
                    }
                    join_in(text);
                    if text.is_empty() {
                        continue;
                    }
                }
                ProviderEvent::ThinkingSealed { data } => join_in_all(data),
                ProviderEvent::Searched { blocks, .. } => blocks.iter_mut().for_each(join_in_all),
                // Names and reasons are not streamed in pieces.
                ProviderEvent::TextEnded
                | ProviderEvent::CallStarted { .. }
                | ProviderEvent::Stopped(_)
                | ProviderEvent::Usage(_) => {}
            }
            joined.push(event);
        }
        joined
    }
}

impl TextOf {
    fn event(self, text: String) -> ProviderEvent {
        match self {
            TextOf::Reply => ProviderEvent::Text(text),
            TextOf::Thinking => ProviderEvent::Thinking(text),
            TextOf::Call(index) => ProviderEvent::CallArguments { index, json: text },
        }
    }
}

/// The UTF-16 code unit that a character marks.
fn unit_of(c: char) -> Option<u16> {
    u16::try_from(u32::from(c).checked_sub(MARKED)?).ok().filter(|unit| (0xd800..0xe000).contains(unit))
}

fn is_high(c: char) -> bool {
    unit_of(c).is_some_and(|unit| unit < 0xdc00)
}

/// Joins the marked halves of a text; those without the other half become U+FFFD.
fn join_in(text: &mut String) {
    if !text.contains(|c| unit_of(c).is_some()) {
        return;
    }
    let mut units = Vec::with_capacity(text.len());
    for c in text.chars() {
        match unit_of(c) {
            Some(unit) => units.push(unit),
            None => units.extend_from_slice(c.encode_utf16(&mut [0; 2])),
        }
    }
    *text = String::from_utf16_lossy(&units);
}

fn join_in_all(value: &mut Value) {
    match value {
        Value::String(text) => join_in(text),
        Value::Array(members) => members.iter_mut().for_each(join_in_all),
        Value::Object(fields) => fields.values_mut().for_each(join_in_all),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ReplyStop;
    use epitome_thread::halves::mark_unpaired_surrogates;

    /// A model wrote a file with an emoji, and its service sent the two halves in two events. The file had two question
    /// marks instead.
    #[test]
    fn halves_of_a_character_are_joined_across_events() {
        let marked = |json: &str| -> String {
            serde_json::from_str(&mark_unpaired_surrogates(json).expect("it has halves")).expect("JSON")
        };
        let (high, low) = (marked(r#""a\ud83d""#), marked(r#""\ude00b""#));
        let mut halves = SplitCharacters::default();
        halves.found();
        let call = |index, json: &str| ProviderEvent::CallArguments { index, json: json.to_owned() };
        let first = halves.join(vec![
            ProviderEvent::Thinking(high.clone()),
            call(0, &high),
            call(1, &high),
            call(0, &low),
        ]);
        let lost = ProviderEvent::Thinking("\u{fffd}".to_owned());
        let begun = ProviderEvent::Thinking("a".to_owned());
        assert_eq!(first, [begun, lost, call(0, "a"), call(1, "a"), call(0, "😀b")]);
        let sealed = ProviderEvent::ThinkingSealed { data: json!([format!("{high}{low}"), high]) };
        let stopped = ProviderEvent::Stopped(ReplyStop::Finished);
        let last = halves.join(vec![sealed, call(1, &low), ProviderEvent::Text(high), stopped.clone()]);
        let sealed = ProviderEvent::ThinkingSealed { data: json!(["a😀b", "a\u{fffd}"]) };
        let text = |text: &str| ProviderEvent::Text(text.to_owned());
        assert_eq!(last, [sealed, call(1, "😀b"), text("a"), text("\u{fffd}"), stopped]);
    }
}
