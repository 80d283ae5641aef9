//! Requests to the agent that have no answer yet, and the lines of one connection. No I/O.

use std::collections::HashMap;

use epitome_acp::{answers, envelope};
use serde::Serialize;
use serde_json::Value;

/// JSON-RPC's code for an unknown method.
const METHOD_NOT_FOUND: i32 = -32601;

/// One end of a connection to an agent. `K` is what the answer to a request is for.
pub struct AcpLink<K> {
    next: u64,
    pending: HashMap<u64, K>,
    lines: Vec<u8>,
}

/// A message of the agent.
#[derive(Debug)]
pub enum LinkMessage<K> {
    /// The answer to a request, or its error.
    Answer(K, Result<Value, Value>),
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    /// A second answer, or one to a request that was not sent.
    Nothing,
}

impl<K> Default for AcpLink<K> {
    fn default() -> AcpLink<K> {
        AcpLink { next: 0, pending: HashMap::new(), lines: Vec::new() }
    }
}

impl<K> AcpLink<K> {
    /// Sends a request and returns its id.
    pub fn request(&mut self, method: &'static str, params: &impl Serialize, pending: K) -> u64 {
        self.next += 1;
        self.pending.insert(self.next, pending);
        envelope::request(&mut self.lines, self.next, method, params);
        self.next
    }

    pub fn notify(&mut self, method: &'static str, params: &impl Serialize) {
        envelope::notification(&mut self.lines, method, params);
    }

    /// Cancels a request that is not answered.
    pub fn cancel_request(&mut self, id: u64) {
        envelope::cancel_request(&mut self.lines, id);
    }

    /// Answers a request of the agent.
    pub fn answer(&mut self, id: &Value, result: &impl Serialize) {
        envelope::response(&mut self.lines, &id.to_string(), answers::raw(result));
    }

    /// Refuses a request of the agent, which leaves it to other clients.
    pub fn refuse(&mut self, id: &Value, message: &str) {
        let error = answers::Error::new(METHOD_NOT_FOUND, message);
        envelope::response(&mut self.lines, &id.to_string(), Err(error));
    }

    /// Reads a line of the agent.
    pub fn receive(&mut self, line: &[u8]) -> Result<LinkMessage<K>, serde_json::Error> {
        let mut message: Value = serde_json::from_slice(line)?;
        let mut take = |name: &str| message.get_mut(name).map(Value::take);
        let (id, method) = (take("id"), take("method"));
        let params = take("params").unwrap_or_default();
        Ok(match (id, method) {
            (Some(id), Some(Value::String(method))) => LinkMessage::Request { id, method, params },
            (None, Some(Value::String(method))) => LinkMessage::Notification { method, params },
            (Some(id), None) => match id.as_u64().and_then(|id| self.pending.remove(&id)) {
                Some(pending) => {
                    let result = take("error").map_or_else(|| Ok(take("result").unwrap_or_default()), Err);
                    LinkMessage::Answer(pending, result)
                }
                None => LinkMessage::Nothing,
            },
            (_, Some(_)) | (None, None) => LinkMessage::Nothing,
        })
    }

    /// The same connection for other purposes, once none of its requests waits for an answer.
    pub fn for_purposes<L>(self) -> AcpLink<L> {
        AcpLink { next: self.next, pending: HashMap::new(), lines: self.lines }
    }

    /// The lines since the last call.
    pub fn take_lines(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }

    /// Takes the purposes of the unanswered requests, none of which will be answered any more.
    pub fn give_up(&mut self) -> Vec<K> {
        self.pending.drain().map(|(_, pending)| pending).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_request_is_answered_once() {
        let mut link = AcpLink::default();
        let id = link.request("session/list", &json!({}), "list");
        let line: Value = serde_json::from_slice(&link.take_lines()).expect("one line");
        assert_eq!((&line["id"], &line["method"]), (&json!(id), &json!("session/list")));
        let answer = br#"{"jsonrpc":"2.0","id":1,"result":{"sessions":[]}}"#;
        let first = link.receive(answer).expect("JSON");
        assert!(
            matches!(first, LinkMessage::Answer("list", Ok(result)) if result == json!({ "sessions": [] }))
        );
        assert!(matches!(link.receive(answer).expect("JSON"), LinkMessage::Nothing));
        assert!(link.receive(b"{").is_err());
        link.request("session/list", &json!({}), "again");
        assert_eq!(link.give_up(), ["again"]);
    }

    #[test]
    fn errors_requests_and_notifications_are_told_apart() {
        let mut link = AcpLink::default();
        link.request("session/new", &json!({}), ());
        let error = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"no"}}"#;
        let failed = link.receive(error).expect("JSON");
        assert!(matches!(failed, LinkMessage::Answer((), Err(error)) if error["message"] == "no"));
        let asked = br#"{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"a":1}}"#;
        let asked = link.receive(asked).expect("JSON");
        assert!(matches!(asked, LinkMessage::Request { params, .. } if params["a"] == 1));
        let update = br#"{"jsonrpc":"2.0","method":"session/update"}"#;
        let update = link.receive(update).expect("JSON");
        assert!(matches!(update, LinkMessage::Notification { params: Value::Null, .. }));
    }
}
