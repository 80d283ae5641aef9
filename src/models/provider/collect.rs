//! Assembles streamed events into a message, even if the stream breaks off. Independent of wire formats; assigns no ids
//! and runs no tools.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ProviderEvent, ReplyStop};
use epitome_thread::halves::replace_unpaired_surrogates;
use epitome_thread::{
    CallDisplay, CallId, Content, FOREIGN_DEPTH_MAX, HostedSearch, ModelName, Native, ToolCall, Usage,
    is_deeper,
};

/// Collects the events of one reply.
///
/// The index of a part is its position in the content, both while streaming and in the finished reply. The
/// pieces of a part concatenate to its final text.
#[derive(Clone, Debug)]
pub struct Collector {
    provider: String,
    model: String,
    parts: Vec<ReplyPart>,
    usage: Option<Usage>,
    stop: Option<ReplyStop>,
}

/// A piece of a reply, to be shown immediately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyPiece {
    Text {
        part: u32,
        kind: TextKind,
        text: String,
    },
    /// The model began to write a tool call.
    CallOpened {
        part: u32,
        name: String,
    },
}

impl ReplyPiece {
    /// Appends the next piece if it continues the text of this one; otherwise returns it.
    pub fn extend(&mut self, next: ReplyPiece) -> Option<ReplyPiece> {
        match (self, next) {
            (
                ReplyPiece::Text { part, kind, text },
                ReplyPiece::Text { part: next_part, kind: next_kind, text: more },
            ) if (*part, *kind) == (next_part, next_kind) => {
                text.push_str(&more);
                None
            }
            (_, next) => Some(next),
        }
    }
}

/// Whether a text is shown as a part of the reply or as thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextKind {
    Reply,
    Thinking,
}

/// Result of a model call.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelReply {
    /// Calls have the provider's ids, which may be empty or repeated, and empty cards.
    pub content: Vec<Content>,
    pub usage: Option<Usage>,
    /// `None` if the provider had not finished.
    pub stop: Option<ReplyStop>,
}

#[derive(Clone, Debug)]
enum ReplyPart {
    Text(String),
    Thinking { text: String, native: Option<Native> },
    Call { index: u32, id: String, name: String, arguments: String },
    Search(HostedSearch),
}

impl Collector {
    /// Starts a reply of this model; signed thinking parts record the model's name.
    pub fn new(model: &ModelName) -> Collector {
        let (provider, model) = model.split().unwrap_or(("", &model.0));
        Collector {
            provider: provider.to_owned(),
            model: model.to_owned(),
            parts: Vec::new(),
            usage: None,
            stop: None,
        }
    }

    /// The usage that the provider has reported so far.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Processes the next event and returns the piece to show for it, if any.
    pub fn feed(&mut self, event: ProviderEvent) -> Option<ReplyPiece> {
        match event {
            ProviderEvent::Text(text) => self.add_text(TextKind::Reply, text),
            ProviderEvent::TextEnded => {
                if matches!(self.parts.last(), Some(ReplyPart::Text(text)) if !text.is_empty()) {
                    self.parts.push(ReplyPart::Text(String::new()));
                }
                None
            }
            ProviderEvent::Thinking(text) => self.add_text(TextKind::Thinking, text),
            ProviderEvent::ThinkingSealed { data } => {
                let native = self.native(data);
                match self.parts.last_mut() {
                    Some(ReplyPart::Thinking { native: open @ None, .. }) => *open = Some(native),
                    // Thinking that the provider hides has a signature but no text.
                    Some(_) | None => {
                        self.parts.push(ReplyPart::Thinking { text: String::new(), native: Some(native) });
                    }
                }
                None
            }
            ProviderEvent::CallStarted { index, id, name } => {
                if self.call(index).is_some() {
                    return None;
                }
                let part = self.next_part();
                self.parts.push(ReplyPart::Call { index, id, name: name.clone(), arguments: String::new() });
                Some(ReplyPiece::CallOpened { part, name })
            }
            ProviderEvent::CallArguments { index, json } => {
                if let Some(arguments) = self.call(index) {
                    arguments.push_str(&json);
                }
                None
            }
            ProviderEvent::Searched { search, blocks } => self.searched(search, blocks),
            ProviderEvent::Usage(later) => {
                self.usage.get_or_insert_default().update(&later);
                None
            }
            ProviderEvent::Stopped(stop) => {
                self.stop = Some(stop);
                None
            }
        }
    }

    /// Returns everything shown so far, one piece per part, for clients that attach in the middle of a reply.
    pub fn shown(&self) -> Vec<ReplyPiece> {
        let parts = self.parts.iter().zip(0u32..);
        let pieces = parts.filter_map(|(content, part)| match content {
            ReplyPart::Text(text) => Some((part, TextKind::Reply, text.clone())),
            ReplyPart::Thinking { text, .. } => Some((part, TextKind::Thinking, text.clone())),
            ReplyPart::Search(search) => Some((part, TextKind::Reply, search.sources())),
            ReplyPart::Call { .. } => None,
        });
        pieces
            .filter(|(_, _, text)| !text.is_empty())
            .map(|(part, kind, text)| ReplyPiece::Text { part, kind, text })
            .collect()
    }

    /// Returns the complete reply. Arguments that aren't a JSON object become `{"invalid_json": "…"}`; trailing text
    /// parts that contain only white space are dropped.
    pub fn finish(mut self) -> ModelReply {
        while matches!(self.parts.last(), Some(ReplyPart::Text(text)) if text.trim().is_empty()) {
            self.parts.pop();
        }
        self.reply()
    }

    /// Returns what a canceled or broken stream delivered. Calls with unparsable arguments, unsigned thinking and blank
    /// text are dropped from the end only, so that the indices of the parts that were shown remain valid. The content
    /// may be empty.
    pub fn cut(mut self) -> ModelReply {
        loop {
            let unfinished = match self.parts.last() {
                Some(ReplyPart::Text(text)) => text.trim().is_empty(),
                Some(ReplyPart::Thinking { native, .. }) => native.is_none(),
                Some(ReplyPart::Search(search)) => search.is_open,
                Some(ReplyPart::Call { arguments, .. }) => {
                    // An object that parses is complete: no proper prefix of an object parses.
                    !read_value(arguments).is_ok_and(|value| value.is_object())
                }
                None => false,
            };
            if !unfinished {
                return self.reply();
            }
            self.parts.pop();
        }
    }

    fn reply(self) -> ModelReply {
        let content = self
            .parts
            .into_iter()
            .map(|part| match part {
                ReplyPart::Text(text) => Content::Text { text },
                ReplyPart::Thinking { text, native } => Content::Thinking { text, native },
                ReplyPart::Search(search) => Content::Search(search),
                ReplyPart::Call { id, name, arguments, .. } => {
                    let input = read_arguments(arguments);
                    Content::Call(ToolCall { id: CallId(id), name, input, card: CallDisplay::default() })
                }
            })
            .collect();
        ModelReply { content, usage: self.usage, stop: self.stop }
    }

    fn add_text(&mut self, kind: TextKind, text: String) -> Option<ReplyPiece> {
        if text.is_empty() {
            return None;
        }
        match (kind, self.parts.last_mut()) {
            (TextKind::Reply, Some(ReplyPart::Text(open)))
            | (TextKind::Thinking, Some(ReplyPart::Thinking { text: open, native: None })) => {
                open.push_str(&text);
            }
            (TextKind::Reply, _) => self.parts.push(ReplyPart::Text(text.clone())),
            (TextKind::Thinking, _) => {
                self.parts.push(ReplyPart::Thinking { text: text.clone(), native: None });
            }
        }
        Some(ReplyPiece::Text { part: self.next_part() - 1, kind, text })
    }

    fn native(&self, data: Value) -> Native {
        Native { provider: self.provider.clone(), model: self.model.clone(), data }
    }

    /// Adds a search, or completes the open one with the same id: searches may run in parallel, so that other parts are
    /// between a search and its result. Sources are shown as a text.
    fn searched(&mut self, search: HostedSearch, mut blocks: Vec<Value>) -> Option<ReplyPiece> {
        if blocks.iter().any(|block| is_deeper(block, FOREIGN_DEPTH_MAX)) {
            return None;
        }
        let open = self.parts.iter_mut().rev().find_map(|part| match part {
            ReplyPart::Search(open) if open.is_open && open.call == search.call => Some(open),
            ReplyPart::Search(_)
            | ReplyPart::Text(_)
            | ReplyPart::Thinking { .. }
            | ReplyPart::Call { .. } => None,
        });
        if let Some(open) = open
            && let Some(native) = &mut open.native
            && let Some(before) = native.data["blocks"].as_array_mut()
        {
            before.append(&mut blocks);
            (open.pages, open.failure, open.is_open) = (search.pages, search.failure, search.is_open);
            return None;
        }
        let native = Some(self.native(json!({ "blocks": blocks })));
        let (part, text) = (self.next_part(), search.sources());
        self.parts.push(ReplyPart::Search(HostedSearch { native, ..search }));
        (!text.is_empty()).then_some(ReplyPiece::Text { part, kind: TextKind::Reply, text })
    }

    fn call(&mut self, wanted: u32) -> Option<&mut String> {
        self.parts.iter_mut().rev().find_map(|part| match part {
            ReplyPart::Call { index, arguments, .. } if *index == wanted => Some(arguments),
            ReplyPart::Call { .. }
            | ReplyPart::Text(_)
            | ReplyPart::Thinking { .. }
            | ReplyPart::Search(_) => None,
        })
    }

    fn next_part(&self) -> u32 {
        u32::try_from(self.parts.len()).expect("a reply's bytes are bounded, so its parts are few")
    }
}

/// Empty arguments or `null` become an empty object: several servers send those for tools without parameters.
/// Arguments that are nested too deeply for the log count as unreadable.
fn read_arguments(text: String) -> Value {
    match text.trim() {
        "" | "null" => json!({}),
        _ => match read_value(&text) {
            Ok(value @ Value::Object(_)) if !is_deeper(&value, FOREIGN_DEPTH_MAX) => value,
            Ok(_) | Err(_) => json!({ "invalid_json": text }),
        },
    }
}

/// A half of a character that has no other half is replaced.
fn read_value(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text).or_else(|error| match replace_unpaired_surrogates(text) {
        Some(repaired) => serde_json::from_str(&repaired),
        None => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn collect(events: impl IntoIterator<Item = ProviderEvent>) -> (Collector, Vec<ReplyPiece>) {
        let mut collector = Collector::new(&ModelName("anthropic/claude-sonnet-5-5".into()));
        let pieces = events.into_iter().filter_map(|event| collector.feed(event)).collect();
        (collector, pieces)
    }

    fn text(text: &str) -> ProviderEvent {
        ProviderEvent::Text(text.into())
    }

    fn thinking(text: &str) -> ProviderEvent {
        ProviderEvent::Thinking(text.into())
    }

    fn call(index: u32, name: &str, arguments: &str) -> [ProviderEvent; 2] {
        [
            ProviderEvent::CallStarted { index, id: format!("c{index}"), name: name.into() },
            ProviderEvent::CallArguments { index, json: arguments.into() },
        ]
    }

    fn inputs(reply: &ModelReply) -> Vec<Value> {
        reply.content.iter().filter_map(Content::as_call).map(|call| call.input.clone()).collect()
    }

    #[test]
    fn a_reply_with_thinking_text_and_a_call_keeps_their_order() {
        let seal = ProviderEvent::ThinkingSealed { data: json!({"signature": "s"}) };
        let mut events = vec![thinking("hm"), thinking("m"), seal, text("Let me "), text("look.")];
        events.extend(call(1, "file_read", r#"{"file_path":"a"}"#));
        events.push(ProviderEvent::Stopped(ReplyStop::Finished));
        let (collector, pieces) = collect(events);
        let show = |part, kind, text: &str| ReplyPiece::Text { part, kind, text: text.into() };
        assert_eq!(
            pieces,
            [
                show(0, TextKind::Thinking, "hm"),
                show(0, TextKind::Thinking, "m"),
                show(1, TextKind::Reply, "Let me "),
                show(1, TextKind::Reply, "look."),
                ReplyPiece::CallOpened { part: 2, name: "file_read".into() },
            ]
        );
        let reply = collector.finish();
        let native = Native {
            provider: "anthropic".into(),
            model: "claude-sonnet-5-5".into(),
            data: json!({"signature": "s"}),
        };
        assert_eq!(reply.content[0], Content::Thinking { text: "hmm".into(), native: Some(native) });
        assert_eq!(reply.content[1], Content::Text { text: "Let me look.".into() });
        assert_eq!(inputs(&reply), [json!({"file_path": "a"})]);
        assert_eq!(reply.stop, Some(ReplyStop::Finished));
    }

    #[test]
    fn arguments_of_parallel_calls_may_interleave() {
        let arguments = |index, json: &str| ProviderEvent::CallArguments { index, json: json.into() };
        let mut events = call(0, "a", "{\"x\":").to_vec();
        events.extend(call(1, "b", "{"));
        events.extend([arguments(0, "1}"), arguments(1, "}")]);
        assert_eq!(inputs(&collect(events).0.finish()), [json!({"x": 1}), json!({})]);
    }

    #[test]
    fn unreadable_arguments_are_kept_as_text() {
        for (arguments, input) in [
            ("", json!({})),
            ("null", json!({})),
            ("{\"a\": tru", json!({"invalid_json": "{\"a\": tru"})),
            ("[1]", json!({"invalid_json": "[1]"})),
            ("\"{}\"", json!({"invalid_json": "\"{}\""})),
        ] {
            assert_eq!(inputs(&collect(call(0, "t", arguments)).0.finish()), [input]);
        }
    }

    /// A file had a model nest 125 arrays in the arguments of a call. They were accepted, but the log that contained
    /// them could not be read any more: the session was lost.
    #[test]
    fn arguments_nested_too_deeply_for_the_log_are_kept_as_text() {
        for (arrays, is_kept) in [(1, true), (62, true), (63, true), (64, false), (125, false), (500, false)]
        {
            let arguments = format!("{{\"a\":{}{}}}", "[".repeat(arrays), "]".repeat(arrays));
            let input = &inputs(&collect(call(0, "t", &arguments)).0.finish())[0];
            assert_eq!(input.get("a").is_some(), is_kept, "{arrays} arrays");
            assert_eq!(input["invalid_json"] == arguments.as_str(), !is_kept, "{arrays} arrays");
        }
    }

    #[test]
    fn cut_reply_keeps_text_and_drops_unfinished_parts() {
        let mut events = vec![text("I will ")];
        events.extend(call(0, "bash", "{\"command\":\"ls\"}"));
        events.extend(call(1, "bash", "{\"comma"));
        let reply = collect(events).0.cut();
        assert_eq!(reply.content[0], Content::Text { text: "I will ".into() });
        assert_eq!(inputs(&reply), [json!({"command": "ls"})]);
        assert_eq!(reply.stop, None);
        assert!(collect([thinking("not yet signed")]).0.cut().content.is_empty());
        assert!(collect([text(" \n")]).0.cut().content.is_empty());
        assert!(collect([]).0.cut().content.is_empty());
    }

    #[test]
    fn later_usage_replaces_earlier_usage_field_by_field() {
        let usage = |input, output| ProviderEvent::Usage(Usage { input, output, ..Usage::default() });
        let reply = collect([usage(100, 1), usage(0, 25)]).0.finish();
        assert_eq!(reply.usage, Some(Usage { input: 100, output: 25, ..Usage::default() }));
    }

    fn event() -> impl Strategy<Value = ProviderEvent> {
        prop_oneof![
            "[ a-zä\n]{0,6}".prop_map(ProviderEvent::Text),
            "[ a-z]{0,6}".prop_map(ProviderEvent::Thinking),
            Just(ProviderEvent::ThinkingSealed { data: json!({}) }),
            (0u32..3).prop_map(|index| ProviderEvent::CallStarted {
                index,
                id: "i".into(),
                name: "t".into()
            }),
            (0u32..3, r#"[{}":a]{0,3}"#)
                .prop_map(|(index, json)| ProviderEvent::CallArguments { index, json }),
        ]
    }

    #[test]
    fn a_piece_takes_what_continues_its_text_and_returns_anything_else() {
        let text = |part, kind, text: &str| ReplyPiece::Text { part, kind, text: text.to_owned() };
        let mut piece = text(0, TextKind::Reply, "a");
        assert_eq!(piece.extend(text(0, TextKind::Reply, "b")), None);
        assert_eq!(piece, text(0, TextKind::Reply, "ab"));
        let opened = ReplyPiece::CallOpened { part: 1, name: "t".into() };
        for other in [text(1, TextKind::Reply, "c"), text(0, TextKind::Thinking, "c"), opened] {
            assert_eq!(piece.extend(other.clone()), Some(other));
        }
        assert_eq!(piece, text(0, TextKind::Reply, "ab"));
    }

    proptest! {
        /// Concatenating the pieces shown for a part yields that part of the message, at the same index.
        #[test]
        fn pieces_of_a_part_are_its_text(events in prop::collection::vec(event(), 0..30), cut: bool) {
            let (collector, pieces) = collect(events);
            let mut shown: BTreeMap<u32, String> = BTreeMap::new();
            for piece in pieces {
                match piece {
                    ReplyPiece::Text { part, text, .. } => shown.entry(part).or_default().push_str(&text),
                    ReplyPiece::CallOpened { part, .. } => prop_assert!(shown.insert(part, "call".into()).is_none()),
                }
            }
            let reply = if cut { collector.cut() } else { collector.finish() };
            for (part, content) in (0u32..).zip(&reply.content) {
                let expected = match content {
                    Content::Text { text } => text.as_str(),
                    Content::Thinking { text, .. } => text.as_str(),
                    Content::Call(_) => "call",
                    other => return Err(TestCaseError::fail(format!("{other:?} in a reply"))),
                };
                prop_assert_eq!(shown.get(&part).map_or("", String::as_str), expected);
                if let Content::Text { text } = content {
                    prop_assert!(!text.is_empty());
                }
            }
        }
    }
}
