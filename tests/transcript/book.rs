//! The state of a connection that shorthand depends on: open requests of both sides, names, and tools by
//! call.
//!
//! It is maintained by code that sees both directions (the runner of fixtures, the recorder), and never judges a
//! message.

use std::collections::BTreeMap;

use serde_json::Value;

use super::names::{Names, PlaceholderKind};

/// The state for writing and parsing shorthand.
#[derive(Clone, Debug, Default)]
pub struct Shorthand {
    pub names: Names,
    /// Requests of the editor without an answer, oldest first: id and method.
    pub editor_open: Vec<(Value, String)>,
    /// Requests of the agent without an answer, oldest first: id and message.
    pub agent_open: Vec<(Value, Value)>,
    /// Ids of all requests of the editor, in order; `#2` is the second.
    editor_sent: Vec<Value>,
    /// Names of announced tool calls.
    tools: BTreeMap<String, String>,
}

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageDirection {
    /// From the editor.
    ToAgent,
    /// From the agent.
    ToEditor,
}

impl Shorthand {
    /// Records a message of the editor.
    pub fn record_editor_message(&mut self, message: &Value) {
        match (method(message), message.get("id")) {
            (Some(method), Some(id)) => {
                self.editor_open.push((id.clone(), method.to_owned()));
                self.editor_sent.push(id.clone());
            }
            (None, Some(id)) => self.agent_open.retain(|(open, _)| open != id),
            (_, None) => {}
        }
    }

    /// Records a message of the agent.
    pub fn record_agent_message(&mut self, message: &Value) {
        match (method(message), message.get("id")) {
            (Some(_), Some(id)) => {
                let text = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
                self.names.name(PlaceholderKind::Request, &text);
                self.agent_open.push((id.clone(), message.clone()));
            }
            (None, Some(id)) => self.editor_open.retain(|(open, _)| open != id),
            (_, None) => {}
        }
        self.learn(message);
    }

    /// Records the tool name in a message of the agent, which may be compared only later.
    pub fn learn(&mut self, message: &Value) {
        for place in ["/params/update", "/params/toolCall"] {
            if let Some(call) = message.pointer(place) {
                self.learn_tool(call);
            }
        }
    }

    /// Returns the tool of a call: its name, or its kind if the agent sends no names.
    pub fn tool(&self, call: &str) -> &str {
        self.tools.get(call).map_or("other", String::as_str)
    }

    /// Resolves an answer's reference to the id of a request.
    pub fn editor_request(&self, to: &RequestRef) -> Option<Value> {
        match to {
            RequestRef::Oldest => self.editor_open.first().map(|(id, _)| id.clone()),
            RequestRef::Method(method) => {
                self.editor_open.iter().find(|(_, open)| open == method).map(|(id, _)| id.clone())
            }
            RequestRef::Number(number) => self.editor_sent.get(number.checked_sub(1)?).cloned(),
            RequestRef::Null => Some(Value::Null),
        }
    }

    /// The shortest reference that resolves to this id.
    pub fn reference(&self, id: &Value) -> RequestRef {
        let of_method = self.editor_open.iter().find(|(open, _)| open == id).map(|(_, method)| method);
        let number =
            self.editor_sent.iter().rposition(|sent| sent == id).map(|at| RequestRef::Number(at + 1));
        [Some(RequestRef::Oldest), of_method.cloned().map(RequestRef::Method), number]
            .into_iter()
            .flatten()
            .find(|to| self.editor_request(to).as_ref() == Some(id))
            .unwrap_or(RequestRef::Null)
    }

    /// Forgets the open requests after the connection has ended; they remain unanswered.
    pub fn restarted(&mut self) {
        self.editor_open.clear();
        self.agent_open.clear();
    }

    fn learn_tool(&mut self, call: &Value) {
        let Some(id) = call.get("toolCallId").and_then(Value::as_str) else { return };
        if let Some(name) = call.get("name").and_then(Value::as_str) {
            self.tools.insert(id.to_owned(), name.to_owned());
        } else if let Some(kind) = call.get("kind").and_then(Value::as_str) {
            self.tools.entry(id.to_owned()).or_insert_with(|| kind.to_owned());
        }
    }
}

/// The request that an answer belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestRef {
    /// The oldest open request; written as an empty reference.
    Oldest,
    /// The oldest open request with this method; written as the method.
    Method(String),
    /// The n-th request of the editor; written as `#n`.
    Number(usize),
    /// No request, because the line could not be parsed; written as `#null`.
    Null,
}

pub(super) fn method(message: &Value) -> Option<&str> {
    message.get("method").and_then(Value::as_str)
}
