//! The actions that this host produces. Pure.

use ahp::ahp_types::actions::StateAction;
use ahp::ahp_types::state::{ConfirmationOption, Message, ToolResultContent};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// How a turn ended.
pub enum TurnEnd {
    Complete,
    Cancelled,
    Failed(String),
}

/// The kind of a text of the agent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TextPart {
    Reply,
    Thinking,
}

/// A value of the protocol, whose form does not depend on data.
pub fn of_form<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("it has the form of the protocol")
}

pub fn turn_started(turn: &str, started_at: &str, message: &Message, queued: Option<&str>) -> StateAction {
    of_form(json!({
        "type": "chat/turnStarted", "turnId": turn, "startedAt": started_at, "message": message,
        "queuedMessageId": queued,
    }))
}

pub fn turn_ended(turn: &str, duration: i64, end: TurnEnd) -> StateAction {
    of_form(match end {
        TurnEnd::Complete => json!({ "type": "chat/turnComplete", "turnId": turn, "duration": duration }),
        TurnEnd::Cancelled => json!({ "type": "chat/turnCancelled", "turnId": turn, "duration": duration }),
        TurnEnd::Failed(message) => {
            let part = json!({ "error": { "errorType": "agent", "message": message } });
            json!({ "type": "chat/error", "turnId": turn, "duration": duration, "part": part })
        }
    })
}

pub fn text_started(turn: &str, kind: TextPart, id: &str, text: String) -> StateAction {
    let kind = match kind {
        TextPart::Reply => "markdown",
        TextPart::Thinking => "reasoning",
    };
    response_part(turn, json!({ "kind": kind, "id": id, "content": text }))
}

pub fn text_added(turn: &str, kind: TextPart, id: &str, text: String) -> StateAction {
    let name = match kind {
        TextPart::Reply => "chat/delta",
        TextPart::Thinking => "chat/reasoning",
    };
    of_form(json!({ "type": name, "turnId": turn, "partId": id, "content": text }))
}

/// A remark of the host within a turn.
pub fn notification(turn: &str, text: &str) -> StateAction {
    response_part(turn, json!({ "kind": "systemNotification", "content": text }))
}

fn response_part(turn: &str, part: Value) -> StateAction {
    of_form(json!({ "type": "chat/responsePart", "turnId": turn, "part": part }))
}

/// The tokens of the work that has just completed, as the daemon counts them.
pub fn usage(turn: &str, tokens: &Value) -> StateAction {
    let count = |name: &str| tokens[name].as_i64();
    let usage = json!({
        "inputTokens": count("inputTokens"), "outputTokens": count("outputTokens"),
        "cacheReadTokens": count("cachedReadTokens"),
    });
    of_form(json!({ "type": "chat/usage", "turnId": turn, "usage": usage }))
}

pub fn call_started(turn: &str, call: &str, name: &str, title: &str) -> StateAction {
    of_form(json!({
        "type": "chat/toolCallStart", "turnId": turn, "toolCallId": call, "toolName": name, "displayName": name,
        "intention": title,
    }))
}

/// A call that runs without a question.
pub fn call_runs(turn: &str, call: &str, title: &str, input: Option<&Value>) -> StateAction {
    of_form(json!({
        "type": "chat/toolCallReady", "turnId": turn, "toolCallId": call, "invocationMessage": title,
        "toolInput": input.map(pretty), "confirmed": "not-needed",
    }))
}

/// A call that asks for permission. `shown` is Markdown.
pub fn call_asks(
    turn: &str,
    call: &str,
    title: &str,
    shown: String,
    input: Option<&Value>,
    options: &[ConfirmationOption],
) -> StateAction {
    of_form(json!({
        "type": "chat/toolCallReady", "turnId": turn, "toolCallId": call, "confirmationTitle": title,
        "invocationMessage": { "markdown": shown }, "toolInput": input.map(pretty), "options": options,
    }))
}

/// The decision about a call that was made elsewhere.
pub fn call_confirmed(turn: &str, call: &str, approved: bool) -> StateAction {
    let (confirmed, reason) = if approved { (Some("user-action"), None) } else { (None, Some("denied")) };
    of_form(json!({
        "type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": call, "approved": approved,
        "confirmed": confirmed, "reason": reason,
    }))
}

pub fn call_content(turn: &str, call: &str, content: &[ToolResultContent]) -> StateAction {
    of_form(json!({
        "type": "chat/toolCallContentChanged", "turnId": turn, "toolCallId": call, "content": content,
    }))
}

/// The result of a call; `failed` is why it has none.
pub fn call_complete(
    turn: &str,
    call: &str,
    title: &str,
    content: &[ToolResultContent],
    failed: Option<&str>,
) -> StateAction {
    let mut result = json!({ "success": failed.is_none(), "pastTenseMessage": title, "content": content });
    if let Some(why) = failed {
        result["error"] = json!({ "message": why });
    }
    of_form(json!({ "type": "chat/toolCallComplete", "turnId": turn, "toolCallId": call, "result": result }))
}

/// A message waits no longer: it steers the turn, or begins one.
pub fn pending_removed(kind: &str, id: &str) -> StateAction {
    of_form(json!({ "type": "chat/pendingMessageRemoved", "kind": kind, "id": id }))
}

fn pretty(input: &Value) -> String {
    format!("{input:#}")
}
