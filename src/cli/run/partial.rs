//! Streamed text as the events of Anthropic's Messages API, for `--include-partial-messages`. Pure.

use serde_json::{Value, json};

use crate::cli::streamed::Streamed;
use crate::session::TextKind;
use crate::thread::{Message, MessageId};

/// The message that is being streamed.
#[derive(Default)]
pub struct PartialLines {
    message: Option<MessageId>,
    streamed: Streamed,
    /// Blocks that have begun.
    blocks: u32,
    /// The part of the message that the open block belongs to.
    open: Option<u32>,
}

impl PartialLines {
    /// Returns the events for a piece of text. `id` and `model` are those of its message in the API's form.
    pub fn text(
        &mut self,
        message: MessageId,
        (part, kind): (u32, TextKind),
        text: &str,
        (id, model): (&str, &str),
    ) -> Vec<Value> {
        let mut events = Vec::new();
        if self.message != Some(message) {
            *self = PartialLines { message: Some(message), ..PartialLines::default() };
            events.push(start(&json!({ "id": id, "model": model })));
        }
        self.streamed.saw(message, part, kind, text.len());
        if self.open != Some(part) {
            self.begin(text_block(kind), &mut events);
            self.open = Some(part);
        }
        events.push(self.delta(text_delta(kind, text)));
        events
    }

    /// Returns the events that complete the message: its text that was not streamed, its calls, and its end. `whole`
    /// is the complete message in the API's form.
    pub fn end(&mut self, message: &Message, whole: &Value) -> Vec<Value> {
        let mut events = Vec::new();
        if self.message != Some(message.id) {
            *self = PartialLines::default();
            events.push(start(whole));
        }
        for (kind, missing) in self.streamed.missing(message) {
            self.begin(text_block(kind), &mut events);
            events.push(self.delta(text_delta(kind, &missing)));
        }
        for call in message.calls() {
            let block = json!({ "type": "tool_use", "id": call.id.0, "name": call.name, "input": {} });
            self.begin(block, &mut events);
            let input = call.input.to_string();
            events.push(self.delta(json!({ "type": "input_json_delta", "partial_json": input })));
        }
        events.extend(self.stop());
        let delta = json!({ "stop_reason": whole["stop_reason"], "stop_sequence": null });
        events.push(json!({ "type": "message_delta", "delta": delta, "usage": whole["usage"] }));
        events.push(json!({ "type": "message_stop" }));
        *self = PartialLines::default();
        events
    }

    /// Ends the open block, if any, and begins the next one.
    fn begin(&mut self, block: Value, events: &mut Vec<Value>) {
        events.extend(self.stop());
        events.push(json!({ "type": "content_block_start", "index": self.blocks, "content_block": block }));
        self.blocks += 1;
    }

    fn stop(&self) -> Option<Value> {
        let open = self.blocks.checked_sub(1)?;
        Some(json!({ "type": "content_block_stop", "index": open }))
    }

    fn delta(&self, delta: Value) -> Value {
        json!({ "type": "content_block_delta", "index": self.blocks.saturating_sub(1), "delta": delta })
    }
}

fn text_block(kind: TextKind) -> Value {
    match kind {
        TextKind::Reply => json!({ "type": "text", "text": "" }),
        TextKind::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
    }
}

fn text_delta(kind: TextKind, text: &str) -> Value {
    match kind {
        TextKind::Reply => json!({ "type": "text_delta", "text": text }),
        TextKind::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
    }
}

fn start(message: &Value) -> Value {
    json!({ "type": "message_start", "message": {
        "id": message["id"], "type": "message", "role": "assistant", "model": message["model"], "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": { "input_tokens": 0, "output_tokens": 0 },
    } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::{CallDisplay, CallId, Content, ToolCall};

    const ID: MessageId = MessageId(4);

    fn message(text: &str) -> Message {
        let input = json!({ "command": "ls" });
        let call = ToolCall {
            id: CallId("c1".to_owned()),
            name: "bash".to_owned(),
            input,
            card: CallDisplay::default(),
        };
        let thought = Content::Thinking { text: "hm".to_owned(), native: None };
        Message {
            id: ID,
            content: vec![thought, Content::Text { text: text.to_owned() }, Content::Call(call)],
            author: None,
        }
    }

    /// Puts the blocks together again, as readers of the format do.
    fn read(events: &[Value]) -> Vec<String> {
        let mut blocks: Vec<String> = Vec::new();
        for event in events {
            let index = event["index"].as_u64().map(|index| usize::try_from(index).expect("a small number"));
            match event["type"].as_str().expect("a type") {
                "content_block_start" => {
                    assert_eq!(index, Some(blocks.len()), "{event}");
                    blocks.push(String::new());
                }
                "content_block_delta" => {
                    let delta = &event["delta"];
                    let text =
                        ["text", "thinking", "partial_json"].iter().find_map(|field| delta[field].as_str());
                    blocks[index.expect("an index")].push_str(text.expect("a text"));
                }
                _ => {}
            }
        }
        blocks
    }

    #[test]
    fn the_events_of_a_message_add_up_to_it() {
        let mut partial = PartialLines::default();
        let mut events = partial.text(ID, (0, TextKind::Thinking), "hm", ("msg_4", "a/b"));
        events.extend(partial.text(ID, (1, TextKind::Reply), "All ", ("msg_4", "a/b")));
        events.extend(partial.text(ID, (1, TextKind::Reply), "fine", ("msg_4", "a/b")));
        events.extend(partial.end(&message("All fine"), &json!({ "stop_reason": "tool_use", "usage": {} })));
        assert_eq!(read(&events), ["hm", "All fine", r#"{"command":"ls"}"#]);
        let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
        let counts = ["message_start", "content_block_start", "content_block_stop", "message_stop"].map(of);
        assert_eq!(counts, [1, 3, 3, 1]);
    }

    #[test]
    fn text_that_was_not_streamed_follows_before_the_end() {
        let mut partial = PartialLines::default();
        let mut events = partial.text(ID, (1, TextKind::Reply), "All ", ("msg_4", "a/b"));
        events.extend(partial.end(&message("All fine"), &json!({})));
        assert_eq!(read(&events), ["All ", "hm", "fine", r#"{"command":"ls"}"#]);
        let events = partial.end(&message("Not streamed"), &json!({ "id": "msg_4" }));
        assert_eq!(read(&events), ["hm", "Not streamed", r#"{"command":"ls"}"#]);
        assert_eq!(events[0]["message"]["id"], "msg_4");
    }
}
